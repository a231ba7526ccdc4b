// SPDX-License-Identifier: Apache-2.0
/* rules.c - algebraic rules of simplify, and their guards. Every row holds for NaN and infinities
 * unless its comment says otherwise; results may differ by rounding and in the sign of zero. */
#include "passes/mask.h"
#include "passes/simplify.h"
#include <math.h>

static enum dtype_class root_class(const struct match *m) {
    return dtype_class(val_type(match_graph(m), match_root(m))->dtype);
}

static bool root_is_float(struct match *m) {
    return root_class(m) == DTC_FLOAT;
}

static bool root_is_int(struct match *m) {
    return root_class(m) == DTC_INT;
}

static bool x_is_bool(struct match *m) {
    return val_type(match_graph(m), match_val(m, "x"))->dtype == DT_bool;
}

/* Far from overflow and underflow in every float type that sums are made in. */
static bool is_tame(double x) {
    double a = fabs(x);
    return a == 0 || (a >= 0x1p-40 && a <= 0x1p40);
}

/* Constants are merged where rounding is all that changes: not when a factor or the product could
 * leave the range of the type. f16 reaches 65504 only. */
static bool set_factor(struct match *m, double a, double b, double c) {
    bool narrow = dtype_size(val_type(match_graph(m), match_root(m))->dtype) < 4;
    double limit = narrow ? 256 : 0x1p40;
    if (!root_is_float(m) || !is_tame(a) || !is_tame(b) || !is_tame(c) || a == 0 || b == 0)
        return false;
    if (fabs(a) > limit || fabs(b) > limit || fabs(c) > limit) return false;
    if (narrow && (fabs(a) < 1 / limit || fabs(b) < 1 / limit || fabs(c) < 1 / limit)) return false;
    match_set_num(m, "c", c);
    return true;
}

static bool c_is_ab(struct match *m) {
    double a = match_num(m, "a"), b = match_num(m, "b");
    return set_factor(m, a, b, a * b);
}

static bool c_is_a_over_b(struct match *m) {
    double a = match_num(m, "a"), b = match_num(m, "b");
    return b != 0 && set_factor(m, a, b, a / b);
}

static bool c_is_b_over_a(struct match *m) {
    double a = match_num(m, "a"), b = match_num(m, "b");
    return a != 0 && set_factor(m, a, b, b / a);
}

/* Integers wrap, so sums of constants are exact while they can be told exactly. */
static bool c_is_int_sum(struct match *m) {
    double c = match_num(m, "a") + match_num(m, "b");
    enum dtype t = val_type(match_graph(m), match_root(m))->dtype;
    if (!root_is_int(m) || dtype_size(t) < 4 || fabs(c) > 0x1p30) return false;
    match_set_num(m, "c", c);
    return true;
}

static bool c_is_minus_a(struct match *m) {
    if (!root_is_float(m)) return false;
    match_set_num(m, "c", -match_num(m, "a"));
    return true;
}

/* A power of two has an exact reciprocal, while neither is subnormal in the narrowest type. */
static bool c_is_exact_reciprocal(struct match *m) {
    int exponent;
    double a = match_num(m, "a");
    if (!root_is_float(m) || fabs(frexp(a, &exponent)) != 0.5 || exponent < -13 || exponent > 14)
        return false;
    match_set_num(m, "c", 1 / a);
    return true;
}

/* ---- casts --------------------------------------------------------------------------------- */
/* Digits and range of a type as a binary number: every integer up to 2^bits, exponents [low, high].
 */
struct format {
    int bits, low, high;
};

static struct format format_of(enum dtype t) {
    switch (t) {
    case DT_f64: return (struct format){53, -1074, 1024};
    case DT_f32: return (struct format){24, -149, 128};
    case DT_f16: return (struct format){11, -24, 16};
    case DT_bf16: return (struct format){8, -133, 128};
    case DT_i64: return (struct format){63, 0, 63};
    case DT_i32: return (struct format){31, 0, 31};
    case DT_i16: return (struct format){15, 0, 15};
    case DT_i8: return (struct format){7, 0, 7};
    case DT_bool: return (struct format){1, 0, 1};
    default: return (struct format){0, 0, 0};
    }
}

