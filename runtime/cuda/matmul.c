// SPDX-License-Identifier: Apache-2.0
/* matmul.c - products through cuBLASLt: full f32 or f64 arithmetic, any strides a plan allows, any
 * batch axes. The algorithm is the library's first proposal, or a faster one that gives the same
 * bits, so that measuring never changes a result. */
#include "runtime/cuda/impl.h"
#include <limits.h>
#include <math.h>
#include <string.h>

enum {
    WORKSPACE = 32 << 20,
    CANDIDATES = 8,
    TIMED_RUNS = 3,
    BATCH_MAX = 65535,        /* grid limit of one strided call */
    NOISE_BYTES = 1 << 20,    /* pattern that test operands repeat */
    COMPARED_BYTES = 16 << 20 /* of a result, when candidates are compared */
};
static const double worth_measuring = 4e6; /* operations of one call */

/* All that a choice of algorithm depends on, in cuBLASLt's column-major terms. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc, batch, sa, sb, sc;
    uint32_t align_a, align_b, align_c;
    int32_t ta, tb, wide, add; /* wide: f64 */
    int32_t unused;            /* no padding: shapes are compared as bytes */
};
struct chosen_algo {
    struct shape shape;
    struct lt_algo algo;
    size_t workspace;
};

/* One strided call, repeated at each of `loops` triples of offsets (bytes). */
struct product {
    struct shape shape;
    bool swap;  /* the plan's b is cuBLASLt's a */
    bool clear; /* K is 0: nothing is added up */
    int64_t elem, loops;
    int64_t (*offsets)[3];
    double alpha, beta;
    lt_desc desc;
    lt_layout a, b, c;
    struct chosen_algo *algo;
    struct cuda *d;
};

/* ---- the library -------------------------------------------------------------------------------
 */
#define NAME(type, name, args) #name,
static const char *const functions[] = {CUDA_LT(NAME)};
#undef NAME
_Static_assert(sizeof functions / sizeof functions[0] * sizeof(void *) == sizeof(struct lt_api),
               "one name for each member");

static const char *lt_words(int result) {
    switch (result) {
    case 1: return "not initialized";
    case 3: return "out of memory";
    case 7: return "invalid value";
    case 8: return "the architecture is not supported";
    case 13: return "execution failed";
    case 14: return "internal error";
    case 15: return "not supported";
    default: return "unknown error";
    }
}

static enum status lt_status(struct cuda *d, int result, const char *origin, const char *what) {
    if (result == 0) return ST_OK;
    return diag_error(d->ctx, result == 3 ? ST_OUT_OF_MEMORY : ST_IO, origin,
                      "cuBLASLt failed (%s): %s (%d)", what, lt_words(result), result);
}
#define TRY_LT(d, call, origin, what)                                                              \
    do {                                                                                           \
        int try_result_ = (d)->lt.call;                                                            \
        if (try_result_ != 0) return lt_status((d), try_result_, (origin), (what));                \
    } while (0)

static enum status lt_open(struct cuda *d) {
    static const char *const new_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
    struct buf tried;
    if (d->lt_handle) return ST_OK;
    buf_init(&tried, &d->arena);
    bool old_driver = d->info.driver_version < 13000;
    void *lib = library_open(&d->arena, d->library_dir, new_names + old_driver, &tried);
    if (!lib)
        return diag_error(d->ctx, ST_UNSUPPORTED, "",
                          "products on the GPU need the cuBLASLt library of CUDA 12 or 13 (looked "
                          "for %s); install the toolkit's libcublas or name its folder",
                          tried.at);
    const char *missing =
        library_fill(lib, functions, sizeof functions / sizeof functions[0], &d->lt);
    if (missing)
        return diag_error(d->ctx, ST_UNSUPPORTED, "",
                          "the cuBLASLt library has no function %s; install that of CUDA 12 or 13",
                          missing);
    if (!d->lt_workspace)
        TRY_CU(d, cuMemAlloc(&d->lt_workspace, WORKSPACE), "", "workspace of products");
    lt_handle handle = NULL;
    TRY_LT(d, cublasLtCreate(&handle), "", "starting");
    d->lt_handle = handle;
    return ST_OK;
}

