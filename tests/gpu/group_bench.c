// SPDX-License-Identifier: Apache-2.0
/* group_bench.c - the memory-bound kernels of a transformer's step in bf16, one by one on a GPU:
 * microseconds, GB/s, and the share of what a plain copy reaches. Bytes are those that have to
 * move: every operand and result once.
 *
 * usage: group_bench [--cache DIR] [--device N] [--only TEXT] [--times N] [--check] [--text DIR]
 *                    [--values] [--hot]
 * --check compiles every kernel with NVRTC instead (no GPU); --text writes their sources; --values
 * compares results with the CPU's on small odd shapes; --hot times between large products, at the
 * clock that a training step runs at. */
#include "base/sys.h"
#include "codegen/codegen.h"
#include "driver/bench.h"
#include "ir/quantize.h"
#include "passes/pass.h"
#include "runtime/cpu.h"
#include "runtime/cuda.h"
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARCH = 90, SEQ = 1024, HEAD = 64, BLOCK = 1 << 20, HEAT = 8192 };

struct kit {
    struct ctx ctx;
    struct arena arena;
    jmp_buf landing;
    struct cuda *gpu;
    const char *only, *text;
    int times;
    bool check, values, hot;
    double copy_rate;
    unsigned short *block; /* random bf16 numbers; as f32 too */
    size_t block_bytes;
    int64_t *labels;
    /* the case in work */
    struct graph *g;
    int64_t rows, cols;
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

/* ---- building ---------------------------------------------------------------------------------
 */
static const str_id none = {0};

static val_id source_of(struct kit *k, const char *name, enum dtype t, const int64_t *dims,
                        int rank, bool trained, const void *data) {
    struct type type = {.dtype = t, .rank = rank};
    for (int i = 0; i < rank; i++) type.dims[i] = dims[i];
    size_t bytes = (size_t)type_bytes(&type);
    struct attr a[] = {{.key = ATTR_name, .s = name},
                       {.key = ATTR_init, .blob = graph_blob(k->g, data, bytes, false)},
                       {.key = ATTR_frozen, .i = !trained}};
    val_id v = graph_source(k->g, OP_param, &type, a, 3, none);
    graph_set_name(k->g, v, name);
    return v;
}
static val_id big(struct kit *k, const char *name, enum dtype t, bool trained) {
    return source_of(k, name, t, (int64_t[]){k->rows, k->cols}, 2, trained, k->block);
}
static val_id row(struct kit *k, const char *name, bool trained) {
    return source_of(k, name, DT_f32, &k->cols, 1, trained, k->block);
}
static val_id wide(struct kit *k, val_id v) {
    return build_cast(k->g, v, DT_f32, none);
}
static val_id narrow(struct kit *k, val_id v) {
    return build_cast(k->g, v, DT_bf16, none);
}
static val_id op2(struct kit *k, enum op op, val_id a, val_id b) {
    return build_2(k->g, op, a, b, none);
}
static val_id gelu(struct kit *k, val_id v) {
    struct attr a = {.key = ATTR_approximate, .i = 1};
    return graph_add(k->g, OP_gelu, &v, 1, &a, 1, none);
}
static val_id norm(struct kit *k, enum op op, val_id v) {
    struct attr a[] = {{.key = ATTR_axis, .i = 1}, {.key = ATTR_eps, .f = 1e-5}};
    return graph_add(k->g, op, &v, 1, a, 2, none);
}
static void out(struct kit *k, const char *name, val_id v) {
    graph_add_output(k->g, name, v);
}
static val_id total(struct kit *k, val_id v) {
    return build_reduce(k->g, OP_reduce_sum, v, (int64_t[]){0, 1}, 2, false, none);
}
/* Output `loss` whose gradient with respect to bf16 value y is `g`. */
static val_id loss_of(struct kit *k, val_id y) {
    return total(k, op2(k, OP_mul, wide(k, y), wide(k, big(k, "g", DT_bf16, false))));
}

/* Only the gradients are left. */
static enum status differentiate(struct kit *k) {
    struct arena scratch;
    arena_init(&scratch, &k->ctx);
    struct pass_ctx c = {.ctx = &k->ctx, .scratch = &scratch};
    enum status st = pass_simplify(&c, k->g);
    if (st == ST_OK) st = pass_grad(&c, k->g);
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->g->outputs.n; i++)
        if (strcmp(interned(&k->g->strings, k->g->outputs.at[i].name), "loss") != 0)
            k->g->outputs.at[n++] = k->g->outputs.at[i];
    k->g->outputs.n = n;
    if (st == ST_OK) st = pass_simplify(&c, k->g);
    if (st == ST_OK) st = pass_cse(&c, k->g);
    if (st == ST_OK) st = pass_dce(&c, k->g);
    arena_reset(&scratch);
    return st;
}

