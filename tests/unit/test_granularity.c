// SPDX-License-Identifier: Apache-2.0
/* test_granularity.c - products on 8-bit operands: which ones, in which formats, with which scales;
 * codes and their transposes made once; overrides by name; histories of magnitudes. What the codes
 * and products compute is tested in test_quantize.c and test_products.c, training in tests/model.
 */
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "passes/granularity.h"
#include "test_util.h"

enum { BATCH = 2, SEQ = 16, ROWS = BATCH * SEQ, WIDTH = 32, WIDE = 128, VOCAB = 48, LAYERS = 2 };
enum { LINEARS = 6, ODD = 24 };

struct fixture {
    struct test_env t;
    struct arena scratch;
    struct graph *g;
    struct recipe recipe;
    struct train_options train;
    struct pass_ctx c;
};

/* ---- the model ------------------------------------------------------------------------------ */
static val_id param(struct graph *g, const char *name, dim a, dim b) {
    struct type t = {.dtype = DT_f32, .rank = b ? 2 : 1, .dims = {a, b}};
    int64_t n = type_count(&t);
    float *v = ARENA_ARRAY(&g->arena, float, (size_t)n);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 37 + 5) % 29) / 64.0f - 0.21875f;
    struct attr attrs[2] = {{.key = ATTR_name, .s = name},
                            {.key = ATTR_init, .blob = graph_blob(g, v, (size_t)n * 4, false)}};
    val_id p = graph_source(g, OP_param, &t, attrs, 2, intern(&g->strings, name));
    graph_set_name(g, p, name);
    return p;
}

static val_id linear(struct graph *g, val_id x, int layer, const char *name, dim in, dim out) {
    const char *node = arena_printf(&g->arena, "/h.%d/%s", layer, name);
    val_id w = param(g, arena_printf(&g->arena, "%s.weight", node), in, out);
    return build_matmul(g, x, w, false, false, intern(&g->strings, node));
}

static val_id norm(struct graph *g, val_id x, int layer, const char *name) {
    struct attr attrs[2] = {{.key = ATTR_axis, .i = 2}, {.key = ATTR_eps, .f = 1e-5}};
    val_id y = graph_add(g, OP_rms_norm, &x, 1, attrs, 2, (str_id){0});
    const char *full = arena_printf(&g->arena, "/h.%d/%s", layer, name);
    return build_2(g, OP_mul, y, param(g, full, WIDTH, 0), (str_id){0});
}

/* Three projections of one tensor, a product of two of them, down, up; then a head. */
static struct graph *model(struct ctx *c, dim seq) {
    struct graph *g = graph_create(c, "model");
    struct type real = {.dtype = DT_f32, .rank = 3, .dims = {BATCH, seq, WIDTH}};
    struct type ids = {.dtype = DT_i64, .rank = 1, .dims = {BATCH * seq}};
    struct attr name = {.key = ATTR_name, .s = "x"};
    struct attr label[] = {{.key = ATTR_name, .s = "labels"}, {.key = ATTR_role, .s = "label"}};
    str_id o = intern(&g->strings, "/scores");
    val_id x = graph_source(g, OP_input, &real, &name, 1, (str_id){0});
    val_id labels = graph_source(g, OP_input, &ids, label, 2, (str_id){0});
    for (int l = 0; l < LAYERS; l++) {
        val_id n = norm(g, x, l, "norm1");
        val_id q = linear(g, n, l, "q", WIDTH, WIDTH), k = linear(g, n, l, "k", WIDTH, WIDTH);
        val_id p = build_matmul(g, q, k, false, true, o); /* no parameter */
        p = build_matmul(g, p, linear(g, n, l, "v", WIDTH, WIDTH), false, false, o);
        x = build_2(g, OP_add, x, linear(g, p, l, "out", WIDTH, WIDTH), o);
        val_id h = linear(g, norm(g, x, l, "norm2"), l, "up", WIDTH, WIDE);
        x = build_2(g, OP_add, x, linear(g, build_1(g, OP_gelu, h, o), l, "down", WIDE, WIDTH), o);
    }
    val_id h = linear(g, norm(g, x, 9, "norm"), 9, "narrow", WIDTH, ODD);
    x = build_2(g, OP_add, x, linear(g, build_1(g, OP_gelu, h, o), 9, "widen", ODD, WIDTH), o);
    x = norm(g, x, 9, "last");
    val_id logits = linear(g, x, 9, "head", WIDTH, VOCAB);
    logits = build_reshape(g, logits, (dim[]){BATCH * seq, VOCAB}, 2, o);
    val_id loss = graph_add(g, OP_cross_entropy, (val_id[]){logits, labels}, 2, NULL, 0, o);
    graph_add_output(g, "loss", build_reduce(g, OP_reduce_mean, loss, (int64_t[]){0}, 1, false, o));
    return g;
}

