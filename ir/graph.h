// SPDX-License-Identifier: Apache-2.0
/* graph.h - the graph IR: what is computed. Ids instead of pointers, records in growing arrays, all
 * memory in the graph's own arena. Not how or where it is computed: that is the plan (plan.h).
 *
 * Invariants between passes (graph_verify): nodes are in topological order; every value has one
 * defining node; id 0 of every table means none; value names are unique; the result types equal
 * what infer.c derives. There is no control flow.
 *
 * A rewrite appends nodes and calls graph_forward(old, new); it never edits users. One graph_settle
 * at the end of the pass resolves forwarded values, drops what no output or update needs, restores
 * a stable topological order and compacts the ids (which invalidates every id held outside). */
#ifndef LATHE_IR_GRAPH_H
#define LATHE_IR_GRAPH_H

#include "ir/types.h"

enum op {
    OP_NONE,
#define OP(id, ...) OP_##id,
#include "ir/ops.def"
#undef OP
    OP_COUNT
};

enum op_trait { EW = 1, COMM = 2, SOURCE = 4, VIEW = 8, PURE0 = 16, EFFECT = 32 };

struct op_info {
    const char *name;
    int min_in, max_in, outs; /* max_in OP_ANY: variadic */
    unsigned traits;
    const char *lower, *emit, *attrs;
};
enum { OP_ANY = 255 };
const struct op_info *op_info(enum op op);
enum op op_from_name(const char *s, size_t n); /* OP_NONE when unknown */

/* ---- attributes --------------------------------------------------------------------------- */
enum attr_kind { AK_INT, AK_FLOAT, AK_BOOL, AK_INTS, AK_DIMS, AK_DTYPE, AK_STR, AK_BLOB };
enum attr_key {
    ATTR_NONE,
#define ATTR(name, kind) ATTR_##name,
#include "ir/attrs.def"
#undef ATTR
    ATTR_COUNT
};
enum attr_kind attr_kind(enum attr_key k);
const char *attr_name(enum attr_key k);
enum attr_key attr_from_name(const char *s, size_t n);

typedef struct {
    uint32_t i;
} attr_id, val_id, node_id, blob_id;
#define VAL_NONE  ((val_id){0})
#define BLOB_NONE ((blob_id){0})

/* One attribute as given to a builder; lists are copied. INTS and DIMS both use list/n. */
struct attr {
    enum attr_key key;
    int64_t i;           /* INT, BOOL, DTYPE (enum dtype) */
    double f;            /* FLOAT */
    const char *s;       /* STR */
    const int64_t *list; /* INTS, DIMS */
    int n;
    blob_id blob; /* BLOB */
};

/* ---- records ------------------------------------------------------------------------------ */
struct node {
    uint16_t op; /* enum op */
    uint16_t nin, nout;
    uint32_t first_in;  /* into graph.operands */
    uint32_t first_out; /* value id of output 0; outputs are consecutive */
    attr_id attrs;
    str_id origin; /* ONNX node name(s), "; "-separated when several were merged */
};
struct value {
    type_id type;
    node_id def;
    str_id name; /* unique, or empty */
};

/* Constant bytes: a view into a mapped file or the graph's arena, kept alive by whoever owns the
 * file (the importer ties the mapping to the graph's arena). `data` is NULL for a blob known only
 * by hash (a parsed dump of a large constant). */
struct blob {
    const void *data; /* packed little-endian elements; alignment 1 */
    size_t bytes;
    uint64_t hash;
};

struct graph_output {
    str_id name;
    val_id value;
};
/* After a whole step is computed, `target` (the value of a param or state node) takes the value of
 * `next`. Reads within the step see the old value. */
struct graph_update {
    val_id target, next;
};

struct graph;
/* One attribute that an op takes; `value` is the default unless it is required. */
struct op_attr {
    bool required;
    struct attr value; /* value.key is set in any case */
};
/* All that an op takes, in the order of ops.def. */
int op_attrs(const struct graph *g, enum op op, const struct op_attr **out);

