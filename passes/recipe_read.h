// SPDX-License-Identifier: Apache-2.0
/* recipe_read.h - what the two halves of the recipe reader share. Private to them. */
#ifndef LATHE_PASSES_RECIPE_READ_H
#define LATHE_PASSES_RECIPE_READ_H

#include "passes/recipe.h"

struct text {
    const char *at;
    size_t n;
};
struct reader {
    struct ctx *ctx;
    struct arena *arena;
    const char *file;
    int line;
    struct text key, value;
    struct recipe *r;
    struct recipe_products
        *products; /* what a key of products sets: the recipe's or an override's */
};

struct text text_trim(struct text t);
bool text_is(struct text t, const char *word);
/* The next word, and the rest without it. */
struct text text_word(struct text *rest);
/* A whole number below 2^40; false, and nothing taken, when the next word is none. */
bool text_number(struct text *rest, int64_t *out);
/* ST_USAGE, "FILE:LINE: expected .., found '..'". */
enum status recipe_wrong(const struct reader *x, const char *expected, struct text found);
enum status recipe_patterns(struct reader *x, const char *what, const char *const **out, int *n);

/* Readers of one value each. */
enum status read_products(struct reader *x);
enum status read_products_gradients(struct reader *x);
enum status read_products_scope(struct reader *x);
enum status read_products_scale(struct reader *x);
enum status read_products_scale_type(struct reader *x);
enum status read_products_head(struct reader *x);
enum status read_products_wide(struct reader *x);
enum status read_saved(struct reader *x);
/* "for PATTERN: KEY = VALUE"; the line without its comment. */
enum status read_override(struct reader *x, struct text line);
/* What only the whole text shows; of the recipe and of each override. */
enum status check_products(const struct reader *x);

#endif
