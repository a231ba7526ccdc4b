// SPDX-License-Identifier: Apache-2.0
/* compile.c - kernel text to cubins through NVRTC: several at once, none twice. Threads only
 * compile; everything that allocates or reports happens on the caller's thread. Needs no GPU. */
#include "base/pool.h"
#include "base/sys.h"
#include "runtime/cuda/impl.h"
#include <string.h>

enum { FILES_MAX = 24, THREADS_MAX = 8, LOG_LINES = 6 };

/* ---- opening -----------------------------------------------------------------------------------
 */
#define NAME(type, name, args) #name,
static const char *const functions[] = {CUDA_NVRTC(NAME)};
#undef NAME
_Static_assert(sizeof functions / sizeof functions[0] * sizeof(void *) == sizeof(struct nvrtc_api),
               "one name for each member");

/* A newer NVRTC than the driver makes code that the driver refuses. */
static const char *open_one(struct compiler *k, const char *dir, const char *name, int driver,
                            struct buf *tried) {
    const char *const names[] = {name, NULL};
    void *lib = library_open(k->arena, dir, names, tried);
    int major = 0, minor = 0;
    if (!lib) return "not found";
    const char *missing =
        library_fill(lib, functions, sizeof functions / sizeof functions[0], &k->api);
    if (missing) return arena_printf(k->arena, "%s has no function %s", name, missing);
    if (k->api.nvrtcVersion(&major, &minor) != 0 || major < 12)
        return arena_printf(k->arena, "%s is of version %d, too old", name, major);
    if (driver && major > driver / 1000)
        return arena_printf(k->arena, "%s is newer than the driver, which is for CUDA %d.%d", name,
                            driver / 1000, driver % 1000 / 10);
    k->version = major * 1000 + minor * 10;
    return NULL;
}

enum status compiler_open(struct compiler *k, const struct cuda_options *o, int driver) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
    const char *why = NULL;
    struct buf tried;
    buf_init(&tried, k->arena);
    k->threads = o && o->compile_threads > 0 ? o->compile_threads : 0;
    if (!k->threads) k->threads = sys_cpu_count() < THREADS_MAX ? sys_cpu_count() : THREADS_MAX;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *problem = open_one(k, o ? o->library_dir : NULL, names[i], driver, &tried);
        if (!problem) return ST_OK;
        if (!why || strcmp(why, "not found") == 0) why = problem;
    }
    if (strcmp(why, "not found") == 0)
        why = arena_printf(k->arena, "looked for %s", tried.n ? tried.at : "it");
    return diag_error(k->ctx, ST_UNSUPPORTED, "",
                      "kernels for the GPU need the NVRTC library of CUDA 12 or 13 (%s); install "
                      "the toolkit's libnvrtc or name its folder",
                      why);
}

const char *compiler_arch(struct arena *a, int arch) {
    return arena_printf(a, "sm_%d%s", arch, arch >= 90 && arch <= 103 ? "a" : "");
}

/* ---- sources -----------------------------------------------------------------------------------
 */
struct text {
    const char *name, *at;
    size_t bytes;
};
/* What one kernel is made of: text[0] is compiled, the others are its headers. */
struct recipe {
    struct text text[FILES_MAX];
    int n;
    struct hash128 key;
};
struct build {
    struct compiler *k;
    const struct plan *p;
    const char *arch;
    cuda_source_fn source;
    void *user;
    struct arena *a;
};

static bool recipe_has(const struct recipe *r, const char *name) {
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->text[i].name, name) == 0) return true;
    return false;
}

/* The quoted name of an #include that stands at the start of `line`; NULL when there is none. */
static const char *included(struct arena *a, const char *line) {
    line += strspn(line, " \t");
    if (*line++ != '#') return NULL;
    line += strspn(line, " \t");
    if (strncmp(line, "include", 7) != 0) return NULL;
    line += 7 + strspn(line + 7, " \t");
    if (*line++ != '"') return NULL;
    size_t n = strcspn(line, "\"\n");
    return line[n] == '"' ? arena_strndup(a, line, n) : NULL;
}

static enum status recipe_add(struct build *b, struct recipe *r, const char *name, const char *at) {
    if (r->n == FILES_MAX)
        return diag_error(b->k->ctx, ST_UNSUPPORTED, name,
                          "expected at most %d files in one kernel, found more", FILES_MAX);
    r->text[r->n++] = (struct text){name, at, strlen(at)};
    return ST_OK;
}

static enum status recipe_fetch(struct build *b, struct recipe *r, const char *name) {
    size_t size = 0;
    const char *at = b->source(b->user, name, &size);
    if (!at)
        return diag_error(b->k->ctx, ST_UNSUPPORTED, name,
                          "expected an embedded kernel file of this name, found none");
    return recipe_add(b, r, name, arena_strndup(b->a, at, size));
}

