// SPDX-License-Identifier: Apache-2.0
/* intern.h - byte strings to small ids, so that names compare as integers. Id 0 is the empty
 * string. Strings may hold any bytes but NUL. */
#ifndef LATHE_BASE_INTERN_H
#define LATHE_BASE_INTERN_H

#include "base/hash.h"
#include "base/vec.h"

typedef struct {
    uint32_t i;
} str_id;

struct interner {
    struct arena *arena;
    VEC(const char *) strings;
    struct map *buckets; /* hash -> first id; collisions chain through `next` */
    VEC(uint32_t) next;
};
void intern_init(struct interner *t, struct arena *a);
str_id intern(struct interner *t, const char *s);
str_id intern_n(struct interner *t, const char *s, size_t n);
/* The id of `s` if it was ever interned, else 0 ("" also gives 0). */
str_id intern_find(const struct interner *t, const char *s);
/* Never NULL; valid as long as the arena. */
const char *interned(const struct interner *t, str_id id);

#endif
