// SPDX-License-Identifier: Apache-2.0
/* gpu_cases.h - op cases beyond tests/op/cases.def: sizes that fill blocks and leave a rest, and
 * indices that must be refused. For gpu_test.c. */
#ifndef LATHE_TESTS_GPU_CASES_H
#define LATHE_TESTS_GPU_CASES_H

#include "op_cases.h"

// clang-format off
/* Sizes that fill blocks and leave a rest; the format of tests/op/cases.def. */
static const struct op_case large[] = {
#define CASE(op, operands, attrs) {OP_##op, operands, attrs},
    CASE(tanh, "f[1031]", "")
    CASE(add, "f[7,129,33] f[129,1]", "")
    CASE(where, "b[257,31] f[31] f[257,1]", "")
    CASE(reduce_sum, "f[517,333]", "axes=1")
    CASE(reduce_sum, "f[517,333]", "axes=0")
    CASE(reduce_mean, "f[100003]", "axes=0")
    CASE(reduce_max, "f[3,70001]", "axes=1")
    CASE(reduce_sum, "f[5,67,9,31]", "axes=1,3")
    CASE(cumsum, "f[3,1500]", "axis=1 reverse=1")
    CASE(cumsum, "f[700,5]", "axis=0")
    CASE(matmul, "f[129,257] f[257,63]", "")
    CASE(matmul, "f[3,65,129] f[3,33,129]", "trans_b=1")
    CASE(matmul, "f[5,4,67,33] f[1,33,35]", "")
    CASE(matmul, "f[512,512] f[512,512]", "trans_a=1")
    CASE(transpose, "f[65,33,17]", "perm=2,0,1")
    CASE(transpose, "f[257,263]", "perm=1,0")
    CASE(slice, "f[301,77]", "starts=300,76 shape=100,19 steps=-3,-4")
    CASE(pad, "f[63,65]", "low=1,2 high=3,0 interior=1,2")
    CASE(concat, "f[33,7] f[33,129] f[33,1]", "axis=1")
    CASE(conv, "f[3,5,19,23] f[7,5,3,3]", "strides=1,1 pads=1,1,1,1 dilations=1,1")
    CASE(conv, "f[2,6,33,17] f[9,2,5,3]", "strides=2,2 pads=2,1,2,1 dilations=1,1 groups=3")
    CASE(conv, "f[2,12,31,29] f[12,1,3,3]", "strides=1,2 pads=1,1,1,1 dilations=1,1 groups=12")
    CASE(max_pool, "f[3,5,33,35]", "kernel=3,3 strides=2,2 pads=1,1,1,1 dilations=1,1")
    CASE(gather, "f[301,65] i[5,7]=0,4,-1,300,7,7,7,1,2,3,299,298,150,151,152,153,0,0,0,0,-301,-300,9,8,7,6,"
         "5,4,3,2,1,0,300,-2,77", "axis=0")
    CASE(scatter_rows, "i[9]=1,1,1,0,-1,16,3,3,1 f[9,131]", "axis=0 shape=17,131")
    CASE(softmax, "f[33,1027]~-4.0~4.0", "axis=1")
    CASE(softmax, "f[65,33,7]", "axis=1")
    CASE(log_softmax, "f[5,50257]~-4.0~4.0", "axis=1")
    CASE(layer_norm, "f[65,768]", "axis=1 eps=1e-5")
    CASE(rms_norm, "f[3,7,1025]", "axis=2 eps=1e-6")
    CASE(attention, "f[2,3,65,64] f[2,3,65,64] f[2,3,65,64]", "scale=0.125 causal=1")
    CASE(attention, "f[1,4,130,40] f[1,2,130,40] f[1,2,130,40]", "scale=0.2 causal=1")
    CASE(attention, "f[2,2,33,128] f[2,2,77,128] f[2,2,77,128]", "scale=0.09")
    CASE(cross_entropy, "f[4,5003]~-4.0~4.0 i[4]=0,5002,-100,17", "")
    CASE(gelu, "f[2200,1024]~-4.0~4.0", "approximate=1")
    CASE(layer_norm, "f[515,768]", "axis=1 eps=1e-5")
    CASE(layer_norm, "f[300,8192]", "axis=1 eps=1e-5")
    CASE(rms_norm, "f[700,2048]", "axis=1 eps=1e-6")
    CASE(log_softmax, "f[7,50304]~-4.0~4.0", "axis=1")
    CASE(softmax, "f[3,120000]~-4.0~4.0", "axis=1")
    CASE(mul, "f[2100,768] f[768]", "")
    CASE(add, "f[9000,40] f[9000,1]", "")
#undef CASE
};
static const struct op_case wrong[] = { /* an index out of range: the same words on both */
#define CASE(op, operands, attrs) {OP_##op, operands, attrs},
    CASE(gather, "f[5,3] i[2,2]=0,5,-6,9", "axis=0")
    CASE(gather_elements, "f[3,4] i[2,4]=0,1,2,0,-1,1,0,3", "axis=0")
    CASE(scatter_rows, "i[3]=1,-5,4 f[2,3,3]", "axis=1 shape=2,4,3")
    CASE(scatter_elements, "f[3,4] i[2,2]=0,1,2,-4 f[2,2]", "axis=0")
    CASE(cross_entropy, "f[4,3]~-3.0~3.0 i[4]=0,3,-100,-1", "")
#undef CASE
};
// clang-format on

#endif
