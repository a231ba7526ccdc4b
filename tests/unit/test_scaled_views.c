// SPDX-License-Identifier: Apache-2.0
/* test_scaled_views.c - where products of 8-bit codes read and write: parts of larger values,
 * joined results, lines that libraries cannot address, and what is added to them. Values against
 * the reference evaluator; which copies a plan makes; refusals of the verifier. Element types,
 * scales and sizes are test_scaled.c's. */
#include "base/fp8.h"
#include "codegen/codegen.h"
#include "ir/quantize.h"
#include "ref_eval.h"
#include "runtime/cpu.h"
#include "test_util.h"

enum { M = 32, N = 48, K = 64 };
static const str_id no_origin = {0};

static val_id input(struct graph *g, const char *name, enum dtype t, int rank, const dim *dims) {
    struct type type = {.dtype = t, .rank = rank};
    for (int k = 0; k < rank; k++) type.dims[k] = dims[k];
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &type, &a, 1, no_origin);
}
#define INPUT(g, name, t, ...)                                                                     \
    input(g, name, t, (int)(sizeof(const dim[]){__VA_ARGS__} / sizeof(dim)),                       \
          (const dim[]){__VA_ARGS__})
#define SLICE(g, x, starts, sizes)                                                                 \
    build_slice(g, x, (const dim[])starts, (const dim[])sizes, NULL, no_origin)
#define LIST(...)                                                                                  \
    { __VA_ARGS__ }

/* a b^T of new inputs; batch: a is [2,M/2,K]; rows: scales of rows. */
static val_id product(struct graph *g, const char *const names[4], bool batch, bool rows,
                      enum dtype t) {
    val_id a = batch ? INPUT(g, names[0], DT_e4m3, 2, M / 2, K) : INPUT(g, names[0], DT_e4m3, M, K);
    val_id b = INPUT(g, names[1], DT_e4m3, N, K);
    val_id scale[2];
    for (int k = 0; k < 2; k++) {
        struct type type;
        struct quant_tile tile = {.whole = !rows, .rows = 1};
        ck_assert(quant_scale_type(val_type(g, k ? b : a), tile, DT_f32, &type));
        scale[k] = input(g, names[2 + k], DT_f32, type.rank, type.dims);
    }
    return build_scaled_matmul(g, a, b, scale[0], scale[1], t, no_origin);
}
static const char *const first_names[4] = {"a", "b", "sa", "sb"};
static const char *const second_names[4] = {"c", "d", "sc", "sd"};

static val_id sum(struct graph *g, val_id x, val_id y) {
    return build_2(g, OP_add, build_cast(g, x, DT_f32, no_origin),
                   build_cast(g, y, DT_f32, no_origin), no_origin);
}

static val_id join(struct graph *g, val_id x, val_id y, int64_t axis) {
    return build_concat(g, (const val_id[]){x, y}, 2, axis, no_origin);
}

