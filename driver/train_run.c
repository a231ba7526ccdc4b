// SPDX-License-Identifier: Apache-2.0
/* train_run.c - see train_run.h. The order of things: everything that can be refused is refused
 * before the run directory is made. */
#include "driver/train_run.h"
#include "base/diag.h"
#include "driver/forward.h"
#include "driver/numerics.h"
#include "runtime/metrics.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run {
    lathe_context *c;
    struct train_args *a;
    struct arena arena;
    lathe_model *model, *eval_model;
    lathe_trainer *trainer;
    struct evaluator eval;
    struct data_source data, eval_data;
    struct data_slot *slots;
    int nslots;
    int64_t batch, steps, first;
    struct data_loader *loader;
    struct run_dir *dir;
    const char *path;
    struct train_options options;
};

/* ---- setting up ---------------------------------------------------------------------------------
 */
static enum status open_model(struct run *r) {
    return (enum status)lathe_model_open(r->c, r->a->model, &r->a->open, &r->model);
}

static enum status open_evaluation(struct run *r) {
    if (!r->a->eval) return ST_OK;
    lathe_model_options o = r->a->open;
    o.inference = 1;
    o.batch = r->batch;         /* what the trainer decided about sizes holds for evaluation too */
    struct session_quiet quiet; /* the model repeats what was said about the trained one */
    session_quiet_begin(&r->c->ctx, &quiet);
    enum status st = (enum status)lathe_model_open(r->c, r->a->model, &o, &r->eval_model);
    session_quiet_end(&r->c->ctx, &quiet);
    TRY(st);
    TRY(data_open(&r->arena, r->a->eval, o.map, o.nmap, &r->eval_data));
    struct train_options t = r->options;
    if (graph_trains_itself(r->model->import.graph)) /* for inference it has other inputs */
        forward_label_hint(r->eval_model->import.graph, &r->eval_data, t.loss, &r->arena, &t);
    struct forward_options f = {r->trainer->device, &t, &r->trainer->recipe};
    return evaluator_init(&r->eval, r->eval_model, r->a->model, &o, &r->eval_data, &f);
}

static enum status build_trainer(struct run *r) {
    TRY(session_train_options(r->c, &r->a->train, &r->options));
    r->options.loss = r->a->train.loss;
    r->options.dump_grads = r->a->dump_grads != NULL;
    forward_label_hint(r->model->import.graph, &r->data, r->options.loss, &r->arena, &r->options);
    r->trainer = ctx_alloc(&r->c->ctx, sizeof *r->trainer);
    memset(r->trainer, 0, sizeof *r->trainer);
    return trainer_init(r->trainer, r->model, &r->a->train, &r->options);
}

static enum status build_loader(struct run *r) {
    TRY(forward_slots(&r->trainer->exec, &r->data, &r->arena, &r->slots, &r->nslots, &r->batch));
    if (r->a->open.batch && r->a->open.batch != r->batch)
        return diag_error(&r->c->ctx, ST_USAGE, r->a->model,
                          "the batch is fixed at %" PRId64 " in this file, so --batch %" PRId64
                          " cannot be used; export it with a symbolic batch dimension",
                          r->batch, r->a->open.batch);
    return data_loader_create(&r->arena, &r->data, r->slots, r->nslots, r->batch, 0,
                              r->a->train.seed, true, &r->loader);
}

static enum status count_steps(struct run *r) {
    int64_t epoch = data_batches_per_epoch(r->loader) / r->options.accumulate, micro;
    if (epoch < 1) epoch = 1;
    r->steps = r->a->steps;
    bool fits =
        r->steps || !__builtin_mul_overflow(epoch, r->a->epochs ? r->a->epochs : 1, &r->steps);
    if (fits && !__builtin_mul_overflow(r->steps, r->options.accumulate, &micro)) return ST_OK;
    return diag_error(&r->c->ctx, ST_USAGE, "",
                      "these are more batches than can be counted; give fewer --steps, --epochs or "
                      "a smaller --accumulate");
}

/* Fresh weights: trained tensors of rank 2 and more from N(0, std); vectors keep the values of the
 * file. */
static enum status randomise(struct run *r) {
    struct backend *x = &r->trainer->exec;
    uint64_t state = hash_combine(r->a->train.seed, 0x6c617468);
    for (uint32_t i = 1; i < r->trainer->plan->buffers.n; i++) {
        const struct plan_buffer *b = &r->trainer->plan->buffers.at[i];
        if (b->kind != BUF_PARAM || b->frozen || b->type.rank < 2) continue;
        struct arena_mark mark = arena_mark(&r->arena);
        char *at = arena_alloc(&r->arena, (size_t)b->bytes);
        size_t size = dtype_size(b->type.dtype);
        for (int64_t k = 0, n = type_count(&b->type); k < n; k++) {
            state = hash_combine(state, (uint64_t)k);
            double u = ((double)(state >> 40) + 0.5) / 16777216.0;
            double v = (double)(state & 0xffffff) / 16777216.0;
            double z = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
            dtype_store(b->type.dtype, at + (size_t)k * size, z * r->a->init_random);
        }
        TRY(backend_write(x, (buf_id){i}, at));
        arena_rewind(&r->arena, mark);
    }
    return ST_OK;
}

