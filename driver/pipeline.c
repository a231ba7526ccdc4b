// SPDX-License-Identifier: Apache-2.0
/* pipeline.c - THE pass table, in the order of the data, and the services around each pass. A
 * reader who knows this table knows the compiler. */
#include "driver/pipeline.h"
#include "base/diag.h"
#include "base/pool.h"
#include "base/sys.h"
#include "codegen/codegen.h"
#include "runtime/cpu.h"
#include <string.h>

// clang-format off
static const struct pass_info passes[] = {
/*   name         function         when         idempotent  what it does */
    {"fold",      pass_fold,       PASS_ALWAYS, true,  "evaluate what depends on constants only"},
    {"simplify",  pass_simplify,   PASS_ALWAYS, true,  "algebraic identities, merged and cancelled movement"},
    {"fold2",     pass_fold,       PASS_ALWAYS, true,  "evaluate constants that turned out to be small, such as masks of a batch"},
    {"recognise", pass_recognise,  PASS_ALWAYS, true,  "find norms, GELU, SiLU and attention in decomposed exports"},
    {"cse",       pass_cse,        PASS_ALWAYS, true,  "compute equal things once"},
    {"loss",      pass_loss,       PASS_LOSS,   false, "append the loss"},
    {"precision", pass_precision,  PASS_ALWAYS, false, "make the recipe's roundings explicit"},
    {"gradient",  pass_gradient,   PASS_ALWAYS, false, "write out gradients that the model itself asks for"},
    {"grad",      pass_grad,       PASS_TRAIN,  false, "reverse-mode differentiation by ordinary ops"},
    {"optimizer", pass_optimizer,  PASS_TRAIN,  false, "append clipping, optimizer steps and state updates"},
    {"optimizer_states", pass_optimizer_states, PASS_TRAIN, false, "8-bit m and v where the recipe asks for them"},
    {"simplify2", pass_simplify,   PASS_TRAIN,  true,  "clean up what differentiation left behind"},
    {"cse2",      pass_cse,        PASS_TRAIN,  true,  "share what forward and backward both compute"},
    {"chunk_loss", pass_chunk_loss, PASS_LOSS,  true,  "score and differentiate logits in chunks of rows"},
    {"granularity", pass_granularity, PASS_ALWAYS, false, "products on 8-bit operands: which ones, what shares a scale"},
    {"save",      pass_save,       PASS_TRAIN,  true,  "compute cheap values again for the backward part"},
    {"save_quantized", pass_save_quantized, PASS_TRAIN, false, "keep what nonlinear ops read again as 8-bit codes"},
    {"save_codes", pass_save_codes, PASS_TRAIN,  true,  "make operands of products again from what is kept"},
    {"dce",       pass_dce,        PASS_ALWAYS, true,  "drop what no output and no update needs"},
};
static const struct pass_order orders[] = {
    {"fold",      "simplify",  "rules look for constants that folding uncovers"},
    {"simplify",  "fold2",     "constants that repeat along a batch are held, and computed with, once"},
    {"fold2",     "recognise", "masks are recognised by their elements"},
    {"simplify",  "recognise", "patterns are written against the simplified form"},
    {"recognise", "grad",      "composites have better gradients than their pieces"},
    {"loss",      "grad",      "there is nothing to differentiate before"},
    {"loss",      "precision", "the loss is told from the model, and reads what is rounded"},
    {"precision", "grad",      "gradients follow the types of the values"},
    {"precision", "gradient",  "gradients follow the types of the values"},
    {"loss",      "gradient",  "a model's own loss is what it differentiates"},
    {"gradient",  "grad",      "gradients that the model has are not made again"},
    {"grad",      "optimizer", "the optimizer consumes the gradients"},
    {"optimizer", "optimizer_states", "it rewrites the steps"},
    {"optimizer_states", "cse2", "states of one type only are told apart by their names"},
    {"optimizer", "simplify2", "clipping and decay leave scalars to merge"},
    {"simplify2", "cse2",      "equal nodes are only equal once they are in one form"},
    {"cse2",      "dce",       "merged nodes leave dead ones"},
    {"grad",      "chunk_loss", "a chunk is scored and differentiated in one go"},
    {"cse2",      "chunk_loss", "forward and backward must name the same operands"},
    {"chunk_loss", "dce",      "what was cut is dead"},
    {"cse2",      "save",      "merging equal nodes would undo it"},
    {"precision", "granularity", "it is bf16 operands that become 8-bit codes"},
    {"optimizer_states", "granularity", "products are known by the parameters that they update"},
    {"chunk_loss", "granularity", "chunks are cut from products as they are"},
    {"save",      "save_quantized", "what is computed again is not kept, in whatever format"},
    {"save_quantized", "save_codes", "chains begin at what is kept"},
    {"granularity", "save",    "of operands of products, codes are kept"},
    {"chunk_loss", "save",     "what is scored in chunks lies in the forward part"},
};
// clang-format on

