// SPDX-License-Identifier: Apache-2.0
/* cpu_softmax_ce.c - softmax cross entropy from logits without ever storing probabilities. */
#include "runtime/cpu_group.h"
#include "runtime/cpu_impl.h"
#include "runtime/cpu_rows.h"
#include <math.h>

enum { PART_ELEMS = 32768 };

struct entropy_job {
    struct cpu_job *j;
    int64_t rows, cols, stride, label_stride, part, ignore;
    const void *labels;
};

/* Rows of bf16 or f16, a part at a time; the parts' logarithms add up in f64. */
static double row_lse_small(enum dtype t, const char *row, int64_t n) {
    enum { LINE = 1024 };
    float line[LINE];
    double lse = -(double)INFINITY;
    for (int64_t i = 0; i < n; i += LINE) {
        int64_t count = i64_min(LINE, n - i);
        ew_load(DT_f32, line, t, row + i * (int64_t)dtype_size(t), 1, count);
        double part = row_lse_f32(line, count), high = part > lse ? part : lse;
        if (isinf(high))
            lse = part != part ? part : high;
        else
            lse = high + log(exp(lse - high) + exp(part - high)); /* NaN stays */
    }
    return lse;
}

static double row_lse(enum dtype t, const char *row, int64_t n) {
    switch (t) {
    case DT_f32: return row_lse_f32((const float *)(const void *)row, n);
    case DT_f64: return row_lse_f64((const double *)(const void *)row, n);
    default: return row_lse_small(t, row, n);
    }
}

static void entropy_task(void *arg, int64_t index, int thread) {
    const struct entropy_job *e = arg;
    const struct plan_launch *l = e->j->l;
    const char *x = job_in(e->j, 0);
    enum dtype t = l->in[0].dtype;
    int64_t end = i64_min((index + 1) * e->part, e->rows), size = (int64_t)dtype_size(t);
    (void)thread;
    for (int64_t r = index * e->part; r < end; r++) {
        const char *row = x + r * e->stride * size;
        int64_t label = index_at(l->in[1].dtype, e->labels, r * e->label_stride);
        double lse = row_lse(t, row, e->cols);
        double loss = 0;
        if (label != e->ignore) {
            if (label < 0 || label >= e->cols) {
                job_fault(e->j, r);
                continue;
            }
            loss = lse - dtype_load(t, row + label * size);
        }
        const struct plan_view *o = l->out;
        dtype_store(
            o[0].dtype,
            (char *)job_out(e->j, 0) + r * o[0].strides[0] * (int64_t)dtype_size(o[0].dtype), loss);
        dtype_store(
            o[1].dtype,
            (char *)job_out(e->j, 1) + r * o[1].strides[0] * (int64_t)dtype_size(o[1].dtype), lse);
    }
}

enum status cpu_cross_entropy(struct cpu_job *j) {
    const struct plan_view *x = &j->l->in[0], *labels = &j->l->in[1];
    if (dtype_size(x->dtype) < 2 || !dtype_is_float(x->dtype))
        return job_unsupported(j, "logits must be f32, f64, bf16 or f16");
    struct entropy_job e = {.j = j,
                            .rows = x->dims[0],
                            .cols = x->dims[1],
                            .stride = x->strides[0],
                            .label_stride = labels->strides[0],
                            .labels = job_in(j, 1),
                            .ignore = launch_int(j->l, ATTR_ignore_index, -100)};
    e.part = i64_max(PART_ELEMS / i64_max(e.cols, 1), 1);
    pool_run(j->x->pool, ceil_div(e.rows, e.part), entropy_task, &e);
    int64_t at = atomic_load(&j->fault);
    if (at == INT64_MAX) return ST_OK;
    return job_label_fault(j, e.cols, e.ignore,
                           index_at(labels->dtype, e.labels, at * e.label_stride));
}
