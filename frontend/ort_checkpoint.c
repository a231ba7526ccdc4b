// SPDX-License-Identifier: Apache-2.0
/* ort_checkpoint.c - reads ONNX Runtime's checkpoints: flatbuffers of orttraining's schema
 * checkpoint.fbs, versions 1 and 2, file identifier ODTC. Every offset and count comes from the
 * file and is checked. Not writing, not checkpoints with a data file beside them. */
#include "base/diag.h"
#include "frontend/artifacts.h"
#include <string.h>

enum { TENSORS_MAX = 1 << 16, NAME_MAX_BYTES = 1024 }; /* copied for every reference */

struct reader {
    struct ctx *ctx;
    struct arena *a;
    const char *name;
    const uint8_t *at;
    size_t n;
    bool bad; /* something pointed outside; all reads give 0 from then on */
};

/* ---- flatbuffers: positions in the file, 0 for what is absent ---------------------------------
 */
static bool inside(struct reader *r, size_t pos, size_t bytes) {
    if (pos > r->n || bytes > r->n - pos) r->bad = true;
    return !r->bad;
}

static uint64_t number(struct reader *r, size_t pos, size_t bytes) {
    uint64_t x = 0;
    if (!inside(r, pos, bytes)) return 0;
    for (size_t i = 0; i < bytes; i++) x |= (uint64_t)r->at[pos + i] << (8 * i);
    return x;
}

/* Field k of a table. */
static size_t field(struct reader *r, size_t table, unsigned k) {
    int64_t vtable = (int64_t)table - (int32_t)number(r, table, 4);
    if (!table || vtable < 0 || (uint64_t)vtable >= r->n) {
        r->bad |= table != 0;
        return 0;
    }
    size_t size = (size_t)number(r, (size_t)vtable, 2), slot = 4 + 2 * (size_t)k;
    if (slot + 2 > size) return 0;
    size_t off = (size_t)number(r, (size_t)vtable + slot, 2);
    return off && !r->bad ? table + off : 0;
}

/* What the offset at `pos` points to. */
static size_t target(struct reader *r, size_t pos) {
    size_t off = pos ? (size_t)number(r, pos, 4) : 0;
    if (!off || !inside(r, pos, 4) || off > r->n - pos) {
        r->bad |= off != 0;
        return 0;
    }
    return pos + off;
}

static size_t table_of(struct reader *r, size_t table, unsigned k) {
    return target(r, field(r, table, k));
}

/* Elements of a vector field, `size` bytes each. */
static size_t vector(struct reader *r, size_t table, unsigned k, size_t size, uint32_t *count) {
    size_t pos = table_of(r, table, k);
    *count = pos ? (uint32_t)number(r, pos, 4) : 0;
    if (!*count || r->bad) {
        *count = 0;
        return 0;
    }
    if (*count > r->n / size || !inside(r, pos + 4, *count * size)) {
        r->bad = true;
        *count = 0;
    }
    return pos + 4;
}

static const char *string(struct reader *r, size_t table, unsigned k) {
    uint32_t n;
    size_t pos = vector(r, table, k, 1, &n);
    if (n > NAME_MAX_BYTES || (n && memchr(r->at + pos, 0, n))) r->bad = true;
    return n && !r->bad ? arena_strndup(r->a, (const char *)r->at + pos, n) : "";
}

/* ---- the schema --------------------------------------------------------------------------------
 */
static struct ort_tensor tensor(struct reader *r, size_t table) {
    enum { NAME, DOC, DIMS, TYPE, RAW, STRINGS, OFFSET };
    uint32_t rank, bytes;
    struct ort_tensor t = {.name = string(r, table, NAME)};
    size_t dims = vector(r, table, DIMS, 8, &rank), type = field(r, table, TYPE);
    size_t raw = vector(r, table, RAW, 1, &bytes);
    if (rank > RANK_MAX) r->bad = true;
    if (r->bad) return t;
    int64_t *to = ARENA_ARRAY(r->a, int64_t, rank);
    for (uint32_t i = 0; i < rank; i++) to[i] = (int64_t)number(r, dims + 8 * (size_t)i, 8);
    t.rank = (int)rank;
    t.dims = to;
    t.data_type = type ? (int32_t)number(r, type, 4) : 0;
    t.data = r->at + raw;
    t.bytes = bytes;
    return t;
}

