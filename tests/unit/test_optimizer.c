// SPDX-License-Identifier: Apache-2.0
/* test_optimizer.c - pass_optimizer: several steps of a small least-squares problem run through the
 * reference evaluator and compared with the formulas of PyTorch's documentation written out;
 * clipping, the reported norm, accumulation, names, messages. */
#include "passes/pass.h"
#include "ref_eval.h"
#include "test_util.h"

enum { N = 3, STEPS = 4 };

/* loss = sum(c * (w - x)^2) with gradient 2c(w - x), and a second parameter that is frozen. */
static const double w0[N] = {1, -2, 0.5}, coef[N] = {0.5, 1.5, 2};

struct fixture {
    struct test_env t;
    struct graph *g;
    struct train_options train;
    struct pass_ctx c;
};

static val_id param(struct graph *g, const char *name, enum dtype dt, const double *v,
                    bool frozen) {
    struct type t = {.dtype = dt, .rank = 1, .dims = {N}};
    size_t size = dtype_size(dt);
    char *bytes = ARENA_ARRAY(&g->arena, char, N *size);
    for (int i = 0; i < N; i++) dtype_store(dt, bytes + (size_t)i * size, v[i]);
    struct attr attrs[3] = {{.key = ATTR_name, .s = name},
                            {.key = ATTR_init, .blob = graph_blob(g, bytes, N * size, false)},
                            {.key = ATTR_frozen, .i = frozen}};
    val_id p = graph_source(g, OP_param, &t, attrs, 3, intern(&g->strings, name));
    graph_set_name(g, p, name);
    return p;
}

static void start(struct fixture *f, enum dtype dt) {
    memset(f, 0, sizeof *f);
    test_begin(&f->t);
    f->train = (struct train_options){
        .accumulate = 1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .label_type = {.rank = -1}};
    f->c = (struct pass_ctx){.ctx = &f->t.ctx, .scratch = &f->t.arena, .train = &f->train};
    if (setjmp(f->t.landing)) ck_abort_msg("unwound: %s", f->t.log);
    struct graph *g = f->g = graph_create(&f->t.ctx, "test");
    str_id o = intern(&g->strings, "head");
    struct type t = {.dtype = dt, .rank = 1, .dims = {N}};
    struct attr name = {.key = ATTR_name, .s = "x"};
    int64_t axis = 0;
    val_id w = param(g, "w", dt, w0, false), k = param(g, "k", dt, coef, true);
    val_id d = build_2(g, OP_sub, w, graph_source(g, OP_input, &t, &name, 1, o), o);
    d = build_2(g, OP_mul, k, build_2(g, OP_mul, d, d, o), o);
    d = build_cast(g, build_reduce(g, OP_reduce_sum, d, &axis, 1, false, o),
                   dt == DT_f64 ? DT_f64 : DT_f32, o);
    graph_add_output(g, "loss", d);
}

static void compile(struct fixture *f) {
    if (setjmp(f->t.landing)) ck_abort_msg("unwound: %s", f->t.log);
    ck_assert_msg(pass_grad(&f->c, f->g) == ST_OK, "%s", f->t.log);
    ck_assert_msg(pass_optimizer(&f->c, f->g) == ST_OK, "%s", f->t.log);
    ck_assert_msg(graph_verify(f->g, "optimizer") == ST_OK, "%s", f->t.log);
}

static void finish(struct fixture *f) {
    graph_destroy(f->g);
    test_end(&f->t);
}

/* What persists between runs, by the name of the source. */
enum { KEPT_MAX = 16 };
struct memory {
    struct {
        const char *name;
        double v[N];
        bool set;
    } kept[KEPT_MAX];
    int n;
    double x[N], lr;
};

static bool feed(void *user, const char *name, double *at, int64_t n) {
    const struct memory *m = user;
    if (strcmp(name, "lr") == 0) at[0] = m->lr;
    if (strcmp(name, "x") == 0) memcpy(at, m->x, sizeof m->x);
    if (strcmp(name, "lr") == 0 || strcmp(name, "x") == 0) return true;
    for (int k = 0; k < m->n; k++)
        if (strcmp(m->kept[k].name, name) == 0) {
            memcpy(at, m->kept[k].v, (size_t)n * sizeof *at);
            return true;
        }
    return false;
}

