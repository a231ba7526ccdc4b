// SPDX-License-Identifier: Apache-2.0
/* test_fp8.c - 8-bit floats against a search through the values of all codes in double precision,
 * at every boundary between codes, on random bits, and on cases given as numbers; published cases
 * where COAT_VECTORS names their file. */
#include "base/fp8.h"
#include "ir/types.h"
#include "test_util.h"
#include <jansson.h>
#include <math.h>

/* ---- the slow way -------------------------------------------------------------------------- */
struct format {
    int man, bias;
    unsigned top;
    bool infinity;
    uint8_t (*of)(float), (*ieee)(float), (*of_double)(double);
    float (*value)(uint8_t);
    enum dtype dtype;
};
static uint8_t of4(float x) {
    return e4m3_of(x);
}
static uint8_t of5(float x) {
    return e5m2_of(x);
}
static float value4(uint8_t c) {
    return e4m3_value(c);
}
static float value5(uint8_t c) {
    return e5m2_value(c);
}
static const struct format formats[] = {
    {3, 7, 0x7e, false, of4, e4m3_of_ieee, e4m3_of_double, value4, DT_e4m3},
    {2, 15, 0x7b, true, of5, e5m2_of_ieee, e5m2_of_double, value5, DT_e5m2},
};

static double slow_value(const struct format *f, unsigned c) {
    double sign = c & 0x80 ? -1 : 1;
    c &= 0x7f;
    if (c > f->top) return f->infinity && c == f->top + 1 ? sign * (double)INFINITY : (double)NAN;
    unsigned e = c >> f->man, m = c & ((1u << f->man) - 1);
    double v = e ? 1 + ldexp(m, -f->man) : ldexp(m, -f->man);
    return sign * ldexp(v, (int)(e ? e : 1) - f->bias);
}

static uint8_t slow_code(const struct format *f, double x, bool saturate) {
    if (x != x) return 0x7f;
    unsigned low = 0, high = f->top, sign = signbit(x) ? 0x80 : 0;
    double a = fabs(x), last = slow_value(f, f->top);
    double step = last - slow_value(f, f->top - 1);
    bool even = f->top % 2 == 0; /* decides about the tie above it */
    if (even ? a > last + step / 2 : a >= last + step / 2)
        return (uint8_t)(sign | (saturate ? f->top : f->top + 1));
    if (a >= last) return (uint8_t)(sign | f->top);
    while (high - low > 1) {
        unsigned mid = (low + high) / 2;
        *(slow_value(f, mid) <= a ? &low : &high) = mid;
    }
    double below = a - slow_value(f, low), above = slow_value(f, high) - a;
    bool up = above < below || (above == below && low % 2 == 1);
    return (uint8_t)(sign | (up ? high : low));
}

static void check_one(const struct format *f, float x) {
    uint8_t want = slow_code(f, (double)x, true), loose = slow_code(f, (double)x, false);
    if (f->of(x) != want) ck_abort_msg("%a: code %02x, expected %02x", (double)x, f->of(x), want);
    if (f->of_double((double)x) != want) ck_abort_msg("%a as a double", (double)x);
    if (f->ieee(x) != loose)
        ck_abort_msg("%a: code %02x without saturation, expected %02x", (double)x, f->ieee(x),
                     loose);
}

/* ---- laws ---------------------------------------------------------------------------------- */
START_TEST(test_values) {
    const struct format *f = &formats[_i];
    for (unsigned c = 0; c < 256; c++) {
        double want = slow_value(f, c), got = (double)f->value((uint8_t)c);
        uint8_t byte = (uint8_t)c;
        ck_assert_msg(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want),
                      "code %02x", c);
        double loaded = dtype_load(f->dtype, &byte);
        ck_assert_msg(isnan(want) ? isnan(loaded) : loaded == want, "code %02x by type", c);
        if (isfinite(want)) ck_assert_uint_eq(f->of((float)want), c);
    }
}
END_TEST

