// SPDX-License-Identifier: Apache-2.0
/* lower.c - the lowering table, and the launches of ops that are not fused: each operand as a view
 * its kernel can read (copied when it is not), results, attributes. Products are in lower_matmul.c.
 */
#include "codegen/internal.h"
#include <string.h>

static const struct lowering *const table[OP_COUNT] = {
    NULL,
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs) &lower_##lower,
#include "ir/ops.def"
#undef OP
};

const struct lowering *node_lowering(const struct graph *g, node_id n) {
    return table[graph_node(g, n)->op];
}

const struct lowering lower_source = {.cls = CLASS_SOURCE};
const struct lowering lower_view = {.cls = CLASS_VIEW};

/* ---- buffers ------------------------------------------------------------------------------- */
buf_id buffer_add(struct cg *c, enum buffer_kind kind, enum buffer_use use, const struct type *t) {
    struct plan_buffer b = {.kind = kind, .use = use, .type = *t, .bytes = type_bytes(t)};
    vec_push(&c->p->arena, &c->p->buffers, b);
    return (buf_id){c->p->buffers.n - 1};
}

struct plan_view buffer_view(const struct cg *c, buf_id b) {
    const struct type *t = &c->p->buffers.at[b.i].type;
    struct plan_view v = {.buffer = b, .dtype = t->dtype};
    v.rank = type_dims(t, v.dims);
    dims_strides(v.dims, v.rank, v.strides);
    return v;
}

static str_id take_name(struct cg *c, node_id n, enum attr_key k) {
    return intern(&c->p->strings, attr_str(c->g, n, k));
}

static void take_init(struct cg *c, node_id n, struct plan_buffer *b) {
    blob_id id = attr_blob(c->g, n, ATTR_init);
    if (id.i != 0) b->init = *graph_get_blob(c->g, id);
}

/* The buffer of a source node, made once. */
static buf_id source_buffer(struct cg *c, val_id v) {
    struct graph *g = c->g;
    node_id n = val_def(g, v);
    const struct type *t = val_type(g, v);
    buf_id id;
    switch (val_op(g, v)) {
    case OP_input:
        id = buffer_add(c, BUF_INPUT, USE_IO, t);
        c->p->buffers.at[id.i].name = take_name(c, n, ATTR_name);
        c->p->buffers.at[id.i].role = take_name(c, n, ATTR_role);
        return id;
    case OP_param:
        id = buffer_add(c, BUF_PARAM, USE_WEIGHTS, t);
        c->p->buffers.at[id.i].name = take_name(c, n, ATTR_name);
        c->p->buffers.at[id.i].frozen = attr_bool(g, n, ATTR_frozen);
        take_init(c, n, &c->p->buffers.at[id.i]);
        return id;
    case OP_state: {
        const char *role = attr_str(g, n, ATTR_role);
        bool opt = strcmp(role, "optimizer") == 0 || strcmp(role, "step") == 0;
        id = buffer_add(c, BUF_STATE, opt ? USE_OPTIMIZER : USE_WEIGHTS, t);
        c->p->buffers.at[id.i].name = take_name(c, n, ATTR_name);
        c->p->buffers.at[id.i].role = take_name(c, n, ATTR_role);
        c->p->buffers.at[id.i].fill = attr_float(g, n, ATTR_fill);
        take_init(c, n, &c->p->buffers.at[id.i]);
        return id;
    }
    default:
        id = buffer_add(c, BUF_CONST, USE_CONSTANTS, t);
        take_init(c, n, &c->p->buffers.at[id.i]);
        return id;
    }
}

/* An optimizer reads v, perhaps widened and scaled. */
static bool is_gradient(const struct cg *c, val_id v, int depth) {
    for (uint32_t u = c->uses.first[v.i]; u < c->uses.first[v.i + 1]; u++) {
        node_id user = c->uses.user[u];
        enum op op = (enum op)graph_node(c->g, user)->op;
        if (op == OP_adam || op == OP_adam8 || op == OP_sgd) return true;
        if (depth > 0 && (op == OP_cast || op == OP_mul) &&
            is_gradient(c, node_out(c->g, user, 0), depth - 1))
            return true;
    }
    return false;
}

/* Results of the backward part that feed optimizers are gradients, the rest activations. */
static enum buffer_use temp_use(const struct cg *c, val_id v) {
    if (c->loss_node == 0 || val_def(c->g, v).i <= c->loss_node) return USE_ACTIVATIONS;
    return is_gradient(c, v, 2) ? USE_GRADIENTS : USE_ACTIVATIONS;
}

