// SPDX-License-Identifier: Apache-2.0
/* test_precision.c - recipes: reading them, patterns, and what the pass precision makes of graphs:
 * types at the places that matter, roundings made once, gradients' types. */
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "passes/pass.h"
#include "test_util.h"

static enum status parse(struct test_env *t, const char *text, struct recipe *r) {
    return recipe_parse(&t->ctx, &t->arena, "r", text, strlen(text), r);
}

START_TEST(builtins_read) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct recipe r;
    int n;
    const struct recipe_text *list = recipe_builtins(&n);
    ck_assert_int_ge(n, 2);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(recipe_find(&t.ctx, &t.arena, list[i].name, &r), ST_OK);
        ck_assert_str_eq(r.name, list[i].name);
        ck_assert_int_eq(r.chunk_loss, CHUNK_AUTO);
        ck_assert(!r.tf32 && r.nkeep_wide == 0);
    }
    ck_assert_int_eq(recipe_find(&t.ctx, &t.arena, NULL, &r), ST_OK);
    ck_assert(r.compute == DT_f32 && r.activations == DT_f32);
    ck_assert_int_eq(recipe_find(&t.ctx, &t.arena, "bf16", &r), ST_OK);
    ck_assert(r.compute == DT_bf16 && r.activations == DT_bf16);
    ck_assert_int_eq(recipe_find(&t.ctx, &t.arena, "fp7", &r), ST_USAGE);
    ck_assert_ptr_nonnull(strstr(t.log, "no recipe is called 'fp7'"));
    test_end(&t);
}
END_TEST

START_TEST(all_keys) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct recipe r;
    ck_assert_int_eq(parse(&t,
                           "  # nothing\r\n\n compute=bf16 # c\n activations =  f32\r\n"
                           "gradients = follow\nmaster = f32\ntf32 = true\nchunk_loss = 512\n"
                           "keep_wide = *router*, lm_head ,b?",
                           &r),
                     ST_OK);
    ck_assert(r.compute == DT_bf16 && r.activations == DT_f32 && r.tf32);
    ck_assert_int_eq(r.chunk_loss, 512);
    ck_assert_int_eq(r.nkeep_wide, 3);
    ck_assert_str_eq(r.keep_wide[1], "lm_head");
    ck_assert(recipe_keeps_wide(&r, "a; /router/MatMul"));
    ck_assert(recipe_keeps_wide(&r, "lm_head"));
    ck_assert(!recipe_keeps_wide(&r, "lm_heads"));
    ck_assert(!recipe_keeps_wide(&r, ""));
    ck_assert(!recipe_keeps_wide(NULL, "lm_head"));
    ck_assert_int_eq(parse(&t, "chunk_loss = off", &r), ST_OK);
    ck_assert_int_eq(r.chunk_loss, CHUNK_OFF);
    ck_assert_int_eq(parse(&t, "save = 12 GiB", &r), ST_OK);
    ck_assert(r.save == SAVE_AUTO && r.save_bytes == INT64_C(12) << 30);
    ck_assert_int_eq(parse(&t, "save = 900MiB", &r), ST_OK);
    ck_assert(r.save == SAVE_AUTO && r.save_bytes == INT64_C(900) << 20);
    ck_assert_int_eq(parse(&t, "", &r), ST_OK);
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

