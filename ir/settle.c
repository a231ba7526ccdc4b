// SPDX-License-Identifier: Apache-2.0
/* settle.c - the one place that edits users, order and ids: graph_settle after a pass, and the use
 * lists that passes build afresh. Everything is linear in the size of the graph and iterative. */
#include "base/diag.h"
#include "ir/internal.h"
#include <string.h>

enum { UNSEEN, OPEN, PLACED };

struct settle {
    struct graph *g;
    uint8_t *live;   /* by node */
    uint8_t *state;  /* by node */
    uint32_t *order; /* the nodes that stay, in their new order */
    uint32_t norder;
    uint32_t *stack, *next_in; /* the walk: nodes and the operand to look at next */
    uint32_t *sources;         /* input, param and state nodes in node order */
    uint32_t nsources, source_at;
    uint32_t *new_value; /* old value -> new value */
};

static bool is_interface(const struct node *n) {
    unsigned traits = op_info((enum op)n->op)->traits;
    return (traits & SOURCE) && (traits & EFFECT);
}

static bool resolve_all(struct graph *g) {
    bool changed = false;
    for (uint32_t v = 1; v < g->values.n; v++) {
        g->forward.at[v] = graph_resolve(g, (val_id){v});
        changed |= g->forward.at[v].i != v;
    }
    for (uint32_t k = 0; changed && k < g->operands.n; k++)
        g->operands.at[k] = g->forward.at[g->operands.at[k].i];
    for (uint32_t k = 0; changed && k < g->outputs.n; k++)
        g->outputs.at[k].value = g->forward.at[g->outputs.at[k].value.i];
    for (uint32_t k = 0; changed && k < g->updates.n; k++) {
        g->updates.at[k].target = g->forward.at[g->updates.at[k].target.i];
        g->updates.at[k].next = g->forward.at[g->updates.at[k].next.i];
    }
    return changed;
}

static void mark(struct settle *s, uint32_t *depth, val_id v) {
    uint32_t n = s->g->values.at[v.i].def.i;
    if (s->live[n]) return;
    s->live[n] = 1;
    s->stack[(*depth)++] = n;
}

static void mark_live(struct settle *s) {
    struct graph *g = s->g;
    uint32_t depth = 0;
    for (uint32_t k = 0; k < g->outputs.n; k++) mark(s, &depth, g->outputs.at[k].value);
    for (uint32_t k = 0; k < g->updates.n; k++) {
        mark(s, &depth, g->updates.at[k].target);
        mark(s, &depth, g->updates.at[k].next);
    }
    for (uint32_t n = 1; n < g->nodes.n; n++) {
        if (!is_interface(&g->nodes.at[n])) continue;
        s->live[n] = 1; /* no operands to follow */
        s->sources[s->nsources++] = n;
    }
    while (depth > 0) {
        const struct node *n = &g->nodes.at[s->stack[--depth]];
        for (uint32_t k = 0; k < n->nin; k++) mark(s, &depth, g->operands.at[n->first_in + k]);
    }
}

/* Place n. An interface node pulls the earlier ones along, so that their order never changes. */
static void place(struct settle *s, uint32_t n) {
    if (!is_interface(&s->g->nodes.at[n])) {
        s->state[n] = PLACED;
        s->order[s->norder++] = n;
        return;
    }
    while (s->state[n] != PLACED) {
        uint32_t source = s->sources[s->source_at++];
        s->state[source] = PLACED;
        s->order[s->norder++] = source;
    }
}

