// SPDX-License-Identifier: Apache-2.0
/* import_recurrent.c - layers with a state over time: CausalConvWithState, and RNN, GRU and LSTM
 * unrolled: the input's part of all steps is one product, then each step is a small product with
 * the state and elementwise gates. Formulas, gate order and layouts are those of the ONNX operator
 * specification. Sequence lengths freeze the state of a sample beyond its end and put zeros into Y
 * there. */
#include "frontend/importer.h"
#include <string.h>

enum { STEPS_MAX = 1024, GATES_MAX = 4, ACTS_MAX = 3 };
enum cell { RNN, GRU, LSTM };
enum squash { SIGMOID, TANH, RELU };

struct recurrent {
    enum cell cell;
    int gates, acts;
    int64_t steps, hidden;
    dim batch;
    double clip; /* 0: none */
    enum squash act[ACTS_MAX];
    bool coupled;     /* LSTM: the forget gate is one minus the input gate */
    bool reset_after; /* GRU: linear_before_reset */
    val_id x;         /* [T,B,I] */
    val_id lengths;   /* [B,1] or none */
};
struct direction {
    val_id xw;             /* [T,B,G*H]: input part with its bias */
    val_id r[GATES_MAX];   /* [H,H] by gate */
    val_id rb[GATES_MAX];  /* [H] by gate, or none */
    val_id peep[ACTS_MAX]; /* LSTM: [H] for input, output, forget, or none */
    val_id h, c;           /* state [B,H] */
};

static bool read_activations(struct importer *im, const struct inode *n, struct recurrent *r,
                             int dirs) {
    static const char *const names[] = {"Sigmoid", "Tanh", "Relu", NULL};
    const Onnx__AttributeProto *a = node_attr(n, "activations");
    for (int i = 0; i < r->acts; i++) r->act[i] = i == 0 && r->cell != RNN ? SIGMOID : TANH;
    if (!a) return true;
    if ((int)a->n_strings != r->acts * dirs) {
        reject(im, ST_SHAPE, "%zu activations, expected %d", a->n_strings, r->acts * dirs);
        return false;
    }
    for (int i = 0; i < r->acts * dirs; i++) {
        int k = 0;
        ProtobufCBinaryData s = a->strings[i];
        while (names[k] && (strlen(names[k]) != s.len || memcmp(names[k], s.data, s.len) != 0)) k++;
        if (!names[k]) {
            refuse(im, "activations other than Sigmoid, Tanh and Relu");
            return false;
        }
        if (i >= r->acts && r->act[i % r->acts] != (enum squash)k) {
            refuse(im, "different activations in the two directions");
            return false;
        }
        r->act[i % r->acts] = (enum squash)k;
    }
    return true;
}

static val_id squash(struct importer *im, const struct recurrent *r, int which, val_id x) {
    if (r->clip > 0) {
        enum dtype t = ty(im, x).dtype;
        x = op_3(im, OP_clip, x, scalar(im, t, -r->clip), scalar(im, t, r->clip));
    }
    enum op op[] = {OP_sigmoid, OP_tanh, OP_relu};
    return op_1(im, op[r->act[which]], x);
}

/* Part `d` of axis 0, without that axis. */
static val_id part_of(struct importer *im, val_id x, int d) {
    if (!failed(im) && ty(im, x).rank < 2)
        reject(im, ST_SHAPE, "weights and states must begin with the directions");
    return squeeze(im, slice_axis(im, x, 0, d, 1), 0);
}

static val_id block(struct importer *im, val_id x, int axis, int64_t k, int64_t size) {
    return slice_axis(im, x, axis, k * size, size);
}

/* [D,B,H], or [B,D,H] in the other layout, or zeros. */
static val_id first_state(struct importer *im, const struct inode *n, const struct recurrent *r,
                          int slot, int d) {
    dim shape[2] = {r->batch, r->hidden};
    if (!has_in(n, slot)) return full(im, ty(im, r->x).dtype, shape, 2, 0);
    val_id s = get(im, n, slot);
    if (node_int(n, "layout", 0)) s = swap_axes(im, s, 0, 1);
    return part_of(im, s, d);
}

