// SPDX-License-Identifier: Apache-2.0
/* test_memory.c - offsets and lifetimes: nothing that lives at one time overlaps, little is wasted,
 * and plan_verify notices when a plan is damaged. */
#include "codegen/codegen.h"
#include "gpt_graph.h"
#include "test_util.h"

static const struct codegen_options fused = {.threads = 2},
                                    plain = {.threads = 2, .no_fusion = true};

static buf_id add_temp(struct plan *p, int64_t bytes, uint32_t first, uint32_t last) {
    struct plan_buffer b = {
        .kind = BUF_TEMP, .use = USE_ACTIVATIONS, .bytes = bytes, .first = first, .last = last};
    b.type = (struct type){.dtype = DT_u8, .rank = 1, .dims = {bytes}};
    vec_push(&p->arena, &p->buffers, b);
    return (buf_id){p->buffers.n - 1};
}

/* The most bytes (rounded to 64) that are live at one time: no placement can do better. */
static int64_t lower_bound(const struct plan *p, uint32_t launches) {
    int64_t best = 0;
    for (uint32_t k = 0; k < launches; k++) {
        int64_t now = 0;
        for (uint32_t b = 1; b < p->buffers.n; b++) {
            const struct plan_buffer *x = &p->buffers.at[b];
            if (buffer_arena(x->kind) != ARENA_STEP || x->alias.i != 0) continue;
            if (x->first <= k && k <= x->last) now += (x->bytes + 63) / 64 * 64;
        }
        if (now > best) best = now;
    }
    return best;
}

static void check_apart(const struct plan *p, bool unique) {
    for (uint32_t a = 1; a < p->buffers.n; a++)
        for (uint32_t b = a + 1; b < p->buffers.n; b++) {
            const struct plan_buffer *x = &p->buffers.at[a], *y = &p->buffers.at[b];
            if (!unique && (x->last < y->first || y->last < x->first)) continue;
            ck_assert_msg(x->offset + x->bytes <= y->offset || y->offset + y->bytes <= x->offset,
                          "buffers %u and %u overlap", a, b);
        }
}

START_TEST(offsets_by_hand) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *p = plan_create(&t.ctx, "hand");
    buf_id a = add_temp(p, 100, 0, 1), b = add_temp(p, 1000, 1, 2), c = add_temp(p, 100, 2, 3);
    buf_id d = add_temp(p, 500, 3, 4);
    ck_assert_int_eq(plan_memory(p, false), ST_OK);
    ck_assert_int_eq(p->buffers.at[b.i].offset, 0); /* largest first */
    ck_assert_int_eq(p->buffers.at[d.i].offset, 0);
    ck_assert_int_eq(p->buffers.at[a.i].offset, 1024);
    ck_assert_int_eq(p->buffers.at[c.i].offset, 1024);
    ck_assert_int_eq(p->arena_bytes[ARENA_STEP], 1024 + 128);
    ck_assert_int_eq(plan_memory(p, true), ST_OK);
    ck_assert_int_eq(p->arena_bytes[ARENA_STEP], 128 + 1024 + 128 + 512);
    check_apart(p, true);
    p->buffers.at[c.i].alias = b; /* c takes over b's memory */
    p->buffers.at[b.i].last = 3;
    ck_assert_int_eq(plan_memory(p, false), ST_OK);
    ck_assert_int_eq(p->buffers.at[c.i].offset, p->buffers.at[b.i].offset);
    plan_destroy(p);
    test_end(&t);
}
END_TEST

static void random_round(uint64_t seed) {
    volatile uint64_t s = seed;
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *p = plan_create(&t.ctx, "random");
    for (int k = 0; k < 120; k++) {
        uint32_t r[3];
        for (int j = 0; j < 3; j++) {
            s = s * UINT64_C(6364136223846793005) + 99;
            r[j] = (uint32_t)(s >> 33);
        }
        uint32_t first = r[0] % 60;
        add_temp(p, 1 + r[1] % 5000, first, first + r[2] % 12);
    }
    ck_assert_int_eq(plan_memory(p, false), ST_OK);
    check_apart(p, false);
    int64_t least = lower_bound(p, 72);
    ck_assert_int_ge(p->arena_bytes[ARENA_STEP], least);
    ck_assert_int_le(p->arena_bytes[ARENA_STEP], least + least / 2);
    plan_destroy(p);
    test_end(&t);
}

START_TEST(random_lifetimes) {
    for (uint64_t round = 0; round < 30; round++) random_round(round * 7919 + 1);
}
END_TEST

static struct plan *small_plan(struct test_env *t, const struct codegen_options *o) {
    struct graph *g = gpt_graph(&t->ctx, (struct gpt_size){2, 8, 16, 2, 3, 40}, true, NULL);
    struct plan *p = NULL;
    ck_assert_msg(plan_build(g, o, &p) == ST_OK, "%s", t->log);
    graph_destroy(g); /* initial values are gone: the plan must not be run */
    for (uint32_t b = 1; b < p->buffers.n; b++) p->buffers.at[b].init.data = NULL;
    return p;
}

