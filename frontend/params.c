// SPDX-License-Identifier: Apache-2.0
/* params.c - the verdict on every constant of the file: trained, frozen, a BatchNorm statistic, or
 * a plain constant, and why, in a user's words. Then which constants are one parameter stored
 * twice. How one constant becomes several parameters, and their names, are groups.c's.
 *
 * Rules, strongest first: the exporter's own record; what an op keeps in the operand; contents that
 * only masks and tables have; and else, a float initializer that reaches an output through
 * differentiable operands is trained. */
#include "frontend/importer.h"
#include <ctype.h>
#include <string.h>

enum { CONSTANT_MAX = 16 }; /* a Constant node of more elements may be a weight */

/* ---- uses ---------------------------------------------------------------------------------- */
static void mark_captured(struct importer *im, uint32_t v) {
    uint32_t w = iv(im, v)->weight;
    if (w) im->weights.at[w - 1].captured = true;
}

static void collect_uses(struct importer *im) {
    for (uint32_t i = 0; i < im->main.nodes.n; i++) {
        const struct inode *n = &im->main.nodes.at[i];
        for (int k = 0; k < n->nin; k++) {
            const struct ivalue *x = iv(im, n->in[k]);
            if (!x->weight) continue;
            struct wuse u = {x->aliased ? x->alias : (struct onnx_use){n->index, (uint32_t)k}, n, k,
                             x->alias_name, 0};
            vec_push(im->a, &im->weights.at[x->weight - 1].uses, u);
        }
        for (int k = 0; k < n->nattrs; k++)
            if (n->attrs[k]->g) flatten_captures(im, n->scope, n->attrs[k]->g, 0, mark_captured);
    }
}

static bool used_as(const struct weight *w, const char *op, int slot) {
    for (uint32_t i = 0; i < w->uses.n; i++)
        if (w->uses.at[i].slot == slot && strcmp(w->uses.at[i].n->op, op) == 0) return true;
    return false;
}

static bool always_used_as(const struct weight *w, const char *op, int low, int high) {
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct wuse *u = &w->uses.at[i];
        if (strcmp(u->n->op, op) != 0 || u->slot < low || u->slot > high) return false;
    }
    return w->uses.n > 0;
}

static const char *first_role(const struct weight *w) {
    for (uint32_t i = 0; i < w->uses.n; i++)
        if (slot_role(w->uses.at[i].n, w->uses.at[i].slot))
            return slot_role(w->uses.at[i].n, w->uses.at[i].slot);
    return NULL;
}

static bool reaches(struct importer *im, const bool *need, const struct weight *w) {
    if (w->captured) return true;
    for (uint32_t v = 1; v < im->values.n; v++) {
        if (im->values.at[v].weight != (uint32_t)(w - im->weights.at) + 1) continue;
        if (need[v]) return true;
    }
    return false;
}

/* ---- single verdicts ----------------------------------------------------------------------- */
static enum verdict freeze(struct weight *w, const char *why) {
    w->why = why;
    return W_FROZEN;
}

static bool contains(const char *s, const char *part) {
    size_t n = strlen(part);
    for (; *s; s++)
        if (strncasecmp(s, part, n) == 0) return true;
    return false;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static const char *frozen_by_name(const char *name) {
    static const struct {
        const char *part, *why;
    } hints[] = {
        {"inv_freq", "rotary frequencies, by name"},
        {"cos_cached", "rotary table, by name"},
        {"sin_cached", "rotary table, by name"},
        {"cos_cache", "rotary table, by name"},
        {"sin_cache", "rotary table, by name"},
        {"rotary_emb", "rotary table, by name"},
        {"position_ids", "positions, by name"},
        {"causal_mask", "mask, by name"},
        {"attn_mask", "mask, by name"},
        {"attention_mask", "mask, by name"},
        {"masked_bias", "mask value, by name"},
    };
    if (ends_with(name, ".weight") || ends_with(name, ".bias")) return NULL;
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (contains(name, hints[i].part)) return hints[i].why;
    return NULL;
}

/* Sub or Div right at a graph input: the file's way to normalise images. */
static bool normalises_input(struct importer *im, const struct weight *w) {
    if (type_count(&w->t.type) > 4096) return false;
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct inode *n = w->uses.at[i].n;
        if (strcmp(n->op, "Sub") != 0 && strcmp(n->op, "Div") != 0) return false;
        if (w->uses.at[i].slot != 1 || !n->in[0]) return false;
        const struct ivalue *x = iv(im, n->in[0]);
        bool chained = x->producer && strcmp(x->producer->op, "Sub") == 0 && x->producer->in[0] &&
                       !iv(im, x->producer->in[0])->producer;
        if (x->weight || (x->producer && !chained)) return false;
    }
    return w->uses.n > 0;
}

