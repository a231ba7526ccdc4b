// SPDX-License-Identifier: Apache-2.0
/* import_attention.c - handlers of the Attention and RotaryEmbedding operators (opset 23 and 24).
 * Attention that exporters write out in small ops is recognised by a pass, not here. */
#include "frontend/importer.h"
#include <math.h>

/* [B,T,H*D] to [B,H,T,D]; 4-D operands are so already. */
static val_id heads(struct importer *im, val_id x, const struct inode *n, const char *count) {
    struct type t = ty(im, x);
    int64_t h = node_int(n, count, 0);
    dim d;
    if (failed(im) || t.rank == 4) return x;
    if (t.rank != 3 || h < 1 || !dim_div(im->g->dims, t.dims[2], h, &d)) {
        reject(im, ST_SHAPE, "operands must be [B,H,T,D], or [B,T,H*D] with '%s'", count);
        return VAL_NONE;
    }
    dim shape[4] = {t.dims[0], t.dims[1], h, d};
    return swap_axes(im, reshape(im, x, shape, 4), 1, 2);
}

/* The specification lets a mask end before the last key; keys beyond it are not seen. */
static val_id pad_mask(struct importer *im, val_id mask, dim keys) {
    struct type t = ty(im, mask);
    if (failed(im) || t.rank == 0) return mask;
    dim have = t.dims[t.rank - 1];
    if (have == 1 || !dim_known(have) || !dim_known(keys) || have >= keys) return mask;
    int64_t low[RANK_MAX] = {0}, high[RANK_MAX] = {0};
    high[t.rank - 1] = keys - have;
    if (t.dtype != DT_bool) return pad(im, mask, low, high, NULL, -INFINITY);
    return cast_to(im, pad(im, cast_to(im, mask, DT_u8), low, high, NULL, 0), DT_bool);
}

static val_id mask_both(struct importer *im, val_id mask, val_id keep) {
    if (mask.i == 0) return keep;
    if (ty(im, mask).dtype == DT_bool) return op_2(im, OP_and, mask, keep);
    return op_3(im, OP_where, keep, mask, scalar(im, ty(im, mask).dtype, -INFINITY));
}

/* Query i sees keys j <= i + past. */
static val_id causal_mask(struct importer *im, dim queries, dim keys, dim past) {
    val_id i = axis_iota(im, DT_i64, queries, 0, 2), j = axis_iota(im, DT_i64, keys, 1, 2);
    if (past != 0) i = op_2(im, OP_add, i, dim_value(im, DT_i64, past));
    return op_2(im, OP_le, j, i);
}

/* attn_mask, nonpad_kv_seqlen and a causal rule the IR's attention cannot say, as one mask. */
static val_id attention_mask(struct importer *im, const struct inode *n, dim queries, dim keys,
                             dim past, bool *causal) {
    val_id mask = VAL_NONE;
    if (has_in(n, 3)) mask = pad_mask(im, get(im, n, 3), keys);
    if (mask.i && !dtype_is_float(ty(im, mask).dtype)) mask = cast_to(im, mask, DT_bool);
    if (has_in(n, 6)) {
        val_id len = cast_to(im, get(im, n, 6), DT_i64);
        struct type t = ty(im, len);
        if (failed(im)) return VAL_NONE;
        if (*causal) {
            refuse(im, "is_causal together with nonpad_kv_seqlen");
            return VAL_NONE;
        }
        dim shape[4] = {t.rank == 1 ? t.dims[0] : 1, 1, 1, 1};
        val_id at = axis_iota(im, DT_i64, keys, 3, 4);
        mask = mask_both(im, mask, op_2(im, OP_lt, at, reshape(im, len, shape, 4)));
    }
    dim reach = 0; /* the IR's rule sees keys j <= i + keys - queries */
    bool fits = dim_try_add(im->g->dims, queries, past, &reach) && dim_same(reach, keys);
    if (*causal && !fits) {
        mask = mask_both(im, mask, causal_mask(im, queries, keys, past));
        *causal = false;
    }
    return mask;
}

