// SPDX-License-Identifier: Apache-2.0
/* codegen.h - from a graph to a plan: fusion, kernel choice, memory. The face of codegen/. */
#ifndef LATHE_CODEGEN_CODEGEN_H
#define LATHE_CODEGEN_CODEGEN_H

#include "ir/plan.h"

struct codegen_options {
    int threads;    /* CPU threads that workspaces are sized for, >= 1 */
    int cuda_arch;  /* 0: for the CPU; 80, 90 or 100: kernels and workspaces for that GPU */
    bool tf32;      /* products of f32 on the GPU may round their operands to TF32 */
    bool no_fusion; /* every node its own launch, every buffer its own memory: the reference */
    bool as_gpu; /* a plan for the CPU is fused as one for a GPU, to see what that would compute */
};

/* Build the plan of a static graph (no symbolic dims: ST_SHAPE names the first symbol). */
enum status plan_build(struct graph *g, const struct codegen_options *o,
                       struct plan **out) MUST_USE;

/* Kernels, calls and workspace bytes of every launch of a plan for p->cuda_arch (cuda_*.c). Called
 * by plan_build before memory is planned. */
enum status plan_emit_cuda(struct plan *p) MUST_USE;
/* Workspace bytes of launch i, after plan_emit_cuda. */
int64_t plan_cuda_workspace(const struct plan *p, uint32_t i);

/* The embedded kernel files (codegen/kernels): name and text; NULL past the end. */
struct kernel_file {
    const char *name;
    const char *text;
    size_t size;
};
const struct kernel_file *kernel_file_at(int i);

/* Assign offsets: greedy by size over lifetimes, aliases first. Fills offset and arena_bytes. */
enum status plan_memory(struct plan *p, bool unique_buffers) MUST_USE;

#endif
