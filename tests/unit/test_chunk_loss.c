// SPDX-License-Identifier: Apache-2.0
/* test_chunk_loss.c - logits in chunks of rows: losses, gradients and updates against the same step
 * with whole logits, for heads with and without bias, tied weights, narrow logits, accumulation,
 * ignored and bad labels; and that a plan never holds more than one chunk. */
#include "codegen/codegen.h"
#include "passes/pass.h"
#include "runtime/cpu.h"
#include "test_util.h"
#include <math.h>

enum { BATCH = 3, SEQ = 7, WIDTH = 6, VOCAB = 70, ROWS = BATCH * SEQ, RUNS = 4, SKIP = -100 };
enum form { TIED, BIAS, CAPPED, NARROW, FORMS };

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

/* Embedding, a layer, a head of the given form over the tokens' classes. */
static struct graph *model(struct ctx *c, enum form form) {
    struct graph *g = graph_create(c, "model");
    str_id o = intern(&g->strings, "/layer"), head = intern(&g->strings, "/head");
    struct type t = {.dtype = DT_i64, .rank = 2, .dims = {BATCH, SEQ}};
    struct attr name = {.key = ATTR_name, .s = "ids"}, axis = {.key = ATTR_axis, .i = 0};
    val_id ids = graph_source(g, OP_input, &t, &name, 1, o);
    graph_set_name(g, ids, "ids");
    val_id table = param(g, "table", VOCAB, WIDTH);
    val_id x = graph_add(g, OP_gather, (val_id[]){table, ids}, 2, &axis, 1, o), y;
    val_id h = build_matmul(g, x, param(g, "up", WIDTH, WIDTH), false, false, o);
    h = build_2(g, OP_add, x, build_1(g, OP_silu, h, o), o);
    if (form == BIAS) {
        dim flat[2] = {ROWS, WIDTH}, deep[3] = {BATCH, SEQ, VOCAB};
        h = build_reshape(g, h, flat, 2, o);
        y = build_matmul(g, h, param(g, "w", WIDTH, VOCAB), false, false, head);
        y = build_2(g, OP_add, y, param(g, "b", VOCAB, 0), head);
        y = build_reshape(g, y, deep, 3, head);
    } else if (form == NARROW) {
        val_id w = build_cast(g, param(g, "w", VOCAB, WIDTH), DT_bf16, head);
        y = build_matmul(g, build_cast(g, h, DT_bf16, head), w, false, true, head);
    } else {
        y = build_matmul(g, h, table, false, true, head);
    }
    if (form == CAPPED)
        y = build_scale(g, build_1(g, OP_tanh, build_scale(g, y, 0.25, head), head), 4.0, head);
    graph_add_output(g, "logits", y);
    return g;
}

struct step {
    struct graph *g;
    struct plan *p;
    struct pool *pool;
    struct cpu_exec *x;
};

