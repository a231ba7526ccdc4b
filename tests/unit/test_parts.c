// SPDX-License-Identifier: Apache-2.0
/* test_parts.c - maxima of parts of rows in the launch of whole rows: codes with a scale for every
 * few neighbours beside a norm, a row's maximum or another's codes. How many launches a plan has,
 * the same bits as launches one by one, what plan_verify refuses, and the kernels, which NVRTC
 * compiles for three architectures where there is one. */
#include "codegen/codegen.h"
#include "ir/quantize.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "test_util.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const str_id none = {0};
enum make { NORM, CENTERED, PRODUCT, ROW_MAX, PART_READ };
static const struct form {
    int64_t rows, cols, group;
    enum make make;
    enum dtype from, scale;
    uint32_t launches;
} forms[] = {
    {6, 64, 16, NORM, DT_bf16, DT_bf16, 1},         {5, 80, 16, NORM, DT_f32, DT_f32, 1},
    {33, 2048, 16, NORM, DT_bf16, DT_bf16, 1},      {9, 768, 32, CENTERED, DT_bf16, DT_bf16, 1},
    {7, 4096, 8, CENTERED, DT_f16, DT_e8m0, 1},     {17, 256, 16, PRODUCT, DT_bf16, DT_bf16, 1},
    {4, 8192, 16, ROW_MAX, DT_bf16, DT_f32, 1},     {3, 48, 16, PART_READ, DT_bf16, DT_bf16, 1},
    {130, 5120, 32, PART_READ, DT_bf16, DT_f32, 1}, {3, 40000, 16, NORM, DT_bf16, DT_bf16, 2},
    {8, 96, 12, NORM, DT_bf16, DT_f32, 2},          {8, 128, 64, NORM, DT_bf16, DT_bf16, 2},
    {6, 72, 16, NORM, DT_bf16, DT_bf16, 0},         {6, 16, 16, NORM, DT_bf16, DT_bf16, 1},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

static val_id input(struct graph *g, const char *name, enum dtype t, int rank, const dim *dims) {
    struct type type = {.dtype = t, .rank = rank};
    for (int k = 0; k < rank; k++) type.dims[k] = dims[k];
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &type, &a, 1, none);
}

static val_id wide(struct graph *g, const char *name, const struct form *f) {
    val_id x = input(g, name, f->from, 2, (dim[]){f->rows, f->cols});
    return f->from == DT_f32 ? x : build_cast(g, x, DT_f32, none);
}

/* x as codes by groups, and what the codes say. */
static val_id coded(struct graph *g, val_id x, const struct form *f, const char *name) {
    struct quant_how how = {DT_e4m3, f->scale, .eps = 1e-10, .tile = {.rows = 1, .cols = f->group}};
    val_id q = build_quantize(g, x, VAL_NONE, &how, none);
    graph_add_output(g, name, q);
    graph_add_output(g, name[0] == 'c' ? "scale" : "scale2", val_at(q, 1));
    return build_dequantize(g, q, val_at(q, 1), how.tile, DT_f32, none);
}

static struct graph *make(struct ctx *c, const struct form *f) {
    struct graph *g = graph_create(c, "parts");
    val_id y = coded(g, wide(g, "x", f), f, "codes");
    if (f->make == NORM || f->make == CENTERED) {
        struct attr a[] = {{.key = ATTR_axis, .i = 1}, {.key = ATTR_eps, .f = 1e-5}};
        y = graph_add(g, f->make == NORM ? OP_rms_norm : OP_layer_norm, &y, 1, a, 2, none);
    }
    if (f->make == PRODUCT) y = build_2(g, OP_mul, y, coded(g, wide(g, "u", f), f, "more"), none);
    if (f->make == PART_READ) y = build_2(g, OP_add, y, wide(g, "u", f), none);
    if (f->make == PRODUCT || f->make == ROW_MAX || f->make == PART_READ)
        graph_add_output(g, "most",
                         build_reduce(g, OP_reduce_max, build_1(g, OP_abs, y, none), (int64_t[]){1},
                                      1, false, none));
    graph_add_output(g, "y", y);
    return g;
}

