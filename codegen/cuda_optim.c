// SPDX-License-Identifier: Apache-2.0
/* cuda_optim.c - launches over many tensors at once: optimizers, casts and the sum of squares.
 * Blocks take a fixed number of elements of one tensor; which, says a table in the kernel's text.
 */
#include "codegen/cuda.h"
#include <inttypes.h>
#include <math.h>

/* TENSORS_MAX: tables fit 64 KiB of constants. CHUNK: elements of a block. */
enum { THREADS = 256, TENSORS_MAX = 4096, CHUNK = 8192, PARTS_MAX = 8192 };

/* Element types as optimizer.cu and squares.cu number them. */
static const enum dtype forms[] = {DT_f32, DT_f64, DT_bf16, DT_f16, DT_e4m3, DT_e5m2, DT_e8m0};
enum { NFORMS = sizeof forms / sizeof *forms, NOT_ALIGNED = 8 };

static int form_of(enum dtype t) {
    for (int k = 0; k < NFORMS; k++)
        if (forms[k] == t) return k;
    return -1;
}

static bool is_aligned(const struct plan_view *v) {
    return v->offset * (int64_t)dtype_size(v->dtype) % 16 == 0;
}

/* Tables over tensors; tensor k is operand `each` * k, its form that of the operand `typed` behind
 * it. Gives the number of blocks. */
static int64_t write_tables(struct cuda_gen *c, uint32_t n, uint32_t each, uint32_t typed,
                            uint32_t kept, int64_t chunk) {
    const struct plan_launch *l = c->l;
    int64_t block = 0;
    unsigned seen = 0;
    cuda_origin_line(c);
    buf_printf(&c->body, "__constant__ int first_block[%u] = {", n + 1);
    for (uint32_t k = 0; k <= n; k++) {
        buf_printf(&c->body, "%s%" PRId64, k % 16 ? ", " : k ? ",\n" : "\n", block);
        if (k < n) block += ceil_div(view_count(&l->in[k * each]), chunk);
    }
    buf_printf(&c->body, "};\n__constant__ i64 elements[%u] = {", n);
    for (uint32_t k = 0; k < n; k++)
        buf_printf(&c->body, "%s%" PRId64,
                   k % 16 ? ", "
                   : k    ? ",\n"
                          : "\n",
                   view_count(&l->in[k * each]));
    buf_printf(&c->body, "};\n__constant__ unsigned char forms[%u] = {", n);
    for (uint32_t k = 0; k < n; k++) {
        int form = form_of(l->in[k * each + typed].dtype);
        bool aligned = true;
        for (uint32_t j = 0; j < each; j++) aligned &= is_aligned(&l->in[k * each + j]);
        for (uint32_t j = 0; j < kept; j++) aligned &= is_aligned(&l->out[k * kept + j]);
        seen |= 1u << form;
        buf_printf(&c->body, "%s%d",
                   k % 16 ? ", "
                   : k    ? ",\n"
                          : "\n",
                   form + (aligned ? 0 : NOT_ALIGNED));
    }
    buf_puts(&c->body, "};\n");
    cuda_define(c, "TENSORS", n);
    cuda_define(c, "CHUNK", chunk);
    cuda_define(c, "FORMS", seen);
    return block;
}

static enum status table_call(struct cuda_gen *c, const char *file, const char *entry,
                              int64_t blocks, int64_t threads) {
    TRY(cuda_call(c, file, entry, blocks, 1, 1, threads, 0));
    c->p->calls.at[c->p->calls.n - 1].table = true;
    return ST_OK;
}

/* ---- optimizers --------------------------------------------------------------------------------
 */
static enum status check_types(struct cuda_gen *c, const struct optimizer_form *f) {
    const struct plan_launch *l = c->l;
    enum dtype t = l->in[0].dtype;
    for (uint32_t k = 0; k < f->lr; k++) {
        enum dtype have = l->in[k].dtype;
        bool small = k % f->each == 1 && t == DT_f32 && (have == DT_bf16 || have == DT_f16);
        if (!small && (have != t || (t != DT_f32 && t != DT_f64)))
            return cuda_unsupported(c, "weights and states must all be f32 or all f64, gradients "
                                       "likewise or, with f32, bf16 or f16");
    }
    if (l->nin > f->lr + 2 && l->in[f->lr + 2].dtype != DT_f32)
        return cuda_unsupported(c, "the gradient's factor must be f32");
    if (f->count > TENSORS_MAX)
        return cuda_unsupported(c, "more than 4096 parameters in one launch");
    return ST_OK;
}

