// SPDX-License-Identifier: Apache-2.0
/* pipeline.h - the pass table and the loop over it. Dumping, verifying, timing and stopping early
 * happen here, so that passes stay plain functions. */
#ifndef LATHE_DRIVER_PIPELINE_H
#define LATHE_DRIVER_PIPELINE_H

#include "passes/pass.h"

enum pass_when { PASS_ALWAYS, PASS_LOSS, PASS_TRAIN }; /* LOSS: training, and forward with a loss */
struct pass_info {
    const char *name;
    pass_fn run;
    enum pass_when when;
    bool idempotent; /* running it twice in a row changes nothing the second time: a test */
    const char *what;
};
const struct pass_info *pipeline_passes(int *n);
const struct pass_info *pipeline_find(const char *name);

/* `before` must stand before `after` in the table, because of `why`; checked by a test. */
struct pass_order {
    const char *before, *after, *why;
};
const struct pass_order *pipeline_orders(int *n);

struct pipeline_options {
    bool training, loss;
    const char *stop_after; /* NULL: run all */
    bool minimal;           /* only what training cannot do without: the unoptimised reference */
    bool verify;            /* graph_verify after each pass */
    /* Called after import (name "import") and after each pass. */
    void (*observe)(void *user, const char *name, const struct graph *g, double seconds);
    void *observe_user;
};
enum status pipeline_run(struct pass_ctx *c, struct graph *g,
                         const struct pipeline_options *o) MUST_USE;

/* The evaluator that pass_fold borrows: builds a plan and runs it on one thread. */
enum status pipeline_eval(void *user, struct graph *g, struct arena *scratch,
                          const void **outputs) MUST_USE;

#endif
