// SPDX-License-Identifier: Apache-2.0
/* cost.c - arithmetic and memory traffic of one node, from its types alone. An estimate for reports
 * and for choosing between equal programs; no device enters here. */
#include "ir/graph.h"

typedef double cost_fn(const struct graph *g, node_id n); /* flops */

static double count(const struct graph *g, val_id v) {
    return (double)type_count(val_type(g, v));
}

static const struct type *in_type(const struct graph *g, node_id n, int k) {
    return val_type(g, node_in(g, n, k));
}

/* Declared for every row: a cost that nobody wrote does not build. */
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs)                \
    static cost_fn cost_##cost;
#include "ir/ops.def"
#undef OP

static double cost_none(const struct graph *g, node_id n) {
    (void)g, (void)n;
    return 0;
}

static double cost_copy(const struct graph *g, node_id n) {
    (void)g, (void)n;
    return 0;
}

static double cost_gather(const struct graph *g, node_id n) {
    /* The scatters add one number for each update. */
    switch ((enum op)graph_node(g, n)->op) {
    case OP_scatter_rows: return count(g, node_in(g, n, 1));
    case OP_scatter_elements: return attr_bool(g, n, ATTR_add) ? count(g, node_in(g, n, 2)) : 0;
    default: return 0;
    }
}

static double cost_ew(const struct graph *g, node_id n) {
    double per = 1;
    switch ((enum op)graph_node(g, n)->op) {
    case OP_gelu: per = 5; break;
    case OP_silu:
    case OP_clip: per = 2; break;
    case OP_sgd: per = 6; break;
    case OP_adam: per = 14; break;
    case OP_adam8: per = 60; break;
    default: break;
    }
    return per * count(g, node_out(g, n, 0));
}

static double cost_reduce(const struct graph *g, node_id n) {
    return count(g, node_in(g, n, 0));
}

static double cost_squares(const struct graph *g, node_id n) {
    double sum = 0;
    for (int k = 0; k < graph_node(g, n)->nin; k++) sum += 2 * count(g, node_in(g, n, k));
    return sum;
}

static double cost_norm(const struct graph *g, node_id n) {
    double per = graph_node(g, n)->op == OP_rms_norm     ? 4
                 : graph_node(g, n)->op == OP_layer_norm ? 7
                                                         : 4;
    return per * count(g, node_in(g, n, 0));
}

static double cost_matmul(const struct graph *g, node_id n) {
    const struct type *a = in_type(g, n, 0);
    dim k = a->dims[a->rank - (attr_bool(g, n, ATTR_trans_a) ? 2 : 1)];
    return 2.0 * (double)k * count(g, node_out(g, n, 0));
}

static double cost_scaled_matmul(const struct graph *g, node_id n) {
    const struct type *a = in_type(g, n, 0);
    return 2.0 * (double)a->dims[a->rank - 1] * count(g, node_out(g, n, 0));
}

/* Each of conv and its two gradients multiplies every window position by every tap. */
static double cost_conv(const struct graph *g, node_id n) {
    val_id y, w;
    switch ((enum op)graph_node(g, n)->op) {
    case OP_conv: y = node_out(g, n, 0), w = node_in(g, n, 1); break;
    case OP_conv_input_grad: y = node_in(g, n, 0), w = node_in(g, n, 1); break;
    default: y = node_in(g, n, 1), w = node_out(g, n, 0); break;
    }
    double outputs = (double)val_type(g, w)->dims[0];
    return outputs > 0 ? 2.0 * count(g, y) * count(g, w) / outputs : 0;
}

static double cost_pool(const struct graph *g, node_id n) {
    int rank;
    const int64_t *kernel = attr_ints(g, n, ATTR_kernel, &rank);
    double taps = 1;
    for (int i = 0; i < rank; i++) taps *= (double)kernel[i];
    return taps * count(g, node_out(g, n, 0));
}

/* Scores, softmax (5 an entry) and the weighted sum; the gradient recomputes the scores and makes
 * four more products (Dao, FlashAttention-2, 2023). A causal mask halves the work. */
static double cost_attention(const struct graph *g, node_id n) {
    const struct type *q = in_type(g, n, 0), *k = in_type(g, n, 1), *v = in_type(g, n, 2);
    double scores =
        (double)q->dims[0] * (double)q->dims[1] * (double)q->dims[2] * (double)k->dims[2];
    double d = (double)q->dims[3], e = (double)v->dims[3];
    bool grad = graph_node(g, n)->op == OP_attention_grad;
    double per = grad ? 2 * (3 * d + 2 * e) + 8 : 2 * (d + e) + 5;
    return scores * per * (attr_bool(g, n, ATTR_causal) ? 0.5 : 1.0);
}

static cost_fn *const handlers[OP_COUNT] = {
    NULL,
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs) cost_##cost,
#include "ir/ops.def"
#undef OP
};

/* Bytes an operand contributes: a gather reads what it takes, not the whole table. */
static double operand_bytes(const struct graph *g, node_id n, int k) {
    enum op op = (enum op)graph_node(g, n)->op;
    if (k == 0 && (op == OP_gather || op == OP_gather_elements))
        return (double)type_bytes(val_type(g, node_out(g, n, 0)));
    return (double)type_bytes(in_type(g, n, k));
}

struct cost node_cost(const struct graph *g, node_id n) {
    struct cost c = {0};
    const struct node *node = graph_node(g, n);
    unsigned traits = op_info((enum op)node->op)->traits;
    for (int k = 0; k < node->nin; k++)
        if (!type_static(in_type(g, n, k))) return c;
    for (int k = 0; k < node->nout; k++)
        if (!type_static(val_type(g, node_out(g, n, k)))) return c;
    c.flops = handlers[node->op](g, n);
    if (traits & (SOURCE | VIEW)) return c;
    for (int k = 0; k < node->nin; k++) c.bytes_read += operand_bytes(g, n, k);
    for (int k = 0; k < node->nout; k++)
        c.bytes_written += (double)type_bytes(val_type(g, node_out(g, n, k)));
    return c;
}
