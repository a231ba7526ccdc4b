// SPDX-License-Identifier: Apache-2.0
/* test_recognise.c - composites are found in every spelling, keep their meaning by the reference
 * evaluator, and are left alone where the meaning would change. */
#include "passes/mask.h"
#include "passes/recognise.h"
#include "rewrite_cases.h"
#include <stdarg.h>

/* A graph from pieces of text, statement by statement; NULL ends them. */
static struct graph *graph_of(struct test_env *t, ...) {
    char text[9000] = "graph @t {\n";
    size_t n = strlen(text);
    va_list ap;
    va_start(ap, t);
    for (const char *s; (s = va_arg(ap, const char *));)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", s);
    va_end(ap);
    ck_assert_uint_lt(n + 3, sizeof text);
    memcpy(text + n, "}\n", 3);
    return cases_parse(t, text);
}

/* Simplify and recognise; the same numbers, at rest, and `count` nodes of `op`. */
static void expect(struct test_env *t, struct graph *g, enum op op, uint32_t count,
                   const char *what) {
    struct graph *before = graph_clone(g);
    cases_run(t, pass_simplify, g);
    cases_run(t, pass_recognise, g);
    cases_same(t, before, g, 1e-6, what);
    cases_idempotent(t, pass_recognise, g, what);
    cases_idempotent(t, pass_simplify, g, what);
    struct buf b;
    cases_text(g, &b);
    ck_assert_msg(cases_count(g, op) == count, "%s: %u of %s, expected %u\n%s", what,
                  cases_count(g, op), op_info(op)->name, count, b.at);
    ck_assert_msg(t->log[0] == '\0', "%s", t->log);
    graph_destroy(before);
    graph_destroy(g);
}

/* ---- golden files -------------------------------------------------------------------------- */
static void golden_recognise(struct test_env *t, struct graph *g, const char *file) {
    struct graph *before = graph_clone(g);
    cases_run(t, pass_simplify, g);
    cases_run(t, pass_recognise, g);
    cases_same(t, before, g, 1e-6, file);
    cases_idempotent(t, pass_recognise, g, file);
    cases_idempotent(t, pass_simplify, g, file);
    graph_destroy(before);
}

START_TEST(golden_keeps_meaning) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(cases_golden(&t, "recognise", golden_recognise) > 8,
                  "run from the root of the repository");
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

/* ---- activations --------------------------------------------------------------------------- */
#define ONE(name, value) "%" name " = const {init = f32 [" value "]} : f32[]\n"
#define T                " : f32[5]\n"
#define GELU_HEAD                                                                                  \
    "%x = input {name = \"x\"} : f32[5]\n" ONE("one", "1.0") ONE("half", "0.5") ONE("two", "2.0")  \
        ONE("three", "3.0") ONE("r2", "1.4142135") ONE("r", "0.70710677") ONE("c", "0.044715")     \
            ONE("k", "0.7978846")

/* each makes %t, the erf or tanh */
static const char *const inner[] = {
    "%d = div(%x, %r2)" T "%t = erf(%d)" T,
    "%d = mul(%r, %x)" T "%t = erf(%d)" T,
    "%p = pow(%x, %three)" T "%q = mul(%c, %p)" T "%s = add(%q, %x)" T "%d = mul(%s, %k)" T
    "%t = tanh(%d)" T,
    "%p = mul(%x, %x)" T "%q0 = mul(%x, %c)" T "%q = mul(%p, %q0)" T "%s = add(%x, %q)" T
    "%d = mul(%k, %s)" T "%t = tanh(%d)" T,
    "%p = mul(%x, %x)" T "%q0 = mul(%c, %p)" T "%q = mul(%q0, %x)" T "%s = add(%x, %q)" T
    "%d = mul(%k, %s)" T "%t = tanh(%d)" T,
    "%p = mul(%x, %c)" T "%q0 = mul(%x, %p)" T "%q = mul(%q0, %x)" T "%s = add(%q, %x)" T
    "%d = mul(%s, %k)" T "%t = tanh(%d)" T,
    "%p = mul(%x, %x)" T "%q = mul(%p, %c)" T "%s = add(%one, %q)" T "%xk = mul(%k, %x)" T
    "%d = mul(%s, %xk)" T "%t = tanh(%d)" T,
    "%p = mul(%x, %x)" T "%q = mul(%p, %c)" T "%s = add(%q, %one)" T "%xs = mul(%s, %x)" T
    "%d = mul(%xs, %k)" T "%t = tanh(%d)" T,
};
static const char *const outer[] = {
    "%u = add(%t, %one)" T "%m = mul(%x, %u)" T "%y = mul(%m, %half)" T,
    "%u = add(%one, %t)" T "%m = mul(%u, %x)" T "%y = div(%m, %two)" T,
    "%h = mul(%half, %x)" T "%u = add(%t, %one)" T "%y = mul(%h, %u)" T,
    "%h = div(%x, %two)" T "%u = add(%t, %one)" T "%y = mul(%u, %h)" T,
    "%u = add(%t, %one)" T "%m = mul(%half, %u)" T "%y = mul(%x, %m)" T,
};

