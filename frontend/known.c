// SPDX-License-Identifier: Apache-2.0
/* known.c - contents that the importer knows: from a tensor, as an operand, back into the graph;
 * and arithmetic on their elements, numbers or symbolic dims. Symbols are sizes, taken to be at
 * least 1. */
#include "frontend/importer.h"
#include <math.h>

bool num_dim(struct num x, dim *d) {
    *d = x.v;
    return x.sym || x.v >= 0;
}

struct num num_plain(int64_t x) {
    return (struct num){x, false};
}

struct num num_of_dim(dim d) {
    return (struct num){d, d < 0};
}

/* ---- contents ------------------------------------------------------------------------------ */
bool known_content(struct importer *im, const struct inode *n, int k, struct content *c) {
    if (!has_in(n, k)) return false;
    const struct ivalue *x = iv(im, n->in[k]);
    if (x->kind != VK_TENSOR || (!x->ints && !x->floats)) return false;
    /* What is trained has no known content, whatever the file starts it with. */
    if (x->floats && x->weight && im->weights.at[x->weight - 1].verdict != W_CONST) return false;
    *c = (struct content){x->type, x->ints, x->floats, type_count(&x->type)};
    return true;
}

bool known_fits(const struct type *t) {
    int64_t n = type_count(t);
    return n >= 0 && n <= KNOWN_MAX;
}

void known_set_ints(struct importer *im, uint32_t v, const struct type *t, struct num *at) {
    struct ivalue *x = iv(im, v);
    x->kind = VK_TENSOR;
    x->type = *t;
    x->ints = at;
}

void known_set_floats(struct importer *im, uint32_t v, const struct type *t, double *at) {
    struct ivalue *x = iv(im, v);
    x->kind = VK_TENSOR;
    x->type = *t;
    x->floats = at;
}

void known_from_tensor(struct importer *im, uint32_t v, const struct onnx_tensor *t) {
    if (!known_fits(&t->type)) return;
    size_t n = (size_t)type_count(&t->type), size = dtype_size(t->type.dtype);
    const char *p = t->data;
    if (dtype_is_float(t->type.dtype)) {
        double *f = ARENA_ARRAY(im->a, double, n);
        for (size_t i = 0; i < n; i++) f[i] = dtype_load(t->type.dtype, p + i * size);
        known_set_floats(im, v, &t->type, f);
        return;
    }
    struct num *x = ARENA_ARRAY(im->a, struct num, n);
    for (size_t i = 0; i < n; i++) x[i] = num_plain(dtype_load_int(t->type.dtype, p + i * size));
    known_set_ints(im, v, &t->type, x);
}

bool known_ints(struct importer *im, const struct inode *n, int k, const struct num **at,
                int64_t *count) {
    struct content c;
    if (!known_content(im, n, k, &c) || !c.ints) return false;
    *at = c.ints;
    *count = c.n;
    return true;
}

bool known_numbers(struct importer *im, const struct inode *n, int k, const int64_t **at,
                   int64_t *count) {
    const struct num *x;
    if (!known_ints(im, n, k, &x, count)) return false;
    int64_t *out = ARENA_ARRAY(im->a, int64_t, (size_t)*count);
    for (int64_t i = 0; i < *count; i++) {
        if (x[i].sym) return false;
        out[i] = x[i].v;
    }
    *at = out;
    return true;
}

bool known_float(struct importer *im, const struct inode *n, int k, double *x) {
    struct content c;
    if (!known_content(im, n, k, &c) || c.n != 1) return false;
    if (c.floats) *x = c.floats[0];
    if (c.ints && c.ints[0].sym) return false;
    if (c.ints) *x = (double)c.ints[0].v;
    return true;
}

/* A symbolic size as a value: the sum of that many ones. */
static val_id symbol_value(struct importer *im, enum dtype t, dim d) {
    int64_t axis = 0;
    return cast_to(im, reduce(im, OP_reduce_sum, full(im, DT_i64, &d, 1, 1), &axis, 1, false), t);
}

