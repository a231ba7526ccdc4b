// SPDX-License-Identifier: Apache-2.0
/* simplify_shape.c - movement rules beyond views: broadcasts that elementwise ops imply, reductions
 * that do less, joins, and gathers that are slices. */
#include "passes/simplify.h"
#include <string.h>

static str_id origin_of(const struct graph *g, node_id n) {
    return graph_node(g, n)->origin;
}

/* ---- elementwise: broadcasting is implicit -------------------------------------------------- */
/* What operand v could be read from instead, if broadcasting makes up for the difference. */
static val_id smaller(const struct graph *g, val_id v) {
    enum op op = val_op(g, v);
    val_id x;
    if (op == OP_expand) return node_in(g, val_def(g, v), 0);
    if (op != OP_reshape) return VAL_NONE;
    x = node_in(g, val_def(g, v), 0);
    const struct type *t = val_type(g, v), *in = val_type(g, x);
    int lead = t->rank - in->rank;
    bool ok = lead > 0;
    for (int k = 0; ok && k < t->rank; k++)
        ok = k < lead ? t->dims[k] == 1 : dim_same(t->dims[k], in->dims[k - lead]);
    return ok ? x : VAL_NONE;
}

/* The shape of n if operand `skip` were of type t. */
static bool same_result(const struct graph *g, node_id n, const val_id *in, int skip,
                        const struct type *t) {
    struct type r = *t, want = *val_type(g, node_out(g, n, 0));
    for (int k = 0; k < graph_node(g, n)->nin; k++)
        if (k != skip && !type_broadcast(&r, val_type(g, in[k]), &r)) return false;
    r.dtype = want.dtype;
    return type_equal(&r, &want);
}

static val_id drop_broadcasts(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    enum op op = (enum op)graph_node(g, n)->op;
    int nin = graph_node(g, n)->nin;
    bool changed = false;
    val_id in[4];
    if (!(op_info(op)->traits & EW) || nin < 2 || nin > 4) return VAL_NONE;
    for (int k = 0; k < nin; k++) in[k] = node_in(g, n, k);
    for (int k = 0; k < nin; k++) {
        struct type scalar = type_scalar(val_type(g, in[k])->dtype);
        double x;
        if (val_type(g, in[k])->rank > 0 && val_uniform(g, in[k], &x) &&
            same_result(g, n, in, k, &scalar)) {
            in[k] = dtype_class(scalar.dtype) == DTC_INT
                        ? build_scalar_int(g, scalar.dtype, (int64_t)x, origin_of(g, n))
                        : build_scalar(g, scalar.dtype, x, origin_of(g, n));
            changed = true;
        }
        for (val_id s = smaller(g, in[k]); s.i; s = smaller(g, in[k])) {
            if (!same_result(g, n, in, k, val_type(g, s))) break;
            in[k] = s;
            changed = true;
        }
    }
    return changed ? build_like(g, n, in) : VAL_NONE;
}

/* What v repeats along axes, or VAL_NONE. */
static val_id unrepeated(struct graph *g, val_id v, str_id o) {
    const struct type *t = val_type(g, v);
    double x;
    if (val_op(g, v) == OP_expand) return node_in(g, val_def(g, v), 0);
    if (val_op(g, v) != OP_full || t->rank == 0 || !val_uniform(g, v, &x)) return VAL_NONE;
    return dtype_class(t->dtype) == DTC_INT ? build_scalar_int(g, t->dtype, (int64_t)x, o)
                                            : build_scalar(g, t->dtype, x, o);
}

/* op(expand(x), y) = expand(op(x, y)) where y does not need x's expanded axes: less to compute. */
static val_id sink_expand(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    enum op op = (enum op)graph_node(g, n)->op;
    int nin = graph_node(g, n)->nin;
    bool changed = false;
    val_id in[4];
    if (!(op_info(op)->traits & EW) || nin > 4) return VAL_NONE;
    for (int k = 0; k < nin; k++) {
        in[k] = node_in(g, n, k);
        val_id x = unrepeated(g, in[k], origin_of(g, n));
        if (!x.i) continue;
        in[k] = x;
        changed = true;
    }
    return changed ? build_like(g, n, in) : VAL_NONE; /* the engine expands it */
}

