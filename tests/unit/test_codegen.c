// SPDX-License-Identifier: Apache-2.0
/* test_codegen.c - from graphs to plans: what fuses into how many launches, layouts that save
 * copies, updates in place, determinism and speed. Numerics are compared elsewhere. */
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "test_util.h"
#include <time.h>

static const struct codegen_options fused = {.threads = 2},
                                    plain = {.threads = 2, .no_fusion = true};
static const str_id none = {0};

static struct type shape(enum dtype t, int rank, const int64_t *dims) {
    struct type r = {.dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++) r.dims[i] = dims[i];
    return r;
}
#define F32(...)                                                                                   \
    shape(DT_f32, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__})

static val_id input(struct graph *g, const char *name, struct type t) {
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(g, OP_input, &t, &a, 1, none);
}

static val_id param(struct graph *g, const char *name, struct type t) {
    float *zeros = ARENA_ARRAY(&g->arena, float, (size_t)type_count(&t));
    struct attr a[] = {
        {.key = ATTR_name, .s = name},
        {.key = ATTR_init, .blob = graph_blob(g, zeros, (size_t)type_bytes(&t), false)}};
    return graph_source(g, OP_param, &t, a, 2, none);
}

static val_id state(struct graph *g, const char *name, const char *role, struct type t) {
    struct attr a[] = {{.key = ATTR_name, .s = name}, {.key = ATTR_role, .s = role}};
    return graph_source(g, OP_state, &t, a, 2, none);
}

static val_id norm(struct graph *g, val_id x, int axis) {
    struct attr a[] = {{.key = ATTR_axis, .i = axis}, {.key = ATTR_eps, .f = 1e-5}};
    return graph_add(g, OP_layer_norm, &x, 1, a, 2, none);
}

static struct plan *build(struct graph *g, const struct codegen_options *o) {
    struct plan *p = NULL;
    const char *log = ((struct test_env *)g->ctx->report_user)->log;
    if (graph_verify(g, "test") != ST_OK || plan_build(g, o, &p) != ST_OK)
        fprintf(stderr, "%s", log);
    ck_assert_msg(p != NULL, "%s", log);
    return p;
}

static uint32_t count_kind(const struct plan *p, enum launch_kind k) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->launches.n; i++) n += p->launches.at[i].kind == k;
    return n;
}

static struct plan *build_logged(struct test_env *t, struct graph *g,
                                 const struct codegen_options *o) {
    struct plan *p = build(g, o);
    ck_assert_str_eq(t->log, "");
    return p;
}

static const char *text(struct test_env *t, const struct plan *p) {
    struct buf b;
    buf_init(&b, &t->arena);
    plan_print(p, &b);
    return b.at;
}

static const struct plan_group *only_group(const struct plan *p) {
    ck_assert_uint_eq(p->launches.n, 1);
    ck_assert_uint_eq(p->launches.at[0].kind, LAUNCH_group);
    return &p->groups.at[p->launches.at[0].group.i];
}

static val_id reduce(struct graph *g, enum op op, val_id x, int64_t first, int64_t n) {
    int64_t axes[RANK_MAX];
    for (int64_t i = 0; i < n; i++) axes[i] = first + i;
    return build_reduce(g, op, x, axes, (int)n, false, none);
}

/* dq, dk, dv [B,H,T,D] of a gradient of attention, from inputs. */
static val_id attention_gradient(struct graph *g) {
    val_id in[6];
    static const char *const names[6] = {"q", "k", "v", "y", "lse", "g"};
    for (int k = 0; k < 6; k++)
        in[k] = k == 4 ? input(g, names[k], F32(2, 2, 5)) : input(g, names[k], F32(2, 2, 5, 4));
    struct attr a[] = {{.key = ATTR_scale, .f = 0.5}, {.key = ATTR_causal, .i = 1}};
    return graph_add(g, OP_attention_grad, in, 6, a, 2, none);
}

/* x [2,2,5,4], its halves turned by c and s. */
static val_id rotated(struct graph *g, val_id x, val_id c, val_id s) {
    val_id a = build_slice(g, x, (dim[]){0, 0, 0, 0}, (dim[]){2, 2, 5, 2}, NULL, none);
    val_id b = build_slice(g, x, (dim[]){0, 0, 0, 2}, (dim[]){2, 2, 5, 2}, NULL, none);
    val_id ac = build_2(g, OP_mul, a, c, none), bs = build_2(g, OP_mul, b, s, none);
    val_id bc = build_2(g, OP_mul, b, c, none), as = build_2(g, OP_mul, a, s, none);
    val_id low = build_2(g, OP_add, ac, bs, none), high = build_2(g, OP_sub, bc, as, none);
    return build_concat(g, (val_id[]){low, high}, 2, 3, none);
}

