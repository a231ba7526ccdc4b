// SPDX-License-Identifier: Apache-2.0
/* import_slice.c - handlers of Slice, Tile and Pad. */
#include "frontend/importer.h"
#include <string.h>

/* ---- slicing ------------------------------------------------------------------------------- */
/* One axis of a Slice: ONNX clamps both ends; sizes that stay symbolic are taken to be in range. */
static bool slice_range(struct importer *im, dim size, struct num s, struct num e, int64_t step,
                        dim *start, dim *count) {
    struct dims_table *t = im->g->dims;
    bool numbers = dim_known(size) && !s.sym && !e.sym;
    if (numbers) {
        int64_t lo = s.v < 0 ? (s.v < -size ? (step < 0 ? -1 : 0) : s.v + size) : s.v;
        int64_t hi = e.v < 0 ? (e.v < -size ? -1 : e.v + size) : e.v;
        int64_t top = step < 0 ? size - 1 : size;
        if (lo > top) lo = top;
        if (hi > top) hi = top;
        if (step > 0 && hi < 0) hi = 0;
        int64_t span = step > 0 ? hi - lo : lo - hi, by = step > 0 ? step : -step;
        *count = span <= 0 ? 0 : (span - 1) / by + 1;
        *start = *count == 0 ? 0 : lo;
        return true;
    }
    dim lo = s.v, hi = e.v;
    if (step != 1) {
        refuse(im, "step %lld on a symbolic size", (long long)step);
        return false;
    }
    /* Known sizes are clamped here too: a negative dim would be read as a symbol. */
    if (!s.sym && s.v < 0) lo = dim_known(size) && s.v >= -size ? size + s.v : 0;
    if (!s.sym && s.v < 0 && s.v > -INT32_MAX && !dim_known(size) &&
        !dim_try_sub(t, size, -s.v, &lo))
        return false;
    if (!e.sym && (e.v >= INT32_MAX || (dim_known(size) && e.v > size))) hi = size;
    if (!e.sym && e.v < 0) hi = dim_known(size) && e.v >= -size ? size + e.v : 0;
    if (!e.sym && e.v < 0 && !dim_known(size) &&
        (e.v < -INT32_MAX || !dim_try_sub(t, size, -e.v, &hi))) {
        refuse(im, "an end that cannot be derived from symbolic sizes");
        return false;
    }
    bool empty = dim_known(lo) && dim_known(hi) && hi < lo;
    *start = empty ? 0 : lo;
    *count = empty ? 0 : dim_minus(im, hi, lo);
    return !failed(im);
}

/* Starts, ends, axes and steps of a Slice, from attributes (before opset 10) or inputs. */
struct slicing {
    int n;
    struct num starts[RANK_MAX], ends[RANK_MAX];
    int64_t axes[RANK_MAX], steps[RANK_MAX];
};

static bool slicing_attrs(struct importer *im, const struct inode *n, struct slicing *s) {
    int ends, axes;
    const int64_t *from = node_ints(n, "starts", &s->n), *to = node_ints(n, "ends", &ends);
    const int64_t *a = node_ints(n, "axes", &axes);
    if (s->n != ends || s->n > RANK_MAX || (a && axes != s->n)) {
        reject(im, ST_SHAPE, "starts, ends and axes differ in length");
        return false;
    }
    for (int i = 0; i < s->n; i++) {
        s->starts[i] = (struct num){from[i], false};
        s->ends[i] = (struct num){to[i], false};
        if (a) s->axes[i] = a[i];
    }
    return true;
}

/* Optional input k as `want` numbers. */
static bool slicing_numbers(struct importer *im, const struct inode *n, int k, int want,
                            int64_t *out) {
    const int64_t *at;
    int64_t count;
    if (!has_in(n, k)) return true;
    if (!known_numbers(im, n, k, &at, &count)) {
        refuse(im, "axes or steps that are computed at run time");
        return false;
    }
    if (count != want) {
        reject(im, ST_SHAPE, "starts, ends, axes and steps differ in length");
        return false;
    }
    memcpy(out, at, (size_t)want * sizeof *out);
    return true;
}

