// SPDX-License-Identifier: Apache-2.0
/* test_array.c - array files: what is read and written, and that no damaged or hostile file does
 * more than earn one diagnostic. */
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

static const char *make_dir(struct test_env *t) {
    char *dir = arena_strdup(&t->arena, "/tmp/lathe-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    return dir;
}

static const char *in(struct test_env *t, const char *dir, const char *name) {
    return arena_printf(&t->arena, "%s/%s", dir, name);
}

static void end_with_dir(struct test_env *t, const char *dir) {
    ck_assert_int_eq(sys_remove_tree(&t->ctx, dir), ST_OK);
    test_end(t);
}

static int diagnostics(const struct test_env *t) {
    int n = 0;
    for (const char *p = t->log; *p; p++) n += *p == '\n';
    return n;
}

static enum status read_bytes(struct test_env *t, const void *at, size_t n, struct arrays *out) {
    t->log[0] = '\0';
    return arrays_read_memory(&t->arena, at, n, "file", out);
}

/* The bytes must be refused with `want` and one diagnostic that holds `text`. */
static void refuse(struct test_env *t, const void *at, size_t n, enum status want,
                   const char *text) {
    struct arrays s;
    enum status st = read_bytes(t, at, n, &s);
    ck_assert_msg(st == want && strstr(t->log, text), "status %d, expected %d and \"%s\": %s",
                  (int)st, (int)want, text, t->log);
    ck_assert_int_eq(diagnostics(t), 1);
    ck_assert_uint_eq(s.list.n, 0);
}

static struct buf npy(struct test_env *t, int version, const char *header, const void *data,
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

static struct buf npy_of(struct test_env *t, const char *descr, const char *shape, const void *data,
                         size_t n) {
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

static struct buf zip_of(struct test_env *t, const struct entry *list, int n) {
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

static struct buf safetensors_of(struct test_env *t, const char *json, size_t buffer) {
    struct buf b;
    uint64_t n = strlen(json);
    buf_init(&b, &t->arena);
    buf_put(&b, &n, 8);
    buf_puts(&b, json);
    for (size_t i = 0; i < buffer; i++) buf_put(&b, "\1", 1);
    return b;
}

static void check_type(const struct array *a, enum dtype dtype, int rank, const dim *dims) {
    ck_assert_int_eq(a->type.dtype, dtype);
    ck_assert_int_eq(a->type.rank, rank);
    for (int k = 0; k < rank; k++) ck_assert_int_eq(a->type.dims[k], dims[k]);
}

static const float six[] = {1.5f, -2, 3.25f, 0, 1e30f, -0.0f};

/* ---- .npy ---------------------------------------------------------------------------------- */

START_TEST(npy_versions_and_layouts) {
    BEGIN;
    const char *headers[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n",
        "{\"shape\":(2,3),\"fortran_order\":False,\"descr\":\"<f4\"}",
        "  { 'shape' : ( 2L , 3L ) , 'descr' : '<f4' , 'fortran_order' : False , } \n\n",
    };
    for (int version = 1; version <= 3; version++) {
        for (size_t i = 0; i < 3; i++) {
            struct arrays s;
            struct buf b = npy(&t, version, headers[i], six, sizeof six);
            ck_assert(arrays_recognise((const uint8_t *)b.at, b.n));
            ck_assert_int_eq(read_bytes(&t, b.at, b.n, &s), ST_OK);
            ck_assert_uint_eq(s.list.n, 1);
            check_type(&s.list.at[0], DT_f32, 2, (dim[]){2, 3});
            ck_assert_mem_eq(s.list.at[0].at, six, sizeof six);
            ck_assert_str_eq(s.list.at[0].name, "");
            ck_assert_ptr_eq(arrays_find(&s, "anything"), &s.list.at[0]);
        }
    }
    test_end(&t);
}
END_TEST

START_TEST(npy_element_types) {
    BEGIN;
    struct {
        const char *descr;
        enum dtype dtype;
        size_t bytes;
        const char *data;
        int64_t first;
    } rows[] = {
        {"<f4", DT_f32, 4, "\0\0\x40\x40", 3},
        {"<f8", DT_f64, 8, "\0\0\0\0\0\0\x08\x40", 3},
        {"<f2", DT_f16, 2, "\0\x42", 3},
        {"<i8", DT_i64, 8, "\xfd\xff\xff\xff\xff\xff\xff\xff", -3},
        {"<i4", DT_i32, 4, "\xfd\xff\xff\xff", -3},
        {"<i2", DT_i16, 2, "\xfd\xff", -3},
        {"|i1", DT_i8, 1, "\xfd", -3},
        {"|u1", DT_u8, 1, "\xfd", 253},
        {">i1", DT_i8, 1, "\xfd", -3},
        {"|b1", DT_bool, 1, "\1", 1},
        {"<u2", DT_i32, 2, "\xfd\xff", 65533},
        {"<u4", DT_i64, 4, "\xfd\xff\xff\xff", 4294967293},
        {"<u8", DT_i64, 8, "\xfd\xff\xff\xff\xff\xff\xff\x7f", INT64_MAX - 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct arrays s;
        struct buf b = npy_of(&t, rows[i].descr, "()", rows[i].data, rows[i].bytes);
        ck_assert_int_eq(read_bytes(&t, b.at, b.n, &s), ST_OK);
        check_type(&s.list.at[0], rows[i].dtype, 0, NULL);
        int64_t x = dtype_is_float(rows[i].dtype)
                        ? (int64_t)dtype_load(rows[i].dtype, s.list.at[0].at)
                        : dtype_load_int(rows[i].dtype, s.list.at[0].at);
        ck_assert_int_eq(x, rows[i].first);
    }
    test_end(&t);
}
END_TEST

START_TEST(npy_shapes) {
    BEGIN;
    struct arrays s;
    struct buf b = npy_of(&t, "<f4", "(0, 7)", "", 0);
    ck_assert_int_eq(read_bytes(&t, b.at, b.n, &s), ST_OK);
    check_type(&s.list.at[0], DT_f32, 2, (dim[]){0, 7});
    b = npy_of(&t, "|u1", "(1,1,1,1,1,1,1,1,1,1,1,6)", six, 6);
    ck_assert_int_eq(read_bytes(&t, b.at, b.n, &s), ST_OK);
    ck_assert_int_eq(s.list.at[0].type.rank, 12);
    b = npy(&t, 1, "{'descr': '<f4', 'fortran_order': True, 'shape': (6,)}", six, sizeof six);
    ck_assert_int_eq(read_bytes(&t, b.at, b.n, &s), ST_OK);
    check_type(&s.list.at[0], DT_f32, 1, (dim[]){6});
    test_end(&t);
}
END_TEST

START_TEST(npy_refusals) {
    BEGIN;
    static const struct {
        const char *header;
        enum status status;
        const char *text;
    } rows[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", ST_UNSUPPORTED, "Fortran"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3)}", ST_UNSUPPORTED, "big-endian"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}", ST_UNSUPPORTED,
         "Python objects"},
        {"{'descr': '<U6', 'fortran_order': False, 'shape': (1,)}", ST_UNSUPPORTED, "\"<U6\""},
        {"{'descr': '<V2', 'fortran_order': False, 'shape': (12,)}", ST_UNSUPPORTED, "safetensors"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}", ST_UNSUPPORTED, "\"<c8\""},
        {"{'descr': '', 'fortran_order': False, 'shape': (3,)}", ST_UNSUPPORTED, "element type"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", ST_UNSUPPORTED,
         "structured"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}", ST_PARSE, "needs 32 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}", ST_PARSE, "needs 16 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", ST_PARSE,
         "overflows"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}", ST_PARSE,
         "overflows"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", ST_PARSE,
         "sizes below 2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -3)}", ST_PARSE, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}", ST_PARSE, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", ST_PARSE, "shape"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 6}", ST_PARSE, "shape"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}", ST_PARSE, "True or False"},
        {"{'descr': 4, 'fortran_order': False, 'shape': (2, 3)}", ST_PARSE, "in quotes"},
        {"{'descr': '<f4', 'fortran_order': False}", ST_PARSE, "exactly the keys"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", ST_PARSE,
         "once each"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'x': 1}", ST_PARSE, "once each"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,)} junk", ST_PARSE,
         "nothing behind"},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (6,)}", ST_PARSE, "comma"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,6)}",
         ST_UNSUPPORTED, "12 dim"},
        {"[]", ST_PARSE, "dictionary"},
        {"{'descr", ST_PARSE, "key in quotes"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = npy(&t, 1, rows[i].header, six, sizeof six);
        refuse(&t, b.at, b.n, rows[i].status, rows[i].text);
    }
    struct buf b =
        npy(&t, 4, "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", six, sizeof six);
    refuse(&t, b.at, b.n, ST_UNSUPPORTED, "version 4.0");
    b = npy_of(&t, "<u8", "(1,)", "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    refuse(&t, b.at, b.n, ST_UNSUPPORTED, "18446744073709551615");
    b = npy_of(&t, "|b1", "(3,)", "\0\1\2", 3);
    refuse(&t, b.at, b.n, ST_PARSE, "byte 2 at element 2");
    refuse(&t, "\x93NUMPY\2\0\xff\xff\xff\xff{}", 14, ST_PARSE, "4294967295");
    refuse(&t, "", 0, ST_PARSE, "empty file");
    refuse(&t, "hello, world", 12, ST_PARSE, "another kind");
    test_end(&t);
}
END_TEST

