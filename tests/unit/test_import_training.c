// SPDX-License-Identifier: Apache-2.0
/* test_import_training.c - optimizer steps from files: ONNX Runtime's against the trajectories that
 * it tests itself with, ONNX's Adam against its formula at steps that the node tests leave out, and
 * what is refused. */
#include "import_run.h"
#include "optimizer_published.h"

enum { N = PUBLISHED_SIZE };
static const int64_t dn[] = {N}, d1[] = {1};

static struct buf ort_node(const char *op, const char *in, const char *out) {
    struct buf b = node(op, "step", in, out);
    pb_str(&b, 7, "com.microsoft");
    return b;
}

static void list_of(struct buf *g, const char *tensors, const char *list) {
    pb_msg(g, 1, node("SequenceConstruct", list, tensors, list));
}

static void item_of(struct buf *g, const char *list, const char *name) {
    char in[32];
    snprintf(in, sizeof in, "%s zero", list);
    pb_msg(g, 1, node("SequenceAt", name, in, name));
    output(g, name);
}

/* ---- running -----------------------------------------------------------------------------------
 */
static void start(struct run *r, struct buf g) {
    import(g, false);
    run_start(r, false, NULL);
}

static void feed(struct run *r, const char *name, const void *x) {
    memcpy(run_memory(r, BUF_INPUT, name), x, run_bytes(r, BUF_INPUT, name));
}

static void take(struct run *r, const char *name, void *x) {
    memcpy(x, run_memory(r, BUF_OUTPUT, name), run_bytes(r, BUF_OUTPUT, name));
}

static void go(struct run *r) {
    ck_assert_msg(run_once(r) == ST_OK, "run: %s", env.log);
}

static void close_to(const char *what, int step, const float *got, const float *want) {
    for (int i = 0; i < N; i++)
        ck_assert_msg(fabs((double)got[i] - (double)want[i]) <= 1e-7 + 2e-6 * fabs((double)want[i]),
                      "%s of step %d, element %d: %.9g, expected %.9g", what, step, i,
                      (double)got[i], (double)want[i]);
}

/* ---- ONNX Runtime ------------------------------------------------------------------------------
 */
/* AdamWOptimizer, step, over w, g, m, v of N elements; a signal when it has a name. */
static struct buf adamw_model(struct buf step) {
    const int64_t zero = 0;
    static const char *const tensors[] = {"w", "g", "m", "v"};
    struct buf g = pb(A);
    list_of(&g, "w", "ws");
    list_of(&g, "g", "gs");
    list_of(&g, "m", "ms");
    list_of(&g, "v", "vs");
    pb_msg(&g, 1, step);
    pb_msg(&g, 5, ints("zero", -1, &zero));
    for (int k = 0; k < 4; k++) input(&g, tensors[k], 1, 1, dn);
    input(&g, "lr", 1, 1, d1);
    input(&g, "step", 7, 1, d1);
    output(&g, "flag");
    item_of(&g, "ws2", "w2");
    item_of(&g, "ms2", "m2");
    item_of(&g, "vs2", "v2");
    return g;
}

static void follow_adamw(const struct published *p, int64_t mode, float eps, float decay) {
    struct run r;
    float w[N], m[N], v[N], lr = 1e-3f;
    struct buf step = ort_node("AdamWOptimizer", "lr step ws gs ms vs", "flag ws2 ms2 vs2");
    with_int(&step, "adam_mode", mode);
    with_float(&step, "epsilon", eps);
    with_float(&step, "weight_decay", decay);
    start(&r, adamw_model(step));
    memcpy(w, p->w[0], sizeof w), memcpy(m, p->m[0], sizeof m), memcpy(v, p->v[0], sizeof v);
    feed(&r, "lr", &lr);
    for (int64_t t = 1; t <= PUBLISHED_STEPS; t++) {
        bool flag = false;
        feed(&r, "w", w), feed(&r, "m", m), feed(&r, "v", v);
        feed(&r, "g", p->g[t - 1]);
        feed(&r, "step", &t);
        go(&r);
        take(&r, "w2", w), take(&r, "m2", m), take(&r, "v2", v);
        take(&r, "flag", &flag);
        ck_assert(flag);
        close_to("w", (int)t, w, p->w[t]);
        close_to("m", (int)t, m, p->m[t]);
        close_to("v", (int)t, v, p->v[t]);
    }
    ck_assert_int_eq(ops(OP_adam), 1);
    run_stop(&r);
}

