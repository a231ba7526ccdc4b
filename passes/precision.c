// SPDX-License-Identifier: Apache-2.0
/* precision.c - makes the roundings explicit that a recipe asks for, before differentiation, which
 * then gives gradients of the same types by its ordinary rules.
 *
 * before:                                    after (recipe bf16):
 *   %y = matmul(%x, %w)                        %a = cast(%x) {dtype = bf16}
 *   %z = add(%y, %b)                           %c = cast(%w) {dtype = bf16}
 *   %h = gelu(%z)                              %y = matmul(%a, %c)             bf16
 *                                              %d = cast(cast(%b))             bf16 and back
 *                                              %z = add(cast(%y), %d)          f32
 *                                              %r = cast(%z) {dtype = bf16}
 *                                              %h = gelu(cast(%r))             f32
 *
 * Products and attention take and give bf16. Everything else computes in f32; a value that depends
 * on the data is rounded once, where it is made, when it feeds a product, has several readers or is
 * read again by the backward part: what is kept in memory is bf16. Values inside a chain stay f32,
 * and so do statistics (reduced values), what does not depend on parameters or float data (masks,
 * positions), the loss, convolutions and what lies between them. A parameter is
 * cast once for all its uses; an embedding table is read in bf16 if a product needs it so, else its
 * rows are rounded.
 *
 * needs   topological order, settled; output "loss" if there is one
 * breaks  every id held outside (settle compacts)
 * order   after loss, so that the loss is seen to read rounded values, and before grad */
#include "passes/pass.h"
#include <string.h>

/* What a value depends on; later kinds win. */
enum kind { KIND_CONST, KIND_WEIGHT, KIND_STAT, KIND_DATA };

struct fact {
    uint8_t kind;
    bool product, wide;      /* read by a narrow product; by a convolution or wide product */
    bool from_conv, to_conv; /* behind, before a convolution and no product in between */
    bool saved;              /* read by the backward part */
    bool rounded;            /* its f32 form is exactly its bf16 form */
    uint32_t readers;        /* nodes that read it, through movement */
    val_id narrow, back;     /* its bf16 form, and that widened again */
};
struct prec {
    struct graph *g;
    const struct recipe *r;
    uint32_t nodes;
    struct fact *at; /* by value as the graph was given */
    bool *model;     /* by node: not only the loss depends on it */
    bool *product;   /* by node: computes in bf16 */
};

static val_id given(const struct prec *p, node_id n, int k) {
    return p->g->operands.at[graph_node(p->g, n)->first_in + (uint32_t)k];
}

static bool is_f32(const struct prec *p, val_id v) {
    return val_type(p->g, v)->dtype == DT_f32;
}

static bool is_conv(enum op op) {
    return op == OP_conv || op == OP_conv_input_grad || op == OP_conv_weight_grad ||
           op == OP_max_pool;
}

/* Ops of one float operand that change no element. */
static bool moves(enum op op) {
    return (op_info(op)->traits & VIEW) || op == OP_pad;
}

/* ---- what values are ----------------------------------------------------------------------- */
static enum kind source_kind(const struct graph *g, node_id n) {
    switch ((enum op)graph_node(g, n)->op) {
    case OP_param: return KIND_WEIGHT;
    case OP_input: {
        const char *role = attr_str(g, n, ATTR_role);
        return strcmp(role, "data") == 0 || strcmp(role, "label") == 0 ? KIND_DATA : KIND_CONST;
    }
    default: return KIND_CONST;
    }
}

/* Whether all that the node reads of the data comes from convolutions. */
static bool from_convs(const struct prec *p, node_id n) {
    bool any = false;
    for (int k = 0; k < graph_node(p->g, n)->nin; k++) {
        const struct fact *x = &p->at[given(p, n, k).i];
        if (x->kind < KIND_STAT) continue;
        if (!x->from_conv) return false;
        any = true;
    }
    return any;
}

