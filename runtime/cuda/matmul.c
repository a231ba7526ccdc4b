// SPDX-License-Identifier: Apache-2.0
/* matmul.c - products through cuBLASLt: f32 or f64 in full arithmetic (TF32 when the plan asks),
 * bf16, f16 and 8-bit codes with scales summed in f32; any strides a plan allows, any batch axes,
 * and what a plan folds into the launch. Which algorithm computes one is decided in
 * matmul_choose.c. */
#include "runtime/cuda/matmul.h"
#include <limits.h>
#include <string.h>

enum { BATCH_MAX = 65535 }; /* grid limit of one strided call */

/* ---- the library -------------------------------------------------------------------------------
 */
#define NAME(type, name, args) #name,
static const char *const functions[] = {CUDA_LT(NAME)};
#undef NAME
_Static_assert(sizeof functions / sizeof functions[0] * sizeof(void *) == sizeof(struct lt_api),
               "one name for each member");

const char *lt_words(int result) {
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

enum status lt_status(struct cuda *d, int result, const char *origin, const char *what) {
    if (result == 0) return ST_OK;
    return diag_error(d->ctx, result == 3 ? ST_OUT_OF_MEMORY : ST_IO, origin,
                      "cuBLASLt failed (%s): %s (%d)", what, lt_words(result), result);
}
#define TRY_LT(d, call, origin, what)                                                              \
    do {                                                                                           \
        int try_result_ = (d)->lt.call;                                                            \
        if (try_result_ != 0) return lt_status((d), try_result_, (origin), (what));                \
    } while (0)

enum status library_memory(struct cuda *d) {
    if (!d->lt_workspace)
        TRY_CU(d, cuMemAlloc(&d->lt_workspace, LT_WORKSPACE), "", "scratch memory of libraries");
    return ST_OK;
}

enum status lt_open(struct cuda *d) {
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

/* The batch axes of a, b, result and residual, those merged that one stride can walk. */
struct batch {
    int n;
    int64_t dims[RANK_MAX], stride[4][RANK_MAX];
};
static struct batch batch_of(const struct plan_view *const v[4]) {
    struct batch r = {.n = 0};
    const struct plan_view *c = v[2];
    for (int i = 0; i < c->rank - 2; i++) {
        if (c->dims[i] == 1) continue;
        bool merge = r.n > 0;
        for (int k = 0; k < 4 && merge; k++)
            merge = r.stride[k][r.n - 1] == v[k]->strides[i] * c->dims[i];
        int at = merge ? r.n - 1 : r.n;
        r.dims[at] = (merge ? r.dims[at] : 1) * c->dims[i];
        for (int k = 0; k < 4; k++) r.stride[k][at] = v[k]->strides[i];
        r.n = at + 1;
    }
    return r;
}

/* The lowest set bit of an address that is a sum of multiples of these, at most 256. */
static uint32_t alignment(const struct plan *p, const struct plan_view *v) {
    int64_t elem = (int64_t)dtype_size(v->dtype);
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
        p->shape.sr = b->stride[3][pick];
        b->dims[pick] /= chunk;
        for (int k = 0; k < 4; k++) b->stride[k][pick] *= chunk;
        for (int i = 0; i < b->n; i++) p->loops *= b->dims[i];
    }
    p->offsets = arena_array(a, (size_t)p->loops, sizeof *p->offsets);
    for (int64_t l = 0; l < p->loops; l++) {
        int64_t rest = l;
        for (int i = b->n - 1; i >= 0; i--) {
            for (int k = 0; k < 4; k++)
                p->offsets[l][k] +=
                    rest % b->dims[i] * b->stride[k][i] * (k < 2 ? p->elem : p->elem_c);
            rest /= b->dims[i];
        }
    }
}

static int32_t lt_type(enum dtype t) {
    switch (t) {
    case DT_f64: return LT_R_64F;
    case DT_bf16: return LT_R_16BF;
    case DT_f16: return LT_R_16F;
    case DT_e4m3: return LT_R_E4M3;
    case DT_e5m2: return LT_R_E5M2;
    default: return LT_R_32F;
    }
}

static int32_t lt_compute(const struct plan_launch *l) {
    if (l->in[0].dtype == DT_f64) return LT_COMPUTE_64F;
    bool tf32 = l->in[0].dtype == DT_f32 && launch_int(l, ATTR_tf32, 0);
    return tf32 ? LT_COMPUTE_TF32 : LT_COMPUTE_32F;
}

/* A row-major result is the transposed column-major one: C' = B' A'. A bias, which runs along the
 * rows of the plan's result, then has a value for each row of cuBLASLt's, as its epilogue wants. */
static void set_shape(struct product *p, const struct plan *plan, const struct plan_launch *l,
                      struct arena *arena) {
    struct shape *s = &p->shape;
    if (launch_int(l, ATTR_bias, 0)) s->epilogue |= LT_EPILOGUE_BIAS;
    if (launch_int(l, ATTR_gelu, 0)) s->epilogue |= LT_EPILOGUE_GELU;
    s->residual = (int32_t)launch_int(l, ATTR_residual, 0);
    s->beta = s->residual || launch_int(l, ATTR_add, 0);
    const struct plan_view *va = &l->in[0], *vb = &l->in[1], *vc = &l->out[0];
    const struct plan_view *vr = s->residual ? &l->in[l->nin - 1] : vc;
    struct matrix a = matrix_of(va), b = matrix_of(vb), c = matrix_of(vc);
    struct batch batch = batch_of((const struct plan_view *const[4]){va, vb, vc, vr});
    p->swap = !c.trans;
    const struct matrix *x = p->swap ? &b : &a, *y = p->swap ? &a : &b;
    s->m = vc->dims[vc->rank - (p->swap ? 1 : 2)];
    s->n = vc->dims[vc->rank - (p->swap ? 2 : 1)];
    s->k = va->dims[va->rank - 1];
    s->ta = p->swap ? b.trans : !a.trans;
    s->tb = p->swap ? a.trans : !b.trans;
    s->lda = x->ld, s->ldb = y->ld, s->ldc = c.ld, s->ldr = matrix_of(vr).ld;
    s->align_a = alignment(plan, x->v);
    s->align_b = alignment(plan, y->v);
    s->align_c = alignment(plan, vc);
    s->align_r = alignment(plan, vr);
    s->type_a = lt_type(x->v->dtype);
    s->type_b = lt_type(y->v->dtype);
    s->scales = -1;
    if (launch_int(l, ATTR_scaled, 0))
        s->scales =
            view_count(&l->in[2]) + view_count(&l->in[3]) > 2 ? LT_SCALE_LINES : LT_SCALE_ONE;
    s->fast = (int32_t)launch_int(l, ATTR_fast, 0);
    s->result = lt_type(vc->dtype);
    s->compute = lt_compute(l);
    set_batches(p, &batch, arena);
}

/* ---- descriptors -------------------------------------------------------------------------------
 */
static enum status make_layout(struct cuda *d, int64_t batch, int32_t type, int64_t r, int64_t c,
                               int64_t ld, int64_t stride, lt_layout *out) {
    const char *what = "describing a matrix";
    int32_t count = (int32_t)batch;
    TRY_LT(d, cublasLtMatrixLayoutCreate(out, type, (uint64_t)r, (uint64_t)c, largest(ld, r)), "",
           what);
    if (batch == 1) return ST_OK;
    TRY_LT(d, cublasLtMatrixLayoutSetAttribute(*out, LT_LAYOUT_BATCH_COUNT, &count, sizeof count),
           "", what);
    TRY_LT(d,
           cublasLtMatrixLayoutSetAttribute(*out, LT_LAYOUT_BATCH_STRIDE, &stride, sizeof stride),
           "", what);
    return ST_OK;
}

static enum status describe_epilogue(struct cuda *d, struct product *p) {
    const int32_t *epilogue = &p->shape.epilogue;
    const char *what = "describing what follows a product";
    cu_ptr any = d->lt_workspace; /* proposals want to see a bias */
    if (!*epilogue) return ST_OK;
    TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_EPILOGUE, epilogue, sizeof *epilogue),
           "", what);
    if (*epilogue & LT_EPILOGUE_BIAS)
        TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_BIAS, &any, sizeof any), "",
               what);
    return ST_OK;
}

