// SPDX-License-Identifier: Apache-2.0
/* plan_text.c - the canonical text form of a plan (docs/IR.md, "Plan") and whether two plans are
 * the same. Reading it back is plan_parse.c, judging it plan_verify.c: a plan that is not
 * legal prints too. What is generated for a GPU (kernels and calls) is plan_text_cuda.c. */
#include "ir/plan_text.h"
#include "ir/lex.h"
#include <string.h>

enum { INLINE_MAX = 16 }; /* elements of an initial value that are written out */

/* ---- words --------------------------------------------------------------------------------- */
const char *plan_kind_word(enum buffer_kind k) {
    static const char *const words[] = {"none",  "const",  "param", "state",
                                        "input", "output", "temp",  "workspace"};
    return words[(unsigned)k <= BUF_WORKSPACE ? k : BUF_NONE];
}

const char *plan_use_word(enum buffer_use u) {
    static const char *const words[USE_COUNT + 1] = {
        "weights", "optimizer", "gradients", "activations", "io", "workspace", "constants", "none"};
    return words[(unsigned)u < USE_COUNT ? u : USE_COUNT];
}

const char *plan_arena_word(enum arena_class a) {
    static const char *const words[ARENA_CLASSES + 1] = {"persistent", "io", "step", "none"};
    return words[(unsigned)a < ARENA_CLASSES ? a : ARENA_CLASSES];
}

const char *plan_mode_word(enum group_mode m) {
    static const char *const words[] = {"map", "row", "tail", "none"};
    return words[(unsigned)m <= GROUP_TAIL ? m : 3];
}

struct instr_form instr_form(unsigned code) {
    static const struct instr_form forms[INSTR_COUNT - OP_COUNT] = {
        [INSTR_LOAD - OP_COUNT] = {"load", 0, .slot = true, .result = true},
        [INSTR_CONST - OP_COUNT] = {"const", 0, .result = true},
        [INSTR_IOTA - OP_COUNT] = {"iota", 0, .axis = true, .result = true},
        [INSTR_RANDOM - OP_COUNT] = {"random", 0, .slot = true, .result = true},
        [INSTR_STORE - OP_COUNT] = {"store", 1, .slot = true},
        [INSTR_SUM - OP_COUNT] = {"row_sum", 1, .result = true},
        [INSTR_MAX - OP_COUNT] = {"row_max", 1, .result = true},
        [INSTR_MIN - OP_COUNT] = {"row_min", 1, .result = true},
        [INSTR_PROD - OP_COUNT] = {"row_prod", 1, .result = true},
        [INSTR_COLSUM - OP_COUNT] = {"col_sum", 1, .slot = true},
        [INSTR_COLMAX - OP_COUNT] = {"col_max", 1, .slot = true},
        [INSTR_PART_MAX - OP_COUNT] = {"part_max", 1, .result = true},
        [INSTR_PART_MIN - OP_COUNT] = {"part_min", 1, .result = true},
    };
    if (code >= INSTR_COUNT) return (struct instr_form){.name = NULL};
    if (code >= OP_COUNT) return forms[code - OP_COUNT];
    const struct op_info *info = op_info((enum op)code);
    if (!(info->traits & EW)) return (struct instr_form){.name = NULL};
    return (struct instr_form){.name = info->name,
                               .operands = info->min_in,
                               .result = true,
                               .flag = code == OP_gelu  ? "approximate"
                                       : code == OP_mod ? "trunc"
                                                        : NULL};
}

void plan_row_major(const int64_t *dims, int rank, int64_t *strides) {
    uint64_t step = 1; /* wraps where a plan is not legal anyway */
    for (int k = rank - 1; k >= 0; k--) {
        strides[k] = (int64_t)step;
        step *= (uint64_t)dims[k];
    }
}

uint64_t plan_blob_hash(const struct blob *b) {
    uint64_t h = b->hash ? b->hash : b->data ? hash_bytes(b->data, b->bytes) : 0;
    return h ? h : 1;
}

