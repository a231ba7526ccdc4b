// SPDX-License-Identifier: Apache-2.0
/* plan.h - the plan IR: how a graph is computed. Buffers with offsets and lifetimes, fused groups
 * as small straight-line programs, and launches in execution order. Everything is static: shapes
 * are numbers, memory is planned. Both backends execute the same plan; codegen/ writes it, runtime/
 * reads it, and neither knows the other. Not what is computed and why: that is the graph (graph.h).
 */
#ifndef LATHE_IR_PLAN_H
#define LATHE_IR_PLAN_H

#include "ir/graph.h"

/* One allocation per lifetime class. PERSISTENT: parameters, states, constants. IO: inputs and
 * outputs that the host reads and writes between steps. STEP: everything that lives within one
 * step. */
enum arena_class { ARENA_PERSISTENT, ARENA_IO, ARENA_STEP, ARENA_CLASSES };

enum buffer_kind {
    BUF_NONE,
    BUF_CONST,     /* filled once from `init` */
    BUF_PARAM,     /* likewise; trained or frozen */
    BUF_STATE,     /* filled from `init` or `fill`; kept from step to step */
    BUF_INPUT,     /* written by the host before a step */
    BUF_OUTPUT,    /* read by the host after a step */
    BUF_TEMP,      /* live from launch `first` to `last` inclusive */
    BUF_WORKSPACE, /* scratch of one launch */
};
/* What a byte is spent on, for reports. */
enum buffer_use {
    USE_WEIGHTS,
    USE_OPTIMIZER,
    USE_GRADIENTS,
    USE_ACTIVATIONS,
    USE_IO,
    USE_WORKSPACE,
    USE_CONSTANTS,
    USE_COUNT
};

typedef struct {
    uint32_t i;
} buf_id, group_id;

struct plan_buffer {
    enum buffer_kind kind;
    enum buffer_use use;
    str_id name;          /* param, state, input, output: the users' name; may be empty otherwise */
    str_id role;          /* input, state: the graph's role attribute */
    struct type type;     /* static; rank-1 bytes (u8) for workspaces */
    int64_t bytes;        /* > 0, or 0 for a tensor without elements */
    int64_t offset;       /* into its arena; a multiple of 64 */
    uint32_t first, last; /* TEMP and WORKSPACE: launch indices; others: the whole step */
    buf_id alias;     /* shares the first `bytes` of this buffer on purpose (in place); {0} none */
    bool frozen;      /* param that is not trained */
    struct blob init; /* CONST, PARAM, STATE: initial bytes; data NULL: `fill` everywhere */
    double fill;
};

/* A strided window on a buffer: element (i0, i1, ..) lies at offset + sum(i*stride) elements. */
struct plan_view {
    buf_id buffer;
    enum dtype dtype;
    int rank;
    int64_t offset; /* elements */
    int64_t dims[RANK_MAX];
    int64_t strides[RANK_MAX]; /* elements; 0 repeats; may be negative */
};
bool view_contiguous(const struct plan_view *v); /* row-major without gaps */
int64_t view_count(const struct plan_view *v);

/* ---- fused groups ----------------------------------------------------------------------------
 * A group computes over an iteration space dims[0..rank). The last `inner` axes form a row; the
 * others count the rows. Every register holds one value per element (SPAN_ALL) or per row
 * (SPAN_ROW). Instruction k defines register k. Registers are f32, f64, i64 or bool; loads and
 * stores convert (f16, bf16 <-> f32; narrower ints <-> i64). An operand of SPAN_ROW is repeated
 * along the row.
 *
 *   MAP   no reduction: elements are independent.
 *   ROW   reductions along rows or parts of rows, whose results may be used by later instructions
 * of the same row.
 *   TAIL  as ROW, but no SPAN_ALL instruction depends on a reduction: a row may be cut into fixed
 * pieces whose partial results are combined in order (few long rows); what depends on the results
 * is SPAN_ROW and runs once per row. COLSUM and COLMAX reduce a register over all rows into an
 * output of the row's shape; allowed in MAP and ROW. An instruction of SPAN_ALL whose operands are
 * all SPAN_ROW repeats its value along the row. A cast keeps the element type it rounds or wraps to
 * in imm_int; arithmetic on integers narrower than i64 is followed by such a cast. A result may
 * share memory with an operand through an identical view: its STORE comes after that LOAD, which is
 * not repeated. rank and inner are at least 1. Pieces and their order of combination never depend
 * on the number of threads. */
