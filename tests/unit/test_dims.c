// SPDX-License-Identifier: Apache-2.0
/* test_dims.c - element conversions, tensor type helpers and symbolic dimensions. */
#include "ir/types.h"
#include "test_util.h"
#include <math.h>

static uint32_t store_code(enum dtype t, double x) {
    uint32_t code = 0;
    dtype_store(t, &code, x);
    return code;
}

static double load_code(enum dtype t, uint32_t code) {
    return dtype_load(t, &code);
}

START_TEST(dtype_names) {
    ck_assert_str_eq(dtype_name(DT_bf16), "bf16");
    ck_assert_str_eq(dtype_name(DT_bool), "bool");
    ck_assert_str_eq(dtype_name(DT_NONE), "none");
    ck_assert_int_eq(dtype_from_name("f16x", 3), DT_f16);
    ck_assert_int_eq(dtype_from_name("f1", 2), DT_NONE);
    ck_assert_int_eq(dtype_from_name("none", 4), DT_NONE);
    ck_assert_int_eq(dtype_from_onnx(0), DT_NONE);
    ck_assert_int_eq(dtype_from_onnx(8), DT_NONE); /* string */
    for (int t = DT_NONE + 1; t < DT_COUNT; t++) {
        const char *name = dtype_name((enum dtype)t);
        ck_assert_int_eq(dtype_from_name(name, strlen(name)), t);
        ck_assert_int_eq(dtype_from_onnx(dtype_to_onnx((enum dtype)t)), t);
    }
    ck_assert_uint_eq(dtype_size(DT_f64), 8);
    ck_assert(dtype_is_float(DT_e8m0) && !dtype_is_float(DT_i8) && !dtype_is_float(DT_NONE));
}
END_TEST

/* Every finite code loads to a number that stores back, and every point between two neighbours
 * rounds to the right one. */
static void check_format(enum dtype t, int bits, uint32_t max_finite, double max_value) {
    uint32_t sign = 1u << (bits - 1);
    ck_assert_double_eq(load_code(t, max_finite), max_value);
    for (uint32_t c = 0; c < max_finite; c++) {
        double a = load_code(t, c), b = load_code(t, c + 1), mid = a + (b - a) / 2;
        ck_assert_msg(a < b, "%s codes %x and %x are not in order", dtype_name(t), c, c + 1);
        ck_assert_uint_eq(store_code(t, a), c);
        ck_assert_uint_eq(store_code(t, -b), (c + 1) | sign);
        ck_assert_uint_eq(store_code(t, mid), c & 1 ? c + 1 : c);
        ck_assert_uint_eq(store_code(t, -mid), (c & 1 ? c + 1 : c) | sign);
        ck_assert_uint_eq(store_code(t, nextafter(mid, 0)), c);
        ck_assert_uint_eq(store_code(t, nextafter(mid, INFINITY)), c + 1);
    }
    ck_assert(signbit(load_code(t, sign)) && load_code(t, sign) == 0);
    ck_assert_uint_eq(store_code(t, -0.0), sign);
    ck_assert_uint_eq(store_code(t, 0x1p-1074), 0);
    ck_assert(isnan(load_code(t, store_code(t, NAN))));
}

START_TEST(small_floats) {
    check_format(DT_f16, 16, 0x7bff, 65504.0);
    check_format(DT_bf16, 16, 0x7f7f, 0x1.fep127);
    check_format(DT_e4m3, 8, 0x7e, 448.0);
    check_format(DT_e5m2, 8, 0x7b, 57344.0);
    ck_assert_uint_eq(store_code(DT_f16, 65519.99), 0x7bff);
    ck_assert_uint_eq(store_code(DT_f16, 65520.0), 0x7c00);
    ck_assert_uint_eq(store_code(DT_f16, -1e300), 0xfc00);
    ck_assert_uint_eq(store_code(DT_bf16, (double)INFINITY), 0x7f80);
    ck_assert_uint_eq(store_code(DT_e4m3, 1e9), 0x7e);
    ck_assert_uint_eq(store_code(DT_e4m3, 480.0), 0x7e);
    ck_assert_uint_eq(store_code(DT_e4m3, -(double)INFINITY), 0xfe);
    ck_assert_uint_eq(store_code(DT_e5m2, 65536.0), 0x7b);
    ck_assert_uint_eq(store_code(DT_e5m2, (double)INFINITY), 0x7b);
    ck_assert(isinf(load_code(DT_e5m2, 0x7c)) && isnan(load_code(DT_e5m2, 0x7d)));
    ck_assert(isnan(load_code(DT_e4m3, 0xff)));
}
END_TEST

