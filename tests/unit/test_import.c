// SPDX-License-Identifier: Apache-2.0
/* test_import.c - from small ONNX models to graphs: ops that depend on training, shape arithmetic,
 * opset differences, functions, sequences and refusals. Parameters have test_params.c, whole
 * exported models are tested elsewhere. */
#include "import_util.h"

/* ---- training-dependent ops ------------------------------------------------------------------ */
START_TEST(batch_norm_statistics_are_state) {
    TEST_LANDING(&env);
    import(batch_norm(), true);
    ck_assert_int_eq(count("state"), 2);
    ck_assert_int_eq(count("trained"), 2);
    ck_assert_uint_eq(R.graph->updates.n, 2);
    ck_assert(strstr(env.log, "exported for inference") != NULL);
    /* The variance that is stored is unbiased: 20 elements of a channel, so 20/19. */
    bool found = false;
    for (uint32_t i = 1; i < R.graph->nodes.n; i++) {
        double x;
        if (R.graph->nodes.at[i].op == OP_const &&
            val_uniform(R.graph, node_out(R.graph, (node_id){i}, 0), &x))
            found |= fabs(x - 20.0 / 19.0) < 1e-6;
    }
    ck_assert(found);
    done();
    import(batch_norm(), false);
    ck_assert_int_eq(count("state"), 2);
    ck_assert_uint_eq(R.graph->updates.n, 0);
    ck_assert_int_eq(ops(OP_reduce_mean), 0);
    done();
}
END_TEST

/* mode: -1 no training_mode input, 0 false, 1 true */
static struct buf dropout(int mode) {
    const float ratio = 0.25f;
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Dropout", "drop", mode < 0 ? "x r" : "x r t", "y"));
    pb_msg(&g, 5, floats("r", 0, NULL, &ratio));
    if (mode >= 0) {
        struct buf t = pb_tensor(A, "t", 9, 0, NULL);
        uint8_t b = (uint8_t)mode;
        pb_bytes(&t, 9, &b, 1);
        pb_msg(&g, 5, t);
    }
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    return g;
}

