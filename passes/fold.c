// SPDX-License-Identifier: Apache-2.0
/* fold.c - evaluate what depends on constants only, through the evaluator that the driver lends.
 *
 * before:
 *   %a = const {init = f32 [2.0]}     : f32[]
 *   %b = exp(%a)                      : f32[]
 *   %y = mul(%x, %b)                  : f32[4]
 * after:
 *   %b = const {init = f32 [7.389056]} : f32[]
 *   %y = mul(%x, %b)                   : f32[4]
 *
 * needs   topological order, types
 * breaks  every id held outside (settle compacts)
 * order   first: rules look for constants. All foldable values that something else needs are
 * computed in one evaluation. Results over FOLD_BYTES stay unevaluated when their operands are
 * smaller (an expanded mask would cost memory that computing it does not). A single matrix may be
 * larger: attention masks are recognised by their elements, and then nothing of them stays. */
#include "passes/pass.h"
#include <stdio.h>
#include <string.h>

enum { FOLD_BYTES = 1 << 20, MATRIX_BYTES = 1 << 26 };

static int64_t node_in_bytes(const struct graph *g, node_id n) {
    int64_t sum = 0;
    for (int k = 0; k < graph_node(g, n)->nin; k++) {
        int64_t b = type_bytes(val_type(g, node_in(g, n, k)));
        if (b > 0) sum += b;
    }
    return sum;
}

/* One matrix, perhaps with leading axes of size 1. */
static bool is_matrix(const struct type *t) {
    for (int k = 0; k < t->rank - 2; k++)
        if (t->dims[k] != 1) return false;
    return t->rank >= 2;
}

/* A node whose results can be computed now. Views of big constants are left alone: they are free.
 */
static bool foldable(const struct graph *g, node_id n, const bool *constant) {
    const struct node *node = graph_node(g, n);
    enum op op = (enum op)node->op;
    if (op == OP_const) {
        blob_id b = attr_blob(g, n, ATTR_init);
        return graph_get_blob(g, b)->data != NULL;
    }
    if (op_info(op)->traits & EFFECT) return false;
    int64_t out = 0;
    for (int k = 0; k < node->nout; k++) {
        const struct type *t = val_type(g, node_out(g, n, k));
        if (!type_static(t) || type_bytes(t) < 0) return false;
        out += type_bytes(t);
    }
    for (int k = 0; k < node->nin; k++)
        if (!constant[val_def(g, node_in(g, n, k)).i]) return false;
    bool matrix = node->nout == 1 && is_matrix(val_type(g, node_out(g, n, 0)));
    return out <= (matrix ? MATRIX_BYTES : FOLD_BYTES) || out <= node_in_bytes(g, n);
}

/* Copy node n of g into `to`; `map` gives the copies of its operands. */
static void copy_node(const struct graph *g, node_id n, struct graph *to, val_id *map) {
    const struct node *node = graph_node(g, n);
    val_id *in = ARENA_ARRAY(&to->arena, val_id, node->nin);
    for (int k = 0; k < node->nin; k++) in[k] = map[node_in(g, n, k).i];
    const struct attr *list;
    int count = attr_list(g, n, &list);
    struct attr *attrs = ARENA_ARRAY(&to->arena, struct attr, (size_t)count);
    for (int k = 0; k < count; k++) {
        attrs[k] = list[k];
        if (attr_kind(list[k].key) == AK_BLOB && list[k].blob.i) {
            const struct blob *b = graph_get_blob(g, list[k].blob);
            attrs[k].blob = graph_blob(to, b->data, b->bytes, false);
        }
    }
    val_id first;
    str_id origin = intern(&to->strings, node_origin(g, n));
    if (op_info((enum op)node->op)->traits & SOURCE)
        first = graph_source(to, (enum op)node->op, val_type(g, node_out(g, n, 0)), attrs, count,
                             origin);
    else
        first = graph_add(to, (enum op)node->op, in, node->nin, attrs, count, origin);
    for (int k = 0; k < node->nout; k++) map[node_out(g, n, k).i] = val_at(first, k);
}

/* True for a value that stays as it is: already a constant, or a generator that is cheaper kept. */
static bool keep(enum op op) {
    return op == OP_const || op == OP_full || op == OP_iota;
}

/* The foldable values that a non-foldable node, an output or an update reads. */
static uint32_t collect(const struct graph *g, const bool *constant, struct arena *scratch,
                        val_id *wanted) {
    uint32_t n = 0;
    bool *seen = ARENA_ARRAY(scratch, bool, g->values.n);
    struct uses uses = uses_build(g, scratch);
    for (uint32_t v = 1; v < g->values.n; v++) {
        node_id def = g->values.at[v].def;
        if (!constant[def.i] || keep((enum op)graph_node(g, def)->op) || seen[v]) continue;
        bool needed = uses.live_out[v];
        for (uint32_t u = uses.first[v]; u < uses.first[v + 1] && !needed; u++)
            needed = !constant[uses.user[u].i];
        if (!needed) continue;
        seen[v] = true;
        wanted[n++] = (val_id){v};
    }
    return n;
}

static void destroy(void *part) {
    graph_destroy(part);
}

/* The part of g that `wanted` depends on, as a graph without inputs; it lives as long as `scratch`.
 */
static struct graph *extract(const struct graph *g, const val_id *wanted, uint32_t n,
                             struct arena *scratch) {
    bool *need = ARENA_ARRAY(scratch, bool, g->nodes.n);
    for (uint32_t i = 0; i < n; i++) need[val_def(g, wanted[i]).i] = true;
    for (uint32_t i = g->nodes.n - 1; i > 0; i--) {
        if (!need[i]) continue;
        for (int k = 0; k < graph_node(g, (node_id){i})->nin; k++)
            need[val_def(g, node_in(g, (node_id){i}, k)).i] = true;
    }
    struct graph *part = graph_create(g->ctx, "fold");
    arena_defer(scratch, destroy, part);
    val_id *map = ARENA_ARRAY(scratch, val_id, g->values.n);
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (need[i]) copy_node(g, (node_id){i}, part, map);
    for (uint32_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "%u", i);
        graph_add_output(part, name, map[wanted[i].i]);
    }
    return part;
}

enum status pass_fold(struct pass_ctx *c, struct graph *g) {
    bool *constant = ARENA_ARRAY(c->scratch, bool, g->nodes.n);
    for (uint32_t i = 1; i < g->nodes.n; i++) constant[i] = foldable(g, (node_id){i}, constant);
    val_id *wanted = ARENA_ARRAY(c->scratch, val_id, g->values.n);
    uint32_t n = collect(g, constant, c->scratch, wanted);
    if (!n) return ST_OK;

    struct graph *part = extract(g, wanted, n, c->scratch);
    const void **results = ARENA_ARRAY(c->scratch, const void *, n);
    TRY(c->eval(c->eval_user, part, c->scratch, results));
    for (uint32_t i = 0; i < n; i++) {
        struct type type = *val_type(g, wanted[i]);
        str_id origin = graph_node(g, val_def(g, wanted[i]))->origin;
        graph_forward(g, wanted[i], build_const(g, &type, results[i], origin));
    }
    graph_settle(g);
    return ST_OK;
}
