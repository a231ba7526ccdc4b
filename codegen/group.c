// SPDX-License-Identifier: Apache-2.0
/* group.c - fused group programs: reads values through movement ops, adds the instructions of the
 * members and writes the launch. The same code decides by a dry run whether nodes can share a group
 * at all (fuse.c), so legality has one definition. */
#include "codegen/internal.h"
#include "ir/build.h"
#include <math.h>
#include <string.h>

enum { CODE_MAX = 64, VIEWS_MAX = 24, DEPTH_MAX = 48 };

enum dtype register_type(enum dtype t) {
    if (t == DT_f64 || t == DT_bool) return t;
    return dtype_is_float(t) ? DT_f32 : DT_i64;
}

/* ---- instructions -------------------------------------------------------------------------- */
static int32_t add_instr(struct emit *e, struct group_instr i, uint32_t moves) {
    vec_push(e->c->scratch, &e->code, i);
    vec_push(e->c->scratch, &e->moves, moves);
    return (int32_t)e->code.n - 1;
}

static struct group_instr instr(int code, enum dtype reg_type) {
    return (struct group_instr){.code = (uint16_t)code,
                                .dtype = (uint8_t)reg_type,
                                .a = -1,
                                .b = -1,
                                .c = -1,
                                .slot = -1,
                                .axis = -1};
}

static uint32_t row_mask(const struct emit *e) {
    uint32_t mask = 0;
    for (int k = 0; k < e->space.n; k++)
        if (e->space.row[k]) mask |= 1u << k;
    return mask;
}

static uint32_t part_mask(const struct emit *e) {
    uint32_t mask = 0;
    for (int k = 0; k < e->space.n; k++)
        if (e->space.part[k]) mask |= 1u << k;
    return mask;
}

/* Arithmetic without further attributes gives one number however often it is asked for. */
static bool repeats(const struct group_instr *i, const struct group_instr *old) {
    if (i->code >= OP_COUNT || i->code == OP_cast || i->code == OP_gelu || i->code == OP_mod)
        return false;
    return i->code == old->code && i->dtype == old->dtype && i->a == old->a && i->b == old->b &&
           i->c == old->c;
}

/* The magnitude of max(most x, -least x), which is the most of the magnitudes: what x is, or -1. */
static int32_t both_ends(const struct emit *e, int code, enum dtype t, int32_t a, int *how) {
    const struct group_instr *m = a >= 0 ? &e->code.at[a] : NULL;
    if (code != OP_abs || t != DT_f32 || m->code != OP_max) return -1;
    const struct group_instr *top = &e->code.at[m->a], *low = &e->code.at[m->b];
    if (low->code != OP_neg) return -1;
    low = &e->code.at[low->a];
    bool parts = top->code == INSTR_PART_MAX && low->code == INSTR_PART_MIN;
    bool rows = top->code == INSTR_MAX && low->code == INSTR_MIN;
    *how = top->code;
    return (parts || rows) && top->a == low->a && top->imm_int == low->imm_int ? top->a : -1;
}

int32_t emit_op(struct emit *e, int code, enum dtype reg_type, int32_t a, int32_t b, int32_t c) {
    int how;
    int32_t x = both_ends(e, code, reg_type, a, &how);
    if (x >= 0) {
        int64_t part = e->code.at[e->code.at[a].a].imm_int;
        x = emit_op(e, how, reg_type, emit_op(e, OP_abs, reg_type, x, -1, -1), -1, -1);
        e->code.at[x].imm_int = part;
        return x;
    }
    struct group_instr i = instr(code, reg_type);
    i.a = a, i.b = b, i.c = c;
    for (uint32_t k = 0; k < e->code.n; k++)
        if (repeats(&i, &e->code.at[k])) return (int32_t)k;
    uint32_t moves = 0;
    if (a >= 0) moves |= e->moves.at[a];
    if (b >= 0) moves |= e->moves.at[b];
    if (c >= 0) moves |= e->moves.at[c];
    if (code >= INSTR_SUM && code <= INSTR_PROD) moves &= ~row_mask(e);
    if (instr_is_part((unsigned)code)) moves &= ~part_mask(e);
    return add_instr(e, i, moves);
}