/* Scales are read from memory; where they lie is said at each call. */
static enum status describe_scales(struct cuda *d, struct product *p) {
    const struct shape *s = &p->shape;
    const char *what = "describing the scales of a product";
    int8_t fast = (int8_t)s->fast;
    cu_ptr any = d->lt_workspace;
    if (s->scales < 0) return ST_OK;
    TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_FAST_ACCUM, &fast, sizeof fast), "",
           what);
    for (int k = 0; k < 2; k++) {
        int mode = k ? LT_DESC_SCALE_MODE_B : LT_DESC_SCALE_MODE_A;
        /* libraries before 12.8 know one scale only and no mode */
        if (s->scales != LT_SCALE_ONE)
            TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, mode, &s->scales, sizeof s->scales),
                   "", what);
        TRY_LT(d,
               cublasLtMatmulDescSetAttribute(p->desc, k ? LT_DESC_SCALE_B : LT_DESC_SCALE_A, &any,
                                              sizeof any),
               "", what);
    }
    return ST_OK;
}

static enum status make_descriptors(struct cuda *d, struct product *p) {
    const struct shape *s = &p->shape;
    const char *what = "describing a product";
    TRY_LT(d,
           cublasLtMatmulDescCreate(&p->desc, s->compute,
                                    s->compute == LT_COMPUTE_64F ? LT_R_64F : LT_R_32F),
           "", what);
    TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_TRANSA, &s->ta, sizeof s->ta), "",
           what);
    TRY_LT(d, cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_TRANSB, &s->tb, sizeof s->tb), "",
           what);
    TRY(describe_epilogue(d, p));
    TRY(describe_scales(d, p));
    int64_t n = s->batch;
    TRY(make_layout(d, n, s->type_a, s->ta ? s->k : s->m, s->ta ? s->m : s->k, s->lda, s->sa,
                    &p->a));
    TRY(make_layout(d, n, s->type_b, s->tb ? s->n : s->k, s->tb ? s->k : s->n, s->ldb, s->sb,
                    &p->b));
    if (s->residual) TRY(make_layout(d, n, s->result, s->m, s->n, s->ldr, s->sr, &p->r));
    return make_layout(d, n, s->result, s->m, s->n, s->ldc, s->sc, &p->c);
}

