// SPDX-License-Identifier: Apache-2.0
/* grad_rules.c - gradient rules of elementwise ops: x (a) and c (b) are the operands, y the result,
 * g the result's gradient. Where a function has a kink or a pole, the convention is PyTorch's. */
#include "passes/grad.h"
#include <math.h>

#define PI 3.14159265358979323846

/* One operand: the gradient as an expression in x, y and g. */
#define UNARY(name, expr)                                                                          \
    enum status grad_##name(struct grad_node *s) {                                                 \
        val_id x = s->a, y = s->y, g = s->dy;                                                      \
        (void)x;                                                                                   \
        (void)y;                                                                                   \
        return grad_acc(s, 0, expr);                                                               \
    }
#define MUL(p, q)  e_mul(s, p, q)
#define DIV(p, q)  e_div(s, p, q)
#define SUB(p, q)  e_sub(s, p, q)
#define NEG(p)     e_neg(s, p)
#define K(p, k)    e_scale(s, p, k)
#define PLUS(p, k) e_shift(s, p, k)
#define F(op, p)   e_1(s, OP_##op, p)

// clang-format off
UNARY(neg,     NEG(g))
UNARY(abs,     MUL(g, F(sign, x)))
UNARY(exp,     MUL(g, y))
UNARY(log,     DIV(g, x))
UNARY(log1p,   DIV(g, PLUS(x, 1.0)))
UNARY(expm1,   MUL(g, PLUS(y, 1.0)))
UNARY(sqrt,    K(DIV(g, y), 0.5))
UNARY(rsqrt,   K(MUL(g, MUL(y, MUL(y, y))), -0.5))
UNARY(recip,   NEG(MUL(g, MUL(y, y))))
UNARY(sin,     MUL(g, F(cos, x)))
UNARY(cos,     NEG(MUL(g, F(sin, x))))
UNARY(tan,     MUL(g, PLUS(MUL(y, y), 1.0)))
UNARY(asin,    MUL(g, F(rsqrt, PLUS(NEG(MUL(x, x)), 1.0))))
UNARY(acos,    NEG(MUL(g, F(rsqrt, PLUS(NEG(MUL(x, x)), 1.0)))))
UNARY(atan,    DIV(g, PLUS(MUL(x, x), 1.0)))
UNARY(sinh,    MUL(g, F(cosh, x)))
UNARY(cosh,    MUL(g, F(sinh, x)))
UNARY(tanh,    MUL(g, PLUS(NEG(MUL(y, y)), 1.0)))
UNARY(erf,     K(MUL(g, F(exp, NEG(MUL(x, x)))), 2.0 / sqrt(PI)))
UNARY(sigmoid, MUL(g, MUL(y, PLUS(NEG(y), 1.0))))
UNARY(relu,    e_where(s, e_2(s, OP_lt, e_num(s, x, 0.0), x), g, e_num(s, g, 0.0)))
// clang-format on

/* grad_acc casts back. A parameter's gradient that was added up in f32 goes to it as it was. */
enum status grad_cast(struct grad_node *s) {
    val_id g = s->dy, wide = val_op(s->g, g) == OP_cast ? node_in(s->g, val_def(s->g, g), 0) : g;
    bool same = val_type(s->g, wide)->dtype == val_type(s->g, s->a)->dtype;
    return grad_acc(s, 0, same && val_op(s->g, s->a) == OP_param ? wide : g);
}

enum status grad_silu(struct grad_node *s) { /* sig * (1 + x*(1 - sig)) */
    val_id x = s->a, sig = F(sigmoid, x);
    return grad_acc(s, 0, MUL(s->dy, MUL(sig, PLUS(MUL(x, PLUS(NEG(sig), 1.0)), 1.0))));
}

/* gelu = x*Phi(x), so Phi(x) + x*phi(x); the tanh form with u = k*(x + 0.044715 x^3), t = tanh u:
 * (1+t)/2 + x/2 * (1-t^2) * k*(1 + 3*0.044715 x^2), k = sqrt(2/pi). */
enum status grad_gelu(struct grad_node *s) {
    val_id x = s->a, x2 = MUL(x, x), left, right;
    if (attr_bool(s->g, s->n, ATTR_approximate)) {
        double k = sqrt(2.0 / PI);
        val_id t = F(tanh, MUL(x, PLUS(K(x2, 0.044715 * k), k)));
        left = PLUS(K(t, 0.5), 0.5);
        right = MUL(K(x, 0.5), MUL(PLUS(NEG(MUL(t, t)), 1.0), PLUS(K(x2, 3 * 0.044715 * k), k)));
    } else {
        left = PLUS(K(F(erf, K(x, sqrt(0.5))), 0.5), 0.5);
        right = MUL(x, K(F(exp, K(x2, -0.5)), 1.0 / sqrt(2.0 * PI)));
    }
    return grad_acc(s, 0, MUL(s->dy, e_add(s, left, right)));
}

