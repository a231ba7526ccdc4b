// SPDX-License-Identifier: Apache-2.0
/* cuda_group_text.c - writes a fused group's program as CUDA C++ (body.cuh of group.cu): one
 * statement an instruction, elementwise ones from the `emit` column of ops.def. Register n is the
 * variable vn, an array over a thread's elements or one value; access n finds its place by rn(row)
 * and cn(col). Decides nothing: that is cuda_group.c. */
#include "codegen/cuda_group.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

struct text {
    struct group_gen *g;
    struct buf *out;
    bool *need; /* instructions to be written */
};

static const struct group_instr *at(const struct text *t, uint32_t k) {
    return &t->g->g->code.at[k];
}

static const char *register_type(const struct text *t, uint32_t k) {
    return cuda_register_type((enum dtype)at(t, k)->dtype);
}

/* ---- addresses ------------------------------------------------------------------------------- */
static bool moves(const struct group_gen *g, uint32_t k, bool inner) {
    int lo = inner ? g->border : 0, hi = inner ? g->y->rank : g->border;
    for (int d = lo; d < hi; d++)
        if (g->y->regs[k].strides[d] != 0) return true;
    return false;
}

/* "i / 64 % 8 * 512 + i % 64" as a function of the row or the column. */
static void address_function(struct text *t, uint32_t k, bool inner) {
    const struct group_gen *g = t->g;
    const int64_t *dims = g->y->dims, *strides = g->y->regs[k].strides;
    int lo = inner ? g->border : 0, hi = inner ? g->y->rank : g->border;
    int64_t reach = 0, step = 1;
    if (!moves(g, k, inner)) return;
    for (int d = lo; d < hi; d++)
        reach += (strides[d] < 0 ? -strides[d] : strides[d]) * (dims[d] - 1);
    const char *type = reach < INT32_MAX ? "int" : "i64";
    buf_printf(t->out, "DEV %s %c%u(IDX i) { return ", type, inner ? 'c' : 'r', k);
    bool first = true;
    for (int d = hi - 1; d >= lo; step *= dims[d], d--) {
        if (strides[d] == 0) continue;
        buf_printf(t->out, "%s(%s)(i", first ? "" : " + ", type);
        if (step > 1) buf_printf(t->out, " / %" PRId64, step);
        if (d > lo) buf_printf(t->out, " %% %" PRId64, dims[d]);
        buf_puts(t->out, ")");
        if (strides[d] != 1) buf_printf(t->out, " * %" PRId64, strides[d]);
        first = false;
    }
    buf_puts(t->out, "; }\n");
}

/* "r3(row) + c3(col)"; the column may be any expression. */
static void address(struct text *t, uint32_t k, const char *column) {
    bool row = moves(t->g, k, false), col = moves(t->g, k, true);
    if (row) buf_printf(t->out, "r%u(row)", k);
    if (row && col) buf_puts(t->out, " + ");
    if (col) buf_printf(t->out, "c%u(%s)", k, column);
    if (!row && !col) buf_puts(t->out, "0");
}

/* The last axis alone decides what neighbouring columns are. */
static bool last_fixed(const struct group_gen *g, uint32_t k) {
    return g->y->rank == g->border || g->y->regs[k].strides[g->y->rank - 1] == 0;
}

/* ---- expressions ----------------------------------------------------------------------------- */
/* A constant is written where it is used. */
static void value(struct text *t, int32_t r, const char *index) {
    const struct group_instr *i = at(t, (uint32_t)r);
    if (i->code != INSTR_CONST) {
        buf_printf(t->out, t->g->uniform[r] ? "v%d" : "v%d[%s]", r, index);
        return;
    }
    struct buf literal;
    buf_init(&literal, t->g->c->scratch);
    cuda_literal(&literal, (enum dtype)i->dtype, i->imm, i->imm_int);
    buf_printf(t->out, literal.at[0] == '-' ? "(%s)" : "%s", literal.at);
}

static void operand(struct text *t, int32_t r) {
    value(t, r, "k");
}

