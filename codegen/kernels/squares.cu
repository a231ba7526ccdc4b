// SPDX-License-Identifier: Apache-2.0
/* squares.cu - the sum of the squares of many tensors' elements. A block adds up its chunk, in f32
 * within a thread (f64 for f64) and in f64 between them; squares_join adds up the blocks. The order
 * is fixed. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif
#include "tensors.cuh"

#ifndef BLOCKS
#define BLOCKS 1
#endif

#define THREADS 256
#define SETS    4 /* accesses under way */

DEV double *parts_of(void *const *table) {
    return (double *)table[TENSORS + 1];
}

/* The sum over a block, in warp 0. */
template <int WARPS> DEV double block_sum(double x) {
    __shared__ double part[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int w = 16; w > 0; w /= 2) x += __shfl_xor_sync(FULL_WARP, x, w);
    if (lane == 0) part[warp] = x;
    __syncthreads();
    x = lane < WARPS ? part[lane] : 0.0;
    for (int w = 16; w > 0; w /= 2) x += __shfl_xor_sync(FULL_WARP, x, w);
    return x;
}

/* A is what squares of T's registers are added in. */
template <class T, class A> DEV double chunk_sum(const T *p, i64 from, i64 end, bool aligned) {
    constexpr int VEC = sizeof(T) > 16 ? 1 : 16 / (int)sizeof(T);
    A sum[SETS] = {};
    for (i64 at = from + threadIdx.x * VEC; at < end; at += SETS * THREADS * VEC) {
        A x[SETS][VEC];
#pragma unroll
        for (int s = 0; s < SETS; s++)
            load_part<VEC>(x[s], p, at + s * THREADS * VEC, end, aligned);
#pragma unroll
        for (int s = 0; s < SETS; s++)
#pragma unroll
            for (int k = 0; k < VEC; k++) sum[s] += x[s][k] * x[s][k];
    }
    double all = 0;
#pragma unroll
    for (int s = 0; s < SETS; s++) all += (double)sum[s];
    return all;
}

#define CASE(number, type, sum)                                                                    \
    if (HAS(number) && form == number)                                                             \
        x = chunk_sum<type, sum>((const type *)table[t], from, end, aligned);

extern "C" __global__ void __launch_bounds__(THREADS) squares(void *const *table) {
    const int t = tensor_of((int)blockIdx.x);
    const i64 n = elements[t], from = (i64)((int)blockIdx.x - first_block[t]) * CHUNK;
    const i64 end = from + CHUNK < n ? from + CHUNK : n;
    const int form = forms[t] % NOT_ALIGNED;
    const bool aligned = forms[t] < NOT_ALIGNED;
    double x = 0;
    CASE(FORM_F32, float, float)
    CASE(FORM_F64, double, double)
    CASE(FORM_BF16, bf16, float)
    CASE(FORM_F16, f16, float)
    CASE(FORM_E4M3, e4m3, float)
    CASE(FORM_E5M2, e5m2, float)
    CASE(FORM_E8M0, e8m0, float)
    x = block_sum<THREADS / 32>(x);
    if (threadIdx.x == 0) parts_of(table)[blockIdx.x] = x;
}

extern "C" __global__ void __launch_bounds__(1024) squares_join(void *const *table) {
    const double *parts = parts_of(table);
    double x = 0;
#pragma unroll 8
    for (int k = threadIdx.x; k < BLOCKS; k += 1024) x += parts[k];
    x = block_sum<32>(x);
    if (threadIdx.x == 0) *(float *)table[TENSORS] = (float)x;
}
