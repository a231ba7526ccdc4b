// SPDX-License-Identifier: Apache-2.0
/* test_import_values.c - what imported ops compute, from the file to the numbers, for ops that the
 * importer takes apart: resizing, ordering, recurrent layers, loops; and inputs bound as constants.
 * Expected values are worked out by hand or by plain loops here. */
#include "codegen/codegen.h"
#include "driver/pipeline.h"
#include "import_util.h"
#include "runtime/cpu.h"

static const struct import_options plain;

static void with_str(struct buf *n, const char *name, const char *s) {
    struct buf a = pb_attribute(A, name, 3);
    pb_str(&a, 4, s);
    pb_msg(n, 5, a);
}

static void with_graph(struct buf *n, const char *name, struct buf g) {
    struct buf a = pb_attribute(A, name, 5);
    pb_msg(&a, 6, g);
    pb_msg(n, 5, a);
}

/* Import, run on `x` (the input "x"), and copy output k to `out`. */
static void compute(struct buf g, const void *x, int k, void *out, size_t bytes) {
    enum status st = try_import(model_bytes(g), &plain);
    ck_assert_msg(st == ST_OK, "import: %s", env.log);
    struct arena scratch;
    arena_init(&scratch, &env.ctx);
    struct pass_ctx pc = {.ctx = &env.ctx, .scratch = &scratch, .eval = pipeline_eval};
    struct pipeline_options po = {.verify = true};
    struct codegen_options cg = {.threads = 1};
    struct plan *p;
    struct cpu_exec *e;
    st = pipeline_run(&pc, R.graph, &po);
    if (st == ST_OK) st = plan_build(R.graph, &cg, &p);
    ck_assert_msg(st == ST_OK, "plan: %s", env.log);
    struct pool *pool = pool_create(&env.ctx, 1);
    st = cpu_create(&env.ctx, p, pool, &e);
    ck_assert_msg(st == ST_OK, "cpu: %s", env.log);
    buf_id in = plan_find(p, BUF_INPUT, "x");
    if (in.i) memcpy(cpu_buffer_at(e, in), x, (size_t)p->buffers.at[in.i].bytes);
    st = cpu_run(e, 0, p->launches.n, false);
    ck_assert_msg(st == ST_OK, "run: %s", env.log);
    const char *name = interned(&R.graph->strings, R.graph->outputs.at[k].name);
    buf_id o = plan_find(p, BUF_OUTPUT, name);
    ck_assert_uint_eq((size_t)p->buffers.at[o.i].bytes, bytes);
    memcpy(out, cpu_buffer_at(e, o), bytes);
    cpu_destroy(e);
    pool_destroy(pool);
    plan_destroy(p);
    done();
}

static void same(const float *got, const float *want, int n) {
    for (int i = 0; i < n; i++)
        ck_assert_msg(got[i] == want[i] || fabs((double)(got[i] - want[i])) < 2e-6,
                      "element %d is %.9g, expected %.9g", i, (double)got[i], (double)want[i]);
}

/* ---- inputs bound as constants -------------------------------------------------------------- */
static const int64_t to_23[] = {2, 3};
static struct onnx_tensor shape_23 = {"s", {DT_i64, 1, {2}}, to_23};
static const struct onnx_tensor *bind_s(void *user, const char *input) {
    return strcmp(input, "s") == 0 ? user : NULL;
}

static struct buf reshape_by_input(void) {
    const int64_t x[] = {6}, s[] = {2};
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Reshape", "r", "x s", "y"));
    input(&g, "x", 1, 1, x);
    input(&g, "s", 7, 1, s);
    output(&g, "y");
    return g;
}

START_TEST(bound_inputs_are_constants) {
    begin();
    TEST_LANDING(&env);
    ck_assert_int_eq(try_import(model_bytes(reshape_by_input()), &plain), ST_UNSUPPORTED);
    onnx_free(M);
    struct import_options o = {.constant = bind_s, .constant_user = &shape_23};
    ck_assert_int_eq(try_import(model_bytes(reshape_by_input()), &o), ST_OK);
    out_shape(2, (const dim[]){2, 3});
    ck_assert_int_eq(ops(OP_input), 1);
    done();
    struct onnx_tensor wrong = {"s", {DT_i32, 1, {2}}, to_23};
    o.constant_user = &wrong;
    ck_assert_int_eq(try_import(model_bytes(reshape_by_input()), &o), ST_TYPE);
    onnx_free(M);
    wrong.type = (struct type){DT_i64, 1, {1}};
    ck_assert_int_eq(try_import(model_bytes(reshape_by_input()), &o), ST_SHAPE);
    onnx_free(M);
    end();
}
END_TEST

