// SPDX-License-Identifier: Apache-2.0
/* matmul.h - one product as cuBLASLt sees it; shared by matmul.c, which describes and runs it, and
 * matmul_choose.c, which picks the algorithm. */
#ifndef LATHE_RUNTIME_CUDA_MATMUL_H
#define LATHE_RUNTIME_CUDA_MATMUL_H

#include "runtime/cuda/impl.h"

enum { LT_WORKSPACE = PLAN_LIBRARY_BYTES };

/* All that a choice of algorithm depends on, in cuBLASLt's column-major terms. `r` is the matrix
 * that is added: a residual, or the result itself. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc, ldr, batch, sa, sb, sc, sr;
    uint32_t align_a, align_b, align_c, align_r;
    int32_t ta, tb, type_a, type_b, result, compute; /* element types, arithmetic: the library's */
    int32_t scales;                                  /* LT_SCALE_* of codes, or -1 */
    int32_t fast;                                    /* short accumulators */
    int32_t epilogue, beta, residual;                /* LT_EPILOGUE_* */
    int32_t unused;                                  /* no padding: shapes are compared as bytes */
};
struct chosen_algo {
    struct shape shape;
    struct lt_algo algo;
    size_t workspace;
};

/* One strided call, repeated at each of `loops` quadruples of offsets (bytes): a, b, result,
 * residual, in the plan's order. */
struct product {
    struct shape shape;
    bool swap;                   /* the plan's b is cuBLASLt's a */
    bool clear;                  /* K is 0: nothing is added up */
    uint32_t nin, bias;          /* operands; the bias' */
    int64_t elem, elem_c, loops; /* bytes of an operand's and a result's element */
    int64_t (*offsets)[4];
    double alpha;
    lt_desc desc;
    lt_layout a, b, c, r; /* r: NULL when the result is what is added to */
    struct chosen_algo *algo;
    struct cuda *d;
};

/* Where one call works; a, b as cuBLASLt names them, `add` is c when there is no residual. */
struct product_memory {
    cu_ptr a, b, c, add, bias, scale_a, scale_b;
};
/* A library's error code. */
int product_call(struct cuda *d, const struct product *p, const struct product_memory *at,
                 const struct lt_algo *algo, size_t workspace);
/* Open the library; only the first call does anything. */
enum status lt_open(struct cuda *d) MUST_USE;
/* ST_OK, or a diagnostic with the library's words. */
enum status lt_status(struct cuda *d, int result, const char *origin, const char *what) MUST_USE;
const char *lt_words(int result);
/* Fills p->algo. */
enum status product_choose(struct cuda *d, struct product *p, const char *origin) MUST_USE;

#endif
