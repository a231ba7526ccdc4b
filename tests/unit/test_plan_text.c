// SPDX-License-Identifier: Apache-2.0
/* test_plan_text.c - the laws of the plan's text form, on a written example, on a plan built by
 * hand, on random plans and on damaged text. Whether a plan makes sense is not asked here. */
#include "ir/plan.h"
#include "test_util.h"

static const char *print(struct test_env *t, const struct plan *p, size_t *n) {
    struct buf b;
    buf_init(&b, &t->arena);
    plan_print(p, &b);
    if (n) *n = b.n;
    return b.at;
}

/* parse(print(p)) == p and print(parse(print(p))) is print(p). */
static void check_laws(struct test_env *t, const struct plan *p) {
    size_t n;
    struct plan *q;
    const char *text = print(t, p, &n);
    enum status st = plan_parse(&t->ctx, text, n, "law", &q);
    ck_assert_msg(st == ST_OK, "%s\n%s", t->log, text);
    ck_assert_msg(plan_equal(p, q) && plan_equal(q, p) && plan_equal(p, p), "not equal:\n%s", text);
    ck_assert_str_eq(print(t, q, NULL), text);
    plan_destroy(q);
}

/* ---- a written example --------------------------------------------------------------------- */
static const char canonical[] =
    "plan @step {\n"
    "  threads 4\n"
    "  first_update 2\n"
    "  arena persistent 66048\n"
    "  arena io 1024\n"
    "  arena step 8192\n"
    "  buffer %1 \"h.0.w\" param weights f32[64,256] at 0 bytes 65536 init hash 0x6c62272e07bb0142 "
    "bytes 65536\n"
    "  buffer %2 \"m \\\"w\\\"\" state optimizer f32[64,1] at 65536 bytes 256 role \"stat\" frozen "
    "fill -0.5\n"
    "  buffer %3 const constants f64[3] at 65792 bytes 24 init [0.5, nan, 0x7ff8000000000001]\n"
    "  buffer %4 \"x\" input io f16[4,64] at 0 bytes 512 role \"data\"\n"
    "  buffer %5 \"loss\" output io f32[] at 512 bytes 4 live 1 to 2\n"
    "  buffer %6 temp activations f32[4,256] at 0 bytes 4096 live 0 to 2\n"
    "  buffer %7 temp gradients bf16[1024] at 0 bytes 2048 alias %6 live 1 to 1\n"
    "  buffer %8 workspace workspace u8[4096] at 4096 bytes 4096 live 0 to 0\n"
    "  buffer %9 const constants bool[0] at 65920 bytes 0 init []\n"
    "  group 1 row [2,4 | 256] {\n"
    "    %0 = load 0 : f32\n"
    "    %1 = const 0.1 : f32 row\n"
    "    %2 = const -7 : i64 row\n"
    "    %3 = const true : bool row\n"
    "    %4 = iota axis 1 start 1.0 step -0.5 : f64 row\n"
    "    %5 = random 1 stream -9223372036854775808 : f32\n"
    "    %6 = gelu %0 approximate : f32\n"
    "    %7 = mod %6 %5 : f32\n"
    "    %8 = cast %4 to bf16 : f32 row\n"
    "    %9 = where %3 %7 %8 : f32\n"
    "    %10 = row_sum %9 : f32 row\n"
    "    %11 = max %10 %1 : f32 row\n"
    "    store 0 %9 : f32\n"
    "    store 1 %11 : f32 row\n"
    "    col_sum 2 %9 : f32\n"
    "    %15 = row_max %9 : f32 row\n"
    "  }\n"
    "  group 2 map [| 64] {\n"
    "    %0 = load 0 : f32\n"
    "    store 0 %0 : f32\n"
    "  }\n"
    "  group 3 tail [|] {\n"
    "  }\n"
    "  launch 0 matmul (%4 f16[4,64], %1 f32[64,256] strides [1,64] + 12) -> (%6 f32[4,256]) "
    "{scale = 0.5, add = true} workspace %8 flops 131072 read 66048 write 4096 loc \"/h.0/ln; b\"\n"
    "  launch 1 group 1 (%6 f32[2,4,256] strides [0,-256,1] + -3) -> (%7 bf16[256], %5 f32[])\n"
    "  launch 2 conv () -> () {strides = [1, 2], pads = [], groups = 1} flops 0.5 read 0 write "
    "inf\n"
    "}\n";

