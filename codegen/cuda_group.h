// SPDX-License-Identifier: Apache-2.0
/* cuda_group.h - how a fused group is laid out on a GPU: the record between the decisions
 * (cuda_group.c) and the text (cuda_group_text.c). Private to these two. */
#ifndef LATHE_CODEGEN_CUDA_GROUP_H
#define LATHE_CODEGEN_CUDA_GROUP_H

#include "codegen/cuda.h"

/* MODE of codegen/kernels/group.cu. */
enum group_form { FORM_MAP, FORM_ROW, FORM_LONG, FORM_COLUMNS, FORM_TAIL, FORM_TILE };

struct group_gen {
    struct cuda_gen *c;
    const struct plan_group *g;
    const struct plan_launch *l;
    const struct group_layout *y; /* merged axes and strides */
    uint32_t n;
    enum group_form form;
    int border; /* axes before it count rows */
    int64_t rows, cols;
    int vec, units, lanes, threads;
    bool ahead;   /* ROW, COLUMNS: registers hold the next row too */
    int ring;     /* .. or shared memory holds this many rows of the block's operands, 0: none */
    int64_t slot; /* bytes of one */
    bool interleaved; /* rows of a worker lie apart, those of a block together */
    bool late;  /* .. nor what a row needs, all at once: operands are loaded where they are used */
    int blocks; /* of a processor that registers must leave room for */
    int steps;  /* LONG with a ring: of a row */
    int64_t kept_bytes;    /* LONG: of a row's operands in shared memory, 0: they are read again */
    int turned_elem;       /* TILE: bytes of an element of the results that are transposed */
    bool exact;            /* quotients become codes that have to be the CPU's */
    bool fast;             /* all that is stored for each element has 16 bits or fewer */
    int64_t rows_each;     /* rows of a worker, or of a block */
    int64_t workers;       /* partial results of column sums */
    int64_t piece, pieces; /* TAIL */
    int ncolsum, nreduce;
    bool *uniform;   /* the same for all elements of a thread in a row: a plain variable */
    bool *by_run;    /* .. or of each of its runs of `vec`: an array over these */
    bool *row_store; /* STORE of one value per row */
    uint32_t *stage; /* after that many exchanges of the row's threads */
    int32_t *factor; /* SUM of a product: the register of a row that is taken out of it, or -1 */
    int32_t (*product)[2]; /* .. and those that stay */
    uint32_t nstages;
    int64_t *partial; /* COLSUM: bytes into the workspace; reductions of TAIL: number */
};

static inline bool is_reduction(unsigned code) {
    return code >= INSTR_SUM && code <= INSTR_PROD;
}
static inline bool is_sink(unsigned code) {
    return code == INSTR_STORE || instr_is_column(code);
}
static inline const struct plan_view *access_view(const struct group_gen *g,
                                                  const struct group_instr *i) {
    return i->code == INSTR_LOAD || i->code == INSTR_RANDOM ? &g->l->in[i->slot]
                                                            : &g->l->out[i->slot];
}
/* How many neighbouring columns an access has in one place, by its last axes alone. */
static inline int64_t group_repeats(const struct group_gen *g, uint32_t k) {
    int64_t n = 1;
    for (int d = g->y->rank - 1; d >= g->border && g->y->regs[k].strides[d] == 0; d--)
        n *= g->y->dims[d];
    return n;
}
/* Whether VEC neighbouring columns of access k are neighbours in memory and aligned. */
bool group_packed(const struct group_gen *g, uint32_t k, int vec);
/* LOADs that a kernel of one walk starts before it computes: fetched by `fetch`, see group.cu. */
static inline bool group_early(const struct group_gen *g, uint32_t k) {
    if (g->g->code.at[k].code != INSTR_LOAD || g->late) return false;
    bool moves = g->form == FORM_MAP;
    for (int d = 0; d < g->border; d++) moves |= g->y->regs[k].strides[d] != 0;
    bool whole = group_packed(g, k, g->vec) || g->by_run[k];
    return moves && (g->uniform[k] ? g->form != FORM_MAP : whole);
}
/* Bytes of a row that LOAD k keeps in shared memory (LONG). */
static inline int64_t group_kept(const struct group_gen *g, uint32_t k) {
    if (g->g->code.at[k].code != INSTR_LOAD || g->uniform[k] || !group_packed(g, k, g->vec))
        return 0;
    return round16(g->cols * (int64_t)dtype_size(access_view(g, &g->g->code.at[k])->dtype));
}
/* Bytes of a step that LOAD k has in the ring of a LONG row, for each thread; 0: it is read again.
 */
static inline int64_t group_walked(const struct group_gen *g, uint32_t k) {
    bool moves = false;
    for (int d = 0; d < g->border; d++) moves |= g->y->regs[k].strides[d] != 0;
    if (!moves || !group_kept(g, k)) return 0;
    return g->vec * (int64_t)dtype_size(access_view(g, &g->g->code.at[k])->dtype);
}
/* Bytes that LOAD k has in a slot of the ring, for each thread; 0: none. */
static inline int64_t group_ringed(const struct group_gen *g, uint32_t k) {
    if (!group_early(g, k)) return 0;
    int64_t size = (int64_t)dtype_size(access_view(g, &g->g->code.at[k])->dtype);
    if (g->by_run[k]) return g->units * i64_max(size, 4); /* with its neighbours */
    return g->uniform[k] ? size : g->units * g->vec * size;
}
/* Whether STORE k goes through a tile (TILE). */
static inline bool group_turned(const struct group_gen *g, uint32_t k) {
    return g->form == FORM_TILE && g->g->code.at[k].code == INSTR_STORE &&
           g->y->regs[k].strides[1] != 1;
}
/* body.cuh of the form that was decided. */
void group_text(struct group_gen *g);

#endif
