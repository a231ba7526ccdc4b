// SPDX-License-Identifier: Apache-2.0
/* schedule.c - see schedule.h. */
#include "driver/schedule.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool parse_field(const char **s, const char *name, double *out) {
    size_t n = strlen(name);
    if (strncmp(*s, name, n) != 0 || (*s)[n] != '=') return false;
    char *end;
    *out = strtod(*s + n + 1, &end);
    if (end == *s + n + 1 || !(*out >= 0) || *out > 1e12) return false;
    *s = end;
    return true;
}

bool schedule_parse(const char *text, struct schedule *out) {
    static const char *const names[] = {"constant", "linear", "cosine"};
    *out = (struct schedule){SCHEDULE_CONSTANT, 0, 0};
    if (!text) return true;
    int kind = -1;
    const char *s = text;
    for (int k = 0; k < 3; k++) {
        size_t n = strlen(names[k]);
        if (strncmp(text, names[k], n) != 0 || (text[n] && text[n] != ':')) continue;
        kind = k;
        s = text + n;
    }
    if (kind < 0) return false;
    out->kind = kind;
    while (*s == ':' || *s == ',') {
        s++;
        if (!parse_field(&s, "warmup", &out->warmup) && !parse_field(&s, "floor", &out->floor))
            return false;
    }
    return *s == 0 && out->floor <= 1;
}

double schedule_factor(const struct schedule *s, int64_t step, int64_t steps) {
    double warmup = s->warmup < 1 ? s->warmup * (double)steps : s->warmup;
    if ((double)step <= warmup) return (double)step / warmup;
    double span = (double)steps - warmup;
    double done = span > 1 ? ((double)step - warmup - 1) / (span - 1) : 0;
    if (done > 1) done = 1;
    if (s->kind == SCHEDULE_LINEAR) return 1 - (1 - s->floor) * done;
    if (s->kind == SCHEDULE_COSINE)
        return s->floor + (1 - s->floor) * 0.5 * (1 + cos(3.14159265358979323846 * done));
    return 1;
}
