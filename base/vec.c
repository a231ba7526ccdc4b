// SPDX-License-Identifier: Apache-2.0
/* vec.c - the growth step behind vec_push. Old storage stays in the arena, which doubling keeps
 * below the size of the array itself. */
#include "base/vec.h"
#include <string.h>

enum { FIRST_CAP = 8 };

void *vec_grow_(struct arena *a, void *at, uint32_t n, uint32_t *cap, size_t elem) {
    if (n == UINT32_MAX) ctx_out_of_memory(a->ctx, SIZE_MAX);
    uint32_t want = n < FIRST_CAP ? FIRST_CAP : n > UINT32_MAX / 2 ? UINT32_MAX : 2 * n;
    void *grown = arena_array(a, want, elem);
    if (n) memcpy(grown, at, (size_t)n * elem);
    *cap = want;
    return grown;
}
