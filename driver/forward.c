// SPDX-License-Identifier: Apache-2.0
/* forward.c - forward passes over a data source. */
#include "driver/forward.h"
#include "base/diag.h"
#include "driver/budget.h"
#include <math.h>
#include <string.h>

enum status forward_init(struct forward *f, lathe_model *m, const struct forward_options *o) {
    memset(f, 0, sizeof *f);
    f->model = m;
    arena_init(&f->arena, &m->owner->ctx);
    struct train_options t = {0};
    if (o->train) t = *o->train;
    t.measure = true;
    struct session_compile sc = {
        .training = false, .train = &t, .recipe = o->recipe, .loss = o->train != NULL};
    TRY(session_graph(m, &sc, &f->graph));
    struct codegen_options cg = device_codegen(o->device, false);
    TRY(plan_build(f->graph, &cg, &f->plan));
    return budget_open(&f->exec, o->device, f->plan, m, &sc);
}

enum status forward_feed(struct forward *f, const struct data_source *src) {
    struct data_slot *slots;
    int n;
    TRY(forward_slots(&f->exec, src, &f->arena, &slots, &n, &f->batch));
    return data_loader_create(&f->arena, src, slots, n, f->batch, 0, 0, false, &f->loader);
}

void forward_release(struct forward *f) {
    backend_release(&f->exec);
    plan_destroy(f->plan);
    graph_destroy(f->graph);
    arena_reset(&f->arena);
    memset(f, 0, sizeof *f);
}

/* Through the host when one of the two is a GPU's, a tensor at a time. */
static enum status copy_weights(struct forward *f, lathe_trainer *t) {
    for (uint32_t i = 1; i < f->plan->buffers.n; i++) {
        const struct plan_buffer *b = &f->plan->buffers.at[i];
        if (b->kind != BUF_PARAM && b->kind != BUF_STATE) continue;
        const char *name = interned(&f->plan->strings, b->name);
        buf_id from = plan_find(t->plan, b->kind, name);
        if (!from.i || t->plan->buffers.at[from.i].bytes != b->bytes || !b->bytes) continue;
        struct arena_mark mark = arena_mark(&f->arena);
        const void *at;
        TRY(backend_view(&t->exec, from, &f->arena, &at));
        TRY(backend_write(&f->exec, (buf_id){i}, at));
        arena_rewind(&f->arena, mark);
    }
    return ST_OK;
}

enum status forward_slots(struct backend *x, const struct data_source *src, struct arena *a,
                          struct data_slot **slots, int *n, int64_t *batch) {
    const struct plan *p = x->plan;
    *slots = ARENA_ARRAY(a, struct data_slot, p->buffers.n);
    *n = 0;
    *batch = -1;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        const char *role = interned(&p->strings, b->role), *name = interned(&p->strings, b->name);
        if (b->kind != BUF_INPUT || strcmp(role, "lr") == 0 || strcmp(role, "seed") == 0) continue;
        bool label = strcmp(role, "label") == 0;
        if (b->type.rank == 0)
            return diag_error(p->ctx, ST_UNSUPPORTED, name,
                              "input '%s' has no batch dimension, so data cannot be fed to it",
                              name);
        if (*batch >= 0 && *batch != b->type.dims[0])
            return diag_error(
                p->ctx, ST_DATA, name,
                "input '%s' has first dimension %lld, others have %lld; the batch is not clear",
                name, (long long)b->type.dims[0], (long long)*batch);
        *batch = b->type.dims[0];
        (*slots)[(*n)++] = (struct data_slot){name, b->type, backend_memory(x, (buf_id){i}),
                                              label && src->kind == DATA_TOKENS ? 1 : 0};
    }
    if (*n) return ST_OK;
    return diag_error(p->ctx, ST_UNSUPPORTED, "",
                      "the model has no input that data could be fed to");
}

static bool is_input(const struct graph *g, const char *name) {
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (g->nodes.at[i].op == OP_input &&
            strcmp(attr_str(g, (node_id){i}, ATTR_name), name) == 0)
            return true;
    return false;
}

/* The second name of "f(a, b)", or NULL. */
static const char *second_argument(const char *loss, struct arena *a) {
    const char *comma = loss ? strrchr(loss, ',') : NULL;
    if (!comma) return NULL;
    comma += 1 + strspn(comma + 1, " ");
    return arena_strndup(a, comma, strcspn(comma, " )"));
}

void forward_label_hint(const struct graph *g, const struct data_source *src, const char *loss,
                        struct arena *a, struct train_options *t) {
    if (src->kind != DATA_ARRAYS) return;
    const char *named = second_argument(loss, a);
    const struct array *only = NULL;
    int extra = 0;
    for (uint32_t i = 0; i < src->arrays.list.n; i++) {
        const struct array *x = &src->arrays.list.at[i];
        if (is_input(g, x->name)) continue;
        if (named ? strcmp(named, x->name) == 0 : true) {
            if (!only || strcmp(x->name, "labels") == 0) only = x;
            extra++;
        }
    }
    if (!only || (extra > 1 && strcmp(only->name, "labels") != 0)) return;
    t->have_labels = true;
    t->label_name = only->name;
    t->label_type = only->type;
}

/* ---- eval ---------------------------------------------------------------------------------------
 */
