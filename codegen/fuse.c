// SPDX-License-Identifier: Apache-2.0
/* fuse.c - decides what shares a launch. Cheap values are computed again where they are used
 * instead of being stored ("lazy"); other fusible nodes join the units of their producers or
 * siblings, in graph order, as long as one group program can hold them and no cycle between units
 * arises. */
#include "codegen/internal.h"
#include <stdlib.h>
#include <string.h>

enum { UNIT_NODES_MAX = 40, LAZY_WEIGHT_MAX = 8, CANDIDATES_MAX = 6, SIBLING_WINDOW = 256 };

val_id view_base(const struct cg *c, val_id v) {
    while (node_class(c->g, val_def(c->g, v)) == CLASS_VIEW) v = node_in(c->g, val_def(c->g, v), 0);
    return v;
}

/* ---- what must be in memory ----------------------------------------------------------------- */
static void mark_needs(struct cg *c) {
    struct graph *g = c->g;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        enum node_class cls = node_class(g, n);
        bool random = graph_node(g, n)->op == OP_random;
        for (int k = 0; k < graph_node(g, n)->nin; k++) {
            val_id base = view_base(c, node_in(g, n, k));
            val_id scale, gradient = k == 1 ? optimizer_gradient(g, n, &scale) : VAL_NONE;
            if (gradient.i) {
                c->vals[view_base(c, gradient).i].need = true;
                if (scale.i) c->vals[view_base(c, scale).i].need = true;
            } else if (cls == CLASS_LAUNCH || random) {
                c->vals[base.i].need = true;
            }
        }
    }
    for (uint32_t i = 0; i < g->outputs.n; i++)
        c->vals[view_base(c, graph_resolve(g, g->outputs.at[i].value)).i].need = true;
    for (uint32_t i = 0; i < g->updates.n; i++) {
        val_id base = view_base(c, graph_resolve(g, g->updates.at[i].next));
        c->vals[base.i].need = true;
        c->vals[base.i].plain = true;
    }
}

/* Elementwise nodes that only updates need run after everything else. Not reductions: what they
 * read, such as the gradients that a history of magnitudes is about, would have to stay until then.
 */
static void mark_late(struct cg *c) {
    struct graph *g = c->g;
    bool *next = ARENA_ARRAY(c->scratch, bool, g->values.n);
    for (uint32_t i = 0; i < g->updates.n; i++)
        next[graph_resolve(g, g->updates.at[i].next).i] = true;
    for (uint32_t i = g->nodes.n; i-- > 1;) {
        node_id n = {i};
        bool launch = node_class(g, n) == CLASS_LAUNCH;
        bool updates = false, others = false;
        for (int k = 0; k < graph_node(g, n)->nout; k++) {
            val_id v = node_out(g, n, k);
            updates |= next[v.i];
            for (uint32_t u = c->uses.first[v.i]; u < c->uses.first[v.i + 1]; u++) {
                node_id user = c->uses.user[u];
                bool late = c->nodes[user.i].late && node_class(g, user) != CLASS_LAUNCH;
                others |= !late;
                updates |= late;
            }
            if (c->uses.live_out[v.i] && !next[v.i]) others = true;
        }
        bool is_next = false;
        for (int k = 0; k < graph_node(g, n)->nout; k++) is_next |= next[node_out(g, n, k).i];
        enum op op = (enum op)graph_node(g, n)->op;
        bool sums = op >= OP_reduce_sum && op <= OP_reduce_prod;
        c->nodes[i].late = launch || sums ? is_next : is_next || (updates && !others);
    }
}

/* ---- lazy values ---------------------------------------------------------------------------- */
static bool cheap(enum op op) {
    switch (op) {
    case OP_neg:
    case OP_abs:
    case OP_sign:
    case OP_floor:
    case OP_ceil:
    case OP_round:
    case OP_relu:
    case OP_not:
    case OP_isnan:
    case OP_isinf:
    case OP_cast:
    case OP_add:
    case OP_sub:
    case OP_mul:
    case OP_div:
    case OP_max:
    case OP_min:
    case OP_eq:
    case OP_ne:
    case OP_lt:
    case OP_le:
    case OP_and:
    case OP_or:
    case OP_xor:
    case OP_clip:
    case OP_where:
    case OP_recip:
    case OP_sqrt:
    case OP_rsqrt: return true;
    default: return false;
    }
}

