// SPDX-License-Identifier: Apache-2.0
/* write.c - from emitted instructions to a launch: stores, the final order of axes, merging of axes
 * that every view steps through evenly, spans and modes. Also copies and fills, the groups without
 * members. */
#include "codegen/internal.h"
#include <math.h>

/* ---- stores -------------------------------------------------------------------------------- */
static enum fit add_store(struct emit *e, int code, int32_t reg, const struct map_to *m,
                          const struct plan_view *dest, uint32_t single) {
    struct map_to at;
    enum fit f = space_remap(&e->space, m, dest->dims, dest->rank, dest->strides, dest->offset, &at,
                             &e->want);
    if (f != FIT_OK) return f;
    struct out_slot o = {.reg = reg, .code = code, .single = single};
    o.view = (struct plan_view){.buffer = dest->buffer, .dtype = dest->dtype, .offset = at.off};
    for (int k = 0; k < e->space.n; k++) o.view.strides[k] = at.s[k];
    vec_push(e->c->scratch, &e->out, o);
    return FIT_OK;
}

static enum fit store_register(struct emit *e, int code, int32_t reg, const struct map_to *m,
                               val_id v, uint32_t single) {
    struct cg *c = e->c;
    struct plan_view dest = result_view(c, v);
    enum fit f = add_store(e, code, reg, m, &dest, single);
    if (f != FIT_NO) return f;
    struct late_copy late = {.to = dest};
    late.from = buffer_view(c, buffer_add(c, BUF_TEMP, USE_ACTIVATIONS, val_type(c->g, v)));
    vec_push(c->scratch, &e->late, late);
    return add_store(e, code, reg, m, &late.from, single);
}

static enum fit store_value(struct emit *e, val_id v) {
    for (uint32_t k = 0; k < e->cols.n; k++)
        if (e->cols.at[k].value == v.i) {
            struct map_to m = space_col_map(&e->space);
            return store_register(e, e->cols.at[k].code, e->cols.at[k].reg, &m, v, 0);
        }
    const struct space *sp = &e->space;
    int64_t count = type_count(val_type(e->c->g, v));
    bool whole = count == sp->count, part = !whole && count == space_parts(sp);
    if (part && count == space_rows(sp)) part = false;
    struct map_to m = whole ? space_identity(sp) : part ? space_part_map(sp) : space_row_map(sp);
    uint32_t single = 0;
    for (int k = 0; k < sp->n && !whole; k++)
        if (part ? sp->part[k] : sp->row[k]) single |= 1u << k;
    for (uint32_t k = 0; k < e->memo.n; k++)
        if (e->memo.at[k].value == v.i && map_equal(sp, &e->memo.at[k].map, &m))
            return store_register(e, INSTR_STORE, e->memo.at[k].reg, &m, v, single);
    return FIT_NO;
}

static enum fit store_members(struct emit *e, const uint32_t *nodes, uint32_t n) {
    struct cg *c = e->c;
    for (uint32_t k = 0; k < n; k++)
        for (int j = 0; j < graph_node(c->g, (node_id){nodes[k]})->nout; j++) {
            val_id v = node_out(c->g, (node_id){nodes[k]}, j);
            if (!c->vals[v.i].stored) continue;
            enum fit f = store_value(e, v);
            if (f != FIT_OK) return f;
        }
    return FIT_OK;
}

/* ---- axes ---------------------------------------------------------------------------------- */
struct axes {
    int n, inner;
    int64_t ext[RANK_MAX];
    int from[RANK_MAX]; /* the innermost axis of the space that it is made of; -1: added, size 1 */
};

static bool even(const struct plan_view *v, int outer, int inner, int64_t ext) {
    return v->strides[outer] == v->strides[inner] * ext;
}

static bool can_merge(const struct emit *e, int outer, int inner) {
    int64_t ext = e->space.ext[inner];
    for (uint32_t k = 0; k < e->in.n; k++)
        if (!even(&e->in.at[k].view, outer, inner, ext)) return false;
    for (uint32_t k = 0; k < e->out.n; k++)
        if (!even(&e->out.at[k].view, outer, inner, ext)) return false;
    for (uint32_t k = 0; k < e->code.n; k++)
        if (e->code.at[k].code == INSTR_IOTA &&
            (e->code.at[k].axis == outer || e->code.at[k].axis == inner))
            return false;
    return true;
}

