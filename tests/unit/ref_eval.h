// SPDX-License-Identifier: Apache-2.0
/* ref_eval.h - a reference evaluator of graphs for tests: straight loops over doubles, one value
 * after the other, nothing fused, nothing fast. Element types only decide what is an integer or a
 * bool: floats of every width are computed as real numbers (no rounding to f32), which is what
 * finite differences want. An oracle that shares no code with the backends. `random` is not
 * covered. */
#ifndef LATHE_TEST_REF_EVAL_H
#define LATHE_TEST_REF_EVAL_H

#include "ir/build.h"
#include "ir/quantize.h"
#include <check.h>
#include <math.h>
#include <string.h>

struct ref {
    int rank;
    int64_t dims[RANK_MAX], n;
    enum dtype dtype;
    double *at;
};
/* Fill the value of an input, param or state; false: use its initial value. */
typedef bool ref_feed(void *user, const char *name, double *at, int64_t n);

struct ref_env {
    const struct graph *g;
    struct arena *a;
    struct ref *vals; /* by value id */
    ref_feed *feed;
    void *user;
};

static inline struct ref ref_new(struct arena *a, const struct type *t) {
    struct ref r = {.rank = t->rank, .dtype = t->dtype, .n = 1};
    for (int i = 0; i < t->rank; i++) {
        ck_assert_msg(dim_known(t->dims[i]), "the reference evaluator needs known sizes");
        r.dims[i] = t->dims[i];
        r.n *= t->dims[i];
    }
    r.at = ARENA_ARRAY(a, double, (size_t)r.n);
    return r;
}

static inline struct ref *ref_arg(struct ref_env *e, node_id n, int k) {
    val_id v = node_in(e->g, n, k);
    ck_assert_uint_ne(v.i, 0);
    return &e->vals[v.i];
}

/* Row-major index of position p in a shape; axes aligned at the end, size 1 repeats. */
static inline int64_t ref_at(const struct ref *t, const int64_t *p, int rank) {
    int64_t at = 0;
    for (int i = 0; i < t->rank; i++) {
        int64_t q = p[rank - t->rank + i];
        at = at * t->dims[i] + (t->dims[i] == 1 ? 0 : q);
    }
    return at;
}

static inline void ref_unravel(const struct ref *t, int64_t at, int64_t *p) {
    for (int i = t->rank - 1; i >= 0; i--) {
        p[i] = at % t->dims[i];
        at /= t->dims[i];
    }
}

/* Elements before, along and after `axis`. */
static inline void ref_split(const struct ref *t, int64_t axis, int64_t *outer, int64_t *n,
                             int64_t *inner) {
    *outer = *inner = 1;
    *n = t->dims[axis];
    for (int i = 0; i < t->rank; i++) {
        if (i < axis) *outer *= t->dims[i];
        if (i > axis) *inner *= t->dims[i];
    }
}

static inline int64_t ref_index(double i, int64_t n) {
    int64_t k = (int64_t)i;
    ck_assert_msg(k >= -n && k < n, "index %lld outside %lld", (long long)k, (long long)n);
    return k < 0 ? k + n : k;
}

/* ---- sources ------------------------------------------------------------------------------- */
static inline void ref_decode(const struct graph *g, blob_id id, struct ref *y) {
    const struct blob *b = graph_get_blob(g, id);
    size_t size = dtype_size(y->dtype);
    ck_assert_ptr_nonnull(b->data);
    for (int64_t i = 0; i < y->n; i++) {
        const char *p = (const char *)b->data + (size_t)i * size;
        y->at[i] =
            y->dtype == DT_i64 ? (double)dtype_load_int(y->dtype, p) : dtype_load(y->dtype, p);
    }
}

static inline void ref_source(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct graph *g = e->g;
    if (op == OP_const) {
        ref_decode(g, attr_blob(g, n, ATTR_init), y);
    } else if (op == OP_iota || op == OP_full) {
        double start = attr_float(g, n, op == OP_iota ? ATTR_start : ATTR_value);
        double step = op == OP_iota ? attr_float(g, n, ATTR_step) : 0.0;
        for (int64_t i = 0; i < y->n; i++) y->at[i] = start + step * (double)i;
    } else {
        const char *name = attr_str(g, n, ATTR_name);
        if (e->feed && e->feed(e->user, name, y->at, y->n)) return;
        ck_assert_msg(op != OP_input, "no value for input '%s'", name);
        blob_id init = attr_blob(g, n, ATTR_init);
        if (init.i)
            ref_decode(g, init, y);
        else
            for (int64_t i = 0; i < y->n; i++) y->at[i] = attr_float(g, n, ATTR_fill);
    }
}

