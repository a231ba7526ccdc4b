// SPDX-License-Identifier: Apache-2.0
/* cpu_index.c - gather, scatter, argmax and cumsum. Every index is checked; scatters add in the
 * order of the indices whatever the number of threads, because tasks own destinations. */
#include "runtime/cpu_group.h"
#include "runtime/cpu_impl.h"
#include "runtime/cpu_simd.h"
#include <string.h>

enum { TASK_BYTES = 131072, TASK_ELEMS = 16384 };

struct index_job {
    struct cpu_job *j;
    struct axis_split y; /* of the indexed tensor */
    const struct plan_view *data, *idx_view;
    const char *x;
    const void *idx;
    char *out;
    int64_t nidx, part, parts, step;
    int64_t elem;
    bool add, labels; /* labels: none is negative but `ignore`, which means 0 */
    int64_t ignore;
};

/* [-n, n) to [0, n), else a fault at `position` and -1. */
static int64_t checked(const struct index_job *g, int64_t position) {
    int64_t n = g->y.n, i = index_at(g->idx_view->dtype, g->idx, position);
    if (g->labels && i == g->ignore) return 0;
    if (i >= (g->labels ? 0 : -n) && i < n) return i < 0 ? i + n : i;
    job_fault(g->j, position);
    return -1;
}

static enum status index_status(const struct index_job *g) {
    int64_t at = atomic_load(&g->j->fault);
    if (at == INT64_MAX) return ST_OK;
    if (g->labels)
        return job_label_fault(g->j, g->y.n, g->ignore, index_at(g->idx_view->dtype, g->idx, at));
    return diag_error(
        g->j->x->ctx, ST_DATA, job_origin(g->j),
        "expected an index in [-%lld, %lld), found %lld at position %lld of the indices; "
        "check the data against the model's sizes",
        (long long)g->y.n, (long long)g->y.n, (long long)index_at(g->idx_view->dtype, g->idx, at),
        (long long)at);
}

/* ---- gather ------------------------------------------------------------------------------------
 */

/* Rows [index*part, ..) of outer x nidx rows of `inner` elements. */
static void gather_task(void *arg, int64_t index, int thread) {
    const struct index_job *g = arg;
    (void)thread;
    int64_t bytes = g->y.inner * g->elem;
    int64_t end = i64_min((index + 1) * g->part, g->y.outer * g->nidx);
    for (int64_t r = index * g->part; r < end; r++) {
        int64_t i = checked(g, r % g->nidx);
        char *to = g->out + r * bytes;
        if (i < 0)
            memset(to, 0, (size_t)bytes);
        else
            memcpy(to, g->x + (r / g->nidx * g->y.n + i) * bytes, (size_t)bytes);
    }
}

enum status cpu_gather(struct cpu_job *j) {
    const struct plan_view *x = &j->l->in[0], *idx = &j->l->in[1];
    struct index_job g = {.j = j, .data = x, .idx_view = idx, .nidx = view_count(idx)};
    g.y = split_axis(x, launch_int(j->l, ATTR_axis, 0));
    g.x = job_in(j, 0), g.idx = job_in(j, 1), g.out = job_out(j, 0);
    g.elem = (int64_t)dtype_size(x->dtype);
    g.labels = launch_int(j->l, ATTR_labels, 0) != 0;
    g.ignore = launch_int(j->l, ATTR_ignore_index, -100);
    int64_t rows = g.y.outer * g.nidx;
    g.part = i64_max(TASK_BYTES / i64_max(g.y.inner * g.elem, 1), 1);
    pool_run(j->x->pool, ceil_div(rows, g.part), gather_task, &g);
    return index_status(&g);
}

/* Offset in the indexed tensor of element `at` of the index tensor, axis counted 0. */
static int64_t base_offset(const struct index_job *g, int64_t axis, int64_t at) {
    int64_t offset = 0, stride = 1;
    for (int i = g->data->rank - 1; i >= 0; i--) {
        if (i != axis) offset += at % g->idx_view->dims[i] * stride;
        at /= g->idx_view->dims[i];
        stride *= g->data->dims[i];
    }
    return offset;
}

