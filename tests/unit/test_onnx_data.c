// SPDX-License-Identifier: Apache-2.0
/* test_onnx_data.c - tensors of .onnx files, their external data, and saving. */
#include "frontend/file.h"
#include "onnx_bytes.h"
#include <unistd.h>

static struct test_env env;
static struct arena *A = &env.arena;
static char dir[64];

static const char *in_dir(const char *name) {
    return arena_printf(A, "%s/%s", dir, name);
}

static void put_file(const char *name, const void *p, size_t n) {
    ck_assert_int_eq(sys_write_file(&env.ctx, in_dir(name), p, n), ST_OK);
}

/* A model with input x[2], y = Relu(x) and the given initializers, nodes and unknown field. */
static struct buf model_with(int n, const struct buf *tensors) {
    const int64_t x[] = {2};
    struct buf g = pb(A);
    pb_msg(&g, 1, pb_node(A, "Relu", "x", "y"));
    pb_str(&g, 2, "g");
    for (int i = 0; i < n; i++) pb_msg(&g, 5, tensors[i]);
    pb_msg(&g, 11, pb_value(A, "x", 1, 1, x));
    pb_msg(&g, 12, pb_value(A, "y", 1, 1, x));
    return pb_model(A, g);
}

static struct onnx_model *loaded(struct buf b) {
    struct onnx_model *m;
    env.log[0] = '\0';
    enum status st = onnx_load_memory(&env.ctx, b.at, b.n, dir, in_dir("m.onnx"), &m);
    ck_assert_msg(st == ST_OK, "load failed: %s", env.log);
    return m;
}

/* Decode one tensor message; the model is kept until the next call. */
static struct onnx_model *last;
static enum status decode(struct buf tensor, struct onnx_tensor *t) {
    onnx_free(last);
    last = loaded(model_with(1, &tensor));
    env.log[0] = '\0';
    return onnx_decode_tensor(last, last->proto->graph->initializer[0], "here", t);
}

static void bad_tensor(struct buf tensor, enum status want, const char *text) {
    struct onnx_tensor t;
    enum status st = decode(tensor, &t);
    ck_assert_msg(st == want, "expected %d, got %d: %s", (int)want, (int)st, env.log);
    ck_assert_msg(strstr(env.log, text) != NULL, "'%s' not in: %s", text, env.log);
}

static struct buf filled(int type, int64_t n, unsigned field, const void *p, size_t bytes) {
    struct buf t = pb_tensor(A, "t", type, 1, &n);
    pb_bytes(&t, field, p, bytes);
    return t;
}

/* int32_data, unpacked form. */
static struct buf filled_ints(int type, int n, const int64_t *v) {
    const int64_t dims[] = {n};
    struct buf t = pb_tensor(A, "t", type, 1, dims);
    for (int i = 0; i < n; i++) pb_int(&t, 5, v[i]);
    return t;
}

static void good_tensor(struct buf tensor, enum dtype dtype, const void *want) {
    struct onnx_tensor t;
    enum status st = decode(tensor, &t);
    ck_assert_msg(st == ST_OK, "%s", env.log);
    ck_assert_int_eq(t.type.dtype, dtype);
    ck_assert_mem_eq(t.data, want, (size_t)type_bytes(&t.type));
}

