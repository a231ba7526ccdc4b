// SPDX-License-Identifier: Apache-2.0
/* tensor.c - TensorProto to packed elements: which of the eight places holds the data, how wide an
 * element is there, and external files. Nothing is copied that already lies packed in memory. */
#include "base/diag.h"
#include "frontend/file.h"
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "raw_data is used in place");

/* ---- element types --------------------------------------------------------------------------- */

enum storage { IN_NONE, IN_FLOAT, IN_INT32, IN_INT64, IN_UINT64, IN_DOUBLE, IN_STRING };
static const char *const storage_names[] = {"raw_data",   "float_data",  "int32_data",
                                            "int64_data", "uint64_data", "double_data",
                                            "string_data"};

struct code_row {
    const char *name;
    uint8_t bits; /* of an element; 0 for no fixed size */
    enum storage in;
};
// clang-format off
static const struct code_row code_rows[] = {
    [0] = {"undefined", 0, IN_NONE},
    [1] = {"float32", 32, IN_FLOAT},        [2] = {"uint8", 8, IN_INT32},
    [3] = {"int8", 8, IN_INT32},            [4] = {"uint16", 16, IN_INT32},
    [5] = {"int16", 16, IN_INT32},          [6] = {"int32", 32, IN_INT32},
    [7] = {"int64", 64, IN_INT64},          [8] = {"string", 0, IN_STRING},
    [9] = {"bool", 8, IN_INT32},            [10] = {"float16", 16, IN_INT32},
    [11] = {"float64", 64, IN_DOUBLE},      [12] = {"uint32", 32, IN_UINT64},
    [13] = {"uint64", 64, IN_UINT64},       [14] = {"complex64", 64, IN_FLOAT},
    [15] = {"complex128", 128, IN_DOUBLE},  [16] = {"bfloat16", 16, IN_INT32},
    [17] = {"float8e4m3fn", 8, IN_INT32},   [18] = {"float8e4m3fnuz", 8, IN_INT32},
    [19] = {"float8e5m2", 8, IN_INT32},     [20] = {"float8e5m2fnuz", 8, IN_INT32},
    [21] = {"uint4", 4, IN_INT32},          [22] = {"int4", 4, IN_INT32},
    [23] = {"float4e2m1", 4, IN_INT32},     [24] = {"float8e8m0", 8, IN_INT32},
    [25] = {"uint2", 2, IN_INT32},          [26] = {"int2", 2, IN_INT32},
};
// clang-format on

static const struct code_row *code_row(int32_t code) {
    static const struct code_row none = {"unknown type", 0, IN_NONE};
    size_t n = sizeof code_rows / sizeof *code_rows;
    return code >= 0 && (size_t)code < n ? &code_rows[code] : &none;
}

const char *onnx_type_name(int32_t data_type) {
    return code_row(data_type)->name;
}

/* Product of the dims; a zero anywhere gives 0 however large the others are. */
static enum status count_elements(struct onnx_model *m, const Onnx__TensorProto *t,
                                  const char *what, int64_t *out) {
    int64_t count = 1;
    bool zero = false, overflow = false;
    for (size_t i = 0; i < t->n_dims; i++) {
        int64_t d = t->dims[i];
        if (d < 0)
            return diag_error(m->ctx, ST_PARSE, what,
                              "tensor '%s': dimension %zu is %lld; expected 0 or more", t->name, i,
                              (long long)d);
        if (d == 0) zero = true;
        if (!zero && __builtin_mul_overflow(count, d, &count)) {
            overflow = true;
            count = 1;
        }
    }
    if (overflow && !zero)
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s': the number of elements overflows 64 bits", t->name);
    *out = zero ? 0 : count;
    return ST_OK;
}

/* Bytes of the packed form, of any fixed-size type. */
static enum status packed_bytes(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                                size_t *out) {
    int64_t count, bits;
    const struct code_row *row = code_row(t->data_type);
    TRY(count_elements(m, t, what, &count));
    if (!row->bits)
        return diag_error(m->ctx, ST_UNSUPPORTED, what,
                          "tensor '%s': elements of %s (code %d) have no fixed size", t->name,
                          row->name, (int)t->data_type);
    if (__builtin_mul_overflow(count, (int64_t)row->bits, &bits))
        return diag_error(m->ctx, ST_PARSE, what, "tensor '%s': its size overflows 64 bits",
                          t->name);
    *out = (size_t)(bits / 8 + (bits % 8 != 0));
    return ST_OK;
}

