// SPDX-License-Identifier: Apache-2.0
/* test_cpu_attention.c - attention and its gradient on the CPU against straight loops in f64:
 * shared key heads, causal masks with unequal lengths, masks of every kind, soft caps, layouts. */
#include "cpu_rig.h"

#define A_INT(k, v)                                                                                \
    { .key = ATTR_##k, .i = (v) }
#define A_FLOAT(k, v)                                                                              \
    { .key = ATTR_##k, .f = (v) }

static double get(struct rig *r, const char *name, enum dtype t, int64_t i) {
    return dtype_load(t, (const char *)rig_at(r, name) + i * (int64_t)dtype_size(t));
}

struct att_case {
    int64_t b, h, kv, t, s, d, e;
    int mask; /* 0 none, 1 float, 2 bool per key, 3 bool that hides whole rows */
    bool causal, f64, swapped;
    double softcap;
};
/* [b,h,t,d], stored that way or as [b,t,h,d]. */
static struct plan_view heads(struct rig *r, enum buffer_kind kind, const char *name, int64_t b,
                              int64_t h, int64_t t, int64_t d) {
    const struct att_case *c = r->user;
    struct plan_view v = rig_new(r, kind, name, c->f64 ? DT_f64 : DT_f32, 4, DIMS(b, h, t, d));
    if (c->swapped) v.strides[1] = d, v.strides[2] = h * d;
    return v;
}
static void build_att(struct rig *r) {
    const struct att_case *c = r->user;
    struct plan_view in[7], out[3], fwd[4], fout[2];
    in[0] = heads(r, BUF_INPUT, "i0", c->b, c->h, c->t, c->d);
    in[1] = heads(r, BUF_INPUT, "i1", c->b, c->kv, c->s, c->d);
    in[2] = heads(r, BUF_INPUT, "i2", c->b, c->kv, c->s, c->e);
    in[3] = heads(r, BUF_OUTPUT, "y", c->b, c->h, c->t, c->e);
    in[4] = rig_new(r, BUF_OUTPUT, "lse", DT_f32, 3, DIMS(c->b, c->h, c->t));
    in[5] = heads(r, BUF_INPUT, "i3", c->b, c->h, c->t, c->e);
    in[6] = rig_new(r, BUF_INPUT, "mask", c->mask == 1 ? DT_f32 : DT_bool, 4,
                    DIMS(c->b, 1, c->mask == 2 ? 1 : c->t, c->s));
    in[6].dims[1] = c->h, in[6].strides[1] = 0;
    if (c->mask == 2) in[6].dims[2] = c->t, in[6].strides[2] = 0;
    out[0] = heads(r, BUF_OUTPUT, "dq", c->b, c->h, c->t, c->d);
    out[1] = heads(r, BUF_OUTPUT, "dk", c->b, c->kv, c->s, c->d);
    out[2] = heads(r, BUF_OUTPUT, "dv", c->b, c->kv, c->s, c->e);
    fwd[0] = in[0], fwd[1] = in[1], fwd[2] = in[2], fwd[3] = in[6];
    fout[0] = in[3], fout[1] = in[4];
    struct attr attrs[] = {A_FLOAT(scale, 0.3), A_FLOAT(softcap, c->softcap),
                           A_INT(causal, c->causal)};
    rig_launch(r, LAUNCH_attention, (group_id){0}, fwd, c->mask ? 4 : 3, fout, 2, attrs, 3);
    rig_launch(r, LAUNCH_attention_grad, (group_id){0}, in, c->mask ? 7 : 6, out, 3, attrs, 3);
}
static void fill_att(struct rig *r) {
    const struct att_case *c = r->user;
    rig_fill(r);
    if (c->mask != 3) return;
    uint8_t *m = rig_at(r, "mask");
    for (int64_t i = 0; i < c->b * c->t; i++)
        if (i % 3 == 1) memset(m + i * c->s, 0, (size_t)c->s);
}
static int64_t at4(const struct att_case *c, int64_t heads_n, int64_t b, int64_t h, int64_t t,
                   int64_t rows, int64_t w) {
    return (c->swapped ? (b * rows + t) * heads_n + h : (b * heads_n + h) * rows + t) * w;
}
struct att_ref {
    double *y, *dq, *dk, *dv, *p, *slope;
};
static double att_row(struct rig *r, const struct att_case *c, int64_t b, int64_t h, int64_t i,
                      struct att_ref *f) {
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    double sum = 0;
    for (int64_t j = 0; j < c->s; j++) {
        double s = 0;
        for (int64_t k = 0; k < c->d; k++)
            s += get(r, "i0", t, at4(c, c->h, b, h, i, c->t, c->d) + k) *
                 get(r, "i1", t, at4(c, c->kv, b, h / (c->h / c->kv), j, c->s, c->d) + k);
        s *= 0.3;
        f->slope[j] = 1;
        if (c->softcap > 0) {
            double th = tanh(s / c->softcap);
            s = c->softcap * th, f->slope[j] = 1 - th * th;
        }
        int64_t m = c->mask == 2 ? b * c->s + j : (b * c->t + i) * c->s + j;
        if (c->mask == 1) s += get(r, "mask", DT_f32, m);
        if (c->mask > 1 && get(r, "mask", DT_bool, m) == 0) s = -INFINITY;
        if (c->causal && j > i + c->s - c->t) s = -INFINITY;
        f->p[j] = exp(s);
        sum += f->p[j];
    }
    for (int64_t j = 0; j < c->s; j++) f->p[j] = sum > 0 ? f->p[j] / sum : 0;
    return log(sum);
}
static void att_grads(struct rig *r, const struct att_case *c, int64_t b, int64_t h, int64_t i,
                      struct att_ref *f) {
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    int64_t kv = h / (c->h / c->kv), qi = at4(c, c->h, b, h, i, c->t, c->d);
    int64_t yi = at4(c, c->h, b, h, i, c->t, c->e);
    double mean = 0;
    for (int64_t k = 0; k < c->e; k++) mean += f->y[yi + k] * get(r, "i3", t, yi + k);
    for (int64_t j = 0; j < c->s; j++) {
        int64_t kj = at4(c, c->kv, b, kv, j, c->s, c->d), vj = at4(c, c->kv, b, kv, j, c->s, c->e);
        double dp = 0;
        for (int64_t k = 0; k < c->e; k++) {
            dp += get(r, "i3", t, yi + k) * get(r, "i2", t, vj + k);
            f->dv[vj + k] += f->p[j] * get(r, "i3", t, yi + k);
        }
        double ds = f->p[j] * (dp - mean) * f->slope[j] * 0.3;
        for (int64_t k = 0; k < c->d; k++) {
            f->dq[qi + k] += ds * get(r, "i1", t, kj + k);
            f->dk[kj + k] += ds * get(r, "i0", t, qi + k);
        }
    }
}
static void verify_att(struct rig *r) {
    const struct att_case *c = r->user;
    enum dtype t = c->f64 ? DT_f64 : DT_f32;
    const char *names[] = {"y", "dq", "dk", "dv"};
    double *want[4];
    for (int k = 0; k < 4; k++)
        want[k] = ARENA_ARRAY(&r->t->arena, double, (size_t)rig_count(r, names[k]));
    struct att_ref f = {want[0],
                        want[1],
                        want[2],
                        want[3],
                        ARENA_ARRAY(&r->t->arena, double, (size_t)c->s),
                        ARENA_ARRAY(&r->t->arena, double, (size_t)c->s)};
    for (int64_t b = 0; b < c->b; b++)
        for (int64_t h = 0; h < c->h; h++)
            for (int64_t i = 0; i < c->t; i++) {
                double lse = att_row(r, c, b, h, i, &f);
                rig_close(get(r, "lse", DT_f32, (b * c->h + h) * c->t + i), lse, 1e-5, "lse", i);
                for (int64_t j = 0; j < c->s; j++)
                    for (int64_t k = 0; k < c->e; k++)
                        f.y[at4(c, c->h, b, h, i, c->t, c->e) + k] +=
                            f.p[j] * get(r, "i2", t,
                                         at4(c, c->kv, b, h / (c->h / c->kv), j, c->s, c->e) + k);
                att_grads(r, c, b, h, i, &f);
            }
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < rig_count(r, names[k]); i++)
            rig_close(get(r, names[k], t, i), want[k][i], c->f64 ? 1e-11 : 3e-5, names[k], i);
}
RIG_TEST(attention) {
    static const struct att_case cases[] = {
        {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},     {2, 3, 3, 17, 17, 8, 5, 0, 1, 0, 1, 0},
        {1, 4, 2, 9, 33, 16, 16, 0, 1, 0, 0, 0},  {1, 2, 1, 33, 9, 16, 7, 0, 1, 0, 1, 0},
        {2, 4, 1, 129, 127, 8, 8, 1, 0, 0, 0, 0}, {2, 2, 2, 17, 40, 8, 8, 2, 1, 0, 0, 2.0},
        {1, 3, 3, 10, 10, 4, 4, 3, 0, 1, 1, 1.5}, {1, 4, 2, 21, 21, 4, 3, 1, 1, 1, 0, 0},
        {1, 1, 1, 70, 3000, 8, 8, 0, 1, 0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct att_case c = cases[i];
        r->user = &c;
        rig_run(r, build_att, fill_att, verify_att);
        arena_reset(&r->t->arena);
    }
}

int main(void) {
    Suite *s = suite_create("cpu_attention");
    TCase *c = tcase_create("launches");
    tcase_set_timeout(c, 600);
    tcase_add_test(c, attention);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
