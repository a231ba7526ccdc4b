// SPDX-License-Identifier: Apache-2.0
/* cuda_nn.c - launches of layers: convolution, pooling, attention, cross entropy.
 * Shapes and strides become numbers in the text of the kernel; tiles are chosen by what fits. */
#include "codegen/cuda.h"
#include <inttypes.h>
#include <math.h>

enum { THREADS = 256, TILE = 64, BLOCKS_WANTED = 264 };
/* Attention through cuDNN. LIBRARY_MOST: bytes of its scratch memory from which on a batch is cut,
 * so that offsets fit 32 bits; LIBRARY_SLACK: bytes, for alignment. */
enum {
    LIBRARY_MOST = 2047 << 20,
    LIBRARY_TILE = 128,
    LIBRARY_LONGEST = 1 << 24, /* sequence */
    LIBRARY_SLACK = 64 << 10,
};
/* attention_hopper.cu. BLOCKS: multiprocessors of an H100 or H200, one block each; SLACK: bytes of
 * shared memory for barriers and alignment. */
enum {
    HOPPER_TILE = 128,
    HOPPER_BLOCKS = 132,
    HOPPER_SLACK = 1024 + 160,
};
#define LIBRARY_LARGEST (INT64_C(16) << 30) /* bytes for one batch; beyond, Lathe's kernels */

static bool is_real(enum dtype t) {
    return t == DT_f32 || t == DT_f64;
}

/* NAME0 .. NAME2 */
static void define_three(struct cuda_gen *c, const char *name, const int64_t x[3]) {
    for (int k = 0; k < 3; k++) cuda_define(c, arena_printf(c->scratch, "%s%d", name, k), x[k]);
}

/* ---- convolution and pooling ------------------------------------------------------------------
 */
enum status cuda_conv(struct cuda_gen *c) {
    struct conv_shape s = plan_conv_shape(c->l);
    enum dtype t = c->l->out[0].dtype;
    int kind = c->l->kind == LAUNCH_conv ? 0 : c->l->kind == LAUNCH_conv_input_grad ? 1 : 2;
    if (!is_real(t)) return cuda_unsupported(c, "operands must be f32 or f64");
    if (s.in_plane == 0 || s.out_plane == 0 || s.taps == 0)
        return cuda_unsupported(c, "an image or kernel without elements");
    if (s.in_plane > INT32_MAX || s.out_plane > INT32_MAX || s.taps > INT32_MAX ||
        i64_max(s.c, s.o) > INT32_MAX || s.n > INT32_MAX)
        return cuda_unsupported(c, "a plane or kernel exceeds 2^31-1 elements");
    int64_t m = kind == 1 ? s.c : s.o;
    int64_t n = kind == 0 ? s.n * s.out_plane : kind == 1 ? s.n * s.in_plane : s.c * s.taps;
    int64_t k = kind == 0 ? s.c * s.taps : kind == 1 ? s.o * s.taps : s.n * s.out_plane;
    int64_t tiles = ceil_div(m, TILE) * ceil_div(n, TILE) * s.groups;
    int64_t parts = i64_max(i64_min(BLOCKS_WANTED / i64_max(tiles, 1), k / 256), 1);
    if (parts > 1) c->l->work_bytes = round16(parts * s.groups * m * n * (int64_t)dtype_size(t));
    cuda_define(c, "KIND", kind);
    cuda_define_text(c, "REAL", cuda_memory_type(t));
    cuda_define(c, "BATCH", s.n);
    cuda_define(c, "GROUPS", s.groups);
    cuda_define(c, "C", s.c);
    cuda_define(c, "O", s.o);
    define_three(c, "IN", s.in);
    define_three(c, "OUT", s.out);
    define_three(c, "K", s.kernel);
    define_three(c, "S", s.stride);
    define_three(c, "P", s.pad);
    define_three(c, "D", s.dilation);
    cuda_define(c, "PARTS", parts);
    cuda_define_params(c);
    TRY(cuda_call(c, "conv.cu", "conv", ceil_div(n, TILE), ceil_div(m, TILE), s.groups * parts,
                  THREADS, 0));
    if (parts == 1) return ST_OK;
    return cuda_call(c, "conv.cu", "conv_join", ceil_div(s.groups * m * n, THREADS), 1, 1, THREADS,
                     0);
}

