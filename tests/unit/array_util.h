// SPDX-License-Identifier: Apache-2.0
/* array_util.h - small array files built in memory, and checks, for the tests of runtime/array.h.
 */
#ifndef LATHE_TEST_ARRAY_UTIL_H
#define LATHE_TEST_ARRAY_UTIL_H

#include "runtime/array.h"
#include "test_util.h"
#include <minizip/zip.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t)

/* ---- helpers ------------------------------------------------------------------------------- */

static inline const char *make_dir(struct test_env *t) {
    char *dir = arena_strdup(&t->arena, "/tmp/lathe-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    return dir;
}

static inline const char *in(struct test_env *t, const char *dir, const char *name) {
    return arena_printf(&t->arena, "%s/%s", dir, name);
}

static inline void end_with_dir(struct test_env *t, const char *dir) {
    ck_assert_int_eq(sys_remove_tree(&t->ctx, dir), ST_OK);
    test_end(t);
}

static inline int diagnostics(const struct test_env *t) {
    int n = 0;
    for (const char *p = t->log; *p; p++) n += *p == '\n';
    return n;
}

static inline enum status read_bytes(struct test_env *t, const void *at, size_t n,
                                     struct arrays *out) {
    t->log[0] = '\0';
    return arrays_read_memory(&t->arena, at, n, "file", out);
}

/* The bytes must be refused with `want` and one diagnostic that holds `text`. */
static inline void refuse(struct test_env *t, const void *at, size_t n, enum status want,
                          const char *text) {
    struct arrays s;
    enum status st = read_bytes(t, at, n, &s);
    ck_assert_msg(st == want && strstr(t->log, text), "status %d, expected %d and \"%s\": %s",
                  (int)st, (int)want, text, t->log);
    ck_assert_int_eq(diagnostics(t), 1);
    ck_assert_uint_eq(s.list.n, 0);
}

static inline struct buf npy(struct test_env *t, int version, const char *header, const void *data,
                             size_t n) {
    struct buf b;
    size_t len = strlen(header);
    buf_init(&b, &t->arena);
    buf_put(&b, "\x93NUMPY", 6);
    buf_put(&b, (char[]){(char)version, 0}, 2);
    buf_put(&b, &len, version == 1 ? 2 : 4);
    buf_puts(&b, header);
    buf_put(&b, data, n);
    return b;
}

static inline struct buf npy_of(struct test_env *t, const char *descr, const char *shape,
                                const void *data, size_t n) {
    return npy(t, 1,
               arena_printf(&t->arena,
                            "{'descr': '%s', 'fortran_order': False, 'shape': %s, }   \n", descr,
                            shape),
               data, n);
}

/* An archive with minizip itself, so that nothing of the writer under test is trusted. */
struct entry {
    const char *name;
    struct buf bytes;
    int level; /* 0: stored */
};

static inline struct buf zip_of(struct test_env *t, const struct entry *list, int n) {
    const char *dir = make_dir(t), *path = in(t, dir, "z");
    struct file_map m = {0};
    struct buf b;
    zipFile z = zipOpen64(path, APPEND_STATUS_CREATE);
    ck_assert_ptr_nonnull(z);
    for (int i = 0; i < n; i++) {
        zip_fileinfo info = {0};
        int method = list[i].level ? Z_DEFLATED : 0;
        ck_assert_int_eq(zipOpenNewFileInZip(z, list[i].name, &info, NULL, 0, NULL, 0, NULL, method,
                                             list[i].level),
                         0);
        ck_assert_int_eq(zipWriteInFileInZip(z, list[i].bytes.at, (unsigned)list[i].bytes.n), 0);
        ck_assert_int_eq(zipCloseFileInZip(z), 0);
    }
    ck_assert_int_eq(zipClose(z, NULL), 0);
    ck_assert_int_eq(sys_map_file(&t->arena, path, &m), ST_OK);
    buf_init(&b, &t->arena);
    buf_put(&b, m.at, m.size);
    ck_assert_int_eq(sys_remove_tree(&t->ctx, dir), ST_OK);
    return b;
}

static inline struct buf safetensors_of(struct test_env *t, const char *json, size_t buffer) {
    struct buf b;
    uint64_t n = strlen(json);
    buf_init(&b, &t->arena);
    buf_put(&b, &n, 8);
    buf_puts(&b, json);
    for (size_t i = 0; i < buffer; i++) buf_put(&b, "\1", 1);
    return b;
}

static inline void check_type(const struct array *a, enum dtype dtype, int rank, const dim *dims) {
    ck_assert_int_eq(a->type.dtype, dtype);
    ck_assert_int_eq(a->type.rank, rank);
    for (int k = 0; k < rank; k++) ck_assert_int_eq(a->type.dims[k], dims[k]);
}

static const float six[] = {1.5f, -2, 3.25f, 0, 1e30f, -0.0f};

#endif
