// SPDX-License-Identifier: Apache-2.0
/* prelude.cuh - what every kernel file starts with: element types of memory and their conversions,
 * the elementwise functions of ops.def, reductions of warps and blocks, random numbers. Needs no
 * header of a toolkit, so that it compiles where only the run-time compiler is installed. */
#pragma once

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

#define DEV        __device__ __forceinline__
#define F32_INF    __int_as_float(0x7f800000)
#define F64_INF    __longlong_as_double(0x7ff0000000000000ll)
#define I64_MIN    (-9223372036854775807ll - 1)
#define I64_MAX    9223372036854775807ll
#define FULL_WARP  0xffffffffu

/* ---- memory types ------------------------------------------------------------------------------
 * Registers are float, double, i64 or bool. Types that are no C++ type of their own are bits. */
struct f16 {
    unsigned short u;
};
struct bf16 {
    unsigned short u;
};
struct e4m3 {
    unsigned char u;
};
struct e5m2 {
    unsigned char u;
};
struct e8m0 {
    unsigned char u;
};
struct alignas(16) word16 { /* moved, never computed with */
    u64 a, b;
};
struct boolean {
    unsigned char u;
};

DEV float to_reg(float x) { return x; }
DEV double to_reg(double x) { return x; }
DEV i64 to_reg(i64 x) { return x; }
DEV i64 to_reg(int x) { return x; }
DEV i64 to_reg(short x) { return x; }
DEV i64 to_reg(signed char x) { return x; }
DEV i64 to_reg(unsigned char x) { return x; }
DEV bool to_reg(boolean x) { return x.u != 0; }
DEV float to_reg(bf16 x) { return __uint_as_float((u32)x.u << 16); }
DEV float to_reg(f16 x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.u));
    return r;
}
/* Sign, EXP bits of exponent, MAN bits of mantissa; no infinities when FINITE. */
template <int EXP, int MAN, bool FINITE> DEV float small_to_float(u32 u) {
    const int bias = (1 << (EXP - 1)) - 1;
    u32 sign = u >> 7 << 31, e = u >> MAN & ((1u << EXP) - 1u), m = u & ((1u << MAN) - 1u);
    if (FINITE ? (u & 0x7fu) == 0x7fu : e == (1u << EXP) - 1u)
        return __uint_as_float(sign | (FINITE || m ? 0x7fc00000u : 0x7f800000u));
    if (e == 0) {
        float x = (float)m * __uint_as_float((u32)(127 - bias + 1 - MAN) << 23);
        return sign ? -x : x;
    }
    return __uint_as_float(sign | (e + 127u - bias) << 23 | m << (23 - MAN));
}
DEV float to_reg(e4m3 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 two;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"((unsigned short)x.u));
    return to_reg(f16{(unsigned short)two});
#else
    return small_to_float<4, 3, true>(x.u);
#endif
}
DEV float to_reg(e5m2 x) { return to_reg(f16{(unsigned short)(x.u << 8)}); } /* its upper byte */
DEV float to_reg(e8m0 x) {
    if (x.u == 0xffu) return __uint_as_float(0x7fc00000u);
    return x.u ? __uint_as_float((u32)x.u << 23) : __uint_as_float(0x00400000u);
}

/* Nearest, ties to even; what is too large becomes the largest finite value, NaN becomes 0x7f. */
template <int EXP, int MAN, bool FINITE> DEV unsigned char small_from_float(float x) {
    const int bias = (1 << (EXP - 1)) - 1;
    u32 u = __float_as_uint(x), sign = u >> 31 << 7, a = u & 0x7fffffffu;
    u32 top = FINITE ? 0x7eu : (((1u << EXP) - 1u) << MAN) - 1u;
    if (a > 0x7f800000u) return 0x7fu;
    int e = (int)(a >> 23) - 127;
    if (e < 1 - bias) { /* subnormal: units of 2^(1-bias-MAN); the sum rounds */
        float unit = __uint_as_float((u32)(127 - bias + 1 - MAN + 23) << 23);
        u32 n = __float_as_uint(__uint_as_float(a) + unit) - __float_as_uint(unit);
        return (unsigned char)(sign | n);
    }
    u32 half = (1u << (22 - MAN)) - 1u + (a >> (23 - MAN) & 1u);
    u32 r = ((a + half) >> (23 - MAN)) - ((u32)(127 - bias) << MAN);
    return (unsigned char)(sign | (r > top ? top : r));
}

template <class M> struct store_as;
#define STORE_AS(M, R, expr)                                                                       \
    template <> struct store_as<M> {                                                               \
        DEV_MEMBER M from(R x) { return expr; }                                                    \
    };
