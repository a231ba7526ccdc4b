// SPDX-License-Identifier: Apache-2.0
/* cpu_simd.h - how kernels ask for vector code: plain loops, compiled for several instruction sets,
 * one of which is chosen when the program loads. All give the same bits: lanes are written out,
 * products and sums are never contracted or reordered. Include it after all other headers. */
#ifndef LATHE_RUNTIME_CPU_SIMD_H
#define LATHE_RUNTIME_CPU_SIMD_H

#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__)
#pragma GCC optimize("O3,no-trapping-math")
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIMD_PLAIN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SIMD_PLAIN 1
#endif
#endif

/* Resolvers run before a sanitizer is ready, so sanitized builds have one version only. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(SIMD_PLAIN)
#define SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD
#endif

#if defined(__clang__)
#define SIMD_LOOP /* restrict says enough */
#else
#define SIMD_LOOP _Pragma("GCC ivdep")
#endif

#define SIMD_INLINE static inline __attribute__((always_inline))

#endif
