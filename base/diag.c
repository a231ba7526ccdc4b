// SPDX-License-Identifier: Apache-2.0
/* diag.c - formats a diagnostic on the stack, makes it safe to show and hands it to the context's
 * sink. Allocates nothing, so that running out of memory can still be reported. */
#include "base/diag.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_MAX = 2000, ORIGIN_MAX = 1000 };

/* Replace control characters in `s`: ASCII ones and, in UTF-8, U+0080 to U+009F. */
static void sanitize(char *s) {
    for (unsigned char *p = (unsigned char *)s; *p; p++) {
        if (*p < 0x20 || *p == 0x7f) {
            *p = '?';
        } else if (*p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f) {
            *p = '?';
            *++p = '?';
        }
    }
}

/* `s` was cut after n bytes: drop a UTF-8 sequence that lost its end. */
static void trim_cut(char *s, size_t n) {
    size_t tail = 0;
    while (tail < 3 && tail < n && ((unsigned char)s[n - 1 - tail] & 0xc0) == 0x80) tail++;
    if (tail == n) return;
    unsigned char lead = (unsigned char)s[n - 1 - tail];
    size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (tail + 1 < length) s[n - 1 - tail] = '\0';
}

static void emit(struct ctx *c, enum severity sev, enum status code, const char *origin,
                 const char *fmt, va_list ap) {
    char message[MESSAGE_MAX + 1];
    int n = vsnprintf(message, sizeof message, fmt, ap);
    if (n < 0) snprintf(message, sizeof message, "a message could not be formatted");
    if (n > MESSAGE_MAX) trim_cut(message, MESSAGE_MAX);
    sanitize(message);

    char where[ORIGIN_MAX + 1];
    size_t len = strnlen(origin, ORIGIN_MAX + 1);
    size_t kept = len > ORIGIN_MAX ? ORIGIN_MAX : len;
    memcpy(where, origin, kept);
    where[kept] = '\0';
    if (len > ORIGIN_MAX) trim_cut(where, ORIGIN_MAX);
    sanitize(where);

    if (sev == SEV_ERROR) c->errors++;
    if (c->report) c->report(c->report_user, sev, code, where, message);
}

enum status diag_error(struct ctx *c, enum status code, const char *origin, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    emit(c, SEV_ERROR, code, origin ? origin : "", fmt, ap);
    va_end(ap);
    return code;
}

void diag_warning(struct ctx *c, const char *origin, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    emit(c, SEV_WARNING, ST_OK, origin ? origin : "", fmt, ap);
    va_end(ap);
}

void diag_note(struct ctx *c, const char *origin, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    emit(c, SEV_NOTE, ST_OK, origin ? origin : "", fmt, ap);
    va_end(ap);
}
