// SPDX-License-Identifier: Apache-2.0
/* import_math.c - handlers of elementwise ops, activations and reductions, by the IR's primitives.
 * Formulas are those of the ONNX operator specification. */
#include "frontend/importer.h"
#include <math.h>

/* ---- one operand --------------------------------------------------------------------------- */
void h_unary(struct importer *im, const struct inode *n, int op) {
    set_out(im, n, 0, op_1(im, (enum op)op, get(im, n, 0)));
}

/* All bits flipped: exclusive or with all ones. */
void h_bitwise_not(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    enum dtype t = ty(im, x).dtype;
    set_out(im, n, 0, op_2(im, OP_xor, x, scalar_int(im, t, t == DT_u8 ? 255 : -1)));
}

/* floor, ceil, round of integers are the integers. */
void h_rounding(struct importer *im, const struct inode *n, int op) {
    val_id x = get(im, n, 0);
    set_out(im, n, 0, dtype_is_float(ty(im, x).dtype) ? op_1(im, (enum op)op, x) : x);
}

void h_isinf(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    bool pos = node_int(n, "detect_positive", 1) != 0, neg = node_int(n, "detect_negative", 1) != 0;
    val_id hit = op_1(im, OP_isinf, x), zero = scalar(im, ty(im, x).dtype, 0);
    if (!pos && !neg) hit = op_2(im, OP_xor, hit, hit);
    if (pos && !neg) hit = op_2(im, OP_and, hit, op_2(im, OP_lt, zero, x));
    if (!pos && neg) hit = op_2(im, OP_and, hit, op_2(im, OP_lt, x, zero));
    set_out(im, n, 0, hit);
}

enum act {
    ACT_ELU,
    ACT_SELU,
    ACT_CELU,
    ACT_LEAKY,
    ACT_HARDSIGMOID,
    ACT_HARDSWISH,
    ACT_SOFTPLUS,
    ACT_SOFTSIGN,
    ACT_MISH,
    ACT_THRESHOLDED,
    ACT_SWISH,
    ACT_QUICKGELU,
    ACT_SHRINK,
    ACT_ASINH,
    ACT_ACOSH,
    ACT_ATANH
};

/* where(x > k, a, b) */
static val_id above(struct importer *im, val_id x, double k, val_id a, val_id b) {
    return op_3(im, OP_where, op_2(im, OP_lt, scalar(im, ty(im, x).dtype, k), x), a, b);
}

/* log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)) */
static val_id softplus(struct importer *im, val_id x) {
    val_id tail = op_1(im, OP_log1p, op_1(im, OP_exp, op_1(im, OP_neg, op_1(im, OP_abs, x))));
    return op_2(im, OP_add, op_1(im, OP_relu, x), tail);
}

/* max(x, 0) + a * expm1(min(x, 0) / c): Elu (c = 1) and Celu (c = a), finite on both sides. */
static val_id exp_linear(struct importer *im, val_id x, double a, double c) {
    val_id low = op_2(im, OP_min, x, scalar(im, ty(im, x).dtype, 0));
    val_id tail = scale_by(im, op_1(im, OP_expm1, scale_by(im, low, 1.0 / c)), a);
    return op_2(im, OP_add, op_1(im, OP_relu, x), tail);
}

static val_id hard_sigmoid(struct importer *im, val_id x, double a, double b) {
    enum dtype t = ty(im, x).dtype;
    x = shift_by(im, scale_by(im, x, a), b);
    return op_3(im, OP_clip, x, scalar(im, t, 0), scalar(im, t, 1));
}

static val_id swish(struct importer *im, val_id x, double a) {
    if (a == 1.0) return op_1(im, OP_silu, x);
    return op_2(im, OP_mul, x, op_1(im, OP_sigmoid, scale_by(im, x, a)));
}

