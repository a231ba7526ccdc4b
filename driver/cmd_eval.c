// SPDX-License-Identifier: Apache-2.0
/* cmd_eval.c - `lathe eval` and `lathe run`: forward passes over data. */
#include "driver/command.h"
#include "driver/forward.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct eval_args {
    lathe_context *c;
    const char *path, *loss, *out, *device, *recipe_name;
    lathe_model_options open;
    struct arena arena;
    lathe_model *model;
    struct data_source data;
    struct recipe recipe;
    struct forward_options how;
    struct forward forward;
    struct evaluator evaluator;
};

static enum status open_model(struct eval_args *a) {
    a->path = command_model_path(&a->arena, a->path);
    a->open.inference = 1;
    TRY(recipe_find(&a->c->ctx, &a->arena, a->recipe_name, &a->recipe));
    TRY(device_open(a->c, a->device, "auto", &a->how.device));
    a->how.recipe = &a->recipe;
    TRY((enum status)lathe_model_open(a->c, a->path, &a->open, &a->model));
    return data_open(&a->arena, a->open.data, a->open.map, a->open.nmap, &a->data);
}

/* JSON has no NaN. */
static void print_number(const char *name, double x) {
    if (isfinite(x))
        printf("\"%s\": %.9g", name, x);
    else
        printf("\"%s\": \"%s\"", name, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
}

static enum status eval_body(void *arg) {
    struct eval_args *a = arg;
    TRY(open_model(a));
    struct train_options t;
    lathe_train_options defaults = LATHE_TRAIN_OPTIONS_INIT;
    TRY(session_train_options(a->c, &defaults, &t));
    t.loss = a->loss;
    forward_label_hint(a->model->import.graph, &a->data, a->loss, &a->arena, &t);
    a->how.train = &t;
    TRY(evaluator_init(&a->evaluator, a->model, a->path, &a->open, &a->data, &a->how));
    struct eval_result e;
    TRY(evaluator_run(&a->evaluator, &e));
    fputs("{", stdout);
    print_number("loss", e.loss);
    if (!isnan(e.accuracy)) {
        fputs(", ", stdout);
        print_number("accuracy", e.accuracy);
    }
    printf(", \"samples\": %lld, \"left_out\": %lld}\n", (long long)e.samples,
           (long long)e.left_out);
    return ST_OK;
}

static enum status run_body(void *arg) {
    struct eval_args *a = arg;
    TRY(open_model(a));
    TRY(forward_init(&a->forward, a->model, &a->how));
    return forward_run(&a->forward, &a->data, a->out);
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
        {"--device", OPTION_TEXT, &a.device, 0, 0, "DEV", "cpu, cuda, cuda:N or auto (default): the first GPU, else the CPU"},
        {"--recipe", OPTION_TEXT, &a.recipe_name, 0, 0, "NAME", "numbers to compute with: a name of `lathe recipes` or a file (default fp32)"},
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
    arena_init(&a.arena, &a.c->ctx);
    enum status st = (enum status)session_guard(a.c, eval ? eval_body : run_body, &a);
    forward_release(&a.forward);
    evaluator_release(&a.evaluator);
    lathe_model_destroy(a.model);
    arena_reset(&a.arena);
    return command_end(a.c, st);
}

int cmd_eval(int argc, char **argv) {
    return forward_command("eval", argc, argv, true);
}

int cmd_run(int argc, char **argv) {
    return forward_command("run", argc, argv, false);
}
