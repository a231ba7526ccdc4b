// SPDX-License-Identifier: Apache-2.0
/* test_api.c - the promises of lathe.h that no model test looks at: refusals say why, running out
 * of memory anywhere gives a status and leaks nothing, and evaluation does not depend on the batch.
 */
#include "driver/forward.h"
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char model_path[] = "tests/models/mlp.dynamic18.onnx";
static const char entropy[] = "cross_entropy(logits, labels)";
/* Models whose life is cut short at every allocation, or at every `stride`-th. */
static const struct life {
    const char *path, *loss;
    long stride;
} lives[] = {
    {"tests/models/mlp.dynamic18.onnx", NULL, 1},
    {"tests/models/gpt.dynamo23.onnx", "next_token(logits)", 3},
    {"tests/models/cnn.legacy17.onnx", NULL, 3},
};

/* ---- a context that counts ------------------------------------------------------------------- */
struct heap {
    long calls, refuse_at; /* refuse_at: the allocation from 1 on that fails, 0: none */
    long blocks;
};

static void *heap_alloc(void *user, size_t bytes) {
    struct heap *h = user;
    if (++h->calls == h->refuse_at) return NULL;
    void *at = malloc(bytes);
    if (at) h->blocks++;
    return at;
}

static void heap_release(void *user, void *ptr) {
    struct heap *h = user;
    h->blocks--;
    free(ptr);
}

struct log {
    int lines;
    lathe_status status;
    char text[2000];
};

static void report(void *user, lathe_severity severity, lathe_status status, const char *origin,
                   const char *message) {
    struct log *l = user;
    if (severity != LATHE_ERROR) return;
    l->lines++;
    l->status = status;
    snprintf(l->text, sizeof l->text, "%s: %s", origin, message);
}

struct env {
    struct heap heap;
    struct log log;
    lathe_context *ctx;
    lathe_model *model;
    lathe_trainer *trainer;
};

static lathe_status open_context(struct env *e) {
    lathe_context_options o = LATHE_CONTEXT_OPTIONS_INIT;
    o.alloc = heap_alloc;
    o.release = heap_release;
    o.alloc_user = &e->heap;
    o.report = report;
    o.report_user = &e->log;
    o.threads = 1;
    return lathe_context_create(&o, &e->ctx);
}

static lathe_status open_model(struct env *e, const char *path) {
    lathe_model_options o = LATHE_MODEL_OPTIONS_INIT;
    o.batch = 4;
    return lathe_model_open(e->ctx, path, &o, &e->model);
}

static lathe_train_options train_options(void) {
    lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
    o.loss = entropy;
    return o;
}

static void close_env(struct env *e) {
    lathe_trainer_destroy(e->trainer);
    lathe_model_destroy(e->model);
    lathe_context_destroy(e->ctx);
    ck_assert_int_eq(e->heap.blocks, 0);
}

static void open_trainer(struct env *e) {
    memset(e, 0, sizeof *e);
    lathe_train_options o = train_options();
    ck_assert_int_eq(open_context(e), LATHE_OK);
    ck_assert_int_eq(open_model(e, model_path), LATHE_OK);
    ck_assert_msg(lathe_trainer_create(e->model, &o, &e->trainer) == LATHE_OK, "%s", e->log.text);
}

/* ---- memory ---------------------------------------------------------------------------------- */
static lathe_status whole_life(struct env *e, const struct life *l, const char *out) {
    lathe_train_options o = train_options();
    lathe_step s = LATHE_STEP_INIT;
    char *text = NULL;
    o.loss = l->loss ? l->loss : entropy;
    lathe_status st = open_context(e);
    if (st == LATHE_OK) st = lathe_info(e->ctx, l->path, NULL, 0, &text);
    lathe_text_free(e->ctx, text);
    if (st == LATHE_OK) st = open_model(e, l->path);
    if (st == LATHE_OK) st = lathe_trainer_create(e->model, &o, &e->trainer);
    if (st == LATHE_OK) st = lathe_trainer_step(e->trainer, &s);
    if (st == LATHE_OK) st = lathe_trainer_export(e->trainer, out);
    return st;
}

