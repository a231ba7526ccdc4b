// SPDX-License-Identifier: Apache-2.0
/* conformance.c - runs the ONNX node tests (one directory a test: model.onnx and test_data_set_0
 * with input_I.pb and output_I.pb) through import, passes, plan and CPU backend, and says for each:
 * PASS, FAIL with the reason, or UNSUPPORTED with the diagnostic that a user would get. What is not
 * computed must be refused; a wrong number and a crash are failures. Each test has a process of its
 * own, so that a crash ends that test alone.
 *
 * Tolerances are absolute + relative * |expected|. Those of f32 are the corpus's own; f64 is held
 * to more; f16 and bf16 are allowed two units in the last place, since their references round after
 * every step and Lathe computes in f32. Integers, booleans and fp8 must be equal. NaN equals NaN.
 *
 * usage: conformance DIR [--list FILE.md] [--expect FILE] [--only TEXT] [--quiet] */
#include "base/diag.h"
#include "codegen/codegen.h"
#include "driver/pipeline.h"
#include "frontend/import.h"
#include "onnx.pb-c.h"
#include "runtime/cpu.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS_MAX = 30, SLOTS_MAX = 64, WHY_MAX = 400, SMALL_MAX = 64 };
enum verdict { PASS, FAIL, UNSUPPORTED };

struct outcome { /* what a test's process writes back */
    enum verdict verdict;
    bool bound; /* inputs were given as constants */
    char op[64], why[WHY_MAX];
};
struct test {
    const char *name;
    struct outcome out;
    const char *family;
};

/* One test at work. */
struct run {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    const char *dir;
    struct onnx_model *m;
    struct import_result r;
    struct onnx_tensor in[SLOTS_MAX];
    const char *input[SLOTS_MAX]; /* names of the graph inputs that are fed, in order */
    int nin;
    int level; /* 0: all are inputs; 1: integers are constants; 2: small floats as well */
    struct outcome out;
    char first[WHY_MAX]; /* the first error reported */
};

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    struct run *r = user;
    (void)code, (void)origin;
    if (sev == SEV_ERROR && !r->first[0]) snprintf(r->first, sizeof r->first, "%s", message);
}

__attribute__((format(printf, 3, 4))) static void settle(struct run *r, enum verdict v,
                                                         const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    r->out.verdict = v;
    vsnprintf(r->out.why, sizeof r->out.why, fmt, ap);
    va_end(ap);
}

/* A failed step: refusals are UNSUPPORTED, everything else is a FAIL. */
static void settle_status(struct run *r, const char *step, enum status st) {
    if (st == ST_UNSUPPORTED)
        settle(r, UNSUPPORTED, "%s", r->first);
    else
        settle(r, FAIL, "%s ended with status %d: %s", step, (int)st, r->first);
}

/* ---- data ---------------------------------------------------------------------------------- */
/* The tensor in a file; false (with the verdict set) for sequences, strings and the like. */
static bool read_tensor(struct run *r, const char *what, int i, const Onnx__TypeProto *type,
                        struct onnx_tensor *t) {
    struct file_map f;
    const char *path = arena_printf(&r->arena, "%s/test_data_set_0/%s_%d.pb", r->dir, what, i);
    if (type && type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        settle(r, UNSUPPORTED, "%s %d is no tensor", what, i);
        return false;
    }
    if (sys_map_file(&r->arena, path, &f) != ST_OK) {
        settle(r, FAIL, "%s", r->first);
        return false;
    }
    Onnx__TensorProto *p = onnx__tensor_proto__unpack(NULL, f.size, f.at);
    if (!p) {
        settle(r, FAIL, "%s %d is no TensorProto", what, i);
        return false;
    }
    if (dtype_from_onnx(p->data_type) == DT_NONE) {
        settle(r, UNSUPPORTED, "element type %s", onnx_type_name(p->data_type));
        return false;
    }
    enum status st = onnx_decode_tensor(r->m, p, path, t);
    if (st != ST_OK) settle_status(r, path, st);
    return st == ST_OK;
}

