// SPDX-License-Identifier: Apache-2.0
/* plan_verify_launch.c - what each launch kind demands: operand counts, layouts, element types, and
 * the form of group programs. */
#include "base/expand.h"
#include "ir/plan_verify.h"
#include "ir/plan_work.h"

/* Operand and result counts, and which operands (bits) need not be dense. */
struct kind_rule {
    uint8_t min_in, max_in, out;
    uint8_t loose_in, loose_out;
};
static const struct kind_rule rules[LAUNCH_COUNT] = {
    [LAUNCH_group] = {0, 255, 0, 255, 255},
    [LAUNCH_matmul] = {2, 6, 1, 63, 1},
    [LAUNCH_conv] = {2, 2, 1, 0, 0},
    [LAUNCH_conv_input_grad] = {2, 2, 1, 0, 0},
    [LAUNCH_conv_weight_grad] = {2, 2, 1, 0, 0},
    [LAUNCH_max_pool] = {1, 1, 2, 0, 0},
    [LAUNCH_argmax] = {1, 1, 1, 0, 0},
    [LAUNCH_cumsum] = {1, 1, 1, 0, 0},
    [LAUNCH_gather] = {2, 2, 1, 0, 0},
    [LAUNCH_gather_elements] = {2, 2, 1, 0, 0},
    [LAUNCH_scatter_rows] = {2, 2, 1, 0, 0},
    [LAUNCH_scatter_elements] = {3, 3, 1, 0, 0},
    [LAUNCH_attention] = {3, 4, 2, 0xf, 1},
    [LAUNCH_attention_grad] = {6, 7, 3, 0x6f, 7},
    [LAUNCH_cross_entropy] = {2, 2, 2, 1, 0},
    [LAUNCH_sum_squares] = {1, 255, 1, 0, 0},
    [LAUNCH_cast] = {1, 255, 0, 0, 0}, /* check_casts */
    [LAUNCH_sgd] = {5, 255, 0, 0, 0},  /* check_optimizer */
    [LAUNCH_adam] = {6, 255, 0, 0, 0},
    [LAUNCH_adam8] = {12, 255, 0, 0, 0}, /* check_adam8 */
};

/* ---- matrices ------------------------------------------------------------------------------ */
static bool matrix_ok(const struct plan_view *v) {
    int64_t m = v->dims[v->rank - 2], n = v->dims[v->rank - 1];
    int64_t sm = v->strides[v->rank - 2], sn = v->strides[v->rank - 1];
    if (m == 0 || n == 0) return true;
    bool rows = (n == 1 || sn == 1) && (m == 1 || sm >= (n > 1 ? n : 1));
    bool cols = (m == 1 || sm == 1) && (n == 1 || sn >= (m > 1 ? m : 1));
    return rows || cols;
}

static bool by_rows(const struct plan_view *v) {
    return v->dims[v->rank - 1] == 1 || v->strides[v->rank - 1] == 1;
}

static bool same_shape(const struct plan_view *a, const struct plan_view *b) {
    bool same = a->rank == b->rank && a->dtype == b->dtype;
    for (int d = 0; same && d < b->rank; d++) same = a->dims[d] == b->dims[d];
    return same;
}

/* A matrix whose lines start where the epilogues of a GPU's library want them. */
static bool aligned(const struct plan_view *v) {
    enum { ELEMS = 8 };
    bool ok = v->rank == 2 && v->offset % ELEMS == 0;
    for (int d = 0; ok && d < 2; d++)
        ok = v->dims[d] <= 1 || v->strides[d] == 1 || v->strides[d] % ELEMS == 0;
    return ok;
}

/* GELU of a product. */
static void check_gelu(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct plan_view *y = &l->out[0], *a = &l->in[0];
    bool low = y->dtype == DT_bf16 || y->dtype == DT_f16;
    if (!launch_int(l, ATTR_gelu, 0)) return;
    if (!low || y->dtype != a->dtype || !aligned(a) || !aligned(&l->in[1]) || !aligned(y) ||
        !by_rows(y) || y->dims[1] == 0 || y->dims[1] % 8 || a->dims[1] == 0 || a->dims[1] % 8)
        plan_fault(v, "launch %u: element type, size or layout of a matmul with gelu", k);
    if (launch_int(l, ATTR_residual, 0) || launch_int(l, ATTR_add, 0))
        plan_fault(v, "launch %u: gelu of a matmul that is added to something", k);
}

