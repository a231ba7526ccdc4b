// SPDX-License-Identifier: Apache-2.0
/* device.c - the driver: opening it and one device, its context and stream, and its errors in
 * words. Not memory and not kernels of a plan: that is exec.c. */
#include "base/sys.h"
#include "runtime/cuda/impl.h"
#include <stdio.h>
#include <string.h>

#define NAME(type, name, args) #name,
static const char *const functions[] = {CUDA_DRIVER(NAME)};
#undef NAME
enum { NFUNCTIONS = sizeof functions / sizeof functions[0] };
_Static_assert(NFUNCTIONS * sizeof(void *) == sizeof(struct driver_api),
               "one name for each member");

typedef int (*get_address_fn)(const char *name, void **at, int version, uint64_t flags, int *found);

/* NULL when the driver can be used, else why not. libcuda.so without a number is the toolkit's
 * stub.
 */
static const char *driver_open(struct arena *a, struct driver_api *api, int *version) {
    void *lib = sys_dlopen(a, "libcuda.so.1");
    if (!lib) return "no NVIDIA driver is installed (libcuda.so.1 is not found)";
    get_address_fn get;
    void *symbol = sys_dlsym(lib, "cuGetProcAddress_v2");
    if (!symbol) return "the NVIDIA driver is older than CUDA 12.0; update it";
    memcpy(&get, &symbol, sizeof get);
    for (int i = 0; i < NFUNCTIONS; i++) {
        void *at = NULL;
        int found = 0;
        if (get(functions[i], &at, CU_VERSION_WANTED, 0, &found) != CU_OK || !at)
            return arena_printf(a, "the NVIDIA driver lacks %s; update it", functions[i]);
        memcpy((char *)api + (size_t)i * sizeof at, &at, sizeof at);
    }
    int e = api->cuInit(0);
    char words[160];
    if (e == CU_NO_DEVICE) return "the NVIDIA driver finds no GPU";
    if (e == CU_STUB_LIBRARY)
        return "libcuda.so.1 is the toolkit's stub, not a driver; take its folder off the library "
               "path";
    if (e != CU_OK)
        return arena_printf(a, "the NVIDIA driver does not start: %s", cuda_words(api, e, words));
    if (api->cuDriverGetVersion(version) != CU_OK || *version < CU_VERSION_WANTED)
        return "the NVIDIA driver is older than CUDA 12.0; update it";
    return NULL;
}

const char *cuda_words(const struct driver_api *api, int result, char to[160]) {
    const char *name = NULL, *text = NULL;
    if (api->cuGetErrorName(result, &name) != CU_OK || !name) name = "unknown error";
    if (api->cuGetErrorString(result, &text) != CU_OK || !text) text = "no description";
    snprintf(to, 160, "%s (%d): %s", name, result, text);
    return to;
}

int cuda_device_count(struct ctx *c, char why[256]) {
    struct arena a;
    struct driver_api api;
    int version = 0, n = 0;
    arena_init(&a, c);
    const char *problem = driver_open(&a, &api, &version);
    if (!problem && (api.cuDeviceGetCount(&n) != CU_OK || n < 1)) {
        n = 0;
        problem = "the NVIDIA driver finds no GPU";
    }
    snprintf(why, 256, "%s", problem ? problem : "");
    arena_reset(&a);
    return n;
}

/* ---- errors ------------------------------------------------------------------------------------
 */
enum status cuda_status(struct cuda *d, int result, const char *origin, const char *what) {
    if (result == CU_OK) return ST_OK;
    char words[160];
    cuda_words(&d->api, result, words);
    if (result == CU_OUT_OF_MEMORY) {
        size_t available = 0, total = 0;
        if (d->api.cuMemGetInfo(&available, &total) != CU_OK) available = 0;
        return diag_error(
            d->ctx, ST_OUT_OF_MEMORY, origin,
            "the GPU is out of memory (%s; %.1f MiB are free); use a smaller batch or "
            "free GPU memory",
            what, (double)available / 1048576);
    }
    /* What a kernel did wrong, or uncorrectable memory errors, ends the context for good. */
    bool lost = result == CU_ECC || result == CU_ILLEGAL_ADDRESS || result == CU_LAUNCH_TIMEOUT ||
                result == CU_ASSERT || (result >= CU_STACK_ERROR && result <= CU_LAUNCH_FAILED);
    return diag_error(d->ctx, ST_IO, origin, "the GPU failed (%s): %s%s", what, words,
                      lost ? "; its memory is lost and the process must be started again" : "");
}

enum status cuda_enter(struct cuda *d) {
    TRY_CU(d, cuCtxSetCurrent(d->context), "", "entering the context");
    return ST_OK;
}

enum status cuda_wait(struct cuda *d, const char *origin) {
    TRY_CU(d, cuStreamSynchronize(d->stream), origin, "waiting for launches");
    return ST_OK;
}

/* ---- opening -----------------------------------------------------------------------------------
 */
