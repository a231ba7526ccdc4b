// SPDX-License-Identifier: Apache-2.0
/* quantize.c - quantize and dequantize written out as maxima, quotients and casts, before fusion:
 * these then join whatever computes their operands and reads their results. Maxima of a whole
 * tensor are taken by rows first, so that the first stage can belong to the launch that makes the
 * rows. The definitions stand in docs/quantization.md. */
#include "ir/quantize.h"
#include "codegen/internal.h"

/* Shortest row for which a maximum of its own pays. Rows are taken in pieces, so that a warp has
 * one and no block waits for its threads, where nothing else in the launch is about whole rows;
 * those longer than LONG_ROW_MAX in any case. */
enum { TWO_STAGES = 64, LONG_ROW_MAX = 4096, ROW_PIECE = 256 };

struct tiling {
    struct quant_tile tile;
    struct type x;                       /* of the operand; static */
    dim padded[RANK_MAX], cut[RANK_MAX]; /* whole tiles; those with tiles as axes */
    dim counts[RANK_MAX];                /* cut, with tiles of one element: the scales */
    int64_t axes[2];                     /* of cut: those within a tile */
    int rank, naxes;                     /* of cut */
    bool pads;
};

/* What a launch that makes a value is about besides: parts of rows do as well as whole ones, or
 * whole rows are reduced, or columns are. */
enum along { ALONG_PARTS, ALONG_COLUMNS, ALONG_ROWS };

static void cut_axis(struct tiling *t, dim n, int64_t piece, int k) {
    if (piece == 0) piece = n > 0 ? n : 1;
    dim tiles = n / piece + (n % piece != 0);
    t->padded[k] = tiles * piece;
    t->pads |= t->padded[k] != n;
    t->cut[t->rank] = t->counts[t->rank] = tiles;
    t->rank++;
    if (piece == 1) return;
    t->axes[t->naxes++] = t->rank;
    t->cut[t->rank] = piece, t->counts[t->rank] = 1;
    t->rank++;
}

static struct tiling tiling_of(const struct type *x, struct quant_tile tile) {
    struct tiling t = {.tile = tile, .x = *x};
    for (int k = 0; k < x->rank; k++)
        cut_axis(&t, x->dims[k],
                 k == x->rank - 1   ? tile.cols
                 : k == x->rank - 2 ? tile.rows
                                    : 1,
                 k);
    return t;
}

/* One number per tile to one number per element. */
static val_id spread(struct graph *g, const struct tiling *t, val_id scale, str_id o) {
    if (t->tile.whole || t->naxes == 0) return scale;
    const dim *x = t->x.dims;
    int rank = t->x.rank;
    bool rows = t->tile.cols == 0 && t->tile.rows == 1; /* broadcasts as it is */
    if (type_count(&t->x) == 0) return build_full(g, &t->x, 1, o);
    if (rows) return scale;
    val_id v = build_reshape(g, scale, t->counts, t->rank, o);
    v = build_expand(g, v, t->cut, t->rank, o);
    v = build_reshape(g, v, t->padded, rank, o);
    dim zeros[RANK_MAX] = {0};
    return t->pads ? build_slice(g, v, zeros, x, NULL, o) : v;
}

static val_id pad_to(struct graph *g, const struct tiling *t, val_id v, str_id o) {
    int64_t zeros[RANK_MAX] = {0}, high[RANK_MAX];
    for (int k = 0; k < t->x.rank; k++) high[k] = t->padded[k] - t->x.dims[k];
    struct attr attrs[] = {{.key = ATTR_low, .list = zeros, .n = t->x.rank},
                           {.key = ATTR_high, .list = high, .n = t->x.rank},
                           {.key = ATTR_interior, .list = zeros, .n = t->x.rank}};
    return graph_add(g, OP_pad, &v, 1, attrs, 3, o);
}

