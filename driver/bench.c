// SPDX-License-Identifier: Apache-2.0
/* bench.c - the bytes that a launch cannot avoid to move, which timings are held against. */
#include "driver/bench.h"

static double view_bytes(const struct plan_view *v) {
    double n = (double)dtype_size(v->dtype);
    for (int d = 0; d < v->rank; d++)
        if (v->strides[d] != 0) n *= (double)v->dims[d];
    return view_count(v) ? n : 0;
}

static bool same_view(const struct plan_view *a, const struct plan_view *b) {
    if (a->buffer.i != b->buffer.i || a->offset != b->offset || a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->dims[d] != b->dims[d] || a->strides[d] != b->strides[d]) return false;
    return true;
}

static double views_bytes(const struct plan_view *v, uint32_t n) {
    double sum = 0;
    for (uint32_t k = 0; k < n; k++) {
        bool again = false;
        for (uint32_t j = 0; j < k; j++) again |= same_view(&v[j], &v[k]);
        if (!again) sum += view_bytes(&v[k]);
    }
    return sum;
}

double bench_bytes(const struct plan *p, const struct plan_launch *l) {
    (void)p;
    double in = views_bytes(l->in, l->nin), out = views_bytes(l->out, l->nout);
    switch (l->kind) {
    case LAUNCH_gather:
    case LAUNCH_gather_elements: return view_bytes(&l->in[1]) + 2 * out;
    case LAUNCH_matmul: return in + (launch_int(l, ATTR_add, 0) ? 2 : 1) * out;
    default: return in + out;
    }
}
