// SPDX-License-Identifier: Apache-2.0
/* test_plan_run.c - whole training steps of a small GPT and of a small convolutional net, planned
 * and run on the CPU, fused and one node at a time: outputs, gradients and optimizer states against
 * the reference evaluator. */
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "passes/pass.h"
#include "ref_eval.h"
#include "runtime/cpu.h"
#include "test_util.h"

static void add_training(struct test_env *t, struct graph *g, enum optimizer_kind kind) {
    struct arena scratch;
    arena_init(&scratch, &t->ctx);
    struct train_options o = {.optimizer = kind,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .momentum = 0.9,
                              .clip = 0.5,
                              .dump_grads = true,
                              .accumulate = 1};
    struct pass_ctx c = {.ctx = &t->ctx, .scratch = &scratch, .train = &o};
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(pass_simplify(&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(pass_cse(&c, g) == ST_OK, "%s", t->log);
    ck_assert_msg(pass_optimizer(&c, g) == ST_OK, "%s", t->log);
    graph_settle(g);
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s", t->log);
    arena_reset(&scratch);
}

/* Deterministic inputs: tokens and labels below 37, images in [-1, 1), a learning rate. */
static double input_value(const char *name, int64_t i) {
    if (strcmp(name, "lr") == 0) return 0.01;
    if (strcmp(name, "labels") == 0) return (double)((i * 11 + 3) % 5);
    if (strcmp(name, "tokens") == 0) return (double)((i * 7 + 5) % 37);
    return (double)((i * 37 + 11) % 101) / 50.5 - 1.0;
}

static bool feed(void *user, const char *name, double *at, int64_t n) {
    static const char *const inputs[] = {"lr", "labels", "tokens", "image", "cos", "sin"};
    (void)user;
    for (int k = 0; k < 6; k++) {
        if (strcmp(name, inputs[k]) != 0) continue;
        for (int64_t i = 0; i < n; i++) at[i] = input_value(name, i);
        return true;
    }
    return false;
}

static void check_values(const struct ref *want, const char *got, const char *what,
                         const char *name, double tolerance) {
    double scale = 1e-6;
    ck_assert_msg(got != NULL, "%s: nothing named '%s'", what, name);
    for (int64_t i = 0; i < want->n; i++) scale = fmax(scale, fabs(want->at[i]));
    for (int64_t i = 0; i < want->n; i++) {
        double v = dtype_load(want->dtype, got + (size_t)i * dtype_size(want->dtype));
        ck_assert_msg(fabs(v - want->at[i]) <= tolerance * scale,
                      "%s: %s[%lld] is %.10g, expected %.10g (largest %.3g)", what, name,
                      (long long)i, v, want->at[i], scale);
    }
}

static void run_step(struct test_env *t, struct graph *g, bool no_fusion, const char *what) {
    struct codegen_options o = {.threads = 2, .no_fusion = no_fusion};
    struct plan *p = NULL;
    struct cpu_exec *x = NULL;
    struct ref *vals = ref_eval(g, &t->arena, feed, NULL);
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s: %s", what, t->log);
    struct pool *pool = pool_create(&t->ctx, 2);
    ck_assert_msg(cpu_create(&t->ctx, p, pool, &x) == ST_OK, "%s: %s", what, t->log);
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *buffer = &p->buffers.at[b];
        if (buffer->kind != BUF_INPUT) continue;
        char *at = cpu_buffer_at(x, (buf_id){b});
        const char *name = interned(&p->strings, buffer->name);
        size_t size = dtype_size(buffer->type.dtype);
        for (int64_t i = 0; i < type_count(&buffer->type); i++)
            dtype_store(buffer->type.dtype, at + (size_t)i * size, input_value(name, i));
    }
    ck_assert_msg(cpu_run(x, 0, p->first_update, false) == ST_OK, "%s: %s", what, t->log);
    ck_assert_msg(cpu_run(x, 0, p->launches.n, false) == ST_OK, "%s: %s", what, t->log);
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const char *name = interned(&g->strings, g->outputs.at[k].name);
        struct ref want = ref_output(g, vals, name);
        check_values(&want, cpu_buffer(x, BUF_OUTPUT, name), what, name, 1e-4);
    }
    for (uint32_t k = 0; k < g->updates.n; k++) {
        val_id target = g->updates.at[k].target, next = g->updates.at[k].next;
        /* Adam's first step divides a gradient by its size: where that is near 0 anything goes. */
        bool param = val_op(g, target) == OP_param;
        if (param && val_op(g, next) == OP_adam) continue;
        const char *name = attr_str(g, val_def(g, target), ATTR_name);
        check_values(&vals[next.i], cpu_buffer(x, param ? BUF_PARAM : BUF_STATE, name), what, name,
                     2e-4);
    }
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
}

