// SPDX-License-Identifier: Apache-2.0
/* test_cuda_codegen.c - what is generated for GPUs: the plans of every case of tests/op/cases.def
 * and of a GPT's training step, each kernel compiled by NVRTC without spills and warnings (counted
 * as skipped where there is no such library), and laws of the text. Needs no GPU. */
#include "base/hash.h"
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "label_graph.h"
#include "op_cases.h"
#include "passes/pass.h"
#include "runtime/cuda.h"
#include "test_util.h"

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

static struct plan *cuda_plan(struct test_env *t, struct graph *g, int arch, bool no_fusion,
                              const char *what) {
    struct codegen_options o = {.threads = 2, .cuda_arch = arch, .no_fusion = no_fusion};
    struct plan *p = NULL;
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s: %s", what, t->log);
    ck_assert_msg(plan_verify(p, "test") == ST_OK, "%s: %s", what, t->log);
    return p;
}

/* Every launch but the library's has calls; calls name kernels; grids and blocks are legal. */
static void check_calls(const struct plan *p, const char *what) {
    ck_assert_int_ne(p->cuda_arch, 0);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        ck_assert_msg((l->ncalls == 0) == (l->kind == LAUNCH_matmul), "%s: launch %u has %u calls",
                      what, k, l->ncalls);
        ck_assert_uint_le(l->first_call + l->ncalls, p->calls.n);
        int64_t have = l->workspace.i ? p->buffers.at[l->workspace.i].bytes : 0;
        ck_assert_msg(have == plan_cuda_workspace(p, k), "%s: launch %u: workspace", what, k);
        for (uint32_t c = l->first_call; c < l->first_call + l->ncalls; c++) {
            const struct plan_call *x = &p->calls.at[c];
            TEST_EXPECT(x->kernel < p->kernels.n && x->block >= 1 && x->block <= 1024);
            TEST_EXPECT(x->grid[0] >= 1 && x->grid[1] >= 1 && x->grid[2] >= 1);
        }
    }
}

/* Kernels that are not in `all` yet; one compilation serves every case. */
static void collect(struct test_env *t, const struct plan *p, struct plan *all, struct map *seen) {
    for (uint32_t k = 0; k < p->kernels.n; k++) {
        struct plan_kernel x = p->kernels.at[k];
        uint32_t at;
        if (map_get(seen, x.key, &at)) continue;
        map_set(seen, x.key, all->kernels.n);
        x.entry = intern(&all->strings, interned(&p->strings, x.entry));
        x.file = intern(&all->strings, interned(&p->strings, x.file));
        x.config = arena_strdup(&all->arena, x.config);
        x.body = arena_strdup(&all->arena, x.body);
        vec_push(&all->arena, &all->kernels, x);
    }
    (void)t;
}

static void compile_all(struct test_env *t, struct plan *all, const char *what) {
    uint32_t compiled = 0;
    enum status st = cuda_compile_check(&t->ctx, NULL, all, source, NULL, &compiled);
    if (st != ST_OK && strstr(t->log, "need the NVRTC library")) {
        printf("cuda_codegen: %s: skipped, there is no NVRTC\n", what);
        return;
    }
    ck_assert_msg(st == ST_OK, "%s: %s", what, t->log);
    ck_assert_uint_eq(compiled, all->kernels.n);
}

/* The laws of the text form, with kernels and calls in it. */
static void check_round_trip(struct test_env *t, const struct plan *p, const char *what) {
    struct buf a, b;
    struct plan *q;
    buf_init(&a, &t->arena);
    buf_init(&b, &t->arena);
    plan_print(p, &a);
    ck_assert_msg(plan_parse(&t->ctx, a.at, a.n, what, &q) == ST_OK, "%s\n%s", t->log, a.at);
    ck_assert_msg(plan_equal(p, q), "%s: not equal:\n%s", what, a.at);
    plan_print(q, &b);
    ck_assert_str_eq(a.at, b.at);
    if (q->kernels.n > 0) {
        q->kernels.at[0].key ^= 1;
        ck_assert(!plan_equal(p, q));
    }
    plan_destroy(q);
}

