// SPDX-License-Identifier: Apache-2.0
/* plan_text.h - the words and forms that the plan's printer and parser share (docs/IR.md, "Plan").
 * Private to ir/. */
#ifndef LATHE_IR_PLAN_TEXT_H
#define LATHE_IR_PLAN_TEXT_H

#include "ir/lex.h"
#include "ir/plan.h"

/* Bounds of a plan that comes from text: sums and products of two numbers of a view, and the sum of
 * all buffers, cannot overflow. */
#define PLAN_DIM_MAX   ((int64_t)1 << 48)
#define PLAN_COUNT_MAX ((int64_t)1 << 60)

/* Words; "none" for a number that is no member of the enum. */
const char *plan_kind_word(enum buffer_kind k);
const char *plan_use_word(enum buffer_use u);
const char *plan_arena_word(enum arena_class a);
const char *plan_mode_word(enum group_mode m);

/* Which fields of an instruction have a meaning. Reductions are named row_sum, row_max, .. because
 * max and min are ops too. */
struct instr_form {
    const char *name; /* NULL: no such instruction */
    int operands;     /* how many of a, b, c */
    bool slot, axis;
    bool result;      /* defines a register that later instructions may read */
    const char *flag; /* the word for `flag`, or NULL */
};
struct instr_form instr_form(unsigned code);

/* Strides of a row-major array of these sizes. */
void plan_row_major(const int64_t *dims, int rank, int64_t *strides);
/* No initial value, as opposed to one of no bytes. */
static inline bool plan_blob_absent(const struct blob *b) {
    return !b->data && !b->bytes && !b->hash;
}
uint64_t plan_blob_hash(const struct blob *b); /* never 0 */

/* What plans for a GPU have (plan_text_cuda.c). */
void plan_put_kernels(const struct plan *p, struct buf *out);
void plan_put_calls(const struct plan *p, const struct plan_launch *l, struct buf *out);
enum status plan_parse_kernel(struct lexer *l, struct plan *p, struct arena *scratch) MUST_USE;
enum status plan_parse_calls(struct lexer *l, struct plan *p, struct plan_launch *q) MUST_USE;
bool plan_same_kernels(const struct plan *a, const struct plan *b);
bool plan_same_calls(const struct plan *a, const struct plan_launch *x, const struct plan *b,
                     const struct plan_launch *y);

#endif