/* Codes are made so that what they stand for need not be kept. */
static bool makes_codes(const struct graph *g, node_id n) {
    return graph_node(g, n)->op == OP_cast &&
           dtype_size(val_type(g, node_out(g, n, 0))->dtype) == 1 &&
           dtype_is_float(val_type(g, node_out(g, n, 0))->dtype);
}

/* From 16 or 8 bits to f32: what is stored, if anything has to be, is the narrow value. */
static bool widens(const struct graph *g, node_id n) {
    if (graph_node(g, n)->op != OP_cast) return false;
    return val_type(g, node_out(g, n, 0))->dtype == DT_f32 &&
           dtype_is_float(val_type(g, node_in(g, n, 0))->dtype) &&
           dtype_size(val_type(g, node_in(g, n, 0))->dtype) <= 2;
}

/* An elementwise node is lazy when it is cheap and reads at most one large value, which is in
 * memory for other reasons; or nothing large at all (masks, one-hot codes, positions). */
static void mark_lazy(struct cg *c, node_id n) {
    struct graph *g = c->g;
    const struct node *node = graph_node(g, n);
    enum op op = (enum op)node->op;
    val_id v = node_out(g, n, 0);
    struct node_info *info = &c->nodes[n.i];
    if (c->o->no_fusion || c->vals[v.i].need || makes_codes(g, n)) return;
    if (op == OP_iota || op == OP_full) {
        info->lazy = true, info->weight = 1;
        return;
    }
    if (!(op_info(op)->traits & EW)) return;
    int64_t count = type_count(val_type(g, v));
    unsigned weight = 1, leaves = 0;
    double x;
    int64_t ix;
    for (int k = 0; k < node->nin; k++) {
        val_id base = view_base(c, node_in(g, n, k));
        node_id def = val_def(g, base);
        if (scalar_const(g, base, &x, &ix)) continue;
        bool large = type_count(val_type(g, base)) >= count / 8;
        if (c->nodes[def.i].lazy) {
            weight += c->nodes[def.i].weight, leaves += large ? c->nodes[def.i].leaves : 0;
            continue;
        }
        enum node_class cls = node_class(g, def);
        bool kept = cls == CLASS_SOURCE || cls == CLASS_LAUNCH || c->vals[base.i].need;
        if (large && !kept && !widens(g, n)) return;
        leaves += large;
    }
    if (weight > LAZY_WEIGHT_MAX || leaves > 1 || (leaves == 1 && !cheap(op))) return;
    info->lazy = true;
    info->weight = (uint8_t)weight, info->leaves = (uint8_t)leaves;
}

/* ---- the graph of units --------------------------------------------------------------------- */
void unit_sources(struct walk *w, node_id n) {
    struct cg *c = w->c;
    for (int k = 0; k < graph_node(c->g, n)->nin; k++) {
        node_id def = val_def(c->g, node_in(c->g, n, k));
        struct node_info *info = &c->nodes[def.i];
        if (info->stamp == c->stamp) continue;
        info->stamp = c->stamp;
        if (info->unit)
            vec_push(c->scratch, &w->units, info->unit);
        else if (node_class(c->g, def) != CLASS_SOURCE)
            unit_sources(w, def);
    }
}

static void users_of(struct walk *w, node_id n) {
    struct cg *c = w->c;
    for (int j = 0; j < graph_node(c->g, n)->nout; j++) {
        val_id v = node_out(c->g, n, j);
        for (uint32_t u = c->uses.first[v.i]; u < c->uses.first[v.i + 1]; u++) {
            node_id user = c->uses.user[u];
            struct node_info *info = &c->nodes[user.i];
            if (info->stamp == c->stamp) continue;
            info->stamp = c->stamp;
            if (info->unit)
                vec_push(c->scratch, &w->units, info->unit);
            else
                users_of(w, user);
        }
    }
}

/* Levels rise strictly along edges between units: what a unit reaches lies above it. */
static uint32_t level_above(struct cg *c, const uint32_t *nodes, uint32_t n, uint32_t self) {
    struct arena_mark mark = arena_mark(c->scratch);
    struct walk w = {.c = c};
    uint32_t level = 1;
    c->stamp++;
    for (uint32_t k = 0; k < n; k++) unit_sources(&w, (node_id){nodes[k]});
    for (uint32_t k = 0; k < w.units.n; k++) {
        const struct unit *u = &c->units.at[w.units.at[k]];
        if (w.units.at[k] != self && u->level >= level) level = u->level + 1;
    }
    arena_rewind(c->scratch, mark);
    return level;
}

