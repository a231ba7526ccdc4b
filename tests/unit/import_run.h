// SPDX-License-Identifier: Apache-2.0
/* import_run.h - what an imported model computes: the passes, a plan, and runs on the CPU. */
#ifndef LATHE_TEST_IMPORT_RUN_H
#define LATHE_TEST_IMPORT_RUN_H

#include "codegen/codegen.h"
#include "driver/pipeline.h"
#include "import_util.h"
#include "runtime/cpu.h"

struct run {
    struct arena scratch;
    struct graph *g;
    struct plan *p;
    struct pool *pool;
    struct cpu_exec *e;
};

/* Of the graph that was imported last (R.graph, which stays as it is). */
static inline void run_start(struct run *r, bool training, const struct recipe *recipe) {
    struct train_options t = {.label_type = {.rank = -1}, .accumulate = 1};
    arena_init(&r->scratch, &env.ctx);
    struct pass_ctx pc = {.ctx = &env.ctx,
                          .scratch = &r->scratch,
                          .eval = pipeline_eval,
                          .train = training ? &t : NULL,
                          .recipe = recipe};
    struct pipeline_options po = {.training = training, .verify = true};
    struct codegen_options cg = {.threads = 1};
    r->g = graph_clone(R.graph);
    enum status st = pipeline_run(&pc, r->g, &po);
    if (st == ST_OK) st = plan_build(r->g, &cg, &r->p);
    ck_assert_msg(st == ST_OK, "plan: %s", env.log);
    r->pool = pool_create(&env.ctx, 1);
    st = cpu_create(&env.ctx, r->p, r->pool, &r->e);
    ck_assert_msg(st == ST_OK, "cpu: %s", env.log);
}

static inline void *run_memory(struct run *r, enum buffer_kind kind, const char *name) {
    buf_id b = plan_find(r->p, kind, name);
    ck_assert_msg(b.i != 0, "no buffer %s", name);
    return cpu_buffer_at(r->e, b);
}

static inline size_t run_bytes(struct run *r, enum buffer_kind kind, const char *name) {
    return (size_t)r->p->buffers.at[plan_find(r->p, kind, name).i].bytes;
}

static inline enum status run_once(struct run *r) {
    return cpu_run(r->e, 0, r->p->launches.n, false);
}

/* Frees the model as well. */
static inline void run_stop(struct run *r) {
    cpu_destroy(r->e);
    pool_destroy(r->pool);
    plan_destroy(r->p);
    graph_destroy(r->g);
    arena_reset(&r->scratch);
    done();
}

#endif
