// SPDX-License-Identifier: Apache-2.0
/* test_run_dir.c - run directories: metrics, TensorBoard events, checkpoints, and what happens to
 * them when runs collide, stop halfway or are resumed. */
#include "runtime/metrics.h"
#include "runtime/tfevents.h"
#include "test_util.h"
#include <jansson.h>
#include <math.h>

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t);                                                                              \
    const char *dir = arena_strdup(&t.arena, "/tmp/lathe-test-XXXXXX");                            \
    ck_assert_ptr_nonnull(mkdtemp((char *)(uintptr_t)dir));                                        \
    const char *run = in(&t, dir, "deep/run")
#define END                                                                                        \
    ck_assert_int_eq(sys_remove_tree(&t.ctx, dir), ST_OK);                                         \
    test_end(&t)

static const char *in(struct test_env *t, const char *dir, const char *name) {
    return arena_printf(&t->arena, "%s/%s", dir, name);
}

static const char *text_of(struct test_env *t, const char *path) {
    struct file_map m = {0};
    ck_assert_int_eq(sys_map_file(&t->arena, path, &m), ST_OK);
    return m.size ? arena_strndup(&t->arena, (const char *)m.at, m.size) : "";
}

static int diagnostics(const struct test_env *t) {
    int n = 0;
    for (const char *p = t->log; *p; p++) n += *p == '\n';
    return n;
}

static struct run_dir *open_run(struct test_env *t, const char *run, bool resume, int64_t step) {
    struct run_dir *r = NULL;
    enum status st = run_dir_open(&t->arena, run, resume, step,
                                  "{\n \"model\": \"m.onnx\",\n \"lr\": 0.1\n}", &r);
    ck_assert_msg(st == ST_OK, "%s", t->log);
    return r;
}

static void log_step(struct run_dir *r, int64_t step, double loss) {
    struct metric m[] = {{"loss", loss, false}, {"tokens", 4096.0 * (double)step, true}};
    ck_assert_int_eq(run_dir_log(r, step, m, 2), ST_OK);
}

/* ---- metrics ------------------------------------------------------------------------------- */

static const char config_line[] = "{  \"model\": \"m.onnx\",  \"lr\": 0.1 }\n";

START_TEST(metrics_lines) {
    BEGIN;
    struct run_dir *r = open_run(&t, run, false, 0);
    struct metric m[] = {{"loss", 0.1, false},
                         {"lr", 1e-7, false},
                         {"big", 1e300, false},
                         {"nan", NAN, false},
                         {"inf", INFINITY, false},
                         {"minus", -INFINITY, true},
                         {"n", 9007199254740992, true},
                         {"whole", 3, false},
                         {"a \"b\"\n\xc3\xa9\xff", -0.5, false}};
    ck_assert_int_eq(run_dir_log(r, 1, m, 9), ST_OK);
    ck_assert_int_eq(run_dir_log(r, 2, m, 0), ST_OK);
    const char *text =
        text_of(&t, in(&t, run, "metrics.jsonl")); /* flushed while the run is open */
    ck_assert_str_eq(
        text,
        arena_printf(&t.arena, "%s%s%s", config_line,
                     "{\"step\":1,\"loss\":0.1,\"lr\":1e-7,\"big\":1e300,\"nan\":\"nan\",\"inf\":"
                     "\"inf\",\"minus\":\"-inf\",\"n\":9007199254740992,\"whole\":3.0,"
                     "\"a \\\"b\\\"\\u000a\xc3\xa9\\ufffd\":-0.5}\n",
                     "{\"step\":2}\n"));
    for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
        json_t *record = json_loadb(p, strcspn(p, "\n"), JSON_REJECT_DUPLICATES, NULL);
        ck_assert(json_is_object(record));
        json_decref(record);
    }
    END;
}
END_TEST

START_TEST(another_run_is_refused) {
    BEGIN;
    struct run_dir *r;
    ck_assert_int_eq(sys_mkdirs(&t.ctx, run), ST_OK);
    ck_assert_int_eq(sys_write_file(&t.ctx, in(&t, run, "notes.txt"), "x", 1), ST_OK);
    log_step(open_run(&t, run, false, 0), 1, 2.5); /* a directory without a run will do */
    ck_assert_int_eq(run_dir_open(&t.arena, run, false, 0, "{}", &r), ST_USAGE);
    ck_assert(strstr(t.log, "-o") && strstr(t.log, "--resume") && strstr(t.log, run));
    ck_assert_int_eq(diagnostics(&t), 1);
    const char *leftovers[] = {"checkpoint", "model.onnx", "events.out.tfevents.123.host"};
    for (size_t i = 0; i < 3; i++) {
        const char *other = in(&t, dir, arena_printf(&t.arena, "other%zu", i));
        ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, other, leftovers[i])), ST_OK);
        ck_assert_int_eq(run_dir_open(&t.arena, other, false, 0, "{}", &r), ST_USAGE);
    }
    END;
}
END_TEST

