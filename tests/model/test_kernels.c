// SPDX-License-Identifier: Apache-2.0
/* test_kernels.c - every GPU kernel of the training steps of exported models through NVRTC, for
 * each architecture and recipe, without a GPU: none may spill registers or draw a warning. Equal
 * texts are compiled once, whichever model wants them. For each DIR/NAME.STYLE.onnx there is
 * NAME.data.npz, which sizes its inputs.
 *
 * usage: test_kernels [--jobs N] DIR... */
#include "base/diag.h"
#include "base/hash.h"
#include "base/sys.h"
#include "driver/forward.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARCHS = 3, RECIPES = 3, AT_ONCE = 64 };
static const int archs[ARCHS] = {80, 90, 100};
static const char *const recipes[RECIPES] = {"fp32", "bf16", "coat"};

/* The distinct kernels of all models for one architecture, and for each the first that wants it. */
struct collection {
    struct plan *kernels;
    struct map seen;
    VEC(const char *) wanted_by;
};
struct bench {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    char log[2000];
    struct collection of[ARCHS];
    struct cuda_options cuda;
    int models, passed, failed, skipped;
};

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    struct bench *b = user;
    (void)code;
    if (sev == SEV_ERROR && !b->log[0]) snprintf(b->log, sizeof b->log, "%s: %s", origin, message);
}
static void api_report(void *user, lathe_severity sev, lathe_status status, const char *origin,
                       const char *message) {
    if (sev == LATHE_ERROR) report(user, SEV_ERROR, (enum status)status, origin, message);
}

/* ---- collecting --------------------------------------------------------------------------------
 */
/* Of what decides about the code: not where it comes from, and not the numbers in tables of
 * constant memory, such as the sizes of all parameters. */
static uint64_t code_key(const struct plan *p, const struct plan_kernel *k) {
    const char *file = interned(&p->strings, k->file);
    uint64_t h =
        hash_combine(hash_bytes(file, strlen(file)), hash_bytes(k->config, strlen(k->config)));
    bool table = false;
    for (const char *at = k->body; *at;) {
        size_t n = strcspn(at, "\n");
        if (!table && strncmp(at, "#line", 5) != 0) h = hash_combine(h, hash_bytes(at, n));
        if (strncmp(at, "__constant__", 12) == 0) table = true;
        if (memmem(at, n, "};", 2)) table = false;
        at += n + (at[n] == '\n');
    }
    return h;
}

static void collect(struct bench *b, struct collection *c, const struct plan *p, const char *who) {
    for (uint32_t i = 0; i < p->kernels.n; i++) {
        struct plan_kernel k = p->kernels.at[i];
        uint64_t key = code_key(p, &k);
        uint32_t at;
        if (map_get(&c->seen, key, &at)) continue;
        map_set(&c->seen, key, c->kernels->kernels.n);
        k.entry = intern(&c->kernels->strings, interned(&p->strings, k.entry));
        k.file = intern(&c->kernels->strings, interned(&p->strings, k.file));
        k.config = arena_strdup(&b->arena, k.config);
        k.body = arena_strdup(&b->arena, k.body);
        vec_push(&c->kernels->arena, &c->kernels->kernels, k);
        vec_push(&b->arena, &c->wanted_by, who);
    }
}

struct opened {
    lathe_context *c;
    lathe_model *model;
    struct graph *graph;
};
struct opening {
    struct bench *b;
    struct opened o;
    const char *path, *data, *who;
    int recipe;
};

static enum status open_body(void *arg) {
    struct opening *a = arg;
    struct arena *arena = &a->b->arena;
    lathe_model_options mo = LATHE_MODEL_OPTIONS_INIT;
    lathe_train_options to = LATHE_TRAIN_OPTIONS_INIT;
    struct train_options t;
    struct recipe r;
    struct data_source src;
    mo.data = a->data;
    to.loss = "cross_entropy(logits, labels)";
    to.weight_decay = 0.1;
    TRY(session_train_options(a->o.c, &to, &t));
    TRY(recipe_find(&a->o.c->ctx, arena, recipes[a->recipe], &r));
    TRY((enum status)lathe_model_open(a->o.c, a->path, &mo, &a->o.model));
    TRY(data_open(arena, a->data, NULL, 0, &src));
    forward_label_hint(a->o.model->import.graph, &src, t.loss, arena, &t);
    struct session_compile sc = {.training = true, .train = &t, .recipe = &r};
    TRY(session_graph(a->o.model, &sc, &a->o.graph));
    for (int i = 0; i < ARCHS; i++) {
        struct codegen_options cg = {.threads = 1, .cuda_arch = archs[i]};
        struct plan *p = NULL;
        TRY(plan_build(a->o.graph, &cg, &p));
        collect(a->b, &a->b->of[i], p, a->who);
        plan_destroy(p);
    }
    return ST_OK;
}

