// SPDX-License-Identifier: Apache-2.0
/* save_quantized.c - values of the forward part that only nonlinear ops of the backward part read
 * again (inputs of GELU, SwiGLU and norms) are kept as 8-bit codes with a scale for each group of
 * neighbours. Not operands of products: granularity.c keeps their codes.
 *
 * before:                                    after (saved = e4m3 group 16):
 *   %h = matmul(%x, %w)          bf16          %h = matmul(%x, %w)
 *   %a = gelu(cast_f32(%h))                    %q, %s = quantize(%h) {e4m3, tile = [1, 16]}
 *   %r = add(%h, ..)                           %a = gelu(dequantize(%q, %s))
 *   .. loss ..                                 %r = add(%h, ..)
 *   %dh = ..(cast_f32(%h), %da)                .. loss ..
 *                                              %dh = ..(dequantize(%q, %s), %da)
 *
 * Nonlinear ops of the forward part read the codes as well (so does COAT, H. Xi et al., 2025),
 * norms take their statistics from them: the gradient then belongs to what was computed. Reading
 * exact values forward and codes backward is tempting and wrong: a channel that is large in every
 * token is off by the same amount in every token, the gradient of a norm is no longer orthogonal to
 * its operand, and after a thousand steps training diverges (docs/recipes.md). Sums (the residual
 * stream) read exact values. What a norm made is computed again from the codes and its statistics.
 *
 * needs   an output "loss": what comes before it is the forward part
 * breaks  every id held outside
 * order   after save, whose copies read what is kept */
#include "ir/quantize.h"
#include "passes/granularity.h"
#include "passes/saver.h"

struct packer {
    struct saver s;
    struct quant_how how;
    bool *low;     /* by value: is kept as codes */
    val_id *read;  /* by value: what is read instead */
    val_id *codes; /* by value: of a kept one */
    struct arena *scratch;
};

static bool is_view(enum op op) {
    return op_info(op)->traits & VIEW;
}

/* ---- which values -------------------------------------------------------------------------- */
/* Whether all that the backward part does with v, or with what is v in another guise, is to walk
 * over it; `any`: it does something. */
static bool only_walked(const struct packer *p, val_id v, bool *any) {
    const struct saver *s = &p->s;
    struct graph *g = s->g;
    for (uint32_t u = s->uses.first[v.i]; u < s->uses.first[v.i + 1]; u++) {
        node_id n = s->uses.user[u];
        enum op op = (enum op)graph_node(g, n)->op;
        val_id y = node_out(g, n, 0);
        bool same = is_view(op) || saver_widens(g, y) || saver_norm(s, y);
        if (op == OP_cross_entropy) return false; /* logits: probabilities have to add up to 1 */
        if (s->uses.live_out[y.i] && same) return false;
        if (same) {
            if (!only_walked(p, y, any)) return false;
        } else if (n.i > s->loss) {
            if (!saver_walks(op)) return false;
            *any = true;
        }
    }
    return true;
}

static bool pays(const struct packer *p, val_id v) {
    const struct saver *s = &p->s;
    const struct type *t = val_type(s->g, v);
    enum op op = val_op(s->g, v);
    bool any = false;
    if (!s->used[v.i] || s->uses.live_out[v.i] || !saver_forward(s, v)) return false;
    if (!dtype_is_float(t->dtype) || dtype_size(t->dtype) != 2) return false; /* f32 is meant */
    if ((op_info(op)->traits & SOURCE) || saver_base(s, v).i != v.i) return false;
    if (saver_bytes(s->g, v) < SAVER_BYTES_MIN || t->rank < 1) return false;
    if (t->dims[t->rank - 1] < p->how.tile.cols) return false; /* statistics */
    return only_walked(p, v, &any) && any;
}

/* ---- rewriting ----------------------------------------------------------------------------- */
static val_id dequantized(struct packer *p, val_id v, enum dtype t) {
    struct graph *g = p->s.g;
    str_id o = graph_node(g, val_def(g, v))->origin;
    val_id q = p->codes[v.i];
    return build_dequantize(g, q, val_at(q, 1), p->how.tile, t, o);
}

static val_id read_of(struct packer *p, val_id v);

/* (x - mean) * rstd of the dequantized x. */
static val_id norm_again(struct packer *p, node_id n) {
    struct graph *g = p->s.g;
    str_id o = graph_node(g, n)->origin;
    val_id x = read_of(p, node_in(g, n, 0));
    bool layer = graph_node(g, n)->op == OP_layer_norm;
    if (layer) x = build_2(g, OP_sub, x, node_out(g, n, 1), o);
    return build_2(g, OP_mul, x, node_out(g, n, layer ? 2 : 1), o);
}

