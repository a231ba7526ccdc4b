// SPDX-License-Identifier: Apache-2.0
/* checkpoint.c - RUN/checkpoint/STEP/: tensors.safetensors and state.json. The rename of the
 * finished directory is the commit. Names that start with a dot are not (or no longer) checkpoints.
 */
#include "base/diag.h"
#include "base/hash.h"
#include "runtime/metrics.h"
#include <jansson.h>
#include <string.h>

/* state.json is one line whose last member is the caller's text, byte for byte:
 * {"format":1,"step":S,"tensors_bytes":N,"tensors_xxh3":"H","state_xxh3":"H","state":TEXT} */
enum { CHECKPOINT_FORMAT = 1 };
static const char state_key[] = ",\"state\":";
static const char saving_prefix[] = ".saving-", removed_prefix[] = ".removed-";

static const char *join(struct arena *a, const char *dir, const char *name) {
    return arena_printf(a, "%s/%s", dir, name);
}

/* The step that a directory name stands for, -1 for other names. */
static int64_t step_of(const char *name) {
    int64_t step = 0;
    if (!*name || (name[0] == '0' && name[1])) return -1;
    for (; *name; name++)
        if (*name < '0' || *name > '9' || __builtin_mul_overflow(step, (int64_t)10, &step) ||
            __builtin_add_overflow(step, (int64_t)(*name - '0'), &step))
            return -1;
    return step;
}

static void free_json(void *ptr) {
    json_decref(*(json_t **)ptr);
}

static json_t *parse_object(struct arena *a, const void *text, size_t n) {
    json_t **slot = ARENA_NEW(a, json_t *);
    arena_defer(a, free_json, slot);
    *slot = n ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    return json_is_object(*slot) ? *slot : NULL;
}

static const char *hash_text(struct arena *a, const void *p, size_t n) {
    return arena_printf(a, "%016jx", (uintmax_t)hash_bytes(n ? p : "", n));
}

/* Covers the step too. */
static const char *state_hash(struct arena *a, int64_t step, const char *state) {
    return arena_printf(a, "%016jx",
                        (uintmax_t)hash_combine(hash_bytes(state, strlen(state)), (uint64_t)step));
}

/* ---- saving ------------------------------------------------------------------------------- */

/* What a save that was interrupted left behind, by the beginning of its name. */
static enum status remove_leftovers(struct arena *a, const char *dir, const char *prefix) {
    const char **names;
    uint32_t n = 0;
    TRY(sys_list_dir(a, dir, &names, &n));
    for (uint32_t i = 0; i < n; i++)
        if (strncmp(names[i], prefix, strlen(prefix)) == 0)
            TRY(sys_remove_tree(a->ctx, join(a, dir, names[i])));
    return ST_OK;
}

static enum status write_state(struct arena *a, const char *dir, int64_t step, const char *state) {
    struct file_map m = {0};
    TRY(sys_map_file(a, join(a, dir, "tensors.safetensors"), &m));
    const char *text =
        arena_printf(a,
                     "{\"format\":%d,\"step\":%jd,\"tensors_bytes\":%zu,\"tensors_xxh3\":\"%s\","
                     "\"state_xxh3\":\"%s\"%s%s}\n",
                     CHECKPOINT_FORMAT, (intmax_t)step, m.size, hash_text(a, m.at, m.size),
                     state_hash(a, step, state), state_key, state);
    return sys_write_file(a->ctx, join(a, dir, "state.json"), text, strlen(text));
}

/* Out of the way under a name that is no step, so that an interruption never leaves half a
 * checkpoint under one. */
static enum status set_aside(struct arena *a, const char *dir, int64_t step) {
    const char *aside = arena_printf(a, "%s/%s%jd", dir, removed_prefix, (intmax_t)step);
    TRY(sys_remove_tree(a->ctx, aside));
    return sys_rename(a->ctx, arena_printf(a, "%s/%jd", dir, (intmax_t)step), aside);
}

/* Steps above `most` belong to a future that this run has gone back from; they are left alone. */
static enum status set_older_aside(struct arena *a, const char *dir, int64_t most, int keep) {
    const char **names;
    uint32_t n, steps = 0;
    TRY(sys_list_dir(a, dir, &names, &n));
    int64_t *list = ARENA_ARRAY(a, int64_t, n);
    for (uint32_t i = 0; i < n; i++) {
        int64_t step = step_of(names[i]);
        if (step < 0 || step > most) continue;
        uint32_t k = steps++;
        for (; k > 0 && list[k - 1] < step; k--) list[k] = list[k - 1]; /* newest first */
        list[k] = step;
    }
    for (uint32_t i = (uint32_t)keep; i < steps; i++) TRY(set_aside(a, dir, list[i]));
    return ST_OK;
}

static enum status save(struct arena *a, const char *run, int64_t step, const struct array *list,
                        uint32_t n, const char *state_json, int keep) {
    struct ctx *c = a->ctx;
    const char *dir = join(a, run, "checkpoint");
    const char *temporary = arena_printf(a, "%s/%s%jd", dir, saving_prefix, (intmax_t)step);
    const char *final = arena_printf(a, "%s/%jd", dir, (intmax_t)step);
    CHECK(c, step >= 0 && keep >= 0 && parse_object(a, state_json, strlen(state_json)) != NULL);
    TRY(sys_mkdirs(c, dir));
    TRY(remove_leftovers(a, dir, saving_prefix));
    TRY(sys_mkdirs(c, temporary));
    TRY(safetensors_write(c, join(a, temporary, "tensors.safetensors"), list, n, NULL, 0));
    TRY(write_state(a, temporary, step, state_json));
    if (sys_exists(final)) TRY(set_aside(a, dir, step));
    TRY(sys_rename(c, temporary, final));
    if (keep) TRY(set_older_aside(a, dir, step, keep));
    return remove_leftovers(a, dir, removed_prefix);
}