START_TEST(test_canonical) {
    struct test_env t;
    struct plan *p;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(plan_parse(&t.ctx, canonical, sizeof canonical - 1, "x.plan", &p) == ST_OK, "%s",
                  t.log);
    ck_assert_str_eq(print(&t, p, NULL), canonical);
    const struct plan_buffer *b = p->buffers.at;
    ck_assert_uint_eq(plan_find(p, BUF_PARAM, "h.0.w").i, 1);
    ck_assert_ptr_null(b[1].init.data);
    ck_assert_uint_eq(b[1].init.bytes, 65536);
    ck_assert(b[2].frozen && b[2].fill == -0.5);
    ck_assert(((const double *)b[3].init.data)[0] == 0.5);
    ck_assert_uint_eq(b[1].first, 0);
    ck_assert_uint_eq(b[1].last, 2);
    ck_assert_uint_eq(b[7].alias.i, 6);
    ck_assert_int_eq(p->groups.at[1].inner, 1);
    ck_assert_int_eq(p->groups.at[1].code.at[2].imm_int, -7);
    ck_assert_int_eq(p->launches.at[0].in[1].offset, 12);
    ck_assert_int_eq(p->launches.at[0].in[0].strides[0], 64);
    ck_assert(launch_float(&p->launches.at[0], ATTR_scale, 1) == 0.5);
    ck_assert_int_eq(launch_int(&p->launches.at[0], ATTR_add, 0), 1);
    check_laws(&t, p);
    plan_destroy(p);
    test_end(&t);
}
END_TEST

/* Free layout and order; attributes are sorted. */
START_TEST(test_relaxed) {
    static const char text[] = "; c\nplan @\"a b\"{threads 0x2 first_update 1 arena persistent 0 "
                               "arena io 0 arena step 64\n"
                               "group 1 map[|2]{%0=load 0:f32 store 0 %0:f32}buffer %1 temp "
                               "activations f32[ 2 ]at 0 bytes 8"
                               "\nlaunch 0 group 1(%1 f32[2]strides[1]+0)->(%1 "
                               "f32[2])\r\n{axis=1,strides=[1]}flops 0 read "
                               "0 write 0 loc\"\"} ; end";
    static const char wanted[] = "plan @\"a b\" {\n"
                                 "  threads 2\n"
                                 "  first_update 1\n"
                                 "  arena persistent 0\n"
                                 "  arena io 0\n"
                                 "  arena step 64\n"
                                 "  buffer %1 temp activations f32[2] at 0 bytes 8 live 0 to 0\n"
                                 "  group 1 map [| 2] {\n"
                                 "    %0 = load 0 : f32\n"
                                 "    store 0 %0 : f32\n"
                                 "  }\n"
                                 "  launch 0 group 1 (%1 f32[2]) -> (%1 f32[2]) {axis = 1, strides "
                                 "= [1]}\n"
                                 "}\n";
    struct test_env t;
    struct plan *p;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(plan_parse(&t.ctx, text, sizeof text - 1, "x", &p) == ST_OK, "%s", t.log);
    ck_assert_str_eq(print(&t, p, NULL), wanted);
    plan_destroy(p);
    test_end(&t);
}
END_TEST

/* ---- by hand ------------------------------------------------------------------------------- */
static buf_id add_buffer(struct plan *p, struct plan_buffer b) {
    vec_push(&p->arena, &p->buffers, b);
    return (buf_id){p->buffers.n - 1};
}

