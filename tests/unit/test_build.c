// SPDX-License-Identifier: Apache-2.0
/* test_build.c - the tables of ops and attributes, attributes of nodes, and the short builders. */
#include "ir/build.h"
#include "test_util.h"

static const str_id NO = {0};

static val_id input(struct graph *g, const char *name, const struct type *t) {
    struct attr a = {.key = ATTR_name, .s = name};
    val_id v = graph_source(g, OP_input, t, &a, 1, NO);
    graph_set_name(g, v, name);
    return v;
}

static val_id state(struct graph *g, const char *name, const struct type *t) {
    struct attr a = {.key = ATTR_name, .s = name};
    val_id v = graph_source(g, OP_state, t, &a, 1, NO);
    graph_set_name(g, v, name);
    return v;
}

static const struct type small = {.dtype = DT_f32, .rank = 2, .dims = {3, 5}};

/* ---- tables -------------------------------------------------------------------------------- */
START_TEST(op_table) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t"); /* unwinds when an attrs column is malformed */
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        const struct op_info *info = op_info((enum op)op);
        ck_assert_int_eq(op_from_name(info->name, strlen(info->name)), op);
        ck_assert(info->min_in <= info->max_in && info->outs >= 1);
        ck_assert(!(info->traits & SOURCE) || info->max_in == 0);
        const struct op_attr *at;
        int n = op_attrs(g, (enum op)op, &at), words = 0;
        for (const char *p = info->attrs; *p; words++) {
            size_t name = strcspn(p, "= ");
            ck_assert_msg(attr_from_name(p, name) != ATTR_NONE, "%s: \"%s\"", info->name, p);
            ck_assert_int_eq(at[words].value.key, attr_from_name(p, name));
            ck_assert_int_eq(at[words].required, p[name] != '=');
            p += strcspn(p, " ");
            p += strspn(p, " ");
        }
        ck_assert_int_eq(n, words);
    }
    const struct op_attr *at;
    ck_assert_int_eq(op_attrs(g, OP_adam, &at), 6);
    ck_assert_double_eq(at[1].value.f, 0.999);
    ck_assert_double_eq(at[2].value.f, 1e-8);
    ck_assert(at[4].value.i == 1);
    op_attrs(g, OP_cross_entropy, &at);
    ck_assert_int_eq(at[0].value.i, -100);
    ck_assert_int_eq(op_attrs(g, OP_state, &at), 4);
    ck_assert_str_eq(at[1].value.s, "stat");
    ck_assert_int_eq(op_from_name("reduce", 6), OP_NONE);
    ck_assert_int_eq(op_from_name("addx", 3), OP_add);
    ck_assert_int_eq(attr_from_name("axe", 3), ATTR_NONE);
    ck_assert_int_eq(attr_kind(ATTR_starts), AK_DIMS);
    ck_assert_str_eq(attr_name(ATTR_trans_b), "trans_b");
    graph_destroy(g);
    graph_destroy(NULL);
    test_end(&t);
}
END_TEST

