// SPDX-License-Identifier: Apache-2.0
/* import_shape.c - handlers of ops that change shapes or element types and of fills. Shapes
 * must be known at import, as numbers or symbols; a shape that depends on data is refused. */
#include "frontend/importer.h"
#include <string.h>

/* ---- result shapes of views ---------------------------------------------------------------- */
bool shape_input(struct importer *im, const struct inode *n, int k, struct num *out, int *rank) {
    const struct num *x;
    int64_t count;
    if (!known_ints(im, n, k, &x, &count)) {
        refuse(im, "a shape that is computed from data at run time");
        return false;
    }
    if (count > RANK_MAX) {
        refuse(im, "rank %lld, at most %d works", (long long)count, RANK_MAX);
        return false;
    }
    for (int64_t i = 0; i < count; i++) out[i] = x[i];
    *rank = (int)count;
    return true;
}

/* The one dim that makes `t` hold `total` elements; both products exclude it. */
static bool solve_dim(struct importer *im, const struct type *in, struct type *t, int wild) {
    bool used[RANK_MAX] = {false};
    dim have = 1, rest = 1;
    /* Strike out equal sizes first, so that symbols need not be divided. */
    for (int i = 0; i < t->rank; i++) {
        if (i == wild) continue;
        bool hit = false;
        for (int k = 0; k < in->rank && !hit; k++)
            if (!used[k] && dim_same(in->dims[k], t->dims[i]) && t->dims[i] != 0)
                hit = used[k] = true;
        if (!hit) rest = dim_times(im, rest, t->dims[i]);
    }
    for (int k = 0; k < in->rank; k++)
        if (!used[k]) have = dim_times(im, have, in->dims[k]);
    if (failed(im)) return false;
    if (dim_known(have) && dim_known(rest) && (rest == 0 || have % rest != 0)) {
        reject(im, ST_SHAPE, "%lld elements do not divide by %lld, so -1 has no value",
               (long long)have, (long long)rest);
        return false;
    }
    if (!dim_div(im->g->dims, have, rest, &t->dims[wild])) {
        refuse(im, "-1 whose value cannot be derived from symbolic sizes; give the sizes numbers");
        return false;
    }
    return true;
}

bool shape_of_reshape(struct importer *im, const struct inode *n, struct type *t) {
    struct type in = in_type(im, n, 0);
    struct num want[RANK_MAX];
    int rank, wild = -1, count;
    const int64_t *attr = node_ints(n, "shape", &count);
    if (n->opset < 5 && attr && count <= RANK_MAX) {
        rank = count;
        for (int i = 0; i < count; i++) want[i] = (struct num){attr[i], false};
    } else if (!shape_input(im, n, 1, want, &rank)) {
        return false;
    }
    bool zero = node_int(n, "allowzero", 0) != 0;
    t->rank = rank;
    for (int i = 0; i < rank; i++) {
        bool copies = !want[i].sym && want[i].v == 0 && !zero;
        if (copies && i >= in.rank) {
            reject(im, ST_SHAPE, "size 0 at position %d copies a dimension that is not there", i);
            return false;
        }
        if (!want[i].sym && want[i].v == -1 && wild < 0) {
            wild = i;
            t->dims[i] = 1;
            continue;
        }
        if (!want[i].sym && want[i].v < 0) {
            reject(im, ST_SHAPE, "size %lld at position %d", (long long)want[i].v, i);
            return false;
        }
        t->dims[i] = copies ? in.dims[i] : want[i].v;
    }
    return wild < 0 || solve_dim(im, &in, t, wild);
}

bool shape_of_unsqueeze(struct importer *im, const struct inode *n, struct type *t) {
    struct type in = in_type(im, n, 0);
    int64_t axes[RANK_MAX];
    int count, given = 0;
    const int64_t *at = NULL;
    int64_t known = 0;
    if (has_in(n, 1)) {
        if (known_numbers(im, n, 1, &at, &known)) given = known > RANK_MAX ? RANK_MAX : (int)known;
    } else {
        node_ints(n, "axes", &given);
    }
    int rank = in.rank + given;
    if (rank > RANK_MAX) {
        refuse(im, "rank over %d", RANK_MAX);
        return false;
    }
    if (!axes_of(im, n, 1, rank, axes, &count)) return false;
    if (count != given) {
        reject(im, ST_SHAPE, "the same axis twice");
        return false;
    }
    t->rank = rank;
    for (int i = 0, k = 0, j = 0; i < rank; i++) {
        bool hit = k < count && axes[k] == i;
        t->dims[i] = hit ? 1 : in.dims[j];
        k += hit;
        j += !hit;
    }
    return true;
}

