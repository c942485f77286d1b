// link - all connections of one node: who is there, sockets, sessions over them.
//
// A node binds at most one socket for small messages and one for data, and dials others with one
// socket a peer and channel. Over each runs a session (net/session.h), so what comes out of here is
// each message of a living peer exactly once and in order per channel, or the news that a peer is
// lost. Nothing here blocks except link_wait; nothing a peer says can end the process: what is
// malformed is counted, logged once per source and second, and dropped.
//
// Everything belongs to the thread that opened it. Payloads travel without a copy: a sent blob is
// held until it is acknowledged (and until ZeroMQ let go of it, which its I/O thread says by
// releasing a count), a received one wraps ZeroMQ's own memory, aligned to at least 8 bytes.

#ifndef LINK_H
#define LINK_H

#include "net/blob.h"
#include "net/session.h"
#include "net/wire.h"

#define LINK_PEERS_MAX 8192
#define LINK_KEY_SIZE 41  // Of a CURVE key as text (Z85), with its final 0.

typedef struct link link_t;

// Keys of CURVE. Whoever gives them has started an authenticator (zauth) before, or every client
// that knows the public key gets in.
typedef struct {
    char public_key[LINK_KEY_SIZE];
    char secret_key[LINK_KEY_SIZE];
    char server_key[LINK_KEY_SIZE];  // Public key that every dialled node must have.
} link_curve_t;

typedef struct {
    node_id_t id;
    const char *bind_control;  // "tcp://127.0.0.1:*"; NULL or empty: binds none.
    const char *bind_data;
    const char
        *advertise;      // Host that others dial; NULL or "auto": the bound one, or where that is
                         // a wildcard, the address from which `toward` is reached.
    const char *toward;  // The scheduler's endpoint; NULL: this is the scheduler.
    hx_time_t dead_after;
    hx_time_t connect_timeout;  // A dialled peer that does not answer is lost after this; the
                                // scheduler never is (its member gives up by itself).
    uint64_t window_control;    // Bytes that a peer may have under way to us; 0: 1 MiB,
    uint64_t window_data;       // 8 MiB.
    uint32_t piece_first;       // Bytes of a fragment on a line not measured yet; 0: 256 KiB.
    uint32_t piece_max;         // On a fast one; 0: 1 MiB.
    const link_curve_t *curve;  // NULL: none, and then nothing but loopback can be bound.
} link_conf_t;

typedef enum { LINK_MESSAGE, LINK_LOST } link_event_kind_t;

typedef struct {
    link_event_kind_t kind;
    node_id_t peer;
    wire_msg_t msg;
    blob_t *blob;  // The caller's to release; NULL: none.
} link_event_t;

typedef struct {
    uint32_t peers;
    uint64_t malformed;  // Messages dropped.
    uint64_t strangers;  // Frames of acquaintances that are over.
    uint64_t unsent;     // Messages to peers that are unknown or gone.
    uint64_t sent_frames;
    uint64_t resent_frames;
    uint64_t queued_bytes;  // Not yet acknowledged, of all peers.
} link_stats_t;

// Binds. HX_E_ARG: an endpoint is unusable, or beyond loopback without keys. HX_E_IO: it cannot be
// bound; `fault` names the endpoint and, where the system tells, who holds it.
HX_MUST_USE hx_err_t link_open(const link_conf_t *conf, link_t **out, hx_fault_t *fault);
// Closes at once; wait for link_idle before, if what was sent matters.
void link_destroy(link_t **self);

// Own endpoints as others should dial them; "": none.
const char *link_control(const link_t *self);
const char *link_data(const link_t *self);

// Dials a peer on one or both channels (NULL or "": not that one). Again with the same: no effect.
void link_dial(link_t *self, node_id_t peer, const char *control, const char *data, hx_time_t now);
// Queues a message on the channel of its kind (or on the other one, if the peer has only that). To
// a peer that is not there it is dropped and counted.
void link_send(link_t *self, node_id_t to, const wire_msg_t *msg, blob_t *blob, hx_time_t now);

// Puts on the lines what they take and credits allow.
void link_flush(link_t *self, hx_time_t now);
// Waits until something comes in, a line can take more, one of `others` (each a zsock_t) is
// readable (`ready[i]` says which), or until `until`. `now` is the caller's clock, CLOCK_MONOTONIC.
// Also watches the peers' silence.
void link_wait(link_t *self, void *const *others, bool *ready, uint32_t count, hx_time_t until,
               hx_time_t now);
// The next event of what link_wait found; false: none for now.
bool link_next(link_t *self, hx_time_t now, link_event_t *out);

// Everything that was sent to living peers has been acknowledged, and everything they sent too.
bool link_idle(const link_t *self);
link_stats_t link_stats(const link_t *self);
// Of one peer and channel; zeros where there is no such session.
session_stats_t link_session_stats(const link_t *self, node_id_t peer, frame_channel_t channel);

// Before any thread: whether an endpoint to dial has a host that can be resolved, within 4 s.
HX_MUST_USE hx_err_t link_check_name(const char *endpoint, hx_fault_t *fault);
// 64 bits from the operating system, at least 2.
uint64_t link_random(void);

#endif
