// SPDX-License-Identifier: Apache-2.0
/* data_loader.c - batches from a data source: everything is checked once, then each batch is copied
 * and converted. Which sample goes where depends on (seed, epoch, index) alone; no state is kept.
 */
#include "base/diag.h"
#include "runtime/data.h"
#include <limits.h>
#include <string.h>

struct data_loader {
    struct ctx *ctx;
    const struct data_source *src;
    struct data_slot *slots;
    const struct array **arrays; /* DATA_ARRAYS: one for each slot */
    int nslots;
    int64_t batch;
    int64_t items;        /* samples or windows of an epoch */
    int64_t seq, offsets; /* DATA_TOKENS: window length; number of offsets to start an epoch at */
    uint64_t seed;
    bool shuffle;
};

/* ---- order -------------------------------------------------------------------------------- */

enum { FEISTEL_ROUNDS = 6, FEISTEL_MIN_BITS = 4 };

/* A permutation of [0, n) without a table: a balanced Feistel network on 2*bits bits (Luby and
 * Rackoff, 1988), repeated until the result falls into the range (cycle walking, Black and Rogaway,
 * 2002). The range is at least a quarter of the network's or the network has 256 points, so the
 * walk is short. */
static uint64_t permute(uint64_t key, uint64_t n, uint64_t i) {
    int bits = FEISTEL_MIN_BITS;
    while (bits < 31 && UINT64_C(1) << (2 * bits) < n) bits++;
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    do {
        uint64_t left = i >> bits, right = i & mask;
        for (int round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t next = left ^ (hash_combine(key + (uint64_t)round, right) & mask);
            left = right;
            right = next;
        }
        i = left << bits | right;
    } while (i >= n);
    return i;
}

/* A tag apart from the rounds' and samples' inputs, for the offset of an epoch. */
static const uint64_t offset_tag = UINT64_C(1) << 63;

/* Which sample or window is at place `j` of batch `index`; *offset is where the epoch's first
 * window starts. */
static int64_t item_at(const struct data_loader *l, uint64_t index, int64_t j, int64_t *offset) {
    uint64_t n = (uint64_t)l->items, batch = (uint64_t)l->batch, per_epoch = n / batch;
    *offset = 0;
    if (!l->shuffle)
        return (int64_t)(((index % n) * batch + (uint64_t)j) % n); /* both below 2^32 in practice */
    uint64_t key = hash_combine(l->seed, index / per_epoch);
    *offset = (int64_t)(hash_combine(key, offset_tag) % (uint64_t)l->offsets);
    return (int64_t)permute(key, n, (index % per_epoch) * batch + (uint64_t)j);
}

int64_t data_items(const struct data_loader *l) {
    return l->items;
}

int64_t data_batches_per_epoch(const struct data_loader *l) {
    return l->items / l->batch;
}

/* ---- conversion --------------------------------------------------------------------------- */

/* Values that an integer type or bool can hold. */
static void int_range(enum dtype t, int64_t *low, int64_t *high) {
    switch (t) {
    case DT_i64: *low = INT64_MIN, *high = INT64_MAX; return;
    case DT_i32: *low = INT32_MIN, *high = INT32_MAX; return;
    case DT_i16: *low = INT16_MIN, *high = INT16_MAX; return;
    case DT_i8: *low = INT8_MIN, *high = INT8_MAX; return;
    case DT_u8: *low = 0, *high = UINT8_MAX; return;
    default: *low = 0, *high = 1; return;
    }
}

#define CONVERT(TO, FROM)                                                                          \
    do {                                                                                           \
        for (size_t i = 0; i < n; i++) {                                                           \
            FROM x;                                                                                \
            memcpy(&x, (const char *)from + i * sizeof x, sizeof x);                               \
            TO y = (TO)x;                                                                          \
            memcpy((char *)to + i * sizeof y, &y, sizeof y);                                       \
        }                                                                                          \
        return;                                                                                    \
    } while (0)

