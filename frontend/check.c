// SPDX-License-Identifier: Apache-2.0
/* check.c - what a well-formed model must satisfy beyond the wire format: versions, functions,
 * attributes, types. Names and order are scope.c's; what operators mean is the importer's. */
#include "frontend/check.h"
#include "base/diag.h"
#include <string.h>

enum {
    IR_VERSION_KNOWN = 13,
    CALL_DEPTH_MAX = 100,
    FUNCTIONS_MAX = 10000,
    OPSETS_MAX = 1000,
    ATTRIBUTES_MAX = 1000, /* of a node */
};

/* ---- opsets ---------------------------------------------------------------------------------- */

/* Versions by domain; the two spellings of the default domain are one. */
static enum status check_opsets(struct checker *k, Onnx__OperatorSetIdProto **list, size_t n,
                                const char *what, struct opsets *out) {
    struct ctx *c = k->m->ctx;
    *out = (struct opsets){.list = list, .n = n};
    if (n > OPSETS_MAX)
        return diag_error(c, ST_UNSUPPORTED, what, "%zu opset imports; the limit is %d", n,
                          (int)OPSETS_MAX);
    for (size_t i = 0; i < n; i++) {
        const char *domain = onnx_domain(list[i]->domain);
        int64_t version = list[i]->version, other = opset_version(out, domain);
        if (version < 1 || version > INT32_MAX)
            return diag_error(c, ST_PARSE, what,
                              "opset version %lld of domain '%s' is not in 1..2^31-1",
                              (long long)version, domain);
        if (other != version)
            return diag_error(c, ST_PARSE, what,
                              "domain '%s' is imported with two versions, %lld and %lld", domain,
                              (long long)other, (long long)version);
    }
    return ST_OK;
}

int64_t opset_version(const struct opsets *s, const char *domain) {
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(onnx_domain(s->list[i]->domain), onnx_domain(domain)))
            return s->list[i]->version;
    return 0;
}

/* ---- types ----------------------------------------------------------------------------------- */

static enum status check_shape(struct checker *k, Onnx__TensorShapeProto *s, const char *what) {
    for (size_t i = 0; s && i < s->n_dim; i++) {
        Onnx__TensorShapeProto__Dimension *d = s->dim[i];
        if (d->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) continue;
        if (d->dim_value < -1)
            return diag_error(k->m->ctx, ST_PARSE, what,
                              "dimension %zu is %lld; expected 0 or more", i,
                              (long long)d->dim_value);
        if (d->dim_value >= 0) continue;
        diag_warning(k->m->ctx, what, "dimension %zu is -1; taken as unknown", i);
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE__NOT_SET;
    }
    return ST_OK;
}

enum status check_value_info(struct checker *k, Onnx__ValueInfoProto *v) {
    Onnx__TypeProto *t = v->type;
    if (!t || t->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) return ST_OK;
    int32_t elem = t->tensor_type->elem_type;
    if (elem < 0 || elem > ONNX__TENSOR_PROTO__DATA_TYPE__INT2)
        return diag_error(k->m->ctx, ST_PARSE, v->name, "element type %d is unknown", (int)elem);
    return check_shape(k, t->tensor_type->shape, v->name);
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* A bit for each value field that is present, by attribute type. */
static uint32_t attribute_fields(const Onnx__AttributeProto *a) {
    const bool has[] = {
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT] = a->has_f,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT] = a->has_i,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING] = a->has_s,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR] = a->t != NULL,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH] = a->g != NULL,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOATS] = a->n_floats > 0,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS] = a->n_ints > 0,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRINGS] = a->n_strings > 0,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSORS] = a->n_tensors > 0,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPHS] = a->n_graphs > 0,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__SPARSE_TENSOR] = a->sparse_tensor != NULL,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__SPARSE_TENSORS] = a->n_sparse_tensors > 0,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TYPE_PROTO] = a->tp != NULL,
        [ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TYPE_PROTOS] = a->n_type_protos > 0,
    };
    uint32_t bits = 0;
    for (unsigned i = 0; i < sizeof has / sizeof *has; i++)
        if (has[i]) bits |= 1u << i;
    return bits;
}