/* Whether every value of `from` (NaN and infinities too) is one of `to`. */
static bool holds_all(enum dtype to, enum dtype from) {
    struct format p = format_of(to), q = format_of(from);
    if (to == from) return true;
    if (p.bits == 0 || q.bits == 0 || to == DT_bool) return false;
    if (dtype_is_float(from) && !dtype_is_float(to)) return false;
    return q.bits <= p.bits && q.low >= p.low && q.high <= p.high;
}

static bool inner_cast_is_lossless(struct match *m) {
    const struct graph *g = match_graph(m);
    return holds_all(attr_dtype(g, match_node(m, "d"), ATTR_dtype),
                     val_type(g, match_val(m, "x"))->dtype);
}

static bool cast_to_own_type(struct match *m) {
    const struct graph *g = match_graph(m);
    return val_type(g, match_val(m, "x"))->dtype == val_type(g, match_root(m))->dtype;
}

/* ---- guards of masked softmax -------------------------------------------------------------- */
static bool x_is_never_nan(struct match *m) {
    const struct graph *g = match_graph(m);
    val_id x = match_val(m, "x");
    while (val_op(g, x) == OP_cast) x = node_in(g, val_def(g, x), 0);
    if (val_op(g, x) != OP_softmax) return false;
    return mask_rows_visible(g, node_in(g, val_def(g, x), 0),
                             attr_int(g, val_def(g, x), ATTR_axis));
}

