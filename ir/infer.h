// SPDX-License-Identifier: Apache-2.0
/* infer.h - what the inference handlers of infer.c and infer_nn.c share. Private to ir/; everyone
 * else calls infer_types (graph.h). */
#ifndef LATHE_IR_INFER_H
#define LATHE_IR_INFER_H

#include "ir/graph.h"

/* One handler for each value of the `infer` column of ops.def. It finds the operand count checked
 * and out[] zeroed, except that out[0] of a SOURCE op is the given type. */
typedef enum status infer_fn(struct infer *x);
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs)                \
    infer_fn infer_##infer;
#include "ir/ops.def"
#undef OP

/* Report "op: message" with the node's origin and return `code`. */
enum status infer_fail(struct infer *x, enum status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Text for messages, in the graph's arena. */
const char *infer_show(struct infer *x, const struct type *t);
const char *infer_show_dim(struct infer *x, dim d);

static inline int64_t infer_int(const struct infer *x, enum attr_key k) {
    return x->attrs[k].i;
}
static inline const int64_t *infer_list(const struct infer *x, enum attr_key k, int *n) {
    *n = x->attrs[k].n;
    return x->attrs[k].list;
}

/* Operand k has rank `rank`, else a message that says what it should be. */
enum status infer_want_rank(struct infer *x, int k, int rank, const char *form);
enum status infer_want_float(struct infer *x, int k);
enum status infer_want_index(struct infer *x, int k);
/* Operands a and b have one element type. */
enum status infer_want_alike(struct infer *x, int a, int b);
enum status infer_want_type(struct infer *x, int k, const struct type *want, const char *what);
/* The `axis` attribute, 0 <= axis < rank. */
enum status infer_axis(struct infer *x, int rank, int *axis);
/* A list attribute of exactly n numbers in [low, high]. */
enum status infer_numbers(struct infer *x, enum attr_key k, int n, int64_t low, int64_t high,
                          const int64_t **out);
/* The `shape` attribute as dims of `t`, whose element type is set by the caller. */
enum status infer_shape_attr(struct infer *x, struct type *t);
/* A FLOAT attribute that is finite and at least `low`. */
enum status infer_number(struct infer *x, enum attr_key k, double low);

/* Sizes that cannot overflow: no number and no coefficient beyond INFER_DIM_MAX comes out. */
#define INFER_DIM_MAX ((int64_t)1 << 48)
enum status infer_add(struct infer *x, dim a, dim b, dim *out);
enum status infer_mul(struct infer *x, dim a, dim b, dim *out);
enum status infer_sub(struct infer *x, dim a, dim b, dim *out);

#endif
