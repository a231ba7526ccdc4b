// SPDX-License-Identifier: Apache-2.0
/* dims.c - symbolic dimensions: interned polynomials with integer coefficients in named symbols.
 * Terms are ordered by degree and then by symbol name, so that equal polynomials have equal ids and
 * print alike in every table. Not a solver: no inequalities, no rounding division. */
#include "ir/types.h"
#include <string.h>

struct mono {
    uint32_t degree;
    const uint32_t *sym; /* symbol ids, sorted by name, repeated for powers */
};
struct term {
    int64_t coef; /* never 0, never INT64_MIN */
    uint32_t mono, zero;
};
struct poly {
    uint32_t n;
    const struct term *at; /* greatest monomial first */
};
struct dims_table {
    struct arena *arena;
    struct interner symbols;
    VEC(struct mono) monos; /* [0] is the constant 1 */
    VEC(struct poly) polys; /* id i is dim -(i + 1) */
    struct map mono_map, poly_map;
};
struct work {
    int n;
    struct term at[DIM_TERMS_MAX];
};

static uint32_t mono_intern(struct dims_table *t, const uint32_t *sym, uint32_t degree) {
    uint64_t key = hash_bytes(sym, degree * sizeof *sym);
    uint32_t id;
    for (; map_get(&t->mono_map, key, &id); key = hash_combine(key, 1)) {
        const struct mono *m = &t->monos.at[id];
        if (m->degree == degree && memcmp(m->sym, sym, degree * sizeof *sym) == 0) return id;
    }
    uint32_t *copy = ARENA_ARRAY(t->arena, uint32_t, degree);
    memcpy(copy, sym, degree * sizeof *sym);
    id = t->monos.n;
    vec_push(t->arena, &t->monos, (struct mono){degree, copy});
    map_set(&t->mono_map, key, id);
    return id;
}

struct dims_table *dims_create(struct arena *a) {
    struct dims_table *t = ARENA_NEW(a, struct dims_table);
    static const uint32_t none[1] = {0};
    t->arena = a;
    intern_init(&t->symbols, a);
    map_init(&t->mono_map, a);
    map_init(&t->poly_map, a);
    mono_intern(t, none, 0);
    return t;
}

static int symbol_cmp(const struct dims_table *t, uint32_t a, uint32_t b) {
    if (a == b) return 0;
    return strcmp(interned(&t->symbols, (str_id){a}), interned(&t->symbols, (str_id){b}));
}

/* > 0 when a comes first. Graded lexicographic: multiplying both sides keeps the order. */
static int mono_cmp(const struct dims_table *t, uint32_t a, uint32_t b) {
    if (a == b) return 0;
    const struct mono *x = &t->monos.at[a], *y = &t->monos.at[b];
    if (x->degree != y->degree) return x->degree > y->degree ? 1 : -1;
    for (uint32_t k = 0; k < x->degree; k++)
        if (x->sym[k] != y->sym[k]) return symbol_cmp(t, x->sym[k], y->sym[k]) < 0 ? 1 : -1;
    return 0;
}

static bool mono_mul(struct dims_table *t, uint32_t a, uint32_t b, uint32_t *out) {
    if (a == 0 || b == 0) {
        *out = a | b;
        return true;
    }
    struct mono x = t->monos.at[a], y = t->monos.at[b];
    uint32_t sym[DIM_DEGREE_MAX], i = 0, j = 0, n = x.degree + y.degree;
    if (n > DIM_DEGREE_MAX) return false;
    for (uint32_t k = 0; k < n; k++) {
        bool left = j == y.degree || (i < x.degree && symbol_cmp(t, x.sym[i], y.sym[j]) <= 0);
        sym[k] = left ? x.sym[i++] : y.sym[j++];
    }
    *out = mono_intern(t, sym, n);
    return true;
}

/* a / b when b divides a. */
static bool mono_div(struct dims_table *t, uint32_t a, uint32_t b, uint32_t *out) {
    struct mono x = t->monos.at[a], y = t->monos.at[b];
    uint32_t sym[DIM_DEGREE_MAX], n = 0, j = 0;
    for (uint32_t i = 0; i < x.degree; i++) {
        if (j < y.degree && x.sym[i] == y.sym[j])
            j++;
        else
            sym[n++] = x.sym[i];
    }
    if (j != y.degree) return false;
    *out = mono_intern(t, sym, n);
    return true;
}