/* The elements of a constant of type t at the indices of the smaller type `once`. */
static const void *first_of(struct rewrite *w, const struct type *t, const struct type *once,
                            const char *data) {
    size_t size = dtype_size(t->dtype), count = (size_t)type_count(once);
    char *out = arena_array(w->scratch, count, size);
    for (size_t k = 0; k < count; k++) {
        size_t at = 0, stride = 1, rest = k;
        for (int axis = t->rank - 1; axis >= 0; axis--) {
            at += rest % (size_t)once->dims[axis] * stride;
            rest /= (size_t)once->dims[axis];
            stride *= (size_t)t->dims[axis];
        }
        memcpy(out + k * size, data + at * size, size);
    }
    return out;
}

/* A constant that repeats along an axis, as exporters write masks and positions for each sample of
 * a batch: held once, so that what is computed from it is too. */
static val_id repeated_const(struct rewrite *w, node_id n) {
    enum { MANY = 64 };
    struct graph *g = w->g;
    val_id v = node_out(g, n, 0);
    struct type t = *val_type(g, v), once = t;
    const struct blob *b = val_const(g, v);
    if (val_op(g, v) != OP_const || !b || !b->data || type_count(&t) < MANY) return VAL_NONE;
    size_t inner = dtype_size(t.dtype);
    bool changed = false;
    for (int axis = t.rank - 1; axis >= 0; inner *= (size_t)t.dims[axis--]) {
        size_t block = inner * (size_t)t.dims[axis];
        bool same = t.dims[axis] > 1;
        for (size_t at = 0; same && at < b->bytes; at += block)
            same = memcmp((const char *)b->data + at, (const char *)b->data + at + inner,
                          block - inner) == 0;
        if (same) once.dims[axis] = 1, changed = true;
    }
    if (!changed || type_count(&once) == 1) return VAL_NONE; /* uniform ones are found as such */
    val_id x = build_const(g, &once, first_of(w, &t, &once, b->data), origin_of(g, n));
    return build_expand(g, x, t.dims, t.rank, origin_of(g, n));
}

/* ---- reductions ---------------------------------------------------------------------------- */
static bool is_reduce(enum op op) {
    return op == OP_reduce_sum || op == OP_reduce_mean || op == OP_reduce_max ||
           op == OP_reduce_min || op == OP_reduce_prod;
}

/* Reduce x over `axes` and give the result the shape of n's. */
static val_id reduce_like(struct graph *g, node_id n, val_id x, const int64_t *axes, int count) {
    struct type t = *val_type(g, node_out(g, n, 0));
    bool keep = t.rank == val_type(g, x)->rank;
    val_id r =
        build_reduce(g, (enum op)graph_node(g, n)->op, x, axes, count, keep, origin_of(g, n));
    return build_reshape(g, r, t.dims, t.rank, origin_of(g, n));
}

/* Axes of size 1 need no reduction. */
static val_id reduce_units(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    if (!is_reduce((enum op)graph_node(g, n)->op)) return VAL_NONE;
    val_id x = node_in(g, n, 0);
    int count, left = 0;
    const int64_t *axes = attr_ints(g, n, ATTR_axes, &count);
    int64_t rest[RANK_MAX];
    for (int k = 0; k < count; k++)
        if (val_type(g, x)->dims[axes[k]] != 1) rest[left++] = axes[k];
    if (left == count && count > 0) return VAL_NONE;
    return reduce_like(g, n, x, rest, left);
}

