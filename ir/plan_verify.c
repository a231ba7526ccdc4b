// SPDX-License-Identifier: Apache-2.0
/* plan_verify.c - the invariants of a plan: views inside buffers, buffers inside arenas, no
 * accidental sharing, writes before reads, well-formed group programs. The views that each launch
 * kind accepts are checked in plan_verify_launch.c. Reports every violation; knows no device. */
#include "ir/plan_verify.h"
#include "base/diag.h"
#include <stdlib.h>

void plan_fault(struct plan_check *v, const char *fmt, ...) {
    va_list ap;
    if (v->errors++ >= 20) return; /* enough to find the cause */
    va_start(ap, fmt);
    const char *text = arena_vprintf(v->scratch, fmt, ap);
    va_end(ap);
    (void)diag_error(v->p->ctx, ST_INTERNAL, "", "plan after %s: %s", v->stage, text);
}

/* ---- buffers ------------------------------------------------------------------------------- */
static uint32_t root_of(const struct plan *p, uint32_t b) {
    for (uint32_t n = 0; p->buffers.at[b].alias.i != 0 && n < p->buffers.n; n++)
        b = p->buffers.at[b].alias.i;
    return b;
}

static void check_alias(struct plan_check *v, uint32_t b) {
    const struct plan *p = v->p;
    const struct plan_buffer *x = &p->buffers.at[b];
    uint32_t r = x->alias.i;
    if (r >= p->buffers.n || r == b || p->buffers.at[root_of(p, b)].alias.i != 0) {
        plan_fault(v, "buffer %u: its alias %u is no other buffer or leads back", b, r);
        return;
    }
    const struct plan_buffer *root = &p->buffers.at[root_of(p, b)];
    if (buffer_arena(root->kind) != buffer_arena(x->kind) || root->offset != x->offset ||
        x->bytes > root->bytes)
        plan_fault(v, "buffer %u does not fit the memory of buffer %u that it shares", b,
                   root_of(p, b));
    if (v->last_use[r] > x->first && v->last_use[r] != UINT32_MAX)
        plan_fault(v, "buffer %u is used at launch %u, after buffer %u took its memory at %u", r,
                   v->last_use[r], b, x->first);
}

static bool check_buffer(struct plan_check *v, uint32_t b) {
    const struct plan *p = v->p;
    const struct plan_buffer *x = &p->buffers.at[b];
    if (x->kind <= BUF_NONE || x->kind > BUF_WORKSPACE || x->use < 0 || x->use >= USE_COUNT) {
        plan_fault(v, "buffer %u: kind %d, use %d", b, (int)x->kind, (int)x->use);
        return false;
    }
    int64_t want = type_bytes(&x->type), end;
    if (x->type.dtype <= DT_NONE || x->type.dtype >= DT_COUNT || want != x->bytes)
        plan_fault(v, "buffer %u has %lld bytes, its type needs %lld", b, (long long)x->bytes,
                   (long long)want);
    if (x->bytes < 0 || x->offset < 0 || x->offset % 64 != 0 ||
        __builtin_add_overflow(x->offset, x->bytes, &end) ||
        end > p->arena_bytes[buffer_arena(x->kind)]) {
        plan_fault(v, "buffer %u: offset %lld, %lld bytes do not fit its arena", b,
                   (long long)x->offset, (long long)x->bytes);
        return false;
    }
    if (x->first > x->last || (x->last >= p->launches.n && x->last != 0))
        plan_fault(v, "buffer %u lives from %u to %u of %u launches", b, x->first, x->last,
                   p->launches.n);
    if (x->init.data && x->init.bytes != (size_t)x->bytes)
        plan_fault(v, "buffer %u: %zu initial bytes for %lld", b, x->init.bytes,
                   (long long)x->bytes);
    if (x->alias.i != 0) check_alias(v, b);
    return true;
}

static int by_place(const void *a, const void *b, void *user) {
    const struct plan *p = user;
    const struct plan_buffer *x = &p->buffers.at[*(const uint32_t *)a];
    const struct plan_buffer *y = &p->buffers.at[*(const uint32_t *)b];
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1;
}

static void check_overlap(struct plan_check *v, enum arena_class class) {
    const struct plan *p = v->p;
    uint32_t *ids = ARENA_ARRAY(v->scratch, uint32_t, p->buffers.n), n = 0;
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        const struct plan_buffer *x = &p->buffers.at[b];
        if (x->alias.i == 0 && x->bytes > 0 && buffer_arena(x->kind) == class) ids[n++] = b;
    }
    qsort_r(ids, n, sizeof *ids, by_place, (void *)p);
    for (uint32_t i = 0; i < n; i++) {
        const struct plan_buffer *x = &p->buffers.at[ids[i]];
        for (uint32_t k = i + 1; k < n; k++) {
            const struct plan_buffer *y = &p->buffers.at[ids[k]];
            if (y->offset >= x->offset + x->bytes) break;
            if (class == ARENA_STEP && (y->last < x->first || x->last < y->first)) continue;
            plan_fault(v, "buffers %u and %u share memory and live at the same time", ids[i],
                       ids[k]);
        }
    }
}

