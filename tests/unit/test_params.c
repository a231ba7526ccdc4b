// SPDX-License-Identifier: Apache-2.0
/* test_params.c - which constants of a model are parameters: a small model for each rule, and the
 * way back into a file. */
#include "import_util.h"
#include <unistd.h>

/* ---- parameters ----------------------------------------------------------------------------- */
/* Two norm layers with equal scales and biases merged into one initializer each. */
static struct buf merged_norms(bool records) {
    const char *scale = records ? "a.weight" : "s";
    struct buf g = pb(A);
    struct buf n1 = node("LayerNormalization", "first", arena_printf(A, "x %s b", scale), "h");
    struct buf n2 = node("LayerNormalization", "second", arena_printf(A, "m %s b", scale), "y");
    if (records) {
        metadata(&n1, 9, "pkg.torch.onnx.fx_node", "%ln = f(args = (%x, [8], %p_a_w, %p_a_bias))");
        metadata(&n2, 9, "pkg.torch.onnx.fx_node", "%ln = f(args = (%m, [8], %p_b_w, %p_b_bias))");
        metadata(&g, 16, "pkg.torch.export.ExportedProgram.graph_signature",
                 "# inputs\np_a_w: PARAMETER target='a.weight'\np_a_bias: PARAMETER "
                 "target='a.bias'\np_b_w: PARAMETER target='b.weight'\np_b_bias: PARAMETER "
                 "target='b.bias'\nx: USER_INPUT\n");
    }
    pb_msg(&g, 1, n1);
    pb_msg(&g, 1, node("MatMul", "mm", "h w", "m"));
    pb_msg(&g, 1, n2);
    pb_msg(&g, 5, uniform(scale, 8, 1));
    pb_msg(&g, 5, uniform("b", 8, 0));
    pb_msg(&g, 5, weight("w", 2, d88, 1));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    return g;
}

START_TEST(equal_parameters_are_untied) {
    TEST_LANDING(&env);
    import(merged_norms(false), true);
    ck_assert_int_eq(count("trained"), 5);
    decided("s", "trained");
    decided("b", "trained");
    decided("second.scale", "trained");
    decided("second.bias", "trained");
    ck_assert(strstr(param("second.scale")->note, "merged") != NULL);
    ck_assert_uint_eq(param("second.scale")->nuses, 1);
    ck_assert_uint_eq(param("second.scale")->uses[0].node, 2);
    ck_assert_uint_eq(param("second.scale")->uses[0].slot, 1);
    out_shape(2, d48);
    done();
}
END_TEST

START_TEST(records_name_the_untied) {
    TEST_LANDING(&env);
    import(merged_norms(true), true);
    ck_assert_int_eq(count("trained"), 5);
    decided("a.weight", "trained");
    decided("b.weight", "trained");
    decided("a.bias", "trained");
    decided("b.bias", "trained");
    ck_assert_str_eq(param("a.weight")->initializer, "a.weight");
    ck_assert_uint_eq(param("a.weight")->nuses, 0);
    ck_assert_uint_eq(param("b.weight")->nuses, 1);
    done();
}
END_TEST

/* The legacy exporter: one initializer, and an Identity for the parameter that was merged. */
START_TEST(identity_names_the_untied) {
    TEST_LANDING(&env);
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Identity", "id", "ln1.weight", "ln2.weight"));
    pb_msg(&g, 1, node("LayerNormalization", "n1", "x ln1.weight", "h"));
    pb_msg(&g, 1, node("LayerNormalization", "n2", "h ln2.weight", "y"));
    pb_msg(&g, 5, uniform("ln1.weight", 8, 1));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    import(g, true);
    ck_assert_int_eq(count("trained"), 2);
    decided("ln1.weight", "trained");
    decided("ln2.weight", "trained");
    ck_assert_uint_eq(param("ln2.weight")->uses[0].node, 0);
    ck_assert_str_ne(param("ln2.weight")->initializer, "ln2.weight"); /* the Identity's name */
    done();
}
END_TEST

/* One table and head: by one initializer, by two equal ones, and with the second transposed. */
static struct buf tied(int form) {
    const int64_t table[] = {16, 8}, flipped[] = {8, 16}, ids[] = {4};
    float data[128], back[128];
    for (int i = 0; i < 128; i++) data[i] = (float)((i * 37) % 101) / 50 - 1;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 8; k++) back[k * 16 + i] = data[i * 8 + k];
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Gather", "emb", "wte ids", "h"));
    if (form < 2) pb_msg(&g, 1, node("Transpose", "t", form ? "head" : "wte", "ht"));
    pb_msg(&g, 1, node("MatMul", "mm", form < 2 ? "h ht" : "h head", "y"));
    pb_msg(&g, 5, floats("wte", 2, table, data));
    if (form == 1) pb_msg(&g, 5, floats("head", 2, table, data));
    if (form == 2) pb_msg(&g, 5, floats("head", 2, flipped, back));
    input(&g, "ids", 7, 1, ids);
    output(&g, "y");
    return g;
}

