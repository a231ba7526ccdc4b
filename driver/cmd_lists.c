// SPDX-License-Identifier: Apache-2.0
/* cmd_lists.c - `lathe passes`, `ops` and `recipes`: what there is, one per line; `show NAME` for
 * one. */
#include "driver/command.h"
#include "passes/recipe.h"
#include <stdio.h>
#include <string.h>

/* "[show NAME]": NULL in *name without it. */
static int parse_show(const char *command, int argc, char **argv, const char **name) {
    const char *pos[2] = {NULL, NULL};
    *name = NULL;
    int rc = options_parse(command_named(command), NULL, 0, argc, argv, pos, 0, 2);
    if (rc) return rc;
    if (!pos[0]) return 0;
    if (strcmp(pos[0], "show") != 0 || !pos[1])
        return fail(2, "%s: expected `show NAME`, found '%s'", command, pos[0]);
    *name = pos[1];
    return 0;
}

static void show_pass(const struct pass_info *p) {
    static const char *const when[] = {"always", "with a loss", "training"};
    printf("%s\n  does        %s\n  runs        %s\n  idempotent  %s\n", p->name, p->what,
           when[p->when], p->idempotent ? "yes" : "no");
    int n;
    const struct pass_order *o = pipeline_orders(&n);
    for (int i = 0; i < n; i++) {
        if (strcmp(o[i].before, p->name) == 0)
            printf("  before      %s: %s\n", o[i].after, o[i].why);
        if (strcmp(o[i].after, p->name) == 0)
            printf("  after       %s: %s\n", o[i].before, o[i].why);
    }
}

int cmd_passes(int argc, char **argv) {
    const char *name;
    int rc = parse_show("passes", argc, argv, &name), n;
    if (rc) return rc == 1 ? 0 : rc;
    const struct pass_info *p = pipeline_passes(&n);
    if (name) {
        p = pipeline_find(name);
        if (!p) return fail(2, "no pass is called '%s'; `lathe passes` lists them", name);
        show_pass(p);
        return 0;
    }
    for (int i = 0; i < n; i++) printf("%-10s %s\n", p[i].name, p[i].what);
    return 0;
}

static void show_op(const struct op_info *o) {
    printf("%s\n  operands    %d", o->name, o->min_in);
    if (o->max_in == OP_ANY)
        fputs(" or more", stdout);
    else if (o->max_in != o->min_in)
        printf(" to %d", o->max_in);
    printf("\n  results     %d\n  attributes  %s\n", o->outs, o->attrs[0] ? o->attrs : "none");
    printf("  traits     %s%s%s%s%s%s\n", o->traits & EW ? " elementwise" : "",
           o->traits & COMM ? " commutative" : "", o->traits & SOURCE ? " source" : "",
           o->traits & VIEW ? " view" : "", o->traits & PURE0 ? " gradient-stops" : "",
           o->traits & EFFECT ? " never-merged" : "");
    printf("  lowered as  %s\n", o->lower);
    if (o->emit[0]) printf("  CUDA        %s\n", o->emit);
}

int cmd_ops(int argc, char **argv) {
    const char *name;
    int rc = parse_show("ops", argc, argv, &name);
    if (rc) return rc == 1 ? 0 : rc;
    if (name) {
        enum op op = op_from_name(name, strlen(name));
        if (op == OP_NONE) return fail(2, "no op is called '%s'; `lathe ops` lists them", name);
        show_op(op_info(op));
        return 0;
    }
    for (int op = 1; op < OP_COUNT; op++) puts(op_info((enum op)op)->name);
    return 0;
}

int cmd_recipes(int argc, char **argv) {
    const char *name;
    int rc = parse_show("recipes", argc, argv, &name), n;
    if (rc) return rc == 1 ? 0 : rc;
    const struct recipe_text *r = recipe_builtins(&n);
    for (int i = 0; i < n; i++) {
        if (name && strcmp(r[i].name, name) != 0) continue;
        if (name) {
            fputs(r[i].text, stdout);
            return 0;
        }
        printf("%-10s %s\n", r[i].name, r[i].what);
    }
    if (!name) return 0;
    return fail(2, "no recipe is called '%s'; `lathe recipes` lists them", name);
}
