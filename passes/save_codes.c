// SPDX-License-Identifier: Apache-2.0
/* save_codes.c - codes that the backward part reads as an operand of a product are made again
 * there, with the scale that the forward part found, where a cheap chain of what is kept anyway
 * gives them: codes of GELU's or SwiGLU's result from its inputs, those of attention's from itself.
 * The copies compute what the originals did: the same codes.
 *
 * before:
 *   %p = ..mul(silu(%g), %u)                 %g, %u are read by the backward part as well
 *   %q, %s = quantize(%p)
 *   %y = scaled_matmul(%q, ..)               .. loss ..
 *   %dw = scaled_matmul(transpose(%q), ..)
 * after:
 *   %p = ..mul(silu(%g), %u)
 *   %q, %s = quantize(%p)
 *   %y = scaled_matmul(%q, ..)               .. loss ..
 *   %r = ..mul(silu(%g), %u)
 *   %q2 = quantize(%r, %s)
 *   %dw = scaled_matmul(transpose(%q2), ..)
 *
 * needs   an output "loss": what comes before it is the forward part
 * breaks  every id held outside
 * order   after save_quantized, which decides what is kept and how; nothing that merges equal nodes
 * may follow. Not where the recipe keeps everything (save = all). */
#include "ir/quantize.h"
#include "passes/saver.h"

enum { NODES_MAX = 24, SMALL = 16 };

struct remake {
    struct saver s;
    val_id *copy;    /* by value of the forward part: its copy in the backward part */
    val_id codes;    /* being replaced, */
    val_id replaced; /* by these */
};
struct chain {
    const struct remake *x;
    int64_t bytes; /* of the value that is made again */
    int nodes, leaves;
};

static bool is_view(enum op op) {
    return op_info(op)->traits & VIEW;
}

/* Whether v is there, or small, or computed from such by few elementwise nodes. */
static bool follow(struct chain *c, val_id v, int depth) {
    const struct saver *s = &c->x->s;
    struct graph *g = s->g;
    enum op op = val_op(g, v);
    double uniform;
    if ((op_info(op)->traits & SOURCE) || val_uniform(g, v, &uniform)) return true;
    bool kept = saver_forward(s, v) && s->used[saver_base(s, v).i];
    if (kept || saver_bytes(g, v) <= c->bytes / SMALL) {
        c->leaves += kept;
        return true;
    }
    bool open = ((op_info(op)->traits & EW) && !(op_info(op)->traits & EFFECT)) || is_view(op);
    if (!open || depth == 0 || ++c->nodes > NODES_MAX) return false;
    node_id n = val_def(g, v);
    for (int k = 0; k < graph_node(g, n)->nin; k++)
        if (!follow(c, node_in(g, n, k), depth - 1)) return false;
    return true;
}

static val_id copy_of(struct remake *x, val_id v, int64_t bytes) {
    struct saver *s = &x->s;
    struct graph *g = s->g;
    node_id n = val_def(g, v);
    double uniform;
    val_id in[4];
    if (x->copy[v.i].i) return x->copy[v.i];
    bool leaf = (op_info(val_op(g, v))->traits & SOURCE) || val_uniform(g, v, &uniform) ||
                s->used[saver_base(s, v).i] || saver_bytes(g, v) <= bytes / SMALL;
    if (leaf) return v;
    int nin = graph_node(g, n)->nin;
    CHECK(g->ctx, nin <= 4);
    for (int k = 0; k < nin; k++) in[k] = copy_of(x, node_in(g, n, k), bytes);
    return x->copy[v.i] = build_like(g, n, in);
}

/* Whether the backward part reads v, through movement. */
static bool read_behind(const struct saver *s, val_id v) {
    for (uint32_t u = s->uses.first[v.i]; u < s->uses.first[v.i + 1]; u++) {
        node_id n = s->uses.user[u];
        if (is_view((enum op)graph_node(s->g, n)->op) ? read_behind(s, node_out(s->g, n, 0))
                                                      : n.i > s->loss)
            return true;
    }
    return false;
}