/* ---- graphs -------------------------------------------------------------------------------- */
static val_id f32_bias(struct graph *g) {
    return sum(g, product(g, first_names, false, false, DT_f32), INPUT(g, "bias", DT_f32, N));
}
static val_id f32_residual(struct graph *g) {
    return sum(g, product(g, first_names, false, true, DT_f32), INPUT(g, "r", DT_f32, M, N));
}
static val_id joined_unaligned(struct graph *g) {
    return join(g, product(g, first_names, false, false, DT_bf16), INPUT(g, "z", DT_bf16, M, 5), 1);
}
static val_id joined_behind(struct graph *g) { /* starts at byte 10 of each line of 112 */
    val_id y = product(g, first_names, false, false, DT_bf16);
    return build_concat(
        g, (const val_id[]){INPUT(g, "z", DT_bf16, M, 5), y, INPUT(g, "u", DT_bf16, M, 3)}, 3, 1,
        no_origin);
}
static val_id joined_aligned(struct graph *g) {
    return join(g, product(g, first_names, false, true, DT_bf16), INPUT(g, "z", DT_bf16, M, 8), 1);
}
static val_id joined_batch(struct graph *g) { /* as a class token in front of patches */
    return join(g, INPUT(g, "z", DT_bf16, 2, 1, N), product(g, first_names, true, false, DT_bf16),
                1);
}
static val_id joined_lines(struct graph *g) {
    return join(g, product(g, first_names, true, false, DT_f32), INPUT(g, "z", DT_f32, 2, M / 2, 4),
                2);
}
static val_id joined_first(struct graph *g) {
    return join(g, INPUT(g, "z", DT_bf16, 3, N), product(g, first_names, false, false, DT_bf16), 0);
}
static val_id transposed(struct graph *g) {
    val_id y = product(g, first_names, false, true, DT_f32);
    return join(g, build_swap_last(g, y, no_origin), INPUT(g, "z", DT_f32, 3, M), 0);
}
static val_id codes_inside(struct graph *g) {
    val_id all = INPUT(g, "a", DT_e4m3, M * K + 24), b = INPUT(g, "b", DT_e4m3, N, K);
    val_id a =
        build_reshape(g, SLICE(g, all, LIST(8), LIST(M * K)), (const dim[]){M, K}, 2, no_origin);
    return build_scaled_matmul(g, a, b, input(g, "sa", DT_f32, 0, NULL),
                               input(g, "sb", DT_f32, 0, NULL), DT_f32, no_origin);
}
static val_id codes_columns(struct graph *g) { /* lines with gaps */
    val_id all = INPUT(g, "a", DT_e4m3, M, K + 16), b = INPUT(g, "b", DT_e4m3, N, K);
    val_id a = SLICE(g, all, LIST(0, 16), LIST(M, K));
    return build_scaled_matmul(g, a, b, input(g, "sa", DT_f32, 0, NULL),
                               input(g, "sb", DT_f32, 0, NULL), DT_f32, no_origin);
}
static val_id codes_transposed(struct graph *g) {
    val_id a = build_swap_last(g, INPUT(g, "a", DT_e5m2, K, M), no_origin);
    val_id b = build_swap_last(g, INPUT(g, "b", DT_e4m3, K, N), no_origin);
    return build_scaled_matmul(g, a, b, input(g, "sa", DT_f32, 0, NULL),
                               input(g, "sb", DT_f32, 0, NULL), DT_f32, no_origin);
}
static val_id scales_inside(struct graph *g) {
    val_id sa = SLICE(g, INPUT(g, "sa", DT_f32, M + 1, 1), LIST(1, 0), LIST(M, 1));
    return build_scaled_matmul(g, INPUT(g, "a", DT_e4m3, M, K), INPUT(g, "b", DT_e4m3, N, K), sa,
                               INPUT(g, "sb", DT_f32, N, 1), DT_f32, no_origin);
}
static val_id residual_columns(struct graph *g) {
    val_id r = SLICE(g, INPUT(g, "r", DT_bf16, M, N + 3), LIST(0, 1), LIST(M, N));
    return build_cast(g, sum(g, product(g, first_names, false, false, DT_bf16), r), DT_bf16,
                      no_origin);
}
static val_id residual_batch(struct graph *g) {
    val_id r = SLICE(g, INPUT(g, "r", DT_bf16, 2, M / 2 + 1, N), LIST(0, 1, 0), LIST(2, M / 2, N));
    return build_cast(g, sum(g, product(g, first_names, true, true, DT_bf16), r), DT_bf16,
                      no_origin);
}
static val_id residual_first(struct graph *g) { /* aligned: read where it is */
    val_id r = SLICE(g, INPUT(g, "r", DT_bf16, M + 1, N), LIST(1, 0), LIST(M, N));
    return build_cast(g, sum(g, product(g, first_names, false, false, DT_bf16), r), DT_bf16,
                      no_origin);
}
static val_id constant(struct graph *g) {
    return build_scale(g, product(g, first_names, false, true, DT_f32), -0.375, no_origin);
}
static val_id accumulated(struct graph *g) {
    val_id y = product(g, first_names, true, false, DT_bf16);
    return sum(g, y, product(g, second_names, true, true, DT_bf16));
}

static const struct form {
    const char *name;
    val_id (*build)(struct graph *g);
    uint32_t products, launches;
} forms[] = {
    {"f32 bias", f32_bias, 1, 2},
    {"f32 residual", f32_residual, 1, 1},
    {"joined, lines of 106 bytes", joined_unaligned, 1, 3},
    {"joined, at byte 10", joined_behind, 1, 4},
    {"joined, lines of 112 bytes", joined_aligned, 1, 2},
    {"joined within a batch", joined_batch, 1, 3},
    {"joined lines of a batch", joined_lines, 1, 2},
    {"joined behind rows", joined_first, 1, 2},
    {"transposed", transposed, 1, 2},
    {"codes at byte 8", codes_inside, 1, 2},
    {"codes with gaps", codes_columns, 1, 2},
    {"codes with K first", codes_transposed, 1, 3},
    {"scales at byte 4", scales_inside, 1, 2},
    {"residual with gaps", residual_columns, 1, 2},
    {"residual of parts of a batch", residual_batch, 1, 2},
    {"residual behind rows", residual_first, 1, 1},
    {"constant", constant, 1, 1},
    {"accumulated", accumulated, 2, 2},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

/* ---- numbers ------------------------------------------------------------------------------- */
static void fill(const struct plan *p, struct cpu_exec *x) {
    uint64_t s = 3;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (b->kind != BUF_INPUT) continue;
        bool scale = interned(&p->strings, b->name)[0] == 's';
        size_t size = dtype_size(b->type.dtype);
        char *at = cpu_buffer_at(x, (buf_id){i});
        for (int64_t e = 0; e < type_count(&b->type); e++) {
            s = s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            double u = (double)(s >> 11) * 0x1p-53;
            dtype_store(b->type.dtype, at + (size_t)e * size, scale ? (1 + u) / 8 : 4 * u - 2);
        }
    }
}

