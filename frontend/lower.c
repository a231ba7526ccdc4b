// SPDX-License-Identifier: Apache-2.0
/* lower.c - the building blocks of handlers. Every step checks what it is given through the graph's
 * own inference, so a wrong model ends in a diagnostic, never in an unwind; after the first failure
 * all steps do nothing. */
#include "frontend/importer.h"
#include <stdarg.h>
#include <string.h>

bool failed(const struct importer *im) {
    return im->st != ST_OK || im->refused;
}

/* One entry for each op and reason, however many nodes there are. */
static void note_refusal(struct importer *im, const struct inode *n, const char *why) {
    const char *domain = n->domain;
    for (uint32_t i = 0; i < im->unsupported.n; i++) {
        struct import_unsupported *u = &im->unsupported.at[i];
        if (strcmp(u->op, n->op) != 0 || strcmp(u->domain, domain) != 0 || strcmp(u->why, why) != 0)
            continue;
        uint32_t room = 1;
        while (room < u->nnodes) room *= 2;
        if (u->nnodes == room) {
            const char **more = ARENA_ARRAY(im->a, const char *, (size_t)room * 2);
            memcpy(more, u->nodes, u->nnodes * sizeof *more);
            u->nodes = more;
        }
        ((const char **)u->nodes)[u->nnodes++] = n->origin;
        return;
    }
    const char **list = ARENA_ARRAY(im->a, const char *, 1);
    list[0] = n->origin;
    struct import_unsupported u = {n->op, domain, n->opset, why, list, 1};
    vec_push(im->a, &im->unsupported, u);
}

void refuse(struct importer *im, const char *fmt, ...) {
    if (failed(im)) return;
    va_list ap;
    va_start(ap, fmt);
    const char *why = arena_vprintf(im->a, fmt, ap);
    va_end(ap);
    note_refusal(im, im->n, why);
    im->refused = true;
}

void reject(struct importer *im, enum status code, const char *fmt, ...) {
    if (failed(im)) return;
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(im->a, fmt, ap);
    va_end(ap);
    im->st = diag_error(im->ctx, code, im->n->origin, "%s: %s", im->n->op, text);
}

/* ---- operands and results ------------------------------------------------------------------ */
bool has_in(const struct inode *n, int k) {
    return k < n->nin && n->in[k] != 0;
}

bool has_out(const struct inode *n, int k) {
    return k < n->nout && n->out[k] != 0;
}

val_id read_value(struct importer *im, uint32_t v, struct onnx_use at) {
    struct ivalue *x = iv(im, v);
    if (failed(im)) return VAL_NONE;
    if (x->kind != VK_TENSOR) {
        reject(im, ST_TYPE, "'%s' is %s where a tensor is expected", x->name,
               x->kind == VK_SEQUENCE ? "a sequence" : "not computed");
        return VAL_NONE;
    }
    if (x->weight)
        return weight_read(im, &im->weights.at[x->weight - 1], x->aliased ? x->alias : at);
    if (x->val.i == 0) x->val = known_materialise(im, x);
    return x->val;
}

val_id get(struct importer *im, const struct inode *n, int k) {
    if (failed(im)) return VAL_NONE;
    if (!has_in(n, k)) {
        reject(im, ST_PARSE, "input %d is missing", k);
        return VAL_NONE;
    }
    return read_value(im, n->in[k], (struct onnx_use){n->index, (uint32_t)k});
}

struct type in_type(struct importer *im, const struct inode *n, int k) {
    if (!has_in(n, k) || iv(im, n->in[k])->kind != VK_TENSOR) return type_scalar(DT_NONE);
    return iv(im, n->in[k])->type;
}

struct type ty(struct importer *im, val_id v) {
    return v.i ? *val_type(im->g, v) : type_scalar(DT_NONE);
}

void set_out(struct importer *im, const struct inode *n, int k, val_id v) {
    if (failed(im) || v.i == 0 || !has_out(n, k)) return;
    struct ivalue *x = iv(im, n->out[k]);
    x->kind = VK_TENSOR;
    x->type = ty(im, v);
    x->val = v;
    if (val_name(im->g, v)[0] == 0 && x->name[0]) graph_set_name(im->g, v, x->name);
}

