// SPDX-License-Identifier: Apache-2.0
/* optim_bench.c - the optimizer step and the embedding's gather and scatter on a GPU: microseconds,
 * GB/s of the bytes that have to move, and the share of what a plain copy reaches. Not a test of
 * values: that is gpu_test.
 *
 * usage: optim_bench [--cache DIR] [--device N] [--times N] */
#include "codegen/codegen.h"
#include "runtime/cuda.h"
#include "step_graph.h"
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIZES_MAX = 512, COPY_BYTES = 1 << 30 };

struct kit {
    struct ctx ctx;
    jmp_buf landing;
    struct cuda *gpu;
    int times;
    double copy_rate; /* bytes per second, read and written */
    int failed;
};

static void report(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message) {
    (void)user, (void)code;
    if (sev == SEV_ERROR) printf("    %s: %s\n", origin, message);
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

/* Rows by Zipf's law, as words of a text: row r is named about count / (r log(rows)) times. */
static void zipf(struct cuda_exec *x, const struct plan *p) {
    buf_id b = plan_find(p, BUF_INPUT, "idx");
    int64_t *at = b.i ? cuda_host_buffer_at(x, b) : NULL;
    uint64_t seed = 7;
    for (int64_t i = 0; at && i < p->buffers.at[b.i].type.dims[0]; i++)
        at[i] = (int64_t)(exp(step_value(&seed, true) * log(50304.0)) - 1) * 7919 % 50304;
}

/* ---- one plan ----------------------------------------------------------------------------------
 */
static void print_line(struct kit *k, const char *what, const char *launch, double seconds,
                       double bytes) {
    printf("%-34s %-14s %9.1f us %8.1f GB/s %5.1f%% of a copy\n", what, launch, seconds * 1e6,
           bytes / seconds * 1e-9, 100 * bytes / seconds / k->copy_rate);
    fflush(stdout);
}

static double view_bytes(const struct plan_view *v) {
    return (double)view_count(v) * (double)dtype_size(v->dtype);
}

/* A gather reads what it takes of the table. */
static double launch_bytes(const struct plan_launch *l) {
    double sum = 0;
    for (uint32_t i = 0; i < l->nin; i++)
        sum += view_bytes(l->kind == LAUNCH_gather && i == 0 ? &l->out[0] : &l->in[i]);
    for (uint32_t i = 0; i < l->nout; i++) sum += view_bytes(&l->out[i]);
    return sum;
}

static enum status measure(struct kit *k, struct graph *g, const char *what) {
    struct codegen_options o = {.threads = 1, .cuda_arch = k->gpu ? cuda_get_info(k->gpu).arch : 0};
    struct plan *p = NULL;
    struct cuda_exec *x = NULL;
    enum status st = plan_build(g, &o, &p);
    if (st == ST_OK) st = cuda_create(k->gpu, p, kernel_source, NULL, &x);
    if (st == ST_OK) zipf(x, p);
    if (st == ST_OK) st = cuda_run(x, 0, p->launches.n, false);
    for (uint32_t i = 0; st == ST_OK && i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        double seconds;
        if (l->kind == LAUNCH_group) continue;
        st = cuda_measure_range(x, i, i + 1, k->times, &seconds);
        if (st == ST_OK) print_line(k, what, launch_name(l->kind), seconds, launch_bytes(l));
    }
    cuda_destroy(x);
    plan_destroy(p);
    k->failed += st != ST_OK;
    return st;
}

/* ---- optimizers --------------------------------------------------------------------------------
 */
static int gpt2_sizes(int64_t *s) {
    const int64_t d = 768;
    int n = 0;
    s[n++] = 50304 * d, s[n++] = 1024 * d;
    for (int layer = 0; layer < 12; layer++) {
        const int64_t each[] = {d, d, 3 * d * d, 3 * d, d * d,     d,
                                d, d, 4 * d * d, 4 * d, 4 * d * d, d};
        for (int i = 0; i < 12; i++) s[n++] = each[i];
    }
    s[n++] = d, s[n++] = d;
    return n;
}

static int llama_sizes(int64_t *s) {
    const int64_t d = 2048, h = 8192;
    int n = 0;
    s[n++] = 50304 * d;
    for (int layer = 0; layer < 16; layer++) {
        const int64_t each[] = {d, d * d, d * d, d * d, d * d, d, d * h, d * h, h * d};
        for (int i = 0; i < 9; i++) s[n++] = each[i];
    }
    s[n++] = d, s[n++] = 50304 * d;
    return n;
}

static void bench_step(struct kit *k, const char *what, int n, const int64_t *sizes,
                       enum dtype gradient, enum op op) {
    struct step_case c = {
        .op = op, .real = DT_f32, .gradient = gradient, .clip = true, .sizes = sizes, .n = n};
    struct graph *g = step_graph(&k->ctx, &c);
    (void)measure(k, g, what);
    graph_destroy(g);
}

/* 8-bit m and v. All tensors begin with the same values; states are what steps make of 0. */
struct small_bench {
    struct graph *g;
    const void *w, *d;
    enum dtype gradient;
};

static void *values_of(struct graph *g, enum dtype t, int64_t n) {
    size_t size = dtype_size(t);
    char *at = ARENA_ARRAY(&g->arena, char, size *(size_t)n);
    uint64_t seed = 3;
    for (int64_t i = 0; i < n; i++) {
        double x = 1e-3 * step_value(&seed, false);
        dtype_store(t, at + (size_t)i * size, x < 0 ? x - 3e-4 : x + 3e-4);
    }
    return at;
}

static val_id small_source(struct small_bench *s, const char *kind, int k, enum dtype t, int64_t n,
                           const void *data, double fill) {
    struct type type = {.dtype = t, .rank = 1, .dims = {n}};
    const char *name = arena_printf(&s->g->arena, "%s%d", kind, k);
    struct attr at[2] = {{.key = ATTR_name, .s = name}, {.key = ATTR_fill, .f = fill}};
    if (data)
        at[1] = (struct attr){.key = ATTR_init,
                              .blob = graph_blob(s->g, data, dtype_size(t) * (size_t)n, false)};
    return graph_source(s->g, OP_state, &type, at, 2, (str_id){0});
}

static void add_small(struct small_bench *s, int k, int64_t n, val_id lr, val_id step,
                      val_id factor, bool stochastic) {
    struct graph *g = s->g;
    str_id o = {0};
    int64_t groups = (n + 127) / 128;
    val_id d = small_source(s, "g", k, s->gradient, n, s->d, 0);
    val_id in[10] = {small_source(s, "w", k, DT_f32, n, s->w, 0), d};
    if (s->gradient != DT_f32) in[1] = build_cast(g, d, DT_f32, o);
    in[1] = build_2(g, OP_mul, in[1], factor, o);
    for (int j = 0; j < 2; j++) {
        in[2 + 3 * j] = small_source(s, j ? "v" : "m", k, DT_e4m3, n, NULL, 0);
        in[3 + 3 * j] = small_source(s, j ? "v.amax" : "m.amax", k, DT_f32, groups, NULL, 0);
        in[4 + 3 * j] = small_source(s, j ? "v.k" : "m.k", k, DT_u8, groups, NULL, 16);
    }
    in[8] = lr, in[9] = step;
    struct attr at[2] = {{.key = ATTR_weight_decay, .f = 0.1},
                         {.key = ATTR_stochastic, .i = stochastic}};
    val_id y = graph_add(g, OP_adam8, in, 10, at, 2, o);
    for (int j = 0; j < 7; j++) graph_add_update(g, in[j ? j + 1 : 0], val_at(y, j));
}

static void bench_small(struct kit *k, const char *what, int n, const int64_t *sizes,
                        enum dtype gradient, bool stochastic) {
    struct small_bench s = {.g = graph_create(&k->ctx, "small"), .gradient = gradient};
    int64_t most = 0;
    for (int i = 0; i < n; i++) most = sizes[i] > most ? sizes[i] : most;
    s.w = values_of(s.g, DT_f32, most), s.d = values_of(s.g, gradient, most);
    val_id factor = small_source(&s, "factor", 0, DT_f32, 1, NULL, 1);
    val_id lr = small_source(&s, "lr", 0, DT_f32, 1, NULL, 1e-3);
    val_id step = small_source(&s, "step", 0, DT_i64, 1, NULL, 3);
    factor = build_reshape(s.g, factor, NULL, 0, (str_id){0});
    lr = build_reshape(s.g, lr, NULL, 0, (str_id){0});
    step = build_reshape(s.g, step, NULL, 0, (str_id){0});
    for (int i = 0; i < n; i++) add_small(&s, i, sizes[i], lr, step, factor, stochastic);
    graph_settle(s.g);
    (void)measure(k, s.g, what);
    graph_destroy(s.g);
}

/* ---- embedding ---------------------------------------------------------------------------------
 */
static void bench_rows(struct kit *k, const char *what, int64_t n, int64_t width, enum dtype t) {
    struct graph *g = graph_create(&k->ctx, "rows");
    struct type table = {.dtype = t, .rank = 2, .dims = {50304, width}};
    struct type rows = {.dtype = t, .rank = 2, .dims = {n, width}};
    struct type idx = {.dtype = DT_i64, .rank = 1, .dims = {n}};
    struct attr names[3] = {{.key = ATTR_name, .s = "table"},
                            {.key = ATTR_name, .s = "updates"},
                            {.key = ATTR_name, .s = "idx"}};
    str_id o = {0};
    val_id a = graph_source(g, OP_state, &table, &names[0], 1, o);
    val_id u = graph_source(g, OP_state, &rows, &names[1], 1, o);
    val_id i = graph_source(g, OP_input, &idx, &names[2], 1, o);
    struct attr axis[2] = {{.key = ATTR_axis, .i = 0},
                           {.key = ATTR_shape, .list = table.dims, .n = 2}};
    /* States take the results: nothing is copied to the host. */
    val_id s = graph_add(g, OP_scatter_rows, (val_id[]){i, u}, 2, axis, 2, o);
    val_id y = graph_add(g, OP_gather, (val_id[]){a, i}, 2, axis, 1, o);
    graph_add_update(g, a, s);
    graph_add_update(g, u, y);
    graph_settle(g);
    (void)measure(k, g, what);
    graph_destroy(g);
}

static int body(struct kit *k, const struct cuda_options *o) {
    int64_t sizes[SIZES_MAX];
    double seconds;
    if (cuda_open(&k->ctx, o, &k->gpu) != ST_OK) return 1;
    if (cuda_measure_copy(k->gpu, COPY_BYTES, &seconds) != ST_OK) return 1;
    k->copy_rate = 2.0 * COPY_BYTES / seconds;
    printf("%s: a copy moves %.1f GB/s\n", cuda_get_info(k->gpu).name, k->copy_rate * 1e-9);
    int n = gpt2_sizes(sizes);
    bench_step(k, "GPT-2 124M, f32 gradients", n, sizes, DT_f32, OP_adam);
    bench_step(k, "GPT-2 124M, bf16 gradients", n, sizes, DT_bf16, OP_adam);
    bench_step(k, "GPT-2 124M, bf16 gradients", n, sizes, DT_bf16, OP_sgd);
    bench_small(k, "GPT-2 124M, 8-bit states, f32 g", n, sizes, DT_f32, false);
    bench_small(k, "GPT-2 124M, 8-bit states, bf16 g", n, sizes, DT_bf16, false);
    bench_small(k, "the same, v at random", n, sizes, DT_bf16, true);
    n = llama_sizes(sizes);
    bench_step(k, "Llama 1.28B, bf16 gradients", n, sizes, DT_bf16, OP_adam);
    bench_small(k, "Llama 1.28B, 8-bit states, bf16 g", n, sizes, DT_bf16, true);
    bench_rows(k, "65536 rows of 768, bf16", 65536, 768, DT_bf16);
    bench_rows(k, "65536 rows of 768, f32", 65536, 768, DT_f32);
    bench_rows(k, "32768 rows of 2048, bf16", 32768, 2048, DT_bf16);
    bench_rows(k, "32768 rows of 2048, f32", 32768, 2048, DT_f32);
    cuda_close(k->gpu);
    return k->failed != 0;
}

int main(int argc, char **argv) {
    static struct kit k = {.times = 20};
    struct cuda_options o = {0};
    ctx_init(&k.ctx);
    k.ctx.report = report;
    k.ctx.landing = &k.landing;
    if (setjmp(k.landing)) return 1;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--cache") == 0 && more)
            o.cache_dir = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && more)
            o.device = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--times") == 0 && more)
            k.times = (int)strtol(argv[++i], NULL, 10);
        else
            return fprintf(stderr, "optim_bench: unknown argument %s\n", argv[i]), 2;
    }
    return body(&k, &o);
}