#define LOW "compute = bf16\nactivations = bf16\n"
static const struct {
    const char *text, *message;
} mistakes[] = {
    {"compute = f16", "r:1: expected f32 or bf16, found 'f16'"},
    {"\n\ncompute", "r:3: expected key = value, found 'compute'"},
    {"colour = red", "r:1: expected a key"},
    {"= f32", "r:1: expected a key"},
    {"tf32 = 1", "r:1: expected true or false, found '1'"},
    {"master = bf16", "r:1: expected f32, found 'bf16'"},
    {"gradients = f32", "r:1: expected follow, found 'f32'"},
    {"compute = f32\ncompute = f32", "r:2: expected each key once, found 'compute' as on line 1"},
    {"chunk_loss = 0", "r:1: expected auto, off or a number"},
    {"chunk_loss = -5", "found '-5'"},
    {"chunk_loss = 99999999999999999999", "expected auto, off or a number"},
    {"chunk_loss =", "found ''"},
    {"save = 12", "auto, all or a size"},
    {"save = GiB", "auto, all or a size"},
    {"save = 0 GiB", "auto, all or a size"},
    {"save = 99999999999 GiB", "auto, all or a size"},
    {"save = 12 GiB x", "auto, all or a size"},
    {"keep_wide = a,,b", "expected patterns of node names"},
    {"keep_wide = a,", "expected patterns of node names"},
    {"products = int8", "r:1: expected follow, e4m3 or e5m2, found 'int8'"},
    {"products = e4m3", "expected compute = bf16 around 8-bit products"},
    {LOW "products = e4m3\nproducts.gradients = bf16", "expected e4m3 or e5m2, found 'bf16'"},
    {LOW "products = e5m2", "no product reads e5m2 twice"},
    {LOW "products = e4m3\nproducts.scope = column", "expected tensor, row or block"},
    {LOW "products.scale = delayed", "expected current, or delayed N"},
    {LOW "products.scale = delayed 0", "expected current, or delayed N"},
    {LOW "products.scale = delayed 16 margin 7", "expected current, or delayed N"},
    {LOW "products.scale = delayed 16 margin", "expected current, or delayed N"},
    {LOW "products.scale = current 3", "expected current, or delayed N"},
    {LOW "products.scale = delayed 5000", "expected current, or delayed N"},
    {LOW "products = e4m3\nproducts.scope = row\nproducts.scale = delayed 16",
     "expected products.scope = tensor with delayed scales"},
    {LOW "products = e4m3\nproducts.scope = block\nproducts.scale_type = bf16",
     "expected products.scale_type = f32 or pow2"},
    {LOW "products.scale_type = f16", "expected f32, bf16 or pow2"},
    {LOW "products.head = narrow", "expected wide, scores, gradients or low"},
    {LOW "saved = e4m3", "expected follow, or e4m3 or e5m2, group N"},
    {LOW "saved = e4m3 group 15", "expected follow, or e4m3 or e5m2, group N"},
    {LOW "saved = e4m3 group 0", "expected follow, or e4m3 or e5m2, group N"},
    {LOW "saved = e4m3 group 16 f64", "expected follow, or e4m3 or e5m2, group N"},
    {LOW "saved = int8 group 16", "expected follow, or e4m3 or e5m2, group N"},
    {"for *h.0*", "expected for PATTERN: KEY = VALUE"},
    {"for : products = e4m3", "expected for PATTERN: KEY = VALUE"},
    {"for *h.0*: compute = f32", "expected for PATTERN: KEY = VALUE"},
    {LOW "for *h.0*: products = int4", "expected follow, e4m3 or e5m2"},
    {LOW "products = e4m3\nproducts.scope = row\nfor a: products.scale = delayed 4",
     "expected products.scope = tensor with delayed scales (for lines together)"},
};

START_TEST(products_by_name) {
    struct test_env t;
    struct recipe r;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_int_eq(parse(&t,
                           LOW "products = e4m3\nproducts.wide = *.0.*\nkeep_wide = */down\n"
                               "for *.1.*: products.scale = delayed 4 margin 1\n"
                               "for */up: products.gradients = e4m3\n"
                               "for /a:b: products = follow\nsaved = e5m2 group 64 pow2",
                           &r),
                     ST_OK);
    ck_assert(!recipe_products_of(&r, "/x.0.y").low);
    ck_assert(!recipe_products_of(&r, "/x.1.y/down").low);
    ck_assert(!recipe_products_of(&r, "/a:b").low);
    ck_assert_int_eq(recipe_products_of(&r, "/a:b").format, DT_e4m3);
    ck_assert(!recipe_products_of(&r, "other; /x.0.y").low); /* one of merged nodes */
    struct recipe_products p = recipe_products_of(&r, "/x.1.y/up");
    ck_assert(p.low && p.format == DT_e4m3 && p.gradients == DT_e4m3);
    ck_assert(p.history == 4 && p.margin == 1 && p.scope == QUANT_TENSOR);
    p = recipe_products_of(&r, "/x.2.y");
    ck_assert(p.low && p.gradients == DT_e5m2 && p.history == 0);
    ck_assert(r.saved.format == DT_e5m2 && r.saved.group == 64 && r.saved.scale_type == DT_e8m0);
    ck_assert_str_eq(t.log, "");
    test_end(&t);
}
END_TEST

