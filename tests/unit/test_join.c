// SPDX-License-Identifier: Apache-2.0
/* test_join.c - optimizer steps and casts of many parameters in one launch: the form of the plan,
 * its text and what plan_verify says about damaged ones; results against one launch for each
 * parameter, bit for bit; the sum of squares; and that the kernels compile. */
#include "../gpu/gpu_steps.h"
#include "codegen/codegen.h"
#include "cuda_util.h"
#include "ir/plan_work.h"
#include "runtime/cpu.h"
#include <math.h>

static const int64_t odd[] = {1, 3, 17, 127, 129, 1000, 4097, 8193, 33001, 70000};
enum { N = sizeof odd / sizeof odd[0] };

static struct graph *graphs[16]; /* of the test that runs: plans use their initial values */
static int ngraphs;

static struct graph *kept(struct graph *g) {
    ck_assert_int_lt(ngraphs, 16);
    return graphs[ngraphs++] = g;
}

static void end(struct test_env *t) {
    while (ngraphs > 0) graph_destroy(graphs[--ngraphs]);
    test_end(t);
}

static struct plan *build(struct test_env *t, const struct step_case *c, int arch, bool plain) {
    struct graph *g = kept(step_graph(&t->ctx, c));
    struct codegen_options o = {.threads = 3, .cuda_arch = arch, .no_fusion = plain};
    struct plan *p = NULL;
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", t->log);
    return p;
}

static const struct step_case cases[] = {
    {OP_adam, DT_f32, DT_f32, false, false, true, false, odd, N, false},
    {OP_adam, DT_f32, DT_f32, true, false, true, false, odd, N, false},
    {OP_adam, DT_f32, DT_bf16, false, false, true, false, odd, N, false},
    {OP_adam, DT_f32, DT_bf16, true, true, true, false, odd, N, false},
    {OP_adam, DT_f32, DT_f16, true, true, true, false, odd, N, false},
    {OP_adam, DT_f64, DT_f64, false, false, true, false, odd, N, false},
    {OP_adam, DT_f32, DT_bf16, false, false, true, false, odd, N, true},
    {OP_sgd, DT_f32, DT_f32, true, false, true, false, odd, N, false},
    {OP_sgd, DT_f32, DT_bf16, true, true, true, false, odd, N, false},
    {OP_sgd, DT_f64, DT_f64, false, false, true, false, odd, N, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static uint32_t count_kind(const struct plan *p, enum launch_kind kind) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < p->launches.n; k++) n += p->launches.at[k].kind == kind;
    return n;
}

static const struct plan_launch *find_kind(const struct plan *p, enum launch_kind kind) {
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (p->launches.at[k].kind == kind) return &p->launches.at[k];
    ck_abort_msg("no %s", launch_name(kind));
    return NULL;
}

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t)

START_TEST(test_form) {
    BEGIN;
    const struct step_case *c = &cases[_i];
    enum launch_kind kind = c->op == OP_adam ? LAUNCH_adam : LAUNCH_sgd;
    struct plan *p = build(&t, c, 0, false);
    ck_assert_uint_eq(count_kind(p, kind), 1);
    ck_assert_uint_eq(count_kind(p, LAUNCH_sum_squares), 1);
    const struct plan_launch *l = find_kind(p, kind);
    struct optimizer_form f = plan_optimizer(l);
    ck_assert_uint_eq(f.count, N);
    ck_assert_uint_eq(l->nin, N * f.each + 2 + c->clip);
    ck_assert_uint_eq(l->nout, N * f.kept);
    ck_assert_str_eq(interned(&p->strings, l->origin), "w0; w1; w2; and 7 more");
    for (uint32_t k = 0; k < N; k++) { /* the gradients themselves, no widened copies */
        const char *name = arena_printf(&t.arena, "g%u", k);
        ck_assert_uint_eq(l->in[k * f.each + 1].buffer.i, plan_find(p, BUF_STATE, name).i);
    }
    for (uint32_t k = 0; k < p->buffers.n; k++)
        ck_assert(p->buffers.at[k].kind != BUF_TEMP || p->buffers.at[k].bytes <= 64);
    ck_assert_uint_eq(p->first_update, p->launches.n - 1);
    struct plan *single = build(&t, c, 0, true);
    ck_assert_uint_eq(count_kind(single, kind), N);
    plan_destroy(single);
    plan_destroy(p);
    end(&t);
}
END_TEST

