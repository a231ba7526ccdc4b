// SPDX-License-Identifier: Apache-2.0
/* cpu_adam8.c - Adam(W) with 8-bit states. A group is decoded, updated and encoded again by one
 * thread. Codes, scales and exponents follow base/expand.h to the bit; a code is guessed by
 * arithmetic that vectorises and put right by the table. */
#include "base/expand.h"
#include "runtime/cpu_group.h"
#include "runtime/cpu_impl.h"
#include "runtime/cpu_simd.h"
#include <float.h>
#include <math.h>
#include <string.h>

enum { PART = 16384, LINE = EXPAND_GROUP_MAX };

/* A state of one parameter: codes with scales and exponents, or f32 in place of codes. */
struct state {
    const void *codes;
    const float *amax;
    const uint8_t *k;
    void *codes_out;
    float *amax_out;
    uint8_t *k_out;
    const struct expand_table *table;
    enum expand_format format;
    bool wide; /* f32 */
    int k_min, k_max;
};
struct job {
    int64_t n, group;
    enum dtype gradient;
    const float *w;
    const void *g;
    float *w_out;
    struct state m, v;
    bool decoupled, stochastic;
    uint32_t step;
    float scale, keep, l2, beta2, fresh1, fresh2, bias2, eps, size;
};

/* ---- guessing a code ---------------------------------------------------------------------------
 * fmax * r^k to 1e-5 relative, a little more than it is rather than less: rounded, it is the right
 * code or the next one. */
struct guess {
    float k, offset; /* offset: log2(fmax) and 2^-15 */
    float normal, magic;
    uint32_t magic_bits, shift, rebias, top;
};

static struct guess guess_for(enum expand_format f, int k) {
    int man = f == EXPAND_E4M3 ? 3 : 2, bias = f == EXPAND_E4M3 ? 7 : 15;
    struct guess s = {.k = (float)k / EXPAND_ONE, .shift = (uint32_t)(23 - man)};
    s.top = expand_top_code(f);
    s.offset = (f == EXPAND_E4M3 ? 8.8073549f : 15.8073549f) + 4.4e-5f;
    s.normal = ldexpf(1, 1 - bias);
    s.magic = ldexpf(1, 24 - bias - man); /* its last bit counts units of the smallest code */
    s.magic_bits = (uint32_t)(127 + 24 - bias - man) << 23;
    s.rebias = (uint32_t)(127 - bias) << man;
    return s;
}

SIMD_INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
SIMD_INLINE float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Series of atanh on [sqrt(1/2), sqrt(2)], of exp on [-ln(2)/2, ln(2)/2]. */
SIMD_INLINE float guess_log2(float r) {
    uint32_t u = bits_of(r), e = (u - 0x3f3504f3u) & 0xff800000u;
    float m = float_of(u - e), s = (m - 1) / (m + 1), q = s * s;
    float p = 1 + q * (0.33333333f + q * (0.2f + q * (0.14285714f + q * 0.11111111f)));
    return (float)((int32_t)e >> 23) + 2.88539008f * s * p;
}
SIMD_INLINE float guess_exp2(float x) {
    const float round = 12582912.0f; /* 1.5 * 2^23 */
    x = x > -40 ? x : -40;
    float n = (x + round) - round, z = (x - n) * 0.69314718f;
    float p =
        0.5f + z * (0.16666667f + z * (0.041666667f + z * (8.3333333e-3f + z * 1.3888889e-3f)));
    return float_of(bits_of(1 + z * (1 + z * p)) + ((uint32_t)(int32_t)n << 23));
}
SIMD_INLINE uint32_t guess_code(const struct guess *s, float r) {
    float q = guess_exp2(guess_log2(r < 2 ? r : 2) * s->k + s->offset);
    q = r >= FLT_MIN ? q : 0;
    uint32_t u = bits_of(q), odd = u >> s->shift & 1;
    uint32_t normal = ((u + (1u << (s->shift - 1)) - 1 + odd) >> s->shift) - s->rebias;
    uint32_t small = bits_of(q + s->magic) - s->magic_bits;
    uint32_t c = q < s->normal ? small : normal;
    return c < s->top ? c : s->top;
}

/* ---- a group of a state ------------------------------------------------------------------------
 */
