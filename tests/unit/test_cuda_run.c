// SPDX-License-Identifier: Apache-2.0
/* test_cuda_run.c - the CUDA executor on a driver made of host memory (tests/tools/fake_cuda.c):
 * transfers, replay, index errors, refusals, and how products are put to cuBLASLt. Needs NVRTC.
 * What kernels compute is tested on a GPU. */
#include "base/sys.h"
#include "cuda_util.h"
#include <dlfcn.h>
#include <math.h>

static char folder[512]; /* of this program: the fake libraries are in its fake/ */

/* ---- the executor on the fake driver -----------------------------------------------------------
 */
struct fake {
    size_t *memory, *used, *host_used;
    int *graph_launches, *fail_launch, *launches;
    void (**kernel)(const char *name, void **arguments);
};

/* False when the fake driver or NVRTC is missing. Once it is loaded, its SONAME answers for the
 * driver's. */
static bool fake_open(struct test_env *t, struct fake *f, struct cuda **d) {
    void *lib =
        dlopen(arena_printf(&t->arena, "%s/fake/libcuda.so.1", folder), RTLD_NOW | RTLD_GLOBAL);
    if (!lib || !have_nvrtc(t)) return false;
    f->memory = dlsym(lib, "fake_memory");
    f->used = dlsym(lib, "fake_used");
    f->host_used = dlsym(lib, "fake_host_used");
    f->graph_launches = dlsym(lib, "fake_graph_launches");
    f->fail_launch = dlsym(lib, "fake_fail_launch");
    f->launches = dlsym(lib, "fake_launches");
    f->kernel = dlsym(lib, "fake_kernel");
    struct cuda_options o = {.library_dir = arena_printf(&t->arena, "%s/fake", folder)};
    ck_assert_msg(cuda_open(&t->ctx, &o, d) == ST_OK, "%s", t->log);
    return true;
}

static void fake_close(struct test_env *t, const struct fake *f, struct cuda *d) {
    cuda_close(d);
    ck_assert_uint_eq(*f->used, 0);
    ck_assert_uint_eq(*f->host_used, 0);
    test_end(t);
}

/* add: y = a + b, its pointers in a table when the state is the result. index: y = a, and every
 * index that is not in [0, 4) is noted. */
static void host_kernel(const char *name, void **arguments) {
    float *p[3];
    uint64_t *error;
    if (arguments[1]) {
        for (int i = 0; i < 3; i++) p[i] = *(float **)arguments[i];
        error = *(uint64_t **)arguments[3];
    } else {
        float **table = *(float ***)arguments[0];
        memcpy(p, table, sizeof p);
        error = (uint64_t *)(void *)table[3];
    }
    for (int64_t i = 0; i < 4; i++) {
        if (strcmp(name, "add") == 0) {
            p[2][i] = p[0][i] + p[1][i];
            continue;
        }
        int64_t v = ((const int64_t *)(const void *)p[1])[i];
        uint64_t word = (uint64_t)i << 24 | (uint64_t)((v > 8388607 ? 8388607 : v) + (1 << 23));
        if ((v < 0 || v >= 4) && word < *error) *error = word;
        p[2][i] = p[0][i];
    }
}

static buf_id buffer(struct plan *p, enum buffer_kind kind, const char *name, enum dtype t,
                     int64_t n) {
    struct plan_buffer b = {.kind = kind, .name = intern(&p->strings, name)};
    b.type = (struct type){.dtype = t, .rank = 1, .dims = {n}};
    b.bytes = n * (int64_t)dtype_size(t);
    int64_t *end = &p->arena_bytes[buffer_arena(kind)];
    b.offset = *end;
    *end += (b.bytes + 63) / 64 * 64;
    vec_push(&p->arena, &p->buffers, b);
    return (buf_id){p->buffers.n - 1};
}

