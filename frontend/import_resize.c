// SPDX-License-Identifier: Apache-2.0
/* import_resize.c - Resize and Upsample. Sizes and scales are known at import, so each resized axis
 * becomes a lookup of rows (nearest) or a product with a small matrix of weights (linear, cubic):
 * both have gradients. Coordinates and filters are those of the ONNX operator specification. */
#include "frontend/importer.h"
#include <math.h>
#include <string.h>

enum mode { NEAREST, LINEAR, CUBIC };
enum coord { HALF_PIXEL, HALF_SYMMETRIC, PYTORCH_HALF, ALIGN_CORNERS, ASYMMETRIC, CROP };
enum rounding { PREFER_FLOOR, PREFER_CEIL, FLOOR, CEIL };

enum { CELLS_MAX = 1 << 24 }; /* of one index list or weight matrix */

struct resize {
    enum mode mode;
    enum coord coord;
    enum rounding rounding;
    bool antialias, exclude;
    double a, outside;                   /* cubic coefficient; value outside the crop */
    int n, axes[RANK_MAX];               /* what is resized */
    double scale[RANK_MAX];              /* by axis of the input */
    double from[RANK_MAX], to[RANK_MAX]; /* crop, as parts of the axis */
    int64_t size[RANK_MAX];              /* of the result */
};

/* Position in the input of element `i` of the result. */
static double position(const struct resize *r, int axis, int64_t in, int64_t i) {
    double s = r->scale[axis], x = (double)i, last = (double)(in - 1), wide = s * (double)in;
    int64_t out = r->size[axis];
    switch (r->coord) {
    case HALF_PIXEL: return (x + 0.5) / s - 0.5;
    case HALF_SYMMETRIC: {
        double adjust = (double)out / wide, centre = (double)in / 2;
        return centre * (1 - adjust) + (x + 0.5) / s - 0.5;
    }
    case PYTORCH_HALF: return out > 1 ? (x + 0.5) / s - 0.5 : 0;
    case ALIGN_CORNERS: return wide <= 1 ? 0 : x * last / (wide - 1);
    case ASYMMETRIC: return x / s;
    case CROP:
        if (out == 1) return 0.5 * (r->from[axis] + r->to[axis]) * last;
        return r->from[axis] * last + x * (r->to[axis] - r->from[axis]) * last / (double)(out - 1);
    }
    return 0;
}

static int64_t nearest(const struct resize *r, double x) {
    switch (r->rounding) {
    case PREFER_FLOOR: return (int64_t)ceil(x - 0.5);
    case PREFER_CEIL: return (int64_t)floor(x + 0.5);
    case FLOOR: return (int64_t)floor(x);
    case CEIL: return (int64_t)ceil(x);
    }
    return 0;
}

/* Filter weight at distance d: a triangle, or the cubic convolution of Keys (1981). */
static double filter(const struct resize *r, double d) {
    d = fabs(d);
    if (r->mode == LINEAR) return d < 1 ? 1 - d : 0;
    if (d <= 1) return ((r->a + 2) * d - (r->a + 3)) * d * d + 1;
    if (d < 2) return ((r->a * d - 5 * r->a) * d + 8 * r->a) * d - 4 * r->a;
    return 0;
}

/* Weights of the input elements in element `i` of the result: row[in]. */
static void weights_at(const struct resize *r, int axis, int64_t in, int64_t i, double *row) {
    double x = position(r, axis, in, i), sum = 0;
    double s = r->antialias && r->scale[axis] < 1 ? r->scale[axis] : 1;
    double reach = (r->mode == LINEAR ? 1 : 2) / s;
    for (int64_t j = 0; j < in; j++) row[j] = 0;
    for (double at = ceil(x - reach); at <= x + reach; at++) {
        double w = filter(r, (at - x) * s);
        bool inside = at >= 0 && at <= (double)(in - 1);
        if (!inside && r->exclude) continue;
        sum += w;
        row[at < 0 ? 0 : inside ? (int64_t)at : in - 1] += w;
    }
    for (int64_t j = 0; j < in && sum != 0; j++) row[j] /= sum;
}

static val_id lookup_axis(struct importer *im, val_id x, const struct resize *r, int axis) {
    int64_t in = ty(im, x).dims[axis], out = r->size[axis];
    int64_t *at = ARENA_ARRAY(im->a, int64_t, (size_t)out);
    for (int64_t i = 0; i < out; i++) {
        int64_t k = nearest(r, position(r, axis, in, i));
        at[i] = k < 0 ? 0 : k >= in ? in - 1 : k;
    }
    struct type t = {DT_i64, 1, {out}};
    return gather(im, x, constant(im, &t, at, true), axis);
}