START_TEST(powers_of_two) {
    for (uint32_t c = 0; c < 255; c++) {
        ck_assert_double_eq(load_code(DT_e8m0, c), ldexp(1.0, (int)c - 127));
        ck_assert_uint_eq(store_code(DT_e8m0, ldexp(1.0, (int)c - 127)), c);
    }
    ck_assert_uint_eq(store_code(DT_e8m0, 1.49), 127);
    ck_assert_uint_eq(store_code(DT_e8m0, 1.5), 128);
    ck_assert_uint_eq(store_code(DT_e8m0, 0.0), 0);
    ck_assert_uint_eq(store_code(DT_e8m0, 1e300), 254);
    ck_assert_uint_eq(store_code(DT_e8m0, -2.0), 255);
    ck_assert(isnan(load_code(DT_e8m0, 255)));
}
END_TEST

START_TEST(integers) {
    int64_t big = (INT64_C(1) << 53) + 1;
    char unaligned[16];
    dtype_store_int(DT_i64, unaligned + 1, big);
    ck_assert_int_eq(dtype_load_int(DT_i64, unaligned + 1), big);
    ck_assert_uint_eq(store_code(DT_u8, 300.0), 255);
    ck_assert_uint_eq(store_code(DT_u8, -3.0), 0);
    ck_assert_double_eq(load_code(DT_i8, store_code(DT_i8, -129.0)), -128.0);
    ck_assert_double_eq(load_code(DT_i32, store_code(DT_i32, 2.5)), 2.0);
    ck_assert_double_eq(load_code(DT_i16, store_code(DT_i16, -3.5)), -4.0);
    ck_assert_uint_eq(store_code(DT_i32, (double)NAN), 0);
    ck_assert_uint_eq(store_code(DT_bool, 0.25), 1);
    ck_assert_uint_eq(store_code(DT_bool, (double)NAN), 1);
    float f = -2.75f;
    ck_assert_int_eq(dtype_load_int(DT_f32, &f), -2);
    f = 1e30f;
    ck_assert_int_eq(dtype_load_int(DT_f32, &f), INT64_MAX);
    f = NAN;
    ck_assert_int_eq(dtype_load_int(DT_f32, &f), 0);
    /* Just above the middle of two floats, but exactly in the middle once it is a double. */
    dtype_store_int(DT_f32, &f, (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1);
    ck_assert(f == 0x1.000002p60f);
    uint16_t h = 0;
    dtype_store_int(DT_bf16, &h, (INT64_C(1) << 62) + (INT64_C(1) << 54) + 1);
    ck_assert_double_eq(dtype_load(DT_bf16, &h), 0x1.02p62);
    dtype_store_int(DT_f16, &h, INT64_MIN);
    ck_assert_uint_eq(h, 0xfc00);
    uint8_t q = 0;
    dtype_store_int(DT_e4m3, &q, 1000);
    ck_assert_double_eq(dtype_load(DT_e4m3, &q), 448.0);
    dtype_store_int(DT_f16, &h, 0);
    ck_assert_uint_eq(h, 0);
}
END_TEST

/* ---- dims ---------------------------------------------------------------------------------- */
static const char *text(struct test_env *t, const struct dims_table *d, dim x) {
    struct buf b;
    buf_init(&b, &t->arena);
    dim_print(d, x, &b);
    return b.at;
}

static dim parse(struct dims_table *d, const char *s) {
    dim x = 0;
    ck_assert_msg(dim_parse(d, s, strlen(s), &x), "\"%s\" does not parse", s);
    return x;
}

START_TEST(dims_canonical) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    dim s = dim_symbol(d, "seq"), b = dim_symbol(d, "batch");
    ck_assert(dim_same(dim_symbol(d, "seq"), s) && !dim_same(s, b) && !dim_known(s));
    ck_assert(dim_same(dim_mul(d, s, b), dim_mul(d, b, s)));
    ck_assert_str_eq(text(&t, d, dim_mul(d, s, b)), "batch*seq"); /* not the order of creation */
    dim sum = dim_add(d, s, b), diff = dim_sub(d, s, b);
    /* (s+b)(s-b) = s^2 - b^2 */
    ck_assert(dim_same(dim_mul(d, sum, diff), dim_sub(d, dim_mul(d, s, s), dim_mul(d, b, b))));
    ck_assert_int_eq(dim_sub(d, dim_add(d, s, 7), s), 7);
    ck_assert_int_eq(dim_mul(d, s, 0), 0);
    ck_assert_int_eq(dim_sub(d, s, s), 0);
    ck_assert(dim_same(dim_mul(d, s, 1), s));
    ck_assert_str_eq(text(&t, d, dim_add(d, dim_mul(d, s, 2), 1)), "2*seq+1");
    ck_assert_str_eq(text(&t, d, dim_sub(d, 3, s)), "-seq+3");
    ck_assert_str_eq(text(&t, d, 17), "17");
    dim minus = dim_sub(d, 3, 5);
    ck_assert(!dim_known(minus));
    ck_assert_str_eq(text(&t, d, minus), "-2");
    ck_assert_int_eq(dim_add(d, minus, 5), 3);
    ck_assert_str_eq(dim_symbol_name(d, s), "seq");
    ck_assert_ptr_null(dim_symbol_name(d, sum));
    ck_assert_ptr_null(dim_symbol_name(d, 4));
    ck_assert_ptr_null(dim_symbol_name(d, dim_mul(d, s, s)));
    test_end(&t);
}
END_TEST