static void run(struct fixture *f, const pass_fn *list, int n) {
    for (int k = 0; k < n; k++) {
        ck_assert_msg(list[k](&f->c, f->g) == ST_OK, "%s", f->t.log);
        arena_reset(&f->scratch);
        ck_assert_msg(graph_verify(f->g, "test") == ST_OK, "%s", f->t.log);
    }
}

static const pass_fn before[] = {pass_precision, pass_grad, pass_optimizer,
                                 pass_simplify,  pass_cse,  pass_dce};
static const pass_fn after[] = {pass_granularity, pass_dce};

static void begin(struct fixture *f, const char *recipe, dim seq) {
    f->c = (struct pass_ctx){
        .ctx = &f->t.ctx, .scratch = &f->scratch, .recipe = &f->recipe, .train = &f->train};
    f->train = (struct train_options){.optimizer = OPT_ADAMW,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .clip = 1,
                                      .accumulate = 1};
    arena_init(&f->scratch, &f->t.ctx);
    const char *full = arena_printf(&f->t.arena, "compute = bf16\nactivations = bf16\n%s", recipe);
    ck_assert_msg(recipe_parse(&f->t.ctx, &f->t.arena, "r", full, strlen(full), &f->recipe) ==
                      ST_OK,
                  "%s", f->t.log);
    f->g = model(&f->t.ctx, seq);
    run(f, before, 6);
}

static void low(struct fixture *f, const char *recipe) {
    test_begin(&f->t);
    begin(f, recipe, SEQ);
    run(f, after, 2);
}

static void end(struct fixture *f) {
    graph_destroy(f->g);
    arena_reset(&f->scratch);
    test_end(&f->t);
}

/* ---- what is there -------------------------------------------------------------------------- */
static int count(const struct graph *g, enum op op) {
    int n = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) n += g->nodes.at[i].op == op;
    return n;
}

static const struct type *in_type(const struct graph *g, node_id n, int k) {
    return val_type(g, node_in(g, n, k));
}

static uint32_t loss_node(const struct graph *g) {
    for (uint32_t k = 0; k < g->outputs.n; k++)
        if (strcmp(interned(&g->strings, g->outputs.at[k].name), "loss") == 0)
            return val_def(g, g->outputs.at[k].value).i;
    return 0;
}

/* Nothing is transposed or quantized alike twice. */
static void check_shared(const struct graph *g) {
    for (uint32_t i = 1; i < g->nodes.n; i++)
        for (uint32_t j = i + 1; j < g->nodes.n; j++) {
            node_id a = {i}, b = {j};
            enum op op = (enum op)graph_node(g, a)->op;
            bool same = graph_node(g, b)->op == op && graph_node(g, a)->nin &&
                        graph_node(g, b)->nin == graph_node(g, a)->nin &&
                        graph_node(g, a)->attrs.i == graph_node(g, b)->attrs.i;
            for (int k = 0; same && k < graph_node(g, a)->nin; k++)
                same = node_in(g, a, k).i == node_in(g, b, k).i;
            bool codes =
                op == OP_quantize || dtype_size(val_type(g, node_out(g, a, 0))->dtype) == 1;
            ck_assert_msg(!(same && codes), "%s %u and %u", op_info(op)->name, i, j);
        }
}

