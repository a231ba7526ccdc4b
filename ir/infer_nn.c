// SPDX-License-Identifier: Apache-2.0
/* infer_nn.c - result types of convolution, pooling, normalisation, attention, losses and
 * optimizers. */
#include "ir/infer.h"
#include <math.h>

/* ---- windows ------------------------------------------------------------------------------- */
enum { WINDOW_MAX = RANK_MAX - 2 };
struct window {
    int n; /* spatial axes */
    const int64_t *strides, *pads, *dilations;
    bool ceil;
};

static enum status read_window(struct infer *x, int rank, struct window *w) {
    w->n = rank - 2;
    w->ceil = false;
    TRY(infer_numbers(x, ATTR_strides, w->n, 1, INFER_DIM_MAX, &w->strides));
    TRY(infer_numbers(x, ATTR_dilations, w->n, 1, INFER_DIM_MAX, &w->dilations));
    return infer_numbers(x, ATTR_pads, 2 * w->n, 0, INFER_DIM_MAX, &w->pads);
}

/* floor(n / s) of a symbolic n: n - r is a multiple of s for one small r >= 0, or we cannot say. */
static enum status floor_div(struct infer *x, dim n, int64_t s, dim *out) {
    if (dim_known(n)) {
        *out = n / s;
        return ST_OK;
    }
    for (int64_t r = 0; r < s && r < 64; r++) {
        dim m;
        TRY(infer_sub(x, n, r, &m));
        if (dim_div(x->g->dims, m, s, out)) return ST_OK;
    }
    return infer_fail(x, ST_UNSUPPORTED,
                      "cannot divide the symbolic size %s by stride %lld; give it a number",
                      infer_show_dim(x, n), (long long)s);
}

/* Positions of a window of `k` taps on spatial axis i of size `size` (ONNX Conv, MaxPool):
 * floor or ceil((size + pads - dilation*(k-1) - 1) / stride) + 1, where with `ceil` no window may
 * start in the padding after the end. */
static enum status window_count(struct infer *x, const struct window *w, int i, dim size, dim k,
                                dim *out) {
    dim taps, padded, room, n, s = w->strides[i];
    if (k == 0) return infer_fail(x, ST_SHAPE, "the window is empty on spatial axis %d", i);
    TRY(infer_sub(x, k, 1, &taps));
    TRY(infer_mul(x, taps, w->dilations[i], &taps));
    TRY(infer_add(x, taps, 1, &taps));
    TRY(infer_add(x, size, w->pads[i], &padded));
    TRY(infer_add(x, padded, w->pads[w->n + i], &padded));
    if (dim_known(padded) && dim_known(taps) && padded < taps)
        return infer_fail(x, ST_SHAPE,
                          "a window of %lld does not fit the padded size %lld of spatial axis %d",
                          (long long)taps, (long long)padded, i);
    TRY(infer_sub(x, padded, taps, &room));
    if (!w->ceil) {
        TRY(floor_div(x, room, s, &n));
    } else if (dim_known(room)) {
        n = (room + s - 1) / s;
        if (n * s >= size + w->pads[i]) n--;
    } else if (s == 1) {
        n = room;
    } else {
        return infer_fail(x, ST_UNSUPPORTED, "'ceil' needs a known size, found %s",
                          infer_show_dim(x, size));
    }
    return infer_add(x, n, 1, out);
}

/* The result of cross-correlating `in` with `w`; names the operands in messages by their types. */
static enum status conv_shape(struct infer *x, const struct type *in, const struct type *w,
                              struct type *out) {
    struct window win;
    if (in->rank < 3 || w->rank != in->rank)
        return infer_fail(x, ST_SHAPE,
                          "input and weight must have one rank of 3 or more, found %s and %s",
                          infer_show(x, in), infer_show(x, w));
    TRY(read_window(x, in->rank, &win));
    int64_t groups = infer_int(x, ATTR_groups);
    if (groups < 1 || groups > INFER_DIM_MAX)
        return infer_fail(x, ST_SHAPE, "'groups' must be 1 or more, found %lld", (long long)groups);
    dim channels, per_group;
    TRY(infer_mul(x, w->dims[1], groups, &channels));
    if (!dim_same(channels, in->dims[1]))
        return infer_fail(x, ST_SHAPE,
                          "channels differ: input %s has %s, weight %s with %lld groups wants %s",
                          infer_show(x, in), infer_show_dim(x, in->dims[1]), infer_show(x, w),
                          (long long)groups, infer_show_dim(x, channels));
    if (groups > 1 && !dim_div(x->g->dims, w->dims[0], groups, &per_group))
        return infer_fail(x, ST_SHAPE, "%s output channels do not divide into %lld groups",
                          infer_show_dim(x, w->dims[0]), (long long)groups);
    struct type r = {.dtype = in->dtype, .rank = in->rank};
    r.dims[0] = in->dims[0];
    r.dims[1] = w->dims[0];
    for (int i = 0; i < win.n; i++)
        TRY(window_count(x, &win, i, in->dims[2 + i], w->dims[2 + i], &r.dims[2 + i]));
    *out = r;
    return ST_OK;
}

