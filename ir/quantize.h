// SPDX-License-Identifier: Apache-2.0
/* quantize.h - what passes need to write quantize and dequantize: scopes as tiles, the types of
 * scales, scales from earlier steps, products of codes. docs/quantization.md has the definitions.
 */
#ifndef LATHE_IR_QUANTIZE_H
#define LATHE_IR_QUANTIZE_H

#include "ir/build.h"

/* The rows and columns of a tile of the last two axes that share a scale; 0: the whole axis.
 * {.whole}: the whole tensor. A row of x is {1, 0}, a group of 128 {1, 128}, a block {128, 128}. */
struct quant_tile {
    bool whole;
    int64_t rows, cols;
};
/* The `tile` attribute of a quantize or dequantize node. */
struct quant_tile quant_tile_of(const struct graph *g, node_id n);
/* The shape of the scales of `x`, of element type `dtype`; false where the tile does not fit the
 * rank or an axis cut into pieces has no known size. */
bool quant_scale_type(const struct type *x, struct quant_tile tile, enum dtype dtype,
                      struct type *out);
/* The largest magnitude: 448, 57344 or 127; 0 for types that are no format. */
double quant_largest(enum dtype format);

struct quant_how {
    enum dtype format, scale_type;
    struct quant_tile tile;
    double eps;
    int64_t margin;
};
#define QUANT_HOW(format, ...)                                                                     \
    ((struct quant_how){format, DT_f32, .eps = 1e-10, .tile = {__VA_ARGS__}})
/* codes; val_at(.., 1) are the scales, 2 the amax. `scale` VAL_NONE: from x itself. */
val_id build_quantize(struct graph *g, val_id x, val_id scale, const struct quant_how *h, str_id o);
val_id build_dequantize(struct graph *g, val_id codes, val_id scale, struct quant_tile tile,
                        enum dtype dtype, str_id o);
/* (amax + eps) / largest * 2^margin in the scale's type, for any shape of amax (f32). */
val_id build_quant_scale(struct graph *g, val_id amax, const struct quant_how *h, str_id o);
/* Delayed scaling: `history` f32[n] holds the amax of the last n steps, newest first, zeros before
 * there were any. The scale for this step is that of the largest of them, and of `first` (f32[])
 * while all are zero, or VAL_NONE; the next history has this step's amax in front. */
val_id build_delayed_scale(struct graph *g, val_id history, val_id first, const struct quant_how *h,
                           str_id o);
val_id build_next_history(struct graph *g, val_id history, val_id amax, str_id o);

/* a b^T of codes with K last (ops.def: scaled_matmul); scales in f32. */
val_id build_scaled_matmul(struct graph *g, val_id a, val_id b, val_id sa, val_id sb,
                           enum dtype dtype, str_id o);
enum { SCALED_TILE = 128 }; /* columns, and rows, of its blocks */
/* The tiles of both operands by the shapes of their scales; false: not of one kind. */
bool scaled_tiles(const struct type *a, const struct type *b, const struct type *sa,
                  const struct type *sb, struct quant_tile out[2]);

#endif
