// SPDX-License-Identifier: Apache-2.0
/* chunk_loss.c - whole logits never exist: a product whose rows are only scored by a cross-entropy
 * (and turned into gradients of that score) is cut into chunks of rows. Each chunk is scored and
 * differentiated before the next one is made, in one group that reads the logits once.
 *
 * before:
 *   %y = matmul(%x, %w)                    R x C
 *   %loss, %lse = cross_entropy(%y, %labels)
 *   %dy = ..elementwise(%y, %lse, %labels)
 *   %dx = matmul(%dy, %w) {trans_b}
 *   %dw = matmul(%x, %dy) {trans_a}
 * after, for rows [a, b) of each chunk k:
 *   %yk = matmul(slice(%x), %w)            (b - a) x C
 *   %lossk = log(sum(exp(%yk - max))) + max - sum(where(label == column, %yk, 0))
 *   %dyk = ..elementwise(%yk, %lsek, slice(%labels))
 *   %dw = add(matmul(slice(%x), %dyk) {trans_a}, %dw of the chunks before), in f32
 *   %loss, %dx = concat of the parts
 *
 * needs   known sizes; the gradient of the score known before the logits (a mean over labels is)
 * breaks  every id held outside
 * order   after cse2, which has made the operands of forward and backward part the same values;
 *         before codegen, which folds the additions into the products and shares the chunks' memory
 * Sums over rows are taken chunk by chunk: the last bits of %dw differ from those of one product.
 * Labels are still checked: they pass through a gather that refuses what is no class. */
#include "base/diag.h"
#include "passes/pass.h"
#include <string.h>

enum { ROWS_MIN = 2048, SHARE = 8, DEPTH_MAX = 200 };
static const int64_t small_bytes = (int64_t)64 << 20;

/* What a value is to the loop over rows, whatever leading axes make up the rows. In a chunk it is
 * [r,C], [r,1] or [r]. */
enum kind { KIND_NONE, KIND_WHOLE, KIND_COLUMN, KIND_ROWS };

enum end_kind {
    END_ROWS, /* one or more results for each row */
    END_BACK, /* product with the head's other operand: a result row for each row */
    END_SUM,  /* something added up over the rows */
};
struct end {
    enum end_kind kind;
    node_id n;
    val_id from;   /* END_SUM, END_BACK: the operand with the classes */
    val_id sum;    /* END_SUM: so far */
    val_id *parts; /* else: result j of chunk k at [k * outs + j] */
};

struct chunker {
    struct graph *g;
    struct arena *scratch;
    struct uses uses;
    node_id entropy, head;
    val_id logits;
    int64_t rows, classes;
    bool *whole, *depends; /* by value: in the cut region; computed from the logits */
    VEC(struct end) ends;
    val_id labels, checked; /* [R] */
    /* the chunk in work */
    int64_t first, count;
    val_id *made; /* by value: its part */
    int depth;
};

/* ---- shapes -------------------------------------------------------------------------------- */
static enum kind kind_of(const struct chunker *x, val_id v) {
    const struct type *t = val_type(x->g, v);
    int64_t lead = 1;
    if (t->rank == 0 || !type_static(t)) return KIND_NONE;
    for (int d = 0; d < t->rank - 1; d++) lead *= t->dims[d];
    dim last = t->dims[t->rank - 1];
    if (t->rank >= 2 && lead == x->rows && last == x->classes) return KIND_WHOLE;
    if (t->rank >= 2 && lead == x->rows && last == 1) return KIND_COLUMN;
    return type_count(t) == x->rows ? KIND_ROWS : KIND_NONE;
}

static int part_shape(const struct chunker *x, enum kind kind, int64_t rows, dim out[2]) {
    out[0] = rows;
    out[1] = kind == KIND_WHOLE ? x->classes : 1;
    return kind == KIND_ROWS ? 1 : 2;
}

static str_id origin_of(const struct chunker *x, val_id v) {
    return graph_node(x->g, val_def(x->g, v))->origin;
}

static val_id reshape_base(const struct graph *g, val_id v) {
    while (val_op(g, v) == OP_reshape) v = node_in(g, val_def(g, v), 0);
    return v;
}

