// SPDX-License-Identifier: Apache-2.0
/* plan_group.c - how the CPU backend lays a fused group out: merged axes, block sizes, stages,
 * where each register lives and how the work is cut into pieces. Pure shape arithmetic
 * (plan_work.h). */
#include "ir/plan_work.h"
#include <string.h>

enum {
    SLOT_BUDGET = 24576, /* bytes of block registers: they should stay in a 32 KiB L1 cache */
    BLOCK_MIN = 512,     /* elements: below, the interpreter's own cost shows */
    BLOCK_MAX = 4096,
    PIECE_ELEMS = 32768, /* what a task should at least do */
    TAIL_ELEMS = 65536,
    COLSUM_PIECES = 16,
    TILE_ROWS = 32, /* blocks of transposing groups */
    TILE_COLS = 128,
};

struct builder {
    const struct plan *p;
    const struct plan_launch *l;
    const struct plan_group *g;
    struct arena *a;
    struct group_layout *y;
    uint32_t n;
    uint32_t *stage, *avail; /* per instruction: runs in, result known from */
    uint32_t *last_stage;    /* of any user */
    bool *overlaps;          /* per LOAD / STORE: shares memory with the other kind */
    bool multi;              /* rows are longer than a block and have stages */
};

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t round64(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

size_t group_elem_size(enum dtype reg) {
    return reg == DT_bool ? 1 : reg == DT_f32 ? 4 : 8;
}

static bool is_reduction(uint16_t code) {
    return code == INSTR_SUM || code == INSTR_MAX || code == INSTR_MIN || code == INSTR_PROD;
}

static bool has_access(uint16_t code) {
    return code == INSTR_LOAD || code == INSTR_STORE || instr_is_column(code) || code == INSTR_IOTA;
}

static bool has_value(uint16_t code) {
    return code != INSTR_STORE && !instr_is_column(code);
}

static const struct plan_view *view_of(const struct builder *b, const struct group_instr *k) {
    return k->code == INSTR_LOAD ? &b->l->in[k->slot] : &b->l->out[k->slot];
}

static int64_t common(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

void group_constant_runs(const struct plan_group *g, int64_t *runs) {
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        const int32_t r[3] = {i->a, i->b, i->c};
        if (i->code == INSTR_LOAD || i->code == INSTR_IOTA || i->code == INSTR_RANDOM) continue;
        runs[k] = 0;
        if (is_reduction(i->code) || !has_value(i->code)) continue;
        for (int q = 0; q < 3; q++)
            if (r[q] >= 0) runs[k] = common(runs[k], runs[r[q]]);
        if (instr_is_part(i->code) && runs[k] % i->imm_int != 0) runs[k] = i->imm_int;
    }
}

/* ---- axes -------------------------------------------------------------------------------------
 */

/* Strides over the group's own axes; `strides` has RANK_MAX places. */
static void raw_access(const struct builder *b, const struct group_instr *k, struct group_reg *r) {
    const struct plan_group *g = b->g;
    if (k->code == INSTR_IOTA) {
        r->strides[k->axis] = 1;
        return;
    }
    const struct plan_view *v = view_of(b, k);
    int skip = g->rank - v->rank; /* a COLSUM view may have the row's axes only */
    r->offset = v->offset;
    for (int i = skip < 0 ? 0 : skip; i < g->rank; i++)
        r->strides[i] = v->dims[i - skip] == 1 ? 0 : v->strides[i - skip];
    if (instr_is_column(k->code))
        for (int i = 0; i < g->rank - g->inner; i++) r->strides[i] = 0;
}

/* May axis `i` be merged into the kept axis `to` just before it, for every access? */
static bool mergeable(const struct builder *b, int to, int i, int64_t size) {
    for (uint32_t k = 0; k < b->n; k++) {
        if (!has_access(b->g->code.at[k].code)) continue;
        const int64_t *s = b->y->regs[k].strides;
        if (s[to] != s[i] * size) return false;
    }
    return true;
}

/* Drop axes of size 1 and merge neighbours; never across the border between rows and columns unless
 * `free_border`. */
static void merge_axes(struct builder *b, bool free_border) {
    struct group_layout *y = b->y;
    int n = 0, border = b->g->rank - b->g->inner, outer = 0;
    for (int i = 0; i < b->g->rank; i++) {
        int64_t size = b->g->dims[i];
        bool inner = i >= border;
        if (size == 1) continue;
        bool same_side = free_border || (n > 0 && (outer < n) == inner);
        if (n > 0 && same_side && mergeable(b, n - 1, i, size)) {
            y->dims[n - 1] *= size;
            for (uint32_t k = 0; k < b->n; k++) y->regs[k].strides[n - 1] = y->regs[k].strides[i];
            continue;
        }
        y->dims[n] = size;
        for (uint32_t k = 0; k < b->n; k++) y->regs[k].strides[n] = y->regs[k].strides[i];
        n++;
        if (!inner) outer = n;
    }
    y->rank = n;
    y->inner = n - outer;
    if (!free_border) return;
    int64_t width = 1;
    for (y->inner = 0; y->inner < n && width < 32; y->inner++) width *= y->dims[n - 1 - y->inner];
}

static bool inner_all(const struct group_layout *y, const struct group_reg *r, int64_t stride) {
    for (int i = y->rank - y->inner; i < y->rank; i++)
        if (r->strides[i] != stride) return false;
    return true;
}

static bool outer_zero(const struct group_layout *y, const struct group_reg *r) {
    for (int i = 0; i < y->rank - y->inner; i++)
        if (r->strides[i] != 0) return false;
    return true;
}

/* Row-major without gaps over axes [from, rank). */
static bool packed(const struct group_layout *y, const struct group_reg *r, int from) {
    int64_t step = 1;
    for (int i = y->rank - 1; i >= from; i--) {
        if (r->strides[i] != step) return false;
        step *= y->dims[i];
    }
    return true;
}

/* ---- stages -----------------------------------------------------------------------------------
 */

static uint32_t buffer_root(const struct plan *p, buf_id id) {
    while (p->buffers.at[id.i].alias.i) id = p->buffers.at[id.i].alias;
    return id.i;
}

static void find_overlaps(struct builder *b) {
    b->overlaps = ARENA_ARRAY(b->a, bool, b->n);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct group_instr *k = &b->g->code.at[i];
        if (k->code != INSTR_STORE) continue;
        uint32_t root = buffer_root(b->p, view_of(b, k)->buffer);
        for (uint32_t j = 0; j < b->n; j++) {
            const struct group_instr *m = &b->g->code.at[j];
            if (m->code != INSTR_LOAD || buffer_root(b->p, view_of(b, m)->buffer) != root) continue;
            b->overlaps[i] = b->overlaps[j] = true;
        }
    }
}

