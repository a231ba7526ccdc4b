// SPDX-License-Identifier: Apache-2.0
/* attention.cu - scaled dot-product attention and its gradient for any shape with heads of up to 256
 * elements; scores are never stored. q [B,H,T,D], k [B,KV,S,D], v [B,KV,S,EV], H = KV * SHARE. Views
 * have any strides but 1 in their last axis; lse [B,H,T] is dense. The mask is read where it lies,
 * with strides of 0 where it repeats. Operands and results lie in memory as MEM; everything is computed
 * in REAL.
 *
 * Blocks of 256 threads, 16 x 16, with tiles of TILE = 16*TM queries or keys, transposed in shared
 * memory. attention: a block has TILE queries of a head and walks the keys with a running softmax
 * (T. Dao et al., FlashAttention, 2022). Gradient (T. Dao, FlashAttention-2, 2023): attention_rows
 * adds g*y of each query, attention_dq walks the keys of TILE queries, attention_dkv the queries of
 * TILE keys, query heads in order: nothing is added by two blocks, so every run gives the same bits.
 * The workspace of the gradient holds REAL delta[B*H*T] and, for f64, the exact log sums behind it. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef TM /* causal, 2 x 4 heads of 64 */
#define TM       4
#define REAL     float
#define MEM      float
#define LSE      float
#define GRAD     0
#define B        2
#define H        4
#define SHARE    2
#define T        100
#define S        100
#define D        64
#define EV       64
#define SCALE    0.125
#define CAUSAL   1
#define MASK     0
#define Q_STRIDES 25600, 6400, 64
#define K_STRIDES 12800, 6400, 64
#define V_STRIDES 12800, 6400, 64
#define Y_STRIDES 25600, 6400, 64
#endif

#define PITCH (16 * TM + 4)
#define NT   (16 * TM)
#define KV   (H / SHARE)
#define DN   ((D + 15) / 16)
#define EN   ((EV + 15) / 16)
#define DP   (DN * 16)
#define EP   (EN * 16)
#define NONE (-largest<REAL>())
#if MASK == 2
#define MASK_PARAM const boolean *mask,
#define MASK_ARG   mask,
#elif MASK == 1
#define MASK_PARAM const MASK_TYPE *mask,
#define MASK_ARG   mask,
#else
#define MASK_PARAM
#define MASK_ARG
#endif

/* Where row `row` of a head begins. */
DEV i64 place(int b, int head, i64 row, i64 sb, i64 sh, i64 sr) {
    return b * sb + head * sh + row * sr;
}

/* The softmax's input from a product of q and k, and its slope by that product. */
DEV REAL score(MASK_PARAM int b, int h, int i, int j, REAL x, REAL &slope) {
    x *= (REAL)SCALE;
    slope = (REAL)SCALE;
#ifdef SOFTCAP
    const REAL t = op_tanh(x / (REAL)SOFTCAP);
    x = (REAL)SOFTCAP * t;
    slope *= 1 - t * t;
#endif
    if (i >= T || j >= S || (CAUSAL && j > i + S - T)) return NONE;
#if MASK == 2
    if (!to_reg(mask[b * MASK_B + h * MASK_H + i * MASK_T + j * MASK_S])) return NONE;
#elif MASK == 1
    x += (REAL)to_reg(mask[b * MASK_B + h * MASK_H + i * MASK_T + j * MASK_S]);
#endif
    return x;
}

/* Rows [first, first+TILE) of W columns into to[column][row]; zeros outside. */
template <int W, int PADDED>
DEV void load_tile(REAL *to, const MEM *from, i64 stride, int first, int rows) {
#pragma unroll 2 /* more takes registers that the products need */
    for (int e = threadIdx.x; e < NT * PADDED; e += 256) {
        const int row = e / PADDED, col = e % PADDED;
        to[col * PITCH + row] =
            first + row < rows && col < W ? to_reg(from[(first + row) * stride + col]) : (REAL)0;
    }
}

/* x[i][j] = sum over W of a[.][ty*TM+i] b[.][tx+16j] */
template <int W> DEV void product(REAL (&x)[TM][TM], const REAL *a, const REAL *b) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TM; j++) x[i][j] = 0;
#pragma unroll 4
    for (int d = 0; d < W; d++) {
        REAL u[TM], v[TM];
#pragma unroll
        for (int i = 0; i < TM; i++) {
            u[i] = a[d * PITCH + ty * TM + i];
            v[i] = b[d * PITCH + tx + 16 * i];
        }
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TM; j++) x[i][j] += u[i] * v[j];
    }
}

