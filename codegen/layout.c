// SPDX-License-Identifier: Apache-2.0
/* layout.c - where values lie: movement ops as windows on a buffer, buffers made on first use, and
 * the choice of a strided result layout where that saves a copy (transposes before a product, parts
 * of a concatenation). */
#include "codegen/internal.h"

/* ---- movement ops -------------------------------------------------------------------------- */
enum fit view_step(const struct cg *c, const struct space *sp, val_id v, const struct map_to *m,
                   val_id *operand, struct map_to *out, struct split *want) {
    struct graph *g = c->g;
    node_id n = val_def(g, v);
    val_id x = node_in(g, n, 0);
    int64_t dims[RANK_MAX], xdims[RANK_MAX], trail[RANK_MAX], strides[RANK_MAX] = {0};
    int rank = type_dims(val_type(g, v), dims), xrank = type_dims(val_type(g, x), xdims), k;
    int64_t base = 0;
    dims_strides(xdims, xrank, trail);
    *operand = x;
    switch ((enum op)graph_node(g, n)->op) {
    case OP_reshape: *out = *m; return FIT_OK;
    case OP_transpose: {
        const int64_t *perm = attr_ints(g, n, ATTR_perm, &k);
        for (int i = 0; i < rank; i++) strides[i] = trail[perm[i]];
        break;
    }
    case OP_expand:
        for (int i = 0; i < rank; i++) {
            int xi = i - (rank - xrank);
            strides[i] = xi < 0 || xdims[xi] == 1 ? 0 : trail[xi];
        }
        break;
    default: {
        const dim *starts = attr_dims(g, n, ATTR_starts, &k);
        const int64_t *steps = attr_ints(g, n, ATTR_steps, &k);
        for (int i = 0; i < rank; i++) {
            strides[i] = trail[i] * steps[i];
            base += trail[i] * starts[i];
        }
        break;
    }
    }
    return space_remap(sp, m, dims, rank, strides, base, out, want);
}

/* Follow v down to its base with the given space; the map then names elements of the base. */
static enum fit walk_down(const struct cg *c, const struct space *sp, val_id v, val_id *base,
                          struct map_to *m, struct split *want) {
    *m = space_identity(sp);
    while (node_class(c->g, val_def(c->g, v)) == CLASS_VIEW) {
        struct map_to next;
        enum fit f = view_step(c, sp, v, m, &v, &next, want);
        if (f != FIT_OK) return f;
        *m = next;
    }
    *base = v;
    return FIT_OK;
}

static bool in_memory(const struct cg *c, val_id v) {
    node_id n = val_def(c->g, v);
    return node_class(c->g, n) == CLASS_SOURCE || c->nodes[n.i].unit != 0;
}

/* Where v lies or, row-major, would lie. */
static struct place place_of(const struct cg *c, val_id v) {
    struct place p = c->vals[v.i].place;
    int64_t dims[RANK_MAX];
    if (!p.set) dims_strides(dims, type_dims(val_type(c->g, v), dims), p.strides);
    return p;
}

/* Strides per dim of v from strides per axis of a space that began as v's dims. */
static bool per_dim(const struct space *sp, const struct map_to *at, struct plan_view *out) {
    int k = sp->n;
    for (int d = out->rank - 1; d >= 0; d--) {
        int64_t n = 1;
        out->strides[d] = 0;
        while (n < out->dims[d] && k > 0) {
            k--;
            if (n == 1)
                out->strides[d] = at->s[k];
            else if (at->s[k] != out->strides[d] * n)
                return false;
            n *= sp->ext[k];
        }
        if (out->dims[d] == 1) /* free: what keeps the view row-major */
            out->strides[d] = d + 1 < out->rank ? out->strides[d + 1] * out->dims[d + 1] : 1;
    }
    return true;
}

