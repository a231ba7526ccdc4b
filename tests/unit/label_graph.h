// SPDX-License-Identifier: Apache-2.0
/* label_graph.h - graphs of cross entropy in every float type and number of classes, and of gathers
 * by labels; a label may be ignored or wrong. Results are outputs, nothing is differentiated. */
#ifndef LATHE_TEST_LABEL_GRAPH_H
#define LATHE_TEST_LABEL_GRAPH_H

#include "ir/build.h"
#include "step_graph.h"

static const int64_t label_classes[] = {1, 2, 3, 17, 127, 128, 129, 1000, 4097, 50257};
static const enum dtype label_types[] = {DT_f32, DT_f64, DT_bf16, DT_f16};
enum {
    LABEL_CLASSES = sizeof label_classes / sizeof label_classes[0],
    LABEL_TYPES = sizeof label_types / sizeof label_types[0],
    ENTROPY_ITEMS = LABEL_CLASSES * LABEL_TYPES,
    LABEL_ROWS = 7,
    WRONG_LABEL = 5, /* position */
    LABEL_KINDS = 4, /* cross entropy; gather; each with a wrong label */
    LABEL_ITEMS = ENTROPY_ITEMS + 3 * LABEL_CLASSES
};

static inline int label_kind(int item) {
    return item < ENTROPY_ITEMS ? 0 : 1 + (item - ENTROPY_ITEMS) / LABEL_CLASSES;
}
static inline bool label_wrong(int item) {
    return label_kind(item) >= 2;
}
static inline enum dtype label_type(int item) {
    return item < ENTROPY_ITEMS    ? label_types[item / LABEL_CLASSES]
           : label_kind(item) == 3 ? DT_bf16
                                   : DT_f32;
}

static inline val_id label_state(struct graph *g, const char *name, const struct type *t,
                                 const void *data) {
    size_t bytes = (size_t)type_count(t) * dtype_size(t->dtype);
    struct attr a[2] = {{.key = ATTR_name, .s = name},
                        {.key = ATTR_init, .blob = graph_blob(g, data, bytes, false)}};
    return graph_source(g, OP_state, t, a, 2, (str_id){0});
}

/* Of kind 2 the gather and of kind 3 the cross entropy has a wrong label, and one more after it. */
static inline struct graph *label_graph(struct ctx *x, int item) {
    int64_t n = label_classes[item % LABEL_CLASSES];
    int kind = label_kind(item);
    bool gather = kind == 1 || kind == 2;
    struct graph *g = graph_create(x, gather ? "gather" : "entropy");
    str_id o = intern(&g->strings, "/labels");
    int64_t *label = ARENA_ARRAY(&g->arena, int64_t, LABEL_ROWS);
    for (int64_t i = 0; i < LABEL_ROWS; i++) label[i] = i == 2 ? -100 : i == 1 ? n - 1 : i * 37 % n;
    if (label_wrong(item)) label[WRONG_LABEL] = n, label[LABEL_ROWS - 1] = -1;
    struct type lt = {.dtype = DT_i64, .rank = 1, .dims = {LABEL_ROWS}};
    struct type t = {.dtype = label_type(item), .rank = 2, .dims = {LABEL_ROWS, n}};
    if (gather) t.dims[0] = n, t.dims[1] = 5;
    size_t size = dtype_size(t.dtype), count = (size_t)type_count(&t);
    char *data = ARENA_ARRAY(&g->arena, char, count *size);
    uint64_t seed = (uint64_t)item + 11;
    for (size_t i = 0; i < count; i++)
        dtype_store(t.dtype, data + i * size, 8 * step_value(&seed, false));
    val_id in[2] = {label_state(g, "x", &t, data), label_state(g, "labels", &lt, label)};
    struct attr attrs[3] = {{.key = ATTR_axis, .i = 0},
                            {.key = ATTR_labels, .i = true},
                            {.key = ATTR_ignore_index, .i = -100}};
    val_id y = gather ? graph_add(g, OP_gather, in, 2, attrs, 3, o)
                      : graph_add(g, OP_cross_entropy, in, 2, &attrs[2], 1, o);
    graph_add_output(g, "y", y);
    if (!gather) graph_add_output(g, "lse", val_at(y, 1));
    graph_settle(g);
    return g;
}

#endif
