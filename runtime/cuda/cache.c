// SPDX-License-Identifier: Apache-2.0
/* cache.c - a directory of compiled kernels, named by the hash of all that went into them. Several
 * processes may use it at once: entries appear complete by renaming, equal names mean equal
 * content, and a damaged entry is a miss. Nothing here can fail a run, so nothing here reports. */
#include "base/sys.h"
#include "runtime/cuda/impl.h"
#include <string.h>

/* In native byte order: a cache belongs to one machine. */
struct entry_header {
    char magic[8];
    uint64_t key[2];
    uint64_t bytes;
    uint64_t checksum; /* of the payload */
    uint64_t reserved[3];
};
static const char magic[8] = "LTHKRN1";

const char *cache_path(struct arena *a, const char *dir, struct hash128 key) {
    return arena_printf(a, "%s/%016llx%016llx.cubin", dir, (unsigned long long)key.hi,
                        (unsigned long long)key.lo);
}

/* The operating system's complaints are of no interest: the kernel is compiled again. */
struct silence {
    void (*report)(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message);
    unsigned errors;
};
static void drop(void *user, enum severity sev, enum status code, const char *origin,
                 const char *message) {
    (void)user, (void)sev, (void)code, (void)origin, (void)message;
}
static struct silence silence_begin(struct ctx *c) {
    struct silence s = {c->report, c->errors};
    c->report = drop;
    return s;
}
static void silence_end(struct ctx *c, struct silence s) {
    c->report = s.report;
    c->errors = s.errors;
}

static bool entry_valid(const struct file_map *m, struct hash128 key) {
    struct entry_header h;
    if (m->size < sizeof h) return false;
    memcpy(&h, m->at, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0) return false;
    if (h.key[0] != key.lo || h.key[1] != key.hi) return false;
    if (!h.bytes || h.bytes != m->size - sizeof h) return false;
    return hash_bytes(m->at + sizeof h, (size_t)h.bytes) == h.checksum;
}

bool cache_get(struct arena *a, const char *dir, struct hash128 key, const void **at,
               size_t *bytes) {
    const char *path = cache_path(a, dir, key);
    if (!sys_exists(path)) return false;
    struct file_map m;
    struct silence s = silence_begin(a->ctx);
    enum status st = sys_map_file(a, path, &m);
    silence_end(a->ctx, s);
    if (st != ST_OK || !entry_valid(&m, key)) return false;
    *at = m.at + sizeof(struct entry_header);
    *bytes = m.size - sizeof(struct entry_header);
    return true;
}

static enum status put(struct arena *a, const char *dir, struct hash128 key, const void *at,
                       size_t bytes) {
    struct entry_header h = {
        .key = {key.lo, key.hi}, .bytes = bytes, .checksum = hash_bytes(at, bytes)};
    memcpy(h.magic, magic, sizeof magic);
    struct sys_writer *w;
    TRY(sys_mkdirs(a->ctx, dir));
    TRY(sys_write_begin(a, cache_path(a, dir, key), &w));
    TRY(sys_write(w, &h, sizeof h));
    TRY(sys_write(w, at, bytes));
    return sys_write_commit(w);
}

bool cache_put(struct ctx *c, const char *dir, struct hash128 key, const void *at, size_t bytes) {
    struct arena a;
    arena_init(&a, c);
    struct silence s = silence_begin(c);
    enum status st = put(&a, dir, key, at, bytes);
    silence_end(c, s);
    arena_reset(&a);
    return st == ST_OK;
}
