// SPDX-License-Identifier: Apache-2.0
/* lower_matmul.c - products: transposes as strides, batch axes aligned or folded into the rows,
 * bias and residual as operands, and conversion of element types that the product does not know. */
#include "codegen/internal.h"

static void swap_last(struct plan_view *v) {
    int64_t d = v->dims[v->rank - 1], s = v->strides[v->rank - 1];
    v->dims[v->rank - 1] = v->dims[v->rank - 2];
    v->strides[v->rank - 1] = v->strides[v->rank - 2];
    v->dims[v->rank - 2] = d;
    v->strides[v->rank - 2] = s;
}

/* Leading axes that `v` lacks or has with size 1 are repeated. */
static void align_batch(struct plan_view *v, const struct plan_view *out) {
    struct plan_view r = *v;
    r.rank = out->rank;
    for (int d = 0; d < out->rank; d++) {
        int from = d - (out->rank - v->rank);
        bool batch = d < out->rank - 2;
        bool repeat = from < 0 || (batch && v->dims[from] == 1);
        r.dims[d] = batch || from < 0 ? out->dims[d] : v->dims[from];
        r.strides[d] = repeat ? 0 : v->strides[from];
    }
    *v = r;
}

/* Fold the last batch axis of a, the result and the residual into M, where b does not have it. */
static bool fold_batch(struct plan_view *a, struct plan_view *b, struct plan_view *out,
                       struct plan_view *residual) {
    int r = out->rank, d = r - 3;
    if (r < 3) return false;
    bool b_same = b->strides[d] == 0 || b->dims[d] == 1;
    int64_t m = out->dims[r - 2];
    bool m_free = m == 1; /* the row stride of a single row means nothing: take the batch's */
    struct plan_view *rows[3] = {a, out, residual};
    for (int k = 0; k < 3 && out->dims[d] != 1 && !m_free; k++)
        b_same &= !rows[k] || rows[k]->strides[d] == m * rows[k]->strides[r - 2];
    if (!b_same) return false;
    for (int k = 0; k < 3; k++) {
        struct plan_view *v = rows[k];
        if (!v) continue;
        if (m_free && v->dims[d] != 1) v->strides[r - 2] = v->strides[d];
        v->dims[r - 2] *= v->dims[d];
        v->dims[d] = v->dims[r - 2], v->strides[d] = v->strides[r - 2];
        v->dims[d + 1] = v->dims[r - 1], v->strides[d + 1] = v->strides[r - 1];
        v->rank--;
    }
    b->dims[d] = b->dims[r - 2], b->strides[d] = b->strides[r - 2];
    b->dims[d + 1] = b->dims[r - 1], b->strides[d + 1] = b->strides[r - 1];
    b->rank--;
    return true;
}

/* What the launch reads and writes, first in the shapes of the graph. */
struct product_views {
    struct plan_view in[6], out;
    uint32_t nin;
    int residual; /* in[residual]; 0: none */
};

static enum status converted(struct cg *c, node_id n, int k, enum dtype t, struct plan_view *out) {
    val_id v = node_in(c->g, n, k);
    struct type type = *val_type(c->g, v);
    if (type.dtype == t) return operand_view(c, n, k, out);
    type.dtype = t;
    *out = buffer_view(c, buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, &type));
    return group_copy(c, v, out, unit_origin(c, &n.i, 1));
}

/* ---- what is folded in ---------------------------------------------------------------------- */
/* Operands of a product with GELU: rows that are one axis, lines aligned. */
static enum status aligned_operand(struct cg *c, node_id n, val_id v, struct plan_view *view) {
    enum { ELEMS = 8 };
    bool ok = view->offset % ELEMS == 0;
    for (int d = 0; d < view->rank; d++)
        ok &= view->dims[d] == 1 || view->strides[d] == 1 || view->strides[d] % ELEMS == 0;
    if (ok && (view->rank == 2 || view_contiguous(view))) return ST_OK;
    return value_view(c, n, v, NEED_DENSE, view);
}

