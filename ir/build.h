// SPDX-License-Identifier: Apache-2.0
/* build.h - short names for building legal nodes in passes and the importer. Everything here
 * unwinds on illegal use; check user input before. Origins are passed as `o`. */
#ifndef LATHE_IR_BUILD_H
#define LATHE_IR_BUILD_H

#include "ir/graph.h"

/* Node n once more, with its attributes and origin, on other operands. */
val_id build_like(struct graph *g, node_id n, const val_id *in);
val_id build_1(struct graph *g, enum op op, val_id a, str_id o);
val_id build_2(struct graph *g, enum op op, val_id a, val_id b, str_id o);
val_id build_3(struct graph *g, enum op op, val_id a, val_id b, val_id c, str_id o);
/* A constant scalar of the element type (rank 0). */
val_id build_scalar(struct graph *g, enum dtype t, double x, str_id o);
val_id build_scalar_int(struct graph *g, enum dtype t, int64_t x, str_id o);
/* A constant from packed bytes, copied. */
val_id build_const(struct graph *g, const struct type *t, const void *bytes, str_id o);
/* Every element `x`; works for symbolic shapes. */
val_id build_full(struct graph *g, const struct type *t, double x, str_id o);
val_id build_iota(struct graph *g, enum dtype t, dim n, double start, double step, str_id o);
/* The same value when nothing would change. */
val_id build_cast(struct graph *g, val_id a, enum dtype t, str_id o);
val_id build_reshape(struct graph *g, val_id a, const dim *shape, int rank, str_id o);
val_id build_transpose(struct graph *g, val_id a, const int64_t *perm, str_id o);
val_id build_expand(struct graph *g, val_id a, const dim *shape, int rank, str_id o);
val_id build_slice(struct graph *g, val_id a, const dim *starts, const dim *sizes,
                   const int64_t *steps, str_id o); /* steps NULL: all 1 */
val_id build_concat(struct graph *g, const val_id *parts, int n, int64_t axis, str_id o);
val_id build_reduce(struct graph *g, enum op op, val_id a, const int64_t *axes, int n,
                    bool keepdims, str_id o);
val_id build_matmul(struct graph *g, val_id a, val_id b, bool trans_a, bool trans_b, str_id o);
/* Swap the last two axes. */
val_id build_swap_last(struct graph *g, val_id a, str_id o);
/* Sum `a` down to `shape`, undoing numpy broadcasting: the one place where that happens. */
val_id build_unbroadcast(struct graph *g, val_id a, const struct type *shape, str_id o);
/* x*k and x+k with a scalar constant of x's type. */
val_id build_scale(struct graph *g, val_id a, double k, str_id o);
val_id build_shift(struct graph *g, val_id a, double k, str_id o);
/* If `v` is a const (or full/cast/expand/reshape of one) whose elements are all the same number. */
bool val_uniform(const struct graph *g, val_id v, double *x);
/* Bytes of a const node with known data, else NULL. */
const struct blob *val_const(const struct graph *g, val_id v);

#endif