enum status cuda_max_pool(struct cuda_gen *c) {
    const struct plan_view *x = &c->l->in[0], *y = &c->l->out[0];
    static const enum attr_key keys[] = {ATTR_kernel, ATTR_strides, ATTR_pads, ATTR_dilations};
    static const char *const names[] = {"K", "S", "P", "D"};
    int n, spatial = x->rank - 2;
    int64_t in[3], out[3], plane = 1, list[3];
    if (!is_real(x->dtype)) return cuda_unsupported(c, "its operand must be f32 or f64");
    for (int d = 0; d < 3; d++) {
        int k = d - (3 - spatial);
        in[d] = k >= 0 ? x->dims[2 + k] : 1;
        out[d] = k >= 0 ? y->dims[2 + k] : 1;
        plane *= in[d];
    }
    if (plane > INT32_MAX) return cuda_unsupported(c, "a plane exceeds 2^31-1 elements");
    cuda_define(c, "PLANES", x->dims[0] * x->dims[1]);
    cuda_define_text(c, "REAL", cuda_memory_type(x->dtype));
    define_three(c, "IN", in);
    define_three(c, "OUT", out);
    for (int a = 0; a < 4; a++) {
        const int64_t *given = launch_ints(c->l, keys[a], &n);
        for (int d = 0; d < 3; d++) {
            int k = d - (3 - spatial);
            list[d] = k >= 0 && given && k < n ? given[k] : keys[a] == ATTR_pads ? 0 : 1;
        }
        define_three(c, names[a], list);
    }
    return cuda_call(c, "pool.cu", "max_pool", ceil_div(view_count(y), THREADS), 1, 1, THREADS, 0);
}

/* ---- attention ---------------------------------------------------------------------------------
 */
static void define_strides(struct cuda_gen *c, const char *name, const struct plan_view *v) {
    const int64_t *s = v->strides;
    buf_printf(&c->config, "#define %s_STRIDES %" PRId64 ", %" PRId64 ", %" PRId64 "\n", name, s[0],
               s[1], s[2]);
}

static void define_mask(struct cuda_gen *c, const struct plan_view *mask) {
    static const char *const names[] = {"MASK_B", "MASK_H", "MASK_T", "MASK_S"};
    cuda_define(c, "MASK", !mask ? 0 : mask->dtype == DT_bool ? 2 : 1);
    if (!mask) return;
    cuda_define_text(c, "MASK_TYPE", cuda_memory_type(mask->dtype));
    for (int d = 0; d < 4; d++) cuda_define(c, names[d], mask->strides[d]);
}

/* Shared memory of a block with tiles of 16*tm. */
static int64_t tile_bytes(bool grad, int64_t d, int64_t e, int64_t tm, int64_t size) {
    int64_t dp = ceil_div(d, 16) * 16, ep = ceil_div(e, 16) * 16;
    int64_t lines = grad ? 2 * (dp + ep) : dp + i64_max(dp, ep);
    return (lines + 16 * tm) * (16 * tm + 4) * size;
}