#define DEV_MEMBER static __device__ __forceinline__
DEV bf16 make_bf16(float x) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.u) : "f"(x));
    return r;
}
DEV f16 make_f16(float x) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.u) : "f"(x));
    return r;
}
DEV e4m3 make_e4m3(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short two;
    float zero = 0.0f;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(zero), "f"(x));
    return e4m3{(unsigned char)two};
#else
    return e4m3{small_from_float<4, 3, true>(x)};
#endif
}
DEV e5m2 make_e5m2(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    unsigned short two;
    float zero = 0.0f;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(zero), "f"(x));
    return e5m2{(unsigned char)two};
#else
    return e5m2{small_from_float<5, 2, false>(x)};
#endif
}
/* Powers of two: ties go up, what is below the range gives its smallest value, negative ones NaN. */
DEV e8m0 make_e8m0(float x) {
    u32 a = __float_as_uint(x) & 0x7fffffffu;
    if (x != x || x < 0.0f) return e8m0{0xffu};
    if (a < 0x00600000u) return e8m0{0}; /* nearer to 2^-127 than to 2^-126 */
    u32 e = (a + 0x00400000u) >> 23;
    return e8m0{(unsigned char)(e > 254u ? 254u : e < 1u ? 1u : e)};
}
STORE_AS(float, float, x)
STORE_AS(double, double, x)
STORE_AS(i64, i64, x)
STORE_AS(int, i64, (int)(u32)(u64)x)
STORE_AS(short, i64, (short)(unsigned short)(u64)x)
STORE_AS(signed char, i64, (signed char)(unsigned char)(u64)x)
STORE_AS(unsigned char, i64, (unsigned char)(u64)x)
STORE_AS(boolean, bool, (boolean{(unsigned char)(x ? 1 : 0)}))
STORE_AS(bf16, float, make_bf16(x))
STORE_AS(f16, float, make_f16(x))
STORE_AS(e4m3, float, make_e4m3(x))
STORE_AS(e5m2, float, make_e5m2(x))
STORE_AS(e8m0, float, make_e8m0(x))

/* N elements in pieces of at most 16 bytes; `p` is aligned to the smaller of 16 and N elements. */
template <class M, int N> struct alignas(sizeof(M) * N) pack {
    M at[N];
};
template <class M, int N> struct packs { /* as they lie in memory */
    static constexpr int n = sizeof(M) * N > 16 ? 16 / (int)sizeof(M) : N;
    pack<M, n> at[N / n];
};
template <class M, int N> DEV void fetch_pack(packs<M, N> &x, const M *p) {
    constexpr int n = packs<M, N>::n;
#pragma unroll
    for (int k = 0; k < N / n; k++) x.at[k] = *reinterpret_cast<const pack<M, n> *>(p + k * n);
}
template <class M, int N, class R> DEV void unpack(R *v, const packs<M, N> &x) {
    constexpr int n = packs<M, N>::n;
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = to_reg(x.at[k / n].at[k % n]);
}
template <int N> DEV void unpack(float *v, const packs<bf16, N> &x) { /* two a word */
    if constexpr (N % 2)
        v[0] = to_reg(x.at[0].at[0]);
    else
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            const u32 two = reinterpret_cast<const u32 *>(&x)[k];
            v[2 * k] = __uint_as_float(two << 16);
            v[2 * k + 1] = __uint_as_float(two & 0xffff0000u);
        }
}
template <int N, class M, class R> DEV void load_pack(R *v, const M *p) {
    packs<M, N> x;
    fetch_pack<M, N>(x, p);
    unpack(v, x);
}
template <class M, int N, class R> DEV void put_pack(pack<M, N> &x, const R *v) {
#pragma unroll
    for (int j = 0; j < N; j++) x.at[j] = store_as<M>::from(v[j]);
}
/* Two bytes at once where there are instructions for it. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define PAIR8(M, name)                                                                             \
    DEV unsigned short two_##name(float low, float high) {                                         \
        unsigned short two;                                                                        \
        asm("cvt.rn.satfinite." #name "x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));     \
        return two;                                                                                \
    }                                                                                              \
    DEV void both_##name(float *v, unsigned short two) {                                           \
        u32 halves;                                                                                \
        asm("cvt.rn.f16x2." #name "x2 %0, %1;" : "=r"(halves) : "h"(two));                         \
        v[0] = to_reg(f16{(unsigned short)halves});                                                \
        v[1] = to_reg(f16{(unsigned short)(halves >> 16)});                                        \
    }
#else
#define PAIR8(M, name)                                                                             \
    DEV unsigned short two_##name(float low, float high) {                                         \
        return (unsigned short)(make_##name(low).u | make_##name(high).u << 8);                    \
    }                                                                                              \
    DEV void both_##name(float *v, unsigned short two) {                                           \
        v[0] = to_reg(M{(unsigned char)two});                                                      \
        v[1] = to_reg(M{(unsigned char)(two >> 8)});                                               \
    }
#endif
#define PACK8(M, name)                                                                             \
    PAIR8(M, name)                                                                                 \
    template <int N> DEV void put_pack(pack<M, N> &x, const float *v) {                            \
        if constexpr (N % 2)                                                                       \
            x.at[0] = make_##name(v[0]);                                                           \
        else                                                                                       \
            _Pragma("unroll") for (int k = 0; k < N / 2; k++)                                      \
                reinterpret_cast<unsigned short *>(&x)[k] = two_##name(v[2 * k], v[2 * k + 1]);    \
    }                                                                                              \
    template <int N> DEV void unpack(float *v, const packs<M, N> &x) {                             \
        if constexpr (N % 2)                                                                       \
            v[0] = to_reg(x.at[0].at[0]);                                                          \
        else                                                                                       \
            _Pragma("unroll") for (int k = 0; k < N / 2; k++)                                      \
                both_##name(v + 2 * k, reinterpret_cast<const unsigned short *>(&x)[k]);           \
    }
PACK8(e4m3, e4m3)
PACK8(e5m2, e5m2)
/* N elements as they lie in memory, in registers for a while: as words, which have to be taken apart
 * once only, when elements are needed. */