static bool is_initializer(const Onnx__GraphProto *g, const char *name) {
    for (size_t i = 0; i < g->n_initializer; i++)
        if (strcmp(g->initializer[i]->name, name) == 0) return true;
    return false;
}

static bool read_inputs(struct run *r) {
    const Onnx__GraphProto *g = r->m->proto->graph;
    for (size_t i = 0; i < g->n_input; i++) {
        if (is_initializer(g, g->input[i]->name)) continue;
        if (r->nin == SLOTS_MAX) {
            settle(r, FAIL, "more than %d inputs", SLOTS_MAX);
            return false;
        }
        if (!read_tensor(r, "input", r->nin, g->input[i]->type, &r->in[r->nin])) return false;
        r->input[r->nin++] = g->input[i]->name;
    }
    return true;
}

/* ---- import -------------------------------------------------------------------------------- */
static const struct onnx_tensor *constant_input(void *user, const char *name) {
    const struct run *r = user;
    for (int i = 0; i < r->nin; i++) {
        const struct type *t = &r->in[i].type;
        if (strcmp(r->input[i], name) != 0) continue;
        if (!dtype_is_float(t->dtype)) return &r->in[i];
        return r->level > 1 && t->rank <= 1 && type_count(t) <= SMALL_MAX ? &r->in[i] : NULL;
    }
    return NULL;
}

/* The size that the data has where the file has a symbol ("name.axis" where it has nothing). */
static int64_t symbol_size(void *user, const char *symbol) {
    const struct run *r = user;
    const Onnx__GraphProto *g = r->m->proto->graph;
    char name[256];
    for (size_t i = 0; i < g->n_input; i++) {
        const Onnx__TensorShapeProto *s = g->input[i]->type && g->input[i]->type->tensor_type
                                              ? g->input[i]->type->tensor_type->shape
                                              : NULL;
        for (int k = 0; k < r->nin && s; k++) {
            if (strcmp(r->input[k], g->input[i]->name) != 0) continue;
            for (size_t d = 0; d < s->n_dim && (int)d < r->in[k].type.rank; d++) {
                bool named =
                    s->dim[d]->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
                    s->dim[d]->dim_param[0];
                snprintf(name, sizeof name, "%s.%zu", r->input[k], d);
                if (strcmp(named ? s->dim[d]->dim_param : name, symbol) == 0)
                    return r->in[k].type.dims[d];
            }
        }
    }
    return -1;
}

/* Inputs that decide shapes are inputs in these tests: where the import of the file alone is
 * refused, it is tried with the integers, and then the small floats too, as constants. */
static enum status import(struct run *r) {
    char why[WHY_MAX];
    enum status st = ST_OK, first = ST_OK;
    for (r->level = 0; r->level < 3; r->level++) {
        struct import_options o = {.bind = symbol_size,
                                   .bind_user = r,
                                   .constant = r->level ? constant_input : NULL,
                                   .constant_user = r};
        r->first[0] = 0;
        st = onnx_import(r->m, &o, &r->r);
        r->out.bound = r->level > 0;
        if (st == ST_OK) return st;
        if (r->level == 0) {
            first = st;
            memcpy(why, r->first, sizeof why);
            if (st != ST_UNSUPPORTED) break;
        }
        if (st != ST_UNSUPPORTED) return st;
        memcpy(why, r->first, sizeof why); /* the last refusal is the one that matters */
        first = st;
    }
    memcpy(r->first, why, sizeof why);
    return first;
}

/* ---- comparing ----------------------------------------------------------------------------- */
static void tolerance(enum dtype t, double *relative, double *absolute) {
    *relative = *absolute = 0;
    if (t == DT_f32) *relative = 1e-3, *absolute = 1e-7;
    if (t == DT_f64) *relative = 1e-6, *absolute = 1e-7;
    if (t == DT_f16) *relative = 2e-3, *absolute = 1e-5;
    if (t == DT_bf16) *relative = 1.6e-2, *absolute = 1e-4;
}

