// SPDX-License-Identifier: Apache-2.0
/* cuda_group.c - decides how a fused group runs on a GPU: which form, how many threads a row, how
 * many elements a thread, where partial results lie. Pure shape arithmetic; the text of the kernel
 * is written by cuda_group_text.c. */
#include "codegen/cuda_group.h"
#include "codegen/tile.h"

enum {
    MAP_THREADS = 256,
    ROW_THREADS = 256, /* of a block whose rows take a warp or less */
    ELEMS_MAX = 32,    /* of a row in one thread */
    PROCESSORS = 132,
    BLOCKS_WANTED = 8 * PROCESSORS,
    SLICES = 32,
    COLUMN_WARPS = 8,
    LONG_THREADS = 512,
    KEPT_HALF = 56 << 10,   /* of shared memory: four blocks of a processor */
    KEPT_TWICE = 112 << 10, /* two */
    KEPT_80 = 160 << 10,    /* one block, before and from compute capability 9 on */
    KEPT_90 = 224 << 10,
    ON_THE_WAY = 64 << 10, /* bytes from memory that keep it busy, of a processor */
    RING_BLOCK = 96 << 10, /* of a block, and of a processor */
    RING_BYTES = 144 << 10,
    TAIL_PIECE = 16384,
};

/* ---- what the program says ------------------------------------------------------------------ */
static bool inner_zero(const struct group_gen *g, uint32_t k) {
    const int64_t *s = g->y->regs[k].strides;
    for (int i = g->border; i < g->y->rank; i++)
        if (s[i] != 0) return false;
    return true;
}

/* The stage in which register r is known. */
static uint32_t known_in(const struct group_gen *g, int32_t r) {
    if (!is_reduction(g->g->code.at[r].code)) return g->stage[r];
    uint32_t own = g->stage[r] + 1, u = g->factor[r] < 0 ? 0 : known_in(g, g->factor[r]);
    return own > u ? own : u;
}

/* Where the two factors of SUM k's summand are found when a third one, the same for the row, can be
 * multiplied afterwards: sum(a (b u)) = u sum(a b). That saves waiting for u. */
static void take_factor(struct group_gen *g, uint32_t k) {
    const struct group_instr *i = &g->g->code.at[k], *m;
    g->factor[k] = -1;
    if (g->form != FORM_ROW || i->code != INSTR_SUM || i->dtype != DT_f32) return;
    m = &g->g->code.at[i->a];
    if (m->code != OP_mul) return;
    for (int q = 0; q < 2; q++) {
        int32_t other = q ? m->a : m->b, part = q ? m->b : m->a;
        const struct group_instr *p = &g->g->code.at[part];
        if (p->code != OP_mul || g->uniform[other] || g->uniform[p->a] == g->uniform[p->b])
            continue;
        int32_t u = g->uniform[p->a] ? p->a : p->b, rest = g->uniform[p->a] ? p->b : p->a;
        uint32_t early = g->stage[rest] > g->stage[other] ? g->stage[rest] : g->stage[other];
        if (known_in(g, u) <= early) continue;
        g->factor[k] = u, g->product[k][0] = other, g->product[k][1] = rest;
        g->stage[k] = early;
        return;
    }
}

static void classify(struct group_gen *g) {
    g->nstages = 0;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        g->stage[k] = 0;
        const int32_t r[3] = {i->a, i->b, i->c};
        bool all = true;
        for (int q = 0; q < 3; q++) {
            if (r[q] < 0) continue;
            all &= g->uniform[r[q]];
            uint32_t known = known_in(g, r[q]);
            if (known > g->stage[k]) g->stage[k] = known;
        }
        take_factor(g, k);
        g->uniform[k] = all;
        if (i->code == INSTR_LOAD || i->code == INSTR_IOTA) g->uniform[k] = inner_zero(g, k);
        if (i->code == INSTR_RANDOM) g->uniform[k] = i->span == SPAN_ROW;
        if (is_reduction(i->code)) g->uniform[k] = true;
        if (i->code == INSTR_STORE) g->row_store[k] = g->form != FORM_MAP && inner_zero(g, k);
        /* What is known of a row after its last walk waits for no other one. */
        bool walks = is_reduction(i->code) || (is_sink(i->code) && !g->row_store[k]);
        if (walks && g->stage[k] + 1 > g->nstages) g->nstages = g->stage[k] + 1;
    }
    if (g->nstages == 0) g->nstages = 1;
}