static bool read_direction(struct importer *im, const struct inode *n, const struct recurrent *r,
                           int d, struct direction *out) {
    val_id w = part_of(im, get(im, n, 1), d), u = part_of(im, get(im, n, 2), d), b = VAL_NONE;
    int64_t h = r->hidden, all = h * r->gates;
    memset(out, 0, sizeof *out);
    if (failed(im)) return false;
    if (ty(im, w).rank != 2 || ty(im, u).rank != 2 || !dim_same(ty(im, w).dims[0], all) ||
        !dim_same(ty(im, u).dims[0], all) || !dim_same(ty(im, u).dims[1], h)) {
        reject(im, ST_SHAPE, "W and R must be [directions, %lld, ..]", (long long)all);
        return false;
    }
    dim input = ty(im, r->x).dims[2], rows = dim_times(im, r->steps, r->batch);
    dim flat[2] = {rows, input}, cube[3] = {r->steps, r->batch, all};
    out->xw = matmul(im, reshape(im, r->x, flat, 2), w, false, true);
    if (has_in(n, 3)) {
        b = part_of(im, get(im, n, 3), d);
        if (!failed(im) && !dim_same(ty(im, b).dims[0], 2 * all)) {
            reject(im, ST_SHAPE, "B must be [directions, %lld]", (long long)(2 * all));
            return false;
        }
        out->xw = op_2(im, OP_add, out->xw, block(im, b, 0, 0, all));
    }
    out->xw = reshape(im, out->xw, cube, 3);
    for (int g = 0; g < r->gates; g++) {
        out->r[g] = block(im, u, 0, g, h);
        if (b.i) out->rb[g] = block(im, b, 0, r->gates + g, h);
    }
    if (r->cell == LSTM && has_in(n, 7)) {
        val_id p = part_of(im, get(im, n, 7), d);
        for (int g = 0; g < 3; g++) out->peep[g] = block(im, p, 0, g, h);
    }
    out->h = first_state(im, n, r, 5, d);
    if (r->cell == LSTM) out->c = first_state(im, n, r, 6, d);
    return !failed(im);
}

/* state * R^T + bias for one gate */
static val_id state_part(struct importer *im, const struct direction *d, int g, val_id h) {
    val_id y = matmul(im, h, d->r[g], false, true);
    return d->rb[g].i ? op_2(im, OP_add, y, d->rb[g]) : y;
}

static val_id gate(struct importer *im, const struct recurrent *r, const struct direction *d,
                   val_id x, int g) {
    return op_2(im, OP_add, block(im, x, 1, g, r->hidden), state_part(im, d, g, d->h));
}

static val_id with_peephole(struct importer *im, val_id x, val_id p, val_id c) {
    return p.i ? op_2(im, OP_add, x, op_2(im, OP_mul, p, c)) : x;
}

static val_id one_minus(struct importer *im, val_id x) {
    return op_2(im, OP_sub, scalar(im, ty(im, x).dtype, 1), x);
}

/* Gates i, o, f, c. */
static void lstm_step(struct importer *im, const struct recurrent *r, const struct direction *d,
                      val_id x, val_id *h, val_id *c) {
    val_id i = squash(im, r, 0, with_peephole(im, gate(im, r, d, x, 0), d->peep[0], d->c));
    val_id f = r->coupled
                   ? one_minus(im, i)
                   : squash(im, r, 0, with_peephole(im, gate(im, r, d, x, 2), d->peep[2], d->c));
    val_id g = squash(im, r, 1, gate(im, r, d, x, 3));
    *c = op_2(im, OP_add, op_2(im, OP_mul, f, d->c), op_2(im, OP_mul, i, g));
    val_id o = squash(im, r, 0, with_peephole(im, gate(im, r, d, x, 1), d->peep[1], *c));
    struct recurrent free = *r;
    free.clip = 0; /* clips what goes into the gates, not the cell */
    *h = op_2(im, OP_mul, o, squash(im, &free, 2, *c));
}

/* Gates z, r, h. */
static val_id gru_step(struct importer *im, const struct recurrent *r, const struct direction *d,
                       val_id x) {
    val_id z = squash(im, r, 0, gate(im, r, d, x, 0));
    val_id reset = squash(im, r, 0, gate(im, r, d, x, 1)), part;
    if (r->reset_after)
        part = op_2(im, OP_mul, reset, state_part(im, d, 2, d->h));
    else
        part = state_part(im, d, 2, op_2(im, OP_mul, reset, d->h));
    val_id g = squash(im, r, 1, op_2(im, OP_add, block(im, x, 1, 2, r->hidden), part));
    return op_2(im, OP_add, op_2(im, OP_mul, one_minus(im, z), g), op_2(im, OP_mul, z, d->h));
}

/* All steps in one direction; y[t] is [B,H]. */
static void run_steps(struct importer *im, const struct recurrent *r, struct direction *d,
                      bool backwards, val_id *y) {
    for (int64_t i = 0; i < r->steps && !failed(im); i++) {
        int64_t t = backwards ? r->steps - 1 - i : i;
        val_id x = squeeze(im, slice_axis(im, d->xw, 0, t, 1), 0), h, c = d->c;
        if (r->cell == LSTM)
            lstm_step(im, r, d, x, &h, &c);
        else
            h = r->cell == GRU ? gru_step(im, r, d, x) : squash(im, r, 0, gate(im, r, d, x, 0));
        y[t] = h;
        if (r->lengths.i) {
            val_id live = op_2(im, OP_lt, scalar_int(im, DT_i64, t), r->lengths);
            y[t] = op_3(im, OP_where, live, h, scalar(im, ty(im, h).dtype, 0));
            h = op_3(im, OP_where, live, h, d->h);
            if (c.i) c = op_3(im, OP_where, live, c, d->c);
        }
        d->h = h;
        d->c = c;
    }
}

