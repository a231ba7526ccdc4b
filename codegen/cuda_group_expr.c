// SPDX-License-Identifier: Apache-2.0
/* cuda_group_expr.c - the expressions of a group's text: addresses, operands, elementwise functions
 * from the `emit` column of ops.def. Statements around them are cuda_group_text.c's. */
#include "codegen/cuda_group_text.h"
#include <inttypes.h>
#include <math.h>

/* ---- addresses ------------------------------------------------------------------------------- */
static bool moves(const struct group_gen *g, uint32_t k, bool inner) {
    int lo = inner ? g->border : 0, hi = inner ? g->y->rank : g->border;
    for (int d = lo; d < hi; d++)
        if (g->y->regs[k].strides[d] != 0) return true;
    return false;
}

/* The axes of the row or the column, less those that this access steps through as through one. */
static int merged(const struct group_gen *g, uint32_t k, bool inner, int64_t *dims,
                  int64_t *strides) {
    int lo = inner ? g->border : 0, hi = inner ? g->y->rank : g->border, n = 0;
    const int64_t *from = g->y->regs[k].strides;
    for (int d = lo; d < hi; d++) {
        if (n > 0 && strides[n - 1] == from[d] * g->y->dims[d]) {
            dims[n - 1] *= g->y->dims[d], strides[n - 1] = from[d];
            continue;
        }
        dims[n] = g->y->dims[d], strides[n++] = from[d];
    }
    return n;
}

/* "i / 64 % 8 * 512 + i % 64" as a function of the row or the column. */
void expr_address_function(struct text *t, uint32_t k, bool inner) {
    const struct group_gen *g = t->g;
    int64_t dims[RANK_MAX], strides[RANK_MAX];
    int lo = 0, hi = merged(g, k, inner, dims, strides);
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
void expr_address(struct text *t, uint32_t k, const char *column) {
    bool row = moves(t->g, k, false), col = moves(t->g, k, true);
    if (row) buf_printf(t->out, "r%u(row)", k);
    if (row && col) buf_puts(t->out, " + ");
    if (col) buf_printf(t->out, "c%u(%s)", k, column);
    if (!row && !col) buf_puts(t->out, "0");
}

/* The last axis alone decides what neighbouring columns are. */
bool expr_last_fixed(const struct group_gen *g, uint32_t k) {
    return g->y->rank == g->border || g->y->regs[k].strides[g->y->rank - 1] == 0;
}

/* ---- expressions ----------------------------------------------------------------------------- */
/* A constant is written where it is used. */
void expr_value(struct text *t, int32_t r, const char *index) {
    const struct group_instr *i = at(t, (uint32_t)r);
    if (i->code != INSTR_CONST && t->g->by_run[r]) {
        buf_printf(t->out, t->per_run ? "v%d[%s]" : "v%d[(%s) / VEC]", r, index);
        return;
    }
    if (i->code != INSTR_CONST) {
        buf_printf(t->out, t->g->uniform[r] ? "v%d" : "v%d[%s]", r, index);
        return;
    }
    struct buf literal;
    buf_init(&literal, t->g->c->scratch);
    cuda_literal(&literal, (enum dtype)i->dtype, i->imm, i->imm_int);
    buf_printf(t->out, literal.at[0] == '-' ? "(%s)" : "%s", literal.at);
}

void expr_operand(struct text *t, int32_t r) {
    expr_value(t, r, "k");
}

/* Whether a value that is rounded to 8 bits is read by stores alone, which do that as well. */
static bool stores_round(const struct text *t, const struct group_instr *i, enum dtype narrow) {
    const int32_t reg = (int32_t)(i - t->g->g->code.at);
    if (dtype_size(narrow) != 1) return false;
    for (uint32_t k = (uint32_t)reg + 1; k < t->g->n; k++) {
        const struct group_instr *user = at(t, k);
        if (user->a != reg && user->b != reg && user->c != reg) continue;
        if (user->code != INSTR_STORE || access_view(t->g, user)->dtype != narrow) return false;
    }
    return true;
}

static void put_cast(struct text *t, const struct group_instr *i) {
    enum dtype to = (enum dtype)i->dtype, from = (enum dtype)at(t, (uint32_t)i->a)->dtype;
    enum dtype narrow = i->imm_int ? (enum dtype)i->imm_int : to;
    bool cut = to != DT_bool && narrow != to &&
               (to == DT_i64 ? dtype_class(narrow) == DTC_INT : to == DT_f32);
    if (narrow == DT_f64 || narrow == DT_f32) cut = false;
    if (cut && to == DT_f32 && stores_round(t, i, narrow)) cut = false;
    if (cut) buf_printf(t->out, "narrow<%s>(", cuda_memory_type(narrow));
    if (from != to) buf_printf(t->out, "to_%s(", dtype_name(to));
    expr_operand(t, i->a);
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
        expr_operand(t, i->a);
        buf_puts(t->out, ")");
    }
    for (int k = 0; k < times; k++) {
        if (k) buf_puts(t->out, " * ");
        expr_operand(t, i->a);
    }
    return true;
}