START_TEST(dims_divide) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    dim s = dim_symbol(d, "s"), b = dim_symbol(d, "b"), q = 0;
    ck_assert(dim_div(d, 12, 4, &q) && q == 3);
    ck_assert(!dim_div(d, 13, 4, &q) && !dim_div(d, 4, 0, &q) && !dim_div(d, s, 0, &q));
    ck_assert(dim_div(d, 0, s, &q) && q == 0);
    ck_assert(dim_div(d, dim_mul(d, dim_mul(d, 6, s), b), dim_mul(d, 2, b), &q));
    ck_assert(dim_same(q, dim_mul(d, 3, s)));
    ck_assert(!dim_div(d, dim_mul(d, 3, s), 2, &q) && !dim_div(d, s, b, &q));
    dim x = parse(d, "s*s*s+3*s*s*b-2*b+5"), y = parse(d, "b*s-7*b*b+1");
    ck_assert(dim_div(d, dim_mul(d, x, y), y, &q) && dim_same(q, x));
    ck_assert(dim_div(d, dim_mul(d, x, y), x, &q) && dim_same(q, y));
    ck_assert(!dim_div(d, dim_add(d, dim_mul(d, x, y), 1), y, &q));
    test_end(&t);
}
END_TEST

START_TEST(dims_text) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena), *e = dims_create(&t.arena);
    static const char *const fixed[] = {
        "0", "12", "n", "a*a*b-3*a+4", "-x+1", "-5", "\"batch size\"+2*\"q\\\"uote\"", "unk__12.0"};
    for (size_t k = 0; k < sizeof fixed / sizeof *fixed; k++)
        ck_assert_str_eq(text(&t, e, parse(e, fixed[k])), fixed[k]);
    ck_assert_str_eq(text(&t, d, parse(d, " (seq + 1)*2 - past ")), "-past+2*seq+2");
    ck_assert_str_eq(text(&t, d, parse(d, "past_sequence_length + 1")), "past_sequence_length+1");
    static const char *const bad[] = {"",
                                      " ",
                                      "a b",
                                      "a+",
                                      "*a",
                                      "(a",
                                      "a)",
                                      "2a",
                                      "a/2",
                                      "a--b",
                                      "99999999999999999999",
                                      "\"open",
                                      "\"\\q\"",
                                      "\"\"",
                                      "9223372036854775807*2",
                                      "9223372036854775807*n+n",
                                      "a\x01"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        dim x = 77;
        ck_assert_msg(!dim_parse(d, bad[k], strlen(bad[k]), &x), "\"%s\" parses", bad[k]);
        ck_assert_int_eq(x, 77);
    }
    char deep[200];
    memset(deep, '(', sizeof deep);
    dim x;
    ck_assert(!dim_parse(d, deep, sizeof deep, &x));
    ck_assert(dim_parse(d, "abc", 2, &x));
    ck_assert_str_eq(dim_symbol_name(d, x), "ab");
    test_end(&t);
}
END_TEST