/* Returns whether the life ended well, with no allocation left to refuse. */
static bool refuse_one(const struct life *l, long n, const char *out) {
    struct env e = {.heap.refuse_at = n};
    lathe_status st = whole_life(&e, l, out);
    bool whole = e.heap.calls < n;
    ck_assert_msg(st == (whole ? LATHE_OK : LATHE_OUT_OF_MEMORY),
                  "%s, allocation %ld refused: status %d, %s", l->path, n, (int)st, e.log.text);
    lathe_trainer_destroy(e.trainer);
    lathe_model_destroy(e.model);
    lathe_context_destroy(e.ctx);
    ck_assert_msg(e.heap.blocks == 0, "%s, allocation %ld refused: %ld blocks left (%s)", l->path,
                  n, e.heap.blocks, e.log.text);
    return whole;
}

START_TEST(any_allocation_may_fail) {
    char out[] = "/tmp/lathe-test-XXXXXX";
    int fd = mkstemp(out);
    ck_assert_int_ge(fd, 0);
    close(fd);
    long n = 1;
    while (!refuse_one(&lives[_i], n, out)) n += lives[_i].stride;
    ck_assert_int_gt(n, 50);
    unlink(out);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */
static void refused(struct env *e, lathe_status st, const char *text) {
    ck_assert_int_eq(st, LATHE_USAGE);
    ck_assert_int_eq(e->log.status, LATHE_USAGE);
    ck_assert_msg(e->log.lines == 1 && strstr(e->log.text, text), "%d lines, expected \"%s\": %s",
                  e->log.lines, text, e->log.text);
    e->log.lines = 0;
}

static void refuse_options(struct env *e, const lathe_train_options *o, const char *text) {
    lathe_trainer *t = (lathe_trainer *)(uintptr_t)1;
    long blocks = e->heap.blocks;
    refused(e, lathe_trainer_create(e->model, o, &t), text);
    ck_assert_ptr_null(t);
    ck_assert_int_eq(e->heap.blocks, blocks);
}

START_TEST(options) {
    struct env e;
    open_trainer(&e);
    lathe_train_options o = train_options();
    o.accumulate = -1;
    refuse_options(&e, &o, "micro-batches");
    o.accumulate = INT64_MAX;
    refuse_options(&e, &o, "micro-batches");
    o = train_options();
    o.momentum = 0.9;
    refuse_options(&e, &o, "adamw has no momentum");
    o.optimizer = "sgd";
    o.dampening = NAN;
    refuse_options(&e, &o, "the dampening is nan");
    o.dampening = -1;
    o.beta2 = 0.9;
    refuse_options(&e, &o, "sgd has no betas");
    o = train_options();
    o.optimizer = "magic";
    refuse_options(&e, &o, "no optimizer is called 'magic'");
    o = train_options();
    o.size = sizeof o + 8;
    struct {
        lathe_train_options o;
        uint64_t newer;
    } longer = {o, 0};
    lathe_trainer *t = NULL;
    ck_assert_int_eq(lathe_trainer_create(e.model, &longer.o, &t), LATHE_OK); /* all new are 0 */
    lathe_trainer_destroy(t);
    longer.newer = 1;
    refuse_options(&e, &longer.o, "another version");
    lathe_model_options m = LATHE_MODEL_OPTIONS_INIT;
    lathe_model *none = e.model;
    char *text = (char *)(uintptr_t)1;
    m.seq = -1;
    refused(&e, lathe_model_open(e.ctx, model_path, &m, &none), "must not be negative");
    ck_assert_ptr_null(none);
    refused(&e, lathe_info(e.ctx, model_path, &m, 0, &text), "must not be negative");
    ck_assert_ptr_null(text);
    close_env(&e);
}
END_TEST

START_TEST(names) {
    struct env e;
    lathe_tensor v;
    open_trainer(&e);
    ck_assert_int_eq(lathe_trainer_get(e.trainer, "a.weight", &v), LATHE_OK);
    ck_assert(v.rank == 2 && v.shape[0] == 24 && v.shape[1] == 12 && v.bytes == 24 * 12 * 4);
    refused(&e, lathe_trainer_get(e.trainer, "nothing", &v), "nothing");
    ck_assert(!v.data && !v.name && !v.bytes);
    refused(&e, lathe_trainer_input(e.trainer, "nothing", &v), "nothing");
    refused(&e, lathe_trainer_set_lr(e.trainer, NAN), "learning rate");
    int inputs = 0, params = 0;
    while (lathe_trainer_input_at(e.trainer, inputs, &v) == LATHE_OK) inputs++;
    while (lathe_trainer_param_at(e.trainer, params, &v) == LATHE_OK) params++;
    ck_assert_int_eq(inputs, 2);
    ck_assert_int_eq(params, 6);
    ck_assert_int_eq(e.log.lines, 0);
    lathe_step s = {.size = 1};
    ck_assert_int_eq(lathe_trainer_step(e.trainer, &s), LATHE_USAGE);
    double before, after, value;
    ck_assert_int_eq(lathe_trainer_loss(e.trainer, &before), LATHE_OK);
    s.size = sizeof s;
    ck_assert_int_eq(lathe_trainer_step(e.trainer, &s), LATHE_OK);
    value = s.loss;
    ck_assert_int_eq(lathe_trainer_loss(e.trainer, &after), LATHE_OK);
    ck_assert(s.step == 1 && value == before && after < before);
    close_env(&e);
}
END_TEST

/* ---- devices ------------------------------------------------------------------------------------
 */
START_TEST(devices) {
    struct env e;
    float values[12 * 24 + 1];
    lathe_tensor w;
    lathe_trainer *none = NULL;
    open_trainer(&e);
    ck_assert_str_eq(lathe_trainer_device(e.trainer), "cpu"); /* unless another is asked for */
    ck_assert_int_eq(lathe_trainer_get(e.trainer, "a.weight", &w), LATHE_OK);
    ck_assert_uint_eq(w.bytes, sizeof(float) * 12 * 24);
    for (int i = 0; i < 12 * 24; i++) values[i] = 0.25F * (float)i;
    ck_assert_int_eq(lathe_trainer_set(e.trainer, "a.weight", values, w.bytes), LATHE_OK);
    ck_assert_mem_eq(w.data, values, w.bytes);
    ck_assert_int_eq(lathe_trainer_set(e.trainer, "a.weight", values, w.bytes + 4), LATHE_USAGE);
    ck_assert_ptr_nonnull(strstr(e.log.text, "expected 1152 bytes, found 1156"));
    ck_assert_int_eq(lathe_trainer_set(e.trainer, "nothing", values, 4), LATHE_USAGE);
    ck_assert_int_eq(lathe_trainer_set(e.trainer, NULL, values, 4), LATHE_USAGE);
    static const char *const bad[] = {"tpu", "cuda:", "cuda:-1", "cuda:1x", "CPU", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lathe_train_options o = train_options();
        o.device = bad[i];
        e.log.lines = 0;
        ck_assert_int_eq(lathe_trainer_create(e.model, &o, &none), LATHE_USAGE);
        ck_assert_ptr_null(none);
        ck_assert_int_eq(e.log.lines, 1);
        ck_assert_ptr_nonnull(strstr(e.log.text, "no device is called"));
    }
    lathe_train_options o = train_options();
    o.device = "cuda:8"; /* of a machine with fewer, or with none */
    e.log.lines = 0;
    ck_assert_int_eq(lathe_trainer_create(e.model, &o, &none), LATHE_UNSUPPORTED);
    ck_assert_int_eq(e.log.lines, 1);
    o.device = "cpu";
    o.recipe = "fp7";
    ck_assert_int_ne(lathe_trainer_create(e.model, &o, &none), LATHE_OK);
    close_env(&e);
}
END_TEST

/* ---- evaluation ------------------------------------------------------------------------------ */
enum { SAMPLES = 24, FEATURES = 12, CLASSES = 5 };

static struct eval_result evaluate(struct env *e, int64_t batch, const struct data_source *src) {
    struct evaluator v = {0};
    struct eval_result r;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    lathe_train_options defaults = train_options();
    struct train_options t;
    mo.batch = batch;
    mo.inference = 1;
    ck_assert_int_eq(lathe_model_open(e->ctx, model_path, &mo, &e->model), LATHE_OK);
    ck_assert_int_eq(session_train_options(e->ctx, &defaults, &t), ST_OK);
    jmp_buf here;
    e->ctx->ctx.landing = &here;
    if (setjmp(here)) ck_abort_msg("unwound: %s", e->log.text);
    struct forward_options how = {.train = &t};
    ck_assert_int_eq(device_open(e->ctx, "cpu", "cpu", &how.device), ST_OK);
    ck_assert_msg(evaluator_init(&v, e->model, model_path, &mo, src, &how) == ST_OK, "%s",
                  e->log.text);
    ck_assert_msg(evaluator_run(&v, &r) == ST_OK, "%s", e->log.text);
    e->ctx->ctx.landing = NULL;
    evaluator_release(&v);
    lathe_model_destroy(e->model);
    e->model = NULL;
    return r;
}

START_TEST(any_batch_evaluates_the_same) {
    struct env e = {0};
    float x[SAMPLES][FEATURES];
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        labels[i] = i % 4 == 1 || (i > 4 && i < 11) ? -100 : i % CLASSES; /* unevenly ignored */
        for (int k = 0; k < FEATURES; k++) x[i][k] = (float)sin(i * 7.3 + k * k);
    }
    struct data_source src = {.kind = DATA_ARRAYS, .path = "memory"};
    struct array list[] = {
        {"x", {.dtype = DT_f32, .rank = 2, .dims = {SAMPLES, FEATURES}}, x},
        {"labels", {.dtype = DT_i64, .rank = 1, .dims = {SAMPLES}}, labels},
    };
    src.arrays.list.at = list;
    src.arrays.list.n = 2;
    ck_assert_int_eq(open_context(&e), LATHE_OK);
    struct eval_result all = evaluate(&e, SAMPLES, &src);
    ck_assert(all.samples == SAMPLES && all.left_out == 0 && isfinite(all.loss));
    ck_assert(all.accuracy >= 0 && all.accuracy <= 1);
    for (int64_t batch = 1; batch < SAMPLES; batch += 3) {
        struct eval_result r = evaluate(&e, batch, &src);
        ck_assert_msg(fabs(r.loss - all.loss) < 1e-5 && r.accuracy == all.accuracy,
                      "batch %d: loss %g, accuracy %g; at once %g, %g", (int)batch, r.loss,
                      r.accuracy, all.loss, all.accuracy);
        ck_assert(r.samples == SAMPLES && r.left_out == 0);
    }
    for (int i = 0; i < SAMPLES; i++) labels[i] = -100;
    ck_assert(isnan(evaluate(&e, 7, &src).loss));
    close_env(&e);
}
END_TEST

int main(void) {
    Suite *s = suite_create("api");
    TCase *c = tcase_create("api");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, any_allocation_may_fail, 0, (int)(sizeof lives / sizeof lives[0]));
    tcase_add_test(c, options);
    tcase_add_test(c, names);
    tcase_add_test(c, devices);
    tcase_add_test(c, any_batch_evaluates_the_same);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
