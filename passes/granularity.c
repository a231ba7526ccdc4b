// SPDX-License-Identifier: Apache-2.0
/* granularity.c - products with a parameter, and their gradients, on 8-bit operands: which
 * products, what shares a scale, one copy of codes for all that read the same tensor.
 *
 * before (x, dy in bf16, w of an f32 parameter):
 *   %y  = matmul(%x, %w)
 *   %dx = matmul(%dy, %w) {trans_b}
 *   %dw = matmul(%x, %dy) {trans_a}
 * after (recipe fp8):
 *   %qx, %sx = quantize(%x) {format = e4m3}
 *   %qw, %sw = quantize(%w) {format = e4m3}
 *   %y  = scaled_matmul(%qx, transpose(%qw), %sx, %sw)
 *   %qg, %sg = quantize(%dy) {format = e5m2}
 *   %dx = scaled_matmul(%qg, %qw, %sg, %sw)
 *   %dw = scaled_matmul(transpose(%qx), transpose(%qg), %sx, %sg)
 *
 * A product takes part if one operand is a parameter, or if it makes the gradient of one; not the
 * head (whose result the loss reads), unless the recipe says so; not what the recipe names; not
 * with sizes that tensor cores do not take (no multiples of 16). Scales of tensors and of square
 * blocks serve both directions: codes are made once and transposed. Those of rows and of parts of
 * rows are made along the axis that a product sums over, once for each direction.
 *
 * needs   the forward part before output "loss", bf16 casts made by pass precision
 * breaks  every id held outside
 * order   after chunk_loss (which knows matmul only) and before save: what the backward part keeps
 * of an operand are its codes */
#include "passes/granularity.h"
#include <string.h>

enum { ALIGN = 16 }; /* sizes of FP8 products, in elements (CUDA documentation, cuBLASLt) */

const char *product_reason(enum product_kind k) {
    static const char *const names[] = {
        [PRODUCT_LOW] = "",
        [PRODUCT_NO_PARAMETER] = "no operand is a parameter",
        [PRODUCT_NOT_BF16] = "computes in f32",
        [PRODUCT_HEAD] = "the loss reads it (products.head)",
        [PRODUCT_NAMED] = "the recipe keeps it wide",
        [PRODUCT_SIZES] = "sizes that are no multiples of 16",
        [PRODUCT_SHAPE] = "batches of matrices",
    };
    return names[k];
}

/* ---- parameters, gradients, the head ------------------------------------------------------- */
static bool is_move(enum op op) {
    return op == OP_reshape || op == OP_transpose;
}

val_id granularity_root(const struct graph *g, val_id v) {
    while (is_move(val_op(g, v)) || val_op(g, v) == OP_cast || val_op(g, v) == OP_slice)
        v = node_in(g, val_def(g, v), 0);
    return v;
}

static bool is_param(const struct graph *g, val_id v) {
    return val_op(g, granularity_root(g, v)) == OP_param;
}

static void find_loss(struct granularity *x) {
    struct graph *g = x->g;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        if (strcmp(interned(&g->strings, g->outputs.at[k].name), "loss") == 0)
            x->loss = val_def(g, graph_resolve(g, g->outputs.at[k].value)).i;
}

/* What is computed behind the loss or from the score of classes, views of forward values aside. */
static void find_gradients(struct granularity *x) {
    struct graph *g = x->g;
    for (uint32_t i = 1; i < x->nodes; i++) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        bool copies = op_info((enum op)node->op)->traits & VIEW || node->op == OP_cast;
        bool any = i > x->loss && x->loss > 0 && !copies, data = false;
        if (op_info((enum op)node->op)->traits & SOURCE) continue;
        for (int k = 0; k < node->nin; k++) {
            val_id v = node_in(g, n, k);
            any |= x->gradient[v.i] || val_op(g, v) == OP_cross_entropy;
            data |= !is_param(g, v);
        }
        for (int k = 0; k < node->nout; k++) x->gradient[node_out(g, n, k).i] = any && data;
    }
}

