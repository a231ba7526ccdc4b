// SPDX-License-Identifier: Apache-2.0
/* test_cases.c - every case of tests/op/cases.def, forward and backward, compiled to a plan and run
 * on the CPU: against the reference evaluator, in f64, f32 and bf16, fused and one node at a time.
 */
#include "codegen/codegen.h"
#include "op_cases.h"
#include "passes/pass.h"
#include "ref_eval.h"
#include "runtime/cpu.h"
#include "test_util.h"

/* Within `tolerance` of the largest wanted value, or of `scale` where all are small. */
static void check_output(struct cpu_exec *x, struct ref want, const char *name, double tolerance,
                         double scale, const char *what) {
    const char *got = cpu_buffer(x, BUF_OUTPUT, name);
    size_t size = dtype_size(want.dtype);
    ck_assert_msg(got || want.n == 0, "%s: no output '%s'", what, name);
    for (int64_t i = 0; i < want.n; i++) scale = fmax(scale, fabs(want.at[i]));
    for (int64_t i = 0; i < want.n; i++) {
        double v = dtype_load(want.dtype, got + (size_t)i * size);
        ck_assert_msg(fabs(v - want.at[i]) <= tolerance * scale,
                      "%s: %s[%lld] is %.10g on the CPU, %.10g by the reference", what, name,
                      (long long)i, v, want.at[i]);
    }
}

static void run_case(int which, enum dtype real, enum dtype low, bool no_fusion) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct arena scratch;
    arena_init(&scratch, &t.ctx);
    const char *what = arena_printf(&t.arena, "%s in %s, %s", case_name(&t.arena, &cases[which]),
                                    dtype_name(low), no_fusion ? "unfused" : "fused");
    struct graph *exact = case_graph(&t.ctx, &cases[which], real);
    struct graph *g = case_graph_in(&t.ctx, &cases[which], real, low);
    struct pass_ctx c = {.ctx = &t.ctx, .scratch = &scratch};
    struct codegen_options options = {.threads = 2, .no_fusion = no_fusion};
    struct plan *p = NULL;
    struct cpu_exec *x = NULL;
    ck_assert_msg(pass_grad(&c, exact) == ST_OK, "%s: %s", what, t.log);
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s: %s", what, t.log);
    struct ref *vals = ref_eval(exact, &t.arena, NULL, NULL);
    ck_assert_msg(plan_build(g, &options, &p) == ST_OK, "%s: %s", what, t.log);
    ck_assert_msg(plan_verify(p, "test") == ST_OK, "%s: %s", what, t.log);
    struct pool *pool = pool_create(&t.ctx, 2);
    ck_assert_msg(cpu_create(&t.ctx, p, pool, &x) == ST_OK, "%s: %s", what, t.log);
    ck_assert_msg(cpu_run(x, 0, p->launches.n, false) == ST_OK, "%s: %s", what, t.log);
    double tolerance = low == DT_bf16 ? 3e-2 : real == DT_f64 ? 1e-6 : 2e-5;
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const char *name = interned(&g->strings, g->outputs.at[k].name);
        check_output(x, ref_output(exact, vals, name), name, tolerance, low == DT_bf16 ? 1 : 0.1,
                     what);
    }
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
    graph_destroy(g);
    graph_destroy(exact);
    arena_reset(&scratch);
    test_end(&t);
}

START_TEST(test_f32) {
    run_case(_i, DT_f32, DT_f32, false);
}
END_TEST

START_TEST(test_f32_unfused) {
    run_case(_i, DT_f32, DT_f32, true);
}
END_TEST

START_TEST(test_f64) {
    run_case(_i, DT_f64, DT_f64, false);
}
END_TEST

/* Convolutions and what belongs to them have no bf16 form. */
static bool has_bf16(enum op op) {
    return op != OP_conv && op != OP_conv_input_grad && op != OP_conv_weight_grad &&
           op != OP_max_pool;
}

/* Operands, result and gradients rounded to bf16 on the way. */
START_TEST(test_bf16) {
    if (has_bf16(cases[_i].op)) run_case(_i, DT_f32, DT_bf16, false);
}
END_TEST

START_TEST(test_bf16_unfused) {
    if (has_bf16(cases[_i].op)) run_case(_i, DT_f32, DT_bf16, true);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cases");
    TCase *tc = tcase_create("cases");
    tcase_add_loop_test(tc, test_f32, 0, CASES);
    tcase_add_loop_test(tc, test_f32_unfused, 0, CASES);
    tcase_add_loop_test(tc, test_f64, 0, CASES);
    tcase_add_loop_test(tc, test_bf16, 0, CASES);
    tcase_add_loop_test(tc, test_bf16_unfused, 0, CASES);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
