// frame - the link layer's own header: see frame.h.

#include "net/frame.h"

#include "net/pack.h"

#define FIELDS 11u
#define FIELDS_DATA 15u

// What both sides check: the encoder as its own bugs, the decoder as a peer's nonsense.
static bool valid(const frame_t *frame)
{
    if (frame->from == NODE_NONE || frame->to == NODE_NONE || frame->boot == 0) {
        return false;
    }
    if (frame->to_boot == 0 && frame->type != FRAME_HELLO) {
        return false;
    }
    if (frame->type != FRAME_DATA) {
        const bool ping = frame->type == FRAME_PING || frame->type == FRAME_PONG;
        return !ping || frame->number > 0;
    }
    const bool first = frame->fragment == 0;
    const uint64_t whole = (uint64_t)frame->fragments * FRAME_PIECE_MAX;
    return frame->number > 0 && frame->round > 0 && frame->fragment < frame->fragments &&
           first == (frame->header_size > 0) && frame->size <= WIRE_PAYLOAD_MAX &&
           frame->size <= whole && frame->fragments <= HX_MAX(frame->size, 1u);
}

size_t frame_encode(const frame_t *frame, uint8_t *out)
{
    HX_ASSERT(frame->type >= FRAME_HELLO && frame->type <= FRAME_BYE);
    HX_ASSERT(frame->channel < FRAME_CHANNELS);
    HX_ASSERT(valid(frame));
    pack_out_t to = pack_fixed(out, FRAME_HEAD_MAX);
    pack_array(&to, frame->type == FRAME_DATA ? FIELDS_DATA : FIELDS);
    pack_uint(&to, WIRE_VERSION);
    pack_uint(&to, (uint64_t)frame->type);
    pack_uint(&to, (uint64_t)frame->channel);
    pack_uint(&to, frame->from);
    pack_uint(&to, frame->boot);
    pack_uint(&to, frame->to);
    pack_uint(&to, frame->to_boot);
    pack_uint(&to, frame->ack);
    pack_uint(&to, frame->credit);
    pack_uint(&to, frame->number);
    pack_uint(&to, frame->round);
    if (frame->type == FRAME_DATA) {
        pack_uint(&to, frame->fragment);
        pack_uint(&to, frame->fragments);
        pack_uint(&to, frame->size);
        pack_bytes(&to, frame->header, frame->header_size);
    }
    return to.size;
}

hx_err_t frame_decode(const uint8_t *bytes, size_t size, frame_t *out)
{
    if (size > FRAME_HEAD_MAX) {
        return HX_E_FORMAT;
    }
    pack_in_t in = unpack_from(bytes, size);
    const uint32_t count = unpack_array(&in, FIELDS_DATA, 1);
    const uint64_t version = unpack_uint(&in, UINT64_MAX);
    if (in.bad) {
        return HX_E_FORMAT;
    }
    if (version != WIRE_VERSION) {
        return HX_E_UNSUPPORTED;
    }
    frame_t frame = {0};
    frame.type = (frame_type_t)unpack_uint(&in, FRAME_BYE);
    frame.channel = (frame_channel_t)unpack_uint(&in, FRAME_CHANNELS - 1);
    frame.from = unpack_uint(&in, UINT64_MAX);
    frame.boot = unpack_uint(&in, UINT64_MAX);
    frame.to = unpack_uint(&in, UINT64_MAX);
    frame.to_boot = unpack_uint(&in, UINT64_MAX);
    frame.ack = unpack_uint(&in, UINT64_MAX);
    frame.credit = unpack_uint(&in, UINT64_MAX);
    frame.number = unpack_uint(&in, UINT64_MAX);
    frame.round = unpack_uint(&in, UINT64_MAX);
    if (frame.type == FRAME_DATA) {
        frame.fragment = (uint32_t)unpack_uint(&in, UINT32_MAX);
        frame.fragments = (uint32_t)unpack_uint(&in, UINT32_MAX);
        frame.size = unpack_uint(&in, WIRE_PAYLOAD_MAX);
        frame.header = unpack_bytes(&in, WIRE_HEADER_MAX, &frame.header_size);
    }
    if (!unpack_done(&in) || frame.type < FRAME_HELLO || !valid(&frame) ||
        count != (frame.type == FRAME_DATA ? FIELDS_DATA : FIELDS)) {
        return HX_E_FORMAT;
    }
    *out = frame;
    return HX_OK;
}

uint64_t frame_version(const uint8_t *bytes, size_t size)
{
    pack_in_t in = unpack_from(bytes, size);
    (void)unpack_array(&in, UINT32_MAX, 1);
    const uint64_t version = unpack_uint(&in, UINT64_MAX);
    return in.bad ? 0 : version;
}

uint64_t frame_cost(size_t header_size, size_t piece_size)
{
    return FRAME_COST + header_size + piece_size;
}