static void gather_elements_task(void *arg, int64_t index, int thread) {
    const struct index_job *g = arg;
    (void)thread;
    int64_t axis = launch_int(g->j->l, ATTR_axis, 0);
    int64_t end = i64_min((index + 1) * TASK_ELEMS, g->nidx);
    for (int64_t e = index * TASK_ELEMS; e < end; e++) {
        int64_t i = checked(g, e);
        char *to = g->out + e * g->elem;
        if (i < 0)
            memset(to, 0, (size_t)g->elem);
        else
            memcpy(to, g->x + (base_offset(g, axis, e) + i * g->y.inner) * g->elem,
                   (size_t)g->elem);
    }
}

enum status cpu_gather_elements(struct cpu_job *j) {
    const struct plan_view *x = &j->l->in[0], *idx = &j->l->in[1];
    struct index_job g = {.j = j, .data = x, .idx_view = idx, .nidx = view_count(idx)};
    g.y = split_axis(x, launch_int(j->l, ATTR_axis, 0));
    g.x = job_in(j, 0), g.idx = job_in(j, 1), g.out = job_out(j, 0);
    g.elem = (int64_t)dtype_size(x->dtype);
    pool_run(j->x->pool, ceil_div(g.nidx, TASK_ELEMS), gather_elements_task, &g);
    return index_status(&g);
}

/* ---- scatter -----------------------------------------------------------------------------------
 */

SIMD static void add_f32(float *restrict o, const float *restrict a, int64_t n) {
    SIMD_LOOP
    for (int64_t i = 0; i < n; i++) o[i] += a[i];
}

static void add_any(enum dtype t, char *o, const char *a, int64_t n) {
    int64_t size = (int64_t)dtype_size(t);
    if (t == DT_f32) {
        add_f32((float *)(void *)o, (const float *)(const void *)a, n);
        return;
    }
    for (int64_t i = 0; i < n; i++, o += size, a += size) {
        if (dtype_class(t) == DTC_FLOAT)
            dtype_store(t, o, dtype_load(t, o) + dtype_load(t, a));
        else
            dtype_store_int(
                t, o, (int64_t)((uint64_t)dtype_load_int(t, o) + (uint64_t)dtype_load_int(t, a)));
    }
}

static void zero_task(void *arg, int64_t index, int thread) {
    const struct index_job *g = arg;
    (void)thread;
    int64_t total = g->y.outer * g->y.n * g->y.inner * g->elem;
    memset(g->out + index * g->step, 0, (size_t)i64_min(g->step, total - index * g->step));
}

/* One outer slice; destinations split by columns when rows are wide, else by destination row. */
static void scatter_rows_task(void *arg, int64_t index, int thread) {
    const struct index_job *g = arg;
    (void)thread;
    bool wide = g->part > 0;
    int64_t o = index / g->parts, p = index % g->parts, inner = g->y.inner;
    int64_t c0 = wide ? p * g->part : 0, c1 = wide ? i64_min(c0 + g->part, inner) : inner;
    int64_t rows = ceil_div(g->y.n, g->parts), r0 = wide ? 0 : p * rows;
    int64_t r1 = wide ? g->y.n : i64_min(r0 + rows, g->y.n);
    for (int64_t k = 0; k < g->nidx; k++) {
        int64_t i = checked(g, k);
        if (i < r0 || i >= r1) continue;
        add_any(g->data->dtype, g->out + ((o * g->y.n + i) * inner + c0) * g->elem,
                g->x + ((o * g->nidx + k) * inner + c0) * g->elem, c1 - c0);
    }
}

/* bf16 and f16: a destination's updates add up in f32, a line at a time, and are rounded once. They
 * are found through lists in the workspace: `head` of each destination, `next` of each index. */
static void scatter_small_task(void *arg, int64_t index, int thread) {
    enum { LINE = 1024 };
    float sum[LINE], line[LINE];
    const struct index_job *g = arg;
    const int32_t *head = (const int32_t *)(void *)g->j->work, *next = head + g->y.n;
    enum dtype t = g->data->dtype;
    int64_t inner = g->y.inner, end = i64_min((index + 1) * g->part, g->y.outer * g->y.n);
    (void)thread;
    for (int64_t r = index * g->part; r < end; r++) {
        int64_t o = r / g->y.n;
        for (int64_t c = 0; c < inner; c += LINE) {
            int64_t n = i64_min(LINE, inner - c);
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int32_t k = head[r % g->y.n]; k >= 0; k = next[k]) {
                ew_load(DT_f32, line, t, g->x + ((o * g->nidx + k) * inner + c) * g->elem, 1, n);
                add_f32(sum, line, n);
            }
            ew_store(t, g->out + (r * inner + c) * g->elem, 1, DT_f32, sum, n);
        }
    }
}

