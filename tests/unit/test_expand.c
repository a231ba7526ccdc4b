// SPDX-License-Identifier: Apache-2.0
/* test_expand.c - range expansion against double precision computed here, its laws, published cases
 * (the file that COAT_VECTORS names, if it does), and the optimizer with 8-bit states: every result
 * of the CPU's kernel against one value at a time, against published steps, and over many steps
 * against f32. */
#include "base/expand.h"
#include "codegen/codegen.h"
#include "ir/plan_work.h"
#include "runtime/cpu.h"
#include "small_graph.h"
#include "test_util.h"
#include <float.h>
#include <jansson.h>

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t)

static struct expand_table *table_of(struct test_env *t, enum expand_format f, double range) {
    struct expand_table *x = ARENA_NEW(&t->arena, struct expand_table);
    expand_fill(x, f, range > 0 ? range : expand_default_range(f));
    return x;
}

/* ---- tables ------------------------------------------------------------------------------------
 */
START_TEST(test_ranges) {
    ck_assert_double_eq(expand_full_range(EXPAND_E4M3), 229376);
    ck_assert_double_eq(expand_default_range(EXPAND_E4M3), 100352);
    ck_assert_double_eq(expand_full_range(EXPAND_E5M2), 57344.0 * 65536);
    ck_assert_double_eq(expand_code_value(EXPAND_E4M3, 0x7e), 448);
    ck_assert_double_eq(expand_code_value(EXPAND_E5M2, 0x7b), 57344);
    ck_assert(isnan(expand_code_value(EXPAND_E4M3, 0x7f)));
    ck_assert(isinf(expand_code_value(EXPAND_E5M2, 0x7c)));
    for (int k = 1; k < 400; k++) {
        double x = ldexp(1.0 + k * 0.01, k % 50 - 40), p = k / 16.0, want = pow(x, p);
        ck_assert_double_le(fabs(expand_power(x, p) - want), 4e-13 * want);
    }
    ck_assert_double_eq(expand_power(0, 3), 0);
}
END_TEST

START_TEST(test_table) {
    BEGIN;
    enum expand_format f = _i ? EXPAND_E5M2 : EXPAND_E4M3;
    const struct expand_table *x = table_of(&t, f, 0);
    int top = expand_top_code(f);
    double fmax = expand_code_value(f, (unsigned)top);
    for (int k = 1; k < EXPAND_STEPS; k++) {
        TEST_EXPECT(x->value[k][0] == 0 && x->least[k][0] == 0 && x->value[k][top] == 1);
        TEST_EXPECT(x->ratio[k] >= x->ratio[k - 1]);
        for (int c = 1; c <= top; c++) {
            double q = expand_code_value(f, (unsigned)c);
            double half = (q + expand_code_value(f, (unsigned)c - 1)) / 2;
            double value = pow(q / fmax, 16.0 / k), least = pow(half / fmax, 16.0 / k);
            TEST_EXPECT(fabs(x->value[k][c] - value) <= 6e-8 * value + 1e-45);
            TEST_EXPECT(fabs(x->least[k][c] - least) <= 1.3e-7 * least + 1e-45);
            if (k < EXPAND_ONE) continue;
            TEST_EXPECT(x->value[k][c - 1] < x->value[k][c] && x->least[k][c - 1] < x->least[k][c]);
            TEST_EXPECT(expand_nearest(x, k, x->value[k][c]) == c); /* a code comes back */
            TEST_EXPECT(expand_nearest(x, k, x->least[k][c]) == c);
            TEST_EXPECT(expand_nearest(x, k, nextafterf(x->least[k][c], 0)) == c - 1);
            TEST_EXPECT(expand_random(x, k, x->value[k][c], 0.5f) == c);
        }
        TEST_EXPECT(expand_nearest(x, k, NAN) == 0x7f && expand_random(x, k, NAN, 0.5f) == 0x7f);
        TEST_EXPECT(expand_nearest(x, k, INFINITY) == top && expand_nearest(x, k, 0) == 0);
    }
    test_end(&t);
}
END_TEST

/* ---- groups ------------------------------------------------------------------------------------
 */
/* Not nearer to the other side of a rounding boundary than f32 may be wrong. */
static bool is_close(enum expand_format f, double q) {
    for (unsigned c = 1; c <= expand_top_code(f); c++) {
        double half = (expand_code_value(f, c - 1) + expand_code_value(f, c)) / 2;
        if (fabs(q - half) < 2e-5 * half) return true;
    }
    return false;
}
static int code_of(enum expand_format f, double q) {
    int c = 0;
    while (c < expand_top_code(f) &&
           q > (expand_code_value(f, (unsigned)c) + expand_code_value(f, (unsigned)c + 1)) / 2)
        c++;
    return c;
}

