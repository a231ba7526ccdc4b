// SPDX-License-Identifier: Apache-2.0
/* tile.c - copies that only transpose what a group has just made become results of that group: one
 * launch stores both, and what it stores transposed goes through tiles (tile.h). Not copies that
 * would keep more in memory, nor those whose group cannot run by tiles: these stay launches. */
#include "codegen/tile.h"
#include "codegen/cuda.h"
#include "codegen/internal.h"

/* ---- groups that can run by tiles ------------------------------------------------------------ */
static bool is_turned(const struct group_layout *y, uint32_t k) {
    return y->regs[k].strides[1] != 1;
}

/* Access k moves pieces of `n` elements along the last axis, `bytes` aligned. */
static bool in_pieces(const struct plan_view *v, int64_t pitch, int64_t n) {
    int64_t size = (int64_t)dtype_size(v->dtype), least = i64_min(n, 16 / size);
    return size <= 4 && v->offset % least == 0 && pitch > 0 && pitch % least == 0;
}

/* A register that is stored in rows as well, as fold_transposes leaves it. */
static bool stored_twice(const struct plan_group *g, const struct group_layout *y, int32_t reg) {
    for (uint32_t k = 0; k < g->code.n; k++)
        if (g->code.at[k].code == INSTR_STORE && g->code.at[k].a == reg && !is_turned(y, k))
            return true;
    return false;
}

int tile_elem(const struct plan_group *g, const struct plan_launch *l,
              const struct group_layout *y) {
    enum { GRID_MAX = 65535 };
    int64_t elem = 0;
    if (y->mode != GROUP_MAP || y->rank != 2) return 0;
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        if (instr_is_column(i->code) || i->code == INSTR_RANDOM || i->code == INSTR_IOTA) return 0;
        if (i->code != INSTR_STORE || !is_turned(y, k)) continue;
        if (!stored_twice(g, y, i->a)) return 0;
        int64_t size = (int64_t)dtype_size(l->out[i->slot].dtype);
        if (elem && elem != size) return 0;
        elem = size;
    }
    if (elem != 1 && elem != 2) return 0;
    int64_t line = 16 / elem;
    if (y->dims[0] % line != 0 || y->dims[1] % line != 0) return 0;
    if (ceil_div(y->dims[0], 128 / elem) > GRID_MAX) return 0;
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        if (i->code != INSTR_STORE && i->code != INSTR_LOAD) continue;
        const int64_t *s = y->regs[k].strides;
        if (i->code == INSTR_LOAD) { /* rows, or repeated along one axis or both */
            if (s[1] == 0) continue;
            if (s[1] != 1 || (s[0] != 0 && !in_pieces(&l->in[i->slot], s[0], line))) return 0;
            continue;
        }
        const struct plan_view *v = &l->out[i->slot];
        if (is_turned(y, k) ? s[0] != 1 || !in_pieces(v, s[1], line) || !dtype_is_float(v->dtype)
                            : !in_pieces(v, s[0], line))
            return 0;
    }
    return (int)elem;
}

/* ---- copies that become results -------------------------------------------------------------- */
enum { NEAR = 8 }; /* launches between a group and the copy for which nothing stays longer */

struct copy {
    uint32_t launch, maker, result;    /* result: of the maker, what is copied */
    int64_t rows, cols, pitch, offset; /* to [cols, rows], `pitch` apart */
};

struct users {
    uint32_t *writer, *writes; /* the last launch that writes a buffer, and how many do */
    uint32_t *last;            /* the last launch that reads it */
};

static struct users find_users(struct cg *c) {
    struct plan *p = c->p;
    struct users u;
    u.writer = ARENA_ARRAY(c->scratch, uint32_t, p->buffers.n);
    u.writes = ARENA_ARRAY(c->scratch, uint32_t, p->buffers.n);
    u.last = ARENA_ARRAY(c->scratch, uint32_t, p->buffers.n);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin; j++) u.last[l->in[j].buffer.i] = k;
        for (uint32_t j = 0; j < l->nout; j++) {
            u.writes[l->out[j].buffer.i]++;
            u.writer[l->out[j].buffer.i] = k;
        }
    }
    return u;
}

