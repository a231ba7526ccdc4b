// SPDX-License-Identifier: Apache-2.0
/* overwrite.c - results that take the place of what they are made from inside a buffer that is kept
 * for its other parts: rotated queries and keys lie where the queries and keys of the joined
 * product lay, and the values stay beside them. Only where attention alone reads the result: it
 * takes any rows. What dies as a whole is shared by inplace.c. */
#include "codegen/internal.h"

enum { PARTS = 4, AXES = RANK_MAX + 1 };

struct part {
    uint32_t out, in; /* result and operand of the launch */
};
/* The result's buffer as axes, outermost first: where an element lies there, and where instead. */
struct move {
    uint32_t launch;
    buf_id from, to;
    struct part parts[PARTS];
    uint32_t nparts;
    struct axis {
        int64_t ext, from, to;
    } axes[AXES];
    int naxes;
    int64_t offset; /* of the first element in `to` */
};

/* ---- views --------------------------------------------------------------------------------- */
/* Elements of v modulo `period` are lo .. hi; false when they wrap. */
static bool window(const struct plan_view *v, int64_t period, int64_t *lo, int64_t *hi) {
    *lo = *hi = v->offset % period;
    for (int d = 0; d < v->rank; d++) {
        if (v->dims[d] == 1) continue;
        if (v->strides[d] < 0) return false;
        if (v->strides[d] % period) *hi += (v->dims[d] - 1) * v->strides[d];
    }
    return *hi < period;
}

static bool apart_modulo(const struct plan_view *a, const struct plan_view *b, int64_t period) {
    int64_t alo, ahi, blo, bhi;
    return window(a, period, &alo, &ahi) && window(b, period, &blo, &bhi) &&
           (ahi < blo || bhi < alo);
}

/* No element is in both: shown by intervals, or by intervals within rows of a stride of either. */
static bool apart(const struct plan_view *a, const struct plan_view *b) {
    if (view_count(a) == 0 || view_count(b) == 0) return true;
    if (dtype_size(a->dtype) != dtype_size(b->dtype)) return false;
    if (apart_modulo(a, b, INT64_MAX)) return true;
    for (int d = 0; d < a->rank + b->rank; d++) {
        int64_t s = d < a->rank ? a->strides[d] : b->strides[d - a->rank];
        if (s > 1 && apart_modulo(a, b, s)) return true;
    }
    return false;
}

static bool same_sizes(const struct plan_view *a, const struct plan_view *b) {
    bool same = a->rank == b->rank && a->dtype == b->dtype;
    for (int d = 0; same && d < a->rank; d++) same = a->dims[d] == b->dims[d];
    return same;
}

/* In pieces of 16 bytes, as GPUs like to read. */
static bool in_pieces(const struct plan_view *v) {
    int64_t size = (int64_t)dtype_size(v->dtype);
    bool ok = v->offset * size % 16 == 0;
    for (int d = 0; d < v->rank; d++)
        ok &= v->dims[d] == 1 || v->strides[d] == 1 || v->strides[d] * size % 16 == 0;
    return ok;
}

/* ---- what lies where ------------------------------------------------------------------------- */
/* The slot is loaded once, and before the result is stored. */
static bool loaded_before(const struct plan_group *g, const struct part *x) {
    uint32_t loads = 0, at = 0, stored = 0;
    for (uint32_t k = 0; k < g->code.n; k++) {
        const struct group_instr *i = &g->code.at[k];
        if (i->code == INSTR_LOAD && i->slot == (int32_t)x->in) loads++, at = k;
        if (instr_is_column(i->code) && i->slot == (int32_t)x->out) return false;
        if (i->code == INSTR_STORE && i->slot == (int32_t)x->out) stored = k;
    }
    return loads == 1 && at < stored;
}

static void sort_parts(const struct plan_launch *l, struct move *m) {
    for (uint32_t k = 1; k < m->nparts; k++)
        for (uint32_t j = k; j > 0; j--) {
            struct part *x = &m->parts[j - 1], *y = &m->parts[j], t = *x;
            if (l->out[y->out].offset < l->out[x->out].offset) x->out = y->out, y->out = t.out;
            if (l->in[y->in].offset < l->in[x->in].offset) x->in = y->in, y->in = t.in;
        }
}

