// SPDX-License-Identifier: Apache-2.0
/* rewrite_cases.h - what the tests of rewriting passes share: graphs from text and from the golden
 * files, random feeds, and the comparison of two graphs by the reference evaluator. */
#ifndef LATHE_TEST_REWRITE_CASES_H
#define LATHE_TEST_REWRITE_CASES_H

#include "passes/pass.h"
#include "ref_eval.h"
#include "test_util.h"
#include <dirent.h>

static inline uint32_t cases_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Inputs by name, so that two graphs with one interface see the same numbers. */
static inline bool cases_feed(void *user, const char *name, double *at, int64_t n) {
    const struct graph *g = user;
    uint32_t state = 7;
    for (const char *p = name; *p; p++) state = state * 31 + (unsigned char)*p;
    val_id v = VAL_NONE;
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (g->nodes.at[i].op == OP_input &&
            strcmp(attr_str(g, (node_id){i}, ATTR_name), name) == 0)
            v = node_out(g, (node_id){i}, 0);
    if (!v.i) return false;
    enum dtype_class c = dtype_class(val_type(g, v)->dtype);
    for (int64_t k = 0; k < n; k++) {
        uint32_t r = cases_random(&state);
        at[k] = c == DTC_FLOAT ? (double)r / (1 << 23) - 1
                : c == DTC_INT ? (double)(r % 9) - 4
                               : (double)(r % 3 != 0);
    }
    return true;
}

/* Every output of both, NaN where NaN was, else equal to within `tolerance` of the largest. */
static inline void cases_same(struct test_env *t, const struct graph *a, const struct graph *b,
                              double tolerance, const char *what) {
    struct arena x, y;
    arena_init(&x, &t->ctx);
    arena_init(&y, &t->ctx);
    struct ref *va = ref_eval(a, &x, cases_feed, (void *)(uintptr_t)a);
    struct ref *vb = ref_eval(b, &y, cases_feed, (void *)(uintptr_t)b);
    ck_assert_uint_eq(a->outputs.n, b->outputs.n);
    for (uint32_t k = 0; k < a->outputs.n; k++) {
        const struct ref *p = &va[a->outputs.at[k].value.i], *q = &vb[b->outputs.at[k].value.i];
        double largest = 1;
        ck_assert_int_eq(p->n, q->n);
        for (int64_t i = 0; i < p->n; i++)
            if (isfinite(p->at[i]) && fabs(p->at[i]) > largest) largest = fabs(p->at[i]);
        for (int64_t i = 0; i < p->n; i++) {
            bool same = (isnan(p->at[i]) && isnan(q->at[i])) || p->at[i] == q->at[i] ||
                        fabs(p->at[i] - q->at[i]) <= tolerance * largest;
            if (!same)
                ck_abort_msg("%s: output '%s' element %lld was %.17g, became %.17g", what,
                             interned(&a->strings, a->outputs.at[k].name), (long long)i, p->at[i],
                             q->at[i]);
        }
    }
    arena_reset(&x);
    arena_reset(&y);
}

static inline struct graph *cases_parse(struct test_env *t, const char *text) {
    struct graph *g = NULL;
    if (graph_parse(&t->ctx, text, strlen(text), "case", &g) != ST_OK)
        ck_abort_msg("%s\n%s", t->log, text);
    return g;
}

static inline void cases_run(struct test_env *t, pass_fn pass, struct graph *g) {
    struct arena scratch;
    arena_init(&scratch, &t->ctx);
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &scratch};
    ck_assert_int_eq(pass(&c, g), ST_OK);
    arena_reset(&scratch);
    if (graph_verify(g, "pass") != ST_OK) ck_abort_msg("%s", t->log);
}

static inline void cases_text(const struct graph *g, struct buf *b) {
    buf_init(b, &((struct graph *)(uintptr_t)g)->arena);
    graph_print(g, &(struct text_options){.full = true}, b);
}

/* Running the pass once more changes nothing. */
static inline void cases_idempotent(struct test_env *t, pass_fn pass, const struct graph *g,
                                    const char *what) {
    struct graph *again = graph_clone(g);
    cases_run(t, pass, again);
    struct buf a, b;
    cases_text(g, &a);
    cases_text(again, &b);
    if (!graph_equal(g, again)) ck_abort_msg("%s: not at rest:\n%s\n%s", what, a.at, b.at);
    graph_destroy(again);
}

static inline uint32_t cases_count(const struct graph *g, enum op op) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) n += g->nodes.at[i].op == op;
    return n;
}

/* Call fn with the input graph of every golden file in tests/golden/`folder`. */
static inline int cases_golden(struct test_env *t, const char *folder,
                               void (*fn)(struct test_env *t, struct graph *g, const char *file)) {
    char path[512], text[65536];
    int n = 0;
    snprintf(path, sizeof path, "tests/golden/%s", folder);
    DIR *dir = opendir(path);
    if (!dir) return 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "tests/golden/%s/%s", folder, e->d_name);
        FILE *f = fopen(path, "r");
        ck_assert_ptr_nonnull(f);
        size_t got = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        text[got] = '\0';
        char *end = strstr(text, "; ---- expect");
        ck_assert_ptr_nonnull(end);
        *end = '\0';
        struct graph *g = cases_parse(t, text);
        fn(t, g, path);
        graph_destroy(g);
        n++;
    }
    closedir(dir);
    return n;
}

#endif