START_TEST(gelu_in_all_orders) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++)
        for (size_t o = 0; o < sizeof outer / sizeof outer[0]; o++) {
            char what[64];
            snprintf(what, sizeof what, "gelu form %zu, order %zu", i, o);
            expect(&t, graph_of(&t, GELU_HEAD, inner[i], outer[o], "output \"y\" = %y\n", NULL),
                   OP_gelu, 1, what);
            snprintf(what, sizeof what, "gelu form %zu, order %zu, read elsewhere", i, o);
            expect(&t,
                   graph_of(&t, GELU_HEAD, inner[i], outer[o],
                            "output \"y\" = %y\noutput \"t\" = %t\n", NULL),
                   OP_gelu, 0, what);
        }
    test_end(&t);
}
END_TEST

/* ---- norms --------------------------------------------------------------------------------- */
START_TEST(norms_in_all_forms) {
    static const char *const centre[] = {"%d = sub(%x, %m)" T "%e = sub(%x, %m)" T,
                                         "%n = neg(%m) : f32[1]\n%d = add(%x, %n)" T
                                         "%e = sub(%x, %m)" T};
    static const char *const square[] = {"%s = mul(%e, %e)" T, "%s = pow(%e, %two)" T,
                                         "%s = mul(%d, %e)" T};
    static const char *const mean[] = {
        "%v = reduce_mean(%s) {axes = [0], keepdims = true} : f32[1]\n",
        "%v0 = reduce_mean(%s) {axes = [0]} : f32[]\n%v = reshape(%v0) {shape = [1]} : f32[1]\n"};
    static const char *const root[] = {
        "%q = sqrt(%a) : f32[1]\n%y = div(%d, %q)" T,
        "%q = sqrt(%a) : f32[1]\n%r = recip(%q) : f32[1]\n%y = mul(%d, %r)" T,
        "%q = sqrt(%a) : f32[1]\n%r = div(%one, %q) : f32[1]\n%y = mul(%r, %d)" T,
        "%r = pow(%a, %mh) : f32[1]\n%y = mul(%d, %r)" T,
        "%q = pow(%a, %half) : f32[1]\n%y = div(%d, %q)" T};
    const char *head = "%x = input {name = \"x\"} : f32[5]\n" ONE("one", "1.0") ONE("half", "0.5")
        ONE("mh", "-0.5") ONE("two", "2.0") ONE("eps", "0.00001");
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < 2 * 3 * 2 * 5; k++) {
        const char *sq = square[k / 2 % 3], *mn = mean[k / 6 % 2], *rt = root[k / 12];
        char what[64];
        snprintf(what, sizeof what, "layer_norm form %d", k);
        expect(&t,
               graph_of(&t, head, "%m = reduce_mean(%x) {axes = [0], keepdims = true} : f32[1]\n",
                        centre[k % 2], sq, mn, "%a = add(%v, %eps) : f32[1]\n", rt,
                        "output \"y\" = %y\n", NULL),
               OP_layer_norm, 1, what);
        snprintf(what, sizeof what, "rms_norm form %d", k);
        expect(&t,
               graph_of(&t, head, "%d = exp(%x)" T "%e = expand(%d) {shape = [5]}" T, sq, mn,
                        "%a = add(%eps, %v) : f32[1]\n", rt, "output \"y\" = %y\n", NULL),
               OP_rms_norm, 1, what);
    }
    test_end(&t);
}
END_TEST

