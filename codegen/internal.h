// SPDX-License-Identifier: Apache-2.0
/* internal.h - what the files of codegen/ share: iteration spaces, what is known of each value,
 * units (the launches to be) and the handlers named by the `lower` column of ops.def. Private. */
#ifndef LATHE_CODEGEN_INTERNAL_H
#define LATHE_CODEGEN_INTERNAL_H

#include "base/diag.h"
#include "codegen/codegen.h"
#include "ir/plan_work.h"

/* ---- iteration spaces (space.c) ---------------------------------------------------------------
 * A space is a row-major index space cut into axes; axes can be split further when a value's shape
 * asks for it. A map says which element of a value each point of the space means: the row-major
 * element number off + sum(index * s). */
struct space {
    int64_t count;
    int n;
    int64_t ext[RANK_MAX];
    bool row[RANK_MAX]; /* valid when has_row: the axis is reduced over or part of a row */
    bool has_row;
    bool part[RANK_MAX]; /* valid when has_part: the last axes of a row, which is cut into parts */
    bool has_part;
};
struct map_to {
    int64_t off, s[RANK_MAX];
};
enum fit { FIT_OK, FIT_SPLIT, FIT_NO, FIT_AGAIN /* the space has changed otherwise */ };
/* Which axis must be split so that its inner part has `inner` points. */
struct split {
    int axis;
    int64_t inner;
};
void space_init(struct space *sp, int64_t count);
void space_from_dims(struct space *sp, const int64_t *dims, int rank);
bool space_split(struct space *sp, struct split s); /* false: no axis left or not divisible */
int64_t space_rows(const struct space *sp);
int64_t space_parts(const struct space *sp); /* of all rows; -1: rows have no parts */
/* Rows of the axes `row` whose parts are those of the axes `part`; false: not the last ones of a
 * row, or not as many elements as a group's program can reduce over (PART_LENGTH_MAX). */
bool space_nest(struct space *sp, const bool *row, const bool *part);
/* The common refinement of two spaces of one count; false when there is none. Where `nest` allows
 * it, the rows of one may be parts of the other's. */
bool space_merge(const struct space *a, const struct space *b, bool nest, struct space *out);
struct map_to space_identity(const struct space *sp);
struct map_to space_row_map(const struct space *sp);  /* one element per row */
struct map_to space_part_map(const struct space *sp); /* one element per part of a row */
struct map_to space_col_map(const struct space *sp);  /* one element per place in a row */
/* Axis k of the map moves along dims[dim_of[k]] (-1: it does not move). */
enum fit space_dims(const struct space *sp, const struct map_to *m, const int64_t *dims, int rank,
                    int dim_of[RANK_MAX], struct split *want);
/* The map of a value whose element (i0, i1, ..) lies at base + sum(i * strides), where m maps to
 * the row-major numbering of dims. */
enum fit space_remap(const struct space *sp, const struct map_to *m, const int64_t *dims, int rank,
                     const int64_t *strides, int64_t base, struct map_to *out, struct split *want);
void dims_strides(const int64_t *dims, int rank, int64_t *strides); /* row-major */
bool map_equal(const struct space *sp, const struct map_to *a, const struct map_to *b);

/* ---- values, nodes, units ----------------------------------------------------------------------
 */
enum node_class { CLASS_SOURCE, CLASS_VIEW, CLASS_FUSED, CLASS_LAUNCH, CLASS_CONCAT, CLASS_PAD };

struct place {
    bool set;
    buf_id buffer;
    int64_t off, strides[RANK_MAX]; /* per dim of the value's type, in elements */
};
struct val_info {
    bool need;      /* must exist in memory: read by a launch, an output or an update */
    bool stored;    /* a member of a group that is written to memory */
    bool plain;     /* must be row-major */
    uint32_t nuse;  /* operand slots that name it */
    int32_t output; /* graph output written directly, or -1 */
    struct place place;
    buf_id copy;   /* dense copy made for a launch that could not read the view */
    bool use_copy; /* groups read the copy as well: no strides lead to the original */
};
enum unit_kind { UNIT_GROUP, UNIT_NODE, UNIT_OUTPUT };
struct unit {
    enum unit_kind kind;
    bool dead;
    uint32_t level;      /* rises along every edge between units */
    VEC(uint32_t) nodes; /* ascending */
    struct space space;
    uint32_t output;
    uint64_t key; /* schedule order among ready units */
};
struct product;
struct node_info {
    uint32_t unit; /* 0: none */
    struct product
        *product;           /* the launch of a matmul that computes this node as well; NULL: none */
    bool lazy;              /* computed again in every group that needs it */
    bool late;              /* only updates need it */
    uint8_t weight, leaves; /* instructions and large operands of a lazy node */
    uint32_t stamp;
};

