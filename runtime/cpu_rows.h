// SPDX-License-Identifier: Apache-2.0
/* cpu_rows.h - softmax over one row, shared by cross entropy and attention. Sums run in fixed
 * lanes, so they depend on the row alone. Private to runtime/cpu*.c. */
#ifndef LATHE_RUNTIME_CPU_ROWS_H
#define LATHE_RUNTIME_CPU_ROWS_H

#include <stdint.h>

/* log(sum exp(x)); -inf for a row without elements or with -inf only. */
double row_lse_f32(const float *x, int64_t n);
double row_lse_f64(const double *x, int64_t n);
/* x becomes exp(x - lse); zeros when lse is -inf. */
void row_exp_f32(float *x, int64_t n, double lse);
void row_exp_f64(double *x, int64_t n, double lse);
/* x becomes softmax(x); returns log(sum exp(x)) of before. */
double row_softmax_f32(float *x, int64_t n);
double row_softmax_f64(double *x, int64_t n);

#endif
