// SPDX-License-Identifier: Apache-2.0
/* cmd_plan.c - `lathe plan`: what a training run will need, before it runs. */
#include "codegen/codegen.h"
#include "driver/command.h"
#include "driver/forward.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan_args {
    lathe_context *c;
    const char *path, *loss, *optimizer, *recipe;
    double memory; /* GiB; 0: none given */
    bool json, inference;
    lathe_model_options open;
    struct arena arena;
    lathe_model *model; /* being planned, NULL in between */
    struct graph *graph;
    struct plan *plan;
};
struct planned {
    int64_t bytes, batch, params;
    int64_t arenas[ARENA_CLASSES];
    struct plan_usage usage;
    double flops;
    const char *peak_origin;
    bool open_batch; /* not fixed in the file */
};

static void measure(const struct plan *p, struct arena *a, struct planned *out) {
    out->bytes = plan_bytes(p);
    out->usage = plan_usage(p);
    memcpy(out->arenas, p->arena_bytes, sizeof out->arenas);
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (b->kind == BUF_PARAM) out->params += type_count(&b->type);
        if (b->kind == BUF_INPUT && b->type.rank && !out->batch) out->batch = b->type.dims[0];
    }
    for (uint32_t i = 0; i < p->launches.n; i++) out->flops += p->launches.at[i].cost.flops;
    out->peak_origin =
        p->launches.n
            ? arena_printf(a, "%s %s", launch_name(p->launches.at[out->usage.peak_launch].kind),
                           interned(&p->strings, p->launches.at[out->usage.peak_launch].origin))
            : "";
}

static enum status compile(struct plan_args *a) {
    struct train_options t;
    lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
    o.loss = a->loss;
    o.optimizer = a->optimizer;
    o.recipe = a->recipe;
    TRY(session_train_options(a->c, &o, &t));
    if (a->open.data) {
        struct data_source src;
        TRY(data_open(&a->arena, a->open.data, a->open.map, a->open.nmap, &src));
        forward_label_hint(a->model->import.graph, &src, a->loss, &a->arena, &t);
    }
    struct session_compile sc = {.training = !a->inference, .train = &t};
    TRY(session_graph(a->model, &sc, &a->graph));
    struct codegen_options cg = {.threads = pool_threads(a->c->pool)};
    return plan_build(a->graph, &cg, &a->plan);
}

static void drop(struct plan_args *a) {
    plan_destroy(a->plan);
    graph_destroy(a->graph);
    lathe_model_destroy(a->model);
    a->plan = NULL;
    a->graph = NULL;
    a->model = NULL;
}

static enum status plan_once(struct plan_args *a, int64_t batch, struct planned *out) {
    memset(out, 0, sizeof *out);
    lathe_model_options o = a->open;
    if (batch) o.batch = batch;
    o.inference = a->inference;
    enum status st = (enum status)lathe_model_open(a->c, a->path, &o, &a->model);
    if (st == ST_OK) st = compile(a);
    if (st == ST_OK) {
        out->open_batch = a->model->open_batch;
        measure(a->plan, &a->arena, out);
    }
    drop(a);
    return st;
}

enum { BATCH_MAX = 1 << 20 };

/* Bytes grow with the batch: double until it no longer fits, then bisect. */
static enum status largest_batch(struct plan_args *a, int64_t budget, int64_t *out) {
    struct planned p;
    int64_t fits = 0, fails = 0;
    for (int64_t b = 1; !fails && b <= BATCH_MAX; b *= 2) {
        TRY(plan_once(a, b, &p));
        if (p.bytes <= budget)
            fits = b;
        else
            fails = b;
    }
    while (fails - fits > 1) {
        int64_t b = fits + (fails - fits) / 2;
        TRY(plan_once(a, b, &p));
        if (p.bytes <= budget)
            fits = b;
        else
            fails = b;
    }
    *out = fits;
    return ST_OK;
}

static const char *const use_names[USE_COUNT] = {
    "weights", "optimizer", "gradients", "activations", "inputs_outputs", "workspace", "constants"};

