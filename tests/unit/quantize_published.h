// SPDX-License-Identifier: Apache-2.0
/* quantize_published.h - the part of test_quantize.c for published cases: each is a graph whose
 * outputs are compared with the numbers of the case. */
#ifndef LATHE_TEST_QUANTIZE_PUBLISHED_H
#define LATHE_TEST_QUANTIZE_PUBLISHED_H

/* One case: a graph, its inputs in the order of their making. */
struct published {
    struct test_env *t;
    struct graph *g, *ran; /* what runs is a copy: more can be built on g */
    struct run r;
    json_t *input, *want, *settings;
    const char *id;
};
static const str_id nowhere = {0};

static float json_float(const json_t *v) {
    const char *s = json_string_value(v);
    return s ? strtof(s, NULL) : (float)json_number_value(v);
}
static json_t *flat_at(json_t *v, size_t i) { /* element i of a list or a list of lists */
    if (!json_is_array(v)) return v;
    json_t *first = json_array_get(v, 0);
    size_t n = json_is_array(first) ? json_array_size(first) : 1;
    return n == 1 ? flat_at(json_array_get(v, i), 0)
                  : json_array_get(json_array_get(v, i / n), i % n);
}
static struct type type_of(json_t *v) {
    struct type t = {.dtype = DT_f32};
    for (; json_is_array(v); v = json_array_get(v, 0)) t.dims[t.rank++] = (dim)json_array_size(v);
    return t;
}
static bool setting(const struct published *p, const char *key, const char *value) {
    const char *s = json_string_value(json_object_get(p->settings, key));
    return s && strcmp(s, value) == 0;
}

/* A parameter, so that it has a gradient. */
static val_id pub_param(struct published *p, const char *name, json_t *v) {
    struct type t = type_of(v);
    size_t n = (size_t)type_count(&t);
    float *x = ARENA_ARRAY(&p->g->arena, float, n);
    for (size_t i = 0; i < n; i++) x[i] = json_float(flat_at(v, i));
    struct attr a[] = {{.key = ATTR_name, .s = name},
                       {.key = ATTR_init, .blob = graph_blob(p->g, x, n * sizeof *x, false)}};
    val_id param = graph_source(p->g, OP_param, &t, a, 2, nowhere);
    graph_set_name(p->g, param, name);
    return param;
}
static val_id pub_operand(struct published *p, const char *name) {
    return pub_param(p, name, json_object_get(p->input, name));
}

/* Quantized and back; outputs "NAME.codes" and "NAME.scale". */
static val_id pub_quantize(struct published *p, const char *name, val_id x, struct quant_how h) {
    val_id q = build_quantize(p->g, x, VAL_NONE, &h, nowhere);
    struct arena *a = &p->t->arena;
    graph_add_output(p->g, arena_printf(a, "%s.codes", name), q);
    graph_add_output(p->g, arena_printf(a, "%s.scale", name),
                     build_cast(p->g, val_at(q, 1), DT_f32, nowhere));
    return build_dequantize(p->g, q, val_at(q, 1), h.tile, DT_f32, nowhere);
}

static void pub_close(struct published *p) {
    if (p->ran) run_close(&p->r);
    graph_destroy(p->ran);
    p->ran = NULL;
}

static void pub_run(struct published *p) {
    pub_close(p);
    p->ran = graph_clone(p->g);
    p->r = run_open(p->t, p->ran, true);
    run_step(&p->r);
}

static void want_codes(struct published *p, const char *output, json_t *codes) {
    const uint8_t *got = run_at(&p->r, BUF_OUTPUT, output);
    json_t *list = json_is_array(codes) ? json_incref(codes) : json_pack("[O]", codes), *v;
    size_t k, at = 0;
    json_array_foreach(list, k, v) for (const char *s = json_string_value(v); *s; s += 2, at++) {
        char two[3] = {s[0], s[1], '\0'};
        ck_assert_msg(got[at] == strtoul(two, NULL, 16), "%s: %s %zu is %02x, not %s", p->id,
                      output, at, got[at], two);
    }
    ck_assert_uint_gt(at, 0);
    json_decref(list);
}

static void want_near(struct published *p, const char *output, json_t *want, double tolerance) {
    const float *got = run_at(&p->r, BUF_OUTPUT, output);
    struct type t = type_of(want);
    for (size_t i = 0; i < (size_t)type_count(&t); i++) {
        double x = (double)json_float(flat_at(want, i));
        ck_assert_msg(fabs((double)got[i] - x) <= tolerance * fabs(x),
                      "%s: %s %zu is %.9g, not %.9g", p->id, output, i, (double)got[i], x);
    }
}