static struct plan_launch *launch(struct plan *p, enum launch_kind kind, const uint32_t *in,
                                  uint32_t out, int kernel, bool table) {
    struct plan_launch l = {.kind = kind, .nin = 2, .nout = 1};
    l.in = ARENA_ARRAY(&p->arena, struct plan_view, 2);
    l.out = ARENA_ARRAY(&p->arena, struct plan_view, 1);
    for (int i = 0; i < 3; i++) {
        uint32_t b = i < 2 ? in[i] : out;
        struct plan_view *v = i < 2 ? &l.in[i] : l.out;
        *v = (struct plan_view){.buffer = {b},
                                .dtype = p->buffers.at[b].type.dtype,
                                .rank = 1,
                                .dims = {p->buffers.at[b].type.dims[0]},
                                .strides = {1}};
    }
    l.origin = intern(&p->strings, kind == LAUNCH_gather ? "/pick" : "/sum");
    if (kernel >= 0) {
        l.first_call = p->calls.n;
        l.ncalls = 1;
        struct plan_call c = {(uint32_t)kernel, {1, 1, 1}, 128, 100 << 10, table};
        vec_push(&p->arena, &p->calls, c);
    }
    vec_push(&p->arena, &p->launches, l);
    return &p->launches.at[p->launches.n - 1];
}

/* x (input) + w (param) -> t;  t + s (state, 0.5) -> s;  gather t by idx (input) -> y (output) */
static struct plan *small_plan(struct test_env *t) {
    static const float weights[4] = {10, 20, 30, 40};
    struct plan *p = plan_create(&t->ctx, "small");
    p->cuda_arch = 90;
    const char *config = "#pragma once\n#define T float\n#define N 4\n";
    int add = (int)add_kernel(p, "add.cu", "add", config);
    int pick = (int)add_kernel(p, "add.cu", "index", config);
    uint32_t x = buffer(p, BUF_INPUT, "x", DT_f32, 4).i;
    uint32_t y = buffer(p, BUF_OUTPUT, "y", DT_f32, 4).i;
    uint32_t idx = buffer(p, BUF_INPUT, "idx", DT_i64, 4).i;
    uint32_t w = buffer(p, BUF_PARAM, "w", DT_f32, 4).i;
    uint32_t s = buffer(p, BUF_STATE, "s", DT_f32, 4).i;
    uint32_t tmp = buffer(p, BUF_TEMP, "", DT_f32, 4).i;
    p->buffers.at[w].init = (struct blob){weights, sizeof weights, 0};
    p->buffers.at[s].fill = 0.5;
    launch(p, LAUNCH_group, (uint32_t[]){x, w}, tmp, add, false);
    launch(p, LAUNCH_group, (uint32_t[]){tmp, s}, s, add, true);
    launch(p, LAUNCH_gather, (uint32_t[]){tmp, idx}, y, pick, false);
    p->first_update = 1;
    return p;
}

