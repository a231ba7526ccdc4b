// SPDX-License-Identifier: Apache-2.0
/* trainer.h - a compiled training step with its memory: what lathe_trainer does, on status codes.
 */
#ifndef LATHE_DRIVER_TRAINER_H
#define LATHE_DRIVER_TRAINER_H

#include "driver/session.h"

/* Fill a zeroed trainer; on failure trainer_release still works. `options` gives lr, seed,
 * no_optimize. */
enum status trainer_init(lathe_trainer *t, lathe_model *m, const lathe_train_options *options,
                         const struct train_options *train) MUST_USE;
void trainer_release(lathe_trainer *t);
/* One step, which a recipe may leave out when its gradients are not finite; ST_NONFINITE before
 * anything is updated, naming the first op with a non-finite result.
 */
enum status trainer_step(lathe_trainer *t, lathe_step *result) MUST_USE;
enum status trainer_loss(lathe_trainer *t, double *loss) MUST_USE;
/* As lathe_trainer_get; `out` is zeroed on failure. */
enum status trainer_view(lathe_trainer *t, buf_id b, lathe_tensor *out) MUST_USE;
enum status trainer_export(lathe_trainer *t, const char *path) MUST_USE;

#endif
