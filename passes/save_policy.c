// SPDX-License-Identifier: Apache-2.0
/* save_policy.c - what is kept between forward and backward part. A value that only the backward
 * part still needs, and that is a short elementwise chain over what is kept anyway (operands of
 * other gradients, row statistics, parameters), is computed again there: it then dies in the
 * forward part.
 *
 * before:
 *   %h = matmul(%x, %w)
 *   %a = gelu(%h)
 *   %y = matmul(%a, %v)                      .. loss ..
 *   %dv = matmul(%a, %dy) {trans_a}
 *   %dh = ..elementwise(%h, %da)
 * after:
 *   %h = matmul(%x, %w)
 *   %a = gelu(%h)
 *   %y = matmul(%a, %v)                      .. loss ..
 *   %b = gelu(%h)
 *   %dv = matmul(%b, %dy) {trans_a}
 *   %dh = ..elementwise(%h, %da)
 *
 * needs   an output "loss": what comes before it is the forward part
 * breaks  every id held outside
 * order   after cse2 and chunk_loss; nothing that merges equal nodes may follow
 * Products, attention and reductions are never computed again, nor is anything whose copy would be
 * a launch of its own: some node of the backward part has to walk over the same elements. The
 * copies have the operands of the originals, so all results stay the same, bit for bit. A recipe
 * may say how many bytes may be kept: then the first layers, whose values live longest, go first.
 */
#include "passes/save_policy.h"
#include "passes/saver.h"
#include <string.h>

enum { CHAIN_MAX = 24, LEAVES_MAX = 8, SMALL = 16 };
static const int64_t bytes_min = SAVER_BYTES_MIN;

/* What one value is computed from. */
struct chain {
    uint32_t nodes[CHAIN_MAX], n;
    val_id leaves[LEAVES_MAX]; /* large ones */
    uint32_t nleaves;
    int64_t more; /* bytes that would have to be kept in addition */
};

/* ---- values -------------------------------------------------------------------------------- */
int64_t saver_bytes(const struct graph *g, val_id v) {
    const struct type *t = val_type(g, v);
    return type_static(t) ? type_bytes(t) : 0;
}

static bool is_view(enum op op) {
    return op_info(op)->traits & VIEW;
}

static bool elementwise(enum op op) {
    return (op_info(op)->traits & EW) && !(op_info(op)->traits & EFFECT);
}

/* A cast that loses nothing: its operand is what is kept. */
bool saver_widens(const struct graph *g, val_id v) {
    if (val_op(g, v) != OP_cast) return false;
    enum dtype from = val_type(g, node_in(g, val_def(g, v), 0))->dtype, to = val_type(g, v)->dtype;
    return dtype_is_float(from) && dtype_is_float(to) && dtype_size(from) < dtype_size(to);
}

bool saver_walks(enum op op) {
    return elementwise(op) || (op >= OP_reduce_sum && op <= OP_reduce_prod);
}

/* A norm that only elementwise nodes and reductions read is computed from its operand and row
 * statistics by each of them. */
bool saver_norm(const struct saver *s, val_id v) {
    enum op op = val_op(s->g, v);
    if (op != OP_layer_norm && op != OP_rms_norm) return false;
    if (v.i != node_out(s->g, val_def(s->g, v), 0).i || s->uses.live_out[v.i]) return false;
    for (uint32_t u = s->uses.first[v.i]; u < s->uses.first[v.i + 1]; u++)
        if (!saver_walks((enum op)graph_node(s->g, s->uses.user[u])->op)) return false;
    return true;
}

/* What is in memory when v is kept. */
val_id saver_base(const struct saver *s, val_id v) {
    CHECK(s->g->ctx, v.i < s->nvalues); /* uses are of the graph as it was */
    while (is_view(val_op(s->g, v)) || saver_widens(s->g, v) || saver_norm(s, v))
        v = node_in(s->g, val_def(s->g, v), 0);
    return v;
}

bool saver_forward(const struct saver *s, val_id v) {
    return v.i < s->nvalues && val_def(s->g, v).i <= s->loss;
}

bool saver_find(struct saver *s, struct arena *scratch) {
    struct graph *g = s->g;
    s->loss = 0;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        if (strcmp(interned(&g->strings, g->outputs.at[k].name), "loss") == 0)
            s->loss = val_def(g, graph_resolve(g, g->outputs.at[k].value)).i;
    if (s->loss == 0) return false;
    s->nvalues = g->values.n;
    s->uses = uses_build(g, scratch);
    s->used = ARENA_ARRAY(scratch, bool, s->nvalues);
    s->again = ARENA_ARRAY(scratch, bool, s->nvalues);
    s->chain = ARENA_ARRAY(scratch, bool, s->nvalues);
    s->copy = ARENA_ARRAY(scratch, val_id, s->nvalues);
    for (uint32_t i = s->loss + 1; i < g->nodes.n; i++)
        for (int k = 0; k < graph_node(g, (node_id){i})->nin; k++) {
            val_id v = node_in(g, (node_id){i}, k);
            if (saver_forward(s, v)) s->used[saver_base(s, v).i] = true;
        }
    for (uint32_t v = 1; v < s->nvalues; v++)
        if (s->uses.live_out[v] && saver_forward(s, (val_id){v}))
            s->used[saver_base(s, (val_id){v}).i] = true;
    return true;
}

