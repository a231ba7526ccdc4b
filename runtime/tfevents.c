// SPDX-License-Identifier: Apache-2.0
/* tfevents.c - TensorBoard's record framing (TFRecord: length, masked CRC-32C of the length,
 * payload, masked CRC-32C of the payload) around Event messages of the protobuf wire format,
 * written by hand since only five fields are needed. */
#include "runtime/tfevents.h"
#include "base/diag.h"
#include <errno.h>
#include <string.h>

struct tfevents {
    struct ctx *ctx;
    struct arena scratch; /* one record */
    const char *path;
    FILE *file;
};

/* Bit by bit: a record has a few hundred bytes. The polynomial is 0x1EDC6F41, reflected. */
uint32_t tfevents_crc32c(const void *p, size_t n) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= ((const uint8_t *)p)[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* ---- wire format -------------------------------------------------------------------------- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(struct buf *b, uint64_t x) {
    do {
        char byte = (char)((x & 0x7f) | (x > 0x7f ? 0x80 : 0));
        buf_put(b, &byte, 1);
        x >>= 7;
    } while (x);
}

static void put_tag(struct buf *b, unsigned field, unsigned wire) {
    put_varint(b, field << 3 | wire);
}

static void put_bytes(struct buf *b, unsigned field, const void *p, size_t n) {
    put_tag(b, field, WIRE_BYTES);
    put_varint(b, n);
    buf_put(b, p, n);
}

/* Event: 1 wall_time (double), 2 step, 3 file_version, 5 summary. */
static void put_wall_time(struct buf *b) {
    double now = sys_wall_seconds();
    put_tag(b, 1, WIRE_64);
    buf_put(b, &now, sizeof now);
}

/* Summary.Value: 1 tag, 2 simple_value (float). */
static void put_scalar(struct buf *summary, struct arena *a, const struct metric *m) {
    struct buf value;
    float x = (float)m->value;
    buf_init(&value, a);
    put_bytes(&value, 1, m->name, strlen(m->name));
    put_tag(&value, 2, WIRE_32);
    buf_put(&value, &x, sizeof x);
    put_bytes(summary, 1, value.at, value.n);
}

static uint32_t masked_crc(const void *p, size_t n) {
    uint32_t crc = tfevents_crc32c(p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static enum status write_record(struct tfevents *e, const struct buf *event) {
    uint64_t length = event->n;
    uint32_t length_crc = masked_crc(&length, sizeof length), crc = masked_crc(event->at, event->n);
    struct buf b;
    buf_init(&b, &e->scratch);
    buf_put(&b, &length, sizeof length);
    buf_put(&b, &length_crc, sizeof length_crc);
    buf_put(&b, event->at, event->n);
    buf_put(&b, &crc, sizeof crc);
    if (fwrite(b.at, 1, b.n, e->file) == b.n && fflush(e->file) == 0) return ST_OK;
    char reason[96];
    return diag_error(e->ctx, ST_IO, e->path, "cannot write: %s",
                      strerror_r(errno, reason, sizeof reason));
}

/* ---- files -------------------------------------------------------------------------------- */

static void close_events(void *ptr) {
    struct tfevents *e = ptr;
    if (e->file) fclose(e->file);
    arena_reset(&e->scratch);
}

enum status tfevents_open(struct arena *a, const char *dir, struct tfevents **out) {
    struct tfevents *e = ARENA_NEW(a, struct tfevents);
    e->ctx = a->ctx;
    arena_init(&e->scratch, a->ctx);
    arena_defer(a, close_events, e);
    for (int i = 0; !e->file && i < 1000;
         i++) { /* several within a second when a run is resumed at once */
        e->path =
            arena_printf(a, "%s/events.out.tfevents.%010.0f.lathe.%d", dir, sys_wall_seconds(), i);
        e->file = fopen(e->path, "wxe");
        if (!e->file && errno != EEXIST) break;
    }
    char reason[96];
    if (!e->file)
        return diag_error(a->ctx, ST_IO, e->path, "cannot create the file: %s",
                          strerror_r(errno, reason, sizeof reason));
    struct buf event;
    buf_init(&event, &e->scratch);
    put_wall_time(&event);
    put_bytes(&event, 3, "brain.Event:2", 13);
    enum status st = write_record(e, &event);
    arena_reset(&e->scratch);
    *out = e;
    return st;
}

enum status tfevents_write(struct tfevents *e, int64_t step, const struct metric *m, int n) {
    struct buf event, summary;
    buf_init(&event, &e->scratch);
    buf_init(&summary, &e->scratch);
    put_wall_time(&event);
    put_tag(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    for (int i = 0; i < n; i++) put_scalar(&summary, &e->scratch, &m[i]);
    put_bytes(&event, 5, summary.at, summary.n);
    enum status st = write_record(e, &event);
    arena_reset(&e->scratch);
    return st;
}
