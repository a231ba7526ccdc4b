// SPDX-License-Identifier: Apache-2.0
/* cudnn.c - attention through cuDNN 9: opening the library, choosing an engine for each distinct
 * problem, running it. Without cuDNN, or where it does not take a problem, the plan's own kernels
 * run; nothing depends on it. The graphs themselves are in cudnn_graph.c.
 *
 * Of the gradient cuDNN has a fast form that adds to dQ in any order and one whose results are the
 * same bits in every run; the latter keeps the gradient of the scores, [B,H,T,S] in 16 bits, in its
 * workspace. The plan says how large that may be; a larger batch is run in parts. What fits there
 * is taken from the scratch memory that all library launches share. */
#include "runtime/cuda/cudnn.h"
#include <math.h>
#include <string.h>

enum {
    OLDEST = 91002,     /* before: wrong results in some cases */
    OLDEST_ODD = 91501, /* before: the gradient is wrong for some numbers of keys */
    CONFIGS = 8,        /* engines that are asked for */
    ALIGNED = 256,      /* bytes */
};

/* A problem that has been put to cuDNN. */
struct dnn_plan {
    struct dnn_problem problem; /* of a whole launch */
    size_t room;                /* bytes that it may use */
    struct dnn_scalars scalars;
    struct dnn_net net;
    dnn_desc plan;      /* NULL: cuDNN does not take it */
    const char *failed; /* why */
    int64_t parts;      /* equal pieces of the batch */
    int64_t engine;
    size_t workspace, sums; /* bytes */
};
struct dnn {
    struct dnn_api api;
    dnn_handle handle;
    const char *missing; /* why there is no handle */
    size_t version;
    VEC(struct dnn_plan *) plans;
    VEC(const char *) notes; /* given already */
};
struct attention {
    struct cuda *d;
    struct dnn_plan *plan;
    const char *origin;
    dnn_desc *packs; /* one for each part */
};

#define NAME(type, name, args) #name,
static const char *const functions[] = {CUDA_DNN(NAME)};
#undef NAME
enum { NFUNCTIONS = sizeof functions / sizeof functions[0] };
_Static_assert(NFUNCTIONS * sizeof(void *) == sizeof(struct dnn_api), "one name for each member");

/* ---- the library -------------------------------------------------------------------------------
 */
/* Python packages put cuDNN into a folder of its own beside that of NVRTC. */
static void *find_library(struct cuda *d, struct buf *tried) {
    static const char *const names[] = {"libcudnn.so.9", NULL};
    void *lib = NULL;
    if (d->library_dir) {
        const char *beside = arena_printf(&d->arena, "%s/../../cudnn/lib", d->library_dir);
        lib = library_open(&d->arena, beside, names, NULL);
    }
    return lib ? lib : library_open(&d->arena, d->library_dir, names, tried);
}

static const char *start(struct cuda *d, struct dnn *n) {
    struct buf tried;
    buf_init(&tried, &d->arena);
    void *lib = find_library(d, &tried);
    if (!lib) return arena_printf(&d->arena, "cuDNN 9 is not found (looked for %s)", tried.at);
    const char *missing = library_fill(lib, functions, NFUNCTIONS, &n->api);
    if (missing) return arena_printf(&d->arena, "cuDNN has no function %s", missing);
    n->version = n->api.cudnnGetVersion();
    if (n->version < OLDEST)
        return arena_printf(&d->arena, "cuDNN 9.10.2 or newer is needed, found %zu", n->version);
    dnn_handle handle = NULL;
    int e = n->api.cudnnCreate(&handle);
    if (e == 0) {
        e = n->api.cudnnSetStream(handle, d->stream);
        if (e) n->api.cudnnDestroy(handle);
    }
    if (e == 0) {
        n->handle = handle;
        return NULL;
    }
    char words[256] = "";
    n->api.cudnnGetLastErrorString(words, sizeof words - 1);
    return arena_printf(&d->arena, "cuDNN does not start: %s (%d): %s",
                        n->api.cudnnGetErrorString(e), e, words);
}

static struct dnn *dnn_open(struct cuda *d) {
    if (d->dnn) return d->dnn;
    d->dnn = ARENA_NEW(&d->arena, struct dnn);
    d->dnn->missing = start(d, d->dnn);
    return d->dnn;
}