struct attr_record; /* private to attrs.c */
struct op_spec;     /* the parsed attrs column of ops.def, private to optab.c */
struct graph {
    struct ctx *ctx;
    struct arena arena;
    struct interner strings;
    struct dims_table *dims;
    str_id name;
    VEC(struct type) types;
    VEC(struct attr_record *) attr_records;
    VEC(struct blob) blobs;
    VEC(struct node) nodes;   /* [0] unused */
    VEC(struct value) values; /* [0] unused */
    VEC(val_id) operands;
    VEC(struct graph_output) outputs;
    VEC(struct graph_update) updates;
    VEC(val_id) forward; /* value -> replacement or itself; see graph_forward */
    struct map type_map, attr_map, blob_map, name_map;
    const struct op_spec *specs;
};

struct graph *graph_create(struct ctx *c, const char *name);
void graph_destroy(struct graph *g); /* NULL is a no-op */
struct graph *
graph_clone(const struct graph *g); /* blob data is shared: g must outlive the clone */

/* ---- building ------------------------------------------------------------------------------ */
type_id graph_type(struct graph *g, const struct type *t);
/* The blob of these bytes; copied into the arena when `copy`, else they must outlive the graph.
 * Equal content gives an equal id only for blobs up to 4 KiB: large weights are never merged. */
blob_id graph_blob(struct graph *g, const void *data, size_t bytes, bool copy);
/* A large blob with a given hash (0: computed when needed by graph_blob_hash). */
const struct blob *graph_get_blob(const struct graph *g, blob_id b);
/* A blob known only by size and hash: data is NULL. */
blob_id graph_blob_by_hash(struct graph *g, size_t bytes, uint64_t hash);
/* Never 0; hashes the data on the first call. */
uint64_t graph_blob_hash(const struct graph *g, blob_id b);

/* Append a node; infers the result types. On failure reports a diagnostic with `origin` and returns
 * a status. `*out` is output 0. Attributes not given take the op's default; unknown ones are
 * errors. */
enum status graph_try_add(struct graph *g, enum op op, const val_id *in, int nin,
                          const struct attr *attrs, int nattr, const char *origin,
                          val_id *out) MUST_USE;
/* The same for SOURCE ops, whose type is given. */
enum status graph_try_source(struct graph *g, enum op op, const struct type *t,
                             const struct attr *attrs, int nattr, const char *origin,
                             val_id *out) MUST_USE;
/* For passes that build only legal nodes: unwinds with INTERNAL when inference refuses. */
val_id graph_add(struct graph *g, enum op op, const val_id *in, int nin, const struct attr *attrs,
                 int nattr, str_id origin);
val_id graph_source(struct graph *g, enum op op, const struct type *t, const struct attr *attrs,
                    int nattr, str_id origin);
/* Output k of the node that defines output 0 `first`. */
static inline val_id val_at(val_id first, int k) {
    return (val_id){first.i + (uint32_t)k};
}
/* Set the name users see; made unique with a suffix ".1", ".2" when taken. */
void graph_set_name(struct graph *g, val_id v, const char *name);
void graph_add_output(struct graph *g, const char *name, val_id v);
void graph_add_update(struct graph *g, val_id target, val_id next);

/* ---- reading ------------------------------------------------------------------------------- */
static inline const struct node *graph_node(const struct graph *g, node_id n) {
    return &g->nodes.at[n.i];
}
static inline const struct type *val_type(const struct graph *g, val_id v) {
    return &g->types.at[g->values.at[v.i].type.i];
}
static inline node_id val_def(const struct graph *g, val_id v) {
    return g->values.at[v.i].def;
}
static inline enum op val_op(const struct graph *g, val_id v) {
    return (enum op)g->nodes.at[g->values.at[v.i].def.i].op;
}
/* Operand k, with pending forwards resolved; VAL_NONE when absent. */
val_id node_in(const struct graph *g, node_id n, int k);
static inline val_id node_out(const struct graph *g, node_id n, int k) {
    return (val_id){g->nodes.at[n.i].first_out + (uint32_t)k};
}
/* Follows forwards, shortening them on the way: not for two threads at once. */
val_id graph_resolve(const struct graph *g, val_id v);
const char *val_name(const struct graph *g, val_id v);     /* "" when unnamed */
const char *node_origin(const struct graph *g, node_id n); /* "" when none */
val_id graph_find(const struct graph *g,
                  const char *name); /* by value name; VAL_NONE when absent */

