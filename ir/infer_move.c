// SPDX-License-Identifier: Apache-2.0
/* infer_move.c - result types of products of matrices, of ops that move elements, and of indexing.
 */
#include "ir/infer.h"

enum status infer_matmul(struct infer *x) {
    const struct type *a = &x->in[0], *b = &x->in[1];
    TRY(infer_want_alike(x, 0, 1));
    if (a->dtype == DT_bool)
        return infer_fail(x, ST_TYPE, "operands must be numeric, found %s", infer_show(x, a));
    if (a->rank < 2 || b->rank < 2)
        return infer_fail(x, ST_SHAPE, "operands must have rank 2 or more, found %s x %s",
                          infer_show(x, a), infer_show(x, b));
    bool ta = infer_int(x, ATTR_trans_a) != 0, tb = infer_int(x, ATTR_trans_b) != 0;
    dim m = a->dims[a->rank - (ta ? 1 : 2)], ka = a->dims[a->rank - (ta ? 2 : 1)];
    dim kb = b->dims[b->rank - (tb ? 1 : 2)], n = b->dims[b->rank - (tb ? 2 : 1)];
    if (!dim_same(ka, kb))
        return infer_fail(x, ST_SHAPE, "inner dimensions differ, %s and %s (%s%s x %s%s)",
                          infer_show_dim(x, ka), infer_show_dim(x, kb), infer_show(x, a),
                          ta ? " transposed" : "", infer_show(x, b), tb ? " transposed" : "");
    struct type p = *a, q = *b, r;
    p.rank -= 2;
    q.rank -= 2;
    if (!type_broadcast(&p, &q, &r))
        return infer_fail(x, ST_SHAPE, "batch axes do not broadcast (%s x %s)", infer_show(x, a),
                          infer_show(x, b));
    r.dims[r.rank++] = m;
    r.dims[r.rank++] = n;
    x->out[0] = r;
    return ST_OK;
}

/* ---- movement ------------------------------------------------------------------------------ */
/* Multiply what is left of a shape after the factors common to both were struck out. */
static enum status product(struct infer *x, const struct type *t, const bool *used, dim *out) {
    dim p = 1;
    for (int i = 0; i < t->rank; i++)
        if (!used[i]) TRY(infer_mul(x, p, t->dims[i], &p));
    *out = p;
    return ST_OK;
}

enum status infer_reshape(struct infer *x) {
    const struct type *in = &x->in[0];
    struct type *out = &x->out[0];
    out->dtype = in->dtype;
    TRY(infer_shape_attr(x, out));
    int64_t have = type_count(in), want = type_count(out);
    bool same = have >= 0 && have == want;
    if (have < 0 && want < 0) {
        /* Strike out equal sizes first: what remains multiplies to small expressions. */
        bool used_in[RANK_MAX] = {false}, used_out[RANK_MAX] = {false};
        for (int i = 0; i < in->rank; i++)
            for (int k = 0; k < out->rank; k++)
                if (!used_in[i] && !used_out[k] && dim_same(in->dims[i], out->dims[k]))
                    used_in[i] = used_out[k] = true;
        dim p, q;
        TRY(product(x, in, used_in, &p));
        TRY(product(x, out, used_out, &q));
        same = dim_same(p, q);
    } else if (have < 0) {
        for (int i = 0; i < in->rank; i++) same |= want == 0 && in->dims[i] == 0;
    } else if (want < 0) {
        for (int i = 0; i < out->rank; i++) same |= have == 0 && out->dims[i] == 0;
    }
    if (!same)
        return infer_fail(x, ST_SHAPE, "the number of elements changes from %s to %s",
                          infer_show(x, in), infer_show(x, out));
    return ST_OK;
}

enum status infer_transpose(struct infer *x) {
    const struct type *in = &x->in[0];
    const int64_t *perm;
    bool seen[RANK_MAX] = {false};
    TRY(infer_numbers(x, ATTR_perm, in->rank, 0, in->rank - 1, &perm));
    x->out[0] = *in;
    for (int i = 0; i < in->rank; i++) {
        if (seen[perm[i]])
            return infer_fail(x, ST_SHAPE, "'perm' names axis %lld twice", (long long)perm[i]);
        seen[perm[i]] = true;
        x->out[0].dims[i] = in->dims[perm[i]];
    }
    return ST_OK;
}

