// SPDX-License-Identifier: Apache-2.0
/* test_own_step.c - models that bring their own training step: what is imported, what it computes
 * against the formulas written out here, 8-bit states, and what is refused. */
#include "import_run.h"

enum { ROWS = 2, SIZE = 3 };
static const int64_t dx[] = {ROWS, SIZE}, dw[] = {SIZE, 1}, dt[] = {ROWS, 1};
static const float w_first[SIZE] = {0.5f, -1, 2}, zeros[SIZE] = {0};

/* Parts of the model that a test may replace; NULL: as in `usual`. */
struct parts {
    const char *opt, *in, *out; /* the optimizer */
    const char *xs, *zs, *y;
    const char *bind; /* pairs */
    const char *more; /* name of one more initializer of the algorithm */
    int steps;
    bool no_algorithm;
};
static const struct parts usual = {"Adam", "R T w dw m v",        "w1 m1 v1", "w", "x t",
                                   "L",    "w w1 m m1 v v1 T T1", NULL,       1,   false};

static struct buf training_node(const char *op, const char *in, const char *out) {
    struct buf b = node(op, op, in, out);
    pb_str(&b, 7, "ai.onnx.preview.training");
    return b;
}

static void with_names(struct buf *n, const char *name, const char *list) {
    struct buf a = pb_attribute(A, name, 8);
    pb_names(&a, 9, list);
    pb_msg(n, 5, a);
}

static void with_text(struct buf *n, const char *name, const char *s) {
    struct buf a = pb_attribute(A, name, 3);
    pb_str(&a, 4, s);
    pb_msg(n, 5, a);
}

static struct buf algorithm(const struct parts *p) {
    const int64_t one = 1, first = 1;
    struct buf g = pb(A),
               grad = training_node("Gradient", arena_printf(A, "%s %s", p->xs, p->zs), "dw"),
               mean = node("ReduceMean", "mean", "q", "L"),
               opt = training_node(p->opt, p->in, p->out);
    with_names(&grad, "xs", p->xs);
    if (*p->zs) with_names(&grad, "zs", p->zs);
    if (*p->y) with_text(&grad, "y", p->y);
    with_int(&mean, "keepdims", 0);
    if (strcmp(p->opt, "Momentum") == 0) {
        with_text(&opt, "mode", "standard");
        with_float(&opt, "alpha", 0.5f);
        with_float(&opt, "beta", 1.0f);
    }
    pb_msg(&g, 1, grad); /* before what it differentiates: not sorted */
    pb_msg(&g, 1, node("Sub", "e", "p t", "e"));
    pb_msg(&g, 1, node("Mul", "q", "e e", "q"));
    pb_msg(&g, 1, mean);
    pb_msg(&g, 1, opt);
    pb_msg(&g, 1, node("Add", "count", "T one", "T1"));
    pb_msg(&g, 5, floats("m", 2, dw, zeros));
    pb_msg(&g, 5, floats("v", 2, dw, zeros));
    pb_msg(&g, 5, ints("T", -1, &first));
    pb_msg(&g, 5, ints("one", -1, &one));
    if (p->more) pb_msg(&g, 5, floats(p->more, 2, dw, w_first));
    input(&g, "t", 1, 2, dt);
    input(&g, "R", 1, 0, NULL);
    output(&g, "L");
    pb_str(&g, 2, "algorithm");
    return g;
}

static struct buf own_model(const struct parts *p) {
    struct buf g = pb(A), b;
    pb_msg(&g, 1, node("MatMul", "mm", "x w", "p"));
    pb_msg(&g, 5, floats("w", 2, dw, w_first));
    input(&g, "x", 1, 2, dx);
    output(&g, "p");
    b = model_bytes(g);
    for (int k = 0; k < p->steps; k++) {
        struct buf t = pb(A);
        if (!p->no_algorithm) pb_msg(&t, 2, algorithm(p));
        char *list = arena_strdup(A, p->bind), *save = NULL;
        for (char *key = strtok_r(list, " ", &save); key; key = strtok_r(NULL, " ", &save)) {
            struct buf e = pb(A);
            pb_str(&e, 1, key);
            pb_str(&e, 2, strtok_r(NULL, " ", &save));
            pb_msg(&t, 4, e);
        }
        pb_msg(&b, 20, t);
    }
    return b;
}

static void import_own(const struct parts *p, bool training) {
    struct import_options o = {.training = training};
    enum status st = try_import(own_model(p), &o);
    ck_assert_msg(st == ST_OK, "import: %s", env.log);
}

/* ---- structure ---------------------------------------------------------------------------------
 */
static val_id updated(const char *name) {
    const struct graph *g = R.graph;
    for (uint32_t i = 0; i < g->updates.n; i++) {
        val_id v = g->updates.at[i].target;
        if (strcmp(attr_str(g, val_def(g, v), ATTR_name), name) == 0) return v;
    }
    return VAL_NONE;
}