static enum status check_attention(struct cuda_gen *c, const struct plan_view *mask) {
    const struct plan_launch *l = c->l;
    for (uint32_t k = 0; k < l->nin; k++) {
        bool other = &l->in[k] == mask || (l->kind == LAUNCH_attention_grad && k == 4);
        if (!other && l->in[k].dtype != l->in[0].dtype)
            return cuda_unsupported(c, "q, k and v must be of one type");
    }
    enum dtype t = l->in[0].dtype;
    if (!is_real(t) && t != DT_bf16 && t != DT_f16)
        return cuda_unsupported(c, "q, k and v must be f32, f64, bf16 or f16");
    if (mask && mask->dtype != DT_bool && !dtype_is_float(mask->dtype))
        return cuda_unsupported(c, "a mask must be bool or a float");
    if (l->in[0].dims[3] > 256 || l->in[2].dims[3] > 256)
        return cuda_unsupported(c, "heads of more than 256 elements");
    for (int d = 0; d < 4; d++)
        if (l->in[0].dims[d] > INT32_MAX / 2 || l->in[1].dims[d] > INT32_MAX / 2)
            return cuda_unsupported(c, "an axis of more than 2^30");
    return ST_OK;
}

static enum status attention_calls(struct cuda_gen *c, int64_t tm, int64_t bytes) {
    const struct plan_view *q = &c->l->in[0], *k = &c->l->in[1];
    int64_t tile = 16 * tm, heads = q->dims[0] * q->dims[1];
    int64_t blocks = heads * ceil_div(q->dims[2], tile);
    const char *file = "attention.cu";
    if (c->l->kind == LAUNCH_attention)
        return cuda_call(c, file, "attention", blocks, 1, 1, THREADS, bytes);
    if (blocks > 0) {
        int64_t rows = ceil_div(heads * q->dims[2], 8);
        TRY(cuda_call(c, file, "attention_rows", rows, 1, 1, THREADS, 0));
        TRY(cuda_call(c, file, "attention_dq", blocks, 1, 1, THREADS, bytes));
    }
    blocks = k->dims[0] * k->dims[1] * ceil_div(k->dims[2], tile);
    if (blocks == 0) return ST_OK;
    return cuda_call(c, file, "attention_dkv", blocks, 1, 1, THREADS, bytes);
}

/* Scratch memory for the gradient through cuDNN, which is used where it can be: whole batches, as
 * many as LIBRARY_MOST holds. Of each it keeps the gradient of the scores in 16 bits and, where
 * heads share k and v, their gradients for each head, all in whole tiles, and its sums. 0: not so
 * computed, see read_problem() of runtime/cuda/cudnn.c. */
static int64_t library_bytes(const struct plan_launch *l, int arch) {
    const struct plan_view *q = &l->in[0], *k = &l->in[1], *v = &l->in[2];
    int64_t b = q->dims[0], h = q->dims[1], t = q->dims[2], d = q->dims[3];
    int64_t s = k->dims[2], e = v->dims[3], most = arch == 90 ? 256 : 128;
    bool causal = launch_int(l, ATTR_causal, 0) != 0;
    if (dtype_size(q->dtype) != 2 || l->nin != 6 || launch_float(l, ATTR_softcap, 0.0) > 0)
        return 0;
    if (arch > 90 || d % 8 || e % 8 || d < 8 || e < 8 || d > most || e > most) return 0;
    if (b < 1 || h < 1 || t < 1 || s < 1 || (causal && t > s)) return 0;
    int64_t rows = ceil_div(t, LIBRARY_TILE) * LIBRARY_TILE;
    int64_t cols = ceil_div(s, LIBRARY_TILE) * LIBRARY_TILE, one;
    if (rows > LIBRARY_LONGEST || cols > LIBRARY_LONGEST) return 0;
    one = rows * (2 * cols + 4) + (k->dims[1] < h ? 2 * cols * (d + e) : 0);
    if (__builtin_mul_overflow(one, h, &one) || one > LIBRARY_LARGEST) return 0;
    int64_t part = i64_min(b, i64_max(LIBRARY_MOST / one, 1));
    while (part > 0 && part < b && (b % part || part * h * t % 4)) part--; /* lse stays aligned */
    return part > 0 ? round16(one * part + LIBRARY_SLACK) : 0;
}

