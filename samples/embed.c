// SPDX-License-Identifier: Apache-2.0
/* embed.c - Lathe inside an application that owns its memory and its log: a counting allocator with
 * a limit, a report hook, no threads of its own. Shows what happens when memory runs out: a status,
 * not a crash, and nothing leaks.
 *
 *   cc embed.c $(pkg-config --cflags --libs lathe) -o embed
 *   ./embed mlp.onnx */
#include <lathe.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct budget {
    size_t used, peak, limit;
    int refused;
} budget;

/* Every block remembers its size in front of itself; 64 bytes keep the alignment of malloc. */
static void *budget_alloc(void *user, size_t bytes) {
    budget *b = (budget *)user;
    if (bytes > b->limit - b->used) {
        b->refused++;
        return NULL;
    }
    char *at = (char *)malloc(bytes + 64);
    if (!at) return NULL;
    *(size_t *)(void *)at = bytes;
    b->used += bytes;
    if (b->used > b->peak) b->peak = b->used;
    return at + 64;
}

static void budget_release(void *user, void *ptr) {
    budget *b = (budget *)user;
    char *at = (char *)ptr - 64;
    b->used -= *(size_t *)(void *)at;
    free(at);
}

static void log_line(void *user, lathe_severity severity, lathe_status status, const char *origin,
                     const char *message) {
    static const char *const words[] = {"note", "warning", "error"};
    int *lines = (int *)user;
    ++*lines;
    printf("[app] %s (%s) %s: %s\n", words[severity], lathe_status_name(status), origin, message);
}

/* Three steps on whatever is in the inputs; returns the status of the first call that failed. */
static lathe_status try_training(const char *path, budget *memory, int *lines, double *loss) {
    lathe_context_options co = LATHE_CONTEXT_OPTIONS_INIT;
    co.alloc = budget_alloc;
    co.release = budget_release;
    co.alloc_user = memory;
    co.report = log_line;
    co.report_user = lines;
    co.threads = 1;
    lathe_context *ctx = NULL;
    lathe_model *model = NULL;
    lathe_trainer *trainer = NULL;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    mo.batch = 8;
    lathe_train_options to = LATHE_TRAIN_OPTIONS_INIT;
    to.loss = "cross_entropy(logits, labels)";
    to.optimizer = "sgd";
    to.momentum = 0.9;
    lathe_status st = lathe_context_create(&co, &ctx);
    if (st == LATHE_OK) st = lathe_model_open(ctx, path, &mo, &model);
    if (st == LATHE_OK) st = lathe_trainer_create(model, &to, &trainer);
    for (int i = 0; st == LATHE_OK && i < 3; i++) {
        lathe_step s = LATHE_STEP_INIT;
        st = lathe_trainer_step(trainer, &s);
        *loss = s.loss;
    }
    lathe_trainer_destroy(trainer);
    lathe_model_destroy(model);
    lathe_context_destroy(ctx);
    return st;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.onnx\n", argv[0]);
        return 2;
    }
    int lines = 0;
    double loss = 0;
    budget plenty = {0, 0, (size_t)1 << 30, 0};
    lathe_status st = try_training(argv[1], &plenty, &lines, &loss);
    printf("plenty: %s, loss %.4f, peak %zu bytes, %zu left\n", lathe_status_name(st), loss,
           plenty.peak, plenty.used);
    if (st != LATHE_OK || plenty.used) return 1;

    budget tight = {0, 0, plenty.peak / 2, 0};
    st = try_training(argv[1], &tight, &lines, &loss);
    printf("half of it: %s, %d refusals, %zu left\n", lathe_status_name(st), tight.refused,
           tight.used);
    return st == LATHE_OUT_OF_MEMORY && !tight.used ? 0 : 1;
}
