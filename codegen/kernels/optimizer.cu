// SPDX-License-Identifier: Apache-2.0
/* optimizer.cu - SGD and Adam(W) with PyTorch's formulas on all parameters at once; numbers that
 * depend on the step are computed in f64, once a block. Results may be the operands' memory: a
 * thread reads its elements before it writes them, and the next ones before that. */
#include "prelude.cuh"
#if __has_include("config.cuh")
#include "config.cuh"
#endif
#include "tensors.cuh"

#ifndef REAL /* AdamW */
#define REAL         float
#define ADAM         1
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

#define THREADS 256
#define VEC     (16 / (int)sizeof(REAL))    /* elements of one access */
#define SETS    (sizeof(REAL) == 4 ? 2 : 1) /* accesses under way for each operand */
#define EACH    (ADAM ? 4 : 3)              /* operands of a tensor: w, g, states */
#define KEPT    (EACH - 1)                  /* results: w, states */
#define SCALARS (TENSORS * EACH)            /* lr, step and perhaps the factor */
#define RESULTS (SCALARS + 2 + FACTOR)

struct scalars {
    REAL size, bias, keep, factor;
};

#if ADAM
/* D. P. Kingma, J. Ba, 2015; decoupled decay: I. Loshchilov, F. Hutter, 2019. */
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
    if (threadIdx.x == THREADS - 32) s->size = (REAL)(lr / correction(BETA1, n));
    if (threadIdx.x == THREADS - 64) s->bias = (REAL)sqrt(correction(BETA2, n));
    if (threadIdx.x == THREADS - 96) s->keep = (REAL)(1.0 - lr * WEIGHT_DECAY);
}
DEV void update(const scalars &s, REAL g, REAL *x) {
    REAL w = x[0], d = g * s.factor;
    if (DECOUPLED)
        w *= s.keep;
    else
        d += (REAL)WEIGHT_DECAY * w;
    x[1] += (REAL)(1.0 - BETA1) * (d - x[1]);
    x[2] = x[2] * (REAL)BETA2 + (REAL)(1.0 - BETA2) * d * d;
    if (EPS_HAT)
        x[0] = w - s.size * x[1] / ((op_sqrt(x[2]) + (REAL)EPS) / s.bias);
    else
        x[0] = w - s.size * x[1] / (op_sqrt(x[2]) / s.bias + (REAL)EPS);
}
#else
DEV void begin(scalars *s, void *const *table) {
    if (threadIdx.x) return;
    s->size = (REAL) * (const LR *)table[SCALARS];
    s->keep = (REAL)((i64) * (const STEP *)table[SCALARS + 1] <= 1);
}
DEV void update(const scalars &s, REAL g, REAL *x) {
    const REAL d = g * s.factor + (REAL)WEIGHT_DECAY * x[0];
    x[1] = s.keep != 0 ? d : x[1] * (REAL)MOMENTUM + (REAL)(1.0 - DAMPENING) * d;
    const REAL by = NESTEROV ? d + (REAL)MOMENTUM * x[1] : x[1];
    x[0] -= s.size * (MOMENTUM != 0 ? by : d);
}
#endif

struct values {
    REAL g[SETS][VEC], x[KEPT][SETS][VEC];
};

/* All threads of a block see one form. */
DEV void read_gradient(REAL *g, const void *p, i64 i, i64 end, int form, bool aligned) {
    if (HAS(FORM_BF16) && form == FORM_BF16)
        load_part<VEC>(g, (const bf16 *)p, i, end, aligned);
    else if (HAS(FORM_F16) && form == FORM_F16)
        load_part<VEC>(g, (const f16 *)p, i, end, aligned);
    else
        load_part<VEC>(g, (const REAL *)p, i, end, aligned);
}

DEV void read(values &e, void *const *in, i64 at, i64 end, int form, bool aligned) {
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const i64 i = at + s * THREADS * VEC;
        read_gradient(e.g[s], in[1], i, end, form, aligned);
#pragma unroll
        for (int k = 0; k < KEPT; k++)
            load_part<VEC>(e.x[k][s], (const REAL *)in[k ? k + 1 : 0], i, end, aligned);
    }
}

DEV void run(void *const *table, int tensor, i64 from, i64 end, int form, bool aligned) {
    __shared__ scalars shared;
    void *in[EACH], *out[KEPT];
#pragma unroll
    for (int k = 0; k < EACH; k++) in[k] = table[tensor * EACH + k];
#pragma unroll
    for (int k = 0; k < KEPT; k++) out[k] = table[RESULTS + tensor * KEPT + k];
    begin(&shared, table);
    i64 at = from + threadIdx.x * VEC;
    values e;
    if (at < end) read(e, in, at, end, form, aligned);
    __syncthreads();
    scalars s = shared;
    s.factor = FACTOR ? (REAL) * (const float *)table[SCALARS + 1 + FACTOR] : (REAL)1;
    while (at < end) {
#pragma unroll
        for (int j = 0; j < SETS; j++) {
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                REAL x[KEPT];
#pragma unroll
                for (int k = 0; k < KEPT; k++) x[k] = e.x[k][j][i];
                update(s, e.g[j][i], x);
#pragma unroll
                for (int k = 0; k < KEPT; k++) e.x[k][j][i] = x[k];
            }
#pragma unroll
            for (int k = 0; k < KEPT; k++)
                store_part<VEC>((REAL *)out[k], e.x[k][j], at + j * THREADS * VEC, end, aligned);
        }
        at += SETS * THREADS * VEC;
        if (at < end) read(e, in, at, end, form, aligned);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if ADAM
    adam(void *const *table) {
#else
    sgd(void *const *table) {
#endif
    const int t = tensor_of((int)blockIdx.x);
    const i64 n = elements[t], from = (i64)((int)blockIdx.x - first_block[t]) * CHUNK;
    const i64 end = from + CHUNK < n ? from + CHUNK : n;
    run(table, t, from, end, forms[t] % NOT_ALIGNED, forms[t] < NOT_ALIGNED);
}
