// SPDX-License-Identifier: Apache-2.0
/* weights.c - facts about the contents of a tensor, each stopping at the first element that settles
 * it, because weights are mapped files that nobody wants to page in. */
#include "frontend/importer.h"
#include <math.h>
#include <string.h>

static const char *bytes_of(const struct onnx_tensor *t) {
    return t->data;
}

static double at(const struct onnx_tensor *t, int64_t i) {
    return dtype_load(t->type.dtype, bytes_of(t) + (size_t)i * dtype_size(t->type.dtype));
}

bool weight_uniform(const struct onnx_tensor *t, double *x) {
    int64_t n = type_count(&t->type);
    size_t size = dtype_size(t->type.dtype);
    if (n < 1) return false;
    /* Comparing with itself one element later stops at the first difference. */
    if (memcmp(bytes_of(t), bytes_of(t) + size, (size_t)(n - 1) * size) != 0) return false;
    *x = at(t, 0);
    return true;
}

/* Only 0 and numbers that switch a softmax off, with both present; or (zero_one) only 0 and 1. */
bool weight_is_mask(const struct onnx_tensor *t, bool *zero_one) {
    int64_t n = type_count(&t->type), zeros = 0, ones = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = at(t, i);
        zeros += x == 0;
        ones += x == 1;
        off += x <= -1e4;
        if (zeros + ones != i + 1 && zeros + off != i + 1) return false;
    }
    *zero_one = ones > 0;
    return zeros > 0 && (ones > 0 || off > 0);
}

bool weight_same(const struct onnx_tensor *a, const struct onnx_tensor *b, bool transposed) {
    size_t size = dtype_size(a->type.dtype);
    if (a->type.dtype != b->type.dtype || a->type.rank != 2 || b->type.rank != 2) return false;
    int64_t r = a->type.dims[0], c = a->type.dims[1];
    if (b->type.dims[transposed] != r || b->type.dims[!transposed] != c) return false;
    if (!transposed) return memcmp(a->data, b->data, (size_t)(r * c) * size) == 0;
    for (int64_t i = 0; i < r; i++)
        for (int64_t k = 0; k < c; k++)
            if (memcmp(bytes_of(a) + (size_t)(i * c + k) * size,
                       bytes_of(b) + (size_t)(k * r + i) * size, size) != 0)
                return false;
    return true;
}

/* Rounding of a*a + b*b in the type the tables are stored in. */
static double table_tolerance(enum dtype t) {
    return t == DT_bf16 ? 4e-2 : t == DT_f16 ? 6e-3 : 1e-4;
}

bool weights_rotary(const struct onnx_tensor *a, const struct onnx_tensor *b) {
    int64_t n = type_count(&a->type);
    if (!type_equal(&a->type, &b->type) || n < 4) return false;
    double radius = at(a, 0) * at(a, 0) + at(b, 0) * at(b, 0), x, y;
    double slack = table_tolerance(a->type.dtype) * radius;
    if (!(radius > 0.1 && radius < 10)) return false;
    for (int64_t i = 1; i < n; i++) {
        double p = at(a, i), q = at(b, i);
        if (!(fabs(p * p + q * q - radius) <= slack)) return false;
    }
    return !weight_uniform(a, &x) || !weight_uniform(b, &y);
}

bool weight_sinusoid(const struct onnx_tensor *t) {
    int rank = t->type.rank;
    int64_t n = type_count(&t->type), c = rank > 0 ? t->type.dims[rank - 1] : 0;
    double x, slack = table_tolerance(t->type.dtype) * 2;
    if (rank < 2 || c < 4 || c % 2 || n < 2 * c || weight_uniform(t, &x)) return false;
    for (int form = 0; form < 2; form++) {
        bool ok = true;
        for (int64_t i = 0; i < n && ok; i += c)
            for (int64_t k = 0; k < c / 2 && ok; k++) {
                double p = at(t, i + (form ? k : 2 * k)),
                       q = at(t, i + (form ? k + c / 2 : 2 * k + 1));
                ok = fabs(p * p + q * q - 1) <= slack;
            }
        if (ok) return true;
    }
    return false;
}

bool weight_repeats(const struct onnx_tensor *t, int axis) {
    int64_t outer = 1;
    size_t inner = dtype_size(t->type.dtype);
    for (int i = 0; i < axis; i++) outer *= t->type.dims[i];
    for (int i = axis + 1; i < t->type.rank; i++) inner *= (size_t)t->type.dims[i];
    int64_t n = t->type.dims[axis];
    for (int64_t o = 0; o < outer; o++) {
        const char *first = bytes_of(t) + (size_t)(o * n) * inner;
        if (n > 1 && memcmp(first, first + inner, (size_t)(n - 1) * inner) != 0) return false;
    }
    return n > 1 && outer > 0;
}
