// SPDX-License-Identifier: Apache-2.0
/* cmd_eval.c - `lathe eval` and `lathe run`: forward passes over data. */
#include "driver/command.h"
#include "driver/forward.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct eval_args {
    lathe_context *c;
    const char *path, *loss, *out;
    lathe_model_options open;
    lathe_model *model;
    struct forward forward;
};

static enum status open_forward(struct eval_args *a, struct data_source *src, bool with_loss) {
    struct arena *arena = &a->model->arena;
    struct train_options t;
    lathe_train_options defaults = LATHE_TRAIN_OPTIONS_INIT;
    TRY(session_train_options(a->c, &defaults, &t));
    t.loss = a->loss;
    TRY(data_open(arena, a->open.data, a->open.map, a->open.nmap, src));
    forward_label_hint(a->model->import.graph, src, a->loss, arena, &t);
    return forward_init(&a->forward, a->model, with_loss ? &t : NULL);
}

static enum status open_for(struct eval_args *a, struct arena *arena) {
    const char *path = command_model_path(arena, a->path);
    a->open.inference = 1;
    return (enum status)lathe_model_open(a->c, path, &a->open, &a->model);
}

static enum status eval_body(void *arg) {
    struct eval_args *a = arg;
    struct arena arena;
    arena_init(&arena, &a->c->ctx);
    enum status st = open_for(a, &arena);
    arena_reset(&arena);
    TRY(st);
    struct data_source src;
    TRY(open_forward(a, &src, true));
    struct eval_result e;
    TRY(forward_eval(&a->forward, &src, a->loss, &e));
    printf("{\"loss\": %.9g", e.loss);
    if (!isnan(e.accuracy)) printf(", \"accuracy\": %.9g", e.accuracy);
    printf(", \"samples\": %lld, \"left_out\": %lld}\n", (long long)e.samples,
           (long long)e.left_out);
    return ST_OK;
}

static enum status run_body(void *arg) {
    struct eval_args *a = arg;
    struct arena arena;
    arena_init(&arena, &a->c->ctx);
    enum status st = open_for(a, &arena);
    arena_reset(&arena);
    TRY(st);
    struct data_source src;
    TRY(open_forward(a, &src, false));
    return forward_run(&a->forward, &src, a->out);
}

static int forward_command(const char *name, int argc, char **argv, bool eval) {
    struct eval_args a = {.open = LATHE_MODEL_OPTIONS_INIT};
    struct model_args m = MODEL_ARGS_INIT;
    const char *pos[1];
    bool verbose = false;
    // clang-format off
    const struct option_spec spec[] = {
        {"--data", OPTION_TEXT, &m.data, 0, 0, "SRC", "data with arrays named like the inputs"},
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "samples per pass, where the model leaves it open"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", "tokens per sample, where the model leaves it open"},
        {"--map", OPTION_LIST, &m.map, 0, 0, "IN=ARRAY", "feed input IN from array ARRAY"},
        {"--threads", OPTION_INT, &m.threads, 1, 1024, "N", "CPU threads (default: all)"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
        {eval ? "--loss" : "-o", OPTION_TEXT, eval ? &a.loss : &a.out, 0, 0, eval ? "EXPR" : "OUT.npz", eval ? "as for `lathe train`" : "where the outputs go"},
    };
    // clang-format on
    int rc = options_parse(command_named(name), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    if (!m.data) return fail(2, "%s: --data is missing", name);
    if (!eval && !a.out) return fail(2, "run: -o OUT.npz is missing");
    a.path = pos[0];
    a.open = model_options(&m);
    a.c = command_context(verbose, m.threads);
    if (!a.c) return 1;
    enum status st = (enum status)session_guard(a.c, eval ? eval_body : run_body, &a);
    forward_release(&a.forward);
    lathe_model_destroy(a.model);
    lathe_context_destroy(a.c);
    return command_exit(st);
}

int cmd_eval(int argc, char **argv) {
    return forward_command("eval", argc, argv, true);
}

int cmd_run(int argc, char **argv) {
    return forward_command("run", argc, argv, false);
}
