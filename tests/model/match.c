// SPDX-License-Identifier: Apache-2.0
/* match.c - see match.h. */
#include "tests/model/match.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static double norm(const struct gradient *g) {
    double sum = 0;
    for (int64_t i = 0; i < g->count; i++) sum += (double)g->at[i] * (double)g->at[i];
    return sqrt(sum);
}

/* The norm of the difference when `got` holds the first elements of `ref`; exporters cut tables to
 * the rows a sequence reads, and the gradient of the others must be zero. */
static double difference(const struct gradient *ref, const struct gradient *got) {
    double sum = 0;
    for (int64_t i = 0; i < ref->count; i++) {
        double d = (double)ref->at[i] - (i < got->count ? (double)got->at[i] : 0);
        sum += d * d;
    }
    return sqrt(sum);
}

/* ref is [rows, cols] in memory, got is [cols, rows]. */
static double transposed_difference(const struct gradient *ref, const struct gradient *got,
                                    int64_t rows, int64_t cols) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            double d = (double)ref->at[r * cols + c] - (double)got->at[c * rows + r];
            sum += d * d;
        }
    return sqrt(sum);
}

static int squeeze(const struct gradient *g, int64_t *dims) {
    int n = 0;
    for (int i = 0; i < g->rank; i++)
        if (g->dims[i] != 1) dims[n++] = g->dims[i];
    return n;
}

/* The smallest difference over the layouts that exporters make; INFINITY when none fits. */
static double distance(const struct gradient *ref, const struct gradient *got) {
    int64_t a[12], b[12];
    int na = squeeze(ref, a), nb = squeeze(got, b);
    double best = INFINITY;
    if (ref->count == got->count) {
        best = difference(ref, got);
        int64_t rows = 1;
        for (int k = 0; nb == 2 && k + 1 < na; k++) {
            rows *= a[k];
            if (b[0] != ref->count / rows || b[1] != rows) continue;
            best = fmin(best, transposed_difference(ref, got, rows, ref->count / rows));
        }
    } else if (na == nb && na > 1 && b[0] < a[0] &&
               memcmp(a + 1, b + 1, (size_t)(na - 1) * sizeof a[0]) == 0) {
        best = difference(ref, got);
    }
    return best;
}

static bool same_name(const char *a, const char *b) {
    if (strncmp(a, "m.", 2) == 0) a += 2;
    if (strncmp(b, "m.", 2) == 0) b += 2;
    return strcmp(a, b) == 0;
}

static struct gradient *closest(const struct gradient *ref, struct gradient *got, int ngot,
                                bool by_name, double *error) {
    struct gradient *best = NULL;
    *error = INFINITY;
    for (int i = 0; i < ngot; i++) {
        if (got[i].used || (by_name && !same_name(ref->name, got[i].name))) continue;
        double d = distance(ref, &got[i]);
        if (d >= *error) continue;
        *error = d;
        best = &got[i];
    }
    return best;
}

void gradients_match(struct gradient *ref, int nref, struct gradient *got, int ngot, double limit,
                     struct match_result *out) {
    memset(out, 0, sizeof *out);
    out->of = nref;
    double all = 0;
    for (int i = 0; i < nref; i++) all = hypot(all, norm(&ref[i]));
    /* Round 0 pairs equal names, round 1 the rest. */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < nref; i++) {
            double error;
            if (ref[i].used) continue;
            struct gradient *g = closest(&ref[i], got, ngot, round == 0, &error);
            if (!g) continue;
            double relative = error / (norm(&ref[i]) + 1e-3 * all);
            if (!(relative <= limit)) {
                if (round == 0 || out->problem[0]) continue;
                snprintf(out->problem, sizeof out->problem, "%s: nearest is %s, off by %.3g",
                         ref[i].name, g->name, relative);
                continue;
            }
            g->used = ref[i].used = true;
            out->matched++;
            out->worst = fmax(out->worst, relative);
        }
    }
    for (int i = 0; i < nref && !out->problem[0]; i++)
        if (!ref[i].used)
            snprintf(out->problem, sizeof out->problem, "%s: no gradient has its shape",
                     ref[i].name);
}
