// SPDX-License-Identifier: Apache-2.0
/* artifacts.c - ONNX Runtime's training artifacts as a model that brings its own training step.
 *
 * in:  training_model.onnx   forward, loss, gradients; weights and gradient buffers are inputs
 *      the optimizer graph   over sequences `params`, `gradients`, ..; fed a count from 1
 *      checkpoint            weights, perhaps moments
 * out: forward and loss with the weights as initializers; training_info with Gradient, the
 *      optimizer's nodes, and bindings for weights, moments and the count.
 *
 * Gradients are made again rather than read: the file's own ones are written for one runtime. The
 * result is plain ONNX but for the optimizer's ops, and is what RUN/model.onnx holds. */
#include "frontend/artifacts.h"
#include "base/diag.h"
#include <string.h>

#define TRAINING  "ai.onnx.preview.training"
#define MICROSOFT "com.microsoft"

struct variable { /* one trained parameter */
    const struct ort_tensor *t;
    const char *grad, *next;
};
struct join {
    struct ctx *ctx;
    struct arena *a;
    struct onnx_model *m;
    Onnx__GraphProto *g;
    const Onnx__GraphProto *opt;
    const struct ort_checkpoint *ckpt;
    const char *loss;
    struct interner names;
    struct map params, moments; /* name -> index in the checkpoint */
    VEC(struct variable) vars;
    VEC(Onnx__NodeProto *) nodes; /* of the algorithm */
    VEC(Onnx__TensorProto *) init;
    VEC(Onnx__StringStringEntryProto *) bind;
};

static enum status fail(struct join *j, enum status code, const char *where, const char *what) {
    return diag_error(j->ctx, code, where, "training artifacts: %s", what);
}

/* ---- messages ----------------------------------------------------------------------------------
 */
static char *text(struct join *j, const char *s) {
    return arena_strdup(j->a, s);
}

