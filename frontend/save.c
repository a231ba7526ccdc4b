// SPDX-License-Identifier: Apache-2.0
/* save.c - the user's own model with other weights. Works on shallow copies of the messages that
 * change, so that the loaded model stays as it is; everything else is written as it was read. */
#include "base/diag.h"
#include "frontend/file.h"
#include "frontend/wire.h"
#include <string.h>

enum {
    DATA_ALIGN = 4096,   /* of tensors in the data file, so that others can map them */
    EXTERNAL_MIN = 1024, /* smaller tensors stay in the .onnx file */
    IR_FREE_WEIGHTS = 4, /* since this IR version, initializers need not be graph inputs */
};
static const size_t onnx_file_max = 1900000000; /* protobuf's own limit is 2^31-1 bytes */

struct saver {
    struct onnx_model *m;
    struct arena *a;
    Onnx__ModelProto model;
    Onnx__GraphProto graph;
    struct map initializers, sparse, constants, nodes_copied; /* of names or indices */
    struct interner names;
};

/* ---- index ----------------------------------------------------------------------------------- */

static void *copy_array(struct arena *a, const void *from, size_t n, size_t spare) {
    void **to = ARENA_ARRAY(a, void *, n + spare);
    if (n) memcpy(to, from, n * sizeof *to);
    return to;
}

static bool is_constant(const Onnx__NodeProto *n) {
    return !strcmp(n->op_type, "Constant") && !*onnx_domain(n->domain) && n->n_output == 1;
}

/* Copy the arrays that will change and index what they name. `spare`: initializers to come. */
static void begin(struct saver *s, struct onnx_model *m, uint32_t spare) {
    *s = (struct saver){.m = m, .a = &m->scratch, .model = *m->proto, .graph = *m->proto->graph};
    Onnx__GraphProto *g = &s->graph;
    s->model.graph = g;
    intern_init(&s->names, s->a);
    map_init(&s->initializers, s->a);
    map_init(&s->sparse, s->a);
    map_init(&s->constants, s->a);
    map_init(&s->nodes_copied, s->a);
    g->initializer = copy_array(s->a, g->initializer, g->n_initializer, spare);
    g->node = copy_array(s->a, g->node, g->n_node, 0);
    g->input = copy_array(s->a, g->input, g->n_input, spare);
    g->sparse_initializer = copy_array(s->a, g->sparse_initializer, g->n_sparse_initializer, 0);
    for (uint32_t i = 0; i < g->n_initializer; i++)
        map_set(&s->initializers, intern(&s->names, g->initializer[i]->name).i, i);
    for (uint32_t i = 0; i < g->n_sparse_initializer; i++)
        map_set(&s->sparse, intern(&s->names, g->sparse_initializer[i]->values->name).i, i);
    for (uint32_t i = 0; i < g->n_input; i++) intern(&s->names, g->input[i]->name);
    for (uint32_t i = 0; i < g->n_node; i++) {
        const Onnx__NodeProto *n = g->node[i];
        for (size_t j = 0; j < n->n_output; j++) intern(&s->names, n->output[j]);
        if (is_constant(n)) map_set(&s->constants, intern(&s->names, n->output[0]).i, i);
    }
}

/* The node at `i`, copied on its first change. */
static Onnx__NodeProto *own_node(struct saver *s, uint32_t i) {
    Onnx__NodeProto **slot = &s->graph.node[i];
    uint32_t unused;
    if (map_get(&s->nodes_copied, i, &unused)) return *slot;
    Onnx__NodeProto *copy = ARENA_NEW(s->a, Onnx__NodeProto);
    *copy = **slot;
    copy->input = copy_array(s->a, copy->input, copy->n_input, 1);
    copy->attribute = copy_array(s->a, copy->attribute, copy->n_attribute, 1);
    map_set(&s->nodes_copied, i, 1);
    *slot = copy;
    return copy;
}

/* ---- replacements ---------------------------------------------------------------------------- */