/* v without gaps, copied if it is a part of a buffer that starts where libraries cannot read. */
static enum status aligned_start(struct cg *c, node_id n, struct plan_view *v) {
    enum { ALIGN = 16 };
    if (v->offset * (int64_t)dtype_size(v->dtype) % ALIGN == 0) return ST_OK;
    int64_t count = view_count(v);
    struct type line = {.dtype = v->dtype, .rank = 1, .dims = {count}};
    struct plan_view from = *v,
                     to = buffer_view(c, buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, &line));
    from.rank = 1, from.dims[0] = count, from.strides[0] = 1;
    v->buffer = to.buffer, v->offset = to.offset;
    return group_convert(c, &from, &to, unit_origin(c, &n.i, 1));
}

static enum status bias_view(struct cg *c, node_id n, val_id bias, struct plan_view *b) {
    TRY(value_view(c, n, bias, NEED_DENSE, b));
    TRY(aligned_start(c, n, b));
    b->dims[0] = view_count(b);
    b->rank = 1, b->strides[0] = 1;
    return ST_OK;
}

/* Operands and results beside a, b and the product. */
static enum status folded_views(struct cg *c, node_id n, const struct product *p,
                                struct product_views *w) {
    if (p->bias.i) TRY(bias_view(c, n, p->bias, &w->in[w->nin++]));
    if (p->residual.i) {
        struct plan_view *r = &w->in[w->residual = (int)w->nin++];
        TRY(value_view(c, n, p->residual, NEED_MATRIX, r));
        if (r->dims[r->rank - 1] != 1 && r->strides[r->rank - 1] != 1) /* columns */
            TRY(value_view(c, n, p->residual, NEED_DENSE, r));
    }
    for (int k = 0; k < 2 && p->gelu; k++)
        TRY(aligned_operand(c, n, node_in(c->g, n, k), &w->in[k]));
    return ST_OK;
}

/* Gradients of weights add up over all tokens: those are promoted. */
static bool sums_fast(const struct plan_launch *l) {
    enum { DEEP = 16384 };
    return l->in[0].dims[1] < DEEP;
}

static void folded_attrs(struct cg *c, struct plan_launch *l, const struct product *p) {
    struct attr *at = ARENA_ARRAY(&c->p->arena, struct attr, 7);
    bool codes = dtype_size(l->in[0].dtype) == 1;
    int n = 0;
    if (p->scaled) at[n++] = (struct attr){.key = ATTR_scale, .f = p->scale};
    if (p->bias.i) at[n++] = (struct attr){.key = ATTR_bias, .i = true};
    if (p->residual.i) at[n++] = (struct attr){.key = ATTR_residual, .i = true};
    if (codes) at[n++] = (struct attr){.key = ATTR_scaled, .i = true};
    /* Sums over few numbers, or of e4m3 alone, need no more than short accumulators. */
    if (codes && sums_fast(l)) at[n++] = (struct attr){.key = ATTR_fast, .i = true};
    if (p->gelu) at[n++] = (struct attr){.key = ATTR_gelu, .i = true};
    if (c->o->tf32 && l->in[0].dtype == DT_f32)
        at[n++] = (struct attr){.key = ATTR_tf32, .i = true};
    l->attrs = at;
    l->nattrs = n;
}

static const double gelu_flops = 5; /* as the cost of the op */

static struct cost folded_cost(const struct cg *c, node_id n, const struct product *p) {
    struct cost k = node_cost(c->g, n);
    const struct type *y = val_type(c->g, p->result);
    double count = (double)type_count(y);
    val_id more[2] = {p->bias, p->residual};
    for (int i = 0; i < 2; i++) {
        if (!more[i].i) continue;
        k.flops += count;
        k.bytes_read += (double)type_bytes(val_type(c->g, more[i]));
    }
    k.flops += p->scaled ? count : 0;
    k.flops += p->gelu ? gelu_flops * count : 0;
    k.bytes_written = (double)type_bytes(y);
    return k;
}

/* Batch axes that b does not have become rows. */
static void fold_batches(struct product_views *w) {
    while (w->out.rank > 2) {
        struct product_views next = *w;
        struct plan_view *r = w->residual ? &next.in[w->residual] : NULL;
        if (!fold_batch(&next.in[0], &next.in[1], &next.out, r)) return;
        if (!view_matrix_ok(&next.in[0]) || !view_matrix_ok(&next.out) || (r && !view_matrix_ok(r)))
            return;
        *w = next;
    }
}

