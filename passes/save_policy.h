// SPDX-License-Identifier: Apache-2.0
/* save_policy.h - what a finished training graph keeps from its forward for its backward part, for
 * reports. The decision itself is the pass `save` (save_policy.c). */
#ifndef LATHE_PASSES_SAVE_POLICY_H
#define LATHE_PASSES_SAVE_POLICY_H

#include "ir/graph.h"

struct saved {
    val_id value; /* of the forward part */
    int64_t bytes;
    bool again; /* not kept: the backward part computes it again */
};
struct save_report {
    struct saved *at;
    uint32_t n, cap;
};
/* Values of the forward part that the backward part reads, small ones and parameters left out, and
 * those that it computes again. The report lives in `a`. Nothing without an output "loss". */
void save_list(struct graph *g, struct arena *a, struct save_report *out);

#endif
