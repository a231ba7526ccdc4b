// SPDX-License-Identifier: Apache-2.0
/* match.h - pairing reference gradients with the trainer's, whatever the exporter did to names and
 * layouts. A test helper. */
#ifndef LATHE_TEST_MATCH_H
#define LATHE_TEST_MATCH_H

#include <stdbool.h>
#include <stdint.h>

struct gradient {
    const char *name;
    int rank;
    int64_t dims[12], count;
    const float *at;
    bool used;
};
struct match_result {
    int matched, of;
    double worst;      /* largest error norm over the norm allowed for */
    char problem[256]; /* "" when every reference is matched by exactly one */
};
/* Names that are equal (a prefix "m." aside) go first, then shape and closeness. `limit` bounds the
 * norm of the difference, relative to the reference gradient's; gradients that are zero but for
 * rounding are measured against all gradients together. */
void gradients_match(struct gradient *ref, int nref, struct gradient *got, int ngot, double limit,
                     struct match_result *out);

#endif