template <class M, int N> struct words {
    static constexpr int n = sizeof(M) * N / 4;
    u32 at[n];
};
template <class M, int N, bool WHOLE = sizeof(M) * N % 4 == 0> struct held_as {
    typedef words<M, N> type;
};
template <class M, int N> struct held_as<M, N, false> {
    typedef packs<M, N> type;
};
template <class M, int N> using held = typename held_as<M, N>::type;
template <class M, int N> DEV void fetch_pack(words<M, N> &x, const M *p) {
    constexpr int n = words<M, N>::n, piece = n < 4 ? n : 4;
    typedef pack<u32, piece> line;
#pragma unroll
    for (int k = 0; k < n / piece; k++) {
        const line y = ((const line *)p)[k];
#pragma unroll
        for (int j = 0; j < piece; j++) x.at[k * piece + j] = y.at[j];
    }
}
template <class M, int N, class R> DEV void unpack(R *v, const words<M, N> &x) {
    unpack(v, reinterpret_cast<const packs<M, N> &>(x));
}
template <int N> DEV void unpack(float *v, const words<float, N> &x) {
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = __uint_as_float(x.at[k]);
}
template <int N> DEV void unpack(float *v, const words<bf16, N> &x) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        v[2 * k] = __uint_as_float(x.at[k] << 16);
        v[2 * k + 1] = __uint_as_float(x.at[k] & 0xffff0000u);
    }
}
template <int N> DEV void unpack(float *v, const words<e4m3, N> &x) {
#pragma unroll
    for (int k = 0; k < N / 2; k++)
        both_e4m3(v + 2 * k, (unsigned short)(x.at[k / 2] >> k % 2 * 16));
}
template <int N> DEV void unpack(float *v, const words<e5m2, N> &x) {
#pragma unroll
    for (int k = 0; k < N / 2; k++)
        both_e5m2(v + 2 * k, (unsigned short)(x.at[k / 2] >> k % 2 * 16));
}
DEV u32 two_bf16(float low, float high) {
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
template <int N> DEV void put_pack(pack<bf16, N> &x, const float *v) {
    if constexpr (N % 2)
        x.at[0] = make_bf16(v[0]);
    else
#pragma unroll
        for (int k = 0; k < N / 2; k++)
            reinterpret_cast<u32 *>(&x)[k] = two_bf16(v[2 * k], v[2 * k + 1]);
}
/* The other way: N values as they will lie in memory. */
template <class M, int N, class R> DEV void hold(packs<M, N> &x, const R *v) {
    constexpr int n = packs<M, N>::n;
#pragma unroll
    for (int k = 0; k < N / n; k++) put_pack(x.at[k], v + k * n);
}
template <class M, int N, class R> DEV void hold(words<M, N> &x, const R *v) {
    hold(reinterpret_cast<packs<M, N> &>(x), v);
}
template <int N> DEV void hold(words<float, N> &x, const float *v) {
#pragma unroll
    for (int k = 0; k < N; k++) x.at[k] = __float_as_uint(v[k]);
}
template <int N> DEV void hold(words<bf16, N> &x, const float *v) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) x.at[k] = two_bf16(v[2 * k], v[2 * k + 1]);
}
template <int N> DEV void hold(words<e4m3, N> &x, const float *v) {
#pragma unroll
    for (int k = 0; k < N; k += 4)
        x.at[k / 4] = (u32)two_e4m3(v[k], v[k + 1]) | (u32)two_e4m3(v[k + 2], v[k + 3]) << 16;
}
template <int N> DEV void hold(words<e5m2, N> &x, const float *v) {
#pragma unroll
    for (int k = 0; k < N; k += 4)
        x.at[k / 4] = (u32)two_e5m2(v[k], v[k + 1]) | (u32)two_e5m2(v[k + 2], v[k + 3]) << 16;
}
template <class M, int N> DEV void store_held(M *p, const packs<M, N> &x) {
    constexpr int n = packs<M, N>::n;
#pragma unroll
    for (int k = 0; k < N / n; k++) *reinterpret_cast<pack<M, n> *>(p + k * n) = x.at[k];
}
template <class M, int N> DEV void store_held(M *p, const words<M, N> &x) {
    constexpr int n = words<M, N>::n, piece = n < 4 ? n : 4;
    typedef pack<u32, piece> line;
#pragma unroll
    for (int k = 0; k < n / piece; k++) {
        line y;
#pragma unroll
        for (int j = 0; j < piece; j++) y.at[j] = x.at[k * piece + j];
        ((line *)p)[k] = y;
    }
}
template <int N, class M, class R> DEV void store_pack(M *p, const R *v) {
    constexpr int n = packs<M, N>::n;
#pragma unroll
    for (int k = 0; k < N; k += n) {
        pack<M, n> x;
        put_pack(x, v + k);
        *reinterpret_cast<pack<M, n> *>(p + k) = x;
    }
}