/* ---- the cases --------------------------------------------------------------------------------
 */
static val_id bias_gelu(struct kit *k, bool trained) {
    val_id x = wide(k, big(k, "x", DT_bf16, trained));
    return narrow(k, gelu(k, op2(k, OP_add, x, row(k, "b", trained))));
}
static void case_gelu(struct kit *k) {
    out(k, "y", bias_gelu(k, false));
}
static void case_gelu_grad(struct kit *k) {
    out(k, "loss", loss_of(k, bias_gelu(k, true)));
}

static val_id scaled_norm(struct kit *k, enum op op, val_id x, bool trained) {
    val_id y = op2(k, OP_mul, norm(k, op, x), row(k, "w", trained));
    if (op == OP_layer_norm) y = op2(k, OP_add, y, row(k, "b", trained));
    return narrow(k, y);
}
static void add_norm(struct kit *k, enum op op) {
    val_id s =
        op2(k, OP_add, wide(k, big(k, "x", DT_bf16, false)), wide(k, big(k, "d", DT_bf16, false)));
    s = narrow(k, s);
    out(k, "s", s);
    val_id y = norm(k, op, wide(k, s));
    out(k, "stat", val_at(y, 1));
    if (op == OP_layer_norm) out(k, "stat2", val_at(y, 2));
    y = op2(k, OP_mul, y, row(k, "w", false));
    if (op == OP_layer_norm) y = op2(k, OP_add, y, row(k, "b", false));
    out(k, "y", narrow(k, y));
}
static void case_layer_norm(struct kit *k) {
    add_norm(k, OP_layer_norm);
}
static void case_rms_norm(struct kit *k) {
    add_norm(k, OP_rms_norm);
}
/* The input's gradient also has a part that came around the norm. */
static void norm_grad(struct kit *k, enum op op) {
    val_id x = wide(k, big(k, "x", DT_bf16, true));
    val_id l = loss_of(k, scaled_norm(k, op, x, true));
    val_id around = total(k, op2(k, OP_mul, x, wide(k, big(k, "r", DT_bf16, false))));
    out(k, "loss", op2(k, OP_add, l, around));
}
static void case_layer_norm_grad(struct kit *k) {
    norm_grad(k, OP_layer_norm);
}
static void case_rms_norm_grad(struct kit *k) {
    norm_grad(k, OP_rms_norm);
}

/* As a training step has them: statistics are saved, the norm's result is made again for the
 * weight's gradient, and what is added up is rounded first. */
