// SPDX-License-Identifier: Apache-2.0
/* optimizer.c - turns the gradients of pass_grad into one optimizer step: accumulation over
 * micro-batches, global norm and clipping, SGD or Adam(W) by PyTorch's formulas, and the updates
 * that bind the results to params and states.
 *
 * Sources it adds: input "lr" (f32[], role lr); state "step" (i64[], role step: updates done so
 * far); "NAME.m" and "NAME.v", or "NAME.buf", for each trained param. With accumulate = K > 1 also
 * "NAME.acc" and the counter "micro_step": every K-th run applies the sum of the last K gradients
 * (each weighted 1/K by pass_grad), the other runs change nothing but these two. Then "grad_norm"
 * and the dumped gradients are those of the sum so far. A name that is taken gets a suffix; find by
 * role. */
#include "base/diag.h"
#include "passes/pass.h"
#include <string.h>

struct weight {
    val_id w, grad;
    const char *name;
    str_id o;
};
struct opt {
    struct ctx *ctx;
    struct graph *g;
    struct arena *scratch;
    const struct train_options *t;
    VEC(struct weight) weights;
    val_id lr, step; /* step: the number of this update, from 1 */
    val_id update;   /* bool[]: this run ends an accumulation; VAL_NONE: every run does */
    str_id o;        /* origin of what belongs to no param: none */
};

/* ---- sources ------------------------------------------------------------------------------- */
static bool taken(const struct graph *g, enum op op, const char *name) {
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (g->nodes.at[i].op == op && strcmp(attr_str(g, (node_id){i}, ATTR_name), name) == 0)
            return true;
    return false;
}

static val_id add_source(struct opt *x, enum op op, const struct type *t, const char *name,
                         const char *role, str_id o) {
    const char *unique = name;
    for (int k = 1; taken(x->g, op, unique); k++)
        unique = arena_printf(x->scratch, "%s.%d", name, k);
    struct attr attrs[2] = {{.key = ATTR_name, .s = unique}, {.key = ATTR_role, .s = role}};
    val_id v = graph_source(x->g, op, t, attrs, 2, o);
    graph_set_name(x->g, v, unique);
    return v;
}

static val_id add_state(struct opt *x, const struct weight *w, const char *suffix) {
    struct type t = *val_type(x->g, w->w);
    const char *name = arena_printf(x->scratch, "%s.%s", w->name, suffix);
    return add_source(x, OP_state, &t, name, "optimizer", w->o);
}

/* `target` becomes `next` when this run ends an accumulation. */
static void bind(struct opt *x, val_id target, val_id next, str_id o) {
    if (x->update.i) next = build_3(x->g, OP_where, x->update, next, target, o);
    graph_add_update(x->g, target, next);
}

/* ---- gradients ----------------------------------------------------------------------------- */
static bool take_output(struct opt *x, const char *name, val_id *out) {
    struct graph *g = x->g;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        if (strcmp(interned(&g->strings, g->outputs.at[i].name), name) != 0) continue;
        *out = graph_resolve(g, g->outputs.at[i].value);
        g->outputs.n--;
        memmove(&g->outputs.at[i], &g->outputs.at[i + 1],
                (g->outputs.n - i) * sizeof g->outputs.at[0]);
        return true;
    }
    return false;
}

static enum status collect(struct opt *x) {
    struct graph *g = x->g;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        node_id n = {i};
        if (graph_node(g, n)->op != OP_param || attr_bool(g, n, ATTR_frozen)) continue;
        struct weight w = {.w = node_out(g, n, 0),
                           .name = attr_str(g, n, ATTR_name),
                           .o = graph_node(g, n)->origin};
        if (!dtype_is_float(val_type(g, w.w)->dtype)) continue;
        if (!take_output(x, arena_printf(x->scratch, "grad/%s", w.name), &w.grad))
            return diag_error(
                x->ctx, ST_USAGE, node_origin(g, n),
                "parameter '%s' has no gradient output 'grad/%s'; differentiate first", w.name,
                w.name);
        vec_push(x->scratch, &x->weights, w);
    }
    if (x->weights.n > 0) return ST_OK;
    return diag_error(x->ctx, ST_USAGE, "",
                      "the graph has no parameter to train: all are frozen or constant");
}