/* ---- polynomials --------------------------------------------------------------------------- */
/* The terms of d; `one` is room for the single term of a number. */
static struct poly terms_of(const struct dims_table *t, dim d, struct term *one) {
    if (d < 0) {
        CHECK(t->arena->ctx, (uint64_t)(-(d + 1)) < t->polys.n);
        return t->polys.at[-(d + 1)];
    }
    *one = (struct term){d, 0, 0};
    return (struct poly){d != 0, one};
}

static dim poly_intern(struct dims_table *t, const struct term *at, uint32_t n) {
    if (n == 0) return 0;
    if (n == 1 && at[0].mono == 0 && at[0].coef > 0) return at[0].coef;
    uint64_t key = hash_bytes(at, n * sizeof *at);
    uint32_t id;
    for (; map_get(&t->poly_map, key, &id); key = hash_combine(key, 1)) {
        const struct poly *p = &t->polys.at[id];
        if (p->n == n && memcmp(p->at, at, n * sizeof *at) == 0) return -(dim)id - 1;
    }
    struct term *copy = ARENA_ARRAY(t->arena, struct term, n);
    memcpy(copy, at, n * sizeof *at);
    id = t->polys.n;
    vec_push(t->arena, &t->polys, (struct poly){n, copy});
    map_set(&t->poly_map, key, id);
    return -(dim)id - 1;
}

static bool push_term(struct work *w, int64_t coef, uint32_t mono) {
    if (coef == 0) return true;
    if (coef == INT64_MIN || w->n == DIM_TERMS_MAX) return false;
    w->at[w->n++] = (struct term){coef, mono, 0};
    return true;
}

/* *acc += coef * mono * p; false on overflow. */
static bool add_scaled(struct dims_table *t, struct work *acc, int64_t coef, uint32_t mono,
                       struct poly p) {
    struct work sum;
    int i = 0;
    sum.n = 0;
    for (uint32_t j = 0; j < p.n; j++) {
        int64_t c;
        uint32_t m;
        if (__builtin_mul_overflow(coef, p.at[j].coef, &c)) return false;
        if (!mono_mul(t, mono, p.at[j].mono, &m)) return false;
        for (; i < acc->n && mono_cmp(t, acc->at[i].mono, m) > 0; i++)
            if (!push_term(&sum, acc->at[i].coef, acc->at[i].mono)) return false;
        if (i < acc->n && acc->at[i].mono == m && __builtin_add_overflow(c, acc->at[i++].coef, &c))
            return false;
        if (!push_term(&sum, c, m)) return false;
    }
    for (; i < acc->n; i++)
        if (!push_term(&sum, acc->at[i].coef, acc->at[i].mono)) return false;
    acc->n = sum.n;
    memcpy(acc->at, sum.at, (size_t)sum.n * sizeof *sum.at);
    return true;
}

static bool linear(struct dims_table *t, dim a, int64_t k, dim b, dim *out) {
    struct term one_a, one_b;
    struct work acc;
    acc.n = 0;
    if (!add_scaled(t, &acc, 1, 0, terms_of(t, a, &one_a))) return false;
    if (!add_scaled(t, &acc, k, 0, terms_of(t, b, &one_b))) return false;
    *out = poly_intern(t, acc.at, (uint32_t)acc.n);
    return true;
}

bool dim_try_add(struct dims_table *t, dim a, dim b, dim *out) {
    if (a >= 0 && b >= 0) return !__builtin_add_overflow(a, b, out);
    return linear(t, a, 1, b, out);
}

bool dim_try_sub(struct dims_table *t, dim a, dim b, dim *out) {
    if (b >= 0 && a >= b) {
        *out = a - b;
        return true;
    }
    return linear(t, a, -1, b, out);
}

bool dim_try_mul(struct dims_table *t, dim a, dim b, dim *out) {
    if (a >= 0 && b >= 0) return !__builtin_mul_overflow(a, b, out);
    struct term one_a, one_b;
    struct poly x = terms_of(t, a, &one_a), y = terms_of(t, b, &one_b);
    struct work acc;
    acc.n = 0;
    for (uint32_t i = 0; i < x.n; i++)
        if (!add_scaled(t, &acc, x.at[i].coef, x.at[i].mono, y)) return false;
    *out = poly_intern(t, acc.at, (uint32_t)acc.n);
    return true;
}

static dim checked(struct dims_table *t, bool ok, dim d) {
    if (!ok) ctx_bug(t->arena->ctx, __FILE__, __LINE__, "dimension arithmetic overflows");
    return d;
}

