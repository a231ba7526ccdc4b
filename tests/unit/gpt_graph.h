// SPDX-License-Identifier: Apache-2.0
/* gpt_graph.h - a GPT-2 with a mean cross-entropy loss as a graph, of any size: what the planner is
 * mostly asked to plan. */
#ifndef LATHE_TEST_GPT_GRAPH_H
#define LATHE_TEST_GPT_GRAPH_H

#include "ir/build.h"
#include <math.h>
#include <stdio.h>

struct gpt_size {
    int64_t batch, seq, width, heads, layers, vocab;
};
struct gpt {
    struct graph *g;
    struct gpt_size s;
    bool zeros; /* parameters share one block of zeros */
    void *block;
    uint64_t seed;
};

static inline val_id gpt_param(struct gpt *m, const char *name, int rank, const int64_t *dims,
                               double mean, double std) {
    struct graph *g = m->g;
    struct type t = {.dtype = DT_f32, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    int64_t n = type_count(&t);
    float *at = m->zeros ? m->block : ARENA_ARRAY(&g->arena, float, (size_t)n);
    for (int64_t i = 0; !m->zeros && i < n; i++) {
        m->seed = m->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        at[i] = (float)(mean + std * ((double)(m->seed >> 33) / 1073741824.0 - 1.0));
    }
    struct attr a[] = {{.key = ATTR_name, .s = name},
                       {.key = ATTR_init, .blob = graph_blob(g, at, (size_t)n * 4, false)}};
    val_id v = graph_source(g, OP_param, &t, a, 2, (str_id){0});
    graph_set_name(g, v, name);
    return v;
}

static inline val_id gpt_linear(struct gpt *m, const char *name, val_id x, int64_t in, int64_t out,
                                str_id o) {
    char text[80];
    snprintf(text, sizeof text, "%s.weight", name);
    val_id w = gpt_param(m, text, 2, (int64_t[]){in, out}, 0, 0.2);
    snprintf(text, sizeof text, "%s.bias", name);
    val_id b = gpt_param(m, text, 1, &out, 0, 0.2);
    return build_2(m->g, OP_add, build_matmul(m->g, x, w, false, false, o), b, o);
}

static inline val_id gpt_norm(struct gpt *m, const char *name, val_id x, str_id o) {
    char text[80];
    struct attr a[] = {{.key = ATTR_axis, .i = 2}, {.key = ATTR_eps, .f = 1e-5}};
    val_id y = graph_add(m->g, OP_layer_norm, &x, 1, a, 2, o);
    snprintf(text, sizeof text, "%s.weight", name);
    y = build_2(m->g, OP_mul, y, gpt_param(m, text, 1, &m->s.width, 1, 0.2), o);
    snprintf(text, sizeof text, "%s.bias", name);
    return build_2(m->g, OP_add, y, gpt_param(m, text, 1, &m->s.width, 0, 0.2), o);
}

/* Part k of qkv [B,T,3C] as [B,H,T,D]. */
static inline val_id gpt_head(struct gpt *m, val_id qkv, int k, str_id o) {
    struct gpt_size s = m->s;
    val_id x = build_slice(m->g, qkv, (dim[]){0, 0, k * s.width}, (dim[]){s.batch, s.seq, s.width},
                           NULL, o);
    x = build_reshape(m->g, x, (dim[]){s.batch, s.seq, s.heads, s.width / s.heads}, 4, o);
    return build_transpose(m->g, x, (int64_t[]){0, 2, 1, 3}, o);
}

static inline val_id gpt_attention(struct gpt *m, val_id x, const char *name, bool whole,
                                   str_id o) {
    struct graph *g = m->g;
    struct gpt_size s = m->s;
    char text[64];
    snprintf(text, sizeof text, "%s.attn.c_attn", name);
    val_id qkv = gpt_linear(m, text, x, s.width, 3 * s.width, o), in[3], y;
    double scale = 1 / sqrt((double)(s.width / s.heads));
    for (int k = 0; k < 3; k++) in[k] = gpt_head(m, qkv, k, o);
    if (whole) {
        struct attr a[] = {{.key = ATTR_scale, .f = scale}, {.key = ATTR_causal, .i = 1}};
        y = graph_add(g, OP_attention, in, 3, a, 2, o);
    } else { /* as an export without the composite: scores, mask, softmax */
        val_id p = build_scale(g, build_matmul(g, in[0], in[1], false, true, o), scale, o);
        val_id i = build_iota(g, DT_i64, s.seq, 0, 1, o);
        val_id keep = build_2(g, OP_le, i, build_reshape(g, i, (dim[]){s.seq, 1}, 2, o), o);
        p = build_3(g, OP_where, keep, p, build_scalar(g, DT_f32, -1e9, o), o);
        struct attr axis = {.key = ATTR_axis, .i = 3};
        p = graph_add(g, OP_softmax, &p, 1, &axis, 1, o);
        y = build_matmul(g, p, in[2], false, false, o);
    }
    y = build_transpose(g, y, (int64_t[]){0, 2, 1, 3}, o);
    y = build_reshape(g, y, (dim[]){s.batch, s.seq, s.width}, 3, o);
    snprintf(text, sizeof text, "%s.attn.c_proj", name);
    return gpt_linear(m, text, y, s.width, s.width, o);
}

/* Inputs "tokens" and "labels" [B,T] and output "loss". */
static inline struct graph *gpt_graph(struct ctx *c, struct gpt_size s, bool whole, void *zeros) {
    struct gpt m = {.g = graph_create(c, "gpt"), .s = s, .zeros = zeros != NULL, .block = zeros};
    struct graph *g = m.g;
    struct type ids = {.dtype = DT_i64, .rank = 2, .dims = {s.batch, s.seq}};
    struct attr name = {.key = ATTR_name, .s = "tokens"}, axis = {.key = ATTR_axis, .i = 0};
    struct attr label[] = {{.key = ATTR_name, .s = "labels"}, {.key = ATTR_role, .s = "label"}};
    str_id o = intern(&g->strings, "/embed");
    val_id tokens = graph_source(g, OP_input, &ids, &name, 1, o);
    val_id labels = graph_source(g, OP_input, &ids, label, 2, o);
    val_id wte = gpt_param(&m, "wte", 2, (int64_t[]){s.vocab, s.width}, 0, 0.5);
    val_id wpe = gpt_param(&m, "wpe", 2, (int64_t[]){s.seq, s.width}, 0, 0.5);
    val_id x = build_2(g, OP_add, graph_add(g, OP_gather, (val_id[]){wte, tokens}, 2, &axis, 1, o),
                       wpe, o);
    for (int64_t k = 0; k < s.layers; k++) {
        char block[32], text[64];
        snprintf(block, sizeof block, "h.%lld", (long long)k);
        o = intern(&g->strings, block);
        snprintf(text, sizeof text, "%s.ln_1", block);
        x = build_2(g, OP_add, x, gpt_attention(&m, gpt_norm(&m, text, x, o), block, whole, o), o);
        snprintf(text, sizeof text, "%s.ln_2", block);
        val_id h = gpt_norm(&m, text, x, o);
        snprintf(text, sizeof text, "%s.mlp.c_fc", block);
        h = build_1(g, OP_gelu, gpt_linear(&m, text, h, s.width, 4 * s.width, o), o);
        snprintf(text, sizeof text, "%s.mlp.c_proj", block);
        x = build_2(g, OP_add, x, gpt_linear(&m, text, h, 4 * s.width, s.width, o), o);
    }
    o = intern(&g->strings, "/head");
    x = gpt_norm(&m, "ln_f", x, o);
    val_id logits = build_matmul(g, x, wte, false, true, o);
    logits = build_reshape(g, logits, (dim[]){s.batch * s.seq, s.vocab}, 2, o);
    labels = build_reshape(g, labels, (dim[]){s.batch * s.seq}, 1, o);
    val_id loss = graph_add(g, OP_cross_entropy, (val_id[]){logits, labels}, 2, NULL, 0, o);
    loss = build_reduce(g, OP_reduce_mean, loss, (int64_t[]){0}, 1, false, o);
    graph_add_output(g, "loss", loss);
    return g;
}

#endif
