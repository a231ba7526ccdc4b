// SPDX-License-Identifier: Apache-2.0
/* json_text.h - JSON strings for writers that choose their own layout. Reading JSON is jansson's
 * work. */
#ifndef LATHE_RUNTIME_JSON_TEXT_H
#define LATHE_RUNTIME_JSON_TEXT_H

#include "base/buf.h"

/* True when `s` is well-formed UTF-8 (RFC 3629: no surrogates, nothing overlong). */
bool json_is_utf8(const char *s);
/* Append `s` as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void json_put_string(struct buf *b, const char *s);

#endif