START_TEST(test_boundaries) {
    const struct format *f = &formats[_i];
    for (unsigned c = 0; c <= f->top; c++) {
        double a = slow_value(f, c);
        double b = c < f->top ? slow_value(f, c + 1) : 2 * a - slow_value(f, c - 1);
        double points[] = {a, (a + b) / 2, b};
        for (int k = 0; k < 3; k++)
            for (int sign = -1; sign <= 1; sign += 2) {
                float x = (float)(sign * points[k]);
                ck_assert((double)x == sign * points[k]);
                check_one(f, x);
                check_one(f, nextafterf(x, INFINITY));
                check_one(f, nextafterf(x, -INFINITY));
                double d = nextafter(points[k], (double)INFINITY); /* no f32 */
                ck_assert_uint_eq(f->of_double(sign * d), slow_code(f, sign * d, true));
                d = nextafter(points[k], 0);
                ck_assert_uint_eq(f->of_double(sign * d), slow_code(f, sign * d, true));
            }
    }
    const float ends[] = {0.0f, -0.0f, INFINITY, -INFINITY, 0x1p-149f, -0x1p-149f, 0x1.fffffep127f};
    for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++) check_one(f, ends[k]);
    ck_assert_uint_eq(f->of(NAN), 0x7f);
    ck_assert_uint_eq(f->of(-NAN), 0x7f);
    ck_assert_uint_eq(f->of(fp8_float(0xff800001u)), 0x7f);
}
END_TEST

START_TEST(test_random_bits) {
    const struct format *f = &formats[_i];
    uint32_t u = 12345;
    for (int k = 0; k < 300000; k++) {
        u = u * 1664525u + 1013904223u;
        float x = fp8_float(u ^ u >> 16);
        if (k % 2) x = fp8_float(((u >> 8) % (24u << 23) + (108u << 23)) | (u & 0x80000000u));
        check_one(f, x);
        if (x != x) continue;
        ck_assert(f->of(-x) == (f->of(x) ^ 0x80));
        float y = nextafterf(x, INFINITY);
        if (y == y && f->value(f->of(y)) < f->value(f->of(x))) ck_abort_msg("not monotonic");
    }
}
END_TEST

START_TEST(test_given) {
    static const struct {
        float x;
        uint8_t e4m3, e5m2;
    } given[] = {{1.0f, 0x38, 0x3c},       {4.25f, 0x48, 0x44},    {4.75f, 0x4a, 0x45},
                 {448.0f, 0x7e, 0x5f},     {464.0f, 0x7e, 0x5f},   {-1e9f, 0xfe, 0xfb},
                 {61440.0f, 0x7e, 0x7b},   {0x1p-9f, 0x01, 0x18},  {0x1p-10f, 0x00, 0x14},
                 {-0x1.8p-9f, 0x82, 0x9a}, {0x1p-17f, 0x00, 0x00}, {0x1.8p-16f, 0x00, 0x02}};
    for (size_t k = 0; k < sizeof given / sizeof given[0]; k++) {
        ck_assert_uint_eq(e4m3_of(given[k].x), given[k].e4m3);
        ck_assert_uint_eq(e5m2_of(given[k].x), given[k].e5m2);
    }
    ck_assert_uint_eq(e4m3_of_ieee(464.0f), 0x7e);
    ck_assert_uint_eq(e4m3_of_ieee(-465.0f), 0xff);
    ck_assert_uint_eq(e5m2_of_ieee(61440.0f), 0x7c);
    ck_assert_uint_eq(e5m2_of_ieee(61439.0f), 0x7b);
}
END_TEST

