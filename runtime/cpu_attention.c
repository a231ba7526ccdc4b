// SPDX-License-Identifier: Apache-2.0
/* cpu_attention.c - attention and its gradient. Forward pieces are (batch, head, block of queries);
 * backward pieces are (batch, key head), which add the query heads and blocks in order. bf16 and
 * f16 pieces are widened, computed in f32 and rounded once. */
#include "runtime/cpu_group.h"
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
    int64_t batch, head, row, elem; /* strides in elements; bytes of one */
    int64_t ld;                     /* row stride as BLAS wants it */
    int64_t first;                  /* row that lies at the start */
};

struct attention {
    struct cpu_job *j;
    struct heads q, k, v, y, g, dq, dk, dv;
    const struct plan_view *mask, *lse;
    char *mask_base, *lse_base;
    int64_t batch, q_heads, kv_heads, share, queries, keys, d, e;
    int64_t block, blocks, scores, scratch;
    double scale, softcap;
    bool causal;
};

static struct heads heads_of(const struct cpu_job *j, const struct plan_view *v) {
    struct heads h = {.v = v, .base = view_at(j->x, v), .elem = (int64_t)dtype_size(v->dtype)};
    h.batch = v->strides[0], h.head = v->strides[1], h.row = v->strides[2];
    h.ld = i64_max(h.row, i64_max(v->dims[3], 1));
    return h;
}

static void *row_at(const struct heads *h, int64_t b, int64_t head, int64_t row) {
    return h->base + (b * h->batch + head * h->head + (row - h->first) * h->row) * h->elem;
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

static char *scratch_of(const struct attention *a, int thread) {
    return a->j->work + thread * a->scratch;
}

/* ---- small types --------------------------------------------------------------------------- */
static bool is_small(const struct attention *a) {
    return a->q.elem == 2;
}

/* Room in f32 for rows [t0, t0 + rows) of one head, taken from *at. */
static struct heads room(const struct heads *h, int64_t t0, int64_t rows, float **at) {
    int64_t width = h->v->dims[3];
    struct heads r = {.v = h->v, .base = (char *)*at, .row = width, .elem = 4, .first = t0};
    r.ld = i64_max(width, 1);
    *at += rows * width;
    return r;
}

/* The same, filled with those rows. */
static struct heads widened(const struct heads *h, int64_t b, int64_t head, int64_t t0,
                            int64_t rows, float **at) {
    struct heads r = room(h, t0, rows, at);
    for (int64_t t = t0; t < t0 + rows; t++)
        ew_load(DT_f32, row_at(&r, 0, 0, t), h->v->dtype, row_at(h, b, head, t), 1, r.row);
    return r;
}

static void put_rounded(const struct heads *from, int64_t t0, int64_t rows, const struct heads *h,
                        int64_t b, int64_t head) {
    for (int64_t t = t0; t < t0 + rows; t++)
        ew_store(h->v->dtype, row_at(h, b, head, t), 1, DT_f32, row_at(from, 0, 0, t), from->row);
}

static void forward_small(const struct attention *a, int64_t b, int64_t h, int64_t t0, int64_t rows,
                          char *work) {
    struct attention s = *a;
    float *at = (float *)(void *)(work + a->scores);
    int64_t keys = visible_keys(a, t0 + rows);
    s.q = widened(&a->q, b, h, t0, rows, &at);
    s.k = widened(&a->k, b, h / a->share, 0, keys, &at);
    s.v = widened(&a->v, b, h / a->share, 0, keys, &at);
    s.y = room(&a->y, t0, rows, &at);
    forward_f32(&s, b, h, t0, rows, (float *)(void *)work);
    put_rounded(&s.y, t0, rows, &a->y, b, h);
}

static void zero_head(const struct heads *h, int64_t b, int64_t head) {
    for (int64_t r = 0; r < h->v->dims[2]; r++)
        memset(row_at(h, b, head, r), 0, (size_t)(h->v->dims[3] * h->elem));
}

static void backward_small(const struct attention *a, int64_t b, int64_t kv, char *work) {
    struct attention s = *a;
    float *at = (float *)(void *)(work + 2 * a->scores);
    s.k = widened(&a->k, b, kv, 0, a->keys, &at);
    s.v = widened(&a->v, b, kv, 0, a->keys, &at);
    s.dk = room(&a->dk, 0, a->keys, &at);
    s.dv = room(&a->dv, 0, a->keys, &at);
    zero_head(&s.dk, 0, 0);
    zero_head(&s.dv, 0, 0);
    for (int64_t h = kv * a->share; h < (kv + 1) * a->share; h++)
        for (int64_t t0 = 0; t0 < a->queries; t0 += a->block) {
            int64_t rows = i64_min(a->block, a->queries - t0);
            float *more = at;
            s.q = widened(&a->q, b, h, t0, rows, &more);
            s.y = widened(&a->y, b, h, t0, rows, &more);
            s.g = widened(&a->g, b, h, t0, rows, &more);
            s.dq = room(&a->dq, t0, rows, &more);
            backward_f32(&s, b, h, t0, rows, (float *)(void *)work,
                         (float *)(void *)(work + a->scores));
            put_rounded(&s.dq, t0, rows, &a->dq, b, h);
        }
    put_rounded(&s.dk, 0, a->keys, &a->dk, b, kv);
    put_rounded(&s.dv, 0, a->keys, &a->dv, b, kv);
}

/* ---- pieces -------------------------------------------------------------------------------- */
static void forward_task(void *arg, int64_t index, int thread) {
    const struct attention *a = arg;
    int64_t block = index % a->blocks, h = index / a->blocks % a->q_heads;
    int64_t b = index / a->blocks / a->q_heads, t0 = block * a->block;
    int64_t rows = i64_min(a->block, a->queries - t0);
    void *work = scratch_of(a, thread);
    if (is_small(a))
        forward_small(a, b, h, t0, rows, work);
    else if (a->q.v->dtype == DT_f32)
        forward_f32(a, b, h, t0, rows, work);
    else
        forward_f64(a, b, h, t0, rows, work);
}

static void backward_task(void *arg, int64_t index, int thread) {
    const struct attention *a = arg;
    int64_t kv = index % a->kv_heads, b = index / a->kv_heads;
    char *work = scratch_of(a, thread);
    if (is_small(a)) {
        backward_small(a, b, kv, work);
        return;
    }
    zero_head(&a->dk, b, kv);
    zero_head(&a->dv, b, kv);
    for (int64_t h = kv * a->share; h < (kv + 1) * a->share; h++)
        for (int64_t t0 = 0; t0 < a->queries; t0 += a->block) {
            int64_t rows = i64_min(a->block, a->queries - t0);
            void *p = work, *ds = work + a->scores;
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
    if (t != DT_f32 && t != DT_f64 && t != DT_bf16 && t != DT_f16)
        return job_unsupported(j, "q, k and v must be f32, f64, bf16 or f16");
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
    a->scores = plan_attention_scores(l);
    a->scratch = plan_attention_scratch(l);
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
