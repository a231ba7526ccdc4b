// SPDX-License-Identifier: Apache-2.0
/* gpu_products.h - graphs of bf16 products with bias, residual, accumulation and GELU, in sizes
 * whose rows are aligned to anything from 2 to 16 bytes, and of products of 8-bit codes in such
 * sizes rounded up to 16; operands are parameters, results outputs. */
#ifndef LATHE_TESTS_GPU_PRODUCTS_H
#define LATHE_TESTS_GPU_PRODUCTS_H

#include "ir/plan.h"
#include "ir/quantize.h"

static const int64_t product_sizes[][3] = {
    {1, 17, 129},  {3, 1, 17},     {17, 129, 3},   {127, 3, 127}, {129, 127, 17},
    {129, 130, 1}, {64, 256, 512}, {300, 768, 96}, {1, 8, 16},    {129, 136, 40}};
enum {
    PRODUCT_WIDE = 7,
    PRODUCT_FORMS = PRODUCT_WIDE + 9,
    PRODUCT_SIZES = sizeof product_sizes / sizeof product_sizes[0],
    PRODUCT_ITEMS = PRODUCT_FORMS * PRODUCT_SIZES
};
static const char *const product_names[PRODUCT_FORMS] = {"product",
                                                         "bias",
                                                         "bias and residual",
                                                         "f32 result",
                                                         "accumulation in f32",
                                                         "f32 with both",
                                                         "gelu",
                                                         "codes",
                                                         "codes by rows",
                                                         "codes of gradients",
                                                         "codes, f32 result",
                                                         "codes with bias",
                                                         "codes with both",
                                                         "codes, accumulation in f32",
                                                         "codes, f32 bias",
                                                         "codes, joined"};

static inline val_id product_param(struct graph *g, const char *name, enum dtype t, int64_t rows,
                                   int64_t cols) {
    struct type type = {.dtype = t, .rank = rows ? 2 : 1, .dims = {rows ? rows : cols, cols}};
    size_t size = dtype_size(t), n = (size_t)type_count(&type);
    char *at = arena_alloc(&g->arena, n * size);
    for (size_t i = 0; i < n; i++)
        dtype_store(t, at + i * size,
                    (double)((i * 37 + (size_t)name[0] * 13) % 101) / 64 - 0.78125);
    struct attr a[] = {{.key = ATTR_name, .s = name},
                       {.key = ATTR_init, .blob = graph_blob(g, at, n * size, false)}};
    return graph_source(g, OP_param, &type, a, 2, (str_id){0});
}

/* cast(gelu(cast(x))), the tanh form. */
static inline val_id product_gelu(struct graph *g, val_id x) {
    struct attr a = {.key = ATTR_approximate, .i = true};
    val_id wide = build_cast(g, x, DT_f32, (str_id){0});
    return build_cast(g, graph_add(g, OP_gelu, &wide, 1, &a, 1, (str_id){0}), DT_bf16, (str_id){0});
}

/* a b^T of codes of a [M,K] and b [N,K]. */
static inline val_id product_codes(struct graph *g, const char *names, const int64_t z[3], int form,
                                   enum dtype t) {
    str_id o = {0};
    const char a_name[2] = {names[0]}, b_name[2] = {names[1]};
    struct quant_how how = QUANT_HOW(form == 2 ? DT_e5m2 : DT_e4m3, .whole = form != 1, .rows = 1);
    val_id a = build_quantize(g, product_param(g, a_name, DT_bf16, z[0], z[2]), VAL_NONE, &how, o);
    how.format = DT_e4m3;
    val_id b = build_quantize(g, product_param(g, b_name, DT_f32, z[1], z[2]), VAL_NONE, &how, o);
    return build_scaled_matmul(g, a, b, val_at(a, 1), val_at(b, 1), t, o);
}

static inline struct graph *product_codes_graph(struct ctx *c, const int64_t *size, int form) {
    struct graph *g = graph_create(c, product_names[PRODUCT_WIDE + form]);
    str_id o = {0};
    int64_t z[3];
    for (int k = 0; k < 3; k++) z[k] = (size[k] + 15) / 16 * 16;
    val_id y = product_codes(g, "ab", z, form, form >= 7 ? DT_f32 : DT_bf16);
    if (form >= 3) y = build_cast(g, y, DT_f32, o);
    if (form == 4 || form == 5)
        y = build_2(g, OP_add, y, build_cast(g, product_param(g, "s", DT_bf16, 0, z[1]), DT_f32, o),
                    o);
    if (form == 5)
        y = build_2(g, OP_add, y,
                    build_cast(g, product_param(g, "r", DT_bf16, z[0], z[1]), DT_f32, o), o);
    if (form == 4 || form == 5) y = build_cast(g, y, DT_bf16, o);
    if (form == 6)
        y = build_2(g, OP_add, y, build_cast(g, product_codes(g, "pq", z, 2, DT_bf16), DT_f32, o),
                    o);
    if (form == 7) y = build_2(g, OP_add, y, product_param(g, "s", DT_f32, 0, z[1]), o);
    if (form == 8)
        y = build_concat(g, (const val_id[]){product_param(g, "s", DT_f32, z[0], 5), y}, 2, 1, o);
    graph_add_output(g, "y", y);
    return g;
}

static inline struct graph *product_graph(struct ctx *c, int item) {
    const int64_t *z = product_sizes[item / PRODUCT_FORMS];
    int form = item % PRODUCT_FORMS;
    if (form >= PRODUCT_WIDE) return product_codes_graph(c, z, form - PRODUCT_WIDE);
    struct graph *g = graph_create(c, product_names[form]);
    str_id o = {0};
    enum dtype t = form == 5 ? DT_f32 : DT_bf16;
    val_id a = product_param(g, "a", t, z[0], z[2]), b = product_param(g, "b", t, z[2], z[1]);
    val_id y = build_matmul(g, a, b, false, false, o), wide = y;
    if (t == DT_bf16 && form) wide = build_cast(g, y, DT_f32, o);
    if (form == 4) {
        val_id p = product_param(g, "p", t, z[2], z[0]), q = product_param(g, "q", t, z[1], z[2]);
        val_id more = build_matmul(g, p, q, true, true, o);
        y = build_2(g, OP_add, wide, build_cast(g, more, DT_f32, o), o);
    } else if (form) {
        y = wide;
        val_id add[2] = {product_param(g, "s", t, 0, z[1]), product_param(g, "r", t, z[0], z[1])};
        int count = form == 1 || form == 6 ? 1 : form == 3 ? 0 : 2;
        for (int i = 0; i < count; i++)
            y = build_2(g, OP_add, y, t == DT_bf16 ? build_cast(g, add[i], DT_f32, o) : add[i], o);
        if (t == DT_bf16 && count) y = build_cast(g, y, DT_bf16, o);
        if (form == 6) y = product_gelu(g, y);
    }
    graph_add_output(g, "y", y);
    return g;
}

#endif