/* Attribute of a node (its value or the op's default). The key must belong to the op and have the
 * asked kind, else INTERNAL. Returned lists and strings live as long as the graph. */
int64_t attr_int(const struct graph *g, node_id n, enum attr_key k);
bool attr_bool(const struct graph *g, node_id n, enum attr_key k);
double attr_float(const struct graph *g, node_id n, enum attr_key k);
const int64_t *attr_ints(const struct graph *g, node_id n, enum attr_key k, int *count);
const dim *attr_dims(const struct graph *g, node_id n, enum attr_key k, int *count);
enum dtype attr_dtype(const struct graph *g, node_id n, enum attr_key k);
const char *attr_str(const struct graph *g, node_id n, enum attr_key k);
blob_id attr_blob(const struct graph *g, node_id n, enum attr_key k); /* BLOB_NONE when "none" */
/* All attributes that differ from the defaults, sorted by key, as builder input (for cloning). */
int attr_list(const struct graph *g, node_id n, const struct attr **out);
/* Change the attributes of a SOURCE node in place (parameter decisions). */
void node_set_attr(struct graph *g, node_id n, const struct attr *a);

/* ---- rewriting ----------------------------------------------------------------------------- */
/* From now on `old` means `new` (same type, else INTERNAL). The name moves along if new has none.
 */
void graph_forward(struct graph *g, val_id old_value, val_id new_value);
/* See the head of this file. Sources named input/param/state are kept even when unused: they are
 * the graph's interface. Returns true when anything changed. */
bool graph_settle(struct graph *g);
/* The same, with the nodes from `first_new` on, in their order, in front of node `before`. */
bool graph_settle_at(struct graph *g, uint32_t first_new, node_id before);
/* As graph_settle; each of nodes [first, end) stands right behind the last of its operands. */
bool graph_settle_early(struct graph *g, uint32_t first, uint32_t end);
/* The same, and node first + k not in front of where node after[k] is or, replaced, was. */
bool graph_settle_behind(struct graph *g, uint32_t first, uint32_t end, const uint32_t *after);

/* uses: for value v, the using nodes are user[first[v] .. first[v+1]). Order is node order; a node
 * that uses v twice is listed twice. Outputs and updates are not listed; `live_out[v]` says v is
 * one. */
struct uses {
    uint32_t *first;
    node_id *user;
    bool *live_out;
};
struct uses uses_build(const struct graph *g, struct arena *scratch);

/* ---- checks, inference, cost ---------------------------------------------------------------- */
/* Reports every violated invariant; `stage` names the pass in the message. */
enum status graph_verify(const struct graph *g, const char *stage) MUST_USE;
/* Result types of an op applied to operand types; used by the builder and the verifier. */
struct infer {
    struct graph *g;
    enum op op;
    int nin;
    const struct type *in;    /* nin operand types */
    const struct attr *attrs; /* complete: defaults filled in, indexed by attr_key */
    const char *origin;
    struct type *out; /* op_info.outs results; of a SOURCE op, out[0] is the given type */
};
enum status infer_types(struct infer *x) MUST_USE;
/* numpy broadcast of two shapes; false when they do not fit. A symbol only fits itself or 1. */
bool type_broadcast(const struct type *a, const struct type *b, struct type *out);

struct cost {
    double flops;      /* multiply-add counts two; transcendental counts one */
    double bytes_read; /* operands once, results once */
    double bytes_written;
};
struct cost node_cost(const struct graph *g, node_id n); /* zeros when symbolic */

/* ---- text form (docs/IR.md has the grammar) -------------------------------------------------- */
struct text_options {
    bool no_locs;
    bool full; /* write constants of any size inline */
};
void graph_print(const struct graph *g, const struct text_options *opt, struct buf *out);
enum status graph_parse(struct ctx *c, const char *text, size_t n, const char *file,
                        struct graph **out) MUST_USE;
/* Same structure, types, attributes, names, origins; blobs by hash and size. */
bool graph_equal(const struct graph *a, const struct graph *b);

#endif
