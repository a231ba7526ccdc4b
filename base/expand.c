// SPDX-License-Identifier: Apache-2.0
/* expand.c - the tables of range expansion and their use, one value at a time. Kernels that are
 * faster find their place in the tables in other ways. */
#include "base/expand.h"
#include <float.h>
#include <math.h>
#include <string.h>

/* ---- formats ------------------------------------------------------------------------------- */
static int mantissa_bits(enum expand_format f) {
    return f == EXPAND_E4M3 ? 3 : 2;
}

uint8_t expand_top_code(enum expand_format f) {
    return f == EXPAND_E4M3 ? 0x7e : 0x7b;
}

double expand_code_value(enum expand_format f, unsigned code) {
    int man = mantissa_bits(f), bias = f == EXPAND_E4M3 ? 7 : 15;
    unsigned e = code >> man, m = code & ((1u << man) - 1);
    if (code > expand_top_code(f))
        return f == EXPAND_E5M2 && m == 0 ? (double)INFINITY : (double)NAN;
    if (e == 0) return ldexp(m, 1 - bias - man);
    return ldexp((double)m + (1 << man), (int)e - bias - man);
}

double expand_full_range(enum expand_format f) {
    return expand_code_value(f, expand_top_code(f)) / expand_code_value(f, 1);
}

double expand_default_range(enum expand_format f) {
    return expand_full_range(f) * 7 / 16;
}

/* ---- powers ------------------------------------------------------------------------------------
 * Own functions of plain sums and products in a fixed order: the tables are the same wherever they
 * are filled, which those of a C library need not be. Errors are near 2^-52, and f32 is kept. */
static const double ln2 = 0.69314718055994530942;

/* x > 0. The series of the inverse hyperbolic tangent on [sqrt(1/2), sqrt(2)]. */
static double log2_of(double x) {
    int e;
    double m = frexp(x, &e), sum = 0;
    if (m < 0.70710678118654752440) m *= 2, e--;
    double s = (m - 1) / (m + 1), ss = s * s;
    for (int k = 23; k >= 1; k -= 2) sum = sum * ss + 1.0 / k;
    return e + 2 * s * sum / ln2;
}

/* Taylor's series on [-1/2, 1/2]. */
static double exp2_of(double x) {
    if (x < -2000) return 0;
    double whole = floor(x + 0.5), z = (x - whole) * ln2, sum = 1;
    for (int k = 17; k >= 1; k--) sum = 1 + sum * z / k;
    return ldexp(sum, (int)whole);
}

double expand_power(double x, double k) {
    return x > 0 ? exp2_of(k * log2_of(x)) : 0;
}

/* ---- tables -------------------------------------------------------------------------------- */
/* What is halfway between codes c-1 and c goes to the even one; it can be met only where nothing is
 * raised to a power. */
static float least_of(double halfway, double power, int k, int c) {
    float t = (float)power;
    bool odd_tie = k == EXPAND_ONE && c % 2 && (double)t == halfway;
    return odd_tie ? nextafterf(t, 1.0f) : t;
}

void expand_fill(struct expand_table *t, enum expand_format f, double range) {
    unsigned top = expand_top_code(f);
    double fmax = expand_code_value(f, top), value[EXPAND_CODES], half[EXPAND_CODES];
    double log_value[EXPAND_CODES], log_half[EXPAND_CODES], log_range = log2_of(range);
    memset(t, 0, sizeof *t);
    for (unsigned c = 1; c < EXPAND_CODES; c++) {
        value[c] = expand_code_value(f, c) / fmax;
        if (c > top) continue;
        half[c] = (expand_code_value(f, c - 1) + expand_code_value(f, c)) / 2 / fmax;
        log_value[c] = log2_of(value[c]), log_half[c] = log2_of(half[c]);
    }
    for (int k = 1; k < EXPAND_STEPS; k++) {
        double root = (double)EXPAND_ONE / k;
        bool one = k == EXPAND_ONE;
        t->ratio[k] = (float)exp2_of(-root * log_range);
        for (unsigned c = 1; c < EXPAND_CODES; c++) {
            if (c > top) { /* no number rounds to these */
                t->value[k][c] = (float)value[c];
                t->least[k][c] = INFINITY;
                continue;
            }
            t->value[k][c] = (float)(one ? value[c] : exp2_of(root * log_value[c]));
            t->least[k][c] =
                least_of(half[c], one ? half[c] : exp2_of(root * log_half[c]), k, (int)c);
        }
    }
}

/* ---- groups -------------------------------------------------------------------------------- */
enum { CODE_NAN = 0x7f };

/* Below the normal numbers of f32 nothing is told apart. */
static bool vanishes(float r) {
    return r < FLT_MIN;
}

struct expand_scale expand_scale(float amax) {
    struct expand_scale s = {1, 0};
    if (amax < 0x1p-64f) s.up = 0x1p96f; /* its inverse would be infinite or lose bits */
    if (amax > 0x1p64f) s.up = 0x1p-64f;
    if (amax > 0) s.inverse = 1.0f / (amax * s.up);
    return s;
}

struct expand_group expand_measure(const struct expand_table *t, const float *x, int64_t n,
                                   int k_min, int k_max) {
    struct expand_group g = {0, EXPAND_ONE};
    float least = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= FLT_MAX)) a = FLT_MAX; /* infinities and NaN */
        if (a > g.amax) g.amax = a;
        if (a > 0 && a < least) least = a;
    }
    if (g.amax == 0) return g;
    struct expand_scale s = expand_scale(g.amax);
    float r = least * s.up * s.inverse;
    if (vanishes(r)) r = 0;
    int low = k_min, high = k_max + 1; /* the last k whose ratio is at most r */
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (t->ratio[middle] <= r)
            low = middle;
        else
            high = middle;
    }
    g.k = (uint8_t)low;
    return g;
}

/* The last code whose entry is at most r; rows begin with 0 and grow. */
static uint8_t place(const float *row, float r) {
    int low = 0, high = EXPAND_CODES;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (row[middle] <= r)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)low;
}

uint8_t expand_nearest(const struct expand_table *t, int k, float r) {
    if (r != r) return CODE_NAN;
    return vanishes(r) ? 0 : place(t->least[k], r < 2 ? r : 2);
}

uint8_t expand_random(const struct expand_table *t, int k, float r, float u) {
    const float *value = t->value[k];
    int c = 0;
    if (r != r) return CODE_NAN;
    if (!vanishes(r)) { /* rows of values end with what is no number */
        c = place(t->least[k], r < 2 ? r : 2);
        c -= r < value[c];
    }
    float low = value[c], high = value[c + 1], step = u * (high - low);
    return (uint8_t)(c + (r >= low + step));
}

void expand_encode(const struct expand_table *t, struct expand_group g, const float *x, int64_t n,
                   bool keep, uint8_t *codes) {
    struct expand_scale s = expand_scale(g.amax);
    for (int64_t i = 0; i < n; i++) {
        uint8_t c = expand_nearest(t, g.k, fabsf(x[i]) * s.up * s.inverse);
        if (keep && c == 0 && x[i] != 0) c = 1;
        codes[i] = (uint8_t)(signbit(x[i]) && c != CODE_NAN ? c | 0x80 : c);
    }
}

void expand_decode(const struct expand_table *t, struct expand_group g, const uint8_t *codes,
                   int64_t n, float *x) {
    for (int64_t i = 0; i < n; i++) {
        float a = g.amax * t->value[g.k][codes[i] & 0x7f];
        x[i] = codes[i] & 0x80 ? -a : a;
    }
}
