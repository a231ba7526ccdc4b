// SPDX-License-Identifier: Apache-2.0
/* adam8.cu - Adam(W) with 8-bit states on all parameters at once. m and v come out as base/expand.h
 * says, to the bit: the tables decide, and special functions, whose results are near 2^-21, only
 * say where in them to look. What leads to m and v is rounded operation by operation, as on the
 * CPU; the step of a weight is not. A warp takes two rows of 128 elements at a time, a lane 4 of
 * each row. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif
#include "tensors.cuh"

#ifndef GROUP /* AdamW, e4m3 */
#define GROUP        128
#define M_FORM       1
#define V_FORM       1
#define M_RANGE      16.614711
#define V_RANGE      16.614711
#define M_PLAIN      0
#define V_PLAIN      0
#define K_MIN        16
#define STOCHASTIC   1
#define FACTOR       0
#define WEIGHT_DECAY 0.01
#define BETA1        0.9
#define BETA2        0.999
#define EPS          1e-8
#define DECOUPLED    1
#define EPS_HAT      0
#define STEP         i64
#define LR           float
#endif

enum { SMALL_F32, SMALL_E4M3, SMALL_E5M2 };
#define THREADS 128
#define ROWS    2
#define VEC     4 /* elements of a row that a lane has */
#define ROW     (32 * VEC)
#define EACH    8 /* operands of a tensor: w, g, m, amax, k, v, amax, k */
#define KEPT    7
#define SCALARS (TENSORS * EACH) /* lr, step, tables of m and v, perhaps the factor */
#define RESULTS (SCALARS + 4 + FACTOR)
#define LANES   (GROUP < ROW ? GROUP / VEC : 32) /* that share a group in a row */

#define BLOCKS_PER_SM 4

/* base/expand.h */
struct expand_table {
    float value[256][128], least[256][128], ratio[256];
};
#define ONE 16

DEV float fast_log2(float x) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float fast_sqrt(float x) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

/* ---- formats -----------------------------------------------------------------------------------
 */
/* The codes of four numbers, one after the other. */
template <int FORM> DEV u32 codes_of(const float *x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short two[2];
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (FORM == SMALL_E4M3)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
                : "=h"(two[k])
                : "f"(x[2 * k + 1]), "f"(x[2 * k]));
        else
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;"
                : "=h"(two[k])
                : "f"(x[2 * k + 1]), "f"(x[2 * k]));
    u32 all = two[0] | (u32)two[1] << 16;
    /* ptxas 13.0 joins the conversions and then reads the first pair from a register of its own
     * that it never wrote. */
    asm volatile("" : "+r"(all));
    return all;
#else
    u32 all = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        all |= (u32)(FORM == SMALL_E4M3 ? make_e4m3(x[k]).u : make_e5m2(x[k]).u) << 8 * k;
    return all;
#endif
}
template <int FORM> struct form {
    static constexpr float log_top = FORM == SMALL_E4M3 ? 8.8073549f : 15.8073549f;
    static constexpr float smallest = FORM == SMALL_E4M3 ? 0.001953125f : 1.52587890625e-5f;
};

/* ---- a state as it lies in memory --------------------------------------------------------------
 */
struct place {
    const void *codes;
    const float *amax;
    const unsigned char *k;
    void *codes_out;
    float *amax_out;
    unsigned char *k_out;
    const expand_table *table;
};
DEV place place_of(void *const *table, int tensor, int state) {
    place p;
    void *const *in = table + tensor * EACH + 2 + 3 * state;
    void *const *out = table + RESULTS + tensor * KEPT + 1 + 3 * state;
    p.codes = in[0], p.amax = (const float *)in[1], p.k = (const unsigned char *)in[2];
    p.codes_out = out[0], p.amax_out = (float *)out[1], p.k_out = (unsigned char *)out[2];
    p.table = (const expand_table *)table[SCALARS + 2 + state];
    return p;
}

