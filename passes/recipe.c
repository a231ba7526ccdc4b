// SPDX-License-Identifier: Apache-2.0
/* recipe.c - the reader of recipe texts. Keys of products and kept values are in recipe_quant.c. */
#include "base/arena.h"
#include "base/diag.h"
#include "base/expand.h"
#include "base/sys.h"
#include "base/vec.h"
#include "passes/recipe_read.h"
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------- */
struct text text_trim(struct text t) {
    while (t.n > 0 && (t.at[0] == ' ' || t.at[0] == '\t')) t.at++, t.n--;
    while (t.n > 0 && (t.at[t.n - 1] == ' ' || t.at[t.n - 1] == '\t' || t.at[t.n - 1] == '\r'))
        t.n--;
    return t;
}

bool text_is(struct text t, const char *word) {
    return t.n == strlen(word) && memcmp(t.at, word, t.n) == 0;
}

enum status recipe_wrong(const struct reader *x, const char *expected, struct text found) {
    return diag_error(x->ctx, ST_USAGE, "", "%s:%d: expected %s, found '%.*s'", x->file, x->line,
                      expected, (int)(found.n < 200 ? found.n : 200), found.at);
}

static enum status read_type(struct reader *x, enum dtype *out) {
    if (text_is(x->value, "f32"))
        *out = DT_f32;
    else if (text_is(x->value, "bf16"))
        *out = DT_bf16;
    else
        return recipe_wrong(x, "f32 or bf16", x->value);
    return ST_OK;
}

static enum status read_compute(struct reader *x) {
    return read_type(x, &x->r->compute);
}

static enum status read_activations(struct reader *x) {
    return read_type(x, &x->r->activations);
}

static enum status read_gradients(struct reader *x) {
    return text_is(x->value, "follow") ? ST_OK : recipe_wrong(x, "follow", x->value);
}

static enum status read_master(struct reader *x) {
    return text_is(x->value, "f32") ? ST_OK : recipe_wrong(x, "f32", x->value);
}

static enum status read_tf32(struct reader *x) {
    x->r->tf32 = text_is(x->value, "true");
    return x->r->tf32 || text_is(x->value, "false") ? ST_OK
                                                    : recipe_wrong(x, "true or false", x->value);
}

static enum status read_chunk_loss(struct reader *x) {
    const char *expected = "auto, off or a number of rows from 1 to 2^30";
    int64_t n = 0;
    x->r->chunk_loss = CHUNK_AUTO;
    if (text_is(x->value, "auto")) return ST_OK;
    x->r->chunk_loss = CHUNK_OFF;
    if (text_is(x->value, "off")) return ST_OK;
    for (size_t i = 0; i < x->value.n; i++) {
        char d = x->value.at[i];
        if (d < '0' || d > '9' || n > (1 << 30)) return recipe_wrong(x, expected, x->value);
        n = 10 * n + (d - '0');
    }
    if (n < 1 || n > (1 << 30)) return recipe_wrong(x, expected, x->value);
    x->r->chunk_loss = n;
    return ST_OK;
}

static enum status read_save(struct reader *x) {
    const char *expected = "auto, all or a size such as 12 GiB or 900 MiB";
    struct text v = x->value;
    int64_t n = 0;
    x->r->save = text_is(v, "all") ? SAVE_ALL : SAVE_AUTO;
    if (x->r->save == SAVE_ALL || text_is(v, "auto")) return ST_OK;
    for (; v.n > 0 && *v.at >= '0' && *v.at <= '9' && n < 1 << 20; v.at++, v.n--)
        n = 10 * n + (*v.at - '0');
    v = text_trim(v);
    int shift = text_is(v, "GiB") ? 30 : text_is(v, "MiB") ? 20 : 0;
    if (n < 1 || n > 1 << 20 || shift == 0) return recipe_wrong(x, expected, x->value);
    x->r->save_bytes = n << shift;
    return ST_OK;
}

enum status recipe_patterns(struct reader *x, const char *what, const char *const **out, int *n) {
    enum { PATTERNS_MAX = 64 };
    const char **list = ARENA_ARRAY(x->arena, const char *, PATTERNS_MAX);
    struct text rest = x->value;
    *n = 0;
    *out = list;
    while (rest.n > 0) {
        const char *comma = memchr(rest.at, ',', rest.n);
        struct text one = {rest.at, comma ? (size_t)(comma - rest.at) : rest.n};
        rest.at += one.n + (comma != NULL), rest.n -= one.n + (comma != NULL);
        one = text_trim(one);
        if (one.n == 0 || (comma && text_trim(rest).n == 0)) return recipe_wrong(x, what, x->value);
        if (*n == PATTERNS_MAX) return recipe_wrong(x, "at most 64 patterns", x->value);
        list[(*n)++] = arena_strndup(x->arena, one.at, one.n);
    }
    return ST_OK;
}

static enum status read_keep_wide(struct reader *x) {
    return recipe_patterns(x, "patterns of node names, comma-separated", &x->r->keep_wide,
                           &x->r->nkeep_wide);
}