/* A norm layer without affine parameters, as the exporter's record of the operation shows. */
static bool norm_without_affine(struct importer *im, const struct weight *w) {
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct inode *n = w->uses.at[i].n;
        const char *none[1];
        if (!contains(n->op, "Normalization") || !record_present(im, n)) return false;
        if (record_params(im, n, none, 1) > 0) return false;
    }
    return w->uses.n > 0;
}

static enum verdict judge_uniform(struct importer *im, const struct users *u, struct weight *w,
                                  double x) {
    if (always_used_as(w, "Where", 1, 2)) return freeze(w, "fill value of a Where");
    if (always_used_as(w, "Div", 1, 1) || always_used_as(w, "Pow", 1, 1) ||
        always_used_as(w, "Sub", 0, 1))
        return freeze(w, "one number everywhere, used as a constant");
    if (x > 0 && x <= 1e-3 && always_used_as(w, "Add", 0, 1)) return freeze(w, "an epsilon");
    if (norm_without_affine(im, w))
        return freeze(w, "filler of a normalisation without parameters");
    /* A vector of zeros may be a classifier's bias right before its Softmax. */
    if ((x == 0 || x <= -1e4) && w->t.type.rank > 1 && masks_softmax(im, u, w))
        return freeze(w, "attention mask: one value everywhere");
    return W_TRAINED;
}

static enum verdict judge_content(struct importer *im, const struct users *u, struct weight *w) {
    double x;
    bool zero_one;
    if (weight_uniform(&w->t, &x)) return judge_uniform(im, u, w, x);
    if (weight_is_mask(&w->t, &zero_one))
        return freeze(w, zero_one ? "mask: only 0 and 1"
                                  : "mask: only 0 and numbers that switch a softmax off");
    if (feeds_rotary(im, u, w)) return freeze(w, "rotary frequencies: feed only Sin and Cos");
    bool product = used_as(w, "MatMul", 0) || used_as(w, "MatMul", 1) || used_as(w, "Gemm", 1) ||
                   used_as(w, "Conv", 1);
    if (!product && weight_sinusoid(&w->t)) return freeze(w, "table of sines and cosines");
    if (normalises_input(im, w)) return freeze(w, "normalises a model input");
    return W_TRAINED;
}

static enum verdict judge(struct importer *im, const struct users *u, const bool *need,
                          struct weight *w) {
    int64_t count = type_count(&w->t.type);
    enum record rec = record_of(im, w->t.name);
    const char *role = first_role(w), *hint;
    if (w->bound || !dtype_is_float(w->t.type.dtype) || (w->uses.n == 0 && !w->captured) ||
        count == 0)
        return W_CONST;
    if (always_used_as(w, "BatchNormalization", 3, 4)) {
        w->why = arena_printf(im->a, "running statistic of BatchNormalization '%s'",
                              w->uses.at[0].n->origin);
        return W_STATE;
    }
    bool small = (w->constant || w->inner) && count <= CONSTANT_MAX;
    if (w->t.type.rank == 0 || (count == 1 && !w->constant))
        small = !role || strcmp(role, "table") == 0;
    if (rec == REC_PARAM) small = false;
    if (small && rec != REC_BUFFER) return W_CONST;
    if (!reaches(im, need, w)) return W_CONST;
    if (rec == REC_BUFFER) return freeze(w, "a buffer, by the exporter's record");
    if (rec == REC_NONE && (hint = frozen_by_name(w->t.name)) != NULL) return freeze(w, hint);
    if (rec == REC_PARAM) return W_TRAINED;
    return judge_content(im, u, w);
}