void lt_close(struct cuda *d) {
    if (d->lt_handle) d->lt.cublasLtDestroy(d->lt_handle);
    if (d->lt_workspace) d->api.cuMemFree(d->lt_workspace);
    d->lt_handle = NULL;
    d->lt_workspace = 0;
}

/* ---- from views to column-major ----------------------------------------------------------------
 */
/* A matrix whose rows (or, `trans`, columns) are contiguous. */
struct matrix {
    const struct plan_view *v;
    bool trans;
    int64_t ld;
};

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static struct matrix matrix_of(const struct plan_view *v) {
    int64_t rows = v->dims[v->rank - 2], cols = v->dims[v->rank - 1];
    int64_t rs = v->strides[v->rank - 2], cs = v->strides[v->rank - 1];
    struct matrix x = {.v = v, .trans = cs != 1 && cols != 1};
    x.ld = largest(x.trans ? cs : rs, largest(x.trans ? rows : cols, 1));
    return x;
}

/* The batch axes of all three, those merged that one stride can walk. */
struct batch {
    int n;
    int64_t dims[RANK_MAX], stride[3][RANK_MAX];
};
static struct batch batch_of(const struct plan_view *a, const struct plan_view *b,
                             const struct plan_view *c) {
    const struct plan_view *v[3] = {a, b, c};
    struct batch r = {.n = 0};
    for (int i = 0; i < c->rank - 2; i++) {
        if (c->dims[i] == 1) continue;
        bool merge = r.n > 0;
        for (int k = 0; k < 3 && merge; k++)
            merge = r.stride[k][r.n - 1] == v[k]->strides[i] * c->dims[i];
        int at = merge ? r.n - 1 : r.n;
        r.dims[at] = (merge ? r.dims[at] : 1) * c->dims[i];
        for (int k = 0; k < 3; k++) r.stride[k][at] = v[k]->strides[i];
        r.n = at + 1;
    }
    return r;
}

/* The lowest set bit of an address that is a sum of multiples of these, at most 256. */
static uint32_t alignment(const struct plan *p, const struct plan_view *v, int64_t elem) {
    uint64_t bits =
        256 | (uint64_t)p->buffers.at[v->buffer.i].offset | (uint64_t)(v->offset * elem);
    for (int i = 0; i < v->rank - 2; i++)
        if (v->dims[i] > 1) bits |= (uint64_t)(v->strides[i] * elem);
    return (uint32_t)(bits & -bits);
}

/* Take the largest batch axis into the call; loop over the others. */
static void set_batches(struct product *p, struct batch *b, struct arena *a) {
    int pick = 0;
    p->shape.batch = 1;
    p->loops = 1;
    for (int i = 1; i < b->n; i++)
        if (b->dims[i] > b->dims[pick]) pick = i;
    int64_t chunk = 1;
    if (b->n) {
        chunk = b->dims[pick];
        while (chunk > BATCH_MAX || b->dims[pick] % chunk) chunk--; /* equal pieces */
        p->shape.batch = chunk;
        p->shape.sa = b->stride[p->swap ? 1 : 0][pick];
        p->shape.sb = b->stride[p->swap ? 0 : 1][pick];
        p->shape.sc = b->stride[2][pick];
        b->dims[pick] /= chunk;
        for (int k = 0; k < 3; k++) b->stride[k][pick] *= chunk;
        for (int i = 0; i < b->n; i++) p->loops *= b->dims[i];
    }
    p->offsets = arena_array(a, (size_t)p->loops, sizeof *p->offsets);
    for (int64_t l = 0; l < p->loops; l++) {
        int64_t rest = l;
        for (int i = b->n - 1; i >= 0; i--) {
            for (int k = 0; k < 3; k++)
                p->offsets[l][k] += rest % b->dims[i] * b->stride[k][i] * p->elem;
            rest /= b->dims[i];
        }
    }
}