/* The pairs that occur in practice have loops of their own; values were checked before. */
static void convert(enum dtype to_type, void *to, enum dtype from_type, const void *from,
                    size_t n) {
    size_t to_size = dtype_size(to_type), from_size = dtype_size(from_type);
    if (to_type == from_type) {
        if (n) memcpy(to, from, n * to_size);
        return;
    }
    if (to_type == DT_f32 && from_type == DT_f64) CONVERT(float, double);
    if (to_type == DT_f64 && from_type == DT_f32) CONVERT(double, float);
    if (to_type == DT_i64 && from_type == DT_i32) CONVERT(int64_t, int32_t);
    if (to_type == DT_i32 && from_type == DT_i64) CONVERT(int32_t, int64_t);
    if (to_type == DT_i64 && from_type == DT_u8) CONVERT(int64_t, uint8_t);
    if (to_type == DT_i32 && from_type == DT_u8) CONVERT(int32_t, uint8_t);
    bool floats = dtype_is_float(from_type);
    for (size_t i = 0; i < n; i++) {
        const char *x = (const char *)from + i * from_size;
        char *y = (char *)to + i * to_size;
        if (floats)
            dtype_store(to_type, y, dtype_load(from_type, x));
        else
            dtype_store_int(to_type, y, dtype_load_int(from_type, x));
    }
}

static uint32_t token_at(const struct data_source *s, int64_t i) {
    uint32_t id = 0;
    size_t each = dtype_size(s->token_type);
    memcpy(&id, (const char *)s->tokens + (size_t)i * each, each);
    return id;
}

static void copy_tokens(const struct data_source *s, int64_t start, enum dtype to_type, void *to,
                        size_t n) {
    size_t each = dtype_size(to_type);
    const char *from = (const char *)s->tokens + (size_t)start * dtype_size(s->token_type);
    if (s->token_type == DT_u8) {
        convert(to_type, to, DT_u8, from, n);
    } else if (to_type == DT_i64 && s->token_type == DT_i16) {
        CONVERT(int64_t, uint16_t);
    } else {
        for (size_t i = 0; i < n; i++)
            dtype_store_int(to_type, (char *)to + i * each, token_at(s, start + (int64_t)i));
    }
}

/* ---- loading ------------------------------------------------------------------------------ */

static void load_window(const struct data_loader *l, int64_t place, int64_t start) {
    for (int k = 0; k < l->nslots; k++) {
        const struct data_slot *s = &l->slots[k];
        size_t row = (size_t)l->seq * dtype_size(s->type.dtype);
        copy_tokens(l->src, start + s->shift, s->type.dtype, (char *)s->at + (size_t)place * row,
                    (size_t)l->seq);
    }
}

static void load_sample(const struct data_loader *l, int64_t place, int64_t item) {
    for (int k = 0; k < l->nslots; k++) {
        const struct data_slot *s = &l->slots[k];
        const struct array *a = l->arrays[k];
        size_t n = (size_t)(type_count(&s->type) / l->batch);
        convert(s->type.dtype, (char *)s->at + (size_t)place * n * dtype_size(s->type.dtype),
                a->type.dtype, (const char *)a->at + (size_t)item * n * dtype_size(a->type.dtype),
                n);
    }
}

static void load_item(const struct data_loader *l, int64_t place, int64_t item, int64_t offset) {
    if (l->src->kind == DATA_TOKENS)
        load_window(l, place, offset + item * l->seq);
    else
        load_sample(l, place, item);
}

void data_load(struct data_loader *l, int64_t index) {
    CHECK(l->ctx, index >= 0);
    for (int64_t j = 0; j < l->batch; j++) {
        int64_t offset, item = item_at(l, (uint64_t)index, j, &offset);
        load_item(l, j, item, offset);
    }
}

void data_load_from(struct data_loader *l, int64_t first) {
    CHECK(l->ctx, first >= 0 && first < l->items);
    for (int64_t j = 0; j < l->batch; j++) {
        int64_t left = l->items - first; /* batch <= items: it wraps around at most once */
        load_item(l, j, j < left ? first + j : j - left, 0);
    }
}

/* ---- checks: tokens ----------------------------------------------------------------------- */

static const char *type_text(struct arena *a, const struct type *t) {
    struct buf b;
    buf_init(&b, a);
    type_print(dims_create(a), t, &b);
    return b.at;
}