/* The larger of each two, NaN if there is one. */
DEV u32 max_two(u32 x, u32 y) {
    u32 r = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
#endif
    return r;
}
template <int N> DEV u32 max_two(u32 most, const packs<bf16, N> &x) {
    const u32 *two = reinterpret_cast<const u32 *>(&x);
    u32 m = two[0];
#pragma unroll
    for (int k = 1; k < N / 2; k++) m = max_two(m, two[k]);
    return max_two(most, m);
}

/* ---- copies to shared memory that take their time ---------------------------------------------
 * Each thread waits for its own and reads no other's, so nobody else has to wait. */
template <int BYTES> DEV void copy_async(void *to, const void *from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "what cp.async moves");
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    const u32 address = (u32)__cvta_generic_to_shared(to);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from),
                     "n"(BYTES)
                     : "memory");
#endif
}
DEV void copies_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* All but the last N groups have arrived. */
template <int N> DEV void copies_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
template <int N, class M> DEV void row_fetch(char *to, const M *p) {
    constexpr int n = packs<M, N>::n, bytes = n * (int)sizeof(M);
#pragma unroll
    for (int k = 0; k < N / n; k++) copy_async<bytes>(to + k * bytes, p + k * n);
}
/* N elements of each of NTHREADS threads; pieces of a thread lie NTHREADS pieces apart. */
template <int N, int NTHREADS, class M> DEV void ring_fetch(char *to, const M *p) {
    constexpr int n = packs<M, N>::n, bytes = n * (int)sizeof(M);
#pragma unroll
    for (int k = 0; k < N / n; k++)
        copy_async<bytes>(to + (k * NTHREADS + threadIdx.x) * bytes, p + k * n);
}
template <class M, int N, int NTHREADS> DEV packs<M, N> ring_packs(const char *from) {
    constexpr int n = packs<M, N>::n, bytes = n * (int)sizeof(M);
    packs<M, N> x;
#pragma unroll
    for (int k = 0; k < N / n; k++)
        x.at[k] = *(const pack<M, n> *)(from + (k * NTHREADS + threadIdx.x) * bytes);
    return x;
}
/* Elements too small for cp.async come with what lies beside them in 4 bytes. */
template <class M> DEV const void *word_of(const M *p) {
    return sizeof(M) < 4 ? (const void *)((u64)p & ~3ull) : p;
}
template <class M> DEV M in_word(const char *word, const M *p) {
    return ((const M *)word)[sizeof(M) < 4 ? ((u64)p & 3) / sizeof(M) : 0];
}
template <class M, int N, int NTHREADS, class R> DEV void ring_unpack(R *v, const char *from) {
    unpack(v, ring_packs<M, N, NTHREADS>(from));
}

