// SPDX-License-Identifier: Apache-2.0
/* fold_products.c - what follows a product and costs little in its launch: a scale, a bias, a
 * residual or another product to add to, a wider or narrower result, GELU. plan.h has the list.
 * Decides only; the launch is written by lower_matmul.c. */
#include "codegen/internal.h"
#include <string.h>

enum { CHAIN_MAX = 64 }; /* sums of products that are looked through */

struct matcher {
    struct cg *c;
    enum dtype result; /* element type of the whole */
    int depth;
};

static bool low(enum dtype t) {
    return t == DT_bf16 || t == DT_f16;
}

static uint32_t use_count(const struct cg *c, val_id v) {
    return c->uses.first[v.i + 1] - c->uses.first[v.i];
}

static bool used_once(const struct cg *c, val_id v) {
    return use_count(c, v) == 1 && !c->uses.live_out[v.i] && !c->vals[v.i].need;
}

/* Uses of the number v, whatever type it is read in. */
static uint32_t reader_count(const struct cg *c, val_id v) {
    uint32_t n = 0;
    for (uint32_t u = c->uses.first[v.i]; u < c->uses.first[v.i + 1]; u++) {
        node_id user = c->uses.user[u];
        bool cast = graph_node(c->g, user)->op == OP_cast;
        n += cast ? use_count(c, node_out(c->g, user, 0)) : 1;
    }
    return n;
}

/* What v is before it was widened, if that has the type of the result. */
static val_id narrow_source(const struct matcher *m, val_id v) {
    struct graph *g = m->c->g;
    if (val_op(g, v) != OP_cast || val_type(g, v)->dtype != DT_f32) return v;
    val_id x = node_in(g, val_def(g, v), 0);
    return val_type(g, x)->dtype == m->result ? x : v;
}

static bool match(struct matcher *m, val_id v, struct product *p);

/* Whether v is in memory whatever becomes of the product. */
static bool kept(struct matcher *m, val_id v) {
    struct cg *c = m->c;
    val_id base = view_base(c, v);
    enum node_class cls = node_class(c->g, val_def(c->g, base));
    if (cls == CLASS_SOURCE || cls == CLASS_LAUNCH || c->vals[base.i].need) return true;
    if (reader_count(c, base) >= 2) return true;
    struct matcher inner = {.c = c, .result = val_type(c->g, v)->dtype, .depth = m->depth + 1};
    struct product unused = {.result = v};
    return inner.depth < CHAIN_MAX && match(&inner, v, &unused);
}

/* One row, repeated: [N], [1,N], .. for a result whose last axis has N > 1 elements. */
static bool is_row(const struct graph *g, val_id b, const struct type *t) {
    const struct type *r = val_type(g, b);
    dim n = t->dims[t->rank - 1];
    return r->rank >= 1 && r->rank <= t->rank && n != 1 && r->dims[r->rank - 1] == n &&
           type_count(r) == n;
}

/* Repeated elements would have to be written out for the launch. */
static bool repeats(const struct graph *g, val_id v) {
    for (; op_info(val_op(g, v))->traits & VIEW; v = node_in(g, val_def(g, v), 0))
        if (val_op(g, v) == OP_expand) return true;
    return false;
}

static bool take_addend(struct matcher *m, val_id o, const struct type *t, struct product *p) {
    struct graph *g = m->c->g;
    val_id x = narrow_source(m, o);
    if (val_type(g, x)->dtype != m->result || repeats(g, x)) return false;
    if (!p->bias.i && is_row(g, x, t)) {
        p->bias = x;
        return true;
    }
    struct type same = *t;
    same.dtype = m->result;
    if (p->residual.i || !type_equal(val_type(g, x), &same) || !kept(m, x)) return false;
    p->residual = x;
    return true;
}