START_TEST(bound_inputs_are_never_trained) {
    begin();
    TEST_LANDING(&env);
    float w[64];
    for (int i = 0; i < 64; i++) w[i] = (float)i * 0.01f;
    struct onnx_tensor t = {"s", {DT_f32, 2, {8, 8}}, w};
    struct buf g = pb(A);
    pb_msg(&g, 1, node("MatMul", "m", "x s", "y"));
    input(&g, "x", 1, 2, d48);
    input(&g, "s", 1, 2, d88);
    output(&g, "y");
    struct import_options o = {
        .training = true, .train_regex = ".*", .constant = bind_s, .constant_user = &t};
    ck_assert_int_eq(try_import(model_bytes(g), &o), ST_OK);
    ck_assert_int_eq(R.nparams, 0);
    ck_assert_int_eq(ops(OP_param), 0);
    done();
    end();
}
END_TEST

/* ---- resizing ------------------------------------------------------------------------------- */
static struct buf resize(const char *mode, const char *coord, const float *scales) {
    const int64_t x[] = {1, 1, 2, 2}, four[] = {4};
    struct buf g = pb(A), n = node("Resize", "r", "x - s", "y");
    with_str(&n, "mode", mode);
    with_str(&n, "coordinate_transformation_mode", coord);
    if (mode[0] == 'n') with_str(&n, "nearest_mode", "floor");
    pb_msg(&g, 1, n);
    pb_msg(&g, 5, floats("s", 1, four, scales));
    input(&g, "x", 1, 4, x);
    output(&g, "y");
    return g;
}

START_TEST(resize_by_lookup_and_by_weights) {
    begin();
    TEST_LANDING(&env);
    const float x[] = {1, 2, 3, 4}, wide[] = {1, 1, 1, 2}, both[] = {1, 1, 1.5f, 2};
    const float linear[] = {1, 1.25f, 1.75f, 2, 3, 3.25f, 3.75f, 4};
    const float near[] = {1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4};
    float y[12];
    compute(resize("linear", "half_pixel", wide), x, 0, y, 8 * sizeof *y);
    same(y, linear, 8);
    compute(resize("nearest", "asymmetric", both), x, 0, y, 12 * sizeof *y);
    same(y, near, 12); /* rows 0/1.5, 1/1.5, 2/1.5 */
    /* Cubic weights at distances 1.25 .25 .75 1.75 with a = -0.75, both edges repeated. */
    compute(resize("cubic", "half_pixel", wide), x, 0, y, 8 * sizeof *y);
    double w[4], d[4] = {1.75, 0.75, 0.25, 1.25}, a = -0.75;
    for (int i = 0; i < 4; i++)
        w[i] = d[i] <= 1 ? ((a + 2) * d[i] - (a + 3)) * d[i] * d[i] + 1
                         : ((a * d[i] - 5 * a) * d[i] + 8 * a) * d[i] - 4 * a;
    float first = (float)(1 * (w[0] + w[1] + w[2]) + 2 * w[3]);
    same(y, &first, 1);
    end();
}
END_TEST

/* ---- ordering ------------------------------------------------------------------------------- */
static struct buf topk(int64_t k, int64_t axis, int64_t largest) {
    const int64_t x[] = {2, 4};
    struct buf g = pb(A), n = node("TopK", "t", "x k", "y i");
    with_int(&n, "axis", axis);
    with_int(&n, "largest", largest);
    pb_msg(&g, 1, n);
    pb_msg(&g, 5, ints("k", 1, &k));
    input(&g, "x", 1, 2, x);
    output(&g, "y");
    output(&g, "i");
    return g;
}