/* The axes of x that reduce n over axes `axes` of r, itself a reduction of x, goes over as well. */
static int merge_axes(const struct graph *g, node_id inner, const int64_t *axes, int count,
                      int rank, int64_t *both) {
    int ninner, n = 0;
    const int64_t *gone = attr_ints(g, inner, ATTR_axes, &ninner);
    bool keep = attr_bool(g, inner, ATTR_keepdims), hit[RANK_MAX] = {false};
    for (int k = 0; k < ninner; k++) hit[gone[k]] = true;
    int64_t where[RANK_MAX];
    int left = 0;
    for (int k = 0; k < rank; k++)
        if (keep || !hit[k]) where[left++] = k;
    for (int k = 0; k < count; k++) hit[where[axes[k]]] = true;
    for (int k = 0; k < rank; k++)
        if (hit[k]) both[n++] = k;
    return n;
}

static val_id reduce_reduce(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    enum op op = (enum op)graph_node(g, n)->op;
    if (!is_reduce(op) || val_op(g, x) != op || !rewrite_single(w, x)) return VAL_NONE;
    node_id inner = val_def(g, x);
    val_id y = node_in(g, inner, 0);
    int count;
    const int64_t *axes = attr_ints(g, n, ATTR_axes, &count);
    int64_t both[RANK_MAX];
    int nboth = merge_axes(g, inner, axes, count, val_type(g, y)->rank, both);
    return reduce_like(g, n, y, both, nboth);
}

/* reshape(reduce(x)) that only adds or drops the reduced axes: keepdims says it. */
static val_id reduce_keepdims(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id r = node_in(g, n, 0);
    node_id d = val_def(g, r);
    if (!is_reduce(val_op(g, r)) || !rewrite_single(w, r)) return VAL_NONE;
    struct type t = *val_type(g, node_out(g, n, 0)), in = *val_type(g, node_in(g, d, 0));
    bool keep = !attr_bool(g, d, ATTR_keepdims), hit[RANK_MAX] = {false};
    int count, rank = 0;
    const int64_t *axes = attr_ints(g, d, ATTR_axes, &count);
    for (int k = 0; k < count; k++) hit[axes[k]] = true;
    struct type want = {.dtype = t.dtype};
    for (int k = 0; k < in.rank; k++)
        if (keep || !hit[k]) want.dims[rank++] = hit[k] ? 1 : in.dims[k];
    want.rank = rank;
    if (!type_equal(&want, &t)) return VAL_NONE;
    return build_reduce(g, val_op(g, r), node_in(g, d, 0), axes, count, keep, origin_of(g, d));
}

/* A reduction over nothing but axes that an expand made. */
static val_id reduce_expand(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    enum op op = (enum op)graph_node(g, n)->op;
    val_id x = node_in(g, n, 0);
    if (!is_reduce(op) || op == OP_reduce_prod || val_op(g, x) != OP_expand) return VAL_NONE;
    val_id y = node_in(g, val_def(g, x), 0);
    struct type t = *val_type(g, node_out(g, n, 0)), in = *val_type(g, y);
    struct type wide = *val_type(g, x);
    int count, lead = wide.rank - in.rank;
    const int64_t *axes = attr_ints(g, n, ATTR_axes, &count);
    bool hit[RANK_MAX] = {false};
    double times = 1;
    for (int k = 0; k < count; k++) {
        int64_t a = axes[k];
        bool made = a < lead || (in.dims[a - lead] == 1 && wide.dims[a] != 1);
        if (!made || !dim_known(wide.dims[a]) || wide.dims[a] == 0) return VAL_NONE;
        times *= (double)wide.dims[a];
        hit[a] = true;
    }
    if (times > 0x1p31) return VAL_NONE;
    /* y without those axes, then with the broadcasting that was not summed away */
    struct type kept = {.dtype = t.dtype};
    bool keep = attr_bool(g, n, ATTR_keepdims);
    for (int k = 0; k < wide.rank; k++) {
        if (hit[k] && !keep) continue;
        kept.dims[kept.rank++] = hit[k] || k < lead ? 1 : in.dims[k - lead];
    }
    str_id o = origin_of(g, n);
    val_id r = build_reshape(g, y, kept.dims, kept.rank, o);
    if (op == OP_reduce_sum) r = build_scale(g, r, times, o);
    return build_expand(g, r, t.dims, t.rank, o);
}

