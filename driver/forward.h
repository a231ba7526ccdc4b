// SPDX-License-Identifier: Apache-2.0
/* forward.h - a model compiled to run forward, with or without its loss, batch by batch over a data
 * source: what `lathe eval` and `lathe run` do. */
#ifndef LATHE_DRIVER_FORWARD_H
#define LATHE_DRIVER_FORWARD_H

#include "driver/session.h"

struct forward {
    lathe_model *model; /* opened with inference on */
    struct graph *graph;
    struct plan *plan;
    struct backend exec;
    int64_t batch;
    struct data_loader *loader; /* after forward_feed */
    struct arena arena;
};
struct forward_options {
    struct device *device;
    const struct train_options *train; /* gives the loss; NULL: none */
    const struct recipe *recipe;
};
/* On failure, and after an unwind, forward_release still works; it does nothing to a zeroed struct.
 * The model, and the recipe, must outlive it. */
enum status forward_init(struct forward *f, lathe_model *m,
                         const struct forward_options *o) MUST_USE;
void forward_release(struct forward *f);
/* Connect the inputs to `src`, which must outlive `f`; everything about it is checked here. */
enum status forward_feed(struct forward *f, const struct data_source *src) MUST_USE;

/* A model with its loss over one data source: once for whole batches and, where the file leaves the
 * batch open, once for the samples that remain. Starts zeroed; released like a forward. */
struct evaluator {
    struct forward whole, rest; /* rest: zeroed when no samples remain */
    lathe_model *rest_model;
};
/* `m` was opened from `path` with `options`; it and `src` must outlive the evaluator. */
enum status evaluator_init(struct evaluator *e, lathe_model *m, const char *path,
                           const lathe_model_options *options, const struct data_source *src,
                           const struct forward_options *forward) MUST_USE;
void evaluator_release(struct evaluator *e);
/* Copy parameters and states of equal name and size from a trainer. */
enum status evaluator_copy_weights(struct evaluator *e, lathe_trainer *t) MUST_USE;

/* Mean loss over all targets (over all samples, where the loss does not count targets), so that
 * ignored ones do not distort it. */
struct eval_result {
    double loss;               /* NaN when every target is ignored */
    double accuracy;           /* share of targets; NaN when the loss has no classes */
    int64_t samples, left_out; /* left_out: fewer than a batch, where the file fixes the batch */
};
enum status evaluator_run(struct evaluator *e, struct eval_result *out) MUST_USE;

/* Every output over every sample, in order, into an .npz. */
enum status forward_run(struct forward *f, const struct data_source *src,
                        const char *path) MUST_USE;

/* Slots for the plan's data and label inputs. Shift 1 for labels over tokens. */
enum status forward_slots(struct backend *x, const struct data_source *src, struct arena *a,
                          struct data_slot **slots, int *n, int64_t *batch) MUST_USE;
/* What the data says about labels: the array that is no input of `g`, for train_options. */
void forward_label_hint(const struct graph *g, const struct data_source *src, const char *loss,
                        struct arena *a, struct train_options *t);

#endif
