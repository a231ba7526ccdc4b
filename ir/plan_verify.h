// SPDX-License-Identifier: Apache-2.0
/* plan_verify.h - what the two files of the plan verifier share. Private to ir/. */
#ifndef LATHE_IR_PLAN_VERIFY_H
#define LATHE_IR_PLAN_VERIFY_H

#include "ir/plan.h"

struct plan_check {
    const struct plan *p;
    const char *stage;
    struct arena *scratch;
    unsigned errors;
    bool *written;      /* per buffer */
    uint32_t *last_use; /* per buffer, by its own id; UINT32_MAX: never */
};
void plan_fault(struct plan_check *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The form of launch k by its kind; its views are known to be in bounds. */
void plan_check_launch(struct plan_check *v, uint32_t k, const struct plan_launch *l);

#endif
