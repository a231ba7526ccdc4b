// SPDX-License-Identifier: Apache-2.0
/* attention_test.c - attention in 16 bits on a GPU: cuDNN, Lathe's kernels for any GPU and those
 * for Hopper against the same in f64 on the host, on operands that are strided parts of one buffer,
 * run three times for the same bits; then how long cuDNN and the kernels for Hopper take.
 *
 * usage: attention_test [--cache DIR] [--device N] [--libraries DIR] [--only TEXT] [--engine NAME]
 *                       [--no-times] [--only-times] [--variant NAME=VALUE,..].. [--limit SECONDS]
 *                       [--check]
 * A variant is timed too, with these numbers in the text of the kernels for Hopper. After the limit
 * the program ends, whatever the GPU does. --check only compiles the kernels, without a GPU. */
#include "base/sys.h"
#include "codegen/codegen.h"
#include "runtime/cuda.h"
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 3, TIMES = 10, ROLES = 9, REAL_ROLES = 6, VARIANTS = 16, SHARED_MOST = 227 << 10 };
enum { Q, K, V, Y, LSE, G, DQ, DK, DV };
/* The same plan for 8.0 goes to cuDNN or, without it, to the kernels for any GPU. */
enum engine { ENGINE_CUDNN, ENGINE_PLAIN, ENGINE_HOPPER, ENGINES };
static const char *const engine_names[ENGINES] = {"cudnn", "plain", "hopper"};
static const char *const names[ROLES] = {"q", "k", "v", "y", "lse", "g", "dq", "dk", "dv"};

struct shape {
    int64_t b, h, kv, t, s, d;
    bool low;     /* scores around -130: log sums of which the exponential is 0 in f32 */
    int64_t most; /* bytes of workspace, so that cuDNN has to cut the batch; 0: as planned */
};
static const struct shape shapes[] = {
    {2, 3, 3, 128, 128, 64, false, 0},     {1, 4, 2, 257, 257, 64, false, 0},
    {2, 2, 2, 64, 192, 128, false, 0},     {1, 1, 1, 1, 1, 64, false, 0},
    {3, 12, 12, 1024, 1024, 64, false, 0}, {2, 4, 4, 192, 192, 64, true, 0},
    {2, 8, 2, 300, 300, 128, false, 0},    {1, 2, 1, 192, 192, 256, false, 0},
    {5, 2, 2, 63, 63, 72, false, 0},       {4, 12, 12, 1024, 1024, 64, false, 60 << 20},
};
/* For the kernels for Hopper alone: ends within tiles, more keys than queries and fewer, shared
 * heads, more tiles than a round has, several groups of heads. */
static const struct shape odd[] = {
    {2, 4, 1, 129, 127, 64, false, 0},    {3, 8, 2, 1000, 1000, 128, false, 0},
    {40, 12, 12, 384, 384, 64, false, 0}, {1, 4, 2, 200, 1000, 64, false, 0},
    {1, 2, 2, 1000, 200, 64, false, 0},   {2, 4, 2, 192, 192, 64, true, 0},
    {2, 4, 2, 200, 200, 128, true, 0},    {1, 6, 2, 127, 129, 128, false, 0},
    {2, 4, 4, 17, 17, 64, false, 0},      {1, 3, 1, 3, 200, 64, false, 0},
    {1, 2, 2, 64, 64, 64, false, 0},      {1, 2, 2, 128, 128, 128, false, 0},
    {1, 2, 2, 1, 1000, 128, false, 0},    {2, 4, 4, 1000, 3, 128, false, 0},
};
static const struct shape timed[] = {
    {64, 12, 12, 1024, 1024, 64, false, 0},
    {16, 16, 16, 1024, 1024, 64, false, 0},
    {16, 16, 16, 2048, 2048, 128, false, 0},
    {16, 16, 4, 2048, 2048, 128, false, 0},
};

struct kit {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    struct cuda *gpu[2]; /* with cuDNN, without */
    const char *only, *engine, *variants[VARIANTS];
    int nvariants;
    bool check, no_times, only_times;
    int failed, passed;
};