static enum status check_attribute(struct checker *k, const Onnx__NodeProto *node,
                                   const Onnx__AttributeProto *a) {
    struct ctx *c = k->m->ctx;
    const char *what = node_label(node);
    if (!*a->name) return diag_error(c, ST_PARSE, what, "an attribute has no name");
    uint32_t fields = attribute_fields(a), type = (uint32_t)a->type;
    if (*a->ref_attr_name) {
        if (!k->in_function)
            return diag_error(
                c, ST_PARSE, what,
                "attribute '%s' refers to a function's attribute '%s', but the node is "
                "not in a function",
                a->name, a->ref_attr_name);
        if (fields)
            return diag_error(c, ST_PARSE, what, "attribute '%s' has both a value and a reference",
                              a->name);
        return ST_OK;
    }
    if (type < 1 || type > ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TYPE_PROTOS)
        return diag_error(c, ST_PARSE, what, "attribute '%s' has unknown type %d", a->name,
                          (int)type);
    if (fields & ~(1u << type))
        return diag_error(c, ST_PARSE, what,
                          "attribute '%s' has a value of another type than it declares", a->name);
    /* Writers after proto3's manner leave zero numbers, empty strings and empty lists out. */
    bool message = type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR ||
                   type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH ||
                   type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__SPARSE_TENSOR ||
                   type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TYPE_PROTO;
    if (message && !fields)
        return diag_error(c, ST_PARSE, what, "attribute '%s' has no value", a->name);
    return check_known_attribute(k, node, a);
}

const char *node_label(const Onnx__NodeProto *node) {
    if (*node->name) return node->name;
    for (size_t i = 0; i < node->n_output; i++)
        if (*node->output[i]) return node->output[i];
    return node->op_type;
}

static void note_call(struct checker *k, const Onnx__NodeProto *node);

enum status check_node(struct checker *k, const Onnx__NodeProto *node) {
    struct ctx *c = k->m->ctx;
    const char *what = node_label(node);
    if (!*node->op_type) return diag_error(c, ST_PARSE, what, "the node has no op_type");
    if (!node->n_input && !node->n_output)
        return diag_error(c, ST_PARSE, what, "%s has neither inputs nor outputs", node->op_type);
    if (!opset_version(k->opsets, node->domain))
        return diag_error(c, ST_PARSE, what,
                          "%s is of domain '%s', which the model does not import (opset_import)",
                          node->op_type, onnx_domain(node->domain));
    if (node->n_attribute > ATTRIBUTES_MAX)
        return diag_error(c, ST_UNSUPPORTED, what, "%zu attributes; the limit is %d",
                          node->n_attribute, (int)ATTRIBUTES_MAX);
    for (size_t i = 0; i < node->n_attribute; i++) {
        TRY(check_attribute(k, node, node->attribute[i]));
        for (size_t j = 0; j < i; j++)
            if (!strcmp(node->attribute[i]->name, node->attribute[j]->name))
                return diag_error(c, ST_PARSE, what, "attribute '%s' is given twice",
                                  node->attribute[i]->name);
    }
    note_call(k, node);
    return ST_OK;
}

/* ---- functions ------------------------------------------------------------------------------- */

static str_id function_key(struct checker *k, const char *domain, const char *name,
                           const char *overload) {
    /* A unit separator cannot make two different triples equal in any name that is printable. */
    return intern(&k->names, arena_printf(k->arena, "\x1f%s\x1f%s\x1f%s", onnx_domain(domain), name,
                                          overload));
}

static void note_call(struct checker *k, const Onnx__NodeProto *node) {
    if (!k->m->proto->n_functions) return;
    uint32_t callee;
    str_id key = function_key(k, node->domain, node->op_type, node->overload);
    if (k->in_function && map_get(&k->functions, key.i, &callee))
        vec_push(k->arena, &k->calls, (struct edge){k->function, callee});
}

static enum status declare_functions(struct checker *k) {
    Onnx__ModelProto *p = k->m->proto;
    struct ctx *c = k->m->ctx;
    if (p->n_functions > FUNCTIONS_MAX)
        return diag_error(c, ST_UNSUPPORTED, k->m->path,
                          "the model has %zu functions; the limit is %d", p->n_functions,
                          (int)FUNCTIONS_MAX);
    for (uint32_t i = 0; i < p->n_functions; i++) {
        Onnx__FunctionProto *f = p->functions[i];
        if (!*f->name)
            return diag_error(c, ST_PARSE, k->m->path, "function %u has no name", (unsigned)i);
        str_id key = function_key(k, f->domain, f->name, f->overload);
        uint32_t other;
        if (map_get(&k->functions, key.i, &other))
            return diag_error(c, ST_PARSE, f->name, "the function of domain '%s' is defined twice",
                              f->domain);
        map_set(&k->functions, key.i, i);
    }
    return ST_OK;
}

static enum status check_function(struct checker *k, uint32_t i) {
    Onnx__FunctionProto *f = k->m->proto->functions[i];
    struct opsets own;
    TRY(check_opsets(k, f->opset_import, f->n_opset_import, f->name, &own));
    k->in_function = true;
    k->function = i;
    k->opsets = &own;
    return check_function_body(k, f);
}

