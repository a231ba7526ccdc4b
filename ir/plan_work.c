// SPDX-License-Identifier: Apache-2.0
/* plan_work.c - workspace sizes and the pieces of convolutions and attention. The layout of fused
 * groups, the largest part, is in plan_group.c. */
#include "ir/plan_work.h"
#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}

static int64_t round64(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* ---- convolution ------------------------------------------------------------------------------
 */

/* The views of x, w and y by launch kind. */
static void conv_views(const struct plan_launch *l, const struct plan_view **x,
                       const struct plan_view **w, const struct plan_view **y) {
    switch (l->kind) {
    case LAUNCH_conv_input_grad: *y = &l->in[0], *w = &l->in[1], *x = &l->out[0]; break;
    case LAUNCH_conv_weight_grad: *x = &l->in[0], *y = &l->in[1], *w = &l->out[0]; break;
    default: *x = &l->in[0], *w = &l->in[1], *y = &l->out[0]; break;
    }
}

struct conv_shape plan_conv_shape(const struct plan_launch *l) {
    const struct plan_view *x, *w, *y;
    conv_views(l, &x, &w, &y);
    struct conv_shape s = {.n = x->dims[0], .in_plane = 1, .out_plane = 1, .taps = 1};
    int n, spatial = x->rank - 2;
    s.groups = launch_int(l, ATTR_groups, 1);
    s.c = w->dims[1];
    s.o = s.groups ? w->dims[0] / s.groups : 0;
    const int64_t *strides = launch_ints(l, ATTR_strides, &n);
    const int64_t *dilations = launch_ints(l, ATTR_dilations, &n);
    const int64_t *pads = launch_ints(l, ATTR_pads, &n);
    s.pointwise = true;
    for (int i = 0; i < 3; i++) { /* missing axes go in front: the last axis is the fast one */
        int k = i - (3 - spatial);
        bool real = k >= 0;
        s.in[i] = real ? x->dims[2 + k] : 1;
        s.out[i] = real ? y->dims[2 + k] : 1;
        s.kernel[i] = real ? w->dims[2 + k] : 1;
        s.stride[i] = real && strides ? strides[k] : 1;
        s.dilation[i] = real && dilations ? dilations[k] : 1;
        s.pad[i] = real && pads ? pads[k] : 0;
        s.in_plane *= s.in[i];
        s.out_plane *= s.out[i];
        s.taps *= s.kernel[i];
        s.pointwise &= s.kernel[i] == 1 && s.stride[i] == 1 && !s.pad[i] && s.in[i] == s.out[i];
    }
    return s;
}

int64_t plan_conv_tile(const struct conv_shape *s, int64_t k) {
    enum { TILE_ELEMS = 65536 }; /* 256 KiB of f32: half of a common L2 cache */
    int64_t tile = clamp(TILE_ELEMS / (k > 0 ? k : 1) / 16 * 16, 64, 4096);
    return clamp(s->out_plane, 1, tile);
}

int64_t plan_conv_channels(const struct conv_shape *s, bool weight_grad) {
    int64_t other = weight_grad ? s->groups : s->groups * (s->n > 0 ? s->n : 1);
    int64_t parts = clamp(ceil_div(16, other > 0 ? other : 1), 1, s->c > 0 ? s->c : 1);
    int64_t least = ceil_div(64, s->taps > 0 ? s->taps : 1); /* products want some width */
    return clamp(ceil_div(s->c, parts), clamp(least, 1, s->c > 0 ? s->c : 1), s->c > 0 ? s->c : 1);
}

static int64_t conv_bytes(const struct plan_launch *l, int threads) {
    struct conv_shape s = plan_conv_shape(l);
    int64_t channels = s.c;
    if (l->kind == LAUNCH_conv_input_grad) channels = plan_conv_channels(&s, false);
    if (l->kind == LAUNCH_conv_weight_grad) channels = plan_conv_channels(&s, true);
    int64_t k = channels * s.taps;
    if (s.pointwise || !k || !s.out_plane) return 0;
    int64_t elem = (int64_t)dtype_size(l->out[0].dtype);
    return threads * round64(k * plan_conv_tile(&s, k) * elem);
}

/* ---- attention ---------------------------------------------------------------------------------
 */

int64_t plan_attention_rows(int64_t queries, int64_t keys) {
    int64_t rows = clamp(65536 / (keys > 0 ? keys : 1) / 8 * 8, 16, 128);
    return clamp(rows, 1, queries > 0 ? queries : 1);
}

int64_t plan_attention_scores(const struct plan_launch *l) {
    const struct plan_view *q = &l->in[0], *k = &l->in[1];
    int64_t rows = plan_attention_rows(q->dims[2], k->dims[2]);
    return round64(rows * k->dims[2] * (q->dtype == DT_f64 ? 8 : 4));
}

int64_t plan_attention_scratch(const struct plan_launch *l) {
    const struct plan_view *q = &l->in[0], *k = &l->in[1], *v = &l->in[2];
    int64_t parts = l->kind == LAUNCH_attention_grad ? 2 : 1; /* values and their gradients */
    int64_t bytes = parts * plan_attention_scores(l), width = q->dims[3] + v->dims[3];
    if (dtype_size(q->dtype) != 2) return bytes;
    int64_t rows = plan_attention_rows(q->dims[2], k->dims[2]);
    return bytes + round64(parts * (rows + k->dims[2]) * width * 4);
}

/* ---- optimizers -------------------------------------------------------------------------------
 */
struct optimizer_form plan_optimizer(const struct plan_launch *l) {
    struct optimizer_form f = {.kept = l->kind == LAUNCH_adam8  ? 7
                                       : l->kind == LAUNCH_adam ? 3
                                                                : 2};
    int64_t count = launch_int(l, ATTR_count, 1);
    f.each = f.kept + 1;
    f.count = count >= 1 && count <= l->nin ? (uint32_t)count : 0;
    f.lr = f.count * f.each;
    f.factor = f.lr + (l->kind == LAUNCH_adam8 ? 4 : 2);
    return f;
}

int64_t plan_squares_pieces(const struct plan_launch *l) {
    int64_t n = 0;
    for (uint32_t k = 0; k < l->nin; k++) n += ceil_div(view_count(&l->in[k]), SQUARES_PIECE);
    return n;
}

int64_t plan_scatter_lists(const struct plan_launch *l) {
    const struct plan_view *y = &l->out[0];
    if (!dtype_is_float(y->dtype) || dtype_size(y->dtype) != 2) return 0;
    return round64((y->dims[launch_int(l, ATTR_axis, 0)] + view_count(&l->in[0])) * 4);
}

/* ---- products ---------------------------------------------------------------------------------
 */
struct product_blocks plan_product_blocks(const struct plan_launch *l) {
    enum { TILE_M = 256, TILE_N = 512, DEPTH = 512 };
    const struct plan_view *a = &l->in[0], *y = &l->out[0];
    struct product_blocks r = {.m = clamp(y->dims[y->rank - 2], 1, TILE_M),
                               .n = clamp(y->dims[y->rank - 1], 1, TILE_N),
                               .k = clamp(a->dims[a->rank - 1], 1, DEPTH)};
    if (dtype_size(a->dtype) > 2) return r;
    int64_t elem = (int64_t)sizeof(float);
    r.b = round64(r.m * r.k * elem);
    r.c = r.b + round64(r.k * r.n * elem);
    r.thread_bytes = r.c + round64(r.m * r.n * elem);
    return r;
}

int64_t group_rows(const struct plan_group *g) {
    int64_t n = 1;
    for (int i = 0; i < g->rank - g->inner; i++) n *= g->dims[i];
    return n;
}

int64_t group_row_length(const struct plan_group *g) {
    int64_t n = 1;
    for (int i = g->rank - g->inner; i < g->rank; i++) n *= g->dims[i];
    return n;
}

struct group_question {
    const struct plan *p;
    const struct plan_launch *l;
    int64_t per_thread, shared;
};

static enum status answer_group(struct arena *scratch, void *user) {
    struct group_question *q = user;
    const struct group_layout *g = plan_group_layout(q->p, q->l, scratch);
    q->per_thread = g->thread_bytes;
    q->shared = g->shared_bytes;
    return ST_OK;
}

static int64_t group_bytes(const struct plan *p, const struct plan_launch *l, int threads) {
    struct group_question q = {.p = p, .l = l};
    enum status st = arena_with_scratch(p->ctx, answer_group, &q);
    CHECK(p->ctx, st == ST_OK);
    return threads * q.per_thread + q.shared;
}

int64_t launch_workspace(const struct plan *p, const struct plan_launch *l) {
    int threads = p->threads > 0 ? p->threads : 1;
    switch (l->kind) {
    case LAUNCH_group: return group_bytes(p, l, threads);
    case LAUNCH_matmul: return threads * plan_product_blocks(l).thread_bytes;
    case LAUNCH_conv:
    case LAUNCH_conv_input_grad:
    case LAUNCH_conv_weight_grad: return conv_bytes(l, threads);
    case LAUNCH_attention:
    case LAUNCH_attention_grad: return threads * plan_attention_scratch(l);
    case LAUNCH_scatter_rows: return plan_scatter_lists(l);
    case LAUNCH_sum_squares: return round64(plan_squares_pieces(l) * (int64_t)sizeof(double));
    default: return 0;
    }
}
