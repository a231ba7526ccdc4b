// SPDX-License-Identifier: Apache-2.0
/* product_bench.c - products of a transformer's step in bf16 through cuBLASLt, with and without
 * what can be folded into them: bias, GELU, its gradient, bias gradients, residuals. For each the
 * best of the library's proposals: milliseconds, TFLOP/s, whether two runs give the same bits, and
 * how GELU's results compare with the formula. Not a test: that is gpu_test.
 *
 * usage: product_bench [--device N] [--libraries DIR] [--only TEXT] [--load]
 * --load: every proposal of the layers' products while the GPU is kept busy, as in a training step,
 * where what needs more power clocks lower; groups are stood for by copies of as many bytes. */
#include "runtime/cuda/matmul.h"
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROPOSALS = 64,
    KEPT = 4,
    ROUNDS = 5,
    BLOCK = 1 << 22, /* bytes of noise that memory repeats, and of results that are compared */
    COPY_BYTES = 1 << 30,
};
static const double seconds_in_a_row = 3e-3, group_share = 0.88;

/* Of cuBLASLt's interface, what the library does not use: attributes of a product and parts of
 * cublasLtEpilogue_t. */
enum {
    LT_DESC_AUX = 11,    /* pointer to a matrix of the result's size and type */
    LT_DESC_AUX_LD = 12, /* in elements; a multiple of 8 */
    LT_DESC_BIAS_TYPE = 26,
    LT_EPILOGUE_BGRAD = 16,   /* with DGELU: sums of the result's rows */
    LT_EPILOGUE_DGELU = 64,   /* of AUX */
    LT_EPILOGUE_AUX = 128,    /* GELU: its argument is written there */
    LT_EPILOGUE_BGRADA = 256, /* sums of the first operand over K */
    LT_EPILOGUE_BGRADB = 512,
};

enum add { ADD_NONE, ADD_IN_PLACE, ADD_OTHER };
/* Row-major: c[m,n] = a b, a [m,k] or (ta) [k,m], b [k,n] or (tb) [n,k]. */
struct line {
    const char *name;
    int64_t m, n, k;
    bool ta, tb;
    int32_t result, epilogue, bias; /* bias: its element type, or -1 */
    enum add add;
    double group; /* bytes per element of the result that a group after it would move; 0: none */
};

struct kit {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    struct cuda *gpu;
    const char *only;
    bool load;
    double copy_rate;
    int failed;
};

/* One line in work. */
struct job {
    struct kit *k;
    const struct line *l;
    lt_desc desc;
    lt_layout la, lb, lc;
    cu_ptr memory, a, b, c, r, aux, bias, other;
    size_t bytes, bytes_c, bytes_bias;
    cu_event begin, end;
    struct lt_candidate found[PROPOSALS];
    int n;
};

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    (void)user, (void)code;
    if (sev == SEV_ERROR) printf("    %s: %s\n", origin, message);
}

/* ---- describing --------------------------------------------------------------------------------
 */
static int64_t elem(int32_t type) {
    return type == LT_R_32F ? 4 : 2;
}
static bool has_aux(const struct line *l) {
    return l->epilogue & LT_EPILOGUE_AUX;
}

static int set(struct job *j, int key, const void *at, size_t n) {
    return j->k->gpu->lt.cublasLtMatmulDescSetAttribute(j->desc, key, at, n);
}