/* ---- nodes ---------------------------------------------------------------------------------- */
val_id add_node(struct importer *im, enum op op, const val_id *in, int nin,
                const struct attr *attrs, int nattr) {
    val_id out = VAL_NONE;
    if (failed(im)) return out;
    for (int i = 0; i < nin; i++)
        if (in[i].i == 0) return out;
    im->st = graph_try_add(im->g, op, in, nin, attrs, nattr, im->n ? im->n->origin : "", &out);
    return im->st == ST_OK ? out : VAL_NONE;
}

static val_id add_source(struct importer *im, enum op op, const struct type *t,
                         const struct attr *attrs, int nattr) {
    val_id out = VAL_NONE;
    if (failed(im)) return out;
    im->st = graph_try_source(im->g, op, t, attrs, nattr, im->n ? im->n->origin : "", &out);
    return im->st == ST_OK ? out : VAL_NONE;
}

val_id op_1(struct importer *im, enum op op, val_id a) {
    return add_node(im, op, &a, 1, NULL, 0);
}

val_id op_2(struct importer *im, enum op op, val_id a, val_id b) {
    val_id in[2] = {a, b};
    return add_node(im, op, in, 2, NULL, 0);
}

val_id op_3(struct importer *im, enum op op, val_id a, val_id b, val_id c) {
    val_id in[3] = {a, b, c};
    return add_node(im, op, in, 3, NULL, 0);
}

val_id constant(struct importer *im, const struct type *t, const void *bytes, bool copy) {
    int64_t n = type_bytes(t);
    if (failed(im)) return VAL_NONE;
    if (n < 0) {
        reject(im, ST_SHAPE, "a constant of symbolic or excessive size");
        return VAL_NONE;
    }
    struct attr init = {.key = ATTR_init, .blob = graph_blob(im->g, bytes, (size_t)n, copy)};
    return add_source(im, OP_const, t, &init, 1);
}

val_id scalar(struct importer *im, enum dtype t, double x) {
    struct type s = type_scalar(t);
    unsigned char bytes[8];
    dtype_store(t, bytes, x);
    return constant(im, &s, bytes, true);
}

val_id scalar_int(struct importer *im, enum dtype t, int64_t x) {
    struct type s = type_scalar(t);
    unsigned char bytes[8];
    dtype_store_int(t, bytes, x);
    return constant(im, &s, bytes, true);
}

val_id ints_1d(struct importer *im, const int64_t *x, int n) {
    struct type t = {DT_i64, 1, {n}};
    return constant(im, &t, x, true);
}

val_id full(struct importer *im, enum dtype t, const dim *shape, int rank, double x) {
    struct type s = {.dtype = t, .rank = rank};
    memcpy(s.dims, shape, (size_t)rank * sizeof *shape);
    struct attr v = {.key = ATTR_value, .f = x};
    return add_source(im, OP_full, &s, &v, 1);
}

val_id iota(struct importer *im, enum dtype t, dim n, double start, double step) {
    struct type s = {t, 1, {n}};
    struct attr v[2] = {{.key = ATTR_start, .f = start}, {.key = ATTR_step, .f = step}};
    return add_source(im, OP_iota, &s, v, 2);
}

val_id scale_by(struct importer *im, val_id a, double k) {
    return k == 1.0 ? a : op_2(im, OP_mul, a, scalar(im, ty(im, a).dtype, k));
}

val_id shift_by(struct importer *im, val_id a, double k) {
    return k == 0.0 ? a : op_2(im, OP_add, a, scalar(im, ty(im, a).dtype, k));
}

val_id cast_to(struct importer *im, val_id a, enum dtype t) {
    if (failed(im) || a.i == 0 || ty(im, a).dtype == t) return a;
    struct attr to = {.key = ATTR_dtype, .i = t};
    return add_node(im, OP_cast, &a, 1, &to, 1);
}

