// SPDX-License-Identifier: Apache-2.0
/* test_grad.c - gradients. Every differentiable op against central differences on the cases of
 * tests/op/cases.def, and what the driver itself does: sharing, slices, zeros, frozen parameters,
 * ties, symbolic sizes, errors. */
#include "op_cases.h"
#include "passes/pass.h"
#include "ref_eval.h"
#include "test_util.h"

static struct pass_ctx pass_ctx_of(struct test_env *t) {
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &t->arena};
    return c;
}

static int count_ops(const struct graph *g, enum op op) {
    int n = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) n += g->nodes.at[i].op == op;
    return n;
}

static val_id param(struct graph *g, const char *name, enum dtype dt, int rank, const dim *dims) {
    struct type t = {.dtype = dt, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    int64_t n = type_count(&t);
    double *v = ARENA_ARRAY(&g->arena, double, (size_t)n);
    for (int64_t i = 0; i < n; i++) v[i] = sample((uint64_t)i + 77);
    return add_param(g, name, &t, v, false);
}
#define PARAM(g, name, ...)                                                                        \
    param(g, name, DT_f64, (int)(sizeof((dim[]){__VA_ARGS__}) / sizeof(dim)), (dim[]){__VA_ARGS__})

/* ---- finite differences -------------------------------------------------------------------- */
struct nudge {
    const char *name;
    const double *base;
    int64_t at;
    double by;
};

static bool feed_nudged(void *user, const char *name, double *at, int64_t n) {
    const struct nudge *x = user;
    if (!x->name || strcmp(x->name, name) != 0) return false;
    memcpy(at, x->base, (size_t)n * sizeof *at);
    at[x->at] += x->by;
    return true;
}

static double loss_at(const struct graph *g, struct arena *a, struct nudge *x) {
    struct arena_mark m = arena_mark(a);
    double loss = ref_output(g, ref_eval(g, a, feed_nudged, x), "loss").at[0];
    arena_rewind(a, m);
    return loss;
}

/* Every output "grad/NAME" of `g` against central differences of output "loss". `forward` is the
 * graph before differentiation. */
static void check_differences(struct test_env *t, const struct graph *forward,
                              const struct graph *g, const char *what) {
    const double h = 1e-5;
    struct nudge none = {0};
    struct ref *vals = ref_eval(g, &t->arena, feed_nudged, &none);
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (g->nodes.at[i].op != OP_param || attr_bool(g, n, ATTR_frozen)) continue;
        const char *name = attr_str(g, n, ATTR_name);
        struct ref p = vals[node_out(g, n, 0).i];
        struct ref d = ref_output(g, vals, arena_printf(&t->arena, "grad/%s", name));
        ck_assert_int_eq(d.rank, p.rank);
        ck_assert_int_eq(d.dtype, p.dtype);
        for (int k = 0; k < p.rank; k++) ck_assert_int_eq(d.dims[k], p.dims[k]);
        for (int64_t k = 0; k < p.n; k++) {
            struct nudge x = {name, p.at, k, h};
            double up = loss_at(forward, &t->arena, &x);
            x.by = -h;
            double want = (up - loss_at(forward, &t->arena, &x)) / (2 * h);
            ck_assert_msg(fabs(d.at[k] - want) <= 1e-6 * (0.05 + fabs(want)),
                          "%s: grad/%s[%lld] is %.12g, differences say %.12g", what, name,
                          (long long)k, d.at[k], want);
        }
    }
}

static void differentiate(struct test_env *t, struct graph *g, const char *what) {
    struct pass_ctx c = pass_ctx_of(t);
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s: %s", what, t->log);
    struct graph *forward = graph_clone(g);
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s: %s", what, t->log);
    ck_assert_msg(graph_verify(g, "grad") == ST_OK, "%s: %s", what, t->log);
    check_differences(t, forward, g, what);
    graph_destroy(forward);
}