static void check_group(const struct expand_table *x, enum expand_format f, double range,
                        const float *v, int n, bool keep) {
    uint8_t codes[EXPAND_GROUP_MAX];
    float back[EXPAND_GROUP_MAX];
    double amax = 0, least = INFINITY, top = expand_code_value(f, expand_top_code(f));
    for (int i = 0; i < n; i++) {
        amax = fmax(amax, fabs((double)v[i]));
        if (v[i] != 0) least = fmin(least, fabs((double)v[i]));
    }
    struct expand_group g = expand_measure(x, v, n, EXPAND_ONE, 255);
    expand_encode(x, g, v, n, keep, codes);
    expand_decode(x, g, codes, n, back);
    TEST_EXPECT((double)g.amax == amax);
    double real = amax > least ? 16 * log(range) / log(amax / least) : amax > 0 ? 1e9 : 16;
    double k = fmin(fmax(floor(real), 16), 255);
    if (fabs(real - rint(real)) > 1e-3) TEST_EXPECT(g.k == (int)k);
    for (int i = 0; i < n; i++) {
        double r = amax > 0 ? fabs((double)v[i]) / amax : 0, q = top * pow(r, g.k / 16.0);
        int c = code_of(f, q), code = codes[i] & 0x7f;
        if (keep && v[i] != 0 && c == 0) c = 1;
        TEST_EXPECT(code == c || is_close(f, q));
        TEST_EXPECT(v[i] != 0 || (codes[i] & 0x7f) == 0);
        TEST_EXPECT(v[i] != 0 || back[i] == 0);
        TEST_EXPECT(!keep || v[i] == 0 || code > 0);
        TEST_EXPECT(isfinite(back[i]) && signbit(back[i]) == signbit(v[i]));
        double ulp = f == EXPAND_E4M3 ? 16 : 8, normal = f == EXPAND_E4M3 ? 0x1p-6 : 0x1p-14;
        double error = fabs(fabs((double)back[i]) - fabs((double)v[i]));
        double bound = fabs((double)v[i]) * (pow(1 + 1 / ulp, 16.0 / g.k) - 1) * 1.0001 + 1e-44;
        if (q >= normal) TEST_EXPECT(error <= bound);
    }
}

START_TEST(test_groups) {
    BEGIN;
    enum expand_format f = _i % 2 ? EXPAND_E5M2 : EXPAND_E4M3;
    double range = _i / 2 ? expand_full_range(f) : expand_default_range(f);
    const struct expand_table *x = table_of(&t, f, range);
    float v[EXPAND_GROUP_MAX];
    uint64_t seed = 11;
    for (int kind = 0; kind < SMALL_KINDS; kind++)
        for (int n = 1; n <= EXPAND_GROUP_MAX; n++) {
            double size = n % 5 == 4 ? 1e-36 : n % 5 == 3 ? 1e20 : 1;
            for (int i = 0; i < n; i++) v[i] = (float)(small_value(kind, &seed) * size);
            check_group(x, f, range, v, n, false);
            for (int i = 0; i < n; i++) v[i] = fabsf(v[i]);
            check_group(x, f, range, v, n, true);
        }
    test_end(&t);
}
END_TEST