/* ---- printing ------------------------------------------------------------------------------ */
static void put_int(struct buf *out, int64_t x) {
    buf_printf(out, "%lld", (long long)x);
}

static void put_ints(struct buf *out, const int64_t *x, int n, const char *between) {
    for (int k = 0; k < n; k++) {
        if (k) buf_puts(out, between);
        put_int(out, x[k]);
    }
}

static void put_type(struct buf *out, enum dtype t, const int64_t *dims, int rank) {
    buf_printf(out, "%s[", dtype_name(t));
    put_ints(out, dims, rank, ",");
    buf_puts(out, "]");
}

static void put_init(struct buf *out, const struct blob *b, enum dtype t) {
    size_t size = dtype_size(t), n = size ? b->bytes / size : 0;
    if (!b->data || n * size != b->bytes || n > INLINE_MAX) {
        buf_printf(out, " init hash 0x%016llx bytes %zu", (unsigned long long)plan_blob_hash(b),
                   b->bytes);
        return;
    }
    buf_puts(out, " init [");
    for (size_t k = 0; k < n; k++) {
        if (k) buf_puts(out, ", ");
        text_element(out, t, (const char *)b->data + k * size);
    }
    buf_puts(out, "]");
}

static bool is_zero(double x) { /* and not -0.0 */
    const double zero = 0.0;
    return memcmp(&x, &zero, sizeof x) == 0;
}

static bool step_kind(const struct plan_buffer *b) {
    return b->kind == BUF_TEMP || b->kind == BUF_WORKSPACE;
}

static void put_buffer(const struct plan *p, uint32_t id, struct buf *out) {
    const struct plan_buffer *b = &p->buffers.at[id];
    const char *name = interned(&p->strings, b->name), *role = interned(&p->strings, b->role);
    uint32_t last = p->launches.n ? p->launches.n - 1 : 0;
    buf_printf(out, "  buffer %%%u ", id);
    if (name[0]) {
        buf_quoted(out, name);
        buf_puts(out, " ");
    }
    buf_printf(out, "%s %s ", plan_kind_word(b->kind), plan_use_word(b->use));
    put_type(out, b->type.dtype, b->type.dims, b->type.rank);
    buf_printf(out, " at %lld bytes %lld", (long long)b->offset, (long long)b->bytes);
    if (b->alias.i) buf_printf(out, " alias %%%u", b->alias.i);
    if (step_kind(b) || b->first != 0 || b->last != last)
        buf_printf(out, " live %u to %u", b->first, b->last);
    if (role[0]) {
        buf_puts(out, " role ");
        buf_quoted(out, role);
    }
    if (b->frozen) buf_puts(out, " frozen");
    if (!is_zero(b->fill)) {
        buf_puts(out, " fill ");
        text_double(out, b->fill);
    }
    if (!plan_blob_absent(&b->init)) put_init(out, &b->init, b->type.dtype);
    buf_puts(out, "\n");
}

static void put_imm(struct buf *out, const struct group_instr *i) {
    const double one = 1.0;
    if (i->dtype == DT_i64)
        put_int(out, i->imm_int);
    else if (i->dtype == DT_bool && (is_zero(i->imm) || memcmp(&i->imm, &one, sizeof one) == 0))
        buf_puts(out, is_zero(i->imm) ? "false" : "true");
    else
        text_double(out, i->imm);
}

