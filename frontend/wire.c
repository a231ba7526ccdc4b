// SPDX-License-Identifier: Apache-2.0
/* wire.c - the protobuf walker. The format is that of protobuf.dev/programming-guides/encoding.
 * protobuf-c itself recurses without a limit, cuts strings at NUL, does not check UTF-8 and
 * allocates some 80 bytes for each byte of hostile input, so nothing reaches it unscanned. */
#include "frontend/wire.h"
#include "base/diag.h"
#include "onnx.pb-c.h"
#include <string.h>

enum {
    WT_VARINT = 0,
    WT_FIXED64 = 1,
    WT_BYTES = 2,
    WT_GROUP = 3,
    WT_GROUP_END = 4,
    WT_FIXED32 = 5,
    VARINT_MAX = 10,
    TENSOR_RAW_DATA = 9, /* field number */
    LENGTH_PAD = 5,      /* a length prefix padded so that it can be patched later */
    FIELD_COST = 96,     /* protobuf-c's scratch record of a field, in slabs that double */
    ALLOC_COST = 32,     /* rounding and a pointer for each allocation */
};
/* Real models stay below 33 bytes of memory for a byte of file without weights; small files get a
 * flat allowance. */
#define UNPACKED_BASE  ((size_t)64 << 20)
#define UNPACKED_RATIO 64

struct frame {
    const ProtobufCMessageDescriptor *desc;
    const uint8_t *end;
    size_t length_at; /* where the padded length stands in the compact form */
    uint64_t seen;    /* singular message fields met, by field index */
};

struct walker {
    const uint8_t *bytes, *at;
    const char *bad; /* why the walk stopped */
    uint8_t *to;     /* NULL when only scanning */
    size_t nto;
    struct wire_summary sum;
    int depth;
    struct frame frames[WIRE_DEPTH_MAX + 1];
};

static bool fail(struct walker *w, const char *why) {
    w->bad = why;
    return false;
}

static bool varint(struct walker *w, const uint8_t *end, uint64_t *out) {
    uint64_t v = 0;
    for (int i = 0; i < VARINT_MAX; i++) {
        if (w->at == end) return fail(w, "a number is cut off");
        uint8_t b = *w->at++;
        v |= (uint64_t)(b & 0x7f) << (7 * i);
        if (!(b & 0x80)) {
            if (i == VARINT_MAX - 1 && b > 1) break;
            *out = v;
            return true;
        }
    }
    return fail(w, "a number is longer than 64 bits");
}

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF; and no NUL. */
static bool text_ok(const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        uint8_t b = *p++;
        if (b == 0) return false;
        if (b < 0x80) continue;
        int more = b >= 0xf0 ? 3 : b >= 0xe0 ? 2 : 1;
        if (b < 0xc2 || b > 0xf4 || end - p < more) return false;
        uint8_t lo = b == 0xe0 ? 0xa0 : b == 0xf0 ? 0x90 : 0x80;
        uint8_t hi = b == 0xed ? 0x9f : b == 0xf4 ? 0x8f : 0xbf;
        if (p[0] < lo || p[0] > hi) return false;
        for (int i = 1; i < more; i++)
            if ((p[i] & 0xc0) != 0x80) return false;
        p += more;
    }
    return true;
}

/* Wire type and bytes in memory of one scalar. */
static int scalar_wire(ProtobufCType t, size_t *bytes) {
    switch (t) {
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64: *bytes = 8; return WT_FIXED64;
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32: *bytes = 4; return WT_FIXED32;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: *bytes = sizeof(ProtobufCBinaryData); return WT_BYTES;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_UINT64: *bytes = 8; return WT_VARINT;
    default: *bytes = 4; return WT_VARINT;
    }
}

static bool packed(struct walker *w, const ProtobufCFieldDescriptor *f, const uint8_t *end) {
    size_t bytes, count = 0, n = (size_t)(end - w->at);
    int wt = scalar_wire(f->type, &bytes);
    if (wt == WT_VARINT) {
        int run = 0;
        for (const uint8_t *p = w->at; p < end; p++) {
            run = *p & 0x80 ? run + 1 : 0;
            if (run == VARINT_MAX) return fail(w, "a packed number is longer than 64 bits");
            count += !run;
        }
        if (run) return fail(w, "a packed number is cut off");
    } else {
        size_t one = wt == WT_FIXED64 ? 8 : 4;
        if (n % one) return fail(w, "packed numbers do not fill their field");
        count = n / one;
    }
    w->sum.unpacked += count * bytes + ALLOC_COST;
    return true;
}

