// SPDX-License-Identifier: Apache-2.0
/* test_data.c - data sources and the batches made of them. */
#include "runtime/data.h"
#include "test_util.h"
#include <sys/stat.h>

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t);                                                                              \
    const char *dir = arena_strdup(&t.arena, "/tmp/lathe-test-XXXXXX");                            \
    ck_assert_ptr_nonnull(mkdtemp((char *)(uintptr_t)dir))
#define END                                                                                        \
    ck_assert_int_eq(sys_remove_tree(&t.ctx, dir), ST_OK);                                         \
    test_end(&t)

/* ---- helpers ------------------------------------------------------------------------------- */

static const char *put(struct test_env *t, const char *dir, const char *name, const void *p,
                       size_t n) {
    const char *path = arena_printf(&t->arena, "%s/%s", dir, name);
    ck_assert_int_eq(sys_write_file(&t->ctx, path, p, n), ST_OK);
    return path;
}

static void refuse_open(struct test_env *t, const char *path, enum status want, const char *text) {
    struct data_source src;
    t->log[0] = '\0';
    enum status st = data_open(&t->arena, path, NULL, 0, &src);
    ck_assert_msg(st == want && strstr(t->log, text), "status %d, expected %d and \"%s\": %s",
                  (int)st, (int)want, text, t->log);
    ck_assert_ptr_eq(strchr(t->log, '\n'), strrchr(t->log, '\n'));
}

static struct type type2(enum dtype d, dim a, dim b) {
    return (struct type){.dtype = d, .rank = 2, .dims = {a, b}};
}

static struct data_slot slot(struct test_env *t, const char *name, struct type type, int shift) {
    return (struct data_slot){name, type, arena_alloc(&t->arena, (size_t)type_bytes(&type)), shift};
}

static void refuse_loader(struct test_env *t, const struct data_source *src,
                          struct data_slot *slots, int n, int64_t batch, int64_t vocab,
                          const char *text) {
    struct data_loader *l;
    t->log[0] = '\0';
    enum status st = data_loader_create(&t->arena, src, slots, n, batch, vocab, 0, true, &l);
    ck_assert_msg(st == ST_DATA && strstr(t->log, text), "status %d, expected \"%s\": %s", (int)st,
                  text, t->log);
    ck_assert_ptr_eq(strchr(t->log, '\n'), strrchr(t->log, '\n'));
}

static struct data_loader *loader(struct test_env *t, const struct data_source *src,
                                  struct data_slot *slots, int n, int64_t batch, uint64_t seed,
                                  bool shuffle) {
    struct data_loader *l = NULL;
    enum status st = data_loader_create(&t->arena, src, slots, n, batch, 0, seed, shuffle, &l);
    ck_assert_msg(st == ST_OK, "%s", t->log);
    return l;
}

static int64_t get(const struct data_slot *s, int64_t i) {
    return dtype_load_int(s->type.dtype,
                          (const char *)s->at + (size_t)i * dtype_size(s->type.dtype));
}

/* `n` tokens 0, 1, 2... as uint16 without a header. */
static struct data_source counting(struct test_env *t, const char *dir, int n) {
    uint16_t *ids = ARENA_ARRAY(&t->arena, uint16_t, (size_t)n);
    struct data_source src;
    for (int i = 0; i < n; i++) ids[i] = (uint16_t)i;
    const char *path = put(t, dir, "counting.bin", ids, (size_t)n * 2);
    ck_assert_int_eq(data_open(&t->arena, path, NULL, 0, &src), ST_OK);
    return src;
}

/* ---- opening ------------------------------------------------------------------------------- */

START_TEST(bytes_and_directories) {
    BEGIN;
    struct data_source src;
    const char *path = put(&t, dir, "b.txt", "hello\xff", 6);
    ck_assert_int_eq(data_open(&t.arena, path, NULL, 0, &src), ST_OK);
    ck_assert(src.kind == DATA_TOKENS && src.token_type == DT_u8 && src.ntokens == 6 &&
              src.max_token == 255);
    put(&t, dir, "a.txt", "first ", 6);
    put(&t, dir, "empty", "", 0);
    ck_assert_int_eq(sys_mkdirs(&t.ctx, arena_printf(&t.arena, "%s/sub", dir)), ST_OK);
    ck_assert_int_eq(data_open(&t.arena, dir, NULL, 0, &src), ST_OK);
    ck_assert_int_eq(src.ntokens, 12);
    ck_assert_mem_eq(src.tokens, "first hello\xff", 12);
    END;
}
END_TEST

