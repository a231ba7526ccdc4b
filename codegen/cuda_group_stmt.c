// SPDX-License-Identifier: Apache-2.0
/* cuda_group_stmt.c - the statements of a group's text: loads, stores and elementwise instructions,
 * for all elements of a thread or one value. Their order and what is around them, reductions and
 * walks, are cuda_group_text.c's. */
#include "codegen/cuda_group_text.h"
#include <inttypes.h>

/* Where the ring has LOAD k; of this thread when `own`. */
void stmt_slot(struct text *t, uint32_t k, bool own) {
    const struct group_gen *g = t->g;
    int size = (int)dtype_size(access_view(g, at(t, k))->dtype);
    int64_t offset = 0;
    for (uint32_t j = 0; j < k; j++)
        if (t->need[j]) offset += group_ringed(g, j);
    buf_printf(t->out, "(x.at + %" PRId64 " * THREADS", offset);
    if (own) buf_printf(t->out, " + threadIdx.x * %d", size);
    if (!own && g->units > 1) buf_printf(t->out, " + AT * %d * THREADS", size);
    buf_puts(t->out, ")");
}

static int run_bytes(const struct text *t, uint32_t k) {
    int size = (int)dtype_size(access_view(t->g, at(t, k))->dtype);
    return size < 4 ? 4 : size;
}

/* "(x.at + .. )": where the ring has what LOAD k brings for a run. */
static void put_run_slot(struct text *t, uint32_t k) {
    int64_t offset = 0;
    for (uint32_t j = 0; j < k; j++)
        if (t->need[j]) offset += group_ringed(t->g, j);
    buf_printf(t->out, "(x.at + (%" PRId64 " + AT / VEC * %d) * THREADS + threadIdx.x * %d)",
               offset, run_bytes(t, k), run_bytes(t, k));
}

void stmt_run_fetch(struct text *t, uint32_t k) {
    buf_printf(t->out, "    RUNS copy_async<%d>(", run_bytes(t, k));
    put_run_slot(t, k);
    buf_printf(t->out, ", word_of(in%d + ", at(t, k)->slot);
    expr_address(t, k, "col");
    buf_puts(t->out, "));\n");
}

/* The same for a step of a LONG row. */
void stmt_step_slot(struct text *t, uint32_t k) {
    int64_t offset = 0;
    for (uint32_t j = 0; j < k; j++) offset += group_walked(t->g, j);
    buf_printf(t->out, "ring + at + %" PRId64 " * THREADS", offset);
}

