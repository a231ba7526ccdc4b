// SPDX-License-Identifier: Apache-2.0
/* types.c - element types and their exact conversions, and helpers on tensor types. Conversions are
 * one element at a time: the reference that constant folding and tests rely on, not a fast path. */
#include "ir/types.h"
#include "base/fp8.h"
#include <math.h>
#include <string.h>

struct dtype_row {
    const char *name;
    size_t bytes;
    enum dtype_class cls;
    int32_t onnx;
};
static const struct dtype_row dtype_rows[DT_COUNT] = {
    [DT_NONE] = {"none", 0, DTC_INT, 0},
#define DT(name, bytes, cls, onnx) [DT_##name] = {#name, bytes, DTC_##cls, onnx},
#include "ir/dtypes.def"
#undef DT
};

static const struct dtype_row *row(enum dtype t) {
    return &dtype_rows[(unsigned)t < DT_COUNT ? t : DT_NONE];
}

const char *dtype_name(enum dtype t) {
    return row(t)->name;
}

enum dtype dtype_from_name(const char *s, size_t n) {
    for (int t = DT_NONE + 1; t < DT_COUNT; t++) {
        const char *name = dtype_rows[t].name;
        if (strlen(name) == n && memcmp(name, s, n) == 0) return (enum dtype)t;
    }
    return DT_NONE;
}

enum dtype dtype_from_onnx(int32_t code) {
    for (int t = DT_NONE + 1; t < DT_COUNT; t++)
        if (code != 0 && dtype_rows[t].onnx == code) return (enum dtype)t;
    return DT_NONE;
}

int32_t dtype_to_onnx(enum dtype t) {
    return row(t)->onnx;
}

size_t dtype_size(enum dtype t) {
    return row(t)->bytes;
}

enum dtype_class dtype_class(enum dtype t) {
    return row(t)->cls;
}

/* ---- small floats -------------------------------------------------------------------------- */
/* IEEE-like formats of 16 bits: sign, exponent, `man` bits of mantissa. Codes are without the sign.
 * Those of 8 bits are in base/fp8.h. */
struct small_float {
    int bits, man, bias;
    uint32_t max_finite, overflow, nan;
    bool has_inf;
};

static bool small_format(enum dtype t, struct small_float *f) {
    switch (t) {
    case DT_f16: *f = (struct small_float){16, 10, 15, 0x7bff, 0x7c00, 0x7e00, true}; return true;
    case DT_bf16: *f = (struct small_float){16, 7, 127, 0x7f7f, 0x7f80, 0x7fc0, true}; return true;
    default: return false;
    }
}

static double small_decode(const struct small_float *f, uint32_t code) {
    uint32_t sign = code >> (f->bits - 1), mag = code & ((1u << (f->bits - 1)) - 1);
    double x;
    if (mag > f->max_finite) {
        x = f->has_inf && mag == f->max_finite + 1 ? INFINITY : NAN;
    } else {
        int e = (int)(mag >> f->man);
        uint32_t m = mag & ((1u << f->man) - 1);
        if (e > 0)
            m |= 1u << f->man;
        else
            e = 1; /* subnormal */
        x = ldexp((double)m, e - f->bias - f->man);
    }
    return sign ? -x : x;
}

/* The code of m * 2^e, rounded to nearest even. */
static uint32_t small_encode(const struct small_float *f, bool sign, uint64_t m, int e) {
    uint32_t code = 0, sign_bit = (uint32_t)sign << (f->bits - 1);
    if (m == 0) return sign_bit;
    int lead = __builtin_clzll(m);
    m <<= lead;
    e -= lead;
    int top = e + 63, emin = 1 - f->bias; /* exponent of the leading bit; of the least normal */
    int base = top > emin ? top : emin;
    int shift = base - f->man - e; /* > 0 because man < 63 */
    if (base - emin > 2 * f->bias + 1) return sign_bit | f->overflow;
    if (shift <= 64) {
        uint64_t kept = shift == 64 ? 0 : m >> shift;
        uint64_t rest = shift == 64 ? m : m & ((UINT64_C(1) << shift) - 1);
        uint64_t half = UINT64_C(1) << (shift - 1);
        if (rest > half || (rest == half && (kept & 1))) kept++;
        /* The hidden bit of a normal number carries into the exponent field, as does rounding. */
        code = (uint32_t)kept + ((uint32_t)(base - emin) << f->man);
    }
    return sign_bit | (code > f->max_finite ? f->overflow : code);
}

