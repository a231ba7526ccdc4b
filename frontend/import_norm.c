// SPDX-License-Identifier: Apache-2.0
/* import_norm.c - handlers of normalisation, Dropout and losses: the ops whose meaning depends on
 * whether the model is trained. */
#include "frontend/importer.h"
#include <math.h>

/* ---- LayerNormalization and relatives ------------------------------------------------------ */
static val_id norm_node(struct importer *im, val_id x, int axis, double eps, bool rms) {
    struct attr a[2] = {{.key = ATTR_axis, .i = axis}, {.key = ATTR_eps, .f = eps}};
    return add_node(im, rms ? OP_rms_norm : OP_layer_norm, &x, 1, a, 2);
}

static val_id affine(struct importer *im, val_id y, val_id scale, val_id bias) {
    enum dtype t = ty(im, y).dtype;
    if (scale.i) y = op_2(im, OP_mul, y, cast_to(im, scale, t));
    if (bias.i) y = op_2(im, OP_add, y, cast_to(im, bias, t));
    return y;
}

static val_id optional_in(struct importer *im, const struct inode *n, int k) {
    return has_in(n, k) ? get(im, n, k) : VAL_NONE;
}

/* LayerNormalization, RMSNormalization and SimplifiedLayerNormalization. */
void h_layer_norm(struct importer *im, const struct inode *n, int rms) {
    val_id x = get(im, n, 0);
    int axis = axis_attr(im, n, -1, ty(im, x).rank);
    val_id y = norm_node(im, x, axis, node_float(n, "epsilon", 1e-5), rms);
    if (failed(im)) return;
    enum dtype stash = DT_f32;
    set_out(im, n, 0, affine(im, y, optional_in(im, n, 1), rms ? VAL_NONE : optional_in(im, n, 2)));
    if (has_out(n, 1)) set_out(im, n, 1, cast_to(im, val_at(y, 1), stash));
    if (has_out(n, 2) && !rms) set_out(im, n, 2, cast_to(im, val_at(y, 2), stash));
}

/* com.microsoft: norm(input + skip + bias); the sum is output 3. */
void h_skip_layer_norm(struct importer *im, const struct inode *n, int rms) {
    val_id sum = op_2(im, OP_add, get(im, n, 0), get(im, n, 1));
    int bias = rms ? 3 : 4;
    if (has_in(n, bias)) sum = op_2(im, OP_add, sum, get(im, n, bias));
    int rank = ty(im, sum).rank;
    if (failed(im)) return;
    if (rank < 1) {
        reject(im, ST_SHAPE, "input of rank 0");
        return;
    }
    val_id y = norm_node(im, sum, rank - 1, node_float(n, "epsilon", 1e-12), rms);
    set_out(im, n, 0, affine(im, y, optional_in(im, n, 2), rms ? VAL_NONE : optional_in(im, n, 3)));
    if (has_out(n, 1) || has_out(n, 2)) {
        refuse(im, "the mean and deviation outputs");
        return;
    }
    set_out(im, n, 3, sum);
}

/* A [C] vector as [C,1,..] against [N,C,s..]. */
static val_id per_channel(struct importer *im, val_id v, int rank) {
    struct type t = ty(im, v);
    dim shape[RANK_MAX];
    if (failed(im) || v.i == 0) return VAL_NONE;
    if (t.rank != 1) {
        reject(im, ST_SHAPE, "per-channel operand of rank %d, expected 1", t.rank);
        return VAL_NONE;
    }
    for (int i = 0; i < rank - 1; i++) shape[i] = i ? 1 : t.dims[0];
    return reshape(im, v, shape, rank - 1);
}

void h_instance_norm(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    int rank = ty(im, x).rank;
    if (!failed(im) && rank < 3) {
        reject(im, ST_SHAPE, "input must be [N,C,s..]");
        return;
    }
    val_id y = norm_node(im, x, 2, node_float(n, "epsilon", 1e-5), false);
    set_out(
        im, n, 0,
        affine(im, y, per_channel(im, get(im, n, 1), rank), per_channel(im, get(im, n, 2), rank)));
}

