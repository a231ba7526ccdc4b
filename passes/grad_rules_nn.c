// SPDX-License-Identifier: Apache-2.0
/* grad_rules_nn.c - gradient rules of products, pooling and the composites. */
#include "base/diag.h"
#include "passes/grad.h"

/* ---- matmul --------------------------------------------------------------------------------
 * Y = A'B' with A' = A or its transpose: dA' = g B'^T, dB' = A'^T g; a transposed operand gets its
 * gradient transposed by swapping the product, never by moving data. */
static bool one_matrix(const struct type *t) {
    for (int i = 0; i < t->rank - 2; i++)
        if (t->dims[i] != 1) return false;
    return true;
}

/* [.., R, C] -> [..*R, C] */
static val_id flat_rows(struct grad_node *s, val_id v) {
    struct type t = grad_type(s, v), flat = {.rank = 2, .dims = {1, t.dims[t.rank - 1]}};
    for (int i = 0; i < t.rank - 1; i++)
        flat.dims[0] = dim_mul(s->g->dims, flat.dims[0], t.dims[i]);
    return t.rank == 2 ? v : e_reshape(s, v, &flat);
}

/* dB of one matrix B under a batched A: one product over all rows instead of a product for each
 * batch and a sum. */
static enum status shared_rhs(struct grad_node *s, bool ta, bool tb) {
    struct type t = grad_type(s, s->b);
    val_id a = flat_rows(s, ta ? build_swap_last(s->g, s->a, s->o) : s->a);
    val_id g = flat_rows(s, s->dy);
    val_id db = tb ? build_matmul(s->g, g, a, true, false, s->o)
                   : build_matmul(s->g, a, g, true, false, s->o);
    return grad_acc(s, 1, e_reshape(s, db, &t));
}

enum status grad_matmul(struct grad_node *s) {
    bool ta = attr_bool(s->g, s->n, ATTR_trans_a), tb = attr_bool(s->g, s->n, ATTR_trans_b);
    struct type a = grad_type(s, s->a), b = grad_type(s, s->b), y = grad_type(s, s->y);
    val_id g = s->dy;
    if (grad_wants(s, 0))
        TRY(grad_acc(s, 0,
                     ta ? build_matmul(s->g, s->b, g, tb, true, s->o)
                        : build_matmul(s->g, g, s->b, false, !tb, s->o)));
    if (!grad_wants(s, 1)) return ST_OK;
    a.rank -= 2;
    y.rank -= 2;
    a.dtype = y.dtype;
    if (y.rank > 0 && one_matrix(&b) && type_equal(&a, &y)) return shared_rhs(s, ta, tb);
    return grad_acc(s, 1,
                    tb ? build_matmul(s->g, g, s->a, true, ta, s->o)
                       : build_matmul(s->g, s->a, g, !ta, false, s->o));
}

/* ---- convolution: three ops closed under differentiation ------------------------------------ */
static val_id conv_like(struct grad_node *s, enum op op, val_id a, val_id b, const struct type *t) {
    int n;
    struct attr attrs[5] = {{.key = ATTR_strides}, {.key = ATTR_pads}, {.key = ATTR_dilations}};
    for (int i = 0; i < 3; i++) {
        attrs[i].list = attr_ints(s->g, s->n, attrs[i].key, &n);
        attrs[i].n = n;
    }
    attrs[3] = (struct attr){.key = ATTR_groups, .i = attr_int(s->g, s->n, ATTR_groups)};
    if (t) attrs[4] = (struct attr){.key = ATTR_shape, .list = t->dims, .n = t->rank};
    val_id in[2] = {a, b};
    return graph_add(s->g, op, in, 2, attrs, t ? 5 : 4, s->o);
}

enum status grad_conv(struct grad_node *s) { /* (x, w) */
    struct type x = grad_type(s, s->a), w = grad_type(s, s->b);
    if (grad_wants(s, 0)) TRY(grad_acc(s, 0, conv_like(s, OP_conv_input_grad, s->dy, s->b, &x)));
    if (!grad_wants(s, 1)) return ST_OK;
    return grad_acc(s, 1, conv_like(s, OP_conv_weight_grad, s->a, s->dy, &w));
}