static bool read_node(struct importer *im, const struct inode *n, struct recurrent *r, int dirs) {
    struct type w = in_type(im, n, 2), t;
    r->gates = r->cell == LSTM ? 4 : r->cell == GRU ? 3 : 1;
    r->acts = r->cell == LSTM ? 3 : r->cell == GRU ? 2 : 1;
    r->clip = node_float(n, "clip", 0);
    r->coupled = node_int(n, "input_forget", 0) != 0;
    r->reset_after = node_int(n, "linear_before_reset", 0) != 0;
    r->x = get(im, n, 0);
    if (node_int(n, "layout", 0)) r->x = swap_axes(im, r->x, 0, 1);
    t = ty(im, r->x);
    if (failed(im)) return false;
    if (t.rank != 3 || w.rank != 3 || !dim_known(w.dims[2]) || w.dims[2] < 1 ||
        w.dims[2] > INT32_MAX) {
        reject(im, ST_SHAPE, "X must be [steps, batch, size] and R [directions, .., hidden]");
        return false;
    }
    if (!dim_known(t.dims[0]) || t.dims[0] > STEPS_MAX || t.dims[0] < 1) {
        refuse(im, "a symbolic number of steps, or one outside 1 to %d", STEPS_MAX);
        return false;
    }
    r->steps = t.dims[0];
    r->batch = t.dims[1];
    r->hidden = w.dims[2];
    if (has_in(n, 4)) r->lengths = unsqueeze(im, cast_to(im, get(im, n, 4), DT_i64), 1);
    return read_activations(im, n, r, dirs);
}

void h_recurrent(struct importer *im, const struct inode *n, int cell) {
    struct recurrent r = {.cell = (enum cell)cell};
    struct direction d[2];
    bool both = node_str_is(n, "direction", "bidirectional");
    bool backwards = node_str_is(n, "direction", "reverse");
    int dirs = both ? 2 : 1;
    bool batch_first = node_int(n, "layout", 0) != 0;
    if (!read_node(im, n, &r, dirs)) return;
    val_id *y = ARENA_ARRAY(im->a, val_id, (size_t)(r.steps * dirs)), h[2], c[2];
    for (int k = 0; k < dirs; k++) {
        if (!read_direction(im, n, &r, k, &d[k])) return;
        run_steps(im, &r, &d[k], k == 1 || backwards, y + k * r.steps);
        h[k] = unsqueeze(im, d[k].h, batch_first ? 1 : 0);
        if (d[k].c.i) c[k] = unsqueeze(im, d[k].c, batch_first ? 1 : 0);
    }
    if (failed(im)) return;
    /* Y is [T,D,B,H], or [B,T,D,H]. */
    val_id *step = ARENA_ARRAY(im->a, val_id, (size_t)r.steps);
    for (int64_t t = 0; t < r.steps && has_out(n, 0); t++) {
        val_id pair[2];
        for (int k = 0; k < dirs; k++) pair[k] = unsqueeze(im, y[k * r.steps + t], batch_first);
        step[t] = unsqueeze(im, concat(im, pair, dirs, batch_first), batch_first);
    }
    if (has_out(n, 0)) set_out(im, n, 0, concat(im, step, (int)r.steps, batch_first));
    if (has_out(n, 1)) set_out(im, n, 1, concat(im, h, dirs, batch_first));
    if (has_out(n, 2) && r.cell == LSTM) set_out(im, n, 2, concat(im, c, dirs, batch_first));
}

/* A depthwise convolution over time that sees the past only. Its first steps read the state, which
 * is what the window leaves behind: the last k-1 inputs. */
void h_causal_conv(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0), w = get(im, n, 1);
    struct type t = ty(im, x), wt = ty(im, w);
    bool silu = node_str_is(n, "activation", "silu") || node_str_is(n, "activation", "swish");
    if (failed(im)) return;
    if (t.rank != 3 || wt.rank != 3 || !dim_known(wt.dims[2]) || wt.dims[2] < 1 ||
        !dim_known(wt.dims[0])) {
        reject(im, ST_SHAPE, "operands must be [B,C,L] and [C,1,k]");
        return;
    }
    if (node_has(n, "activation") && !silu && !node_str_is(n, "activation", "none")) {
        refuse(im, "this activation");
        return;
    }
    int64_t keep = wt.dims[2] - 1, one = 1, none[2] = {0, 0};
    dim past[3] = {t.dims[0], t.dims[1], keep};
    val_id parts[2] = {has_in(n, 3) ? get(im, n, 3) : full(im, t.dtype, past, 3, 0), x};
    val_id all = keep ? concat(im, parts, 2, 2) : x;
    val_id in[2] = {all, w};
    struct attr a[4] = {{.key = ATTR_strides, .list = &one, .n = 1},
                        {.key = ATTR_pads, .list = none, .n = 2},
                        {.key = ATTR_dilations, .list = &one, .n = 1},
                        {.key = ATTR_groups, .i = wt.dims[0]}};
    val_id y = add_node(im, OP_conv, in, 2, a, 4);
    if (has_in(n, 2)) y = op_2(im, OP_add, y, unsqueeze(im, get(im, n, 2), 1));
    set_out(im, n, 0, silu ? op_1(im, OP_silu, y) : y);
    if (has_out(n, 1)) set_out(im, n, 1, slice_axis(im, all, 2, t.dims[2], keep));
}
