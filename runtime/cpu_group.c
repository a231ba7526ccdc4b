// SPDX-License-Identifier: Apache-2.0
/* cpu_group.c - the interpreter of fused groups: walks a prepared program over blocks of rows x
 * columns that stay in the L1 cache. What a block computes is in cpu_group_ops.c and its
 * neighbours; how the space is cut is plan_group.c's. */
#include "runtime/cpu_group_prog.h"
#include <string.h>

enum { ROW_LOOP_MIN = 16 }; /* columns from which a kernel call per row pays */

/* A thread inside a task. */
struct run {
    const struct cpu_job *j;
    const struct group_program *p;
    const struct group_layout *y;
    char *scratch;
    int64_t r0, nr, c0, nc; /* the block */
    bool hoisted_done;
    union total *colsums; /* of the task: ncolsum x colsum_cols */
    int64_t colsum_cols, colsum_c0;
};

static const struct group_instr *instr_of(const struct run *u, int64_t i) {
    return &u->p->g->code.at[i];
}

static int64_t elem_of(const struct run *u, int64_t reg) {
    return (int64_t)group_elem_size((enum dtype)instr_of(u, reg)->dtype);
}

/* ---- strided walks ----------------------------------------------------------------------------
 */

/* Walks axes [lo, hi) of an access in runs along the last of them. */
struct walk {
    const struct group_layout *y;
    const struct group_reg *r;
    int lo, hi;
    int64_t index[RANK_MAX], offset;
};

static void walk_begin(struct walk *w, const struct group_layout *y, const struct group_reg *r,
                       int lo, int hi, int64_t start) {
    w->y = y, w->r = r, w->lo = lo, w->hi = hi, w->offset = 0;
    for (int i = hi - 1; i >= lo; i--) {
        w->index[i] = start % y->dims[i];
        start /= y->dims[i];
        w->offset += w->index[i] * r->strides[i];
    }
}

/* The next run of at most `want` elements: returns its length. */
static int64_t walk_next(struct walk *w, int64_t want, int64_t *offset, int64_t *stride) {
    *offset = w->offset;
    *stride = 0;
    if (w->lo == w->hi) return want;
    int a = w->hi - 1;
    int64_t n = i64_min(want, w->y->dims[a] - w->index[a]);
    *stride = w->r->strides[a];
    w->index[a] += n;
    w->offset += n * *stride;
    for (; a > w->lo && w->index[a] == w->y->dims[a]; a--) {
        w->offset += w->r->strides[a - 1] - w->index[a] * w->r->strides[a];
        w->index[a] = 0;
        w->index[a - 1]++;
    }
    return n;
}

static int64_t row_offset(const struct group_layout *y, const struct group_reg *r, int64_t row) {
    int64_t offset = 0;
    for (int i = y->rank - y->inner - 1; i > 0; i--) {
        offset += row % y->dims[i] * r->strides[i];
        row /= y->dims[i];
    }
    return y->rank > y->inner ? offset + row * r->strides[0] : 0;
}

/* ---- where values are --------------------------------------------------------------------------
 */

static char *direct_at(const struct run *u, int64_t access, const struct plan_view *v) {
    const struct group_reg *r = &u->y->regs[access];
    char *base = view_at(u->j->x, v);
    return base + (row_offset(u->y, r, u->r0) + u->c0) * (int64_t)dtype_size(v->dtype);
}

/* Where register `i` has its values of this block. */
static char *reg_at(const struct run *u, int64_t i) {
    const struct group_reg *r = &u->y->regs[i];
    switch (r->where) {
    case REG_LINE: return u->scratch + r->at + u->c0 * elem_of(u, i);
    case REG_DIRECT:
        if (r->store >= 0) {
            int32_t slot = instr_of(u, r->store)->slot;
            return direct_at(u, r->store, &u->j->l->out[slot]);
        }
        return direct_at(u, i, &u->j->l->in[instr_of(u, i)->slot]);
    default: return u->scratch + r->at;
    }
}

