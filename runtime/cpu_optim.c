// SPDX-License-Identifier: Apache-2.0
/* cpu_optim.c - SGD and Adam(W) with PyTorch's formulas in PyTorch's order of operations; scalars
 * that depend on the step are computed in f64. Elementwise: any cut into tasks gives the same bits.
 * A launch takes its parameters one after the other. Also the sum of squares of gradients, and
 * casts of weights. */
#include "runtime/cpu_group.h"
#include "runtime/cpu_impl.h"
#include "runtime/cpu_simd.h"
#include <math.h>
#include <string.h>

enum { PART = 16384, LINE = 1024 };

struct optim_job {
    int64_t n;
    enum dtype t, gt;          /* of everything, and of the gradient */
    const void *w, *g, *m, *v; /* m: SGD's momentum buffer */
    void *w_out, *m_out, *v_out;
    double gscale, lr, weight_decay, beta1, beta2, eps, correction1, sqrt_correction2;
    double momentum, dampening;
    bool decoupled, nesterov, first;
};

/* Adam: D. P. Kingma, J. Ba, 2015; decoupled decay: I. Loshchilov, F. Hutter, 2019. */
#define ADAM(attr, name, T, SQRT)                                                                  \
    attr static void name(const struct optim_job *o, int64_t i0, int64_t i1) {                     \
        const T *w = o->w, *g = o->g, *m = o->m, *v = o->v;                                        \
        T *w_out = o->w_out, *m_out = o->m_out, *v_out = o->v_out;                                 \
        const T gs = (T)o->gscale, keep = (T)(1.0 - o->lr * o->weight_decay);                      \
        const T l2 = (T)o->weight_decay, b2 = (T)o->beta2;                                         \
        const T nb1 = (T)(1.0 - o->beta1), nb2 = (T)(1.0 - o->beta2);                              \
        const T bias2 = (T)o->sqrt_correction2, eps = (T)o->eps;                                   \
        const T step = (T)(o->lr / o->correction1);                                                \
        const bool decoupled = o->decoupled;                                                       \
        SIMD_LOOP                                                                                  \
        for (int64_t i = i0; i < i1; i++) {                                                        \
            T x = w[i], d = g[i] * gs;                                                             \
            d = decoupled ? d : d + l2 * x;                                                        \
            x = decoupled ? x * keep : x;                                                          \
            T m1 = m[i] + nb1 * (d - m[i]);                                                        \
            T v1 = v[i] * b2 + nb2 * d * d;                                                        \
            m_out[i] = m1;                                                                         \
            v_out[i] = v1;                                                                         \
            w_out[i] = x - step * m1 / (SQRT(v1) / bias2 + eps);                                   \
        }                                                                                          \
    }
ADAM(SIMD, adam_f32, float, sqrtf)
ADAM(, adam_f64, double, sqrt)

#define SGD(attr, name, T)                                                                         \
    attr static void name(const struct optim_job *o, int64_t i0, int64_t i1) {                     \
        const T *w = o->w, *g = o->g, *m = o->m;                                                   \
        T *w_out = o->w_out, *m_out = o->m_out;                                                    \
        const T gs = (T)o->gscale, l2 = (T)o->weight_decay, mu = (T)o->momentum;                   \
        const T fresh = (T)(1.0 - o->dampening), lr = (T)o->lr;                                    \
        const bool use = o->momentum != 0, first = o->first, nesterov = o->nesterov;               \
        SIMD_LOOP                                                                                  \
        for (int64_t i = i0; i < i1; i++) {                                                        \
            T x = w[i], d = g[i] * gs + l2 * x, b = m[i];                                          \
            T b1 = first ? d : b * mu + fresh * d;                                                 \
            T by = nesterov ? d + mu * b1 : b1;                                                    \
            m_out[i] = b1;                                                                         \
            w_out[i] = x - lr * (use ? by : d);                                                    \
        }                                                                                          \
    }
SGD(SIMD, sgd_f32, float)
SGD(, sgd_f64, double)

typedef void optim_kernel(const struct optim_job *o, int64_t i0, int64_t i1);

