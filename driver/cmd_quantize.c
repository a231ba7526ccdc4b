// SPDX-License-Identifier: Apache-2.0
/* cmd_quantize.c - `lathe quantize`: an array as 8-bit codes and scales, and what that costs in
 * accuracy; without a format, the costs of all formats and scopes side by side. */
#include "base/diag.h"
#include "driver/command.h"
#include "runtime/array.h"
#include "runtime/quantize.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quantize_args {
    lathe_context *c;
    struct arena arena;
    const char *path, *name, *format, *scope, *scale, *out;
    bool expand, contract, json;
    struct quant_spec spec;
    const struct array *from;
    float *x;
    int64_t rows, cols;
    struct expand_table *tables[2]; /* e4m3, e5m2; filled when asked for */
};

/* ---- options ------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    enum dtype type;
} formats[] = {{"e4m3", DT_e4m3}, {"e5m2", DT_e5m2}, {"int8", DT_i8}},
  scales[] = {{"f32", DT_f32}, {"bf16", DT_bf16}, {"pow2", DT_e8m0}};
enum { NAMES = 3 };

static const char *format_name(enum dtype t) {
    return t == DT_i8 ? "int8" : dtype_name(t);
}

/* "16" -> 16; false unless it is a whole number from 1 to 2^31. */
static bool read_count(const char *s, char end, int64_t *out, const char **rest) {
    char *stop;
    if (*s < '0' || *s > '9') return false;
    long long v = strtoll(s, &stop, 10);
    *out = v;
    *rest = stop + 1;
    return *stop == end && v >= 1 && v <= (int64_t)1 << 31;
}

static bool read_scope(const char *s, struct quant_tile *t) {
    const char *rest;
    *t = (struct quant_tile){.rows = 1};
    if (strcmp(s, "tensor") == 0) {
        t->whole = true;
        return true;
    }
    if (strcmp(s, "row") == 0) return true;
    if (strncmp(s, "group:", 6) == 0) return read_count(s + 6, '\0', &t->cols, &rest);
    return strncmp(s, "block:", 6) == 0 && read_count(s + 6, 'x', &t->rows, &rest) &&
           read_count(rest, '\0', &t->cols, &rest);
}

static int read_options(struct quantize_args *a) {
    struct quant_spec *s = &a->spec;
    s->eps = 1e-10f;
    s->contract = a->contract;
    for (int k = 0; k < NAMES; k++) {
        if (a->format && strcmp(a->format, formats[k].name) == 0) s->format = formats[k].type;
        if (strcmp(a->scale, scales[k].name) == 0) s->scale_type = scales[k].type;
    }
    if (a->format && s->format == DT_NONE)
        return fail(2, "quantize: expected --format e4m3, e5m2 or int8, found '%s'", a->format);
    if (s->scale_type == DT_NONE)
        return fail(2, "quantize: expected --scale f32, bf16 or pow2, found '%s'", a->scale);
    if (!read_scope(a->scope ? a->scope : a->expand ? "group:128" : "tensor", &s->tile))
        return fail(2,
                    "quantize: expected --scope tensor, row, group:G or block:RxC with whole "
                    "numbers from 1, found '%s'",
                    a->scope);
    if (!a->format && (a->out || a->expand || a->scope))
        return fail(2, "quantize: --format is missing; it is needed with -o, --scope and --expand");
    if (a->contract && !a->expand) return fail(2, "quantize: --contract needs --expand");
    if (!a->expand) return 0;
    bool group = !s->tile.whole && s->tile.rows == 1 && s->tile.cols > 0;
    if (s->format == DT_i8) return fail(2, "quantize: --expand needs --format e4m3 or e5m2");
    if (!group || s->tile.cols > EXPAND_GROUP_MAX)
        return fail(2, "quantize: --expand needs --scope group:G with G from 1 to %d",
                    EXPAND_GROUP_MAX);
    if (s->scale_type != DT_f32) return fail(2, "quantize: --expand keeps f32 scales");
    return 0;
}

/* ---- input --------------------------------------------------------------------------------- */
static enum status choose_array(struct quantize_args *a) {
    struct arrays all = {0};
    TRY(arrays_read(&a->arena, a->path, &all));
    if (all.list.n == 0) return diag_error(a->arena.ctx, ST_DATA, a->path, "holds no array");
    if (a->name) {
        a->from = arrays_find(&all, a->name);
        if (a->from) return ST_OK;
        return diag_error(a->arena.ctx, ST_USAGE, a->path,
                          "no array is called '%s'; the first of %u is '%s'", a->name, all.list.n,
                          all.list.at[0].name);
    }
    a->from = &all.list.at[0];
    if (all.list.n == 1) return ST_OK;
    return diag_error(a->arena.ctx, ST_USAGE, a->path,
                      "expected one array, found %u; choose one with --array, for instance '%s'",
                      all.list.n, all.list.at[0].name);
}