static val_id mean_of(struct kit *k, val_id v) {
    val_id sum = build_reduce(k->g, OP_reduce_sum, v, (int64_t[]){1}, 1, true, none);
    return build_scale(k->g, sum, 1.0 / (double)k->cols, none);
}
static val_id down(struct kit *k, val_id v) {
    return build_reduce(k->g, OP_reduce_sum, v, (int64_t[]){0}, 1, false, none);
}
static val_id column(struct kit *k, const char *name) {
    return source_of(k, name, DT_f32, (int64_t[]){k->rows, 1}, 2, false, k->block);
}
static void step_grad(struct kit *k, bool centred) {
    val_id x = wide(k, big(k, "x", DT_bf16, false)), g = wide(k, big(k, "g", DT_bf16, false));
    val_id w = row(k, "w", false), inverse = column(k, "inverse");
    val_id n = op2(k, OP_mul, centred ? op2(k, OP_sub, x, column(k, "mean")) : x, inverse);
    val_id scaled = op2(k, OP_mul, g, w);
    val_id along = mean_of(k, op2(k, OP_mul, scaled, n));
    val_id d = op2(k, OP_sub, scaled, op2(k, OP_mul, n, along));
    if (centred) d = op2(k, OP_sub, d, mean_of(k, scaled));
    d = op2(k, OP_add, wide(k, big(k, "r", DT_bf16, false)), op2(k, OP_mul, d, inverse));
    out(k, "dx", d = narrow(k, d));
    out(k, "dw", down(k, op2(k, OP_mul, g, n)));
    val_id y = op2(k, OP_mul, n, w);
    out(k, "y", narrow(k, centred ? op2(k, OP_add, y, row(k, "b", false)) : y));
    if (!centred) return;
    out(k, "db", down(k, g));
    out(k, "dbias", down(k, wide(k, d)));
}
static void case_layer_norm_step(struct kit *k) {
    step_grad(k, true);
}
static void case_rms_norm_step(struct kit *k) {
    step_grad(k, false);
}
/* The norm alone, for the product after it. */
static void plain_norm(struct kit *k, enum op op) {
    val_id y = norm(k, op, wide(k, big(k, "x", DT_bf16, false)));
    out(k, "stat", val_at(y, 1));
    if (op == OP_layer_norm) out(k, "stat2", val_at(y, 2));
    y = op2(k, OP_mul, y, row(k, "w", false));
    if (op == OP_layer_norm) y = op2(k, OP_add, y, row(k, "b", false));
    out(k, "y", narrow(k, y));
}
static void case_plain_layer_norm(struct kit *k) {
    plain_norm(k, OP_layer_norm);
}
static void case_plain_rms_norm(struct kit *k) {
    plain_norm(k, OP_rms_norm);
}

static val_id swiglu(struct kit *k, bool trained) {
    val_id gate = build_1(k->g, OP_silu, wide(k, big(k, "gate", DT_bf16, trained)), none);
    return narrow(k, op2(k, OP_mul, gate, wide(k, big(k, "up", DT_bf16, trained))));
}
static void case_swiglu(struct kit *k) {
    out(k, "y", swiglu(k, false));
}
static void case_swiglu_grad(struct kit *k) {
    out(k, "loss", loss_of(k, swiglu(k, true)));
}

/* Row losses, and the gradient of their mean with respect to the logits. */
static void case_cross_entropy(struct kit *k) {
    struct graph *g = k->g;
    val_id z = wide(k, big(k, "logits", DT_bf16, false));
    val_id label = source_of(k, "labels", DT_i64, (int64_t[]){k->rows, 1}, 2, false, k->labels);
    val_id hot = op2(k, OP_eq, build_iota(g, DT_i64, k->cols, 0, 1, none), label);
    val_id zero = build_scalar(g, DT_f32, 0, none), one = build_scalar(g, DT_f32, 1, none);
    val_id most = build_reduce(g, OP_reduce_max, z, (int64_t[]){1}, 1, true, none);
    val_id e = build_1(g, OP_exp, op2(k, OP_sub, z, most), none);
    val_id sum = build_reduce(g, OP_reduce_sum, e, (int64_t[]){1}, 1, true, none);
    val_id own = build_reduce(g, OP_reduce_sum, build_3(g, OP_where, hot, z, zero, none),
                              (int64_t[]){1}, 1, true, none);
    val_id lse = op2(k, OP_add, build_1(g, OP_log, sum, none), most);
    out(k, "loss_rows", op2(k, OP_sub, lse, own));
    val_id p = build_1(g, OP_exp, op2(k, OP_sub, z, lse), none);
    val_id d = op2(k, OP_sub, p, build_3(g, OP_where, hot, one, zero, none));
    out(k, "dlogits", narrow(k, build_scale(g, d, 1.0 / (double)k->rows, none)));
}