static int describe(struct job *j) {
    const struct line *l = j->l;
    const struct lt_api *lt = &j->k->gpu->lt;
    int32_t ta = l->tb, tb = l->ta, epilogue = l->epilogue;
    int e = lt->cublasLtMatmulDescCreate(&j->desc, LT_COMPUTE_32F, LT_R_32F);
    if (!e) e = set(j, LT_DESC_TRANSA, &ta, sizeof ta);
    if (!e) e = set(j, LT_DESC_TRANSB, &tb, sizeof tb);
    if (!e && epilogue) e = set(j, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!e && l->bias >= 0) e = set(j, LT_DESC_BIAS_TYPE, &l->bias, sizeof l->bias);
    if (!e && l->bias >= 0) e = set(j, LT_DESC_BIAS, &j->bias, sizeof j->bias);
    if (!e && has_aux(l)) e = set(j, LT_DESC_AUX, &j->aux, sizeof j->aux);
    if (!e && has_aux(l)) e = set(j, LT_DESC_AUX_LD, &l->n, sizeof l->n);
    uint64_t m = (uint64_t)l->m, n = (uint64_t)l->n, k = (uint64_t)l->k;
    if (!e)
        e = l->tb ? lt->cublasLtMatrixLayoutCreate(&j->la, LT_R_16BF, k, n, l->k)
                  : lt->cublasLtMatrixLayoutCreate(&j->la, LT_R_16BF, n, k, l->n);
    if (!e)
        e = l->ta ? lt->cublasLtMatrixLayoutCreate(&j->lb, LT_R_16BF, m, k, l->m)
                  : lt->cublasLtMatrixLayoutCreate(&j->lb, LT_R_16BF, k, m, l->k);
    if (!e) e = lt->cublasLtMatrixLayoutCreate(&j->lc, l->result, n, m, l->n);
    return e;
}

static int propose(struct job *j) {
    const struct lt_api *lt = &j->k->gpu->lt;
    lt_preference pref = NULL;
    size_t bytes = LT_WORKSPACE;
    uint32_t ordered = LT_REDUCE_ORDERED;
    int found = 0, e = lt->cublasLtMatmulPreferenceCreate(&pref);
    if (e) return e;
    e = lt->cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_WORKSPACE, &bytes, sizeof bytes);
    if (!e)
        e = lt->cublasLtMatmulPreferenceSetAttribute(pref, LT_PREF_REDUCTION, &ordered,
                                                     sizeof ordered);
    if (!e)
        e = lt->cublasLtMatmulAlgoGetHeuristic(j->k->gpu->lt_handle, j->desc, j->la, j->lb, j->lc,
                                               j->lc, pref, PROPOSALS, j->found, &found);
    lt->cublasLtMatmulPreferenceDestroy(pref);
    for (int i = 0; i < found && !e; i++)
        if (j->found[i].state == 0 && j->found[i].workspace <= LT_WORKSPACE)
            j->found[j->n++] = j->found[i];
    return e || j->n ? e : 15;
}

/* ---- memory ------------------------------------------------------------------------------------
 */
static size_t piece(struct job *j, int64_t bytes) {
    size_t at = j->bytes;
    j->bytes += ((size_t)bytes + 511) / 512 * 512;
    return at;
}

/* bf16 values in (-1, 1) from a fixed sequence (a 64-bit linear congruence, Knuth's constants). */
static bool fill_noise(struct job *j) {
    struct cuda *d = j->k->gpu;
    uint16_t *noise = ctx_alloc(d->ctx, BLOCK);
    uint64_t x = 1;
    for (size_t i = 0; i < BLOCK / sizeof *noise; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        float v = (float)((double)(x >> 11) * 0x1p-52 - 1) * 0.99f;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        noise[i] = (uint16_t)(bits >> 16);
    }
    size_t have = j->bytes < BLOCK ? j->bytes : BLOCK;
    bool ok = d->api.cuMemcpyHtoDAsync(j->memory, noise, have, d->stream) == CU_OK;
    while (ok && have < j->bytes) {
        size_t n = j->bytes - have < have ? j->bytes - have : have;
        ok = d->api.cuMemcpyDtoDAsync(j->memory + have, j->memory, n, d->stream) == CU_OK;
        have += n;
    }
    ok = d->api.cuStreamSynchronize(d->stream) == CU_OK && ok;
    ctx_free(d->ctx, noise);
    return ok;
}

static bool get_memory(struct job *j) {
    const struct line *l = j->l;
    const struct driver_api *api = &j->k->gpu->api;
    j->bytes_c = (size_t)(l->m * l->n * elem(l->result));
    /* A bias gradient of the first operand has its rows, one of the second its columns. */
    j->bytes_bias = l->bias < 0 ? 0 : (size_t)((l->n > l->m ? l->n : l->m) * elem(l->bias));
    size_t a = piece(j, l->m * l->k * 2), b = piece(j, l->k * l->n * 2);
    size_t c = piece(j, (int64_t)j->bytes_c);
    size_t r = piece(j, l->add == ADD_OTHER ? (int64_t)j->bytes_c : 0);
    size_t aux = piece(j, has_aux(l) ? l->m * l->n * 2 : 0),
           bias = piece(j, (int64_t)j->bytes_bias);
    size_t other = piece(j, j->k->load && l->group > 0 ? (int64_t)j->bytes_c : 0);
    if (api->cuMemAlloc(&j->memory, j->bytes) != CU_OK) return false;
    j->a = j->memory + a, j->b = j->memory + b, j->c = j->memory + c;
    j->r = l->add == ADD_OTHER ? j->memory + r : j->c;
    j->aux = j->memory + aux, j->bias = j->memory + bias, j->other = j->memory + other;
    return api->cuEventCreate(&j->begin, 0) == CU_OK && api->cuEventCreate(&j->end, 0) == CU_OK &&
           fill_noise(j);
}

