// SPDX-License-Identifier: Apache-2.0
/* npy.c - the .npy format, versions 1.0 to 3.0 (NumPy, numpy.lib.format): a magic, a version, a
 * header length and a Python dictionary in text, then the elements. */
#include "base/diag.h"
#include "runtime/array_impl.h"
#include <string.h>

enum { NPY_HEADER_MAX = 1 << 16 }; /* of types that Lathe has; NumPy itself stops at 10,000 */

/* ---- element types ------------------------------------------------------------------------ */

struct npy_type {
    const char *code;
    enum dtype dtype;
    int unsigned_bytes;
};
// clang-format off
static const struct npy_type npy_types[] = {
    {"f4", DT_f32, 0}, {"f8", DT_f64, 0}, {"f2", DT_f16, 0},
    {"i8", DT_i64, 0}, {"i4", DT_i32, 0}, {"i2", DT_i16, 0}, {"i1", DT_i8, 0},
    {"u1", DT_u8,  0}, {"u2", DT_i32, 2}, {"u4", DT_i64, 4}, {"u8", DT_i64, 8},
    {"b1", DT_bool, 0},
};
// clang-format on
enum { NPY_TYPES = sizeof npy_types / sizeof *npy_types };

static enum status find_type(const struct array_reader *r, const char *descr, size_t n,
                             struct raw_array *out) {
    const char *code = descr + 1;
    if (n >= 2 && (code[0] == 'O' || descr[0] == 'O'))
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "%s holds Python objects; save it with a numeric type such as float32",
                          r->label);
    for (size_t i = 0; i < NPY_TYPES; i++) {
        if (n != 3 || memcmp(code, npy_types[i].code, 2) != 0 || !strchr("<>|=", descr[0]))
            continue;
        if (descr[0] == '>' && code[1] != '1')
            return diag_error(
                r->ctx, ST_UNSUPPORTED, r->origin,
                "%s is big-endian (\"%.3s\"); save x.astype(x.dtype.newbyteorder('<'))", r->label,
                descr);
        out->type.dtype = npy_types[i].dtype;
        out->unsigned_bytes = npy_types[i].unsigned_bytes;
        return ST_OK;
    }
    return diag_error(
        r->ctx, ST_UNSUPPORTED, r->origin,
        "%s has the element type \"%.*s\"; expected one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1 "
        "(other types fit into .safetensors)",
        r->label, (int)(n < 40 ? n : 40), descr);
}

/* ---- the header --------------------------------------------------------------------------- */

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c) {
    while (c->at < c->end && strchr(" \t\r\n", *c->at) && *c->at) c->at++;
}

static bool accept(struct cursor *c, const char *token) {
    size_t n = strlen(token);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, token, n) != 0) return false;
    c->at += n;
    return true;
}

/* A Python string without escapes. */
static bool parse_string(struct cursor *c, const char **s, size_t *n) {
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    *s = c->at;
    while (c->at < c->end && *c->at != quote && *c->at != '\\' && *c->at != '\n') c->at++;
    if (c->at == c->end || *c->at != quote) return false;
    *n = (size_t)(c->at++ - *s);
    return true;
}

static bool parse_dim(struct cursor *c, dim *out) {
    int64_t x = 0;
    skip_space(c);
    const char *start = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(x, (int64_t)10, &x) ||
            __builtin_add_overflow(x, (int64_t)(*c->at - '0'), &x))
            return false;
    if (c->at == start) return false;
    accept(c, "L"); /* written by Python 2 */
    *out = x;
    return true;
}

static enum status parse_shape(const struct array_reader *r, struct cursor *c, struct type *t) {
    bool ok = accept(c, "(");
    t->rank = 0;
    while (ok && !accept(c, ")")) {
        if (t->rank == RANK_MAX)
            return diag_error(r->ctx, ST_UNSUPPORTED, r->origin, "%s has more than %d dimensions",
                              r->label, RANK_MAX);
        ok = parse_dim(c, &t->dims[t->rank++]);
        if (!accept(c, ",")) {
            ok = ok && accept(c, ")");
            break;
        }
    }
    if (ok) return ST_OK;
    return diag_error(
        r->ctx, ST_PARSE, r->origin,
        "%s has a damaged .npy header: expected a shape such as (2, 3) of sizes below 2^63",
        r->label);
}

static enum status damaged(const struct array_reader *r, const char *expected) {
    return diag_error(r->ctx, ST_PARSE, r->origin, "%s has a damaged .npy header: expected %s",
                      r->label, expected);
}

enum { SEEN_DESCR = 1, SEEN_ORDER = 2, SEEN_SHAPE = 4, SEEN_ALL = 7 };

