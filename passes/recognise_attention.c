// SPDX-License-Identifier: Apache-2.0
/* recognise_attention.c - scaled dot-product attention from its pieces: two matmuls around a
 * softmax, with the scale, masks, softcap, casts and repeated heads that exporters put between
 * them.
 *
 * It starts from the second matmul and reads backwards:
 *
 *   matmul(P, v)          P: softmax over the last axis, under casts and the guard
 *                            where(isnan(p), 0, p)
 *   scores under softmax  add(.., mask), where(keep, .., hidden), mul or div by a number,
 *                         mul(tanh(mul(.., 1/cap)), cap), casts
 *   matmul(q, k')         q and k scaled by numbers on either side of views; k' transposed by flag
 * or by view; k and v repeated over heads by expand
 *
 * A row that a mask hides whole gives 0 in the op. It is NaN in the formula without the guard, and
 * an average over everything where what hides is a finite number; the latter is only fused when it
 * cannot happen or when the mask stays an added one. */
#include "passes/mask.h"
#include "passes/recognise.h"
#include <math.h>

enum { MASKS_MAX = 3, DEPTH_MAX = 12 };
/* A score plus this is this, whatever the score: the type's lowest number does not keep the rest.
 */
static const double ABSORBS = -1e30;

enum how { ADDED, KEEPS, HIDES }; /* KEEPS, HIDES: a where whose condition keeps or hides */
struct hiding {
    val_id mask;
    enum how how;
    double hidden; /* of a where */
};
struct found {
    struct rewrite *w;
    node_id scores; /* matmul(q, k') */
    struct hiding masks[MASKS_MAX];
    int nmasks;
    double scale, softcap;
    bool scaled; /* a scale was seen outside of where we are: masks further in would be scaled */
    bool causal;
};

/* mul or div by a number: what is multiplied, and by what. */
static bool scaled_by(const struct graph *g, val_id v, val_id *x, double *factor) {
    node_id n = val_def(g, v);
    enum op op = val_op(g, v);
    double c;
    if (op != OP_mul && op != OP_div) return false;
    for (int k = 1; k >= (op == OP_mul ? 0 : 1); k--) {
        if (!val_uniform(g, node_in(g, n, k), &c) || !isfinite(c) || c == 0) continue;
        *x = node_in(g, n, 1 - k);
        *factor = op == OP_mul ? c : 1 / c;
        return type_equal(val_type(g, *x), val_type(g, v));
    }
    return false;
}

static bool float_cast(const struct graph *g, val_id v) {
    return val_op(g, v) == OP_cast &&
           dtype_is_float(val_type(g, node_in(g, val_def(g, v), 0))->dtype);
}

/* ---- scores -------------------------------------------------------------------------------- */
static bool read_scores(struct found *f, val_id v, int depth);

static bool read_masked(struct found *f, val_id scores, struct hiding m, int depth) {
    if (f->scaled || f->softcap != 0 || f->nmasks == MASKS_MAX) return false;
    f->masks[f->nmasks++] = m;
    return read_scores(f, scores, depth);
}

static bool read_where(struct found *f, node_id n, int depth) {
    const struct graph *g = f->w->g;
    for (int k = 1; k <= 2; k++) {
        struct found saved = *f;
        struct hiding m = {node_in(g, n, 0), k == 1 ? KEEPS : HIDES, 0};
        if (val_uniform(g, node_in(g, n, 3 - k), &m.hidden) && m.hidden <= -1e4 &&
            read_masked(f, node_in(g, n, k), m, depth))
            return true;
        *f = saved;
    }
    return false;
}

/* cap * tanh(x / cap) */
static bool read_softcap(struct found *f, val_id tanh, double cap, int depth) {
    const struct graph *g = f->w->g;
    if (f->softcap != 0 || f->scaled || !(cap > 0)) return false;
    f->softcap = cap;
    f->scale = cap;
    return read_scores(f, node_in(g, val_def(g, tanh), 0), depth);
}

