// SPDX-License-Identifier: Apache-2.0
/* cmd_bench.c - `lathe bench`: a training step, a product or a copy on random data, timed launch by
 * launch. Nothing is trained. */
#include "base/diag.h"
#include "base/sys.h"
#include "driver/backend.h"
#include "driver/bench.h"
#include "driver/command.h"
#include "ir/build.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 3, STEPS_MAX = 1000 };

struct bench {
    lathe_context *c;
    const char *what, *loss, *optimizer, *recipe, *device, *layer;
    int64_t steps;
    double begin;
    bool json;
    lathe_model_options open;
    struct recipe numbers;
    struct arena arena;
    lathe_model *model;
    struct graph *graph;
    struct plan *plan;
    struct device *dev;
    struct backend on;
    struct bench_result result;
};

/* ---- what is timed ----------------------------------------------------------------------------
 */
static enum status model_graph(struct bench *b) {
    struct train_options t;
    lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
    o.loss = b->loss;
    o.optimizer = b->optimizer;
    o.recipe = b->recipe;
    TRY((enum status)lathe_model_open(b->c, b->what, &b->open, &b->model));
    TRY(session_train_options(b->c, &o, &t));
    TRY(recipe_find(&b->c->ctx, &b->arena, b->recipe, &b->numbers));
    struct session_compile sc = {.training = true, .train = &t, .recipe = &b->numbers};
    return session_graph(b->model, &sc, &b->graph);
}

static val_id matrix(struct graph *g, enum dtype t, const char *name, int64_t m, int64_t n) {
    struct type type = {.dtype = t, .rank = 2, .dims = {m, n}};
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &type, &a, 1, (str_id){0});
}

static enum status product_graph(struct bench *b) {
    const char *at = b->what + strlen("gemm:");
    int64_t mnk[3];
    enum { LARGEST = 1 << 20 };
    for (int i = 0; i < 3; i++) {
        char *end;
        mnk[i] = strtoll(at, &end, 10);
        if (end == at || mnk[i] < 1 || mnk[i] > LARGEST || (i < 2 && *end != ','))
            return diag_error(&b->c->ctx, ST_USAGE, "",
                              "expected gemm:M,N,K[:TYPE] with sizes in [1, %d], found '%s'",
                              LARGEST, b->what);
        at = end + (i < 2);
    }
    enum dtype t = *at == ':' ? dtype_from_name(at + 1, strlen(at + 1)) : DT_f32;
    if ((*at && *at != ':') || !dtype_is_float(t))
        return diag_error(&b->c->ctx, ST_USAGE, "",
                          "expected a type of floats such as :bf16 behind the sizes, found '%s'",
                          at);
    struct graph *g = b->graph = graph_create(&b->c->ctx, "gemm");
    val_id x = matrix(g, t, "a", mnk[0], mnk[2]), y = matrix(g, t, "b", mnk[2], mnk[1]);
    graph_add_output(g, "c", build_matmul(g, x, y, false, false, (str_id){0}));
    return ST_OK;
}

/* ---- random inputs ----------------------------------------------------------------------------
 */
static bool holds_integers(const struct plan_view *v) {
    return dtype_class(v->dtype) == DTC_INT;
}

/* How many values of integer input `input` are safe as an index: what the launches that it reaches
 * through groups allow, at most 128 when there are none. */
static int64_t index_limit(const struct plan *p, buf_id input, struct arena *a) {
    bool *reached = ARENA_ARRAY(a, bool, p->buffers.n);
    int64_t limit = INT64_MAX;
    reached[input.i] = true;
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        bool any = false;
        for (uint32_t k = 0; k < l->nin; k++)
            any |= reached[l->in[k].buffer.i] && holds_integers(&l->in[k]);
        if (!any) continue;
        int64_t axis = launch_int(l, ATTR_axis, 0), n = INT64_MAX;
        if (l->kind == LAUNCH_group)
            for (uint32_t k = 0; k < l->nout; k++)
                reached[l->out[k].buffer.i] |= holds_integers(&l->out[k]);
        if (l->kind == LAUNCH_cross_entropy) n = l->in[0].dims[l->in[0].rank - 1];
        if (l->kind == LAUNCH_gather || l->kind == LAUNCH_gather_elements ||
            l->kind == LAUNCH_scatter_elements)
            n = l->in[0].dims[axis < 0 ? axis + l->in[0].rank : axis];
        if (l->kind == LAUNCH_scatter_rows)
            n = l->out[0].dims[axis < 0 ? axis + l->out[0].rank : axis];
        if (n < limit) limit = n;
    }
    return limit == INT64_MAX ? 128 : limit;
}

