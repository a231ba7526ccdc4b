// SPDX-License-Identifier: Apache-2.0
/* cpu_optim.c - SGD and Adam(W) with PyTorch's formulas in PyTorch's order of operations; scalars
 * that depend on the step are computed in f64. Elementwise: any cut into tasks gives the same bits.
 */
#include "runtime/cpu_impl.h"
#include "runtime/cpu_simd.h"
#include <math.h>

enum { PART = 16384 };

struct optim_job {
    int64_t n;
    enum dtype t;
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

static void adam_task(void *arg, int64_t index, int thread) {
    const struct optim_job *o = arg;
    int64_t i0 = index * PART, i1 = i64_min(i0 + PART, o->n);
    (void)thread;
    (o->t == DT_f32 ? adam_f32 : adam_f64)(o, i0, i1);
}

static void sgd_task(void *arg, int64_t index, int thread) {
    const struct optim_job *o = arg;
    int64_t i0 = index * PART, i1 = i64_min(i0 + PART, o->n);
    (void)thread;
    (o->t == DT_f32 ? sgd_f32 : sgd_f64)(o, i0, i1);
}

static double scalar_in(const struct cpu_job *j, uint32_t k) {
    return dtype_load(j->l->in[k].dtype, job_in(j, k));
}

/* Operands 0..first_state are w, g; then states; then lr, step and perhaps a factor for g. */
static enum status begin(struct cpu_job *j, struct optim_job *o, uint32_t states, double *step) {
    const struct plan_launch *l = j->l;
    uint32_t lr = 2 + states;
    o->n = view_count(&l->in[0]);
    o->t = l->in[0].dtype;
    for (uint32_t i = 0; i < lr; i++)
        if (l->in[i].dtype != o->t || (o->t != DT_f32 && o->t != DT_f64))
            return job_unsupported(j, "weights, gradients and states must all be f32 or all f64");
    o->w = job_in(j, 0), o->g = job_in(j, 1), o->m = job_in(j, 2);
    o->w_out = job_out(j, 0), o->m_out = job_out(j, 1);
    o->lr = scalar_in(j, lr);
    *step = (double)dtype_load_int(l->in[lr + 1].dtype, job_in(j, lr + 1));
    o->gscale = l->nin > lr + 2 ? scalar_in(j, lr + 2) : 1.0;
    o->weight_decay = launch_float(l, ATTR_weight_decay, 0.0);
    return ST_OK;
}

enum status cpu_adam(struct cpu_job *j) {
    struct optim_job o = {0};
    double step = 1;
    TRY(begin(j, &o, 2, &step));
    o.v = job_in(j, 3), o.v_out = job_out(j, 2);
    o.beta1 = launch_float(j->l, ATTR_beta1, 0.9);
    o.beta2 = launch_float(j->l, ATTR_beta2, 0.999);
    o.eps = launch_float(j->l, ATTR_eps, 1e-8);
    o.decoupled = launch_int(j->l, ATTR_decoupled, 1) != 0;
    o.correction1 = 1.0 - pow(o.beta1, step);
    o.sqrt_correction2 = sqrt(1.0 - pow(o.beta2, step));
    pool_run(j->x->pool, ceil_div(o.n, PART), adam_task, &o);
    return ST_OK;
}

enum status cpu_sgd(struct cpu_job *j) {
    struct optim_job o = {0};
    double step = 1;
    TRY(begin(j, &o, 1, &step));
    o.momentum = launch_float(j->l, ATTR_momentum, 0.0);
    o.dampening = launch_float(j->l, ATTR_dampening, 0.0);
    o.nesterov = launch_int(j->l, ATTR_nesterov, 0) != 0;
    o.first = step <= 1;
    pool_run(j->x->pool, ceil_div(o.n, PART), sgd_task, &o);
    return ST_OK;
}