static val_id whole_amax(struct graph *g, val_id a, enum along how, str_id o) {
    struct type t = *val_type(g, a);
    int64_t axes[RANK_MAX] = {0};
    int last = t.rank - 1;
    bool rows = how == ALONG_ROWS;
    if (how == ALONG_COLUMNS && t.rank > 1 && t.dims[last] >= ROW_PIECE) {
        for (int k = 0; k < last; k++) axes[k] = k;
        a = build_reduce(g, OP_reduce_max, a, axes, last, false, o);
        return build_reduce(g, OP_reduce_max, a, (int64_t[]){0}, 1, false, o);
    }
    if (t.rank > 0 && t.rank < RANK_MAX && t.dims[last] > (rows ? LONG_ROW_MAX : ROW_PIECE) &&
        t.dims[last] % ROW_PIECE == 0) {
        t.dims[last + 1] = ROW_PIECE;
        t.dims[last] /= ROW_PIECE;
        t.rank++, last++;
        a = build_reshape(g, a, t.dims, t.rank, o);
    }
    if (t.rank > 1 && t.dims[last] >= TWO_STAGES) {
        a = build_reduce(g, OP_reduce_max, a, (int64_t[]){last}, 1, false, o);
        t.rank--;
    }
    for (int k = 0; k < t.rank; k++) axes[k] = k;
    return t.rank ? build_reduce(g, OP_reduce_max, a, axes, t.rank, false, o) : a;
}

/* The largest magnitude of each tile, in the shape of the scales; of nothing it is 0. Of parts of a
 * row it comes from the largest and the smallest number: these read x as it is, where magnitudes
 * would be one more tensor if x is computed by a launch with other rows. */
static val_id amax_of(struct graph *g, const struct tiling *t, val_id x, enum along how,
                      const struct type *scale, str_id o) {
    if (type_count(&t->x) == 0) return build_full(g, scale, 0, o);
    if (t->tile.whole) return whole_amax(g, build_1(g, OP_abs, x, o), how, o);
    const int n = t->naxes;
    if (n == 1 && t->axes[0] == t->rank - 1 && t->tile.cols == 0)
        return build_reshape(g,
                             build_reduce(g, OP_reduce_max, build_1(g, OP_abs, x, o),
                                          (int64_t[]){t->x.rank - 1}, 1, true, o),
                             scale->dims, scale->rank, o);
    val_id most = build_reshape(g, t->pads ? pad_to(g, t, x, o) : x, t->cut, t->rank, o);
    if (n) {
        val_id least = build_reduce(g, OP_reduce_min, most, t->axes, n, true, o);
        most = build_reduce(g, OP_reduce_max, most, t->axes, n, true, o);
        most = build_2(g, OP_max, most, build_1(g, OP_neg, least, o), o);
    }
    return build_reshape(g, build_1(g, OP_abs, most, o), scale->dims, scale->rank, o); /* no -0 */
}

static val_id codes_of(struct graph *g, val_id quotient, enum dtype format, str_id o) {
    if (format != DT_i8) return build_cast(g, quotient, format, o);
    val_id low = build_scalar(g, DT_f32, -127, o), high = build_scalar(g, DT_f32, 127, o);
    quotient = build_3(g, OP_clip, build_1(g, OP_round, quotient, o), low, high, o);
    return build_cast(g, quotient, format, o);
}

/* The matrix that x is the transpose of, or none. */
static val_id untransposed(const struct graph *g, val_id x) {
    if (val_op(g, x) != OP_transpose || val_type(g, x)->rank != 2) return VAL_NONE;
    int rank;
    const int64_t *perm = attr_ints(g, val_def(g, x), ATTR_perm, &rank);
    return perm[0] == 1 ? node_in(g, val_def(g, x), 0) : VAL_NONE;
}

/* Codes of a transpose with a scale for each row: those of the matrix with one for each column,
 * transposed. So what is transposed are codes, and the maxima are read in the order of memory. */