static bool has_row_store(const struct group_gen *g) {
    for (uint32_t k = 0; k < g->n; k++)
        if (g->g->code.at[k].code == INSTR_STORE && inner_zero(g, k)) return true;
    return false;
}

static enum group_form choose_form(const struct group_gen *g) {
    bool per_row = false;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        if (i->code == INSTR_RANDOM && i->span == SPAN_ROW) per_row = true;
        if (i->code != INSTR_STORE) continue;
        for (int d = 0; d < g->g->rank; d++) {
            const struct plan_view *v = access_view(g, i);
            if ((v->dims[d] == 1 || v->strides[d] == 0) && g->g->dims[d] != 1) per_row = true;
        }
    }
    if (g->y->mode == GROUP_TAIL) return FORM_TAIL;
    if (g->y->mode == GROUP_ROW) return FORM_ROW;
    if (g->ncolsum) return has_row_store(g) ? FORM_ROW : FORM_COLUMNS;
    return per_row ? FORM_ROW : FORM_MAP;
}

/* Values that a run of `vec` columns shares take a register a run. */
static void find_runs(struct group_gen *g) {
    int64_t *runs = ARENA_ARRAY(g->c->scratch, int64_t, g->n + 1);
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        if (i->code == INSTR_RANDOM) runs[k] = i->span == SPAN_ROW ? 0 : 1;
        if (i->code == INSTR_LOAD || i->code == INSTR_IOTA) runs[k] = group_repeats(g, k);
    }
    group_constant_runs(g->g, runs);
    if (g->form == FORM_TAIL) return;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        const int32_t r[3] = {i->a, i->b, i->c};
        bool runs_only = !g->uniform[k] && i->code != INSTR_CONST && !is_sink(i->code);
        /* What is the same for all rows is kept for all columns (COLUMNS). */
        bool varies = g->form != FORM_COLUMNS || instr_is_part(i->code);
        if (i->code == INSTR_LOAD)
            for (int d = 0; d < g->border; d++) varies |= g->y->regs[k].strides[d] != 0;
        for (int q = 0; q < 3; q++) {
            if (r[q] < 0) continue;
            bool one = g->uniform[r[q]] || g->g->code.at[r[q]].code == INSTR_CONST;
            varies |= g->by_run[r[q]];
            runs_only &= one || g->by_run[r[q]] || instr_is_part(i->code);
        }
        g->by_run[k] = runs_only && varies && runs[k] % g->vec == 0;
    }
}

/* ---- vectors --------------------------------------------------------------------------------- */
bool group_packed(const struct group_gen *g, uint32_t k, int vec) {
    const struct group_instr *i = &g->g->code.at[k];
    const struct group_layout *y = g->y;
    const int64_t *s = y->regs[k].strides;
    if (i->code != INSTR_LOAD && i->code != INSTR_STORE) return false;
    if (y->rank == g->border || s[y->rank - 1] != 1) return false;
    const struct plan_view *v = access_view(g, i);
    int64_t least = i64_min(vec, 16 / (int64_t)dtype_size(v->dtype));
    bool ok = v->offset % least == 0;
    for (int d = 0; d < y->rank - 1; d++) ok &= s[d] % least == 0;
    return ok;
}

/* The widest that divides a row's last axis and some access can use. */
static int choose_vec(const struct group_gen *g) {
    int64_t last = g->y->rank > g->border ? g->y->dims[g->y->rank - 1] : 1;
    int64_t small = 8;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        if (group_packed(g, k, 1))
            small = i64_min(small, (int64_t)dtype_size(access_view(g, i)->dtype));
    }
    for (int v = small <= 2 ? 8 : small <= 4 ? 4 : 2; v > 1; v /= 2) {
        if (last % v != 0) continue;
        for (uint32_t k = 0; k < g->n; k++)
            if (group_packed(g, k, v)) return v;
    }
    return 1;
}