static void push_axis(const struct emit *e, struct axes *x, int k, bool may_merge) {
    if (may_merge && x->n > 0 && can_merge(e, x->from[x->n - 1], k)) {
        x->ext[x->n - 1] *= e->space.ext[k];
        x->from[x->n - 1] = k;
        return;
    }
    x->ext[x->n] = e->space.ext[k];
    x->from[x->n++] = k;
}

static struct axes order_axes(const struct emit *e) {
    const struct space *sp = &e->space;
    struct axes x = {0};
    for (int k = 0; k < sp->n; k++)
        if (!sp->has_row || !sp->row[k]) push_axis(e, &x, k, true);
    int outer = x.n;
    if (sp->has_row)
        for (int k = 0; k < sp->n; k++)
            if (sp->row[k]) push_axis(e, &x, k, x.n > outer);
    x.inner = sp->has_row ? x.n - outer : 1;
    if (x.n == 0 || x.inner == 0) {
        x.ext[x.n] = 1;
        x.from[x.n++] = -1;
        x.inner = 1;
    }
    return x;
}

static struct plan_view final_view(const struct plan_view *v, const struct axes *x, int first) {
    struct plan_view r = *v;
    r.rank = x->n - first;
    for (int k = first; k < x->n; k++) {
        r.dims[k - first] = x->ext[k];
        r.strides[k - first] = x->from[k] >= 0 ? v->strides[x->from[k]] : 0;
    }
    for (int k = r.rank; k < RANK_MAX; k++) r.dims[k] = r.strides[k] = 0;
    return r;
}

/* Bytes that a view touches: repeats count once. */
static double touched(const struct plan_view *v) {
    double n = (double)dtype_size(v->dtype);
    for (int k = 0; k < v->rank; k++)
        if (v->strides[k] != 0) n *= (double)v->dims[k];
    return n;
}

static void write_code(struct emit *e, struct plan_group *g, const struct axes *x) {
    struct plan *p = e->c->p;
    uint32_t inner = 0;
    int axis_of[RANK_MAX] = {0};
    for (int k = 0; k < x->n; k++)
        if (x->from[k] >= 0) axis_of[x->from[k]] = k;
    if (e->space.has_row) {
        for (int k = 0; k < e->space.n; k++)
            if (e->space.row[k]) inner |= 1u << k;
    } else if (x->from[x->n - 1] >= 0) {
        /* All axes merged into the last one. */
        int first = x->n > 1 ? x->from[x->n - 2] + 1 : 0;
        for (int k = first; k <= x->from[x->n - 1]; k++) inner |= 1u << k;
    }
    for (uint32_t k = 0; k < e->code.n; k++) {
        struct group_instr i = e->code.at[k];
        i.span = e->moves.at[k] & inner ? SPAN_ALL : SPAN_ROW;
        if (i.code == INSTR_IOTA) i.axis = axis_of[i.axis];
        vec_push(&p->arena, &g->code, i);
    }
    for (uint32_t k = 0; k < e->out.n; k++) {
        const struct out_slot *o = &e->out.at[k];
        struct group_instr i = {.code = (uint16_t)o->code,
                                .a = o->reg,
                                .b = -1,
                                .c = -1,
                                .slot = (int32_t)k,
                                .axis = -1};
        i.dtype = e->code.at[o->reg].dtype;
        i.span = g->code.at[o->reg].span;
        vec_push(&p->arena, &g->code, i);
    }
}

static bool feeds_row(const struct emit *e, const struct plan_group *g, bool *reduces) {
    bool *dep = ARENA_ARRAY(e->c->scratch, bool, g->code.n);
    bool found = false;
    *reduces = false;
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        if (i->a >= 0) dep[k] |= dep[i->a];
        if (i->b >= 0) dep[k] |= dep[i->b];
        if (i->c >= 0) dep[k] |= dep[i->c];
        bool reduction = i->code >= INSTR_SUM && i->code <= INSTR_PROD;
        if (dep[k] && (i->span == SPAN_ALL || reduction)) found = true;
        if (instr_is_column(i->code) || instr_is_part(i->code)) found = true;
        if (reduction) dep[k] = *reduces = true;
        *reduces |= instr_is_part(i->code);
    }
    return found;
}