/* What a product's operand k is a rearrangement of: a quantize node. */
static node_id made_by(const struct graph *g, node_id n, int k) {
    val_id v = node_in(g, n, k);
    while (val_op(g, v) == OP_reshape || val_op(g, v) == OP_transpose)
        v = node_in(g, val_def(g, v), 0);
    ck_assert_int_eq(val_op(g, v), OP_quantize);
    return val_def(g, v);
}

static bool of_param(const struct graph *g, node_id n, int k) {
    val_id v = node_in(g, made_by(g, n, k), 0);
    return val_op(g, granularity_root(g, v)) == OP_param;
}

/* Forward e4m3 twice; gradients of inputs and weights read a gradient, once. */
static void check_formats(const struct graph *g, enum dtype gradients, int layers) {
    int forward = 0, inputs = 0, weights = 0;
    uint32_t loss = loss_node(g);
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_scaled_matmul) continue;
        bool param = of_param(g, n, 0) || of_param(g, n, 1);
        ck_assert_int_eq(val_type(g, node_out(g, n, 0))->dtype, DT_bf16);
        if (i <= loss) {
            forward++;
            ck_assert(param && in_type(g, n, 0)->dtype == DT_e4m3);
            ck_assert_int_eq(in_type(g, n, 1)->dtype, DT_e4m3);
            continue;
        }
        *(param ? &inputs : &weights) += 1;
        int wide = of_param(g, n, 0) ? 1 : 0; /* where the gradient stands */
        if (!param) wide = made_by(g, n, 0).i < loss ? 1 : 0;
        ck_assert_int_eq(in_type(g, n, wide)->dtype, gradients);
        ck_assert_int_eq(in_type(g, n, 1 - wide)->dtype, DT_e4m3);
        ck_assert(made_by(g, n, wide).i > loss);
        ck_assert(made_by(g, n, 1 - wide).i < loss || param); /* codes of the forward part */
    }
    ck_assert_int_eq(forward, LINEARS * layers);
    ck_assert_int_eq(inputs, LINEARS * layers);
    ck_assert_int_eq(weights, LINEARS * layers);
}

START_TEST(tensors) {
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, "products = e4m3\nproducts.gradients = e5m2");
    struct graph *g = f.g;
    check_formats(g, DT_e5m2, LAYERS);
    check_shared(g);
    /* head, narrow and widen, each with two gradients; two scores a layer, with two gradients */
    ck_assert_int_eq(count(g, OP_matmul), 3 * 3 + 2 * 3 * LAYERS);
    /* of a layer: weights, four inputs (q, k and v share one), as many gradients as products */
    ck_assert_int_eq(count(g, OP_quantize), (LINEARS + 4 + LINEARS) * LAYERS);
    int turned = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        val_id y = node_out(g, n, 0);
        if (graph_node(g, n)->op == OP_transpose) turned += dtype_size(val_type(g, y)->dtype) == 1;
        if (graph_node(g, n)->op != OP_quantize) continue;
        ck_assert(quant_tile_of(g, n).whole);
        bool weight = val_op(g, granularity_root(g, node_in(g, n, 0))) == OP_param;
        if (weight) ck_assert_int_eq(in_type(g, n, 0)->dtype, DT_f32); /* rounded once */
    }
    ck_assert_int_eq(turned, (LINEARS + 4 + LINEARS) * LAYERS);
    end(&f);
}
END_TEST

START_TEST(rows) {
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, "products = e4m3\nproducts.scope = row");
    struct graph *g = f.g;
    check_formats(g, DT_e5m2, LAYERS);
    check_shared(g);
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op == OP_quantize) {
            struct quant_tile t = quant_tile_of(g, n);
            ck_assert(!t.whole && t.rows == 1 && t.cols == 0);
        }
        if (graph_node(g, n)->op != OP_scaled_matmul) continue;
        for (int k = 0; k < 2; k++) { /* scales belong to rows of the operand as it is read */
            const struct type *codes = in_type(g, n, k), *scale = in_type(g, n, 2 + k);
            ck_assert_int_eq(scale->dims[scale->rank - 1], 1);
            ck_assert_int_eq(scale->dims[scale->rank - 2], codes->dims[codes->rank - 2]);
        }
    }
    /* both directions of weights, inputs and gradients */
    ck_assert_int_eq(count(g, OP_quantize), 2 * (LINEARS + 4 + LINEARS) * LAYERS);
    end(&f);
}
END_TEST

