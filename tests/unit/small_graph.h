// SPDX-License-Identifier: Apache-2.0
/* small_graph.h - graphs that are one step of adam8 over tensors of odd sizes, with ordinary and
 * awkward values; results are outputs, or states that are updated. */
#ifndef LATHE_TEST_SMALL_GRAPH_H
#define LATHE_TEST_SMALL_GRAPH_H

#include "step_graph.h"
#include <math.h>

struct small_case {
    enum dtype gradient, m, v; /* m, v: e4m3, e5m2 or f32 */
    int64_t group;
    bool plain, contract, stochastic, clip, l2;
    bool updates; /* of states, else outputs */
    const int64_t *sizes;
    int n;
    bool hat; /* eps_hat */
};

/* Gradients by kind: ordinary; with zeros; over many magnitudes; constant; near the smallest
 * numbers whose squares exist; zero; large. */
enum { SMALL_KINDS = 7 };
static inline double small_value(int kind, uint64_t *seed) {
    double x = step_value(seed, false), y = step_value(seed, false);
    switch (kind) {
    case 0: return 1e-3 * x;
    case 1: return y < 0 ? 0 : 1e-4 * x;
    case 2: return ldexp(x, (int)(y * 40));
    case 3: return -0.37;
    case 4: return 1e-20 * x;
    case 5: return 0;
    default: return 1e17 * x;
    }
}

static inline val_id small_state(struct graph *g, const char *kind, int k, enum dtype t, int64_t n,
                                 const void *data) {
    struct type type = {.dtype = t, .rank = 1, .dims = {n}};
    size_t bytes = dtype_size(t) * (size_t)n;
    struct attr at[2] = {{.key = ATTR_name, .s = arena_printf(&g->arena, "%s%d", kind, k)},
                         {.key = ATTR_init, .blob = graph_blob(g, data ? data : "", bytes, false)}};
    return graph_source(g, OP_state, &type, at, 2, (str_id){0});
}

static inline void *small_memory(struct graph *g, enum dtype t, int64_t n) {
    return ARENA_ARRAY(&g->arena, char, dtype_size(t) * (size_t)n);
}

/* Any codes and scales that a step may find: those of numbers, v without signs. */
static inline void small_states(struct graph *g, const struct small_case *c, int k, bool is_v,
                                uint64_t *seed, val_id *out) {
    enum dtype t = is_v ? c->v : c->m;
    bool wide = t == DT_f32;
    int64_t n = c->sizes[k], groups = wide ? 0 : (n + c->group - 1) / c->group;
    int kind = k % SMALL_KINDS, top = t == DT_e5m2 ? 0x7b : 0x7e;
    char *codes = small_memory(g, t, n);
    float *amax = small_memory(g, DT_f32, groups), *f = (float *)(void *)codes;
    uint8_t *exponent = small_memory(g, DT_u8, groups);
    for (int64_t i = 0; i < n; i++) {
        double x = small_value(kind, seed), u = step_value(seed, true);
        if (wide)
            f[i] = (float)(is_v ? x * x : x);
        else
            codes[i] = (char)((kind == 5 ? 0 : (int)(u * (top + 1))) | (!is_v && x < 0 ? 0x80 : 0));
    }
    for (int64_t i = 0; i < groups; i++) {
        double x = fabs(small_value(kind, seed)), u = step_value(seed, true);
        amax[i] = (float)(is_v ? x * x : x);
        exponent[i] = (uint8_t)(c->plain ? 16 : c->contract ? 1 + u * 255 : 16 + u * 240);
    }
    const char *names[2][3] = {{"m", "m.amax", "m.k"}, {"v", "v.amax", "v.k"}};
    out[0] = small_state(g, names[is_v][0], k, t, n, codes);
    out[1] = small_state(g, names[is_v][1], k, DT_f32, groups, amax);
    out[2] = small_state(g, names[is_v][2], k, DT_u8, groups, exponent);
}

static inline val_id small_values(struct graph *g, const struct small_case *c, const char *name,
                                  int k, enum dtype t, uint64_t *seed) {
    char *at = small_memory(g, t, c->sizes[k]);
    bool weight = name[0] == 'w';
    for (int64_t i = 0; i < c->sizes[k]; i++)
        dtype_store(t, at + (size_t)i * dtype_size(t),
                    weight ? step_value(seed, false) : small_value(k % SMALL_KINDS, seed));
    return small_state(g, name, k, t, c->sizes[k], at);
}

