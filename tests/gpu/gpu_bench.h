// SPDX-License-Identifier: Apache-2.0
/* gpu_bench.h - what gpu_test.c and its parts share: the state of a worker process, a plan run on
 * the CPU and on the GPU, and the comparison of what both give. */
#ifndef LATHE_TESTS_GPU_BENCH_H
#define LATHE_TESTS_GPU_BENCH_H

#include <check.h> /* its names only: the header below expects them */
#undef ck_assert_msg
#undef ck_assert_int_eq
#undef ck_assert_ptr_ne
#define ck_assert_msg(cond, ...)                                                                   \
    do {                                                                                           \
        if (!(cond)) give_up(__VA_ARGS__);                                                         \
    } while (0)
#define ck_assert_int_eq(a, b) ck_assert_msg((a) == (b), "%s", #a " == " #b)
#define ck_assert_ptr_ne(a, b) ck_assert_msg((a) != (b), "%s", #a " != " #b)
static void give_up(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#include "base/sys.h"
#include "codegen/codegen.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum verdict { PASS, FAIL, SKIP };
enum { RUNS = 3 };

/* Shared by the parent and one worker: what it does next and how it went. */
struct progress {
    int next, step, end; /* items next, next + step, .. below end */
    int passed, failed, skipped;
    unsigned compiled, cached;
    pid_t pid;
    char name[256];
};
static struct progress *now; /* in a worker: its own */

/* What one process works with. */
struct bench {
    bool unchecked; /* the graph makes a NaN of its own: no search for the launch that does */
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    struct cuda *gpu;
    int arch;
    char log[4096];
};

static void give_up(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("    ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
    _exit(4);
}

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    struct bench *b = user;
    size_t n = strlen(b->log);
    (void)code;
    if (sev == SEV_ERROR) snprintf(b->log + n, sizeof b->log - n, "%s: %s\n", origin, message);
}

static const char *kernel_source(void *user, const char *file, size_t *size) {
    (void)user;
    for (int i = 0; kernel_file_at(i); i++) {
        if (strcmp(kernel_file_at(i)->name, file) != 0) continue;
        *size = kernel_file_at(i)->size;
        return kernel_file_at(i)->text;
    }
    return NULL;
}

/* ---- one plan on both --------------------------------------------------------------------------
 */
/* Outputs of all runs, one after the other. */
struct results {
    char *at;
    size_t bytes;
};
static struct results no_results(struct bench *b, const struct plan *p) {
    struct results r = {NULL, 0};
    for (uint32_t i = 1; i < p->buffers.n; i++)
        if (p->buffers.at[i].kind == BUF_OUTPUT) r.bytes += (size_t)p->buffers.at[i].bytes;
    r.at = arena_alloc(&b->arena, r.bytes);
    return r;
}

static bool failed(struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool failed(struct bench *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("  FAILED %s: ", now->name);
    vprintf(fmt, ap);
    printf("%s%s", *b->log ? ": " : "\n", b->log);
    va_end(ap);
    return false;
}

static void collect_cpu(struct cpu_exec *x, const struct plan *p, struct results *r) {
    char *to = r->at;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_OUTPUT || !k->bytes) continue;
        memcpy(to, cpu_buffer_at(x, (buf_id){i}), (size_t)k->bytes);
        to += k->bytes;
    }
}

static enum status run_cpu(struct bench *b, const struct plan *p, struct results *r) {
    struct pool *pool = pool_create(&b->ctx, 2);
    struct cpu_exec *x = NULL;
    enum status st = cpu_create(&b->ctx, p, pool, &x);
    if (st == ST_OK) st = cpu_run(x, 0, p->launches.n, false);
    *r = no_results(b, p);
    if (st == ST_OK) collect_cpu(x, p, r);
    cpu_destroy(x);
    pool_destroy(pool);
    return st;
}

/* Alone, recorded, replayed; `same` tells whether all gave the same bits. */
static enum status run_gpu(struct bench *b, const struct plan *p, struct results *r, bool *same) {
    struct cuda_exec *x = NULL;
    enum status st = cuda_create(b->gpu, p, kernel_source, NULL, &x);
    *same = true;
    *r = no_results(b, p);
    for (int run = 0; run < RUNS && st == ST_OK; run++) {
        struct results one = no_results(b, p);
        char *to = one.at;
        st = cuda_run(x, 0, p->launches.n, run == RUNS - 1 && !b->unchecked);
        for (uint32_t i = 1; i < p->buffers.n && st == ST_OK; i++) {
            const struct plan_buffer *k = &p->buffers.at[i];
            if (k->kind != BUF_OUTPUT || !k->bytes) continue;
            memcpy(to, cuda_host_buffer_at(x, (buf_id){i}), (size_t)k->bytes);
            to += k->bytes;
        }
        if (run) *same = *same && memcmp(one.at, r->at, r->bytes) == 0;
        memcpy(r->at, one.at, r->bytes);
    }
    cuda_destroy(x);
    return st;
}

static bool same_values(struct bench *b, const struct plan *p, const struct results *want,
                        const struct results *got, double tolerance) {
    const char *w = want->at, *g = got->at;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_OUTPUT) continue;
        size_t elem = dtype_size(k->type.dtype);
        bool exact = !dtype_is_float(k->type.dtype);
        double scale = 0.1;
        for (int64_t at = 0; at < k->bytes; at += (int64_t)elem)
            scale = fmax(scale, fabs(dtype_load(k->type.dtype, w + at)));
        for (int64_t at = 0; at < k->bytes; at += (int64_t)elem) {
            double x = dtype_load(k->type.dtype, w + at), y = dtype_load(k->type.dtype, g + at);
            if (exact ? memcmp(w + at, g + at, elem) == 0 : fabs(x - y) <= tolerance * scale)
                continue;
            if (x == y || (x != x && y != y)) continue;
            return failed(b, "%s[%lld] is %.9g, %.9g on the CPU", interned(&p->strings, k->name),
                          (long long)(at / (int64_t)elem), y, x);
        }
        w += k->bytes, g += k->bytes;
    }
    return true;
}

#endif
