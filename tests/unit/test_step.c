// SPDX-License-Identifier: Apache-2.0
/* test_step.c - whole training steps on the CPU: loss, gradients, clipping, optimizer and
 * accumulation of a small next-token model, compiled to a plan and compared run by run with the
 * reference evaluator that applies the graph's updates itself. */
#include "codegen/codegen.h"
#include "passes/pass.h"
#include "ref_eval.h"
#include "runtime/cpu.h"
#include "test_util.h"

enum { BATCH = 2, SEQ = 5, WIDTH = 6, VOCAB = 7, RUNS = 6 };

static val_id param(struct graph *g, const char *name, dim a, dim b) {
    struct type t = {.dtype = DT_f32, .rank = b ? 2 : 1, .dims = {a, b}};
    int64_t n = type_count(&t);
    float *v = ARENA_ARRAY(&g->arena, float, (size_t)n);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 37 + 11) % 29) / 16.0f - 0.875f;
    struct attr attrs[2] = {{.key = ATTR_name, .s = name},
                            {.key = ATTR_init, .blob = graph_blob(g, v, (size_t)n * 4, false)}};
    val_id p = graph_source(g, OP_param, &t, attrs, 2, intern(&g->strings, name));
    graph_set_name(g, p, name);
    return p;
}

/* Embedding, norm, a gated layer, the embedding again as head. */
static struct graph *model(struct ctx *c) {
    struct graph *g = graph_create(c, "model");
    str_id o = intern(&g->strings, "node");
    struct type t = {.dtype = DT_i64, .rank = 2, .dims = {BATCH, SEQ}};
    struct attr name = {.key = ATTR_name, .s = "ids"}, axis = {.key = ATTR_axis, .i = 0};
    val_id ids = graph_source(g, OP_input, &t, &name, 1, o);
    graph_set_name(g, ids, "ids");
    val_id table = param(g, "table", VOCAB, WIDTH), scale = param(g, "scale", WIDTH, 0);
    val_id up = param(g, "up", WIDTH, 2 * WIDTH);
    val_id x = graph_add(g, OP_gather, (val_id[]){table, ids}, 2, &axis, 1, o);
    struct attr norm[2] = {{.key = ATTR_axis, .i = 2}, {.key = ATTR_eps, .f = 1e-5}};
    val_id h = build_2(g, OP_mul, graph_add(g, OP_rms_norm, &x, 1, norm, 2, o), scale, o);
    h = build_matmul(g, h, up, false, false, o);
    dim from[3] = {0}, half[3] = {BATCH, SEQ, WIDTH};
    val_id a = build_slice(g, h, from, half, NULL, o);
    from[2] = WIDTH;
    val_id b = build_slice(g, h, from, half, NULL, o);
    h = build_2(g, OP_add, x, build_2(g, OP_mul, build_1(g, OP_silu, a, o), b, o), o);
    graph_add_output(g, "logits", build_matmul(g, h, table, false, true, o));
    return g;
}

struct world {
    struct test_env t;
    struct graph *g;
    int64_t ids[BATCH * SEQ];
    float lr;
    struct ref *kept; /* by value id of the target: what the reference holds; at NULL: initial */
};

static bool feed(void *user, const char *name, double *at, int64_t n) {
    struct world *w = user;
    if (strcmp(name, "lr") == 0) {
        at[0] = (double)w->lr;
        return true;
    }
    if (strcmp(name, "ids") == 0) {
        for (int64_t i = 0; i < n; i++) at[i] = (double)w->ids[i];
        return true;
    }
    const struct ref *r = &w->kept[graph_find(w->g, name).i];
    if (r->at) memcpy(at, r->at, (size_t)n * sizeof *at);
    return r->at != NULL;
}

static void compare(const char *what, int run, const void *got, struct ref want, double tolerance) {
    double scale = 1e-2;
    ck_assert_msg(got != NULL, "no buffer '%s'", what);
    for (int64_t i = 0; i < want.n; i++) scale = fmax(scale, fabs(want.at[i]));
    for (int64_t i = 0; i < want.n; i++) {
        size_t size = dtype_size(want.dtype);
        double v = dtype_load(want.dtype, (const char *)got + (size_t)i * size);
        ck_assert_msg(fabs(v - want.at[i]) <= tolerance * scale,
                      "run %d: %s[%lld] is %.9g, not %.9g", run, what, (long long)i, v, want.at[i]);
    }
}