START_TEST(token_files) {
    BEGIN;
    struct data_source src;
    struct {
        uint32_t header[256];
        uint16_t ids[6];
    } f = {{20240520, 1, 5}, {7, 50256, 0, 65535, 3, 0}};
    ck_assert_int_eq(data_open(&t.arena, put(&t, dir, "a.bin", &f, 1024 + 10), NULL, 0, &src),
                     ST_OK);
    ck_assert(src.token_type == DT_i16 && src.ntokens == 5 && src.max_token == 65535);
    refuse_open(&t, put(&t, dir, "a.bin", &f, 1024 + 8), ST_PARSE, "declares 5 tokens");
    refuse_open(&t, put(&t, dir, "a.bin", &f, 1024 + 12), ST_PARSE, "12 bytes follow");
    f.header[2] = 0;
    refuse_open(&t, put(&t, dir, "a.bin", &f, 1024), ST_DATA, "no tokens");
    f.header[1] = 2;
    refuse_open(&t, put(&t, dir, "a.bin", &f, 1024 + 10), ST_UNSUPPORTED, "version 1, found 2");
    f.header[0] = 20240801;
    f.header[1] = 7;
    f.header[2] = 3;
    ck_assert_int_eq(data_open(&t.arena, put(&t, dir, "a.bin", &f, 1024 + 12), NULL, 0, &src),
                     ST_DATA); /* ids over 2^31 */
    f.ids[1] = 5;
    f.ids[3] = 1;
    ck_assert_int_eq(data_open(&t.arena, put(&t, dir, "a.bin", &f, 1024 + 12), NULL, 0, &src),
                     ST_OK);
    ck_assert(src.token_type == DT_i32 && src.ntokens == 3 && src.max_token == (5 << 16 | 7));
    END;
}
END_TEST

