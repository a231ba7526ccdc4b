// SPDX-License-Identifier: Apache-2.0
/* export.c - trained values back into the user's own file: undoing what the importer did to the
 * constants, so that broadcasts are stored broadcast, copies are copies, and merged parameters that
 * now differ get initializers of their own. Writing the file is save.c's. */
#include "base/diag.h"
#include "frontend/import.h"
#include <string.h>

struct exporter {
    struct ctx *ctx;
    struct arena *arena; /* the model's scratch, dropped after the file is written */
    VEC(struct onnx_replacement) out;
};

/* The parameter's value repeated over the leading axes that the file stores broadcast. */
static const void *broadcast_value(struct exporter *e, const struct import_param *p,
                                   const void *data) {
    if (type_equal(&p->type, &p->stored)) return data;
    size_t have = (size_t)type_bytes(&p->type), want = (size_t)type_bytes(&p->stored);
    size_t inner = dtype_size(p->type.dtype);
    if (!want) return data;
    int axis = p->type.rank;
    while (axis > 0 && p->type.dims[axis - 1] == p->stored.dims[axis - 1])
        inner *= (size_t)p->stored.dims[--axis];
    /* Only leading axes were folded: the value is one block, or blocks of a leading axis of size 1.
     */
    char *out = arena_alloc(e->arena, want);
    CHECK(e->ctx, have == inner && have > 0);
    for (size_t i = 0; i < want; i += have) memcpy(out + i, data, have);
    return out;
}

static const void *transposed(struct exporter *e, const struct type *t, const void *data) {
    size_t r = (size_t)t->dims[0], c = (size_t)t->dims[1], size = dtype_size(t->dtype);
    char *out = arena_array(e->arena, r * c, size);
    for (size_t i = 0; i < r; i++)
        for (size_t k = 0; k < c; k++)
            memcpy(out + (k * r + i) * size, (const char *)data + (i * c + k) * size, size);
    return out;
}

static void add(struct exporter *e, const char *name, const struct type *t, const void *data,
                const struct onnx_use *uses, uint32_t nuses) {
    struct onnx_replacement r = {name, *t, data, uses, nuses};
    vec_push(e->arena, &e->out, r);
}

static enum status add_param(struct exporter *e, const struct import_param *p, const void *data) {
    if (p->read_only)
        return diag_error(e->ctx, ST_UNSUPPORTED, p->name,
                          "'%s' stands in a function or subgraph and cannot be written back",
                          p->initializer);
    data = broadcast_value(e, p, data);
    add(e, p->initializer, &p->stored, data, p->uses, p->nuses);
    for (uint32_t i = 0; i < p->ntwins; i++) {
        struct type t = p->stored;
        if (p->twins[i].transposed) {
            t.dims[0] = p->stored.dims[1];
            t.dims[1] = p->stored.dims[0];
        }
        add(e, p->twins[i].initializer, &t,
            p->twins[i].transposed ? transposed(e, &p->stored, data) : data, NULL, 0);
    }
    return ST_OK;
}

static enum status collect(struct exporter *e, const struct import_result *result,
                           const void *(*value)(void *user, const char *param), void *user) {
    for (uint32_t i = 0; i < result->nparams; i++) {
        const struct import_param *p = &result->params[i];
        const void *data = value(user, p->name);
        /* One of several merged parameters is written even when it did not change: the initializer
         * they share takes the value of the one that keeps its name. */
        if (!data && p->nuses) data = p->data;
        if (data) TRY(add_param(e, p, data));
    }
    return ST_OK;
}

enum status onnx_export(struct onnx_model *m, const struct import_result *result,
                        const void *(*value)(void *user, const char *param), void *user,
                        const char *path) {
    struct exporter e = {.ctx = m->ctx, .arena = &m->scratch};
    enum status st = collect(&e, result, value, user);
    if (st == ST_OK) st = onnx_save(m, e.out.at, e.out.n, path);
    arena_reset(&m->scratch);
    return st;
}