struct cg {
    struct ctx *ctx;
    struct graph *g;
    struct plan *p;
    struct arena *scratch;
    const struct codegen_options *o;
    struct val_info *vals;
    struct node_info *nodes;
    struct uses uses;
    VEC(struct unit) units; /* [0] unused */
    uint32_t stamp;
    uint32_t loss_node; /* 0: no loss output */
};

/* Whether groups may store transposes of their results (tile.c), and reduce over parts of rows as
 * well: both cost a CPU more than one more launch. */
static inline bool fuses_as_gpu(const struct cg *c) {
    return (c->o->cuda_arch != 0 || c->o->as_gpu) && !c->o->no_fusion;
}

static inline int type_dims(const struct type *t, int64_t out[RANK_MAX]) {
    for (int i = 0; i < t->rank; i++) out[i] = t->dims[i];
    return t->rank;
}

/* ---- lowering table (lower.c)
 * -------------------------------------------------------------------- */
struct emit;
struct lowering {
    enum node_class cls;
    /* FUSED: add the node's instructions, given the map of its first result. */
    enum fit (*member)(struct emit *e, node_id n, const struct map_to *m);
    /* LAUNCH, CONCAT, PAD: emit its launches. */
    enum status (*launch)(struct cg *c, node_id n);
};
#define OP(id, min_in, max_in, outs, traits, infer, grad, cost, lower, emit, attrs)                \
    extern const struct lowering lower_##lower;
#include "ir/ops.def"
#undef OP
const struct lowering *node_lowering(const struct graph *g, node_id n);
static inline enum node_class node_class(const struct graph *g, node_id n) {
    return node_lowering(g, n)->cls;
}

/* ---- group programs (group.c, members.c)
 * --------------------------------------------------------- */
struct in_slot {
    struct plan_view view; /* strides per axis of the space */
    bool scalar;           /* a random's seed: rank 0 */
};
struct reg_memo {
    uint32_t value;
    int32_t reg;
    struct map_to map;
};
struct col_result {
    uint32_t value;
    int32_t reg;
    int code; /* INSTR_COLSUM or INSTR_COLMAX */
};
struct out_slot {
    int32_t reg;
    int code;              /* INSTR_STORE, INSTR_COLSUM or INSTR_COLMAX */
    uint32_t single;       /* bit k: one element for all places along axis k */
    struct plan_view view; /* strides per axis of the space */
};
struct late_copy {
    struct plan_view from, to;
};
struct emit {
    struct cg *c;
    uint32_t unit;      /* whose nodes are members; 0: a copy */
    struct space space; /* refined while emitting */
    bool dry;           /* only finds out whether it works */
    int depth;
    struct split want;
    val_id stuck; /* the value that no map reaches, when emission gives FIT_NO for that reason */
    VEC(struct group_instr) code;
    VEC(uint32_t) moves; /* per register: bit k: varies along axis k */
    VEC(struct in_slot) in;
    VEC(struct reg_memo) memo;
    VEC(struct col_result) cols;
    VEC(struct out_slot) out;
    VEC(struct late_copy) late; /* results whose place the loop nest cannot step through */
    bool ordered;               /* holds a random: iteration order must be element order */
};
/* The register that holds value v under map m. */
int32_t emit_spread(struct emit *e, int32_t a); /* made to vary along the row */
bool emit_varies(const struct emit *e, int32_t a);
bool emit_varies_in_part(const struct emit *e, int32_t a);
enum fit emit_value(struct emit *e, val_id v, const struct map_to *m, int32_t *reg);
int32_t emit_op(struct emit *e, int code, enum dtype reg_type, int32_t a, int32_t b, int32_t c);
int32_t emit_const(struct emit *e, enum dtype reg_type, double x);
int32_t emit_scalar(struct emit *e, enum dtype t, double x, int64_t ix);
enum fit emit_iota(struct emit *e, node_id n, const struct map_to *m, int32_t *reg);
enum fit emit_random(struct emit *e, node_id n, int32_t *reg);
int32_t emit_slot(struct emit *e, const struct in_slot *slot);
void emit_reset(struct emit *e);
enum fit emit_members(struct emit *e, const uint32_t *nodes, uint32_t n);
/* Few long rows are cut into pieces (GROUP_TAIL). */
enum { FEW_ROWS = 16, LONG_ROW = 32768 };
enum dtype register_type(enum dtype t);
void emit_define(struct emit *e, val_id v, const struct map_to *m, int32_t reg);
enum fit emit_ew(struct emit *e, node_id n, const struct map_to *m, int32_t *reg);
/* Dry run of a unit with these members; refines *sp. False when they do not make a group. */
bool group_try(struct cg *c, uint32_t unit, struct space *sp, const uint32_t *nodes, uint32_t n);
enum status group_emit(struct cg *c, uint32_t unit);
/* dest(i..) = v(i..): dest has v's dims. */
enum status group_copy(struct cg *c, val_id v, const struct plan_view *dest, str_id origin);
enum status group_convert(struct cg *c, const struct plan_view *from, const struct plan_view *dest,
                          str_id origin);