static void find_kinds(struct prec *p) {
    struct graph *g = p->g;
    for (uint32_t i = 1; i < p->nodes; i++) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        enum op op = (enum op)node->op;
        enum kind kind = source_kind(g, n);
        for (int k = 0; k < node->nin && op != OP_random && op != OP_gradient; k++) {
            val_id v = given(p, n, k);
            bool other = !dtype_is_float(val_type(g, v)->dtype) &&
                         dtype_is_float(val_type(g, node_out(g, n, 0))->dtype) && op != OP_gather;
            if (!other && p->at[v.i].kind > kind) kind = (enum kind)p->at[v.i].kind;
        }
        bool multiplies = op == OP_matmul || op == OP_attention;
        bool layer = multiplies || is_conv(op);
        bool reduces = op >= OP_reduce_sum && op <= OP_reduce_prod;
        if (reduces && kind == KIND_DATA) kind = KIND_STAT;
        if (layer && kind == KIND_STAT) kind = KIND_DATA;
        for (int k = 0; k < node->nout; k++) {
            bool stat = k > 0 && kind == KIND_DATA && op != OP_max_pool;
            p->at[node_out(g, n, k).i].kind = (uint8_t)(stat ? KIND_STAT : kind);
            p->at[node_out(g, n, k).i].from_conv = is_conv(op) || (!multiplies && from_convs(p, n));
        }
        p->product[i] = multiplies && p->r->compute == DT_bf16 && kind > KIND_CONST &&
                        is_f32(p, node_out(g, n, 0)) && !recipe_keeps_wide(p->r, node_origin(g, n));
    }
}

/* What the model's own training step does with gradients is not the model. */
static void leave_out_steps(struct prec *p) {
    const struct graph *g = p->g;
    bool *behind = p->model + p->nodes;
    for (uint32_t i = 1; i < p->nodes; i++) {
        behind[i] = graph_node(g, (node_id){i})->op == OP_gradient;
        for (int k = 0; k < graph_node(g, (node_id){i})->nin; k++)
            behind[i] |= behind[val_def(g, given(p, (node_id){i}, k)).i];
        p->model[i] = p->model[i] && !behind[i];
    }
}

/* Nodes that an output of the model depends on; what is left makes the loss of them. */
static void find_model(struct prec *p) {
    struct graph *g = p->g;
    bool any = false;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        const char *name = interned(&g->strings, g->outputs.at[i].name);
        if (strcmp(name, "loss") == 0 || strncmp(name, "loss.", 5) == 0) continue;
        p->model[val_def(g, g->outputs.at[i].value).i] = any = true;
    }
    for (uint32_t i = p->nodes; i-- > 1;) {
        p->model[i] |= !any;
        for (int k = 0; p->model[i] && k < graph_node(g, (node_id){i})->nin; k++)
            p->model[val_def(g, given(p, (node_id){i}, k)).i] = true;
    }
}

/* Which operands (bits) and whether the result (bit 8) the gradient rule reads. */
static unsigned rule_reads(const struct prec *p, node_id n) {
    enum { X = 1, Y = 256 };
    unsigned trained[2] = {0};
    for (int k = 0; k < 2 && k < graph_node(p->g, n)->nin; k++)
        trained[k] = p->at[given(p, n, k).i].kind != KIND_CONST;
    enum op op = (enum op)graph_node(p->g, n)->op;
    switch (op) {
    case OP_exp:
    case OP_expm1:
    case OP_sqrt:
    case OP_rsqrt:
    case OP_recip:
    case OP_tan:
    case OP_tanh:
    case OP_sigmoid:
    case OP_softmax:
    case OP_log_softmax: return Y;
    case OP_mul: return trained[0] << 1 | trained[1];
    case OP_div: return 2 | (trained[1] ? Y : 0);
    case OP_pow:
    case OP_max:
    case OP_min:
    case OP_clip: return 7;
    case OP_reduce_max:
    case OP_reduce_min:
    case OP_reduce_prod:
    case OP_layer_norm:
    case OP_rms_norm: return X;
    case OP_neg:
    case OP_add:
    case OP_sub:
    case OP_cast:
    case OP_where: return 0;
    default: return (op_info(op)->traits & (EW | PURE0)) == EW ? X : 0;
    }
}

/* A norm's result is computed again from its operand rather than kept. */
static bool is_norm(enum op op) {
    return op == OP_layer_norm || op == OP_rms_norm;
}

