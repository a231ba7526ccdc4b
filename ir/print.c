// SPDX-License-Identifier: Apache-2.0
/* print.c - the canonical text form of a graph (docs/IR.md): equal graphs print to equal bytes. */
#include "ir/internal.h"
#include "ir/lex.h"

enum { INLINE_MAX = 16 }; /* elements of a constant that are written out */

struct printer {
    const struct graph *g;
    struct text_options opt;
    struct buf *out;
};

static void put_value(struct printer *p, val_id v) {
    const char *name = val_name(p->g, v);
    if (name[0])
        text_name(p->out, '%', name);
    else
        buf_printf(p->out, "%%%u", v.i);
}

static void put_blob(struct printer *p, blob_id id, enum dtype t) {
    if (id.i == 0) {
        buf_puts(p->out, "none");
        return;
    }
    const struct blob *b = graph_get_blob(p->g, id);
    size_t size = dtype_size(t), n = b->bytes / size;
    if (!b->data || n * size != b->bytes || (n > INLINE_MAX && !p->opt.full)) {
        buf_printf(p->out, "hash 0x%016llx bytes %zu",
                   (unsigned long long)graph_blob_hash(p->g, id), b->bytes);
        return;
    }
    buf_printf(p->out, "%s [", dtype_name(t));
    for (size_t i = 0; i < n; i++) {
        if (i) buf_puts(p->out, ", ");
        text_element(p->out, t, (const char *)b->data + i * size);
    }
    buf_puts(p->out, "]");
}

static void put_list(struct printer *p, const struct attr *a) {
    buf_puts(p->out, "[");
    for (int i = 0; i < a->n; i++) {
        if (i) buf_puts(p->out, ", ");
        if (attr_kind(a->key) == AK_DIMS)
            dim_print(p->g->dims, a->list[i], p->out);
        else
            buf_printf(p->out, "%lld", (long long)a->list[i]);
    }
    buf_puts(p->out, "]");
}

static void put_attr(struct printer *p, const struct attr *a, enum dtype t) {
    buf_printf(p->out, "%s = ", attr_name(a->key));
    switch (attr_kind(a->key)) {
    case AK_INT: buf_printf(p->out, "%lld", (long long)a->i); return;
    case AK_BOOL: buf_puts(p->out, a->i ? "true" : "false"); return;
    case AK_DTYPE: buf_puts(p->out, dtype_name((enum dtype)a->i)); return;
    case AK_FLOAT: text_double(p->out, a->f); return;
    case AK_STR: buf_quoted(p->out, a->s); return;
    case AK_BLOB: put_blob(p, a->blob, t); return;
    case AK_INTS:
    case AK_DIMS: put_list(p, a); return;
    }
}

void text_value(const struct graph *g, val_id v, struct buf *out) {
    struct printer p = {.g = g, .out = out};
    put_value(&p, v);
}

void text_attr(const struct graph *g, const struct attr *a, enum dtype t, struct buf *out) {
    struct printer p = {.g = g, .out = out};
    put_attr(&p, a, t);
}

static void put_node(struct printer *p, node_id n) {
    const struct graph *g = p->g;
    const struct node *node = graph_node(g, n);
    const struct op_info *info = op_info((enum op)node->op);
    const struct attr *attrs;
    int count = attr_list(g, n, &attrs);
    buf_puts(p->out, "  ");
    for (int k = 0; k < node->nout; k++) {
        if (k) buf_puts(p->out, ", ");
        put_value(p, node_out(g, n, k));
    }
    buf_printf(p->out, " = %s", info->name);
    if (!(info->traits & SOURCE)) {
        buf_puts(p->out, "(");
        for (int k = 0; k < node->nin; k++) {
            if (k) buf_puts(p->out, ", ");
            put_value(p, node_in(g, n, k));
        }
        buf_puts(p->out, ")");
    }
    for (int k = 0; k < count; k++) {
        buf_puts(p->out, k ? ", " : " {");
        put_attr(p, &attrs[k], val_type(g, node_out(g, n, 0))->dtype);
    }
    buf_puts(p->out, count ? "} : " : " : ");
    for (int k = 0; k < node->nout; k++) {
        if (k) buf_puts(p->out, ", ");
        type_print(g->dims, val_type(g, node_out(g, n, k)), p->out);
    }
    const char *origin = node_origin(g, n);
    if (origin[0] && !p->opt.no_locs) {
        buf_puts(p->out, " loc ");
        buf_quoted(p->out, origin);
    }
    buf_puts(p->out, "\n");
}

void graph_print(const struct graph *g, const struct text_options *opt, struct buf *out) {
    struct printer p = {.g = g, .out = out};
    if (opt) p.opt = *opt;
    buf_puts(out, "graph ");
    text_name(out, '@', interned(&g->strings, g->name));
    buf_puts(out, " {\n");
    for (uint32_t n = 1; n < g->nodes.n; n++) put_node(&p, (node_id){n});
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        buf_puts(out, "  output ");
        buf_quoted(out, interned(&g->strings, g->outputs.at[i].name));
        buf_puts(out, " = ");
        put_value(&p, graph_resolve(g, g->outputs.at[i].value));
        buf_puts(out, "\n");
    }
    for (uint32_t i = 0; i < g->updates.n; i++) {
        buf_puts(out, "  update ");
        put_value(&p, g->updates.at[i].target);
        buf_puts(out, " = ");
        put_value(&p, graph_resolve(g, g->updates.at[i].next));
        buf_puts(out, "\n");
    }
    buf_puts(out, "}\n");
}