START_TEST(test_awkward_groups) {
    BEGIN;
    const struct expand_table *x = table_of(&t, EXPAND_E4M3, 0);
    struct expand_group g;
    uint8_t c[4];
    float y[4];
    float zeros[4] = {0, -0.0f, 0, 0}, same[3] = {3, -3, 3}, one = -7.5e-12f;
    float tiny[4] = {1e-45f, 4e-45f, 0, 2e-45f}, wide[3] = {1, 1e-30f, 1e7f};
    float bad[4] = {INFINITY, -INFINITY, NAN, 1};
    g = expand_measure(x, zeros, 4, 16, 255);
    expand_encode(x, g, zeros, 4, true, c);
    ck_assert(g.amax == 0 && g.k == 16 && c[0] == 0 && c[1] == 0x80 && c[2] == 0);
    g = expand_measure(x, same, 3, 16, 255);
    expand_encode(x, g, same, 3, true, c);
    expand_decode(x, g, c, 3, y);
    ck_assert(g.k == 255 && c[0] == 0x7e && c[1] == 0xfe && y[0] == 3 && y[1] == -3);
    g = expand_measure(x, &one, 1, 16, 255);
    expand_encode(x, g, &one, 1, true, c);
    expand_decode(x, g, c, 1, y);
    ck_assert(c[0] == 0xfe && y[0] == one);
    g = expand_measure(x, tiny, 4, 16, 255);
    expand_encode(x, g, tiny, 4, true, c);
    expand_decode(x, g, c, 4, y);
    ck_assert(c[1] == 0x7e && y[1] == tiny[1] && y[0] > 0 && y[2] == 0);
    g = expand_measure(x, wide, 3, 16, 255); /* wider than the format: the least are 0, or kept */
    expand_encode(x, g, wide, 3, false, c);
    ck_assert(g.k == 16 && c[0] == 0 && c[2] == 0x7e);
    expand_encode(x, g, wide, 3, true, c);
    ck_assert(c[0] == 1 && c[1] == 1);
    g = expand_measure(x, wide, 3, 1, 255); /* or the group is narrowed */
    expand_encode(x, g, wide, 3, false, c);
    ck_assert(g.k < 16 && c[0] > 1 && c[1] >= 1);
    g = expand_measure(x, bad, 4, 16, 255);
    expand_encode(x, g, bad, 4, true, c);
    ck_assert(g.amax == FLT_MAX && c[0] == 0x7e && c[1] == 0xfe && c[2] == 0x7f && c[3] == 1);
    test_end(&t);
}
END_TEST

/* Larger is never a smaller code; twice the size is the same code; both signs are alike. */
START_TEST(test_laws) {
    BEGIN;
    const struct expand_table *x = table_of(&t, EXPAND_E4M3, 0);
    uint64_t seed = 3;
    for (int round = 0; round < 3000; round++) {
        float v[32], w[32];
        uint8_t a[32], b[32];
        for (int i = 0; i < 32; i++) v[i] = (float)small_value(round % 3, &seed);
        struct expand_group g = expand_measure(x, v, 32, 16, 255);
        expand_encode(x, g, v, 32, false, a);
        for (int i = 0; i < 32; i++)
            for (int j = 0; j < i; j++)
                TEST_EXPECT(fabsf(v[i]) >= fabsf(v[j]) ? (a[i] & 0x7f) >= (a[j] & 0x7f)
                                                       : (a[i] & 0x7f) <= (a[j] & 0x7f));
        for (int i = 0; i < 32; i++) w[i] = -v[i] * 0x1p9f;
        g = expand_measure(x, w, 32, 16, 255);
        expand_encode(x, g, w, 32, false, b);
        for (int i = 0; i < 32; i++) TEST_EXPECT(a[i] == (b[i] ^ 0x80));
    }
    test_end(&t);
}
END_TEST

/* Rounded at random, numbers keep their mean. */
START_TEST(test_random) {
    BEGIN;
    const struct expand_table *x = table_of(&t, EXPAND_E4M3, 0);
    enum { DRAWS = 20000 };
    for (int k = 16; k < 256; k += 37)
        for (int i = 1; i < 12; i++) {
            float r = powf((float)i / 12.0f, 64.0f / (float)k);
            double sum = 0;
            for (uint32_t d = 0; d < DRAWS; d++) {
                int c = expand_random(x, k, r, expand_uniform(expand_key(d, 1.5f), 2 * d + d / 3));
                TEST_EXPECT(x->value[k][c] <= r ? x->value[k][c + 1] > r : x->value[k][c - 1] <= r);
                sum += (double)x->value[k][c];
            }
            int low = expand_random(x, k, r, 0.99999f);
            low -= x->value[k][low] > r;
            double cell = (double)(x->value[k][low + 1] - x->value[k][low]);
            TEST_EXPECT(fabs(sum / DRAWS - (double)r) <= 4 * 0.5 * cell / sqrt((double)DRAWS));
        }
    double mean = 0, low = 1, high = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        double u = (double)expand_uniform(expand_key(7, 0.25f), i);
        mean += u / DRAWS, low = fmin(low, u), high = fmax(high, u);
    }
    ck_assert(fabs(mean - 0.5) < 0.01 && low >= 0 && low < 0.001 && high < 1 && high > 0.999);
    test_end(&t);
}
END_TEST

/* ---- the optimizer's kernel --------------------------------------------------------------------
 */
