// SPDX-License-Identifier: Apache-2.0
/* recognise_norm.c - layer_norm and rms_norm from their formulas. Scale and bias stay separate
 * nodes; casts around a norm that is computed in f32 stay where they are, outside. */
#include "passes/recognise.h"
#include <math.h>

/* The mean over the last axes, kept as size 1. */
static bool over_last_axes(const struct graph *g, node_id mean, int64_t *axis) {
    int n, rank = val_type(g, node_in(g, mean, 0))->rank;
    const int64_t *axes = attr_ints(g, mean, ATTR_axes, &n);
    if (n == 0 || !attr_bool(g, mean, ATTR_keepdims)) return false;
    for (int k = 0; k < n; k++)
        if (axes[k] != rank - n + k) return false;
    *axis = rank - n;
    return true;
}

static bool same_axes(const struct match *m, const char *a, const char *b) {
    const struct graph *g = match_graph(m);
    return graph_node(g, match_node(m, a))->attrs.i == graph_node(g, match_node(m, b))->attrs.i;
}

static bool set_norm(struct match *m, const char *mean) {
    int64_t axis;
    double eps = match_num(m, "e");
    if (!isfinite(eps) || eps < 0 || !match_single(m, "r")) return false;
    if (!over_last_axes(match_graph(m), match_node(m, mean), &axis)) return false;
    struct attr *attrs = ARENA_ARRAY(match_arena(m), struct attr, 2);
    attrs[0] = (struct attr){.key = ATTR_axis, .i = axis};
    attrs[1] = (struct attr){.key = ATTR_eps, .f = eps};
    match_set_attrs(m, "n", attrs, 2);
    return true;
}

static bool rms(struct match *m) {
    return set_norm(m, "v");
}

static bool layer(struct match *m) {
    return same_axes(m, "v", "m1") && same_axes(m, "v", "m2") && same_axes(m, "v", "m3") &&
           set_norm(m, "v");
}

#define CENTRED(mean) "(sub x (reduce_mean:" mean " x))"
#define VARIANCE      "(reduce_mean:v (mul " CENTRED("m2") " " CENTRED("m3") "))"
/* E[x^2] - E[x]^2, which layer_norm computes without the cancellation */
#define MOMENTS "(sub (reduce_mean:v (mul x x)) (mul (reduce_mean:m2 x) (reduce_mean:m3 x)))"
#define RMS     "(rms_norm:n x)"
#define LAYER   "(layer_norm:n x)"

// clang-format off
static const struct rule rules[] = {
    {"layer-rsqrt",   "(mul " CENTRED("m1") " (rsqrt:r (add " VARIANCE " #e)))", LAYER, layer},
    {"layer-sqrt",    "(div " CENTRED("m1") " (sqrt:r (add " VARIANCE " #e)))",  LAYER, layer},
    {"moments-rsqrt", "(mul " CENTRED("m1") " (rsqrt:r (add " MOMENTS " #e)))",  LAYER, layer},
    {"moments-sqrt",  "(div " CENTRED("m1") " (sqrt:r (add " MOMENTS " #e)))",   LAYER, layer},
    /* after those: a difference is a value like any other */
    {"rms-rsqrt",     "(mul x (rsqrt:r (add (reduce_mean:v (mul x x)) #e)))",    RMS,   rms},
    {"rms-sqrt",      "(div x (sqrt:r (add (reduce_mean:v (mul x x)) #e)))",     RMS,   rms},
};
// clang-format on

const struct rule *recognise_norms(int *n) {
    *n = (int)(sizeof rules / sizeof rules[0]);
    return rules;
}