/* sign(x) * log(|x| + sqrt(x^2 + 1)); log1p keeps small x exact. */
static val_id asinh_of(struct importer *im, val_id x) {
    val_id a = op_1(im, OP_abs, x), r = op_1(im, OP_sqrt, shift_by(im, op_2(im, OP_mul, x, x), 1));
    val_id u = op_2(im, OP_div, op_2(im, OP_mul, a, a), shift_by(im, r, 1));
    return op_2(im, OP_mul, op_1(im, OP_sign, x), op_1(im, OP_log1p, op_2(im, OP_add, a, u)));
}

static val_id shrink(struct importer *im, val_id x, double lambd, double bias) {
    enum dtype t = ty(im, x).dtype;
    val_id zero = op_2(im, OP_mul, x, scalar(im, t, 0));
    val_id low =
        op_3(im, OP_where, op_2(im, OP_lt, x, scalar(im, t, -lambd)), shift_by(im, x, bias), zero);
    return above(im, x, lambd, shift_by(im, x, -bias), low);
}

void h_activation(struct importer *im, const struct inode *n, int act) {
    val_id x = get(im, n, 0), y = VAL_NONE;
    enum dtype t = ty(im, x).dtype;
    double a = node_float(n, "alpha", 1.0);
    switch ((enum act)act) {
    case ACT_ELU: y = exp_linear(im, x, a, 1.0); break;
    case ACT_CELU:
        if (a == 0) {
            reject(im, ST_SHAPE, "alpha is 0");
            return;
        }
        y = exp_linear(im, x, a, a);
        break;
    case ACT_SELU: {
        double s = node_float(n, "gamma", 1.05070102214813232421875);
        a = node_float(n, "alpha", 1.67326319217681884765625);
        y = scale_by(im, exp_linear(im, x, a, 1.0), s);
        break;
    }
    case ACT_LEAKY: y = above(im, x, 0, x, scale_by(im, x, node_float(n, "alpha", 0.01))); break;
    case ACT_HARDSIGMOID:
        y = hard_sigmoid(im, x, node_float(n, "alpha", 0.2), node_float(n, "beta", 0.5));
        break;
    case ACT_HARDSWISH: y = op_2(im, OP_mul, x, hard_sigmoid(im, x, 1.0 / 6.0, 0.5)); break;
    case ACT_SOFTPLUS: y = softplus(im, x); break;
    case ACT_SOFTSIGN: y = op_2(im, OP_div, x, shift_by(im, op_1(im, OP_abs, x), 1)); break;
    case ACT_MISH: y = op_2(im, OP_mul, x, op_1(im, OP_tanh, softplus(im, x))); break;
    case ACT_THRESHOLDED: y = above(im, x, a, x, op_2(im, OP_mul, x, scalar(im, t, 0))); break;
    case ACT_SWISH: y = swish(im, x, a); break;
    case ACT_QUICKGELU: y = swish(im, x, node_float(n, "alpha", 1.702)); break;
    case ACT_SHRINK:
        y = shrink(im, x, node_float(n, "lambd", 0.5), node_float(n, "bias", 0));
        break;
    case ACT_ASINH: y = asinh_of(im, x); break;
    case ACT_ACOSH: { /* log(x + sqrt((x-1)(x+1))) */
        val_id r = op_2(im, OP_mul, shift_by(im, x, -1), shift_by(im, x, 1));
        y = op_1(im, OP_log, op_2(im, OP_add, x, op_1(im, OP_sqrt, r)));
        break;
    }
    case ACT_ATANH: { /* (log1p(x) - log1p(-x)) / 2 */
        val_id d = op_2(im, OP_sub, op_1(im, OP_log1p, x), op_1(im, OP_log1p, op_1(im, OP_neg, x)));
        y = scale_by(im, d, 0.5);
        break;
    }
    }
    set_out(im, n, 0, y);
}

static val_id gelu(struct importer *im, val_id x, bool tanh_form) {
    struct attr a = {.key = ATTR_approximate, .i = tanh_form};
    return add_node(im, OP_gelu, &x, 1, &a, 1);
}

