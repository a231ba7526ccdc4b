// SPDX-License-Identifier: Apache-2.0
/* numerics.h - what 8-bit states and delayed scales look like during a run, as scalars of its
 * metrics. */
#ifndef LATHE_DRIVER_NUMERICS_H
#define LATHE_DRIVER_NUMERICS_H

#include "driver/trainer.h"
#include "runtime/metrics.h"

/* Write one record of step `step` with, for each 8-bit optimizer state NAME (such as "w.m"):
 *   NAME.zero   share of codes that are 0, of all
 *   NAME.amax   largest magnitude
 *   NAME.k      mean exponent of range expansion over the groups; NAME.k_low: share of groups with
 * k = 1 and for each history of magnitudes NAME (delayed scales, such as "node.input.amax"): NAME
 * of this step NAME.growth over the largest of the steps before; above 2^margin values have
 * saturated A warning names the tensor that grew most when values have saturated by more than
 * twice. Nothing is written where there are no such states. Copies from a GPU, one tensor at a
 * time. */
enum status numerics_log(lathe_trainer *t, struct run_dir *dir, int64_t step) MUST_USE;

#endif
