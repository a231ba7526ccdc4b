// SPDX-License-Identifier: Apache-2.0
/* test_loss.c - pass_loss: every loss against its formula, the inputs it adds, what is chosen when
 * nothing is said, and its messages. Gradients of the losses are checked against their closed
 * forms. */
#include "passes/pass.h"
#include "ref_eval.h"
#include "test_util.h"

#define BEGIN                                                                                      \
    struct test_env t;                                                                             \
    test_begin(&t);                                                                                \
    TEST_LANDING(&t);                                                                              \
    struct graph *g = graph_create(&t.ctx, "test");                                                \
    struct train_options train = {.accumulate = 1, .label_type = {.rank = -1}};                    \
    struct pass_ctx c = {.ctx = &t.ctx, .scratch = &t.arena, .train = &train};                     \
    str_id o = intern(&g->strings, "head");                                                        \
    (void)o
#define END                                                                                        \
    graph_destroy(g);                                                                              \
    test_end(&t)

#define DIMS(...)                                                                                  \
    (int)(sizeof((dim[]){__VA_ARGS__}) / sizeof(dim)), (dim[]) {                                   \
        __VA_ARGS__                                                                                \
    }

static struct type type_of(enum dtype dt, int rank, const dim *dims) {
    struct type t = {.dtype = dt, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    return t;
}

static val_id input(struct graph *g, const char *name, enum dtype dt, int rank, const dim *dims) {
    struct type t = type_of(dt, rank, dims);
    struct attr attr = {.key = ATTR_name, .s = name};
    val_id v = graph_source(g, OP_input, &t, &attr, 1, intern(&g->strings, name));
    graph_set_name(g, v, name);
    return v;
}

/* A param as output, so that the loss has a gradient by the "logits" themselves. */
static val_id logits(struct graph *g, const char *name, enum dtype dt, int rank, const dim *dims) {
    struct type t = type_of(dt, rank, dims);
    int64_t n = type_count(&t);
    size_t size = dtype_size(dt);
    char *bytes = ARENA_ARRAY(&g->arena, char, (size_t)n *size);
    for (int64_t i = 0; i < n; i++)
        dtype_store(dt, bytes + (size_t)i * size, (double)((i * 37 + 11) % 29) / 8.0 - 1.75);
    struct attr attrs[2] = {
        {.key = ATTR_name, .s = "w"},
        {.key = ATTR_init, .blob = graph_blob(g, bytes, (size_t)n * size, false)},
    };
    str_id o = intern(&g->strings, "head");
    val_id v = graph_source(g, OP_param, &t, attrs, 2, o);
    graph_set_name(g, v, "w");
    graph_add_output(g, name, v);
    return v;
}

static double logit(int64_t i) {
    return (double)((i * 37 + 11) % 29) / 8.0 - 1.75;
}

/* Values of inputs: up to two arrays. */
struct feed {
    const char *name[2];
    const double *v[2];
};
static bool fill(void *user, const char *name, double *at, int64_t n) {
    const struct feed *f = user;
    for (int k = 0; k < 2; k++)
        if (f->name[k] && strcmp(f->name[k], name) == 0) {
            memcpy(at, f->v[k], (size_t)n * sizeof *at);
            return true;
        }
    return false;
}

static struct ref eval(struct test_env *t, const struct graph *g, struct feed *f,
                       const char *name) {
    return ref_output(g, ref_eval(g, &t->arena, fill, f), name);
}

static val_id source_named(const struct graph *g, const char *name) {
    for (uint32_t i = 1; i < g->nodes.n; i++)
        if (g->nodes.at[i].op == OP_input &&
            strcmp(attr_str(g, (node_id){i}, ATTR_name), name) == 0)
            return node_out(g, (node_id){i}, 0);
    return VAL_NONE;
}

static void check_source(const struct graph *g, const char *name, enum dtype dt, int rank,
                         const dim *dims) {
    struct type want = type_of(dt, rank, dims);
    val_id v = source_named(g, name);
    ck_assert_msg(v.i != 0, "no input '%s'", name);
    ck_assert(type_equal(val_type(g, v), &want));
    ck_assert_str_eq(attr_str(g, val_def(g, v), ATTR_role), "label");
    ck_assert_str_eq(val_name(g, v), name);
}

#define RUN_LOSS(status)                                                                           \
    do {                                                                                           \
        ck_assert_msg(pass_loss(&c, g) == (status), "%s", t.log);                                  \
        ck_assert_msg(graph_verify(g, "loss") == ST_OK, "%s", t.log);                              \
    } while (0)
#define RUN_GRAD                                                                                   \
    do {                                                                                           \
        ck_assert_msg(pass_grad(&c, g) == ST_OK, "%s", t.log);                                     \
        ck_assert_msg(graph_verify(g, "grad") == ST_OK, "%s", t.log);                              \
    } while (0)
#define LOG_HAS(text) ck_assert_msg(strstr(t.log, text) != NULL, "log: %s", t.log)
#define NEAR(a, b)    ck_assert_msg(fabs((a) - (b)) < 1e-12, "%.15g is not %.15g", (a), (b))

/* log-sum-exp minus the logit of the label, from logits laid out with stride `st`. */
static double row_loss(const double *z, int64_t classes, int64_t st, int64_t label) {
    double sum = 0;
    for (int64_t i = 0; i < classes; i++) sum += exp(z[i * st]);
    return log(sum) - z[label * st];
}

/* ---- cross entropy ------------------------------------------------------------------------- */
START_TEST(test_cross_entropy) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(4, 3));
    train.loss = " cross_entropy( logits , labels ) ";
    RUN_LOSS(ST_OK);
    check_source(g, "labels", DT_i64, DIMS(4));
    RUN_GRAD;
    double z[12], want = 0;
    for (int i = 0; i < 12; i++) z[i] = logit(i);
    const double labels[4] = {2, -100, 0, 1};
    for (int r = 0; r < 4; r++)
        if (labels[r] >= 0) want += row_loss(z + 3 * r, 3, 1, (int64_t)labels[r]) / 3;
    struct feed f = {{"labels"}, {labels}};
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    struct ref d = eval(&t, g, &f, "grad/w");
    for (int i = 0; i < 12; i++) {
        const double *row = z + i / 3 * 3;
        double p = exp(z[i]) / (exp(row[0]) + exp(row[1]) + exp(row[2]));
        double slope = labels[i / 3] < 0 ? 0 : (p - (labels[i / 3] == i % 3)) / 3;
        NEAR(d.at[i], slope);
    }
    END;
}
END_TEST