enum status group_fill(struct cg *c, double x, const struct plan_view *dest, str_id origin);
bool norm_again(const struct cg *c, val_id v);
/* What the launch of optimizer n reads as its gradient: what the operand is widened from, and
 * scaled by *scale (or VAL_NONE). VAL_NONE: n is no optimizer. */
val_id optimizer_gradient(const struct graph *g, node_id n, val_id *scale);
bool scalar_const(const struct graph *g, val_id v, double *x, int64_t *ix);

/* ---- products (fold_products.c)
 * --------------------------------------------------------------------
 * What one launch computes: scale * a b + bias + residual, or GELU of it, in the type of `result`.
 */
struct product {
    uint32_t nodes[10], n; /* from the matmul to the node of `result`, ascending */
    val_id result, bias, residual;
    bool scaled, gelu;
    double scale;
};
/* Find the products that take over what follows them; marks what this needs in memory. */
void fold_products(struct cg *c);

/* ---- fusion, layout, views, launches
 * --------------------------------------------------------------- */
/* quantize and dequantize as ordinary ops (quantize.c); ids change when there are any. */
void expand_quantize(struct graph *g, struct arena *scratch);
void fuse(struct cg *c);          /* fuse.c: lazy nodes and units */
void choose_places(struct cg *c); /* layout.c */
/* The units whose results node n reads, through movement and lazy nodes; may repeat. Marks nodes
 * with c->stamp, which the caller advances. */
struct walk {
    struct cg *c;
    VEC(uint32_t) units;
};
void unit_sources(struct walk *w, node_id n);
val_id view_base(const struct cg *c, val_id v); /* through movement ops */
struct map_to;
/* Map through the movement ops above v down to its base, in a space over v's points. */
enum fit view_step(const struct cg *c, const struct space *sp, val_id v, const struct map_to *m,
                   val_id *operand, struct map_to *out, struct split *want);
/* v as a window on its base's buffer; false when strides cannot say it. */
bool view_of(struct cg *c, val_id v, struct plan_view *out);
bool view_matrix_ok(const struct plan_view *v);
bool view_lines_ok(const struct plan_view *v, enum dtype t, struct plan_view *lines);
bool view_last_ok(const struct plan_view *v);
/* A buffer for value v: made on first use, where the layout says. */
void place_value(struct cg *c, val_id v);
buf_id buffer_add(struct cg *c, enum buffer_kind kind, enum buffer_use use, const struct type *t);
struct plan_view result_view(struct cg *c, val_id v);
struct plan_view buffer_view(const struct cg *c, buf_id b);
enum need { NEED_DENSE, NEED_LAST, NEED_MATRIX };
enum need operand_need(const struct graph *g, node_id n, int k);
bool need_met(enum need need, const struct plan_view *v);
/* Operand k of a launch, copied when its view is not fit. */
/* Make the copy of `stuck`, so that the next attempt can read it; false when that was no help. */
bool copy_stuck(struct cg *c, val_id stuck, enum status *status);
enum status operand_view(struct cg *c, node_id n, int k, struct plan_view *out);
/* The same for any value that a launch made of node n reads. */
enum status value_view(struct cg *c, node_id n, val_id v, enum need need, struct plan_view *out);
struct plan_launch *launch_add(struct cg *c, enum launch_kind kind, const struct plan_view *in,
                               uint32_t nin, const struct plan_view *out, uint32_t nout,
                               str_id origin);
/* A launch of node n alone: its operands and results in their order, then an optimizer's factor of
 * the gradient. None where all results are empty. */
enum status launch_node(struct cg *c, node_id n, enum launch_kind kind);
enum status launch_adam8(struct cg *c, node_id n); /* lower_adam8.c */
void launch_attrs(struct cg *c, struct plan_launch *l, node_id n);
str_id unit_origin(struct cg *c, const uint32_t *nodes, uint32_t n);

/* After all launches exist (inplace.c, memory.c). */
enum status apply_updates(struct cg *c);
void join_optimizers(struct cg *c); /* join.c */
/* Apply the renames (of buffers below nrename) and renumber so that temps which no launch names
 * vanish. */
void drop_unused(struct cg *c, const uint32_t *rename, uint32_t nrename);
void fold_transposes(struct cg *c); /* tile.c */
void overwrite_parts(struct cg *c); /* overwrite.c */
void share_in_place(struct cg *c);
void join_casts(struct cg *c); /* join.c */
void find_lifetimes(struct plan *p);
void add_workspaces(struct plan *p);

#endif
