// SPDX-License-Identifier: Apache-2.0
/* quantize_graph.h - graphs of quantize and dequantize on awkward numbers, and of casts to and from
 * 8-bit floats of every code and of random bits, for tests that compare two ways of running them.
 */
#ifndef LATHE_TEST_QUANTIZE_GRAPH_H
#define LATHE_TEST_QUANTIZE_GRAPH_H

#include "ir/quantize.h"
#include <math.h>
#include <string.h>

/* u in [-1, 1); very different sizes; zero rows; constant; subnormal; near the largest; one NaN;
 * one infinity. */
enum { QUANT_KINDS = 8, QUANT_NAN = 6, QUANT_INFINITY = 7 };
static inline double quant_number(uint64_t *seed, int kind, int64_t i) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    double u = (double)(*seed >> 11) * 0x1p-52 - 1;
    switch (kind) {
    case 0: return u;
    case 1: return u * exp(20 * u);
    case 2: return i / 40 % 2 ? 0 : u;
    case 3: return -0.3;
    case 4: return u * 1e-40;
    case 5: return u * 3.3e38;
    case QUANT_NAN: return i == 5 ? (double)NAN : u;
    default: return i == 3 ? (double)INFINITY : u;
    }
}

struct quant_item {
    enum dtype x, format, scale;
    int rank;
    dim dims[4];
    struct quant_tile tile;
    int kind;
};
#define WHOLE                                                                                      \
    { true, 0, 0 }
#define TILE(r, c)                                                                                 \
    { false, r, c }
static const struct quant_item quant_items[] = {
    {DT_f32, DT_e4m3, DT_f32, 2, {300, 1000}, WHOLE, 0},
    {DT_bf16, DT_e5m2, DT_bf16, 2, {257, 768}, WHOLE, 1},
    {DT_f32, DT_e4m3, DT_bf16, 3, {4, 33, 256}, TILE(1, 0), 0},
    {DT_bf16, DT_e4m3, DT_e8m0, 2, {64, 4096}, TILE(1, 0), 2},
    {DT_f32, DT_e5m2, DT_bf16, 2, {130, 512}, TILE(1, 16), 1},
    {DT_bf16, DT_e4m3, DT_bf16, 2, {256, 2048}, TILE(1, 16), 0},
    {DT_bf16, DT_e4m3, DT_bf16, 2, {5003, 1040}, TILE(1, 16), 1}, /* several rows a thread */
    {DT_bf16, DT_e4m3, DT_f32, 2, {100, 1024}, TILE(1, 128), 2},
    {DT_f32, DT_e4m3, DT_e8m0, 2, {37, 300}, TILE(1, 128), 0},
    {DT_f32, DT_e4m3, DT_f32, 2, {256, 384}, TILE(128, 128), 0},
    {DT_f32, DT_e4m3, DT_e8m0, 2, {200, 131}, TILE(128, 128), 1},
    {DT_f32, DT_e5m2, DT_f32, 2, {65, 33}, TILE(0, 1), 0},
    {DT_f32, DT_i8, DT_f32, 2, {65, 96}, TILE(1, 32), 0},
    {DT_f32, DT_e4m3, DT_bf16, 2, {9, 48}, TILE(1, 16), 3},
    {DT_f32, DT_e4m3, DT_f32, 2, {9, 48}, TILE(1, 16), 4},
    {DT_f32, DT_e5m2, DT_bf16, 2, {9, 48}, TILE(1, 16), 5},
    {DT_f32, DT_e4m3, DT_bf16, 2, {9, 48}, TILE(1, 16), QUANT_NAN},
    {DT_f32, DT_e4m3, DT_e8m0, 2, {9, 48}, TILE(1, 16), QUANT_INFINITY},
    {DT_f32, DT_e5m2, DT_f32, 2, {9, 48}, WHOLE, QUANT_INFINITY},
    {DT_f16, DT_e4m3, DT_bf16, 1, {7}, TILE(1, 4), 0},
    {DT_f64, DT_e4m3, DT_f32, 1, {1}, WHOLE, 0},
};
#undef WHOLE
#undef TILE
enum {
    QUANT_GRAPHS = sizeof quant_items / sizeof quant_items[0],
    QUANT_ITEMS = QUANT_GRAPHS + 1 /* and the casts */
};

