// SPDX-License-Identifier: Apache-2.0
/* test_base.c - contexts, arenas, containers, text, files and the thread pool, including the ways
 * in which memory, files and hostile paths go wrong. */
#include "base/buf.h"
#include "base/hash.h"
#include "base/intern.h"
#include "base/vec.h"
#include "test_util.h"
#include <math.h>

static uint64_t next_random(uint64_t *s) { /* splitmix64 (Steele, Lea, Flood 2014) */
    uint64_t z = (*s += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t)

/* ---- context and diagnostics -------------------------------------------------------------- */

/* Refuses the allocation number `left` and hands out badly aligned blocks. */
struct stingy {
    long left, live;
};

static void *stingy_alloc(void *user, size_t size) {
    struct stingy *s = user;
    if (s->left-- <= 0) return NULL;
    char *p = malloc(size + 8);
    s->live++;
    return p ? p + 8 : NULL;
}

static void stingy_release(void *user, void *ptr) {
    ((struct stingy *)user)->live--;
    free((char *)ptr - 8);
}

START_TEST(ctx_counts_and_aligns) {
    BEGIN;
    struct stingy s = {.left = 1000};
    t.ctx.alloc = stingy_alloc, t.ctx.release = stingy_release, t.ctx.alloc_user = &s;
    char *p[100];
    size_t sum = 0;
    for (size_t i = 0; i < 100; i++) {
        p[i] = ctx_alloc(&t.ctx, 3 * i + 1);
        memset(p[i], (int)i, 3 * i + 1);
        ck_assert_uint_eq((uintptr_t)p[i] % 64, 0);
        sum += 3 * i + 1;
        ck_assert_uint_eq(t.ctx.bytes_in_use, sum);
    }
    for (size_t i = 0; i < 100; i++) {
        ck_assert_int_eq(p[i][3 * i], (int)i);
        ctx_free(&t.ctx, p[i]);
    }
    ctx_free(&t.ctx, NULL);
    ck_assert_uint_eq(t.ctx.bytes_peak, sum);
    ck_assert_ptr_null(ctx_try_alloc(&t.ctx, SIZE_MAX - 10));
    s.left = 0;
    ck_assert_ptr_null(ctx_try_alloc(&t.ctx, 1));
    ck_assert_int_eq(s.live, 0);
    test_end(&t);
}
END_TEST

START_TEST(sizes_overflow) {
    size_t x = 7;
    ck_assert(size_mul(1u << 20, 3, &x) && x == 3u << 20);
    ck_assert(!size_mul(SIZE_MAX / 2, 3, &x));
    ck_assert(size_add(SIZE_MAX - 1, 1, &x) && x == SIZE_MAX);
    ck_assert(!size_add(SIZE_MAX, 1, &x));
}
END_TEST

static bool unwinds(struct test_env *t, void (*fn)(struct test_env *)) {
    jmp_buf here, *before = t->ctx.landing;
    t->ctx.landing = &here;
    if (setjmp(here)) {
        t->ctx.landing = before;
        return true;
    }
    fn(t);
    t->ctx.landing = before;
    return false;
}

static void break_invariant(struct test_env *t) {
    CHECK(&t->ctx, t->ctx.errors == 12345);
}
static void ask_too_much(struct test_env *t) {
    arena_array(&t->arena, SIZE_MAX / 4, 8);
}
static void ask_everything(struct test_env *t) {
    arena_alloc(&t->arena, SIZE_MAX - 3);
}

START_TEST(unwinding) {
    BEGIN;
    ck_assert(unwinds(&t, break_invariant));
    ck_assert_int_eq(t.ctx.unwound, ST_INTERNAL);
    ck_assert_ptr_nonnull(strstr(t.log, "test_base.c"));
    ck_assert_ptr_nonnull(strstr(t.log, "t->ctx.errors == 12345"));
    ck_assert(unwinds(&t, ask_too_much));
    ck_assert_int_eq(t.ctx.unwound, ST_OUT_OF_MEMORY);
    ck_assert(unwinds(&t, ask_everything));
    ck_assert_uint_eq(t.ctx.errors, 3);
    test_end(&t);
}
END_TEST

struct seen {
    char origin[1200], message[2200];
    enum severity sev;
    enum status code;
};

static void see(void *user, enum severity sev, enum status code, const char *origin,
                const char *message) {
    struct seen *s = user;
    s->sev = sev;
    s->code = code;
    snprintf(s->origin, sizeof s->origin, "%s", origin);
    snprintf(s->message, sizeof s->message, "%s", message);
}

START_TEST(diagnostics_are_safe_to_show) {
    struct seen s = {0};
    struct ctx c;
    ctx_init(&c);
    ck_assert_int_eq(diag_error(&c, ST_PARSE, "x", "dropped"), ST_PARSE);
    c.report = see, c.report_user = &s;
    ck_assert_int_eq(diag_error(&c, ST_SHAPE, "a\x1b[2J\n",
                                "%d\r\xc2\x9b"
                                "31m \xc3\xa9\x7f",
                                7),
                     ST_SHAPE);
    ck_assert_str_eq(s.origin, "a?[2J?");
    ck_assert_str_eq(s.message, "7???31m \xc3\xa9?");
    ck_assert(s.sev == SEV_ERROR && s.code == ST_SHAPE);
    diag_warning(&c, NULL, "%s", "w");
    ck_assert(s.sev == SEV_WARNING && s.code == ST_OK && !*s.origin);
    diag_note(&c, "", "n");
    ck_assert_int_eq(s.sev, SEV_NOTE);
    ck_assert_uint_eq(c.errors, 2);
    for (size_t lead = 0; lead < 4; lead++) { /* cut within, before and after a 3-byte sequence */
        char text[3000];
        memset(text, 'a', lead);
        for (size_t i = lead; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 4);
        diag_error(&c, ST_DATA, text, "%s", text);
        ck_assert_uint_eq(strlen(s.message), lead + (2000 - lead) / 3 * 3);
        ck_assert_uint_eq(strlen(s.origin), lead + (1000 - lead) / 3 * 3);
    }
}
END_TEST

/* ---- arena -------------------------------------------------------------------------------- */

static char trace[64];
static void note_run(void *ptr) {
    size_t n = strlen(trace);
    snprintf(trace + n, sizeof trace - n, "%s", (const char *)ptr);
}

START_TEST(arena_blocks) {
    BEGIN;
    uint64_t rng = 1;
    struct arena_mark start = arena_mark(&t.arena);
    for (int round = 0; round < 3; round++) {
        char *at[400];
        size_t size[400];
        for (size_t i = 0; i < 400; i++) {
            size[i] = next_random(&rng) % (i % 50 == 49 ? 300000 : 700);
            at[i] = arena_alloc(&t.arena, size[i]);
            TEST_EXPECT((uintptr_t)at[i] % 16 == 0);
            for (size_t k = 0; k < size[i]; k++) TEST_EXPECT(at[i][k] == 0);
            memset(at[i], (int)i | 1, size[i]);
        }
        for (size_t i = 0; i < 400; i++)
            for (size_t k = 0; k < size[i]; k++) TEST_EXPECT(at[i][k] == (char)((int)i | 1));
        if (round < 2) arena_rewind(&t.arena, start);
    }
    ck_assert_ptr_ne(arena_alloc(&t.arena, 0), arena_alloc(&t.arena, 0));
    memset(arena_alloc(&t.arena, 5u << 20), 1, 5u << 20);
    ck_assert_str_eq(arena_strdup(&t.arena, "abc"), "abc");
    ck_assert_str_eq(arena_strndup(&t.arena, "abcdef", 2), "ab");
    ck_assert_str_eq(arena_strndup(&t.arena, "ab", 9), "ab");
    ck_assert_str_eq(arena_printf(&t.arena, "%s-%05d", "x", 42), "x-00042");
    ck_assert_uint_eq(strlen(arena_printf(&t.arena, "%5000d", 1)), 5000);
    test_end(&t);
}
END_TEST

START_TEST(arena_marks_and_cleanups) {
    BEGIN;
    trace[0] = '\0';
    arena_defer(&t.arena, note_run, arena_strdup(&t.arena, "a"));
    int *kept = ARENA_NEW(&t.arena, int);
    *kept = 17;
    struct arena_mark m = arena_mark(&t.arena);
    size_t before = t.ctx.bytes_in_use;
    arena_defer(&t.arena, note_run, arena_strdup(&t.arena, "b"));
    arena_alloc(&t.arena, 100000);
    arena_defer(&t.arena, note_run, arena_strdup(&t.arena, "c"));
    arena_rewind(&t.arena, m);
    ck_assert_str_eq(trace, "cb");
    ck_assert_uint_eq(t.ctx.bytes_in_use, before);
    ck_assert_int_eq(*kept, 17);
    int *again = ARENA_NEW(&t.arena, int);
    ck_assert_int_eq(*again, 0);
    arena_reset(&t.arena);
    ck_assert_str_eq(trace, "cba");
    ck_assert_int_eq(*ARENA_NEW(&t.arena, int), 0);
    test_end(&t);
    ck_assert_str_eq(trace, "cba");
}
END_TEST

static void count_run(void *ptr) {
    ++*(int *)ptr;
}

static int cleanups_run, cleanups_made;
static void allocate_a_lot(struct test_env *t) {
    struct arena *a = &t->arena;
    VEC(uint64_t) v = {0};
    struct map m;
    struct interner names;
    struct buf b;
    map_init(&m, a);
    intern_init(&names, a);
    buf_init(&b, a);
    for (uint32_t i = 0; i < 3000; i++) {
        vec_push(a, &v, i);
        map_set(&m, i * 77, i);
        intern(&names, arena_printf(a, "name%u", i));
        buf_printf(&b, "%u,", i);
        if (i % 100) continue;
        arena_defer(a, count_run, &cleanups_run);
        cleanups_made++;
    }
}

START_TEST(out_of_memory_unwinds_without_leaks) {
    struct stingy s = {0};
    struct test_env t;
    long refused = 0;
    for (bool done = false; !done; refused++) {
        test_begin(&t);
        t.ctx.alloc = stingy_alloc, t.ctx.release = stingy_release, t.ctx.alloc_user = &s;
        s.left = refused;
        cleanups_run = cleanups_made = 0;
        done = !unwinds(&t, allocate_a_lot);
        if (!done) {
            ck_assert_int_eq(t.ctx.unwound, ST_OUT_OF_MEMORY);
            ck_assert_ptr_nonnull(strstr(t.log, "out of memory"));
        }
        test_end(&t);
        ck_assert_int_eq(s.live, 0);
        ck_assert_int_eq(cleanups_run, cleanups_made);
    }
    ck_assert_int_gt(refused, 5);
    ck_assert_int_eq(cleanups_made, 30);
}
END_TEST

/* ---- containers --------------------------------------------------------------------------- */

struct pair {
    int a;
    double b;
};

START_TEST(vectors) {
    BEGIN;
    VEC(struct pair) v = {0};
    for (int i = 0; i < 100003; i++) vec_push(&t.arena, &v, (struct pair){i, i * 0.5});
    ck_assert_uint_eq(v.n, 100003);
    for (int i = 0; i < 100003; i++) TEST_EXPECT(v.at[i].a == i && v.at[i].b == i * 0.5);
    test_end(&t);
}
END_TEST

START_TEST(hashes_and_maps) {
    BEGIN;
    /* The published XXH3 value of the empty input. */
    ck_assert_uint_eq(hash_bytes("", 0), UINT64_C(0x2D06800538D394C2));
    ck_assert_uint_ne(hash_bytes("ab", 2), hash_bytes("ba", 2));
    ck_assert_uint_ne(hash_combine(1, 2), hash_combine(2, 1));
    struct map m;
    uint32_t val = 5;
    map_init(&m, &t.arena);
    ck_assert(!map_get(&m, 0, &val));
    uint64_t rng = 3;
    for (uint32_t i = 0; i < 50021; i++) {
        map_set(&m, next_random(&rng), i);
        map_set(&m, (uint64_t)i << 40, i + 1); /* keys that differ in high bits only */
        map_set(&m, i, i + 2);
    }
    ck_assert_uint_eq(m.n, 3 * 50021 - 1); /* 0 << 40 == 0 */
    rng = 3;
    for (uint32_t i = 0; i < 50021; i++) {
        TEST_EXPECT(map_get(&m, next_random(&rng), &val) && val == i);
        TEST_EXPECT(map_get(&m, i, &val) && val == i + 2);
        TEST_EXPECT(i == 0 || (map_get(&m, (uint64_t)i << 40, &val) && val == i + 1));
    }
    for (int i = 0; i < 1000; i++) TEST_EXPECT(!map_get(&m, next_random(&rng), &val));
    map_set(&m, 9, 100);
    ck_assert(map_get(&m, 9, &val) && val == 100);
    ck_assert_uint_eq(m.n, 3 * 50021 - 1);
    test_end(&t);
}
END_TEST

static struct interner bad_names;
static void intern_nul(struct test_env *t) {
    (void)t;
    intern_n(&bad_names, "a\0b", 3);
}

START_TEST(interning) {
    BEGIN;
    struct interner n;
    intern_init(&n, &t.arena);
    ck_assert_uint_eq(intern(&n, "").i, 0);
    ck_assert_str_eq(interned(&n, (str_id){0}), "");
    for (uint32_t i = 1; i <= 5000; i++)
        ck_assert_uint_eq(intern(&n, arena_printf(&t.arena, "n/%u", i)).i, i);
    for (uint32_t i = 1; i <= 5000; i++) {
        const char *s = arena_printf(&t.arena, "n/%u", i);
        TEST_EXPECT(intern(&n, s).i == i);
        TEST_EXPECT(intern_find(&n, s).i == i);
        TEST_EXPECT(strcmp(interned(&n, (str_id){i}), s) == 0);
    }
    ck_assert_uint_eq(intern_n(&n, "n/12345", 4).i, 12);
    ck_assert_uint_eq(intern_find(&n, "n/5001").i, 0);
    ck_assert_uint_eq(intern_find(&n, "n/").i, 0);
    /* Pretend that the hash of "x/7" collides with "n/7". */
    map_set(n.buckets, hash_bytes("x/7", 3), 7);
    ck_assert_uint_eq(intern_find(&n, "x/7").i, 0);
    ck_assert_uint_eq(intern(&n, "x/7").i, 5001);
    ck_assert_uint_eq(intern(&n, "x/7").i, 5001);
    ck_assert_uint_eq(intern_find(&n, "n/7").i, 7);
    bad_names = n;
    ck_assert(unwinds(&t, intern_nul));
    test_end(&t);
}
END_TEST

/* ---- text --------------------------------------------------------------------------------- */

START_TEST(text_building) {
    BEGIN;
    struct buf b;
    buf_init(&b, &t.arena);
    ck_assert_str_eq(b.at, "");
    for (int i = 0; i < 1000; i++) buf_printf(&b, "%d %s;", i, "x");
    ck_assert_uint_eq(b.n, strlen(b.at));
    ck_assert_uint_eq(b.n, 10 * 4 + 90 * 5 + 900 * 6);
    ck_assert_str_eq(b.at + b.n - 6, "999 x;");
    buf_init(&b, &t.arena);
    buf_put(&b, "a\0b", 3);
    ck_assert(b.n == 3 && memcmp(b.at, "a\0b", 4) == 0);
    buf_init(&b, &t.arena);
    buf_quoted(&b, "q\"\\\n\t\x01\x7f\xc3\xa9");
    ck_assert_str_eq(b.at, "\"q\\\"\\\\\\n\\t\\x01\\x7f\xc3\xa9\"");
    test_end(&t);
}
END_TEST

START_TEST(float_text) {
    BEGIN;
    const struct {
        double x;
        const char *f32, *f64;
    } cases[] = {{0.0, "0.0", "0.0"},
                 {-0.0, "-0.0", "-0.0"},
                 {1, "1.0", "1.0"},
                 {-1.5, "-1.5", "-1.5"},
                 {0.1, "0.1", "0.1"},
                 {100, "100.0", "100.0"},
                 {123456.5, "123456.5", "123456.5"},
                 {16777216, "16777216.0", "16777216.0"},
                 {1e9, "1e9", "1000000000.0"},
                 {0.00001, "0.00001", "0.00001"},
                 {0.0000125, "0.0000125", "0.0000125"},
                 {1.25e-6, "1.25e-6", "1.25e-6"},
                 {-2.5e30, "-2.5e30", "-2.5e30"},
                 {1.0 / 3, "0.33333334", "0.3333333333333333"},
                 {INFINITY, "inf", "inf"},
                 {-INFINITY, "-inf", "-inf"},
                 {(double)NAN, "nan", "nan"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b;
        buf_init(&b, &t.arena);
        buf_f32(&b, (float)cases[i].x);
        ck_assert_str_eq(b.at, cases[i].f32);
        buf_init(&b, &t.arena);
        buf_f64(&b, cases[i].x);
        ck_assert_str_eq(b.at, cases[i].f64);
    }
    test_end(&t);
}
END_TEST

/* Significant digits in a number's text. */
static int significant(const char *s) {
    int n = 0, zeros = 0;
    bool started = false;
    for (; *s && *s != 'e'; s++) {
        if (*s < '0' || *s > '9') continue;
        started |= *s != '0';
        if (!started) continue;
        zeros = *s == '0' ? zeros + 1 : 0;
        n++;
    }
    return n - zeros;
}

START_TEST(float_text_reads_back) {
    BEGIN;
    uint64_t rng = 11;
    for (int i = 0; i < 60000; i++) {
        struct arena_mark m = arena_mark(&t.arena);
        char fewer[64];
        struct buf b;
        uint64_t bits = next_random(&rng), bits_back;
        uint32_t half = i < 100 ? (uint32_t)i : (uint32_t)(bits >> 32), half_back;
        if (i < 100) bits = (uint64_t)i; /* the smallest subnormals */
        float f, f_back;
        double d, d_back;
        memcpy(&f, &half, 4);
        memcpy(&d, &bits, 8);
        buf_init(&b, &t.arena);
        buf_f32(&b, f);
        TEST_EXPECT(strpbrk(b.at, ".en"));
        f_back = strtof(b.at, NULL);
        memcpy(&half_back, &f_back, 4);
        TEST_EXPECT(isnan(f) ? isnan(f_back) : half == half_back);
        snprintf(fewer, sizeof fewer, "%.*e", significant(b.at) - 2, (double)f);
        if (isfinite(f) && significant(b.at) > 1) TEST_EXPECT(strtof(fewer, NULL) != f);
        buf_init(&b, &t.arena);
        buf_f64(&b, d);
        TEST_EXPECT(strpbrk(b.at, ".en"));
        d_back = strtod(b.at, NULL);
        memcpy(&bits_back, &d_back, 8);
        TEST_EXPECT(isnan(d) ? isnan(d_back) : bits == bits_back);
        snprintf(fewer, sizeof fewer, "%.*e", significant(b.at) - 2, d);
        if (isfinite(d) && significant(b.at) > 1) TEST_EXPECT(strtod(fewer, NULL) != d);
        arena_rewind(&t.arena, m);
    }
    test_end(&t);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {ctx_counts_and_aligns,
                                  sizes_overflow,
                                  unwinding,
                                  diagnostics_are_safe_to_show,
                                  arena_blocks,
                                  arena_marks_and_cleanups,
                                  out_of_memory_unwinds_without_leaks,
                                  vectors,
                                  hashes_and_maps,
                                  interning,
                                  text_building,
                                  float_text,
                                  float_text_reads_back};
    Suite *suite = suite_create("base");
    TCase *tc = tcase_create("base");
    tcase_set_timeout(tc, 120);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) tcase_add_test(tc, tests[i]);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
