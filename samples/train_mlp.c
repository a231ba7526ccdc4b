// SPDX-License-Identifier: Apache-2.0
/* train_mlp.c - train a model on data that is made in memory, then save it as ONNX.
 *
 *   cc train_mlp.c $(pkg-config --cflags --libs lathe) -lm -o train_mlp
 *   ./train_mlp mlp.onnx trained.onnx
 *
 * The model has one float input [batch, features] and one output [batch, classes]. */
#include <lathe.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void report(void *user, lathe_severity severity, lathe_status status, const char *origin,
                   const char *message) {
    (void)user;
    (void)status;
    if (severity == LATHE_ERROR) fprintf(stderr, "%s: %s\n", origin, message);
}

static double uniform(void) {
    return (double)rand() / RAND_MAX * 2 - 1;
}

/* Points on a plane cut into five stripes: the class is the stripe of the first two features. */
static void make_batch(const lathe_tensor *x, const lathe_tensor *labels) {
    float *at = (float *)x->data;
    int64_t *label = (int64_t *)labels->data;
    int64_t features = x->shape[1];
    for (int64_t i = 0; i < x->shape[0]; i++) {
        for (int64_t k = 0; k < features; k++) at[i * features + k] = (float)uniform();
        double where = (at[i * features] + at[i * features + 1] + 2) / 4 * 5;
        label[i] = where < 4 ? (int64_t)where : 4;
    }
}

static int train(lathe_trainer *trainer, const char *out) {
    lathe_tensor x, labels;
    if (lathe_trainer_input_at(trainer, 0, &x) != LATHE_OK || x.dtype != LATHE_F32 || x.rank != 2) {
        fprintf(stderr, "the model's input is not float [batch, features]\n");
        return 2;
    }
    if (lathe_trainer_input(trainer, "labels", &labels) != LATHE_OK) return 2;
    const int steps = 300;
    double first = 0, last = 0;
    for (int step = 1; step <= steps; step++) {
        make_batch(&x, &labels);
        lathe_trainer_set_lr(trainer, 0.02 * 0.5 * (1 + cos(3.14159 * (step - 1) / steps)));
        lathe_step s = LATHE_STEP_INIT;
        if (lathe_trainer_step(trainer, &s) != LATHE_OK) return 1;
        if (step <= 20) first += s.loss / 20;
        if (step > steps - 20) last += s.loss / 20;
        if (step % 50 == 0) printf("step %d  loss %.4f\n", step, s.loss);
    }
    printf("loss %.4f to %.4f, %zu bytes\n", first, last, lathe_trainer_bytes(trainer));
    if (lathe_trainer_export(trainer, out) != LATHE_OK) return 1;
    return last < first ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL.onnx OUT.onnx\n", argv[0]);
        return 2;
    }
    lathe_context_options co = LATHE_CONTEXT_OPTIONS_INIT;
    co.report = report;
    lathe_context *ctx = NULL;
    lathe_model *model = NULL;
    lathe_trainer *trainer = NULL;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    mo.batch = 32; /* where the file leaves the batch open */
    lathe_train_options to = LATHE_TRAIN_OPTIONS_INIT;
    to.loss = "cross_entropy(logits, labels)";
    int rc = 1;
    if (lathe_context_create(&co, &ctx) == LATHE_OK &&
        lathe_model_open(ctx, argv[1], &mo, &model) == LATHE_OK &&
        lathe_trainer_create(model, &to, &trainer) == LATHE_OK)
        rc = train(trainer, argv[2]);
    lathe_trainer_destroy(trainer);
    lathe_model_destroy(model);
    lathe_context_destroy(ctx);
    return rc;
}