START_TEST(test_all_ignored) {
    BEGIN;
    logits(g, "logits", DT_f32, DIMS(2, 3));
    train.loss = "cross_entropy(logits, y)";
    RUN_LOSS(ST_OK);
    RUN_GRAD;
    const double labels[2] = {-100, -100};
    struct feed f = {{"y"}, {labels}};
    ck_assert_double_eq(eval(&t, g, &f, "loss").at[0], 0);
    struct ref d = eval(&t, g, &f, "grad/w");
    for (int i = 0; i < 6; i++) ck_assert_double_eq(d.at[i], 0);
    END;
}
END_TEST

START_TEST(test_class_axis_last) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3, 4));
    train.loss = "cross_entropy(logits)";
    RUN_LOSS(ST_OK);
    check_source(g, "labels", DT_i64, DIMS(2, 3));
    double z[24], want = 0;
    for (int i = 0; i < 24; i++) z[i] = logit(i);
    const double labels[6] = {3, 0, 1, 2, 2, -100};
    for (int r = 0; r < 5; r++) want += row_loss(z + 4 * r, 4, 1, (int64_t)labels[r]) / 5;
    struct feed f = {{"labels"}, {labels}};
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    END;
}
END_TEST

START_TEST(test_class_axis_one) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3, 4));
    train.loss = "cross_entropy(logits)";
    train.have_labels = true;
    train.label_name = "mask";
    train.label_type = type_of(DT_i64, DIMS(1000, 4)); /* the data counts samples, not a batch */
    RUN_LOSS(ST_OK);
    check_source(g, "mask", DT_i64, DIMS(2, 4));
    double z[24], want = 0;
    for (int i = 0; i < 24; i++) z[i] = logit(i);
    const double labels[8] = {2, 0, 1, 2, 2, 0, 0, 1};
    for (int r = 0; r < 8; r++)
        want += row_loss(z + r / 4 * 12 + r % 4, 3, 4, (int64_t)labels[r]) / 8;
    struct feed f = {{"mask"}, {labels}};
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    END;
}
END_TEST

