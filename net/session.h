// session - one channel between two nodes: each message once, whole and in order, over a line that
// loses what it carried whenever it breaks.
//
// Pure: frames and times in, frames out; no socket, no clock. The line below is FIFO while it
// holds; at a break it loses anything from nothing to all that was under way, and what the old
// connection still held may come late. The session numbers fragments, repeats what is not
// acknowledged, throws away doubles, cuts messages into fragments, puts them together again, and
// never has more bytes under way than the receiver granted.
//
// How loss is noticed. A receiver that sees a number too high says so (ACK with the round in which
// it happened); the sender goes back to the first fragment that is missing, in a new round. If
// nothing at all moves for a while, the sender pings: the line is FIFO, so a PONG that acknowledges
// less than had been sent before the PING proves a loss. Nothing is ever sent twice on suspicion.

#ifndef SESSION_H
#define SESSION_H

#include "net/blob.h"
#include "net/frame.h"

#define SESSION_FLIGHT_MAX 512u  // Fragments under way: fewer than the sockets' queues hold.
#define SESSION_WINDOW_MIN ((uint64_t)16 << 10)
#define SESSION_PIECE_MIN ((uint32_t)4 << 10)

typedef struct session session_t;

typedef struct {
    node_id_t self;
    node_id_t peer;
    frame_channel_t channel;
    uint64_t boot;       // Own; not 0.
    uint64_t peer_boot;  // 0: to be learned from the answer to HELLO (only if `dials`).
    bool dials;          // Says HELLO first.
    hx_time_t dead_after;
    hx_time_t meet_within;  // Of the one who dials: lost if there is no answer in this time, or
                            // HX_TIME_NEVER.
    uint64_t window;        // Bytes that the peer may have under way, at least SESSION_WINDOW_MIN.
    uint32_t piece_first;   // Bytes of a fragment until the line's rate is known, and
    uint32_t piece_max;     // afterwards: at most this, and at most rate x dead_after / 4.
} session_conf_t;

// The next frame to put on the line: `size` bytes of `blob` from `offset` follow its header.
typedef struct {
    frame_t frame;
    blob_t *blob;  // Borrowed; NULL: no bytes.
    size_t offset;
    size_t size;
} session_out_t;

typedef enum {
    SESSION_NOTHING,
    SESSION_MESSAGE,    // One is complete.
    SESSION_STRANGER,   // The frame belongs to another acquaintance: answer BYE.
    SESSION_OVER,       // The peer has forgotten this session, or begins a new one.
    SESSION_MALFORMED,  // It breaks the rules; nothing was taken.
} session_got_t;

typedef struct {
    const uint8_t *header;  // Lives until the next call.
    size_t header_size;
    blob_t *blob;  // The caller's to release; NULL: no payload.
} session_message_t;

typedef struct {
    uint64_t sent_frames;
    uint64_t received_frames;
    uint64_t resent_frames;
    uint64_t doubles;       // Fragments that had come before.
    uint64_t queued_bytes;  // Payload bytes not yet acknowledged.
    uint64_t flight_bytes;  // Of these under way: never more than the peer's window.
    double rate;            // Bytes per second, measured; 0: not yet.
    uint32_t piece;         // Bytes of the next message's fragments.
} session_stats_t;

session_t *session_new(const session_conf_t *conf, hx_time_t now);
void session_destroy(session_t **self);

// Queues a message; a count of `blob` (may be NULL) is held until it is acknowledged.
void session_send(session_t *self, const uint8_t *header, size_t header_size, blob_t *blob);

// What to put on the line now, if anything. If the line takes it, call session_sent; else ask again
// later.
bool session_due(session_t *self, hx_time_t now, session_out_t *out);
void session_sent(session_t *self, const session_out_t *out, hx_time_t now);

// A frame that names this peer and channel has come, with its piece of the payload (NULL: none; the
// session takes a count if it keeps it). `out` is set for SESSION_MESSAGE only.
session_got_t session_receive(session_t *self, const frame_t *frame, blob_t *piece, hx_time_t now,
                              session_message_t *out);

// The line broke and is whole again: find out at once what got lost.
void session_mended(session_t *self, hx_time_t now);
// Nobody listened for `pause`: it does not count as the peer's silence.
void session_excuse(session_t *self, hx_time_t pause, hx_time_t now);

// Nothing was heard for too long; and when that would be so.
bool session_lost(const session_t *self, hx_time_t now);
hx_time_t session_lost_at(const session_t *self);
// When to ask again if nothing happens before.
hx_time_t session_wake(const session_t *self);
// The peer has answered.
bool session_met(const session_t *self);
uint64_t session_peer_boot(const session_t *self);  // 0: not met.
// Everything that was queued has been acknowledged, and everything that came too.
bool session_idle(const session_t *self);
session_stats_t session_stats(const session_t *self);

#endif
