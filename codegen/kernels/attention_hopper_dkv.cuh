// SPDX-License-Identifier: Apache-2.0
/* attention_hopper_dkv.cuh - the part of attention_hopper.cu that gives dK and dV. */
#pragma once

#define LEVELS_DKV ((S + TILE - 1) / TILE)
#define STEPS_T    ((T + COLS - 1) / COLS)

/* In shared memory: the stages, each Q, G, log sums and sums of g*y; K and V; barriers. */
struct dkv_memory {
    u32 stages, fixed, lines, barriers;
    DEV explicit dkv_memory(u32 base) {
        stages = base;
        fixed = stages + STAGES_DKV * 2 * SHORT;
        lines = fixed + FIXED_DKV * 2 * LONG;
        barriers = lines + STAGES_DKV * 2 * COLS * 4;
    }
    DEV u32 full(u32 i) const { return barriers + i * 8; }
    DEV u32 empty(u32 i) const { return barriers + (STAGES_DKV + i) * 8; }
    DEV u32 fixed_full(u32 i) const { return barriers + (2 * STAGES_DKV + i) * 8; }
    DEV u32 fixed_empty(u32 i) const {
        return barriers + (2 * STAGES_DKV + FIXED_DKV + i) * 8;
    }
};

/* The first step with a query that sees key k0. */
DEV int first_step(int k0) {
    const int i = CAUSAL ? k0 - (S - T) : 0;
    return i <= 0 ? 0 : i / COLS < STEPS_T ? i / COLS : STEPS_T;
}

DEV void dkv_produce(const dkv_memory &m, const MEM *q, const MEM *k, const MEM *v, const MEM *g,
                     const float *workspace) {
    cursor<STAGES_DKV> at;
    cursor<FIXED_DKV> fixed;
    work w;
    for (int round = 0; next_work<HEADS_DKV, B * KV, LEVELS_DKV>(round, w); round++) {
        const int b = w.head / KV, kv = w.head % KV, k0 = w.level * TILE;
        const u32 keys = m.fixed + fixed.at * 2 * LONG;
        barrier_wait(m.fixed_empty(fixed.at), fixed.parity ^ 1);
        load_tile<TILE>(keys, k + PLACE(b, kv, K_STRIDES), ROW_STRIDE(K_STRIDES), k0, S);
        load_tile<TILE>(keys + LONG, v + PLACE(b, kv, V_STRIDES), ROW_STRIDE(V_STRIDES), k0, S);
        barrier_copied(m.fixed_full(fixed.at));
        fixed.step();
        for (int head = w.head * SHARE; head < (w.head + 1) * SHARE; head++)
            for (int i = first_step(k0); i < STEPS_T; i++, at.step()) {
                const u32 to = m.stages + at.at * 2 * SHORT;
                barrier_wait(m.empty(at.at), at.parity ^ 1);
                forget(head);
                load_tile<COLS>(to, q + PLACE(head / H, head % H, Q_STRIDES), ROW_STRIDE(Q_STRIDES),
                                i * COLS, T);
                load_tile<COLS>(to + SHORT, g + PLACE(head / H, head % H, G_STRIDES),
                                ROW_STRIDE(G_STRIDES), i * COLS, T);
                const int lane = threadIdx.x % 16 * 4, second = threadIdx.x / 16;
                if (second < 2)
                    copy16(m.lines + at.at * 2 * COLS * 4 + threadIdx.x * 16,
                           workspace + ((i64)second * B * H + head) * LINES + i * COLS + lane, 16);
                barrier_copied(m.full(at.at));
            }
    }
    copies_wait_all();
}

/* A warpgroup's keys and where it is among the steps of its tile. */
struct keys {
#if KEEP_DKV
    u32 k[STEPS][4], v[STEPS][4];
#else
    u32 k, v; /* in shared memory */
#endif
    int first, step, start, head; /* its first key; the step, where each head starts, heads left */
};

#if !KEEP_DKV
DEV void scores(float (&x)[32], u32 a, u32 tile) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) product(x, columns<TILE>(a, i), columns<COLS>(tile, i), i > 0);
}
#endif

/* Go to the next step that has something to do for this warpgroup, from the one `at` is at; false:
 * there is none. */
