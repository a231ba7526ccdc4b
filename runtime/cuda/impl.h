// SPDX-License-Identifier: Apache-2.0
/* impl.h - what the files of the CUDA backend share: the device, the compiler and its cache,
 * library products, the executor. Private to runtime/cuda/. */
#ifndef LATHE_RUNTIME_CUDA_IMPL_H
#define LATHE_RUNTIME_CUDA_IMPL_H

#include "base/diag.h"
#include "base/hash.h"
#include "base/vec.h"
#include "runtime/cuda.h"
#include "runtime/cuda/cuda_api.h"

/* ---- libraries (library.c) ---------------------------------------------------------------------
 */
/* Open the first of `names` (NULL-terminated) in dir, by the system's search, then in the usual
 * toolkit folders. NULL when there is none; `tried` (if not NULL) collects the places. */
void *library_open(struct arena *a, const char *dir, const char *const *names, struct buf *tried);
/* Fill a table of function pointers from symbols; the first missing name, or NULL when complete. */
const char *library_fill(void *lib, const char *const *names, size_t n, void *table);

/* ---- NVRTC (compile.c) -------------------------------------------------------------------------
 */
struct compiler {
    struct ctx *ctx;
    struct arena *arena; /* holds the library open */
    struct nvrtc_api api;
    int version; /* 13000 for 13.0 */
    const char *cache_dir;
    int threads;
    bool cache_warned, pack_warned;
    struct cuda_kernel_stats stats;
    const struct pack *pack;   /* NULL: none */
    struct cuda_options later; /* with a pack, NVRTC is opened when a kernel is missing there */
    int driver;
};
struct image {
    struct hash128 key;
    const void *cubin;
    size_t bytes;
    const char *log; /* "" when it came from the cache */
};
/* `driver` is the driver's version, or 0 for any; ST_UNSUPPORTED names what is missing. */
enum status compiler_open(struct compiler *k, const struct cuda_options *o, int driver) MUST_USE;
/* Cubins of all kernels of a plan, in `a`; images[i] belongs to kernel i. Images whose `cubin` the
 * caller found by `known` are left out. `arch`: "sm_90a". */
enum status compiler_build(struct compiler *k, const struct plan *p, const char *arch,
                           cuda_source_fn source, void *user, struct arena *a,
                           bool (*known)(void *who, struct hash128 key), void *who,
                           struct image *images) MUST_USE;
/* Under which key the cache keeps what this NVRTC makes of an image's key. */
struct hash128 compiler_stored_key(const struct compiler *k, struct hash128 key);
/* What ptxas or the C++ front end complained about in a log: NULL when nothing. In `a`. */
const char *compiler_complaint(struct arena *a, const char *log);
/* "sm_90a" for 90: the features of just that architecture where there are such. */
const char *compiler_arch(struct arena *a, int arch);

/* ---- the cache of compiled kernels (cache.c) ----------------------------------------------------
 */
/* The payload stored under `key`, mapped in `a`; false when absent or damaged. Never reports. */
bool cache_get(struct arena *a, const char *dir, struct hash128 key, const void **at,
               size_t *bytes);
/* Store it; complete or not at all. False when the directory cannot be written. Never reports. */
bool cache_put(struct ctx *c, const char *dir, struct hash128 key, const void *at, size_t bytes);
const char *cache_path(struct arena *a, const char *dir, struct hash128 key);

/* ---- files of compiled kernels (pack.c) ---------------------------------------------------------
 */
struct pack;
/* Read and check a file, which stays mapped in `a`. `driver` is the driver's version. ST_IO,
 * ST_PARSE, ST_UNSUPPORTED with one diagnostic. */
enum status pack_open(struct arena *a, const char *path, int driver,
                      const struct pack **out) MUST_USE;
bool pack_get(const struct pack *p, struct hash128 key, const void **at, size_t *bytes);
const char *pack_path(const struct pack *p);

/* ---- the device (device.c) ----------------------------------------------------------------------
 */
struct loaded_module {
    struct hash128 key;
    cu_module module;
};
struct loaded_kernel {
    cu_module module;
    str_id entry;
    cu_function function;
    uint32_t shared; /* dynamic shared memory that has been allowed */
};
struct chosen_algo; /* matmul.c */
struct cuda {
    struct ctx *ctx;
    struct arena arena;
    struct interner names;
    struct driver_api api;
    struct compiler compiler;
    struct cuda_info info;
    const char *library_dir;
    int device, shared_max;
    cu_context context; /* the primary context: shared with whatever else the process runs */
    cu_stream stream;
    VEC(struct loaded_module) modules;
    VEC(struct loaded_kernel) kernels;
    struct lt_api lt;
    lt_handle lt_handle; /* NULL until the first product */
    cu_ptr lt_workspace;
    VEC(struct chosen_algo *) algos;
    bool no_cudnn;
    struct dnn *dnn; /* cudnn.c; NULL until the first attention in 16 bits */
};
/* ST_OK, or ST_IO (ST_OUT_OF_MEMORY) with the driver's words about `what`. */
enum status cuda_status(struct cuda *d, int result, const char *origin, const char *what) MUST_USE;
/* "CUDA_ERROR_X: words" in a fixed buffer. */
const char *cuda_words(const struct driver_api *api, int result, char to[160]);
#define TRY_CU(d, call, origin, what)                                                              \
    do {                                                                                           \
        int try_result_ = (d)->api.call;                                                           \
        if (try_result_ != CU_OK) return cuda_status((d), try_result_, (origin), (what));          \
    } while (0)
