// SPDX-License-Identifier: Apache-2.0
/* load.c - from bytes to a checked ModelProto. Weights stay in the mapping: the scan cuts raw_data
 * out, protobuf-c unpacks the small rest into the model's arena under a byte budget, and the cut
 * fields are then pointed into the mapping. What the messages must satisfy is check.c's business.
 */
#include "base/diag.h"
#include "frontend/artifacts.h"
#include "frontend/file.h"
#include "frontend/wire.h"
#include <string.h>

/* ---- files of another kind ----------------------------------------------------------------- */

struct file_kind {
    uint8_t at, len;
    const char *magic, *what;
};
// clang-format off
static const struct file_kind file_kinds[] = {
    {4, 4, "ORTM", "an ONNX Runtime .ort file; give the .onnx file that it was converted from"},
    {4, 4, "TFL3", "a TensorFlow Lite file; convert it to ONNX first"},
    {0, 4, "PK\3\4", "a zip archive (a PyTorch .pt file or .npz?); export the model with torch.onnx.export"},
    {0, 2, "\x80\2", "a Python pickle (a PyTorch checkpoint?); export the model with torch.onnx.export"},
    {0, 2, "\x80\3", "a Python pickle; export the model with torch.onnx.export"},
    {0, 2, "\x80\4", "a Python pickle; export the model with torch.onnx.export"},
    {0, 2, "\x80\5", "a Python pickle; export the model with torch.onnx.export"},
    {0, 2, "\x1f\x8b", "gzip data; unpack it first"},
    {0, 4, "\x89HDF", "an HDF5 file (Keras?); export the model to ONNX first"},
    {0, 4, "GGUF", "a GGUF file; export the model to ONNX first"},
    {0, 6, "\x93NUMPY", "a NumPy array; expected a model"},
    {0, 23, "version https://git-lfs", "a Git LFS pointer; fetch the real file with `git lfs pull`"},
    {0, 10, "ir_version", "ONNX in protobuf text form; convert it to the binary .onnx form"},
};
// clang-format on

static const char *foreign_kind(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < sizeof file_kinds / sizeof *file_kinds; i++) {
        const struct file_kind *k = &file_kinds[i];
        if (n >= (size_t)k->at + k->len && !memcmp(p + k->at, k->magic, k->len)) return k->what;
    }
    uint64_t header = 0;
    if (n > 8) memcpy(&header, p, 8);
    if (n > 8 && header < n && p[8] == '{')
        return "a safetensors file, which holds weights without a graph; expected a model";
    size_t i = 0;
    while (i < n && i < 64 && (p[i] == ' ' || p[i] == '\n' || p[i] == '\r' || p[i] == '\t')) i++;
    if (i < n && p[i] == '{') return "JSON; convert the model to the binary .onnx form";
    if (i < n && p[i] == '<') return "ONNX text or HTML; expected the binary .onnx form";
    return NULL;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

struct budget {
    struct arena *arena;
    size_t left;
};

static void *budget_alloc(void *user, size_t size) {
    struct budget *b = user;
    if (size > b->left) return NULL;
    b->left -= size;
    return arena_alloc(b->arena, size);
}

static void budget_free(void *user, void *ptr) {
    (void)user, (void)ptr; /* the arena goes as a whole */
}

static enum status unpack(struct onnx_model *m, const uint8_t *bytes, size_t n) {
    const ProtobufCMessageDescriptor *root = &onnx__model_proto__descriptor;
    struct wire_summary sum;
    TRY(wire_scan(m->ctx, m->path, root, bytes, n, &sum));
    uint8_t *compact = arena_alloc(&m->scratch, sum.compact);
    size_t len = wire_compact(root, bytes, n, compact);
    struct budget budget = {&m->arena, sum.unpacked};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
    ProtobufCMessage *msg = protobuf_c_message_unpack(root, &allocator, len, compact);
    arena_reset(&m->scratch);
    if (!msg || !wire_restore(msg, bytes, n))
        return diag_error(m->ctx, ST_PARSE, m->path,
                          "not a valid ONNX file: the protobuf messages cannot be unpacked; the "
                          "file is damaged or of another kind");
    m->proto = (Onnx__ModelProto *)msg;
    return ST_OK;
}

