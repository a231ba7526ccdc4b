// SPDX-License-Identifier: Apache-2.0
/* diag.h - one-line diagnostics with an origin. Wording: what was expected, what was found, where,
 * and what to do. Nothing here prints; the context's sink decides (ctx.h). */
#ifndef LATHE_BASE_DIAG_H
#define LATHE_BASE_DIAG_H

#include "base/ctx.h"

/* Report an error about `origin` (ONNX node, file, "" for none) and return `code`, so that a caller
 * can write `return diag_error(c, ST_SHAPE, name, "...")`. Messages are cut at 2,000 bytes and
 * control characters are replaced, since names come from hostile files. */
enum status diag_error(struct ctx *c, enum status code, const char *origin, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void diag_warning(struct ctx *c, const char *origin, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void diag_note(struct ctx *c, const char *origin, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