static enum status read_info(struct cuda *d) {
    struct cuda_info *i = &d->info;
    int major = 0, minor = 0, l2 = 0;
    const char *what = "asking for the properties of the device";
    TRY_CU(d, cuDeviceGetName(i->name, (int)sizeof i->name, d->device), "", what);
    TRY_CU(d, cuDeviceGetAttribute(&major, CU_ATTR_MAJOR, d->device), "", what);
    TRY_CU(d, cuDeviceGetAttribute(&minor, CU_ATTR_MINOR, d->device), "", what);
    TRY_CU(d, cuDeviceGetAttribute(&i->processors, CU_ATTR_PROCESSORS, d->device), "", what);
    TRY_CU(d, cuDeviceGetAttribute(&l2, CU_ATTR_L2, d->device), "", what);
    TRY_CU(d, cuDeviceGetAttribute(&d->shared_max, CU_ATTR_SHARED_OPTIN, d->device), "", what);
    i->name[sizeof i->name - 1] = '\0';
    i->l2 = (size_t)(l2 > 0 ? l2 : 0);
    i->arch = major * 10 + minor;
    if (i->arch < 80)
        return diag_error(d->ctx, ST_UNSUPPORTED, i->name,
                          "expected a GPU of compute capability 8.0 or newer, found %d.%d", major,
                          minor);
    return ST_OK;
}

static enum status open_device(struct cuda *d, const struct cuda_options *o) {
    const char *problem = driver_open(&d->arena, &d->api, &d->info.driver_version);
    if (problem) return diag_error(d->ctx, ST_UNSUPPORTED, "", "no GPU can be used: %s", problem);
    int n = 0;
    TRY_CU(d, cuDeviceGetCount(&n), "", "counting devices");
    if (n < 1)
        return diag_error(d->ctx, ST_UNSUPPORTED, "",
                          "no GPU can be used: the NVIDIA driver finds none");
    if (o->device < 0 || o->device >= n)
        return diag_error(d->ctx, ST_UNSUPPORTED, "", "expected a GPU number in [0, %d), found %d",
                          n, o->device);
    TRY_CU(d, cuDeviceGet(&d->device, o->device), "", "opening the device");
    TRY(read_info(d));
    d->compiler.driver = d->info.driver_version;
    if (o->compiled)
        TRY(pack_open(&d->arena, o->compiled, d->info.driver_version, &d->compiler.pack));
    else
        TRY(compiler_open(&d->compiler, o, d->info.driver_version));
    d->info.nvrtc_version = d->compiler.version;
    cu_context context;
    TRY_CU(d, cuDevicePrimaryCtxRetain(&context, d->device), d->info.name, "making a context");
    d->context = context;
    TRY(cuda_enter(d));
    TRY_CU(d, cuMemGetInfo(&d->info.memory_free, &d->info.memory_total), "", "asking for memory");
    TRY_CU(d, cuStreamCreate(&d->stream, CU_OWN_STREAM), "", "making a stream");
    return ST_OK;
}

enum status cuda_open(struct ctx *c, const struct cuda_options *o, struct cuda **out) {
    *out = NULL;
    struct cuda *d = ctx_alloc(c, sizeof *d);
    memset(d, 0, sizeof *d);
    d->ctx = c;
    arena_init(&d->arena, c);
    intern_init(&d->names, &d->arena);
    d->library_dir = o->library_dir ? arena_strdup(&d->arena, o->library_dir) : NULL;
    d->compiler = (struct compiler){.ctx = c, .arena = &d->arena};
    d->no_cudnn = o->no_cudnn;
    if (o->cache_dir) d->compiler.cache_dir = arena_strdup(&d->arena, o->cache_dir);
    d->compiler.later =
        (struct cuda_options){.library_dir = d->library_dir, .compile_threads = o->compile_threads};
    enum status st = open_device(d, o);
    if (st != ST_OK)
        cuda_close(d);
    else
        *out = d;
    return st;
}

void cuda_close(struct cuda *d) {
    if (!d) return;
    if (d->context && d->api.cuCtxSetCurrent(d->context) == CU_OK) {
        lt_close(d);
        dnn_close(d);
        for (uint32_t i = 0; i < d->modules.n; i++) d->api.cuModuleUnload(d->modules.at[i].module);
        if (d->stream) d->api.cuStreamDestroy(d->stream);
    }
    if (d->context) d->api.cuDevicePrimaryCtxRelease(d->device);
    struct ctx *c = d->ctx;
    arena_reset(&d->arena);
    ctx_free(c, d);
}

struct cuda_info cuda_get_info(const struct cuda *d) {
    return d->info;
}

size_t cuda_memory_free(const struct cuda *d) {
    size_t available = 0, total = 0, there = d->lt_workspace ? PLAN_LIBRARY_BYTES : 0;
    if (d->api.cuCtxSetCurrent(d->context) != CU_OK) return 0;
    return d->api.cuMemGetInfo(&available, &total) == CU_OK ? available + there : 0;
}

int cuda_plan_arch(const struct cuda *d) {
    int arch = d->info.arch;
    return arch == 90 || arch == 100 ? arch : 80;
}

struct cuda_kernel_stats cuda_get_kernel_stats(const struct cuda *d) {
    return d->compiler.stats;
}