/* One run; updates are applied at its end. */
static struct ref *run(struct fixture *f, struct memory *m) {
    struct ref *vals = ref_eval(f->g, &f->t.arena, feed, m);
    for (uint32_t i = 0; i < f->g->updates.n; i++) {
        struct graph_update u = f->g->updates.at[i];
        const char *name = attr_str(f->g, val_def(f->g, u.target), ATTR_name);
        struct ref next = vals[graph_resolve(f->g, u.next).i];
        int k = 0;
        while (k < m->n && strcmp(m->kept[k].name, name) != 0) k++;
        if (k == m->n) m->n++;
        ck_assert_int_le(m->n, KEPT_MAX);
        m->kept[k].name = name;
        memcpy(m->kept[k].v, next.at, (size_t)next.n * sizeof(double));
    }
    return vals;
}

static const double *kept(const struct memory *m, const char *name) {
    for (int k = 0; k < m->n; k++)
        if (strcmp(m->kept[k].name, name) == 0) return m->kept[k].v;
    ck_abort_msg("nothing kept as '%s'", name);
    return NULL;
}

static void set_batch(struct memory *m, int step) {
    for (int i = 0; i < N; i++) m->x[i] = sin(3.0 * step + i);
    m->lr = 0.1 / (1 + step);
}

static void check_near(const double *got, const double *want, const char *what) {
    for (int i = 0; i < N; i++)
        ck_assert_msg(fabs(got[i] - want[i]) < 1e-9, "%s[%d] is %.15g, expected %.15g", what, i,
                      got[i], want[i]);
}

static double slope(const struct memory *m, const double *w, int i) {
    return 2 * coef[i] * (w[i] - m->x[i]);
}

/* ---- formulas ------------------------------------------------------------------------------ */
static void run_adam(bool decoupled) {
    struct fixture f;
    struct memory m = {0};
    start(&f, DT_f64);
    f.train.optimizer = decoupled ? OPT_ADAMW : OPT_ADAM;
    f.train.weight_decay = 0.1;
    compile(&f);
    double w[N], am[N] = {0}, av[N] = {0};
    memcpy(w, w0, sizeof w);
    for (int s = 1; s <= STEPS; s++) {
        set_batch(&m, s);
        run(&f, &m);
        for (int i = 0; i < N; i++) {
            double d = slope(&m, w, i) + (decoupled ? 0 : 0.1 * w[i]);
            if (decoupled) w[i] *= 1 - m.lr * 0.1;
            am[i] += 0.1 * (d - am[i]);
            av[i] = 0.95 * av[i] + 0.05 * d * d;
            double mh = am[i] / (1 - pow(0.9, s)), vh = av[i] / (1 - pow(0.95, s));
            w[i] -= m.lr * mh / (sqrt(vh) + 1e-8);
        }
        check_near(kept(&m, "w"), w, "w");
        check_near(kept(&m, "w.m"), am, "w.m");
        check_near(kept(&m, "w.v"), av, "w.v");
        ck_assert_double_eq(kept(&m, "step")[0], s);
    }
    finish(&f);
}

START_TEST(test_adam) {
    run_adam(false);
}
END_TEST

START_TEST(test_adamw) {
    run_adam(true);
}
END_TEST

static void run_sgd(double momentum, double dampening, bool nesterov) {
    struct fixture f;
    struct memory m = {0};
    start(&f, DT_f64);
    f.train.optimizer = OPT_SGD;
    f.train.weight_decay = 0.2;
    f.train.momentum = momentum;
    f.train.dampening = dampening;
    f.train.nesterov = nesterov;
    compile(&f);
    double w[N], buf[N] = {0};
    memcpy(w, w0, sizeof w);
    for (int s = 1; s <= STEPS; s++) {
        set_batch(&m, s);
        run(&f, &m);
        for (int i = 0; i < N; i++) {
            double d = slope(&m, w, i) + 0.2 * w[i];
            buf[i] = s == 1 ? d : momentum * buf[i] + (1 - dampening) * d;
            w[i] -= m.lr * (momentum == 0 ? d : nesterov ? d + momentum * buf[i] : buf[i]);
        }
        check_near(kept(&m, "w"), w, "w");
        if (momentum != 0) check_near(kept(&m, "w.buf"), buf, "w.buf");
    }
    for (int k = 0; k < m.n; k++)
        if (momentum == 0) ck_assert_str_ne(m.kept[k].name, "w.buf");
    finish(&f);
}

