// SPDX-License-Identifier: Apache-2.0
/* join.c - launches that are alike but for their tensors become one. Steps of an optimizer, in the
 * place of the last of them: those whose results go to temporaries (updates that depend on a
 * condition) stay alone, as joined, all of these would be needed at once. Casts of weights, in the
 * place of the first. */
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
    if (l->kind != LAUNCH_adam && l->kind != LAUNCH_sgd && l->kind != LAUNCH_adam8) return false;
    for (uint32_t j = 0; j < l->nout; j++) {
        if (p->buffers.at[l->out[j].buffer.i].kind == BUF_TEMP) return false;
    }
    return true;
}

static bool alike(const struct plan_launch *a, const struct plan_launch *b) {
    uint32_t lr = plan_optimizer(a).lr;
    if (a->kind != b->kind || a->nin != b->nin || a->in[0].dtype != b->in[0].dtype) return false;
    for (uint32_t k = 2; k < lr; k++)
        if (a->in[k].dtype != b->in[k].dtype) return false;
    for (uint32_t k = lr; k < a->nin; k++)
        if (!same_scalar(&a->in[k], &b->in[k])) return false;
    return same_attrs(a, b);
}

/* The kept tensors that a joined launch reads, every `each`th operand of n: the first few by name.
 */
static str_id tensor_names(struct cg *c, const struct plan_view *in, uint32_t n, uint32_t each) {
    enum { SHOWN = 3 };
    struct plan *p = c->p;
    struct buf b;
    uint32_t shown = 0;
    buf_init(&b, c->scratch);
    for (uint32_t k = 0; k < n && shown < SHOWN; k++) {
        const char *name = interned(&p->strings, p->buffers.at[in[k * each].buffer.i].name);
        if (!name[0]) continue;
        buf_printf(&b, "%s%s", shown ? "; " : "", name);
        shown++;
    }
    if (!shown) return (str_id){0};
    if (n > shown) buf_printf(&b, "; and %u more", n - shown);
    return intern(&p->strings, b.at);
}

static void add_cost(struct cost *sum, const struct cost *x) {
    sum->flops += x->flops;
    sum->bytes_read += x->bytes_read;
    sum->bytes_written += x->bytes_written;
}

/* ---- optimizers --------------------------------------------------------------------------------
 */
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
        add_cost(&l.cost, &one->cost);
    }
    memcpy(&l.in[n * f.each], &first->in[f.lr], scalars * sizeof *l.in);
    struct attr *at = ARENA_ARRAY(&p->arena, struct attr, (size_t)first->nattrs + 1);
    int used = 0, k = 0;
    for (; k < first->nattrs && first->attrs[k].key < ATTR_count; k++) at[used++] = first->attrs[k];
    at[used++] = (struct attr){.key = ATTR_count, .i = n};
    for (; k < first->nattrs; k++) at[used++] = first->attrs[k];
    l.attrs = at;
    l.nattrs = used;
    l.origin = tensor_names(c, l.in, n, f.each);
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

/* ---- casts -------------------------------------------------------------------------------------
 */
struct casts {
    struct cg *c;
    uint32_t *written; /* per buffer: the first launch that writes it */
    int64_t *live;     /* per launch: bytes of temps */
    int64_t peak;
    uint32_t *list, n; /* launches to be joined */
};

/* A kept f32 tensor as bf16 or f16, all of it, with nothing else done. */
static bool is_cast(const struct casts *s, uint32_t k) {
    const struct plan *p = s->c->p;
    const struct plan_launch *l = &p->launches.at[k];
    if (l->kind != LAUNCH_group || l->nin != 1 || l->nout != 1) return false;
    const struct plan_view *x = &l->in[0], *y = &l->out[0];
    const struct plan_buffer *from = &p->buffers.at[x->buffer.i], *to = &p->buffers.at[y->buffer.i];
    const struct plan_group *g = &p->groups.at[l->group.i];
    if (g->code.n != 3) return false;
    const struct group_instr *i = g->code.at;
    return i[0].code == INSTR_LOAD && i[1].code == OP_cast && i[1].dtype == DT_f32 &&
           i[1].imm_int == (int64_t)y->dtype && i[2].code == INSTR_STORE && i[2].a == 1 &&
           x->dtype == DT_f32 && (y->dtype == DT_bf16 || y->dtype == DT_f16) &&
           view_contiguous(x) && view_contiguous(y) &&
           (from->kind == BUF_PARAM || from->kind == BUF_STATE || from->kind == BUF_CONST) &&
           (to->kind == BUF_OUTPUT || (to->kind == BUF_TEMP && to->first == k && !to->alias.i)) &&
           view_count(y) * (int64_t)dtype_size(y->dtype) == to->bytes &&
           s->written[x->buffer.i] > k && s->written[y->buffer.i] == k;
}