START_TEST(test_by_hand) {
    static const float small[2] = {1.5f, -0.0f};
    static unsigned char large[68];
    struct test_env t;
    struct plan *q;
    size_t n;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *p = plan_create(&t.ctx, "");
    for (size_t k = 0; k < sizeof large; k++) large[k] = (unsigned char)(k * 7);
    struct type two = {.dtype = DT_f32, .rank = 1, .dims = {2}};
    struct type many = {.dtype = DT_f32, .rank = 1, .dims = {17}};
    buf_id c = add_buffer(p, (struct plan_buffer){.kind = BUF_CONST,
                                                  .use = USE_CONSTANTS,
                                                  .type = two,
                                                  .bytes = 8,
                                                  .init = {small, sizeof small, 0}});
    add_buffer(p, (struct plan_buffer){.kind = BUF_PARAM,
                                       .type = many,
                                       .bytes = 68,
                                       .offset = 64,
                                       .name = intern(&p->strings, "p\x01\xff"),
                                       .init = {large, sizeof large, 0}});
    struct plan_view v = {
        .buffer = c, .dtype = DT_f32, .rank = 3, .dims = {1, 2, 1}, .strides = {2, 1, 1}};
    struct plan_launch l = {.kind = LAUNCH_argmax, .nin = 1, .nout = 1, .in = &v, .out = &v};
    vec_push(&p->arena, &p->launches, l);
    p->first_update = 1;
    check_laws(&t, p);
    const char *text = print(&t, p, &n);
    ck_assert_ptr_nonnull(strstr(text, "init [1.5, -0.0]"));
    ck_assert_ptr_nonnull(strstr(text, "bytes 68\n"));
    ck_assert_ptr_nonnull(strstr(text, "(%1 f32[1,2,1]) ->")); /* row-major: no strides */
    ck_assert_int_eq(plan_parse(&t.ctx, text, n, "x", &q), ST_OK);
    ck_assert(memcmp(q->buffers.at[1].init.data, small, sizeof small) == 0);
    ck_assert_ptr_null(q->buffers.at[2].init.data);
    ck_assert_str_eq(interned(&q->strings, q->buffers.at[2].name), "p\x01\xff");
    v.strides[0] = 0; /* no meaning for an axis of size 1, but kept */
    ck_assert(!plan_equal(p, q));
    ck_assert_ptr_nonnull(strstr(print(&t, p, NULL), "f32[1,2,1] strides [0,1,1]"));
    check_laws(&t, p);
    plan_destroy(q);
    plan_destroy(p);
    test_end(&t);
}
END_TEST

/* Every difference in the text is a difference of the plans. */
static const struct {
    const char *from, *to;
} edits[] = {
    {"@step", "@stop"},
    {"threads 4", "threads 5"},
    {"first_update 2", "first_update 3"},
    {"io 1024", "io 1088"},
    {"param weights", "state weights"},
    {"param weights", "param gradients"},
    {"f32[64,256] at 0", "f32[64,257] at 0"},
    {"at 65536", "at 65600"},
    {"bytes 256", "bytes 260"},
    {"0x6c62272e07bb0142", "0x6c62272e07bb0143"},
    {"[0.5, nan, 0x7ff8000000000001]", "[0.5, nan, nan]"},
    {"init []", ""},
    {"role \"stat\"", "role \"step\""},
    {" frozen", ""},
    {"fill -0.5", "fill 0.5"},
    {"alias %6", "alias %5"},
    {"live 0 to 2", "live 0 to 1"},
    {"live 1 to 2", "live 2 to 2"},
    {"row [2,4 | 256]", "row [2 | 4,256]"},
    {"row [2,4 | 256]", "map [2,4 | 256]"},
    {"[| 64]", "[| 65]"},
    {"0.1 : f32", "0.2 : f32"},
    {"const -7", "const -8"},
    {"const true", "const false"},
    {"axis 1", "axis 0"},
    {"step -0.5", "step 0.5"},
    {"start 1.0", "start 1.5"},
    {"random 1 s", "random 2 s"},
    {"-9223372036854775808", "7"},
    {" approximate", ""},
    {"mod %6 %5", "mod %6 %5 trunc"},
    {"to bf16", "to f16"},
    {"where %3 %7 %8", "where %3 %7 %7"},
    {"max %10 %1", "max %1 %10"},
    {"max %10 %1", "min %10 %1"},
    {"row_sum", "row_prod"},
    {"store 1 %11", "store 1 %10"},
    {"store 1 %11", "store 0 %11"},
    {"col_sum 2", "col_sum 3"},
    {"load 0 : f32\n    %1", "load 0 : f32 row\n    %1"},
    {"f32[64,256] strides [1,64]", "f32[64,256]"},
    {"+ 12", "+ 13"},
    {"+ -3", "+ 3"},
    {"(%4 f16", "(%4 f32"},
    {"(%7 bf16", "(%6 bf16"},
    {"scale = 0.5", "scale = 0.25"},
    {"add = true", "add = false"},
    {"strides = [1, 2]", "strides = [1, 3]"},
    {"groups = 1", "axis = 1"},
    {"workspace %8", ""},
    {"flops 131072", "flops 131073"},
    {"loc \"/h.0/ln; b\"", ""},
    {"conv ()", "max_pool ()"},
    {"group 1 (", "group 2 ("},
};

