// SPDX-License-Identifier: Apache-2.0
/* npz.c - .npz archives: zip files of .npy entries (PKWARE APPNOTE), through minizip with its input
 * in memory. Stored entries stay in the mapping; deflated ones are unpacked into blocks whose size
 * their .npy header and the archive's own size bound. Nothing is ever extracted to a path. */
#include "base/diag.h"
#include "runtime/array_impl.h"
#include <minizip/unzip.h>
#include <minizip/zip.h>
#include <string.h>
#include <zlib.h>

enum { ENTRY_NAME_MAX = 4096, DEFLATE_RATIO_MAX = 1032, CHUNK = 1 << 30, EMPTY_ARCHIVE = 22 };

/* ---- names -------------------------------------------------------------------------------- */

/* Whether a tool that extracts `name` could be led out of its directory. */
static bool climbs(const char *name) {
    for (const char *p = name;; p++) {
        size_t n = strcspn(p, "/\\");
        if (n == 2 && p[0] == '.' && p[1] == '.') return true;
        p += n;
        if (!*p) return false;
    }
}

/* ---- minizip's view of memory ------------------------------------------------------------- */

struct zip_memory {
    const uint8_t *at;
    size_t n, pos;
    bool short_read; /* minizip takes the end of its input for zeros unless told of an error */
};

static voidpf memory_open(voidpf opaque, const void *name, int mode) {
    (void)name, (void)mode;
    return opaque;
}

static uLong memory_read(voidpf opaque, voidpf stream, void *buf, uLong size) {
    struct zip_memory *m = stream;
    size_t left = m->n - m->pos, n = size < left ? size : left;
    (void)opaque;
    if (n) memcpy(buf, m->at + m->pos, n);
    m->pos += n;
    m->short_read |= n < size;
    return n;
}

static uLong memory_write(voidpf opaque, voidpf stream, const void *buf, uLong size) {
    (void)opaque, (void)stream, (void)buf, (void)size;
    return 0;
}

static ZPOS64_T memory_tell(voidpf opaque, voidpf stream) {
    (void)opaque;
    return ((struct zip_memory *)stream)->pos;
}

static long memory_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin) {
    struct zip_memory *m = stream;
    size_t base = origin == ZLIB_FILEFUNC_SEEK_CUR   ? m->pos
                  : origin == ZLIB_FILEFUNC_SEEK_END ? m->n
                                                     : 0;
    (void)opaque;
    if (offset > m->n - base) return -1;
    m->pos = base + (size_t)offset;
    return 0;
}

static int memory_close(voidpf opaque, voidpf stream) {
    (void)opaque, (void)stream;
    return 0;
}

static int memory_error(voidpf opaque, voidpf stream) {
    (void)opaque;
    return ((struct zip_memory *)stream)->short_read;
}

/* ---- reading ------------------------------------------------------------------------------ */

struct npz {
    struct array_reader *r;
    unzFile zip;
    struct zip_memory memory;
    unz_file_info64 entry;
    char name[ENTRY_NAME_MAX + 1]; /* of the entry */
    uint64_t packed;               /* compressed bytes of the entries so far */
};

static void close_npz(void *ptr) {
    struct npz *z = ptr;
    if (z->zip) unzClose(z->zip);
}

static enum status bad_entry(const struct npz *z, const char *what) {
    return diag_error(z->r->ctx, ST_PARSE, z->r->origin, "%s %s", z->r->label, what);
}

/* Facts of the current entry that can be judged without its bytes. The sum of packed sizes is held
 * against the file, so that entries cannot share bytes to multiply what they unpack to. */