/* ---- what pays ------------------------------------------------------------------------------- */
static bool add_leaf(const struct saver *s, struct chain *c, val_id v, int64_t bytes) {
    val_id b = saver_base(s, v);
    bool kept = s->used[b.i] && !s->again[b.i];
    bool large = saver_bytes(s->g, b) > bytes / SMALL;
    if (!kept) c->more += saver_bytes(s->g, b);
    for (uint32_t k = 0; k < c->nleaves; k++)
        if (c->leaves[k].i == b.i) return true;
    if (!large) return true;
    if (c->nleaves == LEAVES_MAX) return false;
    c->leaves[c->nleaves++] = b;
    return true;
}

/* Operand v of a chain for a value of `bytes`. */
static bool follow(const struct saver *s, struct chain *c, val_id v, int64_t bytes) {
    enum op op = val_op(s->g, v);
    val_id b = saver_base(s, v);
    uint32_t def = val_def(s->g, v).i;
    double x;
    if ((op_info(op)->traits & SOURCE) || val_uniform(s->g, v, &x)) return true;
    bool kept = s->used[b.i] && !s->again[b.i];
    bool open = elementwise(op) || is_view(op);
    if (kept || !open || saver_norm(s, v) || saver_bytes(s->g, b) <= bytes / SMALL)
        return add_leaf(s, c, v, bytes);
    for (uint32_t k = 0; k < c->n; k++)
        if (c->nodes[k] == def) return true;
    if (c->n == CHAIN_MAX) return false;
    c->nodes[c->n++] = def;
    return true;
}

static bool find_chain(const struct saver *s, val_id v, struct chain *c) {
    *c = (struct chain){.n = 1, .nodes = {val_def(s->g, v).i}};
    for (uint32_t k = 0; k < c->n; k++) {
        node_id n = {c->nodes[k]};
        for (int j = 0; j < graph_node(s->g, n)->nin; j++)
            if (!follow(s, c, node_in(s->g, n, j), saver_bytes(s->g, v))) return false;
    }
    return true;
}

/* Whether the backward part walks over the elements of v (or of a view of it) anyway. `all`: all
 * that it does with them is of that kind. */
static bool walked(const struct saver *s, val_id v, int64_t count, bool *all) {
    struct graph *g = s->g;
    bool found = false;
    for (uint32_t u = s->uses.first[v.i]; u < s->uses.first[v.i + 1]; u++) {
        node_id n = s->uses.user[u];
        enum op op = (enum op)graph_node(g, n)->op;
        val_id y = node_out(g, n, 0);
        if (is_view(op) || (saver_widens(g, y) && n.i <= s->loss) || saver_norm(s, y))
            found |= walked(s, y, count, all);
        else if (n.i > s->loss && saver_walks(op) && type_count(val_type(g, v)) == count)
            found = true;
        else if (n.i > s->loss)
            *all = false;
    }
    return found;
}

static bool pays(const struct saver *s, val_id v, struct chain *c) {
    if (!elementwise(val_op(s->g, v)) || s->uses.live_out[v.i]) return false;
    int64_t bytes = saver_bytes(s->g, v), count, reads = 0;
    if (bytes < bytes_min || !find_chain(s, v, c) || c->nleaves == 0) return false;
    if (2 * c->more > bytes) return false;
    count = type_count(val_type(s->g, v));
    bool beside = false, all = true, any = true;
    for (uint32_t k = 0; k < c->nleaves; k++) {
        if (walked(s, c->leaves[k], count, &any))
            beside = true;
        else
            reads += saver_bytes(s->g, c->leaves[k]);
    }
    (void)walked(s, v, count, &all);
    return reads <= bytes && (beside || all);
}

/* ---- rewriting ------------------------------------------------------------------------------- */
/* What the backward part reads for v; chains are short, views few. */
static val_id copy_of(struct saver *s, val_id v) {
    struct graph *g = s->g;
    enum op op = val_op(g, v);
    if (!saver_forward(s, v)) return v;
    if (s->copy[v.i].i) return s->copy[v.i];
    s->copy[v.i] = v;
    if (!s->chain[v.i] && !is_view(op) && !saver_widens(g, v)) return v;
    node_id n = val_def(g, v);
    int nin = graph_node(g, n)->nin;
    val_id in[4];
    bool changed = s->chain[v.i];
    if (nin > 4) return v;
    for (int k = 0; k < nin; k++) {
        in[k] = copy_of(s, node_in(g, n, k));
        changed |= in[k].i != node_in(g, n, k).i;
    }
    return s->copy[v.i] = changed ? build_like(g, n, in) : v;
}