/* The plan's kept values after a step, one after the other by name, and the norm. */
static char *run(struct test_env *t, const struct plan *p, size_t *bytes, float *norm) {
    struct pool *pool = pool_create(&t->ctx, 3);
    struct cpu_exec *x = NULL;
    struct buf b;
    buf_init(&b, &t->arena);
    ck_assert_msg(cpu_create(&t->ctx, p, pool, &x) == ST_OK, "%s", t->log);
    ck_assert_msg(cpu_run(x, 0, p->launches.n, true) == ST_OK, "%s", t->log);
    for (int k = 0; k < N; k++)
        for (const char *kind = "wmv"; *kind; kind++) {
            buf_id id = plan_find(p, BUF_STATE, arena_printf(&t->arena, "%c%d", *kind, k));
            if (id.i) buf_put(&b, cpu_buffer_at(x, id), (size_t)p->buffers.at[id.i].bytes);
        }
    *norm = *(const float *)cpu_buffer(x, BUF_OUTPUT, "norm");
    *bytes = b.n;
    cpu_destroy(x);
    pool_destroy(pool);
    return b.at;
}

static double expected_norm(struct test_env *t, const struct step_case *c) {
    struct graph *g = kept(step_graph(&t->ctx, c));
    double sum = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_state || attr_str(g, n, ATTR_name)[0] != 'g') continue;
        const struct blob *b = graph_get_blob(g, attr_blob(g, n, ATTR_init));
        enum dtype dt = val_type(g, node_out(g, n, 0))->dtype;
        for (size_t at = 0; at < b->bytes; at += dtype_size(dt)) {
            double x = dtype_load(dt, (const char *)b->data + at);
            sum += x * x;
        }
    }
    return sqrt(sum);
}

START_TEST(test_same_bits) {
    BEGIN;
    const struct step_case *c = &cases[_i];
    struct plan *p = build(&t, c, 0, false), *single = build(&t, c, 0, true);
    size_t n1, n2;
    float norm1, norm2;
    char *a = run(&t, p, &n1, &norm1), *b = run(&t, single, &n2, &norm2);
    ck_assert_uint_eq(n1, n2);
    ck_assert_uint_gt(n1, 100000 * dtype_size(c->real));
    ck_assert(memcmp(a, b, n1) == 0);
    ck_assert(memcmp(&norm1, &norm2, sizeof norm1) == 0);
    double want = expected_norm(&t, c);
    ck_assert_msg(fabs((double)norm1 - want) < 1e-6 * want, "%.9g, expected %.9g", (double)norm1,
                  want);
    plan_destroy(single);
    plan_destroy(p);
    end(&t);
}
END_TEST

/* Text keeps what a joined launch is, its table included. */
START_TEST(test_text) {
    BEGIN;
    struct plan *p = build(&t, &cases[3], 90, false), *again = NULL;
    struct buf one, two;
    buf_init(&one, &t.arena);
    buf_init(&two, &t.arena);
    plan_print(p, &one);
    ck_assert_msg(plan_parse(&t.ctx, one.at, one.n, "text", &again) == ST_OK, "%s", t.log);
    plan_print(again, &two);
    ck_assert_str_eq(one.at, two.at);
    ck_assert_ptr_nonnull(strstr(one.at, "count = 10"));
    ck_assert_ptr_nonnull(strstr(one.at, "block 256 table)"));
    ck_assert_msg(plan_verify(again, "test") == ST_OK, "%s", t.log);
    const struct plan_launch *l = find_kind(again, LAUNCH_adam);
    ck_assert(again->calls.at[l->first_call].table);
    again->calls.at[l->first_call].table = false;
    ck_assert(!plan_equal(p, again));
    plan_destroy(again);
    plan_destroy(p);
    end(&t);
}
END_TEST

static struct plan_launch *damaged(struct plan *p, enum launch_kind kind) {
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (p->launches.at[k].kind == kind) return &p->launches.at[k];
    return NULL;
}

