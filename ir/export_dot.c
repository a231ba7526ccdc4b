// SPDX-License-Identifier: Apache-2.0
/* export_dot.c - a graph as Graphviz text, as an HTML page and as JSON. Only writes; what is read
 * back is print.c and parse.c. */
#include "ir/export_dot.h"
#include "ir/internal.h"
#include <math.h>
#include <string.h>

/* ---- escaping ------------------------------------------------------------------------------ */
enum format { DOT, HTML, JSON };

static bool in_range(const unsigned char *p, const unsigned char *end, unsigned low,
                     unsigned high) {
    return p < end && *p >= low && *p <= high;
}

/* Bytes of the UTF-8 character at p, 0 when there is none (RFC 3629: no overlong forms, no
 * surrogates, nothing above U+10FFFF). */
static int utf8_length(const unsigned char *p, const unsigned char *end) {
    unsigned low = 0x80, high = 0xbf;
    int n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    if (*p == 0xe0) low = 0xa0;
    if (*p == 0xed) high = 0x9f;
    if (*p == 0xf0) low = 0x90;
    if (*p == 0xf4) high = 0x8f;
    for (int k = 1; k < n; k++, low = 0x80, high = 0xbf)
        if (!in_range(p + k, end, low, high)) return 0;
    return n;
}

/* What stands for a character that must not appear as it is; NULL: it may. */
static const char *escape(enum format f, unsigned char c) {
    if (f == JSON) {
        switch (c) {
        case '"': return "\\\"";
        case '\\': return "\\\\";
        case '\n': return "\\n";
        case '\t': return "\\t";
        default: return NULL;
        }
    }
    switch (c) { /* labels of Graphviz hold entities too */
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    case '\\': return f == DOT ? "\\\\" : NULL;
    default: return NULL;
    }
}

static void put_text(struct buf *out, enum format f, const char *s) {
    const unsigned char *p = (const unsigned char *)s, *end = p + strlen(s);
    while (p < end) {
        int n = utf8_length(p, end);
        const char *instead = n == 1 ? escape(f, *p) : NULL;
        if (n == 0)
            buf_puts(out, "\xef\xbf\xbd"); /* U+FFFD */
        else if (instead)
            buf_puts(out, instead);
        else if (n == 1 && (*p < 0x20 || *p == 0x7f))
            buf_printf(out, f == JSON ? "\\u%04x" : f == DOT ? "\\\\x%02x" : "\\x%02x", *p);
        else
            buf_put(out, p, (size_t)n);
        p += n ? n : 1;
    }
}

/* ---- what all three share ------------------------------------------------------------------ */
struct exporter {
    const struct graph *g;
    struct buf *out;
    struct buf tmp; /* one piece of the text form, before it is escaped */
    enum format format;
};

/* Families as the `lower` column of ops.def tells them apart. */
static const struct family {
    const char *name, *colour, *lowered; /* lowered: names between blanks */
} families[] = {
    {"source", "#e3e6ea", " source "},
    {"elementwise", "#d9ead3", " fused "},
    {"product", "#f9cb9c", " matmul conv pool attention "},
    {"reduction", "#ffe599", " reduce argmax cumsum softmax norm cross_entropy "},
    {"movement", "#cfe2f3", " view pad concat "},
    {"indexing", "#d9d2e9", " gather scatter "},
    {"optimizer", "#ead1dc", " optimizer "},
    {"other", "#ffffff", ""},
};
enum { FAMILIES = sizeof families / sizeof *families };

static const struct family *family_of(enum op op) {
    const char *lower = op_info(op)->lower;
    size_t n = strlen(lower);
    for (int k = 0; k < FAMILIES - 1; k++) {
        const char *at = strstr(families[k].lowered, lower);
        if (n && at && at[-1] == ' ' && at[n] == ' ') return &families[k];
    }
    return &families[FAMILIES - 1];
}

static struct exporter begin(const struct graph *g, struct buf *out, enum format f) {
    struct exporter x = {.g = g, .out = out, .format = f};
    buf_init(&x.tmp, out->arena);
    return x;
}

static void put(struct exporter *x, const char *s) {
    buf_puts(x->out, s);
}

static void put_name(struct exporter *x, str_id s) {
    put_text(x->out, x->format, interned(&x->g->strings, s));
}

