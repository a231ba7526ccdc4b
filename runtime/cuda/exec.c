// SPDX-License-Identifier: Apache-2.0
/* exec.c - an executor: loaded kernels, device memory, initial values, staging and transfers. What
 * happens when it runs is in run.c. */
#include "ir/plan_work.h"
#include "runtime/cuda/impl.h"
#include <string.h>

enum { CHUNK = 1 << 20 };

const char *exec_origin(const struct cuda_exec *x, const struct plan_launch *l) {
    return interned(&x->plan->strings, l->origin);
}

buf_id exec_root(const struct plan *p, buf_id b) {
    while (p->buffers.at[b.i].alias.i) b = p->buffers.at[b.i].alias;
    return b;
}

/* ---- kernels -----------------------------------------------------------------------------------
 */
static cu_module find_module(const struct cuda *d, struct hash128 key) {
    for (uint32_t i = 0; i < d->modules.n; i++) {
        const struct loaded_module *m = &d->modules.at[i];
        if (m->key.lo == key.lo && m->key.hi == key.hi) return m->module;
    }
    return NULL;
}

static bool module_known(void *who, struct hash128 key) {
    return find_module(who, key) != NULL;
}

static enum status load_module(struct cuda *d, const struct image *m, const char *entry,
                               cu_module *out) {
    *out = find_module(d, m->key);
    if (*out) return ST_OK;
    TRY_CU(d, cuModuleLoadData(out, m->cubin), entry, "loading a kernel");
    vec_push(&d->arena, &d->modules, (struct loaded_module){m->key, *out});
    return ST_OK;
}

static enum status load_kernel(struct cuda *d, const struct image *m, const char *entry,
                               uint32_t *out) {
    cu_module module;
    str_id name = intern(&d->names, entry);
    TRY(load_module(d, m, entry, &module));
    for (*out = 0; *out < d->kernels.n; ++*out) {
        const struct loaded_kernel *k = &d->kernels.at[*out];
        if (k->module == module && k->entry.i == name.i) return ST_OK;
    }
    cu_function function;
    TRY_CU(d, cuModuleGetFunction(&function, module, entry), entry, "finding a kernel");
    vec_push(&d->arena, &d->kernels, (struct loaded_kernel){module, name, function, 0});
    return ST_OK;
}

/* More than 48 KiB of shared memory, with what a kernel declares itself (never over 16 KiB), has to
 * be asked for. */
static enum status allow_shared(struct cuda *d, struct loaded_kernel *k, uint32_t bytes) {
    enum { FREE = 32 << 10, SEVERAL_FROM = 4 << 10, SEVERAL_TO = 112 << 10 };
    /* Left alone, the driver gives less of it than several blocks of a processor need. */
    if (bytes >= SEVERAL_FROM && bytes <= SEVERAL_TO && bytes > k->shared)
        TRY_CU(d, cuFuncSetAttribute(k->function, CU_FUNC_SHARED_CARVEOUT, 100),
               interned(&d->names, k->entry), "preferring shared memory");
    if (bytes <= FREE || bytes <= k->shared) return ST_OK;
    if (bytes > (uint32_t)d->shared_max)
        return diag_error(d->ctx, ST_UNSUPPORTED, interned(&d->names, k->entry),
                          "expected at most %d bytes of shared memory on this GPU, found %u",
                          d->shared_max, bytes);
    TRY_CU(d, cuFuncSetAttribute(k->function, CU_FUNC_MAX_DYNAMIC_SHARED, (int)bytes),
           interned(&d->names, k->entry), "asking for shared memory");
    k->shared = bytes;
    return ST_OK;
}

/* `loaded[i]` is the number of the plan's kernel i among the device's. */
static enum status load_kernels(struct cuda_exec *x, cuda_source_fn source, void *user,
                                uint32_t *loaded) {
    struct cuda *d = x->d;
    const struct plan *p = x->plan;
    struct arena a;
    arena_init(&a, x->ctx);
    struct image *images = ARENA_ARRAY(&a, struct image, p->kernels.n + 1);
    /* A plan for 8.0 uses nothing newer, so it is compiled for the GPU that is there. */
    enum status st = compiler_build(&d->compiler, p, compiler_arch(&a, d->info.arch), source, user,
                                    &a, module_known, d, images);
    for (uint32_t i = 0; i < p->kernels.n && st == ST_OK; i++)
        st = load_kernel(d, &images[i], interned(&p->strings, p->kernels.at[i].entry), &loaded[i]);
    arena_reset(&a);
    return st;
}