static void case_cast(struct kit *k) {
    out(k, "y", narrow(k, big(k, "x", DT_f32, false)));
}
static void case_transpose(struct kit *k) {
    out(k, "y", build_swap_last(k->g, big(k, "x", DT_bf16, false), none));
}
/* Codes by a given scale, and their transpose. */
static void both_ways(struct kit *k, val_id x, enum dtype format) {
    struct quant_how how = {format, DT_f32, .eps = 1e-10, .tile = {.whole = true}};
    val_id scale = source_of(k, "scale", DT_f32, NULL, 0, false, k->block);
    val_id q = build_quantize(k->g, x, scale, &how, none);
    out(k, "codes", q);
    out(k, "turned", build_swap_last(k->g, q, none));
}
static void case_codes(struct kit *k) {
    both_ways(k, wide(k, big(k, "x", DT_bf16, false)), DT_e4m3);
}
static void case_swiglu_codes(struct kit *k) {
    both_ways(k, wide(k, swiglu(k, false)), DT_e4m3);
}
static val_id heads(struct kit *k, enum dtype t) {
    int64_t d[] = {k->rows / SEQ, SEQ, k->cols / HEAD, HEAD};
    return source_of(k, "x", t, d, 4, false, k->block);
}
static void case_permute(struct kit *k) {
    out(k, "y", build_transpose(k->g, heads(k, DT_bf16), (int64_t[]){0, 2, 1, 3}, none));
}
/* Rotary positions on the two halves of each head. */
static void case_rope(struct kit *k) {
    struct graph *g = k->g;
    val_id x = wide(k, heads(k, DT_bf16)), half[2], y[2];
    int64_t table[] = {SEQ, 1, HEAD / 2};
    val_id c = source_of(k, "cos", DT_f32, table, 3, false, k->block);
    val_id s = source_of(k, "sin", DT_f32, table, 3, false, k->block + 64);
    dim sizes[] = {k->rows / SEQ, SEQ, k->cols / HEAD, HEAD / 2};
    for (int i = 0; i < 2; i++)
        half[i] = build_slice(g, x, (dim[]){0, 0, 0, i * HEAD / 2}, sizes, NULL, none);
    y[0] = op2(k, OP_sub, op2(k, OP_mul, half[0], c), op2(k, OP_mul, half[1], s));
    y[1] = op2(k, OP_add, op2(k, OP_mul, half[1], c), op2(k, OP_mul, half[0], s));
    out(k, "y", narrow(k, build_concat(g, y, 2, 3, none)));
}
static void case_column_sum(struct kit *k) {
    val_id x = wide(k, big(k, "x", DT_bf16, false));
    out(k, "y", build_reduce(k->g, OP_reduce_sum, x, (int64_t[]){0}, 1, false, none));
}