START_TEST(test_run) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct fake f;
    struct cuda *d;
    if (!fake_open(&t, &f, &d)) return;
    *f.kernel = host_kernel;
    struct plan *p = small_plan(&t);
    struct cuda_exec *x = NULL;
    ck_assert_msg(cuda_create(d, p, source, NULL, &x) == ST_OK, "%s", t.log);
    ck_assert_uint_eq(cuda_get_kernel_stats(d).compiled, 1);
    float *in = cuda_host_buffer(x, BUF_INPUT, "x"), *y = cuda_host_buffer(x, BUF_OUTPUT, "y");
    int64_t *idx = cuda_host_buffer(x, BUF_INPUT, "idx");
    buf_id s = plan_find(p, BUF_STATE, "s");
    ck_assert_ptr_null(cuda_host_buffer(x, BUF_PARAM, "w"));
    ck_assert_ptr_null(cuda_host_buffer(x, BUF_INPUT, "none"));
    float sum[4] = {0.5F, 0.5F, 0.5F, 0.5F}, got[4];
    for (int step = 0; step < 5; step++) { /* alone, recorded, replayed; then in two ranges */
        for (int i = 0; i < 4; i++) in[i] = (float)(step * 4 + i), idx[i] = i, y[i] = -1;
        for (int i = 0; i < 4; i++) sum[i] += in[i] + 10 * (float)(i + 1);
        if (step < 3) {
            ck_assert(cuda_run(x, 0, 3, false) == ST_OK);
        } else {
            ck_assert(cuda_run(x, 0, 1, step == 3) == ST_OK);
            ck_assert_float_eq(y[0], -1); /* not written yet, so not downloaded */
            ck_assert(cuda_run(x, 1, 3, step == 3) == ST_OK);
        }
        for (int i = 0; i < 4; i++) ck_assert_float_eq(y[i], in[i] + 10 * (float)(i + 1));
        ck_assert(cuda_read(x, s, got) == ST_OK);
        ck_assert(memcmp(got, sum, sizeof sum) == 0);
    }
    ck_assert_int_eq(*f.graph_launches, 4);
    /* Profiling runs eagerly and says 2 ms for each launch. */
    const double *seconds = cuda_profile(x, true);
    ck_assert(cuda_run(x, 0, 3, false) == ST_OK && cuda_run(x, 0, 3, false) == ST_OK);
    ck_assert_double_eq_tol(seconds[1], 4e-3, 1e-9);
    ck_assert_int_eq(*f.graph_launches, 4);
    cuda_profile(x, false);
    /* Writing: a state, and an input whose staging must not undo it. */
    for (int i = 0; i < 4; i++) got[i] = 7;
    ck_assert(cuda_write(x, s, got) == ST_OK);
    ck_assert(cuda_write(x, plan_find(p, BUF_INPUT, "x"), got) == ST_OK);
    ck_assert(cuda_run(x, 0, 3, false) == ST_OK);
    ck_assert_float_eq(y[3], 47);
    ck_assert_int_eq(*f.graph_launches, 5);
    ck_assert_uint_eq(cuda_bytes(x), 192 + 128 + 64 + 2 * 8 + 4 * 8);
    ck_assert_int_eq(plan_bytes(p), 192 + 128 + 64 + 2 * 8 + 4 * 8);
    /* The same plan again: nothing is compiled. */
    struct cuda_exec *again = NULL;
    ck_assert(cuda_create(d, p, source, NULL, &again) == ST_OK);
    ck_assert_uint_eq(cuda_get_kernel_stats(d).compiled, 1);
    cuda_destroy(again);
    cuda_destroy(x);
    plan_destroy(p);
    fake_close(&t, &f, d);
}
END_TEST

START_TEST(test_faults) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct fake f;
    struct cuda *d;
    if (!fake_open(&t, &f, &d)) return;
    *f.kernel = host_kernel;
    struct plan *p = small_plan(&t);
    struct cuda_exec *x = NULL;
    ck_assert_msg(cuda_create(d, p, source, NULL, &x) == ST_OK, "%s", t.log);
    float *in = cuda_host_buffer(x, BUF_INPUT, "x");
    int64_t *idx = cuda_host_buffer(x, BUF_INPUT, "idx");
    for (int run = 0; run < 4; run++) { /* the word is reset: good runs between bad ones */
        bool bad = run % 2 == 0;
        idx[2] = bad ? 4 + run : 1;
        idx[3] = bad ? INT64_C(1) << 40 : 2;
        t.log[0] = '\0';
        ck_assert_int_eq(cuda_run(x, 0, 3, false), bad ? ST_DATA : ST_OK);
        if (!bad) continue;
        ck_assert_msg(strstr(t.log, "/pick: expected an index in [-4, 4)") != NULL, "%s", t.log);
        ck_assert_msg(strstr(t.log, run ? "found 6 at position 2" : "found 4 at position 2") !=
                          NULL,
                      "%s", t.log);
    }
    idx[3] = INT64_C(1) << 40;
    t.log[0] = '\0';
    ck_assert_int_eq(cuda_run(x, 0, 3, false), ST_DATA);
    ck_assert_msg(strstr(t.log, "8388607 or more at position 3") != NULL, "%s", t.log);
    idx[3] = 0;
    in[1] = NAN; /* an operand's NaN is not the launch's */
    ck_assert_int_eq(cuda_run(x, 0, 3, true), ST_OK);
    in[1] = 3e38F; /* but a new infinity is: t + s overflows */
    ck_assert(cuda_write(x, plan_find(p, BUF_STATE, "s"), (const float[]){0, 3e38F, 0, 0}) ==
              ST_OK);
    t.log[0] = '\0';
    ck_assert_int_eq(cuda_run(x, 0, 3, true), ST_NONFINITE);
    ck_assert_msg(strstr(t.log, "/sum: group gave inf at element 1 of result 0") != NULL, "%s",
                  t.log);
    *f.fail_launch = 700;
    t.log[0] = '\0';
    ck_assert_int_eq(cuda_run(x, 0, 2, false), ST_IO);
    ck_assert_int_eq(lines(t.log), 1);
    ck_assert_msg(strstr(t.log, "CUDA_ERROR_ILLEGAL_ADDRESS") != NULL, "%s", t.log);
    cuda_destroy(x);
    plan_destroy(p);
    fake_close(&t, &f, d);
}
END_TEST

