// SPDX-License-Identifier: Apache-2.0
/* group.cu - fused groups. What one thread computes for its elements of a row is body.cuh, made from
 * the group's program; here is how rows and threads meet. Arguments: the operands' first elements,
 * the results', the workspace of partial results if there is one, and the fault word (unused).
 *
 *   MODE 0  elements are independent: a lane has UNITS runs of VEC elements, LANES runs apart.
 *   MODE 1  LANES lanes a row (a power of two up to 32, or the whole block); a row is kept in registers.
 *           RPW rows per worker one after the other; with column sums a worker writes partial sums.
 *   MODE 2  as 1 with a block a row, but the row is walked once for each stage of reductions; what is
 *           needed again waits in shared memory when it fits. With a RING the next rows come meanwhile.
 *   MODE 3  column sums of independent rows: 32 x WARPS threads, a lane has VEC columns.
 *   MODE 4  few long rows: block (piece, row) writes partial reductions, group_finish combines them.
 *   MODE 5  elements are independent, some results are stored transposed (ELEM bytes an element): a block
 *           computes a tile, its threads 16 bytes of such a result in each of PER rows (tile.cuh).
 *   group_columns adds the partial column sums in order; SUM(j) says where they lie. */
#if __has_include("config.cuh")
#include "config.cuh" /* first: FAST_MATH is for the prelude */
#endif
#include "prelude.cuh"

#ifndef MODE /* y = x + 1 over 1024 elements */
#define MODE   0
#define ROWS   1
#define COLS   1024
#define VEC    4
#define UNITS  1
#define LANES  256
#define IDX    u32
#define PARAMS const float *in0, float *out0, u64 *error
#define ARGS   in0, out0, error
#define PLAIN_BODY
#endif

/* What body.cuh is written with: the elements of a thread, its runs of VEC neighbouring columns. */
#define E (VEC * UNITS)
#define EACH(k) _Pragma("unroll") for (int k = 0; k < E; k++)
#define EACH_RUN(k) _Pragma("unroll") for (int k = 0; k < UNITS; k++)
#define RUN(k)  _Pragma("unroll") for (int k = 0; k < VEC; k++)
#if MODE <= 1
#define AT     (u * VEC)
#define FULL   (COLS % (VEC * LANES * UNITS) == 0)
#define COLUMN(k) (((IDX)((k) / VEC) * LANES + lane) * VEC + (IDX)((k) % VEC))
#define RUNS                                                                                       \
    _Pragma("unroll") for (int u = 0; u < UNITS; u++) if ([[maybe_unused]] IDX col = COLUMN(u * VEC);               \
                                                          FULL || col < COLS)
#elif MODE == 3 || MODE == 5
#define AT        0
#define FULL      1
#define COLUMN(k) (lane * VEC + (IDX)(k))
#define RUNS      if ([[maybe_unused]] IDX col = lane * VEC; true)
#else
#define AT        0
#define FULL      1
#define COLUMN(k) (col + (IDX)(k))
#define RUNS
#if RING
#define STEPS(from, to)                                                                            \
    _Pragma("unroll 4") for (IDX col = lane * VEC, at = w.at; col < COLS;                          \
                             col += LANES * VEC, at += STEP)
/* The one step, of one thread, that has this column. */
#define STEP_OF(column)                                                                            \
    if (IDX col = (IDX)(column) / VEC * VEC, at = w.at + col / (LANES * VEC) * STEP;               \
        col < COLS && col / VEC % LANES == lane)
#define LAST_STEPS                                                                                 \
    _Pragma("unroll 4") for (IDX col = lane * VEC, at = w.at; col < COLS;                          \
                             walk_on(ARGS, row, col, at, w), col += LANES * VEC, at += STEP)
#else
#define STEPS(from, to)                                                                            \
    _Pragma("unroll 4") for (IDX col = (from) + lane * VEC; col < (to); col += LANES * VEC)
#endif
#endif

