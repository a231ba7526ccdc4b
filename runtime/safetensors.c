// SPDX-License-Identifier: Apache-2.0
/* safetensors.c - the .safetensors format: a 64-bit header length, a JSON header, one dense buffer.
 * What the format's reference reader refuses is refused here: duplicate keys, holes, overlap,
 * headers over 100 MB, sizes that do not add up. */
#include "base/diag.h"
#include "runtime/array_impl.h"
#include "runtime/json_text.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 100000000 };

struct st_type {
    const char *name;
    enum dtype dtype;
    int unsigned_bytes;
};
// clang-format off
static const struct st_type st_types[] = {
    {"F32", DT_f32, 0}, {"F64", DT_f64, 0}, {"F16", DT_f16, 0}, {"BF16", DT_bf16, 0},
    {"I64", DT_i64, 0}, {"I32", DT_i32, 0}, {"I16", DT_i16, 0}, {"I8", DT_i8, 0},
    {"U8", DT_u8, 0}, {"U16", DT_i32, 2}, {"U32", DT_i64, 4}, {"U64", DT_i64, 8}, {"BOOL", DT_bool, 0},
    {"F8_E4M3", DT_e4m3, 0}, {"F8_E5M2", DT_e5m2, 0}, {"F8_E8M0", DT_e8m0, 0},
};
// clang-format on
enum { ST_TYPES = sizeof st_types / sizeof *st_types };

/* ---- reading ------------------------------------------------------------------------------ */

struct tensor_entry {
    const char *name;
    struct raw_array raw;
    size_t begin, end; /* in the buffer */
    size_t order;      /* in the header */
};

static void free_json(void *ptr) {
    json_decref(*(json_t **)ptr);
}

/* The header as a JSON object that lives as long as the arena. */
static enum status load_header(const struct array_reader *r, json_t **root, size_t *buffer) {
    uint64_t n = 0;
    if (r->n >= 8) memcpy(&n, r->at, 8);
    if (r->n < 9 || n < 2 || n > HEADER_MAX || n > r->n - 8)
        return diag_error(r->ctx, ST_PARSE, r->origin,
                          "expected a .safetensors header of 2 bytes to 100 MB inside a file of "
                          "%zu bytes, found the "
                          "length %ju; the file is cut short or damaged",
                          r->n, (uintmax_t)n);
    json_t **slot = ARENA_NEW(r->arena, json_t *);
    json_error_t err;
    arena_defer(r->arena, free_json, slot);
    *slot = r->at[8] == '{'
                ? json_loadb((const char *)r->at + 8, (size_t)n, JSON_REJECT_DUPLICATES, &err)
                : NULL;
    if (!*slot)
        return diag_error(r->ctx, ST_PARSE, r->origin,
                          "the .safetensors header is not valid JSON with unique keys%s%s",
                          r->at[8] == '{' ? ": " : "", r->at[8] == '{' ? err.text : "");
    *root = *slot;
    *buffer = 8 + (size_t)n;
    return ST_OK;
}

static enum status bad_tensor(const struct array_reader *r, const char *name, const char *what) {
    return diag_error(r->ctx, ST_PARSE, r->origin, "tensor \"%s\": %s", name, what);
}

static enum status parse_dtype(const struct array_reader *r, const char *name, json_t *value,
                               struct raw_array *out) {
    const char *s = json_string_value(value);
    if (!s) return bad_tensor(r, name, "expected a dtype in quotes");
    for (size_t i = 0; i < ST_TYPES; i++) {
        if (strcmp(st_types[i].name, s) != 0) continue;
        out->type.dtype = st_types[i].dtype;
        out->unsigned_bytes = st_types[i].unsigned_bytes;
        return ST_OK;
    }
    return diag_error(
        r->ctx, ST_UNSUPPORTED, r->origin,
        "tensor \"%s\" has the dtype \"%s\"; expected F16, BF16, F32, F64, BOOL, F8_E4M3, F8_E5M2, "
        "F8_E8M0 or an integer type",
        name, s);
}

/* A non-negative integer. */
static bool get_size(json_t *value, int64_t *out) {
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 0;
}