/* Scale and bias per channel (opset 21) or per group (opset 18). */
void h_group_norm(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), scale = get(im, n, 1), bias = get(im, n, 2);
    struct type t = ty(im, x), g = {.dtype = t.dtype};
    int64_t groups = node_int(n, "num_groups", 0);
    dim each;
    if (failed(im)) return;
    if (t.rank < 2 || groups < 1 || !dim_div(im->g->dims, t.dims[1], groups, &each)) {
        reject(im, ST_SHAPE, "channels do not divide into %lld groups", (long long)groups);
        return;
    }
    if (t.rank + 1 > RANK_MAX) {
        refuse(im, "rank over %d", RANK_MAX - 1);
        return;
    }
    g.rank = t.rank + 1;
    g.dims[0] = t.dims[0];
    g.dims[1] = groups;
    g.dims[2] = each;
    for (int i = 2; i < t.rank; i++) g.dims[i + 1] = t.dims[i];
    val_id y =
        norm_node(im, reshape(im, x, g.dims, g.rank), 2, node_float(n, "epsilon", 1e-5), false);
    if (!dim_same(ty(im, scale).dims[0], t.dims[1])) { /* per group */
        y = affine(im, y, per_channel(im, scale, g.rank), per_channel(im, bias, g.rank));
        set_out(im, n, 0, reshape(im, y, t.dims, t.rank));
        return;
    }
    y = reshape(im, y, t.dims, t.rank);
    set_out(im, n, 0, affine(im, y, per_channel(im, scale, t.rank), per_channel(im, bias, t.rank)));
}

void h_lp_norm(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), zero = scalar(im, ty(im, x).dtype, 0);
    int64_t axis = axis_attr(im, n, -1, ty(im, x).rank), p = node_int(n, "p", 2);
    if (p != 1 && p != 2) {
        refuse(im, "p = %lld", (long long)p);
        return;
    }
    val_id s = reduce(im, OP_reduce_sum, p == 1 ? op_1(im, OP_abs, x) : op_2(im, OP_mul, x, x),
                      &axis, 1, true);
    if (p == 2) s = op_1(im, OP_sqrt, s);
    val_id none = op_2(im, OP_eq, s, zero); /* a zero vector stays zero */
    s = op_3(im, OP_where, none, scalar(im, ty(im, x).dtype, 1), s);
    set_out(im, n, 0, op_2(im, OP_div, x, s));
}

void h_mean_variance(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    int64_t axes[RANK_MAX] = {0, 2, 3};
    int count = 3, rank = ty(im, x).rank;
    if (node_has(n, "axes") && !axes_of(im, n, 1, rank, axes, &count)) return;
    val_id d = op_2(im, OP_sub, x, reduce(im, OP_reduce_mean, x, axes, count, true));
    val_id v = reduce(im, OP_reduce_mean, op_2(im, OP_mul, d, d), axes, count, true);
    set_out(im, n, 0, op_2(im, OP_div, d, shift_by(im, op_1(im, OP_sqrt, v), 1e-9)));
}

/* ---- BatchNormalization -------------------------------------------------------------------- */
/* Elements of a channel over elements minus one: from the population to the unbiased variance. */
static val_id bessel(struct importer *im, const struct type *x, enum dtype t) {
    dim count = 1;
    for (int i = 0; i < x->rank; i++)
        if (i != 1) count = dim_times(im, count, x->dims[i]);
    if (dim_known(count)) return scalar(im, t, count > 1 ? (double)count / ((double)count - 1) : 1);
    val_id c = dim_value(im, t, count);
    return op_2(im, OP_div, c, op_2(im, OP_max, shift_by(im, c, -1), scalar(im, t, 1)));
}

/* running*momentum + batch*(1-momentum), and the statistic's update when the file stores it. */
static val_id running(struct importer *im, const struct inode *n, int k, val_id batch,
                      double momentum) {
    val_id old = get(im, n, k);
    struct type t = ty(im, old);
    if (failed(im)) return VAL_NONE;
    batch = cast_to(im, reshape(im, batch, t.dims, t.rank), t.dtype);
    val_id next = op_2(im, OP_add, scale_by(im, old, momentum), scale_by(im, batch, 1 - momentum));
    if (failed(im) || val_op(im->g, old) != OP_state) return next;
    for (uint32_t i = 0; i < im->g->updates.n; i++)
        if (im->g->updates.at[i].target.i == old.i) {
            diag_note(im->ctx, n->origin,
                      "shares its running statistics with an earlier "
                      "BatchNormalization, which alone updates them");
            return next;
        }
    graph_add_update(im->g, old, next);
    return next;
}

