// SPDX-License-Identifier: Apache-2.0
/* cuda_group_text.c - writes a fused group's program as CUDA C++ (body.cuh of group.cu): one
 * statement an instruction, elementwise ones from the `emit` column of ops.def. Register n is the
 * variable vn, an array over a thread's elements or one value; access n finds its place by rn(row)
 * and cn(col). Decides nothing: that is cuda_group.c. */
#include "codegen/cuda_group_text.h"
#include <inttypes.h>
#include <string.h>

/* ---- instructions -----------------------------------------------------------------------------
 */
static void put_uniform(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *column = t->g->form == FORM_MAP ? "COLUMN(0)" : "0";
    if (i->code == INSTR_CONST) return;
    buf_printf(t->out, "    const %s v%u = ", register_type(t, k), k);
    switch (i->code) {
    case INSTR_IOTA: expr_iota(t, k, column); break;
    case INSTR_RANDOM: expr_random(t, k, "row"); break;
    case INSTR_LOAD:
        if (t->early && group_early(t->g, k)) {
            buf_printf(t->out, "to_reg(x.p%u)", k);
            break;
        }
        buf_printf(t->out, "to_reg(in%d[", i->slot);
        expr_address(t, k, column);
        buf_puts(t->out, "])");
        break;
    default: expr_elementwise(t, i); break;
    }
    buf_puts(t->out, ";\n");
}

/* The first time from memory, then from the block's copy of the row. */
static void put_kept_load(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *type = cuda_memory_type(access_view(t->g, i)->dtype);
    int64_t offset = 0;
    for (uint32_t j = 0; j < k; j++) offset += group_kept(t->g, j);
    buf_printf(t->out,
               "{\n        auto &p = *(packs<%s, VEC> *)(kept_row + %" PRId64 " + col * %d);\n",
               type, offset, (int)dtype_size(access_view(t->g, i)->dtype));
    if (!t->kept[k]) {
        buf_printf(t->out, "        packs<%s, VEC> x;\n        fetch_pack(x, in%d + ", type,
                   i->slot);
        expr_address(t, k, "col");
        buf_printf(t->out, ");\n        p = x;\n        unpack(v%u, x);\n    }\n", k);
    } else {
        buf_printf(t->out, "        unpack(v%u, p);\n    }\n", k);
    }
    t->kept[k] = true;
}

static void put_load(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "    %s v%u[E]INIT;\n    RUNS ", register_type(t, k), k);
    if (t->early && group_early(t->g, k)) {
        buf_printf(t->out, "unpack(v%u + AT, x.p%u[AT / VEC]);\n", k, k);
    } else if (t->kept && group_kept(t->g, k)) {
        put_kept_load(t, k);
    } else if (group_packed(t->g, k, t->g->vec)) {
        buf_printf(t->out, "load_pack<VEC>(v%u + AT, in%d + ", k, i->slot);
        expr_address(t, k, "col");
        buf_puts(t->out, ");\n");
    } else if (expr_last_fixed(t->g, k)) {
        buf_printf(t->out, "{\n        const %s x = to_reg(in%d[", register_type(t, k), i->slot);
        expr_address(t, k, "col");
        buf_printf(t->out, "]);\n        RUN(k) v%u[AT + k] = x;\n    }\n", k);
    } else {
        buf_printf(t->out, "RUN(k) v%u[AT + k] = to_reg(in%d[", k, i->slot);
        expr_address(t, k, "col + k");
        buf_puts(t->out, "]);\n");
    }
}

/* The store rounds as a cast to its type does: what it stores is what was cast. */
static int32_t store_source(const struct text *t, const struct group_instr *i) {
    const struct group_instr *c = at(t, (uint32_t)i->a);
    enum dtype to = access_view(t->g, i)->dtype;
    if (c->code != OP_cast || (to != DT_bf16 && to != DT_f16)) return i->a;
    bool same = (enum dtype)c->imm_int == to && at(t, (uint32_t)c->a)->dtype == DT_f32;
    return same ? c->a : i->a;
}

