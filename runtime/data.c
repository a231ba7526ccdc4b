// SPDX-License-Identifier: Apache-2.0
/* data.c - opens a data source: decides between arrays and tokens and checks the files. What a
 * batch holds is data_loader.c's business. */
#include "runtime/data.h"
#include "base/diag.h"
#include <string.h>

static bool has_suffix(const char *path, const char *suffix) {
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && strcmp(path + n - k, suffix) == 0;
}

/* ---- tokens ------------------------------------------------------------------------------- */

enum { TOKEN_HEADER = 256 * 4, MAGIC_U16 = 20240520, MAGIC_U32 = 20240801 };

static enum status set_tokens(struct arena *a, struct data_source *s, const uint8_t *at,
                              size_t bytes, enum dtype type) {
    size_t each = dtype_size(type);
    s->kind = DATA_TOKENS;
    s->tokens = at;
    s->token_type = type;
    s->ntokens = (int64_t)(bytes / each);
    uint32_t most = 0;
    for (size_t i = 0; i < bytes; i += each) {
        uint32_t id = 0;
        memcpy(&id, at + i, each);
        if (id > most) most = id;
    }
    s->max_token = most;
    if (most <= INT32_MAX) return ST_OK;
    return diag_error(a->ctx, ST_DATA, s->path,
                      "the token id %u is out of range; expected ids below 2^31", most);
}

/* llm.c's layout: 256 int32 (magic, version, number of tokens, zeros), then the ids. */
static enum status read_headed(struct arena *a, struct data_source *s, const struct file_map *m,
                               uint32_t magic) {
    uint32_t version, count;
    bool wide = magic == MAGIC_U32;
    size_t each = wide ? 4 : 2;
    memcpy(&version, m->at + 4, 4);
    memcpy(&count, m->at + 8, 4);
    if (version != (wide ? 7 : 1))
        return diag_error(a->ctx, ST_UNSUPPORTED, s->path,
                          "token files with magic %u must have version %d, found %u", magic,
                          wide ? 7 : 1, version);
    if (m->size - TOKEN_HEADER != (size_t)count * each)
        return diag_error(a->ctx, ST_PARSE, s->path,
                          "the header declares %u tokens of %zu bytes, but %zu bytes follow it",
                          count, each, m->size - TOKEN_HEADER);
    if (count == 0) return diag_error(a->ctx, ST_DATA, s->path, "the file holds no tokens");
    return set_tokens(a, s, m->at + TOKEN_HEADER, (size_t)count * each, wide ? DT_i32 : DT_i16);
}

static enum status read_bin(struct arena *a, struct data_source *s, const struct file_map *m) {
    uint32_t magic = 0;
    if (m->size >= TOKEN_HEADER) memcpy(&magic, m->at, 4);
    if (magic == MAGIC_U16 || magic == MAGIC_U32) return read_headed(a, s, m, magic);
    if (m->size % 2)
        return diag_error(a->ctx, ST_PARSE, s->path,
                          "a .bin file holds 16-bit token ids, but this one has an odd size of %zu "
                          "bytes; give text "
                          "another name to train on its bytes",
                          m->size);
    return set_tokens(a, s, m->at, m->size, DT_i16);
}

static void free_block(void *ptr) {
    void **block = ptr;
    ctx_free(block[0], block[1]);
}

static enum status join_files(struct arena *a, struct data_source *s, const struct file_map *files,
                              uint32_t n, size_t total) {
    void **block = ARENA_ARRAY(a, void *, 2);
    arena_defer(a, free_block, block);
    block[0] = a->ctx;
    block[1] = ctx_try_alloc(a->ctx, total);
    if (!block[1])
        return diag_error(a->ctx, ST_DATA, s->path,
                          "the files of the directory need %zu bytes of memory together, "
                          "which is more than there is",
                          total);
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (files[i].size) memcpy((char *)block[1] + at, files[i].at, files[i].size);
        at += files[i].size;
    }
    return set_tokens(a, s, block[1], total, DT_u8);
}

