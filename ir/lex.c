// SPDX-License-Identifier: Apache-2.0
/* lex.c - tokens of the text forms, and the printing of names and numbers that they read back. */
#include "ir/lex.h"
#include "base/diag.h"
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_MAX = 63, DIM_TEXT_MAX = 1024, NAME_MAX_BYTES = 1 << 16 };

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_word_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_word(char c) {
    return is_word_start(c) || is_digit(c);
}
static bool is_name(char c) {
    return is_word(c) || c == '.' || c == '$' || c == '/' || c == ':' || c == '-';
}
static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* ---- reports ------------------------------------------------------------------------------- */
const char *lex_where(const struct lexer *l, const struct token *t) {
    return arena_printf(l->arena, "%s:%u:%u", l->file, t->line, t->column);
}

enum status lex_fail(struct lexer *l, const char *fmt, ...) {
    if (l->failed) return ST_PARSE;
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(l->arena, fmt, ap);
    va_end(ap);
    enum status st = diag_error(l->ctx, ST_PARSE, lex_where(l, &l->tok), "%s", text);
    l->failed = true;
    l->tok.kind = TOK_ERROR;
    return st;
}

enum status lex_expected(struct lexer *l, const char *what) {
    const struct token *t = &l->tok;
    const char *found = "the end of the text";
    switch (t->kind) {
    case TOK_PUNCT: found = arena_printf(l->arena, "'%c'", t->punct); break;
    case TOK_STRING: found = "a string"; break;
    case TOK_VALUE: found = arena_printf(l->arena, "%%%.64s", t->text); break;
    case TOK_GLOBAL: found = arena_printf(l->arena, "@%.64s", t->text); break;
    case TOK_WORD:
    case TOK_INT:
    case TOK_FLOAT: found = arena_printf(l->arena, "'%.64s'", t->text); break;
    default: break;
    }
    return lex_fail(l, "expected %s, found %s", what, found);
}

/* ---- scanning ------------------------------------------------------------------------------ */
static void skip_blank(struct lexer *l) {
    for (; l->at < l->end; l->at++) {
        char c = *l->at;
        if (c == ';')
            while (l->at + 1 < l->end && l->at[1] != '\n') l->at++;
        else if (c == '\n')
            l->line++, l->line_start = l->at + 1;
        else if (c != ' ' && c != '\t' && c != '\r')
            return;
    }
}

static void set_text(struct lexer *l, const char *start, const char *end) {
    l->tok.n = (size_t)(end - start);
    l->tok.text = arena_strndup(l->arena, start, l->tok.n);
}

/* One escape sequence after the backslash; -1 when it is none. */
static int scan_escape(struct lexer *l) {
    if (l->at == l->end) return -1;
    char c = *l->at++;
    switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case '"':
    case '\\': return c;
    case 'x': break;
    default: return -1;
    }
    if (l->end - l->at < 2) return -1;
    int hi = hex_value(l->at[0]), lo = hex_value(l->at[1]);
    if (hi < 0 || lo < 0 || hi * 16 + lo == 0) return -1;
    l->at += 2;
    return hi * 16 + lo;
}

/* A quoted string; l->at is behind the opening quote. */
static void scan_string(struct lexer *l) {
    struct buf b;
    buf_init(&b, l->arena);
    for (;;) {
        const char *run = l->at;
        while (l->at < l->end && *l->at != '"' && *l->at != '\\' && (unsigned char)*l->at >= 0x20)
            l->at++;
        buf_put(&b, run, (size_t)(l->at - run));
        if (b.n > NAME_MAX_BYTES) {
            lex_fail(l, "a string is longer than %d bytes", NAME_MAX_BYTES);
            return;
        }
        if (l->at == l->end || (*l->at != '"' && *l->at != '\\')) {
            lex_fail(l, "a string does not end on its line");
            return;
        }
        if (*l->at++ == '"') break;
        int c = scan_escape(l);
        if (c < 0) {
            lex_fail(l, "expected \\\", \\\\, \\n, \\t or \\xHH (not 00) in a string");
            return;
        }
        char byte = (char)c;
        buf_put(&b, &byte, 1);
    }
    l->tok.text = b.at;
    l->tok.n = b.n;
}

