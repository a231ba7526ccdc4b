// SPDX-License-Identifier: Apache-2.0
/* lower_adam8.c - the launch of an optimizer step with small states. It reads the tables of range
 * expansion (base/expand.h) that the graph does not speak of: constants of the plan, one for all
 * launches that ask for the same. */
#include "base/expand.h"
#include "base/hash.h"
#include "codegen/internal.h"
#include <string.h>

static struct blob filled(struct cg *c, enum expand_format f, double range) {
    struct expand_table *t = ARENA_NEW(&c->p->arena, struct expand_table);
    expand_fill(t, f, range);
    return (struct blob){.data = t, .bytes = sizeof *t, .hash = hash_bytes(t, sizeof *t)};
}

/* A range of 0, of a state that is not expanded, is as good as any. */
static struct plan_view table_view(struct cg *c, enum dtype t, double range) {
    enum expand_format f = t == DT_e5m2 ? EXPAND_E5M2 : EXPAND_E4M3;
    if (range == 0.0) range = expand_default_range(f);
    const char *name =
        arena_printf(c->scratch, "expand.%s.%.17g", f == EXPAND_E5M2 ? "e5m2" : "e4m3", range);
    buf_id b = plan_find(c->p, BUF_CONST, name);
    if (!b.i) {
        struct type type = {.dtype = DT_f32, .rank = 1, .dims = {EXPAND_FLOATS}};
        b = buffer_add(c, BUF_CONST, USE_CONSTANTS, &type);
        struct plan_buffer *buffer = &c->p->buffers.at[b.i];
        buffer->name = intern(&c->p->strings, name);
        buffer->init = filled(c, f, range);
    }
    return buffer_view(c, b);
}

enum status launch_adam8(struct cg *c, node_id n) {
    enum { TABLES = 10 }; /* of m and v, behind the operands of the node */
    uint32_t before = c->p->launches.n;
    TRY(launch_node(c, n, LAUNCH_adam8));
    if (c->p->launches.n == before) return ST_OK;
    struct plan_launch *l = &c->p->launches.at[before];
    enum dtype m = l->in[2].dtype, v = l->in[5].dtype;
    double m_range = attr_float(c->g, n, ATTR_m_range), v_range = attr_float(c->g, n, ATTR_v_range);
    struct plan_view *in = ARENA_ARRAY(&c->p->arena, struct plan_view, l->nin + 2);
    memcpy(in, l->in, TABLES * sizeof *in);
    memcpy(in + TABLES + 2, l->in + TABLES, (l->nin - TABLES) * sizeof *in);
    in[TABLES] = m == DT_f32 ? table_view(c, v, v_range) : table_view(c, m, m_range);
    in[TABLES + 1] = v == DT_f32 ? in[TABLES] : table_view(c, v, v_range);
    l->in = in;
    l->nin += 2;
    return ST_OK;
}
