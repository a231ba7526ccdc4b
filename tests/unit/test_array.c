// SPDX-License-Identifier: Apache-2.0
/* test_array.c - array files that are read: what is accepted, and that no hostile file does more
 * than earn one diagnostic. */
#include "array_util.h"

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
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
