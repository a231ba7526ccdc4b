// SPDX-License-Identifier: Apache-2.0
/* attrs.c - attribute records: checked against ops.def, interned so that equal sets have equal ids,
 * and read through the op's defaults. What a value means is the business of infer.c. */
#include "base/diag.h"
#include "ir/internal.h"
#include <string.h>

void attrs_init(struct graph *g) {
    vec_push(&g->arena, &g->attr_records, ARENA_NEW(&g->arena, struct attr_record));
}

/* Bitwise: 0.0 and -0.0 differ, a NaN equals itself. Unused members are zero in both. */
static bool attr_same(const struct attr *a, const struct attr *b) {
    if (a->key != b->key || a->i != b->i || a->n != b->n || a->blob.i != b->blob.i) return false;
    if (memcmp(&a->f, &b->f, sizeof a->f) != 0) return false;
    if (a->s != b->s && (!a->s || !b->s || strcmp(a->s, b->s) != 0)) return false;
    return a->n == 0 || memcmp(a->list, b->list, (size_t)a->n * sizeof *a->list) == 0;
}

static uint64_t attr_hash(uint64_t h, const struct attr *a) {
    uint64_t f;
    memcpy(&f, &a->f, sizeof f);
    h = hash_combine(h, (uint64_t)a->key << 32 | a->blob.i);
    h = hash_combine(h, (uint64_t)a->i);
    h = hash_combine(h, f);
    if (a->s) h = hash_combine(h, hash_bytes(a->s, strlen(a->s)));
    if (a->n) h = hash_combine(h, hash_bytes(a->list, (size_t)a->n * sizeof *a->list));
    return h;
}

/* Only the members that the kind uses; false when the value is malformed. */
static bool normalize(const struct graph *g, const struct attr *in, struct attr *out) {
    *out = (struct attr){.key = in->key};
    switch (attr_kind(in->key)) {
    case AK_INT: out->i = in->i; return true;
    case AK_BOOL: out->i = in->i != 0; return true;
    case AK_FLOAT: out->f = in->f; return true;
    case AK_DTYPE: out->i = in->i; return in->i > DT_NONE && in->i < DT_COUNT;
    case AK_STR: out->s = in->s; return in->s != NULL;
    case AK_BLOB: out->blob = in->blob; return in->blob.i < g->blobs.n;
    case AK_INTS:
    case AK_DIMS:
        out->n = in->n;
        out->list = in->n > 0 ? in->list : NULL;
        return in->n >= 0 && (in->n == 0 || in->list);
    }
    return false;
}

static attr_id record_intern(struct graph *g, const struct attr *at, int n) {
    if (n == 0) return (attr_id){0};
    uint64_t key = 0;
    uint32_t id;
    for (int k = 0; k < n; k++) key = attr_hash(key, &at[k]);
    for (; map_get(&g->attr_map, key, &id); key = hash_combine(key, 1)) {
        const struct attr_record *r = g->attr_records.at[id];
        int k = 0;
        while (r->n == n && k < n && attr_same(&r->at[k], &at[k])) k++;
        if (k == n) return (attr_id){id};
    }
    struct attr_record *r = arena_alloc(&g->arena, sizeof *r + (size_t)n * sizeof *at);
    r->n = n;
    for (int k = 0; k < n; k++) {
        r->at[k] = at[k];
        if (at[k].s) r->at[k].s = interned(&g->strings, intern(&g->strings, at[k].s));
        if (at[k].n == 0) continue;
        int64_t *list = ARENA_ARRAY(&g->arena, int64_t, (size_t)at[k].n);
        memcpy(list, at[k].list, (size_t)at[k].n * sizeof *list);
        r->at[k].list = list;
    }
    id = g->attr_records.n;
    vec_push(&g->arena, &g->attr_records, r);
    map_set(&g->attr_map, key, id);
    return (attr_id){id};
}

/* Insert into given[0..*n), sorted by key; false when the key is already there. */
static bool insert_sorted(struct attr *given, int *n, const struct attr *a) {
    int k = *n;
    while (k > 0 && given[k - 1].key > a->key) k--;
    if (k > 0 && given[k - 1].key == a->key) return false;
    memmove(&given[k + 1], &given[k], (size_t)(*n - k) * sizeof *given);
    given[k] = *a;
    ++*n;
    return true;
}