/* Behind % or @. */
static void scan_sigil(struct lexer *l, enum tok kind) {
    const char *start = l->at;
    l->tok.kind = kind;
    if (l->at < l->end && *l->at == '"') {
        l->at++;
        scan_string(l);
        return;
    }
    if (kind == TOK_VALUE && l->at < l->end && is_digit(*l->at)) {
        while (l->at < l->end && is_digit(*l->at)) l->at++;
        l->tok.numbered = true;
        for (const char *p = start; p < l->at && l->tok.i <= UINT32_MAX; p++)
            l->tok.i = l->tok.i * 10 + (*p - '0');
        set_text(l, start, l->at - start > NUMBER_MAX ? start + NUMBER_MAX : l->at);
        if (l->tok.i > UINT32_MAX) lex_fail(l, "the value number %s is too large", l->tok.text);
        return;
    }
    if (l->at == l->end || !is_word_start(*l->at)) {
        lex_fail(l, "expected a name after '%c'", kind == TOK_VALUE ? '%' : '@');
        return;
    }
    while (l->at < l->end && is_name(*l->at)) l->at++;
    if (l->at - start > NAME_MAX_BYTES)
        lex_fail(l, "a name is longer than %d bytes", NAME_MAX_BYTES);
    else
        set_text(l, start, l->at);
}

static void scan_hex(struct lexer *l, const char *start) {
    uint64_t bits = 0;
    l->at = start + 2;
    while (l->at < l->end && hex_value(*l->at) >= 0 && l->at - start <= 18)
        bits = bits << 4 | (uint64_t)hex_value(*l->at++);
    set_text(l, start, l->at);
    l->tok.kind = TOK_INT;
    l->tok.hex = true;
    l->tok.i = (int64_t)bits;
    if (l->at - start < 3 || l->at - start > 18) lex_fail(l, "expected 1 to 16 digits after 0x");
}

/* -?digits(.digits)?([eE][+-]?digits)?; also "-inf". */
static void scan_number(struct lexer *l) {
    const char *start = l->at;
    bool negative = *l->at == '-', whole = true;
    if (!negative && l->end - start >= 2 && start[0] == '0' && start[1] == 'x') {
        scan_hex(l, start);
        return;
    }
    l->at += negative;
    if (negative && l->end - l->at >= 3 && memcmp(l->at, "inf", 3) == 0) {
        l->at += 3;
        whole = false;
    } else {
        while (l->at < l->end && is_digit(*l->at)) l->at++;
        if (l->at < l->end && *l->at == '.') {
            whole = false;
            for (l->at++; l->at < l->end && is_digit(*l->at);) l->at++;
        }
        const char *e = l->at;
        if (e < l->end && (*e == 'e' || *e == 'E')) {
            e++;
            if (e < l->end && (*e == '+' || *e == '-')) e++;
            if (e < l->end && is_digit(*e)) {
                whole = false;
                for (l->at = e; l->at < l->end && is_digit(*l->at);) l->at++;
            }
        }
    }
    l->tok.kind = whole ? TOK_INT : TOK_FLOAT;
    bool too_long = l->at - start > NUMBER_MAX;
    set_text(l, start, too_long ? start + NUMBER_MAX : l->at);
    if (too_long || (l->at < l->end && (is_word(*l->at) || *l->at == '.'))) {
        lex_fail(l, "'%s..' is no number", l->tok.text);
        return;
    }
    if (!whole) return;
    for (const char *p = start + negative; p < l->at; p++)
        if (__builtin_mul_overflow(l->tok.i, 10, &l->tok.i) ||
            __builtin_sub_overflow(l->tok.i, *p - '0', &l->tok.i)) {
            lex_fail(l, "the number %s does not fit 64 bits", l->tok.text);
            return;
        }
    if (!negative && __builtin_sub_overflow((int64_t)0, l->tok.i, &l->tok.i))
        lex_fail(l, "the number %s does not fit 64 bits", l->tok.text);
}

static void begin_token(struct lexer *l) {
    skip_blank(l);
    size_t column = (size_t)(l->at - l->line_start) + 1;
    l->tok = (struct token){.line = l->line,
                            .start = l->at,
                            .column = column > UINT32_MAX ? UINT32_MAX : (uint32_t)column};
}

void lex_next(struct lexer *l) {
    if (l->failed) return;
    begin_token(l);
    if (l->at == l->end) return;
    char c = *l->at;
    if (is_word_start(c)) {
        const char *start = l->at;
        l->tok.kind = TOK_WORD;
        while (l->at < l->end && is_word(*l->at)) l->at++;
        if (l->at - start > NAME_MAX_BYTES)
            lex_fail(l, "a word is longer than %d bytes", NAME_MAX_BYTES);
        else
            set_text(l, start, l->at);
    } else if (is_digit(c) ||
               (c == '-' && l->end - l->at >= 2 && (is_digit(l->at[1]) || l->at[1] == 'i'))) {
        scan_number(l);
    } else if (c == '%' || c == '@') {
        l->at++;
        scan_sigil(l, c == '%' ? TOK_VALUE : TOK_GLOBAL);
    } else if (c == '"') {
        l->at++;
        l->tok.kind = TOK_STRING;
        scan_string(l);
    } else if (c != '\0' && strchr("{}()[],:=*+-<>/|", c)) {
        l->at++;
        l->tok.kind = TOK_PUNCT;
        l->tok.punct = c;
    } else if (c > ' ' && c < 0x7f) {
        lex_fail(l, "unexpected character '%c'", c);
    } else {
        lex_fail(l, "unexpected byte 0x%02x", (unsigned)(unsigned char)c);
    }
}

