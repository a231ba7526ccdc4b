// SPDX-License-Identifier: Apache-2.0
/* plan_work.h - how the CPU backend cuts a launch into pieces, and the scratch memory this takes:
 * the planner sizes workspaces with it, the backend runs by it. Every cut depends on shapes only,
 * never on the number of threads; only the total of the per-thread scratch does. No arithmetic on
 * data here. */
#ifndef LATHE_IR_PLAN_WORK_H
#define LATHE_IR_PLAN_WORK_H

#include "ir/plan.h"

/* Bytes of workspace that `l` needs for p->threads threads; 0: none. The launch need not be in
 * p->launches yet, but its group must be in p->groups, and the `alias` fields of its buffers set.
 */
int64_t launch_workspace(const struct plan *p, const struct plan_launch *l);

/* ---- convolution ------------------------------------------------------------------------------
 * Shapes as seen by the forward convolution: x [n, groups*c, in..], w [groups*o, c, kernel..],
 * y [n, groups*o, out..]; missing spatial axes have size 1. */
struct conv_shape {
    int64_t n, groups, c, o;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
    int64_t in_plane, out_plane, taps; /* products of in, out, kernel */
    bool pointwise;                    /* columns are x itself */
};
struct conv_shape plan_conv_shape(const struct plan_launch *l);
/* Output positions per piece when `k` column rows are unrolled at a time. */
int64_t plan_conv_tile(const struct conv_shape *s, int64_t k);
/* Input channels per piece of the two gradients, so that about 16 pieces exist. */
int64_t plan_conv_channels(const struct conv_shape *s, bool weight_grad);

/* Query rows per piece of attention over `keys` keys. */
int64_t plan_attention_rows(int64_t queries, int64_t keys);
/* Scratch bytes of one thread, a multiple of 64: the scores of a block of queries, for the gradient
 * once more; then, for element types of 2 bytes, one head's operands and results in f32. */
int64_t plan_attention_scores(const struct plan_launch *l); /* bytes of one block of scores */
int64_t plan_attention_scratch(const struct plan_launch *l);

/* ---- optimizers -------------------------------------------------------------------------------
 * How the operands of sgd, adam and adam8 are laid out. */
struct optimizer_form {
    uint32_t count;      /* parameters; 0: the launch does not say a sound number */
    uint32_t each, kept; /* operands and results of one */
    uint32_t lr;         /* operand; then step and, of adam8, the tables of m and v */
    uint32_t factor;     /* operand, if there is one: what gradients are multiplied by */
};
struct optimizer_form plan_optimizer(const struct plan_launch *l);
/* sum_squares: elements that one piece adds up. Pieces are tasks; none spans two operands. */
enum { SQUARES_PIECE = 65536 };
int64_t plan_squares_pieces(const struct plan_launch *l);

/* scatter_rows of bf16 or f16 keeps a list of updates for each destination, 4 bytes for each
 * destination and each index; 0 for other types, which add in place. */
int64_t plan_scatter_lists(const struct plan_launch *l);

/* ---- products of bf16, f16 and 8-bit codes
 * ------------------------------------------------------------------ Each thread widens blocks of
 * its operands to f32 and keeps the sums of one tile in f32. */
struct product_blocks {
    int64_t m, n, k;      /* largest tile, and depth of one block */
    int64_t a, b, c;      /* bytes into the thread's scratch */
    int64_t thread_bytes; /* a multiple of 64; 0: operands are used as they are */
};
struct product_blocks plan_product_blocks(const struct plan_launch *l);

/* ---- fused groups ----------------------------------------------------------------------------
 * Axes are merged where every view allows it, and the iteration space becomes rows x cols, computed
 * in blocks of block_rows x block_cols. A program with reductions runs in stages: a reduction of
 * stage s is known in stage s+1. When a row is longer than a block, every stage walks the whole
 * row. */
int64_t group_rows(const struct plan_group *g); /* of the program as written, before merging */
int64_t group_row_length(const struct plan_group *g);

/* How many aligned neighbours in a row have the same value, for each register; 0: the whole row.
 * Given for LOAD, IOTA and RANDOM, filled in for the others. */
void group_constant_runs(const struct plan_group *g, int64_t *runs);

enum group_where {
    REG_NONE,   /* no value: stores, column sums */
    REG_SCALAR, /* one value for the whole launch */
    REG_ROW,    /* one value per row of the block */
    REG_SLOT,   /* block in the thread's scratch */
    REG_LINE,   /* a whole row in the thread's scratch, kept between stages */
    REG_DIRECT, /* lies in a buffer already: operand read in place, or result written in place */
};
struct group_reg {
    enum group_where where;
    int64_t at;    /* bytes into the thread's scratch */
    int32_t store; /* REG_DIRECT results: the STORE instruction that names the buffer */
    bool hoisted;  /* same content in every block of a task */
    /* LOAD, STORE, COLSUM, IOTA: strides over the merged axes */
    int64_t offset, strides[RANK_MAX];
    int64_t partial; /* reductions, COLSUM: index among those that need partial results */
};
struct group_step {
    uint32_t instr, stage;
};
struct group_layout {
    enum group_mode mode;
    int rank, inner;
    int64_t dims[RANK_MAX];
    int64_t rows, cols, block_rows, block_cols;
    uint32_t nsteps, nstages;
    struct group_step *steps; /* by stage, then program order */
    struct group_reg *regs;   /* one per instruction */
    bool columns_first;       /* COLSUM: pieces are column ranges that walk all rows */
    int64_t pieces;           /* tasks: ranges of blocks (MAP, ROW), rows (COLSUM) or columns */
    int64_t piece;            /* blocks, rows or columns per piece */
    int64_t ncolsum, nreduce;
    int64_t spill;        /* three block-sized temporaries: bytes into the thread's scratch */
    int64_t slot_bytes;   /* size of one of them */
    int64_t totals;       /* running results of the reductions, one 8-byte word each */
    int64_t thread_bytes; /* scratch of one thread, a multiple of 64 */
    int64_t shared_bytes; /* partial results, a multiple of 64 */
};
/* Memory of the result comes from `a`. */
struct group_layout *plan_group_layout(const struct plan *p, const struct plan_launch *l,
                                       struct arena *a);
size_t group_elem_size(enum dtype reg); /* bytes of a register element */

#endif