static enum status recipe_make(struct build *b, const struct plan_kernel *k, struct recipe *r) {
    *r = (struct recipe){.n = 0};
    TRY(recipe_fetch(b, r, interned(&b->p->strings, k->file)));
    TRY(recipe_add(b, r, "config.cuh", k->config ? k->config : ""));
    TRY(recipe_add(b, r, "body.cuh", k->body ? k->body : ""));
    for (int i = 0; i < r->n; i++) {
        for (const char *line = r->text[i].at; line && *line;) {
            const char *name = included(b->a, line);
            if (name && !recipe_has(r, name)) TRY(recipe_fetch(b, r, name));
            line = strchr(line, '\n');
            if (line) line++;
        }
    }
    return ST_OK;
}

static const char *const options[] = {"", "--std=c++17", "-default-device", "--ptxas-options=-v"};
enum { NOPTIONS = sizeof options / sizeof options[0] };

static void set_options(const struct build *b, const char *out[NOPTIONS]) {
    memcpy(out, options, sizeof options);
    out[0] = arena_printf(b->a, "--gpu-architecture=%s", b->arch);
}

/* Of what is compiled and for what, but not by which NVRTC: a pack comes from another machine. */
static struct hash128 recipe_key(const struct build *b, const struct recipe *r) {
    struct arena_mark mark = arena_mark(b->a);
    const char *option[NOPTIONS];
    struct buf t;
    set_options(b, option);
    buf_init(&t, b->a);
    buf_puts(&t, "kernel 2,");
    for (int i = 0; i < NOPTIONS; i++) buf_printf(&t, " %s", option[i]);
    for (int i = 0; i < r->n; i++) {
        buf_printf(&t, "\n%s %zu\n", r->text[i].name, r->text[i].bytes);
        buf_put(&t, r->text[i].at, r->text[i].bytes);
    }
    struct hash128 key = hash_bytes128(t.at, t.n);
    arena_rewind(b->a, mark);
    return key;
}

/* The cache keeps what each NVRTC made of it. */
struct hash128 compiler_stored_key(const struct compiler *k, struct hash128 key) {
    const uint64_t all[3] = {key.lo, key.hi, (uint64_t)k->version};
    return hash_bytes128(all, sizeof all);
}

/* ---- compiling ---------------------------------------------------------------------------------
 */
struct job {
    struct build *b;
    struct recipe *r;
    struct image *image;
    const struct plan_kernel *kernel;
    const char *option[NOPTIONS + 1];
    nvrtc_program program;
    int result;
};

static void compile_task(void *arg, int64_t index, int thread) {
    struct job *j = (struct job *)arg + index;
    (void)thread;
    j->result = j->b->k->api.nvrtcCompileProgram(j->program, NOPTIONS, j->option);
}

static enum status job_create(struct job *j) {
    const char *texts[FILES_MAX], *names[FILES_MAX];
    const struct recipe *r = j->r;
    for (int i = 1; i < r->n; i++) texts[i - 1] = r->text[i].at, names[i - 1] = r->text[i].name;
    set_options(j->b, j->option);
    int e = j->b->k->api.nvrtcCreateProgram(&j->program, r->text[0].at, r->text[0].name, r->n - 1,
                                            texts, names);
    if (e == 0) return ST_OK;
    j->program = NULL;
    return diag_error(j->b->k->ctx, ST_UNSUPPORTED, r->text[0].name,
                      "NVRTC cannot take this kernel: %s", j->b->k->api.nvrtcGetErrorString(e));
}

static const char *job_log(struct job *j) {
    const struct nvrtc_api *n = &j->b->k->api;
    size_t bytes = 0;
    if (n->nvrtcGetProgramLogSize(j->program, &bytes) != 0 || !bytes) return "";
    char *log = arena_alloc(j->b->a, bytes + 1);
    return n->nvrtcGetProgramLog(j->program, log) == 0 ? log : "";
}

/* The whole text beside the cache, for whoever looks into it; its path, or NULL. */
static const char *keep_failed(struct job *j) {
    struct compiler *k = j->b->k;
    if (!k->cache_dir) return NULL;
    struct buf t;
    buf_init(&t, j->b->a);
    for (int i = 0; i < j->r->n; i++)
        buf_printf(&t, "/* ---- %s ---- */\n%s\n", j->r->text[i].name, j->r->text[i].at);
    const char *path = arena_printf(j->b->a, "%s/failed-%016llx.cu", k->cache_dir,
                                    (unsigned long long)j->r->key.hi);
    if (sys_mkdirs(k->ctx, k->cache_dir) != ST_OK) return NULL;
    return sys_write_file(k->ctx, path, t.at, t.n) == ST_OK ? path : NULL;
}

