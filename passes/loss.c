// SPDX-License-Identifier: Apache-2.0
/* loss.c - appends the loss a user chose, or the only one that makes sense, as output "loss": one
 * f32 or f64 scalar. Adds inputs (role "label") for what the loss compares with. Not gradients. */
#include "base/diag.h"
#include "passes/pass.h"
#include <string.h>

enum { IGNORE_INDEX = -100 }; /* PyTorch's default */

struct loss {
    struct ctx *ctx;
    struct graph *g;
    struct arena *scratch;
    const struct train_options *t;
    const char *out_name, *target_name; /* target_name NULL: the default */
    val_id out;
    str_id o; /* origin of the output's node, for every node of the loss */
};

/* ---- messages ------------------------------------------------------------------------------ */
static const char *show(struct loss *x, const struct type *t) {
    struct buf b;
    buf_init(&b, x->scratch);
    type_print(x->g->dims, t, &b);
    return b.at;
}

static const char *list_outputs(struct loss *x) {
    struct buf b;
    buf_init(&b, x->scratch);
    for (uint32_t i = 0; i < x->g->outputs.n; i++) {
        const struct graph_output *o = &x->g->outputs.at[i];
        buf_printf(&b, "%s'%s' %s", i ? ", " : "", interned(&x->g->strings, o->name),
                   show(x, val_type(x->g, graph_resolve(x->g, o->value))));
    }
    if (x->g->outputs.n == 0) buf_puts(&b, "none");
    return b.at;
}

static const char *origin(struct loss *x) {
    return node_origin(x->g, val_def(x->g, x->out));
}

/* ---- looking up ---------------------------------------------------------------------------- */
static int find_output(const struct graph *g, const char *name) {
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (strcmp(interned(&g->strings, g->outputs.at[i].name), name) == 0) return (int)i;
    return -1;
}

static enum status use_output(struct loss *x, const char *name) {
    int k = find_output(x->g, name);
    if (k < 0)
        return diag_error(x->ctx, ST_USAGE, "", "loss: the model has no output '%s'; it has %s",
                          name, list_outputs(x));
    x->out_name = name;
    x->out = graph_resolve(x->g, x->g->outputs.at[k].value);
    x->o = graph_node(x->g, val_def(x->g, x->out))->origin;
    if (dtype_is_float(val_type(x->g, x->out)->dtype)) return ST_OK;
    return diag_error(x->ctx, ST_TYPE, origin(x),
                      "loss: output '%s' must be of a float type, found %s", name,
                      show(x, val_type(x->g, x->out)));
}

static val_id find_input(const struct graph *g, const char *name) {
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (g->nodes.at[i].op == OP_input &&
            strcmp(attr_str(g, (node_id){i}, ATTR_name), name) == 0)
            return node_out(g, (node_id){i}, 0);
    return VAL_NONE;
}

/* The input that holds the targets: the model's own of that name, or a new one of type `t`. */
static enum status target(struct loss *x, const char *def, const struct type *t, val_id *out) {
    const char *name = x->target_name                          ? x->target_name
                       : x->t->have_labels && x->t->label_name ? x->t->label_name
                                                               : def;
    val_id v = find_input(x->g, name);
    if (!v.i) {
        struct attr attrs[2] = {{.key = ATTR_name, .s = name}, {.key = ATTR_role, .s = "label"}};
        TRY(graph_try_source(x->g, OP_input, t, attrs, 2, name, out));
        graph_set_name(x->g, *out, name);
        return ST_OK;
    }
    struct type have = *val_type(x->g, v), want = *t;
    bool floats = dtype_is_float(want.dtype);
    if (have.dtype == DT_bool || dtype_is_float(have.dtype) != floats)
        return diag_error(x->ctx, ST_TYPE, name,
                          "loss: the targets must be of %s type like %s, but input '%s' is %s",
                          floats ? "a float" : "an integer", show(x, t), name, show(x, &have));
    want.dtype = have.dtype;
    if (!type_equal(&have, &want))
        return diag_error(x->ctx, ST_SHAPE, name,
                          "loss: the targets must be %s for output '%s', but input '%s' is %s",
                          show(x, t), x->out_name, name, show(x, &have));
    *out = build_cast(x->g, v, t->dtype, x->o);
    return ST_OK;
}

/* The output as f32 or f64. */
static val_id wide(struct loss *x) {
    enum dtype t = val_type(x->g, x->out)->dtype;
    return t == DT_f64 ? x->out : build_cast(x->g, x->out, DT_f32, x->o);
}