static enum status check_arch(const struct cuda_exec *x) {
    int made = x->plan->cuda_arch, have = x->d->info.arch;
    if (made == have || (made == 80 && have > 80)) return ST_OK;
    return diag_error(x->ctx, ST_USAGE, x->d->info.name,
                      made ? "expected a plan made for compute capability %d.%d, found one for "
                             "%d.%d; plan again for this GPU"
                           : "expected a plan made for compute capability %d.%d, found one for the "
                             "CPU (%d.%d); plan again for this GPU",
                      have / 10, have % 10, made / 10, made % 10);
}

static enum status upload(struct cuda_exec *x, cu_ptr to, const void *from, size_t bytes,
                          const char *name) {
    TRY_CU(x->d, cuMemcpyHtoDAsync(to, from, bytes, x->d->stream), name, "copying to the GPU");
    return cuda_wait(x->d, name); /* the source may go away */
}

/* ---- launches ----------------------------------------------------------------------------------
 */
static bool has_results(const struct plan_launch *l) {
    for (uint32_t i = 0; i < l->nout; i++)
        if (view_count(&l->out[i])) return true;
    return false;
}

/* Before memory is there: what tells whether the plan can run. */
static enum status prepare_launch(struct cuda_exec *x, uint32_t i, const uint32_t *loaded) {
    const struct plan *p = x->plan;
    const struct plan_launch *l = &p->launches.at[i];
    struct exec_launch *e = &x->launches[i];
    e->slot = launch_can_fault(l->kind) ? x->nerrors++ : 0;
    if (!l->ncalls && has_results(l)) {
        if (l->kind == LAUNCH_matmul) return product_prepare(x->d, p, l, &x->arena, &e->product);
        return diag_error(x->ctx, ST_UNSUPPORTED, exec_origin(x, l),
                          "the CUDA backend has no kernel for this %s", launch_name(l->kind));
    }
    cu_function *f = ARENA_ARRAY(&x->arena, cu_function, l->ncalls + 1);
    for (uint32_t k = 0; k < l->ncalls; k++) {
        const struct plan_call *call = &p->calls.at[l->first_call + k];
        struct loaded_kernel *kernel = &x->d->kernels.at[loaded[call->kernel]];
        TRY(allow_shared(x->d, kernel, call->shared));
        f[k] = kernel->function;
    }
    e->ncalls = l->ncalls;
    e->functions = f;
    if (l->kind != LAUNCH_attention && l->kind != LAUNCH_attention_grad) return ST_OK;
    return attention_prepare(x->d, p, l, &x->arena, &e->attention);
}

/* Once memory is there: of operands, results, workspace (when there is one), error word. */
static void set_addresses(struct cuda_exec *x, uint32_t i) {
    const struct plan_launch *l = &x->plan->launches.at[i];
    struct exec_launch *e = &x->launches[i];
    cu_ptr *at = ARENA_ARRAY(&x->arena, cu_ptr, l->nin + l->nout + 2);
    void **arguments = ARENA_ARRAY(&x->arena, void *, l->nin + l->nout + 3); /* NULL at the end */
    uint32_t n = 0;
    for (uint32_t k = 0; k < l->nin; k++) at[n++] = exec_address(x, &l->in[k]);
    for (uint32_t k = 0; k < l->nout; k++) at[n++] = exec_address(x, &l->out[k]);
    if (l->workspace.i) {
        const struct plan_buffer *w = &x->plan->buffers.at[l->workspace.i];
        at[n++] = x->memory[buffer_arena(w->kind)] + (cu_ptr)w->offset;
    }
    at[n++] = x->errors + e->slot * sizeof(uint64_t);
    for (uint32_t k = 0; k < n; k++) arguments[k] = &at[k];
    e->addresses = at;
    e->arguments = arguments;
}