enum status infer_expand(struct infer *x) {
    struct type want = {.dtype = x->in[0].dtype}, r;
    TRY(infer_shape_attr(x, &want));
    if (!type_broadcast(&x->in[0], &want, &r) || !type_equal(&r, &want))
        return infer_fail(x, ST_SHAPE, "%s does not broadcast to %s", infer_show(x, &x->in[0]),
                          infer_show(x, &want));
    x->out[0] = want;
    return ST_OK;
}

/* Whether start, start+step, .. (count of them) all lie in [0, n). */
static bool span_fits(int64_t start, int64_t step, int64_t count, int64_t n) {
    if (count == 0) return start <= n;
    int64_t last;
    if (start < 0 || start >= n) return false;
    if (__builtin_mul_overflow(count - 1, step, &last)) return false;
    if (__builtin_add_overflow(start, last, &last)) return false;
    return last >= 0 && last < n;
}

enum status infer_slice(struct infer *x) {
    const struct type *in = &x->in[0];
    const int64_t *steps;
    struct type out = {.dtype = in->dtype};
    int n;
    const int64_t *starts = infer_list(x, ATTR_starts, &n);
    TRY(infer_shape_attr(x, &out));
    if (n != in->rank || out.rank != in->rank)
        return infer_fail(x, ST_SHAPE, "'starts' and 'shape' must hold %d sizes, found %d and %d",
                          in->rank, n, out.rank);
    TRY(infer_numbers(x, ATTR_steps, in->rank, -INFER_DIM_MAX, INFER_DIM_MAX, &steps));
    for (int i = 0; i < in->rank; i++) {
        if (steps[i] == 0) return infer_fail(x, ST_SHAPE, "the step of axis %d is 0", i);
        /* A span that depends on a symbol is the builder's word; plainly wrong ones are refused. */
        bool known = dim_known(starts[i]) && dim_known(out.dims[i]) && dim_known(in->dims[i]);
        bool whole = dim_same(out.dims[i], in->dims[i]) && steps[i] == 1 && starts[i] > 0;
        if ((known && !span_fits(starts[i], steps[i], out.dims[i], in->dims[i])) ||
            (!known && whole))
            return infer_fail(x, ST_SHAPE,
                              "axis %d of %s has no %s elements from %s on with step %lld", i,
                              infer_show(x, in), infer_show_dim(x, out.dims[i]),
                              infer_show_dim(x, starts[i]), (long long)steps[i]);
    }
    x->out[0] = out;
    return ST_OK;
}

enum status infer_pad(struct infer *x) {
    const struct type *in = &x->in[0];
    const int64_t *low, *high, *inner;
    TRY(infer_numbers(x, ATTR_low, in->rank, 0, INFER_DIM_MAX, &low));
    TRY(infer_numbers(x, ATTR_high, in->rank, 0, INFER_DIM_MAX, &high));
    TRY(infer_numbers(x, ATTR_interior, in->rank, 0, INFER_DIM_MAX, &inner));
    x->out[0] = *in;
    for (int i = 0; i < in->rank; i++) {
        dim d = in->dims[i];
        if (d != 0 && inner[i] > 0) {
            TRY(infer_mul(x, d, inner[i] + 1, &d));
            TRY(infer_sub(x, d, inner[i], &d));
        }
        TRY(infer_add(x, d, low[i], &d));
        TRY(infer_add(x, d, high[i], &d));
        x->out[0].dims[i] = d;
    }
    return ST_OK;
}

enum status infer_concat(struct infer *x) {
    int axis;
    struct type r = x->in[0];
    TRY(infer_axis(x, r.rank, &axis));
    for (int k = 1; k < x->nin; k++) {
        const struct type *t = &x->in[k];
        TRY(infer_want_alike(x, 0, k));
        bool same = t->rank == r.rank;
        for (int i = 0; same && i < r.rank; i++)
            same = i == axis || dim_same(t->dims[i], r.dims[i]);
        if (!same)
            return infer_fail(x, ST_SHAPE, "operands 0 and %d differ off axis %d: %s and %s", k,
                              axis, infer_show(x, &x->in[0]), infer_show(x, t));
        TRY(infer_add(x, r.dims[axis], t->dims[axis], &r.dims[axis]));
    }
    x->out[0] = r;
    return ST_OK;
}

