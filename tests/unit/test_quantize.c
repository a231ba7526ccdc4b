// SPDX-License-Identifier: Apache-2.0
/* test_quantize.c - quantize and dequantize as a plan runs them on the CPU against the definitions
 * written out element by element (runtime/quantize.c), for odd shapes, all scopes and awkward
 * numbers; delayed scales; the gradient; refusals. Published cases where COAT_VECTORS names their
 * file, through ops as far as they are about ops. */
#include "base/fp8.h"
#include "codegen/codegen.h"
#include "passes/pass.h"
#include "quantize_graph.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include "runtime/quantize.h"
#include "test_util.h"
#include <float.h>
#include <jansson.h>
#include <math.h>

/* ---- running a graph ------------------------------------------------------------------------ */
struct run {
    struct test_env *t;
    struct plan *p;
    struct pool *pool;
    struct cpu_exec *x;
};

static struct run run_open(struct test_env *t, struct graph *g, bool fused) {
    struct run r = {.t = t};
    struct codegen_options o = {.threads = 3, .no_fusion = !fused};
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s", t->log);
    ck_assert_msg(plan_build(g, &o, &r.p) == ST_OK, "%s", t->log);
    r.pool = pool_create(&t->ctx, 3);
    ck_assert_msg(cpu_create(&t->ctx, r.p, r.pool, &r.x) == ST_OK, "%s", t->log);
    return r;
}
static void run_step(struct run *r) {
    ck_assert_msg(cpu_run(r->x, 0, r->p->launches.n, false) == ST_OK, "%s", r->t->log);
}
static void *run_at(struct run *r, enum buffer_kind kind, const char *name) {
    static char nothing[8]; /* what an empty tensor has */
    void *at = cpu_buffer(r->x, kind, name);
    buf_id b = plan_find(r->p, kind, name);
    ck_assert_msg(b.i != 0, "no '%s'", name);
    return at ? at : nothing;
}
static void run_close(struct run *r) {
    cpu_destroy(r->x);
    pool_destroy(r->pool);
    plan_destroy(r->p);
}

static val_id input_of(struct graph *g, const char *name, const struct type *t) {
    struct attr a = {.key = ATTR_name, .s = name};
    val_id v = graph_source(g, OP_input, t, &a, 1, (str_id){0});
    graph_set_name(g, v, name);
    return v;
}

/* ---- against the definitions ------------------------------------------------------------------
 */
static const struct type shapes[] = {
    {DT_f32, 0, {0}},           {DT_f32, 1, {1}},
    {DT_f32, 1, {17}},          {DT_f32, 1, {300}},
    {DT_f32, 2, {5, 48}},       {DT_f32, 2, {7, 130}},
    {DT_f32, 3, {3, 5, 33}},    {DT_bf16, 4, {2, 3, 9, 40}},
    {DT_f32, 2, {0, 16}},       {DT_f32, 2, {4, 0}},
    {DT_bf16, 2, {64, 256}},    {DT_f16, 2, {1, 129}},
    {DT_f64, 2, {33, 65}},      {DT_f32, 2, {300, 1}},
    {DT_f32, 3, {2, 128, 128}},
};
static const struct quant_tile tiles[] = {
    {true, 0, 0},  {false, 1, 0}, {false, 1, 16}, {false, 1, 128},   {false, 4, 8},
    {false, 0, 1}, {false, 0, 0}, {false, 3, 7},  {false, 128, 128}, {false, 1, 1},
};
static const enum dtype formats[] = {DT_e4m3, DT_e5m2, DT_i8},
                        scales[] = {DT_f32, DT_bf16, DT_e8m0};
enum { SHAPES = sizeof shapes / sizeof shapes[0], TILES = sizeof tiles / sizeof tiles[0] };

struct one_case {
    struct type x;
    struct quant_how how;
    int kind;
    bool fused;
};

static void check_part(const struct one_case *c, struct arena *a, const float *x, int64_t rows,
                       int64_t cols, const uint8_t *codes, const char *scale, const float *amax,
                       const float *values, int64_t *tile) {
    struct quant_spec s = {.format = c->how.format,
                           .scale_type = c->how.scale_type,
                           .tile = c->how.tile,
                           .eps = (float)c->how.eps};
    struct quantized q = quantize_matrix(a, x, rows, cols, &s);
    for (int64_t i = 0; i < rows * cols; i++) {
        if (codes[i] != q.codes[i])
            ck_abort_msg("element %lld: %a has code %02x, expected %02x", (long long)i,
                         (double)x[i], codes[i], q.codes[i]);
        if (!(values[i] == q.values[i] || (values[i] != values[i] && q.values[i] != q.values[i])))
            ck_abort_msg("element %lld: %a, expected %a", (long long)i, (double)values[i],
                         (double)q.values[i]);
    }
    size_t size = dtype_size(s.scale_type);
    for (int64_t k = 0; k < q.down * q.across; k++, ++*tile) {
        float got = (float)dtype_load(s.scale_type, scale + (size_t)*tile * size);
        ck_assert_msg(got == q.scale[k] || (got != got && q.scale[k] != q.scale[k]),
                      "scale %lld: %a, expected %a", (long long)k, (double)got, (double)q.scale[k]);
        if (rows * cols == 0) ck_assert(amax[*tile] == 0);
    }
}

