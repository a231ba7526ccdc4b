// SPDX-License-Identifier: Apache-2.0
/* numerics.c - see numerics.h. Reads states; codes within a step are gone by then. */
#include "driver/numerics.h"
#include "base/diag.h"
#include "base/vec.h"
#include <math.h>
#include <string.h>

struct numerics {
    lathe_trainer *t;
    struct arena *arena; /* of the record */
    VEC(struct metric) list;
    double worst; /* growth */
    const char *worst_name;
};

static void add(struct numerics *n, const char *name, const char *suffix, double value) {
    struct metric m = {arena_printf(n->arena, "%s%s", name, suffix), value, false};
    vec_push(n->arena, &n->list, m);
}

static buf_id beside(const struct numerics *n, const char *name, const char *suffix) {
    return plan_find(n->t->plan, BUF_STATE, arena_printf(n->arena, "%s.%s", name, suffix));
}

/* Codes of a state with its groups' magnitudes and exponents. */
static enum status log_codes(struct numerics *n, buf_id id, const char *name) {
    const struct plan *p = n->t->plan;
    buf_id amax_id = beside(n, name, "amax"), k_id = beside(n, name, "k");
    int64_t count = p->buffers.at[id.i].bytes, zero = 0, low = 0;
    if (!amax_id.i || !k_id.i || count == 0) return ST_OK;
    int64_t groups = p->buffers.at[k_id.i].bytes;
    const void *codes, *amax, *k;
    TRY(backend_view(&n->t->exec, id, n->arena, &codes));
    TRY(backend_view(&n->t->exec, amax_id, n->arena, &amax));
    TRY(backend_view(&n->t->exec, k_id, n->arena, &k));
    for (int64_t i = 0; i < count; i++) zero += (((const uint8_t *)codes)[i] & 0x7f) == 0;
    double sum = 0, most = 0;
    for (int64_t i = 0; i < groups; i++) {
        enum { SIXTEENTHS = 16 };
        int step = ((const uint8_t *)k)[i];
        sum += step / (double)SIXTEENTHS;
        low += step <= SIXTEENTHS;
        most = fmax(most, (double)((const float *)amax)[i]);
    }
    add(n, name, ".zero", (double)zero / (double)count);
    add(n, name, ".amax", most);
    if (groups == 0) return ST_OK;
    add(n, name, ".k", sum / (double)groups);
    add(n, name, ".k_low", (double)low / (double)groups);
    return ST_OK;
}

/* Newest first; before a step there are zeros. */
static enum status log_history(struct numerics *n, buf_id id, const char *name) {
    const void *at;
    int64_t count = n->t->plan->buffers.at[id.i].bytes / (int64_t)sizeof(float);
    TRY(backend_view(&n->t->exec, id, n->arena, &at));
    const float *h = at;
    float before = 0;
    for (int64_t i = 1; i < count; i++) before = fmaxf(before, h[i]);
    add(n, name, "", (double)h[0]);
    if (before == 0) return ST_OK;
    double growth = (double)h[0] / (double)before;
    add(n, name, ".growth", growth);
    double allowed = ldexp(1, (int)n->t->recipe.products.margin);
    if (growth / allowed <= n->worst) return ST_OK;
    n->worst = growth / allowed;
    n->worst_name = name;
    return ST_OK;
}

static enum status log_states(struct numerics *n) {
    const struct plan *p = n->t->plan;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        const char *name = interned(&p->strings, b->name);
        size_t length = strlen(name);
        bool history = length > 5 && strcmp(name + length - 5, ".amax") == 0 && b->type.rank == 1 &&
                       b->type.dtype == DT_f32 && b->bytes > 0;
        if (b->kind != BUF_STATE) continue;
        if (b->type.dtype == DT_e4m3 || b->type.dtype == DT_e5m2) {
            TRY(log_codes(n, (buf_id){i}, name));
        } else if (history) {
            const char *owner = arena_strndup(n->arena, name, length - 5);
            if (!plan_find(p, BUF_STATE, owner).i) TRY(log_history(n, (buf_id){i}, name));
        }
    }
    return ST_OK;
}

enum status numerics_log(lathe_trainer *t, struct run_dir *dir, int64_t step) {
    struct arena a;
    arena_init(&a, &t->model->owner->ctx);
    struct numerics n = {.t = t, .arena = &a};
    enum status st = log_states(&n);
    if (st == ST_OK && n.list.n) st = run_dir_log(dir, step, n.list.at, (int)n.list.n);
    if (st == ST_OK && n.worst > 2)
        diag_warning(&t->model->owner->ctx, "",
                     "step %lld: '%s' is %.1f times what its scale covers, and what is larger "
                     "saturated; products.scale takes a margin and a longer history",
                     (long long)step, n.worst_name, n.worst);
    arena_reset(&a);
    return st;
}
