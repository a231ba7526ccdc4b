// SPDX-License-Identifier: Apache-2.0
/* test_graph.c - making, naming, rewriting, settling, cloning and verifying graphs. */
#include "ir/build.h"
#include "ir/graph.h"
#include "test_util.h"
#include <time.h>

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

/* The op names in node order, e.g. "input neg add". */
static const char *order(struct test_env *t, const struct graph *g) {
    struct buf b;
    buf_init(&b, &t->arena);
    for (uint32_t n = 1; n < g->nodes.n; n++) {
        if (n > 1) buf_puts(&b, " ");
        buf_puts(&b, op_info((enum op)g->nodes.at[n].op)->name);
    }
    return b.at;
}

static void settled(struct graph *g) {
    graph_settle(g);
    ck_assert(!graph_settle(g)); /* idempotent */
    ck_assert_int_eq(graph_verify(g, "settle"), ST_OK);
}

START_TEST(types_and_blobs) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    struct type a = small, b = small;
    b.dims[7] = 4;
    ck_assert_uint_eq(graph_type(g, &a).i, graph_type(g, &b).i);
    b.dtype = DT_f16;
    ck_assert_uint_ne(graph_type(g, &a).i, graph_type(g, &b).i);
    char bytes[6] = "abcde", large[5000] = {1};
    blob_id x = graph_blob(g, bytes, 6, true);
    bytes[0] = 'z';
    ck_assert_str_eq(graph_get_blob(g, x)->data, "abcde");
    ck_assert_uint_ne(graph_blob(g, bytes, 6, true).i, x.i);
    ck_assert_uint_eq(graph_blob(g, "abcde", 6, true).i, x.i);
    ck_assert_uint_ne(graph_blob(g, "abcde", 5, true).i, x.i);
    blob_id l = graph_blob(g, large, sizeof large, false);
    ck_assert_ptr_eq(graph_get_blob(g, l)->data, large);
    ck_assert_uint_ne(graph_blob(g, large, sizeof large, false).i, l.i);
    uint64_t h = graph_blob_hash(g, l);
    ck_assert(h != 0 && h == hash_bytes(large, sizeof large));
    blob_id k = graph_blob_by_hash(g, sizeof large, h);
    ck_assert(k.i != l.i && graph_blob_by_hash(g, sizeof large, h).i == k.i);
    ck_assert_ptr_null(graph_get_blob(g, k)->data);
    ck_assert_uint_eq(graph_blob_hash(g, k), h);
    blob_id empty = graph_blob(g, NULL, 0, true);
    ck_assert_ptr_nonnull(graph_get_blob(g, empty)->data);
    struct type none = {.dtype = DT_f32, .rank = 1, .dims = {0}};
    struct attr init = {.key = ATTR_init, .blob = x};
    val_id v;
    ck_assert_int_ne(graph_try_source(g, OP_const, &none, &init, 1, "c", &v), ST_OK);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(names) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small), a = build_1(g, OP_neg, x, NO), b = build_1(g, OP_abs, a, NO);
    val_id c = build_1(g, OP_sign, b, NO);
    graph_set_name(g, a, "x");
    ck_assert_str_eq(val_name(g, a), "x.1");
    graph_set_name(g, b, "x.2");
    graph_set_name(g, c, "x");
    ck_assert_str_eq(val_name(g, c), "x.3");
    ck_assert_uint_eq(graph_find(g, "x.2").i, b.i);
    graph_set_name(g, b, "y");
    ck_assert_uint_eq(graph_find(g, "x.2").i, 0);
    ck_assert_uint_eq(graph_find(g, "y").i, b.i);
    graph_set_name(g, b, "y");
    ck_assert_str_eq(val_name(g, b), "y");
    graph_set_name(g, b, "");
    ck_assert_uint_eq(graph_find(g, "y").i, 0);
    ck_assert_uint_eq(graph_find(g, "").i, 0);
    ck_assert_uint_eq(graph_find(g, "never").i, 0);
    graph_set_name(g, x, "x");
    ck_assert_str_eq(val_name(g, x), "x");
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- settle -------------------------------------------------------------------------------- */
START_TEST(settle_keeps_order) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small);
    val_id e = build_1(g, OP_exp, x, NO), l = build_1(g, OP_log, x, NO);
    val_id sum = build_2(g, OP_add, l, e, NO); /* operands against node order */
    graph_add_output(g, "y", sum);
    ck_assert(!graph_settle(g));
    ck_assert_str_eq(order(&t, g), "input exp log add");
    /* A replacement appended late lands right before its first user. */
    val_id s = build_1(g, OP_sin, x, NO), n = build_1(g, OP_neg, s, NO);
    graph_set_name(g, e, "e");
    graph_forward(g, e, n);
    ck_assert_str_eq(val_name(g, n), "e");
    ck_assert_uint_eq(node_in(g, val_def(g, sum), 1).i, n.i);
    ck_assert(graph_settle(g));
    ck_assert_str_eq(order(&t, g), "input log sin neg add");
    ck_assert_uint_eq(graph_find(g, "e").i, node_out(g, (node_id){4}, 0).i);
    settled(g);
    ck_assert_int_eq(g->values.n, 6);
    ck_assert_int_eq(g->operands.n, 5);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(settle_forwards) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small), w = state(g, "w", &small);
    val_id a = build_1(g, OP_exp, x, NO), b = build_1(g, OP_sin, x, NO),
           c = build_1(g, OP_cos, x, NO);
    graph_add_output(g, "y", a);
    graph_add_update(g, w, a);
    graph_set_name(g, a, "kept");
    graph_forward(g, a, b);
    graph_forward(g, b, c); /* a chain */
    graph_forward(g, c, a); /* already so */
    ck_assert_uint_eq(graph_resolve(g, a).i, c.i);
    settled(g);
    ck_assert_str_eq(order(&t, g), "input state cos");
    ck_assert_str_eq(val_name(g, g->outputs.at[0].value), "kept");
    ck_assert_uint_eq(g->updates.at[0].next.i, g->outputs.at[0].value.i);
    ck_assert_uint_eq(graph_find(g, "w").i, g->updates.at[0].target.i);
    /* A named replacement keeps its own name. */
    val_id d = build_1(g, OP_neg, graph_find(g, "x"), NO);
    graph_set_name(g, d, "mine");
    graph_forward(g, g->outputs.at[0].value, d);
    settled(g);
    ck_assert_str_eq(order(&t, g), "input state neg");
    ck_assert_str_eq(val_name(g, g->outputs.at[0].value), "mine");
    ck_assert_uint_eq(graph_find(g, "kept").i, 0);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(settle_interface) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id a = input(g, "a", &small);
    val_id e = build_1(g, OP_exp, a, NO);
    build_1(g, OP_tan, e, NO); /* dead */
    input(g, "unused", &small);
    build_scalar(g, DT_f32, 1, NO); /* dead */
    val_id late = state(g, "late", &small);
    graph_add_output(g, "y", build_2(g, OP_add, e, e, NO));
    state(g, "spare", &small);
    graph_forward(g, e, build_1(g, OP_neg, late, NO));
    settled(g);
    /* `late` is needed early and takes along the interface nodes before it. */
    ck_assert_str_eq(order(&t, g), "input input state neg add state");
    ck_assert_str_eq(val_name(g, (val_id){1}), "a");
    ck_assert_str_eq(val_name(g, (val_id){2}), "unused");
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(settle_interface_pulled) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id a = input(g, "a", &small), e = build_1(g, OP_exp, a, NO), f = build_1(g, OP_abs, e, NO);
    val_id b = input(g, "b", &small), y = build_2(g, OP_mul, f, b, NO);
    graph_add_output(g, "y", y);
    val_id c = input(g, "c", &small);
    graph_forward(g, e, build_1(g, OP_neg, c, NO));
    settled(g);
    ck_assert_str_eq(order(&t, g), "input input input neg abs mul");
    ck_assert_str_eq(val_name(g, (val_id){2}), "b");
    ck_assert_str_eq(val_name(g, (val_id){3}), "c");
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(multiple_outputs) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small);
    struct attr a[] = {{.key = ATTR_axis, .i = 1}, {.key = ATTR_eps, .f = 1e-5}};
    val_id dead = build_1(g, OP_neg, x, NO);
    val_id ln = graph_add(g, OP_layer_norm, &x, 1, a, 2, NO), rstd = val_at(ln, 2);
    ck_assert_int_eq(val_type(g, rstd)->dims[1], 1);
    graph_add_output(g, "r", rstd);
    graph_set_name(g, rstd, "r");
    ck_assert_uint_eq(node_out(g, val_def(g, ln), 2).i, rstd.i);
    settled(g);
    ck_assert_uint_eq(dead.i, 2); /* its id is gone: the others moved down */
    ck_assert_str_eq(order(&t, g), "input layer_norm");
    ck_assert_uint_eq(graph_find(g, "r").i, 4);
    ck_assert_uint_eq(val_def(g, graph_find(g, "r")).i, 2);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(cycle_unwinds) {
    struct test_env t;
    test_begin(&t);
    struct graph *volatile g = NULL;
    if (setjmp(t.landing) == 0) {
        g = graph_create(&t.ctx, "t");
        val_id x = input(g, "x", &small), e = build_1(g, OP_exp, x, NO);
        graph_add_output(g, "y", e);
        graph_forward(g, x, build_1(g, OP_neg, x, NO));
        graph_settle(g);
        ck_abort_msg("no unwinding");
    }
    ck_assert_int_eq(t.ctx.unwound, ST_INTERNAL);
    ck_assert_ptr_nonnull(strstr(t.log, "cycle"));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(forward_checks_type) {
    struct test_env t;
    test_begin(&t);
    struct graph *volatile g = NULL;
    if (setjmp(t.landing) == 0) {
        g = graph_create(&t.ctx, "t");
        val_id x = input(g, "x", &small);
        graph_forward(g, x, build_cast(g, x, DT_f16, NO));
        ck_abort_msg("no unwinding");
    }
    ck_assert_int_eq(t.ctx.unwound, ST_INTERNAL);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* Long chains: no recursion, no quadratic scans, one name for all. */
START_TEST(large) {
    enum { N = 50000 };
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    clock_t start = clock();
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small), v = x, w = x;
    for (int k = 0; k < N; k++) {
        v = build_1(g, OP_neg, v, NO);
        graph_set_name(g, v, "same");
    }
    ck_assert_str_eq(val_name(g, v), "same.49999");
    graph_add_output(g, "y", v);
    for (int k = 0; k < N; k++) w = build_1(g, OP_sin, w, NO);
    for (uint32_t k = 1; k < N; k++) graph_forward(g, (val_id){k + 1}, (val_id){k + 2});
    graph_forward(g, v, w); /* one chain of N forwards */
    ck_assert(graph_settle(g));
    ck_assert_uint_eq(g->nodes.n, N + 2);
    for (int round = 0; round < 5; round++) {
        graph_forward(g, g->outputs.at[0].value, build_1(g, OP_cos, g->outputs.at[0].value, NO));
        g->forward.at[g->outputs.at[0].value.i] =
            g->outputs.at[0].value; /* undo: would be a cycle */
        ck_assert(graph_settle(g));
    }
    ck_assert_int_eq(graph_verify(g, "test"), ST_OK);
    struct uses u = uses_build(g, &t.arena);
    ck_assert_uint_eq(u.first[g->values.n], N);
    graph_destroy(g);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    ck_assert_msg(seconds < 10, "took %.1f s", seconds);
    test_end(&t);
}
END_TEST

/* What a value computes, as a hash over the expression with forwards applied. */
static uint64_t meaning(const struct graph *g, val_id v) {
    v = graph_resolve(g, v);
    node_id n = val_def(g, v);
    uint64_t h = hash_combine(val_op(g, v), graph_node(g, n)->attrs.i);
    for (int k = 0; k < graph_node(g, n)->nin; k++)
        h = hash_combine(h, meaning(g, node_in(g, n, k)));
    return h;
}

START_TEST(settle_random) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    uint32_t seed = 12345;
#define RANDOM(n) ((seed = seed * 1664525u + 1013904223u) >> 8) % (n)
    for (int round = 0; round < 300; round++) {
        static const enum op ops[] = {OP_add, OP_sub, OP_mul, OP_max};
        struct graph *g = graph_create(&t.ctx, "t");
        input(g, "a", &small);
        input(g, "b", &small);
        uint32_t first = g->values.n, size = 12;
        for (uint32_t k = 0; k < size; k++) {
            uint32_t a = 1 + RANDOM(g->values.n - 1), b = 1 + RANDOM(g->values.n - 1);
            build_2(g, ops[RANDOM(4)], (val_id){a}, (val_id){b}, NO);
        }
        for (uint32_t k = 0; k < 3; k++)
            graph_add_output(g, k == 0 ? "x" : k == 1 ? "y" : "z", (val_id){first + RANDOM(size)});
        /* New nodes only use what came before the node they replace: no cycles. */
        for (uint32_t k = 0; k < 5; k++) {
            val_id old = {first + RANDOM(size)};
            val_id a = {1 + RANDOM(old.i - 1)}, b = {1 + RANDOM(old.i - 1)};
            graph_forward(g, old, build_2(g, ops[RANDOM(4)], a, b, NO));
        }
        uint64_t before[3];
        for (uint32_t k = 0; k < 3; k++) before[k] = meaning(g, g->outputs.at[k].value);
        settled(g);
        for (uint32_t k = 0; k < 3; k++)
            ck_assert_msg(before[k] == meaning(g, g->outputs.at[k].value), "round %d", round);
        struct uses u = uses_build(g, &t.arena);
        for (uint32_t v = 3; v < g->values.n; v++)
            ck_assert(u.live_out[v] || u.first[v + 1] > u.first[v]);
        graph_destroy(g);
    }
    test_end(&t);
}
END_TEST

