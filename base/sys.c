// SPDX-License-Identifier: Apache-2.0
/* sys.c - files, clocks and shared libraries on POSIX. Resources are registered with the arena
 * before they are acquired, so that an unwind in between cannot leak them. Knows no file format. */
#include "base/sys.h"
#include "base/diag.h"
#include "base/vec.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct reason {
    char text[96];
};

/* strerror without its shared buffer. */
static const char *reason_of(int err, struct reason *r) {
    return strerror_r(err, r->text, sizeof r->text);
}

static enum status io_error(struct ctx *c, const char *path, const char *what, int err) {
    struct reason r;
    return diag_error(c, ST_IO, path, "%s: %s", what, reason_of(err, &r));
}

/* ---- mapped files ------------------------------------------------------------------------- */

static void unmap(void *ptr) {
    struct file_map *m = ptr;
    if (m->at) munmap((void *)(uintptr_t)m->at, m->size);
}

/* A record that unmaps itself with the arena. */
static struct file_map *new_mapping(struct arena *a) {
    struct file_map *m = ARENA_NEW(a, struct file_map);
    arena_defer(a, unmap, m);
    return m;
}

/* Map the open file and close it. Never unwinds. */
static enum status map_fd(struct ctx *c, int fd, bool one_link, const char *origin,
                          struct file_map *m) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int err = errno;
        close(fd);
        return io_error(c, origin, "cannot inspect the file", err);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return diag_error(c, ST_IO, origin,
                          "expected a regular file, found a directory, device, pipe or socket");
    }
    if (one_link && st.st_nlink != 1) {
        close(fd);
        return diag_error(c, ST_IO, origin,
                          "expected a file with one name, found one with %ju hard links, which may "
                          "belong elsewhere; make it a copy",
                          (uintmax_t)st.st_nlink);
    }
    if (st.st_size == 0) {
        close(fd);
        return ST_OK;
    }
    if (st.st_size < 0 || (uintmax_t)st.st_size > SIZE_MAX) {
        close(fd);
        return diag_error(c, ST_IO, origin, "the file is too large to be mapped");
    }
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int err = errno;
    close(fd);
    if (at == MAP_FAILED) return io_error(c, origin, "cannot map the file", err);
    *m = (struct file_map){at, (size_t)st.st_size};
    return ST_OK;
}

/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
enum { READ_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

enum status sys_map_file(struct arena *a, const char *path, struct file_map *out) {
    struct file_map *m = new_mapping(a);
    int fd = open(path, READ_FLAGS);
    if (fd < 0) return io_error(a->ctx, path, "cannot open the file", errno);
    TRY(map_fd(a->ctx, fd, false, path, m));
    *out = *m;
    return ST_OK;
}

/* NULL, or why `rel` is not a plain path that stays below its directory on any system. */
static const char *hostile_path(const char *rel) {
    if (!*rel) return "it is empty";
    if (rel[0] == '/') return "it is absolute";
    if (strchr(rel, '\\')) return "it holds a backslash";
    if (rel[1] == ':') return "it starts with a drive letter";
    for (const char *p = rel;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0) return "it holds an empty component";
        if (n == 2 && p[0] == '.' && p[1] == '.') return "it holds \"..\"";
        if (n > NAME_MAX) return "a component is too long";
        p += n;
        if (!*p) return NULL;
    }
}

/* Open `rel` one component at a time, following no link; -1 with errno. Takes over `fd`. */
static int open_beneath(int fd, const char *rel) {
    for (;;) {
        char name[NAME_MAX + 1];
        size_t n = strcspn(rel, "/");
        memcpy(name, rel, n);
        name[n] = '\0';
        bool last = rel[n] == '\0';
        int next = openat(fd, name, READ_FLAGS | O_NOFOLLOW | (last ? 0 : O_DIRECTORY));
        int err = errno;
        close(fd);
        if (next < 0 || last) {
            errno = err;
            return next;
        }
        fd = next;
        rel += n + 1;
    }
}

enum status sys_map_beneath(struct arena *a, const char *dir, const char *rel,
                            struct file_map *out) {
    struct file_map *m = new_mapping(a);
    const char *why = hostile_path(rel);
    if (why)
        return diag_error(a->ctx, ST_IO, rel,
                          "expected a relative path below the model's directory, but %s", why);
    int fd = open(*dir ? dir : ".", READ_FLAGS | O_DIRECTORY);
    if (fd < 0) return io_error(a->ctx, dir, "cannot open the directory", errno);
    fd = open_beneath(fd, rel);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return diag_error(a->ctx, ST_IO, rel,
                          "expected a file reached through plain directories, found a symbolic "
                          "link or a non-directory on the way");
    if (fd < 0) return io_error(a->ctx, rel, "cannot open the file", errno);
    TRY(map_fd(a->ctx, fd, true, rel, m));
    *out = *m;
    return ST_OK;
}