/* Bias and residual of a product. */
static void check_addends(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    uint32_t first = product_addend(l);
    const struct plan_view *y = &l->out[0], *add = &l->in[first];
    bool bias = launch_int(l, ATTR_bias, 0), residual = launch_int(l, ATTR_residual, 0);
    if (l->nin != first + bias + residual) {
        plan_fault(v, "launch %u: %u operands of a matmul", k, l->nin);
        return;
    }
    check_gelu(v, k, l);
    if (!bias && !residual) return;
    if (!by_rows(y) || l->in[0].dims[y->rank - 1] == 0)
        plan_fault(v, "launch %u: a result that is added to needs rows and K > 0", k);
    if (bias && (add->rank != 1 || add->dims[0] != y->dims[y->rank - 1] || !view_contiguous(add) ||
                 add->dtype != y->dtype))
        plan_fault(v, "launch %u: bias of a matmul", k);
    if (!residual) return;
    add += bias;
    if (!same_shape(add, y) || !matrix_ok(add) || !by_rows(add))
        plan_fault(v, "launch %u: residual of a matmul", k);
}

/* Lines of codes without gaps, the axis that is summed over inside. */
static bool codes_ok(const struct plan_view *v, int k) {
    enum { ALIGN = 16 };
    int other = 1 - k;
    return v->rank == 2 && v->strides[k] == 1 && v->strides[other] == v->dims[k] &&
           v->dims[k] % ALIGN == 0 && v->dims[other] % ALIGN == 0 && v->dims[k] > 0;
}

/* What is added to a product of codes and what it writes: lines that libraries can address. */
static bool lines_ok(const struct plan_view *v) {
    enum { ALIGN = 16 };
    int64_t unit = ALIGN / (int64_t)dtype_size(v->dtype);
    int far = v->strides[1] == 1 ? 0 : 1;
    return v->strides[1 - far] == 1 && v->strides[far] % unit == 0 && v->offset % unit == 0;
}

static void check_scaled(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct plan_view *a = &l->in[0], *b = &l->in[1], *y = &l->out[0];
    bool low = (a->dtype == DT_e4m3 || a->dtype == DT_e5m2) &&
               (b->dtype == DT_e4m3 || b->dtype == DT_e5m2) &&
               (a->dtype == DT_e4m3 || b->dtype == DT_e4m3);
    bool wide = y->dtype == DT_f32 || y->dtype == DT_bf16 || y->dtype == DT_f16;
    if (!low || !wide || l->nin < 4 || !codes_ok(a, 1) || !codes_ok(b, 0)) {
        plan_fault(v, "launch %u: operands of a matmul of codes", k);
        return;
    }
    const struct plan_view *sa = &l->in[2], *sb = &l->in[3];
    int64_t na = view_count(sa), nb = view_count(sb);
    bool rows = na == a->dims[0] && nb == b->dims[1];
    if (sa->dtype != DT_f32 || sb->dtype != DT_f32 || !view_contiguous(sa) ||
        !view_contiguous(sb) || !((na == 1 && nb == 1) || rows))
        plan_fault(v, "launch %u: scales of a matmul of codes", k);
    if (launch_int(l, ATTR_gelu, 0)) plan_fault(v, "launch %u: gelu of a matmul of codes", k);
    if (launch_int(l, ATTR_bias, 0) && y->dtype == DT_f32)
        plan_fault(v, "launch %u: f32 bias of a matmul of codes", k);
    const struct plan_view *r = launch_int(l, ATTR_residual, 0) ? &l->in[l->nin - 1] : y;
    const struct plan_view *bias = launch_int(l, ATTR_bias, 0) && l->nin > 4 ? &l->in[4] : y;
    if (!lines_ok(y) || r->rank != 2 || !lines_ok(r) || bias->offset % 8 || a->offset % 16 ||
        b->offset % 16 || (rows && (sa->offset % 4 || sb->offset % 4)))
        plan_fault(v, "launch %u: a matmul of codes has lines that are not 16-byte aligned", k);
}

