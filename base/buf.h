// SPDX-License-Identifier: Apache-2.0
/* buf.h - a growing text (or byte) builder in an arena, with number formatting that reads back to
 * the same bits. Always NUL-terminated. */
#ifndef LATHE_BASE_BUF_H
#define LATHE_BASE_BUF_H

#include "base/arena.h"
#include <stdint.h>

struct buf {
    struct arena *arena;
    char *at;
    size_t n, cap;
};
void buf_init(struct buf *b, struct arena *a);
void buf_put(struct buf *b, const void *bytes, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Shortest decimal that reads back to the same float/double; "nan", "inf", "-inf" for the rest;
 * always holds one of ".", "e", "n" so that it never looks like an integer. */
void buf_f32(struct buf *b, float x);
void buf_f64(struct buf *b, double x);
/* A double-quoted string with \" \\ \n \t \xHH escapes; bytes >= 0x80 pass through. */
void buf_quoted(struct buf *b, const char *s);

#endif