/* Instructions that nothing reads any more; loads stay, whose slots have places. */
static void drop_unread(struct emit *e) {
    bool *read = ARENA_ARRAY(e->c->scratch, bool, e->code.n + 1);
    int32_t *now = ARENA_ARRAY(e->c->scratch, int32_t, e->code.n + 1);
    uint32_t n = 0;
    for (uint32_t k = 0; k < e->out.n; k++) read[e->out.at[k].reg] = true;
    for (uint32_t k = e->code.n; k-- > 0;) {
        const struct group_instr *i = &e->code.at[k];
        const int32_t r[3] = {i->a, i->b, i->c};
        read[k] |= i->code == INSTR_LOAD || i->code == INSTR_RANDOM;
        for (int q = 0; q < 3; q++)
            if (read[k] && r[q] >= 0) read[r[q]] = true;
    }
    for (uint32_t k = 0; k < e->code.n; k++) {
        struct group_instr *i = &e->code.at[k];
        int32_t *const r[3] = {&i->a, &i->b, &i->c};
        if (!read[k]) continue;
        for (int q = 0; q < 3; q++)
            if (*r[q] >= 0) *r[q] = now[*r[q]];
        now[k] = (int32_t)n;
        e->moves.at[n] = e->moves.at[k];
        e->code.at[n++] = *i;
    }
    for (uint32_t k = 0; k < e->out.n; k++) e->out.at[k].reg = now[e->out.at[k].reg];
    e->code.n = e->moves.n = n;
}

static struct plan_launch *write_launch(struct emit *e, str_id origin) {
    drop_unread(e);
    struct cg *c = e->c;
    struct plan *p = c->p;
    struct axes x = order_axes(e);
    struct plan_group g = {.rank = x.n, .inner = x.inner};
    for (int k = 0; k < x.n; k++) g.dims[k] = x.ext[k];
    write_code(e, &g, &x);
    bool reduces, feeds = feeds_row(e, &g, &reduces);
    bool few = group_rows(&g) < FEW_ROWS && group_row_length(&g) >= LONG_ROW;
    g.mode = !reduces ? GROUP_MAP : few && !feeds ? GROUP_TAIL : GROUP_ROW;

    struct plan_view *in = ARENA_ARRAY(c->scratch, struct plan_view, e->in.n);
    struct plan_view *out = ARENA_ARRAY(c->scratch, struct plan_view, e->out.n);
    struct cost cost = {0};
    for (uint32_t k = 0; k < e->in.n; k++) {
        in[k] = final_view(&e->in.at[k].view, &x, 0);
        if (e->in.at[k].scalar) in[k].rank = 0;
        cost.bytes_read += touched(&in[k]);
    }
    for (uint32_t k = 0; k < e->out.n; k++) {
        const struct out_slot *o = &e->out.at[k];
        out[k] = final_view(&o->view, &x, instr_is_column((unsigned)o->code) ? x.n - x.inner : 0);
        for (int j = x.n - x.inner; o->code == INSTR_STORE && j < x.n; j++)
            if (x.from[j] >= 0 && o->single >> x.from[j] & 1) out[k].dims[j] = 1;
        cost.bytes_written += touched(&out[k]);
    }
    group_id id = {p->groups.n};
    vec_push(&p->arena, &p->groups, g);
    struct plan_launch *l = launch_add(c, LAUNCH_group, in, e->in.n, out, e->out.n, origin);
    l->group = id;
    l->cost = cost;
    return l;
}

/* ---- units, copies, fills ------------------------------------------------------------------- */
static enum status no_group(struct cg *c, const char *origin) {
    return diag_error(c->ctx, ST_UNSUPPORTED, origin,
                      "the shapes need more than %d axes in one loop nest", RANK_MAX);
}

/* Sums over nothing: the value that each stored result takes. */
static enum status emit_empty(struct cg *c, const struct unit *u, str_id origin) {
    for (uint32_t k = 0; k < u->nodes.n; k++) {
        node_id n = {u->nodes.at[k]};
        val_id v = node_out(c->g, n, 0);
        if (!c->vals[v.i].stored || type_count(val_type(c->g, v)) == 0) continue;
        enum op op = (enum op)graph_node(c->g, n)->op;
        double x = op == OP_reduce_prod ? 1 : op == OP_reduce_mean ? (double)NAN : 0;
        struct plan_view dest = result_view(c, v);
        TRY(group_fill(c, x, &dest, origin));
    }
    return ST_OK;
}

