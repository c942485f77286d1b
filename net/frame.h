// frame - what the link layer puts around messages: one small MessagePack array, then raw bytes.
//
//     [WIRE_VERSION, type, channel, from, boot, to, to_boot, ack, credit, number, round]
// DATA only, after these: fragment, fragments, size, header; its piece of the payload follows raw
//
// `boot` and `to_boot` are random numbers that sender and receiver drew for this acquaintance, so
// what belongs to an earlier one is told apart. Every frame carries `ack` and `credit`.

#ifndef FRAME_H
#define FRAME_H

#include "net/wire.h"

#define FRAME_PIECE_MAX ((size_t)1 << 20)  // Payload bytes of one frame.
#define FRAME_HEAD_MAX (WIRE_HEADER_MAX + 160)
// Counted for each frame beside its header and piece, so that empty ones use up credit too.
#define FRAME_COST 64u

typedef enum { FRAME_CONTROL, FRAME_DATA_CHANNEL, FRAME_CHANNELS } frame_channel_t;

typedef enum {
    FRAME_HELLO = 1,  // Let us begin (to_boot 0), and the answer (to_boot set).
    FRAME_DATA,       // One fragment of a message.
    FRAME_ACK,        // Carries only what all frames carry.
    FRAME_PING,
    FRAME_PONG,
    FRAME_BYE,  // I know nothing of the acquaintance that you are talking of.
} frame_type_t;

typedef struct {
    frame_type_t type;
    frame_channel_t channel;
    node_id_t from;
    uint64_t boot;  // Of `from`; never 0.
    node_id_t to;
    uint64_t to_boot;  // Of `to`; 0: not known yet.
    uint64_t ack;      // All fragments up to this number have arrived.
    uint64_t credit;   // Bytes (see frame_cost), from the first on, that the peer may have sent.
    uint64_t number;   // DATA: of the fragment, from 1. PING, PONG: of the ping.
    uint64_t round;    // DATA: how often the sender went back. ACK: the round in which fragments
                       // were missing, else 0. Rounds start at 1.
    uint32_t fragment;
    uint32_t fragments;
    uint64_t size;          // Of the whole payload.
    const uint8_t *header;  // Encoded wire_msg_t, in fragment 0 only. Borrowed.
    size_t header_size;
} frame_t;

// Writes to `out` (room for FRAME_HEAD_MAX) and returns the length. The frame is ours: nonsense is
// a bug.
size_t frame_encode(const frame_t *frame, uint8_t *out);

// HX_E_FORMAT for anything that frame_encode would not have written (another version is
// HX_E_UNSUPPORTED). `out->header` points into `bytes`.
HX_MUST_USE hx_err_t frame_decode(const uint8_t *bytes, size_t size, frame_t *out);

// The version that a frame of any version begins with; 0: it is none.
uint64_t frame_version(const uint8_t *bytes, size_t size);

// What a fragment takes from the credit.
uint64_t frame_cost(size_t header_size, size_t piece_size);

#endif