/* Exact: f32 holds every number of the small formats. */
static void widen(enum dtype t, const void *from, float *to, int64_t n) {
    const uint16_t *x = from;
    if (t == DT_bf16) {
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)x[i] << 16;
            memcpy(&to[i], &bits, sizeof bits);
        }
    } else {
        int64_t size = (int64_t)dtype_size(t);
        for (int64_t i = 0; i < n; i++) to[i] = (float)dtype_load(t, (const char *)from + i * size);
    }
}

/* A gradient of another type is widened a line at a time. */
static void run_part(const struct optim_job *o, optim_kernel *f, int64_t i0, int64_t i1) {
    float line[LINE];
    if (o->gt == o->t) {
        f(o, i0, i1);
        return;
    }
    for (int64_t i = i0; i < i1; i += LINE) {
        struct optim_job x = *o;
        int64_t n = i64_min(LINE, i1 - i), size = (int64_t)dtype_size(o->gt);
        widen(o->gt, (const char *)o->g + i * size, line, n);
        x.g = line;
        x.w = (const float *)o->w + i, x.m = (const float *)o->m + i;
        x.w_out = (float *)o->w_out + i, x.m_out = (float *)o->m_out + i;
        if (o->v) x.v = (const float *)o->v + i, x.v_out = (float *)o->v_out + i;
        f(&x, 0, n);
    }
}

static void adam_task(void *arg, int64_t index, int thread) {
    const struct optim_job *o = arg;
    (void)thread;
    run_part(o, o->t == DT_f32 ? adam_f32 : adam_f64, index * PART,
             i64_min((index + 1) * PART, o->n));
}

static void sgd_task(void *arg, int64_t index, int thread) {
    const struct optim_job *o = arg;
    (void)thread;
    run_part(o, o->t == DT_f32 ? sgd_f32 : sgd_f64, index * PART,
             i64_min((index + 1) * PART, o->n));
}

static double scalar_in(const struct cpu_job *j, uint32_t k) {
    return dtype_load(j->l->in[k].dtype, job_in(j, k));
}

static enum status begin(struct cpu_job *j, struct optim_job *o, double *step) {
    const struct plan_launch *l = j->l;
    struct optimizer_form f = plan_optimizer(l);
    o->t = l->in[0].dtype;
    for (uint32_t i = 0; i < f.lr; i++) {
        enum dtype t = l->in[i].dtype;
        bool small = i % f.each == 1 && (t == DT_bf16 || t == DT_f16) && o->t == DT_f32;
        if (!small && (t != o->t || (t != DT_f32 && t != DT_f64)))
            return job_unsupported(j, "weights and states must all be f32 or all f64, gradients "
                                      "likewise or, with f32, bf16 or f16");
    }
    o->lr = scalar_in(j, f.lr);
    *step = (double)dtype_load_int(l->in[f.lr + 1].dtype, job_in(j, f.lr + 1));
    o->gscale = l->nin > f.lr + 2 ? scalar_in(j, f.lr + 2) : 1.0;
    o->weight_decay = launch_float(l, ATTR_weight_decay, 0.0);
    return ST_OK;
}

static void run_all(struct cpu_job *j, struct optim_job *o,
                    void (*task)(void *arg, int64_t index, int thread)) {
    const struct plan_launch *l = j->l;
    struct optimizer_form f = plan_optimizer(l);
    for (uint32_t k = 0; k < f.count; k++) {
        uint32_t in = k * f.each, out = k * f.kept;
        o->n = view_count(&l->in[in]);
        o->gt = l->in[in + 1].dtype;
        o->w = job_in(j, in), o->g = job_in(j, in + 1), o->m = job_in(j, in + 2);
        o->w_out = job_out(j, out), o->m_out = job_out(j, out + 1);
        if (f.each == 4) o->v = job_in(j, in + 3), o->v_out = job_out(j, out + 2);
        pool_run(j->x->pool, ceil_div(o->n, PART), task, o);
    }
}

enum status cpu_adam(struct cpu_job *j) {
    struct optim_job o = {0};
    double step = 1;
    TRY(begin(j, &o, &step));
    o.beta1 = launch_float(j->l, ATTR_beta1, 0.9);
    o.beta2 = launch_float(j->l, ATTR_beta2, 0.999);
    o.eps = launch_float(j->l, ATTR_eps, 1e-8);
    o.decoupled = launch_int(j->l, ATTR_decoupled, 1) != 0;
    o.correction1 = adam_correction(o.beta1, step);
    o.sqrt_correction2 = sqrt(adam_correction(o.beta2, step));
    if (launch_int(j->l, ATTR_eps_hat, 0)) o.eps /= o.sqrt_correction2;
    run_all(j, &o, adam_task);
    return ST_OK;
}

