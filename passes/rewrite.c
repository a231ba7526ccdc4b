// SPDX-License-Identifier: Apache-2.0
/* rewrite.c - matching, building and the sweeps. Which rules there are is none of its business. */
#include "base/diag.h"
#include "passes/rewrite_rules.h"
#include <string.h>

struct match {
    const struct rewrite *w;
    const struct rule_code *code;
    val_id root;
    bool bound[RULE_SLOTS];
    val_id vals[RULE_SLOTS];
    node_id nodes[RULE_SLOTS];
    double nums[RULE_SLOTS];
    const struct attr *attrs[RULE_SLOTS];
    int nattrs[RULE_SLOTS];
};

/* ---- what guards see ----------------------------------------------------------------------- */
struct graph *match_graph(const struct match *m) {
    return m->w->g;
}

struct arena *match_arena(const struct match *m) {
    return m->w->scratch;
}

val_id match_root(const struct match *m) {
    return m->root;
}

static int named(const struct match *m, const char *name, enum term_kind kind) {
    int k = 0;
    while (k < m->code->nslots && strcmp(m->code->slot_name[k], name) != 0) k++;
    CHECK(m->w->g->ctx, k < m->code->nslots && m->code->slot_kind[k] == kind);
    return k;
}

val_id match_val(const struct match *m, const char *name) {
    return m->vals[named(m, name, TERM_VAL)];
}

node_id match_node(const struct match *m, const char *name) {
    return m->nodes[named(m, name, TERM_OP)];
}

double match_num(const struct match *m, const char *name) {
    return m->nums[named(m, name, TERM_NUMVAR)];
}

void match_set_num(struct match *m, const char *name, double x) {
    int k = named(m, name, TERM_NUMVAR);
    m->nums[k] = x;
    m->bound[k] = true;
}

void match_set_attrs(struct match *m, const char *name, const struct attr *attrs, int n) {
    int k = named(m, name, TERM_OP);
    m->attrs[k] = attrs;
    m->nattrs[k] = n;
    m->bound[k] = true;
}

bool match_single(const struct match *m, const char *name) {
    return rewrite_single(m->w, node_out(m->w->g, match_node(m, name), 0));
}

bool rewrite_single(const struct rewrite *w, val_id v) {
    return v.i < w->nuses && w->uses[v.i] <= 1;
}

/* ---- matching ------------------------------------------------------------------------------ */
/* A list of (term, value) pairs that all must match; choices are undone on failure, so that a later
 * pair or the guard can ask for another operand order. Depth is bounded by the size of the rule. */
struct goal {
    int term;
    val_id v;
    const struct goal *next;
};

static bool has_attrs(const struct graph *g, node_id n, const struct term *t) {
    bool all = true;
    for (int k = 0; all && k < t->nattrs; k++) {
        const struct attr *a = &t->attrs[k];
        switch (attr_kind(a->key)) {
        case AK_BOOL: all = attr_bool(g, n, a->key) == (a->i != 0); break;
        case AK_INT: all = attr_int(g, n, a->key) == a->i; break;
        default: all = attr_float(g, n, a->key) == a->f; break;
        }
    }
    return all;
}

static bool match_goals(struct match *m, const struct goal *goal);

static bool match_op(struct match *m, const struct goal *goal, const struct term *t) {
    const struct graph *g = m->w->g;
    node_id n = val_def(g, goal->v);
    if (graph_node(g, n)->op != t->op || graph_node(g, n)->nin != t->nkids ||
        node_out(g, n, 0).i != goal->v.i || !has_attrs(g, n, t))
        return false;
    if (t->slot >= 0) {
        m->nodes[t->slot] = n;
        m->bound[t->slot] = true;
    }
    int orders = (op_info(t->op)->traits & COMM) && t->nkids == 2 ? 2 : 1;
    for (int swap = 0; swap < orders; swap++) {
        struct goal kids[TERM_KIDS];
        for (int k = 0; k < t->nkids; k++) {
            const struct goal *next = k + 1 < t->nkids ? &kids[k + 1] : goal->next;
            kids[k] = (struct goal){t->kids[k], node_in(g, n, swap ? 1 - k : k), next};
        }
        if (match_goals(m, t->nkids ? kids : goal->next)) return true;
    }
    return false;
}

