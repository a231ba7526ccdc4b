// SPDX-License-Identifier: Apache-2.0
/* cmd_bench_report.c - what `lathe bench` prints: launches by shape with their share of the step
 * and of what the memory can do. Measures nothing. */
#include "base/vec.h"
#include "driver/bench.h"
#include "ir/plan_work.h"
#include <jansson.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a launch is, in words ---------------------------------------------------------------
 */
static int64_t config_number(const char *config, const char *name) {
    for (const char *at = config; (at = strstr(at, name)) != NULL; at++) {
        size_t n = strlen(name);
        if (at != config && at[-1] == ' ' && at[n] == ' ') return strtoll(at + n, NULL, 10);
    }
    return 0;
}

static void put_dims(struct buf *b, const struct plan_view *v) {
    for (int d = 0; d < v->rank; d++) buf_printf(b, "%s%lld", d ? "x" : "", (long long)v->dims[d]);
}

static void put_types(struct buf *b, const struct plan_view *v, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        if (k == 6) {
            buf_puts(b, ",..");
            break;
        }
        buf_printf(b, "%s%s", k ? "," : "", dtype_name(v[k].dtype));
    }
}

static void put_product(struct buf *b, const struct plan_launch *l) {
    const struct plan_view *x = &l->in[0], *y = &l->out[0];
    int64_t batch = 1;
    for (int d = 0; d < y->rank - 2; d++) batch *= y->dims[d];
    buf_printf(b, "%lldx%lldx%lld", (long long)y->dims[y->rank - 2],
               (long long)y->dims[y->rank - 1], (long long)x->dims[x->rank - 1]);
    if (batch > 1) buf_printf(b, " x%lld", (long long)batch);
    buf_printf(b, " %c%c", x->strides[x->rank - 1] == 1 ? 'n' : 't',
               l->in[1].strides[l->in[1].rank - 1] == 1 ? 'n' : 't');
    if (launch_int(l, ATTR_add, 0)) buf_puts(b, " add");
}

static void put_group(struct buf *b, const struct plan *p, const struct plan_launch *l) {
    const struct plan_group *g = &p->groups.at[l->group.i];
    buf_printf(b, "%lldx%lld", (long long)group_rows(g), (long long)group_row_length(g));
    if (!l->ncalls) return;
    const struct plan_call *c = &p->calls.at[l->first_call];
    const struct plan_kernel *k = &p->kernels.at[c->kernel];
    buf_printf(b, " %s v%lld u%lld l%lld", interned(&p->strings, k->entry),
               (long long)config_number(k->config, "VEC"),
               (long long)config_number(k->config, "UNITS"),
               (long long)config_number(k->config, "LANES"));
}

static char *describe(const struct plan *p, const struct plan_launch *l, struct arena *a) {
    struct buf b;
    buf_init(&b, a);
    buf_printf(&b, "%s ", launch_name(l->kind));
    if (l->kind == LAUNCH_matmul)
        put_product(&b, l);
    else if (l->kind == LAUNCH_group)
        put_group(&b, p, l);
    else
        put_dims(&b, l->kind == LAUNCH_cross_entropy ? &l->in[0] : &l->out[0]);
    buf_puts(&b, " ");
    put_types(&b, l->in, l->nin);
    buf_puts(&b, "->");
    put_types(&b, l->out, l->nout);
    return b.at;
}

/* Equal for launches that do the same work with the same kernels. */
static char *signature(const struct plan *p, const struct plan_launch *l, const char *words,
                       struct arena *a) {
    struct buf b;
    buf_init(&b, a);
    buf_puts(&b, words);
    for (uint32_t k = 0; k < l->ncalls; k++)
        buf_printf(&b, " %u", p->calls.at[l->first_call + k].kernel);
    for (uint32_t k = 0; k < l->nin; k++) buf_puts(&b, " "), put_dims(&b, &l->in[k]);
    return b.at;
}

/* ---- lines ------------------------------------------------------------------------------------
 */
struct line {
    uint32_t launch, count; /* the first one; how many */
    const char *words, *signature, *origin;
    double seconds, bytes, flops;
};
typedef VEC(struct line) lines;

static struct line line_of(const struct bench_result *r, uint32_t i, struct arena *a) {
    const struct plan_launch *l = &r->plan->launches.at[i];
    struct line x = {.launch = i, .count = 1, .seconds = r->seconds[i]};
    x.words = describe(r->plan, l, a);
    x.signature = signature(r->plan, l, x.words, a);
    x.origin = interned(&r->plan->strings, l->origin);
    x.bytes = bench_bytes(r->plan, l);
    bool products = l->kind == LAUNCH_matmul || l->kind == LAUNCH_attention ||
                    l->kind == LAUNCH_attention_grad ||
                    (l->kind >= LAUNCH_conv && l->kind <= LAUNCH_conv_weight_grad);
    x.flops = products ? l->cost.flops : 0;
    return x;
}

static int dearer(const void *a, const void *b) {
    const struct line *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? 1 : -1;
    return x->launch < y->launch ? -1 : 1;
}

static lines by_shape(const struct bench_result *r, struct arena *a) {
    lines v = {0};
    for (uint32_t i = 0; i < r->plan->launches.n; i++) {
        struct line x = line_of(r, i, a);
        uint32_t k = 0;
        while (k < v.n && strcmp(v.at[k].signature, x.signature) != 0) k++;
        if (k == v.n) {
            vec_push(a, &v, x);
            continue;
        }
        v.at[k].count++;
        v.at[k].seconds += x.seconds;
        v.at[k].bytes += x.bytes;
        v.at[k].flops += x.flops;
    }
    if (v.n) qsort(v.at, v.n, sizeof v.at[0], dearer);
    return v;
}

