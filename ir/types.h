// SPDX-License-Identifier: Apache-2.0
/* types.h - element types, dimensions and tensor types. Layout, strides and memory belong to the
 * plan (plan.h), not to types. */
#ifndef LATHE_IR_TYPES_H
#define LATHE_IR_TYPES_H

#include "base/buf.h"
#include "base/intern.h"

enum dtype {
    DT_NONE,
#define DT(name, bytes, cls, onnx) DT_##name,
#include "ir/dtypes.def"
#undef DT
    DT_COUNT
};
enum dtype_class { DTC_FLOAT, DTC_INT, DTC_BOOL };

const char *dtype_name(enum dtype t);                /* "f32"; "none" for DT_NONE */
enum dtype dtype_from_name(const char *s, size_t n); /* DT_NONE when unknown */
enum dtype dtype_from_onnx(int32_t code);            /* DT_NONE when unknown */
int32_t dtype_to_onnx(enum dtype t);
size_t dtype_size(enum dtype t); /* bytes per element */
enum dtype_class dtype_class(enum dtype t);
static inline bool dtype_is_float(enum dtype t) {
    return t != DT_NONE && dtype_class(t) == DTC_FLOAT;
}

/* Convert one element to/from double or int64 at `p` (little-endian memory of type t; any
 * alignment). */
double dtype_load(enum dtype t, const void *p);
int64_t dtype_load_int(enum dtype t, const void *p); /* floats truncate, saturating; NaN gives 0 */
/* Rounds to nearest even (to truncate like OP_cast, go through dtype_load_int). Ints saturate, NaN
 * gives 0; bool is x != 0. f16, bf16 and f32 overflow to infinity; e4m3 and e5m2 saturate to the
 * largest finite value, infinities too. e8m0 has powers of two only: ties go up, values below its
 * range (and 0) give 2^-127, above it 2^127, negative ones NaN. */
void dtype_store(enum dtype t, void *p, double x);
void dtype_store_int(enum dtype t, void *p, int64_t x);

enum { RANK_MAX = 12 };

/* A dimension: >= 0 is a number of elements, < 0 names a symbolic expression of the graph's dim
 * table (a polynomial in named symbols with integer coefficients, e.g. "batch*seq" or "seq+1",
 * canonical: equal expressions have equal ids). */
typedef int64_t dim;
static inline bool dim_known(dim d) {
    return d >= 0;
}

struct dims_table;
struct dims_table *dims_create(struct arena *a);
/* A copy in which every id means the same. */
struct dims_table *dims_clone(const struct dims_table *t, struct arena *a);
dim dim_symbol(struct dims_table *t, const char *name);
dim dim_add(struct dims_table *t, dim a, dim b);
dim dim_sub(struct dims_table *t, dim a, dim b);
dim dim_mul(struct dims_table *t, dim a, dim b);
/* The same for numbers that a file chose: false on overflow or when the polynomial grows beyond
 * DIM_TERMS_MAX terms, where the forms above unwind with INTERNAL. */
enum { DIM_TERMS_MAX = 256, DIM_DEGREE_MAX = 32 };
bool dim_try_add(struct dims_table *t, dim a, dim b, dim *out);
bool dim_try_sub(struct dims_table *t, dim a, dim b, dim *out);
bool dim_try_mul(struct dims_table *t, dim a, dim b, dim *out);
/* a / b where it is provably exact; false otherwise. Numbers: b divides a. */
bool dim_div(struct dims_table *t, dim a, dim b, dim *out);
/* Equal for every value of the symbols. Symbols are sizes: >= 0, assumed >= 1 where it matters. */
bool dim_same(dim a, dim b);
void dim_print(const struct dims_table *t, dim d, struct buf *out); /* "4", "batch", "2*seq+1" */
/* Parse what dim_print writes, and the expressions that exporters put in dim_param (names, numbers,
 * + - * and parentheses); false when the text is something else. */
bool dim_parse(struct dims_table *t, const char *s, size_t n, dim *out);
/* Replace symbols by numbers; `value` returns -1 for a symbol that stays. Overflow stays symbolic.
 */
dim dim_bind(struct dims_table *t, dim d, int64_t (*value)(void *user, const char *symbol),
             void *user);
/* The only symbol of d when d is exactly one symbol, else NULL. */
const char *dim_symbol_name(const struct dims_table *t, dim d);
/* False when a finite sum/product of known dims would overflow int64. The operations above unwind
 * on overflow of numbers, so check numbers that come from a file first. */
bool dims_product(const dim *d, int n, int64_t *out); /* false when symbolic or overflowing */

typedef struct {
    uint32_t i;
} type_id;

struct type {
    enum dtype dtype;
    int rank;
    dim dims[RANK_MAX];
};
static inline struct type type_scalar(enum dtype t) {
    struct type r = {.dtype = t, .rank = 0};
    return r;
}
bool type_equal(const struct type *a, const struct type *b);
bool type_static(const struct type *t);   /* no symbolic dim */
int64_t type_count(const struct type *t); /* elements; -1 when symbolic or over 2^62 */
int64_t type_bytes(const struct type *t); /* likewise */
void type_print(const struct dims_table *dt, const struct type *t,
                struct buf *out); /* "f32[4,batch]" */

#endif