/* ---- masks --------------------------------------------------------------------------------- */
static enum mask_kind classify(struct test_env *t, const char *init, const char *type, bool invert,
                               dim rows, dim columns) {
    bool infinite;
    struct graph *g =
        graph_of(t, "%m = const {init = ", init, "} : ", type, "\noutput \"m\" = %m\n", NULL);
    enum mask_kind k = mask_classify(g, g->outputs.at[0].value, invert, rows, columns, &infinite);
    graph_destroy(g);
    return k;
}

START_TEST(masks_are_classified) {
    // clang-format off
    static const struct { const char *init, *type; bool invert; dim rows, columns; enum mask_kind want; } cases[] = {
        {"f32 [0.0, -inf, 0.0, 0.0]", "f32[2,2]", false, 2, 2, MASK_CAUSAL},
        {"f32 [0.0, -10000.0, 0.0, 0.0]", "f32[1,1,2,2]", false, 2, 2, MASK_CAUSAL},
        {"f32 [0.0, -9999.0, 0.0, 0.0]", "f32[2,2]", false, 2, 2, MASK_OTHER},
        {"f32 [0.0, -inf, 0.0, 0.5]", "f32[2,2]", false, 2, 2, MASK_OTHER},
        {"f32 [0.0, 0.0, -inf, 0.0]", "f32[2,2]", false, 2, 2, MASK_OTHER},
        {"f32 [0.0, nan, 0.0, 0.0]", "f32[2,2]", false, 2, 2, MASK_OTHER},
        {"f32 [0.0, 0.0, 0.0, 0.0]", "f32[2,2]", false, 2, 2, MASK_ALL},
        {"bool [true]", "bool[]", false, 2, 2, MASK_ALL},
        {"bool [false]", "bool[]", true, 2, 2, MASK_ALL},
        {"bool [false]", "bool[]", false, 2, 2, MASK_OTHER},
        {"bool [true, false, true, true]", "bool[2,2]", false, 2, 2, MASK_CAUSAL},
        {"bool [true, false, true, true]", "bool[2,2]", true, 2, 2, MASK_OTHER},
        {"bool [false, true, false, false]", "bool[2,2]", true, 2, 2, MASK_CAUSAL},
        /* two queries, three keys: the last query sees all */
        {"bool [true, true, false, true, true, true]", "bool[2,3]", false, 2, 3, MASK_CAUSAL},
        {"bool [true, false, false, true, true, false]", "bool[2,3]", false, 2, 3, MASK_OTHER},
        /* more queries than keys: a row that sees nothing */
        {"f32 [-inf, 0.0]", "f32[2,1]", false, 2, 1, MASK_OTHER},
        {"f32 [0.0, -inf]", "f32[2]", false, 2, 2, MASK_OTHER},
    };
    // clang-format on
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        ck_assert_msg(classify(&t, cases[k].init, cases[k].type, cases[k].invert, cases[k].rows,
                               cases[k].columns) == cases[k].want,
                      "case %zu: %s", k, cases[k].init);
    test_end(&t);
}
END_TEST

/* ---- attention ----------------------------------------------------------------------------- */
#define QKV                                                                                        \
    "%q = input {name = \"q\"} : f32[2,3,4,6]\n%k = input {name = \"k\"} : f32[2,3,5,6]\n"         \
    "%v = input {name = \"v\"} : f32[2,3,5,7]\n" ONE("zero", "0.0") ONE("inf", "-inf")             \
        ONE("c", "0.4") ONE("d", "2.5") ONE("low", "-3.4028235e+38")