static void job_end(struct job *j) {
    const struct driver_api *api = &j->k->gpu->api;
    const struct lt_api *lt = &j->k->gpu->lt;
    lt_layout all[] = {j->la, j->lb, j->lc};
    api->cuStreamSynchronize(j->k->gpu->stream);
    if (j->memory) api->cuMemFree(j->memory);
    if (j->begin) api->cuEventDestroy(j->begin);
    if (j->end) api->cuEventDestroy(j->end);
    for (int i = 0; i < 3; i++)
        if (all[i]) lt->cublasLtMatrixLayoutDestroy(all[i]);
    if (j->desc) lt->cublasLtMatmulDescDestroy(j->desc);
}

/* ---- timing ------------------------------------------------------------------------------------
 */
static bool call(struct job *j, int i) {
    struct cuda *d = j->k->gpu;
    float alpha = 0.125f, beta = j->l->add ? 1.0f : 0.0f;
    return d->lt.cublasLtMatmul(d->lt_handle, j->desc, &alpha, j->b, j->la, j->a, j->lb, &beta,
                                j->r, j->lc, j->c, j->lc, &j->found[i].algo, d->lt_workspace,
                                j->found[i].workspace, d->stream) == 0;
}

static double seconds_of(struct job *j, int i, int calls) {
    const struct driver_api *api = &j->k->gpu->api;
    cu_stream s = j->k->gpu->stream;
    float ms = 0;
    bool ok = api->cuEventRecord(j->begin, s) == CU_OK;
    for (int n = 0; n < calls && ok; n++) ok = call(j, i);
    ok = ok && api->cuEventRecord(j->end, s) == CU_OK && api->cuStreamSynchronize(s) == CU_OK &&
         api->cuEventElapsedTime(&ms, j->begin, j->end) == CU_OK;
    return ok ? (double)ms * 1e-3 / calls : INFINITY;
}

static double median(double *x, int n) {
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && x[k] < x[k - 1]; k--) {
            double t = x[k];
            x[k] = x[k - 1];
            x[k - 1] = t;
        }
    return x[n / 2];
}

/* The proposal with the best median of many calls in a row, among the few best single calls. */
static double best_of(struct job *j, int *winner) {
    int kept[KEPT] = {0};
    double first[KEPT], best = INFINITY;
    for (int i = 0; i < KEPT; i++) first[i] = INFINITY;
    for (int i = 0; i < j->n; i++) {
        double t = seconds_of(j, i, 1);
        if (isfinite(t)) t = fmin(seconds_of(j, i, 1), seconds_of(j, i, 1));
        if (t >= first[KEPT - 1]) continue;
        int at = KEPT - 1;
        for (; at > 0 && first[at - 1] > t; at--)
            first[at] = first[at - 1], kept[at] = kept[at - 1];
        first[at] = t, kept[at] = i;
    }
    for (int i = 0; i < KEPT && first[i] < 1.25 * first[0]; i++) {
        double all[ROUNDS];
        int calls = (int)ceil(seconds_in_a_row / first[i]);
        for (int r = 0; r < ROUNDS; r++) all[r] = seconds_of(j, kept[i], calls);
        double t = median(all, ROUNDS);
        if (t < best) best = t, *winner = kept[i];
    }
    return best;
}

/* ---- under load --------------------------------------------------------------------------------
 */
static const double seconds_of_load = 0.25, seconds_each = 0.03;
enum { LOAD_ROUNDS = 3 };