static void raise_level(struct cg *c, uint32_t unit, uint32_t level) {
    struct arena_mark mark = arena_mark(c->scratch);
    VEC(uint32_t) work = {0};
    if (c->units.at[unit].level < level) c->units.at[unit].level = level;
    vec_push(c->scratch, &work, unit);
    while (work.n > 0) {
        struct unit *u = &c->units.at[work.at[--work.n]];
        struct walk w = {.c = c};
        c->stamp++;
        for (uint32_t k = 0; k < u->nodes.n; k++) users_of(&w, (node_id){u->nodes.at[k]});
        for (uint32_t k = 0; k < w.units.n; k++) {
            struct unit *t = &c->units.at[w.units.at[k]];
            if (t == u || t->level > u->level) continue;
            t->level = u->level + 1;
            vec_push(c->scratch, &work, w.units.at[k]);
        }
    }
    arena_rewind(c->scratch, mark);
}

/* Whether a path leaves the units in `set` (and node n) and comes back to them from outside. */
static bool makes_cycle(struct cg *c, const uint32_t *set, uint32_t nset, node_id n) {
    struct arena_mark mark = arena_mark(c->scratch);
    uint32_t low = UINT32_MAX;
    bool *seen = ARENA_ARRAY(c->scratch, bool, c->units.n);
    bool cycle = false;
    for (uint32_t k = 0; k < nset; k++)
        if (c->units.at[set[k]].level < low) low = c->units.at[set[k]].level;
    VEC(uint32_t) work = {0};
    for (uint32_t k = 0; k <= nset; k++) {
        struct walk w = {.c = c};
        c->stamp++;
        if (k == nset)
            unit_sources(&w, n);
        else
            for (uint32_t j = 0; j < c->units.at[set[k]].nodes.n; j++)
                unit_sources(&w, (node_id){c->units.at[set[k]].nodes.at[j]});
        for (uint32_t j = 0; j < w.units.n; j++) vec_push(c->scratch, &work, w.units.at[j]);
    }
    for (uint32_t k = 0; k < nset; k++) seen[set[k]] = true; /* direct edges inside are fine */
    while (work.n > 0 && !cycle) {
        uint32_t at = work.at[--work.n];
        if (seen[at] || c->units.at[at].level <= low) continue;
        seen[at] = true;
        struct walk w = {.c = c};
        c->stamp++;
        for (uint32_t j = 0; j < c->units.at[at].nodes.n; j++)
            unit_sources(&w, (node_id){c->units.at[at].nodes.at[j]});
        for (uint32_t j = 0; j < w.units.n; j++) {
            for (uint32_t k = 0; k < nset; k++) cycle |= w.units.at[j] == set[k];
            vec_push(c->scratch, &work, w.units.at[j]);
        }
    }
    arena_rewind(c->scratch, mark);
    return cycle;
}

/* ---- joining -------------------------------------------------------------------------------- */
static int64_t loop_count(const struct cg *c, node_id n) {
    enum op op = (enum op)graph_node(c->g, n)->op;
    bool own = (op_info(op)->traits & (EW | SOURCE)) || op == OP_random;
    return type_count(val_type(c->g, own ? node_out(c->g, n, 0) : node_in(c->g, n, 0)));
}

static void set_unit(struct cg *c, const uint32_t *nodes, uint32_t n, uint32_t unit) {
    for (uint32_t k = 0; k < n; k++) c->nodes[nodes[k]].unit = unit;
}