/* Repeat each of the block's row values, or one value, over the block. */
static void *splat(const struct run *u, int64_t reg, int spill) {
    const struct group_reg *r = &u->y->regs[reg];
    enum dtype t = (enum dtype)instr_of(u, reg)->dtype;
    char *to = u->scratch + u->y->spill + spill * u->y->slot_bytes, *from = reg_at(u, reg);
    if (r->where == REG_SCALAR) {
        ew_fill(t, to, from, u->nr * u->nc);
        return to;
    }
    int64_t elem = elem_of(u, reg);
    for (int64_t i = 0; i < u->nr; i++) ew_fill(t, to + i * u->nc * elem, from + i * elem, u->nc);
    return to;
}

/* The values of a register as a full block. */
static const void *block_of(const struct run *u, int64_t reg, int spill) {
    enum group_where w = u->y->regs[reg].where;
    if (w == REG_SCALAR || (w == REG_ROW && u->nc != 1)) return splat(u, reg, spill);
    return reg_at(u, reg);
}

/* ---- loads and stores --------------------------------------------------------------------------
 */

/* Neighbouring rows are neighbours in memory where columns are not: better walked by columns. */
static bool column_major(const struct run *u, const struct group_reg *r, enum dtype reg,
                         enum dtype mem) {
    const struct group_layout *y = u->y;
    int last = y->rank - y->inner - 1;
    return reg == mem && group_elem_size(reg) == 4 && y->inner == 1 && last >= 0 && u->nr > 1 &&
           r->strides[last] == 1 && r->strides[last + 1] != 0 &&
           u->r0 % y->dims[last] + u->nr <= y->dims[last];
}

static void load_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    const struct group_layout *y = u->y;
    const struct group_reg *r = &y->regs[s->instr];
    const struct plan_view *v = &u->j->l->in[k->slot];
    int64_t size = (int64_t)dtype_size(v->dtype), elem = elem_of(u, s->instr);
    const char *base = view_at(u->j->x, v);
    char *o = reg_at(u, s->instr);
    struct walk w;
    int64_t offset, stride, n;
    int border = y->rank - y->inner;
    if (s->per_row) {
        walk_begin(&w, y, r, 0, border, u->r0);
        for (int64_t i = 0; i < u->nr; i += n, o += n * elem) {
            n = walk_next(&w, u->nr - i, &offset, &stride);
            ew_load((enum dtype)k->dtype, o, v->dtype, base + offset * size, stride, n);
        }
        return;
    }
    if (column_major(u, r, (enum dtype)k->dtype, v->dtype)) {
        int64_t s1 = r->strides[border], at = row_offset(y, r, u->r0) + u->c0 * s1;
        ew_transpose(o, u->nc, 1, base + at * size, 1, s1, u->nr, u->nc);
        return;
    }
    for (int64_t i = 0; i < u->nr; i++) {
        const char *row = base + row_offset(y, r, u->r0 + i) * size;
        walk_begin(&w, y, r, border, y->rank, u->c0);
        for (int64_t c = 0; c < u->nc; c += n, o += n * elem) {
            n = walk_next(&w, u->nc - c, &offset, &stride);
            ew_load((enum dtype)k->dtype, o, v->dtype, row + offset * size, stride, n);
        }
    }
}

