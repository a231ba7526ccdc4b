// SPDX-License-Identifier: Apache-2.0
/* arena.c - bump allocation in a list of chunks that come from the context. Under AddressSanitizer
 * all space that is not handed out is poisoned, so overruns and stale pointers are found here too.
 */
#include "base/arena.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif

#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
enum { REDZONE = 16 };
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
enum { REDZONE = 0 };
#endif

enum { ARENA_ALIGN = 16, CHUNK_MIN = 4096, CHUNK_MAX = 1 << 20 };

struct arena_chunk {
    struct arena_chunk *older;
    size_t used, cap; /* bytes of data */
    _Alignas(ARENA_ALIGN) char data[];
};

struct arena_cleanup {
    struct arena_cleanup *older;
    void (*fn)(void *ptr);
    void *ptr;
};

void arena_init(struct arena *a, struct ctx *c) {
    *a = (struct arena){.ctx = c};
}

/* Double up to CHUNK_MAX; a larger request gets a chunk of its own size. */
static void add_chunk(struct arena *a, size_t need) {
    size_t total = CHUNK_MIN;
    if (a->chunk) total = 2 * (sizeof(struct arena_chunk) + a->chunk->cap);
    if (total > CHUNK_MAX) total = CHUNK_MAX;
    if (need > total - sizeof(struct arena_chunk) &&
        !size_add(need, sizeof(struct arena_chunk), &total))
        ctx_out_of_memory(a->ctx, need);
    struct arena_chunk *k = ctx_alloc(a->ctx, total);
    k->older = a->chunk;
    k->used = 0;
    k->cap = total - sizeof(struct arena_chunk);
    POISON(k->data, k->cap);
    a->chunk = k;
}

void *arena_alloc(struct arena *a, size_t size) {
    size_t need;
    if (!size_add(size ? size : 1, ARENA_ALIGN - 1 + REDZONE, &need))
        ctx_out_of_memory(a->ctx, size);
    need &= ~(size_t)(ARENA_ALIGN - 1);
    if (!a->chunk || a->chunk->cap - a->chunk->used < need) add_chunk(a, need);
    char *p = a->chunk->data + a->chunk->used;
    a->chunk->used += need;
    UNPOISON(p, size);
    memset(p, 0, size);
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t size) {
    size_t total;
    if (!size_mul(n, size, &total)) ctx_out_of_memory(a->ctx, SIZE_MAX);
    return arena_alloc(a, total);
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *p = arena_alloc(a, len + 1);
    memcpy(p, s, len);
    return p;
}

char *arena_strdup(struct arena *a, const char *s) {
    return arena_strndup(a, s, strlen(s));
}

char *arena_vprintf(struct arena *a, const char *fmt, va_list ap) {
    CHECK(a->ctx, fmt != NULL);
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0) {
        va_end(again);
        ctx_bug(a->ctx, __FILE__, __LINE__, "a text that can be formatted");
    }
    char *p = arena_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

char *arena_printf(struct arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *p = arena_vprintf(a, fmt, ap);
    va_end(ap);
    return p;
}

struct arena_mark arena_mark(const struct arena *a) {
    return (struct arena_mark){a->chunk, a->chunk ? a->chunk->used : 0, a->cleanups};
}

void arena_rewind(struct arena *a, struct arena_mark m) {
    while (a->cleanups != m.cleanups) {
        CHECK(a->ctx, a->cleanups != NULL); /* else the mark is of another arena or was passed */
        struct arena_cleanup *k = a->cleanups;
        a->cleanups = k->older;
        k->fn(k->ptr);
    }
    while (a->chunk != m.chunk) {
        CHECK(a->ctx, a->chunk != NULL);
        struct arena_chunk *k = a->chunk;
        a->chunk = k->older;
        UNPOISON(k->data, k->cap);
        ctx_free(a->ctx, k);
    }
    if (!a->chunk) return;
    CHECK(a->ctx, m.used <= a->chunk->used);
    a->chunk->used = m.used;
    POISON(a->chunk->data + m.used, a->chunk->cap - m.used);
}

void arena_reset(struct arena *a) {
    arena_rewind(a, (struct arena_mark){0});
}

void arena_defer(struct arena *a, void (*fn)(void *ptr), void *ptr) {
    struct arena_cleanup *k = ARENA_NEW(a, struct arena_cleanup);
    *k = (struct arena_cleanup){a->cleanups, fn, ptr};
    a->cleanups = k;
}

enum status arena_with_scratch(struct ctx *c, enum status (*fn)(struct arena *scratch, void *user),
                               void *user) {
    jmp_buf here, *const outer = c->landing;
    struct arena *const scratch = ctx_alloc(c, sizeof *scratch);
    arena_init(scratch, c);
    if (setjmp(here)) {
        c->landing = outer;
        arena_reset(scratch);
        ctx_free(c, scratch);
        longjmp(*outer, 1);
    }
    if (outer) c->landing = &here;
    enum status st = fn(scratch, user);
    c->landing = outer;
    arena_reset(scratch);
    ctx_free(c, scratch);
    return st;
}
