// SPDX-License-Identifier: Apache-2.0
/* run.c - running ranges of launches: transfers around them, replay as CUDA graphs, index errors
 * and profiling. */
#include "runtime/cuda/impl.h"
#include <stdio.h>
#include <string.h>

enum { RANGES_MAX = 16 }; /* more are run, but not kept as graphs */

/* ---- which inputs and outputs a range moves ----------------------------------------------------
 */
static bool view_is(const struct plan *p, const struct plan_view *v, buf_id root) {
    return exec_root(p, v->buffer).i == root.i;
}

static bool range_touches(const struct plan *p, const struct range *r, buf_id root, bool writes) {
    for (uint32_t i = r->from; i < r->to; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        for (uint32_t k = 0; !writes && k < l->nin; k++)
            if (view_is(p, &l->in[k], root)) return true;
        for (uint32_t k = 0; writes && k < l->nout; k++)
            if (view_is(p, &l->out[k], root)) return true;
    }
    return false;
}

static int64_t end_of(const struct interval *s) {
    return s->offset + s->bytes;
}

/* Into a list sorted by offset. */
static void interval_add(struct arena *a, intervals *v, struct interval s) {
    vec_push(a, v, s);
    for (uint32_t i = v->n - 1; i > 0 && v->at[i].offset < v->at[i - 1].offset; i--) {
        struct interval t = v->at[i];
        v->at[i] = v->at[i - 1];
        v->at[i - 1] = t;
    }
}

/* Neighbours with nothing but alignment between them become one. */
static void interval_merge(intervals *v) {
    enum { ALIGNMENT = 64 };
    uint32_t k = 0;
    for (uint32_t i = 1; i < v->n; i++) {
        struct interval *last = &v->at[k];
        int64_t end = end_of(&v->at[i]);
        if (v->at[i].offset - end_of(last) >= ALIGNMENT)
            v->at[++k] = v->at[i];
        else if (end > end_of(last))
            last->bytes = end - last->offset;
    }
    if (v->n) v->n = k + 1;
}

static void range_transfers(struct cuda_exec *x, struct range *r) {
    const struct plan *p = x->plan;
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        const struct plan_buffer *b = &p->buffers.at[i];
        struct interval s = {b->offset, b->bytes};
        if (!b->bytes || buffer_arena(b->kind) != ARENA_IO) continue;
        buf_id root = exec_root(p, (buf_id){i});
        if (b->kind == BUF_INPUT && range_touches(p, r, root, false))
            interval_add(&x->arena, &r->up, s);
        if (b->kind == BUF_OUTPUT && range_touches(p, r, root, true))
            interval_add(&x->arena, &r->down, s);
    }
    interval_merge(&r->up);
    interval_merge(&r->down);
}

static struct range *find_range(struct cuda_exec *x, uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < x->ranges.n; i++)
        if (x->ranges.at[i].from == from && x->ranges.at[i].to == to) return &x->ranges.at[i];
    struct range r = {.from = from, .to = to};
    range_transfers(x, &r);
    vec_push(&x->arena, &x->ranges, r);
    return &x->ranges.at[x->ranges.n - 1];
}

/* ---- queueing ----------------------------------------------------------------------------------
 */
enum status exec_launch(struct cuda_exec *x, uint32_t i) {
    const struct plan_launch *l = &x->plan->launches.at[i];
    const struct exec_launch *e = &x->launches[i];
    struct cuda *d = x->d;
    if (e->product) return product_run(d, e->product, e->addresses, exec_origin(x, l));
    if (e->attention) return attention_run(e->attention);
    for (uint32_t k = 0; k < e->ncalls; k++) {
        const struct plan_call *c = &x->plan->calls.at[l->first_call + k];
        int result =
            d->api.cuLaunchKernel(e->functions[k], c->grid[0], c->grid[1], c->grid[2], c->block, 1,
                                  1, c->shared, d->stream, e->arguments, NULL);
        if (result == CU_OK) continue;
        char what[160];
        snprintf(what, sizeof what, "starting %.60s with %ux%ux%u blocks of %u, %u bytes shared",
                 interned(&x->plan->strings, x->plan->kernels.at[c->kernel].entry), c->grid[0],
                 c->grid[1], c->grid[2], c->block, c->shared);
        return cuda_status(d, result, exec_origin(x, l), what);
    }
    return ST_OK;
}

