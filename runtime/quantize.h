// SPDX-License-Identifier: Apache-2.0
/* quantize.h - quantization of arrays in memory and what it costs in accuracy: for looking at
 * tensors, and the reference for the op of that name, whose definitions (docs/quantization.md) are
 * written down here a second time, element by element. Not a fast path. Thread-safe. */
#ifndef LATHE_RUNTIME_QUANTIZE_H
#define LATHE_RUNTIME_QUANTIZE_H

#include "base/expand.h"
#include "ir/quantize.h"

struct quant_spec {
    enum dtype format, scale_type; /* as the op's; with expansion the scale is the f32 amax */
    struct quant_tile tile;        /* of the rows and columns given */
    float eps;
    bool contract;                    /* expansion may compress groups that are wider */
    const struct expand_table *table; /* NULL: no expansion; else tiles are groups of a row, of at
                                         most EXPAND_GROUP_MAX */
};
struct quantized {
    int64_t rows, cols;           /* of x */
    int64_t tile_rows, tile_cols; /* elements of a full tile */
    int64_t down, across;         /* tiles */
    uint8_t *codes;               /* rows * cols; int8 in two's complement */
    float *scale;                 /* down * across; as stored, widened */
    uint8_t *k;                   /* likewise, in sixteenths; NULL without expansion */
    float *values;                /* rows * cols: what the codes stand for */
};
/* x: rows * cols, row-major; results in the arena. */
struct quantized quantize_matrix(struct arena *a, const float *x, int64_t rows, int64_t cols,
                                 const struct quant_spec *s);

/* Over elements that are finite and stay so; percentages of all elements. */
struct quant_error {
    double rmse, relative_rmse; /* root mean square of the error; over that of x */
    double max_relative;        /* over elements that are not 0 */
    double saturated, vanished; /* %: beyond the format's largest; not 0 but stored as 0 */
    double sqnr;                /* dB; infinite without error */
    double amax;
    int64_t nonfinite; /* elements left out */
};
struct quant_error quantize_error(const float *x, const struct quantized *q,
                                  const struct quant_spec *s);

#endif
