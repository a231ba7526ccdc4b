// SPDX-License-Identifier: Apache-2.0
/* shape_eval.c - shape arithmetic at import: values whose small content is known, element by
 * element, as numbers or symbolic dims, are computed here instead of in the graph. Float contents
 * are followed only through operations that round exactly once, so that following them changes no
 * bit. Symbols are sizes and taken to be at least 1. */
#include "frontend/importer.h"
#include <math.h>
#include <string.h>

/* ---- elementwise --------------------------------------------------------------------------- */
/* Offset in `t` of element `i` of the broadcast shape `out`. */
static int64_t offset_of(const struct type *t, const struct type *out, int64_t i) {
    int64_t off = 0, stride = 1;
    for (int k = 1; k <= out->rank; k++) {
        int64_t d = out->dims[out->rank - k], at = i % d;
        i /= d;
        if (k > t->rank) continue;
        if (t->dims[t->rank - k] != 1) off += at * stride;
        stride *= t->dims[t->rank - k];
    }
    return off;
}

static bool eval_binary(struct importer *im, const struct inode *n, enum eop op) {
    struct content a, b;
    struct type t;
    if (!known_content(im, n, 0, &a) || !known_content(im, n, 1, &b)) return false;
    if (a.t.dtype != b.t.dtype || !type_broadcast(&a.t, &b.t, &t) || !known_fits(&t)) return false;
    bool test = op >= E_EQ && op <= E_GE, trunc = node_int(n, "fmod", 0) != 0;
    if (test) t.dtype = DT_bool;
    size_t count = (size_t)type_count(&t);
    struct num *ints = ARENA_ARRAY(im->a, struct num, count);
    double *floats = ARENA_ARRAY(im->a, double, count);
    if (a.floats && !known_exact(a.t.dtype)) return false;
    for (size_t i = 0; i < count; i++) {
        int64_t p = offset_of(&a.t, &t, (int64_t)i), q = offset_of(&b.t, &t, (int64_t)i);
        if (a.floats) {
            double r;
            if (!float_apply(op, a.floats[p], b.floats[q], &r)) return false;
            ints[i] = num_plain(r != 0);
            floats[i] = known_round(a.t.dtype, r);
        } else if (!num_apply(im->g->dims, op, a.ints[p], b.ints[q], trunc, &ints[i]) ||
                   !num_fits(t.dtype, ints[i])) {
            return false;
        }
    }
    if (a.floats && !test)
        known_set_floats(im, n->out[0], &t, floats);
    else
        known_set_ints(im, n->out[0], &t, ints);
    return true;
}

/* Max, Min, Sum of two or more. Other counts are left to the handler. */
static bool eval_variadic(struct importer *im, const struct inode *n, enum eop op) {
    return n->nin == 2 && eval_binary(im, n, op);
}

static bool eval_where(struct importer *im, const struct inode *n) {
    struct content c, a, b;
    struct type t;
    if (!known_content(im, n, 0, &c) || !known_content(im, n, 1, &a) ||
        !known_content(im, n, 2, &b))
        return false;
    if (a.t.dtype != b.t.dtype || !a.ints || !b.ints || !c.ints) return false;
    if (!type_broadcast(&a.t, &b.t, &t) || !type_broadcast(&t, &c.t, &t) || !known_fits(&t))
        return false;
    size_t count = (size_t)type_count(&t);
    struct num *out = ARENA_ARRAY(im->a, struct num, count);
    for (size_t i = 0; i < count; i++)
        out[i] = c.ints[offset_of(&c.t, &t, (int64_t)i)].v
                     ? a.ints[offset_of(&a.t, &t, (int64_t)i)]
                     : b.ints[offset_of(&b.t, &t, (int64_t)i)];
    known_set_ints(im, n->out[0], &t, out);
    return true;
}

enum uop { U_NEG, U_ABS, U_SQRT, U_FLOOR, U_CEIL, U_ROUND, U_RECIP, U_NOT };