void place_value(struct cg *c, val_id v) {
    struct place *p = &c->vals[v.i].place;
    if (p->set && p->buffer.i != 0) return;
    if (!p->set) {
        int64_t dims[RANK_MAX];
        dims_strides(dims, type_dims(val_type(c->g, v), dims), p->strides);
        p->set = true;
    }
    p->buffer = node_class(c->g, val_def(c->g, v)) == CLASS_SOURCE
                    ? source_buffer(c, v)
                    : buffer_add(c, BUF_TEMP, temp_use(c, v), val_type(c->g, v));
}

struct plan_view result_view(struct cg *c, val_id v) {
    place_value(c, v);
    const struct place *p = &c->vals[v.i].place;
    struct plan_view r = {.buffer = p->buffer, .dtype = val_type(c->g, v)->dtype, .offset = p->off};
    r.rank = type_dims(val_type(c->g, v), r.dims);
    for (int d = 0; d < r.rank; d++) r.strides[d] = p->strides[d];
    return r;
}

/* v = x * scale, x of v's type and one element to scale by. */
static bool scaled(const struct graph *g, val_id v, val_id *x, val_id *scale) {
    if (val_op(g, v) != OP_mul || val_type(g, v)->dtype != DT_f32) return false;
    for (int k = 0; k < 2; k++) {
        *x = node_in(g, val_def(g, v), k), *scale = node_in(g, val_def(g, v), 1 - k);
        if (type_equal(val_type(g, *x), val_type(g, v)) && type_count(val_type(g, *scale)) == 1)
            return true;
    }
    return false;
}

val_id optimizer_gradient(const struct graph *g, node_id n, val_id *scale) {
    enum op op = (enum op)graph_node(g, n)->op;
    *scale = VAL_NONE;
    if (op != OP_sgd && op != OP_adam && op != OP_adam8) return VAL_NONE;
    val_id v = node_in(g, n, 1), x, factor;
    if (scaled(g, v, &x, &factor)) v = x, *scale = factor;
    if (val_op(g, v) == OP_cast && val_type(g, v)->dtype == DT_f32) {
        x = node_in(g, val_def(g, v), 0);
        enum dtype t = val_type(g, x)->dtype;
        if (t == DT_bf16 || t == DT_f16) v = x;
    }
    return v;
}

/* ---- launches ------------------------------------------------------------------------------ */
struct plan_launch *launch_add(struct cg *c, enum launch_kind kind, const struct plan_view *in,
                               uint32_t nin, const struct plan_view *out, uint32_t nout,
                               str_id origin) {
    struct plan *p = c->p;
    struct plan_launch l = {.kind = kind, .nin = nin, .nout = nout, .origin = origin};
    l.in = ARENA_ARRAY(&p->arena, struct plan_view, nin);
    l.out = ARENA_ARRAY(&p->arena, struct plan_view, nout);
    if (nin) memcpy(l.in, in, nin * sizeof *in);
    if (nout) memcpy(l.out, out, nout * sizeof *out);
    vec_push(&p->arena, &p->launches, l);
    return &p->launches.at[p->launches.n - 1];
}

/* All attributes of the op, defaults filled in, except shapes, which the views have. */
void launch_attrs(struct cg *c, struct plan_launch *l, node_id n) {
    struct graph *g = c->g;
    const struct op_attr *spec;
    int count = op_attrs(g, (enum op)graph_node(g, n)->op, &spec);
    struct attr *at = ARENA_ARRAY(&c->p->arena, struct attr, (size_t)count);
    int used = 0;
    for (int k = 0; k < count; k++) {
        enum attr_key key = spec[k].value.key;
        struct attr a = {.key = key};
        switch (attr_kind(key)) {
        case AK_INT: a.i = attr_int(g, n, key); break;
        case AK_BOOL: a.i = attr_bool(g, n, key); break;
        case AK_FLOAT: a.f = attr_float(g, n, key); break;
        case AK_INTS: {
            const int64_t *list = attr_ints(g, n, key, &a.n);
            int64_t *copy = ARENA_ARRAY(&c->p->arena, int64_t, (size_t)a.n);
            for (int i = 0; i < a.n; i++) copy[i] = list[i];
            a.list = copy;
            break;
        }
        default: continue;
        }
        int i = used++;
        for (; i > 0 && at[i - 1].key > key; i--) at[i] = at[i - 1];
        at[i] = a;
    }
    l->attrs = at;
    l->nattrs = used;
}

