// SPDX-License-Identifier: Apache-2.0
/* members.c - the instructions of ops that live in groups: sources that are computed, reductions
 * and the composites softmax, log_softmax, layer_norm and rms_norm. Elementwise ops are in group.c.
 */
#include "codegen/internal.h"

/* ---- computed sources ---------------------------------------------------------------------- */
static enum fit member_fused(struct emit *e, node_id n, const struct map_to *m) {
    struct cg *c = e->c;
    val_id v = node_out(c->g, n, 0);
    const struct type *t = val_type(c->g, v);
    int32_t reg;
    double x;
    int64_t ix;
    if (type_count(t) != e->space.count) return FIT_NO;
    switch ((enum op)graph_node(c->g, n)->op) {
    case OP_full:
        if (!scalar_const(c->g, v, &x, &ix)) return FIT_NO;
        reg = emit_scalar(e, t->dtype, x, ix);
        break;
    case OP_iota: {
        enum fit f = emit_iota(e, n, m, &reg);
        if (f != FIT_OK) return f;
        break;
    }
    case OP_random: {
        enum fit f = emit_random(e, n, &reg);
        if (f != FIT_OK) return f;
        break;
    }
    default: return FIT_NO;
    }
    emit_define(e, v, m, reg);
    return FIT_OK;
}
const struct lowering lower_fused = {.cls = CLASS_FUSED, .member = member_fused};

/* ---- rows ---------------------------------------------------------------------------------- */
/* Which axes lie in the dims marked in `in_row`, for an operand that the identity map reads. */
static enum fit mark_axes(struct emit *e, val_id v, const bool *in_row, bool *mark) {
    int64_t dims[RANK_MAX];
    int dim_of[RANK_MAX];
    int rank = type_dims(val_type(e->c->g, v), dims);
    struct map_to m = space_identity(&e->space);
    if (type_count(val_type(e->c->g, v)) != e->space.count) return FIT_NO;
    enum fit f = space_dims(&e->space, &m, dims, rank, dim_of, &e->want);
    if (f != FIT_OK) return f;
    for (int k = 0; k < e->space.n; k++) mark[k] = dim_of[k] >= 0 && in_row[dim_of[k]];
    return FIT_OK;
}

static bool rows_match(const struct space *sp, const bool *mark, bool want) {
    for (int k = 0; k < sp->n; k++)
        if ((sp->row[k] == mark[k]) != want) return false;
    return true;
}

static void set_rows(struct space *sp, const bool *mark, bool flip) {
    sp->has_row = true;
    for (int k = 0; k < sp->n; k++) sp->row[k] = mark[k] != flip;
}

static int64_t row_length(const struct space *sp) {
    int64_t n = 1;
    for (int k = 0; k < sp->n; k++)
        if (sp->row[k]) n *= sp->ext[k];
    return n;
}

/* Reduce a register along the rows; one that is constant along a row needs no loop. */
static int32_t reduce_row(struct emit *e, int code, enum dtype r, int32_t a) {
    if (emit_varies(e, a)) return emit_op(e, code, r, a, -1, -1);
    if (code == INSTR_MAX || code == INSTR_MIN) return a;
    int64_t n = row_length(&e->space);
    int32_t k = r == DT_i64 ? emit_scalar(e, DT_i64, 0, n) : emit_const(e, r, (double)n);
    return emit_op(e, code == INSTR_SUM ? OP_mul : OP_pow, r, a, k, -1);
}

/* Make the rows of the space the axes marked; those that it has may become parts of them. */
static enum fit want_rows(struct emit *e, const bool *mark) {
    struct space *sp = &e->space;
    if (!sp->has_row) set_rows(sp, mark, false);
    if (rows_match(sp, mark, true)) return FIT_OK;
    bool nests = fuses_as_gpu(e->c) && !sp->has_part && space_nest(sp, mark, sp->row);
    return nests ? FIT_AGAIN : FIT_NO;
}

/* Whether the axes marked are, or become, the parts of the rows. */
static bool are_parts(struct emit *e, const bool *mark) {
    struct space *sp = &e->space;
    if (!sp->has_row || rows_match(sp, mark, true) || !fuses_as_gpu(e->c)) return false;
    if (!sp->has_part) return space_nest(sp, sp->row, mark);
    for (int k = 0; k < sp->n; k++)
        if (sp->part[k] != mark[k]) return false;
    return true;
}