static enum status queue_uploads(struct cuda_exec *x, const struct range *r) {
    for (uint32_t i = 0; i < r->up.n; i++) {
        const struct interval *s = &r->up.at[i];
        TRY_CU(x->d,
               cuMemcpyHtoDAsync(x->memory[ARENA_IO] + (cu_ptr)s->offset, x->staging + s->offset,
                                 (size_t)s->bytes, x->d->stream),
               "", "copying inputs");
    }
    return ST_OK;
}

static enum status queue_downloads(struct cuda_exec *x, const struct range *r) {
    for (uint32_t i = 0; i < r->down.n; i++) {
        const struct interval *s = &r->down.at[i];
        TRY_CU(x->d,
               cuMemcpyDtoHAsync(x->staging + s->offset, x->memory[ARENA_IO] + (cu_ptr)s->offset,
                                 (size_t)s->bytes, x->d->stream),
               "", "copying outputs");
    }
    TRY_CU(
        x->d,
        cuMemcpyDtoHAsync(x->errors_seen, x->errors, x->nerrors * sizeof(uint64_t), x->d->stream),
        "", "copying error words");
    return ST_OK;
}

static enum status queue_range(struct cuda_exec *x, const struct range *r) {
    TRY(queue_uploads(x, r));
    for (uint32_t i = r->from; i < r->to; i++) TRY(exec_launch(x, i));
    return queue_downloads(x, r);
}

/* ---- graphs ------------------------------------------------------------------------------------
 */
/* Everything has run once, so nothing is loaded or chosen while the stream records. */
static enum status record_range(struct cuda_exec *x, struct range *r) {
    struct cuda *d = x->d;
    cu_graph graph = NULL;
    TRY_CU(d, cuStreamBeginCapture(d->stream, CU_CAPTURE_THREAD_LOCAL), "", "recording a graph");
    enum status st = queue_range(x, r);
    int e = d->api.cuStreamEndCapture(d->stream, &graph); /* in any case: the stream must recover */
    if (st == ST_OK) st = cuda_status(d, e, "", "recording a graph");
    if (st == ST_OK) {
        cu_graph_exec exec = NULL;
        e = d->api.cuGraphInstantiateWithFlags(&exec, graph, 0);
        st = cuda_status(d, e, "", "preparing a graph");
        r->graph = e == CU_OK ? exec : NULL;
    }
    if (graph) d->api.cuGraphDestroy(graph);
    return st;
}

static enum status replay_range(struct cuda_exec *x, struct range *r) {
    if (!r->graph && r->runs >= 1 && x->ranges.n <= RANGES_MAX) TRY(record_range(x, r));
    if (!r->graph) return queue_range(x, r);
    TRY_CU(x->d, cuGraphLaunch(r->graph, x->d->stream), "", "starting a graph");
    return ST_OK;
}

/* ---- index errors ------------------------------------------------------------------------------
 */
/* The word holds position << 24 | value + 2^23, the value limited to 24 bits; the kernels keep the
 * smallest, so that the lowest position is told whatever the order of the threads. */
struct fault {
    long long position, value;
    const char *more; /* "" or that the value is beyond what the word holds */
};
static struct fault decode(uint64_t word) {
    enum { HALF = 1 << 23 };
    struct fault f = {(long long)(word >> 24), (long long)(word & (2 * HALF - 1)) - HALF, ""};
    if (f.value == HALF - 1) f.more = " or more";
    if (f.value == -HALF) f.more = " or less";
    return f;
}

static int64_t classes(const struct plan_launch *l) {
    const struct plan_view *v = l->kind == LAUNCH_scatter_rows ? &l->out[0] : &l->in[0];
    if (l->kind == LAUNCH_cross_entropy) return v->dims[v->rank - 1];
    int64_t axis = launch_int(l, ATTR_axis, 0);
    return v->dims[axis < 0 ? axis + v->rank : axis];
}