static json_t *expect(const struct published *p, const char *key) {
    json_t *v = json_object_get(p->want, key);
    ck_assert_msg(v != NULL, "%s has no '%s'", p->id, key);
    return v;
}

static enum dtype pub_format(const struct published *p) {
    return setting(p, "format", "E5M2") ? DT_e5m2 : DT_e4m3;
}

/* Codes are quotients by the scale before or after it is rounded; the former is a quantization with
 * f32 scales, which are rounded afterwards. */
static void group_case(struct published *p) {
    json_t *group = json_object_get(p->settings, "group");
    struct quant_how h =
        QUANT_HOW(pub_format(p), false, 1, json_integer_value(json_array_get(group, 1)));
    bool stored = setting(p, "divide_by", "stored_bf16");
    val_id x = pub_param(p, "x", p->input);
    if (stored) h.scale_type = DT_bf16;
    val_id y = pub_quantize(p, "x", x, h);
    if (stored) graph_add_output(p->g, "y", y);
    h.scale_type = DT_bf16;
    (void)pub_quantize(p, "narrow", x, h);
    pub_run(p);
    want_codes(p, "x.codes", expect(p, "codes"));
    want_near(p, "narrow.scale", expect(p, "scale_bf16"), 0);
    if (!stored) want_near(p, "x.scale", expect(p, "scale_fp32"), 6e-8);
    if (stored) want_near(p, "y", expect(p, "dequant"), 0);
}

static void tensor_case(struct published *p) {
    struct quant_how h = QUANT_HOW(pub_format(p), .whole = true);
    h.scale_type = DT_bf16;
    val_id x = pub_param(p, "x", p->input);
    graph_add_output(p->g, "y", pub_quantize(p, "x", x, h));
    (void)pub_quantize(p, "xt", build_swap_last(p->g, x, nowhere), h);
    h.tile = (struct quant_tile){false, 1, 8};
    (void)pub_quantize(p, "stage", x, h);
    pub_run(p);
    want_codes(p, "x.codes", expect(p, "codes"));
    want_codes(p, "xt.codes", expect(p, "codes_transposed"));
    want_near(p, "x.scale", expect(p, "tensor_scale"), 0);
    want_near(p, "stage.scale", expect(p, "stage1_bf16"), 0);
    want_near(p, "y", expect(p, "dequant"), 0);
}

static void linear_case(struct published *p) {
    struct graph *g = p->g;
    struct quant_how h = QUANT_HOW(DT_e4m3, .whole = true);
    h.scale_type = DT_bf16;
    val_id q[2], s[2], v[2];
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "w" : "a";
        v[k] = build_quantize(g, pub_operand(p, name), VAL_NONE, &h, nowhere);
        graph_add_output(g, k ? "w.codes" : "a.codes", v[k]);
        s[k] = build_cast(g, val_at(v[k], 1), DT_f32, nowhere);
        q[k] = build_cast(g, v[k], DT_f32, nowhere);
        graph_add_output(g, k ? "w.scale" : "a.scale", s[k]);
    }
    val_id acc = build_matmul(g, q[0], q[1], false, true, nowhere);
    val_id y = build_2(g, OP_mul, acc, build_2(g, OP_mul, s[0], s[1], nowhere), nowhere);
    graph_add_output(g, "acc", acc);
    graph_add_output(g, "y", y);
    graph_add_output(g, "low", build_cast(g, build_cast(g, y, DT_bf16, nowhere), DT_f32, nowhere));
    pub_run(p);
    want_codes(p, "a.codes", expect(p, "a_codes"));
    want_codes(p, "w.codes", expect(p, "w_codes"));
    want_near(p, "a.scale", expect(p, "scale_a"), 0);
    want_near(p, "w.scale", expect(p, "scale_w"), 0);
    want_near(p, "acc", expect(p, "acc_exact"), 0);
    want_near(p, "y", expect(p, "y_fp32"), 1.2e-7);
    want_near(p, "low", expect(p, "y_bf16"), 0);
}

/* Runs it with loss = sum(dy * y) and its gradients. */
static void pub_gradients(struct published *p, val_id y, val_id dy) {
    struct graph *g = p->g;
    struct train_options train = {.dump_grads = true};
    struct pass_ctx c = {.ctx = &p->t->ctx, .scratch = &p->t->arena, .train = &train};
    val_id loss = build_2(g, OP_mul, y, dy, nowhere);
    graph_add_output(g, "loss",
                     build_reduce(g, OP_reduce_sum, loss, (int64_t[]){0}, 1, false, nowhere));
    ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", p->t->log);
    pub_run(p);
}