START_TEST(test_refusals) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct fake f;
    struct cuda *d;
    if (!fake_open(&t, &f, &d)) return;
    struct cuda_exec *x = NULL;
    static const struct {
        int arch, launch;
        size_t memory;
        enum status want;
        const char *words;
    } cases[] = {{90, 0, 300, ST_OUT_OF_MEMORY, "the plan needs"}, /* before any compilation */
                 {100, 0, 64 << 20, ST_USAGE, "compute capability 9.0"},
                 {0, 0, 64 << 20, ST_USAGE, "for the CPU"},
                 {80, 0, 64 << 20, ST_OK, ""},
                 {90, 1, 64 << 20, ST_UNSUPPORTED, "no kernel for this argmax"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plan *p = small_plan(&t);
        p->cuda_arch = cases[i].arch;
        if (cases[i].launch) launch(p, LAUNCH_argmax, (uint32_t[]){1, 1}, 2, -1, false);
        *f.memory = cases[i].memory;
        t.log[0] = '\0';
        ck_assert_int_eq(cuda_create(d, p, source, NULL, &x), cases[i].want);
        ck_assert_msg(strstr(t.log, cases[i].words) != NULL, "%s", t.log);
        ck_assert_int_eq(lines(t.log), cases[i].want != ST_OK);
        if (i == 0) ck_assert_uint_eq(cuda_get_kernel_stats(d).compiled, 0);
        cuda_destroy(x);
        plan_destroy(p);
        ck_assert_uint_eq(*f.used, 0);
    }
    *f.memory = 64 << 20;
    struct cuda *none = NULL;
    ck_assert_int_eq(cuda_open(&t.ctx, &(struct cuda_options){.device = 1}, &none), ST_UNSUPPORTED);
    fake_close(&t, &f, d);
}
END_TEST

/* ---- attention ---------------------------------------------------------------------------------
 */
static int attentions;
static void count_kernel(const char *name, void **arguments) {
    (void)name, (void)arguments;
    attentions++;
}

/* One head of 4 queries and keys, packed [T,3,D]; two launches of the same. */
static struct plan *attention_plan(struct test_env *t, enum dtype type) {
    struct plan *p = plan_create(&t->ctx, "attention");
    p->cuda_arch = 90;
    int kernel =
        (int)add_kernel(p, "add.cu", "add", "#pragma once\n#define T float\n#define N 4\n");
    buf_id qkv = buffer(p, BUF_STATE, "qkv", type, 96), y = buffer(p, BUF_STATE, "y", type, 32);
    buf_id lse = buffer(p, BUF_STATE, "lse", DT_f32, 4);
    for (int k = 0; k < 2; k++) {
        struct plan_launch l = {.kind = LAUNCH_attention, .nin = 3, .nout = 2, .ncalls = 1};
        struct plan_call c = {(uint32_t)kernel, {1, 1, 1}, 128, 0, false};
        l.in = ARENA_ARRAY(&p->arena, struct plan_view, 3);
        l.out = ARENA_ARRAY(&p->arena, struct plan_view, 2);
        for (int i = 0; i < 4; i++)
            *(i < 3 ? &l.in[i] : l.out) = (struct plan_view){.buffer = i < 3 ? qkv : y,
                                                             .dtype = type,
                                                             .rank = 4,
                                                             .offset = i < 3 ? 8 * i : 0,
                                                             .dims = {1, 1, 4, 8},
                                                             .strides = {96, 8, i < 3 ? 24 : 8, 1}};
        l.out[1] = (struct plan_view){
            .buffer = lse, .dtype = DT_f32, .rank = 3, .dims = {1, 1, 4}, .strides = {4, 4, 1}};
        l.origin = intern(&p->strings, "/attention");
        l.first_call = p->calls.n;
        vec_push(&p->arena, &p->calls, c);
        vec_push(&p->arena, &p->launches, l);
    }
    return p;
}

