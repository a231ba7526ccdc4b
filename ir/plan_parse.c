// SPDX-License-Identifier: Apache-2.0
/* plan_parse.c - reads the text form of a plan (docs/IR.md, "Plan"). The text may be hostile: ids,
 * sizes and ranges are checked here so that every reader of a plan may index and add without fear;
 * whether the plan makes sense is for plan_verify. */
#include "base/diag.h"
#include "ir/lex.h"
#include "ir/plan_text.h"
#include <string.h>

enum { VIEWS_MAX = 65535, LIST_MAX = 64, SLOT_MAX = 65535, THREADS_MAX = 65536, ARCH_MAX = 999 };

struct parser {
    struct lexer lex;
    struct arena scratch; /* of one statement */
    struct plan *p;
    int64_t bytes; /* of all buffers so far */
};

static bool is_hole(const struct plan_buffer *b) { /* no `live`: the whole step */
    return b->first > b->last;
}

/* ---- small parts --------------------------------------------------------------------------- */
/* "[4,64]": up to `max` numbers from low to high. */
static enum status want_list(struct lexer *l, int64_t low, int64_t high, int max, int64_t *out,
                             int *n) {
    *n = 0;
    TRY(lex_want(l, '['));
    while (!lex_is(l, ']')) {
        if (*n) TRY(lex_want(l, ','));
        if (*n == max) return lex_fail(l, "a list has more than %d numbers", max);
        TRY(lex_want_int(l, low, high, &out[(*n)++]));
    }
    return lex_want(l, ']');
}

/* The product of the sizes that are not 0 is bounded too, so that no partial product overflows. */
static enum status check_count(struct lexer *l, const int64_t *dims, int rank) {
    int64_t n = 1;
    for (int k = 0; k < rank; k++) {
        if (dims[k] == 0) continue;
        if (n > PLAN_COUNT_MAX / dims[k]) return lex_fail(l, "more than 2^60 elements");
        n *= dims[k];
    }
    return ST_OK;
}

static enum status want_dtype(struct lexer *l, enum dtype *out) {
    *out = l->tok.kind == TOK_WORD ? dtype_from_name(l->tok.text, l->tok.n) : DT_NONE;
    if (*out == DT_NONE) return lex_expected(l, "an element type such as f32");
    lex_next(l);
    return ST_OK;
}

static enum status want_type(struct lexer *l, enum dtype *dtype, int64_t dims[RANK_MAX],
                             int *rank) {
    TRY(want_dtype(l, dtype));
    TRY(want_list(l, 0, PLAN_DIM_MAX, RANK_MAX, dims, rank));
    return check_count(l, dims, *rank);
}

/* %N with low <= N < end. */
static enum status want_ref(struct lexer *l, uint32_t low, uint32_t end, const char *what,
                            uint32_t *out) {
    if (l->tok.kind != TOK_VALUE || !l->tok.numbered) return lex_expected(l, what);
    if (l->tok.i < low || l->tok.i >= end)
        return lex_fail(l, "%%%.64s is not defined before this use", l->tok.text);
    *out = (uint32_t)l->tok.i;
    lex_next(l);
    return ST_OK;
}

static enum status want_buffer(struct parser *x, buf_id *out) {
    return want_ref(&x->lex, 1, x->p->buffers.n, "a buffer such as %3", &out->i);
}

/* The number that a statement gives itself must be the next one. */
static enum status want_number(struct lexer *l, uint32_t next, const char *what) {
    bool ok =
        (l->tok.kind == TOK_INT && !l->tok.hex) || (l->tok.kind == TOK_VALUE && l->tok.numbered);
    if (!ok || l->tok.i != next)
        return lex_fail(l, "expected %s %u: they are numbered in order", what, next);
    lex_next(l);
    return ST_OK;
}

static enum status want_bytes(struct lexer *l, int64_t *out) {
    return lex_want_int(l, 0, PLAN_COUNT_MAX, out);
}

static enum status want_u32(struct lexer *l, uint32_t *out) {
    int64_t i;
    TRY(lex_want_int(l, 0, UINT32_MAX, &i));
    *out = (uint32_t)i;
    return ST_OK;
}

