// payload_parts - what the encoders and decoders of payloads share. Nobody else includes it.

#ifndef PAYLOAD_PARTS_H
#define PAYLOAD_PARTS_H

#include <stdlib.h>

#include "net/blob.h"
#include "net/pack.h"

// The written bytes as a blob.
static inline blob_t *payload_finish(pack_out_t *out)
{
    blob_t *const blob = blob_copy(out->bytes, out->size);
    free(out->bytes);
    return blob;
}

// HX_E_FORMAT unless the blob has bytes to read.
static inline hx_err_t payload_begin(const blob_t *blob, pack_in_t *in)
{
    if (!blob || !blob_data(blob)) {
        return HX_E_FORMAT;
    }
    *in = unpack_from(blob_data(blob), blob_size(blob));
    return HX_OK;
}

static inline uint32_t payload_u32(pack_in_t *in)
{
    return (uint32_t)unpack_uint(in, UINT32_MAX);
}

static inline uint64_t payload_u64(pack_in_t *in)
{
    return unpack_uint(in, UINT64_MAX);
}

// An array whose count was read: at least one element is allocated, so that NULL means "not read".
static inline void *payload_array(uint32_t count, size_t size)
{
    return hx_new(HX_MAX(count, 1u), size);
}

#endif