/* ---- elementwise --------------------------------------------------------------------------- */
static inline double ref_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static inline double ref_unary(enum op op, double x, bool flag) {
    switch (op) {
    case OP_neg: return -x;
    case OP_abs: return fabs(x);
    case OP_sign: return isnan(x) ? x : (double)((x > 0) - (x < 0));
    case OP_floor: return floor(x);
    case OP_ceil: return ceil(x);
    case OP_round: return rint(x);
    case OP_exp: return exp(x);
    case OP_log: return log(x);
    case OP_log1p: return log1p(x);
    case OP_expm1: return expm1(x);
    case OP_sqrt: return sqrt(x);
    case OP_rsqrt: return 1.0 / sqrt(x);
    case OP_recip: return 1.0 / x;
    case OP_sin: return sin(x);
    case OP_cos: return cos(x);
    case OP_tan: return tan(x);
    case OP_asin: return asin(x);
    case OP_acos: return acos(x);
    case OP_atan: return atan(x);
    case OP_sinh: return sinh(x);
    case OP_cosh: return cosh(x);
    case OP_tanh: return tanh(x);
    case OP_erf: return erf(x);
    case OP_sigmoid: return ref_sigmoid(x);
    case OP_relu: return x < 0 ? 0.0 : x;
    case OP_silu: return x * ref_sigmoid(x);
    case OP_gelu:
        if (flag) return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
        return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case OP_not: return x == 0;
    case OP_isnan: return isnan(x);
    case OP_isinf: return isinf(x) != 0;
    default: ck_abort_msg("op %s", op_info(op)->name); return 0;
    }
}

static inline double ref_pick(double a, double b, bool larger) {
    if (isnan(a) || isnan(b)) return NAN;
    return larger == (a > b) ? a : b;
}

static inline double ref_binary(enum op op, double a, double b, bool whole, bool trunc_mod) {
    switch (op) {
    case OP_add: return a + b;
    case OP_sub: return a - b;
    case OP_mul: return a * b;
    case OP_div: return whole ? trunc(a / b) : a / b;
    case OP_mod: return trunc_mod ? fmod(a, b) : a - b * floor(a / b);
    case OP_pow: return pow(a, b);
    case OP_max: return ref_pick(a, b, true);
    case OP_min: return ref_pick(a, b, false);
    case OP_eq: return a == b;
    case OP_ne: return a != b;
    case OP_lt: return a < b;
    case OP_le: return a <= b;
    case OP_and: return (double)((int64_t)a & (int64_t)b);
    case OP_or: return (double)((int64_t)a | (int64_t)b);
    case OP_xor: return (double)((int64_t)a ^ (int64_t)b);
    default: ck_abort_msg("op %s", op_info(op)->name); return 0;
    }
}

static inline void ref_elementwise(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct graph *g = e->g;
    int nin = graph_node(g, n)->nin;
    bool flag = (op == OP_gelu && attr_bool(g, n, ATTR_approximate)) ||
                (op == OP_mod && attr_bool(g, n, ATTR_trunc));
    bool whole = !dtype_is_float(y->dtype);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t p[RANK_MAX];
        double v[3] = {0};
        ref_unravel(y, i, p);
        for (int k = 0; k < nin; k++) {
            const struct ref *x = ref_arg(e, n, k);
            v[k] = x->at[ref_at(x, p, y->rank)];
        }
        if (op == OP_cast)
            y->at[i] = y->dtype == DT_bool ? v[0] != 0 : whole ? trunc(v[0]) : v[0];
        else if (op == OP_clip)
            y->at[i] = fmin(fmax(v[0], v[1]), v[2]);
        else if (op == OP_where)
            y->at[i] = v[0] != 0 ? v[1] : v[2];
        else
            y->at[i] =
                nin == 1 ? ref_unary(op, v[0], flag) : ref_binary(op, v[0], v[1], whole, flag);
    }
}

