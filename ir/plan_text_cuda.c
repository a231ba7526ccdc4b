// SPDX-License-Identifier: Apache-2.0
/* plan_text_cuda.c - the part of a plan's text form that plans for a GPU have: kernels with their
 * generated texts, and the calls of a launch. Printing, reading and comparing; the rest of a plan
 * is plan_text.c and plan_parse.c. */
#include "ir/plan_text.h"
#include <string.h>

enum { KERNELS_MAX = 1 << 20, CALLS_MAX = 4096, GRID_MAX = INT32_MAX };

/* ---- printing ------------------------------------------------------------------------------ */
/* One string a line of the text, without its end. */
static void put_lines(struct buf *out, struct arena *scratch, const char *word, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        buf_printf(out, "    %s ", word);
        buf_quoted(out, arena_strndup(scratch, text, n));
        buf_puts(out, "\n");
        text += n + (text[n] == '\n');
    }
}

void plan_put_kernels(const struct plan *p, struct buf *out) {
    struct arena scratch;
    arena_init(&scratch, p->ctx);
    for (uint32_t k = 0; k < p->kernels.n; k++) {
        const struct plan_kernel *x = &p->kernels.at[k];
        struct arena_mark mark = arena_mark(&scratch);
        buf_printf(out, "  kernel %u ", k);
        buf_quoted(out, interned(&p->strings, x->entry));
        buf_puts(out, " file ");
        buf_quoted(out, interned(&p->strings, x->file));
        buf_printf(out, " key 0x%016llx {\n", (unsigned long long)x->key);
        put_lines(out, &scratch, "config", x->config);
        put_lines(out, &scratch, "body", x->body);
        buf_puts(out, "  }\n");
        arena_rewind(&scratch, mark);
    }
    arena_reset(&scratch);
}

void plan_put_calls(const struct plan *p, const struct plan_launch *l, struct buf *out) {
    for (uint32_t k = 0; k < l->ncalls; k++) {
        const struct plan_call *c = &p->calls.at[l->first_call + k];
        buf_printf(out, "%s%u grid [%u, %u, %u] block %u", k ? ", " : " calls (", c->kernel,
                   c->grid[0], c->grid[1], c->grid[2], c->block);
        if (c->shared) buf_printf(out, " shared %u", c->shared);
        if (c->table) buf_puts(out, " table");
    }
    if (l->ncalls) buf_puts(out, ")");
}

/* ---- reading ------------------------------------------------------------------------------- */
static enum status want_number(struct lexer *l, int64_t low, int64_t high, uint32_t *out) {
    int64_t i;
    TRY(lex_want_int(l, low, high, &i));
    *out = (uint32_t)i;
    return ST_OK;
}

static enum status want_name(struct lexer *l, struct plan *p, str_id *out) {
    const char *s;
    TRY(lex_want_string(l, &s));
    *out = intern(&p->strings, s);
    return ST_OK;
}

static enum status want_lines(struct lexer *l, struct plan *p, const char *word,
                              struct arena *scratch, const char **out) {
    struct buf text;
    buf_init(&text, scratch);
    while (lex_take_word(l, word)) {
        const char *line;
        TRY(lex_want_string(l, &line));
        buf_printf(&text, "%s\n", line);
    }
    *out = arena_strdup(&p->arena, text.at);
    return ST_OK;
}

enum status plan_parse_kernel(struct lexer *l, struct plan *p, struct arena *scratch) {
    struct plan_kernel x = {.config = ""};
    uint32_t number;
    TRY(want_number(l, 0, KERNELS_MAX, &number));
    if (number != p->kernels.n)
        return lex_fail(l, "expected kernel %u: they are numbered in order", p->kernels.n);
    TRY(want_name(l, p, &x.entry));
    TRY(lex_want_word(l, "file"));
    TRY(want_name(l, p, &x.file));
    TRY(lex_want_word(l, "key"));
    if (l->tok.kind != TOK_INT || !l->tok.hex)
        return lex_expected(l, "a key such as 0x6c62272e07bb0142");
    x.key = (uint64_t)l->tok.i;
    lex_next(l);
    TRY(lex_want(l, '{'));
    TRY(want_lines(l, p, "config", scratch, &x.config));
    TRY(want_lines(l, p, "body", scratch, &x.body));
    TRY(lex_want(l, '}'));
    vec_push(&p->arena, &p->kernels, x);
    return ST_OK;
}

enum status plan_parse_calls(struct lexer *l, struct plan *p, struct plan_launch *q) {
    if (!lex_take_word(l, "calls")) return ST_OK;
    q->first_call = p->calls.n;
    TRY(lex_want(l, '('));
    do {
        struct plan_call c = {.kernel = 0};
        if (q->ncalls == CALLS_MAX) return lex_fail(l, "more than %d calls", CALLS_MAX);
        TRY(want_number(l, 0, (int64_t)p->kernels.n - 1, &c.kernel));
        TRY(lex_want_word(l, "grid"));
        TRY(lex_want(l, '['));
        for (int d = 0; d < 3; d++) {
            if (d) TRY(lex_want(l, ','));
            TRY(want_number(l, 1, d ? 65535 : GRID_MAX, &c.grid[d]));
        }
        TRY(lex_want(l, ']'));
        TRY(lex_want_word(l, "block"));
        TRY(want_number(l, 1, 1024, &c.block));
        if (lex_take_word(l, "shared")) TRY(want_number(l, 1, INT32_MAX, &c.shared));
        c.table = lex_take_word(l, "table");
        if (q->ncalls && c.table != p->calls.at[q->first_call].table)
            return lex_fail(l, "either all calls of a launch take a table or none");
        vec_push(&p->arena, &p->calls, c);
        q->ncalls++;
    } while (lex_take(l, ','));
    return lex_want(l, ')');
}

/* ---- equality ------------------------------------------------------------------------------ */
bool plan_same_calls(const struct plan *a, const struct plan_launch *x, const struct plan *b,
                     const struct plan_launch *y) {
    if (x->ncalls != y->ncalls) return false;
    for (uint32_t k = 0; k < x->ncalls; k++) {
        const struct plan_call *c = &a->calls.at[x->first_call + k];
        const struct plan_call *d = &b->calls.at[y->first_call + k];
        if (c->kernel != d->kernel || c->block != d->block || c->shared != d->shared ||
            c->table != d->table || memcmp(c->grid, d->grid, sizeof c->grid) != 0)
            return false;
    }
    return true;
}

bool plan_same_kernels(const struct plan *a, const struct plan *b) {
    if (a->cuda_arch != b->cuda_arch || a->kernels.n != b->kernels.n) return false;
    for (uint32_t k = 0; k < a->kernels.n; k++) {
        const struct plan_kernel *x = &a->kernels.at[k], *y = &b->kernels.at[k];
        if (x->key != y->key || strcmp(x->config, y->config) != 0 ||
            strcmp(x->body, y->body) != 0 ||
            strcmp(interned(&a->strings, x->entry), interned(&b->strings, y->entry)) != 0 ||
            strcmp(interned(&a->strings, x->file), interned(&b->strings, y->file)) != 0)
            return false;
    }
    return true;
}
