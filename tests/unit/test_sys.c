// SPDX-License-Identifier: Apache-2.0
/* test_sys.c - files, hostile paths, shared libraries and the thread pool: everything of base/ that
 * meets the operating system. */
#include "base/pool.h"
#include "base/sys.h"
#include "test_util.h"
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t)

/* ---- files -------------------------------------------------------------------------------- */

static const char *make_dir(struct test_env *t) {
    char *dir = arena_strdup(&t->arena, "/tmp/lathe-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    return dir;
}

static const char *in(struct test_env *t, const char *dir, const char *name) {
    return arena_printf(&t->arena, "%s/%s", dir, name);
}

static void put_file(struct test_env *t, const char *path, const char *text) {
    ck_assert_int_eq(sys_write_file(&t->ctx, path, text, strlen(text)), ST_OK);
}

static void check_file(struct test_env *t, const char *path, const char *text) {
    struct file_map m;
    ck_assert_int_eq(sys_map_file(&t->arena, path, &m), ST_OK);
    ck_assert_uint_eq(m.size, strlen(text));
    if (m.size) ck_assert_mem_eq(m.at, text, m.size);
}

/* Number of entries of `dir`; a leftover temporary file shows here. */
static int count_entries(struct test_env *t, const char *dir) {
    FILE *p = popen(arena_printf(&t->arena, "ls -A %s | wc -l", dir), "r");
    int n = -1;
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void end_with_dir(struct test_env *t, const char *dir) {
    ck_assert_int_eq(sys_remove_tree(&t->ctx, dir), ST_OK);
    ck_assert(!sys_exists(dir));
    test_end(t);
}

START_TEST(mapping_files) {
    BEGIN;
    const char *dir = make_dir(&t), *fifo = in(&t, dir, "fifo");
    struct file_map m = {0};
    put_file(&t, in(&t, dir, "f"), "hello");
    put_file(&t, in(&t, dir, "empty"), "");
    check_file(&t, in(&t, dir, "f"), "hello");
    ck_assert_int_eq(sys_map_file(&t.arena, in(&t, dir, "empty"), &m), ST_OK);
    ck_assert(m.size == 0 && !m.at);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    const char *bad[] = {dir, fifo, "/dev/zero", in(&t, dir, "none"), ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        t.log[0] = '\0';
        ck_assert_int_eq(sys_map_file(&t.arena, bad[i], &m), ST_IO);
        ck_assert_ptr_nonnull(strstr(t.log, bad[i]));
    }
    struct arena_mark mark = arena_mark(&t.arena);
    ck_assert_int_eq(sys_map_file(&t.arena, in(&t, dir, "f"), &m), ST_OK);
    void *page = (void *)(uintptr_t)m.at;
    ck_assert_int_eq(msync(page, 1, MS_ASYNC), 0);
    arena_rewind(&t.arena, mark);
    ck_assert_int_ne(msync(page, 1, MS_ASYNC), 0); /* no longer mapped */
    end_with_dir(&t, dir);
}
END_TEST

START_TEST(mapping_beneath_a_directory) {
    BEGIN;
    const char *top = make_dir(&t), *dir = in(&t, top, "model"), *deep = in(&t, dir, "a/b");
    struct file_map m;
    ck_assert_int_eq(sys_mkdirs(&t.ctx, deep), ST_OK);
    put_file(&t, in(&t, top, "secret"), "secret");
    put_file(&t, in(&t, deep, "w.bin"), "weights");
    put_file(&t, in(&t, dir, "w"), "root weights");
    put_file(&t, in(&t, dir, "twice"), "x");
    ck_assert_int_eq(link(in(&t, top, "secret"), in(&t, dir, "hard")), 0);
    ck_assert_int_eq(symlink("../secret", in(&t, dir, "soft")), 0);
    ck_assert_int_eq(symlink("w", in(&t, dir, "inner")), 0);
    ck_assert_int_eq(symlink("..", in(&t, dir, "up")), 0);
    ck_assert_int_eq(symlink("b", in(&t, dir, "a/c")), 0);
    ck_assert_int_eq(mkfifo(in(&t, dir, "fifo"), 0600), 0);

    const char *good[] = {"a/b/w.bin", "./a/./b/w.bin"};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(sys_map_beneath(&t.arena, dir, good[i], &m), ST_OK);
        ck_assert(m.size == 7 && memcmp(m.at, "weights", 7) == 0);
    }
    const char *absolute = in(&t, dir, "w");
    char *long_name = arena_alloc(&t.arena, 6000);
    memset(long_name, 'n', 5999);
    const char *bad[] = {
        "",          "/",         "..",          "../secret",  "a/../../secret",
        "a/../w",    "a/..",      absolute,      "//w",        "a//b/w.bin",
        "w/",        "a/b/",      "a\\b\\w.bin", "..\\secret", "C:w",
        "c:/w",      "C:\\w",     "hard",        "soft",       "inner",
        "up/secret", "a/c/w.bin", "fifo",        "a",          ".",
        "missing",   "w/x",       long_name,     "up",         "a/missing/w",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        unsigned errors = t.ctx.errors;
        ck_assert_msg(sys_map_beneath(&t.arena, dir, bad[i], &m) == ST_IO, "took \"%s\"", bad[i]);
        ck_assert_uint_eq(t.ctx.errors, errors + 1);
    }
    ck_assert_int_eq(sys_map_beneath(&t.arena, in(&t, dir, "nowhere"), "w", &m), ST_IO);
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_int_eq(sys_map_beneath(&t.arena, "", "w", &m), ST_OK);
    ck_assert_uint_eq(m.size, 12);
    end_with_dir(&t, top);
}
END_TEST

START_TEST(writing_is_all_or_nothing) {
    BEGIN;
    const char *dir = make_dir(&t), *path = in(&t, dir, "out");
    struct sys_writer *w;
    put_file(&t, path, "old");
    ck_assert_int_eq(sys_write_begin(&t.arena, path, &w), ST_OK);
    ck_assert_int_eq(sys_write(w, "new ", 4), ST_OK);
    ck_assert_int_gt(fprintf(sys_writer_file(w), "text"), 0);
    ck_assert_ptr_nonnull(strstr(sys_writer_path(w), dir));
    check_file(&t, path, "old");
    ck_assert_int_eq(sys_write_commit(w), ST_OK);
    check_file(&t, path, "new text");
    ck_assert_int_eq(sys_write(w, "x", 1), ST_IO);
    ck_assert_int_eq(sys_write_commit(w), ST_IO);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0666 & ~mask);

    ck_assert_int_eq(sys_write_begin(&t.arena, path, &w), ST_OK);
    ck_assert_int_eq(sys_write(w, "half", 4), ST_OK);
    ck_assert_int_eq(count_entries(&t, dir), 2);
    sys_write_abort(w);
    sys_write_abort(w);
    ck_assert_int_eq(count_entries(&t, dir), 1);

    struct arena_mark mark = arena_mark(&t.arena); /* what an unwind does */
    ck_assert_int_eq(sys_write_begin(&t.arena, path, &w), ST_OK);
    arena_rewind(&t.arena, mark);
    ck_assert_int_eq(count_entries(&t, dir), 1);
    check_file(&t, path, "new text");
    end_with_dir(&t, dir);
}
END_TEST

