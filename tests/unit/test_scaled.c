// SPDX-License-Identifier: Apache-2.0
/* test_scaled.c - products of 8-bit codes on the CPU against sums in f64 of what the codes stand
 * for: scales of tensors, rows and blocks, sizes that a launch takes and sizes that are written
 * out, what is folded in, any number of threads. */
#include "base/fp8.h"
#include "codegen/codegen.h"
#include "ir/quantize.h"
#include "runtime/cpu.h"
#include "test_util.h"
#include <math.h>
#include <string.h>

enum fold { PLAIN, WIDE, BIAS, RESIDUAL, BOTH, BATCH };
static const struct form {
    int64_t m, n, k;
    struct quant_tile a, b;
    enum dtype fa, fb, y;
    enum fold fold;
    uint32_t launches; /* products among the launches with attr scaled */
} forms[] = {
    {32, 48, 64, {.whole = true}, {.whole = true}, DT_e4m3, DT_e4m3, DT_bf16, PLAIN, 1},
    {32, 48, 64, {.whole = true}, {.whole = true}, DT_e5m2, DT_e4m3, DT_f32, PLAIN, 1},
    {32, 48, 64, {.whole = true}, {.whole = true}, DT_e4m3, DT_e5m2, DT_bf16, WIDE, 1},
    {16, 16, 1040, {false, 1, 0}, {false, 1, 0}, DT_e4m3, DT_e4m3, DT_f16, PLAIN, 1},
    {528, 272, 32, {false, 1, 0}, {false, 1, 0}, DT_e4m3, DT_e4m3, DT_f32, PLAIN, 1},
    {48, 32, 64, {.whole = true}, {.whole = true}, DT_e4m3, DT_e4m3, DT_bf16, BIAS, 1},
    {48, 32, 64, {false, 1, 0}, {false, 1, 0}, DT_e5m2, DT_e4m3, DT_bf16, RESIDUAL, 1},
    {48, 32, 64, {.whole = true}, {.whole = true}, DT_e4m3, DT_e4m3, DT_bf16, BOTH, 1},
    {48, 32, 64, {.whole = true}, {.whole = true}, DT_e4m3, DT_e4m3, DT_bf16, BATCH, 1},
    {48, 32, 64, {false, 1, 0}, {false, 1, 0}, DT_e4m3, DT_e4m3, DT_bf16, BATCH, 1},
    {17, 48, 64, {.whole = true}, {.whole = true}, DT_e4m3, DT_e4m3, DT_f32, PLAIN, 0},
    {32, 5, 64, {false, 1, 0}, {false, 1, 0}, DT_e4m3, DT_e4m3, DT_f32, PLAIN, 0},
    {3, 7, 129, {.whole = true}, {.whole = true}, DT_e5m2, DT_e4m3, DT_f32, BIAS, 0},
    {32, 48, 300, {false, 1, 128}, {false, 128, 128}, DT_e4m3, DT_e4m3, DT_f32, PLAIN, 0},
    {160, 48, 256, {false, 1, 128}, {false, 1, 128}, DT_e5m2, DT_e4m3, DT_f32, PLAIN, 0},
    {160, 48, 256, {false, 128, 128}, {false, 1, 128}, DT_e4m3, DT_e4m3, DT_bf16, PLAIN, 0},
};
enum { FORMS = sizeof forms / sizeof forms[0], OPERANDS = 6 };

static val_id input(struct graph *g, const char *name, enum dtype t, int rank, const dim *dims) {
    struct type type = {.dtype = t, .rank = rank};
    for (int k = 0; k < rank; k++) type.dims[k] = dims[k];
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &type, &a, 1, (str_id){0});
}

static val_id scale_input(struct graph *g, const char *name, val_id codes, struct quant_tile tile) {
    struct type t;
    ck_assert(quant_scale_type(val_type(g, codes), tile, DT_f32, &t));
    return input(g, name, DT_f32, t.rank, t.dims);
}

static struct graph *make(struct ctx *c, const struct form *f) {
    struct graph *g = graph_create(c, "scaled");
    const str_id o = {0};
    const dim batch[] = {2, f->m / 2, f->k}, whole[] = {f->m, f->k}, b_dims[] = {f->n, f->k};
    bool folded = f->fold == BATCH;
    val_id a = input(g, "a", f->fa, folded ? 3 : 2, folded ? batch : whole);
    val_id b = input(g, "b", f->fb, 2, b_dims);
    val_id sa = scale_input(g, "sa", a, f->a), sb = scale_input(g, "sb", b, f->b);
    val_id y = build_scaled_matmul(g, a, b, sa, sb, f->y, o);
    if (f->fold != PLAIN && f->fold != BATCH) y = build_cast(g, y, DT_f32, o);
    if (f->fold == BIAS || f->fold == BOTH)
        y = build_2(g, OP_add, y, build_cast(g, input(g, "bias", f->y, 1, &f->n), DT_f32, o), o);
    const dim r[] = {f->m, f->n};
    if (f->fold == RESIDUAL || f->fold == BOTH)
        y = build_2(g, OP_add, y, build_cast(g, input(g, "r", f->y, 2, r), DT_f32, o), o);
    if (f->fold >= BIAS && f->fold != BATCH) y = build_cast(g, y, f->y, o);
    graph_add_output(g, "y", y);
    return g;
}

/* ---- numbers ------------------------------------------------------------------------------- */
static double rnd(uint64_t *s) {
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*s >> 11) * 0x1p-53;
}

