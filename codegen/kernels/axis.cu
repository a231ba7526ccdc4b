// SPDX-License-Identifier: Apache-2.0
/* axis.cu - argmax and cumsum along an axis of length N; lines lie INNER apart. argmax: i64 of the
 * first largest element, NaN counts as the largest. cumsum: running sums in f64 or i64. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef LINES /* 64 rows of 100 */
#define LINES     64
#define N         100
#define INNER     1
#define DATA      float
#define VALUE     float
#define TOTAL     double
#define EXCLUSIVE 0
#define REVERSE   0
#endif

/* Whether b, found later, takes the place of a. */
template <class T> DEV bool beats(T b, T a) { return b > a || (b != b && a == a); }

#if INNER == 1
/* A warp a line. */
extern "C" __global__ void __launch_bounds__(256) argmax(const DATA *x, i64 *y, u64 *) {
    const i64 line = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (line >= LINES) return;
    const DATA *p = x + line * N;
    i64 best = lane < N ? lane : 0;
    VALUE value = to_reg(p[best]);
    for (i64 k = lane + 32; k < N; k += 32) {
        const VALUE v = to_reg(p[k]);
        if (beats(v, value)) value = v, best = k;
    }
    for (int w = 16; w > 0; w /= 2) {
        const VALUE v = __shfl_xor_sync(FULL_WARP, value, w);
        const i64 k = __shfl_xor_sync(FULL_WARP, best, w);
        if (beats(v, value) || (!beats(value, v) && k < best)) value = v, best = k;
    }
    if (lane == 0) y[line] = best;
}
#else
/* A thread a line. */
extern "C" __global__ void __launch_bounds__(256) argmax(const DATA *x, i64 *y, u64 *) {
    const i64 line = (i64)blockIdx.x * 256 + threadIdx.x;
    if (line >= LINES) return;
    const DATA *p = x + line / INNER * N * INNER + line % INNER;
    i64 best = 0;
    VALUE value = to_reg(p[0]);
    for (i64 k = 1; k < N; k++) {
        const VALUE v = to_reg(p[k * INNER]);
        if (beats(v, value)) value = v, best = k;
    }
    y[line] = best;
}
#endif

extern "C" __global__ void __launch_bounds__(256) cumsum(const DATA *x, DATA *y, u64 *) {
    const i64 line = (i64)blockIdx.x * 256 + threadIdx.x;
    if (line >= LINES) return;
    const i64 first = line / INNER * N * INNER + line % INNER;
    TOTAL sum = 0;
    for (i64 k = 0; k < N; k++) {
        const i64 at = first + (REVERSE ? N - 1 - k : k) * INNER;
        const TOTAL with = sum_of::join(sum, (TOTAL)to_reg(x[at]));
        y[at] = store_as<DATA>::from((VALUE)(EXCLUSIVE ? sum : with));
        sum = with;
    }
}