enum status cpu_sgd(struct cpu_job *j) {
    struct optim_job o = {0};
    double step = 1;
    TRY(begin(j, &o, &step));
    o.momentum = launch_float(j->l, ATTR_momentum, 0.0);
    o.dampening = launch_float(j->l, ATTR_dampening, 0.0);
    o.nesterov = launch_int(j->l, ATTR_nesterov, 0) != 0;
    o.first = step <= 1;
    run_all(j, &o, sgd_task);
    return ST_OK;
}

/* ---- the sum of squares ------------------------------------------------------------------------
 * Lines of f32 add up in 16 lanes, these and the pieces in f64, always in the same order. */
enum { LANES = 16 };
struct squares_job {
    const struct cpu_job *j;
    uint32_t operand;
    double *part; /* of the operand's pieces */
};

SIMD static double line_squares(const float *x, int64_t n) {
    float lane[LANES] = {0};
    double sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) lane[k] += x[i + k] * x[i + k];
    for (; i < n; i++) lane[i % LANES] += x[i] * x[i];
    for (int k = 0; k < LANES; k++) sum += (double)lane[k];
    return sum;
}

static void squares_task(void *arg, int64_t index, int thread) {
    const struct squares_job *s = arg;
    const struct plan_view *v = &s->j->l->in[s->operand];
    int64_t i0 = index * SQUARES_PIECE, i1 = i64_min(i0 + SQUARES_PIECE, view_count(v));
    int64_t size = (int64_t)dtype_size(v->dtype);
    const char *at = job_in(s->j, s->operand);
    float line[LINE];
    double sum = 0;
    (void)thread;
    for (int64_t i = i0; i < i1; i += LINE) {
        int64_t n = i64_min(LINE, i1 - i);
        const void *from = at + i * size;
        if (v->dtype == DT_f64) {
            for (int64_t k = 0; k < n; k++)
                sum += ((const double *)from)[k] * ((const double *)from)[k];
        } else if (v->dtype == DT_f32) {
            sum += line_squares(from, n);
        } else {
            widen(v->dtype, from, line, n);
            sum += line_squares(line, n);
        }
    }
    s->part[index] = sum;
}

enum status cpu_sum_squares(struct cpu_job *j) {
    const struct plan_launch *l = j->l;
    double *part = (double *)(void *)j->work, sum = 0;
    int64_t done = 0;
    for (uint32_t k = 0; k < l->nin; k++) {
        struct squares_job s = {.j = j, .operand = k, .part = part + done};
        int64_t pieces = ceil_div(view_count(&l->in[k]), SQUARES_PIECE);
        pool_run(j->x->pool, pieces, squares_task, &s);
        done += pieces;
    }
    for (int64_t k = 0; k < done; k++) sum += part[k];
    dtype_store(l->out[0].dtype, job_out(j, 0), sum);
    return ST_OK;
}

/* ---- casts -------------------------------------------------------------------------------------
 */
struct cast_job {
    const struct cpu_job *j;
    uint32_t operand;
};

static void cast_task(void *arg, int64_t index, int thread) {
    const struct cast_job *c = arg;
    const struct plan_view *y = &c->j->l->out[c->operand];
    int64_t i0 = index * PART, n = i64_min(PART, view_count(y) - i0);
    const float *x = job_in(c->j, c->operand);
    char *to = job_out(c->j, c->operand);
    (void)thread;
    ew_store(y->dtype, to + i0 * (int64_t)dtype_size(y->dtype), 1, DT_f32, x + i0, n);
}

enum status cpu_casts(struct cpu_job *j) {
    for (uint32_t k = 0; k < j->l->nin; k++) {
        struct cast_job c = {.j = j, .operand = k};
        pool_run(j->x->pool, ceil_div(view_count(&j->l->in[k]), PART), cast_task, &c);
    }
    return ST_OK;
}