/* ---- reductions ---------------------------------------------------------------------------- */
static inline void ref_reduce(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct ref *x = ref_arg(e, n, 0);
    int count;
    const int64_t *axes = attr_ints(e->g, n, ATTR_axes, &count);
    struct ref keep = *x;
    for (int i = 0; i < count; i++) keep.dims[axes[i]] = 1;
    double start = op == OP_reduce_prod  ? 1
                   : op == OP_reduce_max ? -INFINITY
                   : op == OP_reduce_min ? INFINITY
                                         : 0;
    for (int64_t i = 0; i < y->n; i++) y->at[i] = start;
    for (int64_t i = 0; i < x->n; i++) {
        int64_t p[RANK_MAX];
        ref_unravel(x, i, p);
        double *to = &y->at[ref_at(&keep, p, x->rank)], v = x->at[i];
        *to = op == OP_reduce_prod  ? *to * v
              : op == OP_reduce_max ? ref_pick(*to, v, true)
              : op == OP_reduce_min ? ref_pick(*to, v, false)
                                    : *to + v;
    }
    if (op == OP_reduce_mean)
        for (int64_t i = 0; i < y->n; i++) y->at[i] *= (double)y->n / (double)x->n;
}

static inline void ref_along(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct ref *x = ref_arg(e, n, 0);
    int64_t outer, len, inner;
    ref_split(x, attr_int(e->g, n, ATTR_axis), &outer, &len, &inner);
    bool back = op == OP_cumsum && attr_bool(e->g, n, ATTR_reverse);
    bool before = op == OP_cumsum && attr_bool(e->g, n, ATTR_exclusive);
    for (int64_t r = 0; r < outer * inner; r++) {
        int64_t base = r / inner * len * inner + r % inner, best = 0;
        double sum = 0, top = -INFINITY;
        for (int64_t i = 0; i < len; i++) {
            int64_t at = base + (back ? len - 1 - i : i) * inner;
            if (op == OP_cumsum) {
                y->at[at] = before ? sum : sum + x->at[at];
                sum += x->at[at];
            }
            if (x->at[at] > top) top = x->at[at], best = i;
        }
        if (op == OP_argmax) y->at[r] = (double)best;
        if (op != OP_softmax && op != OP_log_softmax) continue;
        for (int64_t i = 0; i < len; i++) sum += exp(x->at[base + i * inner] - top);
        for (int64_t i = 0; i < len; i++) {
            double z = x->at[base + i * inner] - top;
            y->at[base + i * inner] = op == OP_softmax ? exp(z) / sum : z - log(sum);
        }
    }
}

/* ---- products ------------------------------------------------------------------------------ */
static inline void ref_matmul(struct ref_env *e, node_id n, struct ref *y) {
    const struct ref *a = ref_arg(e, n, 0), *b = ref_arg(e, n, 1);
    bool ta = attr_bool(e->g, n, ATTR_trans_a), tb = attr_bool(e->g, n, ATTR_trans_b);
    int64_t len = a->dims[a->rank - (ta ? 2 : 1)];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t p[RANK_MAX], q[RANK_MAX];
        int r = y->rank;
        ref_unravel(y, i, p);
        memcpy(q, p, sizeof p);
        for (int64_t k = 0; k < len; k++) {
            /* Size 1 repeats in ref_at, which is right here too: the index is 0 then. */
            int64_t row = p[r - 2], col = p[r - 1], s[RANK_MAX];
            memcpy(s, p, sizeof p);
            s[r - 2] = ta ? k : row;
            s[r - 1] = ta ? row : k;
            q[r - 2] = tb ? col : k;
            q[r - 1] = tb ? k : col;
            y->at[i] += a->at[ref_at(a, s, r)] * b->at[ref_at(b, q, r)];
        }
    }
}