static void check_matmul(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct plan_view *a = &l->in[0], *b = &l->in[1], *y = &l->out[0];
    int r = y->rank;
    if (r < 2 || a->rank != r || b->rank != r) {
        plan_fault(v, "launch %u: matmul of ranks %d, %d -> %d", k, a->rank, b->rank, r);
        return;
    }
    bool fits = a->dims[r - 2] == y->dims[r - 2] && b->dims[r - 1] == y->dims[r - 1] &&
                a->dims[r - 1] == b->dims[r - 2];
    for (int d = 0; d < r - 2; d++) fits &= a->dims[d] == y->dims[d] && b->dims[d] == y->dims[d];
    if (!fits) plan_fault(v, "launch %u: matmul shapes do not fit", k);
    if (!matrix_ok(a) || !matrix_ok(b) || !matrix_ok(y))
        plan_fault(v, "launch %u: a matmul operand has no matrix layout", k);
    enum dtype t = a->dtype;
    bool low = t == DT_bf16 || t == DT_f16;
    if (launch_int(l, ATTR_scaled, 0))
        check_scaled(v, k, l);
    else if ((!low && t != DT_f32 && t != DT_f64) || b->dtype != t ||
             (y->dtype != t && !(low && y->dtype == DT_f32)))
        plan_fault(v, "launch %u: matmul of %s, %s -> %s", k, dtype_name(t), dtype_name(b->dtype),
                   dtype_name(y->dtype));
    check_addends(v, k, l);
}

static bool last_axis_ok(const struct plan_view *v) {
    return v->rank == 0 || v->dims[v->rank - 1] <= 1 || v->strides[v->rank - 1] == 1 ||
           v->strides[v->rank - 1] == 0; /* a mask may be repeated along it */
}

/* Whether operand or result j may have strides; launches of many tensors have more than a mask has
 * bits, and all theirs are contiguous. */
static bool loose(unsigned mask, uint32_t j) {
    return j < 8 && (mask >> j & 1);
}

static void check_layer(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct kind_rule *r = &rules[l->kind];
    for (uint32_t j = 0; j < l->nin; j++) {
        bool ok = loose(r->loose_in, j) ? last_axis_ok(&l->in[j]) : view_contiguous(&l->in[j]);
        if (!ok) plan_fault(v, "launch %u (%s): layout of operand %u", k, launch_name(l->kind), j);
    }
    for (uint32_t j = 0; j < l->nout; j++) {
        bool ok = loose(r->loose_out, j) ? last_axis_ok(&l->out[j]) : view_contiguous(&l->out[j]);
        if (!ok) plan_fault(v, "launch %u (%s): layout of result %u", k, launch_name(l->kind), j);
    }
}

/* ---- optimizers ---------------------------------------------------------------------------- */
static bool small_float(enum dtype t) {
    return t == DT_f16 || t == DT_bf16;
}

static void check_optimizer(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    struct optimizer_form f = plan_optimizer(l);
    const char *name = launch_name(l->kind);
    if (f.count < 1 || f.count > l->nin / f.each || l->nout != f.count * f.kept ||
        (l->nin != f.lr + 2 && l->nin != f.lr + 3)) {
        plan_fault(v, "launch %u (%s): %u operands, %u results for %lld parameters", k, name,
                   l->nin, l->nout, (long long)launch_int(l, ATTR_count, 1));
        return;
    }
    for (uint32_t p = 0; p < f.count; p++) {
        const struct plan_view *in = &l->in[p * f.each], *out = &l->out[p * f.kept];
        enum dtype t = in[0].dtype;
        int64_t n = view_count(&in[0]);
        bool ok = (t == DT_f32 || t == DT_f64) && t == l->in[0].dtype;
        for (uint32_t j = 1; j < f.each; j++)
            ok &= view_count(&in[j]) == n &&
                  (in[j].dtype == t || (j == 1 && t == DT_f32 && small_float(in[j].dtype)));
        for (uint32_t j = 0; j < f.kept; j++) ok &= view_count(&out[j]) == n && out[j].dtype == t;
        if (!ok)
            plan_fault(v, "launch %u (%s): element types or sizes of parameter %u", k, name, p);
    }
    for (uint32_t j = f.lr; j < l->nin; j++)
        if (view_count(&l->in[j]) != 1) plan_fault(v, "launch %u (%s): operand %u", k, name, j);
}