/* A tensor that keeps the name, documentation and unknown fields of `old`, which may be NULL. */
static Onnx__TensorProto *new_tensor(struct saver *s, const struct onnx_replacement *r,
                                     const Onnx__TensorProto *old) {
    Onnx__TensorProto *t = ARENA_NEW(s->a, Onnx__TensorProto);
    onnx__tensor_proto__init(t);
    if (old) {
        t->base = old->base;
        t->name = old->name;
        t->has_doc_string = old->has_doc_string;
        t->doc_string = old->doc_string;
        t->n_metadata_props = old->n_metadata_props;
        t->metadata_props = old->metadata_props;
    } else {
        t->name = arena_strdup(s->a, r->initializer);
    }
    t->has_data_type = true;
    t->data_type = dtype_to_onnx(r->type.dtype);
    t->n_dims = (size_t)r->type.rank;
    t->dims = ARENA_ARRAY(s->a, int64_t, t->n_dims);
    for (int i = 0; i < r->type.rank; i++) t->dims[i] = r->type.dims[i];
    t->has_raw_data = true;
    t->raw_data.len = (size_t)type_bytes(&r->type);
    t->raw_data.data = (uint8_t *)(uintptr_t)r->data; /* only read */
    return t;
}

static void put_type(struct buf *b, int32_t code, size_t rank, const int64_t *dims) {
    buf_printf(b, "%s[", onnx_type_name(code));
    for (size_t i = 0; i < rank && i < RANK_MAX; i++)
        buf_printf(b, "%s%lld", i ? "," : "", (long long)dims[i]);
    buf_puts(b, "]");
}

static enum status same_type(struct saver *s, const struct onnx_replacement *r,
                             const Onnx__TensorProto *old) {
    bool same =
        old->data_type == dtype_to_onnx(r->type.dtype) && old->n_dims == (size_t)r->type.rank;
    for (size_t i = 0; same && i < old->n_dims; i++) same = old->dims[i] == r->type.dims[i];
    if (same) return ST_OK;
    struct buf b;
    buf_init(&b, s->a);
    put_type(&b, dtype_to_onnx(r->type.dtype), (size_t)r->type.rank, r->type.dims);
    buf_puts(&b, ", but the model stores ");
    put_type(&b, old->data_type, old->n_dims, old->dims);
    return diag_error(s->m->ctx, ST_SHAPE, r->initializer, "the new value is %s", b.at);
}

/* Whatever form the constant had (value, value_float, sparse_value, ...), it becomes `value`. */
static enum status replace_constant(struct saver *s, const struct onnx_replacement *r, uint32_t i) {
    Onnx__NodeProto *n = own_node(s, i);
    Onnx__AttributeProto *a = ARENA_NEW(s->a, Onnx__AttributeProto);
    const Onnx__TensorProto *old = NULL;
    size_t kept = 0;
    for (size_t j = 0; j < n->n_attribute; j++) {
        Onnx__AttributeProto *was = n->attribute[j];
        if (was->t) old = was->t;
        if (strncmp(was->name, "value", 5) != 0 && strcmp(was->name, "sparse_value") != 0)
            n->attribute[kept++] = was;
    }
    if (old) TRY(same_type(s, r, old));
    onnx__attribute_proto__init(a);
    a->name = arena_strdup(s->a, "value");
    a->has_type = true;
    a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
    a->t = new_tensor(s, r, old);
    n->attribute[kept++] = a;
    n->n_attribute = kept;
    return ST_OK;
}

/* Before IR 4, every initializer is also a graph input. */
static void add_input(struct saver *s, const Onnx__TensorProto *t) {
    struct arena *a = s->a;
    Onnx__ValueInfoProto *v = ARENA_NEW(a, Onnx__ValueInfoProto);
    Onnx__TypeProto *type = ARENA_NEW(a, Onnx__TypeProto);
    Onnx__TensorShapeProto *shape = ARENA_NEW(a, Onnx__TensorShapeProto);
    onnx__value_info_proto__init(v);
    onnx__type_proto__init(type);
    onnx__tensor_shape_proto__init(shape);
    type->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
    type->tensor_type = ARENA_NEW(a, Onnx__TypeProto__Tensor);
    onnx__type_proto__tensor__init(type->tensor_type);
    type->tensor_type->has_elem_type = true;
    type->tensor_type->elem_type = t->data_type;
    type->tensor_type->shape = shape;
    shape->n_dim = t->n_dims;
    shape->dim = ARENA_ARRAY(a, Onnx__TensorShapeProto__Dimension *, t->n_dims);
    for (size_t i = 0; i < t->n_dims; i++) {
        shape->dim[i] = ARENA_NEW(a, Onnx__TensorShapeProto__Dimension);
        onnx__tensor_shape_proto__dimension__init(shape->dim[i]);
        shape->dim[i]->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        shape->dim[i]->dim_value = t->dims[i];
    }
    v->name = t->name;
    v->type = type;
    s->graph.input[s->graph.n_input++] = v;
}

