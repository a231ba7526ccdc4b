// SPDX-License-Identifier: Apache-2.0
/* grad.h - what the gradient rules (grad_rules*.c) and the driver (grad.c) share. Private to
 * passes/. A rule gets one forward node whose result has a gradient, builds the gradients of its
 * operands from ordinary ops and hands each to grad_acc. A rule need not check whether an operand
 * wants a gradient, nor undo broadcasting, nor keep to the operand's element type: grad_acc does
 * all three. */
#ifndef LATHE_PASSES_GRAD_H
#define LATHE_PASSES_GRAD_H

#include "passes/pass.h"

struct grad; /* the driver's state */

/* One forward node as its rule sees it. Operands and results are read through the functions below.
 */
struct grad_node {
    struct grad *d;
    struct graph *g;
    node_id n;
    str_id o;    /* origin, for every node that the rule builds */
    val_id a, b; /* operands 0 and 1 (VAL_NONE when absent) */
    val_id y,
        dy; /* result 0 and its gradient (zeros were built when only another result has one) */
};

typedef enum status grad_rule(struct grad_node *s);
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs)                \
    grad_rule grad_##grad;
#include "ir/ops.def"
#undef OP

static inline val_id grad_in(const struct grad_node *s, int k) {
    return node_in(s->g, s->n, k);
}
/* A copy: types move when nodes are added. */
static inline struct type grad_type(const struct grad_node *s, val_id v) {
    return *val_type(s->g, v);
}
/* Whether operand k lies on a path from a trained parameter; to spare work and to refuse. */
bool grad_wants(const struct grad_node *s, int k);
/* The gradient of result k; VAL_NONE when nothing that matters uses it. */
val_id grad_out(const struct grad_node *s, int k);
/* Add `v` to the gradient of operand k. Always ST_OK, so that a rule can end with it. */
enum status grad_acc(struct grad_node *s, int k, val_id v);
/* The same for a value that the node depends on through others, whose rules it stands in for. */
enum status grad_acc_value(struct grad_node *s, val_id to, val_id v);
/* The same for `v` as gradient of the node itself, a slice of operand 0. */
enum status grad_acc_slice(struct grad_node *s, val_id v);
/* v divided by the number of elements along `n` axes of t. */
val_id grad_mean(const struct grad_node *s, val_id v, const struct type *t, const int64_t *axes,
                 int n);

/* Short forms, so that rules read like their formulas. */
static inline val_id e_1(const struct grad_node *s, enum op op, val_id a) {
    return build_1(s->g, op, a, s->o);
}
static inline val_id e_2(const struct grad_node *s, enum op op, val_id a, val_id b) {
    return build_2(s->g, op, a, b, s->o);
}
static inline val_id e_mul(const struct grad_node *s, val_id a, val_id b) {
    return build_2(s->g, OP_mul, a, b, s->o);
}
static inline val_id e_div(const struct grad_node *s, val_id a, val_id b) {
    return build_2(s->g, OP_div, a, b, s->o);
}
static inline val_id e_add(const struct grad_node *s, val_id a, val_id b) {
    return build_2(s->g, OP_add, a, b, s->o);
}
static inline val_id e_sub(const struct grad_node *s, val_id a, val_id b) {
    return build_2(s->g, OP_sub, a, b, s->o);
}
static inline val_id e_neg(const struct grad_node *s, val_id a) {
    return build_1(s->g, OP_neg, a, s->o);
}
static inline val_id e_scale(const struct grad_node *s, val_id a, double k) {
    return build_scale(s->g, a, k, s->o);
}
static inline val_id e_shift(const struct grad_node *s, val_id a, double k) {
    return build_shift(s->g, a, k, s->o);
}
static inline val_id e_where(const struct grad_node *s, val_id c, val_id a, val_id b) {
    return build_3(s->g, OP_where, c, a, b, s->o);
}
/* A scalar of v's element type. */
static inline val_id e_num(const struct grad_node *s, val_id v, double x) {
    return build_scalar(s->g, val_type(s->g, v)->dtype, x, s->o);
}
static inline val_id e_reshape(const struct grad_node *s, val_id v, const struct type *t) {
    return build_reshape(s->g, v, t->dims, t->rank, s->o);
}

#endif
