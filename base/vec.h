// SPDX-License-Identifier: Apache-2.0
/* vec.h - typed growing arrays whose memory belongs to an arena. Growth moves the elements, so hold
 * indices, not pointers. Not thread-safe. */
#ifndef LATHE_BASE_VEC_H
#define LATHE_BASE_VEC_H

#include "base/arena.h"
#include <stdint.h>

#define VEC(T)                                                                                     \
    struct {                                                                                       \
        T *at;                                                                                     \
        uint32_t n, cap;                                                                           \
    }

/* Returns the new storage for at least n+1 elements; unwinds when 2^32-1 elements are exceeded. */
void *vec_grow_(struct arena *a, void *at, uint32_t n, uint32_t *cap, size_t elem);

/* Append `...` (an expression or compound literal). */
#define vec_push(a, v, ...)                                                                        \
    do {                                                                                           \
        if ((v)->n == (v)->cap)                                                                    \
            (v)->at = vec_grow_((a), (v)->at, (v)->n, &(v)->cap, sizeof *(v)->at);                 \
        (v)->at[(v)->n++] = (__VA_ARGS__);                                                         \
    } while (0)

#endif
