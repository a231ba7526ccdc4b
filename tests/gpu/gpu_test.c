// SPDX-License-Identifier: Apache-2.0
/* gpu_test.c - the CUDA backend on a GPU: every op case forward and backward against the CPU
 * backend, larger and odd sizes, index errors, bit-identical repetition, and models against their
 * reference losses, in f32 and bf16, in the memory that was planned. Work is done by a child
 * process: what crashes or hangs costs one failure, not the rest.
 *
 * usage: gpu_test [--cache DIR] [--device N] [--only TEXT].. [--most N] [--no-cases] [--jobs N]
 * DIR...
 * --only: what has one of these texts in its name; --most: of each of them at most N, spread
 * evenly. DIR holds NAME.STYLE.onnx, NAME.data.npz and NAME.ref.npz, as for tests/model. */
#include "gpu_bench.h"
#include "gpu_cases.h"
#include "gpu_models.h"
#include "gpu_products.h"
#include "gpu_steps.h"
#include "label_graph.h"
#include "op_cases.h"
#include "passes/pass.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { SECONDS_EACH = 180, FILES_MAX = 512, JOBS_MAX = 16, ONLY_MAX = 32 };
static char *files[FILES_MAX];
static int nfiles;

/* ---- op cases ----------------------------------------------------------------------------------
 */
enum {
    LARGE = sizeof large / sizeof large[0],
    WRONG = sizeof wrong / sizeof wrong[0],
    KINDS = 3, /* f32; f32, one node at a time; f64 */
    PLAIN_ITEMS = (CASES + LARGE) * KINDS + WRONG,
    CASE_ITEMS = PLAIN_ITEMS + PRODUCT_ITEMS + STEP_ITEMS + LABEL_ITEMS,
};

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

/* Both round a sum of f32 once, in different orders: a unit of bf16 apart at most. Sums of codes
 * may go through accumulators of 14 bits on the way. */
static enum verdict run_product_item(struct bench *b, int item) {
    struct codegen_options cpu = {.threads = 2}, gpu = {.threads = 2, .cuda_arch = b->arch};
    struct graph *g = product_graph(&b->ctx, item);
    struct plan *p1 = NULL, *p2 = NULL;
    struct results want, got;
    bool same = true;
    bool ok = plan_build(g, &cpu, &p1) == ST_OK && run_cpu(b, p1, &want) == ST_OK &&
              plan_build(g, &gpu, &p2) == ST_OK && run_gpu(b, p2, &got, &same) == ST_OK;
    if (!ok) failed(b, "does not run");
    if (ok && !same) ok = failed(b, "another run gave other bits");
    bool low = p1 && p1->buffers.at[plan_find(p1, BUF_OUTPUT, "y").i].type.dtype == DT_bf16;
    bool codes = item % PRODUCT_FORMS >= PRODUCT_WIDE;
    ok = ok && same_values(b, p2, &want, &got, low ? 0x1p-7 : codes ? 0x1p-6 : 1e-5);
    plan_destroy(p1);
    plan_destroy(p2);
    graph_destroy(g);
    return ok ? PASS : FAIL;
}

static bool same_bits(struct bench *b, const struct plan *p, const struct results *want,
                      const struct results *got, int item) {
    size_t at = 0;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *k = &p->buffers.at[i];
        const char *name = interned(&p->strings, k->name);
        if (k->kind != BUF_OUTPUT) continue;
        for (int64_t j = 0; step_exact(item, name) && j < k->bytes; j++)
            if (want->at[at + (size_t)j] != got->at[at + (size_t)j])
                return failed(b, "%s: byte %lld is %d, %d on the CPU", name, (long long)j,
                              got->at[at + (size_t)j] & 255, want->at[at + (size_t)j] & 255);
        at += (size_t)k->bytes;
    }
    return true;
}