val_id dim_value(struct importer *im, enum dtype t, dim d) {
    return dim_known(d) ? scalar_int(im, t, d) : symbol_value(im, t, d);
}

val_id known_materialise(struct importer *im, const struct ivalue *v) {
    size_t n = (size_t)type_count(&v->type), size = dtype_size(v->type.dtype);
    bool symbols = false;
    for (size_t i = 0; v->ints && i < n; i++) symbols |= v->ints[i].sym;
    if (!v->ints && !v->floats) {
        reject(im, ST_INTERNAL, "'%s' was never computed", v->name);
        return VAL_NONE;
    }
    if (!symbols) {
        char *bytes = arena_array(im->a, n + 1, size);
        for (size_t i = 0; i < n; i++) {
            if (v->ints)
                dtype_store_int(v->type.dtype, bytes + i * size, v->ints[i].v);
            else
                dtype_store(v->type.dtype, bytes + i * size, v->floats[i]);
        }
        return constant(im, &v->type, bytes, true);
    }
    val_id parts[KNOWN_MAX];
    dim one = 1;
    for (size_t i = 0; i < n; i++) {
        val_id x = v->ints[i].sym ? symbol_value(im, v->type.dtype, v->ints[i].v)
                                  : scalar_int(im, v->type.dtype, v->ints[i].v);
        parts[i] = reshape(im, x, &one, 1);
    }
    return reshape(im, concat(im, parts, (int)n, 0), v->type.dims, v->type.rank);
}

/* ---- numbers ------------------------------------------------------------------------------- */
static bool num_add(struct dims_table *t, struct num a, struct num b, struct num *o) {
    dim d;
    if (!a.sym && !b.sym) {
        *o = num_plain(0);
        return !__builtin_add_overflow(a.v, b.v, &o->v);
    }
    if (!a.sym) return num_add(t, b, a, o);
    bool ok = b.sym || b.v >= 0  ? dim_try_add(t, a.v, b.v, &d)
              : b.v == INT64_MIN ? false
                                 : dim_try_sub(t, a.v, -b.v, &d);
    if (ok) *o = num_of_dim(d);
    return ok;
}

static bool num_sub(struct dims_table *t, struct num a, struct num b, struct num *o) {
    dim d;
    if (!a.sym && !b.sym) {
        *o = num_plain(0);
        return !__builtin_sub_overflow(a.v, b.v, &o->v);
    }
    if (!b.sym) return b.v != INT64_MIN && num_add(t, a, num_plain(-b.v), o);
    if (!num_dim(a, &d) || !dim_try_sub(t, d, b.v, &d)) return false;
    *o = num_of_dim(d);
    return true;
}

static bool num_mul(struct dims_table *t, struct num a, struct num b, struct num *o) {
    dim x, y, d;
    if (!a.sym && !b.sym) {
        *o = num_plain(0);
        return !__builtin_mul_overflow(a.v, b.v, &o->v);
    }
    if (!num_dim(a, &x) || !num_dim(b, &y) || !dim_try_mul(t, x, y, &d)) return false;
    *o = num_of_dim(d);
    return true;
}

static bool num_div(struct dims_table *t, struct num a, struct num b, struct num *o) {
    dim x, y, d;
    if (!a.sym && !b.sym) {
        if (b.v == 0 || (a.v == INT64_MIN && b.v == -1)) return false;
        *o = num_plain(a.v / b.v);
        return true;
    }
    if (!num_dim(a, &x) || !num_dim(b, &y) || !dim_div(t, x, y, &d)) return false;
    *o = num_of_dim(d);
    return true;
}

