// SPDX-License-Identifier: Apache-2.0
/* optab.c - the tables of ops and attributes, expanded from ops.def and attrs.def. Only the columns
 * that describe an op; handlers live with whoever owns them. */
#include "ir/internal.h"
#include <string.h>

enum { ANY = OP_ANY };
static const struct op_info op_rows[OP_COUNT] = {
    [OP_NONE] = {"none", 0, 0, 0, 0, "", "", ""},
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs)                \
    [OP_##id] = {#id, min_in, max_in, outs, traits, #lower, emit, attrs},
#include "ir/ops.def"
#undef OP
};

const struct op_info *op_info(enum op op) {
    return &op_rows[(unsigned)op < OP_COUNT ? op : OP_NONE];
}

enum op op_from_name(const char *s, size_t n) {
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        const char *name = op_rows[op].name;
        if (strncmp(name, s, n) == 0 && name[n] == '\0') return (enum op)op;
    }
    return OP_NONE;
}

struct attr_row {
    const char *name;
    enum attr_kind kind;
};
static const struct attr_row attr_rows[ATTR_COUNT] = {
    [ATTR_NONE] = {"none", AK_INT},
#define ATTR(name, kind) [ATTR_##name] = {#name, AK_##kind},
#include "ir/attrs.def"
#undef ATTR
};

enum attr_kind attr_kind(enum attr_key k) {
    return attr_rows[(unsigned)k < ATTR_COUNT ? k : ATTR_NONE].kind;
}

const char *attr_name(enum attr_key k) {
    return attr_rows[(unsigned)k < ATTR_COUNT ? k : ATTR_NONE].name;
}

enum attr_key attr_from_name(const char *s, size_t n) {
    for (int k = ATTR_NONE + 1; k < ATTR_COUNT; k++) {
        const char *name = attr_rows[k].name;
        if (strncmp(name, s, n) == 0 && name[n] == '\0') return (enum attr_key)k;
    }
    return ATTR_NONE;
}

/* ---- the attrs column ---------------------------------------------------------------------- */
static bool word_is(const char *s, size_t n, const char *word) {
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

static bool read_digits(const char **p, const char *end, int64_t *v, int *digits) {
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p, ++*digits)
        if (__builtin_mul_overflow(*v, 10, v) || __builtin_add_overflow(*v, **p - '0', v))
            return false;
    return true;
}

/* A decimal with at most 15 digits and a scale within 10^22: both exact as doubles, so the single
 * division or product rounds correctly whatever the locale is. */
static bool read_number(const char *p, const char *end, double *out, int64_t *whole, bool *is_int) {
    bool negative = p < end && *p == '-';
    int64_t m = 0, e = 0;
    int digits = 0, fraction = 0, exponent_digits = 0;
    p += negative;
    if (!read_digits(&p, end, &m, &digits)) return false;
    *is_int = p == end;
    if (p < end && *p == '.') {
        p++;
        if (!read_digits(&p, end, &m, &fraction)) return false;
    }
    if (p < end && *p == 'e') {
        bool down = ++p < end && *p == '-';
        p += down;
        if (!read_digits(&p, end, &e, &exponent_digits) || !exponent_digits) return false;
        if (down) e = -e;
    }
    e -= fraction;
    if (p != end || digits == 0 || digits + fraction > 15 || e < -22 || e > 22) return false;
    double scale = 1;
    for (int64_t k = e < 0 ? -e : e; k > 0; k--) scale *= 10;
    *out = e < 0 ? (double)m / scale : (double)m * scale;
    if (negative) *out = -*out;
    *whole = negative ? -m : m;
    return true;
}

static bool parse_default(struct arena *a, const char *s, size_t n, struct attr *out) {
    double f;
    int64_t i;
    bool is_int;
    switch (attr_kind(out->key)) {
    case AK_BOOL: out->i = word_is(s, n, "true"); return out->i || word_is(s, n, "false");
    case AK_DTYPE: out->i = dtype_from_name(s, n); return out->i != DT_NONE;
    case AK_BLOB: return word_is(s, n, "none");
    case AK_STR:
        if (n < 2 || s[0] != '"' || s[n - 1] != '"' || memchr(s + 1, '"', n - 2)) return false;
        out->s = arena_strndup(a, s + 1, n - 2);
        return true;
    case AK_INT:
        if (!read_number(s, s + n, &f, &i, &is_int) || !is_int) return false;
        out->i = i;
        return true;
    case AK_FLOAT:
        if (!read_number(s, s + n, &f, &i, &is_int) || is_int) return false;
        out->f = f;
        return true;
    default: return false; /* lists have no defaults */
    }
}

/* One "name" or "name=default". */
static bool parse_attr(struct arena *a, const char *s, size_t n, struct op_attr *out) {
    const char *eq = memchr(s, '=', n);
    size_t name_n = eq ? (size_t)(eq - s) : n;
    *out = (struct op_attr){.required = !eq, .value = {.key = attr_from_name(s, name_n)}};
    if (out->value.key == ATTR_NONE) return false;
    return !eq || parse_default(a, eq + 1, n - name_n - 1, &out->value);
}

static struct op_spec parse_row(struct arena *a, enum op op) {
    struct op_attr found[ATTR_COUNT];
    int n = 0;
    for (const char *p = op_rows[op].attrs; *p;) {
        size_t len = strcspn(p, " ");
        CHECK(a->ctx, n < ATTR_COUNT && parse_attr(a, p, len, &found[n]));
        for (int k = 0; k < n; k++) CHECK(a->ctx, found[k].value.key != found[n].value.key);
        n++;
        p += len;
        p += strspn(p, " ");
    }
    struct op_attr *at = ARENA_ARRAY(a, struct op_attr, (size_t)n);
    if (n) memcpy(at, found, (size_t)n * sizeof *at);
    return (struct op_spec){n, at};
}

const struct op_spec *op_specs_parse(struct arena *a) {
    struct op_spec *specs = ARENA_ARRAY(a, struct op_spec, OP_COUNT);
    for (int op = 0; op < OP_COUNT; op++) specs[op] = parse_row(a, (enum op)op);
    return specs;
}

int op_attrs(const struct graph *g, enum op op, const struct op_attr **out) {
    CHECK(g->ctx, (unsigned)op < OP_COUNT);
    *out = g->specs[op].at;
    return g->specs[op].n;
}

const struct op_attr *op_attr_find(const struct graph *g, enum op op, enum attr_key k) {
    const struct op_attr *at;
    int n = op_attrs(g, op, &at);
    for (int j = 0; j < n; j++)
        if (at[j].value.key == k) return &at[j];
    return NULL;
}