/* Root may write anywhere, so these are places where nobody can. */
START_TEST(unwritable_places) {
    BEGIN;
    struct run_dir *r;
    struct array x = {"x", {.dtype = DT_u8, .rank = 1, .dims = {1}}, "a"};
    ck_assert_int_eq(sys_write_file(&t.ctx, in(&t, dir, "file"), "x", 1), ST_OK);
    const char *bad[] = {in(&t, dir, "file"), in(&t, dir, "file/run"), "/proc/lathe-run", "/proc",
                         ""};
    for (size_t i = 0; i < 5; i++) {
        t.log[0] = '\0';
        ck_assert_int_eq(run_dir_open(&t.arena, bad[i], false, 0, "{}", &r), ST_IO);
        ck_assert_int_eq(diagnostics(&t), 1);
    }
    for (size_t i = 0; i < 4; i++) {
        t.log[0] = '\0';
        ck_assert_int_eq(checkpoint_save(&t.arena, bad[i], 1, &x, 1, "{}", 0), ST_IO);
        ck_assert_int_eq(diagnostics(&t), 1);
    }
    (void)run;
    END;
}
END_TEST

START_TEST(resuming_cuts_the_metrics) {
    BEGIN;
    const char *path = in(&t, run, "metrics.jsonl");
    struct run_dir *r = open_run(&t, run, false, 0);
    for (int64_t step = 1; step <= 5; step++) log_step(r, step, 1.0 / (double)step);
    log_step(open_run(&t, run, true, 3), 4, 7);
    const char *want = arena_printf(&t.arena, "%s%s", config_line,
                                    "{\"step\":1,\"loss\":1.0,\"tokens\":4096}\n"
                                    "{\"step\":2,\"loss\":0.5,\"tokens\":8192}\n"
                                    "{\"step\":3,\"loss\":0.3333333333333333,\"tokens\":12288}\n"
                                    "{\"step\":4,\"loss\":7.0,\"tokens\":16384}\n");
    ck_assert_str_eq(text_of(&t, path), want);
    const char *torn = arena_printf(&t.arena, "%s{\"step\":5,\"lo", want); /* the power went out */
    ck_assert_int_eq(sys_write_file(&t.ctx, path, torn, strlen(torn)), ST_OK);
    open_run(&t, run, true, 9);
    ck_assert_str_eq(text_of(&t, path), want);
    open_run(&t, run, true, 0);
    ck_assert_str_eq(text_of(&t, path), config_line);
    ck_assert_int_eq(sys_write_file(&t.ctx, path, "\0\0\0", 3), ST_OK);
    open_run(&t, run, true, 1);
    ck_assert_str_eq(text_of(&t, path), config_line);
    open_run(&t, in(&t, dir, "new"), true, 5); /* resumed from elsewhere */
    ck_assert_str_eq(text_of(&t, in(&t, dir, "new/metrics.jsonl")), config_line);
    END;
}
END_TEST

/* ---- TensorBoard events -------------------------------------------------------------------- */