SIMD static void decode(const uint8_t *codes, const float *value, float amax, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float a = amax * value[codes[i] & 0x7f];
        x[i] = codes[i] & 0x80 ? -a : a;
    }
}

SIMD static void encode_nearest(const struct guess *s, const float *least,
                                struct expand_scale scale, const float *x, uint8_t *codes,
                                int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float r = fabsf(x[i]) * scale.up * scale.inverse;
        uint32_t c = guess_code(s, r);
        c -= r < least[c];
        c |= bits_of(x[i]) >> 24 & 0x80;
        codes[i] = (uint8_t)(r == r ? c : 0x7f);
    }
}

/* The guess is the nearest code or its neighbour; the values on both sides of r decide. */
SIMD static void encode_random(const struct guess *s, const float *value, struct expand_scale scale,
                               const float *x, uint8_t *codes, int64_t n, uint32_t key,
                               uint32_t first) {
    for (int64_t i = 0; i < n; i++) {
        float r = x[i] * scale.up * scale.inverse;
        uint32_t c = guess_code(s, r);
        c -= r < value[c];
        float low = value[c], high = value[c + 1];
        float step = expand_uniform(key, first + (uint32_t)i) * (high - low);
        c += r >= low + step;
        codes[i] = (uint8_t)(r == r ? c : 0x7f);
    }
}

SIMD static void keep_nonzero(const float *x, uint8_t *codes, int64_t n) {
    for (int64_t i = 0; i < n; i++) codes[i] = codes[i] == 0 && x[i] > 0 ? 1 : codes[i];
}

static void read_state(const struct state *s, int64_t at, int64_t group, float *x, int64_t n) {
    if (s->wide) {
        memcpy(x, (const float *)s->codes + at, (size_t)n * sizeof *x);
        return;
    }
    int64_t k = at / group;
    decode((const uint8_t *)s->codes + at, s->table->value[s->k[k]], s->amax[k], x, n);
}

static void write_state(const struct job *o, const struct state *s, int64_t at, const float *x,
                        int64_t n) {
    if (s->wide) {
        memcpy((float *)s->codes_out + at, x, (size_t)n * sizeof *x);
        return;
    }
    int64_t k = at / o->group;
    uint8_t *codes = (uint8_t *)s->codes_out + at;
    struct expand_group g = expand_measure(s->table, x, n, s->k_min, s->k_max);
    struct expand_scale scale = expand_scale(g.amax);
    struct guess guess = guess_for(s->format, g.k);
    bool is_v = s == &o->v;
    if (is_v && o->stochastic)
        encode_random(&guess, s->table->value[g.k], scale, x, codes, n, expand_key(o->step, g.amax),
                      (uint32_t)at);
    else
        encode_nearest(&guess, s->table->least[g.k], scale, x, codes, n);
    if (is_v) keep_nonzero(x, codes, n);
    s->amax_out[k] = g.amax;
    s->k_out[k] = g.k;
}

/* ---- the step ----------------------------------------------------------------------------------
 */
/* Adam: D. P. Kingma, J. Ba, 2015; decoupled decay: I. Loshchilov, F. Hutter, 2019. The weight
 * follows m and v before they are rounded. */
SIMD static void update(const struct job *o, const float *w, const float *g, float *m, float *v,
                        float *w_out, int64_t n) {
    const float scale = o->scale, keep = o->keep, l2 = o->l2, beta2 = o->beta2, bias2 = o->bias2;
    const float fresh1 = o->fresh1, fresh2 = o->fresh2, eps = o->eps, size = o->size;
    const bool decoupled = o->decoupled;
    SIMD_LOOP
    for (int64_t i = 0; i < n; i++) {
        float x = w[i], d = g[i] * scale;
        d = decoupled ? d : d + l2 * x;
        x = decoupled ? x * keep : x;
        m[i] = m[i] + fresh1 * (d - m[i]);
        v[i] = v[i] * beta2 + fresh2 * d * d;
        w_out[i] = x - size * m[i] / (sqrtf(v[i]) / bias2 + eps);
    }
}