static void read_copies(struct saver *s, node_id n, struct arena *scratch) {
    struct graph *g = s->g;
    struct arena_mark mark = arena_mark(scratch);
    int nin = graph_node(g, n)->nin, nout = graph_node(g, n)->nout;
    val_id *in = ARENA_ARRAY(scratch, val_id, (size_t)nin + 1);
    bool changed = false;
    for (int k = 0; k < nin; k++) {
        val_id v = node_in(g, n, k);
        in[k] = graph_resolve(g, copy_of(s, v));
        changed |= in[k].i != v.i;
    }
    if (changed) {
        val_id y = build_like(g, n, in);
        for (int k = 0; k < nout; k++) graph_forward(g, node_out(g, n, k), val_at(y, k));
    }
    arena_rewind(scratch, mark);
}

/* Bytes of forward values that the backward part finds in memory. */
static int64_t kept_bytes(const struct saver *s) {
    int64_t sum = 0;
    for (uint32_t v = 1; v < s->nvalues; v++) {
        bool source = op_info(val_op(s->g, (val_id){v}))->traits & SOURCE;
        if (s->used[v] && !source && saver_forward(s, (val_id){v}))
            sum += saver_bytes(s->g, (val_id){v});
    }
    return sum;
}

enum status pass_save(struct pass_ctx *c, struct graph *g) {
    struct saver s = {.g = g};
    struct chain chain;
    uint32_t nodes = g->nodes.n;
    bool found = false;
    int64_t enough = c->recipe ? c->recipe->save_bytes : 0, kept = 0;
    if ((c->recipe && c->recipe->save == SAVE_ALL) || !saver_find(&s, c->scratch)) return ST_OK;
    if (enough > 0) kept = kept_bytes(&s);
    for (uint32_t v = 1; v < s.nvalues && (enough == 0 || kept > enough); v++) {
        if (!s.used[v] || !saver_forward(&s, (val_id){v})) continue;
        if (!pays(&s, (val_id){v}, &chain)) continue;
        s.again[v] = found = true;
        kept -= saver_bytes(g, (val_id){v}) - chain.more;
        for (uint32_t k = 0; k < chain.n; k++)
            s.chain[node_out(g, (node_id){chain.nodes[k]}, 0).i] = true;
    }
    for (uint32_t i = s.loss + 1; found && i < nodes; i++)
        read_copies(&s, (node_id){i}, c->scratch);
    if (found) graph_settle(g);
    return ST_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */
/* The forward value that v of the backward part is a copy of, or v. */
static val_id original(struct saver *s, struct map *seen, const val_id *of, node_id n) {
    struct graph *g = s->g;
    const struct node *node = graph_node(g, n);
    uint64_t h = hash_combine(node->op, node->attrs.i);
    if (!elementwise((enum op)node->op) || node->nin > 3) return VAL_NONE;
    for (int k = 0; k < node->nin; k++) h = hash_combine(h, of[node_in(g, n, k).i].i);
    uint32_t first;
    if (n.i <= s->loss) {
        if (!map_get(seen, h, &first)) map_set(seen, h, node_out(g, n, 0).i);
        return VAL_NONE;
    }
    if (!map_get(seen, h, &first)) return VAL_NONE;
    val_id v = {first};
    node_id m = val_def(g, v);
    if (graph_node(g, m)->op != node->op || graph_node(g, m)->attrs.i != node->attrs.i ||
        graph_node(g, m)->nin != node->nin)
        return VAL_NONE;
    for (int k = 0; k < node->nin; k++)
        if (of[node_in(g, n, k).i].i != node_in(g, m, k).i) return VAL_NONE;
    return v;
}

static void report(struct saver *s, val_id v, bool again, struct arena *a,
                   struct save_report *out) {
    if (saver_bytes(s->g, v) < bytes_min || (op_info(val_op(s->g, v))->traits & SOURCE)) return;
    struct saved x = {.value = v, .bytes = saver_bytes(s->g, v), .again = again};
    vec_push(a, out, x);
}

void save_list(struct graph *g, struct arena *a, struct save_report *out) {
    struct saver s = {.g = g};
    struct map seen;
    if (!saver_find(&s, a)) return;
    val_id *of = ARENA_ARRAY(a, val_id, s.nvalues);
    bool *read = ARENA_ARRAY(a, bool, s.nvalues); /* not only by other copies */
    map_init(&seen, a);
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        for (int k = 0; k < graph_node(g, n)->nout; k++)
            of[node_out(g, n, k).i] = node_out(g, n, k);
        val_id v = original(&s, &seen, of, n);
        if (v.i) of[node_out(g, n, 0).i] = v;
        for (int k = 0; !v.i && k < graph_node(g, n)->nin; k++)
            read[saver_base(&s, node_in(g, n, k)).i] = true;
    }
    for (uint32_t v = 1; v < s.nvalues; v++)
        if (s.used[v] && saver_forward(&s, (val_id){v})) report(&s, (val_id){v}, false, a, out);
    for (uint32_t v = 1; v < s.nvalues; v++)
        if (of[v].i != v && read[v] && !s.used[of[v].i]) report(&s, of[v], true, a, out);
}