/* What an operand of the kernels for Hopper is: heads in one piece, everything at 16 bytes. */
static bool at_pieces(const struct plan_view *v, enum dtype t) {
    enum { PIECE = 8 };
    bool ok = v->dtype == t && v->rank == 4 && v->strides[3] == 1 && v->offset % PIECE == 0;
    for (int i = 0; i < 3 && ok; i++)
        ok = v->dims[i] == 1 || (v->strides[i] >= 0 && v->strides[i] % PIECE == 0);
    return ok;
}

/* Whether attention_hopper.cu computes this gradient. */
static bool hopper_takes(const struct plan_launch *l, int arch) {
    const struct plan_view *q = &l->in[0], *k = &l->in[1], *lse = &l->in[4];
    double scale = launch_float(l, ATTR_scale, 1.0);
    int64_t d = q->dims[3], tiles;
    if (arch != 90 || l->kind != LAUNCH_attention_grad || l->nin != 6) return false;
    if (launch_float(l, ATTR_softcap, 0.0) > 0 || !isfinite(scale) || scale == 0) return false;
    if (dtype_size(q->dtype) != 2 || (d != 64 && d != 128) || l->in[2].dims[3] != d) return false;
    if (q->dims[0] < 1 || q->dims[1] < 1 || q->dims[2] < 1 || k->dims[1] < 1 || k->dims[2] < 1)
        return false;
    if (lse->dtype != DT_f32 || !view_contiguous(lse)) return false;
    for (uint32_t i = 0; i < l->nin + l->nout; i++) {
        const struct plan_view *v = i < l->nin ? &l->in[i] : &l->out[i - l->nin];
        if (v != lse && !at_pieces(v, q->dtype)) return false;
    }
    tiles = ceil_div(i64_max(q->dims[2], k->dims[2]), HOPPER_TILE);
    return !__builtin_mul_overflow(tiles, q->dims[0] * q->dims[1], &tiles) && tiles < INT32_MAX / 2;
}

/* One of the two kernels: `levels` tiles of each of `all` heads. */
struct hopper_list {
    int64_t all, levels;
    bool keys; /* tiles are of keys */
    const struct plan_launch *l;
};

/* How long a tile takes, in steps of 64 rows and with what it takes to begin and to end. */
static int64_t tile_steps(const struct hopper_list *x, int64_t level) {
    enum { STEP = 64, ENDS = 2 };
    const struct plan_view *q = &x->l->in[0], *k = &x->l->in[1];
    int64_t t = q->dims[2], s = k->dims[2], share = x->keys ? q->dims[1] / k->dims[1] : 1, n;
    bool causal = launch_int(x->l, ATTR_causal, 0) != 0;
    int64_t first = (x->keys ? level : x->levels - 1 - level) * HOPPER_TILE;
    if (x->keys)
        n = causal ? t - i64_max(first - (s - t), 0) : t;
    else
        n = causal ? i64_min(first + HOPPER_TILE + s - t, s) : s;
    return share * ceil_div(i64_max(n, 0), STEP) + ENDS;
}

/* By how much the busiest block exceeds the mean, in 1/1000, when groups have n heads; of long
 * lists the beginning. The order is that of next_work() in attention_hopper.cu. */
static int64_t imbalance(const struct hopper_list *x, int64_t n) {
    enum { LONGEST = 1 << 15 };
    int64_t load[HOPPER_BLOCKS] = {0}, tiles = i64_min(x->all * x->levels, LONGEST);
    int64_t sum = 0, most = 0, blocks = i64_min(tiles, HOPPER_BLOCKS);
    for (int64_t i = 0; i < tiles; i++) {
        int64_t group = i / (n * x->levels), rest = i % (n * x->levels), at = i % blocks;
        int64_t steps = tile_steps(x, rest / i64_min(n, x->all - group * n));
        int64_t block = i / blocks % 2 ? blocks - 1 - at : at;
        load[block] += steps;
        sum += steps;
        most = i64_max(most, load[block]);
    }
    return most * 1000 * blocks / sum;
}

/* How many heads form a group: the fewest, which the cache holds best, among those with which no
 * block has much more to do than others. */