enum status grad_conv_input_grad(struct grad_node *s) { /* (g, w) -> x; linear in both */
    struct type w = grad_type(s, s->b);
    if (grad_wants(s, 0)) TRY(grad_acc(s, 0, conv_like(s, OP_conv, s->dy, s->b, NULL)));
    if (!grad_wants(s, 1)) return ST_OK;
    return grad_acc(s, 1, conv_like(s, OP_conv_weight_grad, s->dy, s->a, &w));
}

enum status grad_conv_weight_grad(struct grad_node *s) { /* (x, g) -> w; linear in both */
    struct type x = grad_type(s, s->a);
    if (grad_wants(s, 0)) TRY(grad_acc(s, 0, conv_like(s, OP_conv_input_grad, s->b, s->dy, &x)));
    if (!grad_wants(s, 1)) return ST_OK;
    return grad_acc(s, 1, conv_like(s, OP_conv, s->a, s->dy, NULL));
}

/* [N,C,s..] -> [N,C,prod s] */
static struct type plane(struct grad_node *s, val_id v) {
    struct type t = grad_type(s, v);
    for (int i = 3; i < t.rank; i++) t.dims[2] = dim_mul(s->g->dims, t.dims[2], t.dims[i]);
    t.rank = 3;
    return t;
}

enum status grad_max_pool(struct grad_node *s) {
    struct type x = grad_type(s, s->a), in = plane(s, s->a), out = plane(s, s->y);
    val_id list[3] = {build_full(s->g, &in, 0.0, s->o), e_reshape(s, node_out(s->g, s->n, 1), &out),
                      e_reshape(s, s->dy, &out)};
    struct attr attrs[2] = {{.key = ATTR_axis, .i = 2}, {.key = ATTR_add, .i = 1}};
    val_id dx = graph_add(s->g, OP_scatter_elements, list, 3, attrs, 2, s->o);
    return grad_acc(s, 0, e_reshape(s, dx, &x));
}

/* ---- softmax and norms ---------------------------------------------------------------------- */
static val_id sum_axis(struct grad_node *s, val_id v) {
    int64_t axis = attr_int(s->g, s->n, ATTR_axis);
    return build_reduce(s->g, OP_reduce_sum, v, &axis, 1, true, s->o);
}

enum status grad_softmax(struct grad_node *s) { /* y*(g - sum(g*y)) */
    val_id inner = sum_axis(s, e_mul(s, s->dy, s->y));
    return grad_acc(s, 0, e_mul(s, s->y, e_sub(s, s->dy, inner)));
}

enum status grad_log_softmax(struct grad_node *s) { /* g - exp(y)*sum(g) */
    val_id p = e_1(s, OP_exp, s->y);
    return grad_acc(s, 0, e_sub(s, s->dy, e_mul(s, p, sum_axis(s, s->dy))));
}

/* xh = (x - mean)*rstd: dx = rstd*(g - mean(g) - xh*mean(g*xh)). The mean passes gm/N to every
 * element, rstd = (var + eps)^(-1/2) passes -gr*rstd^2*xh/N. xh is computed again from x, which is
 * kept anyway, so that it need not be kept too. Without `mean` this is the root mean square norm.
 */
static enum status norm(struct grad_node *s, bool centred, val_id mean, val_id rstd) {
    struct type t = grad_type(s, s->a);
    int64_t axes[RANK_MAX];
    int n = 0;
    for (int64_t i = attr_int(s->g, s->n, ATTR_axis); i < t.rank; i++) axes[n++] = i;
    val_id xh = e_mul(s, centred ? e_sub(s, s->a, mean) : s->a, rstd), g = s->dy;
    val_id along = build_reduce(s->g, OP_reduce_mean, e_mul(s, g, xh), axes, n, true, s->o);
    val_id dx = g;
    if (centred) dx = e_sub(s, dx, build_reduce(s->g, OP_reduce_mean, g, axes, n, true, s->o));
    dx = e_mul(s, rstd, e_sub(s, dx, e_mul(s, xh, along)));
    val_id gr = grad_out(s, centred ? 2 : 1), gm = centred ? grad_out(s, 1) : VAL_NONE;
    if (gm.i) dx = e_add(s, dx, grad_mean(s, gm, &t, axes, n));
    if (gr.i) {
        val_id k = grad_mean(s, e_mul(s, gr, e_mul(s, rstd, rstd)), &t, axes, n);
        dx = e_sub(s, dx, e_mul(s, k, xh));
    }
    return grad_acc(s, 0, dx);
}