static void find_stages(struct builder *b) {
    b->stage = ARENA_ARRAY(b->a, uint32_t, b->n);
    b->avail = ARENA_ARRAY(b->a, uint32_t, b->n);
    b->last_stage = ARENA_ARRAY(b->a, uint32_t, b->n);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct group_instr *k = &b->g->code.at[i];
        int32_t ops[3] = {k->a, k->b, k->c};
        uint32_t s = 0;
        for (int j = 0; j < 3; j++)
            if (ops[j] >= 0 && b->avail[ops[j]] > s) s = b->avail[ops[j]];
        b->stage[i] = s;
        b->avail[i] = s + (is_reduction(k->code) ? 1 : 0);
        for (int j = 0; j < 3; j++)
            if (ops[j] >= 0 && s > b->last_stage[ops[j]]) b->last_stage[ops[j]] = s;
        if (s + 1 > b->y->nstages) b->y->nstages = s + 1;
    }
}

/* ---- registers --------------------------------------------------------------------------------
 */

static bool natural(const struct builder *b, const struct group_instr *k, uint8_t reg) {
    return view_of(b, k)->dtype == (enum dtype)reg;
}

/* Blocks of this view are runs of consecutive elements. */
static bool block_packed(const struct group_layout *y, const struct group_reg *r) {
    if (y->block_rows == 1) return packed(y, r, y->rank - y->inner);
    return y->block_cols == y->cols && packed(y, r, 0);
}

