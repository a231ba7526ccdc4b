// SPDX-License-Identifier: Apache-2.0
/* attention_hopper_dq.cuh - the part of attention_hopper.cu that gives dQ, and the sums that dK and
 * dV need. */
#pragma once

#define LEVELS_DQ ((T + TILE - 1) / TILE)

/* Steps over the keys for queries before `end`. */
DEV int key_steps(int end) {
    const int n = CAUSAL ? (end < T ? end : T) + S - T : S;
    return n <= 0 ? 0 : ((n < S ? n : S) + COLS - 1) / COLS;
}

/* In shared memory: the stages, each K and V; Q, G, Y; log sums; barriers. */
struct dq_memory {
    u32 stages, fixed, log_sums, barriers;
    DEV explicit dq_memory(u32 base) {
        stages = base;
        fixed = stages + STAGES_DQ * 2 * SHORT;
        log_sums = fixed + 3 * LONG;
        barriers = log_sums + TILE * 4;
    }
    DEV u32 full(u32 i) const { return barriers + i * 8; }
    DEV u32 empty(u32 i) const { return barriers + (STAGES_DQ + i) * 8; }
    DEV u32 fixed_full() const { return barriers + 2 * STAGES_DQ * 8; }
    DEV u32 fixed_empty() const { return barriers + (2 * STAGES_DQ + 1) * 8; }
};

DEV void dq_produce(const dq_memory &m, const MEM *q, const MEM *k, const MEM *v, const MEM *y,
                    const float *lse, const MEM *g) {
    cursor<STAGES_DQ> at;
    cursor<1> fixed;
    work w;
    for (int round = 0; next_work<HEADS_DQ, B * H, LEVELS_DQ>(round, w); round++) {
        const int b = w.head / H, h = w.head % H, q0 = (LEVELS_DQ - 1 - w.level) * TILE;
        barrier_wait(m.fixed_empty(), fixed.parity ^ 1);
        load_tile<TILE>(m.fixed, q + PLACE(b, h, Q_STRIDES), ROW_STRIDE(Q_STRIDES), q0, T);
        load_tile<TILE>(m.fixed + LONG, g + PLACE(b, h, G_STRIDES), ROW_STRIDE(G_STRIDES), q0, T);
        load_tile<TILE>(m.fixed + 2 * LONG, y + PLACE(b, h, Y_STRIDES), ROW_STRIDE(Y_STRIDES), q0,
                        T);
        const int row = q0 + threadIdx.x % 128;
        copy4(m.log_sums + threadIdx.x % 128 * 4, lse + (i64)w.head * T + row, row < T ? 4 : 0);
        barrier_copied(m.fixed_full());
        fixed.step();
        const int n = key_steps(q0 + TILE);
        for (int i = 0; i < n; i++, at.step()) {
            const u32 to = m.stages + at.at * 2 * SHORT;
            barrier_wait(m.empty(at.at), at.parity ^ 1);
            forget(w.head);
            load_tile<COLS>(to, k + PLACE(w.head / H, w.head % H / SHARE, K_STRIDES),
                            ROW_STRIDE(K_STRIDES), i * COLS, S);
            load_tile<COLS>(to + SHORT, v + PLACE(w.head / H, w.head % H / SHARE, V_STRIDES),
                            ROW_STRIDE(V_STRIDES), i * COLS, S);
            barrier_copied(m.full(at.at));
        }
    }
    copies_wait_all();
}

/* What a warpgroup has of its queries. */
struct queries {
    u32 q[STEPS][4], g[STEPS][4];
    float log_sum[2], delta[2]; /* of rows lane/4 and 8 below */
};

/* Sums of g*y in delta, not yet over the four lanes of a row. */
DEV void add_products(float (&delta)[2], const u32 (&g)[4], const u32 (&y)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int high = 0; high < 2; high++)
            delta[i % 2] += to_reg(half_of(g[i], high)) * to_reg(half_of(y[i], high));
}

