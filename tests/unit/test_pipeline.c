// SPDX-License-Identifier: Apache-2.0
/* test_pipeline.c - the pass table: names, the order and its reasons, and that every pass marked
 * idempotent is, on a training graph of everything the pipeline handles. */
#include "driver/pipeline.h"
#include "test_util.h"

START_TEST(names_are_unique) {
    int n;
    const struct pass_info *p = pipeline_passes(&n);
    ck_assert_int_gt(n, 5);
    for (int i = 0; i < n; i++) {
        ck_assert(p[i].run != NULL);
        ck_assert_ptr_eq(pipeline_find(p[i].name), &p[i]);
        ck_assert_str_ne(p[i].what, "");
        ck_assert_ptr_null(strpbrk(p[i].name, ", ")); /* --passes a,b,c */
        ck_assert_str_ne(p[i].name, "import");        /* names the stage before the first pass */
        ck_assert_str_ne(p[i].name, "all");           /* dump --after all */
    }
    ck_assert_ptr_null(pipeline_find("nothing"));
    ck_assert_ptr_null(pipeline_find(""));
}
END_TEST

static int place(const char *name) {
    int n;
    const struct pass_info *p = pipeline_passes(&n), *found = pipeline_find(name);
    ck_assert_msg(found, "an order names '%s', which is no pass", name);
    return (int)(found - p);
}

START_TEST(orders_hold) {
    int n;
    const struct pass_order *o = pipeline_orders(&n);
    ck_assert_int_gt(n, 3);
    for (int i = 0; i < n; i++) {
        ck_assert_msg(place(o[i].before) < place(o[i].after), "%s must come before %s: %s",
                      o[i].before, o[i].after, o[i].why);
        ck_assert_str_ne(o[i].why, "");
    }
}
END_TEST

/* An MLP with a decomposed GELU, a folded constant, a movement chain that cancels and a dead node.
 */
static const char sample[] =
    "graph @sample {\n"
    "  %x = input {name = \"x\"} : f32[6,4]\n"
    "  %w = param {name = \"w\", init = f32 [0.5, -1.0, 0.25, 2.0, 1.5, -0.5, 0.75, 1.0, -1.25, "
    "0.125, 0.5, -2.0]} : f32[4,3]\n"
    "  %b = param {name = \"b\", init = f32 [0.1, 0.2, -0.3]} : f32[3]\n"
    "  %half = const {init = f32 [0.25]} : f32[]\n"
    "  %two = const {init = f32 [2.0]} : f32[]\n"
    "  %c = mul(%half, %two) : f32[]\n"
    "  %t = transpose(%x) {perm = [1, 0]} : f32[4,6]\n"
    "  %u = transpose(%t) {perm = [1, 0]} : f32[6,4]\n"
    "  %m = matmul(%u, %w) : f32[6,3]\n"
    "  %h = add(%m, %b) : f32[6,3]\n"
    "  %r = const {init = f32 [1.4142135]} : f32[]\n"
    "  %one = const {init = f32 [1.0]} : f32[]\n"
    "  %d = div(%h, %r) : f32[6,3]\n"
    "  %e = erf(%d) : f32[6,3]\n"
    "  %f = add(%e, %one) : f32[6,3]\n"
    "  %g = mul(%h, %f) : f32[6,3]\n"
    "  %y = mul(%g, %c) : f32[6,3]\n"
    "  %again = add(%m, %b) : f32[6,3]\n"
    "  %logits = add(%y, %again) : f32[6,3]\n"
    "  %dead = exp(%logits) : f32[6,3]\n"
    "  output \"logits\" = %logits\n"
    "}\n";

static const char *print(struct test_env *t, const struct graph *g) {
    struct buf b;
    buf_init(&b, &t->arena);
    graph_print(g, &(struct text_options){.full = true}, &b);
    return b.at;
}

