// SPDX-License-Identifier: Apache-2.0
/* gpu_test.c - the CUDA backend on a GPU: every op case forward and backward against the CPU
 * backend, larger and odd sizes, index errors, bit-identical repetition, and models against their
 * reference losses, in f32 and bf16, in the memory that was planned. Work is done by a child
 * process: what crashes or hangs costs one failure, not the rest.
 *
 * usage: gpu_test [--cache DIR] [--device N] [--only TEXT] [--no-cases] [--jobs N] DIR...
 * DIR holds NAME.STYLE.onnx, NAME.data.npz and NAME.ref.npz, as for tests/model. */
#include <check.h> /* its names only: the header below expects them */
#undef ck_assert_msg
#undef ck_assert_int_eq
#undef ck_assert_ptr_ne
#define ck_assert_msg(cond, ...)                                                                   \
    do {                                                                                           \
        if (!(cond)) give_up(__VA_ARGS__);                                                         \
    } while (0)
#define ck_assert_int_eq(a, b) ck_assert_msg((a) == (b), "%s", #a " == " #b)
#define ck_assert_ptr_ne(a, b) ck_assert_msg((a) != (b), "%s", #a " != " #b)
static void give_up(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#include "base/sys.h"
#include "codegen/codegen.h"
#include "driver/session.h"
#include "gpu_cases.h"
#include "gpu_products.h"
#include "gpu_steps.h"
#include "label_graph.h"
#include "op_cases.h"
#include "passes/pass.h"
#include "runtime/cuda.h"
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 20, SECONDS_EACH = 180, FILES_MAX = 512, RUNS = 3, JOBS_MAX = 16 };

/* Shared by the parent and one worker: what it does next and how it went. */
struct progress {
    int next, step, end; /* items next, next + step, .. below end */
    int passed, failed, skipped;
    unsigned compiled, cached;
    pid_t pid;
    char name[256];
};
static struct progress *now; /* in a worker: its own */

/* What one process works with. */
struct bench {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    struct cuda *gpu;
    int arch;
    char log[4096];
};

static void give_up(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("    ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    fflush(stdout);
    _exit(4);
}

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    struct bench *b = user;
    size_t n = strlen(b->log);
    (void)code;
    if (sev == SEV_ERROR) snprintf(b->log + n, sizeof b->log - n, "%s: %s\n", origin, message);
}

static const char *kernel_source(void *user, const char *file, size_t *size) {
    (void)user;
    for (int i = 0; kernel_file_at(i); i++) {
        if (strcmp(kernel_file_at(i)->name, file) != 0) continue;
        *size = kernel_file_at(i)->size;
        return kernel_file_at(i)->text;
    }
    return NULL;
}

/* ---- op cases ----------------------------------------------------------------------------------
 */
enum {
    LARGE = sizeof large / sizeof large[0],
    WRONG = sizeof wrong / sizeof wrong[0],
    KINDS = 3, /* f32; f32, one node at a time; f64 */
    PLAIN_ITEMS = (CASES + LARGE) * KINDS + WRONG,
    CASE_ITEMS = PLAIN_ITEMS + PRODUCT_ITEMS + STEP_ITEMS + LABEL_ITEMS,
    RECIPES = 2 /* each model without one and in bf16 */
};

/* Outputs of all runs, one after the other. */
struct results {
    char *at;
    size_t bytes;
};
static struct results no_results(struct bench *b, const struct plan *p) {
    struct results r = {NULL, 0};
    for (uint32_t i = 1; i < p->buffers.n; i++)
        if (p->buffers.at[i].kind == BUF_OUTPUT) r.bytes += (size_t)p->buffers.at[i].bytes;
    r.at = arena_alloc(&b->arena, r.bytes);
    return r;
}

static bool failed(struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool failed(struct bench *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("  FAILED %s: ", now->name);
    vprintf(fmt, ap);
    printf("%s%s", *b->log ? ": " : "\n", b->log);
    va_end(ap);
    return false;
}

static void collect_cpu(struct cpu_exec *x, const struct plan *p, struct results *r) {
    char *to = r->at;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_OUTPUT || !k->bytes) continue;
        memcpy(to, cpu_buffer_at(x, (buf_id){i}), (size_t)k->bytes);
        to += k->bytes;
    }
}