static void put_cast(struct text *t, const struct group_instr *i) {
    enum dtype to = (enum dtype)i->dtype, from = (enum dtype)at(t, (uint32_t)i->a)->dtype;
    enum dtype narrow = i->imm_int ? (enum dtype)i->imm_int : to;
    bool cut = to != DT_bool && narrow != to &&
               (to == DT_i64 ? dtype_class(narrow) == DTC_INT : to == DT_f32);
    if (narrow == DT_f64 || narrow == DT_f32) cut = false;
    if (cut) buf_printf(t->out, "narrow<%s>(", cuda_memory_type(narrow));
    if (from != to) buf_printf(t->out, "to_%s(", dtype_name(to));
    operand(t, i->a);
    if (from != to) buf_puts(t->out, ")");
    if (cut) buf_puts(t->out, ")");
}

/* Common exponents. */
static bool put_power(struct text *t, const struct group_instr *i) {
    const struct group_instr *e = at(t, (uint32_t)i->b);
    if (i->code != OP_pow || e->code != INSTR_CONST || i->dtype != DT_f32) return false;
    int times = e->imm == 2.0 ? 2 : e->imm == 3.0 ? 3 : 0;
    if (times == 0 && e->imm != -1.0) return false;
    if (times == 0) {
        buf_puts(t->out, "op_recip(");
        operand(t, i->a);
        buf_puts(t->out, ")");
    }
    for (int k = 0; k < times; k++) {
        if (k) buf_puts(t->out, " * ");
        operand(t, i->a);
    }
    return true;
}

/* The `emit` text with operands in place. Sums and products of integers wrap. */
static void put_elementwise(struct text *t, const struct group_instr *i) {
    const int32_t r[3] = {i->a, i->b, i->c};
    bool wraps = i->dtype == DT_i64 &&
                 (i->code == OP_add || i->code == OP_sub || i->code == OP_mul || i->code == OP_neg);
    if (i->code == OP_cast) {
        put_cast(t, i);
        return;
    }
    if (i->code == OP_pow && put_power(t, i)) return;
    if (wraps) buf_puts(t->out, "(i64)(");
    for (const char *s = op_info((enum op)i->code)->emit; *s; s++) {
        if (*s == '%' && s[1] >= '0' && s[1] <= '2') {
            if (wraps) buf_puts(t->out, "(u64)");
            operand(t, r[*++s - '0']);
        } else if (*s == '%' && s[1] == 'f') {
            buf_puts(t->out, i->flag ? "true" : "false");
            s++;
        } else {
            buf_put(t->out, s, 1);
        }
    }
    if (wraps) buf_puts(t->out, ")");
}

/* start + step * index; in whole numbers where they are exact. */
static void put_iota(struct text *t, uint32_t k, const char *column) {
    const struct group_instr *i = at(t, k);
    double reach = fabs(i->imm) + fabs(i->imm2) * (double)t->g->g->dims[i->axis];
    bool whole = floor(i->imm) == i->imm && floor(i->imm2) == i->imm2 && reach < 16777216.0;
    enum dtype reg = (enum dtype)i->dtype;
    if (whole) {
        buf_printf(t->out, "(%s)(%" PRId64 " + %" PRId64 " * (int)(", register_type(t, k),
                   (int64_t)i->imm, (int64_t)i->imm2);
    } else {
        buf_printf(t->out, "to_%s(", dtype_name(reg));
        cuda_literal(t->out, DT_f64, i->imm, 0);
        buf_puts(t->out, " + ");
        cuda_literal(t->out, DT_f64, i->imm2, 0);
        buf_puts(t->out, " * (double)(");
    }
    address(t, k, column);
    buf_puts(t->out, "))");
}

static void put_random(struct text *t, uint32_t k, const char *index) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "random_%s(%s, ", i->dtype == DT_f64 ? "f64" : "f32", index);
    buf_printf(t->out, "%" PRIu64 "ull, in%d[0])", (uint64_t)i->imm_int, i->slot);
}

/* ---- instructions -----------------------------------------------------------------------------
 */