static bool match_add(struct matcher *m, val_id v, struct product *p) {
    struct graph *g = m->c->g;
    struct product found[2];
    bool ok[2];
    for (int k = 0; k < 2; k++) {
        val_id x = node_in(g, val_def(g, v), k), o = node_in(g, val_def(g, v), 1 - k);
        found[k] = *p;
        ok[k] = type_equal(val_type(g, x), val_type(g, v)) && x.i != o.i && used_once(m->c, x) &&
                take_addend(m, o, val_type(g, v), &found[k]) && match(m, x, &found[k]);
    }
    if (!ok[0] && !ok[1]) return false;
    /* Of two products the later one adds. */
    *p = found[ok[0] && ok[1] ? found[1].nodes[0] > found[0].nodes[0] : ok[1]];
    return true;
}

static bool match_scale(struct matcher *m, val_id v, struct product *p) {
    struct graph *g = m->c->g;
    for (int k = 0; k < 2 && !p->scaled; k++) {
        val_id x = node_in(g, val_def(g, v), k), o = node_in(g, val_def(g, v), 1 - k);
        double scale;
        int64_t whole;
        if (!type_equal(val_type(g, x), val_type(g, v)) || !used_once(m->c, x)) continue;
        if (!scalar_const(g, o, &scale, &whole) || scale == 0) continue; /* 0 * NaN */
        p->scaled = true;
        p->scale = scale;
        return match(m, x, p);
    }
    return false;
}

static bool match_cast(struct matcher *m, val_id v, struct product *p) {
    struct graph *g = m->c->g;
    val_id x = node_in(g, val_def(g, v), 0);
    enum dtype to = val_type(g, v)->dtype, from = val_type(g, x)->dtype;
    bool widens = low(from) && to == DT_f32, narrows = from == DT_f32 && low(to);
    if (!used_once(m->c, x)) return false;
    if (widens && (m->result == DT_f32 || m->result == from))
        return (val_op(g, x) == OP_matmul || val_op(g, x) == OP_scaled_matmul) && match(m, x, p);
    return narrows && v.i == p->result.i && match(m, x, p);
}

/* Read the nodes above v, last first, down to a matmul whose operands suit the result. */
static bool match(struct matcher *m, val_id v, struct product *p) {
    struct graph *g = m->c->g;
    node_id n = val_def(g, v);
    bool ok = false;
    if (m->c->nodes[n.i].product) return false;
    switch (val_op(g, v)) {
    case OP_scaled_matmul:
    case OP_matmul: {
        enum dtype t = val_type(g, v)->dtype;
        const struct type *a = val_type(g, node_in(g, n, 0));
        bool ta = val_op(g, v) == OP_matmul && attr_bool(g, n, ATTR_trans_a);
        dim k = a->dims[a->rank - (ta ? 2 : 1)];
        ok = dtype_is_float(t) && (t == m->result || (low(t) && m->result == DT_f32)) && k > 0 &&
             type_count(val_type(g, v)) > 0;
        /* Libraries add no bias of f32 to products of codes. */
        ok = ok && !(val_op(g, v) == OP_scaled_matmul && p->bias.i && m->result == DT_f32);
        break;
    }
    case OP_add: ok = !p->scaled && match_add(m, v, p); break;
    case OP_mul: ok = match_scale(m, v, p); break;
    case OP_cast: ok = match_cast(m, v, p); break;
    default: break;
    }
    if (ok) p->nodes[p->n++] = n.i; /* at most cast, add, add, mul, cast, matmul */
    return ok;
}

/* Whether v is a product, or a sum that its last product can add up. */
static bool is_product(struct cg *c, val_id v) {
    struct matcher m = {.c = c, .result = val_type(c->g, v)->dtype};
    struct product unused = {.result = v};
    return match(&m, v, &unused);
}

/* Whether the launch is the better place for what was matched (plan.h says when). */
static bool worthwhile(struct cg *c, const struct product *p) {
    bool need = c->vals[p->result.i].need;
    if (p->residual.i) return need || reader_count(c, p->result) >= 2 || is_product(c, p->residual);
    if (p->bias.i) return need;
    bool wider = val_type(c->g, p->result)->dtype !=
                 val_type(c->g, node_out(c->g, (node_id){p->nodes[0]}, 0))->dtype;
    return p->n > 1 && (!wider || need);
}

