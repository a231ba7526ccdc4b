// SPDX-License-Identifier: Apache-2.0
/* import_order.c - handlers of ops about order along an axis: TopK, Hardmax, ReverseSequence,
 * CenterCropPad and the windows over channels of LRN. There is no sorting op: an element's rank is
 * the number of elements that go before it, which costs the square of the axis. */
#include "frontend/importer.h"
#include <math.h>

enum { SORT_MAX = 4096, WINDOW_MAX = 256 };

/* Rank of every element of the last axis: how many come before it, the first of ties first. */
static val_id ranks(struct importer *im, val_id x, bool largest) {
    struct type t = ty(im, x);
    int last = t.rank - 1;
    if (failed(im)) return VAL_NONE;
    val_id mine = unsqueeze(im, x, t.rank), other = unsqueeze(im, x, last);
    val_id i = axis_iota(im, DT_i64, t.dims[last], 0, 2);
    val_id j = axis_iota(im, DT_i64, t.dims[last], 1, 2);
    val_id before = largest ? op_2(im, OP_lt, mine, other) : op_2(im, OP_lt, other, mine);
    val_id tie = op_2(im, OP_and, op_2(im, OP_eq, mine, other), op_2(im, OP_lt, j, i));
    int64_t axis = t.rank;
    return reduce(im, OP_reduce_sum, cast_to(im, op_2(im, OP_or, before, tie), DT_i64), &axis, 1,
                  false);
}

static bool topk_count(struct importer *im, const struct inode *n, dim size, int64_t *k) {
    const int64_t *given;
    int64_t count;
    *k = node_int(n, "k", 0);
    if (n->opset >= 10) {
        if (!known_numbers(im, n, 1, &given, &count) || count != 1) {
            refuse(im, "a count that is computed at run time");
            return false;
        }
        *k = given[0];
    }
    if (!dim_known(size) || size > SORT_MAX) {
        refuse(im, "an axis of symbolic size, or of more than %d elements", SORT_MAX);
        return false;
    }
    if (*k < 0 || *k > size) {
        reject(im, ST_SHAPE, "%lld of %lld elements", (long long)*k, (long long)size);
        return false;
    }
    return true;
}

void h_topk(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    int64_t k;
    int axis = axis_attr(im, n, -1, t.rank), last = t.rank - 1;
    if (failed(im) || !topk_count(im, n, t.dims[axis], &k)) return;
    if (t.rank + 1 > RANK_MAX) {
        refuse(im, "rank over %d", RANK_MAX - 1);
        return;
    }
    x = swap_axes(im, x, axis, last);
    struct type s = ty(im, x);
    val_id rank = ranks(im, x, node_int(n, "largest", 1) != 0);
    val_id at = expand(im, axis_iota(im, DT_i64, t.dims[axis], last, t.rank), s.dims, s.rank);
    val_id in[3] = {full(im, DT_i64, s.dims, s.rank, 0), rank, at};
    struct attr a[2] = {{.key = ATTR_axis, .i = last}, {.key = ATTR_add, .i = 0}};
    val_id order = slice_axis(im, add_node(im, OP_scatter_elements, in, 3, a, 2), last, 0, k);
    val_id pick[2] = {x, order};
    struct attr along = {.key = ATTR_axis, .i = last};
    val_id values = add_node(im, OP_gather_elements, pick, 2, &along, 1);
    set_out(im, n, 0, swap_axes(im, values, axis, last));
    if (has_out(n, 1)) set_out(im, n, 1, swap_axes(im, order, axis, last));
}

/* 1 at the first maximum of the axis (before opset 13: of everything from the axis on), else 0. */
void h_hardmax(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x), s;
    int axis = axis_attr(im, n, n->opset < 13 ? 1 : -1, t.rank);
    if (failed(im)) return;
    if (n->opset < 13) {
        dim flat[2] = {dims_total(im, t.dims, axis), dims_total(im, t.dims + axis, t.rank - axis)};
        x = reshape(im, x, flat, 2);
        axis = 1;
    }
    s = ty(im, x);
    struct attr a[2] = {{.key = ATTR_axis, .i = axis}, {.key = ATTR_keepdims, .i = 1}};
    val_id top = add_node(im, OP_argmax, &x, 1, a, 2);
    if (failed(im)) return;
    val_id hit = op_2(im, OP_eq, axis_iota(im, DT_i64, s.dims[axis], axis, s.rank), top);
    set_out(im, n, 0, reshape(im, cast_to(im, hit, t.dtype), t.dims, t.rank));
}

