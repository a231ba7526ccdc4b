// SPDX-License-Identifier: Apache-2.0
/* groups.c - from judged constants to parameters: one constant that the exporter merged becomes
 * several, a folded broadcast becomes its small original, every parameter gets the name that users
 * know it by, and the graph its source nodes. */
#include "frontend/importer.h"
#include <regex.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------- */
static bool name_taken(struct importer *im, const char *name) {
    for (uint32_t i = 0; i < im->params.n; i++)
        if (strcmp(im->params.at[i].name, name) == 0) return true;
    return false;
}

static const char *unique_name(struct importer *im, const char *want) {
    const char *name = want;
    for (int i = 1; name_taken(im, name); i++) name = arena_printf(im->a, "%s.%d", want, i);
    return name;
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* What a use holds, also where the op does not say: PyTorch adds biases and multiplies scales. */
static const char *loose_role(const struct inode *n) {
    return strcmp(n->op, "Add") == 0 ? "bias" : strcmp(n->op, "Mul") == 0 ? "scale" : "weight";
}

/* The parameter that the exporter's record names for this use, or NULL. */
static const char *recorded_name(struct importer *im, const struct inode *n, int slot) {
    enum { MAX = 8 };
    const char *all[MAX], *found = NULL, *role = slot_role(n, slot);
    int count = record_params(im, n, all, MAX), hits = 0;
    bool bias = strcmp(role ? role : loose_role(n), "bias") == 0;
    for (int i = 0; i < count; i++)
        if (ends_with(all[i], "bias") == bias) {
            found = all[i];
            hits++;
        }
    if (hits == 1) return found;
    return count == 1 && !role ? all[0] : NULL;
}

static const char *derived_name(struct importer *im, const struct wuse *u) {
    const char *role = slot_role(u->n, u->slot);
    return arena_printf(im->a, "%s.%s", u->n->origin, role ? role : loose_role(u->n));
}

/* ---- grouping ------------------------------------------------------------------------------ */
static bool same_use(struct onnx_use a, struct onnx_use b) {
    return a.node == b.node && a.slot == b.slot;
}

/* The legacy exporter marks every merged parameter by an Identity, so that what its files read
 * directly is one parameter. */
static bool marks_merged(const struct weight *w) {
    for (uint32_t i = 0; i < w->uses.n; i++)
        if (w->uses.at[i].alias) return true;
    return false;
}

static bool may_untie(const struct weight *w) {
    double x;
    if (w->verdict != W_TRAINED && w->verdict != W_STATE) return false;
    if (w->uses.n < 2 || w->captured || w->inner || w->tied || w->own) return false;
    if (!weight_uniform(&w->t, &x)) return false;
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct wuse *u = &w->uses.at[i];
        if (u->file.node == NODE_INNER) return false;
        /* A shared embedding and head is tied on purpose, even when all zero. */
        if (w->t.type.rank >= 2 && strcmp(u->n->op, "Gather") == 0) return false;
    }
    return true;
}

/* Distinct parameters among the uses; sets wuse.group and the groups' names. */
static void group_uses(struct importer *im, struct weight *w) {
    bool marked = marks_merged(w);
    VEC(const char *) keys = {0}; /* of each group: the recorded name, or NULL */
    for (uint32_t i = 0; i < w->uses.n; i++) {
        struct wuse *u = &w->uses.at[i];
        const char *name = u->alias;
        bool direct = marked && !name;
        if (!name && !direct) name = recorded_name(im, u->n, u->slot);
        if (direct) name = w->t.name;
        uint32_t g = w->groups.n;
        for (uint32_t k = 0; k < i && g == w->groups.n; k++)
            if (same_use(w->uses.at[k].file, u->file)) g = w->uses.at[k].group;
        for (uint32_t k = 0; k < w->groups.n && g == w->groups.n; k++)
            if (name && keys.at[k] && strcmp(keys.at[k], name) == 0) g = k;
        u->group = g;
        if (g < w->groups.n) continue;
        struct wgroup fresh = {.name = name};
        vec_push(im->a, &w->groups, fresh);
        vec_push(im->a, &keys, name);
    }
    /* One of them keeps the initializer's name. */
    bool kept = false;
    for (uint32_t i = 0; i < w->groups.n; i++)
        kept |= w->groups.at[i].name && strcmp(w->groups.at[i].name, w->t.name) == 0;
    for (uint32_t i = 0; i < w->groups.n; i++) {
        struct wgroup *g = &w->groups.at[i];
        if (g->name) continue;
        uint32_t k = 0;
        while (w->uses.at[k].group != i) k++;
        g->name = kept ? derived_name(im, &w->uses.at[k]) : w->t.name;
        kept = true;
    }
}