START_TEST(test_soft_labels) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3));
    train.loss = "cross_entropy(logits, p)";
    train.have_labels = true;
    train.label_type = type_of(DT_f32, DIMS(50, 3));
    RUN_LOSS(ST_OK);
    check_source(g, "p", DT_f64, DIMS(2, 3));
    double z[6], want = 0;
    for (int i = 0; i < 6; i++) z[i] = logit(i);
    const double p[6] = {.2, .3, .5, 0, .9, .1};
    for (int i = 0; i < 6; i++) want += p[i] * row_loss(z + i / 3 * 3, 3, 1, i % 3) / 2;
    struct feed f = {{"p"}, {p}};
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    END;
}
END_TEST

START_TEST(test_half_logits) {
    BEGIN;
    logits(g, "logits", DT_bf16, DIMS(2, 3));
    train.loss = "cross_entropy(logits)";
    RUN_LOSS(ST_OK);
    ck_assert_int_eq(val_type(g, g->outputs.at[1].value)->dtype, DT_f32);
    RUN_GRAD;
    uint32_t last = g->outputs.n - 1;
    ck_assert_str_eq(interned(&g->strings, g->outputs.at[last].name), "grad/w");
    ck_assert_int_eq(val_type(g, g->outputs.at[last].value)->dtype, DT_bf16);
    END;
}
END_TEST

START_TEST(test_own_label_input) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3));
    input(g, "y", DT_i32, DIMS(2));
    train.loss = "cross_entropy(logits, y)";
    RUN_LOSS(ST_OK);
    const double labels[2] = {1, 2};
    double z[6];
    for (int i = 0; i < 6; i++) z[i] = logit(i);
    struct feed f = {{"y"}, {labels}};
    NEAR(eval(&t, g, &f, "loss").at[0], (row_loss(z, 3, 1, 1) + row_loss(z + 3, 3, 1, 2)) / 2);
    END;
}
END_TEST

/* ---- what an evaluation adds up ------------------------------------------------------------- */
START_TEST(test_measure) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3, 5));
    input(g, "ids", DT_i64, DIMS(2, 3));
    train.loss = "next_token(logits)";
    train.measure = true;
    RUN_LOSS(ST_OK);
    int64_t best[6] = {0};
    double ids[6] = {4};
    for (int64_t i = 0; i < 30; i++)
        if (logit(i) > logit(i / 5 * 5 + best[i / 5])) best[i / 5] = i % 5;
    for (int r = 0; r < 5; r++) ids[r + 1] = (double)best[r]; /* foretold everywhere .. */
    ids[1] = (double)((best[0] + 1) % 5);                     /* .. but once */
    struct feed f = {{"ids"}, {ids}};
    ck_assert_double_eq(eval(&t, g, &f, "loss.count").at[0], 4);
    ck_assert_double_eq(eval(&t, g, &f, "loss.right").at[0], 3);
    END;
}
END_TEST

START_TEST(test_measure_counts_classes_only) {
    BEGIN;
    logits(g, "out", DT_f32, DIMS(4, 3));
    train.loss = "mse(out, t)";
    train.measure = true;
    RUN_LOSS(ST_OK);
    for (uint32_t i = 0; i < g->outputs.n; i++)
        ck_assert_ptr_null(strstr(interned(&g->strings, g->outputs.at[i].name), "loss."));
    END;
}
END_TEST