/* Any finite code; scales near 1/64; the rest in [-1, 1). */
static void fill(const struct plan *p, struct cpu_exec *x) {
    uint64_t s = 7;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_INPUT) continue;
        const char *name = interned(&p->strings, k->name);
        unsigned char *at = cpu_buffer(x, BUF_INPUT, name);
        for (int64_t e = 0; e < type_count(&k->type); e++) {
            double u = rnd(&s);
            if (dtype_size(k->type.dtype) == 1)
                at[e] = (unsigned char)((int)(u * 120) | (rnd(&s) < 0.5 ? 128 : 0));
            else
                dtype_store(k->type.dtype, at + (size_t)e * dtype_size(k->type.dtype),
                            name[0] == 's' ? (1 + u) / 64 : 2 * u - 1);
        }
    }
}

/* The scale of element (row, col) of an operand of `rows` x `k`. */
static double scale_at(const float *s, struct quant_tile t, int64_t k, int64_t row, int64_t col) {
    if (t.whole) return (double)s[0];
    int64_t columns = t.cols ? (k + t.cols - 1) / t.cols : 1;
    return (double)s[row / t.rows * columns + (t.cols ? col / t.cols : 0)];
}

static double value(enum dtype t, const unsigned char *at, int64_t e) {
    return dtype_load(t, at + e);
}

static void compare(const struct form *f, const struct plan *p, struct cpu_exec *x) {
    const unsigned char *a = cpu_buffer(x, BUF_INPUT, "a"), *b = cpu_buffer(x, BUF_INPUT, "b");
    const float *sa = cpu_buffer(x, BUF_INPUT, "sa"), *sb = cpu_buffer(x, BUF_INPUT, "sb");
    const char *bias = cpu_buffer(x, BUF_INPUT, "bias"), *r = cpu_buffer(x, BUF_INPUT, "r");
    const char *y = cpu_buffer(x, BUF_OUTPUT, "y");
    enum dtype t = p->buffers.at[plan_find(p, BUF_OUTPUT, "y").i].type.dtype;
    /* of bf16: operands that are written out are rounded, then the result, twice where cast */
    double unit = f->y == DT_bf16 ? 0x1p-7 : f->y == DT_f16 ? 0x1p-10 : 4e-6;
    for (int64_t i = 0; i < f->m; i++)
        for (int64_t j = 0; j < f->n; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t k = 0; k < f->k; k++) {
                double u = value(f->fa, a, i * f->k + k) * scale_at(sa, f->a, f->k, i, k);
                double v = value(f->fb, b, j * f->k + k) * scale_at(sb, f->b, f->k, j, k);
                sum += u * v, magnitude += fabs(u * v);
            }
            if (bias) sum += dtype_load(f->y, bias + (size_t)j * dtype_size(f->y));
            if (r) sum += dtype_load(f->y, r + (size_t)(i * f->n + j) * dtype_size(f->y));
            double got = dtype_load(t, y + (size_t)(i * f->n + j) * dtype_size(t));
            double limit = unit * fabs(sum) + (f->launches ? 1e-6 : unit / 2) * magnitude + 1e-9;
            ck_assert_msg(fabs(got - sum) <= limit, "y[%lld,%lld] is %g, not %g", (long long)i,
                          (long long)j, got, sum);
        }
}

struct bits {
    char *at;
    size_t n;
};

static void run(struct test_env *t, const struct form *f, int threads, struct bits *first) {
    struct graph *g = make(&t->ctx, f);
    struct codegen_options o = {.threads = threads};
    struct plan *p = NULL;
    struct cpu_exec *x = NULL;
    ck_assert_int_eq(plan_build(g, &o, &p), ST_OK);
    uint32_t scaled = 0;
    for (uint32_t i = 0; i < p->launches.n; i++)
        scaled += p->launches.at[i].kind == LAUNCH_matmul &&
                  launch_int(&p->launches.at[i], ATTR_scaled, 0);
    ck_assert_uint_eq(scaled, f->launches);
    if (f->launches) ck_assert_uint_eq(p->launches.n, 1); /* all is folded in */
    struct pool *pool = pool_create(&t->ctx, threads);
    ck_assert_int_eq(cpu_create(&t->ctx, p, pool, &x), ST_OK);
    fill(p, x);
    ck_assert_int_eq(cpu_run(x, 0, p->launches.n, true), ST_OK);
    compare(f, p, x);
    const struct plan_buffer *y = &p->buffers.at[plan_find(p, BUF_OUTPUT, "y").i];
    const char *at = cpu_buffer(x, BUF_OUTPUT, "y");
    if (first->at) {
        ck_assert_uint_eq(first->n, (size_t)y->bytes);
        ck_assert_msg(memcmp(first->at, at, first->n) == 0, "%d threads give other bits", threads);
    } else {
        first->n = (size_t)y->bytes;
        first->at = arena_alloc(&t->arena, first->n);
        memcpy(first->at, at, first->n);
    }
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
    graph_destroy(g);
}

START_TEST(products_of_codes) {
    struct test_env t;
    static struct bits first;
    first = (struct bits){NULL, 0};
    test_begin(&t);
    TEST_LANDING(&t);
    for (int threads = 1; threads <= 3; threads++) run(&t, &forms[_i], threads, &first);
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("scaled");
    TCase *tc = tcase_create("scaled");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, products_of_codes, 0, FORMS);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