static void emit(struct walker *w, const uint8_t *from, size_t n) {
    if (!w->to) return;
    memcpy(w->to + w->nto, from, n);
    w->nto += n;
}

/* Lengths are patched in a fixed width, since cutting raw_data changes them. */
static void put_length(uint8_t *p, size_t v) {
    for (int i = 0; i < LENGTH_PAD; i++) {
        p[i] = (uint8_t)((v & 0x7f) | (i < LENGTH_PAD - 1 ? 0x80 : 0));
        v >>= 7;
    }
}

static bool push(struct walker *w, const ProtobufCFieldDescriptor *f, const uint8_t *end) {
    struct frame *top = &w->frames[w->depth];
    if (f->label != PROTOBUF_C_LABEL_REPEATED) {
        uint64_t bit = (uint64_t)1 << (unsigned)(f - top->desc->fields);
        if (top->seen & bit) return fail(w, "a field that may appear once appears twice");
        top->seen |= bit;
    }
    if (w->depth == WIRE_DEPTH_MAX) return fail(w, "messages are nested too deeply (limit 64)");
    const ProtobufCMessageDescriptor *d = f->descriptor;
    w->frames[++w->depth] = (struct frame){.desc = d, .end = end, .length_at = w->nto};
    w->sum.messages++;
    w->sum.unpacked += d->sizeof_message + ALLOC_COST;
    w->nto += w->to ? LENGTH_PAD : 0;
    return true;
}

static void pop(struct walker *w) {
    const struct frame *f = &w->frames[w->depth--];
    if (w->to && w->depth >= 0)
        put_length(w->to + f->length_at, w->nto - f->length_at - LENGTH_PAD);
}

static void cut_out(struct walker *w, size_t n) {
    w->sum.refs++;
    w->sum.cut += n;
    w->sum.unpacked += WIRE_REF_BYTES + ALLOC_COST;
    if (w->to) {
        uint64_t ref[2] = {(uint64_t)(w->at - w->bytes), n};
        w->to[w->nto++] = WIRE_REF_BYTES;
        emit(w, (const uint8_t *)ref, sizeof ref);
    }
    w->at += n;
}

/* A length-delimited field; `tag` is where its tag begins. */
static bool delimited(struct walker *w, const ProtobufCFieldDescriptor *f, const uint8_t *tag) {
    const uint8_t *limit = w->frames[w->depth].end, *after_tag = w->at;
    uint64_t n;
    if (!varint(w, limit, &n)) return false;
    if (n > (size_t)(limit - w->at)) return fail(w, "a length reaches past the end");
    const uint8_t *end = w->at + n;
    bool raw = f && w->frames[w->depth].desc == &onnx__tensor_proto__descriptor &&
               f->id == TENSOR_RAW_DATA;
    if (raw || (f && f->type == PROTOBUF_C_TYPE_MESSAGE)) {
        emit(w, tag, (size_t)(after_tag - tag));
        if (!raw) return push(w, f, end);
        cut_out(w, n);
        return true;
    }
    if (f && f->type == PROTOBUF_C_TYPE_STRING && !text_ok(w->at, end))
        return fail(w, "a text field is not UTF-8 or holds a NUL byte");
    size_t bytes;
    if (f && scalar_wire(f->type, &bytes) != WT_BYTES) {
        if (!packed(w, f, end)) return false;
    } else {
        w->sum.unpacked += n + 1 + sizeof(ProtobufCBinaryData) + ALLOC_COST;
    }
    w->at = end;
    emit(w, tag, (size_t)(end - tag));
    return true;
}

static bool field(struct walker *w) {
    const struct frame *top = &w->frames[w->depth];
    const uint8_t *tag = w->at;
    uint64_t key, skipped;
    if (!varint(w, top->end, &key)) return false;
    if (key >> 3 == 0 || key >> 32 || w->at - tag > 5) return fail(w, "a field number is invalid");
    int wt = (int)(key & 7);
    const ProtobufCFieldDescriptor *f =
        protobuf_c_message_descriptor_get_field(top->desc, (unsigned)(key >> 3));
    size_t bytes = sizeof(ProtobufCMessageUnknownField) + 16;
    if (f) {
        int want = scalar_wire(f->type, &bytes);
        bool packs = f->label == PROTOBUF_C_LABEL_REPEATED && wt == WT_BYTES;
        if (wt != want && !packs) return fail(w, "a field has the wrong wire type");
    }
    w->sum.unpacked += bytes + FIELD_COST;
    switch (wt) {
    case WT_VARINT:
        if (!varint(w, top->end, &skipped)) return false;
        break;
    case WT_FIXED64:
    case WT_FIXED32:
        if (top->end - w->at < (wt == WT_FIXED64 ? 8 : 4)) return fail(w, "a number is cut off");
        w->at += wt == WT_FIXED64 ? 8 : 4;
        break;
    case WT_BYTES: return delimited(w, f, tag);
    default: return fail(w, "a field has a wire type that ONNX does not use");
    }
    emit(w, tag, (size_t)(w->at - tag));
    return true;
}