enum status group_emit(struct cg *c, uint32_t unit) {
    const struct unit *u = &c->units.at[unit];
    str_id origin = unit_origin(c, u->nodes.at, u->nodes.n);
    if (u->space.count == 0) return emit_empty(c, u, origin);
    struct emit e = {.c = c, .unit = unit, .space = u->space};
    for (;;) {
        emit_reset(&e);
        enum fit f = emit_members(&e, u->nodes.at, u->nodes.n);
        if (f == FIT_OK) f = store_members(&e, u->nodes.at, u->nodes.n);
        if (f == FIT_OK) break;
        if (f == FIT_AGAIN) continue;
        enum status s = ST_OK;
        if (f == FIT_NO && copy_stuck(c, e.stuck, &s)) continue;
        if (s != ST_OK) return s;
        if (f == FIT_NO || !space_split(&e.space, e.want))
            return no_group(c, node_origin(c->g, (node_id){u->nodes.at[0]}));
    }
    if (e.out.n == 0) return ST_OK;
    struct plan_launch *l = write_launch(&e, origin);
    for (uint32_t k = 0; k < u->nodes.n; k++)
        l->cost.flops += node_cost(c->g, (node_id){u->nodes.at[k]}).flops;
    for (uint32_t k = 0; k < e.late.n; k++)
        TRY(group_convert(c, &e.late.at[k].from, &e.late.at[k].to, origin));
    return ST_OK;
}

static int32_t as_register(struct emit *e, int32_t reg, enum dtype t) {
    enum dtype r = register_type(t);
    if (e->code.at[reg].dtype == r) return reg;
    int32_t x = emit_op(e, OP_cast, r, reg, -1, -1);
    e->code.at[x].imm_int = t;
    return x;
}

enum status group_convert(struct cg *c, const struct plan_view *from, const struct plan_view *dest,
                          str_id origin) {
    struct emit e = {.c = c};
    if (view_count(dest) == 0) return ST_OK;
    space_from_dims(&e.space, dest->dims, dest->rank);
    struct map_to m = space_identity(&e.space), at;
    struct in_slot slot = {.view = *from};
    CHECK(c->ctx, space_remap(&e.space, &m, from->dims, from->rank, from->strides, from->offset,
                              &at, &e.want) == FIT_OK);
    slot.view.offset = at.off;
    for (int k = 0; k < e.space.n; k++) slot.view.strides[k] = at.s[k];
    int32_t reg = emit_slot(&e, &slot);
    reg = as_register(&e, reg, dest->dtype);
    CHECK(c->ctx, add_store(&e, INSTR_STORE, reg, &m, dest, 0) == FIT_OK);
    write_launch(&e, origin);
    return ST_OK;
}

enum status group_copy(struct cg *c, val_id v, const struct plan_view *dest, str_id origin) {
    struct emit e = {.c = c};
    if (view_count(dest) == 0) return ST_OK;
    space_from_dims(&e.space, dest->dims, dest->rank);
    for (;;) {
        emit_reset(&e);
        struct map_to m = space_identity(&e.space);
        int32_t reg;
        enum fit f = emit_value(&e, v, &m, &reg);
        if (f == FIT_OK) reg = as_register(&e, reg, dest->dtype);
        if (f == FIT_OK) f = add_store(&e, INSTR_STORE, reg, &m, dest, 0);
        if (f == FIT_OK) break;
        enum status s = ST_OK;
        if (f == FIT_NO && e.stuck.i != v.i && copy_stuck(c, e.stuck, &s)) continue;
        if (s != ST_OK) return s;
        if (f == FIT_NO || !space_split(&e.space, e.want))
            return no_group(c, interned(&c->p->strings, origin));
    }
    write_launch(&e, origin);
    return ST_OK;
}

enum status group_fill(struct cg *c, double x, const struct plan_view *dest, str_id origin) {
    struct emit e = {.c = c};
    if (view_count(dest) == 0) return ST_OK;
    space_from_dims(&e.space, dest->dims, dest->rank);
    emit_reset(&e);
    struct map_to m = space_identity(&e.space);
    int32_t reg = emit_scalar(&e, dest->dtype, x, (int64_t)x);
    CHECK(c->ctx, add_store(&e, INSTR_STORE, reg, &m, dest, 0) == FIT_OK);
    write_launch(&e, origin);
    return ST_OK;
}