static enum status read_state_wide(struct reader *x) {
    return recipe_patterns(x, "patterns of parameter names, comma-separated", &x->r->wide_states,
                           &x->r->nwide_states);
}

static enum status read_nonfinite(struct reader *x) {
    x->r->skip_nonfinite = text_is(x->value, "skip");
    return x->r->skip_nonfinite || text_is(x->value, "stop")
               ? ST_OK
               : recipe_wrong(x, "stop or skip", x->value);
}

/* ---- states: "f32", or "e4m3 group 128 expand 229376 contract stochastic" ---------------------
 */
struct text text_word(struct text *rest) {
    size_t n = 0;
    *rest = text_trim(*rest);
    while (n < rest->n && rest->at[n] != ' ' && rest->at[n] != '\t') n++;
    struct text word = {rest->at, n};
    rest->at += n, rest->n -= n;
    *rest = text_trim(*rest);
    return word;
}

/* A whole number below 2^40; false, and nothing taken, when the next word is none. */
bool text_number(struct text *rest, int64_t *out) {
    struct text before = *rest, word = text_word(rest);
    int64_t n = 0;
    bool ok = word.n > 0;
    for (size_t i = 0; ok && i < word.n; i++) {
        ok = word.at[i] >= '0' && word.at[i] <= '9' && n < INT64_C(1) << 36;
        n = 10 * n + (word.at[i] - '0');
    }
    if (ok) *out = n;
    if (!ok) *rest = before;
    return ok;
}

static enum status read_expand(struct reader *x, struct text *rest, struct recipe_state *s) {
    enum expand_format f = s->format == DT_e5m2 ? EXPAND_E5M2 : EXPAND_E4M3;
    struct text before = *rest;
    int64_t n = 0;
    s->range = expand_default_range(f);
    if (text_number(rest, &n)) {
        s->range = (double)n;
        return n >= 2 ? ST_OK : recipe_wrong(x, "a range of 2 or more after expand", before);
    }
    if (!text_is(text_word(rest), "full"))
        *rest = before;
    else
        s->range = expand_full_range(f);
    return ST_OK;
}

static enum status read_state_word(struct reader *x, struct text word, struct text *rest,
                                   struct recipe_state *s) {
    const char *expected = s == &x->r->m ? "group, expand or contract"
                                         : "group, expand, contract, nearest or stochastic";
    struct text number = *rest;
    if (text_is(word, "expand")) return read_expand(x, rest, s);
    if (text_is(word, "group")) {
        bool ok = text_number(rest, &s->group) &&
                  (s->group == 32 || s->group == 64 || s->group == 128 || s->group == 256);
        return ok ? ST_OK : recipe_wrong(x, "32, 64, 128 or 256 after group", number);
    }
    if (text_is(word, "contract"))
        s->contract = true;
    else if (s == &x->r->v && text_is(word, "nearest"))
        s->rounding = STATE_NEAREST;
    else if (s == &x->r->v && text_is(word, "stochastic"))
        s->rounding = STATE_STOCHASTIC;
    else
        return recipe_wrong(x, expected, word);
    return ST_OK;
}

static enum status read_state(struct reader *x, struct recipe_state *s) {
    struct text rest = x->value, format = text_word(&rest);
    s->format = text_is(format, "e4m3") ? DT_e4m3 : text_is(format, "e5m2") ? DT_e5m2 : DT_f32;
    if (s->format == DT_f32 && !text_is(format, "f32"))
        return recipe_wrong(x, "f32, e4m3 or e5m2", format);
    if (s->format == DT_f32 && rest.n) return recipe_wrong(x, "nothing after f32", rest);
    while (rest.n > 0) {
        struct text word = text_word(&rest);
        TRY(read_state_word(x, word, &rest, s));
    }
    if (s->contract && s->range == 0.0) return recipe_wrong(x, "expand with contract", x->value);
    return ST_OK;
}

static enum status read_state_m(struct reader *x) {
    return read_state(x, &x->r->m);
}

static enum status read_state_v(struct reader *x) {
    return read_state(x, &x->r->v);
}

/* One step takes both. */
static enum status check_states(const struct reader *x) {
    const struct recipe_state *m = &x->r->m, *v = &x->r->v;
    if (m->format == DT_f32 || v->format == DT_f32) return ST_OK;
    if (m->group != v->group)
        return diag_error(
            x->ctx, ST_USAGE, "",
            "%s: expected one group size for state.m and state.v, found %lld and %lld", x->file,
            (long long)m->group, (long long)v->group);
    if (m->contract == v->contract || m->range == 0.0 || v->range == 0.0) return ST_OK;
    return diag_error(x->ctx, ST_USAGE, "",
                      "%s: expected contract for both of state.m and state.v or for none", x->file);
}

