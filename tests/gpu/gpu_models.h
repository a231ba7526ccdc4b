// SPDX-License-Identifier: Apache-2.0
/* gpu_models.h - exported models trained on the GPU: losses against the reference, the same bits in
 * another run, the memory that was planned. For gpu_test.c. */
#ifndef LATHE_TESTS_GPU_MODELS_H
#define LATHE_TESTS_GPU_MODELS_H

#include "driver/session.h"
#include "gpu_bench.h"

enum { STEPS = 20 };

/* Largest distance of a loss from that of f32 in PyTorch. */
static const struct {
    const char *name;
    double tolerance;
} recipes[] = {{"fp32", 1e-4},    {"bf16", 2e-2},      {"fp8", 3e-2}, {"fp8-delayed", 3e-2},
               {"fp8-row", 3e-2}, {"fp8-block", 3e-2}, {"coat", 3e-2}};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

struct model_run {
    lathe_context *context;
    lathe_model *model;
    lathe_trainer *trainer;
    struct arrays data, ref;
    double want[STEPS], got[STEPS];
};

static void model_report(void *user, lathe_severity sev, lathe_status status, const char *origin,
                         const char *message) {
    if (sev == LATHE_ERROR) report(user, SEV_ERROR, (enum status)status, origin, message);
}

static bool model_open(struct bench *b, const char *path, const char *stem, const char *recipe,
                       struct model_run *m) {
    lathe_context_options co = LATHE_CONTEXT_OPTIONS_INIT;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    lathe_train_options to = LATHE_TRAIN_OPTIONS_INIT;
    const char *data = arena_printf(&b->arena, "%s.data.npz", stem);
    const char *ref = arena_printf(&b->arena, "%s.ref.npz", stem);
    if (arrays_read(&b->arena, data, &m->data) != ST_OK ||
        arrays_read(&b->arena, ref, &m->ref) != ST_OK)
        return false;
    co.report = model_report;
    co.report_user = b;
    co.threads = 2;
    mo.data = data;
    to.loss = "cross_entropy(logits, labels)";
    to.recipe = recipe;
    to.beta1 = 0.9, to.beta2 = 0.95, to.eps = 1e-8, to.weight_decay = 0.1;
    if (lathe_context_create(&co, &m->context) != LATHE_OK) return false;
    if (lathe_model_open(m->context, path, &mo, &m->model) != LATHE_OK) return false;
    if (lathe_trainer_create(m->model, &to, &m->trainer) != LATHE_OK) return false;
    const struct array *a = arrays_find(&m->ref, "adamw_losses");
    for (int i = 0; i < STEPS; i++)
        m->want[i] = a && type_count(&a->type) >= STEPS
                         ? dtype_load(a->type.dtype,
                                      (const char *)a->at + (size_t)i * dtype_size(a->type.dtype))
                         : NAN;
    return true;
}

/* Whole arrays are the batch; the learning rate has its default. */
static bool model_feed(struct bench *b, struct model_run *m, const struct plan *p,
                       struct cuda_exec *x) {
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_INPUT) continue;
        const char *name = interned(&p->strings, k->name);
        char *to = cuda_host_buffer_at(x, (buf_id){i});
        enum dtype want = k->type.dtype;
        const struct array *a = arrays_find(&m->data, name);
        if (strcmp(interned(&p->strings, k->role), "lr") == 0) {
            lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
            dtype_store(want, to, o.lr);
        } else if (a && type_count(&a->type) == type_count(&k->type)) {
            for (int64_t e = 0; e < type_count(&k->type); e++) {
                const char *from = (const char *)a->at + (size_t)e * dtype_size(a->type.dtype);
                char *at = to + (size_t)e * dtype_size(want);
                if (dtype_is_float(want))
                    dtype_store(want, at, dtype_load(a->type.dtype, from));
                else
                    dtype_store_int(want, at, dtype_load_int(a->type.dtype, from));
            }
        } else if (strcmp(interned(&p->strings, k->role), "seed") != 0) {
            return failed(b, "no data for input %s", name);
        }
    }
    return true;
}

