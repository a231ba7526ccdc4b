// SPDX-License-Identifier: Apache-2.0
/* grad.c - reverse-mode differentiation: finds the nodes that matter, visits them from last to
 * first, adds contributions up. How one op is differentiated is told by its rule in grad_rules*.c,
 * chosen by the column `grad` of ops.def. Pass grad does it for output "loss" by every trained
 * param, first order only; pass gradient for op gradient, which may depend on another one. */
#include "passes/grad.h"
#include "base/diag.h"
#include <string.h>

/* A contribution to a value's gradient: of the whole value, or of the part that node `slice` took.
 */
struct grad_part {
    struct grad_part *next;
    val_id v;
    node_id slice; /* {0}: whole */
};
struct grad {
    struct ctx *ctx;
    struct graph *g;
    struct arena *scratch;
    uint32_t values; /* forward values: [1, values) */
    bool *want;      /* by value: depends on a trained param */
    struct grad_part **first, **last;
    val_id *sum;  /* by value: the complete gradient, once its node is visited */
    val_id *kept; /* by value: its rounded form where there is one, so that only that is kept */
};

static grad_rule *const rules[OP_COUNT] = {
    NULL,
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs) grad_##grad,
#include "ir/ops.def"
#undef OP
};

enum status grad_zero(struct grad_node *s) {
    (void)s; /* piecewise constant, or a source */
    return ST_OK;
}

enum status grad_none(struct grad_node *s) {
    return diag_error(s->g->ctx, ST_UNSUPPORTED, node_origin(s->g, s->n),
                      "%s has no gradient rule, but a trained parameter reaches the loss through "
                      "it; freeze the parameters before it",
                      op_info((enum op)graph_node(s->g, s->n)->op)->name);
}

static bool is_trained(const struct graph *g, node_id n) {
    return graph_node(g, n)->op == OP_param && !attr_bool(g, n, ATTR_frozen) &&
           dtype_is_float(val_type(g, node_out(g, n, 0))->dtype);
}

/* From the values marked already, by which to differentiate: all that depend on them. */
static void mark_wanted(struct grad *d) {
    struct graph *g = d->g;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        bool any = node->nout > 0 && d->want[node_out(g, n, 0).i];
        if (rules[node->op] != grad_zero)
            for (int k = 0; !any && k < node->nin; k++) any = d->want[node_in(g, n, k).i];
        for (int k = 0; any && k < node->nout; k++)
            d->want[node_out(g, n, k).i] = dtype_is_float(val_type(g, node_out(g, n, k))->dtype);
    }
}

/* ---- adding up ----------------------------------------------------------------------------- */
static void add_part(struct grad *d, val_id v, val_id grad, node_id slice) {
    struct grad_part *p = ARENA_NEW(d->scratch, struct grad_part);
    p->v = grad;
    p->slice = slice;
    if (d->last[v.i])
        d->last[v.i]->next = p;
    else
        d->first[v.i] = p;
    d->last[v.i] = p;
}

/* v in f32; what was f32 before it was rounded is taken as it was. */
static val_id widened(struct graph *g, val_id v, str_id o) {
    if (val_op(g, v) == OP_cast) {
        val_id x = node_in(g, val_def(g, v), 0);
        if (val_type(g, x)->dtype == DT_f32) return x;
    }
    return build_cast(g, v, DT_f32, o);
}

/* Gradients of 16 bits add up in f32 and are rounded once. */
static val_id plus(struct graph *g, val_id a, val_id b, str_id o) {
    if (!a.i) return b;
    enum dtype t = val_type(g, a)->dtype;
    if (t != DT_bf16 && t != DT_f16) return build_2(g, OP_add, a, b, o);
    val_id sum = build_2(g, OP_add, widened(g, a, o), widened(g, b, o), o);
    return build_cast(g, sum, t, o);
}

/* A slice as seen from its operand. */
struct piece {
    val_id v;
    const dim *starts;
    const int64_t *steps;
    const struct type *out;
};

static struct piece piece_of(const struct grad *d, const struct grad_part *p) {
    int n;
    struct piece r = {.v = p->v};
    r.starts = attr_dims(d->g, p->slice, ATTR_starts, &n);
    r.steps = attr_ints(d->g, p->slice, ATTR_steps, &n);
    struct type *t = ARENA_NEW(d->scratch, struct type);
    *t = *val_type(d->g, node_out(d->g, p->slice, 0));
    r.out = t;
    return r;
}

