// SPDX-License-Identifier: Apache-2.0
/* importer.h - what the files of the ONNX importer share. Private to frontend/; everyone else calls
 * onnx_import (import.h).
 *
 * The model is first flattened: local functions are inlined, names become indices, and every node
 * knows where it stands in the file. Then params.c judges the constants, and the nodes are lowered
 * in order, each by shape arithmetic on known contents (shape_eval.c) or by its handler. Handlers
 * build with the functions of lower.c, which turn a failed step into a sticky status: after a
 * failure they do nothing and return VAL_NONE, so that a handler checks once, at its end. */
#ifndef LATHE_FRONTEND_IMPORTER_H
#define LATHE_FRONTEND_IMPORTER_H

#include "base/diag.h"
#include "frontend/import.h"
#include "onnx.pb-c.h"

/* One integer of known content: a number, or (sym) a symbolic dim. */
struct num {
    int64_t v;
    bool sym;
};
enum { KNOWN_MAX = 64 }; /* longest content that shape arithmetic follows */

enum value_kind { VK_NONE, VK_TENSOR, VK_SEQUENCE, VK_BROKEN };
struct ivalue {
    const char *name;
    enum value_kind kind;
    struct type type;
    val_id val;       /* VAL_NONE until a handler needs it */
    struct num *ints; /* known content of an integer or bool tensor, else NULL */
    double *floats;   /* known content of a float tensor, else NULL */
    uint32_t *items;  /* VK_SEQUENCE: values */
    uint32_t nitems;
    uint32_t weight;        /* 1 + index of the weight this is or stands for; 0 none */
    bool aliased;           /* another name of a weight: an Identity, or a formal of a function */
    struct onnx_use alias;  /* the use in the file that made it so */
    const char *alias_name; /* when an Identity gave it a name of its own, else NULL */
    const struct inode *producer;
};

/* A node of the flattened model. Value indices; 0 is an absent optional. */
#define NODE_INNER UINT32_MAX
struct inode {
    const Onnx__NodeProto *p;
    const char *op, *domain, *origin;
    int64_t opset;
    uint32_t *in, *out;
    int nin, nout;
    const Onnx__AttributeProto **attrs; /* references of a function body resolved */
    int nattrs;
    uint32_t index; /* in graph.node; NODE_INNER inside functions and subgraphs */
    uint32_t order;
    struct scope *scope;
};
struct nodelist {
    VEC(struct inode) nodes;
};
struct scope { /* names of one graph or function body */
    struct scope *up;
    struct scope *caller; /* of the function whose body this is */
    struct map names;     /* string id -> value */
    const Onnx__FunctionProto *fn;
    const struct inode *call; /* whose attributes a function body refers to */
    const char *prefix;       /* origin prefix */
    int depth;
};

/* One place where a weight is read. */
struct wuse {
    struct onnx_use file; /* node NODE_INNER when it cannot be named in the file */
    const struct inode *n;
    int slot;
    const char *alias; /* name given by an Identity, or NULL */
    uint32_t group;
};
/* A parameter: all uses of a weight, or one of several that the exporter merged. */
struct wgroup {
    const char *name;
    val_id param; /* the source node */
    val_id val;   /* what uses see: the param, expanded or transposed */
};
enum verdict { W_CONST, W_FROZEN, W_STATE, W_TRAINED };
struct weight {
    struct onnx_tensor t;
    uint32_t value;
    bool constant; /* came from a Constant node */
    bool inner;    /* lives in a subgraph or function body: cannot be written back */
    bool captured; /* read inside a control-flow subgraph */
    bool bound;    /* a graph input that the caller gave a value: never a parameter */
    VEC(struct wuse) uses;
    enum verdict verdict;
    const char *why, *note;
    struct type type; /* the parameter's own shape */
    uint32_t tied;    /* 1 + weight this is a copy of */
    bool tied_transposed;
    bool untie;
    bool forced;   /* the user's regular expression decided */
    bool own;      /* the model's own training step changes it */
    uint32_t next; /* the value that it then takes; 0 when that step is not imported */
    VEC(struct wgroup) groups;
    val_id konst;
};

struct importer {
    struct ctx *ctx;
    struct arena *a; /* the model's */
    struct onnx_model *m;
    const struct import_options *o;
    struct import_result *r;
    struct graph *g;
    struct interner names;
    struct map targets, records; /* record.c: placeholder -> target, target -> enum record */
    bool recorded;               /* the file has such a record */
    VEC(struct ivalue) values;   /* [0] unused */
    VEC(struct weight) weights;
    struct nodelist main;
    VEC(struct import_unsupported) unsupported;
    VEC(struct import_param) params;
    uint32_t norder;
    uint32_t *outs;                      /* values of graph.output */
    const Onnx__TrainingInfoProto *step; /* the model's own training step; NULL: not imported */