static enum status check_entry(struct npz *z) {
    struct array_reader *r = z->r;
    unz_file_info64 *e = &z->entry;
    if (unzGetCurrentFileInfo64(z->zip, e, z->name, ENTRY_NAME_MAX, NULL, 0, NULL, 0) != UNZ_OK)
        return diag_error(r->ctx, ST_PARSE, r->origin, "the zip directory is damaged");
    size_t n = e->size_filename;
    if (n > ENTRY_NAME_MAX)
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "an entry has a name of %zu bytes; expected at most %d", n,
                          ENTRY_NAME_MAX);
    z->name[n] = '\0';
    r->label = arena_printf(r->arena, "entry \"%s\"", z->name);
    if (strlen(z->name) != n) return bad_entry(z, "has a NUL byte in its name");
    if (n <= 4 || strcmp(z->name + n - 4, ".npy") != 0)
        return diag_error(r->ctx, ST_UNSUPPORTED, r->origin,
                          "%s is not an .npy array; expected an archive of numpy.savez", r->label);
    if (climbs(z->name)) return bad_entry(z, "has \"..\" in its name");
    if (e->flag & 1 || (e->compression_method != 0 && e->compression_method != Z_DEFLATED))
        return diag_error(
            r->ctx, ST_UNSUPPORTED, r->origin,
            "%s is encrypted or packed by a method other than deflate; use numpy.savez", r->label);
    if (e->compressed_size > r->n || (z->packed += e->compressed_size) > r->n)
        return bad_entry(z, "claims more packed bytes than the file has");
    if (e->compression_method == 0 && e->compressed_size != e->uncompressed_size)
        return bad_entry(z, "is stored but has two sizes");
    if (e->uncompressed_size / DEFLATE_RATIO_MAX > e->compressed_size + 1)
        return bad_entry(z, "claims to unpack to more than deflate can hold");
    if (e->uncompressed_size < NPY_PREFIX) return bad_entry(z, "is too short to be an array");
    return ST_OK;
}

/* The size that the header declares must be that of the entry. */
static enum status check_size(const struct npz *z, size_t header, const struct raw_array *raw) {
    if (raw->bytes == z->entry.uncompressed_size - header) return ST_OK;
    return diag_error(z->r->ctx, ST_PARSE, z->r->origin,
                      "%s needs %zu bytes of elements for its shape, but has %ju after its header",
                      z->r->label, raw->bytes, (uintmax_t)(z->entry.uncompressed_size - header));
}

static enum status read_stored(struct npz *z, struct raw_array *raw, const uint8_t **at) {
    uint64_t from = unzGetCurrentFileZStreamPos64(z->zip), n = z->entry.uncompressed_size;
    size_t header;
    if (from > z->r->n || n > z->r->n - from) return bad_entry(z, "ends after the file does");
    const uint8_t *p = z->r->at + from;
    if (crc32_z(crc32_z(0, NULL, 0), p, (size_t)n) != z->entry.crc)
        return bad_entry(z, "is damaged: its checksum does not match");
    TRY(npy_header_size(z->r, p, &header));
    if (header > n) return bad_entry(z, "ends inside its .npy header");
    TRY(npy_parse_header(z->r, p, header, raw));
    *at = p + header;
    return check_size(z, header, raw);
}

static enum status inflate_bytes(struct npz *z, void *to, size_t n) {
    for (size_t done = 0; done < n;) {
        size_t left = n - done;
        int got =
            unzReadCurrentFile(z->zip, (char *)to + done, (unsigned)(left < CHUNK ? left : CHUNK));
        if (got <= 0)
            return bad_entry(z, "is damaged: its deflated data ends early or makes no sense");
        done += (size_t)got;
    }
    return ST_OK;
}

static enum status read_deflated(struct npz *z, struct raw_array *raw, const uint8_t **at) {
    struct array_reader *r = z->r;
    uint8_t prefix[NPY_PREFIX];
    size_t header;
    void *elements;
    TRY(inflate_bytes(z, prefix, sizeof prefix));
    TRY(npy_header_size(r, prefix, &header));
    if (header > z->entry.uncompressed_size || header < NPY_PREFIX)
        return bad_entry(z, "ends inside its .npy header");
    uint8_t *whole = arena_alloc(r->arena, header);
    memcpy(whole, prefix, sizeof prefix);
    TRY(inflate_bytes(z, whole + sizeof prefix, header - sizeof prefix));
    TRY(npy_parse_header(r, whole, header, raw));
    TRY(check_size(z, header, raw));
    TRY(array_block(r, raw->bytes, &elements));
    TRY(inflate_bytes(z, elements, raw->bytes));
    *at = elements;
    return ST_OK;
}