/* ---- .npz ---------------------------------------------------------------------------------- */

START_TEST(npz_entries) {
    BEGIN;
    struct arrays s;
    float *zeros = ARENA_ARRAY(&t.arena, float, 100000);
    struct entry list[] = {
        {"x.npy", npy_of(&t, "<f4", "(3, 2)", six, sizeof six), 0},
        {"layer/0/w.npy", npy_of(&t, "<f4", "(2, 3)", six, sizeof six), 9},
        {"zeros.npy", npy_of(&t, "<f4", "(1000, 100)", zeros, 400000), 9},
        {"t.npy", npy_of(&t, "<u2", "(12,)", six, sizeof six), 0},
        {"none.npy", npy_of(&t, "<i8", "(0,)", "", 0), 6},
    };
    struct buf z = zip_of(&t, list, 5);
    ck_assert_int_eq(read_bytes(&t, z.at, z.n, &s), ST_OK);
    ck_assert_uint_eq(s.list.n, 5);
    ck_assert_str_eq(s.list.at[0].name, "x");
    check_type(arrays_find(&s, "x"), DT_f32, 2, (dim[]){3, 2});
    ck_assert_mem_eq(arrays_find(&s, "x")->at, six, sizeof six);
    ck_assert_mem_eq(arrays_find(&s, "layer/0/w")->at, six, sizeof six);
    ck_assert_mem_eq(arrays_find(&s, "zeros")->at, zeros, 400000);
    ck_assert_int_eq(arrays_find(&s, "t")->type.dtype, DT_i32);
    check_type(arrays_find(&s, "none"), DT_i64, 1, (dim[]){0});
    ck_assert_ptr_null(arrays_find(&s, "y"));
    z = zip_of(&t, NULL, 0);
    ck_assert_int_eq(read_bytes(&t, z.at, z.n, &s), ST_OK);
    ck_assert_uint_eq(s.list.n, 0);
    test_end(&t);
}
END_TEST