START_TEST(storage) {
    TEST_LANDING(&env);
    const float f[] = {1.5f, -2, 1e-40f};
    const double d[] = {1e300, -0.0, 3};
    const int64_t small[] = {-128, 127, 255}, half[] = {0x3c00, 0xfbff, -1}, flags[] = {0, 7, -1};
    good_tensor(filled(1, 3, 9, f, sizeof f), DT_f32, f);
    good_tensor(filled(1, 3, 4, f, sizeof f), DT_f32, f);
    good_tensor(filled(11, 3, 10, d, sizeof d), DT_f64, d);
    good_tensor(filled(7, 3, 7, "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02", 12), DT_i64,
                (int64_t[]){1, -1, 2});
    good_tensor(filled_ints(6, 3, small), DT_i32, (int32_t[]){-128, 127, 255});
    good_tensor(filled_ints(3, 3, small), DT_i8, (int8_t[]){-128, 127, -1});
    good_tensor(filled_ints(5, 3, half), DT_i16, (int16_t[]){0x3c00, -1025, -1});
    good_tensor(filled_ints(10, 3, half), DT_f16, (uint16_t[]){0x3c00, 0xfbff, 0xffff});
    good_tensor(filled_ints(16, 3, half), DT_bf16, (uint16_t[]){0x3c00, 0xfbff, 0xffff});
    good_tensor(filled_ints(17, 2, (int64_t[]){0x7e, 0x81}), DT_e4m3, "\x7e\x81");
    good_tensor(filled_ints(9, 3, flags), DT_bool, "\0\1\1");
    good_tensor(filled(9, 3, 9, "\0\2\xff", 3), DT_bool, "\0\1\1");
    good_tensor(filled(16, 1, 9, "\x80\x3f", 2), DT_bf16, "\x80\x3f");
    good_tensor(pb_tensor(A, "empty", 1, 1, (int64_t[]){0}), DT_f32, "");
    good_tensor(pb_tensor(A, "empty", 1, 2, (int64_t[]){0, (int64_t)1 << 62}), DT_f32, "");
    struct buf scalar = pb_tensor(A, "s", 1, 0, NULL);
    pb_bytes(&scalar, 4, f, 4);
    good_tensor(scalar, DT_f32, f);
    good_tensor(filled(1, 2, 9, f, sizeof f), DT_f32, f);
    ck_assert(strstr(env.log, "warning: here: tensor 't': raw_data has 12 bytes, 4 more") != NULL);
}
END_TEST

START_TEST(bad_storage) {
    TEST_LANDING(&env);
    const float f[] = {1, 2, 3};
    bad_tensor(filled(1, 4, 9, f, sizeof f), ST_PARSE, "need 16 bytes, but raw_data has 12");
    bad_tensor(filled(1, 4, 4, f, sizeof f), ST_PARSE, "has 4 elements, but float_data has 3");
    bad_tensor(filled(1, 2, 4, f, sizeof f), ST_PARSE, "has 2 elements, but float_data has 3");
    bad_tensor(filled(6, 3, 4, f, sizeof f), ST_PARSE, "int32 belong in int32_data");
    bad_tensor(pb_tensor(A, "t", 1, 1, (int64_t[]){3}), ST_PARSE, "no data");
    struct buf both = filled(1, 3, 4, f, sizeof f);
    pb_bytes(&both, 9, f, sizeof f);
    bad_tensor(both, ST_PARSE, "more than one place");
    bad_tensor(filled_ints(3, 1, (int64_t[]){256}), ST_PARSE, "256 at index 0 does not fit");
    bad_tensor(filled_ints(10, 1, (int64_t[]){-40000}), ST_PARSE, "does not fit");
    struct buf segment = filled(1, 3, 9, f, sizeof f), range = pb(A);
    pb_int(&range, 1, 0);
    pb_msg(&segment, 3, range);
    bad_tensor(segment, ST_UNSUPPORTED, "segment");
    bad_tensor(filled(22, 3, 9, "\x21\x03", 2), ST_UNSUPPORTED, "int4 (code 22)");
    bad_tensor(filled(18, 1, 9, "\x21", 1), ST_UNSUPPORTED, "float8e4m3fnuz");
    bad_tensor(filled(8, 1, 6, "text", 4), ST_UNSUPPORTED, "string");
    bad_tensor(filled(99, 1, 9, "text", 4), ST_UNSUPPORTED, "code 99");
    bad_tensor(filled(-7, 1, 9, "text", 4), ST_UNSUPPORTED, "code -7");
    const int64_t big = (int64_t)1 << 32;
    bad_tensor(pb_tensor(A, "t", 1, 2, (int64_t[]){big, big}), ST_PARSE, "overflows");
    bad_tensor(pb_tensor(A, "t", 1, 2, (int64_t[]){INT64_MAX, 2}), ST_PARSE, "overflows");
    bad_tensor(pb_tensor(A, "t", 1, 1, (int64_t[]){INT64_MAX}), ST_PARSE, "overflows");
    bad_tensor(pb_tensor(A, "t", 1, 2, (int64_t[]){big, big / 8}), ST_PARSE, "overflows");
    bad_tensor(pb_tensor(A, "t", 1, 3, (int64_t[]){INT64_MAX, INT64_MAX, 0}), ST_PARSE,
               "overflows");
    bad_tensor(pb_tensor(A, "t", 1, 2, (int64_t[]){0, -1}), ST_PARSE, "-1");
    int64_t many[13] = {0};
    bad_tensor(pb_tensor(A, "t", 1, 13, many), ST_UNSUPPORTED, "13 dimensions");
}
END_TEST

