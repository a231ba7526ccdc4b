// SPDX-License-Identifier: Apache-2.0
/* cpu.h - the CPU backend: executes a plan with C kernels and BLAS products on a thread pool.
 * Results are bit-identical for any number of threads. Not the training loop. */
#ifndef LATHE_RUNTIME_CPU_H
#define LATHE_RUNTIME_CPU_H

#include "base/pool.h"
#include "ir/plan.h"

struct cpu_exec;

/* Allocate the plan's arenas, fill constants, parameters and states from their initial values. The
 * plan must outlive the executor. `pool` has at most plan->threads threads. */
enum status cpu_create(struct ctx *c, const struct plan *p, struct pool *pool,
                       struct cpu_exec **out) MUST_USE;
void cpu_destroy(struct cpu_exec *x); /* NULL is a no-op */

/* The memory of a named buffer (packed, row-major), to fill inputs, read outputs, save or load
 * parameters and states between runs; NULL when there is none of that kind and name. */
void *cpu_buffer(struct cpu_exec *x, enum buffer_kind kind, const char *name);
void *cpu_buffer_at(struct cpu_exec *x, buf_id b);

/* Run launches [from, to). A gather, scatter or cross_entropy index out of range stops with ST_DATA
 * and a diagnostic that names the node and the value. When `check` is set, every float result is
 * scanned after its launch and the first launch with a NaN or infinite element (that its operands
 * did not have, -inf masks excepted) stops with ST_NONFINITE and is named. */
enum status cpu_run(struct cpu_exec *x, uint32_t from, uint32_t to, bool check) MUST_USE;

/* Bytes this executor holds from the allocator: what plan_bytes predicted. */
size_t cpu_bytes(const struct cpu_exec *x);

/* Time per launch since creation or the last reset; seconds[i] belongs to launch i. */
const double *cpu_profile(struct cpu_exec *x, bool enable);

#endif
