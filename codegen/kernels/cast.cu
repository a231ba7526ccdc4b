// SPDX-License-Identifier: Apache-2.0
/* cast.cu - many tensors of f32, each rounded to bf16 or f16 in another place. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif
#include "tensors.cuh"

#ifndef SMALL
#define SMALL bf16
#endif

#define THREADS 256
#define VEC     8 /* 16 bytes of a result */
#define SETS    2 /* accesses under way */

extern "C" __global__ void __launch_bounds__(THREADS) casts(void *const *table) {
    const int t = tensor_of((int)blockIdx.x);
    const i64 n = elements[t], from = (i64)((int)blockIdx.x - first_block[t]) * CHUNK;
    const i64 end = from + CHUNK < n ? from + CHUNK : n;
    const bool aligned = forms[t] < NOT_ALIGNED;
    const float *x = (const float *)table[t];
    SMALL *y = (SMALL *)table[TENSORS + t];
    for (i64 at = from + threadIdx.x * VEC; at < end; at += SETS * THREADS * VEC) {
        float v[SETS][VEC];
#pragma unroll
        for (int s = 0; s < SETS; s++)
            load_part<VEC>(v[s], x, at + s * THREADS * VEC, end, aligned);
#pragma unroll
        for (int s = 0; s < SETS; s++)
            store_part<VEC>(y, v[s], at + s * THREADS * VEC, end, aligned);
    }
}