/* x / (bias + alpha/size * sum of squares over `size` neighbouring channels) ^ beta */
void h_lrn(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), sum = VAL_NONE;
    struct type t = ty(im, x);
    int64_t size = node_int(n, "size", 0);
    if (failed(im)) return;
    if (t.rank < 2 || size < 1 || size > WINDOW_MAX) {
        reject(im, ST_SHAPE, "a window of %lld channels of an input of rank %d", (long long)size,
               t.rank);
        return;
    }
    int64_t low[RANK_MAX] = {0}, high[RANK_MAX] = {0};
    low[1] = (size - 1) / 2;
    high[1] = size - 1 - low[1];
    val_id square = pad(im, op_2(im, OP_mul, x, x), low, high, NULL, 0);
    for (int64_t i = 0; i < size; i++) {
        val_id part = slice_axis(im, square, 1, i, t.dims[1]);
        sum = sum.i ? op_2(im, OP_add, sum, part) : part;
    }
    sum = shift_by(im, scale_by(im, sum, node_float(n, "alpha", 1e-4) / (double)size),
                   node_float(n, "bias", 1));
    val_id down = op_2(im, OP_pow, sum, scalar(im, t.dtype, node_float(n, "beta", 0.75)));
    set_out(im, n, 0, op_2(im, OP_div, x, down));
}

/* The first lengths[b] elements of the time axis in reverse order, the others as they are. */
void h_reverse_sequence(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), len = cast_to(im, get(im, n, 1), DT_i64);
    struct type t = ty(im, x);
    int64_t time = node_int(n, "time_axis", 0), batch = node_int(n, "batch_axis", 1);
    if (failed(im) || !axis_fix(im, &time, t.rank) || !axis_fix(im, &batch, t.rank)) return;
    if (time == batch || ty(im, len).rank != 1 || !dim_same(ty(im, len).dims[0], t.dims[batch])) {
        reject(im, ST_SHAPE, "there must be one length for each element of the batch axis");
        return;
    }
    dim shape[RANK_MAX];
    for (int i = 0; i < t.rank; i++) shape[i] = i == batch ? t.dims[batch] : 1;
    len = reshape(im, len, shape, t.rank);
    val_id at = axis_iota(im, DT_i64, t.dims[time], (int)time, t.rank);
    val_id back = op_2(im, OP_sub, shift_by(im, len, -1), at);
    val_id idx = op_3(im, OP_where, op_2(im, OP_lt, at, len), back, at);
    val_id in[2] = {x, expand(im, idx, t.dims, t.rank)};
    struct attr a = {.key = ATTR_axis, .i = time};
    set_out(im, n, 0, add_node(im, OP_gather_elements, in, 2, &a, 1));
}

/* Each axis cropped or padded with zeros to the size asked for, around its centre. */
void h_center_crop_pad(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    const int64_t *want;
    int64_t count, low[RANK_MAX] = {0}, high[RANK_MAX] = {0};
    int given;
    const int64_t *axes = node_ints(n, "axes", &given);
    dim starts[RANK_MAX] = {0};
    if (failed(im)) return;
    if (!known_numbers(im, n, 1, &want, &count)) {
        refuse(im, "a shape that is computed at run time");
        return;
    }
    if (count != (axes ? given : t.rank)) {
        reject(im, ST_SHAPE, "%lld sizes, expected one for each axis", (long long)count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t axis = axes ? axes[i] : i;
        if (!axis_fix(im, &axis, t.rank)) return;
        dim have = t.dims[axis];
        if (!dim_known(have) || want[i] < 0 || want[i] > INT32_MAX) {
            refuse(im, "a symbolic, negative or huge size");
            return;
        }
        if (have > want[i]) {
            starts[axis] = (have - want[i]) / 2;
            t.dims[axis] = want[i];
        } else {
            low[axis] = (want[i] - have) / 2;
            high[axis] = want[i] - have - low[axis];
        }
    }
    set_out(im, n, 0, pad(im, slice(im, x, starts, t.dims, NULL), low, high, NULL, 0));
}