struct source {
    const struct plan *p;
    struct cpu_exec *x;
};

static bool feed(void *user, const char *name, double *at, int64_t n) {
    struct source *s = user;
    const struct plan_buffer *b = &s->p->buffers.at[plan_find(s->p, BUF_INPUT, name).i];
    const char *from = cpu_buffer(s->x, BUF_INPUT, name);
    for (int64_t i = 0; i < n; i++)
        at[i] = dtype_load(b->type.dtype, from + (size_t)i * dtype_size(b->type.dtype));
    return true;
}

static bool is_codes(const struct plan_launch *l) {
    return l->kind == LAUNCH_matmul && launch_int(l, ATTR_scaled, 0);
}

/* twice: products are rounded, then what becomes of them */
static void compare(struct test_env *t, const struct graph *g, const struct plan *p,
                    struct cpu_exec *x, bool twice) {
    struct source s = {p, x};
    struct ref want = ref_output(g, ref_eval(g, &t->arena, feed, &s), "y");
    const struct plan_buffer *b = &p->buffers.at[plan_find(p, BUF_OUTPUT, "y").i];
    const char *at = cpu_buffer(x, BUF_OUTPUT, "y");
    ck_assert_int_eq(type_count(&b->type), want.n);
    double unit = b->type.dtype == DT_bf16 ? 0x1p-8 : 1e-6, worst = 0;
    for (int64_t i = 0; i < want.n; i++) {
        double got = dtype_load(b->type.dtype, at + (size_t)i * dtype_size(b->type.dtype));
        ck_assert_msg(fabs(got - want.at[i]) <= unit * fabs(want.at[i]) + (twice ? 0x1p-7 : 1e-5),
                      "y[%lld] is %.9g, not %.9g", (long long)i, got, want.at[i]);
        worst = fmax(worst, fabs(want.at[i]));
    }
    ck_assert(worst > 0.5); /* far above what is let pass */
}

static struct graph *make(struct test_env *t, const struct form *f) {
    struct graph *g = graph_create(&t->ctx, "views");
    graph_add_output(g, "y", f->build(g));
    return g;
}

