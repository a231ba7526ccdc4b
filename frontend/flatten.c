// SPDX-License-Identifier: Apache-2.0
/* flatten.c - from the nested, named model to one list of nodes over numbered values: scopes, local
 * functions, Constant and Identity. Control flow stays a node until its condition is known. Meaning
 * of the other ops is not its business. */
#include "frontend/importer.h"
#include <string.h>

enum { DEPTH_MAX = 64, NODES_MAX = 4000000, SWEEPS_MAX = 1000 };

struct ivalue *iv(struct importer *im, uint32_t v) {
    CHECK(im->ctx, v < im->values.n);
    return &im->values.at[v];
}

/* ---- attributes ---------------------------------------------------------------------------- */
const Onnx__AttributeProto *node_attr(const struct inode *n, const char *name) {
    for (int i = 0; i < n->nattrs; i++)
        if (strcmp(n->attrs[i]->name, name) == 0) return n->attrs[i];
    return NULL;
}

bool node_has(const struct inode *n, const char *name) {
    return node_attr(n, name) != NULL;
}

int64_t node_int(const struct inode *n, const char *name, int64_t fallback) {
    const Onnx__AttributeProto *a = node_attr(n, name);
    return a && a->has_i ? a->i : fallback;
}

enum dtype node_dtype(const struct inode *n, const char *name) {
    int64_t code = node_int(n, name, 0);
    return code > 0 && code <= INT32_MAX ? dtype_from_onnx((int32_t)code) : DT_NONE;
}

double node_float(const struct inode *n, const char *name, double fallback) {
    const Onnx__AttributeProto *a = node_attr(n, name);
    return a && a->has_f ? (double)a->f : fallback;
}

bool node_str_is(const struct inode *n, const char *name, const char *s) {
    const Onnx__AttributeProto *a = node_attr(n, name);
    size_t len = strlen(s);
    return a && a->has_s && a->s.len == len && memcmp(a->s.data, s, len) == 0;
}

const int64_t *node_ints(const struct inode *n, const char *name, int *count) {
    const Onnx__AttributeProto *a = node_attr(n, name);
    *count = 0;
    if (!a || a->n_ints == 0 || a->n_ints > INT32_MAX) return NULL;
    *count = (int)a->n_ints;
    return a->ints;
}

/* An attribute of a function body may name an attribute of the call; one that the call and the
 * function leave out is left out here as well. */
static const Onnx__AttributeProto *resolve_attr(struct importer *im, struct scope *s,
                                                const Onnx__AttributeProto *a) {
    if (a->ref_attr_name[0] == 0) return a;
    const Onnx__AttributeProto *from = NULL;
    if (s->call) from = node_attr(s->call, a->ref_attr_name);
    for (size_t i = 0; !from && s->fn && i < s->fn->n_attribute_proto; i++)
        if (strcmp(s->fn->attribute_proto[i]->name, a->ref_attr_name) == 0)
            from = s->fn->attribute_proto[i];
    if (!from) return NULL;
    Onnx__AttributeProto *copy = ARENA_NEW(im->a, Onnx__AttributeProto);
    *copy = *from;
    copy->name = a->name;
    return copy;
}

/* ---- names --------------------------------------------------------------------------------- */
static struct scope *scope_new(struct importer *im, struct scope *up) {
    struct scope *s = ARENA_NEW(im->a, struct scope);
    map_init(&s->names, im->a);
    s->up = up;
    s->prefix = "";
    if (up) {
        s->fn = up->fn;
        s->call = up->call;
        s->caller = up->caller;
        s->prefix = up->prefix;
        s->depth = up->depth + 1;
    }
    return s;
}

static void bind_name(struct importer *im, struct scope *s, const char *name, uint32_t v) {
    map_set(&s->names, intern(&im->names, name).i, v);
}

static bool find_name(struct importer *im, const struct scope *s, const char *name, uint32_t *v) {
    str_id id = intern(&im->names, name);
    for (; s; s = s->up)
        if (map_get(&s->names, id.i, v)) return true;
    return false;
}

static uint32_t new_value(struct importer *im, const char *name) {
    struct ivalue v = {.name = name};
    vec_push(im->a, &im->values, v);
    return im->values.n - 1;
}

static const char *plain_domain(const char *d) {
    return strcmp(d, "ai.onnx") == 0 ? "" : d;
}