/* ---- two operands -------------------------------------------------------------------------- */
enum status grad_add(struct grad_node *s) {
    TRY(grad_acc(s, 0, s->dy));
    return grad_acc(s, 1, s->dy);
}

enum status grad_sub(struct grad_node *s) {
    TRY(grad_acc(s, 0, s->dy));
    return grad_acc(s, 1, NEG(s->dy));
}

enum status grad_mul(struct grad_node *s) {
    TRY(grad_acc(s, 0, MUL(s->dy, s->b)));
    return grad_acc(s, 1, MUL(s->dy, s->a));
}

enum status grad_div(struct grad_node *s) { /* 1/c and -x/c^2 */
    val_id q = DIV(s->dy, s->b);
    TRY(grad_acc(s, 0, q));
    return grad_acc(s, 1, NEG(MUL(q, s->y)));
}

enum status grad_mod(struct grad_node *s) { /* y = x - q*c with q constant between jumps */
    val_id q = F(round, DIV(SUB(s->a, s->y), s->b));
    TRY(grad_acc(s, 0, s->dy));
    return grad_acc(s, 1, NEG(MUL(s->dy, q)));
}

/* c * x^(c-1) for a known c, without powf where products do. */
static val_id pow_slope(struct grad_node *s, double c) {
    val_id x = s->a;
    if (c == 2.0) return K(x, 2.0);
    if (c == 3.0) return K(MUL(x, x), 3.0);
    if (c == 0.5) return K(F(recip, s->y), 0.5);
    if (c == -1.0) return NEG(MUL(s->y, s->y));
    return K(e_2(s, OP_pow, x, e_num(s, x, c - 1.0)), c);
}

enum status grad_pow(struct grad_node *s) {
    val_id x = s->a, c = s->b, zero = e_num(s, x, 0.0);
    double k;
    if (val_uniform(s->g, c, &k)) {
        if (k == 1.0) TRY(grad_acc(s, 0, s->dy));
        if (k != 0.0 && k != 1.0) TRY(grad_acc(s, 0, MUL(s->dy, pow_slope(s, k))));
    } else if (grad_wants(s, 0)) {
        val_id slope = MUL(c, e_2(s, OP_pow, x, PLUS(c, -1.0)));
        val_id flat = e_2(s, OP_eq, c, zero); /* x^0 is 1 everywhere, at 0 too */
        TRY(grad_acc(s, 0, e_where(s, flat, zero, MUL(s->dy, slope))));
    }
    if (!grad_wants(s, 1)) return ST_OK;
    /* y * ln x; 0^c is 0 for all c >= 0. A negative x has no derivative by c: NaN. */
    val_id flat = e_2(s, OP_and, e_2(s, OP_eq, x, zero), e_2(s, OP_le, zero, c));
    return grad_acc(s, 1, e_where(s, flat, zero, MUL(s->dy, MUL(s->y, F(log, x)))));
}

static enum status extreme(struct grad_node *s, val_id low, val_id high, int to_low, int to_high) {
    val_id zero = e_num(s, s->dy, 0.0), half = K(s->dy, 0.5);
    val_id tie = e_where(s, e_2(s, OP_eq, low, high), half, zero);
    TRY(grad_acc(s, to_high, e_where(s, e_2(s, OP_lt, low, high), s->dy, tie)));
    return grad_acc(s, to_low, e_where(s, e_2(s, OP_lt, high, low), s->dy, tie));
}

enum status grad_max(struct grad_node *s) { /* to b where a < b, to a where b < a */
    return extreme(s, s->a, s->b, 0, 1);
}

enum status grad_min(struct grad_node *s) { /* to a where a < b, to b where b < a */
    return extreme(s, s->a, s->b, 1, 0);
}

/* y = min(max(x, low), high): to x inclusive of the bounds, else to the bound that is y. */
enum status grad_clip(struct grad_node *s) {
    val_id x = s->a, low = s->b, high = grad_in(s, 2), zero = e_num(s, s->dy, 0.0);
    val_id above = e_2(s, OP_le, low, x), below = e_2(s, OP_le, x, high);
    TRY(grad_acc(s, 0, e_where(s, e_2(s, OP_and, above, below), s->dy, zero)));
    if (grad_wants(s, 1)) {
        val_id at_low = e_2(s, OP_and, e_2(s, OP_lt, x, low), e_2(s, OP_le, low, high));
        TRY(grad_acc(s, 1, e_where(s, at_low, s->dy, zero)));
    }
    if (!grad_wants(s, 2)) return ST_OK;
    val_id at_high = e_2(s, OP_or, e_2(s, OP_lt, high, x), e_2(s, OP_lt, high, low));
    return grad_acc(s, 2, e_where(s, at_high, s->dy, zero));
}

enum status grad_where(struct grad_node *s) {
    val_id zero = e_num(s, s->dy, 0.0);
    if (grad_wants(s, 1)) TRY(grad_acc(s, 1, e_where(s, s->a, s->dy, zero)));
    if (grad_wants(s, 2)) TRY(grad_acc(s, 2, e_where(s, s->a, zero, s->dy)));
    return ST_OK;
}
