// SPDX-License-Identifier: Apache-2.0
/* onnx_bytes.h - ONNX files written field by field, so that tests can also write wrong ones. Field
 * numbers are those of the ONNX specification. */
#ifndef LATHE_TEST_ONNX_BYTES_H
#define LATHE_TEST_ONNX_BYTES_H

#include "base/buf.h"
#include "test_util.h"

static inline struct buf pb(struct arena *a) {
    struct buf b;
    buf_init(&b, a);
    return b;
}

static inline void pb_varint(struct buf *b, uint64_t v) {
    do {
        uint8_t byte = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        buf_put(b, &byte, 1);
        v >>= 7;
    } while (v);
}

static inline void pb_int(struct buf *b, unsigned field, int64_t v) {
    pb_varint(b, field << 3);
    pb_varint(b, (uint64_t)v);
}

static inline void pb_bytes(struct buf *b, unsigned field, const void *p, size_t n) {
    pb_varint(b, field << 3 | 2);
    pb_varint(b, n);
    buf_put(b, p, n);
}

static inline void pb_str(struct buf *b, unsigned field, const char *s) {
    pb_bytes(b, field, s, strlen(s));
}

static inline void pb_msg(struct buf *b, unsigned field, struct buf m) {
    pb_bytes(b, field, m.at, m.n);
}

/* "a b  c" in order, each a string field; "-" is the empty name. */
static inline void pb_names(struct buf *b, unsigned field, const char *names) {
    while (*names) {
        size_t n = strcspn(names, " ");
        pb_bytes(b, field, names, n == 1 && *names == '-' ? 0 : n);
        names += n;
        names += *names == ' ';
    }
}

static inline struct buf pb_node(struct arena *a, const char *op, const char *in, const char *out) {
    struct buf b = pb(a);
    pb_names(&b, 1, in);
    pb_names(&b, 2, out);
    pb_str(&b, 4, op);
    return b;
}

/* A tensor without data: name, element type, dims. */
static inline struct buf pb_tensor(struct arena *a, const char *name, int type, int rank,
                                   const int64_t *dims) {
    struct buf b = pb(a);
    for (int i = 0; i < rank; i++) pb_int(&b, 1, dims[i]);
    pb_int(&b, 2, type);
    pb_str(&b, 8, name);
    return b;
}

static inline struct buf pb_external(struct arena *a, const char *key, const char *value) {
    struct buf b = pb(a);
    pb_str(&b, 1, key);
    pb_str(&b, 2, value);
    return b;
}

static inline struct buf pb_value(struct arena *a, const char *name, int type, int rank,
                                  const int64_t *dims) {
    struct buf v = pb(a), t = pb(a), tensor = pb(a), shape = pb(a);
    for (int i = 0; i < rank; i++) {
        struct buf d = pb(a);
        pb_int(&d, 1, dims[i]);
        pb_msg(&shape, 1, d);
    }
    pb_int(&tensor, 1, type);
    pb_msg(&tensor, 2, shape);
    pb_msg(&t, 1, tensor);
    pb_str(&v, 1, name);
    pb_msg(&v, 2, t);
    return v;
}

static inline struct buf pb_attribute(struct arena *a, const char *name, int type) {
    struct buf b = pb(a);
    pb_str(&b, 1, name);
    pb_int(&b, 20, type);
    return b;
}

static inline struct buf pb_opset(struct arena *a, const char *domain, int64_t version) {
    struct buf b = pb(a);
    pb_str(&b, 1, domain);
    pb_int(&b, 2, version);
    return b;
}

/* A model of IR version 8 and opset 17 around a graph, which comes last. */
static inline struct buf pb_model(struct arena *a, struct buf graph) {
    struct buf b = pb(a);
    pb_int(&b, 1, 8);
    pb_msg(&b, 8, pb_opset(a, "", 17));
    pb_msg(&b, 7, graph);
    return b;
}

#endif