static bool read_scores(struct found *f, val_id v, int depth) {
    const struct graph *g = f->w->g;
    node_id n = val_def(g, v);
    val_id x;
    double c;
    if (depth == 0 || !rewrite_single(f->w, v)) return false;
    if (float_cast(g, v)) return read_scores(f, node_in(g, n, 0), depth - 1);
    if (scaled_by(g, v, &x, &c)) {
        if (val_op(g, x) == OP_tanh && rewrite_single(f->w, x))
            return read_softcap(f, x, c, depth - 1);
        f->scaled = true;
        f->scale *= c;
        return read_scores(f, x, depth - 1);
    }
    switch (val_op(g, v)) {
    case OP_matmul: f->scores = n; return !attr_bool(g, n, ATTR_trans_a);
    case OP_where: return read_where(f, n, depth - 1);
    case OP_add:
        for (int k = 0; k < 2; k++) {
            struct found saved = *f;
            struct hiding m = {node_in(g, n, 1 - k), ADDED, 0};
            if (read_masked(f, node_in(g, n, k), m, depth - 1)) return true;
            *f = saved;
        }
        return false;
    default: return false;
    }
}

/* From the weights that multiply v down to the softmax; false when they are no softmax. */
static bool read_weights(const struct found *f, val_id v, val_id *scores) {
    const struct graph *g = f->w->g;
    bool guarded = false;
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        node_id n = val_def(g, v);
        double zero;
        bool once = v.i < f->w->nuses && f->w->uses[v.i] == (guarded ? 2u : 1u);
        if (!once) return false;
        if (val_op(g, v) == OP_softmax) {
            *scores = node_in(g, n, 0);
            return attr_int(g, n, ATTR_axis) == val_type(g, v)->rank - 1;
        }
        if (float_cast(g, v) && !guarded) {
            v = node_in(g, n, 0);
            continue;
        }
        val_id test = node_in(g, n, 0);
        if (guarded || val_op(g, v) != OP_where || val_op(g, test) != OP_isnan) return false;
        if (!val_uniform(g, node_in(g, n, 1), &zero) || zero != 0) return false;
        v = node_in(g, n, 2);
        if (node_in(g, val_def(g, test), 0).i != v.i || !rewrite_single(f->w, test)) return false;
        guarded = true;
    }
    return false;
}

/* ---- masks --------------------------------------------------------------------------------- */
/* Gradients flow to a mask that a trained parameter feeds (a relative position bias): the op has
 * none for it. */
static bool needs_gradient(const struct rewrite *w, val_id v) {
    const struct graph *g = w->g;
    struct arena_mark start = arena_mark(w->scratch);
    bool *seen = ARENA_ARRAY(w->scratch, bool, g->nodes.n), trained = false;
    uint32_t *stack = ARENA_ARRAY(w->scratch, uint32_t, g->nodes.n), depth = 0;
    stack[depth++] = val_def(g, v).i;
    seen[stack[0]] = true;
    while (depth > 0 && !trained) {
        node_id n = {stack[--depth]};
        enum op op = (enum op)graph_node(g, n)->op;
        trained = op == OP_param && !attr_bool(g, n, ATTR_frozen);
        if (op_info(op)->traits & PURE0) continue;
        for (int k = 0; k < graph_node(g, n)->nin; k++) {
            uint32_t d = val_def(g, node_in(g, n, k)).i;
            if (!seen[d]) stack[depth++] = d;
            seen[d] = true;
        }
    }
    arena_rewind(w->scratch, start);
    return trained;
}

/* What stays of a mask; none when it hides nothing or was found causal. */
enum rest { REST_NONE, REST_BOOL, REST_NOT, REST_FLOAT, REST_WHERE, REST_BAD };

/* An added mask made of a condition: where(keep, 0, -inf), perhaps expanded. */
static bool is_condition(const struct graph *g, val_id *mask) {
    double zero, inf;
    val_id v = *mask;
    if (val_op(g, v) == OP_expand) v = node_in(g, val_def(g, v), 0);
    node_id n = val_def(g, v);
    if (val_op(g, v) != OP_where || !val_uniform(g, node_in(g, n, 1), &zero) || zero != 0 ||
        !val_uniform(g, node_in(g, n, 2), &inf) || inf != -INFINITY)
        return false;
    *mask = node_in(g, n, 0);
    return true;
}