DEV void load_queries(queries &x, const dq_memory &m, int group, int q0, float *lines) {
    const int lane = threadIdx.x % 32;
    const int first = group * ROWS + threadIdx.x % 128 / 32 * 16 + lane / 4;
    x.delta[0] = x.delta[1] = 0;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 y[4];
        fragment<TILE>(x.q[i], m.fixed, group, i);
        fragment<TILE>(x.g[i], m.fixed + LONG, group, i);
        fragment<TILE>(y, m.fixed + 2 * LONG, group, i);
        add_products(x.delta, x.g[i], y);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + 8 * half;
        float sum, top = x.delta[half];
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : "r"(m.log_sums + row * 4) : "memory");
        top += __shfl_xor_sync(FULL_WARP, top, 1);
        top += __shfl_xor_sync(FULL_WARP, top, 2);
        const bool none = q0 + row >= T || sum < -1e30f;
        x.delta[half] = q0 + row < T ? top : 0.0f;
        x.log_sum[half] = none ? F32_INF : sum * (float)LOG2E;
        if (lane % 4 == 0) {
            lines[q0 + row] = x.log_sum[half];
            lines[(i64)B * H * LINES + q0 + row] = x.delta[half];
        }
    }
    release(m.fixed_empty());
}

/* x = a*b' over D, b a tile of COLS rows. */
DEV void scores(float (&x)[32], const u32 (&a)[STEPS][4], u32 tile) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) product<0>(x, a[i], columns<COLS>(tile, i), i > 0);
}
/* sum += a*b over COLS. */
DEV void add_rows(float (&sum)[D / 2], const u32 (&a)[COLS / 16][4], u32 tile) {
#pragma unroll
    for (int i = 0; i < COLS / 16; i++) product<1>(sum, a[i], rows<COLS>(tile, i), 1);
}

/* Scores of queries from `row` on (8 further ones behind) with keys from `key` on that do not
 * count. */
DEV void hide_keys(float (&x)[32], int row, int key) {
    const int column = key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int j = column + i / 4 * 8 + i % 2, r = row + i % 4 / 2 * 8;
        if (j >= S || (CAUSAL && j > r + S - T)) x[i] = HIDDEN;
    }
}

#if AHEAD_DQ
/* Order of the products, with what is computed under those of the two before:
 * .. S(i+1), [probabilities and slopes of i] dQ(i), P(i+1), S(i+2), .. */
struct dq_state {
    const queries &x;
    const dq_memory &m;
    int first, row, i, n; /* of the warpgroup; of this thread; the step of n */
    u32 before;        /* barrier of the step before; 0: there is none */
};

/* A step, with its scores in s and what g*v' gives in p; MORE: the next one's go to `next` and p,
 * its stage is full. The wait for the stage after that stands between what is computed and the wait
 * for products, or the compiler would compute after that. */
template <bool MORE>
DEV void dq_step(float (&sum)[D / 2], float (&s)[32], float (&next)[32], float (&p)[32],
                 u32 (&ds)[COLS / 16][4], dq_state &z, cursor<STAGES_DQ> &at) {
    const u32 tile = z.m.stages + at.at * 2 * SHORT, empty = z.m.empty(at.at);
    u32 other = 0;
    at.step();
    if (MORE) {
        other = z.m.stages + at.at * 2 * SHORT;
        products_open();
        scores(next, z.x.q, other);
        products_close();
    }
    if ((z.i + 1) * COLS > S || (CAUSAL && (z.i + 1) * COLS - 1 > z.first + S - T))
        hide_keys(s, z.row, z.i * COLS);
#pragma unroll
    for (int j = 0; j < 32; j++)
        s[j] = exp2_fast(s[j] * (float)(SCALE * LOG2E) - z.x.log_sum[j % 4 / 2]);
    settle(s);
    if (z.i + 2 < z.n) {
        cursor<STAGES_DQ> then = at;
        then.step();
        barrier_wait_operands(z.m.full(then.at), then.parity);
    }
    products_wait<MORE ? 1 : 0>();
    settle(p);
    settle(ds);
    if (z.before) release(z.before);
    z.before = empty;
#pragma unroll
    for (int j = 0; j < 32; j++) s[j] *= p[j] - z.x.delta[j % 4 / 2];
    pack_results(ds, s);
    settle(ds);
    products_open();
    add_rows(sum, ds, tile);
    products_close();
    if (MORE) {
        scores(p, z.x.g, other + SHORT);
        products_close();
        products_wait<2>();
        settle(next);
    } else {
        products_wait<0>();
        settle(ds);
        release(empty);
    }
    z.i++;
}