#define BEGIN(NAME)                                                                                \
    START_TEST(NAME) {                                                                             \
        struct test_env t;                                                                         \
        test_begin(&t);                                                                            \
        TEST_LANDING(&t);                                                                          \
        struct graph *g = graph_create(&t.ctx, #NAME);
#define END                                                                                        \
    graph_destroy(g);                                                                              \
    test_end(&t);                                                                                  \
    }                                                                                              \
    END_TEST

/* ---- fusion -------------------------------------------------------------------------------- */
BEGIN(norm_scale_bias_is_one_launch)
val_id x = input(g, "x", F32(4, 6, 32)), w = param(g, "w", F32(32)), b = param(g, "b", F32(32));
val_id y = build_2(g, OP_add, build_2(g, OP_mul, norm(g, x, 2), w, none), b, none);
graph_add_output(g, "y", y);
struct plan *p = build_logged(&t, g, &fused);
const struct plan_group *group = only_group(p);
ck_assert_int_eq(group->mode, GROUP_ROW);
ck_assert_int_eq(group->rank, 2); /* batch and sequence are one axis */
ck_assert_int_eq(group->dims[0], 24);
ck_assert_int_eq(group->dims[1], 32);
ck_assert_uint_eq(p->launches.at[0].nin, 3);
plan_destroy(p);
p = build_logged(&t, g, &plain);
ck_assert_uint_eq(p->launches.n, 3);
plan_destroy(p);
END

/* gelu'(h) * g and its column sum, with h = product + bias recomputed. */
BEGIN(gelu_backward_is_one_launch)
val_id h0 = input(g, "h", F32(3, 5, 64)), gy = input(g, "g", F32(3, 5, 64));
val_id h = build_2(g, OP_add, h0, param(g, "b", F32(64)), none);
val_id cdf = build_shift(
    g, build_scale(g, build_1(g, OP_erf, build_scale(g, h, 0.7071, none), none), 0.5, none), 0.5,
    none);
val_id pdf = build_scale(
    g, build_1(g, OP_exp, build_scale(g, build_2(g, OP_mul, h, h, none), -0.5, none), none), 0.3989,
    none);
val_id d = build_2(g, OP_add, cdf, build_2(g, OP_mul, h, pdf, none), none);
val_id dx = build_2(g, OP_mul, gy, d, none);
graph_add_output(g, "dx", dx);
graph_add_output(g, "db", reduce(g, OP_reduce_sum, dx, 0, 2));
struct plan *p = build_logged(&t, g, &fused);
const struct plan_group *group = only_group(p);
ck_assert_int_eq(group->mode, GROUP_MAP);
ck_assert_uint_eq(p->launches.at[0].nout, 2);
ck_assert_int_eq(p->launches.at[0].out[1].rank, 1);
ck_assert_int_eq(p->arena_bytes[ARENA_STEP] > 0, 1);
plan_destroy(p);
END

/* softmax minus one-hot: neither the one-hot code nor the probabilities are ever stored. */
BEGIN(one_hot_is_never_stored)
val_id logits = input(g, "x", F32(6, 11)), lse = input(g, "lse", F32(6));
val_id labels = input(g, "labels", shape(DT_i64, 1, (int64_t[]){6}));
val_id hot = build_2(g, OP_eq, build_reshape(g, labels, (dim[]){6, 1}, 2, none),
                     build_iota(g, DT_i64, 11, 0, 1, none), none);
hot = build_cast(g, hot, DT_f32, none);
val_id p0 =
    build_1(g, OP_exp,
            build_2(g, OP_sub, logits, build_reshape(g, lse, (dim[]){6, 1}, 2, none), none), none);
graph_add_output(g, "d", build_2(g, OP_sub, p0, hot, none));
graph_add_output(g, "s", build_2(g, OP_add, p0, hot, none));
struct plan *p = build_logged(&t, g, &fused);
(void)only_group(p);
for (uint32_t b = 1; b < p->buffers.n; b++) ck_assert_int_ne(p->buffers.at[b].kind, BUF_TEMP);
plan_destroy(p);
END

/* Statistics over batch and space of an image: rows are channels, although memory says otherwise. */
BEGIN(reduction_over_outer_axes)
val_id x = input(g, "x", F32(4, 3, 5, 7));
int64_t axes[] = {0, 2, 3};
val_id mean = build_reduce(g, OP_reduce_mean, x, axes, 3, true, none);
graph_add_output(g, "y", build_2(g, OP_sub, x, mean, none));
struct plan *p = build_logged(&t, g, &fused);
const struct plan_group *group = only_group(p);
ck_assert_int_eq(group->mode, GROUP_ROW);
ck_assert_int_eq(group->rank - group->inner, 1);
ck_assert_int_eq(group->dims[0], 3);
ck_assert_int_eq(group->inner, 2); /* 4 and 5*7 */
plan_destroy(p);
END

BEGIN(few_long_rows_are_cut)
val_id x = input(g, "x", F32(512, 1024));
val_id s = reduce(g, OP_reduce_sum, build_2(g, OP_mul, x, x, none), 0, 2);
graph_add_output(g, "norm", build_1(g, OP_sqrt, s, none));
struct plan *p = build_logged(&t, g, &fused);
ck_assert_int_eq(only_group(p)->mode, GROUP_TAIL);
plan_destroy(p);
END

/* What the product needs lies between the two halves: they must not become one launch. */
BEGIN(no_cycles)
val_id x = input(g, "x", F32(8, 8));
val_id a = build_1(g, OP_exp, x, none);
val_id m = build_matmul(g, a, a, false, false, none);
val_id y = build_2(g, OP_mul, build_1(g, OP_tanh, m, none), a, none);
graph_add_output(g, "y", y);
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 3);
ck_assert_uint_eq(count_kind(p, LAUNCH_matmul), 1);
plan_destroy(p);
END