static void find_readers(struct prec *p) {
    struct graph *g = p->g;
    for (uint32_t i = p->nodes; i-- > 1;) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        enum op op = (enum op)node->op;
        if (node->nout == 0) continue;
        if (!p->model[i]) { /* the loss of classes reads logits of sequences as they are kept */
            struct fact *x = node->nin > 0 ? &p->at[given(p, n, 0).i] : NULL;
            if (op == OP_cross_entropy)
                x->saved |= moves(val_op(g, given(p, n, 0)));
            else if (moves(op))
                x->saved |= p->at[node_out(g, n, 0).i].saved;
            continue;
        }
        const struct fact *y = &p->at[node_out(g, n, 0).i];
        unsigned reads = y->kind == KIND_CONST ? 0 : rule_reads(p, n);
        if (reads & 256) p->at[node_out(g, n, 0).i].saved = true;
        for (int k = 0; k < node->nin; k++) {
            struct fact *x = &p->at[given(p, n, k).i];
            bool multiplies = op == OP_matmul || op == OP_attention;
            x->to_conv |= is_conv(op) || (!multiplies && y->to_conv);
            bool again = k > 0 && given(p, n, 0).i == given(p, n, k).i;
            if (moves(op) || op == OP_concat) {
                x->product |= y->product, x->wide |= y->wide, x->saved |= y->saved;
                x->readers += op == OP_concat ? 1 : y->readers;
                continue;
            }
            x->readers += !again;
            if (p->product[i]) x->product |= k < (op == OP_matmul ? 2 : 3);
            if (is_conv(op) || (op == OP_matmul && !p->product[i])) x->wide = true;
            if (k < 8 && (reads >> k & 1) && !is_norm(val_op(g, given(p, n, k)))) x->saved = true;
        }
    }
}

/* ---- rewriting ----------------------------------------------------------------------------- */
/* The bf16 form of v, made once. */
static val_id narrow(struct prec *p, val_id v) {
    struct graph *g = p->g;
    struct fact *f = &p->at[v.i];
    node_id n = val_def(g, v);
    if (f->narrow.i) return f->narrow;
    if (moves(val_op(g, v))) {
        val_id x = narrow(p, given(p, n, 0));
        f->narrow = build_like(g, n, &x);
    } else {
        f->narrow = build_cast(g, graph_resolve(g, v), DT_bf16, graph_node(g, n)->origin);
    }
    return f->narrow;
}

/* v is `y` from now on, a bf16 value, and its widened form where f32 is read. */
static void replace(struct prec *p, val_id v, val_id y) {
    struct graph *g = p->g;
    struct fact *f = &p->at[v.i];
    f->narrow = y;
    f->rounded = true;
    f->back = build_cast(g, y, DT_f32, graph_node(g, val_def(g, v))->origin);
    graph_forward(g, v, f->back);
}

/* The node's operands as they are now, the float ones of `bits` narrow. */
static void operands(struct prec *p, node_id n, unsigned bits, val_id *out) {
    int nin = graph_node(p->g, n)->nin;
    for (int k = 0; k < nin; k++) {
        val_id v = given(p, n, k);
        bool low = k < 32 && (bits >> k & 1) && is_f32(p, v);
        out[k] = low ? narrow(p, v) : graph_resolve(p->g, v);
    }
}

/* One row that is added to each row of a product: read rounded, as a product's launch has it. */
static bool is_bias(const struct prec *p, node_id n, int k) {
    val_id y = given(p, n, 1 - k), b = given(p, n, k);
    const struct type *t = val_type(p->g, y), *r = val_type(p->g, b);
    if (!p->product[val_def(p->g, y).i] || val_op(p->g, y) != OP_matmul) return false;
    if (p->at[b.i].kind != KIND_WEIGHT || r->rank < 1 || r->rank > t->rank) return false;
    for (int d = 0; d + 1 < r->rank; d++)
        if (r->dims[d] != 1) return false;
    return dim_same(r->dims[r->rank - 1], t->dims[t->rank - 1]);
}

