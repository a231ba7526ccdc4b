// SPDX-License-Identifier: Apache-2.0
/* finite.c - scanning views for NaNs and infinities. */
#include "runtime/finite.h"
#include "base/diag.h"
#include <math.h>

static void note(struct finding *f, struct finite_kinds known, double x, int64_t at) {
    bool nan = x != x;
    f->kinds.nan |= nan;
    f->kinds.inf |= !nan;
    if (f->first >= 0 || (nan ? known.nan : known.inf)) return;
    f->first = at;
    f->value = x;
}

void finite_scan(const void *first, const struct plan_view *v, struct finite_kinds known,
                 struct finding *f) {
    if (!dtype_is_float(v->dtype)) return;
    const char *base = first;
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

void finite_scan_constants(const struct plan_group *g, struct finding *f) {
    for (uint32_t i = 0; i < g->code.n; i++) {
        const struct group_instr *k = &g->code.at[i];
        if (k->code != INSTR_CONST || k->dtype == DT_i64) continue;
        if (!(fabs(k->imm) < (double)INFINITY)) note(f, f->kinds, k->imm, 0);
    }
}

struct finite_kinds finite_known(const struct plan_launch *l, uint32_t out,
                                 struct finite_kinds operands) {
    /* Attention uses -inf for rows without a visible key in `lse`. */
    operands.inf |= l->kind == LAUNCH_attention && out == 1;
    return operands;
}

enum status finite_error(struct ctx *c, const char *origin, const struct plan_launch *l,
                         uint32_t out, const struct finding *f) {
    return diag_error(c, ST_NONFINITE, origin,
                      "%s gave %s at element %lld of result %u from finite operands; lower the "
                      "learning rate, clip gradients or check the data",
                      launch_name(l->kind),
                      f->value != f->value ? "NaN"
                      : f->value > 0       ? "inf"
                                           : "-inf",
                      (long long)f->first, out);
}