    /* lowering */
    enum status st;
    const struct inode *n;
    str_id origin;
    bool refused; /* the node at hand was reported unsupported */
    val_id seed;
    int streams;        /* random streams handed out */
    int dropouts_inert; /* for one note instead of many */
    int batch_norms_switched;
    dim batch; /* first dimension of the first input, 0 when there is none */
};

typedef void handler_fn(struct importer *im, const struct inode *n, int arg);
struct handler {
    const char *domain, *op;
    handler_fn *fn;
    int arg;
};
const struct handler *handler_find(const char *domain, const char *op);

/* ---- flatten.c ------------------------------------------------------------------------------ */
struct ivalue *iv(struct importer *im, uint32_t v);
enum status flatten_model(struct importer *im) MUST_USE;
/* Append a subgraph's nodes to `out`: `ins` (nin of them) are its inputs, its outputs become `outs`
 * (n of them). */
enum status flatten_subgraph(struct importer *im, const struct inode *at,
                             const Onnx__GraphProto *sub, const uint32_t *ins, int nin,
                             struct nodelist *out, uint32_t *outs, int n) MUST_USE;
/* A value that no node of the file computes: the tensor `val`, or nothing yet when it is none. */
uint32_t value_new(struct importer *im, const char *name, val_id val);
/* Call `seen` for every outer value that a subgraph reads. */
void flatten_captures(struct importer *im, const struct scope *s, const Onnx__GraphProto *g,
                      int depth, void (*seen)(struct importer *im, uint32_t v));
const Onnx__AttributeProto *node_attr(const struct inode *n, const char *name);
int64_t node_int(const struct inode *n, const char *name, int64_t fallback);
/* An attribute that holds an ONNX element type; DT_NONE when absent or of a type without a name
 * here. */
enum dtype node_dtype(const struct inode *n, const char *name);
double node_float(const struct inode *n, const char *name, double fallback);
bool node_str_is(const struct inode *n, const char *name, const char *s); /* false when absent */
bool node_has(const struct inode *n, const char *name);
/* Integers of a list attribute; NULL and 0 when absent. */
const int64_t *node_ints(const struct inode *n, const char *name, int *count);

/* ---- own_step.c: training_info ----------------------------------------------------------------
 */
/* Note the step to import, if any, before anything else. */
enum status own_step_find(struct importer *im) MUST_USE;
/* What the bindings name, once the values are there. `find` gives the value of a name. */
enum status own_step_bind(struct importer *im,
                          bool (*find)(struct importer *im, const struct scope *s, const char *name,
                                       uint32_t *v),
                          const struct scope *s) MUST_USE;
/* The input is the rate of an optimizer of the step. */
bool own_step_rate(struct importer *im, const char *input);
/* Verdict on a constant in a model that has a step of its own; false: judge it as any other. */
bool own_step_judge(struct importer *im, struct weight *w, enum verdict *v);
enum status own_step_check(struct importer *im) MUST_USE;                   /* after the verdicts */
enum status own_step_state(struct importer *im, struct weight *w) MUST_USE; /* its source node */
enum status own_step_updates(struct importer *im) MUST_USE;                 /* after the nodes */

/* ---- roles.c: what a use of a constant means ------------------------------------------------- */
/* "weight", "bias", "scale", "table" where an op keeps a parameter, else NULL. */
const char *slot_role(const struct inode *n, int slot);
bool slot_differentiable(const struct inode *n, int slot);
/* Users of every value, in order. */
struct users {
    uint32_t *first;
    const struct inode **at;
    bool trig; /* the model has a Sin */
};
struct users users_build(struct importer *im);
bool *values_reaching_outputs(struct importer *im);
/* The weight only sets the frequencies of a sine and a cosine that no data and no parameter enters.
 */
bool feeds_rotary(struct importer *im, const struct users *u, const struct weight *w);
/* Every use is added to scores that go into a Softmax. */
bool masks_softmax(struct importer *im, const struct users *u, const struct weight *w);

/* ---- params.c, weights.c -------------------------------------------------------------------- */
enum status params_decide(struct importer *im) MUST_USE;
void params_report(struct importer *im);
/* The zero bias that an exporter's optimizer removed from node n, as a parameter of `size`
 * elements; VAL_NONE when the file does not say that there was one. */
val_id bias_restored(struct importer *im, const struct inode *n, dim size, enum dtype t);
val_id weight_read(struct importer *im, struct weight *w, struct onnx_use at);