static void build_groups(struct importer *im, struct weight *w) {
    if (may_untie(w)) group_uses(im, w);
    w->untie = w->groups.n > 1;
    if (w->untie) return;
    w->groups.n = 0;
    for (uint32_t i = 0; i < w->uses.n; i++) w->uses.at[i].group = 0;
    /* Read through one Identity only: that is its name, the stored one being ours (export.c). */
    const char *name = w->uses.n && w->uses.at[0].alias ? w->uses.at[0].alias : w->t.name;
    for (uint32_t i = 0; i < w->uses.n; i++)
        if (!w->uses.at[i].alias || strcmp(w->uses.at[i].alias, name) != 0) name = w->t.name;
    if (w->own) name = w->t.name;
    vec_push(im->a, &w->groups, (struct wgroup){.name = name});
}

/* ---- folded broadcasts --------------------------------------------------------------------- */
/* `expand` of a parameter, computed by the exporter: leading axes whose slices are all equal. */
static void undo_broadcast(struct importer *im, struct weight *w) {
    double x;
    struct type t = w->t.type;
    if (w->verdict != W_TRAINED || w->untie || w->tied || w->own || t.rank < 2 || w->uses.n == 0)
        return;
    if (record_of(im, w->t.name) == REC_PARAM) return;
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const char *op = w->uses.at[i].n->op;
        bool fits = strcmp(op, "Concat") == 0 || strcmp(op, "Add") == 0 || strcmp(op, "Sum") == 0 ||
                    (strcmp(op, "Mul") == 0 && t.rank > 2 && dim_same(t.dims[0], im->batch));
        if (!fits) return;
    }
    bool uniform = weight_uniform(&w->t, &x);
    for (int i = 0; i < t.rank - 1; i++) {
        if (t.dims[i] == 1) continue;
        if (uniform && (i > 0 || t.rank < 3 || !dim_same(t.dims[0], im->batch))) break;
        if (!weight_repeats(&w->t, i)) break;
        w->type.dims[i] = 1;
    }
}

/* ---- source nodes and the report ----------------------------------------------------------- */
static const char *role_of(const struct weight *w, const struct wuse *u) {
    const char *role = slot_role(u->n, u->slot);
    if (role) return role;
    return w->t.type.rank == 1 ? loose_role(u->n) : "operand";
}

static const char *uses_text(struct importer *im, const struct weight *w, uint32_t group) {
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct wuse *u = &w->uses.at[i];
        if (u->group != group) continue;
        return arena_printf(im->a, "%s of %s '%s'", role_of(w, u), u->n->op, u->n->origin);
    }
    return "read inside a subgraph";
}

static const char *tied_note(struct importer *im, const struct weight *w) {
    uint32_t index = (uint32_t)(w - im->weights.at) + 1;
    const struct inode *table = NULL, *other = NULL;
    for (uint32_t i = 0; i < im->weights.n; i++)
        if (im->weights.at[i].tied == index)
            return arena_printf(im->a, "tied: stored again%s as '%s'",
                                im->weights.at[i].tied_transposed ? ", transposed," : "",
                                im->weights.at[i].t.name);
    for (uint32_t i = 0; i < w->uses.n; i++) {
        if (strcmp(w->uses.at[i].n->op, "Gather") == 0)
            table = w->uses.at[i].n;
        else
            other = w->uses.at[i].n;
    }
    if (table && other)
        return arena_printf(im->a, "tied: also read by %s '%s'", other->op, other->origin);
    if (w->uses.n > 1 && !w->untie && !w->own && w->verdict == W_TRAINED)
        return arena_printf(im->a, "shared by %u nodes", (unsigned)w->uses.n);
    return "";
}

