// SPDX-License-Identifier: Apache-2.0
/* test_products.c - what is folded into the launch of a product (the table in ir/plan.h): the shape
 * of the plan, and its values on the CPU, fused and one node at a time, against the same graph in
 * f64. f32 and bf16, odd sizes. */
#include "codegen/codegen.h"
#include "ir/build.h"
#include "runtime/cpu.h"
#include "test_util.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const str_id none = {0};

struct maker {
    struct graph *g;
    enum dtype t; /* of what is multiplied */
    int64_t m, n, k;
};

static val_id input(struct maker *s, const char *name, int rank, const int64_t *dims) {
    struct type t = {.dtype = s->t, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    struct attr a = {.key = ATTR_name, .s = name};
    return graph_source(s->g, OP_input, &t, &a, 1, none);
}
#define INPUT(s, name, ...)                                                                        \
    input(s, name, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (int64_t[]){__VA_ARGS__})

/* Sums are computed in f32 and rounded at the end, as the precision pass writes them. */
static val_id up(struct maker *s, val_id v) {
    return s->t == DT_bf16 ? build_cast(s->g, v, DT_f32, none) : v;
}
static val_id down(struct maker *s, val_id v) {
    return s->t == DT_bf16 ? build_cast(s->g, v, DT_bf16, none) : v;
}
static val_id add(struct maker *s, val_id a, val_id b) {
    return build_2(s->g, OP_add, a, b, none);
}
static val_id product(struct maker *s, const char *a, const char *b) {
    return build_matmul(s->g, INPUT(s, a, s->m, s->k), INPUT(s, b, s->n, s->k), false, true, none);
}
static void output(struct maker *s, const char *name, val_id v) {
    graph_add_output(s->g, name, v);
}

/* ---- forms ------------------------------------------------------------------------------------
 */
static void make_scale(struct maker *s) {
    output(s, "y", down(s, build_scale(s->g, up(s, product(s, "a", "b")), 0.5, none)));
}
static void make_bias(struct maker *s) {
    val_id p = build_scale(s->g, up(s, product(s, "a", "b")), 0.25, none);
    output(s, "y", down(s, add(s, p, up(s, INPUT(s, "bias", s->n)))));
}
static void make_residual(struct maker *s) {
    val_id h = add(s, up(s, product(s, "a", "b")), up(s, INPUT(s, "bias", 1, s->n)));
    output(s, "y", down(s, add(s, up(s, INPUT(s, "r", s->m, s->n)), h)));
}
static void make_batch(struct maker *s) {
    val_id p = build_matmul(s->g, INPUT(s, "a", 3, s->m, s->k), INPUT(s, "b", s->k, s->n), false,
                            false, none);
    val_id h = add(s, up(s, p), up(s, INPUT(s, "bias", s->n)));
    output(s, "y", down(s, add(s, h, up(s, INPUT(s, "r", 3, s->m, s->n)))));
}
/* Every bit of the result is read by a group that can add the bias for nothing. */
static void make_group_follows(struct maker *s) {
    val_id h = add(s, up(s, product(s, "a", "b")), up(s, INPUT(s, "bias", s->n)));
    output(s, "y", down(s, build_1(s->g, OP_tanh, h, none)));
}
/* The other addend would have to be written first. */
static void make_group_before(struct maker *s) {
    val_id r = build_1(s->g, OP_tanh, up(s, INPUT(s, "r", s->m, s->n)), none);
    output(s, "y", down(s, add(s, up(s, product(s, "a", "b")), r)));
}
static void make_repeated(struct maker *s) {
    val_id p = build_matmul(s->g, INPUT(s, "a", 3, s->m, s->k), INPUT(s, "b", s->k, s->n), false,
                            false, none);
    output(s, "y", down(s, add(s, up(s, p), up(s, INPUT(s, "r", s->m, s->n)))));
}
static void make_accumulate(struct maker *s) {
    val_id sum = add(s, up(s, product(s, "a", "b")), up(s, product(s, "c", "d")));
    output(s, "y", add(s, sum, up(s, product(s, "e", "f"))));
}
static void make_wide(struct maker *s) {
    output(s, "y", up(s, product(s, "a", "b")));
}
/* The sum is stored for what comes later: two products, and one group between them. */
static void make_stream(struct maker *s) {
    val_id x = INPUT(s, "r", s->m, s->n);
    struct attr a[] = {{.key = ATTR_axis, .i = 1}, {.key = ATTR_eps, .f = 0.5}};
    for (int i = 0; i < 2; i++) {
        val_id p, wide = up(s, x);
        if (i) {
            val_id normal = down(s, graph_add(s->g, OP_layer_norm, &wide, 1, a, 2, none));
            p = build_matmul(s->g, normal, INPUT(s, "w", s->n, s->n), false, false, none);
        } else {
            p = product(s, "a", "b");
        }
        x = down(s, add(s, up(s, x), up(s, p)));
    }
    output(s, "y", x);
}
/* Used twice: the product itself has to be there. */
static void make_shared(struct maker *s) {
    val_id p = product(s, "a", "b");
    output(s, "y", down(s, add(s, up(s, p), up(s, INPUT(s, "bias", s->n)))));
    output(s, "z", p);
}

/* The argument of GELU and GELU of it. */
static val_id argument(struct maker *s) {
    return down(s, add(s, up(s, product(s, "a", "b")), up(s, INPUT(s, "bias", s->n))));
}
static val_id gelu(struct maker *s, val_id x, bool approximate) {
    struct attr a = {.key = ATTR_approximate, .i = approximate};
    x = up(s, x);
    return down(s, graph_add(s->g, OP_gelu, &x, 1, &a, 1, none));
}
static void make_gelu(struct maker *s) {
    output(s, "y", gelu(s, argument(s), true));
}
static void make_gelu_batch(struct maker *s) {
    val_id p = build_matmul(s->g, INPUT(s, "a", 2, s->m, s->k), INPUT(s, "b", s->k, s->n), false,
                            false, none);
    output(s, "y", gelu(s, p, true));
}
static void make_gelu_kept(struct maker *s) {
    val_id x = argument(s);
    output(s, "y", gelu(s, x, true));
    output(s, "z", x);
}
static void make_gelu_exact(struct maker *s) {
    output(s, "y", gelu(s, argument(s), false));
}
static void make_gelu_residual(struct maker *s) {
    val_id x = add(s, up(s, product(s, "a", "b")), up(s, INPUT(s, "r", s->m, s->n)));
    output(s, "y", gelu(s, down(s, x), true));
}

static const struct form {
    const char *name;
    void (*make)(struct maker *s);
    uint32_t launches, products, operands; /* operands of the last product */
    bool f32_result, alias;                /* in bf16; a result takes over a residual's memory */
    bool in_eights;                        /* folded in bf16 where N and K are multiples of 8 */
} forms[] = {
    {"scale", make_scale, 1, 1, 2, false, false, false},
    {"bias", make_bias, 1, 1, 3, false, false, false},
    {"bias and residual", make_residual, 1, 1, 4, false, false, false},
    {"batches are rows", make_batch, 1, 1, 4, false, false, false},
    {"a group follows", make_group_follows, 2, 1, 2, false, false, false},
    {"a group before", make_group_before, 2, 1, 2, false, false, false},
    {"repeated addend", make_repeated, 2, 1, 2, false, false, false},
    {"accumulation", make_accumulate, 3, 3, 3, true, true, false},
    {"wide result", make_wide, 1, 1, 2, true, false, false},
    {"residual stream", make_stream, 3, 2, 3, false, false, false},
    {"two uses", make_shared, 2, 1, 2, false, false, false},
    {"gelu", make_gelu, 1, 1, 3, false, false, true},
    {"gelu without bias", make_gelu_batch, 1, 1, 2, false, false, true},
    {"gelu beside its argument", make_gelu_kept, 2, 1, 3, false, false, false},
    {"gelu by erf", make_gelu_exact, 2, 1, 2, false, false, false},
    {"gelu of a stream", make_gelu_residual, 2, 1, 2, false, false, false},
};

/* ---- values ------------------------------------------------------------------------------------
 */
/* Exact in bf16. */
static double value_of(const char *name, int64_t i) {
    return (double)((i * 37 + name[0] * 13) % 101 - 50) / 64;
}

static const double *run(struct test_env *t, struct graph *g, bool no_fusion, struct plan **plan,
                         int64_t *n) {
    struct codegen_options o = {.threads = 2, .no_fusion = no_fusion};
    struct cpu_exec *x = NULL;
    ck_assert_msg(graph_verify(g, "test") == ST_OK && plan_build(g, &o, plan) == ST_OK, "%s",
                  t->log);
    const struct plan *p = *plan;
    struct pool *pool = pool_create(&t->ctx, 2);
    ck_assert_msg(cpu_create(&t->ctx, p, pool, &x) == ST_OK, "%s", t->log);
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *k = &p->buffers.at[b];
        size_t size = dtype_size(k->type.dtype);
        if (k->kind != BUF_INPUT) continue;
        for (int64_t i = 0; i < type_count(&k->type); i++)
            dtype_store(k->type.dtype, (char *)cpu_buffer_at(x, (buf_id){b}) + (size_t)i * size,
                        value_of(interned(&p->strings, k->name), i));
    }
    ck_assert_msg(cpu_run(x, 0, p->launches.n, true) == ST_OK, "%s", t->log);
    *n = 0;
    for (uint32_t b = 1; b < p->buffers.n; b++)
        if (p->buffers.at[b].kind == BUF_OUTPUT) *n += type_count(&p->buffers.at[b].type);
    double *got = ARENA_ARRAY(&t->arena, double, (size_t)*n), *to = got;
    for (uint32_t i = 0; i < g->outputs.n; i++) { /* one after the other */
        const char *name = interned(&g->strings, g->outputs.at[i].name);
        const struct type *y = &p->buffers.at[plan_find(p, BUF_OUTPUT, name).i].type;
        const char *at = cpu_buffer(x, BUF_OUTPUT, name);
        for (int64_t k = 0; k < type_count(y); k++)
            *to++ = dtype_load(y->dtype, at + (size_t)k * dtype_size(y->dtype));
    }
    cpu_destroy(x);
    pool_destroy(pool);
    return got;
}