START_TEST(blocks) {
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, "products = e4m3\nproducts.gradients = e4m3\nproducts.scope = block");
    struct graph *g = f.g;
    check_formats(g, DT_e4m3, LAYERS);
    check_shared(g);
    int weights = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_quantize) continue;
        struct quant_tile t = quant_tile_of(g, n);
        bool weight = val_op(g, granularity_root(g, node_in(g, n, 0))) == OP_param;
        ck_assert(!t.whole && t.cols == SCALED_TILE && t.rows == (weight ? SCALED_TILE : 1));
        weights += weight;
    }
    ck_assert_int_eq(weights, LINEARS * LAYERS); /* one copy serves both directions */
    end(&f);
}
END_TEST

/* Later lines win; formats, scopes and wide names are those of the node. */
START_TEST(overrides) {
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, "products = e4m3\nproducts.wide = */up\nfor *h.0*: products.scope = row\n"
            "for /h.0/v: products = follow\nfor /h.1/down: products.gradients = e4m3");
    struct graph *g = f.g;
    int layer[2] = {0}, by_rows = 0, narrow = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_scaled_matmul) continue;
        const char *o = node_origin(g, n);
        ck_assert(!strstr(o, "/up") && !strstr(o, "/h.0/v") && !strstr(o, "/h.9"));
        bool first = strstr(o, "/h.0/") != NULL;
        layer[first ? 0 : 1]++;
        by_rows += in_type(g, n, 2)->rank > 0;
        ck_assert(first == (in_type(g, n, 2)->rank > 0));
        bool wide = in_type(g, n, 0)->dtype == DT_e5m2 || in_type(g, n, 1)->dtype == DT_e5m2;
        if (i > loss_node(g) && !wide) {
            ck_assert_ptr_nonnull(strstr(o, "/h.1/down"));
            narrow++;
        }
    }
    ck_assert_int_eq(layer[0], 3 * (LINEARS - 2));
    ck_assert_int_eq(layer[1], 3 * (LINEARS - 1));
    ck_assert_int_eq(by_rows, layer[0]);
    ck_assert_int_eq(narrow, 2);
    check_shared(g);
    end(&f);
}
END_TEST

/* One tensor for products with scales from different numbers of steps: codes of its own each. */
START_TEST(histories_differ) {
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, "products = e4m3\nfor */q: products.scale = delayed 4\n"
            "for */k: products.scale = delayed 8");
    int of[9] = {0};
    for (uint32_t i = 1; i < f.g->nodes.n; i++) {
        node_id n = {i};
        const struct type *t = val_type(f.g, node_out(f.g, n, 0));
        if (graph_node(f.g, n)->op != OP_state) continue;
        if (!strstr(attr_str(f.g, n, ATTR_name), ".amax")) continue;
        ck_assert(t->dims[0] == 4 || t->dims[0] == 8);
        of[t->dims[0]]++;
    }
    ck_assert_int_eq(of[4], 2 * LAYERS); /* input, gradient */
    ck_assert_int_eq(of[8], 2 * LAYERS);
    end(&f);
}
END_TEST

