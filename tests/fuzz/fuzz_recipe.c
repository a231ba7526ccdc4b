// SPDX-License-Identifier: Apache-2.0
/* fuzz_recipe.c - libFuzzer entry for recipe texts: what is accepted has numbers in their ranges
 * and can be asked about any name, what is refused is told once. Build with clang and
 * -fsanitize=fuzzer,address,undefined (tests/fuzz/run.sh). */
#include "base/arena.h"
#include "passes/recipe.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_low(enum dtype t) {
    return t == DT_e4m3 || t == DT_e5m2;
}

static void check_products(const struct recipe_products *p, enum dtype compute) {
    if (!p->low) return;
    if (compute != DT_bf16 || !is_low(p->format) || !is_low(p->gradients)) abort();
    if (p->history < 0 || p->history > 1024 || p->margin < 0 || p->margin > 6) abort();
    if (p->history && p->scope != QUANT_TENSOR) abort();
}

static void check_use(const struct recipe *r, const char *text, size_t size) {
    static const char *const names[] = {"", "a", "/model/layers.0/MatMul", "a; b; c"};
    char own[64];
    size_t n = size < sizeof own - 1 ? size : sizeof own - 1;
    memcpy(own, text, n);
    own[n] = '\0';
    check_products(&r->products, r->compute);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct recipe_products p = recipe_products_of(r, names[k]);
        (void)recipe_keeps_wide(r, names[k]);
        if (!is_low(p.format)) abort();
    }
    (void)recipe_products_of(r, own);
    if (r->saved.format != DT_bf16 && (r->saved.group < 16 || r->saved.group > 1024)) abort();
    if (r->m.group < 32 || r->m.group > 256 || r->v.group < 32 || r->v.group > 256) abort();
    if (r->chunk_loss < CHUNK_AUTO || r->save_bytes < 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ctx c;
    struct arena a;
    jmp_buf landing;
    struct recipe r;
    ctx_init(&c);
    arena_init(&a, &c);
    c.landing = &landing;
    if (setjmp(landing)) abort();
    enum status st = recipe_parse(&c, &a, "fuzz", (const char *)data, size, &r);
    if ((st == ST_OK) != (c.errors == 0) || c.errors > 1) abort();
    if (c.bytes_peak > (1u << 20) + 4096 * size) abort(); /* in proportion to the text */
    if (st == ST_OK) check_use(&r, (const char *)data, size);
    arena_reset(&a);
    if (c.bytes_in_use) abort();
    return 0;
}