/* Overwrite `n` bytes at `at` within the last directory entry of the archive. */
static struct buf patched(struct test_env *t, struct buf z, size_t at, const void *bytes,
                          size_t n) {
    struct buf b;
    size_t last = 0;
    for (size_t i = 0; i + 4 <= z.n; i++)
        if (memcmp(z.at + i, "PK\1\2", 4) == 0) last = i;
    ck_assert_uint_gt(last, 0);
    buf_init(&b, &t->arena);
    buf_put(&b, z.at, z.n);
    memcpy(b.at + last + at, bytes, n);
    return b;
}

START_TEST(npz_refusals) {
    BEGIN;
    struct buf good = npy_of(&t, "<f4", "(3, 2)", six, sizeof six);
    struct {
        const char *name[2];
        struct buf bytes;
        enum status status;
        const char *text;
    } rows[] = {
        {{"x.npy", "x.npy"}, good, ST_PARSE, "two arrays have the name \"x\""},
        {{"x.npy", "../y.npy"}, good, ST_PARSE, "\"..\""},
        {{"x.npy", "a/../y.npy"}, good, ST_PARSE, "\"..\""},
        {{"x.npy", "a\\..\\y.npy"}, good, ST_PARSE, "\"..\""},
        {{"x.npy", "data.pkl"}, good, ST_UNSUPPORTED, "data.pkl"},
        {{"x.npy", ".npy"}, good, ST_UNSUPPORTED, "not an .npy"},
        {{"x.npy", "y.npy"},
         npy_of(&t, "<f4", "(4, 2)", six, sizeof six),
         ST_PARSE,
         "\"x.npy\" needs 32"},
        {{"x.npy", "y.npy"},
         npy_of(&t, "<f4", "(2,)", six, sizeof six),
         ST_PARSE,
         "\"x.npy\" needs 8"},
        {{"x.npy", "y.npy"},
         npy_of(&t, "<f4", "(1000000000000,)", six, sizeof six),
         ST_PARSE,
         "needs 4000000000000"},
        {{"x.npy", "y.npy"},
         npy_of(&t, "|O", "(3,)", six, sizeof six),
         ST_UNSUPPORTED,
         "Python objects"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int level = 0; level <= 6; level += 6) {
            struct entry list[] = {{rows[i].name[0], rows[i].bytes, level},
                                   {rows[i].name[1], rows[i].bytes, level}};
            struct buf z = zip_of(&t, list, 2);
            refuse(&t, z.at, z.n, rows[i].status, rows[i].text);
        }
    struct entry shorts[] = {{"x.npy", {NULL, (char[]){"12345678"}, 8, 8}, 0}};
    struct buf z = zip_of(&t, shorts, 1);
    refuse(&t, z.at, z.n, ST_PARSE, "too short");
    test_end(&t);
}
END_TEST

/* Directory entry: flag at 8, method at 10, crc at 16, packed and unpacked size at 20 and 24,
 * offset of the local header at 42 (APPNOTE 4.3.12). */
START_TEST(npz_lying_directory) {
    BEGIN;
    struct buf good = npy_of(&t, "<f4", "(3, 2)", six, sizeof six);
    for (int level = 0; level <= 6; level += 6) {
        struct entry list[] = {{"x.npy", good, level}, {"y.npy", good, level}};
        struct buf z = zip_of(&t, list, 2), b = patched(&t, z, 8, "\1", 1);
        refuse(&t, b.at, b.n, ST_UNSUPPORTED, "encrypted");
        b = patched(&t, z, 10, "\14", 1);
        refuse(&t, b.at, b.n, ST_UNSUPPORTED, "method");
        b = patched(&t, z, 16, "\1\2\3\4", 4);
        refuse(&t, b.at, b.n, ST_PARSE, "\"y.npy\"");
        b = patched(&t, z, 24, "\0\0\0\x7f", 4); /* 2 GB from a hundred bytes */
        refuse(&t, b.at, b.n, ST_PARSE, level ? "more than deflate can hold" : "two sizes");
        b = patched(&t, z, 20, "\0\0\0\x7f", 4);
        refuse(&t, b.at, b.n, ST_PARSE, "more packed bytes than the file has");
        b = patched(&t, z, 42, "\xff\xff\0\0", 4);
        refuse(&t, b.at, b.n, ST_PARSE, "\"y.npy\"");
    }
    test_end(&t);
}
END_TEST

/* Entries that share their bytes would multiply what a small archive unpacks to. */
START_TEST(npz_overlapping_entries) {
    BEGIN;
    float *zeros = ARENA_ARRAY(&t.arena, float, 4000000);
    struct entry list[1];
    struct buf bytes = npy_of(&t, "<f4", "(4000000,)", zeros, 16000000);
    list[0] = (struct entry){"0.npy", bytes, 9};
    struct buf one = zip_of(&t, list, 1), all;
    size_t dir = 0, end = 0;
    for (size_t i = 0; i + 4 <= one.n; i++) {
        if (memcmp(one.at + i, "PK\1\2", 4) == 0) dir = i;
        if (memcmp(one.at + i, "PK\5\6", 4) == 0) end = i;
    }
    buf_init(&all, &t.arena);
    buf_put(&all, one.at, end);
    for (int i = 1; i < 9; i++) { /* the same local header again and again */
        size_t at = all.n;
        buf_put(&all, one.at + dir, end - dir);
        all.at[at + 46] = (char)('0' + i);
    }
    uint32_t size = (uint32_t)(all.n - dir);
    size_t tail = all.n;
    buf_put(&all, one.at + end, one.n - end);
    all.at[tail + 8] = all.at[tail + 10] = 9;
    memcpy(all.at + tail + 12, &size, 4);
    refuse(&t, all.at, all.n, ST_PARSE, "more packed bytes than the file has");
    test_end(&t);
}
END_TEST

/* ---- .safetensors -------------------------------------------------------------------------- */

START_TEST(safetensors_refusals) {
    BEGIN;
    static const struct {
        const char *json;
        size_t buffer;
        enum status status;
        const char *text;
    } rows[] = {
#define X "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
        {"{" X "," X "}", 8, ST_PARSE, "unique keys"},
        {"{" X ",\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, ST_PARSE,
         "overlaps"},
        {"{" X ",\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16, ST_PARSE,
         "hole"},
        {"{\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, ST_PARSE, "hole"},
        {"{" X "}", 9, ST_PARSE, "end at byte 8"},
        {"{" X "}", 7, ST_PARSE, "ends after the file"},
        {"{}", 1, ST_PARSE, "end at byte 0"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "needs 12 bytes"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, ST_PARSE,
         "[begin, end]"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, ST_PARSE,
         "[begin, end]"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, ST_PARSE,
         "[begin, end]"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "integers"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "integers"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "a shape such as"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
         ST_PARSE, "overflows"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}", 8,
         ST_PARSE, "JSON"},
        {"{\"x\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ST_UNSUPPORTED,
         "\"F4\""},
        {"{\"x\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "dtype in quotes"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, ST_PARSE, "exactly dtype"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"a\":1}}", 8, ST_PARSE,
         "exactly dtype"},
        {"{\"x\":[]}", 0, ST_PARSE, "exactly dtype"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
         1, ST_UNSUPPORTED, "12 dimensions"},
        {"{\"__metadata__\":{\"a\":1}," X "}", 8, ST_PARSE, "__metadata__"},
        {"{\"__metadata__\":[]," X "}", 8, ST_PARSE, "__metadata__"},
        {"{" X, 8, ST_PARSE, "JSON"},
        {"{" X "} x", 8, ST_PARSE, "JSON"},
        {"{\"x\\u0000y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "JSON"},
        {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ST_PARSE,
         "JSON"},
#undef X
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = safetensors_of(&t, rows[i].json, rows[i].buffer);
        refuse(&t, b.at, b.n, rows[i].status, rows[i].text);
    }
    refuse(&t, "\0\341\365\5\0\0\0\0{}", 10, ST_PARSE, "length 100000000");
    refuse(&t, "\1\341\365\5\0\0\0\0{}", 10, ST_PARSE, "another kind"); /* over the cap */
    test_end(&t);
}
END_TEST

START_TEST(safetensors_order_and_widening) {
    BEGIN;
    struct arrays s;
    struct buf b =
        safetensors_of(&t,
                       "{\"b\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[3,7]},"
                       "\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]},"
                       "\"e\":{\"dtype\":\"BF16\",\"shape\":[0,4],\"data_offsets\":[3,3]}}   ",
                       7);
    ck_assert_int_eq(read_bytes(&t, b.at, b.n, &s), ST_OK);
    ck_assert_uint_eq(s.list.n, 3);
    ck_assert_str_eq(s.list.at[0].name, "a");
    ck_assert_str_eq(s.list.at[1].name, "e");
    ck_assert_str_eq(s.list.at[2].name, "b");
    check_type(&s.list.at[2], DT_i32, 1, (dim[]){2});
    ck_assert_int_eq(dtype_load_int(DT_i32, (const char *)s.list.at[2].at + 4), 0x0101);
    test_end(&t);
}
END_TEST

/* ---- writing ------------------------------------------------------------------------------- */

/* One array of each type: rank 0, an odd shape, an empty one; bytes 0, 1, 0, 1... are valid in all
 * types. */
static uint32_t one_of_each(struct test_env *t, struct array *list, bool small_floats) {
    uint32_t n = 0;
    static const dim shapes[3][3] = {{3, 1, 5}, {7, 0, 0}, {0, 4, 0}};
    static const int ranks[3] = {3, 1, 2};
    for (int d = DT_NONE + 1; d < DT_COUNT; d++) {
        bool small = d == DT_bf16 || d == DT_e4m3 || d == DT_e5m2 || d == DT_e8m0;
        if (small && !small_floats) continue;
        struct array *a = &list[n++];
        a->name = arena_printf(&t->arena, "/layer \"%s\"/\xc3\xa9", dtype_name((enum dtype)d));
        a->type = (struct type){.dtype = (enum dtype)d, .rank = d == DT_i16 ? 0 : ranks[d % 3]};
        memcpy(a->type.dims, shapes[d % 3], sizeof shapes[0]);
        size_t bytes = (size_t)type_bytes(&a->type);
        char *at = arena_alloc(&t->arena, bytes);
        for (size_t i = 0; i < bytes; i++) at[i] = (char)(i % 2);
        a->at = at;
    }
    return n;
}

static void check_equal(const struct arrays *got, const struct array *list, uint32_t n) {
    ck_assert_uint_eq(got->list.n, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct array *g = &got->list.at[i];
        ck_assert_str_eq(g->name, list[i].name);
        ck_assert(type_equal(&g->type, &list[i].type));
        size_t bytes = (size_t)type_bytes(&g->type);
        if (bytes) ck_assert_mem_eq(g->at, list[i].at, bytes);
    }
}

static void check_same_file(struct test_env *t, const char *a, const char *b) {
    struct file_map ma = {0}, mb = {0};
    ck_assert_int_eq(sys_map_file(&t->arena, a, &ma), ST_OK);
    ck_assert_int_eq(sys_map_file(&t->arena, b, &mb), ST_OK);
    ck_assert_uint_eq(ma.size, mb.size);
    ck_assert_mem_eq(ma.at, mb.at, ma.size);
}

START_TEST(npz_written_and_read) {
    BEGIN;
    struct array list[DT_COUNT];
    uint32_t n = one_of_each(&t, list, false);
    const char *dir = make_dir(&t), *a = in(&t, dir, "a.npz"), *b = in(&t, dir, "b.npz");
    struct arrays got;
    ck_assert_int_eq(npz_write(&t.ctx, a, list, n), ST_OK);
    ck_assert_int_eq(npz_write(&t.ctx, b, list, n), ST_OK);
    check_same_file(&t, a, b);
    ck_assert_int_eq(arrays_read(&t.arena, a, &got), ST_OK);
    check_equal(&got, list, n);
    uint16_t bf16[] = {0x3f80, 0xc049, 0x7f80}; /* 1, -3.140625, infinity */
    struct array narrow = {"h", {.dtype = DT_bf16, .rank = 1, .dims = {3}}, bf16};
    ck_assert_int_eq(npz_write(&t.ctx, a, &narrow, 1), ST_OK);
    ck_assert_int_eq(arrays_read(&t.arena, a, &got), ST_OK);
    check_type(&got.list.at[0], DT_f32, 1, (dim[]){3});
    float values[3];
    memcpy(values, got.list.at[0].at, sizeof values);
    ck_assert(values[0] == 1 && values[1] == -3.140625f && values[2] > 3e38f);
    end_with_dir(&t, dir);
}
END_TEST

START_TEST(safetensors_written_and_read) {
    BEGIN;
    struct array list[DT_COUNT];
    uint32_t n = one_of_each(&t, list, true);
    const char *dir = make_dir(&t), *a = in(&t, dir, "a"), *b = in(&t, dir, "b"), *value;
    const char *metadata[] = {"format\0pt", "note\0a \"b\"\n\xe2\x82\xac"};
    struct arrays got;
    struct file_map m = {0};
    ck_assert_int_eq(safetensors_write(&t.ctx, a, list, n, metadata, 2), ST_OK);
    ck_assert_int_eq(safetensors_write(&t.ctx, b, list, n, metadata, 2), ST_OK);
    check_same_file(&t, a, b);
    ck_assert_int_eq(arrays_read(&t.arena, a, &got), ST_OK);
    check_equal(&got, list, n);
    ck_assert_int_eq(safetensors_metadata(&t.arena, a, "note", &value), ST_OK);
    ck_assert_str_eq(value, "a \"b\"\n\xe2\x82\xac");
    ck_assert_int_eq(safetensors_metadata(&t.arena, a, "other", &value), ST_OK);
    ck_assert_ptr_null(value);
    ck_assert_int_eq(sys_map_file(&t.arena, a, &m), ST_OK);
    ck_assert_uint_eq(m.at[0] % 8, 0);
    struct array x = {"x", {.dtype = DT_f32, .rank = 2, .dims = {3, 2}}, six};
    ck_assert_int_eq(safetensors_write(&t.ctx, a, &x, 1, NULL, 0), ST_OK);
    ck_assert_int_eq(sys_map_file(&t.arena, a, &m), ST_OK);
    static const char want[] =
        "\x40\0\0\0\0\0\0\0"
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]}}       ";
    ck_assert_uint_eq(m.size, 8 + 64 + 24);
    ck_assert_mem_eq(m.at, want, 8 + 64);
    ck_assert_int_eq(safetensors_metadata(&t.arena, a, "note", &value), ST_OK);
    ck_assert_ptr_null(value);
    end_with_dir(&t, dir);
}
END_TEST

