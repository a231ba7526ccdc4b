// SPDX-License-Identifier: Apache-2.0
/* test_export.c - the one-way forms of a graph, on hostile names: JSON is read back by another
 * reader, HTML tags nest, Graphviz strings end where they should. */
#include "ir/export_dot.h"
#include "test_util.h"
#include <jansson.h>

static const char *const names[] = {
    "plain",
    "<script>alert(\"1\")</script>",
    "a & b &lt; 'c'",
    "back\\slash \\\" \\N \\n",
    "new\nline\ttab\x01\x7f",
    "\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80",
    "bad \xff\xc3 \xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80",
    "]}>\"];",
    "-->",
};
enum { NAMES = sizeof names / sizeof *names };

/* Every name in every place where a user's text appears. */
static struct graph *hostile(struct test_env *t) {
    static const float two[2] = {0.5f, -1.0f};
    struct graph *g = graph_create(&t->ctx, names[1]);
    struct type type = {.dtype = DT_f32, .rank = 2, .dims = {2}};
    val_id out, first = VAL_NONE;
    for (int k = 0; k < NAMES; k++) {
        struct attr name = {.key = ATTR_name, .s = names[k]};
        type.dims[1] = dim_symbol(g->dims, names[k]);
        ck_assert_msg(graph_try_source(g, OP_state, &type, &name, 1, names[k], &out) == ST_OK, "%s",
                      t->log);
        if (k == 0) first = out;
        graph_set_name(g, out, names[k]);
        ck_assert_int_eq(graph_try_add(g, OP_neg, &out, 1, NULL, 0, names[k], &out), ST_OK);
        graph_add_output(g, names[k], out);
        if (k == 0) graph_add_update(g, first, out);
    }
    struct attr init = {.key = ATTR_init, .blob = graph_blob(g, two, sizeof two, true)};
    type = (struct type){.dtype = DT_f32, .rank = 1, .dims = {2}};
    ck_assert_int_eq(graph_try_source(g, OP_const, &type, &init, 1, "", &out), ST_OK);
    struct attr value = {.key = ATTR_value, .f = -1.0 / 0.0};
    ck_assert_int_eq(graph_try_source(g, OP_full, &type, &value, 1, "", &out), ST_OK);
    struct attr axis[] = {{.key = ATTR_axis, .i = 0}, {.key = ATTR_eps, .f = 1e-5}};
    ck_assert_int_eq(graph_try_add(g, OP_layer_norm, &out, 1, axis, 2, "", &out), ST_OK);
    val_id mean = val_at(out, 1);
    ck_assert_int_eq(graph_try_add(g, OP_neg, &mean, 1, NULL, 0, "", &out), ST_OK);
    return g;
}

static const char *print(struct test_env *t, const struct graph *g,
                         void (*how)(const struct graph *, struct buf *)) {
    struct buf b;
    buf_init(&b, &t->arena);
    how(g, &b);
    ck_assert_uint_eq(strlen(b.at), b.n);
    for (size_t k = 0; k < b.n; k++) TEST_EXPECT(b.at[k] == '\n' || (unsigned char)b.at[k] >= ' ');
    return b.at;
}

/* ---- JSON ---------------------------------------------------------------------------------- */
static const char *text_of(json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    ck_assert_msg(s != NULL, "no string %s", key);
    return s;
}

START_TEST(test_json) {
    struct test_env t;
    json_error_t error;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = hostile(&t);
    const char *text = print(&t, g, graph_print_json);
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(j != NULL, "%d:%d: %s\n%s", error.line, error.column, error.text, text);
    json_t *values = json_object_get(j, "values"), *nodes = json_object_get(j, "nodes");
    json_t *outputs = json_object_get(j, "outputs"), *updates = json_object_get(j, "updates");
    ck_assert_str_eq(text_of(j, "name"), names[1]);
    ck_assert_uint_eq(json_array_size(values), g->values.n - 1);
    ck_assert_uint_eq(json_array_size(nodes), g->nodes.n - 1);
    ck_assert_uint_eq(json_array_size(outputs), NAMES);
    ck_assert_uint_eq(json_array_size(updates), 1);
    for (size_t k = 0; k < NAMES; k++) {
        const char *want =
            k == 6 ? "bad \xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd "
                     "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                     "\xef\xbf\xbd"
                   : names[k];
        json_t *node = json_array_get(nodes, 2 * k), *value = json_array_get(values, 2 * k);
        ck_assert_str_eq(text_of(json_array_get(outputs, k), "name"), want);
        ck_assert_str_eq(text_of(node, "origin"), want);
        ck_assert_str_eq(text_of(json_object_get(node, "attrs"), "name"), want);
        ck_assert_str_eq(text_of(value, "name"), want);
        ck_assert_int_eq(json_integer_value(json_object_get(value, "node")), 2 * (int)k + 1);
        ck_assert(json_is_string(json_array_get(json_object_get(value, "shape"), 1)));
        ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(value, "shape"), 0)), 2);
    }
    json_t *attrs = json_object_get(json_array_get(nodes, 2 * NAMES), "attrs");
    ck_assert_str_eq(text_of(attrs, "init"), "f32 [0.5, -1.0]");
    attrs = json_object_get(json_array_get(nodes, 2 * NAMES + 1), "attrs");
    ck_assert_str_eq(text_of(attrs, "value"), "-inf");
    json_t *norm = json_array_get(nodes, 2 * NAMES + 2);
    ck_assert(json_real_value(json_object_get(json_object_get(norm, "attrs"), "eps")) == 1e-5);
    ck_assert_uint_eq(json_array_size(json_object_get(norm, "outputs")), 3);
    json_decref(j);
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- HTML ---------------------------------------------------------------------------------- */
static bool no_end(const char *tag) {
    return strcmp(tag, "meta") == 0 || strcmp(tag, "br") == 0;
}