static void run_gpt(bool whole, bool no_fusion, const char *what) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = gpt_graph(&t.ctx, (struct gpt_size){2, 9, 12, 3, 2, 37}, whole, NULL);
    add_training(&t, g, OPT_ADAMW);
    run_step(&t, g, no_fusion, what);
    graph_destroy(g);
    test_end(&t);
}

START_TEST(gpt_fused) {
    run_gpt(true, false, "gpt, fused");
}
END_TEST

START_TEST(gpt_unfused) {
    run_gpt(true, true, "gpt, unfused");
}
END_TEST

START_TEST(gpt_parts_fused) {
    run_gpt(false, false, "gpt without the attention op, fused");
}
END_TEST

START_TEST(gpt_parts_unfused) {
    run_gpt(false, true, "gpt without the attention op, unfused");
}
END_TEST

/* ---- a convolutional net with batch normalisation ------------------------------------------- */
static val_id make_param(struct graph *g, const char *name, int rank, const int64_t *dims) {
    struct type t = {.dtype = DT_f32, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    int64_t n = type_count(&t);
    float *at = ARENA_ARRAY(&g->arena, float, (size_t)n);
    for (int64_t i = 0; i < n; i++) at[i] = (float)((double)((i * 53 + 7) % 97) / 97.0 - 0.45);
    struct attr a[] = {{.key = ATTR_name, .s = name},
                       {.key = ATTR_init, .blob = graph_blob(g, at, (size_t)n * 4, false)}};
    val_id v = graph_source(g, OP_param, &t, a, 2, (str_id){0});
    graph_set_name(g, v, name);
    return v;
}

static val_id batch_norm(struct graph *g, val_id x, int64_t channels) {
    str_id o = intern(&g->strings, "/bn");
    const int64_t axes[] = {0, 2, 3};
    struct type ct = {.dtype = DT_f32, .rank = 4, .dims = {1, channels, 1, 1}};
    struct attr a[] = {{.key = ATTR_name, .s = "bn.mean"}, {.key = ATTR_role, .s = "stat"}};
    val_id mean = build_reduce(g, OP_reduce_mean, x, axes, 3, true, o);
    val_id d = build_2(g, OP_sub, x, mean, o);
    val_id var = build_reduce(g, OP_reduce_mean, build_2(g, OP_mul, d, d, o), axes, 3, true, o);
    val_id rstd = build_1(g, OP_rsqrt, build_shift(g, var, 1e-5, o), o);
    val_id running = graph_source(g, OP_state, &ct, a, 2, o);
    graph_add_update(
        g, running,
        build_2(g, OP_add, build_scale(g, running, 0.9, o), build_scale(g, mean, 0.1, o), o));
    val_id y = build_2(g, OP_mul, d, rstd, o);
    val_id w = build_reshape(g, make_param(g, "bn.weight", 1, &channels), ct.dims, 4, o);
    val_id b = build_reshape(g, make_param(g, "bn.bias", 1, &channels), ct.dims, 4, o);
    return build_2(g, OP_add, build_2(g, OP_mul, y, w, o), b, o);
}

static struct graph *conv_graph(struct ctx *c) {
    struct graph *g = graph_create(c, "conv");
    str_id o = intern(&g->strings, "/conv");
    struct type image = {.dtype = DT_f32, .rank = 4, .dims = {3, 2, 8, 8}};
    struct type ids = {.dtype = DT_i64, .rank = 1, .dims = {3}};
    struct attr name = {.key = ATTR_name, .s = "image"};
    struct attr label[] = {{.key = ATTR_name, .s = "labels"}, {.key = ATTR_role, .s = "label"}};
    val_id x = graph_source(g, OP_input, &image, &name, 1, o);
    val_id labels = graph_source(g, OP_input, &ids, label, 2, o);
    int64_t ones[] = {1, 1}, pads[] = {1, 1, 1, 1}, two[] = {2, 2}, zero[] = {0, 0, 0, 0};
    struct attr conv[] = {{.key = ATTR_strides, .list = ones, .n = 2},
                          {.key = ATTR_pads, .list = pads, .n = 4},
                          {.key = ATTR_dilations, .list = ones, .n = 2}};
    val_id w = make_param(g, "conv.weight", 4, (int64_t[]){5, 2, 3, 3});
    x = graph_add(g, OP_conv, (val_id[]){x, w}, 2, conv, 3, o);
    x = build_1(g, OP_relu, batch_norm(g, x, 5), o);
    struct attr pool[] = {{.key = ATTR_kernel, .list = two, .n = 2},
                          {.key = ATTR_strides, .list = two, .n = 2},
                          {.key = ATTR_pads, .list = zero, .n = 4},
                          {.key = ATTR_dilations, .list = ones, .n = 2}};
    x = graph_add(g, OP_max_pool, &x, 1, pool, 4, o);
    x = build_reshape(g, x, (dim[]){3, 80}, 2, o);
    val_id fc = make_param(g, "fc.weight", 2, (int64_t[]){5, 80});
    x = build_matmul(g, x, fc, false, true, o);
    val_id loss = graph_add(g, OP_cross_entropy, (val_id[]){x, labels}, 2, NULL, 0, o);
    graph_add_output(g, "loss", build_reduce(g, OP_reduce_mean, loss, (int64_t[]){0}, 1, false, o));
    return g;
}

static void run_conv(bool no_fusion, const char *what) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = conv_graph(&t.ctx);
    add_training(&t, g, OPT_SGD);
    run_step(&t, g, no_fusion, what);
    graph_destroy(g);
    test_end(&t);
}