static const char *note_of(struct importer *im, const struct weight *w) {
    if (w->untie)
        return arena_printf(im->a, "one of %u merged by the exporter into '%s'",
                            (unsigned)w->groups.n, w->t.name);
    if (!type_equal(&w->type, &w->t.type)) {
        struct buf b;
        buf_init(&b, im->a);
        type_print(im->g->dims, &w->t.type, &b);
        return arena_printf(im->a, "stored broadcast to %s", b.at);
    }
    const char *tied = tied_note(im, w), *name = NULL;
    if (tied[0] || w->uses.n == 0 || w->verdict != W_TRAINED) return tied;
    if (record_of(im, w->t.name) == REC_NONE)
        name = recorded_name(im, w->uses.at[0].n, w->uses.at[0].slot);
    return name ? arena_printf(im->a, "PyTorch's '%s'", name) : "";
}

static void list_twins(struct importer *im, const struct weight *w, struct import_param *p) {
    uint32_t index = (uint32_t)(w - im->weights.at) + 1;
    uint32_t count = 0;
    for (uint32_t i = 0; i < im->weights.n; i++) count += im->weights.at[i].tied == index;
    if (count == 0) return;
    struct import_twin *twins = ARENA_ARRAY(im->a, struct import_twin, count);
    for (uint32_t i = 0; i < im->weights.n; i++)
        if (im->weights.at[i].tied == index)
            twins[p->ntwins++] =
                (struct import_twin){im->weights.at[i].t.name, im->weights.at[i].tied_transposed};
    p->twins = twins;
}

/* A name for a new initializer: an Identity may have used the parameter's for its result. */
static const char *unused_name(struct importer *im, const char *want) {
    const char *name = want;
    for (int i = 1;; i++) {
        bool used = false;
        for (uint32_t v = 1; v < im->values.n && !used; v++)
            used = strcmp(im->values.at[v].name, name) == 0;
        for (uint32_t k = 0; k < im->params.n && !used; k++)
            used = strcmp(im->params.at[k].initializer, name) == 0;
        if (!used) return name;
        name = arena_printf(im->a, "%s.own%s", want, i > 1 ? arena_printf(im->a, "%d", i) : "");
    }
}

static void list_param(struct importer *im, const struct weight *w, uint32_t group,
                       const char *name, const char *decision, const char *why) {
    struct import_param p = {.name = name,
                             .initializer = w->t.name,
                             .decision = decision,
                             .why = why,
                             .note = note_of(im, w),
                             .type = w->type,
                             .stored = w->t.type,
                             .data = w->t.data,
                             .read_only = w->inner};
    list_twins(im, w, &p);
    if (w->untie && strcmp(name, w->t.name) != 0) {
        struct onnx_use *uses = ARENA_ARRAY(im->a, struct onnx_use, w->uses.n);
        for (uint32_t i = 0; i < w->uses.n; i++) {
            if (w->uses.at[i].group != group) continue;
            bool again = false;
            for (uint32_t k = 0; k < p.nuses; k++) again |= same_use(uses[k], w->uses.at[i].file);
            if (!again) uses[p.nuses++] = w->uses.at[i].file;
        }
        p.uses = uses;
        p.initializer = unused_name(im, name);
    }
    vec_push(im->a, &im->params, p);
}