/* ---- external data --------------------------------------------------------------------------- */

/* f32[3] in a file: key, value, key, value, ..., NULL. */
static struct buf external(const char *const *entries) {
    struct buf t = pb_tensor(A, "t", 1, 1, (int64_t[]){3});
    pb_int(&t, 14, 1);
    for (; *entries; entries += 2) pb_msg(&t, 13, pb_external(A, entries[0], entries[1]));
    return t;
}
#define EXTERNAL(...) external((const char *const[]){__VA_ARGS__, NULL})

START_TEST(external_data) {
    TEST_LANDING(&env);
    const float f[] = {0, 1, 2, 3, 4};
    ck_assert_int_eq(sys_mkdirs(&env.ctx, in_dir("sub")), ST_OK);
    put_file("w.bin", f, sizeof f);
    put_file("sub/w.bin", f, sizeof f);
    good_tensor(EXTERNAL("location", "w.bin"), DT_f32, f);
    good_tensor(EXTERNAL("location", "sub/w.bin", "offset", "8"), DT_f32, f + 2);
    good_tensor(EXTERNAL("offset", "4", "location", "w.bin", "length", "12"), DT_f32, f + 1);
    good_tensor(EXTERNAL("location", "w.bin", "checksum", "00", "my_key", "../x"), DT_f32, f);
    bad_tensor(EXTERNAL("location", "w.bin", "offset", "12"), ST_PARSE,
               "bytes 12 to 24 of 'w.bin'");
    bad_tensor(EXTERNAL("location", "w.bin", "offset", "18446744073709551615"), ST_PARSE,
               "only 20");
    bad_tensor(EXTERNAL("location", "w.bin", "offset", "18446744073709551616"), ST_PARSE, "number");
    bad_tensor(EXTERNAL("location", "w.bin", "offset", "-4"), ST_PARSE, "'-4' is not a number");
    bad_tensor(EXTERNAL("location", "w.bin", "offset", " 4"), ST_PARSE, "not a number");
    bad_tensor(EXTERNAL("location", "w.bin", "offset", ""), ST_PARSE, "not a number");
    bad_tensor(EXTERNAL("location", "w.bin", "length", "20"), ST_PARSE, "need 12 bytes");
    bad_tensor(EXTERNAL("location", "w.bin", "length", "8"), ST_PARSE, "need 12 bytes");
    bad_tensor(EXTERNAL("offset", "0"), ST_PARSE, "no location");
    bad_tensor(EXTERNAL("location", "w.bin", "location", "sub/w.bin"), ST_PARSE, "given twice");
    bad_tensor(EXTERNAL("location", "gone.bin"), ST_IO, "'gone.bin' beside");
    struct buf both = EXTERNAL("location", "w.bin");
    pb_bytes(&both, 9, f, 12);
    bad_tensor(both, ST_PARSE, "more than one place");
    struct buf inlined = filled(1, 3, 9, f, 12); /* entries without data_location EXTERNAL */
    pb_msg(&inlined, 13, pb_external(A, "location", "../x"));
    good_tensor(inlined, DT_f32, f);
    struct buf t = EXTERNAL("location", "w.bin"), b = model_with(1, &t);
    struct onnx_model *m;
    struct onnx_tensor out;
    ck_assert_int_eq(onnx_load_memory(&env.ctx, b.at, b.n, NULL, "memory", &m), ST_OK);
    ck_assert_int_eq(onnx_decode_tensor(m, m->proto->graph->initializer[0], "t", &out),
                     ST_UNSUPPORTED);
    onnx_free(m);
}
END_TEST

