// SPDX-License-Identifier: Apache-2.0
/* intern.c - strings by hash, with a chain for the (rare) strings whose 64-bit hashes collide:
 * names come from hostile files, so equality is always decided on the bytes. */
#include "base/intern.h"
#include <string.h>

void intern_init(struct interner *t, struct arena *a) {
    memset(t, 0, sizeof *t);
    t->arena = a;
    t->buckets = ARENA_NEW(a, struct map);
    map_init(t->buckets, a);
    vec_push(a, &t->strings, "");
    vec_push(a, &t->next, 0);
}

/* The id of the string, else 0; *first is the head of its bucket, or 0. */
static uint32_t look_up(const struct interner *t, const char *s, size_t n, uint64_t hash,
                        uint32_t *first) {
    *first = 0;
    if (!map_get(t->buckets, hash, first)) return 0;
    for (uint32_t i = *first; i; i = t->next.at[i]) {
        const char *have = t->strings.at[i];
        if (strncmp(have, s, n) == 0 && have[n] == '\0') return i;
    }
    return 0;
}

str_id intern_n(struct interner *t, const char *s, size_t n) {
    if (n == 0) return (str_id){0};
    CHECK(t->arena->ctx, !memchr(s, '\0', n));
    uint64_t hash = hash_bytes(s, n);
    uint32_t first, i = look_up(t, s, n, hash, &first);
    if (i) return (str_id){i};
    i = t->strings.n;
    vec_push(t->arena, &t->strings, arena_strndup(t->arena, s, n));
    vec_push(t->arena, &t->next, first);
    map_set(t->buckets, hash, i);
    return (str_id){i};
}

str_id intern(struct interner *t, const char *s) {
    return intern_n(t, s, strlen(s));
}

str_id intern_find(const struct interner *t, const char *s) {
    size_t n = strlen(s);
    uint32_t first;
    return (str_id){n ? look_up(t, s, n, hash_bytes(s, n), &first) : 0};
}

const char *interned(const struct interner *t, str_id id) {
    CHECK(t->arena->ctx, id.i < t->strings.n);
    return t->strings.at[id.i];
}
