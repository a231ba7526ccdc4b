// SPDX-License-Identifier: Apache-2.0
/* import_util.h - small ONNX models and what became of them, for the tests of the importer. */
#ifndef LATHE_TEST_IMPORT_UTIL_H
#define LATHE_TEST_IMPORT_UTIL_H

#include "frontend/file.h"
#include "frontend/import.h"
#include "ir/build.h"
#include "onnx_bytes.h"
#include <math.h>

static struct test_env env;
static struct arena *A = &env.arena;
static struct onnx_model *M;
static struct import_result R;
static int64_t opset = 18; /* of the default domain */

/* ---- making models -------------------------------------------------------------------------- */
static inline struct buf floats(const char *name, int rank, const int64_t *dims,
                                const float *data) {
    size_t n = 1;
    for (int i = 0; i < rank; i++) n *= (size_t)dims[i];
    struct buf t = pb_tensor(A, name, 1, rank, dims);
    pb_bytes(&t, 9, data, n * sizeof *data);
    return t;
}

/* Distinct numbers, none of them special. */
static inline struct buf weight(const char *name, int rank, const int64_t *dims, int seed) {
    float data[8192];
    size_t n = 1;
    for (int i = 0; i < rank; i++) n *= (size_t)dims[i];
    for (size_t i = 0; i < n; i++)
        data[i] = (float)sin((double)i * 1.37 + (double)seed * 7.77) * 0.4f + 0.013f;
    return floats(name, rank, dims, data);
}

static inline struct buf uniform(const char *name, int64_t n, float x) {
    float data[512];
    for (int64_t i = 0; i < n; i++) data[i] = x;
    return floats(name, 1, &n, data);
}

static inline struct buf ints(const char *name, int64_t n, const int64_t *data) {
    struct buf t = pb_tensor(A, name, 7, n < 0 ? 0 : 1, &n);
    pb_bytes(&t, 9, data, (size_t)(n < 0 ? 1 : n) * sizeof *data);
    return t;
}

static inline struct buf node(const char *op, const char *name, const char *in, const char *out) {
    struct buf b = pb_node(A, op, in, out);
    pb_str(&b, 3, name);
    return b;
}

static inline void with_int(struct buf *n, const char *name, int64_t x) {
    struct buf a = pb_attribute(A, name, 2);
    pb_int(&a, 3, x);
    pb_msg(n, 5, a);
}

static inline void with_float(struct buf *n, const char *name, float x) {
    struct buf a = pb_attribute(A, name, 1);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    pb_varint(&a, 2 << 3 | 5);
    buf_put(&a, &bits, sizeof bits);
    pb_msg(n, 5, a);
}

static inline void with_ints(struct buf *n, const char *name, int count, const int64_t *x) {
    struct buf a = pb_attribute(A, name, 7);
    for (int i = 0; i < count; i++) pb_int(&a, 8, x[i]);
    pb_msg(n, 5, a);
}

static inline void metadata(struct buf *b, unsigned field, const char *key, const char *value) {
    struct buf e = pb(A);
    pb_str(&e, 1, key);
    pb_str(&e, 2, value);
    pb_msg(b, field, e);
}

static inline void input(struct buf *g, const char *name, int type, int rank, const int64_t *dims) {
    pb_msg(g, 11, pb_value(A, name, type, rank, dims));
}

static inline void output(struct buf *g, const char *name) {
    const int64_t none[1] = {0};
    pb_msg(g, 12, pb_value(A, name, 1, 1, none));
}

static inline struct buf model_bytes(struct buf g) {
    struct buf b = pb(A);
    pb_int(&b, 1, 10);
    pb_msg(&b, 8, pb_opset(A, "", opset));
    pb_msg(&b, 8, pb_opset(A, "local", 1));
    pb_msg(&b, 8, pb_opset(A, "ai.onnx.preview.training", 1));
    pb_msg(&b, 8, pb_opset(A, "com.microsoft", 1));
    pb_str(&g, 2, "g");
    pb_msg(&b, 7, g);
    return b;
}

static inline enum status try_import(struct buf bytes, const struct import_options *o) {
    env.log[0] = 0;
    enum status st = onnx_load_memory(&env.ctx, bytes.at, bytes.n, NULL, "test.onnx", &M);
    ck_assert_msg(st == ST_OK, "load: %s", env.log);
    return onnx_import(M, o, &R);
}

static inline void import(struct buf g, bool training) {
    struct import_options o = {.training = training};
    enum status st = try_import(model_bytes(g), &o);
    ck_assert_msg(st == ST_OK, "import: %s", env.log);
}

static inline void done(void) {
    graph_destroy(R.graph);
    onnx_free(M);
    R.graph = NULL;
    M = NULL;
}

/* ---- looking at results --------------------------------------------------------------------- */
static inline const struct import_param *param(const char *name) {
    for (uint32_t i = 0; i < R.nparams; i++)
        if (strcmp(R.params[i].name, name) == 0) return &R.params[i];
    return NULL;
}

static inline void decided(const char *name, const char *decision) {
    const struct import_param *p = param(name);
    ck_assert_msg(p != NULL, "'%s' is not listed", name);
    ck_assert_str_eq(p->decision, decision);
}

static inline int count(const char *decision) {
    int n = 0;
    for (uint32_t i = 0; i < R.nparams; i++) n += strcmp(R.params[i].decision, decision) == 0;
    return n;
}

static inline int ops(enum op op) {
    int n = 0;
    for (uint32_t i = 1; i < R.graph->nodes.n; i++) n += R.graph->nodes.at[i].op == op;
    return n;
}

static inline const struct type *out_type(void) {
    return val_type(R.graph, R.graph->outputs.at[0].value);
}

static inline void out_shape(int rank, const dim *dims) {
    const struct type *t = out_type();
    ck_assert_int_eq(t->rank, rank);
    for (int i = 0; i < rank; i++) ck_assert_int_eq(t->dims[i], dims[i]);
}

static inline int errors_logged(void) {
    int n = 0;
    for (const char *s = env.log; (s = strstr(s, "error:")) != NULL; s++) n++;
    return n;
}

static const int64_t d48[] = {4, 8}, d88[] = {8, 8}, d8[] = {8};

static inline struct buf batch_norm(void) {
    const int64_t x[] = {4, 3, 5}, c[] = {3};
    struct buf g = pb(A);
    pb_msg(&g, 1, node("BatchNormalization", "bn", "x s b m v", "y"));
    pb_msg(&g, 5, weight("s", 1, c, 1));
    pb_msg(&g, 5, weight("b", 1, c, 2));
    pb_msg(&g, 5, weight("m", 1, c, 3));
    pb_msg(&g, 5, uniform("v", 3, 0.75f));
    input(&g, "x", 1, 3, x);
    output(&g, "y");
    return g;
}

static inline int run_suite(Suite *s) {
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}

static inline void begin(void) {
    test_begin(&env);
    opset = 18;
}

static inline void end(void) {
    test_end(&env);
}

#endif