static void step_group(const struct job *o, int64_t at, int64_t n) {
    float m[LINE], v[LINE], g[LINE];
    int64_t size = (int64_t)dtype_size(o->gradient);
    ew_load(DT_f32, g, o->gradient, (const char *)o->g + at * size, 1, n);
    read_state(&o->m, at, o->group, m, n);
    read_state(&o->v, at, o->group, v, n);
    update(o, o->w + at, g, m, v, o->w_out + at, n);
    write_state(o, &o->m, at, m, n);
    write_state(o, &o->v, at, v, n);
}

static void task(void *arg, int64_t index, int thread) {
    const struct job *o = arg;
    int64_t end = i64_min((index + 1) * PART, o->n);
    (void)thread;
    for (int64_t at = index * PART; at < end; at += o->group)
        step_group(o, at, i64_min(o->group, end - at));
}

/* `in` and `out`: the first operand and result of the state; table: that of its table. */
static struct state take_state(const struct cpu_job *j, uint32_t in, uint32_t out, uint32_t table,
                               enum attr_key range) {
    enum dtype t = j->l->in[in].dtype;
    bool plain = launch_float(j->l, range, 0) == 0;
    bool contract = launch_int(j->l, ATTR_contract, 0) != 0;
    struct state s = {.codes = job_in(j, in), .codes_out = job_out(j, out), .wide = t == DT_f32};
    if (s.wide) return s;
    s.amax = job_in(j, in + 1), s.k = job_in(j, in + 2);
    s.amax_out = job_out(j, out + 1), s.k_out = job_out(j, out + 2);
    s.table = job_in(j, table);
    s.format = t == DT_e5m2 ? EXPAND_E5M2 : EXPAND_E4M3;
    s.k_min = contract && !plain ? 1 : EXPAND_ONE;
    s.k_max = plain ? EXPAND_ONE : EXPAND_STEPS - 1;
    return s;
}

static void take_numbers(const struct cpu_job *j, const struct optimizer_form *f, struct job *o) {
    const struct plan_launch *l = j->l;
    double lr = dtype_load(l->in[f->lr].dtype, job_in(j, f->lr));
    int64_t step = dtype_load_int(l->in[f->lr + 1].dtype, job_in(j, f->lr + 1));
    double beta1 = launch_float(l, ATTR_beta1, 0.9), beta2 = launch_float(l, ATTR_beta2, 0.999);
    double decay = launch_float(l, ATTR_weight_decay, 0.0);
    o->group = launch_int(l, ATTR_group, EXPAND_GROUP);
    o->decoupled = launch_int(l, ATTR_decoupled, 1) != 0;
    o->stochastic = launch_int(l, ATTR_stochastic, 0) != 0;
    o->step = (uint32_t)step;
    o->scale =
        l->nin > f->factor ? (float)dtype_load(l->in[f->factor].dtype, job_in(j, f->factor)) : 1.0f;
    o->keep = (float)(1.0 - lr * decay);
    o->l2 = (float)decay;
    o->beta2 = (float)beta2;
    o->fresh1 = (float)(1.0 - beta1);
    o->fresh2 = (float)(1.0 - beta2);
    double bias2 = sqrt(adam_correction(beta2, (double)step));
    o->bias2 = (float)bias2;
    o->eps =
        (float)(launch_float(l, ATTR_eps, 1e-8) / (launch_int(l, ATTR_eps_hat, 0) ? bias2 : 1));
    o->size = (float)(lr / adam_correction(beta1, (double)step));
}

enum status cpu_adam8(struct cpu_job *j) {
    struct optimizer_form f = plan_optimizer(j->l);
    struct job o = {0};
    take_numbers(j, &f, &o);
    for (uint32_t k = 0; k < f.count; k++) {
        uint32_t in = k * f.each, out = k * f.kept;
        o.n = view_count(&j->l->in[in]);
        o.gradient = j->l->in[in + 1].dtype;
        o.w = job_in(j, in), o.g = job_in(j, in + 1), o.w_out = job_out(j, out);
        o.m = take_state(j, in + 2, out + 1, f.lr + 2, ATTR_m_range);
        o.v = take_state(j, in + 5, out + 4, f.lr + 3, ATTR_v_range);
        pool_run(j->x->pool, ceil_div(o.n, PART), task, &o);
    }
    return ST_OK;
}