/* Registers of one element that are in use at once, in 32-bit words. */
static int pressure(const struct group_gen *g) {
    uint32_t *last = ARENA_ARRAY(g->c->scratch, uint32_t, g->n + 1);
    int now = 0, most = 1;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        const int32_t r[3] = {i->a, i->b, i->c};
        for (int q = 0; q < 3; q++)
            if (r[q] >= 0) last[r[q]] = k;
    }
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        const int32_t r[3] = {i->a, i->b, i->c};
        int words = i->dtype == DT_f32 || i->dtype == DT_bool ? 1 : 2;
        if (!g->uniform[k] && !g->by_run[k] && !is_sink(i->code)) now += words;
        if (instr_is_column(i->code)) now += g->g->code.at[i->a].dtype == DT_f32 ? 1 : 2;
        if (now > most) most = now;
        for (int q = 0; q < 3; q++) {
            if (r[q] < 0 || last[r[q]] != k || g->uniform[r[q]] || g->by_run[r[q]]) continue;
            if ((q > 0 && r[q] == r[0]) || (q > 1 && r[q] == r[1])) continue;
            enum dtype t = (enum dtype)g->g->code.at[r[q]].dtype;
            now -= t == DT_f32 || t == DT_bool ? 1 : 2;
        }
    }
    return most;
}

/* Bytes from memory that a thread has on their way before it computes, for each unit; what is
 * repeated along an axis comes from a cache. */
static int64_t early_bytes(const struct group_gen *g) {
    int64_t bytes = 0;
    for (uint32_t k = 0; k < g->n; k++) {
        bool repeated = false;
        for (int d = 0; d < g->y->rank; d++) repeated |= g->y->regs[k].strides[d] == 0;
        if (group_early(g, k) && !g->uniform[k] && !repeated)
            bytes += g->vec * (int64_t)dtype_size(access_view(g, &g->g->code.at[k])->dtype);
    }
    return bytes;
}

/* Results that are rounded to 16 bits or fewer do not need more from what they are made of. */
static bool stores_few_bits(const struct group_gen *g) {
    bool any = false;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        if (i->code != INSTR_STORE || g->row_store[k]) continue;
        enum dtype t = access_view(g, i)->dtype;
        if (dtype_is_float(t) && dtype_size(t) > 2) return false;
        any |= dtype_is_float(t);
    }
    return any;
}

/* Whether it makes 8-bit floats, whose codes are the same on all devices. */
static bool rounds_to_bytes(const struct group_gen *g) {
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        enum dtype t = i->code == OP_cast       ? (enum dtype)i->imm_int
                       : i->code == INSTR_STORE ? access_view(g, i)->dtype
                                                : DT_NONE;
        if (t == DT_e4m3 || t == DT_e5m2 || t == DT_e8m0) return true;
    }
    return false;
}

/* ---- threads --------------------------------------------------------------------------------- */
static bool fits(int words, int64_t threads, int64_t elems) {
    int64_t registers = i64_min(65536 / threads, 224);
    return elems <= ELEMS_MAX && words * elems + 40 <= registers;
}

/* A warp or less for a row that fits its registers, else a block; false: a row is too long. */
static bool choose_lanes(struct group_gen *g) {
    int64_t runs = ceil_div(g->cols, g->vec);
    int words = pressure(g);
    g->threads = ROW_THREADS;
    if (runs <= 32 || (runs <= 32 * 8 && fits(words, ROW_THREADS, ceil_div(runs, 32) * g->vec) &&
                       !(g->ncolsum && runs >= 64) && !(g->exact && runs > 64))) {
        g->lanes = 32;
        while (g->lanes > 1 && g->lanes / 2 >= runs) g->lanes /= 2;
        g->units = (int)ceil_div(runs, g->lanes);
        /* Few rows: smaller blocks reach more processors. */
        while (g->threads > 64 && ceil_div(g->rows * g->lanes, g->threads) < BLOCKS_WANTED / 4)
            g->threads /= 2;
        return true;
    }
    /* Codes take many instructions: what a row costs besides should be shared by more elements. */
    int least = g->exact && g->ncolsum == 0 && runs >= 128 ? 2 : 1;
    for (int units = least; units * g->vec <= ELEMS_MAX; units++) {
        int64_t threads = (ceil_div(runs, units) + 31) / 32 * 32;
        if (threads > 1024 || !fits(words, threads, (int64_t)units * g->vec)) continue;
        /* More than 512 threads wait long at each exchange: rather more elements a thread. */
        int64_t fewer = (ceil_div(runs, units + 1) + 31) / 32 * 32;
        if (threads > 512 && fits(words, fewer, (int64_t)(units + 1) * g->vec)) continue;
        g->units = units;
        g->lanes = g->threads = (int)threads;
        return true;
    }
    return false;
}

