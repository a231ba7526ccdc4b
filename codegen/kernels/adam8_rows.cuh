// SPDX-License-Identifier: Apache-2.0
/* adam8_rows.cuh - part of adam8.cu: whole rows of 128 where a row is a group. While a warp works
 * on one row, the next one is on its way to registers and the table rows that decode it to shared
 * memory. Any other row, at the end of a tensor or not aligned, is adam8.cu's. */
#pragma once

#define WARPS (THREADS / 32)

/* Rows of the tables: of v, which is encoded by the row that decoded it where k stays, those of the
 * next two rows as well. What is above the last code is read, too. */
struct table_rows {
    alignas(16) float m[ROWS][128], v[2][ROWS][128], behind[4];
};

/* A lane's part of it. */
DEV void fetch_table_row(float *to, const float *row) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    const u32 address = (u32)__cvta_generic_to_shared(to + threadIdx.x % 32 * 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(row) : "memory");
#endif
}

/* Where a lane's parts begin in a chunk, and how the chunk's groups are scaled. In registers, for
 * offsets into it are then small. */
template <class G> struct chunk {
    const float *w;
    const G *g;
    const char *m, *v;
    const float *m_amax, *v_amax;
    const unsigned char *m_k, *v_k;
    const float *m_table, *v_table;
    DEV chunk(const tensor &t, i64 from) {
        const int lane = threadIdx.x % 32;
        const i64 at = from + lane * VEC;
        w = t.w + at, g = (const G *)t.g + at;
        m = (const char *)t.m.codes + at, v = (const char *)t.v.codes + at;
        m_amax = t.m.amax + (u64)from / GROUP, v_amax = t.v.amax + (u64)from / GROUP;
        m_k = t.m.k + (u64)from / GROUP, v_k = t.v.k + (u64)from / GROUP;
        m_table = t.m.table->value[0] + lane * VEC, v_table = t.v.table->value[0] + lane * VEC;
    }
};
template <class G> struct whole_row { /* a lane's part, as it lies in memory */
    pack<float, VEC> w;
    packs<G, VEC> g;
    u32 m, v;
    float m_amax, v_amax;
    DEV void read(const chunk<G> &c, u32 at) {
        m = stream_in((const u32 *)(c.m + at)), v = stream_in((const u32 *)(c.v + at));
        g = stream_in((const packs<G, VEC> *)(c.g + at));
        w = stream_in((const pack<float, VEC> *)(c.w + at));
        m_amax = look_up(c.m_amax + at / GROUP), v_amax = look_up(c.v_amax + at / GROUP);
    }
};

template <bool SIGNED> DEV void decode_row(float *x, u32 codes, float amax, const float *value) {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        const u32 at = (j ? codes >> (8 * j - 2) : codes << 2) & 0x1fc;
        x[j] = __fmul_rn(amax, *(const float *)((const char *)value + at));
        if (SIGNED)
            x[j] = __uint_as_float(__float_as_uint(x[j]) | (codes << (24 - 8 * j) & 0x80000000u));
    }
}

/* Two numbers as f16 towards 0. Its bits begin with those of e5m2, and, 2^-8 times as large, with
 * those of e4m3 (sign and the first bit of the exponent are 0). */
DEV u32 two_f16_down(float low, float high) {
    u32 two;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

/* encode_random for most rows: a guess a little below, so that its code is the one below r or one
 * less. True where it is one less, or a 0 may not stay; then what it gives is void. */
template <int FORM>
DEV bool encode_random_row(u32 *codes, const float *x, u32 amax, const scale &s, const float *value,
                           u32 step, u32 at) {
    constexpr int cut = FORM == SMALL_E4M3 ? 7 : 8;
    constexpr float below = form<FORM>::log_top - 2.9e-5f - (FORM == SMALL_E4M3 ? 8.0f : 0.0f);
    const float k = (float)s.k * (1.0f / ONE);
    const u32 key = mix(step * 0x9e3779b9u ^ amax);
    u32 all = 0;
    bool off = false;
#pragma unroll
    for (int j = 0; j < VEC; j += 2) {
        float r[2], q[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            r[i] = __fmul_rn(x[j + i], s.inverse);
            q[i] = fast_exp2(fmaf(fast_log2(r[i]), k, below));
        }
        const u32 two = two_f16_down(q[0], q[1]), bits = mix(key ^ (at + j) / 2);
        u32 c = (two >> cut & 0x7f) | (two >> (cut + 8) & 0x7f00);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *entry =
                (const float *)((const char *)value + (two >> (cut - 2 + 16 * i) & 0x1fc));
            const float low = entry[0], high = entry[1];
            const u32 part = i ? bits >> 9 & 0x7fff80 : bits << 7 & 0x7fff80;
            const float u = __uint_as_float(part | 0x3f800000u) - 1.0f;
            const float limit = __fadd_rn(low, __fmul_rn(u, __fsub_rn(high, low)));
            if (r[i] >= limit) c += 1 << 8 * i;
            /* The largest number of a group, 1, is code 0x7d or the next, and the next is right. */
            off |= fminf(r[i], 0.99999994f) >= high;
        }
        all |= c << 8 * j;
    }
    *codes = all;
    return off || ((all - 0x01010101u) & ~all & 0x80808080u);
}