static void differentiate_sum(struct test_env *t, struct graph *g, val_id y, const char *what) {
    graph_add_output(g, "loss", weighted_sum(g, y, 1, DT_f64, intern(&g->strings, "node")));
    differentiate(t, g, what);
}

START_TEST(test_case) {
    const struct op_case *k = &cases[_i];
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = case_graph(&t.ctx, k, DT_f64);
    differentiate(&t, g, case_name(&t.arena, k));
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (!(op_info((enum op)g->nodes.at[i].op)->traits & SOURCE))
            ck_assert_str_eq(node_origin(g, (node_id){i}), "node");
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* An op with a rule but without a case is a hole in this test. */
START_TEST(test_all_covered) {
    static const struct {
        enum op op;
        const char *name, *rule;
    } ops[] = {
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs)                \
    {OP_##id, #id, #grad},
#include "ir/ops.def"
#undef OP
    };
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (op_info(ops[i].op)->traits & PURE0) ck_assert_str_eq(ops[i].rule, "zero");
        if (strcmp(ops[i].rule, "zero") == 0 || strcmp(ops[i].rule, "none") == 0) continue;
        bool found = ops[i].op == OP_dequantize; /* of codes: test_quantize.c */
        for (int k = 0; k < CASES; k++) found |= cases[k].op == ops[i].op;
        ck_assert_msg(found, "tests/op/cases.def has no case for %s", ops[i].name);
    }
}
END_TEST

/* ---- the driver ---------------------------------------------------------------------------- */
#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t);                                                                              \
    struct graph *g = graph_create(&t.ctx, "test");                                                \
    struct pass_ctx c = pass_ctx_of(&t);                                                           \
    str_id o = intern(&g->strings, "node");                                                        \
    (void)c;                                                                                       \
    (void)o
#define END                                                                                        \
    graph_destroy(g);                                                                              \
    test_end(&t)

static struct ref run_output(struct test_env *t, const struct graph *g, const char *name) {
    return ref_output(g, ref_eval(g, &t->arena, NULL, NULL), name);
}

START_TEST(test_shared) {
    BEGIN;
    val_id x = PARAM(g, "x", 2, 3);
    val_id y = build_2(g, OP_mul, x, build_1(g, OP_sin, x, o), o);
    y = build_2(g, OP_add, y, build_2(g, OP_mul, x, x, o), o);
    differentiate_sum(&t, g, build_2(g, OP_mul, y, y, o), "shared");
    END;
}
END_TEST

static val_id columns(struct graph *g, val_id x, dim from, dim n, str_id o) {
    dim starts[2] = {0, from}, sizes[2] = {val_type(g, x)->dims[0], n};
    return build_slice(g, x, starts, sizes, NULL, o);
}

START_TEST(test_split_is_concat) {
    BEGIN;
    val_id x = PARAM(g, "x", 2, 6);
    val_id a = columns(g, x, 3, 3, o), b = columns(g, x, 0, 2, o), d = columns(g, x, 2, 1, o);
    val_id y =
        build_concat(g, (val_id[]){build_1(g, OP_sin, a, o), build_1(g, OP_exp, b, o), d}, 3, 1, o);
    y = build_2(g, OP_mul, y, y, o);
    differentiate_sum(&t, g, y, "split");
    ck_assert_int_eq(count_ops(g, OP_pad), 0);
    ck_assert_int_eq(count_ops(g, OP_concat), 2);
    END;
}
END_TEST

START_TEST(test_slices_with_gap) {
    BEGIN;
    val_id x = PARAM(g, "x", 2, 7);
    val_id y = build_2(g, OP_mul, columns(g, x, 1, 2, o), columns(g, x, 4, 2, o), o);
    y = build_2(g, OP_mul, y, columns(g, x, 1, 2, o), o); /* the same place twice */
    differentiate_sum(&t, g, y, "gap");
    ck_assert_int_eq(count_ops(g, OP_pad), 0);
    ck_assert_int_eq(count_ops(g, OP_concat), 1);
    END;
}
END_TEST

