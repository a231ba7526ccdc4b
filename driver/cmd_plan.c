// SPDX-License-Identifier: Apache-2.0
/* cmd_plan.c - `lathe plan`: what a training run will need, before it runs. */
#include "driver/budget.h"
#include "driver/command.h"
#include "driver/forward.h"
#include "passes/granularity.h"
#include "passes/save_policy.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan_args {
    lathe_context *c;
    const char *path, *loss, *optimizer, *recipe;
    double memory; /* GiB; 0: none given */
    int64_t arch;  /* of a GPU; 0: the CPU */
    bool json, inference, saved, products;
    lathe_model_options open;
    struct arena arena;
    struct train_options train;
    struct recipe numbers;
    struct session_compile sc;
    struct codegen_options cg;
    lathe_model *model;
    struct graph *graph;
    struct plan *plan;
};
struct planned {
    int64_t bytes, batch, params;
    int64_t library; /* bytes beside the arenas */
    int64_t arenas[ARENA_CLASSES];
    struct plan_usage usage;
    double flops;
    const char *peak_origin;
    bool open_batch; /* not fixed in the file */
};

static void measure(const struct plan *p, struct arena *a, struct planned *out) {
    out->bytes = plan_bytes(p);
    out->library = plan_library_bytes(p);
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
    struct train_options *t = &a->train;
    lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
    o.loss = a->loss;
    o.optimizer = a->optimizer;
    TRY(session_train_options(a->c, &o, t));
    TRY(recipe_find(&a->c->ctx, &a->arena, a->recipe, &a->numbers));
    if (a->open.data) {
        struct data_source src;
        TRY(data_open(&a->arena, a->open.data, a->open.map, a->open.nmap, &src));
        forward_label_hint(a->model->import.graph, &src, a->loss, &a->arena, t);
    }
    a->sc = (struct session_compile){.training = !a->inference, .train = t, .recipe = &a->numbers};
    a->cg =
        (struct codegen_options){.threads = pool_threads(a->c->pool), .cuda_arch = (int)a->arch};
    if (a->products) a->sc.stop_after = a->inference ? "precision" : "chunk_loss";
    TRY(session_graph(a->model, &a->sc, &a->graph));
    if (a->products) return ST_OK; /* the graph that pass granularity is given */
    return plan_build(a->graph, &a->cg, &a->plan);
}

static void drop(struct plan_args *a) {
    plan_destroy(a->plan);
    graph_destroy(a->graph);
    lathe_model_destroy(a->model);
    a->plan = NULL;
    a->graph = NULL;
    a->model = NULL;
}

static enum status plan_once(struct plan_args *a, struct planned *out) {
    memset(out, 0, sizeof *out);
    a->open.inference = a->inference;
    TRY((enum status)lathe_model_open(a->c, a->path, &a->open, &a->model));
    TRY(compile(a));
    out->open_batch = a->model->open_batch;
    if (a->plan) measure(a->plan, &a->arena, out);
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
    json_object_set_new(j, "library_bytes", json_integer(p->library));
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
        if (b) printf("  %-17s %.1f MiB\n", use_names[u], (double)b / mib);
    }
    if (p->library) printf("  %-17s %.1f MiB\n", "library_workspace", (double)p->library / mib);
    printf("peak        launch %u, %s\n", p->usage.peak_launch, p->peak_origin);
    printf("work        %.3g GFLOP a step\n", p->flops / 1e9);
    printf("parameters  %lld\n", (long long)p->params);
    printf("batch       %lld%s\n", (long long)p->batch,
           p->open_batch ? "" : " (fixed in the file)");
    if (largest >= 0)
        printf("largest     batch %lld fits in %.3g GiB%s\n", (long long)largest, a->memory,
               largest == BUDGET_BATCH_MAX ? "; larger ones were not tried" : "");
}

/* ---- what is kept for the backward part ----------------------------------------------------- */
struct saved_row {
    const char *where;
    const struct saved *one;
    int64_t bytes, count;
};

/* Node names with every number as `*`, the numbers of layers above all. */
static const char *name_pattern(struct arena *a, const char *name) {
    char *s = arena_strdup(a, *name ? name : "?");
    size_t n = 0;
    for (size_t i = 0; s[i] && s[i] != ';'; i++) {
        bool digit = s[i] >= '0' && s[i] <= '9';
        if (digit && n > 0 && s[n - 1] == '*') continue;
        s[n++] = digit ? '*' : s[i];
    }
    if (n > 2 && s[n - 1] == '*' && s[n - 2] == '_') n -= 2; /* the first has no number */
    s[n] = 0;
    return s;
}