enum group_mode { GROUP_MAP, GROUP_ROW, GROUP_TAIL };
enum span { SPAN_ALL, SPAN_ROW };
enum instr_code {
    /* 0 .. OP_COUNT-1: an EW op of ops.def on registers a, b, c */
    INSTR_LOAD = OP_COUNT, /* operand view `slot`; its strides follow the iteration space */
    INSTR_CONST,           /* imm (f32/f64/bool) or imm_int (i64) */
    INSTR_IOTA,            /* start imm + step imm2 * index along iteration axis `axis` */
    INSTR_RANDOM, /* uniform [0,1): Philox4x32-10, key = operand `slot` (i64 scalar), counter =
                     (row-major element index in the iteration space, stream imm_int) */
    INSTR_STORE,  /* register a -> result view `slot`, same iteration space (row values: the
                     view's inner strides are 0 and its inner dims 1; values that are the same for
                     all of a part of a row: those of its last axes, which make up such a part) */
    INSTR_SUM,
    INSTR_MAX,
    INSTR_MIN,
    INSTR_PROD,   /* along the row: SPAN_ALL a -> SPAN_ROW */
    INSTR_COLSUM, /* SPAN_ALL a, summed over rows -> result view `slot` of the row's dims */
    INSTR_COLMAX, /* the largest instead; f32 */
    INSTR_PART_MAX,
    INSTR_PART_MIN, /* of each part of a row: imm_int neighbours, a power of two of
                       PART_LENGTH_MAX that
                       divides the row; SPAN_ALL a -> SPAN_ALL, the same for all of a part */
    INSTR_COUNT
};
enum { PART_LENGTH_MIN = 8, PART_LENGTH_MAX = 32 };
struct group_instr {
    uint16_t code;
    uint8_t dtype;   /* register type: DT_f32, DT_f64, DT_i64 or DT_bool */
    uint8_t span;    /* enum span of the result */
    int32_t a, b, c; /* operand registers or -1 */
    int32_t slot, axis;
    bool flag; /* gelu: approximate; mod: trunc */
    double imm, imm2;
    int64_t imm_int;
};
static inline bool instr_is_column(unsigned code) {
    return code == INSTR_COLSUM || code == INSTR_COLMAX;
}
static inline bool instr_is_part(unsigned code) {
    return code == INSTR_PART_MAX || code == INSTR_PART_MIN;
}
struct plan_group {
    enum group_mode mode;
    int rank, inner;
    int64_t dims[RANK_MAX];
    VEC(struct group_instr) code;
};