/* Two tensors of one file share its mapping. */
START_TEST(external_sharing) {
    TEST_LANDING(&env);
    const float f[] = {0, 1, 2, 3, 4, 5};
    put_file("w.bin", f, sizeof f);
    struct buf a = EXTERNAL("location", "w.bin"), b = EXTERNAL("location", "w.bin", "offset", "12");
    pb_str(&b, 8, "u");
    struct onnx_model *m = loaded(model_with(2, (struct buf[]){a, b}));
    struct onnx_tensor t, u;
    ck_assert_int_eq(onnx_decode_tensor(m, m->proto->graph->initializer[0], "t", &t), ST_OK);
    ck_assert_int_eq(onnx_decode_tensor(m, m->proto->graph->initializer[1], "u", &u), ST_OK);
    ck_assert_ptr_eq((const char *)t.data + 12, u.data);
    onnx_free(m);
}
END_TEST

/* Locations of CVE-2022-25882, CVE-2024-27318, CVE-2026-27489 and CVE-2026-34446. The secret lies
 * where a naive join would find it, and is large enough to be decoded. */
static const char *const hostile[] = {
    "../secret.bin",
    "sub/../../secret.bin",
    "./../secret.bin",
    "sub//../../secret.bin",
    "..\\secret.bin",
    "C:\\secret.bin",
    "C:secret.bin",
    "/etc/hostname",
    "",
    ".",
    "..",
    "sub/",
    "link.bin",
    "linkdir/secret.bin",
    "hard.bin",
};

START_TEST(hostile_locations) {
    TEST_LANDING(&env);
    ck_assert_int_eq(sys_mkdirs(&env.ctx, in_dir("model/sub")), ST_OK);
    put_file("secret.bin", "0123456789abcdef", 16);
    put_file("model/real.bin", "0123456789abcdef", 16);
    ck_assert_int_eq(symlink("../secret.bin", in_dir("model/link.bin")), 0);
    ck_assert_int_eq(symlink("..", in_dir("model/linkdir")), 0);
    ck_assert_int_eq(link(in_dir("secret.bin"), in_dir("model/hard.bin")), 0);
    snprintf(dir + strlen(dir), sizeof dir - strlen(dir), "/model");
    good_tensor(EXTERNAL("location", "real.bin"), DT_f32, "0123456789ab");
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct onnx_tensor t;
        ck_assert_msg(decode(EXTERNAL("location", hostile[i]), &t) == ST_IO, "%s", hostile[i]);
        struct buf attr = pb_attribute(A, "value", 4), node = pb_node(A, "Constant", "", "c");
        struct buf g = pb(A);
        pb_msg(&attr, 5, EXTERNAL("location", hostile[i]));
        pb_msg(&node, 5, attr);
        pb_msg(&g, 1, node);
        struct onnx_model *m = loaded(pb_model(A, g));
        const Onnx__TensorProto *value = m->proto->graph->node[0]->attribute[0]->t;
        ck_assert_msg(onnx_decode_tensor(m, value, "c", &t) == ST_IO, "%s", hostile[i]);
        /* Saving must read no such file either. */
        ck_assert_int_eq(onnx_save(m, NULL, 0, in_dir("out.onnx")), ST_IO);
        ck_assert(!sys_exists(in_dir("out.onnx")));
        onnx_free(m);
    }
    struct buf t = pb_tensor(A, "t", 1, 1, (int64_t[]){3}), e = pb(A), b;
    pb_int(&t, 14, 1);
    pb_str(&e, 1, "location");
    pb_bytes(&e, 2, "real.bin\0/../../secret.bin", 26);
    pb_msg(&t, 13, e);
    b = model_with(1, &t);
    struct onnx_model *m;
    ck_assert_int_eq(onnx_load_memory(&env.ctx, b.at, b.n, dir, "m", &m), ST_PARSE);
    *strrchr(dir, '/') = '\0';
}
END_TEST