static void flush(struct exporter *x) {
    put_text(x->out, x->format, x->tmp.at);
    x->tmp.n = 0;
    x->tmp.at[0] = '\0';
}

static void put_value(struct exporter *x, val_id v) {
    text_value(x->g, v, &x->tmp);
    flush(x);
}

static void put_type(struct exporter *x, val_id v) {
    type_print(x->g->dims, val_type(x->g, v), &x->tmp);
    flush(x);
}

static void put_attrs(struct exporter *x, node_id n) {
    const struct attr *attrs;
    int count = attr_list(x->g, n, &attrs);
    for (int k = 0; k < count; k++) {
        if (k) buf_puts(&x->tmp, ", ");
        text_attr(x->g, &attrs[k], val_type(x->g, node_out(x->g, n, 0))->dtype, &x->tmp);
    }
    if (count) flush(x);
}

/* ---- Graphviz ------------------------------------------------------------------------------ */
static void dot_edge(struct exporter *x, val_id from, const char *to, uint32_t id,
                     const char *style) {
    uint32_t def = val_def(x->g, from).i, k = from.i - x->g->nodes.at[def].first_out;
    buf_printf(x->out, "  n%u -> %s%u", def, to, id);
    if (k) buf_printf(x->out, " [taillabel=\"%u\"]", k);
    put(x, style);
    put(x, ";\n");
}

static void dot_node(struct exporter *x, node_id n) {
    const struct graph *g = x->g;
    const struct node *node = graph_node(g, n);
    buf_printf(x->out, "  n%u [label=\"%s", n.i, op_info((enum op)node->op)->name);
    for (int k = 0; k < node->nout; k++) {
        put(x, "\\n");
        put_value(x, node_out(g, n, k));
        put(x, " : ");
        put_type(x, node_out(g, n, k));
    }
    buf_printf(x->out, "\", fillcolor=\"%s\", tooltip=\"", family_of((enum op)node->op)->colour);
    put_attrs(x, n);
    if (node->origin.i) put(x, "\\n");
    put_name(x, node->origin);
    put(x, "\"];\n");
    for (int k = 0; k < node->nin; k++)
        if (node_in(g, n, k).i) dot_edge(x, node_in(g, n, k), "n", n.i, "");
}

void graph_print_dot(const struct graph *g, struct buf *out) {
    struct exporter x = begin(g, out, DOT);
    put(&x, "digraph \"");
    put_name(&x, g->name);
    put(&x, "\" {\n  node [shape=box, style=filled, fontname=\"sans-serif\", fontsize=10];\n");
    for (uint32_t n = 1; n < g->nodes.n; n++) dot_node(&x, (node_id){n});
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        buf_printf(out, "  o%u [label=\"output\\n", k);
        put_name(&x, g->outputs.at[k].name);
        put(&x, "\", shape=ellipse, fillcolor=\"#ffffff\"];\n");
        dot_edge(&x, graph_resolve(g, g->outputs.at[k].value), "o", k, "");
    }
    for (uint32_t k = 0; k < g->updates.n; k++)
        dot_edge(&x, graph_resolve(g, g->updates.at[k].next), "n",
                 val_def(g, g->updates.at[k].target).i, " [style=dashed, constraint=false]");
    put(&x, "}\n");
}

/* ---- HTML ---------------------------------------------------------------------------------- */
static const char page_style[] =
    "body { font: 14px/1.4 sans-serif; margin: 1.5em; color: #222; }\n"
    "table { border-collapse: collapse; }\n"
    "th, td { text-align: left; vertical-align: top; padding: 2px 8px; border-bottom: 1px solid "
    "#ddd; }\n"
    "th { position: sticky; top: 0; background: #fff; }\n"
    "td { font-family: monospace; overflow-wrap: anywhere; }\n"
    "tr:target td { outline: 2px solid #cc0000; }\n"
    "a { color: inherit; }\n"
    ".key { display: inline-block; padding: 2px 8px; margin-right: 4px; }\n";

static void html_link(struct exporter *x, val_id v) {
    buf_printf(x->out, "<a href=\"#n%u\">", val_def(x->g, v).i);
    put_value(x, v);
    put(x, "</a>");
}

