// SPDX-License-Identifier: Apache-2.0
/* space.c - iteration spaces and maps: how the points of one index space name the elements of a
 * value, through reshapes, transposes, slices and repeats. Pure index arithmetic. */
#include "codegen/internal.h"

void space_init(struct space *sp, int64_t count) {
    *sp = (struct space){.count = count};
    if (count != 1) sp->n = 1, sp->ext[0] = count;
}

void space_from_dims(struct space *sp, const int64_t *dims, int rank) {
    *sp = (struct space){.count = 1};
    for (int i = 0; i < rank; i++) {
        sp->count *= dims[i];
        if (dims[i] != 1) sp->ext[sp->n++] = dims[i];
    }
}

bool space_split(struct space *sp, struct split s) {
    if (sp->n >= RANK_MAX || s.axis < 0 || s.axis >= sp->n) return false;
    int64_t e = sp->ext[s.axis];
    if (s.inner <= 1 || s.inner >= e || e % s.inner != 0) return false;
    for (int k = sp->n; k > s.axis + 1; k--)
        sp->ext[k] = sp->ext[k - 1], sp->row[k] = sp->row[k - 1], sp->part[k] = sp->part[k - 1];
    sp->n++;
    sp->ext[s.axis] = e / s.inner;
    sp->ext[s.axis + 1] = s.inner;
    sp->row[s.axis + 1] = sp->row[s.axis];
    sp->part[s.axis + 1] = sp->part[s.axis];
    return true;
}

int64_t space_rows(const struct space *sp) {
    int64_t n = 1;
    for (int k = 0; k < sp->n; k++)
        if (!sp->row[k]) n *= sp->ext[k];
    return n;
}

int64_t space_parts(const struct space *sp) {
    int64_t n = 1;
    for (int k = 0; k < sp->n; k++)
        if (!sp->part[k]) n *= sp->ext[k];
    return sp->has_part ? n : -1;
}

bool space_nest(struct space *sp, const bool *row, const bool *part) {
    int64_t n = 1;
    bool behind = true, less = false;
    for (int k = sp->n - 1; k >= 0; k--) {
        if (part[k] && (!row[k] || !behind)) return false;
        if (part[k]) n *= sp->ext[k];
        if (!row[k] || part[k]) continue;
        behind = false;
        less |= sp->ext[k] > 1;
    }
    if (!less || n < PART_LENGTH_MIN || n > PART_LENGTH_MAX || (n & (n - 1)) != 0) return false;
    bool rows[RANK_MAX], parts[RANK_MAX];
    for (int k = 0; k < sp->n; k++) rows[k] = row[k], parts[k] = part[k];
    for (int k = 0; k < sp->n; k++) sp->row[k] = rows[k], sp->part[k] = parts[k];
    sp->has_row = sp->has_part = true;
    return true;
}

static bool same_axes(const bool *a, const bool *b, int n) {
    for (int k = 0; k < n; k++)
        if (a[k] != b[k]) return false;
    return true;
}

/* Rows and parts of both, whose axes are the same. */
static bool merge_rows(const struct space *x, const struct space *y, bool nest, struct space *out) {
    if (!x->has_row || !y->has_row) {
        *out = x->has_row ? *x : *y;
        return true;
    }
    if (same_axes(x->row, y->row, x->n)) {
        *out = x->has_part ? *x : *y;
        return !x->has_part || !y->has_part || same_axes(x->part, y->part, x->n);
    }
    const struct space *small = space_rows(x) > space_rows(y) ? x : y, *big = small == x ? y : x;
    *out = *big;
    if (!nest || small->has_part) return false;
    if (big->has_part) return same_axes(big->part, small->row, x->n);
    return space_nest(out, big->row, small->row);
}

/* Split `a` so that each axis boundary of `b` is one of `a`. */
static bool refine(struct space *a, const struct space *b) {
    int64_t cut = 1;
    for (int k = b->n - 1; k > 0; k--) {
        cut *= b->ext[k];
        int64_t inner = 1;
        for (int j = a->n - 1; j >= 0; inner *= a->ext[j], j--) {
            if (inner * a->ext[j] <= cut) continue;
            if (inner == cut) break;
            if (cut % inner != 0 || !space_split(a, (struct split){j, cut / inner})) return false;
            break;
        }
    }
    return true;
}

bool space_merge(const struct space *a, const struct space *b, bool nest, struct space *out) {
    if (a->count != b->count) return false;
    struct space x = *a, y = *b;
    if (a->count > 1 && (!refine(&x, &y) || !refine(&y, &x) || x.n != y.n)) return false;
    return merge_rows(&x, &y, nest, out);
}