START_TEST(tied_tables_are_one_parameter) {
    TEST_LANDING(&env);
    const dim want[] = {4, 16};
    for (int form = 0; form < 3; form++) {
        import(tied(form), true);
        ck_assert_int_eq(count("trained"), 1);
        ck_assert_int_eq(ops(OP_param), 1);
        ck_assert(strstr(param("wte")->note, "tied") != NULL);
        ck_assert_uint_eq(param("wte")->ntwins, form > 0);
        if (form) ck_assert_int_eq(param("wte")->twins[0].transposed, form == 2);
        out_shape(2, want);
        done();
    }
}
END_TEST

START_TEST(masks_are_frozen) {
    TEST_LANDING(&env);
    const int64_t sq[] = {1, 1, 8, 8};
    float off[64], ones[64], none[64] = {0};
    for (int i = 0; i < 64; i++) {
        off[i] = i % 8 > i / 8 ? -INFINITY : 0;
        ones[i] = i % 8 > i / 8 ? 0 : 1;
    }
    struct buf g = pb(A);
    pb_msg(&g, 1, node("Add", "a", "x mask", "s"));
    pb_msg(&g, 1, node("Add", "z", "s zeros", "s2"));
    pb_msg(&g, 1, node("Add", "b", "s2 bias", "s3"));
    pb_msg(&g, 1, node("Softmax", "sm", "s3", "p"));
    pb_msg(&g, 1, node("Mul", "m", "p keep", "q"));
    pb_msg(&g, 1, node("Mul", "g", "q gain", "y"));
    pb_msg(&g, 5, floats("mask", 4, sq, off));
    pb_msg(&g, 5, floats("keep", 4, sq, ones));
    pb_msg(&g, 5, floats("zeros", 4, sq, none));
    pb_msg(&g, 5, uniform("gain", 8, 1));
    pb_msg(&g, 5, uniform("bias", 8, 0));
    input(&g, "x", 1, 4, sq);
    output(&g, "y");
    import(g, true);
    decided("mask", "frozen");
    decided("keep", "frozen");
    decided("zeros", "frozen"); /* goes into the softmax */
    decided("gain", "trained"); /* all ones like a fresh norm weight */
    decided("bias", "trained"); /* a vector before a softmax may be a bias */
    ck_assert_int_eq(count("trained"), 2);
    done();
}
END_TEST

/* A fresh BatchNorm: scale and running variance are one initializer, bias and mean another. */
START_TEST(merged_statistics_are_state) {
    TEST_LANDING(&env);
    const int64_t x[] = {4, 8, 5};
    struct buf g = pb(A);
    pb_msg(&g, 1, node("BatchNormalization", "one", "x ones zeros zeros ones", "h"));
    pb_msg(&g, 1, node("BatchNormalization", "two", "h ones zeros zeros ones", "y"));
    pb_msg(&g, 5, uniform("ones", 8, 1));
    pb_msg(&g, 5, uniform("zeros", 8, 0));
    input(&g, "x", 1, 3, x);
    output(&g, "y");
    import(g, true);
    ck_assert_int_eq(count("trained"), 4);
    ck_assert_int_eq(count("state"), 4);
    ck_assert_uint_eq(R.graph->updates.n, 4);
    done();
}
END_TEST

START_TEST(rotary_tables_are_frozen) {
    TEST_LANDING(&env);
    const int64_t t[] = {8, 8};
    float c[64], s[64], scaled[64];
    for (int i = 0; i < 64; i++) {
        double angle = (i / 8) * pow(0.3, i % 4);
        c[i] = (float)cos(angle);
        s[i] = (float)sin(angle);
        scaled[i] = c[i] * 1.5f;
    }
    for (int pair = 0; pair < 2; pair++) {
        struct buf g = pb(A);
        pb_msg(&g, 1, node("Mul", "m1", "x tab1", "a"));
        pb_msg(&g, 1, node("Mul", "m2", "x tab2", "b"));
        pb_msg(&g, 1, node("Add", "s", "a b", "y"));
        pb_msg(&g, 5, floats("tab1", 2, t, pair ? c : scaled));
        pb_msg(&g, 5, floats("tab2", 2, t, s));
        input(&g, "x", 1, 2, t);
        output(&g, "y");
        import(g, true);
        decided("tab1", pair ? "frozen" : "trained");
        decided("tab2", pair ? "frozen" : "trained");
        done();
    }
}
END_TEST

