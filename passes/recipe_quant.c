// SPDX-License-Identifier: Apache-2.0
/* recipe_quant.c - the keys of a recipe about 8-bit products and kept values: products, saved and
 * `for PATTERN:`. What they do to a graph is in granularity.c and save_quantized.c. */
#include "base/diag.h"
#include "base/vec.h"
#include "passes/recipe_read.h"
#include <string.h>

static bool low_format(struct text t, enum dtype *out) {
    *out = text_is(t, "e4m3") ? DT_e4m3 : DT_e5m2;
    return *out == DT_e4m3 || text_is(t, "e5m2");
}

static bool scale_type(struct text t, enum dtype *out) {
    *out = text_is(t, "f32") ? DT_f32 : text_is(t, "bf16") ? DT_bf16 : DT_e8m0;
    return *out != DT_e8m0 || text_is(t, "pow2");
}

enum status read_products(struct reader *x) {
    struct recipe_products *p = x->products;
    p->low = !text_is(x->value, "follow");
    if (!p->low || low_format(x->value, &p->format)) return ST_OK;
    return recipe_wrong(x, "follow, e4m3 or e5m2", x->value);
}

enum status read_products_gradients(struct reader *x) {
    if (low_format(x->value, &x->products->gradients)) return ST_OK;
    return recipe_wrong(x, "e4m3 or e5m2", x->value);
}

enum status read_products_scope(struct reader *x) {
    static const char *const names[] = {"tensor", "row", "block"};
    for (int k = 0; k < 3; k++) {
        x->products->scope = (enum quant_scope)k;
        if (text_is(x->value, names[k])) return ST_OK;
    }
    return recipe_wrong(x, "tensor, row or block", x->value);
}

/* "current", or "delayed 16 margin 1". */
enum status read_products_scale(struct reader *x) {
    enum { HISTORY_MAX = 1024, MARGIN_MAX = 6 };
    const char *expected = "current, or delayed N [margin M] with 1 to 1024 steps, margin 0 to 6";
    struct text rest = x->value, word = text_word(&rest);
    struct recipe_products *p = x->products;
    p->history = p->margin = 0;
    if (text_is(word, "current") && rest.n == 0) return ST_OK;
    if (!text_is(word, "delayed") || !text_number(&rest, &p->history))
        return recipe_wrong(x, expected, x->value);
    bool ok = p->history >= 1 && p->history <= HISTORY_MAX;
    if (rest.n) ok = ok && text_is(text_word(&rest), "margin") && text_number(&rest, &p->margin);
    ok = ok && rest.n == 0 && p->margin <= MARGIN_MAX;
    return ok ? ST_OK : recipe_wrong(x, expected, x->value);
}

enum status read_products_scale_type(struct reader *x) {
    if (scale_type(x->value, &x->products->scale_type)) return ST_OK;
    return recipe_wrong(x, "f32, bf16 or pow2", x->value);
}

enum status read_products_head(struct reader *x) {
    static const char *const words[] = {[HEAD_WIDE] = "wide",
                                        [HEAD_SCORES] = "scores",
                                        [HEAD_GRADIENTS] = "gradients",
                                        [HEAD_LOW] = "low"};
    for (int k = HEAD_WIDE; k <= HEAD_LOW; k++) {
        if (!text_is(x->value, words[k])) continue;
        x->r->head = (enum head_products)k;
        return ST_OK;
    }
    return recipe_wrong(x, "wide, scores, gradients or low", x->value);
}

enum status read_products_wide(struct reader *x) {
    return recipe_patterns(x, "patterns of node names, comma-separated", &x->r->wide, &x->r->nwide);
}

/* "follow", or "e4m3 group 16 [bf16]". */
enum status read_saved(struct reader *x) {
    enum { GROUP_MAX = 1024 };
    const char *expected = "follow, or e4m3 or e5m2, group N (16, 32, .. 1024), f32, bf16 or pow2";
    struct text rest = x->value, word = text_word(&rest);
    struct recipe_saved s = {.format = DT_bf16};
    x->r->saved = s;
    if (text_is(word, "follow") && rest.n == 0) return ST_OK;
    s.scale_type = DT_bf16;
    bool ok = low_format(word, &s.format) && text_is(text_word(&rest), "group") &&
              text_number(&rest, &s.group);
    ok = ok && s.group >= 16 && s.group <= GROUP_MAX && (s.group & (s.group - 1)) == 0;
    if (rest.n) ok = ok && scale_type(text_word(&rest), &s.scale_type) && rest.n == 0;
    x->r->saved = s;
    return ok ? ST_OK : recipe_wrong(x, expected, x->value);
}

