// SPDX-License-Identifier: Apache-2.0
/* transpose.cu - y[b.., r, c] = x[b.., c, r] for elements of 1, 2 or 4 bytes, whatever they mean; not
 * transposes that compute as well, which are groups. A block moves a tile of TILE_R x TILE_C: lines
 * of 16 bytes along r come in, words of 4 bytes along c are put together in registers, wait in
 * shared memory (swizzled so that neither side meets a bank twice) and leave as 16 bytes along c.
 * Both sides move 128 bytes a line. Where lines are not aligned, elements go one by one. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef ROWS /* bytes, 300 x 272 to 272 x 300 */
#define ELEM    1
#define ROWS    272ll
#define COLS    304ll
#define X_PITCH 272ll /* elements between neighbours along c in x */
#define Y_PITCH 304ll /* along r in y */
#define X_BATCH 0ll
#define Y_BATCH 0ll
#define ALIGNED 1
#endif

/* Batches within batches: BATCH of the inner ones. */
#ifdef BATCH
#define X_AT(b) ((b) / BATCH * X_OUTER + (b) % BATCH * X_BATCH)
#define Y_AT(b) ((b) / BATCH * Y_OUTER + (b) % BATCH * Y_BATCH)
#else
#define X_AT(b) ((b) * X_BATCH)
#define Y_AT(b) ((b) * Y_BATCH)
#endif

#if ELEM == 1
typedef unsigned char element;
#elif ELEM == 2
typedef unsigned short element;
#else
typedef u32 element;
#endif

#include "tile.cuh"

#if ALIGNED
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    transpose(const element *x, element *y, u64 *) {
    __shared__ quad tile[TILE_R * 8];
    u32 *words = (u32 *)tile;
    const int t = threadIdx.x;
    const i64 r0 = (i64)blockIdx.x * TILE_R, c0 = (i64)blockIdx.y * TILE_C;
    const int lr = t % 8, lc = t / 8;
    x += X_AT(blockIdx.z);
    y += Y_AT(blockIdx.z);
    quad a[PER];
    u32 out[LINE];
    const i64 r = r0 + lr * LINE, c = c0 + lc * PER;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        a[k] = {};
        if (r < ROWS && c + k < COLS) a[k] = *(const quad *)(x + (c + k) * X_PITCH + r);
    }
    turn(a, out);
#pragma unroll
    for (int i = 0; i < LINE; i++) words[(lr * LINE + i) * 32 + (lc ^ lr * 4)] = out[i];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE_R; k += TILE_THREADS / 8) {
        const int row = k + t / 8, j = t % 8;
        const i64 at = c0 + j * LINE;
        if (r0 + row < ROWS && at < COLS)
            *(quad *)(y + (r0 + row) * Y_PITCH + at) = tile[row * 8 + (j ^ row / LINE % 8)];
    }
}
#else
/* 32 x 32 elements a block. */
extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    transpose(const element *x, element *y, u64 *) {
    __shared__ element tile[32][33];
    const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
    const i64 r0 = (i64)blockIdx.x * 32, c0 = (i64)blockIdx.y * 32;
    x += X_AT(blockIdx.z);
    y += Y_AT(blockIdx.z);
#pragma unroll
    for (int k = 0; k < 32; k += 8)
        if (r0 + tx < ROWS && c0 + ty + k < COLS)
            tile[ty + k][tx] = x[(c0 + ty + k) * X_PITCH + r0 + tx];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 32; k += 8)
        if (r0 + ty + k < ROWS && c0 + tx < COLS)
            y[(r0 + ty + k) * Y_PITCH + c0 + tx] = tile[tx][ty + k];
}
#endif