static enum rest judge(struct found *f, struct hiding *m, const struct type *scores) {
    const struct graph *g = f->w->g;
    bool infinite;
    struct type both, t = *val_type(g, m->mask);
    if (!type_broadcast(scores, &t, &both)) return REST_BAD;
    both.dtype = scores->dtype;
    if (!type_equal(&both, scores) || needs_gradient(f->w, m->mask)) return REST_BAD;
    switch (mask_classify(g, m->mask, m->how == HIDES, scores->dims[scores->rank - 2],
                          scores->dims[scores->rank - 1], &infinite)) {
    case MASK_ALL: return REST_NONE;
    case MASK_CAUSAL:
        /* Two masks could hide a row together; then only infinities say the same as `causal`. */
        if (m->how != ADDED) infinite = m->hidden == -INFINITY;
        if (f->nmasks > 1 && !infinite) break;
        f->causal = true;
        return REST_NONE;
    case MASK_OTHER: break;
    }
    if (m->how == ADDED) return is_condition(g, &m->mask) ? REST_BOOL : REST_FLOAT;
    bool hides = m->how == HIDES;
    if (m->hidden == -INFINITY || (f->nmasks == 1 && mask_rows_have(g, m->mask, !hides)))
        return hides ? REST_NOT : REST_BOOL;
    bool wide = dtype_size(scores->dtype) >= 4 && m->hidden <= ABSORBS;
    return wide ? REST_WHERE : REST_BAD;
}

/* A mask of scores [N,T,S] as one of scores [N,1,T,S]. */
static val_id add_head_axis(struct graph *g, val_id v, str_id o) {
    struct type t = *val_type(g, v);
    if (t.rank < 3) return v;
    dim shape[4] = {t.dims[0], 1, t.dims[1], t.dims[2]};
    return build_reshape(g, v, shape, 4, o);
}

static val_id build_mask(struct found *f, const enum rest *rest, enum dtype dtype, str_id o) {
    struct graph *g = f->w->g;
    val_id keep = VAL_NONE, sum = VAL_NONE;
    for (int k = 0; k < f->nmasks; k++) {
        const struct hiding *m = &f->masks[k];
        val_id v = m->mask;
        if (rest[k] == REST_NONE) continue;
        if (rest[k] == REST_NOT) v = build_1(g, OP_not, v, o);
        if (rest[k] == REST_WHERE) {
            val_id zero = build_scalar(g, dtype, 0, o), low = build_scalar(g, dtype, m->hidden, o);
            v = m->how == KEEPS ? build_3(g, OP_where, v, zero, low, o)
                                : build_3(g, OP_where, v, low, zero, o);
        }
        if (rest[k] == REST_BOOL || rest[k] == REST_NOT)
            keep = keep.i ? build_2(g, OP_and, keep, v, o) : v;
        else
            sum = sum.i ? build_2(g, OP_add, sum, v, o) : v;
    }
    if (keep.i && sum.i) {
        val_id low = build_scalar(g, val_type(g, sum)->dtype, -INFINITY, o);
        return build_3(g, OP_where, keep, sum, low, o);
    }
    return keep.i ? keep : sum;
}

/* ---- q, k, v ------------------------------------------------------------------------------- */
/* v without the numbers that multiply it, under views as well. */
static val_id unscale(struct graph *g, val_id v, double *scale, int depth) {
    node_id n = val_def(g, v);
    val_id x;
    double c, inner = 1;
    if (depth == 0) return v;
    if (scaled_by(g, v, &x, &c)) {
        *scale *= c;
        return unscale(g, x, scale, depth - 1);
    }
    if (val_op(g, v) != OP_reshape && val_op(g, v) != OP_transpose) return v;
    x = unscale(g, node_in(g, n, 0), &inner, depth - 1);
    if (x.i == node_in(g, n, 0).i) return v;
    *scale *= inner;
    return build_like(g, n, &x);
}

