// SPDX-License-Identifier: Apache-2.0
/* forward.c - forward passes over a data source. */
#include "driver/forward.h"
#include "base/diag.h"
#include "codegen/codegen.h"
#include <math.h>
#include <string.h>

enum status forward_init(struct forward *f, lathe_model *m, const struct train_options *train) {
    memset(f, 0, sizeof *f);
    f->model = m;
    struct session_compile sc = {.training = false, .train = train, .loss = train != NULL};
    TRY(session_graph(m, &sc, &f->graph));
    struct codegen_options cg = {.threads = pool_threads(m->owner->pool)};
    TRY(plan_build(f->graph, &cg, &f->plan));
    return cpu_create(&m->owner->ctx, f->plan, m->owner->pool, &f->exec);
}

void forward_release(struct forward *f) {
    cpu_destroy(f->exec);
    plan_destroy(f->plan);
    graph_destroy(f->graph);
    memset(f, 0, sizeof *f);
}

void forward_copy_weights(struct forward *f, lathe_trainer *t) {
    for (uint32_t i = 1; i < f->plan->buffers.n; i++) {
        const struct plan_buffer *b = &f->plan->buffers.at[i];
        if (b->kind != BUF_PARAM && b->kind != BUF_STATE) continue;
        const char *name = interned(&f->plan->strings, b->name);
        buf_id from = plan_find(t->plan, b->kind, name);
        if (!from.i || t->plan->buffers.at[from.i].bytes != b->bytes || !b->bytes) continue;
        memcpy(cpu_buffer_at(f->exec, (buf_id){i}), cpu_buffer_at(t->exec, from), (size_t)b->bytes);
    }
}

enum status forward_slots(const struct plan *p, struct cpu_exec *x, const struct data_source *src,
                          struct arena *a, struct data_slot **slots, int *n, int64_t *batch) {
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
        (*slots)[(*n)++] = (struct data_slot){name, b->type, cpu_buffer_at(x, (buf_id){i}),
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
struct accuracy {
    const void *logits, *labels;
    const struct type *logits_type, *labels_type;
    bool next_token;
    int64_t right, counted;
};

/* The output that the loss reads and the labels it compares with, when they are classes on the last
 * axis. */
static bool find_classes(struct forward *f, const char *loss, struct accuracy *a) {
    const struct plan *p = f->plan;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        const char *name = interned(&p->strings, b->name);
        bool label = strcmp(interned(&p->strings, b->role), "label") == 0;
        if (b->kind == BUF_INPUT && dtype_class(b->type.dtype) == DTC_INT &&
            (label || !a->labels)) {
            a->labels = cpu_buffer_at(f->exec, (buf_id){i});
            a->labels_type = &b->type;
            a->next_token = !label;
        }
        if (b->kind == BUF_OUTPUT && dtype_is_float(b->type.dtype) && b->type.rank >= 2 &&
            (!loss || strstr(loss, name)) && !a->logits) {
            a->logits = cpu_buffer_at(f->exec, (buf_id){i});
            a->logits_type = &b->type;
        }
    }
    if (!a->logits || !a->labels || a->labels_type->rank != a->logits_type->rank - 1) return false;
    for (int k = 0; k < a->labels_type->rank; k++)
        if (a->labels_type->dims[k] != a->logits_type->dims[k]) return false;
    return true;
}

static int64_t best_class(const struct accuracy *a, int64_t row) {
    int64_t classes = a->logits_type->dims[a->logits_type->rank - 1], best = 0;
    size_t size = dtype_size(a->logits_type->dtype);
    const char *at = (const char *)a->logits + (size_t)(row * classes) * size;
    double top = -INFINITY;
    for (int64_t c = 0; c < classes; c++) {
        double x = dtype_load(a->logits_type->dtype, at + (size_t)c * size);
        if (x <= top) continue;
        top = x;
        best = c;
    }
    return best;
}

static void count_right(struct accuracy *a) {
    int64_t rows = type_count(a->labels_type);
    int64_t last = a->labels_type->dims[a->labels_type->rank - 1];
    size_t size = dtype_size(a->labels_type->dtype);
    for (int64_t r = 0; r < rows; r++) {
        if (a->next_token && r % last == last - 1) continue;
        int64_t at = a->next_token ? r + 1 : r;
        int64_t label =
            dtype_load_int(a->labels_type->dtype, (const char *)a->labels + (size_t)at * size);
        if (label < 0) continue; /* ignored */
        a->counted++;
        a->right += best_class(a, r) == label;
    }
}

enum status forward_eval(struct forward *f, const struct data_source *src, const char *loss,
                         struct eval_result *out) {
    struct arena arena;
    arena_init(&arena, &f->model->owner->ctx);
    struct data_slot *slots;
    struct data_loader *loader = NULL;
    int n;
    enum status st = forward_slots(f->plan, f->exec, src, &arena, &slots, &n, &f->batch);
    if (st == ST_OK) st = data_loader_create(&arena, src, slots, n, f->batch, 0, 0, false, &loader);
    struct accuracy acc = {0};
    bool classes = st == ST_OK && find_classes(f, loss, &acc);
    buf_id at = plan_find(f->plan, BUF_OUTPUT, "loss");
    double sum = 0;
    int64_t batches = st == ST_OK ? data_batches_per_epoch(loader) : 0;
    for (int64_t i = 0; st == ST_OK && i < batches; i++) {
        data_load(loader, i);
        st = cpu_run(f->exec, 0, f->plan->launches.n, false);
        sum += dtype_load(f->plan->buffers.at[at.i].type.dtype, cpu_buffer_at(f->exec, at));
        if (classes) count_right(&acc);
    }
    if (st == ST_OK) {
        int64_t samples = src->kind == DATA_ARRAYS && src->arrays.list.n
                              ? src->arrays.list.at[0].type.dims[0]
                              : batches * f->batch;
        out->loss = sum / (double)batches;
        out->accuracy = classes && acc.counted ? (double)acc.right / (double)acc.counted : NAN;
        out->samples = batches * f->batch;
        out->left_out = samples - out->samples;
    }
    arena_reset(&arena);
    return st;
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
        c->from = cpu_buffer_at(f->exec, (buf_id){i});
        c->batched = b->type.rank > 0 && b->type.dims[0] == f->batch;
        c->array.name = interned(&f->plan->strings, b->name);
        c->array.type = b->type;
        if (c->batched) c->array.type.dims[0] = samples;
        c->to = arena_alloc(a, (size_t)type_bytes(&c->array.type));
        c->array.at = c->to;
    }
    return n;
}