/* What passes by once stays out of the way of the tables. */
template <class T> DEV T stream_in(const T *p) {
    T x;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "");
    u32 *u = (u32 *)&x;
    if constexpr (sizeof(T) == 16)
        asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(u[0]), "=r"(u[1]), "=r"(u[2]), "=r"(u[3])
            : "l"(p)
            : "memory");
    else if constexpr (sizeof(T) == 8)
        asm("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
            : "=r"(u[0]), "=r"(u[1])
            : "l"(p)
            : "memory");
    else
        asm("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(u[0]) : "l"(p) : "memory");
    return x;
}
template <class T> DEV T look_up(const T *p) {
    return __ldg(p);
}
template <class T> DEV void stream_out(T *p, const T &x) {
    const u32 *u = (const u32 *)&x;
    if constexpr (sizeof(T) == 16)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(u[0]), "r"(u[1]),
                     "r"(u[2]), "r"(u[3])
                     : "memory");
    else
        asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(u[0]) : "memory");
}
/* Where a lane's elements begin, and how many of them exist; FULL: all, and aligned. */
struct span {
    i64 at;
    int n;
};
template <bool FULL, class M> DEV void take(float *v, const M *p, span s) {
    if constexpr (FULL) {
        unpack<M, VEC>(v, stream_in((const packs<M, VEC> *)(p + s.at)));
    } else {
#pragma unroll
        for (int k = 0; k < VEC; k++) v[k] = k < s.n ? to_reg(p[s.at + k]) : 0.0f;
    }
}
template <bool FULL> DEV void give(float *p, const float *v, span s) {
    if constexpr (FULL) {
        pack<float, VEC> x;
        put_pack(x, v);
        stream_out((pack<float, VEC> *)(p + s.at), x);
    } else {
#pragma unroll
        for (int k = 0; k < VEC; k++)
            if (k < s.n) p[s.at + k] = v[k];
    }
}
template <bool FULL> DEV u32 take_codes(const unsigned char *p, span s) {
    if constexpr (FULL) {
        return stream_in((const u32 *)(p + s.at));
    } else {
        u32 all = 0; /* loops, because unrolled they want registers */
#pragma unroll 1
        for (int k = 0; k < s.n; k++) all |= (u32)p[s.at + k] << 8 * k;
        return all;
    }
}
template <bool FULL> DEV void give_codes(unsigned char *p, u32 codes, span s) {
    if constexpr (FULL) {
        stream_out((u32 *)(p + s.at), codes);
    } else {
#pragma unroll 1
        for (int k = 0; k < s.n; k++) p[s.at + k] = (unsigned char)(codes >> 8 * k);
    }
}
DEV u64 group_of(span s) {
    return (u64)s.at / GROUP;
}

template <int FORM> struct raw { /* a lane's part of a row */
    u32 codes, k;
    float amax;
    template <bool FULL> DEV void read(const place &p, span s) {
        codes = take_codes<FULL>((const unsigned char *)p.codes, s);
        amax = FULL || s.n > 0 ? p.amax[group_of(s)] : 0.0f;
        k = FULL || s.n > 0 ? p.k[group_of(s)] : ONE;
    }
    DEV void decode(float *x, const place &p) const {
        const float *value = p.table->value[k];
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            const u32 c = codes >> 8 * j;
            const float a = __fmul_rn(amax, look_up(value + (c & 0x7f)));
            x[j] = __uint_as_float(__float_as_uint(a) | (c & 0x80) << 24);
        }
    }
};
template <> struct raw<SMALL_F32> {
    float x[VEC];
    template <bool FULL> DEV void read(const place &p, span s) {
        take<FULL>(x, (const float *)p.codes, s);
    }
    DEV void decode(float *y, const place &) const {
#pragma unroll
        for (int j = 0; j < VEC; j++) y[j] = x[j];
    }
};

/* ---- the scale of a group ----------------------------------------------------------------------
 */
