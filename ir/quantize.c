// SPDX-License-Identifier: Apache-2.0
/* quantize.c - types of quantize and dequantize, and builders. What they compute is written out in
 * codegen/quantize.c. */
#include "ir/quantize.h"
#include "base/fp8.h"
#include "ir/infer.h"
#include <math.h>

double quant_largest(enum dtype format) {
    switch (format) {
    case DT_e4m3: return (double)FP8_E4M3_MAX;
    case DT_e5m2: return (double)FP8_E5M2_MAX;
    case DT_i8: return 127;
    default: return 0;
    }
}

/* ---- types --------------------------------------------------------------------------------- */
static bool cut_axis(dim n, int64_t piece, dim *out) {
    if (piece == 1 || piece == 0) {
        *out = piece ? n : 1;
        return true;
    }
    if (!dim_known(n)) return false;
    *out = n / piece + (n % piece != 0);
    return true;
}

bool quant_scale_type(const struct type *x, struct quant_tile tile, enum dtype dtype,
                      struct type *out) {
    struct type t = *x;
    t.dtype = dtype;
    if (tile.whole) t.rank = 0;
    *out = t;
    if (tile.whole) return true;
    if (t.rank < (tile.rows == 1 ? 1 : 2)) return false;
    bool ok = cut_axis(t.dims[t.rank - 1], tile.cols, &t.dims[t.rank - 1]);
    if (t.rank > 1) ok = ok && cut_axis(t.dims[t.rank - 2], tile.rows, &t.dims[t.rank - 2]);
    *out = t;
    return ok;
}

static struct quant_tile tile_from(const int64_t *list, int n) {
    return n == 2 ? (struct quant_tile){false, list[0], list[1]}
                  : (struct quant_tile){.whole = true};
}

struct quant_tile quant_tile_of(const struct graph *g, node_id n) {
    int count;
    const int64_t *list = attr_ints(g, n, ATTR_tile, &count);
    return tile_from(list, count);
}

static enum status infer_scale(struct infer *x, const struct type *of, enum dtype dtype,
                               struct type *out) {
    int n;
    const int64_t *list = infer_list(x, ATTR_tile, &n);
    if (n != 0 && (n != 2 || list[0] < 0 || list[1] < 0))
        return infer_fail(x, ST_USAGE, "'tile' must be [] or two numbers >= 0");
    struct quant_tile tile = tile_from(list, n);
    if (quant_scale_type(of, tile, dtype, out)) return ST_OK;
    return infer_fail(x, ST_SHAPE, "a tile of %lld rows and %lld columns does not fit %s",
                      (long long)tile.rows, (long long)tile.cols, infer_show(x, of));
}

static bool is_scale_type(enum dtype t) {
    return t == DT_f32 || t == DT_bf16 || t == DT_e8m0;
}

enum status infer_quantize(struct infer *x) { /* (x[, scale]) */
    enum dtype format = (enum dtype)x->attrs[ATTR_format].i;
    enum dtype st = (enum dtype)x->attrs[ATTR_scale_type].i;
    double eps = x->attrs[ATTR_eps].f;
    int64_t margin = x->attrs[ATTR_margin].i;
    TRY(infer_want_float(x, 0));
    if (quant_largest(format) == 0)
        return infer_fail(x, ST_USAGE, "'format' must be e4m3, e5m2 or i8, found %s",
                          dtype_name(format));
    if (!is_scale_type(st))
        return infer_fail(x, ST_USAGE, "'scale_type' must be f32, bf16 or e8m0, found %s",
                          dtype_name(st));
    if (!(eps >= 1e-30 && eps <= 1)) /* scales stay normal numbers */
        return infer_fail(x, ST_USAGE, "'eps' must be between 1e-30 and 1, found %g", eps);
    if (margin < 0 || margin > 6)
        return infer_fail(x, ST_USAGE, "'margin' must be between 0 and 6, found %lld",
                          (long long)margin);
    x->out[0] = x->in[0];
    x->out[0].dtype = format;
    TRY(infer_scale(x, &x->in[0], st, &x->out[1]));
    if (x->nin == 2) TRY(infer_want_type(x, 1, &x->out[1], "the scale"));
    x->out[2] = x->out[1];
    x->out[2].dtype = DT_f32;
    return ST_OK;
}