static enum status launch_matmul(struct cg *c, node_id n) {
    struct graph *g = c->g;
    struct product alone = {.nodes = {n.i}, .n = 1, .result = node_out(g, n, 0)};
    const struct product *p = c->nodes[n.i].product ? c->nodes[n.i].product : &alone;
    enum dtype t = val_type(g, node_out(g, n, 0))->dtype;
    enum dtype work = dtype_is_float(t) ? t : DT_f64;
    struct product_views w = {.nin = 2};
    struct plan_view out = result_view(c, p->result);
    str_id origin = unit_origin(c, p->nodes, p->n);
    if (view_count(&out) == 0) return ST_OK;
    for (int k = 0; k < 2; k++) TRY(converted(c, n, k, work, &w.in[k]));
    TRY(folded_views(c, n, p, &w));
    w.out = out;
    if (work != t) {
        struct type type = *val_type(g, p->result);
        type.dtype = work;
        w.out = buffer_view(c, buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, &type));
    }
    struct plan_view result = w.out;
    if (attr_bool(g, n, ATTR_trans_a)) swap_last(&w.in[0]);
    if (attr_bool(g, n, ATTR_trans_b)) swap_last(&w.in[1]);
    align_batch(&w.in[0], &result);
    align_batch(&w.in[1], &result);
    fold_batches(&w);
    struct plan_launch *l = launch_add(c, LAUNCH_matmul, w.in, w.nin, &w.out, 1, origin);
    folded_attrs(c, l, p);
    l->cost = folded_cost(c, n, p);
    if (work == t) return ST_OK;
    return group_convert(c, &result, &out, origin);
}
/* ---- codes ---------------------------------------------------------------------------------- */
/* Operand k as lines of K codes: [rows,K], leading axes folded. */
static enum status code_lines(struct cg *c, node_id n, int k, struct plan_view *out) {
    TRY(operand_view(c, n, k, out));
    TRY(aligned_start(c, n, out));
    int64_t rows = 1, depth = out->dims[out->rank - 1];
    for (int d = 0; d < out->rank - 1; d++) rows *= out->dims[d];
    out->rank = 2;
    out->dims[0] = rows, out->dims[1] = depth;
    out->strides[0] = depth, out->strides[1] = 1;
    return ST_OK;
}

static enum status residual_lines(struct cg *c, node_id n, val_id v, struct plan_view *r) {
    if (view_lines_ok(r, r->dtype, r)) return ST_OK;
    TRY(value_view(c, n, v, NEED_DENSE, r));
    TRY(aligned_start(c, n, r));
    return view_lines_ok(r, r->dtype, r)
               ? ST_OK
               : diag_error(c->ctx, ST_INTERNAL, node_origin(c->g, n), "a residual has gaps");
}

static enum status launch_scaled(struct cg *c, node_id n) {
    struct graph *g = c->g;
    struct product alone = {.nodes = {n.i}, .n = 1, .result = node_out(g, n, 0)};
    const struct product *p = c->nodes[n.i].product ? c->nodes[n.i].product : &alone;
    struct product_views w = {.nin = 4};
    w.out = result_view(c, p->result);
    str_id origin = unit_origin(c, p->nodes, p->n);
    for (int k = 0; k < 2; k++) TRY(code_lines(c, n, k, &w.in[k]));
    for (int k = 2; k < 4; k++) {
        TRY(operand_view(c, n, k, &w.in[k]));
        if (view_count(&w.in[k]) > 1) TRY(aligned_start(c, n, &w.in[k]));
    }
    TRY(folded_views(c, n, p, &w));
    if (!view_lines_ok(&w.out, w.out.dtype, &w.out)) /* see result_fits */
        return diag_error(c->ctx, ST_INTERNAL, node_origin(g, n), "a product's rows have gaps");
    if (w.residual) TRY(residual_lines(c, n, p->residual, &w.in[w.residual]));
    swap_last(&w.in[1]);
    struct plan_launch *l = launch_add(c, LAUNCH_matmul, w.in, w.nin, &w.out, 1, origin);
    folded_attrs(c, l, p);
    l->cost = folded_cost(c, n, p);
    return ST_OK;
}
const struct lowering lower_scaled_matmul = {.cls = CLASS_LAUNCH, .launch = launch_scaled};

const struct lowering lower_matmul = {.cls = CLASS_LAUNCH, .launch = launch_matmul};