/* The scale of element (row, col) of [rows,cols] codes in matrix number `item`. */
static inline double ref_scale(const struct ref *s, struct quant_tile t, int64_t item, int64_t rows,
                               int64_t cols, int64_t row, int64_t col) {
    if (t.whole) return s->at[0];
    int64_t height = t.rows ? t.rows : rows, width = t.cols ? t.cols : cols;
    int64_t down = (rows + height - 1) / height, across = (cols + width - 1) / width;
    return s->at[(item * down + row / height) * across + col / width];
}

static inline void ref_scaled_matmul(struct ref_env *e, node_id n, struct ref *y) {
    const struct ref *a = ref_arg(e, n, 0), *b = ref_arg(e, n, 1);
    struct quant_tile t[2];
    const struct type *in[4];
    for (int k = 0; k < 4; k++) in[k] = val_type(e->g, node_in(e->g, n, k));
    ck_assert(scaled_tiles(in[0], in[1], in[2], in[3], t));
    int64_t m = a->dims[a->rank - 2], len = b->dims[1], cols = b->dims[0];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t line = i / cols, col = i % cols;
        for (int64_t k = 0; k < len; k++)
            y->at[i] += a->at[line * len + k] *
                        ref_scale(ref_arg(e, n, 2), t[0], line / m, m, len, line % m, k) *
                        b->at[col * len + k] *
                        ref_scale(ref_arg(e, n, 3), t[1], 0, cols, len, col, k);
    }
}

/* Every (x, w, y) triple of a convolution once: y += x*w, x += y*w or w += x*y. */
static inline void ref_conv(struct ref_env *e, node_id n, struct ref *x, struct ref *w,
                            struct ref *y, int mode) {
    int c;
    const int64_t *st = attr_ints(e->g, n, ATTR_strides, &c);
    const int64_t *pad = attr_ints(e->g, n, ATTR_pads, &c);
    const int64_t *dil = attr_ints(e->g, n, ATTR_dilations, &c);
    int64_t groups = attr_int(e->g, n, ATTR_groups), per = w->dims[0] / groups;
    for (int64_t i = 0; i < y->n; i++)
        for (int64_t k = 0; k < w->n / (w->dims[0] ? w->dims[0] : 1); k++) {
            int64_t p[RANK_MAX], q[RANK_MAX], at[RANK_MAX];
            ref_unravel(y, i, p);
            int64_t wi = p[1] * (w->n / w->dims[0]) + k;
            ref_unravel(w, wi, q);
            at[0] = p[0];
            at[1] = p[1] / per * w->dims[1] + q[1];
            bool inside = true;
            for (int d = 2; d < x->rank; d++) {
                at[d] = p[d] * st[d - 2] + q[d] * dil[d - 2] - pad[d - 2];
                inside &= at[d] >= 0 && at[d] < x->dims[d];
            }
            if (!inside) continue;
            int64_t xi = ref_at(x, at, x->rank);
            if (mode == 0) y->at[i] += x->at[xi] * w->at[wi];
            if (mode == 1) x->at[xi] += y->at[i] * w->at[wi];
            if (mode == 2) w->at[wi] += x->at[xi] * y->at[i];
        }
}

static inline void ref_max_pool(struct ref_env *e, node_id n, struct ref *y, struct ref *idx) {
    const struct ref *x = ref_arg(e, n, 0);
    int c;
    const int64_t *ker = attr_ints(e->g, n, ATTR_kernel, &c);
    const int64_t *st = attr_ints(e->g, n, ATTR_strides, &c);
    const int64_t *pad = attr_ints(e->g, n, ATTR_pads, &c);
    const int64_t *dil = attr_ints(e->g, n, ATTR_dilations, &c);
    struct ref win = {.rank = c, .n = 1};
    for (int d = 0; d < c; d++) win.n *= win.dims[d] = ker[d];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t p[RANK_MAX], q[RANK_MAX], plane = 1, best = -1;
        ref_unravel(y, i, p);
        for (int d = 2; d < x->rank; d++) plane *= x->dims[d];
        const double *at = x->at + (p[0] * x->dims[1] + p[1]) * plane;
        for (int64_t k = 0; k < win.n; k++) {
            int64_t flat = 0;
            bool inside = true;
            ref_unravel(&win, k, q);
            for (int d = 0; d < c; d++) {
                int64_t s = p[d + 2] * st[d] + q[d] * dil[d] - pad[d];
                inside &= s >= 0 && s < x->dims[d + 2];
                flat = flat * x->dims[d + 2] + s;
            }
            if (inside && (best < 0 || at[flat] > at[best])) best = flat;
        }
        y->at[i] = best < 0 ? -INFINITY : at[best];
        idx->at[i] = (double)best;
    }
}