/* Place everything that `root` needs, then root: depth first, operands in order. */
static void place_with_operands(struct settle *s, uint32_t root) {
    struct graph *g = s->g;
    uint32_t depth = 1;
    if (s->state[root] == PLACED) return;
    s->stack[0] = root;
    s->next_in[0] = 0;
    s->state[root] = OPEN;
    while (depth > 0) {
        uint32_t n = s->stack[depth - 1];
        const struct node *node = &g->nodes.at[n];
        if (s->next_in[depth - 1] == node->nin) {
            depth--;
            place(s, n);
            continue;
        }
        val_id v = g->operands.at[node->first_in + s->next_in[depth - 1]++];
        uint32_t def = g->values.at[v.i].def.i;
        if (s->state[def] == PLACED) continue;
        if (s->state[def] == OPEN) {
            diag_error(g->ctx, ST_INTERNAL, node_origin(g, (node_id){n}),
                       "the graph has a cycle through this %s node", op_info(node->op)->name);
            ctx_bug(g->ctx, __FILE__, __LINE__, "an acyclic graph");
        }
        s->state[def] = OPEN;
        s->stack[depth] = def;
        s->next_in[depth++] = 0;
    }
}

static val_id renumber(const struct settle *s, val_id v) {
    return (val_id){s->new_value[v.i]};
}

/* Rewrite nodes, values and operands in the new order; the vectors only shrink. */
static void compact(struct settle *s) {
    struct graph *g = s->g;
    struct arena *a = &g->arena;
    struct node *nodes = ARENA_ARRAY(a, struct node, s->norder + 1);
    struct value *values = ARENA_ARRAY(a, struct value, g->values.n);
    val_id *operands = ARENA_ARRAY(a, val_id, g->operands.n);
    uint32_t nvalues = 1, noperands = 0;
    for (uint32_t k = 0; k < s->norder; k++) {
        struct node n = g->nodes.at[s->order[k]];
        for (uint32_t j = 0; j < n.nout; j++) {
            values[nvalues + j] = g->values.at[n.first_out + j];
            values[nvalues + j].def.i = k + 1;
            s->new_value[n.first_out + j] = nvalues + j;
        }
        for (uint32_t j = 0; j < n.nin; j++)
            operands[noperands + j] = renumber(s, g->operands.at[n.first_in + j]);
        n.first_out = nvalues;
        n.first_in = noperands;
        nvalues += n.nout;
        noperands += n.nin;
        nodes[k + 1] = n;
    }
    memcpy(g->nodes.at + 1, nodes + 1, s->norder * sizeof *nodes);
    memcpy(g->values.at + 1, values + 1, (nvalues - 1) * sizeof *values);
    if (noperands) memcpy(g->operands.at, operands, noperands * sizeof *operands);
    g->nodes.n = s->norder + 1;
    g->values.n = g->forward.n = nvalues;
    g->operands.n = noperands;
    for (uint32_t k = 0; k < g->outputs.n; k++)
        g->outputs.at[k].value = renumber(s, g->outputs.at[k].value);
    for (uint32_t k = 0; k < g->updates.n; k++) {
        g->updates.at[k].target = renumber(s, g->updates.at[k].target);
        g->updates.at[k].next = renumber(s, g->updates.at[k].next);
    }
}

struct early {
    uint32_t first, end;   /* nodes that stand as early as they can, */
    const uint32_t *after; /* each behind this node or where it stood; NULL: no such bound */
};

/* Place those of the early nodes whose operands are all placed; `turn`: where the walk is. */
static void place_ready(struct settle *s, const struct early *e, uint32_t turn) {
    const struct graph *g = s->g;
    for (uint32_t n = e->first; n < e->end; n++) {
        const struct node *node = &g->nodes.at[n];
        bool ready = s->live[n] && s->state[n] == UNSEEN;
        if (e->after) ready = ready && e->after[n - e->first] <= turn;
        for (uint32_t k = 0; ready && k < node->nin; k++)
            ready = s->state[g->values.at[g->operands.at[node->first_in + k].i].def.i] == PLACED;
        if (ready) place_with_operands(s, n);
    }
}