template <int FORM>
DEV u32 encode_v_row(const float *x, u32 amax, const scale &s, const expand_table *t, float *value,
                     u32 k, u32 step, u32 at) {
    if ((u32)s.k != k) { /* the slot has the row that decoded */
        __syncwarp();
        fetch_table_row(value, t->value[s.k] + threadIdx.x % 32 * VEC);
        copies_commit();
        copies_wait<0>();
        __syncwarp();
    }
    u32 codes;
    bool off = !ordinary(amax);
    if (!off) off = encode_random_row<FORM>(&codes, x, amax, s, value, step, at);
    if (off) codes = encode_random<FORM>(x, amax, s, t, step, at);
    return codes;
}

/* Pairs of rows of the chunk at `from`: those that begin at `row`, `row` + WARPS * 2 * ROW, ... and
 * end at `end` or before. */
template <class G>
DEV void step_whole_rows(const scalars &s, const tensor &t, table_rows &slots, i64 from, u32 row,
                         u32 end) {
    constexpr u32 stride = WARPS * ROWS * ROW, size = ROWS * ROW;
    const u32 lane = threadIdx.x % 32;
    if (row + size > end) return;
    const chunk<G> in(t, from);
    whole_row<G> e[ROWS];
    u32 m_next[ROWS], v_next[ROWS], v_k[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const u32 at = row + r * ROW, m_k = look_up(in.m_k + at / GROUP);
        v_k[r] = look_up(in.v_k + at / GROUP);
        e[r].read(in, at);
        fetch_table_row(slots.m[r], in.m_table + m_k * 128);
        fetch_table_row(slots.v[0][r], in.v_table + v_k[r] * 128);
        m_next[r] = v_next[r] = ONE;
        if (row + stride + size <= end) {
            m_next[r] = look_up(in.m_k + (at + stride) / GROUP);
            v_next[r] = look_up(in.v_k + (at + stride) / GROUP);
        }
    }
    copies_commit();
    for (int slot = 0; row + size <= end; row += stride, slot ^= 1) {
        float m[ROWS][VEC], v[ROWS][VEC];
        const i64 at = from + row + lane * VEC;
        copies_wait<0>();
        __syncwarp(); /* what all lanes fetched is there */
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float g[VEC], w[VEC];
            decode_row<true>(m[r], e[r].m, e[r].m_amax, slots.m[r]);
            decode_row<false>(v[r], e[r].v, e[r].v_amax, slots.v[slot][r]);
            unpack<G, VEC>(g, e[r].g);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                w[j] = e[r].w.at[j];
                update(s, g[j], w[j], m[r][j], v[r][j]);
            }
            give<true>(t.w_out, w, {at + r * ROW, VEC});
        }
        const u32 v_now[ROWS] = {v_k[0], v_k[1]};
        __syncwarp(); /* nobody decodes any more */
        if (row + stride + size <= end) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                fetch_table_row(slots.m[r], in.m_table + m_next[r] * 128);
                fetch_table_row(slots.v[slot ^ 1][r], in.v_table + v_next[r] * 128);
                e[r].read(in, row + stride + r * ROW);
                v_k[r] = v_next[r];
            }
        }
        copies_commit();
        if (row + 2 * stride + size <= end) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                m_next[r] = look_up(in.m_k + (row + 2 * stride) / GROUP + r);
                v_next[r] = look_up(in.v_k + (row + 2 * stride) / GROUP + r);
            }
        }
        extremes em[ROWS], ev[ROWS];
        scale sm[ROWS], sv[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) em[r] = measure(m[r]), ev[r] = measure(v[r]);
        all_scales<ROWS>(sm, sv, em, ev, t.m, t.v);
        u32 m_codes[ROWS], v_codes[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            m_codes[r] = encode_nearest<M_FORM, false>(m[r], em[r].most, sm[r], t.m.table);
            if constexpr (STOCHASTIC)
                v_codes[r] =
                    encode_v_row<V_FORM>(v[r], ev[r].most, sv[r], t.v.table, slots.v[slot][r],
                                         v_now[r], s.step, (u32)at + r * ROW);
            else
                v_codes[r] = encode_nearest<V_FORM, true>(v[r], ev[r].most, sv[r], t.v.table);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            stream_out((u32 *)((char *)t.m.codes_out + at) + r * 32, m_codes[r]);
            stream_out((u32 *)((char *)t.v.codes_out + at) + r * 32, v_codes[r]);
        }
        if (lane < ROWS) { /* a lane a row */
            const u64 group = (u64)(from + row) / GROUP + lane;
            const bool second = lane;
            t.m.amax_out[group] = __uint_as_float(second ? em[1].most : em[0].most);
            t.v.amax_out[group] = __uint_as_float(second ? ev[1].most : ev[0].most);
            t.m.k_out[group] = (unsigned char)(second ? sm[1].k : sm[0].k);
            t.v.k_out[group] = (unsigned char)(second ? sv[1].k : sv[0].k);
        }
    }
}