static void put_store(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *memory = cuda_memory_type(access_view(t->g, i)->dtype);
    const int32_t a = store_source(t, i);
    enum dtype from = (enum dtype)at(t, (uint32_t)a)->dtype;
    enum dtype to = access_view(t->g, i)->dtype;
    enum dtype natural = to == DT_f64 || to == DT_bool ? to : dtype_is_float(to) ? DT_f32 : DT_i64;
    const char *reg = cuda_register_type(natural);
    const char *convert =
        natural == from ? "" : arena_printf(t->g->c->scratch, "to_%s", dtype_name(natural));
    if (t->g->row_store[k]) {
        buf_printf(t->out, "    if (lane == 0) out%d[", i->slot);
        expr_address(t, k, "0");
        buf_printf(t->out, "] = store_as<%s>::from(%s(", memory, convert);
        expr_value(t, a, "0");
        buf_puts(t->out, "));\n");
        return;
    }
    if (group_packed(t->g, k, t->g->vec)) {
        bool plain = !t->g->uniform[a] && natural == from;
        if (!plain) {
            buf_printf(t->out, "    %s w%u[E];\n    EACH(k) w%u[k] = %s(", reg, k, k, convert);
            expr_operand(t, a);
            buf_puts(t->out, ");\n");
        }
        buf_printf(t->out, "    RUNS store_pack<VEC>(out%d + ", i->slot);
        expr_address(t, k, "col");
        buf_printf(t->out, ", %c%u + AT);\n", plain ? 'v' : 'w', plain ? (uint32_t)a : k);
        return;
    }
    buf_printf(t->out, "    RUNS RUN(k) out%d[", i->slot);
    expr_address(t, k, "col + k");
    buf_printf(t->out, "] = store_as<%s>::from(%s(", memory, convert);
    expr_value(t, a, "AT + k");
    buf_puts(t->out, "));\n");
}

