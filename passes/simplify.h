// SPDX-License-Identifier: Apache-2.0
/* simplify.h - the tables that simplify.c puts together. Private to the simplify files and their
 * tests. */
#ifndef LATHE_PASSES_SIMPLIFY_H
#define LATHE_PASSES_SIMPLIFY_H

#include "passes/rewrite.h"

const struct rule *simplify_rules(int *n);            /* rules.c: algebra */
const struct rewrite_fn *simplify_view_rules(int *n); /* simplify_move.c: views of views */
const struct rewrite_fn *
simplify_shape_rules(int *n); /* simplify_shape.c: broadcasts, reductions, joins */

#endif