static void place_load(struct builder *b, uint32_t i) {
    struct group_layout *y = b->y;
    struct group_reg *r = &y->regs[i];
    const struct group_instr *k = &b->g->code.at[i];
    if (inner_all(y, r, 0)) {
        r->where = outer_zero(y, r) ? REG_SCALAR : REG_ROW;
    } else if (k->code == INSTR_LOAD && natural(b, k, k->dtype) && !b->overlaps[i] &&
               block_packed(y, r)) {
        r->where = REG_DIRECT;
    } else if (b->multi && b->overlaps[i] && b->last_stage[i] > 0) {
        r->where = REG_LINE;
    } else {
        r->where = REG_SLOT;
        r->hoisted = y->block_cols == y->cols && outer_zero(y, r);
    }
}

/* Spans follow from the merged axes, which may differ from the program's. */
static bool row_operands(const struct builder *b, const struct group_instr *k) {
    int32_t ops[3] = {k->a, k->b, k->c};
    for (int j = 0; j < 3; j++) {
        if (ops[j] < 0) continue;
        enum group_where w = b->y->regs[ops[j]].where;
        if (w != REG_ROW && w != REG_SCALAR) return false;
    }
    return true;
}

static void place(struct builder *b, uint32_t i) {
    struct group_layout *y = b->y;
    struct group_reg *r = &y->regs[i];
    const struct group_instr *k = &b->g->code.at[i];
    r->where = REG_SLOT;
    r->hoisted = false;
    r->store = -1;
    if (!has_value(k->code))
        r->where = REG_NONE;
    else if (k->code == INSTR_CONST)
        r->where = REG_SCALAR;
    else if (k->code == INSTR_LOAD || k->code == INSTR_IOTA)
        place_load(b, i);
    else if (is_reduction(k->code) || (k->code < INSTR_LOAD && row_operands(b, k)))
        r->where = REG_ROW;
    else if (k->code == INSTR_RANDOM && k->span == SPAN_ROW)
        r->where = REG_ROW;
    else if (b->multi && b->last_stage[i] > b->stage[i])
        r->where = REG_LINE;
}

/* A value that is stored as it is may be computed right where it goes. */
static void place_in_result(struct builder *b, uint32_t store) {
    const struct group_instr *k = &b->g->code.at[store];
    struct group_reg *r = &b->y->regs[k->a];
    uint16_t code = b->g->code.at[k->a].code;
    if (k->code != INSTR_STORE || code >= INSTR_LOAD || b->overlaps[store]) return;
    if (r->where != REG_SLOT && r->where != REG_LINE) return;
    if (!natural(b, k, b->g->code.at[k->a].dtype)) return;
    if (!block_packed(b->y, &b->y->regs[store])) return;
    r->where = REG_DIRECT;
    r->store = (int32_t)store;
}

/* Loads are repeated in every stage that uses them when a row does not fit a block. */
static bool runs_in(const struct builder *b, uint32_t i, uint32_t stage) {
    const struct group_reg *r = &b->y->regs[i];
    uint16_t code = b->g->code.at[i].code;
    if (r->where == REG_SCALAR) return false;
    bool again = b->multi && (code == INSTR_LOAD || code == INSTR_IOTA) &&
                 (r->where == REG_SLOT || r->where == REG_DIRECT);
    if (!again) return b->stage[i] == stage;
    for (uint32_t j = i + 1; j < b->n; j++) {
        const struct group_instr *k = &b->g->code.at[j];
        if (b->stage[j] != stage) continue;
        if (k->a == (int32_t)i || k->b == (int32_t)i || k->c == (int32_t)i) return true;
    }
    return false;
}

static void schedule(struct builder *b) {
    struct group_layout *y = b->y;
    y->steps = ARENA_ARRAY(b->a, struct group_step, (size_t)b->n * y->nstages + 1);
    y->nsteps = 0;
    for (uint32_t s = 0; s < y->nstages; s++)
        for (uint32_t i = 0; i < b->n; i++)
            if (runs_in(b, i, s)) y->steps[y->nsteps++] = (struct group_step){i, s};
}

