// SPDX-License-Identifier: Apache-2.0
/* fixture.c - what the shell tests need and a shell has not: arrays in files, and JSON.
 *
 *   fixture data OUT NAME:DTYPE:DIMS:FILL ...   .npz (or .safetensors); DIMS 4x3, FILL randn, mod=K
 * or a number fixture list FILE                           "NAME TYPE" of every array fixture same A
 * B [TOLERANCE]                the same arrays; 0: the same bytes fixture json FILE one valid JSON
 * value fixture get FILE LINE PATH                  member a.b.0 of JSON line LINE (0: the whole
 * file, -1: the last line) fixture head FILE BYTES OUT                 the first bytes of a file
 * (negative: all but so many) */
#include "base/buf.h"
#include "runtime/array.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ctx ctx;
static struct arena arena;

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    (void)user, (void)sev, (void)code;
    fprintf(stderr, "fixture: %s: %s\n", origin, message);
}

static int die(const char *what, const char *about) {
    fprintf(stderr, "fixture: %s: %s\n", about, what);
    return 2;
}

/* ---- arrays -------------------------------------------------------------------------------------
 */
static double value_at(const char *fill, int64_t i) {
    static uint64_t state = 1;
    if (strcmp(fill, "randn") == 0) {
        double sum = -6;
        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 40) / 16777216.0;
        }
        return sum;
    }
    if (strncmp(fill, "mod=", 4) == 0) return (double)((i * 7 + 3) % strtol(fill + 4, NULL, 10));
    return strtod(fill, NULL);
}

static bool parse_array(char *spec, struct array *out) {
    char *dtype = strchr(spec, ':'), *dims = dtype ? strchr(dtype + 1, ':') : NULL;
    char *fill = dims ? strchr(dims + 1, ':') : NULL;
    if (!fill) return false;
    *dtype++ = *dims++ = *fill++ = 0;
    memset(out, 0, sizeof *out);
    out->name = spec;
    out->type.dtype = dtype_from_name(dtype, strlen(dtype));
    if (out->type.dtype == DT_NONE) return false;
    for (char *end; *dims; dims = *end ? end + 1 : end)
        out->type.dims[out->type.rank++] = strtol(dims, &end, 10);
    size_t size = dtype_size(out->type.dtype);
    int64_t n = type_count(&out->type);
    char *at = arena_alloc(&arena, (size_t)n * size + 1);
    for (int64_t i = 0; i < n; i++)
        dtype_store(out->type.dtype, at + (size_t)i * size, value_at(fill, i));
    out->at = at;
    return true;
}

static int cmd_data(char **argv) {
    struct array list[32];
    uint32_t n = 0;
    const char *path = *argv++;
    for (; *argv && n < 32; argv++, n++)
        if (!parse_array(*argv, &list[n])) return die("not NAME:DTYPE:DIMS:FILL", *argv);
    const char *dot = strrchr(path, '.');
    if (dot && strcmp(dot, ".safetensors") == 0)
        return safetensors_write(&ctx, path, list, n, NULL, 0) != ST_OK;
    return npz_write(&ctx, path, list, n) != ST_OK;
}

static int cmd_list(char **argv) {
    struct arrays a = {0};
    struct dims_table *none = dims_create(&arena);
    if (arrays_read(&arena, argv[0], &a) != ST_OK) return 1;
    for (uint32_t i = 0; i < a.list.n; i++) {
        struct buf b;
        buf_init(&b, &arena);
        type_print(none, &a.list.at[i].type, &b);
        printf("%s %s\n", a.list.at[i].name, b.at);
    }
    return 0;
}

