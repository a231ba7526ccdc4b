// SPDX-License-Identifier: Apache-2.0
/* cpu_check.c - the search for the first launch that makes a NaN or an infinity. */
#include "runtime/cpu_impl.h"
#include <math.h>

struct finding {
    struct finite_kinds kinds;
    int64_t first; /* position of the first such element of a kind not in `known`, -1: none */
    double value;
};

static void note(struct finding *f, struct finite_kinds known, double x, int64_t at) {
    bool nan = x != x;
    f->kinds.nan |= nan;
    f->kinds.inf |= !nan;
    if (f->first >= 0 || (nan ? known.nan : known.inf)) return;
    f->first = at;
    f->value = x;
}

/* Row-major over a view. */
static void scan_view(const struct cpu_job *j, const struct plan_view *v, struct finite_kinds known,
                      struct finding *f) {
    if (!dtype_is_float(v->dtype)) return;
    const char *base = view_at(j->x, v);
    int64_t n = view_count(v), size = (int64_t)dtype_size(v->dtype), last = v->rank - 1;
    int64_t run = v->rank ? v->dims[last] : 1, step = v->rank ? v->strides[last] * size : 0;
    for (int64_t at = 0; at < n; at += run) {
        int64_t rest = at / (run ? run : 1), offset = 0;
        for (int64_t i = last - 1; i >= 0; i--) {
            offset += rest % v->dims[i] * v->strides[i];
            rest /= v->dims[i];
        }
        const char *p = base + offset * size;
        for (int64_t k = 0; k < run; k++, p += step) {
            double x = v->dtype == DT_f32 ? (double)*(const float *)(const void *)p
                                          : dtype_load(v->dtype, p);
            if (!(fabs(x) < (double)INFINITY)) note(f, known, x, at + k);
        }
    }
}

struct finite_kinds cpu_scan_operands(struct cpu_job *j) {
    struct finding f = {.first = -1};
    for (uint32_t i = 0; i < j->l->nin; i++)
        scan_view(j, &j->l->in[i], (struct finite_kinds){false, false}, &f);
    if (j->l->kind != LAUNCH_group) return f.kinds;
    const struct plan_group *g = &j->x->plan->groups.at[j->l->group.i];
    for (uint32_t i = 0; i < g->code.n; i++) {
        const struct group_instr *k = &g->code.at[i];
        if (k->code != INSTR_CONST || k->dtype == DT_i64) continue;
        if (!(fabs(k->imm) < (double)INFINITY)) note(&f, f.kinds, k->imm, 0);
    }
    return f.kinds;
}

/* Attention and cross entropy use -inf for rows without a visible key in `lse`. */
static bool may_be_infinite(const struct cpu_job *j, uint32_t out) {
    return j->l->kind == LAUNCH_attention && out == 1;
}

enum status cpu_check_results(struct cpu_job *j, struct finite_kinds operands) {
    for (uint32_t i = 0; i < j->l->nout; i++) {
        struct finite_kinds known = operands;
        known.inf |= may_be_infinite(j, i);
        struct finding f = {.first = -1};
        scan_view(j, &j->l->out[i], known, &f);
        if (f.first < 0) continue;
        return diag_error(j->x->ctx, ST_NONFINITE, job_origin(j),
                          "%s gave %s at element %lld of result %u from finite operands; lower the "
                          "learning rate, clip gradients or check the data",
                          launch_name(j->l->kind),
                          f.value != f.value ? "NaN"
                          : f.value > 0      ? "inf"
                                             : "-inf",
                          (long long)f.first, i);
    }
    return ST_OK;
}