static val_id sum_all(struct loss *x, val_id v) {
    int64_t axes[RANK_MAX];
    for (int i = 0; i < RANK_MAX; i++) axes[i] = i;
    return build_reduce(x->g, OP_reduce_sum, v, axes, val_type(x->g, v)->rank, false, x->o);
}

static val_id mean_all(struct loss *x, val_id v) {
    int64_t axes[RANK_MAX];
    for (int i = 0; i < RANK_MAX; i++) axes[i] = i;
    return build_reduce(x->g, OP_reduce_mean, v, axes, val_type(x->g, v)->rank, false, x->o);
}

/* ---- cross entropy ------------------------------------------------------------------------- */
/* What an evaluation adds up over batches; an ignored target equals no class. */
static void measure(struct loss *x, val_id logits, val_id labels, val_id count) {
    struct graph *g = x->g;
    struct attr axis = {.key = ATTR_axis, .i = 1};
    val_id best = graph_add(g, OP_argmax, &logits, 1, &axis, 1, x->o);
    val_id right = build_2(g, OP_eq, best, labels, x->o);
    right = sum_all(x, build_cast(g, right, val_type(g, count)->dtype, x->o));
    graph_add_output(g, "loss.count", count);
    graph_add_output(g, "loss.right", right);
}

/* Logits with the classes last, flattened to [R,C]; labels to [R]. Mean over the labels that are
 * not ignored; 0 with zero gradients when all are. */
static val_id class_entropy(struct loss *x, val_id logits, val_id labels) {
    struct graph *g = x->g;
    struct type t = *val_type(g, logits);
    dim shape[2] = {1, t.dims[t.rank - 1]};
    for (int i = 0; i < t.rank - 1; i++) shape[0] = dim_mul(g->dims, shape[0], t.dims[i]);
    labels = build_reshape(g, labels, shape, 1, x->o);
    val_id in[2] = {build_reshape(g, logits, shape, 2, x->o), labels};
    struct attr skip = {.key = ATTR_ignore_index, .i = IGNORE_INDEX};
    val_id rows = graph_add(g, OP_cross_entropy, in, 2, &skip, 1, x->o);
    val_id counted =
        build_2(g, OP_ne, labels, build_scalar_int(g, DT_i64, IGNORE_INDEX, x->o), x->o);
    val_id count = sum_all(x, build_cast(g, counted, t.dtype, x->o));
    graph_set_name(g, count, "loss.count");
    if (x->t->measure) measure(x, in[0], labels, count);
    count = build_2(g, OP_max, count, build_scalar(g, t.dtype, 1.0, x->o), x->o);
    return build_2(g, OP_div, sum_all(x, rows), count, x->o);
}

/* -sum(p * log_softmax(x)) over classes, mean over the rest: PyTorch's form for probabilities. */
static val_id soft_entropy(struct loss *x, val_id logits, val_id p, int64_t axis) {
    struct attr a = {.key = ATTR_axis, .i = axis};
    val_id lp = graph_add(x->g, OP_log_softmax, &logits, 1, &a, 1, x->o);
    lp = build_2(x->g, OP_mul, lp, p, x->o);
    val_id rows = build_reduce(x->g, OP_reduce_sum, lp, &axis, 1, false, x->o);
    return build_1(x->g, OP_neg, mean_all(x, rows), x->o);
}

/* Whether data of shape `d` (axis 0 counts samples) can be what has shape `t`. */
static bool fits(const struct type *d, const struct type *t) {
    bool same = d->rank == t->rank;
    for (int i = 1; same && i < t->rank; i++)
        same = d->dims[i] == t->dims[i] || !dim_known(d->dims[i]) || !dim_known(t->dims[i]);
    return same;
}

static struct type without_axis(const struct type *t, int axis) {
    struct type r = {.dtype = DT_i64};
    for (int i = 0; i < t->rank; i++)
        if (i != axis) r.dims[r.rank++] = t->dims[i];
    return r;
}

static val_id axis_last(struct loss *x, val_id v, int axis) {
    int rank = val_type(x->g, v)->rank, k = 0;
    int64_t perm[RANK_MAX];
    for (int i = 0; i < rank; i++)
        if (i != axis) perm[k++] = i;
    perm[k] = axis;
    return build_transpose(x->g, v, perm, x->o);
}

