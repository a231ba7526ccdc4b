// SPDX-License-Identifier: Apache-2.0
/* import_index.c - handlers of gathering, scattering and index masks. N-dimensional indices become
 * positions along one flattened axis. */
#include "frontend/importer.h"
#include <string.h>

void h_gather(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    int axis = axis_attr(im, n, 0, ty(im, x).rank);
    set_out(im, n, 0, gather(im, x, indices(im, get(im, n, 1)), axis));
}

void h_gather_elements(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id in[2] = {get(im, n, 0), indices(im, get(im, n, 1))};
    struct attr a = {.key = ATTR_axis, .i = axis_attr(im, n, 0, ty(im, in[0]).rank)};
    set_out(im, n, 0, add_node(im, OP_gather_elements, in, 2, &a, 1));
}

/* Which reduction: 0 none, 1 add, -1 after a refusal. */
static int scatter_add(struct importer *im, const struct inode *n) {
    if (!node_has(n, "reduction") || node_str_is(n, "reduction", "none")) return 0;
    if (node_str_is(n, "reduction", "add")) return 1;
    refuse(im, "a reduction other than none and add");
    return -1;
}

static val_id scatter(struct importer *im, val_id x, val_id idx, val_id updates, int axis,
                      bool add) {
    val_id in[3] = {x, idx, updates};
    struct attr a[2] = {{.key = ATTR_axis, .i = axis}, {.key = ATTR_add, .i = add}};
    return add_node(im, OP_scatter_elements, in, 3, a, 2);
}

void h_scatter_elements(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    int add = scatter_add(im, n);
    val_id x = get(im, n, 0);
    int axis = axis_attr(im, n, 0, ty(im, x).rank);
    set_out(im, n, 0, scatter(im, x, indices(im, get(im, n, 1)), get(im, n, 2), axis, add == 1));
}

/* The last axis of `idx` (size k) addresses axes batch..batch+k of `t`; gives one position in the
 * flattened leading axes for each index tuple, shape [tuples]. */
static val_id flat_positions(struct importer *im, val_id idx, const struct type *t, int batch,
                             int k) {
    struct type it = ty(im, idx);
    val_id sum = VAL_NONE;
    dim stride = 1;
    int last = it.rank - 1;
    for (int i = k - 1; i >= 0; i--) {
        dim size = t->dims[batch + i];
        val_id part = squeeze(im, slice_axis(im, idx, last, i, 1), last);
        /* Through a table: gather checks the range, which positions in the flattened axis cannot.
         */
        part = gather(im, axis_iota(im, DT_i64, size, 0, 1), part, 0);
        if (stride != 1) part = op_2(im, OP_mul, part, dim_value(im, DT_i64, stride));
        sum = sum.i ? op_2(im, OP_add, sum, part) : part;
        stride = dim_times(im, stride, size);
    }
    for (int i = batch - 1; i >= 0; i--) {
        val_id at = axis_iota(im, DT_i64, t->dims[i], i, last);
        sum = op_2(im, OP_add, sum, op_2(im, OP_mul, at, dim_value(im, DT_i64, stride)));
        stride = dim_times(im, stride, t->dims[i]);
    }
    dim count = dims_total(im, it.dims, last);
    return reshape(im, sum, &count, 1);
}

/* Size of the index tuples; 0 after a refusal. */
static int tuple_size(struct importer *im, const struct type *x, const struct type *idx,
                      int batch) {
    if (failed(im)) return 0;
    dim k = idx->rank > 0 ? idx->dims[idx->rank - 1] : 0;
    if (idx->rank < 1 || batch < 0 || batch >= idx->rank || !dim_known(k) || k < 1 ||
        batch + k > x->rank) {
        reject(im, ST_SHAPE, "index tuples do not fit data of rank %d", x->rank);
        return 0;
    }
    return (int)k;
}