/* The driver works on the context that is current in the calling thread. */
enum status cuda_enter(struct cuda *d) MUST_USE;
/* Wait for the stream. */
enum status cuda_wait(struct cuda *d, const char *origin) MUST_USE;

/* ---- products (matmul.c, matmul_choose.c)
 * ------------------------------------------------------------------------
 */
struct product;
/* Everything about a product that does not depend on addresses; chooses the algorithm. */
enum status product_prepare(struct cuda *d, const struct plan *p, const struct plan_launch *l,
                            struct arena *a, struct product **out) MUST_USE;
/* Addresses of operands and results in the launch's order. */
enum status product_run(struct cuda *d, const struct product *p, const cu_ptr *at,
                        const char *origin) MUST_USE;
void lt_close(struct cuda *d);
/* d->lt_workspace, PLAN_LIBRARY_BYTES that all products and attention through cuDNN share. */
enum status library_memory(struct cuda *d) MUST_USE;

/* ---- attention through cuDNN (cudnn.c, cudnn_graph.c) -------------------------------------------
 */
struct attention;
/* NULL in *out: cuDNN is not there or does not take this launch, which a note says once, and the
 * plan's own kernels run instead. */
enum status attention_prepare(struct cuda *d, const struct plan *p, const struct plan_launch *l,
                              struct arena *a, struct attention **out) MUST_USE;
/* The addresses of operands and results, in order, and of the launch's workspace (0: it has none),
 * for all later runs. */
enum status attention_bind(struct attention *a, const cu_ptr *addresses, cu_ptr workspace) MUST_USE;
enum status attention_run(const struct attention *a) MUST_USE;
void dnn_close(struct cuda *d);

/* ---- the executor (exec.c, run.c, scan.c) -------------------------------------------------------
 */
struct exec_launch {
    uint32_t ncalls;
    const cu_function *functions; /* per call */
    const cu_ptr *addresses;      /* operands, results, workspace, error word */
    void **arguments;             /* the same, as the driver wants them, or `table` */
    cu_ptr table;                 /* where the GPU has the addresses; 0: it does not */
    struct product *product;      /* instead of calls */
    struct attention *attention;  /* likewise */
    uint32_t slot;                /* its error word; 0: cannot fail */
};
struct interval { /* of the io arena */
    int64_t offset, bytes;
};
typedef VEC(struct interval) intervals;
struct range { /* launches [from, to) that have been run */
    uint32_t from, to, runs;
    intervals up, down;
    cu_graph_exec graph; /* NULL: not recorded yet */
};
struct cuda_exec {
    struct cuda *d;
    struct ctx *ctx;
    const struct plan *plan;
    struct arena arena;
    cu_ptr memory[ARENA_CLASSES];
    size_t bytes;
    char *staging; /* pinned image of the io arena */
    cu_ptr errors; /* one word for each launch that can fail; word 0 is shared by the others */
    uint64_t *errors_seen;
    uint32_t nerrors;
    cu_ptr tables; /* arguments of launches that take them from memory */
    size_t table_words;
    size_t library_bytes; /* of d->lt_workspace: 0, or all of it */
    struct exec_launch *launches;
    VEC(struct range) ranges;
    double *seconds;
    bool profile;
    cu_event *events; /* launches + 1, made by the first profiled run */
};
static inline cu_ptr exec_address(const struct cuda_exec *x, const struct plan_view *v) {
    const struct plan_buffer *b = &x->plan->buffers.at[v->buffer.i];
    return x->memory[buffer_arena(b->kind)] + (cu_ptr)b->offset +
           (cu_ptr)(v->offset * (int64_t)dtype_size(v->dtype));
}
const char *exec_origin(const struct cuda_exec *x, const struct plan_launch *l);
/* The buffer whose memory `b` shares, through all aliases. */
buf_id exec_root(const struct plan *p, buf_id b);
/* Queue launch i. */
enum status exec_launch(struct cuda_exec *x, uint32_t i) MUST_USE;
/* Run launch i alone and look for new NaNs and infinities. */
enum status exec_launch_checked(struct cuda_exec *x, uint32_t i) MUST_USE;

#endif