static enum status run_cpu(struct bench *b, const struct plan *p, struct results *r) {
    struct pool *pool = pool_create(&b->ctx, 2);
    struct cpu_exec *x = NULL;
    enum status st = cpu_create(&b->ctx, p, pool, &x);
    if (st == ST_OK) st = cpu_run(x, 0, p->launches.n, false);
    *r = no_results(b, p);
    if (st == ST_OK) collect_cpu(x, p, r);
    cpu_destroy(x);
    pool_destroy(pool);
    return st;
}

/* Alone, recorded, replayed; `same` tells whether all gave the same bits. */
static enum status run_gpu(struct bench *b, const struct plan *p, struct results *r, bool *same) {
    struct cuda_exec *x = NULL;
    enum status st = cuda_create(b->gpu, p, kernel_source, NULL, &x);
    *same = true;
    *r = no_results(b, p);
    for (int run = 0; run < RUNS && st == ST_OK; run++) {
        struct results one = no_results(b, p);
        char *to = one.at;
        st = cuda_run(x, 0, p->launches.n, run == RUNS - 1);
        for (uint32_t i = 1; i < p->buffers.n && st == ST_OK; i++) {
            const struct plan_buffer *k = &p->buffers.at[i];
            if (k->kind != BUF_OUTPUT || !k->bytes) continue;
            memcpy(to, cuda_host_buffer_at(x, (buf_id){i}), (size_t)k->bytes);
            to += k->bytes;
        }
        if (run) *same = *same && memcmp(one.at, r->at, r->bytes) == 0;
        memcpy(r->at, one.at, r->bytes);
    }
    cuda_destroy(x);
    return st;
}

static bool same_values(struct bench *b, const struct plan *p, const struct results *want,
                        const struct results *got, double tolerance) {
    const char *w = want->at, *g = got->at;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_OUTPUT) continue;
        size_t elem = dtype_size(k->type.dtype);
        bool exact = !dtype_is_float(k->type.dtype);
        double scale = 0.1;
        for (int64_t at = 0; at < k->bytes; at += (int64_t)elem)
            scale = fmax(scale, fabs(dtype_load(k->type.dtype, w + at)));
        for (int64_t at = 0; at < k->bytes; at += (int64_t)elem) {
            double x = dtype_load(k->type.dtype, w + at), y = dtype_load(k->type.dtype, g + at);
            if (exact ? memcmp(w + at, g + at, elem) == 0 : fabs(x - y) <= tolerance * scale)
                continue;
            if (x == y || (x != x && y != y)) continue;
            return failed(b, "%s[%lld] is %.9g, %.9g on the CPU", interned(&p->strings, k->name),
                          (long long)(at / (int64_t)elem), y, x);
        }
        w += k->bytes, g += k->bytes;
    }
    return true;
}

static enum status make_plan(struct bench *b, const struct op_case *k, enum dtype real,
                             const struct codegen_options *o, struct graph **g, struct plan **p) {
    struct arena scratch;
    arena_init(&scratch, &b->ctx);
    struct pass_ctx c = {.ctx = &b->ctx, .scratch = &scratch};
    *g = case_graph(&b->ctx, k, real);
    enum status st = pass_grad(&c, *g);
    arena_reset(&scratch);
    if (st == ST_OK) st = plan_build(*g, o, p);
    if (st == ST_OK) st = plan_verify(*p, "gpu_test");
    return st;
}