static bool num_mod(struct dims_table *t, struct num a, struct num b, bool trunc, struct num *o) {
    dim x, y, d;
    if (!a.sym && !b.sym) {
        if (b.v == 0 || b.v == -1) return false;
        int64_t r = a.v % b.v;
        if (!trunc && r != 0 && (r < 0) != (b.v < 0)) r += b.v;
        *o = num_plain(r);
        return true;
    }
    if (!num_dim(a, &x) || !num_dim(b, &y) || !dim_div(t, x, y, &d)) return false;
    *o = num_plain(0);
    return true;
}

/* -1, 0, 1 for a < b, a == b, a > b; false when it depends on a symbol. */
static bool num_cmp(struct num a, struct num b, int *o) {
    if (!a.sym && !b.sym) {
        *o = a.v < b.v ? -1 : a.v > b.v;
        return true;
    }
    if (a.sym && b.sym) {
        *o = 0;
        return dim_same(a.v, b.v);
    }
    *o = a.sym ? 1 : -1;
    return a.sym ? b.v <= 0 : a.v <= 0;
}

bool num_apply(struct dims_table *t, enum eop op, struct num a, struct num b, bool trunc,
               struct num *o) {
    int c = 0;
    switch (op) {
    case E_ADD: return num_add(t, a, b, o);
    case E_SUB: return num_sub(t, a, b, o);
    case E_MUL: return num_mul(t, a, b, o);
    case E_DIV: return num_div(t, a, b, o);
    case E_MOD: return num_mod(t, a, b, trunc, o);
    case E_AND: *o = num_plain(a.v & b.v); return !a.sym && !b.sym;
    case E_OR: *o = num_plain(a.v | b.v); return !a.sym && !b.sym;
    case E_XOR: *o = num_plain(a.v ^ b.v); return !a.sym && !b.sym;
    case E_MAX:
    case E_MIN:
        if (a.sym != b.sym && (a.sym ? b.v : a.v) == 1) {
            *o = (op == E_MAX) == a.sym ? a : b;
            return true;
        }
        if (!num_cmp(a, b, &c)) return false;
        *o = (op == E_MAX) == (c >= 0) ? a : b;
        return true;
    default: break;
    }
    if (a.sym != b.sym && (op == E_LE || op == E_GE) && (a.sym ? b.v : a.v) == 1 &&
        a.sym == (op == E_GE)) {
        *o = num_plain(1);
        return true;
    }
    if (!num_cmp(a, b, &c)) return false;
    *o = num_plain(op == E_EQ   ? c == 0
                   : op == E_LT ? c < 0
                   : op == E_LE ? c <= 0
                   : op == E_GT ? c > 0
                                : c >= 0);
    return true;
}

bool float_apply(enum eop op, double a, double b, double *o) {
    switch (op) {
    case E_ADD: *o = a + b; return true;
    case E_SUB: *o = a - b; return true;
    case E_MUL: *o = a * b; return true;
    case E_DIV: *o = a / b; return true;
    case E_MAX: *o = a > b ? a : b; return a == a && b == b;
    case E_MIN: *o = a < b ? a : b; return a == a && b == b;
    case E_EQ: *o = a == b; return true;
    case E_LT: *o = a < b; return true;
    case E_LE: *o = a <= b; return true;
    case E_GT: *o = a > b; return true;
    case E_GE: *o = a >= b; return true;
    default: return false;
    }
}

double known_round(enum dtype t, double x) {
    unsigned char bytes[8];
    dtype_store(t, bytes, x);
    return dtype_load(t, bytes);
}

/* Products and quotients of doubles rounded to a narrower type: exact once only for these. */
bool known_exact(enum dtype t) {
    return t == DT_f32 || t == DT_f16 || t == DT_bf16 || t == DT_f64;
}

bool num_fits(enum dtype t, struct num x) {
    unsigned char bytes[8];
    if (x.sym) return t == DT_i64 || t == DT_i32;
    dtype_store_int(t, bytes, x.v);
    return dtype_load_int(t, bytes) == x.v;
}
