// SPDX-License-Identifier: Apache-2.0
/* graph.c - the life of a graph: creating, cloning, interning types and constants, appending nodes,
 * naming values and reading them back. Order and dead nodes are the business of settle.c. */
#include "base/diag.h"
#include "ir/internal.h"
#include <stdio.h>
#include <string.h>

enum { BLOB_MERGE_MAX = 4096, OPERANDS_MAX = UINT16_MAX };

/* ---- life ---------------------------------------------------------------------------------- */
static void fill_empty(struct graph *g, const void *name) {
    struct arena *a = &g->arena;
    intern_init(&g->strings, a);
    g->dims = dims_create(a);
    map_init(&g->type_map, a);
    map_init(&g->attr_map, a);
    map_init(&g->blob_map, a);
    map_init(&g->name_map, a);
    g->specs = op_specs_parse(a);
    g->name = intern(&g->strings, name);
    vec_push(a, &g->types, (struct type){.dtype = DT_NONE});
    vec_push(a, &g->blobs, (struct blob){.data = NULL});
    vec_push(a, &g->nodes, (struct node){.op = OP_NONE});
    vec_push(a, &g->values, (struct value){.def = {0}});
    vec_push(a, &g->forward, VAL_NONE);
    attrs_init(g);
}

/* Fill a new graph; when `fill` unwinds, the half-made graph is freed and the unwinding goes on. */
static struct graph *graph_make(struct ctx *c, void (*fill)(struct graph *g, const void *from),
                                const void *from) {
    jmp_buf *const outer = c->landing;
    jmp_buf here;
    struct graph *const g = ctx_alloc(c, sizeof *g);
    memset(g, 0, sizeof *g);
    g->ctx = c;
    arena_init(&g->arena, c);
    if (setjmp(here)) {
        c->landing = outer;
        graph_destroy(g);
        longjmp(*c->landing, 1);
    }
    if (outer) c->landing = &here;
    fill(g, from);
    c->landing = outer;
    return g;
}

struct graph *graph_create(struct ctx *c, const char *name) {
    return graph_make(c, fill_empty, name);
}

void graph_destroy(struct graph *g) {
    if (!g) return;
    struct ctx *c = g->ctx;
    arena_reset(&g->arena);
    ctx_free(c, g);
}

#define COPY_VEC(to, from, field, first)                                                           \
    for (uint32_t k_ = (first); k_ < (from)->field.n; k_++)                                        \
    vec_push(&(to)->arena, &(to)->field, (from)->field.at[k_])

static uint64_t blob_key(uint64_t hash, size_t bytes) {
    return hash_combine(hash, bytes);
}

static void fill_copy(struct graph *g, const void *from) {
    const struct graph *o = from;
    fill_empty(g, interned(&o->strings, o->name));
    /* Ids must agree: the name above may have been interned later in the original. */
    intern_init(&g->strings, &g->arena);
    for (uint32_t k = 1; k < o->strings.strings.n; k++)
        intern(&g->strings, interned(&o->strings, (str_id){k}));
    g->name = o->name;
    g->dims = dims_clone(o->dims, &g->arena);
    for (uint32_t k = 1; k < o->types.n; k++) graph_type(g, &o->types.at[k]);
    for (uint32_t k = 1; k < o->blobs.n; k++) {
        uint64_t key = blob_key(o->blobs.at[k].hash, o->blobs.at[k].bytes);
        uint32_t id;
        vec_push(&g->arena, &g->blobs, o->blobs.at[k]);
        for (; o->blobs.at[k].hash && map_get(&g->blob_map, key, &id);) key = hash_combine(key, 1);
        if (o->blobs.at[k].hash) map_set(&g->blob_map, key, k);
    }
    attrs_clone(o, g);
    COPY_VEC(g, o, nodes, 1);
    COPY_VEC(g, o, values, 1);
    COPY_VEC(g, o, operands, 0);
    COPY_VEC(g, o, outputs, 0);
    COPY_VEC(g, o, updates, 0);
    COPY_VEC(g, o, forward, 1);
    for (uint32_t k = 1; k < g->values.n; k++)
        if (g->values.at[k].name.i) map_set(&g->name_map, g->values.at[k].name.i, k);
}

struct graph *graph_clone(const struct graph *g) {
    return graph_make(g->ctx, fill_copy, g);
}