static bool same_array(const struct array *x, const struct array *y, double tolerance) {
    if (!type_equal(&x->type, &y->type)) return false;
    size_t size = dtype_size(x->type.dtype);
    if (tolerance == 0) return memcmp(x->at, y->at, (size_t)type_bytes(&x->type)) == 0;
    double diff = 0, norm = 0;
    for (int64_t i = 0, n = type_count(&x->type); i < n; i++) {
        double p = dtype_load(x->type.dtype, (const char *)x->at + (size_t)i * size);
        double q = dtype_load(y->type.dtype, (const char *)y->at + (size_t)i * size);
        diff += (p - q) * (p - q);
        norm += q * q;
    }
    return sqrt(diff) <= tolerance * sqrt(norm);
}

static int cmd_same(char **argv) {
    struct arrays a = {0}, b = {0};
    double tolerance = argv[2] ? strtod(argv[2], NULL) : 0;
    if (arrays_read(&arena, argv[0], &a) != ST_OK || arrays_read(&arena, argv[1], &b) != ST_OK)
        return 2;
    int rc = a.list.n != b.list.n;
    for (uint32_t i = 0; i < a.list.n; i++) {
        const struct array *other = arrays_find(&b, a.list.at[i].name);
        if (other && same_array(&a.list.at[i], other, tolerance)) continue;
        printf("%s %s\n", a.list.at[i].name, other ? "differs" : "is missing");
        rc = 1;
    }
    return rc;
}

/* ---- JSON ---------------------------------------------------------------------------------------
 */
static const char *nth_line(const struct file_map *f, int64_t line, size_t *n) {
    const char *at = (const char *)f->at, *end = at + f->size, *start = at;
    *n = f->size;
    if (line == 0) return at;
    for (int64_t k = 1; at < end; k++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        start = at;
        *n = (size_t)(stop - at);
        at = stop + 1;
        if (k == line) return start;
    }
    return line < 0 ? start : NULL;
}

static json_t *load(const char *path, int64_t line) {
    struct file_map f;
    size_t n;
    if (sys_map_file(&arena, path, &f) != ST_OK || !f.size) return NULL;
    const char *text = nth_line(&f, line, &n);
    return text ? json_loadb(text, n, JSON_DECODE_ANY, NULL) : NULL;
}

static int cmd_json(char **argv) {
    json_t *j = load(argv[0], 0);
    if (!j) return die("is not one valid JSON value", argv[0]);
    json_decref(j);
    return 0;
}

static int cmd_get(char **argv) {
    json_t *root = load(argv[0], strtoll(argv[1], NULL, 10)), *j = root;
    if (!root) return die("no such line, or it is not JSON", argv[0]);
    char *path = arena_strdup(&arena, argv[2]);
    for (char *key = path; key && j;) {
        char *dot = strchr(key, '.');
        if (dot) *dot++ = 0;
        j = json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
        key = dot;
    }
    int rc = j ? 0 : die("no such member", argv[2]);
    if (j && json_is_string(j)) {
        puts(json_string_value(j));
    } else if (j) {
        char *s = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT);
        puts(s);
        free(s);
    }
    json_decref(root);
    return rc;
}

static int cmd_head(char **argv) {
    struct file_map f;
    if (sys_map_file(&arena, argv[0], &f) != ST_OK) return 1;
    long long n = strtoll(argv[1], NULL, 10);
    size_t keep = n < 0 ? f.size - (size_t)-n : (size_t)n;
    return sys_write_file(&ctx, argv[2], f.at, keep < f.size ? keep : f.size) != ST_OK;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int args;
        int (*run)(char **argv);
    } commands[] = {{"data", 2, cmd_data}, {"list", 1, cmd_list}, {"same", 2, cmd_same},
                    {"json", 1, cmd_json}, {"get", 3, cmd_get},   {"head", 3, cmd_head}};
    jmp_buf landing;
    ctx_init(&ctx);
    ctx.report = report;
    ctx.landing = &landing;
    if (setjmp(landing)) return 3;
    arena_init(&arena, &ctx);
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) != 0 || argc - 2 < commands[i].args) continue;
        int rc = commands[i].run(argv + 2);
        arena_reset(&arena);
        return rc;
    }
    return die("unknown command or too few arguments", argc > 1 ? argv[1] : "usage");
}