/* `steps` steps in two ranges, as the trainer does. */
static bool model_train(struct bench *b, struct model_run *m, const struct plan *p, int steps,
                        double *losses, double *seconds) {
    struct cuda_exec *x = NULL;
    if (cuda_create(b->gpu, p, kernel_source, NULL, &x) != ST_OK) return failed(b, "not created");
    bool ok = model_feed(b, m, p, x);
    if (cuda_bytes(x) != (size_t)plan_bytes(p))
        ok =
            failed(b, "holds %zu bytes, %lld are planned", cuda_bytes(x), (long long)plan_bytes(p));
    const void *loss = cuda_host_buffer(x, BUF_OUTPUT, "loss");
    buf_id id = plan_find(p, BUF_OUTPUT, "loss");
    double start = 0;
    for (int i = 0; i < steps && ok; i++) {
        if (i == 2) start = sys_seconds(); /* from here on graphs are replayed */
        ok = cuda_run(x, 0, p->first_update, false) == ST_OK;
        if (ok) losses[i] = dtype_load(p->buffers.at[id.i].type.dtype, loss);
        ok = ok && cuda_run(x, p->first_update, p->launches.n, false) == ST_OK;
        if (!ok) failed(b, "step %d", i + 1);
    }
    *seconds = steps > 2 ? (sys_seconds() - start) / (steps - 2) : 0;
    cuda_destroy(x);
    return ok;
}

static bool model_check(struct bench *b, struct model_run *m, double tolerance, bool folded) {
    struct codegen_options o = {.threads = 2, .cuda_arch = b->arch};
    struct plan *p = NULL;
    double again[STEPS], seconds = 0, unused, worst = 0;
    struct graph *g = graph_clone(m->trainer->graph);
    bool ok = plan_build(g, &o, &p) == ST_OK || failed(b, "no plan");
    ok = ok && (plan_verify(p, "gpu_test") == ST_OK || failed(b, "the plan is wrong"));
    ok = ok && model_train(b, m, p, STEPS, m->got, &seconds);
    ok = ok && model_train(b, m, p, 5, again, &unused);
    if (ok && memcmp(again, m->got, 5 * sizeof again[0]) != 0)
        ok = failed(b, "another run gave other losses");
    for (int i = 0; i < STEPS && ok; i++) {
        double e = fabs(m->got[i] - m->want[i]) / fmax(fabs(m->want[i]), 1e-30);
        if (!(e <= worst)) worst = e;
    }
    if (ok && folded) /* exported for inference: learns, but differently */
        ok = m->got[STEPS - 1] < m->got[0] || failed(b, "the loss does not fall");
    else if (ok)
        ok = worst <= tolerance || failed(b, "losses differ by %.1e from the reference", worst);
    if (ok)
        printf("  %-28s losses %.1e, %.3f ms a step, %u launches, %u kernels\n", now->name, worst,
               seconds * 1e3, p->launches.n, p->kernels.n);
    plan_destroy(p);
    graph_destroy(g);
    return ok;
}

static enum verdict run_model_item(struct bench *b, const char *path, int recipe) {
    const char *file = sys_basename(path);
    const char *stem = arena_printf(&b->arena, "%s/%.*s", sys_dirname(&b->arena, path),
                                    (int)strcspn(file, "."), file);
    if (!sys_exists(arena_printf(&b->arena, "%s.data.npz", stem)) ||
        !sys_exists(arena_printf(&b->arena, "%s.ref.npz", stem)))
        return SKIP;
    struct model_run m = {0};
    bool folded = strstr(file, "resnet") && strstr(file, ".dynamo18");
    bool ok = model_open(b, path, stem, recipes[recipe].name, &m) || failed(b, "not opened");
    ok = ok && model_check(b, &m, recipes[recipe].tolerance, folded);
    lathe_trainer_destroy(m.trainer);
    lathe_model_destroy(m.model);
    lathe_context_destroy(m.context);
    return ok ? PASS : FAIL;
}

#endif