DEV void dq_tile(float (&sum)[D / 2], const queries &x, const dq_memory &m, cursor<STAGES_DQ> &at,
                 int first, int n) {
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[32], t[32], p[32];
    u32 ds[COLS / 16][4] = {};
    dq_state z = {x, m, first, row, 0, n, 0};
    const u32 tile = m.stages + at.at * 2 * SHORT;
    barrier_wait_operands(m.full(at.at), at.parity);
    products_open();
    scores(s, x.q, tile);
    products_close();
    scores(p, x.g, tile + SHORT);
    products_close();
    products_wait<1>();
    settle(s);
    if (n > 1) {
        cursor<STAGES_DQ> then = at;
        then.step();
        barrier_wait_operands(m.full(then.at), then.parity);
    }
    if (n == 1) {
        dq_step<false>(sum, s, t, p, ds, z, at);
        return;
    }
    dq_step<true>(sum, s, t, p, ds, z, at);
    for (;;) {
        if (z.i + 1 == n) {
            dq_step<false>(sum, t, s, p, ds, z, at);
            break;
        }
        dq_step<true>(sum, t, s, p, ds, z, at);
        if (z.i + 1 == n) {
            dq_step<false>(sum, s, t, p, ds, z, at);
            break;
        }
        dq_step<true>(sum, s, t, p, ds, z, at);
    }
}
#else
/* One tile: its queries against n steps of keys. */
DEV void dq_tile(float (&sum)[D / 2], const queries &x, const dq_memory &m, cursor<STAGES_DQ> &at,
                 int first, int n) {
    const int row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[32], p[32];
    u32 ds[COLS / 16][4] = {}, tile = m.stages + at.at * 2 * SHORT;
    barrier_wait_operands(m.full(at.at), at.parity);
    products_open();
    scores(s, x.q, tile);
    products_close();
    scores(p, x.g, tile + SHORT);
    products_close();
    for (int i = 0;; i++) {
        const u32 empty = m.empty(at.at);
        products_wait<1>();
        settle(s);
        if ((i + 1) * COLS > S || (CAUSAL && (i + 1) * COLS - 1 > first + S - T))
            hide_keys(s, row, i * COLS);
#pragma unroll
        for (int j = 0; j < 32; j++)
            s[j] = exp2_fast(s[j] * (float)(SCALE * LOG2E) - x.log_sum[j % 4 / 2]);
        settle(s); /* before waiting */
        products_wait<0>();
        settle(p);
#pragma unroll
        for (int j = 0; j < 32; j++) s[j] *= p[j] - x.delta[j % 4 / 2];
        pack_results(ds, s);
        settle(ds);
        at.step();
        products_open();
        add_rows(sum, ds, tile);
        products_close();
        if (i + 1 == n) {
            products_wait<0>();
            settle(ds);
            release(empty);
            break;
        }
        tile = m.stages + at.at * 2 * SHORT;
        barrier_wait_operands(m.full(at.at), at.parity);
        products_open();
        scores(s, x.q, tile);
        products_close();
        scores(p, x.g, tile + SHORT);
        products_close();
        products_wait<2>();
        settle(ds);
        release(empty);
    }
}
#endif

DEV void dq_consume(const dq_memory &m, MEM *dq, float *workspace) {
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / 128, 0) - 1; /* the same for a warp */
    cursor<STAGES_DQ> at;
    cursor<1> fixed;
    queries x;
    work w;
    for (int round = 0; next_work<HEADS_DQ, B * H, LEVELS_DQ>(round, w); round++) {
        const int q0 = (LEVELS_DQ - 1 - w.level) * TILE, first = q0 + group * ROWS;
        const int all = key_steps(q0 + TILE), n = first < T ? key_steps(first + ROWS) : 0;
        float sum[D / 2];
#pragma unroll
        for (int i = 0; i < D / 2; i++) sum[i] = 0;
        barrier_wait(m.fixed_full(), fixed.parity);
        fixed.step();
        load_queries(x, m, group, q0, workspace + (i64)w.head * LINES);
        if (n) dq_tile(sum, x, m, at, first, n);
        settle(sum);
        for (int i = n; i < all; i++, at.step()) {
            barrier_wait(m.full(at.at), at.parity);
            release(m.empty(at.at));
        }
        store_rows(dq + PLACE(w.head / H, w.head % H, DQ_STRIDES), ROW_STRIDE(DQ_STRIDES), first, T,
                   sum, (float)SCALE);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_hopper_dq(GRAD_PARAMS) {
    const dq_memory m((shared_at(shared_memory) + 1023) & ~1023u);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES_DQ; i++)
            barrier_init(m.full(i), 128), barrier_init(m.empty(i), 8);
        barrier_init(m.fixed_full(), 128);
        barrier_init(m.fixed_empty(), 8);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 " PRODUCER_REGISTERS ";");
        dq_produce(m, q, k, v, y, lse, g);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 " CONSUMER_REGISTERS ";");
        dq_consume(m, dq, workspace);
    }
}