static enum status parse_entry(const struct array_reader *r, struct cursor *c,
                               struct raw_array *out, bool *fortran, int *seen) {
    const char *key, *descr;
    size_t n, len;
    if (!parse_string(c, &key, &n) || !accept(c, ":"))
        return damaged(r, "a key in quotes and a colon");
    int bit = 0;
    if (n == 5 && memcmp(key, "descr", 5) == 0) bit = SEEN_DESCR;
    if (n == 13 && memcmp(key, "fortran_order", 13) == 0) bit = SEEN_ORDER;
    if (n == 5 && memcmp(key, "shape", 5) == 0) bit = SEEN_SHAPE;
    if (!bit || *seen & bit)
        return damaged(r, "the keys descr, fortran_order and shape, once each");
    *seen |= bit;
    if (bit == SEEN_SHAPE) return parse_shape(r, c, &out->type);
    if (bit == SEEN_ORDER) {
        *fortran = accept(c, "True");
        return *fortran || accept(c, "False") ? ST_OK : damaged(r, "True or False");
    }
    if (parse_string(c, &descr, &len)) return find_type(r, descr, len, out);
    if (accept(c, "["))
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "%s is a structured array; save each field as an array of its own",
                          r->label);
    return damaged(r, "an element type in quotes");
}

enum status npy_header_size(const struct array_reader *r, const uint8_t *p, size_t *size) {
    if (memcmp(p, "\x93NUMPY", 6) != 0)
        return diag_error(r->ctx, ST_PARSE, r->origin, "%s does not start as an .npy file",
                          r->label);
    unsigned major = p[6], minor = p[7];
    if (major < 1 || major > 3 || minor != 0)
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "%s is of .npy version %u.%u; expected 1.0, 2.0 or 3.0", r->label, major,
                          minor);
    size_t length = p[8] | (size_t)p[9] << 8;
    if (major > 1) length |= (size_t)p[10] << 16 | (size_t)p[11] << 24;
    if (length > NPY_HEADER_MAX || length < 2)
        return diag_error(r->ctx, ST_PARSE, r->origin,
                          "%s declares an .npy header of %zu bytes; expected 2 to %d", r->label,
                          length, NPY_HEADER_MAX);
    *size = length + (major > 1 ? 12 : 10);
    return ST_OK;
}

enum status npy_parse_header(const struct array_reader *r, const uint8_t *p, size_t size,
                             struct raw_array *out) {
    size_t start = p[6] > 1 ? 12 : 10;
    struct cursor c = {(const char *)p + start, (const char *)p + size};
    bool fortran = false;
    int seen = 0;
    *out = (struct raw_array){0};
    if (!accept(&c, "{")) return damaged(r, "a dictionary");
    while (!accept(&c, "}")) {
        TRY(parse_entry(r, &c, out, &fortran, &seen));
        if (accept(&c, ",")) continue;
        if (!accept(&c, "}")) return damaged(r, "a comma or the end of the dictionary");
        break;
    }
    skip_space(&c);
    if (seen != SEEN_ALL || c.at != c.end)
        return damaged(r,
                       "exactly the keys descr, fortran_order and shape, and nothing behind them");
    if (fortran && out->type.rank > 1)
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "%s is in Fortran order; save numpy.ascontiguousarray(x)", r->label);
    return array_size(r, out);
}

enum status npy_read(struct array_reader *r) {
    size_t header;
    struct raw_array raw;
    if (r->n < NPY_PREFIX) return damaged(r, "at least 12 bytes");
    TRY(npy_header_size(r, r->at, &header));
    if (header > r->n) return damaged(r, "a header that ends before the file does");
    TRY(npy_parse_header(r, r->at, header, &raw));
    if (raw.bytes != r->n - header)
        return diag_error(
            r->ctx, ST_PARSE, r->origin,
            "%s needs %zu bytes of elements for its shape, but the file has %zu after the header",
            r->label, raw.bytes, r->n - header);
    return array_add(r, "", &raw, r->at + header);
}

/* ---- writing ------------------------------------------------------------------------------ */

static const char *npy_code(enum dtype t) {
    for (size_t i = 0; i < NPY_TYPES; i++)
        if (npy_types[i].dtype == t && !npy_types[i].unsigned_bytes) return npy_types[i].code;
    return NULL;
}

const char *npy_make_header(struct arena *a, const struct type *t, size_t *size) {
    const char *code = npy_code(t->dtype);
    struct buf b;
    CHECK(a->ctx, code != NULL);
    buf_init(&b, a);
    buf_put(&b, "\x93NUMPY\1\0\0\0", 10);
    buf_printf(&b, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
               code[1] == '1' ? '|' : '<', code);
    for (int k = 0; k < t->rank; k++) {
        buf_printf(&b, k ? ", %jd" : "%jd", (intmax_t)t->dims[k]);
        if (t->rank == 1) buf_puts(&b, ",");
    }
    buf_puts(&b, "), }");
    while (b.n % 64 != 63) buf_put(&b, " ", 1);
    buf_put(&b, "\n", 1);
    b.at[8] = (char)((b.n - 10) & 0xff);
    b.at[9] = (char)((b.n - 10) >> 8);
    *size = b.n;
    return b.at;
}
