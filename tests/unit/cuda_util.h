// SPDX-License-Identifier: Apache-2.0
/* cuda_util.h - kernels and helpers for the tests of the CUDA backend that need no GPU. */
#ifndef LATHE_TEST_CUDA_UTIL_H
#define LATHE_TEST_CUDA_UTIL_H

#include "runtime/cuda/impl.h"
#include "test_util.h"

#ifndef EXTRA_KERNELS /* {"file", text}, .. of one test */
#define EXTRA_KERNELS                                                                              \
    { "", "" }
#endif

/* LeakSanitizer of gcc 12 dies on threads that ran NVRTC; test_end counts Lathe's own memory. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

static inline int lines(const char *s) {
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

/* ---- kernels for these tests -------------------------------------------------------------------
 */
static const char add_text[] =
    "#include \"prelude.cuh\"\n#include \"config.cuh\"\n"
    "extern \"C\" __global__ void add(const T *a, const T *b, T *y, unsigned long long *error) {\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < N) y[i] = plus(a[i], b[i]);\n}\n"
    "extern \"C\" __global__ void index(const T *a, const long long *b, T *y,\n"
    "                                   unsigned long long *error) {}\n";
static const char prelude_text[] = "#include \"config.cuh\"\n"
                                   "__device__ inline T plus(T a, T b) { return a + b; }\n";
static inline const char *source(void *user, const char *file, size_t *size) {
    static const struct {
        const char *name, *text;
    } files[] = {{"add.cu", add_text}, {"prelude.cuh", prelude_text}, EXTRA_KERNELS};
    (void)user;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        if (strcmp(files[i].name, file) != 0) continue;
        *size = strlen(files[i].text);
        return files[i].text;
    }
    return NULL;
}

static inline uint32_t add_kernel(struct plan *p, const char *file, const char *entry,
                                  const char *config) {
    struct plan_kernel k = {intern(&p->strings, entry), intern(&p->strings, file), config, "", 0};
    vec_push(&p->arena, &p->kernels, k);
    return p->kernels.n - 1;
}

static inline bool have_nvrtc(struct test_env *t) {
    struct compiler k = {.ctx = &t->ctx, .arena = &t->arena};
    bool have = compiler_open(&k, NULL, 0) == ST_OK;
    t->log[0] = '\0';
    return have;
}

#endif
