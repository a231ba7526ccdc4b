// SPDX-License-Identifier: Apache-2.0
/* test_cpu.c - the CPU backend's launches other than fused groups, against straight loops in f64:
 * odd sizes, every layout a launch accepts, faults in the data, and the NaN check. */
#include "cpu_rig.h"

#define A_INT(k, v)                                                                                \
    { .key = ATTR_##k, .i = (v) }
#define A_FLOAT(k, v)                                                                              \
    { .key = ATTR_##k, .f = (v) }

static double get(struct rig *r, const char *name, enum dtype t, int64_t i) {
    return dtype_load(t, (const char *)rig_at(r, name) + i * (int64_t)dtype_size(t));
}

/* ---- products
 * ------------------------------------------------------------------------------------- */

struct mm_case {
    int64_t batch, m, n, k;
    bool ta, tb, tc, add, f64, shared_b;
    double scale;
};
static struct plan_view matrix(struct rig *r, enum buffer_kind kind, const char *name, enum dtype t,
                               int64_t batch, int64_t rows, int64_t cols, bool trans) {
    struct plan_view v = rig_new(r, kind, name, t, 3, DIMS(batch, rows, cols));
    if (trans) v.strides[1] = 1, v.strides[2] = rows;
    return v;
}
static void build_mm(struct rig *r) {
    const struct mm_case *c = r->user;
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    struct plan_view in[2] = {
        matrix(r, BUF_INPUT, "i0", t, c->batch, c->m, c->k, c->ta),
        matrix(r, BUF_INPUT, "i1", t, c->shared_b ? 1 : c->batch, c->k, c->n, c->tb)};
    if (c->shared_b) in[1].dims[0] = c->batch, in[1].strides[0] = 0;
    struct plan_view out = matrix(r, BUF_INPUT, "o0", t, c->batch, c->m, c->n, c->tc);
    struct attr attrs[] = {A_FLOAT(scale, c->scale), A_INT(add, c->add)};
    rig_launch(r, LAUNCH_matmul, (group_id){0}, in, 2, &out, 1, attrs, 2);
}
static double before_mm = 0.75;
static void fill_mm(struct rig *r) {
    const struct mm_case *c = r->user;
    rig_fill(r);
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    for (int64_t i = 0; i < c->batch * c->m * c->n; i++)
        dtype_store(t, (char *)rig_at(r, "o0") + i * (int64_t)dtype_size(t),
                    c->add ? before_mm : NAN);
}
static void verify_mm(struct rig *r) {
    const struct mm_case *c = r->user;
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < c->m; i++)
            for (int64_t j = 0; j < c->n; j++) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < c->k; k++) {
                    int64_t ai = c->ta ? k * c->m + i : i * c->k + k;
                    int64_t bi = c->tb ? j * c->k + k : k * c->n + j;
                    double x = get(r, "i0", t, b * c->m * c->k + ai);
                    x *= get(r, "i1", t, (c->shared_b ? 0 : b) * c->k * c->n + bi);
                    sum += x;
                    size += fabs(x);
                }
                int64_t at = b * c->m * c->n + (c->tc ? j * c->m + i : i * c->n + j);
                double want = c->scale * sum + (c->add ? before_mm : 0);
                rig_close(get(r, "o0", t, at), want, (c->f64 ? 1e-13 : 1e-6) * (1 + size), "matmul",
                          at);
            }
}
RIG_TEST(matmul) {
    static const int64_t sizes[][4] = {
        {1, 1, 1, 1},  {1, 3, 17, 5}, {1, 127, 129, 17}, {1, 1, 1000, 129}, {1, 129, 1, 1000},
        {5, 17, 3, 1}, {40, 3, 3, 3}, {1, 300, 257, 64}, {3, 4, 5, 0},      {1, 700, 3, 90}};
    for (int i = 0; i < 10; i++)
        for (int f = 0; f < 16; f++) {
            const int64_t *z = sizes[i];
            if (getenv("LATHE_TEST_SHORT") && z[1] * z[2] * z[3] > 100000 && f % 5) continue;
            struct mm_case c = {z[0],
                                z[1],
                                z[2],
                                z[3],
                                f & 1,
                                f & 2,
                                f & 4,
                                f & 8,
                                f == 5,
                                f == 3,
                                f & 1 ? 1.0 : 0.5};
            r->user = &c;
            rig_run(r, build_mm, fill_mm, verify_mm);
            arena_reset(&r->t->arena);
        }
}

