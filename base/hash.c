// SPDX-License-Identifier: Apache-2.0
/* hash.c - XXH3 and a linear-probing map on top of it. No deletion and no iteration. */
#include "base/hash.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t hash_bytes(const void *p, size_t n) {
    return XXH3_64bits(p, n);
}

struct hash128 hash_bytes128(const void *p, size_t n) {
    XXH128_hash_t h = XXH3_128bits(p, n);
    return (struct hash128){h.low64, h.high64};
}

uint64_t hash_combine(uint64_t a, uint64_t b) {
    uint64_t both[2] = {a, b};
    return XXH3_64bits(both, sizeof both);
}

void map_init(struct map *m, struct arena *a) {
    *m = (struct map){.arena = a};
}

/* The slot that holds `key`, or the free one where it belongs. Needs a free slot to end. */
static uint32_t find_slot(const struct map *m, uint64_t key) {
    /* Keys may be small integers or hashes; the multiply (2^64 / golden ratio) spreads both. */
    uint64_t h = key * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t mask = m->cap - 1, i = (uint32_t)(h >> 32) & mask;
    while (m->used[i] && m->keys[i] != key) i = (i + 1) & mask;
    return i;
}

static void rehash(struct map *m, uint32_t cap) {
    struct map old = *m;
    m->keys = ARENA_ARRAY(m->arena, uint64_t, cap);
    m->vals = ARENA_ARRAY(m->arena, uint32_t, cap);
    m->used = ARENA_ARRAY(m->arena, uint8_t, cap);
    m->cap = cap;
    for (uint32_t k = 0; k < old.cap; k++) {
        if (!old.used[k]) continue;
        uint32_t i = find_slot(m, old.keys[k]);
        m->used[i] = 1;
        m->keys[i] = old.keys[k];
        m->vals[i] = old.vals[k];
    }
}

void map_set(struct map *m, uint64_t key, uint32_t val) {
    /* At most 3/4 full: probing stays short and a free slot always exists. */
    if (((uint64_t)m->n + 1) * 4 > (uint64_t)m->cap * 3) {
        if (m->cap >= UINT32_C(1) << 31) ctx_out_of_memory(m->arena->ctx, SIZE_MAX);
        rehash(m, m->cap ? m->cap * 2 : 16);
    }
    uint32_t i = find_slot(m, key);
    if (!m->used[i]) {
        m->used[i] = 1;
        m->keys[i] = key;
        m->n++;
    }
    m->vals[i] = val;
}

bool map_get(const struct map *m, uint64_t key, uint32_t *val) {
    if (!m->cap) return false;
    uint32_t i = find_slot(m, key);
    if (!m->used[i]) return false;
    *val = m->vals[i];
    return true;
}
