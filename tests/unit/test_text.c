// SPDX-License-Identifier: Apache-2.0
/* test_text.c - the laws of the graph's text form, on a written example, on random graphs over most
 * ops, and on damaged text. */
#include "ir/quantize.h"
#include "test_util.h"

static const char *print(struct test_env *t, const struct graph *g, bool full, size_t *n) {
    struct text_options opt = {.full = full};
    struct buf b;
    buf_init(&b, &t->arena);
    graph_print(g, &opt, &b);
    if (n) *n = b.n;
    return b.at;
}

/* parse(print(g)) == g and print(parse(print(g))) is print(g). */
static void check_laws(struct test_env *t, const struct graph *g) {
    for (int full = 0; full < 2; full++) {
        size_t n;
        struct graph *h;
        const char *text = print(t, g, full, &n);
        enum status st = graph_parse(&t->ctx, text, n, "law", &h);
        ck_assert_msg(st == ST_OK, "%s\n%s", t->log, text);
        ck_assert_msg(graph_equal(g, h) && graph_equal(h, g), "not equal:\n%s", text);
        ck_assert_str_eq(print(t, h, full, NULL), text);
        ck_assert_int_eq(graph_verify(h, "parse"), ST_OK);
        graph_destroy(h);
    }
}

/* ---- a written example --------------------------------------------------------------------- */
static const char canonical[] =
    "graph @step {\n"
    "  %ids = input {name = \"input_ids\"} : i64[4,64]\n"
    "  %w = param {name = \"m.wte.weight\", init = hash 0x6c62272e07bb0142 bytes 65536} : "
    "f32[64,256]\n"
    "  %3 = const {init = f32 [0.5, 1.0, nan, -inf, 0x7fc00001, -0.0, 1e-45]} : f32[7] loc "
    "\"/h.0/Constant\"\n"
    "  %4 = const {init = bool [true, false, 0x02]} : bool[3]\n"
    "  %5 = const {init = i64 [-9223372036854775808, 9223372036854775807]} : i64[2]\n"
    "  %6 = const {init = bf16 [1.0, 0.00390625, 0xffc1]} : bf16[3]\n"
    "  %7 = const {init = f32 []} : f32[0]\n"
    "  %\"odd name \\\"\\\\\\n\\x01\" = input {name = \"s\"} : f32[batch,2*seq+1,256]\n"
    "  %ln.y, %ln/mean:0, %11 = layer_norm(%\"odd name \\\"\\\\\\n\\x01\") {axis = 2, eps = "
    "0.00001} "
    ": "
    "f32[batch,2*seq+1,256], f32[batch,2*seq+1,1], f32[batch,2*seq+1,1] loc \"/h.0/ln_1\"\n"
    "  %12 = gather(%w, %ids) {axis = 0} : f32[4,64,256]\n"
    "  %13 = reshape(%ln.y) {shape = [batch, 256, 2*seq+1]} : f32[batch,256,2*seq+1]\n"
    "  %14 = full {value = 0x7ff8000000000001} : f32[]\n"
    "  %15 = cast(%14) {dtype = i32} : i32[]\n"
    "  %w1 = mul(%w, %14) : f32[64,256]\n"
    "  output \"loss\" = %14\n"
    "  output \"\" = %12\n"
    "  update %w = %w1\n"
    "}\n";

