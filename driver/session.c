// SPDX-License-Identifier: Apache-2.0
/* session.c - opening models with their symbolic dimensions bound, and running the pass pipeline on
 * them. */
#include "driver/session.h"
#include "base/diag.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void errors_only(void *user, enum severity sev, enum status code, const char *origin,
                        const char *message) {
    const struct session_quiet *q = user;
    if (sev == SEV_ERROR && q->report) q->report(q->user, sev, code, origin, message);
}

void session_quiet_begin(struct ctx *c, struct session_quiet *q) {
    *q = (struct session_quiet){c->report, c->report_user};
    c->report = errors_only;
    c->report_user = q;
}

void session_quiet_end(struct ctx *c, const struct session_quiet *q) {
    c->report = q->report;
    c->report_user = q->user;
}

static void hold(void *user, enum severity sev, enum status code, const char *origin,
                 const char *message) {
    struct session_held *h = user;
    if (sev != SEV_ERROR && h->sink.report)
        h->sink.report(h->sink.user, sev, code, origin, message);
    if (sev != SEV_ERROR || h->lines++) return;
    snprintf(h->origin, sizeof h->origin, "%s", origin);
    snprintf(h->text, sizeof h->text, "%s", message);
}

void session_hold_begin(struct ctx *c, struct session_held *h) {
    h->sink = (struct session_quiet){c->report, c->report_user};
    h->lines = 0;
    h->origin[0] = h->text[0] = '\0';
    c->report = hold;
    c->report_user = h;
}

void session_hold_end(struct ctx *c, const struct session_held *h) {
    session_quiet_end(c, &h->sink);
}

lathe_status session_guard(lathe_context *c, enum status (*body)(void *arg), void *arg) {
    jmp_buf here;
    jmp_buf *outer = c->ctx.landing;
    const struct session_quiet sink = {c->ctx.report, c->ctx.report_user};
    c->ctx.landing = &here;
    enum status st;
    if (setjmp(here) == 0)
        st = body(arg);
    else
        st = c->ctx.unwound;
    session_quiet_end(&c->ctx, &sink);
    c->ctx.landing = outer;
    return (lathe_status)st;
}

static int64_t bound_size(void *user, const char *symbol) {
    const lathe_model *m = user;
    for (uint32_t i = 0; i < m->sizes.n; i++)
        if (strcmp(m->sizes.at[i].symbol, symbol) == 0) return m->sizes.at[i].size;
    return -1;
}

/* Bind one symbol; a second, different size is the user's mistake. */
static enum status bind_symbol(lathe_model *m, const char *symbol, int64_t size, const char *why) {
    int64_t old = bound_size(m, symbol);
    if (old >= 0 && old != size)
        return diag_error(&m->owner->ctx, ST_DATA, m->file->path,
                          "dimension '%s' cannot be %lld and %lld at once (%s)", symbol,
                          (long long)old, (long long)size, why);
    if (old < 0)
        vec_push(&m->arena, &m->sizes, (struct symbol_size){arena_strdup(&m->arena, symbol), size});
    return ST_OK;
}

/* The size that dimension k of an input should have, or -1: the options first, then the data. */
static int64_t wanted_size(const struct type *t, int k, const lathe_model_options *o,
                           const struct array *a, const struct data_source *src) {
    bool ids = dtype_class(t->dtype) == DTC_INT;
    if (k == 0 && o->batch > 0) return o->batch;
    if (k == 1 && ids && o->seq > 0) return o->seq;
    if (a && k < a->type.rank) return a->type.dims[k];
    if (src && src->kind == DATA_TOKENS && k == 1 && ids && src->ntokens > 1)
        return src->ntokens - 1 < 128 ? src->ntokens - 1 : 128;
    if (src && src->kind == DATA_TOKENS && k == 0) return 8;
    return -1;
}