enum status checkpoint_save(struct arena *scratch, const char *run, int64_t step,
                            const struct array *list, uint32_t n, const char *state_json,
                            int keep) {
    struct arena_mark mark = arena_mark(scratch);
    enum status st = save(scratch, run, step, list, n, state_json, keep);
    arena_rewind(scratch, mark);
    return st;
}

/* ---- loading ------------------------------------------------------------------------------ */

static bool is_checkpoint(struct arena *a, const char *dir) {
    return sys_exists(join(a, dir, "state.json")) &&
           sys_exists(join(a, dir, "tensors.safetensors"));
}

static enum status find_newest(struct arena *a, const char *run, const char **dir) {
    const char **names, *parent = join(a, run, "checkpoint");
    uint32_t n = 0;
    int64_t newest = -1;
    if (is_checkpoint(a, run)) {
        *dir = run;
        return ST_OK;
    }
    if (sys_is_dir(parent)) TRY(sys_list_dir(a, parent, &names, &n));
    /* One that was set aside counts until its successor is in place; in byte order it comes before
     * it. */
    for (uint32_t i = 0; i < n; i++) {
        bool removed = strncmp(names[i], removed_prefix, strlen(removed_prefix)) == 0;
        int64_t step = step_of(names[i] + (removed ? strlen(removed_prefix) : 0));
        const char *candidate = join(a, parent, names[i]);
        if (step < 0 || step < newest || !is_checkpoint(a, candidate)) continue;
        newest = step;
        *dir = candidate;
    }
    if (newest < 0)
        return diag_error(
            a->ctx, ST_IO, run,
            "holds no complete checkpoint; expected checkpoint/STEP/ with state.json and "
            "tensors.safetensors");
    return ST_OK;
}

static enum status damaged(struct arena *a, const char *path, const char *what) {
    return diag_error(a->ctx, ST_PARSE, path,
                      "the checkpoint is damaged: %s; remove it, or resume from another one by "
                      "its directory",
                      what);
}

/* The caller's text inside state.json, checked against its hash. NULL when it is not there. */
static const char *extract_state(struct arena *a, const struct file_map *m, int64_t step,
                                 const char *hash) {
    const char *text = arena_strndup(a, (const char *)m->at, m->size);
    const char *from = strstr(text, state_key), *end = strrchr(text, '}');
    if (!from || strlen(text) != m->size) return NULL;
    from += strlen(state_key);
    if (end < from) return NULL;
    const char *state = arena_strndup(a, from, (size_t)(end - from));
    return strcmp(state_hash(a, step, state), hash) == 0 ? state : NULL;
}

struct state_facts {
    json_int_t format, step, bytes;
    const char *tensors, *state; /* hashes */
};

static bool read_facts(json_t *root, struct state_facts *f) {
    json_t *format = json_object_get(root, "format"), *step = json_object_get(root, "step");
    json_t *bytes = json_object_get(root, "tensors_bytes");
    f->format = json_integer_value(format);
    f->step = json_integer_value(step);
    f->bytes = json_integer_value(bytes);
    f->tensors = json_string_value(json_object_get(root, "tensors_xxh3"));
    f->state = json_string_value(json_object_get(root, "state_xxh3"));
    return json_is_integer(format) && json_is_integer(step) && f->step >= 0 &&
           json_is_integer(bytes) && f->tensors && f->state;
}

enum status checkpoint_load(struct arena *a, const char *run, int64_t *step, struct arrays *out,
                            const char **state_json) {
    const char *dir = NULL;
    struct file_map state = {0}, tensors = {0};
    struct state_facts f;
    TRY(find_newest(a, run, &dir));
    const char *state_path = join(a, dir, "state.json"),
               *tensors_path = join(a, dir, "tensors.safetensors");
    TRY(sys_map_file(a, state_path, &state));
    json_t *root = parse_object(a, state.at, state.size);
    if (!root || !read_facts(root, &f))
        return damaged(a, state_path, "it is not what Lathe writes there");
    if (f.format != CHECKPOINT_FORMAT)
        return diag_error(a->ctx, ST_UNSUPPORTED, state_path,
                          "the checkpoint has format %jd; this version reads %d",
                          (intmax_t)f.format, CHECKPOINT_FORMAT);
    const char *text = extract_state(a, &state, f.step, f.state);
    if (!text) return damaged(a, state_path, "the state does not match its hash");
    TRY(sys_map_file(a, tensors_path, &tensors));
    if (f.bytes < 0 || (uint64_t)f.bytes != tensors.size)
        return damaged(a, tensors_path, "its size is not the recorded one");
    if (strcmp(hash_text(a, tensors.at, tensors.size), f.tensors) != 0)
        return damaged(a, tensors_path, "the tensors do not match their hash");
    TRY(arrays_read_memory(a, tensors.at, tensors.size, tensors_path, out));
    *step = f.step;
    *state_json = text;
    return ST_OK;
}
