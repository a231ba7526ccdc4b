// SPDX-License-Identifier: Apache-2.0
/* tile.cuh - a tile of TILE_R x TILE_C elements of ELEM bytes that changes its inner axis on the way
 * through a block: what transpose.cu and the groups of group.cu with transposed results share. Not
 * where tiles come from. ELEM is defined before. */
#ifndef TILE_CUH
#define TILE_CUH

enum {
    PER = 4 / ELEM,   /* elements of a word */
    LINE = 16 / ELEM, /* .. of 16 bytes */
    TILE_R = 8 * LINE,
    TILE_C = 32 * PER,
    TILE_THREADS = 256,
};
#define EACH_LINE(k) _Pragma("unroll") for (int k = 0; k < PER; k++)
struct alignas(16) quad {
    u32 w[4];
};

/* Lines a[k] along r, k the place along c: word r of the result holds r's elements along c. */
DEV void turn(const quad (&a)[PER], u32 (&out)[LINE]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if ELEM == 1
        const u32 low = __byte_perm(a[0].w[i], a[1].w[i], 0x5140);
        const u32 low2 = __byte_perm(a[2].w[i], a[3].w[i], 0x5140);
        const u32 high = __byte_perm(a[0].w[i], a[1].w[i], 0x7362);
        const u32 high2 = __byte_perm(a[2].w[i], a[3].w[i], 0x7362);
        out[4 * i] = __byte_perm(low, low2, 0x5410);
        out[4 * i + 1] = __byte_perm(low, low2, 0x7632);
        out[4 * i + 2] = __byte_perm(high, high2, 0x5410);
        out[4 * i + 3] = __byte_perm(high, high2, 0x7632);
#elif ELEM == 2
        out[2 * i] = __byte_perm(a[0].w[i], a[1].w[i], 0x5410);
        out[2 * i + 1] = __byte_perm(a[0].w[i], a[1].w[i], 0x7632);
#else
        out[i] = a[0].w[i];
#endif
    }
}

/* Lines a of a thread (t % 8: which along r, t / 8: which PER of them along c) of the tile at r0, c0 to
 * y[r, c]: words along c are put together in registers, wait in shared memory (swizzled so that
 * neither side meets a bank twice) and leave as 16 bytes along c. All threads of a block call it. */
template <class I>
DEV void put_turned(char *y, i64 pitch, quad *tile, const quad (&a)[PER], I r0, I c0, I rows,
                    I cols) {
    u32 *words = (u32 *)tile;
    const int t = threadIdx.x, lr = t % 8, lc = t / 8;
    u32 out[LINE];
    turn(a, out);
#pragma unroll
    for (int i = 0; i < LINE; i++) words[(lr * LINE + i) * 32 + (lc ^ lr * 4)] = out[i];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE_R; k += TILE_THREADS / 8) {
        const int row = k + t / 8, j = t % 8;
        const I at = c0 + j * LINE;
        if (r0 + row < rows && at < cols)
            *(quad *)(y + ((r0 + row) * pitch + at) * ELEM) = tile[row * 8 + (j ^ row / LINE % 8)];
    }
}
#endif