/* ---- convolution
 * ---------------------------------------------------------------------------------- */

struct conv_case {
    int spatial;
    int64_t n, groups, c, o; /* c, o: per group */
    int64_t in[3], k[3], stride[3], dilation[3], low[3], high[3];
    bool f64;
};
static int64_t conv_out(const struct conv_case *c, int i) {
    int64_t room = c->in[i] + c->low[i] + c->high[i] - (c->dilation[i] * (c->k[i] - 1) + 1);
    return room / c->stride[i] + 1;
}
static void build_conv(struct rig *r) {
    const struct conv_case *c = r->user;
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    int64_t x[5] = {c->n, c->groups * c->c}, w[5] = {c->groups * c->o, c->c},
            y[5] = {c->n, c->groups * c->o}, pads[6];
    for (int i = 0; i < c->spatial; i++) {
        x[2 + i] = c->in[i], w[2 + i] = c->k[i], y[2 + i] = conv_out(c, i);
        pads[i] = c->low[i], pads[c->spatial + i] = c->high[i];
    }
    int rank = 2 + c->spatial;
    struct attr attrs[] = {{.key = ATTR_strides, .list = c->stride, .n = c->spatial},
                           {.key = ATTR_dilations, .list = c->dilation, .n = c->spatial},
                           {.key = ATTR_pads, .list = pads, .n = 2 * c->spatial},
                           A_INT(groups, c->groups)};
    struct plan_view vx = rig_new(r, BUF_INPUT, "i0", t, rank, x);
    struct plan_view vw = rig_new(r, BUF_INPUT, "i1", t, rank, w);
    struct plan_view vg = rig_new(r, BUF_INPUT, "i2", t, rank, y);
    struct plan_view vy = rig_new(r, BUF_OUTPUT, "y", t, rank, y);
    struct plan_view dx = rig_new(r, BUF_OUTPUT, "dx", t, rank, x);
    struct plan_view dw = rig_new(r, BUF_OUTPUT, "dw", t, rank, w);
    rig_launch(r, LAUNCH_conv, (group_id){0}, (struct plan_view[]){vx, vw}, 2, &vy, 1, attrs, 4);
    rig_launch(r, LAUNCH_conv_input_grad, (group_id){0}, (struct plan_view[]){vg, vw}, 2, &dx, 1,
               attrs, 4);
    rig_launch(r, LAUNCH_conv_weight_grad, (group_id){0}, (struct plan_view[]){vx, vg}, 2, &dw, 1,
               attrs, 4);
}
struct conv_ref {
    double *y, *dx, *dw;
};
/* Adds the products of one output element. */
static void conv_point(struct rig *r, const struct conv_case *c, struct conv_ref *f, int64_t n,
                       int64_t oc, const int64_t *p, int64_t yi) {
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    int64_t g = oc / c->o;
    for (int64_t ic = 0; ic < c->c; ic++)
        for (int64_t k = 0; k < c->k[0] * c->k[1] * c->k[2]; k++) {
            int64_t tap[3] = {k / (c->k[1] * c->k[2]), k / c->k[2] % c->k[1], k % c->k[2]}, xi = 0;
            bool inside = true;
            for (int a = 0; a < 3; a++) {
                int64_t q = p[a] * c->stride[a] - c->low[a] + tap[a] * c->dilation[a];
                inside &= q >= 0 && q < c->in[a];
                xi = xi * c->in[a] + q;
            }
            if (!inside) continue;
            xi += (n * c->groups * c->c + g * c->c + ic) * c->in[0] * c->in[1] * c->in[2];
            int64_t wi = (oc * c->c + ic) * c->k[0] * c->k[1] * c->k[2] + k;
            double x = get(r, "i0", t, xi), w = get(r, "i1", t, wi), gy = get(r, "i2", t, yi);
            f->y[yi] += x * w;
            f->dx[xi] += gy * w;
            f->dw[wi] += gy * x;
        }
}
static void verify_conv(struct rig *r) {
    struct conv_case c = *(const struct conv_case *)r->user;
    for (int pad = 3 - c.spatial; pad > 0; pad--) /* missing axes in front */
        for (int i = 2; i >= 0; i--) {
            c.in[i] = i ? c.in[i - 1] : 1, c.k[i] = i ? c.k[i - 1] : 1;
            c.stride[i] = i ? c.stride[i - 1] : 1, c.dilation[i] = i ? c.dilation[i - 1] : 1;
            c.low[i] = i ? c.low[i - 1] : 0, c.high[i] = i ? c.high[i - 1] : 0;
        }
    struct arena *a = &r->t->arena;
    struct conv_ref f = {ARENA_ARRAY(a, double, (size_t)rig_count(r, "y")),
                         ARENA_ARRAY(a, double, (size_t)rig_count(r, "dx")),
                         ARENA_ARRAY(a, double, (size_t)rig_count(r, "dw"))};
    int64_t out[3] = {conv_out(&c, 0), conv_out(&c, 1), conv_out(&c, 2)}, yi = 0;
    for (int64_t n = 0; n < c.n; n++)
        for (int64_t oc = 0; oc < c.groups * c.o; oc++)
            for (int64_t i = 0; i < out[0] * out[1] * out[2]; i++, yi++) {
                int64_t p[3] = {i / (out[1] * out[2]), i / out[2] % out[1], i % out[2]};
                conv_point(r, &c, &f, n, oc, p, yi);
            }
    enum dtype t = c.f64 ? DT_f64 : DT_f32;
    const char *names[] = {"y", "dx", "dw"};
    double *want[] = {f.y, f.dx, f.dw};
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < rig_count(r, names[k]); i++)
            rig_close(get(r, names[k], t, i), want[k][i], c.f64 ? 1e-12 : 1e-4, names[k], i);
}
RIG_TEST(conv) {
    static const struct conv_case cases[] = {
        {1, 1, 1, 1, 1, {1}, {1}, {1}, {1}, {0}, {0}, 0},
        {1, 3, 1, 5, 7, {129}, {3}, {2}, {2}, {1}, {4}, 0},
        {2, 2, 1, 3, 17, {17, 19}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 0},
        {2, 2, 1, 9, 33, {13, 7}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 0},
        {2, 3, 4, 2, 3, {12, 11}, {3, 2}, {2, 3}, {2, 1}, {0, 2}, {3, 1}, 1},
        {2, 2, 17, 1, 1, {15, 15}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 0},
        {2, 1, 1, 12, 6, {40, 30}, {5, 5}, {1, 1}, {1, 1}, {2, 2}, {2, 2}, 0},
        {3, 2, 2, 2, 3, {5, 6, 7}, {2, 3, 2}, {2, 1, 2}, {1, 2, 1}, {1, 0, 1}, {0, 2, 1}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct conv_case c = cases[i];
        for (int k = c.spatial; k < 3; k++) c.in[k] = c.k[k] = c.stride[k] = c.dilation[k] = 1;
        r->user = &c;
        rig_run(r, build_conv, rig_fill, verify_conv);
        arena_reset(&r->t->arena);
    }
}

/* ---- pooling, indices
 * ------------------------------------------------------------------------------ */

static void build_pool(struct rig *r) {
    struct attr attrs[] = {{.key = ATTR_kernel, .list = DIMS(3, 2), .n = 2},
                           {.key = ATTR_strides, .list = DIMS(2, 2), .n = 2},
                           {.key = ATTR_dilations, .list = DIMS(1, 2), .n = 2},
                           {.key = ATTR_pads, .list = DIMS(1, 1, 0, 1), .n = 4}};
    struct plan_view x = rig_new(r, BUF_INPUT, "i0", DT_f32, 4, DIMS(3, 5, 10, 11));
    struct plan_view out[2] = {rig_new(r, BUF_OUTPUT, "o0", DT_f32, 4, DIMS(3, 5, 5, 6)),
                               rig_new(r, BUF_OUTPUT, "o1", DT_i64, 4, DIMS(3, 5, 5, 6))};
    rig_launch(r, LAUNCH_max_pool, (group_id){0}, &x, 1, out, 2, attrs, 4);
}
static void fill_pool(struct rig *r) {
    float *x = rig_at(r, "i0");
    for (int64_t i = 0; i < 3 * 5 * 110; i++) x[i] = (float)rig_int(&r->seed, -3, 3); /* ties */
}
static void verify_pool(struct rig *r) {
    const float *x = rig_at(r, "i0"), *y = rig_at(r, "o0");
    const int64_t *index = rig_at(r, "o1");
    for (int64_t i = 0; i < 3 * 5 * 30; i++) {
        int64_t plane = i / 30, oh = i % 30 / 6, ow = i % 6, where = -1;
        float best = -INFINITY;
        for (int64_t a = 0; a < 3; a++)
            for (int64_t b = 0; b < 2; b++) {
                int64_t h = oh * 2 - 1 + a, w = ow * 2 - 1 + b * 2;
                if (h < 0 || h >= 10 || w < 0 || w >= 11) continue;
                float v = x[plane * 110 + h * 11 + w];
                if (where < 0 || v > best) best = v, where = h * 11 + w;
            }
        ck_assert_float_eq(y[i], best);
        ck_assert_int_eq(index[i], where);
    }
}
RIG_TEST(max_pool) {
    rig_run(r, build_pool, fill_pool, verify_pool);
}

struct index_case {
    enum launch_kind kind;
    int64_t outer, n, inner, idx;
    enum dtype itype;
    bool add, fault;
};
static void build_index(struct rig *r) {
    const struct index_case *c = r->user;
    struct attr attrs[] = {A_INT(axis, 1), A_INT(add, c->add)};
    bool elements = c->kind == LAUNCH_gather_elements || c->kind == LAUNCH_scatter_elements;
    struct plan_view x = rig_new(r, BUF_INPUT, "i0", DT_f32, 3, DIMS(c->outer, c->n, c->inner));
    struct plan_view idx = rig_new(r, BUF_INPUT, "i1", c->itype, elements ? 3 : 1,
                                   elements ? DIMS(c->outer, c->idx, c->inner) : DIMS(c->idx));
    struct plan_view u = rig_new(r, BUF_INPUT, "i2", DT_f32, 3, DIMS(c->outer, c->idx, c->inner));
    struct plan_view y = rig_new(r, BUF_OUTPUT, "o0", DT_f32, 3, DIMS(c->outer, c->n, c->inner));
    struct plan_view picked =
        rig_new(r, BUF_OUTPUT, "o1", DT_f32, 3, DIMS(c->outer, c->idx, c->inner));
    struct plan_view gather[] = {x, idx}, rows[] = {idx, u}, elems[] = {x, idx, u};
    if (c->kind == LAUNCH_gather || c->kind == LAUNCH_gather_elements)
        rig_launch(r, c->kind, (group_id){0}, gather, 2, &picked, 1, attrs, 2);
    else if (c->kind == LAUNCH_scatter_rows)
        rig_launch(r, c->kind, (group_id){0}, rows, 2, &y, 1, attrs, 2);
    else
        rig_launch(r, c->kind, (group_id){0}, elems, 3, &y, 1, attrs, 2);
}
static void fill_index(struct rig *r) {
    const struct index_case *c = r->user;
    rig_fill(r);
    char *idx = rig_at(r, "i1");
    int64_t n = rig_count(r, "i1"), size = (int64_t)dtype_size(c->itype);
    bool unique = c->kind == LAUNCH_scatter_elements && !c->add;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = rig_int(&r->seed, -c->n, c->n - 1);
        if (unique) v = i / c->inner % c->idx;
        dtype_store_int(c->itype, idx + i * size, v);
    }
    if (c->fault) {
        dtype_store_int(c->itype, idx + (n - 1) * size, c->n);
        dtype_store_int(c->itype, idx + n / 2 * size, -c->n - 1);
    }
}
static void verify_index(struct rig *r) {
    const struct index_case *c = r->user;
    if (c->fault) {
        char want[64];
        snprintf(want, sizeof want, "found %lld at position %lld", (long long)(-c->n - 1),
                 (long long)(rig_count(r, "i1") / 2));
        ck_assert_msg(strstr(r->t->log, "/node") && strstr(r->t->log, want), "%s", r->t->log);
        return;
    }
    const float *x = rig_at(r, "i0"), *u = rig_at(r, "i2");
    bool gather = c->kind == LAUNCH_gather || c->kind == LAUNCH_gather_elements;
    bool elements = c->kind == LAUNCH_gather_elements || c->kind == LAUNCH_scatter_elements;
    int64_t total = c->outer * c->n * c->inner;
    double *want = ARENA_ARRAY(&r->t->arena, double, (size_t)total);
    for (int64_t i = 0; i < total && c->kind == LAUNCH_scatter_elements; i++)
        want[i] = (double)x[i];
    for (int64_t e = 0; e < c->outer * c->idx * c->inner; e++) {
        int64_t at = elements ? e : e / c->inner % c->idx;
        int64_t k = dtype_load_int(c->itype, (const char *)rig_at(r, "i1") +
                                                 at * (int64_t)dtype_size(c->itype));
        if (k < 0) k += c->n;
        int64_t to = (e / c->inner / c->idx * c->n + k) * c->inner + e % c->inner;
        if (gather)
            rig_close(get(r, "o1", DT_f32, e), (double)x[to], 0, "gather", e);
        else if (c->kind == LAUNCH_scatter_rows || c->add)
            want[to] += (double)u[e];
        else
            want[to] = (double)u[e];
    }
    for (int64_t i = 0; !gather && i < total; i++)
        rig_close(get(r, "o0", DT_f32, i), want[i], 2e-5, "scatter", i);
}
RIG_TEST(indices) {
    static const struct index_case cases[] = {
        {LAUNCH_gather, 1, 17, 129, 1000, DT_i64, 0, 0},
        {LAUNCH_gather, 3, 5, 1, 7, DT_i32, 0, 0},
        {LAUNCH_gather, 2, 5, 3, 7, DT_i64, 0, 1},
        {LAUNCH_gather_elements, 3, 17, 5, 9, DT_i64, 0, 0},
        {LAUNCH_gather_elements, 1, 3, 1, 1, DT_i32, 0, 1},
        {LAUNCH_scatter_rows, 1, 17, 129, 3000, DT_i64, 0, 0},
        {LAUNCH_scatter_rows, 2, 100, 3, 20000, DT_i32, 0, 0},
        {LAUNCH_scatter_rows, 1, 9, 1000, 1, DT_i64, 0, 0},
        {LAUNCH_scatter_rows, 2, 9, 64, 40, DT_i64, 0, 1},
        {LAUNCH_scatter_elements, 3, 17, 5, 9, DT_i64, 0, 0},
        {LAUNCH_scatter_elements, 3, 17, 300, 90, DT_i64, 1, 0},
        {LAUNCH_scatter_elements, 1, 4, 2, 3, DT_i64, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct index_case c = cases[i];
        r->user = &c;
        r->want = c.fault ? ST_DATA : ST_OK;
        r->t->log[0] = 0;
        rig_run(r, build_index, fill_index, verify_index);
        arena_reset(&r->t->arena);
    }
}

static void build_axis(struct rig *r) {
    struct plan_view x = rig_new(r, BUF_INPUT, "i0", DT_f32, 3, DIMS(7, 129, 5));
    struct plan_view y = rig_new(r, BUF_OUTPUT, "o0", DT_f32, 3, DIMS(7, 129, 5));
    struct plan_view best = rig_new(r, BUF_OUTPUT, "o1", DT_i64, 2, DIMS(7, 5));
    struct attr attrs[] = {A_INT(axis, 1), A_INT(exclusive, 1), A_INT(reverse, 1)};
    rig_launch(r, LAUNCH_cumsum, (group_id){0}, &x, 1, &y, 1, attrs, 3);
    rig_launch(r, LAUNCH_argmax, (group_id){0}, &x, 1, &best, 1, attrs, 1);
}
static void verify_axis(struct rig *r) {
    const float *x = rig_at(r, "i0");
    const int64_t *best = rig_at(r, "o1");
    for (int64_t line = 0; line < 35; line++) {
        double sum = 0;
        int64_t top = 0, first = line / 5 * 645 + line % 5;
        for (int64_t k = 128; k >= 0; k--) {
            rig_close(get(r, "o0", DT_f32, first + k * 5), sum, 1e-6, "cumsum", k);
            sum += (double)x[first + k * 5];
            if (x[first + k * 5] >= x[first + top * 5]) top = k;
        }
        ck_assert_int_eq(best[line], top);
    }
}
RIG_TEST(along_axis) {
    rig_run(r, build_axis, rig_fill, verify_axis);
}

/* ---- losses and optimizers
 * ------------------------------------------------------------------------- */

static void build_entropy(struct rig *r) {
    const int64_t *c = r->user; /* rows, cols, bad row or -1 */
    struct plan_view in[2] = {rig_new(r, BUF_INPUT, "i0", DT_f32, 2, DIMS(c[0], c[1] + 3)),
                              rig_new(r, BUF_INPUT, "i1", DT_i64, 1, DIMS(c[0]))};
    in[0].dims[1] = c[1]; /* rows with a gap */
    struct plan_view out[2] = {rig_new(r, BUF_OUTPUT, "o0", DT_f32, 1, DIMS(c[0])),
                               rig_new(r, BUF_OUTPUT, "o1", DT_f32, 1, DIMS(c[0]))};
    struct attr attrs[] = {A_INT(ignore_index, -100)};
    rig_launch(r, LAUNCH_cross_entropy, (group_id){0}, in, 2, out, 2, attrs, 1);
}
static void fill_entropy(struct rig *r) {
    const int64_t *c = r->user;
    rig_fill(r);
    int64_t *labels = rig_at(r, "i1");
    for (int64_t i = 0; i < c[0]; i++)
        labels[i] = i % 5 == 3 ? -100 : rig_int(&r->seed, 0, c[1] - 1);
    if (c[2] >= 0) labels[c[2]] = c[1], labels[c[0] - 1] = -1;
}
static void verify_entropy(struct rig *r) {
    const int64_t *c = r->user, *labels = rig_at(r, "i1");
    const float *x = rig_at(r, "i0");
    if (c[2] >= 0) {
        char want[64];
        snprintf(want, sizeof want, "found %lld at position %lld", (long long)c[1],
                 (long long)c[2]);
        ck_assert_msg(strstr(r->t->log, "/node") && strstr(r->t->log, want), "%s", r->t->log);
        return;
    }
    for (int64_t i = 0; i < c[0]; i++) {
        double sum = 0;
        for (int64_t k = 0; k < c[1]; k++) sum += exp((double)x[i * (c[1] + 3) + k]);
        double loss = labels[i] == -100 ? 0 : log(sum) - (double)x[i * (c[1] + 3) + labels[i]];
        rig_close(get(r, "o0", DT_f32, i), loss, 1e-6, "loss", i);
        rig_close(get(r, "o1", DT_f32, i), log(sum), 1e-6, "lse", i);
    }
}
RIG_TEST(cross_entropy) {
    const int64_t cases[][3] = {
        {1, 1, -1}, {1000, 3, -1}, {17, 50257, -1}, {127, 129, -1}, {20, 10, 7}};
    for (int i = 0; i < 5; i++) {
        int64_t c[3] = {cases[i][0], cases[i][1], cases[i][2]};
        r->user = c;
        r->want = c[2] >= 0 ? ST_DATA : ST_OK;
        rig_run(r, build_entropy, fill_entropy, verify_entropy);
    }
}

struct optim_case {
    bool adam, flag, gscale; /* flag: decoupled, nesterov */
    double momentum, dampening, weight_decay;
    int64_t step;
    bool hat; /* eps_hat, with a large eps */
};
static void build_optim(struct rig *r) {
    const struct optim_case *c = r->user;
    int64_t n[1] = {40003};
    struct plan_view w = rig_new(r, BUF_INPUT, "i0", DT_f32, 1, n);
    struct plan_view g = rig_new(r, BUF_INPUT, "i1", DT_f32, 1, n);
    struct plan_view m = rig_new(r, BUF_INPUT, "i2", DT_f32, 1, n);
    struct plan_view v = rig_new(r, BUF_INPUT, "i3", DT_f32, 1, n);
    struct plan_view lr = rig_new(r, BUF_INPUT, "lr", DT_f32, 0, n);
    struct plan_view step = rig_new(r, BUF_INPUT, "step", DT_i64, 0, n);
    struct plan_view gs = rig_new(r, BUF_INPUT, "gs", DT_f32, 0, n);
    struct plan_view out[3] = {w, m, v}; /* in place */
    out[0] = rig_new(r, BUF_OUTPUT, "o0", DT_f32, 1, n);
    if (c->adam) {
        struct plan_view in[] = {w, g, m, v, lr, step, gs};
        struct attr attrs[] = {A_FLOAT(beta1, 0.9),
                               A_FLOAT(beta2, 0.99),
                               A_FLOAT(eps, c->hat ? 1e-2 : 1e-6),
                               A_FLOAT(weight_decay, c->weight_decay),
                               A_INT(decoupled, c->flag),
                               A_INT(eps_hat, c->hat)};
        rig_launch(r, LAUNCH_adam, (group_id){0}, in, c->gscale ? 7 : 6, out, 3, attrs, 6);
    } else {
        struct plan_view in[] = {w, g, m, lr, step, gs};
        struct attr attrs[] = {A_FLOAT(momentum, c->momentum), A_FLOAT(dampening, c->dampening),
                               A_FLOAT(weight_decay, c->weight_decay), A_INT(nesterov, c->flag)};
        rig_launch(r, LAUNCH_sgd, (group_id){0}, in, c->gscale ? 6 : 5, out, 2, attrs, 4);
    }
}
static double old_m(int64_t i) {
    return (double)(float)sin((double)i);
}
static void fill_optim(struct rig *r) {
    const struct optim_case *c = r->user;
    rig_fill(r);
    for (int64_t i = 0; i < 40003; i++) {
        ((float *)rig_at(r, "i2"))[i] = (float)old_m(i);
        ((float *)rig_at(r, "i3"))[i] = (float)(old_m(i) * old_m(i));
    }
    *(float *)rig_at(r, "lr") = 0.125f;
    *(float *)rig_at(r, "gs") = 0.5f;
    *(int64_t *)rig_at(r, "step") = c->step;
}
static void verify_optim(struct rig *r) {
    const struct optim_case *c = r->user;
    for (int64_t i = 0; i < 40003; i++) {
        double w = get(r, "i0", DT_f32, i), g = get(r, "i1", DT_f32, i), m = old_m(i), lr = 0.125;
        if (c->gscale) g *= 0.5;
        if (!c->adam) {
            g += c->weight_decay * w;
            m = c->step == 1 ? g : c->momentum * m + (1 - c->dampening) * g;
            double by = c->flag ? g + c->momentum * m : m;
            if (c->momentum == 0) by = g;
            rig_close(get(r, "o0", DT_f32, i), w - lr * by, 2e-6, "sgd", i);
            rig_close(get(r, "i2", DT_f32, i), m, 2e-6, "buf", i);
            continue;
        }
        double v = (double)(float)(m * m), t = (double)c->step;
        if (!c->flag) g += c->weight_decay * w;
        if (c->flag) w -= lr * c->weight_decay * w;
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        double fresh = t > 0 ? 1 - pow(0.9, t) : 1, root = sqrt(t > 0 ? 1 - pow(0.99, t) : 1);
        double denom = c->hat ? (sqrt(v) + 1e-2) / root : sqrt(v) / root + 1e-6;
        rig_close(get(r, "o0", DT_f32, i), w - lr / fresh * m / denom, 4e-6, "adam", i);
        rig_close(get(r, "i2", DT_f32, i), m, 1e-6, "m", i);
        rig_close(get(r, "i3", DT_f32, i), v, 1e-6, "v", i);
    }
}
RIG_TEST(optimizers) {
    static const struct optim_case cases[] = {
        {1, 1, 0, 0, 0, 0.1, 1, 0},   {1, 0, 1, 0, 0, 0.1, 7, 0},     {1, 1, 1, 0, 0, 0, 1000, 0},
        {0, 0, 0, 0, 0, 0, 1, 0},     {0, 0, 0, 0.9, 0.2, 0.1, 1, 0}, {0, 1, 1, 0.9, 0, 0.1, 5, 0},
        {0, 0, 0, 0.5, 0.3, 0, 2, 0}, {1, 1, 0, 0, 0, 0.1, 0, 0},     {1, 1, 0, 0, 0, 0.1, 5, 1},
        {1, 0, 1, 0, 0, 0.1, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct optim_case c = cases[i];
        r->user = &c;
        rig_run(r, build_optim, fill_optim, verify_optim);
    }
}

/* ---- the executor
 * ----------------------------------------------------------------------------------- */

/* Two products; the second one overflows. */
static void build_overflow(struct rig *r) {
    struct plan_view x = rig_new(r, BUF_INPUT, "i0", DT_f32, 2, DIMS(4, 4));
    struct plan_view h = rig_new(r, BUF_TEMP, "h", DT_f32, 2, DIMS(4, 4));
    struct plan_view y = rig_new(r, BUF_OUTPUT, "o0", DT_f32, 2, DIMS(4, 4));
    struct plan_view a[] = {x, x}, b[] = {h, h};
    struct attr scale[] = {A_FLOAT(scale, 1e38)};
    rig_launch(r, LAUNCH_matmul, (group_id){0}, a, 2, &h, 1, NULL, 0);
    rig_launch(r, LAUNCH_matmul, (group_id){0}, b, 2, &y, 1, scale, 1);
    r->p->launches.at[1].origin = intern(&r->p->strings, "/second");
}
static void fill_ones(struct rig *r) {
    for (int i = 0; i < 16; i++) ((float *)rig_at(r, "i0"))[i] = 1;
}
static void verify_overflow(struct rig *r) {
    ck_assert_msg(strstr(r->t->log, "/second") && strstr(r->t->log, "inf"), "%s", r->t->log);
    fill_ones(r);
    *(float *)rig_at(r, "i0") = NAN; /* what the operands had is no fault of the launch */
    ck_assert_int_eq(cpu_run(r->x, 0, 1, true), ST_OK);
    ck_assert_int_eq(cpu_run(r->x, 0, 2, false), ST_OK);
}
RIG_TEST(finite_check) {
    r->check = true;
    r->want = ST_NONFINITE;
    rig_run(r, build_overflow, fill_ones, verify_overflow);
}

static void build_initial(struct rig *r) {
    static const float weights[] = {1.5f, -2.0f, 3.25f};
    struct plan_view w = rig_new(r, BUF_PARAM, "w", DT_f32, 1, DIMS(3));
    r->p->buffers.at[w.buffer.i].init = (struct blob){.data = weights, .bytes = sizeof weights};
    struct plan_view s = rig_new(r, BUF_STATE, "s", DT_bf16, 1, DIMS(5));
    r->p->buffers.at[s.buffer.i].fill = 0.5;
    rig_new(r, BUF_STATE, "empty", DT_f32, 1, DIMS(0));
}
static void verify_initial(struct rig *r) {
    ck_assert_float_eq(((float *)cpu_buffer(r->x, BUF_PARAM, "w"))[2], 3.25f);
    for (int i = 0; i < 5; i++) ck_assert_double_eq(get(r, "s", DT_bf16, i), 0.5);
    ck_assert_ptr_null(cpu_buffer(r->x, BUF_STATE, "w"));
    ck_assert_ptr_null(cpu_buffer(r->x, BUF_PARAM, "nothing"));
    const double *seconds = cpu_profile(r->x, true);
    ck_assert_ptr_nonnull(seconds);
}
static void fill_none(struct rig *r) {
    (void)r;
}
RIG_TEST(initial_values) {
    rig_run(r, build_initial, fill_none, verify_initial);
}

/* A refused allocation unwinds and leaks nothing. */
static void *refuse(void *user, size_t size) {
    (void)user;
    return size > 100000 ? NULL : malloc(size);
}
RIG_TEST(out_of_memory) {
    struct test_env *t = r->t;
    t->ctx.alloc = refuse;
    struct plan *p = plan_create(&t->ctx, "big");
    p->arena_bytes[ARENA_IO] = 64;
    p->arena_bytes[ARENA_STEP] = 1 << 20;
    struct pool *pool = pool_create(&t->ctx, 1);
    struct cpu_exec *x = NULL;
    jmp_buf landing, *before = t->ctx.landing;
    t->ctx.landing = &landing;
    if (!setjmp(landing)) {
        enum status s = cpu_create(&t->ctx, p, pool, &x);
        ck_abort_msg("expected an unwind, found status %d", (int)s);
    }
    t->ctx.landing = before;
    ck_assert_int_eq(t->ctx.unwound, ST_OUT_OF_MEMORY);
    pool_destroy(pool);
    plan_destroy(p);
}

int main(void) {
    Suite *s = suite_create("cpu");
    TCase *c = tcase_create("launches");
    tcase_set_timeout(c, 600);
    tcase_add_test(c, matmul);
    tcase_add_test(c, conv);
    tcase_add_test(c, max_pool);
    tcase_add_test(c, indices);
    tcase_add_test(c, along_axis);
    tcase_add_test(c, cross_entropy);
    tcase_add_test(c, optimizers);
    tcase_add_test(c, finite_check);
    tcase_add_test(c, initial_values);
    tcase_add_test(c, out_of_memory);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