static enum status open_directory(struct arena *a, struct data_source *s) {
    const char **names;
    uint32_t n, files = 0;
    size_t total = 0;
    TRY(sys_list_dir(a, s->path, &names, &n));
    struct file_map *maps = ARENA_ARRAY(a, struct file_map, n);
    for (uint32_t i = 0; i < n; i++) {
        const char *path = arena_printf(a, "%s/%s", s->path, names[i]);
        if (sys_is_dir(path)) continue;
        TRY(sys_map_file(a, path, &maps[files]));
        if (arrays_recognise(maps[files].at, maps[files].size))
            return diag_error(a->ctx, ST_DATA, path,
                              "a directory is read as bytes of text, but this file holds arrays; "
                              "give the file itself");
        CHECK(a->ctx, size_add(total, maps[files].size, &total));
        files++;
    }
    if (total == 0)
        return diag_error(a->ctx, ST_DATA, s->path, "the directory holds no file with any bytes");
    return join_files(a, s, maps, files, total);
}

/* ---- arrays ------------------------------------------------------------------------------- */

/* Renamed arrays come first, so that an array which happens to have the input's name is shadowed.
 */
static enum status rename_arrays(struct arena *a, struct data_source *s, const char *const *map,
                                 int nmap) {
    struct arrays list = {0};
    for (int i = 0; i < nmap; i++) {
        const char *eq = strchr(map[i], '=');
        if (!eq || eq == map[i])
            return diag_error(a->ctx, ST_USAGE, map[i],
                              "expected INPUT=ARRAY to say which array feeds an input");
        const struct array *from = arrays_find(&s->arrays, eq + 1);
        const char *input = arena_strndup(a, map[i], (size_t)(eq - map[i]));
        for (uint32_t k = 0; k < list.list.n; k++)
            if (strcmp(list.list.at[k].name, input) == 0)
                return diag_error(a->ctx, ST_USAGE, map[i], "input \"%s\" is mapped twice", input);
        if (!from)
            return diag_error(a->ctx, ST_DATA, s->path,
                              "holds no array \"%s\", which is to feed input \"%s\"", eq + 1,
                              input);
        struct array renamed = *from;
        renamed.name = input;
        vec_push(a, &list.list, renamed);
    }
    for (uint32_t i = 0; i < s->arrays.list.n; i++) vec_push(a, &list.list, s->arrays.list.at[i]);
    s->arrays = list;
    return ST_OK;
}

static enum status open_file(struct arena *a, struct data_source *s) {
    struct file_map m = {0};
    const char *path = s->path;
    TRY(sys_map_file(a, path, &m));
    if (m.size == 0)
        return diag_error(a->ctx, ST_DATA, path,
                          "the file is empty; expected arrays, token ids or text");
    if (arrays_recognise(m.at, m.size) || has_suffix(path, ".npy") || has_suffix(path, ".npz") ||
        has_suffix(path, ".safetensors")) {
        s->kind = DATA_ARRAYS;
        TRY(arrays_read_memory(a, m.at, m.size, path, &s->arrays));
        return s->arrays.list.n ? ST_OK
                                : diag_error(a->ctx, ST_DATA, path, "the file holds no array");
    }
    if (has_suffix(path, ".bin")) return read_bin(a, s, &m);
    return set_tokens(a, s, m.at, m.size, DT_u8);
}

enum status data_open(struct arena *a, const char *path, const char *const *map, int nmap,
                      struct data_source *out) {
    *out = (struct data_source){.path = arena_strdup(a, path)};
    TRY(sys_is_dir(path) ? open_directory(a, out) : open_file(a, out));
    if (nmap <= 0) return ST_OK;
    if (out->kind == DATA_TOKENS)
        return diag_error(
            a->ctx, ST_USAGE, path,
            "arrays can be renamed only where there are any; this is a stream of tokens");
    return rename_arrays(a, out, map, nmap);
}
