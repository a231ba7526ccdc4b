// SPDX-License-Identifier: Apache-2.0
/* scope.c - names: every value is defined once, before it is used, and visible where it is used; ""
 * is no name. Nodes that stand before their producers are sorted. */
#include "base/diag.h"
#include "frontend/check.h"
#include <string.h>

enum { PRODUCER_INPUT = -1, PRODUCER_INITIALIZER = -2 };

struct shadowed {
    str_id name;
    struct name_state before;
};

/* A graph or function body whose names are in scope. */
struct level {
    const char *what; /* for diagnostics */
    Onnx__NodeProto **nodes;
    uint32_t n_nodes, current; /* index of the node being checked; n_nodes after the last */
    bool may_shadow;           /* inputs may be those of the level around */
    bool unsorted;
    edge_list edges; /* from consumer to producer */
    VEC(struct shadowed) declared;
    struct level *outer;
};

static struct name_state *state_of(struct checker *k, str_id id) {
    while (k->states.n <= id.i) vec_push(k->arena, &k->states, (struct name_state){0});
    return &k->states.at[id.i];
}

static enum status declare(struct checker *k, struct level *lv, const char *name,
                           int64_t producer) {
    struct ctx *c = k->m->ctx;
    if (!*name)
        return diag_error(c, ST_PARSE, lv->what, "a graph input or initializer has no name");
    str_id id = intern(&k->names, name);
    struct name_state *s = state_of(k, id);
    bool overrides = s->level == lv && s->producer == PRODUCER_INPUT &&
                     producer == PRODUCER_INITIALIZER; /* a default for the input */
    if (s->level == lv && !overrides)
        return diag_error(c, ST_PARSE, lv->what,
                          "'%s' is defined twice; names of inputs, initializers and node outputs "
                          "must be unique",
                          name);
    if (s->level && s->level != lv && !(lv->may_shadow && producer == PRODUCER_INPUT))
        return diag_error(c, ST_PARSE, lv->what,
                          "'%s' is already defined in a graph around this one", name);
    if (!overrides) vec_push(k->arena, &lv->declared, (struct shadowed){id, *s});
    *s = (struct name_state){lv, producer};
    return ST_OK;
}

static void leave(struct checker *k, struct level *lv) {
    for (uint32_t i = lv->declared.n; i-- > 0;)
        k->states.at[lv->declared.at[i].name.i] = lv->declared.at[i].before;
}

static enum status use(struct checker *k, struct level *lv, const char *name, const char *user) {
    str_id id = intern(&k->names, name);
    struct name_state s = *state_of(k, id);
    if (!s.level)
        return diag_error(
            k->m->ctx, ST_PARSE, user,
            "'%s' is used in %s, but nothing defines it: no input, initializer or node "
            "output has that name",
            name, lv->what);
    struct level *at = s.level;
    if (s.producer < 0 || at->current == at->n_nodes) return ST_OK;
    vec_push(k->arena, &at->edges, (struct edge){at->current, (uint32_t)s.producer});
    if (s.producer >= at->current) at->unsorted = true;
    return ST_OK;
}

/* ---- order ----------------------------------------------------------------------------------- */

struct sorter {
    uint32_t *first, *next; /* chains of edges by consumer, index + 1 */
    uint32_t *stack, depth;
    uint8_t *state; /* 0 new, 1 on the stack, 2 placed */
};

/* Producers before consumers, otherwise in the file's order: a depth-first walk without recursion.
 */
static enum status place(struct checker *k, struct level *lv, struct sorter *s, uint32_t root,
                         Onnx__NodeProto **sorted, uint32_t *n) {
    if (s->state[root]) return ST_OK;
    s->stack[s->depth++] = root;
    while (s->depth) {
        uint32_t node = s->stack[s->depth - 1], e = s->first[node];
        s->state[node] = 1;
        if (!e) {
            s->state[node] = 2;
            s->depth--;
            sorted[(*n)++] = lv->nodes[node];
            continue;
        }
        s->first[node] = s->next[e - 1];
        uint32_t producer = lv->edges.at[e - 1].to;
        if (s->state[producer] == 1)
            return diag_error(k->m->ctx, ST_PARSE, node_label(lv->nodes[node]),
                              "the node needs its own result (through '%s'); a graph must not have "
                              "cycles",
                              node_label(lv->nodes[producer]));
        if (!s->state[producer]) s->stack[s->depth++] = producer;
    }
    return ST_OK;
}