/* The chunk's rows of a value that is there as a whole, seen as [R, ..shape]. */
static val_id slice_rows(struct chunker *x, val_id v, const dim *shape, int rank) {
    str_id o = origin_of(x, v);
    dim starts[RANK_MAX] = {x->first}, sizes[RANK_MAX] = {x->count};
    for (int d = 1; d < rank; d++) sizes[d] = shape[d];
    v = build_reshape(x->g, v, shape, rank, o);
    return build_slice(x->g, v, starts, sizes, NULL, o);
}

/* Rows of a matrix with any number of leading axes. */
static val_id slice_matrix(struct chunker *x, val_id v) {
    const struct type *t = val_type(x->g, v);
    dim shape[2] = {x->rows, t->dims[t->rank - 1]};
    return slice_rows(x, v, shape, 2);
}

static val_id slice_leaf(struct chunker *x, val_id v, enum kind kind) {
    dim shape[2];
    int rank = part_shape(x, kind, x->rows, shape);
    if (reshape_base(x->g, v).i == x->labels.i) v = x->checked;
    return slice_rows(x, v, shape, rank);
}

/* ---- what is cut --------------------------------------------------------------------------- */
static val_id find_head(struct chunker *x) {
    struct graph *g = x->g;
    val_id v = node_in(g, x->entropy, 0);
    for (int steps = 0; steps < DEPTH_MAX && kind_of(x, v) == KIND_WHOLE; steps++) {
        node_id n = val_def(g, v);
        enum op op = val_op(g, v);
        val_id next = VAL_NONE;
        if (op == OP_matmul) return v;
        if (op != OP_reshape && !(op_info(op)->traits & EW)) return VAL_NONE;
        for (int k = 0; k < graph_node(g, n)->nin; k++)
            if (kind_of(x, node_in(g, n, k)) == KIND_WHOLE) next = node_in(g, n, k);
        if (!next.i) return VAL_NONE;
        v = next;
    }
    return VAL_NONE;
}

/* x [..,D] times a matrix: each row of the result comes from one row of x. */
static bool rows_times_matrix(const struct graph *g, node_id n) {
    const struct type *a = val_type(g, node_in(g, n, 0)), *b = val_type(g, node_in(g, n, 1));
    return a->rank >= 2 && b->rank == 2 && !attr_bool(g, n, ATTR_trans_a);
}

static void mark_dependent(struct chunker *x) {
    struct graph *g = x->g;
    for (uint32_t i = x->head.i; i < g->nodes.n; i++) {
        node_id n = {i};
        bool d = i == x->head.i;
        for (int k = 0; k < graph_node(g, n)->nin; k++) d |= x->depends[node_in(g, n, k).i];
        for (int k = 0; k < graph_node(g, n)->nout; k++) x->depends[node_out(g, n, k).i] = d;
    }
}

static bool add_end(struct chunker *x, enum end_kind kind, node_id n, val_id from) {
    for (uint32_t k = 0; k < x->ends.n; k++)
        if (x->ends.at[k].n.i == n.i) return x->ends.at[k].from.i == from.i;
    vec_push(x->scratch, &x->ends, (struct end){.kind = kind, .n = n, .from = from});
    return true;
}

static bool reduces_last(const struct graph *g, node_id n) {
    int count;
    const int64_t *axes = attr_ints(g, n, ATTR_axes, &count);
    return count == 1 && axes[0] == val_type(g, node_in(g, n, 0))->rank - 1;
}

static bool reduces_rows(const struct graph *g, node_id n) {
    int count;
    const int64_t *axes = attr_ints(g, n, ATTR_axes, &count);
    return count == val_type(g, node_in(g, n, 0))->rank - 1 && axes[count - 1] == count - 1 &&
           !attr_bool(g, n, ATTR_keepdims);
}

static bool product_end(struct chunker *x, node_id n, val_id v) {
    struct graph *g = x->g;
    val_id a = node_in(g, n, 0), b = node_in(g, n, 1), other = a.i == v.i ? b : a;
    if (x->depends[other.i]) return false;
    if (a.i == v.i && rows_times_matrix(g, n)) return add_end(x, END_BACK, n, v);
    const struct type *t = val_type(g, other);
    bool flat = t->rank == 2 && t->dims[0] == x->rows && val_type(g, v)->rank == 2;
    bool sums = attr_bool(g, n, ATTR_trans_a) && !attr_bool(g, n, ATTR_trans_b);
    return flat && sums && add_end(x, END_SUM, n, v);
}

/* What user n does with the classes of v: true when that can be done chunk by chunk. `*more`: with
 * a result that has the classes as well. */