/* The type of the data's labels: of the model's own input, else as the options say. */
static bool label_shape(struct loss *x, struct type *t) {
    const char *name = x->target_name ? x->target_name : x->t->label_name;
    val_id own = name ? find_input(x->g, name) : VAL_NONE;
    *t = own.i ? *val_type(x->g, own) : x->t->label_type;
    return own.i || (x->t->have_labels && t->rank >= 0 && t->dtype != DT_NONE);
}

static enum status cross_entropy(struct loss *x, val_id *out) {
    val_id logits = wide(x), labels;
    struct type t = *val_type(x->g, logits), data;
    if (t.rank < 1)
        return diag_error(x->ctx, ST_SHAPE, origin(x),
                          "loss: cross_entropy needs logits with a class axis, output '%s' is %s",
                          x->out_name, show(x, &t));
    bool have = label_shape(x, &data), image = t.rank > 2;
    struct type last = without_axis(&t, t.rank - 1), second = without_axis(&t, 1);
    bool soft = have && dtype_is_float(data.dtype) && fits(&data, &t);
    if (have && !soft && !fits(&data, &last) && !(image && fits(&data, &second)))
        return diag_error(x->ctx, ST_SHAPE, origin(x),
                          "loss: labels of type %s do not fit logits '%s' %s: expected %s%s%s, or "
                          "probabilities of the logits' shape",
                          show(x, &data), x->out_name, show(x, &t), show(x, &last),
                          image ? " or, with classes on axis 1, " : "",
                          image ? show(x, &second) : "");
    int axis = have && !fits(&data, soft ? &t : &last) ? 1 : t.rank - 1;
    if (image && (soft || (have && fits(&data, &last) && fits(&data, &second))))
        diag_note(x->ctx, origin(x), "loss: the last axis of '%s' %s is taken for the classes",
                  x->out_name, show(x, &t));
    if (soft) {
        TRY(target(x, "labels", &t, &labels));
        *out = soft_entropy(x, logits, labels, axis);
        return ST_OK;
    }
    struct type want = axis == t.rank - 1 ? last : second;
    TRY(target(x, "labels", &want, &labels));
    *out = class_entropy(x, axis_last(x, logits, axis), labels);
    return ST_OK;
}

/* ---- next token ---------------------------------------------------------------------------- */
/* Integer inputs of the shape [B,S] that the logits [B,S,V] have in front. */
static int token_inputs(const struct graph *g, const struct type *logits, val_id *first) {
    int count = 0;
    struct type want = *logits;
    want.rank = 2;
    for (uint32_t i = 1; i < g->nodes.n; i++) {
        if (g->nodes.at[i].op != OP_input) continue;
        val_id v = node_out(g, (node_id){i}, 0);
        struct type t = *val_type(g, v);
        want.dtype = t.dtype;
        if (dtype_class(t.dtype) != DTC_INT || !type_equal(&t, &want)) continue;
        /* Beside masks and positions, exporters call the tokens input_ids. */
        bool ids = strcmp(attr_str(g, (node_id){i}, ATTR_name), "input_ids") == 0;
        if (count == 0 || ids) *first = v;
        if (ids) return 1;
        count++;
    }
    return count;
}

/* The tokens are their own labels, moved by one; the last position has none and is ignored, which
 * costs less than cutting it out of the logits. */
