// SPDX-License-Identifier: Apache-2.0
/* import_control.c - If, Loop and Scan. All are settled at import: the branch taken becomes part of
 * the graph, and a loop of known length is written out step by step. What depends on data at run
 * time is refused. */
#include "frontend/importer.h"
#include <string.h>

enum { STEPS_MAX = 1024 };

/* One copy of a body for the given inputs; false after a failure or a refusal inside it. */
static bool run_body(struct importer *im, const struct inode *n, const Onnx__GraphProto *g,
                     const uint32_t *ins, int nin, uint32_t *outs, int nout) {
    struct nodelist *list = ARENA_NEW(im->a, struct nodelist);
    im->st = flatten_subgraph(im, n, g, ins, nin, list, outs, nout);
    if (failed(im)) return false;
    lower_nodes(im, list);
    im->n = n;
    im->refused = false;
    return !failed(im);
}

/* An output of the node is a value of a body. */
static void hand_out(struct importer *im, const struct inode *n, int k, uint32_t v) {
    if (!has_out(n, k)) return;
    struct ivalue *from = iv(im, v), *to = iv(im, n->out[k]);
    const char *name = to->name;
    const struct inode *producer = to->producer;
    *to = *from;
    to->name = name;
    to->producer = producer;
}

/* What an operand is inside a body: itself, or a weight as this node reads it. */
static uint32_t carried_in(struct importer *im, const struct inode *n, int k) {
    if (!has_in(n, k)) return 0;
    const struct ivalue *x = iv(im, n->in[k]);
    if (!x->weight || !dtype_is_float(x->type.dtype)) return n->in[k];
    const char *name = x->name;
    return value_new(im, name, get(im, n, k));
}

void h_if(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const int64_t *c;
    int64_t count;
    if (!known_numbers(im, n, 0, &c, &count) || count != 1) {
        refuse(im, "a condition that is computed at run time");
        return;
    }
    const Onnx__AttributeProto *a = node_attr(n, c[0] ? "then_branch" : "else_branch");
    if (!a || !a->g) {
        reject(im, ST_PARSE, "the branch is missing");
        return;
    }
    uint32_t *outs = ARENA_ARRAY(im->a, uint32_t, (size_t)n->nout);
    if (!run_body(im, n, a->g, NULL, 0, outs, n->nout)) return;
    for (int i = 0; i < n->nout; i++) hand_out(im, n, i, outs[i]);
}

/* ---- loops --------------------------------------------------------------------------------- */
struct loop {
    const Onnx__GraphProto *body;
    int states, scans; /* carried values; results stacked over the steps */
    int64_t steps;
    uint32_t *in, *out;  /* of the body */
    int nin, nout, lead; /* lead: outputs of the body before the states */
    val_id *parts;       /* scans x steps */
};

/* Read what step `t` gives to the stacked results; false when the body broke. */
static bool keep_step(struct importer *im, struct loop *l, int64_t t) {
    for (int k = 0; k < l->nout; k++)
        if (iv(im, l->out[k])->kind == VK_BROKEN) {
            im->refused = true; /* noted where it happened */
            return false;
        }
    for (int k = 0; k < l->scans; k++)
        l->parts[(int64_t)k * STEPS_MAX + t] =
            read_value(im, l->out[l->lead + l->states + k], (struct onnx_use){NODE_INNER, 0});
    return !failed(im);
}

static bool loop_body(struct importer *im, const struct inode *n, struct loop *l, int nin) {
    const Onnx__AttributeProto *a = node_attr(n, "body");
    if (!a || !a->g) {
        reject(im, ST_PARSE, "the body is missing");
        return false;
    }
    l->body = a->g;
    l->nin = nin;
    l->nout = (int)a->g->n_output;
    l->scans = l->nout - l->lead - l->states;
    if ((int)a->g->n_input != nin || l->states < 0 || l->scans < 0 ||
        n->nout > l->states + l->scans) {
        reject(im, ST_PARSE, "the body has %zu inputs and %zu outputs, which does not fit the node",
               a->g->n_input, a->g->n_output);
        return false;
    }
    l->in = ARENA_ARRAY(im->a, uint32_t, (size_t)nin);
    l->out = ARENA_ARRAY(im->a, uint32_t, (size_t)l->nout);
    l->parts = ARENA_ARRAY(im->a, val_id, (size_t)l->scans * STEPS_MAX);
    return true;
}

static void stack(struct importer *im, const struct inode *n, struct loop *l, int k, int64_t axis,
                  bool reverse) {
    int slot = l->states + k;
    if (!has_out(n, slot) || failed(im)) return;
    if (l->steps == 0) {
        refuse(im, "stacking the results of no steps");
        return;
    }
    val_id *step = ARENA_ARRAY(im->a, val_id, (size_t)l->steps);
    int rank = ty(im, l->parts[(int64_t)k * STEPS_MAX]).rank + 1;
    if (!axis_fix(im, &axis, rank)) return;
    for (int64_t t = 0; t < l->steps; t++)
        step[reverse ? l->steps - 1 - t : t] =
            unsqueeze(im, l->parts[(int64_t)k * STEPS_MAX + t], (int)axis);
    set_out(im, n, slot, concat(im, step, (int)l->steps, (int)axis));
}

/* ---- Scan ---------------------------------------------------------------------------------- */
static int64_t list_at(const struct inode *n, const char *name, int k) {
    int count;
    const int64_t *at = node_ints(n, name, &count);
    return at && k < count ? at[k] : 0;
}

