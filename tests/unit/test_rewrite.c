// SPDX-License-Identifier: Apache-2.0
/* test_rewrite.c - the rewriting engine, the checks of rule tables, and that simplify keeps the
 * meaning of graphs: of the golden files and of random ones. */
#include "passes/recognise.h"
#include "passes/simplify.h"
#include "rewrite_cases.h"

/* ---- tables -------------------------------------------------------------------------------- */
static void expect_rules(struct test_env *t, const struct rule *r, int n, const char *part) {
    const char *error = rules_check(r, n, &t->ctx, &t->arena);
    if (!part && error) ck_abort_msg("%s", error);
    if (part && (!error || !strstr(error, part)))
        ck_abort_msg("expected '%s', found '%s'", part, error ? error : "nothing");
}

START_TEST(tables_are_sound) {
    struct test_env t;
    int n;
    test_begin(&t);
    TEST_LANDING(&t);
    const struct rule *r = simplify_rules(&n);
    expect_rules(&t, r, n, NULL);
    ck_assert_int_gt(n, 40);
    r = recognise_activations(&n);
    expect_rules(&t, r, n, NULL);
    r = recognise_norms(&n);
    expect_rules(&t, r, n, NULL);
    test_end(&t);
}
END_TEST

static bool always(struct match *m) {
    (void)m;
    return true;
}

START_TEST(bad_rules_are_named) {
    // clang-format off
    static const struct { struct rule r[2]; int n; const char *want; } bad[] = {
        {{{"a", "(frob x)", "x", NULL}}, 1, "no such op: 'frob'"},
        {{{"a", "(add x)", "x", NULL}}, 1, "wrong number of operands of 'add'"},
        {{{"a", "(add x y z)", "x", NULL}}, 1, "wrong number of operands of 'add'"},
        {{{"a", "(const)", "1", NULL}}, 1, "wrong number of operands of 'const'"},
        {{{"a", "(neg x)", "y", NULL}}, 1, "nothing binds 'y'"},
        {{{"a", "(neg x)", "y", always}}, 1, "nothing binds 'y'"},
        {{{"a", "(neg x)", "(mul x #c)", NULL}}, 1, "no guard that could bind 'c'"},
        {{{"a", "(neg x)", "(transpose:p x)", NULL}}, 1, "no guard that could bind 'p'"},
        {{{"a", "(matmul{axis=1} x y)", "x", NULL}}, 1, "no such attribute: 'axis'"},
        {{{"a", "(matmul{trans_a=maybe} x y)", "x", NULL}}, 1, "not a value: 'maybe'"},
        {{{"a", "(mul x #x)", "x", NULL}}, 1, "two meanings of 'x'"},
        {{{"a", "(neg x", "x", NULL}}, 1, "')' expected"},
        {{{"a", "(neg x) y", "x", NULL}}, 1, "left over"},
        {{{"a", "x", "x", NULL}}, 1, "no op in"},
        {{{"a", "(softmax:s x)", "(transpose:s x)", NULL}}, 1, "attributes of another op"},
        {{{"a", "(neg x)", "x", NULL}, {"a", "(abs x)", "x", NULL}}, 2, "two rules are called a"},
        {{{"a", "(mul x #c)", "x", NULL}, {"b", "(mul 2 (neg y))", "y", NULL}}, 2, "rule b never fires: a"},
        {{{"a", "(matmul x y)", "x", NULL}, {"b", "(matmul{trans_a=true} x y)", "y", NULL}}, 2, "rule b never fires: a"},
        {{{"a", "(add x y)", "x", NULL}, {"b", "(add x x)", "x", NULL}}, 2, "rule b never fires: a"},
    };
    static const struct rule fine[] = {
        {"a", "(add x x)", "x", NULL},     {"b", "(add x y)", "x", always},
        {"c", "(add x (neg y))", "x", NULL}, {"d", "(sub x #c)", "x", NULL},
        {"e", "(sub x y)", "x", NULL},     {"f", "(matmul{trans_a=true} x y)", "x", NULL},
        {"g", "(matmul x y)", "x", NULL},
    };
    // clang-format on
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++)
        expect_rules(&t, bad[k].r, bad[k].n, bad[k].want);
    expect_rules(&t, fine, (int)(sizeof fine / sizeof fine[0]), NULL);
    test_end(&t);
}
END_TEST