/* Gelu; com.microsoft Gelu, FastGelu (tanh form) and BiasGelu add an optional bias first. */
void h_gelu(struct importer *im, const struct inode *n, int arg) {
    val_id x = get(im, n, 0);
    if (has_in(n, 1)) x = op_2(im, OP_add, x, get(im, n, 1));
    set_out(im, n, 0, gelu(im, x, arg || node_str_is(n, "approximate", "tanh")));
}

void h_prelu(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), slope = get(im, n, 1);
    struct type t = ty(im, x), s = ty(im, slope);
    /* Before opset 7, and as PyTorch writes it, a 1-D slope belongs to the channels. */
    if (!failed(im) && s.rank == 1 && t.rank > 2 && dim_same(s.dims[0], t.dims[1]) &&
        n->opset < 7) {
        dim shape[RANK_MAX];
        for (int i = 0; i < t.rank - 1; i++) shape[i] = i ? 1 : s.dims[0];
        slope = reshape(im, slope, shape, t.rank - 1);
    }
    set_out(im, n, 0, above(im, x, 0, x, op_2(im, OP_mul, x, slope)));
}

/* ---- two operands -------------------------------------------------------------------------- */
/* Opset 1-6 aligned the second operand at `axis` instead of the trailing axes. */
static val_id old_broadcast(struct importer *im, const struct inode *n, val_id a, val_id b) {
    struct type s = ty(im, a), t = ty(im, b);
    int64_t axis = node_int(n, "axis", s.rank - t.rank);
    if (n->opset >= 7 || !node_int(n, "broadcast", 0) || failed(im)) return b;
    if (axis < 0) axis += s.rank;
    int64_t rank = s.rank - axis;
    if (axis < 0 || rank < t.rank || rank > RANK_MAX) return b;
    for (int i = t.rank; i < rank; i++) t.dims[i] = 1;
    return reshape(im, b, t.dims, (int)rank);
}

void h_binary(struct importer *im, const struct inode *n, int op) {
    val_id a = get(im, n, 0), b = get(im, n, 1);
    set_out(im, n, 0, op_2(im, (enum op)op, a, old_broadcast(im, n, a, b)));
}

/* Greater(a, b) is Less(b, a). */
void h_binary_swapped(struct importer *im, const struct inode *n, int op) {
    val_id a = get(im, n, 0), b = get(im, n, 1);
    set_out(im, n, 0, op_2(im, (enum op)op, old_broadcast(im, n, a, b), a));
}

/* The result has the base's type; an exponent of another type is computed in a float type. */
void h_pow(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id a = get(im, n, 0), b = get(im, n, 1);
    enum dtype t = ty(im, a).dtype, e = ty(im, b).dtype;
    if (failed(im)) return;
    if (dtype_is_float(t)) {
        b = cast_to(im, b, t);
    } else if (dtype_is_float(e)) {
        a = cast_to(im, a, e == DT_f32 ? DT_f64 : e);
        b = cast_to(im, b, ty(im, a).dtype);
    } else {
        b = cast_to(im, b, t);
    }
    b = old_broadcast(im, n, a, b);
    set_out(im, n, 0, cast_to(im, op_2(im, OP_pow, a, b), t));
}

void h_mod(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id in[2] = {get(im, n, 0), get(im, n, 1)};
    struct attr trunc = {.key = ATTR_trunc, .i = node_int(n, "fmod", 0) != 0};
    set_out(im, n, 0, add_node(im, OP_mod, in, 2, &trunc, 1));
}

/* Max, Min, Sum of any count; Mean divides in the end. */
void h_variadic(struct importer *im, const struct inode *n, int op) {
    val_id x = get(im, n, 0);
    for (int i = 1; i < n->nin; i++) x = op_2(im, (enum op)op, x, get(im, n, i));
    set_out(im, n, 0, x);
}

void h_mean(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    for (int i = 1; i < n->nin; i++) x = op_2(im, OP_add, x, get(im, n, i));
    set_out(im, n, 0, scale_by(im, x, 1.0 / n->nin));
}

void h_where(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    set_out(im, n, 0, op_3(im, OP_where, get(im, n, 0), get(im, n, 1), get(im, n, 2)));
}