/* The optional bias of a Gemm or Conv that an exporter's optimizer left out comes back as input 2.
 */
static bool may_append(const Onnx__NodeProto *n, uint32_t slot) {
    return n->n_input == 2 && slot == 2 &&
           (strcmp(n->op_type, "Gemm") == 0 || strcmp(n->op_type, "Conv") == 0);
}

static enum status add_rewired(struct saver *s, const struct onnx_replacement *r) {
    Onnx__GraphProto *g = &s->graph;
    if (intern_find(&s->names, r->initializer).i)
        return diag_error(s->m->ctx, ST_USAGE, r->initializer,
                          "a new initializer needs a name that the model does not use yet");
    Onnx__TensorProto *t = new_tensor(s, r, NULL);
    map_set(&s->initializers, intern(&s->names, t->name).i, (uint32_t)g->n_initializer);
    g->initializer[g->n_initializer++] = t;
    for (uint32_t i = 0; i < r->nuses; i++) {
        struct onnx_use u = r->uses[i];
        if (u.node >= g->n_node ||
            (u.slot >= g->node[u.node]->n_input && !may_append(g->node[u.node], u.slot)))
            return diag_error(s->m->ctx, ST_USAGE, r->initializer,
                              "input %u of node %u does not exist", (unsigned)u.slot,
                              (unsigned)u.node);
        Onnx__NodeProto *n = own_node(s, u.node);
        if (u.slot == n->n_input) n->n_input++;
        n->input[u.slot] = t->name;
    }
    if (s->model.ir_version < IR_FREE_WEIGHTS) add_input(s, t);
    return ST_OK;
}

/* A sparse weight becomes a dense initializer of the same name. */
static enum status replace_sparse(struct saver *s, const struct onnx_replacement *r, uint32_t i) {
    Onnx__GraphProto *g = &s->graph;
    const Onnx__SparseTensorProto *old = g->sparse_initializer[i];
    Onnx__TensorProto dense = ONNX__TENSOR_PROTO__INIT;
    dense.data_type = old->values->data_type;
    dense.n_dims = old->n_dims;
    dense.dims = old->dims;
    TRY(same_type(s, r, &dense));
    map_set(&s->initializers, intern_find(&s->names, r->initializer).i, (uint32_t)g->n_initializer);
    g->initializer[g->n_initializer++] = new_tensor(s, r, old->values);
    g->sparse_initializer[i] = NULL; /* squeezed out when all are done */
    return ST_OK;
}

static enum status replace(struct saver *s, const struct onnx_replacement *r) {
    Onnx__GraphProto *g = &s->graph;
    if (!r->initializer || !*r->initializer || dtype_to_onnx(r->type.dtype) == 0 ||
        type_bytes(&r->type) < 0)
        return diag_error(s->m->ctx, ST_USAGE, r->initializer ? r->initializer : "",
                          "expected a name, an ONNX element type and a static shape");
    if (r->nuses) return add_rewired(s, r);
    uint32_t i, id = intern_find(&s->names, r->initializer).i;
    if (id && map_get(&s->initializers, id, &i)) {
        TRY(same_type(s, r, g->initializer[i]));
        g->initializer[i] = new_tensor(s, r, g->initializer[i]);
    } else if (id && map_get(&s->constants, id, &i)) {
        TRY(replace_constant(s, r, i));
    } else if (id && map_get(&s->sparse, id, &i)) {
        TRY(replace_sparse(s, r, i));
    } else {
        return diag_error(s->m->ctx, ST_USAGE, r->initializer,
                          "the main graph has no initializer or Constant of this name to replace");
    }
    return ST_OK;
}

static void squeeze_sparse(struct saver *s) {
    Onnx__GraphProto *g = &s->graph;
    size_t kept = 0;
    for (size_t i = 0; i < g->n_sparse_initializer; i++)
        if (g->sparse_initializer[i]) g->sparse_initializer[kept++] = g->sparse_initializer[i];
    g->n_sparse_initializer = kept;
}

/* ---- external data --------------------------------------------------------------------------- */

/* Take the bytes of an external tensor into the message; they stay in the mapping. This changes the
 * loaded model too, but not what it means. */
static enum status make_inline(void *user, ProtobufCMessage *msg) {
    struct onnx_model *m = user;
    Onnx__TensorProto *t = (Onnx__TensorProto *)msg;
    if (t->data_location != ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) return ST_OK;
    const uint8_t *data;
    size_t n;
    TRY(onnx_external_bytes(m, t, t->name, &data, &n));
    t->has_raw_data = true;
    t->raw_data = (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)data};
    t->has_data_location = false;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__DEFAULT;
    t->n_external_data = 0;
    return ST_OK;
}