START_TEST(uses) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small), e = build_1(g, OP_exp, x, NO);
    val_id m = build_2(g, OP_mul, x, x, NO), s = build_2(g, OP_add, e, m, NO);
    graph_add_output(g, "y", s);
    val_id n = build_1(g, OP_neg, x, NO);
    graph_forward(g, e, n);
    struct uses u = uses_build(g, &t.arena);
    ck_assert_uint_eq(u.first[x.i + 1] - u.first[x.i], 4); /* exp, mul twice, neg */
    ck_assert_uint_eq(u.user[u.first[x.i] + 1].i, val_def(g, m).i);
    ck_assert_uint_eq(u.user[u.first[x.i] + 2].i, val_def(g, m).i);
    ck_assert_uint_eq(u.first[e.i + 1] - u.first[e.i], 0);
    ck_assert_uint_eq(u.user[u.first[n.i]].i, val_def(g, s).i);
    ck_assert(u.live_out[s.i] && !u.live_out[x.i]);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(clone) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "model");
    struct type sym = {.dtype = DT_f32, .rank = 1, .dims = {0}};
    sym.dims[0] = dim_mul(g->dims, dim_symbol(g->dims, "n"), 3);
    val_id x = input(g, "x", &sym);
    val_id y = build_scale(g, x, 2.5, intern(&g->strings, "/scale"));
    graph_set_name(g, y, "y");
    graph_add_output(g, "out", y);
    val_id z = build_1(g, OP_neg, x, NO);
    graph_forward(g, y, z);
    struct graph *c = graph_clone(g);
    ck_assert_str_eq(interned(&c->strings, c->name), "model");
    ck_assert_str_eq(node_origin(c, val_def(c, y)), "/scale");
    ck_assert_uint_eq(graph_resolve(c, y).i, z.i);
    ck_assert_uint_eq(graph_type(c, &sym).i, graph_type(g, &sym).i);
    ck_assert_uint_eq(graph_find(c, "y").i, z.i);
    ck_assert_int_eq(attr_list(c, val_def(c, x), &(const struct attr *){NULL}), 1);
    settled(c);
    ck_assert_str_eq(order(&t, c), "input neg");
    ck_assert_str_eq(order(&t, g), "input const mul neg");
    graph_destroy(c);
    settled(g);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- out of memory ------------------------------------------------------------------------- */