struct extremes { /* of magnitudes, as bits: these are in the order of the numbers */
    u32 most, least;
};
struct scale {
    float inverse;
    int k;
};
DEV u32 group_max(u32 x) {
    if constexpr (LANES == 32) {
        return __reduce_max_sync(FULL_WARP, x);
    } else {
#pragma unroll
        for (int w = LANES / 2; w > 0; w /= 2) x = max(x, __shfl_xor_sync(FULL_WARP, x, w));
        return x;
    }
}
DEV u32 group_min(u32 x) {
    if constexpr (LANES == 32) {
        return __reduce_min_sync(FULL_WARP, x);
    } else {
#pragma unroll
        for (int w = LANES / 2; w > 0; w /= 2) x = min(x, __shfl_xor_sync(FULL_WARP, x, w));
        return x;
    }
}
/* Zeros do not count as the least. */
DEV extremes measure(const float *x) {
    float most = fabsf(x[0]), least = fabsf(x[0]);
#pragma unroll
    for (int j = 1; j < VEC; j++) {
        most = max_nan(most, fabsf(x[j]));
        least = fminf(least, fabsf(x[j]));
    }
    extremes e;
    e.most = min(group_max(__float_as_uint(most)), 0x7f7fffffu);
    e.least = group_min(__float_as_uint(least));
    if (__any_sync(FULL_WARP, e.least == 0)) {
        u32 bits = 0xffffffffu;
#pragma unroll
        for (int j = 0; j < VEC; j++) bits = min(bits, (__float_as_uint(x[j]) & 0x7fffffffu) - 1);
        e.least = group_min(bits) + 1;
    }
    e.least = min(e.least, 0x7f7fffffu);
    return e;
}
/* Outside, the inverse would be infinite or lose bits. */
DEV bool ordinary(u32 amax) {
    return amax - 0x1f800000u <= 0x5f800000u - 0x1f800000u;
}
DEV float lift(u32 amax) {
    return amax < 0x1f800000u   ? __uint_as_float(0x6f800000u)
           : amax > 0x5f800000u ? __uint_as_float(0x1f800000u)
                                : 1.0f;
}
/* 1/x to nearest for x between 2^-60 and 2^100: one step of Newton's gives the last bit, without
 * the detour for other x that the compiler takes. */
DEV float inverse_of(float x) {
    const float r = fast_recip(x);
    return fmaf(r, -fmaf(x, r, -1.0f), r);
}
/* `range`: log2 of what a group is spread over; k_min == k_max: not expanded. */
DEV scale scale_of(extremes e, const float *ratio, float range, int k_min, int k_max) {
    scale s;
    const float up = lift(e.most), amax = __uint_as_float(e.most);
    s.inverse = e.most ? inverse_of(__fmul_rn(amax, up)) : 0.0f;
    s.k = ONE;
    if (k_min == k_max) return s;
    const float r = __fmul_rn(__fmul_rn(__uint_as_float(e.least), up), s.inverse);
    /* Nearest to what it would be; rounded down, it is this or the one below. */
    float guess = fminf(-ONE * range * fast_recip(fast_log2(r)), 255.0f);
    if (!(guess >= 1.0f)) guess = r < 0.5f ? 1.0f : 255.0f;
    int k = __float2int_rn(guess);
    k -= r < look_up(ratio + k);
    k = min(max(k, k_min), k_max);
    s.k = e.most ? k : ONE;
    return s;
}

#define M_LEAST (M_PLAIN ? ONE : K_MIN)
#define V_LEAST (V_PLAIN ? ONE : K_MIN)
#define M_MOST  (M_PLAIN ? ONE : 255)
#define V_MOST  (V_PLAIN ? ONE : 255)
DEV scale m_scale(extremes e, const place &p) {
    return scale_of(e, p.table->ratio, (float)M_RANGE, M_LEAST, M_MOST);
}
DEV scale v_scale(extremes e, const place &p) {
    return scale_of(e, p.table->ratio, (float)V_RANGE, V_LEAST, V_MOST);
}

/* All scales of R rows: where a row is a group, each in a part of the lanes. */
template <int R>
DEV void all_scales(scale *m, scale *v, const extremes *em, const extremes *ev, const place &pm,
                    const place &pv) {
    if constexpr (GROUP == ROW && M_FORM && V_FORM && M_PLAIN == V_PLAIN) {
        const bool second = R > 1 && threadIdx.x & 8, is_v = threadIdx.x & 16;
        extremes e = is_v ? ev[0] : em[0];
        if (second) e = is_v ? ev[R - 1] : em[R - 1];
        const scale s = scale_of(e, is_v ? pv.table->ratio : pm.table->ratio,
                                 is_v ? (float)V_RANGE : (float)M_RANGE, M_LEAST, M_MOST);
#pragma unroll
        for (int r = 0; r < R; r++) {
            m[r].inverse = __shfl_sync(FULL_WARP, s.inverse, 8 * r);
            m[r].k = __shfl_sync(FULL_WARP, s.k, 8 * r);
            v[r].inverse = __shfl_sync(FULL_WARP, s.inverse, 16 + 8 * r);
            v[r].k = __shfl_sync(FULL_WARP, s.k, 16 + 8 * r);
        }
    } else {
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (M_FORM) m[r] = m_scale(em[r], pm);
            if (V_FORM) v[r] = v_scale(ev[r], pv);
        }
    }
}