/* The first lines of a log that say "error", or its beginning. */
static const char *log_extract(struct arena *a, const char *log) {
    struct buf t;
    int lines = 0;
    buf_init(&t, a);
    for (const char *at = log; *at && lines < LOG_LINES;) {
        size_t n = strcspn(at, "\n");
        if (memmem(at, n, "error", 5)) {
            buf_printf(&t, "%s%.*s", lines++ ? " | " : "", (int)(n < 300 ? n : 300), at);
        }
        at += n + (at[n] == '\n');
    }
    return t.n ? t.at : arena_strndup(a, log, strnlen(log, 600));
}

/* The ONNX nodes of the first launch that wants kernel k; its entry when none says. */
static const char *kernel_origin(const struct plan *p, uint32_t k) {
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        for (uint32_t c = 0; c < l->ncalls && l->first_call + c < p->calls.n; c++)
            if (p->calls.at[l->first_call + c].kernel == k && l->origin.i)
                return interned(&p->strings, l->origin);
    }
    return interned(&p->strings, p->kernels.at[k].entry);
}

static enum status job_failed(struct job *j, const char *log) {
    struct build *b = j->b;
    const char *path = keep_failed(j);
    return diag_error(
        b->k->ctx, ST_INTERNAL, kernel_origin(b->p, (uint32_t)(j->kernel - b->p->kernels.at)),
        "NVRTC %d.%d cannot compile %s of %s for %s: %s: %s%s%s; please report it",
        b->k->version / 1000, b->k->version % 1000 / 10, interned(&b->p->strings, j->kernel->entry),
        interned(&b->p->strings, j->kernel->file), b->arch,
        b->k->api.nvrtcGetErrorString(j->result), log_extract(b->a, log),
        path ? "; its text is in " : "", path ? path : "");
}

static enum status job_finish(struct job *j) {
    const struct nvrtc_api *n = &j->b->k->api;
    struct compiler *k = j->b->k;
    j->image->log = job_log(j);
    if (j->result != 0) return job_failed(j, j->image->log);
    size_t bytes = 0;
    int e = n->nvrtcGetCUBINSize(j->program, &bytes);
    if (e == 0 && bytes) {
        char *cubin = arena_alloc(j->b->a, bytes);
        e = n->nvrtcGetCUBIN(j->program, cubin);
        j->image->cubin = cubin;
        j->image->bytes = bytes;
    }
    if (e != 0 || !bytes) {
        j->result = e;
        return job_failed(j, j->image->log);
    }
    k->stats.compiled++;
    if (k->cache_dir &&
        !cache_put(k->ctx, k->cache_dir, compiler_stored_key(k, j->r->key), j->image->cubin,
                   bytes) &&
        !k->cache_warned) {
        k->cache_warned = true;
        diag_warning(k->ctx, k->cache_dir,
                     "compiled kernels cannot be kept in this folder; they are compiled again by "
                     "the next run");
    }
    return ST_OK;
}

static bool spills(const char *line, size_t n) {
    const char *at = memmem(line, n, " bytes spill stores", 19);
    if (!at || at == line) return false;
    for (at--; at >= line && *at >= '0' && *at <= '9'; at--)
        if (*at != '0') return true;
    return false;
}

/* A kernel that asks for more blocks at once than its registers allow is compiled for fewer: memory
 * would have to hold what registers cannot. */
static enum status compile_free(struct job *j) {
    const char *log = job_log(j);
    bool spilled = false;
    for (const char *at = log; *at && !spilled; at += strcspn(at, "\n"), at += *at == '\n')
        spilled = spills(at, strcspn(at, "\n"));
    if (j->result != 0 || !spilled) return ST_OK;
    j->b->k->api.nvrtcDestroyProgram(&j->program);
    TRY(job_create(j));
    j->option[NOPTIONS] = "--define-macro=FREE_REGISTERS";
    j->result = j->b->k->api.nvrtcCompileProgram(j->program, NOPTIONS + 1, j->option);
    return ST_OK;
}

static enum status run_jobs(struct compiler *k, struct job *jobs, uint32_t n) {
    enum status st = ST_OK;
    for (uint32_t i = 0; i < n && st == ST_OK; i++) st = job_create(&jobs[i]);
    if (st == ST_OK) {
        int threads = k->threads < (int)n ? k->threads : (int)n;
        struct pool *pool = pool_create(k->ctx, threads);
        if (pool)
            pool_run(pool, n, compile_task, jobs);
        else
            st = ST_UNSUPPORTED; /* reported */
        pool_destroy(pool);
    }
    for (uint32_t i = 0; i < n && st == ST_OK; i++) st = compile_free(&jobs[i]);
    for (uint32_t i = 0; i < n && st == ST_OK; i++) st = job_finish(&jobs[i]);
    for (uint32_t i = 0; i < n; i++)
        if (jobs[i].program) k->api.nvrtcDestroyProgram(&jobs[i].program);
    return st;
}

