// SPDX-License-Identifier: Apache-2.0
/* test_util.h - what every unit test needs: a context that collects diagnostics and a landing point
 * that turns an unwind into a failed test. */
#ifndef LATHE_TEST_UTIL_H
#define LATHE_TEST_UTIL_H

#include "base/arena.h"
#include "base/diag.h"
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test_env {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    char log[16384]; /* every diagnostic, one a line: "error: origin: message" */
};

static inline void test_report(void *user, enum severity sev, enum status code, const char *origin,
                               const char *message) {
    static const char *const words[] = {"note", "warning", "error"};
    struct test_env *t = user;
    size_t n = strlen(t->log);
    (void)code;
    snprintf(t->log + n, sizeof t->log - n, "%s: %s: %s\n", words[sev], origin, message);
}

static inline void test_begin(struct test_env *t) {
    memset(t, 0, sizeof *t);
    ctx_init(&t->ctx);
    t->ctx.report = test_report;
    t->ctx.report_user = t;
    t->ctx.landing = &t->landing;
    arena_init(&t->arena, &t->ctx);
}

/* Frees the arena and checks that nothing leaked. */
static inline void test_end(struct test_env *t) {
    arena_reset(&t->arena);
    ck_assert_uint_eq(t->ctx.bytes_in_use, 0);
}

/* First statement of a test body after test_begin. */
#define TEST_LANDING(t)                                                                            \
    do {                                                                                           \
        if (setjmp((t)->landing))                                                                  \
            ck_abort_msg("unwound (%d): %s", (int)(t)->ctx.unwound, (t)->log);                     \
    } while (0)

/* Check's own write to a pipe even when they hold, which dominates loops over elements. */
#undef ck_assert_msg
#define ck_assert_msg(cond, ...)                                                                   \
    do {                                                                                           \
        if (!(cond)) ck_abort_msg(__VA_ARGS__);                                                    \
    } while (0)
#undef ck_assert
#define ck_assert(cond)   ck_assert_msg(cond, "does not hold: %s", #cond)
#define TEST_EXPECT(cond) ck_assert(cond)

#endif