/* The same wherever a tensor may stand; saving visits them all. */
START_TEST(hostile_places) {
    TEST_LANDING(&env);
    const float secret[] = {1, 2, 3};
    const int64_t three[] = {3};
    put_file("ok.bin", secret, sizeof secret);
    ck_assert_int_eq(symlink("ok.bin", in_dir("link.bin")), 0);
    for (int place = 0; place < 7; place++) {
        for (int bad = 0; bad < 2; bad++) {
            struct buf t = EXTERNAL("location", bad ? "link.bin" : "ok.bin");
            struct buf attr = pb_attribute(A, "value", 4), node = pb_node(A, "Constant", "", "c");
            struct buf sparse = pb(A), sub = pb(A), branch = pb_attribute(A, "then_branch", 5);
            struct buf g = pb(A), fun = pb(A), training = pb(A), b = pb(A);
            pb_msg(&sparse, 1, t);
            pb_str(&sub, 2, "sub");
            pb_msg(&attr, 5, t);
            pb_msg(&node, 5, attr);
            pb_str(&fun, 1, "F");
            pb_str(&fun, 10, "my");
            pb_msg(&fun, 9, pb_opset(A, "", 17));
            pb_msg(&fun, 7, node);
            pb_msg(&sub, 5, t);
            pb_msg(&branch, 6, sub);
            struct buf cond = pb_node(A, "If", "x", "y");
            pb_msg(&cond, 5, branch);
            pb_msg(&training, place == 4 ? 1 : 2, sub);
            pb_msg(&g, 11, pb_value(A, "x", 1, 1, three));
            if (place == 0) pb_msg(&g, 5, t);
            if (place == 1) pb_msg(&g, 1, node);
            if (place == 2) pb_msg(&g, 15, sparse);
            if (place == 3) pb_msg(&g, 1, cond);
            b = pb_model(A, g);
            if (place == 4 || place == 5) pb_msg(&b, 20, training);
            if (place == 6) pb_msg(&b, 25, fun);
            struct onnx_model *m = loaded(b);
            enum status st = onnx_save(m, NULL, 0, in_dir("out.onnx"));
            ck_assert_msg(st == (bad ? ST_IO : ST_OK), "place %d: %s", place, env.log);
            onnx_free(m);
        }
    }
}
END_TEST

/* ---- saving ---------------------------------------------------------------------------------- */

/* w[2] and v[2] as initializers, c a Constant; a = x + w, b = a + c, y = b + w + v. */
static struct buf weights_model(void) {
    const int64_t two[] = {2};
    const float w[] = {1, 2}, v[] = {3, 4}, c[] = {5, 6};
    struct buf g = pb(A), tw = pb_tensor(A, "w", 1, 1, two), tv = pb_tensor(A, "v", 1, 1, two),
               tc = pb_tensor(A, "", 1, 1, two), attr = pb_attribute(A, "value", 4),
               constant = pb_node(A, "Constant", "", "c");
    pb_bytes(&tw, 9, w, 8);
    pb_bytes(&tw, 12, "note\xff", 5); /* doc_string */
    pb_bytes(&tw, 77, "future", 6);   /* a field of a later ONNX */
    pb_bytes(&tv, 4, v, 8);
    pb_bytes(&tc, 9, c, 8);
    pb_msg(&attr, 5, tc);
    pb_msg(&constant, 5, attr);
    pb_msg(&g, 1, constant);
    pb_msg(&g, 1, pb_node(A, "Add", "x w", "a"));
    pb_msg(&g, 1, pb_node(A, "Add", "a c", "b"));
    pb_msg(&g, 1, pb_node(A, "Sum", "b w v", "y"));
    pb_str(&g, 2, "g");
    pb_msg(&g, 5, tw);
    pb_msg(&g, 5, tv);
    pb_msg(&g, 11, pb_value(A, "x", 1, 1, two));
    pb_msg(&g, 12, pb_value(A, "y", 1, 1, two));
    struct buf b = pb_model(A, g);
    pb_bytes(&b, 99, "top", 3);
    return b;
}

