// SPDX-License-Identifier: Apache-2.0
/* plan.c - making and reading plans: creation, names, attributes of launches, views and the memory
 * report. Building one is codegen/, its text form plan_text.c, its checks plan_verify.c. */
#include "ir/plan.h"
#include <string.h>

const char *launch_name(enum launch_kind k) {
    static const char *const names[LAUNCH_COUNT] = {
        [LAUNCH_group] = "group",
        [LAUNCH_matmul] = "matmul",
        [LAUNCH_conv] = "conv",
        [LAUNCH_conv_input_grad] = "conv_input_grad",
        [LAUNCH_conv_weight_grad] = "conv_weight_grad",
        [LAUNCH_max_pool] = "max_pool",
        [LAUNCH_argmax] = "argmax",
        [LAUNCH_cumsum] = "cumsum",
        [LAUNCH_gather] = "gather",
        [LAUNCH_gather_elements] = "gather_elements",
        [LAUNCH_scatter_rows] = "scatter_rows",
        [LAUNCH_scatter_elements] = "scatter_elements",
        [LAUNCH_attention] = "attention",
        [LAUNCH_attention_grad] = "attention_grad",
        [LAUNCH_cross_entropy] = "cross_entropy",
        [LAUNCH_sum_squares] = "sum_squares",
        [LAUNCH_cast] = "cast",
        [LAUNCH_sgd] = "sgd",
        [LAUNCH_adam] = "adam",
        [LAUNCH_adam8] = "adam8",
    };
    return k < LAUNCH_COUNT ? names[k] : "none";
}

struct plan *plan_create(struct ctx *c, const char *name) {
    struct arena a;
    arena_init(&a, c);
    struct plan *p = ARENA_NEW(&a, struct plan);
    p->ctx = c;
    p->arena = a;
    p->threads = 1;
    intern_init(&p->strings, &p->arena);
    p->name = intern(&p->strings, name);
    vec_push(&p->arena, &p->buffers, (struct plan_buffer){.kind = BUF_NONE});
    vec_push(&p->arena, &p->groups, (struct plan_group){.rank = 0});
    return p;
}

void plan_destroy(struct plan *p) {
    if (!p) return;
    struct arena a = p->arena; /* the plan itself lives in its arena */
    arena_reset(&a);
}

/* ---- launches ------------------------------------------------------------------------------ */
static const struct attr *find_attr(const struct plan_launch *l, enum attr_key k) {
    for (int i = 0; i < l->nattrs; i++)
        if (l->attrs[i].key == k) return &l->attrs[i];
    return NULL;
}

int64_t launch_int(const struct plan_launch *l, enum attr_key k, int64_t def) {
    const struct attr *a = find_attr(l, k);
    return a ? a->i : def;
}

double launch_float(const struct plan_launch *l, enum attr_key k, double def) {
    const struct attr *a = find_attr(l, k);
    return a ? a->f : def;
}

const int64_t *launch_ints(const struct plan_launch *l, enum attr_key k, int *n) {
    const struct attr *a = find_attr(l, k);
    *n = a ? a->n : 0;
    return a ? a->list : NULL;
}

/* ---- views --------------------------------------------------------------------------------- */
int64_t view_count(const struct plan_view *v) {
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++) n *= v->dims[i];
    return n;
}

bool view_contiguous(const struct plan_view *v) {
    int64_t want = 1;
    for (int i = v->rank - 1; i >= 0; i--) {
        if (v->dims[i] != 1 && v->strides[i] != want) return false;
        want *= v->dims[i];
    }
    return true;
}

/* ---- memory -------------------------------------------------------------------------------- */
enum arena_class buffer_arena(enum buffer_kind k) {
    switch (k) {
    case BUF_CONST:
    case BUF_PARAM:
    case BUF_STATE: return ARENA_PERSISTENT;
    case BUF_INPUT:
    case BUF_OUTPUT: return ARENA_IO;
    default: return ARENA_STEP;
    }
}