/* Where cuDNN is missing, or does not work with this driver, the plan's kernels run; this is said
 * once, and only where cuDNN would have been used. */
START_TEST(test_attention_without_cudnn) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct fake f;
    struct cuda *d;
    if (!fake_open(&t, &f, &d)) return;
    *f.kernel = count_kernel;
    static const enum dtype types[] = {DT_f32, DT_bf16, DT_f16};
    static const int notes[] = {0, 1, 0};
    for (int i = 0; i < 3; i++) {
        struct plan *p = attention_plan(&t, types[i]);
        struct cuda_exec *x = NULL;
        t.log[0] = '\0';
        attentions = 0;
        ck_assert_msg(cuda_create(d, p, source, NULL, &x) == ST_OK, "%s", t.log);
        ck_assert_int_eq(lines(t.log), notes[i]);
        ck_assert_msg(!notes[i] ||
                          strstr(t.log, "cuDNN is not used, Lathe's own kernels are") != NULL,
                      "%s", t.log);
        ck_assert_uint_eq(cuda_cudnn_launches(x), 0);
        ck_assert_int_eq(plan_library_bytes(p), i ? PLAN_LIBRARY_BYTES : 0);
        ck_assert_uint_eq(cuda_bytes(x), (size_t)plan_bytes(p));
        ck_assert(cuda_run(x, 0, 2, false) == ST_OK);
        ck_assert_int_eq(attentions, 2);
        cuda_destroy(x);
        plan_destroy(p);
    }
    fake_close(&t, &f, d);
}
END_TEST

/* ---- products ----------------------------------------------------------------------------------
 */
