// SPDX-License-Identifier: Apache-2.0
/* gather.cu - gather: rows of INNER elements along an axis; gather_elements: single elements, whose
 * place but for the axis is base_at() of body.cuh. Elements are moved as they are, WORD at a time.
 * A bad index reads nothing: zeros are written and the fault word says which it was. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef NIDX /* 32 rows of 64 floats out of 100 */
#define NIDX  32
#define OUTER 1
#define AXIS  100
#define INNER 64
#define WORD  u32
#define INDEX i64
#define AT    u32
#define SETS  1
#define ROWS_KIND
#endif

#ifdef ROWS_KIND
/* Labels: none is negative but LABELS, which stands for no row in particular and takes the first.
 */
DEV i64 row_of(i64 value) {
#ifdef LABELS
    return value == LABELS ? 0 : value < 0 ? -1 : wrap_index(value, AXIS);
#else
    return wrap_index(value, AXIS);
#endif
}

/* A thread moves SETS words, all under way at the same time; INNER counts words. AT is a type for
 * numbers of result words. */
extern "C" __global__ void __launch_bounds__(256)
    gather_rows(const WORD *x, const INDEX *idx, WORD *y, u64 *error) {
    const AT first = (AT)blockIdx.x * (256 * SETS) + threadIdx.x, total = (AT)OUTER * NIDX * INNER;
    i64 value[SETS];
    WORD word[SETS];
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const AT at = first + s * 256;
        value[s] = at < total ? (i64)idx[at / INNER % NIDX] : 0;
    }
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const AT at = first + s * 256, row = at / INNER, col = at % INNER, outer = row / NIDX;
        const i64 i = row_of(value[s]);
        word[s] = {};
        if (at >= total) continue;
        if (i >= 0)
            word[s] = x[((i64)outer * AXIS + i) * INNER + col];
        else if (outer == 0 && col == 0)
            report_index(error, row % NIDX, value[s]);
    }
#pragma unroll
    for (int s = 0; s < SETS; s++)
        if (first + s * 256 < total) y[first + s * 256] = word[s];
}
#else
#include "body.cuh"
extern "C" __global__ void __launch_bounds__(256)
    gather_elements(const WORD *x, const INDEX *idx, WORD *y, u64 *error) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
    if (at >= NIDX) return;
    const i64 value = (i64)idx[at], i = wrap_index(value, AXIS);
    WORD word = {};
    if (i >= 0)
        word = x[base_at(at) + i * INNER];
    else
        report_index(error, at, value);
    y[at] = word;
}
#endif
