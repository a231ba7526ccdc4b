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
#define ROWS_KIND
#endif

#ifdef ROWS_KIND
/* A thread moves one WORD; INNER counts words. */
extern "C" __global__ void __launch_bounds__(256)
    gather_rows(const WORD *x, const INDEX *idx, WORD *y, u64 *error) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
    if (at >= (i64)OUTER * NIDX * INNER) return;
    const i64 row = at / INNER, col = at % INNER, k = row % NIDX, outer = row / NIDX;
    const i64 value = (i64)idx[k], i = wrap_index(value, AXIS);
    WORD word = {};
    if (i >= 0)
        word = x[(outer * AXIS + i) * INNER + col];
    else if (outer == 0 && col == 0)
        report_index(error, k, value);
    y[at] = word;
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