START_TEST(writers_refuse) {
    BEGIN;
    const char *dir = make_dir(&t), *path = in(&t, dir, "out"), *file = in(&t, dir, "file");
    struct array x = {"x", {.dtype = DT_f32, .rank = 1, .dims = {6}}, six}, two[2] = {x, x};
    ck_assert_int_eq(npz_write(&t.ctx, path, two, 2), ST_USAGE);
    ck_assert_int_eq(safetensors_write(&t.ctx, path, two, 2, NULL, 0), ST_USAGE);
    const char *names[] = {"..", "a/../b", "", "\xff"};
    for (size_t i = 0; i < 4; i++) {
        x.name = names[i];
        ck_assert_int_eq(npz_write(&t.ctx, path, &x, 1), ST_UNSUPPORTED);
    }
    ck_assert_int_eq(safetensors_write(&t.ctx, path, &x, 1, NULL, 0), ST_UNSUPPORTED);
    x.name = "__metadata__";
    ck_assert_int_eq(safetensors_write(&t.ctx, path, &x, 1, NULL, 0), ST_UNSUPPORTED);
    x.name = "x";
    ck_assert_int_eq(safetensors_write(&t.ctx, path, &x, 1, (const char *[]){"k\0a", "k\0b"}, 2),
                     ST_USAGE);
    ck_assert(!sys_exists(path));
    ck_assert_int_eq(sys_write_file(&t.ctx, file, "f", 1), ST_OK);
    const char *bad[] = {dir, in(&t, file, "out"), in(&t, dir, "none/out")};
    for (size_t i = 0; i < 3; i++) {
        t.log[0] = '\0';
        ck_assert_int_eq(npz_write(&t.ctx, bad[i], &x, 1), ST_IO);
        ck_assert_int_eq(safetensors_write(&t.ctx, bad[i], &x, 1, NULL, 0), ST_IO);
        ck_assert_int_eq(diagnostics(&t), 2);
    }
    const char **left;
    uint32_t n;
    ck_assert_int_eq(sys_list_dir(&t.arena, dir, &left, &n), ST_OK);
    ck_assert_uint_eq(n, 1); /* no temporary files */
    end_with_dir(&t, dir);
}
END_TEST