enum verdict { PASS, FAIL, SKIP };
/* CUDA may refuse f64 with ST_UNSUPPORTED; nothing else is excused. */
static enum verdict compare_case(struct bench *b, const struct op_case *k, enum dtype real,
                                 bool no_fusion, bool bad, double tolerance) {
    struct codegen_options cpu = {.threads = 2, .no_fusion = no_fusion}, gpu = cpu;
    gpu.cuda_arch = b->arch;
    struct graph *g1 = NULL, *g2 = NULL;
    struct plan *p1 = NULL, *p2 = NULL;
    struct results want, got;
    bool same = true, ok = true;
    enum verdict v = PASS;
    enum status s1 = make_plan(b, k, real, &cpu, &g1, &p1);
    if (s1 == ST_OK) s1 = run_cpu(b, p1, &want);
    const char *words = arena_strdup(&b->arena, b->log);
    b->log[0] = '\0';
    enum status s2 = make_plan(b, k, real, &gpu, &g2, &p2);
    if (s2 == ST_OK) s2 = run_gpu(b, p2, &got, &same);
    if (bad) ok = s1 == ST_DATA && s2 == ST_DATA && strcmp(words, b->log) == 0;
    if (bad && !ok)
        failed(b, "expected \"%s\" on both, found status %d and %d", words, (int)s1, (int)s2);
    else if (!bad && s2 == ST_UNSUPPORTED && real == DT_f64)
        v = SKIP;
    else if (!bad && (s1 != ST_OK || s2 != ST_OK))
        ok = failed(b, "status %d on the CPU, %d on the GPU", (int)s1, (int)s2);
    else if (!bad && !same)
        ok = failed(b, "another run gave other bits");
    else if (!bad)
        ok = same_values(b, p2, &want, &got, tolerance);
    plan_destroy(p1);
    plan_destroy(p2);
    graph_destroy(g1);
    graph_destroy(g2);
    if (s2 == ST_IO) give_up("the GPU failed; going on in a new process");
    return v == SKIP ? SKIP : ok ? PASS : FAIL;
}

/* Both round a sum of f32 once, in different orders: a unit of bf16 apart at most. */
static enum verdict run_product_item(struct bench *b, int item) {
    struct codegen_options cpu = {.threads = 2}, gpu = {.threads = 2, .cuda_arch = b->arch};
    struct graph *g = product_graph(&b->ctx, item);
    struct plan *p1 = NULL, *p2 = NULL;
    struct results want, got;
    bool same = true;
    const int64_t *z = product_sizes[item / PRODUCT_FORMS];
    snprintf(now->name, sizeof now->name, "%s %dx%dx%d", product_names[item % PRODUCT_FORMS],
             (int)z[0], (int)z[1], (int)z[2]);
    bool ok = plan_build(g, &cpu, &p1) == ST_OK && run_cpu(b, p1, &want) == ST_OK &&
              plan_build(g, &gpu, &p2) == ST_OK && run_gpu(b, p2, &got, &same) == ST_OK;
    if (!ok) failed(b, "does not run");
    if (ok && !same) ok = failed(b, "another run gave other bits");
    bool low = p1 && p1->buffers.at[plan_find(p1, BUF_OUTPUT, "y").i].type.dtype == DT_bf16;
    ok = ok && same_values(b, p2, &want, &got, low ? 0x1p-7 : 1e-5);
    plan_destroy(p1);
    plan_destroy(p2);
    graph_destroy(g);
    return ok ? PASS : FAIL;
}

static enum verdict run_step_item(struct bench *b, int item) {
    struct codegen_options cpu = {.threads = 2}, gpu = {.threads = 2, .cuda_arch = b->arch};
    struct graph *g = step_item_graph(&b->ctx, item);
    struct plan *p1 = NULL, *p2 = NULL;
    struct results want, got;
    bool same = true, ok;
    snprintf(now->name, sizeof now->name, "%s %d", step_item_name(item), item);
    enum status st = plan_build(g, &cpu, &p1);
    if (st == ST_OK) st = run_cpu(b, p1, &want);
    if (st == ST_OK) st = plan_build(g, &gpu, &p2);
    if (st == ST_OK) st = run_gpu(b, p2, &got, &same);
    if (st != ST_OK)
        ok = failed(b, "status %d", (int)st);
    else if (!same)
        ok = failed(b, "another run gave other bits");
    else
        ok = same_values(b, p2, &want, &got, step_tolerance(item));
    plan_destroy(p1);
    plan_destroy(p2);
    graph_destroy(g);
    return ok ? PASS : FAIL;
}