/* |x| of a finite double as m * 2^e. */
static uint64_t split(double x, int *e) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int field = (int)(bits >> 52 & 0x7ff);
    uint64_t m = bits & ((UINT64_C(1) << 52) - 1);
    *e = (field ? field : 1) - 1075;
    return field ? m | UINT64_C(1) << 52 : m;
}

/* 8-bit floats; false for other types. */
static bool byte_encode(enum dtype t, double x, uint8_t *code) {
    switch (t) {
    case DT_e4m3: *code = e4m3_of_double(x); return true;
    case DT_e5m2: *code = e5m2_of_double(x); return true;
    case DT_e8m0: *code = e8m0_of_double(x); return true;
    default: return false;
    }
}

static bool byte_decode(enum dtype t, const void *p, double *x) {
    uint8_t v;
    memcpy(&v, p, 1);
    switch (t) {
    case DT_e4m3: *x = (double)e4m3_value(v); return true;
    case DT_e5m2: *x = (double)e5m2_value(v); return true;
    case DT_e8m0: *x = (double)e8m0_value(v); return true;
    default: return false;
    }
}

static void put_code(void *p, uint32_t code) {
    uint16_t v = (uint16_t)code;
    memcpy(p, &v, sizeof v);
}

/* ---- one element --------------------------------------------------------------------------- */
#define LOAD(T, p)                                                                                 \
    T v;                                                                                           \
    memcpy(&v, (p), sizeof v)

static int64_t load_raw_int(enum dtype t, const void *p) {
    switch (t) {
    case DT_i64: {
        LOAD(int64_t, p);
        return v;
    }
    case DT_i32: {
        LOAD(int32_t, p);
        return v;
    }
    case DT_i16: {
        LOAD(int16_t, p);
        return v;
    }
    case DT_i8: {
        LOAD(int8_t, p);
        return v;
    }
    case DT_u8: {
        LOAD(uint8_t, p);
        return v;
    }
    case DT_bool: {
        LOAD(uint8_t, p);
        return v != 0;
    }
    default: return 0;
    }
}

double dtype_load(enum dtype t, const void *p) {
    struct small_float f;
    if (t == DT_f32) {
        LOAD(float, p);
        return (double)v;
    }
    if (t == DT_f64) {
        LOAD(double, p);
        return v;
    }
    double x;
    if (byte_decode(t, p, &x)) return x;
    if (small_format(t, &f)) {
        LOAD(uint16_t, p);
        return small_decode(&f, v);
    }
    return (double)load_raw_int(t, p);
}

static int64_t saturate(double x) {
    if (isnan(x)) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    if (x <= -0x1p63) return INT64_MIN;
    return (int64_t)x;
}

int64_t dtype_load_int(enum dtype t, const void *p) {
    return dtype_is_float(t) ? saturate(dtype_load(t, p)) : load_raw_int(t, p);
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi) {
    return x < lo ? lo : x > hi ? hi : x;
}

