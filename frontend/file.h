// SPDX-License-Identifier: Apache-2.0
/* file.h - what the files of the ONNX layer (load, check, tensor, save) share. Users of the layer
 * include onnx.h. */
#ifndef LATHE_FRONTEND_FILE_H
#define LATHE_FRONTEND_FILE_H

#include "frontend/onnx.h"
#include "onnx.pb-c.h"

/* The default domain has two spellings; this gives "" for both. */
static inline const char *onnx_domain(const char *domain) {
    static const char verbose[] = "ai.onnx";
    for (int i = 0; domain[i] == verbose[i]; i++)
        if (!verbose[i]) return "";
    return domain;
}

/* Check the unpacked model, set m->opset, sort nodes where needed. */
enum status onnx_check(struct onnx_model *m) MUST_USE;

/* The bytes of a tensor whose data_location is EXTERNAL, of any fixed-size element type. */
enum status onnx_external_bytes(struct onnx_model *m, const Onnx__TensorProto *t, const char *what,
                                const uint8_t **data, size_t *n) MUST_USE;

/* onnx_save with another limit on the size of the .onnx file. */
enum status onnx_save_within(struct onnx_model *m, const struct onnx_replacement *r, uint32_t n,
                             const char *path, size_t limit) MUST_USE;

#endif
