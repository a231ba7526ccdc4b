// SPDX-License-Identifier: Apache-2.0
/* cpu_matmul.c - products through BLAS, which runs on one thread per call: the result is cut into
 * tiles by shape alone and the pool computes the tiles, so the number of threads changes no bit.
 * Operands of bf16, f16 and 8-bit codes are widened block by block, their sums rounded once. */
#include "runtime/cpu_group.h"
#include "runtime/cpu_math.h"
#include <cblas.h>
#include <limits.h>
#include <string.h>

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
    double alpha;
    bool add;
    struct matrix a, b, c;
    const float *scale[2];  /* of codes a, b: one, or one for each row, column; NULL: none */
    bool by_rows;           /* of scales */
    const char *bias;       /* of each column; NULL: none */
    struct matrix residual; /* base NULL: none */
    bool gelu;
    struct product_blocks blocks;
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

/* One tile of the result. */
struct tile {
    int64_t item, row, col, m, n;
    char *c;
};

#define ADD_ROW(name, T)                                                                           \
    static void name(T *to, const T *from, int64_t n) {                                            \
        for (int64_t i = 0; i < n; i++) to[i] += from[i];                                          \
    }
ADD_ROW(add_f32, float)
ADD_ROW(add_f64, double)

/* Put residual + bias where the product will be added; false when there is neither. */
static bool start_tile(const struct product *p, const struct tile *t) {
    size_t size = dtype_size(p->dtype);
    const char *bias = p->bias ? p->bias + (size_t)t->col * size : NULL;
    char *r = p->residual.base
                  ? element(&p->residual, batch_at(&p->residual, t->item), t->row, t->col)
                  : NULL;
    for (int64_t i = 0; i < t->m && (r || bias); i++) {
        char *to = t->c + (size_t)(i * p->c.ld) * size;
        const char *from = r ? r + (size_t)(i * p->residual.ld) * size : bias;
        if (p->add && p->dtype == DT_f32)
            add_f32((float *)(void *)to, (const float *)(const void *)from, t->n);
        else if (p->add)
            add_f64((double *)(void *)to, (const double *)(const void *)from, t->n);
        else if (to != from)
            memcpy(to, from, (size_t)t->n * size);
        if (!r || !bias) continue;
        if (p->dtype == DT_f32)
            add_f32((float *)(void *)to, (const float *)(const void *)bias, t->n);
        else
            add_f64((double *)(void *)to, (const double *)(const void *)bias, t->n);
    }
    return r || bias;
}

/* f32 and f64: BLAS adds the product to what is there. */
static void plain_tile(const struct product *p, const struct tile *t) {
    char *a = element(&p->a, batch_at(&p->a, t->item), t->row, 0);
    char *b = element(&p->b, batch_at(&p->b, t->item), 0, t->col);
    double beta = start_tile(p, t) || p->add ? 1.0 : 0.0;
    int64_t m = t->m, n = t->n;
    bool ta = p->a.trans, tb = p->b.trans;
    const struct matrix *x = &p->a, *y = &p->b;
    if (p->c.trans) { /* C' = B' A' */
        char *swap = a;
        a = b, b = swap;
        m = t->n, n = t->m;
        ta = !p->b.trans, tb = !p->a.trans;
        x = &p->b, y = &p->a;
    }
    if (p->dtype == DT_f32)
        gemm_f32(ta, tb, m, n, p->k, (float)p->alpha, (const float *)(const void *)a, x->ld,
                 (const float *)(const void *)b, y->ld, (float)beta, (float *)(void *)t->c,
                 p->c.ld);
    else
        gemm_f64(ta, tb, m, n, p->k, p->alpha, (const double *)(const void *)a, x->ld,
                 (const double *)(const void *)b, y->ld, beta, (double *)(void *)t->c, p->c.ld);
}

/* rows x cols elements from (row, col) of x as f32, lines in the order they have in memory. */
static int64_t widen(const struct matrix *x, int64_t item, int64_t row, int64_t col, int64_t rows,
                     int64_t cols, float *to) {
    const char *from = element(x, batch_at(x, item), row, col);
    int64_t lines = x->trans ? cols : rows, length = x->trans ? rows : cols;
    int64_t pitch = x->ld * (int64_t)dtype_size(x->v->dtype);
    for (int64_t i = 0; i < lines; i++)
        ew_load(DT_f32, to + i * length, x->v->dtype, from + i * pitch, 1, length);
    return length;
}

/* What the codes stand for: sum * (sa * sb). */
static void scale_row(const struct product *p, const struct tile *t, int64_t i, float *sum) {
    const float *sa = p->scale[0], *sb = p->scale[1];
    float row = sa[p->by_rows ? t->row + i : 0];
    for (int64_t k = 0; k < t->n; k++) sum[k] *= row * sb[p->by_rows ? t->col + k : 0];
}