/* Losses of 16-bit logits are f32 on both. A wrong label: the same words on both. */
static enum verdict run_label_item(struct bench *b, int item) {
    struct codegen_options cpu = {.threads = 2}, gpu = {.threads = 2, .cuda_arch = b->arch};
    struct graph *g = label_graph(&b->ctx, item);
    struct plan *p1 = NULL, *p2 = NULL;
    struct results want, got;
    bool same = true, ok, wrong_label = label_wrong(item);
    snprintf(now->name, sizeof now->name, "%s, %lld classes, %s%s", interned(&g->strings, g->name),
             (long long)label_classes[item % LABEL_CLASSES], dtype_name(label_type(item)),
             wrong_label ? ", a wrong label" : "");
    enum status s1 = plan_build(g, &cpu, &p1), s2;
    if (s1 == ST_OK) s1 = run_cpu(b, p1, &want);
    const char *words = arena_strdup(&b->arena, b->log);
    b->log[0] = '\0';
    s2 = plan_build(g, &gpu, &p2);
    if (s2 == ST_OK) s2 = run_gpu(b, p2, &got, &same);
    if (wrong_label)
        ok = (s1 == ST_DATA && s2 == ST_DATA && strcmp(words, b->log) == 0 &&
              strstr(words, "at position 5;")) ||
             failed(b, "expected \"%s\" on both, found status %d and %d", words, (int)s1, (int)s2);
    else if (s1 != ST_OK || s2 != ST_OK)
        ok = failed(b, "status %d on the CPU, %d on the GPU", (int)s1, (int)s2);
    else if (!same)
        ok = failed(b, "another run gave other bits");
    else
        ok = same_values(b, p2, &want, &got, label_kind(item) == 1 ? 0 : 2e-6);
    plan_destroy(p1);
    plan_destroy(p2);
    graph_destroy(g);
    return ok ? PASS : FAIL;
}

static enum verdict run_case_item(struct bench *b, int item) {
    if (item >= PLAIN_ITEMS + PRODUCT_ITEMS + STEP_ITEMS)
        return run_label_item(b, item - PLAIN_ITEMS - PRODUCT_ITEMS - STEP_ITEMS);
    if (item >= PLAIN_ITEMS + PRODUCT_ITEMS)
        return run_step_item(b, item - PLAIN_ITEMS - PRODUCT_ITEMS);
    if (item >= PLAIN_ITEMS) return run_product_item(b, item - PLAIN_ITEMS);
    static const char *const words[KINDS] = {"f32", "f32 unfused", "f64"};
    bool bad = item >= (CASES + LARGE) * KINDS;
    int kind = bad ? 0 : item % KINDS;
    int which = bad ? item - (CASES + LARGE) * KINDS : item / KINDS;
    const struct op_case *k = bad             ? &wrong[which]
                              : which < CASES ? &cases[which]
                                              : &large[which - CASES];
    snprintf(now->name, sizeof now->name, "%.200s in %s", case_name(&b->arena, k), words[kind]);
    double tolerance = kind == 2 ? 1e-6 : which < CASES ? 2e-5 : 1e-4; /* of the largest element */
    return compare_case(b, k, kind == 2 ? DT_f64 : DT_f32, kind == 1, bad, tolerance);
}

/* ---- models ------------------------------------------------------------------------------------
 */
static char *files[FILES_MAX];
static int nfiles;

struct model_run {
    lathe_context *context;
    lathe_model *model;
    lathe_trainer *trainer;
    struct arrays data, ref;
    double want[STEPS], got[STEPS];
};

static void model_report(void *user, lathe_severity sev, lathe_status status, const char *origin,
                         const char *message) {
    if (sev == LATHE_ERROR) report(user, SEV_ERROR, (enum status)status, origin, message);
}