DEV bool find_step(keys &x, const dkv_memory &m, cursor<STAGES_DKV> &at) {
    for (;; x.step++, at.step()) {
        if (x.step >= STEPS_T) {
            x.step = x.start;
            if (--x.head <= 0 || x.start >= STEPS_T) return false;
        }
        const bool idle = x.first >= S || (CAUSAL && x.first > x.step * COLS + COLS - 1 + S - T);
        if (!idle) return true;
        barrier_wait(m.full(at.at), at.parity);
        release(m.empty(at.at));
    }
}

/* Go on from a step and wait for the next one. */
DEV bool next_step(keys &x, const dkv_memory &m, cursor<STAGES_DKV> &at) {
    x.step++;
    at.step();
    if (!find_step(x, m, at)) return false;
    barrier_wait_operands(m.full(at.at), at.parity);
    return true;
}

/* Scores, transposed, of keys from `row` on (8 further ones behind) with queries from q0 on. */
DEV void hide_queries(float (&x)[32], int row, int q0) {
    const int column = q0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (row + i % 4 / 2 * 8 > column + i / 4 * 8 + i % 2 + S - T) x[i] = HIDDEN;
}

/* The two columns of a thread in group j of 8. */
DEV float2 line_at(u32 lines, int j) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(lines + threadIdx.x % 4 * 8 + j * 32)
                 : "memory");
    return x;
}

/* The gradient of the scores from probabilities and g*v', in place. */
DEV void slope(float (&p)[32], const u32 (&prob)[COLS / 16][4], u32 lines) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 delta = line_at(lines + COLS * 4, j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[4 * j + e] = to_reg(half_of(prob[j / 2][j % 2 * 2 + e / 2], e & 1)) *
                           (p[4 * j + e] - (e & 1 ? delta.y : delta.x));
    }
}

/* Probabilities of a step from its scores, in place. */
DEV void weigh(float (&s)[32], const keys &x, int row, int step, u32 lines) {
    if (CAUSAL && x.first + ROWS - 1 > step * COLS + S - T) hide_queries(s, row, step * COLS);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float2 sum = line_at(lines, j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[4 * j + e] =
                exp2_fast(s[4 * j + e] * (float)(SCALE * LOG2E) - (e & 1 ? sum.y : sum.x));
    }
}

#if AHEAD_DKV
/* Order of the products, with what is computed under those of the two before:
 * .. dV(i), S(i+1), [slopes of i] dK(i), P(i+1), [probabilities of i+1] dV(i+1), ..
 * The wait for the next stage stands between what is computed and the wait for products, or the
 * compiler would compute after that. */
DEV void dkv_tile(float (&dk)[D / 2], float (&dv)[D / 2], keys &x, const dkv_memory &m,
                  cursor<STAGES_DKV> &at) {
    const int row = x.first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[32], p[32];
    u32 prob[COLS / 16][4], ds[COLS / 16][4];
    u32 tile = m.stages + at.at * 2 * SHORT, lines = m.lines + at.at * 2 * COLS * 4;
    u32 empty = m.empty(at.at);
    barrier_wait_operands(m.full(at.at), at.parity);
    products_open();
    scores(s, x.k, tile);
    products_close();
    scores(p, x.v, tile + SHORT);
    products_close();
    products_wait<1>();
    settle(s);
    weigh(s, x, row, x.step, lines);
    pack_results(prob, s);
    settle(prob);
    bool more = next_step(x, m, at);
    products_wait<0>();
    settle(p);
    products_open();
    add_rows(dv, prob, tile + SHORT);
    products_close();
    while (more) {
        const u32 next = m.stages + at.at * 2 * SHORT, next_lines = m.lines + at.at * 2 * COLS * 4;
        const u32 next_empty = m.empty(at.at);
        products_open();
        scores(s, x.k, next);
        products_close();
        slope(p, prob, lines);
        pack_results(ds, p);
        settle(ds);
        products_open();
        add_rows(dk, ds, tile);
        products_close();
        scores(p, x.v, next + SHORT);
        products_close();
        products_wait<2>();
        settle(s);
        settle(prob);
        weigh(s, x, row, x.step, next_lines);
        pack_results(prob, s);
        settle(prob);
        more = next_step(x, m, at);
        products_wait<0>();
        settle(p);
        settle(ds);
        release(empty);
        empty = next_empty;
        tile = next;
        lines = next_lines;
        products_open();
        add_rows(dv, prob, tile + SHORT);
        products_close();
    }
    slope(p, prob, lines);
    products_wait<0>();
    settle(prob);
    pack_results(ds, p);
    settle(ds);
    products_open();
    add_rows(dk, ds, tile);
    products_close();
    products_wait<0>();
    settle(ds);
    release(empty);
}
#else
/* The order where registers are too few for that: .. dV(i), [slopes of i] dK(i), S(i+1), P(i+1),
 * [probabilities of i+1] .. */