static void survey(struct casts *s) {
    const struct plan *p = s->c->p;
    for (uint32_t b = 0; b < p->buffers.n; b++) s->written[b] = UINT32_MAX;
    for (uint32_t k = p->launches.n; k-- > 0;)
        for (uint32_t j = 0; j < p->launches.at[k].nout; j++)
            s->written[p->launches.at[k].out[j].buffer.i] = k;
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *x = &p->buffers.at[b];
        if (x->kind != BUF_TEMP || x->alias.i) continue;
        for (uint32_t k = x->first; k <= x->last && k < p->launches.n; k++) s->live[k] += x->bytes;
    }
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (s->live[k] > s->peak) s->peak = s->live[k];
}

/* The result of launch k, made by launch `front` already, leaves the step's peak where it is. */
static bool can_move(struct casts *s, uint32_t front, uint32_t k) {
    const struct plan *p = s->c->p;
    const struct plan_buffer *to = &p->buffers.at[p->launches.at[k].out[0].buffer.i];
    int64_t bytes = to->kind == BUF_TEMP ? to->bytes : 0;
    for (uint32_t i = front; i < k; i++)
        if (s->live[i] + bytes > s->peak) return false;
    for (uint32_t i = front; i < k; i++) s->live[i] += bytes;
    return true;
}

static struct plan_launch joined_casts(const struct casts *s) {
    struct plan *p = s->c->p;
    struct plan_launch l = {.kind = LAUNCH_cast, .nin = s->n, .nout = s->n};
    l.in = ARENA_ARRAY(&p->arena, struct plan_view, l.nin);
    l.out = ARENA_ARRAY(&p->arena, struct plan_view, l.nout);
    for (uint32_t k = 0; k < s->n; k++) {
        const struct plan_launch *one = &p->launches.at[s->list[k]];
        l.in[k] = one->in[0];
        l.out[k] = one->out[0];
        add_cost(&l.cost, &one->cost);
    }
    l.origin = tensor_names(s->c, l.in, l.nin, 1);
    return l;
}

/* Without the launches that are gone, and the groups that only they ran. */
static void remove_launches(struct cg *c, const bool *gone) {
    struct plan *p = c->p;
    uint32_t *group = ARENA_ARRAY(c->scratch, uint32_t, p->groups.n), n = 0, first = 0;
    for (uint32_t k = 0; k < p->launches.n; k++) {
        if (k == p->first_update) first = n;
        if (gone[k]) continue;
        p->launches.at[n++] = p->launches.at[k];
        group[p->launches.at[k].group.i] = 1;
    }
    p->first_update = p->first_update < p->launches.n ? first : n;
    p->launches.n = n;
    n = 1;
    for (uint32_t i = 1; i < p->groups.n; i++) {
        if (!group[i]) continue;
        p->groups.at[n] = p->groups.at[i];
        group[i] = n++;
    }
    p->groups.n = n;
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (p->launches.at[k].kind == LAUNCH_group)
            p->launches.at[k].group.i = group[p->launches.at[k].group.i];
}

void join_casts(struct cg *c) {
    static const enum dtype types[] = {DT_bf16, DT_f16};
    struct plan *p = c->p;
    bool *gone = ARENA_ARRAY(c->scratch, bool, p->launches.n + 1);
    struct casts s = {.c = c,
                      .written = ARENA_ARRAY(c->scratch, uint32_t, p->buffers.n),
                      .live = ARENA_ARRAY(c->scratch, int64_t, p->launches.n + 1),
                      .list = ARENA_ARRAY(c->scratch, uint32_t, JOIN_MAX)};
    survey(&s);
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        s.n = 0;
        for (uint32_t k = 0; k < p->launches.n && s.n < JOIN_MAX; k++)
            if (is_cast(&s, k) && p->launches.at[k].out[0].dtype == types[i] &&
                (s.n == 0 || can_move(&s, s.list[0], k)))
                s.list[s.n++] = k;
        if (s.n < 2) continue;
        p->launches.at[s.list[0]] = joined_casts(&s);
        for (uint32_t k = 1; k < s.n; k++) gone[s.list[k]] = true;
    }
    remove_launches(c, gone);
    find_lifetimes(p);
}