/* ---- register to register ----------------------------------------------------------------------
 * Floats to integers truncate and saturate, NaN gives 0; anything to bool is != 0. */
template <class T> DEV float to_f32(T x) { return (float)x; }
template <class T> DEV double to_f64(T x) { return (double)x; }
template <class T> DEV bool to_bool(T x) { return x != (T)0; }
DEV i64 to_i64(i64 x) { return x; }
DEV i64 to_i64(bool x) { return x ? 1 : 0; }
DEV i64 to_i64(double x) {
    if (x >= 9223372036854775808.0) return I64_MAX;
    if (x <= -9223372036854775808.0) return I64_MIN;
    return x != x ? 0 : (i64)x;
}
DEV i64 to_i64(float x) { return to_i64((double)x); }
/* What is left of a value that is kept in memory type M. */
template <class M, class R> DEV R narrow(R x) { return to_reg(store_as<M>::from(x)); }
/* The same of N; one conversion of two is many times faster than two. */
template <int N> DEV void narrow_bf16(float *y, const float *x) {
#pragma unroll
    for (int k = 0; k + 1 < N; k += 2) {
        const u32 two = two_bf16(x[k], x[k + 1]);
        y[k] = __uint_as_float(two << 16);
        y[k + 1] = __uint_as_float(two & 0xffff0000u);
    }
    if (N % 2) y[N - 1] = narrow<bf16>(x[N - 1]);
}

/* The same for codes. */
#define NARROW8(name)                                                                              \
    template <int N> DEV void narrow_##name(float *y, const float *x) {                            \
        _Pragma("unroll") for (int k = 0; k + 1 < N; k += 2)                                       \
            both_##name(y + k, two_##name(x[k], x[k + 1]));                                        \
        if (N % 2) y[N - 1] = narrow<name>(x[N - 1]);                                              \
    }
NARROW8(e4m3)
NARROW8(e5m2)

/* ---- elementwise functions ---------------------------------------------------------------------
 * The column `emit` of ops.def names these. FAST_MATH: every result is rounded to 16 bits or fewer,
 * so that the units for special functions (about 2^-22) are exact enough. */
DEV float fast_exp2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float fast_recip(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float fast_sigmoid(float x) { return fast_recip(1.0f + fast_exp2(-1.4426950408889634f * x)); }
/* The quotient cancels near 0, where two terms of the series are enough. */
DEV float fast_tanh(float x) {
    float far = 1.0f - 2.0f * fast_recip(1.0f + fast_exp2(2.8853900817779268f * x));
    return fabsf(x) < 0.04f ? x - x * x * x * 0.33333333f : far;
}
#ifdef FAST_MATH
#define IF_FAST(fast, exact) fast
#else
#define IF_FAST(fast, exact) exact
#endif
#define FLOAT1(name, e32, e64)                                                                     \
    DEV float name(float x) { return e32; }                                                        \
    DEV double name(double x) { return e64; }
FLOAT1(op_abs, fabsf(x), fabs(x))
FLOAT1(op_sign, x != x ? x : (float)((x > 0) - (x < 0)), x != x ? x : (double)((x > 0) - (x < 0)))
FLOAT1(op_floor, floorf(x), floor(x))
FLOAT1(op_ceil, ceilf(x), ceil(x))
FLOAT1(op_round, rintf(x), rint(x))
FLOAT1(op_exp, IF_FAST(fast_exp2(1.4426950408889634f * x), expf(x)), exp(x))
FLOAT1(op_log, logf(x), log(x))
FLOAT1(op_log1p, log1pf(x), log1p(x))
FLOAT1(op_expm1, expm1f(x), expm1(x))
FLOAT1(op_sqrt, sqrtf(x), sqrt(x))
FLOAT1(op_rsqrt, rsqrtf(x), 1.0 / sqrt(x))
FLOAT1(op_recip, IF_FAST(fast_recip(x), 1.0f / x), 1.0 / x)
FLOAT1(op_sin, sinf(x), sin(x))
FLOAT1(op_cos, cosf(x), cos(x))
FLOAT1(op_tan, tanf(x), tan(x))
FLOAT1(op_asin, asinf(x), asin(x))
FLOAT1(op_acos, acosf(x), acos(x))
FLOAT1(op_atan, atanf(x), atan(x))
FLOAT1(op_sinh, sinhf(x), sinh(x))
FLOAT1(op_cosh, coshf(x), cosh(x))
FLOAT1(op_tanh, IF_FAST(fast_tanh(x), tanhf(x)), tanh(x))
FLOAT1(op_erf, erff(x), erf(x))
FLOAT1(op_sigmoid, IF_FAST(fast_sigmoid(x), 1.0f / (1.0f + expf(-x))), 1.0 / (1.0 + exp(-x)))
FLOAT1(op_relu, x <= 0.0f ? 0.0f : x, x <= 0.0 ? 0.0 : x)
FLOAT1(gelu_exact, 0.5f * x * erfcf(-x * 0.70710678118654752f),
       0.5 * x * erfc(-x * 0.70710678118654752))
/* 0.5 (1 + tanh(y)) is sigmoid(2 y), which does not cancel. */
FLOAT1(gelu_tanh,
       IF_FAST(x *fast_sigmoid(1.5957691216057308f * x * (1.0f + 0.044715f * x * x)),
               0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)))),
       0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))))
