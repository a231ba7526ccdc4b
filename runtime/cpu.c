// SPDX-License-Identifier: Apache-2.0
/* cpu.c - the executor: memory, initial values, the run loop and its checks. What a launch computes
 * is in the other cpu_*.c. */
#include "base/sys.h"
#include "runtime/cpu_impl.h"
#include <math.h>
#include <string.h>

/* ---- creation ---------------------------------------------------------------------------------
 */

static void free_memory(struct cpu_exec *x) {
    for (int i = 0; i < ARENA_CLASSES; i++) {
        ctx_free(&x->own, x->memory[i]);
        x->memory[i] = NULL;
    }
}

static void allocate(struct cpu_exec *x) {
    for (int i = 0; i < ARENA_CLASSES; i++) {
        size_t bytes = (size_t)x->plan->arena_bytes[i];
        if (!bytes) continue;
        x->memory[i] = ctx_try_alloc(&x->own, bytes);
        if (!x->memory[i]) ctx_out_of_memory(x->ctx, bytes);
        sys_large_pages(x->memory[i], bytes); /* touching gigabytes page by page takes seconds */
        memset(x->memory[i], 0, bytes);
    }
}

static enum status fill_buffer(struct cpu_exec *x, const struct plan_buffer *b) {
    char *to = x->memory[buffer_arena(b->kind)];
    if (!b->bytes) return ST_OK;
    to += b->offset;
    if (b->init.bytes) {
        const char *name = interned(&x->plan->strings, b->name);
        if (!b->init.data || b->init.bytes != (size_t)b->bytes)
            return diag_error(
                x->ctx, ST_USAGE, name,
                "expected %lld bytes of initial value, found %s; a plan read from text "
                "cannot be run without its weights",
                (long long)b->bytes, b->init.data ? "another size" : "only a hash");
        memcpy(to, b->init.data, b->init.bytes);
        return ST_OK;
    }
    if (b->fill == 0) return ST_OK; /* memory starts as zeros */
    int64_t step = (int64_t)dtype_size(b->type.dtype);
    for (int64_t at = 0; at + step <= b->bytes; at += step)
        dtype_store(b->type.dtype, to + at, b->fill);
    return ST_OK;
}

static enum status check_workspace(struct cpu_exec *x, const struct plan_launch *l) {
    int64_t need = launch_workspace(x->plan, l);
    int64_t have = l->workspace.i ? x->plan->buffers.at[l->workspace.i].bytes : 0;
    if (have >= need) return ST_OK;
    return diag_error(
        x->ctx, ST_USAGE, interned(&x->plan->strings, l->origin),
        "expected a workspace of %lld bytes for this %s, found %lld; the plan was made "
        "for other shapes or fewer threads",
        (long long)need, launch_name(l->kind), (long long)have);
}

static enum status prepare(struct cpu_exec *x) {
    const struct plan *p = x->plan;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (b->kind == BUF_CONST || b->kind == BUF_PARAM || b->kind == BUF_STATE)
            TRY(fill_buffer(x, b));
    }
    x->programs = ARENA_ARRAY(&x->arena, struct group_program *, p->launches.n + 1);
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        TRY(check_workspace(x, l));
        if (l->kind == LAUNCH_group) TRY(group_prepare(x, l, &x->programs[i]));
    }
    x->seconds = ARENA_ARRAY(&x->arena, double, p->launches.n + 1);
    return ST_OK;
}

enum status cpu_create(struct ctx *c, const struct plan *p, struct pool *pool,
                       struct cpu_exec **out) {
    *out = NULL;
    if (pool_threads(pool) > (p->threads > 0 ? p->threads : 1))
        return diag_error(c, ST_USAGE, "", "expected at most %d threads for this plan, found %d",
                          p->threads, pool_threads(pool));
    gemm_setup();
    struct cpu_exec *const x = ctx_alloc(c, sizeof *x);
    *x = (struct cpu_exec){.ctx = c, .own = *c, .plan = p, .pool = pool};
    x->own.bytes_in_use = x->own.bytes_peak = 0;
    arena_init(&x->arena, c);
    jmp_buf here, *const outer = c->landing;
    if (setjmp(here)) {
        c->landing = outer;
        cpu_destroy(x);
        longjmp(*outer, 1);
    }
    if (outer) c->landing = &here;
    allocate(x);
    enum status s = prepare(x);
    c->landing = outer;
    if (s != ST_OK)
        cpu_destroy(x);
    else
        *out = x;
    return s;
}

void cpu_destroy(struct cpu_exec *x) {
    if (!x) return;
    free_memory(x);
    arena_reset(&x->arena);
    ctx_free(x->ctx, x);
}