dim dim_add(struct dims_table *t, dim a, dim b) {
    dim d = 0;
    bool ok = dim_try_add(t, a, b, &d);
    return checked(t, ok, d);
}

dim dim_sub(struct dims_table *t, dim a, dim b) {
    dim d = 0;
    bool ok = dim_try_sub(t, a, b, &d);
    return checked(t, ok, d);
}

dim dim_mul(struct dims_table *t, dim a, dim b) {
    dim d = 0;
    bool ok = dim_try_mul(t, a, b, &d);
    return checked(t, ok, d);
}

/* Long division by one polynomial: because the order is admissible, it is exact if it can be. */
bool dim_div(struct dims_table *t, dim a, dim b, dim *out) {
    if (b == 0) return false;
    if (a >= 0 && b > 0) {
        *out = a / b;
        return a % b == 0;
    }
    struct term one_a, one_b;
    struct poly x = terms_of(t, a, &one_a), y = terms_of(t, b, &one_b);
    struct work rest, quotient;
    rest.n = quotient.n = 0;
    if (!add_scaled(t, &rest, 1, 0, x)) return false;
    while (rest.n > 0) {
        uint32_t m;
        if (rest.at[0].coef % y.at[0].coef != 0) return false;
        if (!mono_div(t, rest.at[0].mono, y.at[0].mono, &m)) return false;
        int64_t c = rest.at[0].coef / y.at[0].coef;
        if (!push_term(&quotient, c, m) || !add_scaled(t, &rest, -c, m, y)) return false;
    }
    *out = poly_intern(t, quotient.at, (uint32_t)quotient.n);
    return true;
}

bool dim_same(dim a, dim b) {
    return a == b;
}

static dim symbol_dim(struct dims_table *t, str_id name) {
    struct term one = {1, mono_intern(t, &name.i, 1), 0};
    return poly_intern(t, &one, 1);
}

dim dim_symbol(struct dims_table *t, const char *name) {
    return symbol_dim(t, intern(&t->symbols, name));
}

const char *dim_symbol_name(const struct dims_table *t, dim d) {
    if (d >= 0) return NULL;
    struct poly p = terms_of(t, d, NULL);
    const struct mono *m = &t->monos.at[p.at[0].mono];
    if (p.n != 1 || p.at[0].coef != 1 || m->degree != 1) return NULL;
    return interned(&t->symbols, (str_id){m->sym[0]});
}

/* One term with the known symbols multiplied out, added to *acc. */
static bool bind_term(struct dims_table *t, struct work *acc, struct term term,
                      int64_t (*value)(void *user, const char *symbol), void *user) {
    struct mono m = t->monos.at[term.mono];
    uint32_t sym[DIM_DEGREE_MAX], n = 0;
    int64_t coef = term.coef;
    for (uint32_t k = 0; k < m.degree; k++) {
        int64_t v = value(user, interned(&t->symbols, (str_id){m.sym[k]}));
        if (v < 0)
            sym[n++] = m.sym[k];
        else if (__builtin_mul_overflow(coef, v, &coef))
            return false;
    }
    struct term rest = {1, mono_intern(t, sym, n), 0};
    return add_scaled(t, acc, coef, 0, (struct poly){1, &rest});
}

dim dim_bind(struct dims_table *t, dim d, int64_t (*value)(void *user, const char *symbol),
             void *user) {
    if (d >= 0) return d;
    struct poly p = terms_of(t, d, NULL);
    struct work acc;
    acc.n = 0;
    for (uint32_t k = 0; k < p.n; k++)
        if (!bind_term(t, &acc, p.at[k], value, user)) return d;
    return poly_intern(t, acc.at, (uint32_t)acc.n);
}

struct dims_table *dims_clone(const struct dims_table *t, struct arena *a) {
    struct dims_table *c = dims_create(a);
    for (uint32_t k = 1; k < t->symbols.strings.n; k++)
        intern(&c->symbols, interned(&t->symbols, (str_id){k}));
    for (uint32_t k = 1; k < t->monos.n; k++)
        mono_intern(c, t->monos.at[k].sym, t->monos.at[k].degree);
    for (uint32_t k = 0; k < t->polys.n; k++) poly_intern(c, t->polys.at[k].at, t->polys.at[k].n);
    return c;
}

/* ---- text ---------------------------------------------------------------------------------- */
static bool name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool name_char(char c) {
    return name_start(c) || (c >= '0' && c <= '9') || c == '.';
}

