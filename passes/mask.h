// SPDX-License-Identifier: Apache-2.0
/* mask.h - what can be proved about attention masks from the graph alone. Private to passes. */
#ifndef LATHE_PASSES_MASK_H
#define LATHE_PASSES_MASK_H

#include "ir/build.h"

/* Whether no row of `x` along `axis` can be all -inf, taking for granted that what no mask touches
 * is finite; then softmax over that axis makes no NaN. False: not known. */
bool mask_rows_visible(const struct graph *g, val_id x, int64_t axis);

enum mask_kind {
    MASK_OTHER,  /* or not a constant */
    MASK_ALL,    /* hides nothing: zeros, or true */
    MASK_CAUSAL, /* hides exactly key j > i + S - T from query i, for every leading index */
};
/* A constant float mask (added to scores; hidden is <= -1e4 or -inf, visible is 0) or bool mask
 * (true keeps, or hides when `invert`), for scores of T = rows and S = columns >= T. Size 1 axes
 * broadcast. *infinite: what is hidden is hidden by -inf (or false). */
enum mask_kind mask_classify(const struct graph *g, val_id mask, bool invert, dim rows, dim columns,
                             bool *infinite);

/* Whether every row (last axis) of a constant bool mask has an element equal to `value`. */
bool mask_rows_have(const struct graph *g, val_id mask, bool value);

#endif