static void put_instr(const struct group_instr *i, uint32_t k, struct buf *out) {
    struct instr_form form = instr_form(i->code);
    const int32_t reg[3] = {i->a, i->b, i->c};
    buf_puts(out, "    ");
    if (form.result) buf_printf(out, "%%%u = ", k);
    buf_puts(out, form.name ? form.name : "none");
    if (form.slot) buf_printf(out, " %d", i->slot);
    for (int r = 0; r < form.operands; r++) buf_printf(out, " %%%d", reg[r]);
    if (i->code == OP_cast) buf_printf(out, " to %s", dtype_name((enum dtype)i->imm_int));
    if (i->code == INSTR_CONST) {
        buf_puts(out, " ");
        put_imm(out, i);
    } else if (i->code == INSTR_IOTA) {
        buf_printf(out, " axis %d start ", i->axis);
        text_double(out, i->imm);
        buf_puts(out, " step ");
        text_double(out, i->imm2);
    } else if (i->code == INSTR_RANDOM) {
        buf_printf(out, " stream %lld", (long long)i->imm_int);
    } else if (instr_is_part(i->code)) {
        buf_printf(out, " of %lld", (long long)i->imm_int);
    }
    if (form.flag && i->flag) buf_printf(out, " %s", form.flag);
    buf_printf(out, " : %s%s\n", dtype_name((enum dtype)i->dtype),
               i->span == SPAN_ROW ? " row" : "");
}

static void put_group(const struct plan *p, uint32_t id, struct buf *out) {
    const struct plan_group *g = &p->groups.at[id];
    int outer = g->rank - g->inner;
    buf_printf(out, "  group %u %s [", id, plan_mode_word(g->mode));
    put_ints(out, g->dims, outer, ",");
    buf_puts(out, outer > 0 ? " |" : "|");
    for (int k = outer > 0 ? outer : 0; k < g->rank; k++)
        buf_printf(out, "%s%lld", k == outer ? " " : ",", (long long)g->dims[k]);
    buf_puts(out, "] {\n");
    for (uint32_t k = 0; k < g->code.n; k++) put_instr(&g->code.at[k], k, out);
    buf_puts(out, "  }\n");
}

static void put_view(const struct plan_view *v, struct buf *out) {
    int64_t plain[RANK_MAX];
    buf_printf(out, "%%%u ", v->buffer.i);
    put_type(out, v->dtype, v->dims, v->rank);
    plan_row_major(v->dims, v->rank, plain);
    if (memcmp(plain, v->strides, (size_t)v->rank * sizeof *plain) != 0) {
        buf_puts(out, " strides [");
        put_ints(out, v->strides, v->rank, ",");
        buf_puts(out, "]");
    }
    if (v->offset) buf_printf(out, " + %lld", (long long)v->offset);
}

static void put_views(const struct plan_view *v, uint32_t n, struct buf *out) {
    buf_puts(out, "(");
    for (uint32_t k = 0; k < n; k++) {
        if (k) buf_puts(out, ", ");
        put_view(&v[k], out);
    }
    buf_puts(out, ")");
}

static void put_attr(const struct attr *a, struct buf *out) {
    buf_printf(out, "%s = ", attr_name(a->key));
    switch (attr_kind(a->key)) {
    case AK_INT: put_int(out, a->i); return;
    case AK_BOOL: buf_puts(out, a->i ? "true" : "false"); return;
    case AK_DTYPE: buf_puts(out, dtype_name((enum dtype)a->i)); return;
    case AK_FLOAT: text_double(out, a->f); return;
    case AK_STR: buf_quoted(out, a->s); return;
    case AK_BLOB: buf_puts(out, "none"); return; /* no launch takes one */
    case AK_INTS:
    case AK_DIMS:
        buf_puts(out, "[");
        put_ints(out, a->list, a->n, ", ");
        buf_puts(out, "]");
        return;
    }
}

/* Counts are whole numbers nearly always, and read better as such. */
static void put_count(struct buf *out, const char *word, double x) {
    buf_printf(out, " %s ", word);
    if (x >= 1 && x < 9007199254740992.0 && (double)(int64_t)x == x)
        put_int(out, (int64_t)x);
    else if (is_zero(x))
        buf_puts(out, "0");
    else
        text_double(out, x);
}