#if defined FREE_REGISTERS /* the compiler's answer to spills: as many as it likes */
#define MIN_BLOCKS , 1
#elif defined BLOCKS
#define MIN_BLOCKS , BLOCKS
#else
#define MIN_BLOCKS
#endif
#if FULL
#define INIT
#else
#define INIT = {}
#endif
#if RING
extern __shared__ char ring[];
#endif
#if MODE == 2 && RING
struct walk {
    IDX at, last; /* where in the ring the row lies; the end of the block's rows */
};
DEV void fetch(PARAMS, IDX row, IDX col, char *to);
/* What was the step of a row becomes that of a later one. */
DEV void walk_on(PARAMS, IDX row, IDX col, IDX at, const walk &w) {
    if (row + RING < w.last) fetch(ARGS, row + RING, col, ring + at);
}
#endif
#if MODE == 5
#include "tile.cuh"
#endif
#ifndef PLAIN_BODY
#include "body.cuh"
#else
struct state {};
struct raw {};
DEV void fetch(PARAMS, IDX row, IDX lane, raw &) {}
DEV void body(PARAMS, IDX row, IDX lane, state &, const raw &) {
    float v[E];
    RUNS load_pack<VEC>(v + AT, in0 + col);
    EACH(k) v[k] += 1.0f;
    RUNS store_pack<VEC>(out0 + col, v + AT);
}
#endif

#if RING && MODE != 2 /* SLOT: bytes of a row of each thread of the block */
#define WALK_RING(ROW, COUNT)                                                                      \
    for (IDX k = 0; k < RING - 1; k++) {                                                           \
        raw x = {ring + k * SLOT};                                                                 \
        if (k < COUNT) fetch(ARGS, ROW, lane, x);                                                  \
        copies_commit();                                                                           \
    }                                                                                              \
    u32 read = 0, write = (RING - 1) * SLOT;                                                       \
    for (IDX done = 0; done < COUNT; done++) {                                                     \
        IDX k = done + RING - 1;                                                                   \
        raw x = {ring + write};                                                                    \
        if (k < COUNT) fetch(ARGS, ROW, lane, x);                                                  \
        copies_commit();                                                                           \
        copies_wait<RING - 1>();                                                                   \
        k = done;                                                                                  \
        x.at = ring + read;                                                                        \
        body(ARGS, ROW, lane, sums, x);                                                            \
        write = read;                                                                              \
        read = read == (RING - 1) * SLOT ? 0 : read + SLOT;                                        \
    }
#endif

#if MODE == 0
extern "C" __global__ void __launch_bounds__(LANES) group_map(PARAMS) {
    IDX lane = (IDX)blockIdx.x * (LANES * UNITS) + threadIdx.x;
    state none;
    raw x INIT;
    if (!FULL && lane * VEC >= COLS) return;
    fetch(ARGS, 0, lane, x);
    body(ARGS, 0, lane, none, x);
}
#elif MODE == 1
/* A block has THREADS / LANES workers. The rows of a worker follow each other or, INTERLEAVED, lie as
 * far apart as there are workers, so that those of a block are neighbours. AHEAD: while a worker computes a row, the next one is on
 * its way; RING: the next RING - 1 are, into shared memory. */
extern "C" __global__ void __launch_bounds__(THREADS MIN_BLOCKS) group_row(PARAMS) {
#if INTERLEAVED
    enum { APART = THREADS / LANES };
    const IDX lane = threadIdx.x % LANES, first = (IDX)blockIdx.x * (APART * RPW) + threadIdx.x / LANES;
#else
    enum { APART = 1 };
    const IDX worker = (IDX)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    const IDX lane = threadIdx.x % LANES, first = worker * RPW;
#endif
    if (first >= ROWS) return;
    state sums;
#if COLSUMS
    clear(sums);
#endif
#if RING
    const IDX count = first + RPW < ROWS ? RPW : ROWS - first;
    WALK_RING(first + k, count)
#else
    raw now INIT;
    fetch(ARGS, first, lane, now);
#if RPW > 1 && AHEAD /* in pairs: then nothing has to move from `next` to `now` */
    raw next INIT;
    for (IDX k = 0; k < RPW && first + k * APART < ROWS; k += 2) {
        const IDX row = first + k * APART;
        const bool more = k + 1 < RPW && row + APART < ROWS;
        if (more) fetch(ARGS, row + APART, lane, next);
        body(ARGS, row, lane, sums, now);
        if (!more) break;
        if (k + 2 < RPW && row + 2 * APART < ROWS) fetch(ARGS, row + 2 * APART, lane, now);
        body(ARGS, row + APART, lane, sums, next);
    }
#elif RPW > 1
    for (IDX k = 0; k < RPW && first + k * APART < ROWS; k++) {
        body(ARGS, first + k * APART, lane, sums, now);
        if (k + 1 < RPW && first + (k + 1) * APART < ROWS)
            fetch(ARGS, first + (k + 1) * APART, lane, now);
    }
#else
    body(ARGS, first, lane, sums, now);
#endif
#endif
#if COLSUMS
    put(sums, workspace, worker, lane);
#endif
}
#elif MODE == 2 && RING
/* While a row is walked the next RING - 1 are on their way. Each thread copies what it reads itself,
 * STEP bytes of a step lie side by side. */