static struct type f32s(int64_t n) {
    return (struct type){.dtype = DT_f32, .rank = 1, .dims = {n}};
}

static struct onnx_model *reloaded(const char *path) {
    struct onnx_model *m;
    enum status st = onnx_load(&env.ctx, path, &m);
    ck_assert_msg(st == ST_OK, "%s", env.log);
    return m;
}

static void holds(struct onnx_model *m, const Onnx__TensorProto *t, const float *want) {
    struct onnx_tensor out;
    enum status st = onnx_decode_tensor(m, t, "saved", &out);
    ck_assert_msg(st == ST_OK, "%s", env.log);
    ck_assert_mem_eq(out.data, want, (size_t)type_bytes(&out.type));
}

START_TEST(save_replaces) {
    TEST_LANDING(&env);
    const float w[] = {10, 20}, c[] = {50, 60}, split[] = {7, 8};
    const struct onnx_use use = {.node = 3, .slot = 1};
    const struct onnx_replacement r[] = {
        {.initializer = "w", .type = f32s(2), .data = w},
        {.initializer = "c", .type = f32s(2), .data = c},
        {.initializer = "w.2", .type = f32s(2), .data = split, .uses = &use, .nuses = 1},
    };
    struct buf b = weights_model();
    struct onnx_model *m = loaded(b);
    ck_assert_int_eq(onnx_save(m, r, 3, in_dir("out.onnx")), ST_OK);
    ck_assert_str_eq(m->proto->graph->node[3]->input[1], "w"); /* the loaded model stays */
    ck_assert_uint_eq(m->proto->graph->n_initializer, 2);
    /* Without changes the same messages are written: the file is as long as the one read. */
    ck_assert_int_eq(onnx_save(m, NULL, 0, in_dir("same.onnx")), ST_OK);
    onnx_free(m);
    struct file_map same;
    ck_assert_int_eq(sys_map_file(A, in_dir("same.onnx"), &same), ST_OK);
    ck_assert_uint_eq(same.size, b.n);

    m = reloaded(in_dir("out.onnx"));
    const Onnx__GraphProto *g = m->proto->graph;
    ck_assert_uint_eq(g->n_initializer, 3);
    holds(m, g->initializer[0], w);
    holds(m, g->initializer[1], (const float[]){3, 4});
    holds(m, g->initializer[2], split);
    holds(m, g->node[0]->attribute[0]->t, c);
    ck_assert_str_eq(g->node[1]->input[1], "w");
    ck_assert_str_eq(g->node[3]->input[1], "w.2");
    ck_assert_str_eq(g->node[3]->input[2], "v");
    ck_assert_uint_eq(g->initializer[0]->doc_string.len, 5);
    ck_assert_uint_eq(g->initializer[0]->base.n_unknown_fields, 1);
    ck_assert_mem_eq(g->initializer[0]->base.unknown_fields[0].data, "\6future", 7);
    ck_assert_uint_eq(m->proto->base.n_unknown_fields, 1);
    onnx_free(m);
}
END_TEST