/* A row-major result is the transposed column-major one: C' = B' A'. */
static void set_shape(struct product *p, const struct plan *plan, const struct plan_launch *l,
                      struct arena *arena) {
    const struct plan_view *va = &l->in[0], *vb = &l->in[1], *vc = &l->out[0];
    struct matrix a = matrix_of(va), b = matrix_of(vb), c = matrix_of(vc);
    struct batch batch = batch_of(va, vb, vc);
    struct shape *s = &p->shape;
    p->swap = !c.trans;
    const struct matrix *x = p->swap ? &b : &a, *y = p->swap ? &a : &b;
    s->m = vc->dims[vc->rank - (p->swap ? 1 : 2)];
    s->n = vc->dims[vc->rank - (p->swap ? 2 : 1)];
    s->k = va->dims[va->rank - 1];
    s->ta = p->swap ? b.trans : !a.trans;
    s->tb = p->swap ? a.trans : !b.trans;
    s->lda = x->ld, s->ldb = y->ld, s->ldc = c.ld;
    s->align_a = alignment(plan, x->v, p->elem);
    s->align_b = alignment(plan, y->v, p->elem);
    s->align_c = alignment(plan, vc, p->elem);
    set_batches(p, &batch, arena);
}

/* ---- descriptors -------------------------------------------------------------------------------
 */
static enum status make_layout(struct cuda *d, const struct shape *s, bool trans, int64_t rows,
                               int64_t cols, int64_t ld, int64_t stride, lt_layout *out) {
    const char *what = "describing a matrix";
    int32_t count = (int32_t)s->batch;
    int64_t r = trans ? cols : rows, c = trans ? rows : cols;
    TRY_LT(d,
           cublasLtMatrixLayoutCreate(out, s->wide ? LT_R_64F : LT_R_32F, (uint64_t)r, (uint64_t)c,
                                      largest(ld, r)),
           "", what);
    if (s->batch == 1) return ST_OK;
    TRY_LT(d, cublasLtMatrixLayoutSetAttribute(*out, LT_LAYOUT_BATCH_COUNT, &count, sizeof count),
           "", what);
    TRY_LT(d,
           cublasLtMatrixLayoutSetAttribute(*out, LT_LAYOUT_BATCH_STRIDE, &stride, sizeof stride),
           "", what);
    return ST_OK;
}

static enum status make_descriptors(struct cuda *d, struct product *p) {
    const struct shape *s = &p->shape;
    const char *what = "describing a product";
    TRY_LT(d,
           cublasLtMatmulDescCreate(&p->desc, s->wide ? LT_COMPUTE_64F : LT_COMPUTE_32F,
                                    s->wide ? LT_R_64F : LT_R_32F),
           "", what);
    TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_TRANSA, &s->ta, sizeof s->ta), "",
           what);
    TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_TRANSB, &s->tb, sizeof s->tb), "",
           what);
    TRY(make_layout(d, s, s->ta, s->m, s->k, s->lda, s->sa, &p->a));
    TRY(make_layout(d, s, s->tb, s->k, s->n, s->ldb, s->sb, &p->b));
    return make_layout(d, s, false, s->m, s->n, s->ldc, s->sc, &p->c);
}

static void product_free(void *ptr) {
    struct product *p = ptr;
    const struct lt_api *lt = &p->d->lt;
    if (p->desc) lt->cublasLtMatmulDescDestroy(p->desc);
    if (p->a) lt->cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) lt->cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) lt->cublasLtMatrixLayoutDestroy(p->c);
}

