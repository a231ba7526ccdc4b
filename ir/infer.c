// SPDX-License-Identifier: Apache-2.0
/* infer.c - result types of sources, elementwise, reducing and moving ops, and the checks that make
 * a node legal. Layers with windows, normalisation, attention and optimizers are in infer_nn.c. */
#include "ir/infer.h"
#include "base/diag.h"
#include <math.h>
#include <string.h>

static infer_fn *const handlers[OP_COUNT] = {
    NULL,
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs) infer_##infer,
#include "ir/ops.def"
#undef OP
};

/* ---- messages ------------------------------------------------------------------------------ */
enum status infer_fail(struct infer *x, enum status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(&x->g->arena, fmt, ap);
    va_end(ap);
    return diag_error(x->g->ctx, code, x->origin, "%s: %s", op_info(x->op)->name, text);
}

const char *infer_show(struct infer *x, const struct type *t) {
    struct buf b;
    buf_init(&b, &x->g->arena);
    type_print(x->g->dims, t, &b);
    return b.at;
}

const char *infer_show_dim(struct infer *x, dim d) {
    struct buf b;
    buf_init(&b, &x->g->arena);
    dim_print(x->g->dims, d, &b);
    return b.at;
}

/* ---- checks -------------------------------------------------------------------------------- */
enum status infer_want_rank(struct infer *x, int k, int rank, const char *form) {
    if (x->in[k].rank == rank) return ST_OK;
    return infer_fail(x, ST_SHAPE, "operand %d must be %s, found %s", k, form,
                      infer_show(x, &x->in[k]));
}

enum status infer_want_float(struct infer *x, int k) {
    if (dtype_is_float(x->in[k].dtype)) return ST_OK;
    return infer_fail(x, ST_TYPE, "operand %d must be of a float type, found %s", k,
                      infer_show(x, &x->in[k]));
}

enum status infer_want_index(struct infer *x, int k) {
    if (x->in[k].dtype == DT_i64 || x->in[k].dtype == DT_i32) return ST_OK;
    return infer_fail(x, ST_TYPE, "operand %d holds indices and must be i64 or i32, found %s", k,
                      infer_show(x, &x->in[k]));
}

enum status infer_want_alike(struct infer *x, int a, int b) {
    if (x->in[a].dtype == x->in[b].dtype) return ST_OK;
    return infer_fail(x, ST_TYPE, "operands %d and %d must have one element type, found %s and %s",
                      a, b, infer_show(x, &x->in[a]), infer_show(x, &x->in[b]));
}

enum status infer_want_type(struct infer *x, int k, const struct type *want, const char *what) {
    if (type_equal(&x->in[k], want)) return ST_OK;
    bool shape = x->in[k].dtype == want->dtype;
    return infer_fail(x, shape ? ST_SHAPE : ST_TYPE, "%s (operand %d) must be %s, found %s", what,
                      k, infer_show(x, want), infer_show(x, &x->in[k]));
}

static enum status want_numeric(struct infer *x, int k) {
    if (x->in[k].dtype != DT_bool) return ST_OK;
    return infer_fail(x, ST_TYPE, "operand %d must be numeric, found %s; cast it first", k,
                      infer_show(x, &x->in[k]));
}

enum status infer_axis(struct infer *x, int rank, int *axis) {
    int64_t a = infer_int(x, ATTR_axis);
    if (a < 0 || a >= rank)
        return infer_fail(x, ST_SHAPE, "axis %lld is outside the rank %d of %s", (long long)a, rank,
                          x->nin > 0 ? infer_show(x, &x->in[0]) : "the result");
    *axis = (int)a;
    return ST_OK;
}

enum status infer_numbers(struct infer *x, enum attr_key k, int n, int64_t low, int64_t high,
                          const int64_t **out) {
    int count;
    const int64_t *v = infer_list(x, k, &count);
    if (count != n)
        return infer_fail(x, ST_SHAPE, "'%s' must hold %d numbers, found %d", attr_name(k), n,
                          count);
    for (int i = 0; i < n; i++)
        if (v[i] < low || v[i] > high)
            return infer_fail(x, ST_SHAPE, "'%s' must be between %lld and %lld, found %lld",
                              attr_name(k), (long long)low, (long long)high, (long long)v[i]);
    *out = v;
    return ST_OK;
}