struct rig {
    struct test_env *t;
    struct graph *g;
    struct plan *p;
    struct pool *pool;
    struct cpu_exec *x;
};

static struct rig rig_open(struct test_env *t, struct graph *g, bool plain) {
    struct rig r = {.t = t, .g = g};
    struct codegen_options o = {.threads = 3, .no_fusion = plain};
    ck_assert_msg(plan_build(g, &o, &r.p) == ST_OK, "%s", t->log);
    r.pool = pool_create(&t->ctx, 3);
    ck_assert_msg(cpu_create(&t->ctx, r.p, r.pool, &r.x) == ST_OK, "%s", t->log);
    return r;
}

static void rig_run(struct rig *r) {
    ck_assert_msg(cpu_run(r->x, 0, r->p->launches.n, false) == ST_OK, "%s", r->t->log);
}

static void rig_close(struct rig *r) {
    cpu_destroy(r->x);
    pool_destroy(r->pool);
    plan_destroy(r->p);
    graph_destroy(r->g);
}

static void *rig_at(struct rig *r, enum buffer_kind kind, const char *name, int k) {
    const char *full = arena_printf(&r->t->arena, "%s%d", name, k);
    void *at = cpu_buffer(r->x, kind, full);
    ck_assert_msg(at != NULL, "no '%s'", full);
    return at;
}

/* A step as ops.def describes it, one value at a time. */
struct plain_state {
    const uint8_t *codes, *k, *new_codes, *new_k;
    const float *amax, *new_amax;
    const struct expand_table *x;
    enum dtype type;
    bool is_v;
};
static struct plain_state plain_state(struct rig *r, const struct small_case *c, int k, bool is_v,
                                      const struct expand_table *x) {
    struct plain_state s = {.x = x, .is_v = is_v, .type = is_v ? c->v : c->m};
    const char *names[2][3] = {{"m", "m.amax", "m.k"}, {"v", "v.amax", "v.k"}};
    s.codes = rig_at(r, BUF_STATE, names[is_v][0], k);
    s.new_codes = rig_at(r, BUF_OUTPUT, names[is_v][0], k);
    if (s.type == DT_f32) return s;
    s.amax = rig_at(r, BUF_STATE, names[is_v][1], k), s.k = rig_at(r, BUF_STATE, names[is_v][2], k);
    s.new_amax = rig_at(r, BUF_OUTPUT, names[is_v][1], k);
    s.new_k = rig_at(r, BUF_OUTPUT, names[is_v][2], k);
    return s;
}
static float plain_read(const struct plain_state *s, int64_t i, int64_t group) {
    float y;
    if (s->type == DT_f32) return ((const float *)(const void *)s->codes)[i];
    expand_decode(s->x, (struct expand_group){s->amax[i / group], s->k[i / group]}, s->codes + i, 1,
                  &y);
    return y;
}
static void plain_check(const struct plain_state *s, const struct small_case *c, int64_t at,
                        const float *x, int64_t n) {
    uint8_t codes[EXPAND_GROUP_MAX];
    if (s->type == DT_f32) {
        TEST_EXPECT(memcmp(s->new_codes + at * 4, x, (size_t)n * 4) == 0);
        return;
    }
    struct expand_group g =
        expand_measure(s->x, x, n, c->contract && !c->plain ? 1 : 16, c->plain ? 16 : 255);
    expand_encode(s->x, g, x, n, s->is_v, codes);
    struct expand_scale scale = expand_scale(g.amax);
    for (int64_t i = 0; s->is_v && c->stochastic && i < n; i++) {
        float u = expand_uniform(expand_key(3, g.amax), (uint32_t)(at + i));
        codes[i] = expand_random(s->x, g.k, x[i] * scale.up * scale.inverse, u);
        if (x[i] > 0 && codes[i] == 0) codes[i] = 1;
    }
    TEST_EXPECT(memcmp(&s->new_amax[at / c->group], &g.amax, 4) == 0);
    TEST_EXPECT(s->new_k[at / c->group] == g.k);
    TEST_EXPECT(memcmp(s->new_codes + at, codes, (size_t)n) == 0);
}

/* The new weight after step 3 at rate 0.01 with decay 0.1, from the exact new m and v. */
static void plain_weight(const struct small_case *c, float w, float m, float v, float got) {
    double eps = c->hat ? 1e-4 : 1e-8, root = sqrt(1 - pow(0.999, 3));
    double below = sqrt((double)v) / root + (c->hat ? eps / root : eps);
    double step = 0.01 / (1 - pow(0.9, 3)) * (double)m / below;
    double want = (double)w * (c->l2 ? 1 : 1 - 0.01 * 0.1) - step;
    if (isnan(want)) { /* m and v overflowed */
        TEST_EXPECT(isnan(got));
        return;
    }
    TEST_EXPECT(fabs((double)got - want) <= 1e-6 * (1e-2 + fabs((double)w) + fabs(step)));
}

