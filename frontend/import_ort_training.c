// SPDX-License-Identifier: Apache-2.0
/* import_ort_training.c - handlers of the optimizers in ONNX Runtime's training artifacts (domain
 * com.microsoft): AdamWOptimizer as op `adam`, SGDOptimizerV2 and InplaceClipGradNorm written out.
 * Tensors come and go in sequences, which the importer folds. Semantics: ONNX Runtime's
 * orttraining/training_ops/cpu/optimizer. Where it updates in place, the results here are new
 * values. Not the older optimizers of one tensor. */
#include "frontend/importer.h"

enum { LISTS_MAX = 4 };

/* One node: sequences of equally many tensors, list 0 the weights. */
struct lists {
    struct importer *im;
    const struct inode *n;
    const struct ivalue *at[LISTS_MAX];
    int count;      /* lists */
    val_id updates; /* scalar bool: results replace the weights and states; VAL_NONE: always */
};

static val_id item(const struct lists *l, int list, uint32_t i) {
    return sequence_item(l->im, l->at[list], i);
}

/* Gradients may be of a small type, everything else is f32. */
static bool check_items(const struct lists *l) {
    for (uint32_t i = 0; i < l->at[0]->nitems; i++)
        for (int k = 0; k < l->count; k++) {
            struct type w = ty(l->im, item(l, 0, i)), t = ty(l->im, item(l, k, i));
            bool small = k == 1 && (t.dtype == DT_f16 || t.dtype == DT_bf16);
            if (small) t.dtype = DT_f32;
            if (t.dtype == DT_f32 && type_equal(&t, &w)) continue;
            reject(l->im, ST_TYPE,
                   "tensor %u, its gradient and states must be float tensors of one shape", i);
            return false;
        }
    return true;
}

/* Sequences from operand `first` on, then perhaps the update signal. */
static bool open_lists(struct lists *l, struct importer *im, const struct inode *n, int first,
                       int count) {
    *l = (struct lists){.im = im, .n = n, .count = count};
    if (n->nin < first + count || n->nin > first + count + 1) {
        reject(im, ST_USAGE, "%d inputs, expected %d or %d", n->nin, first + count,
               first + count + 1);
        return false;
    }
    for (int k = 0; k < count; k++) {
        l->at[k] = sequence_in(im, n, first + k);
        if (!l->at[k]) return false;
        if (l->at[k]->nitems == l->at[0]->nitems) continue;
        reject(im, ST_SHAPE, "sequences of %u and %u tensors", l->at[0]->nitems, l->at[k]->nitems);
        return false;
    }
    if (has_in(n, first + count)) {
        l->updates = one_number(im, n, first + count, "the update signal");
        if (!failed(im) && ty(im, l->updates).dtype != DT_bool)
            reject(im, ST_TYPE, "the update signal must be a bool");
    }
    return !failed(im) && check_items(l);
}

/* Output 0: whether anything changed, [1]. */
static void set_flag(const struct lists *l) {
    struct importer *im = l->im;
    const dim one[1] = {1};
    const struct type t = {DT_bool, 1, {1}};
    if (l->updates.i)
        set_out(im, l->n, 0, reshape(im, l->updates, one, 1));
    else
        set_out(im, l->n, 0, constant(im, &t, "\1", true));
}

static val_id chosen(const struct lists *l, val_id next, val_id before) {
    return l->updates.i ? op_3(l->im, OP_where, l->updates, next, before) : next;
}

static val_id rate_of(struct importer *im, const struct inode *n) {
    val_id lr = one_number(im, n, 0, "the learning rate");
    if (!failed(im) && ty(im, lr).dtype != DT_f32)
        reject(im, ST_TYPE, "the learning rate must be a float");
    return lr;
}

/* ---- AdamW -------------------------------------------------------------------------------------
 */
enum { MODE_TORCH, MODE_HUGGING_FACE };

struct adamw {
    struct adam_form form;
    double decay_after; /* times the rate, of the new weight */
    val_id lr, step;
};

/* Mode 0 is PyTorch's. Mode 1, once Hugging Face's, adds epsilon before the bias of v is taken out
 * and decays the new weight. correct_bias = 0 leaves all bias in, as op adam does in step 0. */
