// SPDX-License-Identifier: Apache-2.0
/* metrics.h - a run directory: metrics.jsonl, TensorBoard events, checkpoints. Nothing here knows
 * about models or plans beyond named arrays. */
#ifndef LATHE_RUNTIME_METRICS_H
#define LATHE_RUNTIME_METRICS_H

#include "runtime/array.h"

struct run_dir;
/* Create (or, with `resume`, open) the directory; refuses one that already holds another run and
 * one that cannot be written. `config_json` becomes the first record of metrics.jsonl. On resume
 * metrics.jsonl is cut after the record of `resume_step` and appended to; a new events file is
 * opened. */
enum status run_dir_open(struct arena *a, const char *path, bool resume, int64_t resume_step,
                         const char *config_json, struct run_dir **out) MUST_USE;
struct metric {
    const char *name;
    double value;
    bool integer;
};
/* One JSON object on a line of its own, flushed, and the same scalars as TensorBoard events. NaN
 * and infinities become the strings "nan", "inf", "-inf" in JSON. */
enum status run_dir_log(struct run_dir *r, int64_t step, const struct metric *m, int n) MUST_USE;

/* RUN/checkpoint/STEP/ with tensors.safetensors and state.json: written under a temporary name,
 * synced, renamed: it exists complete or not at all. `keep` newest stay, older ones are removed
 * after the new one is in place (0: keep all). */
enum status checkpoint_save(struct arena *scratch, const char *run, int64_t step,
                            const struct array *list, uint32_t n, const char *state_json,
                            int keep) MUST_USE;
/* The newest complete checkpoint of RUN (or RUN itself when it is a checkpoint directory): ST_IO
 * when none. Sizes and the content hash in state.json are verified. */
enum status checkpoint_load(struct arena *a, const char *run, int64_t *step, struct arrays *out,
                            const char **state_json) MUST_USE;

#endif
