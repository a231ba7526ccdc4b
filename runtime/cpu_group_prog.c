// SPDX-License-Identifier: Apache-2.0
/* cpu_group_prog.c - prepares fused groups: classifies operands and picks kernels once, so that the
 * interpreter's loop has nothing left to decide. */
#include "runtime/cpu_group_prog.h"

static enum group_where where_of(const struct group_program *p, int32_t reg) {
    return p->y->regs[reg].where;
}

/* A form of the kernel for single-value operands in `single`, repeating as few as possible. */
static struct ew_call pick_call(enum op op, enum dtype in, bool flag, int nargs, unsigned single) {
    unsigned vectors = op == OP_where ? 7u : 1u; /* operands that must be vectors */
    enum ew_form form = EW_VV;
    unsigned kept = 0;
    if (nargs == 2 && single & 2u)
        form = EW_VS, kept = 2u;
    else if (nargs == 2 && single == 1u)
        form = EW_SV, kept = 1u;
    else if (nargs == 3 && (single & 6u) == 6u && !(vectors & 6u))
        form = EW_VS, kept = 6u;
    if (form != EW_VV) {
        ew_fn *fn = ew_kernel(op, in, form, flag);
        if (fn) return (struct ew_call){fn, (uint8_t)(single & ~kept)};
    }
    return (struct ew_call){ew_kernel(op, in, EW_VV, flag), (uint8_t)single};
}

static void classify_ew(const struct group_program *p, const struct group_instr *k,
                        struct program_step *s) {
    int32_t ops[3] = {k->a, k->b, k->c};
    unsigned scalars = 0;
    for (int j = 0; j < 3 && ops[j] >= 0; j++) {
        s->nargs++;
        if (where_of(p, ops[j]) == REG_SCALAR) scalars |= 1u << j;
        if (where_of(p, ops[j]) == REG_ROW) s->row_args |= (uint8_t)(1u << j);
    }
    enum op op = (enum op)k->code;
    enum dtype in = (enum dtype)p->g->code.at[op == OP_where ? k->b : k->a].dtype;
    s->as_vector = pick_call(op, in, k->flag, s->nargs, scalars);
    s->as_scalar = pick_call(op, in, k->flag, s->nargs, scalars | s->row_args);
    if (s->per_row) s->row_args = 0; /* vectors of rows */
}

static bool writes_rows(const struct group_layout *y, const struct group_reg *r) {
    for (int i = y->rank - y->inner; i < y->rank; i++)
        if (r->strides[i] != 0) return false;
    return true;
}

static enum step_kind kind_of(uint16_t code) {
    switch (code) {
    case INSTR_LOAD: return STEP_LOAD;
    case INSTR_IOTA: return STEP_IOTA;
    case INSTR_RANDOM: return STEP_RANDOM;
    case INSTR_STORE: return STEP_STORE;
    case INSTR_SUM:
    case INSTR_MAX:
    case INSTR_MIN:
    case INSTR_PROD: return STEP_REDUCE;
    case INSTR_COLSUM:
    case INSTR_COLMAX: return STEP_COLSUM;
    case INSTR_PART_MAX:
    case INSTR_PART_MIN: return STEP_PART;
    case OP_cast: return STEP_CAST;
    default: return STEP_EW;
    }
}

/* Nothing happens for operands that are read in place and results that were written in place. */
static bool skipped(const struct group_program *p, uint32_t i) {
    const struct group_instr *k = &p->g->code.at[i];
    const struct group_reg *r = &p->y->regs[i];
    if (k->code == INSTR_LOAD) return r->where == REG_DIRECT;
    if (k->code != INSTR_STORE) return false;
    const struct group_reg *a = &p->y->regs[k->a];
    return p->g->code.at[k->a].code < INSTR_LOAD && a->where == REG_DIRECT &&
           a->store == (int32_t)i;
}

static enum status prepare_step(struct cpu_exec *x, const struct plan_launch *l,
                                struct group_program *p, struct group_step at) {
    const struct group_instr *k = &p->g->code.at[at.instr];
    const struct group_reg *r = &p->y->regs[at.instr];
    struct program_step s = {.instr = at.instr, .stage = at.stage, .kind = kind_of(k->code)};
    s.hoisted = r->hoisted;
    s.per_row = r->where == REG_ROW && s.kind != STEP_REDUCE;
    if (s.kind == STEP_STORE) {
        enum group_where a = where_of(p, k->a);
        s.per_row = (a == REG_ROW || a == REG_SCALAR) && writes_rows(p->y, r);
    }
    if (s.kind == STEP_EW) {
        classify_ew(p, k, &s);
        if (!s.as_vector.fn || !s.as_scalar.fn)
            return diag_error(x->ctx, ST_UNSUPPORTED, interned(&x->plan->strings, l->origin),
                              "the CPU backend has no %s for %s operands; cast them first",
                              op_info((enum op)k->code)->name,
                              dtype_name((enum dtype)p->g->code.at[k->a].dtype));
    }
    p->steps[p->nsteps++] = s;
    return ST_OK;
}

enum status group_prepare(struct cpu_exec *x, const struct plan_launch *l,
                          struct group_program **out) {
    struct group_program *p = ARENA_NEW(&x->arena, struct group_program);
    p->y = plan_group_layout(x->plan, l, &x->arena);
    p->g = &x->plan->groups.at[l->group.i];
    p->steps = ARENA_ARRAY(&x->arena, struct program_step, p->y->nsteps + 1);
    for (uint32_t i = 0; i < p->y->nsteps; i++)
        if (!skipped(p, p->y->steps[i].instr)) TRY(prepare_step(x, l, p, p->y->steps[i]));
    *out = p;
    return ST_OK;
}
