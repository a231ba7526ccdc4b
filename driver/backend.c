// SPDX-License-Identifier: Apache-2.0
/* backend.c - devices by name, and executors that are either the CPU's or a GPU's. */
#include "driver/backend.h"
#include "base/diag.h"
#include "driver/session.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- devices -----------------------------------------------------------------------------------
 */
/* The rest of the line of `path` that begins with `key` and a colon, in `a`; NULL when none. */
static const char *proc_value(struct arena *a, const char *path, const char *key) {
    char line[512];
    const char *found = NULL;
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, (int)sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        colon += 1 + strspn(colon + 1, " \t");
        found = arena_strndup(a, colon, strcspn(colon, "\n"));
    }
    if (f) fclose(f);
    return found;
}

struct cpu_facts device_cpu_facts(struct arena *a) {
    struct cpu_facts f = {.name = proc_value(a, "/proc/cpuinfo", "model name")};
    if (!f.name) f.name = "CPU";
#if defined(__x86_64__)
    f.arch = "x86-64";
#elif defined(__aarch64__)
    f.arch = "aarch64";
#else
    f.arch = "unknown";
#endif
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) f.memory_total = (size_t)pages * (size_t)page;
    const char *available = proc_value(a, "/proc/meminfo", "MemAvailable");
    if (available) f.memory_free = (size_t)strtoull(available, NULL, 10) * 1024;
    return f;
}

static struct device *add_device(lathe_context *c, const struct device *made) {
    struct device *d = ARENA_NEW(&c->arena, struct device);
    *d = *made;
    d->owner = c;
    d->next = c->devices;
    return c->devices = d;
}

static struct device *opened(const lathe_context *c, bool gpu, int number) {
    for (struct device *d = c->devices; d; d = d->next)
        if ((d->gpu != NULL) == gpu && d->number == number) return d;
    return NULL;
}

static void open_cpu(lathe_context *c, struct device **out) {
    *out = opened(c, false, 0);
    if (*out) return;
    struct cpu_facts f = device_cpu_facts(&c->arena);
    *out = add_device(c, &(struct device){.id = "cpu", .name = f.name, .arch = f.arch});
}

static enum status open_gpu(lathe_context *c, int number, struct device **out) {
    *out = opened(c, true, number);
    if (*out) return ST_OK;
    struct cuda_options o = {.device = number,
                             .cache_dir = c->cache_dir,
                             .library_dir = c->cuda_dir,
                             .compiled = c->compiled};
    /* The device is in the list before it is opened, so that nothing is lost to an unwind. */
    struct device *d = add_device(c, &(struct device){.number = -1});
    TRY(cuda_open(&c->ctx, &o, &d->gpu));
    struct cuda_info i = cuda_get_info(d->gpu);
    d->id = arena_printf(&c->arena, "cuda:%d", number);
    d->name = arena_strdup(&c->arena, i.name);
    d->arch = arena_printf(&c->arena, "sm_%d", i.arch);
    d->number = number;
    *out = d;
    return ST_OK;
}

/* A GPU that is there and cannot be used is worth a warning; none is what most machines have. */
static enum status open_any(lathe_context *c, struct device **out) {
    char why[256];
    enum status st = ST_UNSUPPORTED;
    if (cuda_device_count(&c->ctx, why) > 0) {
        struct session_held held;
        session_hold_begin(&c->ctx, &held);
        st = open_gpu(c, 0, out);
        session_hold_end(&c->ctx, &held);
        if (st == ST_UNSUPPORTED)
            diag_warning(&c->ctx, held.origin, "%s; the CPU is used", held.text);
        else if (st != ST_OK)
            return diag_error(&c->ctx, st, held.origin, "%s", held.text);
    } else {
        diag_note(&c->ctx, "", "%s; the CPU is used", why);
    }
    if (st != ST_OK) open_cpu(c, out);
    return ST_OK;
}

enum status device_open(lathe_context *c, const char *name, const char *otherwise,
                        struct device **out) {
    *out = NULL;
    if (!name) name = otherwise;
    if (strcmp(name, "auto") == 0) return open_any(c, out);
    if (strcmp(name, "cpu") == 0) {
        open_cpu(c, out);
        return ST_OK;
    }
    if (strcmp(name, "cuda") == 0) return open_gpu(c, 0, out);
    if (strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9' && strlen(name) < 9) {
        char *end;
        long n = strtol(name + 5, &end, 10);
        if (!*end) return open_gpu(c, (int)n, out);
    }
    return diag_error(&c->ctx, ST_USAGE, "",
                      "no device is called '%s'; there are cpu, cuda, cuda:N and auto (`lathe "
                      "devices` lists them)",
                      name);
}