/* Tables of addresses, one after the other in the memory set aside for them. */
static enum status fill_tables(struct cuda_exec *x) {
    const struct plan *p = x->plan;
    cu_ptr to = x->tables;
    for (uint32_t i = 0; i < p->launches.n; i++) {
        struct exec_launch *e = &x->launches[i];
        uint32_t n = launch_pointers(&p->launches.at[i]);
        if (!launch_takes_table(p, &p->launches.at[i])) continue;
        TRY(upload(x, to, e->addresses, n * sizeof *e->addresses,
                   exec_origin(x, &p->launches.at[i])));
        e->table = to;
        e->arguments = ARENA_ARRAY(&x->arena, void *, 2); /* NULL at the end */
        e->arguments[0] = &e->table;
        to += n * sizeof *e->addresses;
    }
    return ST_OK;
}

static enum status check_calls(const struct cuda_exec *x) {
    const struct plan *p = x->plan;
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        CHECK(x->ctx, l->first_call <= p->calls.n && l->ncalls <= p->calls.n - l->first_call);
        for (uint32_t k = 1; k < l->ncalls; k++)
            CHECK(x->ctx, p->calls.at[l->first_call + k].table == launch_takes_table(p, l));
    }
    for (uint32_t i = 0; i < p->calls.n; i++) {
        const struct plan_call *c = &p->calls.at[i];
        CHECK(x->ctx, c->kernel < p->kernels.n && c->block >= 1 && c->block <= 1024);
        CHECK(x->ctx, c->grid[0] && c->grid[1] && c->grid[2]);
    }
    return ST_OK;
}

/* ---- memory ------------------------------------------------------------------------------------
 */
static enum status out_of_memory(struct cuda_exec *x, size_t available, size_t total) {
    const double mib = 1048576;
    const int64_t *b = x->plan->arena_bytes;
    return diag_error(
        x->ctx, ST_OUT_OF_MEMORY, interned(&x->plan->strings, x->plan->name),
        "the GPU is out of memory: the plan needs %.1f MiB (%.1f for weights and states, %.1f for "
        "one step, %.1f for inputs and outputs, %.1f for libraries), %.1f MiB of %.1f are free; "
        "use a smaller batch",
        (double)plan_bytes(x->plan) / mib, (double)b[ARENA_PERSISTENT] / mib,
        (double)b[ARENA_STEP] / mib, (double)b[ARENA_IO] / mib,
        (double)plan_library_bytes(x->plan) / mib, (double)available / mib, (double)total / mib);
}

/* Before kernels are compiled and algorithms timed. What libraries share may be there already. */
static enum status check_memory(struct cuda_exec *x) {
    struct cuda *d = x->d;
    size_t available = 0, total = 0, there = d->lt_workspace ? PLAN_LIBRARY_BYTES : 0;
    TRY_CU(d, cuMemGetInfo(&available, &total), "", "asking for memory");
    available += there;
    return (size_t)plan_bytes(x->plan) > available ? out_of_memory(x, available, total) : ST_OK;
}

static enum status allocate_at(struct cuda_exec *x, cu_ptr *at, size_t bytes, unsigned char value) {
    struct cuda *d = x->d;
    if (!bytes) return ST_OK;
    int e = d->api.cuMemAlloc(at, bytes);
    if (e != CU_OK) *at = 0;
    if (e == CU_OUT_OF_MEMORY) {
        size_t available = 0, total = 0;
        if (d->api.cuMemGetInfo(&available, &total) != CU_OK) available = total = 0;
        return out_of_memory(x, available + x->bytes + x->library_bytes, total);
    }
    TRY(cuda_status(d, e, "", "allocating memory"));
    x->bytes += bytes;
    TRY_CU(d, cuMemsetD8Async(*at, value, bytes, d->stream), "", "clearing memory");
    return ST_OK;
}