enum status grad_layer_norm(struct grad_node *s) {
    return norm(s, true, node_out(s->g, s->n, 1), node_out(s->g, s->n, 2));
}

enum status grad_rms_norm(struct grad_node *s) {
    return norm(s, false, VAL_NONE, node_out(s->g, s->n, 1));
}

/* ---- attention and cross entropy ------------------------------------------------------------ */
enum status grad_attention(struct grad_node *s) {
    const char *origin = node_origin(s->g, s->n);
    int nin = graph_node(s->g, s->n)->nin;
    if (nin > 3 && grad_wants(s, 3))
        return diag_error(s->g->ctx, ST_UNSUPPORTED, origin,
                          "the attention mask depends on a trained parameter; a gradient of the "
                          "mask is not supported: freeze that parameter");
    if (grad_out(s, 1).i)
        return diag_error(s->g->ctx, ST_UNSUPPORTED, origin,
                          "the loss depends on the attention's log-sum-exp; its gradient is not "
                          "supported");
    struct attr attrs[3] = {
        {.key = ATTR_scale, .f = attr_float(s->g, s->n, ATTR_scale)},
        {.key = ATTR_causal, .i = attr_bool(s->g, s->n, ATTR_causal)},
        {.key = ATTR_softcap, .f = attr_float(s->g, s->n, ATTR_softcap)},
    };
    val_id in[7] = {s->a, s->b, grad_in(s, 2), s->y, node_out(s->g, s->n, 1), s->dy};
    if (nin > 3) in[6] = grad_in(s, 3);
    val_id out = graph_add(s->g, OP_attention_grad, in, 3 + nin, attrs, 3, s->o);
    for (int k = 0; k < 3; k++) TRY(grad_acc(s, k, val_at(out, k)));
    return ST_OK;
}

/* (softmax(x) - onehot(label))*g, 0 in ignored rows; lse passes softmax(x)*glse. The saved lse is
 * f32: narrower logits are widened to it, f64 logits go through softmax again. */
enum status grad_cross_entropy(struct grad_node *s) {
    struct type t = grad_type(s, s->a), col = {.dtype = DT_i64, .rank = 2, .dims = {t.dims[0], 1}};
    enum dtype wide = t.dtype == DT_f64 ? DT_f64 : DT_f32;
    val_id x = build_cast(s->g, s->a, wide, s->o), p, one = e_num(s, x, 1.0),
           zero = e_num(s, x, 0.0);
    if (wide == DT_f64) {
        struct attr axis = {.key = ATTR_axis, .i = 1};
        p = graph_add(s->g, OP_softmax, &x, 1, &axis, 1, s->o);
    } else {
        p = e_1(s, OP_exp, e_sub(s, x, e_reshape(s, node_out(s->g, s->n, 1), &col)));
    }
    val_id label = e_reshape(s, s->b, &col), g = build_cast(s->g, s->dy, wide, s->o);
    val_id skip = build_scalar_int(s->g, DT_i64, attr_int(s->g, s->n, ATTR_ignore_index), s->o);
    g = e_where(s, e_2(s, OP_eq, label, skip), zero, e_reshape(s, g, &col));
    val_id hit = e_2(s, OP_eq, label, build_iota(s->g, DT_i64, t.dims[1], 0.0, 1.0, s->o));
    val_id dx = e_mul(s, e_sub(s, p, e_where(s, hit, one, zero)), g);
    val_id glse = grad_out(s, 1);
    if (glse.i) {
        glse = build_cast(s->g, e_reshape(s, glse, &col), wide, s->o);
        dx = e_add(s, dx, e_mul(s, p, glse));
    }
    return grad_acc(s, 0, dx);
}

/* ---- quantization ----------------------------------------------------------------------------
 * Straight through: rounding is taken as the identity, scales as constants. */
enum status grad_dequantize(struct grad_node *s) {
    if (!grad_wants(s, 0)) return ST_OK;
    node_id q = val_def(s->g, s->a);
    if (val_op(s->g, s->a) != OP_quantize)
        return diag_error(s->g->ctx, ST_UNSUPPORTED, interned(&s->g->strings, s->o),
                          "the gradient of dequantize is that of the operand of quantize; expected "
                          "codes that come from quantize, found those of %s",
                          op_info(val_op(s->g, s->a))->name);
    return grad_acc_value(s, node_in(s->g, q, 0), s->dy);
}