enum status infer_dequantize(struct infer *x) { /* (codes, scale) */
    enum dtype t = (enum dtype)x->attrs[ATTR_dtype].i;
    struct type scale;
    if (quant_largest(x->in[0].dtype) == 0)
        return infer_fail(x, ST_TYPE, "the codes must be e4m3, e5m2 or i8, found %s",
                          dtype_name(x->in[0].dtype));
    if (t != DT_f32 && t != DT_bf16 && t != DT_f16 && t != DT_f64)
        return infer_fail(x, ST_USAGE, "'dtype' must be f32, bf16, f16 or f64, found %s",
                          dtype_name(t));
    if (!is_scale_type(x->in[1].dtype))
        return infer_fail(x, ST_TYPE, "the scale must be f32, bf16 or e8m0, found %s",
                          dtype_name(x->in[1].dtype));
    TRY(infer_scale(x, &x->in[0], x->in[1].dtype, &scale));
    TRY(infer_want_type(x, 1, &scale, "the scale"));
    x->out[0] = x->in[0];
    x->out[0].dtype = t;
    return ST_OK;
}

/* The tile of scales `s` for codes `t`; false: of none that a product takes. */
static bool scale_tile(const struct type *t, const struct type *s, struct quant_tile *tile) {
    static const struct quant_tile tiles[] = {
        {.whole = true}, {false, 1, 0}, {false, 1, SCALED_TILE}, {false, SCALED_TILE, SCALED_TILE}};
    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        struct type want;
        *tile = tiles[i];
        if (quant_scale_type(t, *tile, DT_f32, &want) && type_equal(&want, s)) return true;
    }
    return false;
}

bool scaled_tiles(const struct type *a, const struct type *b, const struct type *sa,
                  const struct type *sb, struct quant_tile out[2]) {
    if (!scale_tile(a, sa, &out[0]) || !scale_tile(b, sb, &out[1])) return false;
    if (out[0].whole || out[1].whole) return out[0].whole && out[1].whole;
    /* one column of blocks may be a row's scales too: what the other operand has decides */
    for (int k = 0; k < 2; k++) {
        bool blocks = out[1 - k].cols == SCALED_TILE;
        const struct type *t = k ? b : a;
        if (blocks && out[k].cols == 0 && t->dims[t->rank - 1] <= SCALED_TILE)
            out[k].cols = SCALED_TILE;
    }
    return out[0].cols == out[1].cols && (out[0].rows == 1 || out[1].rows == 1);
}

enum status infer_scaled_matmul(struct infer *x) { /* (a, b, sa, sb) */
    const struct type *a = &x->in[0], *b = &x->in[1];
    enum dtype t = (enum dtype)x->attrs[ATTR_dtype].i;
    struct quant_tile tiles[2];
    for (int k = 0; k < 2; k++)
        if (x->in[k].dtype != DT_e4m3 && x->in[k].dtype != DT_e5m2)
            return infer_fail(x, ST_TYPE, "codes must be e4m3 or e5m2, found %s",
                              infer_show(x, &x->in[k]));
    if (a->dtype == DT_e5m2 && b->dtype == DT_e5m2)
        return infer_fail(x, ST_TYPE, "one of the operands must be e4m3, found %s x %s",
                          infer_show(x, a), infer_show(x, b));
    if (t != DT_f32 && t != DT_bf16 && t != DT_f16)
        return infer_fail(x, ST_USAGE, "'dtype' must be f32, bf16 or f16, found %s", dtype_name(t));
    if (a->rank < 2 || b->rank != 2 || !dim_same(a->dims[a->rank - 1], b->dims[1]))
        return infer_fail(x, ST_SHAPE, "expected [..,M,K] and [N,K], found %s and %s",
                          infer_show(x, a), infer_show(x, b));
    if (!scaled_tiles(a, b, &x->in[2], &x->in[3], tiles))
        return infer_fail(x, ST_SHAPE,
                          "scales %s and %s are not those of tensors, rows or blocks of %d of %s "
                          "and %s",
                          infer_show(x, &x->in[2]), infer_show(x, &x->in[3]), SCALED_TILE,
                          infer_show(x, a), infer_show(x, b));
    x->out[0] = *a;
    x->out[0].dtype = t;
    x->out[0].dims[a->rank - 1] = b->dims[0];
    return ST_OK;
}