/* ---- buffers ------------------------------------------------------------------------------- */
static enum status parse_kind(struct lexer *l, struct plan_buffer *b) {
    for (int k = BUF_CONST; k <= BUF_WORKSPACE && !b->kind; k++)
        if (lex_is_word(l, plan_kind_word((enum buffer_kind)k))) b->kind = (enum buffer_kind)k;
    if (!b->kind) return lex_expected(l, "a buffer's kind: const, param, state, input, ..");
    lex_next(l);
    for (int k = 0; k < USE_COUNT; k++)
        if (lex_take_word(l, plan_use_word((enum buffer_use)k))) {
            b->use = (enum buffer_use)k;
            return ST_OK;
        }
    return lex_expected(l, "a buffer's use: weights, optimizer, gradients, ..");
}

static enum status parse_init(struct parser *x, enum dtype t, struct blob *out) {
    struct lexer *l = &x->lex;
    if (lex_take_word(l, "hash")) {
        int64_t bytes;
        if (l->tok.kind != TOK_INT || !l->tok.hex || l->tok.i == 0)
            return lex_expected(l, "a hash such as 0x6c62272e07bb0142");
        out->hash = (uint64_t)l->tok.i;
        lex_next(l);
        TRY(lex_want_word(l, "bytes"));
        TRY(want_bytes(l, &bytes));
        out->bytes = (size_t)bytes;
        return ST_OK;
    }
    struct buf b;
    buf_init(&b, &x->scratch);
    TRY(lex_want(l, '['));
    while (!lex_is(l, ']')) {
        char element[8];
        if (b.n) TRY(lex_want(l, ','));
        TRY(lex_want_element(l, t, element));
        buf_put(&b, element, dtype_size(t));
    }
    TRY(lex_want(l, ']'));
    void *own = arena_alloc(&x->p->arena, b.n);
    if (b.n) memcpy(own, b.at, b.n);
    *out = (struct blob){.data = own, .bytes = b.n};
    out->hash = plan_blob_hash(out);
    return ST_OK;
}

static enum status parse_buffer_tail(struct parser *x, struct plan_buffer *b) {
    struct lexer *l = &x->lex;
    const char *role = "";
    b->first = 1;
    if (lex_take_word(l, "alias")) /* may come later in the text */
        TRY(want_ref(l, 1, UINT32_MAX, "a buffer such as %3", &b->alias.i));
    if (lex_take_word(l, "live")) {
        TRY(want_u32(l, &b->first));
        TRY(lex_want_word(l, "to"));
        TRY(want_u32(l, &b->last));
        if (is_hole(b)) return lex_fail(l, "a buffer's life ends before it begins");
    }
    if (lex_take_word(l, "role")) TRY(lex_want_string(l, &role));
    b->role = intern(&x->p->strings, role);
    b->frozen = lex_take_word(l, "frozen");
    if (lex_take_word(l, "fill")) TRY(lex_want_double(l, &b->fill));
    if (lex_take_word(l, "init")) TRY(parse_init(x, b->type.dtype, &b->init));
    return ST_OK;
}

static enum status parse_buffer(struct parser *x) {
    struct lexer *l = &x->lex;
    struct plan_buffer b = {.kind = BUF_NONE};
    TRY(want_number(l, x->p->buffers.n, "buffer"));
    if (l->tok.kind == TOK_STRING) {
        b.name = intern(&x->p->strings, l->tok.text);
        lex_next(l);
    }
    TRY(parse_kind(l, &b));
    TRY(want_type(l, &b.type.dtype, b.type.dims, &b.type.rank));
    if (type_bytes(&b.type) < 0) return lex_fail(l, "a buffer's type has more than 2^60 bytes");
    TRY(lex_want_word(l, "at"));
    TRY(want_bytes(l, &b.offset));
    TRY(lex_want_word(l, "bytes"));
    TRY(want_bytes(l, &b.bytes));
    x->bytes += b.bytes;
    if (x->bytes > PLAN_COUNT_MAX) return lex_fail(l, "the buffers have more than 2^60 bytes");
    TRY(parse_buffer_tail(x, &b));
    vec_push(&x->p->arena, &x->p->buffers, b);
    return ST_OK;
}

/* ---- groups -------------------------------------------------------------------------------- */
static enum status want_code(struct lexer *l, uint16_t *out) {
    unsigned code = OP_NONE;
    if (l->tok.kind == TOK_WORD) {
        code = op_from_name(l->tok.text, l->tok.n);
        for (unsigned k = OP_COUNT; k < INSTR_COUNT; k++)
            if (lex_is_word(l, instr_form(k).name)) code = k;
    }
    if (!instr_form(code).name) return lex_expected(l, "an instruction such as load or add");
    *out = (uint16_t)code;
    lex_next(l);
    return ST_OK;
}

