// SPDX-License-Identifier: Apache-2.0
/* cuda_emit.c - plan_emit_cuda: goes over the launches of a plan and collects kernels and calls.
 * What a kind needs is in the other cuda_*.c; kernels themselves are codegen/kernels. */
#include "codegen/cuda.h"
#include "ir/plan_text.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- words --------------------------------------------------------------------------------- */
const char *cuda_memory_type(enum dtype t) {
    switch (t) {
    case DT_f32: return "float";
    case DT_f64: return "double";
    case DT_i32: return "int";
    case DT_i16: return "short";
    case DT_i8: return "signed char";
    case DT_u8: return "unsigned char";
    case DT_bool: return "boolean";
    default: return dtype_name(t); /* i64 and the small floats are called so in prelude.cuh */
    }
}

const char *cuda_register_type(enum dtype t) {
    return t == DT_f32 ? "float" : t == DT_f64 ? "double" : t == DT_bool ? "bool" : "i64";
}

const char *cuda_index_type(int64_t largest) {
    return largest < INT64_C(0x7f000000) ? "u32" : "u64";
}

void cuda_literal(struct buf *out, enum dtype reg, double x, int64_t ix) {
    if (reg == DT_i64) {
        if (ix == INT64_MIN)
            buf_puts(out, "I64_MIN");
        else
            buf_printf(out, "%" PRId64 "ll", ix);
    } else if (reg == DT_bool) {
        buf_puts(out, x != 0 ? "true" : "false");
    } else if (!isfinite(x)) {
        bool f32 = reg == DT_f32;
        if (isnan(x))
            buf_puts(out, f32 ? "__int_as_float(0x7fc00000)"
                              : "__longlong_as_double(0x7ff8000000000000ll)");
        else
            buf_printf(out, "%s%s", x < 0 ? "-" : "", f32 ? "F32_INF" : "F64_INF");
    } else if (reg == DT_f32) {
        buf_f32(out, (float)x);
        buf_puts(out, "f");
    } else {
        buf_f64(out, x);
    }
}

void cuda_fresh(struct cuda_gen *c) {
    buf_init(&c->config, c->scratch);
    buf_init(&c->body, c->scratch);
}

void cuda_define_text(struct cuda_gen *c, const char *name, const char *text) {
    buf_printf(&c->config, "#define %s %s\n", name, text);
}

void cuda_define(struct cuda_gen *c, const char *name, int64_t x) {
    bool wide = x > INT32_MAX || x < -INT32_MAX;
    buf_printf(&c->config, x < 0 ? "#define %s (%" PRId64 "%s)\n" : "#define %s %" PRId64 "%s\n",
               name, x, wide ? "ll" : "");
}

void cuda_define_float(struct cuda_gen *c, const char *name, double x) {
    buf_printf(&c->config, "#define %s (", name);
    cuda_literal(&c->config, DT_f64, x, 0);
    buf_puts(&c->config, ")\n");
}

void cuda_define_params(struct cuda_gen *c) {
    const struct plan_launch *l = c->l;
    struct buf *b = &c->config;
    buf_puts(b, "#define PARAMS ");
    for (uint32_t k = 0; k < l->nin; k++)
        buf_printf(b, "const %s *in%u, ", cuda_memory_type(l->in[k].dtype), k);
    for (uint32_t k = 0; k < l->nout; k++)
        buf_printf(b, "%s *out%u, ", cuda_memory_type(l->out[k].dtype), k);
    buf_puts(b, l->work_bytes ? "char *workspace, u64 *error\n" : "u64 *error\n");
    buf_puts(b, "#define ARGS ");
    for (uint32_t k = 0; k < l->nin; k++) buf_printf(b, "in%u, ", k);
    for (uint32_t k = 0; k < l->nout; k++) buf_printf(b, "out%u, ", k);
    buf_puts(b, l->work_bytes ? "workspace, error\n" : "error\n");
}

/* Names come from hostile files: what a C string would read otherwise is replaced. */
void cuda_origin_line(struct cuda_gen *c) {
    const char *s = interned(&c->p->strings, c->l->origin);
    buf_puts(&c->body, "#line 1 \"");
    if (!s[0]) s = launch_name(c->l->kind);
    for (; *s; s++) {
        bool plain = *s >= ' ' && *s < 127 && *s != '"' && *s != '\\';
        buf_put(&c->body, plain ? s : "_", 1);
    }
    buf_puts(&c->body, "\"\n");
}

enum status cuda_unsupported(struct cuda_gen *c, const char *what) {
    return diag_error(c->p->ctx, ST_UNSUPPORTED, interned(&c->p->strings, c->l->origin),
                      "the CUDA backend cannot run this %s: %s", launch_name(c->l->kind), what);
}