static void put_uniform(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *column = t->g->form == FORM_MAP ? "COLUMN(0)" : "0";
    if (i->code == INSTR_CONST) return;
    buf_printf(t->out, "    const %s v%u = ", register_type(t, k), k);
    switch (i->code) {
    case INSTR_IOTA: put_iota(t, k, column); break;
    case INSTR_RANDOM: put_random(t, k, "row"); break;
    case INSTR_LOAD:
        buf_printf(t->out, "to_reg(in%d[", i->slot);
        address(t, k, column);
        buf_puts(t->out, "])");
        break;
    default: put_elementwise(t, i); break;
    }
    buf_puts(t->out, ";\n");
}

static void put_load(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "    %s v%u[E]INIT;\n    RUNS ", register_type(t, k), k);
    if (group_packed(t->g, k, t->g->vec)) {
        buf_printf(t->out, "load_pack<VEC>(v%u + AT, in%d + ", k, i->slot);
        address(t, k, "col");
        buf_puts(t->out, ");\n");
    } else if (last_fixed(t->g, k)) {
        buf_printf(t->out, "{\n        const %s x = to_reg(in%d[", register_type(t, k), i->slot);
        address(t, k, "col");
        buf_printf(t->out, "]);\n        RUN(k) v%u[AT + k] = x;\n    }\n", k);
    } else {
        buf_printf(t->out, "RUN(k) v%u[AT + k] = to_reg(in%d[", k, i->slot);
        address(t, k, "col + k");
        buf_puts(t->out, "]);\n");
    }
}

static void put_store(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *memory = cuda_memory_type(access_view(t->g, i)->dtype);
    enum dtype from = (enum dtype)at(t, (uint32_t)i->a)->dtype;
    enum dtype to = access_view(t->g, i)->dtype;
    enum dtype natural = to == DT_f64 || to == DT_bool ? to : dtype_is_float(to) ? DT_f32 : DT_i64;
    const char *reg = cuda_register_type(natural);
    const char *convert =
        natural == from ? "" : arena_printf(t->g->c->scratch, "to_%s", dtype_name(natural));
    if (t->g->row_store[k]) {
        buf_printf(t->out, "    if (lane == 0) out%d[", i->slot);
        address(t, k, "0");
        buf_printf(t->out, "] = store_as<%s>::from(%s(", memory, convert);
        value(t, i->a, "0");
        buf_puts(t->out, "));\n");
        return;
    }
    if (group_packed(t->g, k, t->g->vec)) {
        bool plain = !t->g->uniform[i->a] && natural == from;
        if (!plain) {
            buf_printf(t->out, "    %s w%u[E];\n    EACH(k) w%u[k] = %s(", reg, k, k, convert);
            operand(t, i->a);
            buf_puts(t->out, ");\n");
        }
        buf_printf(t->out, "    RUNS store_pack<VEC>(out%d + ", i->slot);
        address(t, k, "col");
        buf_printf(t->out, ", %c%u + AT);\n", plain ? 'v' : 'w', plain ? (uint32_t)i->a : k);
        return;
    }
    buf_printf(t->out, "    RUNS RUN(k) out%d[", i->slot);
    address(t, k, "col + k");
    buf_printf(t->out, "] = store_as<%s>::from(%s(", memory, convert);
    value(t, i->a, "AT + k");
    buf_puts(t->out, "));\n");
}

static void put_array(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *type = register_type(t, k);
    switch (i->code) {
    case INSTR_LOAD: put_load(t, k); return;
    case INSTR_STORE: put_store(t, k); return;
    case INSTR_IOTA:
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        put_iota(t, k, "COLUMN(k)");
        break;
    case INSTR_RANDOM:
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        put_random(t, k, "(u64)row * COLS + COLUMN(k)");
        break;
    default:
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        put_elementwise(t, i);
        break;
    }
    buf_puts(t->out, ";\n");
}

/* ---- reductions -------------------------------------------------------------------------------
 */
static const char *reduction_name(unsigned code) {
    switch (code) {
    case INSTR_SUM: return "sum_of";
    case INSTR_PROD: return "prod_of";
    case INSTR_MAX: return "max_of";
    default: return "min_of";
    }
}

