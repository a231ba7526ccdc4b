// SPDX-License-Identifier: Apache-2.0
/* cpu_check.c - the search for the first launch that makes a NaN or an infinity. */
#include "runtime/cpu_impl.h"

struct finite_kinds cpu_scan_operands(struct cpu_job *j) {
    struct finding f = FINDING_NONE;
    for (uint32_t i = 0; i < j->l->nin; i++)
        finite_scan(job_in(j, i), &j->l->in[i], (struct finite_kinds){false, false}, &f);
    if (j->l->kind == LAUNCH_group)
        finite_scan_constants(&j->x->plan->groups.at[j->l->group.i], &f);
    return f.kinds;
}

enum status cpu_check_results(struct cpu_job *j, struct finite_kinds operands) {
    for (uint32_t i = 0; i < j->l->nout; i++) {
        struct finding f = FINDING_NONE;
        finite_scan(job_out(j, i), &j->l->out[i], finite_known(j->l, i, operands), &f);
        if (f.first >= 0) return finite_error(j->x->ctx, job_origin(j), j->l, i, &f);
    }
    return ST_OK;
}