START_TEST(save_refuses) {
    TEST_LANDING(&env);
    const float w[] = {10, 20, 30};
    const struct onnx_use no_node = {.node = 4, .slot = 0}, no_slot = {.node = 3, .slot = 3};
    struct type f16 = f32s(2);
    f16.dtype = DT_f16;
    const struct onnx_replacement bad[] = {
        {.initializer = "w", .type = f32s(3), .data = w},
        {.initializer = "w", .type = f16, .data = w},
        {.initializer = "c", .type = f32s(1), .data = w},
        {.initializer = "nope", .type = f32s(2), .data = w},
        {.initializer = "a", .type = f32s(2), .data = w},
        {.initializer = "v", .type = f32s(2), .data = w, .uses = &no_slot, .nuses = 1},
        {.initializer = "n", .type = f32s(2), .data = w, .uses = &no_slot, .nuses = 1},
        {.initializer = "n", .type = f32s(2), .data = w, .uses = &no_node, .nuses = 1},
        {.initializer = "", .type = f32s(2), .data = w},
    };
    struct onnx_model *m = loaded(weights_model());
    put_file("out.onnx", "before", 6);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        env.log[0] = '\0';
        ck_assert_msg(onnx_save(m, &bad[i], 1, in_dir("out.onnx")) != ST_OK, "case %zu", i);
        ck_assert(strncmp(env.log, "error: ", 7) == 0);
    }
    ck_assert_int_eq(onnx_save(m, NULL, 0, in_dir("no/such/dir.onnx")), ST_IO);
    struct file_map map;
    ck_assert_int_eq(sys_map_file(A, in_dir("out.onnx"), &map), ST_OK);
    ck_assert_uint_eq(map.size, 6);
    onnx_free(m);
}
END_TEST

/* A sparse weight and a Constant in another form than `value` become dense. */
START_TEST(save_changes_form) {
    TEST_LANDING(&env);
    const float first[] = {9, 8}, w[] = {10, 20}, c = 7;
    const int64_t one[] = {1}, two[] = {2};
    struct buf sparse = pb(A), values = pb_tensor(A, "s", 1, 1, one), g = pb(A);
    struct buf indices = pb_tensor(A, "", 7, 1, one), attr = pb_attribute(A, "value_float", 1);
    struct buf constant = pb_node(A, "Constant", "", "c");
    pb_bytes(&values, 4, first, 4);
    pb_int(&indices, 7, 1);
    pb_msg(&sparse, 1, values);
    pb_msg(&sparse, 2, indices);
    pb_int(&sparse, 3, 2);
    buf_put(&attr, "\x15\0\0\0\x40", 5);
    pb_msg(&constant, 5, attr);
    pb_msg(&g, 1, constant);
    pb_msg(&g, 15, sparse);
    pb_msg(&g, 12, pb_value(A, "s", 1, 1, two));
    struct onnx_model *m = loaded(pb_model(A, g));
    struct type scalar = type_scalar(DT_f32);
    const struct onnx_replacement wrong = {.initializer = "s", .type = f32s(1), .data = w};
    const struct onnx_replacement r[] = {{.initializer = "s", .type = f32s(2), .data = first},
                                         {.initializer = "s", .type = f32s(2), .data = w},
                                         {.initializer = "c", .type = scalar, .data = &c}};
    ck_assert_int_eq(onnx_save(m, &wrong, 1, in_dir("form.onnx")), ST_SHAPE);
    ck_assert_int_eq(onnx_save(m, r, 3, in_dir("form.onnx")), ST_OK);
    onnx_free(m);
    m = reloaded(in_dir("form.onnx"));
    ck_assert_uint_eq(m->proto->graph->n_sparse_initializer, 0);
    ck_assert_uint_eq(m->proto->graph->n_initializer, 1);
    holds(m, m->proto->graph->initializer[0], w);
    ck_assert_uint_eq(m->proto->graph->node[0]->n_attribute, 1);
    ck_assert_str_eq(m->proto->graph->node[0]->attribute[0]->name, "value");
    holds(m, m->proto->graph->node[0]->attribute[0]->t, &c);
    onnx_free(m);
}
END_TEST