static bool model_open(struct bench *b, const char *path, const char *stem, const char *recipe,
                       struct model_run *m) {
    lathe_context_options co = LATHE_CONTEXT_OPTIONS_INIT;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    lathe_train_options to = LATHE_TRAIN_OPTIONS_INIT;
    const char *data = arena_printf(&b->arena, "%s.data.npz", stem);
    const char *ref = arena_printf(&b->arena, "%s.ref.npz", stem);
    if (arrays_read(&b->arena, data, &m->data) != ST_OK ||
        arrays_read(&b->arena, ref, &m->ref) != ST_OK)
        return false;
    co.report = model_report;
    co.report_user = b;
    co.threads = 2;
    mo.data = data;
    to.loss = "cross_entropy(logits, labels)";
    to.recipe = recipe;
    to.beta1 = 0.9, to.beta2 = 0.95, to.eps = 1e-8, to.weight_decay = 0.1;
    if (lathe_context_create(&co, &m->context) != LATHE_OK) return false;
    if (lathe_model_open(m->context, path, &mo, &m->model) != LATHE_OK) return false;
    if (lathe_trainer_create(m->model, &to, &m->trainer) != LATHE_OK) return false;
    const struct array *a = arrays_find(&m->ref, "adamw_losses");
    for (int i = 0; i < STEPS; i++)
        m->want[i] = a && type_count(&a->type) >= STEPS
                         ? dtype_load(a->type.dtype,
                                      (const char *)a->at + (size_t)i * dtype_size(a->type.dtype))
                         : NAN;
    return true;
}

/* Whole arrays are the batch; the learning rate has its default. */
static bool model_feed(struct bench *b, struct model_run *m, const struct plan *p,
                       struct cuda_exec *x) {
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        if (k->kind != BUF_INPUT) continue;
        const char *name = interned(&p->strings, k->name);
        char *to = cuda_host_buffer_at(x, (buf_id){i});
        enum dtype want = k->type.dtype;
        const struct array *a = arrays_find(&m->data, name);
        if (strcmp(interned(&p->strings, k->role), "lr") == 0) {
            lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
            dtype_store(want, to, o.lr);
        } else if (a && type_count(&a->type) == type_count(&k->type)) {
            for (int64_t e = 0; e < type_count(&k->type); e++) {
                const char *from = (const char *)a->at + (size_t)e * dtype_size(a->type.dtype);
                char *at = to + (size_t)e * dtype_size(want);
                if (dtype_is_float(want))
                    dtype_store(want, at, dtype_load(a->type.dtype, from));
                else
                    dtype_store_int(want, at, dtype_load_int(a->type.dtype, from));
            }
        } else if (strcmp(interned(&p->strings, k->role), "seed") != 0) {
            return failed(b, "no data for input %s", name);
        }
    }
    return true;
}

/* `steps` steps in two ranges, as the trainer does. */
static bool model_train(struct bench *b, struct model_run *m, const struct plan *p, int steps,
                        double *losses, double *seconds) {
    struct cuda_exec *x = NULL;
    if (cuda_create(b->gpu, p, kernel_source, NULL, &x) != ST_OK) return failed(b, "not created");
    bool ok = model_feed(b, m, p, x);
    if (cuda_bytes(x) != (size_t)plan_bytes(p))
        ok =
            failed(b, "holds %zu bytes, %lld are planned", cuda_bytes(x), (long long)plan_bytes(p));
    const void *loss = cuda_host_buffer(x, BUF_OUTPUT, "loss");
    buf_id id = plan_find(p, BUF_OUTPUT, "loss");
    double start = 0;
    for (int i = 0; i < steps && ok; i++) {
        if (i == 2) start = sys_seconds(); /* from here on graphs are replayed */
        ok = cuda_run(x, 0, p->first_update, false) == ST_OK;
        if (ok) losses[i] = dtype_load(p->buffers.at[id.i].type.dtype, loss);
        ok = ok && cuda_run(x, p->first_update, p->launches.n, false) == ST_OK;
        if (!ok) failed(b, "step %d", i + 1);
    }
    *seconds = steps > 2 ? (sys_seconds() - start) / (steps - 2) : 0;
    cuda_destroy(x);
    return ok;
}