START_TEST(topk_takes_the_first_of_ties) {
    begin();
    TEST_LANDING(&env);
    const float x[] = {3, 5, 5, 1, -2, -1, -3, -1};
    float y[4];
    int64_t i[4];
    compute(topk(2, -1, 1), x, 0, y, sizeof y);
    same(y, (const float[]){5, 5, -1, -1}, 4);
    compute(topk(2, -1, 1), x, 1, i, sizeof i);
    ck_assert(i[0] == 1 && i[1] == 2 && i[2] == 1 && i[3] == 3);
    compute(topk(1, 0, 0), x, 0, y, sizeof y);
    same(y, (const float[]){-2, -1, -3, -1}, 4);
    compute(topk(1, 0, 0), x, 1, i, sizeof i);
    ck_assert(i[0] == 1 && i[1] == 1 && i[2] == 1 && i[3] == 1);
    end();
}
END_TEST

START_TEST(hardmax_and_lp_pool) {
    begin();
    TEST_LANDING(&env);
    const int64_t x24[] = {2, 4}, x115[] = {1, 1, 5}, three[] = {3};
    const float x[] = {3, 5, 5, 1, -2, -1, -3, -1}, p[] = {1, -2, 2, 4, -4};
    float y[8];
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Hardmax", "h", "x", "y"));
    input(&g, "x", 1, 2, x24);
    output(&g, "y");
    compute(g, x, 0, y, sizeof y);
    same(y, (const float[]){0, 1, 0, 0, 0, 1, 0, 0}, 8);
    struct buf n = node("LpPool", "l", "x", "y");
    with_ints(&n, "kernel_shape", 1, three);
    g = pb(A);
    pb_msg(&g, 1, n);
    input(&g, "x", 1, 3, x115);
    output(&g, "y");
    compute(g, p, 0, y, 3 * sizeof *y);
    same(y, (const float[]){3, 4.8989795f, 6}, 3);
    end();
}
END_TEST

START_TEST(einsum_takes_diagonals) {
    begin();
    TEST_LANDING(&env);
    const int64_t x232[] = {2, 3, 2};
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    float y[6];
    struct buf g = pb(A), n = node("Einsum", "e", "x", "y");
    with_str(&n, "equation", "iji->ji");
    pb_msg(&g, 1, n);
    input(&g, "x", 1, 3, x232);
    output(&g, "y");
    compute(g, x, 0, y, sizeof y);
    same(y, (const float[]){1, 8, 3, 10, 5, 12}, 6);
    end();
}
END_TEST

START_TEST(reverse_and_crop) {
    begin();
    TEST_LANDING(&env);
    const int64_t x[] = {3, 2}, lengths[] = {2, 3}, want[] = {1, 5};
    const float data[] = {1, 2, 3, 4, 5, 6};
    float y[6];
    struct buf g = pb(A);
    pb_msg(&g, 1, node("ReverseSequence", "r", "x l", "y"));
    pb_msg(&g, 5, ints("l", 2, lengths));
    input(&g, "x", 1, 2, x);
    output(&g, "y");
    compute(g, data, 0, y, sizeof y);
    same(y, (const float[]){3, 6, 1, 4, 5, 2}, 6);
    g = pb(A);
    pb_msg(&g, 1, node("CenterCropPad", "c", "x s", "y"));
    pb_msg(&g, 5, ints("s", 2, want));
    input(&g, "x", 1, 2, x);
    output(&g, "y");
    compute(g, data, 0, y, 5 * sizeof *y);
    same(y, (const float[]){0, 3, 4, 0, 0}, 5);
    end();
}
END_TEST

START_TEST(causal_conv_keeps_what_the_window_needs) {
    begin();
    TEST_LANDING(&env);
    const int64_t x[] = {1, 2, 3}, w[] = {2, 1, 2}, past[] = {1, 2, 1};
    const float data[] = {1, 2, 3, 4, 5, 6}, wd[] = {10, 1, 0, 2}, pd[] = {-1, 7};
    float y[6], state[2];
    struct buf g[2];
    for (int i = 0; i < 2; i++) {
        g[i] = pb(A);
        pb_msg(&g[i], 1, node("CausalConvWithState", "c", "x w - p", "y s"));
        pb_msg(&g[i], 5, floats("w", 3, w, wd));
        pb_msg(&g[i], 5, floats("p", 3, past, pd));
        input(&g[i], "x", 1, 3, x);
        output(&g[i], "y");
        output(&g[i], "s");
    }
    compute(g[0], data, 0, y, sizeof y);
    same(y, (const float[]){-9, 12, 23, 8, 10, 12}, 6);
    compute(g[1], data, 1, state, sizeof state);
    same(state, (const float[]){3, 6}, 2);
    end();
}
END_TEST

