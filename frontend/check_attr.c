// SPDX-License-Identifier: Apache-2.0
/* check_attr.c - attributes of standard ops that must have a certain type or be one of a few words,
 * by the ONNX operator specification. Without this a handler would take the default in place of
 * what it cannot read. Ranges are the handlers' and inference's business. */
#include "base/diag.h"
#include "frontend/check.h"
#include <string.h>

enum {
    INT = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT,
    FLT = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT,
    STR = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING,
    INTS = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS,
};

/* Names that mean the same type in every standard op that has them, in all versions. */
// clang-format off
static const struct {
    const char *name;
    int type;
    const char *word;
} types[] = {
    {"adam_mode", INT, "an integer"},
    {"allowzero", INT, "an integer"},      {"alpha", FLT, "a number"},
    {"approximate", STR, "a string"},      {"auto_pad", STR, "a string"},
    {"axes", INTS, "integers"},            {"axis", INT, "an integer"},
    {"batch_axis", INT, "an integer"},     {"batch_dims", INT, "an integer"},
    {"beta", FLT, "a number"},             {"blocksize", INT, "an integer"},
    {"ceil_mode", INT, "an integer"},      {"count_include_pad", INT, "an integer"},
    {"correct_bias", INT, "an integer"},   {"decay_factor", FLT, "a number"},
    {"dilations", INTS, "integers"},       {"direction", STR, "a string"},
    {"ends", INTS, "integers"},            {"epsilon", FLT, "a number"},
    {"equation", STR, "a string"},         {"exclusive", INT, "an integer"},
    {"group", INT, "an integer"},          {"hidden_size", INT, "an integer"},
    {"ignore_index", INT, "an integer"},   {"keepdims", INT, "an integer"},
    {"kernel_shape", INTS, "integers"},    {"largest", INT, "an integer"},
    {"max_norm", FLT, "a number"},
    {"mode", STR, "a string"},             {"momentum", FLT, "a number"},
    {"norm_coefficient", FLT, "a number"}, {"norm_coefficient_post", FLT, "a number"},
    {"norm_type", STR, "a string"},
    {"num_groups", INT, "an integer"},     {"num_outputs", INT, "an integer"},
    {"output_padding", INTS, "integers"},  {"output_shape", INTS, "integers"},
    {"pads", INTS, "integers"},            {"perm", INTS, "integers"},
    {"reduction", STR, "a string"},        {"reverse", INT, "an integer"},
    {"select_last_index", INT, "an integer"}, {"sorted", INT, "an integer"},
    {"starts", INTS, "integers"},          {"strides", INTS, "integers"},
    {"training_mode", INT, "an integer"},
    {"transA", INT, "an integer"},         {"transB", INT, "an integer"},
    {"upper", INT, "an integer"},          {"weight_decay", FLT, "a number"},
};

/* The words that a string attribute may be; "" in front of the op's name: of any op. */
static const struct {
    const char *op, *name, *words;
} choices[] = {
    {"", "auto_pad", "NOTSET|SAME_UPPER|SAME_LOWER|VALID"},
    {"", "approximate", "none|tanh"},
    {"Pad", "mode", "constant|reflect|edge|wrap"},
    {"DepthToSpace", "mode", "DCR|CRD"},
    {"GRU", "direction", "forward|reverse|bidirectional"},
    {"LSTM", "direction", "forward|reverse|bidirectional"},
    {"RNN", "direction", "forward|reverse|bidirectional"},
    {"BitShift", "direction", "LEFT|RIGHT"},
    {"NegativeLogLikelihoodLoss", "reduction", "none|sum|mean"},
    {"SoftmaxCrossEntropyLoss", "reduction", "none|sum|mean"},
    {"Resize", "keep_aspect_ratio_policy", "stretch|not_larger|not_smaller"},
};
// clang-format on

/* `s` is one of the words between the bars. */
static bool is_word(const ProtobufCBinaryData *s, const char *words) {
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, "|");
        if (n == s->len && memcmp(w, s->data, n) == 0) return true;
        w += n + (w[n] == '|');
    }
    return false;
}

/* Domains whose ops give these names the standard's types. */
static bool is_checked(const char *domain) {
    return !*domain || strcmp(domain, "ai.onnx.preview.training") == 0 ||
           strcmp(domain, "com.microsoft") == 0;
}

enum status check_known_attribute(struct checker *k, const Onnx__NodeProto *node,
                                  const Onnx__AttributeProto *a) {
    if (!is_checked(onnx_domain(node->domain))) return ST_OK;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, a->name) && types[i].type != (int)a->type)
            return diag_error(k->m->ctx, ST_PARSE, node_label(node),
                              "attribute '%s' of %s is of attribute type %d; expected %s (type %d)",
                              a->name, node->op_type, (int)a->type, types[i].word, types[i].type);
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        if (strcmp(choices[i].name, a->name) != 0) continue;
        if (*choices[i].op && strcmp(choices[i].op, node->op_type) != 0) continue;
        if (!a->has_s || is_word(&a->s, choices[i].words)) continue;
        return diag_error(k->m->ctx, ST_PARSE, node_label(node),
                          "attribute '%s' of %s is '%.*s'; expected one of %s", a->name,
                          node->op_type, (int)(a->s.len < 200 ? a->s.len : 200),
                          (const char *)a->s.data, choices[i].words);
    }
    return ST_OK;
}