START_TEST(sources_refused) {
    BEGIN;
    const char *fifo = arena_printf(&t.arena, "%s/fifo", dir),
               *sub = arena_printf(&t.arena, "%s/sub", dir);
    refuse_open(&t, put(&t, dir, "one.bin", "x", 1), ST_PARSE, "odd size");
    refuse_open(&t, put(&t, dir, "empty.txt", "", 0), ST_DATA, "empty");
    refuse_open(&t, put(&t, dir, "text.npz", "hello, world", 12), ST_PARSE, "another kind");
    refuse_open(&t, put(&t, dir, "none.npz", "PK\5\6\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22),
                ST_DATA, "no array");
    refuse_open(&t, arena_printf(&t.arena, "%s/none", dir), ST_IO, "cannot open");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    refuse_open(&t, fifo, ST_IO, "regular file");
    refuse_open(&t, dir, ST_IO, "regular file"); /* the FIFO in it */
    ck_assert_int_eq(sys_mkdirs(&t.ctx, sub), ST_OK);
    refuse_open(&t, sub, ST_DATA, "holds no file");
    struct array x = {"x", {.dtype = DT_u8, .rank = 1, .dims = {1}}, "a"};
    ck_assert_int_eq(npz_write(&t.ctx, arena_printf(&t.arena, "%s/x.npz", sub), &x, 1), ST_OK);
    refuse_open(&t, sub, ST_DATA, "holds arrays");
    END;
}
END_TEST

START_TEST(renaming) {
    BEGIN;
    struct data_source src;
    struct array list[] = {{"a", type2(DT_u8, 1, 2), "ab"}, {"b", type2(DT_u8, 1, 2), "cd"}};
    const char *path = arena_printf(&t.arena, "%s/data", dir),
               *text = put(&t, dir, "text", "hi", 2);
    ck_assert_int_eq(npz_write(&t.ctx, path, list, 2), ST_OK);
    const char *map[] = {"b=a", "c=a", "x=y", "nothing", "=a"};
    ck_assert_int_eq(data_open(&t.arena, path, map, 2, &src), ST_OK);
    ck_assert_mem_eq(arrays_find(&src.arrays, "a")->at, "ab", 2);
    ck_assert_mem_eq(arrays_find(&src.arrays, "b")->at, "ab", 2);
    ck_assert_mem_eq(arrays_find(&src.arrays, "c")->at, "ab", 2);
    ck_assert_int_eq(data_open(&t.arena, path, map + 2, 1, &src), ST_DATA);
    ck_assert_ptr_nonnull(strstr(t.log, "no array \"y\""));
    ck_assert_int_eq(data_open(&t.arena, path, map + 3, 1, &src), ST_USAGE);
    ck_assert_int_eq(data_open(&t.arena, path, map + 4, 1, &src), ST_USAGE);
    ck_assert_int_eq(data_open(&t.arena, path, (const char *[]){"c=a", "c=b"}, 2, &src), ST_USAGE);
    ck_assert_int_eq(data_open(&t.arena, text, map, 1, &src), ST_USAGE);
    END;
}
END_TEST

/* ---- tokens -------------------------------------------------------------------------------- */

START_TEST(windows_in_order) {
    BEGIN;
    struct data_source src = counting(&t, dir, 23);
    struct data_slot s[] = {slot(&t, "x", type2(DT_i64, 2, 5), 0),
                            slot(&t, "labels", type2(DT_i32, 2, 5), 1)};
    struct data_loader *l = loader(&t, &src, s, 2, 2, 1, false);
    ck_assert_int_eq(data_batches_per_epoch(l), 2); /* windows of 6 at 0, 5, 10, 15: tokens 0..20 */
    for (int64_t index = 0; index < 7; index++) {
        data_load(l, index);
        for (int64_t j = 0; j < 2; j++)
            for (int64_t k = 0; k < 5; k++) {
                ck_assert_int_eq(get(&s[0], j * 5 + k), (index * 2 + j) % 4 * 5 + k);
                ck_assert_int_eq(get(&s[1], j * 5 + k), (index * 2 + j) % 4 * 5 + k + 1);
            }
    }
    END;
}
END_TEST

START_TEST(label_needs_one_token_more) {
    BEGIN;
    struct data_source src = counting(&t, dir, 10);
    struct data_slot s[] = {slot(&t, "x", type2(DT_u8, 2, 5), 0),
                            slot(&t, "labels", type2(DT_i16, 2, 5), 1)};
    ck_assert_int_eq(data_batches_per_epoch(loader(&t, &src, s, 1, 2, 1, true)), 1);
    refuse_loader(&t, &src, s, 2, 2, 0, "needs 11 tokens, but there are 10");
    src = counting(&t, dir, 11);
    struct data_loader *l = loader(&t, &src, s, 2, 2, 1, true); /* one batch is all: file order */
    for (int64_t index = 0; index < 3; index++) {
        data_load(l, index);
        for (int64_t i = 0; i < 10; i++) ck_assert(get(&s[0], i) == i && get(&s[1], i) == i + 1);
    }
    END;
}
END_TEST

START_TEST(shuffled_windows) {
    BEGIN;
    enum { N = 1000, SEQ = 7, BATCH = 3 };
    struct data_source src = counting(&t, dir, N);
    struct data_slot s[] = {slot(&t, "x", type2(DT_i64, BATCH, SEQ), 0),
                            slot(&t, "y", type2(DT_i64, BATCH, SEQ), 1)};
    struct data_loader *l = loader(&t, &src, s, 2, BATCH, 42, true);
    int64_t batches = data_batches_per_epoch(l), offsets[20], distinct = 0, moved = 0;
    ck_assert_int_eq(batches,
                     ((N - SEQ - 1) / SEQ) / BATCH); /* one window is spent on the offset */
    for (int64_t epoch = 0; epoch < 20; epoch++) {
        bool seen[N] = {false};
        offsets[epoch] = -1;
        for (int64_t b = 0; b < batches; b++) {
            data_load(l, epoch * batches + b);
            for (int64_t j = 0; j < BATCH; j++) {
                int64_t first = get(&s[0], j * SEQ);
                if (offsets[epoch] < 0) offsets[epoch] = first % SEQ;
                TEST_EXPECT(first % SEQ == offsets[epoch] && !seen[first]);
                seen[first] = true;
                moved += first / SEQ != b * BATCH + j;
                for (int64_t k = 0; k < SEQ; k++)
                    TEST_EXPECT(get(&s[0], j * SEQ + k) == first + k &&
                                get(&s[1], j * SEQ + k) == first + k + 1);
            }
        }
        for (int64_t k = 0; k < epoch; k++) distinct += offsets[k] != offsets[epoch];
    }
    ck_assert_int_gt(distinct, 100); /* of 190 pairs, 1/7 equal by chance */
    ck_assert_int_gt(moved, 20 * batches * BATCH * 9 / 10);
    END;
}
END_TEST

START_TEST(order_is_a_pure_function) {
    BEGIN;
    struct data_source src = counting(&t, dir, 500);
    struct data_slot a[] = {slot(&t, "x", type2(DT_i64, 4, 8), 0)},
                     b[] = {slot(&t, "x", type2(DT_i64, 4, 8), 0)};
    struct data_loader *one = loader(&t, &src, a, 1, 4, 7, true),
                       *two = loader(&t, &src, b, 1, 4, 7, true);
    struct data_loader *other = loader(&t, &src, b, 1, 4, 8, true);
    int same = 0;
    for (int64_t i = 40; i-- > 0;) data_load(one, i); /* loads leave no trace */
    for (int64_t i = 0; i < 100; i += 9) {
        data_load(one, i);
        data_load(two, i);
        ck_assert_mem_eq(a[0].at, b[0].at, 4 * 8 * 8);
        data_load(other, i);
        same += memcmp(a[0].at, b[0].at, 4 * 8 * 8) == 0;
    }
    ck_assert_int_lt(same, 2);
    END;
}
END_TEST

/* For every size up to 200 an epoch of batches of one visits every sample exactly once, and two
 * epochs differ. */
START_TEST(permutations_of_every_size) {
    BEGIN;
    uint8_t ids[200];
    struct data_slot s[] = {
        slot(&t, "x", (struct type){.dtype = DT_u8, .rank = 1, .dims = {1}}, 0)};
    int equal = 0;
    for (int i = 0; i < 200; i++) ids[i] = (uint8_t)i;
    for (int n = 1; n <= 200; n++) {
        struct data_source src = {.kind = DATA_ARRAYS, .path = "x"};
        struct array x = {"x", {.dtype = DT_u8, .rank = 1, .dims = {n}}, ids};
        vec_push(&t.arena, &src.arrays.list, x);
        struct data_loader *l = loader(&t, &src, s, 1, 1, 5, true);
        uint8_t order[2][200];
        for (int epoch = 0; epoch < 2; epoch++) {
            bool seen[200] = {false};
            for (int i = 0; i < n; i++) {
                data_load(l, epoch * n + i);
                order[epoch][i] = *(uint8_t *)s[0].at;
                TEST_EXPECT(order[epoch][i] < n && !seen[order[epoch][i]]);
                seen[order[epoch][i]] = true;
            }
        }
        if (n > 5) equal += memcmp(order[0], order[1], (size_t)n) == 0;
    }
    ck_assert_int_eq(equal, 0);
    END;
}
END_TEST

START_TEST(tokens_refused) {
    BEGIN;
    struct data_source src = counting(&t, dir, 300);
    struct data_slot x = slot(&t, "x", type2(DT_i64, 2, 5), 0), bad[2] = {x, x};
    refuse_loader(&t, &src, &x, 1, 2, 299, "id 299 occurs, but the model has a vocabulary of 299");
    ck_assert_int_eq(data_batches_per_epoch(loader(&t, &src, &x, 1, 2, 0, false)), 30);
    bad[1].type = type2(DT_i64, 2, 6);
    refuse_loader(&t, &src, bad, 2, 2, 0, "expected [2, 5]");
    bad[1].type = type2(DT_f32, 2, 5);
    refuse_loader(&t, &src, bad, 2, 2, 0, "f32[2,5]");
    bad[1].type = type2(DT_u8, 2, 5);
    refuse_loader(&t, &src, bad, 2, 2, 0, "type u8, but the token id 299");
    bad[0].type = (struct type){.dtype = DT_i64, .rank = 1, .dims = {2}};
    refuse_loader(&t, &src, bad, 1, 2, 0, "[batch, seq]");
    refuse_loader(&t, &src, &x, 1, 3, 0, "expected [3, 5]");
    struct data_source one;
    ck_assert_int_eq(data_open(&t.arena, put(&t, dir, "one", "x", 1), NULL, 0, &one), ST_OK);
    refuse_loader(&t, &one, &x, 1, 2, 0, "needs 10 tokens, but there are 1;");
    END;
}
END_TEST

/* ---- arrays -------------------------------------------------------------------------------- */

START_TEST(arrays_converted) {
    BEGIN;
    static const double reals[] = {0, 1.5, -2.25, 1e-3, 4, 5, 6, 7};
    static const uint16_t halves[] = {0x3c00, 0xc100, 0x0001, 0x7c00};
    static const int64_t wide[] = {-5, 127, 0, 1};
    static const uint8_t flags[] = {1, 0, 1, 1};
    struct array list[] = {{"real", type2(DT_f64, 4, 2), reals},
                           {"half", type2(DT_f16, 4, 1), halves},
                           {"int", type2(DT_i64, 4, 1), wide},
                           {"flag", type2(DT_bool, 4, 1), flags},
                           {"byte", type2(DT_u8, 4, 1), flags}};
    const char *path = arena_printf(&t.arena, "%s/data.npz", dir);
    struct data_source src;
    ck_assert_int_eq(npz_write(&t.ctx, path, list, 5), ST_OK);
    ck_assert_int_eq(data_open(&t.arena, path, NULL, 0, &src), ST_OK);
    struct data_slot s[] = {
        slot(&t, "real", type2(DT_f32, 2, 2), 0), slot(&t, "half", type2(DT_bf16, 2, 1), 0),
        slot(&t, "int", type2(DT_i8, 2, 1), 0), slot(&t, "flag", type2(DT_i64, 2, 1), 0),
        slot(&t, "byte", type2(DT_bool, 2, 1), 0)};
    struct data_loader *l = loader(&t, &src, s, 5, 2, 3, false);
    ck_assert_int_eq(data_batches_per_epoch(l), 2);
    for (int64_t i = 0; i < 4; i++) {
        data_load(l, i);
        for (int64_t j = 0; j < 2; j++) {
            int64_t at = i % 2 * 2 + j;
            for (int k = 0; k < 2; k++)
                ck_assert(((float *)s[0].at)[j * 2 + k] == (float)reals[at * 2 + k]);
            uint16_t want;
            dtype_store(DT_bf16, &want, dtype_load(DT_f16, &halves[at]));
            ck_assert_uint_eq(((uint16_t *)s[1].at)[j], want);
            ck_assert_int_eq(get(&s[2], j), wide[at]);
            ck_assert_int_eq(get(&s[3], j), flags[at]);
            ck_assert_int_eq(get(&s[4], j), flags[at]);
        }
    }
    END;
}
END_TEST

START_TEST(samples_shuffled_together) {
    BEGIN;
    int32_t x[30], y[10];
    for (int i = 0; i < 30; i++) x[i] = 100 * (i / 3) + i % 3;
    for (int i = 0; i < 10; i++) y[i] = 100 * i;
    struct array list[] = {{"x", type2(DT_i32, 10, 3), x}, {"y", type2(DT_i32, 10, 1), y}};
    struct data_source src = {.kind = DATA_ARRAYS, .path = "memory", .arrays = {{list, 2, 2}}};
    struct data_slot s[] = {slot(&t, "x", type2(DT_i64, 4, 3), 0),
                            slot(&t, "y", type2(DT_i32, 4, 1), 0)};
    struct data_loader *l = loader(&t, &src, s, 2, 4, 3, true);
    ck_assert_int_eq(data_batches_per_epoch(l), 2);
    int in_order = 0;
    for (int64_t i = 0; i < 50; i++) {
        data_load(l, i);
        for (int64_t j = 0; j < 4; j++) {
            for (int64_t k = 0; k < 3; k++) TEST_EXPECT(get(&s[0], j * 3 + k) == get(&s[1], j) + k);
            in_order += get(&s[1], j) == 100 * (i % 2 * 4 + j);
        }
    }
    ck_assert_int_lt(in_order, 60); /* of 200; a tenth by chance */
    struct data_slot all[] = {slot(&t, "y", type2(DT_i32, 10, 1), 0)};
    l = loader(&t, &src, all, 1, 10, 3, true);
    for (int64_t i = 0; i < 3; i++) {
        data_load(l, i);
        ck_assert_mem_eq(all[0].at, y, sizeof y);
    }
    END;
}
END_TEST

START_TEST(last_batch_wraps_around) {
    BEGIN;
    static const uint8_t x[] = {0, 1, 2, 3, 4, 5, 6};
    struct array list[] = {
        {"", (struct type){.dtype = DT_u8, .rank = 1, .dims = {7}}, x}}; /* a bare .npy */
    struct data_source src = {.kind = DATA_ARRAYS, .path = "memory", .arrays = {{list, 1, 1}}};
    struct data_slot s[] = {
        slot(&t, "any", (struct type){.dtype = DT_i64, .rank = 1, .dims = {3}}, 0)};
    struct data_loader *l = loader(&t, &src, s, 1, 3, 0, false);
    for (int64_t i = 0; i < 20; i++) {
        data_load(l, i);
        for (int64_t j = 0; j < 3; j++) ck_assert_int_eq(get(&s[0], j), (i * 3 + j) % 7);
    }
    ck_assert_int_eq(data_items(l), 7);
    for (int64_t first = 0; first < 7; first++) {
        data_load_from(l, first);
        for (int64_t j = 0; j < 3; j++) ck_assert_int_eq(get(&s[0], j), (first + j) % 7);
    }
    struct data_slot two[] = {s[0], s[0]};
    two[1].name = "other";
    refuse_loader(&t, &src, two, 2, 3, 0, "cannot feed 2 inputs");
    END;
}
END_TEST

START_TEST(arrays_refused) {
    BEGIN;
    static const int32_t ints[] = {0, 1, 300, -1, 2, 3};
    static const float reals[] = {0, 1, 2, 3, 4, 5};
    struct array list[] = {{"i", type2(DT_i32, 3, 2), ints},
                           {"f", type2(DT_f32, 3, 2), reals},
                           {"long", type2(DT_f32, 6, 1), reals},
                           {"scalar", {.dtype = DT_f32}, reals}};
    struct data_source src = {.kind = DATA_ARRAYS, .path = "memory", .arrays = {{list, 4, 4}}};
    struct {
        const char *name;
        struct type type;
        const char *text;
    } rows[] = {
        {"nope", type2(DT_f32, 2, 2), "\"nope\" needs an array"},
        {"i", type2(DT_f32, 2, 2), "type f32, but its array is of type i32"},
        {"f", type2(DT_i64, 2, 2), "type i64, but its array is of type f32"},
        {"f", type2(DT_bool, 2, 2), "type bool, but its array is of type f32"},
        {"i", type2(DT_u8, 2, 2), "u8, which cannot hold the value 300 at element 2"},
        {"i", type2(DT_i8, 2, 2), "i8, which cannot hold the value 300 at element 2"},
        {"i", type2(DT_bool, 2, 2), "bool, which cannot hold the value 300"},
        {"f", type2(DT_f32, 2, 3), "f32[2,3], but its array is f32[3,2]"},
        {"f", {.dtype = DT_f32, .rank = 1, .dims = {2}}, "f32[2], but its array is f32[3,2]"},
        {"f", type2(DT_f32, 3, 2), "first dimension that is the batch size, 2"},
        {"scalar", {.dtype = DT_f32}, "first dimension"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct data_slot s = slot(&t, rows[i].name, rows[i].type, 0);
        refuse_loader(&t, &src, &s, 1, 2, 0, rows[i].text);
    }
    struct data_slot two[] = {slot(&t, "f", type2(DT_f32, 2, 2), 0),
                              slot(&t, "long", type2(DT_f32, 2, 1), 0)};
    refuse_loader(&t, &src, two, 2, 2, 0, "has 6 samples, but input \"f\" has 3");
    struct data_slot big = slot(&t, "f", type2(DT_f32, 4, 2), 0);
    refuse_loader(&t, &src, &big, 1, 4, 0, "needs 4 samples, but there are 3");
    END;
}
END_TEST

int main(void) {
    Suite *s = suite_create("data");
    TCase *c = tcase_create("data");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, bytes_and_directories);
    tcase_add_test(c, token_files);
    tcase_add_test(c, sources_refused);
    tcase_add_test(c, renaming);
    tcase_add_test(c, windows_in_order);
    tcase_add_test(c, label_needs_one_token_more);
    tcase_add_test(c, shuffled_windows);
    tcase_add_test(c, order_is_a_pure_function);
    tcase_add_test(c, permutations_of_every_size);
    tcase_add_test(c, tokens_refused);
    tcase_add_test(c, arrays_converted);
    tcase_add_test(c, samples_shuffled_together);
    tcase_add_test(c, last_batch_wraps_around);
    tcase_add_test(c, arrays_refused);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
