// SPDX-License-Identifier: Apache-2.0
/* backend.h - where a plan runs: the CPU or one GPU, behind one set of functions. A device is
 * opened once for each context and closed with it. Nothing else in driver/ runs a plan, but for
 * constant folding, which is the CPU's everywhere. */
#ifndef LATHE_DRIVER_BACKEND_H
#define LATHE_DRIVER_BACKEND_H

#include "codegen/codegen.h"
#include "include/lathe.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"

struct device {
    lathe_context *owner;
    const char *id;   /* "cpu", "cuda:0" */
    const char *name; /* of the hardware */
    const char *arch; /* "x86-64", "sm_90" */
    struct cuda *gpu; /* NULL: the CPU */
    int number;
    struct cuda_kernel_stats told; /* what notes have said about kernels so far */
    struct device *next;
};
/* "cpu", "cuda", "cuda:N", or "auto": the first GPU when there is one that can be used, else the
 * CPU, with a warning when a GPU is there that cannot. NULL is `otherwise`. ST_USAGE: another name;
 * ST_UNSUPPORTED: the GPU cannot be used, and why. */
enum status device_open(lathe_context *c, const char *name, const char *otherwise,
                        struct device **out) MUST_USE;
/* Its backends are released before. */
void device_close_all(lathe_context *c);
/* Options for a plan that the device can run. */
struct codegen_options device_codegen(const struct device *d, bool no_fusion);
size_t device_memory_free(const struct device *d); /* of a GPU, now; 0 for the CPU */
/* The embedded kernel texts, as cuda_source_fn. */
const char *device_kernel_source(void *user, const char *file, size_t *size);
/* The CPU in words, in `a`, and its memory in bytes (0: unknown). */
struct cpu_facts {
    const char *name, *arch;
    size_t memory_total, memory_free;
};
struct cpu_facts device_cpu_facts(struct arena *a);

/* An executor on a device. Zeroed: nothing, and release does nothing. */
struct backend {
    struct device *device;
    const struct plan *plan;
    struct cpu_exec *cpu;
    struct cuda_exec *gpu;
};
/* The plan, made with device_codegen, must outlive the backend. On failure, and after an unwind,
 * backend_release still works. Statuses: those of cpu_create and cuda_create. */
enum status backend_open(struct backend *b, struct device *d, const struct plan *p) MUST_USE;
void backend_release(struct backend *b);

/* Host memory that is the buffer itself: all of them on the CPU; on a GPU inputs and outputs,
 * copied by backend_run as it needs and gives them, and NULL for the rest. NULL for b.i 0. */
void *backend_memory(struct backend *b, buf_id id);
/* Copy a whole buffer; `to` and `from` have its bytes. */
enum status backend_read(struct backend *b, buf_id id, void *to) MUST_USE;
enum status backend_write(struct backend *b, buf_id id, const void *from) MUST_USE;
/* backend_memory, or a copy in `a` as of now. */
enum status backend_view(struct backend *b, buf_id id, struct arena *a, const void **out) MUST_USE;
/* As cpu_run and cuda_run. */
enum status backend_run(struct backend *b, uint32_t from, uint32_t to, bool check) MUST_USE;
size_t backend_bytes(const struct backend *b); /* on the device */
const double *backend_profile(struct backend *b, bool enable);

#endif
