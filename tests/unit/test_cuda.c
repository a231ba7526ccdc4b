// SPDX-License-Identifier: Apache-2.0
/* test_cuda.c - what of the CUDA backend needs neither GPU nor driver: absent libraries, the cache
 * of compiled kernels, and NVRTC when it is installed. */
#include "base/sys.h"
#include <sys/wait.h>
#include <unistd.h>

/* More live values than 32 registers hold. */
static const char spill_text[] =
    "extern \"C\" __global__ void __launch_bounds__(1024, 2) spill(const double *a, double *y) {\n"
    "    double r[64];\n#pragma unroll\n"
    "    for (int i = 0; i < 64; i++) r[i] = a[i * 1024 + threadIdx.x];\n#pragma unroll\n"
    "    for (int k = 0; k < 4; k++) {\n        double s = 0;\n#pragma unroll\n"
    "        for (int i = 0; i < 64; i++) s += r[i] * r[(i * 7 + k) % 64];\n"
    "        y[k * 1024 + threadIdx.x] = s;\n    }\n}\n";
static const char broken_text[] = "extern \"C\" __global__ void broken() { nothing_like_it(); }\n";

#define EXTRA_KERNELS                                                                              \
    {"spill.cu", spill_text}, {                                                                    \
        "broken.cu", broken_text                                                                   \
    }
#include "cuda_util.h"

static char *temp_dir(struct test_env *t) {
    char *dir = arena_strdup(&t->arena, "/tmp/lathe-cuda-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    return dir;
}

/* ---- no libraries ------------------------------------------------------------------------------
 */
START_TEST(test_absent_driver) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    char why[256] = "";
    if (cuda_device_count(&t.ctx, why) == 0) {
        struct cuda *d = NULL;
        ck_assert_str_ne(why, "");
        ck_assert_int_eq(cuda_open(&t.ctx, &(struct cuda_options){0}, &d), ST_UNSUPPORTED);
        ck_assert_ptr_null(d);
        ck_assert_int_eq(lines(t.log), 1);
        ck_assert_ptr_nonnull(strstr(t.log, why));
    }
    cuda_close(NULL);
    cuda_destroy(NULL);
    test_end(&t);
}
END_TEST

/* A folder that is named but empty is not an error while the library is elsewhere; a name that
 * exists nowhere is reported with all the places. */
START_TEST(test_library_search) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct buf tried;
    buf_init(&tried, &t.arena);
    const char *const none[] = {"libnothing-of-this-name.so.9", NULL};
    ck_assert_ptr_null(library_open(&t.arena, "/nowhere", none, &tried));
    ck_assert_ptr_nonnull(strstr(tried.at, "/nowhere/libnothing-of-this-name.so.9"));
    ck_assert_ptr_nonnull(strstr(tried.at, "/usr/local/cuda/lib64/libnothing"));
    void *lib = library_open(&t.arena, NULL, (const char *const[]){"libc.so.6", NULL}, NULL);
    ck_assert_ptr_nonnull(lib);
    void *table[2];
    ck_assert_str_eq(library_fill(lib, (const char *const[]){"write", "no_such"}, 2, table),
                     "no_such");
    test_end(&t);
}
END_TEST

/* ---- the cache ---------------------------------------------------------------------------------
 */
static const struct hash128 key = {0x1234, 0xabcdef};

static void overwrite(const char *path, long at, int byte, long size) {
    FILE *f = fopen(path, size >= 0 ? "wb" : "r+b");
    ck_assert_ptr_nonnull(f);
    for (long i = 0; i < size; i++) fputc(byte, f);
    if (size < 0) {
        fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
        fputc(byte, f);
    }
    fclose(f);
}

static bool cache_holds(struct test_env *t, const char *dir, const char *want) {
    const void *at;
    size_t n;
    return cache_get(&t->arena, dir, key, &at, &n) && n == strlen(want) && !memcmp(at, want, n);
}

