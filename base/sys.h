// SPDX-License-Identifier: Apache-2.0
/* sys.h - files, clocks and shared libraries: the only file that talks to the operating system.
 * Errors are reported with the path and the system's reason. */
#ifndef LATHE_BASE_SYS_H
#define LATHE_BASE_SYS_H

#include "base/arena.h"
#include <stdint.h>
#include <stdio.h>

struct file_map {
    const uint8_t *at; /* NULL when size is 0 */
    size_t size;
};
/* Map a regular file read-only; unmapped when the arena is reset. Refuses directories, devices and
 * FIFOs. ST_IO with a diagnostic on failure. */
enum status sys_map_file(struct arena *a, const char *path, struct file_map *out) MUST_USE;

/* Map `rel` below directory `dir` without ever leaving it: refuses absolute paths, "..", empty
 * components, backslashes and drive letters, symbolic links and files with more than one link
 * (CVE-2022-25882, CVE-2024-27318, CVE-2026-27489, CVE-2026-34446). */
enum status sys_map_beneath(struct arena *a, const char *dir, const char *rel,
                            struct file_map *out) MUST_USE;

/* A file that appears under its final name complete or not at all: written to a temporary name in
 * the same directory, synced, renamed. On failure the temporary file is removed. */
struct sys_writer;
enum status sys_write_begin(struct arena *a, const char *path, struct sys_writer **out) MUST_USE;
enum status sys_write(struct sys_writer *w, const void *p, size_t n) MUST_USE;
enum status sys_write_commit(struct sys_writer *w) MUST_USE;
void sys_write_abort(struct sys_writer *w);
FILE *
sys_writer_file(struct sys_writer *w); /* the underlying stream, for libraries that want one */
const char *sys_writer_path(const struct sys_writer *w); /* its temporary path */
/* All of the above in one call. */
enum status sys_write_file(struct ctx *c, const char *path, const void *p, size_t n) MUST_USE;

enum status sys_mkdirs(struct ctx *c, const char *path) MUST_USE; /* like mkdir -p */
enum status sys_rename(struct ctx *c, const char *from, const char *to) MUST_USE;
/* Remove a directory tree that Lathe itself made; links are removed, not followed. */
enum status sys_remove_tree(struct ctx *c, const char *path) MUST_USE;
/* The names in a directory but "." and "..", in byte order. */
enum status sys_list_dir(struct arena *a, const char *dir, const char ***names,
                         uint32_t *n) MUST_USE;
bool sys_is_dir(const char *path);
bool sys_exists(const char *path);
/* "dir" and "name" parts of a path, in the arena; dir is "." when there is none. */
const char *sys_dirname(struct arena *a, const char *path);
const char *sys_basename(const char *path);

/* Ask for large pages under a big block that will be written soon; a hint, never an error. */
void sys_large_pages(void *at, size_t bytes);

double sys_seconds(void);      /* monotonic */
double sys_wall_seconds(void); /* since 1970 */
int sys_cpu_count(void);       /* CPUs this process may run on, at least 1 */

/* A shared library, closed when the arena is reset; NULL (no diagnostic) when absent. */
void *sys_dlopen(struct arena *a, const char *name);
void *sys_dlsym(void *lib, const char *symbol);

#endif