enum status onnx_tensor_type(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                             struct type *out) {
    *out = (struct type){.dtype = dtype_from_onnx(t->data_type)};
    if (out->dtype == DT_NONE)
        return diag_error(m->ctx, ST_UNSUPPORTED, what,
                          "tensor '%s' has element type %s (code %d), which Lathe does not support",
                          t->name, onnx_type_name(t->data_type), (int)t->data_type);
    if (t->n_dims > RANK_MAX)
        return diag_error(m->ctx, ST_UNSUPPORTED, what,
                          "tensor '%s' has %zu dimensions; Lathe supports up to %d", t->name,
                          t->n_dims, (int)RANK_MAX);
    int64_t count;
    TRY(count_elements(m, t, what, &count));
    out->rank = (int)t->n_dims;
    for (int i = 0; i < out->rank; i++) out->dims[i] = t->dims[i];
    if (type_bytes(out) < 0)
        return diag_error(m->ctx, ST_PARSE, what, "tensor '%s': its size overflows 64 bits",
                          t->name);
    return ST_OK;
}

/* ---- external data --------------------------------------------------------------------------- */

struct external_file {
    const char *location;
    struct file_map map;
};
struct onnx_externals {
    VEC(struct external_file) files;
    struct map by_hash; /* of the location: index of a file with that hash */
};

static enum status map_external(struct onnx_model *m, const char *what, const char *location,
                                struct file_map *out) {
    struct arena *a = &m->arena;
    if (!m->dir)
        return diag_error(m->ctx, ST_UNSUPPORTED, what,
                          "its data is in the file '%s', but a model in memory has no directory",
                          location);
    if (!m->externals) {
        m->externals = ARENA_NEW(a, struct onnx_externals);
        map_init(&m->externals->by_hash, a);
    }
    struct onnx_externals *x = m->externals;
    uint64_t hash = hash_bytes(location, strlen(location));
    uint32_t i;
    if (map_get(&x->by_hash, hash, &i) && !strcmp(x->files.at[i].location, location)) {
        *out = x->files.at[i].map;
        return ST_OK;
    }
    enum status st = sys_map_beneath(a, m->dir, location, out);
    if (st != ST_OK) {
        diag_note(
            m->ctx, what,
            "the model keeps this tensor's data in the file '%s' beside '%s'; both are needed",
            location, m->path);
        return st;
    }
    map_set(&x->by_hash, hash, x->files.n);
    vec_push(a, &x->files, (struct external_file){location, *out});
    return ST_OK;
}

/* A decimal number without sign, blanks or anything else. */
static bool parse_u64(const char *s, uint64_t *out) {
    uint64_t v = 0;
    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    }
    *out = v;
    return true;
}

struct external_keys {
    const char *location, *offset, *length;
};

static enum status external_keys(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                                 struct external_keys *k) {
    *k = (struct external_keys){0};
    for (size_t i = 0; i < t->n_external_data; i++) {
        const Onnx__StringStringEntryProto *e = t->external_data[i];
        const char **slot = !strcmp(e->key, "location") ? &k->location
                            : !strcmp(e->key, "offset") ? &k->offset
                            : !strcmp(e->key, "length") ? &k->length
                                                        : NULL;
        if (!slot) continue; /* "checksum" and private keys say nothing about where the bytes are */
        if (*slot)
            return diag_error(m->ctx, ST_PARSE, what,
                              "tensor '%s': external data key '%s' is given twice", t->name,
                              e->key);
        *slot = e->value;
    }
    if (!k->location)
        return diag_error(m->ctx, ST_PARSE, what, "tensor '%s': external data has no location",
                          t->name);
    return ST_OK;
}

enum status onnx_external_bytes(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                                const uint8_t **data, size_t *n) {
    struct external_keys k;
    struct file_map map;
    uint64_t offset = 0, length;
    TRY(packed_bytes(m, t, what, n));
    TRY(external_keys(m, t, what, &k));
    if (k.offset && !parse_u64(k.offset, &offset))
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s': external offset '%s' is not a number of bytes", t->name,
                          k.offset);
    length = *n;
    if (k.length && (!parse_u64(k.length, &length) || length != *n))
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s': external length is '%s', but type and shape need %zu bytes",
                          t->name, k.length, *n);
    TRY(map_external(m, what, k.location, &map));
    if (offset > map.size || length > map.size - offset)
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s' needs bytes %llu to %llu of '%s', which has only %zu; the "
                          "file is incomplete or another model's",
                          t->name, (unsigned long long)offset,
                          (unsigned long long)(offset + length), k.location, map.size);
    *data = map.at ? map.at + offset : (const uint8_t *)"";
    return ST_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* How many fields hold data, and the last of them. */
static int data_fields(const Onnx__TensorProto *t, enum storage *in) {
    int n = 0;
    const size_t counts[] = {[IN_FLOAT] = t->n_float_data,   [IN_INT32] = t->n_int32_data,
                             [IN_INT64] = t->n_int64_data,   [IN_UINT64] = t->n_uint64_data,
                             [IN_DOUBLE] = t->n_double_data, [IN_STRING] = t->n_string_data};
    *in = IN_NONE;
    for (int i = IN_FLOAT; i <= IN_STRING; i++) {
        if (!counts[i]) continue;
        *in = (enum storage)i;
        n++;
    }
    return n + (t->has_raw_data && (t->raw_data.len || !n));
}