void dims_strides(const int64_t *dims, int rank, int64_t *strides) {
    int64_t s = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = s;
        s *= dims[i];
    }
}

static struct map_to partial_map(const struct space *sp, bool rows, bool cols) {
    struct map_to m = {0};
    int64_t s = 1;
    for (int k = sp->n - 1; k >= 0; k--) {
        if (!(sp->row[k] ? cols : rows)) continue;
        m.s[k] = s;
        s *= sp->ext[k];
    }
    return m;
}

struct map_to space_identity(const struct space *sp) {
    return partial_map(sp, true, true);
}

struct map_to space_row_map(const struct space *sp) {
    return partial_map(sp, true, false);
}

struct map_to space_part_map(const struct space *sp) {
    struct map_to m = {0};
    int64_t s = 1;
    for (int k = sp->n - 1; k >= 0; k--) {
        if (sp->part[k]) continue;
        m.s[k] = s;
        s *= sp->ext[k];
    }
    return m;
}

struct map_to space_col_map(const struct space *sp) {
    return partial_map(sp, false, true);
}

bool map_equal(const struct space *sp, const struct map_to *a, const struct map_to *b) {
    if (a->off != b->off) return false;
    for (int k = 0; k < sp->n; k++)
        if (a->s[k] != b->s[k]) return false;
    return true;
}

/* Digits of the map in the mixed radix of dims: axis k steps coef[k] along dim_of[k]; digit[d] is
 * where the offset lies. Exact only when no sum of steps carries into the next dim, which is
 * checked. */
static enum fit digits(const struct space *sp, const struct map_to *m, const int64_t *dims,
                       int rank, int *dim_of, int64_t *coef, int64_t *digit, struct split *want) {
    int64_t trail[RANK_MAX], low[RANK_MAX], high[RANK_MAX];
    dims_strides(dims, rank, trail);
    int64_t rest = m->off;
    for (int d = 0; d < rank; d++) {
        digit[d] = trail[d] > 0 ? rest / trail[d] : 0;
        rest -= digit[d] * trail[d];
        low[d] = high[d] = digit[d];
    }
    for (int k = 0; k < sp->n; k++) {
        dim_of[k] = -1, coef[k] = 0;
        int64_t s = m->s[k], size = s < 0 ? -s : s;
        if (s == 0) continue;
        int d = 0;
        while (d < rank && (dims[d] == 1 || trail[d] > size)) d++;
        if (d == rank || s % trail[d] != 0) return FIT_NO;
        int64_t c = s / trail[d], step = size / trail[d];
        int64_t reach = c * (sp->ext[k] - 1);
        if (step * (sp->ext[k] - 1) >= dims[d]) {
            if (dims[d] % step != 0) return FIT_NO;
            *want = (struct split){k, dims[d] / step};
            int64_t e = sp->ext[k];
            return want->inner > 1 && want->inner < e && e % want->inner == 0 ? FIT_SPLIT : FIT_NO;
        }
        if (reach < 0)
            low[d] += reach;
        else
            high[d] += reach;
        dim_of[k] = d, coef[k] = c;
    }
    for (int d = 0; d < rank; d++)
        if (low[d] < 0 || (dims[d] > 0 && high[d] >= dims[d])) return FIT_NO;
    return FIT_OK;
}

enum fit space_dims(const struct space *sp, const struct map_to *m, const int64_t *dims, int rank,
                    int dim_of[RANK_MAX], struct split *want) {
    int64_t coef[RANK_MAX], digit[RANK_MAX];
    return digits(sp, m, dims, rank, dim_of, coef, digit, want);
}

enum fit space_remap(const struct space *sp, const struct map_to *m, const int64_t *dims, int rank,
                     const int64_t *strides, int64_t base, struct map_to *out, struct split *want) {
    int64_t trail[RANK_MAX], coef[RANK_MAX], digit[RANK_MAX];
    int dim_of[RANK_MAX];
    bool same = true;
    dims_strides(dims, rank, trail);
    for (int d = 0; d < rank; d++) same &= dims[d] == 1 || strides[d] == trail[d];
    if (same) {
        struct map_to r = *m;
        r.off += base;
        *out = r;
        return FIT_OK;
    }
    enum fit f = digits(sp, m, dims, rank, dim_of, coef, digit, want);
    if (f != FIT_OK) return f;
    struct map_to r = {.off = base};
    for (int d = 0; d < rank; d++) r.off += digit[d] * strides[d];
    for (int k = 0; k < sp->n; k++)
        if (dim_of[k] >= 0) r.s[k] = coef[k] * strides[dim_of[k]];
    *out = r;
    return FIT_OK;
}