template <class T> DEV T op_gelu(T x, bool approximate) {
    return approximate ? gelu_tanh(x) : gelu_exact(x);
}
DEV bool op_isinf(float x) { return fabsf(x) == F32_INF; }
DEV bool op_isinf(double x) { return fabs(x) == F64_INF; }
DEV bool op_isinf(i64) { return false; }
DEV i64 op_abs(i64 x) { return x < 0 ? (i64)(0 - (u64)x) : x; }
DEV i64 op_sign(i64 x) { return (x > 0) - (x < 0); }
DEV i64 op_floor(i64 x) { return x; }
DEV i64 op_ceil(i64 x) { return x; }
DEV i64 op_round(i64 x) { return x; }
DEV i64 op_relu(i64 x) { return x > 0 ? x : 0; }

/* A number that is compared with numbers below 2^24: of 32 bits, equal to none of them by mistake. */
DEV u32 index32(i64 x) { return (u64)x < 0xffffffffull ? (u32)x : 0xffffffffu; }

/* Division of integers truncates; by zero it gives 0. */
#ifdef EXACT_DIV /* quotients become codes that have to be the CPU's */
DEV float op_div(float x, float y) { return x / y; }
/* x / y for many x, correctly rounded, from the correctly rounded 1 / y (P. Markstein, IBM Journal of
 * Research and Development 34(1), 1990, theorem 8.2); quotients of |x| below 2^-100 may be off by a
 * unit. 0: y is too small or too large for that. */
DEV float op_inverse(float y) {
    const u32 place = (__float_as_uint(y) >> 23 & 0xffu) - 63u; /* 2^-64 <= |y| < 2^65 */
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    r = fmaf(fmaf(-y, r, 1.0f), r, r); /* as 1 / y does in that range */
    return place < 129u ? r : 0.0f;
}
/* The sign of zeros comes out right as well. */
DEV float markstein(float x, float y, float inverse, float q) {
    return fmaf(-fmaf(q, y, -x), inverse, q);
}
/* N quotients. HOW: ONE_BY_ONE in as few registers as possible, TOGETHER in fewer instructions: what
 * overflows stays infinite; BOUNDED: nothing overflows. */