static void accumulate(struct opt *x) {
    struct graph *g = x->g;
    struct type i64 = type_scalar(DT_i64);
    if (x->t->accumulate <= 1) return;
    val_id micro = add_source(x, OP_state, &i64, "micro_step", "optimizer", x->o);
    val_id next = build_2(g, OP_add, micro, build_scalar_int(g, DT_i64, 1, x->o), x->o);
    val_id last = build_scalar_int(g, DT_i64, x->t->accumulate, x->o);
    x->update = build_2(g, OP_eq, next, last, x->o);
    val_id zero = build_scalar_int(g, DT_i64, 0, x->o);
    graph_add_update(g, micro, build_3(g, OP_where, x->update, zero, next, x->o));
    for (uint32_t i = 0; i < x->weights.n; i++) {
        struct weight *w = &x->weights.at[i];
        val_id acc = add_state(x, w, "acc");
        w->grad = build_2(g, OP_add, acc, w->grad, w->o);
        val_id none = build_scalar(g, val_type(g, acc)->dtype, 0.0, w->o);
        graph_add_update(g, acc, build_3(g, OP_where, x->update, none, w->grad, w->o));
    }
}

/* What v is a widened copy of, or v: its squares in f32 are the same. */
static val_id before_widening(const struct graph *g, val_id v) {
    if (val_op(g, v) != OP_cast || val_type(g, v)->dtype != DT_f32) return v;
    val_id x = node_in(g, val_def(g, v), 0);
    return dtype_is_float(val_type(g, x)->dtype) && dtype_size(val_type(g, x)->dtype) < 4 ? x : v;
}

/* sqrt(sum of g^2 over all parameters), f32[]. */
static val_id global_norm(struct opt *x) {
    enum { AT_ONCE = 4096 };
    struct graph *g = x->g;
    val_id *all = ARENA_ARRAY(x->scratch, val_id, x->weights.n);
    for (uint32_t i = 0; i < x->weights.n; i++) all[i] = before_widening(g, x->weights.at[i].grad);
    val_id sum = VAL_NONE;
    for (uint32_t i = 0; i < x->weights.n; i += AT_ONCE) {
        uint32_t n = x->weights.n - i < AT_ONCE ? x->weights.n - i : AT_ONCE;
        val_id part = graph_add(g, OP_sum_squares, all + i, (int)n, NULL, 0, x->o);
        sum = sum.i ? build_2(g, OP_add, sum, part, x->o) : part;
    }
    return build_1(g, OP_sqrt, sum, x->o);
}

/* PyTorch's clip_grad_norm_: g * min(1, clip / (norm + 1e-6)). */
static void clip(struct opt *x, val_id norm) {
    struct graph *g = x->g;
    val_id k = build_2(g, OP_div, build_scalar(g, DT_f32, x->t->clip, x->o),
                       build_shift(g, norm, 1e-6, x->o), x->o);
    k = build_2(g, OP_min, k, build_scalar(g, DT_f32, 1.0, x->o), x->o);
    for (uint32_t i = 0; i < x->weights.n; i++) {
        struct weight *w = &x->weights.at[i];
        val_id factor = build_cast(g, k, val_type(g, w->grad)->dtype, w->o);
        w->grad = build_2(g, OP_mul, w->grad, factor, w->o);
    }
}

/* ---- steps --------------------------------------------------------------------------------- */
static void step_adam(struct opt *x, const struct weight *w) {
    const struct train_options *t = x->t;
    val_id m = add_state(x, w, "m"), v = add_state(x, w, "v");
    struct attr attrs[5] = {
        {.key = ATTR_beta1, .f = t->beta1},
        {.key = ATTR_beta2, .f = t->beta2},
        {.key = ATTR_eps, .f = t->eps},
        {.key = ATTR_weight_decay, .f = t->weight_decay},
        {.key = ATTR_decoupled, .i = t->optimizer == OPT_ADAMW},
    };
    val_id in[6] = {w->w, w->grad, m, v, x->lr, x->step};
    val_id out = graph_add(x->g, OP_adam, in, 6, attrs, 5, w->o);
    bind(x, w->w, out, w->o);
    bind(x, m, val_at(out, 1), w->o);
    bind(x, v, val_at(out, 2), w->o);
}

static void step_momentum(struct opt *x, const struct weight *w) {
    const struct train_options *t = x->t;
    val_id buf = add_state(x, w, "buf");
    struct attr attrs[4] = {
        {.key = ATTR_momentum, .f = t->momentum},
        {.key = ATTR_dampening, .f = t->dampening},
        {.key = ATTR_weight_decay, .f = t->weight_decay},
        {.key = ATTR_nesterov, .i = t->nesterov},
    };
    val_id in[5] = {w->w, w->grad, buf, x->lr, x->step};
    val_id out = graph_add(x->g, OP_sgd, in, 5, attrs, 4, w->o);
    bind(x, w->w, out, w->o);
    bind(x, buf, val_at(out, 1), w->o);
}