void stmt_uniform(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *column = t->g->form == FORM_MAP ? "COLUMN(0)" : "0";
    if (i->code == INSTR_CONST) return;
    buf_printf(t->out, "    const %s v%u = ", register_type(t, k), k);
    switch (i->code) {
    case INSTR_IOTA: expr_iota(t, k, column); break;
    case INSTR_RANDOM: expr_random(t, k, "row"); break;
    case INSTR_LOAD:
        if (t->early && group_early(t->g, k)) {
            if (t->g->ring)
                buf_printf(t->out, "to_reg(*(const %s *)",
                           cuda_memory_type(access_view(t->g, i)->dtype));
            else
                buf_printf(t->out, "to_reg(x.p%u", k);
            if (t->g->ring) stmt_slot(t, k, true);
            buf_puts(t->out, ")");
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

/* One number for each run. */
static void put_run_load(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const bool early = t->early && group_early(t->g, k);
    buf_printf(t->out, "    %s v%u[UNITS]INIT;\n    RUNS v%u[AT / VEC] = to_reg(",
               register_type(t, k), k, k);
    if (early && t->g->ring) {
        buf_puts(t->out, "in_word(");
        put_run_slot(t, k);
        buf_printf(t->out, ", in%d + ", i->slot);
        expr_address(t, k, "col");
        buf_puts(t->out, "));\n");
    } else if (early) {
        buf_printf(t->out, "x.p%u[AT / VEC]);\n", k);
    } else {
        buf_printf(t->out, "in%d[", i->slot);
        expr_address(t, k, "col");
        buf_puts(t->out, "]);\n");
    }
}

/* The largest or least number of the lanes that share a part of a row. */
static void put_part(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *how = i->code == INSTR_PART_MAX ? "max_of" : "min_of";
    buf_printf(t->out,
               "    %s v%u[UNITS]INIT;\n    RUNS {\n        %s most = ", register_type(t, k), k,
               register_type(t, k));
    expr_value(t, i->a, "AT");
    buf_puts(t->out, ";\n");
    if (!t->g->by_run[i->a]) {
        buf_printf(t->out, "        RUN(k) most = %s::join(most, ", how);
        expr_value(t, i->a, "AT + k");
        buf_puts(t->out, ");\n");
    }
    buf_printf(t->out,
               "        v%u[AT / VEC] = lanes_reduce<%s, %" PRId64 " / VEC>(most);\n    }\n", k,
               how, i->imm_int);
}

/* Registers that have one value for each run. */
static void put_runs(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    if (i->code == INSTR_LOAD) {
        put_run_load(t, k);
        return;
    }
    if (instr_is_part(i->code)) {
        put_part(t, k);
        return;
    }
    buf_printf(t->out, "    %s v%u[UNITS]INIT;\n    ", register_type(t, k), k);
    if (i->code == INSTR_IOTA) {
        buf_printf(t->out, "RUNS v%u[AT / VEC] = ", k);
        expr_iota(t, k, "col");
    } else {
        t->per_run = true;
        buf_printf(t->out, "EACH_RUN(k) v%u[k] = ", k);
        expr_elementwise(t, i);
        t->per_run = false;
    }
    buf_puts(t->out, ";\n");
}

static void put_load(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "    %s v%u[E]INIT;\n    RUNS ", register_type(t, k), k);
    if (t->early && group_early(t->g, k) && t->g->ring) {
        buf_printf(t->out, "ring_unpack<%s, VEC, THREADS>(v%u + AT, ",
                   cuda_memory_type(access_view(t->g, i)->dtype), k);
        stmt_slot(t, k, false);
        buf_puts(t->out, ");\n");
    } else if (t->early && group_early(t->g, k)) {
        buf_printf(t->out, "unpack(v%u + AT, x.p%u[AT / VEC]);\n", k, k);
    } else if (t->g->form == FORM_LONG && t->g->ring && group_walked(t->g, k)) {
        buf_printf(t->out, "ring_unpack<%s, VEC, THREADS>(v%u, ",
                   cuda_memory_type(access_view(t->g, i)->dtype), k);
        stmt_step_slot(t, k);
        buf_puts(t->out, ");\n");
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
int32_t stmt_source(const struct text *t, const struct group_instr *i) {
    const struct group_instr *c = at(t, (uint32_t)i->a);
    enum dtype to = access_view(t->g, i)->dtype;
    if (c->code != OP_cast || dtype_size(to) > 2) return i->a;
    bool same = (enum dtype)c->imm_int == to && at(t, (uint32_t)c->a)->dtype == DT_f32;
    return same ? c->a : i->a;
}

/* "to_i64" where STORE k stores another kind of number than register a holds. */
static const char *conversion(const struct text *t, uint32_t k, int32_t a) {
    enum dtype from = (enum dtype)at(t, (uint32_t)a)->dtype;
    enum dtype to = access_view(t->g, at(t, k))->dtype;
    enum dtype natural = to == DT_f64 || to == DT_bool ? to : dtype_is_float(to) ? DT_f32 : DT_i64;
    return natural == from ? "" : arena_printf(t->g->c->scratch, "to_%s", dtype_name(natural));
}

static bool stores_runs(const struct text *t, uint32_t k) {
    return !t->g->row_store[k] && group_repeats(t->g, k) == 1 &&
           (group_turned(t->g, k) || group_packed(t->g, k, t->g->vec));
}

void stmt_hold(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *memory = cuda_memory_type(access_view(t->g, i)->dtype);
    const int32_t a = stmt_source(t, i);
    const char *convert = conversion(t, k, a);
    if (!stores_runs(t, k)) return;
    bool plain = !t->g->uniform[a] && !t->g->by_run[a] && !*convert;
    if (!plain) {
        enum dtype to = access_view(t->g, i)->dtype;
        enum dtype natural = to == DT_f64 || to == DT_bool ? to
                             : dtype_is_float(to)          ? DT_f32
                                                           : DT_i64;
        buf_printf(t->out, "    %s w%u[E];\n    EACH(k) w%u[k] = %s(", cuda_register_type(natural),
                   k, k, convert);
        expr_operand(t, a);
        buf_puts(t->out, ");\n");
    }
    char from = plain ? 'v' : 'w';
    uint32_t number = plain ? (uint32_t)a : k;
    if (group_turned(t->g, k))
        buf_printf(t->out, "    store_pack<VEC>((%s *)&sums.q%u, %c%u + AT);\n", memory, k, from,
                   number);
    else
        buf_printf(t->out,
                   "    held<%s, VEC> m%u[UNITS];\n    RUNS hold(m%u[AT / VEC], %c%u + AT);\n",
                   memory, k, k, from, number);
}

void stmt_store(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const char *memory = cuda_memory_type(access_view(t->g, i)->dtype);
    const int32_t a = stmt_source(t, i);
    const char *convert = conversion(t, k, a);
    if (t->g->row_store[k]) {
        buf_printf(t->out, "    if (lane == 0) out%d[", i->slot);
        expr_address(t, k, "0");
        buf_printf(t->out, "] = store_as<%s>::from(%s(", memory, convert);
        expr_value(t, a, "0");
        buf_puts(t->out, "));\n");
        return;
    }
    if (stores_runs(t, k)) {
        if (!t->early) stmt_hold(t, k);
        if (group_turned(t->g, k)) return;
        buf_printf(t->out, "    RUNS store_held(out%d + ", i->slot);
        expr_address(t, k, "col");
        buf_printf(t->out, ", m%u[AT / VEC]);\n", k);
        return;
    }
    const bool shared = group_repeats(t->g, k) > 1; /* by columns, the first of which stores it */
    if (shared)
        buf_printf(t->out, "    RUNS if (col %% %" PRId64 " == 0) out%d[", group_repeats(t->g, k),
                   i->slot);
    else
        buf_printf(t->out, "    RUNS RUN(k) out%d[", i->slot);
    expr_address(t, k, shared ? "col" : "col + k");
    buf_printf(t->out, "] = store_as<%s>::from(%s(", memory, convert);
    expr_value(t, a, shared ? "AT" : "AT + k");
    buf_puts(t->out, "));\n");
}

/* a - where(place == label, constant, constant): as if no run had the label, then those that do. */
static bool put_all_but_one(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    int32_t place, label;
    if (i->code != OP_sub || i->dtype != DT_f32 || t->g->uniform[i->b]) return false;
    if (!expr_one_place(t, i->b, &place, &label)) return false;
    const struct group_instr *w = at(t, (uint32_t)i->b);
    if (at(t, (uint32_t)w->b)->code != INSTR_CONST) return false;
    buf_printf(t->out, "    float v%u[E];\n    EACH(k) v%u[k] = ", k, k);
    expr_operand(t, i->a);
    buf_puts(t->out, " - ");
    expr_operand(t, w->c);
    buf_puts(t->out, ";\n    ");
    expr_if_place(t, place, label);
    buf_printf(t->out, "v%u[AT + k] = ", k);
    expr_value(t, i->a, "AT + k");
    buf_puts(t->out, " - ");
    expr_operand(t, w->b);
    buf_puts(t->out, ";\n");
    return true;
}

/* tanh k with s = 0.5 (1 + tanh) beside it, or the gelu that is x s. */
static bool put_gelu_part(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    int32_t r = t->done ? expr_gelu_tanh(t, k) : -1;
    if (r >= 0) {
        buf_printf(t->out, "    float v%u[E];\n    EACH(k) v%u[k] = s%d[k] * ", k, k, r);
        expr_operand(t, i->a);
        buf_puts(t->out, ";\n");
        return true;
    }
    if (i->code != OP_tanh || !t->done || !t->g->fast || i->dtype != DT_f32) return false;
    buf_printf(t->out, "    float v%u[E], s%u[E];\n    EACH(k) v%u[k] = tanh_sigmoid<%s>(", k, k, k,
               expr_coarse_near_zero(t, (int32_t)k, false) ? "false" : "true");
    expr_operand(t, i->a);
    buf_printf(t->out, ", s%u[k]);\n", k);
    return true;
}

/* What bf16 or codes leave of all elements of a thread. */
static bool put_rounded(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const enum dtype to = (enum dtype)i->imm_int;
    if (i->code != OP_cast || i->dtype != DT_f32) return false;
    if (to != DT_bf16 && to != DT_e4m3 && to != DT_e5m2) return false;
    if (t->g->uniform[i->a] || t->g->by_run[i->a]) return false;
    if (at(t, (uint32_t)i->a)->code == INSTR_CONST) return false;
    if (at(t, (uint32_t)i->a)->dtype != DT_f32) return false;
    buf_printf(t->out, "    float v%u[E];\n    narrow_%s<E>(v%u, v%d);\n", k, dtype_name(to), k,
               i->a);
    return true;
}

/* Whether the scale in register y comes from the largest magnitude of the numbers in register x. */
static bool scale_of(const struct text *t, int32_t y, int32_t x) {
    const struct group_instr *i = at(t, (uint32_t)y);
    if (i->code == INSTR_PART_MAX || i->code == INSTR_MAX) {
        const struct group_instr *a = at(t, (uint32_t)i->a);
        return a->code == OP_abs && a->a == x;
    }
    bool by_number = (i->code == OP_add || i->code == OP_mul || i->code == OP_div) &&
                     at(t, (uint32_t)i->b)->code == INSTR_CONST &&
                     at(t, (uint32_t)i->b)->imm >= 0 && at(t, (uint32_t)i->b)->imm <= 65536;
    return (by_number || i->code == OP_cast) && scale_of(t, i->a, x);
}

/* The maximum of the magnitudes of register x that quotient k comes after, or -1: what a thread has
 * of it bounds its quotients. */
static int32_t bound_of(const struct text *t, uint32_t k, int32_t x) {
    for (uint32_t m = 0; m < k; m++) {
        const struct group_instr *i = at(t, m);
        if (i->code != INSTR_MAX || !t->totals[m]) continue;
        const struct group_instr *a = at(t, (uint32_t)i->a);
        if (a->code == OP_abs && a->a == x) return (int32_t)m;
    }
    return -1;
}

/* Quotients by one number, or one for each run, that become codes. */
static bool put_quotients(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const struct group_gen *g = t->g;
    if (i->code != OP_div || i->dtype != DT_f32 || !g->exact) return false;
    const bool runs = g->by_run[i->b];
    if (!runs && !g->uniform[i->b]) return false;
    if (g->uniform[i->a] || g->by_run[i->a] || at(t, (uint32_t)i->b)->code == INSTR_CONST)
        return false;
    const char *how = scale_of(t, i->b, i->a) ? "BOUNDED" : g->ncolsum ? "ONE_BY_ONE" : "TOGETHER";
    const char *from = runs ? " + AT" : "", *at_k = runs ? "AT + k" : "k", *bound = "";
    int32_t most = bound_of(t, k, i->a);
    if (most >= 0) {
        how = "BOUNDED";
        bound = arena_printf(g->c->scratch, " && a%d * inverse < F32_INF", most);
    }
    buf_printf(t->out, "    float v%u[E]INIT;\n    %s {\n        const float y = ", k,
               runs ? "RUNS" : "");
    expr_value(t, i->b, "AT");
    buf_printf(t->out,
               ", inverse = op_inverse(y);\n        if (inverse != 0.0f%s)\n"
               "            quotients<%s, %s>(v%u%s, v%d%s, y, inverse);\n"
               "        else\n            %s v%u[%s] = op_div(v%d[%s], y);\n    }\n",
               bound, runs ? "VEC" : "E", how, k, from, i->a, from, runs ? "RUN(k)" : "EACH(k)", k,
               at_k, i->a, at_k);
    return true;
}

void stmt_array(struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    if (t->g->by_run[k]) {
        put_runs(t, k);
        return;
    }
    if (put_quotients(t, k)) return;
    if (put_all_but_one(t, k) || put_gelu_part(t, k) || put_rounded(t, k)) return;
    const char *type = register_type(t, k);
    switch (i->code) {
    case INSTR_LOAD: put_load(t, k); return;
    case INSTR_STORE: stmt_store(t, k); return;
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
    default: /* a where() may be read at its one place only */
        buf_puts(t->out, i->code == OP_where ? "    [[maybe_unused]]" : "");
        buf_printf(t->out, "    %s v%u[E];\n    EACH(k) v%u[k] = ", type, k, k);
        expr_elementwise(t, i);
        break;
    }
    buf_puts(t->out, ";\n");
}
