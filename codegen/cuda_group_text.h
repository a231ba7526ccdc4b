// SPDX-License-Identifier: Apache-2.0
/* cuda_group_text.h - a group's text in work, and the expressions it is made of
 * (cuda_group_expr.c). Private to the three files that write it. */
#ifndef LATHE_CODEGEN_CUDA_GROUP_TEXT_H
#define LATHE_CODEGEN_CUDA_GROUP_TEXT_H

#include "codegen/cuda_group.h"

struct text {
    struct group_gen *g;
    struct buf *out;
    bool *need; /* instructions to be written */
    bool *kept; /* LONG: LOADs that lie in shared memory by now; NULL: none ever do */
    bool wait;  /* .. and are still on their way */
    bool *done; /* of one walk: written by now */
    bool *held; /* COLUMNS: the same for all rows; hN of the state */
    bool holding;
    bool *totals; /* reductions whose aN has been declared */
    bool per_run; /* index k counts runs, not elements */
    bool early;   /* what group_early says is in x already */
};

static inline const struct group_instr *at(const struct text *t, uint32_t k) {
    return &t->g->g->code.at[k];
}

static inline const char *register_type(const struct text *t, uint32_t k) {
    return cuda_register_type((enum dtype)at(t, k)->dtype);
}

/* The functions rK(row) and cK(col) (`inner`) that say where access k lies. */
void expr_address_function(struct text *t, uint32_t k, bool inner);
/* "r3(row) + c3(col)"; the column may be any expression. */
void expr_address(struct text *t, uint32_t k, const char *column);
/* All columns of a run are in one place. */
bool expr_last_fixed(const struct group_gen *g, uint32_t k);
/* Register r at an index of its array, or plain. */
void expr_value(struct text *t, int32_t r, const char *index);
void expr_operand(struct text *t, int32_t r); /* at index k */
void expr_elementwise(struct text *t, const struct group_instr *i);
/* Whether register r is where(place == label, .., constant) with places those of the columns. */
bool expr_one_place(const struct text *t, int32_t r, int32_t *place, int32_t *label);
/* "if (..)" for the one column of a thread that has the label's place. */
void expr_if_place(struct text *t, int32_t place, int32_t label);
/* The OP_tanh that gelu k shares with its derivative, or -1; sK beside it is 0.5 (1 + vK). */
int32_t expr_gelu_tanh(const struct text *t, uint32_t k);
/* Whether an absolute error of 2^-22 does no harm in tanh r (`scaled`: in a multiple of it). */
bool expr_coarse_near_zero(const struct text *t, int32_t r, bool scaled);
void expr_iota(struct text *t, uint32_t k, const char *column);
void expr_random(struct text *t, uint32_t k, const char *index);

/* ---- statements (cuda_group_stmt.c) ---- */
/* "(x.at + 32 * THREADS)": where the ring has LOAD k; of this thread when `own`. */
void stmt_slot(struct text *t, uint32_t k, bool own);
void stmt_step_slot(struct text *t, uint32_t k);
/* The number of each run, with what lies beside it in 4 bytes, on its way to the ring. */
void stmt_run_fetch(struct text *t, uint32_t k);
void stmt_uniform(struct text *t, uint32_t k); /* one value */
void stmt_array(struct text *t, uint32_t k);   /* all elements of a thread */
/* What STORE k writes, as it will lie in memory: fewer registers until the end of the row. */
void stmt_hold(struct text *t, uint32_t k);
void stmt_store(struct text *t, uint32_t k);
/* The register that STORE i really stores: before a cast that the store does itself. */
int32_t stmt_source(const struct text *t, const struct group_instr *i);

#endif