static void *limited_alloc(void *user, size_t size) {
    int *left = user;
    return (*left)-- > 0 ? malloc(size) : NULL;
}

/* Create and clone a graph with an allocator that gives `left` blocks; true when it refused. */
static bool refuses(int left) {
    struct test_env t;
    test_begin(&t);
    t.ctx.alloc = limited_alloc;
    t.ctx.alloc_user = &left;
    struct graph *volatile g = NULL;
    if (setjmp(t.landing)) {
        ck_assert_int_eq(t.ctx.unwound, ST_OUT_OF_MEMORY);
        ck_assert_ptr_eq(t.ctx.landing, &t.landing);
        graph_destroy(g);
        test_end(&t);
        return true;
    }
    g = graph_create(&t.ctx, "t");
    graph_add_output(g, "y", build_1(g, OP_neg, input(g, "x", &small), NO));
    graph_destroy(graph_clone(g));
    graph_destroy(g);
    test_end(&t);
    return false;
}

START_TEST(create_leaks_nothing) {
    int budget = 0;
    while (budget < 1000 && refuses(budget)) budget++;
    ck_assert(budget > 2 && budget < 1000);
}
END_TEST

/* ---- verify -------------------------------------------------------------------------------- */
static void expect_fault(struct test_env *t, const struct graph *g, const char *word) {
    t->log[0] = '\0';
    ck_assert_int_eq(graph_verify(g, "break"), ST_INTERNAL);
    ck_assert_msg(strstr(t->log, word) && strstr(t->log, "after break"), "no '%s' in: %s", word,
                  t->log);
}

