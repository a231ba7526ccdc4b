// SPDX-License-Identifier: Apache-2.0
/* measure.c - what benchmarks ask a device: how fast it copies, how long a range of launches takes
 * when nothing is transferred, what a kernel needs. Not the profile of a step: that is run.c. */
#include "runtime/cuda/impl.h"

enum { COPIES = 9 };

/* Two events and what lies between them. */
struct timer {
    cu_event begin, end;
};

static void timer_drop(struct cuda *d, struct timer *t) {
    if (t->begin) d->api.cuEventDestroy(t->begin);
    if (t->end) d->api.cuEventDestroy(t->end);
}

static enum status timer_make(struct cuda *d, struct timer *t) {
    TRY_CU(d, cuEventCreate(&t->begin, 0), "", "making an event");
    TRY_CU(d, cuEventCreate(&t->end, 0), "", "making an event");
    return ST_OK;
}

static enum status timer_read(struct cuda *d, const struct timer *t, double *seconds) {
    float ms = 0;
    TRY(cuda_wait(d, ""));
    TRY_CU(d, cuEventElapsedTime(&ms, t->begin, t->end), "", "reading an event");
    *seconds = (double)ms * 1e-3;
    return ST_OK;
}

static enum status time_copies(struct cuda *d, cu_ptr at, size_t bytes, const struct timer *t,
                               double *seconds) {
    double all[COPIES];
    for (int i = 0; i < COPIES; i++) {
        TRY_CU(d, cuEventRecord(t->begin, d->stream), "", "recording an event");
        TRY_CU(d, cuMemcpyDtoDAsync(at + bytes, at, bytes, d->stream), "", "copying");
        TRY_CU(d, cuEventRecord(t->end, d->stream), "", "recording an event");
        TRY(timer_read(d, t, &all[i]));
        for (int k = i; k > 0 && all[k] < all[k - 1]; k--) {
            double x = all[k];
            all[k] = all[k - 1];
            all[k - 1] = x;
        }
    }
    *seconds = all[COPIES / 2];
    return ST_OK;
}

enum status cuda_measure_copy(struct cuda *d, size_t bytes, double *seconds) {
    struct timer t = {NULL, NULL};
    cu_ptr at = 0;
    TRY(cuda_enter(d));
    TRY_CU(d, cuMemAlloc(&at, 2 * bytes), "", "memory to measure copies with");
    int e = d->api.cuMemsetD8Async(at, 0x5a, 2 * bytes, d->stream);
    enum status st = cuda_status(d, e, "", "filling memory");
    if (st == ST_OK) st = timer_make(d, &t);
    if (st == ST_OK) st = time_copies(d, at, bytes, &t, seconds);
    timer_drop(d, &t);
    d->api.cuStreamSynchronize(d->stream);
    d->api.cuMemFree(at);
    return st;
}

static enum status time_range(struct cuda_exec *x, uint32_t from, uint32_t to, int times,
                              const struct timer *t, double *seconds) {
    struct cuda *d = x->d;
    TRY_CU(d, cuEventRecord(t->begin, d->stream), "", "recording an event");
    for (int k = 0; k < times; k++)
        for (uint32_t i = from; i < to; i++) TRY(exec_launch(x, i));
    TRY_CU(d, cuEventRecord(t->end, d->stream), "", "recording an event");
    TRY(timer_read(d, t, seconds));
    *seconds /= times;
    return ST_OK;
}

enum status cuda_measure_range(struct cuda_exec *x, uint32_t from, uint32_t to, int times,
                               double *seconds) {
    CHECK(x->ctx, from <= to && to <= x->plan->launches.n && times > 0);
    struct timer t = {NULL, NULL};
    TRY(cuda_enter(x->d));
    enum status st = timer_make(x->d, &t);
    if (st == ST_OK) st = time_range(x, from, to, times, &t, seconds);
    x->d->api.cuStreamSynchronize(x->d->stream);
    timer_drop(x->d, &t);
    return st;
}

enum status cuda_get_call_needs(const struct cuda_exec *x, uint32_t launch, uint32_t call,
                                struct cuda_call_needs *out) {
    CHECK(x->ctx, launch < x->plan->launches.n && call < x->launches[launch].ncalls);
    cu_function f = x->launches[launch].functions[call];
    const struct plan_launch *l = &x->plan->launches.at[launch];
    TRY(cuda_enter(x->d));
    TRY_CU(x->d, cuFuncGetAttribute(&out->registers, CU_FUNC_REGISTERS, f), exec_origin(x, l),
           "asking for a kernel's registers");
    TRY_CU(x->d, cuFuncGetAttribute(&out->shared, CU_FUNC_SHARED, f), exec_origin(x, l),
           "asking for a kernel's shared memory");
    out->shared += (int)x->plan->calls.at[l->first_call + call].shared;
    return ST_OK;
}
