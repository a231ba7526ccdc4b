// SPDX-License-Identifier: Apache-2.0
/* metrics.c - the run directory and its metrics.jsonl. Checkpoints are checkpoint.c's, events
 * tfevents.c's. */
#include "runtime/metrics.h"
#include "base/diag.h"
#include "runtime/json_text.h"
#include "runtime/tfevents.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

struct run_dir {
    struct ctx *ctx;
    struct arena scratch; /* one record */
    const char *path;     /* of metrics.jsonl */
    FILE *file;
    struct tfevents *events;
};

static void close_run(void *ptr) {
    struct run_dir *r = ptr;
    if (r->file) fclose(r->file);
    arena_reset(&r->scratch);
}

static enum status system_error(struct ctx *c, const char *path, const char *what) {
    char reason[96];
    return diag_error(c, ST_IO, path, "%s: %s", what, strerror_r(errno, reason, sizeof reason));
}

/* ---- opening ------------------------------------------------------------------------------ */

/* The name of something that a run left in the directory, NULL when it holds none. */
static enum status find_run(struct arena *a, const char *path, const char **found) {
    static const char *const files[] = {"metrics.jsonl", "checkpoint", "model.onnx"};
    const char **names;
    uint32_t n;
    *found = NULL;
    TRY(sys_list_dir(a, path, &names, &n));
    for (uint32_t i = 0; i < n; i++) {
        bool ours = strncmp(names[i], "events.out.tfevents.", 20) == 0;
        for (size_t k = 0; k < sizeof files / sizeof *files; k++)
            ours = ours || strcmp(names[i], files[k]) == 0;
        if (ours) *found = names[i];
    }
    return ST_OK;
}

static enum status open_file(struct run_dir *r, const char *mode) {
    r->file = fopen(r->path, mode);
    return r->file ? ST_OK : system_error(r->ctx, r->path, "cannot write the run's metrics");
}

static enum status put_line(struct run_dir *r, const char *text, size_t n) {
    if (fwrite(text, 1, n, r->file) == n && fputc('\n', r->file) != EOF && fflush(r->file) == 0)
        return ST_OK;
    return system_error(r->ctx, r->path, "cannot write");
}

static void free_json(void *ptr) {
    json_decref(*(json_t **)ptr);
}

/* NULL when the text is not a JSON object. */
static json_t *parse_object(struct arena *a, const char *text, size_t n) {
    json_t **slot = ARENA_NEW(a, json_t *);
    arena_defer(a, free_json, slot);
    *slot = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    return json_is_object(*slot) ? *slot : NULL;
}

/* Line breaks inside JSON text can only be white space between tokens. */
static enum status put_config(struct run_dir *r, const char *config) {
    CHECK(r->ctx, parse_object(&r->scratch, config, strlen(config)) != NULL);
    char *line = arena_strdup(&r->scratch, config);
    for (char *p = line; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
    return put_line(r, line, strlen(line));
}

static enum status start_run(struct run_dir *r, const char *dir, const char *config) {
    const char *found;
    TRY(find_run(&r->scratch, dir, &found));
    if (found)
        return diag_error(r->ctx, ST_USAGE, dir,
                          "already holds a run (%s); give another directory with -o, or continue "
                          "that run with --resume",
                          found);
    TRY(open_file(r, "wxe"));
    return put_config(r, config);
}

/* Bytes of `text` to keep: whole records up to the one of `step`. A torn or foreign line ends them.
 */
static size_t kept_bytes(struct arena *a, const struct file_map *m, int64_t step) {
    size_t kept = 0;
    while (kept < m->size) {
        const char *line = (const char *)m->at + kept;
        const char *end = memchr(line, '\n', m->size - kept);
        if (!end) break;
        struct arena_mark mark = arena_mark(a);
        json_t *record = parse_object(a, line, (size_t)(end - line));
        json_t *at = json_object_get(record, "step");
        bool keep = record && (!json_is_integer(at) || json_integer_value(at) <= step);
        arena_rewind(a, mark);
        if (!keep) break;
        kept += (size_t)(end - line) + 1;
    }
    return kept;
}

static enum status resume_run(struct run_dir *r, int64_t step, const char *config) {
    struct file_map m = {0};
    if (!sys_exists(r->path)) {
        TRY(open_file(r, "wxe"));
        return put_config(r, config);
    }
    TRY(sys_map_file(&r->scratch, r->path, &m));
    size_t kept = kept_bytes(&r->scratch, &m, step);
    if (kept < m.size) TRY(sys_write_file(r->ctx, r->path, m.at, kept));
    TRY(open_file(r, "ae"));
    return kept ? ST_OK : put_config(r, config);
}

enum status run_dir_open(struct arena *a, const char *path, bool resume, int64_t resume_step,
                         const char *config_json, struct run_dir **out) {
    struct run_dir *r = ARENA_NEW(a, struct run_dir);
    r->ctx = a->ctx;
    arena_init(&r->scratch, a->ctx);
    arena_defer(a, close_run, r);
    TRY(sys_mkdirs(a->ctx, path));
    r->path = arena_printf(a, "%s/metrics.jsonl", path);
    TRY(resume ? resume_run(r, resume_step, config_json) : start_run(r, path, config_json));
    arena_reset(&r->scratch);
    TRY(tfevents_open(a, path, &r->events));
    *out = r;
    return ST_OK;
}

/* ---- logging ------------------------------------------------------------------------------ */

static void put_value(struct buf *b, const struct metric *m) {
    if (!isfinite(m->value))
        buf_puts(b, isnan(m->value) ? "\"nan\"" : m->value < 0 ? "\"-inf\"" : "\"inf\"");
    else if (m->integer)
        buf_printf(b, "%.0f", m->value);
    else
        buf_f64(b, m->value);
}

enum status run_dir_log(struct run_dir *r, int64_t step, const struct metric *m, int n) {
    struct buf b;
    buf_init(&b, &r->scratch);
    buf_printf(&b, "{\"step\":%jd", (intmax_t)step);
    for (int i = 0; i < n; i++) {
        buf_puts(&b, ",");
        json_put_string(&b, m[i].name);
        buf_puts(&b, ":");
        put_value(&b, &m[i]);
    }
    buf_puts(&b, "}");
    enum status st = put_line(r, b.at, b.n);
    arena_reset(&r->scratch);
    TRY(st);
    return tfevents_write(r->events, step, m, n);
}
