// SPDX-License-Identifier: Apache-2.0
/* recipe_builtins.c - the texts of the built-in recipes, as `lathe recipes show` prints them. Not
 * what the keys mean: recipe.c reads them. */
#include "passes/recipe.h"

// clang-format off
#define STATES                                                                                      \
     "state.m = e4m3 group 128 expand  # values of a group share a scale and an exponent\n"         \
     "state.v = e4m3 group 128 expand  # with beta2 above 0.98 rounded at random, else to nearest\n" \
     "state.wide =                     # names of parameters whose states stay f32: *embed*, *norm*\n" \
     "nonfinite = skip                 # a step whose gradients are not finite changes nothing\n"
#define COMPUTE                                                                                     \
     "compute = bf16\n"                                                                             \
     "activations = bf16\n"
#define PRODUCTS                                                                                    \
     "products = e4m3              # operands of products with a parameter; follow: as compute\n"   \
     "products.gradients = e5m2    # gradients that such products read\n"                           \
     "products.head = wide         # what the loss reads; low: scores and their gradients; or one of the two\n" \
     "products.wide =              # names of nodes whose products stay bf16, such as *h.0*\n"      \
     "products.scale_type = f32    # f32, bf16 or pow2\n"
static const struct recipe_text builtins[] = {
    {"fp32", "weights, activations, gradients and optimizer states in f32",
     "# Everything in f32.\n"
     "compute = f32         # operands and results of products and attention\n"
     "activations = f32     # values that are kept in memory\n"
     "gradients = follow    # as the values that they belong to\n"
     "master = f32          # weights as the optimizer sees them, and its states\n"
     "tf32 = false          # true: f32 products on a GPU may round their operands to TF32\n"
     "chunk_loss = auto     # rows of logits at a time: auto, off or a number\n"
     "save = all            # for gradients: all keeps values, auto computes cheap ones again,\n"
     "                      # a size (12 GiB) does so until what is kept fits\n"},
    {"bf16", "f32 weights; products, attention and kept values in bf16; sums in f32",
     "# f32 master weights, each rounded to bf16 once a step where a product needs it. Products and\n"
     "# attention take and give bf16 and add in f32. Elementwise chains, norms, softmax, reductions\n"
     "# and the loss compute in f32; what is kept in memory between them is bf16. Convolutions, and\n"
     "# what lies between two of them, stay f32.\n"
     "compute = bf16\n"
     "activations = bf16\n"
     "gradients = follow    # bf16 out of products; clipping and the optimizer compute in f32\n"
     "master = f32\n"
     "tf32 = false          # for what stays f32\n"
     "chunk_loss = auto     # rows of logits at a time: auto, off or a number\n"
     "save = auto           # for gradients: auto computes cheap values again, all keeps them,\n"
     "                      # a size (12 GiB) computes again until what is kept fits\n"
     "keep_wide =           # names of nodes whose products stay f32, such as *router*, lm_head\n"},
    {"adam8", "as fp32, with the states of Adam and AdamW in 8 bits",
     "# As fp32, but m and v of Adam and AdamW are 8-bit floats with range expansion: 2.08 bytes a\n"
     "# parameter instead of 8. A weight follows its exact new m and v; they are rounded after that.\n"
     STATES
     "save = all\n"},
    {"bf16-adam8", "as bf16, with the states of Adam and AdamW in 8 bits",
     "# As bf16, but m and v of Adam and AdamW are 8-bit floats with range expansion.\n"
     "compute = bf16\n"
     "activations = bf16\n"
     STATES},
    {"fp8", "as bf16, with the layers' products on 8-bit operands, one scale a tensor",
     "# As bf16, but products with parameters, and both of their gradients, read 8-bit floats: values\n"
     "# and weights as e4m3, gradients as e5m2, each tensor divided by a scale that its own largest\n"
     "# magnitude makes. The head, attention and products with sizes that are no multiples of 16 stay\n"
     "# bf16. `lathe plan --products` lists them.\n"
     COMPUTE
     PRODUCTS
     "products.scope = tensor      # what shares a scale: tensor, row or block (1x128 and 128x128)\n"
     "products.scale = current     # from the operand itself, or: delayed 16 margin 1\n"},
    {"fp8-delayed", "as fp8, with scales from the largest magnitudes of the last steps",
     "# As fp8, but a tensor's scale comes from the largest of its magnitudes in the last 16 steps, so\n"
     "# that whatever computes it can write codes at once. What grows by more than the margin saturates.\n"
     COMPUTE
     PRODUCTS
     "products.scope = tensor\n"
     "products.scale = delayed 16 margin 0   # steps; powers of two left free above the largest\n"},
    {"fp8-row", "as fp8, with a scale for each row of an operand",
     "# As fp8, but each row of an operand, seen along the axis that is summed over, has its own scale:\n"
     "# a token's, or a channel's in the gradient of a weight.\n"
     COMPUTE
     PRODUCTS
     "products.scope = row\n"},
    {"fp8-block", "as fp8, with scales for 1 x 128 values and 128 x 128 weights",
     "# As fp8, but 128 neighbours of a row of values or gradients share a scale, and blocks of 128 x 128\n"
     "# of a weight. Fine scales need no wide exponents: gradients are e4m3 as well.\n"
     COMPUTE
     "products = e4m3\n"
     "products.gradients = e4m3\n"
     "products.scope = block\n"},
    {"coat", "fp8, 8-bit kept values by groups of 16, 8-bit optimizer states",
     "# COAT (H. Xi et al., 2025): products as in fp8-delayed; what nonlinear ops read again in the backward\n"
     "# part kept as 8-bit floats, 16 neighbours to a scale; m and v of Adam and AdamW as 8-bit floats with\n"
     "# range expansion. Master weights are f32.\n"
     COMPUTE
     PRODUCTS
     "products.scope = tensor\n"
     "products.scale = delayed 16 margin 0\n"
     "saved = e4m3 group 16 bf16   # format, elements to a scale, type of the scales\n"
     STATES},
};
#undef COMPUTE
#undef PRODUCTS
#undef STATES
// clang-format on

const struct recipe_text *recipe_builtins(int *n) {
    *n = (int)(sizeof builtins / sizeof builtins[0]);
    return builtins;
}