static uint64_t next_random(uint64_t *x) {
    *x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
    return *x >> 11;
}

static void fill_input(struct bench *b, buf_id id, uint64_t *seed) {
    const struct plan_buffer *k = &b->plan->buffers.at[id.i];
    const char *role = interned(&b->plan->strings, k->role);
    char *to = backend_memory(&b->on, id);
    int64_t n = type_count(&k->type);
    enum dtype t = k->type.dtype;
    bool real = dtype_is_float(t), rate = strcmp(role, "lr") == 0;
    int64_t limit = real ? 0 : index_limit(b->plan, id, &b->arena);
    for (int64_t i = 0; i < n; i++, to += dtype_size(t)) {
        uint64_t r = next_random(seed);
        if (rate)
            dtype_store(t, to, 1e-5);
        else if (real)
            dtype_store(t, to, (double)(r >> 10) * 0x1p-42 - 1);
        else
            dtype_store_int(t, to, t == DT_bool ? 1 : (int64_t)(r % (uint64_t)limit));
    }
}

static void fill_inputs(struct bench *b) {
    uint64_t seed = UINT64_C(0x9E3779B97F4A7C15);
    struct bench_result *r = &b->result;
    for (uint32_t i = 1; i < b->plan->buffers.n; i++) {
        const struct plan_buffer *k = &b->plan->buffers.at[i];
        if (k->kind != BUF_INPUT || !k->bytes) continue;
        fill_input(b, (buf_id){i}, &seed);
        bool whole = !dtype_is_float(k->type.dtype);
        if (k->type.rank && !r->samples) r->samples = k->type.dims[0];
        if (whole && k->type.rank == 2 && !r->tokens) r->tokens = type_count(&k->type);
    }
}

/* ---- running ----------------------------------------------------------------------------------
 */
static enum status build(struct bench *b) {
    struct codegen_options cg = device_codegen(b->dev, false);
    cg.tf32 = b->numbers.tf32;
    TRY(plan_build(b->graph, &cg, &b->plan));
    return backend_open(&b->on, b->dev, b->plan);
}

