// SPDX-License-Identifier: Apache-2.0
/* bench.h - what `lathe bench` measured and how it is told: the record between cmd_bench.c, which
 * runs, and cmd_bench_report.c, which prints; and the bytes of a launch (bench.c). */
#ifndef LATHE_DRIVER_BENCH_H
#define LATHE_DRIVER_BENCH_H

#include "ir/plan.h"

struct bench_result {
    const struct plan *plan;
    const char *device;
    double *seconds;         /* per launch, the median over steps */
    double step_seconds;     /* median, launches replayed without events in between */
    double first_seconds;    /* from opening the device to the end of the first step */
    double copy_rate;        /* bytes per second, read and written */
    int64_t held;            /* bytes that the device holds */
    int64_t samples, tokens; /* per step; tokens 0: no input has two dimensions of integers */
    int64_t steps;
    /* Registers per thread of launch i's first call; NULL when unknown. */
    const int *registers;
};

/* Exact bytes that a launch has to read and write: each distinct element of its operands and of its
 * results once; of a gather's table only the rows that are taken. */
double bench_bytes(const struct plan *p, const struct plan_launch *l);
/* Launches of one shape are one line, the most expensive first; `layer`: also those whose origin
 * matches, in order, one by one. Memory comes from `a`. False: `layer` is no regular expression. */
bool bench_print(const struct bench_result *r, const char *layer, struct arena *a);
/* The same as one line of JSON. */
bool bench_print_json(const struct bench_result *r, const char *layer, struct arena *a);

#endif