static enum status want_register(struct lexer *l, const struct plan_group *g, int32_t *out) {
    const struct token at = l->tok;
    uint32_t r;
    TRY(want_ref(l, 0, g->code.n, "a register such as %3", &r));
    if (!instr_form(g->code.at[r].code).result)
        return lex_fail(l, "%%%s is not defined before this use", at.text);
    *out = (int32_t)r;
    return ST_OK;
}

/* The literal of `const`. Its type comes behind it: a whole number is kept both ways. */
static enum status parse_literal(struct lexer *l, struct group_instr *i, bool *whole) {
    *whole = l->tok.kind == TOK_INT && !l->tok.hex;
    if (lex_is_word(l, "true") || lex_is_word(l, "false")) {
        i->imm = lex_is_word(l, "true") ? 1.0 : 0.0;
        lex_next(l);
        return ST_OK;
    }
    i->imm_int = *whole ? l->tok.i : 0;
    return lex_want_double(l, &i->imm);
}

static enum status parse_extras(struct lexer *l, const struct plan_group *g,
                                struct group_instr *i) {
    int64_t axis;
    enum dtype t;
    switch (i->code) {
    case OP_cast:
        TRY(lex_want_word(l, "to"));
        TRY(want_dtype(l, &t));
        i->imm_int = t;
        return ST_OK;
    case INSTR_IOTA:
        TRY(lex_want_word(l, "axis"));
        TRY(lex_want_int(l, 0, g->rank - 1, &axis));
        i->axis = (int32_t)axis;
        TRY(lex_want_word(l, "start"));
        TRY(lex_want_double(l, &i->imm));
        TRY(lex_want_word(l, "step"));
        return lex_want_double(l, &i->imm2);
    case INSTR_RANDOM:
        TRY(lex_want_word(l, "stream"));
        return lex_want_int(l, INT64_MIN, INT64_MAX, &i->imm_int);
    case INSTR_PART_MAX:
    case INSTR_PART_MIN:
        TRY(lex_want_word(l, "of"));
        return lex_want_int(l, PART_LENGTH_MIN, PART_LENGTH_MAX, &i->imm_int);
    default: return ST_OK;
    }
}

static enum status parse_register_type(struct lexer *l, struct group_instr *i, bool whole) {
    enum dtype t;
    TRY(lex_want(l, ':'));
    TRY(want_dtype(l, &t));
    if (t != DT_f32 && t != DT_f64 && t != DT_i64 && t != DT_bool)
        return lex_fail(l, "a register is f32, f64, i64 or bool, not %s", dtype_name(t));
    i->dtype = (uint8_t)t;
    i->span = lex_take_word(l, "row") ? SPAN_ROW : SPAN_ALL;
    if (i->code != INSTR_CONST) return ST_OK;
    if (t == DT_i64 && !whole) return lex_fail(l, "an i64 constant is a whole number");
    if (t == DT_i64)
        i->imm = 0;
    else
        i->imm_int = 0;
    return ST_OK;
}

static enum status parse_instr(struct parser *x, struct plan_group *g) {
    struct lexer *l = &x->lex;
    struct group_instr i = {.a = -1, .b = -1, .c = -1, .slot = -1, .axis = -1};
    int32_t *const reg[3] = {&i.a, &i.b, &i.c};
    bool named = l->tok.kind == TOK_VALUE, whole = false;
    int64_t slot;
    if (named) {
        TRY(want_number(l, g->code.n, "register"));
        TRY(lex_want(l, '='));
    }
    TRY(want_code(l, &i.code));
    struct instr_form form = instr_form(i.code);
    if (named && !form.result) return lex_fail(l, "%s defines no register", form.name);
    if (!named && form.result)
        return lex_fail(l, "expected %%%u = before %s", g->code.n, form.name);
    if (form.slot) {
        TRY(lex_want_int(l, 0, SLOT_MAX, &slot));
        i.slot = (int32_t)slot;
    }
    for (int k = 0; k < form.operands; k++) TRY(want_register(l, g, reg[k]));
    if (i.code == INSTR_CONST) TRY(parse_literal(l, &i, &whole));
    TRY(parse_extras(l, g, &i));
    i.flag = form.flag && lex_take_word(l, form.flag);
    TRY(parse_register_type(l, &i, whole));
    if (g->code.n == INT32_MAX) return lex_fail(l, "a group is too long");
    vec_push(&x->p->arena, &g->code, i);
    return ST_OK;
}

