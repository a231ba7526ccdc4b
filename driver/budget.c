// SPDX-License-Identifier: Apache-2.0
/* budget.c - see budget.h. Bytes grow with the batch: double until it no longer fits, then bisect.
 */
#include "driver/budget.h"
#include "base/diag.h"
#include <stdio.h>
#include <string.h>

/* One plan for another batch; released also after an unwind. */
struct trial {
    const lathe_model *like;
    struct session_compile sc;
    const struct codegen_options *cg;
    int64_t batch, bytes;
    lathe_model *model;
    struct graph *graph;
    struct plan *plan;
};

static enum status plan_trial(void *arg) {
    struct trial *t = arg;
    lathe_model_options o = t->like->options;
    o.batch = t->batch;
    TRY((enum status)lathe_model_open(t->like->owner, t->like->file->path, &o, &t->model));
    TRY(session_graph(t->model, &t->sc, &t->graph));
    TRY(plan_build(t->graph, t->cg, &t->plan));
    t->bytes = plan_bytes(t->plan);
    return ST_OK;
}

static enum status try_batch(struct trial *t, int64_t batch) {
    struct session_quiet quiet; /* the model repeats what was said about the first one */
    struct ctx *c = &t->like->owner->ctx;
    t->batch = batch;
    session_quiet_begin(c, &quiet);
    enum status st = (enum status)session_guard(t->like->owner, plan_trial, t);
    session_quiet_end(c, &quiet);
    plan_destroy(t->plan);
    graph_destroy(t->graph);
    lathe_model_destroy(t->model);
    t->plan = NULL;
    t->graph = NULL;
    t->model = NULL;
    return st;
}

enum status budget_largest_batch(lathe_model *m, const struct session_compile *sc,
                                 const struct codegen_options *cg, int64_t budget, int64_t below,
                                 int64_t *out) {
    struct trial t = {.like = m, .sc = *sc, .cg = cg};
    t.sc.loss_text = NULL;
    t.sc.observe = NULL;
    int64_t fits = 0, fails = below;
    for (int64_t b = 1; !fails && b <= BUDGET_BATCH_MAX; b *= 2) {
        TRY(try_batch(&t, b));
        if (t.bytes <= budget)
            fits = b;
        else
            fails = b;
    }
    while (fails - fits > 1) {
        int64_t b = fits + (fails - fits) / 2;
        TRY(try_batch(&t, b));
        if (t.bytes <= budget)
            fits = b;
        else
            fails = b;
    }
    *out = fits;
    return ST_OK;
}

static int64_t batch_of(const struct plan *p) {
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (b->kind == BUF_INPUT && b->type.rank) return b->type.dims[0];
    }
    return 0;
}

enum { ADVICE = 160 };

/* What to do about it, after the executor's words `said`; `text` starts empty. */
static void advise(const struct device *d, const struct plan *p, lathe_model *m,
                   const struct session_compile *sc, const char *said, char text[ADVICE]) {
    struct session_held held; /* this error is not the one to tell */
    struct codegen_options cg = device_codegen(d, sc->no_optimize);
    int64_t batch = batch_of(p), largest = 0;
    if (!strstr(said, "the plan needs"))
        snprintf(text, ADVICE, "; the plan needs %.1f MiB", (double)plan_bytes(p) / 1048576);
    size_t n = strlen(text);
    if (!m->open_batch || batch < 1) {
        snprintf(text + n, ADVICE - n, "; the file fixes the batch at %lld", (long long)batch);
        return;
    }
    session_hold_begin(&m->owner->ctx, &held);
    int64_t budget = (int64_t)device_memory_free(d);
    enum status st = budget_largest_batch(m, sc, &cg, budget, batch, &largest);
    session_hold_end(&m->owner->ctx, &held);
    if (st == ST_OK && largest)
        snprintf(text + n, ADVICE - n, "; batch %lld is the largest that fits", (long long)largest);
    else if (st == ST_OK)
        snprintf(text + n, ADVICE - n, "; not even batch 1 fits");
}

struct opening {
    struct backend *b;
    struct device *d;
    const struct plan *p;
    bool returned; /* did not unwind */
};

static enum status open_body(void *arg) {
    struct opening *o = arg;
    enum status st = backend_open(o->b, o->d, o->p);
    o->returned = true;
    return st;
}

enum status budget_open(struct backend *b, struct device *d, const struct plan *p, lathe_model *m,
                        const struct session_compile *sc) {
    if (!d->gpu) return backend_open(b, d, p);
    struct ctx *c = &m->owner->ctx;
    struct session_held held;
    char advice[ADVICE] = "";
    session_hold_begin(c, &held);
    struct opening o = {b, d, p, false};
    enum status st = (enum status)session_guard(m->owner, open_body, &o);
    session_hold_end(c, &held);
    if (st == ST_OK || !held.lines) return st;
    if (st == ST_OUT_OF_MEMORY && o.returned) {
        backend_release(b);
        advise(d, p, m, sc, held.text, advice);
    }
    return diag_error(c, st, held.origin, "%s%s", held.text, advice);
}