static void check_shape(const struct form *f, const struct plan *p, enum dtype t) {
    uint32_t products = 0, aliases = 0;
    const struct plan_launch *last = NULL;
    for (uint32_t i = 0; i < p->launches.n; i++) {
        if (p->launches.at[i].kind != LAUNCH_matmul) continue;
        last = &p->launches.at[i];
        products++;
    }
    for (uint32_t b = 1; b < p->buffers.n; b++) aliases += p->buffers.at[b].alias.i != 0;
    ck_assert_msg(p->launches.n == f->launches && products == f->products,
                  "%s: %u launches, %u products", f->name, p->launches.n, products);
    ck_assert_msg(last->nin == f->operands, "%s: %u operands", f->name, last->nin);
    ck_assert_msg(!f->alias || aliases > 0, "%s: nothing is in place", f->name);
    bool group = f->operands == 2 && f->launches > f->products;
    enum dtype want = t == DT_bf16 && f->f32_result ? DT_f32 : t;
    ck_assert_msg(group || last->out[0].dtype == want, "%s: result is %s", f->name,
                  dtype_name(last->out[0].dtype));
}

static void check_form(const struct form *f, enum dtype t, const int64_t size[3]) {
    const double *y[3];
    struct plan *p[3] = {NULL, NULL, NULL};
    struct graph *g[3];
    int64_t n = 0;
    struct test_env e;
    test_begin(&e);
    TEST_LANDING(&e);
    for (int i = 0; i < 3; i++) { /* fused, one node at a time, in f64 */
        struct maker s = {graph_create(&e.ctx, f->name), i == 2 ? DT_f64 : t, size[0], size[1],
                          size[2]};
        g[i] = s.g;
        f->make(&s);
        y[i] = run(&e, s.g, i > 0, &p[i], &n);
    }
    bool folds_here = !f->in_eights || (t == DT_bf16 && size[1] % 8 == 0 && size[2] % 8 == 0);
    if (size[0] > 1 && size[1] > 1 && folds_here) check_shape(f, p[0], t);
    if (!folds_here) ck_assert_uint_eq(p[0]->launches.n, 2);
    for (uint32_t i = 0; i < p[1]->launches.n; i++)
        ck_assert_uint_le(p[1]->launches.at[i].nin,
                          2 + (p[1]->launches.at[i].kind != LAUNCH_matmul));
    double largest = 0.25, unit = t == DT_bf16 ? 0x1p-8 : 0x1p-22;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(y[2][i]));
    bool once = t == DT_bf16; /* rounded once: half a unit */
    for (uint32_t i = 0; i < p[0]->launches.n; i++)
        once &= p[0]->launches.at[i].kind == LAUNCH_matmul;
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            double tolerance =
                once && k == 0 ? unit * fabs(y[2][i]) + 1e-5 * largest : 8 * unit * largest;
            ck_assert_msg(fabs(y[k][i] - y[2][i]) <= tolerance,
                          "%s of %s, %s: element %lld is %g, expected %g", f->name, dtype_name(t),
                          k ? "unfused" : "fused", (long long)i, y[k][i], y[2][i]);
        }
    for (int i = 0; i < 3; i++) plan_destroy(p[i]), graph_destroy(g[i]);
    test_end(&e);
}

