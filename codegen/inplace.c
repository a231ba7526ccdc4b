// SPDX-License-Identifier: Apache-2.0
/* inplace.c - updates of parameters and states at the end of a step, in place where every reader of
 * the old value comes earlier, and results that take over the memory of an operand that dies. */
#include "codegen/internal.h"

static bool same_view(const struct plan_view *a, const struct plan_view *b) {
    if (a->rank != b->rank || a->offset != b->offset) return false;
    if (dtype_size(a->dtype) != dtype_size(b->dtype)) return false;
    for (int d = 0; d < a->rank; d++) {
        if (a->dims[d] != b->dims[d]) return false;
        if (a->dims[d] != 1 && a->strides[d] != b->strides[d]) return false;
    }
    return true;
}

/* A view without repeats, so that each element is read and written once. */
static bool no_repeats(const struct plan_view *v) {
    for (int d = 0; d < v->rank; d++)
        if (v->dims[d] > 1 && v->strides[d] == 0) return false;
    return true;
}

/* Result j of launch l may lie in the memory of buffer b as far as this launch is concerned. */
static bool may_share(const struct plan *p, const struct plan_launch *l, uint32_t j, buf_id b) {
    const struct plan_view *out = &l->out[j];
    bool product = l->kind == LAUNCH_matmul && launch_int(l, ATTR_residual, 0);
    if (l->kind != LAUNCH_group && l->kind != LAUNCH_sgd && l->kind != LAUNCH_adam &&
        l->kind != LAUNCH_adam8 && !product)
        return false;
    if (l->kind == LAUNCH_group) {
        const struct plan_group *g = &p->groups.at[l->group.i];
        for (uint32_t k = 0; k < g->code.n; k++)
            if (instr_is_column(g->code.at[k].code) && g->code.at[k].slot == (int32_t)j)
                return false;
    }
    uint32_t shared = 0;
    for (uint32_t k = 0; k < l->nin; k++) {
        if (l->in[k].buffer.i != b.i) continue;
        if (!same_view(&l->in[k], out) || !no_repeats(out)) return false;
        /* Others may only overwrite the operand that the result replaces. */
        uint32_t replaced = product ? l->nin - 1 : j == 0 ? 0 : j + 1;
        if (l->kind != LAUNCH_group && k != replaced) return false;
        shared++;
    }
    for (uint32_t k = 0; k < l->nout; k++)
        if (k != j && l->out[k].buffer.i == b.i) return false;
    return shared <= 1;
}

/* ---- updates ------------------------------------------------------------------------------- */
struct update_state {
    struct cg *c;
    int64_t *last_read; /* per buffer: launch, or -1 */
    uint32_t *writes;   /* per buffer: results that name it, and the last of them */
    uint32_t *launch, *result;
    uint32_t *rename; /* buffer -> the buffer it becomes */
};

static void scan_launches(struct update_state *s) {
    struct plan *p = s->c->p;
    struct arena *a = s->c->scratch;
    s->last_read = ARENA_ARRAY(a, int64_t, p->buffers.n);
    s->writes = ARENA_ARRAY(a, uint32_t, p->buffers.n);
    s->launch = ARENA_ARRAY(a, uint32_t, p->buffers.n);
    s->result = ARENA_ARRAY(a, uint32_t, p->buffers.n);
    for (uint32_t b = 0; b < p->buffers.n; b++) s->last_read[b] = -1;
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin; j++) s->last_read[l->in[j].buffer.i] = k;
        for (uint32_t j = 0; j < l->nout; j++) {
            uint32_t b = l->out[j].buffer.i;
            s->writes[b]++;
            s->launch[b] = k, s->result[b] = j;
        }
    }
}

static bool update_in_place(struct update_state *s, val_id target, val_id next) {
    struct cg *c = s->c;
    struct plan *p = c->p;
    buf_id to = c->vals[target.i].place.buffer;
    struct place *from = &c->vals[next.i].place;
    if (c->o->no_fusion || node_class(c->g, val_def(c->g, next)) == CLASS_VIEW) return false;
    if (!from->set || from->buffer.i == 0) return false;
    uint32_t old = from->buffer.i;
    if (p->buffers.at[old].kind != BUF_TEMP || s->writes[old] != 1) return false;
    uint32_t launch = s->launch[old], result = s->result[old];
    if (!view_contiguous(&p->launches.at[launch].out[result])) return false;
    if (s->last_read[to.i] > (int64_t)launch) return false;
    if (!may_share(p, &p->launches.at[launch], result, to)) return false;
    s->rename[old] = to.i;
    from->buffer = to;
    return true;
}

void drop_unused(struct cg *c, const uint32_t *rename, uint32_t nrename) {
    struct plan *p = c->p;
    uint32_t *to = ARENA_ARRAY(c->scratch, uint32_t, p->buffers.n), n = 1;
    bool *used = ARENA_ARRAY(c->scratch, bool, p->buffers.n);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin + l->nout; j++) {
            struct plan_view *v = j < l->nin ? &l->in[j] : &l->out[j - l->nin];
            if (v->buffer.i < nrename) v->buffer.i = rename[v->buffer.i];
            used[v->buffer.i] = true;
        }
    }
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        if (p->buffers.at[b].kind == BUF_TEMP && !used[b]) continue;
        to[b] = n;
        p->buffers.at[n++] = p->buffers.at[b];
    }
    p->buffers.n = n;
    for (uint32_t k = 0; k < p->launches.n; k++) {
        struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin; j++) l->in[j].buffer.i = to[l->in[j].buffer.i];
        for (uint32_t j = 0; j < l->nout; j++) l->out[j].buffer.i = to[l->out[j].buffer.i];
    }
}