static val_id param_named(const struct graph *g, const char *name) {
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_param) continue;
        if (strcmp(attr_str(g, n, ATTR_name), name) == 0) return node_out(g, n, 0);
    }
    return VAL_NONE;
}

/* The parameter that a product's result is the gradient of, by value. */
static void find_updated(struct granularity *x) {
    struct graph *g = x->g;
    for (uint32_t i = 0; i < g->outputs.n; i++) { /* without an optimizer: "grad/NAME" */
        const char *name = interned(&g->strings, g->outputs.at[i].name);
        if (strncmp(name, "grad/", 5) != 0) continue;
        x->updated[graph_resolve(g, g->outputs.at[i].value).i] = param_named(g, name + 5);
    }
    for (uint32_t i = x->nodes; i-- > 1;) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        enum op op = (enum op)node->op;
        bool step = op == OP_adam || op == OP_adam8 || op == OP_sgd;
        x->steps |= step;
        if (step) x->updated[node_in(g, n, 1).i] = node_in(g, n, 0);
        if (node->nout == 0) continue;
        val_id to = x->updated[node_out(g, n, 0).i];
        if (!to.i || !(is_move(op) || (op_info(op)->traits & EW))) continue;
        for (int k = 0; k < node->nin; k++)
            if (type_count(val_type(g, node_in(g, n, k))) == type_count(val_type(g, to)))
                x->updated[node_in(g, n, k).i] = to;
    }
}

/* Parameters of products that the loss or another output reads with no product between. */
static void find_heads(struct granularity *x) {
    struct graph *g = x->g;
    bool *reaches = ARENA_ARRAY(x->scratch, bool, g->values.n);
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        const char *name = interned(&g->strings, g->outputs.at[i].name);
        val_id v = graph_resolve(g, g->outputs.at[i].value);
        if (strncmp(name, "grad_norm", 9) != 0 && strncmp(name, "grad/", 5) != 0)
            reaches[v.i] = true; /* of the model, or the loss */
    }
    for (uint32_t i = x->nodes; i-- > 1;) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        enum op op = (enum op)node->op;
        bool here = op == OP_cross_entropy;
        for (int k = 0; k < node->nout; k++) here |= reaches[node_out(g, n, k).i];
        if (!here) continue;
        if (op == OP_matmul) {
            for (int k = 0; k < 2; k++)
                if (is_param(g, node_in(g, n, k)))
                    x->head[granularity_root(g, node_in(g, n, k)).i] = true;
            continue;
        }
        if (op == OP_attention || op == OP_conv) continue;
        for (int k = 0; k < node->nin; k++) reaches[node_in(g, n, k).i] = true;
    }
}

/* Whether a product sums over the parameter's first axis (1) or its last (0), from its operand v;
 * -1: v is not the whole parameter. */
static int summed_first(const struct graph *g, val_id v, bool last_but_one) {
    int first = last_but_one;
    for (; val_op(g, v) != OP_param; v = node_in(g, val_def(g, v), 0)) {
        int rank;
        if (val_op(g, v) == OP_cast) continue;
        if (val_op(g, v) != OP_transpose) return -1;
        const int64_t *perm = attr_ints(g, val_def(g, v), ATTR_perm, &rank);
        if (rank != 2) return -1;
        first ^= perm[0] == 1;
    }
    return first;
}

/* Which products give scores, and the gradients of scores that are not behind the loss, because the
 * head goes by chunks of rows: what a later product multiplies the head's parameter with along its
 * other axis. */