static void put_launch(const struct plan *p, uint32_t id, struct buf *out) {
    const struct plan_launch *l = &p->launches.at[id];
    const char *origin = interned(&p->strings, l->origin);
    const struct cost *c = &l->cost;
    buf_printf(out, "  launch %u %s ", id, launch_name(l->kind));
    if (l->kind == LAUNCH_group) buf_printf(out, "%u ", l->group.i);
    put_views(l->in, l->nin, out);
    buf_puts(out, " -> ");
    put_views(l->out, l->nout, out);
    for (int k = 0; k < l->nattrs; k++) {
        buf_puts(out, k ? ", " : " {");
        put_attr(&l->attrs[k], out);
    }
    if (l->nattrs) buf_puts(out, "}");
    if (l->workspace.i) buf_printf(out, " workspace %%%u", l->workspace.i);
    if (!is_zero(c->flops) || !is_zero(c->bytes_read) || !is_zero(c->bytes_written)) {
        put_count(out, "flops", c->flops);
        put_count(out, "read", c->bytes_read);
        put_count(out, "write", c->bytes_written);
    }
    plan_put_calls(p, l, out);
    if (origin[0]) {
        buf_puts(out, " loc ");
        buf_quoted(out, origin);
    }
    buf_puts(out, "\n");
}

void plan_print(const struct plan *p, struct buf *out) {
    buf_puts(out, "plan ");
    text_name(out, '@', interned(&p->strings, p->name));
    buf_printf(out, " {\n  threads %d\n  first_update %u\n", p->threads, p->first_update);
    for (int k = 0; k < ARENA_CLASSES; k++)
        buf_printf(out, "  arena %s %lld\n", plan_arena_word((enum arena_class)k),
                   (long long)p->arena_bytes[k]);
    if (p->cuda_arch) buf_printf(out, "  cuda %d\n", p->cuda_arch);
    for (uint32_t k = 1; k < p->buffers.n; k++) put_buffer(p, k, out);
    for (uint32_t k = 1; k < p->groups.n; k++) put_group(p, k, out);
    plan_put_kernels(p, out);
    for (uint32_t k = 0; k < p->launches.n; k++) put_launch(p, k, out);
    buf_puts(out, "}\n");
}

/* ---- equality: fields without a meaning for their kind do not count ----------------------------
 */
struct pair {
    const struct plan *a, *b;
};

static bool same_str(const struct pair *p, str_id x, str_id y) {
    return strcmp(interned(&p->a->strings, x), interned(&p->b->strings, y)) == 0;
}

static bool same_double(double x, double y) {
    return memcmp(&x, &y, sizeof x) == 0;
}

