// SPDX-License-Identifier: Apache-2.0
/* finite.h - the search for the first launch that makes a NaN or an infinity, on memory the host
 * can read; both backends use it. */
#ifndef LATHE_RUNTIME_FINITE_H
#define LATHE_RUNTIME_FINITE_H

#include "ir/plan.h"

struct finite_kinds {
    bool nan, inf;
};
struct finding {
    struct finite_kinds kinds;
    int64_t first; /* position of the first such element of a kind not in `known`, -1: none */
    double value;
};
#define FINDING_NONE ((struct finding){.first = -1})

/* Scan a view whose first element lies at `first`, row-major; views of integers hold nothing. */
void finite_scan(const void *first, const struct plan_view *v, struct finite_kinds known,
                 struct finding *f);
/* The constants in a group's program count as operands. */
void finite_scan_constants(const struct plan_group *g, struct finding *f);
/* What result `out` of a launch may hold when its operands hold `operands`. */
struct finite_kinds finite_known(const struct plan_launch *l, uint32_t out,
                                 struct finite_kinds operands);
/* ST_NONFINITE, naming the launch. */
enum status finite_error(struct ctx *c, const char *origin, const struct plan_launch *l,
                         uint32_t out, const struct finding *f) MUST_USE;

#endif