/* ---- types and constants ------------------------------------------------------------------- */
type_id graph_type(struct graph *g, const struct type *t) {
    CHECK(g->ctx, t->dtype > DT_NONE && t->dtype < DT_COUNT && t->rank >= 0 && t->rank <= RANK_MAX);
    uint64_t key = hash_combine((uint64_t)t->dtype << 8 | (uint64_t)t->rank,
                                hash_bytes(t->dims, (size_t)t->rank * sizeof *t->dims));
    uint32_t id;
    for (; map_get(&g->type_map, key, &id); key = hash_combine(key, 1))
        if (type_equal(&g->types.at[id], t)) return (type_id){id};
    struct type copy = {.dtype = t->dtype, .rank = t->rank};
    memcpy(copy.dims, t->dims, (size_t)t->rank * sizeof *t->dims);
    id = g->types.n;
    vec_push(&g->arena, &g->types, copy);
    map_set(&g->type_map, key, id);
    return (type_id){id};
}

static uint64_t blob_hash(const void *data, size_t bytes) {
    uint64_t h = hash_bytes(data, bytes);
    return h ? h : 1; /* 0 means not computed yet */
}

/* The blob with this content, or with only this hash when `data` is NULL. *key is where it belongs.
 */
static bool blob_find(const struct graph *g, const void *data, size_t bytes, uint64_t hash,
                      uint64_t *key, uint32_t *id) {
    for (*key = blob_key(hash, bytes); map_get(&g->blob_map, *key, id);
         *key = hash_combine(*key, 1)) {
        const struct blob *b = &g->blobs.at[*id];
        if (b->bytes != bytes || b->hash != hash || !b->data != !data) continue;
        if (!data || bytes == 0 || memcmp(b->data, data, bytes) == 0) return true;
    }
    return false;
}

static blob_id blob_push(struct graph *g, const void *data, size_t bytes, uint64_t hash) {
    CHECK(g->ctx, g->blobs.n < UINT32_MAX);
    vec_push(&g->arena, &g->blobs, (struct blob){data, bytes, hash});
    return (blob_id){g->blobs.n - 1};
}

blob_id graph_blob(struct graph *g, const void *data, size_t bytes, bool copy) {
    bool merge = bytes <= BLOB_MERGE_MAX;
    uint64_t key = 0, hash = 0;
    uint32_t id;
    if (!data) {
        CHECK(g->ctx, bytes == 0);
        data = arena_alloc(&g->arena, 0); /* NULL would mean: known by hash only */
        copy = false;
    }
    if (merge) {
        hash = blob_hash(data, bytes);
        if (blob_find(g, data, bytes, hash, &key, &id)) return (blob_id){id};
    }
    if (copy) {
        void *own = arena_alloc(&g->arena, bytes);
        if (bytes) memcpy(own, data, bytes);
        data = own;
    }
    blob_id b = blob_push(g, data, bytes, hash);
    if (merge) map_set(&g->blob_map, key, b.i);
    return b;
}

blob_id graph_blob_by_hash(struct graph *g, size_t bytes, uint64_t hash) {
    uint64_t key;
    uint32_t id;
    if (!hash) hash = 1;
    if (blob_find(g, NULL, bytes, hash, &key, &id)) return (blob_id){id};
    blob_id b = blob_push(g, NULL, bytes, hash);
    map_set(&g->blob_map, key, b.i);
    return b;
}

const struct blob *graph_get_blob(const struct graph *g, blob_id b) {
    CHECK(g->ctx, b.i < g->blobs.n);
    return &g->blobs.at[b.i];
}

uint64_t graph_blob_hash(const struct graph *g, blob_id b) {
    CHECK(g->ctx, b.i > 0 && b.i < g->blobs.n);
    struct blob *at = &g->blobs.at[b.i];
    if (!at->hash) at->hash = blob_hash(at->data, at->bytes);
    return at->hash;
}

