// SPDX-License-Identifier: Apache-2.0
/* mask.c - proofs about attention masks. A mask that is no constant proves nothing by itself; every
 * function errs on the side of "not known". */
#include "passes/mask.h"
#include <math.h>
#include <string.h>

/* exp of a score this far below the others is 0 in every float type. */
static const double HIDDEN = -1e4;
enum { DEPTH = 16 };

/* Element `at` of packed bytes, as a number. */
static double element(enum dtype t, const void *data, int64_t at) {
    return dtype_load(t, (const char *)data + (size_t)at * dtype_size(t));
}

/* Each row along `axis` of a constant has an element that hides nothing: true, or not -inf. */
static bool const_rows_visible(const struct graph *g, val_id v, int64_t axis, bool value) {
    struct type t = *val_type(g, v);
    const struct blob *b = val_const(g, v);
    int64_t inner = 1, total = type_count(&t);
    if (!b || axis < 0 || axis >= t.rank || total <= 0) return false;
    for (int k = (int)axis + 1; k < t.rank; k++) inner *= t.dims[k];
    int64_t n = t.dims[axis];
    for (int64_t row = 0; row < total / n; row++) {
        int64_t base = row / inner * inner * n + row % inner;
        bool visible = false;
        for (int64_t k = 0; k < n && !visible; k++) {
            double x = element(t.dtype, b->data, base + k * inner);
            visible = t.dtype == DT_bool ? (x != 0) == value : isfinite(x);
        }
        if (!visible) return false;
    }
    return true;
}

static bool is_finite_constant(const struct graph *g, val_id v) {
    double x;
    if (val_uniform(g, v, &x)) return isfinite(x);
    struct type t = *val_type(g, v);
    const struct blob *b = val_const(g, v);
    int64_t n = type_count(&t);
    if (!b || n < 0) return false;
    for (int64_t k = 0; k < n; k++)
        if (!isfinite(element(t.dtype, b->data, k))) return false;
    return true;
}

/* Axis of operand `v` that lines up with `axis` of a result of rank `rank`. */
static int64_t axis_of(const struct graph *g, val_id v, int rank, int64_t axis) {
    return axis - (rank - val_type(g, v)->rank);
}

/* A mask that is added and has no infinity anywhere. */
static bool is_finite_mask(const struct graph *g, val_id v, int depth) {
    node_id n = val_def(g, v);
    if (is_finite_constant(g, v)) return true;
    if (depth == 0) return false;
    switch (val_op(g, v)) {
    case OP_reshape:
    case OP_transpose:
    case OP_slice:
    case OP_expand: return is_finite_mask(g, node_in(g, n, 0), depth - 1);
    case OP_where:
        return is_finite_mask(g, node_in(g, n, 1), depth - 1) &&
               is_finite_mask(g, node_in(g, n, 2), depth - 1);
    default: return false;
    }
}

/* A mask that is added: no row of it is all -inf. */
static bool is_row_mask(const struct graph *g, val_id v, int64_t axis) {
    node_id n = val_def(g, v);
    int rank = val_type(g, v)->rank;
    if (const_rows_visible(g, v, axis, true)) return true;
    if (val_op(g, v) != OP_where) return false;
    val_id c = node_in(g, n, 0);
    int64_t k = axis_of(g, c, rank, axis);
    return (is_finite_constant(g, node_in(g, n, 1)) && const_rows_visible(g, c, k, true)) ||
           (is_finite_constant(g, node_in(g, n, 2)) && const_rows_visible(g, c, k, false));
}

struct walk {
    const struct graph *g;
    val_id x;
    int64_t axis;
    bool masked; /* one mask with infinities is allowed: two could hide a row together */
    int depth;
};

static bool visible(struct walk w);

static bool visible_in(struct walk w, val_id operand, bool masked) {
    w.axis = axis_of(w.g, operand, val_type(w.g, w.x)->rank, w.axis);
    w.x = operand;
    w.masked = masked;
    w.depth--;
    return visible(w);
}

static bool visible_sum(struct walk w, val_id s, val_id m) {
    int64_t axis = axis_of(w.g, m, val_type(w.g, w.x)->rank, w.axis);
    if (is_finite_mask(w.g, m, w.depth)) return visible_in(w, s, w.masked);
    return w.masked && is_row_mask(w.g, m, axis) && visible_in(w, s, false);
}