/* Every `step`-th case from `first`. */
static void compile_cases(int arch, int first, int step) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *all = plan_create(&t.ctx, "all");
    struct map seen;
    map_init(&seen, &t.arena);
    all->cuda_arch = arch;
    for (int k = first; k < CASES; k += step)
        for (int form = k % 3; form < 3; form += 3) { /* fused, unfused, f64: one of them a case */
            struct graph *g = case_graph(&t.ctx, &cases[k], form == 2 ? DT_f64 : DT_f32);
            struct pass_ctx c = {.ctx = &t.ctx, .scratch = &t.arena};
            const char *what = case_name(&t.arena, &cases[k]);
            ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s: %s", what, t.log);
            struct plan *p = cuda_plan(&t, g, arch, form == 1, what);
            check_calls(p, what);
            check_round_trip(&t, p, what);
            collect(&t, p, all, &seen);
            plan_destroy(p);
            graph_destroy(g);
        }
    compile_all(&t, all, "cases");
    plan_destroy(all);
    test_end(&t);
}

START_TEST(test_cases_80) {
    compile_cases(80, 0, 16);
}
END_TEST

START_TEST(test_cases_90) {
    compile_cases(90, 1, 2);
}
END_TEST

START_TEST(test_cases_100) {
    compile_cases(100, 2, 16);
}
END_TEST

/* Cross entropy of every float type, gathers by labels. */
START_TEST(test_labels) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *all = plan_create(&t.ctx, "all");
    struct map seen;
    map_init(&seen, &t.arena);
    all->cuda_arch = 90;
    for (int k = 0; k < LABEL_ITEMS; k += 3) {
        struct graph *g = label_graph(&t.ctx, k);
        struct plan *p = cuda_plan(&t, g, 90, false, "labels");
        check_calls(p, "labels");
        collect(&t, p, all, &seen);
        plan_destroy(p);
        graph_destroy(g);
    }
    compile_all(&t, all, "labels");
    plan_destroy(all);
    test_end(&t);
}
END_TEST

/* Where the kernels for Hopper are used: what they keep, and that they compile. */
START_TEST(test_attention_hopper) {
    static const struct {
        const char *operands, *attrs;
        enum dtype low;
        int arch;
        int64_t want; /* bytes; 0: others are used */
    } forms[] = {
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=0.125 causal=1", DT_bf16, 90,
         2 * 4 * 2 * 3 * 128},
        {"f[1,8,300,128] f[1,2,300,128] f[1,2,300,128]", "scale=-0.1 causal=1", DT_bf16, 90,
         2 * 4 * 8 * 384},
        {"f[3,4,1,64] f[3,2,1000,64] f[3,2,1000,64]", "scale=1", DT_f16, 90, 2 * 4 * 12 * 128},
        {"f[1,2,640,128] f[1,2,17,128] f[1,2,17,128]", "scale=1 causal=1", DT_f16, 90,
         2 * 4 * 2 * 640},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1", DT_bf16, 80, 0},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1", DT_bf16, 100, 0},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1", DT_f32, 90, 0},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=0", DT_bf16, 90, 0},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1 softcap=2", DT_bf16, 90, 0},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,128]", "scale=1", DT_bf16, 90, 0},
        {"f[2,3,65,96] f[2,3,65,96] f[2,3,65,96]", "scale=1", DT_bf16, 90, 0},
    };
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *all = plan_create(&t.ctx, "all");
    struct map seen;
    map_init(&seen, &t.arena);
    all->cuda_arch = 90;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct op_case k = {OP_attention, forms[i].operands, forms[i].attrs};
        struct graph *g = case_graph_in(&t.ctx, &k, DT_f32, forms[i].low);
        struct pass_ctx c = {.ctx = &t.ctx, .scratch = &t.arena};
        ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t.log);
        struct plan *p = cuda_plan(&t, g, forms[i].arch, false, k.operands);
        check_calls(p, k.operands);
        for (uint32_t j = 0; j < p->launches.n; j++) {
            const struct plan_launch *l = &p->launches.at[j];
            if (l->kind != LAUNCH_attention_grad) continue;
            uint32_t kernel = p->calls.at[l->first_call].kernel;
            const char *file = interned(&p->strings, p->kernels.at[kernel].file);
            ck_assert_msg((strcmp(file, "attention_hopper.cu") == 0) == (forms[i].want > 0),
                          "%zu: %s", i, file);
            if (forms[i].want) ck_assert_int_eq(plan_cuda_workspace(p, j), forms[i].want);
        }
        if (forms[i].want) collect(&t, p, all, &seen);
        plan_destroy(p);
        graph_destroy(g);
    }
    compile_all(&t, all, "attention");
    plan_destroy(all);
    test_end(&t);
}
END_TEST