START_TEST(test_cache) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    const char *dir = arena_printf(&t.arena, "%s/a/b", temp_dir(&t));
    const char *path = cache_path(&t.arena, dir, key), *text = "some compiled kernel";
    const void *at;
    size_t n;
    ck_assert(!cache_get(&t.arena, dir, key, &at, &n));
    ck_assert(cache_put(&t.ctx, dir, key, text, strlen(text)));
    ck_assert(cache_holds(&t, dir, text));
    /* damage: a payload byte, the length, the magic, the checksum, truncation, nothing left */
    for (int kind = 0; kind < 6; kind++) {
        if (kind == 0) overwrite(path, -1, 'X', -1);
        if (kind == 1) overwrite(path, 24, 5, -1);
        if (kind == 2) overwrite(path, 0, 'Z', -1);
        if (kind == 3) overwrite(path, 33, 0x5a, -1);
        if (kind == 4) ck_assert_int_eq(truncate(path, 70), 0);
        if (kind == 5) overwrite(path, 0, 0, 0);
        ck_assert_msg(!cache_get(&t.arena, dir, key, &at, &n), "damage %d is not seen", kind);
        ck_assert(cache_put(&t.ctx, dir, key, text, strlen(text)));
        ck_assert(cache_holds(&t, dir, text));
    }
    /* An entry under another name is not taken for it. */
    struct hash128 other = {key.lo + 1, key.hi};
    ck_assert(sys_rename(&t.ctx, path, cache_path(&t.arena, dir, other)) == ST_OK);
    ck_assert(!cache_get(&t.arena, dir, other, &at, &n));
    ck_assert(!cache_put(&t.ctx, "/dev/null/here", key, text, strlen(text)));
    ck_assert_str_eq(t.log, "");
    ck_assert_uint_eq(t.ctx.errors, 0);
    test_end(&t);
}
END_TEST

/* Processes that store and read the same entry at once: never a wrong payload, no files left over.
 */
START_TEST(test_cache_processes) {
    enum { PROCESSES = 4, ROUNDS = 60 };
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    char *dir = temp_dir(&t), *text = arena_alloc(&t.arena, 20001);
    memset(text, 'k', 20000);
    for (int p = 0; p < PROCESSES; p++) {
        if (fork() != 0) continue;
        for (int i = 0; i < ROUNDS; i++) {
            const void *at;
            size_t n;
            if (!cache_put(&t.ctx, dir, key, text, 20000)) _exit(1);
            if (!cache_get(&t.arena, dir, key, &at, &n) || n != 20000 || memcmp(at, text, n) != 0)
                _exit(2);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int how = -1;
        wait(&how);
        ck_assert_int_eq(how, 0);
    }
    const char **names;
    uint32_t n;
    ck_assert(sys_list_dir(&t.arena, dir, &names, &n) == ST_OK);
    ck_assert_uint_eq(n, 1);
    ck_assert(cache_holds(&t, dir, text));
    test_end(&t);
}
END_TEST

/* ---- NVRTC -------------------------------------------------------------------------------------
 */
START_TEST(test_complaints) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    static const char fine[] =
        "ptxas info    : 0 bytes gmem\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
    ck_assert_ptr_null(compiler_complaint(&t.arena, ""));
    ck_assert_ptr_null(compiler_complaint(&t.arena, fine));
    ck_assert_ptr_nonnull(compiler_complaint(
        &t.arena,
        arena_printf(&t.arena, "%s    8 bytes stack frame, 120 bytes spill stores\n", fine)));
    ck_assert_ptr_nonnull(compiler_complaint(
        &t.arena, "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions "
                  "are serialized due to x\n"));
    ck_assert_ptr_nonnull(compiler_complaint(&t.arena, "a.cu(3): warning #177-D: unused\n"));
    test_end(&t);
}
END_TEST

static struct plan *one_kernel(struct test_env *t, const char *file, const char *entry, int arch) {
    struct plan *p = plan_create(&t->ctx, "test");
    p->cuda_arch = arch;
    add_kernel(p, file, entry, "#pragma once\n#define T float\n#define N 100\n");
    return p;
}