START_TEST(test_verify) {
    BEGIN;
    struct plan *p = build(&t, &cases[3], 0, false);
    struct plan_launch *l = damaged(p, LAUNCH_adam), *s = damaged(p, LAUNCH_sum_squares);
    uint32_t nin = s->nin;
    struct attr *at = ARENA_ARRAY(&t.arena, struct attr, (size_t)l->nattrs);
    int k = 0;
    memcpy(at, l->attrs, (size_t)l->nattrs * sizeof *at);
    while (at[k].key != ATTR_count) k++;
    l->attrs = at;
    switch (_i) {
    case 0: at[k].i = N - 1; break;
    case 1: at[k].i = 0; break;
    case 2: at[k].i = INT64_MAX; break;
    case 3: l->nin -= 2; break;
    case 4: l->nout--; break;
    case 5: l->in[1].dtype = DT_i16; break;          /* a gradient of whole numbers */
    case 6: l->in[4 * 7].dims[0]--; break;           /* a weight smaller than its gradient */
    case 7: l->in[4 * 6 + 3].dtype = DT_bf16; break; /* a small state */
    case 8: l->in[4 * N] = l->in[0], l->in[4 * N] = l->in[4 * 3]; break; /* lr of 127 elements */
    case 9: s->in[0].dtype = DT_u8; break;
    default: s->nin = 0; break;
    }
    ck_assert_int_eq(plan_verify(p, "test"), ST_INTERNAL);
    s->nin = nin;
    plan_destroy(p);
    end(&t);
}
END_TEST

/* Steps with other attributes, and steps whose results are not kept, stay alone. */
START_TEST(test_not_joined) {
    BEGIN;
    struct graph *g = kept(graph_create(&t.ctx, "two"));
    struct step_case c = {OP_adam, DT_f32, DT_f32, false, false, true, false, odd, 4, false};
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    struct attr name[2] = {{.key = ATTR_name, .s = "lr"}, {.key = ATTR_name, .s = "step"}};
    uint64_t seed = 2;
    str_id o = {0};
    val_id lr = graph_source(g, OP_input, &f32, &name[0], 1, o);
    val_id step = graph_source(g, OP_state, &i64, &name[1], 1, o);
    for (int k = 0; k < 4; k++) {
        val_id w = step_state(g, &c, "w", k, DT_f32, &seed);
        val_id d = step_state(g, &c, "g", k, DT_f32, &seed);
        val_id m = step_state(g, &c, "m", k, DT_f32, &seed);
        struct attr at = {.key = ATTR_momentum, .f = k < 2 ? 0.5 : 0.75};
        val_id y = graph_add(g, OP_sgd, (val_id[]){w, d, m, lr, step}, 5, &at, 1, o);
        if (k == 3) y = build_1(g, OP_tanh, y, o);
        graph_add_update(g, w, y);
    }
    graph_settle(g);
    struct codegen_options options = {.threads = 2};
    struct plan *p = NULL;
    ck_assert_msg(plan_build(g, &options, &p) == ST_OK, "%s", t.log);
    ck_assert_uint_ge(count_kind(p, LAUNCH_sgd), 3);
    plan_destroy(p);
    end(&t);
}
END_TEST

/* ---- casts -------------------------------------------------------------------------------------
 */
static struct plan *plan_of(struct test_env *t, struct graph *g, int arch, bool plain) {
    struct codegen_options o = {.threads = 3, .cuda_arch = arch, .no_fusion = plain};
    struct plan *p = NULL;
    ck_assert_msg(plan_build(kept(g), &o, &p) == ST_OK, "%s", t->log);
    return p;
}

static char *outputs(struct test_env *t, const struct plan *p, size_t *bytes) {
    struct pool *pool = pool_create(&t->ctx, 3);
    struct cpu_exec *x = NULL;
    struct buf b;
    buf_init(&b, &t->arena);
    ck_assert_msg(cpu_create(&t->ctx, p, pool, &x) == ST_OK, "%s", t->log);
    ck_assert_msg(cpu_run(x, 0, p->launches.n, true) == ST_OK, "%s", t->log);
    for (int k = 0; k < STEP_SIZES; k++) {
        buf_id id = plan_find(p, BUF_OUTPUT, arena_printf(&t->arena, "y%d", k));
        if (id.i) buf_put(&b, cpu_buffer_at(x, id), (size_t)p->buffers.at[id.i].bytes);
    }
    *bytes = b.n;
    cpu_destroy(x);
    pool_destroy(pool);
    return b.at;
}