/* ---- layouts ------------------------------------------------------------------------------- */
/* Heads are split and transposed in and out of attention without a copy. */
BEGIN(attention_heads_are_views)
val_id qkv = input(g, "qkv", F32(2, 5, 24)), in[3], w = param(g, "w", F32(8, 8));
for (int k = 0; k < 3; k++) {
    in[k] = build_slice(g, qkv, (dim[]){0, 0, 8 * k}, (dim[]){2, 5, 8}, NULL, none);
    in[k] = build_reshape(g, in[k], (dim[]){2, 5, 2, 4}, 4, none);
    in[k] = build_transpose(g, in[k], (int64_t[]){0, 2, 1, 3}, none);
}
struct attr a = {.key = ATTR_scale, .f = 0.5};
val_id y = graph_add(g, OP_attention, in, 3, &a, 1, none);
y = build_transpose(g, y, (int64_t[]){0, 2, 1, 3}, none);
y = build_matmul(g, build_reshape(g, y, (dim[]){2, 5, 8}, 3, none), w, false, true, none);
graph_add_output(g, "y", y);
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 2);
const struct plan_launch *l = &p->launches.at[0];
ck_assert_int_eq(l->kind, LAUNCH_attention);
ck_assert_int_eq(l->in[1].offset, 8);
ck_assert_int_eq(l->in[1].strides[1], 4);
ck_assert_int_eq(l->in[1].strides[2], 24);
ck_assert_int_eq(l->out[0].strides[2], 8); /* chosen so that the product reads it in place */
l = &p->launches.at[1];
ck_assert_int_eq(l->in[0].rank, 2);
ck_assert_int_eq(l->in[0].dims[0], 10);
ck_assert_int_eq(l->in[1].strides[0], 1); /* the transpose of w */
plan_destroy(p);
END

/* Stacked [3,B,H,T,D], then [B,T,3,H,D] as one matrix: written where the product reads. */
BEGIN(attention_gradients_are_stacked_in_place)
val_id d = attention_gradient(g), parts[3];
for (uint32_t k = 0; k < 3; k++)
    parts[k] = build_reshape(g, (val_id){d.i + k}, (dim[]){1, 2, 2, 5, 4}, 5, none);
