// SPDX-License-Identifier: Apache-2.0
/* cpu_group_ops.c - a kernel for every elementwise op of ops.def on f32, f64, i64 and bool
 * registers, and the table of them. An EW row of ops.def that is missing here does not build. */
#include "runtime/cpu_group.h"
#include "runtime/cpu_math.h"
#include "runtime/cpu_simd.h"

#define ARGS                                                                                       \
    void *restrict o_, const void *restrict a_, const void *restrict b_, const void *restrict c_,  \
        int64_t n
#define UNUSED_BC (void)b_, (void)c_

/* One operand x of type T gives R. */
#define MAP1(attr, name, T, R, expr)                                                               \
    attr static void name(ARGS) {                                                                  \
        UNUSED_BC;                                                                                 \
        R *restrict o = o_;                                                                        \
        const T *restrict a = a_;                                                                  \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = a[i];                                                                            \
            o[i] = (R)(expr);                                                                      \
        }                                                                                          \
    }
#define MAP2_FORM(attr, name, T, R, expr, xi, yi)                                                  \
    attr static void name(ARGS) {                                                                  \
        (void)c_;                                                                                  \
        R *restrict o = o_;                                                                        \
        const T *restrict a = a_;                                                                  \
        const T *restrict b = b_;                                                                  \
        const T a0 = a[0], b0 = b[0];                                                              \
        (void)a0, (void)b0;                                                                        \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = xi, y = yi;                                                                      \
            o[i] = (R)(expr);                                                                      \
        }                                                                                          \
    }
