// SPDX-License-Identifier: Apache-2.0
/* test_infer.c - result types and refusals of every op, symbolic shapes, broadcasting and cost. */
#include "ir/graph.h"
#include "test_util.h"

/* One statement: operands of the types `in` ("a b c"), the op with its attributes, and either the
 * result types or "!" and a part of the message. */
struct sample {
    const char *in, *op, *attrs, *out;
};

// clang-format off
static const struct sample samples[] = {
    /* elementwise */
    {"f32[2,3]", "neg", "", "f32[2,3]"},
    {"i64[2]", "neg", "", "i64[2]"},
    {"bool[2]", "neg", "", "!must be numeric"},
    {"i64[2]", "exp", "", "!must be of a float type, found i64[2]"},
    {"bf16[N,3]", "gelu", "approximate = true", "bf16[N,3]"},
    {"bool[2]", "not", "", "bool[2]"},
    {"f32[2]", "not", "", "!must be bool"},
    {"f32[2]", "isnan", "", "bool[2]"},
    {"i32[2]", "isinf", "", "!float type"},
    {"f32[2,N]", "cast", "dtype = i64", "i64[2,N]"},
    {"f32[2]", "cast", "", "!needs the attribute 'dtype'"},
    {"f32[2]", "relu", "axis = 1", "!expected an attribute of relu"},
    {"f32[4,1,3] f32[5,1]", "add", "", "f32[4,5,3]"},
    {"f32[] f32[N]", "add", "", "f32[N]"},
    {"f32[N] f32[M]", "add", "", "!do not broadcast: f32[N] and f32[M]"},
    {"f32[N] f32[3]", "add", "", "!do not broadcast"},
    {"f32[2*N+1] f32[N*2+1]", "mul", "", "f32[2*N+1]"},
    {"f32[0] f32[1]", "sub", "", "f32[0]"},
    {"f32[0] f32[2]", "sub", "", "!do not broadcast"},
    {"f32[2] f64[2]", "add", "", "!one element type, found f32[2] and f64[2]"},
    {"bool[2] bool[2]", "add", "", "!numeric"},
    {"f32[2]", "add", "", "!add takes 2 to 2 operands, found 1"},
    {"f32[2] f32[2] f32[2]", "add", "", "!found 3"},
    {"f32[3] f32[2,1]", "lt", "", "bool[2,3]"},
    {"bool[3] bool[3]", "eq", "", "bool[3]"},
    {"bool[3] bool[3]", "le", "", "!numeric"},
    {"i32[3] i32[1]", "and", "", "i32[3]"},
    {"f32[3] f32[3]", "or", "", "!bool or integers"},
    {"f32[2,3] f32[] f32[]", "clip", "", "f32[2,3]"},
    {"bool[4,1] f32[3] f32[]", "where", "", "f32[4,3]"},
    {"f32[4] f32[4] f32[4]", "where", "", "!condition (operand 0) must be bool"},
    {"bool[2] f32[3] f32[3]", "where", "", "!do not broadcast: bool[2] and f32[3] and f32[3]"},
    {"i64[]", "random", "shape = [2, N], dtype = f16", "f16[2,N]"},
    {"i64[]", "random", "shape = [2], dtype = i64", "!float type, asked for i64"},
    {"i32[]", "random", "shape = [2]", "!the seed (operand 0) must be i64[], found i32[]"},
    /* reductions */
    {"f32[2,3,4]", "reduce_sum", "axes = [0, 2]", "f32[3]"},
    {"f32[2,3,4]", "reduce_sum", "axes = [0, 2], keepdims = true", "f32[1,3,1]"},
    {"f32[2,N]", "reduce_mean", "axes = [0]", "f32[N]"},
    {"f32[2,3]", "reduce_max", "axes = []", "f32[2,3]"},
    {"f32[2,3]", "reduce_sum", "axes = [2]", "!axis 2 is outside the rank 2"},
    {"f32[2,3]", "reduce_sum", "axes = [-1]", "!axis -1 is outside"},
    {"f32[2,3]", "reduce_sum", "axes = [1, 1]", "!axes must increase, found 1 after 1"},
    {"f32[0,3]", "reduce_min", "axes = [0]", "!is empty"},
    {"f32[0,3]", "reduce_sum", "axes = [0]", "f32[3]"},
    {"f32[2,3]", "argmax", "axis = 1", "i64[2]"},
    {"f32[2,3]", "argmax", "axis = 0, keepdims = true", "i64[1,3]"},
    {"f32[2,0]", "argmax", "axis = 1", "!is empty"},
    {"f32[2,3]", "cumsum", "axis = 1, reverse = true", "f32[2,3]"},
    {"f32[]", "cumsum", "axis = 0", "!axis 0 is outside the rank 0"},
    {"f32[2,3]", "softmax", "axis = 1", "f32[2,3]"},
    {"f32[2,3]", "log_softmax", "axis = 2", "!axis 2 is outside"},
    /* matmul */
    {"f32[N,128] f32[64,10]", "matmul", "", "!inner dimensions differ, 128 and 64 (f32[N,128] x f32[64,10])"},
    {"f32[N,128] f32[10,128]", "matmul", "trans_b = true", "f32[N,10]"},
    {"f32[128,N] f32[128,10]", "matmul", "trans_a = true", "f32[N,10]"},
    {"f32[7,1,2,3] f32[5,3,4]", "matmul", "", "f32[7,5,2,4]"},
    {"f32[7,2,3] f32[5,3,4]", "matmul", "", "!batch axes do not broadcast"},
    {"f32[3] f32[3,4]", "matmul", "", "!rank 2 or more"},
    {"f32[2,3] f16[3,4]", "matmul", "", "!one element type"},
    /* movement */
    {"f32[2,3,4]", "reshape", "shape = [6, 4]", "f32[6,4]"},
    {"f32[2,3]", "reshape", "shape = [7]", "!changes from f32[2,3] to f32[7]"},
    {"f32[B,T,8]", "reshape", "shape = [B*T, 8]", "f32[B*T,8]"},
    {"f32[B,T,8]", "reshape", "shape = [B, T, 2, 4]", "f32[B,T,2,4]"},
    {"f32[B*T,8]", "reshape", "shape = [T, 2, B, 4]", "f32[T,2,B,4]"},
    {"f32[B,T]", "reshape", "shape = [B, S]", "!number of elements changes"},
    {"f32[B]", "reshape", "shape = [4]", "!number of elements changes"},
    {"f32[0,3]", "reshape", "shape = [0]", "f32[0]"},
    {"f32[]", "reshape", "shape = [1, 1]", "f32[1,1]"},
    {"f32[2]", "reshape", "shape = [1,1,1,1,1,1,1,1,1,1,1,1,2]", "!more than 12 sizes"},
    {"f32[4,N,3]", "transpose", "perm = [2, 0, 1]", "f32[3,4,N]"},
    {"f32[4,3]", "transpose", "perm = [1, 1]", "!names axis 1 twice"},
    {"f32[4,3]", "transpose", "perm = [0]", "!'perm' must hold 2 numbers, found 1"},
    {"f32[4,3]", "transpose", "perm = [0, 2]", "!'perm' must be between 0 and 1, found 2"},
    {"f32[]", "transpose", "perm = []", "f32[]"},
    {"f32[3,1]", "expand", "shape = [2, 3, N]", "f32[2,3,N]"},
    {"f32[3]", "expand", "shape = [1]", "!does not broadcast"},
    {"f32[3]", "expand", "shape = [N]", "!f32[3] does not broadcast to f32[N]"},
    {"f32[10]", "slice", "starts = [2], shape = [3], steps = [3]", "f32[3]"},
    {"f32[10]", "slice", "starts = [2], shape = [4], steps = [3]", "!has no 4 elements from 2 on with step 3"},
    {"f32[10]", "slice", "starts = [9], shape = [10], steps = [-1]", "f32[10]"},
    {"f32[10]", "slice", "starts = [9], shape = [11], steps = [-1]", "!has no 11"},
    {"f32[10]", "slice", "starts = [10], shape = [0], steps = [1]", "f32[0]"},
    {"f32[10]", "slice", "starts = [11], shape = [0], steps = [1]", "!has no 0"},
    {"f32[10]", "slice", "starts = [0], shape = [1], steps = [0]", "!the step of axis 0 is 0"},
    {"f32[N]", "slice", "starts = [1], shape = [N-1], steps = [1]", "f32[N-1]"},
    {"f32[N]", "slice", "starts = [1], shape = [N], steps = [1]", "!has no N elements"},
    {"f32[10]", "slice", "starts = [1], shape = [4611686018427387904], steps = [4611686018427387904]", "!must be between"},
    {"f32[2,3]", "pad", "low = [1, 0], high = [0, 2], interior = [0, 1]", "f32[3,7]"},
    {"f32[N]", "pad", "low = [1], high = [1], interior = [1]", "f32[2*N+1]"},
    {"f32[2]", "pad", "low = [-1], high = [0], interior = [0]", "!'low' must be between 0"},
    {"f32[0]", "pad", "low = [1], high = [1], interior = [5]", "f32[2]"},
    {"f32[2]", "pad", "low = [281474976710656], high = [0], interior = [0]", "!a dimension would be larger"},
    {"f32[2,3] f32[2,N] f32[2,1]", "concat", "axis = 1", "f32[2,N+4]"},
    {"f32[2,3] f32[1,3]", "concat", "axis = 1", "!operands 0 and 1 differ off axis 1"},
    {"f32[2] f32[2,1]", "concat", "axis = 0", "!differ off axis"},
    {"f32[2] i64[2]", "concat", "axis = 0", "!one element type"},
    {"f32[] f32[]", "concat", "axis = 0", "!axis 0 is outside the rank 0"},
    /* indexing */
    {"f32[50,8] i64[B,T]", "gather", "axis = 0", "f32[B,T,8]"},
    {"f32[3,50,8] i32[]", "gather", "axis = 1", "f32[3,8]"},
    {"f32[50,8] f32[2]", "gather", "axis = 0", "!holds indices and must be i64 or i32"},
    {"f32[1,1,1,1,1,1,1] i64[1,1,1,1,1,1,1]", "gather", "axis = 0", "!rank 13 is over the limit of 12"},
    {"i64[B,T] f32[B,T,8]", "scatter_rows", "axis = 0, shape = [50, 8]", "f32[50,8]"},
    {"i64[B,T] f32[B,T,9]", "scatter_rows", "axis = 0, shape = [50, 8]", "!the updates (operand 1) must be f32[B,T,8], found f32[B,T,9]"},
    {"i64[2] f32[2]", "scatter_rows", "axis = 1, shape = [50]", "!outside the rank 1 of the result"},
    {"f32[3,4] i64[2,9]", "gather_elements", "axis = 1", "f32[2,9]"},
    {"f32[3,4] i64[4,2]", "gather_elements", "axis = 1", "!no axis but 1 larger"},
    {"f32[3,4] i64[3,2] f32[3,2]", "scatter_elements", "axis = 1, add = true", "f32[3,4]"},
    {"f32[3,4] i64[3,2] f32[3,3]", "scatter_elements", "axis = 1", "!the updates (operand 2)"},
    {"bool[3] i64[3] bool[3]", "scatter_elements", "axis = 0, add = true", "!cannot add"},
    /* windows */
    {"f32[N,3,32,30] f32[8,3,3,5]", "conv", "strides = [1, 2], pads = [1, 2, 1, 2], dilations = [1, 1]", "f32[N,8,32,15]"},
    {"f32[2,6,9] f32[4,3,3]", "conv", "strides = [2], pads = [0, 0], dilations = [2], groups = 2", "f32[2,4,3]"},
    {"f32[2,6,9] f32[5,3,3]", "conv", "strides = [1], pads = [0, 0], dilations = [1], groups = 2", "!5 output channels do not divide into 2 groups"},
    {"f32[2,6,9] f32[4,4,3]", "conv", "strides = [1], pads = [0, 0], dilations = [1]", "!channels differ: input f32[2,6,9] has 6"},
    {"f32[2,6,9] f32[4,6,3]", "conv", "strides = [0], pads = [0, 0], dilations = [1]", "!'strides' must be between 1"},
    {"f32[2,6,9] f32[4,6,3]", "conv", "strides = [1], pads = [0], dilations = [1]", "!'pads' must hold 2 numbers, found 1"},
    {"f32[2,6,2] f32[4,6,3]", "conv", "strides = [1], pads = [0, 0], dilations = [1]", "!a window of 3 does not fit the padded size 2"},
    {"f32[2,6,9] f32[4,6,3]", "conv", "strides = [1], pads = [0, 0], dilations = [281474976710656]", "!larger"},
    {"f32[2,6,9] f32[4,6,3]", "conv", "strides = [1], pads = [0, 0], dilations = [1], groups = 0", "!'groups' must be 1 or more"},
    {"f32[2,6] f32[4,6]", "conv", "strides = [], pads = [], dilations = []", "!rank of 3 or more"},
    {"f32[1,3,L] f32[4,3,3]", "conv", "strides = [1], pads = [1, 1], dilations = [1]", "f32[1,4,L]"},
    {"f32[1,3,2*L] f32[4,3,3]", "conv", "strides = [2], pads = [1, 1], dilations = [1]", "f32[1,4,L]"},
    {"f32[1,3,L] f32[4,3,3]", "conv", "strides = [2], pads = [1, 1], dilations = [1]", "!cannot divide the symbolic size L-1 by stride 2"},
    {"f32[2,4,15] f32[4,3,5]", "conv_input_grad", "strides = [2], pads = [2, 2], dilations = [1], shape = [2, 3, 30]", "f32[2,3,30]"},
    {"f32[2,4,16] f32[4,3,5]", "conv_input_grad", "strides = [2], pads = [2, 2], dilations = [1], shape = [2, 3, 30]", "!the gradient (operand 0) must be f32[2,4,15], found f32[2,4,16]"},
    {"f32[2,3,30] f32[2,4,15]", "conv_weight_grad", "strides = [2], pads = [2, 2], dilations = [1], shape = [4, 3, 5]", "f32[4,3,5]"},
    {"f32[2,3,30] f32[2,4,15]", "conv_weight_grad", "strides = [2], pads = [2, 2], dilations = [1], shape = [4, 3]", "!one rank of 3 or more"},
    {"f32[2,3,7,8]", "max_pool", "kernel = [3, 2], strides = [2, 2], pads = [0, 0, 0, 0], dilations = [1, 1]", "f32[2,3,3,4], i64[2,3,3,4]"},
    {"f32[2,3,8]", "max_pool", "kernel = [3], strides = [2], pads = [0, 0], dilations = [1], ceil = true", "f32[2,3,4], i64[2,3,4]"},
    {"f32[1,1,4]", "max_pool", "kernel = [2], strides = [3], pads = [1, 1], dilations = [1], ceil = true", "f32[1,1,2], i64[1,1,2]"},
    {"f32[1,1,4]", "max_pool", "kernel = [2], strides = [5], pads = [1, 1], dilations = [1], ceil = true", "f32[1,1,1], i64[1,1,1]"},
    {"f32[1,1,4]", "max_pool", "kernel = [2], strides = [1], pads = [2, 0], dilations = [1]", "!must be smaller than the window of 2"},
    {"f32[1,1,0]", "max_pool", "kernel = [1], strides = [1], pads = [0, 0], dilations = [1]", "!is empty"},
    /* normalisation, attention, loss, optimizers */
    {"f32[2,N,8]", "layer_norm", "axis = 2, eps = 1e-05", "f32[2,N,8], f32[2,N,1], f32[2,N,1]"},
    {"f32[2,N,8]", "rms_norm", "axis = 1, eps = 0.0", "f32[2,N,8], f32[2,1,1]"},
    {"f32[2,8]", "rms_norm", "axis = 1, eps = -1.0", "!'eps' must be a finite number of at least 0"},
    {"f32[2,8]", "rms_norm", "axis = 1, eps = nan", "!'eps'"},
    {"i64[2,8]", "layer_norm", "axis = 1, eps = 0.1", "!float type"},
    {"f32[B,6,T,8] f32[B,2,S,8] f32[B,2,S,5]", "attention", "scale = 0.125", "f32[B,6,T,5], f32[B,6,T]"},
    {"bf16[2,4,T,8] bf16[2,4,S,8] bf16[2,4,S,8] bool[T,S]", "attention", "scale = 1.0, causal = true", "bf16[2,4,T,8], f32[2,4,T]"},
    {"f32[2,4,3,8] f32[2,4,5,8] f32[2,4,5,8] f32[4,4]", "attention", "scale = 1.0", "!mask f32[4,4] does not broadcast to the scores f32[2,4,3,5]"},
    {"f32[2,4,3,8] f32[2,3,5,8] f32[2,3,5,8]", "attention", "scale = 1.0", "!q's heads are no multiple of k's"},
    {"f32[2,4,3,8] f32[2,0,5,8] f32[2,0,5,8]", "attention", "scale = 1.0", "!q's heads are no multiple of k's"},
    {"f32[2,4,3,8] f32[2,4,5,8] f32[2,4,6,8]", "attention", "scale = 1.0", "!k and v differ in length"},
    {"f32[2,4,3,8] f32[2,4,5,7] f32[2,4,5,8]", "attention", "scale = 1.0", "!q and k differ in head size"},
    {"f32[4,3,8] f32[4,5,8] f32[4,5,8]", "attention", "scale = 1.0", "!operand 0 must be q [B,H,T,D]"},
    {"f32[2,6,3,8] f32[2,2,4,8] f32[2,2,4,5] f32[2,6,3,5] f32[2,6,3] f32[2,6,3,5]", "attention_grad", "scale = 1.0", "f32[2,6,3,8], f32[2,2,4,8], f32[2,2,4,5]"},
    {"f32[2,6,3,8] f32[2,2,4,8] f32[2,2,4,5] f32[2,6,3,5] f32[2,6,3,1] f32[2,6,3,5]", "attention_grad", "scale = 1.0", "!lse (operand 4) must be f32[2,6,3]"},
    {"bf16[R,C] i64[R]", "cross_entropy", "", "f32[R], f32[R]"},
    {"f32[R,C] i64[C]", "cross_entropy", "", "!labels (operand 1) must be i64[R], found i64[C]"},
    {"f32[4,5] f32[4,5] f32[4,5] f32[] i64[]", "sgd", "momentum = 0.9", "f32[4,5], f32[4,5]"},
    {"f32[4,5] f32[4,6] f32[4,5] f32[] i64[]", "sgd", "", "!the gradient (operand 1) must be f32[4,5]"},
    {"f32[4] f32[4] f32[4] f32[4] f32[] i64[]", "adam", "", "f32[4], f32[4], f32[4]"},
    {"f32[4] f32[4] f32[4] f32[4] f32[1] i64[]", "adam", "", "!the learning rate (operand 4) must be f32[]"},
    {"f32[] f64[4,2]", "gradient", "", "f64[4,2]"},
    {"f32[] i64[4]", "gradient", "", "!operand 1 must be of a float type"},
    {"f64[4] f64[4] f64[4] f64[4] f64[] i64[]", "adam", "eps_hat = true", "f64[4], f64[4], f64[4]"},
    {"f64[4] f64[4] f64[4] f64[4] f32[] i64[]", "adam", "", "f64[4], f64[4], f64[4]"},
    {"f32[4] f32[4] f32[4] f32[4] f64[] i64[]", "adam", "", "!the learning rate (operand 4) must be f32[]"},
    {"f32[4] f32[4] f32[4] f32[4] f32[] i64[]", "adam", "beta1 = 1.5", "!'beta1' must be between 0 and 1"},
    {"f32[200] f32[200] e4m3[200] f32[2] u8[2] f32[200] f32[0] u8[0] f32[] i64[]", "adam8", "", "f32[200], e4m3[200], f32[2], u8[2], f32[200], f32[0], u8[0]"},
    {"f32[200] f32[200] e4m3[200] f32[2] u8[2] f32[200] f32[0] u8[0] f32[] i64[]", "adam8", "group = 100", "!'group' must be 32, 64, 128 or 256, found 100"},
    {"f32[200] f32[200] e4m3[200] f32[3] u8[2] f32[200] f32[0] u8[0] f32[] i64[]", "adam8", "", "!its scales (operand 3) must be f32[2]"},
    {"bf16[2,N,40]", "quantize", "format = e4m3, tile = []", "e4m3[2,N,40], f32[], f32[]"},
    {"bf16[2,N,40]", "quantize", "format = e5m2, tile = [1, 16], scale_type = bf16", "e5m2[2,N,40], bf16[2,N,3], f32[2,N,3]"},
    {"f32[5,N]", "quantize", "format = i8, tile = [1, 0], scale_type = e8m0", "i8[5,N], e8m0[5,1], f32[5,1]"},
    {"f32[5,7] f32[2,2]", "quantize", "format = e4m3, tile = [4, 4]", "e4m3[5,7], f32[2,2], f32[2,2]"},
    {"f32[5,7] f32[2,3]", "quantize", "format = e4m3, tile = [4, 4]", "!the scale (operand 1) must be f32[2,2]"},
    {"f32[5,N]", "quantize", "format = e4m3, tile = [1, 4]", "!does not fit f32[5,N]"},
    {"f32[5,7]", "quantize", "format = e4m3, tile = [1]", "!'tile' must be"},
    {"i64[5,7]", "quantize", "format = e4m3, tile = []", "!float"},
    {"e4m3[5,N] bf16[5,1]", "dequantize", "tile = [1, 0], dtype = bf16", "bf16[5,N]"},
    {"e4m3[5,7] f32[5]", "dequantize", "tile = [1, 0]", "!the scale (operand 1) must be f32[5,1]"},
    {"e4m3[2,N,256] e5m2[48,256] f32[] f32[]", "scaled_matmul", "", "bf16[2,N,48]"},
    {"e4m3[N,256] e4m3[48,256] f32[N,1] f32[48,1]", "scaled_matmul", "dtype = f32", "f32[N,48]"},
    {"e5m2[5,300] e4m3[48,300] f32[5,3] f32[1,3]", "scaled_matmul", "dtype = f16", "f16[5,48]"},
    {"e4m3[5,64] e4m3[48,64] f32[5,1] f32[1,1]", "scaled_matmul", "", "bf16[5,48]"},
    {"e5m2[5,64] e5m2[48,64] f32[] f32[]", "scaled_matmul", "", "!must be e4m3"},
    {"e4m3[5,64] e4m3[48,64] f32[5,1] f32[]", "scaled_matmul", "", "!tensors, rows or blocks"},
    {"e4m3[256,256] e4m3[256,256] f32[2,2] f32[2,2]", "scaled_matmul", "", "!tensors, rows or blocks"},
    {"e4m3[5,64] e4m3[64,48] f32[] f32[]", "scaled_matmul", "", "!expected [..,M,K] and [N,K]"},
    {"bf16[5,7] f32[5,1]", "dequantize", "tile = [1, 0]", "!the codes must be e4m3, e5m2 or i8, found bf16"},
    {"e5m2[5,7] f16[]", "dequantize", "tile = []", "!the scale must be f32, bf16 or e8m0, found f16"},
    {"f32[2,3]", "sum_squares", "", "f32[]"},
    {"bf16[N] f32[2,3] f64[]", "sum_squares", "", "f32[]"},
    {"f32[2] i64[2]", "sum_squares", "", "!float"},
    /* sources */
    {"", "iota", "start = 2.0", "i64[N]"},
    {"", "iota", "", "!makes one numeric axis, asked for f32[2,2]"},
    {"", "full", "value = -0.0", "f32[N,2]"},
    {"", "const", "init = f32 [1.0, 2.0]", "f32[2]"},
    {"", "const", "init = none", "!has no value"},
    {"", "const", "init = f32 [1.0]", "!needs 16 bytes, its value has 4"},
    {"", "input", "name = \"x\", role = \"banana\"", "!role must be data, label, lr or seed, found 'banana'"},
    {"", "state", "name = \"x\", role = \"step\"", "i64[]"},
};
// clang-format on

