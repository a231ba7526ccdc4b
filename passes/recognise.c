// SPDX-License-Identifier: Apache-2.0
/* recognise.c - composites from decomposed exports: activations here, norms in recognise_norm.c,
 * attention in recognise_attention.c.
 *
 * before:
 *   %a = mul(%x, %rsqrt2)
 *   %b = erf(%a)
 *   %c = add(%b, %one)
 *   %d = mul(%x, %c)
 *   %y = mul(%d, %half)
 * after:
 *   %y = gelu(%x)
 *
 * needs   the form that simplify leaves: powers as products, sums of negations as differences,
 * reductions with keepdims, quotients by powers of two as products
 * breaks  every id held outside (settle compacts)
 * order   before differentiation: composites have better gradients, and their pieces are used by
 * nothing else yet. A composite whose pieces something else reads is left alone. */
#include "passes/recognise.h"
#include <math.h>

/* How far a constant may be from its exact value: what exporters' rounding and short decimals do.
 */
static double tolerance(const struct match *m) {
    switch (val_type(match_graph(m), match_root(m))->dtype) {
    case DT_f64:
    case DT_f32: return 1e-5;
    case DT_f16: return 1e-3;
    default: return 8e-3;
    }
}

static bool near(const struct match *m, const char *name, double want) {
    return fabs(match_num(m, name) - want) <= tolerance(m) * want;
}

static bool s_is_sqrt_2(struct match *m) {
    return match_single(m, "e") && near(m, "s", 1.41421356237309505);
}

static bool s_is_sqrt_half(struct match *m) {
    return match_single(m, "e") && near(m, "s", 0.70710678118654752);
}

static bool gelu_tanh(struct match *m) {
    return match_single(m, "e") && near(m, "c", 0.044715) && near(m, "k", 0.79788456080286536);
}

static bool sigmoid_single(struct match *m) {
    return match_single(m, "e");
}

/* gelu(x) = x (1 + T) / 2 in the three orders of its two products */
#define GELU_ROWS(name, T, right, guard)                                                           \
    {name "-a", "(mul (mul x (add " T " 1)) 0.5)", right, guard},                                  \
        {name "-b", "(mul (mul x 0.5) (add " T " 1))", right, guard}, {                            \
        name "-c", "(mul x (mul (add " T " 1) 0.5))", right, guard                                 \
    }
#define ERF_DIV "(erf:e (div x #s))"
#define ERF_MUL "(erf:e (mul x #s))"
/* tanh(k (x + c x^3)), with the cube in its orders, and with x taken out */
#define TANH(cube) "(tanh:e (mul (add x " cube ") #k))"
#define CUBE_A     "(mul (mul (mul x x) x) #c)"
#define CUBE_B     "(mul (mul x x) (mul x #c))"
#define CUBE_C     "(mul x (mul (mul x x) #c))"
#define CUBE_D     "(mul x (mul x (mul x #c)))"
#define FACTOR_A   "(tanh:e (mul (mul x #k) (add (mul (mul x x) #c) 1)))"
#define FACTOR_B   "(tanh:e (mul (mul x (add (mul (mul x x) #c) 1)) #k))"
#define GELU       "(gelu x)"
#define GELU_TANH  "(gelu{approximate=true} x)"

// clang-format off
static const struct rule rules[] = {
    GELU_ROWS("gelu-div", ERF_DIV, GELU, s_is_sqrt_2),
    GELU_ROWS("gelu-mul", ERF_MUL, GELU, s_is_sqrt_half),
    GELU_ROWS("gelu-tanh-1", TANH(CUBE_A), GELU_TANH, gelu_tanh),
    GELU_ROWS("gelu-tanh-2", TANH(CUBE_B), GELU_TANH, gelu_tanh),
    GELU_ROWS("gelu-tanh-3", TANH(CUBE_C), GELU_TANH, gelu_tanh),
    GELU_ROWS("gelu-tanh-4", TANH(CUBE_D), GELU_TANH, gelu_tanh),
    GELU_ROWS("gelu-tanh-5", FACTOR_A, GELU_TANH, gelu_tanh),
    GELU_ROWS("gelu-tanh-6", FACTOR_B, GELU_TANH, gelu_tanh),
    {"sigmoid", "(recip (add (exp (neg x)) 1))", "(sigmoid x)", NULL},
    {"silu",    "(mul x (sigmoid:e x))",         "(silu x)",    sigmoid_single},
    {"silu-div", "(div x (add (exp:e (neg x)) 1))", "(silu x)", sigmoid_single},
};
// clang-format on

const struct rule *recognise_activations(int *n) {
    *n = (int)(sizeof rules / sizeof rules[0]);
    return rules;
}

enum status pass_recognise(struct pass_ctx *c, struct graph *g) {
    struct rewrite_set set = {.pass = "recognise"};
    int nacts, nnorms;
    const struct rule *acts = recognise_activations(&nacts), *norms = recognise_norms(&nnorms);
    struct rule *all = ARENA_ARRAY(c->scratch, struct rule, (size_t)(nacts + nnorms));
    for (int k = 0; k < nacts; k++) all[k] = acts[k];
    for (int k = 0; k < nnorms; k++) all[nacts + k] = norms[k];
    set.rules = all;
    set.nrules = nacts + nnorms;
    set.fns = recognise_attention_rules(&set.nfns);
    uint32_t *fired = ARENA_ARRAY(c->scratch, uint32_t, (size_t)(set.nrules + set.nfns));
    for (bool found = true; found;) {
        TRY(rewrite_run(c, g, &set, fired));
        found = false;
        for (int k = 0; k < set.nrules + set.nfns; k++) {
            found |= fired[k] > 0;
            fired[k] = 0;
        }
        /* What attention read by a detour is now read straight. */
        if (found) TRY(pass_simplify(c, g));
    }
    return ST_OK;
}