/* ---- recurrent layers ------------------------------------------------------------------------ */
static double logistic(double x) {
    return 1 / (1 + exp(-x));
}

static struct buf recurrent(const char *op, const char *direction, int gates) {
    const int64_t x[] = {3, 1, 1}, w[] = {1, gates, 1}, b[] = {1, 2 * gates};
    const float wd[] = {0.5f, -0.25f, 0.75f, 1.0f}, rd[] = {0.3f, 0.6f, -0.4f, 0.2f};
    const float bd[] = {0.1f, -0.1f, 0.2f, 0.05f, 0.0f, 0.3f, -0.2f, 0.15f};
    struct buf g = pb(A), n = node(op, "r", "x W R B", "y h");
    with_int(&n, "hidden_size", 1);
    with_str(&n, "direction", direction);
    pb_msg(&g, 1, n);
    pb_msg(&g, 5, floats("W", 3, w, wd));
    pb_msg(&g, 5, floats("R", 3, w, rd));
    pb_msg(&g, 5, floats("B", 2, b, bd));
    input(&g, "x", 1, 3, x);
    output(&g, "y");
    output(&g, "h");
    return g;
}

START_TEST(lstm_by_hand) {
    begin();
    TEST_LANDING(&env);
    const float x[] = {1, -0.5f, 2}, w[] = {0.5f, -0.25f, 0.75f, 1.0f},
                r[] = {0.3f, 0.6f, -0.4f, 0.2f};
    const float b[] = {0.1f, 0.2f, 0.0f, 0.2f}; /* both halves added */
    float want[3], y[3], last;
    double h = 0, c = 0;
    for (int t = 0; t < 3; t++) { /* i, o, f, c */
        double z[4];
        for (int k = 0; k < 4; k++)
            z[k] = (double)w[k] * (double)x[t] + (double)r[k] * h + (double)b[k];
        c = logistic(z[2]) * c + logistic(z[0]) * tanh(z[3]);
        h = logistic(z[1]) * tanh(c);
        want[t] = (float)h;
    }
    compute(recurrent("LSTM", "forward", 4), x, 0, y, sizeof y);
    same(y, want, 3);
    compute(recurrent("LSTM", "forward", 4), x, 1, &last, sizeof last);
    same(&last, &want[2], 1);
    end();
}
END_TEST

START_TEST(gru_backwards_by_hand) {
    begin();
    TEST_LANDING(&env);
    const float x[] = {1, -0.5f, 2};
    const double w[] = {0.5, -0.25, 0.75}, r[] = {0.3, 0.6, -0.4};
    const double bw[] = {0.1, -0.1, 0.2}, br[] = {0.05, 0.0, 0.3}; /* input part, state part */
    float want[3], y[3];
    double h = 0;
    for (int t = 2; t >= 0; t--) { /* z, r, h */
        double z = logistic(w[0] * (double)x[t] + bw[0] + r[0] * h + br[0]);
        double reset = logistic(w[1] * (double)x[t] + bw[1] + r[1] * h + br[1]);
        double g = tanh(w[2] * (double)x[t] + bw[2] + r[2] * (reset * h) + br[2]);
        h = (1 - z) * g + z * h;
        want[t] = (float)h;
    }
    compute(recurrent("GRU", "reverse", 3), x, 0, y, sizeof y);
    same(y, want, 3);
    end();
}
END_TEST

