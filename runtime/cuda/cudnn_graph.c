// SPDX-License-Identifier: Apache-2.0
/* cudnn_graph.c - attention and its gradient as graphs of cuDNN operations. cuDNN knows flash
 * attention by the pattern: products, pointwise operations and reductions on intermediate tensors
 * that are never stored. Not which engine runs them. */
#include "runtime/cuda/cudnn.h"

enum { ALIGNMENT = 16 };

/* ---- descriptors ------------------------------------------------------------------------------
 */
bool net_check(struct dnn_net *n, int status, const char *what) {
    if (status == 0) return true;
    char words[512] = "";
    n->api->cudnnGetLastErrorString(words, sizeof words);
    words[sizeof words - 1] = '\0';
    for (char *c = words; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
    n->failed = arena_printf(n->arena, "%s: %s (%d): %s", what, n->api->cudnnGetErrorString(status),
                             status, words);
    return false;
}

dnn_desc net_make(struct dnn_net *n, int kind) {
    dnn_desc x = NULL;
    if (n->failed) return NULL;
    if (!net_check(n, n->api->cudnnBackendCreateDescriptor(kind, &x),
                   arena_printf(n->arena, "making descriptor %d", kind)))
        return NULL;
    vec_push(n->arena, &n->all, x);
    return x;
}

void net_set(struct dnn_net *n, dnn_desc x, int key, int type, int64_t count, const void *at) {
    if (n->failed) return;
    int status = n->api->cudnnBackendSetAttribute(x, key, type, count, at);
    if (status) net_check(n, status, arena_printf(n->arena, "setting attribute %d", key));
}

dnn_desc net_done(struct dnn_net *n, dnn_desc x, const char *what) {
    if (n->failed) return NULL;
    return net_check(n, n->api->cudnnBackendFinalize(x), what) ? x : NULL;
}

static void set_desc(struct dnn_net *n, dnn_desc x, int key, dnn_desc value) {
    net_set(n, x, key, DNN_T_DESCRIPTOR, 1, &value);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */
enum tensor_kind { REAL_TENSOR, VIRTUAL_TENSOR, HOST_SCALAR };

static dnn_desc tensor(struct dnn_net *n, enum tensor_kind kind, int64_t id, int type,
                       const int64_t dims[4], const int64_t strides[4]) {
    int64_t alignment = ALIGNMENT;
    bool yes = true;
    dnn_desc x = net_make(n, DNN_K_TENSOR);
    net_set(n, x, DNN_TENSOR_TYPE, DNN_T_DATA_TYPE, 1, &type);
    net_set(n, x, DNN_TENSOR_DIMS, DNN_T_INT64, 4, dims);
    net_set(n, x, DNN_TENSOR_STRIDES, DNN_T_INT64, 4, strides);
    net_set(n, x, DNN_TENSOR_ID, DNN_T_INT64, 1, &id);
    net_set(n, x, DNN_TENSOR_ALIGNMENT, DNN_T_INT64, 1, &alignment);
    if (kind == VIRTUAL_TENSOR) net_set(n, x, DNN_TENSOR_VIRTUAL, DNN_T_BOOLEAN, 1, &yes);
    if (kind == HOST_SCALAR) net_set(n, x, DNN_TENSOR_BY_VALUE, DNN_T_BOOLEAN, 1, &yes);
    return net_done(n, x, arena_printf(n->arena, "tensor %d", (int)id));
}

static dnn_desc virtual_tensor(struct dnn_net *n, int type, int64_t d0, int64_t d1, int64_t d2,
                               int64_t d3) {
    int64_t dims[4] = {d0, d1, d2, d3}, strides[4] = {d1 * d2 * d3, d2 * d3, d3, 1};
    return tensor(n, VIRTUAL_TENSOR, n->next_id++, type, dims, strides);
}

/* [B,H,T,S] and [B,H,T,1] */
static dnn_desc square(struct dnn_net *n, int type) {
    const struct dnn_problem *p = n->p;
    return virtual_tensor(n, type, p->b, p->h, p->t, p->s);
}
static dnn_desc column(struct dnn_net *n) {
    const struct dnn_problem *p = n->p;
    return virtual_tensor(n, DNN_FLOAT, p->b, p->h, p->t, 1);
}

/* [B,H,S,T], stored as its transpose */
static dnn_desc turned_square(struct dnn_net *n) {
    const struct dnn_problem *p = n->p;
    int64_t dims[4] = {p->b, p->h, p->s, p->t};
    int64_t strides[4] = {p->h * p->t * p->s, p->t * p->s, 1, p->s};
    return tensor(n, VIRTUAL_TENSOR, n->next_id++, (int)p->type, dims, strides);
}

struct matrix_shape {
    int64_t dims[4], strides[4];
};
static struct matrix_shape role_shape(const struct dnn_problem *p, enum dnn_role r, bool turn) {
    bool keys = r == ROLE_K || r == ROLE_V || r == ROLE_DK || r == ROLE_DV;
    bool values = r == ROLE_V || r == ROLE_Y || r == ROLE_G || r == ROLE_DV;
    bool sums = r == ROLE_LSE || r == ROLE_SUM;
    struct matrix_shape m = {{p->b, keys ? p->kv : p->h, keys ? p->s : p->t,
                              sums     ? 1
                              : values ? p->e
                                       : p->d},
                             {0}};
    for (int i = 0; i < 4; i++) m.strides[i] = p->strides[r][i];
    for (int k = 0; turn && k < 2; k++) {
        int64_t *x = k ? m.strides : m.dims, last = x[3];
        x[3] = x[2];
        x[2] = last;
    }
    return m;
}

static dnn_desc real_tensor(struct dnn_net *n, enum dnn_role r, bool turn) {
    struct matrix_shape m = role_shape(n->p, r, turn);
    int type = r == ROLE_LSE || r == ROLE_SUM ? DNN_FLOAT : (int)n->p->type;
    return tensor(n, REAL_TENSOR, r + 1, type, m.dims, m.strides);
}

static dnn_desc scalar(struct dnn_net *n, int type, const void *at) {
    const int64_t ones[4] = {1, 1, 1, 1};
    n->scalar_ids[n->nscalars] = n->next_id;
    n->scalar_at[n->nscalars++] = at;
    return tensor(n, HOST_SCALAR, n->next_id++, type, ones, ones);
}

/* ---- operations -------------------------------------------------------------------------------
 */
static void add_op(struct dnn_net *n, dnn_desc op, const char *what) {
    op = net_done(n, op, what);
    if (op) vec_push(n->arena, &n->ops, op);
}

/* y = mode(x, b, t); b and t may be NULL. */
static dnn_desc pointwise_axis(struct dnn_net *n, int mode, int compute, int64_t axis, dnn_desc x,
                               dnn_desc b, dnn_desc t, dnn_desc y) {
    const float one = 1;
    dnn_desc how = net_make(n, DNN_K_POINTWISE);
    net_set(n, how, DNN_POINTWISE_MODE, DNN_T_POINTWISE, 1, &mode);
    net_set(n, how, DNN_POINTWISE_PRECISION, DNN_T_DATA_TYPE, 1, &compute);
    if (axis >= 0) net_set(n, how, DNN_POINTWISE_AXIS, DNN_T_INT64, 1, &axis);
    how = net_done(n, how, arena_printf(n->arena, "pointwise mode %d", mode));
    dnn_desc op = net_make(n, DNN_K_POINTWISE_OP);
    set_desc(n, op, DNN_POINTWISE_OP_DESC, how);
    set_desc(n, op, DNN_POINTWISE_OP_X, x);
    set_desc(n, op, DNN_POINTWISE_OP_Y, y);
    if (b) set_desc(n, op, DNN_POINTWISE_OP_B, b);
    if (t) set_desc(n, op, DNN_POINTWISE_OP_T, t);
    net_set(n, op, DNN_POINTWISE_OP_ALPHA1, DNN_T_FLOAT, 1, &one);
    net_set(n, op, DNN_POINTWISE_OP_ALPHA2, DNN_T_FLOAT, 1, &one);
    add_op(n, op, arena_printf(n->arena, "pointwise operation %d", mode));
    return y;
}
static dnn_desc pointwise(struct dnn_net *n, int mode, dnn_desc x, dnn_desc b, dnn_desc y) {
    return pointwise_axis(n, mode, DNN_FLOAT, -1, x, b, NULL, y);
}

static dnn_desc reduce(struct dnn_net *n, int mode, dnn_desc x, dnn_desc y) {
    int type = DNN_FLOAT;
    dnn_desc how = net_make(n, DNN_K_REDUCTION);
    net_set(n, how, DNN_REDUCTION_PRECISION, DNN_T_DATA_TYPE, 1, &type);
    net_set(n, how, DNN_REDUCTION_OPERATOR, DNN_T_REDUCTION, 1, &mode);
    how = net_done(n, how, "reduction");
    dnn_desc op = net_make(n, DNN_K_REDUCTION_OP);
    set_desc(n, op, DNN_REDUCTION_OP_DESC, how);
    set_desc(n, op, DNN_REDUCTION_OP_X, x);
    set_desc(n, op, DNN_REDUCTION_OP_Y, y);
    add_op(n, op, "reduction operation");
    return y;
}

static dnn_desc product(struct dnn_net *n, dnn_desc a, dnn_desc b, dnn_desc y) {
    int type = DNN_FLOAT;
    dnn_desc how = net_make(n, DNN_K_MATMUL);
    net_set(n, how, DNN_MATMUL_PRECISION, DNN_T_DATA_TYPE, 1, &type);
    how = net_done(n, how, "product");
    dnn_desc op = net_make(n, DNN_K_MATMUL_OP);
    set_desc(n, op, DNN_MATMUL_OP_A, a);
    set_desc(n, op, DNN_MATMUL_OP_B, b);
    set_desc(n, op, DNN_MATMUL_OP_C, y);
    set_desc(n, op, DNN_MATMUL_OP_DESC, how);
    add_op(n, op, "product operation");
    return y;
}

static dnn_desc reshape(struct dnn_net *n, dnn_desc x, dnn_desc y) {
    dnn_desc op = net_make(n, DNN_K_RESHAPE_OP);
    set_desc(n, op, DNN_RESHAPE_OP_X, x);
    set_desc(n, op, DNN_RESHAPE_OP_Y, y);
    add_op(n, op, "reshape operation");
    return y;
}

/* ---- graphs -----------------------------------------------------------------------------------
 */
/* x where j <= i + S - T, elsewhere -infinity. */
static dnn_desc causal(struct dnn_net *n, dnn_desc x) {
    const struct dnn_problem *p = n->p;
    struct dnn_scalars *c = n->scalars;
    if (!p->causal) return x;
    dnn_desc lowest = scalar(n, DNN_FLOAT, &c->lowest);
    dnn_desc row = square(n, DNN_INT32), col = square(n, DNN_INT32);
    pointwise_axis(n, DNN_GEN_INDEX, DNN_FLOAT, 2, x, NULL, NULL, row);
    pointwise_axis(n, DNN_GEN_INDEX, DNN_FLOAT, 3, x, NULL, NULL, col);
    if (p->s != p->t) {
        dnn_desc s = scalar(n, DNN_INT32, &c->s), t = scalar(n, DNN_INT32, &c->t);
        row = pointwise_axis(n, DNN_ADD, DNN_INT32, -1, row, s, NULL, square(n, DNN_INT32));
        row = pointwise_axis(n, DNN_SUB, DNN_INT32, -1, row, t, NULL, square(n, DNN_INT32));
    }
    dnn_desc sees =
        pointwise_axis(n, DNN_CMP_GE, DNN_BOOLEAN, -1, row, col, NULL, square(n, DNN_BOOLEAN));
    return pointwise_axis(n, DNN_SELECT, DNN_FLOAT, -1, x, lowest, sees, square(n, DNN_FLOAT));
}

static void forward(struct dnn_net *n) {
    dnn_desc q = real_tensor(n, ROLE_Q, false), kt = real_tensor(n, ROLE_K, true);
    dnn_desc v = real_tensor(n, ROLE_V, false), y = real_tensor(n, ROLE_Y, false);
    dnn_desc lse = real_tensor(n, ROLE_LSE, false);
    dnn_desc x = product(n, q, kt, square(n, DNN_FLOAT));
    dnn_desc scale = scalar(n, DNN_FLOAT, &n->scalars->scale);
    x = causal(n, pointwise(n, DNN_MUL, x, scale, square(n, DNN_FLOAT)));
    dnn_desc most = reduce(n, DNN_REDUCE_MAX, x, column(n));
    x = pointwise(n, DNN_SUB, x, most, square(n, DNN_FLOAT));
    x = pointwise(n, DNN_EXP, x, NULL, square(n, DNN_FLOAT));
    dnn_desc sum = reduce(n, DNN_REDUCE_ADD, x, column(n));
    dnn_desc log = pointwise(n, DNN_LOG, sum, NULL, column(n));
    pointwise(n, DNN_ADD, most, log, lse);
    x = pointwise(n, DNN_DIV, x, sum, square(n, (int)n->p->type));
    product(n, x, v, y);
}

/* to = x'y, with x [B,H,T,S]; heads that share keys are added up. */
static void key_gradient(struct dnn_net *n, dnn_desc x, dnn_desc y, enum dnn_role to,
                         int64_t width) {
    const struct dnn_problem *p = n->p;
    dnn_desc xt = reshape(n, x, turned_square(n)), result = real_tensor(n, to, false);
    if (p->h == p->kv) {
        product(n, xt, y, result);
        return;
    }
    dnn_desc each = virtual_tensor(n, (int)p->type, p->b, p->h, p->s, width);
    reduce(n, DNN_REDUCE_ADD, product(n, xt, y, each), result);
}

/* In the order in which cuDNN expects the chains: rows of g*y, dV, dK, dQ. dQ is a plain product of
 * dS, for which cuDNN keeps dS in its workspace: nothing is added in an order that varies. */
static void backward(struct dnn_net *n) {
    const struct dnn_problem *p = n->p;
    dnn_desc q = real_tensor(n, ROLE_Q, false), kt = real_tensor(n, ROLE_K, true);
    dnn_desc vt = real_tensor(n, ROLE_V, true), y = real_tensor(n, ROLE_Y, false);
    dnn_desc lse = real_tensor(n, ROLE_LSE, false), g = real_tensor(n, ROLE_G, false);
    dnn_desc one = scalar(n, DNN_FLOAT, &n->scalars->one);
    dnn_desc scale = scalar(n, DNN_FLOAT, &n->scalars->scale);
    dnn_desc rows =
        pointwise(n, DNN_MUL, g, y, virtual_tensor(n, DNN_FLOAT, p->b, p->h, p->t, p->e));
    rows = reduce(n, DNN_REDUCE_ADD, rows, column(n));
    rows = pointwise(n, DNN_MUL, rows, one, real_tensor(n, ROLE_SUM, false));

    dnn_desc x = product(n, q, kt, square(n, DNN_FLOAT));
    x = pointwise(n, DNN_MUL, x, scale, square(n, DNN_FLOAT));
    x = causal(n, pointwise(n, DNN_SUB, x, lse, square(n, DNN_FLOAT)));
    dnn_desc prob = pointwise(n, DNN_EXP, x, NULL, square(n, DNN_FLOAT));
    key_gradient(n, prob, g, ROLE_DV, p->e);

    x = product(n, g, vt, square(n, DNN_FLOAT));
    x = pointwise(n, DNN_SUB, x, rows, square(n, DNN_FLOAT));
    x = pointwise(n, DNN_MUL, x, prob, square(n, DNN_FLOAT));
    dnn_desc ds = pointwise(n, DNN_MUL, x, scale, square(n, DNN_FLOAT));
    key_gradient(n, ds, q, ROLE_DK, p->d);

    struct matrix_shape m = role_shape(p, ROLE_K, false);
    dnn_desc k = tensor(n, VIRTUAL_TENSOR, n->next_id++, (int)p->type, m.dims, m.strides);
    product(n, ds, reshape(n, kt, k), real_tensor(n, ROLE_DQ, false));
}

void net_attention(struct dnn_net *n) {
    n->next_id = ROLES + 1;
    if (n->p->grad)
        backward(n);
    else
        forward(n);
}