START_TEST(test_sgd) {
    run_sgd(0, 0, false);
}
END_TEST

START_TEST(test_momentum) {
    run_sgd(0.9, 0.3, false);
}
END_TEST

START_TEST(test_nesterov) {
    run_sgd(0.9, 0, true);
}
END_TEST

/* ---- norm, clipping, dumps ----------------------------------------------------------------- */
static void run_clip(double clip) {
    struct fixture f;
    struct memory m = {0};
    start(&f, DT_f64);
    f.train.optimizer = OPT_SGD;
    f.train.clip = clip;
    f.train.dump_grads = true;
    compile(&f);
    set_batch(&m, 1);
    struct ref *vals = run(&f, &m);
    double norm = 0, w[N], d[N];
    for (int i = 0; i < N; i++) {
        d[i] = slope(&m, w0, i);
        norm += d[i] * d[i];
    }
    norm = sqrt(norm);
    double k = fmin(1, clip / (norm + 1e-6));
    for (int i = 0; i < N; i++) w[i] = w0[i] - m.lr * k * d[i];
    /* constants of clipping are f32 */
    for (int i = 0; i < N; i++) ck_assert_double_eq_tol(kept(&m, "w")[i], w[i], 1e-7);
    ck_assert_double_eq_tol(ref_output(f.g, vals, "grad_norm").at[0], norm, 1e-12);
    check_near(ref_output(f.g, vals, "grad/w").at, d, "grad/w"); /* before clipping */
    finish(&f);
}

START_TEST(test_clip) {
    run_clip(0.25);
    run_clip(1000);
}
END_TEST

START_TEST(test_interface) {
    struct fixture f;
    start(&f, DT_bf16);
    f.train.optimizer = OPT_ADAMW;
    f.train.clip = 1;
    compile(&f);
    struct graph *g = f.g;
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    ck_assert_uint_eq(g->outputs.n, 2); /* loss, grad_norm: gradients are not kept */
    ck_assert_str_eq(interned(&g->strings, g->outputs.at[1].name), "grad_norm");
    ck_assert(type_equal(val_type(g, g->outputs.at[1].value), &f32));
    ck_assert_uint_eq(g->updates.n, 4); /* step, w, w.m, w.v */
    val_id lr = graph_find(g, "lr"), step = graph_find(g, "step"), v = graph_find(g, "w.v");
    ck_assert_str_eq(attr_str(g, val_def(g, lr), ATTR_role), "lr");
    ck_assert(type_equal(val_type(g, lr), &f32));
    ck_assert_str_eq(attr_str(g, val_def(g, step), ATTR_role), "step");
    ck_assert(type_equal(val_type(g, step), &i64));
    ck_assert_str_eq(attr_str(g, val_def(g, v), ATTR_role), "optimizer");
    ck_assert_int_eq(val_type(g, v)->dtype, DT_bf16);
    finish(&f);
}
END_TEST