static enum status next_token(struct loss *x, val_id *out) {
    struct graph *g = x->g;
    val_id logits = wide(x), tokens = VAL_NONE;
    struct type t = *val_type(g, logits), rows = t;
    rows.rank = 2;
    rows.dtype = DT_i64;
    if (t.rank != 3)
        return diag_error(
            x->ctx, ST_SHAPE, origin(x),
            "loss: next_token needs logits [batch, sequence, vocabulary], output '%s' "
            "is %s",
            x->out_name, show(x, &t));
    if (dim_known(t.dims[1]) && t.dims[1] < 2)
        return diag_error(x->ctx, ST_SHAPE, origin(x),
                          "loss: next_token needs sequences of 2 tokens or more, output '%s' is %s",
                          x->out_name, show(x, &t));
    if (x->target_name) {
        tokens = find_input(g, x->target_name);
        if (!tokens.i)
            return diag_error(x->ctx, ST_USAGE, "", "loss: the model has no input '%s'",
                              x->target_name);
        struct type have = *val_type(g, tokens);
        enum dtype_class cls = dtype_class(have.dtype);
        have.dtype = DT_i64;
        if (cls != DTC_INT || !type_equal(&have, &rows))
            return diag_error(
                x->ctx, ST_SHAPE, x->target_name,
                "loss: the tokens for logits %s must be integers of shape %s, found %s",
                show(x, &t), show(x, &rows), show(x, val_type(g, tokens)));
    } else {
        int n = token_inputs(g, &t, &tokens);
        if (n != 1)
            return diag_error(
                x->ctx, ST_USAGE, origin(x),
                "loss: next_token needs one integer input of shape %s, the model has %d; "
                "name it: next_token(%s, INPUT)",
                show(x, &rows), n, x->out_name);
    }
    tokens = build_cast(g, tokens, DT_i64, x->o);
    dim starts[2] = {0, 1}, size[2] = {t.dims[0], dim_sub(g->dims, t.dims[1], 1)};
    struct type end = {.dtype = DT_i64, .rank = 2, .dims = {t.dims[0], 1}};
    val_id parts[2] = {build_slice(g, tokens, starts, size, NULL, x->o),
                       build_full(g, &end, IGNORE_INDEX, x->o)};
    *out = class_entropy(x, logits, build_concat(g, parts, 2, 1, x->o));
    return ST_OK;
}

/* ---- regression ---------------------------------------------------------------------------- */
/* Targets have the output's shape; [N] will do for an output [N,1]. */
static enum status real_target(struct loss *x, const struct type *t, val_id *out) {
    struct type want = *t, data;
    if (label_shape(x, &data) && t->rank > 0 && data.rank == t->rank - 1 &&
        t->dims[t->rank - 1] == 1)
        want.rank--;
    TRY(target(x, "target", &want, out));
    *out = build_reshape(x->g, *out, t->dims, t->rank, x->o);
    return ST_OK;
}

static enum status mse(struct loss *x, val_id *out) {
    val_id o = wide(x), v;
    struct type t = *val_type(x->g, o);
    TRY(real_target(x, &t, &v));
    v = build_2(x->g, OP_sub, o, v, x->o);
    *out = mean_all(x, build_2(x->g, OP_mul, v, v, x->o));
    return ST_OK;
}

/* max(o,0) - o*t + log1p(exp(-|o|)): never exponentiates a large number. At o = 0 the tie of max
 * gives half the slope and |o| none, which makes sigmoid(0) - t as it should. */
static enum status bce_with_logits(struct loss *x, val_id *out) {
    struct graph *g = x->g;
    val_id o = wide(x), v;
    struct type t = *val_type(g, o);
    TRY(real_target(x, &t, &v));
    val_id zero = build_scalar(g, t.dtype, 0.0, x->o);
    val_id tail = build_1(g, OP_neg, build_1(g, OP_abs, o, x->o), x->o);
    tail = build_1(g, OP_log1p, build_1(g, OP_exp, tail, x->o), x->o);
    v = build_2(g, OP_sub, build_2(g, OP_max, o, zero, x->o), build_2(g, OP_mul, o, v, x->o), x->o);
    *out = mean_all(x, build_2(g, OP_add, v, tail, x->o));
    return ST_OK;
}

/* ---- a scalar of the model itself ---------------------------------------------------------- */
static bool is_single(const struct type *t) {
    return dtype_is_float(t->dtype) && type_count(t) == 1;
}

static enum status scalar(struct loss *x, val_id *out) {
    const struct type *t = val_type(x->g, x->out);
    if (!is_single(t))
        return diag_error(
            x->ctx, ST_SHAPE, origin(x),
            "loss: output '%s' is %s, not one number; wrap it, as in cross_entropy(%s, "
            "labels) or mse(%s, target)",
            x->out_name, show(x, t), x->out_name, x->out_name);
    *out = build_reshape(x->g, wide(x), NULL, 0, x->o);
    return ST_OK;
}

/* ---- the expression ------------------------------------------------------------------------ */
typedef enum status (*loss_fn)(struct loss *x, val_id *out);
static const struct {
    const char *name, *form;
    loss_fn make;
    bool needs_target;
} losses[] = {
    {"cross_entropy", "cross_entropy(OUT, labels)", cross_entropy, true},
    {"next_token", "next_token(OUT)", next_token, false},
    {"mse", "mse(OUT, target)", mse, true},
    {"bce_with_logits", "bce_with_logits(OUT, target)", bce_with_logits, true},
};
enum { LOSSES = sizeof losses / sizeof losses[0] };