static void find_head_gradients(struct granularity *x) {
    struct graph *g = x->g;
    int *axis = ARENA_ARRAY(x->scratch, int, g->values.n); /* by parameter: 1 + the first one's */
    for (uint32_t i = 1; i < x->nodes; i++) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        bool moves = op_info((enum op)node->op)->traits & VIEW || node->op == OP_cast;
        if (moves && x->gradient[node_in(g, n, 0).i]) x->gradient[node_out(g, n, 0).i] = true;
        if (node->op != OP_matmul) continue;
        for (int k = 0; k < 2; k++) {
            val_id param = granularity_root(g, node_in(g, n, k)), other = node_in(g, n, 1 - k);
            if (val_op(g, param) != OP_param || !x->head[param.i]) continue;
            bool last_but_one = k ? !attr_bool(g, n, ATTR_trans_b) : attr_bool(g, n, ATTR_trans_a);
            int first = summed_first(g, node_in(g, n, k), last_but_one);
            if (first >= 0 && !axis[param.i]) axis[param.i] = 1 + first;
            x->scores[i] = first < 0 || axis[param.i] == 1 + first;
            if (x->scores[i] || is_param(g, other)) continue;
            for (val_id v = other;; v = node_in(g, val_def(g, v), 0)) {
                x->gradient[v.i] = true;
                if (!is_move(val_op(g, v))) break;
            }
        }
    }
}

/* The parameter of a product: an operand, or what its result is the gradient of. */
static val_id parameter_of(const struct granularity *x, node_id n) {
    struct graph *g = x->g;
    for (int k = 0; k < 2; k++)
        if (is_param(g, node_in(g, n, k))) return granularity_root(g, node_in(g, n, k));
    return x->updated[node_out(g, n, 0).i];
}

/* ---- which products ------------------------------------------------------------------------ */
static bool fits(dim n) {
    return dim_known(n) && n > 0 && n % ALIGN == 0;
}

enum product_kind product_kind(const struct granularity *x, node_id n,
                               struct recipe_products *how) {
    struct graph *g = x->g;
    const struct type *a = val_type(g, node_in(g, n, 0)), *b = val_type(g, node_in(g, n, 1)),
                      *y = val_type(g, node_out(g, n, 0));
    val_id param = parameter_of(x, n);
    *how = recipe_products_of(x->r, node_origin(g, n));
    if (!param.i) return PRODUCT_NO_PARAMETER;
    if (a->dtype != DT_bf16) return PRODUCT_NOT_BF16;
    enum head_products part = x->scores[n.i] ? HEAD_SCORES : HEAD_GRADIENTS;
    if (x->head[param.i] && x->r->head != HEAD_LOW && x->r->head != part) return PRODUCT_HEAD;
    if (!how->low) return PRODUCT_NAMED;
    if (b->rank != 2 || (attr_bool(g, n, ATTR_trans_a) && a->rank != 2)) return PRODUCT_SHAPE;
    int64_t rows = 1;
    for (int d = 0; d < y->rank - 1; d++) {
        if (!dim_known(y->dims[d]) || y->dims[d] <= 0) return PRODUCT_SIZES;
        rows *= y->dims[d]; /* of a tensor that exists: no overflow */
    }
    dim k = a->dims[a->rank - (attr_bool(g, n, ATTR_trans_a) ? 2 : 1)];
    return fits(rows) && fits(y->dims[y->rank - 1]) && fits(k) ? PRODUCT_LOW : PRODUCT_SIZES;
}

/* ---- codes --------------------------------------------------------------------------------- */
struct codes { /* of one tensor in one format, by tiles of one shape */
    val_id base, codes, scale;
    struct quant_how how;
    int64_t history;
};
struct turned { /* a tensor with its last axes swapped */
    val_id v, turned;
};
struct viewed { /* `of` rearranged as v is of a tensor */
    val_id v, of, view;
};

static val_id turned(struct granularity *x, val_id v, str_id o) {
    for (uint32_t k = 0; k < x->turns.n; k++)
        if (x->turns.at[k].v.i == v.i) return x->turns.at[k].turned;
    struct turned t = {v, build_swap_last(x->g, v, o)};
    vec_push(x->scratch, &x->turns, t);
    return t.turned;
}

static bool same_how(const struct quant_how *a, const struct quant_how *b) {
    return a->format == b->format && a->scale_type == b->scale_type && a->margin == b->margin &&
           a->tile.whole == b->tile.whole && a->tile.rows == b->tile.rows &&
           a->tile.cols == b->tile.cols;
}

