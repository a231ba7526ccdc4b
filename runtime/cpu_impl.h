// SPDX-License-Identifier: Apache-2.0
/* cpu_impl.h - what the files of the CPU backend share: the executor, view access, the fault record
 * of parallel kernels, and one entry per launch kind. Private to runtime/cpu*.c. */
#ifndef LATHE_RUNTIME_CPU_IMPL_H
#define LATHE_RUNTIME_CPU_IMPL_H

#include "base/diag.h"
#include "ir/plan_work.h"
#include "runtime/cpu.h"
#include "runtime/finite.h"
#include <math.h>
#include <stdatomic.h>

struct cpu_exec {
    struct ctx *ctx;
    struct ctx own; /* counts the arenas, and only them */
    const struct plan *plan;
    struct pool *pool;
    char *memory[ARENA_CLASSES];
    struct arena arena;              /* bookkeeping below */
    struct group_program **programs; /* per launch; NULL for other kinds */
    double *seconds;
    bool profile;
};

/* One launch under way. Kernels on worker threads must not report or unwind, so what goes wrong is
 * noted here: the lowest position wins, whatever the order of the threads. */
struct cpu_job {
    struct cpu_exec *x;
    const struct plan_launch *l;
    const struct group_program *program; /* of a group */
    char *work;                          /* workspace */
    atomic_int_fast64_t fault;           /* position of the first bad element, INT64_MAX: none */
};

static inline void *view_at(const struct cpu_exec *x, const struct plan_view *v) {
    const struct plan_buffer *b = &x->plan->buffers.at[v->buffer.i];
    return x->memory[buffer_arena(b->kind)] + b->offset + v->offset * (int64_t)dtype_size(v->dtype);
}
static inline void *job_in(const struct cpu_job *j, uint32_t k) {
    return view_at(j->x, &j->l->in[k]);
}
static inline void *job_out(const struct cpu_job *j, uint32_t k) {
    return view_at(j->x, &j->l->out[k]);
}
void job_fault(struct cpu_job *j, int64_t position);
/* The error for a fault at `label`, which is none of the classes and not `ignore`. */
enum status job_label_fault(struct cpu_job *j, int64_t classes, int64_t ignore, int64_t label);
const char *job_origin(const struct cpu_job *j);
/* ST_UNSUPPORTED, naming the launch and what it cannot do. */
enum status job_unsupported(struct cpu_job *j, const char *what) MUST_USE;

/* Elements before, along and after `axis`. */
struct axis_split {
    int64_t outer, n, inner;
};
struct axis_split split_axis(const struct plan_view *v, int64_t axis);

static inline int64_t i64_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t i64_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Index `i` of i64 or i32 memory. */
static inline int64_t index_at(enum dtype t, const void *p, int64_t i) {
    return t == DT_i32 ? ((const int32_t *)p)[i] : ((const int64_t *)p)[i];
}

/* C[m,n] = alpha*A*B + beta*C on one thread; A and B row-major, or transposed when ta, tb. */
void gemm_f32(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
              int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void gemm_f64(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double *a,
              int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);
void gemm_setup(void); /* no threads of BLAS's own */

/* Everything about a group that can be known before data is there; ST_UNSUPPORTED when an
 * instruction has no kernel. Lives in x->arena. */
struct group_program;
enum status group_prepare(struct cpu_exec *x, const struct plan_launch *l,
                          struct group_program **out) MUST_USE;
enum status cpu_group(struct cpu_job *j) MUST_USE;
enum status cpu_matmul(struct cpu_job *j) MUST_USE;
enum status cpu_conv(struct cpu_job *j) MUST_USE;
enum status cpu_conv_input_grad(struct cpu_job *j) MUST_USE;
enum status cpu_conv_weight_grad(struct cpu_job *j) MUST_USE;
enum status cpu_max_pool(struct cpu_job *j) MUST_USE;
enum status cpu_argmax(struct cpu_job *j) MUST_USE;
enum status cpu_cumsum(struct cpu_job *j) MUST_USE;
enum status cpu_gather(struct cpu_job *j) MUST_USE;
enum status cpu_gather_elements(struct cpu_job *j) MUST_USE;
enum status cpu_scatter_rows(struct cpu_job *j) MUST_USE;
enum status cpu_scatter_elements(struct cpu_job *j) MUST_USE;
enum status cpu_attention(struct cpu_job *j) MUST_USE;
enum status cpu_attention_grad(struct cpu_job *j) MUST_USE;
enum status cpu_cross_entropy(struct cpu_job *j) MUST_USE;
enum status cpu_sum_squares(struct cpu_job *j) MUST_USE;
enum status cpu_casts(struct cpu_job *j) MUST_USE;
enum status cpu_sgd(struct cpu_job *j) MUST_USE;
enum status cpu_adam(struct cpu_job *j) MUST_USE;
enum status cpu_adam8(struct cpu_job *j) MUST_USE;

/* What Adam's m or v lacks after `step` steps: 1 - beta^step. Nothing is taken out in step 0. */
static inline double adam_correction(double beta, double step) {
    return step > 0 ? 1.0 - pow(beta, step) : 1.0;
}

/* Every float result without NaN or infinity that its operands did not have. */
struct finite_kinds cpu_scan_operands(struct cpu_job *j);
enum status cpu_check_results(struct cpu_job *j, struct finite_kinds operands) MUST_USE;

#endif
