// SPDX-License-Identifier: Apache-2.0
/* import_nn.c - handlers of products, convolution and pooling. Windows are resolved to explicit
 * pads here, with the actual input size; average pooling is a convolution with ones. */
#include "frontend/importer.h"
#include <string.h>

/* ---- matrix products ----------------------------------------------------------------------- */
/* numpy rules: a 1-D operand is a row on the left, a column on the right, and its axis goes. */
static val_id numpy_matmul(struct importer *im, val_id a, val_id b, bool ta, bool tb) {
    struct type s = ty(im, a), t = ty(im, b);
    if (failed(im)) return VAL_NONE;
    if (s.rank == 0 || t.rank == 0) {
        reject(im, ST_SHAPE, "operands must have rank 1 or more");
        return VAL_NONE;
    }
    bool row = s.rank == 1, column = t.rank == 1;
    if (row) a = unsqueeze(im, a, 0);
    if (column) b = unsqueeze(im, b, 1);
    val_id y = matmul(im, a, b, ta && !row, tb && !column);
    if (column) y = squeeze(im, y, ty(im, y).rank - 1);
    if (row) y = squeeze(im, y, ty(im, y).rank - 1 - !column);
    return y;
}

void h_matmul(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    set_out(im, n, 0, numpy_matmul(im, get(im, n, 0), get(im, n, 1), false, false));
}

void h_fused_matmul(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    if (node_int(n, "transBatchA", 0) || node_int(n, "transBatchB", 0)) {
        refuse(im, "transBatchA, transBatchB");
        return;
    }
    val_id y = numpy_matmul(im, get(im, n, 0), get(im, n, 1), node_int(n, "transA", 0) != 0,
                            node_int(n, "transB", 0) != 0);
    set_out(im, n, 0, scale_by(im, y, node_float(n, "alpha", 1)));
}

void h_gemm(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id a = get(im, n, 0), b = get(im, n, 1);
    double alpha = node_float(n, "alpha", 1), beta = node_float(n, "beta", 1);
    if (!failed(im) && (ty(im, a).rank != 2 || ty(im, b).rank != 2)) {
        reject(im, ST_SHAPE, "operands must have rank 2, found %d and %d", ty(im, a).rank,
               ty(im, b).rank);
        return;
    }
    val_id y = matmul(im, a, b, node_int(n, "transA", 0) != 0, node_int(n, "transB", 0) != 0);
    y = scale_by(im, y, alpha);
    val_id c = VAL_NONE;
    if (has_in(n, 2) && beta != 0)
        c = scale_by(im, get(im, n, 2), beta);
    else if (!has_in(n, 2))
        c = bias_restored(im, n, ty(im, y).dims[1], ty(im, y).dtype);
    if (c.i) y = op_2(im, OP_add, y, c);
    set_out(im, n, 0, y);
}

/* ---- Einsum -------------------------------------------------------------------------------- */
enum { LABELS_MAX = 64, TERMS_MAX = 8 };
struct term {
    val_id v;
    int n;
    int label[RANK_MAX];
};

static bool term_has(const struct term *t, int label) {
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label) return true;
    return false;
}

/* Sum out the labels of `t` that `keep` does not want. */
static void term_sum(struct importer *im, struct term *t, bool (*keep)(const void *, int),
                     const void *user) {
    int64_t axes[RANK_MAX];
    int n = 0, k = 0;
    for (int i = 0; i < t->n; i++) {
        if (keep(user, t->label[i]))
            t->label[k++] = t->label[i];
        else
            axes[n++] = i;
    }
    t->n = k;
    if (n) t->v = reduce(im, OP_reduce_sum, t->v, axes, n, false);
}

/* Bring the axes of `t` into the order of `labels`. */
static void term_order(struct importer *im, struct term *t, const int *labels, int n) {
    int64_t perm[RANK_MAX];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < t->n; k++)
            if (t->label[k] == labels[i]) perm[i] = k;
    t->v = transpose(im, t->v, perm);
    memcpy(t->label, labels, (size_t)n * sizeof *labels);
}