enum status infer_conv(struct infer *x) {
    TRY(infer_want_float(x, 0));
    TRY(infer_want_alike(x, 0, 1));
    return conv_shape(x, &x->in[0], &x->in[1], &x->out[0]);
}

enum status infer_conv_input_grad(struct infer *x) { /* (g, w) -> x */
    struct type in = {.dtype = x->in[0].dtype}, g;
    TRY(infer_want_float(x, 0));
    TRY(infer_want_alike(x, 0, 1));
    TRY(infer_shape_attr(x, &in));
    TRY(conv_shape(x, &in, &x->in[1], &g));
    TRY(infer_want_type(x, 0, &g, "the gradient"));
    x->out[0] = in;
    return ST_OK;
}

enum status infer_conv_weight_grad(struct infer *x) { /* (x, g) -> w */
    struct type w = {.dtype = x->in[0].dtype}, g;
    TRY(infer_want_float(x, 0));
    TRY(infer_want_alike(x, 0, 1));
    TRY(infer_shape_attr(x, &w));
    TRY(conv_shape(x, &x->in[0], &w, &g));
    TRY(infer_want_type(x, 1, &g, "the gradient"));
    x->out[0] = w;
    return ST_OK;
}

enum status infer_max_pool(struct infer *x) {
    const struct type *in = &x->in[0];
    const int64_t *kernel;
    struct window w;
    if (in->dtype == DT_bool)
        return infer_fail(x, ST_TYPE, "operand 0 must be numeric, found %s", infer_show(x, in));
    if (in->rank < 3)
        return infer_fail(x, ST_SHAPE, "operand 0 must be [N,C,s..], found %s", infer_show(x, in));
    TRY(read_window(x, in->rank, &w));
    TRY(infer_numbers(x, ATTR_kernel, w.n, 1, INFER_DIM_MAX, &kernel));
    w.ceil = infer_int(x, ATTR_ceil) != 0;
    x->out[0] = *in;
    for (int i = 0; i < w.n; i++) {
        /* A window that sees padding only would have no maximum. */
        if (w.pads[i] >= kernel[i] || w.pads[w.n + i] >= kernel[i])
            return infer_fail(x, ST_SHAPE,
                              "padding %lld and %lld of spatial axis %d must be smaller than "
                              "the window of %lld",
                              (long long)w.pads[i], (long long)w.pads[w.n + i], i,
                              (long long)kernel[i]);
        if (in->dims[2 + i] == 0)
            return infer_fail(x, ST_SHAPE, "spatial axis %d of %s is empty", i, infer_show(x, in));
        TRY(window_count(x, &w, i, in->dims[2 + i], kernel[i], &x->out[0].dims[2 + i]));
    }
    x->out[1] = x->out[0];
    x->out[1].dtype = DT_i64;
    return ST_OK;
}

/* ---- normalisation ------------------------------------------------------------------------- */
/* out[0] like x; out[1..outs) with axes [axis..rank) of size 1. */
static enum status infer_norm(struct infer *x, int outs) {
    int axis;
    TRY(infer_want_float(x, 0));
    TRY(infer_axis(x, x->in[0].rank, &axis));
    TRY(infer_number(x, ATTR_eps, 0.0));
    x->out[0] = x->in[0];
    for (int k = 1; k < outs; k++) {
        x->out[k] = x->in[0];
        for (int i = axis; i < x->in[0].rank; i++) x->out[k].dims[i] = 1;
    }
    return ST_OK;
}