static enum status parse_group(struct parser *x) {
    struct lexer *l = &x->lex;
    struct plan_group g = {.rank = 0};
    int mode = 0;
    TRY(want_number(l, x->p->groups.n, "group"));
    while (mode <= GROUP_TAIL && !lex_is_word(l, plan_mode_word((enum group_mode)mode))) mode++;
    if (mode > GROUP_TAIL) return lex_expected(l, "a group's mode: map, row or tail");
    g.mode = (enum group_mode)mode;
    lex_next(l);
    TRY(lex_want(l, '['));
    bool inner = false;
    for (bool first = true; !lex_is(l, ']');) {
        if (!inner && lex_take(l, '|')) {
            inner = first = true;
            continue;
        }
        if (!first) TRY(lex_want(l, ','));
        if (g.rank == RANK_MAX) return lex_fail(l, "more than %d sizes", RANK_MAX);
        TRY(lex_want_int(l, 0, PLAN_DIM_MAX, &g.dims[g.rank++]));
        g.inner += inner;
        first = false;
    }
    TRY(lex_want(l, ']'));
    if (!inner) return lex_fail(l, "expected '|' between the axes of rows and of one row");
    TRY(check_count(l, g.dims, g.rank));
    TRY(lex_want(l, '{'));
    while (!lex_take(l, '}')) TRY(parse_instr(x, &g));
    vec_push(&x->p->arena, &x->p->groups, g);
    return ST_OK;
}

/* ---- launches ------------------------------------------------------------------------------ */
static enum status parse_view(struct parser *x, struct plan_view *v) {
    struct lexer *l = &x->lex;
    TRY(want_buffer(x, &v->buffer));
    TRY(want_type(l, &v->dtype, v->dims, &v->rank));
    plan_row_major(v->dims, v->rank, v->strides);
    if (lex_take_word(l, "strides")) {
        int n;
        TRY(want_list(l, -PLAN_COUNT_MAX, PLAN_COUNT_MAX, RANK_MAX, v->strides, &n));
        if (n != v->rank) return lex_fail(l, "%d strides for %d sizes", n, v->rank);
    }
    if (lex_take(l, '+')) TRY(lex_want_int(l, -PLAN_COUNT_MAX, PLAN_COUNT_MAX, &v->offset));
    return ST_OK;
}

static enum status parse_views(struct parser *x, struct plan_view **out, uint32_t *n) {
    struct lexer *l = &x->lex;
    VEC(struct plan_view) views = {NULL, 0, 0};
    TRY(lex_want(l, '('));
    while (!lex_is(l, ')')) {
        struct plan_view v = {.rank = 0};
        if (views.n) TRY(lex_want(l, ','));
        if (views.n == VIEWS_MAX) return lex_fail(l, "more than %d views", VIEWS_MAX);
        TRY(parse_view(x, &v));
        vec_push(&x->scratch, &views, v);
    }
    *n = views.n;
    *out = ARENA_ARRAY(&x->p->arena, struct plan_view, views.n);
    if (views.n) memcpy(*out, views.at, views.n * sizeof *views.at);
    return lex_want(l, ')');
}

static enum status parse_attr_value(struct parser *x, struct attr *a) {
    struct lexer *l = &x->lex;
    struct arena *own = &x->p->arena;
    int64_t list[LIST_MAX], *copy;
    enum dtype t;
    switch (attr_kind(a->key)) {
    case AK_INT: return lex_want_int(l, INT64_MIN, INT64_MAX, &a->i);
    case AK_FLOAT: return lex_want_double(l, &a->f);
    case AK_BOOL:
        if (!lex_is_word(l, "true") && !lex_is_word(l, "false"))
            return lex_expected(l, "true or false");
        a->i = lex_is_word(l, "true");
        lex_next(l);
        return ST_OK;
    case AK_DTYPE:
        TRY(want_dtype(l, &t));
        a->i = t;
        return ST_OK;
    case AK_STR:
        TRY(lex_want_string(l, &a->s));
        a->s = arena_strdup(own, a->s);
        return ST_OK;
    case AK_INTS:
    case AK_DIMS:
        TRY(want_list(l, INT64_MIN, INT64_MAX, LIST_MAX, list, &a->n));
        a->list = copy = ARENA_ARRAY(own, int64_t, (size_t)a->n);
        memcpy(copy, list, (size_t)a->n * sizeof *list);
        return ST_OK;
    case AK_BLOB: break;
    }
    return lex_fail(l, "no launch takes the attribute '%s'", attr_name(a->key));
}