static int64_t bind_some(void *user, const char *symbol) {
    int64_t *calls = user;
    ++*calls;
    return strcmp(symbol, "b") == 0 ? 3 : strcmp(symbol, "huge") == 0 ? INT64_C(1) << 40 : -1;
}

START_TEST(dims_bind) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    int64_t calls = 0;
    ck_assert_int_eq(dim_bind(d, parse(d, "b*b+2*b+1"), bind_some, &calls), 16);
    ck_assert_int_gt(calls, 0);
    ck_assert_str_eq(text(&t, d, dim_bind(d, parse(d, "b*s+s-b"), bind_some, &calls)), "4*s-3");
    ck_assert_int_eq(dim_bind(d, 9, bind_some, &calls), 9);
    dim over = parse(d, "huge*huge+1");
    ck_assert(dim_same(dim_bind(d, over, bind_some, &calls), over));
    test_end(&t);
}
END_TEST

/* A random polynomial in a, b, c by random operations, with its value at a=2, b=5, c=11. */
static int64_t bind_all(void *user, const char *symbol) {
    (void)user;
    return symbol[0] == 'a' ? 2 : symbol[0] == 'b' ? 5 : 11;
}

START_TEST(dims_random) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    uint32_t seed = 99;
    for (int round = 0; round < 500; round++) {
        dim x = dim_symbol(d, "a"), q = 0;
        int64_t value = 2;
        for (int k = 0; k < 6; k++) {
            static const char *const names[] = {"a", "b", "c"};
            static const int64_t values[] = {2, 5, 11};
            seed = seed * 1664525u + 1013904223u;
            uint32_t pick = seed >> 9 & 3, op = seed >> 12 & 3;
            dim y = pick < 3 ? dim_symbol(d, names[pick]) : (dim)(seed >> 15 & 7);
            int64_t v = pick < 3 ? values[pick] : (int64_t)(seed >> 15 & 7);
            if (op >= 2 && !dim_same(x, 0) && y != 0) {
                dim product = dim_mul(d, x, y);
                ck_assert(dim_div(d, product, x, &q) && dim_same(q, y));
                ck_assert(dim_div(d, product, y, &q) && dim_same(q, x));
            }
            x = op == 0 ? dim_add(d, x, y) : op == 1 ? dim_sub(d, x, y) : dim_mul(d, x, y);
            value = op == 0 ? value + v : op == 1 ? value - v : value * v;
        }
        /* A negative value is still a polynomial, so compare what is left over. */
        dim left = dim_bind(d, x, bind_all, NULL);
        ck_assert_int_eq(dim_add(d, left, 1000000000), value + 1000000000);
        ck_assert(dim_same(parse(d, text(&t, d, x)), x));
    }
    test_end(&t);
}
END_TEST

