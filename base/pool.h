// SPDX-License-Identifier: Apache-2.0
/* pool.h - a fixed set of worker threads that run one parallel loop at a time. The caller's thread
 * takes part, so a pool of 1 starts no thread. What an index computes must not depend on which
 * thread runs it: that is how results stay bit-identical for any thread count. */
#ifndef LATHE_BASE_POOL_H
#define LATHE_BASE_POOL_H

#include "base/ctx.h"
#include <stdint.h>

struct pool;
/* `threads` >= 1. NULL with a diagnostic when threads cannot be started. */
struct pool *pool_create(struct ctx *c, int threads);
void pool_destroy(struct pool *p); /* NULL is a no-op */
int pool_threads(const struct pool *p);
/* Run fn(arg, index, thread) for every index in [0, n); thread in [0, pool_threads). Indices are
 * handed out one at a time in increasing order. Returns when all are done. Not reentrant. */
void pool_run(struct pool *p, int64_t n, void (*fn)(void *arg, int64_t index, int thread),
              void *arg);

#endif