static void store_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    const struct group_layout *y = u->y;
    const struct group_reg *r = &y->regs[s->instr];
    const struct plan_view *v = &u->j->l->out[k->slot];
    enum dtype t = (enum dtype)instr_of(u, k->a)->dtype;
    int64_t size = (int64_t)dtype_size(v->dtype), elem = elem_of(u, k->a);
    char *base = view_at(u->j->x, v);
    const char *from;
    struct walk w;
    int64_t offset, stride, n;
    int border = y->rank - y->inner;
    if (s->per_row) {
        bool single = y->regs[k->a].where == REG_SCALAR;
        if (y->mode == GROUP_MAP && u->c0 > 0) return; /* one value a row: the first block's */
        from = reg_at(u, k->a);
        walk_begin(&w, y, r, 0, border, u->r0);
        for (int64_t i = 0; i < u->nr; i += n) {
            n = walk_next(&w, single ? 1 : u->nr - i, &offset, &stride);
            ew_store(v->dtype, base + offset * size, stride, t, from, n);
            if (!single) from += n * elem;
        }
        return;
    }
    from = block_of(u, k->a, 0);
    if (column_major(u, r, t, v->dtype)) {
        int64_t s1 = r->strides[border], at = row_offset(y, r, u->r0) + u->c0 * s1;
        ew_transpose(base + at * size, 1, s1, from, u->nc, 1, u->nr, u->nc);
        return;
    }
    for (int64_t i = 0; i < u->nr; i++) {
        char *row = base + row_offset(y, r, u->r0 + i) * size;
        walk_begin(&w, y, r, border, y->rank, u->c0);
        for (int64_t c = 0; c < u->nc; c += n, from += n * elem) {
            n = walk_next(&w, u->nc - c, &offset, &stride);
            ew_store(v->dtype, row + offset * size, stride, t, from, n);
        }
    }
}

static void iota_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    const struct group_layout *y = u->y;
    const struct group_reg *r = &y->regs[s->instr];
    int64_t elem = elem_of(u, s->instr), offset, stride, n;
    char *o = reg_at(u, s->instr);
    struct walk w;
    int border = y->rank - y->inner;
    if (s->per_row) {
        walk_begin(&w, y, r, 0, border, u->r0);
        for (int64_t i = 0; i < u->nr; i += n, o += n * elem) {
            n = walk_next(&w, u->nr - i, &offset, &stride);
            ew_iota((enum dtype)k->dtype, o, k->imm, k->imm2, offset, stride, n);
        }
        return;
    }
    for (int64_t i = 0; i < u->nr; i++) {
        int64_t first = row_offset(y, r, u->r0 + i);
        walk_begin(&w, y, r, border, y->rank, u->c0);
        for (int64_t c = 0; c < u->nc; c += n, o += n * elem) {
            n = walk_next(&w, u->nc - c, &offset, &stride);
            ew_iota((enum dtype)k->dtype, o, k->imm, k->imm2, first + offset, stride, n);
        }
    }
}

static void random_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    const struct plan_view *v = &u->j->l->in[k->slot];
    uint64_t key = (uint64_t)index_at(v->dtype, view_at(u->j->x, v), 0);
    uint64_t stream = (uint64_t)k->imm_int;
    enum dtype t = (enum dtype)k->dtype;
    char *o = reg_at(u, s->instr);
    if (s->per_row) {
        ew_random(t, o, key, stream, (uint64_t)u->r0, u->nr);
        return;
    }
    for (int64_t i = 0; i < u->nr; i++) {
        uint64_t first = (uint64_t)((u->r0 + i) * u->y->cols + u->c0);
        ew_random(t, o + i * u->nc * elem_of(u, s->instr), key, stream, first, u->nc);
    }
}

/* ---- arithmetic --------------------------------------------------------------------------------
 */

static void ew_rows(const struct run *u, const struct program_step *s, char *o, char **args) {
    const struct group_instr *k = instr_of(u, s->instr);
    int32_t ops[3] = {k->a, k->b, k->c};
    int64_t step[3] = {0, 0, 0}, out = u->nc * elem_of(u, s->instr);
    for (int j = 0; j < s->nargs; j++) {
        bool row = s->row_args >> j & 1, repeated = s->as_scalar.splat >> j & 1;
        bool single = u->y->regs[ops[j]].where == REG_SCALAR && !repeated;
        step[j] = single ? 0 : elem_of(u, ops[j]) * (row && !repeated ? 1 : u->nc);
    }
    for (int64_t r = 0; r < u->nr; r++)
        s->as_scalar.fn(o + r * out, args[0] + r * step[0], args[1] + r * step[1],
                        args[2] + r * step[2], u->nc);
}