struct wanted {
    const struct term *rest; /* operands still to come, and the result last */
    int n;
};
static bool is_wanted(const void *user, int label) {
    const struct wanted *w = user;
    for (int i = 0; i < w->n; i++)
        if (term_has(&w->rest[i], label)) return true;
    return false;
}

/* a*b summed over labels that nothing after them wants, as one batched matrix product. */
static struct term term_product(struct importer *im, struct term *a, struct term *b,
                                const struct wanted *later) {
    struct wanted with_b = {b, later->n + 1}, with_a[1];
    struct term keep_a[TERMS_MAX + 2];
    keep_a[0] = *a;
    memcpy(keep_a + 1, later->rest, (size_t)later->n * sizeof *keep_a);
    with_a[0] = (struct wanted){keep_a, later->n + 1};
    term_sum(im, a, is_wanted, &with_b); /* `b` stands right before the rest */
    keep_a[0] = *a;
    term_sum(im, b, is_wanted, with_a);
    int batch[RANK_MAX], m[RANK_MAX], k[RANK_MAX], p[RANK_MAX], order[RANK_MAX];
    int nb = 0, nm = 0, nk = 0, np = 0;
    for (int i = 0; i < a->n; i++) {
        int l = a->label[i];
        if (!term_has(b, l))
            m[nm++] = l;
        else if (is_wanted(later, l))
            batch[nb++] = l;
        else
            k[nk++] = l;
    }
    for (int i = 0; i < b->n; i++)
        if (!term_has(a, b->label[i])) p[np++] = b->label[i];
    struct term r = {.n = 0};
    if (nb + nm + np > RANK_MAX) {
        refuse(im, "a result of rank over %d", RANK_MAX);
        return r;
    }
    int c = 0;
    for (int i = 0; i < nb; i++) order[c++] = batch[i];
    for (int i = 0; i < nm; i++) order[c++] = m[i];
    for (int i = 0; i < nk; i++) order[c++] = k[i];
    term_order(im, a, order, a->n);
    c = nb;
    for (int i = 0; i < nk; i++) order[c++] = k[i];
    for (int i = 0; i < np; i++) order[c++] = p[i];
    term_order(im, b, order, b->n);
    struct type s = ty(im, a->v), t = ty(im, b->v), out = s;
    dim fa[RANK_MAX], fb[RANK_MAX];
    for (int i = 0; i < nb; i++) {
        fa[i] = s.dims[i];
        fb[i] = t.dims[i];
        out.dims[i] = s.dims[i] == 1 ? t.dims[i] : s.dims[i];
    }
    if (nb + 2 > RANK_MAX) refuse(im, "more than %d batch labels", RANK_MAX - 2);
    if (failed(im)) return r;
    fa[nb] = dims_total(im, s.dims + nb, nm);
    fa[nb + 1] = dims_total(im, s.dims + nb + nm, nk);
    fb[nb] = dims_total(im, t.dims + nb, nk);
    fb[nb + 1] = dims_total(im, t.dims + nb + nk, np);
    for (int i = 0; i < nm; i++) out.dims[nb + i] = s.dims[nb + i];
    for (int i = 0; i < np; i++) out.dims[nb + nm + i] = t.dims[nb + nk + i];
    r.v = matmul(im, reshape(im, a->v, fa, nb + 2), reshape(im, b->v, fb, nb + 2), false, false);
    r.n = nb + nm + np;
    r.v = reshape(im, r.v, out.dims, r.n);
    c = 0;
    for (int i = 0; i < nb; i++) r.label[c++] = batch[i];
    for (int i = 0; i < nm; i++) r.label[c++] = m[i];
    for (int i = 0; i < np; i++) r.label[c++] = p[i];
    return r;
}

