// SPDX-License-Identifier: Apache-2.0
/* simplify_move.c - views of views: reshape, transpose, expand, slice and pad that cancel, merge or
 * see through each other. Everything here is exact. */
#include "passes/simplify.h"
#include <string.h>

static str_id origin_of(const struct graph *g, node_id n) {
    return graph_node(g, n)->origin;
}

static bool same_shape(const struct type *a, const struct type *b) {
    bool same = a->rank == b->rank;
    for (int k = 0; same && k < a->rank; k++) same = dim_same(a->dims[k], b->dims[k]);
    return same;
}

/* ---- uniform constants --------------------------------------------------------------------- */
/* One form for tensors of one number: a scalar `const`, else `full`. */
static val_id uniform(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    enum op op = (enum op)graph_node(g, n)->op;
    struct type t = *val_type(g, node_out(g, n, 0));
    double x;
    if (op != OP_const && op != OP_full && op != OP_cast && !(op_info(op)->traits & VIEW))
        return VAL_NONE;
    if (op == (t.rank == 0 ? OP_const : OP_full)) return VAL_NONE;
    if (!val_uniform(g, node_out(g, n, 0), &x)) return VAL_NONE;
    if (t.rank > 0) return build_full(g, &t, x, origin_of(g, n));
    if (dtype_class(t.dtype) != DTC_INT) return build_scalar(g, t.dtype, x, origin_of(g, n));
    return build_scalar_int(g, t.dtype, (int64_t)x, origin_of(g, n));
}

/* ---- reshape ------------------------------------------------------------------------------- */
/* A detour by merged leading axes: in reshape(transpose(reshape(x))) the outer reshape only splits
 * the first axis, which the transpose leaves alone. The split goes inside, where reshapes merge. */
static val_id reshape_transpose(struct graph *g, node_id n, node_id d) {
    struct type t = *val_type(g, node_out(g, n, 0));
    val_id y = node_in(g, d, 0);
    struct type in = *val_type(g, y);
    int rank, lead = t.rank - in.rank + 1;
    const int64_t *perm = attr_ints(g, d, ATTR_perm, &rank);
    if (val_op(g, y) != OP_reshape || rank < 1 || perm[0] != 0 || lead < 1) return VAL_NONE;
    struct type split = {.dtype = t.dtype, .rank = t.rank};
    int64_t whole[RANK_MAX];
    for (int k = 0; k < t.rank; k++) {
        bool leading = k < lead;
        if (!leading && !dim_same(t.dims[k], in.dims[perm[k - lead + 1]])) return VAL_NONE;
        split.dims[k] = leading ? t.dims[k] : in.dims[k - lead + 1];
        whole[k] = leading ? k : perm[k - lead + 1] + lead - 1;
    }
    val_id r = build_reshape(g, y, split.dims, split.rank, origin_of(g, n));
    return build_transpose(g, r, whole, origin_of(g, d));
}

static val_id reshape(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    struct type t = *val_type(g, node_out(g, n, 0));
    val_id x = node_in(g, n, 0);
    node_id d = val_def(g, x);
    switch (val_op(g, x)) {
    case OP_reshape: return build_reshape(g, node_in(g, d, 0), t.dims, t.rank, origin_of(g, n));
    case OP_const: { /* the same bytes */
        struct attr init = {.key = ATTR_init, .blob = attr_blob(g, d, ATTR_init)};
        if (!type_static(&t)) return VAL_NONE;
        return graph_source(g, OP_const, &t, &init, 1, origin_of(g, d));
    }
    case OP_transpose:
        if (!same_shape(&t, val_type(g, x))) return reshape_transpose(g, n, d);
        return x;
    default: return same_shape(&t, val_type(g, x)) ? x : VAL_NONE;
    }
}

/* ---- transpose ----------------------------------------------------------------------------- */
static bool is_identity(const int64_t *perm, int n) {
    bool same = true;
    for (int k = 0; same && k < n; k++) same = perm[k] == k;
    return same;
}

/* The axes that are not of size 1 keep their order: no element moves. */
static bool moves_only_units(const struct type *in, const int64_t *perm) {
    int64_t last = -1;
    for (int k = 0; k < in->rank; k++) {
        if (in->dims[perm[k]] == 1) continue;
        if (perm[k] < last) return false;
        last = perm[k];
    }
    return true;
}