/* Training: the batch's own statistics, and the running ones follow as state. ONNX would store the
 * population variance; files come from PyTorch, which stores the unbiased one, and so do we (its
 * momentum is one minus ONNX's). Otherwise: the stored statistics. */
void h_batch_norm(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), scale = get(im, n, 1), bias = get(im, n, 2);
    struct type t = ty(im, x);
    double eps = node_float(n, "epsilon", 1e-5), momentum = node_float(n, "momentum", 0.9);
    int64_t axes[RANK_MAX];
    int count = 0;
    if (failed(im)) return;
    if (t.rank < 2) {
        reject(im, ST_SHAPE, "input must be [N,C,..], found rank %d", t.rank);
        return;
    }
    if (n->opset < 9 && node_int(n, "spatial", 1) == 0) {
        refuse(im, "spatial = 0");
        return;
    }
    for (int i = 0; i < t.rank; i++)
        if (i != 1) axes[count++] = i;
    bool file_trains = n->opset >= 14 ? node_int(n, "training_mode", 0) != 0 : n->nout > 1;
    if (n->opset < 7) file_trains = node_int(n, "is_test", 0) == 0 && n->nout > 1;
    if (!im->o->training && !file_trains) {
        val_id mean = per_channel(im, cast_to(im, get(im, n, 3), t.dtype), t.rank);
        val_id var = per_channel(im, cast_to(im, get(im, n, 4), t.dtype), t.rank);
        val_id y =
            op_2(im, OP_mul, op_2(im, OP_sub, x, mean), op_1(im, OP_rsqrt, shift_by(im, var, eps)));
        set_out(im, n, 0,
                affine(im, y, per_channel(im, scale, t.rank), per_channel(im, bias, t.rank)));
        return;
    }
    im->batch_norms_switched += im->o->training && !file_trains;
    bool updates = im->o->training;
    val_id mean = reduce(im, OP_reduce_mean, x, axes, count, true);
    val_id d = op_2(im, OP_sub, x, mean);
    val_id var = reduce(im, OP_reduce_mean, op_2(im, OP_mul, d, d), axes, count, true);
    val_id y = op_2(im, OP_mul, d, op_1(im, OP_rsqrt, shift_by(im, var, eps)));
    set_out(im, n, 0, affine(im, y, per_channel(im, scale, t.rank), per_channel(im, bias, t.rank)));
    if (!updates && !has_out(n, 1) && !has_out(n, 2)) return;
    val_id stored = updates ? op_2(im, OP_mul, var, bessel(im, &t, t.dtype)) : var;
    set_out(im, n, 1, running(im, n, 3, mean, momentum));
    set_out(im, n, 2, running(im, n, 4, stored, momentum));
    if (has_out(n, 3) || has_out(n, 4)) refuse(im, "the saved_mean and saved_var outputs");
}

/* ---- Dropout ------------------------------------------------------------------------------- */
static bool dropout_active(struct importer *im, const struct inode *n, double ratio) {
    double mode;
    if (!im->o->training || ratio <= 0) return false;
    if (n->opset < 12) return n->opset >= 7 || node_int(n, "is_test", 0) == 0;
    if (!has_in(n, 2)) { /* by the specification such a node does nothing, ever */
        im->dropouts_inert++;
        return false;
    }
    if (!known_float(im, n, 2, &mode)) return true; /* the flag is an input: this is training */
    if (mode == 0)
        diag_note(im->ctx, n->origin,
                  "Dropout was exported switched off; it is active in training (ratio %g)", ratio);
    return true;
}

void h_dropout(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    double ratio = 0.5;
    if (n->opset < 12)
        ratio = node_float(n, "ratio", 0.5);
    else if (has_in(n, 1) && !known_float(im, n, 1, &ratio)) {
        refuse(im, "a ratio that is computed at run time");
        return;
    }
    if (failed(im)) return;
    if (!(ratio >= 0 && ratio < 1)) {
        reject(im, ST_SHAPE, "ratio %g, expected 0 <= ratio < 1", ratio);
        return;
    }
    if (!dropout_active(im, n, ratio)) {
        set_out(im, n, 0, x);
        if (has_out(n, 1)) set_out(im, n, 1, full(im, DT_bool, t.dims, t.rank, 1));
        return;
    }
    val_id u = random_uniform(im, DT_f32, t.dims, t.rank);
    val_id keep = op_2(im, OP_le, scalar(im, DT_f32, ratio), u);
    val_id y = op_2(im, OP_mul, x, cast_to(im, keep, t.dtype));
    set_out(im, n, 0, scale_by(im, y, 1 / (1 - ratio)));
    set_out(im, n, 1, keep);
}

