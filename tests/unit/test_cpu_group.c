// SPDX-License-Identifier: Apache-2.0
/* test_cpu_group.c - fused groups on the CPU: random programs over random strided views against an
 * evaluator that computes one element at a time in f64, and the precision of every f32 kernel. */
#include "cpu_rig.h"

/* ---- a slow evaluator
 * ---------------------------------------------------------------------------- */

struct slow {
    struct rig *r;
    const struct plan_launch *l;
    const struct plan_group *g;
    int64_t rows, cols;
    double *val; /* [instr][rows*cols]; row values repeated */
};

static double slow_op(const struct group_instr *k, double x, double y, double z, bool is_int) {
    switch (k->code) {
    case OP_neg: return -x;
    case OP_abs: return fabs(x);
    case OP_exp: return exp(x);
    case OP_tanh: return tanh(x);
    case OP_sigmoid: return 1 / (1 + exp(-x));
    case OP_relu: return x > 0 ? x : 0;
    case OP_gelu:
        return k->flag ? 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)))
                       : 0.5 * x * erfc(-x / sqrt(2));
    case OP_sin: return sin(x);
    case OP_not: return x == 0;
    case OP_cast: return is_int ? trunc(x) : x;
    case OP_add: return x + y;
    case OP_sub: return x - y;
    case OP_mul: return x * y;
    case OP_max: return fmax(x, y);
    case OP_min: return fmin(x, y);
    case OP_lt: return x < y;
    case OP_le: return x <= y;
    case OP_and: return x != 0 && y != 0;
    case OP_clip: return fmin(fmax(x, y), z);
    case OP_where: return x != 0 ? y : z;
    default: ck_abort_msg("op %d has no reference", k->code);
    }
    return 0;
}

static int64_t slow_offset(const struct plan_group *g, const struct plan_view *v, int64_t e) {
    int64_t at = v->offset;
    for (int i = g->rank - 1; i >= 0; i--) {
        int64_t d = e % g->dims[i];
        int k = i - (g->rank - v->rank);
        if (k >= 0 && v->dims[k] != 1) at += d * v->strides[k];
        e /= g->dims[i];
    }
    return at;
}

static double *slow_memory(struct slow *s, const struct plan_view *v) {
    const struct plan_buffer *b = &s->r->p->buffers.at[v->buffer.i];
    (void)b;
    return cpu_buffer_at(s->r->x, v->buffer);
}

static double slow_at(struct slow *s, int32_t reg, int64_t e) {
    return reg < 0 ? 0 : s->val[(int64_t)reg * s->rows * s->cols + e];
}

static void slow_instr(struct slow *s, uint32_t i) {
    const struct group_instr *k = &s->g->code.at[i];
    double *o = s->val + (int64_t)i * s->rows * s->cols;
    bool is_int = k->dtype == DT_i64;
    for (int64_t e = 0; e < s->rows * s->cols; e++) {
        int64_t row = e / s->cols, rest = e;
        switch (k->code) {
        case INSTR_LOAD: {
            const struct plan_view *v = &s->l->in[k->slot];
            const char *p = (const char *)slow_memory(s, v);
            o[e] =
                dtype_load(v->dtype, p + slow_offset(s->g, v, e) * (int64_t)dtype_size(v->dtype));
            break;
        }
        case INSTR_CONST: o[e] = is_int ? (double)k->imm_int : k->imm; break;
        case INSTR_IOTA:
            for (int a = s->g->rank - 1; a > k->axis; a--) rest /= s->g->dims[a];
            o[e] = k->imm + k->imm2 * (double)(rest % s->g->dims[k->axis]);
            break;
        case INSTR_STORE:
        case INSTR_COLSUM:
        case INSTR_COLMAX: break;
        case INSTR_SUM:
        case INSTR_MAX:
        case INSTR_MIN:
        case INSTR_PROD: {
            double t = k->code == INSTR_SUM    ? 0
                       : k->code == INSTR_PROD ? 1
                       : k->code == INSTR_MAX  ? -INFINITY
                                               : INFINITY;
            for (int64_t c = 0; c < s->cols && (e % s->cols == 0); c++) {
                double x = slow_at(s, k->a, row * s->cols + c);
                t = k->code == INSTR_SUM    ? t + x
                    : k->code == INSTR_PROD ? t * x
                    : k->code == INSTR_MAX  ? fmax(t, x)
                                            : fmin(t, x);
            }
            o[e] = e % s->cols == 0 ? t : o[row * s->cols];
            break;
        }
        default:
            o[e] =
                slow_op(k, slow_at(s, k->a, e), slow_at(s, k->b, e), slow_at(s, k->c, e), is_int);
        }
    }
}

