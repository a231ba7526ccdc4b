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
    struct cpu_exec *exec;
    int64_t batch;
};
/* `train` gives the loss; NULL: none. */
enum status forward_init(struct forward *f, lathe_model *m,
                         const struct train_options *train) MUST_USE;
void forward_release(struct forward *f);
/* Copy parameters and states of equal name and type from a trainer. */
void forward_copy_weights(struct forward *f, lathe_trainer *t);

/* Loss and accuracy over every whole batch of `src`. */
struct eval_result {
    double loss, accuracy;     /* accuracy NaN when the loss has no classes */
    int64_t samples, left_out; /* left_out: fewer than a batch, at the end */
};
enum status forward_eval(struct forward *f, const struct data_source *src, const char *loss,
                         struct eval_result *out) MUST_USE;

/* Every output over every sample, in order, into an .npz. */
enum status forward_run(struct forward *f, const struct data_source *src,
                        const char *path) MUST_USE;

/* Slots for the plan's data and label inputs. Shift 1 for labels over tokens. */
enum status forward_slots(const struct plan *p, struct cpu_exec *x, const struct data_source *src,
                          struct arena *a, struct data_slot **slots, int *n,
                          int64_t *batch) MUST_USE;
/* What the data says about labels: the array that is no input of `g`, for train_options. */
void forward_label_hint(const struct graph *g, const struct data_source *src, const char *loss,
                        struct arena *a, struct train_options *t);

#endif