/* ---- damage -------------------------------------------------------------------------------- */

static struct buf sample_file(struct test_env *t, int kind) {
    struct buf good = npy_of(t, "<f4", "(3, 2)", six, sizeof six);
    struct entry list[] = {{"x.npy", good, kind == 2 ? 6 : 0},
                           {"longer/name.npy", good, kind == 2 ? 6 : 0}};
    if (kind == 0) return good;
    if (kind < 3) return zip_of(t, list, 2);
    return safetensors_of(t,
                          "{\"__metadata__\":{\"k\":\"v\"},\"x\":{\"dtype\":\"F32\",\"shape\":[2],"
                          "\"data_offsets\":[0,8]},\"y\":{\"dtype\":\"U16\",\"shape\":[1,3],\"data_"
                          "offsets\":[8,14]}}",
                          14);
}

START_TEST(cut_at_every_offset) {
    BEGIN;
    struct buf b = sample_file(&t, _i);
    for (size_t n = 0; n < b.n; n++) {
        char *copy = malloc(n + 1); /* so that AddressSanitizer sees the end */
        ck_assert_ptr_nonnull(copy);
        copy = realloc(copy, n ? n : 1);
        memcpy(copy, b.at, n);
        struct arrays s;
        TEST_EXPECT(read_bytes(&t, copy, n, &s) != ST_OK);
        TEST_EXPECT(diagnostics(&t) == 1);
        free(copy);
    }
    test_end(&t);
}
END_TEST

