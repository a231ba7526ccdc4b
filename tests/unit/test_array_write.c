// SPDX-License-Identifier: Apache-2.0
/* test_array_write.c - array files that are written, read back, damaged and refused. */
#include "array_util.h"

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
    Suite *s = suite_create("array_write");
    TCase *c = tcase_create("array_write");
    tcase_set_timeout(c, 60);
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