/* ---- atomic writing ----------------------------------------------------------------------- */

struct sys_writer {
    struct ctx *ctx;
    const char *path;
    FILE *file; /* NULL once committed or aborted */
    char tmp[PATH_MAX];
};

/* Length of the directory part of `path` including its last slash; 0 when there is none. */
static size_t dir_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Make a rename in the directory of `path` durable. Some file systems cannot; that is no failure.
 */
static void sync_directory(const char *path) {
    char dir[PATH_MAX] = ".";
    size_t n = dir_length(path);
    if (n >= sizeof dir) return;
    if (n) {
        memcpy(dir, path, n);
        dir[n] = '\0';
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

/* A new file next to `path` with ordinary permissions (mkstemp would make it private). */
static int open_temporary(const char *path, char tmp[static PATH_MAX]) {
    int dir = (int)dir_length(path);
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        int n = snprintf(tmp, PATH_MAX, "%.*s.lathe-%ld-%lx.tmp", dir, path, (long)getpid(),
                         (unsigned long)now.tv_nsec + attempt * 1000003UL);
        if (n < 0 || n >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

/* Never unwinds; `w` and `path` are the caller's. */
static enum status open_writer(struct sys_writer *w, struct ctx *c, const char *path) {
    w->ctx = c;
    w->path = path;
    w->file = NULL;
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return diag_error(c, ST_IO, path,
                          "expected a regular file or a new name to write to, found a directory, "
                          "device or pipe");
    if (strlen(path) >= PATH_MAX) return io_error(c, "", "cannot write the file", ENAMETOOLONG);
    int fd = open_temporary(path, w->tmp);
    if (fd < 0) return io_error(c, path, "cannot create a file in its directory", errno);
    w->file = fdopen(fd, "w+");
    if (w->file) return ST_OK;
    int err = errno;
    close(fd);
    unlink(w->tmp);
    return io_error(c, path, "cannot open a stream", err);
}

static void abort_writer(void *ptr) {
    sys_write_abort(ptr);
}

enum status sys_write_begin(struct arena *a, const char *path, struct sys_writer **out) {
    struct sys_writer *w = ARENA_NEW(a, struct sys_writer);
    const char *own_path = arena_strdup(a, path);
    arena_defer(a, abort_writer, w);
    TRY(open_writer(w, a->ctx, own_path));
    *out = w;
    return ST_OK;
}

static enum status fail_writer(struct sys_writer *w, const char *what, int err) {
    sys_write_abort(w);
    return io_error(w->ctx, w->path, what, err);
}

enum status sys_write(struct sys_writer *w, const void *p, size_t n) {
    if (!w->file) return diag_error(w->ctx, ST_IO, w->path, "the file is no longer being written");
    if (n == 0 || fwrite(p, 1, n, w->file) == n) return ST_OK;
    return fail_writer(w, "cannot write", errno);
}

enum status sys_write_commit(struct sys_writer *w) {
    FILE *f = w->file;
    if (!f) return diag_error(w->ctx, ST_IO, w->path, "the file is no longer being written");
    if (ferror(f)) return fail_writer(w, "an earlier write failed", EIO);
    if (fflush(f) != 0) return fail_writer(w, "cannot write", errno);
    if (fsync(fileno(f)) != 0) return fail_writer(w, "cannot write to the device", errno);
    w->file = NULL;
    int err = fclose(f) != 0 ? errno : 0;
    if (!err && rename(w->tmp, w->path) != 0) err = errno;
    if (err) {
        unlink(w->tmp);
        return io_error(w->ctx, w->path, "cannot give the file its name", err);
    }
    sync_directory(w->path);
    return ST_OK;
}

void sys_write_abort(struct sys_writer *w) {
    if (!w || !w->file) return;
    fclose(w->file);
    w->file = NULL;
    unlink(w->tmp);
}

FILE *sys_writer_file(struct sys_writer *w) {
    return w->file;
}

const char *sys_writer_path(const struct sys_writer *w) {
    return w->tmp;
}

enum status sys_write_file(struct ctx *c, const char *path, const void *p, size_t n) {
    struct sys_writer w;
    TRY(open_writer(&w, c, path));
    TRY(sys_write(&w, p, n));
    return sys_write_commit(&w);
}

/* ---- names and directories ---------------------------------------------------------------- */

bool sys_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool sys_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

static void close_dir(void *ptr) {
    DIR **d = ptr;
    if (*d) closedir(*d);
    *d = NULL;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum status sys_list_dir(struct arena *a, const char *dir, const char ***names, uint32_t *n) {
    VEC(const char *) list = {0};
    DIR **d = ARENA_NEW(a, DIR *);
    arena_defer(a, close_dir, d);
    *d = opendir(dir);
    if (!*d) return io_error(a->ctx, dir, "cannot open the directory", errno);
    for (struct dirent *e; (e = readdir(*d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            vec_push(a, &list, arena_strdup(a, e->d_name));
    close_dir(d);
    if (list.n) qsort(list.at, list.n, sizeof *list.at, compare_names);
    *names = list.at;
    *n = list.n;
    return ST_OK;
}

enum status sys_mkdirs(struct ctx *c, const char *path) {
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return diag_error(c, ST_IO, path, "expected a directory name of 1 to %d bytes",
                          PATH_MAX - 1);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) == 0) continue;
        int err = errno;
        if (!sys_is_dir(part))
            return io_error(c, part, "cannot make the directory", err == EEXIST ? ENOTDIR : err);
    }
    return ST_OK;
}

enum status sys_rename(struct ctx *c, const char *from, const char *to) {
    struct reason r;
    if (rename(from, to) != 0)
        return diag_error(c, ST_IO, from, "cannot rename to %s: %s", to, reason_of(errno, &r));
    sync_directory(to);
    if (dir_length(from) != dir_length(to) || strncmp(from, to, dir_length(to)) != 0)
        sync_directory(from);
    return ST_OK;
}

enum { TREE_DEPTH = 32 }; /* far more than Lathe makes; bounds recursion and open files */

/* Remove everything in directory `fd`, which is taken over. 0 or an errno. */
static int empty_directory(int fd, int depth) {
    if (depth > TREE_DEPTH) {
        close(fd);
        return ELOOP;
    }
    DIR *d = fdopendir(fd);
    if (!d) {
        int err = errno;
        close(fd);
        return err;
    }
    int err = 0;
    for (struct dirent *e; !err && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT) continue;
        int sub = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        err = sub < 0 ? errno : empty_directory(sub, depth + 1);
        if (!err && unlinkat(fd, e->d_name, AT_REMOVEDIR) != 0) err = errno;
    }
    closedir(d);
    return err;
}

/* A path that does not exist counts as removed. */
enum status sys_remove_tree(struct ctx *c, const char *path) {
    const char *name = sys_basename(path);
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return diag_error(c, ST_USAGE, path, "expected the name of a directory to remove");
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? ST_OK : io_error(c, path, "cannot inspect the directory", errno);
    if (!S_ISDIR(st.st_mode)) {
        if (unlink(path) == 0) return ST_OK;
        return io_error(c, path, "cannot remove the file", errno);
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int err = fd < 0 ? errno : empty_directory(fd, 0);
    if (!err && rmdir(path) != 0) err = errno;
    return err ? io_error(c, path, "cannot remove the directory", err) : ST_OK;
}

const char *sys_dirname(struct arena *a, const char *path) {
    size_t n = dir_length(path);
    if (n == 0) return ".";
    while (n > 1 && path[n - 1] == '/') n--;
    return arena_strndup(a, path, n);
}

const char *sys_basename(const char *path) {
    return path + dir_length(path);
}

/* ---- clocks, CPUs, shared libraries ------------------------------------------------------- */

static double read_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void sys_large_pages(void *at, size_t bytes) {
    const uintptr_t page = 2u << 20;
    uintptr_t from = ((uintptr_t)at + page - 1) / page * page,
              to = ((uintptr_t)at + bytes) / page * page;
    if (to > from) (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

double sys_seconds(void) {
    return read_clock(CLOCK_MONOTONIC);
}

double sys_wall_seconds(void) {
    return read_clock(CLOCK_REALTIME);
}

int sys_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t holds */
    return n < 1 ? 1 : n > INT_MAX ? INT_MAX : (int)n;
}

static void close_library(void *ptr) {
    void **lib = ptr;
    if (*lib) dlclose(*lib);
}

void *sys_dlopen(struct arena *a, const char *name) {
    void **lib = ARENA_NEW(a, void *);
    arena_defer(a, close_library, lib);
    /* Its code stays: vendors' libraries leave threads and exit handlers behind. */
    *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return *lib;
}

void *sys_dlsym(void *lib, const char *symbol) {
    return dlsym(lib, symbol);
}