static bool allowed_user(struct chunker *x, node_id n, val_id v, bool *more) {
    struct graph *g = x->g;
    enum op op = (enum op)graph_node(g, n)->op;
    val_id y = node_out(g, n, 0);
    int last = val_type(g, v)->rank - 1;
    *more = false;
    switch (op) {
    case OP_matmul: return product_end(x, n, v);
    case OP_cross_entropy: return n.i == x->entropy.i && add_end(x, END_ROWS, n, VAL_NONE);
    case OP_argmax: return attr_int(g, n, ATTR_axis) == last && add_end(x, END_ROWS, n, VAL_NONE);
    case OP_reduce_sum:
        if (reduces_rows(g, n)) return add_end(x, END_SUM, n, v);
        return reduces_last(g, n) && add_end(x, END_ROWS, n, VAL_NONE);
    case OP_reduce_max:
    case OP_reduce_min:
    case OP_reduce_mean: return reduces_last(g, n) && add_end(x, END_ROWS, n, VAL_NONE);
    case OP_softmax:
    case OP_log_softmax: *more = true; return attr_int(g, n, ATTR_axis) == last;
    default:
        *more = true;
        return (op == OP_reshape || (op_info(op)->traits & EW)) && kind_of(x, y) == KIND_WHOLE;
    }
}

static bool collect(struct chunker *x) {
    struct graph *g = x->g;
    VEC(val_id) work = {0};
    vec_push(x->scratch, &work, x->logits);
    x->whole[x->logits.i] = true;
    while (work.n > 0) {
        val_id v = work.at[--work.n];
        if (x->uses.live_out[v.i]) return false;
        for (uint32_t u = x->uses.first[v.i]; u < x->uses.first[v.i + 1]; u++) {
            node_id n = x->uses.user[u];
            bool more;
            if (!allowed_user(x, n, v, &more)) return false;
            val_id y = node_out(g, n, 0);
            if (!more || x->whole[y.i]) continue;
            x->whole[y.i] = true;
            vec_push(x->scratch, &work, y);
        }
    }
    return true;
}

/* ---- parts --------------------------------------------------------------------------------- */
static val_id part_of(struct chunker *x, val_id v);

/* Operand `a` of an elementwise node or expand whose result is `y`: its part, or the same values
 * for every row. */
static val_id aligned(struct chunker *x, val_id a, val_id y, enum kind kind) {
    const struct type *s = val_type(x->g, a), *t = val_type(x->g, y);
    int lead = kind == KIND_ROWS ? t->rank : t->rank - 1;
    bool follows = true, fixed = true;
    for (int d = 0; d < lead; d++) {
        int k = d - (t->rank - s->rank);
        dim have = k < 0 ? 1 : s->dims[k];
        follows &= have == t->dims[d];
        fixed &= have == 1;
    }
    if (follows) return part_of(x, a);
    if (!fixed || x->depends[a.i]) return VAL_NONE;
    dim last = s->rank > 0 ? s->dims[s->rank - 1] : 1;
    return build_reshape(x->g, a, &last, last == 1 ? 0 : 1, origin_of(x, a));
}

/* The same node on parts. */
static val_id again(struct chunker *x, val_id y, enum kind kind) {
    struct graph *g = x->g;
    node_id n = val_def(g, y);
    struct node node = *graph_node(g, n);
    val_id in[4];
    dim shape[2];
    int rank = part_shape(x, kind, x->count, shape);
    for (int k = 0; k < node.nin; k++) {
        in[k] = aligned(x, node_in(g, n, k), y, kind);
        if (!in[k].i) return VAL_NONE;
    }
    if (node.op == OP_expand) return build_expand(g, in[0], shape, rank, node.origin);
    return build_expand(g, build_like(g, n, in), shape, rank, node.origin);
}

static val_id product_part(struct chunker *x, node_id n, val_id a, val_id b) {
    return build_like(x->g, n, (val_id[]){a, b});
}

/* argmax, or a reduction, of one row's classes. A widening cast in front changes neither the order
 * nor the ties: what is in memory is read as it is. */