/* inv_freq by what it feeds, not by name; the same shape in a SIREN layer is a weight. */
START_TEST(frequencies_of_positions_are_frozen) {
    TEST_LANDING(&env);
    const int64_t col[] = {1, 24}, pos[] = {6, 1};
    for (int siren = 0; siren < 2; siren++) {
        struct buf g = pb(A), c = node("Cast", "c", "p", "pf");
        with_int(&c, "to", 1);
        pb_msg(&g, 1, c);
        pb_msg(&g, 1, node("MatMul", "mm", siren ? "data f" : "pf f", "a"));
        pb_msg(&g, 1, node("Sin", "sin", "a", "s"));
        pb_msg(&g, 1, node("Cos", "cos", "a", "k"));
        pb_msg(&g, 1, node("Add", "add", "s k", "t"));
        pb_msg(&g, 1, node("Mul", "mul", "t data", "y"));
        pb_msg(&g, 5, weight("f", 2, col, 3));
        input(&g, "p", 7, 2, pos);
        input(&g, "data", 1, 2, pos);
        output(&g, "y");
        import(g, true);
        decided("f", siren ? "trained" : "frozen");
        done();
    }
}
END_TEST

/* expand() of a class token, computed by the exporter. */
START_TEST(folded_broadcast_is_undone) {
    TEST_LANDING(&env);
    const int64_t tok[] = {3, 1, 8}, x[] = {3, 5, 8};
    float data[24];
    for (int i = 0; i < 24; i++) data[i] = (float)(i % 8) - 2.5f;
    struct buf g = pb(A), n = node("Concat", "cat", "cls x", "y");
    with_int(&n, "axis", 1);
    pb_msg(&g, 1, n);
    pb_msg(&g, 5, floats("cls", 3, tok, data));
    input(&g, "x", 1, 3, x);
    output(&g, "y");
    import(g, true);
    decided("cls", "trained");
    const struct import_param *p = param("cls");
    ck_assert_int_eq(p->type.dims[0], 1);
    ck_assert_int_eq(p->stored.dims[0], 3);
    ck_assert_int_eq(ops(OP_expand), 1);
    const dim want[] = {3, 6, 8};
    out_shape(3, want);
    done();
}
END_TEST

START_TEST(unreached_and_small_constants_are_not_parameters) {
    TEST_LANDING(&env);
    struct buf g = pb(A), c = node("Cast", "c", "m", "i");
    with_int(&c, "to", 7);
    pb_msg(&g, 1, node("Mul", "m", "x w", "m"));
    pb_msg(&g, 1, c);
    pb_msg(&g, 1, node("Mul", "k", "x half", "y"));
    const float half = 0.5f;
    pb_msg(&g, 5, weight("w", 1, d8, 1));
    pb_msg(&g, 5, floats("half", 0, NULL, &half));
    input(&g, "x", 1, 2, d48);
    output(&g, "y");
    output(&g, "i");
    import(g, true);
    ck_assert_uint_eq(R.nparams, 0);
    ck_assert_int_eq(ops(OP_const), 2);
    done();
}
END_TEST

START_TEST(regexes_overrule) {
    TEST_LANDING(&env);
    struct import_options o = {.training = true, .train_regex = "^mask$", .freeze_regex = "^w"};
    const int64_t sq[] = {8, 8};
    float off[64];
    for (int i = 0; i < 64; i++) off[i] = i % 3 ? 0 : -1e9f;
    struct buf g = pb(A);
    pb_msg(&g, 1, node("MatMul", "mm", "x w", "h"));
    pb_msg(&g, 1, node("Add", "a", "h mask", "y"));
    pb_msg(&g, 5, weight("w", 2, d88, 1));
    pb_msg(&g, 5, floats("mask", 2, sq, off));
    input(&g, "x", 1, 2, sq);
    output(&g, "y");
    ck_assert_int_eq(try_import(model_bytes(g), &o), ST_OK);
    decided("mask", "trained");
    decided("w", "frozen");
    ck_assert_int_eq(ops(OP_param), 2);
    done();
    o.train_regex = "(";
    ck_assert_int_eq(try_import(model_bytes(g), &o), ST_USAGE);
    ck_assert(strstr(env.log, "--train") != NULL);
    done();
}
END_TEST

