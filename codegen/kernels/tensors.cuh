// SPDX-License-Identifier: Apache-2.0
/* tensors.cuh - kernels over many tensors at once. body.cuh holds, per tensor, its first block
 * (first_block, with the number of blocks at the end), its size (elements) and its form (forms: the
 * element type, plus 8 when vectors would not be aligned). Arguments come in a table of pointers.
 */

#ifndef TENSORS /* one tensor of 1000 floats */
#define TENSORS 1
#define CHUNK   8192
#define FORMS   1
__constant__ int first_block[2] = {0, 1};
__constant__ i64 elements[1] = {1000};
__constant__ unsigned char forms[1] = {0};
#else
#include "body.cuh"
#endif

/* Types by number; FORMS has a bit for each that occurs. */
enum { FORM_F32, FORM_F64, FORM_BF16, FORM_F16, FORM_E4M3, FORM_E5M2, FORM_E8M0, NOT_ALIGNED = 8 };
#define HAS(form) (FORMS >> (form)&1)

/* The last tensor that begins at or before this block. */
DEV int tensor_of(int block) {
    int low = 0, high = TENSORS;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_block[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* N elements at p + at, of which those before `end` exist; the others read as 0. */
template <int N, class M, class R>
DEV void load_part(R *v, const M *p, i64 at, i64 end, bool aligned) {
    if (aligned && at + N <= end) {
        load_pack<N>(v, p + at);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = at + k < end ? (R)to_reg(p[at + k]) : (R)0;
}
template <int N, class M, class R>
DEV void store_part(M *p, const R *v, i64 at, i64 end, bool aligned) {
    if (aligned && at + N <= end) {
        store_pack<N>(p + at, v);
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (at + k < end) p[at + k] = store_as<M>::from(v[k]);
}