/* Compare what a STORE, COLSUM or COLMAX left behind. */
static void slow_compare(struct slow *s, uint32_t i, double tol) {
    const struct group_instr *k = &s->g->code.at[i];
    const struct plan_view *v =
        k->code == INSTR_STORE || instr_is_column(k->code) ? &s->l->out[k->slot] : NULL;
    if (!v) return;
    const char *p = (const char *)slow_memory(s, v);
    int64_t size = (int64_t)dtype_size(v->dtype);
    if (v->dtype == DT_bf16) tol = 0.01;
    for (int64_t e = 0; e < s->rows * s->cols; e++) {
        double want = slow_at(s, k->a, e), scale = 1;
        if (k->code == INSTR_COLSUM) {
            if (e >= s->cols) break;
            want = 0, scale = 0;
            for (int64_t r = 0; r < s->rows; r++) {
                double x = slow_at(s, k->a, r * s->cols + e);
                want += x;
                scale += fabs(x);
            }
            scale = 1 + scale / 8;
        }
        if (k->code == INSTR_COLMAX) {
            if (e >= s->cols) break;
            want = -INFINITY;
            for (int64_t r = 0; r < s->rows; r++)
                want = fmax(want, slow_at(s, k->a, r * s->cols + e));
        }
        double got = dtype_load(v->dtype, p + slow_offset(s->g, v, e) * size);
        rig_close(got, want, tol * scale, "element", e);
    }
}

static double group_tol = 2e-5;
static void verify_group(struct rig *r) {
    struct slow s = {.r = r, .l = &r->p->launches.at[0]};
    s.g = &r->p->groups.at[s.l->group.i];
    s.rows = group_rows(s.g), s.cols = group_row_length(s.g);
    s.val = ARENA_ARRAY(&r->t->arena, double, (size_t)(s.rows * s.cols) * s.g->code.n + 1);
    for (uint32_t i = 0; i < s.g->code.n; i++) slow_instr(&s, i);
    for (uint32_t i = 0; i < s.g->code.n; i++) slow_compare(&s, i, group_tol);
}

/* ---- random programs
 * ------------------------------------------------------------------------------ */

struct maker {
    struct rig *r;
    struct plan_group g;
    uint64_t *s;
    struct plan_view in[24], out[24];
    uint32_t nin, nout;
};

static int32_t emit(struct maker *m, struct group_instr k) {
    vec_push(&m->r->p->arena, &m->g.code, k);
    return (int32_t)m->g.code.n - 1;
}
static struct group_instr instr(uint16_t code, uint8_t dtype, uint8_t span, int32_t a, int32_t b,
                                int32_t c) {
    return (struct group_instr){.code = code, .dtype = dtype, .span = span, .a = a, .b = b, .c = c};
}

/* A view of the iteration space with random layout: permuted, repeated, gapped or reversed axes. */
static struct plan_view random_view(struct maker *m, enum buffer_kind kind, enum dtype t,
                                    bool may_repeat, bool plain) {
    struct plan_view v = {.dtype = t, .rank = m->g.rank};
    int order[RANK_MAX];
    for (int i = 0; i < m->g.rank; i++) order[i] = i;
    if (!plain && rig_int(m->s, 0, 2) == 0)
        for (int i = m->g.rank - 1; i > 0; i--) {
            int j = (int)rig_int(m->s, 0, i), x = order[i];
            order[i] = order[j], order[j] = x;
        }
    int64_t stride = 1, low = 0, high = 0;
    if (!plain && rig_int(m->s, 0, 4) == 0) stride = 2;
    for (int i = m->g.rank - 1; i >= 0; i--) {
        int a = order[i];
        v.dims[a] = m->g.dims[a];
        bool repeat = may_repeat && !plain && rig_int(m->s, 0, 3) == 0;
        v.strides[a] = repeat ? 0 : stride;
        if (!plain && !repeat && rig_int(m->s, 0, 6) == 0) v.strides[a] = -stride;
        int64_t reach = v.strides[a] * (v.dims[a] - 1);
        if (reach < 0) low += reach;
        if (reach > 0) high += reach;
        if (!repeat) stride *= v.dims[a];
    }
    v.offset = -low;
    char name[16];
    snprintf(name, sizeof name, "%c%u", kind == BUF_INPUT ? 'i' : 'o',
             kind == BUF_INPUT ? m->nin : m->nout);
    v.buffer = rig_buffer(m->r, kind, name, t, high - low + 1);
    return v;
}