static void choose_partials(struct group_gen *g) {
    int64_t bytes = 0;
    int number = 0;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        if (g->form == FORM_TAIL && is_reduction(i->code)) g->partial[k] = number++;
        if (!instr_is_column(i->code)) continue;
        g->partial[k] = bytes;
        int64_t size = g->g->code.at[i->a].dtype == DT_f32 ? 4 : 8;
        bytes += round16(g->workers * g->cols * size);
    }
    if (g->form == FORM_TAIL) bytes = g->rows * g->pieces * number * 8;
    g->c->l->work_bytes = bytes;
}

/* A second run for each thread when one leaves the memory idle. */
static void choose_map_units(struct group_gen *g) {
    int64_t bytes = early_bytes(g), lanes = g->cols / g->vec;
    if (bytes > 0 && bytes <= 16 && lanes >= (int64_t)4096 * PROCESSORS &&
        fits(pressure(g), 2 * MAP_THREADS, (int64_t)2 * g->vec))
        g->units = 2;
}

/* What the compiler should manage with for that many numbers; codes want some more at times. */
static int64_t registers_for(const struct group_gen *g, int64_t words) {
    if (g->exact && words > (g->form == FORM_COLUMNS ? 52 : 60))
        return i64_min(255, (words + 20) / 8 * 8);
    return words <= 60 ? 64 : words <= 80 ? 80 : words <= 116 ? 128 : 255;
}

/* Blocks of a processor, whose four parts have 512 warps' registers each: a block's warps go to
 * them in turn. */
static int64_t blocks_for(const struct group_gen *g, int64_t registers) {
    int64_t warps = 4 * i64_min(512 / registers, 16);
    return i64_max(1, warps / ((g->threads + 31) / 32));
}

/* Rows wait in shared memory, each thread's part copied by itself: that takes no registers, and
 * enough of them on their way hide the memory's latency. */
static bool choose_ring(struct group_gen *g) {
    int64_t bytes = 0;
    for (uint32_t k = 0; k < g->n; k++) {
        if (!group_early(g, k)) continue;
        int64_t size = (int64_t)dtype_size(access_view(g, &g->g->code.at[k])->dtype);
        if (g->by_run[k])
            size = i64_max(size, 4);
        else if (!g->uniform[k])
            size = i64_min(16, size * g->vec);
        if (size < 4) return false; /* cp.async moves no less */
        bytes += group_ringed(g, k);
    }
    if (bytes == 0 || g->c->p->cuda_arch < 80) return false;
    int64_t words = (int64_t)pressure(g) * g->vec * g->units + 8; /* operands are read late */
    if (g->ncolsum > 2) words += 2 * g->vec * g->units;
    if (g->cols % ((int64_t)g->vec * g->units * g->lanes) != 0) words += 12;
    int64_t registers = registers_for(g, words);
    int64_t blocks = blocks_for(g, registers);
    int64_t slot = bytes * g->threads;
    int64_t ring = 1 + i64_max(1, i64_min(5, ceil_div(ON_THE_WAY, blocks * slot)));
    while (ring > 2 && ring * slot > RING_BLOCK) ring--;
    if (ring * slot > RING_BLOCK) return false;
    g->ring = (int)ring, g->slot = slot;
    g->blocks = (int)i64_max(1, i64_min(blocks, RING_BYTES / (ring * slot)));
    return true;
}

/* For kernels that walk many rows: registers are bounded so that `blocks` blocks of a processor run
 * at once, and hold the next row when there is room. */
static void choose_blocks(struct group_gen *g) {
    if (choose_ring(g)) return;
    int64_t least = (int64_t)pressure(g) * g->vec * g->units + 24;
    int64_t words = least + early_bytes(g) * g->units / 4;
    int64_t most = i64_min(255, 65536 / g->threads);
    g->ahead = g->vec * g->units <= 8 && words + 20 <= most;
    if (!g->ahead) words = least;
    g->late = !g->ahead;
    int64_t registers = registers_for(g, words);
    g->blocks = (int)blocks_for(g, registers);
}