START_TEST(dims_overflow) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    dim s = dim_symbol(d, "s"), x = 0;
    ck_assert(!dim_try_add(d, INT64_MAX, 1, &x) && !dim_try_mul(d, INT64_MAX / 2, 3, &x));
    dim big;
    ck_assert(dim_try_mul(d, s, INT64_MAX, &big));
    ck_assert(!dim_try_add(d, big, s, &x) && !dim_try_mul(d, big, 2, &x));
    dim power = s;
    int degree = 1;
    while (dim_try_mul(d, power, s, &power)) degree++;
    ck_assert_int_eq(degree, DIM_DEGREE_MAX);
    dim many = 1; /* (1+x0)(1+x1)...: the number of terms doubles */
    int factors = 0;
    for (; factors < 20; factors++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", factors);
        if (!dim_try_mul(d, many, dim_add(d, dim_symbol(d, name), 1), &many)) break;
    }
    ck_assert_int_eq(1 << factors, DIM_TERMS_MAX);
    test_end(&t);
}
END_TEST

START_TEST(dims_overflow_unwinds) {
    struct test_env t;
    test_begin(&t);
    struct dims_table *volatile d = NULL;
    if (setjmp(t.landing) == 0) {
        d = dims_create(&t.arena);
        dim_mul(d, INT64_MAX, 2);
        ck_abort_msg("no unwinding");
    }
    ck_assert_int_eq(t.ctx.unwound, ST_INTERNAL);
    test_end(&t);
}
END_TEST

START_TEST(dims_cloned) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    dim x = parse(d, "3*a*b+c-1"), a = dim_symbol(d, "a");
    struct dims_table *c = dims_clone(d, &t.arena);
    ck_assert_str_eq(text(&t, c, x), "3*a*b+c-1");
    ck_assert(dim_same(dim_symbol(c, "a"), a));
    ck_assert(dim_same(parse(c, "c-1+a*3*b"), x));
    test_end(&t);
}
END_TEST

START_TEST(types) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct dims_table *d = dims_create(&t.arena);
    struct type x = {.dtype = DT_bf16, .rank = 3, .dims = {3, 1, 7}}, y = x;
    struct buf b;
    ck_assert(type_static(&x) && type_count(&x) == 21 && type_bytes(&x) == 42);
    y.dims[5] = 99; /* beyond the rank */
    ck_assert(type_equal(&x, &y));
    y.dims[1] = dim_symbol(d, "n");
    ck_assert(!type_equal(&x, &y) && !type_static(&y));
    ck_assert_int_eq(type_count(&y), -1);
    ck_assert_int_eq(type_bytes(&y), -1);
    buf_init(&b, &t.arena);
    type_print(d, &y, &b);
    ck_assert_str_eq(b.at, "bf16[3,n,7]");
    struct type s = type_scalar(DT_i64);
    ck_assert_int_eq(type_bytes(&s), 8);
    struct type huge = {.dtype = DT_i64, .rank = 2, .dims = {INT64_C(1) << 31, INT64_C(1) << 31}};
    ck_assert_int_eq(type_count(&huge), INT64_C(1) << 62);
    ck_assert_int_eq(type_bytes(&huge), -1);
    huge.dims[0]++;
    ck_assert_int_eq(type_count(&huge), -1);
    huge.dims[1] = 0;
    ck_assert_int_eq(type_count(&huge), 0);
    int64_t n;
    ck_assert(!dims_product((dim[]){INT64_MAX, 3, 0}, 3, &n));
    ck_assert(dims_product(NULL, 0, &n) && n == 1);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("dims");
    TCase *c = tcase_create("all");
    tcase_add_test(c, dtype_names);
    tcase_add_test(c, small_floats);
    tcase_add_test(c, powers_of_two);
    tcase_add_test(c, integers);
    tcase_add_test(c, dims_canonical);
    tcase_add_test(c, dims_divide);
    tcase_add_test(c, dims_text);
    tcase_add_test(c, dims_bind);
    tcase_add_test(c, dims_random);
    tcase_add_test(c, dims_overflow);
    tcase_add_test(c, dims_overflow_unwinds);
    tcase_add_test(c, dims_cloned);
    tcase_add_test(c, types);
    tcase_set_timeout(c, 60);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