static val_id transpose(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    struct type in = *val_type(g, x), out = *val_type(g, node_out(g, n, 0));
    int rank;
    const int64_t *perm = attr_ints(g, n, ATTR_perm, &rank);
    if (is_identity(perm, rank)) return x;
    if (moves_only_units(&in, perm))
        return build_reshape(g, x, out.dims, out.rank, origin_of(g, n));
    if (val_op(g, x) != OP_transpose) return VAL_NONE;
    const int64_t *first = attr_ints(g, val_def(g, x), ATTR_perm, &rank);
    int64_t both[RANK_MAX];
    for (int k = 0; k < rank; k++) both[k] = first[perm[k]];
    return build_transpose(g, node_in(g, val_def(g, x), 0), both, origin_of(g, n));
}

/* ---- expand -------------------------------------------------------------------------------- */
/* x reshaped by nothing but size 1 axes in front, which broadcasting supplies anyway. */
static bool only_leads(const struct graph *g, val_id v) {
    if (val_op(g, v) != OP_reshape) return false;
    const struct type *t = val_type(g, v), *in = val_type(g, node_in(g, val_def(g, v), 0));
    int lead = t->rank - in->rank;
    bool ok = lead > 0;
    for (int k = 0; ok && k < t->rank; k++)
        ok = k < lead ? t->dims[k] == 1 : dim_same(t->dims[k], in->dims[k - lead]);
    return ok;
}

static val_id expand(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    struct type t = *val_type(g, node_out(g, n, 0));
    if (val_op(g, x) == OP_expand || only_leads(g, x))
        return build_expand(g, node_in(g, val_def(g, x), 0), t.dims, t.rank, origin_of(g, n));
    return same_shape(&t, val_type(g, x)) ? x : VAL_NONE;
}

/* ---- slice --------------------------------------------------------------------------------- */
struct span {
    int rank;
    dim starts[RANK_MAX], sizes[RANK_MAX];
    int64_t steps[RANK_MAX];
};

static struct span span_of(const struct graph *g, node_id n) {
    struct span s;
    const dim *starts = attr_dims(g, n, ATTR_starts, &s.rank);
    const dim *sizes = attr_dims(g, n, ATTR_shape, &s.rank);
    const int64_t *steps = attr_ints(g, n, ATTR_steps, &s.rank);
    for (int k = 0; k < s.rank; k++) {
        s.starts[k] = starts[k];
        s.sizes[k] = sizes[k];
        s.steps[k] = steps[k];
    }
    return s;
}

static val_id slice_span(struct graph *g, val_id x, const struct span *s, str_id origin) {
    return build_slice(g, x, s->starts, s->sizes, s->steps, origin);
}

/* Elements of `outer` counted in what `inner` was cut from. */
static bool compose(struct graph *g, const struct span *inner, struct span *outer) {
    for (int k = 0; k < outer->rank; k++) {
        bool known = dim_known(inner->starts[k]) && dim_known(outer->starts[k]);
        if (!known && inner->steps[k] != 1) return false;
        if (known) {
            outer->starts[k] = inner->starts[k] + outer->starts[k] * inner->steps[k];
            if (outer->sizes[k] == 0) outer->starts[k] = 0;
        } else if (!dim_try_add(g->dims, inner->starts[k], outer->starts[k], &outer->starts[k])) {
            return false;
        }
        outer->steps[k] *= inner->steps[k];
        if (outer->sizes[k] == 0 || outer->sizes[k] == 1) outer->steps[k] = 1;
    }
    return true;
}

/* A slice within one part of a concat. */
static val_id slice_concat(struct graph *g, node_id n, node_id d) {
    struct span s = span_of(g, n);
    int axis = (int)attr_int(g, d, ATTR_axis);
    dim start = s.starts[axis], size = s.sizes[axis];
    if (!dim_known(start) || !dim_known(size) || size == 0) return VAL_NONE;
    int64_t last = start + (size - 1) * s.steps[axis];
    int64_t low = start < last ? start : last, high = start < last ? last : start;
    for (int64_t k = 0, offset = 0; k < graph_node(g, d)->nin; k++) {
        val_id part = node_in(g, d, (int)k);
        dim length = val_type(g, part)->dims[axis];
        if (!dim_known(length)) return VAL_NONE;
        if (low >= offset && high < offset + length) {
            s.starts[axis] -= offset;
            return slice_span(g, part, &s, origin_of(g, n));
        }
        offset += length;
    }
    return VAL_NONE;
}