/* Linear scan over the schedule: slot numbers into regs[].at; returns how many slots are needed. */
static int64_t assign_slots(struct builder *b) {
    struct group_layout *y = b->y;
    uint32_t *last = ARENA_ARRAY(b->a, uint32_t, b->n + 1);
    bool *given = ARENA_ARRAY(b->a, bool, b->n + 1);
    int64_t *free_slots = ARENA_ARRAY(b->a, int64_t, b->n + 1);
    int64_t slots = 0, nfree = 0;
    for (uint32_t s = 0; s < y->nsteps; s++) {
        const struct group_instr *k = &b->g->code.at[y->steps[s].instr];
        int32_t ops[4] = {k->a, k->b, k->c, (int32_t)y->steps[s].instr};
        for (int j = 0; j < 4; j++)
            if (ops[j] >= 0) last[ops[j]] = s;
    }
    for (uint32_t s = 0; s < y->nsteps; s++) {
        uint32_t i = y->steps[s].instr;
        const struct group_instr *k = &b->g->code.at[i];
        if (y->regs[i].where == REG_SLOT && !given[i]) {
            given[i] = true;
            bool fresh = !nfree || y->regs[i].hoisted; /* hoisted content outlives the block */
            y->regs[i].at = fresh ? slots++ : free_slots[--nfree];
        }
        int32_t ops[4] = {k->a, k->b, k->c, (int32_t)i};
        for (int j = 0; j < 4; j++) {
            struct group_reg *r = ops[j] < 0 ? NULL : &y->regs[ops[j]];
            if (!r || r->where != REG_SLOT || r->hoisted || last[ops[j]] != s || !given[ops[j]])
                continue;
            free_slots[nfree++] = r->at;
            given[ops[j]] = false; /* an operand named twice is freed once */
        }
    }
    return slots;
}

static void place_all(struct builder *b) {
    for (uint32_t i = 0; i < b->n; i++) place(b, i);
    for (uint32_t i = 0; i < b->n; i++)
        if (b->g->code.at[i].code == INSTR_STORE) place_in_result(b, i);
    schedule(b);
}

/* ---- blocks and pieces ------------------------------------------------------------------------
 */

/* Some view runs along the last row axis where others run along columns. */
static bool transposes(const struct builder *b) {
    const struct group_layout *y = b->y;
    int last_row = y->rank - y->inner - 1;
    if (last_row < 0 || y->inner < 1 || y->cols < 2 * TILE_ROWS) return false;
    for (uint32_t i = 0; i < b->n; i++) {
        uint16_t code = b->g->code.at[i].code;
        if (code != INSTR_LOAD && code != INSTR_STORE) continue;
        const int64_t *s = y->regs[i].strides;
        if (s[last_row] == 1 && s[y->rank - 1] != 0 && s[y->rank - 1] != 1) return true;
    }
    return false;
}

static void choose_blocks(struct builder *b, int64_t elem) {
    struct group_layout *y = b->y;
    y->block_rows = 1, y->block_cols = most(y->cols, 1);
    b->multi = false;
    place_all(b);
    int64_t slots = most(assign_slots(b), 1);
    int64_t size = least(most(SLOT_BUDGET / (slots * elem) / 64 * 64, BLOCK_MIN), BLOCK_MAX);
    if (y->mode == GROUP_MAP && !y->ncolsum && transposes(b)) {
        y->block_rows = least(TILE_ROWS, most(y->rows, 1));
        y->block_cols = least(TILE_COLS, y->cols);
    } else if (y->cols <= 2 * size) {
        y->block_rows = most(1, least(size / most(y->cols, 1), y->rows));
        /* Column sums add four rows at a time: the same four whatever else the group computes. */
        if (y->ncolsum && y->block_rows > 4) y->block_rows -= y->block_rows % 4;
    } else {
        y->block_cols = size;
        b->multi = y->mode == GROUP_ROW && y->nstages > 1;
    }
    if (y->mode == GROUP_TAIL) y->block_rows = 1;
}