/* Seconds of a product and the group behind it, many in a row. */
static double pair_seconds(struct job *j, int i, int calls) {
    const struct driver_api *api = &j->k->gpu->api;
    cu_stream s = j->k->gpu->stream;
    size_t moved = (size_t)(j->l->group * (double)j->l->m * (double)j->l->n / 2);
    float ms = 0;
    bool ok = api->cuEventRecord(j->begin, s) == CU_OK;
    for (int n = 0; n < calls && ok; n++) {
        ok = call(j, i);
        for (size_t done = 0, one = j->bytes_c; done < moved && ok; done += one) {
            if (one > moved - done) one = moved - done;
            ok = api->cuMemcpyDtoDAsync(j->other, j->c, one, s) == CU_OK;
        }
    }
    ok = ok && api->cuEventRecord(j->end, s) == CU_OK && api->cuStreamSynchronize(s) == CU_OK &&
         api->cuEventElapsedTime(&ms, j->begin, j->end) == CU_OK;
    return ok ? (double)ms * 1e-3 / calls : INFINITY;
}

/* Every proposal: a single call of the best of three, and in turns under load. */
static void measure_load(struct job *j) {
    double single[PROPOSALS], sum[PROPOSALS] = {0}, all[PROPOSALS] = {0};
    double work = 2.0 * (double)j->l->m * (double)j->l->n * (double)j->l->k, t = 0;
    for (int i = 0; i < j->n; i++) {
        single[i] = seconds_of(j, i, 1);
        for (int k = 0; k < 3; k++) single[i] = fmin(single[i], seconds_of(j, i, 1));
    }
    for (int i = 0; t < seconds_of_load; i = (i + 1) % j->n) {
        if (!isfinite(single[i])) return;
        t += 10 * seconds_of(j, i, 10);
    }
    for (int round = 0; round < LOAD_ROUNDS; round++)
        for (int i = 0; i < j->n; i++) {
            int calls = (int)ceil(seconds_each / single[i]);
            sum[i] += seconds_of(j, i, calls) / LOAD_ROUNDS;
            if (j->l->group > 0) all[i] += pair_seconds(j, i, calls) / LOAD_ROUNDS;
        }
    putchar('\n');
    for (int i = 0; i < j->n; i++) {
        printf("      %2d alone %7.3f ms %6.1f TFLOP/s, under load %7.3f ms %6.1f TFLOP/s", i,
               single[i] * 1e3, work / single[i] * 1e-12, sum[i] * 1e3, work / sum[i] * 1e-12);
        if (j->l->group > 0) printf(", with a group %7.3f ms", all[i] * 1e3);
        putchar('\n');
    }
}

/* ---- results -----------------------------------------------------------------------------------
 */
static bool download(struct job *j, void *to, cu_ptr from, size_t bytes) {
    struct cuda *d = j->k->gpu;
    return d->api.cuMemcpyDtoHAsync(to, from, bytes, d->stream) == CU_OK &&
           d->api.cuStreamSynchronize(d->stream) == CU_OK;
}

/* Whether two runs leave the same bits: bias gradients whole, of matrices the first part. */
static bool same_twice(struct job *j, int i) {
    size_t n = j->bytes_c < BLOCK ? j->bytes_c : BLOCK, all = n + j->bytes_bias;
    char *x = ctx_alloc(&j->k->ctx, all), *y = ctx_alloc(&j->k->ctx, all);
    bool ok = true;
    for (int run = 0; run < 2 && ok; run++) {
        char *to = run ? y : x;
        ok = call(j, i) && download(j, to, j->c, n) &&
             (!j->bytes_bias || download(j, to + n, j->bias, j->bytes_bias));
    }
    ok = ok && memcmp(x, y, all) == 0;
    ctx_free(&j->k->ctx, x);
    ctx_free(&j->k->ctx, y);
    return ok;
}