static enum status read_entry(struct npz *z) {
    struct raw_array raw;
    const uint8_t *at = NULL;
    TRY(check_entry(z));
    if (unzOpenCurrentFile(z->zip) != UNZ_OK) return bad_entry(z, "has a damaged local header");
    if (z->entry.compression_method == 0)
        TRY(read_stored(z, &raw, &at));
    else
        TRY(read_deflated(z, &raw, &at));
    if (unzCloseCurrentFile(z->zip) != UNZ_OK)
        return bad_entry(z, "is damaged: its checksum does not match");
    z->name[z->entry.size_filename - 4] = '\0';
    return array_add(z->r, z->name, &raw, at);
}

enum status npz_read(struct array_reader *r) {
    if (r->n == EMPTY_ARCHIVE && memcmp(r->at, "PK\5\6", 4) == 0)
        return ST_OK; /* minizip refuses it */
    struct npz *z = ARENA_NEW(r->arena, struct npz);
    z->r = r;
    z->memory = (struct zip_memory){r->at, r->n, 0, false};
    zlib_filefunc64_def io = {memory_open, memory_read,  memory_write, memory_tell,
                              memory_seek, memory_close, memory_error, &z->memory};
    arena_defer(r->arena, close_npz, z);
    z->zip = unzOpen2_64("", &io);
    if (!z->zip)
        return diag_error(r->ctx, ST_PARSE, r->origin,
                          "the file starts as a zip archive but has no directory at its end; "
                          "it is cut short or damaged");
    int at = unzGoToFirstFile(z->zip);
    for (; at == UNZ_OK; at = unzGoToNextFile(z->zip)) TRY(read_entry(z));
    if (at != UNZ_END_OF_LIST_OF_FILE)
        return diag_error(r->ctx, ST_PARSE, r->origin, "the zip directory is damaged");
    unzClose(z->zip);
    z->zip = NULL;
    return ST_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* minizip writes to the stream of an atomic writer, which closes it. */
static voidpf stream_open(voidpf opaque, const void *name, int mode) {
    (void)name, (void)mode;
    return opaque;
}

static uLong stream_read(voidpf opaque, voidpf stream, void *buf, uLong size) {
    (void)opaque;
    return fread(buf, 1, size, stream);
}

static uLong stream_write(voidpf opaque, voidpf stream, const void *buf, uLong size) {
    (void)opaque;
    return fwrite(buf, 1, size, stream);
}

static ZPOS64_T stream_tell(voidpf opaque, voidpf stream) {
    (void)opaque;
    return (ZPOS64_T)ftello(stream);
}

static long stream_seek(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin) {
    int whence = origin == ZLIB_FILEFUNC_SEEK_CUR   ? SEEK_CUR
                 : origin == ZLIB_FILEFUNC_SEEK_END ? SEEK_END
                                                    : SEEK_SET;
    (void)opaque;
    return fseeko(stream, (off_t)offset, whence);
}

static int stream_close(voidpf opaque, voidpf stream) {
    (void)opaque, (void)stream;
    return 0;
}

static int stream_error(voidpf opaque, voidpf stream) {
    (void)opaque;
    return ferror(stream);
}

struct npz_job {
    const char *path;
    const struct array *list;
    uint32_t n;
    zipFile zip;
};

static void close_zip(void *ptr) {
    struct npz_job *job = ptr;
    if (job->zip) zipClose(job->zip, NULL);
    job->zip = NULL;
}

static bool write_bytes(zipFile zip, const void *p, size_t n) {
    for (size_t done = 0; done < n;) {
        size_t part = n - done < CHUNK ? n - done : CHUNK;
        if (zipWriteInFileInZip(zip, (const char *)p + done, (unsigned)part) != ZIP_OK)
            return false;
        done += part;
    }
    return true;
}

/* Types that .npy cannot spell, as f32. */
static const void *as_f32(struct arena *a, const struct array *from, struct type *type) {
    size_t n = (size_t)type_count(type), each = dtype_size(type->dtype);
    float *to = ARENA_ARRAY(a, float, n);
    for (size_t i = 0; i < n; i++)
        to[i] = (float)dtype_load(type->dtype, (const char *)from->at + i * each);
    type->dtype = DT_f32;
    return to;
}

static bool npy_has(enum dtype t) {
    return t != DT_bf16 && t != DT_e4m3 && t != DT_e5m2 && t != DT_e8m0;
}

/* Entries are stored, dated 1980-01-01 like NumPy's, and flagged UTF-8 (bit 11) so that any name
 * survives. */
static bool write_entry(struct arena *a, zipFile zip, const struct array *array) {
    struct type type = array->type;
    const void *at = npy_has(type.dtype) ? array->at : as_f32(a, array, &type);
    size_t header_size, bytes = (size_t)type_bytes(&type);
    const char *header = npy_make_header(a, &type, &header_size);
    zip_fileinfo info = {.dosDate = 1 << 5 | 1};
    int big = bytes > UINT32_MAX - header_size - 1;
    const char *name = arena_printf(a, "%s.npy", array->name);
    return zipOpenNewFileInZip4_64(zip, name, &info, NULL, 0, NULL, 0, NULL, 0, 0, 0, -MAX_WBITS, 8,
                                   Z_DEFAULT_STRATEGY, NULL, 0, 0, 1 << 11, big) == ZIP_OK &&
           write_bytes(zip, header, header_size) && write_bytes(zip, at, bytes) &&
           zipCloseFileInZip(zip) == ZIP_OK;
}

static enum status check_npz_names(struct arena *a, const struct npz_job *job) {
    TRY(array_check_names(a, job->path, job->list, job->n));
    for (uint32_t i = 0; i < job->n; i++) {
        const char *name = job->list[i].name;
        if (!*name || climbs(name) || strlen(name) > ENTRY_NAME_MAX - 4)
            return diag_error(
                a->ctx, ST_UNSUPPORTED, job->path,
                "array name \"%s\" cannot be an .npz entry: expected 1 to %d bytes without \"..\"",
                name, ENTRY_NAME_MAX - 4);
    }
    return ST_OK;
}

static enum status write_npz(struct arena *a, void *user) {
    struct npz_job *job = user;
    struct sys_writer *w;
    TRY(check_npz_names(a, job));
    TRY(sys_write_begin(a, job->path, &w));
    zlib_filefunc64_def io = {stream_open, stream_read,  stream_write, stream_tell,
                              stream_seek, stream_close, stream_error, sys_writer_file(w)};
    arena_defer(a, close_zip, job); /* before the writer's own cleanup closes the stream */
    job->zip = zipOpen2_64("", APPEND_STATUS_CREATE, NULL, &io);
    bool ok = job->zip != NULL;
    for (uint32_t i = 0; ok && i < job->n; i++) {
        struct arena_mark mark = arena_mark(a);
        ok = write_entry(a, job->zip, &job->list[i]);
        arena_rewind(a, mark);
    }
    if (job->zip) {
        ok = zipClose(job->zip, NULL) == ZIP_OK && ok;
        job->zip = NULL;
    }
    if (ok) return sys_write_commit(w);
    sys_write_abort(w);
    return diag_error(a->ctx, ST_IO, job->path,
                      "the archive could not be written; is the disk full?");
}

enum status npz_write(struct ctx *c, const char *path, const struct array *list, uint32_t n) {
    struct npz_job job = {path, list, n, NULL};
    return arena_with_scratch(c, write_npz, &job);
}