/* ---- indexing ------------------------------------------------------------------------------ */
/* `whole` with `axis` replaced by the axes of `idx`. */
static enum status take_shape(struct infer *x, const struct type *whole, const struct type *idx,
                              int axis, struct type *out) {
    int rank = whole->rank - 1 + idx->rank;
    if (rank > RANK_MAX)
        return infer_fail(x, ST_UNSUPPORTED, "the result's rank %d is over the limit of %d", rank,
                          RANK_MAX);
    struct type r = {.dtype = whole->dtype};
    for (int i = 0; i < axis; i++) r.dims[r.rank++] = whole->dims[i];
    for (int i = 0; i < idx->rank; i++) r.dims[r.rank++] = idx->dims[i];
    for (int i = axis + 1; i < whole->rank; i++) r.dims[r.rank++] = whole->dims[i];
    *out = r;
    return ST_OK;
}

enum status infer_gather(struct infer *x) {
    int axis;
    TRY(infer_want_index(x, 1));
    TRY(infer_axis(x, x->in[0].rank, &axis));
    return take_shape(x, &x->in[0], &x->in[1], axis, &x->out[0]);
}

enum status infer_scatter_rows(struct infer *x) {
    int axis;
    struct type whole = {.dtype = x->in[1].dtype}, rows;
    TRY(infer_want_index(x, 0));
    if (whole.dtype == DT_bool)
        return infer_fail(x, ST_TYPE, "updates must be numeric, found %s",
                          infer_show(x, &x->in[1]));
    TRY(infer_shape_attr(x, &whole));
    int64_t a = infer_int(x, ATTR_axis);
    if (a < 0 || a >= whole.rank)
        return infer_fail(x, ST_SHAPE, "axis %lld is outside the rank %d of the result %s",
                          (long long)a, whole.rank, infer_show(x, &whole));
    axis = (int)a;
    TRY(take_shape(x, &whole, &x->in[0], axis, &rows));
    TRY(infer_want_type(x, 1, &rows, "the updates"));
    x->out[0] = whole;
    return ST_OK;
}

/* ONNX GatherElements, ScatterElements: idx has x's rank and is no larger off the axis. */
static enum status check_elements(struct infer *x, int axis) {
    const struct type *t = &x->in[0], *idx = &x->in[1];
    bool fits = t->rank == idx->rank;
    for (int i = 0; fits && i < t->rank; i++) {
        if (i == axis) continue;
        dim p = idx->dims[i], q = t->dims[i];
        fits = dim_same(p, q) || (dim_known(p) && dim_known(q) && p < q) || p == 1 || p == 0;
    }
    if (fits) return ST_OK;
    return infer_fail(x, ST_SHAPE,
                      "indices %s do not fit %s: ranks must be equal and no axis but %d larger",
                      infer_show(x, idx), infer_show(x, t), axis);
}

enum status infer_gather_elements(struct infer *x) {
    int axis;
    TRY(infer_want_index(x, 1));
    TRY(infer_axis(x, x->in[0].rank, &axis));
    TRY(check_elements(x, axis));
    x->out[0] = x->in[1];
    x->out[0].dtype = x->in[0].dtype;
    return ST_OK;
}

enum status infer_scatter_elements(struct infer *x) {
    int axis;
    TRY(infer_want_index(x, 1));
    TRY(infer_axis(x, x->in[0].rank, &axis));
    TRY(check_elements(x, axis));
    if (infer_int(x, ATTR_add) && x->in[0].dtype == DT_bool)
        return infer_fail(x, ST_TYPE, "cannot add to %s", infer_show(x, &x->in[0]));
    struct type want = x->in[1];
    want.dtype = x->in[0].dtype;
    TRY(infer_want_type(x, 2, &want, "the updates"));
    x->out[0] = x->in[0];
    return ST_OK;
}
