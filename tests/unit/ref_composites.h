// SPDX-License-Identifier: Apache-2.0
/* ref_composites.h - the part of ref_eval.h for norms, losses, attention and optimizers; included
 * by it alone, after what it uses is defined. */
#ifndef LATHE_TEST_REF_COMPOSITES_H
#define LATHE_TEST_REF_COMPOSITES_H

static inline void ref_norm(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct ref *x = ref_arg(e, n, 0);
    int64_t rows = 1, len = 1, axis = attr_int(e->g, n, ATTR_axis);
    bool centred = op == OP_layer_norm;
    double eps = attr_float(e->g, n, ATTR_eps);
    for (int i = 0; i < x->rank; i++) *(i < axis ? &rows : &len) *= x->dims[i];
    for (int64_t r = 0; r < rows; r++) {
        double mean = 0, var = 0;
        for (int64_t i = 0; centred && i < len; i++) mean += x->at[r * len + i] / (double)len;
        for (int64_t i = 0; i < len; i++) {
            double d = x->at[r * len + i] - mean;
            var += d * d / (double)len;
        }
        double rstd = 1 / sqrt(var + eps);
        for (int64_t i = 0; i < len; i++) y->at[r * len + i] = (x->at[r * len + i] - mean) * rstd;
        if (centred) y[1].at[r] = mean;
        y[centred ? 2 : 1].at[r] = rstd;
    }
}

static inline void ref_cross_entropy(struct ref_env *e, node_id n, struct ref *y) {
    const struct ref *x = ref_arg(e, n, 0), *label = ref_arg(e, n, 1);
    int64_t classes = x->dims[1], skip = attr_int(e->g, n, ATTR_ignore_index);
    for (int64_t r = 0; r < x->dims[0]; r++) {
        const double *z = x->at + r * classes;
        double top = -INFINITY, sum = 0;
        for (int64_t i = 0; i < classes; i++) top = fmax(top, z[i]);
        for (int64_t i = 0; i < classes; i++) sum += exp(z[i] - top);
        y[1].at[r] = top + log(sum);
        int64_t k = (int64_t)label->at[r];
        ck_assert(k == skip || (k >= 0 && k < classes));
        y[0].at[r] = k == skip ? 0 : y[1].at[r] - z[k];
    }
}

/* One row of attention: probabilities p[S] and the slope of the soft cap; gives the log-sum-exp. */
static inline double ref_scores(struct ref_env *e, node_id n, const struct ref *mask,
                                const int64_t *row, double *p, double *slope) {
    const struct ref *q = ref_arg(e, n, 0), *k = ref_arg(e, n, 1);
    int64_t T = q->dims[2], S = k->dims[2], D = q->dims[3], rep = q->dims[1] / k->dims[1];
    double cap = attr_float(e->g, n, ATTR_softcap), top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < S; j++) {
        double s = 0;
        int64_t at[4] = {row[0], row[1], row[2], j};
        for (int64_t d = 0; d < D; d++)
            s += q->at[((row[0] * q->dims[1] + row[1]) * T + row[2]) * D + d] *
                 k->at[((row[0] * k->dims[1] + row[1] / rep) * S + j) * D + d];
        s *= attr_float(e->g, n, ATTR_scale);
        slope[j] = 1;
        if (cap > 0) {
            double t = tanh(s / cap);
            s = cap * t;
            slope[j] = 1 - t * t;
        }
        if (mask) {
            double m = mask->at[ref_at(mask, at, 4)];
            s = mask->dtype != DT_bool ? s + m : m != 0 ? s : -INFINITY;
        }
        if (attr_bool(e->g, n, ATTR_causal) && j > row[2] + S - T) s = -INFINITY;
        p[j] = s;
        top = fmax(top, s);
    }
    for (int64_t j = 0; j < S; j++) sum += p[j] = top == -INFINITY ? 0 : exp(p[j] - top);
    for (int64_t j = 0; sum > 0 && j < S; j++) p[j] /= sum;
    return top + log(sum);
}