static bool unary_float(enum uop op, double x, double *o) {
    switch (op) {
    case U_NEG: *o = -x; return true;
    case U_ABS: *o = fabs(x); return true;
    case U_SQRT: *o = sqrt(x); return true;
    case U_FLOOR: *o = floor(x); return true;
    case U_CEIL: *o = ceil(x); return true;
    case U_ROUND: *o = rint(x); return true;
    case U_RECIP: *o = 1.0 / x; return true;
    default: return false;
    }
}

static bool eval_unary(struct importer *im, const struct inode *n, enum uop op) {
    struct content a;
    if (!known_content(im, n, 0, &a)) return false;
    size_t count = (size_t)a.n;
    if (a.floats) {
        if (!known_exact(a.t.dtype)) return false;
        double *f = ARENA_ARRAY(im->a, double, count);
        for (size_t i = 0; i < count; i++) {
            if (!unary_float(op, a.floats[i], &f[i])) return false;
            f[i] = known_round(a.t.dtype, f[i]);
        }
        known_set_floats(im, n->out[0], &a.t, f);
        return true;
    }
    struct num *x = ARENA_ARRAY(im->a, struct num, count);
    for (size_t i = 0; i < count; i++) {
        struct num v = a.ints[i];
        if ((op != U_NEG && op != U_ABS && op != U_NOT) || v.v == INT64_MIN) return false;
        if (v.sym && op != U_ABS) return false;
        if (op == U_NOT) v.v = !v.v;
        if (op == U_NEG || (op == U_ABS && !v.sym && v.v < 0)) v.v = -v.v;
        x[i] = v;
        if (!num_fits(a.t.dtype, v)) return false;
    }
    known_set_ints(im, n->out[0], &a.t, x);
    return true;
}

static bool eval_cast(struct importer *im, const struct inode *n, enum dtype to) {
    struct content a;
    if (to == DT_NONE || !known_content(im, n, 0, &a)) return false;
    size_t count = (size_t)a.n;
    struct type t = a.t;
    t.dtype = to;
    struct num *x = ARENA_ARRAY(im->a, struct num, count);
    double *f = ARENA_ARRAY(im->a, double, count);
    bool to_float = dtype_is_float(to);
    if ((to_float || a.floats) && !known_exact(to_float ? to : a.t.dtype)) return false;
    for (size_t i = 0; i < count; i++) {
        if (a.ints && a.ints[i].sym && (to_float || to == DT_bool)) return false;
        if (to_float) {
            f[i] = known_round(to, a.floats ? a.floats[i] : (double)a.ints[i].v);
            continue;
        }
        x[i] = a.ints ? a.ints[i] : num_plain(0);
        if (a.floats) {
            if (!(fabs(a.floats[i]) < 9e18)) return false;
            x[i].v = to == DT_bool ? a.floats[i] != 0 : (int64_t)a.floats[i];
        } else if (to == DT_bool) {
            x[i].v = x[i].v != 0;
        }
        if (!num_fits(to, x[i])) return false;
    }
    if (to_float)
        known_set_floats(im, n->out[0], &t, f);
    else
        known_set_ints(im, n->out[0], &t, x);
    return true;
}