static void put_array(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *type = register_type(t, k);
    switch (i->code) {
    case INSTR_LOAD: put_load(t, k); return;
    case INSTR_STORE: put_store(t, k); return;
    case INSTR_IOTA:
        if (expr_last_fixed(t->g, k)) {
            buf_printf(t->out, "    %s v%u[E]INIT;\n    RUNS {\n        const %s x = ", type, k,
                       type);
            expr_iota(t, k, "col");
            buf_printf(t->out, ";\n        RUN(k) v%u[AT + k] = x;\n    }\n", k);
            return;
        }
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        expr_iota(t, k, "COLUMN(k)");
        break;
    case INSTR_RANDOM:
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        expr_random(t, k, "(u64)row * COLS + COLUMN(k)");
        break;
    default:
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        expr_elementwise(t, i);
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

/* Long sums and products are kept in f64: those of a thread when it has many elements, those of a
 * row in any case. */
enum { MANY_ELEMENTS = 1024 };
static const char *sum_type(const struct text *t, uint32_t k, bool row) {
    enum dtype d = (enum dtype)at(t, k)->dtype;
    if (d != DT_f32) return cuda_register_type(d);
    if (t->g->form == FORM_TAIL || at(t, k)->code == INSTR_PROD) return "double";
    bool many = row || t->g->cols > (int64_t)MANY_ELEMENTS * t->g->lanes;
    return t->g->form == FORM_LONG && at(t, k)->code == INSTR_SUM && many ? "double" : "float";
}
static const char *total_type(const struct text *t, uint32_t k) {
    return sum_type(t, k, false);
}
static const char *result_type(const struct text *t, uint32_t k) {
    return sum_type(t, k, true);
}

static void put_total(struct text *t, uint32_t k) {
    buf_printf(t->out, "    %s a%u = %s::none<%s>();\n", total_type(t, k), k,
               reduction_name(at(t, k)->code), total_type(t, k));
}

static void put_add(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "    RUNS RUN(k) a%u = %s::join(a%u, (%s)", k, reduction_name(i->code), k,
               total_type(t, k));
    expr_value(t, i->a, "AT + k");
    buf_puts(t->out, ");\n");
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
    buf_puts(t->out, "DEV void columns(PARAMS, IDX col, int which) {\n");
    cuda_origin_line(t->g->c);
    int number = 0;
    for (uint32_t k = 0; k < t->g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (i->code != INSTR_COLSUM) continue;
        const char *type = column_type(t, k);
        buf_printf(t->out, "    if (which == %d) {\n", number++);
        enum dtype to = access_view(t->g, i)->dtype, reg = (enum dtype)at(t, (uint32_t)i->a)->dtype;
        buf_printf(t->out,
                   "    const %s t%u = slices_sum<SLICES, %s>((const %s *)(workspace + %" PRId64
                   ") + col, COLS, WORKERS, col < COLS);\n",
                   reg == DT_i64 ? "i64" : "double", k, reg == DT_i64 ? "i64" : "double", type,
                   t->g->partial[k]);
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
    mark(t, i->code == INSTR_STORE ? store_source(t, i) : i->a, how), mark(t, i->b, how),
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
            buf_puts(t->out, "    row_sync<LANES>();\n");
        any = true;
        put_store(t, k);
    }
}

/* ---- one walk: MAP, ROW, COLUMNS ---------------------------------------------------------------
 */
/* What `fetch` brings, as it lies in memory: half the registers of what it becomes. */
static void put_raw(struct text *t) {
    const struct group_gen *g = t->g;
    buf_puts(t->out, "struct raw {\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!t->need[k] || !group_early(g, k)) continue;
        const char *type = cuda_memory_type(access_view(g, at(t, k))->dtype);
        if (g->uniform[k])
            buf_printf(t->out, "    %s p%u;\n", type, k);
        else
            buf_printf(t->out, "    packs<%s, VEC> p%u[UNITS];\n", type, k);
    }
    buf_puts(t->out, "};\nDEV void fetch(PARAMS, IDX row, IDX lane, raw &x) {\n");
    for (uint32_t k = 0; k < g->n; k++) {
        if (!t->need[k] || !group_early(g, k)) continue;
        buf_printf(t->out,
                   g->uniform[k] ? "    x.p%u = in%d["
                                 : "    RUNS fetch_pack(x.p%u[AT / VEC], in%d + ",
                   k, at(t, k)->slot);
        expr_address(t, k, g->uniform[k] ? "0" : "col");
        buf_puts(t->out, g->uniform[k] ? "];\n" : ");\n");
    }
    buf_puts(t->out, "}\n");
}

static void put_single(struct text *t) {
    mark_all(t);
    put_raw(t);
    t->early = true;
    buf_puts(t->out, "DEV void body(PARAMS, IDX row, IDX lane, state &sums, const raw &x) {\n");
    cuda_origin_line(t->g->c);
    for (uint32_t k = 0; k < t->g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (!t->need[k] || t->g->row_store[k]) continue;
        if (i->code == INSTR_COLSUM) {
            buf_printf(t->out, "    EACH(k) sums.s%u[k] += ", k);
            expr_operand(t, i->a);
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
    expr_operand(t, i->a);
    buf_puts(t->out, " : sum_of::join(p, ");
    expr_operand(t, i->a);
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
        mark(t, i->code == INSTR_STORE ? store_source(t, i) : i->a, MARK_ARRAYS);
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
    if (g->kept_bytes) {
        t->kept = ARENA_ARRAY(g->c->scratch, bool, g->n + 1);
        buf_puts(t->out, "extern __shared__ char kept_row[];\n");
    }
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
        expr_address_function(&t, k, false);
        expr_address_function(&t, k, true);
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