START_TEST(test_casts) {
    BEGIN;
    struct plan *p = plan_of(&t, cast_graph(&t.ctx, _i), 0, false);
    struct plan *single = plan_of(&t, cast_graph(&t.ctx, _i), 0, true);
    const struct plan_launch *l = find_kind(p, LAUNCH_cast);
    ck_assert_uint_eq(p->launches.n, 1);
    ck_assert_uint_eq(p->groups.n, 1);
    ck_assert_uint_eq(p->first_update, 1);
    ck_assert_uint_eq(l->nin, STEP_SIZES);
    ck_assert_uint_eq(l->nout, STEP_SIZES);
    ck_assert_str_eq(interned(&p->strings, l->origin), "w0; w1; w2; and 7 more");
    ck_assert_uint_eq(count_kind(single, LAUNCH_cast), 0);
    size_t n1, n2;
    char *a = outputs(&t, p, &n1), *b = outputs(&t, single, &n2);
    ck_assert_uint_eq(n1, n2);
    ck_assert_uint_gt(n1, 180000);
    ck_assert(memcmp(a, b, n1) == 0);
    plan_destroy(single);
    plan_destroy(p);
    end(&t);
}
END_TEST

/* x times each of 4 weights in bf16; with `again`, once more in reverse, so that all copies are
 * there in the middle. Weights change at the end. */
static struct graph *chain(struct test_env *t, bool again) {
    enum { WEIGHTS = 4 };
    struct graph *g = graph_create(&t->ctx, "chain");
    static const int64_t sizes[WEIGHTS] = {4096, 4096, 4096, 4096};
    static const int64_t row[1] = {3 * 64};
    struct step_case c = {.random = true, .sizes = row}, large = {.random = true, .sizes = sizes};
    uint64_t seed = 3;
    str_id o = {0};
    val_id w[WEIGHTS], h = step_state(g, &c, "x", 0, DT_bf16, &seed);
    h = build_reshape(g, h, (dim[]){3, 64}, 2, o);
    for (int k = 0; k < WEIGHTS; k++) {
        val_id s = step_state(g, &large, "w", k, DT_f32, &seed);
        w[k] = build_cast(g, build_reshape(g, s, (dim[]){64, 64}, 2, o), DT_bf16, o);
        graph_add_update(g, s, build_scale(g, s, 0.5, o));
        h = build_matmul(g, h, w[k], false, false, o);
    }
    for (int k = WEIGHTS; again && k-- > 0;) h = build_matmul(g, h, w[k], false, false, o);
    graph_add_output(g, "y0", h);
    graph_settle(g);
    return g;
}

/* Copies that are all needed at one time are made at once; those that are not stay apart, as memory
 * would grow. */
START_TEST(test_casts_peak) {
    BEGIN;
    struct plan *apart = plan_of(&t, chain(&t, false), 90, false); /* without workspaces */
    struct plan *device = plan_of(&t, chain(&t, true), 90, false);
    struct plan *p = plan_of(&t, chain(&t, true), 0, false);
    struct plan *single = plan_of(&t, chain(&t, true), 0, true);
    ck_assert_uint_eq(count_kind(apart, LAUNCH_cast), 0);
    ck_assert_int_lt(apart->arena_bytes[ARENA_STEP], 2 * 8192);
    const struct plan_launch *l = find_kind(p, LAUNCH_cast);
    ck_assert_uint_eq(l->nin, 4);
    ck_assert_str_eq(interned(&p->strings, l->origin), "w0; w1; w2; and 1 more");
    ck_assert_uint_eq(find_kind(device, LAUNCH_cast)->nin, 4);
    ck_assert_int_le(device->arena_bytes[ARENA_STEP], 4 * 8192 + 2 * 3 * 64 * 2);
    ck_assert_uint_eq(count_kind(p, LAUNCH_group), p->groups.n - 1);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        buf_id b = p->launches.at[k].out[0].buffer;
        bool keeps = p->buffers.at[b.i].kind == BUF_STATE;
        ck_assert(k < p->first_update ? !keeps : k > p->first_update || keeps);
    }
    size_t n1, n2;
    char *a = outputs(&t, p, &n1), *b = outputs(&t, single, &n2);
    ck_assert_uint_eq(n1, 2 * 3 * 64);
    ck_assert(n1 == n2 && memcmp(a, b, n1) == 0);
    plan_destroy(single);
    plan_destroy(p);
    plan_destroy(device);
    plan_destroy(apart);
    end(&t);
}
END_TEST