static int64_t opset_of(Onnx__OperatorSetIdProto **list, size_t n, const char *domain) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(plain_domain(list[i]->domain), domain) == 0) return list[i]->version;
    return 0;
}

static int64_t scope_opset(struct importer *im, const struct scope *s, const char *domain) {
    if (s->fn) {
        int64_t v = opset_of(s->fn->opset_import, s->fn->n_opset_import, domain);
        if (v > 0) return v;
    }
    const Onnx__ModelProto *m = im->m->proto;
    return opset_of(m->opset_import, m->n_opset_import, domain);
}

static const Onnx__FunctionProto *find_function(struct importer *im, const char *domain,
                                                const Onnx__NodeProto *p) {
    const Onnx__ModelProto *m = im->m->proto;
    for (size_t i = 0; i < m->n_functions; i++) {
        const Onnx__FunctionProto *f = m->functions[i];
        if (strcmp(f->name, p->op_type) == 0 && strcmp(plain_domain(f->domain), domain) == 0 &&
            strcmp(f->overload, p->overload) == 0)
            return f;
    }
    return NULL;
}

/* ---- constants ----------------------------------------------------------------------------- */
static void add_weight(struct importer *im, uint32_t v, const struct onnx_tensor *t, bool constant,
                       bool inner) {
    struct weight w = {.t = *t, .value = v, .constant = constant, .inner = inner, .type = t->type};
    w.t.name = im->values.at[v].name;
    vec_push(im->a, &im->weights, w);
    struct ivalue *x = iv(im, v);
    x->kind = VK_TENSOR;
    x->type = t->type;
    x->weight = im->weights.n;
    known_from_tensor(im, v, t);
}

static void note_unsupported(struct importer *im, const char *op, const char *why,
                             const char *node) {
    const char **list = ARENA_ARRAY(im->a, const char *, 1);
    list[0] = node;
    struct import_unsupported u = {op, "", im->m->opset, why, list, 1};
    vec_push(im->a, &im->unsupported, u);
}

static enum status add_initializer(struct importer *im, struct scope *s, const Onnx__TensorProto *p,
                                   bool inner) {
    uint32_t v = new_value(im, p->name);
    bind_name(im, s, p->name, v);
    struct onnx_tensor t;
    if (dtype_from_onnx(p->data_type) == DT_NONE) {
        iv(im, v)->kind = VK_BROKEN;
        note_unsupported(im, "initializer",
                         arena_printf(im->a, "ONNX element type %d", (int)p->data_type), p->name);
        return ST_OK;
    }
    TRY(onnx_decode_tensor(im->m, p, p->name, &t));
    add_weight(im, v, &t, false, inner);
    return ST_OK;
}

/* The tensor of a Constant node; *ok is false when it is of a kind that Lathe does not know. */
static enum status constant_tensor(struct importer *im, const struct inode *n,
                                   struct onnx_tensor *t, bool *ok) {
    const Onnx__AttributeProto *a = n->nattrs > 0 ? n->attrs[0] : NULL;
    static const float zero_f = 0;
    static const int64_t zero_i = 0;
    *ok = a != NULL;
    if (!a) return ST_OK;
    if (strcmp(a->name, "value") == 0 && a->t) {
        *ok = dtype_from_onnx(a->t->data_type) != DT_NONE;
        return *ok ? onnx_decode_tensor(im->m, a->t, n->origin, t) : ST_OK;
    }
    *t = (struct onnx_tensor){.name = ""};
    if (strcmp(a->name, "value_float") == 0) {
        t->type = type_scalar(DT_f32);
        t->data = a->has_f ? &a->f : &zero_f;
    } else if (strcmp(a->name, "value_int") == 0) {
        t->type = type_scalar(DT_i64);
        t->data = a->has_i ? &a->i : &zero_i;
    } else if (strcmp(a->name, "value_floats") == 0) {
        t->type = (struct type){DT_f32, 1, {(dim)a->n_floats}};
        t->data = a->n_floats ? (const void *)a->floats : &zero_f;
    } else if (strcmp(a->name, "value_ints") == 0) {
        t->type = (struct type){DT_i64, 1, {(dim)a->n_ints}};
        t->data = a->n_ints ? (const void *)a->ints : &zero_i;
    } else {
        *ok = false;
    }
    return ST_OK;
}

/* ---- nodes --------------------------------------------------------------------------------- */
static enum status flatten_body(struct importer *im, struct scope *s, Onnx__NodeProto **nodes,
                                size_t count, bool main, struct nodelist *out);