bool view_of(struct cg *c, val_id v, struct plan_view *out) {
    const struct type *t = val_type(c->g, v);
    struct plan_view r = {.dtype = t->dtype};
    r.rank = type_dims(t, r.dims);
    val_id base = view_base(c, v);
    if (!in_memory(c, base)) return false;
    struct place p = place_of(c, base);
    r.buffer = p.buffer;
    if (view_count(&r) == 0) {
        dims_strides(r.dims, r.rank, r.strides);
        *out = r;
        return true;
    }
    struct space sp;
    space_from_dims(&sp, r.dims, r.rank);
    for (int round = 0; round <= RANK_MAX; round++) {
        struct map_to m, at;
        struct split want;
        int64_t dims[RANK_MAX];
        int rank = type_dims(val_type(c->g, base), dims);
        enum fit f = walk_down(c, &sp, v, &base, &m, &want);
        if (f == FIT_OK) f = space_remap(&sp, &m, dims, rank, p.strides, p.off, &at, &want);
        if (f == FIT_NO) return false;
        if (f == FIT_SPLIT) {
            if (!space_split(&sp, want)) return false;
            continue;
        }
        r.offset = at.off;
        if (!per_dim(&sp, &at, &r)) return false;
        *out = r;
        return true;
    }
    return false;
}

/* ---- what launches can read ----------------------------------------------------------------- */
bool view_last_ok(const struct plan_view *v) {
    for (int i = 0; i < v->rank; i++)
        if (v->strides[i] < 0) return false;
    return v->rank == 0 || v->dims[v->rank - 1] == 1 || v->strides[v->rank - 1] == 1;
}

/* One matrix axis has stride 1, the other at least the row's length. */
bool view_matrix_ok(const struct plan_view *v) {
    int64_t m = v->dims[v->rank - 2], n = v->dims[v->rank - 1];
    int64_t sm = v->strides[v->rank - 2], sn = v->strides[v->rank - 1];
    if (m == 0 || n == 0) return true;
    bool rows = (n == 1 || sn == 1) && (m == 1 || sm >= (n > 1 ? n : 1));
    bool cols = (m == 1 || sm == 1) && (n == 1 || sn >= (m > 1 ? m : 1));
    for (int i = 0; i < v->rank - 2; i++)
        if (v->strides[i] < 0) return false;
    return rows || cols;
}

/* [..,M,N] as [M',N]: both what a product of codes writes and what it adds. One axis has stride 1,
 * the other starts at addresses that libraries take. */
bool view_lines_ok(const struct plan_view *v, enum dtype t, struct plan_view *lines) {
    enum { ALIGN = 16 };
    const int64_t unit = ALIGN / (int64_t)dtype_size(t);
    int r = v->rank;
    int64_t rows = v->dims[r - 2], step = v->strides[r - 2];
    for (int d = r - 3; d >= 0; d--) {
        if (v->dims[d] == 1) continue;
        if (rows == 1) step = v->strides[d];
        if (v->strides[d] != rows * step) return false;
        rows *= v->dims[d];
    }
    struct plan_view flat = *v;
    flat.rank = 2;
    flat.dims[0] = rows, flat.dims[1] = v->dims[r - 1];
    flat.strides[0] = step, flat.strides[1] = v->strides[r - 1];
    int far = flat.strides[1] == 1 ? 0 : 1;
    if (lines) *lines = flat;
    return flat.strides[1 - far] == 1 && flat.strides[far] >= flat.dims[1 - far] &&
           flat.strides[far] % unit == 0 && v->offset % unit == 0;
}

bool need_met(enum need need, const struct plan_view *v) {
    switch (need) {
    case NEED_LAST: return view_last_ok(v);
    case NEED_MATRIX: return view_matrix_ok(v);
    default: return view_contiguous(v);
    }
}

enum need operand_need(const struct graph *g, node_id n, int k) {
    switch ((enum op)graph_node(g, n)->op) {
    case OP_matmul: return NEED_MATRIX;
    case OP_attention: return NEED_LAST;
    case OP_attention_grad: return k == 4 ? NEED_DENSE : NEED_LAST;
    case OP_cross_entropy: return k == 0 ? NEED_LAST : NEED_DENSE;
    default: return NEED_DENSE;
    }
}

/* Results that may be strided, and how. */
static bool result_fits(const struct cg *c, val_id v, const struct plan_view *view) {
    node_id n = val_def(c->g, v);
    int k = (int)(v.i - node_out(c->g, n, 0).i);
    const struct product *p = c->nodes[n.i].product;
    if (p && p->gelu) return false;
    node_id product = p ? (node_id){p->nodes[0]} : n;
    if (graph_node(c->g, product)->op == OP_scaled_matmul &&
        !view_lines_ok(view, val_type(c->g, v)->dtype, NULL))
        return false;
    if (p) {
        bool rows = view->dims[view->rank - 1] == 1 || view->strides[view->rank - 1] == 1;
        return view_matrix_ok(view) && (rows || (!p->bias.i && !p->residual.i));
    }
    switch (node_class(c->g, n)) {
    case CLASS_FUSED:
    case CLASS_CONCAT:
    case CLASS_PAD: return true;
    case CLASS_LAUNCH:
        switch ((enum op)graph_node(c->g, n)->op) {
        case OP_matmul:
        case OP_scaled_matmul: return view_matrix_ok(view);
        case OP_attention: return k == 0 && view_last_ok(view);
        case OP_attention_grad: return view_last_ok(view);
        default: return false;
        }
    default: return false;
    }
}