START_TEST(test_compile) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    if (have_nvrtc(&t)) {
        static const int archs[] = {80, 90, 100};
        uint32_t n = 0;
        for (int i = 0; i < 3; i++) {
            struct plan *p = one_kernel(&t, "add.cu", "add", archs[i]);
            add_kernel(p, "add.cu", "index", p->kernels.at[0].config); /* one text, two kernels */
            ck_assert_msg(cuda_compile_check(&t.ctx, NULL, p, source, NULL, &n) == ST_OK, "%s",
                          t.log);
            ck_assert_uint_eq(n, 1);
            plan_destroy(p);
        }
        static const char *const bad[][3] = {{"spill.cu", "spill", "spill stores"},
                                             {"broken.cu", "broken", "nothing_like_it"},
                                             {"absent.cu", "absent", "embedded kernel file"}};
        for (int i = 0; i < 3; i++) {
            struct plan *p = one_kernel(&t, bad[i][0], bad[i][1], 90);
            t.log[0] = '\0';
            ck_assert_int_eq(cuda_compile_check(&t.ctx, NULL, p, source, NULL, &n),
                             i == 1 ? ST_INTERNAL : ST_UNSUPPORTED);
            ck_assert_int_eq(lines(t.log), 1);
            ck_assert_msg(strstr(t.log, bad[i][2]) != NULL, "%s", t.log);
            plan_destroy(p);
        }
        struct plan *p = one_kernel(&t, "add.cu", "add", 0);
        ck_assert_int_eq(cuda_compile_check(&t.ctx, NULL, p, source, NULL, &n), ST_USAGE);
        plan_destroy(p);
    }
    test_end(&t);
}
END_TEST

/* Compiled once, then taken from the folder; a damaged entry is compiled and stored again; another
 * configuration is another entry; a folder that cannot be written costs one warning. */
START_TEST(test_compile_cache) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    if (have_nvrtc(&t)) {
        char *dir = temp_dir(&t);
        struct image m[3];
        struct plan *p = one_kernel(&t, "add.cu", "add", 90);
        for (int run = 0; run < 4; run++) {
            struct compiler k = {.ctx = &t.ctx, .arena = &t.arena, .cache_dir = dir};
            ck_assert(compiler_open(&k, NULL, 0) == ST_OK);
            if (run == 2)
                overwrite(cache_path(&t.arena, dir, compiler_stored_key(&k, m[0].key)), -3, 'X',
                          -1);
            ck_assert(compiler_build(&k, p, "sm_90a", source, NULL, &t.arena, NULL, NULL, m) ==
                      ST_OK);
            ck_assert_uint_eq(k.stats.compiled, run == 0 || run == 2);
            ck_assert_uint_eq(k.stats.cached, run == 1 || run == 3);
            ck_assert(m[0].bytes > 100 && memcmp(m[0].cubin, "\177ELF", 4) == 0);
        }
        add_kernel(p, "add.cu", "add", "#pragma once\n#define T float\n#define N 101\n");
        struct compiler k = {.ctx = &t.ctx, .arena = &t.arena, .cache_dir = dir};
        ck_assert(compiler_open(&k, NULL, 0) == ST_OK);
        ck_assert(compiler_build(&k, p, "sm_90a", source, NULL, &t.arena, NULL, NULL, m) == ST_OK);
        ck_assert_uint_eq(k.stats.compiled, 1);
        ck_assert_uint_eq(k.stats.cached, 1);
        ck_assert_str_eq(t.log, "");
        k.cache_dir = "/dev/null/here";
        ck_assert(compiler_build(&k, p, "sm_90a", source, NULL, &t.arena, NULL, NULL, m) == ST_OK);
        ck_assert_int_eq(lines(t.log), 1);
        ck_assert_uint_eq(t.ctx.errors, 0);
        plan_destroy(p);
    }
    test_end(&t);
}
END_TEST

/* Two kernels of one text and one of another make a file of two; what the file holds is what NVRTC
 * gives; another architecture is another key; a driver that is too old and any damage are refused.
 */