static void sample_text(const struct sample *s, struct buf *b) {
    char in[512];
    int n = 0;
    snprintf(in, sizeof in, "%s", s->in);
    buf_puts(b, "graph @g {\n");
    for (char *t = in; *t; n++) {
        size_t len = strcspn(t, " ");
        buf_printf(b, "%%a%d = input {name = \"a%d\"} : %.*s\n", n, n, (int)len, t);
        t += len + (t[len] == ' ');
    }
    int outs = op_info(op_from_name(s->op, strlen(s->op)))->outs;
    for (int k = 0; k < outs; k++) buf_printf(b, "%s%%r%d", k ? ", " : "", k);
    buf_printf(b, " = %s", s->op);
    for (int k = 0; k < n; k++) buf_printf(b, "%s%%a%d", k ? ", " : "(", k);
    if (n) buf_puts(b, ")");
    if (s->attrs[0]) buf_printf(b, " {%s}", s->attrs);
    buf_puts(b, " : ");
    if (s->out[0] != '!') buf_puts(b, s->out);
    for (int k = 0; k < outs && s->out[0] == '!'; k++) buf_printf(b, "%sf32[2,2]", k ? ", " : "");
    buf_puts(b, "\n}\n");
}

START_TEST(test_sample) {
    const struct sample *s = &samples[_i];
    struct test_env t;
    struct graph *g;
    struct buf b;
    test_begin(&t);
    TEST_LANDING(&t);
    buf_init(&b, &t.arena);
    sample_text(s, &b);
    enum status st = graph_parse(&t.ctx, b.at, b.n, "sample", &g);
    if (s->out[0] == '!') {
        ck_assert_msg(st != ST_OK, "accepted:\n%s", b.at);
        ck_assert_msg(strstr(t.log, s->out + 1) != NULL, "%s-> %s", b.at, t.log);
        ck_assert_msg(t.ctx.errors == 1, "%u errors: %s", t.ctx.errors, t.log);
        ck_assert_ptr_null(g);
    } else {
        ck_assert_msg(st == ST_OK, "%s-> %s", b.at, t.log);
        ck_assert_int_eq(graph_verify(g, "parse"), ST_OK);
    }
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(test_every_op_has_a_sample) {
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        const struct op_info *info = op_info((enum op)op);
        bool plain = (info->traits & EW) != 0; /* many rows share one handler */
        bool seen = plain || op == OP_param || op == OP_reduce_prod;
        for (size_t k = 0; k < sizeof samples / sizeof *samples && !seen; k++)
            seen = strcmp(samples[k].op, info->name) == 0;
        ck_assert_msg(seen, "no sample of %s", info->name);
    }
}
END_TEST