static void check_case(const struct one_case *c) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "q");
    str_id o = {0};
    val_id x = input_of(g, "x", &c->x);
    val_id q = build_quantize(g, x, VAL_NONE, &c->how, o);
    graph_add_output(g, "codes", q);
    graph_add_output(g, "scale", val_at(q, 1));
    graph_add_output(g, "amax", val_at(q, 2));
    graph_add_output(g, "values", build_dequantize(g, q, val_at(q, 1), c->how.tile, DT_f32, o));
    struct run r = run_open(&t, g, c->fused);
    int64_t n = type_count(&c->x), tile = 0, rows = 1, cols = 1, batch = 1;
    float *f = ARENA_ARRAY(&t.arena, float, (size_t)n);
    char *in = run_at(&r, BUF_INPUT, "x");
    size_t size = dtype_size(c->x.dtype);
    uint64_t seed = (uint64_t)c->kind + 77;
    for (int64_t i = 0; i < n; i++) {
        dtype_store(c->x.dtype, in + (size_t)i * size, quant_number(&seed, c->kind, i));
        f[i] = (float)dtype_load(c->x.dtype, in + (size_t)i * size);
    }
    run_step(&r);
    for (int k = 0; k < c->x.rank; k++)
        *(k == c->x.rank - 1 ? &cols : k == c->x.rank - 2 ? &rows : &batch) *= c->x.dims[k];
    if (c->how.tile.whole) rows *= batch, batch = 1;
    const uint8_t *codes = run_at(&r, BUF_OUTPUT, "codes");
    const float *values = run_at(&r, BUF_OUTPUT, "values");
    for (int64_t b = 0; b < batch; b++, codes += rows * cols, values += rows * cols)
        check_part(c, &t.arena, f + b * rows * cols, rows, cols, codes,
                   run_at(&r, BUF_OUTPUT, "scale"), run_at(&r, BUF_OUTPUT, "amax"), values, &tile);
    run_close(&r);
    graph_destroy(g);
    test_end(&t);
}

static bool tile_fits(const struct type *x, const struct quant_tile *q) {
    struct type s;
    return quant_scale_type(x, *q, DT_f32, &s);
}

START_TEST(test_definitions) {
    int k = 0, done = 0;
    for (int tile = 0; tile < TILES; tile++, k++) {
        struct one_case c = {.x = shapes[_i]};
        if (!tile_fits(&c.x, &tiles[tile])) continue;
        for (int kind = 0; kind < QUANT_KINDS; kind++, k++) {
            c.how = QUANT_HOW(formats[k % 3], .whole = true);
            c.how.tile = tiles[tile];
            c.how.scale_type = scales[k / 3 % 3];
            c.kind = kind;
            c.fused = k % 4 != 0;
            check_case(&c);
            done++;
        }
    }
    ck_assert_int_gt(done, 0);
}
END_TEST

/* ---- delayed scales -------------------------------------------------------------------------- */
START_TEST(test_delayed) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "q");
    str_id o = {0};
    enum { N = 40, KEPT = 3, STEPS = 6 };
    struct type xt = {DT_f32, 2, {4, N / 4}}, ht = {DT_f32, 1, {KEPT}};
    struct attr name = {.key = ATTR_name, .s = "history"};
    val_id h = graph_source(g, OP_state, &ht, &name, 1, o);
    graph_set_name(g, h, "history");
    val_id x = input_of(g, "x", &xt);
    struct quant_how how = QUANT_HOW(DT_e4m3, .whole = true);
    how.margin = 1;
    val_id first =
        build_reduce(g, OP_reduce_max, build_1(g, OP_abs, x, o), (int64_t[]){0, 1}, 2, false, o);
    val_id scale = build_delayed_scale(g, h, first, &how, o);
    val_id q = build_quantize(g, x, scale, &how, o);
    graph_add_update(g, h, build_next_history(g, h, val_at(q, 2), o));
    graph_add_output(g, "codes", q);
    graph_add_output(g, "scale", val_at(q, 1));
    graph_settle(g);
    struct run r = run_open(&t, g, true);
    float past[KEPT] = {0}, *in = run_at(&r, BUF_INPUT, "x");
    for (int step = 0; step < STEPS; step++) {
        float amax = 0, most = 0;
        for (int i = 0; i < N; i++) {
            in[i] = (float)((i * 7 % 13 - 6) * (step + 1) * (step % 2 ? 3 : 1));
            amax = fmaxf(amax, fabsf(in[i]));
        }
        for (int k = 0; k < KEPT; k++) most = fmaxf(most, past[k]);
        float want = ((most == 0 ? amax : most) + 1e-10f) / 448 * 2;
        run_step(&r);
        ck_assert(*(float *)run_at(&r, BUF_OUTPUT, "scale") == want);
        const uint8_t *codes = run_at(&r, BUF_OUTPUT, "codes");
        for (int i = 0; i < N; i++) ck_assert_uint_eq(codes[i], e4m3_of(in[i] / want));
        memmove(past + 1, past, (KEPT - 1) * sizeof *past);
        past[0] = amax;
        ck_assert_mem_eq(run_at(&r, BUF_STATE, "history"), past, sizeof past);
    }
    run_close(&r);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- types, text, gradient --------------------------------------------------------------------
 */
