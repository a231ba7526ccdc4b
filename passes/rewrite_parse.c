// SPDX-License-Identifier: Apache-2.0
/* rewrite_parse.c - rule strings to terms, and the checks of a whole table. Rows are part of the
 * program, so a malformed one is a bug; the messages are for whoever wrote the row. */
#include "passes/rewrite_rules.h"
#include <math.h>
#include <string.h>

struct reader {
    const char *p;
    const struct graph *specs;
    struct arena *a;
    struct rule_code *code;
    bool right;
    const char *error;
};

static int fail(struct reader *r, const char *what, const char *word) {
    if (!r->error)
        r->error = arena_printf(r->a, "rule %s: %s '%s'", r->code->rule->name, what, word);
    return -1;
}

static void blanks(struct reader *r) {
    r->p += strspn(r->p, " ");
}

static const char *word(struct reader *r) {
    size_t n = strcspn(r->p, " (){}:,=");
    const char *w = arena_strndup(r->a, r->p, n);
    r->p += n;
    return w;
}

static int slot(struct reader *r, const char *name, enum term_kind kind, enum op op) {
    struct rule_code *c = r->code;
    for (int k = 0; k < c->nslots; k++) {
        if (strcmp(c->slot_name[k], name) != 0) continue;
        if (c->slot_kind[k] != kind) return fail(r, "two meanings of", name);
        if (kind == TERM_OP && !r->right) return fail(r, "two nodes called", name);
        if (kind == TERM_OP && c->slot_op[k] != op && !c->rule->guard)
            return fail(r, "attributes of another op in", name);
        return k;
    }
    if (!*name) return fail(r, "a name is missing before", r->p);
    if (r->right && kind == TERM_VAL) return fail(r, "nothing binds", name);
    if (r->right && !c->rule->guard) return fail(r, "no guard that could bind", name);
    if (c->nslots == RULE_SLOTS) return fail(r, "too many names at", name);
    c->slot_name[c->nslots] = name;
    c->slot_kind[c->nslots] = kind;
    c->slot_op[c->nslots] = op;
    return c->nslots++;
}

static int new_term(struct reader *r, enum term_kind kind) {
    struct rule_code *c = r->code;
    if (c->nterms == RULE_TERMS) return fail(r, "too long at", r->p);
    c->terms[c->nterms] = (struct term){.kind = kind, .slot = -1};
    return c->nterms++;
}

/* [-]digits[.digits] or [-]inf, whatever the locale says; few digits, so the quotient is exact. */
static bool read_number(const char *w, double *x) {
    bool negative = *w == '-';
    double digits = 0, scale = 1;
    w += negative;
    size_t whole = strspn(w, "0123456789");
    size_t rest = w[whole] == '.' ? 1 + strspn(w + whole + 1, "0123456789") : 0;
    if (strcmp(w, "inf") == 0) {
        *x = negative ? -INFINITY : INFINITY;
        return true;
    }
    if (whole == 0 || w[whole + rest] != '\0' || whole + rest > 15) return false;
    for (size_t k = 0; k < whole + rest; k++) {
        if (k == whole) continue;
        digits = digits * 10 + (w[k] - '0');
        if (k > whole) scale *= 10;
    }
    *x = (negative ? -1 : 1) * digits / scale;
    return true;
}

/* {key=word,...} */
static void attributes(struct reader *r, struct term *t) {
    const struct op_attr *known;
    int nknown = op_attrs(r->specs, t->op, &known);
    do {
        r->p++;
        blanks(r);
        const char *key = word(r);
        struct attr a = {.key = attr_from_name(key, strlen(key))};
        bool belongs = false;
        for (int k = 0; k < nknown; k++) belongs |= known[k].value.key == a.key;
        if (!belongs || *r->p != '=') {
            fail(r, "no such attribute:", key);
            return;
        }
        r->p++;
        const char *w = word(r);
        double x = 0;
        enum attr_kind kind = attr_kind(a.key);
        bool flag = strcmp(w, "true") == 0;
        if (kind == AK_BOOL ? !flag && strcmp(w, "false") != 0 : !read_number(w, &x))
            fail(r, "not a value:", w);
        if (kind != AK_BOOL && kind != AK_INT && kind != AK_FLOAT) fail(r, "cannot ask for", key);
        if (t->nattrs == TERM_ATTRS) fail(r, "too many attributes at", key);
        if (r->error) return;
        a.i = kind == AK_BOOL ? flag : (int64_t)x;
        a.f = kind == AK_FLOAT ? x : 0;
        if (kind == AK_FLOAT) a.i = 0;
        t->attrs[t->nattrs++] = a;
        blanks(r);
    } while (*r->p == ',');
    if (*r->p != '}') {
        fail(r, "'}' expected at", r->p);
        return;
    }
    r->p++;
}

static int term(struct reader *r);

static int op_term(struct reader *r) {
    r->p++;
    const char *name = word(r);
    enum op op = op_from_name(name, strlen(name));
    if (!op) return fail(r, "no such op:", name);
    const struct op_info *info = op_info(op);
    int at = new_term(r, TERM_OP);
    if (at < 0) return -1;
    struct term *t = &r->code->terms[at];
    t->op = op;
    if (*r->p == ':') {
        r->p++;
        t->slot = slot(r, word(r), TERM_OP, op);
    }
    if (*r->p == '{') attributes(r, t);
    for (blanks(r); *r->p && *r->p != ')' && !r->error; blanks(r)) {
        if (t->nkids == TERM_KIDS) return fail(r, "too many operands of", name);
        int kid = term(r);
        t->kids[t->nkids++] = kid;
    }
    if (*r->p != ')') return fail(r, "')' expected at", r->p);
    r->p++;
    if (t->nkids < info->min_in || t->nkids > info->max_in || (info->traits & SOURCE))
        return fail(r, "wrong number of operands of", name);
    return r->error ? -1 : at;
}