static void ew_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    int32_t ops[3] = {k->a, k->b, k->c};
    bool by_row = s->row_args && u->nc != 1 && (u->nr == 1 || u->nc >= ROW_LOOP_MIN);
    const struct ew_call *call = by_row ? &s->as_scalar : &s->as_vector;
    char *args[3], *o = reg_at(u, s->instr);
    for (int j = 0; j < 3; j++) {
        int32_t reg = j < s->nargs ? ops[j] : ops[0];
        bool expand = call->splat >> j & 1;
        if (!by_row && (s->row_args >> j & 1) && u->nc != 1) expand = true;
        args[j] = expand ? splat(u, reg, j) : reg_at(u, reg);
    }
    if (by_row)
        ew_rows(u, s, o, args);
    else
        call->fn(o, args[0], args[1], args[2], u->nr * u->nc);
}

/* On the block's row values: a block of one column in disguise. */
static void ew_per_row(struct run u, const struct program_step *s) {
    u.nc = 1;
    ew_block(&u, s);
}

static void cast_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    struct run v = *u;
    if (s->per_row) v.nc = 1;
    const void *from = block_of(&v, k->a, 0);
    char *o = reg_at(u, s->instr);
    int64_t n = v.nr * v.nc;
    ew_cast((enum dtype)k->dtype, o, (enum dtype)instr_of(u, k->a)->dtype, from, n);
    if (k->imm_int) ew_narrow((enum dtype)k->imm_int, (enum dtype)k->dtype, o, n);
}

static union total *total_at(const struct run *u, int64_t instr) {
    return (union total *)(void *)(u->scratch + u->y->totals) + u->y->regs[instr].partial;
}

/* Whole rows give their results at once; pieces of a row add to the running total. */
static void reduce_block(const struct run *u, const struct program_step *s, bool pieces) {
    const struct group_instr *k = instr_of(u, s->instr);
    enum dtype t = (enum dtype)instr_of(u, k->a)->dtype;
    const void *a = block_of(u, k->a, 0);
    if (pieces) {
        union total *x = total_at(u, s->instr);
        *x = total_add(k->code, t, *x, a, u->nc);
    } else {
        ew_reduce_rows(k->code, t, reg_at(u, s->instr), a, u->nr, u->nc);
    }
}

static void colsum_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    union total *t = u->colsums + u->y->regs[s->instr].partial * u->colsum_cols;
    t += u->c0 - u->colsum_c0;
    if (k->code == INSTR_COLMAX)
        ew_colmax(t, block_of(u, k->a, 0), u->nr, u->nc);
    else
        ew_colsum((enum dtype)instr_of(u, k->a)->dtype, t, block_of(u, k->a, 0), u->nr, u->nc);
}

/* What totals of columns [from, to) of a task begin with. */
static void clear_columns(const struct run *u, int64_t from, int64_t to) {
    for (uint32_t i = 0; i < u->p->g->code.n; i++) {
        const struct group_instr *k = instr_of(u, i);
        if (!instr_is_column(k->code)) continue;
        uint16_t code = k->code == INSTR_COLMAX ? INSTR_MAX : INSTR_SUM;
        union total *t = u->colsums + u->y->regs[i].partial * u->colsum_cols;
        for (int64_t c = from; c < to; c++)
            t[c] = total_init(code, (enum dtype)instr_of(u, k->a)->dtype);
    }
}

