// SPDX-License-Identifier: Apache-2.0
/* test_plan_graphs.c - the laws of the plan's text form on the plans of real graphs: every case of
 * tests/op/cases.def with its gradient, and a GPT; fused and one node at a time. */
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "op_cases.h"
#include "passes/pass.h"
#include "test_util.h"

static void check_laws(struct test_env *t, struct graph *g, bool no_fusion, const char *what) {
    struct codegen_options o = {.threads = 3, .no_fusion = no_fusion};
    struct plan *p, *q;
    struct buf a, b;
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s: %s", what, t->log);
    buf_init(&a, &t->arena);
    buf_init(&b, &t->arena);
    plan_print(p, &a);
    ck_assert_msg(plan_parse(&t->ctx, a.at, a.n, what, &q) == ST_OK, "%s\n%s", t->log, a.at);
    ck_assert_msg(plan_equal(p, q), "%s: not equal:\n%s", what, a.at);
    ck_assert_msg(plan_verify(q, "text") == ST_OK, "%s: %s", what, t->log);
    plan_print(q, &b);
    ck_assert_str_eq(a.at, b.at);
    struct plan_usage u = plan_usage(p), w = plan_usage(q);
    ck_assert(memcmp(u.bytes, w.bytes, sizeof u.bytes) == 0 && u.peak_launch == w.peak_launch);
    plan_destroy(p);
    plan_destroy(q);
}

static void check_graph(struct test_env *t, struct graph *g, const char *what) {
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &t->arena};
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s: %s", what, t->log);
    check_laws(t, g, false, what);
    check_laws(t, g, true, what);
    graph_destroy(g);
}

START_TEST(test_cases) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < CASES; k++)
        check_graph(&t, case_graph(&t.ctx, &cases[k], k % 2 ? DT_f32 : DT_f64),
                    case_name(&t.arena, &cases[k]));
    test_end(&t);
}
END_TEST

START_TEST(test_gpt) {
    struct gpt_size size = {
        .batch = 2, .seq = 5, .width = 12, .heads = 3, .layers = 2, .vocab = 17};
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int whole = 0; whole < 2; whole++)
        check_graph(&t, gpt_graph(&t.ctx, size, whole, NULL), whole ? "gpt" : "gpt in parts");
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("plan_graphs");
    TCase *c = tcase_create("plan_graphs");
    tcase_add_test(c, test_cases);
    tcase_add_test(c, test_gpt);
    tcase_set_timeout(c, 120);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
