// SPDX-License-Identifier: Apache-2.0
/* cpu_conv.c - convolution and its two gradients as products with unrolled columns, a tile of
 * output positions at a time. Groups and one to three spatial axes. */
#include "runtime/cpu_impl.h"
#include <limits.h>
#include <string.h>

struct conv_job {
    struct cpu_job *j;
    struct conv_shape s;
    void *x, *w, *y; /* or their gradients */
    bool f64;
    int64_t tile, tiles, channels, parts, outs, out_parts;
    int64_t scratch;
};

#define REAL    float
#define NAME(x) x##_f32
#include "runtime/cpu_conv.inc"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(x) x##_f64
#include "runtime/cpu_conv.inc"

static void *scratch_of(const struct conv_job *v, int thread) {
    return v->j->work ? v->j->work + thread * v->scratch : NULL;
}

static void forward_task(void *arg, int64_t index, int thread) {
    const struct conv_job *v = arg;
    int64_t tile = index % v->tiles, g = index / v->tiles % v->s.groups;
    int64_t n = index / v->tiles / v->s.groups, p0 = tile * v->tile;
    int64_t np = i64_min(v->tile, v->s.out_plane - p0);
    if (v->f64)
        forward_f64(v, n, g, p0, np, scratch_of(v, thread));
    else
        forward_f32(v, n, g, p0, np, scratch_of(v, thread));
}

static void input_grad_task(void *arg, int64_t index, int thread) {
    const struct conv_job *v = arg;
    int64_t c0 = index % v->parts * v->channels, g = index / v->parts % v->s.groups;
    int64_t n = index / v->parts / v->s.groups, nc = i64_min(v->channels, v->s.c - c0);
    if (v->f64)
        input_grad_f64(v, n, g, c0, nc, scratch_of(v, thread));
    else
        input_grad_f32(v, n, g, c0, nc, scratch_of(v, thread));
}

static void weight_grad_task(void *arg, int64_t index, int thread) {
    const struct conv_job *v = arg;
    int64_t o0 = index % v->out_parts * v->outs;
    index /= v->out_parts;
    int64_t c0 = index % v->parts * v->channels, g = index / v->parts;
    int64_t nc = i64_min(v->channels, v->s.c - c0), no = i64_min(v->outs, v->s.o - o0);
    if (v->f64)
        weight_grad_f64(v, g, c0, nc, o0, no, scratch_of(v, thread));
    else
        weight_grad_f32(v, g, c0, nc, o0, no, scratch_of(v, thread));
}

/* `channels` unrolled at a time. */
static enum status begin(struct cpu_job *j, struct conv_job *v, int64_t channels) {
    enum dtype t = j->l->out[0].dtype;
    if (t != DT_f32 && t != DT_f64) return job_unsupported(j, "operands must be f32 or f64");
    int64_t k = channels * v->s.taps;
    if (i64_max(i64_max(v->s.in_plane, v->s.out_plane), v->s.c * v->s.taps) > INT_MAX)
        return job_unsupported(j, "a plane or kernel exceeds 2^31-1 elements");
    v->j = j;
    v->f64 = t == DT_f64;
    v->channels = channels;
    v->parts = channels ? ceil_div(v->s.c, channels) : 0;
    v->tile = plan_conv_tile(&v->s, k);
    v->tiles = ceil_div(v->s.out_plane, v->tile);
    v->scratch = (k * v->tile * (int64_t)dtype_size(t) + 63) / 64 * 64;
    return ST_OK;
}

enum status cpu_conv(struct cpu_job *j) {
    struct conv_job v = {.s = plan_conv_shape(j->l)};
    TRY(begin(j, &v, v.s.c));
    v.x = job_in(j, 0), v.w = job_in(j, 1), v.y = job_out(j, 0);
    pool_run(j->x->pool, v.s.n * v.s.groups * v.tiles, forward_task, &v);
    return ST_OK;
}

enum status cpu_conv_input_grad(struct cpu_job *j) {
    struct conv_job v = {.s = plan_conv_shape(j->l)};
    TRY(begin(j, &v, plan_conv_channels(&v.s, false)));
    v.y = job_in(j, 0), v.w = job_in(j, 1), v.x = job_out(j, 0);
    pool_run(j->x->pool, v.s.n * v.s.groups * v.parts, input_grad_task, &v);
    return ST_OK;
}

enum status cpu_conv_weight_grad(struct cpu_job *j) {
    struct conv_job v = {.s = plan_conv_shape(j->l)};
    TRY(begin(j, &v, plan_conv_channels(&v.s, true)));
    v.x = job_in(j, 0), v.y = job_in(j, 1), v.w = job_out(j, 0);
    /* Few channels (the first layer): cut the output channels too. */
    int64_t want = ceil_div(8, i64_max(v.s.groups * v.parts, 1));
    v.outs = i64_max(ceil_div(v.s.o, want), i64_min(16, i64_max(v.s.o, 1)));
    v.out_parts = ceil_div(v.s.o, v.outs);
    pool_run(j->x->pool, v.s.groups * v.parts * v.out_parts, weight_grad_task, &v);
    return ST_OK;
}
