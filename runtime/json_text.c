// SPDX-License-Identifier: Apache-2.0
/* json_text.c - escaping and UTF-8 checks for the JSON that the runtime writes. */
#include "runtime/json_text.h"
#include <string.h>

/* Bytes of the UTF-8 sequence at `p` (RFC 3629, section 4), 0 when there is none. NUL ends a
 * string, so looking at following bytes stops in time. */
static size_t sequence_length(const unsigned char *p) {
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    unsigned low = 0x80, high = 0xbf; /* of the second byte */
    if (p[0] == 0xe0) low = 0xa0;
    if (p[0] == 0xed) high = 0x9f;
    if (p[0] == 0xf0) low = 0x90;
    if (p[0] == 0xf4) high = 0x8f;
    if (p[1] < low || p[1] > high) return 0;
    size_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return n;
}

bool json_is_utf8(const char *s) {
    for (size_t n; *s; s += n) {
        n = sequence_length((const unsigned char *)s);
        if (n == 0) return false;
    }
    return true;
}

void json_put_string(struct buf *b, const char *s) {
    buf_put(b, "\"", 1);
    while (*s) {
        unsigned char ch = (unsigned char)*s;
        size_t n = sequence_length((const unsigned char *)s);
        if (n == 0) {
            buf_puts(b, "\\ufffd");
            n = 1;
        } else if (ch == '"' || ch == '\\') {
            buf_printf(b, "\\%c", ch);
        } else if (ch < 0x20 || ch == 0x7f) {
            buf_printf(b, "\\u%04x", ch);
        } else {
            buf_put(b, s, n);
        }
        s += n;
    }
    buf_put(b, "\"", 1);
}