static int64_t hopper_heads(const struct hopper_list *x) {
    enum { LEAST = 4, CLOSE = 5 };
    int64_t best = i64_min(LEAST, x->all), least = INT64_MAX;
    for (int64_t n = best;; n = i64_min(n % 3 ? n * 3 / 2 : n / 3 * 4, x->all)) {
        int64_t over = imbalance(x, n);
        if (over + CLOSE < least) {
            least = over;
            best = n;
        }
        if (n == x->all) return best;
    }
}

static enum status hopper_calls(struct cuda_gen *c) {
    const struct plan_view *q = &c->l->in[0], *k = &c->l->in[1];
    const char *file = "attention_hopper.cu";
    int64_t b = q->dims[0], h = q->dims[1], t = q->dims[2], d = q->dims[3];
    int64_t kv = k->dims[1], s = k->dims[2];
    int64_t row = 2 * d, piece = 64 * row, tile = HOPPER_TILE * row; /* bytes */
    int64_t dq_stages = d == 64 ? 6 : 4, dkv_stages = d == 64 ? 6 : 3, fixed = d == 64 ? 1 : 2;
    int64_t dq = b * h * ceil_div(t, HOPPER_TILE), dkv = b * kv * ceil_div(s, HOPPER_TILE);
    cuda_define_text(c, "PRODUCT_TYPE", q->dtype == DT_bf16 ? "\"bf16\"" : "\"f16\"");
    struct hopper_list queries = {b * h, ceil_div(t, HOPPER_TILE), false, c->l};
    struct hopper_list keys = {b * kv, ceil_div(s, HOPPER_TILE), true, c->l};
    cuda_define(c, "HEADS_DQ", hopper_heads(&queries));
    cuda_define(c, "HEADS_DKV", hopper_heads(&keys));
    cuda_define(c, "STAGES_DQ", dq_stages);
    cuda_define(c, "STAGES_DKV", dkv_stages);
    c->l->work_bytes = round16(2 * 4 * b * h * ceil_div(t, HOPPER_TILE) * HOPPER_TILE);
    TRY(cuda_call(c, file, "attention_hopper_dq", i64_min(dq, HOPPER_BLOCKS), 1, 1, 384,
                  dq_stages * 2 * piece + 3 * tile + HOPPER_TILE * 4 + HOPPER_SLACK));
    return cuda_call(c, file, "attention_hopper_dkv", i64_min(dkv, HOPPER_BLOCKS), 1, 1, 384,
                     dkv_stages * (2 * piece + 512) + fixed * 2 * tile + HOPPER_SLACK);
}

