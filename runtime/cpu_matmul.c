// SPDX-License-Identifier: Apache-2.0
/* cpu_matmul.c - products through BLAS, which runs on one thread per call: the result is cut into
 * tiles by shape alone and the pool computes the tiles, so the number of threads changes no bit. */
#include "runtime/cpu_impl.h"
#include <cblas.h>
#include <limits.h>

void gemm_setup(void) {
    openblas_set_num_threads(1);
}

/* Vector products go to gemv; its result is cleared here, so that no old NaN is scaled. */
#define GEMM(name, T, BLAS)                                                                        \
    void name(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T *a, int64_t lda, \
              const T *b, int64_t ldb, T beta, T *c, int64_t ldc) {                                \
        if (!m || !n) return;                                                                      \
        if (k > 0 && (m == 1 || n == 1)) {                                                         \
            int64_t step = n == 1 ? ldc : 1;                                                       \
            for (int64_t i = 0; beta == 0 && i < m * n; i++) c[i * step] = 0;                      \
            if (n == 1) /* c = A b */                                                              \
                cblas_##BLAS##gemv(CblasRowMajor, ta ? CblasTrans : CblasNoTrans,                  \
                                   (int)(ta ? k : m), (int)(ta ? m : k), alpha, a, (int)lda, b,    \
                                   (int)(tb ? 1 : ldb), 1, c, (int)ldc);                           \
            else /* c' = B' a' */                                                                  \
                cblas_##BLAS##gemv(CblasRowMajor, tb ? CblasNoTrans : CblasTrans,                  \
                                   (int)(tb ? n : k), (int)(tb ? k : n), alpha, b, (int)ldb, a,    \
                                   (int)(ta ? lda : 1), 1, c, 1);                                  \
            return;                                                                                \
        }                                                                                          \
        cblas_##BLAS##gemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans,                          \
                           tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a,       \
                           (int)lda, b, (int)ldb, beta, c, (int)ldc);                              \
    }
GEMM(gemm_f32, float, s)
GEMM(gemm_f64, double, d)

/* One of the two matrix axes of a view is contiguous. */
struct matrix {
    const struct plan_view *v;
    char *base;
    bool trans; /* rows are contiguous, not columns */
    int64_t ld;
};

struct product {
    struct cpu_job *j;
    enum dtype dtype;
    int64_t m, n, k, batch;
    int64_t tile_m, tile_n, tiles_m, tiles_n;
    int64_t items; /* batch items per index, when they are small */
    double alpha, beta;
    struct matrix a, b, c;
};

static struct matrix matrix_of(const struct cpu_job *j, const struct plan_view *v) {
    int64_t rows = v->dims[v->rank - 2], cols = v->dims[v->rank - 1];
    int64_t rs = v->strides[v->rank - 2], cs = v->strides[v->rank - 1];
    struct matrix x = {.v = v, .base = view_at(j->x, v)};
    x.trans = cs != 1 && cols != 1;
    x.ld = i64_max(x.trans ? cs : rs, i64_max(x.trans ? rows : cols, 1));
    return x;
}

static char *batch_at(const struct matrix *x, int64_t item) {
    int64_t offset = 0;
    for (int i = x->v->rank - 3; i >= 0; i--) {
        offset += item % x->v->dims[i] * x->v->strides[i];
        item /= x->v->dims[i];
    }
    return x->base + offset * (int64_t)dtype_size(x->v->dtype);
}

/* Element (row, col) of a matrix that starts at `at`. */
static char *element(const struct matrix *x, char *at, int64_t row, int64_t col) {
    int64_t offset = x->trans ? col * x->ld + row : row * x->ld + col;
    return at + offset * (int64_t)dtype_size(x->v->dtype);
}

static void product_tile(const struct product *p, int64_t item, int64_t row, int64_t col) {
    int64_t m = i64_min(p->tile_m, p->m - row), n = i64_min(p->tile_n, p->n - col);
    char *a = element(&p->a, batch_at(&p->a, item), row, 0);
    char *b = element(&p->b, batch_at(&p->b, item), 0, col);
    char *c = element(&p->c, batch_at(&p->c, item), row, col);
    bool ta = p->a.trans, tb = p->b.trans;
    const struct matrix *x = &p->a, *y = &p->b;
    if (p->c.trans) { /* C' = B' A' */
        char *t = a;
        a = b, b = t;
        int64_t s = m;
        m = n, n = s;
        ta = !p->b.trans, tb = !p->a.trans;
        x = &p->b, y = &p->a;
    }
    if (p->dtype == DT_f32)
        gemm_f32(ta, tb, m, n, p->k, (float)p->alpha, (const float *)(const void *)a, x->ld,
                 (const float *)(const void *)b, y->ld, (float)p->beta, (float *)(void *)c,
                 p->c.ld);
    else
        gemm_f64(ta, tb, m, n, p->k, p->alpha, (const double *)(const void *)a, x->ld,
                 (const double *)(const void *)b, y->ld, p->beta, (double *)(void *)c, p->c.ld);
}