/* The [B,K,S,D] that v [B,K*R,S,D] repeats R times head by head; VAL_NONE when it does not. */
static val_id unrepeated(const struct graph *g, val_id v, struct type *shape) {
    struct type t = *val_type(g, v);
    if (t.rank != 4) return VAL_NONE;
    val_id e = val_op(g, v) == OP_reshape ? node_in(g, val_def(g, v), 0) : v;
    if (val_op(g, e) != OP_expand) return VAL_NONE;
    struct type wide = *val_type(g, e);
    val_id x = node_in(g, val_def(g, e), 0);
    struct type in = *val_type(g, x), full = {.rank = wide.rank};
    for (int k = 0; k < wide.rank; k++)
        full.dims[k] = k < wide.rank - in.rank ? 1 : in.dims[k - wide.rank + in.rank];
    /* [B,K,R,S,D], or [B,R,S,D] when K is 1: R is the axis before the last two */
    if (wide.rank != 5 && !(wide.rank == 4 && e.i == v.i)) return VAL_NONE;
    int r = wide.rank - 3;
    for (int k = 0; k < wide.rank; k++)
        if (k == r ? full.dims[k] != 1 : !dim_same(full.dims[k], wide.dims[k])) return VAL_NONE;
    if (!dim_same(wide.dims[0], t.dims[0]) || !dim_same(wide.dims[r + 1], t.dims[2]) ||
        !dim_same(wide.dims[r + 2], t.dims[3]))
        return VAL_NONE;
    *shape = t;
    shape->dims[1] = wide.rank == 5 ? wide.dims[1] : 1;
    return x;
}

/* Both or neither: k and v must agree in heads. */
static void unrepeat(struct graph *g, val_id *k, val_id *v, str_id o) {
    struct type tk, tv;
    val_id x = unrepeated(g, *k, &tk), y = unrepeated(g, *v, &tv);
    if (!x.i || !y.i || !dim_same(tk.dims[1], tv.dims[1])) return;
    *k = build_reshape(g, x, tk.dims, 4, o);
    *v = build_reshape(g, y, tv.dims, 4, o);
}

static bool shapes_agree(const struct graph *g, node_id first, node_id second) {
    val_id q = node_in(g, first, 0), k = node_in(g, first, 1), v = node_in(g, second, 1);
    struct type tq = *val_type(g, q), tk = *val_type(g, k), tv = *val_type(g, v);
    struct type s = *val_type(g, node_out(g, first, 0)), p = *val_type(g, node_in(g, second, 0));
    bool ok = (tq.rank == 3 || tq.rank == 4) && tk.rank == tq.rank && tv.rank == tq.rank &&
              s.rank == tq.rank && p.rank == tq.rank && tq.dtype == tv.dtype &&
              !attr_bool(g, second, ATTR_trans_a);
    for (int i = 0; ok && i < tq.rank - 2; i++)
        ok = dim_same(tq.dims[i], tk.dims[i]) && dim_same(tq.dims[i], tv.dims[i]);
    for (int i = 0; ok && i < s.rank; i++) ok = dim_same(s.dims[i], p.dims[i]);
    return ok;
}

/* [N,T,D] as [N,1,T,D]. */
static val_id as_heads(struct graph *g, val_id v, str_id o) {
    struct type t = *val_type(g, v);
    dim shape[4] = {t.dims[0], 1, t.dims[1], t.dims[2]};
    return t.rank == 4 ? v : build_reshape(g, v, shape, 4, o);
}

static val_id build_attention(struct found *f, node_id second, val_id mask, str_id o) {
    struct graph *g = f->w->g;
    bool k_is_plain = attr_bool(g, f->scores, ATTR_trans_b);
    bool v_is_swapped = attr_bool(g, second, ATTR_trans_b);
    double scale = f->scale;
    val_id q = unscale(g, node_in(g, f->scores, 0), &scale, DEPTH_MAX);
    val_id k = unscale(g, node_in(g, f->scores, 1), &scale, DEPTH_MAX);
    val_id v = node_in(g, second, 1), in[4];
    if (!k_is_plain) {
        node_id n = val_def(g, k);
        int rank = 0;
        const int64_t *perm =
            val_op(g, k) == OP_transpose ? attr_ints(g, n, ATTR_perm, &rank) : NULL;
        int64_t both[RANK_MAX];
        for (int i = 0; i < rank; i++)
            both[i] = perm[i < rank - 2 ? i : i == rank - 2 ? rank - 1 : rank - 2];
        k = perm ? build_transpose(g, node_in(g, n, 0), both, o) : build_swap_last(g, k, o);
    }
    if (v_is_swapped) v = build_swap_last(g, v, o);
    unrepeat(g, &k, &v, o);
    in[0] = as_heads(g, q, o);
    in[1] = as_heads(g, k, o);
    in[2] = as_heads(g, v, o);
    in[3] = mask;
    struct attr attrs[] = {{.key = ATTR_scale, .f = scale},
                           {.key = ATTR_causal, .i = f->causal},
                           {.key = ATTR_softcap, .f = f->softcap}};
    return graph_add(g, OP_attention, in, mask.i ? 4 : 3, attrs, 3, o);
}