static bool slicing_inputs(struct importer *im, const struct inode *n, struct slicing *s) {
    int ends;
    if (!shape_input(im, n, 1, s->starts, &s->n) || !shape_input(im, n, 2, s->ends, &ends))
        return false;
    if (s->n != ends) {
        reject(im, ST_SHAPE, "starts and ends differ in length");
        return false;
    }
    return slicing_numbers(im, n, 3, s->n, s->axes) && slicing_numbers(im, n, 4, s->n, s->steps);
}

void h_slice(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct type t = in_type(im, n, 0), r = t;
    struct slicing s;
    dim from[RANK_MAX] = {0};
    int64_t by[RANK_MAX];
    bool seen[RANK_MAX] = {false};
    val_id x = get(im, n, 0);
    for (int i = 0; i < RANK_MAX; i++) {
        s.axes[i] = i;
        s.steps[i] = by[i] = 1;
    }
    if (failed(im) || !(n->opset < 10 ? slicing_attrs(im, n, &s) : slicing_inputs(im, n, &s)))
        return;
    for (int i = 0; i < s.n; i++) {
        int64_t a = s.axes[i], step = s.steps[i];
        if (!axis_fix(im, &a, t.rank)) return;
        if (step == 0 || step == INT64_MIN || seen[a]) {
            reject(im, ST_SHAPE, "a step of 0 or an axis named twice");
            return;
        }
        seen[a] = true;
        if (!slice_range(im, t.dims[a], s.starts[i], s.ends[i], step, &from[a], &r.dims[a])) return;
        by[a] = dim_known(r.dims[a]) && r.dims[a] <= 1 ? 1 : step;
    }
    set_out(im, n, 0, slice(im, x, from, r.dims, by));
}

void h_tile(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct type t = in_type(im, n, 0), w = {.rank = 0}, r = t;
    struct num reps[RANK_MAX];
    dim inner[RANK_MAX];
    int count;
    val_id x = get(im, n, 0);
    if (!shape_input(im, n, 1, reps, &count)) return;
    if (count != t.rank) {
        reject(im, ST_SHAPE, "%d repeats for rank %d", count, t.rank);
        return;
    }
    int pairs = 0;
    for (int i = 0; i < t.rank; i++) {
        dim k;
        if (!num_dim(reps[i], &k)) {
            reject(im, ST_SHAPE, "a negative repeat");
            return;
        }
        r.dims[i] = dim_times(im, t.dims[i], k);
        pairs += k != 1;
        if (t.rank + pairs > RANK_MAX) {
            refuse(im, "rank too high");
            return;
        }
        if (k != 1) {
            inner[w.rank] = 1;
            w.dims[w.rank++] = k;
        }
        inner[w.rank] = t.dims[i];
        w.dims[w.rank++] = t.dims[i];
    }
    x = expand(im, reshape(im, x, inner, w.rank), w.dims, w.rank);
    set_out(im, n, 0, reshape(im, x, r.dims, r.rank));
}

/* ---- padding ------------------------------------------------------------------------------- */
enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };

/* Pieces of `x` along one axis that continue it by `low` and `high` elements. */
static val_id pad_axis(struct importer *im, val_id x, int axis, int64_t low, int64_t high,
                       enum pad_mode mode) {
    struct type t = ty(im, x);
    int64_t size = t.dims[axis], most = mode == PAD_REFLECT ? size - 1 : size;
    if (failed(im) || (low == 0 && high == 0)) return x;
    if (!dim_known(size) || size == 0 || (mode != PAD_EDGE && (low > most || high > most))) {
        refuse(im, "padding by more than the size, or on a symbolic size");
        return VAL_NONE;
    }
    val_id parts[3];
    int n = 0;
    struct type part = t;
    dim starts[RANK_MAX] = {0};
    int64_t steps[RANK_MAX];
    for (int i = 0; i < RANK_MAX; i++) steps[i] = 1;
    for (int side = 0; side < 2; side++) {
        int64_t k = side ? high : low;
        if (side) parts[n++] = x;
        if (k == 0) continue;
        part.dims[axis] = mode == PAD_EDGE ? 1 : k;
        steps[axis] = mode == PAD_REFLECT && k > 1 ? -1 : 1;
        starts[axis] = mode == PAD_EDGE   ? (side ? size - 1 : 0)
                       : mode == PAD_WRAP ? (side ? 0 : size - k)
                                          : (side ? size - 2 : k);
        val_id p = slice(im, x, starts, part.dims, steps);
        part.dims[axis] = k;
        parts[n++] = expand(im, p, part.dims, part.rank);
    }
    return concat(im, parts, n, axis);
}