static int32_t make_load(struct maker *m) {
    static const enum dtype types[] = {DT_f32, DT_f32, DT_f32, DT_bf16, DT_f16};
    enum dtype t = types[rig_int(m->s, 0, 4)];
    m->in[m->nin] = random_view(m, BUF_INPUT, t, true, rig_int(m->s, 0, 1));
    struct group_instr k = instr(INSTR_LOAD, DT_f32, SPAN_ALL, -1, -1, -1);
    k.slot = (int32_t)m->nin++;
    return emit(m, k);
}

static void make_store(struct maker *m, int32_t a) {
    bool row = m->g.code.at[a].span == SPAN_ROW;
    struct plan_view v = random_view(m, BUF_OUTPUT, rig_int(m->s, 0, 5) ? DT_f32 : DT_bf16, false,
                                     rig_int(m->s, 0, 1));
    if (row && rig_int(m->s, 0, 3))
        for (int i = m->g.rank - m->g.inner; i < m->g.rank; i++) v.dims[i] = 1, v.strides[i] = 0;
    if (row)
        for (int i = 0; i < m->g.rank; i++) /* stay inside after the inner axes went */
            if (v.strides[i] < 0) v.strides[i] = -v.strides[i];
    if (row) v.offset = 0;
    m->out[m->nout] = v;
    struct group_instr k = instr(INSTR_STORE, DT_f32, SPAN_ALL, a, -1, -1);
    k.slot = (int32_t)m->nout++;
    emit(m, k);
}

static int32_t pick_reg(struct maker *m, const int32_t *regs, int n, bool rows_only) {
    for (int tries = 0; tries < 50; tries++) {
        int32_t k = regs[rig_int(m->s, 0, n - 1)];
        if (!rows_only || m->g.code.at[k].span == SPAN_ROW) return k;
    }
    return regs[0];
}

static int32_t make_arith(struct maker *m, const int32_t *regs, int n) {
    static const uint16_t one[] = {OP_neg, OP_abs, OP_tanh, OP_sigmoid, OP_relu, OP_gelu, OP_sin};
    static const uint16_t two[] = {OP_add, OP_sub, OP_mul, OP_max, OP_min};
    int32_t a = pick_reg(m, regs, n, false), b = pick_reg(m, regs, n, false),
            c = pick_reg(m, regs, n, false);
    bool row_a = m->g.code.at[a].span == SPAN_ROW, row_b = m->g.code.at[b].span == SPAN_ROW;
    uint8_t two_span = row_a && row_b ? SPAN_ROW : SPAN_ALL;
    switch (rig_int(m->s, 0, 5)) {
    case 0:
    case 1:
        return emit(
            m, instr(one[rig_int(m->s, 0, 6)], DT_f32, row_a ? SPAN_ROW : SPAN_ALL, a, -1, -1));
    case 2: {
        int32_t lo = emit(m, instr(INSTR_CONST, DT_f32, SPAN_ROW, -1, -1, -1));
        int32_t hi = emit(m, instr(INSTR_CONST, DT_f32, SPAN_ROW, -1, -1, -1));
        m->g.code.at[lo].imm = -0.5, m->g.code.at[hi].imm = 0.75;
        return emit(m, instr(OP_clip, DT_f32, row_a ? SPAN_ROW : SPAN_ALL, a, lo, hi));
    }
    case 3: {
        int32_t t = emit(m, instr(OP_lt, DT_bool, two_span, a, b, -1));
        return emit(m, instr(OP_where, DT_f32, SPAN_ALL, t, b, c));
    }
    default: return emit(m, instr(two[rig_int(m->s, 0, 4)], DT_f32, two_span, a, b, -1));
    }
}

