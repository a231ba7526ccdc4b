// SPDX-License-Identifier: Apache-2.0
/* lower_matmul.c - products: transposes as strides, batch axes aligned or folded into the rows, and
 * conversion of element types that the product does not know. */
#include "codegen/internal.h"

static void swap_last(struct plan_view *v) {
    int64_t d = v->dims[v->rank - 1], s = v->strides[v->rank - 1];
    v->dims[v->rank - 1] = v->dims[v->rank - 2];
    v->strides[v->rank - 1] = v->strides[v->rank - 2];
    v->dims[v->rank - 2] = d;
    v->strides[v->rank - 2] = s;
}

/* Leading axes that `v` lacks or has with size 1 are repeated. */
static void align_batch(struct plan_view *v, const struct plan_view *out) {
    struct plan_view r = *v;
    r.rank = out->rank;
    for (int d = 0; d < out->rank; d++) {
        int from = d - (out->rank - v->rank);
        bool batch = d < out->rank - 2;
        bool repeat = from < 0 || (batch && v->dims[from] == 1);
        r.dims[d] = batch || from < 0 ? out->dims[d] : v->dims[from];
        r.strides[d] = repeat ? 0 : v->strides[from];
    }
    *v = r;
}

/* Fold the last batch axis of a and the result into M, where b does not have it. */
static bool fold_batch(struct plan_view *a, struct plan_view *b, struct plan_view *out) {
    int r = out->rank, d = r - 3;
    if (r < 3) return false;
    bool b_same = b->strides[d] == 0 || b->dims[d] == 1;
    int64_t m = out->dims[r - 2];
    bool even =
        out->dims[d] == 1 || m == 1 ||
        (a->strides[d] == m * a->strides[r - 2] && out->strides[d] == m * out->strides[r - 2]);
    if (!b_same || !even) return false;
    bool m_free = m == 1; /* the row stride of a single row means nothing: take the batch's */
    struct plan_view *av[2] = {a, out};
    for (int k = 0; k < 2; k++) {
        struct plan_view *v = av[k];
        if (m_free && v->dims[d] != 1) v->strides[r - 2] = v->strides[d];
        v->dims[r - 2] *= v->dims[d];
        v->dims[d] = v->dims[r - 2], v->strides[d] = v->strides[r - 2];
        v->dims[d + 1] = v->dims[r - 1], v->strides[d + 1] = v->strides[r - 1];
        v->rank--;
    }
    b->dims[d] = b->dims[r - 2], b->strides[d] = b->strides[r - 2];
    b->dims[d + 1] = b->dims[r - 1], b->strides[d + 1] = b->strides[r - 1];
    b->rank--;
    return true;
}

static enum status converted(struct cg *c, node_id n, int k, enum dtype t, struct plan_view *out) {
    val_id v = node_in(c->g, n, k);
    struct type type = *val_type(c->g, v);
    if (type.dtype == t) return operand_view(c, n, k, out);
    type.dtype = t;
    *out = buffer_view(c, buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, &type));
    return group_copy(c, v, out, unit_origin(c, &n.i, 1));
}

static enum status launch_matmul(struct cg *c, node_id n) {
    struct graph *g = c->g;
    val_id y = node_out(g, n, 0);
    enum dtype t = val_type(g, y)->dtype;
    enum dtype work = t == DT_f32 || t == DT_f64 ? t : dtype_is_float(t) ? DT_f32 : DT_f64;
    struct plan_view in[2], out = result_view(c, y), result = out;
    str_id origin = unit_origin(c, &n.i, 1);
    if (view_count(&out) == 0) return ST_OK;
    for (int k = 0; k < 2; k++) TRY(converted(c, n, k, work, &in[k]));
    if (work != t) {
        struct type type = *val_type(g, y);
        type.dtype = work;
        result = buffer_view(c, buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, &type));
    }
    struct plan_view wide = result;
    if (attr_bool(g, n, ATTR_trans_a)) swap_last(&in[0]);
    if (attr_bool(g, n, ATTR_trans_b)) swap_last(&in[1]);
    align_batch(&in[0], &wide);
    align_batch(&in[1], &wide);
    while (wide.rank > 2) {
        struct plan_view a = in[0], b = in[1], o = wide;
        if (!fold_batch(&a, &b, &o) || !view_matrix_ok(&a) || !view_matrix_ok(&o)) break;
        in[0] = a, in[1] = b, wide = o;
    }
    struct plan_launch *l = launch_add(c, LAUNCH_matmul, in, 2, &wide, 1, origin);
    l->cost = node_cost(g, n);
    if (work == t) return ST_OK;
    return group_convert(c, &result, &out, origin);
}
const struct lowering lower_matmul = {.cls = CLASS_LAUNCH, .launch = launch_matmul};