static enum status parse_dims(const struct array_reader *r, const char *name, json_t *value,
                              struct type *t) {
    size_t rank = json_array_size(value);
    if (!json_is_array(value)) return bad_tensor(r, name, "expected a shape such as [2, 3]");
    if (rank > RANK_MAX)
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "tensor \"%s\" has more than %d dimensions", name, RANK_MAX);
    t->rank = (int)rank;
    for (size_t k = 0; k < rank; k++)
        if (!get_size(json_array_get(value, k), &t->dims[k]))
            return bad_tensor(r, name, "expected dimensions that are integers of at least 0");
    return ST_OK;
}

static enum status parse_tensor(struct array_reader *r, json_t *value, struct tensor_entry *e) {
    json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape");
    json_t *range = json_object_get(value, "data_offsets");
    int64_t begin, end;
    r->label = arena_printf(r->arena, "tensor \"%s\"", e->name);
    if (json_object_size(value) != 3 || !dtype || !shape || !range)
        return bad_tensor(r, e->name, "expected exactly dtype, shape and data_offsets");
    TRY(parse_dtype(r, e->name, dtype, &e->raw));
    TRY(parse_dims(r, e->name, shape, &e->raw.type));
    TRY(array_size(r, &e->raw));
    if (json_array_size(range) != 2 || !get_size(json_array_get(range, 0), &begin) ||
        !get_size(json_array_get(range, 1), &end) || end < begin)
        return bad_tensor(r, e->name, "expected data_offsets [begin, end]");
    if ((uint64_t)(end - begin) != e->raw.bytes)
        return diag_error(
            r->ctx, ST_PARSE, r->origin,
            "tensor \"%s\" needs %zu bytes for its shape, but its data_offsets span %jd", e->name,
            e->raw.bytes, (intmax_t)(end - begin));
    e->begin = (size_t)begin;
    e->end = (size_t)end;
    return ST_OK;
}

static enum status check_metadata(const struct array_reader *r, json_t *value) {
    const char *key;
    json_t *text;
    bool ok = json_is_object(value);
    json_object_foreach(value, key, text) ok = ok && json_is_string(text);
    if (ok) return ST_OK;
    return diag_error(r->ctx, ST_PARSE, r->origin, "expected __metadata__ to map names to texts");
}

static int compare_offsets(const void *pa, const void *pb) {
    const struct tensor_entry *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* In order of offset every tensor must start where the last one ended, and the last end with the
 * file. */
static enum status add_tensors(struct array_reader *r, struct tensor_entry *list, size_t n,
                               size_t buffer) {
    size_t at = 0, size = r->n - buffer;
    if (n) qsort(list, n, sizeof *list, compare_offsets);
    for (size_t i = 0; i < n; i++) {
        struct tensor_entry *e = &list[i];
        if (e->begin != at || e->end > size)
            return bad_tensor(r, e->name,
                              e->end > size
                                  ? "its data ends after the file does"
                                  : "its data leaves a hole or overlaps another tensor's");
        at = e->end;
    }
    if (at != size)
        return diag_error(r->ctx, ST_PARSE, r->origin,
                          "the tensors end at byte %zu of the buffer, but it has %zu", at, size);
    for (size_t i = 0; i < n; i++) {
        r->label = arena_printf(r->arena, "tensor \"%s\"", list[i].name);
        TRY(array_add(r, list[i].name, &list[i].raw, r->at + buffer + list[i].begin));
    }
    return ST_OK;
}

enum status safetensors_read(struct array_reader *r) {
    json_t *root, *value;
    size_t buffer, n = 0;
    const char *key;
    TRY(load_header(r, &root, &buffer));
    struct tensor_entry *list = ARENA_ARRAY(r->arena, struct tensor_entry, json_object_size(root));
    json_object_foreach(root, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(check_metadata(r, value));
            continue;
        }
        list[n] = (struct tensor_entry){.name = key, .order = n};
        TRY(parse_tensor(r, value, &list[n]));
        n++;
    }
    return add_tensors(r, list, n, buffer);
}