/* The qk_matmul_output: scores before or after the softcap, with the mask, or the probabilities. */
static val_id attention_scores(struct importer *im, const struct inode *n, const val_id *in,
                               double scale, bool causal, dim past) {
    int64_t mode = node_int(n, "qk_matmul_output_mode", 0);
    double cap = node_float(n, "softcap", 0);
    struct type q = ty(im, in[0]), k = ty(im, in[1]);
    val_id keys = in[1], mask = in[3];
    dim repeat;
    if (failed(im) || !dim_div(im->g->dims, q.dims[1], k.dims[1], &repeat)) return VAL_NONE;
    if (repeat != 1) { /* query heads share key heads */
        dim wide[5] = {k.dims[0], k.dims[1], repeat, k.dims[2], k.dims[3]};
        dim flat[4] = {k.dims[0], q.dims[1], k.dims[2], k.dims[3]};
        keys = reshape(im, expand(im, unsqueeze(im, keys, 2), wide, 5), flat, 4);
    }
    val_id s = scale_by(im, matmul(im, in[0], keys, false, true), scale);
    if (mode == 0) return s;
    if (cap != 0) s = scale_by(im, op_1(im, OP_tanh, scale_by(im, s, 1 / cap)), cap);
    if (mode == 1) return s;
    if (causal) mask = mask_both(im, mask, causal_mask(im, q.dims[2], k.dims[2], past));
    if (mask.i && ty(im, mask).dtype == DT_bool)
        s = op_3(im, OP_where, mask, s, scalar(im, q.dtype, -INFINITY));
    else if (mask.i)
        s = op_2(im, OP_add, s, mask);
    if (mode == 2) return s;
    if (mode != 3) refuse(im, "qk_matmul_output_mode %lld", (long long)mode);
    return with_axis(im, OP_softmax, s, 3);
}

void h_attention(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    val_id q = heads(im, get(im, n, 0), n, "q_num_heads");
    val_id k = heads(im, get(im, n, 1), n, "kv_num_heads");
    val_id v = heads(im, get(im, n, 2), n, "kv_num_heads");
    bool flat = in_type(im, n, 0).rank == 3, causal = node_int(n, "is_causal", 0) != 0;
    dim past = 0;
    if (failed(im)) return;
    if (ty(im, q).rank != 4 || ty(im, k).rank != 4 || ty(im, v).rank != 4) {
        reject(im, ST_SHAPE, "operands must have rank 3 or 4");
        return;
    }
    if (has_in(n, 4) && has_in(n, 5)) {
        val_id ks[2] = {get(im, n, 4), k}, vs[2] = {get(im, n, 5), v};
        past = ty(im, ks[0]).rank == 4 ? ty(im, ks[0]).dims[2] : 0;
        k = concat(im, ks, 2, 2);
        v = concat(im, vs, 2, 2);
    }
    struct type qt = ty(im, q), kt = ty(im, k);
    if (failed(im)) return;
    val_id in[4] = {q, k, v, attention_mask(im, n, qt.dims[2], kt.dims[2], past, &causal)};
    double scale = node_float(n, "scale", 0);
    if (!node_has(n, "scale")) {
        if (!dim_known(qt.dims[3]) || qt.dims[3] == 0) {
            refuse(im, "a symbolic head size");
            return;
        }
        scale = 1 / sqrt((double)qt.dims[3]);
    }
    struct attr a[3] = {{.key = ATTR_scale, .f = scale},
                        {.key = ATTR_causal, .i = causal},
                        {.key = ATTR_softcap, .f = node_float(n, "softcap", 0)}};
    val_id y = add_node(im, OP_attention, in, in[3].i ? 4 : 3, a, 3);
    if (flat && !failed(im)) {
        struct type t = ty(im, y);
        dim shape[3] = {t.dims[0], t.dims[2], dim_times(im, t.dims[1], t.dims[3])};
        y = reshape(im, swap_axes(im, y, 1, 2), shape, 3);
    }
    set_out(im, n, 0, y);
    set_out(im, n, 1, k);
    set_out(im, n, 2, v);
    if (has_out(n, 3)) set_out(im, n, 3, attention_scores(im, n, in, scale, causal, past));
}