/* p[j][row]: x transposed. */
DEV void keep(REAL *p, const REAL (&x)[TM][TM]) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int j = 0; j < TM; j++)
#pragma unroll
        for (int i = 0; i < TM; i++) p[(tx + 16 * j) * PITCH + ty * TM + i] = x[i][j];
}

/* sum[i][c] += over the tile's j of p[j][ty*TM+i] b[tx+16c][j] */
template <int N> DEV void add_product(REAL (&sum)[TM][N], const REAL *p, const REAL *b) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll 2
    for (int j = 0; j < NT; j++) {
        REAL u[TM];
#pragma unroll
        for (int i = 0; i < TM; i++) u[i] = p[j * PITCH + ty * TM + i];
#pragma unroll
        for (int c = 0; c < N; c++) {
            const REAL v = b[(tx + 16 * c) * PITCH + j];
#pragma unroll
            for (int i = 0; i < TM; i++) sum[i][c] += u[i] * v;
        }
    }
}

template <int N, int W>
DEV void store_tile(MEM *to, i64 stride, int first, int rows, const REAL (&x)[TM][N]) {
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int c = 0; c < N; c++) {
            const int row = first + ty * TM + i, col = tx + 16 * c;
            if (row < rows && col < W) to[row * stride + col] = store_as<MEM>::from(x[i][c]);
        }
}

/* Keys that queries before `end` may see. */
DEV int visible(int end) {
    if (!CAUSAL) return S;
    const int n = (end < T ? end : T) + S - T;
    return n < 0 ? 0 : n < S ? n : S;
}
DEV i64 row_stride(i64, i64, i64 r) { return r; }
#define ROW_STRIDE(...) row_stride(__VA_ARGS__)
extern __shared__ __align__(16) char shared_memory[];

#if !GRAD
extern "C" __global__ void __launch_bounds__(256)
    attention(const MEM *q, const MEM *k, const MEM *v, MASK_PARAM MEM *y, LSE *lse, u64 *) {
    constexpr int WIDE = DP > EP ? DP : EP;
    REAL *qt = (REAL *)shared_memory, *kt = qt + DP * PITCH, *p = kt + WIDE * PITCH;
    const int head = blockIdx.x % (B * H), b = head / H, h = head % H;
    const int q0 = ((T + NT - 1) / NT - 1 - (int)(blockIdx.x / (B * H))) * NT;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    REAL top[TM], total[TM], out[TM][EN] = {};
#pragma unroll
    for (int i = 0; i < TM; i++) top[i] = NONE, total[i] = 0;
    load_tile<D, DP>(qt, q + place(b, h, 0, Q_STRIDES), ROW_STRIDE(Q_STRIDES), q0, T);
    const int keys = visible(q0 + NT);
    for (int k0 = 0; k0 < keys; k0 += NT) {
        __syncthreads();
        load_tile<D, DP>(kt, k + place(b, h / SHARE, 0, K_STRIDES), ROW_STRIDE(K_STRIDES), k0, S);
        __syncthreads();
        REAL x[TM][TM];
        product<D>(x, qt, kt);
#pragma unroll
        for (int i = 0; i < TM; i++) {
            REAL best = NONE, sum = 0, slope;
#pragma unroll
            for (int j = 0; j < TM; j++) {
                x[i][j] = score(MASK_ARG b, h, q0 + ty * TM + i, k0 + tx + 16 * j, x[i][j], slope);
                best = op_max(x[i][j], best);
            }
            best = op_max(lanes_reduce<max_of, 16>(best), top[i]);
            const REAL base = best == NONE ? (REAL)0 : best;
#pragma unroll
            for (int j = 0; j < TM; j++) {
                x[i][j] = op_exp(x[i][j] - base);
                sum += x[i][j];
            }
            const REAL shrink = op_exp(top[i] - base);
            total[i] = total[i] * shrink + lanes_reduce<sum_of, 16>(sum);
            top[i] = best;
#pragma unroll
            for (int c = 0; c < EN; c++) out[i][c] *= shrink;
        }
        __syncthreads();
        keep(p, x);
        load_tile<EV, EP>(kt, v + place(b, h / SHARE, 0, V_STRIDES), ROW_STRIDE(V_STRIDES), k0, S);
        __syncthreads();
        add_product<EN>(out, p, kt);
    }
#pragma unroll
    for (int i = 0; i < TM; i++) {
        const int row = q0 + ty * TM + i;
        const REAL scale = total[i] == 0 ? (REAL)0 : 1 / total[i];
#pragma unroll
        for (int c = 0; c < EN; c++) out[i][c] *= scale;
        if (tx == 0 && row < T)
            lse[(i64)head * T + row] = (LSE)(total[i] == 0 ? NONE : top[i] + op_log(total[i]));
    }
    store_tile<EN, EV>(y + place(b, h, 0, Y_STRIDES), ROW_STRIDE(Y_STRIDES), q0, T, out);
}