int32_t emit_const(struct emit *e, enum dtype reg_type, double x) {
    for (uint32_t k = 0; k < e->code.n; k++) {
        const struct group_instr *i = &e->code.at[k];
        if (i->code == INSTR_CONST && i->dtype == reg_type && i->imm_int == 0 &&
            memcmp(&i->imm, &x, sizeof x) == 0)
            return (int32_t)k;
    }
    struct group_instr i = instr(INSTR_CONST, reg_type);
    i.imm = x;
    return add_instr(e, i, 0);
}

void emit_define(struct emit *e, val_id v, const struct map_to *m, int32_t reg) {
    vec_push(e->c->scratch, &e->memo, (struct reg_memo){v.i, reg, *m});
}

bool emit_varies(const struct emit *e, int32_t a) {
    return (e->moves.at[a] & row_mask(e)) != 0;
}

bool emit_varies_in_part(const struct emit *e, int32_t a) {
    return (e->moves.at[a] & part_mask(e)) != 0;
}

/* A copy that has an element for each place in the row although its operand has not. */
int32_t emit_spread(struct emit *e, int32_t a) {
    if (emit_varies(e, a) || row_mask(e) == 0) return a;
    int32_t r = emit_op(e, OP_cast, (enum dtype)e->code.at[a].dtype, a, -1, -1);
    e->code.at[r].imm_int = e->code.at[a].dtype;
    e->moves.at[r] |= row_mask(e);
    return r;
}

/* ---- leaves -------------------------------------------------------------------------------- */
/* A const or full whose elements are one number; small consts only. */
bool scalar_const(const struct graph *g, val_id v, double *x, int64_t *ix) {
    enum op op = val_op(g, v);
    enum dtype t = val_type(g, v)->dtype;
    bool whole = register_type(t) == DT_i64;
    if (op == OP_full) {
        *x = attr_float(g, val_def(g, v), ATTR_value);
        uint64_t element = 0;
        dtype_store(t, &element, *x);
        *ix = dtype_load_int(t, &element);
        *x = whole ? (double)*ix : dtype_load(t, &element);
        return true;
    }
    if (op != OP_const) return false;
    const struct blob *b = graph_get_blob(g, attr_blob(g, val_def(g, v), ATTR_init));
    size_t size = dtype_size(t);
    if (!b->data || b->bytes == 0 || b->bytes > 64 * size) return false;
    for (size_t k = size; k < b->bytes; k += size)
        if (memcmp(b->data, (const char *)b->data + k, size) != 0) return false;
    *ix = whole ? dtype_load_int(t, b->data) : 0;
    *x = whole ? (double)*ix : dtype_load(t, b->data);
    return true;
}

int32_t emit_scalar(struct emit *e, enum dtype t, double x, int64_t ix) {
    enum dtype r = register_type(t);
    if (r != DT_i64) return emit_const(e, r, x);
    struct group_instr i = instr(INSTR_CONST, DT_i64);
    i.imm_int = ix;
    for (uint32_t k = 0; k < e->code.n; k++)
        if (e->code.at[k].code == INSTR_CONST && e->code.at[k].dtype == DT_i64 &&
            e->code.at[k].imm_int == ix && e->code.at[k].imm == 0)
            return (int32_t)k;
    return add_instr(e, i, 0);
}

/* start + step*(off + sum s*i): one instruction per axis that moves, exact for integers only. */
enum fit emit_iota(struct emit *e, node_id n, const struct map_to *m, int32_t *reg) {
    struct graph *g = e->c->g;
    enum dtype t = val_type(g, node_out(g, n, 0))->dtype, r = register_type(t);
    double start = attr_float(g, n, ATTR_start), step = attr_float(g, n, ATTR_step);
    double base = start + step * (double)m->off;
    int32_t sum = -1;
    for (int k = 0; k < e->space.n; k++) {
        if (m->s[k] == 0) continue;
        if (sum >= 0 && r != DT_i64) return FIT_NO;
        struct group_instr i = instr(INSTR_IOTA, r);
        i.axis = k, i.imm = sum < 0 ? base : 0, i.imm2 = step * (double)m->s[k];
        int32_t x = add_instr(e, i, 1u << k);
        sum = sum < 0 ? x : emit_op(e, OP_add, r, sum, x, -1);
    }
    *reg = sum >= 0 ? sum : emit_scalar(e, t, base, dtype_load_int(DT_f64, &base));
    return FIT_OK;
}

