// SPDX-License-Identifier: Apache-2.0
/* cpu_math.h - elementary functions in f32 without calls or branches, so that loops over them
 * become vector code; within 2 units in the last place or 1e-6 relative. Polynomials are
 * least-maximum fits made for this file (Lawson's iteration); range reductions follow W. J. Cody
 * and W. Waite, "Software Manual for the Elementary Functions", 1980. f64 goes through libm. */
#ifndef LATHE_RUNTIME_CPU_MATH_H
#define LATHE_RUNTIME_CPU_MATH_H

#include "runtime/cpu_simd.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

SIMD_INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
SIMD_INLINE float of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
SIMD_INLINE float with_sign(float x, float sign) {
    return of_bits((bits_of(x) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u));
}
/* Both arms are computed and one is kept by its bits: compilers keep this free of branches. */
SIMD_INLINE float pick(int cond, float a, float b) {
    uint32_t m = 0u - (uint32_t)cond;
    return of_bits((bits_of(a) & m) | (bits_of(b) & ~m));
}

/* e^x = 2^n e^r: returns e^r and n in *n_bits, which is read from the bits of a sum that rounds. */
SIMD_INLINE float exp_parts(float x, uint32_t *n_bits) {
    const float shift = 12582912.0f; /* 1.5 * 2^23 */
    float t = x * 1.44269504f + shift;
    float n = t - shift;
    *n_bits = bits_of(t) - bits_of(shift);
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.381446475e-03f;
    p = p * r + 8.368780622e-03f;
    p = p * r + 4.166839426e-02f;
    p = p * r + 1.666652011e-01f;
    p = p * r + 4.999999341e-01f;
    return p * (r * r) + r + 1.0f;
}

/* 2^n is applied in two factors, so that results below 2^-126 come out right. */
SIMD_INLINE float exp_f32(float x) {
    uint32_t k;
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float p = exp_parts(x, &k);
    uint32_t half = (uint32_t)((int32_t)k >> 1);
    return p * of_bits((half + 127u) << 23) * of_bits((k - half + 127u) << 23);
}

/* The same for x <= 0, with results below 2^-126 given as 0: softmax wants no more. */
SIMD_INLINE float exp_neg_f32(float x) {
    uint32_t k;
    float p = exp_parts(x < -87.0f ? -87.0f : x, &k);
    return pick(x < -87.0f, 0.0f, p * of_bits((k + 127u) << 23));
}

/* log(2^e m) = e log 2 + log m, m in [sqrt(1/2), sqrt(2)). */
SIMD_INLINE float log_f32(float x) {
    float small = x < 1.17549435e-38f ? 8388608.0f : 1.0f;
    uint32_t u = bits_of(x * small) - 0x3f3504f3u; /* bits of sqrt(1/2) */
    float e = (float)((int32_t)u >> 23) - (x < 1.17549435e-38f ? 23.0f : 0.0f);
    float f = of_bits((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float p = 6.746601337e-02f;
    p = p * f - 1.167564130e-01f;
    p = p * f + 1.188817459e-01f;
    p = p * f - 1.240559142e-01f;
    p = p * f + 1.421955091e-01f;
    p = p * f - 1.666799567e-01f;
    p = p * f + 2.000211873e-01f;
    p = p * f - 2.500000960e-01f;
    p = p * f + 3.333331260e-01f;
    float z = f * f;
    float y = p * f * z + e * -2.12194440e-4f;
    y = y - 0.5f * z;
    y = f + y + e * 0.693359375f;
    y = pick(x == 0.0f, -INFINITY, y);
    y = pick(x < 0.0f, NAN, y);
    return pick(x == INFINITY || x != x, x, y);
}

SIMD_INLINE float tanh_f32(float x) {
    float a = fabsf(x);
    float z = x * x;
    float p = 2.043381432e-03f;
    p = p * z - 8.064249367e-03f;
    p = p * z + 2.165299702e-02f;
    p = p * z - 5.393766203e-02f;
    p = p * z + 1.333313054e-01f;
    p = p * z - 3.333332878e-01f;
    float near = x + x * z * p;
    float far = with_sign(1.0f - 2.0f / (exp_f32(2.0f * a) + 1.0f), x);
    return pick(a < 0.625f, near, far);
}

SIMD_INLINE float sigmoid_f32(float x) {
    return 1.0f / (1.0f + exp_f32(-x));
}

/* erfc(a) for a >= 0: exp(-a^2) t P(t), t = 1/(1 + p a): the form of Abramowitz and Stegun 7.1.26
 * with a fit of higher degree. */
SIMD_INLINE float erfc_f32(float a) {
    float t = 1.0f / (1.0f + 0.3275911f * a);
    float p = 5.581169574e-02f;
    p = p * t - 3.123372447e-01f;
    p = p * t + 6.158254137e-01f;
    p = p * t - 5.442678863e-01f;
    p = p * t + 4.878398018e-01f;
    p = p * t - 4.286022733e-02f;
    p = p * t + 2.032445024e-01f;
    p = p * t + 1.662433792e-01f;
    p = p * t + 1.857173157e-01f;
    p = p * t + 1.847832446e-01f;
    return exp_f32(-a * a) * t * p;
}

SIMD_INLINE float erf_f32(float x) {
    float a = fabsf(x);
    float z = x * x;
    float p = 7.853857685e-05f;
    p = p * z - 8.010192515e-04f;
    p = p * z + 5.188327559e-03f;
    p = p * z - 2.685381187e-02f;
    p = p * z + 1.128358515e-01f;
    p = p * z - 3.761262582e-01f;
    p = p * z + 1.128379166e+00f;
    float far = with_sign(1.0f - erfc_f32(a), x);
    return pick(a < 1.0f, x * p, far);
}

/* x Phi(x); the tail keeps its relative precision. */
SIMD_INLINE float gelu_f32(float x) {
    float half = 0.5f * erfc_f32(fabsf(x) * 0.70710678f);
    float phi = pick(x < 0.0f, half, 1.0f - half);
    return x * pick(fabsf(x) < 1.0f, 0.5f + 0.5f * erf_f32(x * 0.70710678f), phi);
}
SIMD_INLINE float gelu_tanh_f32(float x) {
    float u = 0.79788456f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(u));
}

/* sin and cos of x + quarter * pi/2, |x| < 1e6: reduction in f64, Taylor series on [-pi/4, pi/4].
 */
SIMD_INLINE float sincos_f32(float x, uint32_t quarter) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    double t = (double)x * 0.63661977236758134 + shift;
    double n = t - shift;
    float r = (float)((double)x - n * 1.5707963267948966 - n * 6.123233995736766e-17);
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    uint32_t k = (uint32_t)bits + quarter;
    float z = r * r;
    float s = 2.75573192e-6f;
    s = s * z - 1.98412698e-4f;
    s = s * z + 8.33333333e-3f;
    s = s * z - 1.66666667e-1f;
    s = r + r * z * s;
    float c = -2.75573192e-7f;
    c = c * z + 2.48015873e-5f;
    c = c * z - 1.38888889e-3f;
    c = c * z + 4.16666667e-2f;
    c = 1.0f - 0.5f * z + z * z * c;
    float y = pick((k & 1u) != 0, c, s);
    return of_bits(bits_of(y) ^ ((k & 2u) << 30));
}

#endif