enum status attrs_intern(struct graph *g, enum op op, const struct attr *attrs, int nattr,
                         const char *origin, attr_id *out) {
    const char *op_name = op_info(op)->name;
    struct attr given[ATTR_COUNT];
    int n = 0;
    for (int k = 0; k < nattr; k++) {
        struct attr a;
        if (!op_attr_find(g, op, attrs[k].key))
            return diag_error(g->ctx, ST_USAGE, origin,
                              "%s takes no attribute '%s'; its attributes are \"%s\"", op_name,
                              attr_name(attrs[k].key), op_info(op)->attrs);
        if (!normalize(g, &attrs[k], &a))
            return diag_error(g->ctx, ST_USAGE, origin,
                              "%s: attribute '%s' has no legal value; give one of its kind",
                              op_name, attr_name(attrs[k].key));
        if (!insert_sorted(given, &n, &a))
            return diag_error(g->ctx, ST_USAGE, origin,
                              "%s: attribute '%s' is given twice; give it once", op_name,
                              attr_name(attrs[k].key));
    }
    const struct op_attr *takes;
    int ntakes = op_attrs(g, op, &takes), found = 0, kept = 0;
    for (int k = 0; k < ntakes; k++) {
        int j = 0;
        while (j < n && given[j].key != takes[k].value.key) j++;
        found += j < n;
        if (takes[k].required && j == n)
            return diag_error(g->ctx, ST_USAGE, origin, "%s needs the attribute '%s'; give it",
                              op_name, attr_name(takes[k].value.key));
    }
    CHECK(g->ctx, found == n);
    for (int k = 0; k < n; k++) {
        const struct op_attr *take = op_attr_find(g, op, given[k].key);
        struct attr def = take->value;
        if (take->required || !attr_same(&given[k], &def)) given[kept++] = given[k];
    }
    *out = record_intern(g, given, kept);
    return ST_OK;
}

void attrs_complete(const struct graph *g, enum op op, attr_id id, struct attr *all) {
    const struct op_attr *takes;
    const struct attr_record *r = g->attr_records.at[id.i];
    int n = op_attrs(g, op, &takes);
    memset(all, 0, ATTR_COUNT * sizeof *all);
    for (int k = 0; k < n; k++) all[takes[k].value.key] = takes[k].value;
    for (int k = 0; k < r->n; k++) all[r->at[k].key] = r->at[k];
}

void attrs_clone(const struct graph *from, struct graph *to) {
    for (uint32_t k = 1; k < from->attr_records.n; k++)
        record_intern(to, from->attr_records.at[k]->at, from->attr_records.at[k]->n);
}

/* ---- access -------------------------------------------------------------------------------- */
static const struct attr *find(const struct graph *g, node_id n, enum attr_key k,
                               enum attr_kind kind) {
    CHECK(g->ctx, n.i > 0 && n.i < g->nodes.n && attr_kind(k) == kind);
    const struct node *node = &g->nodes.at[n.i];
    const struct attr_record *r = g->attr_records.at[node->attrs.i];
    for (int j = 0; j < r->n; j++)
        if (r->at[j].key == k) return &r->at[j];
    const struct op_attr *take = op_attr_find(g, (enum op)node->op, k);
    if (!take || take->required)
        ctx_bug(g->ctx, __FILE__, __LINE__, "the op to take the attribute that is asked for");
    return &take->value;
}

int64_t attr_int(const struct graph *g, node_id n, enum attr_key k) {
    return find(g, n, k, AK_INT)->i;
}

bool attr_bool(const struct graph *g, node_id n, enum attr_key k) {
    return find(g, n, k, AK_BOOL)->i != 0;
}

double attr_float(const struct graph *g, node_id n, enum attr_key k) {
    return find(g, n, k, AK_FLOAT)->f;
}

static const int64_t *find_list(const struct graph *g, node_id n, enum attr_key k, int *count,
                                enum attr_kind kind) {
    static const int64_t none[1] = {0};
    const struct attr *a = find(g, n, k, kind);
    *count = a->n;
    return a->n ? a->list : none;
}

const int64_t *attr_ints(const struct graph *g, node_id n, enum attr_key k, int *count) {
    return find_list(g, n, k, count, AK_INTS);
}

const dim *attr_dims(const struct graph *g, node_id n, enum attr_key k, int *count) {
    return find_list(g, n, k, count, AK_DIMS);
}

enum dtype attr_dtype(const struct graph *g, node_id n, enum attr_key k) {
    return (enum dtype)find(g, n, k, AK_DTYPE)->i;
}

const char *attr_str(const struct graph *g, node_id n, enum attr_key k) {
    return find(g, n, k, AK_STR)->s;
}

blob_id attr_blob(const struct graph *g, node_id n, enum attr_key k) {
    return find(g, n, k, AK_BLOB)->blob;
}

int attr_list(const struct graph *g, node_id n, const struct attr **out) {
    CHECK(g->ctx, n.i > 0 && n.i < g->nodes.n);
    const struct attr_record *r = g->attr_records.at[g->nodes.at[n.i].attrs.i];
    *out = r->at;
    return r->n;
}

void node_set_attr(struct graph *g, node_id n, const struct attr *a) {
    CHECK(g->ctx, n.i > 0 && n.i < g->nodes.n);
    struct node *node = &g->nodes.at[n.i];
    CHECK(g->ctx, op_info((enum op)node->op)->traits & SOURCE);
    const struct attr_record *r = g->attr_records.at[node->attrs.i];
    struct attr all[ATTR_COUNT + 1];
    int count = 0;
    for (int k = 0; k < r->n; k++)
        if (r->at[k].key != a->key) all[count++] = r->at[k];
    all[count++] = *a;
    attr_id id = {0};
    enum status st = attrs_intern(g, (enum op)node->op, all, count, node_origin(g, n), &id);
    CHECK(g->ctx, st == ST_OK);
    node->attrs = id;
}