static void expand_by_columns(struct graph *g, node_id n, val_id matrix,
                              const struct quant_how *h) {
    const str_id o = graph_node(g, n)->origin;
    const struct type scale = *val_type(g, node_out(g, n, 1));
    val_id x = build_cast(g, matrix, DT_f32, o);
    val_id amax =
        build_reduce(g, OP_reduce_max, build_1(g, OP_abs, x, o), (int64_t[]){0}, 1, true, o);
    val_id s = graph_node(g, n)->nin == 2
                   ? build_reshape(g, node_in(g, n, 1), val_type(g, amax)->dims, 2, o)
                   : build_quant_scale(g, amax, h, o);
    val_id codes = codes_of(g, build_2(g, OP_div, x, build_cast(g, s, DT_f32, o), o), h->format, o);
    graph_forward(g, node_out(g, n, 0), build_swap_last(g, codes, o));
    graph_forward(g, node_out(g, n, 1), build_reshape(g, s, scale.dims, scale.rank, o));
    graph_forward(g, node_out(g, n, 2), build_reshape(g, amax, scale.dims, scale.rank, o));
}

static void expand_quantize_node(struct graph *g, node_id n, enum along how) {
    const str_id o = graph_node(g, n)->origin;
    struct quant_how h = {
        .format = attr_dtype(g, n, ATTR_format),
        .scale_type = attr_dtype(g, n, ATTR_scale_type),
        .tile = quant_tile_of(g, n),
        .eps = attr_float(g, n, ATTR_eps),
        .margin = attr_int(g, n, ATTR_margin),
    };
    bool given = graph_node(g, n)->nin == 2;
    val_id matrix = untransposed(g, node_in(g, n, 0));
    if (matrix.i && h.tile.rows == 1 && h.tile.cols == 0 && !h.tile.whole &&
        type_count(val_type(g, matrix)) > 0) {
        expand_by_columns(g, n, matrix, &h);
        return;
    }
    val_id x = build_cast(g, node_in(g, n, 0), DT_f32, o), scale;
    struct type amax_type = *val_type(g, node_out(g, n, 2));
    struct tiling t = tiling_of(val_type(g, x), h.tile);
    val_id amax = amax_of(g, &t, x, how, &amax_type, o);
    scale = given ? node_in(g, n, 1) : build_quant_scale(g, amax, &h, o);
    val_id wide = spread(g, &t, build_cast(g, scale, DT_f32, o), o);
    val_id codes = codes_of(g, build_2(g, OP_div, x, wide, o), h.format, o);
    graph_forward(g, node_out(g, n, 0), codes);
    graph_forward(g, node_out(g, n, 1), scale);
    graph_forward(g, node_out(g, n, 2), amax);
}

static val_id widened(struct graph *g, val_id codes, val_id scale, struct quant_tile tile,
                      str_id o) {
    val_id x = build_cast(g, codes, DT_f32, o);
    struct tiling t = tiling_of(val_type(g, x), tile);
    return build_2(g, OP_mul, x, spread(g, &t, build_cast(g, scale, DT_f32, o), o), o);
}

static void expand_dequantize_node(struct graph *g, node_id n) {
    const str_id o = graph_node(g, n)->origin;
    val_id x = widened(g, node_in(g, n, 0), node_in(g, n, 1), quant_tile_of(g, n), o);
    graph_forward(g, node_out(g, n, 0), build_cast(g, x, attr_dtype(g, n, ATTR_dtype), o));
}

/* What a launch can do on every device: see plan.h. */
static bool is_native(const struct type *const t[4], const struct quant_tile tiles[2]) {
    enum { ALIGN = 16 };
    int64_t n = t[1]->dims[0], k = t[1]->dims[1];
    if (!tiles[0].whole && tiles[0].cols != 0) return false;
    return k > 0 && n > 0 && k % ALIGN == 0 && n % ALIGN == 0 && type_count(t[0]) > 0 &&
           type_count(t[0]) / k % ALIGN == 0;
}