static __attribute__((noinline)) void plain_step(struct rig *r, const struct small_case *c, int k,
                                                 const struct expand_table *tm,
                                                 const struct expand_table *tv) {
    struct plain_state sm = plain_state(r, c, k, false, tm), sv = plain_state(r, c, k, true, tv);
    const float *w = rig_at(r, BUF_STATE, "w", k);
    const char *g = rig_at(r, BUF_STATE, "g", k);
    const float *w_new = rig_at(r, BUF_OUTPUT, "w", k);
    float m[EXPAND_GROUP_MAX], v[EXPAND_GROUP_MAX];
    for (int64_t at = 0; at < c->sizes[k]; at += c->group) {
        int64_t n = c->sizes[k] - at < c->group ? c->sizes[k] - at : c->group;
        for (int64_t i = 0; i < n; i++) {
            size_t size = dtype_size(c->gradient);
            float d = (float)dtype_load(c->gradient, g + (size_t)(at + i) * size);
            d = d * (c->clip ? 0.7f : 1.0f);
            if (c->l2) d = d + 0.1f * w[at + i];
            m[i] = plain_read(&sm, at + i, c->group), v[i] = plain_read(&sv, at + i, c->group);
            m[i] = m[i] + (float)(1 - 0.9) * (d - m[i]);
            v[i] = v[i] * 0.999f + (float)(1 - 0.999) * d * d;
            plain_weight(c, w[at + i], m[i], v[i], w_new[at + i]);
        }
        plain_check(&sm, c, at, m, n);
        plain_check(&sv, c, at, v, n);
    }
}

/* Every code, scale and exponent of the kernel is the one of the plain step, whatever the launch.
 */
START_TEST(test_kernel) {
    BEGIN;
    const struct small_case *c = &small_cases[_i / 2];
    const struct expand_table *tm =
        table_of(&t, c->m == DT_e5m2 ? EXPAND_E5M2 : EXPAND_E4M3, 100352);
    const struct expand_table *tv =
        table_of(&t, c->v == DT_e5m2 ? EXPAND_E5M2 : EXPAND_E4M3, 229376);
    struct rig r = rig_open(&t, small_graph(&t.ctx, c), _i % 2);
    rig_run(&r);
    for (int k = 0; k < c->n; k++) plain_step(&r, c, k, tm, tv);
    rig_close(&r);
    test_end(&t);
}
END_TEST

/* In place, and joined, as with results of their own. */
START_TEST(test_in_place) {
    BEGIN;
    struct small_case c = small_cases[_i];
    static const char *const names[] = {"w", "m", "m.amax", "m.k", "v", "v.amax", "v.k"};
    struct rig a = rig_open(&t, small_graph(&t.ctx, &c), false);
    c.updates = true;
    struct rig b = rig_open(&t, small_graph(&t.ctx, &c), false);
    uint32_t steps = 0;
    for (uint32_t k = 0; k < b.p->launches.n; k++)
        steps += b.p->launches.at[k].kind == LAUNCH_adam8;
    ck_assert_uint_eq(steps, 1);
    for (uint32_t k = 1; k < b.p->buffers.n; k++)
        ck_assert(b.p->buffers.at[k].kind != BUF_TEMP || b.p->buffers.at[k].bytes <= 64);
    rig_run(&a);
    rig_run(&b);
    for (int k = 0; k < c.n; k++)
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) {
            const char *name = arena_printf(&t.arena, "%s%d", names[j], k);
            size_t bytes = (size_t)a.p->buffers.at[plan_find(a.p, BUF_OUTPUT, name).i].bytes;
            if (bytes)
                ck_assert_msg(memcmp(cpu_buffer(a.x, BUF_OUTPUT, name),
                                     cpu_buffer(b.x, BUF_STATE, name), bytes) == 0,
                              "%s", name);
        }
    rig_close(&a);
    rig_close(&b);
    test_end(&t);
}
END_TEST