/* Long sums and products are kept in f64. */
static const char *total_type(const struct text *t, uint32_t k) {
    enum dtype d = (enum dtype)at(t, k)->dtype;
    if (d != DT_f32) return cuda_register_type(d);
    if (t->g->form == FORM_TAIL || at(t, k)->code == INSTR_PROD) return "double";
    return t->g->form == FORM_LONG && at(t, k)->code == INSTR_SUM ? "double" : "float";
}

static void put_total(struct text *t, uint32_t k) {
    buf_printf(t->out, "    %s a%u = %s::none<%s>();\n", total_type(t, k), k,
               reduction_name(at(t, k)->code), total_type(t, k));
}

static void put_add(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "    RUNS RUN(k) a%u = %s::join(a%u, (%s)", k, reduction_name(i->code), k,
               total_type(t, k));
    value(t, i->a, "AT + k");
    buf_puts(t->out, ");\n");
}

static void put_result(struct text *t, uint32_t k) {
    buf_printf(t->out, "    const %s v%u = (%s)row_reduce<%s, LANES>(a%u);\n", register_type(t, k),
               k, register_type(t, k), reduction_name(at(t, k)->code), k);
}

/* ---- column sums ------------------------------------------------------------------------------
 */
static const char *column_type(const struct text *t, uint32_t k) {
    return register_type(t, (uint32_t)at(t, k)->a);
}