/* ---- choosing layouts ----------------------------------------------------------------------- */
/* Strides of base per dim such that w, a rearrangement of all its elements, lies as `dest` says. */
static bool invert(struct cg *c, val_id w, const struct plan_view *dest, struct place *out) {
    val_id base = view_base(c, w);
    const struct type *t = val_type(c->g, base);
    int64_t dims[RANK_MAX], trail[RANK_MAX];
    int rank = type_dims(t, dims);
    if (type_count(t) != view_count(dest) || view_count(dest) == 0) return false;
    for (val_id v = w; v.i != base.i; v = node_in(c->g, val_def(c->g, v), 0))
        if (val_op(c->g, v) == OP_slice) return false;
    dims_strides(dims, rank, trail);
    struct space sp;
    space_from_dims(&sp, dest->dims, dest->rank);
    for (int round = 0; round <= RANK_MAX; round++) {
        struct map_to m, at, id = space_identity(&sp);
        struct split want;
        int dim_of[RANK_MAX];
        enum fit f = walk_down(c, &sp, w, &base, &m, &want);
        if (f == FIT_OK)
            f = space_remap(&sp, &id, dest->dims, dest->rank, dest->strides, dest->offset, &at,
                            &want);
        if (f == FIT_OK) f = space_dims(&sp, &m, dims, rank, dim_of, &want);
        if (f == FIT_NO || (f == FIT_SPLIT && !space_split(&sp, want))) return false;
        if (f == FIT_SPLIT) continue;
        struct place p = {.set = true, .buffer = dest->buffer, .off = at.off};
        for (int d = 0; d < rank; d++) {
            int64_t n = 1;
            bool found = true;
            while (n < dims[d] && found) { /* the axis that steps n along dim d */
                found = false;
                for (int k = 0; k < sp.n && !found; k++) {
                    if (dim_of[k] != d || m.s[k] != n * trail[d]) continue;
                    if (n == 1)
                        p.strides[d] = at.s[k];
                    else if (at.s[k] != n * p.strides[d])
                        return false;
                    n *= sp.ext[k];
                    found = true;
                }
            }
            if (!found) return false;
        }
        *out = p;
        return true;
    }
    return false;
}

/* Launch operands below v that would have to be copied. */
static int copies_below(struct cg *c, val_id v) {
    int n = 0;
    for (uint32_t u = c->uses.first[v.i]; u < c->uses.first[v.i + 1]; u++) {
        node_id user = c->uses.user[u];
        if (u > c->uses.first[v.i] && c->uses.user[u - 1].i == user.i) continue;
        enum node_class cls = node_class(c->g, user);
        if (cls == CLASS_VIEW) n += copies_below(c, node_out(c->g, user, 0));
        if (cls != CLASS_LAUNCH) continue;
        for (int k = 0; k < graph_node(c->g, user)->nin; k++) {
            struct plan_view view;
            if (node_in(c->g, user, k).i != v.i) continue;
            n += !view_of(c, v, &view) || !need_met(operand_need(c->g, user, k), &view);
        }
    }
    return n;
}

/* Single bytes far apart: a copy by tiles is faster than storing them so. */
static bool scatters(const struct cg *c, val_id v, const struct plan_view *view) {
    int last = view->rank - 1;
    return dtype_size(val_type(c->g, v)->dtype) == 1 && last >= 0 && view->dims[last] > 1 &&
           view->strides[last] != 1 && node_class(c->g, val_def(c->g, v)) == CLASS_FUSED;
}

/* Let w lie as `dest` says by placing its base accordingly, unless that costs more copies
 * elsewhere. */
