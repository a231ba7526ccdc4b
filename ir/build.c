// SPDX-License-Identifier: Apache-2.0
/* build.c - short names for building legal nodes, and reading constants back. Nothing here looks at
 * files: illegal use is a bug and unwinds. */
#include "ir/build.h"
#include <math.h>
#include <string.h>

val_id build_like(struct graph *g, node_id n, const val_id *in) {
    const struct node node = *graph_node(g, n); /* the table may move */
    const struct attr *attrs;
    int nattrs = attr_list(g, n, &attrs);
    return graph_add(g, (enum op)node.op, in, node.nin, attrs, nattrs, node.origin);
}

val_id build_1(struct graph *g, enum op op, val_id a, str_id o) {
    return graph_add(g, op, &a, 1, NULL, 0, o);
}

val_id build_2(struct graph *g, enum op op, val_id a, val_id b, str_id o) {
    return graph_add(g, op, (val_id[]){a, b}, 2, NULL, 0, o);
}

val_id build_3(struct graph *g, enum op op, val_id a, val_id b, val_id c, str_id o) {
    return graph_add(g, op, (val_id[]){a, b, c}, 3, NULL, 0, o);
}

/* ---- sources ------------------------------------------------------------------------------- */
val_id build_const(struct graph *g, const struct type *t, const void *bytes, str_id o) {
    int64_t n = type_bytes(t);
    CHECK(g->ctx, n >= 0);
    struct attr init = {.key = ATTR_init, .blob = graph_blob(g, bytes, (size_t)n, true)};
    return graph_source(g, OP_const, t, &init, 1, o);
}

val_id build_scalar(struct graph *g, enum dtype t, double x, str_id o) {
    uint64_t element = 0;
    struct type scalar = type_scalar(t);
    dtype_store(t, &element, x);
    return build_const(g, &scalar, &element, o);
}

val_id build_scalar_int(struct graph *g, enum dtype t, int64_t x, str_id o) {
    uint64_t element = 0;
    struct type scalar = type_scalar(t);
    dtype_store_int(t, &element, x);
    return build_const(g, &scalar, &element, o);
}

val_id build_full(struct graph *g, const struct type *t, double x, str_id o) {
    struct attr value = {.key = ATTR_value, .f = x};
    return graph_source(g, OP_full, t, &value, 1, o);
}

val_id build_iota(struct graph *g, enum dtype t, dim n, double start, double step, str_id o) {
    struct type line = {.dtype = t, .rank = 1, .dims = {n}};
    struct attr attrs[] = {{.key = ATTR_start, .f = start}, {.key = ATTR_step, .f = step}};
    return graph_source(g, OP_iota, &line, attrs, 2, o);
}

/* ---- movement ------------------------------------------------------------------------------ */
val_id build_cast(struct graph *g, val_id a, enum dtype t, str_id o) {
    struct attr dtype = {.key = ATTR_dtype, .i = t};
    if (val_type(g, a)->dtype == t) return a;
    return graph_add(g, OP_cast, &a, 1, &dtype, 1, o);
}

static bool has_shape(const struct graph *g, val_id a, const dim *shape, int rank) {
    const struct type *t = val_type(g, a);
    bool same = t->rank == rank;
    for (int k = 0; same && k < rank; k++) same = dim_same(t->dims[k], shape[k]);
    return same;
}

static val_id add_shaped(struct graph *g, enum op op, val_id a, const dim *shape, int rank,
                         str_id o) {
    struct attr attr = {.key = ATTR_shape, .list = shape, .n = rank};
    if (has_shape(g, a, shape, rank)) return a;
    return graph_add(g, op, &a, 1, &attr, 1, o);
}

val_id build_reshape(struct graph *g, val_id a, const dim *shape, int rank, str_id o) {
    return add_shaped(g, OP_reshape, a, shape, rank, o);
}

val_id build_expand(struct graph *g, val_id a, const dim *shape, int rank, str_id o) {
    return add_shaped(g, OP_expand, a, shape, rank, o);
}

val_id build_transpose(struct graph *g, val_id a, const int64_t *perm, str_id o) {
    int rank = val_type(g, a)->rank;
    struct attr attr = {.key = ATTR_perm, .list = perm, .n = rank};
    bool moves = false;
    for (int k = 0; k < rank; k++) moves |= perm[k] != k;
    if (!moves) return a;
    return graph_add(g, OP_transpose, &a, 1, &attr, 1, o);
}

val_id build_swap_last(struct graph *g, val_id a, str_id o) {
    int rank = val_type(g, a)->rank;
    int64_t perm[RANK_MAX];
    CHECK(g->ctx, rank >= 2);
    for (int k = 0; k < rank; k++) perm[k] = k;
    perm[rank - 2] = rank - 1;
    perm[rank - 1] = rank - 2;
    return build_transpose(g, a, perm, o);
}

val_id build_slice(struct graph *g, val_id a, const dim *starts, const dim *sizes,
                   const int64_t *steps, str_id o) {
    int rank = val_type(g, a)->rank;
    int64_t ones[RANK_MAX];
    bool whole = has_shape(g, a, sizes, rank);
    for (int k = 0; k < rank; k++) {
        ones[k] = 1;
        whole = whole && starts[k] == 0 && (!steps || steps[k] == 1);
    }
    if (whole) return a;
    struct attr attrs[] = {{.key = ATTR_starts, .list = starts, .n = rank},
                           {.key = ATTR_shape, .list = sizes, .n = rank},
                           {.key = ATTR_steps, .list = steps ? steps : ones, .n = rank}};
    return graph_add(g, OP_slice, &a, 1, attrs, 3, o);
}