static void print_json(const struct planned *p, const struct plan_args *a, int64_t largest) {
    json_t *uses = json_object(), *j = json_object();
    for (int u = 0; u < USE_COUNT; u++)
        json_object_set_new(uses, use_names[u], json_integer(p->usage.bytes[u]));
    json_object_set_new(j, "bytes", json_integer(p->bytes));
    json_object_set_new(j, "persistent_bytes", json_integer(p->arenas[ARENA_PERSISTENT]));
    json_object_set_new(j, "io_bytes", json_integer(p->arenas[ARENA_IO]));
    json_object_set_new(j, "step_bytes", json_integer(p->arenas[ARENA_STEP]));
    json_object_set_new(j, "at_peak", uses);
    json_object_set_new(j, "peak_at", json_string(p->peak_origin));
    json_object_set_new(j, "peak_launch", json_integer(p->usage.peak_launch));
    json_object_set_new(j, "flops_per_step", json_real(p->flops));
    json_object_set_new(j, "parameters", json_integer(p->params));
    json_object_set_new(j, "batch", json_integer(p->batch));
    json_object_set_new(j, "threads", json_integer(pool_threads(a->c->pool)));
    if (largest >= 0) json_object_set_new(j, "largest_batch", json_integer(largest));
    char *s = json_dumps(j, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(j);
    puts(s ? s : "{}");
    free(s);
}

static void print_text(const struct planned *p, const struct plan_args *a, int64_t largest) {
    const double mib = 1048576.0;
    printf("memory      %.1f MiB in all: %.1f kept, %.1f inputs and outputs, %.1f in the step\n",
           (double)p->bytes / mib, (double)p->arenas[ARENA_PERSISTENT] / mib,
           (double)p->arenas[ARENA_IO] / mib, (double)p->arenas[ARENA_STEP] / mib);
    for (int u = 0; u < USE_COUNT; u++) {
        int64_t b = p->usage.bytes[u];
        if (b) printf("  %-15s %.1f MiB\n", use_names[u], (double)b / mib);
    }
    printf("peak        launch %u, %s\n", p->usage.peak_launch, p->peak_origin);
    printf("work        %.3g GFLOP a step\n", p->flops / 1e9);
    printf("parameters  %lld\n", (long long)p->params);
    printf("batch       %lld%s\n", (long long)p->batch,
           p->open_batch ? "" : " (fixed in the file)");
    if (largest >= 0)
        printf("largest     batch %lld fits in %.1f GiB%s\n", (long long)largest, a->memory,
               largest == BATCH_MAX ? "; larger ones were not tried" : "");
}

static enum status plan_body(void *arg) {
    struct plan_args *a = arg;
    struct planned p;
    int64_t largest = -1;
    TRY(plan_once(a, 0, &p));
    int64_t budget = (int64_t)(a->memory * 1073741824.0);
    if (a->memory > 0) {
        if (p.open_batch)
            TRY(largest_batch(a, budget, &largest));
        else
            largest = p.bytes <= budget ? p.batch : 0;
    }
    if (a->json)
        print_json(&p, a, largest);
    else
        print_text(&p, a, largest);
    return ST_OK;
}

int cmd_plan(int argc, char **argv) {
    struct plan_args a = {.open = LATHE_MODEL_OPTIONS_INIT};
    struct model_args m = MODEL_ARGS_INIT;
    const char *pos[1];
    bool verbose = false;
    // clang-format off
    const struct option_spec spec[] = {
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "size of a symbolic first dimension"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", "size of a symbolic sequence dimension"},
        {"--memory", OPTION_FLOAT, &a.memory, 0, 1e6, "GiB", "also find the largest batch that fits"},
        {"--json", OPTION_FLAG, &a.json, 0, 0, NULL, "for scripts"},
        {"--recipe", OPTION_TEXT, &a.recipe, 0, 0, "NAME", "as for `lathe train`"},
        {"--loss", OPTION_TEXT, &a.loss, 0, 0, "EXPR", "as for `lathe train`"},
        {"--optimizer", OPTION_TEXT, &a.optimizer, 0, 0, "NAME", "as for `lathe train`"},
        {"--data", OPTION_TEXT, &m.data, 0, 0, "SRC", "data that sizes symbolic dimensions"},
        {"--map", OPTION_LIST, &m.map, 0, 0, "IN=ARRAY", "feed input IN from array ARRAY"},
        {"--train", OPTION_TEXT, &m.train, 0, 0, "REGEX", "also train parameters that would be frozen"},
        {"--freeze", OPTION_TEXT, &m.freeze, 0, 0, "REGEX", "keep parameters as they are"},
        {"--inference", OPTION_FLAG, &a.inference, 0, 0, NULL, "the forward pass only"},
        {"--threads", OPTION_INT, &m.threads, 1, 1024, "N", "CPU threads (default: all)"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("plan"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    a.path = pos[0];
    a.open = model_options(&m);
    a.c = command_context(verbose, m.threads);
    if (!a.c) return 1;
    arena_init(&a.arena, &a.c->ctx);
    enum status st = (enum status)session_guard(a.c, plan_body, &a);
    drop(&a);
    arena_reset(&a.arena);
    lathe_context_destroy(a.c);
    return command_exit(st);
}