static int term(struct reader *r) {
    blanks(r);
    if (*r->p == '(') return op_term(r);
    bool numvar = *r->p == '#';
    r->p += numvar;
    const char *w = word(r);
    double x = 0;
    enum term_kind kind = numvar ? TERM_NUMVAR : read_number(w, &x) ? TERM_NUM : TERM_VAL;
    int at = new_term(r, kind);
    if (at < 0) return -1;
    struct term *t = &r->code->terms[at];
    t->num = x;
    if (kind != TERM_NUM) t->slot = slot(r, w, kind, OP_NONE);
    return r->error ? -1 : at;
}

static int whole(struct reader *r, const char *text) {
    r->p = text;
    int at = term(r);
    blanks(r);
    if (!r->error && *r->p) return fail(r, "left over:", r->p);
    return at;
}

const char *rule_compile(const struct rule *rule, const struct graph *specs, struct arena *a,
                         struct rule_code *out) {
    *out = (struct rule_code){.rule = rule, .terms = ARENA_ARRAY(a, struct term, RULE_TERMS)};
    struct reader r = {.specs = specs, .a = a, .code = out};
    out->left = whole(&r, rule->pattern);
    if (!r.error && out->terms[out->left].kind != TERM_OP) fail(&r, "no op in", rule->pattern);
    out->nleft = out->nslots;
    r.right = true;
    if (!r.error) out->right = whole(&r, rule->replacement);
    return r.error;
}

/* ---- shadowing ----------------------------------------------------------------------------- */
struct cover {
    const struct rule_code *a, *b;
    int bound[RULE_SLOTS]; /* slot of a -> term of b, -1 */
};

static bool same_term(const struct rule_code *c, int x, int y) {
    const struct term *p = &c->terms[x], *q = &c->terms[y];
    if (x == y) return true;
    if (p->kind != q->kind || p->nkids != q->nkids) return false;
    if (p->kind == TERM_NUM) return p->num == q->num;
    if (p->kind != TERM_OP) return p->slot == q->slot;
    bool same = p->op == q->op && p->nattrs == q->nattrs;
    for (int k = 0; same && k < p->nattrs; k++)
        same = p->attrs[k].key == q->attrs[k].key && p->attrs[k].i == q->attrs[k].i &&
               p->attrs[k].f == q->attrs[k].f;
    for (int k = 0; same && k < p->nkids; k++) same = same_term(c, p->kids[k], q->kids[k]);
    return same;
}

/* Whether term x of rule a matches all that term y of rule b matches. */
static bool covers(struct cover *v, int x, int y) {
    const struct term *p = &v->a->terms[x], *q = &v->b->terms[y];
    if (p->kind == TERM_VAL) {
        int *at = &v->bound[p->slot];
        if (*at >= 0) return same_term(v->b, *at, y);
        *at = y;
        return true;
    }
    if (p->kind == TERM_NUMVAR) return q->kind == TERM_NUM || q->kind == TERM_NUMVAR;
    if (p->kind == TERM_NUM) return q->kind == TERM_NUM && p->num == q->num;
    if (q->kind != TERM_OP || p->op != q->op || p->nkids != q->nkids) return false;
    for (int k = 0; k < p->nattrs; k++) {
        bool asked = false;
        for (int j = 0; j < q->nattrs; j++)
            asked |= p->attrs[k].key == q->attrs[j].key && p->attrs[k].i == q->attrs[j].i &&
                     p->attrs[k].f == q->attrs[j].f;
        if (!asked) return false;
    }
    int orders = (op_info(p->op)->traits & COMM) && p->nkids == 2 ? 2 : 1;
    for (int swap = 0; swap < orders; swap++) {
        struct cover saved = *v;
        bool all = true;
        for (int k = 0; all && k < p->nkids; k++)
            all = covers(v, p->kids[k], q->kids[swap ? 1 - k : k]);
        if (all) return true;
        *v = saved;
    }
    return false;
}

const char *rules_check(const struct rule *rules, int n, struct ctx *c, struct arena *a) {
    const char *error = NULL;
    struct rule_code *codes = ARENA_ARRAY(a, struct rule_code, (size_t)n);
    struct graph *specs = graph_create(c, "rules");
    for (int i = 0; i < n && !error; i++) {
        error = rule_compile(&rules[i], specs, a, &codes[i]);
        for (int j = 0; j < i && !error; j++) {
            struct cover v = {.a = &codes[j], .b = &codes[i]};
            for (int k = 0; k < RULE_SLOTS; k++) v.bound[k] = -1;
            if (strcmp(rules[i].name, rules[j].name) == 0)
                error = arena_printf(a, "two rules are called %s", rules[i].name);
            else if (!rules[j].guard && covers(&v, codes[j].left, codes[i].left))
                error = arena_printf(a, "rule %s never fires: %s is more general", rules[i].name,
                                     rules[j].name);
        }
    }
    graph_destroy(specs);
    return error;
}