/* All results in `from`, and as many operands of their sizes in `to`, in the order of offsets. */
static bool find_parts(const struct plan *p, struct move *m) {
    const struct plan_launch *l = &p->launches.at[m->launch];
    uint32_t results = 0, operands = 0, first = l->nout;
    for (uint32_t j = 0; j < l->nout; j++) {
        if (l->out[j].buffer.i != m->from.i) continue;
        if (results == PARTS) return false;
        if (results == 0) first = j;
        if (!same_sizes(&l->out[first], &l->out[j])) return false;
        m->parts[results++].out = j;
    }
    for (uint32_t i = 0; i < l->nin; i++) {
        if (l->in[i].buffer.i != m->to.i || !same_sizes(&l->in[i], &l->out[first])) continue;
        if (operands == results) return false;
        m->parts[operands++].in = i;
    }
    m->nparts = results;
    if (operands != results) return false;
    sort_parts(l, m);
    for (uint32_t k = 0; k < m->nparts; k++)
        if (!loaded_before(&p->groups.at[l->group.i], &m->parts[k])) return false;
    return true;
}

static bool add_axis(struct move *m, int64_t ext, int64_t from, int64_t to) {
    int k = m->naxes++;
    if (from <= 0 || to <= 0 || k == AXES) return false;
    for (; k > 0 && m->axes[k - 1].from < from; k--) m->axes[k] = m->axes[k - 1];
    m->axes[k].ext = ext, m->axes[k].from = from, m->axes[k].to = to;
    return true;
}

/* The parts lie at equal distances, with the same strides. */
static bool find_axes(const struct plan *p, struct move *m) {
    const struct plan_launch *l = &p->launches.at[m->launch];
    const struct plan_view *out = &l->out[m->parts[0].out], *in = &l->in[m->parts[0].in];
    m->offset = in->offset;
    if (out->offset != 0) return false;
    for (int d = 0; d < out->rank; d++)
        if (out->dims[d] > 1 && !add_axis(m, out->dims[d], out->strides[d], in->strides[d]))
            return false;
    int64_t from = 0, to = 0;
    for (uint32_t k = 1; k < m->nparts; k++) {
        const struct plan_view *o = &l->out[m->parts[k].out], *i = &l->in[m->parts[k].in];
        if (k == 1) from = o->offset, to = i->offset - in->offset;
        if (o->offset != k * from || i->offset - in->offset != k * to) return false;
        for (int d = 0; d < o->rank; d++)
            if (o->dims[d] > 1 &&
                (o->strides[d] != out->strides[d] || i->strides[d] != in->strides[d]))
                return false;
    }
    return m->nparts == 1 || add_axis(m, m->nparts, from, to);
}

/* The axes number the elements of `from` without gaps, and no two of them meet in `to`. */
static bool one_to_one(const struct plan *p, const struct move *m) {
    int64_t next = 1, size = (int64_t)dtype_size(p->buffers.at[m->from.i].type.dtype);
    for (int k = m->naxes; k-- > 0;) {
        int64_t reach = 0;
        if (m->axes[k].from != next) return false;
        next *= m->axes[k].ext;
        for (int j = 0; j < m->naxes; j++) {
            bool inside = m->axes[j].to < m->axes[k].to;
            if (j != k && m->axes[j].to == m->axes[k].to) return false;
            if (inside) reach += (m->axes[j].ext - 1) * m->axes[j].to;
        }
        if (reach >= m->axes[k].to) return false;
    }
    return m->naxes > 0 && next * size == p->buffers.at[m->from.i].bytes;
}

/* Neighbours that are rows of each other in both places become one. */
static void merge_axes(struct move *m) {
    int n = 0;
    for (int k = 0; k < m->naxes; k++) {
        struct axis x = m->axes[k], *last = &m->axes[n - (n > 0)];
        if (n > 0 && last->to == x.to * x.ext)
            last->ext *= x.ext, last->from = x.from, last->to = x.to;
        else
            m->axes[n++] = x;
    }
    m->naxes = n;
}

