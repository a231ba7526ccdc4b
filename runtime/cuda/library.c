// SPDX-License-Identifier: Apache-2.0
/* library.c - finding NVIDIA's libraries at run time and filling tables of functions from them. */
#include "base/sys.h"
#include "runtime/cuda/impl.h"
#include <string.h>

/* Where toolkits and distributions put their libraries; "" is the system's own search. */
static const char *const places[] = {
    "",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/sbsa-linux/lib",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
};

static void *try_place(struct arena *a, const char *dir, const char *name, struct buf *tried) {
    const char *path = *dir ? arena_printf(a, "%s/%s", dir, name) : name;
    if (tried) buf_printf(tried, "%s%s", tried->n ? ", " : "", path);
    if (*dir && !sys_exists(path)) return NULL;
    return sys_dlopen(a, path);
}

void *library_open(struct arena *a, const char *dir, const char *const *names, struct buf *tried) {
    void *lib = NULL;
    for (const char *const *n = names; dir && *n; n++)
        if ((lib = try_place(a, dir, *n, tried)) != NULL) return lib;
    for (; *names; names++)
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
            if ((lib = try_place(a, places[i], *names, tried)) != NULL) return lib;
    return NULL;
}

const char *library_fill(void *lib, const char *const *names, size_t n, void *table) {
    for (size_t i = 0; i < n; i++) {
        void *symbol = sys_dlsym(lib, names[i]);
        if (!symbol) return names[i];
        /* POSIX lets data pointers hold functions; ISO C has no conversion, so copy the bits. */
        memcpy((char *)table + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return NULL;
}