/* ---- many steps ----------------------------------------------------------------------------- */
/* w, m and v of n elements, gradient "g0" an input, the step counted in the graph. */
struct run_case {
    int64_t n, group;
    bool small, plain, stochastic;
    double beta2, lr, decay;
};
static struct graph *run_graph(struct ctx *x, const struct run_case *c, const float *w) {
    struct graph *g = graph_create(x, "run");
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    int64_t groups = (c->n + c->group - 1) / c->group;
    struct type wt = {.dtype = DT_f32, .rank = 1, .dims = {c->n}}, ct = wt, at = wt, kt = wt;
    str_id o = {0};
    ct.dtype = DT_e4m3, at.dims[0] = groups, kt.dtype = DT_u8, kt.dims[0] = groups;
    if (!c->small) ct = wt, at.dims[0] = kt.dims[0] = 0;
    const struct {
        const char *name;
        const struct type *t;
        double fill;
    } s[] = {{"m0", &ct, 0},      {"m.amax0", &at, 0}, {"m.k0", &kt, 16},   {"v0", &ct, 0},
             {"v.amax0", &at, 0}, {"v.k0", &kt, 16},   {"lr", &f32, c->lr}, {"step", &i64, 0}};
    val_id in[10];
    for (int k = 0; k < 8; k++) {
        struct attr a[2] = {{.key = ATTR_name, .s = s[k].name}, {.key = ATTR_fill, .f = s[k].fill}};
        in[k + 2] = graph_source(g, OP_state, s[k].t, a, 2, o);
    }
    struct attr name = {.key = ATTR_name, .s = "g0"};
    in[0] = small_state(g, "w", 0, DT_f32, c->n, w);
    in[1] = graph_source(g, OP_input, &wt, &name, 1, o);
    val_id step = in[9];
    in[9] = build_2(g, OP_add, step, build_scalar_int(g, DT_i64, 1, o), o);
    graph_add_update(g, step, in[9]);
    double range = c->plain ? 0 : 100352;
    struct attr a[7] = {
        {.key = ATTR_group, .i = c->group}, {.key = ATTR_m_range, .f = range},
        {.key = ATTR_v_range, .f = range},  {.key = ATTR_stochastic, .i = c->stochastic},
        {.key = ATTR_beta2, .f = c->beta2}, {.key = ATTR_weight_decay, .f = c->decay}};
    val_id y = graph_add(g, OP_adam8, in, 10, a, 6, o);
    for (int j = 0; j < 7; j++) graph_add_update(g, in[j ? j + 1 : 0], val_at(y, j));
    graph_settle(g);
    return g;
}

/* Element i of v as it is stored. */
static double stored_v(struct rig *r, const struct run_case *c, const struct expand_table *x,
                       int64_t i) {
    float y;
    if (!c->small) return (double)((const float *)rig_at(r, BUF_STATE, "v", 0))[i];
    struct expand_group g = {((const float *)rig_at(r, BUF_STATE, "v.amax", 0))[i / c->group],
                             ((const uint8_t *)rig_at(r, BUF_STATE, "v.k", 0))[i / c->group]};
    expand_decode(x, g, (const uint8_t *)rig_at(r, BUF_STATE, "v", 0) + i, 1, &y);
    return (double)y;
}

/* beta2 = 0.999: half of the gradients become smaller on the way. Rounded to nearest, v of these
 * stays where it was; rounded at random, it follows. */
