// SPDX-License-Identifier: Apache-2.0
/* rewrite.h - the engine behind simplify and recognise: local rules, applied until none fits. Rules
 * are rows of strings where strings can say them and small C functions where not. Not for changes
 * that need to see more than a node and what it reads.
 *
 * The language of patterns and replacements:
 *
 *   term   = name                     a value; the same name again must be the same value
 *          | number | inf | -inf      a constant whose elements all are this number (true is 1)
 *          | #name                    such a constant with any number, which gets the name
 *          | "(" op [":" name] ["{" key "=" word { "," key "=" word } "}"] { term } ")"
 *
 *   "(mul x 1)"                       matches mul(x, 1) and, as mul commutes, mul(1, x)
 *   "(transpose:p x)"                 calls the node p: a guard reads its attributes, and on the
 *                                     right "(transpose:p y)" is a node with the same attributes
 *   "(matmul{trans_a=true} x y)"      asks for an attribute on the left, sets it on the right
 *   "#c" on the right                 a scalar constant; the guard sets it with match_set_num
 *   "(transpose:r x)" on the right    with r unknown on the left: match_set_attrs gives them
 *
 * Only output 0 of a node is matched. A guard sees a full match and may refuse it; then the other
 * operand orders are tried. The first row that matches wins. The result must have the root's type;
 * a result that only lacks broadcasting is expanded to it. New nodes take the root's origin. */
#ifndef LATHE_PASSES_REWRITE_H
#define LATHE_PASSES_REWRITE_H

#include "passes/pass.h"

struct match;
struct rule {
    const char *name, *pattern, *replacement;
    bool (*guard)(struct match *m); /* NULL: always */
};

/* For guards. Names are those of the pattern, without the '#'. */
struct graph *match_graph(const struct match *m);
struct arena *match_arena(const struct match *m);
val_id match_root(const struct match *m);
val_id match_val(const struct match *m, const char *name);
node_id match_node(const struct match *m, const char *name);
bool match_single(const struct match *m, const char *name); /* that node has one user */
double match_num(const struct match *m, const char *name);
void match_set_num(struct match *m, const char *name, double x);
void match_set_attrs(struct match *m, const char *name, const struct attr *attrs,
                     int n); /* lists in match_arena */

/* A rule in C: the value that replaces output 0 of n, or VAL_NONE when it does not apply. It must
 * not build nodes unless it applies. For a node with several outputs: output 0 of its replacement,
 * whose outputs correspond. */
struct rewrite;
struct rewrite_fn {
    const char *name;
    enum op op; /* OP_NONE: asked for every node with one output */
    val_id (*run)(struct rewrite *w, node_id n);
};
struct rewrite {
    struct graph *g;
    struct arena *scratch;
    const uint32_t *uses; /* by value, at the start of the sweep; being an output counts as one */
    uint32_t nuses;
};
/* At most one user; false for a value that is newer than the last sweep. Good enough to judge what
 * pays off, never needed for correctness. */
bool rewrite_single(const struct rewrite *w, val_id v);

struct rewrite_set {
    const char *pass; /* for messages */
    const struct rule *rules;
    int nrules;
    const struct rewrite_fn *fns;
    int nfns;
};
/* Sweep over the graph until no rule applies, then settle. Functions are asked before rows.
 * `fired`, when not NULL, has nrules + nfns counters, rows first. A set that does not come to rest
 * within a number of applications proportional to the graph is stopped with a warning that names
 * its rules: the graph is right at any time. */
enum status rewrite_run(struct pass_ctx *c, struct graph *g, const struct rewrite_set *set,
                        uint32_t *fired) MUST_USE;

/* What is wrong with a table, as text in `a`, or NULL: unknown op or attribute, wrong arity, a name
 * on the right that nothing binds, a row that an earlier unguarded one makes unreachable. */
const char *rules_check(const struct rule *rules, int n, struct ctx *c, struct arena *a);

#endif