static void put_state(struct text *t) {
    const struct group_gen *g = t->g;
    buf_puts(t->out, "struct state {");
    for (uint32_t k = 0; k < g->n; k++)
        if (at(t, k)->code == INSTR_COLSUM) buf_printf(t->out, " %s s%u[E];", column_type(t, k), k);
    buf_puts(t->out, " };\n");
    if (g->form == FORM_MAP || !g->ncolsum) return;
    buf_puts(t->out, "DEV void clear(state &sums) {\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (at(t, k)->code == INSTR_COLSUM) buf_printf(t->out, "    EACH(k) sums.s%u[k] = 0;\n", k);
    buf_puts(t->out,
             "}\nDEV void put(const state &sums, char *workspace, IDX worker, IDX lane) {\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (at(t, k)->code == INSTR_COLSUM)
            buf_printf(t->out,
                       "    RUNS RUN(k) ((%s *)(workspace + %" PRId64
                       "))[(i64)worker * COLS + col + k] = sums.s%u[AT + k];\n",
                       column_type(t, k), g->partial[k], k);
    buf_puts(t->out, "}\n");
    if (g->form != FORM_COLUMNS) return;
    buf_puts(t->out, "DEV void join_warps(state &sums) {\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (at(t, k)->code == INSTR_COLSUM)
            buf_printf(t->out, "    warps_sum<WARPS, E>(sums.s%u);\n", k);
    buf_puts(t->out, "}\n");
}

/* Adds what the workers left, in order. */
static void put_columns(struct text *t) {
    buf_puts(t->out, "DEV void columns(PARAMS, IDX col) {\n");
    cuda_origin_line(t->g->c);
    for (uint32_t k = 0; k < t->g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (i->code != INSTR_COLSUM) continue;
        const char *type = column_type(t, k);
        enum dtype to = access_view(t->g, i)->dtype, reg = (enum dtype)at(t, (uint32_t)i->a)->dtype;
        buf_printf(t->out,
                   "    const %s t%u = slices_sum<SLICES, %s>((const %s *)(workspace + %" PRId64
                   ") + col, COLS, WORKERS, col < COLS);\n",
                   reg == DT_i64 ? "i64" : "double", k, reg == DT_i64 ? "i64" : "double", type,
                   t->g->partial[k]);
        enum dtype natural = to == DT_f64 ? to : dtype_is_float(to) ? DT_f32 : DT_i64;
        buf_printf(t->out, "    if (threadIdx.x < 32 && col < COLS) out%d[", i->slot);
        address(t, k, "col");
        buf_printf(t->out, "] = store_as<%s>::from(to_%s(t%u));\n", cuda_memory_type(to),
                   dtype_name(natural), k);
    }
    buf_puts(t->out, "}\n");
}

/* ---- what has to be written -------------------------------------------------------------------
 */
/* What register r is computed from: through reductions or up to them, arrays alone or all. */
enum marking { MARK_ALL, MARK_ARRAYS, MARK_RESULTS };
static void mark(struct text *t, int32_t r, enum marking how) {
    if (r < 0 || t->need[r] || (how == MARK_ARRAYS && t->g->uniform[r])) return;
    t->need[r] = true;
    const struct group_instr *i = at(t, (uint32_t)r);
    if (how == MARK_RESULTS && is_reduction(i->code)) return;
    mark(t, i->a, how), mark(t, i->b, how), mark(t, i->c, how);
}

static void mark_all(struct text *t) {
    for (uint32_t k = 0; k < t->g->n; k++)
        if (is_sink(at(t, k)->code)) mark(t, (int32_t)k, MARK_ALL);
}

static void put_row_stores(struct text *t) {
    bool any = false;
    for (uint32_t k = 0; k < t->g->n; k++) {
        if (!t->g->row_store[k]) continue;
        if (!any && t->g->form != FORM_TAIL && t->g->lanes > 1) /* others may still read there */
            buf_puts(t->out, "    row_sync<LANES>();\n");
        any = true;
        put_store(t, k);
    }
}

/* ---- one walk: MAP, ROW, COLUMNS ---------------------------------------------------------------
 */
/* All loads under way before the first exchange, unless they would fill the registers. */
static bool put_loads(struct text *t) {
    int64_t elems = 0;
    for (uint32_t k = 0; k < t->g->n; k++)
        if (t->need[k] && at(t, k)->code == INSTR_LOAD && !t->g->uniform[k])
            elems += t->g->vec * t->g->units * (at(t, k)->dtype == DT_f32 ? 1 : 2);
    if (elems > 64) return false;
    for (uint32_t k = 0; k < t->g->n; k++) {
        if (!t->need[k] || at(t, k)->code != INSTR_LOAD) continue;
        if (t->g->uniform[k])
            put_uniform(t, k);
        else
            put_load(t, k);
    }
    return true;
}

static void put_single(struct text *t) {
    buf_puts(t->out, "DEV void body(PARAMS, IDX row, IDX lane, state &sums) {\n");
    cuda_origin_line(t->g->c);
    mark_all(t);
    bool loaded = put_loads(t);
    for (uint32_t k = 0; k < t->g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (!t->need[k] || t->g->row_store[k] || (loaded && i->code == INSTR_LOAD)) continue;
        if (i->code == INSTR_COLSUM) {
            buf_printf(t->out, "    EACH(k) sums.s%u[k] += ", k);
            operand(t, i->a);
            buf_puts(t->out, ";\n");
        } else if (is_reduction(i->code)) {
            put_total(t, k);
            put_add(t, k);
            put_result(t, k);
        } else if (t->g->uniform[k] && i->code != INSTR_STORE) {
            put_uniform(t, k);
        } else {
            put_array(t, k);
        }
    }
    put_row_stores(t);
    buf_puts(t->out, "}\n");
}

/* ---- a walk for each stage: LONG, TAIL ---------------------------------------------------------
 */
static void put_column_add(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out,
               "    RUN(k) {\n        %s &p = ((%s *)(workspace + %" PRId64
               "))[(i64)(row / RPW) * COLS + col + k];\n        p = first ? ",
               column_type(t, k), column_type(t, k), t->g->partial[k]);
    operand(t, i->a);
    buf_puts(t->out, " : sum_of::join(p, ");
    operand(t, i->a);
    buf_puts(t->out, ");\n    }\n");
}

static void put_stage(struct text *t, uint32_t s, bool last, const char *range) {
    const struct group_gen *g = t->g;
    bool *all = t->need, *loop = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    bool any = false;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (all[k] && g->uniform[k] && !is_reduction(i->code) && !is_sink(i->code) &&
            g->stage[k] == s)
            put_uniform(t, k);
    }
    t->need = loop;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = at(t, k);
        bool reduces = is_reduction(i->code) && all[k] && g->stage[k] == s;
        bool sink = last && is_sink(i->code) && !g->row_store[k];
        if (!reduces && !sink) continue;
        any = loop[k] = true;
        mark(t, i->a, MARK_ARRAYS);
        if (reduces) put_total(t, k);
    }
    t->need = all;
    if (!any) return;
    buf_printf(t->out, "    STEPS(%s) {\n", range);
    for (uint32_t k = 0; k < g->n; k++) {
        if (!loop[k]) continue;
        if (is_reduction(at(t, k)->code))
            put_add(t, k);
        else if (at(t, k)->code == INSTR_COLSUM)
            put_column_add(t, k);
        else
            put_array(t, k);
    }
    buf_puts(t->out, "    }\n");
}