static bool same_ints(const int64_t *x, const int64_t *y, int n) {
    return n <= 0 || memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

static bool same_blob(const struct blob *x, const struct blob *y) {
    if (plan_blob_absent(x) || plan_blob_absent(y))
        return plan_blob_absent(x) && plan_blob_absent(y);
    return x->bytes == y->bytes && plan_blob_hash(x) == plan_blob_hash(y);
}

static bool same_buffer(const struct pair *p, const struct plan_buffer *x,
                        const struct plan_buffer *y) {
    return x->kind == y->kind && x->use == y->use && same_str(p, x->name, y->name) &&
           same_str(p, x->role, y->role) && type_equal(&x->type, &y->type) &&
           x->bytes == y->bytes && x->offset == y->offset && x->first == y->first &&
           x->last == y->last && x->alias.i == y->alias.i && x->frozen == y->frozen &&
           same_blob(&x->init, &y->init) && same_double(x->fill, y->fill);
}

static bool same_instr(const struct group_instr *x, const struct group_instr *y) {
    struct instr_form form = instr_form(x->code);
    if (x->code != y->code || x->dtype != y->dtype || x->span != y->span) return false;
    if ((form.operands > 0 && x->a != y->a) || (form.operands > 1 && x->b != y->b) ||
        (form.operands > 2 && x->c != y->c))
        return false;
    if ((form.slot && x->slot != y->slot) || (form.flag && x->flag != y->flag)) return false;
    switch (x->code) {
    case OP_cast:
    case INSTR_PART_MAX:
    case INSTR_PART_MIN:
    case INSTR_RANDOM: return x->imm_int == y->imm_int;
    case INSTR_CONST:
        return x->dtype == DT_i64 ? x->imm_int == y->imm_int : same_double(x->imm, y->imm);
    case INSTR_IOTA:
        return x->axis == y->axis && same_double(x->imm, y->imm) && same_double(x->imm2, y->imm2);
    default: return true;
    }
}

static bool same_group(const struct plan_group *x, const struct plan_group *y) {
    if (x->mode != y->mode || x->rank != y->rank || x->inner != y->inner ||
        !same_ints(x->dims, y->dims, x->rank) || x->code.n != y->code.n)
        return false;
    for (uint32_t k = 0; k < x->code.n; k++)
        if (!same_instr(&x->code.at[k], &y->code.at[k])) return false;
    return true;
}

static bool same_views(const struct plan_view *x, const struct plan_view *y, uint32_t n) {
    for (uint32_t k = 0; k < n; k++)
        if (x[k].buffer.i != y[k].buffer.i || x[k].dtype != y[k].dtype ||
            x[k].offset != y[k].offset || x[k].rank != y[k].rank ||
            !same_ints(x[k].dims, y[k].dims, x[k].rank) ||
            !same_ints(x[k].strides, y[k].strides, x[k].rank))
            return false;
    return true;
}

static bool same_attr(const struct attr *x, const struct attr *y) {
    if (x->key != y->key) return false;
    switch (attr_kind(x->key)) {
    case AK_BOOL: return !x->i == !y->i;
    case AK_INT:
    case AK_DTYPE: return x->i == y->i;
    case AK_FLOAT: return same_double(x->f, y->f);
    case AK_STR: return strcmp(x->s, y->s) == 0;
    case AK_INTS:
    case AK_DIMS: return x->n == y->n && same_ints(x->list, y->list, x->n);
    default: return true;
    }
}

static bool same_launch(const struct pair *p, const struct plan_launch *x,
                        const struct plan_launch *y) {
    if (x->kind != y->kind || (x->kind == LAUNCH_group && x->group.i != y->group.i) ||
        x->nin != y->nin || x->nout != y->nout || x->nattrs != y->nattrs ||
        x->workspace.i != y->workspace.i || !same_str(p, x->origin, y->origin))
        return false;
    for (int k = 0; k < x->nattrs; k++)
        if (!same_attr(&x->attrs[k], &y->attrs[k])) return false;
    if (!plan_same_calls(p->a, x, p->b, y)) return false;
    return same_views(x->in, y->in, x->nin) && same_views(x->out, y->out, x->nout) &&
           same_double(x->cost.flops, y->cost.flops) &&
           same_double(x->cost.bytes_read, y->cost.bytes_read) &&
           same_double(x->cost.bytes_written, y->cost.bytes_written);
}

bool plan_equal(const struct plan *a, const struct plan *b) {
    const struct pair p = {a, b};
    if (!same_str(&p, a->name, b->name) || a->threads != b->threads ||
        a->first_update != b->first_update || a->buffers.n != b->buffers.n ||
        a->groups.n != b->groups.n || a->launches.n != b->launches.n ||
        !same_ints(a->arena_bytes, b->arena_bytes, ARENA_CLASSES) || !plan_same_kernels(a, b))
        return false;
    for (uint32_t k = 1; k < a->buffers.n; k++)
        if (!same_buffer(&p, &a->buffers.at[k], &b->buffers.at[k])) return false;
    for (uint32_t k = 1; k < a->groups.n; k++)
        if (!same_group(&a->groups.at[k], &b->groups.at[k])) return false;
    for (uint32_t k = 0; k < a->launches.n; k++)
        if (!same_launch(&p, &a->launches.at[k], &b->launches.at[k])) return false;
    return true;
}
