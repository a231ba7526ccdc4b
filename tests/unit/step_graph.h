// SPDX-License-Identifier: Apache-2.0
/* step_graph.h - graphs that are one optimizer step: weights, gradients and states are kept values;
 * with `clip`, the gradients are scaled to a norm of 1 at most. Output "norm" is their norm. */
#ifndef LATHE_TEST_STEP_GRAPH_H
#define LATHE_TEST_STEP_GRAPH_H

#include "ir/build.h"
#include "ir/graph.h"
#include <string.h>

struct step_case {
    enum op op; /* adam, sgd */
    enum dtype real, gradient;
    bool clip, mixed; /* mixed: every third gradient is of type `real` */
    bool random;      /* initial values differ; else they are constants */
    bool outputs;     /* results are outputs, nothing is updated */
    const int64_t *sizes;
    int n;
    bool hat; /* adam with eps_hat */
};

/* A value in [-1, 1), or [0, 1). */
static inline double step_value(uint64_t *seed, bool positive) {
    uint64_t z = (*seed += UINT64_C(0x9E3779B97F4A7C15)); /* splitmix64 (Steele, Lea, Flood 2014) */
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    double x = (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
    return positive ? x : 2 * x - 1;
}

static inline val_id step_state(struct graph *g, const struct step_case *c, const char *kind, int k,
                                enum dtype t, uint64_t *seed) {
    struct type type = {.dtype = t, .rank = 1, .dims = {c->sizes[k]}};
    const char *name = arena_printf(&g->arena, "%s%d", kind, k);
    struct attr at[3] = {{.key = ATTR_name, .s = name}, {.key = ATTR_fill, .f = 0.25}};
    if (c->random) {
        size_t size = dtype_size(t), bytes = size * (size_t)c->sizes[k];
        char *data = ARENA_ARRAY(&g->arena, char, bytes);
        for (size_t i = 0; i < bytes; i += size)
            dtype_store(t, data + i, step_value(seed, kind[0] == 'v'));
        at[1] = (struct attr){.key = ATTR_init, .blob = graph_blob(g, data, bytes, false)};
    }
    return graph_source(g, OP_state, &type, at, 2, (str_id){0});
}

static inline void step_result(struct graph *g, const struct step_case *c, val_id target,
                               val_id next) {
    if (c->outputs)
        graph_add_output(g, attr_str(g, val_def(g, target), ATTR_name), next);
    else
        graph_add_update(g, target, next);
}

static inline struct graph *step_graph(struct ctx *x, const struct step_case *c) {
    struct graph *g = graph_create(x, "step");
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    str_id o = {0};
    uint64_t seed = 1;
    struct attr rate[2] = {{.key = ATTR_name, .s = "lr"}, {.key = ATTR_fill, .f = 0.01}};
    struct attr count[2] = {{.key = ATTR_name, .s = "step"}, {.key = ATTR_fill, .f = 3}};
    val_id lr = graph_source(g, OP_state, &f32, rate, 2, o);
    val_id step = graph_source(g, OP_state, &i64, count, 2, o);
    val_id *w = ARENA_ARRAY(&g->arena, val_id, (size_t)c->n);
    val_id *grad = ARENA_ARRAY(&g->arena, val_id, (size_t)c->n);
    for (int k = 0; k < c->n; k++) {
        w[k] = step_state(g, c, "w", k, c->real, &seed);
        enum dtype t = c->mixed && k % 3 == 2 ? c->real : c->gradient;
        grad[k] = step_state(g, c, "g", k, t, &seed);
    }
    val_id norm = build_1(g, OP_sqrt, graph_add(g, OP_sum_squares, grad, c->n, NULL, 0, o), o);
    graph_add_output(g, "norm", norm);
    val_id factor =
        build_2(g, OP_min, build_1(g, OP_recip, norm, o), build_scalar(g, DT_f32, 1.0, o), o);
    for (int k = 0; k < c->n; k++) {
        val_id d = grad[k];
        if (val_type(g, d)->dtype != c->real) d = build_cast(g, d, c->real, o);
        if (c->clip) d = build_2(g, OP_mul, d, factor, o);
        val_id m = step_state(g, c, "m", k, c->real, &seed);
        if (c->op == OP_adam) {
            val_id v = step_state(g, c, "v", k, c->real, &seed);
            struct attr at[3] = {{.key = ATTR_weight_decay, .f = 0.1},
                                 {.key = ATTR_eps, .f = c->hat ? 0.01 : 1e-8},
                                 {.key = ATTR_eps_hat, .i = c->hat}};
            val_id y = graph_add(g, OP_adam, (val_id[]){w[k], d, m, v, lr, step}, 6, at, 3, o);
            step_result(g, c, w[k], y);
            step_result(g, c, m, val_at(y, 1));
            step_result(g, c, v, val_at(y, 2));
        } else {
            struct attr at[2] = {{.key = ATTR_momentum, .f = 0.9}, {.key = ATTR_nesterov, .i = 1}};
            val_id y = graph_add(g, OP_sgd, (val_id[]){w[k], d, m, lr, step}, 5, at, 2, o);
            step_result(g, c, w[k], y);
            step_result(g, c, m, val_at(y, 1));
        }
    }
    graph_settle(g);
    return g;
}

#endif