/* Labels of one term; an ellipsis becomes numbered labels, aligned at the end. */
static bool read_term(struct importer *im, const char *s, const char *end, int rank, int dots,
                      struct term *t) {
    int letters = 0;
    for (const char *c = s; c < end; c++) letters += *c != ' ' && *c != '.';
    int fill = rank >= 0 ? rank - letters : dots;
    t->n = 0;
    for (const char *c = s; c < end; c++) {
        if (*c == ' ') continue;
        if (*c == '.') {
            for (int i = 0; i < fill && t->n < RANK_MAX; i++) t->label[t->n++] = 256 + fill - 1 - i;
            while (c + 1 < end && c[1] == '.') c++;
            continue;
        }
        if (t->n == RANK_MAX) {
            refuse(im, "more than %d labels in one operand", RANK_MAX);
            return false;
        }
        t->label[t->n++] = *c;
    }
    if (rank >= 0 && t->n != rank) {
        reject(im, ST_SHAPE, "%d labels for an operand of rank %d", t->n, rank);
        return false;
    }
    return true;
}

/* A label twice in one operand is its diagonal: with both axes in front and flattened, every
 * (n+1)-th element. */
static void term_diagonals(struct importer *im, struct term *t) {
    for (int j = t->n - 1; j > 0 && !failed(im); j--) {
        int i = 0;
        while (t->label[i] != t->label[j]) i++;
        struct type s = ty(im, t->v);
        if (i == j) continue;
        if (!dim_known(s.dims[i]) || !dim_same(s.dims[i], s.dims[j])) {
            reject(im, ST_SHAPE, "a label twice, with different or symbolic sizes");
            return;
        }
        int64_t perm[RANK_MAX] = {i, j}, steps[RANK_MAX] = {s.dims[i] + 1};
        dim starts[RANK_MAX] = {0}, flat[RANK_MAX] = {dim_times(im, s.dims[i], s.dims[i])};
        int label[RANK_MAX] = {t->label[i]}, n = 1;
        for (int k = 0; k < t->n; k++) {
            if (k == i || k == j) continue;
            flat[n] = s.dims[k];
            label[n] = t->label[k];
            steps[n] = 1;
            perm[++n] = k;
        }
        t->v = reshape(im, transpose(im, t->v, perm), flat, n);
        flat[0] = s.dims[i];
        t->v = slice(im, t->v, starts, flat, steps);
        t->n = n;
        memcpy(t->label, label, (size_t)n * sizeof *label);
        j = t->n;
    }
}

/* The result when the equation leaves it out: labels that occur once, in alphabetical order. */
static void implicit_result(const struct term *t, int n, struct term *out) {
    out->n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int l = pass ? 0 : 511; pass ? l < 256 : l >= 256; pass ? l++ : l--) {
            int seen = 0;
            for (int i = 0; i < n; i++) seen += term_has(&t[i], l);
            if ((l >= 256 ? seen > 0 : seen == 1) && out->n < RANK_MAX) out->label[out->n++] = l;
        }
}