enum status cuda_optimizer(struct cuda_gen *c) {
    const struct plan_launch *l = c->l;
    struct optimizer_form f = plan_optimizer(l);
    bool is_adam = l->kind == LAUNCH_adam;
    TRY(check_types(c, &f));
    int64_t blocks = write_tables(c, f.count, f.each, 1, f.kept, CHUNK);
    cuda_define_text(c, "REAL", cuda_memory_type(l->in[0].dtype));
    cuda_define(c, "ADAM", is_adam);
    cuda_define(c, "FACTOR", l->nin > f.lr + 2);
    cuda_define_float(c, "WEIGHT_DECAY", launch_float(l, ATTR_weight_decay, 0.0));
    if (is_adam) {
        cuda_define_float(c, "BETA1", launch_float(l, ATTR_beta1, 0.9));
        cuda_define_float(c, "BETA2", launch_float(l, ATTR_beta2, 0.999));
        cuda_define_float(c, "EPS", launch_float(l, ATTR_eps, 1e-8));
        cuda_define(c, "DECOUPLED", launch_int(l, ATTR_decoupled, 1) != 0);
        cuda_define(c, "EPS_HAT", launch_int(l, ATTR_eps_hat, 0) != 0);
    } else {
        cuda_define_float(c, "MOMENTUM", launch_float(l, ATTR_momentum, 0.0));
        cuda_define_float(c, "DAMPENING", launch_float(l, ATTR_dampening, 0.0));
        cuda_define(c, "NESTEROV", launch_int(l, ATTR_nesterov, 0) != 0);
    }
    cuda_define_text(c, "LR", cuda_memory_type(l->in[f.lr].dtype));
    cuda_define_text(c, "STEP", cuda_memory_type(l->in[f.lr + 1].dtype));
    if (blocks == 0) return ST_OK;
    return table_call(c, "optimizer.cu", is_adam ? "adam" : "sgd", blocks, THREADS);
}

/* ---- 8-bit states ------------------------------------------------------------------------------
 */
static int small_form(enum dtype t) {
    return t == DT_e4m3 ? 1 : t == DT_e5m2 ? 2 : 0;
}

static void define_range(struct cuda_gen *c, const char *range, const char *plain, double x) {
    cuda_define_float(c, range, x > 0 ? log2(x) : 1.0);
    cuda_define(c, plain, x == 0);
}

enum status cuda_adam8(struct cuda_gen *c) {
    enum { CHUNK8 = 2 * CHUNK, THREADS8 = 128 };
    const struct plan_launch *l = c->l;
    struct optimizer_form f = plan_optimizer(l);
    if (f.count > TENSORS_MAX)
        return cuda_unsupported(c, "more than 4096 parameters in one launch");
    if (l->nin > f.factor && l->in[f.factor].dtype != DT_f32)
        return cuda_unsupported(c, "the gradient's factor must be f32");
    int64_t blocks = write_tables(c, f.count, f.each, 1, f.kept, CHUNK8);
    cuda_define(c, "GROUP", launch_int(l, ATTR_group, 128));
    cuda_define(c, "M_FORM", small_form(l->in[2].dtype));
    cuda_define(c, "V_FORM", small_form(l->in[5].dtype));
    define_range(c, "M_RANGE", "M_PLAIN", launch_float(l, ATTR_m_range, 0));
    define_range(c, "V_RANGE", "V_PLAIN", launch_float(l, ATTR_v_range, 0));
    cuda_define(c, "K_MIN", launch_int(l, ATTR_contract, 0) ? 1 : 16);
    cuda_define(c, "STOCHASTIC", launch_int(l, ATTR_stochastic, 0) != 0);
    cuda_define(c, "FACTOR", l->nin > f.factor);
    cuda_define_float(c, "WEIGHT_DECAY", launch_float(l, ATTR_weight_decay, 0.0));
    cuda_define_float(c, "BETA1", launch_float(l, ATTR_beta1, 0.9));
    cuda_define_float(c, "BETA2", launch_float(l, ATTR_beta2, 0.999));
    cuda_define_float(c, "EPS", launch_float(l, ATTR_eps, 1e-8));
    cuda_define(c, "DECOUPLED", launch_int(l, ATTR_decoupled, 1) != 0);
    cuda_define(c, "EPS_HAT", launch_int(l, ATTR_eps_hat, 0) != 0);
    cuda_define_text(c, "LR", cuda_memory_type(l->in[f.lr].dtype));
    cuda_define_text(c, "STEP", cuda_memory_type(l->in[f.lr + 1].dtype));
    if (blocks == 0) return ST_OK;
    return table_call(c, "adam8.cu", "adam8", blocks, THREADS8);
}

/* ---- casts -------------------------------------------------------------------------------------
 */
enum status cuda_casts(struct cuda_gen *c) {
    const struct plan_launch *l = c->l;
    if (l->nin > TENSORS_MAX) return cuda_unsupported(c, "more than 4096 operands");
    int64_t blocks = write_tables(c, l->nin, 1, 0, 1, CHUNK);
    cuda_define_text(c, "SMALL", cuda_memory_type(l->out[0].dtype));
    if (blocks == 0) return ST_OK;
    return table_call(c, "cast.cu", "casts", blocks, THREADS);
}

/* ---- the sum of squares ------------------------------------------------------------------------
 * A block leaves the sum of its chunk in the workspace; one block adds these up. */
enum status cuda_sum_squares(struct cuda_gen *c) {
    const struct plan_launch *l = c->l;
    int64_t total = 0;
    if (l->nin > TENSORS_MAX) return cuda_unsupported(c, "more than 4096 operands");
    for (uint32_t k = 0; k < l->nin; k++) {
        if (form_of(l->in[k].dtype) < 0) return cuda_unsupported(c, "operands must be floats");
        total += view_count(&l->in[k]);
    }
    int64_t chunk = ceil_div(i64_max(ceil_div(total, PARTS_MAX), 1), 2 * CHUNK) * 2 * CHUNK;
    int64_t blocks = write_tables(c, l->nin, 1, 0, 0, chunk);
    c->l->work_bytes = round16(i64_max(blocks, 1) * (int64_t)sizeof(double));
    cuda_define(c, "BLOCKS", blocks);
    if (blocks) TRY(table_call(c, "squares.cu", "squares", blocks, THREADS));
    return table_call(c, "squares.cu", "squares_join", 1, 1024);
}