/* A reduction to one number does not care how its operand is arranged. */
static val_id reduce_all(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    if (!is_reduce((enum op)graph_node(g, n)->op)) return VAL_NONE;
    if (val_op(g, x) != OP_reshape && val_op(g, x) != OP_transpose) return VAL_NONE;
    const struct type *t = val_type(g, node_out(g, n, 0));
    for (int k = 0; k < t->rank; k++)
        if (t->dims[k] != 1) return VAL_NONE;
    val_id y = node_in(g, val_def(g, x), 0);
    int64_t axes[RANK_MAX];
    int count = 0;
    for (int k = 0; k < val_type(g, y)->rank; k++)
        if (val_type(g, y)->dims[k] != 1) axes[count++] = k;
    return reduce_like(g, n, y, axes, count);
}

/* ---- joins --------------------------------------------------------------------------------- */
enum { PARTS_MAX = 64 };

/* concat of one part; of parts that are concats themselves; of nothing. */
static val_id concat(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    int64_t axis = attr_int(g, n, ATTR_axis);
    val_id parts[PARTS_MAX];
    int count = 0;
    bool changed = graph_node(g, n)->nin == 1;
    for (int k = 0; k < graph_node(g, n)->nin; k++) {
        val_id x = node_in(g, n, k);
        node_id d = val_def(g, x);
        bool nested =
            val_op(g, x) == OP_concat && attr_int(g, d, ATTR_axis) == axis && rewrite_single(w, x);
        int more = nested ? graph_node(g, d)->nin : 1;
        if (count + more > PARTS_MAX) return VAL_NONE;
        bool empty = val_type(g, x)->dims[axis] == 0;
        changed |= nested || (empty && graph_node(g, n)->nin > 1);
        if (empty) continue;
        for (int j = 0; j < more; j++) parts[count++] = nested ? node_in(g, d, j) : x;
    }
    if (!changed) return VAL_NONE;
    return count ? build_concat(g, parts, count, axis, origin_of(g, n)) : node_in(g, n, 0);
}

static bool plain_slice(const struct graph *g, val_id v, int axis, dim *start, dim *size) {
    int rank;
    node_id d = val_def(g, v);
    if (val_op(g, v) != OP_slice) return false;
    const dim *starts = attr_dims(g, d, ATTR_starts, &rank);
    const int64_t *steps = attr_ints(g, d, ATTR_steps, &rank);
    const struct type *in = val_type(g, node_in(g, d, 0)), *out = val_type(g, v);
    for (int k = 0; k < rank; k++) {
        if (steps[k] != 1) return false;
        if (k != axis && (starts[k] != 0 || !dim_same(in->dims[k], out->dims[k]))) return false;
    }
    *start = starts[axis];
    *size = out->dims[axis];
    return dim_known(*start) && dim_known(*size);
}

/* Neighbouring slices of one value, side by side again. */
static val_id concat_slices(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    int axis = (int)attr_int(g, n, ATTR_axis), rank = val_type(g, node_out(g, n, 0))->rank;
    dim first = 0, next = 0;
    val_id x = VAL_NONE;
    for (int k = 0; k < graph_node(g, n)->nin; k++) {
        dim start, size;
        val_id part = node_in(g, n, k);
        if (!plain_slice(g, part, axis, &start, &size)) return VAL_NONE;
        val_id from = node_in(g, val_def(g, part), 0);
        if (k == 0) {
            x = from;
            first = next = start;
        }
        if (from.i != x.i || start != next) return VAL_NONE;
        next += size;
    }
    dim starts[RANK_MAX] = {0};
    struct type t = *val_type(g, node_out(g, n, 0));
    starts[axis] = first;
    CHECK(g->ctx, rank == t.rank);
    return build_slice(g, x, starts, t.dims, NULL, origin_of(g, n));
}

/* ---- sums of padded pieces: the gradient of a split ----------------------------------------- */
enum { LEAVES_MAX = 16 };
struct piece {
    val_id x;
    int64_t low, size;
};