/* ---- movement and indexing ----------------------------------------------------------------- */
static inline void ref_move(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct graph *g = e->g;
    const struct ref *x = ref_arg(e, n, 0);
    const int64_t *perm = NULL, *starts = NULL, *steps = NULL;
    int c;
    if (op == OP_transpose) perm = attr_ints(g, n, ATTR_perm, &c);
    if (op == OP_slice) starts = attr_dims(g, n, ATTR_starts, &c);
    if (op == OP_slice) steps = attr_ints(g, n, ATTR_steps, &c);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t p[RANK_MAX], q[RANK_MAX];
        ref_unravel(y, i, p);
        if (op == OP_reshape) {
            y->at[i] = x->at[i];
            continue;
        }
        memcpy(q, p, sizeof q);
        for (int d = 0; d < x->rank; d++) {
            if (perm) q[perm[d]] = p[d];
            if (starts) q[d] = starts[d] + p[d] * steps[d];
        }
        y->at[i] = x->at[ref_at(x, q, y->rank)];
    }
}

static inline void ref_pad(struct ref_env *e, node_id n, struct ref *y) {
    const struct ref *x = ref_arg(e, n, 0);
    int c;
    const int64_t *low = attr_ints(e->g, n, ATTR_low, &c);
    const int64_t *inner = attr_ints(e->g, n, ATTR_interior, &c);
    for (int64_t i = 0; i < y->n; i++) y->at[i] = attr_float(e->g, n, ATTR_value);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t p[RANK_MAX];
        ref_unravel(x, i, p);
        for (int d = 0; d < x->rank; d++) p[d] = low[d] + p[d] * (inner[d] + 1);
        y->at[ref_at(y, p, y->rank)] = x->at[i];
    }
}

static inline void ref_concat(struct ref_env *e, node_id n, struct ref *y) {
    int64_t axis = attr_int(e->g, n, ATTR_axis), from = 0;
    for (int k = 0; k < graph_node(e->g, n)->nin; k++) {
        const struct ref *x = ref_arg(e, n, k);
        for (int64_t i = 0; i < x->n; i++) {
            int64_t p[RANK_MAX];
            ref_unravel(x, i, p);
            p[axis] += from;
            int64_t at = 0;
            for (int d = 0; d < y->rank; d++) at = at * y->dims[d] + p[d];
            y->at[at] = x->at[i];
        }
        from += x->dims[axis];
    }
}

/* gather copies whole -> rows; scatter_rows adds rows -> whole. */
static inline void ref_rows(const struct ref *whole, const struct ref *idx, const struct ref *rows,
                            int64_t axis, bool scatter) {
    int64_t outer, len, inner;
    ref_split(whole, axis, &outer, &len, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = 0; k < idx->n; k++)
            for (int64_t i = 0; i < inner; i++) {
                double *w = &whole->at[(o * len + ref_index(idx->at[k], len)) * inner + i];
                double *r = &rows->at[(o * idx->n + k) * inner + i];
                if (scatter)
                    *w += *r;
                else
                    *r = *w;
            }
}

static inline void ref_elements(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct ref *x = ref_arg(e, n, 0), *idx = ref_arg(e, n, 1);
    int64_t axis = attr_int(e->g, n, ATTR_axis);
    bool scatter = op == OP_scatter_elements;
    if (scatter && x->n) memcpy(y->at, x->at, (size_t)x->n * sizeof(double));
    for (int64_t i = 0; i < idx->n; i++) {
        int64_t p[RANK_MAX], at = 0;
        ref_unravel(idx, i, p);
        p[axis] = ref_index(idx->at[i], x->dims[axis]);
        for (int d = 0; d < x->rank; d++) at = at * x->dims[d] + p[d];
        if (!scatter)
            y->at[i] = x->at[at];
        else if (attr_bool(e->g, n, ATTR_add))
            y->at[at] += ref_arg(e, n, 2)->at[i];
        else
            y->at[at] = ref_arg(e, n, 2)->at[i];
    }
}