static void symbol_print(const char *name, struct buf *out) {
    bool plain = name_start(name[0]);
    for (const char *p = name; *p; p++) plain = plain && name_char(*p);
    if (plain)
        buf_puts(out, name);
    else
        buf_quoted(out, name);
}

void dim_print(const struct dims_table *t, dim d, struct buf *out) {
    struct term one;
    struct poly p = terms_of(t, d, &one);
    if (p.n == 0) buf_puts(out, "0");
    for (uint32_t k = 0; k < p.n; k++) {
        const struct mono *m = &t->monos.at[p.at[k].mono];
        int64_t c = p.at[k].coef;
        if (c < 0)
            buf_puts(out, "-");
        else if (k > 0)
            buf_puts(out, "+");
        if (c < 0) c = -c;
        if (c != 1 || m->degree == 0) buf_printf(out, "%lld", (long long)c);
        for (uint32_t j = 0; j < m->degree; j++) {
            if (j > 0 || c != 1) buf_puts(out, "*");
            symbol_print(interned(&t->symbols, (str_id){m->sym[j]}), out);
        }
    }
}

struct reader {
    struct dims_table *t;
    const char *p, *end;
    int depth;
};

static char peek(struct reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t')) r->p++;
    return r->p < r->end ? *r->p : '\0';
}

static bool read_sum(struct reader *r, dim *out);

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* A symbol in the quoted form of buf_quoted. */
static bool read_quoted(struct reader *r, dim *out) {
    char *name = arena_alloc(r->t->arena, (size_t)(r->end - r->p));
    size_t n = 0;
    for (r->p++; r->p < r->end && *r->p != '"'; r->p++) {
        char c = *r->p;
        if (c == '\\') {
            if (++r->p == r->end) return false;
            c = *r->p;
            if (c == 'n') {
                c = '\n';
            } else if (c == 't') {
                c = '\t';
            } else if (c == 'x') {
                if (r->end - r->p < 3) return false;
                int hi = hex_digit(r->p[1]), lo = hex_digit(r->p[2]);
                if (hi < 0 || lo < 0) return false;
                c = (char)(hi * 16 + lo);
                r->p += 2;
            } else if (c != '"' && c != '\\') {
                return false;
            }
        }
        if (c == '\0') return false;
        name[n++] = c;
    }
    if (r->p == r->end || n == 0) return false;
    r->p++;
    *out = dim_symbol(r->t, name); /* arena memory is zeroed: terminated */
    return true;
}

static bool read_factor(struct reader *r, dim *out) {
    char c = peek(r);
    if (c == '"') return read_quoted(r, out);
    if (c == '(') {
        if (++r->depth > 32) return false;
        r->p++;
        if (!read_sum(r, out) || peek(r) != ')') return false;
        r->p++;
        r->depth--;
        return true;
    }
    if (c >= '0' && c <= '9') {
        int64_t v = 0;
        for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
            if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *r->p - '0', &v))
                return false;
        *out = v;
        return r->p == r->end || !name_char(*r->p);
    }
    if (!name_start(c)) return false;
    const char *start = r->p;
    while (r->p < r->end && name_char(*r->p)) r->p++;
    *out = symbol_dim(r->t, intern_n(&r->t->symbols, start, (size_t)(r->p - start)));
    return true;
}

static bool read_product(struct reader *r, dim *out) {
    dim d;
    if (!read_factor(r, out)) return false;
    while (peek(r) == '*') {
        r->p++;
        if (!read_factor(r, &d) || !dim_try_mul(r->t, *out, d, out)) return false;
    }
    return true;
}

static bool read_sum(struct reader *r, dim *out) {
    char sign = peek(r);
    dim d;
    *out = 0;
    if (sign == '-')
        r->p++;
    else
        sign = '+';
    for (;;) {
        if (!read_product(r, &d)) return false;
        bool ok = sign == '+' ? dim_try_add(r->t, *out, d, out) : dim_try_sub(r->t, *out, d, out);
        if (!ok) return false;
        sign = peek(r);
        if (sign != '+' && sign != '-') return true;
        r->p++;
    }
}

bool dim_parse(struct dims_table *t, const char *s, size_t n, dim *out) {
    struct reader r = {t, s, s + n, 0};
    dim d;
    if (!read_sum(&r, &d) || peek(&r) != '\0' || r.p != r.end) return false;
    *out = d;
    return true;
}
