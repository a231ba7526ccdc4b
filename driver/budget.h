// SPDX-License-Identifier: Apache-2.0
/* budget.h - batches and the memory they need, found by planning again for other batches. */
#ifndef LATHE_DRIVER_BUDGET_H
#define LATHE_DRIVER_BUDGET_H

#include "driver/session.h"

enum { BUDGET_BATCH_MAX = 1 << 20 };
/* The largest batch whose plan takes at most `budget` bytes, 0 when there is none. `below` is known
 * not to fit; 0: nothing is known, and no more than BUDGET_BATCH_MAX is tried. The model, with its
 * first dimensions open, was compiled as `sc` and `cg` say; nothing is reported but errors. */
enum status budget_largest_batch(lathe_model *m, const struct session_compile *sc,
                                 const struct codegen_options *cg, int64_t budget, int64_t below,
                                 int64_t *out) MUST_USE;
/* backend_open for the plan of a model compiled as `sc` says. When a GPU has not the memory, the
 * one diagnostic names the largest batch that fits. */
enum status budget_open(struct backend *b, struct device *d, const struct plan *p, lathe_model *m,
                        const struct session_compile *sc) MUST_USE;

#endif
