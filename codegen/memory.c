// SPDX-License-Identifier: Apache-2.0
/* memory.c - exact lifetimes, workspaces and offsets. Buffers are placed largest first at the
 * lowest offset where nothing that lives at the same time is in the way. */
#include "base/diag.h"
#include "codegen/codegen.h"
#include "codegen/internal.h"
#include <stdlib.h>

static uint32_t root_of(const struct plan *p, uint32_t b) {
    while (p->buffers.at[b].alias.i != 0) b = p->buffers.at[b].alias.i;
    return b;
}

static void touch(struct plan_buffer *b, uint32_t launch) {
    if (b->kind != BUF_TEMP && b->kind != BUF_WORKSPACE) return;
    if (b->first > launch) b->first = launch;
    if (b->last < launch || b->last == UINT32_MAX) b->last = launch;
}

/* first and last launch that names a buffer; a root covers its aliases. Unused temps get (0, 0). */
void find_lifetimes(struct plan *p) {
    uint32_t n = p->launches.n;
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        struct plan_buffer *x = &p->buffers.at[b];
        bool temp = x->kind == BUF_TEMP || x->kind == BUF_WORKSPACE;
        x->first = temp ? UINT32_MAX : 0;
        x->last = temp ? UINT32_MAX : n > 0 ? n - 1 : 0;
    }
    for (uint32_t k = 0; k < n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin; j++) touch(&p->buffers.at[l->in[j].buffer.i], k);
        for (uint32_t j = 0; j < l->nout; j++) touch(&p->buffers.at[l->out[j].buffer.i], k);
        if (l->workspace.i != 0) touch(&p->buffers.at[l->workspace.i], k);
    }
    for (uint32_t b = 1; b < p->buffers.n; b++)
        if (p->buffers.at[b].first == UINT32_MAX)
            p->buffers.at[b].first = p->buffers.at[b].last = 0;
    for (uint32_t b = 1; b < p->buffers.n; b++) {
        if (p->buffers.at[b].alias.i == 0) continue;
        struct plan_buffer *r = &p->buffers.at[root_of(p, b)], *x = &p->buffers.at[b];
        if (r->kind != BUF_TEMP) continue;
        if (x->first < r->first) r->first = x->first;
        if (x->last > r->last) r->last = x->last;
    }
}

void add_workspaces(struct plan *p) {
    for (uint32_t k = 0; k < p->launches.n; k++) {
        int64_t bytes =
            p->cuda_arch ? plan_cuda_workspace(p, k) : launch_workspace(p, &p->launches.at[k]);
        if (bytes == 0) continue;
        struct plan_buffer b = {
            .kind = BUF_WORKSPACE, .use = USE_WORKSPACE, .bytes = bytes, .first = k, .last = k};
        b.type = (struct type){.dtype = DT_u8, .rank = 1, .dims = {bytes}};
        p->launches.at[k].workspace = (buf_id){p->buffers.n};
        vec_push(&p->arena, &p->buffers, b);
    }
}

/* ---- offsets ------------------------------------------------------------------------------- */
struct item {
    int64_t bytes;
    uint32_t id, first, last;
};

static int larger_first(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int64_t round64(int64_t n) {
    return (n + 63) & ~(int64_t)63;
}

/* Lowest free offset among the `n` placed buffers, which are sorted by offset. */
static int64_t lowest_gap(const struct plan *p, const struct item *it, const uint32_t *placed,
                          uint32_t n) {
    int64_t at = 0, need = round64(it->bytes);
    for (uint32_t k = 0; k < n; k++) {
        const struct plan_buffer *b = &p->buffers.at[placed[k]];
        if (b->last < it->first || b->first > it->last) continue;
        if (b->offset >= at + need) break;
        int64_t end = b->offset + round64(b->bytes);
        if (end > at) at = end;
    }
    return at;
}

static void place_step(struct plan *p, const struct item *items, uint32_t n,
                       struct arena *scratch) {
    uint32_t *placed = ARENA_ARRAY(scratch, uint32_t, n), count = 0;
    for (uint32_t k = 0; k < n; k++) {
        struct plan_buffer *b = &p->buffers.at[items[k].id];
        b->offset = lowest_gap(p, &items[k], placed, count);
        uint32_t j = count++;
        for (; j > 0 && p->buffers.at[placed[j - 1]].offset > b->offset; j--)
            placed[j] = placed[j - 1];
        placed[j] = items[k].id;
        int64_t end = b->offset + round64(b->bytes);
        if (end > p->arena_bytes[ARENA_STEP]) p->arena_bytes[ARENA_STEP] = end;
    }
}

enum status plan_memory(struct plan *p, bool unique_buffers) {
    struct arena_mark mark = arena_mark(&p->arena); /* scratch; an unwind drops the whole plan */
    for (int a = 0; a < ARENA_CLASSES; a++) p->arena_bytes[a] = 0;
    struct item *items = ARENA_ARRAY(&p->arena, struct item, p->buffers.n);
    uint32_t n = 0;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        struct plan_buffer *b = &p->buffers.at[i];
        if (b->alias.i != 0) continue;
        enum arena_class a = buffer_arena(b->kind);
        if (a == ARENA_STEP && !unique_buffers) {
            if (b->bytes > 0)
                items[n++] = (struct item){b->bytes, i, b->first, b->last};
            else
                b->offset = 0;
            continue;
        }
        b->offset = p->arena_bytes[a];
        if (__builtin_add_overflow(b->offset, round64(b->bytes), &p->arena_bytes[a])) {
            arena_rewind(&p->arena, mark);
            return diag_error(p->ctx, ST_UNSUPPORTED, "",
                              "the plan needs more memory than 2^63 bytes");
        }
    }
    qsort(items, n, sizeof *items, larger_first);
    place_step(p, items, n, &p->arena);
    for (uint32_t i = 1; i < p->buffers.n; i++)
        if (p->buffers.at[i].alias.i != 0)
            p->buffers.at[i].offset = p->buffers.at[root_of(p, i)].offset;
    arena_rewind(&p->arena, mark);
    return ST_OK;
}
