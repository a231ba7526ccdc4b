// SPDX-License-Identifier: Apache-2.0
/* import.c - the importer's driver: flatten, judge the constants, lower every node, collect what is
 * unsupported over the whole model before failing, and say what a user should know. */
#include "frontend/importer.h"
#include <string.h>

const struct handler *handler_find(const char *domain, const char *op) {
    static const struct handler table[] = {
#define HANDLER(d, o, f, a) {d, o, f, a},
#include "frontend/handlers.def"
#undef HANDLER
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].op, op) == 0 && strcmp(table[i].domain, domain) == 0) return &table[i];
    return NULL;
}

static enum status fail_unsupported(struct importer *im) {
    const struct import_unsupported *u = &im->unsupported.at[0];
    uint32_t more = im->unsupported.n - 1;
    return diag_error(im->ctx, ST_UNSUPPORTED, u->nodes[0], "%s%s%s: %s (%u node%s)%s",
                      u->domain[0] ? u->domain : "", u->domain[0] ? "::" : "", u->op, u->why,
                      (unsigned)u->nnodes, u->nnodes == 1 ? "" : "s",
                      more ? arena_printf(im->a, ", and %u more unsupported; lathe info lists all",
                                          (unsigned)more)
                           : "");
}

static enum status add_outputs(struct importer *im) {
    const Onnx__GraphProto *g = im->m->proto->graph;
    im->n = NULL;
    im->refused = false;
    struct map seen;
    map_init(&seen, im->a);
    for (size_t i = 0; i < g->n_output; i++) {
        uint32_t before;
        uint64_t name = intern(&im->names, g->output[i]->name).i;
        if (map_get(&seen, name, &before))
            return diag_error(
                im->ctx, ST_PARSE, g->output[i]->name,
                "outputs %u and %zu of the graph share this name; names must be unique",
                (unsigned)before, i);
        map_set(&seen, name, (uint32_t)i);
        struct ivalue *x = iv(im, im->outs[i]);
        if (x->kind != VK_TENSOR)
            return diag_error(im->ctx, ST_UNSUPPORTED, g->output[i]->name,
                              "graph output is %s, only tensors can be computed",
                              x->kind == VK_SEQUENCE ? "a sequence" : "not a tensor");
        struct inode none = {.op = "output", .origin = g->output[i]->name};
        im->n = &none;
        val_id v = read_value(im, im->outs[i], (struct onnx_use){NODE_INNER, 0});
        im->n = NULL;
        if (im->st != ST_OK) return im->st;
        graph_add_output(im->g, g->output[i]->name, v);
    }
    return ST_OK;
}

/* ---- what a user should know --------------------------------------------------------------- */
static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* "conv1.weight" beside "conv1.bias": the layer had a bias of its own. */
static bool own_bias(struct importer *im, const struct inode *n) {
    const char *w = iv(im, n->in[1])->name, *b = iv(im, n->in[2])->name;
    size_t k = strlen(w);
    if (record_of(im, b) == REC_PARAM) return true;
    return ends_with(w, ".weight") && ends_with(b, ".bias") && strlen(b) == k - 2 &&
           strncmp(w, b, k - 6) == 0;
}

/* Exporting in inference mode folds BatchNorm into the convolution before it, and training such a
 * file trains another network than the one the user wrote. */
static void warn_folded_batch_norm(struct importer *im) {
    uint32_t folded = 0;
    for (uint32_t i = 0; i < im->main.nodes.n; i++) {
        const struct inode *n = &im->main.nodes.at[i];
        if (strstr(n->op, "Normalization")) return;
        if (strcmp(n->op, "Conv") != 0 || !has_in(n, 2) || !has_out(n, 0)) continue;
        if (!iv(im, n->in[1])->weight || !iv(im, n->in[2])->weight) continue;
        if (own_bias(im, n)) return;
        for (uint32_t k = i + 1; k < im->main.nodes.n; k++) {
            const struct inode *u = &im->main.nodes.at[k];
            bool reads = false;
            for (int j = 0; j < u->nin; j++) reads |= u->in[j] == n->out[0];
            if (!reads) continue;
            folded += strcmp(u->op, "Relu") == 0 || strcmp(u->op, "Add") == 0 ||
                      strcmp(u->op, "Sigmoid") == 0 || strcmp(u->op, "Clip") == 0;
            break;
        }
    }
    if (folded >= 2)
        diag_warning(
            im->ctx, "",
            "%u convolutions have a bias and no BatchNormalization follows: the model seems "
            "exported in inference mode, which folds BatchNorm into the weights. It trains, "
            "but not like the original; export with training=TrainingMode.TRAINING to keep "
            "BatchNorm",
            (unsigned)folded);
}

static void tell(struct importer *im) {
    uint32_t untied = 0;
    for (uint32_t i = 0; i < im->weights.n; i++)
        if (im->weights.at[i].untie) untied += im->weights.at[i].groups.n;
    if (untied)
        diag_note(im->ctx, "",
                  "%u parameters that the exporter had merged because they were equal "
                  "are trained apart",
                  (unsigned)untied);
    if (!im->o->training) return;
    if (im->dropouts_inert)
        diag_note(im->ctx, "",
                  "%d Dropout nodes have no training_mode input and by the ONNX "
                  "specification do nothing, in training either",
                  im->dropouts_inert);
    if (im->batch_norms_switched)
        diag_note(im->ctx, "",
                  "%d BatchNormalization nodes were exported for inference; in training "
                  "they use the batch's own statistics",
                  im->batch_norms_switched);
    warn_folded_batch_norm(im);
}

/* ---- the entry ----------------------------------------------------------------------------- */
static enum status import_graph(struct importer *im) {
    TRY(flatten_model(im));
    if (im->o->inputs_only) return ST_OK;
    TRY(params_decide(im));
    lower_nodes(im, &im->main);
    TRY(im->st);
    if (im->step) TRY(own_step_updates(im));
    im->r->unsupported = im->unsupported.at;
    im->r->nunsupported = im->unsupported.n;
    im->r->params = im->params.at;
    im->r->nparams = im->params.n;
    if (im->unsupported.n) return im->o->listing ? ST_UNSUPPORTED : fail_unsupported(im);
    TRY(add_outputs(im));
    tell(im);
    graph_settle(im->g);
    return graph_verify(im->g, "import");
}

enum status onnx_import(struct onnx_model *m, const struct import_options *o,
                        struct import_result *result) {
    static const struct import_options none;
    struct importer *im = ARENA_NEW(&m->arena, struct importer);
    memset(result, 0, sizeof *result);
    im->ctx = m->ctx;
    im->a = &m->arena;
    im->m = m;
    im->o = o ? o : &none;
    im->r = result;
    intern_init(&im->names, im->a);
    if (!m->proto->graph) return diag_error(m->ctx, ST_PARSE, m->path, "the model holds no graph");
    const char *name = m->proto->graph->name;
    im->g = graph_create(m->ctx, name[0] ? name : "main");
    result->graph = im->g; /* at once: an unwind must find it */
    enum status st = import_graph(im);
    if (st != ST_OK) {
        graph_destroy(im->g);
        result->graph = NULL;
    }
    return st;
}