static bool match_goals(struct match *m, const struct goal *goal) {
    if (!goal) return !m->code->rule->guard || m->code->rule->guard(m);
    const struct term *t = &m->code->terms[goal->term];
    double x;
    switch (t->kind) {
    case TERM_OP: return match_op(m, goal, t);
    case TERM_NUM:
        return val_uniform(m->w->g, goal->v, &x) && x == t->num && match_goals(m, goal->next);
    case TERM_NUMVAR:
        if (!val_uniform(m->w->g, goal->v, &x)) return false;
        if (m->bound[t->slot]) return m->nums[t->slot] == x && match_goals(m, goal->next);
        m->nums[t->slot] = x;
        break;
    case TERM_VAL:
        if (m->bound[t->slot]) return m->vals[t->slot].i == goal->v.i && match_goals(m, goal->next);
        m->vals[t->slot] = goal->v;
        break;
    }
    m->bound[t->slot] = true;
    if (match_goals(m, goal->next)) return true;
    m->bound[t->slot] = false;
    return false;
}

/* ---- building ------------------------------------------------------------------------------ */
static bool is_number(const struct term *t) {
    return t->kind == TERM_NUM || t->kind == TERM_NUMVAR;
}

static double number(const struct match *m, const struct term *t) {
    if (t->kind == TERM_NUM) return t->num;
    CHECK(m->w->g->ctx, m->bound[t->slot]);
    return m->nums[t->slot];
}

/* The record's attributes, then those in braces. */
static int build_attrs(struct match *m, const struct term *t, struct attr *out) {
    const struct attr *from = NULL;
    int n = 0;
    if (t->slot >= 0) {
        CHECK(m->w->g->ctx, m->bound[t->slot]);
        from = m->attrs[t->slot];
        n = m->nattrs[t->slot];
        if (!from) n = attr_list(m->w->g, m->nodes[t->slot], &from);
    }
    CHECK(m->w->g->ctx, n <= ATTR_COUNT);
    for (int k = 0; k < n; k++) out[k] = from[k];
    for (int k = 0; k < t->nattrs; k++) {
        int j = 0;
        while (j < n && out[j].key != t->attrs[k].key) j++;
        out[j] = t->attrs[k];
        if (j == n) n++;
    }
    return n;
}

static val_id build_term(struct match *m, int at, str_id origin) {
    struct graph *g = m->w->g;
    const struct term *t = &m->code->terms[at];
    if (t->kind == TERM_VAL) return m->vals[t->slot];
    val_id kids[TERM_KIDS];
    enum dtype dtype = val_type(g, m->root)->dtype;
    for (int k = 0; k < t->nkids; k++)
        if (!is_number(&m->code->terms[t->kids[k]])) kids[k] = build_term(m, t->kids[k], origin);
    /* Numbers take the type of the operands beside them. */
    for (int k = t->nkids - 1; k >= 0; k--)
        if (!is_number(&m->code->terms[t->kids[k]])) dtype = val_type(g, kids[k])->dtype;
    for (int k = 0; k < t->nkids; k++) {
        const struct term *kid = &m->code->terms[t->kids[k]];
        if (is_number(kid)) kids[k] = build_scalar(g, dtype, number(m, kid), origin);
    }
    struct attr attrs[ATTR_COUNT + TERM_ATTRS];
    int nattrs = build_attrs(m, t, attrs);
    return graph_add(g, t->op, kids, t->nkids, attrs, nattrs, origin);
}

static val_id build_right(struct match *m) {
    struct graph *g = m->w->g;
    str_id origin = graph_node(g, val_def(g, m->root))->origin;
    struct type type = *val_type(g, m->root);
    const struct term *t = &m->code->terms[m->code->right];
    if (is_number(t)) {
        double x = number(m, t);
        return type.rank ? build_full(g, &type, x, origin) : build_scalar(g, type.dtype, x, origin);
    }
    return build_term(m, m->code->right, origin);
}

/* `v` as the root's type, by broadcasting if need be; VAL_NONE when that is not possible. */
static val_id fit(struct graph *g, val_id v, val_id root) {
    struct type have = *val_type(g, v), want = *val_type(g, root), both;
    if (type_equal(&have, &want)) return v;
    if (have.dtype != want.dtype || !type_broadcast(&have, &want, &both)) return VAL_NONE;
    if (!type_equal(&both, &want)) return VAL_NONE;
    return build_expand(g, v, want.dims, want.rank, graph_node(g, val_def(g, root))->origin);
}

static val_id apply_rule(const struct rewrite *w, const struct rule_code *code, val_id root) {
    struct match m = {.w = w, .code = code, .root = root};
    struct goal all = {code->left, root, NULL};
    if (!match_goals(&m, &all)) return VAL_NONE;
    return fit(w->g, build_right(&m), root);
}