START_TEST(test_slices_overlap) {
    BEGIN;
    val_id x = PARAM(g, "x", 2, 4);
    val_id y = build_2(g, OP_mul, columns(g, x, 0, 3, o), columns(g, x, 1, 3, o), o);
    y = build_2(g, OP_mul, y, columns(g, build_2(g, OP_mul, x, x, o), 0, 3, o), o);
    differentiate_sum(&t, g, y, "overlap");
    ck_assert_int_gt(count_ops(g, OP_pad), 0);
    END;
}
END_TEST

START_TEST(test_one_product_for_rows) {
    BEGIN;
    val_id x = PARAM(g, "x", 4, 2, 3), w = PARAM(g, "w", 3, 5);
    val_id y = build_matmul(g, x, w, false, false, o);
    differentiate_sum(&t, g, build_2(g, OP_mul, y, y, o), "rows");
    ck_assert_int_eq(count_ops(g, OP_matmul), 3);
    ck_assert_int_eq(count_ops(g, OP_transpose), 0);
    for (uint32_t i = 1; i < g->nodes.n; i++) /* no sum over the batch of a batched product */
        if (g->nodes.at[i].op == OP_reduce_sum)
            ck_assert_int_ne(val_op(g, node_in(g, (node_id){i}, 0)), OP_matmul);
    END;
}
END_TEST

START_TEST(test_frozen_and_unused) {
    BEGIN;
    struct type s = {.dtype = DT_f64, .rank = 1, .dims = {2}};
    val_id a = PARAM(g, "a", 2), b = add_param(g, "b", &s, (double[]){2, 3}, true);
    val_id unused = PARAM(g, "lonely", 3, 1), stopped = PARAM(g, "stopped", 2);
    (void)unused;
    val_id y = build_2(g, OP_mul, a, build_1(g, OP_exp, b, o), o);
    y = build_2(g, OP_add, y, build_1(g, OP_floor, stopped, o), o);
    graph_add_output(g, "loss", weighted_sum(g, y, 1, DT_f64, o));
    ck_assert_int_eq(pass_grad(&c, g), ST_OK);
    ck_assert_int_eq(graph_verify(g, "grad"), ST_OK);
    ck_assert_uint_eq(g->outputs.n, 4); /* loss, a, lonely, stopped */
    struct ref z = run_output(&t, g, "grad/lonely");
    ck_assert_int_eq(z.n, 3);
    for (int i = 0; i < 3; i++) ck_assert_double_eq(z.at[i], 0);
    ck_assert_double_ne(run_output(&t, g, "grad/a").at[0], 0);
    ck_assert_double_eq(run_output(&t, g, "grad/stopped").at[1], 0);
    ck_assert_ptr_nonnull(strstr(t.log, "warning: lonely: parameter 'lonely' does not influence"));
    ck_assert_ptr_nonnull(strstr(t.log, "'stopped' does not"));
    ck_assert_ptr_null(strstr(t.log, "'a' does not"));
    ck_assert_int_eq(count_ops(g, OP_exp), 1); /* nothing was built for the frozen operand */
    END;
}
END_TEST

START_TEST(test_everything_frozen) {
    BEGIN;
    struct type s = type_scalar(DT_f64);
    val_id b = add_param(g, "b", &s, (double[]){2}, true);
    graph_add_output(g, "loss", build_1(g, OP_exp, b, o));
    ck_assert_int_eq(pass_grad(&c, g), ST_OK);
    ck_assert_uint_eq(g->outputs.n, 1);
    END;
}
END_TEST

static void check_values(struct ref r, const double *want, int64_t n) {
    ck_assert_int_eq(r.n, n);
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs(r.at[i] - want[i]) < 1e-12, "element %lld is %g, expected %g",
                      (long long)i, r.at[i], want[i]);
}