START_TEST(test_broadcast) {
    struct type a = {.dtype = DT_f32, .rank = 3, .dims = {4, 1, 3}};
    struct type b = {.dtype = DT_bool, .rank = 2, .dims = {5, 1}}, out;
    ck_assert(type_broadcast(&a, &b, &out));
    struct type want = {.dtype = DT_f32, .rank = 3, .dims = {4, 5, 3}};
    ck_assert(type_equal(&out, &want));
    ck_assert(type_broadcast(&a, &b, &a)); /* in place */
    ck_assert(type_equal(&a, &want));
    b.dims[1] = 2;
    out = b;
    ck_assert(!type_broadcast(&a, &b, &out));
    ck_assert(type_equal(&out, &b)); /* untouched on failure */
}
END_TEST

/* ---- cost ---------------------------------------------------------------------------------- */
static const char cost_text[] =
    "graph @g {\n"
    "  %x = input {name = \"x\"} : f32[8,16]\n"
    "  %s = input {name = \"s\"} : f32[N,16]\n"
    "  %i = input {name = \"i\"} : i64[5]\n"
    "  %w = input {name = \"w\"} : f32[16,4]\n"
    "  %c = input {name = \"c\"} : f32[2,3,8,8]\n"
    "  %k = input {name = \"k\"} : f32[6,3,3,3]\n"
    "  %q = input {name = \"q\"} : f32[2,4,6,8]\n"
    "  %mm = matmul(%x, %w) : f32[8,4]\n"
    "  %sym = matmul(%s, %w) : f32[N,4]\n"
    "  %add = add(%x, %x) : f32[8,16]\n"
    "  %sum = reduce_sum(%x) {axes = [0]} : f32[16]\n"
    "  %view = transpose(%x) {perm = [1, 0]} : f32[16,8]\n"
    "  %take = gather(%x, %i) {axis = 0} : f32[5,16]\n"
    "  %conv = conv(%c, %k) {strides = [1, 1], dilations = [1, 1], pads = [1, 1, 1, 1]}"
    " : f32[2,6,8,8]\n"
    "  %att, %lse = attention(%q, %q, %q) {scale = 1.0} : f32[2,4,6,8], f32[2,4,6]\n"
    "}\n";