static enum status source_node(struct importer *im, struct weight *w, struct wgroup *g, bool stat,
                               bool frozen, const char *why) {
    int64_t bytes = type_bytes(&w->type);
    blob_id blob = graph_blob(im->g, w->t.data, (size_t)bytes, false);
    struct attr state[3] = {{.key = ATTR_name, .s = g->name},
                            {.key = ATTR_role, .s = "stat"},
                            {.key = ATTR_init, .blob = blob}};
    struct attr param[4] = {{.key = ATTR_name, .s = g->name},
                            {.key = ATTR_init, .blob = blob},
                            {.key = ATTR_frozen, .i = frozen},
                            {.key = ATTR_why, .s = why}};
    TRY(graph_try_source(im->g, stat ? OP_state : OP_param, &w->type, stat ? state : param,
                         stat ? 3 : 4, "", &g->param));
    graph_set_name(im->g, g->param, g->name);
    return ST_OK;
}

struct regexes {
    regex_t train, freeze;
    bool trains, freezes;
};

static bool matches(bool have, const regex_t *r, const char *name) {
    return have && regexec(r, name, 0, NULL, 0) == 0;
}

/* A fresh model's running means are zeros like its biases, and may be merged with them. */
static bool is_statistic(const struct weight *w, uint32_t group) {
    bool any = false;
    for (uint32_t i = 0; i < w->uses.n; i++) {
        const struct wuse *u = &w->uses.at[i];
        if (u->group != group) continue;
        if (strcmp(u->n->op, "BatchNormalization") != 0 || u->slot < 3) return false;
        any = true;
    }
    return any && w->untie;
}

/* The user's word overrules the rules; a verdict may change, a reason always says why. */
static enum status make_group(struct importer *im, struct weight *w, uint32_t i,
                              const struct regexes *r) {
    struct wgroup *g = &w->groups.at[i];
    g->name = unique_name(im, g->name);
    if (w->verdict == W_STATE || is_statistic(w, i)) {
        const char *what = w->verdict == W_STATE && w->why ? w->why : "running statistic";
        list_param(im, w, i, g->name, "state", what);
        return source_node(im, w, g, true, false, what);
    }
    bool frozen = w->verdict == W_FROZEN, asked = false;
    const char *why = w->why ? w->why : uses_text(im, w, i);
    if (frozen && matches(r->trains, &r->train, g->name)) {
        frozen = false;
        asked = true;
        why = "asked for by --train";
    }
    if (!frozen && matches(r->freezes, &r->freeze, g->name)) {
        frozen = asked = true;
        why = "asked for by --freeze";
    }
    list_param(im, w, i, g->name, frozen ? "frozen" : "trained", why);
    if (frozen && !asked) return ST_OK; /* a plain constant to the passes */
    w->forced = asked;
    return source_node(im, w, g, false, frozen, why);
}

/* Small constants and those that gradients do not reach are not listed, unless asked for. */
static bool wanted(struct weight *w, const struct regexes *r) {
    if (w->verdict != W_CONST) return !w->tied;
    if (w->bound || !dtype_is_float(w->t.type.dtype) || w->uses.n == 0) return false;
    if (!matches(r->trains, &r->train, w->t.name)) return false;
    w->verdict = W_FROZEN;
    return true;
}

static enum status build_all(struct importer *im, const struct regexes *r) {
    for (uint32_t i = 0; i < im->weights.n; i++) {
        struct weight *w = &im->weights.at[i];
        if (!wanted(w, r)) continue;
        if (w->next && w->verdict == W_STATE) {
            TRY(own_step_state(im, w));
            continue;
        }
        undo_broadcast(im, w);
        build_groups(im, w);
        for (uint32_t k = 0; k < w->groups.n; k++) TRY(make_group(im, w, k, r));
    }
    return ST_OK;
}

static enum status compile_regex(struct importer *im, const char *text, regex_t *out, bool *have,
                                 const char *option) {
    char message[128];
    *have = false;
    if (!text) return ST_OK;
    int e = regcomp(out, text, REG_EXTENDED | REG_NOSUB);
    if (e != 0) {
        regerror(e, out, message, sizeof message);
        return diag_error(im->ctx, ST_USAGE, "", "%s '%s' is no regular expression: %s", option,
                          text, message);
    }
    *have = true;
    return ST_OK;
}