START_TEST(mistakes_are_told) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct recipe r;
    ck_assert_int_eq(parse(&t, mistakes[_i].text, &r), ST_USAGE);
    ck_assert_msg(strstr(t.log, mistakes[_i].message) != NULL, "%s", t.log);
    test_end(&t);
}
END_TEST

START_TEST(patterns) {
    ck_assert(recipe_match("", "", 0));
    ck_assert(recipe_match("*", "", 0));
    ck_assert(recipe_match("a*c", "abbc", 4));
    ck_assert(recipe_match("a*b*c", "abbbcc", 6));
    ck_assert(recipe_match("*ab", "aaab", 4));
    ck_assert(recipe_match("?b", "ab", 2));
    ck_assert(!recipe_match("?", "", 0));
    ck_assert(!recipe_match("a*c", "abcd", 4));
    ck_assert(!recipe_match("ab", "abc", 3));
    ck_assert(recipe_match("ab", "abc", 2)); /* n characters count */
}
END_TEST

/* ---- the pass ------------------------------------------------------------------------------- */
struct fixture {
    struct test_env t;
    struct arena scratch;
    struct graph *g;
    struct recipe recipe;
    struct pass_ctx c;
};

static void begin(struct fixture *f, const char *recipe) {
    f->c = (struct pass_ctx){.ctx = &f->t.ctx, .scratch = &f->scratch, .recipe = &f->recipe};
    arena_init(&f->scratch, &f->t.ctx);
    ck_assert_int_eq(parse(&f->t, recipe, &f->recipe), ST_OK);
    struct gpt_size s = {.batch = 2, .seq = 6, .width = 8, .heads = 2, .layers = 2, .vocab = 11};
    f->g = gpt_graph(&f->t.ctx, s, true, NULL);
}

static void run(struct fixture *f, enum status (*pass)(struct pass_ctx *, struct graph *)) {
    ck_assert_msg(pass(&f->c, f->g) == ST_OK, "%s", f->t.log);
    arena_reset(&f->scratch);
    ck_assert_msg(graph_verify(f->g, "test") == ST_OK, "%s", f->t.log);
}

static void end(struct fixture *f) {
    graph_destroy(f->g);
    arena_reset(&f->scratch);
    test_end(&f->t);
}

static enum dtype in_type(const struct graph *g, node_id n, int k) {
    return val_type(g, node_in(g, n, k))->dtype;
}

static int count(const struct graph *g, enum op op, enum dtype t) {
    int n = 0;
    for (uint32_t i = 1; i < g->nodes.n; i++)
        n += g->nodes.at[i].op == op && val_type(g, node_out(g, (node_id){i}, 0))->dtype == t;
    return n;
}

START_TEST(f32_changes_nothing) {
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "");
    struct graph *before = graph_clone(f.g);
    run(&f, pass_precision);
    ck_assert(graph_equal(before, f.g));
    graph_destroy(before);
    end(&f);
}
END_TEST

/* Products are bf16, norms and activations f32 on rounded operands, every param is cast once. */
START_TEST(gpt_forward) {
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "compute = bf16\nactivations = bf16");
    run(&f, pass_precision);
    struct graph *g = f.g;
    struct uses uses = uses_build(g, &f.scratch);
    ck_assert_int_eq(count(g, OP_matmul, DT_f32), 0);
    ck_assert_int_eq(count(g, OP_matmul, DT_bf16), 4 * 2 + 1);
    ck_assert_int_eq(count(g, OP_attention, DT_bf16), 2);
    ck_assert_int_eq(count(g, OP_gather, DT_bf16), 1); /* the table is tied to the head */
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        enum op op = (enum op)graph_node(g, n)->op;
        val_id y = node_out(g, n, 0);
        bool chain = op == OP_add || op == OP_mul || op == OP_gelu || op == OP_layer_norm;
        if (chain) ck_assert_int_eq(val_type(g, y)->dtype, DT_f32);
        if (op == OP_layer_norm || op == OP_gelu) { /* kept as bf16 */
            val_id x = node_in(g, n, 0);
            ck_assert_int_eq(val_op(g, x), OP_cast);
            ck_assert_int_eq(in_type(g, val_def(g, x), 0), DT_bf16);
        }
        if (op == OP_cross_entropy) {
            ck_assert_int_eq(in_type(g, n, 0), DT_bf16);
            ck_assert_int_eq(val_type(g, y)->dtype, DT_f32);
        }
        int casts = 0;
        for (uint32_t u = uses.first[y.i]; op == OP_param && u < uses.first[y.i + 1]; u++)
            casts += graph_node(g, uses.user[u])->op == OP_cast;
        ck_assert_int_le(casts, 1);
    }
    end(&f);
}
END_TEST

