// SPDX-License-Identifier: Apache-2.0
/* conv.cu - convolution and its two gradients as one tiled product, whose operands are found in the
 * images as they are read: result [M, N] of a group, inner size K.
 *
 *   KIND 0  y:  M output channels, N (image, output place), K (input channel, tap)
 *   KIND 1  dx: M input channels,  N (image, input place),  K (output channel, tap)
 *   KIND 2  dw: M output channels, N (input channel, tap),  K (image, output place)
 *
 * A block of 256 threads has 64 x 64 results, 16 steps of K at a time. With PARTS > 1 K is cut; the
 * parts lie in the workspace and conv_join adds them in order. x [B, G*C, IN..], w [G*O, C, K..],
 * y [B, G*O, OUT..], all row-major. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef KIND /* 3 x 3 on 8 images of 16 channels */
#define KIND   0
#define REAL   float
#define BATCH  8
#define GROUPS 1
#define C      16
#define O      32
#define IN0    1
#define IN1    14
#define IN2    14
#define OUT0   1
#define OUT1   14
#define OUT2   14
#define K0     1
#define K1     3
#define K2     3
#define S0     1
#define S1     1
#define S2     1
#define P0     0
#define P1     1
#define P2     1
#define D0     1
#define D1     1
#define D2     1
#define PARTS  1
#define PARAMS const float *in0, const float *in1, float *out0, u64 *error
#endif

#define IN_PLANE  (IN0 * IN1 * IN2)
#define OUT_PLANE (OUT0 * OUT1 * OUT2)
#define TAPS      (K0 * K1 * K2)
#if KIND == 0
#define M  O
#define NN ((i64)BATCH * OUT_PLANE)
#define KK ((i64)C * TAPS)
#elif KIND == 1
#define M  C
#define NN ((i64)BATCH * IN_PLANE)
#define KK ((i64)O * TAPS)
#else
#define M  O
#define NN ((i64)C * TAPS)
#define KK ((i64)BATCH * OUT_PLANE)
#endif
#define STEP ((KK + PARTS * 16 - 1) / (PARTS * 16) * 16) /* of K in one part */

/* Element of x under tap `tap` of output place `o`; 0 outside. */
DEV REAL x_at(const REAL *x, int b, int g, int c, int o, int tap) {
    const int d = o / (OUT1 * OUT2) * S0 - P0 + tap / (K1 * K2) * D0;
    const int h = o / OUT2 % OUT1 * S1 - P1 + tap / K2 % K1 * D1;
    const int w = o % OUT2 * S2 - P2 + tap % K2 * D2;
    if (d < 0 || d >= IN0 || h < 0 || h >= IN1 || w < 0 || w >= IN2) return 0;
    return x[(((i64)b * GROUPS + g) * C + c) * IN_PLANE + (d * IN1 + h) * IN2 + w];
}
/* Element of y that reaches input place `i` by tap `tap`; 0 when there is none. */
DEV REAL y_at(const REAL *y, int b, int g, int o, int i, int tap) {
    const int d = i / (IN1 * IN2) + P0 - tap / (K1 * K2) * D0;
    const int h = i / IN2 % IN1 + P1 - tap / K2 % K1 * D1;
    const int w = i % IN2 + P2 - tap % K2 * D2;
    if (d < 0 || h < 0 || w < 0 || d % S0 || h % S1 || w % S2) return 0;
    if (d / S0 >= OUT0 || h / S1 >= OUT1 || w / S2 >= OUT2) return 0;
    return y[(((i64)b * GROUPS + g) * O + o) * OUT_PLANE + (d / S0 * OUT1 + h / S1) * OUT2 + w / S2];
}

DEV REAL a_at(PARAMS, int g, int m, i64 k) {
#if KIND == 0
    return in1[((i64)g * O + m) * KK + k];
#elif KIND == 1
    return in1[(((i64)g * O + k / TAPS) * C + m) * TAPS + k % TAPS];
#else
    return in1[((k / OUT_PLANE * GROUPS + g) * O + m) * OUT_PLANE + k % OUT_PLANE];
#endif
}
DEV REAL b_at(PARAMS, int g, i64 k, i64 n) {
#if KIND == 0
    return x_at(in0, (int)(n / OUT_PLANE), g, (int)(k / TAPS), (int)(n % OUT_PLANE),
                (int)(k % TAPS));
#elif KIND == 1
    return y_at(in0, (int)(n / IN_PLANE), g, (int)(k / TAPS), (int)(n % IN_PLANE), (int)(k % TAPS));
#else
    return x_at(in0, (int)(k / OUT_PLANE), g, (int)(n / TAPS), (int)(k % OUT_PLANE),
                (int)(n % TAPS));
#endif
}
DEV i64 result_at(int g, int m, i64 n) {
#if KIND == 2
    return ((i64)g * O + m) * NN + n;
#else
    const int plane = KIND == 0 ? OUT_PLANE : IN_PLANE;
    return ((n / plane * GROUPS + g) * M + m) * plane + n % plane;
#endif
}

#if PARTS > 1
#define PASS in0, in1, out0, workspace, error
#else
#define PASS in0, in1, out0, error
#endif

extern "C" __global__ void __launch_bounds__(256) conv(PARAMS) {
    __shared__ REAL a[16][68], b[16][68];
    const int g = blockIdx.z / PARTS, part = blockIdx.z % PARTS;
    const i64 n0 = (i64)blockIdx.x * 64;
    const int m0 = blockIdx.y * 64, t = threadIdx.x, tx = t % 16, ty = t / 16;
    const i64 from = part * STEP, to = from + STEP < KK ? from + STEP : KK;
    REAL sum[4][4] = {};
    for (i64 k0 = from; k0 < to; k0 += 16) {
        for (int e = t; e < 1024; e += 256) {
            const int ka = KIND == 1 ? e / 64 : e % 16, ma = KIND == 1 ? e % 64 : e / 16;
            const int kb = KIND == 2 ? e % 16 : e / 64, nb = KIND == 2 ? e / 16 : e % 64;
            a[ka][ma] = k0 + ka < to && m0 + ma < M ? a_at(PASS, g, m0 + ma, k0 + ka) : (REAL)0;
            b[kb][nb] = k0 + kb < to && n0 + nb < NN ? b_at(PASS, g, k0 + kb, n0 + nb) : (REAL)0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            REAL u[4], v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) u[i] = a[k][ty * 4 + i], v[i] = b[k][tx + 16 * i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] += u[i] * v[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int m = m0 + ty * 4 + i;
            const i64 n = n0 + tx + 16 * j;
            if (m >= M || n >= NN) continue;
#if PARTS > 1
            ((REAL *)workspace)[(i64)part * GROUPS * M * NN + result_at(g, m, n)] = sum[i][j];
#else
            out0[result_at(g, m, n)] = sum[i][j];
#endif
        }
}

#if PARTS > 1
extern "C" __global__ void __launch_bounds__(256) conv_join(PARAMS) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, count = (i64)GROUPS * M * NN;
    if (at >= count) return;
    REAL sum = 0;
    for (int p = 0; p < PARTS; p++) sum += ((const REAL *)workspace)[p * count + at];
    out0[at] = sum;
}
#endif