static bool model_check(struct bench *b, struct model_run *m, double tolerance, bool folded) {
    struct codegen_options o = {.threads = 2, .cuda_arch = b->arch};
    struct plan *p = NULL;
    double again[STEPS], seconds = 0, unused, worst = 0;
    struct graph *g = graph_clone(m->trainer->graph);
    bool ok = plan_build(g, &o, &p) == ST_OK || failed(b, "no plan");
    ok = ok && (plan_verify(p, "gpu_test") == ST_OK || failed(b, "the plan is wrong"));
    ok = ok && model_train(b, m, p, STEPS, m->got, &seconds);
    ok = ok && model_train(b, m, p, 5, again, &unused);
    if (ok && memcmp(again, m->got, 5 * sizeof again[0]) != 0)
        ok = failed(b, "another run gave other losses");
    for (int i = 0; i < STEPS && ok; i++) {
        double e = fabs(m->got[i] - m->want[i]) / fmax(fabs(m->want[i]), 1e-30);
        if (!(e <= worst)) worst = e;
    }
    if (ok && folded) /* exported for inference: learns, but differently */
        ok = m->got[STEPS - 1] < m->got[0] || failed(b, "the loss does not fall");
    else if (ok)
        ok = worst <= tolerance || failed(b, "losses differ by %.1e from the reference", worst);
    if (ok)
        printf("  %-28s losses %.1e, %.3f ms a step, %u launches, %u kernels\n", now->name, worst,
               seconds * 1e3, p->launches.n, p->kernels.n);
    plan_destroy(p);
    graph_destroy(g);
    return ok;
}

static enum verdict run_model_item(struct bench *b, const char *path, bool low) {
    const char *file = sys_basename(path);
    const char *stem = arena_printf(&b->arena, "%s/%.*s", sys_dirname(&b->arena, path),
                                    (int)strcspn(file, "."), file);
    snprintf(now->name, sizeof now->name, "%.*s%s", (int)(strlen(file) - 5), file,
             low ? " bf16" : "");
    if (!sys_exists(arena_printf(&b->arena, "%s.data.npz", stem)) ||
        !sys_exists(arena_printf(&b->arena, "%s.ref.npz", stem)))
        return SKIP;
    struct model_run m = {0};
    bool folded = strstr(file, "resnet") && strstr(file, ".dynamo18");
    bool ok = model_open(b, path, stem, low ? "bf16" : NULL, &m) || failed(b, "not opened");
    ok = ok && model_check(b, &m, low ? 2e-2 : 1e-4, folded);
    lathe_trainer_destroy(m.trainer);
    lathe_model_destroy(m.model);
    lathe_context_destroy(m.context);
    return ok ? PASS : FAIL;
}

/* ---- parent and child --------------------------------------------------------------------------
 */
struct options {
    struct cuda_options cuda;
    const char *only;
    bool no_cases;
    int jobs;
};

static void bench_open(struct bench *b, const struct options *o) {
    memset(b, 0, sizeof *b);
    ctx_init(&b->ctx);
    b->ctx.report = report;
    b->ctx.report_user = b;
    b->ctx.landing = &b->landing;
    arena_init(&b->arena, &b->ctx);
    if (cuda_open(&b->ctx, &o->cuda, &b->gpu) != ST_OK) give_up("%s", b->log);
    struct cuda_info i = cuda_get_info(b->gpu);
    b->arch = cuda_plan_arch(b->gpu);
    if (now->next == 0)
        printf("%s, sm_%d, %d processors, %.1f of %.1f GiB free, driver %d, NVRTC %d\n", i.name,
               i.arch, i.processors, (double)i.memory_free / 0x1p30,
               (double)i.memory_total / 0x1p30, i.driver_version, i.nvrtc_version);
}

static bool wanted(struct bench *b, const struct options *o, int item) {
    if (!o->only) return true;
    const char *name = item >= CASE_ITEMS ? files[(item - CASE_ITEMS) / RECIPES] : "";
    if (item < (CASES + LARGE) * KINDS) {
        int k = item / KINDS;
        name = case_name(&b->arena, k < CASES ? &cases[k] : &large[k - CASES]);
    }
    return strstr(name, o->only) != NULL;
}

static void worker(const struct options *o) {
    struct bench b;
    bench_open(&b, o);
    if (setjmp(b.landing)) give_up("unwound: %s", b.log);
    for (; now->next < now->end; now->next += now->step) {
        int item = now->next;
        struct arena_mark mark = arena_mark(&b.arena);
        if (!wanted(&b, o, item)) continue;
        alarm(SECONDS_EACH);
        b.log[0] = '\0';
        int model = item - CASE_ITEMS;
        enum verdict v = model < 0 ? run_case_item(&b, item)
                                   : run_model_item(&b, files[model / RECIPES], model % RECIPES);
        now->passed += v == PASS;
        now->failed += v == FAIL;
        now->skipped += v == SKIP;
        arena_rewind(&b.arena, mark);
        fflush(stdout);
    }
    alarm(0);
    struct cuda_kernel_stats s = cuda_get_kernel_stats(b.gpu);
    now->compiled += s.compiled;
    now->cached += s.cached;
    cuda_close(b.gpu);
    arena_reset(&b.arena);
    if (b.ctx.bytes_in_use) give_up("%zu bytes are not freed", b.ctx.bytes_in_use);
    fflush(stdout);
    _exit(0);
}

