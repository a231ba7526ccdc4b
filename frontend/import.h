// SPDX-License-Identifier: Apache-2.0
/* import.h - from an ONNX model to a graph: one handler per op family, opset differences end here,
 * shape arithmetic is evaluated away, and every floating-point constant is judged: trained, frozen,
 * tied, or several parameters that the exporter merged. */
#ifndef LATHE_FRONTEND_IMPORT_H
#define LATHE_FRONTEND_IMPORT_H

#include "frontend/onnx.h"
#include "ir/graph.h"

struct import_options {
    bool training; /* BatchNorm on batch statistics, Dropout active */
    bool
        listing; /* the caller shows what is unsupported; the status alone says that there is any */
    bool inputs_only; /* a graph of the inputs alone, to see their types */
    const char
        *train_regex; /* POSIX extended; parameters to train that would be frozen; NULL none */
    const char *freeze_regex; /* parameters to freeze */
    /* Sizes of symbolic dimensions; -1 leaves a symbol symbolic. NULL leaves all. */
    int64_t (*bind)(void *user, const char *symbol);
    void *bind_user;
    /* A value for a graph input, which then is a constant of the graph instead of an input: for
     * shapes, axes, counts and flags that the file leaves to its caller and that compilation needs.
     * NULL leaves the input an input. The tensor must have the input's element type and fit its
     * shape (else ST_TYPE or ST_SHAPE); its data must live as long as the model and the graph. It
     * is never trained and never exported. The hook itself may be NULL. */
    const struct onnx_tensor *(*constant)(void *user, const char *input);
    void *constant_user;
};

/* One parameter decision, in a user's words. Frozen constants that matter to nobody (scalars,
 * shapes) are not listed. */
struct import_param {
    const char *name;        /* what --train/--freeze match and metrics show; unique */
    const char *initializer; /* where it is stored in the file */
    const char *decision;    /* "trained" | "frozen" | "state" */
    const char *why;         /* e.g. "weight of Gemm '/fc1/Gemm'", "causal mask: only 0 and -inf" */
    const char *note;   /* e.g. "tied: also the head of MatMul '/lm_head'", "one of 5 merged by the
                           exporter"; "" */
    struct type type;   /* the parameter's own shape (a folded broadcast is undone) */
    struct type stored; /* the initializer's shape */
    const struct onnx_use *uses;
    uint32_t nuses;   /* 0: all uses of the initializer */
    const void *data; /* its value in the file: type_bytes(type) packed bytes */
    const struct import_twin {
        const char *initializer;
        bool transposed;
    } * twins; /* other initializers that hold a copy, rewritten on export */
    uint32_t ntwins;
    bool read_only; /* a view the graph uses that cannot be written back as one initializer */
};
struct import_unsupported {
    const char *op, *domain;
    int64_t opset;
    const char *why; /* "no such op in Lathe" or the precise attribute/shape that is missing */
    const char *const *nodes;
    uint32_t nnodes;
};
struct import_result {
    struct graph
        *graph; /* owned by the caller (graph_destroy); NULL when something is unsupported */
    const struct import_param *params;
    uint32_t nparams;
    const struct import_unsupported *unsupported;
    uint32_t nunsupported;
};

/* Inputs become `input` nodes (user inputs only), weights `param`, BatchNorm statistics `state`
 * with updates, all graph outputs outputs. Every unsupported thing is collected before failing: the
 * status is then ST_UNSUPPORTED with one diagnostic, and result->unsupported is filled. The
 * result's strings live as long as the model. */
enum status onnx_import(struct onnx_model *m, const struct import_options *o,
                        struct import_result *result) MUST_USE;

/* Write trained values back into the user's own graph. `value` returns the packed data of a
 * parameter (import_param.type) by name, or NULL to keep the stored one. */
enum status onnx_export(struct onnx_model *m, const struct import_result *result,
                        const void *(*value)(void *user, const char *param), void *user,
                        const char *path) MUST_USE;

#endif
