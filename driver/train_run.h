// SPDX-License-Identifier: Apache-2.0
/* train_run.h - a whole training run: data, schedule, metrics, checkpoints, evaluation,
 * interruption. */
#ifndef LATHE_DRIVER_TRAIN_RUN_H
#define LATHE_DRIVER_TRAIN_RUN_H

#include "driver/options.h"
#include "driver/schedule.h"
#include "driver/trainer.h"

struct train_args {
    const char *model, *data, *out, *eval, *resume, *dump_grads;
    lathe_model_options open;
    lathe_train_options train;
    const char *schedule_text;
    struct schedule schedule;
    int64_t steps, epochs; /* 0: not given */
    int64_t eval_every, save_every, keep, numerics;
    double init_random; /* < 0: keep the file's weights */
    bool quiet, profile;
    const volatile int *stop; /* set by a signal handler */
    bool started; /* set once training began: what fails from here on failed while running */
};
/* Everything from opening the model to the exported weights; ST_STOPPED after a requested stop with
 * a checkpoint. What unwinds comes back as a status, with everything released. */
enum status train_run(lathe_context *c, struct train_args *a) MUST_USE;

/* progress.c: one line per step on a pipe, one rewritten line on a terminal. */
struct progress {
    bool terminal, quiet;
    double begin, last_print;
    int64_t first, steps, per_step; /* per_step: tokens or samples */
    const char *unit;
    size_t bytes;
};
void progress_step(struct progress *p, int64_t step, double loss, double lr, double ms);
void progress_end(struct progress *p);

#endif