static const struct bench_case {
    const char *name;
    void (*make)(struct kit *k);
    bool grad, wide; /* wide: also for rows of logits */
} cases[] = {
    {"bias gelu", case_gelu, false, false},
    {"bias gelu grad", case_gelu_grad, true, false},
    {"add layer_norm", case_layer_norm, false, false},
    {"layer_norm grad", case_layer_norm_grad, true, false},
    {"add rms_norm", case_rms_norm, false, false},
    {"rms_norm grad", case_rms_norm_grad, true, false},
    {"layer_norm step", case_layer_norm_step, false, false},
    {"rms_norm step", case_rms_norm_step, false, false},
    {"layer_norm", case_plain_layer_norm, false, false},
    {"rms_norm", case_plain_rms_norm, false, false},
    {"swiglu", case_swiglu, false, false},
    {"swiglu grad", case_swiglu_grad, true, false},
    {"cross_entropy", case_cross_entropy, false, true},
    {"cast", case_cast, false, true},
    {"transpose", case_transpose, false, true},
    {"codes, turned", case_codes, false, false},
    {"swiglu, turned", case_swiglu_codes, false, false},
    {"permute", case_permute, false, false},
    {"rope", case_rope, false, false},
    {"column sum", case_column_sum, false, true},
};
static const int64_t shapes[][2] = {{65536, 768},  {16384, 2048}, {32768, 1024},
                                    {65536, 3072}, {16384, 8192}, {8192, 50304}};

/* ---- running ----------------------------------------------------------------------------------
 */
static long long config(const char *text, const char *name) {
    char line[64];
    snprintf(line, sizeof line, "#define %s ", name);
    const char *at = strstr(text, line);
    return at ? strtoll(at + strlen(line), NULL, 10) : 0;
}

static void print_launch(struct kit *k, const struct plan *p, struct cuda_exec *x, uint32_t i,
                         double seconds) {
    const struct plan_launch *l = &p->launches.at[i];
    double bytes = bench_bytes(p, l);
    if (x)
        printf("    %8.1f us %5.0f GB/s %5.1f%% ", seconds * 1e6, bytes / seconds / 1e9,
               100 * bytes / seconds / k->copy_rate);
    else
        printf("    %8.1f MB ", bytes / 1e6);
    for (uint32_t c = 0; c < l->ncalls; c++) {
        const struct plan_call *call = &p->calls.at[l->first_call + c];
        const struct plan_kernel *n = &p->kernels.at[call->kernel];
        struct cuda_call_needs needs = {0, 0};
        if (x && cuda_get_call_needs(x, i, c, &needs) != ST_OK) k->failed++;
        printf(" %s", interned(&p->strings, n->entry));
        if (c == 0)
            printf(" v%lld u%lld l%lld rpw%lld", config(n->config, "VEC"),
                   config(n->config, "UNITS"), config(n->config, "LANES"),
                   config(n->config, "RPW"));
        printf(" %ux%u*%u r%d s%d", call->grid[0], call->grid[1], call->block, needs.registers,
               needs.shared);
    }
    printf("\n");
}

/* Seconds of each launch among products that keep the GPU busy. */
static enum status time_hot(struct kit *k, const struct plan *p, struct cuda_exec *x, double *each,
                            double *all) {
    uint32_t n = p->launches.n;
    TRY(cuda_run(x, 0, n, false));
    const double *seconds = cuda_profile(x, true);
    for (int i = 0; i < k->times; i++) TRY(cuda_run(x, 0, n, false));
    for (uint32_t i = 0; i < n && i < 64; i++) {
        each[i] = seconds[i] / k->times;
        if (p->launches.at[i].kind != LAUNCH_matmul) *all += each[i];
    }
    return ST_OK;
}

/* Some 6 ms of products. */
static void add_heat(struct kit *k) {
    int64_t d[] = {HEAT, HEAT};
    val_id a = source_of(k, "heat", DT_bf16, d, 2, false, k->block);
    val_id b = source_of(k, "heat2", DT_bf16, d, 2, false, k->block + 64);
    for (int i = 0; i < 4; i++) {
        char name[] = {'h', (char)('0' + i), 0};
        out(k, name, build_matmul(k->g, i & 1 ? a : b, i & 2 ? a : b, false, true, none));
    }
}