START_TEST(conv_fused) {
    run_conv(false, "conv net, fused");
}
END_TEST

START_TEST(conv_unfused) {
    run_conv(true, "conv net, unfused");
}
END_TEST

/* ---- attention whose queries and keys are rotated inside a joined product ------------------- */
static val_id make_input(struct graph *g, const char *name, int rank, const int64_t *dims) {
    struct type t = {.dtype = DT_f32, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &t, &a, 1, (str_id){0});
}

/* x [3,2,5,6], its halves turned. */
static val_id rotate(struct graph *g, val_id x, val_id c, val_id s, str_id o) {
    val_id a = build_slice(g, x, (dim[]){0, 0, 0, 0}, (dim[]){3, 2, 5, 3}, NULL, o);
    val_id b = build_slice(g, x, (dim[]){0, 0, 0, 3}, (dim[]){3, 2, 5, 3}, NULL, o);
    val_id ac = build_2(g, OP_mul, a, c, o), bs = build_2(g, OP_mul, b, s, o);
    val_id bc = build_2(g, OP_mul, b, c, o), as = build_2(g, OP_mul, a, s, o);
    val_id low = build_2(g, OP_sub, ac, bs, o), high = build_2(g, OP_add, bc, as, o);
    return build_concat(g, (val_id[]){low, high}, 2, 3, o);
}