static enum status check_token_slot(struct arena *a, const struct data_source *src,
                                    const struct data_slot *s, int64_t batch, int64_t seq) {
    int64_t low, high;
    if (s->type.rank != 2 || dtype_class(s->type.dtype) != DTC_INT)
        return diag_error(
            a->ctx, ST_DATA, src->path,
            "input \"%s\" is %s, but tokens can feed only integer inputs [batch, seq]; give arrays "
            "(.npz) instead",
            s->name, type_text(a, &s->type));
    if (s->type.dims[0] != batch || s->type.dims[1] != seq || seq < 1)
        return diag_error(a->ctx, ST_DATA, src->path,
                          "input \"%s\" is %s; expected [%jd, %jd] like the other inputs", s->name,
                          type_text(a, &s->type), (intmax_t)batch, (intmax_t)seq);
    int_range(s->type.dtype, &low, &high);
    if (src->max_token > high)
        return diag_error(a->ctx, ST_DATA, src->path,
                          "input \"%s\" is of type %s, but the token id %jd occurs", s->name,
                          dtype_name(s->type.dtype), (intmax_t)src->max_token);
    return ST_OK;
}

static enum status plan_windows(struct arena *a, struct data_loader *l) {
    const struct data_source *src = l->src;
    int64_t shift = 0, need, window;
    for (int k = 0; k < l->nslots; k++) {
        if (l->slots[k].shift < 0 || l->slots[k].shift > 1)
            return diag_error(a->ctx, ST_USAGE, l->slots[k].name,
                              "expected a shift of 0 or 1 tokens");
        if (l->slots[k].shift > shift) shift = l->slots[k].shift;
    }
    if (__builtin_mul_overflow(l->batch, l->seq, &need) ||
        __builtin_add_overflow(need, shift, &need))
        need = INT64_MAX;
    if (src->ntokens < need)
        return diag_error(a->ctx, ST_DATA, src->path,
                          "one batch of %jd windows of %jd tokens needs %jd tokens, but there are "
                          "%jd; use a smaller "
                          "--batch or --seq, or more data",
                          (intmax_t)l->batch, (intmax_t)l->seq, (intmax_t)need,
                          (intmax_t)src->ntokens);
    window = l->seq + shift;
    l->items = (src->ntokens - window) / l->seq + 1;
    l->shuffle = l->shuffle && l->items > l->batch;
    l->offsets = (src->ntokens - window) % l->seq + 1;
    if (!l->shuffle) return ST_OK;
    l->items--; /* given up so that an epoch may start at any of the first seq tokens */
    l->offsets = l->seq;
    return ST_OK;
}

static enum status check_tokens(struct arena *a, struct data_loader *l, int64_t vocab) {
    const struct data_source *src = l->src;
    l->seq = l->slots[0].type.rank == 2 ? l->slots[0].type.dims[1] : 0;
    for (int k = 0; k < l->nslots; k++)
        TRY(check_token_slot(a, src, &l->slots[k], l->batch, l->seq));
    if (vocab > 0 && src->max_token >= vocab)
        return diag_error(a->ctx, ST_DATA, src->path,
                          "the token id %jd occurs, but the model has a vocabulary of %jd",
                          (intmax_t)src->max_token, (intmax_t)vocab);
    return plan_windows(a, l);
}

/* ---- checks: arrays ----------------------------------------------------------------------- */

static bool same_row_shape(const struct type *slot, const struct type *array) {
    if (slot->rank != array->rank || slot->rank < 1) return false;
    for (int k = 1; k < slot->rank; k++)
        if (slot->dims[k] != array->dims[k]) return false;
    return true;
}

static enum status check_values(struct arena *a, const struct data_source *src,
                                const struct data_slot *s, const struct array *from) {
    int64_t low, high, from_low, from_high, n = type_count(&from->type);
    size_t each = dtype_size(from->type.dtype);
    int_range(s->type.dtype, &low, &high);
    int_range(from->type.dtype, &from_low, &from_high);
    if (from_low >= low && from_high <= high) return ST_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t x = dtype_load_int(from->type.dtype, (const char *)from->at + (size_t)i * each);
        if (x < low || x > high)
            return diag_error(a->ctx, ST_DATA, src->path,
                              "input \"%s\" is of type %s, which cannot hold the value %jd at "
                              "element %jd of array "
                              "\"%s\" (%s)",
                              s->name, dtype_name(s->type.dtype), (intmax_t)x, (intmax_t)i,
                              from->name, dtype_name(from->type.dtype));
    }
    return ST_OK;
}

