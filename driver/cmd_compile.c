// SPDX-License-Identifier: Apache-2.0
/* cmd_compile.c - `lathe compile`: the kernels of a training step, compiled where no GPU is. The
 * file is a pack of kernels by content: a run plans for itself and takes from it what it needs, so
 * that a wrong file costs time and never gives wrong numbers. */
#include "base/diag.h"
#include "driver/command.h"
#include "driver/forward.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct compile_args {
    lathe_context *c;
    const char *path, *out;
    int arch;
    bool check;
    lathe_model_options open;
    lathe_train_options train;
    struct arena arena;
    lathe_model *model;
    struct recipe recipe;
    struct graph *graph;
    struct plan *plan;
};

static enum status compile_body(void *arg) {
    struct compile_args *a = arg;
    struct ctx *c = &a->c->ctx;
    struct train_options t;
    TRY(session_train_options(a->c, &a->train, &t));
    TRY(recipe_find(c, &a->arena, a->train.recipe, &a->recipe));
    TRY((enum status)lathe_model_open(a->c, a->path, &a->open, &a->model));
    if (a->open.data) {
        struct data_source src;
        TRY(data_open(&a->arena, a->open.data, a->open.map, a->open.nmap, &src));
        forward_label_hint(a->model->import.graph, &src, t.loss, &a->arena, &t);
    }
    struct session_compile sc = {.training = true, .train = &t, .recipe = &a->recipe};
    TRY(session_graph(a->model, &sc, &a->graph));
    struct codegen_options cg = {.threads = 1,
                                 .cuda_arch = a->arch == 90 || a->arch == 100 ? a->arch : 80};
    TRY(plan_build(a->graph, &cg, &a->plan));
    struct cuda_options o = {.cache_dir = a->c->cache_dir, .library_dir = a->c->cuda_dir};
    double begin = sys_seconds();
    uint32_t kernels;
    if (a->check) {
        TRY(cuda_compile_check(c, &o, a->plan, device_kernel_source, NULL, &kernels));
        printf("%u kernels for sm_%d without spills and warnings, %.1f s\n", kernels,
               a->plan->cuda_arch, sys_seconds() - begin);
        return ST_OK;
    }
    TRY(cuda_pack(c, &o, a->plan, a->arch, device_kernel_source, NULL, a->out, &kernels));
    printf("%u kernels for sm_%d in %s, %.1f s; the step takes %.1f MiB\n", kernels, a->arch,
           a->out, sys_seconds() - begin, (double)plan_bytes(a->plan) / 1048576);
    return ST_OK;
}

/* "sm_90a", "sm_90" or "90"; 0 for anything else. */
static int parse_arch(const char *text) {
    if (strncmp(text, "sm_", 3) == 0) text += 3;
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || n < 80 || n > 121) return 0;
    return !*end || (strcmp(end, "a") == 0 && n >= 90) ? (int)n : 0;
}

int cmd_compile(int argc, char **argv) {
    struct compile_args a = {.open = LATHE_MODEL_OPTIONS_INIT, .train = LATHE_TRAIN_OPTIONS_INIT};
    struct model_args m = MODEL_ARGS_INIT;
    const char *pos[1], *arch = "sm_90a";
    double betas[2] = {-1, -1};
    int64_t accumulate = 1;
    bool verbose = false, nesterov = false, gradients = false;
    // clang-format off
    const struct option_spec spec[] = {
        {"-o", OPTION_TEXT, &a.out, 0, 0, "FILE", "where the kernels go; for `lathe train --compiled FILE` with the options given here"},
        {"--check", OPTION_FLAG, &a.check, 0, 0, NULL, "write nothing; fail where the compiler spills registers or warns"},
        {"--arch", OPTION_TEXT, &arch, 0, 0, "ARCH", "sm_80, sm_90a (default), sm_100a, ..; no GPU has to be there"},
        {"--data", OPTION_TEXT, &m.data, 0, 0, "SRC", "data that sizes symbolic dimensions and types labels"},
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "as for `lathe train`, like everything below"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", ""},
        {"--recipe", OPTION_TEXT, &a.train.recipe, 0, 0, "NAME", ""},
        {"--loss", OPTION_TEXT, &a.train.loss, 0, 0, "EXPR", ""},
        {"--optimizer", OPTION_TEXT, &a.train.optimizer, 0, 0, "NAME", ""},
        {"--betas", OPTION_PAIR, betas, 0, 0.9999999999, "A,B", ""},
        {"--eps", OPTION_FLOAT, &a.train.eps, 0, 1, "F", ""},
        {"--weight-decay", OPTION_FLOAT, &a.train.weight_decay, 0, 1e3, "F", ""},
        {"--momentum", OPTION_FLOAT, &a.train.momentum, 0, 1, "F", ""},
        {"--nesterov", OPTION_FLAG, &nesterov, 0, 0, NULL, ""},
        {"--clip", OPTION_FLOAT, &a.train.clip, 0, 1e30, "F", ""},
        {"--accumulate", OPTION_INT, &accumulate, 1, 1e6, "N", ""},
        {"--train", OPTION_TEXT, &m.train, 0, 0, "REGEX", ""},
        {"--freeze", OPTION_TEXT, &m.freeze, 0, 0, "REGEX", ""},
        {"--dump-grads", OPTION_FLAG, &gradients, 0, 0, NULL, "for a run with --dump-grads"},
        {"--map", OPTION_LIST, &m.map, 0, 0, "IN=ARRAY", ""},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("compile"), spec, (int)(sizeof spec / sizeof spec[0]),
                           argc, argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    if (!a.out && !a.check) return fail(2, "compile: -o FILE is missing");
    a.arch = parse_arch(arch);
    if (!a.arch)
        return fail(2, "compile --arch: expected sm_80 or newer, such as sm_90a, found '%s'", arch);
    a.path = pos[0];
    a.open = model_options(&m);
    a.train.beta1 = betas[0];
    a.train.beta2 = betas[1];
    a.train.nesterov = nesterov;
    a.train.accumulate = accumulate;
    a.train.keep_gradients = gradients;
    a.c = command_context(verbose, 0);
    if (!a.c) return 1;
    arena_init(&a.arena, &a.c->ctx);
    enum status st = (enum status)session_guard(a.c, compile_body, &a);
    plan_destroy(a.plan);
    graph_destroy(a.graph);
    lathe_model_destroy(a.model);
    arena_reset(&a.arena);
    return command_end(a.c, st);
}
