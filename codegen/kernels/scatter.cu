// SPDX-License-Identifier: Apache-2.0
/* scatter.cu - scatter_rows and scatter_elements. Additions happen in the order of the indices, so
 * results are the same bits in every run.
 *
 * scatter_rows: a block owns a destination row (outer, i) and TILE columns and adds the updates that
 * name it. With LISTS, rows learn their updates first: count, add up, list, then put in order;
 * the workspace holds starts[AXIS+1], cursor[AXIS] and list[NIDX]. Otherwise, and for rows named by
 * more updates than a list of LIST holds, the block reads all indices.
 * scatter_elements: a thread owns a line of the index tensor along the axis; no two lines share a
 * destination. base_at() of body.cuh is a line's place but for the axis. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef NIDX /* 4096 updates of 64 floats to 1000 rows */
#define NIDX  4096
#define OUTER 1
#define AXIS  1000
#define INNER 64
#define DATA  float
#define SUM   float
#define INDEX i64
#define LISTS 1
#define ROWS_KIND
#endif

#ifdef ROWS_KIND
#define LIST 256
#define TILE 256

#if LISTS
DEV int *starts_of(char *workspace) { return (int *)workspace; }
DEV int *cursor_of(char *workspace) { return (int *)workspace + AXIS + 1; }
DEV int *list_of(char *workspace) { return (int *)workspace + 2 * AXIS + 1; }

extern "C" __global__ void __launch_bounds__(256)
    scatter_clear(const INDEX *, const DATA *, DATA *, char *workspace, u64 *) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i < AXIS) cursor_of(workspace)[i] = 0;
}
/* Counts are whole numbers: their order does not matter. */
extern "C" __global__ void __launch_bounds__(256)
    scatter_count(const INDEX *idx, const DATA *, DATA *, char *workspace, u64 *error) {
    const i64 k = (i64)blockIdx.x * 256 + threadIdx.x;
    if (k >= NIDX) return;
    const i64 value = (i64)idx[k], i = wrap_index(value, AXIS);
    if (i < 0)
        report_index(error, k, value);
    else
        atomicAdd(cursor_of(workspace) + i, 1);
}
/* One block: running sums of the counts. */
extern "C" __global__ void __launch_bounds__(1024)
    scatter_starts(const INDEX *, const DATA *, DATA *, char *workspace, u64 *) {
    __shared__ int part[32];
    int *starts = starts_of(workspace), *cursor = cursor_of(workspace), base = 0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (i64 from = 0; from < AXIS; from += 1024) {
        const i64 i = from + threadIdx.x;
        const int count = i < AXIS ? cursor[i] : 0;
        int sum = count;
        for (int w = 1; w < 32; w *= 2) {
            const int other = __shfl_up_sync(FULL_WARP, sum, w);
            if (lane >= w) sum += other;
        }
        if (lane == 31) part[warp] = sum;
        __syncthreads();
        int before = base, total = base;
        for (int w = 0; w < 32; w++) {
            if (w < warp) before += part[w];
            total += part[w];
        }
        if (i < AXIS) starts[i] = cursor[i] = before + sum - count;
        base = total;
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[AXIS] = base;
}
extern "C" __global__ void __launch_bounds__(256)
    scatter_list(const INDEX *idx, const DATA *, DATA *, char *workspace, u64 *) {
    const i64 k = (i64)blockIdx.x * 256 + threadIdx.x;
    if (k >= NIDX) return;
    const i64 i = wrap_index((i64)idx[k], AXIS);
    if (i >= 0) list_of(workspace)[atomicAdd(cursor_of(workspace) + i, 1)] = (int)k;
}
#define WORK char *workspace,
#else
#define WORK
#endif

/* Adds updates order[0..n) of one outer slice to a column. */
DEV SUM add_rows(SUM sum, const DATA *updates, const int *order, int n, i64 col) {
#pragma unroll 4
    for (int k = 0; k < n; k++)
        sum = sum_of::join(sum, (SUM)to_reg(updates[(i64)order[k] * INNER + col]));
    return sum;
}

extern "C" __global__ void __launch_bounds__(TILE)
    scatter_rows(const INDEX *idx, const DATA *updates, DATA *y, WORK u64 *error) {
    __shared__ int order[LIST], found[TILE / 32];
    const i64 row = blockIdx.x, i = row % AXIS, outer = row / AXIS;
    const i64 col = (i64)blockIdx.y * TILE + threadIdx.x;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const DATA *from = updates + outer * NIDX * INNER;
    SUM sum = 0;
    bool scan = true;
#if LISTS
    const int first = starts_of(workspace)[i], n = starts_of(workspace)[i + 1] - first;
    if (n <= LIST) { /* the list is in no order yet */
        const int *list = list_of(workspace) + first;
        scan = false;
        int rank = 0, mine = t < n ? list[t] : 0;
        for (int k = 0; k < n; k++) rank += list[k] < mine;
        if (t < n) order[rank] = mine;
        __syncthreads();
        if (col < INNER) sum = add_rows(sum, from, order, n, col);
    }
#endif
    if (scan) {
        for (i64 base = 0; base < NIDX; base += TILE) {
            const i64 k = base + t;
            bool hit = false;
            if (k < NIDX) {
                const i64 value = (i64)idx[k], at = wrap_index(value, AXIS);
                if (at < 0 && row == 0 && blockIdx.y == 0) report_index(error, k, value);
                hit = at == i;
            }
            const u32 votes = __ballot_sync(FULL_WARP, hit);
            __syncthreads(); /* the last list has been used */
            if (lane == 0) found[warp] = __popc(votes);
            __syncthreads();
            int before = 0, total = 0;
            for (int w = 0; w < TILE / 32; w++) {
                if (w < warp) before += found[w];
                total += found[w];
            }
            if (hit) order[before + __popc(votes & ((1u << lane) - 1u))] = (int)k;
            __syncthreads();
            if (col < INNER) sum = add_rows(sum, from, order, total, col);
        }
    }
    if (col < INNER) y[row * INNER + col] = store_as<DATA>::from(sum);
}

#else
#include "body.cuh"
extern "C" __global__ void __launch_bounds__(256)
    scatter_copy(const DATA *x, const INDEX *, const DATA *, DATA *y, u64 *) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
    if (at < COUNT && x != y) y[at] = x[at];
}
extern "C" __global__ void __launch_bounds__(256)
    scatter_elements(const DATA *, const INDEX *idx, const DATA *updates, DATA *y, u64 *error) {
    const i64 line = (i64)blockIdx.x * 256 + threadIdx.x;
    if (line >= (i64)LINES) return;
    const i64 first = line / STEP * LENGTH * STEP + line % STEP, base = base_at(first);
    for (i64 k = 0; k < LENGTH; k++) {
        const i64 at = first + k * STEP, value = (i64)idx[at], i = wrap_index(value, AXIS);
        if (i < 0) {
            report_index(error, at, value);
            continue;
        }
        DATA *to = y + base + i * INNER;
#if ADD
        *to = store_as<DATA>::from(sum_of::join((SUM)to_reg(*to), (SUM)to_reg(updates[at])));
#else
        *to = updates[at];
#endif
    }
}
#endif
