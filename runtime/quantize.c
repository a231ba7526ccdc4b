// SPDX-License-Identifier: Apache-2.0
/* quantize.c - quantize_matrix tile by tile, and error figures. */
#include "runtime/quantize.h"
#include "base/fp8.h"
#include <math.h>

static uint8_t encode(enum dtype format, float x) {
    if (format == DT_e4m3) return e4m3_of(x);
    if (format == DT_e5m2) return e5m2_of(x);
    float r = rintf(x);
    r = r < -127 ? -127 : r > 127 ? 127 : r;
    return r != r ? 0 : (uint8_t)(int8_t)r;
}

static float decode(enum dtype format, uint8_t code) {
    if (format == DT_e4m3) return e4m3_value(code);
    if (format == DT_e5m2) return e5m2_value(code);
    return (float)(int8_t)code;
}

static float stored_scale(enum dtype type, float s) {
    if (type == DT_bf16) return bf16_value(bf16_of(s));
    if (type == DT_e8m0) return e8m0_value(e8m0_up(s));
    return s;
}

/* Rows [r, r1), columns [c, c1). */
struct window {
    int64_t r, r1, c, c1;
};

static float window_amax(const float *x, int64_t cols, struct window w) {
    float most = 0;
    for (int64_t r = w.r; r < w.r1; r++)
        for (int64_t c = w.c; c < w.c1; c++) {
            float a = fabsf(x[r * cols + c]);
            most = a > most || a != a ? a : most; /* NaN wins */
        }
    return most;
}

static void plain_tile(const float *x, const struct quant_spec *s, struct quantized *q,
                       struct window w, int64_t tile) {
    float top = (float)quant_largest(s->format);
    float scale = stored_scale(s->scale_type, (window_amax(x, q->cols, w) + s->eps) / top);
    q->scale[tile] = scale;
    for (int64_t r = w.r; r < w.r1; r++)
        for (int64_t i = r * q->cols + w.c; i < r * q->cols + w.c1; i++) {
            q->codes[i] = encode(s->format, x[i] / scale);
            q->values[i] = decode(s->format, q->codes[i]) * scale;
        }
}

static void expanded_tile(const float *x, const struct quant_spec *s, struct quantized *q,
                          struct window w, int64_t tile) {
    int64_t n = w.c1 - w.c, at = w.r * q->cols + w.c;
    struct expand_group g =
        expand_measure(s->table, x + at, n, s->contract ? 1 : EXPAND_ONE, EXPAND_STEPS - 1);
    q->scale[tile] = g.amax, q->k[tile] = g.k;
    expand_encode(s->table, g, x + at, n, false, q->codes + at);
    expand_decode(s->table, g, q->codes + at, n, q->values + at);
}

static int64_t tiles(int64_t n, int64_t piece) {
    return n / piece + (n % piece != 0);
}

struct quantized quantize_matrix(struct arena *a, const float *x, int64_t rows, int64_t cols,
                                 const struct quant_spec *s) {
    struct quantized q = {.rows = rows, .cols = cols};
    bool whole = s->tile.whole;
    q.tile_rows = whole || s->tile.rows == 0 ? rows : s->tile.rows;
    q.tile_cols = whole || s->tile.cols == 0 ? cols : s->tile.cols;
    if (q.tile_rows == 0) q.tile_rows = 1;
    if (q.tile_cols == 0) q.tile_cols = 1;
    q.down = whole ? 1 : s->tile.rows ? tiles(rows, q.tile_rows) : 1;
    q.across = whole ? 1 : s->tile.cols ? tiles(cols, q.tile_cols) : 1;
    size_t n = (size_t)(rows * cols), m = (size_t)(q.down * q.across);
    q.codes = ARENA_ARRAY(a, uint8_t, n);
    q.values = ARENA_ARRAY(a, float, n);
    q.scale = ARENA_ARRAY(a, float, m);
    if (s->table) q.k = ARENA_ARRAY(a, uint8_t, m);
    for (int64_t i = 0; i < q.down; i++)
        for (int64_t j = 0; j < q.across; j++) {
            int64_t r = i * q.tile_rows, c = j * q.tile_cols;
            struct window w = {r, rows - r < q.tile_rows ? rows : r + q.tile_rows, c,
                               cols - c < q.tile_cols ? cols : c + q.tile_cols};
            (s->table ? expanded_tile : plain_tile)(x, s, &q, w, i * q.across + j);
        }
    return q;
}

/* ---- figures ------------------------------------------------------------------------------- */
/* What would not have fitted without saturation. */
static bool beyond(const struct quant_spec *s, float x, float scale) {
    float q = fabsf(x / scale);
    if (s->table) return false;
    switch (s->format) {
    case DT_e4m3: return e4m3_of_ieee(q) > FP8_E4M3_TOP;
    case DT_e5m2: return e5m2_of_ieee(q) > FP8_E5M2_TOP;
    default: return rintf(q) > 127;
    }
}

struct quant_error quantize_error(const float *x, const struct quantized *q,
                                  const struct quant_spec *s) {
    struct quant_error e = {0};
    double error = 0, power = 0, n = (double)q->rows * (double)q->cols;
    int64_t finite = 0, saturated = 0, vanished = 0;
    for (int64_t r = 0; r < q->rows; r++)
        for (int64_t c = 0; c < q->cols; c++) {
            int64_t i = r * q->cols + c;
            if (!isfinite(x[i]) || !isfinite(q->values[i])) {
                e.nonfinite++;
                continue;
            }
            double v = (double)x[i], d = (double)q->values[i] - v;
            float scale = q->scale[r / q->tile_rows * q->across + c / q->tile_cols];
            finite++;
            error += d * d, power += v * v;
            e.amax = fmax(e.amax, fabs(v));
            saturated += beyond(s, x[i], scale);
            if (v == 0) continue;
            vanished += (q->codes[i] & (s->format == DT_i8 ? 0xff : 0x7f)) == 0;
            e.max_relative = fmax(e.max_relative, fabs(d / v));
        }
    if (n == 0) n = 1;
    e.rmse = finite ? sqrt(error / (double)finite) : 0;
    e.relative_rmse = power > 0 ? sqrt(error / power) : 0;
    e.sqnr = error > 0 ? 10 * log10(power / error) : (double)INFINITY;
    e.saturated = 100 * (double)saturated / n;
    e.vanished = 100 * (double)vanished / n;
    return e;
}
