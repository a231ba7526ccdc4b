// SPDX-License-Identifier: Apache-2.0
/* roles.c - how constants are used: which operand of which op holds a parameter, where gradients
 * pass, and what lies downstream. Contents are weights.c's business, decisions params.c's. */
#include "frontend/importer.h"
#include <string.h>

static bool in_list(const char *op, const char *const *list) {
    for (; *list; list++)
        if (strcmp(op, *list) == 0) return true;
    return false;
}

const char *slot_role(const struct inode *n, int slot) {
    static const struct {
        const char *op;
        const char *roles[5];
    } rows[] = {
        {"Gemm", {NULL, "weight", "bias"}},
        {"MatMul", {NULL, "weight"}},
        {"FusedMatMul", {NULL, "weight"}},
        {"Conv", {NULL, "weight", "bias"}},
        {"ConvTranspose", {NULL, "weight", "bias"}},
        {"BatchNormalization", {NULL, "scale", "bias"}},
        {"LayerNormalization", {NULL, "scale", "bias"}},
        {"RMSNormalization", {NULL, "scale"}},
        {"SimplifiedLayerNormalization", {NULL, "scale"}},
        {"SkipLayerNormalization", {NULL, NULL, "scale", "bias", "bias"}},
        {"SkipSimplifiedLayerNormalization", {NULL, NULL, "scale", "bias"}},
        {"InstanceNormalization", {NULL, "scale", "bias"}},
        {"GroupNormalization", {NULL, "scale", "bias"}},
        {"PRelu", {NULL, "slope"}},
        {"CausalConvWithState", {NULL, "weight", "bias"}},
        {"RNN", {NULL, "weight", "weight", "bias"}},
        {"GRU", {NULL, "weight", "weight", "bias"}},
        {"LSTM", {NULL, "weight", "weight", "bias"}},
        {"BiasGelu", {NULL, "bias"}},
        {"FastGelu", {NULL, "bias"}},
        {"Gather", {"table"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].op, n->op) == 0)
            return slot >= 0 && slot < 5 ? rows[i].roles[slot] : NULL;
    return NULL;
}

bool slot_differentiable(const struct inode *n, int slot) {
    static const char *const never[] = {
        "Shape",           "Size",           "ArgMax", "ArgMin", "Equal", "Less", "LessOrEqual",
        "Greater",         "GreaterOrEqual", "And",    "Or",     "Not",   "Xor",  "IsNaN",
        "IsInf",           "NonZero",        "Floor",  "Ceil",   "Round", "Sign", "Range",
        "ConstantOfShape", "EyeLike",        NULL};
    static const char *const first_only[] = {"Reshape",
                                             "Expand",
                                             "Slice",
                                             "Tile",
                                             "Split",
                                             "Squeeze",
                                             "Unsqueeze",
                                             "CumSum",
                                             "Trilu",
                                             "Gather",
                                             "GatherElements",
                                             "GatherND",
                                             "Pad",
                                             "Dropout",
                                             "TopK",
                                             "Resize",
                                             "Upsample",
                                             "ReduceSum",
                                             "ReduceMean",
                                             "ReduceMax",
                                             "ReduceMin",
                                             "ReduceProd",
                                             "ReduceL1",
                                             "ReduceL2",
                                             "ReduceLogSum",
                                             "ReduceLogSumExp",
                                             "ReduceSumSquare",
                                             "SplitToSequence",
                                             "SequenceAt",
                                             "Clip",
                                             "CastLike",
                                             "SoftmaxCrossEntropyLoss",
                                             "NegativeLogLikelihoodLoss",
                                             "RotaryEmbedding",
                                             NULL};
    if (in_list(n->op, never)) return false;
    if (in_list(n->op, first_only)) return slot == 0;
    if (strcmp(n->op, "Where") == 0) return slot != 0;
    if (strcmp(n->op, "OneHot") == 0) return slot == 2;
    if (strcmp(n->op, "BatchNormalization") == 0) return slot < 3;
    if (strcmp(n->op, "ScatterElements") == 0 || strcmp(n->op, "ScatterND") == 0) return slot != 1;
    if (strcmp(n->op, "Cast") == 0) return dtype_is_float(node_dtype(n, "to"));
    return true;
}

struct users users_build(struct importer *im) {
    struct users u = {.trig = false};
    uint32_t count = im->values.n, total = 0;
    u.first = ARENA_ARRAY(im->a, uint32_t, (size_t)count + 2);
    for (uint32_t i = 0; i < im->main.nodes.n; i++) {
        u.trig |= strcmp(im->main.nodes.at[i].op, "Sin") == 0;
        for (int k = 0; k < im->main.nodes.at[i].nin; k++) {
            u.first[im->main.nodes.at[i].in[k] + 2]++;
            total++;
        }
    }
    for (uint32_t v = 2; v < count + 2; v++) u.first[v] += u.first[v - 1];
    u.at = ARENA_ARRAY(im->a, const struct inode *, total);
    for (uint32_t i = 0; i < im->main.nodes.n; i++)
        for (int k = 0; k < im->main.nodes.at[i].nin; k++)
            u.at[u.first[im->main.nodes.at[i].in[k] + 1]++] = &im->main.nodes.at[i];
    return u;
}