/* How many pieces of rows keep all processors busy to the end, each with `tiles` blocks. */
static int64_t choose_pieces(const struct group_gen *g, int64_t tiles, int64_t limit) {
    int64_t capacity = (int64_t)PROCESSORS * g->blocks, best = 1;
    double most = 0;
    for (int64_t p = 1; p <= limit && (p == 1 || tiles * p <= 4 * capacity); p++) {
        double use = (double)(tiles * p) / (double)(ceil_div(tiles * p, capacity) * capacity);
        if (use > most + 0.02) most = use, best = p;
    }
    return best;
}

/* Whole warps that walk a row in even steps, `bytes` each for a thread; two rows have to fit. */
static int64_t choose_walkers(const struct group_gen *g, int64_t bytes, int64_t most) {
    int64_t runs = g->cols / g->vec, best = 0;
    double use = 0;
    for (int64_t warps = 16; warps <= 32; warps += 4) {
        int64_t steps = ceil_div(runs, 32 * warps);
        double full = (double)runs / (double)(steps * 32 * warps);
        if (2 * steps * 32 * warps * bytes > most || full < use + 0.01) continue;
        use = full, best = 32 * warps;
    }
    return best;
}

/* Long rows through a ring: the next row arrives while one is computed. */
static bool choose_walk(struct group_gen *g, int64_t most) {
    int64_t bytes = 0;
    for (uint32_t k = 0; k < g->n; k++) {
        int64_t own = group_walked(g, k);
        if (own && own < 4) return false; /* cp.async moves no less */
        bytes += own;
    }
    int64_t threads = bytes ? choose_walkers(g, bytes, most) : 0;
    if (!threads || g->nstages < 2 || g->rows < 4 * PROCESSORS || g->c->p->cuda_arch < 80)
        return false;
    g->threads = g->lanes = (int)threads;
    g->steps = (int)ceil_div(g->cols / g->vec, threads);
    g->slot = bytes * threads * g->steps;
    g->ring = (int)i64_min(4, most / g->slot);
    g->rows_each = ceil_div(g->rows, PROCESSORS);
    return true;
}

/* A long row's operands wait in shared memory between the walks when there are several. */
static void choose_kept(struct group_gen *g) {
    int64_t bytes = 0, most = g->c->p->cuda_arch >= 90 ? KEPT_90 : KEPT_80;
    if (choose_walk(g, most)) return;
    for (uint32_t k = 0; k < g->n; k++) bytes += group_kept(g, k);
    g->kept_bytes = g->nstages > 1 && bytes <= most ? bytes : 0;
    if (g->kept_bytes <= KEPT_HALF) return;
    g->threads = g->lanes = 2 * LONG_THREADS;
    if (g->kept_bytes <= KEPT_TWICE && !g->ncolsum) g->blocks = 2;
}

/* Many rows of a few elements: a block of one row a worker would end before it has begun. */
static void choose_interleaved(struct group_gen *g) {
    enum { ROWS_EACH = 4 };
    int64_t blocks = ceil_div(g->rows, g->threads / g->lanes);
    if (g->lanes * g->units > 32 || blocks < (int64_t)4 * PROCESSORS) return;
    g->interleaved = true;
    g->ahead = g->vec * g->units <= 8;
    g->rows_each = ROWS_EACH;
}

/* A thread has its part of all its rows on the way when that takes few registers. */
static void choose_tile(struct group_gen *g) {
    enum { RAW_BYTES = 256 };
    g->ahead = early_bytes(g) * (4 / g->turned_elem) <= RAW_BYTES;
}