/* ---- next token ---------------------------------------------------------------------------- */
START_TEST(test_next_token) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3, 5));
    input(g, "ids", DT_i32, DIMS(2, 3));
    input(g, "scale", DT_f32, DIMS(2, 3));
    train.loss = "next_token(logits)";
    RUN_LOSS(ST_OK);
    RUN_GRAD;
    double z[30], want = 0;
    for (int i = 0; i < 30; i++) z[i] = logit(i);
    const double ids[6] = {4, 1, 3, 0, 2, 2};
    for (int r = 0; r < 6; r++)
        if (r % 3 < 2) want += row_loss(z + 5 * r, 5, 1, (int64_t)ids[r + 1]) / 4;
    struct feed f = {{"ids", "scale"}, {ids, ids}};
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    struct ref d = eval(&t, g, &f, "grad/w");
    for (int i = 10; i < 15; i++) ck_assert_double_eq(d.at[i], 0); /* the last position */
    ck_assert_double_ne(d.at[9], 0);
    END;
}
END_TEST

START_TEST(test_next_token_symbolic) {
    BEGIN;
    dim B = dim_symbol(g->dims, "batch"), S = dim_symbol(g->dims, "seq");
    val_id ids = input(g, "input_ids", DT_i64, DIMS(B, S));
    input(g, "attention_mask", DT_i64, DIMS(B, S));
    struct type table = type_of(DT_f32, DIMS(5, 5));
    struct attr axis = {.key = ATTR_axis, .i = 0};
    val_id in[2] = {build_full(g, &table, 1, o), ids};
    graph_add_output(g, "logits", graph_add(g, OP_gather, in, 2, &axis, 1, o));
    train.loss = NULL;
    RUN_LOSS(ST_OK);
    ck_assert_uint_eq(g->outputs.n, 2);
    END;
}
END_TEST

START_TEST(test_next_token_ambiguous) {
    BEGIN;
    logits(g, "logits", DT_f64, DIMS(2, 3, 5));
    input(g, "a", DT_i64, DIMS(2, 3));
    input(g, "b", DT_i64, DIMS(2, 3));
    train.loss = "next_token(logits)";
    ck_assert_int_eq(pass_loss(&c, g), ST_USAGE);
    LOG_HAS("needs one integer input of shape i64[2,3], the model has 2");
    train.loss = "next_token(logits, b)";
    RUN_LOSS(ST_OK);
    END;
}
END_TEST

/* ---- regression ---------------------------------------------------------------------------- */
START_TEST(test_mse) {
    BEGIN;
    logits(g, "y", DT_f64, DIMS(2, 2));
    train.loss = "mse(y, target)";
    RUN_LOSS(ST_OK);
    check_source(g, "target", DT_f64, DIMS(2, 2));
    RUN_GRAD;
    const double v[4] = {1, -2, .5, 0};
    struct feed f = {{"target"}, {v}};
    double want = 0;
    for (int i = 0; i < 4; i++) want += (logit(i) - v[i]) * (logit(i) - v[i]) / 4;
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    struct ref d = eval(&t, g, &f, "grad/w");
    for (int i = 0; i < 4; i++) NEAR(d.at[i], (logit(i) - v[i]) / 2);
    END;
}
END_TEST

START_TEST(test_mse_column) {
    BEGIN;
    logits(g, "y", DT_f64, DIMS(3, 1));
    train.loss = "mse(y, target)";
    train.have_labels = true;
    train.label_type = type_of(DT_f64, DIMS(100));
    RUN_LOSS(ST_OK);
    check_source(g, "target", DT_f64, DIMS(3));
    const double v[3] = {1, -2, .5};
    struct feed f = {{"target"}, {v}};
    double want = 0;
    for (int i = 0; i < 3; i++) want += (logit(i) - v[i]) * (logit(i) - v[i]) / 3;
    NEAR(eval(&t, g, &f, "loss").at[0], want);
    END;
}
END_TEST

