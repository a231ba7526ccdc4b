// SPDX-License-Identifier: Apache-2.0
/* recognise.h - the tables that recognise.c puts together. Private to the recognise files and their
 * tests. */
#ifndef LATHE_PASSES_RECOGNISE_H
#define LATHE_PASSES_RECOGNISE_H

#include "passes/rewrite.h"

const struct rule *recognise_activations(int *n);           /* recognise.c */
const struct rule *recognise_norms(int *n);                 /* recognise_norm.c */
const struct rewrite_fn *recognise_attention_rules(int *n); /* recognise_attention.c */

#endif