static int call_lt(struct cuda *d, const struct product *p, cu_ptr a, cu_ptr b, cu_ptr c,
                   const struct lt_algo *algo, size_t workspace) {
    float alpha = (float)p->alpha, beta = (float)p->beta;
    bool wide = p->shape.wide;
    return d->lt.cublasLtMatmul(d->lt_handle, p->desc, wide ? (void *)&p->alpha : (void *)&alpha, a,
                                p->a, b, p->b, wide ? (void *)&p->beta : (void *)&beta, c, p->c, c,
                                p->c, algo, d->lt_workspace, workspace, d->stream);
}

/* ---- choosing an algorithm ---------------------------------------------------------------------
 */
static enum status propose(struct cuda *d, const struct product *p, const char *origin,
                           struct lt_candidate out[CANDIDATES], int *n) {
    lt_preference pref = NULL;
    const struct shape *s = &p->shape;
    size_t bytes = WORKSPACE;
    uint32_t ordered = LT_REDUCE_ORDERED,
             align[4] = {s->align_a, s->align_b, s->align_c, s->align_c};
    TRY_LT(d, cublasLtMatmulPreferenceCreate(&pref), origin, "asking for algorithms");
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
        e = d->lt.cublasLtMatmulAlgoGetHeuristic(d->lt_handle, p->desc, p->a, p->b, p->c, p->c,
                                                 pref, CANDIDATES, out, n);
    d->lt.cublasLtMatmulPreferenceDestroy(pref);
    int usable = 0;
    for (int i = 0; i < *n && e == 0; i++)
        if (out[i].state == 0 && out[i].workspace <= WORKSPACE) out[usable++] = out[i];
    *n = usable;
    if (e == 0 && usable) return ST_OK;
    return diag_error(
        d->ctx, ST_UNSUPPORTED, origin,
        "cuBLASLt has no algorithm for this product of %lldx%lldx%lld, batch %lld: %s",
        (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->batch,
        e ? lt_words(e) : "none was proposed");
}

/* Operands of the shape, filled with noise, and what is needed to compare and time results. */
struct bench {
    struct cuda *d;
    const struct product *p;
    cu_ptr memory, a, b, c;
    size_t bytes_a, bytes_b, bytes_c, compared;
    char *noise, *want, *got;
    cu_event start, stop;
};

static size_t extent(int64_t rows, int64_t cols, int64_t ld, int64_t stride, const struct shape *s,
                     int64_t elem) {
    int64_t one = (cols - 1) * ld + rows, reach = (s->batch - 1) * (stride > 0 ? stride : -stride);
    return ((size_t)((one + reach) * elem) + 511) / 512 * 512;
}

static int fill(struct bench *b, cu_ptr to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += NOISE_BYTES) {
        size_t n = bytes - at < NOISE_BYTES ? bytes - at : NOISE_BYTES;
        int e = b->d->api.cuMemcpyHtoDAsync(to + at, b->noise, n, b->d->stream);
        if (e != CU_OK) return e;
    }
    return CU_OK;
}

/* Values in (-1, 1) from a fixed sequence (a 64-bit linear congruence, Knuth's MMIX constants). */
static void make_noise(char *to, bool wide) {
    uint64_t x = 1;
    size_t n = NOISE_BYTES / (wide ? sizeof(double) : sizeof(float));
    for (size_t i = 0; i < n; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        double v = (double)(x >> 11) * 0x1p-52 - 1;
        if (wide)
            ((double *)(void *)to)[i] = v;
        else
            ((float *)(void *)to)[i] = (float)v;
    }
}