static bool same_place(const struct piece *a, const struct piece *b) {
    bool same = true;
    for (int i = 0; same && i < a->out->rank; i++)
        same = dim_same(a->starts[i], b->starts[i]) && a->steps[i] == b->steps[i] &&
               dim_same(a->out->dims[i], b->out->dims[i]);
    return same;
}

/* The pieces as one concat along the only axis that they cut, gaps filled with zeros; VAL_NONE when
 * they do not line up. This makes the gradient of a split a concat. */
static val_id join_pieces(struct grad *d, const struct type *whole, const struct piece *p, int n,
                          str_id o) {
    int axis = -1;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < whole->rank; i++) {
            bool full = dim_same(p[k].out->dims[i], whole->dims[i]) && p[k].steps[i] == 1;
            if (!full && axis >= 0 && axis != i) return VAL_NONE;
            if (!full && p[k].steps[i] != 1) return VAL_NONE;
            if (!full) axis = i;
        }
    if (axis < 0) return n == 1 ? p[0].v : VAL_NONE;
    val_id *list = ARENA_ARRAY(d->scratch, val_id, 2 * (size_t)n + 1);
    bool *used = ARENA_ARRAY(d->scratch, bool, (size_t)n);
    int count = 0, left = n, gaps = 0;
    dim pos = 0, end = whole->dims[axis];
    while (left > 0 || !dim_same(pos, end)) {
        int next = -1;
        for (int k = 0; k < n && next < 0; k++)
            if (!used[k] && dim_same(p[k].starts[axis], pos)) next = k;
        if (next >= 0) {
            used[next] = true;
            left--;
            list[count++] = p[next].v;
            pos = dim_add(d->g->dims, pos, p[next].out->dims[axis]);
            continue;
        }
        dim to = left == 0 ? end : -1;
        for (int k = 0; k < n; k++) {
            dim st = p[k].starts[axis];
            if (!used[k] && dim_known(st) && (!dim_known(to) || st < to)) to = st;
        }
        if (!dim_known(to) || !dim_known(pos) || to <= pos) return VAL_NONE; /* overlap, unknown */
        struct type gap = *whole;
        gap.dims[axis] = to - pos;
        list[count++] = build_full(d->g, &gap, 0.0, o);
        pos = to;
        gaps++;
    }
    if (n == 1 && gaps > 0) return VAL_NONE; /* a pad is one pass over memory less */
    return count == 1 ? list[0] : build_concat(d->g, list, count, axis, o);
}

/* One piece spread into zeros of the whole shape. */
static enum status pad_piece(struct grad *d, const struct type *whole, const struct piece *p,
                             node_id slice, val_id *out) {
    struct graph *g = d->g;
    str_id o = graph_node(g, slice)->origin;
    int64_t low[RANK_MAX], high[RANK_MAX], inner[RANK_MAX], step[RANK_MAX];
    dim starts[RANK_MAX];
    bool flip = false;
    for (int i = 0; i < whole->rank; i++) {
        /* Sizes are never negative: from the first to the last element taken it is `span`. */
        int64_t by = p->steps[i] < 0 ? -p->steps[i] : p->steps[i];
        dim last = dim_sub(g->dims, p->out->dims[i], 1), span = dim_mul(g->dims, last, by);
        dim first = p->steps[i] < 0 ? dim_sub(g->dims, p->starts[i], span) : p->starts[i];
        dim after = dim_add(g->dims, dim_add(g->dims, first, span), 1);
        dim rest = dim_sub(g->dims, whole->dims[i], after);
        flip |= p->steps[i] < 0;
        step[i] = p->steps[i] < 0 ? -1 : 1;
        starts[i] = p->steps[i] < 0 ? last : 0;
        if (!dim_known(first) || !dim_known(rest))
            return diag_error(
                g->ctx, ST_UNSUPPORTED, node_origin(g, slice),
                "the gradient of a slice whose place on axis %d depends on a symbolic "
                "size is not supported; give the size a number",
                i);
        low[i] = first;
        high[i] = rest;
        inner[i] = by - 1;
    }
    val_id v = p->v;
    if (flip) v = build_slice(g, v, starts, p->out->dims, step, o);
    struct attr attrs[3] = {{.key = ATTR_low, .list = low, .n = whole->rank},
                            {.key = ATTR_high, .list = high, .n = whole->rank},
                            {.key = ATTR_interior, .list = inner, .n = whole->rank}};
    *out = graph_add(g, OP_pad, &v, 1, attrs, 3, o);
    return ST_OK;
}