static enum status sort_nodes(struct checker *k, struct level *lv) {
    uint32_t n = lv->n_nodes, done = 0;
    struct sorter s = {.first = ARENA_ARRAY(k->arena, uint32_t, n),
                       .next = ARENA_ARRAY(k->arena, uint32_t, lv->edges.n),
                       .stack = ARENA_ARRAY(k->arena, uint32_t, n),
                       .state = ARENA_ARRAY(k->arena, uint8_t, n)};
    Onnx__NodeProto **sorted = ARENA_ARRAY(k->arena, Onnx__NodeProto *, n);
    for (uint32_t i = 0; i < lv->edges.n; i++) {
        uint32_t consumer = lv->edges.at[i].from;
        s.next[i] = s.first[consumer];
        s.first[consumer] = i + 1;
    }
    for (uint32_t i = 0; i < n; i++) TRY(place(k, lv, &s, i, sorted, &done));
    memcpy(lv->nodes, sorted, n * sizeof *sorted);
    diag_warning(k->m->ctx, k->m->path,
                 "the nodes of %s do not stand in the order of their data flow; sorted", lv->what);
    return ST_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static enum status check_graph(struct checker *k, Onnx__GraphProto *g, struct level *lv);

static enum status check_subgraph(struct checker *k, Onnx__GraphProto *g, struct level *outer) {
    struct level inner = {.what = *g->name ? g->name : "a subgraph", .outer = outer};
    TRY(check_graph(k, g, &inner));
    leave(k, &inner);
    return ST_OK;
}

/* Nodes of `lv` in order, each with the graphs it holds. */
static enum status check_nodes(struct checker *k, struct level *lv) {
    for (uint32_t i = 0; i < lv->n_nodes; i++) {
        Onnx__NodeProto *node = lv->nodes[i];
        for (size_t j = 0; j < node->n_output; j++)
            if (*node->output[j]) TRY(declare(k, lv, node->output[j], i));
    }
    for (lv->current = 0; lv->current < lv->n_nodes; lv->current++) {
        Onnx__NodeProto *node = lv->nodes[lv->current];
        TRY(check_node(k, node));
        for (size_t j = 0; j < node->n_input; j++)
            if (*node->input[j]) TRY(use(k, lv, node->input[j], node_label(node)));
        for (size_t j = 0; j < node->n_attribute; j++) {
            Onnx__AttributeProto *a = node->attribute[j];
            if (a->g) TRY(check_subgraph(k, a->g, lv));
            for (size_t i = 0; i < a->n_graphs; i++) TRY(check_subgraph(k, a->graphs[i], lv));
        }
    }
    return lv->unsorted ? sort_nodes(k, lv) : ST_OK;
}

static enum status node_count(struct checker *k, struct level *lv, Onnx__NodeProto **nodes,
                              size_t n) {
    if (n > INT32_MAX)
        return diag_error(k->m->ctx, ST_UNSUPPORTED, lv->what, "too many nodes (%zu)", n);
    lv->nodes = nodes;
    lv->n_nodes = (uint32_t)n;
    return ST_OK;
}

static enum status check_graph(struct checker *k, Onnx__GraphProto *g, struct level *lv) {
    TRY(node_count(k, lv, g->node, g->n_node));
    for (size_t i = 0; i < g->n_input; i++) {
        TRY(declare(k, lv, g->input[i]->name, PRODUCER_INPUT));
        TRY(check_value_info(k, g->input[i]));
    }
    for (size_t i = 0; i < g->n_initializer; i++)
        TRY(declare(k, lv, g->initializer[i]->name, PRODUCER_INITIALIZER));
    for (size_t i = 0; i < g->n_sparse_initializer; i++) {
        Onnx__TensorProto *values = g->sparse_initializer[i]->values;
        TRY(declare(k, lv, values ? values->name : "", PRODUCER_INITIALIZER));
    }
    TRY(check_nodes(k, lv));
    for (size_t i = 0; i < g->n_output; i++) {
        if (!*g->output[i]->name)
            return diag_error(k->m->ctx, ST_PARSE, lv->what, "graph output %zu has no name", i);
        TRY(use(k, lv, g->output[i]->name, lv->what));
        TRY(check_value_info(k, g->output[i]));
    }
    for (size_t i = 0; i < g->n_value_info; i++) TRY(check_value_info(k, g->value_info[i]));
    return ST_OK;
}

enum status check_graphs(struct checker *k) {
    Onnx__ModelProto *p = k->m->proto;
    struct level top = {.what = *p->graph->name ? p->graph->name : "the main graph"};
    TRY(check_graph(k, p->graph, &top));
    for (size_t i = 0; i < p->n_training_info; i++) {
        Onnx__GraphProto *g = p->training_info[i]->algorithm;
        struct level lv = {.what = "training_info.algorithm", .outer = &top, .may_shadow = true};
        if (!g) continue;
        TRY(check_graph(k, g, &lv));
        leave(k, &lv);
    }
    leave(k, &top);
    for (size_t i = 0; i < p->n_training_info; i++) {
        Onnx__GraphProto *g = p->training_info[i]->initialization;
        struct level lv = {.what = "training_info.initialization"};
        if (!g) continue;
        TRY(check_graph(k, g, &lv));
        leave(k, &lv);
    }
    return ST_OK;
}

enum status check_function_body(struct checker *k, Onnx__FunctionProto *f) {
    struct level lv = {.what = f->name};
    TRY(node_count(k, &lv, f->node, f->n_node));
    for (size_t i = 0; i < f->n_input; i++) TRY(declare(k, &lv, f->input[i], PRODUCER_INPUT));
    TRY(check_nodes(k, &lv));
    for (size_t i = 0; i < f->n_output; i++) TRY(use(k, &lv, f->output[i], f->name));
    leave(k, &lv);
    return ST_OK;
}