// clang-format off
static const struct rule rules[] = {
/*   name              pattern                               replacement            guard */
    {"add-0",          "(add x 0)",                          "x",                   NULL},
    {"sub-0",          "(sub x 0)",                          "x",                   NULL},
    {"0-sub",          "(sub 0 x)",                          "(neg x)",             NULL},
    {"mul-1",          "(mul x 1)",                          "x",                   NULL},
    {"mul-minus-1",    "(mul x -1)",                         "(neg x)",             NULL},
    {"div-1",          "(div x 1)",                          "x",                   NULL},
    {"div-minus-1",    "(div x -1)",                         "(neg x)",             NULL},
    {"mul-0-int",      "(mul x 0)",                          "0",                   root_is_int},
    {"sub-self-int",   "(sub x x)",                          "0",                   root_is_int},
    {"neg-neg",        "(neg (neg x))",                      "x",                   NULL},
    {"add-neg",        "(add x (neg y))",                    "(sub x y)",           NULL},
    {"sub-neg",        "(sub x (neg y))",                    "(add x y)",           NULL},
    {"mul-neg-neg",    "(mul (neg x) (neg y))",              "(mul x y)",           NULL},
    {"neg-mul",        "(neg (mul x #a))",                   "(mul x #c)",          c_is_minus_a},
    {"mul-neg",        "(mul (neg x) #a)",                   "(mul x #c)",          c_is_minus_a},
    {"neg-div",        "(neg (div x #a))",                   "(div x #c)",          c_is_minus_a},
    {"div-neg",        "(div (neg x) #a)",                   "(div x #c)",          c_is_minus_a},
    {"mul-mul",        "(mul (mul x #a) #b)",                "(mul x #c)",          c_is_ab},
    {"mul-div",        "(mul (div x #a) #b)",                "(mul x #c)",          c_is_b_over_a},
    {"div-mul",        "(div (mul x #a) #b)",                "(mul x #c)",          c_is_a_over_b},
    {"div-div",        "(div (div x #a) #b)",                "(div x #c)",          c_is_ab},
    {"add-add-int",    "(add (add x #a) #b)",                "(add x #c)",          c_is_int_sum},
    {"div-pow2",       "(div x #a)",                         "(mul x #c)",          c_is_exact_reciprocal},
    /* roots and powers; pow(-0, 0.5) and pow(-inf, 0.5) lose nothing but their sign or a NaN */
    {"recip-recip",    "(recip (recip x))",                  "x",                   NULL},
    {"recip-sqrt",     "(recip (sqrt x))",                   "(rsqrt x)",           NULL},
    {"1-div-sqrt",     "(div 1 (sqrt x))",                   "(rsqrt x)",           NULL},
    {"recip-rsqrt",    "(recip (rsqrt x))",                  "(sqrt x)",            NULL},
    {"1-div",          "(div 1 x)",                          "(recip x)",           root_is_float},
    {"pow-0",          "(pow x 0)",                          "1",                   NULL},
    {"pow-1",          "(pow x 1)",                          "x",                   NULL},
    {"pow-2",          "(pow x 2)",                          "(mul x x)",           NULL},
    {"pow-3",          "(pow x 3)",                          "(mul (mul x x) x)",   NULL},
    {"pow-half",       "(pow x 0.5)",                        "(sqrt x)",            root_is_float},
    {"pow-minus-half", "(pow x -0.5)",                       "(rsqrt x)",           root_is_float},
    {"pow-minus-1",    "(pow x -1)",                         "(recip x)",           root_is_float},
    {"abs-abs",        "(abs (abs x))",                      "(abs x)",             NULL},
    {"abs-neg",        "(abs (neg x))",                      "(abs x)",             NULL},
    {"relu-relu",      "(relu (relu x))",                    "(relu x)",            NULL},
    /* order */
    {"max-low",        "(max x -inf)",                       "x",                   NULL},
    {"min-high",       "(min x inf)",                        "x",                   NULL},
    {"max-self",       "(max x x)",                          "x",                   NULL},
    {"min-self",       "(min x x)",                          "x",                   NULL},
    {"clip-all",       "(clip x -inf inf)",                  "x",                   NULL},
    /* truth */
    {"not-not",        "(not (not x))",                      "x",                   NULL},
    {"not-eq",         "(not (eq x y))",                     "(ne x y)",            NULL},
    {"not-ne",         "(not (ne x y))",                     "(eq x y)",            NULL},
    {"eq-true",        "(eq x 1)",                           "x",                   x_is_bool},
    {"eq-false",       "(eq x 0)",                           "(not x)",             x_is_bool},
    {"ne-true",        "(ne x 1)",                           "(not x)",             x_is_bool},
    {"ne-false",       "(ne x 0)",                           "x",                   x_is_bool},
    {"and-self",       "(and x x)",                          "x",                   NULL},
    {"or-self",        "(or x x)",                           "x",                   NULL},
    {"and-true",       "(and x 1)",                          "x",                   x_is_bool},
    {"and-false",      "(and x 0)",                          "0",                   NULL},
    {"or-false",       "(or x 0)",                           "x",                   NULL},
    {"or-true",        "(or x 1)",                           "1",                   x_is_bool},
    {"where-true",     "(where 1 x y)",                      "x",                   NULL},
    {"where-false",    "(where 0 x y)",                      "y",                   NULL},
    {"where-same",     "(where b x x)",                      "x",                   NULL},
    {"where-not",      "(where (not b) x y)",                "(where b y x)",       NULL},
    {"bool-cast-ne",   "(ne (cast x) 0)",                    "x",                   x_is_bool},
    {"bool-cast-eq",   "(eq (cast x) 0)",                    "(not x)",             x_is_bool},
    /* casts */
    {"cast-same",      "(cast x)",                           "x",                   cast_to_own_type},
    {"cast-cast",      "(cast:c (cast:d x))",                "(cast:c x)",          inner_cast_is_lossless},
    /* the guard that exporters put around softmax */
    {"softmax-nan",    "(where (isnan x) 0 x)",              "x",                   x_is_never_nan},
};
// clang-format on

const struct rule *simplify_rules(int *n) {
    *n = (int)(sizeof rules / sizeof rules[0]);
    return rules;
}