static bool to_round(const struct prec *p, node_id n) {
    val_id v = node_out(p->g, n, 0);
    const struct fact *f = &p->at[v.i];
    if (p->r->activations != DT_bf16 || !p->model[n.i] || f->kind != KIND_DATA) return false;
    if (!is_f32(p, v) || val_type(p->g, v)->rank == 0) return false;
    if (f->product) return true;
    if (f->wide || (f->from_conv && f->to_conv)) return false;
    return f->readers > 1 || f->saved || val_op(p->g, v) == OP_gather;
}

static bool all_rounded(const struct prec *p, node_id n) {
    for (int k = 0; k < graph_node(p->g, n)->nin; k++)
        if (!p->at[given(p, n, k).i].rounded) return false;
    return true;
}

/* Nodes that can read and give bf16 as they are; true when done. */
static bool rewrite_narrow(struct prec *p, node_id n, val_id *in) {
    struct graph *g = p->g;
    const struct node node = *graph_node(g, n);
    enum op op = (enum op)node.op;
    val_id y = node_out(g, n, 0), first = node.nin > 0 ? given(p, n, 0) : VAL_NONE;
    const struct fact *x = &p->at[first.i];
    bool tied = op == OP_gather && x->product && val_op(g, first) == OP_param;
    bool concat = op == OP_concat && is_f32(p, y) && (all_rounded(p, n) || to_round(p, n));
    if (p->product[n.i])
        operands(p, n, op == OP_matmul ? 3 : 7, in);
    else if ((moves(op) || op == OP_gather || op == OP_gather_elements) && (x->rounded || tied))
        operands(p, n, 1, in);
    else if (concat)
        for (int k = 0; k < node.nin; k++) in[k] = narrow(p, given(p, n, k));
    else if (op == OP_cross_entropy && x->rounded)
        operands(p, n, 1, in);
    else
        return false;
    val_id made = build_like(g, n, in);
    for (int k = 0; k < node.nout; k++) {
        val_id old = node_out(g, n, k);
        if (val_type(g, val_at(made, k))->dtype == val_type(g, old)->dtype)
            graph_forward(g, old, val_at(made, k));
        else
            replace(p, old, val_at(made, k));
    }
    return true;
}

static void rewrite(struct prec *p, node_id n, struct arena *scratch) {
    struct graph *g = p->g;
    const struct node node = *graph_node(g, n);
    if (op_info((enum op)node.op)->traits & SOURCE) return;
    struct arena_mark mark = arena_mark(scratch);
    val_id *in = ARENA_ARRAY(scratch, val_id, (size_t)node.nin + 1);
    bool round = to_round(p, n), changed = false;
    if (rewrite_narrow(p, n, in)) {
        arena_rewind(scratch, mark);
        return;
    }
    operands(p, n, 0, in);
    for (int k = 0; node.op == OP_add && k < 2; k++) {
        if (!is_bias(p, n, k)) continue;
        in[k] = build_cast(g, narrow(p, given(p, n, k)), DT_f32, node.origin);
        changed = true;
    }
    if (round || changed) {
        val_id made = build_like(g, n, in);
        for (int k = 0; k < node.nout; k++) {
            if (k == 0 && round)
                replace(p, node_out(g, n, 0), build_cast(g, made, DT_bf16, node.origin));
            else
                graph_forward(g, node_out(g, n, k), val_at(made, k));
        }
    }
    arena_rewind(scratch, mark);
}

enum status pass_precision(struct pass_ctx *c, struct graph *g) {
    if (!c->recipe || (c->recipe->compute == DT_f32 && c->recipe->activations == DT_f32))
        return ST_OK;
    struct prec p = {.g = g, .r = c->recipe, .nodes = g->nodes.n};
    p.at = ARENA_ARRAY(c->scratch, struct fact, g->values.n);
    p.model = ARENA_ARRAY(c->scratch, bool, 2 * (size_t)p.nodes); /* and scratch behind it */
    p.product = ARENA_ARRAY(c->scratch, bool, p.nodes);
    find_kinds(&p);
    find_model(&p);
    leave_out_steps(&p);
    for (uint32_t i = 1; i < p.nodes; i++) p.product[i] = p.product[i] && p.model[i];
    find_readers(&p);
    for (uint32_t i = 1; i < p.nodes; i++) rewrite(&p, (node_id){i}, c->scratch);
    graph_settle(g);
    return ST_OK;
}
