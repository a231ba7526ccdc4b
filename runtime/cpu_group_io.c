// SPDX-License-Identifier: Apache-2.0
/* cpu_group_io.c - how values enter and leave registers of the group interpreter: conversions,
 * strided memory, index ramps and random numbers. */
#include "base/fp8.h"
#include "runtime/cpu_group.h"
#include "runtime/cpu_simd.h"
#include <math.h>
#include <string.h>

/* ---- register to register ---------------------------------------------------------------------
 */

/* Truncates; saturates; NaN gives 0. */
static int64_t int_of(double x) {
    if (x >= 9223372036854775808.0) return INT64_MAX;
    if (x <= -9223372036854775808.0) return INT64_MIN;
    return x != x ? 0 : (int64_t)x;
}

#define CAST(name, T, R, expr)                                                                     \
    SIMD static void name(void *restrict o_, const void *restrict a_, int64_t n) {                 \
        R *restrict o = o_;                                                                        \
        const T *restrict a = a_;                                                                  \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T x = a[i];                                                                            \
            o[i] = (R)(expr);                                                                      \
        }                                                                                          \
    }
CAST(f32_to_f64, float, double, x)
CAST(f64_to_f32, double, float, x)
CAST(f32_to_i64, float, int64_t, int_of((double)x))
CAST(f64_to_i64, double, int64_t, int_of(x))
CAST(i64_to_f32, int64_t, float, x)
CAST(i64_to_f64, int64_t, double, x)
CAST(bool_to_f32, uint8_t, float, x != 0)
CAST(bool_to_f64, uint8_t, double, x != 0)
CAST(bool_to_i64, uint8_t, int64_t, x != 0)
CAST(f32_to_bool, float, uint8_t, x != 0)
CAST(f64_to_bool, double, uint8_t, x != 0)
CAST(i64_to_bool, int64_t, uint8_t, x != 0)

void ew_cast(enum dtype to, void *o, enum dtype from, const void *a, int64_t n) {
    if (to == from) {
        memcpy(o, a, (size_t)n * group_elem_size(to));
    } else if (to == DT_f32) {
        (from == DT_f64 ? f64_to_f32 : from == DT_i64 ? i64_to_f32 : bool_to_f32)(o, a, n);
    } else if (to == DT_f64) {
        (from == DT_f32 ? f32_to_f64 : from == DT_i64 ? i64_to_f64 : bool_to_f64)(o, a, n);
    } else if (to == DT_i64) {
        (from == DT_f32 ? f32_to_i64 : from == DT_f64 ? f64_to_i64 : bool_to_i64)(o, a, n);
    } else {
        (from == DT_f32 ? f32_to_bool : from == DT_f64 ? f64_to_bool : i64_to_bool)(o, a, n);
    }
}

static int64_t wrap_to(enum dtype t, int64_t x) {
    switch (t) {
    case DT_i32: return (int32_t)(uint32_t)(uint64_t)x;
    case DT_i16: return (int16_t)(uint16_t)(uint64_t)x;
    case DT_i8: return (int8_t)(uint8_t)(uint64_t)x;
    case DT_u8: return (uint8_t)(uint64_t)x;
    default: return x;
    }
}

#define NARROW(name, expr)                                                                         \
    SIMD static void name(float *restrict o, int64_t n) {                                          \
        SIMD_LOOP                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = o[i];                                                                  \
            o[i] = expr;                                                                           \
        }                                                                                          \
    }
NARROW(narrow_bf16, bf16_value(bf16_of(x)))
NARROW(narrow_e4m3, e4m3_value(e4m3_of(x)))
NARROW(narrow_e5m2, e5m2_value(e5m2_of(x)))
NARROW(narrow_e8m0, e8m0_value(e8m0_of(x)))

void ew_narrow(enum dtype target, enum dtype reg, void *o, int64_t n) {
    if (reg == DT_i64) {
        int64_t *x = o;
        if (target == DT_i32 || target == DT_i16 || target == DT_i8 || target == DT_u8)
            for (int64_t i = 0; i < n; i++) x[i] = wrap_to(target, x[i]);
        return;
    }
    if (reg != DT_f32 || !dtype_is_float(target) || target == DT_f32 || target == DT_f64) return;
    float *x = o;
    switch (target) {
    case DT_bf16: narrow_bf16(x, n); return;
    case DT_e4m3: narrow_e4m3(x, n); return;
    case DT_e5m2: narrow_e5m2(x, n); return;
    case DT_e8m0: narrow_e8m0(x, n); return;
    default: break;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t code[2] = {0, 0};
        dtype_store(target, code, (double)x[i]);
        x[i] = (float)dtype_load(target, code);
    }
}