static void build_random(struct rig *r) {
    const int64_t *want = r->user; /* mode, rank, inner, dims.. */
    uint64_t seed = r->seed;
    struct maker m = {.r = r, .s = &seed};
    m.g.mode = (enum group_mode)want[0];
    m.g.rank = (int)want[1], m.g.inner = (int)want[2];
    for (int i = 0; i < m.g.rank; i++) m.g.dims[i] = want[3 + i];
    int32_t regs[64];
    int n = 0;
    for (int i = (int)rig_int(m.s, 1, 3); i > 0; i--) regs[n++] = make_load(&m);
    struct group_instr c = instr(INSTR_CONST, DT_f32, SPAN_ROW, -1, -1, -1);
    c.imm = 0.5;
    regs[n++] = emit(&m, c);
    struct group_instr io = instr(INSTR_IOTA, DT_f32, SPAN_ALL, -1, -1, -1);
    io.axis = (int32_t)rig_int(m.s, 0, m.g.rank - 1), io.imm = 0.25, io.imm2 = 0.001;
    regs[n++] = emit(&m, io);
    for (int i = (int)rig_int(m.s, 1, 6); i > 0; i--, n++) regs[n] = make_arith(&m, regs, n);
    int stages = m.g.mode == GROUP_MAP ? 0 : (int)rig_int(m.s, 1, 3);
    for (int i = 0; i < stages; i++) {
        int32_t a = pick_reg(&m, regs, n, false);
        static const uint16_t red[] = {INSTR_SUM, INSTR_MAX, INSTR_MIN};
        int32_t s = emit(&m, instr(red[rig_int(m.s, 0, 2)], DT_f32, SPAN_ROW, a, -1, -1));
        int32_t k = emit(&m, instr(INSTR_CONST, DT_f32, SPAN_ROW, -1, -1, -1));
        m.g.code.at[k].imm = 1e-3;
        s = emit(&m, instr(OP_mul, DT_f32, SPAN_ROW, s, k, -1));
        s = emit(&m, instr(OP_tanh, DT_f32, SPAN_ROW, s, -1, -1));
        if (m.g.mode == GROUP_TAIL) {
            make_store(&m, s);
            continue;
        }
        regs[n++] = s;
        for (int j = (int)rig_int(m.s, 0, 2); j > 0; j--, n++) regs[n] = make_arith(&m, regs, n);
    }
    if (m.g.mode != GROUP_TAIL && rig_int(m.s, 0, 2) == 0) {
        int32_t a = regs[n - 1];
        m.out[m.nout] =
            rig_new(r, BUF_OUTPUT, "colsum", DT_f32, m.g.inner, m.g.dims + m.g.rank - m.g.inner);
        uint16_t code = rig_int(m.s, 0, 1) ? INSTR_COLSUM : INSTR_COLMAX;
        struct group_instr k = instr(code, DT_f32, SPAN_ALL, a, -1, -1);
        k.slot = (int32_t)m.nout++;
        emit(&m, k);
    }
    if (m.g.mode != GROUP_TAIL || rig_int(m.s, 0, 1))
        make_store(&m, m.g.mode == GROUP_TAIL ? regs[0] : regs[n - 1]);
    make_store(&m, m.g.mode == GROUP_TAIL ? regs[0] : pick_reg(&m, regs, n, false));
    vec_push(&r->p->arena, &r->p->groups, m.g);
    rig_launch(r, LAUNCH_group, (group_id){1}, m.in, m.nin, m.out, m.nout, NULL, 0);
}

static void run_shapes(struct rig *r, const int64_t (*shapes)[7], int n, int seeds) {
    if (getenv("LATHE_TEST_SHORT")) seeds = 1;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < seeds; s++) {
            int64_t want[7];
            memcpy(want, shapes[i], sizeof want);
            r->user = want;
            r->seed = (uint64_t)(i * 1000 + s + 1);
            rig_run(r, build_random, rig_fill, verify_group);
            arena_reset(&r->t->arena);
        }
}

