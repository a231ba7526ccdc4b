// SPDX-License-Identifier: Apache-2.0
/* scatter.cu - scatter_rows and scatter_elements. Additions happen in an order that the indices
 * alone decide, so results are the same bits in every run.
 *
 * scatter_rows: destination rows learn their updates first: count, make room in the list, fill it.
 * What lies where in the list differs from run to run, which updates a row has does not; they are
 * put in order before they are added. A warp adds up 32*VEC columns of a row that few updates name;
 * for others, each warp of the block takes a part of the updates. The workspace holds count[AXIS],
 * start[AXIS], total, slot[NIDX] and list[NIDX].
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
#define VEC   4
#define ROWS_KIND
#endif

#ifdef ROWS_KIND
#define THREADS 256
#define WARPS   (THREADS / 32)
#define FEW     32 /* updates that one warp adds up */
#define SORTED                                                                                     \
    2048       /* updates that a block can put in order; more are found by reading all indices */
#define EACH 4 /* indices of a thread while it does */
#define ROWS ((i64)OUTER * AXIS)

DEV int *count_of(char *workspace) {
    return (int *)workspace;
}
DEV int *start_of(char *workspace) {
    return (int *)workspace + AXIS;
}
DEV int *total_of(char *workspace) {
    return (int *)workspace + 2 * AXIS;
}
DEV int *slot_of(char *workspace) {
    return (int *)workspace + 2 * AXIS + 1;
}
DEV int *list_of(char *workspace) {
    return (int *)workspace + 2 * AXIS + 1 + NIDX;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_clear(const INDEX *, const DATA *, DATA *, char *workspace, u64 *) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < AXIS) count_of(workspace)[i] = 0;
    if (i == 0) *total_of(workspace) = 0;
}
/* Counts are whole numbers: their order does not matter. */
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_count(const INDEX *idx, const DATA *, DATA *, char *workspace, u64 *error) {
    const i64 k = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (k >= NIDX) return;
    const i64 value = (i64)idx[k], i = wrap_index(value, AXIS);
    if (i < 0)
        report_index(error, k, value);
    else
        slot_of(workspace)[k] = atomicAdd(count_of(workspace) + i, 1);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_room(const INDEX *, const DATA *, DATA *, char *workspace, u64 *) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    const int lane = threadIdx.x % 32, count = i < AXIS ? count_of(workspace)[i] : 0;
    int sum = count, base = 0;
    for (int w = 1; w < 32; w *= 2) {
        const int other = __shfl_up_sync(FULL_WARP, sum, w);
        if (lane >= w) sum += other;
    }
    if (lane == 31 && sum) base = atomicAdd(total_of(workspace), sum);
    base = __shfl_sync(FULL_WARP, base, 31);
    if (i < AXIS) start_of(workspace)[i] = base + sum - count;
}
extern "C" __global__ void __launch_bounds__(THREADS)
    scatter_list(const INDEX *idx, const DATA *, DATA *, char *workspace, u64 *) {
    const i64 k = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (k >= NIDX) return;
    const i64 i = wrap_index((i64)idx[k], AXIS);
    if (i >= 0) list_of(workspace)[start_of(workspace)[i] + slot_of(workspace)[k]] = (int)k;
}

/* Adds updates order[0..n) to VEC columns, AT_ONCE reads under way. */
template <int AT_ONCE> DEV void add_rows(SUM *sum, const DATA *column, const int *order, int n) {
#pragma unroll 1
    for (int k = 0; k < n; k += AT_ONCE) {
        pack<DATA, VEC> x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) { /* the last one again where there are no more */
            const i64 from = order[k + j < n ? k + j : n - 1];
            x[j] = *reinterpret_cast<const pack<DATA, VEC> *>(column + from * INNER);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (k + j < n)
#pragma unroll
                for (int v = 0; v < VEC; v++)
                    sum[v] = sum_of::join(sum[v], (SUM)to_reg(x[j].at[v]));
    }
}

