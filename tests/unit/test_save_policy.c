// SPDX-License-Identifier: Apache-2.0
/* test_save_policy.c - cheap values that are computed again for the backward part: losses,
 * gradients and updates are those of a step that keeps everything, bit for bit, in less memory; and
 * what must not be computed again is kept. */
#include "codegen/codegen.h"
#include "passes/pass.h"
#include "passes/save_policy.h"
#include "runtime/cpu.h"
#include "test_util.h"

enum { BATCH = 3, SEQ = 37, WIDTH = 24, WIDE = 72, ROWS = BATCH * SEQ, LAYERS = 3, RUNS = 3 };
enum form { GELU, GATED, TANH, FORMS };

static val_id param(struct graph *g, const char *name, int layer, dim a, dim b) {
    struct type t = {.dtype = DT_f32, .rank = b ? 2 : 1, .dims = {a, b}};
    int64_t n = type_count(&t);
    float *v = ARENA_ARRAY(&g->arena, float, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((i * 37 + 11 * layer + 5) % 29) / 64.0f - 0.21875f;
    const char *full = arena_printf(&g->arena, "%s%d", name, layer);
    struct attr attrs[2] = {{.key = ATTR_name, .s = full},
                            {.key = ATTR_init, .blob = graph_blob(g, v, (size_t)n * 4, false)}};
    val_id p = graph_source(g, OP_param, &t, attrs, 2, intern(&g->strings, full));
    graph_set_name(g, p, full);
    return p;
}

static val_id norm(struct graph *g, val_id x, enum form form, int layer, str_id o) {
    struct attr attrs[2] = {{.key = ATTR_axis, .i = 2}, {.key = ATTR_eps, .f = 1e-5}};
    bool rms = form == GATED;
    val_id y = graph_add(g, rms ? OP_rms_norm : OP_layer_norm, &x, 1, attrs, 2, o);
    y = build_2(g, OP_mul, y, param(g, "scale", layer, WIDTH, 0), o);
    return rms ? y : build_2(g, OP_add, y, param(g, "shift", layer, WIDTH, 0), o);
}

/* Norm, up, activation, down, residual; then a mean over squares. */
static struct graph *model(struct ctx *c, enum form form) {
    struct graph *g = graph_create(c, "model");
    struct type t = {.dtype = DT_f32, .rank = 3, .dims = {BATCH, SEQ, WIDTH}};
    struct attr name = {.key = ATTR_name, .s = "x"};
    val_id in = graph_source(g, OP_input, &t, &name, 1, (str_id){0}), x = in;
    graph_set_name(g, x, "x");
    for (int l = 0; l < LAYERS; l++) {
        str_id o = intern(&g->strings, arena_printf(&g->arena, "/block.%d", l));
        val_id n = norm(g, x, form, l, o), a;
        val_id h = build_matmul(g, n, param(g, "up", l, WIDTH, WIDE), false, false, o);
        if (form != GATED) h = build_2(g, OP_add, h, param(g, "bias", l, WIDE, 0), o);
        a = build_1(g, form == GELU ? OP_gelu : form == TANH ? OP_tanh : OP_silu, h, o);
        if (form == GATED) {
            val_id u = build_matmul(g, n, param(g, "gate", l, WIDTH, WIDE), false, false, o);
            a = build_2(g, OP_mul, a, u, o);
        }
        a = build_matmul(g, a, param(g, "down", l, WIDE, WIDTH), false, false, o);
        x = build_2(g, OP_add, x, a, o);
    }
    int64_t axes[3] = {0, 1, 2};
    x = build_reduce(g, OP_reduce_mean, build_2(g, OP_mul, x, x, (str_id){0}), axes, 3, false,
                     (str_id){0});
    graph_add_output(g, "score", x);
    return g;
}

struct step {
    struct graph *g;
    struct plan *p;
    struct pool *pool;
    struct cpu_exec *x;
};

static struct graph *step_graph(struct test_env *t, enum form form, bool narrow,
                                enum save_mode save) {
    struct arena scratch;
    arena_init(&scratch, &t->ctx);
    enum dtype type = narrow ? DT_bf16 : DT_f32;
    struct recipe r = {.compute = type, .activations = type, .save = save};
    struct train_options o = {.optimizer = OPT_SGD, .accumulate = 1, .loss = "score"};
    o.label_type.rank = -1;
    o.dump_grads = true;
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &scratch, .train = &o, .recipe = &r};
    static const pass_fn list[] = {pass_loss,     pass_precision, pass_grad, pass_optimizer,
                                   pass_simplify, pass_cse,       pass_save};
    struct graph *g = model(&t->ctx, form);
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
        ck_assert_msg(list[k](&c, g) == ST_OK, "%s", t->log);
        arena_reset(&scratch);
    }
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s", t->log);
    struct graph *twice = graph_clone(g);
    ck_assert_msg(pass_save(&c, twice) == ST_OK, "%s", t->log);
    ck_assert_msg(graph_equal(g, twice), "a second pass changes something");
    graph_destroy(twice);
    arena_reset(&scratch);
    return g;
}

static struct step step_make(struct test_env *t, enum form form, bool narrow, enum save_mode save,
                             bool no_fusion) {
    struct step s = {.g = step_graph(t, form, narrow, save)};
    struct codegen_options options = {.threads = 2, .no_fusion = no_fusion};
    ck_assert_msg(plan_build(s.g, &options, &s.p) == ST_OK, "%s", t->log);
    s.pool = pool_create(&t->ctx, 2);
    ck_assert_msg(cpu_create(&t->ctx, s.p, s.pool, &s.x) == ST_OK, "%s", t->log);
    return s;
}