val_id x = build_concat(g, parts, 3, 0, none);
x = build_transpose(g, x, (int64_t[]){1, 3, 0, 2, 4}, none);
x = build_reshape(g, x, (dim[]){10, 24}, 2, none);
graph_add_output(g, "dx", build_matmul(g, x, param(g, "w", F32(8, 24)), false, true, none));
graph_add_output(g, "bias", reduce(g, OP_reduce_sum, x, 0, 1));
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 3); /* the gradient, the product, the sum over rows */
const struct plan_launch *l = &p->launches.at[0];
ck_assert_int_eq(l->kind, LAUNCH_attention_grad);
for (int k = 0; k < 3; k++) {
    static const int64_t want[4] = {120, 4, 24, 1};
    ck_assert_int_eq(l->out[k].offset, 8 * k);
    ck_assert_mem_eq(l->out[k].strides, want, sizeof want);
}
for (uint32_t k = 1; k < 3; k++) {
    ck_assert_uint_eq(p->launches.at[k].in[0].buffer.i, l->out[0].buffer.i);
    ck_assert(view_contiguous(&p->launches.at[k].in[0]));
}
plan_destroy(p);
END

/* As above through the gradient of a rotation of q and k: each is read once and written once. */
BEGIN(rotated_gradients_are_stacked_in_place)
val_id d = attention_gradient(g), parts[3];
val_id c = param(g, "c", F32(5, 2)), s = param(g, "s", F32(5, 2));
for (uint32_t k = 0; k < 3; k++) {
    val_id part = (val_id){d.i + k};
    part = build_transpose(g, k < 2 ? rotated(g, part, c, s) : part, (int64_t[]){0, 2, 1, 3}, none);
    parts[k] = build_reshape(g, part, (dim[]){2, 5, 8}, 3, none);
}
val_id x = build_reshape(g, build_concat(g, parts, 3, 2, none), (dim[]){10, 24}, 2, none);
graph_add_output(g, "dx", build_matmul(g, x, param(g, "w", F32(8, 24)), false, true, none));
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 4); /* the gradient, two rotations, the product */
buf_id b = p->launches.at[3].in[0].buffer;
ck_assert_int_eq(p->launches.at[3].kind, LAUNCH_matmul);
ck_assert_uint_eq(p->launches.at[0].out[2].buffer.i, b.i);
ck_assert_int_eq(p->launches.at[0].out[2].offset, 16);
for (uint32_t k = 1; k < 3; k++) {
    ck_assert_uint_eq(p->launches.at[k].nout, 2);
    ck_assert_uint_eq(p->launches.at[k].out[0].buffer.i, b.i);
    ck_assert_uint_eq(p->launches.at[k].out[1].buffer.i, b.i);
}
plan_destroy(p);
END

    /* q, k and v of a joined product, q and k rotated; `also`: the product's rows are read again.
     */
    static struct graph *
    rotated_attention(struct graph *g, bool also) {
    val_id x = input(g, "x", F32(10, 3)), c = param(g, "c", F32(5, 2)),
           s = param(g, "s", F32(5, 2));
    val_id m = build_matmul(g, x, param(g, "w", F32(3, 24)), false, false, none), in[3];
    val_id qkv = build_reshape(g, m, (dim[]){2, 5, 24}, 3, none);
    for (int k = 0; k < 3; k++) {
        in[k] = build_slice(g, qkv, (dim[]){0, 0, 8 * k}, (dim[]){2, 5, 8}, NULL, none);
        in[k] = build_reshape(g, in[k], (dim[]){2, 5, 2, 4}, 4, none);
        in[k] = build_transpose(g, in[k], (int64_t[]){0, 2, 1, 3}, none);
        if (k < 2) in[k] = rotated(g, in[k], c, s);
    }
    struct attr a = {.key = ATTR_scale, .f = 0.5};
    val_id y = graph_add(g, OP_attention, in, 3, &a, 1, none);
    graph_add_output(g, "y", y);
    if (also) graph_add_output(g, "z", build_matmul(g, x, m, true, false, none));
    return g;
}

/* Rotated q and k take the place of q and k beside v; nothing else is kept. */
BEGIN(rotations_overwrite_their_parts)
struct plan *p = build_logged(&t, rotated_attention(g, false), &fused);
ck_assert_uint_eq(p->launches.n, 4); /* the product, two rotations, attention */
buf_id b = p->launches.at[0].out[0].buffer;
const struct plan_launch *l = &p->launches.at[3];
ck_assert_int_eq(l->kind, LAUNCH_attention);
for (int k = 0; k < 3; k++) {
    static const int64_t want[4] = {120, 4, 24, 1};
    ck_assert_uint_eq(l->in[k].buffer.i, b.i);
    ck_assert_int_eq(l->in[k].offset, 8 * k);
    ck_assert_mem_eq(l->in[k].strides, want, sizeof want);
}
for (uint32_t k = 1; k < 3; k++)
    for (uint32_t j = 0; j < 2; j++) {
        ck_assert_uint_eq(p->launches.at[k].out[j].buffer.i, b.i);
        ck_assert_int_eq(p->launches.at[k].out[j].offset, 8 * (k - 1) + 2 * j);
    }