static val_id along_row(struct chunker *x, val_id y, enum kind kind) {
    struct graph *g = x->g;
    node_id n = val_def(g, y);
    str_id o = graph_node(g, n)->origin;
    enum op op = (enum op)graph_node(g, n)->op;
    val_id from = node_in(g, n, 0);
    bool wider = val_op(g, from) == OP_cast && val_type(g, from)->dtype == DT_f32 &&
                 dtype_is_float(val_type(g, node_in(g, val_def(g, from), 0))->dtype) &&
                 dtype_size(val_type(g, node_in(g, val_def(g, from), 0))->dtype) == 2;
    if (op == OP_argmax && wider) from = node_in(g, val_def(g, from), 0);
    val_id a = kind_of(x, from) == KIND_WHOLE ? part_of(x, from) : VAL_NONE;
    if (!a.i) return VAL_NONE;
    bool keep = kind == KIND_COLUMN;
    int64_t axis = 1;
    struct attr attrs[2] = {{.key = ATTR_axis, .i = 1}, {.key = ATTR_keepdims, .i = keep}};
    if (op == OP_argmax) return graph_add(g, op, &a, 1, attrs, 2, o);
    return build_reduce(g, op, a, &axis, 1, keep, o);
}

/* Loss and log-sum-exp of the chunk, from primitives. */
static bool entropy_part(struct chunker *x) {
    struct graph *g = x->g;
    str_id o = graph_node(g, x->entropy)->origin;
    val_id loss = node_out(g, x->entropy, 0), lse = node_out(g, x->entropy, 1);
    enum dtype t = val_type(g, loss)->dtype, tl = val_type(g, lse)->dtype;
    enum dtype wide = t == DT_f64 ? DT_f64 : DT_f32;
    val_id y = part_of(x, node_in(g, x->entropy, 0));
    if (!y.i) return false;
    int64_t axis = 1;
    y = build_cast(g, y, wide, o);
    val_id zero = build_scalar(g, wide, 0.0, o);
    val_id top = build_reduce(g, OP_reduce_max, y, &axis, 1, true, o);
    val_id e = build_1(g, OP_exp, build_2(g, OP_sub, y, top, o), o);
    val_id sum = build_reduce(g, OP_reduce_sum, e, &axis, 1, true, o);
    val_id l = build_2(g, OP_add, top, build_1(g, OP_log, sum, o), o);
    val_id label = slice_leaf(x, x->checked, KIND_COLUMN);
    val_id hit = build_2(g, OP_eq, label, build_iota(g, DT_i64, x->classes, 0.0, 1.0, o), o);
    val_id own = build_3(g, OP_where, hit, y, zero, o);
    own = build_reduce(g, OP_reduce_sum, own, &axis, 1, true, o);
    val_id skip = build_scalar_int(g, DT_i64, attr_int(g, x->entropy, ATTR_ignore_index), o);
    val_id score = build_2(g, OP_sub, l, own, o);
    score = build_3(g, OP_where, build_2(g, OP_eq, label, skip, o), zero, score, o);
    dim flat = x->count;
    x->made[loss.i] = build_reshape(g, build_cast(g, score, t, o), &flat, 1, o);
    x->made[lse.i] = build_reshape(g, build_cast(g, l, tl, o), &flat, 1, o);
    return true;
}

static val_id make_part(struct chunker *x, val_id v, enum kind kind) {
    struct graph *g = x->g;
    node_id n = val_def(g, v);
    enum op op = (enum op)graph_node(g, n)->op;
    dim shape[2];
    int rank = part_shape(x, kind, x->count, shape);
    bool ew = op_info(op)->traits & EW;
    if (v.i == x->logits.i)
        return product_part(x, n, slice_matrix(x, node_in(g, n, 0)), node_in(g, n, 1));
    if (!x->depends[v.i] && (kind != KIND_WHOLE || !(ew || op == OP_expand || op == OP_full)))
        return slice_leaf(x, v, kind);
    if (ew || op == OP_expand) return again(x, v, kind);
    val_id a;
    switch (op) {
    case OP_full: {
        struct type t = {
            .dtype = val_type(g, v)->dtype, .rank = rank, .dims = {shape[0], shape[1]}};
        return build_full(g, &t, attr_float(g, n, ATTR_value), graph_node(g, n)->origin);
    }
    case OP_reshape:
        a = part_of(x, node_in(g, n, 0));
        return a.i ? build_reshape(g, a, shape, rank, graph_node(g, n)->origin) : VAL_NONE;
    case OP_cross_entropy: return n.i == x->entropy.i && entropy_part(x) ? x->made[v.i] : VAL_NONE;
    case OP_argmax:
    case OP_reduce_sum:
    case OP_reduce_mean:
    case OP_reduce_max:
    case OP_reduce_min: return along_row(x, v, kind);
    case OP_softmax:
    case OP_log_softmax: {
        struct attr axis = {.key = ATTR_axis, .i = 1};
        a = part_of(x, node_in(g, n, 0));
        return a.i ? graph_add(g, op, &a, 1, &axis, 1, graph_node(g, n)->origin) : VAL_NONE;
    }
    default: return VAL_NONE;
    }
}

