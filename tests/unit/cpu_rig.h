// SPDX-License-Identifier: Apache-2.0
/* cpu_rig.h - builds small plans by hand, runs them with 1, 2, 3 and 7 threads, and checks that all
 * give the same bits; results are compared with straight loops by the caller. */
#ifndef LATHE_TEST_CPU_RIG_H
#define LATHE_TEST_CPU_RIG_H

#include "ir/plan_work.h"
#include "runtime/cpu.h"
#include "test_util.h"
#include <math.h>

enum { RIG_BUFFERS = 32 };
struct rig {
    struct test_env *t;
    struct plan *p;
    struct pool *pool;
    struct cpu_exec *x;
    uint64_t seed;
    bool check;       /* run with the NaN check */
    enum status want; /* status that cpu_run should give */
    void *user;
    const char *names[8]; /* what rig_at found last, by address of the name */
    void *found[8];
};
/* Append buffers, groups and launches; called once per thread count, must do the same each time. */
typedef void rig_build(struct rig *r);
/* Fill inputs (names "i0", "i1", ..); compare outputs with a reference. */
typedef void rig_step(struct rig *r);

static inline uint64_t rig_bits(uint64_t *s) { /* splitmix64 (Steele, Lea, Flood 2014) */
    uint64_t z = (*s += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
static inline double rig_uniform(uint64_t *s, double low, double high) {
    return low + (high - low) * (double)(rig_bits(s) >> 11) * 0x1p-53;
}
static inline int64_t rig_int(uint64_t *s, int64_t low, int64_t high) { /* inclusive */
    return low + (int64_t)(rig_bits(s) % (uint64_t)(high - low + 1));
}

static inline buf_id rig_buffer(struct rig *r, enum buffer_kind kind, const char *name,
                                enum dtype t, int64_t n) {
    struct plan_buffer b = {.kind = kind, .name = intern(&r->p->strings, name)};
    b.type = (struct type){.dtype = t, .rank = 1, .dims = {n}};
    b.bytes = n * (int64_t)dtype_size(t);
    vec_push(&r->p->arena, &r->p->buffers, b);
    return (buf_id){r->p->buffers.n - 1};
}
static inline struct plan_view rig_view(buf_id b, enum dtype t, int rank, const int64_t *dims) {
    struct plan_view v = {.buffer = b, .dtype = t, .rank = rank};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        v.dims[i] = dims[i];
        v.strides[i] = stride;
        stride *= dims[i];
    }
    return v;
}
#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
/* A contiguous view on a fresh buffer. */
static inline struct plan_view rig_new(struct rig *r, enum buffer_kind kind, const char *name,
                                       enum dtype t, int rank, const int64_t *dims) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= dims[i];
    return rig_view(rig_buffer(r, kind, name, t, n), t, rank, dims);
}

static inline void rig_launch(struct rig *r, enum launch_kind kind, group_id group,
                              const struct plan_view *in, uint32_t nin, const struct plan_view *out,
                              uint32_t nout, const struct attr *attrs, int nattrs) {
    struct arena *a = &r->p->arena;
    struct plan_launch l = {.kind = kind, .group = group, .nin = nin, .nout = nout};
    l.in = ARENA_ARRAY(a, struct plan_view, nin + 1);
    l.out = ARENA_ARRAY(a, struct plan_view, nout + 1);
    if (nin) memcpy(l.in, in, nin * sizeof *in);
    if (nout) memcpy(l.out, out, nout * sizeof *out);
    struct attr *copy = ARENA_ARRAY(a, struct attr, (size_t)nattrs + 1);
    for (int i = 0; i < nattrs; i++) {
        copy[i] = attrs[i];
        if (!attrs[i].n) continue;
        int64_t *list = ARENA_ARRAY(a, int64_t, (size_t)attrs[i].n);
        memcpy(list, attrs[i].list, (size_t)attrs[i].n * sizeof *list);
        copy[i].list = list;
    }
    l.attrs = copy;
    l.nattrs = nattrs;
    l.origin = intern(&r->p->strings, "/node");
    vec_push(a, &r->p->launches, l);
}

/* Workspaces, and offsets one after the other. */
static inline void rig_memory(struct rig *r) {
    struct plan *p = r->p;
    for (uint32_t i = 0; i < p->launches.n; i++) {
        int64_t bytes = launch_workspace(p, &p->launches.at[i]);
        if (!bytes) continue;
        p->launches.at[i].workspace = rig_buffer(r, BUF_WORKSPACE, "", DT_u8, bytes);
    }
    for (uint32_t i = 1; i < p->buffers.n; i++) {
        struct plan_buffer *b = &p->buffers.at[i];
        if (b->alias.i) {
            b->offset = p->buffers.at[b->alias.i].offset;
            continue;
        }
        int64_t *top = &p->arena_bytes[buffer_arena(b->kind)];
        b->offset = *top;
        *top += (b->bytes + 63) / 64 * 64;
    }
    p->first_update = p->launches.n;
}