static void choose_pieces(struct group_layout *y) {
    int64_t elems = most(y->block_rows * y->block_cols, 1);
    int64_t row_blocks = ceil_div(y->rows, y->block_rows);
    int64_t col_blocks = y->mode == GROUP_ROW ? 1 : ceil_div(y->cols, y->block_cols);
    if (y->mode == GROUP_TAIL) {
        y->piece = ceil_div(TAIL_ELEMS, y->block_cols) * y->block_cols;
        y->pieces = most(ceil_div(y->cols, y->piece), 1);
        y->shared_bytes = round64(y->rows * y->pieces * y->nreduce * 8);
    } else if (y->ncolsum && y->mode == GROUP_MAP && y->cols >= PIECE_ELEMS / 2) {
        y->columns_first = true;
        y->piece = y->block_cols * most(1, PIECE_ELEMS / most(y->rows, 1) / y->block_cols);
        y->pieces = ceil_div(y->cols, y->piece);
        y->shared_bytes = round64(y->ncolsum * y->cols * 8);
    } else if (y->ncolsum) {
        int64_t want = least(most(y->rows * y->cols / PIECE_ELEMS, 1), COLSUM_PIECES);
        y->piece = most(ceil_div(row_blocks, want), 1) * y->block_rows;
        y->pieces = most(ceil_div(y->rows, y->piece), 1);
        y->shared_bytes = round64(y->pieces * y->ncolsum * y->cols * 8);
    } else {
        if (y->mode == GROUP_ROW) elems = most(y->block_rows * y->cols, 1);
        y->piece = most(PIECE_ELEMS / elems, 1);
        y->pieces = ceil_div(row_blocks * col_blocks, y->piece);
    }
}

/* Byte offsets in the thread's scratch: slots, lines, row values, scalars, temporaries. */
static void assign_bytes(struct builder *b, int64_t slots, int64_t elem) {
    struct group_layout *y = b->y;
    int64_t slot_bytes = round64(y->block_rows * y->block_cols * elem);
    int64_t top = slots * slot_bytes;
    y->spill = top;
    y->slot_bytes = slot_bytes;
    top += 3 * slot_bytes;
    y->totals = top;
    top += round64(y->nreduce * 8);
    for (uint32_t i = 0; i < b->n; i++) {
        struct group_reg *r = &y->regs[i];
        switch (r->where) {
        case REG_SLOT: r->at *= slot_bytes; break;
        case REG_LINE:
            r->at = top;
            top += round64(y->cols * (int64_t)group_elem_size(b->g->code.at[i].dtype));
            break;
        case REG_ROW:
            r->at = top;
            top += round64(y->block_rows * 8);
            break;
        case REG_SCALAR:
            r->at = top;
            top += 64;
            break;
        default: break;
        }
    }
    y->thread_bytes = top;
}

/* A STORE of one value per row: only its own border keeps writes single. */
static bool repeats(const struct plan_group *g, const struct group_reg *r) {
    for (int i = 0; i < g->rank; i++)
        if (r->strides[i] == 0 && g->dims[i] != 1) return true;
    return false;
}

struct group_layout *plan_group_layout(const struct plan *p, const struct plan_launch *l,
                                       struct arena *a) {
    struct builder b = {.p = p, .l = l, .g = &p->groups.at[l->group.i], .a = a};
    struct group_layout *y = b.y = ARENA_NEW(a, struct group_layout);
    b.n = b.g->code.n;
    y->mode = b.g->mode;
    y->nstages = 1;
    y->regs = ARENA_ARRAY(a, struct group_reg, b.n + 1);
    bool free_border = y->mode == GROUP_MAP;
    int64_t elem = 4;
    for (uint32_t i = 0; i < b.n; i++) {
        const struct group_instr *k = &b.g->code.at[i];
        if (has_access(k->code)) raw_access(&b, k, &y->regs[i]);
        if (k->code == INSTR_STORE && repeats(b.g, &y->regs[i])) free_border = false;
        if (k->code == INSTR_RANDOM && k->span == SPAN_ROW) free_border = false;
        if (instr_is_column(k->code)) {
            y->regs[i].partial = y->ncolsum++;
            free_border = false;
        }
        if (is_reduction(k->code)) y->regs[i].partial = y->nreduce++;
        if (has_value(k->code)) elem = most(elem, (int64_t)group_elem_size(k->dtype));
    }
    merge_axes(&b, free_border);
    y->rows = y->cols = 1;
    for (int i = 0; i < y->rank; i++) *(i < y->rank - y->inner ? &y->rows : &y->cols) *= y->dims[i];
    if (y->mode == GROUP_TAIL && y->cols <= TAIL_ELEMS / 8) y->mode = GROUP_ROW;
    find_overlaps(&b);
    find_stages(&b);
    choose_blocks(&b, elem);
    place_all(&b);
    assign_bytes(&b, assign_slots(&b), elem);
    choose_pieces(y);
    return y;
}
