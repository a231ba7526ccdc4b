// SPDX-License-Identifier: Apache-2.0
/* schedule.h - learning-rate schedules as pure functions of the step. */
#ifndef LATHE_DRIVER_SCHEDULE_H
#define LATHE_DRIVER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* "constant", "linear" or "cosine" (both decay to `floor` of the peak over the run), each with an
 * optional warm-up: "cosine:warmup=100", "linear:warmup=0.1,floor=0.01"; a warm-up below 1 is a
 * share of all steps. */
struct schedule {
    enum { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE } kind;
    double warmup; /* steps, or a share of all steps when below 1 */
    double floor;  /* share of the peak at the end */
};
/* False when the text is something else. NULL is "constant". */
bool schedule_parse(const char *text, struct schedule *out);
/* Factor on the peak learning rate for step 1..steps. During warm-up step s has s/warmup of the
 * peak. */
double schedule_factor(const struct schedule *s, int64_t step, int64_t steps);

#endif
