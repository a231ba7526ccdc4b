// SPDX-License-Identifier: Apache-2.0
/* fuzz_import.c - libFuzzer entry for the importer: what loads is imported for inference and for
 * training, and what a training step of its own asks for is written out. Every refusal is one
 * error. Build with clang and -fsanitize=fuzzer,address,undefined. */
#include "frontend/file.h"
#include "frontend/import.h"
#include "passes/pass.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int errors;

static void count(void *user, enum severity sev, enum status code, const char *origin,
                  const char *message) {
    (void)user, (void)code, (void)origin, (void)message;
    errors += sev == SEV_ERROR;
}

static void import(struct ctx *c, struct onnx_model *m, bool training) {
    struct import_options o = {.training = training};
    struct import_result r;
    errors = 0;
    enum status st = onnx_import(m, &o, &r);
    if ((st == ST_OK) != (errors == 0) || errors > 1) abort();
    if (st != ST_OK) return;
    struct arena scratch;
    arena_init(&scratch, c);
    struct pass_ctx pc = {.ctx = c, .scratch = &scratch};
    if (pass_gradient(&pc, r.graph) == ST_OK && graph_verify(r.graph, "gradient") != ST_OK) abort();
    arena_reset(&scratch);
    graph_destroy(r.graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ctx c;
    jmp_buf landing;
    struct onnx_model *m;
    ctx_init(&c);
    c.report = count;
    c.landing = &landing;
    if (setjmp(landing)) abort();
    for (int training = 0; training < 2; training++) {
        if (onnx_load_memory(&c, data, size, NULL, "fuzz", &m) != ST_OK) break;
        import(&c, m, training);
        onnx_free(m);
    }
    if (c.bytes_in_use) abort();
    return 0;
}