static void refused(struct test_env *t, struct graph *g, val_id x, struct quant_how h,
                    const char *message) {
    struct attr a[] = {{.key = ATTR_format, .i = h.format},
                       {.key = ATTR_scale_type, .i = h.scale_type},
                       {.key = ATTR_eps, .f = h.eps},
                       {.key = ATTR_margin, .i = h.margin},
                       {.key = ATTR_tile,
                        .list = (int64_t[]){h.tile.rows, h.tile.cols},
                        .n = h.tile.whole ? 0 : 2}};
    val_id y;
    t->log[0] = '\0';
    ck_assert_int_ne(graph_try_add(g, OP_quantize, &x, 1, a, 5, "/q", &y), ST_OK);
    ck_assert_msg(strstr(t->log, message) != NULL, "%s", t->log);
}

START_TEST(test_refusals) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "q");
    struct type xt = {DT_f32, 2, {4, 10}}, line = {DT_f32, 1, {4}}, it = {DT_i64, 1, {4}};
    struct type open = {DT_f32, 2, {4, dim_symbol(g->dims, "n")}};
    val_id x = input_of(g, "x", &xt);
    struct quant_how h = QUANT_HOW(DT_bf16, .whole = true);
    refused(&t, g, x, h, "'format' must be e4m3, e5m2 or i8");
    h = QUANT_HOW(DT_e4m3, .whole = true), h.scale_type = DT_f16;
    refused(&t, g, x, h, "'scale_type' must be f32, bf16 or e8m0");
    h = QUANT_HOW(DT_e4m3, .whole = true), h.eps = 0;
    refused(&t, g, x, h, "'eps' must be between");
    h = QUANT_HOW(DT_e4m3, .whole = true), h.margin = 7;
    refused(&t, g, x, h, "'margin' must be between 0 and 6");
    h = QUANT_HOW(DT_e4m3, false, -1, 4);
    refused(&t, g, x, h, "'tile' must be");
    h = QUANT_HOW(DT_e4m3, false, 2, 2);
    refused(&t, g, input_of(g, "line", &line), h, "does not fit f32[4]");
    h = QUANT_HOW(DT_e4m3, false, 1, 4);
    refused(&t, g, input_of(g, "open", &open), h, "does not fit f32[4,n]");
    refused(&t, g, input_of(g, "i", &it), h, "i64");
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(test_text) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    const char *text =
        "graph @q {\n"
        "  %x = input {name = \"x\"} : bf16[4,n]\n"
        "  %q, %s, %m = quantize(%x) {format = e5m2, tile = [1, 0], scale_type = bf16} : "
        "e5m2[4,n], bf16[4,1], f32[4,1]\n"
        "  %p, %u, %v = quantize(%x) {format = e4m3, tile = []} : e4m3[4,n], f32[], f32[]\n"
        "  %y = dequantize(%q, %s) {tile = [1, 0], dtype = bf16} : bf16[4,n]\n"
        "  %z = dequantize(%p, %u) {tile = []} : f32[4,n]\n"
        "  output \"y\" = %y\n"
        "  output \"z\" = %z\n"
        "}\n";
    struct graph *g, *h;
    struct buf a, b;
    ck_assert_msg(graph_parse(&t.ctx, text, strlen(text), "q.lir", &g) == ST_OK, "%s", t.log);
    buf_init(&a, &t.arena);
    buf_init(&b, &t.arena);
    graph_print(g, NULL, &a);
    ck_assert_msg(graph_parse(&t.ctx, a.at, a.n, "q.lir", &h) == ST_OK, "%s\n%s", t.log, a.at);
    ck_assert(graph_equal(g, h));
    graph_print(h, NULL, &b);
    ck_assert_str_eq(a.at, b.at);
    graph_destroy(g);
    graph_destroy(h);
    test_end(&t);
}
END_TEST