static enum status check_array(struct arena *a, const struct data_loader *l,
                               const struct data_slot *s, const struct array *from) {
    const struct data_source *src = l->src;
    if (!from)
        return diag_error(a->ctx, ST_DATA, src->path,
                          "input \"%s\" needs an array of its name (the first of %u is \"%s\"); "
                          "--map INPUT=ARRAY "
                          "renames one",
                          s->name, src->arrays.list.n,
                          src->arrays.list.n ? src->arrays.list.at[0].name : "");
    if (!*from->name && l->nslots > 1)
        return diag_error(
            a->ctx, ST_DATA, src->path,
            "one array without a name cannot feed %d inputs; give an .npz with an array for each",
            l->nslots);
    if (s->type.rank < 1 || s->type.dims[0] != l->batch)
        return diag_error(
            a->ctx, ST_DATA, src->path,
            "input \"%s\" is %s; expected a first dimension that is the batch size, %jd", s->name,
            type_text(a, &s->type), (intmax_t)l->batch);
    if (!same_row_shape(&s->type, &from->type))
        return diag_error(
            a->ctx, ST_DATA, src->path,
            "input \"%s\" is %s, but its array is %s; all dimensions but the first must be equal",
            s->name, type_text(a, &s->type), type_text(a, &from->type));
    if (dtype_is_float(s->type.dtype) != dtype_is_float(from->type.dtype))
        return diag_error(a->ctx, ST_DATA, src->path,
                          "input \"%s\" is of type %s, but its array is of type %s; convert the "
                          "array with astype",
                          s->name, dtype_name(s->type.dtype), dtype_name(from->type.dtype));
    return dtype_is_float(s->type.dtype) ? ST_OK : check_values(a, src, s, from);
}

static enum status check_arrays(struct arena *a, struct data_loader *l) {
    l->arrays = ARENA_ARRAY(a, const struct array *, (size_t)l->nslots);
    for (int k = 0; k < l->nslots; k++) {
        const struct data_slot *s = &l->slots[k];
        l->arrays[k] = arrays_find(&l->src->arrays, s->name);
        TRY(check_array(a, l, s, l->arrays[k]));
        int64_t samples = l->arrays[k]->type.dims[0];
        if (k == 0) l->items = samples;
        if (samples != l->items)
            return diag_error(
                a->ctx, ST_DATA, l->src->path,
                "input \"%s\" has %jd samples, but input \"%s\" has %jd; expected equally many",
                s->name, (intmax_t)samples, l->slots[0].name, (intmax_t)l->items);
    }
    if (l->items < l->batch)
        return diag_error(a->ctx, ST_DATA, l->src->path,
                          "one batch needs %jd samples, but there are %jd; use a smaller --batch",
                          (intmax_t)l->batch, (intmax_t)l->items);
    l->offsets = 1;
    l->shuffle = l->shuffle && l->items > l->batch;
    return ST_OK;
}

enum status data_loader_create(struct arena *a, const struct data_source *src,
                               struct data_slot *slots, int nslots, int64_t batch, int64_t vocab,
                               uint64_t seed, bool shuffle, struct data_loader **out) {
    struct data_loader *l = ARENA_NEW(a, struct data_loader);
    if (batch < 1 || nslots < 1)
        return diag_error(a->ctx, ST_USAGE, src->path,
                          "expected a batch of at least 1 sample and a model with inputs");
    *l = (struct data_loader){.ctx = a->ctx,
                              .src = src,
                              .slots = ARENA_ARRAY(a, struct data_slot, (size_t)nslots),
                              .nslots = nslots,
                              .batch = batch,
                              .seed = seed,
                              .shuffle = shuffle};
    memcpy(l->slots, slots, (size_t)nslots * sizeof *slots);
    TRY(src->kind == DATA_TOKENS ? check_tokens(a, l, vocab) : check_arrays(a, l));
    *out = l;
    return ST_OK;
}