struct product_case {
    enum dtype dtype;
    int batch; /* batch axes */
    int64_t b0, b1, m, n, k;
    bool ta, tb, tc, repeat_b, add; /* transposed views; b repeated along the batch */
    bool odd;                       /* gaps: offsets and rows that are not packed */
    enum dtype result;              /* DT_NONE: as the operands */
    bool bias, residual, gelu;
};
static const struct product_case products[] = {
    {DT_f32, 0, 1, 1, 3, 5, 7, 0, 0, 0, 0, 0, 0, .result = DT_NONE},
    {DT_f32, 0, 1, 1, 3, 5, 7, 1, 0, 0, 0, 1, 1, .result = DT_NONE},
    {DT_f64, 0, 1, 1, 3, 5, 7, 0, 1, 0, 0, 0, 1, .result = DT_NONE},
    {DT_f32, 0, 1, 1, 4, 6, 5, 1, 1, 1, 0, 0, 0, .result = DT_NONE},
    {DT_f32, 0, 1, 1, 4, 6, 5, 0, 0, 1, 0, 1, 1, .result = DT_NONE},
    {DT_f32, 1, 3, 1, 4, 6, 5, 0, 1, 0, 0, 0, 0, .result = DT_NONE},
    {DT_f32, 2, 3, 2, 4, 6, 5, 0, 0, 0, 1, 0, 1, .result = DT_NONE},
    {DT_f64, 2, 3, 4, 2, 3, 5, 1, 1, 0, 1, 1, 0, .result = DT_NONE},
    {DT_f32, 2, 2, 3, 1, 6, 5, 0, 0, 0, 0, 0, 0, .result = DT_NONE},
    {DT_f32, 1, 3, 1, 5, 1, 4, 0, 0, 0, 1, 0, 1, .result = DT_NONE},
    {DT_f32, 1, 3, 1, 5, 2, 0, 0, 0, 0, 0, 0, 1, .result = DT_NONE},
    {DT_f32, 1, 3, 1, 5, 2, 0, 0, 0, 0, 0, 1, 0, .result = DT_NONE},
    {DT_f32, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, .result = DT_NONE},
    {DT_f32, 0, 1, 1, 70, 300, 101, 0, 0, 0, 0, 1, 1, .result = DT_NONE},
    {DT_f64, 2, 40, 3, 30, 20, 33, 0, 1, 1, 1, 0, 1, .result = DT_NONE},
    {DT_bf16, 0, 1, 1, 3, 17, 5, 0, 0, 0, 0, 0, 0, .result = DT_bf16},
    {DT_bf16, 0, 1, 1, 17, 3, 129, 1, 1, 0, 0, 0, 1, .result = DT_f32},
    {DT_bf16, 0, 1, 1, 127, 1, 3, 0, 1, 1, 0, 1, 0, .result = DT_f32},
    {DT_bf16, 0, 1, 1, 5, 129, 17, 0, 1, 0, 0, 0, 1, .result = DT_bf16, .bias = true},
    {DT_bf16, 0, 1, 1, 17, 127, 3, 1, 0, 0, 0, 0, 1, .result = DT_bf16, .bias = true,
     .residual = true},
    {DT_bf16, 2, 3, 2, 5, 3, 17, 0, 0, 0, 1, 0, 1, .result = DT_f32, .residual = true},
    {DT_f32, 1, 3, 1, 17, 5, 3, 0, 0, 0, 0, 0, 1, .result = DT_f32, .bias = true, .residual = true},
    {DT_f32, 0, 1, 1, 1, 129, 7, 0, 1, 0, 0, 0, 0, .result = DT_f32, .bias = true},
    {DT_f64, 0, 1, 1, 129, 1, 7, 0, 1, 0, 0, 0, 0, .result = DT_f64, .bias = true,
     .residual = true},
    {DT_bf16, 0, 1, 1, 17, 24, 8, 0, 1, 0, 0, 0, 0, .result = DT_bf16, .gelu = true},
    {DT_bf16, 0, 1, 1, 5, 8, 40, 1, 0, 0, 0, 0, 0, .result = DT_bf16, .bias = true, .gelu = true},
};

/* A matrix view [b0, b1, rows, cols] of a fresh buffer. */
static struct plan_view matrix(struct plan *p, const struct product_case *c, const char *name,
                               enum buffer_kind kind, int64_t rows, int64_t cols, bool trans,
                               bool repeat) {
    struct plan_view v = {.dtype = c->dtype, .rank = 2 + c->batch};
    if (kind == BUF_STATE && c->result) v.dtype = c->result;
    int64_t line = (trans ? rows : cols) + (c->odd ? 3 : 0), count = trans ? cols : rows;
    int r = v.rank;
    v.offset = c->odd ? 1 : 0;
    v.dims[r - 2] = rows, v.dims[r - 1] = cols;
    v.strides[r - 2] = trans ? 1 : line;
    v.strides[r - 1] = trans ? line : 1;
    int64_t step = line * count + (c->odd ? 2 : 0), all = step;
    for (int i = c->batch - 1; i >= 0; i--) {
        v.dims[i] = i == 0 ? c->b0 : c->b1;
        v.strides[i] = repeat ? 0 : all;
        if (!repeat) all *= v.dims[i];
    }
    v.buffer = buffer(p, kind, name, v.dtype, all + 8);
    return v;
}

static double at(const char *base, const struct plan_view *v, const int64_t *i) {
    int64_t o = v->offset;
    for (int k = 0; k < v->rank; k++) o += i[k] * v->strides[k];
    return dtype_load(v->dtype, base + o * (int64_t)dtype_size(v->dtype));
}

