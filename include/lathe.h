/* SPDX-License-Identifier: Apache-2.0 */
/* lathe.h - training of ONNX models from C and C++. What is not in this header is not API.
 *
 * Three objects. A *context* holds the allocator, the diagnostics sink and the worker threads. A
 * *model* is an ONNX file, imported, with a decision for every tensor in it. A *trainer* is a model
 * compiled for training: loss, gradients, optimizer and memory planned; each step takes one batch
 * and returns the loss.
 *
 *     lathe_context *ctx;  lathe_model *model;  lathe_trainer *trainer;
 *     lathe_context_create(NULL, &ctx);
 *     lathe_model_open(ctx, "model.onnx", NULL, &model);
 *     lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
 *     o.loss = "cross_entropy(logits, labels)";
 *     lathe_trainer_create(model, &o, &trainer);
 *     lathe_tensor x, y;
 *     lathe_trainer_input(trainer, "x", &x);       // write the batch into x.data ...
 *     lathe_trainer_input(trainer, "labels", &y);
 *     lathe_step s = LATHE_STEP_INIT;
 *     lathe_trainer_step(trainer, &s);              // s.loss
 *     lathe_trainer_export(trainer, "trained.onnx");
 *
 * Errors. What can fail returns a status; the story is told to the context's `report` callback: one
 * line, with the ONNX node or file it is about. Only a NULL where an object or a text is needed is
 * LATHE_USAGE without a line. Handed-out pointers are NULL and views zeroed on failure. Beside the
 * statuses a function lists, every one may give OUT_OF_MEMORY and INTERNAL; after those, destroying
 * is all that may be done with the objects involved. Nothing exits, prints or reads the
 * environment.
 *
 * Ownership. What a function hands out through a `**` parameter is the caller's to destroy or free,
 * in the order trainer, model, context; destroying NULL does nothing. Tensor views and strings are
 * borrowed; each says until when. Texts in options are only read during the call that takes them.
 *
 * Threads. A context and everything made from it is used by one thread at a time; different
 * contexts are independent. Worker threads belong to the context. Results are bit-identical for any
 * number of threads. A GPU belongs to the context that first names it and is given back with it.
 *
 * Option structs start with their size; use the _INIT macros. Fields are only ever appended. */
#ifndef LATHE_H
#define LATHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LATHE_API __attribute__((visibility("default")))

typedef enum lathe_status {
    LATHE_OK = 0,
    LATHE_USAGE = 1,       /* an argument that makes no sense */
    LATHE_IO = 2,          /* a file could not be opened, read or written */
    LATHE_PARSE = 3,       /* bytes or text that are not what they claim to be */
    LATHE_UNSUPPORTED = 4, /* legal input that Lathe cannot handle */
    LATHE_SHAPE = 5,
    LATHE_TYPE = 6,
    LATHE_DATA = 7,      /* data that does not fit the model */
    LATHE_NONFINITE = 8, /* the loss or a gradient became NaN or infinite; nothing was updated */
    LATHE_STOPPED = 9,   /* a callback asked to stop */
    LATHE_OUT_OF_MEMORY = 10,
    LATHE_INTERNAL = 11, /* a bug in Lathe */
    LATHE_STATUS_MAX = 0x7fffffff
} lathe_status;

typedef enum lathe_severity {
    LATHE_NOTE = 0,
    LATHE_WARNING = 1,
    LATHE_ERROR = 2,
    LATHE_SEVERITY_MAX = 0x7fffffff
} lathe_severity;

/* Element types, numbered as in ONNX (TensorProto.DataType). */
typedef enum lathe_dtype {
    LATHE_F32 = 1,
    LATHE_U8 = 2,
    LATHE_I8 = 3,
    LATHE_I16 = 5,
    LATHE_I32 = 6,
    LATHE_I64 = 7,
    LATHE_BOOL = 9,
    LATHE_F16 = 10,
    LATHE_F64 = 11,
    LATHE_BF16 = 16,
    LATHE_E4M3 = 17,
    LATHE_E5M2 = 19,
    LATHE_DTYPE_MAX = 0x7fffffff
} lathe_dtype;

typedef struct lathe_context lathe_context;
typedef struct lathe_model lathe_model;
typedef struct lathe_trainer lathe_trainer;

/* A view of packed, row-major elements; `shape` and `data` are borrowed. */
typedef struct lathe_tensor {
    const char *name;
    lathe_dtype dtype;
    int32_t rank;
    const int64_t *shape;
    void *data;
    size_t bytes;
} lathe_tensor;

/* ---- context ------------------------------------------------------------------------------------
 */
