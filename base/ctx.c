// SPDX-License-Identifier: Apache-2.0
/* ctx.c - the allocator front, the two unwinds and checked size arithmetic. The only file that
 * calls malloc and free. Knows nothing of arenas: it hands out and counts single blocks. */
#include "base/ctx.h"
#include "base/diag.h"
#include <stdint.h>
#include <stdlib.h>

enum { BLOCK_ALIGN = 64 };

/* Sits right before the aligned block; `raw` is what the allocator returned. */
struct block_header {
    void *raw;
    size_t size;
};

static void *default_alloc(void *user, size_t size) {
    (void)user;
    return malloc(size);
}

static void default_release(void *user, void *ptr) {
    (void)user;
    free(ptr);
}

static void drop_report(void *user, enum severity sev, enum status code, const char *origin,
                        const char *message) {
    (void)user, (void)sev, (void)code, (void)origin, (void)message;
}

void ctx_init(struct ctx *c) {
    *c = (struct ctx){.alloc = default_alloc, .release = default_release, .report = drop_report};
}

void *ctx_try_alloc(struct ctx *c, size_t size) {
    CHECK(c, size > 0);
    size_t total;
    if (!size_add(size, sizeof(struct block_header) + BLOCK_ALIGN - 1, &total)) return NULL;
    char *raw = c->alloc(c->alloc_user, total);
    if (!raw) return NULL;
    /* Stepping from `raw` keeps the pointer's provenance, which sanitizers and compilers track. */
    uintptr_t first = (uintptr_t)raw + sizeof(struct block_header);
    size_t pad = (size_t)(-first & (BLOCK_ALIGN - 1));
    char *block = raw + sizeof(struct block_header) + pad;
    struct block_header *h = (struct block_header *)(void *)block - 1;
    *h = (struct block_header){raw, size};
    c->bytes_in_use += size;
    if (c->bytes_in_use > c->bytes_peak) c->bytes_peak = c->bytes_in_use;
    return block;
}

void *ctx_alloc(struct ctx *c, size_t size) {
    void *p = ctx_try_alloc(c, size);
    if (!p) ctx_out_of_memory(c, size);
    return p;
}

void ctx_free(struct ctx *c, void *ptr) {
    if (!ptr) return;
    struct block_header h = ((struct block_header *)ptr)[-1];
    CHECK(c, h.size <= c->bytes_in_use);
    c->bytes_in_use -= h.size;
    c->release(c->alloc_user, h.raw);
}

static _Noreturn void unwind(struct ctx *c, enum status why) {
    c->unwound = why;
    if (!c->landing) __builtin_trap(); /* nowhere to go: a caller broke the contract of ctx.h */
    longjmp(*c->landing, 1);
}

void ctx_bug(struct ctx *c, const char *file, int line, const char *what) {
    diag_error(c, ST_INTERNAL, "",
               "internal error at %s:%d: expected %s; this is a bug in Lathe, please report it",
               file, line, what);
    unwind(c, ST_INTERNAL);
}

void ctx_out_of_memory(struct ctx *c, size_t size) {
    diag_error(
        c, ST_OUT_OF_MEMORY, "",
        "out of memory: %zu bytes were refused with %zu bytes in use; use a smaller model or "
        "batch, or free memory",
        size, c->bytes_in_use);
    unwind(c, ST_OUT_OF_MEMORY);
}

bool size_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

bool size_add(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