static bool same_row(const struct graph *g, const struct saved_row *r, const char *where,
                     const struct saved *x) {
    return r->one->again == x->again && strcmp(r->where, where) == 0 &&
           val_op(g, r->one->value) == val_op(g, x->value) &&
           g->values.at[r->one->value.i].type.i == g->values.at[x->value.i].type.i;
}

static const char *shape_text(struct arena *a, const struct type *t) {
    struct buf b;
    buf_init(&b, a);
    buf_printf(&b, "%s[", dtype_name(t->dtype));
    for (int d = 0; d < t->rank; d++) buf_printf(&b, "%s%lld", d ? "," : "", (long long)t->dims[d]);
    buf_puts(&b, "]");
    return arena_strndup(a, b.at, b.n);
}

static void print_saved(struct plan_args *a) {
    struct graph *g = a->graph;
    struct save_report r = {0};
    VEC(struct saved_row) rows = {0};
    int64_t total[2] = {0};
    save_list(g, &a->arena, &r);
    for (uint32_t k = 0; k < r.n; k++) {
        const struct saved *x = &r.at[k];
        node_id n = val_def(g, x->value);
        const char *where = node_origin(g, n); /* none: a rounded parameter */
        if (!*where && graph_node(g, n)->nin > 0) where = val_name(g, node_in(g, n, 0));
        where = name_pattern(&a->arena, where);
        uint32_t j = 0;
        while (j < rows.n && !same_row(g, &rows.at[j], where, x)) j++;
        if (j == rows.n) vec_push(&a->arena, &rows, (struct saved_row){where, x, 0, 0});
        rows.at[j].bytes += x->bytes;
        rows.at[j].count++;
        total[x->again] += x->bytes;
    }
    for (int again = 0; again < 2; again++) {
        printf("%-11s %.1f MiB\n", again ? "recomputed" : "saved",
               (double)total[again] / 1048576.0);
        for (uint32_t j = 0; j < rows.n; j++) {
            const struct saved_row *x = &rows.at[j];
            if (x->one->again != (again != 0)) continue;
            printf("  %10.1f MiB  %4lld x %-10s %-24s %s\n", (double)x->bytes / 1048576.0,
                   (long long)x->count, op_info(val_op(g, x->one->value))->name,
                   shape_text(&a->arena, val_type(g, x->one->value)), x->where);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------- */
struct product_row {
    const char *where, *role;
    enum product_kind kind;
    struct recipe_products how;
    bool gradient; /* an operand is one */
    dim m, n, k;
    int64_t count;
};

static struct product_row product_row(struct arena *a, const struct granularity *x, node_id n) {
    struct graph *g = x->g;
    const struct type *l = val_type(g, node_in(g, n, 0)), *y = val_type(g, node_out(g, n, 0));
    struct product_row r = {.m = 1, .n = y->dims[y->rank - 1], .count = 1};
    bool param = false;
    r.kind = product_kind(x, n, &r.how);
    r.k = l->dims[l->rank - (attr_bool(g, n, ATTR_trans_a) ? 2 : 1)];
    for (int d = 0; d < y->rank - 1; d++) r.m = dim_known(y->dims[d]) ? r.m * y->dims[d] : 0;
    for (int k = 0; k < 2; k++) {
        r.gradient |= x->gradient[node_in(g, n, k).i];
        param |= val_op(g, granularity_root(g, node_in(g, n, k))) == OP_param;
    }
    r.role = !r.gradient ? "forward" : param ? "input gradient" : "weight gradient";
    if (r.kind == PRODUCT_NO_PARAMETER && r.gradient) r.role = "gradient";
    r.where = name_pattern(a, node_origin(g, n));
    return r;
}

static bool same_product(const struct product_row *a, const struct product_row *b) {
    const struct recipe_products *p = &a->how, *q = &b->how;
    bool how = p->format == q->format && p->gradients == q->gradients && p->scope == q->scope &&
               p->history == q->history;
    return a->kind == b->kind && a->m == b->m && a->n == b->n && a->k == b->k && how &&
           strcmp(a->role, b->role) == 0 && strcmp(a->where, b->where) == 0;
}

static const char *how_text(struct arena *a, const struct product_row *r) {
    static const char *const scopes[] = {"tensor", "row", "block"};
    const struct recipe_products *p = &r->how;
    if (r->kind != PRODUCT_LOW) return product_reason(r->kind);
    const char *text =
        arena_printf(a, "%s x %s %s", dtype_name(p->format),
                     dtype_name(r->gradient ? p->gradients : p->format), scopes[p->scope]);
    if (!p->history) return text;
    return arena_printf(a, "%s, of %lld steps", text, (long long)p->history);
}

static void print_products(struct plan_args *a) {
    struct granularity x;
    VEC(struct product_row) rows = {0};
    int64_t products[2] = {0};
    double work[2] = {0};
    granularity_find(&x, a->graph, &a->numbers, &a->arena);
    for (uint32_t i = 1; i < x.nodes; i++) {
        if (graph_node(a->graph, (node_id){i})->op != OP_matmul) continue;
        struct product_row r = product_row(&a->arena, &x, (node_id){i});
        bool wide = r.kind != PRODUCT_LOW;
        uint32_t j = 0;
        while (j < rows.n && !same_product(&rows.at[j], &r)) j++;
        if (j == rows.n)
            vec_push(&a->arena, &rows, r);
        else
            rows.at[j].count++;
        products[wide]++;
        if (dim_known(r.n) && dim_known(r.k)) work[wide] += (double)r.m * (double)r.n * (double)r.k;
    }
    double all = work[0] + work[1];
    for (int wide = 0; wide < 2; wide++) {
        printf("%-11s %lld products, %.1f %% of the work\n", wide ? "others" : "8-bit",
               (long long)products[wide], all > 0 ? 100 * work[wide] / all : 0.0);
        for (uint32_t j = 0; j < rows.n; j++) {
            const struct product_row *r = &rows.at[j];
            if ((r->kind != PRODUCT_LOW) != (wide != 0)) continue;
            const char *size = dim_known(r->n) && dim_known(r->k) && r->m
                                   ? arena_printf(&a->arena, "%lld x %lld x %lld", (long long)r->m,
                                                  (long long)r->n, (long long)r->k)
                                   : "?";
            printf("  %4lld x %-16s %-22s %-34s %s\n", (long long)r->count, r->role, size,
                   how_text(&a->arena, r), r->where);
        }
    }
}

static enum status plan_body(void *arg) {
    struct plan_args *a = arg;
    struct planned p;
    int64_t largest = -1;
    TRY(plan_once(a, &p));
    if (a->saved) {
        print_saved(a);
        return ST_OK;
    }
    if (a->products) {
        print_products(a);
        return ST_OK;
    }
    int64_t budget = (int64_t)(a->memory * 1073741824.0);
    if (a->memory > 0) {
        if (p.open_batch)
            TRY(budget_largest_batch(a->model, &a->sc, &a->cg, budget, 0, &largest));
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
        {"--arch", OPTION_INT, &a.arch, 80, 100, "N", "for a GPU: 80, 90 (sm_90a) or 100; none has to be there"},
        {"--json", OPTION_FLAG, &a.json, 0, 0, NULL, "for scripts"},
        {"--recipe", OPTION_TEXT, &a.recipe, 0, 0, "NAME", "as for `lathe train`"},
        {"--loss", OPTION_TEXT, &a.loss, 0, 0, "EXPR", "as for `lathe train`"},
        {"--optimizer", OPTION_TEXT, &a.optimizer, 0, 0, "NAME", "as for `lathe train`"},
        {"--data", OPTION_TEXT, &m.data, 0, 0, "SRC", "data that sizes symbolic dimensions"},
        {"--map", OPTION_LIST, &m.map, 0, 0, "IN=ARRAY", "feed input IN from array ARRAY"},
        {"--train", OPTION_TEXT, &m.train, 0, 0, "REGEX", "also train parameters that would be frozen"},
        {"--freeze", OPTION_TEXT, &m.freeze, 0, 0, "REGEX", "keep parameters as they are"},
        {"--saved", OPTION_FLAG, &a.saved, 0, 0, NULL, "instead: what the backward part finds in memory, and what it computes again"},
        {"--products", OPTION_FLAG, &a.products, 0, 0, NULL, "instead: which matrix products read 8-bit operands, and why others do not"},
        {"--inference", OPTION_FLAG, &a.inference, 0, 0, NULL, "the forward pass only"},
        {"--threads", OPTION_INT, &m.threads, 1, 1024, "N", "CPU threads (default: all)"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("plan"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    if (a.arch && a.arch != 80 && a.arch != 90 && a.arch != 100)
        return fail(2, "plan --arch: expected 80, 90 or 100, found %lld", (long long)a.arch);
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
