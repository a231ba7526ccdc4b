// SPDX-License-Identifier: Apache-2.0
/* test_onnx.c - loading of .onnx files: good ones, damaged ones and hostile ones. Tensor data and
 * saving have test_onnx_data.c. */
#include "frontend/file.h"
#include "frontend/wire.h"
#include "onnx_bytes.h"
#include <sys/stat.h>
#include <unistd.h>

static struct test_env env;
static struct arena *A = &env.arena;

static enum status load(struct buf b, struct onnx_model **m) {
    env.log[0] = '\0';
    return onnx_load_memory(&env.ctx, b.at, b.n, NULL, "test.onnx", m);
}

/* Loading fails with `want` and a diagnostic that holds `text`. */
static void refused(struct buf b, enum status want, const char *text) {
    struct onnx_model *m;
    enum status st = load(b, &m);
    ck_assert_msg(st == want, "expected %d, got %d: %s", (int)want, (int)st, env.log);
    ck_assert_msg(strstr(env.log, text) != NULL, "'%s' not in: %s", text, env.log);
    ck_assert_ptr_null(m);
}

static struct onnx_model *loaded(struct buf b) {
    struct onnx_model *m;
    enum status st = load(b, &m);
    ck_assert_msg(st == ST_OK, "load failed: %s", env.log);
    return m;
}

/* y = Relu(x @ w) with w of 3x5. */
static struct buf small_graph(void) {
    const int64_t x[] = {2, 3}, w[] = {3, 5}, y[] = {2, 5};
    float data[15];
    for (int i = 0; i < 15; i++) data[i] = (float)i / 4 - 1;
    struct buf g = pb(A), t = pb_tensor(A, "w", 1, 2, w);
    pb_bytes(&t, 9, data, sizeof data);
    pb_msg(&g, 1, pb_node(A, "MatMul", "x w", "xw"));
    pb_msg(&g, 1, pb_node(A, "Relu", "xw", "y"));
    pb_str(&g, 2, "small");
    pb_msg(&g, 5, t);
    pb_msg(&g, 11, pb_value(A, "x", 1, 2, x));
    pb_msg(&g, 12, pb_value(A, "y", 1, 2, y));
    return g;
}

/* A graph of the given nodes with input x[2]; the output is `out`. */
static struct buf graph_of(const char *out, int n, const struct buf *nodes) {
    const int64_t x[] = {2};
    struct buf g = pb(A);
    for (int i = 0; i < n; i++) pb_msg(&g, 1, nodes[i]);
    pb_str(&g, 2, "g");
    pb_msg(&g, 11, pb_value(A, "x", 1, 1, x));
    pb_msg(&g, 12, pb_value(A, out, 1, 1, x));
    return g;
}

START_TEST(small_model) {
    TEST_LANDING(&env);
    struct buf b = pb_model(A, small_graph());
    struct onnx_model *m = loaded(b);
    ck_assert_int_eq(m->opset, 17);
    ck_assert_str_eq(m->proto->graph->node[0]->op_type, "MatMul");
    ck_assert_str_eq(m->proto->graph->node[0]->name, "");
    ck_assert_str_eq(m->proto->producer_name, "");
    const Onnx__TensorProto *t = m->proto->graph->initializer[0];
    ck_assert_uint_eq(t->raw_data.len, 60);
    ck_assert(t->raw_data.data > (uint8_t *)b.at && t->raw_data.data < (uint8_t *)b.at + b.n);
    struct onnx_tensor w;
    ck_assert_int_eq(onnx_decode_tensor(m, t, "w", &w), ST_OK);
    ck_assert_int_eq(w.type.dims[1], 5);
    float last;
    memcpy(&last, (const char *)w.data + 56, 4);
    ck_assert_float_eq(last, 2.5f);
    onnx_free(m);
}
END_TEST

static enum status decode_one(void *user, ProtobufCMessage *msg) {
    struct onnx_tensor t;
    enum status st = onnx_decode_tensor(user, (Onnx__TensorProto *)msg, "tensor", &t);
    (void)st;
    return ST_OK;
}