static void choose_threads(struct group_gen *g) {
    g->units = 1;
    g->blocks = 1;
    g->rows_each = 1;
    g->lanes = g->threads = MAP_THREADS;
    if (g->form == FORM_ROW && !choose_lanes(g)) {
        g->form = FORM_LONG;
        classify(g);
    }
    switch (g->form) {
    case FORM_MAP: choose_map_units(g); break;
    case FORM_TILE: choose_tile(g); break;
    case FORM_ROW: {
        if (g->ncolsum) { /* few partial results, each of several rows */
            choose_blocks(g);
            int64_t wanted = (int64_t)PROCESSORS * g->blocks * (g->threads / g->lanes);
            g->rows_each =
                i64_max(ceil_div(g->rows, wanted), i64_min(4, ceil_div(g->rows, PROCESSORS)));
        } else {
            choose_interleaved(g);
        }
        g->workers = ceil_div(g->rows, g->rows_each);
        break;
    }
    case FORM_LONG:
        g->lanes = g->threads = LONG_THREADS;
        choose_kept(g);
        if (g->ncolsum && !g->ring) g->rows_each = ceil_div(g->rows, (int64_t)2 * PROCESSORS);
        g->workers = ceil_div(g->rows, g->rows_each);
        break;
    case FORM_COLUMNS: {
        int64_t tiles = ceil_div(g->cols / g->vec, 32);
        g->lanes = 32;
        g->threads = 32 * COLUMN_WARPS;
        choose_blocks(g);
        int64_t pieces = choose_pieces(g, tiles, ceil_div(g->rows, COLUMN_WARPS * 4));
        g->rows_each = ceil_div(g->rows, i64_max(pieces, 1));
        g->workers = ceil_div(g->rows, g->rows_each);
        break;
    }
    case FORM_TAIL:
        g->piece = i64_max(TAIL_PIECE, ceil_div(g->cols * g->rows, 2 * BLOCKS_WANTED));
        g->piece = ceil_div(g->piece, MAP_THREADS * g->vec) * MAP_THREADS * g->vec;
        g->pieces = ceil_div(g->cols, g->piece);
        break;
    }
    choose_partials(g);
}

/* ---- the launch ------------------------------------------------------------------------------ */
/* How many threads share the partial sums of a column. */
static int64_t choose_slices(const struct group_gen *g) {
    int64_t slices = 1;
    while (slices < SLICES && slices * 4 < g->workers) slices *= 2;
    return slices;
}

/* Whether the lanes of a warp are always in the same place of the program. */
static bool keeps_warps(const struct group_gen *g) {
    int64_t step = (int64_t)g->vec * g->units * g->lanes;
    if (g->form == FORM_LONG) return g->cols % step == 0;
    if (g->form != FORM_ROW || g->cols % step != 0) return false;
    return g->lanes >= 32 || g->rows % (32 / g->lanes) == 0;
}

static void define_all(struct group_gen *g) {
    struct cuda_gen *c = g->c;
    int64_t largest = g->rows * g->cols + 1024 * 64;
    cuda_define(c, "MODE", g->form);
    cuda_define(c, "ROWS", g->rows);
    cuda_define(c, "COLS", g->cols);
    cuda_define(c, "VEC", g->vec);
    cuda_define(c, "UNITS", g->units);
    cuda_define(c, "LANES", g->lanes);
    cuda_define(c, "THREADS", g->threads);
    if (g->blocks > 1) cuda_define(c, "BLOCKS", g->blocks);
    cuda_define(c, "AHEAD", g->ahead);
    cuda_define(c, "RING", g->ring);
    if (g->ring) cuda_define(c, "SLOT", g->slot);
    if (g->steps) cuda_define(c, "STEP", g->slot / g->steps);
    cuda_define(c, "RPW", g->rows_each);
    if (g->interleaved) cuda_define(c, "INTERLEAVED", 1);
    cuda_define(c, "BLOCK_ROWS", g->form == FORM_ROW ? g->threads / g->lanes : 1);
    if (g->fast) cuda_define(c, "FAST_MATH", 1);
    if (keeps_warps(g)) cuda_define(c, "WHOLE_WARPS", 1);
    if (g->exact) cuda_define(c, "EXACT_DIV", 1);
    cuda_define(c, "COLSUMS", g->ncolsum);
    if (g->ncolsum) {
        cuda_define(c, "WORKERS", g->workers);
        cuda_define(c, "SLICES", choose_slices(g));
        cuda_define(c, "WARPS", COLUMN_WARPS);
    }
    if (g->form == FORM_TAIL) {
        cuda_define(c, "PIECE", g->piece);
        cuda_define(c, "PIECES", g->pieces);
        cuda_define(c, "PARTS", g->nreduce);
    }
    if (g->form == FORM_TILE) cuda_define(c, "ELEM", g->turned_elem);
    cuda_define_text(c, "IDX", cuda_index_type(largest));
    cuda_define_params(c);
}