static enum status load(struct quantize_args *a) {
    TRY(choose_array(a));
    const struct type *t = &a->from->type;
    if (!dtype_is_float(t->dtype))
        return diag_error(a->arena.ctx, ST_TYPE, a->path,
                          "expected an array of floating-point numbers, found %s",
                          dtype_name(t->dtype));
    a->rows = 1, a->cols = t->rank ? t->dims[t->rank - 1] : 1;
    if (!dims_product(t->dims, t->rank ? t->rank - 1 : 0, &a->rows) || type_count(t) < 0)
        return diag_error(a->arena.ctx, ST_SHAPE, a->path, "the array is too large");
    int64_t n = type_count(t);
    size_t size = dtype_size(t->dtype);
    const char *at = a->from->at;
    a->x = ARENA_ARRAY(&a->arena, float, (size_t)n);
    for (int64_t i = 0; i < n; i++, at += size) a->x[i] = (float)dtype_load(t->dtype, at);
    return ST_OK;
}

/* ---- report -------------------------------------------------------------------------------- */
static const char *scope_text(struct arena *a, struct quant_tile t) {
    if (t.whole) return "tensor";
    if (t.cols == 0) return "row";
    if (t.rows == 1) return arena_printf(a, "group:%lld", (long long)t.cols);
    return arena_printf(a, "block:%lldx%lld", (long long)t.rows, (long long)t.cols);
}

static void print_head(const struct quantize_args *a) {
    const struct type *t = &a->from->type;
    printf("%s %s[", a->from->name[0] ? a->from->name : a->path, dtype_name(t->dtype));
    for (int k = 0; k < t->rank; k++) printf("%s%lld", k ? "," : "", (long long)t->dims[k]);
    printf("] as %lld x %lld\n", (long long)a->rows, (long long)a->cols);
    printf("%-6s %-16s %-6s %10s %10s %9s %9s %9s %8s\n", "format", "scope", "scale", "rmse",
           "rel. rmse", "max rel.", "saturated", "to zero", "SQNR dB");
}

/* JSON has no infinity. */
static void put_json(const char *name, double x) {
    if (isfinite(x))
        printf(", \"%s\": %.9g", name, x);
    else
        printf(", \"%s\": null", name);
}

static void print_row(const struct quantize_args *a, const struct quant_spec *s,
                      const struct quant_error *e) {
    const char *scale = s->table ? "amax,k" : a->scale;
    struct arena *arena = (struct arena *)&a->arena;
    const char *scope = scope_text(arena, s->tile), *format = format_name(s->format);
    if (s->table) scope = arena_printf(arena, "%s+expand", scope);
    if (!a->json) {
        printf("%-6s %-16s %-6s %10.4g %9.4f%% %8.3f%% %8.4f%% %8.4f%% %8.2f\n", format, scope,
               scale, e->rmse, 100 * e->relative_rmse, 100 * e->max_relative, e->saturated,
               e->vanished, e->sqnr);
        return;
    }
    printf("{\"format\": \"%s\", \"scope\": \"%s\", \"scale\": \"%s\", \"elements\": %lld", format,
           scope, scale, (long long)(a->rows * a->cols));
    put_json("amax", e->amax);
    put_json("rmse", e->rmse);
    put_json("relative_rmse", e->relative_rmse);
    put_json("max_relative_error", e->max_relative);
    put_json("saturated_percent", e->saturated);
    put_json("underflow_percent", e->vanished);
    put_json("sqnr_db", e->sqnr);
    printf(", \"nonfinite\": %lld}\n", (long long)e->nonfinite);
}

static const struct expand_table *table_of(struct quantize_args *a, enum dtype format) {
    bool wide = format == DT_e5m2;
    enum expand_format f = wide ? EXPAND_E5M2 : EXPAND_E4M3;
    if (a->tables[wide]) return a->tables[wide];
    a->tables[wide] = ARENA_NEW(&a->arena, struct expand_table);
    expand_fill(a->tables[wide], f, expand_default_range(f));
    return a->tables[wide];
}

