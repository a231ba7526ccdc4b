// SPDX-License-Identifier: Apache-2.0
/* buf.c - the text builder and float formatting. Formatting does not depend on the locale, because
 * the text is read back by other programs. */
#include "base/buf.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 64 };

void buf_init(struct buf *b, struct arena *a) {
    *b = (struct buf){.arena = a, .at = arena_alloc(a, FIRST_CAP), .cap = FIRST_CAP};
}

/* Room for `n` more bytes and the NUL. */
static void reserve(struct buf *b, size_t n) {
    size_t need, twice;
    if (!size_add(b->n, n, &need) || !size_add(need, 1, &need))
        ctx_out_of_memory(b->arena->ctx, SIZE_MAX);
    if (need <= b->cap) return;
    size_t cap = size_mul(b->cap, 2, &twice) && twice > need ? twice : need;
    char *grown = arena_alloc(b->arena, cap);
    memcpy(grown, b->at, b->n);
    b->at = grown;
    b->cap = cap;
}

void buf_put(struct buf *b, const void *bytes, size_t n) {
    reserve(b, n);
    if (n) memcpy(b->at + b->n, bytes, n);
    b->n += n;
    b->at[b->n] = '\0';
}

void buf_puts(struct buf *b, const char *s) {
    buf_put(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(b->at + b->n, b->cap - b->n, fmt, ap);
    va_end(ap);
    CHECK(b->arena->ctx, n >= 0);
    if ((size_t)n >= b->cap - b->n) {
        b->at[b->n] = '\0'; /* stay well-formed should the growth unwind */
        reserve(b, (size_t)n);
        va_start(ap, fmt);
        vsnprintf(b->at + b->n, b->cap - b->n, fmt, ap);
        va_end(ap);
    }
    b->n += (size_t)n;
}

/* Turn `sci`, the output of "%.*e" for a finite number, into digits and a decimal exponent. The
 * decimal point is the locale's and may be several bytes: anything between the digits is skipped.
 */
static int split_digits(const char *sci, char digits[static 24]) {
    int n = 0;
    const char *p = sci;
    for (; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 23) digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    return (int)strtol(p + 1, NULL, 10);
}

/* Plain notation for exponents in [-5, plain), else d.ddde±x. */
static void put_decimal(struct buf *b, bool negative, const char *digits, int exp, int plain) {
    int n = (int)strlen(digits);
    if (negative) buf_put(b, "-", 1);
    if (exp < -5 || exp >= plain) {
        buf_put(b, digits, 1);
        if (n > 1) buf_printf(b, ".%s", digits + 1);
        buf_printf(b, "e%d", exp);
    } else if (exp < 0) {
        buf_printf(b, "0.%.*s%s", -exp - 1, "00000", digits);
    } else {
        for (int i = 0; i <= exp || i < n; i++) {
            if (i == exp + 1) buf_put(b, ".", 1);
            buf_put(b, i < n ? &digits[i] : "0", 1);
        }
        if (n <= exp + 1) buf_puts(b, ".0");
    }
}

/* 9 and 17 significant digits always suffice for float and double (C11 5.2.4.2.2, DECIMAL_DIG). */
static void put_float(struct buf *b, double x, bool single) {
    if (isnan(x) || isinf(x)) {
        buf_puts(b, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    int most = single ? 9 : 17;
    double size = fabs(x);
    char sci[64], digits[24];
    for (int precision = 0; precision < most; precision++) {
        snprintf(sci, sizeof sci, "%.*e", precision, size);
        double back = single ? (double)strtof(sci, NULL) : strtod(sci, NULL);
        if (back == size) break;
    }
    int exp = split_digits(sci, digits);
    put_decimal(b, signbit(x), digits, exp, single ? 9 : 16);
}

void buf_f32(struct buf *b, float x) {
    put_float(b, (double)x, true);
}

void buf_f64(struct buf *b, double x) {
    put_float(b, x, false);
}

void buf_quoted(struct buf *b, const char *s) {
    buf_put(b, "\"", 1);
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\') {
            buf_printf(b, "\\%c", ch);
        } else if (ch == '\n' || ch == '\t') {
            buf_puts(b, ch == '\n' ? "\\n" : "\\t");
        } else if (ch < 0x20 || ch == 0x7f) {
            buf_printf(b, "\\x%02x", ch);
        } else {
            buf_put(b, s, 1);
        }
    }
    buf_put(b, "\"", 1);
}