static enum status bind_input(lathe_model *m, const struct graph *g, node_id n,
                              const lathe_model_options *o, const struct data_source *src) {
    const struct type *t = val_type(g, node_out(g, n, 0));
    const char *name = attr_str(g, n, ATTR_name);
    const struct array *a =
        src && src->kind == DATA_ARRAYS ? arrays_find(&src->arrays, name) : NULL;
    for (int k = 0; k < t->rank; k++) {
        const char *symbol = dim_symbol_name(g->dims, t->dims[k]);
        if (!symbol) continue;
        int64_t size = wanted_size(t, k, o, a, src);
        if (size < 0) continue;
        TRY(bind_symbol(m, symbol, size, name));
        m->open_batch |= k == 0;
    }
    return ST_OK;
}

enum import_way { IMPORT_INPUTS, IMPORT_OPEN, IMPORT_BOUND };

static enum status import(lathe_model *m, const lathe_model_options *o, enum import_way way) {
    struct import_options io = {.training = m->training,
                                .inputs_only = way == IMPORT_INPUTS,
                                .listing = m->listing,
                                .train_regex = o->train_regex,
                                .freeze_regex = o->freeze_regex,
                                .bind = way == IMPORT_BOUND ? bound_size : NULL,
                                .bind_user = m};
    return onnx_import(m->file, &io, &m->import);
}

/* A model with symbolic inputs is imported twice: to see its inputs, then with their sizes. */
static enum status import_bound(lathe_model *m, const lathe_model_options *o) {
    if (!onnx_symbolic_inputs(m->file) || (!o->batch && !o->seq && !o->data))
        return import(m, o, IMPORT_OPEN);
    struct session_quiet quiet;
    session_quiet_begin(&m->owner->ctx, &quiet);
    enum status st = import(m, o, IMPORT_INPUTS);
    session_quiet_end(&m->owner->ctx, &quiet);
    TRY(st);
    const struct graph *g = m->import.graph;
    struct data_source src;
    if (o->data) TRY(data_open(&m->arena, o->data, o->map, o->nmap, &src));
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (g->nodes.at[i].op == OP_input)
            TRY(bind_input(m, g, (node_id){i}, o, o->data ? &src : NULL));
    graph_destroy(m->import.graph);
    m->import.graph = NULL;
    return import(m, o, IMPORT_BOUND);
}

static void keep_options(lathe_model *m, const lathe_model_options *o) {
    struct arena *a = &m->arena;
    lathe_model_options *to = &m->options;
    *to = *o;
    if (o->train_regex) to->train_regex = arena_strdup(a, o->train_regex);
    if (o->freeze_regex) to->freeze_regex = arena_strdup(a, o->freeze_regex);
    if (o->data) to->data = arena_strdup(a, o->data);
    const char **map = ARENA_ARRAY(a, const char *, (size_t)o->nmap + 1);
    for (int32_t i = 0; i < o->nmap; i++) map[i] = arena_strdup(a, o->map[i]);
    to->map = map;
}

enum status session_open(lathe_context *c, const char *path, const lathe_model_options *o,
                         lathe_model *m) {
    static const lathe_model_options none = LATHE_MODEL_OPTIONS_INIT;
    if (!o) o = &none;
    m->owner = c;
    m->training = !o->inference;
    arena_init(&m->arena, &c->ctx);
    arena_init(&m->scratch, &c->ctx);
    keep_options(m, o);
    TRY(onnx_load(&c->ctx, path, &m->file));
    return import_bound(m, o);
}