static struct graph *step_graph(struct test_env *t, enum form form, int64_t rows,
                                const struct train_options *o) {
    struct arena scratch;
    arena_init(&scratch, &t->ctx);
    struct recipe r = {.compute = DT_f32, .activations = DT_f32, .chunk_loss = rows};
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &scratch, .train = o, .recipe = &r};
    static const pass_fn training[] = {pass_loss,     pass_grad, pass_optimizer,
                                       pass_simplify, pass_cse,  pass_chunk_loss};
    static const pass_fn scoring[] = {pass_loss, pass_chunk_loss};
    struct graph *g = model(&t->ctx, form);
    const pass_fn *list = o->measure ? scoring : training;
    for (size_t k = 0; k < (o->measure ? 2 : 6); k++)
        ck_assert_msg(list[k](&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s", t->log);
    arena_reset(&scratch);
    return g;
}

static struct step step_make(struct test_env *t, enum form form, int64_t rows,
                             const struct train_options *o, bool no_fusion) {
    struct step s = {.g = step_graph(t, form, rows, o)};
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

static enum status step_run(struct step *s, const int64_t *labels, int run) {
    int64_t ids[ROWS];
    float lr = 0.02f / (float)(1 + run);
    for (int i = 0; i < ROWS; i++) ids[i] = (i * 5 + run * 3 + i * i) % VOCAB;
    memcpy(cpu_buffer(s->x, BUF_INPUT, "ids"), ids, sizeof ids);
    memcpy(cpu_buffer(s->x, BUF_INPUT, "labels"), labels, ROWS * sizeof *labels);
    if (cpu_buffer(s->x, BUF_INPUT, "lr")) memcpy(cpu_buffer(s->x, BUF_INPUT, "lr"), &lr, 4);
    return cpu_run(s->x, 0, s->p->launches.n, true);
}

static void make_labels(int64_t *labels, int run) {
    for (int i = 0; i < ROWS; i++) {
        labels[i] = (i * 11 + run * 7) % VOCAB;
        if ((i + run) % 4 == 0) labels[i] = SKIP;
        if (run == 2) labels[i] = SKIP; /* all of them */
    }
}

/* Every output, param and state of two plans. */
static void compare(const struct step *a, const struct step *b, double tolerance, int run) {
    for (uint32_t i = 1; i < a->p->buffers.n; i++) {
        const struct plan_buffer *x = &a->p->buffers.at[i];
        if (x->kind != BUF_OUTPUT && x->kind != BUF_PARAM && x->kind != BUF_STATE) continue;
        const char *name = interned(&a->p->strings, x->name);
        buf_id at = plan_find(b->p, x->kind, name);
        ck_assert_msg(at.i != 0, "'%s' is missing", name);
        int64_t n = type_count(&x->type);
        size_t size = dtype_size(x->type.dtype);
        const char *p = cpu_buffer_at(a->x, (buf_id){i}), *q = cpu_buffer_at(b->x, at);
        double scale = 1e-3;
        for (int64_t k = 0; k < n; k++)
            scale = fmax(scale, fabs(dtype_load(x->type.dtype, p + (size_t)k * size)));
        for (int64_t k = 0; k < n; k++) {
            double u = dtype_load(x->type.dtype, p + (size_t)k * size);
            double v = dtype_load(x->type.dtype, q + (size_t)k * size);
            ck_assert_msg(fabs(u - v) <= tolerance * scale, "run %d: %s[%lld] is %.9g, not %.9g",
                          run, name, (long long)k, v, u);
        }
    }
}

static struct train_options options_of(int64_t accumulate) {
    struct train_options o = {.optimizer = OPT_SGD, .accumulate = accumulate, .clip = 0.5};
    o.loss = "cross_entropy(logits, labels)";
    o.label_type.rank = -1;
    o.dump_grads = true;
    return o;
}

static int count_ops(const struct graph *g, enum op op) {
    int n = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) n += g->nodes.at[i].op == op;
    return n;
}

static void train(enum form form, int64_t rows, int64_t accumulate, bool no_fusion) {
    struct test_env t;
    int64_t labels[ROWS];
    test_begin(&t);
    TEST_LANDING(&t);
    struct train_options o = options_of(accumulate);
    struct step whole = step_make(&t, form, CHUNK_OFF, &o, no_fusion);
    struct step cut = step_make(&t, form, rows, &o, no_fusion);
    ck_assert_int_eq(count_ops(whole.g, OP_cross_entropy), 1);
    ck_assert_int_eq(count_ops(cut.g, OP_cross_entropy), 0);
    for (int run = 0; run < RUNS; run++) {
        make_labels(labels, run);
        ck_assert_msg(step_run(&whole, labels, run) == ST_OK, "%s", t.log);
        ck_assert_msg(step_run(&cut, labels, run) == ST_OK, "%s", t.log);
        compare(&whole, &cut, form == NARROW ? 1e-2 : 1e-6, run);
    }
    step_free(&whole);
    step_free(&cut);
    test_end(&t);
}

START_TEST(test_values) {
    static const int64_t rows[] = {1, 4, 7, 8, 20, ROWS, 1000};
    for (int form = 0; form < FORMS; form++)
        for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
            train((enum form)form, rows[k], 1, false);
}
END_TEST

START_TEST(test_reference_mode) {
    for (int form = 0; form < FORMS; form++) train((enum form)form, 8, 1, true);
}
END_TEST

START_TEST(test_accumulate) {
    train(TIED, 8, 3, false);
    train(BIAS, 8, 2, false);
}
END_TEST

static void measure(enum form form) {
    struct test_env t;
    int64_t labels[ROWS];
    test_begin(&t);
    TEST_LANDING(&t);
    struct train_options o = options_of(1);
    o.measure = true;
    struct step whole = step_make(&t, form, CHUNK_OFF, &o, false);
    struct step cut = step_make(&t, form, 8, &o, false);
    ck_assert_int_eq(count_ops(cut.g, OP_cross_entropy), 0);
    ck_assert_int_eq(count_ops(cut.g, OP_argmax), 3);
    for (int run = 0; run < RUNS; run++) {
        make_labels(labels, run);
        ck_assert_msg(step_run(&whole, labels, run) == ST_OK, "%s", t.log);
        ck_assert_msg(step_run(&cut, labels, run) == ST_OK, "%s", t.log);
        compare(&whole, &cut, 1e-6, run);
    }
    step_free(&whole);
    step_free(&cut);
    test_end(&t);
}

START_TEST(test_measure) {
    for (int form = 0; form < FORMS; form++) measure((enum form)form);
}
END_TEST

/* The same words with whole logits and with chunks. */
static void refuse(int64_t label, int64_t rows) {
    struct test_env t;
    int64_t labels[ROWS];
    char want[200];
    test_begin(&t);
    TEST_LANDING(&t);
    struct train_options o = options_of(1);
    struct step s = step_make(&t, TIED, rows, &o, false);
    make_labels(labels, 0);
    labels[17] = label;
    ck_assert_int_eq(step_run(&s, labels, 0), ST_DATA);
    snprintf(
        want, sizeof want,
        "error: /head: expected a label in [0, %d) or %d (ignored), found %lld at position 17;",
        VOCAB, SKIP, (long long)label);
    ck_assert_msg(strstr(t.log, want) != NULL, "%s", t.log);
    step_free(&s);
    test_end(&t);
}

START_TEST(test_bad_label) {
    static const int64_t bad[] = {VOCAB, -1, -VOCAB, 1 << 20};
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        refuse(bad[k], CHUNK_OFF);
        refuse(bad[k], 8);
    }
}
END_TEST