static val_id blend_axis(struct importer *im, val_id x, const struct resize *r, int axis) {
    struct type t = ty(im, x);
    int64_t in = t.dims[axis], out = r->size[axis];
    if (in * out > CELLS_MAX) {
        refuse(im, "resizing %lld to %lld elements by weights", (long long)in, (long long)out);
        return VAL_NONE;
    }
    enum dtype work = t.dtype == DT_f64 ? DT_f64 : DT_f32;
    size_t each = dtype_size(work);
    double *row = ARENA_ARRAY(im->a, double, (size_t)in);
    char *m = arena_array(im->a, (size_t)(in * out), each);
    for (int64_t i = 0; i < out; i++) {
        weights_at(r, axis, in, i, row);
        for (int64_t j = 0; j < in; j++) dtype_store(work, m + (size_t)(i * in + j) * each, row[j]);
    }
    struct type w = {work, 2, {out, in}};
    val_id y = swap_axes(im, cast_to(im, x, work), axis, t.rank - 1);
    struct type s = ty(im, y);
    dim flat[2] = {dims_total(im, s.dims, s.rank - 1), in};
    y = matmul(im, reshape(im, y, flat, 2), constant(im, &w, m, true), false, true);
    s.dims[s.rank - 1] = out;
    y = swap_axes(im, reshape(im, y, s.dims, s.rank), axis, t.rank - 1);
    return cast_to(im, y, t.dtype);
}

/* Where the crop reaches beyond the input, the result is a fixed value. */
static val_id fill_outside(struct importer *im, val_id y, const struct resize *r,
                           const struct type *in) {
    struct type t = ty(im, y);
    for (int k = 0; k < r->n && !failed(im); k++) {
        int axis = r->axes[k];
        int64_t out = r->size[axis];
        uint8_t *off = ARENA_ARRAY(im->a, uint8_t, (size_t)out);
        bool any = false;
        for (int64_t i = 0; i < out; i++) {
            double x = position(r, axis, in->dims[axis], i);
            off[i] = x < 0 || x > (double)(in->dims[axis] - 1);
            any |= off[i];
        }
        if (!any) continue;
        struct type m = {DT_bool, 1, {out}};
        dim shape[RANK_MAX];
        for (int i = 0; i < t.rank; i++) shape[i] = i == axis ? out : 1;
        val_id mask = reshape(im, constant(im, &m, off, true), shape, t.rank);
        y = op_3(im, OP_where, mask, scalar(im, t.dtype, r->outside), y);
    }
    return y;
}

/* ---- the node ------------------------------------------------------------------------------ */
/* Index of the attribute's text in `names`; the first when it is absent, -1 after a refusal. */
static int choice(struct importer *im, const struct inode *n, const char *attr,
                  const char *const *names) {
    if (!node_has(n, attr)) return 0;
    for (int i = 0; names[i]; i++)
        if (node_str_is(n, attr, names[i])) return i;
    refuse(im, "this '%s'", attr);
    return -1;
}

static void read_modes(struct importer *im, const struct inode *n, struct resize *r) {
    static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
    static const char *const coords[] = {"half_pixel",
                                         "half_pixel_symmetric",
                                         "pytorch_half_pixel",
                                         "align_corners",
                                         "asymmetric",
                                         "tf_crop_and_resize",
                                         NULL};
    static const char *const rounds[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil",
                                         NULL};
    r->mode = (enum mode)choice(im, n, "mode", modes);
    if (n->opset < 11) { /* Upsample and the first Resize */
        r->coord = ASYMMETRIC;
        r->rounding = FLOOR;
    } else {
        r->coord = (enum coord)choice(im, n, "coordinate_transformation_mode", coords);
        r->rounding = (enum rounding)choice(im, n, "nearest_mode", rounds);
    }
    r->antialias = node_int(n, "antialias", 0) != 0;
    r->exclude = node_int(n, "exclude_outside", 0) != 0;
    r->a = node_float(n, "cubic_coeff_a", -0.75);
    r->outside = node_float(n, "extrapolation_value", 0);
}

static bool read_axes(struct importer *im, const struct inode *n, int rank, struct resize *r) {
    int count;
    const int64_t *at = node_ints(n, "axes", &count);
    r->n = at ? count : rank;
    if (r->n > rank) {
        reject(im, ST_SHAPE, "%d axes for rank %d", count, rank);
        return false;
    }
    for (int i = 0; i < r->n; i++) {
        int64_t axis = at ? at[i] : i;
        if (!axis_fix(im, &axis, rank)) return false;
        r->axes[i] = (int)axis;
    }
    return true;
}

