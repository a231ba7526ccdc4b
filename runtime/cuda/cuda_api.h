// SPDX-License-Identifier: Apache-2.0
/* cuda_api.h - the parts of the CUDA driver, NVRTC and cuBLASLt that Lathe calls, declared here so
 * that no toolkit is needed to build: names, prototypes and numbers of their public binary
 * interfaces. One table of functions each; device.c and compile.c fill them at run time. */
#ifndef LATHE_RUNTIME_CUDA_API_H
#define LATHE_RUNTIME_CUDA_API_H

#include "base/arena.h"
#include <stdint.h>

/* Handles are opaque pointers; device memory is an integer, as in the driver. */
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;
typedef unsigned long long cu_ptr;
typedef struct nvrtc_program_st *nvrtc_program;
typedef struct lt_handle_st *lt_handle;
typedef struct lt_desc_st *lt_desc;
typedef struct lt_layout_st *lt_layout;
typedef struct lt_preference_st *lt_preference;

enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_STUB_LIBRARY = 34,
    CU_NO_DEVICE = 100,
    CU_INVALID_IMAGE = 200,
    CU_ECC = 214,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_TIMEOUT = 702,
    CU_ASSERT = 710,
    CU_STACK_ERROR = 714, /* then illegal instruction, misaligned, address space, program counter */
    CU_LAUNCH_FAILED = 719,
    /* CUdevice_attribute */
    CU_ATTR_PROCESSORS = 16,
    CU_ATTR_L2 = 38,
    CU_ATTR_MAJOR = 75,
    CU_ATTR_MINOR = 76,
    CU_ATTR_SHARED_OPTIN = 97,
    /* others */
    CU_FUNC_SHARED = 1,
    CU_FUNC_REGISTERS = 4,
    CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    CU_FUNC_SHARED_CARVEOUT = 9, /* percent */
    CU_OWN_STREAM = 1,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_VERSION_WANTED = 12000, /* the driver interface asked of cuGetProcAddress */
};

// clang-format off
/* F(result type, name, arguments) */
#define CUDA_DRIVER(F)                                                                             \
    F(int, cuInit, (unsigned flags))                                                               \
    F(int, cuDriverGetVersion, (int *version))                                                     \
    F(int, cuGetErrorName, (int error, const char **text))                                         \
    F(int, cuGetErrorString, (int error, const char **text))                                       \
    F(int, cuDeviceGetCount, (int *n))                                                             \
    F(int, cuDeviceGet, (int *device, int ordinal))                                                \
    F(int, cuDeviceGetName, (char *name, int size, int device))                                    \
    F(int, cuDeviceGetAttribute, (int *value, int attribute, int device))                          \
    F(int, cuDeviceTotalMem, (size_t *bytes, int device))                                          \
    F(int, cuDevicePrimaryCtxRetain, (cu_context *context, int device))                            \
    F(int, cuDevicePrimaryCtxRelease, (int device))                                                \
    F(int, cuCtxSetCurrent, (cu_context context))                                                  \
    F(int, cuMemGetInfo, (size_t *available, size_t *total))                                       \
    F(int, cuMemAlloc, (cu_ptr *at, size_t bytes))                                                 \
    F(int, cuMemFree, (cu_ptr at))                                                                 \
    F(int, cuMemHostAlloc, (void **at, size_t bytes, unsigned flags))                              \
    F(int, cuMemFreeHost, (void *at))                                                              \
    F(int, cuMemcpyHtoDAsync, (cu_ptr to, const void *from, size_t bytes, cu_stream stream))       \
    F(int, cuMemcpyDtoHAsync, (void *to, cu_ptr from, size_t bytes, cu_stream stream))             \
    F(int, cuMemcpyDtoDAsync, (cu_ptr to, cu_ptr from, size_t bytes, cu_stream stream))            \
    F(int, cuMemsetD8Async, (cu_ptr at, unsigned char value, size_t bytes, cu_stream stream))      \
    F(int, cuMemsetD2D8Async, (cu_ptr at, size_t pitch, unsigned char value, size_t width,         \
                               size_t height, cu_stream stream))                                   \
    F(int, cuStreamCreate, (cu_stream *stream, unsigned flags))                                    \
    F(int, cuStreamDestroy, (cu_stream stream))                                                    \
    F(int, cuStreamSynchronize, (cu_stream stream))                                                \
    F(int, cuStreamBeginCapture, (cu_stream stream, int mode))                                     \
    F(int, cuStreamEndCapture, (cu_stream stream, cu_graph *graph))                                \
    F(int, cuGraphInstantiateWithFlags, (cu_graph_exec *exec, cu_graph graph,                      \
                                         unsigned long long flags))                                \
    F(int, cuGraphLaunch, (cu_graph_exec exec, cu_stream stream))                                  \
    F(int, cuGraphExecDestroy, (cu_graph_exec exec))                                               \
    F(int, cuGraphDestroy, (cu_graph graph))                                                       \
    F(int, cuEventCreate, (cu_event *event, unsigned flags))                                       \
    F(int, cuEventDestroy, (cu_event event))                                                       \
    F(int, cuEventRecord, (cu_event event, cu_stream stream))                                      \
    F(int, cuEventElapsedTime, (float *milliseconds, cu_event start, cu_event end))                \
    F(int, cuModuleLoadData, (cu_module *module, const void *image))                               \
    F(int, cuModuleUnload, (cu_module module))                                                     \
    F(int, cuModuleGetFunction, (cu_function *function, cu_module module, const char *name))       \
    F(int, cuFuncSetAttribute, (cu_function function, int attribute, int value))                   \
    F(int, cuFuncGetAttribute, (int *value, int attribute, cu_function function))                  \
    F(int, cuLaunchKernel, (cu_function function, unsigned gx, unsigned gy, unsigned gz,           \
                            unsigned bx, unsigned by, unsigned bz, unsigned shared,                \
                            cu_stream stream, void **arguments, void **extra))