static char *trimmed(struct arena *a, const char *s, size_t n) {
    while (n > 0 && (*s == ' ' || *s == '\t')) s++, n--;
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) n--;
    return arena_strndup(a, s, n);
}

static enum status bad_expression(struct loss *x, const char *text, const char *why) {
    return diag_error(x->ctx, ST_USAGE, "",
                      "loss '%s': %s; write %s, %s, %s, %s or the name of a scalar output", text,
                      why, losses[0].form, losses[1].form, losses[2].form, losses[3].form);
}

/* NAME(OUT) or NAME(OUT, TARGET); or an output's name, which may hold any character. */
static enum status parse(struct loss *x, const char *text, loss_fn *make) {
    const char *all = trimmed(x->scratch, text, strlen(text));
    const char *open = strchr(all, '('), *close = strrchr(all, ')');
    *make = scalar;
    if (find_output(x->g, all) >= 0 || !open) return use_output(x, all);
    if (!close || close < open || close[1] != '\0')
        return bad_expression(x, all, "the parentheses do not match");
    const char *name = trimmed(x->scratch, all, (size_t)(open - all));
    const char *inside = open + 1, *comma = strchr(inside, ',');
    int which = 0;
    while (which < LOSSES && strcmp(losses[which].name, name) != 0) which++;
    if (which == LOSSES) return bad_expression(x, all, "no loss has that name");
    *make = losses[which].make;
    const char *end = comma && comma < close ? comma : close;
    const char *out = trimmed(x->scratch, inside, (size_t)(end - inside));
    if (end == comma) {
        x->target_name = trimmed(x->scratch, comma + 1, (size_t)(close - comma - 1));
        if (!*x->target_name || strchr(x->target_name, ','))
            return bad_expression(x, all, "expected an output and one target");
    }
    if (!*out) return bad_expression(x, all, "the output's name is missing");
    return use_output(x, out);
}

/* ---- a choice left open -------------------------------------------------------------------- */
struct candidate {
    const char *text, *out;
    loss_fn make;
};

static void propose(struct loss *x, const char *out, struct candidate *list, int *n) {
    struct type t =
        *val_type(x->g, graph_resolve(x->g, x->g->outputs.at[find_output(x->g, out)].value));
    const struct type *data = &x->t->label_type;
    val_id tokens;
    if (is_single(&t)) list[(*n)++] = (struct candidate){out, out, scalar};
    if (!dtype_is_float(t.dtype) || t.rank == 0) return;
    bool known = data->rank >= 0 && data->dtype != DT_NONE;
    if (x->t->have_labels) {
        struct type last = without_axis(&t, t.rank - 1), second = without_axis(&t, 1);
        bool floats = !known || dtype_is_float(data->dtype);
        bool same = !known || fits(data, &t);
        bool classes = !known || (!dtype_is_float(data->dtype) &&
                                  (fits(data, &last) || (t.rank > 2 && fits(data, &second))));
        bool column = known && t.dims[t.rank - 1] == 1 && fits(data, &last);
        if (column && floats) same = true;
        bool fit[LOSSES] = {classes || (known && same && floats && !column), false, same && floats,
                            same && floats};
        for (int k = 0; k < LOSSES; k++)
            if (fit[k])
                list[(*n)++] =
                    (struct candidate){arena_printf(x->scratch, "%s(%s, %s)", losses[k].name, out,
                                                    x->t->label_name ? x->t->label_name : "labels"),
                                       out, losses[k].make};
    } else if (t.rank == 3 && token_inputs(x->g, &t, &tokens) == 1) {
        list[(*n)++] =
            (struct candidate){arena_printf(x->scratch, "next_token(%s)", out), out, next_token};
    }
}