/* ---- RotaryEmbedding ----------------------------------------------------------------------- */
/* [max, R] by position, or [B,S,R] as given, to [B,1,S,R]. */
static val_id rotary_table(struct importer *im, const struct inode *n, int k) {
    val_id t = get(im, n, k);
    if (has_in(n, 3)) t = gather(im, t, indices(im, get(im, n, 3)), 0);
    if (!failed(im) && ty(im, t).rank != 3) {
        reject(im, ST_SHAPE, "the tables must give [B,S,R], found rank %d", ty(im, t).rank);
        return VAL_NONE;
    }
    return unsqueeze(im, t, 1);
}

/* Half `which` of the pairs of x's last axis (size 2r): neighbours, or the two halves. */
static val_id rotary_half(struct importer *im, val_id x, int which, dim r, bool interleaved) {
    struct type t = ty(im, x);
    if (!interleaved) return slice_axis(im, x, 3, which ? r : 0, r);
    dim starts[4] = {0, 0, 0, which};
    int64_t steps[4] = {1, 1, 1, 2};
    t.dims[3] = r;
    return slice(im, x, starts, t.dims, steps);
}

void h_rotary(struct importer *im, const struct inode *n, int arg) {
    (void)arg;
    bool flat = in_type(im, n, 0).rank == 3, inter = node_int(n, "interleaved", 0) != 0;
    val_id x = heads(im, get(im, n, 0), n, "num_heads");
    val_id cosine = rotary_table(im, n, 1), sine = rotary_table(im, n, 2);
    struct type t = ty(im, x);
    if (failed(im)) return;
    int64_t part = node_int(n, "rotary_embedding_dim", 0);
    dim size = t.dims[3], r;
    if (!dim_known(size)) {
        refuse(im, "a symbolic head size");
        return;
    }
    if (part == 0) part = size;
    if (part < 2 || part > size || part % 2) {
        reject(im, ST_SHAPE, "%lld of %lld rotated", (long long)part, (long long)size);
        return;
    }
    r = part / 2;
    if (!dim_same(ty(im, cosine).dims[3], r) || !dim_same(ty(im, sine).dims[3], r)) {
        reject(im, ST_SHAPE, "the tables must have %lld columns", (long long)r);
        return;
    }
    val_id head = slice_axis(im, x, 3, 0, part);
    val_id a = rotary_half(im, head, 0, r, inter), b = rotary_half(im, head, 1, r, inter);
    val_id y[2] = {op_2(im, OP_sub, op_2(im, OP_mul, cosine, a), op_2(im, OP_mul, sine, b)),
                   op_2(im, OP_add, op_2(im, OP_mul, sine, a), op_2(im, OP_mul, cosine, b))};
    if (inter) {
        y[0] = unsqueeze(im, y[0], 4);
        y[1] = unsqueeze(im, y[1], 4);
    }
    val_id whole[2] = {concat(im, y, 2, inter ? 4 : 3), VAL_NONE};
    t.dims[3] = part;
    whole[0] = reshape(im, whole[0], t.dims, 4);
    if (part < size) whole[1] = slice_axis(im, x, 3, part, size - part);
    val_id out = part < size ? concat(im, whole, 2, 3) : whole[0];
    if (flat && !failed(im)) {
        struct type in = in_type(im, n, 0);
        out = reshape(im, swap_axes(im, out, 1, 2), in.dims, 3);
    }
    set_out(im, n, 0, out);
}