void device_close_all(lathe_context *c) {
    for (struct device *d = c->devices; d; d = d->next) cuda_close(d->gpu);
    c->devices = NULL;
}

struct codegen_options device_codegen(const struct device *d, bool no_fusion) {
    return (struct codegen_options){.threads = pool_threads(d->owner->pool),
                                    .cuda_arch = d->gpu ? cuda_plan_arch(d->gpu) : 0,
                                    .no_fusion = no_fusion};
}

size_t device_memory_free(const struct device *d) {
    return d->gpu ? cuda_memory_free(d->gpu) : 0;
}

const char *device_kernel_source(void *user, const char *file, size_t *size) {
    (void)user;
    const struct kernel_file *k;
    for (int i = 0; (k = kernel_file_at(i)) != NULL; i++) {
        if (strcmp(k->name, file) != 0) continue;
        *size = k->size;
        return k->text;
    }
    return NULL;
}

/* ---- backends ----------------------------------------------------------------------------------
 */
/* The exit code of the command tells a GPU that failed from a file that cannot be read. */
static enum status gpu_status(const struct backend *b, enum status st) {
    if (st == ST_IO) b->device->owner->device_failed = true;
    return st;
}

static void tell_kernels(struct device *d) {
    struct cuda_kernel_stats s = cuda_get_kernel_stats(d->gpu), *t = &d->told;
    uint32_t packed = s.packed - t->packed;
    diag_note(&d->owner->ctx, d->id, "kernels: compiled %u, cached %u, %.2f s%s",
              s.compiled - t->compiled, s.cached - t->cached + packed, s.seconds - t->seconds,
              packed ? ", from the compiled file" : "");
    *t = s;
}

enum status backend_open(struct backend *b, struct device *d, const struct plan *p) {
    lathe_context *c = d->owner;
    *b = (struct backend){.device = d, .plan = p};
    if (!d->gpu) return cpu_create(&c->ctx, p, c->pool, &b->cpu);
    TRY(gpu_status(b, cuda_create(d->gpu, p, device_kernel_source, NULL, &b->gpu)));
    tell_kernels(d);
    return ST_OK;
}

void backend_release(struct backend *b) {
    cpu_destroy(b->cpu);
    cuda_destroy(b->gpu);
    *b = (struct backend){0};
}

void *backend_memory(struct backend *b, buf_id id) {
    if (!id.i) return NULL;
    return b->gpu ? cuda_host_buffer_at(b->gpu, id) : cpu_buffer_at(b->cpu, id);
}

enum status backend_read(struct backend *b, buf_id id, void *to) {
    if (b->gpu) return gpu_status(b, cuda_read(b->gpu, id, to));
    size_t bytes = (size_t)b->plan->buffers.at[id.i].bytes;
    if (bytes) memcpy(to, cpu_buffer_at(b->cpu, id), bytes);
    return ST_OK;
}

enum status backend_write(struct backend *b, buf_id id, const void *from) {
    if (b->gpu) return gpu_status(b, cuda_write(b->gpu, id, from));
    size_t bytes = (size_t)b->plan->buffers.at[id.i].bytes;
    void *at = cpu_buffer_at(b->cpu, id);
    if (bytes && at != from) memcpy(at, from, bytes);
    return ST_OK;
}

enum status backend_view(struct backend *b, buf_id id, struct arena *a, const void **out) {
    *out = backend_memory(b, id);
    if (*out || !b->gpu || !b->plan->buffers.at[id.i].bytes) return ST_OK;
    void *copy = arena_alloc(a, (size_t)b->plan->buffers.at[id.i].bytes);
    *out = copy;
    return backend_read(b, id, copy);
}

enum status backend_run(struct backend *b, uint32_t from, uint32_t to, bool check) {
    return b->gpu ? gpu_status(b, cuda_run(b->gpu, from, to, check))
                  : cpu_run(b->cpu, from, to, check);
}

size_t backend_bytes(const struct backend *b) {
    return b->gpu ? cuda_bytes(b->gpu) : b->cpu ? cpu_bytes(b->cpu) : 0;
}

const double *backend_profile(struct backend *b, bool enable) {
    return b->gpu ? cuda_profile(b->gpu, enable) : cpu_profile(b->cpu, enable);
}