/* ---- builders ------------------------------------------------------------------------------ */
static struct attr tile_attr(const struct quant_tile *t, int64_t list[2]) {
    list[0] = t->rows, list[1] = t->cols;
    return (struct attr){.key = ATTR_tile, .list = list, .n = t->whole ? 0 : 2};
}

val_id build_quantize(struct graph *g, val_id x, val_id scale, const struct quant_how *h,
                      str_id o) {
    int64_t list[2];
    struct attr attrs[] = {
        {.key = ATTR_format, .i = h->format},         tile_attr(&h->tile, list),
        {.key = ATTR_scale_type, .i = h->scale_type}, {.key = ATTR_eps, .f = h->eps},
        {.key = ATTR_margin, .i = h->margin},
    };
    return graph_add(g, OP_quantize, (val_id[]){x, scale}, scale.i ? 2 : 1, attrs, 5, o);
}

val_id build_dequantize(struct graph *g, val_id codes, val_id scale, struct quant_tile tile,
                        enum dtype dtype, str_id o) {
    int64_t list[2];
    struct attr attrs[] = {tile_attr(&tile, list), {.key = ATTR_dtype, .i = dtype}};
    return graph_add(g, OP_dequantize, (val_id[]){codes, scale}, 2, attrs, 2, o);
}

val_id build_quant_scale(struct graph *g, val_id amax, const struct quant_how *h, str_id o) {
    val_id largest = build_scalar(g, DT_f32, quant_largest(h->format), o);
    val_id s = build_2(g, OP_add, amax, build_scalar(g, DT_f32, h->eps, o), o);
    s = build_2(g, OP_div, s, largest, o);
    double factor = ldexp(1, (int)h->margin);
    if (h->margin) s = build_2(g, OP_mul, s, build_scalar(g, DT_f32, factor, o), o);
    if (h->scale_type == DT_e8m0)
        s = build_2(g, OP_mul, s, build_scalar(g, DT_f32, (double)E8M0_UP, o), o);
    return build_cast(g, s, h->scale_type, o);
}

val_id build_delayed_scale(struct graph *g, val_id history, val_id first, const struct quant_how *h,
                           str_id o) {
    val_id most = build_reduce(g, OP_reduce_max, history, (int64_t[]){0}, 1, false, o);
    if (first.i) {
        val_id none = build_2(g, OP_eq, most, build_scalar(g, DT_f32, 0, o), o);
        most = build_3(g, OP_where, none, first, most, o);
    }
    return build_quant_scale(g, most, h, o);
}

val_id build_next_history(struct graph *g, val_id history, val_id amax, str_id o) {
    int64_t n = val_type(g, history)->dims[0];
    val_id newest = build_reshape(g, amax, (dim[]){1}, 1, o);
    if (n == 1) return newest;
    val_id rest = build_slice(g, history, (dim[]){0}, (dim[]){n - 1}, NULL, o);
    return build_concat(g, (val_id[]){newest, rest}, 2, 0, o);
}

val_id build_scaled_matmul(struct graph *g, val_id a, val_id b, val_id sa, val_id sb,
                           enum dtype dtype, str_id o) {
    struct attr attr = {.key = ATTR_dtype, .i = dtype};
    return graph_add(g, OP_scaled_matmul, (val_id[]){a, b, sa, sb}, 4, &attr, 1, o);
}