/* One bound as an operand, or VAL_NONE when it is absent. */
static val_id clip_bound(struct importer *im, const struct inode *n, int k, const char *attr,
                         enum dtype t) {
    if (n->opset < 11) return node_has(n, attr) ? scalar(im, t, node_float(n, attr, 0)) : VAL_NONE;
    return has_in(n, k) ? get(im, n, k) : VAL_NONE;
}

void h_clip(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    enum dtype t = ty(im, x).dtype;
    val_id lo = clip_bound(im, n, 1, "min", t), hi = clip_bound(im, n, 2, "max", t);
    if (lo.i && hi.i)
        x = op_3(im, OP_clip, x, lo, hi);
    else if (lo.i)
        x = op_2(im, OP_max, x, lo);
    else if (hi.i)
        x = op_2(im, OP_min, x, hi);
    set_out(im, n, 0, x);
}

/* ---- reductions ---------------------------------------------------------------------------- */
enum red {
    RED_SUM,
    RED_MEAN,
    RED_MAX,
    RED_MIN,
    RED_PROD,
    RED_L1,
    RED_L2,
    RED_LOGSUM,
    RED_LSE,
    RED_SQ
};

static val_id log_sum_exp(struct importer *im, val_id x, const int64_t *axes, int n, bool keep) {
    val_id top = reduce(im, OP_reduce_max, x, axes, n, true);
    /* An infinite maximum would give inf - inf. */
    val_id zero = scalar(im, ty(im, x).dtype, 0);
    top = op_3(im, OP_where, op_1(im, OP_isinf, top), zero, top);
    val_id e = op_1(im, OP_exp, op_2(im, OP_sub, x, top));
    val_id y = op_2(im, OP_add, op_1(im, OP_log, reduce(im, OP_reduce_sum, e, axes, n, true)), top);
    struct type t = ty(im, y), r = {.dtype = t.dtype};
    if (keep || failed(im)) return y;
    for (int i = 0, k = 0; i < t.rank; i++) {
        if (k < n && axes[k] == i)
            k++;
        else
            r.dims[r.rank++] = t.dims[i];
    }
    return reshape(im, y, r.dims, r.rank);
}

/* What a reduction over an axis without elements gives, by the ONNX specification. */
static bool empty_reduction(const struct type *t, const int64_t *axes, int count) {
    for (int i = 0; i < count; i++)
        if (t->dims[axes[i]] == 0) return true;
    return false;
}

static val_id empty_extreme(struct importer *im, const struct type *t, const int64_t *axes, int n,
                            bool keep, int sign) {
    dim shape[RANK_MAX];
    int rank = 0;
    for (int i = 0, k = 0; i < t->rank; i++) {
        bool hit = k < n && axes[k] == i;
        k += hit;
        if (hit && !keep) continue;
        shape[rank++] = hit ? 1 : t->dims[i];
    }
    return full(im, t->dtype, shape, rank, sign * (double)INFINITY);
}