extern "C" __global__ void __launch_bounds__(LANES, 1) group_long(PARAMS) {
    const IDX first = (IDX)blockIdx.x * RPW, last = first + RPW < ROWS ? first + RPW : ROWS;
    const IDX lane = threadIdx.x;
    walk w = {0, last};
    for (IDX k = 0; k < RING; k++) {
        w.at = k * SLOT;
        if (first + k < last) STEPS(0, COLS) fetch(ARGS, first + k, col, ring + at);
        copies_commit();
    }
    w.at = 0;
    for (IDX row = first; row < last; row++) {
        copies_wait<RING - 1>();
        body(ARGS, row, lane, row == first, w);
        copies_commit();
        w.at = w.at == (RING - 1) * SLOT ? 0 : w.at + SLOT;
    }
}
#elif MODE == 2
extern "C" __global__ void __launch_bounds__(LANES MIN_BLOCKS) group_long(PARAMS) {
    for (IDX k = 0; k < RPW; k++) {
        IDX row = (IDX)blockIdx.x * RPW + k;
        if (row >= ROWS) break;
        body(ARGS, row, threadIdx.x, k == 0);
    }
}
#elif MODE == 3
extern "C" __global__ void __launch_bounds__(32 * WARPS MIN_BLOCKS) group_rows(PARAMS) {
    const IDX lane = (IDX)blockIdx.x * 32 + threadIdx.x % 32, warp = threadIdx.x / 32;
    const IDX first = (IDX)blockIdx.y * RPW, last = first + RPW < ROWS ? first + RPW : ROWS;
    state sums;
    clear(sums);
    if (lane < COLS / VEC) hold(ARGS, lane, sums);
#if RING
    if (lane < COLS / VEC && first + warp < last) {
        const IDX count = (last - first - warp + WARPS - 1) / WARPS;
        WALK_RING(first + warp + k * WARPS, count)
    }
#else
    if (lane < COLS / VEC && first + warp < last) {
        raw now;
        fetch(ARGS, first + warp, lane, now);
        for (IDX row = first + warp; row < last; row += WARPS) {
#if AHEAD
            raw next = now;
            if (row + WARPS < last) fetch(ARGS, row + WARPS, lane, next);
            body(ARGS, row, lane, sums, now);
            now = next;
#else
            body(ARGS, row, lane, sums, now);
            if (row + WARPS < last) fetch(ARGS, row + WARPS, lane, now);
#endif
        }
    }
#endif
    join_warps(sums);
    if (warp == 0 && lane < COLS / VEC) put(sums, workspace, blockIdx.y, lane);
}
#elif MODE == 4
extern "C" __global__ void __launch_bounds__(LANES) group_pieces(PARAMS) {
    const IDX from = (IDX)blockIdx.x * PIECE, to = from + PIECE < COLS ? from + PIECE : COLS;
    body(ARGS, (IDX)blockIdx.y, threadIdx.x, from, to, (IDX)blockIdx.x);
}
extern "C" __global__ void __launch_bounds__(LANES) group_finish(PARAMS) {
    finish(ARGS, (IDX)blockIdx.x, threadIdx.x);
}
#elif MODE == 5 /* ROWS and COLS are multiples of LINE */
extern "C" __global__ void __launch_bounds__(TILE_THREADS) group_tile(PARAMS) {
    __shared__ quad tile[TILE_R * 8];
    const IDX lane = (IDX)blockIdx.x * 8 + threadIdx.x % 8;
    const IDX first = (IDX)blockIdx.y * TILE_C + threadIdx.x / 8 * PER;
    state lines[PER] = {};
    if (lane * VEC < COLS && first < ROWS) {
#if AHEAD
        raw x[PER];
        EACH_LINE(k) fetch(ARGS, first + k, lane, x[k]);
        EACH_LINE(k) body(ARGS, first + k, lane, lines[k], x[k]);
#else
        EACH_LINE(k) {
            raw x;
            fetch(ARGS, first + k, lane, x);
            body(ARGS, first + k, lane, lines[k], x);
        }
#endif
    }
    put_lines(ARGS, tile, lines, (IDX)blockIdx.x * TILE_R, (IDX)blockIdx.y * TILE_C);
}
#endif

#if defined(COLSUMS) && COLSUMS
/* 32 columns of one sum a block. */
extern "C" __global__ void __launch_bounds__(32 * SLICES) group_columns(PARAMS) {
    columns(ARGS, (IDX)blockIdx.x * 32 + threadIdx.x % 32, (int)blockIdx.y);
}
#endif