/* ---- movement ------------------------------------------------------------------------------ */
static bool same_shape(const struct type *t, const dim *shape, int rank) {
    if (t->rank != rank) return false;
    for (int i = 0; i < rank; i++)
        if (!dim_same(t->dims[i], shape[i])) return false;
    return true;
}

val_id reshape(struct importer *im, val_id a, const dim *shape, int rank) {
    struct type t = ty(im, a);
    if (failed(im) || same_shape(&t, shape, rank)) return a;
    struct attr s = {.key = ATTR_shape, .list = shape, .n = rank};
    return add_node(im, OP_reshape, &a, 1, &s, 1);
}

val_id transpose(struct importer *im, val_id a, const int64_t *perm) {
    struct type t = ty(im, a);
    bool moves = false;
    for (int i = 0; i < t.rank; i++) moves |= perm[i] != i;
    if (failed(im) || !moves) return a;
    struct attr p = {.key = ATTR_perm, .list = perm, .n = t.rank};
    return add_node(im, OP_transpose, &a, 1, &p, 1);
}

val_id swap_axes(struct importer *im, val_id a, int i, int j) {
    int64_t perm[RANK_MAX];
    for (int k = 0; k < RANK_MAX; k++) perm[k] = k;
    perm[i] = j;
    perm[j] = i;
    return transpose(im, a, perm);
}

val_id expand(struct importer *im, val_id a, const dim *shape, int rank) {
    struct type t = ty(im, a);
    if (failed(im) || same_shape(&t, shape, rank)) return a;
    struct attr s = {.key = ATTR_shape, .list = shape, .n = rank};
    return add_node(im, OP_expand, &a, 1, &s, 1);
}

val_id slice(struct importer *im, val_id a, const dim *starts, const dim *sizes,
             const int64_t *steps) {
    struct type t = ty(im, a);
    int64_t ones[RANK_MAX];
    for (int i = 0; i < RANK_MAX; i++) ones[i] = 1;
    if (!steps) steps = ones;
    bool cuts = false;
    for (int i = 0; i < t.rank; i++)
        cuts |= steps[i] != 1 || starts[i] != 0 || !dim_same(sizes[i], t.dims[i]);
    if (failed(im) || !cuts) return a;
    struct attr s[3] = {{.key = ATTR_starts, .list = starts, .n = t.rank},
                        {.key = ATTR_shape, .list = sizes, .n = t.rank},
                        {.key = ATTR_steps, .list = steps, .n = t.rank}};
    return add_node(im, OP_slice, &a, 1, s, 3);
}

val_id slice_axis(struct importer *im, val_id a, int axis, dim start, dim size) {
    struct type t = ty(im, a);
    dim starts[RANK_MAX] = {0};
    starts[axis] = start;
    t.dims[axis] = size;
    return slice(im, a, starts, t.dims, NULL);
}

val_id concat(struct importer *im, const val_id *parts, int n, int axis) {
    if (n == 1) return parts[0];
    struct attr x = {.key = ATTR_axis, .i = axis};
    return add_node(im, OP_concat, parts, n, &x, 1);
}

val_id pad(struct importer *im, val_id a, const int64_t *low, const int64_t *high,
           const int64_t *interior, double value) {
    struct type t = ty(im, a);
    int64_t none[RANK_MAX] = {0};
    if (!interior) interior = none;
    bool grows = false;
    for (int i = 0; i < t.rank; i++) grows |= low[i] || high[i] || interior[i];
    if (failed(im) || !grows) return a;
    struct attr p[4] = {{.key = ATTR_low, .list = low, .n = t.rank},
                        {.key = ATTR_high, .list = high, .n = t.rank},
                        {.key = ATTR_interior, .list = interior, .n = t.rank},
                        {.key = ATTR_value, .f = value}};
    return add_node(im, OP_pad, &a, 1, p, 4);
}