/* ---- engine -------------------------------------------------------------------------------- */
static enum status run_rules(struct test_env *t, struct graph *g, const struct rule *r, int n,
                             uint32_t *fired) {
    struct arena scratch;
    arena_init(&scratch, &t->ctx);
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &scratch};
    struct rewrite_set set = {.pass = "test", .rules = r, .nrules = n};
    enum status st = rewrite_run(&c, g, &set, fired);
    arena_reset(&scratch);
    ck_assert_int_eq(graph_verify(g, "test"), ST_OK);
    return st;
}

static bool y_is_exp(struct match *m) {
    return val_op(match_graph(m), match_val(m, "y")) == OP_exp;
}

START_TEST(commutes_and_backtracks) {
    static const struct rule rules[] = {
        /* the guard refuses the first order of each product; the second must be tried */
        {"r", "(mul (mul x y) (mul x z))", "(sub y z)", y_is_exp},
    };
    struct test_env t;
    uint32_t fired[1] = {0};
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = cases_parse(&t, "graph @t {\n"
                                      "  %a = input {name = \"a\"} : f32[3]\n"
                                      "  %b = input {name = \"b\"} : f32[3]\n"
                                      "  %e = exp(%a) : f32[3]\n"
                                      "  %p = mul(%a, %b) : f32[3]\n"
                                      "  %q = mul(%b, %e) : f32[3]\n"
                                      "  %y = mul(%p, %q) : f32[3] loc \"root\"\n"
                                      "  output \"y\" = %y\n}\n");
    ck_assert_int_eq(run_rules(&t, g, rules, 1, fired), ST_OK);
    ck_assert_uint_eq(fired[0], 1);
    val_id y = g->outputs.at[0].value;
    ck_assert_int_eq(val_op(g, y), OP_sub);
    ck_assert_int_eq(val_op(g, node_in(g, val_def(g, y), 0)), OP_exp);
    ck_assert_str_eq(node_origin(g, val_def(g, y)), "root");
    ck_assert_str_eq(val_name(g, y), "y");
    ck_assert_uint_eq(cases_count(g, OP_mul), 0);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(types_are_kept) {
    static const struct rule rules[] = {
        {"wrong-type", "(cast x)", "x", NULL},
        {"too-large", "(reduce_sum x)", "x", NULL},
        {"broadcasts", "(max x y)", "x", NULL},
    };
    struct test_env t;
    uint32_t fired[3] = {0};
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = cases_parse(&t, "graph @t {\n"
                                      "  %a = input {name = \"a\"} : f32[3]\n"
                                      "  %b = input {name = \"b\"} : f32[2,3]\n"
                                      "  %c = cast(%a) {dtype = f16} : f16[3]\n"
                                      "  %r = reduce_sum(%b) {axes = [0]} : f32[3]\n"
                                      "  %m = max(%a, %b) : f32[2,3]\n"
                                      "  output \"c\" = %c\n"
                                      "  output \"r\" = %r\n"
                                      "  output \"m\" = %m\n}\n");
    ck_assert_int_eq(run_rules(&t, g, rules, 3, fired), ST_OK);
    ck_assert_uint_eq(fired[0], 0);
    ck_assert_uint_eq(fired[1], 0);
    ck_assert_uint_eq(fired[2], 1);
    ck_assert_int_eq(val_op(g, g->outputs.at[2].value), OP_expand);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(endless_rules_are_stopped) {
    static const struct rule rules[] = {{"grow", "(sub x y)", "(neg (sub y x))", NULL}};
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = cases_parse(&t, "graph @endless {\n"
                                      "  %a = input {name = \"a\"} : f32[3]\n"
                                      "  %b = input {name = \"b\"} : f32[3]\n"
                                      "  %y = sub(%a, %b) : f32[3]\n"
                                      "  output \"y\" = %y\n}\n");
    ck_assert_int_eq(run_rules(&t, g, rules, 1, NULL), ST_OK);
    ck_assert_msg(strstr(t.log, "warning: endless: test stopped after") && strstr(t.log, "grow"),
                  "%s", t.log);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- simplify on the golden files ------------------------------------------------------------ */
enum { RULES_MAX = 256 };
static uint32_t fired_rules[RULES_MAX], fired_views[RULES_MAX], fired_shapes[RULES_MAX];

static void golden_simplify(struct test_env *t, struct graph *g, const char *file) {
    struct graph *before = graph_clone(g), *rows = graph_clone(g);
    cases_run(t, pass_simplify, g);
    cases_same(t, before, g, 1e-6, file);
    cases_idempotent(t, pass_simplify, g, file);
    /* each table alone as well: what fires, and that no table leans on another to be right */
    struct rewrite_set set[3] = {{.pass = "rows"}, {.pass = "views"}, {.pass = "shapes"}};
    uint32_t *fired[3] = {fired_rules, fired_views, fired_shapes};
    set[0].rules = simplify_rules(&set[0].nrules);
    set[1].fns = simplify_view_rules(&set[1].nfns);
    set[2].fns = simplify_shape_rules(&set[2].nfns);
    for (int k = 0; k < 3; k++) {
        struct graph *h = graph_clone(rows);
        struct arena scratch;
        arena_init(&scratch, &t->ctx);
        struct pass_ctx c = {.ctx = &t->ctx, .scratch = &scratch};
        ck_assert_int_eq(rewrite_run(&c, h, &set[k], fired[k]), ST_OK);
        ck_assert_int_eq(graph_verify(h, set[k].pass), ST_OK);
        cases_same(t, before, h, 1e-6, file);
        arena_reset(&scratch);
        graph_destroy(h);
    }
    graph_destroy(before);
    graph_destroy(rows);
}

START_TEST(golden_keeps_meaning_and_covers) {
    struct test_env t;
    int n;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(cases_golden(&t, "simplify", golden_simplify) > 10,
                  "run from the root of the repository");
    const struct rule *r = simplify_rules(&n);
    for (int k = 0; k < n; k++)
        ck_assert_msg(fired_rules[k] > 0, "no golden file needs rule %s", r[k].name);
    const struct rewrite_fn *f = simplify_view_rules(&n);
    for (int k = 0; k < n; k++)
        ck_assert_msg(fired_views[k] > 0, "no golden file needs rule %s", f[k].name);
    f = simplify_shape_rules(&n);
    for (int k = 0; k < n; k++)
        ck_assert_msg(fired_shapes[k] > 0, "no golden file needs rule %s", f[k].name);
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

/* ---- simplify on random graphs --------------------------------------------------------------- */
struct maker {
    struct graph *g;
    uint32_t state;
    val_id vals[64];
    int n;
};

static uint32_t pick(struct maker *m, uint32_t n) {
    return cases_random(&m->state) % n;
}

static const double numbers[] = {0, 1, -1, 2, 0.5, -0.5, 3, 4, 8, 0.25, 1.5};

static val_id any(struct maker *m) {
    return m->vals[pick(m, (uint32_t)m->n)];
}

/* A constant that broadcasts with v: scalar, of its shape, or of its last axis. */
static val_id constant(struct maker *m, val_id v) {
    struct type t = *val_type(m->g, v);
    double x = numbers[pick(m, sizeof numbers / sizeof numbers[0])];
    switch (pick(m, 3)) {
    case 0: return build_scalar(m->g, t.dtype, x, (str_id){0});
    case 1: return build_full(m->g, &t, x, (str_id){0});
    default: {
        struct type last = {.dtype = t.dtype, .rank = 1, .dims = {t.rank ? t.dims[t.rank - 1] : 1}};
        if (t.rank == 0) last.rank = 0;
        return build_full(m->g, &last, x, (str_id){0});
    }
    }
}

static val_id other(struct maker *m, val_id v) {
    struct type both;
    for (int k = 0; k < 8; k++) {
        val_id w = any(m);
        if (type_broadcast(val_type(m->g, v), val_type(m->g, w), &both) && type_count(&both) < 500)
            return w;
    }
    return constant(m, v);
}

static val_id elementwise(struct maker *m, val_id v) {
    static const enum op one[] = {OP_neg, OP_abs, OP_tanh, OP_relu, OP_sigmoid, OP_recip};
    static const enum op two[] = {OP_add, OP_sub, OP_mul, OP_max, OP_min, OP_div};
    str_id o = {0};
    val_id w = pick(m, 2) ? constant(m, v) : other(m, v);
    switch (pick(m, 5)) {
    case 0: return build_1(m->g, one[pick(m, 6)], v, o);
    case 1: return build_2(m->g, two[pick(m, 5)], w, v, o);
    case 2: {
        val_id c = build_2(m->g, pick(m, 2) ? OP_lt : OP_ne, v, w, o);
        if (pick(m, 2)) c = build_1(m->g, OP_not, c, o);
        return build_3(m->g, OP_where, c, v, w, o);
    }
    case 3: {
        static const double powers[] = {0, 1, 2, 3};
        double p = powers[pick(m, 4)];
        return build_2(m->g, OP_pow, v, build_scalar(m->g, DT_f32, p, o), o);
    }
    default: return build_2(m->g, two[pick(m, 6)], v, w, o);
    }
}

static val_id reshaped(struct maker *m, val_id v) {
    struct type t = *val_type(m->g, v);
    dim shape[RANK_MAX];
    int rank = 0;
    int64_t count = type_count(&t);
    switch (pick(m, 3)) {
    case 0: return build_reshape(m->g, v, &count, 1, (str_id){0});
    case 1: /* merge two axes, or add one of size 1 */
        for (int k = 0; k < t.rank; k++) shape[rank++] = t.dims[k];
        if (rank >= 2 && pick(m, 2)) {
            shape[0] *= shape[1];
            for (int k = 1; k + 1 < rank; k++) shape[k] = shape[k + 1];
            return build_reshape(m->g, v, shape, rank - 1, (str_id){0});
        }
        if (rank >= 5) return v;
        shape[rank++] = 1;
        return build_reshape(m->g, v, shape, rank, (str_id){0});
    default: /* drop axes of size 1; put one in front */
        if (t.rank >= 5) return v;
        shape[rank++] = 1;
        for (int k = 0; k < t.rank; k++)
            if (t.dims[k] != 1) shape[rank++] = t.dims[k];
        return build_reshape(m->g, v, shape, rank, (str_id){0});
    }
}

static val_id sliced(struct maker *m, val_id v) {
    struct type t = *val_type(m->g, v);
    dim starts[RANK_MAX] = {0};
    int64_t steps[RANK_MAX];
    for (int k = 0; k < t.rank; k++) {
        steps[k] = 1;
        if (t.dims[k] < 2 || pick(m, 2)) continue;
        int64_t size = 1 + (int64_t)pick(m, (uint32_t)t.dims[k]);
        starts[k] = (int64_t)pick(m, (uint32_t)(t.dims[k] - size + 1));
        if (pick(m, 3) == 0 && size == t.dims[k]) {
            starts[k] = size - 1;
            steps[k] = -1;
        }
        t.dims[k] = size;
    }
    return build_slice(m->g, v, starts, t.dims, steps, (str_id){0});
}

static val_id padded(struct maker *m, val_id v) {
    struct type t = *val_type(m->g, v);
    int64_t low[RANK_MAX] = {0}, high[RANK_MAX] = {0}, zero[RANK_MAX] = {0};
    if (t.rank == 0) return v;
    uint32_t axis = pick(m, (uint32_t)t.rank);
    low[axis] = pick(m, 3);
    high[axis] = pick(m, 3);
    struct attr attrs[] = {{.key = ATTR_low, .list = low, .n = t.rank},
                           {.key = ATTR_high, .list = high, .n = t.rank},
                           {.key = ATTR_interior, .list = zero, .n = t.rank}};
    return graph_add(m->g, OP_pad, &v, 1, attrs, 3, (str_id){0});
}

static val_id moved(struct maker *m, val_id v) {
    struct type t = *val_type(m->g, v);
    int64_t perm[RANK_MAX], axes[RANK_MAX];
    int n = 0;
    switch (pick(m, 7)) {
    case 0: return reshaped(m, v);
    case 1: return sliced(m, v);
    case 2: return padded(m, v);
    case 3:
        for (int k = 0; k < t.rank; k++) perm[k] = k;
        for (int k = t.rank - 1; k > 0; k--) {
            uint32_t j = pick(m, (uint32_t)k + 1);
            int64_t p = perm[k];
            perm[k] = perm[j];
            perm[j] = p;
        }
        return build_transpose(m->g, v, perm, (str_id){0});
    case 4:
        for (int k = 0; k < t.rank; k++)
            if (t.dims[k] == 1 && pick(m, 2)) t.dims[k] = 3;
        if (t.rank < 4 && pick(m, 2)) {
            for (int k = t.rank; k > 0; k--) t.dims[k] = t.dims[k - 1];
            t.dims[0] = 2;
            t.rank++;
        }
        if (type_count(&t) > 500) return v;
        return build_expand(m->g, v, t.dims, t.rank, (str_id){0});
    case 5: {
        static const enum op ops[] = {OP_reduce_sum, OP_reduce_mean, OP_reduce_max, OP_reduce_min};
        for (int k = 0; k < t.rank; k++)
            if (pick(m, 2)) axes[n++] = k;
        return build_reduce(m->g, ops[pick(m, 4)], v, axes, n, pick(m, 2), (str_id){0});
    }
    default: {
        val_id two[] = {v, v};
        if (t.rank == 0 || type_count(&t) > 200) return v;
        return build_concat(m->g, two, 1 + (int)pick(m, 2), pick(m, (uint32_t)t.rank), (str_id){0});
    }
    }
}

static val_id product(struct maker *m, val_id v) {
    struct type t = *val_type(m->g, v);
    if (t.rank < 2) return v;
    val_id w = pick(m, 2) ? build_swap_last(m->g, v, (str_id){0}) : v;
    /* v v' whatever w is */
    return build_matmul(m->g, v, w, false, w.i == v.i, (str_id){0});
}

static struct graph *random_graph(struct test_env *t, uint32_t seed) {
    struct maker m = {.g = graph_create(&t->ctx, "random"), .state = seed * 2654435761u + 1};
    struct type shapes[] = {{.dtype = DT_f32, .rank = 3, .dims = {2, 3, 4}},
                            {.dtype = DT_f32, .rank = 2, .dims = {3, 1}},
                            {.dtype = DT_f32, .rank = 4, .dims = {1, 2, 1, 3}}};
    for (int k = 0; k < 3; k++) {
        char name[8] = {(char)('a' + k), 0};
        struct attr attr = {.key = ATTR_name, .s = name};
        m.vals[m.n++] = graph_source(m.g, OP_input, &shapes[k], &attr, 1, (str_id){0});
    }
    for (int k = 0; k < 25; k++) {
        val_id v = pick(&m, 3) ? m.vals[m.n - 1] : any(&m);
        uint32_t what = pick(&m, 10);
        val_id y = what < 4 ? elementwise(&m, v) : what < 9 ? moved(&m, v) : product(&m, v);
        int64_t count = type_count(val_type(m.g, y));
        if (count > 0 && count < 600) m.vals[m.n++] = y;
    }
    graph_add_output(m.g, "y", m.vals[m.n - 1]);
    graph_add_output(m.g, "z", any(&m));
    graph_settle(m.g);
    return m.g;
}

START_TEST(random_graphs_keep_their_meaning) {
    for (uint32_t k = 0; k < 400; k++) {
        struct test_env t;
        char what[32];
        uint32_t seed = (uint32_t)_i * 400 + k;
        test_begin(&t);
        TEST_LANDING(&t);
        snprintf(what, sizeof what, "seed %u", seed);
        struct graph *g = random_graph(&t, seed), *before = graph_clone(g);
        cases_run(&t, pass_simplify, g);
        cases_same(&t, before, g, 1e-6, what);
        cases_idempotent(&t, pass_simplify, g, what);
        TEST_EXPECT(t.log[0] == '\0');
        graph_destroy(g);
        graph_destroy(before);
        test_end(&t);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("rewrite");
    TCase *c = tcase_create("rewrite");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, tables_are_sound);
    tcase_add_test(c, bad_rules_are_named);
    tcase_add_test(c, commutes_and_backtracks);
    tcase_add_test(c, types_are_kept);
    tcase_add_test(c, endless_rules_are_stopped);
    tcase_add_test(c, golden_keeps_meaning_and_covers);
    tcase_add_loop_test(c, random_graphs_keep_their_meaning, 0, 5);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
