// SPDX-License-Identifier: Apache-2.0
/* api.c - the functions of lathe.h: argument checks, landing points, and nothing that thinks. What
 * they do stands in session.c and trainer.c. */
#include "base/diag.h"
#include "driver/info.h"
#include "driver/trainer.h"
#include <stdlib.h>
#include <string.h>

static void *heap_alloc(void *user, size_t bytes) {
    (void)user;
    return malloc(bytes);
}

static void heap_release(void *user, void *ptr) {
    (void)user;
    free(ptr);
}

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    const lathe_context *c = user;
    if (c->options.report)
        c->options.report(c->options.report_user, (lathe_severity)sev, (lathe_status)code, origin,
                          message);
}

const char *lathe_version(void) {
    return LATHE_VERSION;
}

const char *lathe_status_name(lathe_status status) {
    static const char *const names[] = {"ok",          "usage",   "input/output",  "parse",
                                        "unsupported", "shape",   "type",          "data",
                                        "non-finite",  "stopped", "out of memory", "internal"};
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "unknown";
}

/* Copy a size-first option struct over defaults: an older, shorter one is completed; a longer one
 * must not ask for what this version does not know. */
static lathe_status take_options(void *to, size_t known, const void *from) {
    if (!from) return LATHE_OK;
    size_t given;
    memcpy(&given, from, sizeof given);
    if (given < sizeof given) return LATHE_USAGE;
    for (size_t i = known; i < given; i++)
        if (((const char *)from)[i]) return LATHE_USAGE;
    memcpy(to, from, given < known ? given : known);
    return LATHE_OK;
}

/* Arguments that need words; without a context there is nobody to tell. */
static lathe_status usage(lathe_context *c, const char *origin, const char *what) {
    return (lathe_status)diag_error(&c->ctx, ST_USAGE, origin, "%s", what);
}

static enum status start_context(void *arg) {
    lathe_context *c = arg;
    lathe_context_options *o = &c->options;
    if (o->cache_dir) c->cache_dir = arena_strdup(&c->arena, o->cache_dir);
    if (o->cuda_dir) c->cuda_dir = arena_strdup(&c->arena, o->cuda_dir);
    if (o->compiled) c->compiled = arena_strdup(&c->arena, o->compiled);
    o->cache_dir = o->cuda_dir = o->compiled = NULL;
    int threads = c->options.threads ? c->options.threads : sys_cpu_count();
    c->pool = pool_create(&c->ctx, threads);
    return c->pool ? ST_OK : ST_OUT_OF_MEMORY;
}

lathe_status lathe_context_create(const lathe_context_options *options, lathe_context **out) {
    if (!out) return LATHE_USAGE;
    *out = NULL;
    lathe_context_options o = LATHE_CONTEXT_OPTIONS_INIT;
    if (take_options(&o, sizeof o, options) != LATHE_OK || o.threads < 0 || o.threads > 1024)
        return LATHE_USAGE;
    if (!o.alloc != !o.release) return LATHE_USAGE;
    if (!o.alloc) {
        o.alloc = heap_alloc;
        o.release = heap_release;
    }
    lathe_context *c = o.alloc(o.alloc_user, sizeof *c);
    if (!c) return LATHE_OUT_OF_MEMORY;
    memset(c, 0, sizeof *c);
    c->options = o;
    ctx_init(&c->ctx);
    c->ctx.alloc = o.alloc;
    c->ctx.release = o.release;
    c->ctx.alloc_user = o.alloc_user;
    c->ctx.report = report;
    c->ctx.report_user = c;
    arena_init(&c->arena, &c->ctx);
    lathe_status st = session_guard(c, start_context, c);
    if (st != LATHE_OK) {
        lathe_context_destroy(c);
        return st;
    }
    *out = c;
    return LATHE_OK;
}

void lathe_context_destroy(lathe_context *c) {
    if (!c) return;
    device_close_all(c);
    arena_reset(&c->arena);
    pool_destroy(c->pool);
    c->options.release(c->options.alloc_user, c);
}

void lathe_text_free(lathe_context *ctx, char *text) {
    if (ctx) ctx_free(&ctx->ctx, text);
}

/* ---- model --------------------------------------------------------------------------------------
 */
struct open_args {
    lathe_context *c;
    const char *path;
    lathe_model_options options;
    lathe_model *model;
    bool listing;
};

/* What a caller's options must be before anything looks at them. */
static bool sane_model_options(const lathe_model_options *o) {
    if (o->batch < 0 || o->seq < 0 || o->nmap < 0 || (o->nmap && !o->map)) return false;
    for (int32_t i = 0; i < o->nmap; i++)
        if (!o->map[i]) return false;
    return true;
}

static lathe_status take_model_options(lathe_context *c, lathe_model_options *to,
                                       const lathe_model_options *from) {
    if (take_options(to, sizeof *to, from) != LATHE_OK)
        return usage(c, "", "the model options have a size, or fields, of another version");
    if (!sane_model_options(to))
        return usage(c, "", "batch, seq and nmap must not be negative, and map holds nmap texts");
    return LATHE_OK;
}