/* ---- encoding ----------------------------------------------------------------------------------
 */
DEV void quotients(float *r, const float *x, u32 amax, float inverse) {
#pragma unroll
    for (int j = 0; j < VEC; j++) r[j] = __fmul_rn(fabsf(x[j]), inverse);
    if (ordinary(amax)) return;
    const float up = lift(amax);
#pragma unroll
    for (int j = 0; j < VEC; j++) r[j] = __fmul_rn(__fmul_rn(fabsf(x[j]), up), inverse);
}

/* To nearest. Two guesses, a little above and a little below: where they agree, that is it. */
template <int FORM, bool IS_V>
DEV u32 encode_nearest(const float *x, u32 amax, const scale &s, const expand_table *t) {
    constexpr float above = form<FORM>::log_top + 2.9e-5f, back = 1.0f - 4e-5f;
    const float k = (float)s.k * (1.0f / ONE);
    float r[VEC], high[VEC], low[VEC];
    quotients(r, x, amax, s.inverse);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        float q = fast_exp2(fmaf(fast_log2(r[j]), k, above));
        if (IS_V && x[j] > 0.0f) q = fmaxf(q, 0.75f * form<FORM>::smallest); /* never 0 */
        if (!IS_V) q = __uint_as_float(__float_as_uint(q) | (__float_as_uint(x[j]) & 0x80000000u));
        high[j] = q;
        low[j] = IS_V ? q == 0.75f * form<FORM>::smallest ? q : q * back : q * back;
    }
    u32 codes = codes_of<FORM>(high);
    if (codes == codes_of<FORM>(low)) return codes;
    const float *least = t->least[s.k];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const u32 c = codes >> 8 * j & 0x7f;
        if (c == 0x7f || (IS_V && c == 1)) continue; /* NaN; what is not 0 stays so */
        codes -= (u32)(r[j] < look_up(least + c)) << 8 * j;
    }
    return codes;
}

/* Mixing of 32 bits: C. Wellons' lowbias32 (2018). */
DEV u32 mix(u32 x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
/* Up or down, so that the mean stays. */
template <int FORM>
DEV u32 encode_random(const float *x, u32 amax, const scale &s, const expand_table *t, u32 step,
                      u32 at) {
    const float k = (float)s.k * (1.0f / ONE), *value = t->value[s.k];
    const u32 key = mix(step * 0x9e3779b9u ^ amax);
    float r[VEC], q[VEC];
    quotients(r, x, amax, s.inverse);
#pragma unroll
    for (int j = 0; j < VEC; j++) q[j] = fast_exp2(fmaf(fast_log2(r[j]), k, form<FORM>::log_top));
    const u32 near = codes_of<FORM>(q);
    u32 codes = 0, bits = 0;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        bits = j % 2 ? bits >> 16 : mix(key ^ (at + j) / 2);
        const float u = __uint_as_float((bits & 0xffff) << 7 | 0x3f800000u) - 1.0f;
        u32 c = near >> 8 * j & 0xff;
        const float one = look_up(value + c);
        const bool below = r[j] < one;
        const float other = look_up(value + (below ? c - 1 : c + 1));
        const float low = below ? other : one, high = below ? one : other;
        const float limit = __fadd_rn(low, __fmul_rn(u, __fsub_rn(high, low)));
        c = c - below + (r[j] >= limit);
        if (x[j] > 0.0f) c = max(c, 1u);
        codes |= c << 8 * j;
    }
    return codes;
}

