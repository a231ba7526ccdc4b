// SPDX-License-Identifier: Apache-2.0
/* verify.c - the invariants of graph.h, checked after every pass in debug runs and after parsing.
 * It trusts nothing: each table is range-checked before it is followed. */
#include "base/diag.h"
#include "ir/internal.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct verify {
    struct graph *g;
    const char *stage;
    unsigned faults;
};

__attribute__((format(printf, 3, 4))) static void fault(struct verify *v, uint32_t node,
                                                        const char *fmt, ...) {
    struct graph *g = v->g;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    v->faults++;
    if (node) {
        const struct node *n = &g->nodes.at[node];
        const char *origin =
            n->origin.i < g->strings.strings.n ? interned(&g->strings, n->origin) : "";
        diag_error(g->ctx, ST_INTERNAL, origin, "after %s, node %u (%s): %s", v->stage, node,
                   op_info((enum op)n->op)->name, text);
    } else {
        diag_error(g->ctx, ST_INTERNAL, "", "after %s: %s", v->stage, text);
    }
}

static bool is_value(const struct graph *g, val_id v) {
    return v.i > 0 && v.i < g->values.n;
}

/* Ids in range, outputs consecutive, operands defined earlier. */
static bool check_links(struct verify *v, uint32_t i) {
    struct graph *g = v->g;
    const struct node *n = &g->nodes.at[i];
    const struct op_info *info = op_info((enum op)n->op);
    unsigned before = v->faults;
    if (n->op == OP_NONE || n->op >= OP_COUNT) {
        fault(v, i, "expected an op, found number %u", n->op);
        return false;
    }
    if (n->nout != info->outs) fault(v, i, "expected %d outputs, found %u", info->outs, n->nout);
    if (n->nin < info->min_in || (info->max_in != OP_ANY && n->nin > info->max_in))
        fault(v, i, "expected %d to %d operands, found %u", info->min_in, info->max_in, n->nin);
    if (n->attrs.i >= g->attr_records.n) fault(v, i, "attribute record %u is unknown", n->attrs.i);
    if (n->origin.i >= g->strings.strings.n) fault(v, i, "origin %u is unknown", n->origin.i);
    if ((uint64_t)n->first_in + n->nin > g->operands.n) {
        fault(v, i, "operands end at %u, the table at %u", n->first_in + n->nin, g->operands.n);
        return false;
    }
    if ((uint64_t)n->first_out + n->nout > g->values.n || n->first_out == 0) {
        fault(v, i, "outputs start at %u of %u values", n->first_out, g->values.n);
        return false;
    }
    for (uint32_t k = 0; k < n->nin; k++) {
        val_id in = g->operands.at[n->first_in + k];
        if (!is_value(g, in))
            fault(v, i, "operand %u is value %u of %u", k, in.i, g->values.n);
        else if (g->values.at[in.i].def.i >= i)
            fault(v, i, "operand %u is defined by node %u, which does not come earlier", k,
                  g->values.at[in.i].def.i);
    }
    for (uint32_t k = 0; k < n->nout; k++)
        if (g->values.at[n->first_out + k].def.i != i)
            fault(v, i, "output %u says it is defined by node %u", k,
                  g->values.at[n->first_out + k].def.i);
    return v->faults == before;
}

static void check_attrs(struct verify *v, uint32_t i) {
    struct graph *g = v->g;
    const struct node *n = &g->nodes.at[i];
    const struct attr_record *r = g->attr_records.at[n->attrs.i];
    const struct op_attr *takes;
    int ntakes = op_attrs(g, (enum op)n->op, &takes);
    for (int k = 0; k < r->n; k++)
        if (!op_attr_find(g, (enum op)n->op, r->at[k].key))
            fault(v, i, "carries the attribute '%s', which its op does not take",
                  attr_name(r->at[k].key));
    for (int k = 0; k < ntakes; k++) {
        int j = 0;
        while (j < r->n && r->at[j].key != takes[k].value.key) j++;
        if (takes[k].required && j == r->n)
            fault(v, i, "lacks the attribute '%s'", attr_name(takes[k].value.key));
    }
}

enum { OUTS_MAX = 8, FEW_OPERANDS = 8 };

