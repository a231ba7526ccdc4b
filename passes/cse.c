// SPDX-License-Identifier: Apache-2.0
/* cse.c - compute equal things once: nodes of one op with equal attributes, operands and result
 * types.
 *
 * before:
 *   %a = exp(%x)
 *   %b = exp(%x)
 *   %y = add(%a, %b)
 * after:
 *   %a = exp(%x)
 *   %y = add(%a, %a)
 *
 * needs   topological order
 * breaks  every id held outside (settle compacts)
 * order   after simplify, which brings equal nodes into one form. Sources that stand for a user's
 * tensor and random numbers (trait EFFECT) are never merged, even when byte-identical. */
#include "passes/pass.h"

/* Operands in canonical order, so that add(a, b) meets add(b, a). */
static void node_operands(const struct graph *g, node_id n, val_id *a, val_id *b) {
    const struct node *node = graph_node(g, n);
    *a = node->nin > 0 ? node_in(g, n, 0) : VAL_NONE;
    *b = node->nin > 1 ? node_in(g, n, 1) : VAL_NONE;
    if ((op_info((enum op)node->op)->traits & COMM) && a->i > b->i) {
        val_id t = *a;
        *a = *b;
        *b = t;
    }
}

static uint64_t node_hash(const struct graph *g, node_id n) {
    const struct node *node = graph_node(g, n);
    val_id a, b;
    node_operands(g, n, &a, &b);
    uint64_t h = hash_combine(node->op, node->attrs.i);
    h = hash_combine(h, a.i);
    h = hash_combine(h, b.i);
    for (int k = 2; k < node->nin; k++) h = hash_combine(h, node_in(g, n, k).i);
    for (int k = 0; k < node->nout; k++)
        h = hash_combine(h, g->values.at[node_out(g, n, k).i].type.i);
    return h;
}

static bool node_same(const struct graph *g, node_id x, node_id y) {
    const struct node *p = graph_node(g, x), *q = graph_node(g, y);
    if (p->op != q->op || p->attrs.i != q->attrs.i || p->nin != q->nin || p->nout != q->nout)
        return false;
    val_id a, b, c, d;
    node_operands(g, x, &a, &b);
    node_operands(g, y, &c, &d);
    if (a.i != c.i || b.i != d.i) return false;
    for (int k = 2; k < p->nin; k++)
        if (node_in(g, x, k).i != node_in(g, y, k).i) return false;
    for (int k = 0; k < p->nout; k++)
        if (g->values.at[node_out(g, x, k).i].type.i != g->values.at[node_out(g, y, k).i].type.i)
            return false;
    return true;
}

enum status pass_cse(struct pass_ctx *c, struct graph *g) {
    struct map seen; /* hash -> newest node with it; older ones through `older` */
    map_init(&seen, c->scratch);
    uint32_t count = g->nodes.n;
    node_id *older = ARENA_ARRAY(c->scratch, node_id, count);
    for (uint32_t i = 1; i < count; i++) {
        node_id n = {i};
        if (op_info((enum op)graph_node(g, n)->op)->traits & EFFECT) continue;
        uint64_t h = node_hash(g, n);
        uint32_t head = 0;
        map_get(&seen, h, &head);
        node_id m = {head};
        while (m.i && !node_same(g, n, m)) m = older[m.i];
        if (m.i) {
            for (int k = 0; k < graph_node(g, n)->nout; k++)
                graph_forward(g, node_out(g, n, k), node_out(g, m, k));
            continue;
        }
        older[i].i = head;
        map_set(&seen, h, i);
    }
    graph_settle(g);
    return ST_OK;
}