static const char *origin_of(struct importer *im, const struct scope *s, const Onnx__NodeProto *p,
                             size_t index) {
    const char *own = p->name[0] ? p->name : arena_printf(im->a, "%s#%zu", p->op_type, index);
    return s->prefix[0] ? arena_printf(im->a, "%s/%s", s->prefix, own) : own;
}

/* Another name of a weight, so that uses of it can be told apart. */
static uint32_t alias_value(struct importer *im, uint32_t of, const char *name,
                            const char *alias_name, struct onnx_use use) {
    uint32_t v = new_value(im, name);
    struct ivalue *x = iv(im, v);
    *x = *iv(im, of);
    x->name = name;
    if (!x->aliased) {
        x->aliased = true;
        x->alias = use;
        x->alias_name = alias_name;
    }
    return v;
}

static enum status call_function(struct importer *im, struct scope *s, struct inode *call,
                                 const Onnx__FunctionProto *f, struct nodelist *out) {
    for (const struct scope *u = s; u; u = u->caller)
        if (u->fn == f)
            return diag_error(im->ctx, ST_PARSE, call->origin,
                              "function '%s' calls itself, which ONNX forbids", f->name);
    if (s->depth >= DEPTH_MAX)
        return diag_error(im->ctx, ST_UNSUPPORTED, call->origin,
                          "functions are nested deeper than %d", DEPTH_MAX);
    if (im->norder++ > NODES_MAX)
        return diag_error(im->ctx, ST_UNSUPPORTED, call->origin,
                          "inlining the model's functions gives more than %d nodes", NODES_MAX);
    struct scope *body = scope_new(im, NULL);
    body->fn = f;
    body->caller = s;
    body->depth = s->depth + 1;
    body->prefix = call->origin;
    struct inode *kept = ARENA_NEW(im->a, struct inode);
    *kept = *call;
    body->call = kept;
    for (size_t i = 0; i < f->n_input; i++) {
        uint32_t v = (int)i < call->nin ? call->in[i] : 0;
        if (v && iv(im, v)->weight)
            v = alias_value(im, v, iv(im, v)->name, NULL,
                            (struct onnx_use){call->index, (uint32_t)i});
        bind_name(im, body, f->input[i], v);
    }
    TRY(flatten_body(im, body, f->node, f->n_node, false, out));
    for (size_t i = 0; i < f->n_output && (int)i < call->nout; i++) {
        uint32_t v = 0;
        if (call->p->output[i][0] == 0) continue;
        if (!find_name(im, body, f->output[i], &v) || v == 0)
            return diag_error(im->ctx, ST_PARSE, call->origin,
                              "function '%s' never computes its output '%s'", f->name,
                              f->output[i]);
        bind_name(im, s, call->p->output[i], v);
        if (iv(im, v)->producer == NULL && !iv(im, v)->weight) iv(im, v)->name = call->p->output[i];
    }
    return ST_OK;
}

/* Gradient names what it differentiates in an attribute. */
static const char *hidden_input(struct importer *im, const Onnx__NodeProto *p) {
    if (strcmp(p->op_type, "Gradient") != 0 || strcmp(p->domain, "ai.onnx.preview.training") != 0)
        return NULL;
    for (size_t i = 0; i < p->n_attribute; i++) {
        const Onnx__AttributeProto *a = p->attribute[i];
        if (strcmp(a->name, "y") == 0 && a->has_s && a->s.len > 0)
            return arena_strndup(im->a, (const char *)a->s.data, a->s.len);
    }
    return NULL;
}

/* Resolve the inputs; false when one is not defined yet. A hidden one is the last. */
static bool bind_inputs(struct importer *im, struct scope *s, const Onnx__NodeProto *p,
                        struct inode *n) {
    size_t count = p->n_input;
    const char *hidden = hidden_input(im, p);
    while (count > 0 && p->input[count - 1][0] == 0) count--;
    n->nin = (int)count;
    n->in = ARENA_ARRAY(im->a, uint32_t, count + 1);
    for (size_t i = 0; i < count; i++)
        if (p->input[i][0] && !find_name(im, s, p->input[i], &n->in[i])) return false;
    return !hidden || find_name(im, s, hidden, &n->in[n->nin++]);
}