/* Touch every element; the sum only keeps the reads alive. */
static unsigned touch(const struct arrays *s) {
    unsigned sum = 0;
    for (uint32_t i = 0; i < s->list.n; i++)
        for (int64_t k = 0; k < type_bytes(&s->list.at[i].type); k++)
            sum += ((const uint8_t *)s->list.at[i].at)[k];
    return sum;
}

START_TEST(every_byte_changed) {
    BEGIN;
    struct buf b = sample_file(&t, _i);
    unsigned sum = 0, refused = 0;
    for (size_t at = 0; at < b.n; at++) {
        for (int change = 0; change < 12; change++) {
            static const uint8_t special[] = {0, 0xff, 0x7f, 0x80};
            char old = b.at[at];
            b.at[at] = (char)(change < 8 ? old ^ 1 << change : special[change - 8]);
            struct arrays s;
            struct arena_mark mark = arena_mark(&t.arena);
            enum status st = read_bytes(&t, b.at, b.n, &s);
            TEST_EXPECT(diagnostics(&t) == (st != ST_OK));
            refused += st != ST_OK;
            if (st == ST_OK) sum += touch(&s);
            arena_rewind(&t.arena, mark);
            b.at[at] = old;
        }
    }
    ck_assert_uint_gt(refused, b.n);
    (void)sum;
    test_end(&t);
}
END_TEST

