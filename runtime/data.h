// SPDX-License-Identifier: Apache-2.0
/* data.h - training data as batches. A source holds arrays whose first axis counts samples, or one
 * token stream. What sample stands where is a pure function of (seed, epoch, index), so that a
 * resumed run sees what an uninterrupted one would. */
#ifndef LATHE_RUNTIME_DATA_H
#define LATHE_RUNTIME_DATA_H

#include "ir/plan.h"
#include "runtime/array.h"

enum data_kind { DATA_ARRAYS, DATA_TOKENS };
struct data_source {
    enum data_kind kind;
    const char *path;
    struct arrays arrays;  /* DATA_ARRAYS */
    const void *tokens;    /* DATA_TOKENS: u8 bytes, u16 ids or i32 ids; alignment 1 */
    enum dtype token_type; /* DT_u8, DT_i16 standing for unsigned 16-bit ids, or DT_i32 */
    int64_t ntokens;
    int64_t max_token; /* the largest id that occurs */
};
/* .npz/.npy/.safetensors as arrays; .bin as tokens (uint16, or a llm.c header: magic 20240520,
 * version 1, count; also 20240801 v7 if recognised); anything else, or a directory (its regular
 * files in name order, concatenated), as bytes. `map` renames arrays: "INPUT=ARRAY". */
enum status data_open(struct arena *a, const char *path, const char *const *map, int nmap,
                      struct data_source *out) MUST_USE;

/* One model input that the loader fills: packed [batch, ...]. */
struct data_slot {
    const char *name;
    struct type type; /* of the whole batch */
    void *at;         /* where to write */
    int shift;        /* tokens: 0 for the inputs, 1 for labels (the next token) */
};
struct data_loader;
/* Tokens are cut into windows of seq (+1 when a slot has shift 1) tokens, one every seq tokens.
 * With `shuffle` each epoch starts at a random offset and visits the windows (or samples) in a
 * permutation of its own; without it, or when one batch is all there is, the order is the file's
 * and wraps around at its end.
 *
 * Checks every slot against the source before anything runs: an array missing, wrong rank or shape,
 * a type that does not convert without loss of meaning (float <-> int is refused; wider to narrower
 * ints are checked by value; f64 -> f32 is fine), too few samples for one batch, too few tokens,
 * token ids outside [0, vocab) when vocab > 0. ST_DATA and one diagnostic that names the input,
 * what it needs and what the data has. */
enum status data_loader_create(struct arena *a, const struct data_source *src,
                               struct data_slot *slots, int nslots, int64_t batch, int64_t vocab,
                               uint64_t seed, bool shuffle, struct data_loader **out) MUST_USE;
int64_t data_items(const struct data_loader *l);             /* samples or windows of an epoch */
int64_t data_batches_per_epoch(const struct data_loader *l); /* full batches; >= 1 */
/* Fill the slots with batch `index` (0-based, over all epochs). */
void data_load(struct data_loader *l, int64_t index);
/* Fill the slots with the samples (or windows) from `first` in [0, data_items) on, in the order of
 * the file, which wraps around at its end. */
void data_load_from(struct data_loader *l, int64_t first);

#endif