/* ---- losses -------------------------------------------------------------------------------- */
/* [N,C,d..] to [N*d.., C], as labels [N,d..] are flattened. */
static val_id classes_last(struct importer *im, val_id x, struct type *t) {
    int64_t perm[RANK_MAX];
    *t = ty(im, x);
    if (failed(im)) return VAL_NONE;
    if (t->rank < 2) {
        reject(im, ST_SHAPE, "scores must be [N,C,..], found rank %d", t->rank);
        return VAL_NONE;
    }
    perm[0] = 0;
    for (int i = 1; i < t->rank - 1; i++) perm[i] = i + 1;
    perm[t->rank - 1] = 1;
    dim flat[2] = {1, t->dims[1]};
    for (int i = 0; i < t->rank; i++)
        if (i != 1) flat[0] = dim_times(im, flat[0], t->dims[i]);
    return reshape(im, transpose(im, x, perm), flat, 2);
}

/* Sum of the losses over the sum of the weights of what is not ignored; 0 when all is ignored. */
static val_id loss_mean(struct importer *im, val_id loss, val_id weight) {
    int64_t axis = 0;
    enum dtype t = ty(im, loss).dtype;
    val_id total = reduce(im, OP_reduce_sum, loss, &axis, 1, false);
    val_id sum = reduce(im, OP_reduce_sum, weight, &axis, 1, false);
    val_id none = op_2(im, OP_eq, sum, scalar(im, t, 0));
    return op_2(im, OP_div, total, op_3(im, OP_where, none, scalar(im, t, 1), sum));
}

/* SoftmaxCrossEntropyLoss (softmax) and NegativeLogLikelihoodLoss, per label -w[y] * logp[y]. */
void h_cross_entropy(struct importer *im, const struct inode *n, int softmax) {
    struct type t, lt = in_type(im, n, 1);
    val_id x = get(im, n, 0), rows = classes_last(im, x, &t);
    dim count = ty(im, rows).dims[0];
    val_id y = reshape(im, cast_to(im, get(im, n, 1), DT_i64), &count, 1), loss;
    bool ignores = node_has(n, "ignore_index");
    int64_t ignore = node_int(n, "ignore_index", -100);
    if (failed(im)) return;
    val_id kept = op_2(im, OP_ne, y, scalar_int(im, DT_i64, ignore));
    val_id safe = ignores ? op_3(im, OP_where, kept, y, scalar_int(im, DT_i64, 0)) : y;
    if (softmax) {
        val_id in[2] = {rows, y};
        struct attr a = {.key = ATTR_ignore_index, .i = ignore};
        loss = add_node(im, OP_cross_entropy, in, 2, &a, 1);
    } else {
        val_id in[2] = {rows, unsqueeze(im, safe, 1)};
        struct attr a = {.key = ATTR_axis, .i = 1};
        loss = op_1(im, OP_neg, squeeze(im, add_node(im, OP_gather_elements, in, 2, &a, 1), 1));
    }
    val_id weight = cast_to(im, kept, t.dtype);
    if (has_in(n, 2)) weight = op_2(im, OP_mul, gather(im, get(im, n, 2), safe, 0), weight);
    if (has_in(n, 2) || (ignores && !softmax)) loss = op_2(im, OP_mul, loss, weight);
    int64_t axis = 0;
    if (node_str_is(n, "reduction", "none"))
        loss = reshape(im, loss, lt.dims, lt.rank);
    else if (node_str_is(n, "reduction", "sum"))
        loss = reduce(im, OP_reduce_sum, loss, &axis, 1, false);
    else if (ignores || has_in(n, 2))
        loss = loss_mean(im, loss, weight);
    else
        loss = reduce(im, OP_reduce_mean, loss, &axis, 1, false);
    set_out(im, n, 0, loss);
    if (has_out(n, 1)) set_out(im, n, 1, with_axis(im, OP_log_softmax, x, 1));
}