static enum status group_calls(struct group_gen *g) {
    struct cuda_gen *c = g->c;
    const char *file = "group.cu";
    int64_t blocks;
    switch (g->form) {
    case FORM_MAP:
        blocks = ceil_div(g->cols / g->vec, (int64_t)g->lanes * g->units);
        return cuda_call(c, file, "group_map", blocks, 1, 1, g->lanes, 0);
    case FORM_TAIL:
        TRY(cuda_call(c, file, "group_pieces", g->pieces, g->rows, 1, g->lanes, 0));
        return cuda_call(c, file, "group_finish", g->rows, 1, 1, g->lanes, 0);
    case FORM_TILE: {
        int64_t rows = 32 * 4 / g->turned_elem; /* TILE_C of kernels/tile.cuh */
        return cuda_call(c, file, "group_tile", ceil_div(g->cols / g->vec, 8),
                         ceil_div(g->rows, rows), 1, MAP_THREADS, 0);
    }
    case FORM_ROW:
        blocks = ceil_div(g->workers, g->threads / g->lanes);
        TRY(cuda_call(c, file, "group_row", blocks, 1, 1, g->threads, g->ring * g->slot));
        break;
    case FORM_LONG:
        TRY(cuda_call(c, file, "group_long", g->workers, 1, 1, g->threads,
                      g->kept_bytes + g->ring * g->slot));
        break;
    case FORM_COLUMNS:
        blocks = ceil_div(g->cols / g->vec, 32);
        TRY(cuda_call(c, file, "group_rows", blocks, g->workers, 1, g->threads, g->ring * g->slot));
        break;
    }
    if (!g->ncolsum) return ST_OK;
    return cuda_call(c, file, "group_columns", ceil_div(g->cols, 32), g->ncolsum, 1,
                     32 * choose_slices(g), 0);
}

static enum status check_program(struct cuda_gen *c, const struct plan_group *g) {
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        bool sums = is_reduction(i->code) || instr_is_column(i->code);
        if (sums && g->code.at[i->a].dtype == DT_bool)
            return cuda_unsupported(c, "reductions of bool; cast them first");
    }
    return ST_OK;
}

/* Parts of rows are whole runs of a power of two of lanes. */
static enum status check_parts(struct cuda_gen *c, const struct group_gen *g) {
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = &g->g->code.at[k];
        if (instr_is_part(i->code) && !g->uniform[k] && !g->by_run[k])
            return cuda_unsupported(c, "maxima of parts of rows in this layout");
    }
    return ST_OK;
}

enum status cuda_group(struct cuda_gen *c) {
    struct group_gen g = {.c = c, .l = c->l, .g = &c->p->groups.at[c->l->group.i]};
    TRY(check_program(c, g.g));
    g.y = plan_group_layout(c->p, c->l, c->scratch);
    if (cuda_transposes(c, g.g, g.y)) return cuda_transpose(c, g.y);
    g.n = g.g->code.n;
    g.uniform = ARENA_ARRAY(c->scratch, bool, g.n + 1);
    g.by_run = ARENA_ARRAY(c->scratch, bool, g.n + 1);
    g.row_store = ARENA_ARRAY(c->scratch, bool, g.n + 1);
    g.stage = ARENA_ARRAY(c->scratch, uint32_t, g.n + 1);
    g.factor = ARENA_ARRAY(c->scratch, int32_t, g.n + 1);
    g.product = arena_alloc(c->scratch, (g.n + 1) * sizeof *g.product);
    g.partial = ARENA_ARRAY(c->scratch, int64_t, g.n + 1);
    for (uint32_t k = 0; k < g.n; k++) {
        g.ncolsum += instr_is_column(g.g->code.at[k].code);
        g.nreduce += is_reduction(g.g->code.at[k].code);
    }
    g.border = g.y->rank - g.y->inner;
    g.form = choose_form(&g);
    g.turned_elem = tile_elem(g.g, g.l, g.y);
    if (g.turned_elem) g.form = FORM_TILE, g.border = 1;
    if (g.form == FORM_MAP) g.border = 0;
    g.rows = g.cols = 1;
    for (int d = 0; d < g.y->rank; d++) *(d < g.border ? &g.rows : &g.cols) *= g.y->dims[d];
    classify(&g);
    g.vec = g.turned_elem ? 16 / g.turned_elem : choose_vec(&g);
    find_runs(&g);
    TRY(check_parts(c, &g));
    g.fast = stores_few_bits(&g);
    g.exact = rounds_to_bytes(&g);
    choose_threads(&g);
    define_all(&g);
    group_text(&g);
    return group_calls(&g);
}