START_TEST(test_bce) {
    BEGIN;
    struct type s = type_of(DT_f64, DIMS(5));
    const double z[5] = {-800, -1, 0, 2, 800}, v[5] = {0, 1, .25, 1, 0};
    struct attr attrs[2] = {{.key = ATTR_name, .s = "w"},
                            {.key = ATTR_init, .blob = graph_blob(g, z, sizeof z, true)}};
    graph_add_output(g, "y", graph_source(g, OP_param, &s, attrs, 2, o));
    train.loss = "bce_with_logits(y, target)";
    RUN_LOSS(ST_OK);
    RUN_GRAD;
    struct feed f = {{"target"}, {v}};
    double want = 800;
    for (int i = 1; i < 4; i++) {
        double p = 1 / (1 + exp(-z[i]));
        want -= v[i] * log(p) + (1 - v[i]) * log(1 - p);
    }
    NEAR(eval(&t, g, &f, "loss").at[0], want / 5);
    struct ref d = eval(&t, g, &f, "grad/w");
    for (int i = 0; i < 5; i++) NEAR(d.at[i], (1 / (1 + exp(-z[i])) - v[i]) / 5);
    END;
}
END_TEST

/* ---- scalars and choices ------------------------------------------------------------------- */
START_TEST(test_scalar_output) {
    BEGIN;
    logits(g, "a(b), c", DT_f16, DIMS(1, 1)); /* names may hold anything */
    train.loss = "a(b), c";
    RUN_LOSS(ST_OK);
    ck_assert_uint_eq(g->outputs.n, 2);
    struct type want = type_scalar(DT_f32);
    ck_assert(type_equal(val_type(g, g->outputs.at[1].value), &want));
    END;
}
END_TEST

START_TEST(test_own_loss_output) {
    BEGIN;
    logits(g, "loss", DT_f64, DIMS(1));
    graph_add_output(g, "logits", build_full(g, &(struct type){DT_f64, 2, {2, 3}}, 0, o));
    RUN_LOSS(ST_OK);
    ck_assert_uint_eq(g->outputs.n, 2);
    ck_assert_str_eq(interned(&g->strings, g->outputs.at[0].name), "loss");
    ck_assert_int_eq(val_type(g, g->outputs.at[0].value)->rank, 0);
    RUN_GRAD;
    struct feed f = {{NULL}, {NULL}};
    ck_assert_double_eq(eval(&t, g, &f, "grad/w").at[0], 1);
    END;
}
END_TEST

START_TEST(test_chosen_by_labels) {
    BEGIN;
    logits(g, "logits", DT_f32, DIMS(4, 3));
    train.have_labels = true;
    train.label_name = "y";
    train.label_type = type_of(DT_i64, DIMS(60));
    RUN_LOSS(ST_OK);
    check_source(g, "y", DT_i64, DIMS(4));
    END;
}
END_TEST

START_TEST(test_several_choices) {
    BEGIN;
    logits(g, "out", DT_f32, DIMS(4, 3));
    train.have_labels = true;
    train.label_name = "y";
    train.label_type = type_of(DT_f32, DIMS(60, 3));
    ck_assert_int_eq(pass_loss(&c, g), ST_USAGE);
    LOG_HAS("several losses make sense, choose one: cross_entropy(out, y), mse(out, y), "
            "bce_with_logits(out, y)");
    END;
}
END_TEST

static const struct {
    const char *loss;
    enum status status;
    const char *message;
} wrong[] = {
    {NULL, ST_USAGE, "no loss fits by itself"},
    {"cross_entropy(nope)", ST_USAGE, "the model has no output 'nope'; it has 'out' f32[4,3]"},
    {"nope", ST_USAGE, "the model has no output 'nope'"},
    {"huber(out)", ST_USAGE, "no loss has that name"},
    {"mse(out", ST_USAGE, "the parentheses do not match"},
    {"mse)out(", ST_USAGE, "the parentheses do not match"},
    {"mse(out) + 1", ST_USAGE, "the parentheses do not match"},
    {"mse()", ST_USAGE, "the output's name is missing"},
    {"mse(out,)", ST_USAGE, "expected an output and one target"},
    {"mse(out, a, b)", ST_USAGE, "expected an output and one target"},
    {"out", ST_SHAPE, "head: loss: output 'out' is f32[4,3], not one number"},
    {"next_token(out)", ST_SHAPE, "needs logits [batch, sequence, vocabulary]"},
    {"mse(count, t)", ST_TYPE, "output 'count' must be of a float type, found i64[2]"},
    {"cross_entropy(out, x)", ST_SHAPE, "labels of type f32[4,7] do not fit"},
    {"cross_entropy(out, ids)", ST_SHAPE,
     "must be i64[4] for output 'out', but input 'ids' is i64[7]"},
    {"mse(out, ids)", ST_TYPE, "must be of a float type like f32[4,3], but input 'ids' is i64[7]"},
    {"mse(out, x)", ST_SHAPE, "the targets must be f32[4,3]"},
    {"mse(scalar, t) ", ST_OK, ""},
    {"cross_entropy(scalar)", ST_SHAPE, "needs logits with a class axis"},
};