/* A value padded with zeros along one axis only. */
static bool padded(const struct graph *g, val_id v, int *axis, struct piece *p) {
    node_id d = val_def(g, v);
    int rank, found = -1;
    if (val_op(g, v) != OP_pad || attr_float(g, d, ATTR_value) != 0) return false;
    const int64_t *low = attr_ints(g, d, ATTR_low, &rank);
    const int64_t *high = attr_ints(g, d, ATTR_high, &rank);
    const int64_t *inner = attr_ints(g, d, ATTR_interior, &rank);
    for (int k = 0; k < rank; k++) {
        if (inner[k]) return false;
        if (!low[k] && !high[k]) continue;
        if (found >= 0) return false;
        found = k;
    }
    p->x = node_in(g, d, 0);
    if (found < 0 || !dim_known(val_type(g, p->x)->dims[found])) return false;
    p->low = low[found];
    p->size = val_type(g, p->x)->dims[found];
    if (*axis >= 0 && *axis != found) return false;
    *axis = found;
    return true;
}

/* The operands of a tree of additions whose inner sums nothing else reads; 0 when too many. */
static int sum_leaves(const struct rewrite *w, node_id n, val_id *leaf) {
    const struct graph *g = w->g;
    struct type t = *val_type(g, node_out(g, n, 0));
    int count = 2;
    leaf[0] = node_in(g, n, 0);
    leaf[1] = node_in(g, n, 1);
    for (int k = 0; k < count;) {
        node_id d = val_def(g, leaf[k]);
        if (val_op(g, leaf[k]) != OP_add || !rewrite_single(w, leaf[k]) ||
            !type_equal(val_type(g, leaf[k]), &t)) {
            k++;
            continue;
        }
        if (count == LEAVES_MAX) return 0;
        for (int j = count; j > k + 1; j--) leaf[j] = leaf[j - 1];
        leaf[k + 1] = node_in(g, d, 1);
        leaf[k] = node_in(g, d, 0);
        count++;
    }
    return count;
}

static void insert_piece(struct piece *p, int n, struct piece one) {
    int j = n;
    for (; j > 0 && p[j - 1].low > one.low; j--) p[j] = p[j - 1];
    p[j] = one;
}

static val_id sum_of_pads(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id leaf[LEAVES_MAX], sum = VAL_NONE;
    struct piece piece[LEAVES_MAX];
    val_id parts[LEAVES_MAX];
    bool used[LEAVES_MAX] = {false};
    struct type t = *val_type(g, node_out(g, n, 0));
    int count = sum_leaves(w, n, leaf), npieces = 0, axis = -1;
    for (int k = 0; k < count; k++) {
        struct piece one;
        if (!type_equal(val_type(g, leaf[k]), &t) || !padded(g, leaf[k], &axis, &one)) continue;
        insert_piece(piece, npieces++, one);
        used[k] = true;
    }
    if (npieces < 2) return VAL_NONE;
    for (int k = 0; k < npieces; k++) {
        if (k > 0 && piece[k].low != piece[k - 1].low + piece[k - 1].size) return VAL_NONE;
        parts[k] = piece[k].x;
    }
    str_id o = origin_of(g, n);
    for (int k = 0; k < count; k++)
        if (!used[k]) sum = sum.i ? build_2(g, OP_add, sum, leaf[k], o) : leaf[k];
    val_id joined = build_concat(g, parts, npieces, axis, o);
    struct piece *last = &piece[npieces - 1];
    int64_t low[RANK_MAX] = {0}, high[RANK_MAX] = {0}, zero[RANK_MAX] = {0};
    low[axis] = piece[0].low;
    high[axis] = t.dims[axis] - last->low - last->size;
    struct attr attrs[] = {{.key = ATTR_low, .list = low, .n = t.rank},
                           {.key = ATTR_high, .list = high, .n = t.rank},
                           {.key = ATTR_interior, .list = zero, .n = t.rank}};
    if (low[axis] || high[axis]) joined = graph_add(g, OP_pad, &joined, 1, attrs, 3, o);
    return sum.i ? build_2(g, OP_add, sum, joined, o) : joined;
}