/* Blocks begin and end where parts do: see choose_blocks of plan_group.c. */
static void part_block(const struct run *u, const struct program_step *s) {
    const struct group_instr *k = instr_of(u, s->instr);
    enum dtype t = (enum dtype)k->dtype;
    uint16_t code = k->code == INSTR_PART_MAX ? INSTR_MAX : INSTR_MIN;
    int64_t n = k->imm_int, elem = elem_of(u, s->instr), parts = u->nr * u->nc / n;
    const char *a = block_of(u, k->a, 0);
    char *o = reg_at(u, s->instr);
    for (int64_t i = 0; i < parts; i++, a += n * elem, o += n * elem) {
        union total most;
        ew_reduce_rows(code, t, &most, a, 1, n);
        ew_fill(t, o, &most, n);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------
 */

static void run_step(const struct run *u, const struct program_step *s, bool pieces) {
    switch (s->kind) {
    case STEP_LOAD: load_block(u, s); break;
    case STEP_IOTA: iota_block(u, s); break;
    case STEP_RANDOM: random_block(u, s); break;
    case STEP_EW:
        if (s->per_row)
            ew_per_row(*u, s);
        else
            ew_block(u, s);
        break;
    case STEP_CAST: cast_block(u, s); break;
    case STEP_STORE: store_block(u, s); break;
    case STEP_REDUCE: reduce_block(u, s, pieces); break;
    case STEP_COLSUM: colsum_block(u, s); break;
    case STEP_PART: part_block(u, s); break;
    }
}

static void run_rows(const struct run *u, uint32_t from, uint32_t to, bool stores) {
    for (uint32_t i = from; i < to; i++) {
        const struct program_step *s = &u->p->steps[i];
        if (s->per_row && (stores || s->kind != STEP_STORE)) run_step(u, s, false);
    }
}

/* The full-width steps of one stage on columns [c0, c1). */
static void run_columns(struct run *u, uint32_t from, uint32_t to, int64_t c0, int64_t c1) {
    bool pieces = u->y->mode == GROUP_TAIL || (c1 - c0 > u->y->block_cols);
    u->c0 = c0;
    do {
        u->nc = i64_min(u->y->block_cols, c1 - u->c0);
        for (uint32_t i = from; i < to; i++) {
            const struct program_step *s = &u->p->steps[i];
            if (s->per_row || (s->hoisted && u->hoisted_done)) continue;
            run_step(u, s, pieces);
        }
        u->c0 += u->nc;
    } while (u->c0 < c1);
    u->hoisted_done = true;
}

static void totals_begin(const struct run *u, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++) {
        const struct group_instr *k = instr_of(u, u->p->steps[i].instr);
        if (u->p->steps[i].kind == STEP_REDUCE)
            *total_at(u, u->p->steps[i].instr) = total_init(k->code, (enum dtype)k->dtype);
    }
}

static void totals_end(const struct run *u, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++) {
        uint32_t k = u->p->steps[i].instr;
        if (u->p->steps[i].kind == STEP_REDUCE)
            total_put((enum dtype)instr_of(u, k)->dtype, reg_at(u, k), *total_at(u, k));
    }
}

static uint32_t stage_end(const struct run *u, uint32_t from) {
    uint32_t to = from;
    while (to < u->p->nsteps && u->p->steps[to].stage == u->p->steps[from].stage) to++;
    return to;
}

/* All stages on the rows of the block and columns [c0, c1). */
static void run_block(struct run *u, int64_t c0, int64_t c1) {
    bool pieces = c1 - c0 > u->y->block_cols;
    for (uint32_t from = 0, to; from < u->p->nsteps; from = to) {
        to = stage_end(u, from);
        u->c0 = c0;
        run_rows(u, from, to, true);
        if (pieces) totals_begin(u, from, to);
        run_columns(u, from, to, c0, c1);
        if (pieces) totals_end(u, from, to);
    }
}

/* ---- tasks -------------------------------------------------------------------------------------
 */

static void put_const(const struct group_instr *k, void *o) {
    switch (k->dtype) {
    case DT_f32: *(float *)o = (float)k->imm; break;
    case DT_f64: *(double *)o = k->imm; break;
    case DT_i64: *(int64_t *)o = k->imm_int; break;
    default: *(uint8_t *)o = k->imm != 0; break;
    }
}

