// SPDX-License-Identifier: Apache-2.0
/* trainer.c - a compiled training step: build the plan, hold its memory, run it, guard against
 * losses that are not finite. Batches come from the caller. */
#include "driver/trainer.h"
#include "base/diag.h"
#include "driver/budget.h"
#include <math.h>
#include <string.h>

static enum status find_outputs(lathe_trainer *t) {
    struct ctx *c = &t->model->owner->ctx;
    buf_id loss = plan_find(t->plan, BUF_OUTPUT, "loss");
    buf_id norm = plan_find(t->plan, BUF_OUTPUT, "grad_norm");
    CHECK(c, loss.i && norm.i);
    t->loss = backend_memory(&t->exec, loss);
    t->loss_type = t->plan->buffers.at[loss.i].type.dtype;
    t->grad_norm = backend_memory(&t->exec, norm);
    for (uint32_t i = 1; i < t->plan->buffers.n; i++) {
        const struct plan_buffer *b = &t->plan->buffers.at[i];
        if (b->kind != BUF_INPUT) continue;
        const char *role = interned(&t->plan->strings, b->role);
        if (strcmp(role, "lr") == 0) t->lr = backend_memory(&t->exec, (buf_id){i});
        if (strcmp(role, "seed") == 0) t->seed = backend_memory(&t->exec, (buf_id){i});
    }
    return ST_OK;
}

enum status trainer_init(lathe_trainer *t, lathe_model *m, const lathe_train_options *options,
                         const struct train_options *train) {
    struct ctx *c = &m->owner->ctx;
    t->model = m;
    arena_init(&t->arena, c);
    TRY(recipe_find(c, &t->arena, options->recipe, &t->recipe));
    TRY(device_open(m->owner, options->device, "cpu", &t->device));
    struct session_compile sc = {.training = true,
                                 .no_optimize = options->no_optimize != 0,
                                 .train = train,
                                 .recipe = &t->recipe,
                                 .loss_text = &t->loss_text};
    TRY(session_graph(m, &sc, &t->graph));
    struct codegen_options cg = device_codegen(t->device, sc.no_optimize);
    cg.tf32 = t->recipe.tf32;
    TRY(plan_build(t->graph, &cg, &t->plan));
    TRY(budget_open(&t->exec, t->device, t->plan, m, &sc));
    t->views = ARENA_ARRAY(&t->arena, void *, t->plan->buffers.n);
    TRY(find_outputs(t));
    if (t->lr) *t->lr = (float)options->lr;
    t->seed_base = options->seed;
    t->accumulate = train->accumulate;
    return ST_OK;
}

void trainer_release(lathe_trainer *t) {
    backend_release(&t->exec);
    plan_destroy(t->plan);
    graph_destroy(t->graph);
    arena_reset(&t->arena);
}

/* An input or a stored tensor that is not finite itself: bad data, or the last update overflowed.
 */
static enum status nonfinite_tensor(lathe_trainer *t, struct arena *a, const char **name) {
    *name = NULL;
    for (uint32_t i = 1; i < t->plan->buffers.n; i++) {
        const struct plan_buffer *b = &t->plan->buffers.at[i];
        bool given = b->kind == BUF_PARAM || b->kind == BUF_STATE || b->kind == BUF_INPUT;
        if (!given || !dtype_is_float(b->type.dtype)) continue;
        struct arena_mark mark = arena_mark(a);
        const void *at;
        TRY(backend_view(&t->exec, (buf_id){i}, a, &at));
        size_t size = dtype_size(b->type.dtype);
        for (int64_t k = 0, n = type_count(&b->type); k < n && !*name; k++)
            if (!isfinite(dtype_load(b->type.dtype, (const char *)at + (size_t)k * size)))
                *name = interned(&t->plan->strings, b->name);
        arena_rewind(a, mark);
        if (*name) return ST_OK;
    }
    return ST_OK;
}

/* Nothing is updated before plan->first_update, so the launches up to there can be run again, this
 * time with every result checked. */
static enum status explain_nonfinite(lathe_trainer *t, const char *what) {
    struct ctx *c = &t->model->owner->ctx;
    TRY(backend_run(&t->exec, 0, t->plan->first_update, true));
    const char *tensor;
    TRY(nonfinite_tensor(t, &t->arena, &tensor));
    if (tensor)
        return diag_error(
            c, ST_NONFINITE, tensor,
            "the %s of step %lld is not finite because this tensor is not: the data or "
            "the file holds it so, or an update overflowed; check the data, lower the "
            "learning rate or clip",
            what, (long long)t->step + 1);
    return diag_error(
        c, ST_NONFINITE, "",
        "the %s of step %lld is not finite although every result before it is; nothing was updated",
        what, (long long)t->step + 1);
}

