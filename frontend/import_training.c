// SPDX-License-Identifier: Apache-2.0
/* import_training.c - handlers of ai.onnx.preview.training: steps of Adam, Adagrad and Momentum
 * over several tensors at once, written out in elementwise ops by the formulas of the ONNX operator
 * specification (which divides by sqrt(v) + epsilon before the bias of v is taken out, unlike
 * PyTorch). Not Gradient: Lathe differentiates itself. Inputs are R, T, then the tensors, their
 * gradients and one or two moments of each; outputs the new tensors and moments. */
#include "frontend/importer.h"

enum step { STEP_ADAM, STEP_ADAGRAD, STEP_MOMENTUM };
enum { FIRST = 2 }; /* of the tensors, behind rate and count */

struct update {
    struct importer *im;
    const struct inode *n;
    int count;        /* tensors */
    enum dtype t;     /* of all of them */
    val_id rate, at;  /* R, and T as a number of type t: scalars */
    val_id first_run; /* T == 0 */
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

/* One number, whatever its rank, in type t. */
static val_id as_scalar(const struct update *u, val_id v, const char *what) {
    struct type t = ty(u->im, v);
    if (failed(u->im)) return VAL_NONE;
    if (type_count(&t) != 1) {
        reject(u->im, ST_SHAPE, "%s must be one number", what);
        return VAL_NONE;
    }
    return cast_to(u->im, reshape(u->im, v, NULL, 0), u->t);
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
    for (int i = 0; i < u->count; i++)
        for (int k = 0; k < groups; k++) {
            struct type t = in_type(im, n, FIRST + k * u->count + i),
                        first = in_type(im, n, FIRST + i);
            if (failed(im)) return false;
            if (!dtype_is_float(first.dtype) || !type_equal(&t, &first)) {
                reject(im, ST_TYPE,
                       "tensor %d, its gradient and moments must be of one floating-point type", i);
                return false;
            }
        }
    u->t = in_type(im, n, FIRST).dtype;
    for (int i = 1; i < u->count; i++)
        if (in_type(im, n, FIRST + i).dtype != u->t) {
            refuse(im, "tensors of several element types");
            return false;
        }
    u->rate = as_scalar(u, get(im, n, 0), "R");
    u->at = as_scalar(u, get(im, n, 1), "T");
    if (failed(im)) return false;
    u->first_run = op_2(im, OP_le, u->at, scalar(im, u->t, 0));
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

/* 1 - base^T */
static val_id unbias(const struct update *u, double base) {
    val_id power = op_2(u->im, OP_pow, scalar(u->im, u->t, base), u->at);
    return op_2(u->im, OP_sub, scalar(u->im, u->t, 1), power);
}

static void adam(const struct update *u) {
    struct importer *im = u->im;
    double alpha = node_float(u->n, "alpha", 0.9), beta = node_float(u->n, "beta", 0.999);
    double eps = node_float(u->n, "epsilon", 1e-6);
    double post = node_float(u->n, "norm_coefficient_post", 0);
    val_id biased = op_2(im, OP_div, op_1(im, OP_sqrt, unbias(u, beta)), unbias(u, alpha));
    val_id rate = op_3(im, OP_where, u->first_run, u->rate, mul(u, u->rate, biased));
    for (int i = 0; i < u->count && !failed(im); i++) {
        val_id g = regularized(u, i);
        val_id v = add(u, scale_by(im, operand(u, 2, i), alpha), scale_by(im, g, 1 - alpha));
        val_id h =
            add(u, scale_by(im, operand(u, 3, i), beta), scale_by(im, mul(u, g, g), 1 - beta));
        val_id root = shift_by(im, op_1(im, OP_sqrt, h), eps);
        val_id step = mul(u, rate, op_2(im, OP_div, v, root));
        val_id x = op_2(im, OP_sub, operand(u, 0, i), step);
        results(u, i, post != 0 ? scale_by(im, x, 1 - post) : x, v, h);
    }
}

static void adagrad(const struct update *u) {
    struct importer *im = u->im;
    double decay = node_float(u->n, "decay_factor", 0), eps = node_float(u->n, "epsilon", 1e-6);
    val_id rate = op_2(im, OP_div, u->rate, shift_by(im, scale_by(im, u->at, decay), 1));
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
    val_id factor = op_3(im, OP_where, u->first_run, scalar(im, u->t, 1), scalar(im, u->t, beta));
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