/* The counter is the element index in the iteration space, so only the identity map will do. */
enum fit emit_random(struct emit *e, node_id n, int32_t *reg) {
    struct cg *c = e->c;
    val_id seed = node_in(c->g, n, 0);
    struct in_slot slot = {.scalar = true, .view = {.dtype = DT_i64}};
    if (!e->dry) {
        struct plan_view v;
        place_value(c, view_base(c, seed));
        if (!view_of(c, seed, &v)) return FIT_NO;
        slot.view.buffer = v.buffer;
        slot.view.offset = v.offset;
    }
    e->ordered = true;
    struct group_instr i =
        instr(INSTR_RANDOM, register_type(val_type(c->g, node_out(c->g, n, 0))->dtype));
    i.slot = (int32_t)e->in.n;
    i.imm_int = attr_int(c->g, n, ATTR_stream);
    vec_push(c->scratch, &e->in, slot);
    *reg = add_instr(e, i, e->space.n ? (1u << e->space.n) - 1 : 0);
    return FIT_OK;
}

int32_t emit_slot(struct emit *e, const struct in_slot *slot) {
    uint32_t moves = 0;
    for (int k = 0; k < e->space.n; k++)
        if (slot->view.strides[k] != 0) moves |= 1u << k;
    struct group_instr i = instr(INSTR_LOAD, register_type(slot->view.dtype));
    i.slot = (int32_t)e->in.n;
    vec_push(e->c->scratch, &e->in, *slot);
    return add_instr(e, i, moves);
}

static enum fit emit_load(struct emit *e, val_id v, const struct map_to *m, int32_t *reg) {
    struct cg *c = e->c;
    const struct type *t = val_type(c->g, v);
    struct in_slot slot = {.view = {.dtype = t->dtype}};
    struct map_to at = *m;
    int64_t dims[RANK_MAX];
    int rank = type_dims(t, dims);
    if (!e->dry) {
        place_value(c, v);
        const struct place *p = &c->vals[v.i].place;
        slot.view.buffer = p->buffer;
        enum fit f = space_remap(&e->space, m, dims, rank, p->strides, p->off, &at, &e->want);
        if (f != FIT_OK) return f;
    }
    slot.view.offset = at.off;
    for (int k = 0; k < e->space.n; k++) slot.view.strides[k] = at.s[k];
    *reg = emit_slot(e, &slot);
    return FIT_OK;
}

static enum fit emit_copy_load(struct emit *e, val_id v, const struct map_to *m, int32_t *reg) {
    struct in_slot slot = {.view = {.dtype = val_type(e->c->g, v)->dtype}};
    slot.view.buffer = e->c->vals[v.i].copy;
    slot.view.offset = m->off;
    for (int k = 0; k < e->space.n; k++) slot.view.strides[k] = m->s[k];
    *reg = emit_slot(e, &slot);
    return FIT_OK;
}

/* ---- values -------------------------------------------------------------------------------- */
enum fit emit_ew(struct emit *e, node_id n, const struct map_to *m, int32_t *reg) {
    struct graph *g = e->c->g;
    const struct node *node = graph_node(g, n);
    const struct type *t = val_type(g, node_out(g, n, 0));
    int64_t dims[RANK_MAX], strides[RANK_MAX], odims[RANK_MAX];
    int rank = type_dims(t, dims);
    int32_t r[3] = {-1, -1, -1};
    for (int k = 0; k < node->nin; k++) {
        val_id v = node_in(g, n, k);
        int orank = type_dims(val_type(g, v), odims);
        int64_t trail[RANK_MAX];
        dims_strides(odims, orank, trail);
        for (int d = 0; d < rank; d++) {
            int od = d - (rank - orank);
            strides[d] = od < 0 || odims[od] == 1 ? 0 : trail[od];
        }
        struct map_to om;
        enum fit f = space_remap(&e->space, m, dims, rank, strides, 0, &om, &e->want);
        if (f == FIT_OK) f = emit_value(e, v, &om, &r[k]);
        if (f != FIT_OK) return f;
    }
    enum dtype rt = register_type(t->dtype);
    enum op op = (enum op)node->op;
    int32_t out = emit_op(e, op, rt, r[0], r[1], r[2]);
    struct group_instr *i = &e->code.at[out];
    if (op == OP_gelu) i->flag = attr_bool(g, n, ATTR_approximate);
    if (op == OP_mod) i->flag = attr_bool(g, n, ATTR_trunc);
    if (op == OP_cast)
        i->imm_int = t->dtype;
    else if (rt == DT_i64 && t->dtype != DT_i64 && op != OP_where && op != OP_max && op != OP_min) {
        out = emit_op(e, OP_cast, rt, out, -1, -1); /* narrow integers wrap */
        e->code.at[out].imm_int = t->dtype;
    }
    *reg = out;
    return FIT_OK;
}