static enum status time_plan(struct kit *k, const struct plan *p, const char *name) {
    struct cuda_exec *x = NULL;
    double all = 0, bytes = 0, seconds[64] = {0};
    uint32_t n = p->launches.n;
    enum status st = cuda_create(k->gpu, p, kernel_source, NULL, &x);
    if (st == ST_OK && k->hot) st = time_hot(k, p, x, seconds, &all);
    if (st == ST_OK && !k->hot) st = cuda_measure_range(x, 0, n, 3, &all);
    if (st == ST_OK && !k->hot) st = cuda_measure_range(x, 0, n, k->times, &all);
    for (uint32_t i = 0; i < n && i < 64 && st == ST_OK; i++) {
        if (!k->hot) st = cuda_measure_range(x, i, i + 1, k->times, &seconds[i]);
        if (p->launches.at[i].kind != LAUNCH_matmul) bytes += bench_bytes(p, &p->launches.at[i]);
    }
    if (st == ST_OK) {
        printf("%-16s %6lldx%-6lld %9.1f us %5.0f GB/s %5.1f%%  %u launches\n", name,
               (long long)k->rows, (long long)k->cols, all * 1e6, bytes / all / 1e9,
               100 * bytes / all / k->copy_rate, n);
        for (uint32_t i = 0; i < n && i < 64; i++)
            if (p->launches.at[i].kind != LAUNCH_matmul) print_launch(k, p, x, i, seconds[i]);
    }
    cuda_destroy(x);
    fflush(stdout);
    return st;
}

static enum status write_texts(struct kit *k, const struct plan *p, const char *name) {
    for (uint32_t i = 0; i < p->kernels.n && k->text; i++) {
        const struct plan_kernel *n = &p->kernels.at[i];
        char *stem = arena_printf(&k->arena, "%s-%lldx%lld-%u", name, (long long)k->rows,
                                  (long long)k->cols, i);
        for (char *s = stem; *s; s++)
            if (*s == ' ') *s = '_';
        stem = arena_printf(&k->arena, "%s/%s", k->text, stem);
        const char *file = arena_printf(&k->arena, "%s.config", stem);
        TRY(sys_write_file(&k->ctx, file, n->config, strlen(n->config)));
        file = arena_printf(&k->arena, "%s.body", stem);
        TRY(sys_write_file(&k->ctx, file, n->body, strlen(n->body)));
    }
    return ST_OK;
}

static enum status check_plan(struct kit *k, const struct plan *p, const char *name) {
    uint32_t compiled = 0;
    if (k->text) TRY(write_texts(k, p, name));
    printf("%-16s %6lldx%-6lld %u launches, %u kernels\n", name, (long long)k->rows,
           (long long)k->cols, p->launches.n, p->kernels.n);
    for (uint32_t i = 0; i < p->launches.n; i++) print_launch(k, p, NULL, i, 1);
    if (k->text) return ST_OK;
    return cuda_compile_check(&k->ctx, NULL, p, kernel_source, NULL, &compiled);
}

static enum status make_plan(struct kit *k, const struct bench_case *c, int arch, struct plan **p) {
    struct codegen_options o = {.threads = 1, .cuda_arch = arch};
    k->g = graph_create(&k->ctx, "bench");
    c->make(k);
    enum status st = c->grad ? differentiate(k) : ST_OK;
    if (st == ST_OK && k->hot) add_heat(k);
    if (st == ST_OK) st = plan_build(k->g, &o, p);
    if (st == ST_OK) st = plan_verify(*p, "group_bench");
    return st;
}

static enum status run_case(struct kit *k, const struct bench_case *c) {
    struct plan *p = NULL;
    enum status st = make_plan(k, c, k->gpu ? cuda_plan_arch(k->gpu) : ARCH, &p);
    if (st == ST_OK) st = k->check ? check_plan(k, p, c->name) : time_plan(k, p, c->name);
    plan_destroy(p);
    graph_destroy(k->g);
    k->g = NULL;
    return st;
}

/* ---- values -----------------------------------------------------------------------------------
 * Both sides compute in f32 and differ in order and in the last bits of exp and tanh: a bf16 result
 * may be rounded the other way, and become the next code. */