static void tensors(struct reader *r, size_t state, unsigned k, struct ort_tensor *to,
                    uint32_t *count) {
    uint32_t n;
    size_t at = vector(r, state, k, 4, &n);
    for (uint32_t i = 0; i < n && !r->bad; i++)
        to[(*count)++] = tensor(r, target(r, at + 4 * (size_t)i));
}

static uint32_t length(struct reader *r, size_t table, unsigned k) {
    uint32_t n;
    (void)vector(r, table, k, 4, &n);
    if (n > TENSORS_MAX) r->bad = true;
    return r->bad ? 0 : n;
}

static void moments(struct reader *r, size_t state, struct ort_moments *to) {
    enum { PARAM, MOMENTUMS };
    uint32_t n;
    size_t at = vector(r, state, MOMENTUMS, 4, &n);
    to->param = string(r, state, PARAM);
    if (n > 2) r->bad = true;
    for (uint32_t i = 0; i < n && !r->bad; i++) {
        struct ort_tensor t = tensor(r, target(r, at + 4 * (size_t)i));
        int k = strcmp(t.name, "momentum1") == 0;
        to->at[k] = t;
        if (to->count <= k) to->count = k + 1;
    }
}

/* Only the first group: ONNX Runtime makes no other. */
static void optimizer(struct reader *r, size_t root, struct ort_checkpoint *out) {
    enum { GROUPS = 2, STEP = 1, STATES = 3 };
    uint32_t groups, n = 0;
    size_t at = vector(r, root, GROUPS, 4, &groups);
    if (!groups || r->bad) return;
    size_t group = target(r, at), step = field(r, group, STEP);
    out->step = step ? (int64_t)number(r, step, 8) : 0;
    uint32_t most = length(r, group, STATES);
    out->moments = ARENA_ARRAY(r->a, struct ort_moments, most);
    size_t states = vector(r, group, STATES, 4, &n);
    for (uint32_t i = 0; i < n && !r->bad; i++)
        moments(r, target(r, states + 4 * (size_t)i), &out->moments[out->nmoments++]);
}

static enum status read_state(struct reader *r, size_t root, struct ort_checkpoint *out) {
    enum { STATE = 1, TRAINED = 0, FROZEN = 1, NOMINAL = 2, EXTERNAL = 3 };
    size_t state = table_of(r, root, STATE), flag;
    if (((flag = field(r, state, NOMINAL)) && number(r, flag, 1)) ||
        ((flag = field(r, state, EXTERNAL)) && number(r, flag, 1)))
        return diag_error(r->ctx, ST_UNSUPPORTED, r->name,
                          "a checkpoint without its weights (nominal, or with a data file beside "
                          "it) cannot be trained");
    uint32_t most = length(r, state, TRAINED) + length(r, state, FROZEN);
    out->params = ARENA_ARRAY(r->a, struct ort_tensor, most);
    tensors(r, state, TRAINED, out->params, &out->nparams);
    out->ntrained = out->nparams;
    tensors(r, state, FROZEN, out->params, &out->nparams);
    optimizer(r, root, out);
    return ST_OK;
}

enum status ort_checkpoint_read(struct ctx *c, struct arena *a, const char *name,
                                const uint8_t *bytes, size_t n, struct ort_checkpoint *out) {
    struct reader r = {.ctx = c, .a = a, .name = name, .at = bytes, .n = n};
    *out = (struct ort_checkpoint){0};
    if (n < 8 || memcmp(bytes + 4, "ODTC", 4) != 0)
        return diag_error(c, ST_PARSE, name,
                          "not a checkpoint of ONNX Runtime: the file identifier ODTC is missing");
    size_t root = (size_t)number(&r, 0, 4), at = field(&r, root, 0);
    int32_t version = at ? (int32_t)number(&r, at, 4) : 0;
    if (!r.bad && version != 1 && version != 2)
        return diag_error(c, ST_UNSUPPORTED, name, "checkpoint version %d; 1 and 2 are read",
                          version);
    TRY(read_state(&r, root, out));
    if (!r.bad && out->step >= 0 && out->step < INT64_MAX) return ST_OK;
    return diag_error(c, ST_PARSE, name,
                      "the checkpoint is damaged: an offset, a count or a name is wrong");
}
