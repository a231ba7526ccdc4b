// SPDX-License-Identifier: Apache-2.0
/* parse.c - reads the text form of a graph (docs/IR.md). The text may be hostile: whatever it says
 * goes through the same checks as an import, no input makes it recurse, and memory stays in
 * proportion to the text. */
#include "base/diag.h"
#include "ir/internal.h"
#include "ir/lex.h"
#include <string.h>

enum { RESULTS_MAX = 8, OPERANDS_MAX = 65535, LIST_MAX = 64 };
#define BLOB_BYTES_MAX ((int64_t)1 << 60)

struct parser {
    struct lexer lex;
    struct arena scratch; /* of one statement; labels and names live in `keep` */
    struct arena keep;
    struct graph *g;
    struct map labels;  /* number of an unnamed value -> val_id */
    struct map outputs; /* str_id of output names seen */
    struct map targets; /* val_id of update targets seen */
};

struct statement {
    struct token op, type; /* where they stand, for messages */
    enum op which;
    int nresults, nattrs;
    struct token results[RESULTS_MAX];
    VEC(val_id) operands;
    struct attr attrs[ATTR_COUNT];
    struct type types[RESULTS_MAX];
    const char *origin;
};

static enum status fail_at(struct parser *p, const struct token *t, enum status code,
                           const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static enum status fail_at(struct parser *p, const struct token *t, enum status code,
                           const char *fmt, ...) {
    if (p->lex.failed) return ST_PARSE; /* one diagnostic is enough */
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(&p->scratch, fmt, ap);
    va_end(ap);
    return diag_error(p->lex.ctx, code, lex_where(&p->lex, t), "%s", text);
}

/* ---- values -------------------------------------------------------------------------------- */
static val_id lookup(struct parser *p, const struct token *t) {
    uint32_t v = 0;
    if (!t->numbered) return t->n ? graph_find(p->g, t->text) : VAL_NONE;
    return map_get(&p->labels, (uint64_t)t->i, &v) ? (val_id){v} : VAL_NONE;
}

static enum status want_value(struct parser *p, val_id *out) {
    struct lexer *l = &p->lex;
    if (l->tok.kind != TOK_VALUE) return lex_expected(l, "a value such as %x");
    *out = lookup(p, &l->tok);
    if (out->i == 0) return lex_fail(l, "%%%.64s is not defined before this use", l->tok.text);
    lex_next(l);
    return ST_OK;
}

/* ---- attributes ---------------------------------------------------------------------------- */
static enum status parse_blob(struct parser *p, blob_id *out) {
    struct lexer *l = &p->lex;
    *out = BLOB_NONE;
    if (lex_take_word(l, "none")) return ST_OK;
    if (lex_take_word(l, "hash")) {
        int64_t bytes;
        if (l->tok.kind != TOK_INT || !l->tok.hex || l->tok.i == 0)
            return lex_expected(l, "a hash such as 0x6c62272e07bb0142");
        uint64_t hash = (uint64_t)l->tok.i;
        lex_next(l);
        TRY(lex_want_word(l, "bytes"));
        TRY(lex_want_int(l, 0, BLOB_BYTES_MAX, &bytes));
        *out = graph_blob_by_hash(p->g, (size_t)bytes, hash);
        return ST_OK;
    }
    enum dtype t = l->tok.kind == TOK_WORD ? dtype_from_name(l->tok.text, l->tok.n) : DT_NONE;
    if (t == DT_NONE)
        return lex_expected(l, "none, hash 0x.. bytes N, or a list such as f32 [1.0]");
    lex_next(l);
    TRY(lex_want(l, '['));
    struct buf b;
    buf_init(&b, &p->scratch);
    while (!lex_is(l, ']')) {
        char element[8];
        if (b.n) TRY(lex_want(l, ','));
        TRY(lex_want_element(l, t, element));
        buf_put(&b, element, dtype_size(t));
    }
    TRY(lex_want(l, ']'));
    *out = graph_blob(p->g, b.at, b.n, true);
    return ST_OK;
}

static enum status parse_ints(struct parser *p, struct attr *a) {
    struct lexer *l = &p->lex;
    int64_t *list = ARENA_ARRAY(&p->scratch, int64_t, LIST_MAX);
    TRY(lex_want(l, '['));
    while (!lex_is(l, ']')) {
        if (a->n) TRY(lex_want(l, ','));
        if (a->n == LIST_MAX) return lex_fail(l, "a list has more than %d numbers", LIST_MAX);
        TRY(lex_want_int(l, INT64_MIN, INT64_MAX, &list[a->n++]));
    }
    a->list = list;
    return lex_want(l, ']');
}

static enum status parse_dims(struct parser *p, struct attr *a) {
    dim *list = ARENA_ARRAY(&p->scratch, dim, RANK_MAX);
    a->list = list;
    return lex_want_dims(&p->lex, p->g->dims, list, RANK_MAX, &a->n);
}

static enum status parse_word(struct parser *p, struct attr *a) { /* BOOL, DTYPE */
    struct lexer *l = &p->lex;
    if (attr_kind(a->key) == AK_BOOL) {
        if (!lex_is_word(l, "true") && !lex_is_word(l, "false"))
            return lex_expected(l, "true or false");
        a->i = lex_is_word(l, "true");
    } else {
        enum dtype t = l->tok.kind == TOK_WORD ? dtype_from_name(l->tok.text, l->tok.n) : DT_NONE;
        if (t == DT_NONE) return lex_expected(l, "an element type such as f32");
        a->i = t;
    }
    lex_next(l);
    return ST_OK;
}

static enum status parse_attr(struct parser *p, struct statement *s) {
    struct lexer *l = &p->lex;
    struct attr a = {.key = ATTR_NONE};
    if (l->tok.kind == TOK_WORD) a.key = attr_from_name(l->tok.text, l->tok.n);
    if (a.key == ATTR_NONE || !op_attr_find(p->g, s->which, a.key))
        return lex_expected(
            l, arena_printf(&p->scratch, "an attribute of %s", op_info(s->which)->name));
    for (int k = 0; k < s->nattrs; k++)
        if (s->attrs[k].key == a.key)
            return lex_fail(l, "the attribute '%s' is given twice", attr_name(a.key));
    lex_next(l);
    TRY(lex_want(l, '='));
    switch (attr_kind(a.key)) {
    case AK_INT: TRY(lex_want_int(l, INT64_MIN, INT64_MAX, &a.i)); break;
    case AK_FLOAT: TRY(lex_want_double(l, &a.f)); break;
    case AK_BOOL:
    case AK_DTYPE: TRY(parse_word(p, &a)); break;
    case AK_STR: TRY(lex_want_string(l, &a.s)); break;
    case AK_BLOB: TRY(parse_blob(p, &a.blob)); break;
    case AK_INTS: TRY(parse_ints(p, &a)); break;
    case AK_DIMS: TRY(parse_dims(p, &a)); break;
    }
    s->attrs[s->nattrs++] = a;
    return ST_OK;
}

/* ---- statements ---------------------------------------------------------------------------- */
static enum status parse_results(struct parser *p, struct statement *s) {
    struct lexer *l = &p->lex;
    do {
        if (l->tok.kind != TOK_VALUE) return lex_expected(l, "a value such as %x");
        if (s->nresults == RESULTS_MAX) return lex_fail(l, "more than %d results", RESULTS_MAX);
        if (!l->tok.numbered && l->tok.n == 0) return lex_fail(l, "a value's name is empty");
        bool taken = lookup(p, &l->tok).i != 0;
        for (int k = 0; k < s->nresults && !taken; k++)
            taken = s->results[k].numbered == l->tok.numbered &&
                    (l->tok.numbered ? s->results[k].i == l->tok.i
                                     : strcmp(s->results[k].text, l->tok.text) == 0);
        if (taken) return lex_fail(l, "%%%.64s is defined twice", l->tok.text);
        s->results[s->nresults++] = l->tok;
        lex_next(l);
    } while (lex_take(l, ','));
    return lex_want(l, '=');
}

static enum status parse_operands(struct parser *p, struct statement *s) {
    struct lexer *l = &p->lex;
    TRY(lex_want(l, '('));
    while (!lex_is(l, ')')) {
        val_id v;
        if (s->operands.n) TRY(lex_want(l, ','));
        if (s->operands.n == OPERANDS_MAX)
            return lex_fail(l, "more than %d operands", OPERANDS_MAX);
        TRY(want_value(p, &v));
        vec_push(&p->scratch, &s->operands, v);
    }
    return lex_want(l, ')');
}

static enum status parse_types(struct parser *p, struct statement *s) {
    struct lexer *l = &p->lex;
    int n = 0;
    TRY(lex_want(l, ':'));
    s->type = l->tok;
    do {
        if (n == s->nresults) return lex_fail(l, "more types than the %d results", s->nresults);
        TRY(lex_want_type(l, p->g->dims, &s->types[n++]));
    } while (lex_take(l, ','));
    if (n < s->nresults) return lex_fail(l, "%d types for %d results", n, s->nresults);
    return ST_OK;
}

static enum status parse_statement(struct parser *p, struct statement *s) {
    struct lexer *l = &p->lex;
    TRY(parse_results(p, s));
    s->op = l->tok;
    s->which = l->tok.kind == TOK_WORD ? op_from_name(l->tok.text, l->tok.n) : OP_NONE;
    if (s->which == OP_NONE) return lex_expected(l, "the name of an op");
    const struct op_info *info = op_info(s->which);
    if (s->nresults != info->outs)
        return lex_fail(l, "%s has %d results, found %d", info->name, info->outs, s->nresults);
    lex_next(l);
    if (!(info->traits & SOURCE)) TRY(parse_operands(p, s));
    if (lex_take(l, '{')) {
        do TRY(parse_attr(p, s));
        while (lex_take(l, ','));
        TRY(lex_want(l, '}'));
    }
    TRY(parse_types(p, s));
    if (lex_take_word(l, "loc")) TRY(lex_want_string(l, &s->origin));
    return ST_OK;
}

static enum status check_types(struct parser *p, const struct statement *s, val_id first) {
    for (int k = 0; k < s->nresults; k++) {
        const struct type *have = val_type(p->g, val_at(first, k));
        if (type_equal(have, &s->types[k])) continue;
        struct buf b;
        buf_init(&b, &p->scratch);
        type_print(p->g->dims, &s->types[k], &b);
        buf_puts(&b, ", the op gives ");
        type_print(p->g->dims, have, &b);
        return fail_at(p, &s->type, have->dtype == s->types[k].dtype ? ST_SHAPE : ST_TYPE,
                       "result %d is declared %s", k, b.at);
    }
    return ST_OK;
}

static enum status parse_node(struct parser *p) {
    struct statement s = {.which = OP_NONE};
    val_id first;
    TRY(parse_statement(p, &s));
    if (p->lex.failed) return ST_PARSE;
    /* While the node is checked its origin is its place in the text, so that messages carry it. */
    const char *where = lex_where(&p->lex, &s.op);
    if (op_info(s.which)->traits & SOURCE)
        TRY(graph_try_source(p->g, s.which, &s.types[0], s.attrs, s.nattrs, where, &first));
    else
        TRY(graph_try_add(p->g, s.which, s.operands.at, (int)s.operands.n, s.attrs, s.nattrs, where,
                          &first));
    p->g->nodes.at[val_def(p->g, first).i].origin =
        intern(&p->g->strings, s.origin ? s.origin : "");
    TRY(check_types(p, &s, first));
    for (int k = 0; k < s.nresults; k++) {
        const struct token *t = &s.results[k];
        if (t->numbered)
            map_set(&p->labels, (uint64_t)t->i, val_at(first, k).i);
        else
            graph_set_name(p->g, val_at(first, k), t->text);
    }
    return ST_OK;
}

static enum status parse_output(struct parser *p) {
    const char *name;
    val_id v;
    uint32_t seen;
    TRY(lex_want_string(&p->lex, &name));
    uint32_t id = intern(&p->g->strings, name).i;
    if (map_get(&p->outputs, id, &seen))
        return lex_fail(&p->lex, "the output \"%.64s\" is given twice", name);
    map_set(&p->outputs, id, 1);
    TRY(lex_want(&p->lex, '='));
    TRY(want_value(p, &v));
    graph_add_output(p->g, name, v);
    return ST_OK;
}

static enum status parse_update(struct parser *p) {
    struct token at = p->lex.tok;
    val_id target, next;
    uint32_t seen;
    TRY(want_value(p, &target));
    TRY(lex_want(&p->lex, '='));
    TRY(want_value(p, &next));
    enum op op = val_op(p->g, target);
    if (op != OP_param && op != OP_state)
        return fail_at(p, &at, ST_PARSE, "%%%.64s is no param or state and cannot be updated",
                       at.text);
    if (map_get(&p->targets, target.i, &seen))
        return fail_at(p, &at, ST_PARSE, "%%%.64s is updated twice", at.text);
    map_set(&p->targets, target.i, 1);
    if (!type_equal(val_type(p->g, target), val_type(p->g, next)))
        return fail_at(p, &at, ST_SHAPE, "%%%.64s is updated with a value of another type",
                       at.text);
    graph_add_update(p->g, target, next);
    return ST_OK;
}

static enum status parse_graph(struct parser *p, const char *text, size_t n, const char *file) {
    struct lexer *l = &p->lex;
    struct ctx *c = p->scratch.ctx;
    map_init(&p->labels, &p->keep);
    map_init(&p->outputs, &p->keep);
    map_init(&p->targets, &p->keep);
    lex_init(l, c, &p->scratch, text, n, file);
    TRY(lex_want_word(l, "graph"));
    if (l->tok.kind != TOK_GLOBAL) return lex_expected(l, "the graph's name, such as @main");
    p->g = graph_create(c, l->tok.text);
    lex_next(l);
    TRY(lex_want(l, '{'));
    struct arena_mark mark = arena_mark(&p->scratch);
    while (!lex_take(l, '}')) {
        if (lex_take_word(l, "output"))
            TRY(parse_output(p));
        else if (lex_take_word(l, "update"))
            TRY(parse_update(p));
        else
            TRY(parse_node(p));
        arena_rewind(&p->scratch, mark);
        lex_again(l);
    }
    return l->tok.kind == TOK_END ? ST_OK : lex_expected(l, "the end of the text");
}

/* Gives everything back before an unwind passes on. */
static enum status parse_guarded(struct ctx *c, struct parser *p, const char *text, size_t n,
                                 const char *file, jmp_buf *outer) {
    jmp_buf here;
    c->landing = &here;
    if (setjmp(here)) {
        c->landing = outer;
        arena_reset(&p->scratch);
        arena_reset(&p->keep);
        graph_destroy(p->g);
        if (!outer) __builtin_trap();
        longjmp(*outer, 1);
    }
    enum status st = parse_graph(p, text, n, file);
    c->landing = outer;
    return st;
}

enum status graph_parse(struct ctx *c, const char *text, size_t n, const char *file,
                        struct graph **out) {
    struct parser p = {.g = NULL};
    *out = NULL;
    arena_init(&p.scratch, c);
    arena_init(&p.keep, c);
    enum status st = parse_guarded(c, &p, text, n, file, c->landing);
    arena_reset(&p.scratch);
    arena_reset(&p.keep);
    if (st == ST_OK)
        *out = p.g;
    else
        graph_destroy(p.g);
    return st;
}