str_id unit_origin(struct cg *c, const uint32_t *nodes, uint32_t n) {
    struct buf b;
    const char *seen[8];
    int nseen = 0;
    buf_init(&b, c->scratch);
    for (uint32_t k = 0; k < n && nseen < 8; k++) {
        const char *o = node_origin(c->g, (node_id){nodes[k]});
        bool known = *o == '\0';
        for (int j = 0; j < nseen; j++) known |= strcmp(seen[j], o) == 0;
        if (known) continue;
        if (nseen > 0) buf_puts(&b, "; ");
        buf_puts(&b, o);
        seen[nseen++] = o;
    }
    return nseen ? intern(&c->p->strings, b.at) : (str_id){0};
}

/* A dense copy of v, made once and shared by the launches that need one, whatever shape each gives
 * it. */
static enum status copied_view(struct cg *c, val_id v, str_id origin, struct plan_view *out) {
    val_id from = v;
    while (val_op(c->g, from) == OP_reshape) from = node_in(c->g, val_def(c->g, from), 0);
    struct val_info *info = &c->vals[from.i];
    if (info->copy.i == 0) {
        info->copy = buffer_add(c, BUF_TEMP, temp_use(c, v), val_type(c->g, from));
        struct plan_view dest = buffer_view(c, info->copy);
        TRY(group_copy(c, from, &dest, origin));
    }
    c->vals[v.i].copy = info->copy;
    *out = buffer_view(c, info->copy);
    out->rank = type_dims(val_type(c->g, v), out->dims);
    dims_strides(out->dims, out->rank, out->strides);
    return ST_OK;
}

bool copy_stuck(struct cg *c, val_id stuck, enum status *status) {
    struct plan_view unused;
    if (stuck.i == 0 || c->vals[stuck.i].use_copy) return false;
    node_id n = val_def(c->g, stuck);
    *status = copied_view(c, stuck, unit_origin(c, &n.i, 1), &unused);
    c->vals[stuck.i].use_copy = true;
    return *status == ST_OK;
}

enum status value_view(struct cg *c, node_id n, val_id v, enum need need, struct plan_view *out) {
    val_id base = view_base(c, v);
    if (node_class(c->g, val_def(c->g, base)) == CLASS_SOURCE ||
        c->nodes[val_def(c->g, base).i].unit != 0)
        place_value(c, base);
    if (view_of(c, v, out) && need_met(need, out)) return ST_OK;
    return copied_view(c, v, unit_origin(c, &n.i, 1), out);
}

enum status operand_view(struct cg *c, node_id n, int k, struct plan_view *out) {
    return value_view(c, n, node_in(c->g, n, k), operand_need(c->g, n, k), out);
}

enum status launch_node(struct cg *c, node_id n, enum launch_kind kind) {
    const struct node *node = graph_node(c->g, n);
    uint32_t nin = node->nin, nout = node->nout;
    struct plan_view *in = ARENA_ARRAY(c->scratch, struct plan_view, nin + 1);
    struct plan_view *out = ARENA_ARRAY(c->scratch, struct plan_view, nout);
    bool empty = true;
    val_id scale, gradient = optimizer_gradient(c->g, n, &scale);
    for (uint32_t k = 0; k < nin; k++)
        if (!gradient.i || k != 1) TRY(operand_view(c, n, (int)k, &in[k]));
    for (uint32_t k = 0; k < nout; k++) {
        out[k] = result_view(c, node_out(c->g, n, (int)k));
        empty &= view_count(&out[k]) == 0;
    }
    if (empty) return ST_OK;
    if (gradient.i) TRY(value_view(c, n, gradient, NEED_DENSE, &in[1]));
    if (scale.i) {
        TRY(value_view(c, n, scale, NEED_DENSE, &in[nin]));
        in[nin++].rank = 0;
    }
    struct plan_launch *l = launch_add(c, kind, in, nin, out, nout, unit_origin(c, &n.i, 1));
    launch_attrs(c, l, n);
    l->cost = node_cost(c->g, n);
    return ST_OK;
}