START_TEST(failed_writing_leaves_nothing) {
    BEGIN;
    const char *dir = make_dir(&t), *path = in(&t, dir, "out");
    struct sys_writer *w;
    put_file(&t, path, "old");
    char *block = arena_alloc(&t.arena, 1 << 20);
    struct rlimit before, small;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 8192; /* stands in for a full disk */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status big = sys_write_file(&t.ctx, path, block, 1 << 20);
    ck_assert_int_eq(sys_write_begin(&t.arena, path, &w), ST_OK);
    for (int i = 0; i < 4000; i++) fputs("text", sys_writer_file(w));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    enum status stream = sys_write_commit(w); /* there is room again, but bytes are missing */
    ck_assert_int_eq(big, ST_IO);
    ck_assert_int_eq(stream, ST_IO);
    ck_assert_int_eq(count_entries(&t, dir), 1);
    check_file(&t, path, "old");

    ck_assert_int_eq(sys_write_begin(&t.arena, in(&t, dir, "sub"), &w), ST_OK);
    ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, dir, "sub/full")), ST_OK);
    ck_assert_int_eq(sys_write_commit(w), ST_IO); /* a directory took the name meanwhile */
    ck_assert_int_eq(count_entries(&t, dir), 2);
    ck_assert_int_eq(sys_write_file(&t.ctx, in(&t, dir, "sub"), "x", 1), ST_IO);
    ck_assert_int_eq(sys_write_file(&t.ctx, in(&t, dir, "none/x"), "x", 1), ST_IO);
    ck_assert_int_eq(sys_write_file(&t.ctx, "/dev/null", "x", 1), ST_IO);
    ck_assert_int_eq(stat("/dev/null", &(struct stat){0}), 0);
    end_with_dir(&t, dir);
}
END_TEST