START_TEST(test_long_run) {
    BEGIN;
    enum { N = 1024, STEPS = 6000, CHANGE = 2500 };
    struct run_case c[3] = {{N, 128, false, false, false, 0.999, 1e-3, 0},
                            {N, 128, true, false, true, 0.999, 1e-3, 0},
                            {N, 128, true, false, false, 0.999, 1e-3, 0}};
    const struct expand_table *x = table_of(&t, EXPAND_E4M3, 0);
    float *w = ARENA_ARRAY(&t.arena, float, N), *size = ARENA_ARRAY(&t.arena, float, N);
    struct rig r[3];
    double ratio[3][2] = {{0}};
    uint64_t seed = 21;
    for (int i = 0; i < N; i++) {
        w[i] = (float)step_value(&seed, false);
        size[i] = (float)(1e-3 * exp(1.5 * step_value(&seed, false)));
    }
    for (int k = 0; k < 3; k++) r[k] = rig_open(&t, run_graph(&t.ctx, &c[k], w), false);
    for (int s = 0; s < STEPS; s++) {
        float g[N];
        for (int i = 0; i < N; i++) {
            double z = 0; /* about normal, variance 1 */
            for (int q = 0; q < 3; q++) z += step_value(&seed, false);
            g[i] = size[i] * (float)(s > CHANGE && i % 2 ? 0.70710678 * z : z);
        }
        for (int k = 0; k < 3; k++) {
            memcpy(rig_at(&r[k], BUF_INPUT, "g", 0), g, sizeof g);
            rig_run(&r[k]);
        }
        if (s < STEPS - 500) continue;
        for (int k = 1; k < 3; k++)
            for (int i = 0; i < N; i++)
                ratio[k][i % 2] +=
                    stored_v(&r[k], &c[k], x, i) / stored_v(&r[0], &c[0], x, i) / (500.0 * N / 2);
    }
    double moved = 0, error = 0;
    const float *w0 = rig_at(&r[0], BUF_STATE, "w", 0), *w1 = rig_at(&r[1], BUF_STATE, "w", 0);
    for (int i = 0; i < N; i++) {
        moved += pow((double)(w0[i] - w[i]), 2);
        error += pow((double)(w1[i] - w0[i]), 2);
    }
    ck_assert_double_lt(fabs(ratio[1][0] - 1), 0.03);
    ck_assert_double_lt(fabs(ratio[1][1] - 1), 0.03);
    ck_assert_double_gt(ratio[2][1], 1.15);
    ck_assert_double_lt(sqrt(error / moved), 0.15);
    for (int k = 0; k < 3; k++) rig_close(&r[k]);
    test_end(&t);
}
END_TEST

/* ---- published cases ---------------------------------------------------------------------------
 */
static json_t *vectors(void) {
    const char *file = getenv("COAT_VECTORS");
    if (!file || !*file) return NULL;
    json_t *root = json_load_file(file, 0, NULL);
    ck_assert_msg(root != NULL, "cannot read %s", file);
    return root;
}

static double number(json_t *o, const char *key, double otherwise) {
    json_t *x = json_object_get(o, key);
    return json_is_number(x) ? json_number_value(x) : otherwise;
}

static int hex(json_t *codes, size_t i) {
    char two[3] = {json_string_value(codes)[2 * i], json_string_value(codes)[2 * i + 1], '\0'};
    return (int)strtol(two, NULL, 16);
}

static void check_published(struct test_env *t, json_t *c) {
    json_t *s = json_object_get(c, "settings"), *in = json_object_get(c, "input");
    json_t *want = json_object_get(c, "expect"), *back = json_object_get(want, "dequant");
    const char *id = json_string_value(json_object_get(c, "id"));
    const struct expand_table *x = table_of(t, EXPAND_E4M3, number(s, "range_bound", 0));
    int n = (int)json_array_size(in), k_min = number(s, "k_min", 0) >= 1 ? 16 : 1;
    double fmax = expand_code_value(EXPAND_E4M3, 0x7e), k = number(want, "k", 0);
    float v[EXPAND_GROUP_MAX], y[EXPAND_GROUP_MAX];
    uint8_t codes[EXPAND_GROUP_MAX];
    for (int i = 0; i < n; i++) v[i] = (float)json_number_value(json_array_get(in, (size_t)i));
    struct expand_group g = expand_measure(x, v, n, k_min, 255);
    expand_encode(x, g, v, n, false, codes);
    expand_decode(x, g, codes, n, y);
    ck_assert_msg((double)g.amax == number(want, "amax", -1), "%s: amax", id);
    bool sixteenths = number(s, "k_steps_per_unit", 0) == 16;
    if (sixteenths) ck_assert_msg(g.k == k * 16, "%s: k is %d/16", id, g.k);
    for (int i = 0; i < n; i++) {
        double q = json_number_value(json_array_get(back, (size_t)i)), got = (double)y[i];
        if (!sixteenths) { /* any k: the powers themselves */
            int c0 =
                code_of(EXPAND_E4M3, fmax * expand_power(fabs((double)v[i]) / (double)g.amax, k));
            codes[i] = (uint8_t)(c0 | (v[i] < 0 ? 0x80 : 0));
            got = (double)g.amax *
                  expand_power(expand_code_value(EXPAND_E4M3, (unsigned)c0) / fmax, 1 / k);
            got = v[i] < 0 ? -got : got;
        }
        ck_assert_msg(codes[i] == hex(json_object_get(want, "codes"), (size_t)i), "%s: code %d", id,
                      i);
        ck_assert_msg(fabs(got - q) <= number(want, "tol_rel", 0) * fabs(q), "%s: value %d", id, i);
    }
}