/* ---- gather -------------------------------------------------------------------------------- */
/* Indices first, first+step, .. in row-major order: one index, a constant or an iota. */
static bool progression(const struct graph *g, val_id v, int64_t *first, int64_t *step,
                        int64_t *count) {
    struct type t = *val_type(g, v);
    *count = type_count(&t);
    *step = 1;
    if (*count < 1) return false;
    if (val_op(g, v) == OP_iota) {
        double a = attr_float(g, val_def(g, v), ATTR_start);
        double b = attr_float(g, val_def(g, v), ATTR_step);
        if (a != (double)(int32_t)a || b != (double)(int32_t)b) return false;
        *first = (int64_t)a;
        *step = (int64_t)b;
        return true;
    }
    const struct blob *b = val_const(g, v);
    double x;
    if (!b && *count == 1 && val_uniform(g, v, &x)) {
        *first = (int64_t)x;
        return true;
    }
    if (!b) return false;
    size_t size = dtype_size(t.dtype);
    const char *p = b->data;
    *first = dtype_load_int(t.dtype, p);
    if (*first != (int32_t)*first) return false; /* no index of a real axis */
    if (*count > 1)
        *step = (int64_t)((uint64_t)dtype_load_int(t.dtype, p + size) - (uint64_t)*first);
    for (int64_t k = 1; k < *count; k++) {
        int64_t at = dtype_load_int(t.dtype, p + (size_t)k * size);
        if (at != (int32_t)at) return false;
        if (at - dtype_load_int(t.dtype, p + (size_t)(k - 1) * size) != *step) return false;
    }
    return true;
}

/* A gather of regularly spaced rows is a slice: a view, and its gradient a pad. */
static val_id gather(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    int axis = (int)attr_int(g, n, ATTR_axis);
    struct type in = *val_type(g, x), out = *val_type(g, node_out(g, n, 0));
    int64_t first, step, count, steps[RANK_MAX], limit = in.dims[axis];
    dim starts[RANK_MAX] = {0};
    if (!dim_known(limit) || !progression(g, node_in(g, n, 1), &first, &step, &count))
        return VAL_NONE;
    /* Every index in range and of one sign: a negative one counts from the end. */
    int64_t last = first + step * (count - 1);
    if (step == 0 || (first < 0) != (last < 0)) return VAL_NONE;
    if (first < 0) {
        first += limit;
        last += limit;
    }
    if (first < 0 || first >= limit || last < 0 || last >= limit) return VAL_NONE;
    for (int k = 0; k < in.rank; k++) steps[k] = 1;
    starts[axis] = first;
    steps[axis] = count > 1 ? step : 1;
    in.dims[axis] = count;
    val_id s = build_slice(g, x, starts, in.dims, steps, origin_of(g, n));
    return build_reshape(g, s, out.dims, out.rank, origin_of(g, n));
}

// clang-format off
static const struct rewrite_fn fns[] = {
    {"drop-broadcasts", OP_NONE,    drop_broadcasts},
    {"sink-expand",     OP_NONE,    sink_expand},
    {"repeated-const",  OP_const,   repeated_const},
    {"reduce-units",    OP_NONE,    reduce_units},
    {"reduce-reduce",   OP_NONE,    reduce_reduce},
    {"reduce-keepdims", OP_reshape, reduce_keepdims},
    {"reduce-expand",   OP_NONE,    reduce_expand},
    {"reduce-all",      OP_NONE,    reduce_all},
    {"concat",          OP_concat,  concat},
    {"concat-slices",   OP_concat,  concat_slices},
    {"sum-of-pads",     OP_add,     sum_of_pads},
    {"gather-slice",    OP_gather,  gather},
};
// clang-format on

const struct rewrite_fn *simplify_shape_rules(int *n) {
    *n = (int)(sizeof fns / sizeof fns[0]);
    return fns;
}