/* ---- views --------------------------------------------------------------------------------- */
static bool check_view(struct plan_check *v, uint32_t launch, const char *what, uint32_t k,
                       const struct plan_view *w) {
    const struct plan *p = v->p;
    if (w->buffer.i == 0 || w->buffer.i >= p->buffers.n || w->rank < 0 || w->rank > RANK_MAX ||
        w->dtype <= DT_NONE || w->dtype >= DT_COUNT) {
        plan_fault(v, "launch %u, %s %u: buffer %u, rank %d, element type %d", launch, what, k,
                   w->buffer.i, w->rank, (int)w->dtype);
        return false;
    }
    const struct plan_buffer *b = &p->buffers.at[w->buffer.i];
    int64_t low = w->offset, high = w->offset, end = 0;
    bool empty = false, outside = false;
    for (int d = 0; d < w->rank; d++) {
        if (w->dims[d] < 0) {
            plan_fault(v, "launch %u, %s %u: a negative size", launch, what, k);
            return false;
        }
        int64_t reach;
        empty |= w->dims[d] == 0;
        outside |= __builtin_mul_overflow(w->dims[d] - 1, w->strides[d], &reach);
        outside |= __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high);
    }
    outside |= __builtin_add_overflow(high, 1, &end) ||
               __builtin_mul_overflow(end, (int64_t)dtype_size(w->dtype), &end);
    if (!empty && (outside || low < 0 || end > b->bytes)) {
        plan_fault(v, "launch %u, %s %u reaches outside buffer %u", launch, what, k, w->buffer.i);
        return false;
    }
    if (launch < b->first || launch > b->last)
        plan_fault(v, "launch %u, %s %u: buffer %u lives from %u to %u only", launch, what, k,
                   w->buffer.i, b->first, b->last);
    return true;
}

static bool check_views(struct plan_check *v, uint32_t k, const struct plan_launch *l) {
    const struct plan *p = v->p;
    bool ok = true;
    for (uint32_t j = 0; j < l->nin; j++) {
        ok &= check_view(v, k, "operand", j, &l->in[j]);
        if (!ok) continue;
        uint32_t b = l->in[j].buffer.i;
        enum buffer_kind kind = p->buffers.at[b].kind;
        if ((kind == BUF_TEMP || kind == BUF_WORKSPACE || kind == BUF_OUTPUT) && !v->written[b] &&
            view_count(&l->in[j]) > 0)
            plan_fault(v, "launch %u reads buffer %u before anything wrote it", k, b);
    }
    for (uint32_t j = 0; j < l->nout; j++) {
        ok &= check_view(v, k, "result", j, &l->out[j]);
        if (!ok) continue;
        uint32_t b = l->out[j].buffer.i;
        enum buffer_kind kind = p->buffers.at[b].kind;
        for (int d = 0; d < l->out[j].rank; d++)
            if (l->out[j].dims[d] > 1 && l->out[j].strides[d] == 0)
                plan_fault(v, "launch %u, result %u writes one element many times", k, j);
        if (kind == BUF_CONST || kind == BUF_INPUT || kind == BUF_WORKSPACE)
            plan_fault(v, "launch %u writes buffer %u, which is not for writing", k, b);
        if ((kind == BUF_PARAM || kind == BUF_STATE) && k < p->first_update)
            plan_fault(v, "launch %u updates buffer %u before the first update, %u", k, b,
                       p->first_update);
        v->written[b] = true;
    }
    uint32_t w = l->workspace.i;
    if (w >= p->buffers.n || (w != 0 && (p->buffers.at[w].kind != BUF_WORKSPACE ||
                                         p->buffers.at[w].first > k || p->buffers.at[w].last < k)))
        plan_fault(v, "launch %u: buffer %u is not its workspace", k, w);
    return ok;
}

/* ---- whole --------------------------------------------------------------------------------- */
static void find_last_uses(struct plan_check *v) {
    const struct plan *p = v->p;
    for (uint32_t b = 0; b < p->buffers.n; b++) v->last_use[b] = UINT32_MAX;
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin; j++)
            if (l->in[j].buffer.i < p->buffers.n) v->last_use[l->in[j].buffer.i] = k;
        for (uint32_t j = 0; j < l->nout; j++)
            if (l->out[j].buffer.i < p->buffers.n) v->last_use[l->out[j].buffer.i] = k;
    }
}

static enum status verify(struct arena *scratch, void *user) {
    struct plan_check *v = user;
    const struct plan *p = v->p;
    v->scratch = scratch;
    v->written = ARENA_ARRAY(scratch, bool, p->buffers.n);
    v->last_use = ARENA_ARRAY(scratch, uint32_t, p->buffers.n);
    find_last_uses(v);
    bool sound = true;
    for (uint32_t b = 1; b < p->buffers.n; b++) sound &= check_buffer(v, b);
    if (sound)
        for (int a = 0; a < ARENA_CLASSES; a++) check_overlap(v, (enum arena_class)a);
    if (p->threads < 1) plan_fault(v, "sized for %d threads", p->threads);
    if (p->first_update > p->launches.n)
        plan_fault(v, "first update %u of %u launches", p->first_update, p->launches.n);
    for (uint32_t k = 0; sound && k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        if (l->kind >= LAUNCH_COUNT)
            plan_fault(v, "launch %u: kind %d", k, (int)l->kind);
        else if (check_views(v, k, l))
            plan_check_launch(v, k, l);
    }
    return v->errors > 0 ? ST_INTERNAL : ST_OK;
}

enum status plan_verify(const struct plan *p, const char *stage) {
    struct plan_check v = {.p = p, .stage = stage};
    return arena_with_scratch(p->ctx, verify, &v);
}