static void resolve_attrs(struct importer *im, struct scope *s, struct inode *n) {
    n->attrs = ARENA_ARRAY(im->a, const Onnx__AttributeProto *, n->p->n_attribute);
    for (size_t i = 0; i < n->p->n_attribute; i++) {
        const Onnx__AttributeProto *a = resolve_attr(im, s, n->p->attribute[i]);
        if (a) n->attrs[n->nattrs++] = a;
    }
}

static void push_node(struct importer *im, struct scope *s, struct inode *n, struct nodelist *out) {
    size_t count = n->p->n_output;
    while (count > 0 && n->p->output[count - 1][0] == 0) count--;
    n->nout = (int)count;
    n->out = ARENA_ARRAY(im->a, uint32_t, count);
    for (size_t i = 0; i < count; i++) {
        if (n->p->output[i][0] == 0) continue;
        n->out[i] = new_value(im, n->p->output[i]);
        bind_name(im, s, n->p->output[i], n->out[i]);
    }
    n->order = im->norder++;
    vec_push(im->a, &out->nodes, *n);
}

/* One node; *done stays false when an input is not there yet. */
static enum status flatten_node(struct importer *im, struct scope *s, Onnx__NodeProto *p,
                                size_t index, bool main, struct nodelist *out, bool *done) {
    struct inode n = {.p = p, .op = p->op_type, .scope = s};
    *done = bind_inputs(im, s, p, &n);
    if (!*done) return ST_OK;
    n.domain = plain_domain(p->domain);
    n.opset = scope_opset(im, s, n.domain);
    n.index = main ? (uint32_t)index : NODE_INNER;
    n.origin = origin_of(im, s, p, index);
    resolve_attrs(im, s, &n);
    bool standard = n.domain[0] == 0;
    if (standard && strcmp(n.op, "Constant") == 0 && p->n_output == 1) {
        struct onnx_tensor t;
        bool ok;
        TRY(constant_tensor(im, &n, &t, &ok));
        if (ok) {
            uint32_t v = new_value(im, p->output[0]);
            bind_name(im, s, p->output[0], v);
            add_weight(im, v, &t, true, !main);
            return ST_OK;
        }
    }
    if (standard && strcmp(n.op, "Identity") == 0 && n.nin == 1 && p->n_output == 1 &&
        iv(im, n.in[0])->weight) {
        bind_name(im, s, p->output[0],
                  alias_value(im, n.in[0], p->output[0], main ? p->output[0] : NULL,
                              (struct onnx_use){n.index, 0}));
        return ST_OK;
    }
    const Onnx__FunctionProto *f = find_function(im, n.domain, p);
    if (f && !handler_find(n.domain, n.op)) {
        n.nout = (int)p->n_output;
        return call_function(im, s, &n, f, out);
    }
    push_node(im, s, &n, out);
    return ST_OK;
}

/* Nodes in file order; those that come before what they read are put off, since files that are not
 * sorted exist although the standard wants them sorted. */
static enum status flatten_body(struct importer *im, struct scope *s, Onnx__NodeProto **nodes,
                                size_t count, bool main, struct nodelist *out) {
    bool *done = ARENA_ARRAY(im->a, bool, count);
    size_t left = count;
    for (int sweep = 0; left > 0; sweep++) {
        size_t before = left;
        for (size_t j = 0; j < count; j++) {
            size_t i = sweep % 2 ? count - 1 - j : j;
            if (done[i]) continue;
            TRY(flatten_node(im, s, nodes[i], i, main, out, &done[i]));
            left -= done[i];
        }
        if (left < before && sweep < SWEEPS_MAX) continue;
        for (size_t i = 0; i < count; i++) {
            if (done[i]) continue;
            uint32_t v;
            for (size_t k = 0; k < nodes[i]->n_input; k++)
                if (nodes[i]->input[k][0] && !find_name(im, s, nodes[i]->input[k], &v))
                    return diag_error(im->ctx, ST_PARSE, origin_of(im, s, nodes[i], i),
                                      "reads '%s', which nothing before it or after it can define "
                                      "(missing or cyclic)",
                                      nodes[i]->input[k]);
            const char *hidden = hidden_input(im, nodes[i]);
            if (hidden && !find_name(im, s, hidden, &v))
                return diag_error(im->ctx, ST_PARSE, origin_of(im, s, nodes[i], i),
                                  "differentiates '%s', which nothing before it can define",
                                  hidden);
        }
        return diag_error(im->ctx, ST_PARSE, "", "the nodes are too far from being sorted");
    }
    return ST_OK;
}