enum status forward_run(struct forward *f, const struct data_source *src, const char *path) {
    struct arena arena;
    arena_init(&arena, &f->model->owner->ctx);
    struct data_slot *slots;
    struct data_loader *loader = NULL;
    int n, outs = 0;
    struct collected *list = ARENA_ARRAY(&arena, struct collected, f->plan->buffers.n);
    enum status st = forward_slots(f->plan, f->exec, src, &arena, &slots, &n, &f->batch);
    if (st == ST_OK) st = data_loader_create(&arena, src, slots, n, f->batch, 0, 0, false, &loader);
    int64_t samples = 0;
    if (st == ST_OK) {
        samples = src->kind == DATA_ARRAYS ? arrays_find(&src->arrays, slots[0].name)->type.dims[0]
                                           : data_batches_per_epoch(loader) * f->batch;
        outs = collect_outputs(f, samples, &arena, list);
    }
    /* The last batch wraps around to the first samples; only its new part is kept. */
    for (int64_t at = 0; st == ST_OK && at < samples; at += f->batch) {
        data_load(loader, at / f->batch);
        st = cpu_run(f->exec, 0, f->plan->launches.n, false);
        int64_t take = samples - at < f->batch ? samples - at : f->batch;
        for (int k = 0; st == ST_OK && k < outs; k++) {
            size_t whole = (size_t)list[k].buffer->bytes;
            size_t each = list[k].batched && f->batch ? whole / (size_t)f->batch : 0;
            if (!whole) continue;
            if (list[k].batched)
                memcpy(list[k].to + (size_t)at * each, list[k].from, (size_t)take * each);
            else
                memcpy(list[k].to, list[k].from, whole);
        }
    }
    struct array *arrays = ARENA_ARRAY(&arena, struct array, (size_t)outs + 1);
    for (int k = 0; k < outs; k++) arrays[k] = list[k].array;
    if (st == ST_OK) st = npz_write(&f->model->owner->ctx, path, arrays, (uint32_t)outs);
    arena_reset(&arena);
    return st;
}
