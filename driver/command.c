// SPDX-License-Identifier: Apache-2.0
/* command.c - what the subcommands share: a context that prints, exit codes, model options. */
#include "driver/command.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_report(void *user, lathe_severity sev, lathe_status status, const char *origin,
                         const char *message) {
    static const char *const words[] = {"note", "warning", "error"};
    (void)status;
    if (sev == LATHE_NOTE && !user) return;
    fprintf(stderr, "lathe: %s: %s%s%s\n", words[sev], origin, origin[0] ? ": " : "", message);
}

static const char *env(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* LATHE_CACHE_DIR, or lathe/ in the user's cache folder; NULL when there is neither. */
static const char *cache_dir(char path[4096]) {
    const char *own = env("LATHE_CACHE_DIR"), *xdg = env("XDG_CACHE_HOME"), *home = env("HOME");
    if (own) return own;
    if (!xdg && !home) return NULL;
    snprintf(path, 4096, "%s%s", xdg ? xdg : home, xdg ? "/lathe" : "/.cache/lathe");
    return path;
}

lathe_context *command_context(bool notes, int64_t threads) {
    return command_context_with(notes, threads, NULL);
}

lathe_context *command_context_with(bool notes, int64_t threads, const char *compiled) {
    lathe_context_options o = LATHE_CONTEXT_OPTIONS_INIT;
    char path[4096];
    o.cache_dir = cache_dir(path);
    o.cuda_dir = env("LATHE_CUDA_LIBS");
    o.compiled = compiled;
    o.report = print_report;
    o.report_user = notes ? (void *)(uintptr_t)commands : NULL; /* a mark: print notes */
    o.threads = (int32_t)threads;
    lathe_context *c = NULL;
    if (lathe_context_create(&o, &c) != LATHE_OK)
        fail(1, "the worker threads could not be started");
    return c;
}

int command_end(lathe_context *c, enum status st) {
    bool device_failed = st == ST_IO && c->device_failed;
    lathe_context_destroy(c);
    return device_failed ? 1 : command_exit(st);
}

int command_exit(enum status st) {
    switch (st) {
    case ST_OK: return 0;
    case ST_USAGE:
    case ST_IO:
    case ST_PARSE:
    case ST_UNSUPPORTED:
    case ST_SHAPE:
    case ST_TYPE:
    case ST_DATA: return 2;
    case ST_STOPPED: return 75;
    case ST_OUT_OF_MEMORY:
    case ST_NONFINITE:
    case ST_INTERNAL: return 1;
    }
    return 1;
}

lathe_model_options model_options(const struct model_args *a) {
    lathe_model_options o = LATHE_MODEL_OPTIONS_INIT;
    o.train_regex = a->train;
    o.freeze_regex = a->freeze;
    o.batch = a->batch;
    o.seq = a->seq;
    o.data = a->data;
    o.map = a->map.at;
    o.nmap = a->map.n;
    return o;
}

const char *command_model_path(struct arena *a, const char *path) {
    const char *inside = arena_printf(a, "%s/metrics.jsonl", path);
    return sys_exists(inside) ? arena_printf(a, "%s/model.onnx", path) : path;
}
