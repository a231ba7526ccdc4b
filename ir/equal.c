// SPDX-License-Identifier: Apache-2.0
/* equal.c - whether two graphs are the same graph, id by id. Ids of types, strings, symbols and
 * blobs may differ; what they stand for may not. Not an isomorphism test. */
#include "ir/internal.h"
#include <string.h>

struct pair {
    const struct graph *a, *b;
};

static bool same_str(const struct pair *p, str_id x, str_id y) {
    return strcmp(interned(&p->a->strings, x), interned(&p->b->strings, y)) == 0;
}

/* Every table prints an expression alike (types.h), so the texts decide. */
static bool same_dim(const struct pair *p, dim x, dim y) {
    if (dim_known(x) || dim_known(y)) return x == y;
    struct arena *scratch = &graph_mutable(p->a)->arena;
    struct arena_mark mark = arena_mark(scratch);
    struct buf s, t;
    buf_init(&s, scratch);
    buf_init(&t, scratch);
    dim_print(p->a->dims, x, &s);
    dim_print(p->b->dims, y, &t);
    bool same = strcmp(s.at, t.at) == 0;
    arena_rewind(scratch, mark);
    return same;
}

static bool same_type(const struct pair *p, const struct type *x, const struct type *y) {
    if (x->dtype != y->dtype || x->rank != y->rank) return false;
    for (int i = 0; i < x->rank; i++)
        if (!same_dim(p, x->dims[i], y->dims[i])) return false;
    return true;
}

static bool same_blob(const struct pair *p, blob_id x, blob_id y) {
    if (x.i == 0 || y.i == 0) return x.i == y.i;
    return graph_get_blob(p->a, x)->bytes == graph_get_blob(p->b, y)->bytes &&
           graph_blob_hash(p->a, x) == graph_blob_hash(p->b, y);
}

static bool same_attr(const struct pair *p, const struct attr *x, const struct attr *y) {
    if (x->key != y->key) return false;
    switch (attr_kind(x->key)) {
    case AK_INT:
    case AK_BOOL:
    case AK_DTYPE: return x->i == y->i;
    case AK_FLOAT: return memcmp(&x->f, &y->f, sizeof x->f) == 0;
    case AK_STR: return strcmp(x->s, y->s) == 0;
    case AK_BLOB: return same_blob(p, x->blob, y->blob);
    case AK_INTS:
    case AK_DIMS: break;
    }
    if (x->n != y->n) return false;
    for (int i = 0; i < x->n; i++) {
        bool same = attr_kind(x->key) == AK_DIMS ? same_dim(p, x->list[i], y->list[i])
                                                 : x->list[i] == y->list[i];
        if (!same) return false;
    }
    return true;
}

static bool same_node(const struct pair *p, node_id n) {
    const struct node *x = graph_node(p->a, n), *y = graph_node(p->b, n);
    const struct attr *xa, *ya;
    if (x->op != y->op || x->nin != y->nin || x->nout != y->nout || x->first_out != y->first_out ||
        !same_str(p, x->origin, y->origin))
        return false;
    for (int k = 0; k < x->nin; k++)
        if (node_in(p->a, n, k).i != node_in(p->b, n, k).i) return false;
    int nx = attr_list(p->a, n, &xa), ny = attr_list(p->b, n, &ya);
    if (nx != ny) return false;
    for (int k = 0; k < nx; k++)
        if (!same_attr(p, &xa[k], &ya[k])) return false;
    for (int k = 0; k < x->nout; k++) {
        val_id v = node_out(p->a, n, k);
        if (!same_type(p, val_type(p->a, v), val_type(p->b, v)) ||
            strcmp(val_name(p->a, v), val_name(p->b, v)) != 0)
            return false;
    }
    return true;
}

bool graph_equal(const struct graph *a, const struct graph *b) {
    const struct pair p = {a, b};
    if (!same_str(&p, a->name, b->name) || a->nodes.n != b->nodes.n || a->values.n != b->values.n ||
        a->outputs.n != b->outputs.n || a->updates.n != b->updates.n)
        return false;
    for (uint32_t n = 1; n < a->nodes.n; n++)
        if (!same_node(&p, (node_id){n})) return false;
    for (uint32_t i = 0; i < a->outputs.n; i++)
        if (!same_str(&p, a->outputs.at[i].name, b->outputs.at[i].name) ||
            graph_resolve(a, a->outputs.at[i].value).i !=
                graph_resolve(b, b->outputs.at[i].value).i)
            return false;
    for (uint32_t i = 0; i < a->updates.n; i++)
        if (a->updates.at[i].target.i != b->updates.at[i].target.i ||
            graph_resolve(a, a->updates.at[i].next).i != graph_resolve(b, b->updates.at[i].next).i)
            return false;
    return true;
}
