// SPDX-License-Identifier: Apache-2.0
/* cuda_group_text.h - a group's text in work, and the expressions it is made of
 * (cuda_group_expr.c). Private to the two files that write it. */
#ifndef LATHE_CODEGEN_CUDA_GROUP_TEXT_H
#define LATHE_CODEGEN_CUDA_GROUP_TEXT_H

#include "codegen/cuda_group.h"

struct text {
    struct group_gen *g;
    struct buf *out;
    bool *need; /* instructions to be written */
    bool *kept; /* LONG: LOADs that lie in shared memory by now; NULL: none ever do */
    bool early; /* what group_early says is in x already */
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
void expr_iota(struct text *t, uint32_t k, const char *column);
void expr_random(struct text *t, uint32_t k, const char *index);

#endif