/* ---- movement ------------------------------------------------------------------------------ */
static void pick(struct importer *im, uint32_t v, const struct type *t, const struct content *from,
                 const int64_t *at, int64_t n) {
    if (from->floats) {
        double *f = ARENA_ARRAY(im->a, double, (size_t)n);
        for (int64_t i = 0; i < n; i++) f[i] = from->floats[at[i]];
        known_set_floats(im, v, t, f);
        return;
    }
    struct num *x = ARENA_ARRAY(im->a, struct num, (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] = from->ints[at[i]];
    known_set_ints(im, v, t, x);
}

static bool eval_shape(struct importer *im, const struct inode *n) {
    struct type in = in_type(im, n, 0), t = {DT_i64, 1, {0}};
    if (in.dtype == DT_NONE) return false;
    int64_t start = node_int(n, "start", 0), end = node_int(n, "end", in.rank);
    if (start < 0) start += in.rank;
    if (end < 0) end += in.rank;
    start = start < 0 ? 0 : start > in.rank ? in.rank : start;
    end = end > in.rank ? in.rank : end < start ? start : end;
    struct num *x = ARENA_ARRAY(im->a, struct num, RANK_MAX);
    for (int64_t i = start; i < end; i++) x[t.dims[0]++] = num_of_dim(in.dims[i]);
    known_set_ints(im, n->out[0], &t, x);
    return true;
}

static bool eval_size(struct importer *im, const struct inode *n) {
    struct type in = in_type(im, n, 0), t = type_scalar(DT_i64);
    if (in.dtype == DT_NONE) return false;
    struct num *x = ARENA_ARRAY(im->a, struct num, 1);
    *x = num_of_dim(dims_total(im, in.dims, in.rank));
    known_set_ints(im, n->out[0], &t, x);
    return true;
}

static bool eval_gather(struct importer *im, const struct inode *n) {
    struct content a;
    const int64_t *idx;
    int64_t count, at[KNOWN_MAX], axis = node_int(n, "axis", 0);
    if (!known_content(im, n, 0, &a) || a.t.rank != 1 || (axis != 0 && axis != -1)) return false;
    if (!known_numbers(im, n, 1, &idx, &count)) return false;
    struct type t = in_type(im, n, 1);
    t.dtype = a.t.dtype;
    if (!known_fits(&t)) return false;
    for (int64_t i = 0; i < count; i++) {
        at[i] = idx[i] < 0 ? idx[i] + a.n : idx[i];
        if (at[i] < 0 || at[i] >= a.n) return false;
    }
    pick(im, n->out[0], &t, &a, at, count);
    return true;
}

/* First index, step and count of one sliced axis of length `len`, clamped as ONNX Slice says. */
struct cut {
    int64_t first, step, count;
};

static struct cut cut_axis(int64_t start, int64_t end, int64_t step, int64_t len) {
    int64_t lo = start < 0 ? start + len : start;
    int64_t hi = end < 0 && end >= -len ? end + len : end;
    struct cut c = {.step = step};
    if (step > 0) {
        lo = lo < 0 ? 0 : lo > len ? len : lo;
        hi = hi < 0 ? 0 : hi > len ? len : hi;
        c.count = hi > lo ? (hi - lo - 1) / step + 1 : 0;
    } else {
        lo = lo < 0 ? -1 : lo >= len ? len - 1 : lo;
        hi = hi < -1 ? -1 : hi > len - 1 ? len - 1 : hi;
        c.step = step < -len ? -len : step; /* the smallest number has no opposite */
        c.count = lo > hi ? (lo - hi - 1) / (c.step ? -c.step : 1) + 1 : 0;
    }
    c.first = lo;
    return c;
}

static bool eval_slice(struct importer *im, const struct inode *n) {
    struct content a;
    const int64_t *s, *e, *ax = NULL, *st = NULL;
    int64_t ns, ne, na = 0, nst = 0;
    if (!known_content(im, n, 0, &a) || n->nin < 3) return false;
    if (!known_numbers(im, n, 1, &s, &ns) || !known_numbers(im, n, 2, &e, &ne)) return false;
    if (has_in(n, 3) && !known_numbers(im, n, 3, &ax, &na)) return false;
    if (has_in(n, 4) && !known_numbers(im, n, 4, &st, &nst)) return false;
    if (ne != ns || ns > a.t.rank || (ax && na != ns) || (st && nst != ns)) return false;
    struct cut cuts[RANK_MAX];
    struct type t = a.t;
    for (int i = 0; i < t.rank; i++) cuts[i] = (struct cut){0, 1, t.dims[i]};
    for (int64_t k = 0; k < ns; k++) {
        int64_t axis = ax ? ax[k] : k, step = st ? st[k] : 1;
        if (axis < 0) axis += t.rank;
        if (axis < 0 || axis >= t.rank || step == 0) return false;
        cuts[axis] = cut_axis(s[k], e[k], step, a.t.dims[axis]);
        t.dims[axis] = cuts[axis].count;
    }
    int64_t at[KNOWN_MAX], count = type_count(&t);
    for (int64_t k = 0; k < count; k++) {
        int64_t rest = k, stride = 1, from = 0;
        for (int i = t.rank - 1; i >= 0; i--) {
            from += (cuts[i].first + rest % t.dims[i] * cuts[i].step) * stride;
            rest /= t.dims[i];
            stride *= a.t.dims[i];
        }
        at[k] = from;
    }
    pick(im, n->out[0], &t, &a, at, count);
    return true;
}

static bool eval_concat(struct importer *im, const struct inode *n) {
    struct num *x = ARENA_ARRAY(im->a, struct num, KNOWN_MAX);
    struct type t = {.rank = 1};
    for (int k = 0; k < n->nin; k++) {
        struct content a;
        if (!known_content(im, n, k, &a) || !a.ints || a.t.rank != 1) return false;
        if (t.dims[0] + a.n > KNOWN_MAX || (k > 0 && a.t.dtype != t.dtype)) return false;
        memcpy(x + t.dims[0], a.ints, (size_t)a.n * sizeof *x);
        t.dims[0] += a.n;
        t.dtype = a.t.dtype;
    }
    if (n->nin == 0) return false;
    known_set_ints(im, n->out[0], &t, x);
    return true;
}

/* Same elements under another shape. */
static bool eval_view(struct importer *im, const struct inode *n,
                      bool (*shape)(struct importer *, const struct inode *, struct type *)) {
    struct content a;
    struct type t;
    if (!known_content(im, n, 0, &a)) return false;
    t = a.t;
    if (!shape(im, n, &t) || failed(im) || type_count(&t) != a.n) return false;
    int64_t at[KNOWN_MAX];
    for (int64_t i = 0; i < a.n; i++) at[i] = i;
    pick(im, n->out[0], &t, &a, at, a.n);
    return true;
}

static bool eval_transpose(struct importer *im, const struct inode *n) {
    struct content a;
    if (!known_content(im, n, 0, &a)) return false;
    int rank = a.t.rank, count = 0;
    const int64_t *perm = node_ints(n, "perm", &count);
    if (perm && count != rank) return false;
    struct type t = a.t;
    int64_t strides[RANK_MAX], from[RANK_MAX], stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        from[i] = stride;
        stride *= a.t.dims[i];
    }
    for (int i = 0; i < rank; i++) {
        int64_t p = perm ? perm[i] : rank - 1 - i;
        if (p < 0 || p >= rank) return false;
        t.dims[i] = a.t.dims[p];
        strides[i] = from[p];
    }
    if (type_count(&t) != a.n) return false; /* an axis named twice: the handler says so */
    int64_t at[KNOWN_MAX];
    for (int64_t k = 0; k < a.n; k++) {
        int64_t rest = k;
        at[k] = 0;
        for (int i = rank - 1; i >= 0; i--) {
            at[k] += rest % t.dims[i] * strides[i];
            rest /= t.dims[i];
        }
    }
    pick(im, n->out[0], &t, &a, at, a.n);
    return true;
}

