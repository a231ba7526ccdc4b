// SPDX-License-Identifier: Apache-2.0
/* info.h - `lathe info`: what is in a model and what Lathe would do with it, for people and for
 * scripts. */
#ifndef LATHE_DRIVER_INFO_H
#define LATHE_DRIVER_INFO_H

#include "driver/session.h"

/* `*text` is from ctx_alloc. Works with a model whose import found unsupported things. */
enum status info_text(lathe_model *m, bool json, char **text) MUST_USE;

#endif