static void product_free(void *ptr) {
    struct product *p = ptr;
    const struct lt_api *lt = &p->d->lt;
    if (p->desc) lt->cublasLtMatmulDescDestroy(p->desc);
    lt_layout all[4] = {p->a, p->b, p->c, p->r};
    for (int i = 0; i < 4; i++)
        if (all[i]) lt->cublasLtMatrixLayoutDestroy(all[i]);
}

int product_call(struct cuda *d, const struct product *p, const struct product_memory *at,
                 const struct lt_algo *algo, size_t workspace) {
    float alpha = (float)p->alpha, beta = (float)p->shape.beta;
    double beta_wide = p->shape.beta;
    bool wide = p->shape.compute == LT_COMPUTE_64F;
    int e = 0;
    if (p->shape.epilogue & LT_EPILOGUE_BIAS)
        e = d->lt.cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_BIAS, &at->bias, sizeof at->bias);
    if (p->shape.scales >= 0 && e == 0)
        e = d->lt.cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_SCALE_A, &at->scale_a,
                                                 sizeof at->scale_a);
    if (p->shape.scales >= 0 && e == 0)
        e = d->lt.cublasLtMatmulDescSetAttribute(p->desc, LT_DESC_SCALE_B, &at->scale_b,
                                                 sizeof at->scale_b);
    if (e != 0) return e;
    return d->lt.cublasLtMatmul(d->lt_handle, p->desc, wide ? (const void *)&p->alpha : &alpha,
                                at->a, p->a, at->b, p->b, wide ? (const void *)&beta_wide : &beta,
                                at->add, p->r ? p->r : p->c, at->c, p->c, algo, d->lt_workspace,
                                workspace, d->stream);
}

/* ---- the two calls -----------------------------------------------------------------------------
 */