static bool eval_expand(struct importer *im, const struct inode *n) {
    struct content a;
    const int64_t *shape;
    int64_t rank, at[KNOWN_MAX];
    if (!known_content(im, n, 0, &a) || !known_numbers(im, n, 1, &shape, &rank) || rank > RANK_MAX)
        return false;
    struct type want = {.dtype = a.t.dtype, .rank = (int)rank}, t;
    for (int64_t i = 0; i < rank; i++) {
        if (shape[i] < 0) return false;
        want.dims[i] = shape[i];
    }
    if (!type_broadcast(&a.t, &want, &t) || !known_fits(&t)) return false;
    int64_t count = type_count(&t);
    for (int64_t i = 0; i < count; i++) at[i] = offset_of(&a.t, &t, i);
    pick(im, n->out[0], &t, &a, at, count);
    return true;
}

static bool eval_split(struct importer *im, const struct inode *n) {
    struct content a;
    const int64_t *sizes;
    int64_t count, from = 0;
    if (!known_content(im, n, 0, &a) || a.t.rank != 1) return false;
    if (!has_in(n, 1) || !known_numbers(im, n, 1, &sizes, &count) || count != n->nout) return false;
    for (int k = 0; k < n->nout; k++) {
        if (sizes[k] < 0 || sizes[k] > a.n - from) return false;
        from += sizes[k];
    }
    from = 0;
    for (int k = 0; k < n->nout; from += sizes[k++]) {
        struct type t = a.t;
        int64_t at[KNOWN_MAX];
        t.dims[0] = sizes[k];
        for (int64_t i = 0; i < sizes[k]; i++) at[i] = from + i;
        if (has_out(n, k)) pick(im, n->out[k], &t, &a, at, sizes[k]);
    }
    return true;
}