enum status infer_shape_attr(struct infer *x, struct type *t) {
    int n;
    const int64_t *v = infer_list(x, ATTR_shape, &n);
    if (n > RANK_MAX)
        return infer_fail(x, ST_UNSUPPORTED, "rank %d is over the limit of %d", n, RANK_MAX);
    t->rank = n;
    for (int i = 0; i < n; i++) t->dims[i] = v[i];
    return ST_OK;
}

enum status infer_number(struct infer *x, enum attr_key k, double low) {
    double f = x->attrs[k].f;
    if (isfinite(f) && f >= low) return ST_OK;
    return infer_fail(x, ST_SHAPE, "'%s' must be a finite number of at least %g, found %g",
                      attr_name(k), low, f);
}

/* ---- sizes --------------------------------------------------------------------------------- */
static enum status too_large(struct infer *x) {
    return infer_fail(x, ST_UNSUPPORTED, "a dimension would be larger than %lld",
                      (long long)INFER_DIM_MAX);
}

enum status infer_add(struct infer *x, dim a, dim b, dim *out) {
    if (!dim_try_add(x->g->dims, a, b, out) || *out > INFER_DIM_MAX) return too_large(x);
    return ST_OK;
}

enum status infer_mul(struct infer *x, dim a, dim b, dim *out) {
    if (!dim_try_mul(x->g->dims, a, b, out) || *out > INFER_DIM_MAX) return too_large(x);
    return ST_OK;
}

enum status infer_sub(struct infer *x, dim a, dim b, dim *out) {
    if (dim_known(a) && dim_known(b) && a < b)
        return infer_fail(x, ST_SHAPE, "a dimension would be negative, %lld - %lld", (long long)a,
                          (long long)b);
    if (!dim_try_sub(x->g->dims, a, b, out) || *out > INFER_DIM_MAX) return too_large(x);
    return ST_OK;
}

static int64_t saw_symbol(void *user, const char *symbol) {
    (void)symbol;
    *(bool *)user = true;
    return -1;
}

/* An expression without symbols that is no size, such as "-2". */
static bool negative(struct dims_table *t, dim d) {
    bool symbolic = false;
    if (d < 0) dim_bind(t, d, saw_symbol, &symbolic);
    return d < 0 && !symbolic;
}

/* Every type must have a size in bytes that fits, whatever part of it is known. */
static enum status check_size(struct infer *x, const struct type *t) {
    int64_t known = (int64_t)dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++) {
        dim d = t->dims[i];
        if (d > INFER_DIM_MAX) return too_large(x);
        if (negative(x->g->dims, d))
            return infer_fail(x, ST_SHAPE, "a dimension of %s is negative", infer_show(x, t));
        if (d <= 0) continue;
        if (known > ((int64_t)1 << 60) / d)
            return infer_fail(x, ST_UNSUPPORTED, "a tensor of type %s is too large",
                              infer_show(x, t));
        known *= d;
    }
    return ST_OK;
}

enum status infer_types(struct infer *x) {
    struct ctx *c = x->g->ctx;
    CHECK(c, x->op > OP_NONE && x->op < OP_COUNT);
    const struct op_info *info = op_info(x->op);
    if (x->nin < info->min_in || (info->max_in != OP_ANY && x->nin > info->max_in))
        return infer_fail(x, ST_SHAPE, "takes %d%s operands, found %d", info->min_in,
                          info->max_in == OP_ANY         ? " or more"
                          : info->max_in != info->min_in ? " or one more"
                                                         : "",
                          x->nin);
    for (int i = 0; i < x->nin; i++) CHECK(c, x->in[i].dtype > DT_NONE);
    if (!(info->traits & SOURCE))
        for (int i = 0; i < info->outs; i++) x->out[i] = (struct type){.dtype = DT_NONE};
    TRY(handlers[x->op](x));
    for (int i = 0; i < info->outs; i++) TRY(check_size(x, &x->out[i]));
    return ST_OK;
}