/* ---- accumulation -------------------------------------------------------------------------- */
START_TEST(test_accumulate) {
    struct fixture f;
    struct memory m = {0};
    start(&f, DT_f64);
    f.train.optimizer = OPT_ADAMW;
    f.train.accumulate = 3;
    f.train.dump_grads = true;
    compile(&f);
    double w[N], sum[N] = {0}, am[N] = {0}, av[N] = {0};
    memcpy(w, w0, sizeof w);
    for (int run_no = 0; run_no < 6; run_no++) {
        set_batch(&m, run_no);
        m.lr = 0.1;
        struct ref *vals = run(&f, &m);
        for (int i = 0; i < N; i++) sum[i] += slope(&m, w, i) / 3; /* mean over the whole batch */
        check_near(ref_output(f.g, vals, "grad/w").at, sum, "grad/w");
        int s = (run_no + 1) / 3;
        for (int i = 0; run_no % 3 == 2 && i < N; i++) {
            am[i] = 0.9 * am[i] + 0.1 * sum[i];
            av[i] = 0.95 * av[i] + 0.05 * sum[i] * sum[i];
            w[i] -= 0.1 * am[i] / (1 - pow(0.9, s)) / (sqrt(av[i] / (1 - pow(0.95, s))) + 1e-8);
            sum[i] = 0;
        }
        check_near(kept(&m, "w"), w, "w");
        check_near(kept(&m, "w.acc"), sum, "w.acc");
        ck_assert_double_eq(kept(&m, "step")[0], s);
    }
    finish(&f);
}
END_TEST

/* ---- 8-bit states -------------------------------------------------------------------------- */
static uint32_t count_op(const struct graph *g, enum op op) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) n += graph_node(g, (node_id){i})->op == op;
    return n;
}

static const struct {
    const char *recipe;
    double beta2;
    int64_t accumulate;
    bool rewritten, stochastic;
    enum dtype m, v;
} small_cases[] = {
    {"state.m = e4m3 expand\nstate.v = e4m3 expand", 0.95, 1, true, false, DT_e4m3, DT_e4m3},
    {"state.m = e4m3 expand\nstate.v = e5m2 expand", 0.999, 1, true, true, DT_e4m3, DT_e5m2},
    {"state.m = e4m3 group 64\nstate.v = e4m3 group 64 nearest", 0.999, 3, true, false, DT_e4m3,
     DT_e4m3},
    {"state.v = e4m3 expand full stochastic", 0.95, 2, true, true, DT_f32, DT_e4m3},
    {"state.m = e5m2", 0.999, 1, true, false, DT_e5m2, DT_f32},
    {"state.m = e4m3\nstate.v = e4m3\nstate.wide = q, w", 0.95, 1, false, false, DT_f32, DT_f32},
    {"state.m = f32\nstate.v = f32", 0.95, 1, false, false, DT_f32, DT_f32},
};

START_TEST(test_small_states) {
    struct fixture f;
    struct recipe r;
    const char *text = small_cases[_i].recipe;
    start(&f, DT_f32);
    f.train.optimizer = OPT_ADAMW;
    f.train.beta2 = small_cases[_i].beta2;
    f.train.accumulate = small_cases[_i].accumulate;
    compile(&f);
    if (setjmp(f.t.landing)) ck_abort_msg("unwound: %s", f.t.log);
    ck_assert_msg(recipe_parse(&f.t.ctx, &f.t.arena, "r", text, strlen(text), &r) == ST_OK, "%s",
                  f.t.log);
    f.c.recipe = &r;
    uint32_t updates = f.g->updates.n;
    ck_assert_msg(pass_optimizer_states(&f.c, f.g) == ST_OK, "%s", f.t.log);
    ck_assert_msg(graph_verify(f.g, "optimizer_states") == ST_OK, "%s", f.t.log);
    const struct graph *g = f.g;
    bool rewritten = small_cases[_i].rewritten;
    ck_assert_uint_eq(count_op(g, OP_adam), !rewritten);
    ck_assert_uint_eq(count_op(g, OP_adam8), rewritten);
    ck_assert_uint_eq(g->updates.n, updates + (rewritten ? 4 : 0));
    ck_assert_int_eq(val_type(g, graph_find(g, "w.m"))->dtype, small_cases[_i].m);
    ck_assert_int_eq(val_type(g, graph_find(g, "w.v"))->dtype, small_cases[_i].v);
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (graph_node(g, (node_id){i})->op == OP_adam8) {
            ck_assert(attr_bool(g, (node_id){i}, ATTR_stochastic) == small_cases[_i].stochastic);
            ck_assert_double_eq(attr_float(g, (node_id){i}, ATTR_beta2), small_cases[_i].beta2);
        }
    if (rewritten) {
        const char *names[2] = {"w.m", "w.v"};
        for (int k = 0; k < 2; k++) {
            bool wide = (k ? small_cases[_i].v : small_cases[_i].m) == DT_f32;
            val_id amax = graph_find(g, arena_printf(&f.t.arena, "%s.amax", names[k]));
            val_id exponent = graph_find(g, arena_printf(&f.t.arena, "%s.k", names[k]));
            ck_assert_int_eq(type_count(val_type(g, amax)), !wide);
            ck_assert_int_eq(type_count(val_type(g, exponent)), !wide);
            ck_assert_int_eq(val_type(g, exponent)->dtype, DT_u8);
            ck_assert_double_eq(attr_float(g, val_def(g, exponent), ATTR_fill), 16);
            ck_assert_str_eq(attr_str(g, val_def(g, amax), ATTR_role), "optimizer");
        }
    }
    ck_assert(graph_settle(f.g) == false); /* nothing dead was left behind */
    finish(&f);
}
END_TEST

