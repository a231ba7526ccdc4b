// SPDX-License-Identifier: Apache-2.0
/* pack.c - compiled kernels of a whole plan in one file, made where no GPU is and read where one
 * is. Unlike an entry of the cache a pack comes from elsewhere, so what is wrong with it is said.
 */
#include "base/sys.h"
#include "runtime/cuda/impl.h"
#include <string.h>

/* Little-endian, like everything that Lathe runs on. The entries and then the cubins follow. */
struct pack_header {
    char magic[8];
    uint32_t version, nvrtc;
    uint64_t entries, bytes; /* bytes: of the file */
    uint64_t checksum;       /* of what follows the header */
};
struct pack_entry {
    uint64_t key[2], offset, bytes; /* offset: in the file */
};
static const char magic[8] = "LTHPACK";
enum { VERSION = 1 };

struct pack {
    struct file_map map;
    const char *path;
    uint64_t entries;
};

static enum status refuse(struct ctx *c, const char *path, const char *found) {
    return diag_error(c, ST_PARSE, path, "expected a file of `lathe compile`, found %s", found);
}

/* The memory is mapped at a page, so the structs behind the header are aligned; they are copied all
 * the same. */
static struct pack_entry entry_at(const struct pack *p, uint64_t i) {
    struct pack_entry e;
    memcpy(&e, p->map.at + sizeof(struct pack_header) + i * sizeof e, sizeof e);
    return e;
}

static enum status check_entries(struct ctx *c, const struct pack *p) {
    size_t room = p->map.size - sizeof(struct pack_header);
    if (p->entries > room / sizeof(struct pack_entry))
        return refuse(c, p->path, "more entries than it has room for");
    for (uint64_t i = 0; i < p->entries; i++) {
        struct pack_entry e = entry_at(p, i);
        if (e.offset > p->map.size || e.bytes > p->map.size - e.offset || !e.bytes)
            return refuse(c, p->path, "an entry beyond its end");
    }
    return ST_OK;
}

enum status pack_open(struct arena *a, const char *path, int driver, const struct pack **out) {
    struct pack *p = ARENA_NEW(a, struct pack);
    struct pack_header h;
    p->path = arena_strdup(a, path);
    TRY(sys_map_file(a, path, &p->map));
    if (p->map.size < sizeof h || memcmp(p->map.at, magic, sizeof magic) != 0)
        return refuse(a->ctx, path, "something else");
    memcpy(&h, p->map.at, sizeof h);
    if (h.version != VERSION) return refuse(a->ctx, path, "one of another version of Lathe");
    if (h.bytes != p->map.size) return refuse(a->ctx, path, "one that is cut off");
    if (hash_bytes(p->map.at + sizeof h, p->map.size - sizeof h) != h.checksum)
        return refuse(a->ctx, path, "one that is damaged");
    if (h.nvrtc / 1000 > (uint32_t)driver / 1000)
        return diag_error(a->ctx, ST_UNSUPPORTED, path,
                          "expected kernels that the driver, for CUDA %d.%d, can load, found some "
                          "made by NVRTC %u.%u",
                          driver / 1000, driver % 1000 / 10, h.nvrtc / 1000, h.nvrtc % 1000 / 10);
    p->entries = h.entries;
    TRY(check_entries(a->ctx, p));
    *out = p;
    return ST_OK;
}

bool pack_get(const struct pack *p, struct hash128 key, const void **at, size_t *bytes) {
    for (uint64_t i = 0; i < p->entries; i++) {
        struct pack_entry e = entry_at(p, i);
        if (e.key[0] != key.lo || e.key[1] != key.hi) continue;
        *at = p->map.at + e.offset;
        *bytes = (size_t)e.bytes;
        return true;
    }
    return false;
}

const char *pack_path(const struct pack *p) {
    return p->path;
}

/* ---- writing -----------------------------------------------------------------------------------
 */
enum { ALIGNMENT = 64 };

static void pad(struct buf *b) {
    static const char zeros[ALIGNMENT] = {0};
    if (b->n % ALIGNMENT) buf_put(b, zeros, ALIGNMENT - b->n % ALIGNMENT);
}

static bool seen(const struct image *images, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (images[j].key.lo == images[i].key.lo && images[j].key.hi == images[i].key.hi)
            return true;
    return false;
}

static enum status write_pack(struct arena *a, const struct image *images, uint32_t n, int nvrtc,
                              const char *path, uint32_t *kernels) {
    struct pack_entry *entries = ARENA_ARRAY(a, struct pack_entry, n + 1);
    struct pack_header h = {.version = VERSION, .nvrtc = (uint32_t)nvrtc};
    struct buf body;
    for (uint32_t i = 0; i < n; i++) h.entries += !seen(images, i);
    size_t table = (size_t)h.entries * sizeof *entries;
    uint64_t k = 0;
    memcpy(h.magic, magic, sizeof magic);
    buf_init(&body, a);
    buf_put(&body, (const char *)&h, sizeof h);
    buf_put(&body, (const char *)entries, table); /* filled in below */
    for (uint32_t i = 0; i < n; i++) {
        if (seen(images, i)) continue;
        pad(&body);
        entries[k++] =
            (struct pack_entry){{images[i].key.lo, images[i].key.hi}, body.n, images[i].bytes};
        buf_put(&body, images[i].cubin, images[i].bytes);
    }
    memcpy(body.at + sizeof h, entries, table);
    h.bytes = body.n;
    h.checksum = hash_bytes(body.at + sizeof h, body.n - sizeof h);
    memcpy(body.at, &h, sizeof h);
    *kernels = (uint32_t)h.entries;
    return sys_write_file(a->ctx, path, body.at, body.n);
}

struct packing {
    const struct cuda_options *o;
    const struct plan *p;
    int arch;
    cuda_source_fn source;
    void *user;
    const char *path;
    uint32_t kernels;
};

static enum status pack_body(struct arena *a, void *user) {
    struct packing *j = user;
    struct compiler k = {.ctx = a->ctx, .arena = a, .cache_dir = j->o->cache_dir};
    struct image *images = ARENA_ARRAY(a, struct image, j->p->kernels.n + 1);
    TRY(compiler_open(&k, j->o, 0));
    TRY(compiler_build(&k, j->p, compiler_arch(a, j->arch), j->source, j->user, a, NULL, NULL,
                       images));
    return write_pack(a, images, j->p->kernels.n, k.version, j->path, &j->kernels);
}

enum status cuda_pack(struct ctx *c, const struct cuda_options *o, const struct plan *p, int arch,
                      cuda_source_fn source, void *user, const char *path, uint32_t *kernels) {
    struct packing j = {o, p, arch, source, user, path, 0};
    if (!p->cuda_arch || p->cuda_arch > arch)
        return diag_error(c, ST_USAGE, path,
                          "expected a plan for compute capability %d.%d or less, found one for %d",
                          arch / 10, arch % 10, p->cuda_arch);
    enum status st = arena_with_scratch(c, pack_body, &j);
    *kernels = j.kernels;
    return st;
}
