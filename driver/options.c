// SPDX-License-Identifier: Apache-2.0
/* options.c - parse options by table and print help from the same table. */
#include "driver/options.h"
#include "base/diag.h"
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_error(void *user, enum severity sev, enum status code, const char *origin,
                        const char *message) {
    (void)user, (void)sev, (void)code, (void)origin;
    fprintf(stderr, "lathe: error: %s\n", message);
}

int fail(int code, const char *fmt, ...) {
    char text[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct ctx
        c; /* only for diag.h, which keeps control characters of arguments off the terminal */
    ctx_init(&c);
    c.report = print_error;
    (void)diag_error(&c, ST_USAGE, "", "%s", text);
    return code;
}

static void print_help(const struct command *cmd, const struct option_spec *spec, int n) {
    printf("usage: lathe %s %s\n%s\n", cmd->name, cmd->usage, cmd->what);
    if (n) puts("\noptions:");
    for (int i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", spec[i].name, spec[i].value ? spec[i].value : "");
        printf("  %-28s %s\n", left, spec[i].help);
    }
}

static bool parse_float(const char *s, const char **end, double *out) {
    char *stop;
    errno = 0;
    *out = strtod(s, &stop);
    *end = stop;
    return stop != s && errno != ERANGE && isfinite(*out);
}

static bool in_range(const struct option_spec *o, double x) {
    return o->low == o->high || (x >= o->low && x <= o->high);
}

static int bad_value(const struct command *cmd, const struct option_spec *o, const char *v) {
    if (o->low != o->high)
        return fail(2, "%s %s: '%s' is not a number from %g to %g", cmd->name, o->name, v, o->low,
                    o->high);
    return fail(2, "%s %s: '%s' is not %s", cmd->name, o->name, v,
                o->kind == OPTION_PAIR ? "two numbers A,B" : "a number");
}

static int take_value(const struct command *cmd, const struct option_spec *o, const char *v) {
    const char *end;
    double x, y;
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)o->to = true; return 0;
    case OPTION_TEXT: *(const char **)o->to = v; return 0;
    case OPTION_LIST: {
        struct option_list *list = o->to;
        if (list->n == (int)(sizeof list->at / sizeof list->at[0]))
            return fail(2, "%s %s may be given at most %d times", cmd->name, o->name, list->n);
        list->at[list->n++] = v;
        return 0;
    }
    case OPTION_INT: {
        char *stop;
        errno = 0;
        long long n = strtoll(v, &stop, 10);
        if (stop == v || *stop || errno || !in_range(o, (double)n)) return bad_value(cmd, o, v);
        *(int64_t *)o->to = n;
        return 0;
    }
    case OPTION_FLOAT:
        if (!parse_float(v, &end, &x) || *end || !in_range(o, x)) return bad_value(cmd, o, v);
        *(double *)o->to = x;
        return 0;
    case OPTION_PAIR:
        if (!parse_float(v, &end, &x) || *end != ',' || !parse_float(end + 1, &end, &y) || *end ||
            !in_range(o, x) || !in_range(o, y))
            return bad_value(cmd, o, v);
        ((double *)o->to)[0] = x;
        ((double *)o->to)[1] = y;
        return 0;
    }
    return 2;
}

/* The option that `arg` names, with the value after '=' in *value when there is one. */
static const struct option_spec *find(const struct option_spec *spec, int n, const char *arg,
                                      const char **value) {
    const char *eq = strncmp(arg, "--", 2) == 0 ? strchr(arg, '=') : NULL;
    size_t len = eq ? (size_t)(eq - arg) : strlen(arg);
    *value = eq ? eq + 1 : NULL;
    for (int i = 0; i < n; i++)
        if (strlen(spec[i].name) == len && strncmp(spec[i].name, arg, len) == 0) return &spec[i];
    return NULL;
}

int options_parse(const struct command *cmd, const struct option_spec *spec, int nspec, int argc,
                  char **argv, const char **pos, int min, int max) {
    int n = 0;
    bool only_positional = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value;
        if (!only_positional && strcmp(arg, "--") == 0) {
            only_positional = true;
            continue;
        }
        if (only_positional || arg[0] != '-' || !arg[1]) {
            if (n == max) return fail(2, "%s: unexpected argument '%s'", cmd->name, arg);
            pos[n++] = arg;
            continue;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            print_help(cmd, spec, nspec);
            return 1;
        }
        const struct option_spec *o = find(spec, nspec, arg, &value);
        if (!o)
            return fail(2, "%s has no option '%s'; `lathe %s --help` lists them", cmd->name, arg,
                        cmd->name);
        if (o->kind == OPTION_FLAG && value)
            return fail(2, "%s %s takes no value", cmd->name, o->name);
        if (o->kind != OPTION_FLAG && !value) {
            if (++i == argc) return fail(2, "%s %s needs a value %s", cmd->name, o->name, o->value);
            value = argv[i];
        }
        int rc = take_value(cmd, o, value);
        if (rc) return rc;
    }
    if (n < min)
        return fail(2, "%s: missing argument; usage: lathe %s %s", cmd->name, cmd->name,
                    cmd->usage);
    return 0;
}