/* ---- memory -----------------------------------------------------------------------------------
 */

#define LOAD(name, M, R, expr)                                                                     \
    SIMD static void name(void *restrict o_, const void *restrict a_, int64_t s, int64_t n) {      \
        R *restrict o = o_;                                                                        \
        const M *restrict a = a_;                                                                  \
        if (s == 1) {                                                                              \
            SIMD_LOOP                                                                              \
            for (int64_t i = 0; i < n; i++) {                                                      \
                M x = a[i];                                                                        \
                o[i] = (R)(expr);                                                                  \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            M x = a[i * s];                                                                        \
            o[i] = (R)(expr);                                                                      \
        }                                                                                          \
    }
LOAD(load_1, uint8_t, uint8_t, x)
LOAD(load_4, uint32_t, uint32_t, x)
LOAD(load_8, uint64_t, uint64_t, x)
LOAD(load_i32, int32_t, int64_t, x)
LOAD(load_i16, int16_t, int64_t, x)
LOAD(load_i8, int8_t, int64_t, x)
LOAD(load_u8, uint8_t, int64_t, x)
LOAD(load_bf16, uint16_t, float, bf16_value(x))
LOAD(load_e4m3, uint8_t, float, e4m3_value(x))
LOAD(load_e5m2, uint8_t, float, e5m2_value(x))
LOAD(load_e8m0, uint8_t, float, e8m0_value(x))

/* Any type to any register, one by one. */
static void load_any(enum dtype reg, void *o, enum dtype mem, const char *a, int64_t stride,
                     int64_t n) {
    int64_t step = stride * (int64_t)dtype_size(mem);
    for (int64_t i = 0; i < n; i++, a += step) {
        switch (reg) {
        case DT_f32: ((float *)o)[i] = (float)dtype_load(mem, a); break;
        case DT_f64: ((double *)o)[i] = dtype_load(mem, a); break;
        case DT_i64: ((int64_t *)o)[i] = dtype_load_int(mem, a); break;
        default: ((uint8_t *)o)[i] = dtype_load(mem, a) != 0; break;
        }
    }
}

void ew_load(enum dtype reg, void *o, enum dtype mem, const void *a, int64_t stride, int64_t n) {
    if (reg == mem) {
        switch (group_elem_size(reg)) {
        case 1: load_1(o, a, stride, n); break;
        case 4: load_4(o, a, stride, n); break;
        default: load_8(o, a, stride, n); break;
        }
    } else if (reg == DT_i64 && mem == DT_i32) {
        load_i32(o, a, stride, n);
    } else if (reg == DT_i64 && mem == DT_i16) {
        load_i16(o, a, stride, n);
    } else if (reg == DT_i64 && mem == DT_i8) {
        load_i8(o, a, stride, n);
    } else if (reg == DT_i64 && mem == DT_u8) {
        load_u8(o, a, stride, n);
    } else if (reg == DT_f32 && mem == DT_bf16) {
        load_bf16(o, a, stride, n);
    } else if (reg == DT_f32 && mem == DT_e4m3) {
        load_e4m3(o, a, stride, n);
    } else if (reg == DT_f32 && mem == DT_e5m2) {
        load_e5m2(o, a, stride, n);
    } else if (reg == DT_f32 && mem == DT_e8m0) {
        load_e8m0(o, a, stride, n);
    } else {
        load_any(reg, o, mem, a, stride, n);
    }
}

#define STORE(name, R, M, expr)                                                                    \
    SIMD static void name(void *restrict o_, int64_t s, const void *restrict a_, int64_t n) {      \
        M *restrict o = o_;                                                                        \
        const R *restrict a = a_;                                                                  \
        if (s == 1) {                                                                              \
            SIMD_LOOP                                                                              \
            for (int64_t i = 0; i < n; i++) {                                                      \
                R x = a[i];                                                                        \
                o[i] = (M)(expr);                                                                  \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                          \
            R x = a[i];                                                                            \
            o[i * s] = (M)(expr);                                                                  \
        }                                                                                          \
    }
STORE(store_1, uint8_t, uint8_t, x)
STORE(store_4, uint32_t, uint32_t, x)
STORE(store_8, uint64_t, uint64_t, x)
STORE(store_i32, uint64_t, uint32_t, x)
STORE(store_i16, uint64_t, uint16_t, x)
STORE(store_i8, uint64_t, uint8_t, x)
STORE(store_bf16, float, uint16_t, bf16_of(x))
STORE(store_e4m3, float, uint8_t, e4m3_of(x))
STORE(store_e5m2, float, uint8_t, e5m2_of(x))
STORE(store_e8m0, float, uint8_t, e8m0_of(x))

static void store_any(enum dtype mem, char *o, int64_t stride, enum dtype reg, const void *a,
                      int64_t n) {
    int64_t step = stride * (int64_t)dtype_size(mem);
    for (int64_t i = 0; i < n; i++, o += step) {
        switch (reg) {
        case DT_f32: dtype_store(mem, o, (double)((const float *)a)[i]); break;
        case DT_f64: dtype_store(mem, o, ((const double *)a)[i]); break;
        case DT_i64: dtype_store_int(mem, o, ((const int64_t *)a)[i]); break;
        default: dtype_store(mem, o, ((const uint8_t *)a)[i] != 0); break;
        }
    }
}

void ew_store(enum dtype mem, void *o, int64_t stride, enum dtype reg, const void *a, int64_t n) {
    if (reg == mem) {
        switch (group_elem_size(reg)) {
        case 1: store_1(o, stride, a, n); break;
        case 4: store_4(o, stride, a, n); break;
        default: store_8(o, stride, a, n); break;
        }
    } else if (reg == DT_i64 && mem == DT_i32) {
        store_i32(o, stride, a, n);
    } else if (reg == DT_i64 && mem == DT_i16) {
        store_i16(o, stride, a, n);
    } else if (reg == DT_i64 && (mem == DT_i8 || mem == DT_u8)) {
        store_i8(o, stride, a, n);
    } else if (reg == DT_f32 && mem == DT_bf16) {
        store_bf16(o, stride, a, n);
    } else if (reg == DT_f32 && mem == DT_e4m3) {
        store_e4m3(o, stride, a, n);
    } else if (reg == DT_f32 && mem == DT_e5m2) {
        store_e5m2(o, stride, a, n);
    } else if (reg == DT_f32 && mem == DT_e8m0) {
        store_e8m0(o, stride, a, n);
    } else {
        store_any(mem, o, stride, reg, a, n);
    }
}

void ew_transpose(void *o_, int64_t o_row, int64_t o_col, const void *a_, int64_t a_row,
                  int64_t a_col, int64_t rows, int64_t cols) {
    uint32_t *restrict o = o_;
    const uint32_t *restrict a = a_;
    for (int64_t c = 0; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) o[r * o_row + c * o_col] = a[r * a_row + c * a_col];
}

void ew_fill(enum dtype reg, void *o, const void *value, int64_t n) {
    switch (group_elem_size(reg)) {
    case 1: memset(o, *(const uint8_t *)value, (size_t)n); break;
    case 4: {
        uint32_t *p = o, x = *(const uint32_t *)value;
        SIMD_LOOP
        for (int64_t i = 0; i < n; i++) p[i] = x;
        break;
    }
    default: {
        uint64_t *p = o, x = *(const uint64_t *)value;
        SIMD_LOOP
        for (int64_t i = 0; i < n; i++) p[i] = x;
        break;
    }
    }
}

void ew_iota(enum dtype reg, void *o, double start, double step, int64_t first, int64_t stride,
             int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double x = start + step * (double)(first + stride * i);
        switch (reg) {
        case DT_f32: ((float *)o)[i] = (float)x; break;
        case DT_f64: ((double *)o)[i] = x; break;
        case DT_i64: ((int64_t *)o)[i] = int_of(x); break;
        default: ((uint8_t *)o)[i] = x != 0; break;
        }
    }
}

/* ---- random numbers ----------------------------------------------------------------------------
 */

/* Word 0 of Philox4x32-10 for counter (index, stream). */
SIMD_INLINE uint32_t philox(uint64_t index, uint64_t stream, uint64_t key) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

SIMD static void random_f32(float *restrict o, uint64_t key, uint64_t stream, uint64_t first,
                            int64_t n) {
    SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        o[i] = (float)(int32_t)(philox(first + (uint64_t)i, stream, key) >> 8) * 0x1p-24f;
}

void ew_random(enum dtype reg, void *o, uint64_t key, uint64_t stream, uint64_t first, int64_t n) {
    if (reg == DT_f32) {
        random_f32(o, key, stream, first, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        ((double *)o)[i] = (double)(philox(first + (uint64_t)i, stream, key) >> 8) * 0x1p-24;
}