/* The chunk's rows of v, in the chunk's shape; VAL_NONE when they need other rows as well. */
static val_id part_of(struct chunker *x, val_id v) {
    enum kind kind = kind_of(x, v);
    if (x->made[v.i].i || kind == KIND_NONE || x->depth == DEPTH_MAX) return x->made[v.i];
    x->depth++;
    val_id part = make_part(x, v, kind);
    x->depth--;
    return x->made[v.i] = part;
}

/* ---- ends ---------------------------------------------------------------------------------- */
static bool sum_part(struct chunker *x, struct end *e) {
    struct graph *g = x->g;
    str_id o = graph_node(g, e->n)->origin;
    val_id part = part_of(x, e->from), p;
    if (!part.i) return false;
    if (graph_node(g, e->n)->op == OP_matmul) {
        val_id a = node_in(g, e->n, 0), b = node_in(g, e->n, 1);
        bool left = a.i == e->from.i;
        p = product_part(x, e->n, left ? part : slice_matrix(x, a),
                         left ? slice_matrix(x, b) : part);
    } else {
        int64_t axis = 0;
        p = build_reduce(g, OP_reduce_sum, part, &axis, 1, false, o);
    }
    if (dtype_size(val_type(g, p)->dtype) < 4) p = build_cast(g, p, DT_f32, o);
    e->sum = e->sum.i ? build_2(g, OP_add, p, e->sum, o) : p;
    return true;
}

static bool end_part(struct chunker *x, struct end *e, int64_t chunk) {
    struct graph *g = x->g;
    int outs = graph_node(g, e->n)->nout;
    if (e->kind == END_SUM) return sum_part(x, e);
    for (int j = 0; j < outs; j++) {
        val_id v = e->kind == END_BACK ? part_of(x, e->from) : part_of(x, node_out(g, e->n, j));
        if (v.i && e->kind == END_BACK) v = product_part(x, e->n, v, node_in(g, e->n, 1));
        if (!v.i) return false;
        e->parts[chunk * outs + j] = v;
    }
    return true;
}

/* A sum in f32 replaces one in fewer bits; who widens that reads the f32 directly. */
static void replace_sum(struct chunker *x, const struct end *e) {
    struct graph *g = x->g;
    val_id old = node_out(g, e->n, 0);
    enum dtype t = val_type(g, old)->dtype, wide = val_type(g, e->sum)->dtype;
    for (uint32_t u = x->uses.first[old.i]; t != wide && u < x->uses.first[old.i + 1]; u++) {
        val_id y = node_out(g, x->uses.user[u], 0);
        if (val_op(g, y) == OP_cast && val_type(g, y)->dtype == wide) graph_forward(g, y, e->sum);
    }
    graph_forward(g, old, build_cast(g, e->sum, t, graph_node(g, e->n)->origin));
}

static void replace(struct chunker *x, struct end *e, int64_t chunks) {
    struct graph *g = x->g;
    int outs = graph_node(g, e->n)->nout;
    val_id *parts = ARENA_ARRAY(x->scratch, val_id, (size_t)chunks);
    if (e->kind == END_SUM) {
        replace_sum(x, e);
        return;
    }
    for (int j = 0; j < outs; j++) {
        val_id old = node_out(g, e->n, j);
        struct type t = *val_type(g, old);
        str_id o = graph_node(g, e->n)->origin;
        for (int64_t k = 0; k < chunks; k++) parts[k] = e->parts[k * outs + j];
        val_id all = build_concat(g, parts, (int)chunks, 0, o);
        graph_forward(g, old, build_reshape(g, all, t.dims, t.rank, o));
    }
}

