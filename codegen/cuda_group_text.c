// SPDX-License-Identifier: Apache-2.0
/* cuda_group_text.c - writes a fused group's program as CUDA C++ (body.cuh of group.cu): one
 * statement an instruction, those of cuda_group_stmt.c. Register n is the
 * variable vn, an array over a thread's elements or one value; access n finds its place by rn(row)
 * and cn(col). Decides nothing: that is cuda_group.c. */
#include "codegen/cuda_group_text.h"
#include <inttypes.h>
#include <string.h>

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

/* Whether SUM k has at most one summand that is not 0: that of the label's place. */
static bool sums_one(const struct text *t, uint32_t k, int32_t *place, int32_t *label) {
    const struct group_instr *i = at(t, k);
    return i->code == INSTR_SUM && i->dtype == DT_f32 && t->g->factor[k] < 0 &&
           expr_one_place(t, i->a, place, label) &&
           at(t, (uint32_t)at(t, (uint32_t)i->a)->c)->imm == 0;
}

/* Long sums and products are kept in f64: those of a thread when it has many elements, those of a
 * row in any case. */
enum { MANY_ELEMENTS = 1024 };
static const char *sum_type(const struct text *t, uint32_t k, bool row) {
    enum dtype d = (enum dtype)at(t, k)->dtype;
    if (d != DT_f32) return cuda_register_type(d);
    if (t->g->form == FORM_TAIL || at(t, k)->code == INSTR_PROD) return "double";
    int32_t place, label;
    if (row && sums_one(t, k, &place, &label)) return "float";
    bool many = row || t->g->cols > (int64_t)MANY_ELEMENTS * t->g->lanes;
    return t->g->form == FORM_LONG && at(t, k)->code == INSTR_SUM && many ? "double" : "float";
}
static const char *total_type(const struct text *t, uint32_t k) {
    return sum_type(t, k, false);
}
static const char *result_type(const struct text *t, uint32_t k) {
    return sum_type(t, k, true);
}

/* Whether reduction k is written and its result belongs to stage s. */
static bool exchanged_in(const struct text *t, uint32_t k, uint32_t s) {
    return is_reduction(at(t, k)->code) && t->need[k] && t->g->stage[k] == s;
}

static void put_total(struct text *t, uint32_t k) {
    t->totals[k] = true;
    buf_printf(t->out, "    %s a%u = %s::none<%s>();\n", total_type(t, k), k,
               reduction_name(at(t, k)->code), total_type(t, k));
}

static void put_add(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    int32_t place, label;
    if (sums_one(t, k, &place, &label)) {
        buf_puts(t->out, "    ");
        expr_if_place(t, place, label);
        buf_printf(t->out, "a%u += (%s)", k, total_type(t, k));
        expr_value(t, at(t, (uint32_t)i->a)->b, "AT + k");
        buf_puts(t->out, ";\n");
        return;
    }
    buf_printf(t->out, "    RUNS RUN(k) a%u = %s::join(a%u, (%s)", k, reduction_name(i->code), k,
               total_type(t, k));
    if (t->g->factor[k] >= 0) {
        expr_value(t, t->g->product[k][0], "AT + k");
        buf_puts(t->out, " * ");
        expr_value(t, t->g->product[k][1], "AT + k");
    } else {
        expr_value(t, i->a, "AT + k");
    }
    buf_puts(t->out, ");\n");
}

/* Those of stage s, of one type each time, in one exchange. */
static void put_exchange(struct text *t, uint32_t s) {
    const struct group_gen *g = t->g;
    bool *done = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    for (uint32_t first = 0; first < g->n; first++) {
        if (!exchanged_in(t, first, s) || done[first]) continue;
        const char *type = result_type(t, first);
        uint32_t n = 0;
        buf_printf(t->out, "    %s j%u[] = {", type, first);
        for (uint32_t k = first; k < g->n; k++)
            if (exchanged_in(t, k, s) && strcmp(result_type(t, k), type) == 0)
                buf_printf(t->out, "%s(%s)a%u", k == first ? "" : ", ", type, k);
        buf_printf(t->out, "};\n    rows_reduce<LANES, BLOCK_ROWS, %u, %s", first, type);
        for (uint32_t k = first; k < g->n; k++)
            if (exchanged_in(t, k, s) && strcmp(result_type(t, k), type) == 0)
                buf_printf(t->out, ", %s", reduction_name(at(t, k)->code));
        buf_printf(t->out, ">(j%u, (int)(row & 1));\n", first);
        for (uint32_t k = first; k < g->n; k++) {
            if (!exchanged_in(t, k, s) || strcmp(result_type(t, k), type) != 0) continue;
            buf_printf(t->out, "    const %s %c%u = (%s)j%u[%u];\n", register_type(t, k),
                       g->factor[k] >= 0 ? 't' : 'v', k, register_type(t, k), first, n++);
            done[k] = true;
        }
    }
}