START_TEST(test_pack) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    if (have_nvrtc(&t)) {
        const char *path = arena_printf(&t.arena, "%s/x.pack", temp_dir(&t));
        struct plan *p = one_kernel(&t, "add.cu", "add", 80);
        add_kernel(p, "add.cu", "index", p->kernels.at[0].config);
        add_kernel(p, "add.cu", "add", "#pragma once\n#define T float\n#define N 101\n");
        struct cuda_options o = {.compile_threads = 1};
        uint32_t n = 0;
        ck_assert_msg(cuda_pack(&t.ctx, &o, p, 86, source, NULL, path, &n) == ST_OK, "%s", t.log);
        ck_assert_uint_eq(n, 2);
        const struct pack *pack = NULL;
        ck_assert_msg(pack_open(&t.arena, path, 13000, &pack) == ST_OK, "%s", t.log);
        for (int arch = 80; arch <= 86; arch += 6) {
            struct image m[3];
            struct compiler k = {.ctx = &t.ctx, .arena = &t.arena, .pack = pack};
            k.pack_warned = true;
            ck_assert(compiler_build(&k, p, compiler_arch(&t.arena, arch), source, NULL, &t.arena,
                                     NULL, NULL, m) == ST_OK);
            ck_assert_uint_eq(k.stats.packed, arch == 86 ? 2 : 0);
            ck_assert_uint_eq(k.stats.compiled, arch == 86 ? 0 : 2);
            ck_assert(k.version == 0 || arch != 86); /* NVRTC is not even opened */
            for (int i = 0; i < 3; i++) ck_assert(!memcmp(m[i].cubin, "\177ELF", 4));
            ck_assert((m[0].cubin == m[1].cubin) && (m[0].cubin != m[2].cubin));
        }
        ck_assert_int_eq(pack_open(&t.arena, path, 11080, &pack), ST_UNSUPPORTED);
        ck_assert_int_eq(cuda_pack(&t.ctx, &o, p, 75, source, NULL, path, &n), ST_USAGE);
        for (long at = 0; at < 40; at += 8) { /* magic, version, entries, bytes, checksum */
            const char *bad = arena_printf(&t.arena, "%s.%ld", path, at);
            struct file_map whole;
            ck_assert(sys_map_file(&t.arena, path, &whole) == ST_OK);
            ck_assert(sys_write_file(&t.ctx, bad, whole.at, whole.size) == ST_OK);
            overwrite(bad, at, 0x7f, -1);
            ck_assert_int_eq(pack_open(&t.arena, bad, 13000, &pack), ST_PARSE);
        }
        plan_destroy(p);
    }
    test_end(&t);
}
END_TEST

/* Files whose checksum is right and whose contents are not: refused in one line or, when all
 * entries lie inside, opened. What random numbers name is never read outside. */
START_TEST(test_pack_forged) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    const char *path = arena_printf(&t.arena, "%s/x.pack", temp_dir(&t));
    uint64_t seed = 7;
    int opened = 0;
    for (int round = 0; round < 300; round++) {
        unsigned char file[40 + 3 * 32 + 64] = "LTHPACK";
        uint64_t words[3 * 4];
        uint32_t version[2] = {1, 13000};
        for (int i = 0; i < 12; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            uint64_t random = seed >> (seed >> 58); /* of any magnitude */
            words[i] = i % 4 == 2 ? 136 : i % 4 == 3 ? 64 : random;
            if (round % 3 && i == round % 12) words[i] = random;
        }
        uint64_t head[3] = {round % 5 ? 3 : words[0], sizeof file, 0};
        memcpy(file + 40, words, sizeof words);
        head[2] = hash_bytes(file + 40, sizeof file - 40);
        memcpy(file + 8, version, sizeof version);
        memcpy(file + 16, head, sizeof head);
        ck_assert(sys_write_file(&t.ctx, path, file, sizeof file) == ST_OK);
        const struct pack *pack = NULL;
        t.log[0] = '\0';
        enum status st = pack_open(&t.arena, path, 13000, &pack);
        ck_assert(st == ST_OK || (st == ST_PARSE && lines(t.log) == 1));
        const void *at = NULL;
        size_t bytes = 0;
        for (int e = 0; st == ST_OK && e < 3; e++) {
            struct hash128 id = {.lo = words[4 * e], .hi = words[4 * e + 1]};
            if (!pack_get(pack, id, &at, &bytes)) continue;
            opened++;
            uint64_t sum = hash_bytes(at, bytes); /* a sanitizer sees what is read */
            ck_assert(sum == hash_bytes(at, bytes) && bytes <= sizeof file);
        }
    }
    ck_assert_int_gt(opened, 100);
    test_end(&t);
}
END_TEST

int main(void) {
    struct test_env t;
    test_begin(&t);
    if (setjmp(t.landing)) return 1;
    bool nvrtc = have_nvrtc(&t);
    arena_reset(&t.arena);
    Suite *s = suite_create("cuda");
    TCase *tc = tcase_create("cuda");
    tcase_set_timeout(tc, 120); /* NVRTC under a sanitizer is slow */
    tcase_add_test(tc, test_absent_driver);
    tcase_add_test(tc, test_library_search);
    tcase_add_test(tc, test_cache);
    tcase_add_test(tc, test_cache_processes);
    tcase_add_test(tc, test_complaints);
    tcase_add_test(tc, test_pack);
    tcase_add_test(tc, test_pack_forged);
    if (nvrtc) {
        tcase_add_test(tc, test_compile);
        tcase_add_test(tc, test_compile_cache);
    } else {
        printf("cuda: 2 skipped: NVRTC is not installed\n");
    }
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