START_TEST(directories) {
    BEGIN;
    const char *dir = make_dir(&t), *tree = in(&t, dir, "tree");
    put_file(&t, in(&t, dir, "keep"), "keep");
    ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, dir, "tree/a//b/")), ST_OK);
    ck_assert_int_eq(sys_mkdirs(&t.ctx, tree), ST_OK);
    ck_assert(sys_is_dir(in(&t, dir, "tree/a/b")));
    ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, dir, "keep/x")), ST_IO);
    ck_assert_int_eq(sys_mkdirs(&t.ctx, ""), ST_IO);
    put_file(&t, in(&t, dir, "tree/a/f"), "f");
    ck_assert_int_eq(mkdir(in(&t, dir, "outside"), 0700), 0);
    put_file(&t, in(&t, dir, "outside/o"), "o");
    ck_assert_int_eq(symlink("../../outside", in(&t, dir, "tree/a/link")), 0);
    ck_assert_int_eq(sys_rename(&t.ctx, tree, in(&t, dir, "moved")), ST_OK);
    ck_assert(!sys_exists(tree) && sys_is_dir(in(&t, dir, "moved/a/b")));
    ck_assert_int_eq(sys_rename(&t.ctx, tree, in(&t, dir, "other")), ST_IO);
    ck_assert_int_eq(symlink("outside", in(&t, dir, "direct")), 0);
    ck_assert_int_eq(sys_remove_tree(&t.ctx, in(&t, dir, "direct")), ST_OK);
    ck_assert_int_eq(sys_remove_tree(&t.ctx, in(&t, dir, "moved")), ST_OK);
    ck_assert_int_eq(sys_remove_tree(&t.ctx, in(&t, dir, "moved")), ST_OK);
    check_file(&t, in(&t, dir, "outside/o"), "o");
    ck_assert_int_eq(sys_remove_tree(&t.ctx, in(&t, dir, "..")), ST_USAGE);
    ck_assert_int_eq(sys_remove_tree(&t.ctx, "/"), ST_USAGE);
    const char *parts[][3] = {{"a/b", "a", "b"}, {"a", ".", "a"},    {"/a", "/", "a"},
                              {"//a", "/", "a"}, {"a//b", "a", "b"}, {"/a/b.c", "/a", "b.c"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_str_eq(sys_dirname(&t.arena, parts[i][0]), parts[i][1]);
        ck_assert_str_eq(sys_basename(parts[i][0]), parts[i][2]);
    }
    end_with_dir(&t, dir);
}
END_TEST

START_TEST(system_services) {
    BEGIN;
    double t0 = sys_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    ck_assert(sys_seconds() - t0 >= 0.002);
    ck_assert(sys_wall_seconds() > 1.6e9);
    ck_assert_int_ge(sys_cpu_count(), 1);
    void *lib = sys_dlopen(&t.arena, "libm.so.6");
    ck_assert_ptr_nonnull(lib);
    void *symbol = sys_dlsym(lib, "cbrt");
    double (*cube_root)(double);
    ck_assert_ptr_nonnull(symbol);
    memcpy(&cube_root, &symbol, sizeof symbol);
    ck_assert_double_eq_tol(cube_root(27), 3, 1e-12);
    ck_assert_ptr_null(sys_dlsym(lib, "no_such_symbol_here"));
    ck_assert_ptr_null(sys_dlopen(&t.arena, "libdoes-not-exist.so.1"));
    ck_assert_uint_eq(t.ctx.errors, 0);
    test_end(&t);
}
END_TEST

