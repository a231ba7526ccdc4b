// SPDX-License-Identifier: Apache-2.0
/* build.c - plan_build: from a static graph to a plan. Decides fusion and layouts first (fuse.c,
 * layout.c), then emits units in dependency order, then applies updates, shares memory and assigns
 * offsets. */
#include "codegen/internal.h"
#include <string.h>

/* ---- checks -------------------------------------------------------------------------------- */
static int64_t no_value(void *user, const char *symbol) {
    struct buf *b = user;
    if (b->n == 0) buf_puts(b, symbol);
    return -1;
}

static enum status check_static(struct cg *c) {
    struct graph *g = c->g;
    for (uint32_t v = 1; v < g->values.n; v++) {
        const struct type *t = val_type(g, (val_id){v});
        if (type_static(t)) {
            if (type_bytes(t) >= 0) continue;
            return diag_error(c->ctx, ST_SHAPE, node_origin(g, val_def(g, (val_id){v})),
                              "a tensor is too large to plan");
        }
        struct buf symbol;
        buf_init(&symbol, c->scratch);
        for (int d = 0; d < t->rank; d++)
            if (!dim_known(t->dims[d])) (void)dim_bind(g->dims, t->dims[d], no_value, &symbol);
        return diag_error(c->ctx, ST_SHAPE, node_origin(g, val_def(g, (val_id){v})),
                          "expected known sizes, found the symbol '%s'; give it a value",
                          symbol.n ? symbol.at : "?");
    }
    return ST_OK;
}

/* ---- order --------------------------------------------------------------------------------- */
struct edge {
    uint32_t to, next;
};
struct order {
    struct cg *c;
    uint32_t *waits; /* units that have to come first */
    uint32_t *head;  /* edges: a list per producing unit */
    uint32_t *heap;
    uint32_t nheap;
};

static bool earlier(const struct order *o, uint32_t a, uint32_t b) {
    const struct unit *u = o->c->units.at;
    return u[a].key != u[b].key ? u[a].key < u[b].key : a < b;
}

static void heap_push(struct order *o, uint32_t unit) {
    uint32_t k = o->nheap++;
    for (; k > 0 && earlier(o, unit, o->heap[(k - 1) / 2]); k = (k - 1) / 2)
        o->heap[k] = o->heap[(k - 1) / 2];
    o->heap[k] = unit;
}

static uint32_t heap_pop(struct order *o) {
    uint32_t top = o->heap[0], last = o->heap[--o->nheap], k = 0;
    for (;;) {
        uint32_t child = 2 * k + 1;
        if (child >= o->nheap) break;
        if (child + 1 < o->nheap && earlier(o, o->heap[child + 1], o->heap[child])) child++;
        if (!earlier(o, o->heap[child], last)) break;
        o->heap[k] = o->heap[child];
        k = child;
    }
    o->heap[k] = last;
    return top;
}

/* The distinct units that unit u waits for. */
static void find_sources(struct cg *c, uint32_t unit, struct walk *w) {
    const struct unit *u = &c->units.at[unit];
    w->units.n = 0;
    c->stamp++;
    if (u->kind == UNIT_OUTPUT) {
        val_id v = graph_resolve(c->g, c->g->outputs.at[u->output].value);
        node_id def = val_def(c->g, v);
        if (c->nodes[def.i].unit)
            vec_push(c->scratch, &w->units, c->nodes[def.i].unit);
        else
            unit_sources(w, def);
    }
    for (uint32_t k = 0; k < u->nodes.n; k++) unit_sources(w, (node_id){u->nodes.at[k]});
}

static uint32_t *order_units(struct cg *c, uint32_t *count) {
    uint32_t n = c->units.n, done = 0;
    uint32_t *result = ARENA_ARRAY(c->scratch, uint32_t, n);
    struct order o = {.c = c};
    o.waits = ARENA_ARRAY(c->scratch, uint32_t, n);
    o.heap = ARENA_ARRAY(c->scratch, uint32_t, n);
    o.head = ARENA_ARRAY(c->scratch, uint32_t, n);
    uint32_t *seen = ARENA_ARRAY(c->scratch, uint32_t, n);
    VEC(struct edge) edges = {0};
    vec_push(c->scratch, &edges, (struct edge){0, 0});
    struct walk w = {.c = c};
    uint32_t live = 0;
    for (uint32_t u = 1; u < n; u++) {
        if (c->units.at[u].dead) continue;
        live++;
        find_sources(c, u, &w);
        for (uint32_t k = 0; k < w.units.n; k++) {
            uint32_t from = w.units.at[k];
            if (from == u || seen[from] == u) continue;
            seen[from] = u;
            o.waits[u]++;
            vec_push(c->scratch, &edges, (struct edge){u, o.head[from]});
            o.head[from] = edges.n - 1;
        }
        if (o.waits[u] == 0) heap_push(&o, u);
    }
    while (o.nheap > 0) {
        uint32_t u = heap_pop(&o);
        result[done++] = u;
        for (uint32_t k = o.head[u]; k != 0; k = edges.at[k].next)
            if (--o.waits[edges.at[k].to] == 0) heap_push(&o, edges.at[k].to);
    }
    CHECK(c->ctx, done == live);
    *count = done;
    return result;
}