void *cpu_buffer_at(struct cpu_exec *x, buf_id b) {
    const struct plan_buffer *k = &x->plan->buffers.at[b.i];
    char *base = x->memory[buffer_arena(k->kind)];
    return base ? base + k->offset : NULL;
}

void *cpu_buffer(struct cpu_exec *x, enum buffer_kind kind, const char *name) {
    buf_id b = plan_find(x->plan, kind, name);
    return b.i ? cpu_buffer_at(x, b) : NULL;
}

size_t cpu_bytes(const struct cpu_exec *x) {
    return x->own.bytes_in_use;
}

const double *cpu_profile(struct cpu_exec *x, bool enable) {
    if (enable && !x->profile) memset(x->seconds, 0, x->plan->launches.n * sizeof *x->seconds);
    x->profile = enable;
    return x->seconds;
}

/* ---- what kernels share ------------------------------------------------------------------------
 */

void job_fault(struct cpu_job *j, int64_t position) {
    int_fast64_t seen = atomic_load_explicit(&j->fault, memory_order_relaxed);
    while (position < seen && !atomic_compare_exchange_weak(&j->fault, &seen, position)) {
    }
}

enum status job_label_fault(struct cpu_job *j, int64_t classes, int64_t ignore, int64_t label) {
    return diag_error(j->x->ctx, ST_DATA, job_origin(j),
                      "expected a label in [0, %lld) or %lld (ignored), found %lld at position "
                      "%lld; check the data against the model's classes",
                      (long long)classes, (long long)ignore, (long long)label,
                      (long long)atomic_load(&j->fault));
}

const char *job_origin(const struct cpu_job *j) {
    return interned(&j->x->plan->strings, j->l->origin);
}

enum status job_unsupported(struct cpu_job *j, const char *what) {
    return diag_error(j->x->ctx, ST_UNSUPPORTED, job_origin(j),
                      "the CPU backend cannot run this %s: %s", launch_name(j->l->kind), what);
}

struct axis_split split_axis(const struct plan_view *v, int64_t axis) {
    struct axis_split s = {1, 1, 1};
    for (int i = 0; i < v->rank; i++) {
        if (i < axis)
            s.outer *= v->dims[i];
        else if (i == axis)
            s.n = v->dims[i];
        else
            s.inner *= v->dims[i];
    }
    return s;
}

/* ---- running -----------------------------------------------------------------------------------
 */

static enum status dispatch(struct cpu_job *j) {
    switch (j->l->kind) {
    case LAUNCH_group: return cpu_group(j);
    case LAUNCH_matmul: return cpu_matmul(j);
    case LAUNCH_conv: return cpu_conv(j);
    case LAUNCH_conv_input_grad: return cpu_conv_input_grad(j);
    case LAUNCH_conv_weight_grad: return cpu_conv_weight_grad(j);
    case LAUNCH_max_pool: return cpu_max_pool(j);
    case LAUNCH_argmax: return cpu_argmax(j);
    case LAUNCH_cumsum: return cpu_cumsum(j);
    case LAUNCH_gather: return cpu_gather(j);
    case LAUNCH_gather_elements: return cpu_gather_elements(j);
    case LAUNCH_scatter_rows: return cpu_scatter_rows(j);
    case LAUNCH_scatter_elements: return cpu_scatter_elements(j);
    case LAUNCH_attention: return cpu_attention(j);
    case LAUNCH_attention_grad: return cpu_attention_grad(j);
    case LAUNCH_cross_entropy: return cpu_cross_entropy(j);
    case LAUNCH_sum_squares: return cpu_sum_squares(j);
    case LAUNCH_cast: return cpu_casts(j);
    case LAUNCH_sgd: return cpu_sgd(j);
    case LAUNCH_adam: return cpu_adam(j);
    case LAUNCH_adam8: return cpu_adam8(j);
    case LAUNCH_COUNT: break;
    }
    ctx_bug(j->x->ctx, __FILE__, __LINE__, "a known launch kind");
}

enum status cpu_run(struct cpu_exec *x, uint32_t from, uint32_t to, bool check) {
    CHECK(x->ctx, from <= to && to <= x->plan->launches.n);
    for (uint32_t i = from; i < to; i++) {
        struct cpu_job j = {.x = x, .l = &x->plan->launches.at[i], .program = x->programs[i]};
        if (j.l->workspace.i) j.work = cpu_buffer_at(x, j.l->workspace);
        atomic_init(&j.fault, INT64_MAX);
        struct finite_kinds before = {false, false};
        if (check) before = cpu_scan_operands(&j);
        double start = x->profile ? sys_seconds() : 0;
        TRY(dispatch(&j));
        if (x->profile) x->seconds[i] += sys_seconds() - start;
        if (check) TRY(cpu_check_results(&j, before));
    }
    return ST_OK;
}