bool shape_of_squeeze(struct importer *im, const struct inode *n, struct type *t) {
    struct type in = in_type(im, n, 0);
    int64_t axes[RANK_MAX];
    int count;
    bool all = !has_in(n, 1) && !node_has(n, "axes");
    if (!axes_of(im, n, 1, in.rank, axes, &count)) return false;
    t->rank = 0;
    for (int i = 0, k = 0; i < in.rank; i++) {
        bool hit = all ? in.dims[i] == 1 : k < count && axes[k] == i;
        if (hit && !all) k++;
        if (hit && dim_known(in.dims[i]) && in.dims[i] != 1) {
            reject(im, ST_SHAPE, "axis %d has size %lld, not 1", i, (long long)in.dims[i]);
            return false;
        }
        if (hit && !dim_known(in.dims[i])) {
            refuse(im, "squeezing an axis of symbolic size");
            return false;
        }
        if (!hit) t->dims[t->rank++] = in.dims[i];
    }
    return true;
}

bool shape_of_flatten(struct importer *im, const struct inode *n, struct type *t) {
    struct type in = in_type(im, n, 0);
    int64_t axis = node_int(n, "axis", 1);
    if (axis < -in.rank || axis > in.rank) {
        reject(im, ST_SHAPE, "axis %lld is outside rank %d", (long long)axis, in.rank);
        return false;
    }
    if (axis < 0) axis += in.rank;
    t->rank = 2;
    t->dims[0] = dims_total(im, in.dims, (int)axis);
    t->dims[1] = dims_total(im, in.dims + axis, in.rank - (int)axis);
    return !failed(im);
}

void h_view(struct importer *im, const struct inode *n, int arg) {
    bool (*const shape[])(struct importer *, const struct inode *, struct type *) = {
        shape_of_reshape, shape_of_unsqueeze, shape_of_squeeze, shape_of_flatten};
    struct type t = in_type(im, n, 0);
    if (shape[arg](im, n, &t)) set_out(im, n, 0, reshape(im, get(im, n, 0), t.dims, t.rank));
}

void h_identity(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    if (!has_in(n, 0) || !has_out(n, 0)) return;
    struct ivalue *from = iv(im, n->in[0]), *to = iv(im, n->out[0]);
    if (from->kind == VK_SEQUENCE) {
        to->kind = VK_SEQUENCE;
        to->items = from->items;
        to->nitems = from->nitems;
        return;
    }
    set_out(im, n, 0, get(im, n, 0));
}

void h_transpose(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct type t = in_type(im, n, 0);
    int count;
    const int64_t *perm = node_ints(n, "perm", &count);
    int64_t flip[RANK_MAX];
    bool seen[RANK_MAX] = {false};
    for (int i = 0; i < t.rank; i++) flip[i] = t.rank - 1 - i;
    if (perm && count != t.rank) {
        reject(im, ST_SHAPE, "perm has %d entries for rank %d", count, t.rank);
        return;
    }
    for (int i = 0; perm && i < count; i++) {
        if (perm[i] < 0 || perm[i] >= count || seen[perm[i]]) {
            reject(im, ST_SHAPE, "perm is not a permutation");
            return;
        }
        seen[perm[i]] = true;
    }
    set_out(im, n, 0, transpose(im, get(im, n, 0), perm ? perm : flip));
}

void h_expand(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct num want[RANK_MAX];
    struct type t = in_type(im, n, 0), w = {.dtype = t.dtype}, r;
    if (!shape_input(im, n, 1, want, &w.rank)) return;
    for (int i = 0; i < w.rank; i++)
        if (!num_dim(want[i], &w.dims[i])) {
            /* Some exporters write torch's -1, "as it is". */
            int k = i - (w.rank - t.rank);
            if (want[i].v != -1 || k < 0) {
                reject(im, ST_SHAPE, "size %lld", (long long)want[i].v);
                return;
            }
            w.dims[i] = t.dims[k];
        }
    if (!type_broadcast(&t, &w, &r)) {
        reject(im, ST_SHAPE, "the input does not broadcast to the shape asked for");
        return;
    }
    set_out(im, n, 0, expand(im, get(im, n, 0), r.dims, r.rank));
}