/* From the pack, or from the cache of the NVRTC that would compile it. */
static enum status find_image(struct compiler *k, struct arena *a, struct image *m) {
    if (k->pack && pack_get(k->pack, m->key, &m->cubin, &m->bytes)) {
        k->stats.packed++;
        return ST_OK;
    }
    if (k->pack && !k->pack_warned)
        diag_warning(k->ctx, pack_path(k->pack),
                     "kernels are missing in this file and are compiled here; it was made for "
                     "another model, batch, recipe, GPU, data or version");
    k->pack_warned = k->pack != NULL;
    if (!k->version) TRY(compiler_open(k, &k->later, k->driver));
    if (k->cache_dir &&
        cache_get(a, k->cache_dir, compiler_stored_key(k, m->key), &m->cubin, &m->bytes))
        k->stats.cached++;
    return ST_OK;
}

/* Kernels may share a text; the first one with it stands for all. */
static uint32_t recipe_first(const struct recipe *r, uint32_t i) {
    for (uint32_t j = 0; j < i; j++)
        if (r[j].key.lo == r[i].key.lo && r[j].key.hi == r[i].key.hi) return j;
    return i;
}

enum status compiler_build(struct compiler *k, const struct plan *p, const char *arch,
                           cuda_source_fn source, void *user, struct arena *a,
                           bool (*known)(void *who, struct hash128 key), void *who,
                           struct image *images) {
    double start = sys_seconds();
    uint32_t n = p->kernels.n, missing = 0;
    struct build b = {k, p, arch, source, user, a};
    struct job *jobs = ARENA_ARRAY(a, struct job, n + 1);
    struct recipe *recipes = ARENA_ARRAY(a, struct recipe, n + 1);
    for (uint32_t i = 0; i < n; i++) {
        struct image *m = &images[i];
        struct recipe *r = &recipes[i];
        TRY(recipe_make(&b, &p->kernels.at[i], r));
        *m = (struct image){.key = r->key = recipe_key(&b, r), .log = ""};
        if (recipe_first(recipes, i) < i || (known && known(who, m->key))) continue;
        TRY(find_image(k, a, m));
        if (!m->cubin)
            jobs[missing++] =
                (struct job){.b = &b, .r = r, .image = m, .kernel = &p->kernels.at[i]};
    }
    enum status st = missing ? run_jobs(k, jobs, missing) : ST_OK;
    for (uint32_t i = 0; i < n; i++) images[i] = images[recipe_first(recipes, i)];
    k->stats.seconds += sys_seconds() - start;
    return st;
}

/* ---- judging -----------------------------------------------------------------------------------
 */

/* The number in front of `what` in a line of ptxas -v, 0 when there is none. */
const char *compiler_complaint(struct arena *a, const char *log) {
    for (const char *at = log; *at;) {
        size_t n = strcspn(at, "\n");
        bool serial = memmem(at, n, "wgmma", 5) && memmem(at, n, "serializ", 8);
        if (serial || spills(at, n) || memmem(at, n, "warning", 7))
            return arena_strndup(a, at, n < 400 ? n : 400);
        at += n + (at[n] == '\n');
    }
    return NULL;
}

static enum status check_images(struct compiler *k, const struct plan *p,
                                const struct image *images) {
    for (uint32_t i = 0; i < p->kernels.n; i++) {
        const char *what = compiler_complaint(k->arena, images[i].log);
        if (what)
            return diag_error(k->ctx, ST_UNSUPPORTED, interned(&p->strings, p->kernels.at[i].entry),
                              "expected a kernel without spills and warnings, found: %s", what);
    }
    return ST_OK;
}

enum status cuda_compile_check(struct ctx *c, const struct cuda_options *o, const struct plan *p,
                               cuda_source_fn source, void *user, uint32_t *kernels) {
    struct arena a;
    arena_init(&a, c);
    struct compiler k = {.ctx = c, .arena = &a};
    struct image *images = ARENA_ARRAY(&a, struct image, p->kernels.n + 1);
    enum status st = ST_OK;
    if (!p->cuda_arch)
        st = diag_error(c, ST_USAGE, "", "expected a plan made for a GPU, found one for the CPU");
    if (st == ST_OK) st = compiler_open(&k, o, 0);
    if (st == ST_OK)
        st = compiler_build(&k, p, compiler_arch(&a, p->cuda_arch), source, user, &a, NULL, NULL,
                            images);
    if (st == ST_OK) st = check_images(&k, p, images);
    if (kernels) *kernels = k.stats.compiled;
    arena_reset(&a);
    return st;
}
