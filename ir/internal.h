// SPDX-License-Identifier: Apache-2.0
/* internal.h - what the files of ir/ that own the graph's records share. Private to ir/. */
#ifndef LATHE_IR_INTERNAL_H
#define LATHE_IR_INTERNAL_H

#include "ir/graph.h"

struct op_spec {
    int n;
    const struct op_attr *at;
};
/* The parsed attrs column of ops.def, indexed by op. Unwinds when a row is malformed. */
const struct op_spec *op_specs_parse(struct arena *a);
/* How `op` takes attribute k, or NULL. */
const struct op_attr *op_attr_find(const struct graph *g, enum op op, enum attr_key k);

/* An interned set of attributes that differ from their op's defaults, sorted by key. */
struct attr_record {
    int n;
    struct attr at[];
};
void attrs_init(struct graph *g);
/* Check `attrs` against what op takes and intern them. */
enum status attrs_intern(struct graph *g, enum op op, const struct attr *attrs, int nattr,
                         const char *origin, attr_id *out) MUST_USE;
/* Fill all[ATTR_COUNT] with the attributes of `id` and the defaults of `op`; the rest is zero. */
void attrs_complete(const struct graph *g, enum op op, attr_id id, struct attr *all);
void attrs_clone(const struct graph *from, struct graph *to);

/* Parts of the text form (print.c): "%x", and "axis = 1" of a node whose first result has type t.
 */
void text_value(const struct graph *g, val_id v, struct buf *out);
void text_attr(const struct graph *g, const struct attr *a, enum dtype t, struct buf *out);

/* The graph's arena: internal tables may grow while the graph reads as const. */
static inline struct graph *graph_mutable(const struct graph *g) {
    return (struct graph *)(uintptr_t)g;
}

#endif