/* ---- checkpoints --------------------------------------------------------------------------------
 */
/* Everything that a step changes, by the users' names; states and parameters may not share one.
 * `ids` are their buffers; nothing is read yet. */
static uint32_t kept_tensors(struct run *r, struct array **out, buf_id **ids) {
    const struct plan *p = r->trainer->plan;
    struct array *list = ARENA_ARRAY(&r->arena, struct array, p->buffers.n);
    *ids = ARENA_ARRAY(&r->arena, buf_id, p->buffers.n);
    uint32_t n = 0;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (b->kind != BUF_PARAM && b->kind != BUF_STATE) continue;
        const char *prefix = b->kind == BUF_PARAM ? "param/" : "state/";
        (*ids)[n] = (buf_id){i};
        list[n++] = (struct array){
            arena_printf(&r->arena, "%s%s", prefix, interned(&p->strings, b->name)), b->type, NULL};
    }
    *out = list;
    return n;
}

static enum status save_tensors(struct run *r) {
    struct array *list;
    buf_id *ids;
    uint32_t n = kept_tensors(r, &list, &ids);
    for (uint32_t i = 0; i < n; i++)
        TRY(backend_view(&r->trainer->exec, ids[i], &r->arena, &list[i].at));
    const char *state = arena_printf(
        &r->arena,
        "{\"step\": %" PRId64 ", \"seed\": %" PRIu64 ", \"batch\": %" PRId64
        ", \"accumulate\": %" PRId64 ", \"skipped\": %" PRId64 "}",
        r->trainer->step, r->a->train.seed, r->batch, r->options.accumulate, r->trainer->skipped);
    return checkpoint_save(&r->arena, r->path, r->trainer->step, list, n, state, (int)r->a->keep);
}

static enum status save(struct run *r) {
    struct arena_mark mark = arena_mark(&r->arena);
    enum status st = save_tensors(r);
    arena_rewind(&r->arena, mark);
    return st;
}

/* What decides which samples a step sees and how dropout falls. A change is allowed, but the run is
 * then not what an uninterrupted one would have been. */
static void compare_state(struct run *r, const char *state) {
    const struct {
        const char *name;
        json_int_t now;
    } facts[] = {{"seed", (json_int_t)r->a->train.seed},
                 {"batch", r->batch},
                 {"accumulate", r->options.accumulate}};
    json_t *saved = json_loads(state, 0, NULL);
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        json_t *x = json_object_get(saved, facts[i].name);
        if (json_is_integer(x) && json_integer_value(x) != facts[i].now)
            diag_warning(&r->c->ctx, r->a->resume,
                         "--%s was %lld when the run was saved and is %lld now; the order of the "
                         "data is another one from here on",
                         facts[i].name, (long long)json_integer_value(x), (long long)facts[i].now);
    }
    r->trainer->skipped = (int64_t)json_integer_value(json_object_get(saved, "skipped"));
    json_decref(saved);
}

static enum status restore(struct run *r) {
    struct arrays saved;
    const char *state;
    int64_t step;
    TRY(checkpoint_load(&r->arena, r->a->resume, &step, &saved, &state));
    struct array *list;
    buf_id *ids;
    uint32_t n = kept_tensors(r, &list, &ids);
    for (uint32_t i = 0; i < n; i++) {
        const struct array *s = arrays_find(&saved, list[i].name);
        if (!s || !type_equal(&s->type, &list[i].type))
            return diag_error(
                &r->c->ctx, ST_DATA, r->a->resume,
                "the checkpoint %s tensor '%s'; it belongs to another model or optimizer",
                s ? "has another type for" : "lacks", list[i].name);
        TRY(backend_write(&r->trainer->exec, ids[i], s->at));
    }
    if (saved.list.n > n)
        return diag_error(
            &r->c->ctx, ST_DATA, r->a->resume,
            "the checkpoint has %u tensors that this run does not keep; it belongs to "
            "another model or optimizer",
            (unsigned)(saved.list.n - n));
    compare_state(r, state);
    r->trainer->step = r->first = step;
    return ST_OK;
}

/* ---- the run directory --------------------------------------------------------------------------
 */