START_TEST(test_cost) {
    static const struct {
        const char *name;
        double flops, read, written;
    } want[] = {
        {"x", 0, 0, 0},
        {"mm", 2.0 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4), 4 * 8 * 4},
        {"sym", 0, 0, 0},
        {"add", 128, 4 * 256, 4 * 128},
        {"sum", 128, 4 * 128, 4 * 16},
        {"view", 0, 0, 0},
        {"take", 0, 4 * 80 + 8 * 5, 4 * 80},
        {"conv", 2.0 * (2 * 6 * 64) * 27, 4 * (384 + 162), 4 * 768},
        {"att", 48.0 * 6 * (2 * 16 + 5), 3 * 4 * 384, 4 * (384 + 48)},
    };
    struct test_env t;
    struct graph *g;
    test_begin(&t);
    TEST_LANDING(&t);
    ck_assert_msg(graph_parse(&t.ctx, cost_text, sizeof cost_text - 1, "cost", &g) == ST_OK, "%s",
                  t.log);
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        struct cost c = node_cost(g, val_def(g, graph_find(g, want[k].name)));
        ck_assert_msg(c.flops == want[k].flops && c.bytes_read == want[k].read &&
                          c.bytes_written == want[k].written,
                      "%s: %g %g %g", want[k].name, c.flops, c.bytes_read, c.bytes_written);
    }
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("infer");
    TCase *c = tcase_create("infer");
    tcase_add_loop_test(c, test_sample, 0, (int)(sizeof samples / sizeof *samples));
    tcase_add_test(c, test_every_op_has_a_sample);
    tcase_add_test(c, test_broadcast);
    tcase_add_test(c, test_cost);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