static void one_run(struct world *w, struct cpu_exec *x, const struct plan *p, int run) {
    struct graph *g = w->g;
    for (int i = 0; i < BATCH * SEQ; i++) w->ids[i] = (i * 5 + run * 3 + i * i) % VOCAB;
    w->lr = 0.02f / (float)(1 + run);
    memcpy(cpu_buffer(x, BUF_INPUT, "ids"), w->ids, sizeof w->ids);
    memcpy(cpu_buffer(x, BUF_INPUT, "lr"), &w->lr, sizeof w->lr);
    struct ref *vals = ref_eval(g, &w->t.arena, feed, w);
    ck_assert_msg(cpu_run(x, 0, p->launches.n, true) == ST_OK, "%s", w->t.log);
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const char *name = interned(&g->strings, g->outputs.at[k].name);
        compare(name, run, cpu_buffer(x, BUF_OUTPUT, name), ref_output(g, vals, name), 1e-4);
    }
    for (uint32_t k = 0; k < g->updates.n; k++) {
        struct graph_update u = g->updates.at[k];
        bool is_param = val_op(g, u.target) == OP_param;
        const char *name = attr_str(g, val_def(g, u.target), ATTR_name);
        w->kept[u.target.i] = vals[u.next.i];
        compare(name, run, cpu_buffer(x, is_param ? BUF_PARAM : BUF_STATE, name), vals[u.next.i],
                1e-3);
    }
}

static void train(enum optimizer_kind kind, int64_t accumulate, bool no_fusion) {
    struct world w = {0};
    test_begin(&w.t);
    TEST_LANDING(&w.t);
    struct arena scratch;
    arena_init(&scratch, &w.t.ctx);
    struct train_options o = {.optimizer = kind, .accumulate = accumulate, .clip = 0.5};
    o.label_type.rank = -1;
    o.beta1 = 0.9;
    o.beta2 = 0.95;
    o.eps = 1e-3; /* keeps the first steps from being signs of rounding errors */
    o.weight_decay = 0.1;
    o.momentum = kind == OPT_SGD && accumulate == 1 ? 0.9 : 0.0;
    o.dump_grads = true;
    struct pass_ctx c = {.ctx = &w.t.ctx, .scratch = &scratch, .train = &o};
    struct graph *g = w.g = model(&w.t.ctx);
    ck_assert_msg(pass_loss(&c, g) == ST_OK, "%s", w.t.log);
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", w.t.log);
    ck_assert_msg(pass_optimizer(&c, g) == ST_OK, "%s", w.t.log);
    w.kept = ARENA_ARRAY(&w.t.arena, struct ref, g->values.n);
    struct codegen_options options = {.threads = 2, .no_fusion = no_fusion};
    struct plan *p = NULL;
    struct cpu_exec *x = NULL;
    ck_assert_msg(plan_build(g, &options, &p) == ST_OK, "%s", w.t.log);
    ck_assert_msg(plan_verify(p, "test") == ST_OK, "%s", w.t.log);
    struct pool *pool = pool_create(&w.t.ctx, 2);
    ck_assert_msg(cpu_create(&w.t.ctx, p, pool, &x) == ST_OK, "%s", w.t.log);
    for (int run = 0; run < RUNS; run++) one_run(&w, x, p, run);
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
    graph_destroy(g);
    arena_reset(&scratch);
    test_end(&w.t);
}

START_TEST(test_adamw) {
    train(OPT_ADAMW, 1, false);
    train(OPT_ADAMW, 1, true);
}
END_TEST

START_TEST(test_adamw_accumulate) {
    train(OPT_ADAMW, 3, false);
    train(OPT_ADAMW, 3, true);
}
END_TEST

START_TEST(test_sgd) {
    train(OPT_SGD, 1, false); /* with momentum */
    train(OPT_SGD, 2, false); /* without */
    train(OPT_SGD, 2, true);
}
END_TEST

int main(void) {
    Suite *s = suite_create("step");
    TCase *tc = tcase_create("step");
    tcase_add_test(tc, test_adamw);
    tcase_add_test(tc, test_adamw_accumulate);
    tcase_add_test(tc, test_sgd);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
