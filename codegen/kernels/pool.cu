// SPDX-License-Identifier: Apache-2.0
/* pool.cu - max pooling over one to three axes with the place of each maximum within its plane.
 * Padding never wins, the first of equal elements does, NaN beats numbers. A thread a result. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef PLANES /* 2 x 2 over 8 x 8 */
#define PLANES 4
#define IN0    1
#define IN1    8
#define IN2    8
#define OUT0   1
#define OUT1   4
#define OUT2   4
#define K0     1
#define K1     2
#define K2     2
#define S0     1
#define S1     2
#define S2     2
#define P0     0
#define P1     0
#define P2     0
#define D0     1
#define D1     1
#define D2     1
#define REAL   float
#endif

extern "C" __global__ void __launch_bounds__(256)
    max_pool(const REAL *x, REAL *y, i64 *index, u64 *) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, plane = (i64)OUT0 * OUT1 * OUT2;
    if (at >= PLANES * plane) return;
    const int o = (int)(at % plane), o2 = o % OUT2, o1 = o / OUT2 % OUT1, o0 = o / (OUT1 * OUT2);
    const REAL *p = x + at / plane * ((i64)IN0 * IN1 * IN2);
    REAL best = smallest<REAL>();
    int where = -1;
    for (int a = 0; a < K0; a++) {
        const int d = o0 * S0 - P0 + a * D0;
        if (d < 0 || d >= IN0) continue;
        for (int b = 0; b < K1; b++) {
            const int h = o1 * S1 - P1 + b * D1;
            if (h < 0 || h >= IN1) continue;
            for (int c = 0; c < K2; c++) {
                const int w = o2 * S2 - P2 + c * D2;
                if (w < 0 || w >= IN2) continue;
                const int i = (d * IN1 + h) * IN2 + w;
                const REAL v = p[i];
                if (where >= 0 && !(v > best || (v != v && best == best))) continue;
                best = v;
                where = i;
            }
        }
    }
    y[at] = best;
    index[at] = where < 0 ? 0 : where;
}
