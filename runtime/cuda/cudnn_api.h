// SPDX-License-Identifier: Apache-2.0
/* cudnn_api.h - the parts of cuDNN 9's graph interface that attention uses, declared here so that
 * cuDNN is not needed to build: names, prototypes and numbers of its public binary interface. */
#ifndef LATHE_RUNTIME_CUDNN_API_H
#define LATHE_RUNTIME_CUDNN_API_H

#include "runtime/cuda/cuda_api.h"

typedef struct dnn_handle_st *dnn_handle;
typedef struct dnn_desc_st *dnn_desc; /* a descriptor of any kind */

// clang-format off
#define CUDA_DNN(F)                                                                                \
    F(size_t, cudnnGetVersion, (void))                                                             \
    F(const char *, cudnnGetErrorString, (int status))                                             \
    F(void, cudnnGetLastErrorString, (char *to, size_t bytes))                                     \
    F(int, cudnnCreate, (dnn_handle *handle))                                                      \
    F(int, cudnnDestroy, (dnn_handle handle))                                                      \
    F(int, cudnnSetStream, (dnn_handle handle, cu_stream stream))                                  \
    F(int, cudnnBackendCreateDescriptor, (int kind, dnn_desc *desc))                               \
    F(int, cudnnBackendDestroyDescriptor, (dnn_desc desc))                                         \
    F(int, cudnnBackendSetAttribute, (dnn_desc desc, int key, int type, int64_t n,                 \
                                      const void *at))                                             \
    F(int, cudnnBackendGetAttribute, (dnn_desc desc, int key, int type, int64_t wanted,            \
                                      int64_t *n, void *at))                                       \
    F(int, cudnnBackendFinalize, (dnn_desc desc))                                                  \
    F(int, cudnnBackendExecute, (dnn_handle handle, dnn_desc plan, dnn_desc pack))
// clang-format on

#define DNN_MEMBER(type, name, args) type(*name) args;
struct dnn_api {
    CUDA_DNN(DNN_MEMBER)
};
#undef DNN_MEMBER

enum dnn_type { /* cudnnDataType_t */
                DNN_FLOAT = 0,
                DNN_HALF = 2,
                DNN_INT32 = 4,
                DNN_BFLOAT16 = 9,
                DNN_BOOLEAN = 11,
};
enum dnn_pointwise { /* cudnnPointwiseMode_t */
                     DNN_ADD = 0,
                     DNN_MUL = 1,
                     DNN_DIV = 6,
                     DNN_SUB = 9,
                     DNN_EXP = 13,
                     DNN_LOG = 15,
                     DNN_CMP_GE = 303,
                     DNN_GEN_INDEX = 501,
                     DNN_SELECT = 601,
};
enum dnn_reduce { DNN_REDUCE_ADD = 0, DNN_REDUCE_MAX = 3 }; /* cudnnReduceTensorOp_t */
enum { DNN_HEURISTIC_A = 3, DNN_NOTE_NONDETERMINISTIC = 4, DNN_NOTES = 16 };

enum dnn_attribute_type { /* cudnnBackendAttributeType_t */
                          DNN_T_HANDLE = 0,
                          DNN_T_DATA_TYPE = 1,
                          DNN_T_BOOLEAN = 2,
                          DNN_T_INT64 = 3,
                          DNN_T_FLOAT = 4,
                          DNN_T_POINTER = 6,
                          DNN_T_HEURISTIC = 8,
                          DNN_T_NUMERICAL_NOTE = 11,
                          DNN_T_POINTWISE = 14,
                          DNN_T_DESCRIPTOR = 15,
                          DNN_T_REDUCTION = 18,
};
enum dnn_kind { /* cudnnBackendDescriptorType_t */
                DNN_K_POINTWISE = 0,
                DNN_K_ENGINE = 2,
                DNN_K_ENGINE_CONFIG = 3,
                DNN_K_HEURISTIC = 4,
                DNN_K_PLAN = 5,
                DNN_K_POINTWISE_OP = 13,
                DNN_K_GRAPH = 15,
                DNN_K_PACK = 16,
                DNN_K_TENSOR = 17,
                DNN_K_MATMUL = 18,
                DNN_K_MATMUL_OP = 19,
                DNN_K_REDUCTION = 21,
                DNN_K_REDUCTION_OP = 22,
                DNN_K_RESHAPE_OP = 31,
};
enum dnn_key { /* cudnnBackendAttributeName_t */
               DNN_POINTWISE_MODE = 0,
               DNN_POINTWISE_PRECISION = 1,
               DNN_POINTWISE_AXIS = 9,
               DNN_HEURISTIC_MODE = 200,
               DNN_HEURISTIC_GRAPH = 201,
               DNN_HEURISTIC_RESULTS = 202,
               DNN_CONFIG_ENGINE = 300,
               DNN_PLAN_HANDLE = 400,
               DNN_PLAN_CONFIG = 401,
               DNN_PLAN_WORKSPACE = 402,
               DNN_POINTWISE_OP_DESC = 750,
               DNN_POINTWISE_OP_X = 751,
               DNN_POINTWISE_OP_B = 752,
               DNN_POINTWISE_OP_Y = 753,
               DNN_POINTWISE_OP_ALPHA1 = 754,
               DNN_POINTWISE_OP_ALPHA2 = 755,
               DNN_POINTWISE_OP_T = 758,
               DNN_GRAPH_HANDLE = 800,
               DNN_GRAPH_OPS = 801,
               DNN_TENSOR_ALIGNMENT = 900,
               DNN_TENSOR_TYPE = 901,
               DNN_TENSOR_DIMS = 902,
               DNN_TENSOR_STRIDES = 903,
               DNN_TENSOR_ID = 906,
               DNN_TENSOR_VIRTUAL = 907,
               DNN_TENSOR_BY_VALUE = 908,
               DNN_PACK_IDS = 1000,
               DNN_PACK_POINTERS = 1001,
               DNN_PACK_WORKSPACE = 1003,
               DNN_ENGINE_INDEX = 1301,
               DNN_ENGINE_NOTES = 1303,
               DNN_MATMUL_PRECISION = 1500,
               DNN_MATMUL_OP_A = 1520,
               DNN_MATMUL_OP_B = 1521,
               DNN_MATMUL_OP_C = 1522,
               DNN_MATMUL_OP_DESC = 1523,
               DNN_REDUCTION_OPERATOR = 1600,
               DNN_REDUCTION_PRECISION = 1601,
               DNN_REDUCTION_OP_X = 1610,
               DNN_REDUCTION_OP_Y = 1611,
               DNN_REDUCTION_OP_DESC = 1612,
               DNN_RESHAPE_OP_X = 2200,
               DNN_RESHAPE_OP_Y = 2201,
};

#endif
