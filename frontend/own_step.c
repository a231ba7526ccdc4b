// SPDX-License-Identifier: Apache-2.0
/* own_step.c - models that bring their own training step (ModelProto.training_info). In training,
 * its algorithm continues the main graph, and its update bindings become updates: what Gradient
 * differentiates by is a param, everything else that is bound a state. For inference the bindings
 * only say which constants are variables. The initialization is not run: variables begin as their
 * initializers. Rules: ONNX IR specification, section on training. Also the handler of Gradient. */
#include "frontend/importer.h"
#include <string.h>

/* ---- the step ----------------------------------------------------------------------------------
 */
enum status own_step_find(struct importer *im) {
    const Onnx__ModelProto *p = im->m->proto;
    if (!im->o->training || p->n_training_info == 0) return ST_OK;
    if (p->n_training_info > 1)
        return diag_error(im->ctx, ST_UNSUPPORTED, im->m->path,
                          "the model brings %zu training steps; only one is supported",
                          p->n_training_info);
    if (!p->training_info[0]->algorithm || p->training_info[0]->n_update_binding == 0)
        return diag_error(im->ctx, ST_UNSUPPORTED, im->m->path,
                          "the model's training_info has no algorithm or binds nothing to it");
    if (im->o->train_regex || im->o->freeze_regex)
        return diag_error(im->ctx, ST_USAGE, im->m->path,
                          "the model's own training step says what is trained; --train and "
                          "--freeze do not apply");
    im->step = p->training_info[0];
    return ST_OK;
}

bool own_step_rate(struct importer *im, const char *input) {
    if (!im->step) return false;
    const Onnx__GraphProto *g = im->step->algorithm;
    for (size_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        const struct handler *h = handler_find(n->domain, n->op_type);
        bool step = h && (h->fn == h_optimizer_step || h->fn == h_ort_adamw || h->fn == h_ort_sgd);
        if (step && n->n_input > 0 && strcmp(n->input[0], input) == 0) return true;
    }
    return false;
}

/* What the initializer holds is not what its readers will always see. */
static void forget_contents(struct importer *im) {
    for (uint32_t v = 1; v < im->values.n; v++) {
        struct ivalue *x = iv(im, v);
        if (!x->weight || !im->weights.at[x->weight - 1].next) continue;
        x->ints = NULL;
        x->floats = NULL;
    }
}

enum status own_step_bind(struct importer *im,
                          bool (*find)(struct importer *im, const struct scope *s, const char *name,
                                       uint32_t *v),
                          const struct scope *s) {
    const Onnx__ModelProto *p = im->m->proto;
    for (size_t i = 0; i < p->n_training_info; i++)
        for (size_t k = 0; k < p->training_info[i]->n_update_binding; k++) {
            const Onnx__StringStringEntryProto *b = p->training_info[i]->update_binding[k];
            uint32_t v, next;
            bool found = find(im, s, b->key, &v) && iv(im, v)->weight;
            struct weight *w = found ? &im->weights.at[iv(im, v)->weight - 1] : NULL;
            if (w && !w->constant) w->own = true;
            if (!im->step) continue;
            if (!w || w->constant || strcmp(w->t.name, b->key) != 0)
                return diag_error(im->ctx, ST_PARSE, b->key,
                                  "update_binding: expected the name of an initializer");
            if (w->next)
                return diag_error(im->ctx, ST_PARSE, b->key,
                                  "update_binding: the initializer is bound twice");
            if (!find(im, s, b->value, &next) || next == 0)
                return diag_error(im->ctx, ST_PARSE, b->key,
                                  "update_binding: nothing defines its new value '%s'", b->value);
            w->next = next;
        }
    forget_contents(im);
    return ST_OK;
}

/* ---- variables ---------------------------------------------------------------------------------
 */
/* Entry k of a list of names is `name`. */
static bool names(const struct inode *n, const char *attr, size_t k, const char *name) {
    const Onnx__AttributeProto *a = node_attr(n, attr);
    size_t len = strlen(name);
    return a && k < a->n_strings && len > 0 && a->strings[k].len == len &&
           memcmp(a->strings[k].data, name, len) == 0;
}

static size_t count_names(const struct inode *n, const char *attr) {
    const Onnx__AttributeProto *a = node_attr(n, attr);
    return a ? a->n_strings : 0;
}

static bool is_gradient(const struct inode *n) {
    return strcmp(n->op, "Gradient") == 0 && strcmp(n->domain, "ai.onnx.preview.training") == 0;
}

/* Gradient differentiates by it. */
static bool differentiated(const struct weight *w) {
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct wuse *u = &w->uses.at[i];
        if (is_gradient(u->n) && (size_t)u->slot < count_names(u->n, "xs")) return true;
    }
    return false;
}

