// SPDX-License-Identifier: Apache-2.0
/* lex.h - tokens of the two text forms, graph and plan (docs/IR.md). Reads hostile text: every
 * failure is one diagnostic at file:line:column, after which only TOK_ERROR comes. */
#ifndef LATHE_IR_LEX_H
#define LATHE_IR_LEX_H

#include "ir/types.h"

enum tok {
    TOK_END,
    TOK_ERROR,
    TOK_WORD,   /* [A-Za-z_][A-Za-z0-9_]* */
    TOK_VALUE,  /* %name, %"name" or %12 (then `numbered` and `i`) */
    TOK_GLOBAL, /* @name or @"name" */
    TOK_INT,    /* -12, 0x1f (then `hex`, and `i` holds the bits) */
    TOK_FLOAT,  /* 1.5, -2e-05, -inf */
    TOK_STRING, /* decoded; holds no NUL */
    TOK_PUNCT,  /* one of { } ( ) [ ] , : = * + - < > / | */
};

struct token {
    enum tok kind;
    char punct;
    bool numbered, hex;
    const char *text; /* WORD, VALUE, GLOBAL, STRING: terminated, in the lexer's arena.
                         INT, FLOAT: the digits, also terminated */
    size_t n;
    const char *start; /* where in the input it begins */
    int64_t i;
    uint32_t line, column; /* from 1; columns count bytes */
};

struct lexer {
    struct ctx *ctx;
    struct arena *arena; /* token texts; the owner may rewind it between statements */
    const char *file, *at, *end, *line_start;
    uint32_t line;
    bool failed;
    struct token tok; /* the current one */
};

/* Reads the first token. */
void lex_init(struct lexer *l, struct ctx *c, struct arena *a, const char *text, size_t n,
              const char *file);
/* Move on; at the end TOK_END stays. */
void lex_next(struct lexer *l);
/* Read the current token again: after a rewind of the arena that held its text. */
void lex_again(struct lexer *l);
/* Report at the current token. Returns ST_PARSE; reports nothing after the first failure. */
enum status lex_fail(struct lexer *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Report "expected `what`, found ..". */
enum status lex_expected(struct lexer *l, const char *what);
/* "file:line:column" of a token, in the lexer's arena. */
const char *lex_where(const struct lexer *l, const struct token *t);

bool lex_is(const struct lexer *l, char punct);
bool lex_is_word(const struct lexer *l, const char *word);
/* Take the punctuation or word if it is next. */
bool lex_take(struct lexer *l, char punct);
bool lex_take_word(struct lexer *l, const char *word);
enum status lex_want(struct lexer *l, char punct) MUST_USE;
enum status lex_want_word(struct lexer *l, const char *word) MUST_USE;
enum status lex_want_string(struct lexer *l, const char **out) MUST_USE;
enum status lex_want_int(struct lexer *l, int64_t low, int64_t high, int64_t *out) MUST_USE;
/* Any number; inf, -inf, nan; or hex digits, which are the bits of a double. */
enum status lex_want_double(struct lexer *l, double *out) MUST_USE;
/* One element of type t, stored at p (dtype_size bytes); hex digits are its bits. */
enum status lex_want_element(struct lexer *l, enum dtype t, void *p) MUST_USE;
/* A dimension: the text up to the next ',' or ']', which becomes the current token. Call it while
 * the current token is the '[' or ',' before it; numbers too are returned by it. */
enum status lex_want_dim(struct lexer *l, struct dims_table *dims, dim *out) MUST_USE;
/* "[4,batch]" with at most `max` sizes. */
enum status lex_want_dims(struct lexer *l, struct dims_table *dims, dim *out, int max,
                          int *n) MUST_USE;
/* "f32[4,batch]". */
enum status lex_want_type(struct lexer *l, struct dims_table *dims, struct type *out) MUST_USE;

/* ---- printing counterparts ------------------------------------------------------------------ */
/* `sigil` ('%' or '@') and a name, quoted when it needs to be. */
void text_name(struct buf *out, char sigil, const char *name);
/* Reads back with lex_want_double to the same bits. */
void text_double(struct buf *out, double x);
/* Reads back with lex_want_element to the same bits. */
void text_element(struct buf *out, enum dtype t, const void *p);

#endif