/* ---- the pass ------------------------------------------------------------------------------ */
/* The labels again, after a look at each; a bad one is the same error as in cross_entropy. */
static void check_labels(struct chunker *x) {
    struct graph *g = x->g;
    str_id o = graph_node(g, x->entropy)->origin;
    val_id labels = node_in(g, x->entropy, 1);
    x->labels = reshape_base(g, labels);
    int64_t ignore = attr_int(g, x->entropy, ATTR_ignore_index);
    struct attr attrs[3] = {{.key = ATTR_axis, .i = 0},
                            {.key = ATTR_labels, .i = true},
                            {.key = ATTR_ignore_index, .i = ignore}};
    /* Not the i64 columns that labels are compared with, which would then be read from memory. */
    enum dtype t = x->classes <= INT32_MAX ? DT_i32 : DT_f64;
    val_id in[2] = {build_iota(g, t, x->classes, 0.0, 1.0, o), labels};
    val_id known = build_cast(g, graph_add(g, OP_gather, in, 2, attrs, 3, o), DT_i64, o);
    val_id skip = build_2(g, OP_eq, labels, build_scalar_int(g, DT_i64, ignore, o), o);
    x->checked = build_3(g, OP_where, skip, labels, known, o);
}

/* Rows of a chunk; 0: the logits stay whole. */
static int64_t chunk_rows(const struct chunker *x, int64_t setting) {
    if (setting > 0) return setting < x->rows ? setting : x->rows;
    int64_t bytes = type_bytes(val_type(x->g, x->logits)), n = 1;
    int64_t most = bytes / SHARE > small_bytes ? bytes / SHARE : small_bytes;
    while (bytes / n > most && x->rows / (2 * n) >= ROWS_MIN) n *= 2;
    return n > 1 ? (x->rows + n - 1) / n : 0;
}

static bool find_region(struct chunker *x) {
    struct graph *g = x->g;
    struct type t = *val_type(g, node_in(g, x->entropy, 0));
    if (!type_static(&t) || type_bytes(&t) <= 0) return false;
    x->rows = t.dims[0], x->classes = t.dims[1];
    if (x->rows < 2 || x->classes < 2) return false;
    x->logits = find_head(x);
    if (!x->logits.i) return false;
    x->head = val_def(g, x->logits);
    if (!rows_times_matrix(g, x->head)) return false;
    x->whole = ARENA_ARRAY(x->scratch, bool, g->values.n);
    x->depends = ARENA_ARRAY(x->scratch, bool, g->values.n);
    x->uses = uses_build(g, x->scratch);
    mark_dependent(x);
    return !x->depends[node_in(g, x->entropy, 1).i] && collect(x);
}

static bool cut(struct chunker *x, int64_t setting) {
    struct graph *g = x->g;
    if (!find_region(x)) return false;
    int64_t rows = chunk_rows(x, setting);
    if (rows == 0) return false;
    int64_t chunks = (x->rows + rows - 1) / rows;
    uint32_t values = g->values.n, first_new = g->nodes.n;
    for (uint32_t k = 0; k < x->ends.n; k++) {
        struct end *e = &x->ends.at[k];
        e->parts = ARENA_ARRAY(x->scratch, val_id, (size_t)chunks * graph_node(g, e->n)->nout);
    }
    check_labels(x);
    x->made = ARENA_ARRAY(x->scratch, val_id, values);
    for (int64_t c = 0; c < chunks; c++) {
        memset(x->made, 0, values * sizeof *x->made);
        x->first = c * rows;
        x->count = x->first + rows > x->rows ? x->rows - x->first : rows;
        for (uint32_t k = 0; k < x->ends.n; k++)
            if (!end_part(x, &x->ends.at[k], c)) {
                graph_settle(g); /* drops what was begun */
                return false;
            }
    }
    for (uint32_t k = 0; k < x->ends.n; k++) replace(x, &x->ends.at[k], chunks);
    graph_settle_at(g, first_new, x->head);
    return true;
}

enum status pass_chunk_loss(struct pass_ctx *c, struct graph *g) {
    int64_t setting = c->recipe ? c->recipe->chunk_loss : CHUNK_AUTO;
    bool changed = false;
    for (uint32_t i = 1; setting != CHUNK_OFF && i < g->nodes.n; i++) {
        struct chunker x = {.g = g, .scratch = c->scratch, .entropy = {i}};
        if (g->nodes.at[i].op != OP_cross_entropy || !cut(&x, setting)) continue;
        changed = true;
        i = 0;
    }
    return changed ? pass_cse(c, g) : ST_OK;
}