static void step_free(struct step *s) {
    cpu_destroy(s->x);
    pool_destroy(s->pool);
    plan_destroy(s->p);
    graph_destroy(s->g);
}

static void step_run(struct test_env *t, struct step *s, int run) {
    float *x = cpu_buffer(s->x, BUF_INPUT, "x"), lr = 0.5f;
    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)((i * 29 + run * 31 + i / 7) % 101) / 50.0f - 1.0f;
    memcpy(cpu_buffer(s->x, BUF_INPUT, "lr"), &lr, 4);
    ck_assert_msg(cpu_run(s->x, 0, s->p->launches.n, true) == ST_OK, "%s", t->log);
}

/* Every output, param and state of two plans. */
static void compare(const struct step *a, const struct step *b, int run) {
    int seen = 0;
    for (uint32_t i = 1; i < a->p->buffers.n; i++) {
        const struct plan_buffer *x = &a->p->buffers.at[i];
        if (x->kind != BUF_OUTPUT && x->kind != BUF_PARAM && x->kind != BUF_STATE) continue;
        const char *name = interned(&a->p->strings, x->name);
        buf_id at = plan_find(b->p, x->kind, name);
        ck_assert_msg(at.i != 0, "'%s' is missing", name);
        ck_assert_msg(memcmp(cpu_buffer_at(a->x, (buf_id){i}), cpu_buffer_at(b->x, at),
                             (size_t)x->bytes) == 0,
                      "run %d: %s differs", run, name);
        seen += x->kind == BUF_OUTPUT;
    }
    ck_assert_int_gt(seen, 4 * LAYERS); /* the gradients */
}

static void same(enum form form, bool narrow, bool no_fusion) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct step all = step_make(&t, form, narrow, SAVE_ALL, no_fusion);
    struct step few = step_make(&t, form, narrow, SAVE_AUTO, no_fusion);
    ck_assert_uint_gt(few.g->nodes.n, all.g->nodes.n);
    for (int run = 0; run < RUNS; run++) {
        step_run(&t, &all, run);
        step_run(&t, &few, run);
        compare(&all, &few, run);
    }
    step_free(&all);
    step_free(&few);
    test_end(&t);
}

START_TEST(test_values) {
    for (int form = 0; form < FORMS; form++)
        for (int narrow = 0; narrow < 2; narrow++) same((enum form)form, narrow, false);
}
END_TEST

START_TEST(test_reference_mode) {
    for (int form = 0; form < FORMS; form++) same((enum form)form, false, true);
}
END_TEST

static int64_t peak(struct test_env *t, enum form form, bool narrow, enum save_mode save, int arch,
                    uint32_t *launches) {
    struct graph *g = step_graph(t, form, narrow, save);
    struct codegen_options options = {.threads = 2, .cuda_arch = arch};
    struct plan *p;
    ck_assert_msg(plan_build(g, &options, &p) == ST_OK, "%s", t->log);
    int64_t bytes = plan_usage(p).peak_step;
    *launches = p->launches.n;
    plan_destroy(p);
    graph_destroy(g);
    return bytes;
}

/* Less memory without another launch. */
static void less(enum form form, bool narrow, int arch) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    uint32_t n, m;
    int64_t all = peak(&t, form, narrow, SAVE_ALL, arch, &n);
    int64_t few = peak(&t, form, narrow, SAVE_AUTO, arch, &m);
    ck_assert_msg(few * 100 < all * (form == TANH ? 99 : 90), "%lld and %lld bytes", (long long)few,
                  (long long)all);
    ck_assert_uint_eq(m, n);
    test_end(&t);
}

START_TEST(test_memory) {
    for (int form = 0; form < FORMS; form++)
        for (int k = 0; k < 4; k++) less((enum form)form, k & 1, k & 2 ? 90 : 0);
}
END_TEST

/* What the report says: products and the residual stream are kept, the activation and the norm's
 * result are not; of tanh, its result is what the gradient reads. */
static void list(enum form form) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = step_graph(&t, form, false, SAVE_AUTO);
    struct save_report r = {0};
    save_list(g, &g->arena, &r);
    int kept[OP_COUNT] = {0}, again[OP_COUNT] = {0};
    for (uint32_t k = 0; k < r.n; k++) {
        enum op op = val_op(g, r.at[k].value);
        ck_assert_int_eq(r.at[k].bytes, type_bytes(val_type(g, r.at[k].value)));
        (r.at[k].again ? again : kept)[op]++;
    }
    ck_assert_int_eq(again[OP_matmul] + again[OP_reduce_mean], 0);
    ck_assert_int_eq(kept[OP_gelu] + kept[OP_silu], 0);
    ck_assert_int_eq(again[OP_gelu], form == GELU ? LAYERS : 0);
    ck_assert_int_eq(kept[OP_tanh], form == TANH ? LAYERS : 0);
    ck_assert_int_eq(again[OP_tanh], 0);
    if (form == GATED) {
        ck_assert_int_eq(kept[OP_matmul], 2 * LAYERS);
        ck_assert_int_eq(again[OP_mul], 2 * LAYERS); /* norms and products with the gate */
    } else {
        ck_assert_int_eq(again[OP_add], LAYERS); /* norms */
    }
    graph_destroy(g);
    test_end(&t);
}

START_TEST(test_list) {
    for (int form = 0; form < FORMS; form++) list((enum form)form);
}
END_TEST

int main(void) {
    Suite *s = suite_create("save_policy");
    TCase *tc = tcase_create("all");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_values);
    tcase_add_test(tc, test_reference_mode);
    tcase_add_test(tc, test_memory);
    tcase_add_test(tc, test_list);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