START_TEST(reasons) {
    static const struct {
        const char *recipe;
        int of[PRODUCT_SHAPE + 1];
    } cases[] = {
        {"products = e4m3",
         {[PRODUCT_LOW] = 36,
          [PRODUCT_NO_PARAMETER] = 12,
          [PRODUCT_HEAD] = 3,
          [PRODUCT_SIZES] = 6}},
        {"products = e4m3\nproducts.head = low\nproducts.wide = *h.1*",
         {[PRODUCT_LOW] = 21,
          [PRODUCT_NO_PARAMETER] = 12,
          [PRODUCT_NAMED] = 18,
          [PRODUCT_SIZES] = 6}},
        {"products = e4m3\nproducts.head = gradients",
         {[PRODUCT_LOW] = 38,
          [PRODUCT_NO_PARAMETER] = 12,
          [PRODUCT_HEAD] = 1,
          [PRODUCT_SIZES] = 6}},
        {"products = e4m3\nproducts.head = scores",
         {[PRODUCT_LOW] = 37,
          [PRODUCT_NO_PARAMETER] = 12,
          [PRODUCT_HEAD] = 2,
          [PRODUCT_SIZES] = 6}},
        {"products = e4m3\nkeep_wide = *h.1*", /* f32, which precision left to them */
         {[PRODUCT_LOW] = 18,
          [PRODUCT_NO_PARAMETER] = 12,
          [PRODUCT_HEAD] = 3,
          [PRODUCT_NOT_BF16] = 18,
          [PRODUCT_SIZES] = 6}},
        {"", {[PRODUCT_NO_PARAMETER] = 12, [PRODUCT_HEAD] = 3, [PRODUCT_NAMED] = 42}},
    };
    struct fixture f = {0};
    struct granularity x;
    struct recipe_products how;
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, cases[_i].recipe, SEQ);
    int of[PRODUCT_SHAPE + 1] = {0};
    granularity_find(&x, f.g, &f.recipe, &f.scratch);
    for (uint32_t i = 1; i < x.nodes; i++)
        if (graph_node(f.g, (node_id){i})->op == OP_matmul)
            of[product_kind(&x, (node_id){i}, &how)]++;
    for (int k = 0; k <= PRODUCT_SHAPE; k++)
        ck_assert_msg(of[k] == cases[_i].of[k], "%s: %d", product_reason((enum product_kind)k),
                      of[k]);
    run(&f, after, 2);
    ck_assert_int_eq(count(f.g, OP_scaled_matmul), cases[_i].of[PRODUCT_LOW]);
    end(&f);
}
END_TEST

START_TEST(odd_rows) { /* 2 x 15 tokens */
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "products = e4m3", SEQ - 1);
    run(&f, after, 2);
    ck_assert_int_eq(count(f.g, OP_scaled_matmul), 0);
    ck_assert_int_eq(count(f.g, OP_quantize), 0);
    end(&f);
}
END_TEST

/* Parameters alone take their own scale; every history has an update; no step that is left out
 * writes one; and nothing of the size of the stream waits for them. */
START_TEST(delayed) {
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, "products = e4m3\nproducts.scale = delayed 16 margin 1\nnonfinite = skip");
    struct graph *g = f.g;
    int histories = 0, updates = 0, weights = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op == OP_quantize) {
            bool own = val_op(g, node_in(g, n, 0)) == OP_param;
            ck_assert_int_eq(graph_node(g, n)->nin, own ? 1 : 2);
            weights += own;
        }
        if (graph_node(g, n)->op != OP_state) continue;
        if (!strstr(attr_str(g, n, ATTR_name), ".amax")) continue;
        histories++;
        for (uint32_t k = 0; k < g->updates.n; k++)
            updates += g->updates.at[k].target.i == node_out(g, n, 0).i;
    }
    ck_assert_int_eq(weights, LINEARS * LAYERS);
    ck_assert_int_eq(histories, (4 + LINEARS) * LAYERS);
    ck_assert_int_eq(updates, histories);
    struct codegen_options o = {.threads = 1};
    struct plan *p;
    ck_assert_msg(plan_build(g, &o, &p) == ST_OK, "%s", f.t.log);
    for (uint32_t i = 0; i < p->first_update; i++)
        for (uint32_t k = 0; k < p->launches.at[i].nout; k++) {
            buf_id b = p->launches.at[i].out[k].buffer;
            ck_assert_int_ne(p->buffers.at[b.i].kind, BUF_STATE);
        }
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *x = &p->buffers.at[b];
        bool stream = x->kind == BUF_TEMP && x->type.rank > 1 && x->type.dims[0] != WIDTH &&
                      type_count(&x->type) >= ROWS * WIDTH && x->type.dtype == DT_bf16;
        bool weight = x->type.rank == 2 && x->type.dims[0] == WIDE;
        if (stream && !weight) ck_assert_uint_lt(x->last, p->first_update);
    }
    plan_destroy(p);
    end(&f);
}
END_TEST

