// SPDX-License-Identifier: Apache-2.0
/* options.h - command-line options from one table, which is also the help text. Only for the
 * command line. */
#ifndef LATHE_DRIVER_OPTIONS_H
#define LATHE_DRIVER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_LIST, OPTION_INT, OPTION_FLOAT, OPTION_PAIR };

struct option_list {
    const char *at[32];
    int n;
};
struct option_spec {
    const char *name; /* "--lr", or "-o" for a short one */
    enum option_kind kind;
    void *to;          /* bool, const char *, struct option_list, int64_t, double, double[2] */
    double low, high;  /* INT, FLOAT, PAIR: inclusive bounds; low == high: none */
    const char *value; /* "N", "FILE" */
    const char *help;
};
struct command {
    const char *name, *usage, *what;
    int (*run)(int argc, char **argv);
};

/* Parse argv[1..). Positional arguments go to pos (at most max; too many is an error). Returns 0,
 * or 2 after one line on stderr; 1 when --help was asked for and printed. */
int options_parse(const struct command *cmd, const struct option_spec *spec, int nspec, int argc,
                  char **argv, const char **pos, int min, int max);

/* "lathe: error: ..." on stderr; returns the exit code given. */
int fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