enum quotient_how { ONE_BY_ONE, TOGETHER, BOUNDED };
template <int N, quotient_how HOW>
DEV void quotients(float *to, const float *x, float y, float inverse) {
    if constexpr (HOW != TOGETHER) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float q = x[k] * inverse, exact = markstein(x[k], y, inverse, q);
            to[k] = HOW == BOUNDED || fabsf(q) < F32_INF ? exact : q;
        }
        return;
    }
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) {
        to[k] = x[k] * inverse;
        most = fmaxf(most, fabsf(to[k]));
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        if (most < F32_INF || fabsf(to[k]) != F32_INF) to[k] = markstein(x[k], y, inverse, to[k]);
}
/* By a number from 1 to 2^64, whose inverse is known. */
DEV float op_div_number(float x, float y, float inverse) {
    const float a = fabsf(x);
    if (a >= 7.888609052210118e-31f && a < F32_INF) return markstein(x, y, inverse, x * inverse);
    return x / y;
}
#else
DEV float op_div(float x, float y) { return IF_FAST(__fdividef(x, y), x / y); }
#endif
DEV double op_div(double x, double y) { return x / y; }
DEV i64 op_div(i64 x, i64 y) {
    if (y == 0) return 0;
    return y == -1 ? (i64)(0 - (u64)x) : x / y;
}
DEV i64 remainder_of(i64 x, i64 y) { return y == 0 || y == -1 ? 0 : x % y; }
DEV float remainder_of(float x, float y) { return fmodf(x, y); }
DEV double remainder_of(double x, double y) { return fmod(x, y); }
template <class T> DEV T op_mod(T x, T y, bool trunc) {
    T r = remainder_of(x, y);
    return !trunc && r != (T)0 && (r < (T)0) != (y < (T)0) ? r + y : r;
}
DEV float op_pow(float x, float y) { return powf(x, y); }
DEV double op_pow(double x, double y) { return pow(x, y); }
DEV i64 op_pow(i64 x, i64 y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    u64 r = 1, base = (u64)x;
    for (u64 e = (u64)y; e; e >>= 1, base *= base)
        if (e & 1) r *= base;
    return (i64)r;
}
/* NaN wins. */
template <class T> DEV T op_max(T x, T y) { return x > y || x != x ? x : y; }
template <class T> DEV T op_min(T x, T y) { return x < y || x != x ? x : y; }
DEV float op_max(float x, float y) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    return r;
}
DEV float op_min(float x, float y) {
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    return r;
}
/* tanh(x), and s = 0.5 (1 + tanh(x)) which does not cancel; NEAR: exact near 0, too. */
template <bool NEAR> DEV float tanh_sigmoid(float x, float &s) {
    float e = fast_exp2(op_min(2.8853900817779268f * x, 100.0f)), r = fast_recip(1.0f + e);
    s = e * r;
    float far = 1.0f - 2.0f * r;
    return NEAR && fabsf(x) < 0.04f ? x - x * x * x * 0.33333333f : far;
}
template <class T> DEV T op_clip(T x, T low, T high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* ---- reductions --------------------------------------------------------------------------------
 * Identities first: an operand never changes by them. */
struct sum_of {
    template <class T> DEV_MEMBER T join(T x, T y) { return x + y; }
    DEV_MEMBER i64 join(i64 x, i64 y) { return (i64)((u64)x + (u64)y); }
    template <class T> DEV_MEMBER T none() { return (T)0; }
};
struct prod_of {
    template <class T> DEV_MEMBER T join(T x, T y) { return x * y; }
    DEV_MEMBER i64 join(i64 x, i64 y) { return (i64)((u64)x * (u64)y); }
    template <class T> DEV_MEMBER T none() { return (T)1; }
};
template <class T> DEV T largest();
template <> DEV float largest<float>() { return F32_INF; }
template <> DEV double largest<double>() { return F64_INF; }
template <> DEV i64 largest<i64>() { return I64_MAX; }
template <class T> DEV T smallest() { return -largest<T>(); }
template <> DEV i64 smallest<i64>() { return I64_MIN; }
struct max_of {
    template <class T> DEV_MEMBER T join(T x, T y) { return op_max(y, x); }
    template <class T> DEV_MEMBER T none() { return smallest<T>(); }
};
struct min_of {
    template <class T> DEV_MEMBER T join(T x, T y) { return op_min(y, x); }
    template <class T> DEV_MEMBER T none() { return largest<T>(); }
};

/* The lanes of a thread's group of L neighbours; other groups of the warp may be elsewhere, unless
 * the kernel is known to keep all WHOLE_WARPS together: masks that are no constants are slow. */
template <int L> DEV u32 lanes_mask() {
#ifdef WHOLE_WARPS
    return FULL_WARP;
#endif
    if constexpr (L >= 32)
        return FULL_WARP;
    else
        return ((1u << L) - 1u) << (threadIdx.x % 32 / L * L);
}
/* Over groups of L neighbouring lanes, L a power of two up to 32; every lane gets the result. */
template <class OP, int L, class T> DEV T lanes_reduce(T x) {
#pragma unroll
    for (int w = L / 2; w > 0; w /= 2) x = OP::join(x, __shfl_xor_sync(lanes_mask<L>(), x, w));
    return x;
}
/* What the warps of a row left, the same for every lane. */
template <class OP, int WARPS_OF_ROW, class T> DEV T warps_join(const T *part) {
    if constexpr (WARPS_OF_ROW <= 8) {
        T x = part[0];
#pragma unroll
        for (int w = 1; w < WARPS_OF_ROW; w++) x = OP::join(x, part[w]);
        return x;
    } else {
        constexpr int width = WARPS_OF_ROW > 16 ? 32 : 16;
        const int lane = threadIdx.x % width;
        return lanes_reduce<OP, width>(lane < WARPS_OF_ROW ? part[lane] : OP::template none<T>());
    }
}
/* Over L threads of a row: neighbouring lanes, or the whole block of L threads. The order is that of
 * a fixed tree, whatever happens when. SITE tells the reductions of a kernel apart; `phase` is 0 and
 * 1 in turn when one comes again, so that its last result has been read by all before the next but
 * one is written. */
template <class OP, int L, int SITE, class T> DEV T row_reduce(T x, int phase) {
    if constexpr (L <= 32) {
        return lanes_reduce<OP, L>(x);
    } else {
        alignas(16) __shared__ T part[2][32];
        x = lanes_reduce<OP, 32>(x);
        if (threadIdx.x % 32 == 0) part[phase][threadIdx.x / 32] = x;
        __syncthreads();
        return warps_join<OP, L / 32>(part[phase]);
    }
}
/* The L threads of a row, one of W in the block. */
template <int L, int W> DEV void row_sync() {
    if constexpr (L <= 32)
        __syncwarp(lanes_mask<L>());
    else if constexpr (W == 1)
        __syncthreads();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / L), "n"(L) : "memory");
}
/* Several at once, of one type: lanes exchange them side by side, their threads meet once. */
template <int L, int W, int SITE, class T, class... OPS> DEV void rows_reduce(T *x, int phase) {
    int j = 0;
    if constexpr (L <= 32) {
        ((x[j] = lanes_reduce<OPS, L>(x[j]), j++), ...);
    } else {
        constexpr int n = sizeof...(OPS), warps = L / 32, room = W > 1 ? (warps + 3) / 4 * 4 : 32;
        alignas(16) __shared__ T parts[2][W][n][room];
        const int worker = W > 1 ? threadIdx.x / L : 0;
        auto &part = parts[phase][worker];
        ((x[j] = lanes_reduce<OPS, 32>(x[j]), j++), ...);
        if (threadIdx.x % 32 == 0)
#pragma unroll
            for (int k = 0; k < n; k++) part[k][(threadIdx.x - worker * L) / 32] = x[k];
        row_sync<L, W>();
        j = 0;
        ((x[j] = warps_join<OPS, warps>(part[j]), j++), ...);
    }
}
/* The sum of n numbers that lie `stride` apart, by NSLICES threads threadIdx.x, threadIdx.x + 32, ..;
 * the first of them gets it. Slices and their order are fixed. */