static void html_users(struct exporter *x, const struct uses *u, node_id n) {
    uint32_t before = 0;
    for (int k = 0; k < graph_node(x->g, n)->nout; k++) {
        uint32_t v = node_out(x->g, n, k).i;
        if (u->live_out[v]) put(x, "result ");
        for (uint32_t i = u->first[v]; i < u->first[v + 1]; i++) {
            if (u->user[i].i == before) continue;
            before = u->user[i].i;
            buf_printf(x->out, "<a href=\"#n%u\">%u</a> ", before, before);
        }
    }
}

static void html_node(struct exporter *x, const struct uses *u, node_id n) {
    const struct graph *g = x->g;
    const struct node *node = graph_node(g, n);
    enum op op = (enum op)node->op;
    buf_printf(x->out, "<tr id=\"n%u\"><td>%u</td><td class=\"%s\">%s</td><td>", n.i, n.i,
               family_of(op)->name, op_info(op)->name);
    for (int k = 0; k < node->nout; k++) {
        if (k) put(x, "<br>");
        put_value(x, node_out(g, n, k));
        put(x, " : ");
        put_type(x, node_out(g, n, k));
    }
    put(x, "</td><td>");
    for (int k = 0; k < node->nin; k++) {
        if (k) put(x, ", ");
        if (node_in(g, n, k).i) html_link(x, node_in(g, n, k));
    }
    put(x, "</td><td>");
    put_attrs(x, n);
    put(x, "</td><td>");
    html_users(x, u, n);
    put(x, "</td><td>");
    put_name(x, node->origin);
    put(x, "</td></tr>\n");
}

static void html_head(struct exporter *x) {
    const struct graph *g = x->g;
    put(x, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>");
    put_name(x, g->name);
    buf_printf(x->out, "</title>\n<style>\n%s", page_style);
    for (int k = 0; k < FAMILIES; k++)
        buf_printf(x->out, ".%s { background: %s; }\n", families[k].name, families[k].colour);
    put(x, "</style>\n</head>\n<body>\n<h1>");
    put_name(x, g->name);
    buf_printf(x->out, "</h1>\n<p>%u nodes, %u values, %u outputs, %u updates.</p>\n<p>",
               g->nodes.n - 1, g->values.n - 1, g->outputs.n, g->updates.n);
    for (int k = 0; k < FAMILIES; k++)
        buf_printf(x->out, "<span class=\"key %s\">%s</span>", families[k].name, families[k].name);
    put(x, "</p>\n");
}

static void html_results(struct exporter *x) {
    const struct graph *g = x->g;
    put(x, "<h2>Outputs</h2>\n<ul>\n");
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        put(x, "<li>");
        put_name(x, g->outputs.at[k].name);
        put(x, " = ");
        html_link(x, graph_resolve(g, g->outputs.at[k].value));
        put(x, "</li>\n");
    }
    put(x, "</ul>\n<h2>Updates</h2>\n<ul>\n");
    for (uint32_t k = 0; k < g->updates.n; k++) {
        put(x, "<li>");
        html_link(x, g->updates.at[k].target);
        put(x, " = ");
        html_link(x, graph_resolve(g, g->updates.at[k].next));
        put(x, "</li>\n");
    }
    put(x, "</ul>\n");
}

void graph_print_html(const struct graph *g, struct buf *out) {
    struct exporter x = begin(g, out, HTML);
    struct uses u = uses_build(g, out->arena);
    html_head(&x);
    html_results(&x);
    put(&x, "<h2>Nodes</h2>\n<table>\n<thead><tr><th>#</th><th>op</th><th>results</th><th>operands"
            "</th><th>attributes</th><th>used by</th><th>origin</th></tr></thead>\n<tbody>\n");
    for (uint32_t n = 1; n < g->nodes.n; n++) html_node(&x, &u, (node_id){n});
    put(&x, "</tbody>\n</table>\n</body>\n</html>\n");
}

/* ---- JSON ---------------------------------------------------------------------------------- */
static void json_string(struct exporter *x, const char *s) {
    put(x, "\"");
    put_text(x->out, JSON, s);
    put(x, "\"");
}