/* The slice that takes back exactly what pad put between zeros. */
static val_id slice_pad(const struct graph *g, node_id n, node_id d) {
    struct span s = span_of(g, n);
    val_id x = node_in(g, d, 0);
    int rank;
    const int64_t *low = attr_ints(g, d, ATTR_low, &rank);
    const int64_t *inner = attr_ints(g, d, ATTR_interior, &rank);
    for (int k = 0; k < rank; k++) {
        dim size = val_type(g, x)->dims[k];
        if (s.starts[k] != low[k] || !dim_same(s.sizes[k], size)) return VAL_NONE;
        if (s.steps[k] != inner[k] + 1 && size != 1) return VAL_NONE;
    }
    return x;
}

static val_id slice(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    node_id d = val_def(g, x);
    struct span s = span_of(g, n);
    bool whole = same_shape(val_type(g, x), val_type(g, node_out(g, n, 0)));
    for (int k = 0; k < s.rank; k++)
        whole = whole && ((s.starts[k] == 0 && s.steps[k] == 1) || s.sizes[k] == 1);
    if (whole) return x;
    switch (val_op(g, x)) {
    case OP_slice: {
        struct span inner = span_of(g, d);
        if (!compose(g, &inner, &s)) return VAL_NONE;
        return slice_span(g, node_in(g, d, 0), &s, origin_of(g, n));
    }
    case OP_concat: return slice_concat(g, n, d);
    case OP_pad: return slice_pad(g, n, d);
    default: return VAL_NONE;
    }
}

static val_id pad(struct rewrite *w, node_id n) {
    return same_shape(val_type(w->g, node_in(w->g, n, 0)), val_type(w->g, node_out(w->g, n, 0)))
               ? node_in(w->g, n, 0)
               : VAL_NONE;
}

/* ---- matmul -------------------------------------------------------------------------------- */
/* A transposed operand whose last axis became the last but one: the flag can say that, and the last
 * axis stays last. Whatever else the transpose moves (heads before rows) remains. */
static bool absorb(struct graph *g, val_id *x, bool *trans, str_id origin) {
    if (val_op(g, *x) != OP_transpose) return false;
    int rank;
    const int64_t *perm = attr_ints(g, val_def(g, *x), ATTR_perm, &rank);
    if (perm[rank - 2] != rank - 1) return false;
    int64_t rest[RANK_MAX];
    memcpy(rest, perm, (size_t)rank * sizeof *perm);
    rest[rank - 2] = perm[rank - 1];
    rest[rank - 1] = rank - 1;
    *x = build_transpose(g, node_in(g, val_def(g, *x), 0), rest, origin);
    *trans = !*trans;
    return true;
}

static val_id matmul(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id a = node_in(g, n, 0), b = node_in(g, n, 1);
    bool ta = attr_bool(g, n, ATTR_trans_a), tb = attr_bool(g, n, ATTR_trans_b);
    bool left = absorb(g, &a, &ta, origin_of(g, n)), right = absorb(g, &b, &tb, origin_of(g, n));
    if (!left && !right) return VAL_NONE;
    return build_matmul(g, a, b, ta, tb, origin_of(g, n));
}

/* (A B)' = B' A' */
static val_id transpose_matmul(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id x = node_in(g, n, 0);
    node_id d = val_def(g, x);
    int rank;
    const int64_t *perm = attr_ints(g, n, ATTR_perm, &rank);
    if (val_op(g, x) != OP_matmul || !rewrite_single(w, x)) return VAL_NONE;
    if (perm[rank - 1] != rank - 2 || perm[rank - 2] != rank - 1 || !is_identity(perm, rank - 2))
        return VAL_NONE;
    return build_matmul(g, node_in(g, d, 1), node_in(g, d, 0), !attr_bool(g, d, ATTR_trans_b),
                        !attr_bool(g, d, ATTR_trans_a), origin_of(g, d));
}

// clang-format off
static const struct rewrite_fn fns[] = {
    {"uniform",          OP_NONE,      uniform},
    {"reshape",          OP_reshape,   reshape},
    {"transpose",        OP_transpose, transpose},
    {"expand",           OP_expand,    expand},
    {"slice",            OP_slice,     slice},
    {"pad-nothing",      OP_pad,       pad},
    {"matmul-transpose", OP_matmul,    matmul},
    {"transpose-matmul", OP_transpose, transpose_matmul},
};
// clang-format on

const struct rewrite_fn *simplify_view_rules(int *n) {
    *n = (int)(sizeof fns / sizeof fns[0]);
    return fns;
}