static struct graph *rotary_graph(struct ctx *c) {
    struct graph *g = graph_create(c, "rotary");
    str_id o = intern(&g->strings, "/rotary");
    val_id x = make_input(g, "image", 2, (int64_t[]){15, 7}), in[3];
    val_id cosine = make_input(g, "cos", 2, (int64_t[]){5, 3});
    val_id sine = make_input(g, "sin", 2, (int64_t[]){5, 3});
    x = build_matmul(g, x, make_param(g, "qkv", 2, (int64_t[]){7, 36}), false, false, o);
    x = build_reshape(g, x, (dim[]){3, 5, 36}, 3, o);
    for (int k = 0; k < 3; k++) {
        in[k] = build_slice(g, x, (dim[]){0, 0, 12 * k}, (dim[]){3, 5, 12}, NULL, o);
        in[k] = build_reshape(g, in[k], (dim[]){3, 5, 2, 6}, 4, o);
        in[k] = build_transpose(g, in[k], (int64_t[]){0, 2, 1, 3}, o);
        if (k < 2) in[k] = rotate(g, in[k], cosine, sine, o);
    }
    struct attr a[] = {{.key = ATTR_scale, .f = 0.4}, {.key = ATTR_causal, .i = 1}};
    x = build_transpose(g, graph_add(g, OP_attention, in, 3, a, 2, o), (int64_t[]){0, 2, 1, 3}, o);
    x = build_reshape(g, x, (dim[]){15, 12}, 2, o);
    x = build_matmul(g, x, make_param(g, "out", 2, (int64_t[]){12, 4}), false, false, o);
    x = build_2(g, OP_mul, x, x, o);
    graph_add_output(g, "loss", build_reduce(g, OP_reduce_mean, x, (int64_t[]){0, 1}, 2, false, o));
    return g;
}

/* Launches that write into a buffer that they read other parts of. */
static int overwriting(struct graph *g, const struct codegen_options *o) {
    struct plan *p = NULL;
    int n = 0;
    ck_assert_int_eq(plan_build(g, o, &p), ST_OK);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        n += l->kind == LAUNCH_group && l->nout == 2 && l->nin > 2 &&
             l->out[0].buffer.i == l->out[1].buffer.i &&
             (l->out[0].buffer.i == l->in[0].buffer.i || l->out[0].buffer.i == l->in[1].buffer.i);
    }
    plan_destroy(p);
    return n;
}

static void run_rotary(bool no_fusion, const char *what) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = rotary_graph(&t.ctx);
    struct codegen_options o = {.threads = 2, .no_fusion = no_fusion};
    add_training(&t, g, OPT_SGD);
    ck_assert_int_eq(overwriting(g, &o), no_fusion ? 0 : 2); /* q and k */
    run_step(&t, g, no_fusion, what);
    graph_destroy(g);
    test_end(&t);
}

START_TEST(rotary_fused) {
    run_rotary(false, "rotary attention, fused");
}
END_TEST

START_TEST(rotary_unfused) {
    run_rotary(true, "rotary attention, unfused");
}
END_TEST

/* ---- random graphs -------------------------------------------------------------------------- */
struct dice {
    uint64_t s;
};
static uint32_t roll(struct dice *d, uint32_t n) {
    d->s = d->s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(d->s >> 33) % n;
}

