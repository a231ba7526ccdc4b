// SPDX-License-Identifier: Apache-2.0
/* import_training.c - handlers of optimizer steps: Adam, Adagrad and Momentum of
 * ai.onnx.preview.training, whose inputs are a rate, a count, then the tensors, their gradients and
 * one or two moments of each. Every Adam is op `adam`, so that later passes know it; decay that
 * comes after the step, Adagrad and Momentum are written out. Formulas: ONNX operator specification
 * (which adds epsilon to sqrt(v) before the bias of v is taken out, unlike PyTorch). ONNX Runtime's
 * optimizers are in import_ort_training.c. */
#include "frontend/importer.h"

enum step { STEP_ADAM, STEP_ADAGRAD, STEP_MOMENTUM };
enum { FIRST = 2 }; /* of the tensors, behind rate and count */

struct update {
    struct importer *im;
    const struct inode *n;
    int count;       /* tensors */
    enum dtype t;    /* of all of them */
    val_id rate, at; /* R in type t, T as i64: scalars */
};

/* Moment k of tensor i (0 tensor, 1 gradient, 2 and 3 moments). */
static val_id operand(const struct update *u, int k, int i) {
    return get(u->im, u->n, FIRST + k * u->count + i);
}

static val_id add(const struct update *u, val_id a, val_id b) {
    return op_2(u->im, OP_add, a, b);
}

static val_id mul(const struct update *u, val_id a, val_id b) {
    return op_2(u->im, OP_mul, a, b);
}

val_id one_number(struct importer *im, const struct inode *n, int k, const char *what) {
    val_id v = get(im, n, k);
    if (failed(im)) return VAL_NONE;
    struct type t = ty(im, v);
    if (type_count(&t) != 1) {
        reject(im, ST_SHAPE, "%s must be one number", what);
        return VAL_NONE;
    }
    return reshape(im, v, NULL, 0);
}

val_id adam_step(struct importer *im, const struct adam_form *f, const val_id in[6],
                 val_id next[3]) {
    const struct attr attrs[] = {
        {.key = ATTR_beta1, .f = f->beta1},
        {.key = ATTR_beta2, .f = f->beta2},
        {.key = ATTR_eps, .f = f->eps},
        {.key = ATTR_weight_decay, .f = f->weight_decay},
        {.key = ATTR_decoupled, .i = f->decoupled},
        {.key = ATTR_eps_hat, .i = f->eps_hat},
    };
    val_id y = add_node(im, OP_adam, in, 6, attrs, (int)(sizeof attrs / sizeof *attrs));
    for (int k = 0; k < 3; k++) next[k] = y.i ? val_at(y, k) : VAL_NONE;
    return next[0];
}

/* Tensor i, its gradient and moments: of one type that the optimizers compute in. */
static bool check_tensor(const struct update *u, int groups, int i) {
    struct type first = in_type(u->im, u->n, FIRST + i);
    if (failed(u->im)) return false;
    for (int k = 0; k < groups; k++) {
        struct type t = in_type(u->im, u->n, FIRST + k * u->count + i);
        if ((t.dtype == DT_f32 || t.dtype == DT_f64) && type_equal(&t, &first)) continue;
        reject(u->im, ST_TYPE,
               "tensor %d, its gradient and moments must be of one type, float or double", i);
        return false;
    }
    return true;
}

static bool open(struct update *u, struct importer *im, const struct inode *n, int groups) {
    *u = (struct update){.im = im, .n = n, .count = (n->nin - FIRST) / groups};
    if (n->nin < FIRST + groups || (n->nin - FIRST) % groups != 0) {
        reject(im, ST_USAGE, "%d inputs, expected 2 and %d for each tensor", n->nin, groups);
        return false;
    }
    if (n->nout > (groups - 1) * u->count) {
        reject(im, ST_USAGE, "%d outputs for %d tensors", n->nout, u->count);
        return false;
    }
    u->t = in_type(im, n, FIRST).dtype;
    for (int i = 0; i < u->count; i++) {
        if (!check_tensor(u, groups, i)) return false;
        if (in_type(im, n, FIRST + i).dtype == u->t) continue;
        refuse(im, "tensors of several element types");
        return false;
    }
    u->rate = cast_to(im, one_number(im, n, 0, "R"), u->t);
    u->at = one_number(im, n, 1, "T");
    if (!failed(im) && ty(im, u->at).dtype != DT_i64) reject(im, ST_TYPE, "T must be an int64");
    return !failed(im);
}