/* IR version 3: a new initializer must also be listed as an input. */
START_TEST(save_old_ir) {
    TEST_LANDING(&env);
    const float w[] = {10, 20};
    const struct onnx_use use = {.node = 1, .slot = 1};
    const struct onnx_replacement r = {
        .initializer = "n", .type = f32s(2), .data = w, .uses = &use, .nuses = 1};
    struct onnx_model *m = loaded(weights_model());
    m->proto->ir_version = 3;
    ck_assert_int_eq(onnx_save(m, &r, 1, in_dir("old.onnx")), ST_OK);
    onnx_free(m);
    m = reloaded(in_dir("old.onnx"));
    const Onnx__ValueInfoProto *v = m->proto->graph->input[1];
    ck_assert_str_eq(v->name, "n");
    ck_assert_int_eq(v->type->tensor_type->shape->dim[0]->dim_value, 2);
    onnx_free(m);
}
END_TEST

/* External weights come along: into the file, or into a data file of its own when that is too big;
 * the source's data file is never written. */
START_TEST(save_external) {
    TEST_LANDING(&env);
    float w[600], v[600];
    for (int i = 0; i < 600; i++) w[i] = (float)i, v[i] = (float)-i;
    put_file("w.bin", w, sizeof w);
    const int64_t dims[] = {600};
    struct buf tw = pb_tensor(A, "w", 1, 1, dims), tv = pb_tensor(A, "v", 1, 1, dims);
    pb_int(&tw, 14, 1);
    pb_msg(&tw, 13, pb_external(A, "location", "w.bin"));
    pb_bytes(&tv, 9, w, sizeof w);
    struct onnx_model *m = loaded(model_with(2, (struct buf[]){tw, tv}));
    const struct onnx_replacement r = {.initializer = "v", .type = f32s(600), .data = v};
    ck_assert_int_eq(onnx_save(m, &r, 1, in_dir("in.onnx")), ST_OK);
    ck_assert(!sys_exists(in_dir("in.onnx.data")));
    ck_assert_int_eq(onnx_save_within(m, &r, 1, in_dir("out.onnx"), 2000), ST_OK);
    ck_assert_int_eq(onnx_save_within(m, &r, 1, in_dir("never.onnx"), 100), ST_UNSUPPORTED);
    ck_assert(!sys_exists(in_dir("never.onnx")));
    onnx_free(m);
    put_file("w.bin", "", 0); /* nothing may depend on it any more */
    for (int i = 0; i < 2; i++) {
        m = reloaded(in_dir(i ? "out.onnx" : "in.onnx"));
        ck_assert_uint_eq(m->proto->graph->initializer[0]->n_external_data, i ? 3 : 0);
        holds(m, m->proto->graph->initializer[0], w);
        holds(m, m->proto->graph->initializer[1], v);
        onnx_free(m);
    }
    struct file_map map;
    ck_assert_int_eq(sys_map_file(A, in_dir("out.onnx.data"), &map), ST_OK);
    ck_assert_uint_eq(map.size, 4096 + sizeof v);
}
END_TEST

static void setup(void) {
    test_begin(&env);
    snprintf(dir, sizeof dir, "/tmp/lathe-data-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void teardown(void) {
    ck_assert_int_eq(sys_remove_tree(&env.ctx, dir), ST_OK);
    onnx_free(last);
    last = NULL; /* the next test may run in this process */
    test_end(&env);
}

int main(void) {
    Suite *s = suite_create("onnx data");
    TCase *t = tcase_create("tensors");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, storage);
    tcase_add_test(t, bad_storage);
    tcase_add_test(t, external_data);
    tcase_add_test(t, external_sharing);
    tcase_add_test(t, hostile_locations);
    tcase_add_test(t, hostile_places);
    tcase_add_test(t, save_replaces);
    tcase_add_test(t, save_changes_form);
    tcase_add_test(t, save_refuses);
    tcase_add_test(t, save_old_ir);
    tcase_add_test(t, save_external);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
