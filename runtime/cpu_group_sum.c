// SPDX-License-Identifier: Apache-2.0
/* cpu_group_sum.c - reductions of the group interpreter. A run of f32 elements is added in 16 lanes
 * that are combined as a fixed tree; runs are added in f64. The order depends on lengths only. */
#include "runtime/cpu_group.h"
#include "runtime/cpu_simd.h"
#include <math.h>

enum { LANES = 16 };

/* Lanes take elements i, i + 16, ..; the rest of the run goes to the first lanes. */
#define LANE_RUN(T, A, init, step)                                                                 \
    A m[LANES];                                                                                    \
    for (int j = 0; j < LANES; j++) m[j] = init;                                                   \
    int64_t i = 0;                                                                                 \
    for (; i + LANES <= n; i += LANES)                                                             \
        for (int j = 0; j < LANES; j++) {                                                          \
            A x = (A)a[i + j], t = m[j];                                                           \
            m[j] = step;                                                                           \
        }                                                                                          \
    for (int j = 0; i < n; i++, j++) {                                                             \
        A x = (A)a[i], t = m[j];                                                                   \
        m[j] = step;                                                                               \
    }                                                                                              \
    for (int w = LANES / 2; w > 0; w /= 2)                                                         \
        for (int j = 0; j < w; j++) {                                                              \
            A x = m[j + w], t = m[j];                                                              \
            m[j] = step;                                                                           \
        }                                                                                          \
    return m[0];

#define ADD (t + x)
#define MUL (t * x)
#define MAX (x > t || x != x ? x : t)
#define MIN (x < t || x != x ? x : t)
SIMD static float sum_f32(const float *a, int64_t n){LANE_RUN(float, float, 0.0f, ADD)} SIMD
    static double prod_f32(const float *a, int64_t n){LANE_RUN(float, double, 1.0, MUL)} SIMD
    static float max_f32(const float *a, int64_t n){LANE_RUN(float, float, -INFINITY, MAX)} SIMD
    static float min_f32(const float *a, int64_t n) {
    LANE_RUN(float, float, INFINITY, MIN)
}
static double sum_f64(const double *a, int64_t n) {
    LANE_RUN(double, double, 0.0, ADD)
}
static double prod_f64(const double *a, int64_t n) {
    LANE_RUN(double, double, 1.0, MUL)
}
static double max_f64(const double *a, int64_t n) {
    LANE_RUN(double, double, -(double)INFINITY, MAX)
}
static double min_f64(const double *a, int64_t n) {
    LANE_RUN(double, double, (double)INFINITY, MIN)
}

/* Sums and products wrap. */
static int64_t reduce_i64(uint16_t code, int64_t t, const int64_t *a, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t x = a[i];
        switch (code) {
        case INSTR_SUM: t = (int64_t)((uint64_t)t + (uint64_t)x); break;
        case INSTR_PROD: t = (int64_t)((uint64_t)t * (uint64_t)x); break;
        case INSTR_MAX: t = x > t ? x : t; break;
        default: t = x < t ? x : t; break;
        }
    }
    return t;
}

union total total_init(uint16_t code, enum dtype reg) {
    if (reg == DT_i64) {
        if (code == INSTR_SUM || code == INSTR_PROD) return (union total){.i = code == INSTR_PROD};
        return (union total){.i = code == INSTR_MAX ? INT64_MIN : INT64_MAX};
    }
    if (code == INSTR_SUM || code == INSTR_PROD)
        return (union total){.f = code == INSTR_PROD ? 1.0 : 0.0};
    return (union total){.f = code == INSTR_MAX ? -(double)INFINITY : (double)INFINITY};
}

union total total_join(uint16_t code, enum dtype reg, union total a, union total b) {
    if (reg == DT_i64) return (union total){.i = reduce_i64(code, a.i, &b.i, 1)};
    double t = a.f, x = b.f;
    switch (code) {
    case INSTR_SUM: return (union total){.f = ADD};
    case INSTR_PROD: return (union total){.f = MUL};
    case INSTR_MAX: return (union total){.f = MAX};
    default: return (union total){.f = MIN};
    }
}

union total total_add(uint16_t code, enum dtype reg, union total t, const void *a, int64_t n) {
    union total run;
    if (reg == DT_i64) return (union total){.i = reduce_i64(code, t.i, a, n)};
    if (reg == DT_f32)
        run.f = code == INSTR_SUM   ? (double)sum_f32(a, n)
                : code == INSTR_MAX ? (double)max_f32(a, n)
                : code == INSTR_MIN ? (double)min_f32(a, n)
                                    : prod_f32(a, n);
    else
        run.f = code == INSTR_SUM   ? sum_f64(a, n)
                : code == INSTR_MAX ? max_f64(a, n)
                : code == INSTR_MIN ? min_f64(a, n)
                                    : prod_f64(a, n);
    return total_join(code, reg, t, run);
}

void total_put(enum dtype reg, void *o, union total t) {
    switch (reg) {
    case DT_f32: *(float *)o = (float)t.f; break;
    case DT_f64: *(double *)o = t.f; break;
    default: *(int64_t *)o = t.i; break;
    }
}

void ew_reduce_rows(uint16_t code, enum dtype reg, void *o, const void *a, int64_t rows,
                    int64_t cols) {
    int64_t elem = (int64_t)group_elem_size(reg);
    const char *p = a;
    char *q = o;
    for (int64_t r = 0; r < rows; r++, p += cols * elem, q += elem)
        total_put(reg, q, total_add(code, reg, total_init(code, reg), p, cols));
}

/* Short runs of rows are added in f32 before they go to the f64 totals. */
SIMD static void colsum_f32(double *restrict t, const float *restrict a, int64_t rows,
                            int64_t cols) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *x = a + r * cols;
        SIMD_LOOP
        for (int64_t c = 0; c < cols; c++)
            t[c] += (double)((x[c] + x[c + cols]) + (x[c + 2 * cols] + x[c + 3 * cols]));
    }
    for (; r < rows; r++) {
        SIMD_LOOP
        for (int64_t c = 0; c < cols; c++) t[c] += (double)a[r * cols + c];
    }
}

void ew_colsum(enum dtype reg, union total *t, const void *a, int64_t rows, int64_t cols) {
    if (reg == DT_f32) {
        colsum_f32((double *)t, a, rows, cols);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            if (reg == DT_f64)
                t[c].f += ((const double *)a)[r * cols + c];
            else
                t[c].i = (int64_t)((uint64_t)t[c].i + (uint64_t)((const int64_t *)a)[r * cols + c]);
        }
}

void ew_colmax(union total *t, const float *a, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            t[c] = total_join(INSTR_MAX, DT_f32, t[c], (union total){.f = (double)a[r * cols + c]});
}