RIG_TEST(random_map) {
    static const int64_t shapes[][7] = {
        {0, 1, 1, 1},        {0, 1, 1, 3},           {0, 2, 1, 17, 129},   {0, 2, 1, 1000, 3},
        {0, 2, 2, 127, 40},  {0, 3, 1, 5, 7, 1000},  {0, 3, 2, 9, 64, 64}, {0, 4, 2, 3, 1, 17, 70},
        {0, 2, 1, 3, 20000}, {0, 4, 1, 2, 40, 33, 1}};
    run_shapes(r, shapes, 10, 6);
}
RIG_TEST(random_row) {
    static const int64_t shapes[][7] = {
        {1, 1, 1, 1},       {1, 2, 1, 1000, 3},    {1, 2, 1, 129, 17},    {1, 2, 1, 37, 768},
        {1, 2, 1, 5, 9001}, {1, 3, 2, 17, 3, 127}, {1, 3, 1, 6, 5, 1500}, {1, 2, 1, 400, 1}};
    run_shapes(r, shapes, 8, 6);
}
RIG_TEST(random_tail) {
    static const int64_t shapes[][7] = {{2, 1, 1, 100000},
                                        {2, 2, 1, 3, 40000},
                                        {2, 2, 2, 300, 301},
                                        {2, 2, 1, 2, 7},
                                        {2, 3, 2, 2, 3, 5000}};
    run_shapes(r, shapes, 5, 4);
}

/* ---- in place
 * ------------------------------------------------------------------------------------- */

/* softmax over long rows, written over its operand. */
static void build_in_place(struct rig *r) {
    struct maker m = {.r = r, .g = {.mode = GROUP_ROW, .rank = 2, .inner = 1}};
    m.g.dims[0] = 5, m.g.dims[1] = ((const int64_t *)r->user)[0];
    struct plan_view x = rig_new(r, BUF_STATE, "x", DT_f32, 2, m.g.dims);
    struct plan_view y = x, seed = rig_new(r, BUF_INPUT, "i0", DT_f32, 2, m.g.dims);
    y.buffer = rig_buffer(r, BUF_STATE, "y", DT_f32, 5 * m.g.dims[1]);
    r->p->buffers.at[y.buffer.i].alias = x.buffer;
    /* launch 0: x = i0 */
    emit(&m, instr(INSTR_LOAD, DT_f32, SPAN_ALL, -1, -1, -1));
    emit(&m, instr(INSTR_STORE, DT_f32, SPAN_ALL, 0, -1, -1));
    struct plan_group copy = m.g;
    copy.mode = GROUP_MAP;
    vec_push(&r->p->arena, &r->p->groups, copy);
    rig_launch(r, LAUNCH_group, (group_id){1}, &seed, 1, &x, 1, NULL, 0);
    m.g.code.at = NULL, m.g.code.n = m.g.code.cap = 0;
    emit(&m, instr(INSTR_LOAD, DT_f32, SPAN_ALL, -1, -1, -1));
    emit(&m, instr(INSTR_MAX, DT_f32, SPAN_ROW, 0, -1, -1));
    emit(&m, instr(OP_sub, DT_f32, SPAN_ALL, 0, 1, -1));
    emit(&m, instr(OP_exp, DT_f32, SPAN_ALL, 2, -1, -1));
    emit(&m, instr(INSTR_SUM, DT_f32, SPAN_ROW, 3, -1, -1));
    emit(&m, instr(OP_div, DT_f32, SPAN_ALL, 3, 4, -1));
    emit(&m, instr(INSTR_STORE, DT_f32, SPAN_ALL, 5, -1, -1));
    emit(&m, instr(OP_mul, DT_f32, SPAN_ALL, 0, 5, -1)); /* the operand, after the store */
    emit(&m, instr(INSTR_SUM, DT_f32, SPAN_ROW, 7, -1, -1));
    emit(&m, instr(INSTR_STORE, DT_f32, SPAN_ALL, 8, -1, -1));
    m.g.code.at[9].slot = 1;
    vec_push(&r->p->arena, &r->p->groups, m.g);
    struct plan_view outs[2] = {y, rig_new(r, BUF_OUTPUT, "o0", DT_f32, 2, DIMS(5, 1))};
    outs[1].strides[1] = 0;
    rig_launch(r, LAUNCH_group, (group_id){2}, &x, 1, outs, 2, NULL, 0);
}
static void verify_in_place(struct rig *r) {
    const float *x = rig_at(r, "i0"), *y = rig_at(r, "y"), *o = rig_at(r, "o0");
    int64_t n = ((const int64_t *)r->user)[0];
    for (int64_t i = 0; i < 5; i++) {
        double sum = 0, dot = 0;
        for (int64_t k = 0; k < n; k++) sum += exp((double)x[i * n + k]);
        for (int64_t k = 0; k < n; k++) {
            double p = exp((double)x[i * n + k]) / sum;
            dot += p * (double)x[i * n + k];
            rig_close((double)y[i * n + k] / p, 1, 4e-6, "softmax", i * n + k);
        }
        rig_close((double)o[i], dot, 1e-5, "dot", i);
    }
}
RIG_TEST(in_place) {
    const int64_t sizes[] = {1, 3, 127, 1000, 5000, 20011};
    for (int i = 0; i < 6; i++) {
        int64_t n = sizes[i];
        r->user = &n;
        rig_run(r, build_in_place, rig_fill, verify_in_place);
    }
}