void h_einsum(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const Onnx__AttributeProto *a = node_attr(n, "equation");
    struct term t[TERMS_MAX + 2];
    if (!a || !a->has_s) {
        reject(im, ST_PARSE, "the equation is missing");
        return;
    }
    const char *eq = arena_strndup(im->a, (const char *)a->s.data, a->s.len);
    const char *arrow = strstr(eq, "->"), *end = arrow ? arrow : eq + strlen(eq), *s = eq;
    int count = 0, dots = 0;
    for (; count < n->nin; count++) {
        if (count == TERMS_MAX) {
            refuse(im, "more than %d operands", TERMS_MAX);
            return;
        }
        const char *comma = memchr(s, ',', (size_t)(end - s)), *stop = comma ? comma : end;
        t[count].v = get(im, n, count);
        if (failed(im) || !read_term(im, s, stop, ty(im, t[count].v).rank, 0, &t[count])) return;
        term_diagonals(im, &t[count]);
        for (int i = 0; i < t[count].n; i++)
            if (t[count].label[i] >= 256 && t[count].label[i] - 255 > dots)
                dots = t[count].label[i] - 255;
        if (!comma) {
            count++;
            break;
        }
        s = comma + 1;
    }
    if (count != n->nin || count == 0) {
        reject(im, ST_SHAPE, "%d terms for %d operands", count, n->nin);
        return;
    }
    struct term *out = &t[count];
    if (!arrow)
        implicit_result(t, count, out);
    else if (!read_term(im, arrow + 2, eq + strlen(eq), -1, dots, out))
        return;
    for (int i = 1; i < count; i++) {
        struct wanted later = {&t[i + 1], count - i};
        t[i] = term_product(im, &t[i - 1], &t[i], &later);
        if (failed(im)) return;
    }
    struct wanted last = {out, 1};
    struct term *r = &t[count - 1];
    term_sum(im, r, is_wanted, &last);
    if (r->n != out->n) {
        refuse(im, "a result label that no operand has");
        return;
    }
    term_order(im, r, out->label, out->n);
    set_out(im, n, 0, r->v);
}

/* ---- windows ------------------------------------------------------------------------------- */
enum { SPATIAL_MAX = RANK_MAX - 2 };
struct window {
    int n;
    int64_t kernel[SPATIAL_MAX], strides[SPATIAL_MAX], dilations[SPATIAL_MAX],
        pads[2 * SPATIAL_MAX];
    bool ceil;
};

static bool window_list(struct importer *im, const struct inode *n, const char *name, int want,
                        int64_t low, int64_t *out, int64_t fallback) {
    int count;
    const int64_t *at = node_ints(n, name, &count);
    for (int i = 0; i < want; i++) out[i] = fallback;
    if (!at) return true;
    if (count != want) {
        reject(im, ST_SHAPE, "'%s' has %d entries, %d expected", name, count, want);
        return false;
    }
    for (int i = 0; i < want; i++) {
        if (at[i] < low || at[i] > INT32_MAX) {
            reject(im, ST_SHAPE, "'%s' holds %lld", name, (long long)at[i]);
            return false;
        }
        out[i] = at[i];
    }
    return true;
}

/* Kernel from `w` (a weight's type) or the attribute; pads made explicit. `x` is the input. */
static bool read_window(struct importer *im, const struct inode *n, const struct type *x,
                        const struct type *w, bool transposed, struct window *win) {
    win->n = x->rank - 2;
    if (x->rank < 3 || (w && w->rank != x->rank)) {
        reject(im, ST_SHAPE, "input of rank %d, expected [N,C,s..]%s", x->rank,
               w ? " and a weight of the same rank" : "");
        return false;
    }
    if (!window_list(im, n, "kernel_shape", win->n, 1, win->kernel, 0) ||
        !window_list(im, n, "strides", win->n, 1, win->strides, 1) ||
        !window_list(im, n, "dilations", win->n, 1, win->dilations, 1) ||
        !window_list(im, n, "pads", 2 * win->n, 0, win->pads, 0))
        return false;
    win->ceil = node_int(n, "ceil_mode", 0) != 0;
    for (int i = 0; i < win->n && w; i++) {
        if (!dim_known(w->dims[2 + i])) {
            refuse(im, "a weight of symbolic size");
            return false;
        }
        win->kernel[i] = w->dims[2 + i];
        if (win->kernel[i] > INT32_MAX) {
            reject(im, ST_SHAPE, "a window of %lld", (long long)win->kernel[i]);
            return false;
        }
    }
    for (int i = 0; i < win->n; i++)
        if (win->kernel[i] < 1) {
            reject(im, ST_SHAPE, "an empty window");
            return false;
        }
    bool upper = node_str_is(n, "auto_pad", "SAME_UPPER");
    bool lower = node_str_is(n, "auto_pad", "SAME_LOWER");
    if (node_str_is(n, "auto_pad", "VALID")) memset(win->pads, 0, sizeof win->pads);
    for (int i = 0; i < win->n && (upper || lower) && !transposed; i++) {
        dim size = x->dims[2 + i];
        int64_t s = win->strides[i], taps = (win->kernel[i] - 1) * win->dilations[i] + 1;
        if (!dim_known(size) && s != 1) {
            refuse(im, "auto_pad on a symbolic size");
            return false;
        }
        int64_t out = dim_known(size) ? (size + s - 1) / s : 0;
        int64_t total = dim_known(size) ? (out - 1) * s + taps - size : taps - 1;
        if (total < 0) total = 0;
        win->pads[i] = upper ? total / 2 : total - total / 2;
        win->pads[win->n + i] = total - win->pads[i];
    }
    return true;
}

