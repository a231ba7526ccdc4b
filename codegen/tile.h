// SPDX-License-Identifier: Apache-2.0
/* tile.h - groups that store some results transposed, through tiles in a GPU's shared memory: which
 * they are, and how copies become such stores. Not the kernel: cuda_group.c, kernels/tile.cuh. */
#ifndef LATHE_CODEGEN_TILE_H
#define LATHE_CODEGEN_TILE_H

#include "ir/plan_work.h"

/* Bytes of an element of the transposed results (1 or 2) when the group can run by tiles; 0: not.
 * It can when it is a MAP over two axes, both multiples of 16 bytes of such a result; there is at
 * least one such result, all of one size, the first axis inside; and the others are rows in pieces
 * of as many elements. `y` is plan_group_layout's. */
int tile_elem(const struct plan_group *g, const struct plan_launch *l,
              const struct group_layout *y);

#endif
