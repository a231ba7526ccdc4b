// SPDX-License-Identifier: Apache-2.0
/* hash.h - the one hash function (XXH3 from libxxhash) and one open-addressing map from u64
 * to u32. Iteration over a map is deliberately absent: results must never depend on hash order. */
#ifndef LATHE_BASE_HASH_H
#define LATHE_BASE_HASH_H

#include "base/arena.h"
#include <stdint.h>

uint64_t hash_bytes(const void *p, size_t n);
uint64_t hash_combine(uint64_t a, uint64_t b);
/* 128 bits, for names that must not collide. */
struct hash128 {
    uint64_t lo, hi;
};
struct hash128 hash_bytes128(const void *p, size_t n);

struct map {
    struct arena *arena;
    uint64_t *keys;
    uint32_t *vals;
    uint8_t *used;
    uint32_t n, cap;
};
void map_init(struct map *m, struct arena *a);
/* Set, replacing an earlier value. */
void map_set(struct map *m, uint64_t key, uint32_t val);
/* True and *val when present. */
bool map_get(const struct map *m, uint64_t key, uint32_t *val);

#endif