static Onnx__NodeProto *add_node(struct join *j, const char *domain, const char *op, uint32_t nin,
                                 uint32_t nout) {
    Onnx__NodeProto *n = ARENA_NEW(j->a, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->domain = text(j, domain);
    n->op_type = text(j, op);
    n->name = arena_printf(j->a, "step/%s#%u", op, (unsigned)j->nodes.n);
    n->n_input = nin;
    n->input = ARENA_ARRAY(j->a, char *, nin);
    n->n_output = nout;
    n->output = ARENA_ARRAY(j->a, char *, nout);
    vec_push(j->a, &j->nodes, n);
    return n;
}

static Onnx__AttributeProto *add_attribute(struct join *j, Onnx__NodeProto *n, const char *name,
                                           int type) {
    Onnx__AttributeProto *a = ARENA_NEW(j->a, Onnx__AttributeProto);
    onnx__attribute_proto__init(a);
    a->name = text(j, name);
    a->has_type = true;
    a->type = (Onnx__AttributeProto__AttributeType)type;
    Onnx__AttributeProto **list = ARENA_ARRAY(j->a, Onnx__AttributeProto *, n->n_attribute + 1);
    if (n->n_attribute) memcpy(list, n->attribute, n->n_attribute * sizeof *list);
    list[n->n_attribute++] = a;
    n->attribute = list;
    return a;
}

static Onnx__TensorProto *new_tensor(struct join *j, const char *name, int32_t type, int rank,
                                     const int64_t *dims, const void *data, size_t bytes) {
    Onnx__TensorProto *t = ARENA_NEW(j->a, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    t->name = text(j, name);
    t->has_data_type = true;
    t->data_type = type;
    t->n_dims = (size_t)rank;
    t->dims = ARENA_ARRAY(j->a, int64_t, t->n_dims);
    for (int i = 0; i < rank; i++) t->dims[i] = dims[i];
    t->has_raw_data = true;
    t->raw_data = (ProtobufCBinaryData){bytes, (uint8_t *)(uintptr_t)data}; /* only read */
    return t;
}

static void add_int(struct join *j, const char *name, int rank, int64_t x) {
    static const int64_t one[1] = {1};
    int64_t *at = ARENA_NEW(j->a, int64_t);
    *at = x;
    Onnx__TensorProto *t =
        new_tensor(j, name, ONNX__TENSOR_PROTO__DATA_TYPE__INT64, rank, one, at, sizeof *at);
    vec_push(j->a, &j->init, t);
}

static void bind(struct join *j, const char *variable, const char *next) {
    Onnx__StringStringEntryProto *e = ARENA_NEW(j->a, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = text(j, variable);
    e->value = text(j, next);
    vec_push(j->a, &j->bind, e);
}

/* ---- the forward graph --------------------------------------------------------------------------
 */
static bool is_accumulator(const Onnx__NodeProto *n) {
    return strcmp(n->op_type, "InPlaceAccumulatorV2") == 0 && strcmp(n->domain, MICROSOFT) == 0;
}

static void index_checkpoint(struct join *j) {
    intern_init(&j->names, j->a);
    map_init(&j->params, j->a);
    map_init(&j->moments, j->a);
    for (uint32_t i = 0; i < j->ckpt->nparams; i++)
        map_set(&j->params, intern(&j->names, j->ckpt->params[i].name).i, i);
    for (uint32_t i = 0; i < j->ckpt->nmoments; i++)
        map_set(&j->moments, intern(&j->names, j->ckpt->moments[i].param).i, i);
}

static const struct ort_tensor *find_param(struct join *j, const char *name) {
    uint32_t i;
    return map_get(&j->params, intern(&j->names, name).i, &i) ? &j->ckpt->params[i] : NULL;
}

/* Names by use: producers of what the outputs need, and what the kept nodes read. */
struct reach {
    struct interner names;
    struct map producer; /* name -> node */
    bool *keep;          /* by node */
    struct map read;     /* names that kept nodes read */
};

static void need(struct reach *r, const char *name) {
    uint32_t node;
    str_id id = intern(&r->names, name);
    if (*name && map_get(&r->producer, id.i, &node)) r->keep[node] = true;
}

static void find_reach(struct join *j, struct reach *r) {
    Onnx__GraphProto *g = j->g;
    intern_init(&r->names, j->a);
    map_init(&r->producer, j->a);
    map_init(&r->read, j->a);
    r->keep = ARENA_ARRAY(j->a, bool, g->n_node);
    for (uint32_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; !is_accumulator(g->node[i]) && k < g->node[i]->n_output; k++)
            map_set(&r->producer, intern(&r->names, g->node[i]->output[k]).i, i);
    for (size_t i = 0; i < g->n_output; i++) need(r, g->output[i]->name);
    for (size_t i = g->n_node; i-- > 0;) /* in topological order */
        for (size_t k = 0; r->keep[i] && k < g->node[i]->n_input; k++) {
            need(r, g->node[i]->input[k]);
            map_set(&r->read, intern(&r->names, g->node[i]->input[k]).i, 1);
        }
}

static bool is_read(struct reach *r, const char *name) {
    uint32_t yes;
    return map_get(&r->read, intern(&r->names, name).i, &yes);
}

/* Graphs inside nodes read names that find_reach does not see. */
static enum status refuse_subgraphs(struct join *j) {
    for (size_t i = 0; i < j->g->n_node; i++)
        for (size_t k = 0; k < j->g->node[i]->n_attribute; k++)
            if (j->g->node[i]->attribute[k]->g || j->g->node[i]->attribute[k]->n_graphs)
                return fail(j, ST_UNSUPPORTED, j->g->node[i]->name,
                            "control flow in a training graph is not supported");
    return ST_OK;
}

static void keep_forward(struct join *j) {
    struct reach r;
    Onnx__GraphProto *g = j->g;
    size_t n = 0;
    struct map flags; /* of accumulators: no results */
    map_init(&flags, j->a);
    for (size_t i = 0; i < g->n_node; i++)
        if (is_accumulator(g->node[i]) && g->node[i]->n_output > 0)
            map_set(&flags, intern(&j->names, g->node[i]->output[0]).i, 1);
    for (size_t i = 0; i < g->n_output; i++) {
        uint32_t yes;
        if (!map_get(&flags, intern(&j->names, g->output[i]->name).i, &yes))
            g->output[n++] = g->output[i];
    }
    g->n_output = n;
    find_reach(j, &r);
    n = 0;
    for (size_t i = 0; i < g->n_node; i++)
        if (r.keep[i]) g->node[n++] = g->node[i];
    g->n_node = n;
    n = 0;
    for (size_t i = 0; i < g->n_initializer; i++)
        if (is_read(&r, g->initializer[i]->name)) g->initializer[n++] = g->initializer[i];
    g->n_initializer = n;
    n = 0;
    for (size_t i = 0; i < g->n_input; i++)
        if (is_read(&r, g->input[i]->name)) g->input[n++] = g->input[i];
    g->n_input = n;
    g->n_value_info = 0; /* of gradients, too */
}

/* ---- weights -----------------------------------------------------------------------------------
 */
/* Weights that have a gradient buffer are trained: "<weight>_grad" goes into it. */
static enum status find_trained(struct join *j) {
    static const char suffix[] = "_grad.accumulation.buffer";
    size_t len = sizeof suffix - 1;
    for (size_t i = 0; i < j->g->n_node; i++) {
        const Onnx__NodeProto *n = j->g->node[i];
        if (!is_accumulator(n)) continue;
        const char *buffer = n->n_input > 0 ? n->input[0] : "";
        size_t k = strlen(buffer);
        if (k <= len || strcmp(buffer + k - len, suffix) != 0)
            return fail(j, ST_UNSUPPORTED, n->name,
                        "a gradient buffer of another name than "
                        "'WEIGHT_grad.accumulation.buffer'");
        const char *name = arena_strndup(j->a, buffer, k - len);
        struct variable v = {find_param(j, name), arena_printf(j->a, "%s.gradient", name),
                             arena_printf(j->a, "%s.next", name)};
        if (!v.t) return fail(j, ST_PARSE, name, "the checkpoint does not hold this weight");
        if (v.t->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
            return fail(j, ST_UNSUPPORTED, name, "only weights of type float can be trained");
        vec_push(j->a, &j->vars, v);
    }
    if (j->vars.n > 0) return ST_OK;
    return fail(j, ST_UNSUPPORTED, j->m->path, "the training graph accumulates no gradient");
}

/* Inputs that the checkpoint holds become initializers of their type. */
static enum status place_weights(struct join *j) {
    Onnx__GraphProto *g = j->g;
    Onnx__TensorProto **list =
        ARENA_ARRAY(j->a, Onnx__TensorProto *, g->n_initializer + g->n_input);
    if (g->n_initializer) memcpy(list, g->initializer, g->n_initializer * sizeof *list);
    g->initializer = list;
    size_t kept = 0;
    for (size_t i = 0; i < g->n_input; i++) {
        const struct ort_tensor *t = find_param(j, g->input[i]->name);
        if (!t) {
            g->input[kept++] = g->input[i];
            continue;
        }
        const Onnx__TypeProto__Tensor *x =
            g->input[i]->type ? g->input[i]->type->tensor_type : NULL;
        bool same =
            x && x->elem_type == t->data_type && x->shape && x->shape->n_dim == (size_t)t->rank;
        for (int k = 0; same && k < t->rank; k++) same = x->shape->dim[k]->dim_value == t->dims[k];
        if (!same)
            return fail(j, ST_TYPE, t->name,
                        "type or shape of a weight differ between graph and checkpoint");
        list[g->n_initializer++] =
            new_tensor(j, t->name, t->data_type, t->rank, t->dims, t->data, t->bytes);
    }
    g->n_input = kept;
    return ST_OK;
}

/* ---- the step ----------------------------------------------------------------------------------
 */
static void differentiate(struct join *j) {
    uint32_t n = j->vars.n;
    Onnx__NodeProto *grad = add_node(j, TRAINING, "Gradient", n, n);
    Onnx__AttributeProto *xs =
        add_attribute(j, grad, "xs", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS);
    Onnx__AttributeProto *y =
        add_attribute(j, grad, "y", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
    xs->n_strings = n;
    xs->strings = ARENA_ARRAY(j->a, ProtobufCBinaryData, n);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = j->vars.at[i].t->name;
        grad->input[i] = text(j, name);
        grad->output[i] = text(j, j->vars.at[i].grad);
        xs->strings[i] = (ProtobufCBinaryData){strlen(name), (uint8_t *)grad->input[i]};
    }
    y->has_s = true;
    y->s = (ProtobufCBinaryData){strlen(j->loss), (uint8_t *)text(j, j->loss)};
}

static const struct ort_tensor *saved_moment(struct join *j, const struct variable *v, int k) {
    uint32_t i;
    if (!map_get(&j->moments, intern(&j->names, v->t->name).i, &i)) return NULL;
    return j->ckpt->moments[i].count > k ? &j->ckpt->moments[i].at[k] : NULL;
}

/* The moment of a weight as an initializer: as saved, or zeros. */
static enum status add_moment(struct join *j, const struct variable *v, int k, const char *name) {
    const struct ort_tensor *s = saved_moment(j, v, k), *t = v->t;
    bool same = !s || (s->data_type == t->data_type && s->rank == t->rank && s->bytes == t->bytes);
    for (int i = 0; s && same && i < t->rank; i++) same = s->dims[i] == t->dims[i];
    if (!same) return fail(j, ST_TYPE, t->name, "a saved moment does not have its weight's type");
    const void *data = s ? s->data : arena_alloc(j->a, t->bytes);
    Onnx__TensorProto *x = new_tensor(j, name, t->data_type, t->rank, t->dims, data, t->bytes);
    vec_push(j->a, &j->init, x);
    return ST_OK;
}

/* Sequence `list` of one value of each variable, and what becomes of them. kind: 0 weights,
 * 1 gradients, 2 and 3 moments. */
static enum status add_list(struct join *j, const char *list, int kind) {
    uint32_t n = j->vars.n;
    Onnx__NodeProto *all = add_node(j, "", "SequenceConstruct", n, 1);
    all->output[0] = text(j, list);
    for (uint32_t i = 0; i < n; i++) {
        const struct variable *v = &j->vars.at[i];
        const char *name = kind == 1 ? v->grad : v->t->name, *next = v->next;
        if (kind >= 2) {
            name = arena_printf(j->a, "%s.momentum%d", v->t->name, kind - 2);
            next = arena_printf(j->a, "%s.next", name);
            TRY(add_moment(j, v, kind - 2, name));
        }
        all->input[i] = text(j, name);
        if (kind != 1) bind(j, name, next);
    }
    return ST_OK;
}

/* The new values out of sequence "LIST.next". */
static void take_list(struct join *j, const char *list, int kind) {
    for (uint32_t i = 0; i < j->vars.n; i++) {
        Onnx__NodeProto *at = add_node(j, "", "SequenceAt", 2, 1);
        const struct variable *v = &j->vars.at[i];
        at->input[0] = arena_printf(j->a, "%s.next", list);
        at->input[1] = arena_printf(j->a, "step/index#%u", (unsigned)i);
        at->output[0] = kind ? arena_printf(j->a, "%s.momentum%d.next", v->t->name, kind - 2)
                             : text(j, v->next);
    }
}

static const char *const inputs[] = {
    "learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"};

/* The optimizer's own nodes, in order; the last gets outputs for what it changes in place. */
static void copy_optimizer(struct join *j, bool adam) {
    for (size_t i = 0; i < j->opt->n_node; i++) {
        const Onnx__NodeProto *from = j->opt->node[i];
        bool last = i + 1 == j->opt->n_node;
        uint32_t nout = last ? (adam ? 4 : 2) : (uint32_t)from->n_output;
        Onnx__NodeProto *n =
            add_node(j, from->domain, from->op_type, (uint32_t)from->n_input, nout);
        for (size_t k = 0; k < from->n_input; k++) n->input[k] = from->input[k];
        for (size_t k = 0; k < nout; k++)
            n->output[k] = k < from->n_output ? from->output[k] : text(j, "");
        n->attribute = from->attribute;
        n->n_attribute = from->n_attribute;
        if (!last) continue;
        n->output[1] = text(j, "params.next");
        if (adam) n->output[2] = text(j, "first_order_moments.next");
        if (adam) n->output[3] = text(j, "second_order_moments.next");
    }
}

/* The optimizer graph must be of the form that ONNX Runtime's own loader accepts. */
static enum status check_optimizer(struct join *j, bool *adam) {
    const Onnx__GraphProto *g = j->opt;
    const Onnx__NodeProto *last = g->n_node ? g->node[g->n_node - 1] : NULL;
    *adam = last && strcmp(last->op_type, "AdamWOptimizer") == 0;
    bool sgd = last && strcmp(last->op_type, "SGDOptimizerV2") == 0;
    bool fits = (*adam || sgd) && strcmp(last->domain, MICROSOFT) == 0 && g->n_initializer == 0 &&
                last->n_output == 1 && g->n_input >= 4 && g->n_input <= 6;
    for (size_t i = 0; fits && i < g->n_input; i++)
        fits = strcmp(g->input[i]->name, inputs[i]) == 0;
    if (fits) return ST_OK;
    return fail(j, ST_UNSUPPORTED, g->name,
                "the optimizer graph is not AdamWOptimizer or SGDOptimizerV2 over learning_rate, "
                "step, params, gradients and moments");
}

static enum status make_step(struct join *j) {
    bool adam;
    TRY(check_optimizer(j, &adam));
    differentiate(j);
    TRY(add_list(j, "params", 0));
    TRY(add_list(j, "gradients", 1));
    for (int k = 2; adam && k < 4; k++) TRY(add_list(j, inputs[k + 2], k));
    copy_optimizer(j, adam);
    take_list(j, "params", 0);
    for (int k = 2; adam && k < 4; k++) take_list(j, inputs[k + 2], k);
    for (uint32_t i = 0; i < j->vars.n; i++)
        add_int(j, arena_printf(j->a, "step/index#%u", (unsigned)i), 0, i);
    if (!adam) return ST_OK;
    Onnx__NodeProto *count = add_node(j, "", "Add", 2, 1);
    count->input[0] = text(j, "step"), count->input[1] = text(j, "step/one");
    count->output[0] = text(j, "step.next");
    add_int(j, "step", 1, j->ckpt->step + 1);
    add_int(j, "step/one", 1, 1);
    bind(j, "step", "step.next");
    return ST_OK;
}

static void attach(struct join *j) {
    Onnx__TrainingInfoProto *info = ARENA_NEW(j->a, Onnx__TrainingInfoProto);
    Onnx__GraphProto *g = ARENA_NEW(j->a, Onnx__GraphProto);
    onnx__training_info_proto__init(info);
    onnx__graph_proto__init(g);
    g->name = text(j, "step");
    g->node = j->nodes.at, g->n_node = j->nodes.n;
    g->initializer = j->init.at, g->n_initializer = j->init.n;
    g->n_input = 1; /* the rate */
    g->input = ARENA_ARRAY(j->a, Onnx__ValueInfoProto *, 1);
    g->input[0] = j->opt->input[0];
    info->algorithm = g;
    info->update_binding = j->bind.at, info->n_update_binding = j->bind.n;
    Onnx__ModelProto *p = j->m->proto;
    p->training_info = ARENA_ARRAY(j->a, Onnx__TrainingInfoProto *, 1);
    p->training_info[0] = info;
    p->n_training_info = 1;
}

/* The domains that the step's nodes are of. */
static void import_domains(struct join *j) {
    static const char *const domains[] = {TRAINING, MICROSOFT};
    Onnx__ModelProto *p = j->m->proto;
    Onnx__OperatorSetIdProto **list =
        ARENA_ARRAY(j->a, Onnx__OperatorSetIdProto *, p->n_opset_import + 2);
    if (p->n_opset_import) memcpy(list, p->opset_import, p->n_opset_import * sizeof *list);
    p->opset_import = list;
    for (size_t k = 0; k < sizeof domains / sizeof *domains; k++) {
        bool have = false;
        for (size_t i = 0; i < p->n_opset_import; i++)
            have |= strcmp(list[i]->domain, domains[k]) == 0;
        if (have) continue;
        Onnx__OperatorSetIdProto *o = ARENA_NEW(j->a, Onnx__OperatorSetIdProto);
        onnx__operator_set_id_proto__init(o);
        o->domain = text(j, domains[k]);
        o->has_version = true;
        o->version = 1;
        list[p->n_opset_import++] = o;
    }
}

enum status artifacts_join(struct onnx_model *m, const Onnx__ModelProto *optimizer,
                           const struct ort_checkpoint *checkpoint) {
    struct join j = {.ctx = m->ctx,
                     .a = &m->arena,
                     .m = m,
                     .g = m->proto->graph,
                     .opt = optimizer->graph,
                     .ckpt = checkpoint};
    if (m->proto->n_training_info || m->proto->n_functions || j.g->n_sparse_initializer)
        return fail(&j, ST_UNSUPPORTED, m->path,
                    "a training graph with training_info, functions or sparse initializers");
    if (j.g->n_output == 0) return fail(&j, ST_PARSE, m->path, "the training graph has no output");
    j.loss = j.g->output[0]->name;
    index_checkpoint(&j);
    TRY(refuse_subgraphs(&j));
    TRY(find_trained(&j));
    keep_forward(&j);
    TRY(place_weights(&j));
    TRY(make_step(&j));
    attach(&j);
    import_domains(&j);
    return ST_OK;
}
