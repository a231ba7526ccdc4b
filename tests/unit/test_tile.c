// SPDX-License-Identifier: Apache-2.0
/* test_tile.c - groups that also store what they make transposed: how many launches a plan has, the
 * same bits as launches one by one, where copies stay, and the kernels by tiles, which NVRTC
 * compiles for three architectures where there is one. */
#include "codegen/codegen.h"
#include "ir/quantize.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "test_util.h"
#include <stdlib.h>
#include <string.h>

static const str_id none = {0};
enum make { CODES, SWIGLU, CAST, ROW_BIAS, HEADS, SUMS };
static const struct form {
    int64_t rows, cols;
    enum make make;
    enum dtype from, to;
    uint32_t launches;
} forms[] = {
    {32, 48, CODES, DT_bf16, DT_e4m3, 1},      {272, 400, CODES, DT_f32, DT_e5m2, 1},
    {16, 1040, CODES, DT_bf16, DT_e4m3, 1},    {2064, 16, CODES, DT_f16, DT_e4m3, 1},
    {144, 272, SWIGLU, DT_bf16, DT_e4m3, 1},   {136, 72, CAST, DT_f32, DT_bf16, 1},
    {128, 256, ROW_BIAS, DT_bf16, DT_e4m3, 1}, {96, 64, HEADS, DT_bf16, DT_e4m3, 1},
    {17, 48, CODES, DT_bf16, DT_e4m3, 2},      {48, 17, CODES, DT_bf16, DT_e4m3, 2},
    {129, 127, CODES, DT_f32, DT_e4m3, 2},     {1, 64, CODES, DT_bf16, DT_e4m3, 0},
    {64, 1, CODES, DT_bf16, DT_e4m3, 0},       {64, 32, SUMS, DT_bf16, DT_e4m3, 2},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static val_id input(struct graph *g, const char *name, enum dtype t, int rank, const dim *dims) {
    struct type type = {.dtype = t, .rank = rank};
    for (int k = 0; k < rank; k++) type.dims[k] = dims[k];
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &type, &a, 1, none);
}

static val_id wide(struct graph *g, const char *name, const struct form *f) {
    const dim two[] = {f->rows, f->cols}, four[] = {2, f->rows / 2, 4, f->cols / 4};
    val_id x = input(g, name, f->from, f->make == HEADS ? 4 : 2, f->make == HEADS ? four : two);
    return f->from == DT_f32 ? x : build_cast(g, x, DT_f32, none);
}

static struct graph *make(struct ctx *c, const struct form *f) {
    struct graph *g = graph_create(c, "tile");
    val_id x = wide(g, "x", f);
    const dim row[] = {f->cols}, two[] = {f->rows, f->cols};
    if (f->make == SWIGLU) {
        val_id s = build_1(g, OP_sigmoid, x, none);
        x = build_2(g, OP_mul, build_2(g, OP_mul, x, s, none), wide(g, "u", f), none);
    }
    if (f->make == ROW_BIAS) x = build_2(g, OP_add, x, input(g, "b", DT_f32, 1, row), none);
    if (f->make == HEADS) x = build_reshape(g, x, two, 2, none);
    val_id y;
    if (f->make == CAST) {
        y = build_cast(g, x, f->to, none);
    } else {
        struct quant_how how = {f->to, DT_f32, .eps = 1e-10, .tile = {.whole = true}};
        y = build_quantize(g, x, input(g, "scale", DT_f32, 0, NULL), &how, none);
    }
    graph_add_output(g, "y", y);
    graph_add_output(g, "turned", build_transpose(g, y, (int64_t[]){1, 0}, none));
    if (f->make == SUMS)
        graph_add_output(g, "sums",
                         build_reduce(g, OP_reduce_sum, x, (int64_t[]){0}, 1, false, none));
    return g;
}

static void fill(const struct plan *p, struct cpu_exec *x) {
    uint64_t s = 7;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_INPUT) continue;
        const char *name = interned(&p->strings, k->name);
        char *at = cpu_buffer(x, BUF_INPUT, name);
        for (int64_t e = 0; e < type_count(&k->type); e++) {
            s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            double u = (double)(s >> 11) * 0x1p-53;
            dtype_store(k->type.dtype, at + (size_t)e * dtype_size(k->type.dtype),
                        name[0] == 's' ? 0.01 : 4 * u - 2);
        }
    }
}

