// SPDX-License-Identifier: Apache-2.0
/* array.c - tells the array formats apart, and the steps that all of them share: sizes, names,
 * widening of unsigned integers, memory. */
#include "runtime/array.h"
#include "base/diag.h"
#include "runtime/array_impl.h"
#include "runtime/json_text.h"
#include <string.h>

enum { SAFETENSORS_HEADER_MAX = 100000000 };

/* ---- shared steps ------------------------------------------------------------------------- */

struct block {
    struct ctx *ctx;
    void *at;
};

static void free_block(void *ptr) {
    struct block *b = ptr;
    ctx_free(b->ctx, b->at);
}

enum status array_block(const struct array_reader *r, size_t bytes, void **out) {
    struct block *b = ARENA_NEW(r->arena, struct block);
    b->ctx = r->ctx;
    arena_defer(r->arena, free_block, b);
    b->at = ctx_try_alloc(r->ctx, bytes ? bytes : 1);
    if (!b->at)
        return diag_error(r->ctx, ST_DATA, r->origin,
                          "%s needs %zu bytes of memory, which is more than there is", r->label,
                          bytes);
    *out = b->at;
    return ST_OK;
}

enum status array_size(const struct array_reader *r, struct raw_array *raw) {
    int64_t count = type_count(&raw->type), whole = type_bytes(&raw->type);
    size_t each = raw->unsigned_bytes ? (size_t)raw->unsigned_bytes : dtype_size(raw->type.dtype);
    if (count < 0 || whole < 0 || !size_mul((size_t)count, each, &raw->bytes))
        return diag_error(r->ctx, ST_PARSE, r->origin, "%s declares a shape whose size overflows",
                          r->label);
    return ST_OK;
}

static enum status widen(const struct array_reader *r, const struct raw_array *raw,
                         const uint8_t *at, const void **out) {
    size_t each = (size_t)raw->unsigned_bytes, n = raw->bytes / each;
    void *to;
    TRY(array_block(r, (size_t)type_bytes(&raw->type), &to));
    for (size_t i = 0; i < n; i++) {
        uint64_t x = 0;
        memcpy(&x, at + i * each, each);
        if (x > INT64_MAX)
            return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                              "%s holds the unsigned 64-bit value %ju at element %zu, beyond the "
                              "largest that can be "
                              "read, 2^63-1",
                              r->label, (uintmax_t)x, i);
        int64_t wide = (int64_t)x;
        int32_t narrow = (int32_t)x;
        if (raw->type.dtype == DT_i64)
            memcpy((char *)to + 8 * i, &wide, 8);
        else
            memcpy((char *)to + 4 * i, &narrow, 4);
    }
    *out = to;
    return ST_OK;
}

static enum status check_bools(const struct array_reader *r, const uint8_t *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (at[i] > 1)
            return diag_error(
                r->ctx, ST_PARSE, r->origin,
                "%s is of type bool but holds the byte %u at element %zu, expected 0 or 1",
                r->label, at[i], i);
    return ST_OK;
}

enum status array_add(struct array_reader *r, const char *name, const struct raw_array *raw,
                      const uint8_t *at) {
    struct array got = {.type = raw->type, .at = at ? at : (const uint8_t *)""};
    if (*name) {
        uint32_t before = r->names.strings.n;
        str_id id = intern(&r->names, name);
        if (id.i < before)
            return diag_error(r->ctx, ST_PARSE, r->origin, "two arrays have the name \"%s\"", name);
        got.name = interned(&r->names, id);
    } else {
        got.name = "";
    }
    if (raw->unsigned_bytes) TRY(widen(r, raw, at, &got.at));
    if (raw->type.dtype == DT_bool) TRY(check_bools(r, at, raw->bytes));
    vec_push(r->arena, &r->out->list, got);
    return ST_OK;
}

enum status array_check_names(struct arena *a, const char *path, const struct array *list,
                              uint32_t n) {
    struct interner names;
    intern_init(&names, a);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = list[i].name;
        uint32_t before = names.strings.n;
        if (!json_is_utf8(name))
            return diag_error(a->ctx, ST_UNSUPPORTED, path,
                              "array name \"%s\" is not UTF-8 and cannot be written", name);
        intern(&names, name);
        if (*name && names.strings.n == before)
            return diag_error(a->ctx, ST_USAGE, path,
                              "two arrays to be written have the name \"%s\"", name);
    }
    return ST_OK;
}

/* ---- formats ------------------------------------------------------------------------------ */

enum format { FORMAT_NONE, FORMAT_NPY, FORMAT_NPZ, FORMAT_SAFETENSORS };

/* The second zip signature is that of an archive without entries. */
static enum format recognise(const uint8_t *p, size_t n) {
    if (n >= 6 && memcmp(p, "\x93NUMPY", 6) == 0) return FORMAT_NPY;
    if (n >= 4 && (memcmp(p, "PK\3\4", 4) == 0 || memcmp(p, "PK\5\6", 4) == 0)) return FORMAT_NPZ;
    uint64_t header;
    if (n < 9) return FORMAT_NONE;
    memcpy(&header, p, 8);
    return header <= SAFETENSORS_HEADER_MAX && p[8] == '{' ? FORMAT_SAFETENSORS : FORMAT_NONE;
}

bool arrays_recognise(const uint8_t *at, size_t n) {
    return recognise(at, n) != FORMAT_NONE;
}

static enum status read_any(struct array_reader *r) {
    switch (recognise(r->at, r->n)) {
    case FORMAT_NPY: return npy_read(r);
    case FORMAT_NPZ: return npz_read(r);
    case FORMAT_SAFETENSORS: return safetensors_read(r);
    case FORMAT_NONE: break;
    }
    return diag_error(r->ctx, ST_PARSE, r->origin,
                      "expected an .npy, .npz or .safetensors file, found %s",
                      r->n ? "bytes of another kind (or a damaged file)" : "an empty file");
}

enum status arrays_read_memory(struct arena *a, const uint8_t *at, size_t n, const char *name,
                               struct arrays *out) {
    struct array_reader r = {.arena = a,
                             .ctx = a->ctx,
                             .origin = arena_strdup(a, name),
                             .label = "the array",
                             .at = at,
                             .n = n,
                             .out = out};
    *out = (struct arrays){0};
    intern_init(&r.names, a);
    enum status st = read_any(&r);
    if (st != ST_OK) *out = (struct arrays){0};
    return st;
}

enum status arrays_read(struct arena *a, const char *path, struct arrays *out) {
    struct file_map m = {0};
    *out = (struct arrays){0};
    TRY(sys_map_file(a, path, &m));
    return arrays_read_memory(a, m.at, m.size, path, out);
}

const struct array *arrays_find(const struct arrays *s, const char *name) {
    for (uint32_t i = 0; i < s->list.n; i++)
        if (strcmp(s->list.at[i].name, name) == 0) return &s->list.at[i];
    return s->list.n == 1 && !*s->list.at[0].name ? &s->list.at[0] : NULL;
}