/* The largest or least number of each part. */
static void reduce_parts(struct emit *e, enum op op, enum dtype t, int32_t a, val_id y) {
    struct map_to parts = space_part_map(&e->space);
    if (emit_varies_in_part(e, a)) {
        int code = op == OP_reduce_max ? INSTR_PART_MAX : INSTR_PART_MIN;
        int64_t n = e->space.count / space_parts(&e->space);
        a = emit_op(e, code, register_type(t), emit_spread(e, a), -1, -1);
        e->code.at[a].imm_int = n;
    }
    emit_define(e, y, &parts, a);
}

/* ---- reductions ---------------------------------------------------------------------------- */
static int reduce_code(enum op op) {
    switch (op) {
    case OP_reduce_max: return INSTR_MAX;
    case OP_reduce_min: return INSTR_MIN;
    case OP_reduce_prod: return INSTR_PROD;
    default: return INSTR_SUM;
    }
}

static int32_t narrow(struct emit *e, enum dtype t, int32_t reg) {
    if (register_type(t) != DT_i64 || t == DT_i64) return reg;
    int32_t r = emit_op(e, OP_cast, DT_i64, reg, -1, -1);
    e->code.at[r].imm_int = t;
    return r;
}

/* Sums and maxima over leading axes are those of columns of rows made of the kept axes: memory is
 * read in order. */
static bool as_columns(const struct emit *e, enum op op, const bool *mark) {
    const struct space *sp = &e->space;
    if (op != OP_reduce_sum && op != OP_reduce_mean && op != OP_reduce_max) return false;
    if (sp->has_row) return row_length(sp) > 1 && rows_match(sp, mark, false);
    bool kept_seen = false;
    for (int k = 0; k < sp->n; k++) {
        if (!mark[k])
            kept_seen = true;
        else if (kept_seen)
            return false;
    }
    return kept_seen;
}

static enum fit member_reduce(struct emit *e, node_id n, const struct map_to *m) {
    struct graph *g = e->c->g;
    (void)m;
    enum op op = (enum op)graph_node(g, n)->op;
    val_id x = node_in(g, n, 0), y = node_out(g, n, 0);
    const struct type *t = val_type(g, x);
    enum dtype r = register_type(t->dtype);
    int naxes;
    const int64_t *axes = attr_ints(g, n, ATTR_axes, &naxes);
    bool in_row[RANK_MAX] = {false}, mark[RANK_MAX] = {false};
    int64_t length = 1;
    for (int k = 0; k < naxes; k++) {
        in_row[axes[k]] = true;
        length *= t->dims[axes[k]];
    }
    struct map_to all = space_identity(&e->space);
    int32_t a;
    enum fit f = mark_axes(e, x, in_row, mark);
    if (f == FIT_OK) f = emit_value(e, x, &all, &a);
    if (f != FIT_OK) return f;
    if (length == 1) { /* nothing to add up: the same elements */
        emit_define(e, y, &all, a);
        return FIT_OK;
    }
    bool mean = op == OP_reduce_mean, columns = as_columns(e, op, mark);
    if (op == OP_reduce_max && r != DT_f32) columns = false;
    if (columns) {
        if (!e->space.has_row) set_rows(&e->space, mark, true);
        if (mean) a = emit_op(e, OP_mul, r, a, emit_const(e, r, 1.0 / (double)length), -1);
        if (r == DT_i64) return FIT_NO;
        struct col_result col = {y.i, emit_spread(e, a),
                                 op == OP_reduce_max ? INSTR_COLMAX : INSTR_COLSUM};
        vec_push(e->c->scratch, &e->cols, col);
        return FIT_OK;
    }
    if ((op == OP_reduce_max || op == OP_reduce_min) && r == DT_f32 && are_parts(e, mark)) {
        reduce_parts(e, op, t->dtype, a, y);
        return FIT_OK;
    }
    f = want_rows(e, mark);
    if (f != FIT_OK) return f;
    int32_t s = reduce_row(e, reduce_code(op), r, a);
    if (mean && r != DT_i64)
        s = emit_op(e, OP_mul, r, s, emit_const(e, r, 1.0 / (double)length), -1);
    else if (mean)
        s = emit_op(e, OP_div, r, s, emit_scalar(e, DT_i64, 0, length), -1);
    struct map_to rows = space_row_map(&e->space);
    emit_define(e, y, &rows, narrow(e, t->dtype, s));
    return FIT_OK;
}
const struct lowering lower_reduce = {.cls = CLASS_FUSED, .member = member_reduce};

