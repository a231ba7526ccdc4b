// SPDX-License-Identifier: Apache-2.0
/* cudnn.h - attention through cuDNN: what one launch computes, the graph that says so to cuDNN, and
 * its execution. Private to runtime/cuda/. */
#ifndef LATHE_RUNTIME_CUDNN_H
#define LATHE_RUNTIME_CUDNN_H

#include "runtime/cuda/cudnn_api.h"
#include "runtime/cuda/impl.h"

/* Operands and results; their number + 1 is the tensor's id in a graph. SUM: scratch of the
 * gradient, f32 [B,H,T]. */
enum dnn_role {
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_Y,
    ROLE_LSE,
    ROLE_G,
    ROLE_DQ,
    ROLE_DK,
    ROLE_DV,
    ROLE_SUM,
    ROLES
};
enum { DNN_SCALARS = 5 };

/* q [B,H,T,D], k [B,KV,S,D], v [B,KV,S,E]; all that a graph depends on. Compared as bytes: no
 * padding. */
struct dnn_problem {
    int64_t grad, causal, type; /* type: enum dnn_type of all but lse */
    int64_t b, h, kv, t, s, d, e;
    int64_t strides[ROLES][4]; /* elements */
    double scale;
};

/* Numbers that a graph takes from the host, in one struct whose address does not change. */
struct dnn_scalars {
    float scale, lowest, one;
    int32_t t, s;
};

/* Descriptors under construction. After a failure nothing more is done and `failed` says why. */
struct dnn_net {
    const struct dnn_api *api;
    struct arena *arena;
    const struct dnn_problem *p;
    struct dnn_scalars *scalars;
    VEC(dnn_desc) all, ops;
    int64_t next_id;
    int64_t scalar_ids[DNN_SCALARS];
    const void *scalar_at[DNN_SCALARS];
    int nscalars;
    const char *failed;
};
/* False, with the words in n->failed, unless status is 0. */
bool net_check(struct dnn_net *n, int status, const char *what);
dnn_desc net_make(struct dnn_net *n, int kind);
void net_set(struct dnn_net *n, dnn_desc x, int key, int type, int64_t count, const void *at);
dnn_desc net_done(struct dnn_net *n, dnn_desc x, const char *what);
/* The operations of attention or its gradient, in n->ops. */
void net_attention(struct dnn_net *n);

#endif
