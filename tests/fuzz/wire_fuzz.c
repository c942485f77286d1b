// wire: any bytes are either refused or what the encoder would have written.

#include "net/wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wire_msg_t msg;
    if (wire_decode(data, size, &msg) == HX_OK) {
        uint8_t again[WIRE_HEADER_MAX];
        HX_ASSERT(wire_encode(&msg, again) == size);
        HX_ASSERT(memcmp(again, data, size) == 0);
        HX_ASSERT(strcmp(wire_kind_name(msg.kind), "?") != 0);
    }
    return 0;
}