static const char *edited(struct test_env *t, const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "not there: %s", from);
    return arena_printf(&t->arena, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

START_TEST(test_not_equal) {
    struct test_env t;
    struct plan *p, *q;
    test_begin(&t);
    TEST_LANDING(&t);
    const char *text = canonical;
    const char *other = edited(&t, text, edits[_i].from, edits[_i].to);
    ck_assert_msg(plan_parse(&t.ctx, text, strlen(text), "a", &p) == ST_OK, "%s", t.log);
    ck_assert_msg(plan_parse(&t.ctx, other, strlen(other), "b", &q) == ST_OK, "%s", t.log);
    ck_assert_msg(!plan_equal(p, q) && !plan_equal(q, p), "equal: %s -> %s", edits[_i].from,
                  edits[_i].to);
    check_laws(&t, q);
    plan_destroy(p);
    plan_destroy(q);
    test_end(&t);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------ */
#define HEAD "plan @p {threads 1 first_update 0 arena persistent 0 arena io 0 arena step 0\n"
#define TEMP HEAD "buffer %1 temp activations f32[2] at 0 bytes 8\n"
static const struct {
    const char *text, *message;
} bad[] = {
    {"", "bad:1:1: expected 'plan', found the end of the text"},
    {"plan x", "expected the plan's name"},
    {"plan @p {threads 0", "expected a number from 1 to 65536, found 0"},
    {"plan @p {threads 1 first_update -1", "expected a number from 0"},
    {"plan @p {threads 1 first_update 0 arena step", "expected 'persistent', found 'step'"},
    {HEAD, "bad:2:1: expected buffer, group, kernel, launch or '}', found the end"},
    {HEAD "} x", "expected the end of the text, found 'x'"},
    {"plan @p {threads 1 first_update 1 arena persistent 0 arena io 0 arena step 0}",
     "first_update is 1, there are 0 launches"},
    {HEAD "buffer %2 temp", "bad:2:8: expected buffer 1: they are numbered in order"},
    {HEAD "buffer %x temp", "expected buffer 1"},
    {HEAD "buffer %1 none", "expected a buffer's kind"},
    {HEAD "buffer %1 temp none", "expected a buffer's use"},
    {HEAD "buffer %1 temp io q7[2]", "expected an element type such as f32, found 'q7'"},
    {HEAD "buffer %1 temp io f32[n]", "expected an integer, found 'n'"},
    {HEAD "buffer %1 temp io f32[-1]", "expected a number from 0"},
    {HEAD "buffer %1 temp io f32[1,1,1,1,1,1,1,1,1,1,1,1,1]", "more than 12 numbers"},
    {HEAD "buffer %1 temp io f32[281474976710656,4097]", "more than 2^60 elements"},
    {HEAD "buffer %1 temp io f64[281474976710656,4096]", "more than 2^60 bytes"},
    {HEAD "buffer %1 temp io f32[0,281474976710656,281474976710656]", "more than 2^60 elements"},
    {HEAD "buffer %1 temp io f32[2] at -64", "expected a number from 0"},
    {HEAD "buffer %1 temp io f32[2] at 0 bytes 9223372036854775807", "expected a number from 0"},
    {HEAD "buffer %1 temp io u8[1] at 0 bytes 1152921504606846976\n"
          "buffer %2 temp io u8[1] at 0 bytes 1\n",
     "bad:4:1: the buffers have more than 2^60 bytes"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 alias %3}", "alias of %3, which is not defined"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 alias %2}", "buffer %2 is an alias of itself"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 alias %3\n"
          "buffer %3 temp io u8[1] at 0 bytes 1 alias %4\n"
          "buffer %4 temp io u8[1] at 0 bytes 1 alias %3}",
     "buffer %3 is an alias of itself"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 alias %0}", "%0 is not defined before this use"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 live 2 to 1", "life ends before it begins"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 live 0 to 1}",
     "%2 lives to 1, the last launch is 0"},
    {TEMP "buffer %2 temp io u8[1] at 0 bytes 1 live 0 to 4294967296", "expected a number from"},
    {TEMP "buffer %2 const io u8[1] at 0 bytes 1 init [256]", "256 does not fit u8"},
    {TEMP "buffer %2 const io u8[1] at 0 bytes 1 init hash 7", "expected a hash"},
    {TEMP "buffer %2 const io u8[1] at 0 bytes 1 init hash 0x0", "expected a hash"},
    {HEAD "group 0 map", "expected group 1"},
    {HEAD "group 1 none", "expected a group's mode"},
    {HEAD "group 1 map [4]", "expected '|' between"},
    {HEAD "group 1 map [4||]", "expected an integer, found '|'"},
    {HEAD "group 1 map [4|4|4]", "expected ',', found '|'"},
    {HEAD "group 1 map [,4]", "expected an integer, found ','"},
    {HEAD "group 1 map [281474976710656|281474976710656]", "more than 2^60 elements"},
    {HEAD "group 1 map [|1,1,1,1,1,1,1,1,1,1,1,1,1]", "more than 12 sizes"},
    {HEAD "group 1 map [|1]{%1 = load 0", "expected register 0"},
    {HEAD "group 1 map [|1]{load 0 : f32", "expected %0 = before load"},
    {HEAD "group 1 map [|1]{%0 = store 0 %0", "store defines no register"},
    {HEAD "group 1 map [|1]{store 0 %0", "%0 is not defined before this use"},
    {HEAD "group 1 map [|1]{%0 = neg %0", "%0 is not defined before this use"},
    {HEAD "group 1 map [|1]{%0 = load 0 : f32 store 0 %0 : f32 %2 = neg %1", "%1 is not defined"},
    {HEAD "group 1 map [|1]{%0 = matmul", "expected an instruction such as load or add"},
    {HEAD "group 1 map [|1]{%0 = load 0 : f16", "a register is f32, f64, i64 or bool, not f16"},
    {HEAD "group 1 map [|1]{%0 = load -1", "expected a number from 0"},
    {HEAD "group 1 map [|1]{%0 = const 0.5 : i64", "an i64 constant is a whole number"},
    {HEAD "group 1 map [|1]{%0 = iota axis 1", "expected a number from 0 to 0, found 1"},
    {HEAD "group 1 map [|1]{%0 = const 1 : f32 %1 = neg %0 trunc", "expected ':', found 'trunc'"},
    {TEMP "launch 1 matmul", "expected launch 0"},
    {TEMP "launch 0 banana", "expected a launch's kind"},
    {TEMP "launch 0 group 1", "there is no group before this launch"},
    {TEMP "group 1 map [|1]{} launch 0 group 2", "expected a number from 1 to 1, found 2"},
    {TEMP "launch 0 conv (%2 f32[1])", "%2 is not defined before this use"},
    {TEMP "launch 0 conv (%1 f32[2] strides [1,1])", "2 strides for 1 sizes"},
    {TEMP "launch 0 conv (%1 f32[2] strides [9223372036854775807])", "expected a number from"},
    {TEMP "launch 0 conv (%1 f32[2] + 9223372036854775807)", "expected a number from"},
    {TEMP "launch 0 conv (%1 f32[2]) (", "expected '-', found '('"},
    {TEMP "launch 0 conv () -> () {init = none}", "no launch takes the attribute 'init'"},
    {TEMP "launch 0 conv () -> () {axis = 1, axis = 1}", "'axis' is given twice"},
    {TEMP "launch 0 conv () -> () {banana = 1}", "expected an attribute such as axis"},
    {TEMP "launch 0 conv () -> () workspace %9", "%9 is not defined before this use"},
    {TEMP "launch 0 conv () -> () flops 1 write", "expected 'read', found 'write'"},
};