/* ---- overrides ----------------------------------------------------------------------------- */
static const struct {
    const char *name;
    enum products_field field;
    enum status (*read)(struct reader *x);
} fields[] = {
    {"products", FIELD_FORMAT, read_products},
    {"products.gradients", FIELD_GRADIENTS, read_products_gradients},
    {"products.scope", FIELD_SCOPE, read_products_scope},
    {"products.scale", FIELD_SCALE, read_products_scale},
    {"products.scale_type", FIELD_SCALE_TYPE, read_products_scale_type},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static void set_field(struct recipe_products *p, const struct recipe_override *o) {
    const struct recipe_products *v = &o->value;
    switch ((enum products_field)o->field) {
    case FIELD_FORMAT:
        p->low = v->low;
        if (v->low) p->format = v->format;
        break;
    case FIELD_GRADIENTS: p->gradients = v->gradients; break;
    case FIELD_SCOPE: p->scope = v->scope; break;
    case FIELD_SCALE: p->history = v->history, p->margin = v->margin; break;
    case FIELD_SCALE_TYPE: p->scale_type = v->scale_type; break;
    }
}

enum status read_override(struct reader *x, struct text line) {
    enum { OVERRIDES_MAX = 64 };
    const char *expected = "for PATTERN: KEY = VALUE with one of the keys of products";
    const char *eq = memchr(line.at, '=', line.n), *colon = eq;
    while (colon && colon > line.at && *colon != ':') colon--;
    if (!eq || *colon != ':') return recipe_wrong(x, expected, line);
    struct text pattern = {line.at, (size_t)(colon - line.at)};
    (void)text_word(&pattern); /* "for" */
    x->key = text_trim((struct text){colon + 1, (size_t)(eq - colon - 1)});
    x->value = text_trim((struct text){eq + 1, (size_t)(line.at + line.n - eq - 1)});
    int k = 0;
    while (k < FIELDS && !text_is(x->key, fields[k].name)) k++;
    if (k == FIELDS || pattern.n == 0) return recipe_wrong(x, expected, line);
    if (x->r->noverrides == OVERRIDES_MAX)
        return recipe_wrong(x, "at most 64 lines that begin with for", line);
    struct recipe_override o = {.pattern = arena_strndup(x->arena, pattern.at, pattern.n),
                                .field = fields[k].field};
    x->products = &o.value;
    enum status st = fields[k].read(x);
    x->products = &x->r->products;
    if (st != ST_OK) return st;
    struct recipe_override *all = ARENA_ARRAY(x->arena, struct recipe_override, OVERRIDES_MAX);
    for (int i = 0; i < x->r->noverrides; i++) all[i] = x->r->overrides[i];
    all[x->r->noverrides++] = o;
    x->r->overrides = all;
    return ST_OK;
}

static bool matches(const char *pattern, const char *origin) {
    while (*origin) {
        const char *end = strstr(origin, "; ");
        size_t n = end ? (size_t)(end - origin) : strlen(origin);
        if (recipe_match(pattern, origin, n)) return true;
        origin += n + (end ? 2 : 0);
    }
    return false;
}

struct recipe_products recipe_products_of(const struct recipe *r, const char *origin) {
    struct recipe_products p = r->products;
    for (int k = 0; k < r->noverrides; k++)
        if (matches(r->overrides[k].pattern, origin)) set_field(&p, &r->overrides[k]);
    for (int k = 0; k < r->nwide; k++)
        if (matches(r->wide[k], origin)) p.low = false;
    if (recipe_keeps_wide(r, origin)) p.low = false;
    return p;
}

static enum status check_one(const struct reader *x, const struct recipe_products *p,
                             const char *where) {
    const char *bad = NULL;
    if (!p->low) return ST_OK;
    if (x->r->compute != DT_bf16)
        bad = "compute = bf16 around 8-bit products";
    else if (p->format == DT_e5m2 && p->gradients == DT_e5m2)
        bad = "e4m3 for values or for gradients: no product reads e5m2 twice";
    else if (p->format == DT_e5m2)
        bad = "products = e4m3: no product reads e5m2 twice, and forward both are values";
    else if (p->history > 0 && p->scope != QUANT_TENSOR)
        bad = "products.scope = tensor with delayed scales";
    else if (p->scope != QUANT_TENSOR && p->scale_type == DT_bf16)
        bad = "products.scale_type = f32 or pow2 with rows and blocks";
    if (!bad) return ST_OK;
    return diag_error(x->ctx, ST_USAGE, "", "%s: expected %s%s", x->file, bad, where);
}

enum status check_products(const struct reader *x) {
    TRY(check_one(x, &x->r->products, ""));
    for (int k = 0; k < x->r->noverrides; k++) {
        /* all that a node of this name gets, whatever order the lines stand in */
        struct recipe_products p = recipe_products_of(x->r, x->r->overrides[k].pattern);
        TRY(check_one(x, &p, " (for lines together)"));
    }
    return ST_OK;
}
