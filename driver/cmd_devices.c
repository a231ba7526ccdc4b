// SPDX-License-Identifier: Apache-2.0
/* cmd_devices.c - `lathe devices`: what `--device` takes on this machine, one line each. A machine
 * without a GPU is no error. */
#include "base/diag.h"
#include "driver/command.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct listing {
    lathe_context *c;
    bool json;
    json_t *list;
};

static double gib(size_t bytes) {
    return (double)bytes / 1073741824.0;
}

static void list_cpu(struct listing *l) {
    struct cpu_facts f = device_cpu_facts(&l->c->arena);
    int threads = pool_threads(l->c->pool);
    if (!l->json) {
        printf("cpu     %s, %s, %.1f GiB, %.1f free, %d threads\n", f.name, f.arch,
               gib(f.memory_total), gib(f.memory_free), threads);
        return;
    }
    json_t *j = json_object();
    json_object_set_new(j, "device", json_string("cpu"));
    json_object_set_new(j, "name", json_string(f.name));
    json_object_set_new(j, "arch", json_string(f.arch));
    json_object_set_new(j, "memory_bytes", json_integer((json_int_t)f.memory_total));
    json_object_set_new(j, "free_bytes", json_integer((json_int_t)f.memory_free));
    json_object_set_new(j, "threads", json_integer(threads));
    json_array_append_new(l->list, j);
}

static void list_gpu(struct listing *l, const struct device *d) {
    struct cuda_info i = cuda_get_info(d->gpu);
    int driver = i.driver_version, nvrtc = i.nvrtc_version;
    if (!l->json) {
        printf("%-7s %s, %s, %.1f GiB, %.1f free, %d SMs, driver for CUDA %d.%d, NVRTC %d.%d\n",
               d->id, d->name, d->arch, gib(i.memory_total), gib(i.memory_free), i.processors,
               driver / 1000, driver % 1000 / 10, nvrtc / 1000, nvrtc % 1000 / 10);
        return;
    }
    json_t *j = json_object();
    json_object_set_new(j, "device", json_string(d->id));
    json_object_set_new(j, "name", json_string(d->name));
    json_object_set_new(j, "arch", json_string(d->arch));
    json_object_set_new(j, "memory_bytes", json_integer((json_int_t)i.memory_total));
    json_object_set_new(j, "free_bytes", json_integer((json_int_t)i.memory_free));
    json_object_set_new(j, "processors", json_integer(i.processors));
    json_object_set_new(j, "driver", json_integer(driver));
    json_object_set_new(j, "nvrtc", json_integer(nvrtc));
    json_array_append_new(l->list, j);
}

/* A GPU that is there and cannot be used; number -1: there is none. */
static void list_problem(struct listing *l, int number, const char *why) {
    char id[20] = "cuda";
    if (number >= 0) snprintf(id, sizeof id, "cuda:%d", number);
    if (!l->json) {
        printf("%-7s cannot be used: %s\n", id, why);
        return;
    }
    json_t *j = json_object();
    json_object_set_new(j, "device", json_string(id));
    json_object_set_new(j, "problem", json_string(why));
    json_array_append_new(l->list, j);
}

static enum status list_body(void *arg) {
    struct listing *l = arg;
    char why[256], id[20];
    list_cpu(l);
    int n = cuda_device_count(&l->c->ctx, why);
    if (n < 1) list_problem(l, -1, why);
    for (int i = 0; i < n; i++) {
        struct session_held held;
        struct device *d;
        snprintf(id, sizeof id, "cuda:%d", i);
        session_hold_begin(&l->c->ctx, &held);
        enum status st = device_open(l->c, id, "cpu", &d);
        session_hold_end(&l->c->ctx, &held);
        if (st == ST_OK)
            list_gpu(l, d);
        else
            list_problem(l, i, held.text);
    }
    if (!l->json) return ST_OK;
    char *text = json_dumps(l->list, JSON_INDENT(1));
    puts(text ? text : "[]");
    free(text);
    return ST_OK;
}

int cmd_devices(int argc, char **argv) {
    struct listing l = {.json = false};
    // clang-format off
    const struct option_spec spec[] = {
        {"--json", OPTION_FLAG, &l.json, 0, 0, NULL, "for scripts"},
    };
    // clang-format on
    int rc = options_parse(command_named("devices"), spec, 1, argc, argv, NULL, 0, 0);
    if (rc) return rc == 1 ? 0 : rc;
    l.c = command_context(false, 0);
    if (!l.c) return 1;
    l.list = json_array();
    enum status st = (enum status)session_guard(l.c, list_body, &l);
    json_decref(l.list);
    return command_end(l.c, st);
}
