// SPDX-License-Identifier: Apache-2.0
/* optimizer.cu - SGD and Adam(W) with PyTorch's formulas; numbers that depend on the step are
 * computed in f64, once a block. Results may be the operands' memory: a thread reads its VEC
 * elements before it writes them. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif

#ifndef COUNT /* AdamW on 1024 weights */
#define COUNT        1024
#define VEC          4
#define REAL         float
#define ADAM         1
#define FACTOR       0
#define WEIGHT_DECAY 0.01
#define BETA1        0.9
#define BETA2        0.999
#define EPS          1e-8
#define DECOUPLED    1
#define STEP         i64
#define LR           float
#endif

#if FACTOR
#define FACTOR_PARAM const float *factor,
#define FACTOR_VALUE (REAL)*factor
#else
#define FACTOR_PARAM
#define FACTOR_VALUE (REAL)1
#endif

#if ADAM
/* D. P. Kingma, J. Ba, 2015; decoupled decay: I. Loshchilov, F. Hutter, 2019. */
extern "C" __global__ void __launch_bounds__(256)
    adam(const REAL *w, const REAL *g, const REAL *m, const REAL *v, const LR *lr, const STEP *step,
         FACTOR_PARAM REAL *w_out, REAL *m_out, REAL *v_out, u64 *) {
    __shared__ REAL shared_size, shared_bias;
    if (threadIdx.x == 0) {
        const double n = (double)*step;
        shared_size = (REAL)((double)*lr / (1.0 - pow((double)BETA1, n)));
        shared_bias = (REAL)sqrt(1.0 - pow((double)BETA2, n));
    }
    __syncthreads();
    const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * VEC;
    if (at >= COUNT) return;
    const REAL size = shared_size, bias = shared_bias, factor_value = FACTOR_VALUE;
    const REAL keep = (REAL)(1.0 - (double)*lr * WEIGHT_DECAY), l2 = (REAL)WEIGHT_DECAY;
    const REAL nb1 = (REAL)(1.0 - BETA1), b2 = (REAL)BETA2, nb2 = (REAL)(1.0 - BETA2);
    REAL wx[VEC], gx[VEC], mx[VEC], vx[VEC];
    load_pack<VEC>(wx, w + at);
    load_pack<VEC>(gx, g + at);
    load_pack<VEC>(mx, m + at);
    load_pack<VEC>(vx, v + at);
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        REAL x = wx[k], d = gx[k] * factor_value;
        if (DECOUPLED)
            x *= keep;
        else
            d += l2 * x;
        mx[k] += nb1 * (d - mx[k]);
        vx[k] = vx[k] * b2 + nb2 * d * d;
        wx[k] = x - size * mx[k] / (op_sqrt(vx[k]) / bias + (REAL)EPS);
    }
    store_pack<VEC>(w_out + at, wx);
    store_pack<VEC>(m_out + at, mx);
    store_pack<VEC>(v_out + at, vx);
}
#else
extern "C" __global__ void __launch_bounds__(256)
    sgd(const REAL *w, const REAL *g, const REAL *m, const LR *lr, const STEP *step,
        FACTOR_PARAM REAL *w_out, REAL *m_out, u64 *) {
    const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * VEC;
    if (at >= COUNT) return;
    const bool first = (i64)*step <= 1;
    const REAL rate = (REAL)*lr, factor_value = FACTOR_VALUE, l2 = (REAL)WEIGHT_DECAY;
    const REAL mu = (REAL)MOMENTUM, fresh = (REAL)(1.0 - DAMPENING);
    REAL wx[VEC], gx[VEC], mx[VEC];
    load_pack<VEC>(wx, w + at);
    load_pack<VEC>(gx, g + at);
    load_pack<VEC>(mx, m + at);
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        const REAL d = gx[k] * factor_value + l2 * wx[k];
        mx[k] = first ? d : mx[k] * mu + fresh * d;
        const REAL by = NESTEROV ? d + mu * mx[k] : mx[k];
        wx[k] -= rate * (MOMENTUM != 0 ? by : d);
    }
    store_pack<VEC>(w_out + at, wx);
    store_pack<VEC>(m_out + at, mx);
}
#endif
