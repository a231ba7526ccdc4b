// SPDX-License-Identifier: Apache-2.0
/* scan.c - one launch at a time, its operands and results copied to the host and searched for NaNs
 * and infinities. Slow; runs only to explain a loss that is not finite. */
#include "runtime/cuda/impl.h"
#include "runtime/finite.h"

/* The bytes a view spans, around its first element. */
struct window {
    int64_t low, high; /* element offsets from the first element; high is the last */
};
static struct window window_of(const struct plan_view *v) {
    struct window w = {0, 0};
    for (int i = 0; i < v->rank; i++) {
        int64_t reach = (v->dims[i] - 1) * v->strides[i];
        if (reach < 0)
            w.low += reach;
        else
            w.high += reach;
    }
    return w;
}

static enum status scan(struct cuda_exec *x, const char *origin, const struct plan_view *v,
                        struct finite_kinds known, struct finding *f) {
    if (!dtype_is_float(v->dtype) || !view_count(v)) return ST_OK;
    struct window w = window_of(v);
    int64_t elem = (int64_t)dtype_size(v->dtype);
    size_t bytes = (size_t)((w.high - w.low + 1) * elem);
    char *host = ctx_alloc(x->ctx, bytes);
    cu_ptr from = exec_address(x, v) + (cu_ptr)(w.low * elem);
    int e = x->d->api.cuMemcpyDtoHAsync(host, from, bytes, x->d->stream);
    enum status st = cuda_status(x->d, e, origin, "copying values to be checked");
    if (st == ST_OK) st = cuda_wait(x->d, origin);
    if (st == ST_OK) finite_scan(host - w.low * elem, v, known, f);
    ctx_free(x->ctx, host);
    return st;
}

static enum status scan_operands(struct cuda_exec *x, const struct plan_launch *l,
                                 struct finding *f) {
    for (uint32_t i = 0; i < l->nin; i++)
        TRY(scan(x, exec_origin(x, l), &l->in[i], (struct finite_kinds){false, false}, f));
    if (l->kind == LAUNCH_group) finite_scan_constants(&x->plan->groups.at[l->group.i], f);
    return ST_OK;
}

enum status exec_launch_checked(struct cuda_exec *x, uint32_t i) {
    const struct plan_launch *l = &x->plan->launches.at[i];
    struct finding operands = FINDING_NONE;
    TRY(scan_operands(x, l, &operands));
    TRY(exec_launch(x, i));
    TRY(cuda_wait(x->d, exec_origin(x, l)));
    for (uint32_t k = 0; k < l->nout; k++) {
        struct finding f = FINDING_NONE;
        TRY(scan(x, exec_origin(x, l), &l->out[k], finite_known(l, k, operands.kinds), &f));
        if (f.first >= 0) return finite_error(x->ctx, exec_origin(x, l), l, k, &f);
    }
    return ST_OK;
}