/* ---- graphs -------------------------------------------------------------------------------- */
static enum status input_type(struct importer *im, const Onnx__ValueInfoProto *p, struct type *t) {
    const Onnx__TypeProto *tp = p->type;
    if (!tp || tp->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE || !tp->tensor_type)
        return diag_error(im->ctx, ST_UNSUPPORTED, p->name,
                          "input must be a tensor; sequences, maps and optionals cannot be fed");
    const Onnx__TypeProto__Tensor *x = tp->tensor_type;
    *t = type_scalar(dtype_from_onnx(x->elem_type));
    if (t->dtype == DT_NONE)
        return diag_error(im->ctx, ST_UNSUPPORTED, p->name,
                          "input has ONNX element type %d, which Lathe does not know",
                          (int)x->elem_type);
    if (!x->shape)
        return diag_error(im->ctx, ST_UNSUPPORTED, p->name,
                          "input has no shape in the file; export the model with one");
    if (x->shape->n_dim > RANK_MAX)
        return diag_error(im->ctx, ST_UNSUPPORTED, p->name, "input has rank %zu, at most %d works",
                          x->shape->n_dim, RANK_MAX);
    t->rank = (int)x->shape->n_dim;
    for (int i = 0; i < t->rank; i++) {
        const Onnx__TensorShapeProto__Dimension *d = x->shape->dim[i];
        bool number = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        bool named = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
                     d->dim_param && d->dim_param[0];
        if (number && d->dim_value >= 0) {
            t->dims[i] = d->dim_value;
            continue;
        }
        const char *name = named ? d->dim_param : arena_printf(im->a, "%s.%d", p->name, i);
        if (!named || !dim_parse(im->g->dims, name, strlen(name), &t->dims[i]))
            t->dims[i] = dim_symbol(im->g->dims, name);
        if (im->o->bind)
            t->dims[i] = dim_bind(im->g->dims, t->dims[i], im->o->bind, im->o->bind_user);
    }
    return ST_OK;
}

static enum status add_input(struct importer *im, struct scope *s, const Onnx__ValueInfoProto *p) {
    uint32_t v = new_value(im, p->name);
    struct type t;
    TRY(input_type(im, p, &t));
    bool rate = t.dtype == DT_f32 && type_count(&t) == 1 && own_step_rate(im, p->name);
    struct attr attrs[2] = {{.key = ATTR_name, .s = p->name}, {.key = ATTR_role, .s = "lr"}};
    val_id x;
    TRY(graph_try_source(im->g, OP_input, &t, attrs, rate ? 2 : 1, p->name, &x));
    graph_set_name(im->g, x, p->name);
    struct ivalue *i = iv(im, v);
    i->kind = VK_TENSOR;
    i->type = t;
    i->val = x;
    bind_name(im, s, p->name, v);
    if (im->batch == 0 && t.rank > 0) im->batch = t.dims[0];
    return ST_OK;
}

/* An input that the caller gave a value. */
static enum status add_bound(struct importer *im, struct scope *s, const Onnx__ValueInfoProto *p,
                             const struct onnx_tensor *given) {
    struct type t;
    TRY(input_type(im, p, &t));
    if (given->type.dtype != t.dtype)
        return diag_error(im->ctx, ST_TYPE, p->name, "the value given for this input is %s, not %s",
                          dtype_name(given->type.dtype), dtype_name(t.dtype));
    bool fits = given->type.rank == t.rank && type_static(&given->type);
    for (int i = 0; i < t.rank && fits; i++)
        fits = !dim_known(t.dims[i]) || t.dims[i] == given->type.dims[i];
    if (!fits)
        return diag_error(im->ctx, ST_SHAPE, p->name,
                          "the value given for this input does not have the input's shape");
    uint32_t v = new_value(im, p->name);
    bind_name(im, s, p->name, v);
    add_weight(im, v, given, true, true);
    im->weights.at[im->weights.n - 1].bound = true;
    return ST_OK;
}

static enum status graph_outputs(struct importer *im, struct scope *s, const Onnx__GraphProto *g,
                                 uint32_t *outs) {
    for (size_t i = 0; i < g->n_output; i++)
        if (!find_name(im, s, g->output[i]->name, &outs[i]) || outs[i] == 0)
            return diag_error(im->ctx, ST_PARSE, g->output[i]->name,
                              "is a graph output that no node computes");
    return ST_OK;
}