/* ---- launches -------------------------------------------------------------------------------- */
// clang-format off
/* Operand and result order of each kind; "view" operands may be strided unless said otherwise.
 *   group             views by slot -> views by slot
 *   matmul            a [B..,M,K], b [B..,K,N] -> [B..,M,N]; equal batch rank, stride 0 repeats; of the two
 *                     matrix axes of each operand and the result, one has stride 1 (or size 1) and the other
 *                     stride >= max(1, its row length). a, b of f32, f64, bf16 or f16, summed in f32 (f64);
 *                     result of the operands' type, or f32. result = scale (attr, default 1) * a b
 *                     + bias + residual, rounded once: attr bias = true: next operand [N], stride 1, of the
 *                     result's type, added to every row; attr residual = true: last operand, of the result's
 *                     shape, type and row order; the result may alias it. With either, rows of the result are
 *                     contiguous and K > 0. attr add = true accumulates into the result. attr tf32 = true: the
 *                     GPU may round f32 operands to TF32. attr scaled = true: a, b of e4m3 or e5m2, not both
 *                     e5m2, rank 2, M, N and K multiples of 16, K with stride 1 and lines without gaps; the next
 *                     two operands are their scales, f32, contiguous: one number each, or M and N numbers; result
 *                     f32, bf16 or f16 = scale (sum of a b) (sa sb) + bias + residual, no bias of f32. But for
 *                     single scales all start 16-byte aligned in their buffers, as do the lines of result and
 *                     residual. attr fast = true: the GPU need not promote partial sums of these to f32 (kernels
 *                     of Hopper keep 14 bits). attr gelu = true, for bf16 or f16 -> the same, rank 2, N
 *                     and K multiples of 8, lines of all three 16-byte aligned, neither residual nor add: the
 *                     result is GELU, tanh form, of the sum, which is not rounded before. What the lowering folds
 *                     into a launch (nothing in the reference mode), each value in between having no other use:
 *                       mul(p, scalar const)          scale
 *                       add(p, row [N])               bias, where the sum has to be in memory (codes: bf16 or f16)
 *                       add(p, r)                     residual, where the sum has to be in memory or has several
 *                                                     uses, and r is in memory anyway
 *                       add(p, q), p and q products   residual, in place of q: accumulates
 *                       cast_f32(p), p bf16 or f16    f32 result, where it has to be in memory
 *                       cast_bf16(.. cast_f32(p) ..)  the forms above, computed in f32 and rounded once
 *                       gelu(p), p of the forms above gelu, but for a residual
 *   conv, conv_input_grad, conv_weight_grad   contiguous; attrs as in ops.def; 1 to 3 spatial axes
 *   max_pool          x contiguous -> y, index contiguous
 *   argmax, cumsum    contiguous, attr axis
 *   gather            x, idx -> y, contiguous, attr axis;  gather_elements likewise
 *   scatter_rows      idx, updates -> y, contiguous, attr axis (y is zeroed first)
 *   scatter_elements  x, idx, updates -> y contiguous, attr axis, add (y may alias x)
 *   attention         q, k, v[, mask expanded to 4-D with stride 0] -> y, lse; last axis has stride 1
 *   attention_grad    q, k, v, y, lse, g[, mask] -> dq, dk, dv; last axis has stride 1
 *   cross_entropy     logits [R,C] (row stride any, last stride 1), labels [R] -> loss [R], lse [R]
 *   sum_squares       x.. contiguous floats -> f32 scalar: the sum of the squares of all elements
 *   cast              x.. contiguous f32 -> y.. contiguous, all bf16 or all f16: each x in y's type
 *   sgd, adam         w, g, then buf or m, v of each parameter in turn (attr count, default 1: how many), then
 *                     lr, step -> the new w and buf or m, v of each; contiguous; g may be f16 or bf16 where w
 *                     is f32; results may alias the operands that they replace; one more operand (f32 scalar),
 *                     if present, multiplies the gradients first
 *   adam8             w, g, m, its amax and k, v, its amax and k of each parameter in turn (attr count), then lr,
 *                     step, the tables of m and v (f32: struct expand_table; of an f32 state: any) -> the new w,
 *                     m, .., v's k of each; otherwise as adam. Codes, amax and k have the same bits everywhere
 * attrs hold every attribute of the op but shapes, defaults filled in. Launches whose results are all empty are
 * left out. Sums over batch or space in fixed order: results do not depend on the number of threads. */
// clang-format on
enum launch_kind {
    LAUNCH_group,
    LAUNCH_matmul,
    LAUNCH_conv,
    LAUNCH_conv_input_grad,
    LAUNCH_conv_weight_grad,
    LAUNCH_max_pool,
    LAUNCH_argmax,
    LAUNCH_cumsum,
    LAUNCH_gather,
    LAUNCH_gather_elements,
    LAUNCH_scatter_rows,
    LAUNCH_scatter_elements,
    LAUNCH_attention,
    LAUNCH_attention_grad,
    LAUNCH_cross_entropy,
    LAUNCH_sum_squares,
    LAUNCH_cast,
    LAUNCH_sgd,
    LAUNCH_adam,
    LAUNCH_adam8,
    LAUNCH_COUNT
};
const char *launch_name(enum launch_kind k);

struct plan_launch {
    enum launch_kind kind;
    group_id group; /* LAUNCH_group */
    uint32_t nin, nout;
    struct plan_view *in, *out; /* in the plan's arena */
    const struct attr *attrs;   /* sorted by key; strings and lists in the plan's arena */
    int nattrs;
    buf_id workspace;            /* {0}: none */
    uint32_t first_call, ncalls; /* CUDA: into plan.calls */
    int64_t work_bytes;          /* CUDA: what the workspace has to hold */
    str_id origin;               /* "; "-separated ONNX node names */
    struct cost cost;
};
int64_t launch_int(const struct plan_launch *l, enum attr_key k, int64_t def);
double launch_float(const struct plan_launch *l, enum attr_key k, double def);
/* The first operand of a matmul that is added: a bias, or the residual. */
uint32_t product_addend(const struct plan_launch *l);
const int64_t *launch_ints(const struct plan_launch *l, enum attr_key k, int *n); /* NULL: absent */

