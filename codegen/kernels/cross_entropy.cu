// SPDX-License-Identifier: Apache-2.0
/* cross_entropy.cu - softmax cross entropy of logits [ROWS, COLS]: loss and log of the sum of
 * exponentials, computed in REAL whatever they are in memory. A block a row, which is read once:
 * each thread keeps a running maximum and sum. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef ROWS /* 128 rows of 1000 */
#define ROWS         128
#define COLS         1000
#define STRIDE       1000
#define LABEL_STRIDE 1
#define VEC          4
#define THREADS      256
#define IGNORE       (-100)
#define MEM          float
#define REAL         float
#define LABEL        i64
#define LOSS         float
#define LSE          float
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy(const MEM *x, const LABEL *labels, LOSS *loss, LSE *lse_out, u64 *error) {
    const i64 row = blockIdx.x;
    const MEM *p = x + row * STRIDE;
    REAL m = smallest<REAL>(), s = 0;
    for (i64 c = (i64)threadIdx.x * VEC; c < COLS; c += THREADS * VEC) {
        REAL v[VEC];
        load_pack<VEC>(v, p + c);
        REAL top = v[0];
#pragma unroll
        for (int k = 1; k < VEC; k++) top = op_max(top, v[k]);
        if (top > m || top != top) {
            s = m == smallest<REAL>() ? (REAL)0 : s * op_exp(m - top);
            m = top;
        }
        if (m == smallest<REAL>()) continue;
#pragma unroll
        for (int k = 0; k < VEC; k++) s += op_exp(v[k] - m);
    }
    const REAL all = row_reduce<max_of, THREADS, 0>(m, 0);
    s = m == smallest<REAL>() ? (REAL)0 : s * op_exp(m - all);
    s = row_reduce<sum_of, THREADS, 1>(s, 0);
    if (threadIdx.x != 0) return;
    const bool edge = all == smallest<REAL>() || all == largest<REAL>();
    const double lse = edge ? (double)all : (double)all + log((double)s);
    const i64 label = (i64)labels[row * LABEL_STRIDE];
    double l = 0;
    if (label != IGNORE) {
        if (label < 0 || label >= COLS) {
            report_index(error, row, label);
            return;
        }
        l = lse - (double)to_reg(p[label]);
    }
    loss[row] = (LOSS)l;
    lse_out[row] = (LSE)lse;
}