void h_concat(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id *parts = ARENA_ARRAY(im->a, val_id, (size_t)n->nin);
    int axis = axis_attr(im, n, n->opset < 4 ? 1 : 0, in_type(im, n, 0).rank);
    for (int i = 0; i < n->nin; i++) parts[i] = get(im, n, i);
    if (n->nin > 0) set_out(im, n, 0, concat(im, parts, n->nin, axis));
}

/* ---- casts --------------------------------------------------------------------------------- */
void h_cast(struct importer *im, const struct inode *n, int arg) {
    enum dtype t = arg ? in_type(im, n, 1).dtype : node_dtype(n, "to");
    if (t == DT_NONE) {
        refuse(im, "casting to ONNX element type %lld", (long long)node_int(n, "to", 0));
        return;
    }
    /* Lathe's casts to 8-bit floats saturate, and those to e8m0 round to the nearest. */
    bool small = t == DT_e4m3 || t == DT_e5m2 || t == DT_e8m0;
    if (small && node_int(n, "saturate", 1) == 0) {
        refuse(im, "casting to %s without saturation", dtype_name(t));
        return;
    }
    if (t == DT_e8m0 && in_type(im, n, 0).dtype != t && !node_str_is(n, "round_mode", "nearest")) {
        refuse(im, "casting to e8m0 with a round_mode other than 'nearest'");
        return;
    }
    set_out(im, n, 0, cast_to(im, get(im, n, 0), t));
}

/* ---- fills --------------------------------------------------------------------------------- */
void h_constant_of_shape(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct num want[RANK_MAX];
    dim shape[RANK_MAX];
    int rank;
    if (!shape_input(im, n, 0, want, &rank)) return;
    for (int i = 0; i < rank; i++)
        if (!num_dim(want[i], &shape[i])) {
            reject(im, ST_SHAPE, "a negative size");
            return;
        }
    const Onnx__AttributeProto *a = node_attr(n, "value");
    enum dtype t = DT_f32;
    double x = 0;
    if (a && a->t) {
        struct onnx_tensor v;
        if (dtype_from_onnx(a->t->data_type) == DT_NONE) {
            refuse(im, "this element type");
            return;
        }
        im->st = onnx_decode_tensor(im->m, a->t, n->origin, &v);
        if (failed(im)) return;
        if (type_count(&v.type) != 1) {
            reject(im, ST_SHAPE, "value must have one element");
            return;
        }
        t = v.type.dtype;
        x = dtype_load(t, v.data);
    }
    set_out(im, n, 0, full(im, t, shape, rank, x));
}

/* The IR's iota counts in f64. */
static bool exact_in_f64(int64_t x) {
    const int64_t limit = (int64_t)1 << 53;
    return x >= -limit && x <= limit;
}

void h_range(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const struct num *s, *e, *d;
    int64_t ns, ne, nd;
    double fs, fe, fd;
    struct type t = in_type(im, n, 0);
    if (dtype_is_float(t.dtype)) {
        if (!known_float(im, n, 0, &fs) || !known_float(im, n, 1, &fe) ||
            !known_float(im, n, 2, &fd)) {
            refuse(im, "bounds that are computed at run time");
            return;
        }
        double count = (fe - fs) / fd;
        if (!(count < 1e12)) {
            reject(im, ST_SHAPE, "a step of 0, or too many elements");
            return;
        }
        int64_t whole = count <= 0 ? 0 : (int64_t)count;
        set_out(im, n, 0,
                iota(im, t.dtype, count <= 0 ? 0 : whole + ((double)whole < count), fs, fd));
        return;
    }
    if (!known_ints(im, n, 0, &s, &ns) || !known_ints(im, n, 1, &e, &ne) ||
        !known_ints(im, n, 2, &d, &nd)) {
        refuse(im, "bounds that are computed at run time");
        return;
    }
    if (ns != 1 || ne != 1 || nd != 1) {
        reject(im, ST_SHAPE, "start, limit and delta must be single numbers");
        return;
    }
    if (d->sym || s->sym || d->v == 0) {
        refuse(im, "a symbolic start or step, or a step of 0");
        return;
    }
    if (!exact_in_f64(s->v) || !exact_in_f64(d->v) || (!e->sym && !exact_in_f64(e->v))) {
        refuse(im, "bounds beyond 2^53");
        return;
    }
    dim count;
    if (e->sym) {
        if (d->v != 1 || s->v < 0) {
            refuse(im, "a symbolic end with this start and step");
            return;
        }
        count = dim_minus(im, e->v, s->v);
    } else {
        int64_t span = e->v - s->v;
        count = span != 0 && (span > 0) == (d->v > 0) ? (span - (d->v > 0 ? 1 : -1)) / d->v + 1 : 0;
    }
    if (failed(im)) return;
    set_out(im, n, 0, iota(im, t.dtype, count, (double)s->v, (double)d->v));
}

