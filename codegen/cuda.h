// SPDX-License-Identifier: Apache-2.0
/* cuda.h - what the files that write CUDA launches share: a launch under construction, its texts
 * and calls. Private to codegen/cuda_*.c. */
#ifndef LATHE_CODEGEN_CUDA_H
#define LATHE_CODEGEN_CUDA_H

#include "base/diag.h"
#include "base/hash.h"
#include "codegen/codegen.h"
#include "ir/plan_work.h"

struct cuda_gen {
    struct plan *p;
    struct plan_launch *l;   /* in work */
    struct arena *scratch;   /* of one launch */
    struct map known;        /* text and entry -> kernel */
    struct buf config, body; /* of the next kernel */
};

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t i64_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t i64_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t round16(int64_t bytes) {
    return (bytes + 15) / 16 * 16;
}

/* ---- texts and calls (cuda_emit.c) -------------------------------------------------------------
 * Config lines go to c->config, device functions to c->body; cuda_call turns them into a kernel (or
 * finds it) and adds a call to the launch. Both texts stay for further entries of the same file
 * until cuda_fresh. */
void cuda_fresh(struct cuda_gen *c);
void cuda_define(struct cuda_gen *c, const char *name, int64_t x);
void cuda_define_text(struct cuda_gen *c, const char *name, const char *text);
void cuda_define_float(struct cuda_gen *c, const char *name, double x); /* exact, as a double */
/* PARAMS and ARGS from the launch's views; the workspace pointer when `work_bytes` is not 0. */
void cuda_define_params(struct cuda_gen *c);
void cuda_origin_line(struct cuda_gen *c); /* #line with the ONNX nodes, into c->body */
enum status cuda_call(struct cuda_gen *c, const char *file, const char *entry, int64_t gx,
                      int64_t gy, int64_t gz, int64_t block, int64_t shared) MUST_USE;
enum status cuda_unsupported(struct cuda_gen *c, const char *what) MUST_USE;
const char *cuda_memory_type(enum dtype t);   /* "float", "bf16", .. */
const char *cuda_register_type(enum dtype t); /* float, double, i64 or bool */
const char *cuda_index_type(int64_t largest); /* u32 or u64, for numbers up to `largest` */
/* A literal of a register type that reads back to the same bits. */
void cuda_literal(struct buf *out, enum dtype reg, double x, int64_t ix);

/* ---- one function per kind of launch ----------------------------------------------------------
 */
enum status cuda_group(struct cuda_gen *c) MUST_USE;
/* Whether a group, laid out as `y`, is a transpose (cuda_transpose.c), and its launch. */
bool cuda_transposes(const struct cuda_gen *c, const struct plan_group *g,
                     const struct group_layout *y);
enum status cuda_transpose(struct cuda_gen *c, const struct group_layout *y) MUST_USE;
enum status cuda_conv(struct cuda_gen *c) MUST_USE;
enum status cuda_max_pool(struct cuda_gen *c) MUST_USE;
enum status cuda_along_axis(struct cuda_gen *c) MUST_USE; /* argmax, cumsum */
enum status cuda_gather(struct cuda_gen *c) MUST_USE;
enum status cuda_scatter_rows(struct cuda_gen *c) MUST_USE;
enum status cuda_scatter_elements(struct cuda_gen *c) MUST_USE;
enum status cuda_attention(struct cuda_gen *c) MUST_USE; /* and its gradient */
enum status cuda_cross_entropy(struct cuda_gen *c) MUST_USE;
enum status cuda_optimizer(struct cuda_gen *c) MUST_USE;
enum status cuda_adam8(struct cuda_gen *c) MUST_USE;
enum status cuda_sum_squares(struct cuda_gen *c) MUST_USE;
enum status cuda_casts(struct cuda_gen *c) MUST_USE;

#endif
