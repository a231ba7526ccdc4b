// SPDX-License-Identifier: Apache-2.0
/* hopper.cuh - what kernels on Hopper's tensor cores are made of (sm_90a): barriers and copies in
 * shared memory, products of warpgroups, operands in swizzled tiles. Whoever includes it has said
 * before: MEM and PRODUCT_TYPE, the element type and its name in instructions; D, the columns of a
 * tile, 64 or 128; ROWS, those of a warpgroup. */
#pragma once

/* ---- instructions ------------------------------------------------------------------------------
 */
DEV u32 shared_at(const void *p) { return (u32)__cvta_generic_to_shared(p); }

DEV void barrier_init(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
DEV void barrier_arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
DEV bool barrier_try(u32 at, u32 parity) {
    u32 passed;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(passed)
                 : "r"(at), "r"(parity)
                 : "memory");
    return passed;
}
DEV void barrier_wait(u32 at, u32 parity) {
    while (!barrier_try(at, parity)) {}
}
/* Of `bytes` (16 or 0) from memory, the rest zeros; with 0 the address is not looked at. */
DEV void copy16(u32 to, const void *from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
DEV void copy4(u32 to, const void *from, u32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
/* This thread arrives once its copies so far are there. */
DEV void barrier_copied(u32 at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
DEV void copies_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/* Wait for copies that products read. The fence is here: who copies would wait in it for all of its
 * copies, one buffer's would be under way at a time. */
DEV void barrier_wait_operands(u32 at, u32 parity) {
    barrier_wait(at, parity);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEV void products_open() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void products_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEV void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Results that are read, operands that may change from here on. */
template <int N> DEV void settle(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int M, int N> DEV void settle(u32 (&x)[M][N]) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++) asm volatile("" : "+r"(x[i][j])::"memory");
}

#define F4(x, i)  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define F16(x, i) F4(x, i), F4(x, i + 4), F4(x, i + 8), F4(x, i + 12)
#define F32(x, i) F16(x, i), F16(x, i + 16)
#define OUT32                                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define OUT64                                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
    "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
    "%56, %57, %58, %59, %60, %61, %62, %63}"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." PRODUCT_TYPE "." PRODUCT_TYPE " "
#define ADD_IF(arg) "{\n.reg .pred p;\nsetp.ne.b32 p, " arg ", 0;\n"

/* x = a*b, or x += a*b if add: a is 64 x 16, from registers or described; b is 16 x 64 (32 results
 * in a thread) or 16 x 128 (64); TURNED: its 16 are the rows of the tile in shared memory. */
template <int TURNED> DEV void product(float (&x)[32], const u32 (&a)[4], u64 b, int add) {
    asm volatile(ADD_IF("%37") WGMMA("64") OUT32 ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                 : F32(x, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}
template <int TURNED> DEV void product(float (&x)[64], const u32 (&a)[4], u64 b, int add) {
    asm volatile(ADD_IF("%69") WGMMA("128") OUT64 ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                 : F32(x, 0), F32(x, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TURNED));
}
DEV void product(float (&x)[32], u64 a, u64 b, int add) {
    asm volatile(ADD_IF("%34") WGMMA("64") OUT32 ", %32, %33, p, 1, 1, 0, 0;\n}"
                 : F32(x, 0)
                 : "l"(a), "l"(b), "r"(add));
}

/* ---- tiles in shared memory --------------------------------------------------------------------
 * Rows of 64 elements (128 bytes), with 128 elements the second halves of all rows behind the
 * first; 16-byte pieces permuted by the row's number, as descriptors with the 128-byte swizzle say.
 */
/* A matrix that starts at `at`, groups of 8 rows 1024 bytes apart: columns 16*step.. of rows from
 * there on, in a tile of N rows. */
template <int N> DEV u64 columns(u32 at, int step) {
    const u32 low = (at >> 4 | 1u << 16) + (step / 4 * (N * 128) + step % 4 * 32) / 16;
    return (u64)(1024u >> 4 | 1u << 30) << 32 | low;
}
/* Rows 16*step.. of a tile of N rows, turned. */
template <int N> DEV u64 rows(u32 at, int step) {
    const u32 low = (at >> 4 | N * 128u / 16 << 16) + step * 2048 / 16;
    return (u64)(1024u >> 4 | 1u << 30) << 32 | low;
}

/* What depends on x is computed from here on: the warpgroup that copies has few registers. */
template <class X> DEV void forget(X &x) {
    if constexpr (sizeof(X) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
}

/* Rows [first, first+N) of a head, by 128 threads; zeros beyond `end`. */
template <int N> DEV void load_tile(u32 to, const MEM *from, i64 stride, int first, int end) {
    constexpr u32 PIECES = D / 8, EACH = 128 / PIECES;
    u32 thread = threadIdx.x;
    forget(thread);
    const u32 row = thread / PIECES, piece = thread % PIECES;
    const MEM *at = from + ((i64)(first + row) * stride + piece * 8);
    int left = end - first - (int)row;
    to += piece / 8 * (N * 128) + row * 128 + ((piece ^ row) & 7) * 16;
    forget(at);
    forget(to);
    forget(left);
#pragma unroll
    for (u32 i = 0; i < N / EACH; i++)
        copy16(to + i * EACH * 128, at + i * EACH * stride, left > (int)(i * EACH) ? 16 : 0);
}

/* Registers of this warpgroup's rows and columns 16*step.. as a product's first operand. */
template <int N> DEV void fragment(u32 (&a)[4], u32 tile, int group, int step) {
    const int lane = threadIdx.x % 32, row = group * ROWS + threadIdx.x % 128 / 32 * 16 + lane % 16;
    const int piece = step * 2 + lane / 16;
    const u32 at = tile + piece / 8 * (N * 128) + row * 128 + ((piece ^ row) & 7) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

/* ---- numbers -----------------------------------------------------------------------------------
 */
DEV float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV u32 pack2(float low, float high) {
    u32 r;
    asm("cvt.rn." PRODUCT_TYPE "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEV MEM half_of(u32 x, int high) { return MEM{(unsigned short)(high ? x >> 16 : x & 0xffffu)}; }
/* Results of a product as the first operand of the next. */
template <int N> DEV void pack_results(u32 (&to)[N / 8][4], const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) to[i / 4][i % 4] = pack2(x[2 * i], x[2 * i + 1]);
}