/* In two ranges, as training does. */
static enum status run_step(struct bench *b, double *seconds) {
    double start = sys_seconds();
    TRY(backend_run(&b->on, 0, b->plan->first_update, false));
    TRY(backend_run(&b->on, b->plan->first_update, b->plan->launches.n, false));
    *seconds = sys_seconds() - start;
    return ST_OK;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* Whole steps first, then steps with a clock around each launch. */
static enum status time_steps(struct bench *b) {
    struct bench_result *r = &b->result;
    uint32_t n = b->plan->launches.n;
    double *times = ARENA_ARRAY(&b->arena, double, (size_t)b->steps *(n + 1)), unused;
    for (int i = 0; i < WARM_UP; i++) {
        TRY(run_step(b, &unused));
        if (i == 0) r->first_seconds = sys_seconds() - b->begin;
    }
    for (int64_t i = 0; i < b->steps; i++) TRY(run_step(b, &times[i]));
    r->step_seconds = median(times, b->steps);
    backend_profile(&b->on, true);
    TRY(run_step(b, &unused)); /* makes the clocks */
    for (int64_t i = 0; i < b->steps; i++) {
        backend_profile(&b->on, false);
        const double *seconds = backend_profile(&b->on, true);
        TRY(run_step(b, &unused));
        for (uint32_t k = 0; k < n; k++)
            times[(size_t)k * (size_t)b->steps + (size_t)i] = seconds[k];
    }
    backend_profile(&b->on, false);
    r->seconds = ARENA_ARRAY(&b->arena, double, n + 1);
    for (uint32_t k = 0; k < n; k++)
        r->seconds[k] = median(times + (size_t)k * (size_t)b->steps, b->steps);
    return ST_OK;
}

static enum status read_registers(struct bench *b) {
    if (!b->dev->gpu) return ST_OK;
    int *registers = ARENA_ARRAY(&b->arena, int, b->plan->launches.n + 1);
    for (uint32_t i = 0; i < b->plan->launches.n; i++) {
        struct cuda_call_needs needs = {0, 0};
        if (b->plan->launches.at[i].ncalls) TRY(cuda_get_call_needs(b->on.gpu, i, 0, &needs));
        registers[i] = needs.registers;
    }
    b->result.registers = registers;
    return ST_OK;
}

/* Bytes per second, read and written; `bytes` are copied. */
static enum status copy_rate(struct bench *b, size_t bytes) {
    double seconds = 0, all[5];
    if (b->dev->gpu) {
        TRY(cuda_measure_copy(b->dev->gpu, bytes, &seconds));
    } else {
        char *at = ctx_alloc(&b->c->ctx, 2 * bytes);
        memset(at, 1, 2 * bytes);
        for (int i = 0; i < 5; i++) {
            double start = sys_seconds();
            memcpy(at + (i % 2 ? 0 : bytes), at + (i % 2 ? bytes : 0), bytes);
            all[i] = sys_seconds() - start;
        }
        ctx_free(&b->c->ctx, at);
        seconds = median(all, 5);
    }
    b->result.copy_rate = 2 * (double)bytes / seconds;
    return ST_OK;
}

static enum status bench_body(void *arg) {
    struct bench *b = arg;
    struct bench_result *r = &b->result;
    b->begin = sys_seconds();
    TRY(device_open(b->c, b->device, "cpu", &b->dev));
    size_t bytes = (size_t)1 << (b->dev->gpu ? 30 : 27);
    r->device = b->dev->name;
    if (strcmp(b->what, "copy") == 0) {
        TRY(copy_rate(b, bytes));
        if (b->json)
            printf("{\"device\":\"%s\",\"bytes\":%zu,\"copy_bytes_per_s\":%.9g}\n", r->device,
                   bytes, r->copy_rate);
        else
            printf("%s: copies of %zu MiB run at %.0f GB/s, read and written\n", r->device,
                   bytes >> 20, r->copy_rate / 1e9);
        return ST_OK;
    }
    TRY(strncmp(b->what, "gemm:", 5) == 0 ? product_graph(b) : model_graph(b));
    TRY(build(b));
    fill_inputs(b);
    r->plan = b->plan;
    r->steps = b->steps;
    TRY(time_steps(b));
    TRY(copy_rate(b, bytes));
    TRY(read_registers(b));
    r->held = (int64_t)backend_bytes(&b->on);
    bool ok = (b->json ? bench_print_json : bench_print)(r, b->layer, &b->arena);
    return ok ? ST_OK
              : diag_error(&b->c->ctx, ST_USAGE, "", "--layer: '%s' is no regular expression",
                           b->layer);
}

static void drop(struct bench *b) {
    backend_release(&b->on);
    plan_destroy(b->plan);
    graph_destroy(b->graph);
    lathe_model_destroy(b->model);
    arena_reset(&b->arena);
}

int cmd_bench(int argc, char **argv) {
    struct bench b = {.open = LATHE_MODEL_OPTIONS_INIT, .steps = 10, .device = "cpu"};
    struct model_args m = MODEL_ARGS_INIT;
    const char *pos[1];
    bool verbose = false;
    // clang-format off
    const struct option_spec spec[] = {
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "size of a symbolic first dimension"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", "size of a symbolic sequence dimension"},
        {"--steps", OPTION_INT, &b.steps, 1, STEPS_MAX, "N", "steps that are timed (default 10)"},
        {"--device", OPTION_TEXT, &b.device, 0, 0, "DEV", "cpu (default), cuda, cuda:N or auto"},
        {"--layer", OPTION_TEXT, &b.layer, 0, 0, "REGEX", "also the launches whose origin matches, in order"},
        {"--json", OPTION_FLAG, &b.json, 0, 0, NULL, "for scripts, on one line"},
        {"--recipe", OPTION_TEXT, &b.recipe, 0, 0, "NAME", "as for `lathe train`"},
        {"--loss", OPTION_TEXT, &b.loss, 0, 0, "EXPR", "as for `lathe train`"},
        {"--optimizer", OPTION_TEXT, &b.optimizer, 0, 0, "NAME", "as for `lathe train`"},
        {"--train", OPTION_TEXT, &m.train, 0, 0, "REGEX", "also train parameters that would be frozen"},
        {"--freeze", OPTION_TEXT, &m.freeze, 0, 0, "REGEX", "keep parameters as they are"},
        {"--threads", OPTION_INT, &m.threads, 1, 1024, "N", "CPU threads (default: all)"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("bench"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    b.what = pos[0];
    b.open = model_options(&m);
    b.c = command_context(verbose, m.threads);
    if (!b.c) return 1;
    arena_init(&b.arena, &b.c->ctx);
    enum status st = (enum status)session_guard(b.c, bench_body, &b);
    drop(&b);
    lathe_context_destroy(b.c);
    return command_exit(st);
}
