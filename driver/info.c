// SPDX-License-Identifier: Apache-2.0
/* info.c - `lathe info`: inputs, outputs, every parameter with its decision and reason, op counts,
 * and all unsupported things at once. */
#include "driver/info.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A model with unsupported parts has no graph; its parameters have no symbols. */
static const struct dims_table *dims_of(const lathe_model *m, struct arena *a) {
    return m->import.graph ? m->import.graph->dims : dims_create(a);
}

static char *type_text(const lathe_model *m, struct arena *a, const struct type *t) {
    struct buf b;
    buf_init(&b, a);
    type_print(dims_of(m, a), t, &b);
    return b.at;
}

static void count_ops(const struct graph *g, uint32_t counts[OP_COUNT]) {
    memset(counts, 0, OP_COUNT * sizeof counts[0]);
    for (uint32_t i = 1; g && i < g->nodes.n; i++)
        if (!(op_info((enum op)g->nodes.at[i].op)->traits & SOURCE)) counts[g->nodes.at[i].op]++;
}

/* Elements trained and frozen; a symbolic parameter cannot be, so counts are exact. */
static void count_elements(const lathe_model *m, int64_t *trained, int64_t *frozen) {
    *trained = *frozen = 0;
    for (uint32_t i = 0; i < m->import.nparams; i++) {
        const struct import_param *p = &m->import.params[i];
        int64_t n = type_count(&p->type);
        if (strcmp(p->decision, "trained") == 0)
            *trained += n;
        else
            *frozen += n;
    }
}

/* ---- for people ---------------------------------------------------------------------------------
 */
static void text_interface(const lathe_model *m, struct arena *a, struct buf *b) {
    const struct graph *g = m->import.graph;
    if (!g) return;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        if (g->nodes.at[i].op != OP_input) continue;
        node_id n = {i};
        buf_printf(b, "input   %s %s\n", attr_str(g, n, ATTR_name),
                   type_text(m, a, val_type(g, node_out(g, n, 0))));
    }
    for (uint32_t i = 0; i < g->outputs.n; i++)
        buf_printf(b, "output  %s %s\n", interned(&g->strings, g->outputs.at[i].name),
                   type_text(m, a, val_type(g, g->outputs.at[i].value)));
}

static void text_params(const lathe_model *m, struct arena *a, struct buf *b) {
    for (uint32_t i = 0; i < m->import.nparams; i++) {
        const struct import_param *p = &m->import.params[i];
        buf_printf(b, "%-7s %s %s: %s", p->decision, p->name, type_text(m, a, &p->type), p->why);
        if (!type_equal(&p->type, &p->stored))
            buf_printf(b, " (stored as %s)", type_text(m, a, &p->stored));
        if (p->note[0]) buf_printf(b, "; %s", p->note);
        buf_puts(b, "\n");
    }
    int64_t trained, frozen;
    count_elements(m, &trained, &frozen);
    buf_printf(b, "%lld elements trained, %lld kept\n", (long long)trained, (long long)frozen);
}

static void text_ops(const lathe_model *m, struct buf *b) {
    uint32_t counts[OP_COUNT];
    count_ops(m->import.graph, counts);
    buf_puts(b, "ops    ");
    for (int op = 1; op < OP_COUNT; op++)
        if (counts[op]) buf_printf(b, " %s:%u", op_info((enum op)op)->name, counts[op]);
    buf_puts(b, "\n");
}

static void text_unsupported(const lathe_model *m, struct buf *b) {
    for (uint32_t i = 0; i < m->import.nunsupported; i++) {
        const struct import_unsupported *u = &m->import.unsupported[i];
        buf_printf(b, "unsupported %s%s%s (opset %lld): %s; nodes:", u->domain,
                   u->domain[0] ? "::" : "", u->op, (long long)u->opset, u->why);
        for (uint32_t k = 0; k < u->nnodes; k++) buf_printf(b, " %s", u->nodes[k]);
        buf_puts(b, "\n");
    }
}

/* ---- for scripts --------------------------------------------------------------------------------
 */
