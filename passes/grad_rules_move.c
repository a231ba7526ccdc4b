// SPDX-License-Identifier: Apache-2.0
/* grad_rules_move.c - gradient rules of reductions, of ops that move elements and of indexing. */
#include "passes/grad.h"

/* ---- reductions ---------------------------------------------------------------------------- */
struct reduced {
    const int64_t *axes;
    int n;
    struct type in, keep; /* the operand's type; the same with the reduced axes of size 1 */
};

static struct reduced reduced_of(struct grad_node *s) {
    struct reduced r;
    r.axes = attr_ints(s->g, s->n, ATTR_axes, &r.n);
    r.in = r.keep = grad_type(s, s->a);
    for (int i = 0; i < r.n; i++) r.keep.dims[r.axes[i]] = 1;
    return r;
}

static val_id expand_to(struct grad_node *s, val_id v, const struct type *t) {
    return build_expand(s->g, v, t->dims, t->rank, s->o);
}

enum status grad_reduce_sum(struct grad_node *s) {
    struct reduced r = reduced_of(s);
    return grad_acc(s, 0, expand_to(s, e_reshape(s, s->dy, &r.keep), &r.in));
}

enum status grad_reduce_mean(struct grad_node *s) {
    struct reduced r = reduced_of(s);
    val_id g = grad_mean(s, s->dy, &r.in, r.axes, r.n);
    return grad_acc(s, 0, expand_to(s, e_reshape(s, g, &r.keep), &r.in));
}

enum status grad_reduce_max(struct grad_node *s) { /* min too: split evenly between ties */
    struct reduced r = reduced_of(s);
    val_id hit = e_2(s, OP_eq, s->a, e_reshape(s, s->y, &r.keep));
    val_id ones = build_cast(s->g, hit, r.in.dtype, s->o);
    val_id ties = build_reduce(s->g, OP_reduce_sum, ones, r.axes, r.n, true, s->o);
    val_id g = e_div(s, e_reshape(s, s->dy, &r.keep), ties);
    return grad_acc(s, 0, e_where(s, hit, g, e_num(s, g, 0.0)));
}

/* The product of the other elements, right with any number of zeros: with p the product of all
 * non-zero elements, it is p (divided by x unless x is 0) where no other element is 0, else 0. */
enum status grad_reduce_prod(struct grad_node *s) {
    struct reduced r = reduced_of(s);
    val_id x = s->a, is_zero = e_2(s, OP_eq, x, e_num(s, x, 0.0));
    val_id safe = e_where(s, is_zero, e_num(s, x, 1.0), x);
    val_id here = build_cast(s->g, is_zero, r.in.dtype, s->o);
    val_id zeros = build_reduce(s->g, OP_reduce_sum, here, r.axes, r.n, true, s->o);
    val_id p = build_reduce(s->g, OP_reduce_prod, safe, r.axes, r.n, true, s->o);
    val_id others = e_div(s, e_mul(s, e_reshape(s, s->dy, &r.keep), p), safe);
    return grad_acc(s, 0, e_where(s, e_2(s, OP_eq, zeros, here), others, e_num(s, x, 0.0)));
}

enum status grad_cumsum(struct grad_node *s) {
    struct attr attrs[3] = {
        {.key = ATTR_axis, .i = attr_int(s->g, s->n, ATTR_axis)},
        {.key = ATTR_exclusive, .i = attr_bool(s->g, s->n, ATTR_exclusive)},
        {.key = ATTR_reverse, .i = !attr_bool(s->g, s->n, ATTR_reverse)},
    };
    return grad_acc(s, 0, graph_add(s->g, OP_cumsum, &s->dy, 1, attrs, 3, s->o));
}

/* ---- movement ------------------------------------------------------------------------------ */
enum status grad_reshape(struct grad_node *s) {
    struct type t = grad_type(s, s->a);
    return grad_acc(s, 0, e_reshape(s, s->dy, &t));
}

enum status grad_transpose(struct grad_node *s) {
    int n;
    const int64_t *perm = attr_ints(s->g, s->n, ATTR_perm, &n);
    int64_t back[RANK_MAX];
    for (int i = 0; i < n; i++) back[perm[i]] = i;
    return grad_acc(s, 0, build_transpose(s->g, s->dy, back, s->o));
}