/* ---- pairs --------------------------------------------------------------------------------- */
/* Tables of cosines and sines are multiplied with activations, whole or looked up by position. */
static bool may_be_rotary(struct importer *im, const struct weight *w) {
    if (w->verdict != W_TRAINED || w->t.type.rank < 2 || w->own) return false;
    if (record_of(im, w->t.name) == REC_PARAM) return false;
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const char *op = w->uses.at[i].n->op;
        bool fine = strcmp(op, "Mul") == 0 || strcmp(op, "Gather") == 0 ||
                    strcmp(op, "Slice") == 0 || strcmp(op, "Unsqueeze") == 0 ||
                    strcmp(op, "Expand") == 0 || strcmp(op, "Cast") == 0 ||
                    strcmp(op, "Reshape") == 0 || strcmp(op, "RotaryEmbedding") == 0;
        if (!fine) return false;
    }
    return true;
}

static void freeze_rotary_pairs(struct importer *im) {
    for (uint32_t i = 0; i < im->weights.n; i++) {
        struct weight *a = &im->weights.at[i];
        if (!may_be_rotary(im, a)) continue;
        for (uint32_t k = i + 1; k < im->weights.n; k++) {
            struct weight *b = &im->weights.at[k];
            if (!may_be_rotary(im, b) || !weights_rotary(&a->t, &b->t)) continue;
            const char *why = "rotary table: sines and cosines of the same angles";
            a->verdict = freeze(a, why);
            b->verdict = freeze(b, why);
            break;
        }
    }
}

/* PyTorch ties an embedding and a head by sharing one tensor; exporters may store it twice, and the
 * second time transposed. Equal contents of that size cannot be chance. */
static void tie_copies(struct importer *im) {
    enum { TIED_MIN = 64 };
    double x;
    for (uint32_t i = 0; i < im->weights.n; i++) {
        struct weight *a = &im->weights.at[i];
        if (a->verdict != W_TRAINED || a->own || a->t.type.rank != 2 || a->tied ||
            !used_as(a, "Gather", 0) || type_count(&a->t.type) < TIED_MIN ||
            weight_uniform(&a->t, &x))
            continue;
        for (uint32_t k = 0; k < im->weights.n; k++) {
            struct weight *b = &im->weights.at[k];
            bool head =
                used_as(b, "MatMul", 1) || used_as(b, "Gemm", 1) || used_as(b, "Transpose", 0);
            if (k == i || b->verdict != W_TRAINED || b->own || b->tied || !head) continue;
            bool same = weight_same(&a->t, &b->t, false);
            bool flipped = !same && weight_same(&a->t, &b->t, true);
            if (!same && !flipped) continue;
            b->tied = i + 1;
            b->tied_transposed = flipped;
        }
    }
}

enum status params_decide(struct importer *im) {
    record_load(im);
    collect_uses(im);
    struct users u = users_build(im);
    bool *need = values_reaching_outputs(im);
    for (uint32_t i = 0; i < im->weights.n; i++) {
        struct weight *w = &im->weights.at[i];
        if (own_step_judge(im, w, &w->verdict)) continue;
        w->verdict = judge(im, &u, need, w);
        if (im->step && w->verdict == W_TRAINED)
            w->verdict = freeze(w, "the model's own training step leaves it as it is");
    }
    TRY(own_step_check(im));
    freeze_rotary_pairs(im);
    tie_copies(im);
    return groups_build(im);
}
