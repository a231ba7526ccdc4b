// SPDX-License-Identifier: Apache-2.0
/* arena.h - growing bump arenas: the only way compile-time code gets memory. There is no fixed
 * limit and no single free; a whole unit of work is dropped at once. Not for tensor data, which
 * comes from ctx_alloc in planned blocks. */
#ifndef LATHE_BASE_ARENA_H
#define LATHE_BASE_ARENA_H

#include "base/ctx.h"
#include <stdarg.h>

struct arena_chunk;
struct arena_cleanup;
struct arena {
    struct ctx *ctx;
    struct arena_chunk *chunk;      /* newest first */
    struct arena_cleanup *cleanups; /* run newest first on reset */
};

/* A place to return to; only valid for the arena it was taken from. */
struct arena_mark {
    struct arena_chunk *chunk;
    size_t used;
    struct arena_cleanup *cleanups;
};

void arena_init(struct arena *a, struct ctx *c);
/* Run the cleanups and free everything. The arena may be used again. */
void arena_reset(struct arena *a);

/* Zeroed memory, 16-byte aligned; never NULL (unwinds). size 0 gives a unique valid pointer. */
void *arena_alloc(struct arena *a, size_t size);
/* The same for `n` elements of `size` bytes, overflow-checked. */
void *arena_array(struct arena *a, size_t n, size_t size);
#define ARENA_NEW(a, T)      ((T *)arena_alloc((a), sizeof(T)))
#define ARENA_ARRAY(a, T, n) ((T *)arena_array((a), (n), sizeof(T)))

char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(struct arena *a, const char *fmt, va_list ap);

struct arena_mark arena_mark(const struct arena *a);
void arena_rewind(struct arena *a, struct arena_mark m);

/* Call fn(ptr) when the arena is reset, rewound past this point, or unwound. */
void arena_defer(struct arena *a, void (*fn)(void *ptr), void *ptr);

/* Run fn with an arena of its own that is freed also when fn unwinds; returns what fn does. */
enum status arena_with_scratch(struct ctx *c, enum status (*fn)(struct arena *scratch, void *user),
                               void *user) MUST_USE;

#endif