static Onnx__StringStringEntryProto *entry(struct arena *a, const char *key, char *value) {
    Onnx__StringStringEntryProto *e = ARENA_NEW(a, Onnx__StringStringEntryProto);
    onnx__string_string_entry_proto__init(e);
    e->key = arena_strdup(a, key);
    e->value = value;
    return e;
}

/* Write the tensor's bytes to the data file and return a copy of the message that refers to them.
 */
static enum status make_external(struct saver *s, struct sys_writer *w, size_t *offset,
                                 const char *location, Onnx__TensorProto **slot) {
    static const uint8_t zeros[DATA_ALIGN];
    Onnx__TensorProto *t = ARENA_NEW(s->a, Onnx__TensorProto);
    *t = **slot;
    size_t n = t->raw_data.len, pad = (size_t)(-*offset & (DATA_ALIGN - 1));
    TRY(sys_write(w, zeros, pad));
    TRY(sys_write(w, t->raw_data.data, n));
    *offset += pad;
    t->has_raw_data = false;
    t->has_data_location = true;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    t->external_data = ARENA_ARRAY(s->a, Onnx__StringStringEntryProto *, 3);
    t->n_external_data = 3;
    t->external_data[0] = entry(s->a, "location", arena_strdup(s->a, location));
    t->external_data[1] = entry(s->a, "offset", arena_printf(s->a, "%zu", *offset));
    t->external_data[2] = entry(s->a, "length", arena_printf(s->a, "%zu", n));
    *offset += n;
    *slot = t;
    return ST_OK;
}

static enum status move_out(struct saver *s, const char *path) {
    const char *data = arena_printf(s->a, "%s.data", path);
    struct sys_writer *w;
    size_t offset = 0;
    TRY(sys_write_begin(s->a, data, &w));
    for (size_t i = 0; i < s->graph.n_initializer; i++) {
        Onnx__TensorProto **t = &s->graph.initializer[i];
        if (!(*t)->has_raw_data || (*t)->raw_data.len < EXTERNAL_MIN) continue;
        enum status st = make_external(s, w, &offset, sys_basename(data), t);
        if (st != ST_OK) {
            sys_write_abort(w);
            return st;
        }
    }
    return sys_write_commit(w);
}

/* ---- writing --------------------------------------------------------------------------------- */

struct pack_to_file {
    ProtobufCBuffer base;
    struct sys_writer *w;
    enum status st;
};

static void append(ProtobufCBuffer *buffer, size_t n, const uint8_t *bytes) {
    struct pack_to_file *f = (struct pack_to_file *)(void *)buffer;
    if (f->st == ST_OK && n) f->st = sys_write(f->w, bytes, n);
}

static enum status write_model(struct saver *s, const char *path) {
    struct pack_to_file f = {.base = {append}};
    TRY(sys_write_begin(s->a, path, &f.w));
    protobuf_c_message_pack_to_buffer(&s->model.base, &f.base);
    if (f.st == ST_OK) return sys_write_commit(f.w);
    sys_write_abort(f.w);
    return f.st;
}

static enum status save(struct onnx_model *m, const struct onnx_replacement *r, uint32_t n,
                        const char *path, size_t limit) {
    struct saver s;
    begin(&s, m, n);
    for (uint32_t i = 0; i < n; i++) TRY(replace(&s, &r[i]));
    squeeze_sparse(&s);
    TRY(wire_visit(&s.model.base, &onnx__tensor_proto__descriptor, make_inline, m));
    if (protobuf_c_message_get_packed_size(&s.model.base) > limit) {
        TRY(move_out(&s, path));
        if (protobuf_c_message_get_packed_size(&s.model.base) > limit)
            return diag_error(m->ctx, ST_UNSUPPORTED, path,
                              "the model without its weights exceeds %zu bytes, more than a .onnx "
                              "file can hold",
                              limit);
    }
    return write_model(&s, path);
}

enum status onnx_save_within(struct onnx_model *m, const struct onnx_replacement *r, uint32_t n,
                             const char *path, size_t limit) {
    enum status st = save(m, r, n, path, limit);
    arena_reset(&m->scratch);
    return st;
}

enum status onnx_save(struct onnx_model *m, const struct onnx_replacement *r, uint32_t n,
                      const char *path) {
    return onnx_save_within(m, r, n, path, onnx_file_max);
}