DEV void dkv_tile(float (&dk)[D / 2], float (&dv)[D / 2], keys &x, const dkv_memory &m,
                  cursor<STAGES_DKV> &at) {
    const int row = x.first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float s[32], p[32];
    u32 prob[COLS / 16][4] = {}, tile = m.stages + at.at * 2 * SHORT;
    barrier_wait_operands(m.full(at.at), at.parity);
    products_open();
    scores(s, x.k, tile);
    products_close();
    scores(p, x.v, tile + SHORT);
    products_close();
    for (;;) {
#if !KEEP_DKV /* descriptors are made anew, not kept */
        forget(x.k);
        forget(x.v);
#endif
        const u32 empty = m.empty(at.at), lines = m.lines + at.at * 2 * COLS * 4;
        products_wait<1>();
        settle(s);
        weigh(s, x, row, x.step, lines);
        pack_results(prob, s);
        settle(prob);
        products_open();
        add_rows(dv, prob, tile + SHORT);
        products_close();
        products_wait<1>();
        settle(p);
        slope(p, prob, lines);
        products_wait<0>();
        settle(prob);
        pack_results(prob, p); /* in its place */
        settle(prob);
        products_open();
        add_rows(dk, prob, tile);
        products_close();
        if (!next_step(x, m, at)) {
            products_wait<0>();
            settle(prob);
            release(empty);
            break;
        }
        tile = m.stages + at.at * 2 * SHORT;
        products_open();
        scores(s, x.k, tile);
        products_close();
        scores(p, x.v, tile + SHORT);
        products_close();
        products_wait<2>();
        settle(prob);
        release(empty);
    }
}
#endif

DEV void dkv_consume(const dkv_memory &m, MEM *dk, MEM *dv) {
    const int group = __shfl_sync(FULL_WARP, threadIdx.x / 128, 0) - 1; /* the same for a warp */
    cursor<STAGES_DKV> at;
    cursor<FIXED_DKV> fixed;
    work w;
    for (int round = 0; next_work<HEADS_DKV, B * KV, LEVELS_DKV>(round, w); round++) {
        const int b = w.head / KV, kv = w.head % KV;
        const u32 tile = m.fixed + fixed.at * 2 * LONG, empty = m.fixed_empty(fixed.at);
        float sum_k[D / 2], sum_v[D / 2];
        keys x;
        x.first = w.level * TILE + group * ROWS;
        x.step = x.start = first_step(w.level * TILE);
        x.head = SHARE;
#pragma unroll
        for (int i = 0; i < D / 2; i++) sum_k[i] = sum_v[i] = 0;
        barrier_wait_operands(m.fixed_full(fixed.at), fixed.parity);
        fixed.step();
#if KEEP_DKV
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            fragment<TILE>(x.k[i], tile, group, i);
            fragment<TILE>(x.v[i], tile + LONG, group, i);
        }
        release(empty);
#else
        x.k = tile + group * ROWS * 128;
        x.v = x.k + LONG;
#endif
        if (find_step(x, m, at)) dkv_tile(sum_k, sum_v, x, m, at);
        settle(sum_k);
        settle(sum_v);
#if !KEEP_DKV
        release(empty);
#endif
        store_rows(dk + PLACE(b, kv, DK_STRIDES), ROW_STRIDE(DK_STRIDES), x.first, S, sum_k,
                   (float)SCALE);
        store_rows(dv + PLACE(b, kv, DV_STRIDES), ROW_STRIDE(DV_STRIDES), x.first, S, sum_v, 1.0f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_hopper_dkv(GRAD_PARAMS) {
    const dkv_memory m((shared_at(shared_memory) + 1023) & ~1023u);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES_DKV; i++)
            barrier_init(m.full(i), 128), barrier_init(m.empty(i), 8);
        for (int i = 0; i < FIXED_DKV; i++)
            barrier_init(m.fixed_full(i), 128), barrier_init(m.fixed_empty(i), 8);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 " PRODUCER_REGISTERS ";");
        dkv_produce(m, q, k, v, g, workspace);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 " CONSUMER_REGISTERS ";");
        dkv_consume(m, dk, dv);
    }
}