/* w - lr*(g + decay*w) */
static void step_plain(struct opt *x, const struct weight *w) {
    struct graph *g = x->g;
    val_id d = w->grad, lr = build_cast(g, x->lr, val_type(g, w->w)->dtype, w->o);
    if (x->t->weight_decay != 0.0)
        d = build_2(g, OP_add, d, build_scale(g, w->w, x->t->weight_decay, w->o), w->o);
    bind(x, w->w, build_2(g, OP_sub, w->w, build_2(g, OP_mul, lr, d, w->o), w->o), w->o);
}

static enum status check_options(struct pass_ctx *c) {
    const struct train_options *t = c->train;
    if (!t) return diag_error(c->ctx, ST_USAGE, "", "an optimizer needs training options");
    bool momentum = t->momentum != 0.0;
    if (t->optimizer == OPT_SGD && t->nesterov && (!momentum || t->dampening != 0.0))
        return diag_error(c->ctx, ST_USAGE, "",
                          "Nesterov momentum needs a momentum above 0 and no dampening");
    if (t->accumulate < 1)
        return diag_error(
            c->ctx, ST_USAGE, "",
            "the number of micro-batches for each update must be 1 or more, found %lld",
            (long long)t->accumulate);
    if (!(t->clip >= 0.0) || !(t->weight_decay >= 0.0) || !(t->momentum >= 0.0) ||
        !(t->dampening >= 0.0))
        return diag_error(c->ctx, ST_USAGE, "",
                          "clip, weight decay, momentum and dampening must not be negative");
    if (t->optimizer == OPT_SGD) return ST_OK;
    if (!(t->beta1 >= 0.0 && t->beta1 < 1.0 && t->beta2 >= 0.0 && t->beta2 < 1.0) ||
        !(t->eps >= 0.0))
        return diag_error(c->ctx, ST_USAGE, "",
                          "Adam's betas must be at least 0 and below 1 and eps not negative, found "
                          "%g, %g and %g",
                          t->beta1, t->beta2, t->eps);
    return ST_OK;
}

static void dump_gradients(struct opt *x) {
    for (uint32_t i = 0; x->t->dump_grads && i < x->weights.n; i++)
        graph_add_output(x->g, arena_printf(x->scratch, "grad/%s", x->weights.at[i].name),
                         x->weights.at[i].grad);
}

/* The graph brought its step along: only the norm is added. */
static enum status own_step(struct opt *x) {
    if (x->t->accumulate > 1 || x->t->clip > 0.0)
        return diag_error(x->ctx, ST_USAGE, "",
                          "the model brings its own training step, which cannot be clipped or "
                          "spread over micro-batches from outside");
    diag_note(x->ctx, "",
              "the model brings its own loss and optimizer; options for these are not used");
    dump_gradients(x);
    graph_add_output(x->g, "grad_norm", global_norm(x));
    graph_settle(x->g);
    return ST_OK;
}

enum status pass_optimizer(struct pass_ctx *c, struct graph *g) {
    TRY(check_options(c));
    struct opt x = {.ctx = c->ctx, .g = g, .scratch = c->scratch, .t = c->train};
    struct type f32 = type_scalar(DT_f32), i64 = type_scalar(DT_i64);
    TRY(collect(&x));
    if (graph_trains_itself(g)) return own_step(&x);
    x.lr = add_source(&x, OP_input, &f32, "lr", "lr", x.o);
    val_id step = add_source(&x, OP_state, &i64, "step", "step", x.o);
    x.step = build_2(g, OP_add, step, build_scalar_int(g, DT_i64, 1, x.o), x.o);
    accumulate(&x);
    bind(&x, step, x.step, x.o);
    dump_gradients(&x);
    val_id norm = global_norm(&x);
    graph_add_output(g, "grad_norm", norm);
    if (x.t->clip > 0.0) clip(&x, norm);
    for (uint32_t i = 0; i < x.weights.n; i++) {
        const struct weight *w = &x.weights.at[i];
        if (x.t->optimizer != OPT_SGD)
            step_adam(&x, w);
        else if (x.t->momentum != 0.0)
            step_momentum(&x, w);
        else
            step_plain(&x, w);
    }
    graph_settle(g);
    return ST_OK;
}
