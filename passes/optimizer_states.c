// SPDX-License-Identifier: Apache-2.0
/* optimizer_states.c - steps of Adam and AdamW, whoever wrote them, as steps with 8-bit m and v
 * where the recipe asks for them. The states keep their names and get their scales and exponents
 * beside them: "NAME.amax" and "NAME.k". Left alone: parameters that the recipe names, those that
 * are not f32, and states with initial values or that something else reads. */
#include "base/diag.h"
#include "passes/pass.h"
#include <string.h>

struct rewrite {
    struct graph *g;
    struct arena *scratch;
    const struct recipe *r;
    struct uses uses;
};
struct state { /* one of a step's two */
    val_id old;
    val_id parts[3]; /* codes, amax, k */
    const struct recipe_state *to;
};

static bool is_wide(const struct recipe_state *s) {
    return s->format == DT_f32;
}

/* ---- what can be rewritten ----------------------------------------------------------------- */
static bool is_output(const struct graph *g, val_id v) {
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (graph_resolve(g, g->outputs.at[i].value).i == v.i) return true;
    return false;
}

/* where(condition, next, state): a step that does not always count. */
static bool is_choice(const struct graph *g, node_id n, val_id next, val_id state) {
    return graph_node(g, n)->op == OP_where && node_in(g, n, 1).i == next.i &&
           node_in(g, n, 2).i == state.i;
}

/* Nothing but step n and its update reads the state or its new value. */
static bool is_own(const struct rewrite *x, node_id n, val_id state, val_id next) {
    const struct graph *g = x->g;
    const val_id both[2] = {state, next};
    if (val_op(g, state) != OP_state || is_output(g, state) || is_output(g, next)) return false;
    node_id s = val_def(g, state);
    if (attr_blob(g, s, ATTR_init).i || attr_float(g, s, ATTR_fill) != 0.0) return false;
    for (int k = 0; k < 2; k++)
        for (uint32_t u = x->uses.first[both[k].i]; u < x->uses.first[both[k].i + 1]; u++) {
            node_id user = x->uses.user[u];
            if (user.i != n.i && !is_choice(g, user, next, state)) return false;
            if (user.i != n.i && is_output(g, node_out(g, user, 0))) return false;
        }
    return true;
}

static bool can_rewrite(const struct rewrite *x, node_id n) {
    const struct graph *g = x->g;
    if (graph_node(g, n)->op != OP_adam) return false;
    val_id w = node_in(g, n, 0);
    const struct type *t = val_type(g, w);
    if (t->dtype != DT_f32 || type_count(t) < 0) return false;
    if (val_op(g, w) == OP_param || val_op(g, w) == OP_state) {
        const char *name = attr_str(g, val_def(g, w), ATTR_name);
        for (int k = 0; k < x->r->nwide_states; k++)
            if (recipe_match(x->r->wide_states[k], name, strlen(name))) return false;
    }
    return is_own(x, n, node_in(g, n, 2), node_out(g, n, 1)) &&
           is_own(x, n, node_in(g, n, 3), node_out(g, n, 2));
}

/* ---- states -------------------------------------------------------------------------------- */
static val_id add_beside(struct rewrite *x, val_id state, const char *suffix, enum dtype t,
                         int64_t n, double fill) {
    struct graph *g = x->g;
    node_id s = val_def(g, state);
    const char *name = arena_printf(x->scratch, "%s.%s", attr_str(g, s, ATTR_name), suffix);
    struct type type = {.dtype = t, .rank = 1, .dims = {n}};
    struct attr attrs[3] = {{.key = ATTR_name, .s = name},
                            {.key = ATTR_role, .s = attr_str(g, s, ATTR_role)},
                            {.key = ATTR_fill, .f = fill}};
    val_id v = graph_source(g, OP_state, &type, attrs, 3, graph_node(g, s)->origin);
    graph_set_name(g, v, name);
    return v;
}

/* The state's type changes under its readers; all of them are replaced. */
static void make_parts(struct rewrite *x, struct state *s, int64_t group) {
    struct graph *g = x->g;
    struct type t = *val_type(g, s->old);
    int64_t n = type_count(&t), groups = is_wide(s->to) ? 0 : n / group + (n % group != 0);
    t.dtype = s->to->format;
    g->values.at[s->old.i].type = graph_type(g, &t);
    s->parts[0] = s->old;
    s->parts[1] = add_beside(x, s->old, "amax", DT_f32, groups, 0.0);
    s->parts[2] = add_beside(x, s->old, "k", DT_u8, groups, 16.0); /* not expanded */
}