static struct run task_begin(struct cpu_job *j, int thread) {
    const struct group_program *p = j->program;
    struct run u = {.j = j, .p = p, .y = p->y};
    u.scratch = j->work + p->y->shared_bytes + thread * p->y->thread_bytes;
    for (uint32_t i = 0; i < p->g->code.n; i++) {
        const struct group_reg *r = &p->y->regs[i];
        if (r->where != REG_SCALAR) continue;
        const struct group_instr *k = instr_of(&u, i);
        enum dtype t = (enum dtype)k->dtype;
        void *o = u.scratch + r->at;
        if (k->code == INSTR_CONST) {
            put_const(k, o);
        } else if (k->code == INSTR_IOTA) {
            ew_iota(t, o, k->imm, k->imm2, 0, 0, 1);
        } else {
            const struct plan_view *v = &j->l->in[k->slot];
            ew_load(t, o, v->dtype, view_at(j->x, v), 0, 1);
        }
    }
    return u;
}

/* MAP and ROW without column sums: a range of blocks. */
static void task_blocks(void *arg, int64_t index, int thread) {
    struct run u = task_begin(arg, thread);
    const struct group_layout *y = u.y;
    bool map = y->mode == GROUP_MAP;
    int64_t across = map ? i64_max(ceil_div(y->cols, y->block_cols), 1) : 1;
    int64_t end = i64_min((index + 1) * y->piece, ceil_div(y->rows, y->block_rows) * across);
    for (int64_t b = index * y->piece; b < end; b++) {
        u.r0 = b / across * y->block_rows;
        u.nr = i64_min(y->block_rows, y->rows - u.r0);
        int64_t c0 = map ? b % across * y->block_cols : 0;
        run_block(&u, c0, map ? i64_min(c0 + y->block_cols, y->cols) : y->cols);
    }
}

static void rows_of_piece(struct run *u, int64_t from, int64_t to, int64_t c0, int64_t c1) {
    for (u->r0 = from; u->r0 < to; u->r0 += u->nr) {
        u->nr = i64_min(u->y->block_rows, to - u->r0);
        run_block(u, c0, c1);
    }
}

/* With column sums: a range of rows, or of columns, with totals of its own. */
static void task_colsum(void *arg, int64_t index, int thread) {
    struct run u = task_begin(arg, thread);
    const struct group_layout *y = u.y;
    union total *shared = (union total *)(void *)u.j->work;
    int64_t from = index * y->piece;
    u.colsum_cols = y->cols;
    if (!y->columns_first) {
        u.colsums = shared + index * y->ncolsum * y->cols;
        clear_columns(&u, 0, y->cols);
        rows_of_piece(&u, from, i64_min(from + y->piece, y->rows), 0, y->cols);
        return;
    }
    u.colsums = shared;
    int64_t to = i64_min(from + y->piece, y->cols);
    clear_columns(&u, from, to);
    for (; from < to; from += y->block_cols) {
        u.hoisted_done = false;
        rows_of_piece(&u, 0, y->rows, from, i64_min(from + y->block_cols, to));
    }
}

enum { COLSUM_PART = 1024 };