static void put_result(struct text *t, uint32_t k) {
    buf_printf(t->out,
               "    const %s v%u = (%s)row_reduce<%s, LANES, %u>((%s)a%u, (int)(row & 1));\n",
               register_type(t, k), k, register_type(t, k), reduction_name(at(t, k)->code), k,
               result_type(t, k), k);
}

/* ---- column sums ------------------------------------------------------------------------------
 */
static const char *column_type(const struct text *t, uint32_t k) {
    return register_type(t, (uint32_t)at(t, k)->a);
}

static const char *column_join(const struct text *t, uint32_t k) {
    return at(t, k)->code == INSTR_COLMAX ? "max_of" : "sum_of";
}

/* Adds what the workers left, in order. */
static void put_columns(struct text *t) {
    buf_puts(t->out, "DEV void columns(PARAMS, IDX col, int which) {\n");
    cuda_origin_line(t->g->c);
    int number = 0;
    for (uint32_t k = 0; k < t->g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (!instr_is_column(i->code)) continue;
        const char *type = column_type(t, k);
        buf_printf(t->out, "    if (which == %d) {\n", number++);
        enum dtype to = access_view(t->g, i)->dtype, reg = (enum dtype)at(t, (uint32_t)i->a)->dtype;
        const char *wide = reg == DT_i64 ? "i64" : i->code == INSTR_COLMAX ? "float" : "double";
        buf_printf(
            t->out,
            "    const %s t%u = slices_join<%s, SLICES, %s>((const %s *)(workspace + %" PRId64
            ") + col, COLS, WORKERS, col < COLS);\n",
            wide, k, column_join(t, k), wide, type, t->g->partial[k]);
        enum dtype natural = to == DT_f64 ? to : dtype_is_float(to) ? DT_f32 : DT_i64;
        buf_printf(t->out, "    if (threadIdx.x < 32 && col < COLS) out%d[", i->slot);
        expr_address(t, k, "col");
        buf_printf(t->out, "] = store_as<%s>::from(to_%s(t%u));\n    }\n", cuda_memory_type(to),
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
    mark(t, i->code == INSTR_STORE ? stmt_source(t, i) : i->a, how), mark(t, i->b, how),
        mark(t, i->c, how);
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
            buf_puts(t->out, "    row_sync<LANES, BLOCK_ROWS>();\n");
        any = true;
        stmt_store(t, k);
    }
}

/* What is the same for all rows (COLUMNS, where a thread stays with its columns). */
static bool of_columns(const struct text *t, int32_t r) {
    const struct group_gen *g = t->g;
    const struct group_instr *i = at(t, (uint32_t)r);
    if (i->code == INSTR_CONST) return true;
    if (g->uniform[r] || i->code == INSTR_IOTA || i->code == INSTR_RANDOM || is_sink(i->code))
        return false;
    if (i->code == INSTR_LOAD) {
        for (int d = 0; d < g->border; d++)
            if (g->y->regs[r].strides[d] != 0) return false;
        return true;
    }
    return (i->a < 0 || of_columns(t, i->a)) && (i->b < 0 || of_columns(t, i->b)) &&
           (i->c < 0 || of_columns(t, i->c));
}

/* Of those the ones that rows are computed from: made once, before the first. */
static void find_held(struct text *t) {
    const struct group_gen *g = t->g;
    t->held = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    for (uint32_t k = 0; k < g->n && g->form == FORM_COLUMNS; k++) {
        const int32_t r[3] = {at(t, k)->a, at(t, k)->b, at(t, k)->c};
        if (!t->need[k] || of_columns(t, (int32_t)k)) continue;
        for (int q = 0; q < 3; q++)
            if (r[q] >= 0 && at(t, (uint32_t)r[q])->code != INSTR_CONST && of_columns(t, r[q]))
                t->held[r[q]] = true;
    }
}

static void put_state(struct text *t) {
    const struct group_gen *g = t->g;
    mark_all(t);
    find_held(t);
    buf_puts(t->out, "struct state {");
    for (uint32_t k = 0; k < g->n; k++)
        if (t->held[k]) buf_printf(t->out, " %s h%u[E];", register_type(t, k), k);
    for (uint32_t k = 0; k < g->n; k++)
        if (instr_is_column(at(t, k)->code))
            buf_printf(t->out, " %s s%u[E];", column_type(t, k), k);
    for (uint32_t k = 0; k < g->n; k++)
        if (group_turned(g, k)) buf_printf(t->out, " quad q%u;", k);
    buf_puts(t->out, " };\n");
    if (g->form == FORM_MAP || !g->ncolsum) return;
    buf_puts(t->out, "DEV void clear(state &sums) {\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (instr_is_column(at(t, k)->code))
            buf_printf(t->out, "    EACH(k) sums.s%u[k] = %s::none<%s>();\n", k, column_join(t, k),
                       column_type(t, k));
    buf_puts(t->out,
             "}\nDEV void put(const state &sums, char *workspace, IDX worker, IDX lane) {\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (instr_is_column(at(t, k)->code))
            buf_printf(t->out,
                       "    RUNS RUN(k) ((%s *)(workspace + %" PRId64
                       "))[(i64)worker * COLS + col + k] = sums.s%u[AT + k];\n",
                       column_type(t, k), g->partial[k], k);
    buf_puts(t->out, "}\n");
    if (g->form != FORM_COLUMNS) return;
    buf_puts(t->out, "DEV void join_warps(state &sums) {\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (instr_is_column(at(t, k)->code))
            buf_printf(t->out, "    warps_join_columns<%s, WARPS, E>(sums.s%u);\n",
                       column_join(t, k), k);
    buf_puts(t->out, "}\n");
}

/* ---- one walk: MAP, ROW, COLUMNS ---------------------------------------------------------------
 */
static void put_ring(struct text *t) {
    const struct group_gen *g = t->g;
    buf_puts(t->out, "struct raw {\n    char *at;\n};\n"
                     "DEV void fetch(PARAMS, IDX row, IDX lane, raw &x) {\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!t->need[k] || !group_early(g, k)) continue;
        if (g->by_run[k]) {
            stmt_run_fetch(t, k);
            continue;
        }
        if (g->uniform[k])
            buf_printf(t->out, "    copy_async<%d>(",
                       (int)dtype_size(access_view(g, at(t, k))->dtype));
        else
            buf_puts(t->out, "    RUNS ring_fetch<VEC, THREADS>(");
        stmt_slot(t, k, g->uniform[k]);
        buf_printf(t->out, ", in%d + ", at(t, k)->slot);
        expr_address(t, k, g->uniform[k] ? "0" : "col");
        buf_puts(t->out, ");\n");
    }
    buf_puts(t->out, "}\n");
}

/* What `fetch` brings, as it lies in memory: half the registers of what it becomes. */
static void put_raw(struct text *t) {
    const struct group_gen *g = t->g;
    if (g->ring) {
        put_ring(t);
        return;
    }
    buf_puts(t->out, "struct raw {\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!t->need[k] || !group_early(g, k)) continue;
        const char *type = cuda_memory_type(access_view(g, at(t, k))->dtype);
        if (g->uniform[k])
            buf_printf(t->out, "    %s p%u;\n", type, k);
        else if (g->by_run[k])
            buf_printf(t->out, "    %s p%u[UNITS];\n", type, k);
        else
            buf_printf(t->out, "    held<%s, VEC> p%u[UNITS];\n", type, k);
    }
    buf_puts(t->out, "};\nDEV void fetch(PARAMS, IDX row, IDX lane, raw &x) {\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!t->need[k] || !group_early(g, k)) continue;
        const char *form = g->uniform[k]  ? "    x.p%u = in%d["
                           : g->by_run[k] ? "    RUNS x.p%u[AT / VEC] = in%d["
                                          : "    RUNS fetch_pack(x.p%u[AT / VEC], in%d + ";
        buf_printf(t->out, form, k, at(t, k)->slot);
        expr_address(t, k, g->uniform[k] ? "0" : "col");
        buf_puts(t->out, g->uniform[k] || g->by_run[k] ? "];\n" : ");\n");
    }
    buf_puts(t->out, "}\n");
}

/* Instruction r and first what it is made of, where that is not written yet. A reduction has been
 * exchanged by then; what is taken out of a sum comes back here. */
static void put_with(struct text *t, int32_t r) {
    const struct group_gen *g = t->g;
    if (r < 0 || t->done[r]) return;
    const struct group_instr *i = at(t, (uint32_t)r);
    t->done[r] = true;
    if (t->held[r] && !t->holding) {
        buf_printf(t->out, "    const %s (&v%d)[E] = sums.h%d;\n", register_type(t, (uint32_t)r), r,
                   r);
        return;
    }
    if (is_reduction(i->code)) {
        if (g->factor[r] < 0) return;
        put_with(t, g->factor[r]);
        buf_printf(t->out, "    const float v%d = t%d * v%d;\n", r, r, g->factor[r]);
        return;
    }
    put_with(t, expr_gelu_tanh(t, (uint32_t)r));
    put_with(t, i->a);
    put_with(t, i->b);
    put_with(t, i->c);
    if (instr_is_column(i->code)) {
        buf_printf(t->out, "    EACH(k) sums.s%d[k] = %s::join(sums.s%d[k], ", r,
                   column_join(t, (uint32_t)r), r);
        expr_operand(t, i->a);
        buf_puts(t->out, ");\n");
    } else if (g->uniform[r]) {
        stmt_uniform(t, (uint32_t)r);
    } else {
        stmt_array(t, (uint32_t)r);
    }
}

static void put_hold(struct text *t) {
    const struct group_gen *g = t->g;
    t->holding = true;
    t->done = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    buf_puts(t->out, "DEV void hold(PARAMS, IDX lane, state &sums) {\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!t->held[k]) continue;
        put_with(t, (int32_t)k);
        buf_printf(t->out, "    EACH(k) sums.h%u[k] = v%u[k];\n", k, k);
    }
    buf_puts(t->out, "}\n");
    t->holding = false;
}

static void put_single(struct text *t) {
    const struct group_gen *g = t->g;
    put_raw(t);
    t->early = true;
    if (g->form == FORM_COLUMNS) put_hold(t);
    t->done = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    buf_puts(t->out, "DEV void body(PARAMS, IDX row, IDX lane, state &sums, const raw &x) {\n");
    cuda_origin_line(g->c);
    for (uint32_t s = 0; s < g->nstages; s++) {
        for (uint32_t k = 0; k < g->n; k++) {
            if (!exchanged_in(t, k, s)) continue;
            bool whole = g->factor[k] < 0;
            put_with(t, whole ? at(t, k)->a : g->product[k][0]);
            if (!whole) put_with(t, g->product[k][1]);
            put_total(t, k);
            put_add(t, k);
        }
        put_exchange(t, s);
    }
    for (uint32_t k = 0; k < g->n; k++) {
        if (!is_sink(at(t, k)->code)) continue;
        put_with(t, at(t, k)->code == INSTR_STORE ? stmt_source(t, at(t, k)) : (int32_t)k);
        if (at(t, k)->code == INSTR_STORE) stmt_hold(t, k);
    }
    for (uint32_t k = 0; k < g->n; k++) /* last: a result may lie where an operand does */
        if (at(t, k)->code == INSTR_STORE && !g->row_store[k]) stmt_store(t, k);
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
    expr_operand(t, i->a);
    buf_printf(t->out, " : %s::join(p, ", column_join(t, k));
    expr_operand(t, i->a);
    buf_puts(t->out, ");\n    }\n");
}

/* The bf16 LOAD whose largest element MAX k is, when steps of it lie in the ring; or -1. */
static int32_t max_of_pairs(const struct text *t, uint32_t k) {
    const struct group_gen *g = t->g;
    const struct group_instr *i = at(t, k);
    if (g->form != FORM_LONG || !g->ring || i->code != INSTR_MAX || g->vec < 2) return -1;
    int32_t r = i->a;
    const struct group_instr *x = at(t, (uint32_t)r);
    if (x->code == OP_cast && x->dtype == DT_f32 && (!x->imm_int || x->imm_int == DT_f32))
        x = at(t, (uint32_t)(r = x->a));
    bool pairs = x->code == INSTR_LOAD && access_view(g, x)->dtype == DT_bf16;
    return pairs && group_walked(g, (uint32_t)r) ? r : -1;
}

/* Whether SUM k needs one step of the row only. */
static bool sum_of_step(const struct text *t, uint32_t k, int32_t *place, int32_t *label) {
    const struct group_gen *g = t->g;
    return g->form == FORM_LONG && g->ring && g->y->rank - g->border == 1 &&
           sums_one(t, k, place, label);
}

/* The sums of stage s that do. */
static void put_one_steps(struct text *t, uint32_t s, const bool *all) {
    const struct group_gen *g = t->g;
    for (uint32_t k = 0; k < g->n; k++) {
        int32_t place, label;
        if (!is_reduction(at(t, k)->code) || !all[k] || g->stage[k] != s) continue;
        if (!sum_of_step(t, k, &place, &label)) continue;
        bool *kept = t->need;
        t->need = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
        mark(t, at(t, (uint32_t)at(t, k)->a)->b, MARK_ARRAYS);
        buf_puts(t->out, "    STEP_OF(index32(");
        expr_operand(t, label);
        buf_puts(t->out, ")) {\n");
        for (uint32_t j = 0; j < k; j++)
            if (t->need[j]) stmt_array(t, j);
        put_add(t, k);
        buf_puts(t->out, "    }\n");
        t->need = kept;
    }
}

static void put_stage(struct text *t, uint32_t s, bool last, const char *range) {
    const struct group_gen *g = t->g;
    bool *all = t->need, *loop = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    bool any = false, one = false;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (all[k] && g->uniform[k] && !is_reduction(i->code) && !is_sink(i->code) &&
            g->stage[k] == s)
            stmt_uniform(t, k);
    }
    t->need = loop;
    for (uint32_t k = 0; k < g->n; k++) {
        const struct group_instr *i = at(t, k);
        bool reduces = is_reduction(i->code) && all[k] && g->stage[k] == s;
        bool sink = last && is_sink(i->code) && !g->row_store[k];
        if (!reduces && !sink) continue;
        if (reduces) put_total(t, k);
        int32_t place, label;
        if (reduces && sum_of_step(t, k, &place, &label)) {
            one = true;
            continue;
        }
        any = loop[k] = true;
        if (reduces && max_of_pairs(t, k) >= 0)
            buf_printf(t->out, "    u32 b%u = 0xff80ff80u;\n", k);
        else
            mark(t, i->code == INSTR_STORE ? stmt_source(t, i) : i->a, MARK_ARRAYS);
    }
    t->need = all;
    bool ends = last && g->ring;
    if (one) put_one_steps(t, s, all);
    if (!any && !ends) return;
    if (t->wait) buf_puts(t->out, "    copies_wait<0>();\n");
    t->wait = false;
    if (ends)
        buf_puts(t->out, "    LAST_STEPS {\n");
    else
        buf_printf(t->out, "    STEPS(%s) {\n", range);
    for (uint32_t k = 0; k < g->n; k++) {
        if (!loop[k]) continue;
        int32_t pairs = is_reduction(at(t, k)->code) ? max_of_pairs(t, k) : -1;
        if (pairs >= 0) {
            buf_printf(t->out, "    b%u = max_two(b%u, ring_packs<bf16, VEC, THREADS>(", k, k);
            stmt_step_slot(t, (uint32_t)pairs);
            buf_puts(t->out, "));\n");
        } else if (is_reduction(at(t, k)->code))
            put_add(t, k);
        else if (instr_is_column(at(t, k)->code))
            put_column_add(t, k);
        else
            stmt_array(t, k);
    }
    buf_puts(t->out, "    }\n");
    for (uint32_t k = 0; k < g->n; k++)
        if (loop[k] && is_reduction(at(t, k)->code) && max_of_pairs(t, k) >= 0)
            buf_printf(t->out,
                       "    a%u = op_max(__uint_as_float(b%u << 16), "
                       "__uint_as_float(b%u & 0xffff0000u));\n",
                       k, k, k);
}

/* The row on its way at once; each thread waits for what it reads itself. */
static void put_kept_copies(struct text *t) {
    const struct group_gen *g = t->g;
    int64_t offset = 0;
    bool any = false;
    for (uint32_t k = 0; k < g->n; offset += group_kept(g, k), k++) {
        if (!t->need[k] || !group_kept(g, k)) continue;
        int64_t size = (int64_t)dtype_size(access_view(g, at(t, k))->dtype);
        if (i64_min(16, size * g->vec) < 4) continue; /* cp.async moves no less */
        buf_printf(t->out,
                   "    STEPS(0, COLS) row_fetch<VEC>(kept_row + %" PRId64 " + col * %" PRId64
                   ", in%d + ",
                   offset, size, at(t, k)->slot);
        expr_address(t, k, "col");
        buf_puts(t->out, ");\n");
        any = t->kept[k] = true;
    }
    if (any) buf_puts(t->out, "    copies_commit();\n");
    t->wait = any;
}

/* A step of a row on its way. */
static void put_step_fetch(struct text *t) {
    const struct group_gen *g = t->g;
    buf_puts(t->out, "DEV void fetch(PARAMS, IDX row, IDX col, char *to) {\n    IDX at = 0;\n"
                     "    char *ring = to;\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!group_walked(g, k)) continue;
        buf_puts(t->out, "    ring_fetch<VEC, THREADS>(");
        stmt_step_slot(t, k);
        buf_printf(t->out, ", in%d + ", at(t, k)->slot);
        expr_address(t, k, "col");
        buf_puts(t->out, ");\n");
    }
    buf_puts(t->out, "}\n");
}

static void put_long(struct text *t) {
    const struct group_gen *g = t->g;
    if (g->ring) put_step_fetch(t);
    if (g->kept_bytes) {
        t->kept = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
        buf_puts(t->out, "extern __shared__ char kept_row[];\n");
    }
    buf_printf(t->out, "DEV void body(PARAMS, IDX row, IDX lane, bool first%s) {\n",
               g->ring ? ", walk &w" : "");
    cuda_origin_line(g->c);
    mark_all(t);
    if (g->kept_bytes && g->c->p->cuda_arch >= 80) put_kept_copies(t);
    for (uint32_t s = 0; s < g->nstages; s++) {
        put_stage(t, s, s + 1 == g->nstages, "0, COLS");
        put_exchange(t, s);
    }
    for (uint32_t k = 0; k < g->n; k++)
        if (t->need[k] && g->uniform[k] && !is_reduction(at(t, k)->code) &&
            !is_sink(at(t, k)->code) && g->stage[k] >= g->nstages)
            stmt_uniform(t, k);
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
        buf_printf(
            t->out,
            "    a%u = row_reduce<%s, LANES, %u>(a%u, 0);\n    if (lane == 0) ((%s *)workspace)", k,
            reduction_name(at(t, k)->code), k, k, total_type(t, k));
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
            stmt_uniform(t, k);
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

/* The transposed results of a block, one after the other through the same tile. */
static void put_lines(struct text *t) {
    const struct group_gen *g = t->g;
    bool again = false;
    buf_puts(t->out, "DEV void put_lines(PARAMS, quad *tile, const state (&lines)[PER], IDX col, "
                     "IDX row) {\n    quad a[PER];\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!group_turned(g, k)) continue;
        if (again) buf_puts(t->out, "    __syncthreads();\n");
        again = true;
        buf_printf(t->out, "    EACH_LINE(k) a[k] = lines[k].q%u;\n", k);
        buf_printf(t->out,
                   "    put_turned<IDX>((char *)out%d, %" PRId64
                   "ll, tile, a, col, row, COLS, ROWS);\n",
                   at(t, k)->slot, g->y->regs[k].strides[1]);
    }
    buf_puts(t->out, "}\n");
}

void group_text(struct group_gen *g) {
    struct text t = {.g = g, .out = &g->c->body};
    t.need = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    t.totals = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
    for (uint32_t k = 0; k < g->n; k++) {
        unsigned code = at(&t, k)->code;
        if (code != INSTR_LOAD && code != INSTR_STORE && !instr_is_column(code) &&
            code != INSTR_IOTA)
            continue;
        expr_address_function(&t, k, false);
        expr_address_function(&t, k, true);
    }
    if (g->form != FORM_LONG && g->form != FORM_TAIL) put_state(&t);
    if (g->form == FORM_LONG)
        put_long(&t);
    else if (g->form == FORM_TAIL)
        put_tail(&t);
    else
        put_single(&t);
    if (g->ncolsum) put_columns(&t);
    if (g->form == FORM_TILE) put_lines(&t);
}
