// SPDX-License-Identifier: Apache-2.0
/* fuzz_arrays.c - libFuzzer entry for the array formats: read any bytes as .npy, .npz or
 * .safetensors and touch every element. Build with clang and -fsanitize=fuzzer,address,undefined.
 */
#include "runtime/array.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void count_error(void *user, enum severity sev, enum status code, const char *origin,
                        const char *message) {
    (void)code, (void)origin, (void)message;
    *(int *)user += sev == SEV_ERROR;
}

static void touch(const struct arrays *s) {
    for (uint32_t i = 0; i < s->list.n; i++) {
        const struct array *a = &s->list.at[i];
        int64_t n = type_bytes(&a->type);
        if (n < 0 || !a->name) abort();
        unsigned sum = 0;
        for (int64_t k = 0; k < n; k++) sum += ((const uint8_t *)a->at)[k];
        if (sum == 1 && n > INT32_MAX) abort(); /* keeps the reads */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ctx c;
    struct arena arena;
    struct arrays s;
    jmp_buf landing;
    int errors = 0;
    ctx_init(&c);
    c.report = count_error;
    c.report_user = &errors;
    c.landing = &landing;
    arena_init(&arena, &c);
    if (setjmp(landing)) abort();
    enum status st = arrays_read_memory(&arena, data, size, "fuzz", &s);
    if (errors != (st != ST_OK)) abort(); /* exactly one diagnostic */
    if (st == ST_OK && !arrays_recognise(data, size)) abort();
    touch(&s);
    arena_reset(&arena);
    if (c.bytes_in_use) abort();
    return 0;
}