/* ---- sources ------------------------------------------------------------------------------- */
static bool word_in(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

static enum status check_role(struct infer *x, const char *const *roles, const char *expected) {
    const char *role = x->attrs[ATTR_role].s;
    if (role && word_in(role, roles)) return ST_OK;
    return infer_fail(x, ST_USAGE, "role must be %s, found '%s'", expected, role ? role : "");
}

static enum status check_init(struct infer *x, bool required) {
    const struct type *t = &x->out[0];
    blob_id b = x->attrs[ATTR_init].blob;
    if (b.i == 0) {
        if (!required) return ST_OK;
        return infer_fail(x, ST_DATA, "of type %s has no value: 'init' must be given",
                          infer_show(x, t));
    }
    CHECK(x->g->ctx, b.i < x->g->blobs.n);
    int64_t bytes = type_bytes(t);
    if (bytes < 0)
        return infer_fail(x, ST_SHAPE, "with a value must have a known shape, found %s",
                          infer_show(x, t));
    size_t have = graph_get_blob(x->g, b)->bytes;
    if ((uint64_t)bytes != have)
        return infer_fail(x, ST_DATA, "of type %s needs %lld bytes, its value has %zu",
                          infer_show(x, t), (long long)bytes, have);
    return ST_OK;
}

enum status infer_source(struct infer *x) {
    static const char *const input_roles[] = {"data", "label", "lr", "seed", NULL};
    static const char *const state_roles[] = {"stat", "optimizer", "step", NULL};
    const struct type *t = &x->out[0];
    if (t->dtype <= DT_NONE || t->dtype >= DT_COUNT || t->rank < 0 || t->rank > RANK_MAX)
        return infer_fail(x, ST_TYPE, "needs a type of rank 0 to %d", RANK_MAX);
    TRY(check_size(x, t));
    switch (x->op) {
    case OP_input: return check_role(x, input_roles, "data, label, lr or seed");
    case OP_param:
    case OP_const: return check_init(x, true);
    case OP_state:
        TRY(check_role(x, state_roles, "stat, optimizer or step"));
        return check_init(x, false);
    case OP_iota:
        if (t->rank != 1 || t->dtype == DT_bool)
            return infer_fail(x, ST_TYPE, "makes one numeric axis, asked for %s", infer_show(x, t));
        return ST_OK;
    default: return ST_OK;
    }
}

enum status infer_typed(struct infer *x) { /* random */
    struct type seed = type_scalar(DT_i64);
    TRY(infer_want_type(x, 0, &seed, "the seed"));
    x->out[0].dtype = (enum dtype)infer_int(x, ATTR_dtype);
    if (!dtype_is_float(x->out[0].dtype))
        return infer_fail(x, ST_TYPE, "makes numbers of a float type, asked for %s",
                          dtype_name(x->out[0].dtype));
    return infer_shape_attr(x, &x->out[0]);
}

/* ---- elementwise, one operand ------------------------------------------------------------- */
enum status infer_same(struct infer *x) {
    int axis;
    TRY(want_numeric(x, 0));
    if (x->op == OP_cumsum) TRY(infer_axis(x, x->in[0].rank, &axis));
    x->out[0] = x->in[0];
    return ST_OK;
}

enum status infer_float1(struct infer *x) {
    int axis;
    TRY(infer_want_float(x, 0));
    if (x->op == OP_softmax || x->op == OP_log_softmax) TRY(infer_axis(x, x->in[0].rank, &axis));
    x->out[0] = x->in[0];
    return ST_OK;
}

enum status infer_bool1(struct infer *x) {
    if (x->in[0].dtype != DT_bool)
        return infer_fail(x, ST_TYPE, "operand 0 must be bool, found %s", infer_show(x, &x->in[0]));
    x->out[0] = x->in[0];
    return ST_OK;
}

enum status infer_test1(struct infer *x) {
    TRY(infer_want_float(x, 0));
    x->out[0] = x->in[0];
    x->out[0].dtype = DT_bool;
    return ST_OK;
}

enum status infer_cast(struct infer *x) {
    int64_t t = infer_int(x, ATTR_dtype);
    if (t <= DT_NONE || t >= DT_COUNT) return infer_fail(x, ST_TYPE, "needs an element type");
    x->out[0] = x->in[0];
    x->out[0].dtype = (enum dtype)t;
    return ST_OK;
}

/* ---- elementwise, several operands --------------------------------------------------------- */
bool type_broadcast(const struct type *a, const struct type *b, struct type *out) {
    struct type r = {.dtype = a->dtype, .rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 1; i <= r.rank; i++) {
        dim p = i <= a->rank ? a->dims[a->rank - i] : 1;
        dim q = i <= b->rank ? b->dims[b->rank - i] : 1;
        if (p != 1 && q != 1 && !dim_same(p, q)) return false;
        r.dims[r.rank - i] = p == 1 ? q : p;
    }
    *out = r;
    return true;
}

/* The common shape of operands 0..nin-1 with the element type `t`. */
static enum status broadcast_all(struct infer *x, enum dtype t) {
    struct type r = x->in[0];
    for (int i = 1; i < x->nin; i++)
        if (!type_broadcast(&r, &x->in[i], &r)) {
            const char *all = infer_show(x, &x->in[0]);
            for (int k = 1; k < x->nin; k++)
                all = arena_printf(&x->g->arena, "%s and %s", all, infer_show(x, &x->in[k]));
            return infer_fail(x, ST_SHAPE, "shapes do not broadcast: %s; sizes must be equal or 1",
                              all);
        }
    r.dtype = t;
    x->out[0] = r;
    return ST_OK;
}

enum status infer_bcast(struct infer *x) {
    for (int i = 0; i < x->nin; i++) {
        TRY(want_numeric(x, i));
        TRY(infer_want_alike(x, 0, i));
    }
    return broadcast_all(x, x->in[0].dtype);
}

enum status infer_compare(struct infer *x) {
    TRY(infer_want_alike(x, 0, 1));
    if (x->op == OP_lt || x->op == OP_le) TRY(want_numeric(x, 0));
    return broadcast_all(x, DT_bool);
}

enum status infer_logic(struct infer *x) {
    TRY(infer_want_alike(x, 0, 1));
    if (dtype_is_float(x->in[0].dtype))
        return infer_fail(x, ST_TYPE, "operands must be bool or integers, found %s",
                          infer_show(x, &x->in[0]));
    return broadcast_all(x, x->in[0].dtype);
}

enum status infer_where(struct infer *x) {
    if (x->in[0].dtype != DT_bool)
        return infer_fail(x, ST_TYPE, "the condition (operand 0) must be bool, found %s",
                          infer_show(x, &x->in[0]));
    TRY(infer_want_alike(x, 1, 2));
    return broadcast_all(x, x->in[1].dtype);
}

/* ---- reductions ---------------------------------------------------------------------------- */
static void drop_axes(const struct type *in, const int64_t *axes, int n, bool keep,
                      struct type *out) {
    struct type r = {.dtype = in->dtype};
    for (int i = 0, k = 0; i < in->rank; i++) {
        bool hit = k < n && axes[k] == i;
        if (hit) k++;
        if (!hit)
            r.dims[r.rank++] = in->dims[i];
        else if (keep)
            r.dims[r.rank++] = 1;
    }
    *out = r;
}

enum status infer_reduce(struct infer *x) {
    int n;
    const int64_t *axes = infer_list(x, ATTR_axes, &n);
    bool extreme = x->op == OP_reduce_max || x->op == OP_reduce_min;
    if (!extreme) TRY(want_numeric(x, 0));
    for (int i = 0; i < n; i++) {
        if (axes[i] < 0 || axes[i] >= x->in[0].rank)
            return infer_fail(x, ST_SHAPE, "axis %lld is outside the rank %d of %s",
                              (long long)axes[i], x->in[0].rank, infer_show(x, &x->in[0]));
        if (i > 0 && axes[i] <= axes[i - 1])
            return infer_fail(x, ST_SHAPE, "axes must increase, found %lld after %lld",
                              (long long)axes[i], (long long)axes[i - 1]);
        if (extreme && x->in[0].dims[axes[i]] == 0)
            return infer_fail(x, ST_SHAPE, "axis %lld of %s is empty: it has no extreme value",
                              (long long)axes[i], infer_show(x, &x->in[0]));
    }
    drop_axes(&x->in[0], axes, n, infer_int(x, ATTR_keepdims) != 0, &x->out[0]);
    return ST_OK;
}

enum status infer_argmax(struct infer *x) {
    int axis;
    TRY(want_numeric(x, 0));
    TRY(infer_axis(x, x->in[0].rank, &axis));
    if (x->in[0].dims[axis] == 0)
        return infer_fail(x, ST_SHAPE, "axis %d of %s is empty: it has no extreme value", axis,
                          infer_show(x, &x->in[0]));
    int64_t a = axis;
    drop_axes(&x->in[0], &a, 1, infer_int(x, ATTR_keepdims) != 0, &x->out[0]);
    x->out[0].dtype = DT_i64;
    return ST_OK;
}