/* A node that moves, reduces or joins values; VAL_NONE when the dice do not fit. */
static val_id random_move(struct graph *g, struct dice *d, val_id x, val_id y, str_id o) {
    struct type t = *val_type(g, x);
    int64_t perm[RANK_MAX], steps[RANK_MAX], axes[RANK_MAX], low[RANK_MAX], high[RANK_MAX];
    dim starts[RANK_MAX], sizes[RANK_MAX];
    int n = 0;
    switch (roll(d, 9)) {
    case 0: /* merge two axes */
        if (t.rank < 2) return VAL_NONE;
        n = (int)roll(d, (uint32_t)t.rank - 1);
        t.dims[n] *= t.dims[n + 1];
        for (int i = n + 1; i + 1 < t.rank; i++) t.dims[i] = t.dims[i + 1];
        return build_reshape(g, x, t.dims, t.rank - 1, o);
    case 1: /* split an even axis */
        for (n = 0; n < t.rank && t.dims[n] % 2 != 0; n++) continue;
        if (n == t.rank || t.rank > 4) return VAL_NONE;
        for (int i = t.rank; i > n; i--) t.dims[i] = t.dims[i - 1];
        t.dims[n] /= 2, t.dims[n + 1] = 2;
        return build_reshape(g, x, t.dims, t.rank + 1, o);
    case 2:
        for (int i = 0; i < t.rank; i++) perm[i] = i;
        for (int i = t.rank; i-- > 1;) {
            uint32_t k = roll(d, (uint32_t)i + 1);
            int64_t swap = perm[i];
            perm[i] = perm[k], perm[k] = swap;
        }
        return build_transpose(g, x, perm, o);
    case 3:
        for (int i = 0; i < t.rank; i++) {
            steps[i] = roll(d, 3) == 0 ? -1 : 1;
            sizes[i] = 1 + roll(d, (uint32_t)t.dims[i]);
            starts[i] = roll(d, (uint32_t)(t.dims[i] - sizes[i] + 1));
            if (steps[i] < 0) starts[i] += sizes[i] - 1;
        }
        return build_slice(g, x, starts, sizes, steps, o);
    case 4:
    case 5:
        for (int i = 0; i < t.rank; i++)
            if (roll(d, 2)) axes[n++] = i;
        return build_reduce(g, roll(d, 2) ? OP_reduce_sum : OP_reduce_mean, x, axes, n, roll(d, 2),
                            o);
    case 6:
        if (t.rank == 0 || !type_equal(&t, val_type(g, y))) return VAL_NONE;
        return build_concat(g, (val_id[]){x, y, x}, 3, roll(d, (uint32_t)t.rank), o);
    case 7: {
        for (int i = 0; i < t.rank; i++)
            low[i] = roll(d, 2), high[i] = roll(d, 2), steps[i] = roll(d, 2);
        struct attr a[] = {{.key = ATTR_low, .list = low, .n = t.rank},
                           {.key = ATTR_high, .list = high, .n = t.rank},
                           {.key = ATTR_interior, .list = steps, .n = t.rank},
                           {.key = ATTR_value, .f = 0.25}};
        return graph_add(g, OP_pad, &x, 1, a, 4, o);
    }
    default: {
        if (t.rank == 0) return VAL_NONE;
        struct attr a[] = {{.key = ATTR_axis, .i = roll(d, (uint32_t)t.rank)},
                           {.key = ATTR_eps, .f = 1e-3}};
        uint32_t which = roll(d, 3);
        if (which == 2) return val_at(graph_add(g, OP_layer_norm, &x, 1, a, 2, o), (int)roll(d, 3));
        return graph_add(g, which ? OP_softmax : OP_log_softmax, &x, 1, a, 1, o);
    }
    }
}

static val_id random_node(struct graph *g, struct dice *d, const val_id *pool, uint32_t n,
                          str_id o) {
    static const enum op ones[] = {OP_neg, OP_sin, OP_tanh, OP_relu, OP_sigmoid, OP_abs, OP_gelu};
    static const enum op twos[] = {OP_add, OP_sub, OP_mul, OP_max, OP_min};
    val_id x = pool[n - 1 - roll(d, n > 6 ? 6 : n)], y = pool[roll(d, n)];
    struct type t;
    switch (roll(d, 4)) {
    case 0: return build_1(g, ones[roll(d, 7)], x, o);
    case 1:
        if (!type_broadcast(val_type(g, x), val_type(g, y), &t)) return VAL_NONE;
        return build_2(g, twos[roll(d, 5)], x, y, o);
    case 2: {
        const struct type *a = val_type(g, x), *b = val_type(g, y);
        if (a->rank < 2 || b->rank < 2) return VAL_NONE;
        bool ta = roll(d, 2), tb = roll(d, 2);
        dim k = a->dims[a->rank - (ta ? 2 : 1)];
        if (k != b->dims[b->rank - (tb ? 1 : 2)]) return VAL_NONE;
        for (int i = 3; i <= a->rank && i <= b->rank; i++) {
            dim p = a->dims[a->rank - i], q = b->dims[b->rank - i];
            if (p != q && p != 1 && q != 1) return VAL_NONE;
        }
        return build_scale(g, build_matmul(g, x, y, ta, tb, o), 1.0 / (double)k, o);
    }
    default: return random_move(g, d, x, y, o);
    }
}