static val_id sum_up(struct graph *g, val_id y, str_id o) {
    int64_t axes[RANK_MAX] = {0, 1, 2, 3};
    return build_reduce(g, OP_reduce_sum, y, axes, val_type(g, y)->rank, false, o);
}

START_TEST(test_ties_and_kinks) {
    BEGIN;
    struct type s = {.dtype = DT_f64, .rank = 1, .dims = {4}};
    val_id a = add_param(g, "a", &s, (double[]){1, 2, 3, -1}, false);
    val_id b = add_param(g, "b", &s, (double[]){1, 3, 2, -1}, false);
    val_id r = add_param(g, "r", &s, (double[]){5, 7, 7, 1}, false);
    val_id k = add_param(g, "k", &s, (double[]){-1, 0, 2, 3}, false);
    val_id z = add_param(g, "z", &s, (double[]){0, 0, 2, -3}, false);
    int64_t axis = 0;
    val_id y = sum_up(g, build_2(g, OP_max, a, b, o), o);
    y = build_2(g, OP_add, y, build_reduce(g, OP_reduce_max, r, &axis, 1, false, o), o);
    val_id low = build_scalar(g, DT_f64, -1, o), high = build_scalar(g, DT_f64, 2, o);
    y = build_2(g, OP_add, y, sum_up(g, build_3(g, OP_clip, k, low, high, o), o), o);
    val_id kinks = build_2(g, OP_add, build_1(g, OP_relu, z, o), build_1(g, OP_abs, z, o), o);
    kinks = build_2(g, OP_add, kinks, build_2(g, OP_pow, z, build_scalar(g, DT_f64, 2, o), o), o);
    y = build_2(g, OP_add, y, sum_up(g, kinks, o), o);
    graph_add_output(g, "loss", y);
    ck_assert_int_eq(pass_grad(&c, g), ST_OK);
    check_values(run_output(&t, g, "grad/a"), (double[]){.5, 0, 1, .5}, 4);
    check_values(run_output(&t, g, "grad/b"), (double[]){.5, 1, 0, .5}, 4);
    check_values(run_output(&t, g, "grad/r"), (double[]){0, .5, .5, 0}, 4);
    check_values(run_output(&t, g, "grad/k"), (double[]){1, 1, 1, 0}, 4);
    check_values(run_output(&t, g, "grad/z"), (double[]){0, 0, 1 + 1 + 4, -1 - 6}, 4);
    END;
}
END_TEST

START_TEST(test_pow_at_zero) {
    BEGIN;
    struct type s = {.dtype = DT_f64, .rank = 1, .dims = {3}};
    val_id x = add_param(g, "x", &s, (double[]){0, 0, 2}, false);
    val_id e = add_param(g, "e", &s, (double[]){0, 2, 3}, false);
    graph_add_output(g, "loss", sum_up(g, build_2(g, OP_pow, x, e, o), o));
    ck_assert_int_eq(pass_grad(&c, g), ST_OK);
    check_values(run_output(&t, g, "grad/x"), (double[]){0, 0, 12}, 3);
    check_values(run_output(&t, g, "grad/e"), (double[]){0, 0, 8 * log(2)}, 3);
    END;
}
END_TEST

START_TEST(test_micro_batch_weight) {
    BEGIN;
    struct train_options train = {.accumulate = 4};
    struct type s = type_scalar(DT_f64);
    val_id x = add_param(g, "x", &s, (double[]){3}, false);
    graph_add_output(g, "loss", build_2(g, OP_mul, x, x, o));
    c.train = &train;
    ck_assert_int_eq(pass_grad(&c, g), ST_OK);
    check_values(run_output(&t, g, "grad/x"), (double[]){1.5}, 1);
    END;
}
END_TEST

