// SPDX-License-Identifier: Apache-2.0
/* granularity.h - which products take 8-bit operands, and why others do not: shared by the pass,
 * what it does with delayed scales, and the report of `lathe plan --products`. */
#ifndef LATHE_PASSES_GRANULARITY_H
#define LATHE_PASSES_GRANULARITY_H

#include "base/vec.h"
#include "ir/quantize.h"
#include "passes/pass.h"

#define QUANT_EPS 1e-10

enum product_kind {
    PRODUCT_LOW,
    PRODUCT_NO_PARAMETER,
    PRODUCT_NOT_BF16,
    PRODUCT_HEAD,
    PRODUCT_NAMED,
    PRODUCT_SIZES,
    PRODUCT_SHAPE,
};
const char *product_reason(enum product_kind k); /* words; "" for PRODUCT_LOW */

struct granularity {
    struct graph *g;
    const struct recipe *r;
    struct arena *scratch;
    uint32_t nodes, values, loss; /* as the graph was given; the node of output "loss", 0: none */
    bool steps;                   /* an optimizer is there */
    bool *gradient;               /* by value: depends on the loss or on the score of classes */
    bool *head;                   /* by value: a parameter of the head */
    bool *scores;                 /* by node: a product that such a parameter makes scores with */
    val_id *updated;              /* by value: the parameter that it becomes the gradient of */
    VEC(struct codes) made;
    VEC(struct turned) turns;
    VEC(struct viewed) views;
};
void granularity_find(struct granularity *x, struct graph *g, const struct recipe *r,
                      struct arena *scratch);
val_id granularity_root(const struct graph *g,
                        val_id v); /* what v is a cast or a rearrangement of */
/* Of a matmul of the graph as it was given. */
enum product_kind product_kind(const struct granularity *x, node_id n, struct recipe_products *how);

/* granularity_delayed.c: a state with the largest magnitudes of the last steps of what will be
 * quantized as `how` says, and the scale that they make; then the update with this step's. */
struct delayed {
    val_id history, scale;
};
struct delayed delayed_scale(struct granularity *x, const char *name, const struct quant_how *how,
                             int64_t history, bool gradient, str_id o);
void delayed_next(struct granularity *x, const struct delayed *d, val_id amax, str_id o);

#endif