/* d sum(w * dequantize(quantize(x * p))) / dp goes straight through to x * p. */
START_TEST(test_gradient) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "q");
    str_id o = {0};
    enum { N = 33 };
    struct type xt = {DT_f32, 1, {N}};
    float w[N], init[N];
    for (int i = 0; i < N; i++) w[i] = (float)i - 9, init[i] = (float)(i % 7);
    struct attr pa[] = {{.key = ATTR_name, .s = "p"},
                        {.key = ATTR_init, .blob = graph_blob(g, init, sizeof init, true)}};
    val_id x = input_of(g, "x", &xt), p = graph_source(g, OP_param, &xt, pa, 2, o);
    graph_set_name(g, p, "p");
    struct quant_how how = QUANT_HOW(DT_e4m3, false, 1, 16);
    val_id q = build_quantize(g, build_2(g, OP_mul, x, p, o), VAL_NONE, &how, o);
    val_id y = build_dequantize(g, q, val_at(q, 1), how.tile, DT_f32, o);
    y = build_2(g, OP_mul, y, build_const(g, &xt, w, o), o);
    graph_add_output(g, "loss", build_reduce(g, OP_reduce_sum, y, (int64_t[]){0}, 1, false, o));
    struct train_options train = {.dump_grads = true};
    struct pass_ctx c = {.ctx = &t.ctx, .scratch = &t.arena, .train = &train};
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t.log);
    struct run r = run_open(&t, g, true);
    float *in = run_at(&r, BUF_INPUT, "x");
    for (int i = 0; i < N; i++) in[i] = 0.1f * (float)i;
    run_step(&r);
    const float *d = run_at(&r, BUF_OUTPUT, "grad/p");
    for (int i = 0; i < N; i++) ck_assert(d[i] == w[i] * in[i]);
    run_close(&r);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- GPUs: kernels compile ------------------------------------------------------------------ */
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

START_TEST(test_kernels) {
    static const int archs[] = {80, 90, 100};
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = _i; k < QUANT_ITEMS; k += 3) {
        struct graph *g = quant_item_graph(&t.ctx, k);
        struct codegen_options o = {.threads = 2, .cuda_arch = archs[(_i + k / 3) % 3]};
        struct plan *p = NULL;
        uint32_t compiled = 0;
        ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%d: %s", k, t.log);
        enum status st = cuda_compile_check(&t.ctx, NULL, p, source, NULL, &compiled);
        bool absent = st != ST_OK && strstr(t.log, "need the NVRTC library");
        ck_assert_msg(absent || st == ST_OK, "%d: %s", k, t.log);
        if (!absent) ck_assert(compiled > 0 && compiled <= p->kernels.n); /* two may share a text */
        plan_destroy(p);
        graph_destroy(g);
    }
    test_end(&t);
}
END_TEST

/* A checked run names a NaN only where the numbers make one: infinity over an infinite scale. */
START_TEST(test_checked) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < QUANT_ITEMS; k++) {
        struct graph *g = quant_item_graph(&t.ctx, k);
        struct run r = run_open(&t, g, true);
        run_step(&r);
        if (quant_makes_nan(k))
            ck_assert_uint_eq(*((uint8_t *)run_at(&r, BUF_OUTPUT, "codes") + 3), FP8_NAN);
        enum status st = cpu_run(r.x, 0, r.p->launches.n, true);
        ck_assert_msg(st == (quant_makes_nan(k) ? ST_NONFINITE : ST_OK), "%d: %s", k, t.log);
        run_close(&r);
        graph_destroy(g);
    }
    test_end(&t);
}
END_TEST

#include "quantize_published.h"

int main(void) {
    Suite *s = suite_create("quantize");
    TCase *c = tcase_create("quantize");
    tcase_set_timeout(c, 600);
    tcase_add_loop_test(c, test_definitions, 0, SHAPES);
    tcase_add_test(c, test_delayed);
    tcase_add_test(c, test_refusals);
    tcase_add_test(c, test_text);
    tcase_add_test(c, test_gradient);
    tcase_add_test(c, test_checked);
    /* Threads inside NVRTC are not instrumented: a sanitizer can only guess about them. */
    if (!getenv("LATHE_TEST_SHORT")) tcase_add_loop_test(c, test_kernels, 0, 3);
    tcase_add_loop_test(c, test_published, 0, sizeof kinds / sizeof kinds[0]);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
