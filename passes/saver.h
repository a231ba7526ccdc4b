// SPDX-License-Identifier: Apache-2.0
/* saver.h - the forward part of a step and what the backward part reads of it: shared by pass save,
 * which computes some of it again, and pass save_quantized, which keeps some of it as codes. */
#ifndef LATHE_PASSES_SAVER_H
#define LATHE_PASSES_SAVER_H

#include "passes/pass.h"

enum { SAVER_BYTES_MIN = 4096 }; /* smaller values are kept as they are */

struct saver {
    struct graph *g;
    struct uses uses;
    uint32_t nvalues, loss; /* loss: node */
    bool *used;             /* by value: the backward part reads it or something that is a view */
    bool *again;            /* by value: is computed again */
    bool *chain;            /* by value: as a part of one that is */
    val_id *copy;           /* by value: what the backward part reads instead */
};
/* Fills `s`; false: no output "loss". */
bool saver_find(struct saver *s, struct arena *scratch);
int64_t saver_bytes(const struct graph *g, val_id v); /* 0: not known */
bool saver_forward(const struct saver *s, val_id v);
/* What is in memory when v is kept: behind views, casts that lose nothing and norms whose result
 * only elementwise nodes and reductions read (they compute it from the norm's operand and
 * statistics). */
val_id saver_base(const struct saver *s, val_id v);
bool saver_widens(const struct graph *g, val_id v);
bool saver_norm(const struct saver *s, val_id v);
/* Elementwise ops and reductions: they walk over the elements of their operands. */
bool saver_walks(enum op op);

#endif
