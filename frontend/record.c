// SPDX-License-Identifier: Apache-2.0
/* record.c - what PyTorch's exporter wrote about itself into a model's metadata: which names were
 * parameters and which buffers, and which of them the operation behind a node took. Files without
 * such a record are judged by their contents alone (params.c). */
#include "frontend/importer.h"
#include <ctype.h>
#include <string.h>

const char *node_metadata(const struct inode *n, const char *key) {
    for (size_t i = 0; i < n->p->n_metadata_props; i++)
        if (strcmp(n->p->metadata_props[i]->key, key) == 0) return n->p->metadata_props[i]->value;
    return NULL;
}

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

/* "p_fc_weight: PARAMETER target='fc.weight' persistent=True" */
static void read_line(struct importer *im, const char *s, const char *end) {
    const char *colon = memchr(s, ':', (size_t)(end - s));
    if (!colon) return;
    static const char param[] = ": PARAMETER target='", buffer[] = ": BUFFER target='";
    size_t left = (size_t)(end - colon);
    enum record kind = REC_NONE;
    const char *t = colon;
    if (left > sizeof param && memcmp(colon, param, sizeof param - 1) == 0) {
        kind = REC_PARAM;
        t += sizeof param - 1;
    } else if (left > sizeof buffer && memcmp(colon, buffer, sizeof buffer - 1) == 0) {
        kind = REC_BUFFER;
        t += sizeof buffer - 1;
    }
    const char *quote = kind ? memchr(t, '\'', (size_t)(end - t)) : NULL;
    if (!quote || quote == t || colon == s) return;
    str_id placeholder = intern_n(&im->names, s, (size_t)(colon - s));
    str_id target = intern_n(&im->names, t, (size_t)(quote - t));
    map_set(&im->targets, placeholder.i, target.i);
    map_set(&im->records, target.i, kind);
}

void record_load(struct importer *im) {
    const Onnx__GraphProto *g = im->m->proto->graph;
    map_init(&im->targets, im->a);
    map_init(&im->records, im->a);
    for (size_t i = 0; i < g->n_metadata_props; i++) {
        const Onnx__StringStringEntryProto *p = g->metadata_props[i];
        if (!strstr(p->key, "graph_signature")) continue;
        im->recorded = true;
        for (const char *s = p->value; *s;) {
            const char *end = strchr(s, '\n');
            if (!end) end = s + strlen(s);
            read_line(im, s, end);
            s = *end ? end + 1 : end;
        }
    }
}

enum record record_of(struct importer *im, const char *name) {
    uint32_t kind;
    str_id id = intern_find(&im->names, name);
    return id.i && map_get(&im->records, id.i, &kind) ? (enum record)kind : REC_NONE;
}

bool record_present(struct importer *im, const struct inode *n) {
    return im->recorded && node_metadata(n, "pkg.torch.onnx.fx_node") != NULL;
}

int record_params(struct importer *im, const struct inode *n, const char **out, int max) {
    const char *s = node_metadata(n, "pkg.torch.onnx.fx_node");
    int count = 0;
    if (!s || !im->recorded) return 0;
    for (; (s = strchr(s, '%')) != NULL && count < max;) {
        const char *word = ++s;
        while (is_word(*s)) s++;
        char name[512];
        size_t len = (size_t)(s - word);
        uint32_t target;
        if (len == 0 || len >= sizeof name) continue;
        memcpy(name, word, len);
        name[len] = 0;
        str_id id = intern_find(&im->names, name);
        if (!id.i || !map_get(&im->targets, id.i, &target)) continue;
        const char *found = interned(&im->names, (str_id){target});
        if (record_of(im, found) == REC_PARAM) out[count++] = found;
    }
    return count;
}