static enum status scatter_small(struct index_job *g) {
    int32_t *head = (int32_t *)(void *)g->j->work, *next = head + g->y.n;
    if (g->y.n > INT32_MAX || g->nidx > INT32_MAX)
        return job_unsupported(g->j, "more than 2^31-1 rows or indices");
    for (int64_t i = 0; i < g->y.n; i++) head[i] = -1;
    for (int64_t k = g->nidx; k-- > 0;) {
        int64_t i = checked(g, k);
        if (i < 0) continue;
        next[k] = head[i];
        head[i] = (int32_t)k;
    }
    TRY(index_status(g));
    g->part = i64_max(TASK_ELEMS / i64_max(g->y.inner, 1), 1);
    pool_run(g->j->x->pool, ceil_div(g->y.outer * g->y.n, g->part), scatter_small_task, g);
    return ST_OK;
}

enum status cpu_scatter_rows(struct cpu_job *j) {
    const struct plan_view *idx = &j->l->in[0], *y = &j->l->out[0];
    struct index_job g = {.j = j, .data = y, .idx_view = idx, .nidx = view_count(idx)};
    g.y = split_axis(y, launch_int(j->l, ATTR_axis, 0));
    g.idx = job_in(j, 0), g.x = job_in(j, 1), g.out = job_out(j, 0);
    g.elem = (int64_t)dtype_size(y->dtype);
    if (plan_scatter_lists(j->l)) return scatter_small(&g);
    int64_t total = g.y.outer * g.y.n * g.y.inner * g.elem;
    g.step = 1 << 20;
    pool_run(j->x->pool, ceil_div(total, g.step), zero_task, &g);
    int64_t work = g.nidx * g.y.inner;
    g.parts = i64_min(i64_max(work / TASK_ELEMS, 1), 16);
    if (g.y.inner >= 64) {
        g.part = i64_max(ceil_div(ceil_div(g.y.inner, g.parts), 16) * 16, 64);
        g.parts = ceil_div(g.y.inner, g.part);
    }
    pool_run(j->x->pool, g.y.outer * g.parts, scatter_rows_task, &g);
    return index_status(&g);
}

static void copy_task(void *arg, int64_t index, int thread) {
    const struct index_job *g = arg;
    (void)thread;
    int64_t total = view_count(g->data) * g->elem;
    memcpy(g->out + index * g->step, (const char *)job_in(g->j, 0) + index * g->step,
           (size_t)i64_min(g->step, total - index * g->step));
}

/* Lines of the index tensor along the axis: two lines never share a destination. */
static void scatter_elements_task(void *arg, int64_t index, int thread) {
    const struct index_job *g = arg;
    (void)thread;
    int64_t axis = launch_int(g->j->l, ATTR_axis, 0);
    struct axis_split s = split_axis(g->idx_view, axis);
    int64_t end = i64_min((index + 1) * g->part, s.outer * s.inner);
    for (int64_t line = index * g->part; line < end; line++) {
        int64_t first = line / s.inner * s.n * s.inner + line % s.inner;
        int64_t base = base_offset(g, axis, first);
        for (int64_t k = 0; k < s.n; k++) {
            int64_t e = first + k * s.inner, i = checked(g, e);
            if (i < 0) continue;
            char *to = g->out + (base + i * g->y.inner) * g->elem;
            if (g->add)
                add_any(g->data->dtype, to, g->x + e * g->elem, 1);
            else
                memcpy(to, g->x + e * g->elem, (size_t)g->elem);
        }
    }
}