START_TEST(a_step_becomes_updates) {
    TEST_LANDING(&env);
    import_own(&usual, true);
    const struct graph *g = R.graph;
    ck_assert_uint_eq(g->updates.n, 4);
    ck_assert_int_eq(val_op(g, updated("w")), OP_param);
    ck_assert_int_eq(val_op(g, updated("m")), OP_state);
    ck_assert_int_eq(val_op(g, updated("v")), OP_state);
    ck_assert_int_eq(val_op(g, updated("T")), OP_state);
    ck_assert_uint_eq(attr_blob(g, val_def(g, updated("m")), ATTR_init).i, 0); /* zeros */
    ck_assert_uint_ne(attr_blob(g, val_def(g, updated("T")), ATTR_init).i, 0);
    ck_assert_str_eq(attr_str(g, val_def(g, graph_find(g, "R")), ATTR_role), "lr");
    ck_assert_int_eq(ops(OP_gradient), 1);
    ck_assert_int_eq(ops(OP_adam), 1);
    decided("w", "trained");
    ck_assert_int_eq((int)R.nparams, 1);
    done();
}
END_TEST

START_TEST(inference_leaves_the_step_out) {
    TEST_LANDING(&env);
    import_own(&usual, false);
    ck_assert_uint_eq(R.graph->updates.n, 0);
    ck_assert_int_eq(ops(OP_gradient) + ops(OP_adam), 0);
    ck_assert_int_eq(ops(OP_input), 1);
    done();
}
END_TEST

/* ---- numbers -----------------------------------------------------------------------------------
 */
static void start(struct run *r, const struct parts *parts, const struct recipe *recipe) {
    import_own(parts, true);
    run_start(r, true, recipe);
}

static const float x_data[ROWS][SIZE] = {{1, 2, -1}, {0.5f, -3, 2}}, t_data[ROWS] = {1, -2};

/* The loss at w, and its gradient. */
static double loss_at(const double *w, double *d) {
    double sum = 0;
    memset(d, 0, SIZE * sizeof *d);
    for (int i = 0; i < ROWS; i++) {
        double e = -(double)t_data[i];
        for (int k = 0; k < SIZE; k++) e += (double)x_data[i][k] * w[k];
        sum += e * e / ROWS;
        for (int k = 0; k < SIZE; k++) d[k] += 2 * e * (double)x_data[i][k] / ROWS;
    }
    return sum;
}

static void feed(struct run *r) {
    memcpy(run_memory(r, BUF_INPUT, "x"), x_data, sizeof x_data);
    memcpy(run_memory(r, BUF_INPUT, "t"), t_data, sizeof t_data);
    *(float *)run_memory(r, BUF_INPUT, "R") = 0.05f;
}

START_TEST(losses_and_weights_follow_the_formulas) {
    struct parts momentum = usual;
    momentum.opt = "Momentum", momentum.in = "R T w dw m", momentum.out = "w1 m1";
    momentum.bind = "w w1 m m1 T T1";
    TEST_LANDING(&env);
    for (int kind = 0; kind < 2; kind++) {
        struct run r;
        double w[SIZE], m[SIZE] = {0}, v[SIZE] = {0}, d[SIZE];
        start(&r, kind ? &momentum : &usual, NULL);
        feed(&r);
        for (int k = 0; k < SIZE; k++) w[k] = (double)w_first[k];
        for (int t = 1; t <= 8; t++) {
            ck_assert_int_eq(run_once(&r), ST_OK);
            double loss = loss_at(w, d), norm = 0;
            double a = (double)0.9f, b = (double)0.999f, eps = (double)1e-6f, lr = (double)0.05f;
            ck_assert_double_eq_tol((double)*(float *)run_memory(&r, BUF_OUTPUT, "loss"), loss,
                                    2e-5);
            for (int k = 0; k < SIZE; k++) {
                norm += d[k] * d[k];
                m[k] = kind ? 0.5 * m[k] + d[k] : a * m[k] + (1 - a) * d[k];
                v[k] = b * v[k] + (1 - b) * d[k] * d[k];
                double by = sqrt(1 - pow(b, t)) / (1 - pow(a, t)) * m[k] / (sqrt(v[k]) + eps);
                if (kind) by = m[k];
                w[k] -= lr * by;
                ck_assert_double_eq_tol((double)((float *)run_memory(&r, BUF_PARAM, "w"))[k], w[k],
                                        1e-5);
            }
            ck_assert_double_eq_tol((double)*(float *)run_memory(&r, BUF_OUTPUT, "grad_norm"),
                                    sqrt(norm), 1e-4);
            ck_assert_int_eq(*(int64_t *)run_memory(&r, BUF_STATE, "T"), t + 1);
        }
        run_stop(&r);
    }
}
END_TEST