/* Codes and scales of `base`, made once; for the product of origin `o`. */
static struct codes codes_of(struct granularity *x, val_id base, const struct quant_how *how,
                             int64_t history, str_id o) {
    struct graph *g = x->g;
    for (uint32_t k = 0; k < x->made.n; k++) {
        const struct codes *c = &x->made.at[k];
        if (c->base.i == base.i && same_how(&c->how, how) && c->history == history) return *c;
    }
    bool gradient = base.i < x->values && x->gradient[base.i];
    struct delayed d = {VAL_NONE, VAL_NONE};
    if (history) {
        const char *role = gradient ? "gradient" : "input";
        const char *name = arena_printf(x->scratch, "%s.%s.amax", interned(&g->strings, o), role);
        d = delayed_scale(x, name, how, history, gradient, o);
    }
    val_id q = build_quantize(g, base, d.scale, how, o);
    if (history) delayed_next(x, &d, val_at(q, 2), o);
    struct codes c = {base, q, history ? d.scale : val_at(q, 1), *how, history};
    vec_push(x->scratch, &x->made, c);
    return c;
}

/* The view of `of` that v is of `base`, made once. */
static val_id view_again(struct granularity *x, val_id v, val_id base, val_id of) {
    struct graph *g = x->g;
    if (v.i == base.i) return of;
    for (uint32_t k = 0; k < x->views.n; k++)
        if (x->views.at[k].v.i == v.i && x->views.at[k].of.i == of.i) return x->views.at[k].view;
    node_id n = val_def(g, v);
    val_id in = view_again(x, node_in(g, n, 0), base, of);
    if (graph_node(g, n)->op == OP_cast) return in;
    struct viewed made = {v, of, build_like(g, n, &in)};
    vec_push(x->scratch, &x->views, made);
    return made.view;
}

/* The tensor behind views of an operand: an f32 parameter, or a bf16 value. */
static val_id base_of(const struct graph *g, val_id v) {
    val_id b = v;
    while (is_move(val_op(g, b))) b = node_in(g, val_def(g, b), 0);
    if (val_op(g, b) != OP_cast) return b;
    val_id p = node_in(g, val_def(g, b), 0);
    while (is_move(val_op(g, p))) p = node_in(g, val_def(g, p), 0);
    return val_op(g, p) == OP_param ? p : b;
}

/* Whether codes of tiles can be transposed with their scales. */
static bool turns(struct quant_tile t) {
    return t.whole || (t.rows == t.cols && t.rows != 0);
}

static struct quant_tile tile_of(const struct recipe_products *how, bool weight) {
    switch (how->scope) {
    case QUANT_TENSOR: return (struct quant_tile){.whole = true};
    case QUANT_ROW: return (struct quant_tile){false, 1, 0};
    default: return (struct quant_tile){false, weight ? SCALED_TILE : 1, SCALED_TILE};
    }
}

struct operand {
    val_id codes, scale;
};

static struct quant_how how_of(const struct granularity *x, val_id v,
                               const struct recipe_products *p) {
    bool weight = is_param(x->g, v);
    return (struct quant_how){.format = !weight && x->gradient[v.i] ? p->gradients : p->format,
                              .scale_type = p->scale_type,
                              .tile = tile_of(p, weight),
                              .eps = QUANT_EPS,
                              .margin = p->history && !weight ? p->margin : 0};
}