/* norm_coefficient * X + G */
static val_id regularized(const struct update *u, int i) {
    double norm = node_float(u->n, "norm_coefficient", 0);
    val_id g = operand(u, 1, i);
    return norm != 0 ? add(u, scale_by(u->im, operand(u, 0, i), norm), g) : g;
}

static void results(const struct update *u, int i, val_id x, val_id a, val_id b) {
    if (has_out(u->n, i)) set_out(u->im, u->n, i, x);
    if (has_out(u->n, u->count + i)) set_out(u->im, u->n, u->count + i, a);
    if (b.i && has_out(u->n, 2 * u->count + i)) set_out(u->im, u->n, 2 * u->count + i, b);
}

static void adam(const struct update *u) {
    double post = node_float(u->n, "norm_coefficient_post", 0);
    const struct adam_form f = {
        .beta1 = node_float(u->n, "alpha", 0.9f),
        .beta2 = node_float(u->n, "beta", 0.999f),
        .eps = node_float(u->n, "epsilon", 1e-6f),
        .weight_decay = node_float(u->n, "norm_coefficient", 0),
        .eps_hat = true,
    };
    for (int i = 0; i < u->count && !failed(u->im); i++) {
        val_id in[6] = {operand(u, 0, i), operand(u, 1, i), operand(u, 2, i),
                        operand(u, 3, i), u->rate,          u->at};
        val_id next[3], x = adam_step(u->im, &f, in, next);
        results(u, i, post != 0 ? scale_by(u->im, x, 1 - post) : x, next[1], next[2]);
    }
}

static void adagrad(const struct update *u) {
    struct importer *im = u->im;
    double decay = node_float(u->n, "decay_factor", 0), eps = node_float(u->n, "epsilon", 1e-6);
    val_id at = cast_to(im, u->at, u->t);
    val_id rate = op_2(im, OP_div, u->rate, shift_by(im, scale_by(im, at, decay), 1));
    for (int i = 0; i < u->count && !failed(im); i++) {
        val_id g = regularized(u, i), h = add(u, operand(u, 2, i), mul(u, g, g));
        val_id root = shift_by(im, op_1(im, OP_sqrt, h), eps);
        val_id step = op_2(im, OP_div, mul(u, rate, g), root);
        results(u, i, op_2(im, OP_sub, operand(u, 0, i), step), h, VAL_NONE);
    }
}

static void momentum(const struct update *u) {
    struct importer *im = u->im;
    double alpha = node_float(u->n, "alpha", 0), beta = node_float(u->n, "beta", 0);
    bool nesterov = node_str_is(u->n, "mode", "nesterov");
    if (!nesterov && !node_str_is(u->n, "mode", "standard")) {
        reject(im, ST_USAGE, "mode must be 'standard' or 'nesterov'");
        return;
    }
    val_id first = op_2(im, OP_le, u->at, scalar_int(im, DT_i64, 0));
    val_id factor = op_3(im, OP_where, first, scalar(im, u->t, 1), scalar(im, u->t, beta));
    for (int i = 0; i < u->count && !failed(im); i++) {
        val_id g = regularized(u, i);
        val_id v = add(u, scale_by(im, operand(u, 2, i), alpha), mul(u, factor, g));
        val_id way = nesterov ? add(u, g, scale_by(im, v, alpha)) : v;
        results(u, i, op_2(im, OP_sub, operand(u, 0, i), mul(u, u->rate, way)), v, VAL_NONE);
    }
}

void h_optimizer_step(struct importer *im, const struct inode *n, int step) {
    struct update u;
    if (!open(&u, im, n, step == STEP_ADAM ? 4 : 3)) return;
    switch ((enum step)step) {
    case STEP_ADAM: adam(&u); break;
    case STEP_ADAGRAD: adagrad(&u); break;
    case STEP_MOMENTUM: momentum(&u); break;
    }
}