/* ---- emission ------------------------------------------------------------------------------ */
static enum status emit_output(struct cg *c, uint32_t index) {
    struct graph *g = c->g;
    val_id v = graph_resolve(g, g->outputs.at[index].value);
    buf_id b = buffer_add(c, BUF_OUTPUT, USE_IO, val_type(g, v));
    c->p->buffers.at[b.i].name =
        intern(&c->p->strings, interned(&g->strings, g->outputs.at[index].name));
    struct plan_view dest = buffer_view(c, b);
    return group_copy(c, v, &dest, (str_id){0});
}

static void add_output_units(struct cg *c) {
    struct graph *g = c->g;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        val_id v = graph_resolve(g, g->outputs.at[i].value);
        if (c->vals[v.i].output == (int32_t)i) continue;
        struct unit u = {.kind = UNIT_OUTPUT, .output = i, .key = val_def(g, v).i};
        vec_push(c->scratch, &c->units, u);
    }
}

static enum status emit_units(struct cg *c) {
    uint32_t n;
    const uint32_t *order = order_units(c, &n);
    for (uint32_t k = 0; k < n; k++) {
        const struct unit *u = &c->units.at[order[k]];
        node_id node = {u->nodes.n ? u->nodes.at[0] : 0};
        switch (u->kind) {
        case UNIT_GROUP: TRY(group_emit(c, order[k])); break;
        case UNIT_NODE: TRY(node_lowering(c->g, node)->launch(c, node)); break;
        default: TRY(emit_output(c, u->output)); break;
        }
    }
    return ST_OK;
}

static enum status build(struct cg *c) {
    struct graph *g = c->g;
    TRY(check_static(c));
    for (uint32_t i = 1; i < g->nodes.n; i++) { /* the interface exists whether used or not */
        enum op op = (enum op)graph_node(g, (node_id){i})->op;
        if (op == OP_input || op == OP_param || op == OP_state)
            place_value(c, node_out(g, (node_id){i}, 0));
    }
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (strcmp(interned(&g->strings, g->outputs.at[i].name), "loss") == 0)
            c->loss_node = val_def(g, graph_resolve(g, g->outputs.at[i].value)).i;
    fuse(c);
    choose_places(c);
    add_output_units(c);
    TRY(emit_units(c));
    TRY(apply_updates(c));
    if (fuses_as_gpu(c)) fold_transposes(c);
    find_lifetimes(c->p);
    if (!c->o->no_fusion) {
        overwrite_parts(c);
        share_in_place(c);
        join_casts(c);
    }
    if (c->p->cuda_arch) TRY(plan_emit_cuda(c->p));
    add_workspaces(c->p);
    TRY(plan_memory(c->p, c->o->no_fusion));
    return plan_verify(c->p, "codegen");
}

enum status plan_build(struct graph *g, const struct codegen_options *o, struct plan **out) {
    struct ctx *x = g->ctx;
    jmp_buf *const outer = x->landing;
    jmp_buf here;
    struct arena *const scratch = ctx_alloc(x, sizeof *scratch);
    arena_init(scratch, x);
    struct plan *volatile p = NULL;
    if (setjmp(here)) {
        x->landing = outer;
        plan_destroy(p);
        arena_reset(scratch);
        ctx_free(x, scratch);
        longjmp(*outer, 1);
    }
    if (outer) x->landing = &here;
    p = plan_create(x, interned(&g->strings, g->name));
    p->threads = o->threads > 0 ? o->threads : 1;
    p->cuda_arch = o->cuda_arch;
    expand_quantize(g, scratch);
    struct cg c = {.ctx = x, .g = g, .p = p, .scratch = scratch, .o = o};
    c.vals = ARENA_ARRAY(scratch, struct val_info, g->values.n);
    c.nodes = ARENA_ARRAY(scratch, struct node_info, g->nodes.n);
    c.uses = uses_build(g, scratch);
    for (uint32_t i = 0; i < g->values.n; i++) c.vals[i].output = -1;
    enum status s = build(&c);
    x->landing = outer;
    arena_reset(scratch);
    ctx_free(x, scratch);
    if (s != ST_OK) plan_destroy(p);
    *out = s == ST_OK ? p : NULL;
    return s;
}