/* A row of a state: codes from every lane, scales from the first of a group. */
template <int FORM, bool IS_V, bool FULL>
DEV void give_small(const place &p, const float *x, const extremes &e, const scale &s, span at,
                    u32 step, bool first) {
    const u32 codes = IS_V && STOCHASTIC
                          ? encode_random<FORM>(x, e.most, s, p.table, step, (u32)at.at)
                          : encode_nearest<FORM, IS_V>(x, e.most, s, p.table);
    give_codes<FULL>((unsigned char *)p.codes_out, codes, at);
    if (first && (FULL || at.n > 0)) {
        p.amax_out[group_of(at)] = __uint_as_float(e.most);
        p.k_out[group_of(at)] = (unsigned char)s.k;
    }
}

/* ---- the step ----------------------------------------------------------------------------------
 */
struct scalars {
    float size, bias, keep, factor;
    u32 step;
};
/* x to the power n by squaring: needs far fewer registers than pow, and exact enough for any n that
 * leaves a power above 0. */
DEV double power(double x, i64 n) {
    double y = 1;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) y *= x;
    return y;
}
/* What m or v lacks after n steps; nothing is taken out in step 0. */
DEV double correction(double beta, i64 n) {
    return n > 0 ? 1.0 - power(beta, n) : 1.0;
}
DEV void begin(scalars *s, void *const *table) {
    const i64 n = (i64) * (const STEP *)table[SCALARS + 1];
    const double lr = (double)*(const LR *)table[SCALARS];
    if (threadIdx.x == THREADS - 32) s->size = (float)(lr / correction(BETA1, n));
    if (threadIdx.x == THREADS - 64) s->bias = (float)(1.0 / sqrt(correction(BETA2, n)));
    if (threadIdx.x == THREADS - 96) s->keep = (float)(1.0 - lr * WEIGHT_DECAY);
    if (threadIdx.x == 0) {
        s->factor = FACTOR ? *(const float *)table[SCALARS + 3 + FACTOR] : 1.0f;
        s->step = (u32)n;
    }
}
/* D. P. Kingma, J. Ba, 2015; decoupled decay: I. Loshchilov, F. Hutter, 2019. */
DEV void update(const scalars &s, float g, float &w, float &m, float &v) {
    float d = __fmul_rn(g, s.factor);
    if (!DECOUPLED) d = __fadd_rn(d, __fmul_rn((float)WEIGHT_DECAY, w));
    m = __fadd_rn(m, __fmul_rn((float)(1.0 - BETA1), __fsub_rn(d, m)));
    v = __fadd_rn(__fmul_rn(v, (float)BETA2), __fmul_rn(__fmul_rn((float)(1.0 - BETA2), d), d));
    if (DECOUPLED) w *= s.keep;
    const float root = EPS > 0 ? fast_sqrt(v) : sqrtf(v);
    const float below = EPS_HAT ? (root + (float)EPS) * s.bias : fmaf(root, s.bias, (float)EPS);
    w -= EPS > 0 ? s.size * m * fast_recip(below) : s.size * m / below;
}

struct tensor { /* of one parameter */
    const float *w;
    const void *g;
    float *w_out;
    place m, v;
    int type; /* of g */
};
template <int R> struct values {
    float w[R][VEC], g[R][VEC];
    raw<M_FORM> m[R];
    raw<V_FORM> v[R];
};
template <bool FULL, int R> DEV void read(values<R> &e, const tensor &t, const span *at) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        e.m[r].template read<FULL>(t.m, at[r]);
        e.v[r].template read<FULL>(t.v, at[r]);
        if (HAS(FORM_BF16) && t.type == FORM_BF16)
            take<FULL>(e.g[r], (const bf16 *)t.g, at[r]);
        else if (HAS(FORM_F16) && t.type == FORM_F16)
            take<FULL>(e.g[r], (const f16 *)t.g, at[r]);
        else
            take<FULL>(e.g[r], (const float *)t.g, at[r]);
        take<FULL>(e.w[r], t.w, at[r]);
    }
}