static int window_attrs(const struct window *w, struct attr *a) {
    a[0] = (struct attr){.key = ATTR_strides, .list = w->strides, .n = w->n};
    a[1] = (struct attr){.key = ATTR_pads, .list = w->pads, .n = 2 * w->n};
    a[2] = (struct attr){.key = ATTR_dilations, .list = w->dilations, .n = w->n};
    return 3;
}

static val_id add_channels(struct importer *im, val_id y, val_id b) {
    struct type t = ty(im, y), s = ty(im, b);
    dim shape[RANK_MAX];
    if (failed(im)) return VAL_NONE;
    if (s.rank != 1) {
        reject(im, ST_SHAPE, "the bias must have rank 1, found %d", s.rank);
        return VAL_NONE;
    }
    for (int i = 0; i < t.rank - 1; i++) shape[i] = i ? 1 : s.dims[0];
    return op_2(im, OP_add, y, reshape(im, b, shape, t.rank - 1));
}

void h_conv(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id in[2] = {get(im, n, 0), get(im, n, 1)};
    struct type x = ty(im, in[0]), w = ty(im, in[1]);
    struct window win;
    struct attr a[4];
    if (failed(im) || !read_window(im, n, &x, &w, false, &win)) return;
    window_attrs(&win, a);
    a[3] = (struct attr){.key = ATTR_groups, .i = node_int(n, "group", 1)};
    val_id y = add_node(im, OP_conv, in, 2, a, 4);
    val_id b = has_in(n, 2) ? get(im, n, 2) : bias_restored(im, n, w.dims[0], x.dtype);
    set_out(im, n, 0, b.i ? add_channels(im, y, b) : y);
}

/* ConvTranspose is the gradient of a convolution by its input, of the shape that ONNX derives. */
static bool transpose_shape(struct importer *im, const struct inode *n, const struct type *x,
                            struct window *w, struct type *out) {
    int64_t extra[SPATIAL_MAX], given[SPATIAL_MAX];
    int count;
    bool shaped = node_ints(n, "output_shape", &count) != NULL;
    bool upper = node_str_is(n, "auto_pad", "SAME_UPPER");
    bool same = upper || node_str_is(n, "auto_pad", "SAME_LOWER");
    if (!window_list(im, n, "output_padding", w->n, 0, extra, 0)) return false;
    if (shaped && !window_list(im, n, "output_shape", w->n, 0, given, 0)) return false;
    for (int i = 0; i < w->n; i++) {
        dim size = x->dims[2 + i];
        int64_t taps = (w->kernel[i] - 1) * w->dilations[i] + 1 + extra[i];
        dim whole = dim_plus(im, dim_times(im, dim_minus(im, size, 1), w->strides[i]), taps);
        if (!shaped && !same) {
            out->dims[2 + i] = dim_minus(im, whole, w->pads[i] + w->pads[w->n + i]);
            continue;
        }
        dim want = shaped ? given[i] : dim_times(im, size, w->strides[i]);
        if (failed(im)) return false;
        if (!dim_known(whole) || !dim_known(want)) {
            refuse(im, "pads that depend on a symbolic size");
            return false;
        }
        /* More than the windows reach is padded with zeros at the end. */
        int64_t total = whole > want ? whole - want : 0;
        w->pads[i] = upper ? total / 2 : total - total / 2;
        w->pads[w->n + i] = total - w->pads[i];
        out->dims[2 + i] = want;
    }
    return !failed(im);
}