static bool close_enough(enum dtype t, const void *a, const void *b) {
    double relative, absolute;
    if (!dtype_is_float(t)) return dtype_load_int(t, a) == dtype_load_int(t, b);
    double x = dtype_load(t, a), want = dtype_load(t, b);
    tolerance(t, &relative, &absolute);
    if (isnan(x) || isnan(want)) return isnan(x) && isnan(want);
    if (isinf(x) || isinf(want)) return x == want;
    return fabs(x - want) <= absolute + relative * fabs(want);
}

static void compare(struct run *r, int k, const struct type *t, const void *got,
                    const struct onnx_tensor *want) {
    struct buf a, b;
    if (!type_equal(t, &want->type)) {
        buf_init(&a, &r->arena);
        buf_init(&b, &r->arena);
        type_print(r->r.graph->dims, t, &a);
        type_print(r->r.graph->dims, &want->type, &b);
        settle(r, FAIL, "output %d is %.*s, expected %.*s", k, (int)a.n, (const char *)a.at,
               (int)b.n, (const char *)b.at);
        return;
    }
    size_t size = dtype_size(t->dtype);
    int64_t n = type_count(t), bad = 0, at = -1;
    for (int64_t i = 0; i < n; i++) {
        if (close_enough(t->dtype, (const char *)got + (size_t)i * size,
                         (const char *)want->data + (size_t)i * size))
            continue;
        if (at < 0) at = i;
        bad++;
    }
    if (at < 0) return;
    settle(r, FAIL,
           "output %d: %" PRId64 " of %" PRId64 " differ, element %" PRId64
           " is %.9g, expected %.9g",
           k, bad, n, at, dtype_load(t->dtype, (const char *)got + (size_t)at * size),
           dtype_load(t->dtype, (const char *)want->data + (size_t)at * size));
}

/* ---- running ------------------------------------------------------------------------------- */
static void fill_inputs(struct run *r, const struct plan *p, struct cpu_exec *x) {
    for (int i = 0; i < r->nin; i++) {
        buf_id b = plan_find(p, BUF_INPUT, r->input[i]);
        if (!b.i) continue; /* a constant, or not used */
        const struct plan_buffer *at = &p->buffers.at[b.i];
        if (!type_equal(&at->type, &r->in[i].type)) {
            settle(r, FAIL, "input %d has another type than the file says", i);
            return;
        }
        if (at->bytes) memcpy(cpu_buffer_at(x, b), r->in[i].data, (size_t)at->bytes);
    }
}

static void run_plan(struct run *r, struct graph *g, struct plan *p, struct pool *pool) {
    struct cpu_exec *x = NULL;
    enum status st = cpu_create(&r->ctx, p, pool, &x);
    if (st == ST_OK) fill_inputs(r, p, x);
    if (st == ST_OK && r->out.verdict == PASS) st = cpu_run(x, 0, p->launches.n, false);
    if (st != ST_OK) settle_status(r, "running", st);
    const Onnx__GraphProto *o = r->m->proto->graph;
    for (uint32_t k = 0; k < g->outputs.n && r->out.verdict == PASS; k++) {
        struct onnx_tensor want;
        const char *name = interned(&g->strings, g->outputs.at[k].name);
        if (!read_tensor(r, "output", (int)k, k < o->n_output ? o->output[k]->type : NULL, &want))
            break;
        compare(r, (int)k, val_type(g, g->outputs.at[k].value), cpu_buffer(x, BUF_OUTPUT, name),
                &want);
    }
    const char *extra =
        arena_printf(&r->arena, "%s/test_data_set_0/output_%u.pb", r->dir, (unsigned)g->outputs.n);
    if (r->out.verdict == PASS && sys_exists(extra))
        settle(r, FAIL, "%u outputs, more are expected", (unsigned)g->outputs.n);
    cpu_destroy(x);
}

