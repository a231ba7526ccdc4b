// SPDX-License-Identifier: Apache-2.0
/* pool.c - worker threads for parallel loops. Kernels are short, so the common path has no lock: a
 * worker joins the current loop by one compare-and-swap on `state`, and the caller waits only for
 * workers that joined, never for one that is still asleep. The mutex is for sleeping only. */
#include "base/pool.h"
#include "base/diag.h"
#include "base/sys.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

enum { LINE = 64, THREADS_MAX = 4096 };
static const double spin_seconds = 20e-6; /* about what one sleep and wake-up costs */

/* `state`: epoch in the upper half, then the open bit, then the number of workers inside. */
#define EPOCH_ONE (UINT64_C(1) << 32)
#define OPEN      (UINT64_C(1) << 31)
#define INSIDE    (OPEN - 1)

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index; /* 1 .. threads-1; the caller is 0 */
};

struct pool {
    struct ctx *ctx;
    int threads, started;
    bool may_spin; /* spinning only helps when every thread has a CPU */
    void (*fn)(void *arg, int64_t index, int thread);
    void *arg;
    int64_t n;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    atomic_int sleepers; /* workers at or near the wait for `work` */
    atomic_bool caller_sleeps, stop;
    _Alignas(LINE) atomic_uint_fast64_t state;
    _Alignas(LINE) atomic_int_fast64_t next; /* the index to hand out */
    _Alignas(LINE) struct worker workers[];
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait a little until ((state & mask) == value) is `want`; false on time-out. */
static bool spin_until(struct pool *p, uint64_t mask, uint64_t value, bool want) {
    if (!p->may_spin) return false;
    double end = sys_seconds() + spin_seconds;
    do {
        for (int i = 0; i < 16; i++) {
            if (((atomic_load(&p->state) & mask) == value) == want) return true;
            relax();
        }
    } while (sys_seconds() < end);
    return false;
}

static void run_indices(struct pool *p, int thread) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->fn(p->arg, i, thread);
    }
}

/* Returns when the epoch is no longer `seen` or the pool stops. Publishing stores `state` and then
 * reads `sleepers`; here the order is the opposite, and all four are sequentially consistent, so
 * one side always sees the other. */
static void wait_for_work(struct pool *p, uint64_t seen) {
    const uint64_t epoch = ~(EPOCH_ONE - 1);
    if (spin_until(p, epoch, seen, false)) return;
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleepers, 1);
    while ((atomic_load(&p->state) & epoch) == seen && !atomic_load(&p->stop))
        pthread_cond_wait(&p->work, &p->mutex);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint64_t seen = 0;
    while (!atomic_load(&p->stop)) {
        uint64_t s = atomic_load(&p->state);
        if ((s & ~(EPOCH_ONE - 1)) == seen) {
            wait_for_work(p, seen);
            continue;
        }
        if (!(s & OPEN)) { /* slept through a whole loop */
            seen = s & ~(EPOCH_ONE - 1);
            continue;
        }
        if (!atomic_compare_exchange_weak(&p->state, &s, s + 1)) continue;
        seen = s & ~(EPOCH_ONE - 1);
        run_indices(p, w->index);
        s = atomic_fetch_sub(&p->state, 1);
        if ((s & (OPEN | INSIDE)) == 1 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->mutex);
        }
    }
    return NULL;
}

static void wake_workers(struct pool *p, int64_t useful) {
    int asleep = atomic_load(&p->sleepers);
    if (!asleep) return;
    pthread_mutex_lock(&p->mutex);
    if (useful >= asleep)
        pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 0; i < useful; i++) pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->mutex);
}

void pool_run(struct pool *p, int64_t n, void (*fn)(void *arg, int64_t index, int thread),
              void *arg) {
    if (p->threads == 1 || n <= 1) {
        for (int64_t i = 0; i < n; i++) fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    uint64_t s = atomic_load(&p->state); /* closed and empty: nobody else changes it now */
    atomic_store(&p->state, ((s & ~(EPOCH_ONE - 1)) + EPOCH_ONE) | OPEN);
    wake_workers(p, n - 1);
    run_indices(p, 0);

    s = atomic_fetch_and(&p->state, ~OPEN);
    if (!(s & INSIDE) || spin_until(p, INSIDE, 0, true)) return;
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->state) & INSIDE) pthread_cond_wait(&p->done, &p->mutex);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->mutex);
}

int pool_threads(const struct pool *p) {
    return p->threads;
}

/* Signals stay with the caller's thread, whose program decides what they mean. */
static int start_workers(struct pool *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = 0;
    for (int i = 1; i < p->threads && !err; i++) {
        struct worker *w = &p->workers[i - 1];
        *w = (struct worker){.pool = p, .index = i};
        err = pthread_create(&w->thread, NULL, worker_main, w);
        if (!err) p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

struct pool *pool_create(struct ctx *c, int threads) {
    if (threads < 1 || threads > THREADS_MAX) {
        diag_error(c, ST_USAGE, "", "expected 1 to %d threads, found %d", THREADS_MAX, threads);
        return NULL;
    }
    struct pool *p =
        ctx_alloc(c, sizeof(struct pool) + (size_t)(threads - 1) * sizeof(struct worker));
    memset(p, 0, sizeof *p);
    p->ctx = c;
    p->threads = threads;
    p->may_spin = threads <= sys_cpu_count();
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    atomic_init(&p->sleepers, 0);
    atomic_init(&p->caller_sleeps, false);
    atomic_init(&p->stop, false);
    atomic_init(&p->state, 0);
    atomic_init(&p->next, 0);
    int err = start_workers(p);
    if (!err) return p;
    diag_error(c, ST_USAGE, "", "could start only %d of %d threads (%s); use fewer threads",
               p->started + 1, threads, err == EAGAIN ? "system limit reached" : "system error");
    pool_destroy(p);
    return NULL;
}

void pool_destroy(struct pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->mutex);
    ctx_free(p->ctx, p);
}