static const char *config_json(struct run *r) {
    const struct train_options *o = &r->options;
    const struct device *d = r->trainer->device;
    static const char *const names[] = {"sgd", "adam", "adamw"};
    json_t *j = json_object();
    json_object_set_new(j, "lathe", json_string(lathe_version()));
    json_object_set_new(j, "model", json_string(r->a->model));
    json_object_set_new(j, "data", json_string(r->a->data));
    json_object_set_new(j, "loss", json_string(r->trainer->loss_text));
    json_object_set_new(j, "recipe", json_string(r->trainer->recipe.name));
    json_object_set_new(j, "device", json_string(d->id));
    json_object_set_new(j, "device_name", json_string(d->name));
    json_object_set_new(j, "device_arch", json_string(d->arch));
    json_object_set_new(j, "optimizer", json_string(names[o->optimizer]));
    json_object_set_new(j, "lr", json_real(r->a->train.lr));
    json_object_set_new(j, "betas", json_pack("[f,f]", o->beta1, o->beta2));
    json_object_set_new(j, "eps", json_real(o->eps));
    json_object_set_new(j, "weight_decay", json_real(o->weight_decay));
    json_object_set_new(j, "momentum", json_real(o->momentum));
    json_object_set_new(j, "clip", json_real(o->clip));
    json_object_set_new(j, "schedule",
                        json_string(r->a->schedule_text ? r->a->schedule_text : "constant"));
    json_object_set_new(j, "batch", json_integer(r->batch));
    json_object_set_new(j, "accumulate", json_integer(o->accumulate));
    json_object_set_new(j, "steps", json_integer(r->steps));
    json_object_set_new(j, "seed", json_integer((json_int_t)r->a->train.seed));
    json_object_set_new(j, "threads", json_integer(pool_threads(r->c->pool)));
    json_object_set_new(j, "memory_bytes",
                        json_integer((json_int_t)backend_bytes(&r->trainer->exec)));
    char *s = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    const char *copy = arena_strdup(&r->arena, s ? s : "{}");
    free(s);
    return copy;
}

static const char *free_run_name(struct arena *a) {
    for (int i = 1; i < 10000; i++) {
        const char *name = i == 1 ? "lathe-run" : arena_printf(a, "lathe-run-%d", i);
        if (!sys_exists(name)) return name;
    }
    return "lathe-run";
}

static enum status open_dir(struct run *r) {
    bool resume = r->a->resume != NULL;
    r->path = resume ? r->a->resume : r->a->out ? r->a->out : free_run_name(&r->arena);
    return run_dir_open(&r->arena, r->path, resume, r->first, config_json(r), &r->dir);
}

/* ---- the loop -----------------------------------------------------------------------------------
 */
static int64_t items_per_batch(const struct run *r, const char **unit) {
    const struct type *t = &r->slots[0].type;
    bool tokens = dtype_class(t->dtype) == DTC_INT && t->rank == 2;
    *unit = tokens ? "tokens" : "samples";
    return r->options.accumulate * (tokens ? t->dims[0] * t->dims[1] : t->dims[0]);
}

static enum status log_step(struct run *r, const lathe_step *s, double lr, double ms) {
    const char *unit;
    double rate = (double)items_per_batch(r, &unit) / (ms / 1000);
    struct metric m[] = {
        {"loss", s->loss, false},
        {"lr", lr, false},
        {"grad_norm", s->grad_norm, false},
        {"ms", ms, false},
        {strcmp(unit, "tokens") == 0 ? "tokens_per_s" : "samples_per_s", rate, false},
        {"memory_bytes", (double)backend_bytes(&r->trainer->exec), true},
        {"skipped", (double)r->trainer->skipped, true},
    };
    int n = (int)(sizeof m / sizeof m[0]);
    return run_dir_log(r->dir, s->step, m, r->trainer->recipe.skip_nonfinite ? n : n - 1);
}

static enum status evaluate(struct run *r) {
    if (!r->a->eval) return ST_OK;
    TRY(evaluator_copy_weights(&r->eval, r->trainer));
    struct eval_result e;
    TRY(evaluator_run(&r->eval, &e));
    struct metric m[] = {{"eval_loss", e.loss, false}, {"eval_accuracy", e.accuracy, false}};
    TRY(run_dir_log(r->dir, r->trainer->step, m, isnan(e.accuracy) ? 1 : 2));
    if (!r->a->quiet) {
        printf("eval at step %" PRId64 "  loss %.5f", r->trainer->step, e.loss);
        if (!isnan(e.accuracy)) printf("  accuracy %.4f", e.accuracy);
        printf("  (%" PRId64 " samples)\n", e.samples);
    }
    return ST_OK;
}

static enum status dump_gradients(struct run *r) {
    const struct plan *p = r->trainer->plan;
    struct array *list = ARENA_ARRAY(&r->arena, struct array, p->buffers.n);
    uint32_t n = 0;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        const char *name = interned(&p->strings, b->name);
        if (b->kind == BUF_OUTPUT && strncmp(name, "grad/", 5) == 0)
            list[n++] =
                (struct array){name + 5, b->type, backend_memory(&r->trainer->exec, (buf_id){i})};
    }
    return safetensors_write(&r->c->ctx, r->a->dump_grads, list, n, NULL, 0);
}