/* Add the pieces in order and store: columns [index * COLSUM_PART, ..). */
static void task_colsum_end(void *arg, int64_t index, int thread) {
    struct run u = task_begin(arg, thread);
    const struct group_layout *y = u.y;
    const union total *shared = (const union total *)(const void *)u.j->work;
    int64_t pieces = y->columns_first ? 1 : y->pieces;
    int64_t c0 = index * COLSUM_PART, c1 = i64_min(c0 + COLSUM_PART, y->cols);
    for (uint32_t i = 0; i < u.p->g->code.n; i++) {
        const struct group_instr *k = instr_of(&u, i);
        if (!instr_is_column(k->code)) continue;
        uint16_t code = k->code == INSTR_COLMAX ? INSTR_MAX : INSTR_SUM;
        const struct plan_view *v = &u.j->l->out[k->slot];
        enum dtype t = (enum dtype)instr_of(&u, k->a)->dtype;
        char *base = view_at(u.j->x, v);
        struct walk w;
        int64_t offset, stride;
        walk_begin(&w, y, &y->regs[i], y->rank - y->inner, y->rank, c0);
        for (int64_t c = c0; c < c1; c++) {
            union total sum = total_init(code, t);
            for (int64_t p = 0; p < pieces; p++)
                sum = total_join(code, t, sum,
                                 shared[(p * y->ncolsum + y->regs[i].partial) * y->cols + c]);
            union total reg;
            total_put(t, &reg, sum);
            walk_next(&w, 1, &offset, &stride);
            ew_store(v->dtype, base + offset * (int64_t)dtype_size(v->dtype), 1, t, &reg, 1);
        }
    }
}

/* TAIL: one piece of one row; its partial results go to the shared part. */
static void task_tail(void *arg, int64_t index, int thread) {
    struct run u = task_begin(arg, thread);
    const struct group_layout *y = u.y;
    union total *shared = (union total *)(void *)u.j->work;
    int64_t c0 = index % y->pieces * y->piece;
    u.r0 = index / y->pieces;
    u.nr = 1;
    u.c0 = c0;
    uint32_t end = u.p->nsteps ? stage_end(&u, 0) : 0;
    run_rows(&u, 0, end, false);
    totals_begin(&u, 0, end);
    run_columns(&u, 0, end, c0, i64_min(c0 + y->piece, y->cols));
    memcpy(shared + index * y->nreduce, u.scratch + y->totals, (size_t)y->nreduce * sizeof *shared);
}

/* Combine the pieces of a row in order, then do what follows from the results. */
static void task_tail_end(void *arg, int64_t index, int thread) {
    struct run u = task_begin(arg, thread);
    const struct group_layout *y = u.y;
    const union total *shared = (const union total *)(const void *)u.j->work;
    u.r0 = index;
    u.nr = u.nc = 1;
    totals_begin(&u, 0, u.p->nsteps);
    for (uint32_t i = 0; i < u.p->nsteps; i++) {
        const struct program_step *s = &u.p->steps[i];
        if (s->kind != STEP_REDUCE) continue;
        const struct group_instr *k = instr_of(&u, s->instr);
        union total *t = total_at(&u, s->instr);
        for (int64_t p = 0; p < y->pieces; p++)
            *t = total_join(
                k->code, (enum dtype)k->dtype, *t,
                shared[(index * y->pieces + p) * y->nreduce + y->regs[s->instr].partial]);
    }
    totals_end(&u, 0, u.p->nsteps);
    run_rows(&u, 0, u.p->nsteps, true);
    for (uint32_t i = stage_end(&u, 0); i < u.p->nsteps; i++) /* results repeated along the row */
        if (u.p->steps[i].kind == STEP_STORE && !u.p->steps[i].per_row)
            run_columns(&u, i, i + 1, 0, y->cols);
}

enum status cpu_group(struct cpu_job *j) {
    const struct group_layout *y = j->program->y;
    struct pool *pool = j->x->pool;
    if (y->mode == GROUP_TAIL) {
        pool_run(pool, y->rows * y->pieces, task_tail, j);
        pool_run(pool, y->rows, task_tail_end, j);
    } else if (y->ncolsum) {
        if (y->rows && y->cols) {
            pool_run(pool, y->pieces, task_colsum, j);
        } else {
            memset(j->work, 0, (size_t)y->shared_bytes);
        }
        pool_run(pool, ceil_div(y->cols, COLSUM_PART), task_colsum_end, j);
    } else {
        pool_run(pool, y->pieces, task_blocks, j);
    }
    return ST_OK;
}