/* What cuDNN may use for the gradient of attention, and when. Tiles of 128, 64 KiB of slack. */
START_TEST(test_library_scratch) {
    static const struct {
        const char *operands, *attrs;
        enum dtype low;
        int arch;
        int64_t want;
    } forms[] = {
        {"f[2,3,65,72] f[2,3,65,72] f[2,3,65,72]", "scale=1 causal=1", DT_bf16, 90,
         2 * 3 * 128 * (2 * 128 + 4) + 65536},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1 causal=1", DT_f16, 80,
         2 * 3 * 128 * (2 * 128 + 4) + 65536},
        {"f[1,4,5,8] f[1,2,130,8] f[1,2,130,16]", "scale=1", DT_bf16, 90,
         4 * (128 * (2 * 256 + 4) + 2 * 256 * 24) + 65536},
        /* 15 of 40 would fit: 10 at a time */
        {"f[40,1,8192,8] f[40,1,8192,8] f[40,1,8192,8]", "scale=1", DT_bf16, 90,
         INT64_C(10) * 8192 * (2 * 8192 + 4) + 65536},
        /* not by cuDNN: a sum for each query alone, rounded up to 16 bytes */
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1 causal=1", DT_bf16, 100, 1568},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1 causal=1", DT_f32, 90, 1568},
        {"f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=1 softcap=2", DT_bf16, 90, 1568},
        {"f[2,3,65,60] f[2,3,65,60] f[2,3,65,60]", "scale=1", DT_bf16, 90, 1568},
        {"f[2,3,65,8] f[2,3,64,8] f[2,3,64,8]", "scale=1 causal=1", DT_bf16, 90, 1568},
    };
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct op_case k = {OP_attention, forms[i].operands, forms[i].attrs};
        struct graph *g = case_graph_in(&t.ctx, &k, DT_f32, forms[i].low);
        struct pass_ctx c = {.ctx = &t.ctx, .scratch = &t.arena};
        ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t.log);
        struct plan *p = cuda_plan(&t, g, forms[i].arch, false, k.operands);
        int found = 0;
        for (uint32_t j = 0; j < p->launches.n; j++) {
            if (p->launches.at[j].kind != LAUNCH_attention_grad) continue;
            found++;
            ck_assert_msg(plan_cuda_workspace(p, j) == forms[i].want, "%zu: %lld", i,
                          (long long)plan_cuda_workspace(p, j));
        }
        ck_assert_int_eq(found, 1);
        plan_destroy(p);
        graph_destroy(g);
    }
    test_end(&t);
}
END_TEST