static uint32_t new_unit(struct cg *c, enum unit_kind kind, const uint32_t *nodes, uint32_t n) {
    struct unit u = {.kind = kind, .level = level_above(c, nodes, n, 0)};
    for (uint32_t k = 0; k < n; k++) vec_push(c->scratch, &u.nodes, nodes[k]);
    vec_push(c->scratch, &c->units, u);
    set_unit(c, nodes, n, c->units.n - 1);
    return c->units.n - 1;
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Nodes share a launch only within one part of a step: updates come last, and what the backward
 * part computes from forward values must not be computed, and kept, early. */
static int phase(const struct cg *c, node_id n) {
    return c->nodes[n.i].late ? 2 : c->loss_node != 0 && n.i > c->loss_node;
}

/* Put node n (unless 0) and the units of `set` into one unit, if that is legal. */
static bool join(struct cg *c, const uint32_t *set, uint32_t nset, node_id n) {
    struct unit *first = &c->units.at[set[0]];
    struct space sp = first->space;
    uint32_t total = n.i != 0;
    int want = phase(c, n.i != 0 ? n : (node_id){first->nodes.at[0]});
    for (uint32_t k = 0; k < nset; k++) {
        const struct unit *u = &c->units.at[set[k]];
        total += u->nodes.n;
        if (phase(c, (node_id){u->nodes.at[0]}) != want) return false;
        if (k > 0 && !space_merge(&sp, &u->space, fuses_as_gpu(c), &sp)) return false;
    }
    int64_t count = n.i != 0 ? loop_count(c, n) : sp.count;
    if (total > UNIT_NODES_MAX || sp.count == 0) return false;
    bool rows = sp.has_row && count == space_rows(&sp);
    if (count != sp.count && !rows && count != space_parts(&sp)) return false;
    if (makes_cycle(c, set, nset, n)) return false;

    uint32_t *nodes = ARENA_ARRAY(c->scratch, uint32_t, total), at = 0;
    for (uint32_t k = 0; k < nset; k++)
        for (uint32_t j = 0; j < c->units.at[set[k]].nodes.n; j++)
            nodes[at++] = c->units.at[set[k]].nodes.at[j];
    if (n.i != 0) nodes[at++] = n.i;
    qsort(nodes, total, sizeof *nodes, by_number);
    set_unit(c, nodes, total, set[0]);
    if (!group_try(c, set[0], &sp, nodes, total)) {
        for (uint32_t k = 0; k < nset; k++)
            set_unit(c, c->units.at[set[k]].nodes.at, c->units.at[set[k]].nodes.n, set[k]);
        if (n.i != 0) c->nodes[n.i].unit = 0;
        return false;
    }
    uint32_t level = level_above(c, nodes, total, set[0]);
    for (uint32_t k = 0; k < nset; k++) {
        struct unit *u = &c->units.at[set[k]];
        if (u->level > level) level = u->level;
        if (k > 0) u->dead = true, u->nodes.n = 0;
    }
    first->nodes.at = nodes;
    first->nodes.n = first->nodes.cap = total;
    first->space = sp;
    raise_level(c, set[0], level);
    return true;
}

static void add_candidate(struct cg *c, uint32_t *set, uint32_t *n, uint32_t unit) {
    if (unit == 0 || c->units.at[unit].kind != UNIT_GROUP || *n == CANDIDATES_MAX) return;
    for (uint32_t k = 0; k < *n; k++)
        if (set[k] == unit) return;
    set[(*n)++] = unit;
}

static bool join_producers(struct cg *c, node_id n) {
    uint32_t set[CANDIDATES_MAX], nset = 0;
    struct walk w = {.c = c};
    c->stamp++;
    unit_sources(&w, n);
    for (uint32_t k = w.units.n; k-- > 0;) add_candidate(c, set, &nset, w.units.at[k]);
    if (nset == 0) return false;
    qsort(set, nset, sizeof *set, by_number);
    if (nset > 1 && join(c, set, nset, n)) return true;
    for (uint32_t k = nset; k-- > 0;)
        if (join(c, &set[k], 1, n)) return true;
    return false;
}

static void add_siblings(struct cg *c, node_id n, val_id v, uint32_t *set, uint32_t *nset,
                         int depth) {
    struct graph *g = c->g;
    if (type_count(val_type(g, v)) != loop_count(c, n)) return;
    for (uint32_t u = c->uses.first[v.i + 1]; u-- > c->uses.first[v.i];) {
        node_id user = c->uses.user[u];
        if (user.i >= n.i || n.i - user.i >= SIBLING_WINDOW) continue;
        add_candidate(c, set, nset, c->nodes[user.i].unit);
        if (c->nodes[user.i].lazy && depth > 0) /* what reads it through a lazy value */
            add_siblings(c, n, node_out(g, user, 0), set, nset, 0);
    }
    node_id def = val_def(g, v);
    for (int k = 0; c->nodes[def.i].lazy && depth > 0 && k < graph_node(g, def)->nin; k++)
        add_siblings(c, n, node_in(g, def, k), set, nset, depth - 1);
}

/* Units that read the same large value over the same space, such as the column sum of a gradient.
 */
static void join_siblings(struct cg *c, node_id n) {
    struct graph *g = c->g;
    uint32_t set[CANDIDATES_MAX], nset = 0, own = c->nodes[n.i].unit;
    for (int k = 0; k < graph_node(g, n)->nin; k++)
        add_siblings(c, n, node_in(g, n, k), set, &nset, 2);
    for (uint32_t k = 0; k < nset; k++) {
        if (set[k] == own || c->units.at[set[k]].dead) continue;
        uint32_t pair[2] = {own < set[k] ? own : set[k], own < set[k] ? set[k] : own};
        if (join(c, pair, 2, (node_id){0})) own = pair[0];
    }
}

/* A unit of its own; operands that cannot be computed in place are put into memory first. */
static void single(struct cg *c, node_id n) {
    uint32_t unit = new_unit(c, UNIT_GROUP, &n.i, 1);
    struct space sp;
    space_init(&sp, loop_count(c, n));
    if (sp.count != 0 && !group_try(c, unit, &sp, &n.i, 1))
        for (int k = 0; k < graph_node(c->g, n)->nin; k++) {
            node_id def = val_def(c->g, view_base(c, node_in(c->g, n, k)));
            if (!c->nodes[def.i].lazy) continue;
            c->nodes[def.i].lazy = false;
            single(c, def);
            raise_level(c, c->nodes[def.i].unit, 1); /* earlier readers load it from now on */
            uint32_t level = level_above(c, &n.i, 1, unit);
            raise_level(c, unit, level);
            space_init(&sp, loop_count(c, n));
            if (group_try(c, unit, &sp, &n.i, 1)) break;
        }
    c->units.at[unit].space = sp;
}

/* ---- what is stored -------------------------------------------------------------------------- */
static void mark_stored(struct cg *c, val_id v, uint32_t unit) {
    node_id def = val_def(c->g, v);
    const struct node_info *info = &c->nodes[def.i];
    if (info->unit && info->unit != unit && norm_again(c, v)) {
        mark_stored(c, node_in(c->g, def, 0), unit);
        for (int j = 1; j < graph_node(c->g, def)->nout; j++)
            mark_stored(c, node_out(c->g, def, j), unit);
    } else if (info->unit) {
        if (info->unit != unit) c->vals[v.i].stored = true;
    } else if (info->stamp != c->stamp) {
        c->nodes[def.i].stamp = c->stamp;
        for (int k = 0; k < graph_node(c->g, def)->nin; k++)
            mark_stored(c, node_in(c->g, def, k), unit);
    }
}

static void mark_all_stored(struct cg *c) {
    struct graph *g = c->g;
    for (uint32_t u = 1; u < c->units.n; u++) {
        c->stamp++;
        for (uint32_t k = 0; k < c->units.at[u].nodes.n; k++) {
            node_id n = {c->units.at[u].nodes.at[k]};
            for (int j = 0; j < graph_node(g, n)->nin; j++) mark_stored(c, node_in(g, n, j), u);
        }
    }
    for (uint32_t v = 1; v < g->values.n; v++)
        if (c->vals[v].need) c->vals[v].stored = true;
    for (uint32_t u = 1; u < c->units.n; u++) {
        struct unit *x = &c->units.at[u];
        for (uint32_t k = 0; k < x->nodes.n; k++) {
            uint64_t late = c->nodes[x->nodes.at[k]].late ? (uint64_t)1 << 40 : 0;
            if (x->key < late + x->nodes.at[k]) x->key = late + x->nodes.at[k];
        }
    }
}

void fuse(struct cg *c) {
    struct graph *g = c->g;
    mark_needs(c);
    fold_products(c);
    mark_late(c);
    vec_push(c->scratch, &c->units, (struct unit){.dead = true});
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        enum node_class cls = node_class(g, n);
        if (cls == CLASS_SOURCE || cls == CLASS_VIEW) continue;
        const struct product *whole = c->nodes[i].product;
        if (whole) { /* comes where its last node stands: only then are all its sources known */
            if (val_def(g, whole->result).i == i) new_unit(c, UNIT_NODE, whole->nodes, whole->n);
            continue;
        }
        if (cls != CLASS_FUSED) {
            new_unit(c, UNIT_NODE, &i, 1);
            continue;
        }
        mark_lazy(c, n);
        if (c->nodes[i].lazy || c->nodes[i].unit) continue;
        if (c->o->no_fusion || !join_producers(c, n)) single(c, n);
        if (!c->o->no_fusion) join_siblings(c, n);
    }
    mark_all_stored(c);
}