static void start_worker(const struct options *o, struct progress *p) {
    fflush(stdout);
    p->name[0] = '\0';
    pid_t pid = fork();
    if (pid == 0) {
        now = p;
        worker(o);
    }
    p->pid = pid; /* shared: not for the worker to write */
}

/* A worker ended; true when another one takes over where it stopped. */
static bool ended(struct progress *p, int how) {
    if (how == 0) return false;
    p->failed++;
    printf("  FAILED %s: the process ended with %s %d\n", p->name,
           WIFSIGNALED(how) ? "signal" : "status",
           WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    p->next += p->step;
    return p->name[0] && p->next < p->end; /* without a name there is no GPU */
}

/* Items [first, end) by `jobs` workers; adds up in *sum. */
static void run_items(const struct options *o, struct progress *p, int first, int end, int jobs,
                      struct progress *sum) {
    int running = 0;
    for (int j = 0; j < jobs && first + j < end; j++, running++) {
        p[j] = (struct progress){.next = first + j, .step = jobs, .end = end};
        start_worker(o, &p[j]);
    }
    while (running > 0) {
        int how = 0;
        pid_t pid = wait(&how);
        if (pid < 0) return;
        for (int j = 0; j < jobs; j++) {
            if (p[j].pid != pid) continue;
            if (ended(&p[j], how)) {
                start_worker(o, &p[j]);
                continue;
            }
            p[j].pid = 0;
            running--;
            sum->passed += p[j].passed, sum->failed += p[j].failed, sum->skipped += p[j].skipped;
            sum->compiled += p[j].compiled, sum->cached += p[j].cached;
        }
    }
}

static void list_dir(struct arena *a, const char *dir) {
    const char **names;
    uint32_t n;
    if (!sys_is_dir(dir) || sys_list_dir(a, dir, &names, &n) != ST_OK) {
        printf("%s: no such directory, skipped\n", dir);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]);
        if (len > 5 && strcmp(names[i] + len - 5, ".onnx") == 0 && nfiles < FILES_MAX)
            files[nfiles++] = arena_printf(a, "%s/%s", dir, names[i]);
    }
}

int main(int argc, char **argv) {
    struct options o = {.jobs = 4};
    struct ctx c;
    struct arena a;
    jmp_buf landing;
    ctx_init(&c);
    c.landing = &landing;
    if (setjmp(landing)) return 1;
    arena_init(&a, &c);
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--cache") == 0 && more)
            o.cuda.cache_dir = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && more)
            o.cuda.device = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--jobs") == 0 && more)
            o.jobs = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--only") == 0 && more)
            o.only = argv[++i];
        else if (strcmp(argv[i], "--no-cases") == 0)
            o.no_cases = true;
        else
            list_dir(&a, argv[i]);
    }
    o.jobs = o.jobs < 1 ? 1 : o.jobs > JOBS_MAX ? JOBS_MAX : o.jobs;
    struct progress *p =
        mmap(NULL, JOBS_MAX * sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct progress sum = {0};
    if (p == MAP_FAILED) return 1;
    if (!o.no_cases) run_items(&o, p, 0, CASE_ITEMS, o.jobs, &sum);
    run_items(&o, p, CASE_ITEMS, CASE_ITEMS + nfiles * RECIPES, 1,
              &sum); /* alone: their steps are timed */
    arena_reset(&a);
    printf("gpu: %u kernels compiled, %u from the cache\n", sum.compiled, sum.cached);
    printf("gpu: %d passed, %d failed", sum.passed, sum.failed);
    if (sum.skipped) printf(", %d skipped", sum.skipped);
    putchar('\n');
    return sum.failed || !sum.passed;
}