static void fill(const struct plan *p, struct cpu_exec *x) {
    uint64_t s = 7;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_INPUT) continue;
        char *at = cpu_buffer(x, BUF_INPUT, interned(&p->strings, k->name));
        for (int64_t e = 0; e < type_count(&k->type); e++) {
            s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            double u = (double)(s >> 11) * 0x1p-53, v = ldexp(4 * u - 2, (int)(s >> 3 & 7));
            bool odd = e / 16 % 7 == 3; /* groups of zeros, with an infinity, with a NaN */
            if (odd) v = e % 16 != 5 ? 0 : e / 112 % 3 == 0 ? 0 : e / 112 % 3 == 1 ? INFINITY : NAN;
            dtype_store(k->type.dtype, at + (size_t)e * dtype_size(k->type.dtype), v);
        }
    }
}

enum { RESULTS = 6 };
struct result {
    const char *name;
    char *at;
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
    ck_assert_msg(cpu_run(x, 0, p->launches.n, false) == ST_OK, "%s", t->log);
    for (int k = 0; k < RESULTS; k++) {
        buf_id b = plan_find(p, BUF_OUTPUT, first[k].name);
        if (b.i == 0) continue;
        const char *at = cpu_buffer(x, BUF_OUTPUT, first[k].name);
        size_t n = (size_t)p->buffers.at[b.i].bytes;
        if (!first[k].at) {
            first[k].at = arena_alloc(&t->arena, n);
            memcpy(first[k].at, at, n);
        }
        ck_assert_msg(memcmp(at, first[k].at, n) == 0, "%s: %d threads: other bits", first[k].name,
                      threads);
    }
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
    graph_destroy(g);
}

START_TEST(same_bits) {
    struct test_env t;
    struct result first[RESULTS] = {{.name = "codes"}, {.name = "scale"},  {.name = "more"},
                                    {.name = "most"},  {.name = "scale2"}, {.name = "y"}};
    test_begin(&t);
    TEST_LANDING(&t);
    run(&t, &forms[_i], true, 1, first);
    for (int threads = 1; threads <= 3; threads++) run(&t, &forms[_i], false, threads, first);
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

/* Plans whose parts do not fit. */
START_TEST(refused) {
    static const char *const wrong[] = {"part of a row", "part of a row", "part of a row", "span"};
    struct test_env t;
    struct codegen_options o = {.threads = 1, .as_gpu = true};
    struct plan *p = NULL;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = make(&t.ctx, &forms[0]);
    ck_assert_int_eq(plan_build(g, &o, &p), ST_OK);
    struct plan_group *x = &p->groups.at[p->launches.at[0].group.i];
    struct group_instr *part = NULL;
    for (uint32_t k = 0; k < x->code.n && !part; k++)
        if (instr_is_part(x->code.at[k].code)) part = &x->code.at[k];
    ck_assert_ptr_nonnull(part);
    ck_assert_int_eq(part->imm_int, 16);
    if (_i == 0) part->imm_int = 24;
    if (_i == 1) part->imm_int = 128;
    if (_i == 2) x->mode = GROUP_MAP;
    if (_i == 3) part->span = SPAN_ROW;
    ck_assert_int_ne(plan_verify(p, "test"), ST_OK);
    ck_assert_msg(_i == 2 || strstr(t.log, wrong[_i]), "%s", t.log);
    plan_destroy(p);
    graph_destroy(g);
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

START_TEST(kernels) {
    static const int archs[] = {80, 90, 100};
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < FORMS; k++) {
        struct graph *g = make(&t.ctx, &forms[k]);
        struct codegen_options o = {.threads = 1, .cuda_arch = archs[_i]};
        struct plan *p = NULL;
        uint32_t compiled = 0;
        ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", t.log);
        if (forms[k].launches) ck_assert_uint_eq(p->launches.n, forms[k].launches);
        enum status st = cuda_compile_check(&t.ctx, NULL, p, source, NULL, &compiled);
        bool skipped = st != ST_OK && strstr(t.log, "need the NVRTC library");
        ck_assert_msg(st == ST_OK || skipped, "%d: %s", k, t.log);
        if (skipped) printf("parts: skipped, there is no NVRTC\n");
        plan_destroy(p);
        graph_destroy(g);
        if (skipped) break;
    }
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("parts");
    TCase *tc = tcase_create("parts");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, same_bits, 0, FORMS);
    tcase_add_loop_test(tc, refused, 0, 4);
    /* Threads inside NVRTC are not instrumented: a sanitizer can only guess about them. */
    if (!getenv("LATHE_TEST_SHORT")) tcase_add_loop_test(tc, kernels, 0, 3);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