/* Quotients by a number that become scales: its inverse is known here. */
static bool put_known_quotient(struct text *t, const struct group_instr *i) {
    const struct group_instr *by = at(t, (uint32_t)i->b);
    if (i->code != OP_div || i->dtype != DT_f32 || !t->g->exact) return false;
    if (by->code != INSTR_CONST || by->imm < 1 || by->imm > 0x1p64) return false;
    buf_puts(t->out, "op_div_number(");
    expr_operand(t, i->a);
    buf_puts(t->out, ", ");
    expr_operand(t, i->b);
    buf_puts(t->out, ", ");
    cuda_literal(t->out, DT_f32, (double)(1.0f / (float)by->imm), 0);
    buf_puts(t->out, ")");
    return true;
}

static bool whole_iota(const struct text *t, const struct group_instr *i) {
    double reach = fabs(i->imm) + fabs(i->imm2) * (double)t->g->g->dims[i->axis];
    return floor(i->imm) == i->imm && floor(i->imm2) == i->imm2 && reach < 16777216.0;
}

/* start + step * index; in whole numbers where they are exact. */
void expr_iota(struct text *t, uint32_t k, const char *column) {
    const struct group_instr *i = at(t, k);
    enum dtype reg = (enum dtype)i->dtype;
    if (whole_iota(t, i)) {
        buf_printf(t->out, "(%s)(%" PRId64 " + %" PRId64 " * (int)(", register_type(t, k),
                   (int64_t)i->imm, (int64_t)i->imm2);
    } else {
        buf_printf(t->out, "to_%s(", dtype_name(reg));
        cuda_literal(t->out, DT_f64, i->imm, 0);
        buf_puts(t->out, " + ");
        cuda_literal(t->out, DT_f64, i->imm2, 0);
        buf_puts(t->out, " * (double)(");
    }
    expr_address(t, k, column);
    buf_puts(t->out, "))");
}

/* Register r is where(place == label, .., constant), places those of the columns: *place and
 * *label. Hardly any run of columns has the label's. */
bool expr_one_place(const struct text *t, int32_t r, int32_t *place, int32_t *label) {
    const struct group_gen *g = t->g;
    const struct group_instr *w = at(t, (uint32_t)r), *e;
    if (w->code != OP_where || at(t, (uint32_t)w->c)->code != INSTR_CONST) return false;
    e = at(t, (uint32_t)w->a);
    if (e->code != OP_eq || g->y->rank == g->border) return false;
    for (int k = 0; k < 2; k++) {
        *place = k ? e->b : e->a, *label = k ? e->a : e->b;
        const struct group_instr *x = at(t, (uint32_t)*place);
        bool runs = x->code == INSTR_IOTA && x->dtype == DT_i64 && x->imm == 0 && x->imm2 == 1;
        if (runs && g->uniform[*label] && whole_iota(t, x) &&
            g->y->regs[*place].strides[g->y->rank - 1] == 1)
            return true;
    }
    return false;
}

/* "RUNS if (.. the run has it) RUN(k) if (.. column k is it) " */
void expr_if_place(struct text *t, int32_t place, int32_t label) {
    for (int k = 0; k < 2; k++) {
        buf_puts(t->out, k ? "RUN(k) if (index32(" : "RUNS if (index32(");
        expr_operand(t, label);
        buf_puts(t->out, k ? ") == (u32)(" : ") - (u32)(");
        expr_address(t, (uint32_t)place, k ? "col + k" : "col");
        buf_puts(t->out, k ? ")) " : ") < VEC) ");
    }
}

/* ---- gelu beside its derivative --------------------------------------------------------------
 */
/* The factor of (or what is added to) a number near c, or -1. */
static int32_t beside(const struct text *t, int32_t r, unsigned code, double c) {
    const struct group_instr *i = at(t, (uint32_t)r);
    if (i->code != code) return -1;
    for (int k = 0; k < 2; k++) {
        const struct group_instr *x = at(t, (uint32_t)(k ? i->a : i->b));
        if (x->code == INSTR_CONST && fabs(x->imm - c) < 1e-6) return k ? i->b : i->a;
    }
    return -1;
}