START_TEST(test_bad) {
    struct test_env t;
    struct plan *p;
    test_begin(&t);
    TEST_LANDING(&t);
    enum status st = plan_parse(&t.ctx, bad[_i].text, strlen(bad[_i].text), "bad", &p);
    ck_assert_msg(st != ST_OK, "accepted: %s", bad[_i].text);
    ck_assert_ptr_null(p);
    ck_assert_msg(strstr(t.log, bad[_i].message) != NULL, "%s\n-> %s", bad[_i].text, t.log);
    ck_assert_msg(strncmp(t.log, "error: bad:", 11) == 0, "no place: %s", t.log);
    ck_assert_uint_eq(t.ctx.errors, 1);
    test_end(&t);
}
END_TEST

/* ---- random plans -------------------------------------------------------------------------- */
struct rng {
    uint64_t s;
};
static uint32_t rnd(struct rng *r, uint32_t n) { /* splitmix64; below n */
    uint64_t z = (r->s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}

static double random_double(struct rng *r) {
    static const double some[] = {0.0, -0.0, 1.0, 0.1, -2.5e-17, 1e300, 4096.0, 9007199254740993.0};
    uint64_t bits = (uint64_t)rnd(r, UINT32_MAX) << 32 | rnd(r, UINT32_MAX);
    double x;
    memcpy(&x, &bits, sizeof x);
    return rnd(r, 2) ? x : some[rnd(r, 8)];
}

static str_id random_name(struct plan *p, struct rng *r) {
    static const char *const names[] = {"",     "x",       "h.0/ln:1", "a b",  "7",   "\"q\\",
                                        "\xff", "tab\t\n", "buffer",   "\x01", "%3;", "live"};
    return intern(&p->strings, names[rnd(r, 12)]);
}

static int random_dims(struct rng *r, int64_t dims[RANK_MAX]) {
    int rank = (int)rnd(r, 5);
    for (int k = 0; k < rank; k++) dims[k] = rnd(r, 9);
    return rank;
}

static enum dtype random_dtype(struct rng *r) {
    return (enum dtype)(1 + rnd(r, DT_COUNT - 1));
}

static void random_buffer(struct plan *p, struct rng *r, uint32_t launches) {
    struct plan_buffer b = {.kind = (enum buffer_kind)(1 + rnd(r, BUF_WORKSPACE)),
                            .use = (enum buffer_use)rnd(r, USE_COUNT),
                            .name = random_name(p, r),
                            .role = random_name(p, r),
                            .bytes = rnd(r, 5) * 64,
                            .offset = rnd(r, 1000) * 64};
    b.type.dtype = random_dtype(r);
    b.type.rank = random_dims(r, b.type.dims);
    b.last = launches - 1;
    if (rnd(r, 2)) {
        b.first = rnd(r, launches);
        b.last = b.first + rnd(r, launches - b.first);
    }
    if (rnd(r, 4) == 0) b.alias.i = rnd(r, p->buffers.n); /* an earlier one or none */
    b.frozen = rnd(r, 2);
    if (rnd(r, 2)) b.fill = random_double(r);
    if (rnd(r, 3) == 0) {
        b.init.bytes = (rnd(r, 20)) * (rnd(r, 8) ? dtype_size(b.type.dtype) : 1);
        unsigned char *data = arena_alloc(&p->arena, b.init.bytes);
        for (size_t k = 0; k < b.init.bytes; k++) data[k] = (unsigned char)rnd(r, 256);
        b.init.data = data;
    } else if (rnd(r, 3) == 0) {
        b.init = (struct blob){NULL, rnd(r, 1000), 1 + rnd(r, 1000)};
    }
    vec_push(&p->arena, &p->buffers, b);
}

static void random_instr(struct plan *p, struct rng *r, struct plan_group *g, int32_t reg[],
                         uint32_t *nreg) {
    static const uint8_t types[] = {DT_f32, DT_f64, DT_i64, DT_bool};
    struct group_instr i = {.dtype = types[rnd(r, 4)], .span = (uint8_t)rnd(r, 2)};
    do i.code = (uint16_t)(1 + rnd(r, INSTR_COUNT - 1));
    while (i.code < OP_COUNT && !(op_info((enum op)i.code)->traits & EW));
    bool leaf = i.code >= INSTR_LOAD && i.code <= INSTR_RANDOM;
    if (*nreg == 0 && !leaf) i.code = INSTR_LOAD, leaf = true;
    i.a = i.b = i.c = -1;
    if (!leaf) i.a = reg[rnd(r, *nreg)], i.b = reg[rnd(r, *nreg)], i.c = reg[rnd(r, *nreg)];
    i.slot = (int32_t)rnd(r, 100);
    i.axis = g->rank ? (int32_t)rnd(r, (uint32_t)g->rank) : -1;
    if (g->rank == 0 && i.code == INSTR_IOTA) i.code = INSTR_CONST;
    i.flag = rnd(r, 2);
    i.imm = random_double(r), i.imm2 = random_double(r);
    i.imm_int = i.code == OP_cast       ? random_dtype(r)
                : instr_is_part(i.code) ? 8 + (int64_t)rnd(r, 25)
                                        : (int64_t)rnd(r, UINT32_MAX) - (1 << 30);
    if (i.code != INSTR_STORE && !instr_is_column(i.code)) reg[(*nreg)++] = (int32_t)g->code.n;
    vec_push(&p->arena, &g->code, i);
}

static void random_group(struct plan *p, struct rng *r) {
    struct plan_group g = {.mode = (enum group_mode)rnd(r, 3)};
    int32_t reg[32];
    uint32_t nreg = 0;
    g.rank = random_dims(r, g.dims);
    g.inner = (int)rnd(r, (uint32_t)g.rank + 1);
    for (uint32_t n = rnd(r, 32); n > 0; n--) random_instr(p, r, &g, reg, &nreg);
    vec_push(&p->arena, &p->groups, g);
}

static struct plan_view *random_views(struct plan *p, struct rng *r, uint32_t *n) {
    *n = rnd(r, 5);
    struct plan_view *v = ARENA_ARRAY(&p->arena, struct plan_view, *n);
    for (uint32_t k = 0; k < *n; k++) {
        v[k].buffer.i = 1 + rnd(r, p->buffers.n - 1);
        v[k].dtype = random_dtype(r);
        v[k].rank = random_dims(r, v[k].dims);
        int64_t step = 1;
        for (int i = v[k].rank - 1; i >= 0; step *= v[k].dims[i--]) v[k].strides[i] = step;
        if (v[k].rank && rnd(r, 2)) v[k].strides[rnd(r, (uint32_t)v[k].rank)] = 7 - (int)rnd(r, 9);
        if (rnd(r, 2)) v[k].offset = rnd(r, 1000);
    }
    return v;
}

static void random_launch(struct plan *p, struct rng *r) {
    static const int64_t list[] = {1, -2, INT64_MAX, INT64_MIN};
    struct plan_launch l = {.kind = (enum launch_kind)rnd(r, LAUNCH_COUNT)};
    if (l.kind == LAUNCH_group) l.group.i = 1 + rnd(r, p->groups.n - 1);
    l.in = random_views(p, r, &l.nin);
    l.out = random_views(p, r, &l.nout);
    struct attr *attrs = ARENA_ARRAY(&p->arena, struct attr, ATTR_COUNT);
    for (int k = ATTR_NONE + 1; k < ATTR_COUNT; k++) {
        enum attr_key key = (enum attr_key)k;
        if (rnd(r, 8) || attr_kind(key) == AK_BLOB) continue;
        struct attr a = {.key = key, .f = random_double(r), .s = "s\n\"", .list = list};
        a.i = attr_kind(key) == AK_DTYPE ? random_dtype(r) : rnd(r, 2);
        a.n = (int)rnd(r, 5);
        attrs[l.nattrs++] = a;
    }
    l.attrs = attrs;
    if (rnd(r, 2)) l.workspace.i = 1 + rnd(r, p->buffers.n - 1);
    if (rnd(r, 2)) l.cost = (struct cost){random_double(r), random_double(r), random_double(r)};
    l.origin = random_name(p, r);
    vec_push(&p->arena, &p->launches, l);
}

static struct plan *random_plan(struct test_env *t, struct rng *r) {
    struct plan *p = plan_create(&t->ctx, rnd(r, 2) ? "plan" : "odd \"name");
    uint32_t launches = 1 + rnd(r, 6);
    p->threads = 1 + (int)rnd(r, 64);
    p->first_update = rnd(r, launches + 1);
    for (int k = 0; k < ARENA_CLASSES; k++) p->arena_bytes[k] = rnd(r, 1000) * 64;
    for (uint32_t n = 1 + rnd(r, 6); n > 0; n--) random_buffer(p, r, launches);
    for (uint32_t n = 1 + rnd(r, 3); n > 0; n--) random_group(p, r);
    for (uint32_t n = launches; n > 0; n--) random_launch(p, r);
    return p;
}

START_TEST(test_random) {
    struct test_env t;
    struct rng r = {(uint64_t)_i};
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < 60; k++) {
        struct plan *p = random_plan(&t, &r);
        check_laws(&t, p);
        plan_destroy(p);
    }
    test_end(&t);
}
END_TEST

