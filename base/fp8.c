// SPDX-License-Identifier: Apache-2.0
/* fp8.c - the conversions to 8-bit floats that are not asked for in inner loops. */
#include "base/fp8.h"
#include <math.h>

static uint8_t encode_ieee(float x, int man, int bias, uint32_t top) {
    const uint32_t u = fp8_bits(x), a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return FP8_NAN;
    uint32_t c = fp8_round(a, man, bias);
    return (uint8_t)((c > top ? top + 1u : c) | (u >> 24 & 0x80u));
}

uint8_t e4m3_of_ieee(float x) {
    return encode_ieee(x, 3, 7, FP8_E4M3_TOP); /* above the top comes NaN */
}

uint8_t e5m2_of_ieee(float x) {
    return encode_ieee(x, 2, 15, FP8_E5M2_TOP); /* or infinity */
}

/* An f32 that every narrower format rounds as it would x: towards zero, and odd where that changed
 * something, so that no tie appears or vanishes (rounding to odd; Boldo and Melquiond, 2008). */
static float to_odd(double x) {
    float f = (float)x;
    if (isnan(x) || (double)f == x) return f;
    if (fabs((double)f) > fabs(x)) f = nextafterf(f, 0.0f);
    return fp8_float(fp8_bits(f) | 1u);
}

uint8_t e4m3_of_double(double x) {
    return e4m3_of(to_odd(x));
}

uint8_t e5m2_of_double(double x) {
    return e5m2_of(to_odd(x));
}

uint8_t e8m0_of_double(double x) {
    return e8m0_of(to_odd(x));
}