START_TEST(test_published_groups) {
    BEGIN;
    json_t *root = vectors(), *c;
    size_t i;
    int seen = 0;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        if (strcmp(json_string_value(json_object_get(c, "kind")), "range_expansion") != 0) continue;
        check_published(&t, c);
        seen++;
    }
    ck_assert(!root || seen >= 15);
    json_decref(root);
    test_end(&t);
}
END_TEST

static void near_all(json_t *want, const float *got, double tolerance, const char *what) {
    for (size_t i = 0; i < json_array_size(want); i++) {
        double x = json_number_value(json_array_get(want, i));
        ck_assert_msg(fabs((double)got[i] - x) <= tolerance * fabs(x) + 1e-12,
                      "%s %zu: %.9g for %.9g", what, i, (double)got[i], x);
    }
}

static __attribute__((noinline)) void published_steps(struct test_env *t, json_t *c) {
    json_t *s = json_object_get(c, "settings"), *in = json_object_get(c, "input"), *grads, *step;
    json_t *param = json_object_get(in, "param");
    bool expand = json_is_true(json_object_get(s, "expand"));
    struct run_case rc = {
        .n = (int64_t)json_array_size(param), .group = 32, .small = true, .plain = !expand};
    size_t k;
    rc.beta2 = number(s, "beta2", 0), rc.lr = number(s, "lr", 0), rc.decay = number(s, "wd", 0);
    float w[32], y[32];
    for (int64_t i = 0; i < rc.n; i++)
        w[i] = (float)json_number_value(json_array_get(param, (size_t)i));
    struct rig r = rig_open(t, run_graph(&t->ctx, &rc, w), false);
    const struct expand_table *x = table_of(t, EXPAND_E4M3, 0);
    grads = json_object_get(in, "grads");
    json_array_foreach(json_object_get(json_object_get(c, "expect"), "steps"), k, step) {
        float *g = rig_at(&r, BUF_INPUT, "g", 0);
        for (int64_t i = 0; i < rc.n; i++)
            g[i] = (float)json_number_value(json_array_get(json_array_get(grads, k), (size_t)i));
        rig_run(&r);
        near_all(json_object_get(step, "param"), rig_at(&r, BUF_STATE, "w", 0), 2e-5, "weight");
        for (int q = 0; q < 2; q++) {
            const char *p = q ? "v" : "m";
            const uint8_t *codes = rig_at(&r, BUF_STATE, p, 0);
            struct expand_group e = {
                *(const float *)rig_at(&r, BUF_STATE, arena_printf(&t->arena, "%s.amax", p), 0),
                *(const uint8_t *)rig_at(&r, BUF_STATE, arena_printf(&t->arena, "%s.k", p), 0)};
            ck_assert(e.k == 16 * number(step, arena_printf(&t->arena, "%s_k", p), 0));
            double amax = number(step, arena_printf(&t->arena, "%s_amax", p), -1);
            ck_assert(fabs((double)e.amax - amax) <= 1e-6 * amax);
            json_t *want = json_object_get(step, arena_printf(&t->arena, "%s_codes", p));
            for (int64_t i = 0; i < rc.n; i++) ck_assert_int_eq(codes[i], hex(want, (size_t)i));
            expand_decode(x, e, codes, rc.n, y);
            near_all(json_object_get(step, arena_printf(&t->arena, "%s_dequant", p)), y, 2e-5,
                     "state");
        }
    }
    rig_close(&r);
}

START_TEST(test_published_steps) {
    BEGIN;
    json_t *root = vectors(), *c;
    size_t i;
    int seen = 0;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        if (strcmp(json_string_value(json_object_get(c, "kind")), "adamw") != 0) continue;
        published_steps(&t, c);
        seen++;
    }
    ck_assert(!root || seen >= 4);
    json_decref(root);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("expand");
    TCase *tc = tcase_create("all");
    tcase_add_test(tc, test_ranges);
    tcase_add_loop_test(tc, test_table, 0, 2);
    tcase_add_loop_test(tc, test_groups, 0, 4);
    tcase_add_test(tc, test_awkward_groups);
    tcase_add_test(tc, test_laws);
    tcase_add_test(tc, test_random);
    tcase_add_loop_test(tc, test_kernel, 0, 2 * SMALL_CASES);
    tcase_add_loop_test(tc, test_in_place, 0, SMALL_CASES);
    tcase_add_test(tc, test_long_run);
    tcase_add_test(tc, test_published_groups);
    tcase_add_test(tc, test_published_steps);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