static float wide(uint16_t b) {
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint16_t narrow(double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_erf(double x) {
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

/* How the activation relates to both formulas at what was stored beside it: where they differ most
 * the mean deviation tells which one it is, and bits that a rounded argument does not explain come
 * from one that was not rounded. */
static void compare_gelu(struct job *j) {
    size_t n = BLOCK / 2;
    uint16_t *y = ctx_alloc(&j->k->ctx, BLOCK), *x = ctx_alloc(&j->k->ctx, BLOCK);
    if (download(j, y, j->c, BLOCK) && download(j, x, j->aux, BLOCK)) {
        double tanh_error = 0, erf_error = 0;
        size_t other = 0, far = 0;
        for (size_t i = 0; i < n; i++) {
            double v = (double)wide(x[i]), got = (double)wide(y[i]);
            other += y[i] != narrow(gelu_tanh(v));
            if (v < -3.5 || v > -2.5) continue;
            tanh_error += got / gelu_tanh(v) - 1;
            erf_error += got / gelu_erf(v) - 1;
            far++;
        }
        printf("      deviation from tanh form %+.4f, erf form %+.4f; other bits than those of the "
               "rounded argument %.2f%%\n",
               tanh_error / (double)far, erf_error / (double)far,
               100.0 * (double)other / (double)n);
    }
    ctx_free(&j->k->ctx, x);
    ctx_free(&j->k->ctx, y);
}

static void measure(struct kit *k, const struct line *l) {
    struct job *j = ARENA_NEW(&k->arena, struct job);
    char size[64];
    j->k = k, j->l = l;
    if (k->only && !strstr(l->name, k->only)) return;
    snprintf(size, sizeof size, "%lldx%lldx%lld %c%c", (long long)l->m, (long long)l->n,
             (long long)l->k, l->ta ? 't' : 'n', l->tb ? 't' : 'n');
    printf("  %-34s %-24s", l->name, size);
    int e = get_memory(j) ? describe(j) : 3, winner = 0;
    if (!e) e = propose(j);
    if (!e && k->load) {
        measure_load(j);
        fflush(stdout);
        job_end(j);
        return;
    }
    double t = e ? INFINITY : best_of(j, &winner);
    if (!isfinite(t)) {
        printf(" refused: %s (%d)\n", lt_words(e), e);
    } else {
        double work = 2.0 * (double)l->m * (double)l->n * (double)l->k;
        double group = l->group * (double)l->m * (double)l->n / (k->copy_rate * group_share);
        printf(" %8.3f ms %7.1f TFLOP/s  %2d of %2d  %s", t * 1e3, work / t * 1e-12, winner, j->n,
               l->add == ADD_IN_PLACE  ? "-"
               : same_twice(j, winner) ? "same bits"
                                       : "OTHER BITS");
        if (l->group > 0) printf("  with a group %.3f ms", (t + group) * 1e3);
        putchar('\n');
        if (has_aux(l) && (l->epilogue & LT_EPILOGUE_GELU)) compare_gelu(j);
    }
    fflush(stdout);
    job_end(j);
}

/* ---- what is measured --------------------------------------------------------------------------
 */
enum { H = LT_R_16BF, F = LT_R_32F, NO = -1 };
enum {
    PLAIN = 0,
    BIAS = LT_EPILOGUE_BIAS,
    GELU = LT_EPILOGUE_GELU,
    AUX = LT_EPILOGUE_AUX,
    DGELU = LT_EPILOGUE_DGELU | AUX,
    BGRAD = LT_EPILOGUE_BGRAD,
    BGRADA = LT_EPILOGUE_BGRADA,
    BGRADB = LT_EPILOGUE_BGRADB,
};

/* rows x width, a layer four times as wide in between. */
static void bench_mlp(struct kit *k, int64_t rows, int64_t width) {
    int64_t hidden = 4 * width;
    const struct line lines[] = {
        {"fc1", rows, hidden, width, 0, 0, H, PLAIN, NO, ADD_NONE, 4},
        {"fc1, b transposed", rows, hidden, width, 0, 1, H, PLAIN, NO, ADD_NONE, 4},
        {"fc1 + bias", rows, hidden, width, 0, 0, H, BIAS, H, ADD_NONE, 4},
        {"fc1 + bias, gelu", rows, hidden, width, 0, 0, H, GELU | BIAS, H, ADD_NONE, 0},
        {"fc1, gelu, aux", rows, hidden, width, 0, 0, H, GELU | AUX, NO, ADD_NONE, 0},
        {"fc1 + bias, gelu, aux", rows, hidden, width, 0, 0, H, GELU | AUX | BIAS, H, ADD_NONE, 0},
        {"fc1 + f32 bias, gelu, aux", rows, hidden, width, 0, 0, H, GELU | AUX | BIAS, F, ADD_NONE,
         0},
        {"fc1 + bias, gelu, aux, b transposed", rows, hidden, width, 0, 1, H, GELU | AUX | BIAS, H,
         ADD_NONE, 0},
        {"fc2 dx", rows, hidden, width, 0, 1, H, PLAIN, NO, ADD_NONE, 6},
        {"fc2 dx, dgelu", rows, hidden, width, 0, 1, H, DGELU, NO, ADD_NONE, 2},
        {"fc2 dx, dgelu, bias gradient", rows, hidden, width, 0, 1, H, DGELU | BGRAD, H, ADD_NONE,
         0},
        {"fc2 dx, dgelu, f32 bias gradient", rows, hidden, width, 0, 1, H, DGELU | BGRAD, F,
         ADD_NONE, 0},
        {"fc2 dx, dgelu, b plain", rows, hidden, width, 0, 0, H, DGELU, NO, ADD_NONE, 2},
        {"fc1 dw", width, hidden, rows, 1, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"fc1 dw, bias gradient", width, hidden, rows, 1, 0, H, BGRADA, H, ADD_NONE, 0},
        {"fc1 dw, f32 bias gradient", width, hidden, rows, 1, 0, H, BGRADA, F, ADD_NONE, 0},
        {"qkv dw", width, 3 * width, rows, 1, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"qkv dw, bias gradient", width, 3 * width, rows, 1, 0, H, BGRADA, H, ADD_NONE, 0},
        {"qkv dw, f32 bias gradient", width, 3 * width, rows, 1, 0, H, BGRADA, F, ADD_NONE, 0},
        {"qkv dw transposed, bias gradient", 3 * width, width, rows, 1, 0, H, BGRADB, H, ADD_NONE,
         0},
    };
    printf("%lld rows of %lld\n", (long long)rows, (long long)width);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) measure(k, &lines[i]);
}

/* Products whose result joins a residual stream. */
static void bench_residual(struct kit *k, int64_t rows, int64_t width) {
    for (int wide_k = 0; wide_k < 2; wide_k++) {
        int64_t depth = wide_k ? 4 * width : width;
        const char *name[] = {"proj",
                              "proj + bias",
                              "proj + bias + c",
                              "proj + bias + c in place",
                              "proj + c",
                              "proj + c in place",
                              "proj + bias + c, b transposed",
                              "proj + bias, b transposed"};
        const struct line lines[] = {
            {name[0], rows, width, depth, 0, 0, H, PLAIN, NO, ADD_NONE, 6},
            {name[1], rows, width, depth, 0, 0, H, BIAS, H, ADD_NONE, 6},
            {name[2], rows, width, depth, 0, 0, H, BIAS, H, ADD_OTHER, 0},
            {name[3], rows, width, depth, 0, 0, H, BIAS, H, ADD_IN_PLACE, 0},
            {name[4], rows, width, depth, 0, 0, H, PLAIN, NO, ADD_OTHER, 0},
            {name[5], rows, width, depth, 0, 0, H, PLAIN, NO, ADD_IN_PLACE, 0},
            {name[6], rows, width, depth, 0, 1, H, BIAS, H, ADD_OTHER, 0},
            {name[7], rows, width, depth, 0, 1, H, BIAS, H, ADD_NONE, 6},
        };
        for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) measure(k, &lines[i]);
    }
}

static void bench_head(struct kit *k, int64_t rows, int64_t words, int64_t width) {
    const struct line lines[] = {
        {"head", rows, words, width, 0, 1, H, PLAIN, NO, ADD_NONE, 0},
        {"head, b plain", rows, words, width, 0, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"head dx", rows, width, words, 0, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"head dx, b transposed", rows, width, words, 0, 1, H, PLAIN, NO, ADD_NONE, 0},
        {"head dw, f32", words, width, rows, 1, 0, F, PLAIN, NO, ADD_NONE, 0},
        {"head dw, f32, adds", words, width, rows, 1, 0, F, PLAIN, NO, ADD_IN_PLACE, 0},
        {"head dw transposed, f32", width, words, rows, 1, 0, F, PLAIN, NO, ADD_NONE, 0},
        {"head dw transposed, f32, adds", width, words, rows, 1, 0, F, PLAIN, NO, ADD_IN_PLACE, 0},
    };
    printf("head of %lld rows, %lld words of %lld\n", (long long)rows, (long long)words,
           (long long)width);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) measure(k, &lines[i]);
}