bool launch_can_fault(enum launch_kind k) {
    return k == LAUNCH_gather || k == LAUNCH_gather_elements || k == LAUNCH_scatter_rows ||
           k == LAUNCH_scatter_elements || k == LAUNCH_cross_entropy;
}

bool launch_takes_table(const struct plan *p, const struct plan_launch *l) {
    return l->ncalls && l->first_call < p->calls.n && p->calls.at[l->first_call].table;
}

uint32_t launch_pointers(const struct plan_launch *l) {
    return l->nin + l->nout + (l->workspace.i != 0) + 1;
}

uint32_t product_addend(const struct plan_launch *l) {
    return launch_int(l, ATTR_scaled, 0) ? 4 : 2;
}

int64_t plan_library_bytes(const struct plan *p) {
    for (uint32_t i = 0; p->cuda_arch && i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        bool attention = l->kind == LAUNCH_attention || l->kind == LAUNCH_attention_grad;
        bool product = l->kind == LAUNCH_matmul && !l->ncalls;
        if (product || (attention && l->nin && dtype_size(l->in[0].dtype) == 2))
            return PLAN_LIBRARY_BYTES;
    }
    return 0;
}

int64_t plan_word_bytes(const struct plan *p) {
    int64_t words = 1; /* of launches that cannot fault */
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        words += launch_can_fault(l->kind);
        if (launch_takes_table(p, l)) words += launch_pointers(l);
    }
    return p->cuda_arch ? words * 8 : 0;
}

int64_t plan_bytes(const struct plan *p) {
    int64_t n = plan_library_bytes(p) + plan_word_bytes(p);
    for (int i = 0; i < ARENA_CLASSES; i++) n += p->arena_bytes[i];
    return n;
}

buf_id plan_find(const struct plan *p, enum buffer_kind kind, const char *name) {
    str_id id = intern_find(&p->strings, name);
    if (id.i == 0) return (buf_id){0};
    for (uint32_t i = 1; i < p->buffers.n; i++)
        if (p->buffers.at[i].kind == kind && p->buffers.at[i].name.i == id.i) return (buf_id){i};
    return (buf_id){0};
}

/* Bytes by use at launch `at`. A buffer that shares another's memory counts once, as the owner. */
static void usage_at(const struct plan *p, uint32_t at, int64_t bytes[USE_COUNT]) {
    memset(bytes, 0, USE_COUNT * sizeof *bytes);
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (b->alias.i != 0) continue;
        bool step = buffer_arena(b->kind) == ARENA_STEP;
        if (step && (at < b->first || at > b->last)) continue;
        bytes[b->use] += b->bytes;
    }
}

struct peak_question {
    const struct plan *p;
    uint32_t launch;
};

/* The first launch during which the step's buffers hold the most bytes. */
static enum status find_peak(struct arena *scratch, void *user) {
    struct peak_question *q = user;
    const struct plan *p = q->p;
    uint32_t n = p->launches.n;
    int64_t *change = ARENA_ARRAY(scratch, int64_t, (size_t)n + 1);
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        if (n == 0 || b->alias.i != 0 || buffer_arena(b->kind) != ARENA_STEP) continue;
        change[b->first] += b->bytes;
        change[b->last + 1] -= b->bytes;
    }
    int64_t now = 0, peak = -1;
    for (uint32_t k = 0; k < n; k++) {
        now += change[k];
        if (now > peak) peak = now, q->launch = k;
    }
    return ST_OK;
}

struct plan_usage plan_usage(const struct plan *p) {
    struct plan_usage u = {.peak_step = p->arena_bytes[ARENA_STEP]};
    struct peak_question q = {.p = p};
    enum status st = arena_with_scratch(p->ctx, find_peak, &q);
    CHECK(p->ctx, st == ST_OK);
    u.peak_launch = q.launch;
    usage_at(p, u.peak_launch, u.bytes);
    return u;
}