START_TEST(paths_that_are_no_files) {
    BEGIN;
    const char *dir = make_dir(&t), *fifo = in(&t, dir, "fifo"), *empty = in(&t, dir, "empty");
    struct arrays s;
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    ck_assert_int_eq(sys_write_file(&t.ctx, empty, "", 0), ST_OK);
    const char *bad[] = {dir, fifo, in(&t, dir, "none"), empty};
    for (size_t i = 0; i < 4; i++) {
        t.log[0] = '\0';
        ck_assert_int_eq(arrays_read(&t.arena, bad[i], &s), bad[i] == empty ? ST_PARSE : ST_IO);
        ck_assert_int_eq(diagnostics(&t), 1);
        ck_assert_ptr_nonnull(strstr(t.log, bad[i]));
    }
    end_with_dir(&t, dir);
}
END_TEST

/* ---- memory -------------------------------------------------------------------------------- */

static void *failing_alloc(void *user, size_t size) {
    int *left = user;
    return (*left)-- > 0 ? malloc(size) : NULL;
}

static void release(void *user, void *ptr) {
    (void)user;
    free(ptr);
}

/* Read and write with the n-th allocation refused: an unwind or a diagnostic, and nothing is lost.
 */
static bool survives(int allowed, const struct buf *file, const char *dir) {
    struct test_env t;
    struct arrays s;
    char path[128];
    int left = allowed;
    volatile bool ok = false;
    test_begin(&t);
    t.ctx.alloc = failing_alloc;
    t.ctx.release = release;
    t.ctx.alloc_user = &left;
    if (setjmp(t.landing) == 0) {
        if (arrays_read_memory(&t.arena, (const uint8_t *)file->at, file->n, "file", &s) == ST_OK) {
            snprintf(path, sizeof path, "%s/a", dir);
            bool first = npz_write(&t.ctx, path, s.list.at, s.list.n) == ST_OK;
            snprintf(path, sizeof path, "%s/b", dir);
            ok = safetensors_write(&t.ctx, path, s.list.at, s.list.n, NULL, 0) == ST_OK && first;
        }
    }
    ck_assert_ptr_eq(t.ctx.landing, &t.landing);
    test_end(&t);
    return ok;
}

