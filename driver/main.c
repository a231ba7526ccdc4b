// SPDX-License-Identifier: Apache-2.0
/* main.c - the command line: a table of subcommands. */
#include "driver/command.h"
#include <stdio.h>
#include <string.h>

// clang-format off
const struct command commands[] = {
    {"train",   "MODEL.onnx|DIR --data SRC [-o RUN] [options]", "Train a model and write the run directory.", cmd_train},
    {"eval",    "MODEL.onnx|RUN --data SRC [options]", "Loss and accuracy as one JSON line.", cmd_eval},
    {"run",     "MODEL.onnx|RUN --data SRC -o OUT.npz", "Forward pass; every graph output by name.", cmd_run},
    {"info",    "MODEL.onnx [--json]", "Inputs, outputs, every parameter's treatment and why, ops, what is unsupported.", cmd_info},
    {"plan",    "MODEL.onnx [--batch N] [--json]", "Bytes by category, the peak and where, FLOPs, the largest batch that fits.", cmd_plan},
    {"bench",   "MODEL.onnx|copy|gemm:M,N,K[:TYPE] [--device cuda] [--layer REGEX]", "A training step on random data, timed launch by launch.", cmd_bench},
    {"compile", "MODEL.onnx -o FILE [--arch sm_90a] [options]", "The GPU kernels of a training step ahead of time; no GPU needed.", cmd_compile},
    {"dump",    "MODEL.onnx [--after PASS|all] [--stage graph|plan]", "The graph or plan as text.", cmd_dump},
    {"opt",     "FILE.lir|- --passes a,b,c", "Run passes on a graph in text form.", cmd_opt},
    {"quantize", "X.npy [--format F] [--scope S] [--expand] [-o OUT.npz]", "An array as 8-bit codes and scales, and what that costs in accuracy.", cmd_quantize},
    {"passes",  "[show NAME]", "The passes, in order.", cmd_passes},
    {"ops",     "[show NAME]", "The ops of the graph IR.", cmd_ops},
    {"recipes", "[show NAME]", "The built-in recipes.", cmd_recipes},
    {"devices", "[--json]", "Where a model can be trained: the CPU and every GPU.", cmd_devices},
};
// clang-format on
const int command_count = (int)(sizeof commands / sizeof commands[0]);

const struct command *command_named(const char *name) {
    for (int i = 0; i < command_count; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int usage(FILE *to) {
    fprintf(to, "lathe %s - trains ONNX models\n\nusage: lathe COMMAND ...\n\n", lathe_version());
    for (int i = 0; i < command_count; i++)
        fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].what);
    fputs("\n`lathe COMMAND --help` lists a command's options.\n", to);
    return to == stderr ? 2 : 0;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) return usage(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0 ||
        strcmp(argv[1], "-h") == 0)
        return usage(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        puts(lathe_version());
        return 0;
    }
    const struct command *c = command_named(argv[1]);
    if (!c) return fail(2, "no command is called '%s'; `lathe --help` lists them", argv[1]);
    return c->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
    int rc = dispatch(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return fail(1, "standard output could not be written");
    return rc;
}