/* What the exporter wrote about the model's parameters (record.c). */
enum record { REC_NONE, REC_PARAM, REC_BUFFER };
void record_load(struct importer *im);
enum record record_of(struct importer *im, const char *name);
/* Names of the parameters that the torch operation behind a node took, in order; up to `max`. */
int record_params(struct importer *im, const struct inode *n, const char **out, int max);
bool record_present(struct importer *im, const struct inode *n);   /* the node says what it was */
const char *node_metadata(const struct inode *n, const char *key); /* NULL when absent */

/* Facts about contents, each reading no more than it must (weights.c). */
bool weight_uniform(const struct onnx_tensor *t, double *x);
bool weight_is_mask(const struct onnx_tensor *t, bool *zero_one);
bool weight_same(const struct onnx_tensor *a, const struct onnx_tensor *b, bool transposed);
/* sin and cos of the same angles, up to one factor: a*a + b*b is the same everywhere. */
bool weights_rotary(const struct onnx_tensor *a, const struct onnx_tensor *b);
bool weight_sinusoid(const struct onnx_tensor *t); /* one table of both */
/* Slices along `axis` are all equal. */
/* The weights' names, groups and source nodes (groups.c). */
enum status groups_build(struct importer *im) MUST_USE;
bool weight_repeats(const struct onnx_tensor *t, int axis);

/* ---- known.c, shape_eval.c
 * --------------------------------------------------------------------------- */
struct content {
    struct type t;
    const struct num *ints;
    const double *floats;
    int64_t n;
};
/* Content of operand k of any kind; false when it is not known. */
bool known_content(struct importer *im, const struct inode *n, int k, struct content *c);
bool known_fits(const struct type *t); /* small enough to be followed */
void known_set_floats(struct importer *im, uint32_t v, const struct type *t, double *at);
double known_round(enum dtype t, double x);
/* A double rounded to the type is the operation rounded once. */
bool known_exact(enum dtype t);
bool num_fits(enum dtype t, struct num x);
struct num num_plain(int64_t x);
struct num num_of_dim(dim d);
enum eop {
    E_ADD,
    E_SUB,
    E_MUL,
    E_DIV,
    E_MOD,
    E_MAX,
    E_MIN,
    E_EQ,
    E_LT,
    E_LE,
    E_GT,
    E_GE,
    E_AND,
    E_OR,
    E_XOR
};
/* One element; false when the result depends on a symbol, overflows or does not exist. */
bool num_apply(struct dims_table *t, enum eop op, struct num a, struct num b, bool trunc,
               struct num *o);
bool float_apply(enum eop op, double a, double b, double *o);
/* Evaluate the node on known contents; true when its outputs are set. */
bool shape_eval(struct importer *im, const struct inode *n);
/* Content of an integer input; false when absent or not known. */
bool known_ints(struct importer *im, const struct inode *n, int k, const struct num **at,
                int64_t *count);
/* The same as plain numbers (no symbols). */
bool known_numbers(struct importer *im, const struct inode *n, int k, const int64_t **at,
                   int64_t *count);
bool known_float(struct importer *im, const struct inode *n, int k, double *x); /* one element */
void known_set_ints(struct importer *im, uint32_t v, const struct type *t, struct num *at);
void known_from_tensor(struct importer *im, uint32_t v, const struct onnx_tensor *t);
/* A size as a rank-0 value, also when it is symbolic. */
val_id dim_value(struct importer *im, enum dtype t, dim d);
val_id known_materialise(struct importer *im, const struct ivalue *v);
bool num_dim(struct num x, dim *d); /* false when negative */

/* Content of integer input k, at most RANK_MAX elements; false after a refusal. */
bool shape_input(struct importer *im, const struct inode *n, int k, struct num *out, int *rank);
/* Result shapes of views (import_shape.c); false after a refusal. */
bool shape_of_reshape(struct importer *im, const struct inode *n, struct type *t);
bool shape_of_unsqueeze(struct importer *im, const struct inode *n, struct type *t);
bool shape_of_squeeze(struct importer *im, const struct inode *n, struct type *t);
bool shape_of_flatten(struct importer *im, const struct inode *n, struct type *t);

