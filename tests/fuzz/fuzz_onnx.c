// SPDX-License-Identifier: Apache-2.0
/* fuzz_onnx.c - libFuzzer entry for the ONNX layer: load any bytes, decode every tensor, save what
 * loaded, and load that again. Build with clang and -fsanitize=fuzzer,address,undefined. */
#include "frontend/file.h"
#include "frontend/wire.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum status decode(void *user, ProtobufCMessage *msg) {
    struct onnx_tensor t;
    const volatile uint8_t *last;
    if (onnx_decode_tensor(user, (Onnx__TensorProto *)msg, "tensor", &t) != ST_OK) return ST_OK;
    int64_t n = type_bytes(&t.type);
    if (n < 0) abort();
    last = (const volatile uint8_t *)t.data + (n ? n - 1 : 0);
    if (n) (void)*last;
    return ST_OK;
}

/* What was accepted must be accepted again after packing. */
static void pack_and_reload(struct ctx *c, struct onnx_model *m) {
    size_t n = protobuf_c_message_get_packed_size(&m->proto->base);
    struct onnx_model *again;
    uint8_t *bytes = malloc(n + 1);
    if (!bytes || protobuf_c_message_pack(&m->proto->base, bytes) != n) abort();
    if (onnx_load_memory(c, bytes, n, NULL, "again", &again) != ST_OK) abort();
    onnx_free(again);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ctx c;
    jmp_buf landing;
    struct onnx_model *m;
    ctx_init(&c);
    c.landing = &landing;
    if (setjmp(landing)) abort();
    if (onnx_load_memory(&c, data, size, NULL, "fuzz", &m) == ST_OK) {
        if (wire_visit(&m->proto->base, &onnx__tensor_proto__descriptor, decode, m) != ST_OK)
            abort();
        pack_and_reload(&c, m);
        onnx_free(m);
    }
    if (c.bytes_in_use) abort();
    return 0;
}