static void destroy_all(struct dnn_net *net) {
    while (net->all.n) net->api->cudnnBackendDestroyDescriptor(net->all.at[--net->all.n]);
}

void dnn_close(struct cuda *d) {
    if (!d->dnn) return;
    for (uint32_t i = 0; i < d->dnn->plans.n; i++) destroy_all(&d->dnn->plans.at[i]->net);
    if (d->dnn->handle) d->dnn->api.cudnnDestroy(d->dnn->handle);
    d->dnn = NULL;
}

static void note_once(struct cuda *d, const char *origin, const char *text) {
    for (uint32_t i = 0; i < d->dnn->notes.n; i++)
        if (strcmp(d->dnn->notes.at[i], text) == 0) return;
    vec_push(&d->arena, &d->dnn->notes, text);
    diag_note(d->ctx, origin, "%s", text);
}

/* ---- the problem of a launch -------------------------------------------------------------------
 */
static const char *copy_strides(const struct plan_view *v, bool low, int64_t to[4]) {
    enum { VECTOR = 8 }; /* 16 bytes */
    int64_t row = 1;
    for (int i = 3; i >= 0; i--) {
        bool one = i >= v->rank || v->dims[i] == 1;
        to[i] = one ? row : v->strides[i];
        row = row > to[i] * (one ? 1 : v->dims[i]) ? row : to[i] * (one ? 1 : v->dims[i]);
        if (to[i] <= 0) return "repeats elements";
        if (low && i == 3 && to[i] != 1) return "has gaps within heads";
        if (low && i < 3 && to[i] % VECTOR) return "is not aligned to 16 bytes";
    }
    return low && v->offset % VECTOR ? "is not aligned to 16 bytes" : NULL;
}

static const char *read_views(const struct plan_launch *l, struct arena *a, struct dnn_problem *p) {
    static const char *const names[] = {"q", "k", "v", "y", "lse", "g", "dq", "dk", "dv"};
    enum dtype t = l->in[0].dtype;
    for (uint32_t r = 0; r < l->nin + l->nout; r++) {
        const struct plan_view *v = r < l->nin ? &l->in[r] : &l->out[r - l->nin];
        bool low = r != ROLE_LSE;
        if (v->dtype != (low ? t : DT_f32))
            return arena_printf(a, "%s is of %s", names[r], dtype_name(v->dtype));
        if (!low && !view_contiguous(v)) return "lse has gaps";
        const char *why = copy_strides(v, low, p->strides[r]);
        if (why) return arena_printf(a, "%s %s", names[r], why);
    }
    const int64_t dense[4] = {p->h * p->t, p->t, 1, 1};
    memcpy(p->strides[ROLE_LSE], dense, sizeof dense);
    memcpy(p->strides[ROLE_SUM], dense, sizeof dense);
    return NULL;
}

/* NULL, or why cuDNN is not asked. */
static const char *read_problem(const struct cuda *d, const struct plan_launch *l, struct arena *a,
                                struct dnn_problem *p) {
    const struct plan_view *q = &l->in[0], *k = &l->in[1], *v = &l->in[2];
    bool grad = l->kind == LAUNCH_attention_grad;
    int most = d->info.arch == 90 ? 256 : 128;
    memset(p, 0, sizeof *p);
    p->grad = grad;
    p->causal = launch_int(l, ATTR_causal, 0) != 0;
    p->type = q->dtype == DT_bf16 ? DNN_BFLOAT16 : DNN_HALF;
    p->scale = launch_float(l, ATTR_scale, 1.0);
    p->b = q->dims[0], p->h = q->dims[1], p->t = q->dims[2], p->d = q->dims[3];
    p->kv = k->dims[1], p->s = k->dims[2], p->e = v->dims[3];
    if (l->nin != (grad ? 6u : 3u)) return "there is a mask";
    if (launch_float(l, ATTR_softcap, 0.0) > 0) return "scores are capped";
    if (p->b < 1 || p->h < 1 || p->t < 1 || p->s < 1 || p->kv < 1) return "there are no elements";
    if (p->t > INT32_MAX || p->s > INT32_MAX) return "a sequence exceeds 2^31-1";
    if (p->d % 8 || p->e % 8 || p->d < 8 || p->e < 8 || p->d > most || p->e > most)
        return arena_printf(a, "heads of %lld and %lld elements (multiples of 8 up to %d)",
                            (long long)p->d, (long long)p->e, most);
    if (p->causal && p->t > p->s) return "some queries see no key";
    if (grad && d->info.arch > 90) return "gradients may differ from run to run on this GPU";
    if (grad && p->s % 128 && d->dnn->version < OLDEST_ODD)
        return "cuDNN before 9.15.1 needs multiples of 128 keys";
    return read_views(l, a, p);
}