/* ---- sweeps -------------------------------------------------------------------------------- */
enum { BUDGET_PER_NODE = 20, BUDGET_MIN = 200, LAST = 4 };
struct engine {
    struct rewrite w;
    const struct rewrite_set *set;
    struct rule_code *codes;
    int first[OP_COUNT], *next; /* rules by root op, in table order; -1 ends */
    uint32_t *fired;
    uint64_t applied, budget;
    const char *last[LAST];
};

static void compile(struct engine *e, struct arena *a) {
    const struct rewrite_set *set = e->set;
    e->codes = ARENA_ARRAY(a, struct rule_code, (size_t)set->nrules);
    e->next = ARENA_ARRAY(a, int, (size_t)set->nrules);
    for (int op = 0; op < OP_COUNT; op++) e->first[op] = -1;
    for (int k = set->nrules - 1; k >= 0; k--) {
        const char *error = rule_compile(&set->rules[k], e->w.g, a, &e->codes[k]);
        if (error) ctx_bug(e->w.g->ctx, __FILE__, __LINE__, error);
        enum op root = e->codes[k].terms[e->codes[k].left].op;
        e->next[k] = e->first[root];
        e->first[root] = k;
    }
}

static void count_uses(struct rewrite *w) {
    const struct graph *g = w->g;
    uint32_t *n = ARENA_ARRAY(w->scratch, uint32_t, g->values.n);
    for (uint32_t i = 1; i < g->nodes.n; i++)
        for (int k = 0; k < g->nodes.at[i].nin; k++) n[node_in(g, (node_id){i}, k).i]++;
    for (uint32_t k = 0; k < g->outputs.n; k++) n[g->outputs.at[k].value.i]++;
    for (uint32_t k = 0; k < g->updates.n; k++) {
        n[g->updates.at[k].target.i]++;
        n[g->updates.at[k].next.i]++;
    }
    w->uses = n;
    w->nuses = g->values.n;
}

static val_id try_node(struct engine *e, node_id n, int *which) {
    struct graph *g = e->w.g;
    enum op op = (enum op)graph_node(g, n)->op;
    val_id root = node_out(g, n, 0), v = VAL_NONE;
    bool several = graph_node(g, n)->nout != 1;
    for (int k = 0; k < e->set->nfns; k++) {
        if (e->set->fns[k].op != op && (several || e->set->fns[k].op != OP_NONE)) continue;
        v = e->set->fns[k].run(&e->w, n);
        *which = e->set->nrules + k;
        if (v.i && !several) v = fit(g, v, root);
        if (v.i && v.i != root.i) return v;
    }
    if (several) return VAL_NONE;
    for (int k = e->first[op]; k >= 0; k = e->next[k]) {
        v = apply_rule(&e->w, &e->codes[k], root);
        *which = k;
        if (v.i && v.i != root.i) return v;
    }
    return VAL_NONE;
}

/* One pass over the nodes, those added on the way included. */
static bool sweep(struct engine *e) {
    struct graph *g = e->w.g;
    bool changed = false;
    struct arena_mark start = arena_mark(e->w.scratch);
    count_uses(&e->w);
    for (uint32_t i = 1; i < g->nodes.n && e->applied < e->budget; i++) {
        node_id n = {i};
        int which = 0;
        val_id root = node_out(g, n, 0);
        if (graph_resolve(g, root).i != root.i) continue;
        val_id v = try_node(e, n, &which);
        if (!v.i || graph_resolve(g, v).i == root.i) continue;
        for (int k = 0; k < graph_node(g, n)->nout; k++)
            graph_forward(g, val_at(root, k), val_at(v, k));
        e->last[e->applied++ % LAST] = which < e->set->nrules
                                           ? e->set->rules[which].name
                                           : e->set->fns[which - e->set->nrules].name;
        if (e->fired) e->fired[which]++;
        changed = true;
    }
    graph_settle(g);
    arena_rewind(e->w.scratch, start);
    return changed;
}

enum status rewrite_run(struct pass_ctx *c, struct graph *g, const struct rewrite_set *set,
                        uint32_t *fired) {
    struct engine *e = ARENA_NEW(c->scratch, struct engine);
    *e = (struct engine){.w = {.g = g, .scratch = c->scratch}, .set = set, .fired = fired};
    e->budget = BUDGET_MIN + (uint64_t)BUDGET_PER_NODE * g->nodes.n;
    compile(e, c->scratch);
    while (sweep(e)) {
        if (e->applied < e->budget) continue;
        diag_warning(g->ctx, interned(&g->strings, g->name),
                     "%s stopped after %llu rewrites without coming to rest; the last rules were "
                     "%s, %s, %s, %s; please report the model",
                     set->pass, (unsigned long long)e->applied, e->last[0], e->last[1], e->last[2],
                     e->last[3]);
        break;
    }
    return ST_OK;
}