static enum status open_model(void *arg) {
    struct open_args *a = arg;
    a->model = ctx_alloc(&a->c->ctx, sizeof *a->model);
    memset(a->model, 0, sizeof *a->model);
    a->model->listing = a->listing;
    return session_open(a->c, a->path, &a->options, a->model);
}

lathe_status lathe_model_open(lathe_context *ctx, const char *path,
                              const lathe_model_options *options, lathe_model **out) {
    if (!ctx || !path || !out) return LATHE_USAGE;
    *out = NULL;
    struct open_args a = {ctx, path, LATHE_MODEL_OPTIONS_INIT, NULL, false};
    lathe_status st = take_model_options(ctx, &a.options, options);
    if (st == LATHE_OK) st = session_guard(ctx, open_model, &a);
    if (st != LATHE_OK) {
        lathe_model_destroy(a.model);
        return st;
    }
    *out = a.model;
    return LATHE_OK;
}

void lathe_model_destroy(lathe_model *m) {
    if (!m) return;
    struct ctx *c = &m->owner->ctx;
    graph_destroy(m->import.graph);
    onnx_free(m->file);
    arena_reset(&m->scratch);
    arena_reset(&m->arena);
    ctx_free(c, m);
}

struct info_args {
    struct open_args open;
    int json;
    char *text;
};

static enum status model_info(void *arg) {
    struct info_args *a = arg;
    enum status st = open_model(&a->open);
    if (st != ST_OK && !(st == ST_UNSUPPORTED && a->open.model->import.nunsupported)) return st;
    return info_text(a->open.model, a->json != 0, &a->text);
}

lathe_status lathe_info(lathe_context *ctx, const char *path, const lathe_model_options *options,
                        int32_t json, char **text) {
    if (!ctx || !path || !text) return LATHE_USAGE;
    *text = NULL;
    struct info_args a = {{ctx, path, LATHE_MODEL_OPTIONS_INIT, NULL, true}, json, NULL};
    lathe_status st = take_model_options(ctx, &a.open.options, options);
    if (st == LATHE_OK) st = session_guard(ctx, model_info, &a);
    lathe_model_destroy(a.open.model);
    *text = a.text;
    return st;
}

/* ---- trainer ------------------------------------------------------------------------------------
 */
struct create_args {
    lathe_model *model;
    lathe_train_options options;
    lathe_trainer *trainer;
};

static enum status create_trainer(void *arg) {
    struct create_args *a = arg;
    struct ctx *c = &a->model->owner->ctx;
    a->trainer = ctx_alloc(c, sizeof *a->trainer);
    memset(a->trainer, 0, sizeof *a->trainer);
    a->trainer->model = a->model; /* from here on it can be destroyed */
    struct train_options t;
    TRY(session_train_options(a->model->owner, &a->options, &t));
    return trainer_init(a->trainer, a->model, &a->options, &t);
}

lathe_status lathe_trainer_create(lathe_model *model, const lathe_train_options *options,
                                  lathe_trainer **out) {
    if (!model || !out) return LATHE_USAGE;
    *out = NULL;
    struct create_args a = {model, LATHE_TRAIN_OPTIONS_INIT, NULL};
    if (take_options(&a.options, sizeof a.options, options) != LATHE_OK)
        return usage(model->owner, "",
                     "the training options have a size, or fields, of another version");
    lathe_status st = session_guard(model->owner, create_trainer, &a);
    if (st != LATHE_OK) {
        lathe_trainer_destroy(a.trainer);
        return st;
    }
    *out = a.trainer;
    return LATHE_OK;
}

void lathe_trainer_destroy(lathe_trainer *t) {
    if (!t) return;
    struct ctx *c = &t->model->owner->ctx;
    trainer_release(t);
    ctx_free(c, t);
}

struct view_args {
    lathe_trainer *trainer;
    buf_id id;
    lathe_tensor *out;
};

static enum status run_view(void *arg) {
    const struct view_args *a = arg;
    return trainer_view(a->trainer, a->id, a->out);
}

static lathe_status view(lathe_trainer *t, uint32_t buffer, lathe_tensor *out) {
    struct view_args a = {t, {buffer}, out};
    return session_guard(t->model->owner, run_view, &a);
}

static lathe_status find_input(lathe_trainer *t, const char *name, int32_t index,
                               lathe_tensor *out) {
    int32_t at = 0;
    for (uint32_t i = 1; i < t->plan->buffers.n; i++) {
        const struct plan_buffer *b = &t->plan->buffers.at[i];
        const char *role = interned(&t->plan->strings, b->role);
        if (b->kind != BUF_INPUT || strcmp(role, "lr") == 0 || strcmp(role, "seed") == 0) continue;
        if (name ? strcmp(name, interned(&t->plan->strings, b->name)) == 0 : at == index)
            return view(t, i, out);
        at++;
    }
    memset(out, 0, sizeof *out);
    return name ? usage(t->model->owner, name, "no input or label of the trainer has this name")
                : LATHE_USAGE;
}