static void run_graph(struct run *r, struct graph *g) {
    struct arena scratch;
    struct plan *p = NULL;
    arena_init(&scratch, &r->ctx);
    struct pass_ctx pc = {.ctx = &r->ctx, .scratch = &scratch, .eval = pipeline_eval};
    struct pipeline_options po = {.verify = true};
    enum status st = pipeline_run(&pc, g, &po);
    if (st != ST_OK) {
        settle_status(r, "a pass", st);
        return;
    }
    struct codegen_options cg = {.threads = 1};
    st = plan_build(g, &cg, &p);
    if (st != ST_OK) {
        settle_status(r, "planning", st);
        return;
    }
    struct pool *pool = pool_create(&r->ctx, 1);
    run_plan(r, g, p, pool);
    pool_destroy(pool);
    plan_destroy(p);
}

static void run_model(struct run *r) {
    enum status st = onnx_load(&r->ctx, arena_printf(&r->arena, "%s/model.onnx", r->dir), &r->m);
    if (st != ST_OK) {
        settle_status(r, "loading", st);
        return;
    }
    const Onnx__GraphProto *g = r->m->proto->graph;
    if (g->n_node) snprintf(r->out.op, sizeof r->out.op, "%s", g->node[0]->op_type);
    if (!read_inputs(r)) return;
    st = import(r);
    if (st == ST_OK)
        run_graph(r, r->r.graph);
    else
        settle_status(r, "import", st);
}

/* The expected masks come from one library's random numbers, which ONNX does not prescribe. */
static bool is_random(const char *name) {
    static const char *const tests[] = {"test_training_dropout",
                                        "test_training_dropout_default",
                                        "test_training_dropout_mask",
                                        "test_training_dropout_default_mask",
                                        "test_bernoulli",
                                        "test_bernoulli_double",
                                        "test_bernoulli_seed"};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(sys_basename(name), tests[i]) == 0) return true;
    return false;
}

static struct outcome run_test(const char *dir) {
    static struct run r;
    memset(&r, 0, sizeof r);
    r.dir = dir;
    ctx_init(&r.ctx);
    r.ctx.report = report;
    r.ctx.report_user = &r;
    r.ctx.landing = &r.landing;
    arena_init(&r.arena, &r.ctx);
    if (setjmp(r.landing) == 0) {
        run_model(&r);
        if (is_random(dir)) settle(&r, UNSUPPORTED, "expects the random numbers of one library");
    } else
        settle(&r, FAIL, "unwound (%d): %s", (int)r.ctx.unwound, r.first);
    return r.out; /* the process ends; the system takes the memory */
}

/* The test in a process of its own. */
static struct outcome run_apart(const char *dir) {
    struct outcome o = {.verdict = FAIL, .why = "could not be started"};
    int ends[2], status = 0;
    if (pipe(ends) != 0) return o;
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        alarm(SECONDS_MAX);
        struct outcome mine = run_test(dir);
        ssize_t n = write(ends[1], &mine, sizeof mine);
        _exit(n == (ssize_t)sizeof mine ? 0 : 1);
    }
    close(ends[1]);
    ssize_t n = child > 0 ? read(ends[0], &o, sizeof o) : 0;
    close(ends[0]);
    if (child > 0) waitpid(child, &status, 0);
    if (n == (ssize_t)sizeof o) return o;
    memset(&o, 0, sizeof o);
    o.verdict = FAIL;
    snprintf(o.why, sizeof o.why, WIFSIGNALED(status) ? "crashed: %s" : "ended without a result",
             strsignal(WIFSIGNALED(status) ? WTERMSIG(status) : 0));
    return o;
}

/* ---- tables -------------------------------------------------------------------------------- */
static const char *const words[] = {"PASS", "FAIL", "UNSUPPORTED"};

/* The op that a test is about: "..._expanded..." tests write the op of the same name out. */
static const char *family_of(struct arena *a, struct test *list, uint32_t n, const struct test *t) {
    const char *cut = strstr(t->name, "_expanded");
    if (!cut) return t->out.op;
    const char *base = arena_strndup(a, t->name, (size_t)(cut - t->name));
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].name, base) == 0) return list[i].out.op;
    return t->out.op;
}