START_TEST(truncated_anywhere) {
    TEST_LANDING(&env);
    struct buf b = pb_model(A, small_graph());
    for (size_t n = 0; n < b.n; n++) {
        char *exact = ctx_alloc(&env.ctx, n + !n); /* so that sanitizers see a read past the end */
        memcpy(exact, b.at, n);
        struct onnx_model *m;
        env.log[0] = '\0';
        enum status st = onnx_load_memory(&env.ctx, exact, n, NULL, "cut", &m);
        ck_assert_msg(st == ST_PARSE, "%zu bytes of %zu: %d", n, b.n, (int)st);
        ck_assert(strstr(env.log, "error: cut") != NULL);
        ctx_free(&env.ctx, exact);
    }
    pb_str(&b, 3, "2");
    buf_put(&b, "\x08", 1);
    refused(b, ST_PARSE, "cut off");
}
END_TEST

START_TEST(any_bit_flipped) {
    TEST_LANDING(&env);
    struct buf b = pb_model(A, small_graph());
    int good = 0;
    for (size_t i = 0; i < b.n * 8; i++) {
        b.at[i / 8] ^= (char)(1 << i % 8);
        struct onnx_model *m;
        if (load(b, &m) == ST_OK) {
            good++;
            ck_assert_int_eq(
                wire_visit(&m->proto->base, &onnx__tensor_proto__descriptor, decode_one, m), ST_OK);
            onnx_free(m);
        }
        b.at[i / 8] ^= (char)(1 << i % 8);
    }
    ck_assert_int_gt(good, 480); /* at least the flips within the weights are harmless */
    ck_assert_int_lt(good, (int)b.n * 8);
}
END_TEST