/* The update of a state that became `old_next` becomes updates of its parts. */
static void rebind(struct rewrite *x, const struct state *s, val_id old_next, val_id first) {
    struct graph *g = x->g;
    uint32_t updates = g->updates.n;
    for (uint32_t i = 0; i < updates; i++) {
        if (graph_resolve(g, g->updates.at[i].target).i != s->old.i) continue;
        val_id next = graph_resolve(g, g->updates.at[i].next), condition = VAL_NONE;
        node_id def = val_def(g, next);
        if (next.i != old_next.i) condition = node_in(g, def, 0);
        for (int k = 0; k < 3; k++) {
            val_id v = val_at(first, k);
            str_id o = graph_node(g, def)->origin;
            if (condition.i) v = build_3(g, OP_where, condition, v, s->parts[k], o);
            if (k == 0)
                g->updates.at[i].next = v;
            else
                graph_add_update(g, s->parts[k], v);
        }
    }
}

/* ---- steps --------------------------------------------------------------------------------- */
static double range_of(const struct recipe_state *s) {
    return is_wide(s) ? 0.0 : s->range;
}

static bool at_random(const struct rewrite *x, double beta2) {
    const struct recipe_state *v = &x->r->v;
    if (is_wide(v)) return false;
    return v->rounding == STATE_STOCHASTIC || (v->rounding == STATE_AUTO && beta2 > STATE_BETA2);
}

static void rewrite_step(struct rewrite *x, node_id n) {
    struct graph *g = x->g;
    const struct recipe *r = x->r;
    struct state m = {.old = node_in(g, n, 2), .to = &r->m},
                 v = {.old = node_in(g, n, 3), .to = &r->v};
    int64_t group = is_wide(&r->m) ? r->v.group : r->m.group;
    double beta2 = attr_float(g, n, ATTR_beta2);
    const struct attr attrs[] = {
        {.key = ATTR_beta1, .f = attr_float(g, n, ATTR_beta1)},
        {.key = ATTR_beta2, .f = beta2},
        {.key = ATTR_eps, .f = attr_float(g, n, ATTR_eps)},
        {.key = ATTR_weight_decay, .f = attr_float(g, n, ATTR_weight_decay)},
        {.key = ATTR_decoupled, .i = attr_bool(g, n, ATTR_decoupled)},
        {.key = ATTR_eps_hat, .i = attr_bool(g, n, ATTR_eps_hat)},
        {.key = ATTR_group, .i = group},
        {.key = ATTR_m_range, .f = range_of(&r->m)},
        {.key = ATTR_v_range, .f = range_of(&r->v)},
        {.key = ATTR_contract, .i = r->m.contract || r->v.contract},
        {.key = ATTR_stochastic, .i = at_random(x, beta2)},
    };
    make_parts(x, &m, group);
    make_parts(x, &v, group);
    val_id in[10] = {node_in(g, n, 0), node_in(g, n, 1), m.parts[0], m.parts[1],
                     m.parts[2],       v.parts[0],       v.parts[1], v.parts[2],
                     node_in(g, n, 4), node_in(g, n, 5)};
    val_id y = graph_add(g, OP_adam8, in, 10, attrs, (int)(sizeof attrs / sizeof *attrs),
                         graph_node(g, n)->origin);
    rebind(x, &m, node_out(g, n, 1), val_at(y, 1));
    rebind(x, &v, node_out(g, n, 2), val_at(y, 4));
    graph_forward(g, node_out(g, n, 0), y);
}

enum status pass_optimizer_states(struct pass_ctx *c, struct graph *g) {
    struct rewrite x = {.g = g, .scratch = c->scratch, .r = c->recipe};
    if (!c->recipe || (is_wide(&c->recipe->m) && is_wide(&c->recipe->v))) return ST_OK;
    x.uses = uses_build(g, c->scratch);
    for (uint32_t i = 1, n = g->nodes.n; i < n; i++)
        if (can_rewrite(&x, (node_id){i})) rewrite_step(&x, (node_id){i});
    graph_settle(g);
    return ST_OK;
}
