// SPDX-License-Identifier: Apache-2.0
/* wire.h - a bounded walk over protobuf bytes before protobuf-c sees them. It knows the schema
 * through protobuf-c's descriptors but nothing of what ONNX means. */
#ifndef LATHE_FRONTEND_WIRE_H
#define LATHE_FRONTEND_WIRE_H

#include "base/ctx.h"
#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

enum {
    WIRE_DEPTH_MAX = 64, /* nested messages; protobuf-c recurses on the stack */
    WIRE_REF_BYTES = 16, /* what stands for a raw_data field in the compact form */
};

struct wire_summary {
    size_t messages;  /* including the root */
    size_t refs, cut; /* raw_data fields to cut out, and their bytes */
    size_t unpacked;  /* upper bound of what protobuf-c allocates */
    size_t compact;   /* upper bound of the compact form */
};

/* Walk `n` bytes of a serialised `root` without recursion and without allocating. Fails with
 * ST_PARSE on truncation, lengths past the end, groups, unknown or mismatched wire types, bad tags,
 * a singular message given twice, text that is not UTF-8 or holds NUL, nesting beyond
 * WIRE_DEPTH_MAX, and files that would unpack to far more memory than their size explains. */
enum status wire_scan(struct ctx *c, const char *origin, const ProtobufCMessageDescriptor *root,
                      const uint8_t *bytes, size_t n, struct wire_summary *out) MUST_USE;

/* Write the same message to `to` (out->compact bytes from wire_scan) with every `bytes raw_data`
 * field replaced by a reference: offset and length in `bytes`, two native u64. Returns the size.
 * The bytes must have passed wire_scan. */
size_t wire_compact(const ProtobufCMessageDescriptor *root, const uint8_t *bytes, size_t n,
                    uint8_t *to);

/* Point every raw_data of an unpacked compact message into `bytes`. False when a reference is not
 * one that wire_compact wrote. */
bool wire_restore(ProtobufCMessage *msg, const uint8_t *bytes, size_t n);

/* Call fn for every message of type `desc` below and including `msg`, depth first, in field order;
 * stops and returns the status when fn fails. */
enum status wire_visit(ProtobufCMessage *msg, const ProtobufCMessageDescriptor *desc,
                       enum status (*fn)(void *user, ProtobufCMessage *m), void *user) MUST_USE;

#endif