/* v, if it is a view of the codes that are replaced, of what replaces them; else v. */
static val_id reread(struct remake *x, val_id v, int depth) {
    struct graph *g = x->s.g;
    if (v.i == x->codes.i) return x->replaced;
    if (depth == 0 || v.i >= x->s.nvalues || !is_view(val_op(g, v))) return v;
    node_id n = val_def(g, v);
    val_id old = node_in(g, n, 0), in = reread(x, old, depth - 1);
    return in.i == old.i ? v : build_like(g, n, &in);
}

/* The readers of the codes behind the loss; each is rewritten once, with all of its operands. */
static void replace_reads(struct remake *x, val_id v, struct arena *scratch) {
    enum { VIEWS = 8 };
    struct saver *s = &x->s;
    struct graph *g = s->g;
    for (uint32_t u = s->uses.first[v.i]; u < s->uses.first[v.i + 1]; u++) {
        node_id n = s->uses.user[u];
        if (is_view((enum op)graph_node(g, n)->op)) {
            replace_reads(x, node_out(g, n, 0), scratch);
            continue;
        }
        if (n.i <= s->loss) continue;
        struct arena_mark mark = arena_mark(scratch);
        int nin = graph_node(g, n)->nin, nout = graph_node(g, n)->nout;
        val_id now = graph_resolve(g, node_out(g, n, 0));
        node_id current = val_def(g, now); /* as earlier replacements left it */
        val_id *in = ARENA_ARRAY(scratch, val_id, (size_t)nin + 1);
        for (int k = 0; k < nin; k++)
            in[k] = graph_resolve(g, reread(x, node_in(g, current, k), VIEWS));
        val_id y = build_like(g, current, in);
        for (int k = 0; k < nout; k++) graph_forward(g, val_at(now, k), val_at(y, k));
        arena_rewind(scratch, mark);
    }
}

static struct quant_how how_of(const struct graph *g, node_id n) {
    return (struct quant_how){.format = attr_dtype(g, n, ATTR_format),
                              .scale_type = attr_dtype(g, n, ATTR_scale_type),
                              .tile = quant_tile_of(g, n),
                              .eps = attr_float(g, n, ATTR_eps),
                              .margin = attr_int(g, n, ATTR_margin)};
}

static bool remake(struct remake *x, node_id n, struct arena *scratch) {
    struct saver *s = &x->s;
    struct graph *g = s->g;
    val_id from = node_in(g, n, 0), codes = node_out(g, n, 0);
    struct chain c = {.x = x, .bytes = saver_bytes(g, from)};
    if (c.bytes < SAVER_BYTES_MIN || s->uses.live_out[codes.i] || !read_behind(s, codes))
        return false;
    if (!follow(&c, from, NODES_MAX) || c.leaves == 0) return false;
    struct quant_how how = how_of(g, n);
    val_id scale = graph_node(g, n)->nin == 2 ? node_in(g, n, 1) : val_at(codes, 1);
    val_id again = copy_of(x, from, c.bytes);
    x->codes = codes;
    x->replaced = build_quantize(g, again, scale, &how, graph_node(g, n)->origin);
    replace_reads(x, codes, scratch);
    return true;
}

enum status pass_save_codes(struct pass_ctx *c, struct graph *g) {
    struct remake x = {.s = {.g = g}};
    bool found = false;
    if (!c->recipe || c->recipe->save == SAVE_ALL) return ST_OK;
    if (!c->recipe->products.low && c->recipe->noverrides == 0) return ST_OK;
    if (!saver_find(&x.s, c->scratch)) return ST_OK;
    x.copy = ARENA_ARRAY(c->scratch, val_id, x.s.nvalues);
    for (uint32_t i = 1; i <= x.s.loss; i++)
        if (graph_node(g, (node_id){i})->op == OP_quantize)
            found |= remake(&x, (node_id){i}, c->scratch);
    if (found) graph_settle(g);
    return ST_OK;
}