static bool read_adamw(struct adamw *a, struct importer *im, const struct inode *n) {
    int64_t mode = node_int(n, "adam_mode", MODE_TORCH), correct = node_int(n, "correct_bias", 1);
    double decay = node_float(n, "weight_decay", 0.01f);
    if ((mode != MODE_TORCH && mode != MODE_HUGGING_FACE) || (correct != 0 && correct != 1)) {
        reject(im, ST_USAGE, "adam_mode %lld and correct_bias %lld; both must be 0 or 1",
               (long long)mode, (long long)correct);
        return false;
    }
    a->form = (struct adam_form){
        .beta1 = node_float(n, "alpha", 0.9f),
        .beta2 = node_float(n, "beta", 0.999f),
        .eps = node_float(n, "epsilon", 1e-8f),
        .weight_decay = mode == MODE_TORCH ? decay : 0,
        .decoupled = true,
        .eps_hat = mode == MODE_HUGGING_FACE,
    };
    a->decay_after = mode == MODE_HUGGING_FACE ? decay : 0;
    a->lr = rate_of(im, n);
    a->step = one_number(im, n, 1, "the step");
    if (!failed(im) && ty(im, a->step).dtype != DT_i64)
        reject(im, ST_TYPE, "the step must be an int64");
    if (!correct) a->step = scalar_int(im, DT_i64, 0);
    return !failed(im);
}

void h_ort_adamw(struct importer *im, const struct inode *n, int arg) {
    struct lists l;
    struct adamw a = {0};
    (void)arg;
    if (!open_lists(&l, im, n, 2, 4) || !read_adamw(&a, im, n)) return;
    uint32_t count = l.at[0]->nitems;
    val_id *out[3];
    for (int k = 0; k < 3; k++) out[k] = ARENA_ARRAY(im->a, val_id, count);
    val_id decay = a.decay_after != 0 ? scale_by(im, a.lr, a.decay_after) : VAL_NONE;
    for (uint32_t i = 0; i < count && !failed(im); i++) {
        val_id w = item(&l, 0, i), m = item(&l, 2, i), v = item(&l, 3, i), next[3];
        val_id in[6] = {w, cast_to(im, item(&l, 1, i), DT_f32), m, v, a.lr, a.step};
        val_id x = adam_step(im, &a.form, in, next);
        if (decay.i) x = op_2(im, OP_sub, x, op_2(im, OP_mul, decay, x));
        out[0][i] = chosen(&l, x, w);
        out[1][i] = chosen(&l, next[1], m);
        out[2][i] = chosen(&l, next[2], v);
    }
    set_flag(&l);
    for (int k = 0; k < 3; k++) set_sequence(im, n, 1 + k, out[k], count);
}

/* ---- SGD, clipping -----------------------------------------------------------------------------
 */
void h_ort_sgd(struct importer *im, const struct inode *n, int arg) {
    struct lists l;
    (void)arg;
    if (!open_lists(&l, im, n, 1, 2)) return;
    uint32_t count = l.at[0]->nitems;
    val_id *out = ARENA_ARRAY(im->a, val_id, count), lr = rate_of(im, n);
    for (uint32_t i = 0; i < count && !failed(im); i++) {
        val_id w = item(&l, 0, i), g = cast_to(im, item(&l, 1, i), DT_f32);
        out[i] = chosen(&l, op_2(im, OP_sub, w, op_2(im, OP_mul, lr, g)), w);
    }
    set_flag(&l);
    set_sequence(im, n, 1, out, count);
}

/* All gradients times min(1, max_norm / (norm + 1e-6)), norm over all of them. */
void h_ort_clip(struct importer *im, const struct inode *n, int arg) {
    enum { AT_ONCE = 4096 }; /* operands of one node */
    struct lists l = {.im = im, .n = n, .count = 1};
    (void)arg;
    if (n->nin != 1) {
        reject(im, ST_USAGE, "%d inputs, expected 1", n->nin);
        return;
    }
    if (node_has(n, "norm_type") && !node_str_is(n, "norm_type", "fro")) {
        refuse(im, "a norm other than 'fro'");
        return;
    }
    l.at[0] = sequence_in(im, n, 0);
    if (!l.at[0] || !check_items(&l)) return;
    uint32_t count = l.at[0]->nitems;
    val_id *all = ARENA_ARRAY(im->a, val_id, count), sum = VAL_NONE;
    for (uint32_t i = 0; i < count; i++) all[i] = item(&l, 0, i);
    for (uint32_t i = 0; i < count; i += AT_ONCE) {
        uint32_t part = count - i < AT_ONCE ? count - i : AT_ONCE;
        val_id more = add_node(im, OP_sum_squares, all + i, (int)part, NULL, 0);
        sum = i ? op_2(im, OP_add, sum, more) : more;
    }
    val_id limit = scalar(im, DT_f32, node_float(n, "max_norm", 1.0)), factor = VAL_NONE;
    if (count) factor = op_2(im, OP_div, limit, shift_by(im, op_1(im, OP_sqrt, sum), 1e-6));
    if (count) factor = op_2(im, OP_min, factor, scalar(im, DT_f32, 1));
    for (uint32_t i = 0; i < count; i++) all[i] = op_2(im, OP_mul, all[i], factor);
    set_sequence(im, n, 0, all, count);
}