static enum status choose(struct loss *x, loss_fn *make) {
    struct graph *g = x->g;
    uint32_t outputs = g->outputs.n;
    struct candidate *list = ARENA_ARRAY(x->scratch, struct candidate, outputs * (LOSSES + 1));
    int n = 0, named = find_output(g, "loss");
    if (named >= 0 && is_single(val_type(g, graph_resolve(g, g->outputs.at[named].value)))) {
        *make = scalar; /* the model says which one it is */
        return use_output(x, "loss");
    }
    for (uint32_t i = 0; i < outputs; i++)
        propose(x, interned(&g->strings, g->outputs.at[i].name), list, &n);
    if (n == 1) {
        *make = list[0].make;
        return use_output(x, list[0].out);
    }
    struct buf b;
    buf_init(&b, x->scratch);
    for (int i = 0; i < n; i++) buf_printf(&b, "%s%s", i ? ", " : "", list[i].text);
    if (n > 0)
        return diag_error(x->ctx, ST_USAGE, "", "several losses make sense, choose one: %s", b.at);
    return diag_error(x->ctx, ST_USAGE, "",
                      "no loss fits by itself; name one, as in %s or %s. Outputs: %s",
                      losses[0].form, losses[2].form, list_outputs(x));
}

/* The loss as an expression that names everything, for records. */
static const char *spelled_out(struct loss *x, loss_fn make) {
    for (int k = 0; k < LOSSES; k++) {
        if (losses[k].make != make) continue;
        if (!losses[k].needs_target)
            return arena_printf(&x->g->arena, "%s(%s)", losses[k].name, x->out_name);
        const char *fallback = x->t->have_labels && x->t->label_name ? x->t->label_name
                               : make == cross_entropy               ? "labels"
                                                                     : "target";
        return arena_printf(&x->g->arena, "%s(%s, %s)", losses[k].name, x->out_name,
                            x->target_name ? x->target_name : fallback);
    }
    return arena_strdup(&x->g->arena, x->out_name);
}

/* An evaluation reads numbers; whole logits that nobody reads would only cost memory. */
static void keep_measures(struct graph *g) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        const char *name = interned(&g->strings, g->outputs.at[i].name);
        if (strcmp(name, "loss") == 0 || strncmp(name, "loss.", 5) == 0)
            g->outputs.at[n++] = g->outputs.at[i];
    }
    g->outputs.n = n;
}

/* ---- a loss that the model differentiates itself --------------------------------------------- */
static val_id differentiated(const struct graph *g) {
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (graph_node(g, (node_id){i})->op == OP_gradient) return node_in(g, (node_id){i}, 0);
    return VAL_NONE;
}

static enum status own_loss(struct loss *x, const char **text) {
    struct graph *g = x->g;
    int taken = find_output(g, "loss");
    x->out = differentiated(g);
    if (x->t->loss)
        diag_warning(x->ctx, "",
                     "the model brings its own training step; '%s' is the loss of evaluations only",
                     x->t->loss);
    if (!x->out.i || !is_single(val_type(g, x->out)))
        return diag_error(x->ctx, ST_UNSUPPORTED, "",
                          "the model's own training step has no loss of one number that it "
                          "differentiates");
    x->o = graph_node(g, val_def(g, x->out))->origin;
    *text = "the model's own";
    val_id loss = build_reshape(g, wide(x), NULL, 0, x->o);
    if (taken >= 0)
        g->outputs.at[taken].value = loss;
    else
        graph_add_output(g, "loss", loss);
    graph_settle(g);
    return ST_OK;
}

enum status pass_loss(struct pass_ctx *c, struct graph *g) {
    if (!c->train) return diag_error(c->ctx, ST_USAGE, "", "a loss needs training options");
    struct loss x = {.ctx = c->ctx, .g = g, .scratch = c->scratch, .t = c->train};
    loss_fn make = NULL;
    val_id loss = VAL_NONE;
    if (graph_trains_itself(g)) return own_loss(&x, &c->loss);
    TRY(x.t->loss ? parse(&x, x.t->loss, &make) : choose(&x, &make));
    int taken = find_output(g, "loss");
    if (x.t->measure && (find_output(g, "loss.count") >= 0 || find_output(g, "loss.right") >= 0))
        return diag_error(c->ctx, ST_USAGE, "",
                          "the model has an output 'loss.count' or 'loss.right', which evaluation "
                          "needs for itself; rename it in the model");
    if (taken >= 0 && strcmp(x.out_name, "loss") != 0)
        return diag_error(
            c->ctx, ST_USAGE, "",
            "the model has an output 'loss' beside the loss made from '%s'; rename it in "
            "the model, or choose it as the loss",
            x.out_name);
    TRY(make(&x, &loss));
    c->loss = spelled_out(&x, make);
    if (taken >= 0)
        g->outputs.at[taken].value = loss;
    else
        graph_add_output(g, "loss", loss);
    if (x.t->measure) keep_measures(g);
    graph_settle(g);
    return ST_OK;
}