static bool walk(struct walker *w, const ProtobufCMessageDescriptor *root, const uint8_t *bytes,
                 size_t n, uint8_t *to) {
    *w = (struct walker){.bytes = bytes, .at = bytes, .to = to};
    w->frames[0] = (struct frame){.desc = root, .end = bytes + n};
    w->sum.messages = 1;
    w->sum.unpacked = root->sizeof_message + ALLOC_COST;
    while (w->depth >= 0) {
        if (w->at == w->frames[w->depth].end) {
            pop(w);
        } else if (!field(w)) {
            return false;
        }
    }
    return true;
}

enum status wire_scan(struct ctx *c, const char *origin, const ProtobufCMessageDescriptor *root,
                      const uint8_t *bytes, size_t n, struct wire_summary *out) {
    struct walker w;
    if (!walk(&w, root, bytes, n, NULL))
        return diag_error(c, ST_PARSE, origin,
                          "not a valid ONNX file: %s at byte %zu of %zu (in %s); the file is "
                          "damaged, incomplete or of another kind",
                          w.bad, (size_t)(w.at - bytes), n, w.frames[w.depth].desc->short_name);
    *out = w.sum;
    if (w.sum.unpacked / UNPACKED_RATIO > n - w.sum.cut + UNPACKED_BASE / UNPACKED_RATIO)
        return diag_error(c, ST_PARSE, origin,
                          "refused: %zu bytes would unpack to %zu bytes in %zu messages, which no "
                          "real model does",
                          n, w.sum.unpacked, w.sum.messages);
    if (!size_mul(w.sum.messages, LENGTH_PAD, &out->compact) ||
        !size_add(out->compact, n - w.sum.cut, &out->compact) ||
        !size_add(out->compact, w.sum.refs * (WIRE_REF_BYTES + 1), &out->compact))
        ctx_out_of_memory(c, SIZE_MAX);
    return ST_OK;
}

size_t wire_compact(const ProtobufCMessageDescriptor *root, const uint8_t *bytes, size_t n,
                    uint8_t *to) {
    struct walker w;
    return walk(&w, root, bytes, n, to) ? w.nto : 0;
}

enum status wire_visit(ProtobufCMessage *msg, const ProtobufCMessageDescriptor *desc,
                       enum status (*fn)(void *user, ProtobufCMessage *m), void *user) {
    if (msg->descriptor == desc) TRY(fn(user, msg));
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &msg->descriptor->fields[i];
        if (f->type != PROTOBUF_C_TYPE_MESSAGE) continue;
        const char *base = (const char *)msg;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t count;
            ProtobufCMessage **list;
            memcpy(&count, base + f->quantifier_offset, sizeof count);
            memcpy(&list, base + f->offset, sizeof(void *));
            for (size_t k = 0; k < count; k++) TRY(wire_visit(list[k], desc, fn, user));
            continue;
        }
        ProtobufCMessage *one;
        uint32_t which = f->id;
        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
            memcpy(&which, base + f->quantifier_offset, sizeof which);
        memcpy(&one, base + f->offset, sizeof(void *));
        if (which == f->id && one) TRY(wire_visit(one, desc, fn, user));
    }
    return ST_OK;
}

struct restore {
    const uint8_t *bytes;
    size_t n;
};

static enum status restore_raw(void *user, ProtobufCMessage *msg) {
    const struct restore *r = user;
    Onnx__TensorProto *t = (Onnx__TensorProto *)msg;
    uint64_t ref[2];
    if (!t->has_raw_data) return ST_OK;
    if (t->raw_data.len != sizeof ref) return ST_PARSE;
    memcpy(ref, t->raw_data.data, sizeof ref);
    if (ref[0] > r->n || ref[1] > r->n - ref[0]) return ST_PARSE;
    /* protobuf-c wants a plain pointer; nothing writes or frees through it. */
    t->raw_data = (ProtobufCBinaryData){ref[1], (uint8_t *)(uintptr_t)(r->bytes + ref[0])};
    return ST_OK;
}

bool wire_restore(ProtobufCMessage *msg, const uint8_t *bytes, size_t n) {
    struct restore r = {bytes, n};
    return wire_visit(msg, &onnx__tensor_proto__descriptor, restore_raw, &r) == ST_OK;
}