/* A state of adam8: v[0] codes, v[1] scales, v[2] exponents. */
static bool small_state_ok(const struct plan_view *v, int64_t n, int64_t group) {
    bool codes = v->dtype == DT_e4m3 || v->dtype == DT_e5m2;
    int64_t groups = codes ? n / group + (n % group != 0) : 0;
    return (codes || v->dtype == DT_f32) && view_count(v) == n && v[1].dtype == DT_f32 &&
           view_count(&v[1]) == groups && v[2].dtype == DT_u8 && view_count(&v[2]) == groups;
}

static void check_adam8(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    struct optimizer_form f = plan_optimizer(l);
    int64_t group = launch_int(l, ATTR_group, 0);
    if (f.count < 1 || f.count > l->nin / f.each || l->nout != f.count * f.kept ||
        (l->nin != f.factor && l->nin != f.factor + 1) ||
        (group != 32 && group != 64 && group != 128 && group != 256)) {
        plan_fault(v, "launch %u (adam8): %u operands, %u results for %lld parameters", k, l->nin,
                   l->nout, (long long)launch_int(l, ATTR_count, 1));
        return;
    }
    for (uint32_t p = 0; p < f.count; p++) {
        const struct plan_view *in = &l->in[p * f.each], *out = &l->out[p * f.kept];
        int64_t n = view_count(&in[0]);
        bool ok = in[0].dtype == DT_f32 && view_count(&in[1]) == n &&
                  (in[1].dtype == DT_f32 || small_float(in[1].dtype)) && out[0].dtype == DT_f32 &&
                  view_count(&out[0]) == n && small_state_ok(&in[2], n, group) &&
                  small_state_ok(&in[5], n, group);
        for (uint32_t j = 1; j < f.kept; j++)
            ok &= out[j].dtype == in[j + 1].dtype && view_count(&out[j]) == view_count(&in[j + 1]);
        ok &= in[2].dtype == l->in[2].dtype && in[5].dtype == l->in[5].dtype;
        if (!ok) plan_fault(v, "launch %u (adam8): element types or sizes of parameter %u", k, p);
    }
    for (uint32_t j = f.lr; j < l->nin; j++) {
        bool table = j == f.lr + 2 || j == f.lr + 3;
        if (view_count(&l->in[j]) != (table ? EXPAND_FLOATS : 1) ||
            (table && l->in[j].dtype != DT_f32))
            plan_fault(v, "launch %u (adam8): operand %u", k, j);
    }
}

static void check_sum_squares(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    bool ok = l->out[0].dtype == DT_f32 && view_count(&l->out[0]) == 1;
    for (uint32_t j = 0; j < l->nin; j++) ok &= dtype_is_float(l->in[j].dtype);
    if (!ok) plan_fault(v, "launch %u (sum_squares): element types or the result's size", k);
}

static void check_casts(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    bool ok = l->nin == l->nout;
    for (uint32_t j = 0; ok && j < l->nin; j++)
        ok = l->in[j].dtype == DT_f32 && small_float(l->out[j].dtype) &&
             l->out[j].dtype == l->out[0].dtype && view_count(&l->in[j]) == view_count(&l->out[j]);
    if (!ok) plan_fault(v, "launch %u (cast): element types, sizes or number of results", k);
}

/* ---- groups -------------------------------------------------------------------------------- */
static bool same_dims(const struct plan_view *v, const int64_t *dims, int rank) {
    if (v->rank != rank) return false;
    for (int d = 0; d < rank; d++)
        if (v->dims[d] != dims[d]) return false;
    return true;
}

static bool row_window(const struct plan_view *v, const struct plan_group *g) {
    if (v->rank != g->rank) return false;
    for (int d = 0; d < g->rank; d++) {
        bool inner = d >= g->rank - g->inner;
        if (v->dims[d] != (inner ? 1 : g->dims[d]) || (inner && v->strides[d] != 0)) return false;
    }
    return true;
}

/* A view of one number for each part of a row: how many neighbours a part has; 0: no such view. */
static int64_t part_window(const struct plan_view *v, const struct plan_group *g) {
    int64_t n = 1;
    int d = g->rank - 1;
    if (v->rank != g->rank) return 0;
    for (; d >= g->rank - g->inner && v->dims[d] == 1 && v->strides[d] == 0; d--) n *= g->dims[d];
    for (; d >= 0; d--)
        if (v->dims[d] != g->dims[d]) return 0;
    return n;
}