static bool bench_open(struct bench *b) {
    const struct shape *s = &b->p->shape;
    int64_t elem = b->p->elem;
    const struct driver_api *api = &b->d->api;
    if (s->sa < 0 || s->sb < 0 || s->sc < 0) return false;
    b->bytes_a = extent(s->ta ? s->k : s->m, s->ta ? s->m : s->k, s->lda, s->sa, s, elem);
    b->bytes_b = extent(s->tb ? s->n : s->k, s->tb ? s->k : s->n, s->ldb, s->sb, s, elem);
    b->bytes_c = extent(s->m, s->n, s->ldc, s->sc, s, elem);
    if (api->cuMemAlloc(&b->memory, b->bytes_a + b->bytes_b + b->bytes_c) != CU_OK) {
        b->memory = 0; /* measuring is a luxury */
        return false;
    }
    b->a = b->memory, b->b = b->a + b->bytes_a, b->c = b->b + b->bytes_b;
    b->compared = b->bytes_c < COMPARED_BYTES ? b->bytes_c : COMPARED_BYTES;
    b->noise = ctx_alloc(b->d->ctx, NOISE_BYTES);
    b->want = ctx_alloc(b->d->ctx, b->compared);
    b->got = ctx_alloc(b->d->ctx, b->compared);
    make_noise(b->noise, s->wide);
    return api->cuEventCreate(&b->start, 0) == CU_OK && api->cuEventCreate(&b->stop, 0) == CU_OK &&
           fill(b, b->a, b->bytes_a) == CU_OK && fill(b, b->b, b->bytes_b) == CU_OK &&
           fill(b, b->c, b->bytes_c) == CU_OK;
}

static void bench_close(struct bench *b) {
    const struct driver_api *api = &b->d->api;
    if (b->memory) {
        api->cuStreamSynchronize(b->d->stream);
        api->cuMemFree(b->memory);
    }
    if (b->start) api->cuEventDestroy(b->start);
    if (b->stop) api->cuEventDestroy(b->stop);
    ctx_free(b->d->ctx, b->noise);
    ctx_free(b->d->ctx, b->want);
    ctx_free(b->d->ctx, b->got);
}

/* The result of one candidate, to the host; false when it does not run. */
static bool bench_result(struct bench *b, const struct lt_candidate *k, char *to) {
    const struct driver_api *api = &b->d->api;
    /* A result that is added to starts from the same values each time. */
    return (!b->p->shape.add || fill(b, b->c, b->bytes_c) == CU_OK) &&
           call_lt(b->d, b->p, b->a, b->b, b->c, &k->algo, k->workspace) == 0 &&
           api->cuMemcpyDtoHAsync(to, b->c, b->compared, b->d->stream) == CU_OK &&
           api->cuStreamSynchronize(b->d->stream) == CU_OK;
}

static double bench_time(struct bench *b, const struct lt_candidate *k) {
    const struct driver_api *api = &b->d->api;
    double best = INFINITY;
    for (int i = 0; i < TIMED_RUNS; i++) {
        float ms = 0;
        bool ok = api->cuEventRecord(b->start, b->d->stream) == CU_OK &&
                  call_lt(b->d, b->p, b->a, b->b, b->c, &k->algo, k->workspace) == 0 &&
                  api->cuEventRecord(b->stop, b->d->stream) == CU_OK &&
                  api->cuStreamSynchronize(b->d->stream) == CU_OK &&
                  api->cuEventElapsedTime(&ms, b->start, b->stop) == CU_OK;
        if (!ok) return INFINITY;
        best = fmin(best, (double)ms);
    }
    return best;
}

/* The index of the fastest candidate that gives the bits of candidate 0. */
static int fastest(struct cuda *d, const struct product *p, const struct lt_candidate *k, int n) {
    struct bench b = {.d = d, .p = p};
    int best = 0;
    if (bench_open(&b) && bench_result(&b, &k[0], b.want)) {
        double time = bench_time(&b, &k[0]) * 0.97; /* noise is no reason to switch */
        for (int i = 1; i < n; i++) {
            if (!bench_result(&b, &k[i], b.got) || memcmp(b.want, b.got, b.compared) != 0) continue;
            double t = bench_time(&b, &k[i]);
            if (t < time) best = i, time = t;
        }
    }
    bench_close(&b);
    return best;
}