val_id unsqueeze(struct importer *im, val_id a, int axis) {
    struct type t = ty(im, a);
    if (failed(im)) return VAL_NONE;
    if (t.rank >= RANK_MAX) {
        refuse(im, "rank over %d", RANK_MAX);
        return VAL_NONE;
    }
    for (int i = t.rank; i > axis; i--) t.dims[i] = t.dims[i - 1];
    t.dims[axis] = 1;
    return reshape(im, a, t.dims, t.rank + 1);
}

val_id squeeze(struct importer *im, val_id a, int axis) {
    struct type t = ty(im, a);
    if (failed(im)) return VAL_NONE;
    for (int i = axis; i + 1 < t.rank; i++) t.dims[i] = t.dims[i + 1];
    return reshape(im, a, t.dims, t.rank - 1);
}

/* ---- computing ----------------------------------------------------------------------------- */
val_id reduce(struct importer *im, enum op op, val_id a, const int64_t *axes, int n, bool keep) {
    struct attr r[2] = {{.key = ATTR_axes, .list = axes, .n = n},
                        {.key = ATTR_keepdims, .i = keep}};
    return add_node(im, op, &a, 1, r, 2);
}

val_id matmul(struct importer *im, val_id a, val_id b, bool ta, bool tb) {
    val_id in[2] = {a, b};
    struct attr t[2] = {{.key = ATTR_trans_a, .i = ta}, {.key = ATTR_trans_b, .i = tb}};
    return add_node(im, OP_matmul, in, 2, t, 2);
}

val_id gather(struct importer *im, val_id x, val_id idx, int axis) {
    val_id in[2] = {x, idx};
    struct attr a = {.key = ATTR_axis, .i = axis};
    return add_node(im, OP_gather, in, 2, &a, 1);
}

val_id with_axis(struct importer *im, enum op op, val_id a, int axis) {
    struct attr x = {.key = ATTR_axis, .i = axis};
    return add_node(im, op, &a, 1, &x, 1);
}

val_id indices(struct importer *im, val_id a) {
    enum dtype t = ty(im, a).dtype;
    return t == DT_i32 ? a : cast_to(im, a, DT_i64);
}

val_id axis_iota(struct importer *im, enum dtype t, dim n, int axis, int rank) {
    dim shape[RANK_MAX];
    for (int i = 0; i < rank; i++) shape[i] = 1;
    shape[axis] = n;
    return reshape(im, iota(im, t, n, 0, 1), shape, rank);
}

/* Uniform in [0,1) from the step's seed; the seed is an input that appears with the first use. */
val_id random_uniform(struct importer *im, enum dtype t, const dim *shape, int rank) {
    if (failed(im)) return VAL_NONE;
    if (im->seed.i == 0) {
        struct type s = type_scalar(DT_i64);
        struct attr a[2] = {{.key = ATTR_name, .s = "seed"}, {.key = ATTR_role, .s = "seed"}};
        im->seed = add_source(im, OP_input, &s, a, 2);
        if (im->seed.i) graph_set_name(im->g, im->seed, "seed");
    }
    struct attr a[3] = {{.key = ATTR_shape, .list = shape, .n = rank},
                        {.key = ATTR_dtype, .i = t},
                        {.key = ATTR_stream, .i = im->streams++}};
    return add_node(im, OP_random, &im->seed, 1, a, 3);
}

/* ---- axes and sizes ------------------------------------------------------------------------ */
bool axis_fix(struct importer *im, int64_t *axis, int rank) {
    if (*axis < -(int64_t)rank || *axis >= rank) {
        reject(im, ST_SHAPE, "axis %lld is outside rank %d", (long long)*axis, rank);
        return false;
    }
    if (*axis < 0) *axis += rank;
    return true;
}

int axis_attr(struct importer *im, const struct inode *n, int64_t fallback, int rank) {
    int64_t axis = node_int(n, "axis", fallback);
    return axis_fix(im, &axis, rank) ? (int)axis : 0;
}