#else
#define GRAD_PARAMS                                                                                \
    const MEM *q, const MEM *k, const MEM *v, const MEM *y, const LSE *lse, const MEM *g,          \
        MASK_PARAM MEM *dq, MEM *dk, MEM *dv, char *workspace, u64 *
#if EXACT
#define LOG_SUM(row) (((const REAL *)workspace)[(i64)B * H * T + (row)])
#else
#define LOG_SUM(row) ((REAL)lse[row])
#endif

/* A warp a query: the sum of g*y, and the log sum anew where it was kept in less than REAL. */
extern "C" __global__ void __launch_bounds__(256) attention_rows(GRAD_PARAMS) {
    const i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= (i64)B * H * T) return;
    const int t = (int)(row % T), h = (int)(row / T % H), b = (int)(row / T / H);
    const MEM *gp = g + place(b, h, t, G_STRIDES), *yp = y + place(b, h, t, Y_STRIDES);
    double sum = 0;
    for (int c = lane; c < EV; c += 32) sum += (double)to_reg(gp[c]) * (double)to_reg(yp[c]);
    sum = lanes_reduce<sum_of, 32>(sum);
    if (lane == 0) ((REAL *)workspace)[row] = (REAL)sum;
#if EXACT
    const MEM *qp = q + place(b, h, t, Q_STRIDES), *kp = k + place(b, h / SHARE, 0, K_STRIDES);
    REAL top = NONE, total = 0, slope;
    for (int j = lane; j < S; j += 32) {
        REAL x = 0;
        for (int d = 0; d < D; d++) x += qp[d] * kp[j * ROW_STRIDE(K_STRIDES) + d];
        x = score(MASK_ARG b, h, t, j, x, slope);
        if (x == NONE) continue;
        const REAL best = op_max(x, top);
        total = total * op_exp(top - best) + op_exp(x - best);
        top = best;
    }
    const REAL best = lanes_reduce<max_of, 32>(top);
    total = lanes_reduce<sum_of, 32>(top == NONE ? (REAL)0 : total * op_exp(top - best));
    if (lane == 0)
        ((REAL *)workspace)[(i64)B * H * T + row] = best == NONE ? NONE : best + op_log(total);
#endif
}

/* exp(x - lse) */
DEV REAL weight(REAL x, REAL lse) { return x == NONE ? (REAL)0 : op_exp(x - lse); }