/* ---- kernels and calls --------------------------------------------------------------------- */
/* Without lines that only say where the text comes from: layers of one form share a kernel. */
static uint64_t text_key(const char *file, const char *config, const char *body) {
    uint64_t h = hash_combine(hash_bytes(file, strlen(file)), hash_bytes(config, strlen(config)));
    while (*body) {
        const char *end = strchr(body, '\n');
        size_t n = end ? (size_t)(end - body) + 1 : strlen(body);
        if (strncmp(body, "#line", 5) != 0) h = hash_combine(h, hash_bytes(body, n));
        body += n;
    }
    return h;
}

static uint32_t find_kernel(struct cuda_gen *c, const char *file, const char *entry) {
    struct plan *p = c->p;
    uint64_t key = text_key(file, c->config.at, c->body.at);
    uint64_t id = hash_combine(key, hash_bytes(entry, strlen(entry)));
    uint32_t k;
    if (map_get(&c->known, id, &k)) return k;
    k = p->kernels.n;
    struct plan_kernel x = {.entry = intern(&p->strings, entry),
                            .file = intern(&p->strings, file),
                            .config = arena_strdup(&p->arena, c->config.at),
                            .body = arena_strdup(&p->arena, c->body.at),
                            .key = key};
    vec_push(&p->arena, &p->kernels, x);
    map_set(&c->known, id, k);
    return k;
}

enum status cuda_call(struct cuda_gen *c, const char *file, const char *entry, int64_t gx,
                      int64_t gy, int64_t gz, int64_t block, int64_t shared) {
    if (gx > INT32_MAX || gy > 65535 || gz > 65535)
        return cuda_unsupported(c, "it needs more blocks than a grid holds");
    CHECK(c->p->ctx, gx > 0 && gy > 0 && gz > 0 && block > 0 && block <= 1024);
    struct plan_call x = {.kernel = find_kernel(c, file, entry),
                          .grid = {(uint32_t)gx, (uint32_t)gy, (uint32_t)gz},
                          .block = (uint32_t)block,
                          .shared = (uint32_t)shared};
    if (c->l->ncalls == 0) c->l->first_call = c->p->calls.n;
    c->l->ncalls++;
    vec_push(&c->p->arena, &c->p->calls, x);
    return ST_OK;
}

/* ---- launches ------------------------------------------------------------------------------ */
static enum status emit_launch(struct cuda_gen *c) {
    switch (c->l->kind) {
    case LAUNCH_group: return cuda_group(c);
    case LAUNCH_matmul: return ST_OK; /* the library's */
    case LAUNCH_conv:
    case LAUNCH_conv_input_grad:
    case LAUNCH_conv_weight_grad: return cuda_conv(c);
    case LAUNCH_max_pool: return cuda_max_pool(c);
    case LAUNCH_argmax:
    case LAUNCH_cumsum: return cuda_along_axis(c);
    case LAUNCH_gather:
    case LAUNCH_gather_elements: return cuda_gather(c);
    case LAUNCH_scatter_rows: return cuda_scatter_rows(c);
    case LAUNCH_scatter_elements: return cuda_scatter_elements(c);
    case LAUNCH_attention:
    case LAUNCH_attention_grad: return cuda_attention(c);
    case LAUNCH_cross_entropy: return cuda_cross_entropy(c);
    case LAUNCH_sum_squares: return cuda_sum_squares(c);
    case LAUNCH_cast: return cuda_casts(c);
    case LAUNCH_sgd:
    case LAUNCH_adam: return cuda_optimizer(c);
    case LAUNCH_adam8: return cuda_adam8(c);
    case LAUNCH_COUNT: break;
    }
    ctx_bug(c->p->ctx, __FILE__, __LINE__, "a known launch kind");
}

static void reset_arena(void *a) {
    arena_reset(a);
}

/* Freed with the plan if an unwind comes before its time. */
static struct arena *temporary(struct plan *p) {
    struct arena *a = ARENA_NEW(&p->arena, struct arena);
    arena_init(a, p->ctx);
    arena_defer(&p->arena, reset_arena, a);
    return a;
}

enum status plan_emit_cuda(struct plan *p) {
    struct arena *texts = temporary(p), *kernels = temporary(p);
    struct cuda_gen c = {.p = p, .scratch = texts};
    map_init(&c.known, kernels);
    p->kernels.n = p->calls.n = 0;
    if (p->cuda_arch != 80 && p->cuda_arch != 90 && p->cuda_arch != 100)
        return diag_error(p->ctx, ST_UNSUPPORTED, "",
                          "expected the GPU architecture 80, 90 or 100, found %d", p->cuda_arch);
    enum status s = ST_OK;
    for (uint32_t k = 0; k < p->launches.n && s == ST_OK; k++) {
        struct arena_mark mark = arena_mark(texts);
        c.l = &p->launches.at[k];
        c.l->first_call = c.l->ncalls = 0;
        c.l->work_bytes = 0;
        cuda_fresh(&c);
        s = emit_launch(&c);
        arena_rewind(texts, mark);
    }
    arena_reset(texts);
    arena_reset(kernels);
    return s;
}

int64_t plan_cuda_workspace(const struct plan *p, uint32_t i) {
    return p->launches.at[i].work_bytes;
}