/* `count` floats of input k; false when they are not known. */
static bool read_floats(struct importer *im, const struct inode *n, int k, int64_t count,
                        const double **out) {
    struct content c;
    if (!known_content(im, n, k, &c) || !c.floats) {
        refuse(im, "scales or a region that are computed at run time");
        return false;
    }
    if (c.n != count) {
        reject(im, ST_SHAPE, "%lld scales or bounds, expected %lld", (long long)c.n,
               (long long)count);
        return false;
    }
    *out = c.floats;
    return true;
}

static bool sizes_by_scale(struct importer *im, const struct inode *n, const struct type *t,
                           struct resize *r) {
    const Onnx__AttributeProto *attr = node_attr(n, "scales"); /* Upsample-7 */
    const double *s = NULL;
    int slot = n->opset < 11 ? 1 : 2;
    if (attr && (int)attr->n_floats != r->n) {
        reject(im, ST_SHAPE, "%zu scales for %d axes", attr->n_floats, r->n);
        return false;
    }
    if (!attr && !read_floats(im, n, slot, r->n, &s)) return false;
    for (int i = 0; i < r->n; i++) {
        double x = attr ? (double)attr->floats[i] : s[i];
        double size = floor(x * (double)t->dims[r->axes[i]]);
        if (!(x > 0) || !(size >= 0 && size < 1e9)) {
            reject(im, ST_SHAPE, "a scale of %g", x);
            return false;
        }
        r->scale[r->axes[i]] = x;
        r->size[r->axes[i]] = (int64_t)size;
    }
    return true;
}

static bool sizes_given(struct importer *im, const struct inode *n, const struct type *t,
                        struct resize *r) {
    const int64_t *s;
    int64_t count;
    if (!known_numbers(im, n, 3, &s, &count)) {
        refuse(im, "sizes that are computed at run time");
        return false;
    }
    if (count != r->n) {
        reject(im, ST_SHAPE, "%lld sizes for %d axes", (long long)count, r->n);
        return false;
    }
    bool less = node_str_is(n, "keep_aspect_ratio_policy", "not_larger");
    bool more = node_str_is(n, "keep_aspect_ratio_policy", "not_smaller");
    double common = 0;
    for (int i = 0; i < r->n; i++) {
        int64_t in = t->dims[r->axes[i]];
        if (s[i] < 0 || s[i] > 1000000000 || in < 1) {
            reject(im, ST_SHAPE, "resizing %lld elements to %lld", (long long)in, (long long)s[i]);
            return false;
        }
        double x = (double)s[i] / (double)in;
        if (i == 0 || (less && x < common) || (more && x > common)) common = x;
    }
    for (int i = 0; i < r->n; i++) {
        int axis = r->axes[i];
        bool kept = less || more;
        r->scale[axis] = kept ? common : (double)s[i] / (double)t->dims[axis];
        r->size[axis] = kept ? (int64_t)floor(common * (double)t->dims[axis] + 0.5) : s[i];
    }
    return true;
}

void h_resize(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    struct resize r = {.mode = NEAREST};
    const double *roi = NULL;
    if (failed(im) || !read_axes(im, n, t.rank, &r)) return;
    read_modes(im, n, &r);
    if (!type_static(&t)) {
        refuse(im, "an input of symbolic size; give the sizes numbers");
        return;
    }
    if (failed(im)) return;
    if (!(n->opset >= 11 && has_in(n, 3) ? sizes_given(im, n, &t, &r)
                                         : sizes_by_scale(im, n, &t, &r)))
        return;
    if (r.coord == CROP && !read_floats(im, n, 1, 2 * (int64_t)r.n, &roi)) return;
    for (int i = 0; i < 2 * r.n && roi; i++)
        if (!(fabs(roi[i]) < 1e6)) {
            reject(im, ST_SHAPE, "a region that reaches to %g", roi[i]);
            return;
        }
    for (int i = 0; i < r.n && roi; i++) {
        r.from[r.axes[i]] = roi[i];
        r.to[r.axes[i]] = roi[r.n + i];
    }
    if (r.mode != NEAREST && !dtype_is_float(t.dtype)) {
        refuse(im, "interpolating integers");
        return;
    }
    for (int i = 0; i < r.n && !failed(im); i++) {
        int axis = r.axes[i];
        bool whole = r.size[axis] == t.dims[axis] && r.scale[axis] == 1 && r.coord != CROP;
        if (whole) continue;
        if (t.dims[axis] < 1) reject(im, ST_SHAPE, "an axis without elements");
        if (r.size[axis] > CELLS_MAX) refuse(im, "%lld elements", (long long)r.size[axis]);
        if (failed(im)) return;
        x = r.mode == NEAREST ? lookup_axis(im, x, &r, axis) : blend_axis(im, x, &r, axis);
    }
    set_out(im, n, 0, r.coord == CROP ? fill_outside(im, x, &r, &t) : x);
}