START_TEST(states_are_kept_in_8_bits) {
    static const char text[] = "state.m = e4m3 expand\nstate.v = e4m3 expand";
    struct recipe recipe;
    struct run r;
    double w[SIZE], d[SIZE];
    TEST_LANDING(&env);
    ck_assert_int_eq(recipe_parse(&env.ctx, A, "r", text, strlen(text), &recipe), ST_OK);
    start(&r, &usual, &recipe);
    feed(&r);
    uint32_t steps = 0;
    for (uint32_t k = 0; k < r.p->launches.n; k++)
        steps += r.p->launches.at[k].kind == LAUNCH_adam8;
    ck_assert_uint_eq(steps, 1);
    ck_assert_int_eq(val_type(r.g, graph_find(r.g, "m"))->dtype, DT_e4m3);
    for (int k = 0; k < SIZE; k++) w[k] = (double)w_first[k];
    double first = loss_at(w, d);
    for (int t = 0; t < 40; t++) ck_assert_int_eq(run_once(&r), ST_OK);
    ck_assert_double_lt((double)*(float *)run_memory(&r, BUF_OUTPUT, "loss"), first / 10);
    run_stop(&r);
}
END_TEST

/* ---- what is refused ---------------------------------------------------------------------------
 */
START_TEST(wrong_steps_are_refused) {
    static const struct {
        struct parts p;
        const char *told;
    } cases[] = {
        {{.steps = 2}, "2 training steps; only one"},
        {{.no_algorithm = true}, "no algorithm or binds nothing"},
        {{.bind = ""}, "no algorithm or binds nothing"},
        {{.bind = "nobody w1"}, "expected the name of an initializer"},
        {{.bind = "x w1"}, "expected the name of an initializer"},
        {{.bind = "w w1 w m1"}, "bound twice"},
        {{.bind = "w nobody"}, "nothing defines its new value 'nobody'"},
        {{.bind = "w T1"}, "not of the variable's type"},
        {{.bind = "w w1 m v"}, "the new value must be computed"},
        {{.bind = "w w1 m w"}, "the new value must be computed"},
        {{.bind = "m m1"}, "binds no initializer that a Gradient node differentiates by"},
        {{.xs = "x", .zs = "w t"}, "binds no initializer that a Gradient node differentiates by"},
        {{.y = "nobody"}, "differentiates 'nobody', which nothing before it can define"},
        {{.y = ""}, "or no y"},
        {{.y = "dw"}, "differentiates 'dw', which nothing"},
        {{.in = "R T w dw m"}, "5 inputs, expected 2 and 4"},
        {{.in = "R T w p m v"}, "must be of one type"},
        {{.in = "R w w dw m v"}, "T must be one number"},
        {{.in = "R R w dw m v"}, "T must be an int64"},
        {{.more = "w"}, "'w' is already defined"},
        {{.more = "p"}, "'p' is already defined"},
        {{.xs = "w m", .bind = "w w1 T T1"}, "derivatives by what is computed or constant"},
    };
    TEST_LANDING(&env);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct parts p = usual;
        const struct parts *c = &cases[k].p;
        if (c->in) p.in = c->in;
        if (c->xs) p.xs = c->xs;
        if (c->zs) p.zs = c->zs;
        if (c->y) p.y = c->y;
        if (c->bind) p.bind = c->bind;
        if (c->more) p.more = c->more;
        if (c->steps) p.steps = c->steps;
        p.no_algorithm = c->no_algorithm;
        struct import_options o = {.training = true};
        struct buf bytes = own_model(&p);
        env.log[0] = 0;
        enum status st = onnx_load_memory(&env.ctx, bytes.at, bytes.n, NULL, "test.onnx", &M);
        if (st == ST_OK) {
            st = onnx_import(M, &o, &R);
            ck_assert_msg(st != ST_OK, "case %zu was taken", k);
            done();
        }
        ck_assert_msg(strstr(env.log, cases[k].told) != NULL, "case %zu: %s", k, env.log);
        ck_assert_int_eq(errors_logged(), 1);
    }
}
END_TEST

START_TEST(the_users_choices_do_not_apply) {
    TEST_LANDING(&env);
    struct import_options o = {.training = true, .freeze_regex = "w"};
    ck_assert_int_eq(try_import(own_model(&usual), &o), ST_USAGE);
    ck_assert(strstr(env.log, "says what is trained") != NULL);
    done();
}
END_TEST

int main(void) {
    Suite *s = suite_create("own_step");
    TCase *c = tcase_create("all");
    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, a_step_becomes_updates);
    tcase_add_test(c, inference_leaves_the_step_out);
    tcase_add_test(c, losses_and_weights_follow_the_formulas);
    tcase_add_test(c, states_are_kept_in_8_bits);
    tcase_add_test(c, wrong_steps_are_refused);
    tcase_add_test(c, the_users_choices_do_not_apply);
    suite_add_tcase(s, c);
    return run_suite(s);
}