static const struct {
    const char *name;
    enum status (*read)(struct reader *x);
} keys[] = {
    {"compute", read_compute},
    {"activations", read_activations},
    {"gradients", read_gradients},
    {"master", read_master},
    {"tf32", read_tf32},
    {"chunk_loss", read_chunk_loss},
    {"save", read_save},
    {"keep_wide", read_keep_wide},
    {"state.m", read_state_m},
    {"state.v", read_state_v},
    {"state.wide", read_state_wide},
    {"nonfinite", read_nonfinite},
    {"products", read_products},
    {"products.gradients", read_products_gradients},
    {"products.scope", read_products_scope},
    {"products.scale", read_products_scale},
    {"products.scale_type", read_products_scale_type},
    {"products.head", read_products_head},
    {"products.wide", read_products_wide},
    {"saved", read_saved},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static enum status read_line(struct reader *x, struct text line, int *seen) {
    const char *comment = line.n ? memchr(line.at, '#', line.n) : NULL;
    if (comment) line.n = (size_t)(comment - line.at);
    line = text_trim(line);
    if (line.n == 0) return ST_OK;
    struct text rest = line;
    if (text_is(text_word(&rest), "for")) return read_override(x, line);
    const char *eq = memchr(line.at, '=', line.n);
    if (!eq) return recipe_wrong(x, "key = value", line);
    x->key = text_trim((struct text){line.at, (size_t)(eq - line.at)});
    x->value = text_trim((struct text){eq + 1, (size_t)(line.at + line.n - eq - 1)});
    int k = 0;
    while (k < KEYS && !text_is(x->key, keys[k].name)) k++;
    if (k == KEYS) return recipe_wrong(x, "a key (`lathe recipes show coat` has the most)", x->key);
    if (seen[k])
        return diag_error(x->ctx, ST_USAGE, "",
                          "%s:%d: expected each key once, found '%s' as on line %d", x->file,
                          x->line, keys[k].name, seen[k]);
    seen[k] = x->line;
    return keys[k].read(x);
}

enum status recipe_parse(struct ctx *c, struct arena *a, const char *file, const char *text,
                         size_t n, struct recipe *out) {
    struct reader x = {.ctx = c, .arena = a, .file = file, .r = out};
    int seen[KEYS] = {0};
    x.products = &out->products;
    struct text rest = {text, n};
    *out =
        (struct recipe){.name = arena_strdup(a, file),
                        .compute = DT_f32,
                        .activations = DT_f32,
                        .chunk_loss = CHUNK_AUTO,
                        .products = {.format = DT_e4m3, .gradients = DT_e5m2, .scale_type = DT_f32},
                        .saved = {.format = DT_bf16},
                        .m = {.format = DT_f32, .group = EXPAND_GROUP},
                        .v = {.format = DT_f32, .group = EXPAND_GROUP}};
    while (rest.n > 0) {
        const char *end = memchr(rest.at, '\n', rest.n);
        struct text line = {rest.at, end ? (size_t)(end - rest.at) : rest.n};
        rest.at += line.n + (end != NULL), rest.n -= line.n + (end != NULL);
        x.line++;
        TRY(read_line(&x, line, seen));
    }
    TRY(check_products(&x));
    return check_states(&x);
}

enum status recipe_find(struct ctx *c, struct arena *a, const char *name, struct recipe *out) {
    enum { FILE_MAX = 1 << 20 };
    int count;
    const struct recipe_text *builtins = recipe_builtins(&count);
    if (!name) name = builtins[0].name;
    for (int i = 0; i < count; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return recipe_parse(c, a, name, builtins[i].text, strlen(builtins[i].text), out);
    if (!sys_exists(name) || sys_is_dir(name))
        return diag_error(c, ST_USAGE, "", "no recipe is called '%s'; `lathe recipes` lists them",
                          name);
    struct file_map map;
    TRY(sys_map_file(a, name, &map));
    if (map.size > FILE_MAX)
        return diag_error(c, ST_USAGE, "", "%s: expected a recipe, found a file of %zu bytes", name,
                          map.size);
    return recipe_parse(c, a, name, (const char *)map.at, map.size, out);
}

/* ---- patterns ------------------------------------------------------------------------------ */
bool recipe_match(const char *p, const char *name, size_t n) {
    const char *star = NULL, *end = name + n, *back = name;
    while (name < end) {
        if (*p == '*') {
            star = p++, back = name;
        } else if (*p != '\0' && (*p == '?' || *p == *name)) {
            p++, name++;
        } else if (star) { /* the last star takes one character more */
            p = star + 1, name = ++back;
        } else {
            return false;
        }
    }
    while (*p == '*') p++;
    return *p == '\0';
}

bool recipe_keeps_wide(const struct recipe *r, const char *origin) {
    while (r && *origin) {
        const char *end = strstr(origin, "; ");
        size_t n = end ? (size_t)(end - origin) : strlen(origin);
        for (int k = 0; k < r->nkeep_wide; k++)
            if (recipe_match(r->keep_wide[k], origin, n)) return true;
        origin += n + (end ? 2 : 0);
    }
    return false;
}
