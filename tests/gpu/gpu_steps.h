// SPDX-License-Identifier: Apache-2.0
/* gpu_steps.h - graphs of one optimizer step over tensors of odd sizes, joined in one launch, also
 * with 8-bit states, of scatters whose rows are named by few, many and most of the indices, of
 * casts of many tensors, and of quantization; results are outputs. */
#ifndef LATHE_TESTS_GPU_STEPS_H
#define LATHE_TESTS_GPU_STEPS_H

#include "quantize_graph.h"
#include "small_graph.h"

static const int64_t step_sizes[] = {1, 3, 17, 127, 129, 1000, 4097, 8192, 8193, 70001};
enum { STEP_SIZES = sizeof step_sizes / sizeof step_sizes[0] };
#define STEP(op, real, gradient, clip, mixed)                                                      \
    { OP_##op, DT_##real, DT_##gradient, clip, mixed, true, true, step_sizes, STEP_SIZES, false }
static const struct step_case step_cases[] = {
    STEP(adam, f32, f32, false, false),
    STEP(adam, f32, f32, true, false),
    STEP(adam, f32, bf16, false, false),
    STEP(adam, f32, bf16, true, true),
    STEP(adam, f32, f16, true, true),
    STEP(adam, f64, f64, false, false),
    STEP(sgd, f32, f32, false, false),
    STEP(sgd, f32, bf16, true, true),
    STEP(sgd, f64, f64, false, false),
    {OP_adam, DT_f32, DT_bf16, true, false, true, true, step_sizes, STEP_SIZES, true}};
#undef STEP
/* updates, rows, columns; of 10 updates, `often` go to row 1 */
static const struct {
    enum dtype dtype;
    int64_t n, rows, cols;
    int often;
} scatter_cases[] = {{DT_f32, 5000, 3001, 264, 0},  {DT_bf16, 5000, 3001, 264, 0},
                     {DT_bf16, 5000, 40, 768, 0},   {DT_bf16, 6001, 301, 131, 7},
                     {DT_f32, 6001, 301, 130, 7},   {DT_f32, 33, 1, 7, 0},
                     {DT_bf16, 20000, 9, 2050, 10}, {DT_f64, 4000, 17, 67, 3}};
enum {
    STEP_CASES = sizeof step_cases / sizeof step_cases[0],
    SCATTER_CASES = sizeof scatter_cases / sizeof scatter_cases[0],
    CAST_CASES = 2,
    OTHER_ITEMS = STEP_CASES + SCATTER_CASES + CAST_CASES,
    QUANT_FIRST = OTHER_ITEMS + SMALL_CASES,
    STEP_ITEMS = QUANT_FIRST + QUANT_ITEMS
};

static inline struct graph *scatter_graph(struct ctx *x, int k) {
    struct graph *g = graph_create(x, "scatter");
    int64_t n = scatter_cases[k].n, rows = scatter_cases[k].rows;
    struct type it = {.dtype = DT_i64, .rank = 1, .dims = {n}};
    struct type ut = {
        .dtype = scatter_cases[k].dtype, .rank = 2, .dims = {n, scatter_cases[k].cols}};
    size_t size = dtype_size(ut.dtype), count = (size_t)type_count(&ut);
    int64_t *idx = ARENA_ARRAY(&g->arena, int64_t, (size_t)n);
    char *data = ARENA_ARRAY(&g->arena, char, count *size);
    uint64_t seed = (uint64_t)k + 5;
    str_id o = {0};
    for (int64_t i = 0; i < n; i++) {
        bool often = step_value(&seed, true) * 10 < scatter_cases[k].often;
        idx[i] = often ? 1 : (int64_t)(step_value(&seed, true) * (double)rows);
        if (i % 3 == 0) idx[i] -= rows; /* the same row, from the end */
    }
    for (size_t i = 0; i < count; i++)
        dtype_store(ut.dtype, data + i * size, step_value(&seed, false));
    struct attr a[2][2] = {
        {{.key = ATTR_name, .s = "idx"},
         {.key = ATTR_init, .blob = graph_blob(g, idx, (size_t)n * sizeof *idx, false)}},
        {{.key = ATTR_name, .s = "updates"},
         {.key = ATTR_init, .blob = graph_blob(g, data, count * size, false)}}};
    val_id in[2] = {graph_source(g, OP_state, &it, a[0], 2, o),
                    graph_source(g, OP_state, &ut, a[1], 2, o)};
    int64_t shape[2] = {rows, scatter_cases[k].cols};
    struct attr axis[2] = {{.key = ATTR_axis, .i = 0}, {.key = ATTR_shape, .list = shape, .n = 2}};
    graph_add_output(g, "y", graph_add(g, OP_scatter_rows, in, 2, axis, 2, o));
    graph_settle(g);
    return g;
}

/* Weights as bf16 or f16; of every other one, all but the first element, which is not aligned. */
static inline struct graph *cast_graph(struct ctx *x, int k) {
    struct graph *g = graph_create(x, "casts");
    struct step_case c = {.random = true, .sizes = step_sizes, .n = STEP_SIZES};
    uint64_t seed = (uint64_t)k + 9;
    str_id o = {0};
    for (int i = 0; i < STEP_SIZES; i++) {
        val_id w = step_state(g, &c, "w", i, DT_f32, &seed);
        if (i % 2) w = build_slice(g, w, (dim[]){1}, (dim[]){step_sizes[i] - 1}, NULL, o);
        w = build_cast(g, w, k ? DT_f16 : DT_bf16, o);
        graph_add_output(g, arena_printf(&g->arena, "y%d", i), w);
    }
    graph_settle(g);
    return g;
}

static inline struct graph *step_item_graph(struct ctx *x, int item) {
    if (item >= QUANT_FIRST) return quant_item_graph(x, item - QUANT_FIRST);
    if (item >= OTHER_ITEMS) return small_graph(x, &small_cases[item - OTHER_ITEMS]);
    if (item < STEP_CASES) return step_graph(x, &step_cases[item]);
    item -= STEP_CASES;
    return item < SCATTER_CASES ? scatter_graph(x, item) : cast_graph(x, item - SCATTER_CASES);
}

static inline const char *step_item_name(int item) {
    if (item < STEP_CASES) return "step";
    if (item >= QUANT_FIRST) return "quantize";
    if (item >= OTHER_ITEMS) return "8-bit states";
    return item < STEP_CASES + SCATTER_CASES ? "scatter" : "cast";
}

/* Of the largest element. Sums of bf16 are rounded once, but add in another order on the CPU. */
static inline double step_tolerance(int item) {
    if (item >= QUANT_FIRST) return 0;
    if (item < STEP_CASES || item >= OTHER_ITEMS) return 2e-6;
    if (item >= STEP_CASES + SCATTER_CASES) return 0; /* the same bits */
    return scatter_cases[item - STEP_CASES].dtype == DT_bf16 ? 8e-3 : 2e-5;
}

/* Output `name` has the same bits on both: states of 8 bits, and what belongs to them; codes. NaN
 * has many. */
static inline bool step_exact(int item, const char *name) {
    if (item >= QUANT_FIRST) return strncmp(name, "codes", 5) == 0;
    return item >= OTHER_ITEMS && name[0] != 'w';
}

#endif