START_TEST(dropout_is_active_where_it_should) {
    TEST_LANDING(&env);
    static const struct {
        int mode;
        bool training, active;
        const char *note;
    } cases[] = {{1, true, true, ""},
                 {0, true, true, "switched off"},
                 {-1, true, false, "no training_mode"},
                 {1, false, false, ""},
                 {0, false, false, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        import(dropout(cases[i].mode), cases[i].training);
        ck_assert_int_eq(ops(OP_random), cases[i].active);
        ck_assert_int_eq(ops(OP_input), 1 + cases[i].active);
        ck_assert_msg(strstr(env.log, cases[i].note) != NULL, "case %zu: %s", i, env.log);
        if (cases[i].active) {
            val_id seed = graph_find(R.graph, "seed");
            ck_assert_str_eq(attr_str(R.graph, val_def(R.graph, seed), ATTR_role), "seed");
        }
        done();
    }
}
END_TEST

START_TEST(folded_batch_norm_warns) {
    TEST_LANDING(&env);
    const int64_t x[] = {2, 3, 6, 6}, w1[] = {4, 3, 3, 3}, w2[] = {4, 4, 3, 3}, b[] = {4};
    for (int folded = 0; folded < 2; folded++) {
        struct buf g = pb(A);
        pb_msg(&g, 1,
               node("Conv", "c1", folded ? "x a.weight a.weight_bias" : "x a.weight a.bias", "h"));
        pb_msg(&g, 1, node("Relu", "r1", "h", "i"));
        pb_msg(&g, 1, node("Conv", "c2", "i q.weight q.weight_bias", "j"));
        pb_msg(&g, 1, node("Relu", "r2", "j", "y"));
        pb_msg(&g, 5, weight("a.weight", 4, w1, 1));
        pb_msg(&g, 5, weight(folded ? "a.weight_bias" : "a.bias", 1, b, 2));
        pb_msg(&g, 5, weight("q.weight", 4, w2, 3));
        pb_msg(&g, 5, weight("q.weight_bias", 1, b, 4));
        input(&g, "x", 1, 4, x);
        output(&g, "y");
        import(g, true);
        ck_assert_int_eq(strstr(env.log, "inference mode") != NULL, folded);
        ck_assert_int_eq(count("trained"), 4);
        const dim want[] = {2, 4, 2, 2};
        out_shape(4, want);
        done();
    }
}
END_TEST

/* ---- shapes ---------------------------------------------------------------------------------- */
static int64_t bind_six(void *user, const char *symbol) {
    (void)user;
    return strcmp(symbol, "n") == 0 ? 6 : -1;
}

/* x of [n, 8] reshaped to [2*n, -1] by Shape, Gather, Mul, Unsqueeze and Concat. */
static struct buf shape_chain(void) {
    const int64_t zero = 0, two = 2, minus[] = {-1}, axes[] = {0};
    struct buf g = pb(A), cat = node("Concat", "cat", "d2 minus", "t");
    with_int(&cat, "axis", 0);
    pb_msg(&g, 1, node("Shape", "shape", "x", "s"));
    pb_msg(&g, 1, node("Gather", "g0", "s i0", "d0"));
    pb_msg(&g, 1, node("Mul", "mul", "d0 two", "d1"));
    pb_msg(&g, 1, node("Unsqueeze", "uns", "d1 axes", "d2"));
    pb_msg(&g, 1, cat);
    pb_msg(&g, 1, node("Reshape", "r", "x t", "y"));
    pb_msg(&g, 5, ints("i0", -1, &zero));
    pb_msg(&g, 5, ints("two", -1, &two));
    pb_msg(&g, 5, ints("axes", 1, axes));
    pb_msg(&g, 5, ints("minus", 1, minus));
    struct buf v = pb(A), tp = pb(A), tensor = pb(A), shape = pb(A), d1 = pb(A), d2 = pb(A);
    pb_str(&d1, 2, "n");
    pb_int(&d2, 1, 8);
    pb_msg(&shape, 1, d1);
    pb_msg(&shape, 1, d2);
    pb_int(&tensor, 1, 1);
    pb_msg(&tensor, 2, shape);
    pb_msg(&tp, 1, tensor);
    pb_str(&v, 1, "x");
    pb_msg(&v, 2, tp);
    pb_msg(&g, 11, v);
    output(&g, "y");
    return g;
}

START_TEST(shape_arithmetic_vanishes) {
    TEST_LANDING(&env);
    import(shape_chain(), true);
    ck_assert_uint_eq(R.graph->nodes.n, 3); /* [0], the input and one reshape */
    ck_assert_int_eq(out_type()->rank, 2);
    ck_assert_int_eq(out_type()->dims[1], 4);
    dim n = dim_symbol(R.graph->dims, "n");
    ck_assert(dim_same(out_type()->dims[0], dim_mul(R.graph->dims, n, 2)));
    done();
}
END_TEST

START_TEST(symbols_may_be_bound) {
    TEST_LANDING(&env);
    struct import_options o = {.bind = bind_six};
    ck_assert_int_eq(try_import(model_bytes(shape_chain()), &o), ST_OK);
    const dim want[] = {12, 4};
    out_shape(2, want);
    done();
}
END_TEST

/* Squeeze takes its axes as an attribute before opset 13, Softmax flattens. */
START_TEST(old_opsets_keep_their_meaning) {
    TEST_LANDING(&env);
    const int64_t x[] = {2, 1, 3, 4}, axes[] = {1};
    struct buf g = pb(A), sq = node("Squeeze", "sq", "x", "h"),
               sm = node("Softmax", "sm", "h", "y");
    with_ints(&sq, "axes", 1, axes);
    with_int(&sm, "axis", 1);
    pb_msg(&g, 1, sq);
    pb_msg(&g, 1, sm);
    input(&g, "x", 1, 4, x);
    output(&g, "y");
    opset = 11;
    import(g, false);
    const dim want[] = {2, 3, 4};
    out_shape(3, want);
    /* over all 12 elements at once */
    for (uint32_t i = 1; i < R.graph->nodes.n; i++)
        if (R.graph->nodes.at[i].op == OP_softmax)
            ck_assert_int_eq(val_type(R.graph, node_out(R.graph, (node_id){i}, 0))->dims[1], 12);
    ck_assert_int_eq(ops(OP_softmax), 1);
    done();
}
END_TEST

/* ---- structure ------------------------------------------------------------------------------- */
/* A local function around Gemm with an attribute reference, called twice. */
START_TEST(functions_are_inlined) {
    TEST_LANDING(&env);
    struct buf g = pb(A), f = pb(A), body = node("LeakyRelu", "act", "h", "r");
    struct buf ref = pb_attribute(A, "alpha", 1), call1 = node("Block", "one", "x w", "a");
    pb_str(&ref, 21, "slope");
    pb_msg(&body, 5, ref);
    pb_str(&call1, 7, "local");
    struct buf slope = pb_attribute(A, "slope", 1);
    const float quarter = 0.25f;
    uint32_t bits;
    memcpy(&bits, &quarter, 4);
    pb_varint(&slope, 2 << 3 | 5);
    buf_put(&slope, &bits, 4);
    pb_msg(&call1, 5, slope);
    struct buf call2 = node("Block", "two", "a w", "y");
    pb_str(&call2, 7, "local");
    pb_msg(&g, 1, call1);
    pb_msg(&g, 1, call2);
    pb_msg(&g, 5, weight("w", 2, d88, 1));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    pb_str(&f, 1, "Block");
    pb_str(&f, 4, "in");
    pb_str(&f, 4, "k");
    pb_str(&f, 5, "r");
    pb_str(&f, 6, "slope");
    pb_msg(&f, 7, node("MatMul", "mm", "in k", "h"));
    pb_msg(&f, 7, body);
    pb_msg(&f, 9, pb_opset(A, "", 18));
    pb_str(&f, 10, "local");
    struct buf m = model_bytes(g);
    pb_msg(&m, 25, f);
    struct import_options o = {.training = true};
    enum status st = try_import(m, &o);
    ck_assert_msg(st == ST_OK, "%s", env.log);
    ck_assert_int_eq(ops(OP_matmul), 2);
    ck_assert_int_eq(count("trained"), 1);
    /* slope: 0.25 from the call, ONNX's default 0.01 where the call leaves it out */
    int quarter_seen = 0, default_seen = 0;
    for (uint32_t i = 1; i < R.graph->nodes.n; i++) {
        double x;
        if (R.graph->nodes.at[i].op != OP_const) continue;
        if (!val_uniform(R.graph, node_out(R.graph, (node_id){i}, 0), &x)) continue;
        quarter_seen += x == 0.25;
        default_seen += fabs(x - 0.01) < 1e-8;
    }
    ck_assert_int_eq(quarter_seen, 1);
    ck_assert_int_eq(default_seen, 1);
    done();
}
END_TEST

START_TEST(sequences_fold) {
    TEST_LANDING(&env);
    const int64_t three = 3, one = 1;
    struct buf g = pb(A), s = node("SplitToSequence", "s", "x three", "seq");
    with_int(&s, "axis", 1);
    pb_msg(&g, 1, s);
    pb_msg(&g, 1, node("SequenceAt", "at", "seq one", "y"));
    pb_msg(&g, 5, ints("three", -1, &three));
    pb_msg(&g, 5, ints("one", -1, &one));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    import(g, false);
    const dim want[] = {4, 3};
    out_shape(2, want);
    ck_assert_int_eq(ops(OP_slice), 1);
    done();
}
END_TEST

START_TEST(unsupported_is_collected) {
    TEST_LANDING(&env);
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Unique", "top", "x", "v"));
    pb_msg(&g, 1, node("Relu", "r", "v", "h"));
    pb_msg(&g, 1, node("NoSuchOp", "odd", "x", "o"));
    pb_msg(&g, 1, node("NoSuchOp", "odd2", "o", "p"));
    pb_msg(&g, 1, node("Add", "sum", "h p", "y"));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    struct import_options o = {.training = true};
    ck_assert_int_eq(try_import(model_bytes(g), &o), ST_UNSUPPORTED);
    ck_assert_ptr_null(R.graph);
    ck_assert_uint_eq(R.nunsupported, 2);
    ck_assert_str_eq(R.unsupported[0].op, "Unique");
    ck_assert_str_eq(R.unsupported[1].op, "NoSuchOp");
    ck_assert_uint_eq(R.unsupported[1].nnodes, 2);
    ck_assert_str_eq(R.unsupported[1].nodes[1], "odd2");
    ck_assert(strstr(env.log, "error: top:") != NULL);
    done();
}
END_TEST

/* Sizes from a file are judged before they become dims, of which negative ones are symbols. */
static void refused_with(struct buf g, int64_t version, const char *text) {
    opset = version;
    output(&g, "y");
    enum status st = try_import(model_bytes(g), NULL);
    ck_assert_msg(st == ST_SHAPE && strstr(env.log, text), "status %d, expected \"%s\": %s",
                  (int)st, text, env.log);
    onnx_free(M);
}

static struct buf split_of(int count, const int64_t *sizes) {
    struct buf g = pb(A), s = node("Split", "s", "x", "y z");
    with_ints(&s, "split", count, sizes);
    pb_msg(&g, 1, s);
    input(&g, "x", 1, 2, d48);
    return g;
}

START_TEST(sizes_are_checked) {
    TEST_LANDING(&env);
    const int64_t sizes[] = {5, -1, 2}, three = 3, none[1] = {0};
    refused_with(split_of(2, sizes), 11, "a piece of size -1");
    refused_with(split_of(3, sizes), 11, "3 sizes for 2 outputs");
    struct buf g = pb(A), s = node("SplitToSequence", "s", "x n", "q");
    pb_msg(&g, 1, s);
    pb_msg(&g, 1, node("SequenceAt", "at", "q i", "y"));
    pb_msg(&g, 5, ints("n", 1, &three));
    pb_msg(&g, 5, ints("i", -1, none));
    input(&g, "x", 1, 2, d48);
    refused_with(g, 18, "the pieces add up to 3, not 4");
    g = pb(A);
    pb_msg(&g, 1, node("Range", "r", "e n n", "y"));
    pb_msg(&g, 5, ints("n", -1, &three));
    pb_msg(&g, 5, ints("e", 0, none));
    input(&g, "x", 1, 2, d48);
    refused_with(g, 18, "must be single numbers");
}
END_TEST

/* A start before a known beginning is clamped, also when the end is symbolic. */
START_TEST(slices_are_clamped) {
    TEST_LANDING(&env);
    const int64_t start[] = {-9}, axis[] = {1}, zero[] = {0}, one[] = {1};
    struct buf g = shape_chain();
    pb_msg(&g, 1, node("Slice", "n", "s zero one zero", "end"));
    pb_msg(&g, 1, node("Slice", "cut", "x start end axis", "w"));
    pb_msg(&g, 5, ints("zero", 1, zero));
    pb_msg(&g, 5, ints("one", 1, one));
    pb_msg(&g, 5, ints("start", 1, start));
    pb_msg(&g, 5, ints("axis", 1, axis));
    output(&g, "w");
    import(g, false);
    const struct type *t = val_type(R.graph, R.graph->outputs.at[1].value);
    ck_assert(dim_same(t->dims[1], dim_symbol(R.graph->dims, "n")));
    done();
}
END_TEST

/* What inference refuses is told once, and by lathe info's own list alone when there is one. */
START_TEST(a_refusal_is_one_message) {
    TEST_LANDING(&env);
    const int64_t huge[] = {INT64_C(1) << 32, INT64_C(1) << 32};
    for (int listing = 0; listing < 2; listing++) {
        struct buf g = pb(A);
        pb_msg(&g, 1, node("Tile", "big", "x n", "y"));
        pb_msg(&g, 5, ints("n", 2, huge));
        input(&g, "x", 1, 2, d48);
        output(&g, "y");
        struct import_options o = {.training = true, .listing = listing != 0};
        ck_assert_int_eq(try_import(model_bytes(g), &o), ST_UNSUPPORTED);
        ck_assert_int_eq(errors_logged(), listing ? 0 : 1);
        ck_assert_uint_eq(R.nunsupported, 1);
        ck_assert(strstr(R.unsupported[0].why, "too large") != NULL);
        done();
    }
}
END_TEST

START_TEST(an_output_named_twice_is_refused) {
    TEST_LANDING(&env);
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Relu", "r", "x", "y"));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    output(&g, "y");
    struct import_options o = {.training = true};
    ck_assert_int_eq(try_import(model_bytes(g), &o), ST_PARSE);
    ck_assert_ptr_null(R.graph);
    done();
}
END_TEST

START_TEST(wrong_models_name_the_node) {
    TEST_LANDING(&env);
    const int64_t five[] = {5, 8};
    struct buf g = pb(A);
    pb_msg(&g, 1, node("MatMul", "bad mm", "x w", "y"));
    pb_msg(&g, 5, weight("w", 2, five, 1));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    struct import_options o = {.training = true};
    ck_assert_int_eq(try_import(model_bytes(g), &o), ST_SHAPE);
    ck_assert(strstr(env.log, "error: bad mm:") != NULL);
    done();
}
END_TEST

/* Steps of ai.onnx.preview.training take two inputs and three or four for each tensor. */
START_TEST(training_steps_are_checked) {
    static const struct {
        const char *op, *in, *out, *told;
        int64_t r, v; /* elements of R; rows of the first moment */
    } cases[] = {
        {"Adam", "r t x g v", "y", "5 inputs, expected 2 and 4 for each tensor", 1, 4},
        {"Adam", "r t", "y", "2 inputs, expected 2 and 4", 1, 4},
        {"Momentum", "r t x g v", "y a b", "3 outputs for 1 tensors", 1, 4},
        {"Adagrad", "r t x g v", "y", "must be of one type, float or double", 1, 5},
        {"Adagrad", "r t x g v", "y", "R must be one number", 3, 4},
        {"Momentum", "r t x g v", "y", "mode must be 'standard' or 'nesterov'", 1, 4},
    };
    TEST_LANDING(&env);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct buf g = pb(A), step = node(cases[k].op, "step", cases[k].in, cases[k].out);
        const int64_t rows[] = {cases[k].v, 8};
        pb_str(&step, 7, "ai.onnx.preview.training");
        pb_msg(&g, 1, step);
        pb_msg(&g, 5, weight("r", 1, &cases[k].r, 1));
        input(&g, "t", 7, 0, NULL);
        input(&g, "x", 1, 2, d48);
        input(&g, "g", 1, 2, d48);
        input(&g, "v", 1, 2, rows);
        output(&g, "y");
        struct import_options o = {.training = false};
        ck_assert_int_ne(try_import(model_bytes(g), &o), ST_OK);
        ck_assert_msg(strstr(env.log, cases[k].told) != NULL, "%s", env.log);
        ck_assert_int_eq(errors_logged(), 1);
        done();
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("import");
    TCase *c = tcase_create("all");
    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, batch_norm_statistics_are_state);
    tcase_add_test(c, dropout_is_active_where_it_should);
    tcase_add_test(c, folded_batch_norm_warns);
    tcase_add_test(c, shape_arithmetic_vanishes);
    tcase_add_test(c, symbols_may_be_bound);
    tcase_add_test(c, old_opsets_keep_their_meaning);
    tcase_add_test(c, functions_are_inlined);
    tcase_add_test(c, sequences_fold);
    tcase_add_test(c, unsupported_is_collected);
    tcase_add_test(c, sizes_are_checked);
    tcase_add_test(c, slices_are_clamped);
    tcase_add_test(c, a_refusal_is_one_message);
    tcase_add_test(c, an_output_named_twice_is_refused);
    tcase_add_test(c, wrong_models_name_the_node);
    tcase_add_test(c, training_steps_are_checked);
    suite_add_tcase(s, c);
    return run_suite(s);
}