/* The complete gradient of v, once all its users were visited; VAL_NONE when there is none. */
static enum status finish(struct grad *d, val_id v, val_id *out) {
    struct graph *g = d->g;
    struct type whole = *val_type(g, v);
    str_id o = graph_node(g, val_def(g, v))->origin;
    val_id sum = VAL_NONE;
    int n = 0, most = 0;
    for (struct grad_part *p = d->first[v.i]; p; p = p->next) most += p->slice.i != 0;
    struct piece *pieces = ARENA_ARRAY(d->scratch, struct piece, (size_t)most);
    node_id *from = ARENA_ARRAY(d->scratch, node_id, (size_t)most);
    for (struct grad_part *p = d->first[v.i]; p; p = p->next) {
        if (!p->slice.i) {
            sum = plus(g, sum, p->v, o);
            continue;
        }
        struct piece q = piece_of(d, p);
        int k = 0;
        while (k < n && !same_place(&pieces[k], &q)) k++;
        if (k < n) {
            pieces[k].v = plus(g, pieces[k].v, q.v, o);
        } else {
            from[n] = p->slice;
            pieces[n++] = q;
        }
    }
    val_id joined = n > 0 ? join_pieces(d, &whole, pieces, n, o) : VAL_NONE;
    if (joined.i) sum = plus(g, sum, joined, o);
    for (int k = 0; !joined.i && k < n; k++) {
        val_id padded;
        TRY(pad_piece(d, &whole, &pieces[k], from[k], &padded));
        sum = plus(g, sum, padded, o);
    }
    *out = d->sum[v.i] = sum;
    return ST_OK;
}

/* ---- what rules call ----------------------------------------------------------------------- */
bool grad_wants(const struct grad_node *s, int k) {
    return s->d->want[node_in(s->g, s->n, k).i];
}

val_id grad_out(const struct grad_node *s, int k) {
    return s->d->sum[node_out(s->g, s->n, k).i];
}

enum status grad_acc(struct grad_node *s, int k, val_id v) {
    return grad_acc_value(s, node_in(s->g, s->n, k), v);
}

enum status grad_acc_value(struct grad_node *s, val_id to, val_id v) {
    if (!s->d->want[to.i]) return ST_OK;
    struct type t = *val_type(s->g, to);
    v = build_cast(s->g, build_unbroadcast(s->g, v, &t, s->o), t.dtype, s->o);
    add_part(s->d, to, v, (node_id){0});
    return ST_OK;
}

enum status grad_acc_slice(struct grad_node *s, val_id v) {
    val_id to = node_in(s->g, s->n, 0);
    const struct type *t = val_type(s->g, s->y);
    for (int i = 0; i < t->rank; i++)
        if (t->dims[i] == 0) return ST_OK; /* no element, no contribution */
    if (s->d->want[to.i]) add_part(s->d, to, v, s->n);
    return ST_OK;
}

val_id grad_mean(const struct grad_node *s, val_id v, const struct type *t, const int64_t *axes,
                 int n) {
    struct type part = {.dtype = val_type(s->g, v)->dtype, .rank = n};
    int64_t all[RANK_MAX];
    for (int i = 0; i < n; i++) {
        part.dims[i] = t->dims[axes[i]];
        all[i] = i;
    }
    int64_t count = type_count(&part);
    if (count >= 0) return build_scale(s->g, v, count ? 1.0 / (double)count : 1.0, s->o);
    val_id ones = build_full(s->g, &part, 1.0, s->o);
    return e_div(s, v, build_reduce(s->g, OP_reduce_sum, ones, all, n, false, s->o));
}