static val_id attention(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    struct found f = {.w = w, .scale = 1};
    str_id o = graph_node(g, n)->origin;
    val_id top;
    if (!read_weights(&f, node_in(g, n, 0), &top) || !read_scores(&f, top, DEPTH_MAX))
        return VAL_NONE;
    if (!shapes_agree(g, f.scores, n) || !isfinite(f.scale)) return VAL_NONE;
    struct type scores = *val_type(g, top);
    enum rest rest[MASKS_MAX];
    for (int k = 0; k < f.nmasks; k++) {
        rest[k] = judge(&f, &f.masks[k], &scores);
        if (rest[k] == REST_BAD) return VAL_NONE;
    }
    val_id mask = build_mask(&f, rest, scores.dtype, o);
    if (mask.i && scores.rank == 3) mask = add_head_axis(g, mask, o);
    struct type t = *val_type(g, node_out(g, n, 0));
    return build_reshape(g, build_attention(&f, n, mask, o), t.dims, t.rank, o);
}

/* ---- attention that the file already has --------------------------------------------------- */
/* A mask that hides nothing, is causal, or is spelled out for every head and batch. */
static bool tidy_mask(const struct graph *g, val_id q, val_id k, val_id *mask, bool *causal) {
    bool infinite;
    dim rows = val_type(g, q)->dims[2], columns = val_type(g, k)->dims[2];
    switch (mask_classify(g, *mask, false, rows, columns, &infinite)) {
    case MASK_CAUSAL:
        *causal = true;
        *mask = VAL_NONE;
        return true;
    case MASK_ALL: *mask = VAL_NONE; return true;
    case MASK_OTHER: break;
    }
    if (val_op(g, *mask) != OP_expand) return false;
    *mask = node_in(g, val_def(g, *mask), 0);
    return true;
}

static val_id attention_tidy(struct rewrite *w, node_id n) {
    struct graph *g = w->g;
    val_id in[4], old[4];
    for (int k = 0; k < 4; k++) in[k] = old[k] = node_in(g, n, k);
    bool causal = attr_bool(g, n, ATTR_causal);
    double scale = attr_float(g, n, ATTR_scale);
    str_id o = graph_node(g, n)->origin;
    bool changed = in[3].i && tidy_mask(g, in[0], in[1], &in[3], &causal);
    in[0] = unscale(g, in[0], &scale, DEPTH_MAX);
    in[1] = unscale(g, in[1], &scale, DEPTH_MAX);
    unrepeat(g, &in[1], &in[2], o);
    for (int k = 0; k < 3; k++) changed |= in[k].i != old[k].i;
    if (!changed || !isfinite(scale)) return VAL_NONE;
    struct attr attrs[] = {{.key = ATTR_scale, .f = scale},
                           {.key = ATTR_causal, .i = causal},
                           {.key = ATTR_softcap, .f = attr_float(g, n, ATTR_softcap)}};
    return graph_add(g, OP_attention, in, in[3].i ? 4 : 3, attrs, 3, o);
}

// clang-format off
static const struct rewrite_fn fns[] = {
    {"attention",      OP_matmul,    attention},
    {"attention-tidy", OP_attention, attention_tidy},
};
// clang-format on

const struct rewrite_fn *recognise_attention_rules(int *n) {
    *n = (int)(sizeof fns / sizeof fns[0]);
    return fns;
}