/* The scale of a whole tensor with an infinity is infinite in f32, and inf / inf is NaN: a checked
 * run reports it, as it should. (An e8m0 scale ends at 2^127.) */
static inline bool quant_makes_nan(int item) {
    return item < QUANT_GRAPHS && quant_items[item].kind == QUANT_INFINITY &&
           quant_items[item].scale != DT_e8m0;
}

static inline val_id quant_state(struct graph *g, const char *name, const struct type *t,
                                 const void *bytes) {
    struct attr a[] = {
        {.key = ATTR_name, .s = name},
        {.key = ATTR_init, .blob = graph_blob(g, bytes, (size_t)type_bytes(t), true)}};
    return graph_source(g, OP_state, t, a, 2, (str_id){0});
}

/* Outputs "codes", "scale", "amax", "values"; codes alone where the others hold NaN. */
static inline struct graph *quant_graph(struct ctx *x, const struct quant_item *q) {
    struct graph *g = graph_create(x, "quantize");
    const str_id o = {0};
    struct type t = {.dtype = q->x, .rank = q->rank};
    for (int k = 0; k < q->rank; k++) t.dims[k] = q->dims[k];
    size_t size = dtype_size(t.dtype), n = (size_t)type_count(&t);
    char *bytes = ARENA_ARRAY(&g->arena, char, n *size);
    uint64_t seed = n;
    for (size_t i = 0; i < n; i++)
        dtype_store(t.dtype, bytes + i * size, quant_number(&seed, q->kind, (int64_t)i));
    struct quant_how h = QUANT_HOW(q->format, .whole = true);
    h.scale_type = q->scale, h.tile = q->tile;
    val_id c = build_quantize(g, quant_state(g, "x", &t, bytes), VAL_NONE, &h, o);
    graph_add_output(g, "codes", c);
    if (q->kind >= QUANT_NAN) return g;
    graph_add_output(g, "scale", val_at(c, 1));
    graph_add_output(g, "amax", val_at(c, 2));
    graph_add_output(g, "values", build_dequantize(g, c, val_at(c, 1), h.tile, DT_f32, o));
    return g;
}

/* Random bits to every format, and every code back. */
static inline struct graph *quant_casts(struct ctx *x) {
    struct graph *g = graph_create(x, "casts");
    const str_id o = {0};
    enum { N = 200003 };
    struct type t = {DT_f32, 1, {N}}, ct = {DT_e4m3, 1, {256}};
    uint32_t *bits = ARENA_ARRAY(&g->arena, uint32_t, N), u = 1;
    uint8_t all[256];
    for (int i = 0; i < N; i++) {
        u = u * 1664525u + 1013904223u;
        bits[i] = u ^ u >> 16;
        if (i % 3) bits[i] = ((u >> 8) % (24u << 23) + (108u << 23)) | (u & 0x80000000u);
        if (i % 16 == 0) bits[i] &= 0xfff80000u; /* ties */
    }
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    val_id v = quant_state(g, "x", &t, bits);
    static const enum dtype to[] = {DT_e4m3, DT_e5m2, DT_e8m0};
    static const char *const names[][2] = {
        {"codes.e4m3", "e4m3"}, {"codes.e5m2", "e5m2"}, {"codes.e8m0", "e8m0"}};
    for (int k = 0; k < 3; k++) {
        graph_add_output(g, names[k][0], build_cast(g, v, to[k], o));
        ct.dtype = to[k];
        graph_add_output(g, names[k][1],
                         build_cast(g, quant_state(g, names[k][1], &ct, all), DT_f32, o));
    }
    return g;
}

static inline struct graph *quant_item_graph(struct ctx *x, int item) {
    return item < QUANT_GRAPHS ? quant_graph(x, &quant_items[item]) : quant_casts(x);
}

#endif