/* The launch copies a whole buffer [rows, cols], row-major, to [cols, rows]. */
static bool turns(const struct plan *p, const struct plan_launch *l, struct copy *x) {
    const struct plan_view *from = &l->in[0], *to = &l->out[0];
    if (l->kind != LAUNCH_group || l->nin != 1 || l->nout != 1) return false;
    const struct plan_group *g = &p->groups.at[l->group.i];
    if (g->code.n != 2 || g->code.at[0].code != INSTR_LOAD || g->code.at[1].code != INSTR_STORE)
        return false;
    if (from->dtype != to->dtype || from->rank != to->rank || from->offset != 0) return false;
    int r = -1, c = -1;
    for (int d = 0; d < from->rank; d++) {
        if (from->dims[d] != to->dims[d]) return false;
        if (from->dims[d] == 1) continue;
        if (from->strides[d] == 1 && r < 0)
            r = d;
        else if (to->strides[d] == 1 && c < 0)
            c = d;
        else
            return false;
    }
    if (r < 0 || c < 0 || from->strides[c] != from->dims[r]) return false;
    x->rows = from->dims[c], x->cols = from->dims[r];
    x->pitch = to->strides[r], x->offset = to->offset;
    return x->pitch >= x->rows && x->rows * x->cols * (int64_t)dtype_size(from->dtype) ==
                                      p->buffers.at[from->buffer.i].bytes;
}

static bool is_result(const struct plan *p, uint32_t b) {
    return p->buffers.at[b].kind == BUF_TEMP || p->buffers.at[b].kind == BUF_OUTPUT;
}

static bool find_copy(const struct plan *p, const struct users *u, uint32_t k, struct copy *x) {
    const struct plan_launch *l = &p->launches.at[k];
    if (!turns(p, l, x)) return false;
    uint32_t from = l->in[0].buffer.i, to = l->out[0].buffer.i;
    if (!is_result(p, from) || !is_result(p, to)) return false;
    if (u->writes[from] != 1 || u->writes[to] != 1 || u->writer[from] >= k) return false;
    x->launch = k, x->maker = u->writer[from];
    /* The copy takes the place of what it copies, or both are there (soon) anyway. */
    bool stays = p->buffers.at[from].kind == BUF_OUTPUT || p->buffers.at[to].kind == BUF_OUTPUT;
    if (!stays && u->last[from] > k && k - x->maker > NEAR) return false;
    const struct plan_launch *m = &p->launches.at[x->maker];
    if (m->kind != LAUNCH_group) return false;
    for (x->result = 0; m->out[x->result].buffer.i != from; x->result++) {
    }
    const struct plan_view *v = &m->out[x->result];
    return v->offset == 0 && v->dtype == l->in[0].dtype && view_contiguous(v) &&
           view_count(v) == x->rows * x->cols;
}

static void split_view(struct plan_view *v, int d, int64_t inner) {
    if (v->rank == 0) return;
    for (int k = v->rank++; k > d; k--)
        v->dims[k] = v->dims[k - 1], v->strides[k] = v->strides[k - 1];
    v->dims[d] /= inner, v->dims[d + 1] = inner;
    v->strides[d] *= inner;
}

/* The axes of a MAP such that those from the result on have `cols` elements; -1: they cannot. */
static int split_group(struct plan_group *g, struct plan_launch *l, int64_t cols) {
    int64_t n = 1;
    int d = g->rank;
    while (d > 0 && cols % (n * g->dims[d - 1]) == 0 && n < cols) n *= g->dims[--d];
    if (n == cols) return d;
    int64_t inner = cols / n;
    if (d == 0 || cols % n != 0 || g->dims[d - 1] % inner != 0 || g->rank == RANK_MAX) return -1;
    if (g->inner != 1) return -1;
    d--;
    for (int k = g->rank++; k > d; k--) g->dims[k] = g->dims[k - 1];
    g->dims[d] /= inner, g->dims[d + 1] = inner;
    for (uint32_t k = 0; k < l->nin; k++) split_view(&l->in[k], d, inner);
    for (uint32_t k = 0; k < l->nout; k++) split_view(&l->out[k], d, inner);
    return d + 1;
}