/* Scanned axes and the number of steps that all agree on. */
static bool scan_steps(struct importer *im, const struct inode *n, struct loop *l, int scanned,
                       int64_t *axes) {
    l->steps = -1;
    for (int k = 0; k < scanned; k++) {
        struct type t = in_type(im, n, l->states + k);
        axes[k] = list_at(n, "scan_input_axes", k);
        if (!axis_fix(im, &axes[k], t.rank)) return false;
        dim size = t.dims[axes[k]];
        if (!dim_known(size) || size > STEPS_MAX) {
            refuse(im, "a symbolic number of steps, or more than %d", STEPS_MAX);
            return false;
        }
        if (l->steps >= 0 && size != l->steps) {
            reject(im, ST_SHAPE, "scanned inputs of %lld and %lld steps", (long long)l->steps,
                   (long long)size);
            return false;
        }
        l->steps = size;
    }
    return true;
}

void h_scan(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    int64_t scanned = node_int(n, "num_scan_inputs", 0), axes[64];
    struct loop l = {.states = n->nin - (int)scanned};
    if (n->opset < 9) {
        refuse(im, "the batched form of opset 8");
        return;
    }
    if (scanned < 1 || scanned > n->nin || scanned > 64) {
        reject(im, ST_PARSE, "num_scan_inputs is %lld", (long long)scanned);
        return;
    }
    if (!loop_body(im, n, &l, n->nin) || !scan_steps(im, n, &l, (int)scanned, axes)) return;
    val_id *x = ARENA_ARRAY(im->a, val_id, (size_t)scanned);
    for (int k = 0; k < scanned; k++) x[k] = get(im, n, l.states + k);
    for (int k = 0; k < l.states; k++) l.in[k] = carried_in(im, n, k);
    for (int64_t t = 0; t < l.steps && !failed(im); t++) {
        for (int k = 0; k < scanned; k++) {
            int64_t at = list_at(n, "scan_input_directions", k) ? l.steps - 1 - t : t;
            val_id step = slice_axis(im, x[k], (int)axes[k], at, 1);
            l.in[l.states + k] = value_new(im, "", squeeze(im, step, (int)axes[k]));
        }
        if (failed(im) || !run_body(im, n, l.body, l.in, l.nin, l.out, l.nout)) return;
        if (!keep_step(im, &l, t)) return;
        memcpy(l.in, l.out, (size_t)l.states * sizeof *l.in);
    }
    if (failed(im)) return;
    for (int k = 0; k < l.states; k++) hand_out(im, n, k, l.in[k]);
    for (int k = 0; k < l.scans; k++)
        stack(im, n, &l, k, list_at(n, "scan_output_axes", k),
              list_at(n, "scan_output_directions", k) != 0);
}

/* ---- Loop ---------------------------------------------------------------------------------- */
/* The one flag that a value is known to hold; false when it is not known. */
static bool known_flag(struct importer *im, uint32_t v, bool *flag) {
    const struct ivalue *x = iv(im, v);
    if (x->kind != VK_TENSOR || !x->ints || type_count(&x->type) != 1 || x->ints[0].sym)
        return false;
    *flag = x->ints[0].v != 0;
    return true;
}

/* Step number `t` as a value of known content. */
static uint32_t step_number(struct importer *im, int64_t t) {
    uint32_t v = value_new(im, "", VAL_NONE);
    struct type i = type_scalar(DT_i64);
    struct num *x = ARENA_ARRAY(im->a, struct num, 1);
    *x = num_plain(t);
    known_set_ints(im, v, &i, x);
    return v;
}

void h_loop(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const int64_t *trips = NULL;
    int64_t count, most = INT64_MAX;
    struct loop l = {.states = n->nin > 2 ? n->nin - 2 : 0, .lead = 1};
    bool go = true, asked = has_in(n, 1);
    if (has_in(n, 0)) {
        if (!known_numbers(im, n, 0, &trips, &count) || count != 1) {
            refuse(im, "a trip count that is computed at run time");
            return;
        }
        most = trips[0];
    }
    if (!loop_body(im, n, &l, l.states + 2)) return;
    if (asked && !known_flag(im, n->in[1], &go)) {
        refuse(im, "a condition that is computed at run time");
        return;
    }
    for (int k = 0; k < l.states; k++) l.in[2 + k] = carried_in(im, n, 2 + k);
    struct type one = type_scalar(DT_bool);
    struct num *yes = ARENA_ARRAY(im->a, struct num, 1);
    *yes = num_plain(1);
    l.in[1] = asked ? n->in[1] : value_new(im, "", VAL_NONE);
    if (!asked) known_set_ints(im, l.in[1], &one, yes);
    for (l.steps = 0; go && l.steps < most; l.steps++) {
        if (l.steps == STEPS_MAX) {
            refuse(im, "more than %d steps", STEPS_MAX);
            return;
        }
        l.in[0] = step_number(im, l.steps);
        if (!run_body(im, n, l.body, l.in, l.nin, l.out, l.nout)) return;
        if (!keep_step(im, &l, l.steps)) return;
        if ((asked || !has_in(n, 0)) && !known_flag(im, l.out[0], &go)) {
            refuse(im, "a condition that is computed at run time");
            return;
        }
        l.in[1] = l.out[0];
        memcpy(l.in + 2, l.out + 1, (size_t)l.states * sizeof *l.in);
    }
    for (int k = 0; k < l.states; k++) hand_out(im, n, k, l.in[2 + k]);
    for (int k = 0; k < l.scans; k++) stack(im, n, &l, k, 0, false);
}