static enum status check_types(struct cuda *d, const struct plan_launch *l, const char *origin) {
    enum dtype t = l->in[0].dtype, y = l->out[0].dtype;
    bool low = t == DT_bf16 || t == DT_f16;
    if (launch_int(l, ATTR_scaled, 0) && d->info.arch < 89)
        return diag_error(d->ctx, ST_UNSUPPORTED, origin,
                          "products of 8-bit operands need a GPU of sm_89 or newer, this one is "
                          "sm_%d; choose another recipe",
                          d->info.arch);
    if (launch_int(l, ATTR_scaled, 0)) return ST_OK;
    if (low ? y == t || y == DT_f32 : y == t && (t == DT_f32 || t == DT_f64)) return ST_OK;
    return diag_error(d->ctx, ST_UNSUPPORTED, origin,
                      "expected a product of f32, f64, bf16 or f16, found %s -> %s", dtype_name(t),
                      dtype_name(y));
}

enum status product_prepare(struct cuda *d, const struct plan *plan, const struct plan_launch *l,
                            struct arena *a, struct product **out) {
    const struct plan_view *c = &l->out[0];
    const char *origin = interned(&plan->strings, l->origin);
    *out = NULL;
    if (!view_count(c)) return ST_OK;
    TRY(check_types(d, l, origin));
    TRY(lt_open(d));
    struct product *p = ARENA_NEW(a, struct product);
    p->d = d;
    p->nin = l->nin;
    p->bias = product_addend(l);
    p->elem = (int64_t)dtype_size(l->in[0].dtype);
    p->elem_c = (int64_t)dtype_size(c->dtype);
    p->alpha = launch_float(l, ATTR_scale, 1.0);
    set_shape(p, plan, l, a);
    struct shape *s = &p->shape;
    if (s->residual && launch_int(l, ATTR_add, 0))
        return diag_error(d->ctx, ST_UNSUPPORTED, origin,
                          "a product adds to its result or to a residual, not to both");
    p->clear = s->k == 0;
    *out = p;
    if (p->clear) return ST_OK;
    int64_t most = largest(largest(s->m, s->n), largest(s->k, largest(s->lda, s->ldb)));
    if (largest(most, largest(s->ldc, s->ldr)) > INT_MAX)
        return diag_error(d->ctx, ST_UNSUPPORTED, origin,
                          "an axis or stride of a product exceeds 2^31-1 elements");
    arena_defer(a, product_free, p);
    TRY(make_descriptors(d, p));
    return product_choose(d, p, origin);
}

static enum status clear_result(struct cuda *d, const struct product *p, cu_ptr c,
                                const char *origin) {
    const struct shape *s = &p->shape;
    for (int64_t i = 0; i < s->batch && !s->beta; i++)
        TRY_CU(d,
               cuMemsetD2D8Async(c + (cu_ptr)(i * s->sc * p->elem_c), (size_t)(s->ldc * p->elem_c),
                                 0, (size_t)(s->m * p->elem_c), (size_t)s->n, d->stream),
               origin, "clearing a result");
    return ST_OK;
}

enum status product_run(struct cuda *d, const struct product *p, const cu_ptr *at,
                        const char *origin) {
    for (int64_t l = 0; l < p->loops; l++) {
        const int64_t *o = p->offsets[l];
        cu_ptr x = at[0] + (cu_ptr)o[0], y = at[1] + (cu_ptr)o[1], c = at[p->nin] + (cu_ptr)o[2];
        if (p->clear) {
            TRY(clear_result(d, p, c, origin));
            continue;
        }
        struct product_memory m = {.a = p->swap ? y : x,
                                   .b = p->swap ? x : y,
                                   .c = c,
                                   .add = p->shape.residual ? at[p->nin - 1] + (cu_ptr)o[3] : c,
                                   .bias = p->shape.epilogue & LT_EPILOGUE_BIAS ? at[p->bias] : 0};
        if (p->shape.scales >= 0) {
            m.scale_a = at[p->swap ? 3 : 2];
            m.scale_b = at[p->swap ? 2 : 3];
        }
        int e = product_call(d, p, &m, &p->algo->algo, p->algo->workspace);
        TRY(lt_status(d, e, origin, "a product"));
    }
    return ST_OK;
}