static bool try_place(struct cg *c, val_id w, const struct plan_view *dest, int gain) {
    val_id base = view_base(c, w);
    struct val_info *info = &c->vals[base.i];
    struct place p;
    if (info->place.set || info->plain || info->output >= 0) return false;
    if (c->nodes[val_def(c->g, base).i].unit == 0 || !invert(c, w, dest, &p)) return false;
    struct plan_view result = {.offset = p.off};
    result.rank = type_dims(val_type(c->g, base), result.dims);
    for (int d = 0; d < result.rank; d++) result.strides[d] = p.strides[d];
    for (int d = result.rank - 1; d >= 0; d--)
        if (result.dims[d] == 1)
            p.strides[d] = result.strides[d] =
                d + 1 < result.rank ? result.strides[d + 1] * result.dims[d + 1] : 1;
    if (!result_fits(c, base, &result) || scatters(c, base, &result)) return false;
    struct place dense = {.set = true};
    dims_strides(result.dims, result.rank, dense.strides);
    info->place = dense;
    int before = copies_below(c, base) + gain;
    info->place = p;
    if (copies_below(c, base) < before) {
        info->stored = true;
        return true;
    }
    info->place = (struct place){.set = false};
    return false;
}

static void try_place_dense(struct cg *c, val_id w) {
    struct plan_view dense = {.dtype = val_type(c->g, w)->dtype};
    dense.rank = type_dims(val_type(c->g, w), dense.dims);
    dims_strides(dense.dims, dense.rank, dense.strides);
    try_place(c, w, &dense, 0);
}

/* Let `base` lie where the launches that read it through movement ops want it; w: base or a
 * rearrangement of it. */
static void place_for_users(struct cg *c, val_id base, val_id w) {
    for (uint32_t u = c->uses.first[w.i]; u < c->uses.first[w.i + 1]; u++) {
        node_id user = c->uses.user[u];
        if (c->vals[base.i].place.set) return;
        if (node_class(c->g, user) == CLASS_VIEW)
            place_for_users(c, base, node_out(c->g, user, 0));
        else if (node_class(c->g, user) == CLASS_LAUNCH && w.i != base.i)
            try_place_dense(c, w);
    }
}

static void place_concat(struct cg *c, node_id n) {
    struct graph *g = c->g;
    val_id y = node_out(g, n, 0);
    struct plan_view whole = result_view(c, y);
    int axis = (int)attr_int(g, n, ATTR_axis);
    for (int k = 0; k < graph_node(g, n)->nin; k++) {
        val_id w = node_in(g, n, k);
        struct plan_view part = whole;
        part.dims[axis] = val_type(g, w)->dims[axis];
        try_place(c, w, &part, 1);
        whole.offset += part.dims[axis] * whole.strides[axis];
    }
}

static void place_operands(struct cg *c, node_id n) {
    struct graph *g = c->g;
    for (int k = 0; k < graph_node(g, n)->nin; k++) {
        val_id w = node_in(g, n, k), base = view_base(c, w);
        if (w.i == base.i || c->vals[base.i].place.set) continue;
        if (c->nodes[val_def(g, base).i].unit == 0) continue;
        try_place_dense(c, w);
    }
}

static void place_outputs(struct cg *c) {
    struct graph *g = c->g;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        val_id v = graph_resolve(g, g->outputs.at[i].value);
        struct val_info *info = &c->vals[v.i];
        if (c->nodes[val_def(g, v).i].unit == 0 || info->plain || info->place.set) continue;
        if (node_class(g, val_def(g, v)) == CLASS_VIEW) continue;
        buf_id b = buffer_add(c, BUF_OUTPUT, USE_IO, val_type(g, v));
        c->p->buffers.at[b.i].name =
            intern(&c->p->strings, interned(&g->strings, g->outputs.at[i].name));
        int64_t dims[RANK_MAX];
        info->place = (struct place){.set = true, .buffer = b};
        dims_strides(dims, type_dims(val_type(g, v), dims), info->place.strides);
        info->output = (int32_t)i;
    }
}

void choose_places(struct cg *c) {
    place_outputs(c);
    if (c->o->no_fusion) return;
    for (uint32_t i = c->g->nodes.n; i-- > 1;)
        if (node_class(c->g, (node_id){i}) == CLASS_CONCAT) {
            val_id y = node_out(c->g, (node_id){i}, 0);
            place_for_users(c, y, y);
            place_concat(c, (node_id){i});
        }
    for (uint32_t i = 1; i < c->g->nodes.n; i++)
        if (node_class(c->g, (node_id){i}) == CLASS_LAUNCH) place_operands(c, (node_id){i});
}