/* Fields of ModelProto itself that no writer may produce. */
START_TEST(bad_wire) {
    TEST_LANDING(&env);
    static const struct {
        const char *bytes;
        int n;
        const char *text;
    } cases[] = {
        {"\x00\x01", 2, "field number"},
        {"\x0b\x0c", 2, "wire type"},           /* group in ir_version */
        {"\xa3\x06\xa4\x06", 4, "wire type"},   /* group in unknown field 100 */
        {"\xa6\x06\x00", 3, "wire type"},       /* wire type 6 */
        {"\x0a\x01\x05", 3, "wrong wire type"}, /* ir_version as bytes */
        {"\x38\x01", 2, "wrong wire type"},     /* graph as a number */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 11, "64 bits"},
        {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12, "64 bits"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", 11, "field number"},
        {"\x12\x05\x61\x62", 4, "past the end"},
        {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x61", 11, "past the end"},
        {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "past the end"},
        {"\x12\x02\xc0\x80", 4, "UTF-8"},         /* overlong NUL */
        {"\x12\x03\xed\xa0\x80", 5, "UTF-8"},     /* surrogate */
        {"\x12\x04\xf4\x90\x80\x80", 6, "UTF-8"}, /* above U+10FFFF */
        {"\x12\x02\xe2\x82", 4, "UTF-8"},         /* cut off */
        {"\x12\x03\x61\x00\x62", 5, "NUL"},
        {"\x12\x02\x61\xff", 4, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = pb(A);
        buf_put(&b, cases[i].bytes, (size_t)cases[i].n);
        refused(b, ST_PARSE, cases[i].text);
    }
    struct buf b = pb_model(A, small_graph());
    pb_msg(&b, 7, small_graph());
    refused(b, ST_PARSE, "twice");
}
END_TEST

/* Valid UTF-8 of every length is accepted, and doc strings may hold anything. */
START_TEST(text_that_is_fine) {
    TEST_LANDING(&env);
    struct buf g = small_graph(),
               doc = pb_node(A, "Relu", "y", "\xc3\xa9/\xe2\x82\xac.\xf0\x9f\x98\x80");
    pb_bytes(&doc, 6, "\xff\x00\xfe", 3);
    pb_msg(&g, 1, doc);
    struct onnx_model *m = loaded(pb_model(A, g));
    ck_assert_str_eq(m->proto->graph->node[2]->output[0], "\xc3\xa9/\xe2\x82\xac.\xf0\x9f\x98\x80");
    ck_assert_uint_eq(m->proto->graph->node[2]->doc_string.len, 3);
    onnx_free(m);
}
END_TEST

/* A message in a message, `depth` deep below the root, field numbers in turn; built back to front.
 */
static struct buf nested(int depth, int nfields, const uint8_t *fields) {
    size_t cap = (size_t)depth * 6 + 16, at = cap, n = 0;
    uint8_t *all = arena_alloc(A, cap);
    for (int i = depth; i-- > 0;) {
        uint8_t head[8];
        size_t k = 0;
        head[k++] = (uint8_t)(fields[i < nfields - 1 ? i
                                     : nfields > 1   ? 1 + (i - 1) % (nfields - 1)
                                                     : 0]
                                  << 3 |
                              2);
        for (uint64_t v = n;; v >>= 7) {
            head[k++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
            if (v <= 0x7f) break;
        }
        at -= k;
        memcpy(all + at, head, k);
        n += k;
    }
    struct buf b = pb(A);
    buf_put(&b, all + at, n);
    return b;
}

START_TEST(nesting) {
    TEST_LANDING(&env);
    const uint8_t graph_in_graph[] = {7, 1, 5,
                                      6}; /* graph, then node, attribute, g over and over */
    const int depths[] = {65, 1000, 100000};
    for (int i = 0; i < 3; i++)
        refused(nested(depths[i], 4, graph_in_graph), ST_PARSE, "nested too deeply");
    struct wire_summary sum;
    const uint8_t sequence[] = {4, 1};
    for (int depth = 62; depth < 67; depth++) {
        uint8_t fields[67];
        for (int i = 0; i < depth; i++) fields[i] = sequence[i % 2];
        struct buf b = nested(depth, depth + 1, fields);
        enum status st = wire_scan(&env.ctx, "t", &onnx__type_proto__descriptor,
                                   (const uint8_t *)b.at, b.n, &sum);
        ck_assert_int_eq(st, depth <= WIRE_DEPTH_MAX ? ST_OK : ST_PARSE);
        if (st == ST_OK) ck_assert_uint_eq(sum.messages, (size_t)depth + 1);
    }
}
END_TEST

/* A million empty nodes in 2 MB would take some 250 MB. */
START_TEST(amplification) {
    TEST_LANDING(&env);
    struct buf g = pb(A);
    for (int i = 0; i < 1000000; i++) buf_put(&g, "\x0a\x00", 2);
    refused(pb_model(A, g), ST_PARSE, "would unpack to");
}
END_TEST

START_TEST(foreign_files) {
    TEST_LANDING(&env);
    static const struct {
        const char *bytes;
        int n;
        const char *text;
    } cases[] = {
        {"\x18\0\0\0ORTM\0\0\0\0", 12, ".ort"},
        {"PK\3\4aaaa", 8, "zip"},
        {"\x80\2}q\0.", 6, "pickle"},
        {"  {\"graph\": 1}", 14, "JSON"},
        {"<\n  ir_version: 7>", 18, "text"},
        {"ir_version: 8", 13, "text"},
        {"\x02\0\0\0\0\0\0\0{}   ", 13, "safetensors"},
        {"version https://git-lfs.github.com/spec/v1", 42, "git lfs pull"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = pb(A);
        buf_put(&b, cases[i].bytes, (size_t)cases[i].n);
        refused(b, ST_UNSUPPORTED, cases[i].text);
    }
    refused(pb(A), ST_PARSE, "empty");
}
END_TEST

START_TEST(versions) {
    TEST_LANDING(&env);
    struct buf b = pb(A);
    pb_msg(&b, 8, pb_opset(A, "", 17));
    pb_msg(&b, 7, small_graph());
    refused(b, ST_PARSE, "ir_version");
    b = pb(A);
    pb_int(&b, 1, 8);
    pb_msg(&b, 7, small_graph());
    refused(b, ST_PARSE, "does not import");
    b = pb(A);
    pb_int(&b, 1, 8);
    pb_msg(&b, 8, pb_opset(A, "", 17));
    refused(b, ST_PARSE, "no graph");
    b = pb_model(A, small_graph());
    pb_msg(&b, 8, pb_opset(A, "ai.onnx", 18));
    refused(b, ST_PARSE, "two versions");
    b = pb_model(A, small_graph());
    pb_msg(&b, 8, pb_opset(A, "ai.onnx", 17)); /* the same twice */
    pb_msg(&b, 8, pb_opset(A, "com.unused", 0));
    refused(b, ST_PARSE, "opset version 0");
    b = pb(A);
    pb_int(&b, 1, 99);
    pb_msg(&b, 8, pb_opset(A, "ai.onnx", 21));
    pb_msg(&b, 7, small_graph());
    struct onnx_model *m = loaded(b);
    ck_assert_int_eq(m->opset, 21);
    ck_assert(strstr(env.log, "warning: test.onnx: IR version 99") != NULL);
    onnx_free(m);
}
END_TEST

START_TEST(names) {
    TEST_LANDING(&env);
    struct buf relu = pb_node(A, "Relu", "x", "y");
    const int64_t two[] = {2};
    refused(pb_model(A, graph_of("y", 1, (struct buf[]){pb_node(A, "Relu", "nope", "y")})),
            ST_PARSE, "'nope' is used");
    refused(pb_model(A, graph_of("z", 1, &relu)), ST_PARSE, "'z' is used");
    refused(pb_model(A, graph_of("y", 2, (struct buf[]){relu, relu})), ST_PARSE, "defined twice");
    refused(pb_model(A, graph_of("x", 1, (struct buf[]){pb_node(A, "Relu", "x", "x")})), ST_PARSE,
            "defined twice");
    refused(pb_model(A, graph_of("y", 1, (struct buf[]){pb_node(A, "", "x", "y")})), ST_PARSE,
            "op_type");
    refused(pb_model(A, graph_of("x", 1, (struct buf[]){pb_node(A, "Relu", "", "")})), ST_PARSE,
            "neither inputs nor outputs");
    refused(pb_model(A, graph_of("-", 1, &relu)), ST_PARSE, "'-' is used");
    refused(pb_model(A, graph_of("", 1, &relu)), ST_PARSE, "no name");
    struct buf g = graph_of("y", 1, &relu);
    pb_msg(&g, 5, pb_tensor(A, "w", 1, 1, two));
    pb_msg(&g, 5, pb_tensor(A, "w", 1, 1, two));
    refused(pb_model(A, g), ST_PARSE, "defined twice");
    g = graph_of("y", 1, &relu);
    pb_msg(&g, 11, pb_value(A, "x", 1, 1, two));
    refused(pb_model(A, g), ST_PARSE, "defined twice");

    /* Absent inputs and outputs are no names; an initializer may be an input's default. */
    struct buf nodes[] = {pb_node(A, "Clip", "x - -", "y"), pb_node(A, "Dropout", "y", "z -"),
                          pb_node(A, "Dropout", "y", "u -")};
    g = graph_of("z", 3, nodes);
    pb_msg(&g, 5, pb_tensor(A, "x", 1, 1, two));
    struct onnx_model *m = loaded(pb_model(A, g));
    ck_assert_uint_eq(m->proto->graph->node[0]->n_input, 3);
    onnx_free(m);
}
END_TEST

START_TEST(order) {
    TEST_LANDING(&env);
    struct buf a = pb_node(A, "Relu", "x", "a"), b = pb_node(A, "Relu", "a", "b"),
               c = pb_node(A, "Add", "a b", "c");
    struct onnx_model *m = loaded(pb_model(A, graph_of("c", 3, (struct buf[]){c, b, a})));
    ck_assert(strstr(env.log, "warning:") && strstr(env.log, "sorted"));
    for (int i = 0; i < 3; i++) ck_assert_int_eq(m->proto->graph->node[i]->output[0][0], 'a' + i);
    onnx_free(m);
    m = loaded(pb_model(A, graph_of("c", 3, (struct buf[]){a, b, c})));
    ck_assert_str_eq(env.log, "");
    onnx_free(m);
    struct buf loop = pb_node(A, "Add", "x b", "a");
    refused(pb_model(A, graph_of("b", 2, (struct buf[]){loop, b})), ST_PARSE, "cycle");
    refused(pb_model(A, graph_of("a", 1, (struct buf[]){pb_node(A, "Add", "x a", "a")})), ST_PARSE,
            "cycle");
}
END_TEST

/* If whose branch is the given nodes with output `out`. */
static struct buf if_node(const char *out, int n, const struct buf *nodes) {
    struct buf node = pb_node(A, "If", "x", "r"), g = pb(A),
               attr = pb_attribute(A, "then_branch", 5);
    for (int i = 0; i < n; i++) pb_msg(&g, 1, nodes[i]);
    pb_str(&g, 2, "branch");
    pb_msg(&g, 12, pb_value(A, out, 1, 0, NULL));
    pb_msg(&attr, 6, g);
    pb_msg(&node, 5, attr);
    return node;
}

START_TEST(subgraphs) {
    TEST_LANDING(&env);
    struct buf inner = pb_node(A, "Relu", "a", "i"), a = pb_node(A, "Relu", "x", "a");
    struct buf branch = if_node("i", 1, &inner);
    struct onnx_model *m = loaded(pb_model(A, graph_of("r", 2, (struct buf[]){branch, a})));
    ck_assert_str_eq(m->proto->graph->node[0]->output[0], "a"); /* a capture is a use */
    onnx_free(m);
    refused(pb_model(A, graph_of("r", 1, &branch)), ST_PARSE, "'a' is used in branch");
    struct buf uses_r = pb_node(A, "Relu", "r", "i");
    refused(pb_model(A, graph_of("r", 1, (struct buf[]){if_node("i", 1, &uses_r)})), ST_PARSE,
            "cycle");
    struct buf shadow = pb_node(A, "Relu", "x", "a");
    refused(pb_model(A, graph_of("r", 2, (struct buf[]){a, if_node("a", 1, &shadow)})), ST_PARSE,
            "already defined");
    refused(pb_model(A, graph_of("i", 2, (struct buf[]){a, branch})), ST_PARSE, "'i' is used");
}
END_TEST

START_TEST(attributes) {
    TEST_LANDING(&env);
    struct buf attr, node;
    static const struct {
        int type, field;
        const char *text;
    } cases[] = {
        {0, 3, "unknown type 0"}, {99, 3, "unknown type 99"}, {1, 3, "another type"},
        {4, 0, "no value"},       {5, 0, "no value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attr = pb_attribute(A, "axis", cases[i].type);
        if (cases[i].field) pb_int(&attr, 3, 1);
        node = pb_node(A, "Softmax", "x", "y");
        pb_msg(&node, 5, attr);
        refused(pb_model(A, graph_of("y", 1, &node)), ST_PARSE, cases[i].text);
    }
    attr = pb_attribute(A, "axis", 2); /* a zero that the writer left out */
    node = pb_node(A, "Softmax", "x", "y");
    pb_msg(&node, 5, attr);
    struct onnx_model *m = loaded(pb_model(A, graph_of("y", 1, &node)));
    ck_assert_int_eq(m->proto->graph->node[0]->attribute[0]->i, 0);
    onnx_free(m);
    pb_msg(&node, 5, attr);
    refused(pb_model(A, graph_of("y", 1, &node)), ST_PARSE, "given twice");
    attr = pb_attribute(A, "axis", 2);
    pb_str(&attr, 21, "outer");
    node = pb_node(A, "Softmax", "x", "y");
    pb_msg(&node, 5, attr);
    refused(pb_model(A, graph_of("y", 1, &node)), ST_PARSE, "not in a function");

    attr = pb_attribute(A, "axis", 3); /* a default in its place would be another model */
    pb_str(&attr, 4, "last");
    node = pb_node(A, "Softmax", "x", "y");
    pb_msg(&node, 5, attr);
    refused(pb_model(A, graph_of("y", 1, &node)), ST_PARSE, "expected an integer");
    attr = pb_attribute(A, "mode", 3);
    pb_str(&attr, 4, "mirror");
    node = pb_node(A, "Pad", "x", "y");
    pb_msg(&node, 5, attr);
    refused(pb_model(A, graph_of("y", 1, &node)), ST_PARSE, "constant|reflect|edge|wrap");
}
END_TEST

static struct buf in_domain(struct buf node, const char *domain) {
    pb_str(&node, 7, domain);
    return node;
}

static struct buf function(const char *name, struct buf node) {
    struct buf f = pb(A);
    pb_str(&f, 1, name);
    pb_str(&f, 4, "x");
    pb_str(&f, 5, "r");
    pb_msg(&f, 7, node);
    pb_msg(&f, 9, pb_opset(A, "", 17));
    pb_msg(&f, 9, pb_opset(A, "my", 1));
    pb_str(&f, 10, "my");
    return f;
}

static struct buf call(const char *callee) {
    return in_domain(pb_node(A, callee, "x", "r"), "my");
}

static struct buf with_functions(int n, const struct buf *functions) {
    struct buf node = call("F0"), b = pb_model(A, graph_of("r", 1, &node));
    pb_msg(&b, 8, pb_opset(A, "my", 1));
    for (int i = 0; i < n; i++) pb_msg(&b, 25, functions[i]);
    return b;
}

START_TEST(functions) {
    TEST_LANDING(&env);
    struct buf relu = pb_node(A, "Relu", "x", "r"), chain[102];
    onnx_free(loaded(with_functions(1, (struct buf[]){function("F0", relu)})));
    refused(with_functions(1, (struct buf[]){function("F0", call("F0"))}), ST_PARSE,
            "calls itself");
    refused(with_functions(3, (struct buf[]){function("F0", call("F1")), function("F1", call("F2")),
                                             function("F2", call("F0"))}),
            ST_PARSE, "calls itself");
    struct buf inner = in_domain(pb_node(A, "F0", "x", "i"), "my");
    refused(with_functions(1, (struct buf[]){function("F0", if_node("i", 1, &inner))}), ST_PARSE,
            "calls itself");
    refused(with_functions(2, (struct buf[]){function("F0", relu), function("F0", relu)}), ST_PARSE,
            "defined twice");
    for (int i = 0; i < 102; i++) {
        char *name = arena_printf(A, "F%d", i), *next = arena_printf(A, "F%d", i + 1);
        chain[i] = function(name, i == 101 ? relu : call(next));
    }
    chain[99] = function("F99", relu);
    onnx_free(loaded(with_functions(100, chain)));
    chain[99] = function("F99", call("F100"));
    refused(with_functions(102, chain), ST_UNSUPPORTED, "deep");
}
END_TEST

/* The training graph sees the names of the inference graph and must not define them again. */
START_TEST(training_graphs) {
    TEST_LANDING(&env);
    struct buf relu = pb_node(A, "Relu", "x", "y"), training, graph, b;
    static const struct {
        const char *in, *out, *text;
    } cases[] = {{"y", "loss", NULL}, {"y", "y", "already defined"}, {"z", "loss", "'z' is used"}};
    for (int i = 0; i < 3; i++) {
        training = pb(A);
        graph = pb(A);
        b = pb_model(A, graph_of("y", 1, &relu));
        pb_msg(&graph, 1, pb_node(A, "ReduceMean", cases[i].in, cases[i].out));
        pb_msg(&training, 2, graph);
        pb_msg(&b, 20, training);
        if (cases[i].text) {
            refused(b, ST_PARSE, cases[i].text);
        } else {
            onnx_free(loaded(b));
        }
    }
}
END_TEST

START_TEST(dimensions) {
    TEST_LANDING(&env);
    struct buf relu = pb_node(A, "Relu", "x", "y"), g = graph_of("y", 1, &relu);
    pb_msg(&g, 11, pb_value(A, "u", 1, 1, (int64_t[]){-1}));
    struct onnx_model *m = loaded(pb_model(A, g));
    ck_assert(strstr(env.log, "taken as unknown") != NULL);
    ck_assert_int_eq(m->proto->graph->input[1]->type->tensor_type->shape->dim[0]->value_case, 0);
    onnx_free(m);
    g = graph_of("y", 1, &relu);
    pb_msg(&g, 11, pb_value(A, "u", 1, 1, (int64_t[]){-2}));
    refused(pb_model(A, g), ST_PARSE, "-2");
    g = graph_of("y", 1, &relu);
    pb_msg(&g, 11, pb_value(A, "u", 99, 0, NULL));
    refused(pb_model(A, g), ST_PARSE, "element type 99");
    struct buf untyped = pb(A);
    pb_str(&untyped, 1, "u");
    g = graph_of("y", 1, &relu);
    pb_msg(&g, 11, untyped);
    refused(pb_model(A, g), ST_PARSE, "no type");
}
END_TEST

/* Every refused allocation unwinds without a leak. */
static int allocations_left;
static void *scarce_alloc(void *user, size_t size) {
    (void)user;
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

START_TEST(out_of_memory) {
    TEST_LANDING(&env);
    struct buf b = pb_model(A, small_graph());
    void *(*before)(void *, size_t) = env.ctx.alloc;
    size_t in_use = env.ctx.bytes_in_use;
    jmp_buf here, *landing = env.ctx.landing;
    env.ctx.alloc = scarce_alloc;
    env.ctx.landing = &here;
    volatile int tries = 0;
    volatile bool done = false;
    while (!done) {
        allocations_left = tries++;
        if (setjmp(here)) {
            ck_assert_int_eq(env.ctx.unwound, ST_OUT_OF_MEMORY);
            ck_assert_uint_eq(env.ctx.bytes_in_use, in_use);
            continue;
        }
        struct onnx_model *m;
        ck_assert_int_eq(load(b, &m), ST_OK);
        onnx_free(m);
        done = true;
    }
    env.ctx.alloc = before;
    env.ctx.landing = landing;
    ck_assert_int_gt(tries, 2);
}
END_TEST

START_TEST(paths) {
    TEST_LANDING(&env);
    char dir[] = "/tmp/lathe-onnx-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(dir));
    struct buf b = pb_model(A, small_graph());
    struct onnx_model *m;
    char *one = arena_printf(A, "%s/one.onnx", dir), *two = arena_printf(A, "%s/two.onnx", dir);
    char *note = arena_printf(A, "%s/notes.txt", dir);
    ck_assert_int_eq(onnx_load(&env.ctx, dir, &m), ST_USAGE);
    ck_assert_int_eq(onnx_load(&env.ctx, one, &m), ST_IO);
    ck_assert_int_eq(sys_write_file(&env.ctx, one, b.at, b.n), ST_OK);
    ck_assert_int_eq(sys_write_file(&env.ctx, note, "x", 1), ST_OK);
    ck_assert_int_eq(onnx_load(&env.ctx, dir, &m), ST_OK);
    ck_assert_str_eq(m->path, one);
    ck_assert_str_eq(m->dir, dir);
    onnx_free(m);
    ck_assert_int_eq(sys_write_file(&env.ctx, two, "", 0), ST_OK);
    ck_assert_int_eq(onnx_load(&env.ctx, two, &m), ST_PARSE);
    env.log[0] = '\0';
    ck_assert_int_eq(onnx_load(&env.ctx, dir, &m), ST_USAGE);
    ck_assert(strstr(env.log, "one.onnx, two.onnx") != NULL);
    ck_assert_int_eq(sys_remove_tree(&env.ctx, dir), ST_OK);
}
END_TEST

static void setup(void) {
    test_begin(&env);
}

static void teardown(void) {
    test_end(&env);
}

int main(void) {
    Suite *s = suite_create("onnx");
    TCase *t = tcase_create("load");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, small_model);
    tcase_add_test(t, truncated_anywhere);
    tcase_add_test(t, any_bit_flipped);
    tcase_add_test(t, bad_wire);
    tcase_add_test(t, text_that_is_fine);
    tcase_add_test(t, nesting);
    tcase_add_test(t, amplification);
    tcase_add_test(t, foreign_files);
    tcase_add_test(t, versions);
    tcase_add_test(t, names);
    tcase_add_test(t, order);
    tcase_add_test(t, subgraphs);
    tcase_add_test(t, attributes);
    tcase_add_test(t, functions);
    tcase_add_test(t, training_graphs);
    tcase_add_test(t, dimensions);
    tcase_add_test(t, out_of_memory);
    tcase_add_test(t, paths);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