/* What group_constant_runs does not know by itself. */
static int64_t own_run(const struct plan_launch *l, const struct plan_group *g,
                       const struct group_instr *i) {
    int64_t n = 1;
    int first = g->rank - g->inner;
    if (i->code == INSTR_RANDOM) return i->span == SPAN_ROW ? 0 : 1;
    for (int d = g->rank - 1; d >= first; n *= g->dims[d], d--) {
        if (i->code == INSTR_IOTA ? d == i->axis : l->in[i->slot].strides[d] != 0) return n;
    }
    return 0;
}

static const char *check_parts(struct plan_check *v, const struct plan_launch *l,
                               const struct plan_group *g) {
    int64_t *runs = ARENA_ARRAY(v->scratch, int64_t, g->code.n), length = group_row_length(g);
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        if (i->code == INSTR_LOAD || i->code == INSTR_IOTA || i->code == INSTR_RANDOM)
            runs[k] = own_run(l, g, i);
        if (!instr_is_part(i->code)) continue;
        int64_t n = i->imm_int;
        if (g->mode != GROUP_ROW || n < PART_LENGTH_MIN || n > PART_LENGTH_MAX ||
            (n & (n - 1)) != 0 || length % n != 0)
            return "maximum of a part of a row";
    }
    group_constant_runs(g, runs);
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        if (i->code != INSTR_STORE || same_dims(&l->out[i->slot], g->dims, g->rank)) continue;
        int64_t window = part_window(&l->out[i->slot], g);
        if (window > 0 && runs[i->a] % window != 0) return "span of a store";
    }
    return NULL;
}

static const char *check_slot(const struct plan_launch *l, const struct plan_group *g,
                              const struct group_instr *i) {
    bool load = i->code == INSTR_LOAD || i->code == INSTR_RANDOM;
    if (i->slot < 0 || (uint32_t)i->slot >= (load ? l->nin : l->nout)) return "slot";
    const struct plan_view *v = load ? &l->in[i->slot] : &l->out[i->slot];
    switch (i->code) {
    case INSTR_LOAD:
        if (!same_dims(v, g->dims, g->rank)) return "view of a load";
        for (int d = g->rank - g->inner; d < g->rank; d++)
            if (i->span == SPAN_ROW && v->dims[d] > 1 && v->strides[d] != 0)
                return "span of a load";
        return NULL;
    case INSTR_RANDOM: return v->rank == 0 && v->dtype == DT_i64 ? NULL : "seed";
    case INSTR_COLSUM:
    case INSTR_COLMAX:
        return same_dims(v, g->dims + g->rank - g->inner, g->inner) ? NULL : "view of a column sum";
    default:
        if (same_dims(v, g->dims, g->rank)) return NULL;
        if (!row_window(v, g)) return part_window(v, g) ? NULL : "view of a store";
        return g->code.at[i->a].span == SPAN_ROW ? NULL : "span of a store";
    }
}

static int operand_count(const struct group_instr *i) {
    if (i->code >= INSTR_COUNT) return -1;
    if (i->code < OP_COUNT) {
        const struct op_info *info = op_info((enum op)i->code);
        return i->code != OP_NONE && (info->traits & EW) ? info->max_in : -1;
    }
    switch (i->code) {
    case INSTR_LOAD:
    case INSTR_CONST:
    case INSTR_IOTA:
    case INSTR_RANDOM: return 0;
    default: return 1;
    }
}