void h_eye_like(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct type t = in_type(im, n, 0);
    enum dtype to = node_has(n, "dtype") ? node_dtype(n, "dtype") : t.dtype;
    if (t.rank != 2) {
        reject(im, ST_SHAPE, "input must have rank 2, found %d", t.rank);
        return;
    }
    if (to == DT_NONE) {
        refuse(im, "this element type");
        return;
    }
    val_id row = axis_iota(im, DT_i64, t.dims[0], 0, 2),
           col = axis_iota(im, DT_i64, t.dims[1], 1, 2);
    val_id k = scalar_int(im, DT_i64, node_int(n, "k", 0));
    set_out(im, n, 0, cast_to(im, op_2(im, OP_eq, op_2(im, OP_sub, col, row), k), to));
}

/* ---- blocks -------------------------------------------------------------------------------- */
void h_depth_space(struct importer *im, const struct inode *n, int to_space) {
    struct type t = in_type(im, n, 0);
    int64_t b = node_int(n, "blocksize", 0), bb;
    val_id x = get(im, n, 0);
    if (failed(im)) return;
    if (t.rank != 4) {
        reject(im, ST_SHAPE, "input must be [N,C,H,W], found rank %d", t.rank);
        return;
    }
    if (b < 1 || b > 65536) {
        reject(im, ST_SHAPE, "blocksize %lld", (long long)b);
        return;
    }
    bb = b * b;
    dim c, h, w;
    if (to_space) {
        if (!dim_div(im->g->dims, t.dims[1], bb, &c)) {
            reject(im, ST_SHAPE, "channels do not divide by blocksize squared");
            return;
        }
        bool crd = node_str_is(n, "mode", "CRD");
        dim s1[6] = {t.dims[0], crd ? c : b, b, crd ? b : c, t.dims[2], t.dims[3]};
        int64_t dcr_perm[6] = {0, 3, 4, 1, 5, 2}, crd_perm[6] = {0, 1, 4, 2, 5, 3};
        dim s2[4] = {t.dims[0], c, dim_times(im, t.dims[2], b), dim_times(im, t.dims[3], b)};
        x = transpose(im, reshape(im, x, s1, 6), crd ? crd_perm : dcr_perm);
        set_out(im, n, 0, reshape(im, x, s2, 4));
        return;
    }
    if (!dim_div(im->g->dims, t.dims[2], b, &h) || !dim_div(im->g->dims, t.dims[3], b, &w)) {
        reject(im, ST_SHAPE, "height and width must divide by blocksize");
        return;
    }
    dim s1[6] = {t.dims[0], t.dims[1], h, b, w, b};
    int64_t perm[6] = {0, 3, 5, 1, 2, 4};
    dim s2[4] = {t.dims[0], dim_times(im, t.dims[1], bb), h, w};
    set_out(im, n, 0, reshape(im, transpose(im, reshape(im, x, s1, 6), perm), s2, 4));
}

/* ---- what is refused by name ---------------------------------------------------------------- */
void h_constant(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const Onnx__AttributeProto *a = n->nattrs > 0 ? n->attrs[0] : NULL;
    if (a && a->t) {
        refuse(im, "ONNX element type %d", (int)a->t->data_type);
        return;
    }
    refuse(im, "a constant given by '%s'", a ? a->name : "nothing");
}

void h_refuse(struct importer *im, const struct inode *n, int arg) {
    static const char *const why[] = {
        "Lathe has no sorting op",
        "Lathe has no resampling op",
        "the result's shape depends on data",
        "random numbers in a forward graph; only Dropout is known",
        "quantized arithmetic is not a training graph",
        "the shape of something that is no tensor",
        "an optimizer of old training graphs; AdamWOptimizer and SGDOptimizerV2 are read",
    };
    (void)n;
    refuse(im, "%s", why[arg]);
}