bool axes_of(struct importer *im, const struct inode *n, int slot, int rank, int64_t *axes,
             int *count) {
    const int64_t *at = NULL;
    int64_t found = 0;
    bool used[RANK_MAX] = {false};
    *count = 0;
    if (has_in(n, slot)) {
        if (!known_numbers(im, n, slot, &at, &found)) {
            refuse(im, "axes that are computed at run time");
            return false;
        }
    } else {
        int c;
        at = node_ints(n, "axes", &c);
        found = c;
    }
    for (int64_t i = 0; i < found; i++) {
        int64_t axis = at[i];
        if (!axis_fix(im, &axis, rank)) return false;
        used[axis] = true;
    }
    for (int i = 0; i < rank; i++)
        if (used[i]) axes[(*count)++] = i;
    return true;
}

dim dim_times(struct importer *im, dim a, dim b) {
    dim r = 0;
    if (failed(im)) return 0;
    if (!dim_try_mul(im->g->dims, a, b, &r)) reject(im, ST_SHAPE, "a size overflows");
    return r;
}

dim dim_plus(struct importer *im, dim a, dim b) {
    dim r = 0;
    if (failed(im)) return 0;
    if (!dim_try_add(im->g->dims, a, b, &r)) reject(im, ST_SHAPE, "a size overflows");
    return r;
}

dim dim_minus(struct importer *im, dim a, dim b) {
    dim r = 0;
    if (failed(im)) return 0;
    if (dim_known(a) && dim_known(b) && a < b)
        reject(im, ST_SHAPE, "a size would be negative: %lld - %lld", (long long)a, (long long)b);
    else if (!dim_try_sub(im->g->dims, a, b, &r))
        reject(im, ST_SHAPE, "a size overflows");
    return r;
}

dim dims_total(struct importer *im, const dim *d, int n) {
    dim r = 1;
    for (int i = 0; i < n; i++) r = dim_times(im, r, d[i]);
    return r;
}

/* ---- the loop ------------------------------------------------------------------------------- */
static void mark_broken(struct importer *im, const struct inode *n) {
    for (int k = 0; k < n->nout; k++)
        if (n->out[k] && iv(im, n->out[k])->kind == VK_NONE) iv(im, n->out[k])->kind = VK_BROKEN;
}

static bool reads_broken(struct importer *im, const struct inode *n) {
    for (int k = 0; k < n->nin; k++)
        if (n->in[k] && iv(im, n->in[k])->kind == VK_BROKEN) return true;
    return false;
}

/* What inference says of a step that it cannot do is kept for the list of unsupported ops: shown at
 * once, there would be several errors for one model. */
struct held_report {
    struct importer *im;
    void (*report)(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message);
    void *user;
    const char *text;
};

static void hold_unsupported(void *user, enum severity sev, enum status code, const char *origin,
                             const char *message) {
    struct held_report *h = user;
    if (sev == SEV_ERROR && code == ST_UNSUPPORTED)
        h->text = arena_strdup(h->im->a, message);
    else if (h->report)
        h->report(h->user, sev, code, origin, message);
}

/* An op that inference refuses is unsupported, not wrong: go on and collect. */
static void soften(struct importer *im, const struct inode *n, const char *why) {
    if (im->st != ST_UNSUPPORTED) return;
    im->st = ST_OK;
    note_refusal(im, n, why ? why : "not supported");
    im->refused = true;
}

static void lower_one(struct importer *im, const struct inode *n) {
    im->n = n;
    im->refused = false;
    const struct handler *h = handler_find(n->domain, n->op);
    if (!h) {
        note_refusal(im, n, "no such op in Lathe");
        mark_broken(im, n);
        return;
    }
    struct ctx *c = im->ctx;
    struct held_report held = {im, c->report, c->report_user, NULL};
    c->report = hold_unsupported;
    c->report_user = &held;
    if (!reads_broken(im, n) && !shape_eval(im, n) && !failed(im)) h->fn(im, n, h->arg);
    c->report = held.report;
    c->report_user = held.user;
    soften(im, n, held.text);
    mark_broken(im, n);
}

void lower_nodes(struct importer *im, struct nodelist *list) {
    for (uint32_t i = 0; i < list->nodes.n && im->st == ST_OK; i++)
        lower_one(im, &list->nodes.at[i]);
}