static void parse_sample(struct test_env *t, struct graph **g) {
    ck_assert_msg(graph_parse(&t->ctx, sample, strlen(sample), "sample", g) == ST_OK, "%s", t->log);
}

START_TEST(idempotent_passes_are) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g;
    parse_sample(&t, &g);
    struct train_options train = {.loss = "cross_entropy(logits, labels)",
                                  .label_type = {.rank = -1},
                                  .optimizer = OPT_ADAMW,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .clip = 1,
                                  .accumulate = 1};
    struct arena scratch;
    arena_init(&scratch, &t.ctx);
    struct pass_ctx c = {
        .ctx = &t.ctx, .scratch = &scratch, .eval = pipeline_eval, .train = &train};
    int n, checked = 0, changed = 0;
    const struct pass_info *p = pipeline_passes(&n);
    for (int i = 0; i < n; i++) {
        const char *before = print(&t, g);
        ck_assert_msg(p[i].run(&c, g) == ST_OK, "%s: %s", p[i].name, t.log);
        arena_reset(&scratch);
        ck_assert_msg(graph_verify(g, p[i].name) == ST_OK, "%s: %s", p[i].name, t.log);
        const char *once = print(&t, g);
        changed += strcmp(before, once) != 0;
        if (!p[i].idempotent) continue;
        ck_assert_msg(p[i].run(&c, g) == ST_OK, "%s again: %s", p[i].name, t.log);
        arena_reset(&scratch);
        const char *twice = print(&t, g);
        ck_assert_msg(strcmp(once, twice) == 0, "%s changes its own result:\n%s\nto\n%s", p[i].name,
                      once, twice);
        checked++;
    }
    ck_assert_int_ge(checked, 5);
    ck_assert_int_ge(changed, 5); /* else the sample is too simple to show anything */
    graph_destroy(g);
    arena_reset(&scratch);
    test_end(&t);
}
END_TEST

struct seen {
    char names[512];
};

static void observe(void *user, const char *name, const struct graph *g, double seconds) {
    struct seen *s = user;
    (void)g;
    ck_assert(seconds >= 0);
    size_t n = strlen(s->names);
    snprintf(s->names + n, sizeof s->names - n, "%s ", name);
}

/* Forward runs leave training out; stop_after stops; an unknown name is an error. */
START_TEST(options_choose_passes) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct arena scratch;
    arena_init(&scratch, &t.ctx);
    struct pass_ctx c = {.ctx = &t.ctx, .scratch = &scratch, .eval = pipeline_eval};
    struct graph *g;
    parse_sample(&t, &g);
    struct seen s = {""};
    struct pipeline_options o = {.verify = true, .observe = observe, .observe_user = &s};
    ck_assert_int_eq(pipeline_run(&c, g, &o), ST_OK);
    ck_assert_ptr_nonnull(strstr(s.names, "import fold"));
    ck_assert_ptr_null(strstr(s.names, "loss"));
    ck_assert_ptr_null(strstr(s.names, " grad "));
    s.names[0] = 0;
    o.stop_after = "simplify";
    ck_assert_int_eq(pipeline_run(&c, g, &o), ST_OK);
    ck_assert_str_eq(s.names, "import fold simplify ");
    s.names[0] = 0;
    o.stop_after = "import";
    ck_assert_int_eq(pipeline_run(&c, g, &o), ST_OK);
    ck_assert_str_eq(s.names, "import ");
    o.stop_after = "nothing";
    ck_assert_int_eq(pipeline_run(&c, g, &o), ST_USAGE);
    ck_assert_ptr_nonnull(strstr(t.log, "no pass is called 'nothing'"));
    graph_destroy(g);
    arena_reset(&scratch);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("pipeline");
    TCase *c = tcase_create("pipeline");
    suite_add_tcase(s, c);
    tcase_add_test(c, names_are_unique);
    tcase_add_test(c, orders_hold);
    tcase_add_test(c, idempotent_passes_are);
    tcase_add_test(c, options_choose_passes);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