static struct graph *random_graph(struct ctx *c, uint64_t seed) {
    struct graph *g = graph_create(c, "random");
    struct dice d = {seed * 77 + 1};
    str_id o = intern(&g->strings, "/random");
    val_id pool[64];
    uint32_t n = 0;
    static const int64_t sizes[] = {1, 2, 3, 4, 6};
    for (; n < 4; n++) {
        struct type t = {.dtype = DT_f64, .rank = 2 + (int)roll(&d, 2)};
        for (int i = 0; i < t.rank; i++) t.dims[i] = sizes[roll(&d, 5)];
        if (n % 2 == 1) t = *val_type(g, pool[n - 1]);
        char *name = arena_printf(&g->arena, "image%u", n);
        double *at = ARENA_ARRAY(&g->arena, double, (size_t)type_count(&t));
        for (int64_t i = 0; i < type_count(&t); i++) at[i] = input_value("image", i + 17 * n);
        struct attr a[] = {
            {.key = ATTR_name, .s = name},
            {.key = ATTR_init, .blob = graph_blob(g, at, (size_t)type_bytes(&t), false)}};
        pool[n] = graph_source(g, OP_param, &t, a, 2, o);
    }
    while (n < 34) {
        val_id v = random_node(g, &d, pool, n, o);
        if (v.i == 0) continue;
        int64_t count = type_count(val_type(g, v));
        if (count > 4000 || count == 0) continue;
        pool[n++] = v;
    }
    for (uint32_t k = 0; k < 5; k++)
        graph_add_output(g, arena_printf(&g->arena, "out%u", k),
                         pool[k == 0 ? n - 1 : roll(&d, n)]);
    graph_add_update(g, pool[0], pool[1]);
    graph_add_update(g, pool[1], pool[0]);
    graph_settle(g);
    return g;
}

static void run_random(uint64_t seed, bool no_fusion) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = random_graph(&t.ctx, seed);
    ck_assert_msg(graph_verify(g, "test") == ST_OK, "%s", t.log);
    run_step(&t, g, no_fusion,
             arena_printf(&t.arena, "random graph %llu", (unsigned long long)seed));
    graph_destroy(g);
    test_end(&t);
}

START_TEST(random_graphs) {
    for (uint64_t k = 0; k < 40; k++) run_random((uint64_t)_i * 40 + k, k % 8 == 7);
}
END_TEST

/* Graphs with views that no strides can say, and places that a loop nest cannot step through. */
START_TEST(awkward_graphs) {
    static const uint64_t seeds[] = {825, 932, 1795, 3532};
    for (int k = 0; k < 4; k++) run_random(seeds[k], false);
}
END_TEST

/* ---- numbers that only Lathe defines: random, narrow integers ----------------------------------
 */
static val_id draw(struct graph *g, val_id seed, int64_t stream, str_id o) {
    const dim dims[] = {4, 6, 10};
    struct attr a[] = {{.key = ATTR_shape, .list = dims, .n = 3},
                       {.key = ATTR_stream, .i = stream}};
    return graph_add(g, OP_random, &seed, 1, a, 2, o);
}

/* Dropout read in order, transposed and by a reduction over the leading axes; a hash that overflows
 * i32; a half that is rounded. */