enum status infer_layer_norm(struct infer *x) {
    return infer_norm(x, 3);
}

enum status infer_rms_norm(struct infer *x) {
    return infer_norm(x, 2);
}

/* ---- attention ----------------------------------------------------------------------------- */
/* q, k, v are operands 0..2, the mask operand `mask` if there is one. Gives y and lse. */
static enum status check_attention(struct infer *x, int mask, struct type *y, struct type *lse) {
    const struct type *q = &x->in[0], *k = &x->in[1], *v = &x->in[2];
    TRY(infer_want_float(x, 0));
    TRY(infer_want_alike(x, 0, 1));
    TRY(infer_want_alike(x, 0, 2));
    TRY(infer_want_rank(x, 0, 4, "q [B,H,T,D]"));
    TRY(infer_want_rank(x, 1, 4, "k [B,K,S,D]"));
    TRY(infer_want_rank(x, 2, 4, "v [B,K,S,E]"));
    const char *why = !dim_same(q->dims[0], k->dims[0]) || !dim_same(q->dims[0], v->dims[0])
                          ? "batch sizes differ"
                      : !dim_same(k->dims[1], v->dims[1]) ? "k and v differ in heads"
                      : !dim_same(k->dims[2], v->dims[2]) ? "k and v differ in length"
                      : !dim_same(q->dims[3], k->dims[3]) ? "q and k differ in head size"
                                                          : NULL;
    dim repeat;
    if (!why && !dim_same(q->dims[1], k->dims[1]) &&
        (k->dims[1] == 0 || !dim_div(x->g->dims, q->dims[1], k->dims[1], &repeat)))
        why = "q's heads are no multiple of k's";
    if (why)
        return infer_fail(x, ST_SHAPE, "%s: q %s, k %s, v %s", why, infer_show(x, q),
                          infer_show(x, k), infer_show(x, v));
    TRY(infer_number(x, ATTR_scale, -HUGE_VAL));
    TRY(infer_number(x, ATTR_softcap, 0.0));
    struct type s = *q, r;
    s.dims[3] = k->dims[2];
    if (mask < x->nin) {
        const struct type *m = &x->in[mask];
        if (m->dtype != DT_bool && !dtype_is_float(m->dtype))
            return infer_fail(x, ST_TYPE, "the mask must be bool or a float type, found %s",
                              infer_show(x, m));
        if (!type_broadcast(&s, m, &r) || !type_equal(&r, &s))
            return infer_fail(x, ST_SHAPE, "mask %s does not broadcast to the scores %s",
                              infer_show(x, m), infer_show(x, &s));
    }
    *y = *q;
    y->dims[3] = v->dims[3];
    *lse = *q;
    lse->dtype = DT_f32;
    lse->rank = 3;
    lse->dims[3] = 0;
    return ST_OK;
}

enum status infer_attention(struct infer *x) {
    return check_attention(x, 3, &x->out[0], &x->out[1]);
}

enum status infer_attention_grad(struct infer *x) { /* (q, k, v, y, lse, g[, mask]) */
    struct type y, lse;
    TRY(check_attention(x, 6, &y, &lse));
    TRY(infer_want_type(x, 3, &y, "y"));
    TRY(infer_want_type(x, 4, &lse, "lse"));
    TRY(infer_want_type(x, 5, &y, "the gradient of y"));
    for (int i = 0; i < 3; i++) x->out[i] = x->in[i];
    return ST_OK;
}

/* ---- loss and optimizers ------------------------------------------------------------------- */
enum status infer_cross_entropy(struct infer *x) {
    TRY(infer_want_float(x, 0));
    TRY(infer_want_rank(x, 0, 2, "logits [R,C]"));
    struct type rows = {.dtype = DT_i64, .rank = 1};
    rows.dims[0] = x->in[0].dims[0];
    TRY(infer_want_type(x, 1, &rows, "labels"));
    rows.dtype = x->in[0].dtype == DT_f64 ? DT_f64 : DT_f32;
    x->out[0] = rows;
    rows.dtype = DT_f32;
    x->out[1] = rows;
    return ST_OK;
}

enum status infer_sum_squares(struct infer *x) {
    for (int i = 0; i < x->nin; i++) TRY(infer_want_float(x, i));
    x->out[0] = type_scalar(DT_f32);
    return ST_OK;
}

