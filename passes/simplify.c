// SPDX-License-Identifier: Apache-2.0
/* simplify.c - algebraic identities, merged and cancelled movement; never a change of meaning
 * beyond rounding and the sign of zero.
 *
 * before:
 *   %a = transpose(%k) {perm = [0, 2, 1]}
 *   %s = matmul(%q, %a)
 *   %y = div(%s, %eight)
 * after:
 *   %s = matmul(%q, %k) {trans_b = true}
 *   %y = mul(%s, %eighth)
 *
 * needs   topological order, types
 * breaks  every id held outside (settle compacts)
 * order   after fold, which makes the constants that rules look for; before recognise, whose
 * patterns are written against this form; and again after differentiation. The rules: rules.c
 * (algebra), simplify_move.c (views), simplify_shape.c (broadcasts, reductions, joins). */
#include "passes/simplify.h"

enum status pass_simplify(struct pass_ctx *c, struct graph *g) {
    struct rewrite_set set = {.pass = "simplify"};
    int nviews, nshapes;
    set.rules = simplify_rules(&set.nrules);
    const struct rewrite_fn *views = simplify_view_rules(&nviews);
    const struct rewrite_fn *shapes = simplify_shape_rules(&nshapes);
    struct rewrite_fn *fns = ARENA_ARRAY(c->scratch, struct rewrite_fn, (size_t)(nviews + nshapes));
    for (int k = 0; k < nviews; k++) fns[k] = views[k];
    for (int k = 0; k < nshapes; k++) fns[nviews + k] = shapes[k];
    set.fns = fns;
    set.nfns = nviews + nshapes;
    return rewrite_run(c, g, &set, NULL);
}
