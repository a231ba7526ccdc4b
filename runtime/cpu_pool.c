// SPDX-License-Identifier: Apache-2.0
/* cpu_pool.c - max pooling with the index of each maximum within its plane. Padding never wins, the
 * first of equal elements does, NaN beats numbers. */
#include "runtime/cpu_impl.h"
#include <math.h>

struct pool_job {
    enum dtype t;
    int64_t planes, in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
    int64_t in_plane, out_plane;
    const char *x;
    char *y;
    int64_t *index;
};

#define WINDOW(name, T)                                                                            \
    static void name(const struct pool_job *p, const T *x, const int64_t *at, T *y,                \
                     int64_t *index) {                                                             \
        T best = -(T)INFINITY;                                                                     \
        int64_t where = -1;                                                                        \
        for (int64_t a = 0; a < p->kernel[0]; a++) {                                               \
            int64_t d = at[0] * p->stride[0] - p->pad[0] + a * p->dilation[0];                     \
            if (d < 0 || d >= p->in[0]) continue;                                                  \
            for (int64_t b = 0; b < p->kernel[1]; b++) {                                           \
                int64_t h = at[1] * p->stride[1] - p->pad[1] + b * p->dilation[1];                 \
                if (h < 0 || h >= p->in[1]) continue;                                              \
                for (int64_t c = 0; c < p->kernel[2]; c++) {                                       \
                    int64_t w = at[2] * p->stride[2] - p->pad[2] + c * p->dilation[2];             \
                    if (w < 0 || w >= p->in[2]) continue;                                          \
                    int64_t i = (d * p->in[1] + h) * p->in[2] + w;                                 \
                    if (where >= 0 && !(x[i] > best || (x[i] != x[i] && best == best))) continue;  \
                    best = x[i];                                                                   \
                    where = i;                                                                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        *y = best;                                                                                 \
        *index = where < 0 ? 0 : where;                                                            \
    }
WINDOW(window_f32, float)
WINDOW(window_f64, double)

static void pool_task(void *arg, int64_t plane, int thread) {
    const struct pool_job *p = arg;
    (void)thread;
    int64_t size = (int64_t)dtype_size(p->t);
    const void *x = p->x + plane * p->in_plane * size;
    void *y = p->y + plane * p->out_plane * size;
    int64_t *index = p->index + plane * p->out_plane;
    for (int64_t i = 0; i < p->out_plane; i++) {
        int64_t at[3] = {i / (p->out[1] * p->out[2]), i / p->out[2] % p->out[1], i % p->out[2]};
        if (p->t == DT_f32)
            window_f32(p, x, at, (float *)y + i, index + i);
        else
            window_f64(p, x, at, (double *)y + i, index + i);
    }
}

enum status cpu_max_pool(struct cpu_job *j) {
    const struct plan_launch *l = j->l;
    const struct plan_view *x = &l->in[0], *y = &l->out[0];
    struct pool_job p = {.t = x->dtype, .in_plane = 1, .out_plane = 1};
    if (p.t != DT_f32 && p.t != DT_f64) return job_unsupported(j, "its operand must be f32 or f64");
    int n, spatial = x->rank - 2;
    const int64_t *kernel = launch_ints(l, ATTR_kernel, &n);
    const int64_t *strides = launch_ints(l, ATTR_strides, &n);
    const int64_t *dilations = launch_ints(l, ATTR_dilations, &n);
    const int64_t *pads = launch_ints(l, ATTR_pads, &n);
    for (int i = 0; i < 3; i++) {
        int k = i - (3 - spatial);
        bool real = k >= 0;
        p.in[i] = real ? x->dims[2 + k] : 1;
        p.out[i] = real ? y->dims[2 + k] : 1;
        p.kernel[i] = real && kernel ? kernel[k] : 1;
        p.stride[i] = real && strides ? strides[k] : 1;
        p.dilation[i] = real && dilations ? dilations[k] : 1;
        p.pad[i] = real && pads ? pads[k] : 0;
        p.in_plane *= p.in[i];
        p.out_plane *= p.out[i];
    }
    p.x = job_in(j, 0), p.y = job_out(j, 0), p.index = job_out(j, 1);
    pool_run(j->x->pool, x->dims[0] * x->dims[1], pool_task, &p);
    return ST_OK;
}