static enum status choose(struct cuda *d, struct product *p, const char *origin) {
    for (uint32_t i = 0; i < d->algos.n; i++) {
        p->algo = d->algos.at[i];
        if (memcmp(&p->algo->shape, &p->shape, sizeof p->shape) == 0) return ST_OK;
    }
    struct lt_candidate found[CANDIDATES];
    int n = 0, best = 0;
    const struct shape *s = &p->shape;
    TRY(propose(d, p, origin, found, &n));
    double work = 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)s->batch;
    if (n > 1 && work >= worth_measuring) best = fastest(d, p, found, n);
    p->algo = ARENA_NEW(&d->arena, struct chosen_algo);
    *p->algo = (struct chosen_algo){p->shape, found[best].algo, found[best].workspace};
    vec_push(&d->arena, &d->algos, p->algo);
    return ST_OK;
}

/* ---- the two calls -----------------------------------------------------------------------------
 */
enum status product_prepare(struct cuda *d, const struct plan *plan, const struct plan_launch *l,
                            struct arena *a, struct product **out) {
    const struct plan_view *c = &l->out[0];
    const char *origin = interned(&plan->strings, l->origin);
    *out = NULL;
    if (!view_count(c)) return ST_OK;
    if (c->dtype != DT_f32 && c->dtype != DT_f64)
        return diag_error(d->ctx, ST_UNSUPPORTED, origin,
                          "expected a product of f32 or f64, found %s", dtype_name(c->dtype));
    TRY(lt_open(d));
    struct product *p = ARENA_NEW(a, struct product);
    p->d = d;
    p->elem = (int64_t)dtype_size(c->dtype);
    p->alpha = launch_float(l, ATTR_scale, 1.0);
    p->beta = launch_int(l, ATTR_add, 0) ? 1.0 : 0.0;
    set_shape(p, plan, l, a);
    struct shape *s = &p->shape;
    s->wide = c->dtype == DT_f64;
    s->add = p->beta != 0;
    p->clear = s->k == 0;
    *out = p;
    if (p->clear) return ST_OK;
    int64_t most = largest(largest(s->m, s->n), largest(s->k, largest(s->lda, s->ldb)));
    if (largest(most, s->ldc) > INT_MAX)
        return diag_error(d->ctx, ST_UNSUPPORTED, origin,
                          "an axis or stride of a product exceeds 2^31-1 elements");
    arena_defer(a, product_free, p);
    TRY(make_descriptors(d, p));
    return choose(d, p, origin);
}

static enum status clear_result(struct cuda *d, const struct product *p, cu_ptr c,
                                const char *origin) {
    const struct shape *s = &p->shape;
    for (int64_t i = 0; i < s->batch && !s->add; i++)
        TRY_CU(d,
               cuMemsetD2D8Async(c + (cu_ptr)(i * s->sc * p->elem), (size_t)(s->ldc * p->elem), 0,
                                 (size_t)(s->m * p->elem), (size_t)s->n, d->stream),
               origin, "clearing a result");
    return ST_OK;
}

enum status product_run(struct cuda *d, const struct product *p, cu_ptr a, cu_ptr b, cu_ptr c,
                        const char *origin) {
    for (int64_t l = 0; l < p->loops; l++) {
        const int64_t *o = p->offsets[l];
        cu_ptr at[3] = {a + (cu_ptr)o[0], b + (cu_ptr)o[1], c + (cu_ptr)o[2]};
        if (p->clear) {
            TRY(clear_result(d, p, at[2], origin));
            continue;
        }
        int e = call_lt(d, p, at[p->swap ? 1 : 0], at[p->swap ? 0 : 1], at[2], &p->algo->algo,
                        p->algo->workspace);
        TRY(lt_status(d, e, origin, "a product"));
    }
    return ST_OK;
}