static enum verdict run_step_item(struct bench *b, int item) {
    struct codegen_options cpu = {.threads = 2}, gpu = {.threads = 2, .cuda_arch = b->arch};
    struct graph *g = step_item_graph(&b->ctx, item);
    struct plan *p1 = NULL, *p2 = NULL;
    struct results want, got;
    bool same = true, ok;
    enum status st = plan_build(g, &cpu, &p1);
    if (st == ST_OK) st = run_cpu(b, p1, &want);
    if (st == ST_OK) st = plan_build(g, &gpu, &p2);
    b->unchecked = item >= QUANT_FIRST && quant_makes_nan(item - QUANT_FIRST);
    if (st == ST_OK) st = run_gpu(b, p2, &got, &same);
    b->unchecked = false;
    if (st != ST_OK)
        ok = failed(b, "status %d", (int)st);
    else if (!same)
        ok = failed(b, "another run gave other bits");
    else
        ok = same_bits(b, p2, &want, &got, item) &&
             same_values(b, p2, &want, &got, step_tolerance(item));
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

/* Where `item` belongs. */
struct place {
    enum { PLACE_CASE, PLACE_WRONG, PLACE_PRODUCT, PLACE_STEP, PLACE_LABEL, PLACE_MODEL } kind;
    int at; /* among those of its kind */
};
static struct place place_of(int item) {
    const int counts[] = {(CASES + LARGE) * KINDS, WRONG, PRODUCT_ITEMS, STEP_ITEMS, LABEL_ITEMS};
    struct place p = {PLACE_CASE, item};
    while (p.kind < PLACE_MODEL && p.at >= counts[p.kind]) p.at -= counts[p.kind++];
    return p;
}

static const struct op_case *case_at(int k) {
    return k < CASES ? &cases[k] : &large[k - CASES];
}

static const char *item_name(struct arena *a, int item) {
    static const char *const words[KINDS] = {"f32", "f32 unfused", "f64"};
    static const char *const labels[LABEL_KINDS] = {"cross_entropy", "gather", "gather",
                                                    "cross_entropy"};
    struct place p = place_of(item);
    const int64_t *z;
    const char *file;
    switch (p.kind) {
    case PLACE_CASE:
        return arena_printf(a, "%.200s in %s", case_name(a, case_at(p.at / KINDS)),
                            words[p.at % KINDS]);
    case PLACE_WRONG: return arena_printf(a, "%.200s, a wrong index", case_name(a, &wrong[p.at]));
    case PLACE_PRODUCT:
        z = product_sizes[p.at / PRODUCT_FORMS];
        return arena_printf(a, "%s %dx%dx%d", product_names[p.at % PRODUCT_FORMS], (int)z[0],
                            (int)z[1], (int)z[2]);
    case PLACE_STEP: return arena_printf(a, "%s %d", step_item_name(p.at), p.at);
    case PLACE_LABEL:
        return arena_printf(a, "%s by label, %d classes, %s%s", labels[label_kind(p.at)],
                            (int)label_classes[p.at % LABEL_CLASSES], dtype_name(label_type(p.at)),
                            label_wrong(p.at) ? ", a wrong label" : "");
    case PLACE_MODEL: break;
    }
    file = sys_basename(files[p.at / RECIPES]);
    return arena_printf(a, "%.*s %s", (int)(strlen(file) - 5), file, recipes[p.at % RECIPES].name);
}

static enum verdict run_item(struct bench *b, int item) {
    struct place p = place_of(item);
    int k = p.at / KINDS, kind = p.at % KINDS;
    snprintf(now->name, sizeof now->name, "%s", item_name(&b->arena, item));
    switch (p.kind) {
    case PLACE_CASE: /* tolerance: of the largest element */
        return compare_case(b, case_at(k), kind == 2 ? DT_f64 : DT_f32, kind == 1, false,
                            kind == 2   ? 1e-6
                            : k < CASES ? 2e-5
                                        : 1e-4);
    case PLACE_WRONG: return compare_case(b, &wrong[p.at], DT_f32, false, true, 0);
    case PLACE_PRODUCT: return run_product_item(b, p.at);
    case PLACE_STEP: return run_step_item(b, p.at);
    case PLACE_LABEL: return run_label_item(b, p.at);
    case PLACE_MODEL: break;
    }
    return run_model_item(b, files[p.at / RECIPES], p.at % RECIPES);
}

/* ---- parent and child --------------------------------------------------------------------------
 */
struct options {
    struct cuda_options cuda;
    const char *only[ONLY_MAX];
    int nonly, most;
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

/* The items among [from, to) that are asked for; their number. */
static int select_items(struct arena *a, const struct options *o, int from, int to, int *items) {
    int n = 0;
    bool *chosen = ARENA_ARRAY(a, bool, (size_t)(to - from) + 1);
    int *fits = ARENA_ARRAY(a, int, (size_t)(to - from) + 1);
    memset(chosen, !o->nonly, (size_t)(to - from));
    for (int k = 0; k < o->nonly; k++) {
        int nfits = 0;
        for (int i = from; i < to; i++)
            if (strstr(item_name(a, i), o->only[k])) fits[nfits++] = i;
        int take = o->most > 0 && o->most < nfits ? o->most : nfits;
        for (int i = 0; i < take; i++) chosen[fits[i * nfits / take] - from] = true;
    }
    for (int i = from; i < to; i++)
        if (chosen[i - from]) items[n++] = i;
    return n;
}

static void worker(const struct options *o, const int *items) {
    struct bench b;
    bench_open(&b, o);
    if (setjmp(b.landing)) give_up("unwound: %s", b.log);
    for (; now->next < now->end; now->next += now->step) {
        struct arena_mark mark = arena_mark(&b.arena);
        alarm(SECONDS_EACH);
        b.log[0] = '\0';
        enum verdict v = run_item(&b, items[now->next]);
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

static void start_worker(const struct options *o, const int *items, struct progress *p) {
    fflush(stdout);
    p->name[0] = '\0';
    pid_t pid = fork();
    if (pid == 0) {
        now = p;
        worker(o, items);
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

/* The first `end` of `items` by `jobs` workers; adds up in *sum. */
static void run_items(const struct options *o, const int *items, struct progress *p, int end,
                      int jobs, struct progress *sum) {
    int running = 0;
    for (int j = 0; j < jobs && j < end; j++, running++) {
        p[j] = (struct progress){.next = j, .step = jobs, .end = end};
        start_worker(o, items, &p[j]);
    }
    while (running > 0) {
        int how = 0;
        pid_t pid = wait(&how);
        if (pid < 0) return;
        for (int j = 0; j < jobs; j++) {
            if (p[j].pid != pid) continue;
            if (ended(&p[j], how)) {
                start_worker(o, items, &p[j]);
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
            o.only[o.nonly < ONLY_MAX ? o.nonly++ : ONLY_MAX - 1] = argv[++i];
        else if (strcmp(argv[i], "--most") == 0 && more)
            o.most = (int)strtol(argv[++i], NULL, 10);
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
    int all = CASE_ITEMS + nfiles * RECIPES, *items = ARENA_ARRAY(&a, int, (size_t)all);
    if (!o.no_cases)
        run_items(&o, items, p, select_items(&a, &o, 0, CASE_ITEMS, items), o.jobs, &sum);
    /* alone: their steps are timed */
    run_items(&o, items, p, select_items(&a, &o, CASE_ITEMS, all, items), 1, &sum);
    arena_reset(&a);
    printf("gpu: %u kernels compiled, %u from the cache\n", sum.compiled, sum.cached);
    printf("gpu: %d passed, %d failed", sum.passed, sum.failed);
    if (sum.skipped) printf(", %d skipped", sum.skipped);
    putchar('\n');
    return sum.failed || !sum.passed;
}