void h_gather_nd(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), idx = cast_to(im, get(im, n, 1), DT_i64);
    struct type t = ty(im, x), it = ty(im, idx), r = {.dtype = t.dtype};
    int64_t given = node_int(n, "batch_dims", 0);
    int batch = given >= 0 && given < RANK_MAX ? (int)given : -1;
    int k = tuple_size(im, &t, &it, batch);
    if (failed(im)) return;
    val_id at = flat_positions(im, idx, &t, batch, k);
    dim flat[RANK_MAX];
    int lead = batch + k, rest = t.rank - lead;
    flat[0] = dims_total(im, t.dims, lead);
    memcpy(flat + 1, t.dims + lead, (size_t)rest * sizeof *flat);
    if (it.rank - 1 + rest > RANK_MAX) {
        refuse(im, "rank over %d", RANK_MAX);
        return;
    }
    for (int i = 0; i < it.rank - 1; i++) r.dims[r.rank++] = it.dims[i];
    for (int i = lead; i < t.rank; i++) r.dims[r.rank++] = t.dims[i];
    val_id y = gather(im, reshape(im, x, flat, rest + 1), at, 0);
    set_out(im, n, 0, reshape(im, y, r.dims, r.rank));
}

void h_scatter_nd(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    int add = scatter_add(im, n);
    val_id x = get(im, n, 0), idx = cast_to(im, get(im, n, 1), DT_i64), up = get(im, n, 2);
    struct type t = ty(im, x), it = ty(im, idx);
    int k = tuple_size(im, &t, &it, 0);
    if (failed(im)) return;
    val_id at = flat_positions(im, idx, &t, 0, k);
    dim flat[2] = {dims_total(im, t.dims, k), dims_total(im, t.dims + k, t.rank - k)};
    dim rows[2] = {dims_total(im, it.dims, it.rank - 1), flat[1]};
    at = expand(im, unsqueeze(im, at, 1), rows, 2);
    val_id y = scatter(im, reshape(im, x, flat, 2), at, reshape(im, up, rows, 2), 0, add == 1);
    set_out(im, n, 0, reshape(im, y, t.dims, t.rank));
}

void h_one_hot(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id idx = cast_to(im, get(im, n, 0), DT_i64), values = get(im, n, 2);
    int rank = ty(im, idx).rank;
    double depth;
    dim one = 1;
    if (failed(im)) return;
    if (!known_float(im, n, 1, &depth)) {
        refuse(im, "a depth that is computed at run time");
        return;
    }
    if (!(depth >= 0 && depth < 1e12)) {
        reject(im, ST_SHAPE, "depth %g", depth);
        return;
    }
    int axis = axis_attr(im, n, -1, rank + 1);
    if (failed(im)) return;
    if (ty(im, values).rank != 1 || !dim_same(ty(im, values).dims[0], 2)) {
        reject(im, ST_SHAPE, "values must be [off, on]");
        return;
    }
    val_id low = op_2(im, OP_lt, idx, scalar_int(im, DT_i64, 0));
    idx =
        op_3(im, OP_where, low, op_2(im, OP_add, idx, scalar_int(im, DT_i64, (int64_t)depth)), idx);
    val_id at = axis_iota(im, DT_i64, (dim)depth, axis, rank + 1);
    val_id hit = op_2(im, OP_eq, unsqueeze(im, idx, axis), at);
    val_id off = reshape(im, slice_axis(im, values, 0, 0, one), NULL, 0);
    val_id on = reshape(im, slice_axis(im, values, 0, 1, one), NULL, 0);
    set_out(im, n, 0, op_3(im, OP_where, hit, on, off));
}

void h_trilu(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    const int64_t *k = NULL;
    int64_t count = 0;
    if (failed(im)) return;
    if (t.rank < 2) {
        reject(im, ST_SHAPE, "input of rank %d, expected 2 or more", t.rank);
        return;
    }
    if (has_in(n, 1) && (!known_numbers(im, n, 1, &k, &count) || count != 1)) {
        refuse(im, "a diagonal that is computed at run time");
        return;
    }
    val_id row = axis_iota(im, DT_i64, t.dims[t.rank - 2], 0, 2);
    val_id col = axis_iota(im, DT_i64, t.dims[t.rank - 1], 1, 2);
    row = op_2(im, OP_add, row, scalar_int(im, DT_i64, k ? k[0] : 0));
    bool upper = node_int(n, "upper", 1) != 0;
    val_id keep = upper ? op_2(im, OP_le, row, col) : op_2(im, OP_le, col, row);
    set_out(im, n, 0, op_3(im, OP_where, keep, x, scalar_int(im, t.dtype, 0)));
}