/* Calls must form an acyclic graph of bounded depth: Kahn's algorithm, counting levels. */
static enum status check_calls(struct checker *k) {
    uint32_t n = (uint32_t)k->m->proto->n_functions, done = 0;
    uint32_t *waits = ARENA_ARRAY(k->arena, uint32_t, n),
             *depth = ARENA_ARRAY(k->arena, uint32_t, n);
    uint32_t *queue = ARENA_ARRAY(k->arena, uint32_t, n),
             *first = ARENA_ARRAY(k->arena, uint32_t, n);
    uint32_t *next = ARENA_ARRAY(k->arena, uint32_t, k->calls.n), tail = 0;
    for (uint32_t i = 0; i < k->calls.n; i++) { /* chains of calls by callee, index + 1 */
        struct edge e = k->calls.at[i];
        waits[e.from]++;
        next[i] = first[e.to];
        first[e.to] = i + 1;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!waits[i]) queue[tail++] = i;
    for (; done < tail; done++) {
        uint32_t callee = queue[done];
        for (uint32_t i = first[callee]; i; i = next[i - 1]) {
            uint32_t caller = k->calls.at[i - 1].from;
            if (depth[caller] <= depth[callee]) depth[caller] = depth[callee] + 1;
            if (--waits[caller] == 0) queue[tail++] = caller;
        }
        if (depth[callee] >= CALL_DEPTH_MAX)
            return diag_error(k->m->ctx, ST_UNSUPPORTED, k->m->proto->functions[callee]->name,
                              "functions call each other more than %d deep", (int)CALL_DEPTH_MAX);
    }
    for (uint32_t i = 0; i < n; i++)
        if (waits[i])
            return diag_error(k->m->ctx, ST_PARSE, k->m->proto->functions[i]->name,
                              "the function calls itself, or calls one that does; ONNX functions "
                              "must not recurse");
    return ST_OK;
}

/* ---- the model ------------------------------------------------------------------------------- */

static enum status check_versions(struct checker *k, struct opsets *opsets) {
    struct onnx_model *m = k->m;
    Onnx__ModelProto *p = m->proto;
    if (!p->graph)
        return diag_error(
            m->ctx, ST_PARSE, m->path,
            "the file has no graph; expected an ONNX model (is it a single tensor, or "
            "damaged?)");
    if (!p->has_ir_version || p->ir_version < 1)
        return diag_error(m->ctx, ST_PARSE, m->path,
                          "the model has no ir_version; expected 1 to %d", (int)IR_VERSION_KNOWN);
    if (p->ir_version > IR_VERSION_KNOWN)
        diag_warning(m->ctx, m->path,
                     "IR version %lld is newer than the newest known, %d; what is new in it is "
                     "ignored",
                     (long long)p->ir_version, (int)IR_VERSION_KNOWN);
    TRY(check_opsets(k, p->opset_import, p->n_opset_import, m->path, opsets));
    if (!p->n_opset_import && p->ir_version < 3) { /* before opset_import existed */
        Onnx__OperatorSetIdProto *one = ARENA_NEW(k->arena, Onnx__OperatorSetIdProto);
        onnx__operator_set_id_proto__init(one);
        one->version = 1;
        opsets->list = ARENA_NEW(k->arena, Onnx__OperatorSetIdProto *);
        opsets->list[0] = one;
        opsets->n = 1;
    }
    m->opset = opset_version(opsets, "");
    return ST_OK;
}

/* What is fed from outside needs a type; a weight listed as input has its own. */
static enum status check_inputs(struct checker *k) {
    Onnx__GraphProto *g = k->m->proto->graph;
    struct map weights;
    uint32_t unused;
    map_init(&weights, k->arena);
    for (size_t i = 0; i < g->n_initializer; i++)
        map_set(&weights, intern(&k->names, g->initializer[i]->name).i, 0);
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__ValueInfoProto *v = g->input[i];
        if (map_get(&weights, intern(&k->names, v->name).i, &unused)) continue;
        if (!v->type || v->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET)
            return diag_error(k->m->ctx, ST_PARSE, v->name,
                              "the graph input has no type; expected an element type and a shape");
    }
    return ST_OK;
}

enum status onnx_check(struct onnx_model *m) {
    struct checker k = {.m = m, .arena = &m->scratch};
    struct opsets opsets;
    intern_init(&k.names, k.arena);
    map_init(&k.functions, k.arena);
    TRY(check_versions(&k, &opsets));
    k.opsets = &opsets;
    TRY(declare_functions(&k));
    TRY(check_graphs(&k));
    TRY(check_inputs(&k));
    for (uint32_t i = 0; i < m->proto->n_functions; i++) TRY(check_function(&k, i));
    return check_calls(&k);
}
