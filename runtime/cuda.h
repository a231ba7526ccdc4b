// SPDX-License-Identifier: Apache-2.0
/* cuda.h - the CUDA backend: the same plan on a GPU. Driver, NVRTC, cuBLASLt and cuDNN are opened
 * at run time; a machine without them loses nothing but this backend. Not the training loop. */
#ifndef LATHE_RUNTIME_CUDA_H
#define LATHE_RUNTIME_CUDA_H

#include "ir/plan.h"

struct cuda; /* an opened driver, one device, its context and compiled kernels */
struct cuda_info {
    char name[128];
    int arch; /* 90 for compute capability 9.0 */
    int processors;
    size_t memory_total, memory_free, l2;
    int driver_version; /* 13000 for CUDA 13.0 */
};
/* How many devices there are; 0 without a driver, with `why` saying so in words. */
int cuda_device_count(struct ctx *c, char why[256]);
/* Open device `index`. ST_UNSUPPORTED with one diagnostic: no driver, too old, no such device,
 * unsupported architecture, NVRTC missing. `cache_dir` holds compiled kernels (NULL: none kept). */
enum status cuda_open(struct ctx *c, int index, const char *cache_dir, struct cuda **out) MUST_USE;
void cuda_close(struct cuda *d); /* NULL is a no-op */
struct cuda_info cuda_get_info(const struct cuda *d);

/* The embedded kernel sources, handed over by the driver folder because runtime does not know
 * codegen. */
typedef const char *(*cuda_source_fn)(void *user, const char *file, size_t *size);

struct cuda_exec;
/* Compile or load the plan's kernels, allocate its arenas on the device, fill initial values.
 * ST_OUT_OF_MEMORY says what the plan needs and what there is. */
enum status cuda_create(struct cuda *d, const struct plan *p, cuda_source_fn source, void *user,
                        struct cuda_exec **out) MUST_USE;
void cuda_destroy(struct cuda_exec *x); /* NULL is a no-op */

/* Host staging of a named INPUT or OUTPUT buffer (pinned): inputs are uploaded by the next
 * cuda_run, outputs are there after it. NULL when there is none. */
void *cuda_host_buffer(struct cuda_exec *x, enum buffer_kind kind, const char *name);
/* Copy any buffer to or from the host; synchronous. */
enum status cuda_read(struct cuda_exec *x, buf_id b, void *to) MUST_USE;
enum status cuda_write(struct cuda_exec *x, buf_id b, const void *from) MUST_USE;

/* Launches [from, to), as cpu_run. `check` scans results. Whole steps are replayed as a CUDA graph.
 */
enum status cuda_run(struct cuda_exec *x, uint32_t from, uint32_t to, bool check) MUST_USE;
size_t cuda_bytes(const struct cuda_exec *x);                 /* device bytes held */
const double *cuda_profile(struct cuda_exec *x, bool enable); /* seconds per launch */

/* Compile a plan's kernels with NVRTC for its architecture without a GPU; reports spills and
 * warnings as errors. */
enum status cuda_compile_check(struct ctx *c, const struct plan *p, cuda_source_fn source,
                               void *user, uint32_t *kernels) MUST_USE;

#endif