void lex_again(struct lexer *l) {
    if (l->failed) return;
    l->at = l->tok.start;
    lex_next(l);
}

void lex_init(struct lexer *l, struct ctx *c, struct arena *a, const char *text, size_t n,
              const char *file) {
    *l = (struct lexer){.ctx = c,
                        .arena = a,
                        .file = file ? file : "",
                        .at = text,
                        .end = text + n,
                        .line_start = text,
                        .line = 1};
    lex_next(l);
}

/* ---- taking -------------------------------------------------------------------------------- */
bool lex_is(const struct lexer *l, char punct) {
    return l->tok.kind == TOK_PUNCT && l->tok.punct == punct;
}

bool lex_is_word(const struct lexer *l, const char *word) {
    return l->tok.kind == TOK_WORD && strcmp(l->tok.text, word) == 0;
}

bool lex_take(struct lexer *l, char punct) {
    if (!lex_is(l, punct)) return false;
    lex_next(l);
    return true;
}

bool lex_take_word(struct lexer *l, const char *word) {
    if (!lex_is_word(l, word)) return false;
    lex_next(l);
    return true;
}

enum status lex_want(struct lexer *l, char punct) {
    char what[4] = {'\'', punct, '\'', '\0'};
    return lex_take(l, punct) ? ST_OK : lex_expected(l, what);
}

enum status lex_want_word(struct lexer *l, const char *word) {
    return lex_take_word(l, word) ? ST_OK : lex_expected(l, arena_printf(l->arena, "'%s'", word));
}

enum status lex_want_string(struct lexer *l, const char **out) {
    if (l->tok.kind != TOK_STRING) return lex_expected(l, "a string");
    *out = l->tok.text;
    lex_next(l);
    return ST_OK;
}

enum status lex_want_int(struct lexer *l, int64_t low, int64_t high, int64_t *out) {
    if (l->tok.kind != TOK_INT) return lex_expected(l, "an integer");
    if (l->tok.hex && l->tok.i < 0) return lex_fail(l, "the number %s is too large", l->tok.text);
    if (l->tok.i < low || l->tok.i > high)
        return lex_fail(l, "expected a number from %lld to %lld, found %s", (long long)low,
                        (long long)high, l->tok.text);
    *out = l->tok.i;
    lex_next(l);
    return ST_OK;
}

/* The decimal point is the locale's for strtod, a '.' in the text. */
static double to_double(const char *text, bool single) {
    char copy[NUMBER_MAX + 16];
    const char *point = localeconv()->decimal_point, *dot = strchr(text, '.');
    if (!dot || strcmp(point, ".") == 0 || strlen(point) > 8) {
        snprintf(copy, sizeof copy, "%s", text);
    } else {
        snprintf(copy, sizeof copy, "%.*s%s%s", (int)(dot - text), text, point, dot + 1);
    }
    /* Straight to float: rounding a double again could miss the nearest float. */
    return single ? (double)strtof(copy, NULL) : strtod(copy, NULL);
}

static bool is_number(const struct lexer *l) {
    return l->tok.kind == TOK_INT || l->tok.kind == TOK_FLOAT || lex_is_word(l, "inf") ||
           lex_is_word(l, "nan");
}

static double number(const struct lexer *l, bool single) {
    if (lex_is_word(l, "nan")) return (double)NAN;
    return to_double(l->tok.text, single);
}

enum status lex_want_double(struct lexer *l, double *out) {
    if (!is_number(l)) return lex_expected(l, "a number");
    if (l->tok.hex)
        memcpy(out, &l->tok.i, sizeof *out);
    else
        *out = number(l, false);
    lex_next(l);
    return ST_OK;
}

static enum status store_bits(struct lexer *l, enum dtype t, void *p) {
    uint64_t bits = (uint64_t)l->tok.i;
    size_t size = dtype_size(t);
    if (size < 8 && bits >> (8 * size))
        return lex_fail(l, "%s has %zu bytes, found %s", dtype_name(t), size, l->tok.text);
    for (size_t i = 0; i < size; i++) ((unsigned char *)p)[i] = (unsigned char)(bits >> (8 * i));
    lex_next(l);
    return ST_OK;
}