START_TEST(crc_vectors) {
    uint8_t bytes[32];
    ck_assert_uint_eq(tfevents_crc32c("123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof bytes); /* RFC 3720, B.4 */
    ck_assert_uint_eq(tfevents_crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    ck_assert_uint_eq(tfevents_crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (uint8_t)i;
    ck_assert_uint_eq(tfevents_crc32c(bytes, 32), 0x46dd794eu);
}
END_TEST

/* Check the frame at *at, move past it and return its payload. */
static const uint8_t *next_record(const struct file_map *m, size_t *at, size_t *n) {
    uint64_t length;
    ck_assert_uint_ge(m->size - *at, 16);
    memcpy(&length, m->at + *at, 8);
    ck_assert_uint_ge(m->size - *at - 16, length);
    for (int part = 0; part < 2; part++) {
        const uint8_t *from = m->at + *at + (part ? 12 : 0), *stored = from + (part ? length : 8);
        uint32_t want, crc = tfevents_crc32c(from, part ? length : 8);
        memcpy(&want, stored, 4);
        ck_assert_uint_eq(want, (crc >> 15 | crc << 17) + 0xa282ead8u);
    }
    const uint8_t *payload = m->at + *at + 12;
    *at += 16 + length;
    *n = length;
    return payload;
}

START_TEST(event_files) {
    BEGIN;
    struct run_dir *r = open_run(&t, run, false, 0);
    struct metric m[] = {{"loss", 0.5, false}, {"n", 3, true}};
    ck_assert_int_eq(run_dir_log(r, 300, m, 2), ST_OK);
    open_run(&t, run, true, 300);
    const char **names;
    uint32_t n, files = 0;
    ck_assert_int_eq(sys_list_dir(&t.arena, run, &names, &n), ST_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp(names[i], "events.out.tfevents.", 20) != 0) continue;
        struct file_map map = {0};
        size_t at = 0, size;
        ck_assert_int_eq(sys_map_file(&t.arena, in(&t, run, names[i]), &map), ST_OK);
        const uint8_t *p = next_record(&map, &at, &size);
        ck_assert_uint_eq(size, 9 + 15);
        ck_assert_mem_eq(p + 9,
                         "\x1a\x0d"
                         "brain.Event:2",
                         15);
        double wall;
        ck_assert_uint_eq(p[0], 0x09);
        memcpy(&wall, p + 1, 8);
        ck_assert(fabs(wall - sys_wall_seconds()) < 600);
        if (files++ == 0) {
            static const char want[] = "\x10\xac\x02"
                                       "\x2a\x17"
                                       "\x0a\x0b"
                                       "\x0a\x04loss\x15\0\0\0\x3f"
                                       "\x0a\x08"
                                       "\x0a\x01n\x15\0\0\x40\x40";
            p = next_record(&map, &at, &size);
            ck_assert_uint_eq(size, 9 + sizeof want - 1);
            ck_assert_mem_eq(p + 9, want, sizeof want - 1);
        }
        ck_assert_uint_eq(at, map.size);
    }
    ck_assert_uint_eq(files, 2); /* a file of its own for the resumed run */
    END;
}
END_TEST

/* ---- checkpoints --------------------------------------------------------------------------- */

static const char state[] = "{\"rng\": [1, 2],\n \"lr\": 0.1, \"note\": \",\\\"state\\\":}\"}";

static void save(struct test_env *t, const char *run, int64_t step, float value, int keep) {
    float data[3] = {value, 2, 3};
    uint8_t more[] = {9};
    struct array list[] = {{"w", {.dtype = DT_f32, .rank = 1, .dims = {3}}, data},
                           {"opt/m", {.dtype = DT_u8, .rank = 0}, more}};
    enum status st = checkpoint_save(&t->arena, run, step, list, 2, state, keep);
    ck_assert_msg(st == ST_OK, "%s", t->log);
}

static void check_load(struct test_env *t, const char *run, int64_t want_step, float value) {
    int64_t step = -1;
    struct arrays s = {0};
    const char *text = NULL;
    enum status st = checkpoint_load(&t->arena, run, &step, &s, &text);
    ck_assert_msg(st == ST_OK, "%s", t->log);
    ck_assert_int_eq(step, want_step);
    ck_assert_str_eq(text, state);
    ck_assert_uint_eq(s.list.n, 2);
    ck_assert(dtype_load(DT_f32, arrays_find(&s, "w")->at) == (double)value);
    ck_assert_int_eq(dtype_load_int(DT_u8, arrays_find(&s, "opt/m")->at), 9);
}

static const char *listing(struct test_env *t, const char *dir) {
    const char **names;
    uint32_t n;
    struct buf b;
    buf_init(&b, &t->arena);
    ck_assert_int_eq(sys_list_dir(&t->arena, dir, &names, &n), ST_OK);
    for (uint32_t i = 0; i < n; i++) buf_printf(&b, i ? " %s" : "%s", names[i]);
    return b.at;
}

START_TEST(saved_and_loaded) {
    BEGIN;
    const char *points = in(&t, run, "checkpoint");
    save(&t, run, 9, 9, 0);
    save(&t, run, 10, 10, 0); /* newest by number, not by name */
    ck_assert_str_eq(listing(&t, points), "10 9");
    ck_assert_str_eq(listing(&t, in(&t, points, "10")), "state.json tensors.safetensors");
    check_load(&t, run, 10, 10);
    check_load(&t, in(&t, points, "9"), 9, 9);
    save(&t, run, 10, -1, 0); /* saved again */
    check_load(&t, run, 10, -1);
    ck_assert_str_eq(listing(&t, points), "10 9");
    json_t *root =
        json_loads(text_of(&t, in(&t, points, "10/state.json")), JSON_REJECT_DUPLICATES, NULL);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "step")), 10);
    ck_assert(json_is_object(json_object_get(root, "state")));
    json_decref(root);
    END;
}
END_TEST