static bool visible(struct walk w) {
    const struct graph *g = w.g;
    node_id n = val_def(g, w.x);
    double k;
    if (w.depth == 0) return false;
    val_id a = node_in(g, n, 0), b = node_in(g, n, 1);
    switch (val_op(g, w.x)) {
    case OP_matmul: return true;
    case OP_mul:
        if (is_finite_constant(g, a)) return visible_in(w, b, w.masked);
        return is_finite_constant(g, b) && visible_in(w, a, w.masked);
    case OP_div:
        return val_uniform(g, b, &k) && isfinite(k) && k != 0 && visible_in(w, a, w.masked);
    case OP_cast: return dtype_is_float(val_type(g, a)->dtype) && visible_in(w, a, w.masked);
    case OP_add: return visible_sum(w, a, b) || visible_sum(w, b, a);
    case OP_where: {
        val_id hidden = node_in(g, n, 2);
        int64_t axis = axis_of(g, a, val_type(g, w.x)->rank, w.axis);
        if (is_finite_constant(g, hidden)) return visible_in(w, b, w.masked);
        return w.masked && const_rows_visible(g, a, axis, true) && visible_in(w, b, false);
    }
    default: return false;
    }
}

bool mask_rows_visible(const struct graph *g, val_id x, int64_t axis) {
    return visible((struct walk){g, x, axis, true, DEPTH});
}

/* ---- classes of constant masks ------------------------------------------------------------- */
struct reading {
    enum dtype dtype;
    bool invert, clear, infinite; /* clear: every element says visible or hidden */
};

static bool shows(struct reading *r, double x) {
    if (r->dtype == DT_bool) return (x != 0) != r->invert;
    if (x != 0 && !(x <= HIDDEN)) r->clear = false;
    if (x != 0 && isfinite(x)) r->infinite = false;
    return x == 0;
}

/* The common form in one pass over memory: f32, rows by columns, zeros up to the diagonal and
 * numbers
 * <= HIDDEN behind it. */
static bool plain_causal(const struct blob *b, int64_t matrices, int64_t rows, int64_t columns,
                         bool *infinite) {
    const char *at = b->data;
    bool inf = true;
    for (int64_t r = 0; r < matrices * rows; r++, at += (size_t)columns * sizeof(float)) {
        int64_t shown = r % rows + columns - rows + 1;
        bool ok = true;
        for (int64_t j = 0; j < columns; j++) {
            float x;
            memcpy(&x, at + (size_t)j * sizeof x, sizeof x);
            ok = ok && (j < shown ? x == 0 : x <= (float)HIDDEN);
            inf = inf && (j < shown || x == -INFINITY);
        }
        if (!ok) return false;
    }
    *infinite = inf;
    return true;
}

enum mask_kind mask_classify(const struct graph *g, val_id mask, bool invert, dim rows, dim columns,
                             bool *infinite) {
    double uniform;
    bool all = true, causal = true;
    struct type t = *val_type(g, mask);
    struct reading r = {t.dtype, invert, true, true};
    *infinite = false;
    if (val_uniform(g, mask, &uniform))
        return shows(&r, uniform) && r.clear ? MASK_ALL : MASK_OTHER;
    const struct blob *b = val_const(g, mask);
    int64_t total = type_count(&t);
    if (!b || t.rank < 1 || total <= 0) return MASK_OTHER;
    int64_t s = t.dims[t.rank - 1], q = t.rank > 1 ? t.dims[t.rank - 2] : 1;
    /* With fewer columns than rows some rows would see nothing: hidden scores then matter. */
    bool square = dim_known(rows) && columns >= rows && s == columns && q == rows;
    if (square && t.dtype == DT_f32 && s > 1 && plain_causal(b, total / (s * q), q, s, infinite))
        return MASK_CAUSAL;
    for (int64_t k = 0; k < total && r.clear && (all || causal); k++) {
        int64_t j = k % s, i = k / s % q;
        bool show = shows(&r, element(t.dtype, b->data, k));
        all = all && show;
        causal = causal && square && show == (j <= i + columns - rows);
    }
    if (!r.clear) return MASK_OTHER;
    *infinite = r.infinite;
    return all ? MASK_ALL : causal ? MASK_CAUSAL : MASK_OTHER;
}

bool mask_rows_have(const struct graph *g, val_id mask, bool value) {
    return const_rows_visible(g, mask, val_type(g, mask)->rank - 1, value);
}