enum status lex_want_element(struct lexer *l, enum dtype t, void *p) {
    if (l->tok.kind == TOK_INT && l->tok.hex) return store_bits(l, t, p);
    if (t == DT_bool) {
        if (!lex_is_word(l, "true") && !lex_is_word(l, "false"))
            return lex_expected(l, "true or false");
        *(unsigned char *)p = lex_is_word(l, "true");
    } else if (dtype_is_float(t)) {
        if (!is_number(l)) return lex_expected(l, "a number");
        dtype_store(t, p, number(l, t == DT_f32));
    } else {
        if (l->tok.kind != TOK_INT) return lex_expected(l, "an integer");
        dtype_store_int(t, p, l->tok.i);
        if (dtype_load_int(t, p) != l->tok.i)
            return lex_fail(l, "%s does not fit %s", l->tok.text, dtype_name(t));
    }
    lex_next(l);
    return ST_OK;
}

enum status lex_want_dim(struct lexer *l, struct dims_table *dims, dim *out) {
    if (l->failed) return ST_PARSE;
    begin_token(l);
    const char *start = l->at;
    bool quoted = false;
    for (; l->at < l->end && *l->at != '\n'; l->at++) {
        char c = *l->at;
        if (!quoted && (c == ',' || c == ']')) break;
        if (c == '"') quoted = !quoted;
        if (quoted && c == '\\' && l->at + 1 < l->end) l->at++;
    }
    size_t n = (size_t)(l->at - start);
    while (n > 0 && start[n - 1] == ' ') n--;
    if (n == 0) return lex_fail(l, "expected a size");
    if (n > DIM_TEXT_MAX) return lex_fail(l, "a size is longer than %d bytes", DIM_TEXT_MAX);
    if (!dim_parse(dims, start, n, out))
        return lex_fail(l,
                        "'%.*s' is no size: expected a number, a symbol, or a small expression "
                        "of both with + - *",
                        n > 64 ? 64 : (int)n, start);
    lex_next(l);
    return ST_OK;
}

enum status lex_want_dims(struct lexer *l, struct dims_table *dims, dim *out, int max, int *n) {
    *n = 0;
    if (!lex_is(l, '[')) return lex_expected(l, "'['");
    const char *p = l->at;
    while (p < l->end && (*p == ' ' || *p == '\t')) p++;
    if (p < l->end && *p == ']') {
        lex_next(l);
        return lex_want(l, ']');
    }
    do {
        if (*n == max) return lex_fail(l, "more than %d sizes", max);
        TRY(lex_want_dim(l, dims, &out[(*n)++]));
    } while (lex_is(l, ','));
    return lex_want(l, ']');
}

enum status lex_want_type(struct lexer *l, struct dims_table *dims, struct type *out) {
    if (l->tok.kind != TOK_WORD) return lex_expected(l, "a type such as f32[2,3]");
    struct type t = type_scalar(dtype_from_name(l->tok.text, l->tok.n));
    if (t.dtype == DT_NONE)
        return lex_fail(l, "unknown element type '%.64s'; expected f32, i64, ..", l->tok.text);
    lex_next(l);
    TRY(lex_want_dims(l, dims, t.dims, RANK_MAX, &t.rank));
    *out = t;
    return ST_OK;
}

/* ---- printing ------------------------------------------------------------------------------ */
void text_name(struct buf *out, char sigil, const char *name) {
    bool plain = is_word_start(name[0]);
    for (const char *p = name; *p && plain; p++) plain = is_name(*p);
    buf_put(out, &sigil, 1);
    if (plain)
        buf_puts(out, name);
    else
        buf_quoted(out, name);
}

void text_double(struct buf *out, double x) {
    const double canonical = (double)NAN;
    if (isnan(x) && memcmp(&x, &canonical, sizeof x) != 0) {
        uint64_t bits;
        memcpy(&bits, &x, sizeof bits);
        buf_printf(out, "0x%016llx", (unsigned long long)bits);
    } else {
        buf_f64(out, x);
    }
}

void text_element(struct buf *out, enum dtype t, const void *p) {
    unsigned char again[8];
    size_t size = dtype_size(t);
    if (t == DT_bool) {
        unsigned char b = *(const unsigned char *)p;
        if (b > 1)
            buf_printf(out, "0x%02x", b);
        else
            buf_puts(out, b ? "true" : "false");
    } else if (!dtype_is_float(t)) {
        buf_printf(out, "%lld", (long long)dtype_load_int(t, p));
    } else {
        double x = dtype_load(t, p);
        dtype_store(t, again, isnan(x) ? (double)NAN : x);
        if (memcmp(again, p, size) != 0) {
            uint64_t bits = 0;
            for (size_t i = size; i-- > 0;) bits = bits << 8 | ((const unsigned char *)p)[i];
            buf_printf(out, "0x%0*llx", (int)(2 * size), (unsigned long long)bits);
        } else if (t == DT_f64) {
            buf_f64(out, x);
        } else {
            buf_f32(out, (float)x);
        }
    }
}