static void put_long(struct text *t) {
    const struct group_gen *g = t->g;
    buf_puts(t->out, "DEV void body(PARAMS, IDX row, IDX lane, bool first) {\n");
    cuda_origin_line(g->c);
    mark_all(t);
    for (uint32_t s = 0; s < g->nstages; s++) {
        put_stage(t, s, s + 1 == g->nstages, "0, COLS");
        for (uint32_t k = 0; k < g->n; k++)
            if (is_reduction(at(t, k)->code) && t->need[k] && g->stage[k] == s) put_result(t, k);
    }
    put_row_stores(t);
    buf_puts(t->out, "}\n");
}

static void put_tail(struct text *t) {
    const struct group_gen *g = t->g;
    buf_puts(t->out, "DEV void body(PARAMS, IDX row, IDX lane, IDX from, IDX to, IDX piece) {\n");
    cuda_origin_line(g->c);
    for (uint32_t k = 0; k < g->n; k++) {
        unsigned code = at(t, k)->code;
        if (is_reduction(code) || (is_sink(code) && !g->row_store[k]))
            mark(t, (int32_t)k, MARK_ALL);
    }
    put_stage(t, 0, true, "from, to");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!is_reduction(at(t, k)->code)) continue;
        buf_printf(t->out,
                   "    a%u = row_reduce<%s, LANES>(a%u);\n    if (lane == 0) ((%s *)workspace)", k,
                   reduction_name(at(t, k)->code), k, total_type(t, k));
        buf_printf(t->out, "[((i64)row * PIECES + piece) * PARTS + %" PRId64 "] = a%u;\n",
                   g->partial[k], k);
    }
    buf_puts(t->out, "}\nDEV void finish(PARAMS, IDX row, IDX lane) {\n");
    cuda_origin_line(g->c);
    t->need = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    for (uint32_t k = 0; k < g->n; k++)
        if (g->row_store[k]) mark(t, (int32_t)k, MARK_RESULTS);
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (!t->need[k] || is_sink(i->code) || !g->uniform[k]) continue;
        if (!is_reduction(i->code)) {
            put_uniform(t, k);
            continue;
        }
        put_total(t, k);
        buf_printf(t->out,
                   "    for (IDX piece = lane; piece < PIECES; piece += LANES)\n"
                   "        a%u = %s::join(a%u, ((const %s *)workspace)[((i64)row * PIECES + "
                   "piece) * PARTS + %" PRId64 "]);\n",
                   k, reduction_name(i->code), k, total_type(t, k), g->partial[k]);
        put_result(t, k);
    }
    put_row_stores(t);
    buf_puts(t->out, "}\n");
}

void group_text(struct group_gen *g) {
    struct text t = {.g = g, .out = &g->c->body};
    t.need = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    for (uint32_t k = 0; k < g->n; k++) {
        unsigned code = at(&t, k)->code;
        if (code != INSTR_LOAD && code != INSTR_STORE && code != INSTR_COLSUM && code != INSTR_IOTA)
            continue;
        address_function(&t, k, false);
        address_function(&t, k, true);
    }
    if (g->form == FORM_MAP || g->form == FORM_ROW || g->form == FORM_COLUMNS) put_state(&t);
    if (g->form == FORM_LONG)
        put_long(&t);
    else if (g->form == FORM_TAIL)
        put_tail(&t);
    else
        put_single(&t);
    if (g->ncolsum) put_columns(&t);
}
