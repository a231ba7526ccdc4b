// SPDX-License-Identifier: Apache-2.0
/* granularity_delayed.c - scales from earlier steps: the states that hold what those steps saw. A
 * scale that does not depend on the tensor lets whatever computes the tensor write its codes.
 *
 * before:   %q, %s, %amax = quantize(%x)
 * after:    state %h : f32[16]                  largest magnitudes of the last 16 steps, newest
 * first %s = (max(%h) or a guess) / largest %q, %_, %amax = quantize(%x, %s) update %h <-
 * concat(%amax, %h[0:15])
 *
 * Parameters are there before anything reads them and take their own largest magnitude. Before the
 * first step nothing was seen of other tensors. The guess then is 448 for values, the scale 1:
 * inputs of images fit as well as what follows a norm. It is 2^-2 for gradients, whose e5m2 reaches
 * nine decades below that; TransformerEngine starts with a scale of 1 there too, at which small
 * gradients are lost. */
#include "passes/granularity.h"
#include <math.h>
#include <string.h>

static const double guess_value = 448;
enum { GUESS_GRADIENT = -2 };

static bool name_taken(const struct graph *g, const char *name) {
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        enum op op = (enum op)g->nodes.at[i].op;
        if ((op == OP_state || op == OP_param || op == OP_input) &&
            strcmp(attr_str(g, (node_id){i}, ATTR_name), name) == 0)
            return true;
    }
    return false;
}

struct delayed delayed_scale(struct granularity *x, const char *name, const struct quant_how *how,
                             int64_t history, bool gradient, str_id o) {
    struct graph *g = x->g;
    struct type t = {.dtype = DT_f32, .rank = 1, .dims = {history}};
    const char *unique = name;
    for (int k = 2; name_taken(g, unique); k++) unique = arena_printf(x->scratch, "%s.%d", name, k);
    struct attr attrs[2] = {{.key = ATTR_name, .s = unique}, {.key = ATTR_role, .s = "optimizer"}};
    struct delayed d = {.history = graph_source(g, OP_state, &t, attrs, 2, o)};
    graph_set_name(g, d.history, unique);
    double guess = gradient ? ldexp(1, GUESS_GRADIENT) : guess_value;
    d.scale = build_delayed_scale(g, d.history, build_scalar(g, DT_f32, guess, o), how, o);
    return d;
}

void delayed_next(struct granularity *x, const struct delayed *d, val_id amax, str_id o) {
    graph_add_update(x->g, d->history, build_next_history(x->g, d->history, amax, o));
}