/* ---- building ------------------------------------------------------------------------------ */
/* Append the checked node and its values. */
static val_id append(struct graph *g, enum op op, const val_id *in, int nin, attr_id attrs,
                     const struct type *types, str_id origin) {
    uint32_t node = g->nodes.n, first_in = g->operands.n, first_out = g->values.n;
    int nout = op_info(op)->outs;
    for (int k = 0; k < nin; k++) vec_push(&g->arena, &g->operands, in[k]);
    for (int k = 0; k < nout; k++) {
        struct value v = {.type = graph_type(g, &types[k]), .def = {node}};
        val_id self = {g->values.n};
        vec_push(&g->arena, &g->values, v);
        vec_push(&g->arena, &g->forward, self);
    }
    struct node n = {.op = (uint16_t)op,
                     .nin = (uint16_t)nin,
                     .nout = (uint16_t)nout,
                     .first_in = first_in,
                     .first_out = first_out,
                     .attrs = attrs,
                     .origin = origin};
    vec_push(&g->arena, &g->nodes, n);
    return (val_id){first_out};
}

enum { OUTS_MAX = 8, FEW_OPERANDS = 8 };

static enum status check_operands(struct graph *g, enum op op, const val_id *in, int nin,
                                  const char *origin) {
    const struct op_info *info = op_info(op);
    if (nin < info->min_in || nin > OPERANDS_MAX || (info->max_in != OP_ANY && nin > info->max_in))
        return diag_error(g->ctx, ST_SHAPE, origin, "%s takes %d to %d operands, found %d",
                          info->name, info->min_in,
                          info->max_in == OP_ANY ? OPERANDS_MAX : info->max_in, nin);
    for (int k = 0; k < nin; k++) {
        if (in[k].i == 0)
            return diag_error(g->ctx, ST_USAGE, origin,
                              "%s: operand %d is missing; only trailing operands may be left out",
                              info->name, k);
        CHECK(g->ctx, in[k].i < g->values.n);
    }
    return ST_OK;
}

/* `source` is the given type of a SOURCE op, else NULL. */
static enum status try_append(struct graph *g, enum op op, const val_id *in, int nin,
                              const struct type *source, const struct attr *attrs, int nattr,
                              str_id origin_id, val_id *out) {
    CHECK(g->ctx, op > OP_NONE && op < OP_COUNT && op_info(op)->outs <= OUTS_MAX);
    CHECK(g->ctx, !(op_info(op)->traits & SOURCE) == !source);
    const char *origin = interned(&g->strings, origin_id);
    struct type few[FEW_OPERANDS], *types = few, results[OUTS_MAX];
    struct attr all[ATTR_COUNT];
    attr_id id;
    TRY(check_operands(g, op, in, nin, origin));
    TRY(attrs_intern(g, op, attrs, nattr, origin, &id));
    attrs_complete(g, op, id, all);
    if (nin > FEW_OPERANDS) types = ARENA_ARRAY(&g->arena, struct type, (size_t)nin);
    for (int k = 0; k < nin; k++) types[k] = *val_type(g, in[k]);
    memset(results, 0, sizeof results);
    if (source) results[0] = *source;
    struct infer x = {
        .g = g, .op = op, .nin = nin, .in = types, .attrs = all, .origin = origin, .out = results};
    TRY(infer_types(&x));
    *out = append(g, op, in, nin, id, results, origin_id);
    return ST_OK;
}

static str_id intern_origin(struct graph *g, const char *origin) {
    return intern(&g->strings, origin ? origin : "");
}

enum status graph_try_add(struct graph *g, enum op op, const val_id *in, int nin,
                          const struct attr *attrs, int nattr, const char *origin, val_id *out) {
    return try_append(g, op, in, nin, NULL, attrs, nattr, intern_origin(g, origin), out);
}

enum status graph_try_source(struct graph *g, enum op op, const struct type *t,
                             const struct attr *attrs, int nattr, const char *origin, val_id *out) {
    return try_append(g, op, NULL, 0, t, attrs, nattr, intern_origin(g, origin), out);
}

val_id graph_add(struct graph *g, enum op op, const val_id *in, int nin, const struct attr *attrs,
                 int nattr, str_id origin) {
    val_id v = VAL_NONE;
    enum status st = try_append(g, op, in, nin, NULL, attrs, nattr, origin, &v);
    if (st != ST_OK) ctx_bug(g->ctx, __FILE__, __LINE__, "a pass to build only legal nodes");
    return v;
}

val_id graph_source(struct graph *g, enum op op, const struct type *t, const struct attr *attrs,
                    int nattr, str_id origin) {
    val_id v = VAL_NONE;
    enum status st = try_append(g, op, NULL, 0, t, attrs, nattr, origin, &v);
    if (st != ST_OK) ctx_bug(g->ctx, __FILE__, __LINE__, "a pass to build only legal sources");
    return v;
}