START_TEST(adamw_is_onnx_runtimes) {
    TEST_LANDING(&env);
    follow_adamw(&adamw_torch, 0, 1e-8f, 1e-2f);
    follow_adamw(&adamw_hugging_face, 1, 1e-6f, 0.0f);
}
END_TEST

/* Where the two modes differ most: a large decay, a late and an early step. */
START_TEST(adamw_modes_differ_as_told) {
    const float lr = 0.05f, a = 0.9f, b = 0.999f, eps = 0.01f, wd = 0.5f;
    const float w[N] = {1, -2, 3, 0.5f, 0, 7}, g[N] = {0.1f, -0.2f, 0, 4, 1e-3f, -9};
    const float m[N] = {0.3f, 0, -0.1f, 1, 0, 2}, v[N] = {0.2f, 0, 1e-6f, 3, 1e-8f, 9};
    TEST_LANDING(&env);
    for (int64_t mode = 0; mode < 2; mode++)
        for (int64_t correct = 0; correct < 2; correct++)
            for (int64_t t = 1; t < 1000; t *= 30) {
                struct run r;
                float got[N], want[N];
                struct buf step =
                    ort_node("AdamWOptimizer", "lr step ws gs ms vs", "flag ws2 ms2 vs2");
                with_int(&step, "adam_mode", mode);
                with_int(&step, "correct_bias", correct);
                with_float(&step, "epsilon", eps);
                with_float(&step, "weight_decay", wd);
                start(&r, adamw_model(step));
                feed(&r, "w", w), feed(&r, "m", m), feed(&r, "v", v), feed(&r, "g", g);
                feed(&r, "lr", &lr), feed(&r, "step", &t);
                go(&r);
                take(&r, "w2", got);
                double ca = correct ? 1 - pow(a, (double)t) : 1;
                double cb = correct ? 1 - pow(b, (double)t) : 1;
                for (int i = 0; i < N; i++) {
                    double x = w[i], m1 = a * (double)m[i] + (1 - a) * (double)g[i];
                    double v1 = b * (double)v[i] + (1 - b) * (double)g[i] * g[i];
                    if (mode == 0) {
                        x -= lr * wd * x;
                        x -= lr * (m1 / ca) / (sqrt(v1 / cb) + eps);
                    } else {
                        x -= lr * sqrt(cb) / ca * m1 / (sqrt(v1) + eps);
                        x -= lr * wd * x;
                    }
                    want[i] = (float)x;
                }
                close_to(mode ? "mode 1" : "mode 0", (int)t, got, want);
                run_stop(&r);
            }
}
END_TEST

START_TEST(adamw_without_update_changes_nothing) {
    const bool no = false;
    const float lr = 0.1f, zero[N] = {0};
    const int64_t t = 3;
    float w[N], m[N];
    bool flag = true;
    struct run r;
    TEST_LANDING(&env);
    struct buf step = ort_node("AdamWOptimizer", "lr step ws gs ms vs go", "flag ws2 ms2 vs2");
    struct buf g = adamw_model(step);
    input(&g, "go", 9, 1, d1);
    start(&r, g);
    feed(&r, "w", adamw_torch.w[0]), feed(&r, "m", adamw_torch.m[3]), feed(&r, "v", zero);
    feed(&r, "g", adamw_torch.g[0]), feed(&r, "lr", &lr), feed(&r, "step", &t);
    feed(&r, "go", &no);
    go(&r);
    take(&r, "w2", w), take(&r, "m2", m), take(&r, "flag", &flag);
    ck_assert(!flag);
    ck_assert_mem_eq(w, adamw_torch.w[0], sizeof w);
    ck_assert_mem_eq(m, adamw_torch.m[3], sizeof m);
    run_stop(&r);
}
END_TEST

START_TEST(sgd_is_onnx_runtimes) {
    const int64_t zero = 0;
    const float lr = 1e-3f;
    float w[N];
    struct run r;
    TEST_LANDING(&env);
    struct buf g = pb(A);
    list_of(&g, "w", "ws");
    list_of(&g, "g", "gs");
    pb_msg(&g, 1, ort_node("SGDOptimizerV2", "lr ws gs", "flag ws2"));
    pb_msg(&g, 5, ints("zero", -1, &zero));
    input(&g, "w", 1, 1, dn);
    input(&g, "g", 1, 1, dn);
    input(&g, "lr", 1, 1, d1);
    item_of(&g, "ws2", "w2");
    start(&r, g);
    memcpy(w, sgd_plain.w[0], sizeof w);
    feed(&r, "lr", &lr);
    for (int t = 1; t <= PUBLISHED_STEPS; t++) {
        feed(&r, "w", w), feed(&r, "g", sgd_plain.g[t - 1]);
        go(&r);
        take(&r, "w2", w);
        close_to("w", t, w, sgd_plain.w[t]);
    }
    run_stop(&r);
}
END_TEST

