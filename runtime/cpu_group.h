// SPDX-License-Identifier: Apache-2.0
/* cpu_group.h - the vector kernels under the group interpreter: one call computes one instruction
 * on `n` consecutive elements. Private to runtime/cpu_group*.c. */
#ifndef LATHE_RUNTIME_CPU_GROUP_H
#define LATHE_RUNTIME_CPU_GROUP_H

#include "runtime/cpu_impl.h"

/* o never overlaps an operand. */
typedef void ew_fn(void *o, const void *a, const void *b, const void *c, int64_t n);

/* Which operands are single values. EW_VS: b (two operands) or b and c (three). */
enum ew_form { EW_VV, EW_VS, EW_SV, EW_FORMS };

/* NULL when the op does not exist for operands of register type `in`, or not in this form (then the
 * caller repeats the value). `flag` as in group_instr. For `where`, `in` is the type of b and c. */
ew_fn *ew_kernel(enum op op, enum dtype in, enum ew_form form, bool flag);
/* Register to register. */
void ew_cast(enum dtype to, void *o, enum dtype from, const void *a, int64_t n);
/* Round registers in place to what a narrower type can hold; f32 or i64 registers. */
void ew_narrow(enum dtype target, enum dtype reg, void *o, int64_t n);

/* Memory of any type to registers and back; strides in elements. */
void ew_load(enum dtype reg, void *o, enum dtype mem, const void *a, int64_t stride, int64_t n);
void ew_store(enum dtype mem, void *o, int64_t stride, enum dtype reg, const void *a, int64_t n);
/* o[r*o_row + c*o_col] = a[r*a_row + c*a_col] for 4-byte elements, rows innermost. */
void ew_transpose(void *o, int64_t o_row, int64_t o_col, const void *a, int64_t a_row,
                  int64_t a_col, int64_t rows, int64_t cols);
void ew_fill(enum dtype reg, void *o, const void *value, int64_t n);
/* start + step * (first + stride * i) */
void ew_iota(enum dtype reg, void *o, double start, double step, int64_t first, int64_t stride,
             int64_t n);
/* Elements first .. first+n of a Philox stream; Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", 2011. */
void ew_random(enum dtype reg, void *o, uint64_t key, uint64_t stream, uint64_t first, int64_t n);

/* A running result: double for f32 and f64, int64 for i64 (whose sums wrap). */
union total {
    double f;
    int64_t i;
};
union total total_init(uint16_t code, enum dtype reg);
union total total_add(uint16_t code, enum dtype reg, union total t, const void *a, int64_t n);
union total total_join(uint16_t code, enum dtype reg, union total a, union total b);
void total_put(enum dtype reg, void *o, union total t);
/* The same for `rows` short rows at once: o[r] = reduction of row r, in the register type. */
void ew_reduce_rows(uint16_t code, enum dtype reg, void *o, const void *a, int64_t rows,
                    int64_t cols);
/* t[c] += sum over rows of a[r][c], rows in order. */
void ew_colsum(enum dtype reg, union total *t, const void *a, int64_t rows, int64_t cols);
void ew_colmax(union total *t, const float *a, int64_t rows, int64_t cols);

#endif