/* What a layer and a chunk of the head are made of, and what could be folded. */
static void bench_load(struct kit *k, int64_t rows, int64_t width, int64_t chunk) {
    int64_t hidden = 4 * width, words = 50304;
    const struct line lines[] = {
        {"qkv + bias", rows, 3 * width, width, 0, 0, H, BIAS, H, ADD_NONE, 0},
        {"proj + bias + c", rows, width, width, 0, 0, H, BIAS, H, ADD_OTHER, 0},
        {"fc1", rows, hidden, width, 0, 0, H, PLAIN, NO, ADD_NONE, 4},
        {"fc1 + bias, gelu, aux", rows, hidden, width, 0, 0, H, GELU | AUX | BIAS, H, ADD_NONE, 0},
        {"fc2 + bias + c", rows, width, hidden, 0, 0, H, BIAS, H, ADD_OTHER, 0},
        {"fc2 dx", rows, hidden, width, 0, 1, H, PLAIN, NO, ADD_NONE, 6},
        {"fc2 dx, dgelu", rows, hidden, width, 0, 1, H, DGELU, NO, ADD_NONE, 2},
        {"fc2 dw", hidden, width, rows, 1, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"fc1 dx", rows, width, hidden, 0, 1, H, PLAIN, NO, ADD_NONE, 0},
        {"fc1 dw", width, hidden, rows, 1, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"qkv dx", rows, width, 3 * width, 0, 1, H, PLAIN, NO, ADD_NONE, 0},
        {"qkv dw", width, 3 * width, rows, 1, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"head", chunk, words, width, 0, 1, H, PLAIN, NO, ADD_NONE, 0},
        {"head dx", chunk, width, words, 0, 0, H, PLAIN, NO, ADD_NONE, 0},
        {"head dw, f32, adds", words, width, chunk, 1, 0, F, PLAIN, NO, ADD_OTHER, 0},
    };
    printf("%lld rows of %lld, under load\n", (long long)rows, (long long)width);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) measure(k, &lines[i]);
}