START_TEST(forward_only) { /* nothing updates states: scales come from the operands */
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "products = e4m3\nproducts.scale = delayed 16", SEQ);
    graph_destroy(f.g);
    f.g = model(&f.t.ctx, SEQ);
    f.c.train = NULL;
    run(&f, before, 1);
    run(&f, after, 2);
    ck_assert_int_eq(count(f.g, OP_scaled_matmul), LINEARS * LAYERS);
    ck_assert_int_eq(count(f.g, OP_state), 0);
    end(&f);
}
END_TEST

/* What attention gave is kept in bf16 for its own gradient: its codes are made again, where they
 * are read, and not kept as well. */
START_TEST(attention_once) {
    static const pass_fn rest[] = {pass_granularity, pass_save, pass_save_codes, pass_dce};
    struct gpt_size s = {.batch = 2, .seq = 16, .width = 64, .heads = 2, .layers = 2, .vocab = 48};
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "products = e4m3", SEQ);
    graph_destroy(f.g);
    f.g = gpt_graph(&f.t.ctx, s, true, NULL);
    run(&f, before, 6);
    run(&f, rest, 4);
    int again = 0;
    for (uint32_t i = loss_node(f.g); i < f.g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(f.g, n)->op != OP_quantize) continue;
        again += val_op(f.g, granularity_root(f.g, node_in(f.g, n, 0))) == OP_attention;
    }
    ck_assert_int_eq(again, 2);
    struct codegen_options o = {.threads = 1};
    struct plan *p;
    ck_assert_msg(plan_build(f.g, &o, &p) == ST_OK, "%s", f.t.log);
    uint32_t loss = 0;
    for (uint32_t i = 0; i < p->launches.n; i++)
        if (p->launches.at[i].kind == LAUNCH_cross_entropy) loss = i;
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *x = &p->buffers.at[b];
        bool codes = x->kind == BUF_TEMP && x->type.dtype == DT_e4m3 && x->type.rank == 4;
        ck_assert(!codes || x->first > loss || x->last < loss);
    }
    plan_destroy(p);
    end(&f);
}
END_TEST

START_TEST(text) {
    static const char *const recipes[] = {
        "products = e4m3\nproducts.scale = delayed 4\nsaved = e4m3 group 16",
        "products = e4m3\nproducts.scope = row\nproducts.scale_type = pow2\nsaved = e5m2 group 32",
        "products = e4m3\nproducts.scope = block\nproducts.gradients = e4m3",
    };
    static const pass_fn rest[] = {pass_save, pass_save_quantized, pass_save_codes, pass_dce};
    struct fixture f = {0};
    TEST_LANDING(&f.t);
    low(&f, recipes[_i]);
    run(&f, rest, 4);
    struct text_options none = {0};
    struct buf a, b;
    struct graph *again;
    buf_init(&a, &f.t.arena);
    buf_init(&b, &f.t.arena);
    graph_print(f.g, &none, &a);
    ck_assert_msg(graph_parse(&f.t.ctx, a.at, a.n, "t", &again) == ST_OK, "%s", f.t.log);
    ck_assert(graph_equal(f.g, again));
    graph_print(again, &none, &b);
    ck_assert_uint_eq(a.n, b.n);
    ck_assert_int_eq(memcmp(a.at, b.at, a.n), 0);
    graph_destroy(again);
    end(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("granularity");
    TCase *tc = tcase_create("granularity");
    tcase_add_test(tc, tensors);
    tcase_add_test(tc, rows);
    tcase_add_test(tc, blocks);
    tcase_add_test(tc, overrides);
    tcase_add_test(tc, histories_differ);
    tcase_add_loop_test(tc, reasons, 0, 6);
    tcase_add_test(tc, odd_rows);
    tcase_add_test(tc, delayed);
    tcase_add_test(tc, forward_only);
    tcase_add_test(tc, attention_once);
    tcase_add_loop_test(tc, text, 0, 3);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