/* ---- softmax ------------------------------------------------------------------------------- */
static enum fit member_softmax(struct emit *e, node_id n, const struct map_to *m) {
    struct graph *g = e->c->g;
    (void)m;
    val_id x = node_in(g, n, 0), y = node_out(g, n, 0);
    enum dtype r = register_type(val_type(g, x)->dtype);
    bool in_row[RANK_MAX] = {false}, mark[RANK_MAX] = {false};
    in_row[attr_int(g, n, ATTR_axis)] = true;
    struct map_to all = space_identity(&e->space);
    int32_t a;
    enum fit f = mark_axes(e, x, in_row, mark);
    if (f == FIT_OK) f = emit_value(e, x, &all, &a);
    if (f == FIT_OK) f = want_rows(e, mark);
    if (f != FIT_OK) return f;
    a = emit_spread(e, a);
    int32_t d = a;
    int32_t top = reduce_row(e, INSTR_MAX, r, a);
    d = emit_op(e, OP_sub, r, a, top, -1);
    int32_t p = emit_op(e, OP_exp, r, d, -1, -1);
    int32_t sum = reduce_row(e, INSTR_SUM, r, p);
    bool logs = graph_node(g, n)->op == OP_log_softmax;
    int32_t out = logs ? emit_op(e, OP_sub, r, d, emit_op(e, OP_log, r, sum, -1, -1), -1)
                       : emit_op(e, OP_div, r, p, sum, -1);
    emit_define(e, y, &all, out);
    return FIT_OK;
}
const struct lowering lower_softmax = {.cls = CLASS_FUSED, .member = member_softmax};

/* ---- normalisation ------------------------------------------------------------------------- */
static enum fit member_norm(struct emit *e, node_id n, const struct map_to *m) {
    struct graph *g = e->c->g;
    (void)m;
    val_id x = node_in(g, n, 0), y = node_out(g, n, 0);
    const struct type *t = val_type(g, x);
    enum dtype r = register_type(t->dtype);
    bool in_row[RANK_MAX] = {false}, mark[RANK_MAX] = {false};
    int64_t length = 1;
    for (int i = (int)attr_int(g, n, ATTR_axis); i < t->rank; i++)
        in_row[i] = true, length *= t->dims[i];
    struct map_to all = space_identity(&e->space);
    int32_t a;
    enum fit f = mark_axes(e, x, in_row, mark);
    if (f == FIT_OK) f = emit_value(e, x, &all, &a);
    if (f == FIT_OK) f = want_rows(e, mark);
    if (f != FIT_OK) return f;
    struct map_to rows = space_row_map(&e->space);
    int32_t inv = emit_const(e, r, 1.0 / (double)length);
    int32_t eps = emit_const(e, r, attr_float(g, n, ATTR_eps));
    bool center = graph_node(g, n)->op == OP_layer_norm;
    if (center) {
        int32_t mean = emit_op(e, OP_mul, r, reduce_row(e, INSTR_SUM, r, a), inv, -1);
        emit_define(e, val_at(y, 1), &rows, mean);
        a = emit_op(e, OP_sub, r, a, mean, -1);
    }
    int32_t square = emit_op(e, OP_mul, r, a, a, -1);
    int32_t var = emit_op(e, OP_mul, r, reduce_row(e, INSTR_SUM, r, square), inv, -1);
    int32_t rstd = emit_op(e, OP_rsqrt, r, emit_op(e, OP_add, r, var, eps, -1), -1, -1);
    emit_define(e, val_at(y, center ? 2 : 1), &rows, rstd);
    emit_define(e, y, &all, emit_op(e, OP_mul, r, a, rstd, -1));
    return FIT_OK;
}
const struct lowering lower_norm = {.cls = CLASS_FUSED, .member = member_norm};