/* What the backward part reads for v. */
static val_id read_of(struct packer *p, val_id v) {
    const struct saver *s = &p->s;
    struct graph *g = s->g;
    if (!saver_forward(s, v)) return v;
    if (p->read[v.i].i) return p->read[v.i];
    val_id r = v, base = saver_base(s, v);
    node_id n = val_def(g, v);
    if (!p->low[base.i]) {
        r = v;
    } else if (base.i == v.i) {
        r = dequantized(p, v, val_type(g, v)->dtype);
    } else if (saver_widens(g, v) && node_in(g, n, 0).i == base.i) {
        r = dequantized(p, base, val_type(g, v)->dtype);
    } else if (saver_norm(s, v)) {
        r = norm_again(p, n);
    } else {
        val_id in = read_of(p, node_in(g, n, 0));
        r = build_like(g, n, &in);
    }
    return p->read[v.i] = r;
}

/* Views and casts of the backward part follow their operand by themselves. */
static void read_codes(struct packer *p, node_id n) {
    struct graph *g = p->s.g;
    struct arena_mark mark = arena_mark(p->scratch);
    int nin = graph_node(g, n)->nin, nout = graph_node(g, n)->nout;
    val_id *in = ARENA_ARRAY(p->scratch, val_id, (size_t)nin + 1);
    bool changed = false;
    for (int k = 0; k < nin; k++) {
        val_id v = node_in(g, n, k);
        in[k] = graph_resolve(g, read_of(p, v));
        changed |= in[k].i != v.i;
    }
    if (changed) {
        val_id y = build_like(g, n, in);
        for (int k = 0; k < nout; k++) graph_forward(g, node_out(g, n, k), val_at(y, k));
    }
    arena_rewind(p->scratch, mark);
}

/* v is the kept value itself, rearranged or widened; not what a norm makes of it. */
static bool is_guise(const struct packer *p, val_id v) {
    const struct saver *s = &p->s;
    if (!saver_forward(s, v)) return false; /* made by this pass */
    val_id base = saver_base(s, v);
    if (!p->low[base.i]) return false;
    for (; v.i != base.i; v = node_in(s->g, val_def(s->g, v), 0))
        if (saver_norm(s, v)) return false;
    return true;
}

static bool nonlinear(enum op op) {
    if (op == OP_layer_norm || op == OP_rms_norm) return true;
    return saver_walks(op) && op != OP_add && op != OP_neg && op != OP_cast && op != OP_where;
}

/* Node n of the forward part reads codes where the backward part will. */
static void compute_from_codes(struct packer *p, node_id n) {
    struct graph *g = p->s.g;
    int nin = graph_node(g, n)->nin, nout = graph_node(g, n)->nout;
    val_id in[4];
    bool changed = false;
    if (nin > 4 || !nonlinear((enum op)graph_node(g, n)->op)) return;
    for (int k = 0; k < nin; k++) {
        val_id v = node_in(g, n, k);
        bool read = is_guise(p, v);
        in[k] = read ? read_of(p, v) : graph_resolve(g, v);
        changed |= read;
    }
    if (!changed) return;
    val_id y = build_like(g, n, in);
    for (int k = 0; k < nout; k++) graph_forward(g, node_out(g, n, k), val_at(y, k));
}

enum status pass_save_quantized(struct pass_ctx *c, struct graph *g) {
    const struct recipe_saved *saved = c->recipe ? &c->recipe->saved : NULL;
    if (!saved || saved->format == DT_bf16) return ST_OK;
    struct packer p = {.s = {.g = g}, .scratch = c->scratch};
    p.how = (struct quant_how){.format = saved->format,
                               .scale_type = saved->scale_type,
                               .tile = {false, 1, saved->group},
                               .eps = QUANT_EPS};
    if (!saver_find(&p.s, c->scratch)) return ST_OK;
    uint32_t nodes = g->nodes.n;
    bool found = false;
    p.low = ARENA_ARRAY(c->scratch, bool, p.s.nvalues);
    p.read = ARENA_ARRAY(c->scratch, val_id, p.s.nvalues);
    p.codes = ARENA_ARRAY(c->scratch, val_id, p.s.nvalues);
    for (uint32_t v = 1; v < p.s.nvalues; v++) {
        if (!pays(&p, (val_id){v})) continue;
        str_id o = graph_node(g, val_def(g, (val_id){v}))->origin;
        p.low[v] = found = true;
        p.codes[v] = build_quantize(g, (val_id){v}, VAL_NONE, &p.how, o);
    }
    uint32_t made = g->nodes.n; /* codes are made behind their values, which then can go */
    for (uint32_t i = 1; found && i <= p.s.loss; i++) compute_from_codes(&p, (node_id){i});
    for (uint32_t i = p.s.loss + 1; found && i < nodes; i++) read_codes(&p, (node_id){i});
    if (found) graph_settle_early(g, nodes, made);
    return ST_OK;
}