/* A plan of one attention and its gradient, all buffers kept on the device. */
struct job {
    struct shape p;
    bool causal;
    enum dtype type;
    double scale;
    struct plan *plan;
    struct plan_view view[ROLES];
    const char *name;
    void *data[ROLES];   /* of the view's whole buffer; shared by q, k, v and by their gradients */
    double *wide[ROLES]; /* the same of q, k, v and g, once it is known */
};

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    (void)user, (void)code;
    printf("    %s: %s: %s\n", sev == SEV_ERROR ? "error" : "note", origin, message);
    fflush(stdout);
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

/* ---- plans ------------------------------------------------------------------------------------
 */
static buf_id add_buffer(struct plan *p, enum dtype t, int64_t n) {
    struct plan_buffer b = {.kind = BUF_STATE, .use = USE_ACTIVATIONS, .last = 1};
    char name[16];
    snprintf(name, sizeof name, "b%u", p->buffers.n);
    b.name = intern(&p->strings, name);
    b.type = (struct type){.dtype = t, .rank = 1, .dims = {n}};
    b.bytes = n * (int64_t)dtype_size(t);
    vec_push(&p->arena, &p->buffers, b);
    return (buf_id){p->buffers.n - 1};
}

/* [B,heads,length,width] of a buffer [B,length,all,heads,width], part `part`. */
static struct plan_view part_view(const struct job *j, buf_id b, int64_t heads, int64_t length,
                                  int64_t all, int64_t part) {
    int64_t d = j->p.d, row = all * heads * d;
    return (struct plan_view){.buffer = b,
                              .dtype = j->type,
                              .rank = 4,
                              .offset = part * heads * d,
                              .dims = {j->p.b, heads, length, d},
                              .strides = {length * row, d, row, 1}};
}

static void add_views(struct job *j) {
    const struct shape *s = &j->p;
    bool packed = s->t == s->s && s->h == s->kv;
    for (int grad = 0; grad < 2; grad++) {
        struct plan_view *v = &j->view[grad ? DQ : Q];
        int64_t n = s->b * s->t * s->h * s->d, m = s->b * s->s * s->kv * s->d;
        buf_id a = add_buffer(j->plan, j->type, packed ? 3 * n : n);
        buf_id b = packed ? a : add_buffer(j->plan, j->type, 2 * m);
        v[0] = part_view(j, a, s->h, s->t, packed ? 3 : 1, 0);
        v[1] = part_view(j, b, s->kv, s->s, packed ? 3 : 2, packed ? 1 : 0);
        v[2] = part_view(j, b, s->kv, s->s, packed ? 3 : 2, packed ? 2 : 1);
    }
    for (int r = Y; r <= G; r += G - Y)
        j->view[r] =
            part_view(j, add_buffer(j->plan, j->type, s->b * s->t * s->h * s->d), s->h, s->t, 1, 0);
    j->view[LSE] = (struct plan_view){.buffer = add_buffer(j->plan, DT_f32, s->b * s->h * s->t),
                                      .dtype = DT_f32,
                                      .rank = 3,
                                      .dims = {s->b, s->h, s->t},
                                      .strides = {s->h * s->t, s->t, 1}};
}

static void add_launch(struct job *j, bool grad) {
    struct plan *p = j->plan;
    uint32_t nin = grad ? REAL_ROLES : 3, nout = grad ? 3 : 2;
    struct plan_launch l = {.kind = grad ? LAUNCH_attention_grad : LAUNCH_attention,
                            .nin = nin,
                            .nout = nout,
                            .origin = intern(&p->strings, grad ? "gradient" : "forward")};
    l.in = ARENA_ARRAY(&p->arena, struct plan_view, nin);
    l.out = ARENA_ARRAY(&p->arena, struct plan_view, nout);
    memcpy(l.in, j->view, nin * sizeof *l.in);
    memcpy(l.out, &j->view[nin], nout * sizeof *l.out);
    struct attr *a = ARENA_ARRAY(&p->arena, struct attr, 2);
    a[0] = (struct attr){.key = ATTR_scale, .f = j->scale};
    a[1] = (struct attr){.key = ATTR_causal, .i = j->causal};
    if (a[1].key < a[0].key) {
        struct attr t = a[0];
        a[0] = a[1];
        a[1] = t;
    }
    l.attrs = a;
    l.nattrs = 2;
    vec_push(&p->arena, &p->launches, l);
}