/* ---- pool --------------------------------------------------------------------------------- */

struct loop {
    float out[777];
    int runs[777];
    int64_t last[8]; /* per thread: the latest index */
    int threads;
    atomic_int wrong;
};

/* A result that depends on the order of its own additions, but not on who computes it. */
static void loop_body(void *arg, int64_t index, int thread) {
    struct loop *l = arg;
    if (thread < 0 || thread >= l->threads || index <= l->last[thread]) atomic_store(&l->wrong, 1);
    l->last[thread] = index;
    l->runs[index]++;
    float sum = 0;
    for (int i = 1; i < 50 + index % 7 * 30; i++) sum += 1.0f / (float)(index * 13 + i);
    l->out[index] = sum;
}

START_TEST(pool_is_deterministic) {
    BEGIN;
    static struct loop first, l;
    for (int threads = 1; threads <= 8; threads++) {
        struct pool *p = pool_create(&t.ctx, threads);
        ck_assert_ptr_nonnull(p);
        ck_assert_int_eq(pool_threads(p), threads);
        for (int round = 0; round < 20; round++) {
            memset(&l, 0, sizeof l);
            l.threads = threads;
            for (int i = 0; i < 8; i++) l.last[i] = -1;
            pool_run(p, 777, loop_body, &l);
            ck_assert(!atomic_load(&l.wrong));
            for (int i = 0; i < 777; i++) TEST_EXPECT(l.runs[i] == 1);
            if (threads == 1 && round == 0) memcpy(first.out, l.out, sizeof l.out);
            ck_assert_mem_eq(first.out, l.out, sizeof l.out);
        }
        pool_destroy(p);
    }
    test_end(&t);
}
END_TEST

struct tiny {
    int64_t round, at[5];
};

static void tiny_body(void *arg, int64_t index, int thread) {
    struct tiny *s = arg;
    (void)thread;
    s->at[index] = s->round * 10 + index;
}

/* Thousands of loops that are over before most workers wake, some after a pause in which they fall
 * asleep: a late worker must neither touch an old loop nor be waited for. */
START_TEST(pool_runs_many_short_loops) {
    BEGIN;
    for (int threads = 2; threads <= 5; threads++) {
        struct pool *p = pool_create(&t.ctx, threads);
        for (int64_t round = 0; round < 5000; round++) {
            struct tiny s = {.round = round}; /* on the stack: use after return would show */
            int64_t n = round % 6;
            pool_run(p, n, tiny_body, &s);
            for (int64_t i = 0; i < 5; i++) TEST_EXPECT(s.at[i] == (i < n ? round * 10 + i : 0));
            if (round % 500 == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        pool_destroy(p);
    }
    for (int i = 0; i < 200; i++) pool_destroy(pool_create(&t.ctx, 1 + i % 5));
    pool_destroy(NULL);
    test_end(&t);
}
END_TEST

static void slow_body(void *arg, int64_t index, int thread) {
    (void)index;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    atomic_fetch_add((atomic_int *)arg + thread, 1);
}

START_TEST(pool_really_is_parallel) {
    BEGIN;
    struct pool *p = pool_create(&t.ctx, 4);
    atomic_int by[4] = {0};
    for (int i = 0; i < 3; i++) pool_run(p, 4, slow_body, by);
    int busy = 0, sum = 0;
    for (int i = 0; i < 4; i++) busy += by[i] > 0, sum += by[i];
    ck_assert_int_eq(sum, 12);
    ck_assert_int_ge(busy, 2);
    pool_destroy(p);
    ck_assert_ptr_null(pool_create(&t.ctx, 0));
    ck_assert_ptr_null(pool_create(&t.ctx, 1000000));
    ck_assert_uint_eq(t.ctx.errors, 2);
    test_end(&t);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {mapping_files,
                                  mapping_beneath_a_directory,
                                  writing_is_all_or_nothing,
                                  failed_writing_leaves_nothing,
                                  directories,
                                  system_services,
                                  pool_is_deterministic,
                                  pool_runs_many_short_loops,
                                  pool_really_is_parallel};
    Suite *suite = suite_create("sys");
    TCase *tc = tcase_create("sys");
    tcase_set_timeout(tc, 120);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) tcase_add_test(tc, tests[i]);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