static void json_dims(struct exporter *x, const dim *d, int n, bool symbolic) {
    put(x, "[");
    for (int k = 0; k < n; k++) {
        if (k) put(x, ", ");
        if (symbolic && !dim_known(d[k])) {
            dim_print(x->g->dims, d[k], &x->tmp);
            put(x, "\"");
            flush(x);
            put(x, "\"");
        } else {
            buf_printf(x->out, "%lld", (long long)d[k]);
        }
    }
    put(x, "]");
}

static void json_attr(struct exporter *x, const struct attr *a, enum dtype t) {
    buf_printf(x->out, "\"%s\": ", attr_name(a->key));
    switch (attr_kind(a->key)) {
    case AK_INT: buf_printf(x->out, "%lld", (long long)a->i); return;
    case AK_BOOL: put(x, a->i ? "true" : "false"); return;
    case AK_DTYPE: json_string(x, dtype_name((enum dtype)a->i)); return;
    case AK_STR: json_string(x, a->s); return;
    case AK_FLOAT:
        if (!isfinite(a->f)) put(x, "\"");
        buf_f64(x->out, a->f);
        if (!isfinite(a->f)) put(x, "\"");
        return;
    case AK_INTS:
    case AK_DIMS: json_dims(x, a->list, a->n, attr_kind(a->key) == AK_DIMS); return;
    case AK_BLOB:
        text_attr(x->g, a, t, &x->tmp);
        json_string(x, strchr(x->tmp.at, '=') + 2); /* behind "init = " */
        x->tmp.n = 0;
        return;
    }
}

static void json_value(struct exporter *x, val_id v) {
    const struct type *t = val_type(x->g, v);
    buf_printf(x->out, "    {\"id\": %u, \"name\": ", v.i);
    json_string(x, val_name(x->g, v));
    buf_printf(x->out, ", \"dtype\": \"%s\", \"shape\": ", dtype_name(t->dtype));
    json_dims(x, t->dims, t->rank, true);
    buf_printf(x->out, ", \"node\": %u}", val_def(x->g, v).i);
}

static void json_node(struct exporter *x, node_id n) {
    const struct graph *g = x->g;
    const struct node *node = graph_node(g, n);
    const struct attr *attrs;
    int count = attr_list(g, n, &attrs);
    buf_printf(x->out, "    {\"id\": %u, \"op\": \"%s\", \"inputs\": [", n.i,
               op_info((enum op)node->op)->name);
    for (int k = 0; k < node->nin; k++) buf_printf(x->out, k ? ", %u" : "%u", node_in(g, n, k).i);
    put(x, "], \"outputs\": [");
    for (int k = 0; k < node->nout; k++) buf_printf(x->out, k ? ", %u" : "%u", node_out(g, n, k).i);
    put(x, "], \"attrs\": {");
    for (int k = 0; k < count; k++) {
        if (k) put(x, ", ");
        json_attr(x, &attrs[k], val_type(g, node_out(g, n, 0))->dtype);
    }
    put(x, "}, \"origin\": ");
    json_string(x, node_origin(g, n));
    put(x, "}");
}

void graph_print_json(const struct graph *g, struct buf *out) {
    struct exporter x = begin(g, out, JSON);
    put(&x, "{\n  \"name\": ");
    json_string(&x, interned(&g->strings, g->name));
    put(&x, ",\n  \"values\": [");
    for (uint32_t v = 1; v < g->values.n; v++) {
        put(&x, v > 1 ? ",\n" : "\n");
        json_value(&x, (val_id){v});
    }
    put(&x, "\n  ],\n  \"nodes\": [");
    for (uint32_t n = 1; n < g->nodes.n; n++) {
        put(&x, n > 1 ? ",\n" : "\n");
        json_node(&x, (node_id){n});
    }
    put(&x, "\n  ],\n  \"outputs\": [");
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        put(&x, k ? ", {\"name\": " : "{\"name\": ");
        json_string(&x, interned(&g->strings, g->outputs.at[k].name));
        buf_printf(out, ", \"value\": %u}", graph_resolve(g, g->outputs.at[k].value).i);
    }
    put(&x, "],\n  \"updates\": [");
    for (uint32_t k = 0; k < g->updates.n; k++)
        buf_printf(out, "%s{\"target\": %u, \"next\": %u}", k ? ", " : "",
                   g->updates.at[k].target.i, graph_resolve(g, g->updates.at[k].next).i);
    put(&x, "]\n}\n");
}