/* Two operands x, y: both vectors, or one of them a single value. */
#define MAP2(attr, name, T, R, expr)                                                               \
    MAP2_FORM(attr, name##_vv, T, R, expr, a[i], b[i])                                             \
    MAP2_FORM(attr, name##_vs, T, R, expr, a[i], b0)                                               \
    MAP2_FORM(attr, name##_sv, T, R, expr, a0, b[i])
#define PLAIN

#define F1(op, e32, e64)                                                                           \
    MAP1(SIMD, k_##op##_f32, float, float, e32)                                                    \
    MAP1(PLAIN, k_##op##_f64, double, double, e64)
#define LIB1(op, e32, e64)                                                                         \
    MAP1(PLAIN, k_##op##_f32, float, float, e32)                                                   \
    MAP1(PLAIN, k_##op##_f64, double, double, e64)
#define F2(op, e32, e64)                                                                           \
    MAP2(SIMD, k_##op##_f32, float, float, e32)                                                    \
    MAP2(PLAIN, k_##op##_f64, double, double, e64)
#define TEST2(op, expr)                                                                            \
    MAP2(SIMD, k_##op##_f32, float, uint8_t, expr)                                                 \
    MAP2(PLAIN, k_##op##_f64, double, uint8_t, expr)                                               \
    MAP2(PLAIN, k_##op##_i64, int64_t, uint8_t, expr)                                              \
    MAP2(PLAIN, k_##op##_bool, uint8_t, uint8_t, expr)

/* ---- one operand ------------------------------------------------------------------------------
 */
F1(neg, -x, -x)
F1(abs, fabsf(x), fabs(x))
F1(sign, x != x ? x : (float)(x > 0) - (float)(x < 0), x != x ? x : (double)((x > 0) - (x < 0)))
F1(floor, floorf(x), floor(x))
F1(ceil, ceilf(x), ceil(x))
F1(round, rintf(x), rint(x))
F1(exp, exp_f32(x), exp(x))
F1(log, log_f32(x), log(x))
LIB1(log1p, log1pf(x), log1p(x))
LIB1(expm1, expm1f(x), expm1(x))
F1(sqrt, sqrtf(x), sqrt(x))
F1(rsqrt, 1.0f / sqrtf(x), 1.0 / sqrt(x))
F1(recip, 1.0f / x, 1.0 / x)
LIB1(tan, tanf(x), tan(x))
LIB1(asin, asinf(x), asin(x))
LIB1(acos, acosf(x), acos(x))
LIB1(atan, atanf(x), atan(x))
LIB1(sinh, sinhf(x), sinh(x))
LIB1(cosh, coshf(x), cosh(x))
F1(tanh, tanh_f32(x), tanh(x))
F1(erf, erf_f32(x), erf(x))
F1(sigmoid, sigmoid_f32(x), 1.0 / (1.0 + exp(-x)))
F1(relu, x <= 0.0f ? 0.0f : x, x <= 0.0 ? 0.0 : x)
F1(gelu, gelu_f32(x), 0.5 * x * erfc(-x * 0.70710678118654752))
F1(gelu_tanh, gelu_tanh_f32(x),
   0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))))
F1(silu, x *sigmoid_f32(x), x / (1.0 + exp(-x)))

/* Arguments beyond the fast reduction take libm's. */
#define TRIG(name, quarter, f, ff)                                                                 \
    SIMD static bool name##_fast(float *restrict o, const float *restrict a, int64_t n) {          \
        int far = 0;                                                                               \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            far |= !(fabsf(a[i]) < 1e6f);                                                          \
            o[i] = sincos_f32(a[i], quarter);                                                      \
        }                                                                                          \
        return far != 0;                                                                           \
    }                                                                                              \
    static void k_##name##_f32(ARGS) {                                                             \
        UNUSED_BC;                                                                                 \
        float *o = o_;                                                                             \
        const float *a = a_;                                                                       \
        if (!name##_fast(o, a, n)) return;                                                         \
        for (int64_t i = 0; i < n; i++)                                                            \
            if (!(fabsf(a[i]) < 1e6f)) o[i] = ff(a[i]);                                            \
    }                                                                                              \
    MAP1(PLAIN, k_##name##_f64, double, double, f(x))
TRIG(sin, 0, sin, sinf)
TRIG(cos, 1, cos, cosf)

/* Integer arithmetic wraps; division by zero gives 0. */
#define WRAP(expr) ((int64_t)(expr))
#define UX         ((uint64_t)x)
#define UY         ((uint64_t)y)
static int64_t div_i64(int64_t x, int64_t y) {
    if (y == 0) return 0;
    return y == -1 ? WRAP(0 - UX) : x / y;
}
static int64_t fmod_i64(int64_t x, int64_t y) {
    return y == 0 || y == -1 ? 0 : x % y;
}
static int64_t mod_i64_one(int64_t x, int64_t y) {
    int64_t r = fmod_i64(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static int64_t pow_i64_one(int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    uint64_t r = 1, base = (uint64_t)x;
    for (uint64_t e = (uint64_t)y; e; e >>= 1, base *= base)
        if (e & 1) r *= base;
    return WRAP(r);
}
static double mod_f64_one(double x, double y) {
    double r = fmod(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static float mod_f32_one(float x, float y) {
    float r = fmodf(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
MAP1(PLAIN, k_neg_i64, int64_t, int64_t, WRAP(0 - UX))
MAP1(PLAIN, k_abs_i64, int64_t, int64_t, x < 0 ? WRAP(0 - UX) : x)
MAP1(PLAIN, k_sign_i64, int64_t, int64_t, (x > 0) - (x < 0))
MAP1(PLAIN, k_copy_i64, int64_t, int64_t, x)
MAP1(PLAIN, k_relu_i64, int64_t, int64_t, x > 0 ? x : 0)
MAP1(PLAIN, k_not_bool, uint8_t, uint8_t, !x)
MAP1(SIMD, k_isnan_f32, float, uint8_t, x != x)
MAP1(PLAIN, k_isnan_f64, double, uint8_t, x != x)
MAP1(SIMD, k_isinf_f32, float, uint8_t, fabsf(x) == INFINITY)
MAP1(PLAIN, k_isinf_f64, double, uint8_t, fabs(x) == (double)INFINITY)
MAP1(PLAIN, k_false_i64, int64_t, uint8_t, x != x)

/* ---- two operands -----------------------------------------------------------------------------
 */
F2(add, x + y, x + y)
F2(sub, x - y, x - y)
F2(mul, x *y, x *y)
F2(div, x / y, x / y)
F2(max, x > y || x != x ? x : y, x > y || x != x ? x : y)
F2(min, x < y || x != x ? x : y, x < y || x != x ? x : y)
MAP2(PLAIN, k_mod_f32, float, float, mod_f32_one(x, y))
MAP2(PLAIN, k_mod_f64, double, double, mod_f64_one(x, y))
MAP2(PLAIN, k_fmod_f32, float, float, fmodf(x, y))
MAP2(PLAIN, k_fmod_f64, double, double, fmod(x, y))
MAP2(PLAIN, k_powl_f32, float, float, powf(x, y))
MAP2(PLAIN, k_pow_f64, double, double, pow(x, y))
MAP2(PLAIN, k_add_i64, int64_t, int64_t, WRAP(UX + UY))
MAP2(PLAIN, k_sub_i64, int64_t, int64_t, WRAP(UX - UY))
MAP2(PLAIN, k_mul_i64, int64_t, int64_t, WRAP(UX *UY))
MAP2(PLAIN, k_quot_i64, int64_t, int64_t, div_i64(x, y))
MAP2(PLAIN, k_mod_i64, int64_t, int64_t, mod_i64_one(x, y))
MAP2(PLAIN, k_rem_i64, int64_t, int64_t, fmod_i64(x, y))
MAP2(PLAIN, k_pow_i64, int64_t, int64_t, pow_i64_one(x, y))
MAP2(PLAIN, k_max_i64, int64_t, int64_t, x > y ? x : y)
MAP2(PLAIN, k_min_i64, int64_t, int64_t, x < y ? x : y)
MAP2(PLAIN, k_and_i64, int64_t, int64_t, x &y)
MAP2(PLAIN, k_or_i64, int64_t, int64_t, x | y)
MAP2(PLAIN, k_xor_i64, int64_t, int64_t, x ^ y)
MAP2(PLAIN, k_and_bool, uint8_t, uint8_t, x &y)
MAP2(PLAIN, k_or_bool, uint8_t, uint8_t, x | y)
MAP2(PLAIN, k_xor_bool, uint8_t, uint8_t, x ^ y)
TEST2(eq, x == y)
TEST2(ne, x != y)
TEST2(lt, x < y)
TEST2(le, x <= y)

/* Common exponents; each agrees with powf to its precision. */
MAP1(SIMD, k_square_f32, float, float, x *x)
MAP1(SIMD, k_cube_f32, float, float, x *x *x)
#define k_pow_f32_vv k_powl_f32_vv
#define k_pow_f32_sv k_powl_f32_sv
static void k_pow_f32_vs(ARGS) {
    float y = *(const float *)b_;
    if (y == 2.0f)
        k_square_f32(o_, a_, b_, c_, n);
    else if (y == 3.0f)
        k_cube_f32(o_, a_, b_, c_, n);
    else if (y == -1.0f)
        k_recip_f32(o_, a_, b_, c_, n);
    else
        k_powl_f32_vs(o_, a_, b_, c_, n);
}

/* ---- three operands ---------------------------------------------------------------------------
 */
#define CLIP_FORM(attr, name, T, lo_i, hi_i)                                                       \
    attr static void name(ARGS) {                                                                  \
        T *restrict o = o_;                                                                        \
        const T *restrict a = a_;                                                                  \
        const T *restrict b = b_;                                                                  \
        const T *restrict c = c_;                                                                  \
        const T b0 = b[0], c0 = c[0];                                                              \
        (void)b0, (void)c0;                                                                        \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = a[i], lo = lo_i, hi = hi_i;                                                      \
            x = x < lo ? lo : x;                                                                   \
            o[i] = x > hi ? hi : x;                                                                \
        }                                                                                          \
    }
#define CLIP(attr, name, T)                                                                        \
    CLIP_FORM(attr, name##_vv, T, b[i], c[i])                                                      \
    CLIP_FORM(attr, name##_vs, T, b0, c0)
CLIP(SIMD, k_clip_f32, float)
CLIP(PLAIN, k_clip_f64, double)
CLIP(PLAIN, k_clip_i64, int64_t)
#define WHERE(attr, name, U)                                                                       \
    attr static void name(ARGS) {                                                                  \
        U *restrict o = o_;                                                                        \
        const uint8_t *restrict a = a_;                                                            \
        const U *restrict b = b_;                                                                  \
        const U *restrict c = c_;                                                                  \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            U m = (U)(0 - (U)(a[i] != 0));                                                         \
            o[i] = (U)((b[i] & m) | (c[i] & (U)~m));                                               \
        }                                                                                          \
    }
WHERE(SIMD, k_where_4, uint32_t)
WHERE(SIMD, k_where_8, uint64_t)
WHERE(SIMD, k_where_1, uint8_t)

/* ---- the table --------------------------------------------------------------------------------
 */
struct ew_row {
    ew_fn *f32[EW_FORMS], *f64[EW_FORMS], *i64[EW_FORMS], *b[EW_FORMS];
};
#define ONE(f)                                                                                     \
    { k_##f, NULL, NULL }
#define TWO(f)                                                                                     \
    { k_##f##_vv, k_##f##_vs, k_##f##_sv }
#define CLIP3(f)                                                                                   \
    { k_##f##_vv, k_##f##_vs, NULL }
#define NO                                                                                         \
    { NULL, NULL, NULL }

// clang-format off
#define EW_ROWS(ROW)                                                                               \
    ROW(neg,     ONE(neg_f32), ONE(neg_f64), ONE(neg_i64), NO)                                     \
    ROW(abs,     ONE(abs_f32), ONE(abs_f64), ONE(abs_i64), NO)                                     \
    ROW(sign,    ONE(sign_f32), ONE(sign_f64), ONE(sign_i64), NO)                                  \
    ROW(floor,   ONE(floor_f32), ONE(floor_f64), ONE(copy_i64), NO)                                \
    ROW(ceil,    ONE(ceil_f32), ONE(ceil_f64), ONE(copy_i64), NO)                                  \
    ROW(round,   ONE(round_f32), ONE(round_f64), ONE(copy_i64), NO)                                \
    ROW(exp,     ONE(exp_f32), ONE(exp_f64), NO, NO)                                               \
    ROW(log,     ONE(log_f32), ONE(log_f64), NO, NO)                                             \
    ROW(log1p,   ONE(log1p_f32), ONE(log1p_f64), NO, NO)                                           \
    ROW(expm1,   ONE(expm1_f32), ONE(expm1_f64), NO, NO)                                           \
    ROW(sqrt,    ONE(sqrt_f32), ONE(sqrt_f64), NO, NO)                                             \
    ROW(rsqrt,   ONE(rsqrt_f32), ONE(rsqrt_f64), NO, NO)                                           \
    ROW(recip,   ONE(recip_f32), ONE(recip_f64), NO, NO)                                           \
    ROW(sin,     ONE(sin_f32), ONE(sin_f64), NO, NO)                                               \
    ROW(cos,     ONE(cos_f32), ONE(cos_f64), NO, NO)                                               \
    ROW(tan,     ONE(tan_f32), ONE(tan_f64), NO, NO)                                               \
    ROW(asin,    ONE(asin_f32), ONE(asin_f64), NO, NO)                                             \
    ROW(acos,    ONE(acos_f32), ONE(acos_f64), NO, NO)                                             \
    ROW(atan,    ONE(atan_f32), ONE(atan_f64), NO, NO)                                             \
    ROW(sinh,    ONE(sinh_f32), ONE(sinh_f64), NO, NO)                                             \
    ROW(cosh,    ONE(cosh_f32), ONE(cosh_f64), NO, NO)                                             \
    ROW(tanh,    ONE(tanh_f32), ONE(tanh_f64), NO, NO)                                             \
    ROW(erf,     ONE(erf_f32), ONE(erf_f64), NO, NO)                                               \
    ROW(sigmoid, ONE(sigmoid_f32), ONE(sigmoid_f64), NO, NO)                                       \
    ROW(relu,    ONE(relu_f32), ONE(relu_f64), ONE(relu_i64), NO)                                  \
    ROW(gelu,    ONE(gelu_f32), ONE(gelu_f64), NO, NO)                                             \
    ROW(silu,    ONE(silu_f32), ONE(silu_f64), NO, NO)                                             \
    ROW(not,     NO, NO, NO, ONE(not_bool))                                                        \
    ROW(isnan,   ONE(isnan_f32), ONE(isnan_f64), ONE(false_i64), NO)                               \
    ROW(isinf,   ONE(isinf_f32), ONE(isinf_f64), ONE(false_i64), NO)                               \
    ROW(cast,    NO, NO, NO, NO) /* ew_cast */                                                     \
    ROW(add,     TWO(add_f32), TWO(add_f64), TWO(add_i64), TWO(or_bool))                           \
    ROW(sub,     TWO(sub_f32), TWO(sub_f64), TWO(sub_i64), NO)                                     \
    ROW(mul,     TWO(mul_f32), TWO(mul_f64), TWO(mul_i64), TWO(and_bool))                          \
    ROW(div,     TWO(div_f32), TWO(div_f64), TWO(quot_i64), NO)                                    \
    ROW(mod,     TWO(mod_f32), TWO(mod_f64), TWO(mod_i64), NO)                                     \
    ROW(pow,     TWO(pow_f32), TWO(pow_f64), TWO(pow_i64), NO)                                     \
    ROW(max,     TWO(max_f32), TWO(max_f64), TWO(max_i64), TWO(or_bool))                           \
    ROW(min,     TWO(min_f32), TWO(min_f64), TWO(min_i64), TWO(and_bool))                          \
    ROW(eq,      TWO(eq_f32), TWO(eq_f64), TWO(eq_i64), TWO(eq_bool))                              \
    ROW(ne,      TWO(ne_f32), TWO(ne_f64), TWO(ne_i64), TWO(ne_bool))                              \
    ROW(lt,      TWO(lt_f32), TWO(lt_f64), TWO(lt_i64), TWO(lt_bool))                              \
    ROW(le,      TWO(le_f32), TWO(le_f64), TWO(le_i64), TWO(le_bool))                              \
    ROW(and,     NO, NO, TWO(and_i64), TWO(and_bool))                                              \
    ROW(or,      NO, NO, TWO(or_i64), TWO(or_bool))                                                \
    ROW(xor,     NO, NO, TWO(xor_i64), TWO(xor_bool))                                              \
    ROW(clip,    CLIP3(clip_f32), CLIP3(clip_f64), CLIP3(clip_i64), NO)                            \
    ROW(where,   ONE(where_4), ONE(where_8), ONE(where_8), ONE(where_1))
// clang-format on

#define OP(id, min_in, max_in, outs, traits, ...) +(((traits)&EW) != 0)
#define ROW(id, ...)                              +1
_Static_assert((0 EW_ROWS(ROW)) == (0
#include "ir/ops.def"
                                    ),
               "every elementwise op of ops.def has a row of kernels");
#undef OP
#undef ROW

#define ROW(id, ...) [OP_##id] = {__VA_ARGS__},
static const struct ew_row rows[OP_COUNT] = {EW_ROWS(ROW)};
#undef ROW
/* What `flag` turns gelu and mod into. */
static const struct ew_row gelu_tanh_row = {ONE(gelu_tanh_f32), ONE(gelu_tanh_f64), NO, NO};
static const struct ew_row rem_row = {TWO(fmod_f32), TWO(fmod_f64), TWO(rem_i64), NO};

ew_fn *ew_kernel(enum op op, enum dtype in, enum ew_form form, bool flag) {
    const struct ew_row *r = &rows[op];
    if (flag && op == OP_gelu) r = &gelu_tanh_row;
    if (flag && op == OP_mod) r = &rem_row;
    switch (in) {
    case DT_f32: return r->f32[form];
    case DT_f64: return r->f64[form];
    case DT_i64: return r->i64[form];
    case DT_bool: return r->b[form];
    default: return NULL;
    }
}