DEV extremes join(extremes a, extremes b) {
    a.most = max(a.most, b.most);
    a.least = min(a.least ? a.least : 0x7f7fffffu, b.least ? b.least : 0x7f7fffffu);
    return a;
}
template <bool FULL, int R> DEV void step_rows(const scalars &s, const tensor &t, const span *at) {
    values<R> e;
    float m[R][VEC], v[R][VEC];
    extremes em[R], ev[R];
    scale sm[R], sv[R];
    read<FULL, R>(e, t, at);
#pragma unroll
    for (int r = 0; r < R; r++) {
        e.m[r].decode(m[r], t.m);
        e.v[r].decode(v[r], t.v);
#pragma unroll
        for (int j = 0; j < VEC; j++) update(s, e.g[r][j], e.w[r][j], m[r][j], v[r][j]);
        give<FULL>(t.w_out, e.w[r], at[r]);
        if (M_FORM) em[r] = measure(m[r]);
        if (V_FORM) ev[r] = measure(v[r]);
    }
    if (GROUP > ROW) { /* both rows are one group */
        if (M_FORM) em[0] = em[R - 1] = join(em[0], em[R - 1]);
        if (V_FORM) ev[0] = ev[R - 1] = join(ev[0], ev[R - 1]);
    }
    all_scales<R>(sm, sv, em, ev, t.m, t.v);
#pragma unroll
    for (int r = 0; r < R; r++) {
        const bool first = threadIdx.x % LANES == 0 && (GROUP <= ROW || r == 0);
        if constexpr (M_FORM != SMALL_F32)
            give_small<M_FORM, false, FULL>(t.m, m[r], em[r], sm[r], at[r], s.step, first);
        else
            give<FULL>((float *)t.m.codes_out, m[r], at[r]);
        if constexpr (V_FORM != SMALL_F32)
            give_small<V_FORM, true, FULL>(t.v, v[r], ev[r], sv[r], at[r], s.step, first);
        else
            give<FULL>((float *)t.v.codes_out, v[r], at[r]);
    }
}

#define WHOLE_ROWS (GROUP == ROW && M_FORM != SMALL_F32 && V_FORM != SMALL_F32)
#if GROUP == 128
#include "adam8_rows.cuh"
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) adam8(void *const *table) {
    __shared__ scalars s;
    __shared__ tensor t; /* here, for registers are few */
    const int k = tensor_of((int)blockIdx.x);
    const i64 n = elements[k], end_of_chunk = (i64)((int)blockIdx.x - first_block[k] + 1) * CHUNK;
    const i64 end = end_of_chunk < n ? end_of_chunk : n;
    i64 from = end_of_chunk - CHUNK;
    const bool aligned = forms[k] < NOT_ALIGNED;
    if (threadIdx.x == 32)
        t = {(const float *)table[k * EACH],
             table[k * EACH + 1],
             (float *)table[RESULTS + k * KEPT],
             place_of(table, k, 0),
             place_of(table, k, 1),
             forms[k] % NOT_ALIGNED};
    begin(&s, table);
    const int lane = threadIdx.x % 32, warp = __shfl_sync(FULL_WARP, threadIdx.x / 32, 0);
    __syncthreads();
#if GROUP == 128
    if constexpr (WHOLE_ROWS) {
        __shared__ table_rows slots[WARPS];
        if (aligned) {
            if (HAS(FORM_BF16) && t.type == FORM_BF16)
                step_whole_rows<bf16>(s, t, slots[warp], from, warp * ROWS * ROW,
                                      (u32)(end - from));
            else if (HAS(FORM_F16) && t.type == FORM_F16)
                step_whole_rows<f16>(s, t, slots[warp], from, warp * ROWS * ROW, (u32)(end - from));
            else
                step_whole_rows<float>(s, t, slots[warp], from, warp * ROWS * ROW,
                                       (u32)(end - from));
            from += (end - from) / (ROWS * ROW) * ROWS * ROW;
        }
    }
#endif
    for (i64 row = from + warp * ROWS * ROW; row < end; row += THREADS / 32 * ROWS * ROW) {
        span at[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            at[r].at = row + r * ROW + lane * VEC;
            at[r].n = end - at[r].at < VEC ? (int)(end - at[r].at) : VEC;
        }
        if (aligned && row + ROWS * ROW <= end) {
            step_rows<true, ROWS>(s, t, at);
        } else if constexpr (GROUP > ROW) {
            step_rows<false, ROWS>(s, t, at);
        } else {
#pragma unroll 1
            for (int r = 0; r < ROWS; r++) {
                step_rows<false, 1>(s, t, at);
                at[0] = at[1];
            }
        }
    }
}