enum status groups_build(struct importer *im) {
    struct regexes r = {.trains = false};
    enum status st = compile_regex(im, im->o->train_regex, &r.train, &r.trains, "--train");
    if (st == ST_OK) st = compile_regex(im, im->o->freeze_regex, &r.freeze, &r.freezes, "--freeze");
    if (st == ST_OK) st = build_all(im, &r);
    if (r.trains) regfree(&r.train);
    if (r.freezes) regfree(&r.freeze);
    return st;
}

/* ---- reading -------------------------------------------------------------------------------- */
static val_id group_value(struct importer *im, const struct weight *w, struct wgroup *g) {
    if (g->val.i == 0) g->val = expand(im, g->param, w->t.type.dims, w->t.type.rank);
    return g->val;
}

val_id weight_read(struct importer *im, struct weight *w, struct onnx_use at) {
    enum { COPY_MAX = 4096 };
    if (failed(im)) return VAL_NONE;
    if (w->tied) {
        struct weight *base = &im->weights.at[w->tied - 1];
        if (w->konst.i == 0) {
            w->konst = group_value(im, base, &base->groups.at[0]);
            if (w->tied_transposed) w->konst = swap_axes(im, w->konst, 0, 1);
        }
        return w->konst;
    }
    bool source = w->groups.n > 0 && w->groups.at[0].param.i != 0;
    if (!source) {
        if (w->konst.i) return w->konst;
        w->konst = constant(im, &w->t.type, w->t.data, type_bytes(&w->t.type) <= COPY_MAX);
        if (w->konst.i && w->t.name[0]) graph_set_name(im->g, w->konst, w->t.name);
        return w->konst;
    }
    struct wgroup *g = &w->groups.at[0];
    for (uint32_t i = 0; w->untie && i < w->uses.n; i++)
        if (same_use(w->uses.at[i].file, at)) g = &w->groups.at[w->uses.at[i].group];
    return group_value(im, w, g);
}

/* ---- biases that an optimizer took away ---------------------------------------------------- */
/* The exporter's optimizer drops a bias of all zeros and says so on the node; PyTorch trains it. */
val_id bias_restored(struct importer *im, const struct inode *n, dim size, enum dtype t) {
    const char *rule = node_metadata(n, "pkg.onnxscript.rewriter.rule_name");
    if (!rule || strncmp(rule, "RemoveOptionalBias", 18) != 0 || n->index == NODE_INNER)
        return VAL_NONE;
    const char *name = recorded_name(im, n, 2);
    if (!name || !dim_known(size) || failed(im)) return VAL_NONE;
    struct type bt = {t, 1, {size}};
    void *zeros = arena_array(im->a, (size_t)size, dtype_size(t));
    struct onnx_use *use = ARENA_NEW(im->a, struct onnx_use);
    *use = (struct onnx_use){n->index, 2};
    const char *why = arena_printf(im->a, "bias of %s '%s'", n->op, n->origin);
    bool frozen = false;
    regex_t r;
    bool have;
    im->st = compile_regex(im, im->o->freeze_regex, &r, &have, "--freeze");
    if (have) {
        frozen = matches(true, &r, name);
        regfree(&r);
    }
    name = unique_name(im, name);
    struct import_param p = {.name = name,
                             .initializer = unused_name(im, name),
                             .data = zeros,
                             .why = why,
                             .type = bt,
                             .stored = bt,
                             .decision = frozen ? "frozen" : "trained",
                             .uses = use,
                             .nuses = 1,
                             .note = "all zero, so the exporter removed it; trained as in PyTorch"};
    struct attr a[4] = {
        {.key = ATTR_name, .s = name},
        {.key = ATTR_init, .blob = graph_blob(im->g, zeros, (size_t)type_bytes(&bt), true)},
        {.key = ATTR_frozen, .i = frozen},
        {.key = ATTR_why, .s = why}};
    val_id v = VAL_NONE;
    if (!failed(im)) im->st = graph_try_source(im->g, OP_param, &bt, a, 4, n->origin, &v);
    if (failed(im)) return VAL_NONE;
    graph_set_name(im->g, v, name);
    vec_push(im->a, &im->params, p);
    return v;
}