struct result {
    const char *name;
    char *at;
    size_t n;
};

/* Results of a plan: kept the first time, the same bits afterwards. */
static void run(struct test_env *t, const struct form *f, bool no_fusion, int threads,
                struct result *first) {
    struct graph *g = make(&t->ctx, f);
    struct codegen_options o = {.threads = threads, .no_fusion = no_fusion, .as_gpu = true};
    struct plan *p = NULL;
    struct cpu_exec *x = NULL;
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", t->log);
    if (!no_fusion && f->launches) ck_assert_uint_eq(p->launches.n, f->launches);
    struct pool *pool = pool_create(&t->ctx, threads);
    ck_assert_int_eq(cpu_create(&t->ctx, p, pool, &x), ST_OK);
    fill(p, x);
    ck_assert_int_eq(cpu_run(x, 0, p->launches.n, true), ST_OK);
    for (int k = 0; k < 2; k++) {
        const char *at = cpu_buffer(x, BUF_OUTPUT, first[k].name);
        size_t n = (size_t)p->buffers.at[plan_find(p, BUF_OUTPUT, first[k].name).i].bytes;
        if (!first[k].at) {
            first[k].at = arena_alloc(&t->arena, n);
            memcpy(first[k].at, at, n);
            first[k].n = n;
        }
        ck_assert_uint_eq(n, first[k].n);
        ck_assert_msg(memcmp(at, first[k].at, n) == 0, "%s: %d threads: other bits", first[k].name,
                      threads);
    }
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
    graph_destroy(g);
}

static bool turned_right(const struct form *f, const struct result *r) {
    size_t size = dtype_size(f->to);
    bool right = r[0].n == r[1].n;
    for (int64_t i = 0; i < f->rows && right; i++)
        for (int64_t j = 0; j < f->cols; j++)
            right &= memcmp(r[0].at + (size_t)(i * f->cols + j) * size,
                            r[1].at + (size_t)(j * f->rows + i) * size, size) == 0;
    return right;
}

START_TEST(same_bits) {
    struct test_env t;
    static struct result first[2];
    const struct form *f = &forms[_i];
    first[0] = (struct result){.name = "y"};
    first[1] = (struct result){.name = "turned"};
    test_begin(&t);
    TEST_LANDING(&t);
    run(&t, f, true, 1, first);
    for (int threads = 1; threads <= 3; threads++) run(&t, f, false, threads, first);
    ck_assert(turned_right(f, first));
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

static const char *source(void *user, const char *file, size_t *size) {
    const struct kernel_file *f;
    (void)user;
    for (int i = 0; (f = kernel_file_at(i)) != NULL; i++) {
        if (strcmp(f->name, file) != 0) continue;
        *size = f->size;
        return f->text;
    }
    return NULL;
}

START_TEST(kernels_by_tiles) {
    static const int archs[] = {80, 90, 100};
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < FORMS; k++) {
        if (forms[k].launches != 1) continue;
        struct graph *g = make(&t.ctx, &forms[k]);
        struct codegen_options o = {.threads = 1, .cuda_arch = archs[_i]};
        struct plan *p = NULL;
        uint32_t compiled = 0;
        ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", t.log);
        ck_assert_uint_eq(p->kernels.n, 1);
        ck_assert_str_eq(interned(&p->strings, p->kernels.at[0].entry), "group_tile");
        enum status st = cuda_compile_check(&t.ctx, NULL, p, source, NULL, &compiled);
        bool skipped = st != ST_OK && strstr(t.log, "need the NVRTC library");
        ck_assert_msg(st == ST_OK || skipped, "%d: %s", k, t.log);
        if (skipped)
            printf("tile: skipped, there is no NVRTC\n");
        else
            ck_assert_uint_eq(compiled, 1);
        plan_destroy(p);
        graph_destroy(g);
        if (skipped) break;
    }
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("tile");
    TCase *tc = tcase_create("tile");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, same_bits, 0, FORMS);
    /* Threads inside NVRTC are not instrumented: a sanitizer can only guess about them. */
    if (!getenv("LATHE_TEST_SHORT")) tcase_add_loop_test(tc, kernels_by_tiles, 0, 3);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