enum status infer_gradient(struct infer *x) { /* (y, x) */
    for (int i = 0; i < 2; i++) TRY(infer_want_float(x, i));
    x->out[0] = x->in[1];
    return ST_OK;
}

static enum status check_rate(struct infer *x, enum attr_key k) {
    double f = x->attrs[k].f;
    if (isfinite(f) && f >= 0.0 && f <= 1.0) return ST_OK;
    return infer_fail(x, ST_USAGE, "'%s' must be between 0 and 1, found %g", attr_name(k), f);
}

static enum status check_adam(struct infer *x) {
    TRY(check_rate(x, ATTR_beta1));
    TRY(check_rate(x, ATTR_beta2));
    return infer_number(x, ATTR_eps, 0.0);
}

enum status infer_optimizer(struct infer *x) { /* (w, g, buffers.., lr, step) */
    int buffers = x->nin - 4;
    struct type lr = type_scalar(DT_f32), step = type_scalar(DT_i64);
    if (x->in[x->nin - 2].dtype == x->in[0].dtype) lr.dtype = x->in[0].dtype;
    TRY(infer_want_float(x, 0));
    TRY(infer_want_type(x, 1, &x->in[0], "the gradient"));
    for (int i = 0; i < buffers; i++) TRY(infer_want_type(x, 2 + i, &x->in[0], "optimizer state"));
    TRY(infer_want_type(x, x->nin - 2, &lr, "the learning rate"));
    TRY(infer_want_type(x, x->nin - 1, &step, "the step number"));
    TRY(infer_number(x, ATTR_weight_decay, 0.0));
    if (x->op == OP_adam) {
        TRY(check_adam(x));
    } else {
        TRY(infer_number(x, ATTR_momentum, 0.0));
        TRY(infer_number(x, ATTR_dampening, 0.0));
    }
    for (int i = 0; i <= buffers; i++) x->out[i] = x->in[0];
    return ST_OK;
}

/* One state of adam8: operand `at` and the two behind it. */
static enum status check_small_state(struct infer *x, int at, const char *what,
                                     enum attr_key range) {
    int64_t group = x->attrs[ATTR_group].i, n = type_count(&x->in[0]);
    struct type codes = x->in[0], amax = {.dtype = DT_f32, .rank = 1};
    enum dtype t = x->in[at].dtype;
    double r = x->attrs[range].f;
    if (t == DT_e4m3 || t == DT_e5m2) {
        codes.dtype = t;
        amax.dims[0] = n / group + (n % group != 0);
    }
    struct type k = amax;
    k.dtype = DT_u8;
    TRY(infer_want_type(x, at, &codes, what));
    TRY(infer_want_type(x, at + 1, &amax, "its scales"));
    TRY(infer_want_type(x, at + 2, &k, "its exponents"));
    if (r == 0.0 || (isfinite(r) && r >= 2.0)) return ST_OK;
    return infer_fail(x, ST_USAGE, "'%s' must be 0 or at least 2, found %g", attr_name(range), r);
}

/* (w, g, m, m_amax, m_k, v, v_amax, v_k, lr, step) */
enum status infer_adam8(struct infer *x) {
    struct type lr = type_scalar(DT_f32), step = type_scalar(DT_i64), w = x->in[0];
    int64_t group = x->attrs[ATTR_group].i;
    w.dtype = DT_f32;
    TRY(infer_want_type(x, 0, &w, "the weight"));
    TRY(infer_want_type(x, 1, &w, "the gradient"));
    if (type_count(&w) < 0) return infer_fail(x, ST_SHAPE, "the weight's size must be known");
    if (group != 32 && group != 64 && group != 128 && group != 256)
        return infer_fail(x, ST_USAGE, "'group' must be 32, 64, 128 or 256, found %lld",
                          (long long)group);
    TRY(check_small_state(x, 2, "m", ATTR_m_range));
    TRY(check_small_state(x, 5, "v", ATTR_v_range));
    TRY(infer_want_type(x, 8, &lr, "the learning rate"));
    TRY(infer_want_type(x, 9, &step, "the step number"));
    TRY(infer_number(x, ATTR_weight_decay, 0.0));
    TRY(check_adam(x));
    x->out[0] = w;
    for (int i = 1; i < 7; i++) x->out[i] = x->in[i + 1];
    return ST_OK;
}