/* ---- sources and reductions ---------------------------------------------------------------- */
static bool eval_range(struct importer *im, const struct inode *n) {
    struct content a, b, c;
    if (!known_content(im, n, 0, &a) || !known_content(im, n, 1, &b) ||
        !known_content(im, n, 2, &c))
        return false;
    if (!a.ints || !b.ints || !c.ints || a.n != 1 || b.n != 1 || c.n != 1) return false;
    if (a.ints->sym || b.ints->sym || c.ints->sym || c.ints->v == 0) return false;
    int64_t start = a.ints->v, step = c.ints->v, span, count = 0;
    if (__builtin_sub_overflow(b.ints->v, start, &span) || step == INT64_MIN) return false;
    if (span != 0 && (span > 0) == (step > 0)) count = (span - (step > 0 ? 1 : -1)) / step + 1;
    if (count > KNOWN_MAX) return false;
    struct type t = {a.t.dtype, 1, {count}};
    struct num *x = ARENA_ARRAY(im->a, struct num, (size_t)count);
    for (int64_t i = 0; i < count; i++) x[i] = num_plain(start + i * step);
    known_set_ints(im, n->out[0], &t, x);
    return true;
}

static bool eval_fill(struct importer *im, const struct inode *n) { /* ConstantOfShape */
    const int64_t *shape;
    int64_t rank;
    const Onnx__AttributeProto *a = node_attr(n, "value");
    if (!known_numbers(im, n, 0, &shape, &rank) || rank > RANK_MAX || !a || !a->t) return false;
    struct type t = {.rank = (int)rank, .dtype = dtype_from_onnx(a->t->data_type)};
    for (int64_t i = 0; i < rank; i++) {
        if (shape[i] < 0) return false;
        t.dims[i] = shape[i];
    }
    if (t.dtype == DT_NONE || dtype_is_float(t.dtype) || !known_fits(&t)) return false;
    struct onnx_tensor one;
    enum status st = onnx_decode_tensor(im->m, a->t, n->origin, &one);
    if (st != ST_OK) im->st = st;
    if (st != ST_OK || type_count(&one.type) != 1) return false;
    size_t count = (size_t)type_count(&t);
    struct num *x = ARENA_ARRAY(im->a, struct num, count);
    for (size_t i = 0; i < count; i++) x[i] = num_plain(dtype_load_int(t.dtype, one.data));
    known_set_ints(im, n->out[0], &t, x);
    return true;
}

/* A whole rank-0 or rank-1 tensor to one number. */
static bool eval_reduce(struct importer *im, const struct inode *n, enum eop op) {
    struct content a;
    int64_t axes[RANK_MAX];
    int count;
    if (!known_content(im, n, 0, &a) || !a.ints || a.t.rank > 1 || a.n == 0) return false;
    if (!axes_of(im, n, 1, a.t.rank, axes, &count)) return false;
    if (count == 0 && node_int(n, "noop_with_empty_axes", 0)) return false;
    struct num *x = ARENA_ARRAY(im->a, struct num, 1);
    *x = a.ints[0];
    for (int64_t i = 1; i < a.n; i++)
        if (!num_apply(im->g->dims, op, *x, a.ints[i], false, x)) return false;
    struct type t = {a.t.dtype, node_int(n, "keepdims", 1) ? a.t.rank : 0, {1}};
    known_set_ints(im, n->out[0], &t, x);
    return num_fits(t.dtype, *x);
}

static bool eval_nonzero(struct importer *im, const struct inode *n) {
    struct content a;
    if (!known_content(im, n, 0, &a) || !a.ints || a.t.rank != 1) return false;
    struct num *x = ARENA_ARRAY(im->a, struct num, (size_t)a.n);
    struct type t = {DT_i64, 2, {1, 0}};
    for (int64_t i = 0; i < a.n; i++)
        if (a.ints[i].sym || a.ints[i].v) x[t.dims[1]++] = num_plain(i);
    known_set_ints(im, n->out[0], &t, x);
    return true;
}