val_id build_concat(struct graph *g, const val_id *parts, int n, int64_t axis, str_id o) {
    struct attr attr = {.key = ATTR_axis, .i = axis};
    CHECK(g->ctx, n > 0);
    if (n == 1) return parts[0];
    return graph_add(g, OP_concat, parts, n, &attr, 1, o);
}

/* ---- arithmetic ---------------------------------------------------------------------------- */
val_id build_reduce(struct graph *g, enum op op, val_id a, const int64_t *axes, int n,
                    bool keepdims, str_id o) {
    int64_t sorted[RANK_MAX];
    CHECK(g->ctx, n >= 0 && n <= RANK_MAX);
    if (n == 0) return a;
    for (int k = 0; k < n; k++) {
        int j = k;
        for (; j > 0 && sorted[j - 1] > axes[k]; j--) sorted[j] = sorted[j - 1];
        sorted[j] = axes[k];
    }
    struct attr attrs[] = {{.key = ATTR_axes, .list = sorted, .n = n},
                           {.key = ATTR_keepdims, .i = keepdims}};
    return graph_add(g, op, &a, 1, attrs, 2, o);
}

val_id build_matmul(struct graph *g, val_id a, val_id b, bool trans_a, bool trans_b, str_id o) {
    struct attr attrs[] = {{.key = ATTR_trans_a, .i = trans_a},
                           {.key = ATTR_trans_b, .i = trans_b}};
    return graph_add(g, OP_matmul, (val_id[]){a, b}, 2, attrs, 2, o);
}

val_id build_unbroadcast(struct graph *g, val_id a, const struct type *shape, str_id o) {
    struct type from = *val_type(g, a);
    int lead = from.rank - shape->rank, n = 0;
    int64_t axes[RANK_MAX];
    CHECK(g->ctx, lead >= 0);
    for (int k = 0; k < from.rank; k++) {
        if (k >= lead && dim_same(from.dims[k], shape->dims[k - lead])) continue;
        CHECK(g->ctx, k < lead || shape->dims[k - lead] == 1);
        axes[n++] = k;
    }
    val_id sum = build_reduce(g, OP_reduce_sum, a, axes, n, lead == 0, o);
    return build_reshape(g, sum, shape->dims, shape->rank, o);
}

static bool exact_scalar(enum dtype t, double k) {
    return dtype_is_float(t) || k == nearbyint(k);
}

val_id build_scale(struct graph *g, val_id a, double k, str_id o) {
    enum dtype t = val_type(g, a)->dtype;
    CHECK(g->ctx, exact_scalar(t, k));
    return k == 1 ? a : build_2(g, OP_mul, a, build_scalar(g, t, k, o), o);
}

val_id build_shift(struct graph *g, val_id a, double k, str_id o) {
    enum dtype t = val_type(g, a)->dtype;
    CHECK(g->ctx, exact_scalar(t, k));
    return k == 0 ? a : build_2(g, OP_add, a, build_scalar(g, t, k, o), o);
}

/* ---- reading constants --------------------------------------------------------------------- */
const struct blob *val_const(const struct graph *g, val_id v) {
    v = graph_resolve(g, v);
    if (val_op(g, v) != OP_const) return NULL;
    const struct blob *b = graph_get_blob(g, attr_blob(g, val_def(g, v), ATTR_init));
    return b->data ? b : NULL;
}

/* An element as a double; false when the double would not be the same number. */
static bool load_exact(enum dtype t, const void *p, double *x) {
    *x = dtype_load(t, p);
    return t != DT_i64 || (*x < 0x1p63 && (int64_t)*x == dtype_load_int(t, p));
}

/* x after OP_cast to t; false where C leaves the result open. */
static bool cast_uniform(enum dtype t, double *x) {
    uint64_t element = 0;
    if (t == DT_bool || dtype_is_float(t)) {
        dtype_store(t, &element, *x);
    } else {
        double whole = trunc(*x);
        dtype_store(t, &element, whole);
        if (isnan(whole) || dtype_load(t, &element) != whole) return false;
    }
    return load_exact(t, &element, x);
}

static bool const_uniform(const struct graph *g, val_id v, double *x) {
    const struct blob *b = val_const(g, v);
    enum dtype t = val_type(g, v)->dtype;
    size_t one = dtype_size(t);
    if (!b || b->bytes < one) return false;
    const char *p = b->data;
    if (memcmp(p, p + one, b->bytes - one) != 0) return false;
    return load_exact(t, p, x);
}

bool val_uniform(const struct graph *g, val_id v, double *x) {
    enum { CASTS_MAX = 16 };
    enum dtype casts[CASTS_MAX];
    int ncasts = 0;
    bool known = false;
    for (;;) {
        v = graph_resolve(g, v);
        enum op op = val_op(g, v);
        node_id n = val_def(g, v);
        if (op == OP_const) {
            known = const_uniform(g, v, x);
            break;
        }
        if (op == OP_full) {
            uint64_t element = 0;
            dtype_store(val_type(g, v)->dtype, &element, attr_float(g, n, ATTR_value));
            known = load_exact(val_type(g, v)->dtype, &element, x);
            break;
        }
        if (op == OP_cast) {
            if (ncasts == CASTS_MAX) return false;
            casts[ncasts++] = val_type(g, v)->dtype;
        } else if (op != OP_expand && op != OP_reshape && op != OP_transpose && op != OP_slice) {
            return false;
        }
        v = node_in(g, n, 0);
    }
    while (known && ncasts > 0) known = cast_uniform(casts[--ncasts], x);
    return known;
}