/* ---- loops ----------------------------------------------------------------------------------- */
START_TEST(scan_sums_up) {
    begin();
    TEST_LANDING(&env);
    const int64_t two[] = {2}, x[] = {3, 2};
    const float data[] = {1, 2, 3, 4, 5, 6}, zero[] = {0, 0};
    float y[6];
    struct buf body = pb(A), g = pb(A), n = node("Scan", "s", "i x", "last y");
    pb_msg(&body, 1, node("Add", "a", "sum row", "next"));
    pb_msg(&body, 1, node("Identity", "b", "next", "kept"));
    pb_str(&body, 2, "body");
    input(&body, "sum", 1, 1, two);
    input(&body, "row", 1, 1, two);
    output(&body, "next");
    output(&body, "kept");
    with_graph(&n, "body", body);
    with_int(&n, "num_scan_inputs", 1);
    pb_msg(&g, 1, n);
    pb_msg(&g, 5, floats("i", 1, two, zero));
    input(&g, "x", 1, 2, x);
    output(&g, "last");
    output(&g, "y");
    compute(g, data, 1, y, sizeof y);
    same(y, (const float[]){1, 2, 4, 6, 9, 12}, 6);
    end();
}
END_TEST

START_TEST(loop_of_known_length) {
    begin();
    TEST_LANDING(&env);
    const int64_t two[] = {2}, none[1] = {0}, trips = 3;
    const float data[] = {1, -2};
    float y[2];
    struct buf body = pb(A), g = pb(A), n = node("Loop", "l", "n - x", "y");
    pb_msg(&body, 1, node("Add", "a", "v v", "w"));
    pb_msg(&body, 1, node("Identity", "b", "c", "d"));
    pb_str(&body, 2, "body");
    input(&body, "i", 7, 0, none);
    input(&body, "c", 9, 0, none);
    input(&body, "v", 1, 1, two);
    output(&body, "d");
    output(&body, "w");
    with_graph(&n, "body", body);
    pb_msg(&g, 1, n);
    pb_msg(&g, 5, ints("n", -1, &trips));
    input(&g, "x", 1, 1, two);
    output(&g, "y");
    compute(g, data, 0, y, sizeof y);
    same(y, (const float[]){8, -16}, 2);
    end();
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */
START_TEST(casts_that_do_not_saturate_are_refused) {
    begin();
    TEST_LANDING(&env);
    opset = 23;
    const int64_t to[] = {17, 19, 24};
    for (int i = 0; i < 3; i++) {
        struct buf g = pb(A), n = node("Cast", "c", "x", "y");
        with_int(&n, "to", to[i]);
        if (to[i] != 24) with_int(&n, "saturate", 0); /* e8m0 rounds up unless told otherwise */
        pb_msg(&g, 1, n);
        input(&g, "x", 1, 1, d8);
        output(&g, "y");
        ck_assert_int_eq(try_import(model_bytes(g), &plain), ST_UNSUPPORTED);
        onnx_free(M);
    }
    end();
}
END_TEST

START_TEST(extreme_of_nothing) {
    begin();
    TEST_LANDING(&env);
    const int64_t x[] = {2, 0}, axis = 1;
    float y[2];
    struct buf g = pb(A);
    pb_msg(&g, 1, node("ReduceMax", "r", "x a", "y"));
    pb_msg(&g, 5, ints("a", 1, &axis));
    input(&g, "x", 1, 2, x);
    output(&g, "y");
    compute(g, y, 0, y, sizeof y);
    ck_assert(y[0] == -INFINITY && y[1] == -INFINITY);
    end();
}
END_TEST

int main(void) {
    Suite *s = suite_create("import_values");
    TCase *c = tcase_create("values");
    tcase_add_test(c, bound_inputs_are_constants);
    tcase_add_test(c, bound_inputs_are_never_trained);
    tcase_add_test(c, resize_by_lookup_and_by_weights);
    tcase_add_test(c, topk_takes_the_first_of_ties);
    tcase_add_test(c, hardmax_and_lp_pool);
    tcase_add_test(c, einsum_takes_diagonals);
    tcase_add_test(c, reverse_and_crop);
    tcase_add_test(c, causal_conv_keeps_what_the_window_needs);
    tcase_add_test(c, lstm_by_hand);
    tcase_add_test(c, gru_backwards_by_hand);
    tcase_add_test(c, scan_sums_up);
    tcase_add_test(c, loop_of_known_length);
    tcase_add_test(c, casts_that_do_not_saturate_are_refused);
    tcase_add_test(c, extreme_of_nothing);
    suite_add_tcase(s, c);
    return run_suite(s);
}