static enum status fault_error(struct cuda_exec *x, const struct plan_launch *l, uint64_t word) {
    struct fault f = decode(word);
    long long n = (long long)classes(l);
    if (l->kind == LAUNCH_cross_entropy || launch_int(l, ATTR_labels, 0))
        return diag_error(x->ctx, ST_DATA, exec_origin(x, l),
                          "expected a label in [0, %lld) or %lld (ignored), found %lld%s at "
                          "position %lld; check the data against the model's classes",
                          n, (long long)launch_int(l, ATTR_ignore_index, -100), f.value, f.more,
                          f.position);
    return diag_error(x->ctx, ST_DATA, exec_origin(x, l),
                      "expected an index in [-%lld, %lld), found %lld%s at position %lld of the "
                      "indices; check the data against the model's sizes",
                      n, n, f.value, f.more, f.position);
}

static enum status check_faults(struct cuda_exec *x) {
    const struct plan *p = x->plan;
    bool bad = false;
    for (uint32_t i = 0; i < x->nerrors; i++) bad |= x->errors_seen[i] != UINT64_MAX;
    if (!bad) return ST_OK;
    TRY_CU(x->d, cuMemsetD8Async(x->errors, 0xff, x->nerrors * sizeof(uint64_t), x->d->stream), "",
           "clearing error words");
    for (uint32_t i = 0; i < p->launches.n; i++) {
        uint32_t slot = x->launches[i].slot;
        if (slot && x->errors_seen[slot] != UINT64_MAX)
            return fault_error(x, &p->launches.at[i], x->errors_seen[slot]);
    }
    ctx_bug(x->ctx, __FILE__, __LINE__, "that only kernels with indices report bad ones");
}

/* ---- checked and profiled ----------------------------------------------------------------------
 */
static enum status run_checked(struct cuda_exec *x, const struct range *r) {
    TRY(queue_uploads(x, r));
    for (uint32_t i = r->from; i < r->to; i++) TRY(exec_launch_checked(x, i));
    return queue_downloads(x, r);
}

static enum status make_events(struct cuda_exec *x) {
    uint32_t n = x->plan->launches.n + 1;
    if (!x->events) x->events = ARENA_ARRAY(&x->arena, cu_event, n);
    for (uint32_t i = 0; i < n; i++)
        if (!x->events[i]) TRY_CU(x->d, cuEventCreate(&x->events[i], 0), "", "making an event");
    return ST_OK;
}

static enum status run_profiled(struct cuda_exec *x, const struct range *r) {
    struct cuda *d = x->d;
    TRY(make_events(x));
    TRY(queue_uploads(x, r));
    for (uint32_t i = r->from; i < r->to; i++) {
        TRY_CU(d, cuEventRecord(x->events[i], d->stream), "", "recording an event");
        TRY(exec_launch(x, i));
    }
    TRY_CU(d, cuEventRecord(x->events[r->to], d->stream), "", "recording an event");
    TRY(queue_downloads(x, r));
    TRY(cuda_wait(d, ""));
    for (uint32_t i = r->from; i < r->to; i++) {
        float ms = 0;
        TRY_CU(d, cuEventElapsedTime(&ms, x->events[i], x->events[i + 1]), "", "reading an event");
        x->seconds[i] += (double)ms * 1e-3;
    }
    return ST_OK;
}

enum status cuda_run(struct cuda_exec *x, uint32_t from, uint32_t to, bool check) {
    CHECK(x->ctx, from <= to && to <= x->plan->launches.n);
    if (from == to) return ST_OK;
    TRY(cuda_enter(x->d));
    struct range *r = find_range(x, from, to);
    if (check)
        TRY(run_checked(x, r));
    else if (x->profile)
        TRY(run_profiled(x, r));
    else
        TRY(replay_range(x, r));
    TRY(cuda_wait(x->d, ""));
    r->runs++;
    return check_faults(x);
}

const double *cuda_profile(struct cuda_exec *x, bool enable) {
    if (enable && !x->profile) memset(x->seconds, 0, x->plan->launches.n * sizeof *x->seconds);
    x->profile = enable;
    return x->seconds;
}