enum status session_graph(lathe_model *m, const struct session_compile *o, struct graph **out) {
    struct ctx *c = &m->owner->ctx;
    struct pass_ctx pc = {.ctx = c,
                          .scratch = &m->scratch,
                          .eval = pipeline_eval,
                          .recipe = o->recipe,
                          .train = o->training || o->loss ? o->train : NULL};
    struct pipeline_options po = {.training = o->training,
                                  .loss = o->loss,
                                  .stop_after = o->stop_after,
                                  .minimal = o->no_optimize,
                                  .verify = true,
                                  .observe = o->observe,
                                  .observe_user = o->observe_user};
    *out = graph_clone(m->import.graph);
    enum status st = pipeline_run(&pc, *out, &po);
    arena_reset(&m->scratch);
    if (st != ST_OK) {
        graph_destroy(*out);
        *out = NULL;
    } else if (o->loss_text) {
        *o->loss_text = pc.loss;
    }
    return st;
}

enum { ACCUMULATE_MAX = 1 << 30 };

static double or_default(double given, double fallback) {
    return given < 0 ? fallback : given;
}

static enum status check_number(struct ctx *c, const char *what, double x, double low,
                                double high) {
    if (isfinite(x) && x >= low && x < high) return ST_OK;
    return diag_error(c, ST_USAGE, "", "%s is %g; it must be at least %g and below %g", what, x,
                      low, high);
}

enum status session_train_options(lathe_context *c, const lathe_train_options *o,
                                  struct train_options *out) {
    struct ctx *x = &c->ctx;
    memset(out, 0, sizeof *out);
    const char *name = o->optimizer ? o->optimizer : "adamw";
    if (strcmp(name, "adamw") == 0)
        out->optimizer = OPT_ADAMW;
    else if (strcmp(name, "adam") == 0)
        out->optimizer = OPT_ADAM;
    else if (strcmp(name, "sgd") == 0)
        out->optimizer = OPT_SGD;
    else
        return diag_error(x, ST_USAGE, "",
                          "no optimizer is called '%s'; there are adamw, adam, sgd", name);
    bool sgd = out->optimizer == OPT_SGD;
    if (sgd ? o->beta1 >= 0 || o->beta2 >= 0 || o->eps >= 0
            : o->momentum >= 0 || o->dampening >= 0 || o->nesterov)
        return diag_error(x, ST_USAGE, "", "%s has no %s", name,
                          sgd ? "betas and no epsilon; those are Adam's"
                              : "momentum, dampening or Nesterov form; those are SGD's");
    out->loss = o->loss;
    out->label_type.rank = -1;
    out->beta1 = or_default(o->beta1, 0.9);
    out->beta2 = or_default(o->beta2, 0.999);
    out->eps = or_default(o->eps, 1e-8);
    out->weight_decay = or_default(o->weight_decay, out->optimizer == OPT_ADAMW ? 0.01 : 0.0);
    out->momentum = or_default(o->momentum, 0.0);
    out->dampening = or_default(o->dampening, 0.0);
    out->nesterov = o->nesterov != 0;
    out->clip = o->clip;
    out->dump_grads = o->keep_gradients != 0;
    if (o->accumulate < 0 || o->accumulate > ACCUMULATE_MAX)
        return diag_error(x, ST_USAGE, "",
                          "the number of micro-batches for each update is %lld; it must be from 1 "
                          "to %d",
                          (long long)o->accumulate, ACCUMULATE_MAX);
    out->accumulate = o->accumulate ? o->accumulate : 1;
    TRY(check_number(x, "the learning rate", o->lr, 0, 1e30));
    TRY(check_number(x, "beta1", out->beta1, 0, 1));
    TRY(check_number(x, "beta2", out->beta2, 0, 1));
    TRY(check_number(x, "eps", out->eps, 0, 1e30));
    TRY(check_number(x, "the weight decay", out->weight_decay, 0, 1e30));
    TRY(check_number(x, "the momentum", out->momentum, 0, 1e30));
    TRY(check_number(x, "the dampening", out->dampening, 0, 1e30));
    TRY(check_number(x, "the clipping norm", out->clip, 0, 1e30));
    if (out->nesterov && (out->momentum <= 0 || out->dampening != 0))
        return diag_error(x, ST_USAGE, "", "Nesterov momentum needs momentum > 0 and dampening 0");
    return ST_OK;
}