static enum status load_bytes(struct onnx_model *m, const uint8_t *bytes, size_t n) {
    if (n == 0)
        return diag_error(m->ctx, ST_PARSE, m->path, "the file is empty; expected an ONNX model");
    const char *kind = foreign_kind(bytes, n);
    if (kind) return diag_error(m->ctx, ST_UNSUPPORTED, m->path, "this is %s", kind);
    TRY(unpack(m, bytes, n));
    enum status st = onnx_check(m);
    arena_reset(&m->scratch);
    return st;
}

/* ---- finding the file ------------------------------------------------------------------------ */

static bool has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), k = strlen(suffix);
    return n > k && !strcmp(s + n - k, suffix);
}

/* The one .onnx file of a directory. */
static enum status find_model(struct onnx_model *m, const char *dir, const char **out) {
    const char **names, *found = NULL;
    uint32_t n;
    TRY(sys_list_dir(&m->arena, dir, &names, &n));
    for (uint32_t i = 0; i < n; i++) {
        if (!has_suffix(names[i], ".onnx")) continue;
        if (found)
            return diag_error(m->ctx, ST_USAGE, dir,
                              "the directory holds several .onnx files (%s, %s); name one", found,
                              names[i]);
        found = names[i];
    }
    if (!found) return diag_error(m->ctx, ST_USAGE, dir, "the directory holds no .onnx file");
    *out = arena_printf(&m->arena, "%s/%s", dir, found);
    return ST_OK;
}

/* ---- ONNX Runtime's training artifacts --------------------------------------------------------
 */
static const char training_name[] = "training_model.onnx";

/* The optimizer graph: the one .onnx file beside those with a name of their own. */
static enum status find_optimizer(struct onnx_model *m, const char *dir, const char **out) {
    const char **names, *found = NULL;
    uint32_t n;
    TRY(sys_list_dir(&m->arena, dir, &names, &n));
    for (uint32_t i = 0; i < n; i++) {
        if (!has_suffix(names[i], ".onnx") || strcmp(names[i], training_name) == 0 ||
            strcmp(names[i], "eval_model.onnx") == 0)
            continue;
        if (found)
            return diag_error(m->ctx, ST_USAGE, dir,
                              "training artifacts have one optimizer graph, here are '%s' and '%s'",
                              found, names[i]);
        found = names[i];
    }
    if (!found)
        return diag_error(m->ctx, ST_USAGE, dir,
                          "training artifacts need an optimizer graph beside %s", training_name);
    *out = arena_printf(&m->arena, "%s/%s", dir, found);
    return ST_OK;
}

static void free_model(void *model) {
    struct onnx_model *m = model;
    arena_reset(&m->scratch);
    arena_reset(&m->arena);
}

static enum status load_artifacts(struct onnx_model *m, const char *dir) {
    static const char *const names[] = {"checkpoint", "checkpoint.ckpt"};
    struct ctx *c = m->ctx;
    struct file_map map;
    struct ort_checkpoint checkpoint;
    const char *path = NULL;
    m->dir = arena_strdup(&m->arena, dir);
    m->path = arena_printf(&m->arena, "%s/%s", dir, training_name);
    for (int k = 0; k < 2 && !path; k++) {
        path = arena_printf(&m->arena, "%s/%s", dir, names[k]);
        if (!sys_exists(path)) path = NULL;
    }
    if (!path)
        return diag_error(c, ST_USAGE, dir, "training artifacts need a file 'checkpoint' beside %s",
                          training_name);
    TRY(sys_map_file(&m->arena, path, &map));
    TRY(ort_checkpoint_read(c, &m->arena, path, map.at, map.size, &checkpoint));
    struct onnx_model *opt = ARENA_NEW(&m->arena, struct onnx_model);
    opt->ctx = c;
    arena_init(&opt->arena, c);
    arena_init(&opt->scratch, c);
    arena_defer(&m->arena, free_model, opt);
    opt->dir = m->dir;
    TRY(find_optimizer(m, dir, &opt->path));
    TRY(sys_map_file(&m->arena, opt->path, &map));
    TRY(load_bytes(opt, map.at, map.size));
    TRY(sys_map_file(&m->arena, m->path, &map));
    TRY(load_bytes(m, map.at, map.size));
    TRY(artifacts_join(m, opt->proto, &checkpoint));
    enum status st = onnx_check(m);
    arena_reset(&m->scratch);
    return st;
}