static enum status one_step(struct run *r, struct progress *progress) {
    int64_t step = r->trainer->step + 1;
    double lr = r->a->train.lr * schedule_factor(&r->a->schedule, step, r->steps);
    if (r->trainer->lr) *r->trainer->lr = (float)lr;
    double begin = sys_seconds(), loss = 0;
    lathe_step s = LATHE_STEP_INIT;
    enum status st = ST_OK;
    for (int64_t k = 0, n = r->options.accumulate; st == ST_OK && k < n; k++) {
        data_load(r->loader, (step - 1) * n + k);
        st = trainer_step(r->trainer, &s);
        loss += s.loss / (double)n;
    }
    if (st == ST_OK) s.loss = loss; /* else the one that stopped the step is of interest */
    double ms = (sys_seconds() - begin) * 1000;
    if (st == ST_OK || st == ST_NONFINITE) TRY(log_step(r, &s, lr, ms));
    TRY(st);
    progress_step(progress, step, s.loss, lr, ms);
    if (r->a->dump_grads && step == r->first + 1) TRY(dump_gradients(r));
    if (r->a->eval && r->a->eval_every && step % r->a->eval_every == 0 && step < r->steps)
        TRY(evaluate(r));
    if (r->a->numerics && step % r->a->numerics == 0) TRY(numerics_log(r->trainer, r->dir, step));
    if (r->a->save_every && step % r->a->save_every == 0 && step < r->steps) TRY(save(r));
    return ST_OK;
}

static void print_profile(struct run *r) {
    const double *seconds = backend_profile(&r->trainer->exec, true);
    const struct plan *p = r->trainer->plan;
    double total = 0;
    for (uint32_t i = 0; i < p->launches.n; i++) total += seconds[i];
    for (uint32_t i = 0; i < p->launches.n; i++)
        printf("%6.2f%% %9.3f ms  %-18s %s\n", 100 * seconds[i] / total, seconds[i] * 1000,
               launch_name(p->launches.at[i].kind),
               interned(&p->strings, p->launches.at[i].origin));
}

static enum status loop(struct run *r) {
    struct progress p = {.terminal = isatty(1) != 0,
                         .quiet = r->a->quiet,
                         .begin = sys_seconds(),
                         .first = r->first,
                         .steps = r->steps,
                         .bytes = backend_bytes(&r->trainer->exec)};
    p.per_step = items_per_batch(r, &p.unit);
    if (r->a->profile) (void)backend_profile(&r->trainer->exec, true);
    enum status st = ST_OK;
    while (st == ST_OK && r->trainer->step < r->steps && !*r->a->stop) st = one_step(r, &p);
    progress_end(&p);
    if (r->a->profile) print_profile(r);
    return st;
}

static enum status finish(struct run *r) {
    bool stopped = r->trainer->step < r->steps;
    TRY(save(r));
    TRY(trainer_export(r->trainer, arena_printf(&r->arena, "%s/model.onnx", r->path)));
    TRY(evaluate(r));
    if (!r->a->quiet)
        printf("%s %s; trained weights in %s/model.onnx\n",
               stopped ? "stopped; continue with --resume" : "done:", r->path, r->path);
    return stopped ? ST_STOPPED : ST_OK;
}

static enum status set_up(struct run *r) {
    TRY(data_open(&r->arena, r->a->data, r->a->open.map, r->a->open.nmap, &r->data));
    TRY(open_model(r));
    TRY(build_trainer(r));
    TRY(build_loader(r));
    TRY(count_steps(r));
    if (r->a->init_random >= 0) TRY(randomise(r));
    if (r->a->resume) TRY(restore(r));
    if (r->first >= r->steps)
        return diag_error(&r->c->ctx, ST_USAGE, r->a->resume ? r->a->resume : "",
                          "the run is already at step %" PRId64 " of %" PRId64
                          "; give more --steps",
                          r->first, r->steps);
    TRY(open_evaluation(r));
    return open_dir(r);
}

static enum status run_all(void *arg) {
    struct run *r = arg;
    TRY(set_up(r));
    r->a->started = true;
    TRY(loop(r));
    return finish(r);
}

enum status train_run(lathe_context *c, struct train_args *a) {
    struct run r = {.c = c, .a = a};
    arena_init(&r.arena, &c->ctx);
    enum status st = (enum status)session_guard(c, run_all, &r);
    evaluator_release(&r.eval);
    lathe_trainer_destroy(r.trainer);
    lathe_model_destroy(r.model);
    lathe_model_destroy(r.eval_model);
    arena_reset(&r.arena);
    return st;
}
