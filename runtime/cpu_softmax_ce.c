// SPDX-License-Identifier: Apache-2.0
/* cpu_softmax_ce.c - softmax cross entropy from logits without ever storing probabilities. */
#include "runtime/cpu_impl.h"
#include "runtime/cpu_rows.h"

enum { PART_ELEMS = 32768 };

struct entropy_job {
    struct cpu_job *j;
    int64_t rows, cols, stride, label_stride, part, ignore;
    const void *labels;
};

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
        double lse = t == DT_f32 ? row_lse_f32((const float *)(const void *)row, e->cols)
                                 : row_lse_f64((const double *)(const void *)row, e->cols);
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
    if (x->dtype != DT_f32 && x->dtype != DT_f64)
        return job_unsupported(j, "logits must be f32 or f64");
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
    return diag_error(
        j->x->ctx, ST_DATA, job_origin(j),
        "expected a label in [0, %lld) or %lld (ignored), found %lld at position %lld; "
        "check the data against the model's classes",
        (long long)e.cols, (long long)e.ignore,
        (long long)index_at(labels->dtype, e.labels, at * e.label_stride), (long long)at);
}