static void take_model(struct bench *b, const char *dir, const char *file) {
    const char *stem = arena_strndup(&b->arena, file, strcspn(file, "."));
    const char *data = arena_printf(&b->arena, "%s/%s.data.npz", dir, stem);
    if (!sys_exists(data)) {
        printf("%s: skipped: no data\n", file);
        b->skipped++;
        return;
    }
    b->models++;
    for (int r = 0; r < RECIPES; r++) {
        struct opening a = {.b = b, .data = data, .recipe = r};
        lathe_context_options co = LATHE_CONTEXT_OPTIONS_INIT;
        a.path = arena_printf(&b->arena, "%s/%s", dir, file);
        a.who = arena_printf(&b->arena, "%s %s", file, recipes[r]);
        co.report = api_report;
        co.report_user = b;
        co.threads = 1;
        b->log[0] = '\0';
        if (lathe_context_create(&co, &a.o.c) != LATHE_OK ||
            session_guard(a.o.c, open_body, &a) != LATHE_OK) {
            printf("  FAILED %s: %s\n", a.who, b->log);
            b->failed++;
        }
        graph_destroy(a.o.graph);
        lathe_model_destroy(a.o.model);
        lathe_context_destroy(a.o.c);
    }
}

static void take_dir(struct bench *b, const char *dir) {
    const char **names;
    uint32_t n;
    if (!sys_is_dir(dir) || sys_list_dir(&b->arena, dir, &names, &n) != ST_OK) {
        printf("%s: no such directory, skipped\n", dir);
        b->skipped++;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t len = strlen(names[i]);
        if (len > 5 && strcmp(names[i] + len - 5, ".onnx") == 0) take_model(b, dir, names[i]);
    }
}

/* ---- compiling ---------------------------------------------------------------------------------
 */
/* Kernels [from, to) as a plan of their own. */
static enum status compile(struct bench *b, const struct collection *c, uint32_t from,
                           uint32_t to) {
    struct plan part = *c->kernels;
    uint32_t compiled = 0;
    part.kernels.at += from;
    part.kernels.n = to - from;
    b->log[0] = '\0';
    return cuda_compile_check(&b->ctx, &b->cuda, &part, device_kernel_source, NULL, &compiled);
}

/* False: there is no NVRTC. A part that fails is compiled again one by one, to name what fails. */
static bool compile_all(struct bench *b, const struct collection *c) {
    double begin = sys_seconds();
    uint32_t n = c->kernels->kernels.n;
    for (uint32_t from = 0; from < n; from += AT_ONCE) {
        uint32_t to = from + AT_ONCE < n ? from + AT_ONCE : n;
        if (compile(b, c, from, to) == ST_OK) {
            b->passed += (int)(to - from);
            continue;
        }
        if (strstr(b->log, "need the NVRTC library")) return false;
        for (uint32_t i = from; i < to; i++) {
            bool ok = compile(b, c, i, i + 1) == ST_OK;
            b->passed += ok;
            b->failed += !ok;
            if (!ok)
                printf("  FAILED sm_%d %s: %s\n", c->kernels->cuda_arch, c->wanted_by.at[i],
                       b->log);
        }
    }
    printf("  sm_%d: %u kernels, %.1f s\n", c->kernels->cuda_arch, n, sys_seconds() - begin);
    fflush(stdout);
    return true;
}

int main(int argc, char **argv) {
    static struct bench b;
    ctx_init(&b.ctx);
    b.ctx.report = report;
    b.ctx.report_user = &b;
    b.ctx.landing = &b.landing;
    arena_init(&b.arena, &b.ctx);
    if (setjmp(b.landing)) {
        printf("kernels: unwound: %s\n", b.log);
        return 1;
    }
    for (int i = 0; i < ARCHS; i++) {
        b.of[i].kernels = plan_create(&b.ctx, "all");
        b.of[i].kernels->cuda_arch = archs[i];
        map_init(&b.of[i].seen, &b.arena);
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc)
            b.cuda.compile_threads = (int)strtol(argv[++i], NULL, 10);
        else
            take_dir(&b, argv[i]);
    }
    bool have = true;
    for (int i = 0; i < ARCHS && have; i++) have = compile_all(&b, &b.of[i]);
    if (!have) printf("kernels: there is no NVRTC; nothing is compiled\n");
    uint32_t kernels = 0;
    for (int i = 0; i < ARCHS; i++) {
        kernels += b.of[i].kernels->kernels.n;
        plan_destroy(b.of[i].kernels);
    }
    b.skipped += !have;
    printf("%u kernels of %d models in %d recipes for %d architectures\n", kernels, b.models,
           RECIPES, ARCHS);
    printf("kernels: %d passed, %d failed", b.passed, b.failed);
    if (b.skipped) printf(", %d skipped", b.skipped);
    putchar('\n');
    arena_reset(&b.arena);
    return b.failed || (have && !b.passed);
}
