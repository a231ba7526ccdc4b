// SPDX-License-Identifier: Apache-2.0
/* cmd_graph.c - `lathe info`, `dump`, `opt`: looking at graphs and plans. */
#include "base/diag.h"
#include "codegen/codegen.h"
#include "driver/command.h"
#include "driver/forward.h"
#include "ir/export_dot.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- info ---------------------------------------------------------------------------------------
 */
int cmd_info(int argc, char **argv) {
    struct model_args m = MODEL_ARGS_INIT;
    const char *pos[1];
    bool json = false, verbose = false;
    // clang-format off
    const struct option_spec spec[] = {
        {"--json", OPTION_FLAG, &json, 0, 0, NULL, "for scripts"},
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "size of a symbolic first dimension"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", "size of a symbolic sequence dimension"},
        {"--train", OPTION_TEXT, &m.train, 0, 0, "REGEX", "also train parameters that would be frozen"},
        {"--freeze", OPTION_TEXT, &m.freeze, 0, 0, "REGEX", "keep parameters as they are"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("info"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    lathe_context *c = command_context(verbose, 1);
    if (!c) return 1;
    lathe_model_options o = model_options(&m);
    char *text = NULL;
    enum status st = (enum status)lathe_info(c, pos[0], &o, json, &text);
    if (text) fputs(text, stdout);
    lathe_text_free(c, text);
    lathe_context_destroy(c);
    return command_exit(st);
}

/* ---- dump ---------------------------------------------------------------------------------------
 */
struct dump {
    lathe_context *c;
    const char *path, *recipe, *after, *stage, *format, *out, *loss, *optimizer;
    int64_t arch;
    bool inference, locs, full, reference;
    lathe_model_options open;
    struct arena arena;
    lathe_model *model;
    struct graph *graph;
    struct plan *plan;
    int written;
    enum status failed;
};

static enum status write_text(struct dump *d, const char *path, const struct buf *b) {
    if (path) return sys_write_file(&d->c->ctx, path, b->at, b->n);
    if (fwrite(b->at, 1, b->n, stdout) == b->n) return ST_OK;
    return diag_error(&d->c->ctx, ST_IO, "", "standard output could not be written");
}

static void format_graph(struct dump *d, const struct graph *g, struct buf *b) {
    struct text_options t = {.no_locs = !d->locs, .full = d->full};
    if (strcmp(d->format, "dot") == 0)
        graph_print_dot(g, b);
    else if (strcmp(d->format, "html") == 0)
        graph_print_html(g, b);
    else if (strcmp(d->format, "json") == 0)
        graph_print_json(g, b);
    else
        graph_print(g, &t, b);
}

/* With --after all: one numbered file per pass in the directory -o. */
static void observe(void *user, const char *name, const struct graph *g, double seconds) {
    struct dump *d = user;
    (void)seconds;
    if (!d->after || strcmp(d->after, "all") != 0 || d->failed != ST_OK) return;
    struct arena scratch;
    arena_init(&scratch, &d->c->ctx);
    struct buf b;
    buf_init(&b, &scratch);
    format_graph(d, g, &b);
    const char *ext = strcmp(d->format, "text") == 0 ? "lir" : d->format;
    d->failed =
        write_text(d, arena_printf(&scratch, "%s/%02d-%s.%s", d->out, d->written++, name, ext), &b);
    arena_reset(&scratch);
}

static enum status dump_options(struct dump *d, struct train_options *t) {
    lathe_train_options o = LATHE_TRAIN_OPTIONS_INIT;
    o.loss = d->loss;
    o.optimizer = d->optimizer;
    o.recipe = d->recipe;
    TRY(session_train_options(d->c, &o, t));
    if (!d->open.data) return ST_OK;
    struct data_source src;
    TRY(data_open(&d->arena, d->open.data, d->open.map, d->open.nmap, &src));
    forward_label_hint(d->model->import.graph, &src, d->loss, &d->arena, t);
    return ST_OK;
}

/* Every kernel's generated headers, with the launches that use it. */
static void format_kernels(const struct plan *p, struct buf *b) {
    for (uint32_t k = 0; k < p->kernels.n; k++) {
        const struct plan_kernel *x = &p->kernels.at[k];
        uint32_t users = 0;
        buf_printf(b, "// ---- kernel %u: %s of %s, key 0x%016llx; launches", k,
                   interned(&p->strings, x->entry), interned(&p->strings, x->file),
                   (unsigned long long)x->key);
        for (uint32_t i = 0; i < p->launches.n; i++) {
            const struct plan_launch *l = &p->launches.at[i];
            bool uses = false;
            for (uint32_t c = 0; c < l->ncalls; c++)
                uses |= p->calls.at[l->first_call + c].kernel == k;
            if (!uses) continue;
            if (users++ < 8) buf_printf(b, "%s %u", users > 1 ? "," : "", i);
        }
        if (users > 8) buf_printf(b, ", .. (%u)", users);
        buf_printf(b, "\n// config.cuh\n%s", x->config);
        if (x->body[0]) buf_printf(b, "// body.cuh\n%s", x->body);
        buf_puts(b, "\n");
    }
}

static enum status dump_body(void *arg) {
    struct dump *d = arg;
    d->open.inference = d->inference;
    TRY((enum status)lathe_model_open(d->c, d->path, &d->open, &d->model));
    struct train_options t;
    TRY(dump_options(d, &t));
    bool all = d->after && strcmp(d->after, "all") == 0;
    if (all) TRY(sys_mkdirs(&d->c->ctx, d->out));
    struct recipe numbers;
    TRY(recipe_find(&d->c->ctx, &d->arena, d->recipe, &numbers));
    struct session_compile sc = {.training = !d->inference,
                                 .recipe = &numbers,
                                 .no_optimize = d->reference,
                                 .train = &t,
                                 .stop_after = all ? NULL : d->after,
                                 .observe = observe,
                                 .observe_user = d};
    TRY(session_graph(d->model, &sc, &d->graph));
    TRY(d->failed);
    if (all) return ST_OK;
    struct buf b;
    buf_init(&b, &d->arena);
    if (strcmp(d->stage, "plan") == 0 || strcmp(d->stage, "cuda") == 0) {
        bool cuda = strcmp(d->stage, "cuda") == 0;
        struct codegen_options cg = {.threads = pool_threads(d->c->pool),
                                     .cuda_arch = cuda && !d->arch ? 90 : (int)d->arch,
                                     .no_fusion = d->reference};
        TRY(plan_build(d->graph, &cg, &d->plan));
        if (cuda)
            format_kernels(d->plan, &b);
        else
            plan_print(d->plan, &b);
    } else {
        format_graph(d, d->graph, &b);
    }
    return write_text(d, d->out, &b);
}

static int check_dump(const struct dump *d) {
    static const char *const formats[] = {"text", "dot", "html", "json"};
    bool known = false;
    for (int i = 0; i < 4; i++) known |= strcmp(d->format, formats[i]) == 0;
    if (!known) return fail(2, "dump --format: '%s' is none of text, dot, html, json", d->format);
    bool graph = strcmp(d->stage, "graph") == 0;
    if (!graph && strcmp(d->stage, "plan") != 0 && strcmp(d->stage, "cuda") != 0)
        return fail(2, "dump --stage: '%s' is none of graph, plan, cuda", d->stage);
    if (!graph && strcmp(d->format, "text") != 0)
        return fail(2, "dump --stage %s: the format is text", d->stage);
    if (d->arch && (graph || (d->arch != 80 && d->arch != 90 && d->arch != 100)))
        return fail(2, "dump --arch: 80, 90 or 100, with --stage plan or cuda");
    if (d->after && strcmp(d->after, "all") == 0 && !d->out)
        return fail(2, "dump --after all: -o DIR is missing");
    return 0;
}

int cmd_dump(int argc, char **argv) {
    struct dump d = {
        .open = LATHE_MODEL_OPTIONS_INIT, .stage = "graph", .format = "text", .locs = true};
    struct model_args m = MODEL_ARGS_INIT;
    const char *pos[1];
    bool no_locs = false, verbose = false;
    // clang-format off
    const struct option_spec spec[] = {
        {"--after", OPTION_TEXT, &d.after, 0, 0, "PASS", "stop after this pass; `all` writes one file a pass into -o DIR"},
        {"--stage", OPTION_TEXT, &d.stage, 0, 0, "STAGE", "graph (default), plan or cuda"},
        {"--arch", OPTION_INT, &d.arch, 80, 100, "N", "GPU architecture: 80, 90 (default of cuda) or 100"},
        {"--format", OPTION_TEXT, &d.format, 0, 0, "F", "text (default), dot, html or json"},
        {"-o", OPTION_TEXT, &d.out, 0, 0, "PATH", "file instead of standard output"},
        {"--recipe", OPTION_TEXT, &d.recipe, 0, 0, "NAME", "as for `lathe train`"},
        {"--loss", OPTION_TEXT, &d.loss, 0, 0, "EXPR", "as for `lathe train`"},
        {"--optimizer", OPTION_TEXT, &d.optimizer, 0, 0, "NAME", "as for `lathe train`"},
        {"--data", OPTION_TEXT, &m.data, 0, 0, "SRC", "data that sizes symbolic dimensions"},
        {"--batch", OPTION_INT, &m.batch, 1, 1e9, "N", "size of a symbolic first dimension"},
        {"--seq", OPTION_INT, &m.seq, 1, 1e9, "N", "size of a symbolic sequence dimension"},
        {"--threads", OPTION_INT, &m.threads, 1, 1024, "N", "threads that workspaces are sized for"},
        {"--inference", OPTION_FLAG, &d.inference, 0, 0, NULL, "the forward graph only"},
        {"--reference", OPTION_FLAG, &d.reference, 0, 0, NULL, "no optimising passes, no fusion"},
        {"--no-locs", OPTION_FLAG, &no_locs, 0, 0, NULL, "without origins"},
        {"--full", OPTION_FLAG, &d.full, 0, 0, NULL, "constants of any size"},
        {"--verbose", OPTION_FLAG, &verbose, 0, 0, NULL, "notes as well as warnings"},
    };
    // clang-format on
    int rc = options_parse(command_named("dump"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    if ((rc = check_dump(&d)) != 0) return rc;
    d.path = pos[0];
    d.locs = !no_locs;
    d.open = model_options(&m);
    d.c = command_context(verbose, m.threads);
    if (!d.c) return 1;
    arena_init(&d.arena, &d.c->ctx);
    enum status st = (enum status)session_guard(d.c, dump_body, &d);
    plan_destroy(d.plan);
    graph_destroy(d.graph);
    lathe_model_destroy(d.model);
    arena_reset(&d.arena);
    lathe_context_destroy(d.c);
    return command_exit(st);
}

/* ---- opt ----------------------------------------------------------------------------------------
 */
struct opt {
    lathe_context *c;
    const char *path, *passes, *out, *loss, *optimizer, *recipe;
    bool no_locs, full;
    struct arena arena, scratch;
    struct graph *graph;
};

static enum status read_text(struct opt *o, const char **text, size_t *n) {
    if (strcmp(o->path, "-") != 0) {
        struct file_map f;
        TRY(sys_map_file(&o->arena, o->path, &f));
        *text = f.size ? (const char *)f.at : "";
        *n = f.size;
        return ST_OK;
    }
    struct buf b;
    buf_init(&b, &o->arena);
    char piece[65536];
    for (size_t k; (k = fread(piece, 1, sizeof piece, stdin)) > 0;) buf_put(&b, piece, k);
    *text = b.at;
    *n = b.n;
    return ferror(stdin) ? diag_error(&o->c->ctx, ST_IO, "-", "standard input could not be read")
                         : ST_OK;
}

static enum status run_pass(struct opt *o, struct pass_ctx *pc, const char *name, size_t n) {
    const char *copy = arena_strndup(&o->arena, name, n);
    const struct pass_info *p = pipeline_find(copy);
    if (!p)
        return diag_error(&o->c->ctx, ST_USAGE, "",
                          "no pass is called '%s'; `lathe passes` lists them", copy);
    TRY(p->run(pc, o->graph));
    arena_reset(&o->scratch);
    return graph_verify(o->graph, p->name);
}

static enum status opt_body(void *arg) {
    struct opt *o = arg;
    const char *text;
    size_t n;
    TRY(read_text(o, &text, &n));
    TRY(graph_parse(&o->c->ctx, text, n, o->path, &o->graph));
    lathe_train_options defaults = LATHE_TRAIN_OPTIONS_INIT;
    defaults.loss = o->loss;
    defaults.optimizer = o->optimizer;
    struct train_options t;
    TRY(session_train_options(o->c, &defaults, &t));
    struct recipe numbers;
    TRY(recipe_find(&o->c->ctx, &o->arena, o->recipe, &numbers));
    struct pass_ctx pc = {.ctx = &o->c->ctx,
                          .scratch = &o->scratch,
                          .eval = pipeline_eval,
                          .train = &t,
                          .recipe = &numbers};
    for (const char *s = o->passes; s && *s;) {
        size_t len = strcspn(s, ",");
        TRY(run_pass(o, &pc, s, len));
        s += len + (s[len] == ',');
    }
    struct buf b;
    buf_init(&b, &o->arena);
    struct text_options to = {.no_locs = o->no_locs, .full = o->full};
    graph_print(o->graph, &to, &b);
    if (o->out) return sys_write_file(&o->c->ctx, o->out, b.at, b.n);
    fwrite(b.at, 1, b.n, stdout);
    return ST_OK;
}

int cmd_opt(int argc, char **argv) {
    struct opt o = {0};
    const char *pos[1];
    // clang-format off
    const struct option_spec spec[] = {
        {"--passes", OPTION_TEXT, &o.passes, 0, 0, "A,B,C", "passes to run, in this order (default: none)"},
        {"-o", OPTION_TEXT, &o.out, 0, 0, "FILE", "file instead of standard output"},
        {"--loss", OPTION_TEXT, &o.loss, 0, 0, "EXPR", "for the pass loss"},
        {"--optimizer", OPTION_TEXT, &o.optimizer, 0, 0, "NAME", "for the pass optimizer"},
        {"--recipe", OPTION_TEXT, &o.recipe, 0, 0, "NAME", "for the pass precision"},
        {"--no-locs", OPTION_FLAG, &o.no_locs, 0, 0, NULL, "without origins"},
        {"--full", OPTION_FLAG, &o.full, 0, 0, NULL, "constants of any size"},
    };
    // clang-format on
    int rc = options_parse(command_named("opt"), spec, (int)(sizeof spec / sizeof spec[0]), argc,
                           argv, pos, 1, 1);
    if (rc) return rc == 1 ? 0 : rc;
    o.path = pos[0];
    o.c = command_context(false, 1);
    if (!o.c) return 1;
    arena_init(&o.arena, &o.c->ctx);
    arena_init(&o.scratch, &o.c->ctx);
    enum status st = (enum status)session_guard(o.c, opt_body, &o);
    graph_destroy(o.graph);
    arena_reset(&o.scratch);
    arena_reset(&o.arena);
    lathe_context_destroy(o.c);
    return command_exit(st);
}