void h_conv_transpose(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id in[2] = {get(im, n, 0), get(im, n, 1)};
    struct type x = ty(im, in[0]), w = ty(im, in[1]), out = x;
    struct window win;
    struct attr a[5];
    int64_t groups = node_int(n, "group", 1);
    if (failed(im) || !read_window(im, n, &x, &w, true, &win)) return;
    if (!transpose_shape(im, n, &x, &win, &out)) return;
    out.dims[1] = dim_times(im, w.dims[1], groups < 1 ? 1 : groups);
    window_attrs(&win, a);
    a[3] = (struct attr){.key = ATTR_groups, .i = groups};
    a[4] = (struct attr){.key = ATTR_shape, .list = out.dims, .n = out.rank};
    val_id y = add_node(im, OP_conv_input_grad, in, 2, a, 5);
    set_out(im, n, 0, has_in(n, 2) ? add_channels(im, y, get(im, n, 2)) : y);
}

/* ---- pooling ------------------------------------------------------------------------------- */
/* Positions within a plane to ONNX's positions within the whole tensor. */
static val_id whole_indices(struct importer *im, val_id idx, const struct type *x) {
    struct type t = ty(im, idx);
    dim planes = dims_total(im, x->dims, 2), plane = dims_total(im, x->dims + 2, x->rank - 2);
    if (failed(im)) return VAL_NONE;
    if (!dim_known(plane)) {
        refuse(im, "the Indices output on a symbolic size");
        return VAL_NONE;
    }
    for (int i = 2; i < t.rank; i++) t.dims[i] = 1;
    val_id base = reshape(im, iota(im, DT_i64, planes, 0, (double)plane), t.dims, t.rank);
    return op_2(im, OP_add, idx, base);
}

void h_max_pool(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id x = get(im, n, 0);
    struct type t = ty(im, x);
    struct window w;
    struct attr a[5];
    if (failed(im) || !read_window(im, n, &t, NULL, false, &w)) return;
    window_attrs(&w, a);
    a[3] = (struct attr){.key = ATTR_kernel, .list = w.kernel, .n = w.n};
    a[4] = (struct attr){.key = ATTR_ceil, .i = w.ceil};
    val_id y = add_node(im, OP_max_pool, &x, 1, a, 5);
    set_out(im, n, 0, y);
    if (!has_out(n, 1) || failed(im)) return;
    if (node_int(n, "storage_order", 0)) {
        refuse(im, "Indices in column order");
        return;
    }
    set_out(im, n, 1, whole_indices(im, val_at(y, 1), &t));
}

/* Extra zeros after the end so that a floor window count gives the ceil one. */
static bool ceil_pads(struct importer *im, const struct type *x, struct window *w, int64_t *more) {
    for (int i = 0; i < w->n; i++) {
        dim size = x->dims[2 + i];
        more[i] = 0;
        if (!w->ceil) continue;
        if (!dim_known(size)) {
            refuse(im, "ceil_mode on a symbolic size");
            return false;
        }
        int64_t s = w->strides[i], taps = (w->kernel[i] - 1) * w->dilations[i] + 1;
        int64_t padded = size + w->pads[i] + w->pads[w->n + i];
        if (padded < taps) continue;
        int64_t out = (padded - taps + s - 1) / s + 1;
        if ((out - 1) * s >= size + w->pads[i]) out--;
        int64_t need = (out - 1) * s + taps - padded;
        more[i] = need > 0 ? need : 0;
    }
    return true;
}