/* Bitonic sort of order[0..n), filled up to a power of two (K. Batcher, 1968). */
DEV void sort(int *order, int n) {
    int all = FEW;
    while (all < n) all *= 2;
    for (int t = n + threadIdx.x; t < all; t += THREADS) order[t] = 0x7fffffff;
#pragma unroll 1
    for (int run = 2; run <= all; run *= 2)
#pragma unroll 1
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int t = threadIdx.x; t < all / 2; t += THREADS) {
                const int a = t / step * 2 * step + t % step, b = a + step;
                const int x = order[a], y = order[b];
                if ((x > y) == ((a & run) == 0)) order[a] = y, order[b] = x;
            }
        }
    __syncthreads();
}

/* The updates of row i among EACH*THREADS indices, in order; gives their number. */
DEV int find(const INDEX *idx, i64 base, i64 i, int *order) {
    __shared__ int found[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 first = base + (i64)threadIdx.x * EACH;
    int hits = 0, mask = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (first + j < NIDX && wrap_index((i64)idx[first + j], AXIS) == i) hits++, mask |= 1 << j;
    int sum = hits;
    for (int w = 1; w < 32; w *= 2) {
        const int other = __shfl_up_sync(FULL_WARP, sum, w);
        if (lane >= w) sum += other;
    }
    __syncthreads(); /* what was found last has been used */
    if (lane == 31) found[warp] = sum;
    __syncthreads();
    int before = sum - hits, total = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += found[w];
        total += found[w];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (mask >> j & 1) order[before++] = (int)(first + j);
    __syncthreads();
    return total;
}

/* The whole block: a row with n updates, listed from `list` on in no order. */
DEV void add_many(const INDEX *idx, const DATA *column, DATA *to, const int *list, int n, i64 i,
                  bool inside) {
    __shared__ int order[SORTED];
    __shared__ SUM part[WARPS][VEC][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    SUM sum[VEC];
    for (int v = 0; v < VEC; v++) sum[v] = 0;
#pragma unroll 1
    for (i64 base = 0; base < (n <= SORTED ? 1 : (i64)NIDX); base += EACH * THREADS) {
        int some = n;
        if (n <= SORTED) {
            for (int t = threadIdx.x; t < n; t += THREADS) order[t] = list[t];
            sort(order, n);
        } else {
            some = find(idx, base, i, order);
        }
        const int from = (int)((i64)some * warp / WARPS),
                  end = (int)((i64)some * (warp + 1) / WARPS);
        if (inside) add_rows<8>(sum, column, order + from, end - from);
    }
    for (int v = 0; v < VEC; v++) part[warp][v][lane] = sum[v];
    __syncthreads();
    if (warp == 0 && inside) {
        for (int w = 1; w < WARPS; w++)
            for (int v = 0; v < VEC; v++) sum[v] = sum_of::join(sum[v], part[w][v][lane]);
        store_pack<VEC>(to, sum);
    }
    __syncthreads(); /* for the next row */
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    scatter_rows(const INDEX *idx, const DATA *updates, DATA *y, char *workspace, u64 *) {
    __shared__ int order[WARPS][FEW];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 first = (i64)blockIdx.x * WARPS, row = first + warp;
    const i64 col = ((i64)blockIdx.y * 32 + lane) * VEC;
    const bool inside = col < INNER;
    if (row < ROWS) {
        const i64 i = row % AXIS;
        const int n = count_of(workspace)[i];
        if (n <= FEW) {
            const int mine = lane < n ? list_of(workspace)[start_of(workspace)[i] + lane] : 0;
            int rank = 0;
            for (int k = 0; k < n; k++) rank += __shfl_sync(FULL_WARP, mine, k) < mine;
            if (lane < n) order[warp][rank] = mine;
            __syncwarp();
            SUM sum[VEC];
            for (int v = 0; v < VEC; v++) sum[v] = 0;
            const DATA *column = updates + row / AXIS * NIDX * INNER + col;
            if (inside) {
                add_rows<4>(sum, column, order[warp], n);
                store_pack<VEC>(y + row * INNER + col, sum);
            }
        }
    }
#pragma unroll 1
    for (i64 r = first; r < first + WARPS && r < ROWS; r++) {
        const i64 i = r % AXIS;
        const int n = count_of(workspace)[i];
        if (n > FEW)
            add_many(idx, updates + r / AXIS * NIDX * INNER + col, y + r * INNER + col,
                     list_of(workspace) + start_of(workspace)[i], n, i, inside);
    }
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
