// SPDX-License-Identifier: Apache-2.0
/* evaluate.c - the loss of a model on a batch without changing it, and what is in the model, as
 * JSON.
 *
 *   cc evaluate.c $(pkg-config --cflags --libs lathe) -o evaluate
 *   ./evaluate mlp.onnx */
#include <lathe.h>
#include <stdio.h>
#include <string.h>

static void report(void *user, lathe_severity severity, lathe_status status, const char *origin,
                   const char *message) {
    (void)user;
    (void)status;
    if (severity == LATHE_ERROR) fprintf(stderr, "%s: %s\n", origin, message);
}

/* Something fixed in every input: floats run through [-1, 1), integers count 0, 1, 2, 0, ... */
static void fill(const lathe_tensor *t) {
    if (t->dtype == LATHE_F32) {
        float *at = (float *)t->data;
        for (size_t i = 0; i < t->bytes / sizeof *at; i++) at[i] = (float)(i % 17) / 8.5f - 1;
    } else if (t->dtype == LATHE_I64) {
        int64_t *at = (int64_t *)t->data;
        for (size_t i = 0; i < t->bytes / sizeof *at; i++) at[i] = (int64_t)(i % 3);
    } else {
        memset(t->data, 0, t->bytes);
    }
}

static int evaluate(lathe_trainer *trainer) {
    lathe_tensor t;
    for (int i = 0; lathe_trainer_input_at(trainer, i, &t) == LATHE_OK; i++) {
        printf("input %s, rank %d, %zu bytes\n", t.name, (int)t.rank, t.bytes);
        fill(&t);
    }
    double a, b;
    if (lathe_trainer_loss(trainer, &a) != LATHE_OK || lathe_trainer_loss(trainer, &b) != LATHE_OK)
        return 1;
    printf("loss %.9g\n", a);
    return a == b ? 0 : 1; /* nothing was updated in between */
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.onnx\n", argv[0]);
        return 2;
    }
    lathe_context_options co = LATHE_CONTEXT_OPTIONS_INIT;
    co.report = report;
    lathe_context *ctx = NULL;
    if (lathe_context_create(&co, &ctx) != LATHE_OK) return 1;

    int rc = 1;
    char *json = NULL;
    lathe_model *model = NULL;
    lathe_trainer *trainer = NULL;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    mo.batch = 8;
    lathe_train_options to = LATHE_TRAIN_OPTIONS_INIT;
    to.loss = "cross_entropy(logits, labels)";
    if (lathe_info(ctx, argv[1], NULL, 1, &json) == LATHE_OK) puts(json);
    lathe_text_free(ctx, json);
    if (lathe_model_open(ctx, argv[1], &mo, &model) == LATHE_OK &&
        lathe_trainer_create(model, &to, &trainer) == LATHE_OK)
        rc = evaluate(trainer);
    lathe_trainer_destroy(trainer);
    lathe_model_destroy(model);
    lathe_context_destroy(ctx);
    return rc;
}
