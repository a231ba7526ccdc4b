// SPDX-License-Identifier: Apache-2.0
/* fake_cuda.c - a CUDA driver and a cuBLASLt on host memory, so that the backend's bookkeeping is
 * tested where there is no GPU. Work happens when a stream would start it at the latest: at once,
 * or when a recorded graph is launched. Kernels are functions of the test. Built twice: as
 * libcuda.so.1, and with FAKE_LT as libcublasLt.so.13. */
#include "runtime/cuda/cuda_api.h"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

static void *host(cu_ptr at) {
    return (void *)(uintptr_t)at;
}

#ifndef FAKE_LT
/* ---- what the test sets and reads --------------------------------------------------------------
 */
API extern size_t fake_memory, fake_used, fake_host_used;
API extern int fake_graph_launches, fake_fail_launch, fake_launches, fake_arch;
API extern void (*fake_kernel)(const char *name, void **arguments);
size_t fake_memory = 64 << 20, fake_used, fake_host_used;
int fake_graph_launches; /* so far */
int fake_fail_launch;    /* the error that the next kernel gives */
int fake_launches;
int fake_arch = 90;
void (*fake_kernel)(const char *name, void **arguments);

/* ---- work, done now or recorded ----------------------------------------------------------------
 */
struct work {
    enum { COPY, SET, SET2D, KERNEL } kind;
    char *to;
    const char *from;
    size_t bytes, pitch, height;
    int value;
    const char *name;
    void *arguments[32];
    unsigned long long values[32];
    struct work *next;
};
struct CUgraph_st {
    struct work *first, **end;
};
struct CUgraphExec_st {
    struct work *first;
};
static struct CUgraph_st *recording;

static void do_work(struct work *w) {
    for (size_t r = 0; w->kind == SET2D && r < w->height; r++)
        memset(w->to + r * w->pitch, w->value, w->bytes);
    if (w->kind == COPY && w->bytes) memmove(w->to, w->from, w->bytes);
    if (w->kind == SET) memset(w->to, w->value, w->bytes);
    if (w->kind == KERNEL && fake_kernel) fake_kernel(w->name, w->arguments);
}

static int queue(const struct work *w) {
    if (!recording) {
        struct work now = *w;
        do_work(&now);
        return 0;
    }
    struct work *kept = malloc(sizeof *kept);
    *kept = *w;
    kept->next = NULL;
    for (int i = 0; i < 32; i++)
        if (w->arguments[i]) { /* a graph keeps the values */
            kept->values[i] = *(unsigned long long *)w->arguments[i];
            kept->arguments[i] = &kept->values[i];
        }
    *recording->end = kept;
    recording->end = &kept->next;
    return 0;
}

/* ---- the driver --------------------------------------------------------------------------------
 */
struct block {
    size_t bytes, pad[7];
};
static void *take(size_t bytes, size_t *sum) {
    struct block *b = aligned_alloc(512, (bytes + 512 + 511) / 512 * 512);
    char *at = (char *)b + 512;
    b->bytes = bytes;
    memset(at, 0xa5, bytes); /* nothing may rely on zeros */
    *sum += bytes;
    return at;
}
static void drop(void *at, size_t *sum) {
    struct block *b = (struct block *)(void *)((char *)at - 512);
    *sum -= b->bytes;
    free(b);
}

