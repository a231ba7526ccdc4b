// SPDX-License-Identifier: Apache-2.0
/* rewrite_rules.h - compiled rules: what rewrite_parse.c makes and rewrite.c runs. Private to them.
 */
#ifndef LATHE_PASSES_REWRITE_RULES_H
#define LATHE_PASSES_REWRITE_RULES_H

#include "passes/rewrite.h"

enum { TERM_KIDS = 4, TERM_ATTRS = 4, RULE_SLOTS = 16, RULE_TERMS = 64 };

enum term_kind { TERM_VAL, TERM_NUM, TERM_NUMVAR, TERM_OP };
struct term {
    enum term_kind kind;
    enum op op;
    int slot; /* of the name, -1 when there is none */
    double num;
    int nkids, kids[TERM_KIDS]; /* indices into rule_code.terms */
    int nattrs;
    struct attr attrs[TERM_ATTRS];
};
struct rule_code {
    const struct rule *rule;
    struct term *terms;
    int nterms, left, right;
    int nslots, nleft; /* slots [0, nleft) are bound by the pattern */
    const char *slot_name[RULE_SLOTS];
    enum term_kind slot_kind[RULE_SLOTS];
    enum op slot_op[RULE_SLOTS];
};

/* Compile one row; NULL, or what is wrong with it as text in `a`. `specs` is any graph: it knows
 * the attributes of ops. */
const char *rule_compile(const struct rule *r, const struct graph *specs, struct arena *a,
                         struct rule_code *out);

#endif
