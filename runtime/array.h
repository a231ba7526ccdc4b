// SPDX-License-Identifier: Apache-2.0
/* array.h - named arrays in files: .npy, .npz and .safetensors in, .npz and .safetensors out. Files
 * are hostile until proven well-formed. Not batching: that is data.h. */
#ifndef LATHE_RUNTIME_ARRAY_H
#define LATHE_RUNTIME_ARRAY_H

#include "base/sys.h"
#include "ir/types.h"

/* Packed, row-major, little-endian; bool is one byte 0/1. Unsigned integers of 16, 32 and 64 bits,
 * which have no type of their own, are read as i32, i64 and (values checked) i64. Types without a
 * .npy spelling (bf16, fp8) cannot come from .npy/.npz; npz_write stores them as f32, which is
 * exact. */
struct array {
    const char *name; /* "" for a bare .npy */
    struct type type; /* static */
    const void *at;   /* alignment 1 */
};
struct arrays {
    VEC(struct array) list; /* in file order */
};

/* Read every array of `path` (kind told from the content, not the name); data is mapped or in the
 * arena. Refused with ST_PARSE/ST_UNSUPPORTED and one diagnostic: Fortran order (accepted when rank
 * <= 1), object arrays, big-endian, duplicate names, sizes that do not match, zip bombs (entries
 * are bounded by their declared shape). */
enum status arrays_read(struct arena *a, const char *path, struct arrays *out) MUST_USE;
/* The same for bytes in memory, which must outlive `a`; `name` is the origin of diagnostics. */
enum status arrays_read_memory(struct arena *a, const uint8_t *at, size_t n, const char *name,
                               struct arrays *out) MUST_USE;
/* True when the content looks like one of the three formats. */
bool arrays_recognise(const uint8_t *at, size_t n);
/* NULL when absent. The array of a bare .npy, which has no name, answers to every name. */
const struct array *arrays_find(const struct arrays *s, const char *name);

/* Write atomically. Entry order is the order given; bytes are stable from run to run. Refused:
 * equal names, names that are not UTF-8, and in .npz empty names and names with a ".." component.
 */
enum status npz_write(struct ctx *c, const char *path, const struct array *list,
                      uint32_t n) MUST_USE;
/* `metadata`: "key\0value" pairs, may be NULL. */
enum status safetensors_write(struct ctx *c, const char *path, const struct array *list, uint32_t n,
                              const char *const *metadata, uint32_t nmeta) MUST_USE;
enum status safetensors_metadata(struct arena *a, const char *path, const char *key,
                                 const char **value) MUST_USE; /* NULL when absent */

#endif