static void store_raw_int(enum dtype t, void *p, int64_t x) {
    switch (t) {
    case DT_i64: memcpy(p, &x, 8); break;
    case DT_i32: {
        int32_t v = (int32_t)clamp(x, INT32_MIN, INT32_MAX);
        memcpy(p, &v, sizeof v);
        break;
    }
    case DT_i16: {
        int16_t v = (int16_t)clamp(x, INT16_MIN, INT16_MAX);
        memcpy(p, &v, sizeof v);
        break;
    }
    case DT_i8: {
        int8_t v = (int8_t)clamp(x, INT8_MIN, INT8_MAX);
        memcpy(p, &v, sizeof v);
        break;
    }
    case DT_u8: {
        uint8_t v = (uint8_t)clamp(x, 0, UINT8_MAX);
        memcpy(p, &v, sizeof v);
        break;
    }
    case DT_bool: {
        uint8_t v = x != 0;
        memcpy(p, &v, sizeof v);
        break;
    }
    default: break;
    }
}

void dtype_store(enum dtype t, void *p, double x) {
    struct small_float f;
    uint8_t byte;
    if (t == DT_f32) {
        float v = (float)x;
        memcpy(p, &v, sizeof v);
    } else if (t == DT_f64) {
        memcpy(p, &x, sizeof x);
    } else if (byte_encode(t, x, &byte)) {
        memcpy(p, &byte, 1);
    } else if (small_format(t, &f)) {
        uint32_t sign = signbit(x) ? 1u << (f.bits - 1) : 0;
        int e;
        uint64_t m = split(x, &e);
        put_code(p, isnan(x)   ? sign | f.nan
                    : isinf(x) ? sign | f.overflow
                               : small_encode(&f, sign != 0, m, e));
    } else if (t == DT_bool) {
        store_raw_int(t, p, x != 0);
    } else {
        store_raw_int(t, p, saturate(nearbyint(x)));
    }
}

void dtype_store_int(enum dtype t, void *p, int64_t x) {
    struct small_float f;
    uint64_t mag = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    if (t == DT_f32) {
        float v = (float)x; /* directly: rounding twice would be wrong */
        memcpy(p, &v, sizeof v);
    } else if (small_format(t, &f)) {
        put_code(p, small_encode(&f, x < 0, mag, 0));
    } else if (dtype_is_float(t)) {
        dtype_store(t, p, (double)x); /* exact enough for 8 bits */
    } else {
        store_raw_int(t, p, x);
    }
}

/* ---- tensor types -------------------------------------------------------------------------- */
bool type_equal(const struct type *a, const struct type *b) {
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int k = 0; k < a->rank; k++)
        if (!dim_same(a->dims[k], b->dims[k])) return false;
    return true;
}

bool type_static(const struct type *t) {
    for (int k = 0; k < t->rank; k++)
        if (!dim_known(t->dims[k])) return false;
    return true;
}

bool dims_product(const dim *d, int n, int64_t *out) {
    int64_t p = 1;
    bool zero = false;
    for (int k = 0; k < n; k++) {
        if (!dim_known(d[k])) return false;
        if (d[k] == 0)
            zero = true; /* the order of the axes must not decide about overflow */
        else if (__builtin_mul_overflow(p, d[k], &p))
            return false;
    }
    *out = zero ? 0 : p;
    return true;
}

static const int64_t COUNT_MAX = INT64_C(1) << 62;

int64_t type_count(const struct type *t) {
    int64_t n;
    return dims_product(t->dims, t->rank, &n) && n <= COUNT_MAX ? n : -1;
}

int64_t type_bytes(const struct type *t) {
    int64_t n = type_count(t), bytes;
    if (n < 0 || __builtin_mul_overflow(n, (int64_t)dtype_size(t->dtype), &bytes)) return -1;
    return bytes <= COUNT_MAX ? bytes : -1;
}

void type_print(const struct dims_table *dt, const struct type *t, struct buf *out) {
    buf_puts(out, dtype_name(t->dtype));
    buf_puts(out, "[");
    for (int k = 0; k < t->rank; k++) {
        if (k) buf_puts(out, ",");
        dim_print(dt, t->dims[k], out);
    }
    buf_puts(out, "]");
}