/* ---- engines -----------------------------------------------------------------------------------
 */
static bool may_vary(struct dnn_net *n, dnn_desc engine) {
    int notes[DNN_NOTES] = {0};
    int64_t count = 0;
    int e = n->api->cudnnBackendGetAttribute(engine, DNN_ENGINE_NOTES, DNN_T_NUMERICAL_NOTE,
                                             DNN_NOTES, &count, notes);
    if (e) return true;
    for (int64_t i = 0; i < count && i < DNN_NOTES; i++)
        if (notes[i] == DNN_NOTE_NONDETERMINISTIC) return true;
    return false;
}

static bool get(struct dnn_net *n, dnn_desc x, int key, int type, int64_t wanted, int64_t *count,
                void *at, const char *what) {
    if (n->failed) return false;
    return net_check(n, n->api->cudnnBackendGetAttribute(x, key, type, wanted, count, at), what);
}

/* The engine configurations that cuDNN proposes, best first. */
static int64_t propose(struct dnn_net *n, dnn_handle handle, dnn_desc configs[CONFIGS]) {
    int mode = DNN_HEURISTIC_A;
    int64_t count = 0;
    dnn_desc graph = net_make(n, DNN_K_GRAPH);
    net_set(n, graph, DNN_GRAPH_HANDLE, DNN_T_HANDLE, 1, &handle);
    net_set(n, graph, DNN_GRAPH_OPS, DNN_T_DESCRIPTOR, n->ops.n, n->ops.at);
    graph = net_done(n, graph, "graph");
    dnn_desc heuristic = net_make(n, DNN_K_HEURISTIC);
    net_set(n, heuristic, DNN_HEURISTIC_GRAPH, DNN_T_DESCRIPTOR, 1, &graph);
    net_set(n, heuristic, DNN_HEURISTIC_MODE, DNN_T_HEURISTIC, 1, &mode);
    heuristic = net_done(n, heuristic, "heuristic");
    for (int i = 0; i < CONFIGS; i++) configs[i] = net_make(n, DNN_K_ENGINE_CONFIG);
    if (!get(n, heuristic, DNN_HEURISTIC_RESULTS, DNN_T_DESCRIPTOR, CONFIGS, &count, configs,
             "proposed engines"))
        return 0;
    if (count == 0) n->failed = "cuDNN proposes no engine";
    return count < CONFIGS ? count : CONFIGS;
}

/* An execution plan of this configuration, in k; false with n->failed. */
static bool try_config(struct dnn_plan *k, struct dnn_net *n, dnn_handle handle, dnn_desc config) {
    int64_t count = 0, bytes = 0;
    dnn_desc engine = net_make(n, DNN_K_ENGINE);
    if (!get(n, config, DNN_CONFIG_ENGINE, DNN_T_DESCRIPTOR, 1, &count, &engine, "engine"))
        return false;
    k->engine = -1;
    n->api->cudnnBackendGetAttribute(engine, DNN_ENGINE_INDEX, DNN_T_INT64, 1, &count, &k->engine);
    if (may_vary(n, engine)) {
        n->failed = "results of the engine may differ from run to run";
        return false;
    }
    dnn_desc plan = net_make(n, DNN_K_PLAN);
    net_set(n, plan, DNN_PLAN_HANDLE, DNN_T_HANDLE, 1, &handle);
    net_set(n, plan, DNN_PLAN_CONFIG, DNN_T_DESCRIPTOR, 1, &config);
    plan = net_done(n, plan, "execution plan");
    if (!get(n, plan, DNN_PLAN_WORKSPACE, DNN_T_INT64, 1, &count, &bytes, "workspace"))
        return false;
    k->plan = plan;
    k->workspace = bytes > 0 ? (size_t)bytes : 0;
    return true;
}

