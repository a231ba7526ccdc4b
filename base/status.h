// SPDX-License-Identifier: Apache-2.0
/* status.h - the result codes that every fallible function returns. The story behind a code is told
 * by a diagnostic (diag.h); a code alone only decides what the caller does next. */
#ifndef LATHE_BASE_STATUS_H
#define LATHE_BASE_STATUS_H

enum status {
    ST_OK = 0,
    ST_USAGE,         /* the caller asked for something that makes no sense */
    ST_IO,            /* a file could not be opened, read or written */
    ST_PARSE,         /* bytes or text that are not what they claim to be */
    ST_UNSUPPORTED,   /* legal input that Lathe cannot handle */
    ST_SHAPE,         /* shapes that do not fit */
    ST_TYPE,          /* element types that do not fit */
    ST_DATA,          /* user data that does not fit the model */
    ST_NONFINITE,     /* a loss or gradient became NaN or infinite */
    ST_STOPPED,       /* stopped on request, resumable */
    ST_OUT_OF_MEMORY, /* the allocator refused; reported by unwinding (ctx.h) */
    ST_INTERNAL,      /* a bug in Lathe; reported by unwinding (ctx.h) */
};

#define MUST_USE __attribute__((warn_unused_result))

/* Return from the enclosing function when `expr` fails. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum status try_status_ = (expr);                                                          \
        if (try_status_ != ST_OK) return try_status_;                                              \
    } while (0)

#endif
