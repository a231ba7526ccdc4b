// SPDX-License-Identifier: Apache-2.0
/* matmul_choose.c - which of cuBLASLt's algorithms computes a product. All that are asked for give
 * the same bits at every run, but different ones differ in the last bits. So with a cache directory
 * the fastest is found by measuring once and remembered there, and without one the library's first
 * proposal is taken, which needs no memory to be the same again. */
#include "base/sys.h"
#include "runtime/cuda/matmul.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    CANDIDATES = 24,
    FINALISTS = 5,
    ROUNDS = 3,
    CALLS_MAX = 64,
    NOISE_BYTES = 1 << 18, /* pattern that test operands repeat */
};
static const double least_work = 4e6;    /* operations of one call that are worth measuring */
static const double seconds_each = 0.12; /* at most, for the first round of one product */
static const double seconds_in_a_row = 3e-3;
static const double seconds_of_heat = 12e-3;
static const double near_best = 1.2; /* times the best: still in the running */

/* ---- proposals ---------------------------------------------------------------------------------
 */
static enum status propose(struct cuda *d, const struct product *p, const char *origin,
                           struct lt_candidate out[CANDIDATES], int *n) {
    lt_preference pref = NULL;
    const struct shape *s = &p->shape;
    size_t bytes = LT_WORKSPACE;
    uint32_t ordered = LT_REDUCE_ORDERED,
             align[4] = {s->align_a, s->align_b, s->align_r, s->align_c};
    TRY(lt_status(d, d->lt.cublasLtMatmulPreferenceCreate(&pref), origin, "asking for algorithms"));
    int e =
        d->lt.cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_WORKSPACE, &bytes, sizeof bytes);
    if (e == 0)
        e = d->lt.cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_REDUCTION, &ordered,
                                                       sizeof ordered);
    for (int i = 0; i < 4 && e == 0; i++)
        e = d->lt.cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_ALIGN_A + i, &align[i],
                                                       sizeof align[i]);
    *n = 0;
    if (e == 0)
        e = d->lt.cublasLtMatmulAlgoGetHeuristic(
            d->lt_handle, p->desc, p->a, p->b, p->r ? p->r : p->c, p->c, pref, CANDIDATES, out, n);
    d->lt.cublasLtMatmulPreferenceDestroy(pref);
    int usable = 0;
    for (int i = 0; i < *n && e == 0; i++)
        if (out[i].state == 0 && out[i].workspace <= LT_WORKSPACE) out[usable++] = out[i];
    *n = usable;
    if (e == 0 && usable) return ST_OK;
    return diag_error(
        d->ctx, ST_UNSUPPORTED, origin,
        "cuBLASLt has no algorithm for this product of %lldx%lldx%lld, batch %lld: %s",
        (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->batch,
        e ? lt_words(e) : "none was proposed");
}

/* ---- measuring ---------------------------------------------------------------------------------
 */
/* Operands of the shape, filled with noise: zeros would let the GPU run faster than it will. */
struct bench {
    struct cuda *d;
    const struct product *p;
    cu_ptr memory;
    struct product_memory at;
    cu_event start, stop;
};

static size_t extent(int64_t rows, int64_t cols, int64_t ld, int64_t stride, int64_t batch,
                     int64_t elem) {
    int64_t one = (cols - 1) * ld + rows, reach = (batch - 1) * stride;
    return ((size_t)((one + reach) * elem) + 511) / 512 * 512;
}

/* bf16 values in (-1, 1) from a fixed sequence (a 64-bit linear congruence, Knuth's MMIX
 * constants); read as f16, f32 or f64 they are finite too, and so are their bytes as 8-bit floats
 * with one bit cleared. Copied from the first piece on. */
static bool fill_noise(struct bench *b, size_t bytes) {
    const struct driver_api *api = &b->d->api;
    uint16_t *noise = ctx_alloc(b->d->ctx, NOISE_BYTES);
    uint64_t x = 1;
    for (size_t i = 0; i < NOISE_BYTES / sizeof *noise; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        float v = (float)((double)(x >> 11) * 0x1p-52 - 1) * 0.99f;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        noise[i] = b->p->elem == 1 ? (uint16_t)(x >> 40 & 0xf7f7) : (uint16_t)(bits >> 16);
    }
    size_t have = bytes < NOISE_BYTES ? bytes : NOISE_BYTES;
    bool ok = api->cuMemcpyHtoDAsync(b->memory, noise, have, b->d->stream) == CU_OK;
    while (ok && have < bytes) {
        size_t n = bytes - have < have ? bytes - have : have;
        ok = api->cuMemcpyDtoDAsync(b->memory + have, b->memory, n, b->d->stream) == CU_OK;
        have += n;
    }
    ok = api->cuStreamSynchronize(b->d->stream) == CU_OK && ok;
    ctx_free(b->d->ctx, noise);
    return ok;
}