/* ---- names and messages -------------------------------------------------------------------- */
START_TEST(test_names_taken) {
    struct fixture f;
    start(&f, DT_f32);
    struct type t = type_scalar(DT_f32);
    struct attr name = {.key = ATTR_name, .s = "lr"};
    val_id own = graph_source(f.g, OP_input, &t, &name, 1, (str_id){0});
    graph_set_name(f.g, own, "lr");
    compile(&f);
    val_id lr = graph_find(f.g, "lr.1");
    ck_assert_uint_ne(lr.i, 0);
    ck_assert_str_eq(attr_str(f.g, val_def(f.g, lr), ATTR_name), "lr.1");
    ck_assert_str_eq(attr_str(f.g, val_def(f.g, lr), ATTR_role), "lr");
    finish(&f);
}
END_TEST

static void refuse(void (*change)(struct train_options *t), enum status want, const char *message) {
    struct fixture f;
    start(&f, DT_f32);
    change(&f.train);
    ck_assert_int_eq(pass_grad(&f.c, f.g), ST_OK);
    ck_assert_int_eq(pass_optimizer(&f.c, f.g), want);
    ck_assert_msg(strstr(f.t.log, message) != NULL, "%s", f.t.log);
    finish(&f);
}

static void bad_beta(struct train_options *t) {
    t->optimizer = OPT_ADAM;
    t->beta2 = 1;
}
static void bad_nesterov(struct train_options *t) {
    t->optimizer = OPT_SGD;
    t->nesterov = true;
}
static void bad_clip(struct train_options *t) {
    t->clip = NAN;
}
static void bad_accumulate(struct train_options *t) {
    t->accumulate = 0;
}

START_TEST(test_messages) {
    refuse(bad_beta, ST_USAGE, "below 1 and eps not negative, found 0.9, 1 and");
    refuse(bad_nesterov, ST_USAGE, "Nesterov momentum needs a momentum");
    refuse(bad_clip, ST_USAGE, "must not be negative");
    refuse(bad_accumulate, ST_USAGE, "must be 1 or more, found 0");
    struct fixture f;
    start(&f, DT_f32);
    ck_assert_int_eq(pass_optimizer(&f.c, f.g), ST_USAGE);
    ck_assert_ptr_nonnull(strstr(f.t.log, "error: w: parameter 'w' has no gradient output"));
    finish(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("optimizer");
    TCase *tc = tcase_create("optimizer");
    tcase_add_test(tc, test_adam);
    tcase_add_test(tc, test_adamw);
    tcase_add_test(tc, test_sgd);
    tcase_add_test(tc, test_momentum);
    tcase_add_test(tc, test_nesterov);
    tcase_add_test(tc, test_clip);
    tcase_add_test(tc, test_interface);
    tcase_add_test(tc, test_accumulate);
    tcase_add_loop_test(tc, test_small_states, 0, sizeof small_cases / sizeof small_cases[0]);
    tcase_add_test(tc, test_names_taken);
    tcase_add_test(tc, test_messages);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
