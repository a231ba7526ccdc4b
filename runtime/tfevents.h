// SPDX-License-Identifier: Apache-2.0
/* tfevents.h - TensorBoard event files with scalars in them, and nothing else of that format. */
#ifndef LATHE_RUNTIME_TFEVENTS_H
#define LATHE_RUNTIME_TFEVENTS_H

#include "runtime/metrics.h"

struct tfevents;
/* Create a new file in `dir`, which is closed with the arena. */
enum status tfevents_open(struct arena *a, const char *dir, struct tfevents **out) MUST_USE;
/* One flushed record with all `n` scalars of a step. */
enum status tfevents_write(struct tfevents *e, int64_t step, const struct metric *m,
                           int n) MUST_USE;

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4). */
uint32_t tfevents_crc32c(const void *p, size_t n);

#endif