START_TEST(gpt_fits_closely) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *p = small_plan(&t, &fused), *q = small_plan(&t, &plain);
    int64_t least = lower_bound(p, p->launches.n);
    ck_assert_int_le(p->arena_bytes[ARENA_STEP], least + least / 10);
    ck_assert_int_lt(p->arena_bytes[ARENA_STEP], q->arena_bytes[ARENA_STEP] / 3);
    struct plan_usage u = plan_usage(p);
    int64_t sum = 0;
    for (int k = 0; k < USE_COUNT; k++) sum += u.bytes[k];
    ck_assert_int_eq(u.peak_step, p->arena_bytes[ARENA_STEP]);
    ck_assert_uint_lt(u.peak_launch, p->launches.n);
    ck_assert_int_le(sum, plan_bytes(p));
    ck_assert_int_gt(u.bytes[USE_WEIGHTS], 0);
    ck_assert_int_eq(plan_bytes(p), p->arena_bytes[0] + p->arena_bytes[1] + p->arena_bytes[2]);
    plan_destroy(p);
    plan_destroy(q);
    test_end(&t);
}
END_TEST

/* Damage one thing at a time; each must be found and named. */
static void expect_fault(struct test_env *t, struct plan *p, const char *words) {
    t->log[0] = '\0';
    ck_assert_int_eq(plan_verify(p, "test"), ST_INTERNAL);
    ck_assert_msg(strstr(t->log, words) != NULL, "expected '%s', found: %s", words, t->log);
}

static uint32_t find_launch(const struct plan *p, enum launch_kind kind) {
    for (uint32_t k = 0; k < p->launches.n; k++)
        if (p->launches.at[k].kind == kind) return k;
    ck_abort_msg("no %s", launch_name(kind));
    return 0;
}

START_TEST(damage_is_found) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct plan *p = small_plan(&t, &fused);
    ck_assert_int_eq(plan_verify(p, "test"), ST_OK);
    struct plan_launch *m = &p->launches.at[find_launch(p, LAUNCH_matmul)];
    struct plan_view view = m->in[0];
    m->in[0].offset += 1;
    expect_fault(&t, p, "outside buffer");
    m->in[0] = view;
    m->in[0].dims[0]--;
    expect_fault(&t, p, "shapes do not fit");
    m->in[0] = view;
    m->in[0].strides[0] = m->in[0].strides[1] = 0;
    expect_fault(&t, p, "no matrix layout");
    m->in[0] = view;
    buf_id out = m->out[0].buffer;
    struct plan_buffer saved = p->buffers.at[out.i];
    p->buffers.at[out.i].offset = p->buffers.at[view.buffer.i].offset;
    expect_fault(&t, p, "share memory");
    p->buffers.at[out.i] = saved;
    p->buffers.at[out.i].offset += 4;
    expect_fault(&t, p, "do not fit its arena");
    p->buffers.at[out.i] = saved;
    p->buffers.at[out.i].last = p->buffers.at[out.i].first;
    expect_fault(&t, p, "lives from");
    p->buffers.at[out.i] = saved;
    m->out[0].buffer = plan_find(p, BUF_PARAM, "h.0.attn.c_attn.weight");
    expect_fault(&t, p, "before the first update");
    m->out[0].buffer = out;

    struct plan_launch *l = &p->launches.at[find_launch(p, LAUNCH_group)];
    struct plan_group *g = &p->groups.at[l->group.i];
    struct group_instr *last = &g->code.at[g->code.n - 1];
    int32_t a = last->a;
    last->a = (int32_t)g->code.n - 1;
    expect_fault(&t, p, "operand");
    last->a = a;
    last->slot = 99;
    expect_fault(&t, p, "slot");
    last->slot = (int32_t)l->nout - 1;
    g->mode = GROUP_MAP;
    expect_fault(&t, p, "reduction in a MAP group");
    g->mode = GROUP_TAIL;
    expect_fault(&t, p, "TAIL group uses its reductions");
    g->mode = GROUP_ROW;
    l->nin--;
    expect_fault(&t, p, "slot");
    l->nin++;
    p->launches.at[0].out[0].buffer = plan_find(p, BUF_OUTPUT, "loss");
    expect_fault(&t, p, "outside buffer");
    plan_destroy(p);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("memory");
    TCase *tc = tcase_create("memory");
    tcase_add_test(tc, offsets_by_hand);
    tcase_add_test(tc, random_lifetimes);
    tcase_add_test(tc, gpt_fits_closely);
    tcase_add_test(tc, damage_is_found);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