START_TEST(test_canonical) {
    struct test_env t;
    struct graph *g;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(graph_parse(&t.ctx, canonical, sizeof canonical - 1, "x.lir", &g) == ST_OK, "%s",
                  t.log);
    ck_assert_str_eq(print(&t, g, false, NULL), canonical);
    ck_assert_uint_eq(graph_find(g, "ln/mean:0").i, 10);
    check_laws(&t, g);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* Free layout, numbers used as labels, comments; the printed form is the canonical one. */
START_TEST(test_relaxed) {
    static const char text[] = "; a comment\ngraph @\"my graph\"{%7=full{value=1}:f32[ 2 , b*2 ]"
                               "loc\"a;b\" ; another\n\n%0=neg(%7)\r\n : f32[2,2*b]\n"
                               "output\"y\"=%0 } ; end";
    struct test_env t;
    struct graph *g;
    struct text_options no_locs = {.no_locs = true};
    struct buf b;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(graph_parse(&t.ctx, text, sizeof text - 1, "x.lir", &g) == ST_OK, "%s", t.log);
    ck_assert_str_eq(print(&t, g, false, NULL),
                     "graph @\"my graph\" {\n"
                     "  %1 = full {value = 1.0} : f32[2,2*b] loc \"a;b\"\n"
                     "  %2 = neg(%1) : f32[2,2*b]\n"
                     "  output \"y\" = %2\n"
                     "}\n");
    buf_init(&b, &t.arena);
    graph_print(g, &no_locs, &b);
    ck_assert_ptr_null(strstr(b.at, "loc"));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(test_big_constant) {
    struct test_env t;
    float data[17];
    struct type type = {.dtype = DT_f32, .rank = 1, .dims = {17}};
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "big");
    for (int k = 0; k < 17; k++) data[k] = (float)k / 3.0f;
    struct attr init = {.key = ATTR_init, .blob = graph_blob(g, data, sizeof data, true)};
    graph_source(g, OP_const, &type, &init, 1, (str_id){0});
    ck_assert_ptr_nonnull(strstr(print(&t, g, false, NULL), "bytes 68"));
    ck_assert_ptr_nonnull(strstr(print(&t, g, true, NULL), "0.33333334, "));
    check_laws(&t, g);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(test_not_equal) {
    static const char base[] = "graph @g {\n  %x = input {name = \"x\"} : f32[n]\n"
                               "  %y = add(%x, %x) : f32[n] loc \"l\"\n  output \"o\" = %y\n}\n";
    static const char *const others[] = {
        "graph @h {\n  %x = input {name = \"x\"} : f32[n]\n"
        "  %y = add(%x, %x) : f32[n] loc \"l\"\n  output \"o\" = %y\n}\n",
        "graph @g {\n  %x = input {name = \"x\"} : f32[m]\n"
        "  %y = add(%x, %x) : f32[m] loc \"l\"\n  output \"o\" = %y\n}\n",
        "graph @g {\n  %x = input {name = \"x\", role = \"label\"} : f32[n]\n"
        "  %y = add(%x, %x) : f32[n] loc \"l\"\n  output \"o\" = %y\n}\n",
        "graph @g {\n  %x = input {name = \"x\"} : f32[n]\n"
        "  %y = sub(%x, %x) : f32[n] loc \"l\"\n  output \"o\" = %y\n}\n",
        "graph @g {\n  %x = input {name = \"x\"} : f32[n]\n"
        "  %y = add(%x, %x) : f32[n] loc \"k\"\n  output \"o\" = %y\n}\n",
        "graph @g {\n  %x = input {name = \"x\"} : f32[n]\n"
        "  %z = add(%x, %x) : f32[n] loc \"l\"\n  output \"o\" = %z\n}\n",
        "graph @g {\n  %x = input {name = \"x\"} : f32[n]\n"
        "  %y = add(%x, %x) : f32[n] loc \"l\"\n  output \"o\" = %x\n}\n",
        "graph @g {\n  %x = input {name = \"x\"} : f32[n]\n"
        "  %y = add(%x, %x) : f32[n] loc \"l\"\n}\n",
    };
    struct test_env t;
    struct graph *a, *b;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_int_eq(graph_parse(&t.ctx, base, sizeof base - 1, "a", &a), ST_OK);
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        ck_assert_int_eq(graph_parse(&t.ctx, others[k], strlen(others[k]), "b", &b), ST_OK);
        ck_assert_msg(!graph_equal(a, b), "other %zu", k);
        graph_destroy(b);
    }
    graph_destroy(a);
    test_end(&t);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------ */
static const struct {
    const char *body, *message;
} bad[] = {
    {"", "bad:1:11: expected a value such as %x, found the end of the text"},
    {"}x", "bad:1:12: expected the end of the text, found 'x'"},
    {"\n  %x = neg(%x) : f32[2] }", "bad:2:12: %x is not defined before this use"},
    {"%x = full : f32[2]\n%x = full : f32[2] }", "bad:2:1: %x is defined twice"},
    {"%1 = full : f32[2]\n%1 = full : f32[2] }", "bad:2:1: %1 is defined twice"},
    {"%a, %a = max_pool(%a) : f32[2] }", "bad:1:15: %a is defined twice"},
    {"%x = banana : f32[2] }", "bad:1:16: expected the name of an op, found 'banana'"},
    {"%x, %y = full : f32[2] }", "full has 1 results, found 2"},
    {"%x = full : f32[2], f32[2] }", "more types than the 1 results"},
    {"%x = full\n%a, %b = rms_norm(%x) {axis=0, eps=0.1} : f32[2] }", "expected ':'"},
    {"%x = full : f32[2]\n%a, %b = rms_norm(%x) {axis=0, eps=0.1} : f32[2] }", "1 types for 2"},
    {"%x = full : f32[2]\n%y = neg(%x) : f32[3] }",
     "bad:2:16: result 0 is declared f32[3], the op gives f32[2]"},
    {"%x = full : f32[2]\n%y = add(%x, ) : f32[3] }", "expected a value such as %x, found ')'"},
    {"%x = full : f32[2]\n%y = add(%x) : f32[3] }", "bad:2:6: add takes 2"},
    {"%x = full {banana = 1} : f32[2] }", "expected an attribute of full, found 'banana'"},
    {"%x = full {axis = 1} : f32[2] }", "expected an attribute of full, found 'axis'"},
    {"%x = full {value = 1, value = 1} : f32[2] }", "'value' is given twice"},
    {"%x = full {value = \"1\"} : f32[2] }", "expected a number, found a string"},
    {"%x = full {value = 1.5.2} : f32[2] }", "'1.5..' is no number"},
    {"%x = full {value = 1x} : f32[2] }", "'1..' is no number"},
    {"%x = full {value = 99999999999999999999} : f32[2] }", "does not fit 64 bits"},
    {"%x = full {value = 0x} : f32[2] }", "expected 1 to 16 digits after 0x"},
    {"%x = full {} : f32[2] }", "expected an attribute of full, found '}'"},
    {"%x = full : f31[2] }", "unknown element type 'f31'"},
    {"%x = full : f32[2,] }", "expected a size"},
    {"%x = full : f32[-2] }", "a dimension of f32[-2] is negative"},
    {"%x = full : f32[1-2] }", "is negative"},
    {"%x = full : f32[n n] }", "'n n' is no size"},
    {"%x = full : f32[9999999999999999999] }", "is no size"},
    {"%x = full : f32[999999999999999] }", "a dimension would be larger"},
    {"%x = full : f32[99999999999,99999999999] }", "is too large"},
    {"%x = full : f32[((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))] }",
     "is no size"},
    {"%x = full : f32[1,1,1,1,1,1,1,1,1,1,1,1,1] }", "more than 12 sizes"},
    {"%x = full : f32[2] loc 3 }", "expected a string, found '3'"},
    {"%x = full : f32[2] loc \"a }", "a string does not end on its line"},
    {"%x = full : f32[2] loc \"\\x00\" }", "in a string"},
    {"%x = full : f32[2] loc \"\\q\" }", "in a string"},
    {"%\"\" = full : f32[2] }", "a value's name is empty"},
    {"%99999999999999999999999999999 = full : f32[2] }", "is too large"},
    {"% = full : f32[2] }", "expected a name after '%'"},
    {"%x = const {init = f32 [1.0, 2.0]} : f32[3] }", "needs 12 bytes, its value has 8"},
    {"%x = const {init = i8 [128]} : i8[1] }", "128 does not fit i8"},
    {"%x = const {init = u8 [-1]} : u8[1] }", "-1 does not fit u8"},
    {"%x = const {init = f16 [0x10000]} : f16[1] }", "f16 has 2 bytes, found 0x10000"},
    {"%x = const {init = bool [1]} : bool[1] }", "expected true or false"},
    {"%x = const {init = i64 [1.5]} : i64[1] }", "expected an integer, found '1.5'"},
    {"%x = const {init = hash 7 bytes 4} : f32[1] }", "expected a hash"},
    {"%x = const {init = hash 0x7 bytes -4} : f32[1] }", "expected a number from 0"},
    {"%x = const {init = hash 0x7 bytes 9223372036854775807} : f32[1] }", "expected a number from"},
    {"%x = full : f32[2]\noutput \"a\" = %x\noutput \"a\" = %x }", "\"a\" is given twice"},
    {"%x = full : f32[2]\nupdate %x = %x }", "bad:2:8: %x is no param or state"},
    {"%x = state {name = \"x\"} : f32[2]\nupdate %x = %x\nupdate %x = %x }", "updated twice"},
    {"%x = state {name = \"x\"} : f32[2]\n%y = full : f32[3]\nupdate %x = %y }", "another type"},
    {"%x = full : f32[2] # }", "bad:1:30: unexpected character '#'"},
    {"\x80 }", "unexpected byte 0x80"},
};

START_TEST(test_bad) {
    struct test_env t;
    struct graph *g;
    test_begin(&t);
    TEST_LANDING(&t);
    const char *text = arena_printf(&t.arena, "graph @g {%s", bad[_i].body);
    ck_assert_msg(graph_parse(&t.ctx, text, strlen(text), "bad", &g) != ST_OK, "accepted: %s",
                  text);
    ck_assert_ptr_null(g);
    ck_assert_msg(strstr(t.log, bad[_i].message) != NULL, "%s\n-> %s", text, t.log);
    ck_assert_msg(strncmp(t.log, "error: bad:", 11) == 0, "no place: %s", t.log);
    ck_assert_uint_eq(t.ctx.errors, 1);
    test_end(&t);
}
END_TEST

/* ---- random graphs ------------------------------------------------------------------------- */
struct rng {
    uint64_t s;
};
static uint32_t rnd(struct rng *r, uint32_t n) { /* splitmix64; below n */
    uint64_t z = (r->s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}

static const char *const odd_names[] = {"x",        "h.0/ln:1", "a b",   "7",  "-",    "\"q\\",
                                        "\xc3\xbc", "tab\t",    "graph", "$a", "_.-/", "\x7f\x01"};
enum { ODD_NAMES = sizeof odd_names / sizeof *odd_names };

static dim random_dim(struct graph *g, struct rng *r) {
    dim n = dim_symbol(g->dims, "N"), s = dim_symbol(g->dims, "a b");
    switch (rnd(r, 12)) {
    case 0: return n;
    case 1: return dim_add(g->dims, dim_mul(g->dims, n, 2), 1);
    case 2: return dim_mul(g->dims, n, s);
    case 3: return 1;
    case 4: return rnd(r, 10) ? 1 : 0;
    default: return 1 + rnd(r, 4);
    }
}

static void random_type(struct graph *g, struct rng *r, bool fixed, struct type *t) {
    static const int likely[] = {4, 2, 2, 3, 4, 1, 0, 3, 2, 4};
    *t = type_scalar(rnd(r, 3) ? DT_f32 : (enum dtype)(1 + rnd(r, DT_COUNT - 1)));
    t->rank = likely[rnd(r, 10)];
    for (int k = 0; k < t->rank; k++) {
        do t->dims[k] = random_dim(g, r);
        while (fixed && !dim_known(t->dims[k]));
    }
}

static blob_id random_blob(struct graph *g, struct rng *r, const struct type *t) {
    size_t n = (size_t)type_bytes(t);
    if (rnd(r, 8) == 0) return graph_blob_by_hash(g, n, 1 + (uint64_t)rnd(r, 1u << 31));
    unsigned char *p = arena_alloc(&g->arena, n);
    for (size_t k = 0; k < n; k++) p[k] = (unsigned char)rnd(r, 256);
    return graph_blob(g, p, n, true);
}

/* A plausible value of attribute k for an op on operand type `t`; usually legal for some op. */
static struct attr random_attr(struct graph *g, struct rng *r, enum attr_key k,
                               const struct type *t) {
    static const double floats[] = {0.0, 1.0, 0.5, 1e-5, 0.1, -0.0, 3.0000000000000004, 1e300};
    int64_t *list = arena_alloc(&g->arena, 32 * sizeof *list);
    int spatial = t->rank > 2 ? t->rank - 2 : 0;
    struct attr a = {.key = k, .list = list};
    a.i = attr_kind(k) == AK_DTYPE ? 1 + rnd(r, DT_COUNT - 1) : rnd(r, 2);
    a.f = floats[rnd(r, 8)];
    a.s = k == ATTR_role ? "data" : odd_names[rnd(r, ODD_NAMES)];
    switch (k) {
    case ATTR_axis: a.i = t->rank ? rnd(r, (uint32_t)t->rank) : 0; break;
    case ATTR_groups: a.i = 1 + rnd(r, 2); break;
    case ATTR_axes:
        for (int i = 0; i < t->rank; i++)
            if (rnd(r, 2)) list[a.n++] = i;
        break;
    case ATTR_perm:
    case ATTR_shape:
        for (a.n = t->rank; a.i < a.n; a.i++) list[a.i] = a.i;
        for (int i = 0; i < a.n; i++) list[i] = i;
        for (int i = a.n; i > 1; i--) {
            int j = (int)rnd(r, (uint32_t)i);
            int64_t keep = list[i - 1];
            list[i - 1] = list[j], list[j] = keep;
        }
        if (k == ATTR_perm) break;
        for (int i = 0; i < a.n; i++) list[i] = t->dims[rnd(r, 3) ? i : list[i]];
        break;
    case ATTR_strides:
    case ATTR_dilations:
    case ATTR_kernel:
        for (a.n = 0; a.n < spatial; a.n++) list[a.n] = 1 + rnd(r, k == ATTR_kernel ? 3 : 2);
        break;
    case ATTR_pads:
        for (a.n = 0; a.n < 2 * spatial; a.n++) list[a.n] = rnd(r, 2);
        break;
    case ATTR_steps:
        for (a.n = 0; a.n < t->rank; a.n++) list[a.n] = 1;
        break;
    default: /* starts, low, high, interior */
        for (a.n = 0; a.n < t->rank; a.n++) list[a.n] = k == ATTR_starts ? 0 : rnd(r, 3);
    }
    return a;
}

static val_id random_value(struct graph *g, struct rng *r) {
    return (val_id){1 + rnd(r, g->values.n - 1)};
}

/* A value like `want`, if a few draws find one. */
static val_id value_like(struct graph *g, struct rng *r, const struct type *want) {
    val_id v = random_value(g, r);
    for (int k = 0; k < 12 && !type_equal(val_type(g, v), want); k++) v = random_value(g, r);
    return v;
}

static bool add_random(struct graph *g, struct rng *r, enum op op) {
    const struct op_info *info = op_info(op);
    struct attr attrs[ATTR_COUNT];
    const struct op_attr *takes;
    struct type t;
    val_id in[16], out;
    const char *origin = rnd(r, 2) ? "" : odd_names[rnd(r, ODD_NAMES)];
    int n = 0, nin = 0, ntakes = op_attrs(g, op, &takes);
    if (info->traits & SOURCE) {
        random_type(g, r, op == OP_const || op == OP_param || op == OP_state, &t);
    } else {
        nin = info->max_in == OP_ANY
                  ? 1 + (int)rnd(r, 5)
                  : info->min_in + (int)rnd(r, (uint32_t)(info->max_in - info->min_in + 1));
        in[0] = random_value(g, r);
        t = *val_type(g, in[0]);
        for (int k = 1; k < nin; k++) in[k] = rnd(r, 3) ? value_like(g, r, &t) : random_value(g, r);
    }
    for (int k = 0; k < ntakes; k++) {
        if (!takes[k].required && rnd(r, 2)) continue;
        attrs[n] = random_attr(g, r, takes[k].value.key, &t);
        if (attr_kind(attrs[n].key) == AK_BLOB) attrs[n].blob = random_blob(g, r, &t);
        if (attrs[n].key == ATTR_role && op == OP_state) attrs[n].s = "optimizer";
        n++;
    }
    enum status st = info->traits & SOURCE ? graph_try_source(g, op, &t, attrs, n, origin, &out)
                                           : graph_try_add(g, op, in, nin, attrs, n, origin, &out);
    if (st != ST_OK) return false;
    for (int k = 0; k < info->outs; k++)
        if (rnd(r, 2)) graph_set_name(g, val_at(out, k), odd_names[rnd(r, ODD_NAMES)]);
    return true;
}

static void drop(void *user, enum severity sev, enum status code, const char *origin,
                 const char *message) {
    (void)user, (void)sev, (void)code, (void)origin, (void)message;
}

/* Ops on 8-bit floats. */
static void add_small(struct graph *g) {
    enum { N = 200 };
    struct type w = {.dtype = DT_f32, .rank = 1, .dims = {N}}, codes = w, amax = w, k = w;
    codes.dtype = DT_e4m3, amax.dims[0] = k.dims[0] = 2, k.dtype = DT_u8;
    struct type lr = type_scalar(DT_f32), step = type_scalar(DT_i64);
    const struct type types[] = {w, w, codes, amax, k, codes, amax, k, lr, step};
    val_id v[10], out, q;
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(graph_try_source(g, OP_full, &types[i], NULL, 0, "", &v[i]), ST_OK);
    ck_assert_int_eq(graph_try_add(g, OP_adam8, v, 10, NULL, 0, "", &out), ST_OK);
    const int64_t group[] = {1, 16};
    struct attr a[] = {{.key = ATTR_format, .i = DT_e5m2},
                       {.key = ATTR_tile, .list = group, .n = 2}};
    ck_assert_int_eq(graph_try_add(g, OP_quantize, v, 1, a, 2, "", &q), ST_OK);
    ck_assert_int_eq(
        graph_try_add(g, OP_dequantize, (val_id[]){q, val_at(q, 1)}, 2, a + 1, 1, "", &out), ST_OK);
    a[1].n = 0;
    ck_assert_int_eq(graph_try_add(g, OP_quantize, v, 1, a, 2, "", &q), ST_OK);
    const dim rows[] = {2, N / 2};
    q = build_reshape(g, v[2], rows, 2, (str_id){0});
    val_id scale = build_scalar(g, DT_f32, 2, (str_id){0});
    (void)build_scaled_matmul(g, q, q, scale, scale, DT_f32, (str_id){0});
}

/* Ops whose operands are too particular to be hit by chance. */
static void add_particular(struct graph *g, struct rng *r) {
    dim b = random_dim(g, r), n = random_dim(g, r);
    if (b == 0) b = 1;
    if (n == 0) n = 1;
    struct type q = {.dtype = DT_f32, .rank = 4, .dims = {b, 4, n, 8}};
    struct type x = {.dtype = DT_f32, .rank = 4, .dims = {b, 4, 6, 9}};
    struct type w = {.dtype = DT_f32, .rank = 4, .dims = {6, 2, 3, 2}};
    struct type l = {.dtype = DT_f32, .rank = 2, .dims = {b, n}};
    struct type i = {.dtype = DT_i64, .rank = 1, .dims = {b}}, lr = type_scalar(DT_f32);
    struct type step = type_scalar(DT_i64), flag = {.dtype = DT_bool, .rank = 1, .dims = {n}};
    const struct type types[] = {q, x, w, l, i, lr, step, flag};
    val_id v[8], out;
    for (int k = 0; k < 8; k++)
        ck_assert_int_eq(graph_try_source(g, OP_full, &types[k], NULL, 0, "", &v[k]), ST_OK);
    const int64_t one[] = {1, 1, 1, 1};
    struct attr scale = {.key = ATTR_scale, .f = 0.125 + rnd(r, 3)};
    struct attr win[5] = {{.key = ATTR_strides, .list = one, .n = 2},
                          {.key = ATTR_pads, .list = one, .n = 4},
                          {.key = ATTR_dilations, .list = one, .n = 2},
                          {.key = ATTR_groups, .i = 2},
                          {.key = ATTR_shape}};
    val_id att[] = {v[0], v[0], v[0], VAL_NONE, VAL_NONE, VAL_NONE};
    ck_assert_int_eq(graph_try_add(g, OP_attention, att, 3, &scale, 1, "", &out), ST_OK);
    att[3] = att[5] = out;
    att[4] = val_at(out, 1);
    ck_assert_int_eq(graph_try_add(g, OP_attention_grad, att, 6, &scale, 1, "", &out), ST_OK);
    val_id conv[] = {v[1], v[2]}, grad;
    ck_assert_int_eq(graph_try_add(g, OP_conv, conv, 2, win, 4, "", &out), ST_OK);
    win[4].list = x.dims, win[4].n = 4;
    ck_assert_int_eq(
        graph_try_add(g, OP_conv_input_grad, (val_id[]){out, v[2]}, 2, win, 5, "", &grad), ST_OK);
    win[4].list = w.dims;
    ck_assert_int_eq(
        graph_try_add(g, OP_conv_weight_grad, (val_id[]){v[1], out}, 2, win, 5, "", &grad), ST_OK);
    ck_assert_int_eq(
        graph_try_add(g, OP_cross_entropy, (val_id[]){v[3], v[4]}, 2, NULL, 0, "", &out), ST_OK);
    val_id opt[] = {v[3], v[3], v[3], v[3], v[5], v[6]};
    struct attr momentum = {.key = ATTR_momentum, .f = 0.9};
    ck_assert_int_eq(graph_try_add(g, OP_adam, opt, 6, NULL, 0, "", &out), ST_OK);
    ck_assert_int_eq(graph_try_add(g, OP_sgd, opt + 1, 5, &momentum, 1, "", &out), ST_OK);
    ck_assert_int_eq(graph_try_add(g, OP_where, (val_id[]){v[7], v[3], v[5]}, 3, NULL, 0, "", &out),
                     ST_OK);
    struct attr shape = {.key = ATTR_shape, .list = q.dims, .n = 4};
    ck_assert_int_eq(graph_try_add(g, OP_random, &v[6], 1, &shape, 1, "", &out), ST_OK);
    ck_assert_int_eq(graph_try_add(g, OP_not, &v[7], 1, NULL, 0, "", &out), ST_OK);
    struct attr rows[] = {{.key = ATTR_axis}, {.key = ATTR_shape, .list = one, .n = 1}};
    struct type u = {.dtype = DT_f32, .rank = 1, .dims = {b}};
    ck_assert_int_eq(graph_try_source(g, OP_full, &u, NULL, 0, "", &grad), ST_OK);
    ck_assert_int_eq(
        graph_try_add(g, OP_scatter_rows, (val_id[]){v[4], grad}, 2, rows, 2, "", &out), ST_OK);
    ck_assert_int_eq(
        graph_try_add(g, OP_gather_elements, (val_id[]){grad, v[4]}, 2, rows, 1, "", &out), ST_OK);
    ck_assert_int_eq(
        graph_try_add(g, OP_scatter_elements, (val_id[]){grad, v[4], grad}, 3, rows, 1, "", &out),
        ST_OK);
    add_small(g);
}

static struct graph *random_graph(struct test_env *t, struct rng *r, bool *seen) {
    struct graph *g = graph_create(&t->ctx, odd_names[rnd(r, ODD_NAMES)]);
    t->ctx.report = drop;
    for (int k = 0; k < 6; k++) {
        struct type type;
        val_id v;
        random_type(g, r, false, &type);
        ck_assert_int_eq(graph_try_source(g, OP_full, &type, NULL, 0, "", &v), ST_OK);
    }
    if (rnd(r, 4) == 0) add_particular(g, r);
    for (int k = 0; k < 500 && g->nodes.n < 60; k++)
        add_random(g, r, (enum op)(1 + rnd(r, OP_COUNT - 1)));
    for (int k = 0; k < 3; k++) {
        char name[32];
        snprintf(name, sizeof name, "out \"%d\"", k);
        graph_add_output(g, name, random_value(g, r));
    }
    for (uint32_t v = 1; v < g->values.n; v++)
        if (val_op(g, (val_id){v}) == OP_state || val_op(g, (val_id){v}) == OP_param)
            graph_add_update(g, (val_id){v}, value_like(g, r, val_type(g, (val_id){v})));
    for (uint32_t k = 0; k < g->updates.n;) { /* keep those that fit */
        struct graph_update u = g->updates.at[k];
        if (g->values.at[u.target.i].type.i == g->values.at[u.next.i].type.i)
            k++;
        else
            g->updates.at[k] = g->updates.at[--g->updates.n];
    }
    for (uint32_t n = 1; n < g->nodes.n; n++) seen[g->nodes.at[n].op] = true;
    t->ctx.report = test_report;
    t->ctx.errors = 0;
    return g;
}

static void laws_of_seed(uint64_t seed, bool *seen) {
    struct test_env t;
    struct rng r = {seed};
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = random_graph(&t, &r, seen);
    check_laws(&t, g);
    graph_settle(g);
    check_laws(&t, g);
    graph_destroy(g);
    test_end(&t);
}

START_TEST(test_random_graphs) {
    bool seen[OP_COUNT] = {false};
    for (uint64_t seed = 0; seed < 300; seed++) laws_of_seed(seed, seen);
    for (int op = 1; op < OP_COUNT; op++)
        ck_assert_msg(seen[op], "never drawn: %s", op_info((enum op)op)->name);
}
END_TEST

/* ---- damaged text -------------------------------------------------------------------------- */
static void damage(struct rng *r, char *text, size_t *n, size_t cap) {
    static const char spice[] = "%@\"[]{}(),:=*+-0123456789eExnf;\\ \n\0\x80";
    for (uint32_t k = 1 + rnd(r, 4); k > 0 && *n > 2; k--) {
        size_t at = rnd(r, (uint32_t)*n), len = 1 + rnd(r, 12), from = rnd(r, (uint32_t)*n);
        switch (rnd(r, 4)) {
        case 0: text[at] = spice[rnd(r, sizeof spice - 1)]; break;
        case 1: /* cut */
            if (at + len > *n) len = *n - at;
            memmove(text + at, text + at + len, *n - at - len);
            *n -= len;
            break;
        case 2: /* repeat a piece elsewhere */
            if (from + len > *n || *n + len > cap) break;
            memmove(text + at + len, text + at, *n - at);
            memmove(text + at, text + (from < at ? from : from + len > *n ? 0 : from), len);
            *n += len;
            break;
        default: /* one more digit */
            if (*n + 1 > cap) break;
            memmove(text + at + 1, text + at, *n - at);
            text[at] = (char)('0' + rnd(r, 10));
            *n += 1;
        }
    }
}

/* Exactly one diagnostic with a place, or a graph that keeps the laws. */
static void check_damaged(struct test_env *t, const char *text, size_t n) {
    struct graph *h;
    char *exact = malloc(n + !n); /* so that a sanitizer sees reads past the end */
    ck_assert_ptr_nonnull(exact);
    memcpy(exact, text, n);
    t->log[0] = '\0';
    t->ctx.errors = 0;
    enum status st = graph_parse(&t->ctx, exact, n, "f", &h);
    free(exact);
    ck_assert_uint_eq(t->ctx.errors, st != ST_OK);
    if (st == ST_OK)
        check_laws(t, h);
    else
        ck_assert_msg(strncmp(t->log, "error: f:", 9) == 0, "%s", t->log);
    graph_destroy(h);
}

static void damage_of_seed(uint64_t seed) {
    enum { CAP = 1 << 16 };
    static char text[CAP];
    struct test_env t;
    struct rng r = {seed + 1000};
    bool seen[OP_COUNT];
    test_begin(&t);
    TEST_LANDING(&t);
    size_t whole = sizeof canonical - 1;
    struct graph *g = random_graph(&t, &r, seen);
    const char *good = seed ? print(&t, g, true, &whole) : canonical;
    if (whole > CAP / 2) whole = CAP / 2;
    for (int k = 0; k < 400; k++) {
        size_t n = whole;
        memcpy(text, good, n);
        damage(&r, text, &n, CAP);
        check_damaged(&t, text, n);
    }
    graph_destroy(g);
    test_end(&t);
}

START_TEST(test_damaged) {
    for (uint64_t seed = 0; seed < 20; seed++) damage_of_seed(seed);
}
END_TEST

/* Refused memory unwinds to the caller's landing with everything given back. */
static void *scarce(void *user, size_t size) {
    return --*(int *)user < 0 ? NULL : malloc(size);
}
static void give(void *user, void *p) {
    (void)user;
    free(p);
}

/* Whether `budget` allocations are enough. */
static bool parse_within(int budget) {
    struct test_env t;
    struct graph *volatile g = NULL;
    struct graph *h;
    jmp_buf here;
    test_begin(&t);
    t.ctx.alloc = scarce;
    t.ctx.release = give;
    t.ctx.alloc_user = &budget;
    t.ctx.landing = &here;
    if (setjmp(here) == 0) {
        ck_assert_int_eq(graph_parse(&t.ctx, canonical, sizeof canonical - 1, "x", &h), ST_OK);
        g = h;
    }
    ck_assert_ptr_eq(t.ctx.landing, &here);
    bool done = g != NULL;
    graph_destroy(g);
    test_end(&t);
    return done;
}

START_TEST(test_out_of_memory) {
    int budget = 0;
    while (!parse_within(budget)) budget++;
    ck_assert_int_gt(budget, 1);
}
END_TEST

int main(void) {
    Suite *s = suite_create("text");
    TCase *c = tcase_create("text");
    tcase_set_timeout(c, 240);
    tcase_add_test(c, test_canonical);
    tcase_add_test(c, test_relaxed);
    tcase_add_test(c, test_big_constant);
    tcase_add_test(c, test_not_equal);
    tcase_add_loop_test(c, test_bad, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(c, test_random_graphs);
    tcase_add_test(c, test_damaged);
    tcase_add_test(c, test_out_of_memory);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
