// SPDX-License-Identifier: Apache-2.0
/* cpu_attention.c - attention and its gradient. Forward pieces are (batch, head, block of queries);
 * backward pieces are (batch, key head), which add the query heads and blocks in order. */
#include "runtime/cpu_impl.h"
#include "runtime/cpu_math.h"
#include "runtime/cpu_rows.h"
#include "runtime/cpu_simd.h"
#include <limits.h>
#include <string.h>

/* A [B, H, rows, width] operand or result; the last axis is contiguous. */
struct heads {
    const struct plan_view *v;
    char *base;
    int64_t row, ld; /* row stride; the same as BLAS wants it */
};

struct attention {
    struct cpu_job *j;
    struct heads q, k, v, y, g, dq, dk, dv;
    const struct plan_view *mask, *lse;
    char *mask_base, *lse_base;
    int64_t batch, q_heads, kv_heads, share, queries, keys, d, e;
    int64_t block, blocks, scratch;
    double scale, softcap;
    bool causal;
};

static struct heads heads_of(const struct cpu_job *j, const struct plan_view *v) {
    struct heads h = {.v = v, .base = view_at(j->x, v), .row = v->strides[2]};
    h.ld = i64_max(h.row, i64_max(v->dims[3], 1));
    return h;
}

static void *head_at(const struct heads *h, int64_t b, int64_t head) {
    return h->base +
           (b * h->v->strides[0] + head * h->v->strides[1]) * (int64_t)dtype_size(h->v->dtype);
}

/* Keys that any of the queries before `t1` may see. */
static int64_t visible_keys(const struct attention *a, int64_t t1) {
    if (!a->causal) return a->keys;
    return i64_min(i64_max(t1 + a->keys - a->queries, 0), a->keys);
}

static char *lse_at(const struct attention *a, int64_t b, int64_t h, int64_t t) {
    const int64_t *s = a->lse->strides;
    return a->lse_base + (b * s[0] + h * s[1] + t * s[2]) * (int64_t)dtype_size(a->lse->dtype);
}

static void put_lse(const struct attention *a, int64_t b, int64_t h, int64_t t, double x) {
    dtype_store(a->lse->dtype, lse_at(a, b, h, t), x);
}

static double get_lse(const struct attention *a, int64_t b, int64_t h, int64_t t) {
    return dtype_load(a->lse->dtype, lse_at(a, b, h, t));
}

#define REAL      float
#define NAME(x)   x##_f32
#define TANH(x)   tanh_f32(x)
#define EXACT_LSE 0
#include "runtime/cpu_attention.inc"
#undef REAL
#undef NAME
#undef TANH
#undef EXACT_LSE
#define REAL      double
#define NAME(x)   x##_f64
#define TANH(x)   tanh(x)
#define EXACT_LSE 1
#include "runtime/cpu_attention.inc"

static void *scratch_of(const struct attention *a, int thread, int which) {
    int parts = a->g.v ? 2 : 1;
    return a->j->work + (thread * parts + which) * a->scratch;
}

static void forward_task(void *arg, int64_t index, int thread) {
    const struct attention *a = arg;
    int64_t block = index % a->blocks, h = index / a->blocks % a->q_heads;
    int64_t b = index / a->blocks / a->q_heads, t0 = block * a->block;
    int64_t rows = i64_min(a->block, a->queries - t0);
    if (a->q.v->dtype == DT_f32)
        forward_f32(a, b, h, t0, rows, scratch_of(a, thread, 0));
    else
        forward_f64(a, b, h, t0, rows, scratch_of(a, thread, 0));
}

static void zero_head(const struct heads *h, int64_t b, int64_t head) {
    int64_t size = (int64_t)dtype_size(h->v->dtype);
    char *p = head_at(h, b, head);
    for (int64_t r = 0; r < h->v->dims[2]; r++)
        memset(p + r * h->row * size, 0, (size_t)(h->v->dims[3] * size));
}

static void backward_task(void *arg, int64_t index, int thread) {
    const struct attention *a = arg;
    int64_t kv = index % a->kv_heads, b = index / a->kv_heads;
    zero_head(&a->dk, b, kv);
    zero_head(&a->dv, b, kv);
    for (int64_t h = kv * a->share; h < (kv + 1) * a->share; h++)
        for (int64_t t0 = 0; t0 < a->queries; t0 += a->block) {
            int64_t rows = i64_min(a->block, a->queries - t0);
            void *p = scratch_of(a, thread, 0), *ds = scratch_of(a, thread, 1);
            if (a->q.v->dtype == DT_f32)
                backward_f32(a, b, h, t0, rows, p, ds);
            else
                backward_f64(a, b, h, t0, rows, p, ds);
        }
}

/* BLAS counts rows, columns and strides in int. */
static bool fits_blas(const struct plan_view *v) {
    return i64_max(v->strides[2], i64_max(v->dims[2], v->dims[3])) <= INT_MAX;
}

static enum status begin(struct cpu_job *j, struct attention *a, uint32_t mask) {
    const struct plan_launch *l = j->l;
    *a = (struct attention){.j = j};
    a->q = heads_of(j, &l->in[0]);
    a->k = heads_of(j, &l->in[1]);
    a->v = heads_of(j, &l->in[2]);
    enum dtype t = a->q.v->dtype;
    if (t != DT_f32 && t != DT_f64) return job_unsupported(j, "q, k and v must be f32 or f64");
    bool fits = fits_blas(&l->out[0]);
    for (uint32_t i = 0; i < 3; i++) fits = fits && fits_blas(&l->in[i]);
    if (!fits) return job_unsupported(j, "an axis or stride exceeds 2^31-1 elements");
    if (l->nin > mask) a->mask = &l->in[mask], a->mask_base = job_in(j, mask);
    a->batch = a->q.v->dims[0], a->q_heads = a->q.v->dims[1], a->kv_heads = a->k.v->dims[1];
    a->share = a->kv_heads ? a->q_heads / a->kv_heads : 1;
    a->queries = a->q.v->dims[2], a->keys = a->k.v->dims[2];
    a->d = a->q.v->dims[3], a->e = a->v.v->dims[3];
    a->scale = launch_float(l, ATTR_scale, 1.0);
    a->softcap = launch_float(l, ATTR_softcap, 0.0);
    a->causal = launch_int(l, ATTR_causal, 0) != 0;
    a->block = plan_attention_rows(a->queries, a->keys);
    a->blocks = ceil_div(a->queries, a->block);
    a->scratch = (a->block * a->keys * (int64_t)dtype_size(t) + 63) / 64 * 64;
    return ST_OK;
}

enum status cpu_attention(struct cpu_job *j) {
    struct attention a;
    TRY(begin(j, &a, 3));
    a.y = heads_of(j, &j->l->out[0]);
    a.lse = &j->l->out[1], a.lse_base = job_out(j, 1);
    pool_run(j->x->pool, a.batch * a.q_heads * a.blocks, forward_task, &a);
    return ST_OK;
}

enum status cpu_attention_grad(struct cpu_job *j) {
    struct attention a;
    TRY(begin(j, &a, 6));
    a.y = heads_of(j, &j->l->in[3]);
    a.lse = &j->l->in[4], a.lse_base = job_in(j, 4);
    a.g = heads_of(j, &j->l->in[5]);
    a.dq = heads_of(j, &j->l->out[0]);
    a.dk = heads_of(j, &j->l->out[1]);
    a.dv = heads_of(j, &j->l->out[2]);
    pool_run(j->x->pool, a.batch * a.kv_heads, backward_task, &a);
    return ST_OK;
}
