// SPDX-License-Identifier: Apache-2.0
/* cpu_group_prog.h - a group's program with kernels chosen and operands classified, ready to be
 * walked block by block. Private to runtime/cpu_group*.c. */
#ifndef LATHE_RUNTIME_CPU_GROUP_PROG_H
#define LATHE_RUNTIME_CPU_GROUP_PROG_H

#include "runtime/cpu_group.h"

enum step_kind {
    STEP_LOAD,
    STEP_IOTA,
    STEP_RANDOM,
    STEP_EW,
    STEP_CAST,
    STEP_STORE,
    STEP_REDUCE,
    STEP_COLSUM,
    STEP_PART,
};
/* How a kernel takes its operands: those in `splat` are repeated into temporaries first. */
struct ew_call {
    ew_fn *fn;
    uint8_t splat; /* bit k: operand k */
};
struct program_step {
    uint32_t instr, stage;
    enum step_kind kind;
    bool per_row; /* runs once per block on one value per row */
    bool hoisted;
    uint8_t nargs, row_args;  /* row_args: bit k: operand k has one value per row */
    struct ew_call as_scalar; /* row operands given one value at a time */
    struct ew_call as_vector; /* row operands given as vectors */
};
struct group_program {
    struct group_layout *y;
    const struct plan_group *g;
    uint32_t nsteps;
    struct program_step *steps;
};

#endif