/* Damaged text: refused with one diagnostic, or a plan that obeys the laws. */
START_TEST(test_damaged) {
    struct test_env t;
    struct rng r = {1000 + (uint64_t)_i};
    struct plan *q;
    size_t n;
    volatile int accepted = 0; /* outlives an unwind */
    test_begin(&t);
    TEST_LANDING(&t);
    for (int k = 0; k < 40; k++) {
        struct plan *p = random_plan(&t, &r);
        const char *text = print(&t, p, &n);
        for (int j = 0; j < 20; j++) {
            char *hurt = arena_strndup(&t.arena, text, n);
            size_t at = rnd(&r, (uint32_t)n), from = rnd(&r, (uint32_t)n), m = n;
            unsigned errors = t.ctx.errors;
            switch (rnd(&r, 3)) {
            case 0: hurt[at] = (char)rnd(&r, 256); break;
            case 1: m = at; break;
            default: hurt[at] = text[from]; break;
            }
            t.log[0] = '\0';
            if (plan_parse(&t.ctx, hurt, m, "hurt", &q) == ST_OK) {
                accepted++;
                TEST_EXPECT(t.ctx.errors == errors);
                check_laws(&t, q);
                (void)plan_usage(q);
                plan_destroy(q);
            } else {
                TEST_EXPECT(t.ctx.errors == errors + 1);
            }
        }
        plan_destroy(p);
    }
    ck_assert_int_gt(accepted, 0);
    test_end(&t);
}
END_TEST