/* ---- lower.c: building with a sticky status -------------------------------------------------- */
void lower_nodes(struct importer *im, struct nodelist *list);
/* Report the node at hand as unsupported; `why` is printf-like. */
void refuse(struct importer *im, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The model itself is wrong at this node. */
void reject(struct importer *im, enum status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool failed(const struct importer *im); /* the handler should stop */
bool has_in(const struct inode *n, int k);
bool has_out(const struct inode *n, int k);
val_id get(struct importer *im, const struct inode *n, int k); /* VAL_NONE when absent */
val_id read_value(struct importer *im, uint32_t v, struct onnx_use at);
struct type in_type(struct importer *im, const struct inode *n, int k); /* DT_NONE when absent */
void set_out(struct importer *im, const struct inode *n, int k, val_id v);
struct type ty(struct importer *im, val_id v);

val_id add_node(struct importer *im, enum op op, const val_id *in, int nin,
                const struct attr *attrs, int nattr);
val_id op_1(struct importer *im, enum op op, val_id a);
val_id op_2(struct importer *im, enum op op, val_id a, val_id b);
val_id op_3(struct importer *im, enum op op, val_id a, val_id b, val_id c);
val_id scalar(struct importer *im, enum dtype t, double x);
val_id scalar_int(struct importer *im, enum dtype t, int64_t x);
val_id constant(struct importer *im, const struct type *t, const void *bytes, bool copy);
val_id ints_1d(struct importer *im, const int64_t *x, int n);
val_id full(struct importer *im, enum dtype t, const dim *shape, int rank, double x);
val_id iota(struct importer *im, enum dtype t, dim n, double start, double step);
val_id scale_by(struct importer *im, val_id a, double k);
val_id shift_by(struct importer *im, val_id a, double k);
val_id cast_to(struct importer *im, val_id a, enum dtype t);
val_id reshape(struct importer *im, val_id a, const dim *shape, int rank);
val_id transpose(struct importer *im, val_id a, const int64_t *perm);
val_id swap_axes(struct importer *im, val_id a, int i, int j);
val_id expand(struct importer *im, val_id a, const dim *shape, int rank);
val_id slice(struct importer *im, val_id a, const dim *starts, const dim *sizes,
             const int64_t *steps);
val_id slice_axis(struct importer *im, val_id a, int axis, dim start, dim size);
val_id concat(struct importer *im, const val_id *parts, int n, int axis);
val_id pad(struct importer *im, val_id a, const int64_t *low, const int64_t *high,
           const int64_t *interior, double value);
val_id reduce(struct importer *im, enum op op, val_id a, const int64_t *axes, int n, bool keep);
val_id matmul(struct importer *im, val_id a, val_id b, bool ta, bool tb);
val_id gather(struct importer *im, val_id x, val_id idx, int axis);
val_id with_axis(struct importer *im, enum op op, val_id a, int axis);
val_id unsqueeze(struct importer *im, val_id a, int axis);
val_id squeeze(struct importer *im, val_id a, int axis);
/* i64 or i32 indices of any integer input. */
val_id indices(struct importer *im, val_id a);
/* Numbers 0..n-1 along `axis` of a rank-`rank` shape of ones otherwise. */
val_id axis_iota(struct importer *im, enum dtype t, dim n, int axis, int rank);
val_id random_uniform(struct importer *im, enum dtype t, const dim *shape, int rank);
/* axis of the node (attribute `axis`) into [0, rank); rejects what is outside. */
int axis_attr(struct importer *im, const struct inode *n, int64_t fallback, int rank);
bool axis_fix(struct importer *im, int64_t *axis, int rank);
/* Sorted unique axes from an attribute or input `slot`; false after a refusal. */
bool axes_of(struct importer *im, const struct inode *n, int slot, int rank, int64_t *axes,
             int *count);
dim dim_times(struct importer *im, dim a, dim b);
dim dim_plus(struct importer *im, dim a, dim b);
dim dim_minus(struct importer *im, dim a, dim b);
dim dims_total(struct importer *im, const dim *d, int n);

/* ---- sequences (import_sequence.c) ----------------------------------------------------------- */
/* Operand k as a sequence; NULL after a refusal. */
const struct ivalue *sequence_in(struct importer *im, const struct inode *n, int k);
val_id sequence_item(struct importer *im, const struct ivalue *s, uint32_t i);
void set_sequence(struct importer *im, const struct inode *n, int k, const val_id *items,
                  uint32_t count);

/* ---- optimizer steps (import_training.c) ------------------------------------------------------
 */
struct adam_form { /* attributes of op adam */
    double beta1, beta2, eps, weight_decay;
    bool decoupled, eps_hat;
};
/* One step of op adam: (w, g, m, v, lr, step) -> next[3]; returns the next w. */
val_id adam_step(struct importer *im, const struct adam_form *f, const val_id in[6],
                 val_id next[3]);
/* Operand k, which holds one element, as a scalar; `what` names it in a rejection. */
val_id one_number(struct importer *im, const struct inode *n, int k, const char *what);

/* ---- handlers -------------------------------------------------------------------------------- */
#define HANDLER(domain, op, fn, arg) handler_fn fn;
#include "frontend/handlers.def"
#undef HANDLER

#endif