/* The launch's constant is in `sum` already; `line` is room for one row. */
static void finish_tile(const struct product *p, const struct tile *t, float *sum, float *line) {
    int64_t size = (int64_t)dtype_size(p->dtype);
    int64_t row_step = p->c.trans ? 1 : p->c.ld, col_step = p->c.trans ? p->c.ld : 1;
    for (int64_t i = 0; i < t->m; i++) {
        float *s = sum + i * t->n;
        char *to = t->c + i * row_step * size;
        if (p->scale[0]) scale_row(p, t, i, s);
        if (p->bias) {
            ew_load(DT_f32, line, p->dtype, p->bias + t->col * size, 1, t->n);
            add_f32(s, line, t->n);
        }
        if (p->residual.base) {
            ew_load(DT_f32, line, p->dtype,
                    element(&p->residual, batch_at(&p->residual, t->item), t->row + i, t->col), 1,
                    t->n);
            add_f32(s, line, t->n);
        }
        if (p->add) {
            ew_load(DT_f32, line, p->dtype, to, col_step, t->n);
            add_f32(s, line, t->n);
        }
        for (int64_t k = 0; p->gelu && k < t->n; k++) s[k] = gelu_tanh_f32(s[k]);
        ew_store(p->dtype, to, col_step, DT_f32, s, t->n);
    }
}

static void widened_tile(const struct product *p, const struct tile *t, int thread) {
    const struct product_blocks *w = &p->blocks;
    char *scratch = p->j->work + thread * w->thread_bytes;
    float *a = (float *)(void *)(scratch + w->a), *b = (float *)(void *)(scratch + w->b),
          *sum = (float *)(void *)(scratch + w->c);
    memset(sum, 0, (size_t)(t->m * t->n) * sizeof *sum);
    for (int64_t at = 0; at < p->k; at += w->k) {
        int64_t k = i64_min(w->k, p->k - at);
        int64_t lda = widen(&p->a, t->item, t->row, at, t->m, k, a);
        int64_t ldb = widen(&p->b, t->item, at, t->col, k, t->n, b);
        gemm_f32(p->a.trans, p->b.trans, t->m, t->n, k, (float)p->alpha, a, lda, b, ldb, 1.0f, sum,
                 t->n);
    }
    finish_tile(p, t, sum, b);
}

static void product_tile(const struct product *p, int64_t item, int64_t row, int64_t col,
                         int thread) {
    struct tile t = {.item = item, .row = row, .col = col};
    t.m = i64_min(p->tile_m, p->m - row);
    t.n = i64_min(p->tile_n, p->n - col);
    t.c = element(&p->c, batch_at(&p->c, item), row, col);
    if (p->blocks.thread_bytes)
        widened_tile(p, &t, thread);
    else
        plain_tile(p, &t);
}

static void product_task(void *arg, int64_t index, int thread) {
    const struct product *p = arg;
    if (p->items > 1) {
        int64_t end = i64_min((index + 1) * p->items, p->batch);
        for (int64_t i = index * p->items; i < end; i++) product_tile(p, i, 0, 0, thread);
        return;
    }
    int64_t tile = index % (p->tiles_m * p->tiles_n);
    product_tile(p, index / (p->tiles_m * p->tiles_n), tile / p->tiles_n * p->tile_m,
                 tile % p->tiles_n * p->tile_n, thread);
}

/* BLAS packs its operands again for every tile, so tiles are wide and large: 8 where there is
 * enough work, of no less than LEAST elements. (Measured: 256 x 1536 beats 512 x 384 by a tenth on
 * AVX2.) */
static void choose_tiles(struct product *p) {
    enum { STEP = 16, ENOUGH = 8, ROWS = 256, LEAST = 160 * 1024 };
    const double least = 2e6;
    bool widened = p->blocks.thread_bytes != 0;
    p->tile_m = i64_min(p->m, widened ? p->blocks.m : 512);
    p->tile_n = i64_min(p->n, widened ? p->blocks.n : 1536);
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
    bool bias = launch_int(l, ATTR_bias, 0), residual = launch_int(l, ATTR_residual, 0);
    bool low = a->dtype == DT_bf16 || a->dtype == DT_f16, scaled = launch_int(l, ATTR_scaled, 0);
    if (c->dtype != DT_f64 && c->dtype != DT_f32 && !(low && c->dtype == a->dtype) && !scaled)
        return job_unsupported(j, "products are of f32, f64, bf16 or f16; cast the operands");
    struct product p = {.j = j,
                        .dtype = c->dtype,
                        .m = c->dims[c->rank - 2],
                        .n = c->dims[c->rank - 1],
                        .k = a->dims[a->rank - 1],
                        .batch = 1,
                        .alpha = launch_float(l, ATTR_scale, 1.0),
                        .add = launch_int(l, ATTR_add, 0),
                        .gelu = launch_int(l, ATTR_gelu, 0),
                        .a = matrix_of(j, a),
                        .b = matrix_of(j, b),
                        .c = matrix_of(j, c),
                        .bias = bias ? job_in(j, product_addend(l)) : NULL,
                        .blocks = plan_product_blocks(l)};
    for (int k = 0; scaled && k < 2; k++)
        p.scale[k] = (const float *)(const void *)job_in(j, 2 + (uint32_t)k);
    p.by_rows = scaled && view_count(&l->in[2]) + view_count(&l->in[3]) > 2;
    if (residual) p.residual = matrix_of(j, &l->in[l->nin - 1]);
    for (int i = 0; i < c->rank - 2; i++) p.batch *= c->dims[i];
    if (!p.m || !p.n || !p.batch) return ST_OK;
    int64_t largest = i64_max(i64_max(p.m, p.n), p.k);
    largest = i64_max(largest, i64_max(p.a.ld, i64_max(p.b.ld, p.c.ld)));
    if (largest > INT_MAX) return job_unsupported(j, "an axis or stride exceeds 2^31-1 elements");
    choose_tiles(&p);
    pool_run(j->x->pool, ceil_div(p.batch * p.tiles_m * p.tiles_n, p.items), product_task, &p);
    return ST_OK;
}