ck_assert_uint_eq(p->launches.at[1].out[0].buffer.i, p->launches.at[2].out[0].buffer.i);
plan_destroy(p);
END

/* Not where the whole product is read afterwards. */
BEGIN(what_is_read_again_is_not_overwritten)
struct plan *p = build_logged(&t, rotated_attention(g, true), &fused);
for (uint32_t k = 0; k < p->launches.n; k++)
    for (uint32_t j = 0; p->launches.at[k].kind == LAUNCH_group && j < p->launches.at[k].nout; j++)
        for (uint32_t i = 0; i < p->launches.at[k].nin; i++)
            ck_assert_uint_ne(p->launches.at[k].out[j].buffer.i, p->launches.at[k].in[i].buffer.i);
plan_destroy(p);
END

BEGIN(concat_is_written_in_place)
val_id a = input(g, "a", F32(3, 4)), b = input(g, "b", F32(5, 3));
val_id x = build_1(g, OP_exp, a, none);
val_id y = build_transpose(g, build_1(g, OP_tanh, b, none), (int64_t[]){1, 0}, none);
val_id c = build_concat(g, (val_id[]){x, y}, 2, 1, none);
graph_add_output(g, "c", c);
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 2);
for (uint32_t b2 = 1; b2 < p->buffers.n; b2++) ck_assert_int_ne(p->buffers.at[b2].kind, BUF_TEMP);
plan_destroy(p);
END

/* ---- updates ------------------------------------------------------------------------------- */
BEGIN(optimizer_works_in_place)
val_id x = input(g, "x", F32(6, 4)), w = param(g, "w", F32(4, 3)),
       lr = input(g, "lr", type_scalar(DT_f32));
val_id m = state(g, "m", "optimizer", F32(4, 3)), v = state(g, "v", "optimizer", F32(4, 3));
struct type one = type_scalar(DT_i64);
val_id step = state(g, "step", "step", one);
val_id next = build_2(g, OP_add, step, build_scalar_int(g, DT_i64, 1, none), none);
val_id y = build_matmul(g, x, w, false, false, none);
graph_add_output(g, "loss", reduce(g, OP_reduce_sum, y, 0, 2));
val_id grad = build_matmul(g, x, build_1(g, OP_sign, y, none), true, false, none);
grad = build_2(g, OP_mul, grad, reduce(g, OP_reduce_max, y, 0, 2), none);
val_id a = graph_add(g, OP_adam, (val_id[]){w, grad, m, v, lr, next}, 6, NULL, 0, none);
graph_add_update(g, w, a);
graph_add_update(g, m, val_at(a, 1));
graph_add_update(g, v, val_at(a, 2));
graph_add_update(g, step, next);
struct plan *p = build_logged(&t, g, &fused);
uint32_t n = p->launches.n;
const struct plan_launch *l = &p->launches.at[n - 1];
ck_assert_int_eq(l->kind, LAUNCH_adam);
ck_assert_uint_eq(l->nin, 7); /* the scalar factor of the gradient came along */
ck_assert_uint_eq(l->out[0].buffer.i, plan_find(p, BUF_PARAM, "w").i);
ck_assert_uint_eq(l->out[1].buffer.i, plan_find(p, BUF_STATE, "m").i);
ck_assert_uint_eq(l->out[2].buffer.i, plan_find(p, BUF_STATE, "v").i);
ck_assert_uint_eq(p->first_update, n - 2);
ck_assert_uint_eq(p->launches.at[n - 2].out[0].buffer.i, plan_find(p, BUF_STATE, "step").i);
ck_assert_int_eq(p->buffers.at[plan_find(p, BUF_STATE, "m").i].use, USE_OPTIMIZER);
plan_destroy(p);
p = build_logged(&t, g, &plain);
ck_assert_uint_gt(p->launches.n, n);
plan_destroy(p);
END

/* A param that is read after its new value exists must not be overwritten early. */
BEGIN(late_reader_forces_a_copy)
val_id w = param(g, "w", F32(8, 8));
val_id next = build_1(g, OP_exp, w, none);
val_id m = build_matmul(g, next, w, false, false, none);
graph_add_output(g, "m", m);
graph_add_update(g, w, next);
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 3);
ck_assert_uint_eq(p->first_update, 2);
ck_assert_int_eq(p->launches.at[2].kind, LAUNCH_group);
plan_destroy(p);
END