/* Views and memory: a, b, c, bias, residual. */
static void check_product(const struct product_case *c, const struct plan_view v[5],
                          const char *mem[5], const char *before, double scale) {
    double tolerance = v[2].dtype == DT_bf16 ? 1.0 / 256 : 0; /* half a unit and more */
    for (int64_t e = 0; e < c->b0 * c->b1 * c->m * c->n; e++) {
        int64_t i[4] = {0}, row = e / c->n % c->m, col = e % c->n, b = e / (c->m * c->n);
        int r = c->batch;
        if (r == 2) i[0] = b / c->b1, i[1] = b % c->b1;
        if (r == 1) i[0] = b;
        double want = 0;
        for (int64_t k = 0; k < c->k; k++) {
            int64_t ia[4] = {i[0], i[1]}, ib[4] = {i[0], i[1]};
            ia[r] = row, ia[r + 1] = k, ib[r] = k, ib[r + 1] = col;
            want += at(mem[0], &v[0], ia) * at(mem[1], &v[1], ib);
        }
        i[r] = row, i[r + 1] = col;
        want = scale * want + (c->add ? at(before, &v[2], i) : 0);
        if (c->residual) want += at(mem[4], &v[4], i);
        if (c->bias) want += at(mem[3], &v[3], &i[r + 1]);
        if (c->gelu)
            want *= 0.5 * (1 + tanh(0.7978845608 * (want + 0.044715 * want * want * want)));
        double got = at(mem[2], &v[2], i);
        ck_assert_msg(fabs(got - want) < 1e-4 + tolerance * fabs(want),
                      "case %d: element %lld is %g, expected %g", (int)(c - products), (long long)e,
                      got, want);
    }
}

/* One launch: its operands a, b[, bias][, residual] and result c, in buffers 1 to 5. */
static struct plan *product_plan(struct test_env *t, const struct product_case *c,
                                 struct plan_view v[5]) {
    struct plan *p = plan_create(&t->ctx, "product");
    p->cuda_arch = 90;
    v[0] = matrix(p, c, "a", BUF_PARAM, c->m, c->k, c->ta, false);
    v[1] = matrix(p, c, "b", BUF_PARAM, c->k, c->n, c->tb, c->repeat_b);
    v[2] = matrix(p, c, "c", BUF_STATE, c->m, c->n, c->tc, false);
    v[3] = (struct plan_view){.dtype = v[2].dtype, .rank = 1, .dims = {c->n}, .strides = {1}};
    v[3].buffer = buffer(p, BUF_PARAM, "bias", v[2].dtype, c->n);
    v[4] = matrix(p, c, "r", BUF_STATE, c->m, c->n, false, false);
    struct attr attrs[] = {{.key = ATTR_scale, .f = 0.5},
                           {.key = ATTR_add, .i = c->add},
                           {.key = ATTR_bias, .i = c->bias},
                           {.key = ATTR_residual, .i = c->residual},
                           {.key = ATTR_gelu, .i = c->gelu}};
    struct plan_launch l = {.kind = LAUNCH_matmul, .nin = 2, .nout = 1};
    l.in = ARENA_ARRAY(&p->arena, struct plan_view, 5);
    l.out = &l.in[4];
    struct attr *kept = ARENA_ARRAY(&p->arena, struct attr, 5);
    memcpy(kept, attrs, sizeof attrs);
    l.attrs = kept;
    l.nattrs = 5;
    memcpy(l.in, v, 2 * sizeof *v);
    if (c->bias) l.in[l.nin++] = v[3];
    if (c->residual) l.in[l.nin++] = v[4];
    *l.out = v[2];
    vec_push(&p->arena, &p->launches, l);
    return p;
}