enum status cuda_attention(struct cuda_gen *c) {
    const struct plan_launch *l = c->l;
    bool grad = l->kind == LAUNCH_attention_grad;
    uint32_t first = grad ? 6 : 3;
    const struct plan_view *q = &l->in[0], *k = &l->in[1], *v = &l->in[2];
    const struct plan_view *mask = l->nin > first ? &l->in[first] : NULL;
    const struct plan_view *lse = grad ? &l->in[4] : &l->out[1];
    TRY(check_attention(c, mask));
    bool wide = q->dtype == DT_f64;
    int64_t size = wide ? 8 : 4, d = q->dims[3], e = v->dims[3]; /* computed in f64 or f32 */
    /* What a multiprocessor has, and for 80 what its smaller relatives have. */
    int64_t most = c->p->cuda_arch >= 90 ? 160 * 1024 : 99 * 1024, tm = size == 8 ? 2 : 4;
    while (tm > 1 && tile_bytes(grad, d, e, tm, size) > most) tm /= 2;
    double softcap = launch_float(l, ATTR_softcap, 0.0);
    bool exact = grad && wide, hopper = hopper_takes(l, c->p->cuda_arch);
    if (grad && !hopper)
        c->l->work_bytes =
            i64_max(round16(q->dims[0] * q->dims[1] * q->dims[2] * size * (exact ? 2 : 1)),
                    library_bytes(l, c->p->cuda_arch));
    cuda_define(c, "TM", tm);
    cuda_define_text(c, "REAL", wide ? "double" : "float");
    cuda_define_text(c, "MEM", cuda_memory_type(q->dtype));
    cuda_define_text(c, "LSE", cuda_memory_type(lse->dtype));
    cuda_define(c, "GRAD", grad);
    cuda_define(c, "EXACT", exact);
    cuda_define(c, "B", q->dims[0]);
    cuda_define(c, "H", q->dims[1]);
    cuda_define(c, "SHARE", k->dims[1] > 0 ? q->dims[1] / k->dims[1] : 1);
    cuda_define(c, "T", q->dims[2]);
    cuda_define(c, "S", k->dims[2]);
    cuda_define(c, "D", d);
    cuda_define(c, "EV", e);
    cuda_define_float(c, "SCALE", launch_float(l, ATTR_scale, 1.0));
    if (softcap > 0) cuda_define_float(c, "SOFTCAP", softcap);
    cuda_define(c, "CAUSAL", launch_int(l, ATTR_causal, 0) != 0);
    define_mask(c, mask);
    define_strides(c, "Q", q);
    define_strides(c, "K", k);
    define_strides(c, "V", v);
    define_strides(c, "Y", grad ? &l->in[3] : &l->out[0]);
    if (grad) {
        define_strides(c, "G", &l->in[5]);
        define_strides(c, "DQ", &l->out[0]);
        define_strides(c, "DK", &l->out[1]);
        define_strides(c, "DV", &l->out[2]);
    }
    if (hopper) return hopper_calls(c);
    return attention_calls(c, tm, tile_bytes(grad, d, e, tm, size));
}

/* ---- cross entropy -----------------------------------------------------------------------------
 */
static int64_t vector_of(int64_t count, const struct plan_view *v, int64_t stride) {
    int64_t n = 16 / (int64_t)dtype_size(v->dtype);
    while (n > 1 && (count % n != 0 || v->offset % n != 0 || stride % n != 0)) n /= 2;
    return n;
}

enum status cuda_cross_entropy(struct cuda_gen *c) {
    const struct plan_view *x = &c->l->in[0], *labels = &c->l->in[1];
    const struct plan_view *loss = &c->l->out[0], *lse = &c->l->out[1];
    enum dtype t = x->dtype;
    if (!is_real(t) && t != DT_bf16 && t != DT_f16)
        return cuda_unsupported(c, "logits must be f32, f64, bf16 or f16");
    if (!is_real(loss->dtype) || !is_real(lse->dtype))
        return cuda_unsupported(c, "losses must be f32 or f64");
    int64_t vec = vector_of(x->dims[1], x, x->strides[0]);
    int64_t threads = i64_min(i64_max((ceil_div(x->dims[1], vec) + 31) / 32 * 32, 32), 512);
    cuda_define(c, "ROWS", x->dims[0]);
    cuda_define(c, "COLS", x->dims[1]);
    cuda_define(c, "STRIDE", x->strides[0]);
    cuda_define(c, "LABEL_STRIDE", labels->strides[0]);
    cuda_define(c, "VEC", vec);
    cuda_define(c, "THREADS", threads);
    cuda_define(c, "IGNORE", launch_int(c->l, ATTR_ignore_index, -100));
    cuda_define_text(c, "MEM", cuda_memory_type(t));
    cuda_define_text(c, "REAL", t == DT_f64 ? "double" : "float");
    cuda_define_text(c, "LABEL", cuda_memory_type(labels->dtype));
    cuda_define_text(c, "LOSS", cuda_memory_type(loss->dtype));
    cuda_define_text(c, "LSE", cuda_memory_type(lse->dtype));
    return cuda_call(c, "cross_entropy.cu", "cross_entropy", x->dims[0], 1, 1, threads, 0);
}