static void swiglu_case(struct published *p) {
    struct graph *g = p->g;
    struct quant_how h = QUANT_HOW(DT_e4m3, false, 1, 8), whole = QUANT_HOW(DT_e4m3, .whole = true);
    h.scale_type = whole.scale_type = DT_bf16;
    val_id gate = pub_quantize(p, "gate", pub_operand(p, "gate"), h);
    val_id up = pub_quantize(p, "up", pub_operand(p, "up"), h);
    val_id silu = pub_quantize(p, "silu", build_1(g, OP_silu, gate, nowhere), h);
    val_id mul = build_cast(g, build_2(g, OP_mul, silu, up, nowhere), DT_bf16, nowhere);
    graph_add_output(g, "mul", build_cast(g, mul, DT_f32, nowhere));
    val_id y = pub_quantize(p, "mul", mul, whole);
    pub_run(p);
    static const char *const names[] = {"gate", "up", "silu", "mul"};
    for (int k = 0; k < 4; k++) {
        struct arena *a = &p->t->arena;
        want_codes(p, arena_printf(a, "%s.codes", names[k]),
                   expect(p, arena_printf(a, "%s_codes", names[k])));
        want_near(p, arena_printf(a, "%s.scale", names[k]),
                  expect(p, arena_printf(a, "%s_scale", names[k])), 0);
    }
    want_near(p, "mul", expect(p, "mul_bf16"), 0);
    pub_gradients(p, y, pub_operand(p, "grad_out"));
    want_near(p, "grad/up", expect(p, "grad_up_bf16"), 0.008);
    want_near(p, "grad/gate", expect(p, "grad_gate_bf16"), 0.008);
}

static void rmsnorm_case(struct published *p) {
    struct graph *g = p->g;
    struct quant_how h = QUANT_HOW(DT_e4m3, false, 1, 8), whole = QUANT_HOW(DT_e4m3, .whole = true);
    h.scale_type = whole.scale_type = DT_bf16;
    val_id x = pub_quantize(p, "x", pub_operand(p, "x"), h);
    struct attr a[] = {
        {.key = ATTR_axis, .i = 0},
        {.key = ATTR_eps, .f = json_number_value(json_object_get(p->settings, "eps_norm"))}};
    val_id n = graph_add(g, OP_rms_norm, &x, 1, a, 2, nowhere);
    graph_add_output(g, "rstd", val_at(n, 1));
    val_id y = build_cast(g, build_2(g, OP_mul, n, pub_operand(p, "w"), nowhere), DT_bf16, nowhere);
    y = pub_quantize(p, "y", y, whole);
    pub_run(p);
    want_codes(p, "x.codes", expect(p, "x_codes"));
    want_codes(p, "y.codes", expect(p, "y_codes"));
    want_near(p, "x.scale", expect(p, "x_scale"), 0);
    want_near(p, "y.scale", expect(p, "y_scale"), 0);
    want_near(p, "rstd", expect(p, "rstd"), 1e-6);
    pub_gradients(p, y, pub_operand(p, "dy"));
    want_near(p, "grad/x", expect(p, "dx"), 0.002);
    want_near(p, "grad/w", expect(p, "dw"), 0.002);
}

static const struct {
    const char *kind;
    void (*run)(struct published *p);
    int least;
} kinds[] = {{"group_quant", group_case, 9},
             {"per_tensor_two_stage", tensor_case, 2},
             {"linear_forward", linear_case, 1},
             {"swiglu", swiglu_case, 1},
             {"rmsnorm", rmsnorm_case, 1}};

static void published_case(json_t *c, void (*run)(struct published *p)) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct published p = {.t = &t, .g = graph_create(&t.ctx, "published")};
    p.input = json_object_get(c, "input"), p.want = json_object_get(c, "expect");
    p.settings = json_object_get(c, "settings");
    p.id = json_string_value(json_object_get(c, "id"));
    run(&p);
    pub_close(&p);
    graph_destroy(p.g);
    test_end(&t);
}

START_TEST(test_published) {
    const char *file = getenv("COAT_VECTORS");
    if (!file || !*file) return;
    json_t *root = json_load_file(file, 0, NULL), *c;
    ck_assert_msg(root != NULL, "cannot read %s", file);
    size_t i;
    int seen = 0;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        const char *kind = json_string_value(json_object_get(c, "kind"));
        if (strcmp(kind, kinds[_i].kind) != 0) continue;
        published_case(c, kinds[_i].run);
        seen++;
    }
    ck_assert_int_ge(seen, kinds[_i].least);
    json_decref(root);
}
END_TEST

#endif