static void run_product(struct test_env *t, struct cuda *d, const struct product_case *c) {
    struct cuda_exec *x = NULL;
    struct plan_view v[5];
    struct plan *p = product_plan(t, c, v);
    ck_assert_msg(cuda_create(d, p, source, NULL, &x) == ST_OK, "%s", t->log);
    char *mem[5], *before = NULL;
    for (uint32_t i = 0; i < 5; i++) {
        const struct plan_buffer *b = &p->buffers.at[i + 1];
        enum dtype type = b->type.dtype;
        mem[i] = arena_alloc(&t->arena, (size_t)b->bytes);
        for (int64_t k = 0; k < b->type.dims[0]; k++)
            dtype_store(type, mem[i] + k * (int64_t)dtype_size(type), sin((double)(k + 100 * i)));
        ck_assert(cuda_write(x, (buf_id){i + 1}, mem[i]) == ST_OK);
        if (i == 2)
            before = memcpy(arena_alloc(&t->arena, (size_t)b->bytes), mem[2], (size_t)b->bytes);
    }
    ck_assert_msg(cuda_run(x, 0, 1, false) == ST_OK, "%s", t->log);
    ck_assert(cuda_read(x, (buf_id){3}, mem[2]) == ST_OK);
    check_product(c, v, (const char **)mem, before, 0.5);
    cuda_destroy(x);
    plan_destroy(p);
}

START_TEST(test_product) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct fake f;
    struct cuda *d;
    if (!fake_open(&t, &f, &d)) return;
    run_product(&t, d, &products[_i]);
    fake_close(&t, &f, d);
}
END_TEST

/* A measured choice is kept: equal products are asked about once, and another device object finds
 * the answer in the cache. */
START_TEST(test_choice_is_kept) {
    static const struct product_case large = {DT_bf16, 0, 1, 1, 130, 130, 130,
                                              0,       0, 0, 0, 0,   0,   .result = DT_f32};
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct fake f;
    struct cuda *d;
    if (!fake_open(&t, &f, &d)) return;
    cuda_close(d);
    void *lib = dlopen(arena_printf(&t.arena, "%s/fake/libcublasLt.so.13", folder), RTLD_NOW);
    ck_assert_ptr_ne(lib, NULL);
    const int *asked = dlsym(lib, "fake_lt_asked");
    char dir[] = "/tmp/lathe-test-XXXXXX";
    ck_assert_ptr_ne(mkdtemp(dir), NULL);
    struct cuda_options o = {.library_dir = arena_printf(&t.arena, "%s/fake", folder),
                             .cache_dir = dir};
    for (int round = 0; round < 2; round++) {
        int start = *asked;
        ck_assert_msg(cuda_open(&t.ctx, &o, &d) == ST_OK, "%s", t.log);
        run_product(&t, d, &large);
        run_product(&t, d, &large);
        ck_assert_int_eq(*asked - start, round == 0);
        cuda_close(d);
    }
    ck_assert(sys_remove_tree(&t.ctx, dir) == ST_OK);
    o.cache_dir = NULL; /* asked each time, measured never */
    int start = *asked;
    ck_assert(cuda_open(&t.ctx, &o, &d) == ST_OK);
    run_product(&t, d, &large);
    ck_assert_int_eq(*asked - start, 1);
    dlclose(lib);
    fake_close(&t, &f, d);
}
END_TEST

int main(int argc, char **argv) {
    (void)argc;
    const char *slash = strrchr(argv[0], '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - argv[0]) : 1,
             slash ? argv[0] : ".");
    struct test_env t;
    test_begin(&t);
    if (setjmp(t.landing)) return 1;
    bool nvrtc = have_nvrtc(&t);
    arena_reset(&t.arena);
    Suite *s = suite_create("cuda_run");
    TCase *tc = tcase_create("cuda");
    tcase_set_timeout(tc, 120); /* NVRTC under a sanitizer is slow */
    if (nvrtc) {
        tcase_add_test(tc, test_run);
        tcase_add_test(tc, test_faults);
        tcase_add_test(tc, test_refusals);
        tcase_add_test(tc, test_attention_without_cudnn);
        tcase_add_test(tc, test_choice_is_kept);
        tcase_add_loop_test(tc, test_product, 0, (int)(sizeof products / sizeof products[0]));
    } else {
        printf("cuda_run: 6 skipped: NVRTC is not installed\n");
    }
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