static bool has_classes(const struct type *t, int64_t *rows) {
    *rows = type_count(t) / VOCAB;
    return t->rank >= 2 && t->dims[t->rank - 1] == VOCAB && t->dims[0] != WIDTH;
}

/* No two chunks are there at once, gradients lie where the logits were, and one group scores and
 * differentiates a chunk. */
static void check_memory(enum form form) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct train_options o = options_of(1);
    struct step s = step_make(&t, form, 8, &o, false);
    uint32_t groups = 0;
    for (uint32_t k = 0; k < s.p->launches.n; k++) {
        int64_t alive = 0, rows;
        for (uint32_t b = 1; b < s.p->buffers.n; b++) {
            const struct plan_buffer *x = &s.p->buffers.at[b];
            if (x->kind != BUF_TEMP || x->alias.i || x->first > k || x->last < k) continue;
            if (has_classes(&x->type, &rows)) alive += rows;
        }
        ck_assert_int_le(alive, 8);
        const struct plan_launch *l = &s.p->launches.at[k];
        bool wide = false;
        for (uint32_t j = 0; j < l->nout; j++)
            wide |= has_classes(&s.p->buffers.at[l->out[j].buffer.i].type, &rows);
        groups += l->kind == LAUNCH_group && wide;
    }
    ck_assert_uint_eq(groups, 3);
    step_free(&s);
    test_end(&t);
}

START_TEST(test_one_chunk_at_a_time) {
    check_memory(TIED);
    check_memory(BIAS);
    check_memory(CAPPED);
}
END_TEST

/* Logits that somebody else reads stay whole, and so do small ones when nobody asks. */
START_TEST(test_left_alone) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct train_options o = options_of(1);
    struct graph *g = step_graph(&t, TIED, CHUNK_AUTO, &o);
    ck_assert_int_eq(count_ops(g, OP_cross_entropy), 1);
    graph_destroy(g);
    struct arena scratch;
    arena_init(&scratch, &t.ctx);
    struct recipe r = {.chunk_loss = 8};
    struct pass_ctx c = {.ctx = &t.ctx, .scratch = &scratch, .train = &o, .recipe = &r};
    g = model(&t.ctx, TIED);
    ck_assert_int_eq(pass_loss(&c, g), ST_OK);
    ck_assert_int_eq(pass_chunk_loss(&c, g), ST_OK); /* "logits" is an output */
    ck_assert_int_eq(count_ops(g, OP_cross_entropy), 1);
    graph_destroy(g);
    arena_reset(&scratch);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("chunk_loss");
    TCase *tc = tcase_create("chunk_loss");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_values);
    tcase_add_test(tc, test_reference_mode);
    tcase_add_test(tc, test_accumulate);
    tcase_add_test(tc, test_measure);
    tcase_add_test(tc, test_bad_label);
    tcase_add_test(tc, test_one_chunk_at_a_time);
    tcase_add_test(tc, test_left_alone);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