static bool writes_kept(const struct plan *p, const struct plan_launch *l) {
    for (uint32_t j = 0; j < l->nout; j++) {
        enum buffer_kind k = p->buffers.at[l->out[j].buffer.i].kind;
        if (k == BUF_PARAM || k == BUF_STATE) return true;
    }
    return false;
}

static str_id def_origin(struct cg *c, val_id v) {
    node_id n = val_def(c->g, v);
    return unit_origin(c, &n.i, 1);
}

/* Updates that cannot be made in place: all new values are saved before the first is overwritten
 * when they lie in a param or state themselves. */
static enum status copy_updates(struct cg *c, const bool *done) {
    struct graph *g = c->g;
    uint32_t n = g->updates.n;
    buf_id *saved = ARENA_ARRAY(c->scratch, buf_id, n);
    for (uint32_t i = 0; i < n; i++) {
        val_id next = graph_resolve(g, g->updates.at[i].next), base = view_base(c, next);
        enum op op = val_op(g, base);
        if (done[i] || (op != OP_param && op != OP_state)) continue;
        saved[i] = buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, val_type(g, next));
        struct plan_view dest = buffer_view(c, saved[i]);
        TRY(group_copy(c, next, &dest, def_origin(c, next)));
    }
    for (uint32_t i = 0; i < n; i++) {
        if (done[i]) continue;
        val_id next = graph_resolve(g, g->updates.at[i].next);
        val_id target = graph_resolve(g, g->updates.at[i].target);
        str_id origin = def_origin(c, next);
        struct plan_view dest = buffer_view(c, c->vals[target.i].place.buffer);
        if (saved[i].i != 0) {
            struct plan_view from = buffer_view(c, saved[i]);
            TRY(group_convert(c, &from, &dest, origin));
        } else {
            TRY(group_copy(c, next, &dest, origin));
        }
    }
    return ST_OK;
}

enum status apply_updates(struct cg *c) {
    struct graph *g = c->g;
    struct plan *p = c->p;
    bool *done = ARENA_ARRAY(c->scratch, bool, g->updates.n);
    struct update_state s = {.c = c};
    uint32_t nbuffers = p->buffers.n;
    scan_launches(&s);
    s.rename = ARENA_ARRAY(c->scratch, uint32_t, nbuffers);
    for (uint32_t b = 0; b < nbuffers; b++) s.rename[b] = b;
    bool *saves = ARENA_ARRAY(c->scratch, bool, g->values.n);
    for (uint32_t i = 0; i < g->updates.n; i++) /* a param read at the very end stays as it is */
        saves[view_base(c, graph_resolve(g, g->updates.at[i].next)).i] = true;
    for (uint32_t i = 0; i < g->updates.n; i++) {
        val_id target = graph_resolve(g, g->updates.at[i].target);
        val_id next = graph_resolve(g, g->updates.at[i].next);
        if (target.i == next.i)
            done[i] = true;
        else if (!saves[target.i])
            done[i] = update_in_place(&s, target, next);
    }
    TRY(copy_updates(c, done));
    drop_unused(c, s.rename, nbuffers);
    if (!c->o->no_fusion) join_optimizers(c);
    p->first_update = p->launches.n;
    for (uint32_t k = p->launches.n; k-- > 0;)
        if (writes_kept(p, &p->launches.at[k])) p->first_update = k;
    return ST_OK;
}

/* ---- temps --------------------------------------------------------------------------------- */
static bool is_temp(const struct plan *p, buf_id b) {
    return p->buffers.at[b.i].kind == BUF_TEMP;
}

/* Whether launch k is the first to touch b and writes it through one view only. */
static bool born_here(const struct plan *p, const struct plan_launch *l, uint32_t k, buf_id b) {
    uint32_t views = 0;
    if (!is_temp(p, b) || p->buffers.at[b.i].first != k) return false;
    for (uint32_t j = 0; j < l->nout; j++) views += l->out[j].buffer.i == b.i;
    return views == 1;
}

void share_in_place(struct cg *c) {
    struct plan *p = c->p;
    bool *taken = ARENA_ARRAY(c->scratch, bool, p->buffers.n);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        if (l->kind != LAUNCH_group && l->kind != LAUNCH_matmul) continue;
        for (uint32_t j = 0; j < l->nout; j++) {
            buf_id b = l->out[j].buffer;
            if (!born_here(p, l, k, b) || p->buffers.at[b.i].alias.i != 0) continue;
            for (uint32_t i = 0; i < l->nin; i++) {
                buf_id a = l->in[i].buffer;
                if (!is_temp(p, a) || taken[a.i] || p->buffers.at[a.i].last != k) continue;
                if (p->buffers.at[a.i].bytes != p->buffers.at[b.i].bytes) continue;
                if (!same_view(&l->in[i], &l->out[j]) || !may_share(p, l, j, a)) continue;
                p->buffers.at[b.i].alias = a;
                taken[a.i] = true;
                break;
            }
        }
    }
    find_lifetimes(p);
}
