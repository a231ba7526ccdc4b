// SPDX-License-Identifier: Apache-2.0
/* recipe.h - which numbers a step computes with, as a short text: `key = value` lines and `#`
 * comments. The built-in recipes are such texts too. What the values do to a graph is in
 * precision.c; docs/recipes.md explains the keys. */
#ifndef LATHE_PASSES_RECIPE_H
#define LATHE_PASSES_RECIPE_H

#include "ir/types.h"

enum { CHUNK_AUTO = -1, CHUNK_OFF = 0 };
enum save_mode { SAVE_AUTO, SAVE_ALL };
/* How a state of Adam is kept. */
enum state_rounding { STATE_AUTO, STATE_NEAREST, STATE_STOCHASTIC };
struct recipe_state {
    enum dtype format; /* f32, e4m3 or e5m2 */
    int64_t group;     /* values that share a scale */
    double range;      /* what a group is spread over; 0: not expanded */
    bool contract;     /* groups wider than that are narrowed */
    enum state_rounding rounding;
};
#define STATE_BETA2 0.98 /* STATE_AUTO: v changes less in a step than its last bit says above */

/* How products with a parameter, and their gradients, read their operands. */
enum quant_scope { QUANT_TENSOR, QUANT_ROW, QUANT_BLOCK };
struct recipe_products {
    bool low;             /* as 8-bit codes; false: as `compute` */
    enum dtype format;    /* of values and parameters: e4m3 or e5m2 */
    enum dtype gradients; /* of gradients */
    enum quant_scope scope;
    enum dtype scale_type; /* f32, bf16 or e8m0 */
    int64_t history; /* steps whose largest magnitudes make a scale; 0: from the operand itself */
    int64_t margin;  /* powers of two above them, with a history */
};
/* `for PATTERN: KEY = VALUE`: one key of recipe_products for nodes of that name. */
struct recipe_override {
    const char *pattern;
    unsigned field; /* enum products_field */
    struct recipe_products value;
};
enum products_field { FIELD_FORMAT, FIELD_GRADIENTS, FIELD_SCOPE, FIELD_SCALE, FIELD_SCALE_TYPE };
/* How values are kept that only nonlinear ops of the backward part read again. */
struct recipe_saved {
    enum dtype format; /* e4m3 or e5m2; bf16: as they are */
    int64_t group;     /* elements of a row that share a scale */
    enum dtype scale_type;
};

/* The product that the loss reads, and those of its gradients. */
enum head_products { HEAD_WIDE, HEAD_SCORES, HEAD_GRADIENTS, HEAD_LOW };

struct recipe {
    const char *name;
    enum dtype compute;           /* f32 or bf16: products and attention */
    enum dtype activations;       /* f32 or bf16: values that are kept in memory */
    bool tf32;                    /* f32 products on a GPU may round their operands to TF32 */
    int64_t chunk_loss;           /* rows of logits at a time: CHUNK_AUTO, CHUNK_OFF or a number */
    enum save_mode save;          /* what the backward part finds in memory */
    int64_t save_bytes;           /* SAVE_AUTO: enough is computed again; 0: no such bound */
    const char *const *keep_wide; /* patterns of node names whose products stay f32 */
    int nkeep_wide;
    struct recipe_products products;
    enum head_products head;
    const char *const *wide; /* patterns of node names whose products stay as `compute` */
    int nwide;
    const struct recipe_override *overrides; /* later ones win */
    int noverrides;
    struct recipe_saved saved;
    struct recipe_state m, v;       /* of Adam and AdamW */
    const char *const *wide_states; /* patterns of parameter names whose states stay f32 */
    int nwide_states;
    bool skip_nonfinite; /* steps whose gradients are not finite are left out, else they stop */
};

struct recipe_text {
    const char *name, *what, *text;
};
const struct recipe_text *recipe_builtins(int *n);

/* Read a recipe; what `out` points to lives in `a`. `file` names the text in messages: an error is
 * one line, "FILE:LINE: expected .., found ..". ST_USAGE. */
enum status recipe_parse(struct ctx *c, struct arena *a, const char *file, const char *text,
                         size_t n, struct recipe *out) MUST_USE;
/* A built-in recipe by name (NULL: fp32), or the file of that name. */
enum status recipe_find(struct ctx *c, struct arena *a, const char *name,
                        struct recipe *out) MUST_USE;
/* Whether a name fits a pattern: `*` is any text, `?` any character. */
bool recipe_match(const char *pattern, const char *name, size_t n);
/* How the product of a node named `origin` reads its operands, overrides applied. */
struct recipe_products recipe_products_of(const struct recipe *r, const char *origin);
/* Whether products of nodes named `origin` ("; "-separated when merged) stay f32. */
bool recipe_keeps_wide(const struct recipe *r, const char *origin);

#endif
