// SPDX-License-Identifier: Apache-2.0
/* trainer.c - a compiled training step: build the plan, hold its memory, run it, guard against
 * losses that are not finite. Batches come from the caller. */
#include "driver/trainer.h"
#include "base/diag.h"
#include "codegen/codegen.h"
#include <math.h>
#include <string.h>

static enum status find_outputs(lathe_trainer *t) {
    struct ctx *c = &t->model->owner->ctx;
    buf_id loss = plan_find(t->plan, BUF_OUTPUT, "loss");
    buf_id norm = plan_find(t->plan, BUF_OUTPUT, "grad_norm");
    CHECK(c, loss.i && norm.i);
    t->loss = cpu_buffer_at(t->exec, loss);
    t->loss_type = t->plan->buffers.at[loss.i].type.dtype;
    t->grad_norm = cpu_buffer_at(t->exec, norm);
    for (uint32_t i = 1; i < t->plan->buffers.n; i++) {
        const struct plan_buffer *b = &t->plan->buffers.at[i];
        if (b->kind != BUF_INPUT) continue;
        const char *role = interned(&t->plan->strings, b->role);
        if (strcmp(role, "lr") == 0) t->lr = cpu_buffer_at(t->exec, (buf_id){i});
        if (strcmp(role, "seed") == 0) t->seed = cpu_buffer_at(t->exec, (buf_id){i});
    }
    return ST_OK;
}

enum status trainer_init(lathe_trainer *t, lathe_model *m, const lathe_train_options *options,
                         const struct train_options *train) {
    t->model = m;
    struct session_compile sc = {.training = true,
                                 .no_optimize = options->no_optimize != 0,
                                 .train = train,
                                 .loss_text = &t->loss_text};
    TRY(session_graph(m, &sc, &t->graph));
    struct codegen_options cg = {.threads = pool_threads(m->owner->pool),
                                 .no_fusion = options->no_optimize != 0};
    TRY(plan_build(t->graph, &cg, &t->plan));
    TRY(cpu_create(&m->owner->ctx, t->plan, m->owner->pool, &t->exec));
    TRY(find_outputs(t));
    if (t->lr) *t->lr = (float)options->lr;
    t->seed_base = options->seed;
    t->accumulate = train->accumulate;
    return ST_OK;
}

void trainer_release(lathe_trainer *t) {
    cpu_destroy(t->exec);
    plan_destroy(t->plan);
    graph_destroy(t->graph);
}

/* An input or a stored tensor that is not finite itself: bad data, or the last update overflowed.
 */
static const char *nonfinite_tensor(const lathe_trainer *t) {
    for (uint32_t i = 1; i < t->plan->buffers.n; i++) {
        const struct plan_buffer *b = &t->plan->buffers.at[i];
        bool given = b->kind == BUF_PARAM || b->kind == BUF_STATE || b->kind == BUF_INPUT;
        if (!given || !dtype_is_float(b->type.dtype)) continue;
        const char *at = cpu_buffer_at(t->exec, (buf_id){i});
        size_t size = dtype_size(b->type.dtype);
        for (int64_t k = 0, n = type_count(&b->type); k < n; k++)
            if (!isfinite(dtype_load(b->type.dtype, at + (size_t)k * size)))
                return interned(&t->plan->strings, b->name);
    }
    return NULL;
}

/* Nothing is updated before plan->first_update, so the launches up to there can be run again, this
 * time with every result checked. */
static enum status explain_nonfinite(lathe_trainer *t, const char *what) {
    struct ctx *c = &t->model->owner->ctx;
    enum status st = cpu_run(t->exec, 0, t->plan->first_update, true);
    if (st != ST_OK) return st;
    const char *tensor = nonfinite_tensor(t);
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

enum status trainer_step(lathe_trainer *t, lathe_step *result) {
    set_seed(t);
    TRY(cpu_run(t->exec, 0, t->plan->first_update, false));
    result->loss = dtype_load(t->loss_type, t->loss);
    result->grad_norm = dtype_load(DT_f32, t->grad_norm);
    result->step = t->step + 1;
    if (!isfinite(result->loss)) return explain_nonfinite(t, "loss");
    if (!isfinite(result->grad_norm)) return explain_nonfinite(t, "gradient norm");
    TRY(cpu_run(t->exec, t->plan->first_update, t->plan->launches.n, false));
    if (++t->micro == t->accumulate) {
        t->micro = 0;
        t->step++;
    }
    return ST_OK;
}

enum status trainer_loss(lathe_trainer *t, double *loss) {
    set_seed(t);
    TRY(cpu_run(t->exec, 0, t->plan->first_update, false));
    *loss = dtype_load(t->loss_type, t->loss);
    return ST_OK;
}

void trainer_view(lathe_trainer *t, buf_id b, lathe_tensor *out) {
    const struct plan_buffer *p = &t->plan->buffers.at[b.i];
    out->name = interned(&t->plan->strings, p->name);
    out->dtype = (lathe_dtype)dtype_to_onnx(p->type.dtype);
    out->rank = p->type.rank;
    out->shape = p->type.dims;
    out->data = cpu_buffer_at(t->exec, b);
    out->bytes = (size_t)p->bytes;
}

static const void *trained_value(void *user, const char *param) {
    lathe_trainer *t = user;
    void *at = cpu_buffer(t->exec, BUF_PARAM, param);
    return at ? at : cpu_buffer(t->exec, BUF_STATE, param);
}

enum status trainer_export(lathe_trainer *t, const char *path) {
    return onnx_export(t->model->file, &t->model->import, trained_value, t, path);
}
