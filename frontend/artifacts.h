// SPDX-License-Identifier: Apache-2.0
/* artifacts.h - ONNX Runtime's training artifacts: a directory with a training graph, an optimizer
 * graph and a checkpoint. Private to frontend/. */
#ifndef LATHE_FRONTEND_ARTIFACTS_H
#define LATHE_FRONTEND_ARTIFACTS_H

#include "frontend/file.h"

/* A tensor of a checkpoint; data points into the file. */
struct ort_tensor {
    const char *name;
    int32_t data_type; /* ONNX's numbers */
    int rank;
    const int64_t *dims;
    const uint8_t *data;
    size_t bytes;
};
/* Optimizer state of one parameter. */
struct ort_moments {
    const char *param;
    struct ort_tensor at[2];
    int count;
};
struct ort_checkpoint {
    struct ort_tensor *params; /* trained ones first */
    uint32_t nparams, ntrained;
    struct ort_moments *moments;
    uint32_t nmoments;
    int64_t step; /* updates done; 0 where no optimizer was saved */
};
/* Read `n` bytes of the file `name`, checking every offset. ST_PARSE or ST_UNSUPPORTED with one
 * diagnostic. */
enum status ort_checkpoint_read(struct ctx *c, struct arena *a, const char *name,
                                const uint8_t *bytes, size_t n,
                                struct ort_checkpoint *out) MUST_USE;

/* m->proto is the training graph and `optimizer` the optimizer graph, both checked: make of them,
 * in place, the forward graph with the checkpoint's weights as initializers, and a training_info
 * that differentiates and applies the optimizer. Gradient nodes and accumulators of the file are
 * dropped. To be checked again. */
enum status artifacts_join(struct onnx_model *m, const struct Onnx__ModelProto *optimizer,
                           const struct ort_checkpoint *checkpoint) MUST_USE;

#endif