static int f_init(unsigned flags) {
    return (int)flags;
}
static int f_version(int *v) {
    *v = 13000;
    return 0;
}
static int f_error(int e, const char **text) {
    *text = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return 0;
}
static int f_count(int *n) {
    *n = 1;
    return 0;
}
static int f_device(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}
static int f_name(char *name, int size, int device) {
    (void)device;
    strncpy(name, "Fake GPU", (size_t)size);
    return 0;
}
static int f_attribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == CU_ATTR_MAJOR          ? fake_arch / 10
             : attribute == CU_ATTR_MINOR        ? fake_arch % 10
             : attribute == CU_ATTR_SHARED_OPTIN ? 232448
                                                 : 132;
    return 0;
}
static int f_retain(cu_context *c, int device) {
    (void)device;
    static char context;
    *c = (cu_context)(void *)&context;
    return 0;
}
static int f_none(void) {
    return 0;
}
static int f_info(size_t *available, size_t *total) {
    *available = fake_memory - fake_used;
    *total = fake_memory;
    return 0;
}
static int f_alloc(cu_ptr *at, size_t bytes) {
    if (bytes > fake_memory - fake_used) return 2;
    *at = (cu_ptr)(uintptr_t)take(bytes, &fake_used);
    return 0;
}
static int f_free(cu_ptr at) {
    drop(host(at), &fake_used);
    return 0;
}
static int f_host_alloc(void **at, size_t bytes, unsigned flags) {
    (void)flags;
    *at = take(bytes, &fake_host_used);
    return 0;
}
static int f_host_free(void *at) {
    drop(at, &fake_host_used);
    return 0;
}
static int f_upload(cu_ptr to, const void *from, size_t bytes, cu_stream s) {
    (void)s;
    return queue(&(struct work){.kind = COPY, .to = host(to), .from = from, .bytes = bytes});
}
static int f_download(void *to, cu_ptr from, size_t bytes, cu_stream s) {
    (void)s;
    return queue(&(struct work){.kind = COPY, .to = to, .from = host(from), .bytes = bytes});
}
static int f_copy(cu_ptr to, cu_ptr from, size_t bytes, cu_stream s) {
    return f_download(host(to), from, bytes, s);
}
static int f_set(cu_ptr at, unsigned char value, size_t bytes, cu_stream s) {
    (void)s;
    return queue(&(struct work){.kind = SET, .to = host(at), .value = value, .bytes = bytes});
}
static int f_set2d(cu_ptr at, size_t pitch, unsigned char value, size_t width, size_t height,
                   cu_stream s) {
    (void)s;
    return queue(&(struct work){.kind = SET2D,
                                .to = host(at),
                                .pitch = pitch,
                                .value = value,
                                .bytes = width,
                                .height = height});
}
static int f_stream(cu_stream *s, unsigned flags) {
    static char stream;
    (void)flags;
    *s = (cu_stream)(void *)&stream;
    return 0;
}
static int f_begin(cu_stream s, int mode) {
    (void)s, (void)mode;
    recording = calloc(1, sizeof *recording);
    recording->end = &recording->first;
    return 0;
}
static int f_end(cu_stream s, cu_graph *g) {
    (void)s;
    *g = recording;
    recording = NULL;
    return 0;
}
static int f_instantiate(cu_graph_exec *e, cu_graph g, unsigned long long flags) {
    (void)flags;
    *e = calloc(1, sizeof **e);
    (*e)->first = g->first;
    return 0;
}
static int f_graph_launch(cu_graph_exec e, cu_stream s) {
    (void)s;
    fake_graph_launches++;
    for (struct work *w = e->first; w; w = w->next) do_work(w);
    return 0;
}
static int f_exec_free(cu_graph_exec e) {
    for (struct work *w = e->first, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    free(e);
    return 0;
}
static int f_graph_free(cu_graph g) {
    free(g);
    return 0;
}
static int f_event(cu_event *e, unsigned flags) {
    (void)flags;
    *e = malloc(1);
    return 0;
}
static int f_event_free(cu_event e) {
    free(e);
    return 0;
}
static int f_elapsed(float *ms, cu_event a, cu_event b) {
    (void)a, (void)b;
    *ms = 2;
    return 0;
}
static int f_load(cu_module *m, const void *image) {
    static const unsigned char elf[4] = {0x7f, 'E', 'L', 'F'};
    if (memcmp(image, elf, sizeof elf) != 0) return CU_INVALID_IMAGE;
    *m = malloc(1);
    return 0;
}
static int f_unload(cu_module m) {
    free(m);
    return 0;
}
struct CUfunc_st {
    char name[64];
};
static int f_function(cu_function *f, cu_module m, const char *name) {
    static struct CUfunc_st functions[256];
    (void)m;
    for (int i = 0; i < 256; i++) {
        if (functions[i].name[0] && strcmp(functions[i].name, name) != 0) continue;
        strncpy(functions[i].name, name, sizeof functions[i].name - 1);
        *f = &functions[i];
        return 0;
    }
    return 500;
}
static int f_set_function(cu_function f, int attribute, int value) {
    (void)f;
    return attribute == CU_FUNC_MAX_DYNAMIC_SHARED && value <= 232448 ? 0 : 1;
}
static int f_launch(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, cu_stream s, void **arguments, void **extra) {
    (void)gy, (void)gz, (void)by, (void)bz, (void)shared, (void)s, (void)extra;
    int e = fake_fail_launch;
    fake_fail_launch = 0;
    if (e || !gx || !bx) return e ? e : 1;
    fake_launches++;
    struct work w = {.kind = KERNEL, .name = f->name};
    for (int i = 0; i < 32 && arguments[i]; i++) w.arguments[i] = arguments[i];
    return queue(&w);
}

struct entry {
    const char *name;
    void (*at)(void);
};
#define E(name, f)                                                                                 \
    { #name, (void (*)(void))(f) }
static const struct entry entries[] = {
    E(cuInit, f_init),
    E(cuDriverGetVersion, f_version),
    E(cuGetErrorName, f_error),
    E(cuGetErrorString, f_error),
    E(cuDeviceGetCount, f_count),
    E(cuDeviceGet, f_device),
    E(cuDeviceGetName, f_name),
    E(cuDeviceGetAttribute, f_attribute),
    E(cuDevicePrimaryCtxRetain, f_retain),
    E(cuMemGetInfo, f_info),
    E(cuMemAlloc, f_alloc),
    E(cuMemFree, f_free),
    E(cuMemHostAlloc, f_host_alloc),
    E(cuMemFreeHost, f_host_free),
    E(cuMemcpyHtoDAsync, f_upload),
    E(cuMemcpyDtoHAsync, f_download),
    E(cuMemcpyDtoDAsync, f_copy),
    E(cuMemsetD8Async, f_set),
    E(cuMemsetD2D8Async, f_set2d),
    E(cuStreamCreate, f_stream),
    E(cuStreamBeginCapture, f_begin),
    E(cuStreamEndCapture, f_end),
    E(cuGraphInstantiateWithFlags, f_instantiate),
    E(cuGraphLaunch, f_graph_launch),
    E(cuGraphExecDestroy, f_exec_free),
    E(cuGraphDestroy, f_graph_free),
    E(cuEventCreate, f_event),
    E(cuEventDestroy, f_event_free),
    E(cuEventElapsedTime, f_elapsed),
    E(cuModuleLoadData, f_load),
    E(cuModuleUnload, f_unload),
    E(cuModuleGetFunction, f_function),
    E(cuFuncSetAttribute, f_set_function),
    E(cuLaunchKernel, f_launch),
};

API int cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *found);
int cuGetProcAddress_v2(const char *name, void **at, int version, uint64_t flags, int *found) {
    void (*f)(void) = (void (*)(void))f_none;
    (void)flags;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].name, name) == 0) f = entries[i].at;
    memcpy(at, &f, sizeof f);
    *found = 0;
    return version >= 12000 ? 0 : 1;
}