#include "ref_composites.h"

/* ---- the evaluator ------------------------------------------------------------------------- */
static inline void ref_node(struct ref_env *e, node_id n) {
    enum op op = (enum op)graph_node(e->g, n)->op;
    struct ref *y = &e->vals[node_out(e->g, n, 0).i];
    if (op_info(op)->traits & SOURCE) {
        ref_source(e, n, op, y);
        return;
    }
    if (op_info(op)->traits & EW) {
        ref_elementwise(e, n, op, y);
        return;
    }
    switch (op) {
    case OP_reduce_sum:
    case OP_reduce_mean:
    case OP_reduce_max:
    case OP_reduce_min:
    case OP_reduce_prod: ref_reduce(e, n, op, y); break;
    case OP_argmax:
    case OP_cumsum:
    case OP_softmax:
    case OP_log_softmax: ref_along(e, n, op, y); break;
    case OP_matmul: ref_matmul(e, n, y); break;
    case OP_scaled_matmul: ref_scaled_matmul(e, n, y); break;
    case OP_conv: ref_conv(e, n, ref_arg(e, n, 0), ref_arg(e, n, 1), y, 0); break;
    case OP_conv_input_grad: ref_conv(e, n, y, ref_arg(e, n, 1), ref_arg(e, n, 0), 1); break;
    case OP_conv_weight_grad: ref_conv(e, n, ref_arg(e, n, 0), y, ref_arg(e, n, 1), 2); break;
    case OP_max_pool: ref_max_pool(e, n, y, y + 1); break;
    case OP_reshape:
    case OP_transpose:
    case OP_expand:
    case OP_slice: ref_move(e, n, op, y); break;
    case OP_pad: ref_pad(e, n, y); break;
    case OP_concat: ref_concat(e, n, y); break;
    case OP_gather:
        ref_rows(ref_arg(e, n, 0), ref_arg(e, n, 1), y, attr_int(e->g, n, ATTR_axis), false);
        break;
    case OP_scatter_rows:
        ref_rows(y, ref_arg(e, n, 0), ref_arg(e, n, 1), attr_int(e->g, n, ATTR_axis), true);
        break;
    case OP_gather_elements:
    case OP_scatter_elements: ref_elements(e, n, op, y); break;
    case OP_layer_norm:
    case OP_rms_norm: ref_norm(e, n, op, y); break;
    case OP_attention: ref_attention(e, n, y, false); break;
    case OP_attention_grad: ref_attention(e, n, y, true); break;
    case OP_cross_entropy: ref_cross_entropy(e, n, y); break;
    case OP_sum_squares:
        for (int k = 0; k < graph_node(e->g, n)->nin; k++) {
            const struct ref *x = ref_arg(e, n, k);
            for (int64_t i = 0; i < x->n; i++) y->at[0] += x->at[i] * x->at[i];
        }
        break;
    case OP_sgd:
    case OP_adam: ref_optimizer(e, n, op, y); break;
    default: ck_abort_msg("the reference evaluator has no %s", op_info(op)->name);
    }
}

/* Every value of a static graph, by value id; memory in `a`. */
static inline struct ref *ref_eval(const struct graph *g, struct arena *a, ref_feed *feed,
                                   void *user) {
    struct ref_env e = {.g = g, .a = a, .feed = feed, .user = user};
    e.vals = ARENA_ARRAY(a, struct ref, g->values.n);
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        for (int k = 0; k < graph_node(g, n)->nout; k++) {
            val_id v = node_out(g, n, k);
            e.vals[v.i] = ref_new(a, val_type(g, v));
        }
        ref_node(&e, n);
    }
    return e.vals;
}

/* The value of a named output. */
static inline struct ref ref_output(const struct graph *g, const struct ref *vals,
                                    const char *name) {
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (strcmp(interned(&g->strings, g->outputs.at[i].name), name) == 0)
            return vals[graph_resolve(g, g->outputs.at[i].value).i];
    ck_abort_msg("no output '%s'", name);
    return (struct ref){0};
}

#endif