/* The tanh that gelu k is made of when its derivative has it already, or -1. */
int32_t expr_gelu_tanh(const struct text *t, uint32_t k) {
    const struct group_instr *i = at(t, k);
    const double c = 0.79788456080286536;
    if (i->code != OP_gelu || !i->flag || !t->g->fast || i->dtype != DT_f32) return -1;
    for (uint32_t r = 0; r < t->g->n; r++) {
        if (!t->need[r] || t->g->uniform[r] || at(t, r)->code != OP_tanh) continue;
        const struct group_instr *m = at(t, (uint32_t)at(t, r)->a); /* x (c + 0.044715 c x x) */
        if (m->code != OP_mul || (m->a != i->a && m->b != i->a)) continue;
        int32_t p = beside(t, m->a == i->a ? m->b : m->a, OP_add, c);
        if (p >= 0) p = beside(t, p, OP_mul, 0.044715 * c);
        if (p < 0 || at(t, (uint32_t)p)->code != OP_mul) continue;
        if (at(t, (uint32_t)p)->a == i->a && at(t, (uint32_t)p)->b == i->a) return (int32_t)r;
    }
    return -1;
}

/* Whether register r is only ever squared, or added to a number by way of a factor. */
bool expr_coarse_near_zero(const struct text *t, int32_t r, bool scaled) {
    for (uint32_t k = 0; k < t->g->n; k++) {
        const struct group_instr *i = at(t, k);
        if (i->a != r && i->b != r && i->c != r) continue;
        bool number = i->c < 0 && i->b >= 0 && i->a != i->b &&
                      at(t, (uint32_t)(i->a == r ? i->b : i->a))->code == INSTR_CONST;
        if (!scaled && i->code == OP_mul && i->a == r && i->b == r) continue;
        if (number && scaled && i->code == OP_add &&
            at(t, (uint32_t)(i->a == r ? i->b : i->a))->imm == 0.5)
            continue;
        if (number && !scaled && i->code == OP_mul && expr_coarse_near_zero(t, (int32_t)k, true))
            continue;
        return false;
    }
    return true;
}

/* A place in a row beside a label: of 32 bits. */
static bool put_place_test(struct text *t, const struct group_instr *i) {
    if (i->code != OP_eq) return false;
    for (int k = 0; k < 2; k++) {
        const struct group_instr *x = at(t, (uint32_t)(k ? i->b : i->a));
        if (x->code != INSTR_IOTA || x->dtype != DT_i64 || x->imm < 0 || x->imm2 < 0) continue;
        if (!whole_iota(t, x)) continue;
        buf_puts(t->out, "(u32)");
        expr_operand(t, k ? i->b : i->a);
        buf_puts(t->out, " == index32(");
        expr_operand(t, k ? i->a : i->b);
        buf_puts(t->out, ")");
        return true;
    }
    return false;
}

/* The `emit` text with operands in place. Sums and products of integers wrap. */
void expr_elementwise(struct text *t, const struct group_instr *i) {
    const int32_t r[3] = {i->a, i->b, i->c};
    bool wraps = i->dtype == DT_i64 &&
                 (i->code == OP_add || i->code == OP_sub || i->code == OP_mul || i->code == OP_neg);
    if (i->code == OP_cast) {
        put_cast(t, i);
        return;
    }
    if ((i->code == OP_pow && put_power(t, i)) || put_place_test(t, i)) return;
    if (put_known_quotient(t, i)) return;
    if (wraps) buf_puts(t->out, "(i64)(");
    for (const char *s = op_info((enum op)i->code)->emit; *s; s++) {
        if (*s == '%' && s[1] >= '0' && s[1] <= '2') {
            if (wraps) buf_puts(t->out, "(u64)");
            expr_operand(t, r[*++s - '0']);
        } else if (*s == '%' && s[1] == 'f') {
            buf_puts(t->out, i->flag ? "true" : "false");
            s++;
        } else {
            buf_put(t->out, s, 1);
        }
    }
    if (wraps) buf_puts(t->out, ")");
}

void expr_random(struct text *t, uint32_t k, const char *index) {
    const struct group_instr *i = at(t, k);
    buf_printf(t->out, "random_%s(%s, ", i->dtype == DT_f64 ? "f64" : "f32", index);
    buf_printf(t->out, "%" PRIu64 "ull, in%d[0])", (uint64_t)i->imm_int, i->slot);
}