static json_t *type_json(const lathe_model *m, struct arena *a, const char *name,
                         const struct type *t) {
    json_t *shape = json_array();
    for (int i = 0; i < t->rank; i++) {
        struct buf b;
        buf_init(&b, a);
        dim_print(dims_of(m, a), t->dims[i], &b);
        json_array_append_new(shape,
                              dim_known(t->dims[i]) ? json_integer(t->dims[i]) : json_string(b.at));
    }
    return json_pack("{s:s, s:s, s:o}", "name", name, "dtype", dtype_name(t->dtype), "shape",
                     shape);
}

static json_t *interface_json(const lathe_model *m, struct arena *a, bool inputs) {
    const struct graph *g = m->import.graph;
    json_t *list = json_array();
    if (!g) return list;
    for (uint32_t i = 1; inputs && i < g->nodes.n; i++) {
        node_id n = {i};
        if (g->nodes.at[i].op == OP_input)
            json_array_append_new(
                list, type_json(m, a, attr_str(g, n, ATTR_name), val_type(g, node_out(g, n, 0))));
    }
    for (uint32_t i = 0; !inputs && i < g->outputs.n; i++)
        json_array_append_new(list, type_json(m, a, interned(&g->strings, g->outputs.at[i].name),
                                              val_type(g, g->outputs.at[i].value)));
    return list;
}

static json_t *params_json(const lathe_model *m, struct arena *a) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->import.nparams; i++) {
        const struct import_param *p = &m->import.params[i];
        json_t *o = type_json(m, a, p->name, &p->type);
        json_t *stored = type_json(m, a, p->initializer, &p->stored);
        json_object_set_new(o, "decision", json_string(p->decision));
        json_object_set_new(o, "why", json_string(p->why));
        json_object_set_new(o, "note", json_string(p->note));
        json_object_set_new(o, "stored", stored);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *unsupported_json(const lathe_model *m) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->import.nunsupported; i++) {
        const struct import_unsupported *u = &m->import.unsupported[i];
        json_t *nodes = json_array();
        for (uint32_t k = 0; k < u->nnodes; k++)
            json_array_append_new(nodes, json_string(u->nodes[k]));
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:s, s:o}", "op", u->op, "domain",
                                              u->domain, "opset", (json_int_t)u->opset, "why",
                                              u->why, "nodes", nodes));
    }
    return list;
}

static void json_text(const lathe_model *m, struct arena *a, struct buf *b) {
    uint32_t counts[OP_COUNT];
    count_ops(m->import.graph, counts);
    json_t *ops = json_object();
    for (int op = 1; op < OP_COUNT; op++)
        if (counts[op])
            json_object_set_new(ops, op_info((enum op)op)->name, json_integer(counts[op]));
    int64_t trained, frozen;
    count_elements(m, &trained, &frozen);
    json_t *root = json_object();
    json_object_set_new(root, "file", json_string(m->file->path));
    json_object_set_new(root, "opset", json_integer(m->file->opset));
    json_object_set_new(root, "inputs", interface_json(m, a, true));
    json_object_set_new(root, "outputs", interface_json(m, a, false));
    json_object_set_new(root, "parameters", params_json(m, a));
    json_object_set_new(root, "trained_elements", json_integer(trained));
    json_object_set_new(root, "kept_elements", json_integer(frozen));
    json_object_set_new(root, "ops", ops);
    json_object_set_new(root, "unsupported", unsupported_json(m));
    char *s = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    buf_puts(b, s ? s : "{}");
    buf_puts(b, "\n");
    free(s);
}

enum status info_text(lathe_model *m, bool json, char **text) {
    struct arena *a = &m->scratch;
    struct buf b;
    buf_init(&b, a);
    if (json) {
        json_text(m, a, &b);
    } else {
        buf_printf(&b, "model   %s (opset %lld)\n", m->file->path, (long long)m->file->opset);
        text_interface(m, a, &b);
        text_params(m, a, &b);
        text_ops(m, &b);
        text_unsupported(m, &b);
    }
    *text = ctx_alloc(&m->owner->ctx, b.n + 1);
    memcpy(*text, b.at, b.n + 1);
    arena_reset(a);
    return ST_OK;
}
