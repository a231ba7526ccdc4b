// SPDX-License-Identifier: Apache-2.0
/* import_sequence.c - handlers of Split and of sequences, which are folded away: a sequence is a
 * list of values that only the importer knows. */
#include "frontend/importer.h"
#include <string.h>

/* ---- splitting ----------------------------------------------------------------------------- */
/* Sizes of the pieces along `axis`; `count` pieces asked for, or 0 when the sizes say. */
static int split_sizes(struct importer *im, const struct inode *n, const struct type *t, int axis,
                       int count, dim *sizes, int max) {
    int given;
    const int64_t *attr = node_ints(n, "split", &given);
    const struct num *in;
    int64_t known;
    if (has_in(n, 1)) {
        if (!known_ints(im, n, 1, &in, &known)) {
            refuse(im, "sizes that are computed at run time");
            return 0;
        }
        if (known > max) {
            reject(im, ST_SHAPE, "%lld sizes for %d outputs", (long long)known, max);
            return 0;
        }
        for (int i = 0; i < known; i++)
            if (!num_dim(in[i], &sizes[i])) {
                reject(im, ST_SHAPE, "a piece of size %lld", (long long)in[i].v);
                return 0;
            }
        return (int)known;
    }
    if (attr && given > max) {
        reject(im, ST_SHAPE, "%d sizes for %d outputs", given, max);
        return 0;
    }
    for (int i = 0; attr && i < given; i++) {
        sizes[i] = attr[i];
        if (attr[i] >= 0) continue; /* a negative dim would be read as a symbol */
        reject(im, ST_SHAPE, "a piece of size %lld", (long long)attr[i]);
        return 0;
    }
    if (attr) return given;
    dim whole = t->dims[axis], each;
    int64_t pieces = node_int(n, "num_outputs", count);
    if (pieces < 1 || pieces > max) {
        reject(im, ST_SHAPE, "%lld pieces for %d outputs", (long long)pieces, max);
        return 0;
    }
    count = (int)pieces;
    if (dim_known(whole)) {
        each = (whole + count - 1) / count;
        for (int i = 0; i < count; i++) {
            dim left = whole - i * each;
            sizes[i] = left < 0 ? 0 : left < each ? left : each;
        }
    } else if (dim_div(im->g->dims, whole, count, &each)) {
        for (int i = 0; i < count; i++) sizes[i] = each;
    } else {
        refuse(im, "a symbolic size that is not known to divide into %d", count);
        return 0;
    }
    return count;
}

void h_split(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    struct type t = in_type(im, n, 0);
    int axis = axis_attr(im, n, 0, t.rank);
    dim *sizes = ARENA_ARRAY(im->a, dim, (size_t)n->nout + 1), from = 0;
    val_id x = get(im, n, 0);
    if (failed(im)) return;
    int count = split_sizes(im, n, &t, axis, n->nout, sizes, n->nout);
    for (int i = 0; i < count; i++) {
        if (has_out(n, i)) set_out(im, n, i, slice_axis(im, x, axis, from, sizes[i]));
        from = dim_plus(im, from, sizes[i]);
    }
    if (!failed(im) && count != n->nout)
        reject(im, ST_SHAPE, "%d sizes for %d outputs", count, n->nout);
    if (!failed(im) && !dim_same(from, t.dims[axis]) && dim_known(from) && dim_known(t.dims[axis]))
        reject(im, ST_SHAPE, "the pieces add up to %lld, not %lld", (long long)from,
               (long long)t.dims[axis]);
}

static uint32_t new_item(struct importer *im, val_id v) {
    struct ivalue x = {.name = "", .kind = VK_TENSOR, .type = ty(im, v), .val = v};
    vec_push(im->a, &im->values, x);
    return im->values.n - 1;
}

/* Output k is the sequence of these values. */
static void put_sequence(struct importer *im, const struct inode *n, int k, uint32_t *items,
                         uint32_t count) {
    if (!has_out(n, k)) return;
    struct ivalue *out = iv(im, n->out[k]);
    out->kind = VK_SEQUENCE;
    out->items = items;
    out->nitems = count;
}

void h_split_to_sequence(struct importer *im, const struct inode *n, int arg) {
    enum { PIECES_MAX = 4096 };
    (void)arg;
    struct type t = in_type(im, n, 0);
    int axis = axis_attr(im, n, 0, t.rank);
    if (failed(im)) return;
    val_id x = get(im, n, 0);
    dim whole = t.dims[axis], from = 0;
    const struct num *sizes = NULL;
    int64_t count = 0;
    bool each = !has_in(n, 1);
    if (!each && !known_ints(im, n, 1, &sizes, &count)) {
        refuse(im, "sizes that are computed at run time");
        return;
    }
    if (each || in_type(im, n, 1).rank == 0) {
        int64_t step = each ? 1 : sizes[0].v;
        if (!dim_known(whole) || (!each && sizes[0].sym)) {
            refuse(im, "splitting a symbolic size");
            return;
        }
        if (step < 1) {
            reject(im, ST_SHAPE, "pieces of size %lld", (long long)step);
            return;
        }
        count = whole / step + (whole % step != 0);
        if (count > PIECES_MAX) {
            refuse(im, "more than %d pieces", PIECES_MAX);
            return;
        }
        struct num *made = ARENA_ARRAY(im->a, struct num, (size_t)count);
        for (int64_t i = 0; i < count; i++)
            made[i].v = whole - i * step < step ? whole - i * step : step;
        sizes = made;
    }
    uint32_t *items = ARENA_ARRAY(im->a, uint32_t, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        dim size;
        if (!num_dim(sizes[i], &size)) {
            reject(im, ST_SHAPE, "a piece of negative size");
            return;
        }
        val_id piece = slice_axis(im, x, axis, from, size);
        if (each && node_int(n, "keepdims", 1) == 0) piece = squeeze(im, piece, axis);
        from = dim_plus(im, from, size);
        if (failed(im)) return;
        items[i] = new_item(im, piece);
    }
    if (dim_known(from) && dim_known(whole) && from != whole) {
        reject(im, ST_SHAPE, "the pieces add up to %lld, not %lld", (long long)from,
               (long long)whole);
        return;
    }
    put_sequence(im, n, 0, items, (uint32_t)count);
}

