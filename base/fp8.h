// SPDX-License-Identifier: Apache-2.0
/* fp8.h - numbers of one byte: the 8-bit floats e4m3 and e5m2 (P. Micikevicius et al., "FP8 formats
 * for deep learning", 2022; OCP 8-bit floating point, 2023), powers of two as scales (e8m0, OCP MX,
 * 2023), and bf16 beside them. One value at a time, without calls or branches, so that loops over
 * these become vector code. They are the reference for every device: the conversions of GPUs
 * (cvt.rn.satfinite) give the same codes.
 *
 * e4m3: 4 bits of exponent, 3 of mantissa, no infinities, NaN is 0x7f; largest 448, smallest 2^-9.
 * e5m2: 5 and 2, infinity is 0x7c; largest finite 57344, smallest 2^-16. Encoding rounds to
 * nearest, ties to even, and saturates: what is too large, infinities too, becomes the largest
 * finite number; zeros keep their sign; every NaN becomes 0x7f. Needs the default rounding mode and
 * subnormal numbers. Nothing here keeps anything; thread-safe. */
#ifndef LATHE_BASE_FP8_H
#define LATHE_BASE_FP8_H

#include <stdint.h>
#include <string.h>

#define FP8_INLINE static inline __attribute__((always_inline))

#define FP8_E4M3_MAX 448.0f
#define FP8_E5M2_MAX 57344.0f
enum { FP8_E4M3_TOP = 0x7e, FP8_E5M2_TOP = 0x7b, FP8_NAN = 0x7f, E8M0_NAN = 0xff };

FP8_INLINE uint32_t fp8_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
FP8_INLINE float fp8_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The magnitude's code, rounded but not yet bounded, from the bits of |x|, not NaN. A normal number
 * keeps the upper `man` bits of its mantissa and gets its exponent's offset changed; for subnormal
 * results the sum with 2^23 smallest numbers rounds. */
FP8_INLINE uint32_t fp8_round(uint32_t a, int man, int bias) {
    const uint32_t drop = (uint32_t)(23 - man), odd = (a >> drop) & 1u;
    const uint32_t kept = (a + (1u << (drop - 1)) - 1u + odd) >> drop;
    const uint32_t normal = kept - ((uint32_t)(127 - bias) << man);
    const float unit = fp8_float((uint32_t)(127 - bias + 1 - man + 23) << 23);
    /* A bounded operand: the sum of the unused arm must not overflow into a trap or a slow path. */
    const uint32_t least = (uint32_t)(127 - bias + 1) << 23, low = a < least ? a : least;
    const uint32_t small = fp8_bits(fp8_float(low) + unit) - fp8_bits(unit);
    return a < least ? small : normal;
}
FP8_INLINE uint8_t fp8_encode(uint32_t u, int man, int bias, uint32_t top) {
    const uint32_t a = u & 0x7fffffffu, sign = u >> 24 & 0x80u;
    const uint32_t bound = a < 0x7f800000u ? a : 0x7f800000u;
    uint32_t c = fp8_round(bound, man, bias);
    c = (c < top ? c : top) | sign;
    return (uint8_t)(a > 0x7f800000u ? (uint32_t)FP8_NAN : c);
}

FP8_INLINE uint8_t e4m3_of(float x) {
    return fp8_encode(fp8_bits(x), 3, 7, FP8_E4M3_TOP);
}
FP8_INLINE uint8_t e5m2_of(float x) {
    return fp8_encode(fp8_bits(x), 2, 15, FP8_E5M2_TOP);
}

/* The mantissa and exponent of the code in the place of an f32's are the number over a power of
 * two; products with it are exact. */
FP8_INLINE float e4m3_value(uint8_t code) {
    const uint32_t c = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t u = fp8_bits(fp8_float(c << 20) * 0x1p120f);
    return fp8_float((c == FP8_NAN ? 0x7fc00000u : u) | sign);
}
FP8_INLINE float e5m2_value(uint8_t code) {
    const uint32_t c = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t u = fp8_bits(fp8_float(c << 21) * 0x1p112f);
    return fp8_float((c > 0x7cu ? 0x7fc00000u : c == 0x7cu ? 0x7f800000u : u) | sign);
}

/* Without saturation, as IEEE 754 has it: what is too large becomes NaN (e4m3) or infinity (e5m2)
 * of its sign. */
uint8_t e4m3_of_ieee(float x);
uint8_t e5m2_of_ieee(float x);
/* From a double, rounded once. */
uint8_t e4m3_of_double(double x);
uint8_t e5m2_of_double(double x);

/* 2^(code - 127), 0xff is NaN. Encoding: to nearest, ties up; below the range (0 as well) 2^-127,
 * above it 2^127; negative numbers and NaN give NaN. */
FP8_INLINE uint8_t e8m0_of(float x) {
    const uint32_t u = fp8_bits(x), a = u & 0x7fffffffu;
    uint32_t e = (a + 0x00400000u) >> 23;
    e = e < 1u ? 1u : e > 254u ? 254u : e;
    e = a < 0x00600000u ? 0u : e; /* nearer to 2^-127 than to 2^-126 */
    return (uint8_t)(a > 0x7f800000u || (u > 0x80000000u) ? (uint32_t)E8M0_NAN : e);
}
FP8_INLINE float e8m0_value(uint8_t code) {
    return fp8_float(code == E8M0_NAN ? 0x7fc00000u : code ? (uint32_t)code << 23 : 0x00400000u);
}
uint8_t e8m0_of_double(double x);
/* The least power of two that is at least x, 0 <= x <= 2^127, as e8m0: rounding to nearest after a
 * factor just below 3/2, which leaves powers of two below the tie and lifts all else to it. */
#define E8M0_UP 1.49999988f
FP8_INLINE uint8_t e8m0_up(float x) {
    return e8m0_of(x * E8M0_UP);
}

/* bf16: the upper half of an f32, nearest, ties to even; NaN keeps a quiet payload. */
FP8_INLINE uint16_t bf16_of(float x) {
    const uint32_t u = fp8_bits(x), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
}
FP8_INLINE float bf16_value(uint16_t code) {
    return fp8_float((uint32_t)code << 16);
}

#endif