/* Operand v of a product as codes with the summed axis last; `turn`: v has it last but one. */
static struct operand operand_of(struct granularity *x, val_id v, bool turn,
                                 const struct recipe_products *p, str_id o) {
    struct graph *g = x->g;
    struct quant_how how = how_of(x, v, p);
    val_id base = base_of(g, v);
    struct operand r;
    if (how.tile.whole) {
        /* A parameter is there before anything reads it: its scale need not be an older one. */
        int64_t history = is_param(g, v) ? 0 : p->history;
        struct codes c = codes_of(x, base, &how, history, o);
        r = (struct operand){view_again(x, v, base, c.codes), c.scale};
        if (turn) r.codes = turned(x, r.codes, o);
    } else {
        bool later = turn && turns(how.tile); /* the codes, not what they are made of */
        v = view_again(x, v, base, base);     /* of an f32 parameter, not of its cast */
        struct codes c = codes_of(x, turn && !later ? turned(x, v, o) : v, &how, 0, o);
        r = (struct operand){c.codes, c.scale};
        if (later) r = (struct operand){turned(x, r.codes, o), turned(x, r.scale, o)};
    }
    r.scale = build_cast(g, r.scale, DT_f32, o);
    return r;
}

static void rewrite_product(struct granularity *x, node_id n, const struct recipe_products *p) {
    struct graph *g = x->g;
    str_id o = graph_node(g, n)->origin;
    bool ta = attr_bool(g, n, ATTR_trans_a), tb = attr_bool(g, n, ATTR_trans_b);
    enum dtype t = val_type(g, node_out(g, n, 0))->dtype;
    val_id va = node_in(g, n, 0), vb = node_in(g, n, 1);
    struct operand a = operand_of(x, va, ta, p, o), b = operand_of(x, vb, !tb, p, o);
    val_id y = build_scaled_matmul(g, a.codes, b.codes, a.scale, b.scale, t, o);
    graph_forward(g, node_out(g, n, 0), y);
}

/* ---- the pass ------------------------------------------------------------------------------ */
void granularity_find(struct granularity *x, struct graph *g, const struct recipe *r,
                      struct arena *scratch) {
    *x = (struct granularity){
        .g = g, .r = r, .scratch = scratch, .nodes = g->nodes.n, .values = g->values.n};
    x->gradient = ARENA_ARRAY(scratch, bool, g->values.n);
    x->head = ARENA_ARRAY(scratch, bool, g->values.n);
    x->scores = ARENA_ARRAY(scratch, bool, g->nodes.n);
    x->updated = ARENA_ARRAY(scratch, val_id, g->values.n);
    find_loss(x);
    find_gradients(x);
    find_updated(x);
    find_heads(x);
    find_head_gradients(x);
}

/* Codes of rows, or of parts of them, that the backward part needs of a value of the forward part:
 * made beside the value, which then need not be kept. */
static void make_early(struct granularity *x, node_id n, const struct recipe_products *p) {
    struct graph *g = x->g;
    if (p->scope == QUANT_TENSOR || n.i <= x->loss) return;
    str_id o = graph_node(g, n)->origin;
    bool turn[2] = {attr_bool(g, n, ATTR_trans_a), !attr_bool(g, n, ATTR_trans_b)};
    for (int k = 0; k < 2; k++) {
        val_id v = node_in(g, n, k);
        if (is_param(g, v) || x->gradient[v.i]) continue;
        (void)operand_of(x, v, turn[k], p, o);
    }
}

enum status pass_granularity(struct pass_ctx *c, struct graph *g) {
    struct granularity x;
    struct recipe_products how;
    if (!c->recipe || (!c->recipe->products.low && c->recipe->noverrides == 0)) return ST_OK;
    granularity_find(&x, g, c->recipe, c->scratch);
    uint32_t early = x.nodes, early_end = 0;
    for (int rewrite = 0; rewrite < 2; rewrite++) {
        for (uint32_t i = 1; i < x.nodes; i++) {
            node_id n = {i};
            if (graph_node(g, n)->op != OP_matmul) continue;
            if (product_kind(&x, n, &how) != PRODUCT_LOW) continue;
            if (!x.steps) how.history = 0; /* nothing updates states */
            if (rewrite)
                rewrite_product(&x, n, &how);
            else
                make_early(&x, n, &how);
        }
        if (!rewrite) early_end = g->nodes.n;
    }
    graph_settle_early(g, early, early_end);
    return ST_OK;
}