START_TEST(folds) {
    static const int64_t sizes[][3] = {
        {17, 129, 3}, {3, 17, 127},   {127, 3, 17},     {1, 17, 129}, {129, 1, 17},
        {1, 1, 1},    {300, 700, 65}, {129, 127, 1030}, {17, 24, 40}, {300, 1544, 72}};
    bool few = getenv("LATHE_TEST_SHORT") != NULL; /* sanitizers see the same code at any size */
    for (size_t i = 0; i < (few ? 2 : sizeof sizes / sizeof sizes[0]); i++) {
        check_form(&forms[_i], DT_f32, sizes[i]);
        check_form(&forms[_i], DT_bf16, sizes[i]);
    }
}
END_TEST

/* A launch with GELU as text and back, and what it does not go together with. */
START_TEST(gelu_rules) {
    struct test_env e;
    test_begin(&e);
    TEST_LANDING(&e);
    struct maker s = {graph_create(&e.ctx, "gelu"), DT_bf16, 17, 24, 40};
    struct codegen_options o = {.threads = 1, .cuda_arch = 90};
    struct plan *p = NULL, *again = NULL;
    struct buf text;
    make_gelu(&s);
    ck_assert_msg(plan_build(s.g, &o, &p) == ST_OK, "%s", e.log);
    buf_init(&text, &e.arena);
    plan_print(p, &text);
    ck_assert_ptr_ne(strstr(text.at, "gelu = true"), NULL);
    ck_assert_msg(plan_parse(&e.ctx, text.at, text.n, "text", &again) == ST_OK, "%s", e.log);
    ck_assert(plan_equal(p, again));
    plan_destroy(again);
    struct plan_launch *l = &p->launches.at[p->launches.n - 1];
    const struct plan_launch good = *l;
    const struct attr *attrs = l->attrs;
    struct attr more[3];
    ck_assert_int_eq(l->nattrs, 2);
    for (int k = 0; k < 2; k++) more[k] = attrs[k];
    more[2] = (struct attr){.key = ATTR_add, .i = true};
    l->attrs = more, l->nattrs = 3;
    ck_assert(plan_verify(p, "test") == ST_INTERNAL);
    *l = good;
    for (int wrong = 0; wrong < 3; wrong++) {
        struct plan_view in[3], out = good.out[0];
        for (int k = 0; k < 3; k++) in[k] = good.in[k];
        l->in = in, l->out = &out;
        if (wrong == 0) /* N */
            out.dims[1] = in[1].dims[1] = in[2].dims[0] = 23;
        else if (wrong == 1) /* K */
            in[0].dims[1] = in[1].dims[0] = 33;
        else /* lines that are not aligned */
            in[1].offset = 4, in[1].dims[1] = out.dims[1] = in[2].dims[0] = 16;
        ck_assert_msg(plan_verify(p, "test") == ST_INTERNAL, "case %d", wrong);
        *l = good;
    }
    ck_assert_msg(plan_verify(p, "test") == ST_OK, "%s", e.log);
    plan_destroy(p);
    graph_destroy(s.g);
    test_end(&e);
}
END_TEST

int main(void) {
    Suite *s = suite_create("products");
    TCase *tc = tcase_create("products");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, folds, 0, (int)(sizeof forms / sizeof forms[0]));
    tcase_add_test(tc, gelu_rules);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