extern "C" __global__ void __launch_bounds__(256) attention_dq(GRAD_PARAMS) {
    REAL *qt = (REAL *)shared_memory, *gt = qt + DP * PITCH, *kt = gt + EP * PITCH;
    REAL *vt = kt + DP * PITCH, *p = vt + EP * PITCH;
    const int head = blockIdx.x % (B * H), b = head / H, h = head % H;
    const int q0 = ((T + NT - 1) / NT - 1 - (int)(blockIdx.x / (B * H))) * NT;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    REAL sum[TM][DN] = {}, log_sum[TM], delta[TM];
#pragma unroll
    for (int i = 0; i < TM; i++) {
        const int row = q0 + ty * TM + i;
        const i64 at = (i64)head * T + (row < T ? row : 0);
        log_sum[i] = LOG_SUM(at);
        delta[i] = ((const REAL *)workspace)[at];
    }
    load_tile<D, DP>(qt, q + place(b, h, 0, Q_STRIDES), ROW_STRIDE(Q_STRIDES), q0, T);
    load_tile<EV, EP>(gt, g + place(b, h, 0, G_STRIDES), ROW_STRIDE(G_STRIDES), q0, T);
    const int keys = visible(q0 + NT);
    for (int k0 = 0; k0 < keys; k0 += NT) {
        __syncthreads();
        load_tile<D, DP>(kt, k + place(b, h / SHARE, 0, K_STRIDES), ROW_STRIDE(K_STRIDES), k0, S);
        load_tile<EV, EP>(vt, v + place(b, h / SHARE, 0, V_STRIDES), ROW_STRIDE(V_STRIDES), k0, S);
        __syncthreads();
        REAL x[TM][TM], dp[TM][TM];
        product<D>(x, qt, kt);
        product<EV>(dp, gt, vt);
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TM; j++) {
                REAL slope;
                const REAL s =
                    score(MASK_ARG b, h, q0 + ty * TM + i, k0 + tx + 16 * j, x[i][j], slope);
                x[i][j] = weight(s, log_sum[i]) * (dp[i][j] - delta[i]) * slope;
            }
        keep(p, x);
        __syncthreads();
        add_product<DN>(sum, p, kt);
    }
    store_tile<DN, D>(dq + place(b, h, 0, DQ_STRIDES), ROW_STRIDE(DQ_STRIDES), q0, T, sum);
}

extern "C" __global__ void __launch_bounds__(256) attention_dkv(GRAD_PARAMS) {
    REAL *qt = (REAL *)shared_memory, *gt = qt + DP * PITCH, *kt = gt + EP * PITCH;
    REAL *vt = kt + DP * PITCH, *p = vt + EP * PITCH;
    const int head = blockIdx.x % (B * KV), b = head / KV, kv = head % KV;
    const int k0 = (int)(blockIdx.x / (B * KV)) * NT;
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    REAL sum_k[TM][DN] = {}, sum_v[TM][EN] = {};
    load_tile<D, DP>(kt, k + place(b, kv, 0, K_STRIDES), ROW_STRIDE(K_STRIDES), k0, S);
    load_tile<EV, EP>(vt, v + place(b, kv, 0, V_STRIDES), ROW_STRIDE(V_STRIDES), k0, S);
    int start = CAUSAL ? k0 - (S - T) : 0; /* the first query that sees a key of the tile */
    start = start < 0 ? 0 : start / NT * NT;
    for (int h = kv * SHARE; h < (kv + 1) * SHARE; h++)
        for (int q0 = start; q0 < T; q0 += NT) {
            __syncthreads();
            load_tile<D, DP>(qt, q + place(b, h, 0, Q_STRIDES), ROW_STRIDE(Q_STRIDES), q0, T);
            load_tile<EV, EP>(gt, g + place(b, h, 0, G_STRIDES), ROW_STRIDE(G_STRIDES), q0, T);
            __syncthreads();
            REAL x[TM][TM], dp[TM][TM]; /* [key][query] */
            product<D>(x, kt, qt);
            product<EV>(dp, vt, gt);
#pragma unroll
            for (int j = 0; j < TM; j++) {
                const int row = q0 + tx + 16 * j;
                const i64 at = ((i64)b * H + h) * T + (row < T ? row : 0);
                const REAL log_sum = LOG_SUM(at), delta = ((const REAL *)workspace)[at];
#pragma unroll
                for (int i = 0; i < TM; i++) {
                    REAL slope;
                    const REAL s = score(MASK_ARG b, h, row, k0 + ty * TM + i, x[i][j], slope);
                    x[i][j] = weight(s, log_sum);
                    dp[i][j] = x[i][j] * (dp[i][j] - delta) * slope;
                }
            }
            keep(p, x);
            __syncthreads();
            add_product<EN>(sum_v, p, gt);
            __syncthreads();
            keep(p, dp);
            __syncthreads();
            add_product<DN>(sum_k, p, qt);
        }
    store_tile<DN, D>(dk + place(b, kv, 0, DK_STRIDES), ROW_STRIDE(DK_STRIDES), k0, S, sum_k);
    store_tile<EN, EV>(dv + place(b, kv, 0, DV_STRIDES), ROW_STRIDE(DV_STRIDES), k0, S, sum_v);
}
#endif