START_TEST(test_messages) {
    BEGIN;
    logits(g, "out", DT_f32, DIMS(4, 3));
    struct type counts = type_of(DT_i64, DIMS(2)), one = type_scalar(DT_f32);
    graph_add_output(g, "count", build_full(g, &counts, 1, o));
    if (wrong[_i].loss) graph_add_output(g, "scalar", build_full(g, &one, 1, o));
    input(g, "x", DT_f32, DIMS(4, 7));
    input(g, "ids", DT_i64, DIMS(7));
    train.loss = wrong[_i].loss;
    ck_assert_msg(pass_loss(&c, g) == wrong[_i].status, "%s: %s", train.loss, t.log);
    LOG_HAS(wrong[_i].message);
    END;
}
END_TEST

START_TEST(test_label_shape_message) {
    BEGIN;
    logits(g, "out", DT_f32, DIMS(4, 3, 5));
    train.loss = "cross_entropy(out, y)";
    train.have_labels = true;
    train.label_type = type_of(DT_i64, DIMS(60, 7));
    ck_assert_int_eq(pass_loss(&c, g), ST_SHAPE);
    LOG_HAS(
        "labels of type i64[60,7] do not fit logits 'out' f32[4,3,5]: expected i64[4,3] or, with "
        "classes on axis 1, i64[4,5]");
    END;
}
END_TEST

START_TEST(test_loss_name_taken) {
    BEGIN;
    logits(g, "out", DT_f32, DIMS(4, 3));
    struct type per_row = type_of(DT_f32, DIMS(4));
    graph_add_output(g, "loss", build_full(g, &per_row, 1, o));
    train.loss = "mse(out, t)";
    ck_assert_int_eq(pass_loss(&c, g), ST_USAGE);
    LOG_HAS("the model has an output 'loss' beside");
    END;
}
END_TEST

int main(void) {
    Suite *s = suite_create("loss");
    TCase *tc = tcase_create("loss");
    tcase_add_test(tc, test_cross_entropy);
    tcase_add_test(tc, test_all_ignored);
    tcase_add_test(tc, test_class_axis_last);
    tcase_add_test(tc, test_class_axis_one);
    tcase_add_test(tc, test_soft_labels);
    tcase_add_test(tc, test_half_logits);
    tcase_add_test(tc, test_own_label_input);
    tcase_add_test(tc, test_measure);
    tcase_add_test(tc, test_measure_counts_classes_only);
    tcase_add_test(tc, test_next_token);
    tcase_add_test(tc, test_next_token_symbolic);
    tcase_add_test(tc, test_next_token_ambiguous);
    tcase_add_test(tc, test_mse);
    tcase_add_test(tc, test_mse_column);
    tcase_add_test(tc, test_bce);
    tcase_add_test(tc, test_scalar_output);
    tcase_add_test(tc, test_own_loss_output);
    tcase_add_test(tc, test_chosen_by_labels);
    tcase_add_test(tc, test_several_choices);
    tcase_add_loop_test(tc, test_messages, 0, (int)(sizeof wrong / sizeof wrong[0]));
    tcase_add_test(tc, test_label_shape_message);
    tcase_add_test(tc, test_loss_name_taken);
    suite_add_tcase(s, tc);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
