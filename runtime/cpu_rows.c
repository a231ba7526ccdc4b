// SPDX-License-Identifier: Apache-2.0
/* cpu_rows.c - softmax over one row; see cpu_rows.h. */
#include "runtime/cpu_rows.h"
#include "runtime/cpu_math.h"
#include "runtime/cpu_simd.h"

enum { LANES = 16, RUN = 4096 };

SIMD static float row_max(const float *x, int64_t n) {
    float m[LANES];
    for (int j = 0; j < LANES; j++) m[j] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float v = x[i + j];
            m[j] = v > m[j] || v != v ? v : m[j];
        }
    for (int j = 0; i < n; i++, j++) m[j] = x[i] > m[j] || x[i] != x[i] ? x[i] : m[j];
    float r = m[0];
    for (int j = 1; j < LANES; j++) r = m[j] > r || m[j] != m[j] ? m[j] : r;
    return r;
}

SIMD_INLINE float lane_sum(const float *s) {
    float t[8];
    for (int j = 0; j < 8; j++) t[j] = s[j] + s[j + 8];
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

/* Sum of exp(x - m) over at most RUN elements, kept in `out` when `keep`. */
SIMD static float exp_run(const float *x, float *out, int64_t n, float m) {
    float s[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float e[LANES];
        for (int j = 0; j < LANES; j++) e[j] = exp_neg_f32(x[i + j] - m);
        for (int j = 0; j < LANES; j++) s[j] += e[j];
        if (out)
            for (int j = 0; j < LANES; j++) out[i + j] = e[j];
    }
    for (int j = 0; i < n; i++, j++) {
        float e = exp_neg_f32(x[i] - m);
        s[j] += e;
        if (out) out[i] = e;
    }
    return lane_sum(s);
}

static double exp_sum(const float *x, float *out, int64_t n, float m) {
    double sum = 0;
    for (int64_t i = 0; i < n; i += RUN)
        sum += (double)exp_run(x + i, out ? out + i : NULL, n - i < RUN ? n - i : RUN, m);
    return sum;
}

SIMD static void scale_row(float *x, int64_t n, float f) {
    SIMD_LOOP
    for (int64_t i = 0; i < n; i++) x[i] *= f;
}

SIMD static void exp_row(float *x, int64_t n, float lse) {
    SIMD_LOOP
    for (int64_t i = 0; i < n; i++) x[i] = exp_f32(x[i] - lse);
}

double row_lse_f32(const float *x, int64_t n) {
    float m = row_max(x, n);
    if (m == -INFINITY) return (double)m;
    if (m == INFINITY) return (double)m;
    return (double)m + log(exp_sum(x, NULL, n, m));
}

void row_exp_f32(float *x, int64_t n, double lse) {
    if (lse == -(double)INFINITY)
        memset(x, 0, (size_t)n * sizeof *x);
    else
        exp_row(x, n, (float)lse);
}

double row_softmax_f32(float *x, int64_t n) {
    float m = row_max(x, n);
    if (m == -INFINITY) {
        memset(x, 0, (size_t)n * sizeof *x);
        return (double)m;
    }
    double sum = exp_sum(x, x, n, m);
    scale_row(x, n, (float)(1.0 / sum));
    return (double)m + log(sum);
}

double row_lse_f64(const double *x, int64_t n) {
    double m = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) m = x[i] > m || x[i] != x[i] ? x[i] : m;
    if (m == -(double)INFINITY || m == (double)INFINITY) return m;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - m);
    return m + log(sum);
}

void row_exp_f64(double *x, int64_t n, double lse) {
    for (int64_t i = 0; i < n; i++) x[i] = lse == -(double)INFINITY ? 0 : exp(x[i] - lse);
}

double row_softmax_f64(double *x, int64_t n) {
    double lse = row_lse_f64(x, n);
    row_exp_f64(x, n, lse);
    return lse;
}