const struct pass_info *pipeline_passes(int *n) {
    *n = (int)(sizeof passes / sizeof passes[0]);
    return passes;
}

const struct pass_order *pipeline_orders(int *n) {
    *n = (int)(sizeof orders / sizeof orders[0]);
    return orders;
}

const struct pass_info *pipeline_find(const char *name) {
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++)
        if (strcmp(passes[i].name, name) == 0) return &passes[i];
    return NULL;
}

static bool wanted(const struct pass_info *p, const struct pipeline_options *o) {
    if (p->when == PASS_TRAIN && !o->training) return false;
    if (p->when == PASS_LOSS && !o->training && !o->loss) return false;
    return !o->minimal || !p->idempotent;
}

enum status pipeline_run(struct pass_ctx *c, struct graph *g, const struct pipeline_options *o) {
    if (o->stop_after && strcmp(o->stop_after, "import") != 0 && !pipeline_find(o->stop_after))
        return diag_error(c->ctx, ST_USAGE, "", "no pass is called '%s'; `lathe passes` lists them",
                          o->stop_after);
    if (o->verify) TRY(graph_verify(g, "import"));
    if (o->observe) o->observe(o->observe_user, "import", g, 0);
    if (o->stop_after && strcmp(o->stop_after, "import") == 0) return ST_OK;
    for (size_t i = 0; i < sizeof passes / sizeof passes[0]; i++) {
        const struct pass_info *p = &passes[i];
        if (!wanted(p, o)) continue;
        double begin = sys_seconds();
        enum status st = p->run(c, g);
        arena_reset(c->scratch);
        if (st != ST_OK) return st;
        double seconds = sys_seconds() - begin;
        if (o->verify) TRY(graph_verify(g, p->name));
        if (o->observe) o->observe(o->observe_user, p->name, g, seconds);
        if (o->stop_after && strcmp(o->stop_after, p->name) == 0) break;
    }
    return ST_OK;
}

/* What an evaluation holds outside its scratch arena, which releases it also after an unwind. */
struct evaluation {
    struct plan *plan;
    struct pool *pool;
    struct cpu_exec *exec;
};

static void release_evaluation(void *ptr) {
    struct evaluation *e = ptr;
    cpu_destroy(e->exec);
    pool_destroy(e->pool);
    plan_destroy(e->plan);
    *e = (struct evaluation){0};
}

static enum status evaluate(struct evaluation *e, struct graph *g, struct arena *scratch,
                            const void **outputs) {
    struct codegen_options options = {.threads = 1};
    TRY(plan_build(g, &options, &e->plan));
    e->pool = pool_create(g->ctx, 1);
    if (!e->pool) return ST_INTERNAL;
    TRY(cpu_create(g->ctx, e->plan, e->pool, &e->exec));
    TRY(cpu_run(e->exec, 0, e->plan->launches.n, false));
    for (uint32_t k = 0; k < g->outputs.n; k++) {
        const struct graph_output *out = &g->outputs.at[k];
        size_t bytes = (size_t)type_bytes(val_type(g, out->value));
        void *copy = arena_alloc(scratch, bytes);
        const void *at = cpu_buffer(e->exec, BUF_OUTPUT, interned(&g->strings, out->name));
        if (bytes) memcpy(copy, at, bytes);
        outputs[k] = copy;
    }
    return ST_OK;
}

enum status pipeline_eval(void *user, struct graph *g, struct arena *scratch,
                          const void **outputs) {
    (void)user;
    struct evaluation *e = ARENA_NEW(scratch, struct evaluation);
    arena_defer(scratch, release_evaluation, e);
    enum status st = evaluate(e, g, scratch, outputs);
    release_evaluation(e); /* at once, not at the end of the pass */
    return st;
}