static bool near(double relative, double want, double got, double largest) {
    if (want == got || (want != want && got != got)) return true;
    return fabs(want - got) <= relative * fabs(want) + 2e-5 * largest;
}

static bool same_result(const struct plan_buffer *b, const char *name, const void *want,
                        const void *got) {
    enum dtype t = b->type.dtype;
    size_t size = dtype_size(t), n = (size_t)b->bytes / size;
    bool rounded = strcmp(name, "dbias") == 0; /* a sum of numbers in bf16 */
    bool coarse = t == DT_bf16 || rounded;
    double relative = size == 1 ? 0x1p-3 : coarse ? 0x1p-7 : 1e-5, largest = 1e-3;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(dtype_load(t, (const char *)want + i * size)));
    for (size_t i = 0; i < n; i++) {
        double x = dtype_load(t, (const char *)want + i * size);
        double y = dtype_load(t, (const char *)got + i * size);
        if (near(relative, x, y, rounded ? 10 * largest : largest)) continue;
        printf("    %s[%zu] is %.9g, %.9g on the CPU\n", name, i, y, x);
        return false;
    }
    return true;
}

static enum status compare_plans(struct kit *k, const struct plan *cpu, const struct plan *gpu,
                                 bool *same) {
    struct pool *pool = pool_create(&k->ctx, 1);
    struct cpu_exec *x = NULL;
    struct cuda_exec *y = NULL;
    enum status st = cpu_create(&k->ctx, cpu, pool, &x);
    if (st == ST_OK) st = cpu_run(x, 0, cpu->launches.n, false);
    if (st == ST_OK) st = cuda_create(k->gpu, gpu, kernel_source, NULL, &y);
    if (st == ST_OK) st = cuda_run(y, 0, gpu->launches.n, false);
    for (uint32_t i = 1; i < gpu->buffers.n && st == ST_OK; i++) {
        const struct plan_buffer *b = &gpu->buffers.at[i];
        if (b->kind != BUF_OUTPUT || !b->bytes) continue;
        const char *name = interned(&gpu->strings, b->name);
        buf_id other = plan_find(cpu, BUF_OUTPUT, name);
        *same &= same_result(b, name, cpu_buffer_at(x, other), cuda_host_buffer_at(y, (buf_id){i}));
    }
    cuda_destroy(y);
    cpu_destroy(x);
    pool_destroy(pool);
    return st;
}

static void compare_case(struct kit *k, const struct bench_case *c) {
    struct plan *cpu = NULL, *gpu = NULL;
    bool same = true;
    for (int i = 0; i < k->rows && i < 65536; i++) k->labels[i] = k->cols - 1 - i * 37 % k->cols;
    enum status st = make_plan(k, c, 0, &cpu);
    graph_destroy(k->g);
    if (st == ST_OK) st = make_plan(k, c, cuda_plan_arch(k->gpu), &gpu);
    if (st == ST_OK) st = compare_plans(k, cpu, gpu, &same);
    if (st != ST_OK || !same) {
        printf("%s %lldx%lld FAILED\n", c->name, (long long)k->rows, (long long)k->cols);
        k->failed++;
    }
    plan_destroy(cpu);
    plan_destroy(gpu);
    graph_destroy(k->g);
    k->g = NULL;
}

static void compare_all(struct kit *k) {
    static const int64_t rows[] = {1, 5, 129},
                         cols[] = {1, 3, 17, 127, 768, 1000, 4097, 8200, 50304},
                         many[][2] = {
                             {9001, 768}, {1201, 2056}, {701, 20008}, {531, 50304}, {1040, 784}};
    enum { ROWS = sizeof rows / sizeof *rows, COLS = sizeof cols / sizeof *cols };
    int n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t s = 0; s < ROWS * COLS + sizeof many / sizeof *many; s++) {
            const int64_t *m = s < ROWS * COLS ? NULL : many[s - ROWS * COLS];
            k->rows = m ? m[0] : rows[s / COLS], k->cols = m ? m[1] : cols[s % COLS];
            if (cases[i].make == case_permute || cases[i].make == case_rope ||
                (k->only && !strstr(cases[i].name, k->only)))
                continue;
            if (!k->check)
                compare_case(k, &cases[i]);
            else if (run_case(k, &cases[i]) != ST_OK)
                k->failed++;
            n++;
        }
    printf("%d of %d %s\n", n - k->failed, n, k->check ? "compile" : "agree with the CPU");
}