static void product_task(void *arg, int64_t index, int thread) {
    const struct product *p = arg;
    (void)thread;
    if (p->items > 1) {
        int64_t end = i64_min((index + 1) * p->items, p->batch);
        for (int64_t i = index * p->items; i < end; i++) product_tile(p, i, 0, 0);
        return;
    }
    int64_t tile = index % (p->tiles_m * p->tiles_n);
    product_tile(p, index / (p->tiles_m * p->tiles_n), tile / p->tiles_n * p->tile_m,
                 tile % p->tiles_n * p->tile_n);
}

/* BLAS packs its operands again for every tile, so tiles are wide and large: 8 where there is
 * enough work, of no less than LEAST elements. (Measured: 256 x 1536 beats 512 x 384 by a tenth on
 * AVX2.) */
static void choose_tiles(struct product *p) {
    enum { STEP = 16, ENOUGH = 8, ROWS = 256, LEAST = 160 * 1024 };
    const double least = 2e6;
    p->tile_m = i64_min(p->m, 512), p->tile_n = i64_min(p->n, 1536);
    for (;;) {
        int64_t tiles = ceil_div(p->m, p->tile_m) * ceil_div(p->n, p->tile_n) * p->batch;
        double work = 2.0 * (double)p->tile_m * (double)p->tile_n * (double)p->k;
        bool large = p->tile_m * p->tile_n >= 2 * LEAST;
        int64_t *split = p->tile_m >= 2 * ROWS || p->tile_m >= p->tile_n ? &p->tile_m : &p->tile_n;
        if (tiles >= ENOUGH || work < 2 * least || *split < 4 * STEP) break;
        if (!large && tiles > 1) break;
        *split = ceil_div(*split, 2 * STEP) * STEP;
    }
    p->tiles_m = ceil_div(p->m, p->tile_m);
    p->tiles_n = ceil_div(p->n, p->tile_n);
    p->tile_m = i64_min(ceil_div(ceil_div(p->m, p->tiles_m), STEP) * STEP, p->m);
    p->tile_n = i64_min(ceil_div(ceil_div(p->n, p->tiles_n), STEP) * STEP, p->n);
    p->tiles_m = ceil_div(p->m, p->tile_m);
    p->tiles_n = ceil_div(p->n, p->tile_n);
    double each = 2.0 * (double)p->m * (double)p->n * (double)i64_max(p->k, 1);
    p->items = 1;
    if (p->tiles_m * p->tiles_n == 1 && each < least / 8)
        p->items = i64_max((int64_t)(least / 8 / each), 1);
}

enum status cpu_matmul(struct cpu_job *j) {
    const struct plan_launch *l = j->l;
    const struct plan_view *a = &l->in[0], *b = &l->in[1], *c = &l->out[0];
    if (c->dtype != DT_f32 && c->dtype != DT_f64)
        return job_unsupported(j, "products are of f32 or f64; cast the operands");
    struct product p = {.j = j,
                        .dtype = c->dtype,
                        .m = c->dims[c->rank - 2],
                        .n = c->dims[c->rank - 1],
                        .k = a->dims[a->rank - 1],
                        .batch = 1,
                        .alpha = launch_float(l, ATTR_scale, 1.0),
                        .beta = launch_int(l, ATTR_add, 0) ? 1.0 : 0.0,
                        .a = matrix_of(j, a),
                        .b = matrix_of(j, b),
                        .c = matrix_of(j, c)};
    for (int i = 0; i < c->rank - 2; i++) p.batch *= c->dims[i];
    if (!p.m || !p.n || !p.batch) return ST_OK;
    int64_t largest = i64_max(i64_max(p.m, p.n), p.k);
    largest = i64_max(largest, i64_max(p.a.ld, i64_max(p.b.ld, p.c.ld)));
    if (largest > INT_MAX) return job_unsupported(j, "an axis or stride exceeds 2^31-1 elements");
    choose_tiles(&p);
    pool_run(j->x->pool, ceil_div(p.batch * p.tiles_m * p.tiles_n, p.items), product_task, &p);
    return ST_OK;
}