/* ---- every kernel
 * --------------------------------------------------------------------------------- */

struct unary_case {
    uint16_t op;
    bool flag;
    double low, high, rel;
    double (*f)(double);
};
static double f_recip(double x) {
    return 1 / x;
}
static double f_rsqrt(double x) {
    return 1 / sqrt(x);
}
static double f_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}
static double f_silu(double x) {
    return x / (1 + exp(-x));
}
static double f_gelu(double x) {
    return 0.5 * x * erfc(-x / sqrt(2));
}
static double f_gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}
static double f_neg(double x) {
    return -x;
}
static double f_relu(double x) {
    return x > 0 ? x : 0;
}
static double f_sign(double x) {
    return (x > 0) - (x < 0);
}
static const struct unary_case unary_cases[] = {{OP_neg, 0, -9, 9, 0, f_neg},
                                                {OP_abs, 0, -9, 9, 0, fabs},
                                                {OP_sign, 0, -9, 9, 0, f_sign},
                                                {OP_floor, 0, -9, 9, 0, floor},
                                                {OP_ceil, 0, -9, 9, 0, ceil},
                                                {OP_round, 0, -9, 9, 0, rint},
                                                {OP_exp, 0, -87, 88, 3e-7, exp},
                                                {OP_log, 0, 1e-30, 9, 2e-7, log},
                                                {OP_log, 0, 0.9, 1.1, 3e-7, log},
                                                {OP_log, 0, 1e3, 1e30, 2e-7, log},
                                                {OP_log1p, 0, -0.9, 9, 2e-7, log1p},
                                                {OP_expm1, 0, -9, 9, 2e-7, expm1},
                                                {OP_sqrt, 0, 0, 9, 1e-7, sqrt},
                                                {OP_rsqrt, 0, 1e-3, 9, 2e-7, f_rsqrt},
                                                {OP_recip, 0, -9, 9, 1e-7, f_recip},
                                                {OP_sin, 0, -1.5, 1.5, 2e-7, sin},
                                                {OP_cos, 0, -1.5, 1.5, 4e-7, cos},
                                                {OP_tan, 0, -1.5, 1.5, 2e-7, tan},
                                                {OP_asin, 0, -1, 1, 2e-7, asin},
                                                {OP_acos, 0, -1, 1, 2e-7, acos},
                                                {OP_atan, 0, -9, 9, 2e-7, atan},
                                                {OP_sinh, 0, -9, 9, 2e-7, sinh},
                                                {OP_cosh, 0, -9, 9, 2e-7, cosh},
                                                {OP_tanh, 0, -12, 12, 3e-7, tanh},
                                                {OP_tanh, 0, -0.7, 0.7, 3e-7, tanh},
                                                {OP_erf, 0, -5, 5, 3e-7, erf},
                                                {OP_sigmoid, 0, -80, 80, 4e-7, f_sigmoid},
                                                {OP_relu, 0, -9, 9, 0, f_relu},
                                                {OP_gelu, 0, -5, 9, 2e-6, f_gelu},
                                                {OP_silu, 0, -80, 9, 4e-7, f_silu}};