void h_sequence_construct(struct importer *im, const struct inode *n, int arg) {
    uint32_t *items = ARENA_ARRAY(im->a, uint32_t, (size_t)n->nin);
    for (int i = 0; i < n->nin && !arg; i++) {
        val_id v = get(im, n, i);
        if (failed(im)) return;
        items[i] = new_item(im, v);
    }
    put_sequence(im, n, 0, items, arg ? 0 : (uint32_t)n->nin);
}

const struct ivalue *sequence_in(struct importer *im, const struct inode *n, int k) {
    if (failed(im)) return NULL;
    if (has_in(n, k) && iv(im, n->in[k])->kind == VK_SEQUENCE) return iv(im, n->in[k]);
    refuse(im, "a sequence that is not built in the graph");
    return NULL;
}

val_id sequence_item(struct importer *im, const struct ivalue *s, uint32_t i) {
    return iv(im, s->items[i])->val;
}

void set_sequence(struct importer *im, const struct inode *n, int k, const val_id *items,
                  uint32_t count) {
    if (failed(im) || !has_out(n, k)) return;
    uint32_t *list = ARENA_ARRAY(im->a, uint32_t, count);
    for (uint32_t i = 0; i < count; i++) list[i] = new_item(im, items[i]);
    put_sequence(im, n, k, list, count);
}

void h_sequence_at(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const struct ivalue *s = sequence_in(im, n, 0);
    const int64_t *at;
    int64_t count;
    if (!s) return;
    if (!known_numbers(im, n, 1, &at, &count) || count != 1) {
        refuse(im, "a position that is computed at run time");
        return;
    }
    int64_t i = at[0] < 0 ? at[0] + s->nitems : at[0];
    if (i < 0 || i >= s->nitems) {
        reject(im, ST_SHAPE, "position %lld of %u", (long long)at[0], s->nitems);
        return;
    }
    set_out(im, n, 0, iv(im, s->items[i])->val);
}

void h_sequence_length(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const struct ivalue *s = sequence_in(im, n, 0);
    if (!s || !has_out(n, 0)) return;
    struct type t = type_scalar(DT_i64);
    struct num *x = ARENA_ARRAY(im->a, struct num, 1);
    x->v = s->nitems;
    known_set_ints(im, n->out[0], &t, x);
}

void h_sequence_insert(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const struct ivalue *s = sequence_in(im, n, 0);
    const int64_t *at;
    int64_t count, i = s ? s->nitems : 0;
    if (!s) return;
    if (has_in(n, 2)) {
        if (!known_numbers(im, n, 2, &at, &count) || count != 1) {
            refuse(im, "a position that is computed at run time");
            return;
        }
        i = at[0] < 0 ? at[0] + s->nitems : at[0];
    }
    if (i < 0 || i > s->nitems) {
        reject(im, ST_SHAPE, "position %lld", (long long)i);
        return;
    }
    uint32_t nitems = s->nitems, *items = ARENA_ARRAY(im->a, uint32_t, (size_t)nitems + 1);
    memcpy(items, s->items, (size_t)i * sizeof *items);
    memcpy(items + i + 1, s->items + i, (size_t)(nitems - i) * sizeof *items);
    val_id v = get(im, n, 1);
    if (failed(im)) return;
    items[i] = new_item(im, v);
    put_sequence(im, n, 0, items, nitems + 1);
}

void h_concat_from_sequence(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    const struct ivalue *s = sequence_in(im, n, 0);
    if (!s) return;
    if (s->nitems == 0) {
        refuse(im, "an empty sequence");
        return;
    }
    bool fresh = node_int(n, "new_axis", 0) != 0;
    val_id *parts = ARENA_ARRAY(im->a, val_id, s->nitems);
    int rank = iv(im, s->items[0])->type.rank + fresh, count = (int)s->nitems;
    int axis = axis_attr(im, n, 0, rank);
    if (failed(im)) return;
    for (int i = 0; i < count; i++) {
        parts[i] = iv(im, s->items[i])->val;
        if (fresh && axis <= ty(im, parts[i]).rank) parts[i] = unsqueeze(im, parts[i], axis);
    }
    set_out(im, n, 0, concat(im, parts, count, axis));
}