static void check_types(struct verify *v, uint32_t i) {
    struct graph *g = v->g;
    const struct node *n = &g->nodes.at[i];
    struct type few[FEW_OPERANDS], *types = few, results[OUTS_MAX];
    struct attr all[ATTR_COUNT];
    for (uint32_t k = 0; k < n->nout; k++) {
        uint32_t t = g->values.at[n->first_out + k].type.i;
        if (t == 0 || t >= g->types.n) {
            fault(v, i, "output %u has type %u of %u", k, t, g->types.n);
            return;
        }
    }
    attrs_complete(g, (enum op)n->op, n->attrs, all);
    if (n->nin > FEW_OPERANDS) types = ARENA_ARRAY(&g->arena, struct type, n->nin);
    for (uint32_t k = 0; k < n->nin; k++) types[k] = *val_type(g, g->operands.at[n->first_in + k]);
    memset(results, 0, sizeof results);
    if (op_info((enum op)n->op)->traits & SOURCE) results[0] = *val_type(g, (val_id){n->first_out});
    struct infer x = {.g = g,
                      .op = (enum op)n->op,
                      .nin = n->nin,
                      .in = types,
                      .attrs = all,
                      .origin = node_origin(g, (node_id){i}),
                      .out = results};
    if (infer_types(&x) != ST_OK) {
        fault(v, i, "its types cannot be inferred");
        return;
    }
    for (uint32_t k = 0; k < n->nout; k++) {
        const struct type *have = val_type(g, (val_id){n->first_out + k});
        if (type_equal(have, &results[k])) continue;
        struct buf b;
        buf_init(&b, &g->arena);
        buf_puts(&b, "expected ");
        type_print(g->dims, &results[k], &b);
        buf_puts(&b, ", found ");
        type_print(g->dims, have, &b);
        fault(v, i, "output %u: %s", k, b.at);
    }
}

static void check_values(struct verify *v) {
    struct graph *g = v->g;
    struct map seen;
    map_init(&seen, &g->arena);
    if (g->forward.n != g->values.n) {
        fault(v, 0, "there are %u forwards for %u values", g->forward.n, g->values.n);
        return;
    }
    for (uint32_t k = 1; k < g->values.n; k++) {
        uint32_t def = g->values.at[k].def.i, name = g->values.at[k].name.i, other;
        bool owned = def > 0 && def < g->nodes.n && k >= g->nodes.at[def].first_out &&
                     k - g->nodes.at[def].first_out < g->nodes.at[def].nout;
        if (!owned) fault(v, 0, "value %u is no output of node %u", k, def);
        if (g->forward.at[k].i != k) fault(v, 0, "value %u has a forward that is not settled", k);
        if (name == 0) continue;
        if (name >= g->strings.strings.n) {
            fault(v, 0, "value %u has the unknown name %u", k, name);
            continue;
        }
        if (map_get(&seen, name, &other))
            fault(v, 0, "values %u and %u share the name '%s'", other, k,
                  interned(&g->strings, (str_id){name}));
        map_set(&seen, name, k);
    }
}

static void check_interface(struct verify *v) {
    struct graph *g = v->g;
    struct map names, targets;
    uint32_t other;
    map_init(&names, &g->arena);
    map_init(&targets, &g->arena);
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const struct graph_output *o = &g->outputs.at[k];
        if (!is_value(g, o->value)) fault(v, 0, "output %u is value %u", k, o->value.i);
        if (map_get(&names, o->name.i, &other))
            fault(v, 0, "outputs %u and %u share the name '%s'", other, k,
                  interned(&g->strings, o->name));
        map_set(&names, o->name.i, k);
    }
    for (uint32_t k = 0; k < g->updates.n; k++) {
        const struct graph_update *u = &g->updates.at[k];
        if (!is_value(g, u->target) || !is_value(g, u->next)) {
            fault(v, 0, "update %u sets value %u to value %u", k, u->target.i, u->next.i);
            continue;
        }
        enum op op = val_op(g, u->target);
        if (op != OP_param && op != OP_state)
            fault(v, val_def(g, u->target).i, "is the target of an update, but no param or state");
        if (g->values.at[u->target.i].type.i != g->values.at[u->next.i].type.i)
            fault(v, val_def(g, u->target).i, "is updated with a value of another type");
        if (map_get(&targets, u->target.i, &other))
            fault(v, val_def(g, u->target).i, "is updated twice");
        map_set(&targets, u->target.i, k);
    }
}

enum status graph_verify(const struct graph *g, const char *stage) {
    struct verify v = {graph_mutable(g), stage, 0};
    struct arena *a = &v.g->arena;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        if (!check_links(&v, i)) continue;
        check_attrs(&v, i);
    }
    struct arena_mark m = arena_mark(a); /* inference may extend tables, the rest only uses maps */
    check_values(&v);
    if (v.faults == 0) check_interface(&v);
    arena_rewind(a, m);
    bool sound = v.faults == 0; /* else it cannot be typed */
    for (uint32_t i = 1; sound && i < g->nodes.n; i++) check_types(&v, i);
    return v.faults ? ST_INTERNAL : ST_OK;
}