enum status cpu_scatter_elements(struct cpu_job *j) {
    const struct plan_view *idx = &j->l->in[1], *y = &j->l->out[0];
    struct index_job g = {.j = j, .data = y, .idx_view = idx, .nidx = view_count(idx)};
    int64_t axis = launch_int(j->l, ATTR_axis, 0);
    g.y = split_axis(y, axis);
    g.idx = job_in(j, 1), g.x = job_in(j, 2), g.out = job_out(j, 0);
    g.elem = (int64_t)dtype_size(y->dtype);
    g.add = launch_int(j->l, ATTR_add, 0) != 0;
    g.step = 1 << 20;
    if (job_in(j, 0) != (void *)g.out)
        pool_run(j->x->pool, ceil_div(view_count(y) * g.elem, g.step), copy_task, &g);
    if (!g.nidx) return ST_OK;
    struct axis_split s = split_axis(idx, axis);
    g.part = i64_max(TASK_ELEMS / i64_max(s.n, 1), 1);
    pool_run(j->x->pool, ceil_div(s.outer * s.inner, g.part), scatter_elements_task, &g);
    return index_status(&g);
}

/* ---- along an axis -----------------------------------------------------------------------------
 */

struct axis_job {
    enum dtype t;
    struct axis_split s;
    const char *x;
    char *y;
    int64_t part;
    bool exclusive, reverse;
};

/* NaN counts as the largest, as in numpy. */
static void argmax_task(void *arg, int64_t index, int thread) {
    const struct axis_job *g = arg;
    (void)thread;
    int64_t size = (int64_t)dtype_size(g->t);
    int64_t end = i64_min((index + 1) * g->part, g->s.outer * g->s.inner);
    for (int64_t line = index * g->part; line < end; line++) {
        const char *p = g->x + (line / g->s.inner * g->s.n * g->s.inner + line % g->s.inner) * size;
        int64_t best = 0, best_int = 0;
        double best_float = 0;
        for (int64_t k = 0; k < g->s.n; k++, p += g->s.inner * size) {
            if (dtype_is_float(g->t)) {
                double x =
                    g->t == DT_f32 ? (double)*(const float *)(const void *)p : dtype_load(g->t, p);
                if (k && !(x > best_float || (x != x && best_float == best_float))) continue;
                best = k, best_float = x;
            } else {
                int64_t x = dtype_load_int(g->t, p);
                if (k && x <= best_int) continue;
                best = k, best_int = x;
            }
        }
        ((int64_t *)(void *)g->y)[line] = best;
    }
}

static void cumsum_task(void *arg, int64_t index, int thread) {
    const struct axis_job *g = arg;
    (void)thread;
    int64_t size = (int64_t)dtype_size(g->t), n = g->s.n, inner = g->s.inner;
    int64_t end = i64_min((index + 1) * g->part, g->s.outer * inner);
    for (int64_t line = index * g->part; line < end; line++) {
        int64_t first = line / inner * n * inner + line % inner;
        double sum = 0;
        uint64_t isum = 0;
        for (int64_t k = 0; k < n; k++) {
            int64_t at = (first + (g->reverse ? n - 1 - k : k) * inner) * size;
            const char *p = g->x + at;
            if (dtype_is_float(g->t)) {
                double x = dtype_load(g->t, p), with = sum + x;
                dtype_store(g->t, g->y + at, g->exclusive ? sum : with);
                sum = with;
            } else {
                uint64_t with = isum + (uint64_t)dtype_load_int(g->t, p);
                dtype_store_int(g->t, g->y + at, (int64_t)(g->exclusive ? isum : with));
                isum = with;
            }
        }
    }
}

static void run_lines(struct cpu_job *j, void (*fn)(void *, int64_t, int)) {
    struct axis_job g = {.t = j->l->in[0].dtype,
                         .s = split_axis(&j->l->in[0], launch_int(j->l, ATTR_axis, 0)),
                         .x = job_in(j, 0),
                         .y = job_out(j, 0),
                         .exclusive = launch_int(j->l, ATTR_exclusive, 0) != 0,
                         .reverse = launch_int(j->l, ATTR_reverse, 0) != 0};
    g.part = i64_max(TASK_ELEMS / i64_max(g.s.n, 1), 1);
    pool_run(j->x->pool, ceil_div(g.s.outer * g.s.inner, g.part), fn, &g);
}

enum status cpu_argmax(struct cpu_job *j) {
    run_lines(j, argmax_task);
    return ST_OK;
}

enum status cpu_cumsum(struct cpu_job *j) {
    run_lines(j, cumsum_task);
    return ST_OK;
}
