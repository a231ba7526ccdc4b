// SPDX-License-Identifier: Apache-2.0
/* array_impl.h - what the three array formats share. Private to the array files of runtime/. */
#ifndef LATHE_RUNTIME_ARRAY_IMPL_H
#define LATHE_RUNTIME_ARRAY_IMPL_H

#include "runtime/array.h"

/* One file being read. */
struct array_reader {
    struct arena *arena;
    struct ctx *ctx;
    const char *origin; /* the file */
    const char *label;  /* the array at hand, for diagnostics: "the array", "entry x.npy" */
    const uint8_t *at;
    size_t n;
    struct interner names; /* of the arrays so far */
    struct arrays *out;
};

/* An array as it stands in the file. */
struct raw_array {
    struct type type;   /* what it is read as */
    int unsigned_bytes; /* 2, 4, 8: unsigned elements of that size, to be widened to type.dtype;
                           else 0 */
    size_t bytes;       /* of its elements in the file */
};
/* Set `bytes`; refuses sizes that overflow. */
enum status array_size(const struct array_reader *r, struct raw_array *raw) MUST_USE;
/* Append the array `name` whose elements stand at `at`; refuses a name that was there before. */
enum status array_add(struct array_reader *r, const char *name, const struct raw_array *raw,
                      const uint8_t *at) MUST_USE;
/* Memory for elements, freed with the arena; refused with a diagnostic when there is not so much.
 */
enum status array_block(const struct array_reader *r, size_t bytes, void **out) MUST_USE;

/* Size of the .npy header that starts at `p` (n >= 12 bytes are there), up to the first element. */
enum { NPY_PREFIX = 12 };
enum status npy_header_size(const struct array_reader *r, const uint8_t *p, size_t *size) MUST_USE;
/* The complete header of `size` bytes. */
enum status npy_parse_header(const struct array_reader *r, const uint8_t *p, size_t size,
                             struct raw_array *out) MUST_USE;
/* A header (version 1.0) for elements of `t`, padded to 64 bytes, in the arena. */
const char *npy_make_header(struct arena *a, const struct type *t, size_t *size);

enum status npy_read(struct array_reader *r) MUST_USE;
enum status npz_read(struct array_reader *r) MUST_USE;
enum status safetensors_read(struct array_reader *r) MUST_USE;

/* Refuse lists with equal names or names that are not UTF-8. */
enum status array_check_names(struct arena *a, const char *path, const struct array *list,
                              uint32_t n) MUST_USE;

#endif
