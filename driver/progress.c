// SPDX-License-Identifier: Apache-2.0
/* progress.c - what a person sees while a run goes on. */
#include "driver/train_run.h"
#include <stdio.h>

static void format_eta(double seconds, char out[32]) {
    int64_t s = seconds > 0 && seconds < 1e9 ? (int64_t)seconds : 0;
    if (s >= 3600)
        snprintf(out, 32, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    else
        snprintf(out, 32, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
}

void progress_step(struct progress *p, int64_t step, double loss, double lr, double ms) {
    if (p->quiet) return;
    double now = sys_seconds();
    bool last = step == p->steps;
    /* Plain lines: each of the first ten, then about one a second. */
    double pause = p->terminal ? 0.1 : step - p->first <= 10 ? 0 : 1;
    if (!last && now - p->last_print < pause) return;
    p->last_print = now;
    double done = (double)(step - p->first), each = (now - p->begin) / (done > 0 ? done : 1);
    char eta[32];
    format_eta(each * (double)(p->steps - step), eta);
    printf("%sstep %lld/%lld  loss %.5f  lr %.3g  %.1f ms  %.0f %s/s  eta %s  %.1f MiB%s",
           p->terminal ? "\r\033[K" : "", (long long)step, (long long)p->steps, loss, lr, ms,
           (double)p->per_step / (each > 0 ? each : 1), p->unit, eta, (double)p->bytes / 1048576.0,
           p->terminal ? "" : "\n");
    fflush(stdout);
}

void progress_end(struct progress *p) {
    if (!p->quiet && p->terminal) puts("");
}