template <class OP, int NSLICES, class A, class T>
DEV A slices_join(const T *p, i64 stride, int n, bool valid) {
    __shared__ A part[NSLICES][32];
    const int slice = threadIdx.x / 32, lane = threadIdx.x % 32;
    A sum = OP::template none<A>();
    if (valid)
#pragma unroll 16
        for (int k = slice; k < n; k += NSLICES) sum = OP::join(sum, (A)p[k * stride]);
    __syncthreads(); /* an earlier sum has been read */
    part[slice][lane] = sum;
    __syncthreads();
    if (slice == 0)
        for (int k = 1; k < NSLICES; k++) sum = OP::join(sum, part[k][lane]);
    return sum;
}
/* One register of all warps of a block; the first warp gets the result. */
template <class OP, int NWARPS, int N, class T> DEV void warps_join_columns(T *x) {
    __shared__ T part[NWARPS][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N; k++) {
        __syncthreads();
        part[warp][lane] = x[k];
        __syncthreads();
        if (warp == 0)
#pragma unroll
            for (int w = 1; w < NWARPS; w++) x[k] = OP::join(x[k], part[w][lane]);
    }
}

/* ---- random numbers ----------------------------------------------------------------------------
 * Word 0 of Philox4x32-10 for counter (index, stream); J. Salmon et al., "Parallel random numbers:
 * as easy as 1, 2, 3", 2011. */
DEV u32 philox(u64 index, u64 stream, u64 key) {
    u32 c0 = (u32)index, c1 = (u32)(index >> 32), c2 = (u32)stream, c3 = (u32)(stream >> 32);
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}
DEV float random_f32(u64 index, u64 stream, i64 key) {
    return (float)(philox(index, stream, (u64)key) >> 8) * 5.9604644775390625e-8f;
}
DEV double random_f64(u64 index, u64 stream, i64 key) {
    return (double)(philox(index, stream, (u64)key) >> 8) * 5.9604644775390625e-8;
}

/* ---- faults ------------------------------------------------------------------------------------
 * The lowest position of a bad index, and the index as far as 24 bits hold it. */
DEV void report_index(u64 *error, i64 position, i64 value) {
    const i64 bound = 1 << 23;
    i64 v = value < -bound ? -bound : value > bound - 1 ? bound - 1 : value;
    atomicMin(error, (u64)position << 24 | (u64)(v + bound));
}
/* [-n, n) to [0, n), else -1. */
DEV i64 wrap_index(i64 i, i64 n) {
    return i < -n || i >= n ? -1 : i < 0 ? i + n : i;
}