/* A transformer-like block with a symbolic batch and sequence must give a legal graph. */
START_TEST(test_symbolic) {
    BEGIN;
    dim B = dim_symbol(g->dims, "batch"), S = dim_symbol(g->dims, "seq");
    struct type x_type = {.dtype = DT_f32, .rank = 3, .dims = {B, S, 6}};
    struct attr name = {.key = ATTR_name, .s = "x"};
    val_id x = graph_source(g, OP_input, &x_type, &name, 1, o);
    val_id w = param(g, "w", DT_f32, 2, (dim[]){6, 12}),
           scale = param(g, "s", DT_f32, 1, (dim[]){6});
    struct attr norm[2] = {{.key = ATTR_axis, .i = 2}, {.key = ATTR_eps, .f = 1e-5}};
    val_id h = build_2(g, OP_mul, graph_add(g, OP_layer_norm, &x, 1, norm, 2, o), scale, o);
    h = build_matmul(g, h, w, false, false, o);
    dim sizes[3] = {B, S, 6}, from[3] = {0, 0, 6}, zero[3] = {0};
    val_id p = build_slice(g, h, zero, sizes, NULL, o), q = build_slice(g, h, from, sizes, NULL, o);
    h = build_2(g, OP_mul, build_1(g, OP_silu, p, o), q, o);
    dim cut[3] = {B, dim_sub(g->dims, S, 1), 6}, back[3] = {0, dim_sub(g->dims, S, 1), 0};
    int64_t steps[3] = {1, -1, 1};
    val_id first = build_slice(g, h, zero, cut, NULL, o);
    val_id flip = build_slice(g, h, back, sizes, steps, o);
    int64_t axes[3] = {0, 1, 2};
    val_id loss =
        build_reduce(g, OP_reduce_mean, build_2(g, OP_mul, flip, flip, o), axes, 3, false, o);
    loss = build_2(g, OP_add, loss, build_reduce(g, OP_reduce_mean, first, axes, 3, false, o), o);
    graph_add_output(g, "loss", loss);
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t.log);
    ck_assert_msg(graph_verify(g, "grad") == ST_OK, "%s", t.log);
    ck_assert_uint_eq(g->outputs.n, 3);
    END;
}
END_TEST

START_TEST(test_symbolic_layers) {
    BEGIN;
    dim B = dim_symbol(g->dims, "batch"), S = dim_symbol(g->dims, "seq");
    struct type ids_type = {.dtype = DT_i64, .rank = 2, .dims = {B, S}};
    struct attr name = {.key = ATTR_name, .s = "ids"}, axis0 = {.key = ATTR_axis, .i = 0};
    val_id ids = graph_source(g, OP_input, &ids_type, &name, 1, o);
    val_id table = param(g, "table", DT_f32, 2, (dim[]){7, 8});
    val_id h = graph_add(g, OP_gather, (val_id[]){table, ids}, 2, &axis0, 1, o);
    dim split[4] = {B, S, 2, 4}, flat[2] = {dim_mul(g->dims, B, S), 8}, line = flat[0];
    h = build_transpose(g, build_reshape(g, h, split, 4, o), (int64_t[]){0, 2, 1, 3}, o);
    struct attr att[2] = {{.key = ATTR_scale, .f = 0.5}, {.key = ATTR_causal, .i = 1}};
    h = graph_add(g, OP_attention, (val_id[]){h, h, h}, 3, att, 2, o);
    val_id kernel = param(g, "kernel", DT_f32, 4, (dim[]){2, 2, 3, 1});
    struct attr conv[3] = {{.key = ATTR_strides, .list = (int64_t[]){1, 1}, .n = 2},
                           {.key = ATTR_pads, .list = (int64_t[]){1, 0, 1, 0}, .n = 4},
                           {.key = ATTR_dilations, .list = (int64_t[]){1, 1}, .n = 2}};
    h = graph_add(g, OP_conv, (val_id[]){h, kernel}, 2, conv, 3, o); /* [B,2,S,4] */
    struct attr pool[4] = {conv[0], conv[1], conv[2]};
    pool[3] = (struct attr){.key = ATTR_kernel, .list = (int64_t[]){3, 1}, .n = 2};
    h = graph_add(g, OP_max_pool, &h, 1, pool, 4, o);
    h = build_transpose(g, h, (int64_t[]){0, 2, 1, 3}, o);
    h = build_reshape(g, h, flat, 2, o);
    val_id lp = graph_add(g, OP_cross_entropy, (val_id[]){h, build_reshape(g, ids, &line, 1, o)}, 2,
                          NULL, 0, o);
    graph_add_output(g, "loss", build_reduce(g, OP_reduce_mean, lp, (int64_t[]){0}, 1, false, o));
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s", t.log);
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t.log);
    ck_assert_msg(graph_verify(g, "grad") == ST_OK, "%s", t.log);
    ck_assert_uint_eq(g->outputs.n, 3);
    ck_assert_int_eq(count_ops(g, OP_attention_grad), 1);
    ck_assert_int_eq(count_ops(g, OP_scatter_rows), 1);
    END;
}
END_TEST