static bool same_type(struct importer *im, const struct inode *n, struct type *t) {
    (void)im, (void)n, (void)t;
    return true;
}

/* ---- the table ----------------------------------------------------------------------------- */
enum family { F_BIN, F_VAR, F_UN, F_RED };
static const struct {
    const char *op;
    enum family family;
    int arg;
} table[] = {
    {"Add", F_BIN, E_ADD},           {"Sub", F_BIN, E_SUB},         {"Mul", F_BIN, E_MUL},
    {"Div", F_BIN, E_DIV},           {"Mod", F_BIN, E_MOD},         {"Equal", F_BIN, E_EQ},
    {"Less", F_BIN, E_LT},           {"LessOrEqual", F_BIN, E_LE},  {"Greater", F_BIN, E_GT},
    {"GreaterOrEqual", F_BIN, E_GE}, {"And", F_BIN, E_AND},         {"Or", F_BIN, E_OR},
    {"Xor", F_BIN, E_XOR},           {"Max", F_VAR, E_MAX},         {"Min", F_VAR, E_MIN},
    {"Sum", F_VAR, E_ADD},           {"Neg", F_UN, U_NEG},          {"Abs", F_UN, U_ABS},
    {"Sqrt", F_UN, U_SQRT},          {"Floor", F_UN, U_FLOOR},      {"Ceil", F_UN, U_CEIL},
    {"Round", F_UN, U_ROUND},        {"Reciprocal", F_UN, U_RECIP}, {"Not", F_UN, U_NOT},
    {"ReduceProd", F_RED, E_MUL},    {"ReduceSum", F_RED, E_ADD},   {"ReduceMax", F_RED, E_MAX},
    {"ReduceMin", F_RED, E_MIN},
};

static bool eval_table(struct importer *im, const struct inode *n) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(table[i].op, n->op) != 0) continue;
        switch (table[i].family) {
        case F_BIN: return eval_binary(im, n, (enum eop)table[i].arg);
        case F_VAR: return eval_variadic(im, n, (enum eop)table[i].arg);
        case F_UN: return eval_unary(im, n, (enum uop)table[i].arg);
        case F_RED: return eval_reduce(im, n, (enum eop)table[i].arg);
        }
    }
    return false;
}

static bool is(const struct inode *n, const char *op) {
    return strcmp(n->op, op) == 0;
}

bool shape_eval(struct importer *im, const struct inode *n) {
    if (n->domain[0] || n->nout == 0 || n->out[0] == 0) return false;
    if (is(n, "Shape")) return eval_shape(im, n);
    if (is(n, "Size")) return eval_size(im, n);
    if (n->nin == 0 || !has_in(n, 0)) return false;
    const struct ivalue *x = iv(im, n->in[0]);
    if (x->kind != VK_TENSOR || (!x->ints && !x->floats)) return false;
    if (is(n, "Gather")) return eval_gather(im, n);
    if (is(n, "Slice")) return eval_slice(im, n);
    if (is(n, "Concat")) return eval_concat(im, n);
    if (is(n, "Reshape")) return eval_view(im, n, shape_of_reshape);
    if (is(n, "Unsqueeze")) return eval_view(im, n, shape_of_unsqueeze);
    if (is(n, "Squeeze")) return eval_view(im, n, shape_of_squeeze);
    if (is(n, "Flatten")) return eval_view(im, n, shape_of_flatten);
    if (is(n, "Identity")) return eval_view(im, n, same_type);
    if (is(n, "Transpose")) return eval_transpose(im, n);
    if (is(n, "Expand")) return eval_expand(im, n);
    if (is(n, "Split")) return eval_split(im, n);
    if (is(n, "Where")) return eval_where(im, n);
    if (is(n, "Cast")) return eval_cast(im, n, node_dtype(n, "to"));
    if (is(n, "CastLike")) return eval_cast(im, n, in_type(im, n, 1).dtype);
    if (is(n, "Range")) return eval_range(im, n);
    if (is(n, "ConstantOfShape")) return eval_fill(im, n);
    if (is(n, "NonZero")) return eval_nonzero(im, n);
    return eval_table(im, n);
}
