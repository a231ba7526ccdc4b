// SPDX-License-Identifier: Apache-2.0
/* cuda_index.c - launches that move data by indices or run along one axis: gather, scatter, argmax,
 * cumsum. Their kernels are gather.cu, scatter.cu and axis.cu. */
#include "codegen/cuda.h"
#include <inttypes.h>

/* SETS_FROM: words of a gather from which a thread moves several: the GPU is full by then. */
enum { THREADS = 256, WARPS = THREADS / 32, SETS = 4, SETS_FROM = 1 << 20 };

struct split {
    int64_t outer, n, inner;
};

static struct split split_axis(const struct plan_view *v, int64_t axis) {
    struct split s = {1, 1, 1};
    for (int i = 0; i < v->rank; i++) {
        if (i < axis)
            s.outer *= v->dims[i];
        else if (i == axis)
            s.n = v->dims[i];
        else
            s.inner *= v->dims[i];
    }
    return s;
}

static int64_t launch_axis(const struct cuda_gen *c) {
    return launch_int(c->l, ATTR_axis, 0);
}

static const char *sum_type(enum dtype t) {
    return t == DT_f64 ? "double" : dtype_is_float(t) ? "float" : "i64";
}

static const char *word_type(int64_t bytes) {
    switch (bytes) {
    case 16: return "word16";
    case 8: return "u64";
    case 4: return "u32";
    case 2: return "unsigned short";
    default: return "unsigned char";
    }
}

/* Place of element `e` of the index tensor in the data, the axis counted 0. */
static void base_function(struct cuda_gen *c, const struct plan_view *idx,
                          const struct plan_view *data, int64_t axis) {
    int64_t step = 1, stride = 1;
    bool first = true;
    buf_puts(&c->body, "DEV i64 base_at(i64 e) {\n");
    cuda_origin_line(c);
    buf_puts(&c->body, "    return ");
    for (int d = data->rank - 1; d >= 0; d--) {
        if (d != axis && idx->dims[d] > 1 && step > 0) {
            buf_printf(&c->body, "%se / %" PRId64 " %% %" PRId64 " * %" PRId64, first ? "" : " + ",
                       step, idx->dims[d], stride);
            first = false;
        }
        step *= idx->dims[d];
        stride *= data->dims[d];
    }
    buf_puts(&c->body, first ? "0;\n}\n" : ";\n}\n");
}

/* ---- gather ---------------------------------------------------------------------------------- */
static enum status gather_rows(struct cuda_gen *c) {
    const struct plan_view *x = &c->l->in[0], *idx = &c->l->in[1], *y = &c->l->out[0];
    struct split s = split_axis(x, launch_axis(c));
    int64_t elem = (int64_t)dtype_size(x->dtype), row = s.inner * elem, word = 16;
    while (row % word != 0 || x->offset * elem % word != 0 || y->offset * elem % word != 0)
        word /= 2;
    cuda_define_text(c, "ROWS_KIND", "");
    cuda_define(c, "NIDX", view_count(idx));
    cuda_define(c, "OUTER", s.outer);
    cuda_define(c, "AXIS", s.n);
    cuda_define(c, "INNER", row / word);
    if (launch_int(c->l, ATTR_labels, 0))
        cuda_define(c, "LABELS", launch_int(c->l, ATTR_ignore_index, -100));
    cuda_define_text(c, "WORD", word_type(word));
    cuda_define_text(c, "INDEX", cuda_memory_type(idx->dtype));
    int64_t words = view_count(y) * elem / word, sets = words >= SETS_FROM ? SETS : 1;
    cuda_define_text(c, "AT", cuda_index_type(words));
    cuda_define(c, "SETS", sets);
    return cuda_call(c, "gather.cu", "gather_rows", ceil_div(words, THREADS * sets), 1, 1, THREADS,
                     0);
}

enum status cuda_gather(struct cuda_gen *c) {
    const struct plan_view *x = &c->l->in[0], *idx = &c->l->in[1];
    int64_t axis = launch_axis(c), count = view_count(idx);
    if (c->l->kind == LAUNCH_gather) return gather_rows(c);
    struct split s = split_axis(x, axis);
    cuda_define(c, "NIDX", count);
    cuda_define(c, "AXIS", s.n);
    cuda_define(c, "INNER", s.inner);
    cuda_define_text(c, "WORD", word_type((int64_t)dtype_size(x->dtype)));
    cuda_define_text(c, "INDEX", cuda_memory_type(idx->dtype));
    base_function(c, idx, x, axis);
    return cuda_call(c, "gather.cu", "gather_elements", ceil_div(count, THREADS), 1, 1, THREADS, 0);
}