BEGIN(swap_saves_both)
val_id a = param(g, "a", F32(4)), b = param(g, "b", F32(4));
graph_add_update(g, a, b);
graph_add_update(g, b, a);
struct plan *p = build_logged(&t, g, &fused);
ck_assert_uint_eq(p->launches.n, 4);
ck_assert_uint_eq(p->first_update, 2);
plan_destroy(p);
END

BEGIN(outputs_of_every_kind)
val_id x = input(g, "x", F32(4, 6)), w = param(g, "w", F32(3));
val_id y = build_1(g, OP_exp, x, none);
graph_add_output(g, "y", y);
graph_add_output(g, "again", y);
graph_add_output(g, "turned", build_transpose(g, y, (int64_t[]){1, 0}, none));
graph_add_output(g, "weight", w);
graph_add_output(g, "input", x);
graph_add_output(g, "three",
                 build_full(g, &(struct type){.dtype = DT_f32, .rank = 1, .dims = {7}}, 3, none));
struct plan *p = build_logged(&t, g, &fused);
static const char *const names[] = {"y", "again", "turned", "weight", "input", "three"};
for (int k = 0; k < 6; k++) ck_assert_uint_ne(plan_find(p, BUF_OUTPUT, names[k]).i, 0);
ck_assert_uint_eq(p->launches.n, 6);
ck_assert_uint_eq(p->first_update, 6);
plan_destroy(p);
END

/* ---- whole plans --------------------------------------------------------------------------- */
BEGIN(symbols_are_refused)
struct type s = {.dtype = DT_f32, .rank = 1, .dims = {dim_symbol(g->dims, "batch")}};
graph_add_output(g, "y", build_1(g, OP_exp, input(g, "x", s), none));
struct plan *p = NULL;
ck_assert_int_eq(plan_build(g, &fused, &p), ST_SHAPE);
ck_assert_ptr_null(p);
ck_assert_ptr_nonnull(strstr(t.log, "'batch'"));
END

START_TEST(deterministic_and_quick) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    void *zeros = calloc(50304 * 768, 4);
    ck_assert_ptr_nonnull(zeros);
    struct graph *g =
        gpt_graph(&t.ctx, (struct gpt_size){4, 1024, 768, 12, 12, 50304}, true, zeros);
    struct plan *p = NULL;
    double best = 1e9;
    const char *first = NULL;
    for (int k = 0; k < 3; k++) {
        clock_t start = clock();
        p = build_logged(&t, g, &fused);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds < best) best = seconds;
        const char *now = text(&t, p);
        if (first) ck_assert_str_eq(now, first);
        first = now;
        if (k < 2) plan_destroy(p);
    }
#ifdef __SANITIZE_ADDRESS__
    best /= 10;
#endif
    ck_assert_msg(best < 0.2, "planning took %.0f ms", best * 1e3);
    /* per layer 4 products with bias or residual, attention, and 3 groups: 2 norms, gelu */
    ck_assert_uint_eq(p->launches.n, 12 * 8 + 5);
    plan_destroy(p);
    graph_destroy(g);
    free(zeros);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("codegen");
    TCase *tc = tcase_create("codegen");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, norm_scale_bias_is_one_launch);
    tcase_add_test(tc, gelu_backward_is_one_launch);
    tcase_add_test(tc, one_hot_is_never_stored);
    tcase_add_test(tc, reduction_over_outer_axes);
    tcase_add_test(tc, few_long_rows_are_cut);
    tcase_add_test(tc, no_cycles);
    tcase_add_test(tc, attention_heads_are_views);
    tcase_add_test(tc, attention_gradients_are_stacked_in_place);
    tcase_add_test(tc, rotations_overwrite_their_parts);
    tcase_add_test(tc, what_is_read_again_is_not_overwritten);
    tcase_add_test(tc, rotated_gradients_are_stacked_in_place);
    tcase_add_test(tc, concat_is_written_in_place);
    tcase_add_test(tc, optimizer_works_in_place);
    tcase_add_test(tc, late_reader_forces_a_copy);
    tcase_add_test(tc, swap_saves_both);
    tcase_add_test(tc, outputs_of_every_kind);
    tcase_add_test(tc, symbols_are_refused);
    tcase_add_test(tc, deterministic_and_quick);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