START_TEST(old_ones_are_removed) {
    BEGIN;
    const char *points = in(&t, run, "checkpoint");
    for (int64_t step = 8; step <= 12; step++) save(&t, run, step, 1, 2);
    ck_assert_str_eq(listing(&t, points), "11 12");
    save(&t, run, 3, 1, 2); /* went back: what lies ahead is left alone */
    ck_assert_str_eq(listing(&t, points), "11 12 3");
    ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, points, "mine")), ST_OK);
    save(&t, run, 13, 1, 1);
    ck_assert_str_eq(listing(&t, points), "13 mine");
    END;
}
END_TEST

START_TEST(interrupted_saves) {
    BEGIN;
    const char *points = in(&t, run, "checkpoint");
    struct arrays s;
    int64_t step;
    const char *text;
    save(&t, run, 5, 5, 0);
    save(&t, run, 7, 7, 0);
    ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, points, ".saving-8")), ST_OK);
    ck_assert_int_eq(
        sys_write_file(&t.ctx, in(&t, points, ".saving-8/tensors.safetensors"), "x", 1), ST_OK);
    ck_assert_int_eq(sys_mkdirs(&t.ctx, in(&t, points, "9")), ST_OK); /* incomplete */
    check_load(&t, run, 7, 7);
    ck_assert_int_eq(sys_rename(&t.ctx, in(&t, points, "7"), in(&t, points, ".removed-7")), ST_OK);
    check_load(&t, run, 7, 7); /* was to be replaced, but the new one never came */
    save(&t, run, 7, 8, 0);
    check_load(&t, run, 7, 8);
    ck_assert_str_eq(listing(&t, points), "5 7 9");
    ck_assert_int_eq(checkpoint_load(&t.arena, dir, &step, &s, &text), ST_IO);
    ck_assert_ptr_nonnull(strstr(t.log, "no complete checkpoint"));
    ck_assert_int_eq(checkpoint_load(&t.arena, in(&t, dir, "none"), &step, &s, &text), ST_IO);
    END;
}
END_TEST

START_TEST(damage_is_found) {
    BEGIN;
    struct arrays s;
    int64_t step;
    const char *text;
    save(&t, run, 1, 1, 0);
    const char *files[] = {in(&t, run, "checkpoint/1/tensors.safetensors"),
                           in(&t, run, "checkpoint/1/state.json")};
    for (int f = 0; f < 2; f++) {
        struct file_map m = {0};
        ck_assert_int_eq(sys_map_file(&t.arena, files[f], &m), ST_OK);
        char *bytes = arena_alloc(&t.arena, m.size);
        memcpy(bytes, m.at, m.size);
        for (size_t i = 0; i < m.size; i += 3) {
            bytes[i] ^= 4;
            if (f == 1 && i + 1 == m.size) break; /* the line break */
            ck_assert_int_eq(sys_write_file(&t.ctx, files[f], bytes, m.size), ST_OK);
            t.log[0] = '\0';
            enum status st = checkpoint_load(&t.arena, run, &step, &s, &text);
            ck_assert_msg(st != ST_OK, "byte %zu", i);
            ck_assert_int_eq(diagnostics(&t), 1);
            bytes[i] ^= 4;
        }
        ck_assert_int_eq(sys_write_file(&t.ctx, files[f], bytes, m.size - 1), ST_OK);
        if (f == 0) ck_assert_int_eq(checkpoint_load(&t.arena, run, &step, &s, &text), ST_PARSE);
        ck_assert_int_eq(sys_write_file(&t.ctx, files[f], bytes, m.size), ST_OK);
        check_load(&t, run, 1, 1);
    }
    END;
}
END_TEST

int main(void) {
    Suite *s = suite_create("run_dir");
    TCase *c = tcase_create("run_dir");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, metrics_lines);
    tcase_add_test(c, another_run_is_refused);
    tcase_add_test(c, unwritable_places);
    tcase_add_test(c, resuming_cuts_the_metrics);
    tcase_add_test(c, crc_vectors);
    tcase_add_test(c, event_files);
    tcase_add_test(c, saved_and_loaded);
    tcase_add_test(c, old_ones_are_removed);
    tcase_add_test(c, interrupted_saves);
    tcase_add_test(c, damage_is_found);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