static bool layer_lines(const struct bench_result *r, const char *layer, struct arena *a,
                        lines *out) {
    regex_t re;
    *out = (lines){0};
    if (!layer) return true;
    if (regcomp(&re, layer, REG_EXTENDED | REG_NOSUB) != 0) return false;
    for (uint32_t i = 0; i < r->plan->launches.n; i++) {
        struct line x = line_of(r, i, a);
        if (regexec(&re, x.origin, 0, NULL, 0) == 0) vec_push(a, out, x);
    }
    regfree(&re);
    return true;
}

/* ---- text -------------------------------------------------------------------------------------
 */
static double all_launches(const struct bench_result *r) {
    double sum = 0;
    for (uint32_t i = 0; i < r->plan->launches.n; i++) sum += r->seconds[i];
    return sum;
}

static void print_line(const struct bench_result *r, const struct line *x, double all, bool one) {
    double rate = x->seconds > 0 ? x->bytes / x->seconds : 0;
    printf("%6u %9.3f %5.1f%% %7.0f %5.1f%% ", one ? x->launch : x->count, x->seconds * 1e3,
           all > 0 ? 100 * x->seconds / all : 0, rate / 1e9, 100 * rate / r->copy_rate);
    if (x->flops > 0 && x->seconds > 0)
        printf("%7.1f ", x->flops / x->seconds / 1e12);
    else
        printf("%7s ", "");
    if (r->registers && r->registers[x->launch])
        printf("%4d ", r->registers[x->launch]);
    else
        printf("%4s ", "");
    printf(" %s  [%.60s]\n", x->words, x->origin);
}

static void print_lines(const struct bench_result *r, const lines *v, const char *first) {
    double all = all_launches(r);
    bool one = strcmp(first, "launch") == 0;
    printf("\n%6s %9s %6s %7s %6s %7s %4s  what\n", first, "ms", "step", "GB/s", "copy", "TFLOP/s",
           "regs");
    for (uint32_t k = 0; k < v->n; k++) print_line(r, &v->at[k], all, one);
}

bool bench_print(const struct bench_result *r, const char *layer, struct arena *a) {
    lines shapes = by_shape(r, a), one;
    if (!layer_lines(r, layer, a, &one)) return false;
    const double mib = 1048576.0;
    printf("%s: %.3f ms a step (median of %lld)", r->device, r->step_seconds * 1e3,
           (long long)r->steps);
    if (r->tokens) printf(", %.0f tokens/s", (double)r->tokens / r->step_seconds);
    printf(", %.1f samples/s\n", (double)r->samples / r->step_seconds);
    printf("first step done after %.2f s\n", r->first_seconds);
    printf("memory %.1f MiB held, %.1f planned; copies run at %.0f GB/s\n", (double)r->held / mib,
           (double)plan_bytes(r->plan) / mib, r->copy_rate / 1e9);
    printf("%u launches, %.3f ms one by one\n", r->plan->launches.n, all_launches(r) * 1e3);
    print_lines(r, &shapes, "count");
    if (layer) print_lines(r, &one, "launch");
    return true;
}

/* ---- JSON -------------------------------------------------------------------------------------
 */
static json_t *lines_json(const struct bench_result *r, const lines *v) {
    json_t *list = json_array();
    for (uint32_t k = 0; k < v->n; k++) {
        const struct line *x = &v->at[k];
        json_t *j = json_object();
        json_object_set_new(j, "launch", json_integer(x->launch));
        json_object_set_new(j, "count", json_integer(x->count));
        json_object_set_new(j, "what", json_string(x->words));
        json_object_set_new(j, "origin", json_string(x->origin));
        json_object_set_new(j, "ms", json_real(x->seconds * 1e3));
        json_object_set_new(j, "bytes", json_real(x->bytes));
        json_object_set_new(j, "flops", json_real(x->flops));
        if (r->registers)
            json_object_set_new(j, "registers", json_integer(r->registers[x->launch]));
        json_array_append_new(list, j);
    }
    return list;
}

bool bench_print_json(const struct bench_result *r, const char *layer, struct arena *a) {
    lines shapes = by_shape(r, a), one;
    if (!layer_lines(r, layer, a, &one)) return false;
    json_t *j = json_object();
    json_object_set_new(j, "device", json_string(r->device));
    json_object_set_new(j, "ms", json_real(r->step_seconds * 1e3));
    json_object_set_new(j, "ms_one_by_one", json_real(all_launches(r) * 1e3));
    json_object_set_new(j, "tokens_per_s", json_real((double)r->tokens / r->step_seconds));
    json_object_set_new(j, "samples_per_s", json_real((double)r->samples / r->step_seconds));
    json_object_set_new(j, "first_step_s", json_real(r->first_seconds));
    json_object_set_new(j, "memory_bytes", json_integer(r->held));
    json_object_set_new(j, "planned_bytes", json_integer(plan_bytes(r->plan)));
    json_object_set_new(j, "copy_bytes_per_s", json_real(r->copy_rate));
    json_object_set_new(j, "launches", json_integer(r->plan->launches.n));
    json_object_set_new(j, "by_shape", lines_json(r, &shapes));
    if (layer) json_object_set_new(j, "layer", lines_json(r, &one));
    char *s = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(j);
    puts(s ? s : "{}");
    free(s);
    return true;
}