START_TEST(attributes) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small), v = VAL_NONE;
    int64_t axes[] = {1};
    struct attr a[] = {{.key = ATTR_keepdims, .i = 7}, {.key = ATTR_axes, .list = axes, .n = 1}};
    val_id r = graph_add(g, OP_reduce_sum, &x, 1, a, 2, NO);
    axes[0] = 0; /* lists are copied */
    int n = 0;
    ck_assert_int_eq(attr_ints(g, val_def(g, r), ATTR_axes, &n)[0], 1);
    ck_assert(n == 1 && attr_bool(g, val_def(g, r), ATTR_keepdims));
    ck_assert_int_eq(val_type(g, r)->dims[1], 1);
    /* Equal sets have equal ids, also when a default is spelled out. */
    val_id p = build_matmul(g, x, x, false, true, NO);
    struct attr trans = {.key = ATTR_trans_b, .i = 1};
    val_id q = graph_add(g, OP_matmul, (val_id[]){x, x}, 2, &trans, 1, NO);
    ck_assert_uint_eq(graph_node(g, val_def(g, p))->attrs.i, graph_node(g, val_def(g, q))->attrs.i);
    const struct attr *list;
    ck_assert_int_eq(attr_list(g, val_def(g, p), &list), 1);
    ck_assert_int_eq(list[0].key, ATTR_trans_b);
    ck_assert(!attr_bool(g, val_def(g, p), ATTR_trans_a));
    ck_assert_int_eq(attr_list(g, val_def(g, r), &list), 2);
    ck_assert(list[0].key < list[1].key);

    struct attr unknown = {.key = ATTR_groups, .i = 1};
    ck_assert_int_eq(graph_try_add(g, OP_neg, &x, 1, &unknown, 1, "/n/Neg", &v), ST_USAGE);
    ck_assert_ptr_nonnull(strstr(t.log, "/n/Neg: neg takes no attribute 'groups'"));
    ck_assert_int_eq(graph_try_add(g, OP_softmax, &x, 1, NULL, 0, "s", &v), ST_USAGE);
    ck_assert_ptr_nonnull(strstr(t.log, "softmax needs the attribute 'axis'"));
    struct attr twice[] = {{.key = ATTR_axis, .i = 1}, {.key = ATTR_axis, .i = 1}};
    ck_assert_int_eq(graph_try_add(g, OP_softmax, &x, 1, twice, 2, "s", &v), ST_USAGE);
    struct attr dtype = {.key = ATTR_dtype, .i = DT_COUNT};
    ck_assert_int_eq(graph_try_add(g, OP_cast, &x, 1, &dtype, 1, "s", &v), ST_USAGE);
    ck_assert_int_eq(graph_try_add(g, OP_add, &x, 1, NULL, 0, "s", &v), ST_SHAPE);
    ck_assert_int_eq(graph_try_add(g, OP_add, (val_id[]){x, VAL_NONE}, 2, NULL, 0, "s", &v),
                     ST_USAGE);
    ck_assert_uint_eq(v.i, 0);
    ck_assert_uint_eq(t.ctx.errors, 6);

    val_id w = state(g, "w", &small);
    ck_assert_str_eq(attr_str(g, val_def(g, w), ATTR_role), "stat");
    ck_assert_uint_eq(attr_blob(g, val_def(g, w), ATTR_init).i, 0);
    node_set_attr(g, val_def(g, w), &(struct attr){.key = ATTR_role, .s = "optimizer"});
    node_set_attr(g, val_def(g, w), &(struct attr){.key = ATTR_fill, .f = 0.25});
    ck_assert_str_eq(attr_str(g, val_def(g, w), ATTR_role), "optimizer");
    ck_assert_str_eq(attr_str(g, val_def(g, w), ATTR_name), "w");
    ck_assert_double_eq(attr_float(g, val_def(g, w), ATTR_fill), 0.25);
    node_set_attr(g, val_def(g, w), &(struct attr){.key = ATTR_fill, .f = 0.0});
    ck_assert_int_eq(attr_list(g, val_def(g, w), &list), 2);
    ck_assert_int_eq(graph_verify(g, "test"), ST_OK);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- build --------------------------------------------------------------------------------- */
