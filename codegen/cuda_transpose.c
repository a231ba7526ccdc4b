// SPDX-License-Identifier: Apache-2.0
/* cuda_transpose.c - groups that only move elements and whose operand and result do not have the
 * same axis inside: kernels/transpose.cu moves them in tiles. */
#include "codegen/cuda.h"

enum { UNALIGNED_TILE = 32, THREADS = 256 };

/* LOAD, then STORE of the same element type. */
static bool only_moves(const struct plan_group *g, const struct plan_launch *l) {
    return g->code.n == 2 && g->code.at[0].code == INSTR_LOAD &&
           g->code.at[1].code == INSTR_STORE && l->nin == 1 && l->nout == 1 &&
           l->in[0].dtype == l->out[0].dtype;
}

struct transposition {
    int64_t elem, rows, cols, x_pitch, y_pitch;
    int64_t batch[2], x_batch[2], y_batch[2]; /* outer, inner */
    bool aligned;
};

/* Axis with stride 1 in these strides; -1: none. */
static int unit_axis(const struct group_layout *y, const int64_t *strides) {
    for (int d = y->rank - 1; d >= 0; d--)
        if (strides[d] == 1 && y->dims[d] > 1) return d;
    return -1;
}

static bool is_aligned(const struct plan *p, const struct plan_view *v,
                       const struct transposition *t, int64_t pitch, const int64_t *batch) {
    enum { LINE = 16 };
    int64_t at = p->buffers.at[v->buffer.i].offset + v->offset * t->elem;
    bool ok = at % LINE == 0 && pitch * t->elem % LINE == 0;
    for (int b = 0; b < 2; b++) ok &= batch[b] * t->elem % LINE == 0;
    return ok;
}

/* y->dims without those of size 1 are up to two of batch, r and c in some order. */
static bool find(const struct plan *p, const struct plan_launch *l, const struct group_layout *y,
                 struct transposition *t) {
    const int64_t *from = y->regs[0].strides, *to = y->regs[1].strides;
    int c = unit_axis(y, to), r = unit_axis(y, from), n = 2;
    if (c < 0 || r < 0 || c == r) return false;
    *t = (struct transposition){.elem = (int64_t)dtype_size(l->in[0].dtype),
                                .rows = y->dims[r],
                                .cols = y->dims[c],
                                .batch = {1, 1},
                                .x_pitch = from[c],
                                .y_pitch = to[r]};
    for (int d = y->rank - 1; d >= 0; d--) {
        if (d == c || d == r || y->dims[d] == 1) continue;
        if (n == 0 || from[d] < 0 || to[d] < 0) return false;
        n--;
        t->batch[n] = y->dims[d], t->x_batch[n] = from[d], t->y_batch[n] = to[d];
    }
    int64_t line = 16 / t->elem;
    t->aligned = is_aligned(p, &l->in[0], t, t->x_pitch, t->x_batch) &&
                 is_aligned(p, &l->out[0], t, t->y_pitch, t->y_batch) && t->rows % line == 0 &&
                 t->cols % line == 0;
    return t->elem <= 4 && t->x_pitch > 0 && t->y_pitch > 0;
}

bool cuda_transposes(const struct cuda_gen *c, const struct plan_group *g,
                     const struct group_layout *y) {
    enum { GRID_MAX = 65535, LEAST = 32 };
    struct transposition t;
    if (!only_moves(g, c->l) || !find(c->p, c->l, y, &t)) return false;
    int64_t tile = t.aligned ? 128 / t.elem : UNALIGNED_TILE, batch;
    if (__builtin_mul_overflow(t.batch[0], t.batch[1], &batch)) return false;
    return batch <= GRID_MAX && ceil_div(t.cols, tile) <= GRID_MAX &&
           (t.aligned || (t.rows >= LEAST && t.cols >= LEAST));
}

enum status cuda_transpose(struct cuda_gen *c, const struct group_layout *y) {
    struct transposition t;
    CHECK(c->p->ctx, find(c->p, c->l, y, &t));
    cuda_define(c, "ELEM", t.elem);
    cuda_define(c, "ROWS", t.rows);
    cuda_define(c, "COLS", t.cols);
    cuda_define(c, "X_PITCH", t.x_pitch);
    cuda_define(c, "Y_PITCH", t.y_pitch);
    cuda_define(c, "X_BATCH", t.x_batch[1]);
    cuda_define(c, "Y_BATCH", t.y_batch[1]);
    if (t.batch[0] > 1) {
        cuda_define(c, "BATCH", t.batch[1]);
        cuda_define(c, "X_OUTER", t.x_batch[0]);
        cuda_define(c, "Y_OUTER", t.y_batch[0]);
    }
    cuda_define(c, "ALIGNED", t.aligned);
    int64_t tile = t.aligned ? 128 / t.elem : UNALIGNED_TILE;
    return cuda_call(c, "transpose.cu", "transpose", ceil_div(t.rows, tile), ceil_div(t.cols, tile),
                     t.batch[0] * t.batch[1], THREADS, 0);
}
