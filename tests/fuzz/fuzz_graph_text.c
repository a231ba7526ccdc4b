// SPDX-License-Identifier: Apache-2.0
/* fuzz_graph_text.c - libFuzzer entry for the graph's text form: what is accepted is a legal graph
 * that obeys the laws of the text form, and every other form can be written of it. Build with clang
 * and -fsanitize=fuzzer,address,undefined (tests/fuzz/run.sh). */
#include "ir/export_dot.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_laws(struct ctx *c, const struct graph *g) {
    struct arena a;
    struct buf first, second, other;
    struct graph *again;
    arena_init(&a, c);
    buf_init(&first, &a);
    buf_init(&second, &a);
    buf_init(&other, &a);
    graph_print(g, NULL, &first);
    if (graph_parse(c, first.at, first.n, "again", &again) != ST_OK) abort();
    if (!graph_equal(g, again) || graph_verify(again, "again") != ST_OK) abort();
    graph_print(again, NULL, &second);
    if (first.n != second.n || memcmp(first.at, second.at, first.n) != 0) abort();
    graph_print_dot(g, &other);
    graph_print_html(g, &other);
    graph_print_json(g, &other);
    graph_destroy(again);
    arena_reset(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ctx c;
    jmp_buf landing;
    struct graph *g;
    ctx_init(&c);
    c.landing = &landing;
    if (setjmp(landing)) abort();
    enum status st = graph_parse(&c, (const char *)data, size, "fuzz", &g);
    if ((st == ST_OK) != (c.errors == 0)) abort();
    if (c.bytes_peak > (1u << 20) + 4096 * size) abort(); /* in proportion to the text */
    if (st == ST_OK) {
        if (graph_verify(g, "fuzz") != ST_OK) abort();
        check_laws(&c, g);
        graph_destroy(g);
    }
    if (c.bytes_in_use) abort();
    return 0;
}