/* "{add = true, scale = 0.5}"; kept sorted by key. */
static enum status parse_attrs(struct parser *x, struct plan_launch *out) {
    struct lexer *l = &x->lex;
    struct attr at[ATTR_COUNT];
    int n = 0;
    if (!lex_take(l, '{')) return ST_OK;
    do {
        struct attr a = {.key = ATTR_NONE};
        if (l->tok.kind == TOK_WORD) a.key = attr_from_name(l->tok.text, l->tok.n);
        if (a.key == ATTR_NONE) return lex_expected(l, "an attribute such as axis");
        int place = 0;
        while (place < n && at[place].key < a.key) place++;
        if (place < n && at[place].key == a.key)
            return lex_fail(l, "the attribute '%s' is given twice", attr_name(a.key));
        lex_next(l);
        TRY(lex_want(l, '='));
        TRY(parse_attr_value(x, &a));
        memmove(&at[place + 1], &at[place], (size_t)(n - place) * sizeof *at);
        at[place] = a;
        n++;
    } while (lex_take(l, ','));
    struct attr *copy = ARENA_ARRAY(&x->p->arena, struct attr, (size_t)n);
    memcpy(copy, at, (size_t)n * sizeof *at);
    out->attrs = copy;
    out->nattrs = n;
    return lex_want(l, '}');
}

static enum status parse_launch(struct parser *x) {
    struct lexer *l = &x->lex;
    struct plan_launch q = {.kind = LAUNCH_COUNT};
    const char *origin = "";
    int64_t group;
    TRY(want_number(l, x->p->launches.n, "launch"));
    for (int k = 0; k < LAUNCH_COUNT; k++)
        if (lex_is_word(l, launch_name((enum launch_kind)k))) q.kind = (enum launch_kind)k;
    if (q.kind == LAUNCH_COUNT) return lex_expected(l, "a launch's kind: group, matmul, ..");
    lex_next(l);
    if (q.kind == LAUNCH_group) {
        if (x->p->groups.n == 1) return lex_fail(l, "there is no group before this launch");
        TRY(lex_want_int(l, 1, (int64_t)x->p->groups.n - 1, &group));
        q.group.i = (uint32_t)group;
    }
    TRY(parse_views(x, &q.in, &q.nin));
    TRY(lex_want(l, '-'));
    TRY(lex_want(l, '>'));
    TRY(parse_views(x, &q.out, &q.nout));
    TRY(parse_attrs(x, &q));
    if (lex_take_word(l, "workspace")) TRY(want_buffer(x, &q.workspace));
    if (lex_take_word(l, "flops")) {
        TRY(lex_want_double(l, &q.cost.flops));
        TRY(lex_want_word(l, "read"));
        TRY(lex_want_double(l, &q.cost.bytes_read));
        TRY(lex_want_word(l, "write"));
        TRY(lex_want_double(l, &q.cost.bytes_written));
    }
    TRY(plan_parse_calls(l, x->p, &q));
    if (x->p->cuda_arch && q.workspace.i) q.work_bytes = x->p->buffers.at[q.workspace.i].bytes;
    if (lex_take_word(l, "loc")) TRY(lex_want_string(l, &origin));
    q.origin = intern(&x->p->strings, origin);
    vec_push(&x->p->arena, &x->p->launches, q);
    return ST_OK;
}

/* ---- the whole ----------------------------------------------------------------------------- */
static enum status parse_head(struct parser *x) {
    struct lexer *l = &x->lex;
    int64_t threads;
    TRY(lex_want_word(l, "threads"));
    TRY(lex_want_int(l, 1, THREADS_MAX, &threads));
    x->p->threads = (int)threads;
    TRY(lex_want_word(l, "first_update"));
    TRY(want_u32(l, &x->p->first_update));
    for (int k = 0; k < ARENA_CLASSES; k++) {
        TRY(lex_want_word(l, "arena"));
        TRY(lex_want_word(l, plan_arena_word((enum arena_class)k)));
        TRY(want_bytes(l, &x->p->arena_bytes[k]));
    }
    if (!lex_take_word(l, "cuda")) return ST_OK;
    int64_t arch;
    TRY(lex_want_int(l, 1, ARCH_MAX, &arch));
    x->p->cuda_arch = (int)arch;
    return ST_OK;
}