/* Random numbers depend on the seed and the number of the micro-batch alone. */
static void set_seed(lathe_trainer *t) {
    uint64_t batch = (uint64_t)t->step * (uint64_t)t->accumulate + (uint64_t)t->micro;
    if (t->seed) *t->seed = (int64_t)hash_combine(t->seed_base, batch);
}

/* Whether a step with gradients that are not finite may be left out: the recipe says so, the update
 * is not the sum of several, and it does not look as if nothing else would come. */
static bool may_skip(const lathe_trainer *t) {
    enum { SKIPPED_MAX = 100 };
    return t->recipe.skip_nonfinite && t->accumulate == 1 && t->skipped_now < SKIPPED_MAX;
}

/* Weights and states stay as they are, the count of Adam's steps among them; data goes on. */
static void skip(lathe_trainer *t, const lathe_step *result) {
    t->skipped++;
    t->skipped_now++;
    diag_warning(&t->model->owner->ctx, "",
                 "the gradient norm of step %lld is not finite; the step is left out (%lld so far)",
                 (long long)result->step, (long long)t->skipped);
}

enum status trainer_step(lathe_trainer *t, lathe_step *result) {
    set_seed(t);
    TRY(backend_run(&t->exec, 0, t->plan->first_update, false));
    result->loss = dtype_load(t->loss_type, t->loss);
    result->grad_norm = dtype_load(DT_f32, t->grad_norm);
    result->step = t->step + 1;
    if (!isfinite(result->loss)) return explain_nonfinite(t, "loss");
    if (isfinite(result->grad_norm)) {
        TRY(backend_run(&t->exec, t->plan->first_update, t->plan->launches.n, false));
        t->skipped_now = 0;
    } else if (may_skip(t)) {
        skip(t, result);
    } else {
        return explain_nonfinite(t, "gradient norm");
    }
    if (++t->micro == t->accumulate) {
        t->micro = 0;
        t->step++;
    }
    return ST_OK;
}

enum status trainer_loss(lathe_trainer *t, double *loss) {
    set_seed(t);
    TRY(backend_run(&t->exec, 0, t->plan->first_update, false));
    *loss = dtype_load(t->loss_type, t->loss);
    return ST_OK;
}

/* Memory that stays the same for every call: the buffer itself, or one copy of what is on a GPU. */
enum status trainer_view(lathe_trainer *t, buf_id b, lathe_tensor *out) {
    const struct plan_buffer *p = &t->plan->buffers.at[b.i];
    void *at = backend_memory(&t->exec, b);
    memset(out, 0, sizeof *out);
    if (!at && t->device->gpu) {
        if (!t->views[b.i]) t->views[b.i] = arena_alloc(&t->arena, (size_t)p->bytes);
        at = t->views[b.i];
        TRY(backend_read(&t->exec, b, at));
    }
    out->name = interned(&t->plan->strings, p->name);
    out->dtype = (lathe_dtype)dtype_to_onnx(p->type.dtype);
    out->rank = p->type.rank;
    out->shape = p->type.dims;
    out->data = at;
    out->bytes = (size_t)p->bytes;
    return ST_OK;
}

/* ---- export ------------------------------------------------------------------------------------
 */
struct export_job {
    lathe_trainer *t;
    const char *path;
    const void **values; /* per buffer */
};

static buf_id trained(const lathe_trainer *t, const char *param) {
    buf_id b = plan_find(t->plan, BUF_PARAM, param);
    return b.i ? b : plan_find(t->plan, BUF_STATE, param);
}

static const void *trained_value(void *user, const char *param) {
    const struct export_job *j = user;
    return j->values[trained(j->t, param).i];
}

/* Everything is read before anything is written. */
static enum status export_body(struct arena *a, void *user) {
    struct export_job *j = user;
    lathe_trainer *t = j->t;
    const struct import_result *r = &t->model->import;
    j->values = ARENA_ARRAY(a, const void *, t->plan->buffers.n);
    for (uint32_t i = 0; i < r->nparams; i++) {
        buf_id b = trained(t, r->params[i].name);
        if (b.i) TRY(backend_view(&t->exec, b, a, &j->values[b.i]));
    }
    return onnx_export(t->model->file, r, trained_value, j, j->path);
}

enum status trainer_export(lathe_trainer *t, const char *path) {
    struct export_job j = {.t = t, .path = path};
    return arena_with_scratch(&t->model->owner->ctx, export_body, &j);
}