#define SCORES " : f32[2,3,4,5]\n"
/* each makes %s from %q and %k */
static const char *const scores[] = {
    "%kt = transpose(%k) {perm = [0,1,3,2]} : f32[2,3,6,5]\n%s = matmul(%q, %kt)" SCORES,
    "%s0 = matmul(%q, %k) {trans_b = true}" SCORES "%s = mul(%c, %s0)" SCORES,
    "%s0 = matmul(%q, %k) {trans_b = true}" SCORES "%s = div(%s0, %d)" SCORES,
    "%q1 = div(%q, %d) : f32[2,3,4,6]\n%kt = transpose(%k) {perm = [0,1,3,2]} : f32[2,3,6,5]\n"
    "%k1 = mul(%kt, %c) : f32[2,3,6,5]\n%s = matmul(%q1, %k1)" SCORES,
    "%k3 = reshape(%k) {shape = [6,5,6]} : f32[6,5,6]\n"
    "%kt = transpose(%k3) {perm = [0,2,1]} : f32[6,6,5]\n"
    "%k4 = reshape(%kt) {shape = [2,3,6,5]} : f32[2,3,6,5]\n%k1 = mul(%k4, %c) : f32[2,3,6,5]\n"
    "%s = matmul(%q, %k1)" SCORES,
};
#define KEEP5 "true, true, false, false, false, "
/* each makes %a from %s; `fused` says whether attention may be made of it */
static const struct {
    const char *text;
    bool fused, causal;
    int operands;
} masked[] = {
    {"%a = mul(%s, %c)" SCORES, true, false, 3},
    {"%m = input {name = \"m\"} : f32[4,5]\n%a = add(%m, %s)" SCORES, true, false, 4},
    {"%m = const {init = f32 [0.0, 0.0, -inf, -inf, -inf, 0.0, 0.0, 0.0, -inf, -inf, 0.0, 0.0, "
     "0.0, 0.0, -inf, 0.0, 0.0, 0.0, 0.0, 0.0]} : f32[4,5]\n%a = add(%m, %s)" SCORES,
     true, true, 3},
    {"%m = const {init = bool [true, true, false, false, false, true, true, true, false, false, "
     "true, true, true, true, false, true, true, true, true, true]} : bool[4,5]\n"
     "%a = where(%m, %s, %low)" SCORES,
     true, true, 3},
    {"%m = const {init = bool [" KEEP5 KEEP5 KEEP5 "true, true, true, true, true]} : bool[4,5]\n"
     "%a = where(%m, %s, %low)" SCORES,
     true, false, 4},
    {"%m = input {name = \"b\"} : bool[2,1,4,5]\n%f = where(%m, %zero, %low) : f32[2,1,4,5]\n"
     "%a = add(%s, %f)" SCORES,
     true, false, 4},
    {"%w = param {name = \"w\", init = f32 [0.5, 1.0, 2.0, 3.0, 4.0]} : f32[5]\n"
     "%a = add(%s, %w)" SCORES,
     false, false, 0},
    {"%w = param {name = \"w\", init = f32 [0.5, 1.0, 2.0, 3.0, 4.0], frozen = true} : f32[5]\n"
     "%a = add(%s, %w)" SCORES,
     true, false, 4},
    /* the scale would apply to the mask */
    {"%m = input {name = \"m\"} : f32[4,5]\n%b = add(%m, %s)" SCORES "%a = mul(%b, %c)" SCORES,
     false, false, 0},
    /* no softmax row of its own: a mask with more rows than scores */
    {"%n = exp(%s)" SCORES "%a = add(%n, %s)" SCORES, false, false, 0},
};

static struct graph *attention_case(struct test_env *t, size_t i, size_t m) {
    return graph_of(t, QKV, scores[i], masked[m].text,
                    "%p = softmax(%a) {axis = 3}" SCORES
                    "%y = matmul(%p, %v) : f32[2,3,4,7]\noutput \"y\" = %y\n",
                    NULL);
}

START_TEST(attention_in_all_forms) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (size_t i = 0; i < sizeof scores / sizeof scores[0]; i++)
        for (size_t m = 0; m < sizeof masked / sizeof masked[0]; m++) {
            char what[64];
            snprintf(what, sizeof what, "attention scores %zu, mask %zu", i, m);
            expect(&t, attention_case(&t, i, m), OP_attention, masked[m].fused, what);
            struct graph *g = attention_case(&t, i, m);
            cases_run(&t, pass_simplify, g);
            cases_run(&t, pass_recognise, g);
            node_id n = val_def(g, g->outputs.at[0].value);
            if (masked[m].fused)
                ck_assert_msg(graph_node(g, n)->nin == masked[m].operands &&
                                  attr_bool(g, n, ATTR_causal) == masked[m].causal,
                              "%s: %d operands", what, graph_node(g, n)->nin);
            graph_destroy(g);
        }
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("recognise");
    TCase *c = tcase_create("recognise");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, golden_keeps_meaning);
    tcase_add_test(c, gelu_in_all_orders);
    tcase_add_test(c, norms_in_all_forms);
    tcase_add_test(c, masks_are_classified);
    tcase_add_test(c, attention_in_all_forms);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