static inline void small_step(struct graph *g, const struct small_case *c, int k, val_id lr,
                              val_id step, val_id factor, uint64_t *seed) {
    str_id o = {0};
    val_id in[10], d, y;
    struct attr at[] = {{.key = ATTR_group, .i = c->group},
                        {.key = ATTR_m_range, .f = c->plain ? 0 : 100352},
                        {.key = ATTR_v_range, .f = c->plain ? 0 : 229376},
                        {.key = ATTR_contract, .i = c->contract},
                        {.key = ATTR_stochastic, .i = c->stochastic},
                        {.key = ATTR_decoupled, .i = !c->l2},
                        {.key = ATTR_eps, .f = c->hat ? 1e-4 : 1e-8},
                        {.key = ATTR_eps_hat, .i = c->hat},
                        {.key = ATTR_weight_decay, .f = 0.1}};
    in[0] = small_values(g, c, "w", k, DT_f32, seed);
    d = small_values(g, c, "g", k, c->gradient, seed);
    if (c->gradient != DT_f32) d = build_cast(g, d, DT_f32, o);
    if (c->clip) d = build_2(g, OP_mul, d, factor, o);
    in[1] = d;
    small_states(g, c, k, false, seed, &in[2]);
    small_states(g, c, k, true, seed, &in[5]);
    in[8] = lr, in[9] = step;
    y = graph_add(g, OP_adam8, in, 10, at, (int)(sizeof at / sizeof *at), o);
    for (int j = 0; j < 7; j++) {
        val_id target = in[j ? j + 1 : 0];
        if (c->updates)
            graph_add_update(g, target, val_at(y, j));
        else
            graph_add_output(
                g, arena_printf(&g->arena, "%s", attr_str(g, val_def(g, target), ATTR_name)),
                val_at(y, j));
    }
}

static inline struct graph *small_graph(struct ctx *x, const struct small_case *c) {
    struct graph *g = graph_create(x, "adam8");
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    str_id o = {0};
    uint64_t seed = 5;
    struct attr rate[2] = {{.key = ATTR_name, .s = "lr"}, {.key = ATTR_fill, .f = 0.01}};
    struct attr count[2] = {{.key = ATTR_name, .s = "step"}, {.key = ATTR_fill, .f = 3}};
    struct attr clip[2] = {{.key = ATTR_name, .s = "clip"}, {.key = ATTR_fill, .f = 0.7}};
    val_id lr = graph_source(g, OP_state, &f32, rate, 2, o);
    val_id step = graph_source(g, OP_state, &i64, count, 2, o);
    val_id factor = graph_source(g, OP_state, &f32, clip, 2, o);
    for (int k = 0; k < c->n; k++) small_step(g, c, k, lr, step, factor, &seed);
    graph_settle(g);
    return g;
}

/* For tests on both backends. */
static const int64_t small_sizes[] = {1,   127, 128,  129,   1000, 4097, 31,    255,
                                      256, 257, 8192, 16385, 513,  2,    100000};
enum { SMALL_SIZES = sizeof small_sizes / sizeof small_sizes[0] };
#define SMALL(g, m, v, group, plain, contract, stochastic, clip, l2)                               \
    {                                                                                              \
        DT_##g, DT_##m, DT_##v, group, plain, contract, stochastic, clip, l2, false, small_sizes,  \
            SMALL_SIZES, false                                                                     \
    }
static const struct small_case small_cases[] = {
    SMALL(f32, e4m3, e4m3, 128, false, false, false, false, false),
    SMALL(bf16, e4m3, e4m3, 128, false, false, true, true, false),
    SMALL(f32, e4m3, e5m2, 128, false, false, true, false, true),
    SMALL(bf16, e5m2, e4m3, 128, false, true, false, true, false),
    SMALL(f32, e4m3, e4m3, 128, true, false, true, true, false),
    SMALL(f16, f32, e4m3, 128, false, false, true, false, false),
    SMALL(bf16, e4m3, f32, 128, false, false, false, true, false),
    SMALL(f32, e4m3, e4m3, 32, false, true, true, false, false),
    SMALL(bf16, e4m3, e5m2, 64, false, false, false, true, true),
    SMALL(f32, e5m2, e5m2, 256, false, false, true, true, false),
    SMALL(bf16, e4m3, e4m3, 256, true, false, false, false, false),
    {DT_bf16, DT_e4m3, DT_e4m3, 128, false, false, true, true, true, false, small_sizes,
     SMALL_SIZES, true},
};
#undef SMALL
enum { SMALL_CASES = sizeof small_cases / sizeof small_cases[0] };

#endif