bool own_step_judge(struct importer *im, struct weight *w, enum verdict *v) {
    bool real = dtype_is_float(w->t.type.dtype);
    if (!w->own || w->bound) return false;
    w->why = "changed by the model's own training step";
    if (im->step)
        *v = real && differentiated(w) ? W_TRAINED : W_STATE;
    else
        *v = real && w->uses.n > 0 ? W_TRAINED : W_CONST;
    return true;
}

enum status own_step_check(struct importer *im) {
    if (!im->step) return ST_OK;
    for (uint32_t i = 0; i < im->weights.n; i++)
        if (im->weights.at[i].next && im->weights.at[i].verdict == W_TRAINED) return ST_OK;
    return diag_error(im->ctx, ST_UNSUPPORTED, im->m->path,
                      "the model's own training step binds no initializer that a Gradient node "
                      "differentiates by");
}

/* A state that begins as zeros is told so, and may then be kept in another form. */
enum status own_step_state(struct importer *im, struct weight *w) {
    double x = 1;
    bool zero = weight_uniform(&w->t, &x) && x == 0;
    struct attr attrs[3] = {{.key = ATTR_name, .s = w->t.name},
                            {.key = ATTR_role, .s = "optimizer"},
                            {.key = ATTR_init}};
    if (!zero) attrs[2].blob = graph_blob(im->g, w->t.data, (size_t)type_bytes(&w->t.type), false);
    struct wgroup g = {.name = w->t.name};
    TRY(graph_try_source(im->g, OP_state, &w->t.type, attrs, zero ? 2 : 3, "", &g.param));
    graph_set_name(im->g, g.param, g.name);
    vec_push(im->a, &w->groups, g);
    return ST_OK;
}

static bool has_update(const struct graph *g, val_id target) {
    for (uint32_t i = 0; i < g->updates.n; i++)
        if (g->updates.at[i].target.i == target.i) return true;
    return false;
}

static enum status add_update(struct importer *im, struct weight *w) {
    struct inode here = {.op = "update_binding", .domain = "", .origin = w->t.name};
    im->n = &here;
    im->refused = false;
    val_id next = read_value(im, w->next, (struct onnx_use){NODE_INNER, 0});
    val_id target = w->groups.n ? w->groups.at[0].param : VAL_NONE;
    if (im->st == ST_OK) {
        struct type t = ty(im, next);
        if (!target.i || has_update(im->g, target))
            reject(im, ST_UNSUPPORTED, "the variable is updated in another way too");
        else if (!type_equal(&t, &w->t.type))
            reject(im, ST_TYPE, "the new value is not of the variable's type");
        else if (op_info(val_op(im->g, next))->traits & SOURCE)
            reject(im, ST_UNSUPPORTED, "the new value must be computed, not stored or given");
        else
            graph_add_update(im->g, target, next);
    }
    im->n = NULL;
    return im->st;
}

enum status own_step_updates(struct importer *im) {
    if (im->unsupported.n) return ST_OK; /* told later, and values are missing */
    for (uint32_t i = 0; i < im->weights.n; i++)
        if (im->weights.at[i].next) TRY(add_update(im, &im->weights.at[i]));
    return ST_OK;
}

/* ---- Gradient ----------------------------------------------------------------------------------
 */
/* Inputs are the values that xs and zs name, in this order, then y, which an attribute names. */
static bool check_gradient(struct importer *im, const struct inode *n, size_t nx) {
    size_t inputs = n->p->n_input, nz = count_names(n, "zs");
    if (nx == 0 || inputs != nx + nz || n->nin != (int)inputs + 1 || n->nout > (int)nx) {
        reject(im, ST_USAGE, "%zu inputs and %d outputs for %zu xs and %zu zs, or no y", inputs,
               n->nout, nx, nz);
        return false;
    }
    for (size_t i = 0; i < inputs; i++) {
        if (names(n, i < nx ? "xs" : "zs", i < nx ? i : i - nx, n->p->input[i])) continue;
        refuse(im, "derivatives elsewhere than at the values that it names");
        return false;
    }
    return true;
}

void h_gradient(struct importer *im, const struct inode *n, int arg) {
    size_t nx = count_names(n, "xs");
    (void)arg;
    if (!check_gradient(im, n, nx)) return;
    val_id y = get(im, n, n->nin - 1);
    for (size_t i = 0; i < nx && !failed(im); i++) {
        val_id x = get(im, n, (int)i);
        if (failed(im)) return;
        enum op op = val_op(im->g, x);
        if (op != OP_param && op != OP_state && op != OP_input) {
            refuse(im, "derivatives by what is computed or constant");
            return;
        }
        if (has_out(n, (int)i)) set_out(im, n, (int)i, op_2(im, OP_gradient, y, x));
    }
}
