// SPDX-License-Identifier: Apache-2.0
/* command.h - what the subcommands share. Each cmd_*.c file exports its commands in main.c's table.
 */
#ifndef LATHE_DRIVER_COMMAND_H
#define LATHE_DRIVER_COMMAND_H

#include "driver/options.h"
#include "driver/session.h"

/* A context that prints diagnostics: errors and warnings to stderr as "lathe: error: ...", notes
 * with --verbose only unless `notes`. Compiled kernels are kept in $LATHE_CACHE_DIR, else
 * $XDG_CACHE_HOME/lathe, else $HOME/.cache/lathe; NVIDIA's libraries are looked for in
 * $LATHE_CUDA_LIBS first. NULL after a printed error. */
lathe_context *command_context(bool notes, int64_t threads);
/* And with a file of `lathe compile`. */
lathe_context *command_context_with(bool notes, int64_t threads, const char *compiled);
/* Destroy the context; the exit code for the last status, 1 when a GPU failed. */
int command_end(lathe_context *c, enum status st);
/* The process's exit code for a status. Something was printed already. */
int command_exit(enum status st);

/* Options that every command which opens a model takes; initialise with MODEL_ARGS_INIT. */
struct model_args {
    const char *train, *freeze, *data;
    int64_t batch, seq, threads;
    struct option_list map;
};
#define MODEL_ARGS_INIT                                                                            \
    { 0 }
lathe_model_options model_options(const struct model_args *a);
/* RUN/model.onnx for a run directory, the path itself otherwise. */
const char *command_model_path(struct arena *a, const char *path);

int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_dump(int argc, char **argv);
int cmd_opt(int argc, char **argv);
int cmd_passes(int argc, char **argv);
int cmd_ops(int argc, char **argv);
int cmd_recipes(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_compile(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
extern const struct command commands[];
extern const int command_count;
const struct command *command_named(const char *name);

#endif