void graph_add_output(struct graph *g, const char *name, val_id v) {
    CHECK(g->ctx, v.i > 0 && v.i < g->values.n);
    struct graph_output o = {intern(&g->strings, name), v};
    vec_push(&g->arena, &g->outputs, o);
}

void graph_add_update(struct graph *g, val_id target, val_id next) {
    CHECK(g->ctx, target.i > 0 && target.i < g->values.n && next.i > 0 && next.i < g->values.n);
    struct graph_update u = {target, next};
    vec_push(&g->arena, &g->updates, u);
}

/* ---- names --------------------------------------------------------------------------------- */
/* name_map: name -> value, and SUFFIX_KEY | name -> the last suffix tried for it, which keeps many
 * equal names linear. Entries are never removed: one is valid while the value still has the name.
 */
static const uint64_t SUFFIX_KEY = UINT64_C(1) << 32;

static uint32_t name_owner(const struct graph *g, str_id name) {
    uint32_t v;
    if (name.i == 0 || !map_get(&g->name_map, name.i, &v)) return 0;
    return v < g->values.n && g->values.at[v].name.i == name.i ? v : 0;
}

static void take_name(struct graph *g, val_id v, str_id name) {
    g->values.at[v.i].name = name;
    map_set(&g->name_map, name.i, v.i);
}

void graph_set_name(struct graph *g, val_id v, const char *name) {
    CHECK(g->ctx, v.i > 0 && v.i < g->values.n);
    v = graph_resolve(g, v);
    str_id base = intern(&g->strings, name), id = base;
    uint32_t suffix = 0;
    if (base.i == 0) {
        g->values.at[v.i].name = base;
        return;
    }
    while (name_owner(g, id) != 0 && name_owner(g, id) != v.i) {
        char digits[16];
        if (suffix == 0) map_get(&g->name_map, SUFFIX_KEY | base.i, &suffix);
        snprintf(digits, sizeof digits, ".%u", ++suffix);
        struct arena_mark m = arena_mark(&g->arena);
        const char *text = arena_printf(&g->arena, "%s%s", interned(&g->strings, base), digits);
        id = intern_find(&g->strings, text);
        if (id.i == 0)
            id = intern(&g->strings, text);
        else
            arena_rewind(&g->arena, m);
    }
    if (suffix) map_set(&g->name_map, SUFFIX_KEY | base.i, suffix);
    take_name(g, v, id);
}

const char *val_name(const struct graph *g, val_id v) {
    CHECK(g->ctx, v.i < g->values.n);
    return interned(&g->strings, g->values.at[v.i].name);
}

const char *node_origin(const struct graph *g, node_id n) {
    CHECK(g->ctx, n.i < g->nodes.n);
    return interned(&g->strings, g->nodes.at[n.i].origin);
}

val_id graph_find(const struct graph *g, const char *name) {
    return (val_id){name_owner(g, intern_find(&g->strings, name))};
}

/* ---- forwarding ---------------------------------------------------------------------------- */
val_id graph_resolve(const struct graph *g, val_id v) {
    CHECK(g->ctx, v.i < g->forward.n);
    val_id *f = g->forward.at;
    while (f[v.i].i != v.i) {
        f[v.i] = f[f[v.i].i]; /* halve the path: chains of rewrites stay cheap */
        v = f[v.i];
    }
    return v;
}

val_id node_in(const struct graph *g, node_id n, int k) {
    CHECK(g->ctx, n.i < g->nodes.n && k >= 0);
    const struct node *node = &g->nodes.at[n.i];
    if (k >= node->nin) return VAL_NONE;
    return graph_resolve(g, g->operands.at[node->first_in + (uint32_t)k]);
}

void graph_forward(struct graph *g, val_id old_value, val_id new_value) {
    CHECK(g->ctx, old_value.i > 0 && old_value.i < g->values.n);
    CHECK(g->ctx, new_value.i > 0 && new_value.i < g->values.n);
    val_id to = graph_resolve(g, new_value);
    struct value *from = &g->values.at[old_value.i];
    if (to.i == old_value.i) return; /* the new one already means the old one */
    CHECK(g->ctx, from->type.i == g->values.at[to.i].type.i);
    g->forward.at[old_value.i] = to;
    if (from->name.i && !g->values.at[to.i].name.i) {
        str_id name = from->name;
        from->name = (str_id){0};
        take_name(g, to, name);
    }
}
