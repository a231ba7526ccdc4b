// SPDX-License-Identifier: Apache-2.0
/* cuda.h - the CUDA backend: the same plan on a GPU. Driver, NVRTC and cuBLASLt are opened at run
 * time; a machine without them loses nothing but this backend. Not the training loop.
 *
 * A device and its executors are used by one thread at a time. Everything runs on one stream, in
 * the order of the launches; results are bit-identical from run to run on the same GPU and
 * libraries. */
#ifndef LATHE_RUNTIME_CUDA_H
#define LATHE_RUNTIME_CUDA_H

#include "ir/plan.h"

struct cuda; /* an opened driver, one device, its context and compiled kernels */
struct cuda_info {
    char name[128];
    int arch; /* 90 for compute capability 9.0 */
    int processors;
    size_t memory_total, memory_free, l2; /* bytes; free: when the device was opened */
    int driver_version;                   /* 13000 for CUDA 13.0 */
    int nvrtc_version;                    /* 13000 likewise */
};
struct cuda_options {
    int device;
    const char *cache_dir;   /* compiled kernels are kept here; NULL: not kept */
    const char *library_dir; /* where NVRTC and cuBLASLt are looked for first; NULL: usual places */
    const char *compiled;    /* a file of cuda_pack that holds kernels; NULL: none */
    int compile_threads;     /* at most that many kernels at once; 0: one per CPU, at most 8 */
    bool no_cudnn;           /* attention in 16 bits by Lathe's own kernels, not by cuDNN */
};

/* How many devices there are; 0 without a driver, with `why` saying so in words. */
int cuda_device_count(struct ctx *c, char why[256]);
/* Open a device. ST_UNSUPPORTED with one diagnostic: no driver, too old, no such device,
 * unsupported architecture, NVRTC missing. The strings of `o` are copied. */
enum status cuda_open(struct ctx *c, const struct cuda_options *o, struct cuda **out) MUST_USE;
void cuda_close(struct cuda *d); /* NULL is a no-op; its executors are destroyed before */
struct cuda_info cuda_get_info(const struct cuda *d);
/* Bytes that a new executor can have, those that libraries share among all included; 0 when the
 * driver does not tell. */
size_t cuda_memory_free(const struct cuda *d);
/* What a plan for this device is made for (codegen_options.cuda_arch): 90 and 100 have kernels of
 * their own, every other GPU takes what 80 can do. */
int cuda_plan_arch(const struct cuda *d);
/* Kernels since cuda_open: built by NVRTC, taken from the cache directory, taken from the file of
 * compiled ones, and seconds for all. */
struct cuda_kernel_stats {
    uint32_t compiled, cached, packed;
    double seconds;
};
struct cuda_kernel_stats cuda_get_kernel_stats(const struct cuda *d);

/* The embedded kernel sources, handed over by the driver folder because runtime does not know
 * codegen. NULL for a file that does not exist; else its text, NUL-terminated, `*size` without the
 * NUL. */
typedef const char *(*cuda_source_fn)(void *user, const char *file, size_t *size);

struct cuda_exec;
/* Compile or load the plan's kernels, allocate its arenas on the device, fill initial values. The
 * plan must outlive the executor. ST_OUT_OF_MEMORY (returned, not unwound) says what the plan needs
 * and what there is; ST_USAGE: the plan was made for another GPU. */
enum status cuda_create(struct cuda *d, const struct plan *p, cuda_source_fn source, void *user,
                        struct cuda_exec **out) MUST_USE;
void cuda_destroy(struct cuda_exec *x); /* NULL is a no-op */

/* Host staging of a named INPUT or OUTPUT buffer (pinned, packed row-major): an input is uploaded
 * by every cuda_run whose launches read it, an output is there after a cuda_run that writes it.
 * NULL when there is none. */
void *cuda_host_buffer(struct cuda_exec *x, enum buffer_kind kind, const char *name);
void *cuda_host_buffer_at(struct cuda_exec *x, buf_id b); /* NULL: not an INPUT or OUTPUT */
/* Copy all of a buffer to or from the host; synchronous. Writing an INPUT also sets its staging. */
enum status cuda_read(struct cuda_exec *x, buf_id b, void *to) MUST_USE;
enum status cuda_write(struct cuda_exec *x, buf_id b, const void *from) MUST_USE;

/* Launches [from, to), with the errors of cpu_run; returns when they are done. `check` runs them
 * one by one and scans what they write. A range that is run again is replayed as a CUDA graph.
 * ST_IO means that the GPU or its driver failed: nothing on the device can be trusted any more. */
enum status cuda_run(struct cuda_exec *x, uint32_t from, uint32_t to, bool check) MUST_USE;
size_t cuda_bytes(const struct cuda_exec *x); /* device bytes held: plan_bytes() */
/* Launches that cuDNN computes; the kernels planned for them are not used. */
uint32_t cuda_cudnn_launches(const struct cuda_exec *x);
/* Seconds per launch since profiling was enabled. While it is, nothing is replayed as a graph. */
const double *cuda_profile(struct cuda_exec *x, bool enable);

/* Seconds for one copy of `bytes` within the device's memory (which it reads and writes): the
 * median of several. Takes twice that memory for as long. */
enum status cuda_measure_copy(struct cuda *d, size_t bytes, double *seconds) MUST_USE;
/* Mean seconds of launches [from, to) without any transfer, queued `times` times in a row. */
enum status cuda_measure_range(struct cuda_exec *x, uint32_t from, uint32_t to, int times,
                               double *seconds) MUST_USE;
/* What call `call` of launch `launch` takes of a processor. */
struct cuda_call_needs {
    int registers; /* per thread */
    int shared;    /* bytes per block, dynamic ones included */
};
enum status cuda_get_call_needs(const struct cuda_exec *x, uint32_t launch, uint32_t call,
                                struct cuda_call_needs *out) MUST_USE;

/* Compile a plan's kernels with NVRTC for its architecture without a GPU; a kernel that spills
 * registers, a serialised wgmma or a compiler warning is an error. `*kernels`: how many were
 * compiled. `o` may be NULL; of it only library_dir and compile_threads are used. */
enum status cuda_compile_check(struct ctx *c, const struct cuda_options *o, const struct plan *p,
                               cuda_source_fn source, void *user, uint32_t *kernels) MUST_USE;

/* Compile a plan's kernels for a GPU of compute capability `arch` (90 for 9.0), which need not be
 * there, into one file for cuda_options.compiled. `*kernels`: how many it holds. `o`: as for
 * cuda_open; of it cache_dir, library_dir and compile_threads are used. */
enum status cuda_pack(struct ctx *c, const struct cuda_options *o, const struct plan *p, int arch,
                      cuda_source_fn source, void *user, const char *path,
                      uint32_t *kernels) MUST_USE;

#endif