static void run_all(struct kit *k) {
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            k->rows = shapes[s][0], k->cols = shapes[s][1];
            if (k->cols > 8192 && !cases[i].wide) continue;
            char name[96];
            snprintf(name, sizeof name, "%s %lldx%lld", cases[i].name, (long long)k->rows,
                     (long long)k->cols);
            if (k->only && !strstr(name, k->only)) continue;
            if (run_case(k, &cases[i]) == ST_OK) continue;
            printf("%s FAILED\n", name);
            k->failed++;
        }
}

/* Numbers in [-2, 2). */
static void fill_block(struct kit *k) {
    uint64_t x = UINT64_C(0x9E3779B97F4A7C15);
    size_t n = k->block_bytes / 2;
    for (size_t i = 0; i < n && i < BLOCK; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        dtype_store(DT_bf16, &k->block[i], (double)(x >> 11) * 0x1p-51 - 2);
    }
    for (size_t at = BLOCK; at < n; at += BLOCK)
        memcpy(k->block + at, k->block, 2 * (n - at < BLOCK ? n - at : BLOCK));
    for (int i = 0; i < 65536; i++) k->labels[i] = i * 37 % 768;
}

static int body(struct kit *k, const struct cuda_options *o) {
    double seconds = 1;
    k->block_bytes = (size_t)65536 * 3072 * 4;
    if (k->block_bytes < (size_t)8192 * 50304 * 4) k->block_bytes = (size_t)8192 * 50304 * 4;
    k->block = ctx_alloc(&k->ctx, k->block_bytes);
    k->labels = ctx_alloc(&k->ctx, 65536 * sizeof *k->labels);
    if (!k->check) {
        fill_block(k);
        if (cuda_open(&k->ctx, o, &k->gpu) != ST_OK) return 1;
        if (cuda_measure_copy(k->gpu, (size_t)1 << 30, &seconds) != ST_OK) return 1;
    }
    k->copy_rate = 0x1p31 / seconds;
    if (!k->check && !k->values)
        printf("copies run at %.0f GB/s, read and written\n", k->copy_rate / 1e9);
    if (k->values)
        compare_all(k);
    else
        run_all(k);
    cuda_close(k->gpu);
    ctx_free(&k->ctx, k->block);
    ctx_free(&k->ctx, k->labels);
    return k->failed != 0;
}

int main(int argc, char **argv) {
    static struct kit k = {.times = 20};
    struct cuda_options o = {0};
    ctx_init(&k.ctx);
    k.ctx.report = report;
    k.ctx.landing = &k.landing;
    if (setjmp(k.landing)) return 1;
    arena_init(&k.arena, &k.ctx);
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--cache") == 0 && more)
            o.cache_dir = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && more)
            o.device = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--only") == 0 && more)
            k.only = argv[++i];
        else if (strcmp(argv[i], "--times") == 0 && more)
            k.times = (int)strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--text") == 0 && more)
            k.text = argv[++i], k.check = true;
        else if (strcmp(argv[i], "--values") == 0)
            k.values = true;
        else if (strcmp(argv[i], "--hot") == 0)
            k.hot = true;
        else if (strcmp(argv[i], "--check") == 0)
            k.check = true;
        else
            return fprintf(stderr, "group_bench: unknown argument %s\n", argv[i]), 2;
    }
    return body(&k, &o);
}