/* Whether a normalised value is computed from its operand and statistics where it is read outside
 * its unit: these are mostly in memory anyway, so one tensor less is kept for the backward part. */
bool norm_again(const struct cg *c, val_id v) {
    enum op op = val_op(c->g, v);
    if (c->o->no_fusion || (op != OP_layer_norm && op != OP_rms_norm)) return false;
    return v.i == node_out(c->g, val_def(c->g, v), 0).i && !c->vals[v.i].need;
}

static enum fit emit_norm(struct emit *e, val_id v, const struct map_to *m, int32_t *reg) {
    struct graph *g = e->c->g;
    node_id n = val_def(g, v);
    int last = graph_node(g, n)->nout - 1;
    enum dtype r = register_type(val_type(g, v)->dtype);
    int64_t dims[RANK_MAX], sdims[RANK_MAX], strides[RANK_MAX];
    int rank = type_dims(val_type(g, v), dims);
    (void)type_dims(val_type(g, val_at(v, 1)), sdims);
    dims_strides(sdims, rank, strides);
    for (int d = 0; d < rank; d++)
        if (sdims[d] == 1) strides[d] = 0;
    struct map_to sm;
    int32_t x, stat;
    enum fit f = space_remap(&e->space, m, dims, rank, strides, 0, &sm, &e->want);
    if (f == FIT_OK) f = emit_value(e, node_in(g, n, 0), m, &x);
    for (int k = 1; k <= last && f == FIT_OK; k++) {
        f = emit_value(e, val_at(v, k), &sm, &stat);
        if (f == FIT_OK) x = emit_op(e, k < last ? OP_sub : OP_mul, r, x, stat, -1);
    }
    *reg = x;
    return f;
}

static enum fit emit_lazy(struct emit *e, val_id v, const struct map_to *m, int32_t *reg) {
    struct graph *g = e->c->g;
    node_id n = val_def(g, v);
    enum op op = val_op(g, v);
    if (op == OP_iota) return emit_iota(e, n, m, reg);
    if (op_info(op)->traits & EW) return emit_ew(e, n, m, reg);
    return FIT_NO;
}

enum fit emit_value(struct emit *e, val_id v, const struct map_to *m, int32_t *reg) {
    struct cg *c = e->c;
    for (uint32_t k = e->memo.n; k-- > 0;)
        if (e->memo.at[k].value == v.i && map_equal(&e->space, &e->memo.at[k].map, m)) {
            *reg = e->memo.at[k].reg;
            return FIT_OK;
        }
    if (e->depth > DEPTH_MAX || e->code.n > 4 * CODE_MAX) return FIT_NO;
    node_id n = val_def(c->g, v);
    const struct node_info *info = &c->nodes[n.i];
    enum fit f;
    double x;
    int64_t ix;
    if (info->unit != 0 && info->unit == e->unit)
        return FIT_NO; /* a member seen from the wrong place: only its neighbour knows the value */
    e->depth++;
    if (c->vals[v.i].use_copy) {
        f = emit_copy_load(e, v, m, reg);
    } else if (scalar_const(c->g, v, &x, &ix)) {
        *reg = emit_scalar(e, val_type(c->g, v)->dtype, x, ix);
        f = FIT_OK;
    } else if (node_class(c->g, n) == CLASS_VIEW) {
        val_id operand;
        struct map_to om;
        f = view_step(c, &e->space, v, m, &operand, &om, &e->want);
        if (f == FIT_OK) f = emit_value(e, operand, &om, reg);
    } else if (info->lazy) {
        f = emit_lazy(e, v, m, reg);
    } else if (norm_again(c, v)) {
        f = emit_norm(e, v, m, reg);
    } else {
        f = emit_load(e, v, m, reg);
    }
    e->depth--;
    if (f == FIT_OK) emit_define(e, v, m, *reg);
    if (f == FIT_NO && e->stuck.i == 0) e->stuck = v;
    return f;
}

/* ---- members ------------------------------------------------------------------------------- */
void emit_reset(struct emit *e) {
    e->code.n = e->moves.n = e->in.n = e->memo.n = e->cols.n = e->out.n = e->late.n = 0;
    e->depth = 0;
    e->stuck = VAL_NONE;
    e->ordered = false;
}