static void build(struct cuda *d, struct dnn_plan *k, const struct dnn_problem *part) {
    struct dnn_net *n = &k->net;
    dnn_desc configs[CONFIGS];
    *n = (struct dnn_net){
        .api = &d->dnn->api, .arena = &d->arena, .p = part, .scalars = &k->scalars};
    net_attention(n);
    int64_t count = propose(n, d->dnn->handle, configs);
    const char *first = n->failed;
    for (int64_t i = 0; i < count && !k->plan; i++) {
        n->failed = NULL;
        if (!try_config(k, n, d->dnn->handle, configs[i]) && !first)
            first = arena_printf(&d->arena, "engine %lld: %s", (long long)k->engine, n->failed);
    }
    k->failed = k->plan ? NULL : first;
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static size_t scratch_bytes(const struct dnn_plan *k) {
    return aligned(k->workspace) + aligned(k->sums);
}

/* Cut the batch until there is room for what cuDNN asks for. */
static void choose(struct cuda *d, struct dnn_plan *k) {
    struct dnn_problem *part = ARENA_NEW(&d->arena, struct dnn_problem);
    const struct dnn_problem *p = &k->problem;
    k->scalars = (struct dnn_scalars){(float)p->scale, -INFINITY, 1, (int32_t)p->t, (int32_t)p->s};
    *part = *p;
    for (k->parts = 1;;) {
        build(d, k, part);
        k->sums = p->grad ? (size_t)(part->b * p->h * p->t) * sizeof(float) : 0;
        size_t need = scratch_bytes(k);
        if (!k->plan || need <= k->room) break;
        int64_t most = (int64_t)((double)part->b * (double)k->room / (double)need);
        int64_t b = most < part->b ? most : part->b - 1;
        while (b > 0 && (p->b % b || b * p->h * p->t % 4)) b--; /* lse of each stays aligned */
        destroy_all(&k->net);
        k->plan = NULL;
        k->failed = arena_printf(&d->arena,
                                 "it asks for %zu bytes of scratch memory, %zu are "
                                 "planned",
                                 need, k->room);
        if (b < 1) break;
        part->b = b;
        k->parts = p->b / b;
    }
}

static struct dnn_plan *find_plan(struct cuda *d, const struct dnn_problem *p, size_t room) {
    for (uint32_t i = 0; i < d->dnn->plans.n; i++) {
        struct dnn_plan *known = d->dnn->plans.at[i];
        if (known->room == room && memcmp(&known->problem, p, sizeof *p) == 0) return known;
    }
    struct dnn_plan *k = ARENA_NEW(&d->arena, struct dnn_plan);
    k->problem = *p;
    k->room = room;
    choose(d, k);
    vec_push(&d->arena, &d->dnn->plans, k);
    return k;
}

/* ---- launches ----------------------------------------------------------------------------------
 */
static const char *describe(struct arena *a, const struct dnn_problem *p) {
    return arena_printf(a, "%s of %lldx%lld(%lld) heads, %lldx%lld, %lld%s",
                        p->grad ? "gradient of attention" : "attention", (long long)p->b,
                        (long long)p->h, (long long)p->kv, (long long)p->t, (long long)p->s,
                        (long long)p->d, p->causal ? ", causal" : "");
}

/* The launch's workspace, less what may be lost to alignment, or what libraries share. */
static size_t launch_room(const struct plan *p, const struct plan_launch *l) {
    int64_t own = l->workspace.i ? p->buffers.at[l->workspace.i].bytes - ALIGNED : 0;
    return own > PLAN_LIBRARY_BYTES ? (size_t)own : PLAN_LIBRARY_BYTES;
}

static void packs_free(void *ptr) {
    struct attention *a = ptr;
    for (int64_t i = 0; i < a->plan->parts; i++)
        if (a->packs[i]) a->d->dnn->api.cudnnBackendDestroyDescriptor(a->packs[i]);
}

/* Whether the plan's own kernels are the better choice. */
static bool runs_own(const struct plan *p, const struct plan_launch *l) {
    if (!l->ncalls) return false;
    const struct plan_kernel *k = &p->kernels.at[p->calls.at[l->first_call].kernel];
    return strcmp(interned(&p->strings, k->file), "attention_hopper.cu") == 0;
}

enum status attention_prepare(struct cuda *d, const struct plan *p, const struct plan_launch *l,
                              struct arena *a, struct attention **out) {
    enum dtype t = l->in[0].dtype;
    const char *origin = interned(&p->strings, l->origin);
    *out = NULL;
    if (d->no_cudnn || runs_own(p, l) || (t != DT_bf16 && t != DT_f16)) return ST_OK;
    struct dnn *n = dnn_open(d);
    const char *why = n->missing;
    struct dnn_problem problem;
    struct dnn_plan *k = NULL;
    if (!why) {
        why = read_problem(d, l, &d->arena, &problem);
        if (!why) k = find_plan(d, &problem, launch_room(p, l));
        if (k && !k->plan) why = k->failed;
        if (why) why = arena_printf(&d->arena, "%s: %s", describe(&d->arena, &problem), why);
    }
    if (why) {
        note_once(d, origin,
                  arena_printf(&d->arena, "cuDNN is not used, Lathe's own kernels are: %s", why));
        return ST_OK;
    }
    struct attention *x = ARENA_NEW(a, struct attention);
    *x = (struct attention){.d = d, .plan = k, .origin = origin};
    x->packs = arena_array(a, (size_t)k->parts, sizeof *x->packs);
    arena_defer(a, packs_free, x);
    *out = x;
    return ST_OK;
}

static enum status dnn_status(const struct attention *a, int e, const char *what) {
    if (e == 0) return ST_OK;
    const struct dnn_api *api = &a->d->dnn->api;
    char words[512] = "";
    api->cudnnGetLastErrorString(words, sizeof words - 1);
    return diag_error(a->d->ctx, ST_IO, a->origin, "cuDNN failed (%s of %s): %s (%d): %s", what,
                      describe(&a->d->arena, &a->plan->problem), api->cudnnGetErrorString(e), e,
                      words);
}

/* Ids and addresses of part i. */
static enum status make_pack(struct attention *a, int64_t i, const cu_ptr *addresses,
                             cu_ptr workspace) {
    const struct dnn_plan *k = a->plan;
    const struct dnn_problem *p = &k->problem;
    const struct dnn_api *api = &a->d->dnn->api;
    int64_t ids[ROLES + DNN_SCALARS], n = 0;
    const void *at[ROLES + DNN_SCALARS];
    for (int r = 0; r < ROLES; r++) {
        if (!p->grad && r > ROLE_LSE) break;
        int64_t size = r == ROLE_LSE ? 4 : 2, batch = p->b / k->parts * i;
        cu_ptr x = r == ROLE_SUM ? workspace + aligned(k->workspace)
                                 : addresses[r] + (cu_ptr)(batch * p->strides[r][0] * size);
        ids[n] = r + 1;
        at[n++] = (const void *)(uintptr_t)x;
    }
    for (int s = 0; s < k->net.nscalars; s++) {
        ids[n] = k->net.scalar_ids[s];
        at[n++] = k->net.scalar_at[s];
    }
    const void *work = (const void *)(uintptr_t)workspace;
    int e = api->cudnnBackendCreateDescriptor(DNN_K_PACK, &a->packs[i]);
    dnn_desc pack = a->packs[i];
    if (e == 0) e = api->cudnnBackendSetAttribute(pack, DNN_PACK_IDS, DNN_T_INT64, n, ids);
    if (e == 0) e = api->cudnnBackendSetAttribute(pack, DNN_PACK_POINTERS, DNN_T_POINTER, n, at);
    if (e == 0)
        e = api->cudnnBackendSetAttribute(pack, DNN_PACK_WORKSPACE, DNN_T_POINTER, 1, &work);
    if (e == 0) e = api->cudnnBackendFinalize(pack);
    return dnn_status(a, e, "addresses");
}

enum status attention_bind(struct attention *a, const cu_ptr *addresses, cu_ptr workspace) {
    cu_ptr at = scratch_bytes(a->plan) <= PLAN_LIBRARY_BYTES ? a->d->lt_workspace : workspace;
    at = (at + ALIGNED - 1) / ALIGNED * ALIGNED;
    for (int64_t i = 0; i < a->plan->parts; i++) TRY(make_pack(a, i, addresses, at));
    return ST_OK;
}

enum status attention_run(const struct attention *a) {
    const struct dnn *n = a->d->dnn;
    for (int64_t i = 0; i < a->plan->parts; i++) {
        int e = n->api.cudnnBackendExecute(n->handle, a->plan->plan, a->packs[i]);
        TRY(dnn_status(a, e, "execution"));
    }
    return ST_OK;
}