static enum status load_path(struct onnx_model *m, const char *path) {
    m->path = arena_strdup(&m->arena, path);
    if (sys_is_dir(path) && sys_exists(arena_printf(&m->arena, "%s/%s", path, training_name)))
        return load_artifacts(m, path);
    if (sys_is_dir(path)) TRY(find_model(m, path, &m->path));
    m->dir = sys_dirname(&m->arena, m->path);
    struct file_map map;
    TRY(sys_map_file(&m->arena, m->path, &map));
    return load_bytes(m, map.at, map.size);
}

/* ---- entry points ---------------------------------------------------------------------------- */

struct source {
    const char *path; /* NULL for memory */
    const void *bytes;
    size_t n;
    const char *dir, *name;
};

static enum status load(struct onnx_model *m, const struct source *s) {
    if (s->path) return load_path(m, s->path);
    m->path = arena_strdup(&m->arena, s->name);
    m->dir = s->dir ? arena_strdup(&m->arena, s->dir) : NULL;
    return load_bytes(m, s->bytes, s->n);
}

/* The model owns its memory from its first byte on, so an unwind must stop here to free it. */
static enum status load_guarded(struct onnx_model *m, const struct source *s) {
    struct ctx *c = m->ctx;
    jmp_buf here, *outer = c->landing;
    if (setjmp(here)) {
        c->landing = outer;
        onnx_free(m);
        longjmp(*outer, 1);
    }
    c->landing = &here;
    enum status st = load(m, s);
    c->landing = outer;
    return st;
}

static enum status load_new(struct ctx *c, const struct source *s, struct onnx_model **out) {
    CHECK(c, c->landing != NULL);
    struct onnx_model *m = ctx_alloc(c, sizeof *m);
    *m = (struct onnx_model){.ctx = c};
    arena_init(&m->arena, c);
    arena_init(&m->scratch, c);
    *out = NULL;
    enum status st = load_guarded(m, s);
    if (st == ST_OK) {
        *out = m;
    } else {
        onnx_free(m);
    }
    return st;
}

enum status onnx_load(struct ctx *c, const char *path, struct onnx_model **out) {
    return load_new(c, &(struct source){.path = path}, out);
}

enum status onnx_load_memory(struct ctx *c, const void *bytes, size_t n, const char *dir,
                             const char *name, struct onnx_model **out) {
    return load_new(c, &(struct source){.bytes = bytes, .n = n, .dir = dir, .name = name}, out);
}

void onnx_free(struct onnx_model *m) {
    if (!m) return;
    struct ctx *c = m->ctx;
    arena_reset(&m->scratch);
    arena_reset(&m->arena);
    ctx_free(c, m);
}

bool onnx_symbolic_inputs(const struct onnx_model *m) {
    const Onnx__GraphProto *g = m->proto->graph;
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__TypeProto *t = g->input[i]->type;
        if (!t || t->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE || !t->tensor_type) continue;
        const Onnx__TensorShapeProto *s = t->tensor_type->shape;
        for (size_t k = 0; s && k < s->n_dim; k++)
            if (s->dim[k]->value_case != ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE)
                return true;
    }
    return false;
}