/* ---- the pass ------------------------------------------------------------------------------ */
static enum status visit(struct grad *d, node_id n) {
    struct graph *g = d->g;
    struct node node = *graph_node(g, n);
    bool any = false;
    for (int k = 0; k < node.nout; k++) {
        val_id v = node_out(g, n, k), sum;
        if (!d->first[v.i]) continue;
        TRY(finish(d, v, &sum));
        any = true;
    }
    if (!any || rules[node.op] == grad_zero) return ST_OK;
    struct grad_node s = {.d = d, .g = g, .n = n, .o = node.origin, .y = node_out(g, n, 0)};
    if (node.nin > 0) s.a = node_in(g, n, 0);
    if (node.nin > 1) s.b = node_in(g, n, 1);
    s.dy = d->sum[s.y.i];
    if (node.nout == 1 && d->kept[s.y.i].i) s.y = d->kept[s.y.i];
    if (!s.dy.i) {
        struct type t = *val_type(g, s.y);
        s.dy = build_full(g, &t, 0.0, s.o);
    }
    return rules[node.op](&s);
}

/* y as f32 of the 16-bit value that it was rounded to: what later nodes read in its place. */
static void find_kept(struct grad *d, uint32_t nodes) {
    struct graph *g = d->g;
    for (uint32_t i = 1; i < nodes; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_cast) continue;
        val_id low = node_in(g, n, 0), v = node_out(g, n, 0);
        if (val_op(g, low) != OP_cast || dtype_size(val_type(g, low)->dtype) != 2) continue;
        val_id y = node_in(g, val_def(g, low), 0);
        if (type_equal(val_type(g, y), val_type(g, v))) d->kept[y.i] = v;
    }
}

static val_id find_output(const struct graph *g, const char *name) {
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (strcmp(interned(&g->strings, g->outputs.at[i].name), name) == 0)
            return graph_resolve(g, g->outputs.at[i].value);
    return VAL_NONE;
}

static void add_outputs(struct grad *d, uint32_t nodes) {
    struct graph *g = d->g;
    for (uint32_t i = 1; i < nodes; i++) {
        node_id n = {i};
        if (!is_trained(g, n)) continue;
        val_id v = node_out(g, n, 0), grad = d->sum[v.i];
        if (!grad.i) {
            struct type t = *val_type(g, v);
            diag_warning(d->ctx, node_origin(g, n),
                         "parameter '%s' does not influence the loss; its gradient is zero",
                         attr_str(g, n, ATTR_name));
            grad = build_full(g, &t, 0.0, graph_node(g, n)->origin);
        }
        graph_add_output(g, arena_printf(d->scratch, "grad/%s", attr_str(g, n, ATTR_name)), grad);
    }
}

static void begin(struct grad *d, struct pass_ctx *c, struct graph *g) {
    *d = (struct grad){.ctx = c->ctx, .g = g, .scratch = c->scratch, .values = g->values.n};
    d->want = ARENA_ARRAY(d->scratch, bool, d->values);
    d->first = ARENA_ARRAY(d->scratch, struct grad_part *, d->values);
    d->last = ARENA_ARRAY(d->scratch, struct grad_part *, d->values);
    d->sum = ARENA_ARRAY(d->scratch, val_id, d->values);
    d->kept = ARENA_ARRAY(d->scratch, val_id, d->values);
}

/* Of the sum of y times `weight`, by the sources whose `want` is set. */
static enum status differentiate(struct grad *d, val_id y, double weight) {
    struct graph *g = d->g;
    uint32_t nodes = g->nodes.n;
    struct type t = *val_type(g, y);
    str_id o = graph_node(g, val_def(g, y))->origin;
    mark_wanted(d);
    find_kept(d, nodes);
    if (!d->want[y.i]) return ST_OK;
    val_id seed = t.rank == 0 ? build_scalar(g, t.dtype, weight, o) : build_full(g, &t, weight, o);
    add_part(d, y, seed, (node_id){0});
    for (uint32_t i = nodes; i-- > 1;) TRY(visit(d, (node_id){i}));
    return ST_OK;
}

/* A training step returns its loss, and its own gradients if it has any; whole logits that nobody
 * reads would only cost memory. */