/* ---- GELU --------------------------------------------------------------------------------------
 */
/* Sizes for which libraries have products with epilogues. */
static bool takes_epilogue(const struct cg *c, const struct product *p) {
    enum { ELEMS = 8 };
    const struct graph *g = c->g;
    node_id n = {p->nodes[0]};
    const struct type *y = val_type(g, p->result);
    const struct type *a = val_type(g, node_in(g, n, 0)), *b = val_type(g, node_in(g, n, 1));
    if (graph_node(g, n)->op != OP_matmul) return false;
    bool ta = attr_bool(g, n, ATTR_trans_a);
    return low(y->dtype) && val_type(g, node_out(g, n, 0))->dtype == y->dtype && b->rank == 2 &&
           (!ta || a->rank == 2) && y->dims[y->rank - 1] % ELEMS == 0 &&
           a->dims[a->rank - (ta ? 2 : 1)] % ELEMS == 0 && !p->residual.i;
}

/* v = cast(gelu(cast_f32(x))), x a product that nothing else reads. Where x is kept for a backward
 * part, a product that writes both costs more than a group behind it (docs/performance.md). */
static bool match_gelu(struct cg *c, val_id v, struct product *p) {
    struct graph *g = c->g;
    val_id y = node_in(g, val_def(g, v), 0);
    struct matcher m = {.c = c, .result = val_type(g, v)->dtype};
    if (!low(m.result) || val_op(g, y) != OP_gelu || !used_once(c, y) ||
        !attr_bool(g, val_def(g, y), ATTR_approximate))
        return false;
    val_id wide = node_in(g, val_def(g, y), 0), x = narrow_source(&m, wide);
    *p = (struct product){.result = x, .scale = 1.0, .gelu = true};
    if (x.i == wide.i || !used_once(c, x) || !used_once(c, wide)) return false;
    if (!match(&m, x, p) || !takes_epilogue(c, p)) return false;
    p->nodes[p->n++] = val_def(g, wide).i;
    p->nodes[p->n++] = val_def(g, y).i;
    p->nodes[p->n++] = val_def(g, v).i;
    p->result = v;
    return true;
}

/* ---- all ---------------------------------------------------------------------------------------
 */
static void take(struct cg *c, const struct product *p) {
    struct product *whole = ARENA_NEW(c->scratch, struct product);
    *whole = *p;
    for (uint32_t k = 0; k < p->n; k++) c->nodes[p->nodes[k]].product = whole;
    val_id all[] = {p->result, p->bias, p->residual};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        if (all[k].i) c->vals[view_base(c, all[k]).i].need = true;
}

void fold_products(struct cg *c) {
    struct graph *g = c->g;
    for (uint32_t i = 1; i < g->nodes.n && !c->o->no_fusion; i++) {
        struct product p;
        if (graph_node(g, (node_id){i})->op != OP_cast) continue;
        val_id v = node_out(g, (node_id){i}, 0);
        if (match_gelu(c, v, &p)) take(c, &p);
    }
    /* Later values first: what a launch adds has to be in memory, which decides for earlier ones.
     */
    for (uint32_t i = g->nodes.n; i-- > 1 && !c->o->no_fusion;) {
        enum op op = (enum op)graph_node(g, (node_id){i})->op;
        if (op != OP_add && op != OP_mul && op != OP_cast) continue;
        val_id v = node_out(g, (node_id){i}, 0);
        struct matcher m = {.c = c, .result = val_type(g, v)->dtype};
        struct product p = {.result = v, .scale = 1.0};
        if (val_type(g, v)->rank < 2 || !match(&m, v, &p) || !worthwhile(c, &p)) continue;
        take(c, &p);
    }
}