static val_id pad_constant(struct importer *im, const struct inode *n, val_id x, const int64_t *low,
                           const int64_t *high) {
    double value = node_float(n, "value", 0);
    struct type t = ty(im, x);
    if (n->opset >= 11 && has_in(n, 2)) {
        if (!known_float(im, n, 2, &value)) {
            refuse(im, "a fill value that is computed at run time");
            return VAL_NONE;
        }
    }
    bool boolean = t.dtype == DT_bool;
    if (boolean) x = cast_to(im, x, DT_u8);
    x = pad(im, x, low, high, NULL, value);
    return boolean ? cast_to(im, x, DT_bool) : x;
}

void h_pad(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct type t = in_type(im, n, 0);
    int64_t low[RANK_MAX] = {0}, high[RANK_MAX] = {0}, axes[RANK_MAX], known = 0, na;
    int count = t.rank, c;
    const int64_t *pads, *named;
    for (int i = 0; i < RANK_MAX; i++) axes[i] = i;
    if (n->opset < 11) {
        pads = node_ints(n, n->opset < 2 ? "paddings" : "pads", &c);
        known = c;
    } else if (!known_numbers(im, n, 1, &pads, &known)) {
        refuse(im, "pads that are computed at run time");
        return;
    }
    if (has_in(n, 3)) {
        if (!known_numbers(im, n, 3, &named, &na) || na > RANK_MAX) {
            refuse(im, "axes that are computed at run time");
            return;
        }
        count = (int)na;
        for (int i = 0; i < count; i++) axes[i] = named[i];
    }
    if (known != 2 * count) {
        reject(im, ST_SHAPE, "%lld pads for %d axes", (long long)known, count);
        return;
    }
    enum pad_mode mode = node_str_is(n, "mode", "reflect") ? PAD_REFLECT
                         : node_str_is(n, "mode", "edge")  ? PAD_EDGE
                         : node_str_is(n, "mode", "wrap")  ? PAD_WRAP
                                                           : PAD_CONSTANT;
    val_id x = get(im, n, 0);
    for (int i = 0; i < count; i++) {
        if (!axis_fix(im, &axes[i], t.rank)) return;
        int64_t lo = pads[i], hi = pads[count + i];
        int a = (int)axes[i];
        if (lo < -((int64_t)1 << 40) || hi < -((int64_t)1 << 40)) {
            reject(im, ST_SHAPE, "a pad of %lld", (long long)(lo < hi ? lo : hi));
            return;
        }
        if (lo < 0 || hi < 0) { /* negative pads crop */
            dim cut = (lo < 0 ? -lo : 0) + (hi < 0 ? -hi : 0);
            x = slice_axis(im, x, a, lo < 0 ? -lo : 0, dim_minus(im, ty(im, x).dims[a], cut));
            if (failed(im)) return;
        }
        low[a] = lo < 0 ? 0 : lo;
        high[a] = hi < 0 ? 0 : hi;
        if (mode != PAD_CONSTANT) x = pad_axis(im, x, a, low[a], high[a], mode);
    }
    if (mode == PAD_CONSTANT) x = pad_constant(im, n, x, low, high);
    set_out(im, n, 0, x);
}