static const char *check_instr(const struct plan_launch *l, const struct plan_group *g,
                               uint32_t k) {
    const struct group_instr *i = &g->code.at[k];
    int want = operand_count(i);
    int32_t r[3] = {i->a, i->b, i->c};
    bool all = false;
    if (want < 0) return "code";
    if (i->dtype != DT_f32 && i->dtype != DT_f64 && i->dtype != DT_i64 && i->dtype != DT_bool)
        return "register type";
    for (int q = 0; q < 3; q++) {
        if (q >= want ? r[q] != -1 : (r[q] < 0 || r[q] >= (int32_t)k)) return "operand";
        if (q >= want) continue;
        uint16_t code = g->code.at[r[q]].code;
        if (code == INSTR_STORE || instr_is_column(code)) return "operand";
        all |= g->code.at[r[q]].span == SPAN_ALL;
    }
    bool reduces = i->code >= INSTR_SUM && i->code <= INSTR_PROD;
    if (reduces && (!all || i->span != SPAN_ROW)) return "span of a reduction";
    if (instr_is_column(i->code) && !all) return "span of a column sum";
    if ((i->code < OP_COUNT && all && i->span != SPAN_ALL) ||
        (instr_is_part(i->code) && (!all || i->span != SPAN_ALL)))
        return "span";
    if (reduces && g->mode == GROUP_MAP) return "reduction in a MAP group";
    if (i->code == INSTR_COLMAX && g->code.at[i->a].dtype != DT_f32) return "register type";
    if (instr_is_column(i->code) && g->mode == GROUP_TAIL) return "column sum in a TAIL group";
    if (i->code == INSTR_IOTA && (i->axis < 0 || i->axis >= g->rank)) return "axis";
    bool slotted = i->code == INSTR_LOAD || i->code == INSTR_RANDOM || i->code == INSTR_STORE ||
                   instr_is_column(i->code);
    return slotted ? check_slot(l, g, i) : NULL;
}

/* In TAIL groups a row's elements do not depend on its reductions. */
static bool tail_ok(struct plan_check *v, const struct plan_group *g) {
    bool *dep = ARENA_ARRAY(v->scratch, bool, g->code.n);
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        int32_t r[3] = {i->a, i->b, i->c};
        for (int q = 0; q < 3; q++) dep[k] |= r[q] >= 0 && dep[r[q]];
        bool reduces = i->code >= INSTR_SUM && i->code <= INSTR_PROD;
        if (dep[k] && (reduces || i->span == SPAN_ALL)) return false;
        dep[k] |= reduces;
    }
    return true;
}

static void check_group(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct plan *p = v->p;
    if (l->group.i == 0 || l->group.i >= p->groups.n) {
        plan_fault(v, "launch %u: no group %u", k, l->group.i);
        return;
    }
    const struct plan_group *g = &p->groups.at[l->group.i];
    bool shape = g->rank >= 1 && g->rank <= RANK_MAX && g->inner >= 1 && g->inner <= g->rank;
    for (int d = 0; shape && d < g->rank; d++) shape = g->dims[d] > 0;
    if (!shape || g->mode > GROUP_TAIL) {
        plan_fault(v, "group %u: rank %d, inner %d", l->group.i, g->rank, g->inner);
        return;
    }
    uint32_t stores = 0;
    for (uint32_t i = 0; i < g->code.n; i++) {
        const char *wrong = check_instr(l, g, i);
        if (wrong) {
            plan_fault(v, "group %u, instruction %u: %s", l->group.i, i, wrong);
            return;
        }
        stores += g->code.at[i].code == INSTR_STORE || instr_is_column(g->code.at[i].code);
    }
    const char *wrong = check_parts(v, l, g);
    if (wrong) plan_fault(v, "group %u: %s", l->group.i, wrong);
    if (stores != l->nout) plan_fault(v, "launch %u: %u stores, %u results", k, stores, l->nout);
    if (g->mode == GROUP_TAIL && !tail_ok(v, g))
        plan_fault(v, "group %u: a TAIL group uses its reductions within the row", l->group.i);
}

void plan_check_launch(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct kind_rule *r = &rules[l->kind];
    if (l->nin < r->min_in || (r->max_in != 255 && l->nin > r->max_in) ||
        (r->out != 0 && l->nout != r->out) || (l->kind == LAUNCH_group && l->nout == 0)) {
        plan_fault(v, "launch %u (%s): %u operands, %u results", k, launch_name(l->kind), l->nin,
                   l->nout);
        return;
    }
    if (l->kind == LAUNCH_group)
        check_group(v, k, l);
    else if (l->kind == LAUNCH_matmul)
        check_matmul(v, k, l);
    else
        check_layer(v, k, l);
    if (l->kind == LAUNCH_adam || l->kind == LAUNCH_sgd) check_optimizer(v, k, l);
    if (l->kind == LAUNCH_adam8) check_adam8(v, k, l);
    if (l->kind == LAUNCH_sum_squares) check_sum_squares(v, k, l);
    if (l->kind == LAUNCH_cast) check_casts(v, k, l);
}