/* Bools are stored as any byte; the graph wants 0 or 1. */
static const void *normal_bools(struct arena *a, const uint8_t *p, size_t n) {
    size_t i = 0;
    while (i < n && p[i] <= 1) i++;
    if (i == n) return p;
    uint8_t *copy = arena_alloc(a, n);
    for (i = 0; i < n; i++) copy[i] = p[i] != 0;
    return copy;
}

/* Elements of up to 32 bits, one an int32. A value may be given signed or as a bit pattern. */
static enum status decode_int32(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                                struct onnx_tensor *out) {
    size_t size = dtype_size(out->type.dtype), n = t->n_int32_data;
    if (size == 4) {
        out->data = t->int32_data;
        return ST_OK;
    }
    uint8_t *to = arena_array(&m->arena, n, size);
    int32_t lo = -(1 << (8 * size - 1)), hi = (1 << (8 * size)) - 1;
    for (size_t i = 0; i < n; i++) {
        int32_t v = t->int32_data[i];
        if (out->type.dtype == DT_bool) {
            to[i] = v != 0;
            continue;
        }
        if (v < lo || v > hi)
            return diag_error(m->ctx, ST_PARSE, what,
                              "tensor '%s': value %d at index %zu does not fit element type %s",
                              t->name, (int)v, i, dtype_name(out->type.dtype));
        memcpy(to + i * size, &v, size);
    }
    out->data = to;
    return ST_OK;
}

static enum status decode_typed(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                                enum storage in, int64_t count, struct onnx_tensor *out) {
    enum storage want = code_row(t->data_type)->in;
    if (in != want)
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s': elements of %s belong in %s or raw_data, found %s", t->name,
                          onnx_type_name(t->data_type), storage_names[want], storage_names[in]);
    size_t n = in == IN_FLOAT   ? t->n_float_data
               : in == IN_INT32 ? t->n_int32_data
               : in == IN_INT64 ? t->n_int64_data
                                : t->n_double_data;
    if ((uint64_t)n != (uint64_t)count)
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s': its shape has %lld elements, but %s has %zu", t->name,
                          (long long)count, storage_names[in], n);
    switch (in) {
    case IN_FLOAT: out->data = t->float_data; return ST_OK;
    case IN_INT64: out->data = t->int64_data; return ST_OK;
    case IN_DOUBLE: out->data = t->double_data; return ST_OK;
    default: return decode_int32(m, t, what, out);
    }
}

static enum status decode_raw(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                              struct onnx_tensor *out) {
    size_t need;
    TRY(packed_bytes(m, t, what, &need));
    if (t->raw_data.len < need)
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s': type and shape need %zu bytes, but raw_data has %zu",
                          t->name, need, t->raw_data.len);
    if (t->raw_data.len > need)
        diag_warning(m->ctx, what,
                     "tensor '%s': raw_data has %zu bytes, %zu more than type and shape need; the "
                     "rest is ignored",
                     t->name, t->raw_data.len, t->raw_data.len - need);
    out->data = need ? t->raw_data.data : (const void *)"";
    return ST_OK;
}

enum status onnx_decode_tensor(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                               struct onnx_tensor *out) {
    enum storage in;
    int64_t count;
    size_t n;
    *out = (struct onnx_tensor){.name = t->name, .data = ""};
    TRY(onnx_tensor_type(m, t, what, &out->type));
    count = type_count(&out->type);
    if (t->segment)
        return diag_error(m->ctx, ST_UNSUPPORTED, what,
                          "tensor '%s' is one segment of a larger tensor, which is not supported",
                          t->name);
    int fields = data_fields(t, &in);
    bool external = t->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    if (fields + external > 1)
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s' has data in more than one place; expected one of raw_data, "
                          "a typed field or external data",
                          t->name);
    if (!external && t->data_location != ONNX__TENSOR_PROTO__DATA_LOCATION__DEFAULT)
        return diag_error(m->ctx, ST_UNSUPPORTED, what, "tensor '%s': data location %d is unknown",
                          t->name, (int)t->data_location);
    if (external) {
        TRY(onnx_external_bytes(m, t, what, (const uint8_t **)&out->data, &n));
    } else if (fields && in != IN_NONE) {
        TRY(decode_typed(m, t, what, in, count, out));
        return ST_OK;
    } else if (fields) {
        TRY(decode_raw(m, t, what, out));
    } else if (count) {
        return diag_error(m->ctx, ST_PARSE, what,
                          "tensor '%s' has no data, but its shape has %lld elements", t->name,
                          (long long)count);
    }
    if (out->type.dtype == DT_bool) out->data = normal_bools(&m->arena, out->data, (size_t)count);
    return ST_OK;
}
