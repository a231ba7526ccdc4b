// SPDX-License-Identifier: Apache-2.0
/* attention_hopper.cu - the gradient of attention in 16 bits on Hopper's tensor cores (sm_90a), heads
 * of 64 or 128 elements, no mask or the causal one. Layouts and names are those of attention.cu.
 * Scores are computed twice, once for dQ and once for dK and dV, so that sums stay in registers:
 * nothing is stored between, nothing is added by two blocks, every run gives the same bits.
 *
 * One block per multiprocessor walks a fixed list of tiles of 128 rows, long ones first within a
 * group of heads that the cache holds. Its first warpgroup copies operands to shared memory, the
 * other two have 64 rows of the tile each and keep out of step: one computes exponentials while the
 * other one's products run (J. Shah et al., FlashAttention-3, 2024). attention_hopper_dq has 64
 * queries and walks the keys, attention_hopper_dkv 64 keys and walks the queries of all heads that
 * share them, with scores transposed. The workspace holds two f32 [B*H,LINES], queries padded to
 * whole tiles: the log sums of the scores times log2(e), +infinity for queries that do not exist or
 * see no key, and the sums of g*y; attention_hopper_dq writes it. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef SHARE /* causal, 2 x 4 heads of 64 */
#define MEM      bf16
#define B        2
#define H        4
#define SHARE    2
#define T        100
#define S        100
#define D        64
#define SCALE    0.125
#define CAUSAL   1
#define Q_STRIDES 25600, 6400, 64
#define K_STRIDES 12800, 6400, 64
#define V_STRIDES 12800, 6400, 64
#define Y_STRIDES 25600, 6400, 64
#define G_STRIDES 25600, 6400, 64
#define DQ_STRIDES 25600, 6400, 64
#define DK_STRIDES 12800, 6400, 64
#define DV_STRIDES 12800, 6400, 64
#define PRODUCT_TYPE "bf16"
#define HEADS_DQ  8
#define HEADS_DKV 4
#define STAGES_DQ  4
#define STAGES_DKV 4
#endif

#define KV      (H / SHARE)
#define ROWS    64 /* of a warpgroup */
#define COLS    64 /* of a step */
#define TILE    128
#define LINES   ((T + TILE - 1) / TILE * TILE)
#define THREADS 384
#define STEPS   (D / 16) /* of products over D */
#define LOG2E   1.4426950408889634
#define HIDDEN  (SCALE > 0 ? -F32_INF : F32_INF)
#define SHORT   (COLS * D * 2) /* bytes of a tile of COLS rows */
#define LONG    (TILE * D * 2)
/* What dK and dV leave of the registers holds K and V too if heads are short. */
#define KEEP_DKV (D == 64)
/* Whether there are registers to have the next scores under way while these are worked on. */
#ifndef AHEAD_DKV
#define AHEAD_DKV (D == 64)
#endif
#ifndef AHEAD_DQ
#define AHEAD_DQ (D == 64)
#endif
#define FIXED_DKV (KEEP_DKV ? 1 : 2) /* buffers of K and V in shared memory */

/* 168 for all 384 threads at the start. */
#define PRODUCER_REGISTERS "24"
#define CONSUMER_REGISTERS "240"

#include "hopper.cuh"

/* ---- the list of tiles -------------------------------------------------------------------------
 */
DEV i64 place(int b, int head, i64 sb, i64 sh, i64) { return b * sb + head * sh; }
DEV i64 row_stride(i64, i64, i64 r) { return r; }
#define PLACE(b, head, ...) place(b, head, __VA_ARGS__)
#define ROW_STRIDE(...)     row_stride(__VA_ARGS__)

struct work {
    int head, level;
};
/* The block's tile of this round: every second round goes backwards, which evens out what is left
 * of unequal tiles. False: there is none. */
template <int HEADS, int ALL, int LEVELS> DEV bool next_work(int round, work &w) {
    const int place = round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int i = round * gridDim.x + place;
    if (i >= ALL * LEVELS) return false;
    const int group = i / (HEADS * LEVELS), rest = i % (HEADS * LEVELS), first = group * HEADS;
    const int n = ALL - first < HEADS ? ALL - first : HEADS;
    w.level = rest / n;
    w.head = first + rest % n;
    return true;
}

/* Which buffer of N is next, and the parity of its barriers. */
template <int N> struct cursor {
    u32 at = 0, parity = 0;
    DEV void step() {
        if (++at == N) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* By a warp that has read a buffer; 8 warps free it. */
DEV void release(u32 empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

/* Four lanes have 8 columns of each of 4 groups between them; afterwards lane i has the 8 columns
 * of group i. */
DEV void turn4(u32 (&x)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const u32 a = __shfl_xor_sync(FULL_WARP, odd ? x[0] : x[1], 1);
    const u32 b = __shfl_xor_sync(FULL_WARP, odd ? x[2] : x[3], 1);
    if (odd) x[0] = a, x[2] = b; else x[1] = a, x[3] = b;
    const u32 c = __shfl_xor_sync(FULL_WARP, high ? x[0] : x[2], 2);
    const u32 d = __shfl_xor_sync(FULL_WARP, high ? x[1] : x[3], 2);
    if (high) x[0] = c, x[1] = d; else x[2] = c, x[3] = d;
}

/* This warpgroup's 64 rows of D columns, times `scale`; rows beyond `end` are left out. */
DEV void store_rows(MEM *to, i64 stride, int first, int end, const float (&x)[D / 2], float scale) {
    const int lane = threadIdx.x % 32, row = first + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            u32 y[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int i = 16 * c + 4 * j + 2 * half;
                y[j] = pack2(x[i] * scale, x[i + 1] * scale);
            }
            turn4(y);
            if (row + 8 * half < end)
                *(uint4 *)(to + (row + 8 * half) * stride + 32 * c + 8 * (lane % 4)) =
                    make_uint4(y[0], y[1], y[2], y[3]);
        }
}

extern __shared__ char shared_memory[];
#define GRAD_PARAMS                                                                                \
    const MEM *q, const MEM *k, const MEM *v, const MEM *y, const float *lse, const MEM *g,        \
        MEM *dq, MEM *dk, MEM *dv, float *workspace, u64 *

#include "attention_hopper_dq.cuh"
#include "attention_hopper_dkv.cuh"