/* Products of what the codes stand for, in the type of the result. */
static void expand_scaled_matmul_node(struct graph *g, node_id n) {
    const str_id o = graph_node(g, n)->origin;
    struct quant_tile tiles[2];
    const struct type *t[4];
    for (int k = 0; k < 4; k++) t[k] = val_type(g, node_in(g, n, k));
    CHECK(g->ctx, scaled_tiles(t[0], t[1], t[2], t[3], tiles));
    if (is_native(t, tiles)) return;
    val_id wide[2];
    enum dtype dtype = attr_dtype(g, n, ATTR_dtype);
    for (int k = 0; k < 2; k++) {
        wide[k] = widened(g, node_in(g, n, k), node_in(g, n, 2 + k), tiles[k], o);
        wide[k] = build_cast(g, wide[k], dtype, o);
    }
    graph_forward(g, node_out(g, n, 0), build_matmul(g, wide[0], wide[1], false, true, o));
}

/* Not those of symbolic sizes, which plan_build refuses. */
static bool all_static(const struct graph *g, node_id n) {
    bool ok = true;
    for (int k = 0; k < graph_node(g, n)->nin; k++)
        ok = ok && type_static(val_type(g, node_in(g, n, k)));
    return ok;
}

/* A value that is computed along whole rows, or summed by columns of them, is made by a launch with
 * these rows, and the maximum of a tensor belongs to it. */
static enum along *find_along(const struct graph *g, struct arena *scratch) {
    enum along *along = ARENA_ARRAY(scratch, enum along, g->values.n);
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        const struct node *node = graph_node(g, n);
        enum op op = (enum op)node->op;
        enum along most = ALONG_PARTS;
        bool reduces = (op >= OP_reduce_sum && op <= OP_reduce_prod) || op == OP_rms_norm ||
                       op == OP_layer_norm || op == OP_softmax || op == OP_log_softmax;
        bool follows = (op_info(op)->traits & EW) || op == OP_quantize || op == OP_dequantize;
        for (int k = 0; k < node->nin && follows; k++)
            if (along[node_in(g, n, k).i] == ALONG_ROWS) most = ALONG_ROWS;
        if (reduces) most = ALONG_ROWS;
        for (int k = 0; k < node->nout; k++) along[node_out(g, n, k).i] = most;
        if (op != OP_reduce_sum) continue;
        for (val_id v = node_in(g, n, 0);; v = node_in(g, val_def(g, v), 0)) {
            if (along[v.i] == ALONG_PARTS) along[v.i] = ALONG_COLUMNS;
            enum op from = val_op(g, v);
            if (from != OP_cast && !(op_info(from)->traits & VIEW)) break;
        }
    }
    return along;
}

/* What makes codes stays where the graph says, so that what they stand for can go; what reads them
 * stands in front of its first reader. */
void expand_quantize(struct graph *g, struct arena *scratch) {
    const uint32_t count = g->nodes.n;
    const enum along *along = find_along(g, scratch);
    VEC(uint32_t) after = {0};
    for (uint32_t i = 1; i < count; i++) {
        if (graph_node(g, (node_id){i})->op != OP_quantize || !all_static(g, (node_id){i}))
            continue;
        expand_quantize_node(g, (node_id){i}, along[node_in(g, (node_id){i}, 0).i]);
        while (after.n < g->nodes.n - count) vec_push(scratch, &after, i);
    }
    const uint32_t codes = g->nodes.n;
    for (uint32_t i = 1; i < count; i++) {
        node_id n = {i};
        enum op op = (enum op)graph_node(g, n)->op;
        if (op == OP_dequantize && all_static(g, n)) expand_dequantize_node(g, n);
        if (op == OP_scaled_matmul && all_static(g, n)) expand_scaled_matmul_node(g, n);
    }
    if (g->nodes.n > count) (void)graph_settle_behind(g, count, codes, after.at);
}

/* Reached by no node: sizes are known where plans are built. */
static enum status launch_quantize(struct cg *c, node_id n) {
    return diag_error(c->ctx, ST_INTERNAL, node_origin(c->g, n), "%s was not written out",
                      op_info((enum op)graph_node(c->g, n)->op)->name);
}
const struct lowering lower_quantize = {.cls = CLASS_LAUNCH, .launch = launch_quantize};