enum status grad_expand(struct grad_node *s) {
    return grad_acc(s, 0, s->dy);
}

enum status grad_slice(struct grad_node *s) {
    return grad_acc_slice(s, s->dy);
}

enum status grad_pad(struct grad_node *s) {
    struct type t = grad_type(s, s->a);
    int n;
    const int64_t *low = attr_ints(s->g, s->n, ATTR_low, &n);
    const int64_t *inner = attr_ints(s->g, s->n, ATTR_interior, &n);
    dim starts[RANK_MAX];
    int64_t steps[RANK_MAX];
    for (int i = 0; i < t.rank; i++) {
        starts[i] = low[i];
        steps[i] = inner[i] + 1;
    }
    return grad_acc(s, 0, build_slice(s->g, s->dy, starts, t.dims, steps, s->o));
}

enum status grad_concat(struct grad_node *s) {
    int64_t axis = attr_int(s->g, s->n, ATTR_axis);
    int n = graph_node(s->g, s->n)->nin;
    dim starts[RANK_MAX] = {0};
    for (int k = 0; k < n; k++) {
        struct type t = grad_type(s, grad_in(s, k));
        if (grad_wants(s, k))
            TRY(grad_acc(s, k, build_slice(s->g, s->dy, starts, t.dims, NULL, s->o)));
        starts[axis] = dim_add(s->g->dims, starts[axis], t.dims[axis]);
    }
    return ST_OK;
}

/* ---- indexing ------------------------------------------------------------------------------ */
static struct attr axis_of(struct grad_node *s) {
    struct attr a = {.key = ATTR_axis, .i = attr_int(s->g, s->n, ATTR_axis)};
    return a;
}

/* A gradient that was widened is scattered as it was: scatter_rows adds in f32 anyway. */
enum status grad_gather(struct grad_node *s) {
    struct type t = grad_type(s, s->a);
    struct attr attrs[2] = {axis_of(s), {.key = ATTR_shape, .list = t.dims, .n = t.rank}};
    val_id in[2] = {s->b, s->dy}, low = s->dy;
    if (val_op(s->g, low) == OP_cast) low = node_in(s->g, val_def(s->g, low), 0);
    if (t.dtype == DT_f32 && val_type(s->g, low)->dtype == DT_bf16) in[1] = low;
    return grad_acc(s, 0, graph_add(s->g, OP_scatter_rows, in, 2, attrs, 2, s->o));
}

enum status grad_scatter_rows(struct grad_node *s) {
    struct attr axis = axis_of(s);
    val_id in[2] = {s->dy, s->a};
    return grad_acc(s, 1, graph_add(s->g, OP_gather, in, 2, &axis, 1, s->o));
}

enum status grad_gather_elements(struct grad_node *s) {
    struct type t = grad_type(s, s->a);
    struct attr attrs[2] = {axis_of(s), {.key = ATTR_add, .i = 1}};
    val_id in[3] = {build_full(s->g, &t, 0.0, s->o), s->b, s->dy};
    return grad_acc(s, 0, graph_add(s->g, OP_scatter_elements, in, 3, attrs, 2, s->o));
}

enum status grad_scatter_elements(struct grad_node *s) {
    struct attr axis = axis_of(s);
    if (attr_bool(s->g, s->n, ATTR_add)) {
        TRY(grad_acc(s, 0, s->dy));
    } else if (grad_wants(s, 0)) { /* what was overwritten has no influence */
        struct type t = grad_type(s, grad_in(s, 2));
        val_id in[3] = {s->dy, s->b, build_full(s->g, &t, 0.0, s->o)};
        TRY(grad_acc(s, 0, graph_add(s->g, OP_scatter_elements, in, 3, &axis, 1, s->o)));
    }
    if (!grad_wants(s, 2)) return ST_OK;
    val_id in[2] = {s->dy, s->b};
    return grad_acc(s, 2, graph_add(s->g, OP_gather_elements, in, 2, &axis, 1, s->o));
}