/* No buffer may be its own alias, not even over others. */
static enum status check_aliases(struct parser *x) {
    struct plan *p = x->p;
    uint32_t *seen = ARENA_ARRAY(&x->scratch, uint32_t, p->buffers.n);
    for (uint32_t k = 1; k < p->buffers.n; k++) {
        uint32_t at = k;
        for (; at != 0 && !seen[at]; at = p->buffers.at[at].alias.i) {
            seen[at] = k;
            if (p->buffers.at[at].alias.i >= p->buffers.n)
                return lex_fail(&x->lex, "buffer %%%u is an alias of %%%u, which is not defined",
                                at, p->buffers.at[at].alias.i);
        }
        if (at != 0 && seen[at] == k)
            return lex_fail(&x->lex, "buffer %%%u is an alias of itself", at);
    }
    return ST_OK;
}

/* What can only be known at the end. */
static enum status finish(struct parser *x) {
    struct plan *p = x->p;
    uint32_t last = p->launches.n ? p->launches.n - 1 : 0;
    if (x->lex.tok.kind != TOK_END) return lex_expected(&x->lex, "the end of the text");
    if (p->first_update > p->launches.n)
        return lex_fail(&x->lex, "first_update is %u, there are %u launches", p->first_update,
                        p->launches.n);
    for (uint32_t k = 1; k < p->buffers.n; k++) {
        struct plan_buffer *b = &p->buffers.at[k];
        if (is_hole(b)) b->first = 0, b->last = last;
        if (b->last > last)
            return lex_fail(&x->lex, "buffer %%%u lives to %u, the last launch is %u", k, b->last,
                            last);
    }
    return check_aliases(x);
}

static enum status parse_plan(struct parser *x, const char *text, size_t n, const char *file) {
    struct lexer *l = &x->lex;
    struct ctx *c = x->scratch.ctx;
    lex_init(l, c, &x->scratch, text, n, file);
    TRY(lex_want_word(l, "plan"));
    if (l->tok.kind != TOK_GLOBAL) return lex_expected(l, "the plan's name, such as @step");
    x->p = plan_create(c, l->tok.text);
    lex_next(l);
    TRY(lex_want(l, '{'));
    TRY(parse_head(x));
    struct arena_mark mark = arena_mark(&x->scratch);
    while (!lex_take(l, '}')) {
        if (lex_take_word(l, "buffer"))
            TRY(parse_buffer(x));
        else if (lex_take_word(l, "group"))
            TRY(parse_group(x));
        else if (lex_take_word(l, "kernel"))
            TRY(plan_parse_kernel(l, x->p, &x->scratch));
        else if (lex_take_word(l, "launch"))
            TRY(parse_launch(x));
        else
            return lex_expected(l, "buffer, group, kernel, launch or '}'");
        arena_rewind(&x->scratch, mark);
        lex_again(l);
    }
    return finish(x);
}

/* Gives everything back before an unwind passes on. */
static enum status parse_guarded(struct ctx *c, struct parser *x, const char *text, size_t n,
                                 const char *file, jmp_buf *outer) {
    jmp_buf here;
    c->landing = &here;
    if (setjmp(here)) {
        c->landing = outer;
        arena_reset(&x->scratch);
        plan_destroy(x->p);
        if (!outer) __builtin_trap();
        longjmp(*outer, 1);
    }
    enum status st = parse_plan(x, text, n, file);
    c->landing = outer;
    return st;
}

enum status plan_parse(struct ctx *c, const char *text, size_t n, const char *file,
                       struct plan **out) {
    struct parser x = {.p = NULL};
    *out = NULL;
    arena_init(&x.scratch, c);
    enum status st = parse_guarded(c, &x, text, n, file, c->landing);
    arena_reset(&x.scratch);
    if (st == ST_OK)
        *out = x.p;
    else
        plan_destroy(x.p);
    return st;
}