START_TEST(test_scales) {
    uint32_t u = 99;
    for (unsigned c = 0; c < 255; c++) {
        float x = ldexpf(1, (int)c - 127);
        ck_assert(e8m0_value((uint8_t)c) == x);
        ck_assert_uint_eq(e8m0_of(x), c);
        if (c == 0) continue;
        ck_assert_uint_eq(e8m0_up(x), c);
        ck_assert_uint_eq(e8m0_up(nextafterf(x, 0)), c);
        if (c < 254) ck_assert_uint_eq(e8m0_up(nextafterf(x, INFINITY)), c + 1);
    }
    for (int k = 0; k < 100000; k++) {
        u = u * 1664525u + 1013904223u;
        float x = fp8_float(u >> 2 | 0x00800000u); /* normal, up to 2^1 */
        int e;
        float m = frexpf(x, &e);
        ck_assert(e8m0_value(e8m0_up(x)) == ldexpf(1, m == 0.5f ? e - 1 : e));
    }
    ck_assert_uint_eq(e8m0_of(NAN), 0xff);
    ck_assert_uint_eq(e8m0_of(-1), 0xff);
    ck_assert_uint_eq(e8m0_of(-0.0f), 0);
    ck_assert_uint_eq(e8m0_of(INFINITY), 254);
    ck_assert(isnan(e8m0_value(0xff)));
}
END_TEST

START_TEST(test_bf16) {
    uint32_t u = 7;
    for (int k = 0; k < 300000; k++) {
        u = u * 1664525u + 1013904223u;
        uint32_t bits = k % 3 ? u : (u & 0xffff0000u) | 0x8000u;
        float x = fp8_float(bits);
        uint16_t want;
        dtype_store(DT_bf16, &want, (double)x);
        if (x != x)
            ck_assert(isnan(bf16_value(bf16_of(x))));
        else
            ck_assert_uint_eq(bf16_of(x), want);
    }
}
END_TEST

/* ---- published cases ------------------------------------------------------------------------ */
static float json_float(const json_t *v) {
    const char *s = json_string_value(v);
    return s ? strtof(s, NULL) : (float)json_number_value(v);
}

static unsigned hex_at(const json_t *codes, size_t i) {
    char two[3] = {json_string_value(codes)[2 * i], json_string_value(codes)[2 * i + 1], '\0'};
    return (unsigned)strtoul(two, NULL, 16);
}

static void published(json_t *c) {
    const char *kind = json_string_value(json_object_get(c, "kind"));
    json_t *s = json_object_get(c, "settings"), *in = json_object_get(c, "input"), *v;
    json_t *want = json_object_get(c, "expect");
    const char *name = json_string_value(json_object_get(s, "format"));
    const char *overflow = json_string_value(json_object_get(s, "overflow"));
    const struct format *f = &formats[name && strcmp(name, "E5M2") == 0];
    size_t i;
    if (strcmp(kind, "encode") == 0) json_array_foreach(in, i, v) {
            float x = json_float(v);
            uint8_t got = strcmp(overflow, "ieee") == 0 ? f->ieee(x) : f->of(x);
            ck_assert_msg(got == hex_at(json_object_get(want, "codes"), i), "%s: %zu",
                          json_string_value(json_object_get(c, "id")), i);
        }
    else if (strcmp(kind, "decode") == 0)
        json_array_foreach(json_object_get(want, "values"), i, v) {
            float x = json_float(v), got = f->value((uint8_t)i);
            ck_assert_msg(x != x ? got != got : got == x, "code %02zx", i);
        }
    else
        json_array_foreach(in, i, v) {
            v = json_array_get(json_object_get(want, "bits"), i);
            ck_assert_uint_eq(bf16_of(json_float(json_array_get(in, i))),
                              strtoul(json_string_value(v), NULL, 16));
        }
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
        if (strcmp(kind, "encode") && strcmp(kind, "decode") && strcmp(kind, "bf16_round"))
            continue;
        published(c);
        seen++;
    }
    ck_assert_int_ge(seen, 14);
    json_decref(root);
}
END_TEST

int main(void) {
    Suite *s = suite_create("fp8");
    TCase *c = tcase_create("fp8");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, test_values, 0, 2);
    tcase_add_loop_test(c, test_boundaries, 0, 2);
    tcase_add_loop_test(c, test_random_bits, 0, 2);
    tcase_add_test(c, test_given);
    tcase_add_test(c, test_scales);
    tcase_add_test(c, test_bf16);
    tcase_add_test(c, test_published);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