static int by_family(const void *a, const void *b) {
    const struct test *x = *(const struct test *const *)a, *y = *(const struct test *const *)b;
    int c = strcmp(x->family, y->family);
    return c ? c : strcmp(x->name, y->name);
}

/* Reasons of what is refused or fails in rows [from, to), each once with its count. */
static void write_reasons(FILE *f, struct test **t, uint32_t from, uint32_t to) {
    const char *sep = "";
    for (uint32_t i = from; i < to; i++) {
        uint32_t same = 0;
        bool seen = t[i]->out.verdict == PASS;
        for (uint32_t k = from; k < to; k++) {
            bool equal =
                t[k]->out.verdict == t[i]->out.verdict && strcmp(t[k]->out.why, t[i]->out.why) == 0;
            same += equal;
            seen |= equal && k < i;
        }
        if (seen) continue;
        fprintf(f, "%s%s", sep, t[i]->out.verdict == FAIL ? "**fails** " : "");
        const char *stop = strstr(t[i]->out.why, " (1 node)");
        for (const char *c = t[i]->out.why; *c && c != stop; c++)
            fputs(*c == '|' ? "\\|" : (char[]){*c, 0}, f);
        if (same > 1) fprintf(f, " (%u)", (unsigned)same);
        sep = "; ";
    }
}

static void write_table(FILE *f, struct test **t, uint32_t n, bool reasons) {
    uint32_t all[3] = {0};
    if (reasons)
        fputs("| op | pass | refused | fail | refused because |\n|---|---:|---:|---:|---|\n", f);
    else
        fprintf(f, "%-28s %5s %7s %5s\n", "op", "pass", "refused", "fail");
    for (uint32_t i = 0, k; i < n; i = k) {
        uint32_t c[3] = {0};
        for (k = i; k < n && strcmp(t[k]->family, t[i]->family) == 0; k++) c[t[k]->out.verdict]++;
        for (int v = 0; v < 3; v++) all[v] += c[v];
        fprintf(f, reasons ? "| %s | %u | %u | %u | " : "%-28s %5u %7u %5u", t[i]->family,
                (unsigned)c[PASS], (unsigned)c[UNSUPPORTED], (unsigned)c[FAIL]);
        if (reasons) write_reasons(f, t, i, k);
        fputs(reasons ? " |\n" : "\n", f);
    }
    fprintf(f,
            reasons ? "| **all** | **%u** | **%u** | **%u** | |\n"
                    : "all: %u pass, %u refused, %u fail\n",
            (unsigned)all[PASS], (unsigned)all[UNSUPPORTED], (unsigned)all[FAIL]);
}

static bool write_list(const char *path, struct test **t, uint32_t n) {
    FILE *f = fopen(path, "w");
    if (!f) {
        fprintf(stderr, "conformance: cannot write %s\n", path);
        return false;
    }
    fputs(
        "# ONNX node tests\n\n"
        "What Lathe makes of the node tests of the ONNX project, on the CPU, for inference. Every\n"
        "test is imported, optimised, planned and run, and its outputs compared: same count,\n"
        "element types and shapes, and values within 1e-7 + 1e-3 * |expected| (f64 1e-7 + 1e-6,\n"
        "f16 1e-5 + 2e-3, bf16 1e-4 + 1.6e-2, integers equal). *Refused* means one clear "
        "diagnostic\n"
        "instead of a result. Shapes, axes and counts that the tests give as inputs are bound as\n"
        "constants (`import_options.constant`) where compilation needs them.\n"
        "`_expanded` tests count with the op that they write out. Written by\n"
        "`tests/conformance/run.sh ARCHIVE --list docs/conformance.md`.\n\n",
        f);
    write_table(f, t, n, true);
    return fclose(f) == 0;
}