/* Nothing as large as the stream lives from the forward to the backward part in f32. */
static void check_kept(struct fixture *f) {
    struct codegen_options o = {.threads = 1};
    struct plan *p;
    ck_assert_msg(plan_build(f->g, &o, &p) == ST_OK, "%s", f->t.log);
    uint32_t loss = 0, kept = 0;
    for (uint32_t i = 0; i < p->launches.n; i++)
        if (p->launches.at[i].kind == LAUNCH_cross_entropy) loss = i;
    ck_assert_uint_gt(loss, 0);
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *x = &p->buffers.at[b];
        if (x->kind != BUF_TEMP || x->first >= loss || x->last <= loss) continue;
        ck_assert(x->type.dtype != DT_f32 || type_count(&x->type) < 2 * 6 * 8);
        kept += x->type.dtype == DT_bf16;
    }
    ck_assert_uint_gt(kept, 0);
    plan_destroy(p);
}

START_TEST(gpt_gradients) {
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "compute = bf16\nactivations = bf16");
    run(&f, pass_precision);
    run(&f, pass_grad);
    run(&f, pass_simplify);
    run(&f, pass_cse);
    run(&f, pass_dce);
    struct graph *g = f.g;
    ck_assert_int_eq(count(g, OP_matmul, DT_f32), 0);
    ck_assert_int_eq(count(g, OP_matmul, DT_bf16), 3 * (4 * 2 + 1));
    ck_assert_int_eq(count(g, OP_attention_grad, DT_bf16), 2);
    ck_assert_int_eq(count(g, OP_scatter_rows, DT_bf16), 1);
    int narrow = 0;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        val_id v = graph_resolve(g, g->outputs.at[i].value);
        ck_assert_int_eq(val_type(g, v)->dtype, DT_f32);
        narrow += val_op(g, v) == OP_cast && val_op(g, node_in(g, val_def(g, v), 0)) == OP_matmul;
    }
    ck_assert_int_eq(narrow, 4 * 2); /* weights' gradients leave their product as bf16 */
    check_kept(&f);
    end(&f);
}
END_TEST

START_TEST(wide_products) {
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, "compute = bf16\nactivations = bf16\nkeep_wide = h.1, *head");
    run(&f, pass_precision);
    ck_assert_int_eq(count(f.g, OP_matmul, DT_bf16), 4);
    ck_assert_int_eq(count(f.g, OP_matmul, DT_f32), 5);
    ck_assert_int_eq(count(f.g, OP_attention, DT_f32), 1);
    ck_assert_int_eq(count(f.g, OP_gather, DT_f32), 1); /* no product needs the table in bf16 */
    run(&f, pass_grad);
    end(&f);
}
END_TEST

START_TEST(one_of_both) {
    struct fixture f = {0};
    test_begin(&f.t);
    TEST_LANDING(&f.t);
    begin(&f, _i ? "compute = bf16" : "activations = bf16");
    run(&f, pass_precision);
    ck_assert_int_eq(count(f.g, OP_matmul, _i ? DT_bf16 : DT_f32), 9);
    for (uint32_t i = 1; i < f.g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(f.g, n)->op != OP_layer_norm) continue;
        ck_assert_int_eq(val_op(f.g, node_in(f.g, n, 0)) == OP_cast, !_i);
    }
    run(&f, pass_grad);
    end(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("precision");
    TCase *tc = tcase_create("precision");
    tcase_add_test(tc, builtins_read);
    tcase_add_test(tc, all_keys);
    tcase_add_test(tc, products_by_name);
    tcase_add_loop_test(tc, mistakes_are_told, 0, (int)(sizeof mistakes / sizeof mistakes[0]));
    tcase_add_test(tc, patterns);
    tcase_add_test(tc, f32_changes_nothing);
    tcase_add_test(tc, gpt_forward);
    tcase_add_test(tc, gpt_gradients);
    tcase_add_test(tc, wide_products);
    tcase_add_loop_test(tc, one_of_both, 0, 2);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