enum status evaluator_init(struct evaluator *e, lathe_model *m, const char *path,
                           const lathe_model_options *options, const struct data_source *src,
                           const struct forward_options *forward) {
    TRY(forward_init(&e->whole, m, forward));
    TRY(forward_feed(&e->whole, src));
    int64_t left = data_items(e->whole.loader) % e->whole.batch;
    if (!left || !m->open_batch) return ST_OK;
    lathe_model_options o = *options;
    o.batch = left;
    o.inference = 1;
    struct session_quiet quiet; /* the second model repeats what was said about the first */
    session_quiet_begin(&m->owner->ctx, &quiet);
    enum status st = (enum status)lathe_model_open(m->owner, path, &o, &e->rest_model);
    if (st == ST_OK) st = forward_init(&e->rest, e->rest_model, forward);
    session_quiet_end(&m->owner->ctx, &quiet);
    TRY(st);
    return forward_feed(&e->rest, src);
}

void evaluator_release(struct evaluator *e) {
    forward_release(&e->whole);
    forward_release(&e->rest);
    lathe_model_destroy(e->rest_model);
    memset(e, 0, sizeof *e);
}

enum status evaluator_copy_weights(struct evaluator *e, lathe_trainer *t) {
    TRY(copy_weights(&e->whole, t));
    return e->rest.plan ? copy_weights(&e->rest, t) : ST_OK;
}

struct sums {
    double loss, targets; /* loss: of every mean times the number of targets behind it */
    double right, counted;
    int64_t samples;
};

static double output_value(struct forward *f, buf_id at) {
    return dtype_load(f->plan->buffers.at[at.i].type.dtype, backend_memory(&f->exec, at));
}

static enum status add_batch(struct forward *f, int64_t first, struct sums *s) {
    buf_id loss = plan_find(f->plan, BUF_OUTPUT, "loss");
    buf_id count = plan_find(f->plan, BUF_OUTPUT, "loss.count");
    buf_id right = plan_find(f->plan, BUF_OUTPUT, "loss.right");
    data_load_from(f->loader, first);
    TRY(backend_run(&f->exec, 0, f->plan->launches.n, false));
    double targets = count.i ? output_value(f, count) : (double)f->batch;
    s->loss += output_value(f, loss) * targets;
    s->targets += targets;
    if (right.i) {
        s->right += output_value(f, right);
        s->counted += targets;
    }
    s->samples += f->batch;
    return ST_OK;
}

enum status evaluator_run(struct evaluator *e, struct eval_result *out) {
    struct sums s = {0};
    int64_t items = data_items(e->whole.loader), batch = e->whole.batch;
    for (int64_t at = 0; at + batch <= items; at += batch) TRY(add_batch(&e->whole, at, &s));
    if (e->rest.plan) TRY(add_batch(&e->rest, items - e->rest.batch, &s));
    out->loss = s.targets > 0 ? s.loss / s.targets : NAN;
    out->accuracy = s.counted > 0 ? s.right / s.counted : NAN;
    out->samples = s.samples;
    out->left_out = items - s.samples;
    return ST_OK;
}

/* ---- run ----------------------------------------------------------------------------------------
 */
/* Room for one output over all samples; a result without the batch dimension is kept once. */
struct collected {
    struct array array;
    struct plan_buffer *buffer;
    const void *from;
    char *to;
    bool batched;
};

static int collect_outputs(struct forward *f, int64_t samples, struct arena *a,
                           struct collected *list) {
    int n = 0;
    for (uint32_t i = 1; i < f->plan->buffers.n; i++) {
        struct plan_buffer *b = &f->plan->buffers.at[i];
        if (b->kind != BUF_OUTPUT) continue;
        struct collected *c = &list[n++];
        c->buffer = b;
        c->from = backend_memory(&f->exec, (buf_id){i});
        c->batched = b->type.rank > 0 && b->type.dims[0] == f->batch;
        c->array.name = interned(&f->plan->strings, b->name);
        c->array.type = b->type;
        if (c->batched) c->array.type.dims[0] = samples;
        c->to = arena_alloc(a, (size_t)type_bytes(&c->array.type));
        c->array.at = c->to;
    }
    return n;
}

/* One batch from sample `at` on. The last one wraps around to the first samples; only its new part
 * is kept. */
static void collect_batch(const struct forward *f, const struct collected *c, int64_t samples,
                          int64_t at) {
    int64_t take = samples - at < f->batch ? samples - at : f->batch;
    size_t whole = (size_t)c->buffer->bytes;
    if (!whole) return;
    if (c->batched) {
        size_t each = whole / (size_t)f->batch;
        memcpy(c->to + (size_t)at * each, c->from, (size_t)take * each);
    } else {
        memcpy(c->to, c->from, whole);
    }
}

enum status forward_run(struct forward *f, const struct data_source *src, const char *path) {
    struct arena *a = &f->arena;
    struct collected *list = ARENA_ARRAY(a, struct collected, f->plan->buffers.n);
    TRY(forward_feed(f, src));
    int64_t samples = data_items(f->loader);
    int outs = collect_outputs(f, samples, a, list);
    for (int64_t at = 0; at < samples; at += f->batch) {
        data_load_from(f->loader, at);
        TRY(backend_run(&f->exec, 0, f->plan->launches.n, false));
        for (int k = 0; k < outs; k++) collect_batch(f, &list[k], samples, at);
    }
    struct array *arrays = ARENA_ARRAY(a, struct array, (size_t)outs + 1);
    for (int k = 0; k < outs; k++) arrays[k] = list[k].array;
    return npz_write(&f->model->owner->ctx, path, arrays, (uint32_t)outs);
}