static inline void *rig_at(struct rig *r, const char *name) {
    for (int i = 0; i < 8 && r->names[i]; i++)
        if (r->names[i] == name) return r->found[i];
    for (enum buffer_kind k = BUF_CONST; k <= BUF_TEMP; k++) {
        void *p = cpu_buffer(r->x, k, name);
        if (!p) continue;
        for (int i = 7; i > 0; i--) r->names[i] = r->names[i - 1], r->found[i] = r->found[i - 1];
        r->names[0] = name, r->found[0] = p;
        return p;
    }
    ck_abort_msg("no buffer %s", name);
    return NULL;
}
static inline int64_t rig_count(struct rig *r, const char *name) {
    for (uint32_t i = 1; i < r->p->buffers.n; i++) {
        const struct plan_buffer *b = &r->p->buffers.at[i];
        if (!strcmp(interned(&r->p->strings, b->name), name))
            return b->bytes / (int64_t)dtype_size(b->type.dtype);
    }
    ck_abort_msg("no buffer %s", name);
    return 0;
}
/* Uniform values in every float input, small integers in integer inputs. */
static inline void rig_fill(struct rig *r) {
    for (uint32_t i = 1; i < r->p->buffers.n; i++) {
        const struct plan_buffer *b = &r->p->buffers.at[i];
        if (b->kind != BUF_INPUT) continue;
        char *at = cpu_buffer_at(r->x, (buf_id){i});
        int64_t size = (int64_t)dtype_size(b->type.dtype);
        for (int64_t k = 0; k < b->bytes; k += size) {
            if (dtype_class(b->type.dtype) == DTC_FLOAT)
                dtype_store(b->type.dtype, at + k, rig_uniform(&r->seed, -2, 2));
            else
                dtype_store_int(b->type.dtype, at + k,
                                rig_int(&r->seed, 0, b->type.dtype == DT_bool ? 1 : 9));
        }
    }
}

static inline void rig_begin(struct rig *r, int threads, rig_build *build) {
    memset(r->names, 0, sizeof r->names);
    r->p = plan_create(&r->t->ctx, "test");
    r->p->threads = threads;
    build(r);
    rig_memory(r);
    r->pool = pool_create(&r->t->ctx, threads);
    ck_assert_ptr_nonnull(r->pool);
    ck_assert_msg(cpu_create(&r->t->ctx, r->p, r->pool, &r->x) == ST_OK, "%s", r->t->log);
    ck_assert_int_eq((int64_t)cpu_bytes(r->x), plan_bytes(r->p));
}
static inline void rig_end(struct rig *r) {
    cpu_destroy(r->x);
    pool_destroy(r->pool);
    plan_destroy(r->p);
}

/* The whole protocol. */
static inline void rig_run(struct rig *r, rig_build *build, rig_step *fill, rig_step *verify) {
    static const int threads[] = {1, 2, 3, 7};
    uint64_t seed = r->seed;
    char *first = NULL;
    for (int i = 0; i < 4; i++) {
        r->seed = seed;
        rig_begin(r, threads[i], build);
        fill(r);
        enum status s = cpu_run(r->x, 0, r->p->launches.n, r->check);
        ck_assert_msg(s == r->want, "status %d, %s", (int)s, r->t->log);
        size_t bytes = (size_t)(r->p->arena_bytes[ARENA_IO] + r->p->arena_bytes[ARENA_PERSISTENT]);
        size_t io = (size_t)r->p->arena_bytes[ARENA_IO];
        char *now = arena_alloc(&r->t->arena, bytes);
        for (uint32_t k = 1; k < r->p->buffers.n; k++) {
            struct plan_buffer *b = &r->p->buffers.at[k];
            enum arena_class c = buffer_arena(b->kind);
            if (c == ARENA_STEP || !b->bytes) continue;
            memcpy(now + b->offset + (c == ARENA_IO ? 0 : io), cpu_buffer_at(r->x, (buf_id){k}),
                   (size_t)b->bytes);
        }
        if (!first) {
            first = now;
            if (verify) verify(r);
        } else {
            ck_assert_msg(!memcmp(first, now, bytes), "%d threads give other bits", threads[i]);
        }
        rig_end(r);
    }
}

static inline void rig_close(double got, double want, double tol, const char *what, int64_t at) {
    if (isnan(want) && isnan(got)) return;
    if (isinf(want) && got == want) return;
    ck_assert_msg(fabs(got - want) <= tol * (1 + fabs(want)), "%s[%lld]: %.9g, expected %.9g", what,
                  (long long)at, got, want);
}

#define RIG_TEST(name)                                                                             \
    static void name##_body(struct rig *r);                                                        \
    START_TEST(name) {                                                                             \
        struct test_env t;                                                                         \
        test_begin(&t);                                                                            \
        TEST_LANDING(&t);                                                                          \
        struct rig r = {.t = &t, .seed = 1};                                                       \
        name##_body(&r);                                                                           \
        test_end(&t);                                                                              \
    }                                                                                              \
    END_TEST                                                                                       \
    static void name##_body(struct rig *r)

#endif
