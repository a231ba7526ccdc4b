// SPDX-License-Identifier: Apache-2.0
/* pass.h - what a pass is: one function that changes a graph or says why it cannot. One file a
 * pass. A pass keeps no state, never prints and never verifies: the driver does that between
 * passes. On error the graph is dead. */
#ifndef LATHE_PASSES_PASS_H
#define LATHE_PASSES_PASS_H

#include "ir/build.h"
#include "passes/recipe.h"

struct pass_ctx {
    struct ctx *ctx;
    struct arena *scratch; /* reset by the driver after each pass */
    /* Evaluate a static graph without inputs and hand over its outputs: output k as packed bytes in
     * `scratch`. Given by the driver, because passes do not know the runtime. */
    enum status (*eval)(void *user, struct graph *g, struct arena *scratch, const void **outputs);
    void *eval_user;
    const struct train_options *train; /* loss, gradient, optimizer; NULL for inference */
    const struct recipe *recipe;       /* numbers to compute with; NULL: everything as given */
    const char
        *loss; /* written by pass_loss: the loss it built, spelled out; lives with the graph */
};

enum optimizer_kind { OPT_SGD, OPT_ADAM, OPT_ADAMW };
struct train_options {
    /* "cross_entropy(OUT, labels)", "next_token(OUT)", "mse(OUT, target)", "bce_with_logits(OUT,
     * target)" or the name of a scalar output; NULL: chosen when only one makes sense */
    const char *loss;
    /* Shape of a label/target array as the data has it (rank -1: unknown), to tell layouts apart.
     */
    struct type label_type;
    bool have_labels; /* the data has an array that is no graph input, named label_name */
    const char *label_name;
    enum optimizer_kind optimizer;
    double beta1, beta2, eps, weight_decay, momentum, dampening;
    bool nesterov;
    double clip;        /* global gradient norm; 0: none */
    bool dump_grads;    /* keep gradients as outputs "grad/NAME" */
    int64_t accumulate; /* micro-batches per update, >= 1; each weighs the same in the update */
    bool measure;       /* for evaluation: classes also give "loss.count" and "loss.right" */
};

/* The graph came with updates of params: loss, gradients and optimizer are its own. True between
 * import and pass optimizer only. */
bool graph_trains_itself(const struct graph *g);

typedef enum status (*pass_fn)(struct pass_ctx *c, struct graph *g);

/* clean-up */
enum status pass_fold(struct pass_ctx *c, struct graph *g);     /* evaluate constant sub-graphs */
enum status pass_simplify(struct pass_ctx *c, struct graph *g); /* algebraic and movement rules */
enum status pass_cse(struct pass_ctx *c, struct graph *g);
enum status pass_dce(struct pass_ctx *c, struct graph *g);
enum status pass_recognise(struct pass_ctx *c,
                           struct graph *g); /* composites from decomposed exports */
/* training */
/* Adds output "loss" (scalar), a mean over the batch. With `measure` a loss over classes also adds
 * "loss.count", the number of targets that are not ignored, and "loss.right", how many of those the
 * largest logit names; both scalars of the loss's type. */
enum status pass_loss(struct pass_ctx *c, struct graph *g);
/* Makes the roundings explicit that the recipe asks for; nothing without one or with f32. */
enum status pass_precision(struct pass_ctx *c, struct graph *g);
/* Writes op gradient out. Of a graph with a training step of its own (graph_trains_itself), the
 * gradients by params also become outputs "grad/NAME". */
enum status pass_gradient(struct pass_ctx *c, struct graph *g);
enum status pass_grad(struct pass_ctx *c, struct graph *g); /* adds outputs "grad/NAME" */
enum status pass_optimizer(struct pass_ctx *c,
                           struct graph *g); /* consumes them; adds updates, "grad_norm" */

/* Steps of Adam as steps with 8-bit states where the recipe asks for them. */
enum status pass_optimizer_states(struct pass_ctx *c, struct graph *g);

/* Cuts the logits of a cross-entropy into chunks of rows, as many as the recipe says or, without
 * one, as keep them small. */
enum status pass_chunk_loss(struct pass_ctx *c, struct graph *g);
/* Products with a parameter and their gradients on 8-bit operands where the recipe says so. */
enum status pass_granularity(struct pass_ctx *c, struct graph *g);
/* Lets the backward part compute cheap values of the forward part again instead of keeping them,
 * unless the recipe says otherwise. */
enum status pass_save(struct pass_ctx *c, struct graph *g);
/* Keeps what only nonlinear ops of the backward part read as 8-bit codes where the recipe says so.
 */
enum status pass_save_quantized(struct pass_ctx *c, struct graph *g);
/* Lets the backward part make operands of products again from what is kept, with the same scales.
 */
enum status pass_save_codes(struct pass_ctx *c, struct graph *g);

#endif