/* grad: y is (dq, dk, dv) and g the gradient of the result; else y is (y, lse). */
static inline void ref_attention(struct ref_env *e, node_id n, struct ref *y, bool grad) {
    const struct ref *q = ref_arg(e, n, 0), *k = ref_arg(e, n, 1), *v = ref_arg(e, n, 2);
    int at_mask = grad ? 6 : 3;
    const struct ref *mask = graph_node(e->g, n)->nin > at_mask ? ref_arg(e, n, at_mask) : NULL;
    const struct ref *g = grad ? ref_arg(e, n, 5) : NULL;
    int64_t H = q->dims[1], T = q->dims[2], S = k->dims[2], D = q->dims[3], E = v->dims[3];
    double *p = ARENA_ARRAY(e->a, double, (size_t)S), *slope = ARENA_ARRAY(e->a, double, (size_t)S);
    double scale = attr_float(e->g, n, ATTR_scale);
    for (int64_t r = 0; r < q->dims[0] * H * T; r++) {
        int64_t row[3] = {r / T / H, r / T % H, r % T};
        int64_t kv = row[0] * k->dims[1] + row[1] / (H / k->dims[1]);
        const double *vs = v->at + kv * S * E, *ks = k->at + kv * S * D, *qr = q->at + r * D;
        double lse = ref_scores(e, n, mask, row, p, slope), mean = 0;
        for (int64_t j = 0; !grad && j < S; j++)
            for (int64_t i = 0; i < E; i++) y->at[r * E + i] += p[j] * vs[j * E + i];
        if (!grad) {
            y[1].at[r] = lse;
            continue;
        }
        for (int64_t j = 0; j < S; j++)
            for (int64_t i = 0; i < E; i++) mean += p[j] * vs[j * E + i] * g->at[r * E + i];
        for (int64_t j = 0; j < S; j++) {
            double dp = 0;
            for (int64_t i = 0; i < E; i++) {
                dp += vs[j * E + i] * g->at[r * E + i];
                y[2].at[(kv * S + j) * E + i] += p[j] * g->at[r * E + i];
            }
            double ds = p[j] * (dp - mean) * slope[j] * scale;
            for (int64_t d = 0; d < D; d++) {
                y[0].at[r * D + d] += ds * ks[j * D + d];
                y[1].at[(kv * S + j) * D + d] += ds * qr[d];
            }
        }
    }
}

static inline void ref_optimizer(struct ref_env *e, node_id n, enum op op, struct ref *y) {
    const struct graph *g = e->g;
    bool adam = op == OP_adam;
    double wd = attr_float(g, n, ATTR_weight_decay);
    double lr = ref_arg(e, n, adam ? 4 : 3)->at[0], t = ref_arg(e, n, adam ? 5 : 4)->at[0];
    for (int64_t i = 0; i < y->n; i++) {
        double w = ref_arg(e, n, 0)->at[i], d = ref_arg(e, n, 1)->at[i];
        double a = ref_arg(e, n, 2)->at[i];
        if (!adam) {
            double mu = attr_float(g, n, ATTR_momentum);
            d += wd * w;
            a = t == 1 ? d : mu * a + (1 - attr_float(g, n, ATTR_dampening)) * d;
            y[0].at[i] = w - lr * (attr_bool(g, n, ATTR_nesterov) ? d + mu * a : a);
            y[1].at[i] = a;
            continue;
        }
        double b1 = attr_float(g, n, ATTR_beta1), b2 = attr_float(g, n, ATTR_beta2);
        double v = ref_arg(e, n, 3)->at[i];
        bool decoupled = attr_bool(g, n, ATTR_decoupled);
        if (!decoupled) d += wd * w;
        if (decoupled) w -= lr * wd * w;
        a = b1 * a + (1 - b1) * d;
        v = b2 * v + (1 - b2) * d * d;
        double c1 = t > 0 ? 1 - pow(b1, t) : 1, c2 = t > 0 ? 1 - pow(b2, t) : 1;
        double eps = attr_float(g, n, ATTR_eps);
        double den =
            attr_bool(g, n, ATTR_eps_hat) ? (sqrt(v) + eps) / sqrt(c2) : sqrt(v) / sqrt(c2) + eps;
        y[0].at[i] = w - lr / c1 * a / den;
        y[1].at[i] = a;
        y[2].at[i] = v;
    }
}

#endif