/* Tests listed in `path` must pass. Returns how many do not; counts those that pass unlisted. */
static int check_expected(struct arena *a, const char *path, struct test *list, uint32_t n) {
    FILE *f = fopen(path, "r");
    bool *listed = ARENA_ARRAY(a, bool, n);
    char line[256];
    int lost = 0, fresh = 0;
    if (!f) {
        fprintf(stderr, "conformance: cannot read %s\n", path);
        return 1;
    }
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == 0 || line[0] == '#') continue;
        uint32_t i = 0;
        while (i < n && strcmp(list[i].name, line) != 0) i++;
        if (i < n) listed[i] = true;
        if (i < n && list[i].out.verdict == PASS) continue;
        lost++;
        printf("LOST %s: expected to pass, %s %s\n", line,
               i < n ? words[list[i].out.verdict] : "is not there", i < n ? list[i].out.why : "");
    }
    fclose(f);
    for (uint32_t i = 0; i < n; i++) {
        if (list[i].out.verdict != PASS || listed[i]) continue;
        fresh++;
        printf("NEW %s passes and is not in %s\n", list[i].name, path);
    }
    if (fresh) printf("%d new passes; add them to %s\n", fresh, path);
    return lost;
}

struct arguments {
    const char *dir, *list, *expect, *only;
    bool quiet;
};

static bool parse(int argc, char **argv, struct arguments *a) {
    for (int i = 1; i < argc; i++) {
        const char **value = strcmp(argv[i], "--list") == 0     ? &a->list
                             : strcmp(argv[i], "--expect") == 0 ? &a->expect
                             : strcmp(argv[i], "--only") == 0   ? &a->only
                                                                : NULL;
        if (value && i + 1 < argc)
            *value = argv[++i];
        else if (strcmp(argv[i], "--quiet") == 0)
            a->quiet = true;
        else if (argv[i][0] != '-' && !a->dir)
            a->dir = argv[i];
        else
            return false;
    }
    return a->dir != NULL;
}

static int run_all(struct arena *a, const struct arguments *o) {
    const char **names;
    uint32_t count, n = 0, c[3] = {0};
    if (sys_list_dir(a, o->dir, &names, &count) != ST_OK) {
        fprintf(stderr, "conformance: cannot list %s\n", o->dir);
        return 2;
    }
    struct test *list = ARENA_ARRAY(a, struct test, count);
    struct test **sorted = ARENA_ARRAY(a, struct test *, count);
    for (uint32_t i = 0; i < count; i++) {
        const char *dir = arena_printf(a, "%s/%s", o->dir, names[i]);
        if (strncmp(names[i], "test_", 5) != 0 || (o->only && !strstr(names[i], o->only))) continue;
        struct test *t = &list[n];
        sorted[n++] = t;
        t->name = names[i];
        t->out = run_apart(dir);
        c[t->out.verdict]++;
        if (!o->quiet || t->out.verdict == FAIL)
            printf("%s %s%s%s%s\n", words[t->out.verdict], t->name, t->out.why[0] ? ": " : "",
                   t->out.why, t->out.bound && t->out.verdict == PASS ? " (bound)" : "");
        fflush(stdout);
    }
    for (uint32_t i = 0; i < n; i++) list[i].family = family_of(a, list, n, &list[i]);
    if (n) qsort(sorted, n, sizeof *sorted, by_family);
    if (!o->quiet) write_table(stdout, sorted, n, false);
    int lost = o->expect ? check_expected(a, o->expect, list, n) : 0;
    if (o->list && !write_list(o->list, sorted, n)) return 2;
    printf("conformance: %u passed, %u failed, %u refused\n", (unsigned)c[PASS],
           (unsigned)c[FAIL] + (unsigned)lost, (unsigned)c[UNSUPPORTED]);
    return c[FAIL] || lost || n == 0 ? 1 : 0;
}

int main(int argc, char **argv) {
    struct arguments o = {0};
    struct ctx ctx;
    struct arena a;
    jmp_buf landing;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: conformance DIR [--list FILE] [--expect FILE] [--only TEXT] [--quiet]\n");
        return 2;
    }
    ctx_init(&ctx);
    ctx.landing = &landing;
    if (setjmp(landing)) {
        fprintf(stderr, "conformance: out of memory\n");
        return 2;
    }
    arena_init(&a, &ctx);
    int rc = run_all(&a, &o);
    arena_reset(&a);
    return rc;
}
