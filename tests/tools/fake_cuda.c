// SPDX-License-Identifier: Apache-2.0
/* fake_cuda.c - a CUDA driver and a cuBLASLt on host memory, so that the backend's bookkeeping is
 * tested where there is no GPU. Work happens when a stream would start it at the latest: at once,
 * or when a recorded graph is launched. Kernels are functions of the test; without one they do
 * nothing. Built three times: as libcuda.so.1, with FAKE_LT as libcublasLt.so.13, and with
 * FAKE_NVRTC as libnvrtc.so.13, a compiler whose kernels are only names. For the command line,
 * environment variables say what this machine is like: FAKE_CUDA_VERSION, _COUNT, _ARCH, _MEMORY,
 * _FAIL (what the first kernel gives) and FAKE_NVRTC_FAIL (a file that does not compile). */
#include "runtime/cuda/cuda_api.h"
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

#ifndef FAKE_NVRTC
static void *host(cu_ptr at) {
    return (void *)(uintptr_t)at;
}
#endif

#if !defined(FAKE_LT) && !defined(FAKE_NVRTC)
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
static int fake_version = 13000, fake_count = 1;

static void take_env(const char *name, int *to) {
    const char *value = getenv(name);
    if (value) *to = (int)strtol(value, NULL, 10);
}

static __attribute__((constructor)) void read_environment(void) {
    int mib = (int)(fake_memory >> 20);
    take_env("FAKE_CUDA_VERSION", &fake_version);
    take_env("FAKE_CUDA_COUNT", &fake_count);
    take_env("FAKE_CUDA_ARCH", &fake_arch);
    take_env("FAKE_CUDA_FAIL", &fake_fail_launch);
    take_env("FAKE_CUDA_MEMORY", &mib); /* MiB */
    fake_memory = (size_t)mib << 20;
}

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
    *v = fake_version;
    return 0;
}
static int f_error(int e, const char **text) {
    *text = e == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
    return 0;
}
static int f_count(int *n) {
    *n = fake_count;
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
    int most = attribute == CU_FUNC_MAX_DYNAMIC_SHARED ? 232448
               : attribute == CU_FUNC_SHARED_CARVEOUT  ? 100
                                                       : -1;
    return value <= most ? 0 : 1;
}
static int f_get_function(int *value, int attribute, cu_function f) {
    (void)attribute, (void)f;
    *value = 0;
    return 0;
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
    E(cuFuncGetAttribute, f_get_function),
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

#elif defined(FAKE_LT)
/* ---- cuBLASLt ----------------------------------------------------------------------------------
 */
API extern int fake_lt_asked;
int fake_lt_asked; /* proposals so far */
struct lt_desc_st {
    int compute, ta, tb, epilogue;
    char *bias;
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
    if (key == LT_DESC_BIAS && n == sizeof(void *)) return memcpy(&d->bias, at, n), 0;
    if (n != sizeof(int)) return 7;
    if (key != LT_DESC_TRANSA && key != LT_DESC_TRANSB && key != LT_DESC_EPILOGUE) return 7;
    memcpy(key == LT_DESC_TRANSA ? &d->ta : key == LT_DESC_TRANSB ? &d->tb : &d->epilogue, at, n);
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
    for (int i = 0; i < 4; i++) (*p)->align[i] = 256;
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
    fake_lt_asked++;
    if ((d->tb ? b->cols : b->rows) != k || (d->ta ? a->cols : a->rows) != e->rows) return 7;
    if (c->rows != e->rows || c->cols != e->cols || c->type != e->type) return 7;
    if (a->batch != b->batch || a->batch != c->batch || a->batch != e->batch) return 7;
    if (a->type != b->type || (d->epilogue & LT_EPILOGUE_BIAS && !d->bias)) return 7;
    bool low = a->type == LT_R_16BF || a->type == LT_R_16F;
    if (e->type != a->type && !(low && e->type == LT_R_32F)) return 15;
    if ((d->compute == LT_COMPUTE_64F) != (a->type == LT_R_64F)) return 15;
    if (wanted < 3 || !p->bytes) return 7;
    for (int i = 0; i < 3; i++) { /* the third gives other bits */
        out[i] = (struct lt_candidate){.waves = 1};
        out[i].algo.data[0] = (uint64_t)i;
        for (int j = 0; j < 4; j++) out[i].algo.data[1 + j] = p->align[j];
    }
    *found = 3;
    return 0;
}
LT(int, cublasLtMatmulAlgoCheck,
   (lt_handle h, lt_desc d, lt_layout a, lt_layout b, lt_layout c, lt_layout e,
    const struct lt_algo *algo, struct lt_candidate *out)) {
    (void)h, (void)d, (void)a, (void)b, (void)c, (void)e;
    *out = (struct lt_candidate){.algo = *algo};
    return algo->data[0] < 3 && algo->data[1] ? 0 : 15;
}

/* Element `i` of a type; f16 is not wanted. */
static double get(const char *at, int64_t i, int type) {
    if (type == LT_R_64F) return ((const double *)(const void *)at)[i];
    if (type == LT_R_32F) return (double)((const float *)(const void *)at)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)(const void *)at)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}