START_TEST(build_identities) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small);
    uint32_t nodes = g->nodes.n;
    ck_assert_uint_eq(build_cast(g, x, DT_f32, NO).i, x.i);
    ck_assert_uint_eq(build_reshape(g, x, small.dims, 2, NO).i, x.i);
    ck_assert_uint_eq(build_expand(g, x, small.dims, 2, NO).i, x.i);
    ck_assert_uint_eq(build_transpose(g, x, (int64_t[]){0, 1}, NO).i, x.i);
    ck_assert_uint_eq(build_slice(g, x, (dim[]){0, 0}, small.dims, NULL, NO).i, x.i);
    ck_assert_uint_eq(build_concat(g, &x, 1, 0, NO).i, x.i);
    ck_assert_uint_eq(build_reduce(g, OP_reduce_max, x, NULL, 0, true, NO).i, x.i);
    ck_assert_uint_eq(build_unbroadcast(g, x, &small, NO).i, x.i);
    ck_assert_uint_eq(build_scale(g, x, 1, NO).i, x.i);
    ck_assert_uint_eq(build_shift(g, x, 0, NO).i, x.i);
    ck_assert_uint_eq(g->nodes.n, nodes);
    val_id r = build_reduce(g, OP_reduce_sum, x, (int64_t[]){1, 0}, 2, false, NO);
    ck_assert_int_eq(val_type(g, r)->rank, 0);
    val_id s = build_slice(g, x, (dim[]){2, 1}, (dim[]){3, 2}, (int64_t[]){-1, 3}, NO);
    ck_assert_int_eq(val_type(g, s)->dims[1], 2);
    val_id w = build_swap_last(g, x, NO);
    ck_assert(val_type(g, w)->dims[0] == 5 && val_type(g, w)->dims[1] == 3);
    val_id c = build_concat(g, (val_id[]){x, x, x}, 3, 1, NO);
    ck_assert_int_eq(val_type(g, c)->dims[1], 15);
    val_id i = build_iota(g, DT_i64, 7, 1, 2, NO);
    ck_assert_int_eq(val_type(g, i)->dims[0], 7);
    ck_assert_int_eq(graph_verify(g, "build"), ST_OK);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(unbroadcast) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    dim n = dim_symbol(g->dims, "n");
    struct type from = {.dtype = DT_f32, .rank = 4, .dims = {2, n, 3, 5}};
    struct type to[] = {{.dtype = DT_f32, .rank = 3, .dims = {1, 3, 1}},
                        {.dtype = DT_f32, .rank = 2, .dims = {3, 5}},
                        {.dtype = DT_f32, .rank = 4, .dims = {2, 1, 3, 1}},
                        {.dtype = DT_f32, .rank = 0}};
    val_id x = input(g, "x", &from);
    for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
        uint32_t before = g->nodes.n;
        val_id v = build_unbroadcast(g, x, &to[k], NO);
        ck_assert(type_equal(val_type(g, v), &to[k]));
        ck_assert_uint_eq(g->nodes.n - before, k == 0 ? 2 : 1); /* a reshape only when mixed */
    }
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(uniform) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    double x = 0;
    float same[15], differ[15] = {0};
    for (int k = 0; k < 15; k++) same[k] = -2.75f;
    differ[14] = 1;
    val_id s = build_const(g, &small, same, NO), d = build_const(g, &small, differ, NO);
    ck_assert(val_uniform(g, s, &x) && x == -2.75);
    ck_assert(!val_uniform(g, d, &x));
    ck_assert(val_uniform(g, build_cast(g, s, DT_i8, NO), &x) && x == -2);
    ck_assert(!val_uniform(g, build_cast(g, s, DT_u8, NO), &x));
    ck_assert(val_uniform(g, build_cast(g, s, DT_bool, NO), &x) && x == 1);
    val_id f = build_full(g, &(struct type){.dtype = DT_bf16, .rank = 1, .dims = {4}}, 0.1, NO);
    ck_assert(val_uniform(g, f, &x) && x == 0.10009765625);
    val_id wide = build_expand(g, build_reshape(g, f, (dim[]){4, 1}, 2, NO), (dim[]){4, 6}, 2, NO);
    ck_assert(val_uniform(g, wide, &x) && x == 0.10009765625);
    ck_assert(!val_uniform(g, build_1(g, OP_neg, s, NO), &x));
    ck_assert(!val_uniform(g, build_scalar_int(g, DT_i64, (INT64_C(1) << 53) + 1, NO), &x));
    ck_assert(val_uniform(g, build_scalar_int(g, DT_i64, INT64_MIN, NO), &x) && x == -0x1p63);
    ck_assert(
        !val_uniform(g, build_const(g, &(struct type){.dtype = DT_f32, .rank = 1}, NULL, NO), &x));
    ck_assert_uint_eq(val_const(g, s)->bytes, sizeof same);
    ck_assert_ptr_null(val_const(g, f));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("build");
    TCase *c = tcase_create("all");
    tcase_add_test(c, op_table);
    tcase_add_test(c, attributes);
    tcase_add_test(c, build_identities);
    tcase_add_test(c, unbroadcast);
    tcase_add_test(c, uniform);
    tcase_set_timeout(c, 60);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