static bool bench_open(struct bench *b) {
    const struct shape *s = &b->p->shape;
    const struct driver_api *api = &b->d->api;
    int64_t elem = b->p->elem, elem_c = b->p->elem_c, n = s->batch;
    if (s->sa < 0 || s->sb < 0 || s->sc < 0 || s->sr < 0) return false;
    size_t at_b = extent(s->ta ? s->k : s->m, s->ta ? s->m : s->k, s->lda, s->sa, n, elem);
    size_t at_c = at_b + extent(s->tb ? s->n : s->k, s->tb ? s->k : s->n, s->ldb, s->sb, n, elem);
    size_t at_r = at_c + extent(s->m, s->n, s->ldc, s->sc, n, elem_c);
    size_t at_bias = at_r + (s->residual ? extent(s->m, s->n, s->ldr, s->sr, n, elem_c) : 0);
    size_t at_sa = at_bias + extent(s->m, 1, s->m, 0, 1, elem_c);
    size_t at_sb = at_sa + extent(s->m, 1, s->m, 0, 1, 4);
    size_t all = at_sb + extent(s->n, 1, s->n, 0, 1, 4);
    if (api->cuMemAlloc(&b->memory, all) != CU_OK) {
        b->memory = 0; /* measuring is a luxury */
        return false;
    }
    cu_ptr at = b->memory;
    b->at = (struct product_memory){.a = at,
                                    .b = at + at_b,
                                    .c = at + at_c,
                                    .add = at + (s->residual ? at_r : at_c),
                                    .bias = at + at_bias,
                                    .scale_a = at + at_sa,
                                    .scale_b = at + at_sb};
    return api->cuEventCreate(&b->start, 0) == CU_OK && api->cuEventCreate(&b->stop, 0) == CU_OK &&
           fill_noise(b, all);
}

static void bench_close(struct bench *b) {
    const struct driver_api *api = &b->d->api;
    if (b->memory) {
        api->cuStreamSynchronize(b->d->stream);
        api->cuMemFree(b->memory);
    }
    if (b->start) api->cuEventDestroy(b->start);
    if (b->stop) api->cuEventDestroy(b->stop);
}

static bool bench_call(struct bench *b, const struct lt_candidate *k) {
    return product_call(b->d, b->p, &b->at, &k->algo, k->workspace) == 0;
}

/* Seconds of one of `calls` calls in a row. */
static double bench_time(struct bench *b, const struct lt_candidate *k, int calls) {
    const struct driver_api *api = &b->d->api;
    cu_stream stream = b->d->stream;
    float ms = 0;
    bool ok = api->cuEventRecord(b->start, stream) == CU_OK;
    for (int i = 0; i < calls && ok; i++) ok = bench_call(b, k);
    ok = ok && api->cuEventRecord(b->stop, stream) == CU_OK &&
         api->cuStreamSynchronize(stream) == CU_OK &&
         api->cuEventElapsedTime(&ms, b->start, b->stop) == CU_OK;
    return ok ? (double)ms * 1e-3 / calls : INFINITY;
}

struct finalist {
    int candidate;
    double seconds;
};

/* The best few by the shorter of two single calls, best first; unused places have no time. */
static void first_round(struct bench *b, const struct lt_candidate *k, int n,
                        struct finalist best[FINALISTS]) {
    double limit = sys_seconds() + seconds_each;
    for (int i = 0; i < FINALISTS; i++) best[i] = (struct finalist){0, INFINITY};
    for (int i = 0; i < n && (i == 0 || sys_seconds() < limit); i++) {
        if (!bench_call(b, &k[i])) continue; /* loads the kernel */
        double t = bench_time(b, &k[i], 1);
        if (t < 1.3 * best[0].seconds) t = fmin(t, bench_time(b, &k[i], 1));
        if (t >= best[FINALISTS - 1].seconds) continue;
        int at = FINALISTS - 1;
        for (; at > 0 && best[at - 1].seconds > t; at--) best[at] = best[at - 1];
        best[at] = (struct finalist){i, t};
    }
}

static int calls_for(double seconds, double one) {
    double calls = ceil(seconds / one);
    return calls < CALLS_MAX ? (int)calls : CALLS_MAX;
}

