// SPDX-License-Identifier: Apache-2.0
/* check.h - the state that check.c (fields, versions, functions) and scope.c (names and order)
 * share while a model is checked. */
#ifndef LATHE_FRONTEND_CHECK_H
#define LATHE_FRONTEND_CHECK_H

#include "base/intern.h"
#include "frontend/file.h"

struct opsets {
    Onnx__OperatorSetIdProto **list;
    size_t n;
};

/* One index needs another: a node its producer, a function its callee. */
struct edge {
    uint32_t from, to;
};
typedef VEC(struct edge) edge_list;

struct level; /* scope.c */
struct name_state {
    struct level *level; /* where the name is defined; NULL when it is not */
    int64_t producer;    /* node index, or one of scope.c's negative kinds */
};

struct checker {
    struct onnx_model *m;
    struct arena *arena; /* dropped after the check */
    struct interner names;
    VEC(struct name_state) states; /* by name id */
    const struct opsets *opsets;   /* of the model or function being checked */
    struct map functions;          /* key id -> index */
    edge_list calls;               /* from caller to callee */
    bool in_function;
    uint32_t function; /* the one being checked */
};

/* 0 when the domain is not imported. */
int64_t opset_version(const struct opsets *s, const char *domain);
/* How diagnostics name a node: its name, else an output, else its op. */
const char *node_label(const Onnx__NodeProto *node);
/* Everything about a node but the names it uses. */
enum status check_node(struct checker *k, const Onnx__NodeProto *node) MUST_USE;
/* The type and, for strings, the value of an attribute that the specification fixes (check_attr.c).
 */
enum status check_known_attribute(struct checker *k, const Onnx__NodeProto *node,
                                  const Onnx__AttributeProto *a) MUST_USE;
enum status check_value_info(struct checker *k, Onnx__ValueInfoProto *v) MUST_USE;

/* Check the names and nodes of the main graph with all that is nested in it, and of the training
 * graphs, which see the main graph's names. */
enum status check_graphs(struct checker *k) MUST_USE;
enum status check_function_body(struct checker *k, Onnx__FunctionProto *f) MUST_USE;

#endif