enum fit emit_members(struct emit *e, const uint32_t *nodes, uint32_t n) {
    struct graph *g = e->c->g;
    for (uint32_t k = 0; k < n; k++) {
        node_id id = {nodes[k]};
        val_id v = node_out(g, id, 0);
        const struct type *t = val_type(g, v);
        int64_t count = type_count(t);
        struct map_to m;
        if (count == e->space.count)
            m = space_identity(&e->space);
        else if (e->space.has_row && count == space_rows(&e->space))
            m = space_row_map(&e->space);
        else if (count == space_parts(&e->space))
            m = space_part_map(&e->space);
        else
            memset(&m, 0, sizeof m); /* a reduction decides by itself */
        enum fit f;
        const struct op_info *info = op_info((enum op)graph_node(g, id)->op);
        if (info->traits & EW) {
            bool rows = e->space.has_row && count == space_rows(&e->space);
            if (count != e->space.count && !rows && count != space_parts(&e->space)) return FIT_NO;
            int32_t reg;
            f = emit_ew(e, id, &m, &reg);
            if (f == FIT_OK) emit_define(e, v, &m, reg);
        } else {
            f = node_lowering(g, id)->member(e, id, &m);
        }
        if (f != FIT_OK) return f;
    }
    return FIT_OK;
}

/* Run `members` until no axis needs a split any more. */
static bool emit_all(struct emit *e, const uint32_t *nodes, uint32_t n) {
    for (int round = 0; round < 2 * RANK_MAX; round++) {
        emit_reset(e);
        enum fit f = emit_members(e, nodes, n);
        if (f == FIT_OK) return true;
        if (f == FIT_AGAIN) continue;
        if (f == FIT_NO || !space_split(&e->space, e->want)) return false;
    }
    return false;
}

static bool has_reduction(const struct emit *e) {
    for (uint32_t k = 0; k < e->code.n; k++) {
        unsigned code = e->code.at[k].code;
        if ((code >= INSTR_SUM && code <= INSTR_PROD) || instr_is_part(code)) return true;
    }
    return false;
}

/* Whether an element of a row (not only the row's own values) depends on a reduction. */
static bool feeds_row(const struct emit *e) {
    bool found = false;
    bool *dep = ARENA_ARRAY(e->c->scratch, bool, e->code.n);
    uint32_t row = row_mask(e);
    for (uint32_t k = 0; k < e->code.n; k++) {
        const struct group_instr *i = &e->code.at[k];
        int32_t r[3] = {i->a, i->b, i->c};
        for (int q = 0; q < 3; q++) dep[k] |= r[q] >= 0 && dep[r[q]];
        if ((dep[k] && (e->moves.at[k] & row)) || instr_is_part(i->code)) found = true;
        if (i->code >= INSTR_SUM && i->code <= INSTR_PROD) {
            found |= dep[k];
            dep[k] = true;
        }
    }
    return found;
}

static enum group_mode group_mode(const struct emit *e) {
    if (!has_reduction(e)) return GROUP_MAP;
    int64_t rows = space_rows(&e->space), length = rows > 0 ? e->space.count / rows : 0;
    bool few = rows < FEW_ROWS && length >= LONG_ROW;
    return few && e->cols.n == 0 && !feeds_row(e) ? GROUP_TAIL : GROUP_ROW;
}

static bool in_element_order(const struct space *sp) {
    bool seen = false;
    for (int k = 0; k < sp->n; k++) {
        if (sp->has_row && sp->row[k])
            seen = true;
        else if (seen)
            return false;
    }
    return true;
}

bool group_try(struct cg *c, uint32_t unit, struct space *sp, const uint32_t *nodes, uint32_t n) {
    struct arena_mark mark = arena_mark(c->scratch);
    struct emit e = {.c = c, .unit = unit, .space = *sp, .dry = true};
    bool ok = emit_all(&e, nodes, n);
    if (ok && n > 1) {
        ok = e.code.n <= CODE_MAX && e.in.n + n / 2 <= VIEWS_MAX;
        int64_t rows = space_rows(&e.space), length = rows > 0 ? e.space.count / rows : 0;
        /* Few long rows are only fast when they can be cut into pieces. */
        if (ok && has_reduction(&e) && rows < FEW_ROWS && length >= LONG_ROW)
            ok = group_mode(&e) == GROUP_TAIL;
    }
    if (ok && e.ordered) ok = in_element_order(&e.space);
    if (ok) *sp = e.space;
    arena_rewind(c->scratch, mark);
    return ok;
}