/* The index of the fastest candidate. A single call finds the GPU cool and its clock high, and the
 * order changes once power limits the clock: so the best of the first round run again in turns,
 * many calls in a row as in a training step, on a GPU that is warm by then. */
static int fastest(struct cuda *d, const struct product *p, const struct lt_candidate *k, int n) {
    struct bench b = {.d = d, .p = p};
    struct finalist best[FINALISTS] = {{0, INFINITY}};
    if (bench_open(&b)) first_round(&b, k, n, best);
    if (isfinite(best[1].seconds) && best[1].seconds < near_best * best[0].seconds) {
        double sum[FINALISTS] = {0};
        for (double end = sys_seconds() + seconds_of_heat; sys_seconds() < end;)
            (void)bench_time(&b, &k[best[0].candidate],
                             calls_for(seconds_in_a_row, best[0].seconds));
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < FINALISTS; i++)
                if (best[i].seconds < near_best * best[0].seconds)
                    sum[i] += bench_time(&b, &k[best[i].candidate],
                                         calls_for(seconds_in_a_row, best[0].seconds));
                else
                    sum[i] = INFINITY;
        int winner = 0;
        for (int i = 1; i < FINALISTS; i++)
            if (sum[i] < sum[winner]) winner = i;
        best[0].candidate = best[winner].candidate;
    }
    bench_close(&b);
    return best[0].candidate;
}

/* ---- remembering -------------------------------------------------------------------------------
 */
struct remembered {
    struct lt_algo algo;
    uint64_t workspace;
};

/* The problem, the GPU and the library; nothing else decides. */
static struct hash128 choice_key(struct cuda *d, const struct shape *s) {
    struct {
        char what[16], gpu[128];
        uint64_t library, processors;
        struct shape shape;
    } key;
    memset(&key, 0, sizeof key);
    memcpy(key.what, "cublasLt algo 5", sizeof key.what);
    snprintf(key.gpu, sizeof key.gpu, "%s", d->info.name);
    key.library = d->lt.cublasLtGetVersion();
    key.processors = (uint64_t)d->info.processors;
    key.shape = *s;
    return hash_bytes128(&key, sizeof key);
}

static bool recall(struct cuda *d, const struct product *p, struct hash128 key,
                   struct lt_candidate *out) {
    const void *at;
    size_t bytes;
    struct remembered r;
    struct arena a;
    arena_init(&a, d->ctx);
    bool found = cache_get(&a, d->compiler.cache_dir, key, &at, &bytes) && bytes == sizeof r;
    if (found) memcpy(&r, at, sizeof r);
    arena_reset(&a);
    if (!found || r.workspace > LT_WORKSPACE) return false;
    struct lt_candidate check = {.state = 1};
    int e = d->lt.cublasLtMatmulAlgoCheck(d->lt_handle, p->desc, p->a, p->b, p->r ? p->r : p->c,
                                          p->c, &r.algo, &check);
    if (e != 0 || check.workspace > LT_WORKSPACE) return false;
    *out = (struct lt_candidate){.algo = r.algo, .workspace = (size_t)r.workspace};
    if (check.workspace > out->workspace) out->workspace = check.workspace;
    return true;
}

static enum status find(struct cuda *d, const struct product *p, const char *origin,
                        struct lt_candidate *out) {
    const struct shape *s = &p->shape;
    struct lt_candidate found[CANDIDATES];
    int n = 0;
    double work = 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)s->batch;
    bool measure = d->compiler.cache_dir && work >= least_work;
    struct hash128 key = choice_key(d, s);
    if (measure && recall(d, p, key, out)) return ST_OK;
    TRY(propose(d, p, origin, found, &n));
    *out = found[0];
    if (!measure) return ST_OK;
    int best = n > 1 ? fastest(d, p, found, n) : 0;
    struct remembered r = {found[best].algo, found[best].workspace};
    /* What cannot be remembered would not be the same next time. */
    if (cache_put(d->ctx, d->compiler.cache_dir, key, &r, sizeof r)) *out = found[best];
    return ST_OK;
}

enum status product_choose(struct cuda *d, struct product *p, const char *origin) {
    for (uint32_t i = 0; i < d->algos.n; i++) {
        p->algo = d->algos.at[i];
        if (memcmp(&p->algo->shape, &p->shape, sizeof p->shape) == 0) return ST_OK;
    }
    struct lt_candidate k;
    TRY(find(d, p, origin, &k));
    p->algo = ARENA_NEW(&d->arena, struct chosen_algo);
    *p->algo = (struct chosen_algo){p->shape, k.algo, k.workspace};
    vec_push(&d->arena, &d->algos, p->algo);
    return ST_OK;
}