static struct graph *odd_graph(struct ctx *c) {
    struct graph *g = graph_create(c, "odd");
    str_id o = intern(&g->strings, "/odd");
    struct attr seed[] = {{.key = ATTR_name, .s = "labels"}, {.key = ATTR_role, .s = "seed"}};
    struct type scalar = type_scalar(DT_i64);
    val_id key = graph_source(g, OP_input, &scalar, seed, 2, o);
    val_id x = make_param(g, "x", 3, (int64_t[]){4, 6, 10});
    val_id keep = build_2(g, OP_lt, draw(g, key, 3, o), build_scalar(g, DT_f32, 0.7, o), o);
    val_id y = build_3(g, OP_where, keep, x, build_scalar(g, DT_f32, 0, o), o);
    graph_add_output(g, "kept", keep);
    graph_add_output(g, "y", y);
    graph_add_output(g, "turned",
                     build_1(g, OP_neg, build_transpose(g, y, (int64_t[]){2, 0, 1}, o), o));
    graph_add_output(g, "rows", build_reduce(g, OP_reduce_max, y, (int64_t[]){0, 1}, 2, false, o));
    graph_add_output(
        g, "cols",
        build_reduce(g, OP_reduce_sum, draw(g, key, 4, o), (int64_t[]){0, 2}, 2, false, o));
    val_id i = build_iota(g, DT_i32, 50, 3, 1000003, o);
    val_id h = build_2(g, OP_mul, i, i, o);
    h = build_2(g, OP_add, build_2(g, OP_mul, h, i, o), i, o);
    graph_add_output(g, "hash", h);
    val_id half = build_cast(g, build_cast(g, x, DT_f16, o), DT_f32, o);
    graph_add_output(g, "half", build_2(g, OP_sub, x, half, o));
    return g;
}

static void run_outputs(struct test_env *t, struct graph *g, bool no_fusion, const void **out) {
    struct codegen_options o = {.threads = 2, .no_fusion = no_fusion};
    struct plan *p = NULL;
    struct cpu_exec *x = NULL;
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", t->log);
    struct pool *pool = pool_create(&t->ctx, 2);
    ck_assert_int_eq(cpu_create(&t->ctx, p, pool, &x), ST_OK);
    *(int64_t *)cpu_buffer(x, BUF_INPUT, "labels") = 1234567;
    ck_assert_msg(cpu_run(x, 0, p->launches.n, false) == ST_OK, "%s", t->log);
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const char *name = interned(&g->strings, g->outputs.at[k].name);
        size_t bytes = (size_t)type_bytes(val_type(g, g->outputs.at[k].value));
        void *copy = arena_alloc(&t->arena, bytes);
        memcpy(copy, cpu_buffer(x, BUF_OUTPUT, name), bytes);
        out[k] = copy;
    }
    cpu_destroy(x);
    pool_destroy(pool);
    plan_destroy(p);
}

START_TEST(fused_is_bit_equal_here) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = odd_graph(&t.ctx);
    const void *a[16], *b[16];
    run_outputs(&t, g, false, a);
    run_outputs(&t, g, true, b);
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const struct type *type = val_type(g, g->outputs.at[k].value);
        const char *name = interned(&g->strings, g->outputs.at[k].name);
        size_t size = dtype_size(type->dtype);
        for (int64_t i = 0; i < type_count(type); i++) {
            double x = dtype_load(type->dtype, (const char *)a[k] + (size_t)i * size);
            double y = dtype_load(type->dtype, (const char *)b[k] + (size_t)i * size);
            bool sum = strcmp(name, "cols") == 0;
            ck_assert_msg(sum ? fabs(x - y) < 1e-4 : x == y, "%s[%lld]: %.9g fused, %.9g not", name,
                          (long long)i, x, y);
        }
        if (strcmp(name, "hash") == 0)
            for (int64_t i = 0; i < 50; i++) {
                uint32_t v = (uint32_t)(3 + i * 1000003);
                ck_assert_int_eq(((const int32_t *)a[k])[i], (int32_t)(v * v * v + v));
            }
    }
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("plan_run");
    TCase *tc = tcase_create("plan_run");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, gpt_fused);
    tcase_add_test(tc, gpt_unfused);
    tcase_add_test(tc, gpt_parts_fused);
    tcase_add_test(tc, gpt_parts_unfused);
    tcase_add_test(tc, conv_fused);
    tcase_add_test(tc, conv_unfused);
    tcase_add_test(tc, rotary_fused);
    tcase_add_test(tc, rotary_unfused);
    tcase_add_loop_test(tc, random_graphs, 0, 10);
    tcase_add_test(tc, awkward_graphs);
    tcase_add_test(tc, fused_is_bit_equal_here);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