/* ---- a GPT ----------------------------------------------------------------------------------- */
static struct graph *gpt_step(struct test_env *t, struct gpt_size size) {
    struct train_options o = {.optimizer = OPT_ADAMW,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .clip = 0.5,
                              .accumulate = 1};
    void *zeros = arena_alloc(&t->arena, (size_t)(size.vocab * size.width + size.width * 4096) * 4);
    struct graph *g = gpt_graph(&t->ctx, size, true, zeros);
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &t->arena, .train = &o};
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(pass_simplify(&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(pass_cse(&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(pass_optimizer(&c, g) == ST_OK, "%s", t->log);
    graph_settle(g);
    return g;
}

/* Kernels of small models are compiled by tests/model/test_kernels.c. */
static void check_gpt(int arch, struct gpt_size size, uint32_t at_most, bool compile) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = gpt_step(&t, size);
    struct plan *p = cuda_plan(&t, g, arch, false, "gpt"), *all = plan_create(&t.ctx, "all");
    struct map seen;
    map_init(&seen, &t.arena);
    all->cuda_arch = arch;
    check_calls(p, "gpt");
    check_round_trip(&t, p, "gpt");
    ck_assert_msg(p->kernels.n <= at_most, "%u kernels, expected at most %u", p->kernels.n,
                  at_most);
    collect(&t, p, all, &seen);
    if (compile) compile_all(&t, all, "gpt");
    plan_destroy(p);
    plan_destroy(all);
    graph_destroy(g);
    test_end(&t);
}

START_TEST(test_gpt_small) {
    static const int archs[] = {80, 90, 100};
    check_gpt(archs[_i], (struct gpt_size){2, 9, 12, 3, 2, 37}, 60, false);
}
END_TEST

/* The shapes of a real one; few layers, because equal layers share their kernels. */
START_TEST(test_gpt_large) {
    check_gpt(90, (struct gpt_size){8, 256, 768, 12, 2, 50257}, 60, true);
}
END_TEST

/* ---- laws of the text ------------------------------------------------------------------------ */
static void check_same(const struct plan *p, const struct plan *q) {
    ck_assert_uint_eq(p->kernels.n, q->kernels.n);
    ck_assert_uint_eq(p->calls.n, q->calls.n);
    for (uint32_t k = 0; k < p->kernels.n; k++) {
        ck_assert_str_eq(p->kernels.at[k].config, q->kernels.at[k].config);
        ck_assert_str_eq(p->kernels.at[k].body, q->kernels.at[k].body);
        ck_assert(p->kernels.at[k].key == q->kernels.at[k].key);
    }
    for (uint32_t k = 0; k < p->calls.n; k++)
        ck_assert_uint_eq(p->calls.at[k].kernel, q->calls.at[k].kernel);
}

START_TEST(test_text) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    uint32_t kernels[2];
    for (int k = 0; k < 2; k++) { /* a kernel's number does not depend on that of layers */
        struct graph *g = gpt_step(&t, (struct gpt_size){2, 16, 32, 4, k ? 6 : 3, 64});
        struct plan *p = cuda_plan(&t, g, 90, false, "gpt"),
                    *q = cuda_plan(&t, g, 90, false, "gpt");
        check_same(p, q);
        kernels[k] = p->kernels.n;
        bool named = false;
        for (uint32_t i = 0; i < p->kernels.n; i++) {
            const struct plan_kernel *a = &p->kernels.at[i];
            if (a->body[0]) ck_assert_msg(strstr(a->body, "#line 1 \""), "%s", a->body);
            named |= strstr(a->body, "#line 1 \"h.0") != NULL;
            for (uint32_t j = 0; j < i; j++)
                ck_assert(p->kernels.at[j].key != a->key || p->kernels.at[j].entry.i != a->entry.i);
        }
        ck_assert(named);
        plan_destroy(p);
        plan_destroy(q);
        graph_destroy(g);
    }
    ck_assert_uint_eq(kernels[0], kernels[1]);
    test_end(&t);
}
END_TEST

START_TEST(test_files) {
    static const char *const names[] = {"prelude.cuh", "group.cu", "attention.cu", "conv.cu"};
    for (int k = 0; k < 4; k++) {
        size_t size = 0;
        const char *text = source(NULL, names[k], &size);
        ck_assert_ptr_nonnull(text);
        ck_assert_uint_eq(strlen(text), size);
    }
    ck_assert_ptr_null(kernel_file_at(-1));
}
END_TEST

START_TEST(test_refusals) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = case_graph(&t.ctx, &cases[0], DT_f32);
    struct codegen_options o = {.threads = 1, .cuda_arch = 75};
    struct plan *p = NULL;
    ck_assert_int_eq(plan_build(g, &o, &p), ST_UNSUPPORTED);
    ck_assert_ptr_null(p);
    ck_assert(strstr(t.log, "80, 90 or 100, found 75"));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cuda_codegen");
    TCase *c = tcase_create("cuda_codegen");
    tcase_add_test(c, test_files);
    tcase_add_test(c, test_refusals);
    tcase_add_test(c, test_text);
    tcase_add_loop_test(c, test_gpt_small, 0, 3);
    tcase_add_test(c, test_gpt_large);
    tcase_add_test(c, test_labels);
    tcase_add_test(c, test_attention_hopper);
    tcase_add_test(c, test_library_scratch);
    tcase_add_test(c, test_cases_80);
    tcase_add_test(c, test_cases_90);
    tcase_add_test(c, test_cases_100);
    tcase_set_timeout(c, 900);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
