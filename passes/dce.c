// SPDX-License-Identifier: Apache-2.0
/* dce.c - drop what no output and no update needs.
 *
 * before:
 *   %a = neg(%x)
 *   %b = exp(%x)
 *   output "y" = %b
 * after:
 *   %b = exp(%x)
 *   output "y" = %b
 *
 * needs   topological order
 * breaks  every id held outside (settle compacts)
 * order   last: merging and rewriting leave dead nodes behind */
#include "passes/pass.h"

enum status pass_dce(struct pass_ctx *c, struct graph *g) {
    (void)c;
    graph_settle(g);
    return ST_OK;
}