/* The norm is that of both tensors together. */
START_TEST(gradients_are_clipped_together) {
    const int64_t at[] = {0, 1};
    const float x[N] = {3, 0, 0, 0, 0, 0}, y[N] = {0, 4, 0, 0, 0, 0};
    float got[N], want[N] = {0};
    struct run r;
    TEST_LANDING(&env);
    struct buf g = pb(A), clip = ort_node("InplaceClipGradNorm", "gs", "cs");
    with_float(&clip, "max_norm", 2.0f);
    list_of(&g, "x y", "gs");
    pb_msg(&g, 1, clip);
    pb_msg(&g, 5, ints("zero", -1, &at[0]));
    pb_msg(&g, 5, ints("one", -1, &at[1]));
    input(&g, "x", 1, 1, dn);
    input(&g, "y", 1, 1, dn);
    item_of(&g, "cs", "a");
    pb_msg(&g, 1, node("SequenceAt", "b", "cs one", "b"));
    output(&g, "b");
    start(&r, g);
    feed(&r, "x", x), feed(&r, "y", y);
    go(&r);
    want[0] = (float)(3 * 2.0 / (5 + 1e-6));
    take(&r, "a", got);
    close_to("a", 1, got, want);
    want[0] = 0, want[1] = (float)(4 * 2.0 / (5 + 1e-6));
    take(&r, "b", got);
    close_to("b", 1, got, want);
    run_stop(&r);
}
END_TEST

/* ---- ONNX
 * ---------------------------------------------------------------------------------------- */
/* In f64, with both regularisations; step 0 has no correction. */
START_TEST(adam_follows_its_formula) {
    const double rate = 0.02, norm = 0.25, post = 0.125, eps = 0.0625;
    const double a = (double)0.9f, b = (double)0.999f;
    const double w[N] = {1, -2, 3, 0.5, 0, 7}, d[N] = {0.1, -0.2, 0, 4, 1e-3, -9};
    const double m[N] = {0.3, 0, -0.1, 1, 0, 2}, v[N] = {0.2, 0, 1e-6, 3, 1e-8, 9};
    static const int64_t at[] = {0, 1, 2, 1000};
    TEST_LANDING(&env);
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        struct run r;
        double got[N], got_m[N], got_v[N];
        struct buf g = pb(A), step = node("Adam", "step", "r t w g m v", "w2 m2 v2");
        static const char *const tensors[] = {"w", "g", "m", "v"};
        pb_str(&step, 7, "ai.onnx.preview.training");
        with_float(&step, "norm_coefficient", (float)norm);
        with_float(&step, "norm_coefficient_post", (float)post);
        with_float(&step, "epsilon", (float)eps);
        pb_msg(&g, 1, step);
        for (int i = 0; i < 4; i++) input(&g, tensors[i], 11, 1, dn);
        input(&g, "r", 11, 0, NULL);
        input(&g, "t", 7, 0, NULL);
        output(&g, "w2");
        output(&g, "m2");
        output(&g, "v2");
        start(&r, g);
        feed(&r, "w", w), feed(&r, "g", d), feed(&r, "m", m), feed(&r, "v", v);
        feed(&r, "r", &rate), feed(&r, "t", &at[k]);
        go(&r);
        take(&r, "w2", got), take(&r, "m2", got_m), take(&r, "v2", got_v);
        double t = (double)at[k];
        double by = t > 0 ? rate * sqrt(1 - pow(b, t)) / (1 - pow(a, t)) : rate;
        for (int i = 0; i < N; i++) {
            double s = norm * w[i] + d[i], m1 = a * m[i] + (1 - a) * s;
            double v1 = b * v[i] + (1 - b) * s * s;
            double x = (1 - post) * (w[i] - by * m1 / (sqrt(v1) + eps));
            ck_assert_double_eq_tol(got[i], x, 1e-13);
            ck_assert_double_eq_tol(got_m[i], m1, 1e-14);
            ck_assert_double_eq_tol(got_v[i], v1, 1e-14);
        }
        run_stop(&r);
    }
}
END_TEST