lathe_status lathe_trainer_input(lathe_trainer *t, const char *name, lathe_tensor *out) {
    if (!t || !name || !out) return LATHE_USAGE;
    return find_input(t, name, 0, out);
}

lathe_status lathe_trainer_input_at(lathe_trainer *t, int32_t index, lathe_tensor *out) {
    if (!t || index < 0 || !out) return LATHE_USAGE;
    return find_input(t, NULL, index, out);
}

struct step_args {
    lathe_trainer *trainer;
    lathe_step result;
};

static enum status run_step(void *arg) {
    struct step_args *a = arg;
    return trainer_step(a->trainer, &a->result);
}

lathe_status lathe_trainer_step(lathe_trainer *t, lathe_step *result) {
    if (!t || (result && result->size < sizeof result->size)) return LATHE_USAGE;
    struct step_args a = {t, LATHE_STEP_INIT};
    lathe_status st = session_guard(t->model->owner, run_step, &a);
    if (result) {
        size_t n = result->size < sizeof a.result ? result->size : sizeof a.result;
        a.result.size = result->size;
        memcpy(result, &a.result, n);
    }
    return st;
}

struct loss_args {
    lathe_trainer *trainer;
    double loss;
};

static enum status run_loss(void *arg) {
    struct loss_args *a = arg;
    return trainer_loss(a->trainer, &a->loss);
}

lathe_status lathe_trainer_loss(lathe_trainer *t, double *loss) {
    if (!t || !loss) return LATHE_USAGE;
    struct loss_args a = {t, 0};
    lathe_status st = session_guard(t->model->owner, run_loss, &a);
    *loss = a.loss;
    return st;
}

lathe_status lathe_trainer_set_lr(lathe_trainer *t, double lr) {
    if (!t) return LATHE_USAGE;
    if (!(lr >= 0) || lr > 1e30)
        return usage(t->model->owner, "", "the learning rate must be at least 0 and at most 1e30");
    if (t->lr) *t->lr = (float)lr;
    return LATHE_OK;
}

lathe_status lathe_trainer_get(lathe_trainer *t, const char *name, lathe_tensor *out) {
    if (!t || !name || !out) return LATHE_USAGE;
    static const enum buffer_kind kinds[] = {BUF_PARAM, BUF_STATE, BUF_OUTPUT};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        buf_id b = plan_find(t->plan, kinds[k], name);
        if (b.i) return view(t, b.i, out);
    }
    memset(out, 0, sizeof *out);
    return usage(t->model->owner, name,
                 "no parameter, state or output of the trainer has this name");
}

lathe_status lathe_trainer_param_at(lathe_trainer *t, int32_t index, lathe_tensor *out) {
    if (!t || index < 0 || !out) return LATHE_USAGE;
    for (uint32_t i = 1; i < t->plan->buffers.n; i++) {
        if (t->plan->buffers.at[i].kind != BUF_PARAM || index-- > 0) continue;
        return view(t, i, out);
    }
    memset(out, 0, sizeof *out);
    return LATHE_USAGE;
}

struct set_args {
    lathe_trainer *trainer;
    buf_id id;
    const void *data;
};

static enum status run_set(void *arg) {
    const struct set_args *a = arg;
    return backend_write(&a->trainer->exec, a->id, a->data);
}

lathe_status lathe_trainer_set(lathe_trainer *t, const char *name, const void *data, size_t bytes) {
    if (!t || !name || (!data && bytes)) return LATHE_USAGE;
    lathe_context *c = t->model->owner;
    buf_id b = plan_find(t->plan, BUF_PARAM, name);
    if (!b.i) b = plan_find(t->plan, BUF_STATE, name);
    if (!b.i) return usage(c, name, "no parameter or state of the trainer has this name");
    long long want = (long long)t->plan->buffers.at[b.i].bytes;
    if ((size_t)want != bytes)
        return (lathe_status)diag_error(&c->ctx, ST_USAGE, name, "expected %lld bytes, found %zu",
                                        want, bytes);
    struct set_args a = {t, b, data};
    return session_guard(c, run_set, &a);
}

const char *lathe_trainer_device(const lathe_trainer *t) {
    return t ? t->device->id : NULL;
}

size_t lathe_trainer_bytes(const lathe_trainer *t) {
    return t ? backend_bytes(&t->exec) : 0;
}

struct export_args {
    lathe_trainer *trainer;
    const char *path;
};

static enum status run_export(void *arg) {
    struct export_args *a = arg;
    return trainer_export(a->trainer, a->path);
}

lathe_status lathe_trainer_export(lathe_trainer *t, const char *path) {
    if (!t || !path) return LATHE_USAGE;
    struct export_args a = {t, path};
    return session_guard(t->model->owner, run_export, &a);
}