uint32_t value_new(struct importer *im, const char *name, val_id val) {
    uint32_t v = new_value(im, name);
    if (val.i == 0) return v;
    struct ivalue *x = iv(im, v);
    x->kind = VK_TENSOR;
    x->type = ty(im, val);
    x->val = val;
    return v;
}

/* The main graph, or the algorithm of a training step, which continues it: their names are one. */
static enum status flatten_graph(struct importer *im, struct scope *s, const Onnx__GraphProto *g,
                                 bool main) {
    if (g->n_sparse_initializer > 0)
        note_unsupported(im, "initializer", "sparse initializers", g->name);
    for (size_t i = 0; i < g->n_initializer; i++)
        TRY(add_initializer(im, s, g->initializer[i], false));
    for (size_t i = 0; i < g->n_input; i++) {
        uint32_t v;
        if (find_name(im, s, g->input[i]->name, &v))
            continue; /* a default that may be overridden, or an input of the main graph */
        const struct onnx_tensor *given =
            im->o->constant ? im->o->constant(im->o->constant_user, g->input[i]->name) : NULL;
        TRY(given ? add_bound(im, s, g->input[i], given) : add_input(im, s, g->input[i]));
    }
    return flatten_body(im, s, g->node, g->n_node, main, &im->main);
}

enum status flatten_model(struct importer *im) {
    const Onnx__GraphProto *g = im->m->proto->graph;
    struct scope *s = scope_new(im, NULL);
    new_value(im, "");
    TRY(own_step_find(im));
    TRY(flatten_graph(im, s, g, true));
    if (im->step) TRY(flatten_graph(im, s, im->step->algorithm, false));
    TRY(own_step_bind(im, find_name, s));
    for (uint32_t i = 0; i < im->main.nodes.n; i++) {
        struct inode *n = &im->main.nodes.at[i];
        for (int k = 0; k < n->nout; k++)
            if (n->out[k]) iv(im, n->out[k])->producer = n;
    }
    im->outs = ARENA_ARRAY(im->a, uint32_t, g->n_output);
    return graph_outputs(im, s, g, im->outs);
}

enum status flatten_subgraph(struct importer *im, const struct inode *at,
                             const Onnx__GraphProto *sub, const uint32_t *ins, int nin,
                             struct nodelist *out, uint32_t *outs, int n) {
    if (at->scope->depth >= DEPTH_MAX)
        return diag_error(im->ctx, ST_UNSUPPORTED, at->origin, "subgraphs nest deeper than %d",
                          DEPTH_MAX);
    if (im->norder++ > NODES_MAX)
        return diag_error(im->ctx, ST_UNSUPPORTED, at->origin,
                          "writing out the model's loops gives more than %d nodes", NODES_MAX);
    if ((size_t)n > sub->n_output)
        return diag_error(im->ctx, ST_PARSE, at->origin, "a branch has %zu outputs, %d are used",
                          sub->n_output, n);
    struct scope *s = scope_new(im, at->scope);
    s->prefix = at->origin;
    for (int i = 0; i < nin && (size_t)i < sub->n_input; i++)
        bind_name(im, s, sub->input[i]->name, ins[i]);
    for (size_t i = 0; i < sub->n_initializer; i++)
        TRY(add_initializer(im, s, sub->initializer[i], true));
    TRY(flatten_body(im, s, sub->node, sub->n_node, false, out));
    uint32_t *all = ARENA_ARRAY(im->a, uint32_t, sub->n_output);
    TRY(graph_outputs(im, s, sub, all));
    memcpy(outs, all, (size_t)n * sizeof *outs);
    return ST_OK;
}

/* Weights that a control-flow subgraph reads from outside. */
void flatten_captures(struct importer *im, const struct scope *s, const Onnx__GraphProto *g,
                      int depth, void (*seen)(struct importer *im, uint32_t v)) {
    if (depth > DEPTH_MAX) return;
    for (size_t i = 0; i < g->n_node; i++) {
        uint32_t v;
        for (size_t k = 0; k < g->node[i]->n_input; k++)
            if (find_name(im, s, g->node[i]->input[k], &v) && v) seen(im, v);
        for (size_t k = 0; k < g->node[i]->n_attribute; k++)
            if (g->node[i]->attribute[k]->g)
                flatten_captures(im, s, g->node[i]->attribute[k]->g, depth + 1, seen);
    }
    for (size_t i = 0; i < g->n_output; i++) {
        uint32_t v;
        if (find_name(im, s, g->output[i]->name, &v) && v) seen(im, v);
    }
}