static int body(struct kit *k, const struct cuda_options *o) {
    double seconds;
    if (cuda_open(&k->ctx, o, &k->gpu) != ST_OK) return 1;
    if (cuda_measure_copy(k->gpu, COPY_BYTES, &seconds) != ST_OK) return 1;
    if (lt_open(k->gpu) != ST_OK || library_memory(k->gpu) != ST_OK) return 1;
    k->copy_rate = 2.0 * COPY_BYTES / seconds;
    printf("%s: a copy moves %.1f GB/s; cuBLASLt %zu; best of the proposals, its number of how "
           "many\n",
           cuda_get_info(k->gpu).name, k->copy_rate * 1e-9, k->gpu->lt.cublasLtGetVersion());
    if (k->load) {
        bench_load(k, 65536, 768, 8192);
        cuda_close(k->gpu);
        return 0;
    }
    bench_mlp(k, 65536, 768);
    bench_residual(k, 65536, 768);
    bench_mlp(k, 16384, 1024);
    bench_residual(k, 16384, 1024);
    for (int64_t rows = 4096; rows <= 32768; rows *= 2) bench_head(k, rows, 50304, 768);
    cuda_close(k->gpu);
    return k->failed != 0;
}

int main(int argc, char **argv) {
    static struct kit k;
    struct cuda_options o = {0};
    ctx_init(&k.ctx);
    k.ctx.report = report;
    k.ctx.landing = &k.landing;
    arena_init(&k.arena, &k.ctx);
    if (setjmp(k.landing)) return 1;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--device") == 0 && more)
            o.device = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--libraries") == 0 && more)
            o.library_dir = argv[++i];
        else if (strcmp(argv[i], "--only") == 0 && more)
            k.only = argv[++i];
        else if (strcmp(argv[i], "--load") == 0)
            k.load = true;
        else
            return fprintf(stderr, "product_bench: unknown argument %s\n", argv[i]), 2;
    }
    int rc = body(&k, &o);
    arena_reset(&k.arena);
    return rc;
}