/* View v of `from` as a view of `to`. */
static bool moved_view(const struct move *m, const struct plan_view *v, struct plan_view *out) {
    int64_t last[AXES], rest = v->offset; /* by axis: the largest index that v reaches */
    struct plan_view r = *v;
    r.buffer = m->to, r.offset = m->offset;
    for (int k = 0; k < m->naxes; k++) {
        last[k] = rest / m->axes[k].from;
        rest %= m->axes[k].from;
        r.offset += last[k] * m->axes[k].to;
    }
    for (int d = v->rank - 1; d >= 0; d--) {
        int64_t s = v->strides[d];
        if (v->dims[d] == 1) {
            r.strides[d] = d + 1 < v->rank ? r.strides[d + 1] * r.dims[d + 1] : 1;
            continue;
        }
        int k = 0;
        while (k < m->naxes && m->axes[k].from > s) k++;
        if (s < 0 || (s > 0 && (k == m->naxes || s % m->axes[k].from))) return false;
        if (s == 0) continue;
        r.strides[d] = s / m->axes[k].from * m->axes[k].to;
        last[k] += (v->dims[d] - 1) * (s / m->axes[k].from);
    }
    for (int k = 0; k < m->naxes; k++)
        if (last[k] >= m->axes[k].ext) return false;
    *out = r;
    return true;
}

/* ---- who else reads -------------------------------------------------------------------------- */
static bool any_rows(const struct plan_launch *l, uint32_t operand) {
    return (l->kind == LAUNCH_attention || l->kind == LAUNCH_attention_grad) && operand < 3;
}

static bool is_part(const struct move *m, uint32_t launch, uint32_t operand) {
    for (uint32_t k = 0; k < m->nparts; k++)
        if (launch == m->launch && m->parts[k].in == operand) return true;
    return false;
}

/* Operand j of launch k still finds what it reads. */
static bool reader_ok(const struct plan *p, const struct move *m, uint32_t k, uint32_t j) {
    const struct plan_launch *l = &p->launches.at[k], *at = &p->launches.at[m->launch];
    const struct plan_view *v = &l->in[j];
    struct plan_view w;
    if (v->buffer.i == m->from.i)
        return any_rows(l, j) && moved_view(m, v, &w) && view_last_ok(&w) &&
               (in_pieces(&w) || !in_pieces(v));
    if (v->buffer.i != m->to.i || k < m->launch) return true;
    for (uint32_t i = 0; i < m->nparts; i++)
        if (!(is_part(m, k, j) && m->parts[i].in == j) && !apart(v, &at->in[m->parts[i].in]))
            return false;
    return true;
}

static bool others_ok(const struct plan *p, const struct move *m) {
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nout; j++) {
            if (k != m->launch && l->out[j].buffer.i == m->from.i) return false;
            if (k >= m->launch && l->out[j].buffer.i == m->to.i) return false;
        }
        for (uint32_t j = 0; j < l->nin; j++)
            if (!reader_ok(p, m, k, j)) return false;
    }
    return true;
}

/* ---- moving ---------------------------------------------------------------------------------- */
static void apply(struct plan *p, const struct move *m) {
    struct plan_launch *at = &p->launches.at[m->launch];
    for (uint32_t k = 0; k < m->nparts; k++) at->out[m->parts[k].out] = at->in[m->parts[k].in];
    for (uint32_t k = 0; k < p->launches.n; k++) {
        struct plan_launch *l = &p->launches.at[k];
        for (uint32_t j = 0; j < l->nin; j++)
            if (l->in[j].buffer.i == m->from.i) (void)moved_view(m, &l->in[j], &l->in[j]);
    }
}

static bool try_move(struct plan *p, uint32_t launch, buf_id from, buf_id to) {
    const struct plan_buffer *x = &p->buffers.at[from.i], *y = &p->buffers.at[to.i];
    struct move m = {.launch = launch, .from = from, .to = to};
    if (x->kind != BUF_TEMP || y->kind != BUF_TEMP || from.i == to.i) return false;
    if (x->first != launch || x->last == launch || y->last <= launch) return false;
    if (!find_parts(p, &m) || !find_axes(p, &m) || !one_to_one(p, &m)) return false;
    merge_axes(&m);
    if (!others_ok(p, &m)) return false;
    apply(p, &m);
    return true;
}

void overwrite_parts(struct cg *c) {
    struct plan *p = c->p;
    bool found = false;
    for (uint32_t k = 0; k < p->launches.n; k++) {
        const struct plan_launch *l = &p->launches.at[k];
        if (l->kind != LAUNCH_group || p->groups.at[l->group.i].mode != GROUP_MAP) continue;
        for (uint32_t j = 0; j < l->nout; j++) {
            bool moved = false;
            for (uint32_t i = 0; i < l->nin && !moved; i++)
                moved = try_move(p, k, l->out[j].buffer, l->in[i].buffer);
            found |= moved;
        }
    }
    if (!found) return;
    drop_unused(c, NULL, 0);
    find_lifetimes(p);
}