START_TEST(allocations_refused) {
    BEGIN;
    const char *dir = make_dir(&t), **names;
    struct buf b = sample_file(&t, _i);
    uint32_t n;
    int allowed = 0;
    while (!survives(allowed, &b, dir)) {
        allowed++;
        ck_assert_int_lt(allowed, 1000);
    }
    ck_assert_int_gt(allowed, 3);
    ck_assert_int_eq(sys_list_dir(&t.arena, dir, &names, &n), ST_OK);
    ck_assert_uint_eq(n, 2); /* no temporary files */
    end_with_dir(&t, dir);
}
END_TEST

int main(void) {
    Suite *s = suite_create("array");
    TCase *c = tcase_create("array");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, npy_versions_and_layouts);
    tcase_add_test(c, npy_element_types);
    tcase_add_test(c, npy_shapes);
    tcase_add_test(c, npy_refusals);
    tcase_add_test(c, npz_entries);
    tcase_add_test(c, npz_refusals);
    tcase_add_test(c, npz_lying_directory);
    tcase_add_test(c, npz_overlapping_entries);
    tcase_add_test(c, safetensors_refusals);
    tcase_add_test(c, safetensors_order_and_widening);
    tcase_add_test(c, npz_written_and_read);
    tcase_add_test(c, safetensors_written_and_read);
    tcase_add_test(c, writers_refuse);
    tcase_add_loop_test(c, cut_at_every_offset, 0, 4);
    tcase_add_loop_test(c, every_byte_changed, 0, 4);
    tcase_add_test(c, paths_that_are_no_files);
    tcase_add_loop_test(c, allocations_refused, 1, 4);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