typedef struct lathe_context_options {
    size_t size;
    /* NULL for all three: malloc and free. `alloc` may return NULL: LATHE_OUT_OF_MEMORY follows. */
    void *(*alloc)(void *user, size_t bytes);
    void (*release)(void *user, void *ptr);
    void *alloc_user;
    /* Every diagnostic; strings are valid during the call. Must return normally. NULL: dropped. */
    void (*report)(void *user, lathe_severity severity, lathe_status status, const char *origin,
                   const char *message);
    void *report_user;
    int32_t threads; /* CPU threads, at most 1024; 0: as many as the process may use */
    /* For GPUs; NULL for none. */
    const char *cache_dir; /* folder in which compiled kernels are kept; made when needed */
    const char *cuda_dir;  /* folder in which NVRTC, cuBLASLt and cuDNN are looked for first */
    const char *compiled;  /* file of `lathe compile`: kernels that need no compiling */
} lathe_context_options;
#define LATHE_CONTEXT_OPTIONS_INIT                                                                 \
    { sizeof(lathe_context_options), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Create a context. `options` may be NULL. Statuses: USAGE, OUT_OF_MEMORY. Thread safety: any
 * thread. */
LATHE_API lathe_status lathe_context_create(const lathe_context_options *options,
                                            lathe_context **out);
/* Thread safety: no other use of the context at the time. */
LATHE_API void lathe_context_destroy(lathe_context *ctx);
/* "0.1.0"; static. Thread safety: any thread. */
LATHE_API const char *lathe_version(void);
/* A short word for a status; static. Thread safety: any thread. */
LATHE_API const char *lathe_status_name(lathe_status status);
/* Free a text that a function of this library handed out. Thread safety: as the context's. */
LATHE_API void lathe_text_free(lathe_context *ctx, char *text);

/* ---- model
 * --------------------------------------------------------------------------------------- */
typedef struct lathe_model_options {
    size_t size;
    const char
        *train_regex; /* POSIX extended; also train matching parameters that would be frozen */
    const char *freeze_regex; /* keep matching parameters as they are */
    int64_t batch;    /* size of a symbolic first dimension of the inputs; 0: from the data, else
                         symbolic */
    int64_t seq;      /* size of a symbolic second dimension of integer inputs; 0 likewise */
    const char *data; /* file whose arrays size the symbolic dimensions of the inputs they are named
                         like (a batch of all samples); tokens and text: batch 8, seq up to 128 */
    const char *const *map; /* "INPUT=ARRAY" renames for `data`; nmap of them */
    int32_t nmap;
    int32_t inference; /* 1: BatchNorm on running statistics, Dropout off (eval, run) */
} lathe_model_options;
#define LATHE_MODEL_OPTIONS_INIT                                                                   \
    { sizeof(lathe_model_options), 0, 0, 0, 0, 0, 0, 0, 0 }

/* Open an ONNX file, or a directory holding exactly one. `options` may be NULL.
 * Statuses: USAGE, IO, PARSE, UNSUPPORTED (lists everything at once), SHAPE, TYPE, DATA (one symbol
 * with two sizes). Thread safety: as the context's. */
LATHE_API lathe_status lathe_model_open(lathe_context *ctx, const char *path,
                                        const lathe_model_options *options, lathe_model **out);
LATHE_API void lathe_model_destroy(lathe_model *model);
/* Inputs, outputs, every parameter with its decision and reason, ops, unsupported things. Works for
 * models that lathe_model_open would refuse as unsupported. `json`: not 0 for JSON. `*text` is
 * freed with lathe_text_free. Statuses: as lathe_model_open. Thread safety: as the context's. */
LATHE_API lathe_status lathe_info(lathe_context *ctx, const char *path,
                                  const lathe_model_options *options, int32_t json, char **text);

/* ---- training
 * ------------------------------------------------------------------------------------- */
typedef struct lathe_train_options {
    size_t size;
    const char *loss;      /* see `lathe train --help`; NULL: chosen when only one makes sense */
    const char *optimizer; /* "adamw" (NULL), "adam", "sgd" */
    const char *recipe;    /* "fp32" (NULL), "bf16", another of `lathe recipes`, or a file */
    double lr;             /* learning rate of the first step; changed by lathe_trainer_set_lr */
    /* PyTorch's defaults where negative. Betas and eps are Adam's, momentum, dampening and nesterov
     * SGD's: USAGE with the other one. */
    double beta1, beta2, eps, weight_decay, momentum, dampening;
    int32_t nesterov;
    double clip; /* largest global gradient norm; 0: none */
    uint64_t seed;
    int32_t keep_gradients; /* 1: lathe_trainer_get("grad/NAME") works */
    int32_t no_optimize;    /* 1: skip optimising passes and fusion (a reference to compare with) */
    int64_t accumulate;     /* micro-batches per update, up to 2^30 (0, 1: every step updates) */
    /* "cpu" (NULL), "cuda" or "cuda:N" for a GPU, "auto" for the first GPU that can be used, else
     * the CPU. On a GPU parameters and states stay there: see lathe_trainer_get. */
    const char *device;
} lathe_train_options;
#define LATHE_TRAIN_OPTIONS_INIT                                                                   \
    { sizeof(lathe_train_options), 0, 0, 0, 1e-3, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 1, 0 }

typedef struct lathe_step {
    size_t size;
    double loss;      /* mean over the (micro-)batch, before the update */
    double grad_norm; /* before clipping; with accumulation of the sum so far */
    int64_t step;     /* of this update, or of the one this micro-batch goes into, from 1 */
} lathe_step;
#define LATHE_STEP_INIT                                                                            \
    { sizeof(lathe_step), 0, 0, 0 }

/* Compile the model for training. The model must outlive the trainer; all its dimensions must be
 * known. A model may have several trainers. Statuses: USAGE, UNSUPPORTED (also a device that cannot
 * be used), SHAPE, TYPE, IO (the GPU failed), OUT_OF_MEMORY (of a GPU: with the largest batch that
 * fits). Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_create(lathe_model *model, const lathe_train_options *options,
                                            lathe_trainer **out);
LATHE_API void lathe_trainer_destroy(lathe_trainer *trainer);
/* The memory of input or label `name`, [batch, ...], valid until the trainer is destroyed: write
 * the next batch into it. By index from 0 for those who want all; USAGE, without a line, past the
 * end. Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_input(lathe_trainer *trainer, const char *name,
                                           lathe_tensor *out);
LATHE_API lathe_status lathe_trainer_input_at(lathe_trainer *trainer, int32_t index,
                                              lathe_tensor *out);
/* One step on the current inputs; `result` may be NULL. With `accumulate` = K, one micro-batch, and
 * every K-th call updates with the mean of the last K gradients: every micro-batch weighs the same,
 * also when ignored labels (-100) leave one with fewer targets. LATHE_NONFINITE: the loss or
 * gradient norm is NaN or infinite; parameters and states are as before, `result` holds the values,
 * and the diagnostic names the op or tensor that it came from. LATHE_DATA: a label or index is out
 * of range; nothing was updated. LATHE_IO: the GPU failed, and what is on it cannot be trusted.
 * Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_step(lathe_trainer *trainer, lathe_step *result);
/* Loss on the current inputs without changing parameters or states: what lathe_trainer_step would
 * return next. The forward pass is the training one (batch statistics, dropout). Statuses: DATA.
 * Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_loss(lathe_trainer *trainer, double *loss);
/* The learning rate from the next step on: 0 to 1e30, else USAGE. Thread safety: as the context's.
 */
LATHE_API lathe_status lathe_trainer_set_lr(lathe_trainer *trainer, double lr);
/* A parameter, state or output by name (with keep_gradients also "grad/NAME"), else USAGE. The
 * memory is valid until the trainer is destroyed. Outputs change with each step. Parameters and
 * states do so on the CPU, where they may be written to; on a GPU they are a copy as of the last
 * such call, and writing to it changes nothing: lathe_trainer_set works everywhere. IO: the GPU
 * failed. Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_get(lathe_trainer *trainer, const char *name,
                                         lathe_tensor *out);
/* The same for parameters, trained and frozen, by index from 0; USAGE, without a line, past the
 * end. Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_param_at(lathe_trainer *trainer, int32_t index,
                                              lathe_tensor *out);
/* Set a parameter or state by name: `bytes` packed elements of its type, USAGE with another number.
 * IO: the GPU failed. Thread safety: as the context's. */
LATHE_API lathe_status lathe_trainer_set(lathe_trainer *trainer, const char *name, const void *data,
                                         size_t bytes);
/* "cpu" or "cuda:N"; valid until the context is destroyed. Thread safety: as the context's. */
LATHE_API const char *lathe_trainer_device(const lathe_trainer *trainer);
/* Bytes held for tensors, as predicted by the plan. Thread safety: as the context's. */
LATHE_API size_t lathe_trainer_bytes(const lathe_trainer *trainer);
/* Write the trained weights into a copy of the user's own ONNX graph; past 1.9 GB they go to
 * `path`.data. Statuses: IO, UNSUPPORTED (a weight inside a function or subgraph). Thread safety:
 * as the context's. */
LATHE_API lathe_status lathe_trainer_export(lathe_trainer *trainer, const char *path);

#ifdef __cplusplus
}
#endif
#endif