static enum status make_plan(struct kit *k, struct job *j, int arch) {
    j->plan = plan_create(&k->ctx, "attention");
    j->plan->cuda_arch = arch;
    j->plan->threads = 1;
    add_views(j);
    add_launch(j, false);
    add_launch(j, true);
    TRY(plan_emit_cuda(j->plan));
    for (uint32_t i = 0; i < 2; i++) {
        int64_t bytes = plan_cuda_workspace(j->plan, i);
        if (j->p.most && bytes > j->p.most) bytes = j->p.most;
        struct plan_buffer w = {
            .kind = BUF_WORKSPACE, .use = USE_WORKSPACE, .first = i, .last = i, .bytes = bytes};
        w.type = (struct type){.dtype = DT_u8, .rank = 1, .dims = {bytes}};
        if (!bytes) continue;
        vec_push(&j->plan->arena, &j->plan->buffers, w);
        j->plan->launches.at[i].workspace = (buf_id){j->plan->buffers.n - 1};
    }
    TRY(plan_memory(j->plan, false));
    return plan_verify(j->plan, "attention_test");
}

/* ---- values -----------------------------------------------------------------------------------
 */
static double noise(uint64_t i) {
    uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

static int64_t place(const struct plan_view *v, int64_t b, int64_t h, int64_t t) {
    return v->offset + b * v->strides[0] + h * v->strides[1] + t * v->strides[2];
}
static double at(const struct job *j, int r, int64_t b, int64_t h, int64_t t, int64_t d) {
    const struct plan_view *v = &j->view[r];
    if (j->wide[r]) return j->wide[r][place(v, b, h, t) + d];
    return dtype_load(v->dtype, (const char *)j->data[r] +
                                    (place(v, b, h, t) + d) * (int64_t)dtype_size(v->dtype));
}

static size_t bytes_of(const struct job *j, int r) {
    return (size_t)j->plan->buffers.at[j->view[r].buffer.i].bytes;
}

static void fill(struct kit *k, struct job *j) {
    for (int r = 0; r < ROLES; r++) {
        for (int e = 0; e < r; e++)
            if (j->view[e].buffer.i == j->view[r].buffer.i) j->data[r] = j->data[e];
        if (!j->data[r]) j->data[r] = ctx_alloc(&k->ctx, bytes_of(j, r));
    }
    static const int filled[] = {Q, K, V, G};
    for (int f = 0; f < 4; f++) {
        const struct plan_view *v = &j->view[filled[f]];
        double middle = j->p.low && f < 2 ? (f ? -4 : 4) : 0;
        uint64_t n = (uint64_t)f << 40;
        for (int64_t b = 0; b < v->dims[0]; b++)
            for (int64_t h = 0; h < v->dims[1]; h++)
                for (int64_t t = 0; t < v->dims[2]; t++)
                    for (int64_t d = 0; d < v->dims[3]; d++)
                        dtype_store(v->dtype,
                                    (char *)j->data[filled[f]] + 2 * (place(v, b, h, t) + d),
                                    middle + 1.7 * noise(n++));
    }
}

static void drop(struct kit *k, struct job *j) {
    for (int r = 0; r < ROLES; r++) {
        for (int e = r + 1; e < ROLES; e++)
            if (j->data[e] == j->data[r]) j->data[e] = NULL;
        ctx_free(&k->ctx, j->data[r]);
        ctx_free(&k->ctx, j->wide[r]);
    }
    if (j->plan) plan_destroy(j->plan);
}

static void widen(struct kit *k, struct job *j) {
    static const int inputs[] = {Q, K, V, G};
    for (int i = 0; i < 4; i++) {
        int r = inputs[i];
        size_t n = bytes_of(j, r) / 2;
        j->wide[r] = ctx_alloc(&k->ctx, n * sizeof(double));
        for (size_t e = 0; e < n; e++)
            j->wide[r][e] = dtype_load(j->type, (const char *)j->data[r] + 2 * e);
    }
}

static enum status move(struct job *j, struct cuda_exec *x, bool down) {
    for (int r = 0; r < ROLES; r++) {
        bool result = r != Q && r != K && r != V && r != G;
        if (result != down) continue;
        buf_id b = j->view[r].buffer;
        TRY(down ? cuda_read(x, b, j->data[r]) : cuda_write(x, b, j->data[r]));
    }
    return ST_OK;
}

/* ---- the reference ----------------------------------------------------------------------------
 */
/* The largest error of each result and the first one that cannot be rounding. */
struct errors {
    double worst[ROLES], size[ROLES], want[ROLES], got[ROLES];
    int64_t at[ROLES][4], wrong[ROLES];
};
static void note(struct errors *e, int r, const int64_t at[4], double want, double got) {
    double off = want == got ? 0 : fabs(want - got);
    if (!(off <= e->worst[r])) e->worst[r] = isnan(off) ? INFINITY : off;
    if (fabs(want) > e->size[r] && isfinite(want)) e->size[r] = fabs(want);
    if (off <= 0.05 * (fabs(want) + 0.2) || e->wrong[r]++) return;
    memcpy(e->at[r], at, sizeof e->at[r]);
    e->want[r] = want;
    e->got[r] = got;
}

/* One query's probabilities in p; its log sum. */
static double softmax_row(const struct job *j, int64_t b, int64_t h, int64_t t, double *p) {
    const struct shape *s = &j->p;
    int64_t kv = h / (s->h / s->kv), n = j->causal ? t + s->s - s->t + 1 : s->s;
    double top = -INFINITY, sum = 0;
    if (n <= 0) memset(p, 0, (size_t)s->s * sizeof *p);
    if (n <= 0) return -INFINITY; /* it sees no key */
    for (int64_t i = 0; i < n; i++) {
        p[i] = 0;
        for (int64_t d = 0; d < s->d; d++) p[i] += at(j, Q, b, h, t, d) * at(j, K, b, kv, i, d);
        p[i] *= j->scale;
        if (p[i] > top) top = p[i];
    }
    for (int64_t i = 0; i < n; i++) sum += exp(p[i] - top);
    double lse = top + log(sum);
    for (int64_t i = 0; i < s->s; i++) p[i] = i < n ? exp(p[i] - lse) : 0;
    return lse;
}

/* Query head h of batch b: checks y, lse, dq; adds to dk and dv of its keys. */
static void check_head(const struct job *j, int64_t b, int64_t h, double *p, double *dk, double *dv,
                       struct errors *e) {
    const struct shape *s = &j->p;
    int64_t kv = h / (s->h / s->kv);
    for (int64_t t = 0; t < s->t; t++) {
        int64_t where[4] = {b, h, t, 0};
        note(e, LSE, where, softmax_row(j, b, h, t, p),
             (double)((const float *)j->data[LSE])[(b * s->h + h) * s->t + t]);
        double delta = 0;
        for (int64_t d = 0; d < s->d; d++) {
            double y = 0, g = at(j, G, b, h, t, d);
            for (int64_t i = 0; i < s->s; i++) {
                if (p[i] == 0) continue;
                y += p[i] * at(j, V, b, kv, i, d);
                dv[i * s->d + d] += p[i] * g;
            }
            delta += y * g;
            where[3] = d;
            note(e, Y, where, y, at(j, Y, b, h, t, d));
        }
        for (int64_t i = 0; i < s->s; i++) {
            double dp = 0;
            if (p[i] == 0) continue;
            for (int64_t d = 0; d < s->d; d++) dp += at(j, G, b, h, t, d) * at(j, V, b, kv, i, d);
            p[i] *= (dp - delta) * j->scale;
            for (int64_t d = 0; d < s->d; d++) dk[i * s->d + d] += p[i] * at(j, Q, b, h, t, d);
        }
        for (int64_t d = 0; d < s->d; d++) {
            double dq = 0;
            for (int64_t i = 0; i < s->s; i++) dq += p[i] * at(j, K, b, kv, i, d);
            where[3] = d;
            note(e, DQ, where, dq, at(j, DQ, b, h, t, d));
        }
    }
}

/* The first and the last group of heads. */
static struct errors compare(struct kit *k, const struct job *j) {
    const struct shape *s = &j->p;
    struct errors e = {.worst = {0}};
    size_t bytes = (size_t)(s->s * s->d) * sizeof(double);
    double *p = ctx_alloc(&k->ctx, (size_t)s->s * sizeof(double));
    double *dk = ctx_alloc(&k->ctx, bytes), *dv = ctx_alloc(&k->ctx, bytes);
    for (int last = 0; last < 2; last++) {
        int64_t b = last ? s->b - 1 : 0, kv = last ? s->kv - 1 : 0, share = s->h / s->kv;
        memset(dk, 0, bytes);
        memset(dv, 0, bytes);
        for (int64_t h = kv * share; h < (kv + 1) * share; h++) check_head(j, b, h, p, dk, dv, &e);
        for (int64_t i = 0; i < s->s; i++)
            for (int64_t d = 0; d < s->d; d++) {
                const int64_t where[4] = {b, kv, i, d};
                note(&e, DK, where, dk[i * s->d + d], at(j, DK, b, kv, i, d));
                note(&e, DV, where, dv[i * s->d + d], at(j, DV, b, kv, i, d));
            }
    }
    ctx_free(&k->ctx, p);
    ctx_free(&k->ctx, dk);
    ctx_free(&k->ctx, dv);
    return e;
}

/* ---- cases ------------------------------------------------------------------------------------
 */
static uint64_t hash_results(const struct job *j) {
    static const int results[] = {Y, LSE, DQ, DK, DV};
    uint64_t x = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (int i = 0; i < 5; i++) {
        const unsigned char *p = j->data[results[i]];
        for (size_t n = bytes_of(j, results[i]); n > 0; n--)
            x = (x ^ *p++) * UINT64_C(0x100000001b3);
    }
    return x;
}

static bool print_result(const struct errors *e, int r) {
    double limit = r == LSE ? 1e-3 : (r < DQ ? 0.01 : 0.02) * (e->size[r] + 1e-2);
    bool fine = e->worst[r] <= limit;
    printf(" %s %.2g of %.3g", names[r], e->worst[r], e->size[r]);
    if (fine) return true;
    printf(" WRONG (%lld elements far off, the first at %lld,%lld,%lld,%lld: expected %g, got %g)",
           (long long)e->wrong[r], (long long)e->at[r][0], (long long)e->at[r][1],
           (long long)e->at[r][2], (long long)e->at[r][3], e->want[r], e->got[r]);
    return false;
}

static enum status run_case(struct kit *k, struct job *j, enum engine engine) {
    struct cuda_exec *x = NULL;
    uint64_t bits[RUNS];
    for (int r = 0; r < ROLES; r++) /* what is not written shows */
        if (r == Y || r == LSE || r >= DQ) memset(j->data[r], 0x7f, bytes_of(j, r));
    TRY(cuda_create(k->gpu[engine == ENGINE_PLAIN], j->plan, kernel_source, NULL, &x));
    uint32_t by_cudnn = cuda_cudnn_launches(x);
    enum status st = move(j, x, false);
    for (int r = DQ; r < ROLES && st == ST_OK; r++)
        st = cuda_write(x, j->view[r].buffer, j->data[r]);
    for (int i = 0; i < RUNS && st == ST_OK; i++) {
        st = cuda_run(x, 0, 2, false); /* the second one is recorded, the third replays it */
        if (st == ST_OK) st = move(j, x, true);
        bits[i] = st == ST_OK ? hash_results(j) : 0;
    }
    size_t bytes = cuda_bytes(x);
    cuda_destroy(x);
    if (st != ST_OK) return st;
    struct errors e = compare(k, j);
    bool same = bits[0] == bits[1] && bits[1] == bits[2], planned, good;
    planned = bytes == (size_t)plan_bytes(j->plan);
    good = same && planned;
    printf("  %-44s %-6s %u of 2 by cuDNN, %s,", j->name, engine_names[engine], by_cudnn,
           same ? "same bits" : "OTHER BITS");
    for (int r = Y; r < ROLES; r++)
        if (r != G) good &= print_result(&e, r);
    printf(", %.1f MB%s\n", (double)bytes / 1e6, planned ? "" : " NOT AS PLANNED");
    fflush(stdout);
    good ? k->passed++ : k->failed++;
    return ST_OK;
}

static const char *job_name(struct kit *k, const struct job *j) {
    return arena_printf(&k->arena, "%s %lldx%lld(%lld) %lldx%lldx%lld%s%s", dtype_name(j->type),
                        (long long)j->p.b, (long long)j->p.h, (long long)j->p.kv, (long long)j->p.t,
                        (long long)j->p.s, (long long)j->p.d, j->causal ? " causal" : "",
                        j->p.low    ? " low"
                        : j->p.most ? " in parts"
                                    : "");
}

static enum status check_job(struct kit *k, struct job *j) {
    uint32_t n = 0;
    TRY(cuda_compile_check(&k->ctx, NULL, j->plan, kernel_source, NULL, &n));
    printf("  %-44s %u kernels\n", j->name, n);
    k->passed++;
    return ST_OK;
}

/* The architecture that a plan for this engine is made for; 0: this GPU has no such kernels. */
static int engine_arch(const struct kit *k, enum engine e) {
    int arch = k->check ? 90 : cuda_plan_arch(k->gpu[0]);
    if (k->engine && strcmp(k->engine, engine_names[e]) != 0) return 0;
    return e != ENGINE_HOPPER ? 80 : arch == 90 ? 90 : 0;
}

static enum status accuracy(struct kit *k, const struct shape *s, bool causal, enum dtype type,
                            enum engine engine) {
    struct job j = {.p = *s, .causal = causal, .type = type, .scale = 1 / sqrt((double)s->d)};
    int arch = engine_arch(k, engine);
    j.name = job_name(k, &j);
    if (!arch || (k->only && !strstr(j.name, k->only))) return ST_OK;
    enum status st = make_plan(k, &j, arch);
    if (st == ST_OK && k->check) st = check_job(k, &j);
    if (st == ST_OK && !k->check) {
        fill(k, &j);
        widen(k, &j);
        st = run_case(k, &j, engine);
        if (st == ST_UNSUPPORTED) st = ST_OK;
    }
    drop(k, &j);
    return st;
}

/* How far the results are from those of the first engine, of the largest; some elements. */
static double apart(struct kit *k, const struct job *j, float *seen[ROLES]) {
    enum { EACH = 61 };
    double worst = 0, largest = 1e-2;
    for (int r = Y; r < ROLES; r++) {
        if (r == LSE || r == G || (r > DQ && j->data[r] == j->data[DQ])) continue;
        size_t n = bytes_of(j, r) / 2;
        bool first = !seen[r];
        if (first) seen[r] = ARENA_ARRAY(&k->arena, float, n / EACH + 1);
        for (size_t i = 0; i < n; i += EACH) {
            double x = dtype_load(j->type, (const char *)j->data[r] + 2 * i);
            if (first) seen[r][i / EACH] = (float)x;
            worst = fmax(worst, fabs(x - (double)seen[r][i / EACH]));
            largest = fmax(largest, fabs(x));
            if (x != x) return INFINITY;
        }
    }
    return worst / largest;
}

/* Change numbers in the text of the kernels for Hopper, "NAME=VALUE,NAME=VALUE"; they get all the
 * shared memory there is. */
static void vary(struct plan *p, const char *changes) {
    for (uint32_t i = 0; i < p->kernels.n; i++) {
        struct plan_kernel *x = &p->kernels.at[i];
        char *text = arena_strdup(&p->arena, changes), *left = text;
        if (strcmp(interned(&p->strings, x->file), "attention_hopper.cu") != 0) continue;
        for (char *at; (at = strsep(&left, ",")) != NULL;) {
            char *value = strchr(at, '=');
            if (!value) continue;
            *value++ = '\0';
            x->config =
                arena_printf(&p->arena, "%s#undef %s\n#define %s %s\n", x->config, at, at, value);
        }
        for (uint32_t c = 0; c < p->calls.n; c++)
            if (p->calls.at[c].kernel == i) p->calls.at[c].shared = SHARED_MOST;
    }
}

static enum status measure(struct kit *k, struct job *j, enum engine engine, double seconds[2],
                           double *error, float *seen[ROLES], uint32_t *by_cudnn) {
    struct cuda_exec *x = NULL;
    TRY(cuda_create(k->gpu[engine == ENGINE_PLAIN], j->plan, kernel_source, NULL, &x));
    *by_cudnn = cuda_cudnn_launches(x);
    enum status st = move(j, x, false);
    if (st == ST_OK) st = cuda_run(x, 0, 2, false);
    for (uint32_t i = 0; i < 2 && st == ST_OK; i++)
        st = cuda_measure_range(x, i, i + 1, TIMES, &seconds[i]);
    if (st == ST_OK && seen) st = move(j, x, true);
    if (st == ST_OK && seen) *error = apart(k, j, seen);
    cuda_destroy(x);
    return st;
}

/* One call of the gradient alone. */
static enum status measure_call(struct kit *k, struct job *j, uint32_t call, double *seconds) {
    struct plan_launch *l = &j->plan->launches.at[1], all = *l;
    double both[2] = {0, 0}, error;
    uint32_t n;
    l->first_call += call;
    l->ncalls = 1;
    enum status st = measure(k, j, ENGINE_HOPPER, both, &error, NULL, &n);
    *seconds = both[1];
    *l = all;
    return st;
}

/* Products of all pairs that count: two of them forward, five backward. */
static enum status time_engine(struct kit *k, struct job *j, enum engine engine,
                               const char *variant, float *seen[ROLES]) {
    const struct shape *s = &j->p;
    double pair = 2.0 * (double)(s->b * s->h * s->d) * (double)s->t * (double)s->s;
    double seconds[2] = {0, 0}, calls[2] = {0, 0}, error = 0;
    uint32_t by_cudnn = 0;
    if (j->causal) pair *= 0.5;
    TRY(make_plan(k, j, engine_arch(k, engine)));
    if (variant) vary(j->plan, variant);
    if (!j->data[Q]) fill(k, j);
    enum status st = measure(k, j, engine, seconds, &error, seen, &by_cudnn);
    for (uint32_t c = 0; c < 2 && engine == ENGINE_HOPPER && st == ST_OK; c++)
        st = measure_call(k, j, c, &calls[c]);
    error <= 0.02 ? k->passed++ : k->failed++;
    printf("  %-38s %-6s %u of 2 by cuDNN, forward %.3f ms %.0f TFLOP/s, gradient %.3f ms %.0f "
           "TFLOP/s (%.3f + %.3f), %.2g apart%s%s%s\n",
           j->name, engine_names[engine], by_cudnn, seconds[0] * 1e3, 2 * pair / seconds[0] * 1e-12,
           seconds[1] * 1e3, 5 * pair / seconds[1] * 1e-12, calls[0] * 1e3, calls[1] * 1e3, error,
           error <= 0.02 ? "" : " WRONG", variant ? ", " : "", variant ? variant : "");
    fflush(stdout);
    plan_destroy(j->plan);
    j->plan = NULL;
    return st;
}

static enum status timing(struct kit *k, const struct shape *s, bool causal) {
    struct job j = {.p = *s, .causal = causal, .type = DT_bf16, .scale = 1 / sqrt((double)s->d)};
    float *seen[ROLES] = {NULL};
    enum status st = ST_OK;
    j.name = job_name(k, &j);
    if (k->only && !strstr(j.name, k->only)) return ST_OK;
    for (int e = 0; e < ENGINES && st == ST_OK; e++) {
        bool wanted = e != ENGINE_PLAIN || k->engine;
        if (wanted && engine_arch(k, e)) st = time_engine(k, &j, e, NULL, seen);
    }
    for (int i = 0; i < k->nvariants && engine_arch(k, ENGINE_HOPPER); i++)
        if (time_engine(k, &j, ENGINE_HOPPER, k->variants[i], seen) != ST_OK) k->failed++;
    drop(k, &j);
    return st;
}

static void run_all(struct kit *k) {
    for (size_t i = 0; !k->only_times && i < sizeof odd / sizeof odd[0]; i++)
        for (int causal = 0; causal < 2; causal++)
            if (accuracy(k, &odd[i], causal, i % 4 == 3 ? DT_f16 : DT_bf16, ENGINE_HOPPER) != ST_OK)
                k->failed++;
    for (size_t i = 0; !k->no_times && i < sizeof timed / sizeof timed[0]; i++)
        for (int causal = 1; causal >= 0; causal--)
            if (timing(k, &timed[i], causal) != ST_OK) k->failed++;
    for (size_t i = 0; !k->only_times && i < sizeof shapes / sizeof shapes[0]; i++)
        for (int c = 0; c < 3; c++) /* the last: causal in f16 */
            for (int e = 0; e < ENGINES; e++)
                if (accuracy(k, &shapes[i], c > 0, c == 2 ? DT_f16 : DT_bf16, e) != ST_OK)
                    k->failed++;
}

static void give_up(int sig) {
    static const char words[] =
        "\nattention_test: still not done at the limit, a kernel may hang\n";
    (void)sig;
    if (write(STDOUT_FILENO, words, sizeof words - 1) < 0) _exit(4);
    _exit(3);
}

int main(int argc, char **argv) {
    static struct kit k;
    struct cuda_options o = {0};
    ctx_init(&k.ctx);
    k.ctx.report = report;
    k.ctx.landing = &k.landing;
    if (setjmp(k.landing)) return 1;
    arena_init(&k.arena, &k.ctx);
    signal(SIGALRM, give_up);
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--cache") == 0 && more)
            o.cache_dir = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && more)
            o.device = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--only") == 0 && more)
            k.only = argv[++i];
        else if (strcmp(argv[i], "--libraries") == 0 && more)
            o.library_dir = argv[++i];
        else if (strcmp(argv[i], "--engine") == 0 && more)
            k.engine = argv[++i];
        else if (strcmp(argv[i], "--variant") == 0 && more && k.nvariants < VARIANTS)
            k.variants[k.nvariants++] = argv[++i];
        else if (strcmp(argv[i], "--limit") == 0 && more)
            alarm((unsigned)strtoul(argv[++i], NULL, 10));
        else if (strcmp(argv[i], "--only-times") == 0)
            k.only_times = true;
        else if (strcmp(argv[i], "--no-times") == 0)
            k.no_times = true;
        else if (strcmp(argv[i], "--check") == 0)
            k.check = k.no_times = true;
        else
            return fprintf(stderr, "attention_test: unknown argument %s\n", argv[i]), 2;
    }
    for (int i = 0; i < 2 && !k.check; i++) {
        o.no_cudnn = i == 1;
        if (cuda_open(&k.ctx, &o, &k.gpu[i]) != ST_OK) return 1;
    }
    run_all(&k);
    cuda_close(k.gpu[0]);
    cuda_close(k.gpu[1]);
    arena_reset(&k.arena);
    printf("attention: %d passed, %d failed\n", k.passed, k.failed);
    return k.failed != 0 || k.passed == 0;
}
