// SPDX-License-Identifier: Apache-2.0
/* op_cases.h - builds the graphs of tests/op/cases.def, for the tests that run every op. */
#ifndef LATHE_TEST_OP_CASES_H
#define LATHE_TEST_OP_CASES_H

#include "ir/build.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct op_case {
    enum op op;
    const char *operands, *attrs;
};
static const struct op_case cases[] = {
#define CASE(op, operands, attrs) {OP_##op, operands, attrs},
#include "tests/op/cases.def"
#undef CASE
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* ---- building from text -------------------------------------------------------------------- */
/* 53 bits of a hash of i: the same values on every machine. */
static inline double noise(uint64_t i) {
    uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static inline double sample(uint64_t i) {
    double u = noise(i);
    return u < 0.5 ? -0.95 + 1.5 * u : 0.2 + 1.5 * (u - 0.5);
}

static inline val_id add_param(struct graph *g, const char *name, const struct type *t,
                               const double *v, bool frozen) {
    int64_t n = type_count(t);
    size_t size = dtype_size(t->dtype);
    char *bytes = ARENA_ARRAY(&g->arena, char, (size_t)n *size);
    for (int64_t i = 0; i < n; i++) dtype_store(t->dtype, bytes + (size_t)i * size, v[i]);
    struct attr attrs[3] = {
        {.key = ATTR_name, .s = name},
        {.key = ATTR_init, .blob = graph_blob(g, bytes, (size_t)n * size, false)},
        {.key = ATTR_frozen, .i = frozen},
    };
    val_id p = graph_source(g, OP_param, t, attrs, 3, intern(&g->strings, name));
    graph_set_name(g, p, name);
    return p;
}

/* One operand of cases.def; floats are of type `real`. */
static inline val_id case_operand(struct graph *g, const char *s, int k, enum dtype real) {
    char kind = s[0], name[16];
    struct type t = {.dtype = kind == 'i' ? DT_i64 : kind == 'b' ? DT_bool : real};
    const char *at = s + 1;
    ck_assert_int_eq(*at, '[');
    for (at++; *at != ']'; at += *at == ',') {
        char *end;
        t.dims[t.rank++] = strtoll(at, &end, 10);
        ck_assert_ptr_ne(end, at);
        at = end;
    }
    at++;
    int64_t n = type_count(&t);
    double *v = ARENA_ARRAY(&g->arena, double, (size_t)n), low = 0, high = 0;
    char *rest = NULL;
    if (*at == '~') {
        low = strtod(at + 1, &rest);
        high = strtod(rest + 1, &rest);
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t seed = (uint64_t)i + 1000 * (uint64_t)k;
        v[i] = *at == '~' ? low + (high - low) * noise(seed) : sample(seed);
        if (kind == 'b') v[i] = v[i] > 0;
        if (*at == '=') {
            v[i] = strtod(rest ? rest + 1 : at + 1, &rest);
            ck_assert_msg(i + 1 == n ? !*rest || *rest == ' ' : *rest == ',', "values of '%s'", s);
        }
    }
    snprintf(name, sizeof name, "p%d", k);
    if (kind == 'f') return add_param(g, name, &t, v, false);
    size_t size = dtype_size(t.dtype);
    char *bytes = ARENA_ARRAY(&g->arena, char, (size_t)n *size);
    for (int64_t i = 0; i < n; i++) dtype_store(t.dtype, bytes + (size_t)i * size, v[i]);
    return build_const(g, &t, bytes, (str_id){0});
}

static inline int read_list(struct graph *g, const char *s, const int64_t **out) {
    int64_t *list = ARENA_ARRAY(&g->arena, int64_t, 32);
    int n = 0;
    while (*s && *s != ' ') {
        char *end;
        list[n++] = strtoll(s, &end, 10);
        s = end + (*end == ',');
    }
    *out = list;
    return n;
}

static inline int read_attrs(struct graph *g, const char *s, struct attr *out) {
    int n = 0;
    while (*s) {
        size_t key = strcspn(s, "="), all = strcspn(s, " ");
        struct attr a = {.key = attr_from_name(s, key)};
        const char *v = s + key + 1;
        ck_assert_msg(a.key != ATTR_NONE && key < all, "attribute in '%s'", s);
        switch (attr_kind(a.key)) {
        case AK_FLOAT: a.f = strtod(v, NULL); break;
        case AK_INTS:
        case AK_DIMS: a.n = read_list(g, v, &a.list); break;
        case AK_DTYPE: a.i = dtype_from_name(v, all - key - 1); break;
        default: a.i = strtoll(v, NULL, 10);
        }
        out[n++] = a;
        s += all + (s[all] == ' ');
    }
    return n;
}

/* The sum over all float results, each element with a weight of its own, so that no error cancels.
 */
static inline val_id weighted_sum(struct graph *g, val_id first, int outs, enum dtype real,
                                  str_id o) {
    val_id sum = VAL_NONE;
    int64_t axes[RANK_MAX];
    for (int i = 0; i < RANK_MAX; i++) axes[i] = i;
    for (int k = 0; k < outs; k++) {
        val_id y = val_at(first, k);
        struct type t = *val_type(g, y);
        if (!dtype_is_float(t.dtype)) continue;
        y = build_cast(g, y, real, o);
        t.dtype = real;
        int64_t n = type_count(&t);
        size_t size = dtype_size(real);
        char *w = ARENA_ARRAY(&g->arena, char, (size_t)n *size);
        for (int64_t i = 0; i < n; i++)
            dtype_store(real, w + (size_t)i * size, sample((uint64_t)(i + 5000 + 100 * k)) * 2);
        y = build_2(g, OP_mul, y, build_const(g, &t, w, o), o);
        y = build_reduce(g, OP_reduce_sum, y, axes, t.rank, false, o);
        sum = sum.i ? build_2(g, OP_add, sum, y, o) : y;
    }
    return sum;
}

static inline const char *case_name(struct arena *a, const struct op_case *k) {
    return arena_printf(a, "%s %s %s", op_info(k->op)->name, k->operands, k->attrs);
}

/* The graph of one case with its sum as output "loss" (f64 or f32 as `real` says). The op computes
 * in `low`. */
static inline struct graph *case_graph_in(struct ctx *c, const struct op_case *k, enum dtype real,
                                          enum dtype low) {
    struct graph *g = graph_create(c, "case");
    val_id in[8], first;
    struct attr attrs[ATTR_COUNT];
    int nin = 0, nattr = read_attrs(g, k->attrs, attrs);
    for (const char *s = k->operands; *s; s += strcspn(s, " "), s += *s == ' ') {
        in[nin] = case_operand(g, s, nin, real);
        if (val_type(g, in[nin])->dtype == real) in[nin] = build_cast(g, in[nin], low, (str_id){0});
        nin++;
    }
    ck_assert_msg(graph_try_add(g, k->op, in, nin, attrs, nattr, "node", &first) == ST_OK,
                  "%s %s %s", op_info(k->op)->name, k->operands, k->attrs);
    int outs = k->op == OP_attention ? 1 : op_info(k->op)->outs; /* not its log-sum-exp */
    graph_add_output(g, "loss", weighted_sum(g, first, outs, real, intern(&g->strings, "node")));
    return g;
}

static inline struct graph *case_graph(struct ctx *c, const struct op_case *k, enum dtype real) {
    return case_graph_in(c, k, real, real);
}

#endif
