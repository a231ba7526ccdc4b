// SPDX-License-Identifier: Apache-2.0
/* session.h - what stands behind the handles of lathe.h, shared by the API and the command line. */
#ifndef LATHE_DRIVER_SESSION_H
#define LATHE_DRIVER_SESSION_H

#include "driver/backend.h"
#include "driver/pipeline.h"
#include "frontend/import.h"
#include "include/lathe.h"
#include "ir/plan.h"
#include "runtime/data.h"

struct lathe_context {
    struct ctx ctx;
    struct pool *pool;
    lathe_context_options options; /* without its texts, which are the three below */
    struct arena arena;            /* of what lives as long as the context */
    const char *cache_dir, *cuda_dir, *compiled;
    struct device *devices;
    bool device_failed; /* a GPU did, not a file */
};

/* Sizes of the symbols in a model's input shapes. */
struct symbol_size {
    const char *symbol;
    int64_t size;
};

struct lathe_model {
    lathe_context *owner;
    struct arena arena;
    struct onnx_model *file;
    struct import_result import;
    lathe_model_options options; /* with texts of its own */
    VEC(struct symbol_size) sizes;
    bool open_batch; /* the first dimension of an input is a symbol with a size in `sizes` */
    bool training;
    bool listing;         /* opened by lathe_info, which lists what is unsupported itself */
    struct arena scratch; /* of a compilation in progress, empty otherwise */
};

struct lathe_trainer {
    lathe_model *model;
    const char *loss_text; /* the loss, spelled out */
    struct graph *graph;   /* after all passes; its arena holds constants that the plan points to */
    struct plan *plan;
    struct device *device;
    struct recipe recipe;
    struct backend exec;
    struct arena arena;        /* views of what is on a GPU */
    void **views;              /* per buffer, NULL until asked for */
    int64_t step;              /* updates done */
    int64_t micro, accumulate; /* micro-batches since the last update; per update */
    int64_t skipped;           /* steps left out because their gradients were not finite */
    int64_t skipped_now;       /* of these, the last ones without another between them */
    float *lr;                 /* the plan's input buffers, NULL when the plan has none */
    int64_t *seed;
    uint64_t seed_base;
    const void *loss, *grad_norm;
    enum dtype loss_type;
};

/* Import `path` with symbolic dimensions bound from options (batch, seq, data). */
enum status session_open(lathe_context *c, const char *path, const lathe_model_options *o,
                         lathe_model *m) MUST_USE;
/* The trained, or with `training` false the forward, graph of a model after all passes. `observe`
 * as in pipeline.h; may be NULL. */
struct session_compile {
    bool training, no_optimize;
    bool loss; /* forward graph with the loss of `train` appended */
    const struct train_options *train;
    const struct recipe *recipe; /* NULL: numbers as the file has them */
    const char *stop_after;
    const char *
        *loss_text; /* where the loss goes, spelled out; lives with the graph; may be NULL */
    void (*observe)(void *user, const char *name, const struct graph *g, double seconds);
    void *observe_user;
};
enum status session_graph(lathe_model *m, const struct session_compile *o,
                          struct graph **out) MUST_USE;
/* Fill train options from the API's; checks every number. */
enum status session_train_options(lathe_context *c, const lathe_train_options *o,
                                  struct train_options *out) MUST_USE;

/* Between the two calls only errors are reported: for work that is done a second time. Survives no
 * unwind: the guard of the API call restores the sink. */
struct session_quiet {
    void (*report)(void *user, enum severity sev, enum status code, const char *origin,
                   const char *message);
    void *user;
};
void session_quiet_begin(struct ctx *c, struct session_quiet *q);
void session_quiet_end(struct ctx *c, const struct session_quiet *q);
/* Between the two calls errors are not reported; the first one is kept with its words. */
struct session_held {
    struct session_quiet sink;
    int lines;
    char origin[200], text[2000];
};
void session_hold_begin(struct ctx *c, struct session_held *h);
void session_hold_end(struct ctx *c, const struct session_held *h);

/* Run `body` with a landing point; what unwinds comes back as a status. */
lathe_status session_guard(lathe_context *c, enum status (*body)(void *arg), void *arg);

#endif