static void put(char *at, int type, double x) {
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    if (type == LT_R_64F)
        *(double *)(void *)at = x;
    else if (type == LT_R_32F)
        *(float *)(void *)at = f;
    else
        *(uint16_t *)(void *)at = (uint16_t)(bits >> 16);
}
static int64_t size_of(int type) {
    return type == LT_R_64F ? 8 : type == LT_R_32F ? 4 : 2;
}

/* What the epilogue makes of a sum. */
static double finish(lt_desc d, lt_layout le, int64_t row, double r) {
    if (d->epilogue & LT_EPILOGUE_BIAS) r += get(d->bias, row, le->type);
    if (d->epilogue & LT_EPILOGUE_GELU)
        r = 0.5 * r * (1 + tanh(0.7978845608028654 * (r + 0.044715 * r * r * r)));
    return r;
}

LT(int, cublasLtMatmul,
   (lt_handle h, lt_desc d, const void *alpha, cu_ptr a, lt_layout la, cu_ptr b, lt_layout lb,
    const void *beta, cu_ptr c, lt_layout lc, cu_ptr e, lt_layout le, const struct lt_algo *algo,
    cu_ptr workspace, size_t bytes, cu_stream stream)) {
    int scale = d->compute == LT_COMPUTE_64F ? LT_R_64F : LT_R_32F;
    double x = get(alpha, 0, scale), y = get(beta, 0, scale);
    (void)h, (void)stream;
    if (bytes && !workspace) return 7;
    if (a % algo->data[1] || b % algo->data[2] || c % algo->data[3] || e % algo->data[4]) return 15;
    int64_t k = d->ta ? la->rows : la->cols, in = size_of(la->type), out = size_of(le->type);
    for (int64_t i = 0; i < le->batch * le->cols * le->rows; i++) {
        int64_t batch = i / (le->cols * le->rows), col = i / le->rows % le->cols,
                row = i % le->rows;
        char *pa = (char *)host(a) + batch * la->stride * in;
        char *pb = (char *)host(b) + batch * lb->stride * in;
        char *pc = (char *)host(c) + (batch * lc->stride + col * lc->ld + row) * out;
        double sum = algo->data[0] == 2 ? 1e-3 : 0;
        for (int64_t j = 0; j < k; j++)
            sum += get(pa, d->ta ? row * la->ld + j : j * la->ld + row, la->type) *
                   get(pb, d->tb ? j * lb->ld + col : col * lb->ld + j, lb->type);
        double r = x * sum + (y != 0 ? y * get(pc, 0, lc->type) : 0);
        put((char *)host(e) + (batch * le->stride + col * le->ld + row) * out, le->type,
            finish(d, le, row, r));
    }
    return 0;
}
#else
/* ---- NVRTC -------------------------------------------------------------------------------------
 */
struct nvrtc_program_st {
    char name[64];
    bool failed;
};
#define RTC(type, name, args)                                                                      \
    API type name args;                                                                            \
    type name args
RTC(int, nvrtcVersion, (int *major, int *minor)) {
    *major = 13;
    *minor = 0;
    return 0;
}
RTC(const char *, nvrtcGetErrorString, (int error)) {
    return error ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}
RTC(int, nvrtcCreateProgram,
    (nvrtc_program * p, const char *source, const char *name, int n, const char *const *headers,
     const char *const *names)) {
    (void)source, (void)n, (void)headers, (void)names;
    *p = calloc(1, sizeof **p);
    strncpy((*p)->name, name, sizeof(*p)->name - 1);
    return 0;
}
RTC(int, nvrtcDestroyProgram, (nvrtc_program * p)) {
    free(*p);
    *p = NULL;
    return 0;
}
RTC(int, nvrtcCompileProgram, (nvrtc_program p, int n, const char *const *options)) {
    const char *bad = getenv("FAKE_NVRTC_FAIL");
    (void)n, (void)options;
    p->failed = bad && strcmp(bad, p->name) == 0;
    return p->failed ? 6 : 0;
}
RTC(int, nvrtcGetCUBINSize, (nvrtc_program p, size_t *bytes)) {
    *bytes = sizeof p->name;
    return p->failed;
}
RTC(int, nvrtcGetCUBIN, (nvrtc_program p, char *to)) {
    memcpy(to, p->name, sizeof p->name);
    memcpy(to, "\177ELF", 4);
    return p->failed;
}
static const char failure[] = "body.cuh(7): error: the test does not like it\n";
RTC(int, nvrtcGetProgramLogSize, (nvrtc_program p, size_t *bytes)) {
    *bytes = p->failed ? sizeof failure : 1;
    return 0;
}
RTC(int, nvrtcGetProgramLog, (nvrtc_program p, char *to)) {
    memcpy(to, p->failed ? failure : "", p->failed ? sizeof failure : 1);
    return 0;
}
#endif