#define CUDA_NVRTC(F)                                                                              \
    F(int, nvrtcVersion, (int *major, int *minor))                                                 \
    F(const char *, nvrtcGetErrorString, (int error))                                              \
    F(int, nvrtcCreateProgram, (nvrtc_program *program, const char *source, const char *name,      \
                                int headers, const char *const *texts, const char *const *names))  \
    F(int, nvrtcDestroyProgram, (nvrtc_program *program))                                          \
    F(int, nvrtcCompileProgram, (nvrtc_program program, int options, const char *const *option))   \
    F(int, nvrtcGetCUBINSize, (nvrtc_program program, size_t *bytes))                              \
    F(int, nvrtcGetCUBIN, (nvrtc_program program, char *to))                                       \
    F(int, nvrtcGetProgramLogSize, (nvrtc_program program, size_t *bytes))                         \
    F(int, nvrtcGetProgramLog, (nvrtc_program program, char *to))

#define CUDA_LT(F)                                                                                 \
    F(int, cublasLtCreate, (lt_handle *handle))                                                    \
    F(int, cublasLtDestroy, (lt_handle handle))                                                    \
    F(size_t, cublasLtGetVersion, (void))                                                          \
    F(int, cublasLtMatmulDescCreate, (lt_desc *desc, int compute, int scale))                      \
    F(int, cublasLtMatmulDescDestroy, (lt_desc desc))                                              \
    F(int, cublasLtMatmulDescSetAttribute, (lt_desc desc, int key, const void *at, size_t bytes))  \
    F(int, cublasLtMatrixLayoutCreate, (lt_layout *layout, int type, uint64_t rows, uint64_t cols, \
                                        int64_t ld))                                               \
    F(int, cublasLtMatrixLayoutDestroy, (lt_layout layout))                                        \
    F(int, cublasLtMatrixLayoutSetAttribute, (lt_layout layout, int key, const void *at,           \
                                              size_t bytes))                                       \
    F(int, cublasLtMatmulPreferenceCreate, (lt_preference *preference))                            \
    F(int, cublasLtMatmulPreferenceDestroy, (lt_preference preference))                            \
    F(int, cublasLtMatmulPreferenceSetAttribute, (lt_preference preference, int key,               \
                                                  const void *at, size_t bytes))                   \
    F(int, cublasLtMatmulAlgoGetHeuristic, (lt_handle handle, lt_desc desc, lt_layout a,           \
        lt_layout b, lt_layout c, lt_layout d, lt_preference preference, int wanted,               \
        struct lt_candidate *out, int *found))                                                     \
    F(int, cublasLtMatmulAlgoCheck, (lt_handle handle, lt_desc desc, lt_layout a, lt_layout b,     \
        lt_layout c, lt_layout d, const struct lt_algo *algo, struct lt_candidate *out))           \
    F(int, cublasLtMatmul, (lt_handle handle, lt_desc desc, const void *alpha, cu_ptr a,           \
        lt_layout la, cu_ptr b, lt_layout lb, const void *beta, cu_ptr c, lt_layout lc, cu_ptr d,  \
        lt_layout ld, const struct lt_algo *algo, cu_ptr workspace, size_t bytes, cu_stream stream))
// clang-format on

struct lt_algo {
    uint64_t data[8];
};
struct lt_candidate { /* cublasLtMatmulHeuristicResult_t */
    struct lt_algo algo;
    size_t workspace;
    int state; /* 0: usable */
    float waves;
    int reserved[4];
};
enum {
    LT_COMPUTE_32F = 68,
    LT_COMPUTE_64F = 70,
    LT_COMPUTE_TF32 = 77,
    LT_R_32F = 0,
    LT_R_64F = 1,
    LT_R_16F = 2,
    LT_R_16BF = 14,
    LT_R_E4M3 = 28,
    LT_R_E5M2 = 29,
    LT_DESC_TRANSA = 3,
    LT_DESC_TRANSB = 4,
    LT_DESC_EPILOGUE = 7,
    LT_DESC_BIAS = 8,     /* pointer; of the result's type */
    LT_DESC_SCALE_A = 17, /* pointers to f32 */
    LT_DESC_SCALE_B = 18,
    LT_DESC_FAST_ACCUM = 25, /* i8 */
    LT_DESC_SCALE_MODE_A = 31,
    LT_DESC_SCALE_MODE_B = 32,
    LT_SCALE_ONE = 0,
    LT_SCALE_LINES = 3,    /* one for each row of a, column of b */
    LT_EPILOGUE_BIAS = 4,  /* a value for each row of the column-major result */
    LT_EPILOGUE_GELU = 32, /* the tanh form; may be added to the bias */
    LT_LAYOUT_BATCH_COUNT = 5,
    LT_LAYOUT_BATCH_STRIDE = 6,
    LT_PREF_WORKSPACE = 1,
    LT_PREF_REDUCTION = 3,
    LT_PREF_ALIGN_A = 5, /* then B, C, D */
    /* Partial sums in memory of their own, added in order; not in place, whose order may vary. */
    LT_REDUCE_ORDERED = 2 | 4,
};

#define CUDA_MEMBER(type, name, args) type(*name) args;
struct driver_api {
    CUDA_DRIVER(CUDA_MEMBER)
};
struct nvrtc_api {
    CUDA_NVRTC(CUDA_MEMBER)
};
struct lt_api {
    CUDA_LT(CUDA_MEMBER)
};
#undef CUDA_MEMBER

#endif