static val_id conv_ones(struct importer *im, val_id x, const struct window *w, enum dtype t) {
    dim shape[RANK_MAX] = {1, 1};
    struct attr a[4];
    for (int i = 0; i < w->n; i++) shape[2 + i] = w->kernel[i];
    val_id in[2] = {x, full(im, t, shape, w->n + 2, 1)};
    window_attrs(w, a);
    a[3] = (struct attr){.key = ATTR_groups, .i = 1};
    return add_node(im, OP_conv, in, 2, a, 4);
}

/* How many elements each window really covers; the pads count when `include`. */
static val_id covered(struct importer *im, const struct type *t, const struct window *w,
                      const int64_t *more, bool include) {
    dim ones[RANK_MAX] = {1, 1};
    struct window cover = *w;
    for (int i = 0; i < w->n; i++) {
        ones[2 + i] = t->dims[2 + i];
        cover.pads[w->n + i] += more[i];
        if (!include) continue;
        ones[2 + i] = dim_plus(im, ones[2 + i], w->pads[i] + w->pads[w->n + i]);
        cover.pads[i] = 0;
        cover.pads[w->n + i] = more[i];
    }
    return conv_ones(im, full(im, t->dtype, ones, w->n + 2, 1), &cover, t->dtype);
}

/* (sum |x|^p)^(1/p) takes `lp`: the powers before the sum and the root after it. */
static val_id power_of(struct importer *im, val_id x, double p) {
    if (p == 1.0) return x;
    return op_2(im, OP_pow, x, scalar(im, ty(im, x).dtype, p));
}

/* AveragePool, and LpPool (lp), which sums powers over the window and does not divide. */
void h_average_pool(struct importer *im, const struct inode *n, int lp) {
    val_id x = get(im, n, 0);
    double p = (double)node_int(n, "p", 2);
    if (lp && p < 1) {
        reject(im, ST_SHAPE, "p = %g", p);
        return;
    }
    if (lp) x = power_of(im, op_1(im, OP_abs, x), p);
    struct type t = ty(im, x), r;
    struct window w;
    int64_t more[SPATIAL_MAX];
    double taps = 1; /* the product of ten kernels may exceed 64 bits */
    if (failed(im) || !read_window(im, n, &t, NULL, false, &w) || !ceil_pads(im, &t, &w, more))
        return;
    bool include = node_int(n, "count_include_pad", 0) != 0, padded = false, grown = false;
    for (int i = 0; i < w.n; i++) {
        taps *= (double)w.kernel[i];
        padded |= w.pads[i] || w.pads[w.n + i];
        grown |= more[i] > 0;
    }
    struct type flat = t;
    flat.dims[0] = dims_total(im, t.dims, 2);
    flat.dims[1] = 1;
    struct window wide = w;
    for (int i = 0; i < w.n; i++) wide.pads[w.n + i] += more[i];
    val_id y = conv_ones(im, reshape(im, x, flat.dims, flat.rank), &wide, t.dtype);
    if (lp) {
        y = power_of(im, y, 1 / p);
    } else if (grown || (padded && !include)) {
        y = op_2(im, OP_div, y, covered(im, &t, &w, more, include));
    } else {
        y = scale_by(im, y, 1.0 / taps);
    }
    r = ty(im, y);
    r.dims[0] = t.dims[0];
    r.dims[1] = t.dims[1];
    set_out(im, n, 0, reshape(im, y, r.dims, r.rank));
}

void h_global_pool(struct importer *im, const struct inode *n, int op) {
    val_id x = get(im, n, 0);
    int64_t axes[RANK_MAX];
    int rank = ty(im, x).rank, count = 0;
    if (!failed(im) && rank < 3) {
        reject(im, ST_SHAPE, "input must be [N,C,s..]");
        return;
    }
    for (int i = 2; i < rank; i++) axes[count++] = i;
    set_out(im, n, 0, reduce(im, (enum op)op, x, axes, count, true));
}