bool *values_reaching_outputs(struct importer *im) {
    bool *need = ARENA_ARRAY(im->a, bool, im->values.n);
    for (size_t i = 0; i < im->m->proto->graph->n_output; i++) need[im->outs[i]] = true;
    for (uint32_t i = im->main.nodes.n; i-- > 0;) {
        const struct inode *n = &im->main.nodes.at[i];
        bool wanted = false;
        for (int k = 0; k < n->nout; k++) wanted |= n->out[k] && need[n->out[k]];
        for (int k = 0; wanted && k < n->nin; k++)
            if (slot_differentiable(n, k)) need[n->in[k]] = true;
    }
    need[0] = false;
    return need;
}

/* Walk from the values of a weight through its users. */
struct walk {
    struct importer *im;
    const struct users *u;
    bool *seen;
    uint32_t *stack;
    uint32_t n;
};

static struct walk walk_from(struct importer *im, const struct users *u, const struct weight *w) {
    struct walk k = {im, u, ARENA_ARRAY(im->a, bool, im->values.n),
                     ARENA_ARRAY(im->a, uint32_t, im->values.n), 0};
    uint32_t index = (uint32_t)(w - im->weights.at) + 1;
    for (uint32_t v = 1; v < im->values.n; v++)
        if (im->values.at[v].weight == index) {
            k.seen[v] = true;
            k.stack[k.n++] = v;
        }
    return k;
}

static void walk_outputs(struct walk *k, const struct inode *n) {
    for (int i = 0; i < n->nout; i++)
        if (n->out[i] && !k->seen[n->out[i]]) {
            k->seen[n->out[i]] = true;
            k->stack[k->n++] = n->out[i];
        }
}

/* Float data, or something looked up in a float table. Integer inputs are positions. */
static bool carries_data(struct importer *im, uint32_t v, int depth) {
    const struct ivalue *x = iv(im, v);
    if (x->weight) return false;
    if (!x->producer) return dtype_is_float(x->type.dtype);
    const struct inode *n = x->producer;
    if (depth == 0) return true;
    if (strcmp(n->op, "Shape") == 0 || strcmp(n->op, "Size") == 0) return false;
    if (strncmp(n->op, "Gather", 6) == 0 && n->nin > 0 && n->in[0] && iv(im, n->in[0])->weight &&
        dtype_is_float(iv(im, n->in[0])->type.dtype))
        return true;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && carries_data(im, n->in[i], depth - 1)) return true;
    return false;
}

static bool walk_rotary(struct importer *im, const struct users *u, const struct weight *w) {
    static const char *const through[] = {
        "Unsqueeze", "Squeeze", "Reshape", "Expand",   "Transpose", "Concat",  "Cast", "CastLike",
        "Mul",       "MatMul",  "Einsum",  "Identity", "Slice",     "Flatten", "Div",  NULL};
    enum { DEPTH = 12 };
    for (uint32_t i = 0; i < w->uses.n; i++) /* the common case costs nothing */
        if (!in_list(w->uses.at[i].n->op, through)) return false;
    struct walk k = walk_from(im, u, w);
    bool sine = false, cosine = false;
    while (k.n > 0) {
        uint32_t v = k.stack[--k.n];
        for (uint32_t i = u->first[v]; i < u->first[v + 1]; i++) {
            const struct inode *n = u->at[i];
            bool is_sin = strcmp(n->op, "Sin") == 0, is_cos = strcmp(n->op, "Cos") == 0;
            sine |= is_sin;
            cosine |= is_cos;
            if (is_sin || is_cos) continue;
            if (!in_list(n->op, through)) return false;
            for (int j = 0; j < n->nin; j++)
                if (n->in[j] && !k.seen[n->in[j]] && carries_data(im, n->in[j], DEPTH))
                    return false;
            walk_outputs(&k, n);
        }
    }
    return sine && cosine;
}

bool feeds_rotary(struct importer *im, const struct users *u, const struct weight *w) {
    if (!u->trig || w->uses.n == 0 || w->captured) return false;
    struct arena_mark m = arena_mark(im->a);
    bool yes = walk_rotary(im, u, w);
    arena_rewind(im->a, m);
    return yes;
}

static bool walk_softmax(struct importer *im, const struct users *u, const struct weight *w) {
    static const char *const through[] = {"Add",  "Where",    "Mul",   "Expand",  "Unsqueeze",
                                          "Cast", "Identity", "Slice", "Reshape", NULL};
    struct walk k = walk_from(im, u, w);
    bool softmax = false;
    while (k.n > 0) {
        uint32_t v = k.stack[--k.n];
        for (uint32_t i = u->first[v]; i < u->first[v + 1]; i++) {
            const struct inode *n = u->at[i];
            if (strcmp(n->op, "Softmax") == 0 || strcmp(n->op, "Attention") == 0) {
                softmax = true;
                continue;
            }
            if (!in_list(n->op, through)) return false;
            walk_outputs(&k, n);
        }
    }
    return softmax;
}

bool masks_softmax(struct importer *im, const struct users *u, const struct weight *w) {
    if (w->uses.n == 0 || w->captured) return false;
    struct arena_mark m = arena_mark(im->a);
    bool yes = walk_softmax(im, u, w);
    arena_rewind(im->a, m);
    return yes;
}