/* A Gemm whose zero bias the exporter's optimizer removed, and a model without that record. */
START_TEST(removed_bias_comes_back) {
    TEST_LANDING(&env);
    for (int recorded = 0; recorded < 2; recorded++) {
        struct buf g = pb(A), n = node("Gemm", "fc", "x w", "y");
        metadata(&n, 9, "pkg.torch.onnx.fx_node", "%y = addmm(args = (%p_b, %x, %p_w))");
        if (recorded)
            metadata(&n, 9, "pkg.onnxscript.rewriter.rule_name", "RemoveOptionalBiasFromGemm");
        metadata(&g, 16, "pkg.torch.export.ExportedProgram.graph_signature",
                 "p_b: PARAMETER target='fc.bias'\np_w: PARAMETER target='w'\n");
        pb_msg(&g, 1, n);
        pb_msg(&g, 5, weight("w", 2, d88, 1));
        input(&g, "x", 1, 2, d48);
        output(&g, "y");
        import(g, true);
        ck_assert_int_eq(count("trained"), 1 + recorded);
        if (recorded) {
            decided("fc.bias", "trained");
            ck_assert_uint_eq(param("fc.bias")->uses[0].slot, 2);
        }
        done();
    }
}
END_TEST

/* ---- export ---------------------------------------------------------------------------------- */
static const void *plus_one(void *user, const char *name) {
    const struct import_param *p = param(name);
    size_t n = (size_t)type_count(&p->type);
    float *x = arena_array(A, n, sizeof *x);
    memcpy(x, p->data, n * sizeof *x);
    /* Each parameter moves by its own amount, so that merged ones differ afterwards. */
    for (size_t i = 0; i < n; i++) x[i] += (float)strlen(name);
    (void)user;
    return strcmp(p->decision, "frozen") == 0 ? NULL : x;
}

static void round_trip(struct buf g) {
    char path[] = "/tmp/lathe_import_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    import(g, true);
    enum status st = onnx_export(M, &R, plus_one, NULL, path);
    ck_assert_msg(st == ST_OK, "export: %s", env.log);
    uint32_t n = R.nparams;
    struct import_param *copy = ARENA_ARRAY(A, struct import_param, n);
    for (uint32_t i = 0; i < n; i++) {
        copy[i] = R.params[i];
        copy[i].name = arena_strdup(A, copy[i].name);
        copy[i].data = plus_one(NULL, copy[i].name);
    }
    done();
    struct import_options o = {.training = true};
    ck_assert_int_eq(onnx_load(&env.ctx, path, &M), ST_OK);
    st = onnx_import(M, &o, &R);
    ck_assert_msg(st == ST_OK, "import again: %s", env.log);
    for (uint32_t i = 0; i < n; i++) {
        const struct import_param *p = param(copy[i].name);
        ck_assert_msg(p != NULL, "'%s' is gone", copy[i].name);
        ck_assert(type_equal(&p->type, &copy[i].type));
        ck_assert_mem_eq(p->data, copy[i].data, (size_t)type_bytes(&p->type));
    }
    ck_assert_uint_eq(R.nparams, n);
    done();
    unlink(path);
}

START_TEST(export_writes_what_training_made) {
    TEST_LANDING(&env);
    round_trip(merged_norms(false));
    for (int form = 0; form < 3; form++) round_trip(tied(form));
    round_trip(batch_norm());
}
END_TEST

int main(void) {
    Suite *s = suite_create("params");
    TCase *c = tcase_create("all");
    tcase_add_checked_fixture(c, begin, end);
    tcase_add_test(c, equal_parameters_are_untied);
    tcase_add_test(c, records_name_the_untied);
    tcase_add_test(c, identity_names_the_untied);
    tcase_add_test(c, tied_tables_are_one_parameter);
    tcase_add_test(c, masks_are_frozen);
    tcase_add_test(c, merged_statistics_are_state);
    tcase_add_test(c, rotary_tables_are_frozen);
    tcase_add_test(c, frequencies_of_positions_are_frozen);
    tcase_add_test(c, folded_broadcast_is_undone);
    tcase_add_test(c, unreached_and_small_constants_are_not_parameters);
    tcase_add_test(c, regexes_overrule);
    tcase_add_test(c, removed_bias_comes_back);
    tcase_add_test(c, export_writes_what_training_made);
    suite_add_tcase(s, c);
    return run_suite(s);
}