void h_reduce(struct importer *im, const struct inode *n, int red) {
    static const enum op plain[] = {OP_reduce_sum,  OP_reduce_mean, OP_reduce_max, OP_reduce_min,
                                    OP_reduce_prod, OP_reduce_sum,  OP_reduce_sum, OP_reduce_sum,
                                    OP_reduce_sum,  OP_reduce_sum};
    int64_t axes[RANK_MAX];
    int count;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    if (failed(im) || !axes_of(im, n, 1, t.rank, axes, &count)) return;
    bool keep = node_int(n, "keepdims", 1) != 0, asked = has_in(n, 1) || node_has(n, "axes");
    if (count == 0 && (node_int(n, "noop_with_empty_axes", 0) == 0 ||
                       (asked && n->opset < 18 && red != RED_SUM))) {
        for (int i = 0; i < t.rank; i++) axes[count++] = i;
    }
    if (red == RED_SQ || red == RED_L2) x = op_2(im, OP_mul, x, x);
    if (red == RED_L1) x = op_1(im, OP_abs, x);
    if ((red == RED_MAX || red == RED_MIN || red == RED_LSE) && empty_reduction(&t, axes, count)) {
        /* Nothing is smaller than the smallest of nothing: infinity, and log 0 for the sum. */
        if (!dtype_is_float(t.dtype))
            refuse(im, "the extreme of an empty axis of integers");
        else
            set_out(im, n, 0, empty_extreme(im, &t, axes, count, keep, red == RED_MIN ? 1 : -1));
        return;
    }
    if (red == RED_LSE) {
        set_out(im, n, 0, log_sum_exp(im, x, axes, count, keep));
        return;
    }
    bool boolean = t.dtype == DT_bool;
    if (boolean) x = cast_to(im, x, DT_u8);
    val_id y = count == 0 ? x : reduce(im, plain[red], x, axes, count, keep);
    if (boolean) y = cast_to(im, y, DT_bool);
    if (red == RED_L2 && !dtype_is_float(t.dtype))
        y = cast_to(im, op_1(im, OP_sqrt, cast_to(im, y, DT_f64)), t.dtype);
    else if (red == RED_L2)
        y = op_1(im, OP_sqrt, y);
    if (red == RED_LOGSUM) y = op_1(im, OP_log, y);
    set_out(im, n, 0, y);
}

void h_arg(struct importer *im, const struct inode *n, int smallest) {
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    int axis = axis_attr(im, n, 0, t.rank);
    bool last = node_int(n, "select_last_index", 0) != 0;
    if (smallest) x = op_1(im, OP_neg, x);
    if (failed(im)) return;
    dim size = t.dims[axis];
    if (last) { /* the last of ties is the first in reverse */
        if (!dim_known(size)) {
            refuse(im, "select_last_index on a symbolic size");
            return;
        }
        dim starts[RANK_MAX] = {0};
        int64_t steps[RANK_MAX];
        for (int i = 0; i < RANK_MAX; i++) steps[i] = 1;
        starts[axis] = size - 1;
        steps[axis] = -1;
        x = slice(im, x, starts, t.dims, steps);
    }
    struct attr a[2] = {{.key = ATTR_axis, .i = axis},
                        {.key = ATTR_keepdims, .i = node_int(n, "keepdims", 1) != 0}};
    val_id y = add_node(im, OP_argmax, &x, 1, a, 2);
    if (last) y = op_2(im, OP_sub, scalar_int(im, DT_i64, size - 1), y);
    set_out(im, n, 0, y);
}

void h_cumsum(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    const int64_t *axis;
    int64_t count, a;
    if (failed(im)) return;
    if (!known_numbers(im, n, 1, &axis, &count) || count != 1) {
        refuse(im, "an axis that is computed at run time");
        return;
    }
    a = axis[0];
    if (!axis_fix(im, &a, ty(im, x).rank)) return;
    struct attr at[3] = {{.key = ATTR_axis, .i = a},
                         {.key = ATTR_exclusive, .i = node_int(n, "exclusive", 0) != 0},
                         {.key = ATTR_reverse, .i = node_int(n, "reverse", 0) != 0}};
    set_out(im, n, 0, add_node(im, OP_cumsum, &x, 1, at, 3));
}

/* ---- softmax ------------------------------------------------------------------------------- */
/* From opset 13 over one axis; before, over everything from `axis` on. */
void h_softmax(struct importer *im, const struct inode *n, int op) {
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    int axis = axis_attr(im, n, n->opset < 13 ? 1 : -1, t.rank);
    if (failed(im)) return;
    if (n->opset >= 13 || axis == t.rank - 1) {
        set_out(im, n, 0, with_axis(im, (enum op)op, x, axis));
        return;
    }
    dim flat[2] = {dims_total(im, t.dims, axis), dims_total(im, t.dims + axis, t.rank - axis)};
    val_id y = with_axis(im, (enum op)op, reshape(im, x, flat, 2), 1);
    set_out(im, n, 0, reshape(im, y, t.dims, t.rank));
}