/* Every format in every usual scope; the memory of each is given back. */
static void print_all(struct quantize_args *a) {
    static const char *const scopes[] = {"tensor",   "row",      "group:128",
                                         "group:32", "group:16", "block:128x128"};
    for (int f = 0; f < NAMES; f++)
        for (size_t k = 0; k <= sizeof scopes / sizeof scopes[0]; k++) {
            struct quant_spec s = a->spec;
            bool expand = k == sizeof scopes / sizeof scopes[0];
            s.format = formats[f].type;
            if (expand && s.format == DT_i8) continue;
            (void)read_scope(expand ? "group:128" : scopes[k], &s.tile);
            if (expand) s.table = table_of(a, s.format);
            struct arena own;
            arena_init(&own, a->arena.ctx);
            struct quantized q = quantize_matrix(&own, a->x, a->rows, a->cols, &s);
            struct quant_error e = quantize_error(a->x, &q, &s);
            arena_reset(&own);
            print_row(a, &s, &e);
        }
}

static enum status write_out(struct quantize_args *a, const struct quantized *q) {
    const struct type *t = &a->from->type;
    struct type codes = *t, values = *t;
    struct type scale = {.dtype = DT_f32, .rank = 2, .dims = {q->down, q->across}};
    codes.dtype = DT_u8, values.dtype = DT_f32;
    if (a->spec.tile.whole) scale.rank = 0;
    struct array list[4] = {{"codes", codes, q->codes}, {"scale", scale, q->scale}};
    uint32_t n = 2;
    if (q->k) {
        int64_t m = q->down * q->across;
        float *k = ARENA_ARRAY(&a->arena, float, (size_t)m);
        for (int64_t i = 0; i < m; i++) k[i] = (float)q->k[i] / EXPAND_ONE;
        list[n++] = (struct array){"k", scale, k};
    }
    list[n++] = (struct array){"values", values, q->values};
    return npz_write(a->arena.ctx, a->out, list, n);
}

static enum status quantize_body(void *arg) {
    struct quantize_args *a = arg;
    TRY(load(a));
    if (!a->format) {
        if (!a->json) print_head(a);
        print_all(a);
        return ST_OK;
    }
    if (a->expand) a->spec.table = table_of(a, a->spec.format);
    struct quantized q = quantize_matrix(&a->arena, a->x, a->rows, a->cols, &a->spec);
    struct quant_error e = quantize_error(a->x, &q, &a->spec);
    if (a->out) TRY(write_out(a, &q));
    if (!a->json) print_head(a);
    print_row(a, &a->spec, &e);
    if (!a->json && e.nonfinite)
        printf("%lld of %lld elements are infinite or NaN or share a scale with one; the figures "
               "are of "
               "the others\n",
               (long long)e.nonfinite, (long long)(a->rows * a->cols));
    return ST_OK;
}

int cmd_quantize(int argc, char **argv) {
    struct quantize_args a = {.scale = "f32"};
    const char *pos[1];
    // clang-format off
    const struct option_spec spec[] = {
        {"--format", OPTION_TEXT, &a.format, 0, 0, "F", "e4m3, e5m2 or int8; without it a table of all"},
        {"--scope", OPTION_TEXT, &a.scope, 0, 0, "S", "what shares a scale: tensor (default), row, group:G or block:RxC"},
        {"--scale", OPTION_TEXT, &a.scale, 0, 0, "T", "f32 (default), bf16 or pow2: what scales are rounded to"},
        {"--expand", OPTION_FLAG, &a.expand, 0, 0, NULL, "dynamic range expansion by groups (default group:128): `scale` is the amax, with an exponent `k`"},
        {"--contract", OPTION_FLAG, &a.contract, 0, 0, NULL, "with --expand: exponents below 1 for groups wider than the format"},
        {"--array", OPTION_TEXT, &a.name, 0, 0, "NAME", "which array of an .npz or .safetensors file"},
        {"-o", OPTION_TEXT, &a.out, 0, 0, "OUT.npz", "codes (u8), scale (f32), k (with --expand), values (f32)"},
        {"--json", OPTION_FLAG, &a.json, 0, 0, NULL, "figures as one JSON object a line"},
    };
    // clang-format on
    int rc = options_parse(command_named("quantize"), spec, (int)(sizeof spec / sizeof spec[0]),
                           argc, argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    rc = read_options(&a);
    if (rc) return rc;
    a.path = pos[0];
    a.c = command_context(false, 1);
    if (!a.c) return 1;
    arena_init(&a.arena, &a.c->ctx);
    enum status st = (enum status)session_guard(a.c, quantize_body, &a);
    arena_reset(&a.arena);
    return command_end(a.c, st);
}