static enum status allocate(struct cuda_exec *x) {
    for (int i = 0; i < ARENA_CLASSES; i++)
        TRY(allocate_at(x, &x->memory[i], (size_t)x->plan->arena_bytes[i], 0));
    TRY(allocate_at(x, &x->errors, x->nerrors * sizeof(uint64_t), 0xff));
    return allocate_at(x, &x->tables, x->table_words * sizeof(cu_ptr), 0);
}

static enum status pinned(struct cuda_exec *x, size_t bytes, void **out) {
    if (!bytes) return ST_OK;
    void *at = NULL;
    TRY_CU(x->d, cuMemHostAlloc(&at, bytes, 0), "", "allocating host memory for transfers");
    memset(at, 0, bytes);
    *out = at;
    return ST_OK;
}

static enum status fill_value(struct cuda_exec *x, const struct plan_buffer *b, cu_ptr to,
                              char *chunk) {
    size_t elem = dtype_size(b->type.dtype), all = (size_t)b->bytes;
    size_t n = all < CHUNK ? all : CHUNK;
    for (size_t at = 0; at + elem <= n; at += elem) dtype_store(b->type.dtype, chunk + at, b->fill);
    for (size_t at = 0; at < all; at += n)
        TRY(upload(x, to + at, chunk, all - at < n ? all - at : n,
                   interned(&x->plan->strings, b->name)));
    return ST_OK;
}

static enum status fill_buffer(struct cuda_exec *x, const struct plan_buffer *b, char *chunk) {
    if (!b->bytes || (b->kind != BUF_CONST && b->kind != BUF_PARAM && b->kind != BUF_STATE))
        return ST_OK;
    const char *name = interned(&x->plan->strings, b->name);
    cu_ptr to = x->memory[buffer_arena(b->kind)] + (cu_ptr)b->offset;
    if (!b->init.bytes) return b->fill == 0 ? ST_OK : fill_value(x, b, to, chunk);
    if (!b->init.data || b->init.bytes != (size_t)b->bytes)
        return diag_error(x->ctx, ST_USAGE, name,
                          "expected %lld bytes of initial value, found %s; a plan read from text "
                          "cannot be run without its weights",
                          (long long)b->bytes, b->init.data ? "another size" : "only a hash");
    return upload(x, to, b->init.data, b->init.bytes, name);
}

static enum status fill_memory(struct cuda_exec *x) {
    struct arena a;
    arena_init(&a, x->ctx);
    char *chunk = arena_alloc(&a, CHUNK);
    enum status st = cuda_wait(x->d, "");
    for (uint32_t i = 1; i < x->plan->buffers.n && st == ST_OK; i++)
        st = fill_buffer(x, &x->plan->buffers.at[i], chunk);
    arena_reset(&a);
    return st;
}

/* ---- creation ----------------------------------------------------------------------------------
 */
static enum status create(struct cuda_exec *x, cuda_source_fn source, void *user) {
    const struct plan *p = x->plan;
    TRY(cuda_enter(x->d));
    TRY(check_arch(x));
    TRY(check_calls(x));
    TRY(check_memory(x));
    if (plan_library_bytes(p)) {
        TRY(library_memory(x->d));
        x->library_bytes = PLAN_LIBRARY_BYTES;
    }
    uint32_t *loaded = ARENA_ARRAY(&x->arena, uint32_t, p->kernels.n + 1);
    x->launches = ARENA_ARRAY(&x->arena, struct exec_launch, p->launches.n + 1);
    x->seconds = ARENA_ARRAY(&x->arena, double, p->launches.n + 1);
    x->nerrors = 1;
    TRY(load_kernels(x, source, user, loaded));
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        if (launch_takes_table(p, l)) x->table_words += launch_pointers(l);
        TRY(prepare_launch(x, i, loaded));
    }
    TRY(allocate(x));
    void *staging = NULL, *words = NULL;
    enum status st = pinned(x, (size_t)p->arena_bytes[ARENA_IO], &staging);
    x->staging = staging;
    if (st == ST_OK) st = pinned(x, x->nerrors * sizeof(uint64_t), &words);
    x->errors_seen = words;
    if (st != ST_OK) return st;
    for (uint32_t i = 0; i < p->launches.n; i++) {
        const struct plan_launch *l = &p->launches.at[i];
        set_addresses(x, i);
        const struct exec_launch *e = &x->launches[i];
        cu_ptr own = l->workspace.i ? e->addresses[l->nin + l->nout] : 0;
        if (e->attention) TRY(attention_bind(e->attention, e->addresses, own));
    }
    TRY(fill_tables(x));
    return fill_memory(x);
}

