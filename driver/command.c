// SPDX-License-Identifier: Apache-2.0
/* command.c - what the subcommands share: a context that prints, exit codes, model options. */
#include "driver/command.h"
#include <stdio.h>
#include <string.h>

static void print_report(void *user, lathe_severity sev, lathe_status status, const char *origin,
                         const char *message) {
    static const char *const words[] = {"note", "warning", "error"};
    (void)status;
    if (sev == LATHE_NOTE && !user) return;
    fprintf(stderr, "lathe: %s: %s%s%s\n", words[sev], origin, origin[0] ? ": " : "", message);
}

lathe_context *command_context(bool notes, int64_t threads) {
    lathe_context_options o = LATHE_CONTEXT_OPTIONS_INIT;
    o.report = print_report;
    o.report_user = notes ? (void *)(uintptr_t)commands : NULL; /* a mark: print notes */
    o.threads = (int32_t)threads;
    lathe_context *c = NULL;
    if (lathe_context_create(&o, &c) != LATHE_OK)
        fail(1, "the worker threads could not be started");
    return c;
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