/* All results have the group's dims: no values of rows, no sums of columns. */
static bool plain_results(const struct plan_group *g, const struct plan_launch *l) {
    for (uint32_t k = 0; k < l->nout; k++) {
        if (l->out[k].rank != g->rank) return false;
        for (int d = 0; d < g->rank; d++)
            if (l->out[k].dims[d] != g->dims[d]) return false;
    }
    for (uint32_t k = 0; k < g->code.n; k++) {
        unsigned code = g->code.at[k].code;
        if (code == INSTR_IOTA || code == INSTR_RANDOM || instr_is_column(code)) return false;
    }
    return g->mode == GROUP_MAP;
}

static struct plan_view *copy_views(struct plan *p, const struct plan_view *v, uint32_t n) {
    struct plan_view *r = ARENA_ARRAY(&p->arena, struct plan_view, n + 1);
    for (uint32_t k = 0; k < n; k++) r[k] = v[k];
    return r;
}

/* The maker with the copy's result as its last one; false: as it was. */
static bool add_result(struct cg *c, const struct copy *x) {
    struct plan *p = c->p;
    struct plan_launch *m = &p->launches.at[x->maker], l = *m;
    const struct plan_group old = p->groups.at[m->group.i];
    struct plan_group g = old;
    if (!plain_results(&g, m)) return false;
    l.in = copy_views(p, m->in, m->nin);
    l.out = copy_views(p, m->out, m->nout);
    int border = split_group(&g, &l, x->cols);
    if (border < 0) return false;
    struct plan_view to = {.buffer = p->launches.at[x->launch].out[0].buffer,
                           .dtype = l.out[x->result].dtype,
                           .rank = g.rank,
                           .offset = x->offset};
    int64_t row = 1, col = x->pitch;
    for (int d = g.rank - 1; d >= 0; d--) {
        to.dims[d] = g.dims[d];
        int64_t *step = d >= border ? &col : &row;
        to.strides[d] = *step;
        *step *= g.dims[d];
    }
    g.code.at = NULL, g.code.n = g.code.cap = 0;
    struct group_instr store = {0};
    for (uint32_t k = 0; k < old.code.n; k++) {
        vec_push(&p->arena, &g.code, old.code.at[k]);
        if (old.code.at[k].code == INSTR_STORE && old.code.at[k].slot == (int32_t)x->result)
            store = old.code.at[k];
    }
    store.slot = (int32_t)l.nout;
    vec_push(&p->arena, &g.code, store);
    l.out[l.nout++] = to;
    p->groups.at[m->group.i] = g;
    if (!tile_elem(&g, &l, plan_group_layout(p, &l, c->scratch))) {
        p->groups.at[m->group.i] = old;
        return false;
    }
    l.cost.bytes_written += p->launches.at[x->launch].cost.bytes_written;
    *m = l;
    return true;
}

void fold_transposes(struct cg *c) {
    struct plan *p = c->p;
    struct users u = find_users(c);
    bool *gone = ARENA_ARRAY(c->scratch, bool, p->launches.n + 1);
    for (uint32_t k = 0; k < p->first_update; k++) {
        struct copy x;
        if (find_copy(p, &u, k, &x)) gone[k] = add_result(c, &x);
    }
    uint32_t n = 0, first = p->first_update;
    for (uint32_t k = 0; k < p->launches.n; k++) {
        if (k < p->first_update) first -= gone[k];
        if (!gone[k]) p->launches.at[n++] = p->launches.at[k];
    }
    p->launches.n = n;
    p->first_update = first;
}