enum status cuda_create(struct cuda *d, const struct plan *p, cuda_source_fn source, void *user,
                        struct cuda_exec **out) {
    *out = NULL;
    struct cuda_exec *x = ctx_alloc(d->ctx, sizeof *x);
    memset(x, 0, sizeof *x);
    x->d = d;
    x->ctx = d->ctx;
    x->plan = p;
    arena_init(&x->arena, d->ctx);
    enum status st = create(x, source, user);
    if (st != ST_OK)
        cuda_destroy(x);
    else
        *out = x;
    return st;
}

void cuda_destroy(struct cuda_exec *x) {
    if (!x) return;
    const struct driver_api *api = &x->d->api;
    api->cuCtxSetCurrent(x->d->context);
    api->cuStreamSynchronize(x->d->stream);
    for (uint32_t i = 0; i < x->ranges.n; i++)
        if (x->ranges.at[i].graph) api->cuGraphExecDestroy(x->ranges.at[i].graph);
    for (uint32_t i = 0; x->events && i <= x->plan->launches.n; i++)
        if (x->events[i]) api->cuEventDestroy(x->events[i]);
    for (int i = 0; i < ARENA_CLASSES; i++)
        if (x->memory[i]) api->cuMemFree(x->memory[i]);
    if (x->errors) api->cuMemFree(x->errors);
    if (x->tables) api->cuMemFree(x->tables);
    if (x->staging) api->cuMemFreeHost(x->staging);
    if (x->errors_seen) api->cuMemFreeHost(x->errors_seen);
    struct ctx *c = x->ctx;
    arena_reset(&x->arena);
    ctx_free(c, x);
}

uint32_t cuda_cudnn_launches(const struct cuda_exec *x) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->plan->launches.n; i++) n += x->launches[i].attention != NULL;
    return n;
}

/* ---- transfers ---------------------------------------------------------------------------------
 */
void *cuda_host_buffer_at(struct cuda_exec *x, buf_id b) {
    const struct plan_buffer *k = &x->plan->buffers.at[b.i];
    if (!b.i || !x->staging || buffer_arena(k->kind) != ARENA_IO) return NULL;
    return x->staging + k->offset;
}

void *cuda_host_buffer(struct cuda_exec *x, enum buffer_kind kind, const char *name) {
    return cuda_host_buffer_at(x, plan_find(x->plan, kind, name));
}

enum status cuda_read(struct cuda_exec *x, buf_id b, void *to) {
    const struct plan_buffer *k = &x->plan->buffers.at[b.i];
    if (!k->bytes) return ST_OK;
    cu_ptr from = x->memory[buffer_arena(k->kind)] + (cu_ptr)k->offset;
    const char *name = interned(&x->plan->strings, k->name);
    TRY(cuda_enter(x->d));
    TRY_CU(x->d, cuMemcpyDtoHAsync(to, from, (size_t)k->bytes, x->d->stream), name,
           "copying from the GPU");
    return cuda_wait(x->d, name);
}

enum status cuda_write(struct cuda_exec *x, buf_id b, const void *from) {
    const struct plan_buffer *k = &x->plan->buffers.at[b.i];
    if (!k->bytes) return ST_OK;
    TRY(cuda_enter(x->d));
    void *staging = cuda_host_buffer_at(x, b);
    if (staging && staging != from) memcpy(staging, from, (size_t)k->bytes);
    return upload(x, x->memory[buffer_arena(k->kind)] + (cu_ptr)k->offset, from, (size_t)k->bytes,
                  interned(&x->plan->strings, k->name));
}

size_t cuda_bytes(const struct cuda_exec *x) {
    return x->bytes + x->library_bytes;
}