/* Nodes [first_new, ..) stand before node `before`. */
static bool settle(struct graph *g, uint32_t first_new, uint32_t before, struct early early) {
    struct arena *a = &g->arena;
    struct arena_mark start = arena_mark(a); /* no table of the graph grows before the rewind */
    struct settle s = {.g = g};
    bool changed = resolve_all(g);
    s.live = ARENA_ARRAY(a, uint8_t, g->nodes.n);
    s.state = ARENA_ARRAY(a, uint8_t, g->nodes.n);
    s.order = ARENA_ARRAY(a, uint32_t, g->nodes.n);
    s.stack = ARENA_ARRAY(a, uint32_t, g->nodes.n);
    s.next_in = ARENA_ARRAY(a, uint32_t, g->nodes.n);
    s.sources = ARENA_ARRAY(a, uint32_t, g->nodes.n);
    s.new_value = ARENA_ARRAY(a, uint32_t, g->values.n);
    mark_live(&s);
    const uint32_t range[3][2] = {{1, before}, {first_new, g->nodes.n}, {before, first_new}};
    for (int k = 0; k < 3; k++)
        for (uint32_t n = range[k][0]; n < range[k][1]; n++) {
            if (s.live[n]) place_with_operands(&s, n);
            if (s.live[n] || early.after) place_ready(&s, &early, n);
        }
    bool moved = s.norder + 1 != g->nodes.n;
    for (uint32_t k = 0; k < s.norder && !moved; k++) moved = s.order[k] != k + 1;
    if (moved) compact(&s);
    for (uint32_t v = 1; v < g->values.n; v++) g->forward.at[v] = (val_id){v};
    arena_rewind(a, start);
    for (uint32_t v = 1; moved && v < g->values.n; v++)
        if (g->values.at[v].name.i) map_set(&g->name_map, g->values.at[v].name.i, v);
    return changed || moved;
}

bool graph_settle(struct graph *g) {
    return settle(g, g->nodes.n, g->nodes.n, (struct early){0, 0, NULL});
}

bool graph_settle_at(struct graph *g, uint32_t first_new, node_id before) {
    return settle(g, first_new, before.i, (struct early){0, 0, NULL});
}

bool graph_settle_early(struct graph *g, uint32_t first, uint32_t end) {
    return settle(g, g->nodes.n, g->nodes.n, (struct early){first, end, NULL});
}

bool graph_settle_behind(struct graph *g, uint32_t first, uint32_t end, const uint32_t *after) {
    return settle(g, g->nodes.n, g->nodes.n, (struct early){first, end, after});
}

/* ---- uses ---------------------------------------------------------------------------------- */
struct uses uses_build(const struct graph *g, struct arena *scratch) {
    struct uses u;
    u.first = ARENA_ARRAY(scratch, uint32_t, (size_t)g->values.n + 1);
    u.live_out = ARENA_ARRAY(scratch, bool, g->values.n);
    uint32_t total = 0;
    for (uint32_t n = 1; n < g->nodes.n; n++) {
        total += g->nodes.at[n].nin;
        for (int k = 0; k < g->nodes.at[n].nin; k++) u.first[node_in(g, (node_id){n}, k).i + 1]++;
    }
    for (uint32_t v = 0; v < g->values.n; v++) u.first[v + 1] += u.first[v];
    u.user = ARENA_ARRAY(scratch, node_id, total);
    uint32_t *at = ARENA_ARRAY(scratch, uint32_t, g->values.n);
    memcpy(at, u.first, g->values.n * sizeof *at);
    for (uint32_t n = 1; n < g->nodes.n; n++)
        for (int k = 0; k < g->nodes.at[n].nin; k++)
            u.user[at[node_in(g, (node_id){n}, k).i]++] = (node_id){n};
    for (uint32_t k = 0; k < g->outputs.n; k++)
        u.live_out[graph_resolve(g, g->outputs.at[k].value).i] = true;
    for (uint32_t k = 0; k < g->updates.n; k++) {
        u.live_out[graph_resolve(g, g->updates.at[k].target).i] = true;
        u.live_out[graph_resolve(g, g->updates.at[k].next).i] = true;
    }
    return u;
}
