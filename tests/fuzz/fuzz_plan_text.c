// SPDX-License-Identifier: Apache-2.0
/* fuzz_plan_text.c - libFuzzer entry for the plan's text form: what is accepted obeys its laws, can
 * be measured and verified, and its launches can be cut into pieces when they are legal. Build with
 * clang and -fsanitize=fuzzer,address,undefined (tests/fuzz/run.sh). */
#include "ir/plan_work.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_laws(struct ctx *c, const struct plan *p) {
    struct arena a;
    struct buf first, second;
    struct plan *again;
    arena_init(&a, c);
    buf_init(&first, &a);
    buf_init(&second, &a);
    plan_print(p, &first);
    if (plan_parse(c, first.at, first.n, "again", &again) != ST_OK) abort();
    if (!plan_equal(p, again)) abort();
    plan_print(again, &second);
    if (first.n != second.n || memcmp(first.at, second.at, first.n) != 0) abort();
    plan_destroy(again);
    arena_reset(&a);
}

static void check_use(const struct plan *p) {
    if (plan_bytes(p) < 0 || plan_usage(p).peak_step < 0) abort();
    if (plan_verify(p, "fuzz") != ST_OK) return;
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (launch_workspace(p, &p->launches.at[k]) < 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ctx c;
    jmp_buf landing;
    struct plan *p;
    ctx_init(&c);
    c.landing = &landing;
    if (setjmp(landing)) abort();
    enum status st = plan_parse(&c, (const char *)data, size, "fuzz", &p);
    if ((st == ST_OK) != (c.errors == 0)) abort();
    if (c.bytes_peak > (1u << 20) + 4096 * size) abort(); /* in proportion to the text */
    if (st == ST_OK) {
        check_laws(&c, p);
        check_use(p);
        plan_destroy(p);
    }
    if (c.bytes_in_use) abort();
    return 0;
}
