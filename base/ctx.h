// SPDX-License-Identifier: Apache-2.0
/* ctx.h - the context that every library call works in: allocator, diagnostics sink and the landing
 * point for the two faults that unwind. Not a place for tensors, graphs or options.
 *
 * Errors come in three kinds. A user error is a status plus a diagnostic. Running out of memory and
 * a broken invariant unwind by longjmp to `ctx->landing`, which an API entry point (or a test)
 * sets; this leaks nothing because all memory of a call hangs off arenas, and the few other
 * resources are registered with arena_defer. A context is used by one thread at a time; worker
 * threads never allocate from it and never unwind. */
#ifndef LATHE_BASE_CTX_H
#define LATHE_BASE_CTX_H

#include "base/status.h"
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>

enum severity { SEV_NOTE, SEV_WARNING, SEV_ERROR };

struct ctx {
    void *(*alloc)(void *user, size_t size); /* like malloc; NULL means refused */
    void (*release)(void *user, void *ptr);  /* like free; never called with NULL */
    void *alloc_user;
    /* `origin` is an ONNX node name, a file or "" ; both strings are valid during the call only. */
    void (*report)(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message);
    void *report_user;
    jmp_buf *landing;    /* where OUT_OF_MEMORY and INTERNAL unwind to; must be set */
    enum status unwound; /* which of the two it was */
    size_t bytes_in_use; /* allocator bytes now, and the highest so far */
    size_t bytes_peak;
    unsigned errors; /* diagnostics of severity ERROR reported so far */
};

/* A context on malloc/free with diagnostics dropped and no landing. */
void ctx_init(struct ctx *c);

/* Allocate `size` > 0 bytes, 64-byte aligned, not zeroed. Never NULL: unwinds when refused.
 * Every block carries its size, so `bytes_in_use` is exact. */
void *ctx_alloc(struct ctx *c, size_t size);
/* The same, but NULL when refused: for blocks whose size a file or user chose. */
void *ctx_try_alloc(struct ctx *c, size_t size);
/* Free a block of ctx_alloc; NULL is a no-op. */
void ctx_free(struct ctx *c, void *ptr);

/* Unwind with INTERNAL after reporting file, line and the condition. */
_Noreturn void ctx_bug(struct ctx *c, const char *file, int line, const char *what);
_Noreturn void ctx_out_of_memory(struct ctx *c, size_t size);
#define CHECK(c, cond)                                                                             \
    do {                                                                                           \
        if (!(cond)) ctx_bug((c), __FILE__, __LINE__, #cond);                                      \
    } while (0)

/* Overflow-checked size arithmetic: false when the result does not fit. */
bool size_mul(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);

#endif