enum status safetensors_metadata(struct arena *a, const char *path, const char *key,
                                 const char **value) {
    struct array_reader r = {.arena = a, .ctx = a->ctx, .origin = path};
    struct file_map m = {0};
    json_t *root;
    size_t buffer;
    *value = NULL;
    TRY(sys_map_file(a, path, &m));
    r.at = m.at;
    r.n = m.size;
    TRY(load_header(&r, &root, &buffer));
    json_t *metadata = json_object_get(root, "__metadata__");
    if (metadata) TRY(check_metadata(&r, metadata));
    const char *text = json_string_value(json_object_get(metadata, key));
    if (text) *value = arena_strdup(a, text);
    return ST_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

struct st_job {
    const char *path;
    const struct array *list;
    uint32_t n;
    const char *const *metadata;
    uint32_t nmeta;
};

static const char *type_name(enum dtype t) {
    for (size_t i = 0; i < ST_TYPES; i++)
        if (st_types[i].dtype == t && !st_types[i].unsigned_bytes) return st_types[i].name;
    return "";
}

static enum status put_metadata(struct arena *a, const struct st_job *job, struct buf *b) {
    struct interner keys;
    intern_init(&keys, a);
    buf_puts(b, "\"__metadata__\":{");
    for (uint32_t i = 0; i < job->nmeta; i++) {
        const char *key = job->metadata[i], *value = key + strlen(key) + 1;
        uint32_t before = keys.strings.n;
        intern(&keys, key);
        if (!*key || keys.strings.n == before || !json_is_utf8(key) || !json_is_utf8(value))
            return diag_error(
                a->ctx, ST_USAGE, job->path,
                "metadata key \"%s\" is empty, given twice or not UTF-8 (or its value is not)",
                key);
        if (i) buf_puts(b, ",");
        json_put_string(b, key);
        buf_puts(b, ":");
        json_put_string(b, value);
    }
    buf_puts(b, "}");
    return ST_OK;
}

static void put_tensor(struct buf *b, const struct array *t, uint64_t begin, uint64_t end) {
    json_put_string(b, t->name);
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", type_name(t->type.dtype));
    for (int k = 0; k < t->type.rank; k++)
        buf_printf(b, k ? ",%jd" : "%jd", (intmax_t)t->type.dims[k]);
    buf_printf(b, "],\"data_offsets\":[%ju,%ju]}", (uintmax_t)begin, (uintmax_t)end);
}

static enum status make_header(struct arena *a, const struct st_job *job, struct buf *b) {
    uint64_t at = 0;
    buf_init(b, a);
    buf_put(b, "\0\0\0\0\0\0\0\0{", 9);
    if (job->nmeta) TRY(put_metadata(a, job, b));
    for (uint32_t i = 0; i < job->n; i++) {
        const struct array *t = &job->list[i];
        CHECK(a->ctx, type_bytes(&t->type) >= 0);
        uint64_t end = at + (uint64_t)type_bytes(&t->type);
        if (strcmp(t->name, "__metadata__") == 0)
            return diag_error(a->ctx, ST_UNSUPPORTED, job->path,
                              "the array name __metadata__ is reserved");
        if (i || job->nmeta) buf_puts(b, ",");
        put_tensor(b, t, at, end);
        at = end;
    }
    buf_puts(b, "}");
    while (b->n % 8) buf_puts(b, " ");
    if (b->n - 8 > HEADER_MAX)
        return diag_error(a->ctx, ST_UNSUPPORTED, job->path,
                          "the .safetensors header would exceed 100 MB");
    uint64_t length = b->n - 8;
    memcpy(b->at, &length, 8);
    return ST_OK;
}

/* Two arrays with the empty name are two equal names here. */
static enum status write_safetensors(struct arena *a, void *user) {
    const struct st_job *job = user;
    struct sys_writer *w;
    struct buf header;
    uint32_t unnamed = 0;
    TRY(array_check_names(a, job->path, job->list, job->n));
    for (uint32_t i = 0; i < job->n; i++) unnamed += !*job->list[i].name;
    if (unnamed > 1)
        return diag_error(a->ctx, ST_USAGE, job->path, "two arrays to be written have no name");
    TRY(make_header(a, job, &header));
    TRY(sys_write_begin(a, job->path, &w));
    TRY(sys_write(w, header.at, header.n));
    for (uint32_t i = 0; i < job->n; i++)
        TRY(sys_write(w, job->list[i].at, (size_t)type_bytes(&job->list[i].type)));
    return sys_write_commit(w);
}

enum status safetensors_write(struct ctx *c, const char *path, const struct array *list, uint32_t n,
                              const char *const *metadata, uint32_t nmeta) {
    struct st_job job = {path, list, n, metadata, nmeta};
    return arena_with_scratch(c, write_safetensors, &job);
}