static void keep_only(struct graph *g, val_id loss) {
    uint32_t n = 0;
    bool own = graph_trains_itself(g);
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        bool grad = strncmp(interned(&g->strings, g->outputs.at[i].name), "grad/", 5) == 0;
        if (graph_resolve(g, g->outputs.at[i].value).i == loss.i || (own && grad))
            g->outputs.at[n++] = g->outputs.at[i];
    }
    g->outputs.n = n;
}

/* ---- gradients that the graph asks for itself ---------------------------------------------------
 */
bool graph_trains_itself(const struct graph *g) {
    for (uint32_t i = 0; i < g->updates.n; i++)
        if (val_op(g, graph_resolve(g, g->updates.at[i].target)) == OP_param) return true;
    return false;
}

/* The first op gradient from node `from` on, of value y if that is one; {0} when there is none. */
static node_id next_gradient(const struct graph *g, uint32_t from, val_id y) {
    for (uint32_t i = from; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op == OP_gradient && (!y.i || node_in(g, n, 0).i == y.i)) return n;
    }
    return (node_id){0};
}

static void put_gradient(struct grad *d, node_id n, bool output) {
    struct graph *g = d->g;
    val_id x = node_in(g, n, 1), v = d->sum[x.i];
    struct type t = *val_type(g, x);
    if (!v.i) v = build_full(g, &t, 0.0, graph_node(g, n)->origin);
    graph_forward(g, node_out(g, n, 0), v);
    if (!output || !is_trained(g, val_def(g, x))) return;
    const char *name = attr_str(g, val_def(g, x), ATTR_name);
    name = arena_printf(d->scratch, "grad/%s", name);
    if (!find_output(g, name).i) graph_add_output(g, name, v);
}

/* All gradients of one value at a time. A later one may depend on them. */
enum status pass_gradient(struct pass_ctx *c, struct graph *g) {
    enum { ROUNDS_MAX = 16 };
    bool outputs = c->train && graph_trains_itself(g);
    node_id n;
    for (int round = 0; (n = next_gradient(g, 1, VAL_NONE)).i; round++) {
        struct grad d;
        val_id y = node_in(g, n, 0);
        uint32_t nodes = g->nodes.n;
        if (round == ROUNDS_MAX)
            return diag_error(c->ctx, ST_UNSUPPORTED, node_origin(g, n),
                              "the model differentiates more than %d values", ROUNDS_MAX);
        begin(&d, c, g);
        for (node_id k = n; k.i; k = next_gradient(g, k.i + 1, y)) {
            val_id x = node_in(g, k, 1);
            if (!(op_info(val_op(g, x))->traits & SOURCE))
                return diag_error(c->ctx, ST_UNSUPPORTED, node_origin(g, k),
                                  "a gradient by what the graph computes is not supported");
            d.want[x.i] = true;
        }
        TRY(differentiate(&d, y, 1.0));
        for (node_id k = n; k.i && k.i < nodes; k = next_gradient(g, k.i + 1, y))
            put_gradient(&d, k, outputs);
        graph_settle(g);
    }
    return ST_OK;
}

enum status pass_grad(struct pass_ctx *c, struct graph *g) {
    val_id loss = find_output(g, "loss");
    if (!loss.i)
        return diag_error(c->ctx, ST_USAGE, "", "the graph has no output 'loss' to differentiate");
    struct type t = *val_type(g, loss);
    if (t.rank != 0 || (t.dtype != DT_f32 && t.dtype != DT_f64))
        return diag_error(c->ctx, ST_TYPE, node_origin(g, val_def(g, loss)),
                          "output 'loss' must be an f32 or f64 scalar, found rank %d of %s", t.rank,
                          dtype_name(t.dtype));
    if (graph_trains_itself(g)) {
        keep_only(g, loss);
        graph_settle(g);
        return ST_OK;
    }
    struct grad d;
    begin(&d, c, g);
    uint32_t nodes = g->nodes.n;
    for (uint32_t i = 1; i < nodes; i++)
        if (is_trained(g, (node_id){i})) d.want[node_out(g, (node_id){i}, 0).i] = true;
    /* Micro-batches add up to the mean over the whole batch. */
    double weight = c->train && c->train->accumulate > 1 ? 1.0 / (double)c->train->accumulate : 1.0;
    TRY(differentiate(&d, loss, weight));
    keep_only(g, loss);
    add_outputs(&d, nodes);
    graph_settle(g);
    return ST_OK;
}