/* ---- CUDA ------------------------------------------------------------------------------------
 * A plan made for a GPU says for each launch which kernels to start, all shapes and strides baked
 * into their configuration, so that a call's arguments are pointers alone: the operands' first
 * elements, the results', the workspace when the launch has one, and the launch's fault word (u64,
 * all ones before a step; the least of position << 24 | index + 2^23 of bad indices, the index cut
 * to 24 bits). A call with `table` gets one argument instead: where these pointers lie in the GPU's
 * memory, one after the other. All calls of a launch get the same arguments and run in order.
 * Kernels with equal text are one kernel. A launch without calls is a library product: its kind
 * says which. */
struct plan_kernel {
    str_id entry;       /* extern "C" name */
    str_id file;        /* embedded source file, e.g. "group.cu" */
    const char *config; /* generated header "config.cuh": #defines */
    const char
        *body;    /* generated header "body.cuh": device functions, "" when the file needs none */
    uint64_t key; /* hash of file name, config and body without its #line lines */
};
struct plan_call {
    uint32_t kernel;                 /* index into plan.kernels */
    uint32_t grid[3], block, shared; /* blocks, threads per block, dynamic shared memory in bytes */
    bool table; /* arguments by a table in memory; the same for all calls of a launch */
};

struct plan {
    struct ctx *ctx;
    struct arena arena;
    struct interner strings;
    str_id name;
    int threads;                     /* workspaces are sized for this many CPU threads */
    VEC(struct plan_buffer) buffers; /* [0] unused */
    VEC(struct plan_group) groups;   /* [0] unused */
    VEC(struct plan_launch) launches;
    int cuda_arch; /* 80, 90, 100: made for that GPU; 0: for the CPU */
    VEC(struct plan_kernel) kernels;
    VEC(struct plan_call) calls;
    int64_t arena_bytes[ARENA_CLASSES];
    /* The first launch that writes any param or state: everything before it can be run, checked and
     * run again without changing what is kept. == launches.n when nothing is written. */
    uint32_t first_update;
};

struct plan *plan_create(struct ctx *c, const char *name);
void plan_destroy(struct plan *p); /* NULL is a no-op */
enum arena_class buffer_arena(enum buffer_kind k);
/* Bytes that a backend allocates for the plan: the arenas and, on a GPU, what comes beside them. */
int64_t plan_bytes(const struct plan *p);
/* Scratch memory that all launches of a GPU's libraries share; 0: the plan has no such launch. */
enum { PLAN_LIBRARY_BYTES = 32 << 20 }; /* what cuBLASLt asks for on Hopper */
int64_t plan_library_bytes(const struct plan *p);
/* Fault words and tables of addresses of a plan for a GPU. */
int64_t plan_word_bytes(const struct plan *p);
bool launch_can_fault(enum launch_kind k); /* has a fault word */
bool launch_takes_table(const struct plan *p, const struct plan_launch *l);
uint32_t launch_pointers(const struct plan_launch *l); /* arguments of its calls */
buf_id plan_find(const struct plan *p, enum buffer_kind kind, const char *name); /* {0}: absent */

/* Checks that every view stays inside its buffer and every buffer inside its arena, that no two
 * buffers live at the same time overlap except declared aliases, that views are legal for their
 * launch kind, that temps are written before they are read, and that group programs are
 * well-formed. */
enum status plan_verify(const struct plan *p, const char *stage) MUST_USE;

/* Text form, with the laws of the graph's: parse(print(p)) == p, printing canonical. */
void plan_print(const struct plan *p, struct buf *out);
enum status plan_parse(struct ctx *c, const char *text, size_t n, const char *file,
                       struct plan **out) MUST_USE;
bool plan_equal(const struct plan *a, const struct plan *b);

/* Where and when the step arena is fullest, for reports. */
struct plan_usage {
    int64_t bytes[USE_COUNT]; /* by use, at the peak of the step */
    int64_t peak_step;        /* bytes of the step arena */
    uint32_t peak_launch;
};
struct plan_usage plan_usage(const struct plan *p);

#endif