START_TEST(views) {
    struct test_env t;
    const struct form *f = &forms[_i];
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = make(&t, f);
    for (int reference = 0; reference < 2; reference++) {
        struct codegen_options o = {.threads = 2, .no_fusion = reference};
        struct plan *p = NULL;
        struct cpu_exec *x = NULL;
        ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s: %s", f->name, t.log);
        uint32_t products = 0;
        for (uint32_t i = 0; i < p->launches.n; i++) products += is_codes(&p->launches.at[i]);
        ck_assert_uint_eq(products, f->products);
        ck_assert_msg(reference || p->launches.n == f->launches, "%s: %u launches, not %u", f->name,
                      p->launches.n, f->launches);
        struct pool *pool = pool_create(&t.ctx, 2);
        ck_assert_int_eq(cpu_create(&t.ctx, p, pool, &x), ST_OK);
        fill(p, x);
        ck_assert_int_eq(cpu_run(x, 0, p->launches.n, true), ST_OK);
        compare(&t, g, p, x, reference);
        cpu_destroy(x);
        pool_destroy(pool);
        plan_destroy(p);
    }
    ck_assert_str_eq(t.log, "");
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------ */
/* Parts of larger values, so that what is spoiled still lies inside. */
static val_id roomy(struct graph *g) {
    val_id in[4] = {
        SLICE(g, INPUT(g, "a", DT_e4m3, 2 * M, K), LIST(1, 0), LIST(M, K)),
        SLICE(g, INPUT(g, "b", DT_e4m3, 2 * N, K), LIST(1, 0), LIST(N, K)),
        SLICE(g, INPUT(g, "sa", DT_f32, 2 * M, 1), LIST(4, 0), LIST(M, 1)),
        SLICE(g, INPUT(g, "sb", DT_f32, 2 * N, 1), LIST(4, 0), LIST(N, 1)),
    };
    val_id y = build_scaled_matmul(g, in[0], in[1], in[2], in[3], DT_bf16, no_origin);
    val_id bias = SLICE(g, INPUT(g, "bias", DT_bf16, 4 * N), LIST(8), LIST(N));
    y = sum(g, sum(g, y, bias), SLICE(g, INPUT(g, "r", DT_bf16, 4 * M, N), LIST(1, 0), LIST(M, N)));
    y = build_cast(g, y, DT_bf16, no_origin);
    graph_add_output(g, "again", build_1(g, OP_abs, y, no_origin)); /* worth folding into */
    return join(g, y, INPUT(g, "z", DT_bf16, 2 * M, N), 0);
}

static void late_a(struct plan_launch *l) {
    l->in[0].offset = 8;
}
static void short_a(struct plan_launch *l) {
    l->in[0].dims[1] = l->in[1].dims[0] = K - 8;
}
static void gaps_b(struct plan_launch *l) {
    l->in[1].strides[1] = K + 16;
}
static void rows_b(struct plan_launch *l) {
    l->in[1].strides[0] = N, l->in[1].strides[1] = 1;
}
static void type_a(struct plan_launch *l) {
    l->in[0].dtype = DT_i8;
}
static void both_e5m2(struct plan_launch *l) {
    l->in[0].dtype = l->in[1].dtype = DT_e5m2;
}
static void few_scales(struct plan_launch *l) {
    l->in[2].dims[0] = M / 2;
}
static void one_scale(struct plan_launch *l) {
    l->in[3].dims[0] = 1;
}
static void late_scales(struct plan_launch *l) {
    l->in[2].offset = 5;
}
static void late_bias(struct plan_launch *l) {
    l->in[4].offset = 4;
}
static void late_residual(struct plan_launch *l) {
    l->in[5].offset = 4;
}
static void odd_residual(struct plan_launch *l) {
    l->in[5].strides[0] = N + 4;
}
static void odd_result(struct plan_launch *l) {
    l->out[0].strides[0] = N + 4;
}
static void late_result(struct plan_launch *l) {
    l->out[0].offset = 2;
}
static void f32_everything(struct plan_launch *l) {
    l->in[4].dtype = l->in[5].dtype = l->out[0].dtype = DT_f32;
}

static const struct {
    void (*spoil)(struct plan_launch *l);
    const char *words;
} refusals[] = {
    {late_a, "16-byte aligned"},
    {short_a, "operands of a matmul of codes"},
    {gaps_b, "operands of a matmul"},
    {rows_b, "operands of a matmul of codes"},
    {type_a, "operands of a matmul"},
    {both_e5m2, "operands of a matmul of codes"},
    {few_scales, "scales of a"},
    {one_scale, "scales of a matmul of codes"},
    {late_scales, "16-byte aligned"},
    {late_bias, "16-byte aligned"},
    {late_residual, "16-byte"},
    {odd_residual, "16-byte aligned"},
    {odd_result, "16-byte aligned"},
    {late_result, "16-byte aligned"},
    {f32_everything, "f32 bias of a matmul of codes"},
};
enum { REFUSALS = sizeof refusals / sizeof refusals[0] };

START_TEST(refused) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "views");
    struct codegen_options o = {.threads = 1};
    struct plan *p = NULL;
    graph_add_output(g, "y", roomy(g));
    ck_assert_int_eq(plan_build(g, &o, &p), ST_OK);
    struct plan_launch *l = NULL;
    for (uint32_t i = 0; i < p->launches.n; i++)
        if (is_codes(&p->launches.at[i])) l = &p->launches.at[i];
    ck_assert_ptr_nonnull(l);
    ck_assert_uint_eq(l->nin, 6);
    ck_assert_int_eq(plan_verify(p, "test"), ST_OK);
    refusals[_i].spoil(l);
    ck_assert_int_ne(plan_verify(p, "test"), ST_OK);
    ck_assert_msg(strstr(t.log, refusals[_i].words), "'%s' is not in %s", refusals[_i].words,
                  t.log);
    plan_destroy(p);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("scaled views");
    TCase *tc = tcase_create("scaled views");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, views, 0, FORMS);
    tcase_add_loop_test(tc, refused, 0, REFUSALS);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