static void build_unary(struct rig *r) {
    const struct unary_case *u = r->user;
    enum dtype t = r->want == ST_OK && r->check ? DT_f64 : DT_f32;
    struct maker m = {.r = r, .g = {.mode = GROUP_MAP, .rank = 1, .inner = 1}};
    m.g.dims[0] = 10007;
    struct plan_view x = rig_new(r, BUF_INPUT, "i0", t, 1, m.g.dims);
    struct plan_view y = rig_new(r, BUF_OUTPUT, "o0", t, 1, m.g.dims);
    emit(&m, instr(INSTR_LOAD, (uint8_t)t, SPAN_ALL, -1, -1, -1));
    emit(&m, instr(u->op, (uint8_t)t, SPAN_ALL, 0, -1, -1));
    m.g.code.at[1].flag = u->flag;
    emit(&m, instr(INSTR_STORE, (uint8_t)t, SPAN_ALL, 1, -1, -1));
    vec_push(&r->p->arena, &r->p->groups, m.g);
    rig_launch(r, LAUNCH_group, (group_id){1}, &x, 1, &y, 1, NULL, 0);
}
static void fill_unary(struct rig *r) {
    const struct unary_case *u = r->user;
    enum dtype t = r->check ? DT_f64 : DT_f32;
    char *x = rig_at(r, "i0");
    for (int64_t i = 0; i < 10007; i++)
        dtype_store(t, x + i * (int64_t)dtype_size(t), rig_uniform(&r->seed, u->low, u->high));
}
static void verify_unary(struct rig *r) {
    const struct unary_case *u = r->user;
    enum dtype t = r->check ? DT_f64 : DT_f32;
    const char *x = rig_at(r, "i0"), *y = rig_at(r, "o0");
    for (int64_t i = 0; i < 10007; i++) {
        double a = dtype_load(t, x + i * (int64_t)dtype_size(t)), want = u->f(a);
        double got = dtype_load(t, y + i * (int64_t)dtype_size(t));
        double rel = t == DT_f64 ? 1e-14 : u->rel;
        ck_assert_msg(fabs(got - want) <= rel * fabs(want) + 1e-38,
                      "%s(%.9g) = %.9g, expected %.9g", op_info((enum op)u->op)->name, a, got,
                      want);
    }
}
RIG_TEST(unary_precision) {
    for (size_t i = 0; i < sizeof unary_cases / sizeof *unary_cases; i++) {
        struct unary_case u = unary_cases[i];
        r->user = &u;
        r->check = false;
        rig_run(r, build_unary, fill_unary, verify_unary);
        r->check = true;
        rig_run(r, build_unary, fill_unary, verify_unary);
        arena_reset(&r->t->arena);
    }
    struct unary_case g = {OP_gelu, true, -4, 9, 2e-6, f_gelu_tanh};
    r->user = &g;
    rig_run(r, build_unary, fill_unary, verify_unary);
}

static void fill_special(struct rig *r) {
    float *x = rig_at(r, "i0");
    static const float v[] = {NAN,    INFINITY, -INFINITY, 0.0f, -0.0f,
                              1e-42f, -1e-42f,  100,       -104, 3e38f};
    for (int64_t i = 0; i < 10007; i++) x[i] = v[i % 10];
}
static void verify_special(struct rig *r) {
    const struct unary_case *u = r->user;
    const float *x = rig_at(r, "i0"), *y = rig_at(r, "o0");
    for (int64_t i = 0; i < 10007; i++) {
        double want = u->f((double)x[i]);
        if (isnan(x[i])) {
            ck_assert_msg(isnan(y[i]), "%s(NaN) = %g", op_info((enum op)u->op)->name, (double)y[i]);
            continue;
        }
        if (isnan(want) && isnan(y[i])) continue;
        float w = (float)want;
        ck_assert_msg(w == y[i] || fabs((double)w - (double)y[i]) <= 1e-6 * fabs((double)w) + 2e-43,
                      "%s(%g) = %.9g, expected %.9g", op_info((enum op)u->op)->name, (double)x[i],
                      (double)y[i], (double)w);
    }
}
RIG_TEST(unary_special) {
    static const struct unary_case cases[] = {
        {OP_exp, 0, 0, 0, 0, exp},          {OP_log, 0, 0, 0, 0, log},
        {OP_tanh, 0, 0, 0, 0, tanh},        {OP_erf, 0, 0, 0, 0, erf},
        {OP_sin, 0, 0, 0, 0, sin},          {OP_cos, 0, 0, 0, 0, cos},
        {OP_sqrt, 0, 0, 0, 0, sqrt},        {OP_abs, 0, 0, 0, 0, fabs},
        {OP_sigmoid, 0, 0, 0, 0, f_sigmoid}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct unary_case u = cases[i];
        r->user = &u;
        rig_run(r, build_unary, fill_special, verify_special);
    }
}

int main(void) {
    Suite *s = suite_create("cpu_group");
    TCase *c = tcase_create("group");
    tcase_set_timeout(c, 600);
    tcase_add_test(c, random_map);
    tcase_add_test(c, random_row);
    tcase_add_test(c, random_tail);
    tcase_add_test(c, in_place);
    tcase_add_test(c, unary_precision);
    tcase_add_test(c, unary_special);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