START_TEST(test_errors) {
    BEGIN;
    ck_assert_int_eq(pass_grad(&c, g), ST_USAGE);
    ck_assert_ptr_nonnull(strstr(t.log, "no output 'loss'"));
    val_id x = PARAM(g, "x", 2);
    graph_add_output(g, "loss", build_1(g, OP_exp, x, o));
    ck_assert_int_eq(pass_grad(&c, g), ST_TYPE);
    ck_assert_ptr_nonnull(strstr(t.log, "node: output 'loss' must be"));
    END;
}
END_TEST

START_TEST(test_no_rule) {
    BEGIN;
    struct type s = {.dtype = DT_f32, .rank = 1, .dims = {2}};
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    val_id w = add_param(g, "w", &s, (double[]){1, 2}, false), b = build_full(g, &s, 0, o);
    val_id in[5] = {w, b, b, build_full(g, &f32, 1, o), build_full(g, &i64, 1, o)};
    graph_add_output(g, "loss", sum_up(g, graph_add(g, OP_sgd, in, 5, NULL, 0, o), o));
    ck_assert_int_eq(pass_grad(&c, g), ST_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(t.log, "error: node: sgd has no gradient rule"));
    END;
}
END_TEST

START_TEST(test_attention_mask) {
    BEGIN;
    val_id q = PARAM(g, "q", 1, 1, 2, 2), m = PARAM(g, "m", 2, 2);
    struct attr scale = {.key = ATTR_scale, .f = 1};
    val_id in[4] = {q, q, q, m};
    graph_add_output(g, "loss", sum_up(g, graph_add(g, OP_attention, in, 4, &scale, 1, o), o));
    ck_assert_int_eq(pass_grad(&c, g), ST_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(t.log, "error: node: the attention mask depends"));
    END;
}
END_TEST

int main(void) {
    Suite *s = suite_create("grad");
    TCase *ops = tcase_create("ops"), *driver = tcase_create("driver");
    tcase_add_loop_test(ops, test_case, 0, CASES);
    tcase_add_test(ops, test_all_covered);
    tcase_add_test(driver, test_shared);
    tcase_add_test(driver, test_split_is_concat);
    tcase_add_test(driver, test_slices_with_gap);
    tcase_add_test(driver, test_slices_overlap);
    tcase_add_test(driver, test_one_product_for_rows);
    tcase_add_test(driver, test_frozen_and_unused);
    tcase_add_test(driver, test_everything_frozen);
    tcase_add_test(driver, test_ties_and_kinks);
    tcase_add_test(driver, test_pow_at_zero);
    tcase_add_test(driver, test_micro_batch_weight);
    tcase_add_test(driver, test_symbolic);
    tcase_add_test(driver, test_symbolic_layers);
    tcase_add_test(driver, test_errors);
    tcase_add_test(driver, test_no_rule);
    tcase_add_test(driver, test_attention_mask);
    suite_add_tcase(s, ops);
    suite_add_tcase(s, driver);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