START_TEST(test_casts_text) {
    BEGIN;
    struct plan *p = plan_of(&t, cast_graph(&t.ctx, 0), 90, false), *again = NULL;
    struct buf one, two;
    buf_init(&one, &t.arena);
    buf_init(&two, &t.arena);
    plan_print(p, &one);
    ck_assert_msg(plan_parse(&t.ctx, one.at, one.n, "text", &again) == ST_OK, "%s", t.log);
    plan_print(again, &two);
    ck_assert_str_eq(one.at, two.at);
    ck_assert_ptr_nonnull(strstr(one.at, "launch 0 cast ("));
    ck_assert_ptr_nonnull(strstr(one.at, "block 256 table)"));
    ck_assert_msg(plan_verify(again, "test") == ST_OK, "%s", t.log);
    struct plan_launch *l = damaged(again, LAUNCH_cast);
    switch (_i) {
    case 0: l->nout--; break;
    case 1: l->nin = l->nout = 0; break;
    case 2: l->in[3].dtype = DT_i32; break;
    case 3: l->out[4].dtype = DT_f16; break;
    case 4: l->out[0].dtype = DT_e4m3; break;
    default: l->out[6].dims[0]--; break;
    }
    ck_assert_int_eq(plan_verify(again, "test"), ST_INTERNAL);
    plan_destroy(again);
    plan_destroy(p);
    end(&t);
}
END_TEST

/* What bf16 cannot hold is told by the weights' names. */
START_TEST(test_casts_overflow) {
    BEGIN;
    struct plan *p = plan_of(&t, chain(&t, true), 0, false);
    struct pool *pool = pool_create(&t.ctx, 1);
    struct cpu_exec *x = NULL;
    ck_assert_msg(cpu_create(&t.ctx, p, pool, &x) == ST_OK, "%s", t.log);
    float *w = cpu_buffer(x, BUF_STATE, "w2");
    w[77] = 3.4e38f;
    ck_assert_int_eq(cpu_run(x, 0, p->launches.n, true), ST_NONFINITE);
    ck_assert_ptr_nonnull(strstr(t.log, "w0; w1; w2; and 1 more"));
    ck_assert_ptr_nonnull(strstr(t.log, "cast gave inf at element 77 of result 2"));
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
    end(&t);
}
END_TEST

static const char *embedded(void *user, const char *file, size_t *size) {
    const struct kernel_file *f;
    (void)user;
    for (int i = 0; (f = kernel_file_at(i)) != NULL; i++) {
        if (strcmp(f->name, file) != 0) continue;
        *size = f->size;
        return f->text;
    }
    return NULL;
}

/* What tests/gpu runs. */
START_TEST(test_kernels) {
    static const int archs[] = {80, 90, 100};
    BEGIN;
    if (have_nvrtc(&t))
        for (int k = 0; k < STEP_ITEMS; k += archs[_i] == 90 ? 1 : 3) {
            struct codegen_options o = {.threads = 1, .cuda_arch = archs[_i]};
            struct graph *g = step_item_graph(&t.ctx, k);
            struct plan *p = NULL;
            ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", t.log);
            uint32_t n = 0;
            ck_assert_msg(cuda_compile_check(&t.ctx, NULL, p, embedded, NULL, &n) == ST_OK,
                          "case %d: %s", k, t.log);
            ck_assert_uint_ge(n, 1);
            plan_destroy(p);
            graph_destroy(g);
        }
    end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("join");
    TCase *k = tcase_create("join");
    tcase_add_loop_test(k, test_form, 0, CASES);
    tcase_add_loop_test(k, test_same_bits, 0, CASES);
    tcase_add_test(k, test_text);
    tcase_add_loop_test(k, test_verify, 0, 11);
    tcase_add_test(k, test_not_joined);
    tcase_add_loop_test(k, test_casts, 0, CAST_CASES);
    tcase_add_test(k, test_casts_peak);
    tcase_add_loop_test(k, test_casts_text, 0, 6);
    tcase_add_test(k, test_casts_overflow);
    /* Threads inside NVRTC are not instrumented: a sanitizer can only guess about them. */
    if (!getenv("LATHE_TEST_SHORT")) tcase_add_loop_test(k, test_kernels, 0, 3);
    suite_add_tcase(s, k);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