#else
/* ---- cuBLASLt ----------------------------------------------------------------------------------
 */
struct lt_desc_st {
    int compute, ta, tb;
};
struct lt_layout_st {
    int type, batch;
    int64_t rows, cols, ld, stride;
};
struct lt_preference_st {
    uint64_t bytes;
    uint32_t align[4];
};
#define LT(type, name, args)                                                                       \
    API type name args;                                                                            \
    type name args
LT(int, cublasLtCreate, (lt_handle * h)) {
    *h = malloc(1);
    return 0;
}
LT(int, cublasLtDestroy, (lt_handle h)) {
    free(h);
    return 0;
}
LT(size_t, cublasLtGetVersion, (void)) {
    return 130000;
}
LT(int, cublasLtMatmulDescCreate, (lt_desc * d, int compute, int scale)) {
    if ((compute == LT_COMPUTE_64F) != (scale == LT_R_64F)) return 7;
    *d = calloc(1, sizeof **d);
    (*d)->compute = compute;
    return 0;
}
LT(int, cublasLtMatmulDescDestroy, (lt_desc d)) {
    free(d);
    return 0;
}
LT(int, cublasLtMatmulDescSetAttribute, (lt_desc d, int key, const void *at, size_t n)) {
    if (n != sizeof(int)) return 7;
    memcpy(key == LT_DESC_TRANSA ? &d->ta : &d->tb, at, n);
    return 0;
}
LT(int, cublasLtMatrixLayoutCreate,
   (lt_layout * l, int type, uint64_t rows, uint64_t cols, int64_t ld)) {
    if (ld < (int64_t)rows || !rows || !cols) return 7;
    *l = calloc(1, sizeof **l);
    **l = (struct lt_layout_st){type, 1, (int64_t)rows, (int64_t)cols, ld, 0};
    return 0;
}
LT(int, cublasLtMatrixLayoutDestroy, (lt_layout l)) {
    free(l);
    return 0;
}
LT(int, cublasLtMatrixLayoutSetAttribute, (lt_layout l, int key, const void *at, size_t n)) {
    if (key == LT_LAYOUT_BATCH_COUNT && n == 4) return memcpy(&l->batch, at, n), 0;
    if (key == LT_LAYOUT_BATCH_STRIDE && n == 8) return memcpy(&l->stride, at, n), 0;
    return 7;
}
LT(int, cublasLtMatmulPreferenceCreate, (lt_preference * p)) {
    *p = calloc(1, sizeof **p);
    return 0;
}
LT(int, cublasLtMatmulPreferenceDestroy, (lt_preference p)) {
    free(p);
    return 0;
}
LT(int, cublasLtMatmulPreferenceSetAttribute,
   (lt_preference p, int key, const void *at, size_t n)) {
    if (key == LT_PREF_WORKSPACE && n == 8) return memcpy(&p->bytes, at, n), 0;
    if (key >= LT_PREF_ALIGN_A && n == 4) return memcpy(&p->align[key - LT_PREF_ALIGN_A], at, n), 0;
    return key == LT_PREF_REDUCTION && n == 4 ? 0 : 7;
}
LT(int, cublasLtMatmulAlgoGetHeuristic,
   (lt_handle h, lt_desc d, lt_layout a, lt_layout b, lt_layout c, lt_layout e, lt_preference p,
    int wanted, struct lt_candidate *out, int *found)) {
    (void)h;
    int64_t k = d->ta ? a->rows : a->cols;
    if ((d->tb ? b->cols : b->rows) != k || (d->ta ? a->cols : a->rows) != c->rows || c != e)
        return 7;
    if (a->batch != b->batch || a->batch != c->batch || wanted < 3 || !p->bytes) return 7;
    for (int i = 0; i < 3; i++) { /* the third gives other bits */
        out[i] = (struct lt_candidate){.waves = 1};
        out[i].algo.data[0] = (uint64_t)i;
        for (int j = 0; j < 3; j++) out[i].algo.data[1 + j] = p->align[j];
    }
    *found = 3;
    return 0;
}
static double get(const char *at, int64_t i, bool wide) {
    return wide ? ((const double *)(const void *)at)[i]
                : (double)((const float *)(const void *)at)[i];
}
LT(int, cublasLtMatmul,
   (lt_handle h, lt_desc d, const void *alpha, cu_ptr a, lt_layout la, cu_ptr b, lt_layout lb,
    const void *beta, cu_ptr c, lt_layout lc, cu_ptr e, lt_layout le, const struct lt_algo *algo,
    cu_ptr workspace, size_t bytes, cu_stream stream)) {
    bool wide = d->compute == LT_COMPUTE_64F;
    double x = get(alpha, 0, wide), y = get(beta, 0, wide);
    (void)h, (void)stream;
    if (c != e || lc != le || (bytes && !workspace)) return 7;
    if (a % algo->data[1] || b % algo->data[2] || c % algo->data[3]) return 15;
    int64_t k = d->ta ? la->rows : la->cols, elem = wide ? 8 : 4;
    for (int64_t i = 0; i < lc->batch * lc->cols * lc->rows; i++) {
        int64_t batch = i / (lc->cols * lc->rows), col = i / lc->rows % lc->cols,
                row = i % lc->rows;
        char *pa = (char *)host(a) + batch * la->stride * elem;
        char *pb = (char *)host(b) + batch * lb->stride * elem;
        char *pc = (char *)host(c) + (batch * lc->stride + col * lc->ld + row) * elem;
        double sum = algo->data[0] == 2 ? 1e-3 : 0;
        for (int64_t j = 0; j < k; j++)
            sum += get(pa, d->ta ? row * la->ld + j : j * la->ld + row, wide) *
                   get(pb, d->tb ? j * lb->ld + col : col * lb->ld + j, wide);
        double r = x * sum + (y != 0 ? y * get(pc, 0, wide) : 0);
        if (wide)
            *(double *)(void *)pc = r;
        else
            *(float *)(void *)pc = (float)r;
    }
    return 0;
}
#endif