/* ---- what is refused
 * ----------------------------------------------------------------------------- */
START_TEST(wrong_optimizers_are_refused) {
    static const struct {
        const char *op, *in, *out, *told, *attr;
        int64_t value;
    } cases[] = {
        {"AdamWOptimizer", "lr step ws gs ms", "flag", "5 inputs, expected 6 or 7", "", 0},
        {"AdamWOptimizer", "lr step ws gs ms vs go go", "flag", "8 inputs, expected 6 or 7", "", 0},
        {"AdamWOptimizer", "lr step ws gs ms two", "flag", "sequences of 1 and 2 tensors", "", 0},
        {"AdamWOptimizer", "lr step ws gs ms os", "flag", "must be float tensors of one shape", "",
         0},
        {"AdamWOptimizer", "lr step ws gs ms ks", "flag", "must be float tensors of one shape", "",
         0},
        {"AdamWOptimizer", "lr step ws gs ms v", "flag", "a sequence that is not built", "", 0},
        {"AdamWOptimizer", "w step ws gs ms vs", "flag", "the learning rate must be one number", "",
         0},
        {"AdamWOptimizer", "step step ws gs ms vs", "flag", "the learning rate must be a float", "",
         0},
        {"AdamWOptimizer", "lr lr ws gs ms vs", "flag", "the step must be an int64", "", 0},
        {"AdamWOptimizer", "lr step ws gs ms vs lr", "flag", "the update signal must be a bool", "",
         0},
        {"AdamWOptimizer", "lr step ws gs ms vs", "flag", "adam_mode 2 and correct_bias 1",
         "adam_mode", 2},
        {"AdamWOptimizer", "lr step ws gs ms vs", "flag", "adam_mode 0 and correct_bias -1",
         "correct_bias", -1},
        {"AdamWOptimizer", "lr step ws gs ms vs", "flag", "'epsilon'", "epsilon", 1},
        {"SGDOptimizerV2", "lr ws", "flag", "2 inputs, expected 3 or 4", "", 0},
        {"SGDOptimizerV2", "lr ws ks", "flag", "must be float tensors of one shape", "", 0},
        {"InplaceClipGradNorm", "gs ws", "flag", "2 inputs, expected 1", "", 0},
        {"LambOptimizer", "w g", "flag", "an optimizer of old training graphs", "", 0},
    };
    const int64_t d2[] = {2};
    TEST_LANDING(&env);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct buf g = pb(A), step = ort_node(cases[k].op, cases[k].in, cases[k].out);
        if (cases[k].attr[0]) with_int(&step, cases[k].attr, cases[k].value);
        list_of(&g, "w", "ws");
        list_of(&g, "g", "gs");
        list_of(&g, "m", "ms");
        list_of(&g, "v", "vs");
        list_of(&g, "v v", "two");
        list_of(&g, "o", "os");
        list_of(&g, "k", "ks");
        pb_msg(&g, 1, step);
        static const char *const tensors[] = {"w", "g", "m", "v"};
        for (int i = 0; i < 4; i++) input(&g, tensors[i], 1, 1, dn);
        input(&g, "o", 1, 1, d2);
        input(&g, "k", 7, 1, dn);
        input(&g, "lr", 1, 1, d1);
        input(&g, "step", 7, 1, d1);
        input(&g, "go", 9, 1, d1);
        output(&g, "flag");
        struct import_options o = {.training = false};
        struct buf bytes = model_bytes(g);
        env.log[0] = 0;
        enum status st = onnx_load_memory(&env.ctx, bytes.at, bytes.n, NULL, "test.onnx", &M);
        if (st == ST_OK) {
            st = onnx_import(M, &o, &R);
            done();
        }
        ck_assert_int_ne(st, ST_OK);
        ck_assert_msg(strstr(env.log, cases[k].told) != NULL, "case %zu: %s", k, env.log);
        ck_assert_int_eq(errors_logged(), 1);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("import_training");
    TCase *c = tcase_create("all");
    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, adamw_is_onnx_runtimes);
    tcase_add_test(c, adamw_modes_differ_as_told);
    tcase_add_test(c, adamw_without_update_changes_nothing);
    tcase_add_test(c, sgd_is_onnx_runtimes);
    tcase_add_test(c, gradients_are_clipped_together);
    tcase_add_test(c, adam_follows_its_formula);
    tcase_add_test(c, wrong_optimizers_are_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