/* ---- scatter --------------------------------------------------------------------------------- */
enum status cuda_scatter_rows(struct cuda_gen *c) {
    const struct plan_view *idx = &c->l->in[0], *updates = &c->l->in[1], *y = &c->l->out[0];
    struct split s = split_axis(y, launch_axis(c));
    int64_t n = view_count(idx), vec = 16 / (int64_t)dtype_size(y->dtype);
    if (n > INT32_MAX / 4 || s.n > INT32_MAX / 4)
        return cuda_unsupported(c, "more than 2^29 indices or rows");
    while (s.inner % vec != 0 || updates->offset % vec != 0 || y->offset % vec != 0) vec /= 2;
    c->l->work_bytes = round16((2 * s.n + 1 + 2 * n) * 4);
    cuda_define_text(c, "ROWS_KIND", "");
    cuda_define(c, "NIDX", n);
    cuda_define(c, "OUTER", s.outer);
    cuda_define(c, "AXIS", s.n);
    cuda_define(c, "INNER", s.inner);
    cuda_define(c, "VEC", vec);
    cuda_define_text(c, "DATA", cuda_memory_type(y->dtype));
    cuda_define_text(c, "SUM", sum_type(y->dtype));
    cuda_define_text(c, "INDEX", cuda_memory_type(idx->dtype));
    const char *file = "scatter.cu";
    int64_t rows = ceil_div(s.n, THREADS), some = ceil_div(n, THREADS);
    TRY(cuda_call(c, file, "scatter_clear", rows, 1, 1, THREADS, 0));
    if (n > 0) {
        TRY(cuda_call(c, file, "scatter_count", some, 1, 1, THREADS, 0));
        TRY(cuda_call(c, file, "scatter_room", rows, 1, 1, THREADS, 0));
        TRY(cuda_call(c, file, "scatter_list", some, 1, 1, THREADS, 0));
    }
    return cuda_call(c, file, "scatter_rows", ceil_div(s.outer * s.n, WARPS),
                     ceil_div(s.inner, 32 * vec), 1, THREADS, 0);
}

enum status cuda_scatter_elements(struct cuda_gen *c) {
    const struct plan_view *idx = &c->l->in[1], *y = &c->l->out[0];
    int64_t axis = launch_axis(c);
    struct split s = split_axis(y, axis), line = split_axis(idx, axis);
    int64_t lines = view_count(idx) > 0 ? line.outer * line.inner : 0;
    cuda_define(c, "NIDX", view_count(idx));
    cuda_define(c, "COUNT", view_count(y));
    cuda_define(c, "LINES", lines);
    cuda_define(c, "LENGTH", line.n);
    cuda_define(c, "STEP", i64_max(line.inner, 1));
    cuda_define(c, "AXIS", s.n);
    cuda_define(c, "INNER", s.inner);
    cuda_define(c, "ADD", launch_int(c->l, ATTR_add, 0) != 0);
    cuda_define_text(c, "DATA", cuda_memory_type(y->dtype));
    cuda_define_text(c, "SUM", sum_type(y->dtype));
    cuda_define_text(c, "INDEX", cuda_memory_type(idx->dtype));
    base_function(c, idx, y, axis);
    int64_t blocks = ceil_div(view_count(y), THREADS);
    TRY(cuda_call(c, "scatter.cu", "scatter_copy", blocks, 1, 1, THREADS, 0));
    if (lines == 0) return ST_OK;
    blocks = ceil_div(lines, THREADS);
    return cuda_call(c, "scatter.cu", "scatter_elements", blocks, 1, 1, THREADS, 0);
}

/* ---- along an axis --------------------------------------------------------------------------- */
enum status cuda_along_axis(struct cuda_gen *c) {
    const struct plan_view *x = &c->l->in[0];
    struct split s = split_axis(x, launch_axis(c));
    enum dtype t = x->dtype;
    bool is_argmax = c->l->kind == LAUNCH_argmax;
    if (s.n == 0) return cuda_unsupported(c, "an axis without elements");
    cuda_define(c, "LINES", s.outer * s.inner);
    cuda_define(c, "N", s.n);
    cuda_define(c, "INNER", s.inner);
    cuda_define_text(c, "DATA", cuda_memory_type(t));
    cuda_define_text(c, "VALUE", t == DT_bool ? "i64" : sum_type(t));
    cuda_define_text(c, "TOTAL", dtype_is_float(t) ? "double" : "i64");
    cuda_define(c, "EXCLUSIVE", launch_int(c->l, ATTR_exclusive, 0) != 0);
    cuda_define(c, "REVERSE", launch_int(c->l, ATTR_reverse, 0) != 0);
    int64_t each = is_argmax && s.inner == 1 ? THREADS / 32 : THREADS;
    return cuda_call(c, "axis.cu", is_argmax ? "argmax" : "cumsum",
                     ceil_div(s.outer * s.inner, each), 1, 1, THREADS, 0);
}
