// SPDX-License-Identifier: Apache-2.0
/* expand.h - dynamic range expansion: a group of numbers as 8-bit floats whose range fits the
 * group's own (H. Xi et al., COAT, 2025). With amax the largest magnitude of the group and fmax
 * that of the format, |x| is stored as fmax * (|x|/amax)^k, and comes back as amax *
 * (code/fmax)^(1/k). k is such that the smallest magnitude lands just above the bottom of the
 * format; it is kept in sixteenths, one byte. k = 16 (that is, 1) for all groups is plain scaling.
 *
 * There are 255 exponents and 128 magnitudes of a code, so that both directions are tables. They
 * are the definition: whoever follows them, however it finds the place in them, gives the same
 * bits. Zero stays zero. Infinities and NaN count as the largest f32; an infinity gets the largest
 * code, NaN that of a NaN. Nothing here keeps anything; thread-safe. */
#ifndef LATHE_BASE_EXPAND_H
#define LATHE_BASE_EXPAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum expand_format { EXPAND_E4M3, EXPAND_E5M2 };
enum {
    EXPAND_CODES = 128, /* magnitudes: a code without its sign, which is 0x80 */
    EXPAND_STEPS = 256, /* exponents in sixteenths, from 1 */
    EXPAND_ONE = 16,    /* no expansion */
    EXPAND_GROUP = 128, /* values that share amax and k, unless said otherwise */
    EXPAND_GROUP_MAX = 256,
    EXPAND_FLOATS = EXPAND_STEPS * (2 * EXPAND_CODES + 1), /* of a table */
};

/* Everything over amax; rows by k. Floats only, so that it can be copied to a device as it is. */
struct expand_table {
    float value[EXPAND_STEPS][EXPAND_CODES]; /* what a code stands for */
    float least[EXPAND_STEPS][EXPAND_CODES]; /* the least magnitude that rounds to it */
    float ratio[EXPAND_STEPS];               /* the least minimum of a group that may have k */
};

/* Largest finite code, its value, and the quotient of the largest and the smallest number. */
uint8_t expand_top_code(enum expand_format f);
double expand_code_value(enum expand_format f, unsigned code); /* without sign; NaN, infinity */
double expand_full_range(enum expand_format f);                /* e4m3: 229376 */
/* What a group is spread over by default: 7/16 of it (e4m3: 100352 = 448*448/2, as published), so
 * that the smallest magnitude of a group lands on 2.3 units of the smallest code. */
double expand_default_range(enum expand_format f);
void expand_fill(struct expand_table *t, enum expand_format f, double range);
/* x^k for x >= 0 by the functions that fill the tables. */
double expand_power(double x, double k);

struct expand_group {
    float amax;
    uint8_t k;
};
/* Of n values; k between the bounds, and EXPAND_ONE where all are zero. */
struct expand_group expand_measure(const struct expand_table *t, const float *x, int64_t n,
                                   int k_min, int k_max);
/* |x| / amax is |x| * up * inverse, in this order. */
struct expand_scale {
    float up, inverse;
};
struct expand_scale expand_scale(float amax);

/* The magnitude of a code for r = |x|/amax: nearest, or up with the probability that keeps the mean
 * (u is uniform in [0, 1)). 0x7f for NaN. */
uint8_t expand_nearest(const struct expand_table *t, int k, float r);
uint8_t expand_random(const struct expand_table *t, int k, float r, float u);
/* u of element `index` of a tensor in a step: equal for equal arguments, whoever computes it. */
static inline uint32_t expand_mix(uint32_t x) { /* C. Wellons' lowbias32 (2018) */
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
static inline uint32_t expand_key(uint32_t step, float amax) {
    uint32_t bits;
    memcpy(&bits, &amax, sizeof bits);
    return expand_mix(step * 0x9e3779b9u ^ bits);
}
static inline float expand_uniform(uint32_t key, uint32_t index) {
    uint32_t bits = expand_mix(key ^ index / 2); /* two neighbours share it */
    bits = (index % 2 ? bits >> 16 : bits & 0xffffu) << 7 | 0x3f800000u;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x - 1.0f;
}

/* Groups of n <= EXPAND_GROUP_MAX values, to nearest. With `keep` a number that is not 0 gets code
 * 1 at least. */
void expand_encode(const struct expand_table *t, struct expand_group g, const float *x, int64_t n,
                   bool keep, uint8_t *codes);
void expand_decode(const struct expand_table *t, struct expand_group g, const uint8_t *codes,
                   int64_t n, float *x);

#endif