static enum status launch_same(struct cg *c, node_id n) {
    switch ((enum op)graph_node(c->g, n)->op) {
    case OP_conv: return launch_node(c, n, LAUNCH_conv);
    case OP_conv_input_grad: return launch_node(c, n, LAUNCH_conv_input_grad);
    case OP_conv_weight_grad: return launch_node(c, n, LAUNCH_conv_weight_grad);
    case OP_max_pool: return launch_node(c, n, LAUNCH_max_pool);
    case OP_argmax: return launch_node(c, n, LAUNCH_argmax);
    case OP_cumsum: return launch_node(c, n, LAUNCH_cumsum);
    case OP_gather: return launch_node(c, n, LAUNCH_gather);
    case OP_gather_elements: return launch_node(c, n, LAUNCH_gather_elements);
    case OP_scatter_rows: return launch_node(c, n, LAUNCH_scatter_rows);
    case OP_scatter_elements: return launch_node(c, n, LAUNCH_scatter_elements);
    case OP_cross_entropy: return launch_node(c, n, LAUNCH_cross_entropy);
    case OP_sum_squares: return launch_node(c, n, LAUNCH_sum_squares);
    case OP_sgd: return launch_node(c, n, LAUNCH_sgd);
    case OP_adam: return launch_node(c, n, LAUNCH_adam);
    default: return ST_INTERNAL;
    }
}
const struct lowering lower_conv = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_pool = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_argmax = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_cumsum = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_gather = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_scatter = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_cross_entropy = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_sum_squares = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_optimizer = {.cls = CLASS_LAUNCH, .launch = launch_same};
const struct lowering lower_adam8 = {.cls = CLASS_LAUNCH, .launch = launch_adam8};

static enum status launch_gradient(struct cg *c, node_id n) {
    return diag_error(c->g->ctx, ST_UNSUPPORTED, node_origin(c->g, n),
                      "a gradient cannot be planned; run pass 'gradient' before");
}
const struct lowering lower_gradient = {.cls = CLASS_LAUNCH, .launch = launch_gradient};

/* The mask is repeated to [B,H,T,S] by strides of 0. */
static enum status launch_attention(struct cg *c, node_id n) {
    bool grad = graph_node(c->g, n)->op == OP_attention_grad;
    int mask = grad ? 6 : 3;
    TRY(launch_node(c, n, grad ? LAUNCH_attention_grad : LAUNCH_attention));
    struct plan_launch *l = &c->p->launches.at[c->p->launches.n - 1];
    if (graph_node(c->g, n)->nin <= mask || l->nin <= (uint32_t)mask) return ST_OK;
    struct plan_view m = l->in[mask], wide = m;
    int64_t want[4] = {l->in[0].dims[0], l->in[0].dims[1], l->in[0].dims[2], l->in[1].dims[2]};
    wide.rank = 4;
    for (int d = 0; d < 4; d++) {
        int from = d - (4 - m.rank);
        wide.dims[d] = want[d];
        wide.strides[d] = from < 0 || (m.dims[from] == 1 && want[d] != 1) ? 0 : m.strides[from];
    }
    l->in[mask] = wide;
    return ST_OK;
}
const struct lowering lower_attention = {.cls = CLASS_LAUNCH, .launch = launch_attention};

/* ---- concat, pad --------------------------------------------------------------------------- */
static bool same_place(const struct plan_view *a, const struct plan_view *b) {
    if (a->buffer.i != b->buffer.i || a->offset != b->offset) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d] != 1 && a->strides[d] != b->strides[d]) return false;
    return true;
}

static enum status launch_concat(struct cg *c, node_id n) {
    val_id y = node_out(c->g, n, 0);
    int axis = (int)attr_int(c->g, n, ATTR_axis);
    str_id origin = unit_origin(c, &n.i, 1);
    struct plan_view whole = result_view(c, y);
    for (int k = 0; k < graph_node(c->g, n)->nin; k++) {
        val_id w = node_in(c->g, n, k);
        struct plan_view part = whole, have;
        part.dims[axis] = val_type(c->g, w)->dims[axis];
        if (!view_of(c, w, &have) || !same_place(&have, &part))
            TRY(group_copy(c, w, &part, origin));
        whole.offset += part.dims[axis] * whole.strides[axis];
    }
    return ST_OK;
}
const struct lowering lower_concat = {.cls = CLASS_CONCAT, .launch = launch_concat};

static enum status launch_pad(struct cg *c, node_id n) {
    int k;
    val_id y = node_out(c->g, n, 0), x = node_in(c->g, n, 0);
    const int64_t *low = attr_ints(c->g, n, ATTR_low, &k);
    const int64_t *interior = attr_ints(c->g, n, ATTR_interior, &k);
    str_id origin = unit_origin(c, &n.i, 1);
    struct plan_view whole = result_view(c, y), part = whole;
    part.rank = type_dims(val_type(c->g, x), part.dims);
    for (int d = 0; d < part.rank; d++) {
        part.offset += low[d] * whole.strides[d];
        part.strides[d] = whole.strides[d] * (interior[d] + 1);
    }
    if (view_count(&part) != view_count(&whole))
        TRY(group_fill(c, attr_float(c->g, n, ATTR_value), &whole, origin));
    return group_copy(c, x, &part, origin);
}
const struct lowering lower_pad = {.cls = CLASS_PAD, .launch = launch_pad};