START_TEST(verify) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "t");
    val_id x = input(g, "x", &small), w = state(g, "w", &small);
    val_id e = build_1(g, OP_exp, x, intern(&g->strings, "/Exp"));
    val_id s = build_2(g, OP_add, e, w, NO);
    graph_set_name(g, s, "s");
    graph_add_output(g, "y", s);
    graph_add_update(g, w, s);
    ck_assert_int_eq(graph_verify(g, "test"), ST_OK);
    struct node *exp = &g->nodes.at[val_def(g, e).i], keep = *exp;
    struct value *sum = &g->values.at[s.i], keep_sum = *sum;

#define BROKEN(change, word)                                                                       \
    do {                                                                                           \
        change;                                                                                    \
        expect_fault(&t, g, word);                                                                 \
        *exp = keep;                                                                               \
        *sum = keep_sum;                                                                           \
        g->operands.at[0] = x;                                                                     \
    } while (0)
    BROKEN(g->operands.at[0] = s,
           "/Exp: after break, node 3 (exp): operand 0 is defined by node 4");
    BROKEN(g->operands.at[0].i = 999, "operand 0 is value 999");
    BROKEN(exp->op = 9999, "expected an op");
    BROKEN(exp->nout = 2, "expected 1 outputs");
    BROKEN(exp->nin = 2, "expected 1 to 1 operands");
    BROKEN(exp->first_in = 999, "operands end at");
    BROKEN(exp->first_out = UINT32_MAX, "outputs start at");
    BROKEN(exp->attrs = g->nodes.at[1].attrs, "carries the attribute 'name'");
    BROKEN(exp->attrs.i = 999, "attribute record 999");
    BROKEN(exp->op = OP_softmax, "lacks the attribute 'axis'");
    BROKEN(sum->name = g->values.at[x.i].name, "share the name 'x'");
    BROKEN(sum->def.i = 2, "defined by node 2");
    BROKEN(sum->type = graph_type(g, &(struct type){.dtype = DT_f32, .rank = 1, .dims = {7}}),
           "another type");
    BROKEN(g->values.at[e.i].type =
               graph_type(g, &(struct type){.dtype = DT_f32, .rank = 2, .dims = {3, 1}}),
           "expected f32[3,5], found f32[3,1]");
    g->values.at[e.i].type = g->values.at[x.i].type;
    graph_add_output(g, "y", e);
    expect_fault(&t, g, "share the name 'y'");
    g->outputs.n--;
    graph_add_update(g, w, e);
    expect_fault(&t, g, "is updated twice");
    g->updates.at[1].target = x;
    expect_fault(&t, g, "no param or state");
    g->updates.n--;
    graph_forward(g, e, x);
    expect_fault(&t, g, "not settled");
    g->forward.at[e.i] = e;
    ck_assert_int_eq(graph_verify(g, "test"), ST_OK);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("graph");
    TCase *c = tcase_create("all");
    tcase_add_test(c, types_and_blobs);
    tcase_add_test(c, names);
    tcase_add_test(c, settle_keeps_order);
    tcase_add_test(c, settle_forwards);
    tcase_add_test(c, settle_interface);
    tcase_add_test(c, settle_interface_pulled);
    tcase_add_test(c, multiple_outputs);
    tcase_add_test(c, cycle_unwinds);
    tcase_add_test(c, forward_checks_type);
    tcase_add_test(c, large);
    tcase_add_test(c, settle_random);
    tcase_add_test(c, uses);
    tcase_add_test(c, clone);
    tcase_add_test(c, create_leaks_nothing);
    tcase_add_test(c, verify);
    tcase_set_timeout(c, 60);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
