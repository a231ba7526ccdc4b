// SPDX-License-Identifier: Apache-2.0
/* join.c - the steps of an optimizer that differ in their parameters only become one launch, in the
 * place of the last of them. Steps whose results go to temporaries (updates that depend on a
 * condition) stay alone: joined, all of these would be needed at once. */
#include "codegen/internal.h"
#include "ir/plan_work.h"
#include <string.h>

enum { JOIN_MAX = 4096 };

static bool same_attrs(const struct plan_launch *a, const struct plan_launch *b) {
    if (a->nattrs != b->nattrs) return false;
    for (int k = 0; k < a->nattrs; k++) {
        const struct attr *x = &a->attrs[k], *y = &b->attrs[k];
        if (x->key != y->key || x->i != y->i || memcmp(&x->f, &y->f, sizeof x->f) != 0)
            return false;
    }
    return true;
}

static bool same_scalar(const struct plan_view *a, const struct plan_view *b) {
    return a->buffer.i == b->buffer.i && a->offset == b->offset && a->dtype == b->dtype;
}

static bool can_join(const struct plan *p, const struct plan_launch *l) {
    if (l->kind != LAUNCH_adam && l->kind != LAUNCH_sgd) return false;
    for (uint32_t j = 0; j < l->nout; j++) {
        if (p->buffers.at[l->out[j].buffer.i].kind == BUF_TEMP) return false;
    }
    return true;
}

static bool alike(const struct plan_launch *a, const struct plan_launch *b) {
    uint32_t lr = plan_optimizer(a).lr;
    if (a->kind != b->kind || a->nin != b->nin || a->in[0].dtype != b->in[0].dtype) return false;
    for (uint32_t k = lr; k < a->nin; k++)
        if (!same_scalar(&a->in[k], &b->in[k])) return false;
    return same_attrs(a, b);
}

/* What the launches gathered so far touch. */
struct touched {
    bool *reads, *writes; /* per buffer */
};

static void note(struct touched *t, const struct plan_launch *l) {
    for (uint32_t j = 0; j < l->nin; j++) t->reads[l->in[j].buffer.i] = true;
    for (uint32_t j = 0; j < l->nout; j++) t->writes[l->out[j].buffer.i] = true;
}

/* The gathered launches may not move behind l. */
static bool in_the_way(const struct touched *t, const struct plan_launch *l) {
    for (uint32_t j = 0; j < l->nin; j++)
        if (t->writes[l->in[j].buffer.i]) return true;
    for (uint32_t j = 0; j < l->nout; j++)
        if (t->writes[l->out[j].buffer.i] || t->reads[l->out[j].buffer.i]) return true;
    return false;
}

static struct plan_launch joined(struct cg *c, const uint32_t *list, uint32_t n) {
    struct plan *p = c->p;
    const struct plan_launch *first = &p->launches.at[list[0]];
    struct optimizer_form f = plan_optimizer(first);
    uint32_t scalars = first->nin - f.lr;
    struct plan_launch l = {.kind = first->kind, .nin = n * f.each + scalars, .nout = n * f.kept};
    l.in = ARENA_ARRAY(&p->arena, struct plan_view, l.nin);
    l.out = ARENA_ARRAY(&p->arena, struct plan_view, l.nout);
    for (uint32_t k = 0; k < n; k++) {
        const struct plan_launch *one = &p->launches.at[list[k]];
        memcpy(&l.in[k * f.each], one->in, f.each * sizeof *l.in);
        memcpy(&l.out[k * f.kept], one->out, f.kept * sizeof *l.out);
        l.cost.flops += one->cost.flops;
        l.cost.bytes_read += one->cost.bytes_read;
        l.cost.bytes_written += one->cost.bytes_written;
    }
    memcpy(&l.in[n * f.each], &first->in[f.lr], scalars * sizeof *l.in);
    struct attr *at = ARENA_ARRAY(&p->arena, struct attr, (size_t)first->nattrs + 1);
    int used = 0, k = 0;
    for (; k < first->nattrs && first->attrs[k].key < ATTR_count; k++) at[used++] = first->attrs[k];
    at[used++] = (struct attr){.key = ATTR_count, .i = n};
    for (; k < first->nattrs; k++) at[used++] = first->attrs[k];
    l.attrs = at;
    l.nattrs = used;
    return l;
}

/* From launch `from` on, what can be one launch with it. */
static uint32_t gather(struct cg *c, uint32_t from, const bool *gone, uint32_t *list) {
    struct plan *p = c->p;
    struct arena_mark mark = arena_mark(c->scratch);
    struct touched t = {.reads = ARENA_ARRAY(c->scratch, bool, p->buffers.n),
                        .writes = ARENA_ARRAY(c->scratch, bool, p->buffers.n)};
    const struct plan_launch *first = &p->launches.at[from];
    uint32_t n = 1;
    list[0] = from;
    note(&t, first);
    for (uint32_t k = from + 1; k < p->launches.n && n < JOIN_MAX; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        if (gone[k]) continue;
        if (in_the_way(&t, l)) break;
        if (!can_join(p, l) || !alike(first, l)) continue;
        list[n++] = k;
        note(&t, l);
    }
    arena_rewind(c->scratch, mark);
    return n;
}

void join_optimizers(struct cg *c) {
    struct plan *p = c->p;
    uint32_t *list = ARENA_ARRAY(c->scratch, uint32_t, JOIN_MAX), kept = 0;
    bool *done = ARENA_ARRAY(c->scratch, bool, p->launches.n);
    bool *gone = ARENA_ARRAY(c->scratch, bool, p->launches.n);
    for (uint32_t k = 0; k < p->launches.n; k++) {
        if (done[k] || !can_join(p, &p->launches.at[k])) continue;
        uint32_t n = gather(c, k, gone, list);
        if (n == 1) continue;
        p->launches.at[list[n - 1]] = joined(c, list, n);
        for (uint32_t j = 0; j < n; j++) done[list[j]] = true, gone[list[j]] = j + 1 < n;
    }
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (!gone[k]) p->launches.at[kept++] = p->launches.at[k];
    p->launches.n = kept;
}