static void check_tags(const char *text) {
    char stack[16][16];
    int depth = 0;
    for (const char *p = text; (p = strchr(p, '<')) != NULL;) {
        char tag[16] = "";
        bool end = *++p == '/';
        size_t n = strspn(p += end, "abcdefghijklmnopqrstuvwxyz123456789");
        TEST_EXPECT(n > 0 && n < sizeof tag);
        memcpy(tag, p, n);
        TEST_EXPECT(strcmp(tag, "script") != 0);
        if (end) {
            TEST_EXPECT(depth > 0);
            ck_assert_str_eq(stack[--depth], tag);
        } else if (!no_end(tag)) {
            TEST_EXPECT(depth < 16);
            memcpy(stack[depth++], tag, sizeof tag);
        }
        const char *close = strchr(p, '>');
        TEST_EXPECT(close != NULL && memchr(p, '<', (size_t)(close - p)) == NULL);
        p = close;
    }
    ck_assert_int_eq(depth, 0);
}

START_TEST(test_html) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = hostile(&t);
    const char *text = print(&t, g, graph_print_html);
    ck_assert_int_eq(strncmp(text, "<!DOCTYPE html>\n", 16), 0);
    check_tags(text + 16);
    ck_assert_ptr_nonnull(strstr(text, "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;"));
    ck_assert_ptr_nonnull(strstr(text, "a &amp; b &amp;lt; &#39;c&#39;"));
    ck_assert_ptr_nonnull(
        strstr(text, "<tr id=\"n2\"><td>2</td><td class=\"elementwise\">neg</td>"));
    ck_assert_ptr_nonnull(strstr(text, "<a href=\"#n1\">%plain</a>"));
    ck_assert_ptr_nonnull(strstr(text, "\xc3\xbc \xe2\x82\xac \xf0\x9f\x98\x80"));
    for (const char *p = text; (p = strstr(p, "href=\"")) != NULL; p++) /* all links have targets */
        ck_assert_ptr_nonnull(
            strstr(text, arena_printf(&t.arena, "id=\"%.*s\"", (int)strcspn(p + 7, "\""), p + 7)));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

/* ---- Graphviz ------------------------------------------------------------------------------ */
/* Counts statements and checks that strings and braces are whole. */
static int check_dot(const char *text) {
    int braces = 0, statements = 0;
    for (const char *p = text; *p; p++) {
        if (*p ==
            '"') { /* a backslash takes one character with it, and a string ends on its line */
            for (p++; *p != '"'; p++) {
                TEST_EXPECT(*p != '\0' && *p != '\n' && *p != '<' && *p != '>');
                if (*p == '\\') TEST_EXPECT(*++p == 'n' || *p == '\\');
            }
            continue;
        }
        /* Outside of strings only what the printer itself writes. */
        TEST_EXPECT(strchr("abcdefghijklmnopqrstuvwxyz0123456789 \n{}[]=,;->", *p) != NULL ||
                    strncmp(p, "C", 1) == 0);
        braces += (*p == '{') - (*p == '}');
        statements += *p == ';';
    }
    ck_assert_int_eq(braces, 0);
    return statements;
}

START_TEST(test_dot) {
    struct test_env t;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = hostile(&t);
    const char *text = print(&t, g, graph_print_dot);
    /* a line of defaults; nodes; edges; outputs with an edge each; an update */
    ck_assert_int_eq(check_dot(text), 1 + (2 * NAMES + 4) + (NAMES + 2) + 2 * NAMES + 1);
    ck_assert_ptr_nonnull(strstr(text, "n1 -> n2;"));
    ck_assert_ptr_nonnull(strstr(text, "n2 -> n1 [style=dashed, constraint=false];"));
    ck_assert_ptr_nonnull(strstr(text, "[taillabel=\"1\"];"));
    ck_assert_ptr_nonnull(strstr(text, "output\\n]}&gt;&quot;];\""));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

START_TEST(test_empty) {
    struct test_env t;
    json_error_t error;
    test_begin(&t);
    TEST_LANDING(&t);
    struct graph *g = graph_create(&t.ctx, "");
    json_t *j = json_loads(print(&t, g, graph_print_json), 0, &error);
    ck_assert_ptr_nonnull(j);
    json_decref(j);
    ck_assert_ptr_nonnull(strstr(print(&t, g, graph_print_html), "0 nodes"));
    ck_assert_ptr_nonnull(strstr(print(&t, g, graph_print_dot), "digraph \"\" {"));
    graph_destroy(g);
    test_end(&t);
}
END_TEST

int main(void) {
    Suite *s = suite_create("export");
    TCase *c = tcase_create("export");
    tcase_add_test(c, test_json);
    tcase_add_test(c, test_html);
    tcase_add_test(c, test_dot);
    tcase_add_test(c, test_empty);
    suite_add_tcase(s, c);
    SRunner *run = srunner_create(s);
    srunner_run_all(run, CK_NORMAL);
    int failed = srunner_ntests_failed(run);
    srunner_free(run);
    return failed ? 1 : 0;
}