/* Out of memory at any point unwinds and leaves nothing behind. */
static size_t allowed;
static void *limited(void *user, size_t size) {
    (void)user;
    return allowed-- > 0 ? malloc(size) : NULL;
}
static void release(void *user, void *ptr) {
    (void)user;
    free(ptr);
}

START_TEST(test_out_of_memory) {
    const char *volatile text = canonical;
    volatile size_t limit = 0;
    volatile bool done = false;
    while (!done) {
        struct ctx c;
        jmp_buf landing;
        ctx_init(&c);
        c.alloc = limited;
        c.release = release;
        c.landing = &landing;
        allowed = limit++;
        if (!setjmp(landing)) {
            struct plan *p;
            (void)!plan_parse(&c, text, strlen(text), "oom", &p);
            plan_destroy(p);
            done = true;
        }
        ck_assert_uint_eq(c.bytes_in_use, 0);
    }
    ck_assert_uint_gt(limit, 2);
}
END_TEST

int main(void) {
    Suite *s = suite_create("plan_text");
    TCase *c = tcase_create("plan_text");
    tcase_add_test(c, test_canonical);
    tcase_add_test(c, test_relaxed);
    tcase_add_test(c, test_by_hand);
    tcase_add_loop_test(c, test_not_equal, 0, sizeof edits / sizeof *edits);
    tcase_add_loop_test(c, test_bad, 0, sizeof bad / sizeof *bad);
    tcase_add_loop_test(c, test_random, 0, 10);
    tcase_add_loop_test(c, test_damaged, 0, 10);
    tcase_add_test(c, test_out_of_memory);
    tcase_set_timeout(c, 60);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
