// session - acknowledgements, credits, liveness: see session.h; net/outbox.h keeps what is sent.
//
// Bytes are counted from the session's start on both sides, as TCP counts its window: the receiver
// grants "up to byte N", so a grant that is lost or doubled does no harm.

#include "net/session.h"

#include "net/outbox.h"

#include <stdlib.h>
#include <string.h>

#define HELLO_FIRST HX_MS(200)
#define HELLO_LAST HX_SEC(1)
#define ACK_DELAY HX_MS(10)
#define ACK_FRAMES 64u     // Fragments that may wait for one ACK,
#define ACK_SHARE 8u       // and the part of the window.
#define KEEPALIVE_SHARE 5  // Of dead_after.
#define KEEPALIVE_MAX HX_SEC(1)
#define STALL_MIN HX_MS(20)
#define STALL_MAX HX_MS(500)
#define RATE_BYTES ((uint64_t)256 << 10)  // A measurement of the rate spans so many bytes,
#define RATE_FLIGHT ((uint64_t)64 << 10)  // at moments when so many are under way.

struct session {
    session_conf_t conf;
    bool met;
    uint64_t peer_boot;
    uint64_t peer_window;
    hx_time_t started_at;
    hx_time_t heard_at;
    hx_time_t sent_at;
    hx_time_t hello_at;
    hx_time_t hello_pause;
    bool hello_wanted;  // The peer asked again.

    outbox_t outbox;
    uint64_t credit;
    uint64_t round;
    hx_time_t flight_at;    // Since when something is under way.
    hx_time_t progress_at;  // Last time that an acknowledgement moved.
    hx_time_t stall;
    hx_time_t probed_at;
    bool ping_asked;
    uint64_t ping_number;
    uint64_t ping_mark;  // What the last ping's answer must acknowledge.
    uint64_t ping_round;

    uint64_t received;
    uint64_t consumed;  // Bytes.
    uint64_t granted;   // Told to the peer.
    uint64_t unacked_bytes;
    uint32_t unacked_frames;
    hx_time_t ack_at;
    uint64_t gap_round;     // To be reported; 0: none.
    uint64_t gap_reported;  // Newest that was: each once, its loss is covered by pings.
    uint64_t pong_number;   // To be answered; 0: none.
    blob_t *assembly;       // Of a message in more than one fragment.
    uint32_t assembly_next;
    uint32_t assembly_fragments;
    size_t assembly_filled;
    size_t header_size;
    uint8_t header[WIRE_HEADER_MAX];

    uint64_t rate_bytes;
    hx_time_t rate_time;
    session_stats_t stats;
};

static hx_time_t stall_first(const session_t *self)
{
    return HX_MIN(HX_MAX(self->conf.dead_after / 20, STALL_MIN), STALL_MAX);
}

session_t *session_new(const session_conf_t *conf, hx_time_t now)
{
    HX_ASSERT(conf->boot != 0 && conf->window >= SESSION_WINDOW_MIN && conf->dead_after > 0);
    HX_ASSERT(conf->dials || conf->peer_boot != 0);
    HX_ASSERT(conf->piece_first > 0 && conf->piece_first <= FRAME_PIECE_MAX);
    HX_ASSERT(conf->piece_max > 0 && conf->piece_max <= FRAME_PIECE_MAX);
    session_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->met = !conf->dials;
    self->hello_wanted = !conf->dials;
    self->peer_boot = conf->peer_boot;
    self->started_at = self->heard_at = self->sent_at = self->hello_at = now;
    self->hello_pause = HELLO_FIRST;
    self->round = 1;
    self->probed_at = self->progress_at = self->flight_at = now;
    self->stall = stall_first(self);
    self->ack_at = HX_TIME_NEVER;
    return self;
}

void session_destroy(session_t **self_p)
{
    session_t *const self = *self_p;
    *self_p = NULL;
    if (!self) {
        return;
    }
    outbox_clear(&self->outbox);
    blob_release(&self->assembly);
    free(self);
}

void session_send(session_t *self, const uint8_t *header, size_t header_size, blob_t *blob)
{
    outbox_add(&self->outbox, header, header_size, blob);
}

// --- sending
// --------------------------------------------------------------------------------------

// Bytes of a fragment, so that one takes the line for a quarter of dead_after at most and the peer
// grants several at once.
static uint32_t piece_now(const session_t *self)
{
    double piece = self->conf.piece_first;
    if (self->stats.rate > 0) {
        piece = self->stats.rate * ((double)self->conf.dead_after / 1e9) / 4;
        piece = HX_MIN(HX_MAX(piece, SESSION_PIECE_MIN), (double)self->conf.piece_max);
    }
    return (uint32_t)HX_MAX(HX_MIN(piece, (double)(self->peer_window / 4)), 1024.0);
}

// Something after `acked` got lost: send it all again.
static void go_back(session_t *self)
{
    self->round++;
    outbox_go_back(&self->outbox);
}

static void fill(const session_t *self, frame_type_t type, session_out_t *out)
{
    *out = (session_out_t){.frame = {
                               .type = type,
                               .channel = self->conf.channel,
                               .from = self->conf.self,
                               .boot = self->conf.boot,
                               .to = self->conf.peer,
                               .to_boot = self->peer_boot,
                               .ack = self->received,
                               .credit = self->consumed + self->conf.window,
                           }};
}

static bool due_data(session_t *self, session_out_t *out)
{
    outbox_piece_t piece;
    if (!outbox_peek(&self->outbox, piece_now(self), &piece) || piece.byte_end > self->credit ||
        piece.number - self->outbox.acked > SESSION_FLIGHT_MAX) {
        return false;
    }
    fill(self, FRAME_DATA, out);
    out->frame.number = piece.number;
    out->frame.round = self->round;
    out->frame.fragment = piece.fragment;
    out->frame.fragments = piece.fragments;
    out->frame.size = piece.whole;
    out->frame.header = piece.header;
    out->frame.header_size = piece.header_size;
    out->blob = piece.size > 0 ? piece.blob : NULL;
    out->offset = piece.offset;
    out->size = piece.size;
    return true;
}

static hx_time_t keepalive(const session_t *self)
{
    return HX_MIN(self->conf.dead_after / KEEPALIVE_SHARE, KEEPALIVE_MAX);
}

static hx_time_t ping_at(const session_t *self)
{
    hx_time_t at = self->ping_asked ? self->sent_at : self->sent_at + keepalive(self);
    if (outbox_in_flight(&self->outbox)) {
        at = HX_MIN(at, HX_MAX(self->progress_at, self->probed_at) + self->stall);
    }
    return at;
}

bool session_due(session_t *self, hx_time_t now, session_out_t *out)
{
    if (!self->met) {
        fill(self, FRAME_HELLO, out);
        return now >= self->hello_at;
    }
    if (self->hello_wanted) {
        fill(self, FRAME_HELLO, out);
    } else if (self->pong_number > 0) {
        fill(self, FRAME_PONG, out);
        out->frame.number = self->pong_number;
    } else if (self->gap_round > 0) {
        fill(self, FRAME_ACK, out);
        out->frame.round = self->gap_round;
    } else if (due_data(self, out)) {
        return true;
    } else if (now >= ping_at(self)) {
        fill(self, FRAME_PING, out);
        out->frame.number = self->ping_number + 1;
    } else if (now >= self->ack_at) {
        fill(self, FRAME_ACK, out);
    } else {
        return false;
    }
    return true;
}

static void sent_data(session_t *self, hx_time_t now)
{
    if (!outbox_in_flight(&self->outbox)) {
        self->flight_at = now;
        self->probed_at = now;
    }
    if (outbox_next(&self->outbox)) {
        self->stats.resent_frames++;
    }
}

void session_sent(session_t *self, const session_out_t *out, hx_time_t now)
{
    switch (out->frame.type) {
    case FRAME_HELLO:
        self->hello_wanted = false;
        self->hello_at = now + self->hello_pause;
        self->hello_pause = HX_MIN(self->hello_pause * 2, HELLO_LAST);
        break;
    case FRAME_DATA:
        sent_data(self, now);
        break;
    case FRAME_PING:
        self->ping_asked = false;
        self->ping_number = out->frame.number;
        self->ping_mark = self->outbox.sent;
        self->ping_round = self->round;
        self->probed_at = now;
        if (outbox_in_flight(&self->outbox)) {
            self->stall = HX_MIN(self->stall * 2, self->conf.dead_after / KEEPALIVE_SHARE);
        }
        break;
    case FRAME_PONG:
        self->pong_number = 0;
        break;
    default:
        if (out->frame.round > 0) {
            self->gap_round = 0;
        }
        break;
    }
    self->granted = out->frame.credit;
    self->ack_at = HX_TIME_NEVER;
    self->unacked_bytes = 0;
    self->unacked_frames = 0;
    self->sent_at = now;
    self->stats.sent_frames++;
}

// --- receiving
// ------------------------------------------------------------------------------------

static void measure(session_t *self, uint64_t bytes, hx_time_t now)
{
    self->rate_bytes += bytes;
    self->rate_time += now - HX_MAX(self->progress_at, self->flight_at);
    if (self->rate_bytes < RATE_BYTES || self->rate_time <= 0) {
        return;
    }
    const double sample = (double)self->rate_bytes / ((double)self->rate_time / 1e9);
    const double rate = self->stats.rate;
    self->stats.rate = rate > 0 && sample > rate / 2 ? (3 * rate + sample) / 4 : sample;
    self->rate_bytes = 0;
    self->rate_time = 0;
}

static void on_ack(session_t *self, uint64_t ack, hx_time_t now)
{
    const uint64_t flight = self->outbox.sent_bytes - self->outbox.acked_bytes;
    const uint64_t bytes = outbox_ack(&self->outbox, ack);
    if (bytes == 0) {
        return;
    }
    if (flight >= RATE_FLIGHT) {
        measure(self, bytes, now);
    }
    self->progress_at = now;
    self->stall = stall_first(self);
}

// The place of a fragment in its message, checked against what came before.
static bool piece_fits(const session_t *self, const frame_t *frame, size_t size)
{
    if (self->consumed + frame_cost(frame->header_size, size) > self->granted) {
        return false;  // More than was granted.
    }
    if (frame->fragments == 1) {
        return !self->assembly && frame->size == size;
    }
    const bool last = frame->fragment + 1 == frame->fragments;
    if (size == 0) {
        return false;
    }
    if (frame->fragment == 0) {
        return !self->assembly && size < frame->size;
    }
    const size_t filled = self->assembly_filled + size;
    return self->assembly && frame->fragment == self->assembly_next &&
           frame->fragments == self->assembly_fragments &&
           frame->size == blob_size(self->assembly) &&
           (last ? filled == frame->size : filled < frame->size);
}

// Takes the next fragment in order. True: a message is complete.
static bool take(session_t *self, const frame_t *frame, blob_t *piece, session_message_t *out)
{
    if (frame->fragments == 1) {
        *out = (session_message_t){frame->header, frame->header_size, blob_retain(piece)};
        return true;
    }
    if (frame->fragment == 0) {
        self->assembly = blob_new(frame->size);
        self->assembly_fragments = frame->fragments;
        self->assembly_filled = 0;
        self->header_size = frame->header_size;
        memcpy(self->header, frame->header, frame->header_size);
    }
    if (blob_data(piece)) {
        memcpy((char *)blob_edit(self->assembly) + self->assembly_filled, blob_data(piece),
               blob_size(piece));
    }
    self->assembly_filled += blob_size(piece);
    self->assembly_next = frame->fragment + 1;
    if (self->assembly_next < self->assembly_fragments) {
        return false;
    }
    *out = (session_message_t){self->header, self->header_size, self->assembly};
    self->assembly = NULL;
    return true;
}

static session_got_t on_data(session_t *self, const frame_t *frame, blob_t *piece, hx_time_t now,
                             session_message_t *out)
{
    if (frame->number <= self->received) {
        self->stats.doubles++;
        self->ack_at = HX_MIN(self->ack_at, now + ACK_DELAY);
        return SESSION_NOTHING;
    }
    if (frame->number > self->received + 1) {
        if (frame->round > self->gap_reported) {
            self->gap_round = self->gap_reported = frame->round;
        }
        return SESSION_NOTHING;
    }
    const size_t size = blob_size(piece);
    if (!piece_fits(self, frame, size)) {
        return SESSION_MALFORMED;
    }
    const uint64_t cost = frame_cost(frame->header_size, size);
    self->received++;
    self->consumed += cost;
    self->unacked_bytes += cost;
    self->unacked_frames++;
    const bool many =
        self->unacked_bytes >= self->conf.window / ACK_SHARE || self->unacked_frames >= ACK_FRAMES;
    self->ack_at = many ? now : HX_MIN(self->ack_at, now + ACK_DELAY);
    return take(self, frame, piece, out) ? SESSION_MESSAGE : SESSION_NOTHING;
}

// Whether the frame belongs to this acquaintance; if not, what is to be answered.
static bool belongs(session_t *self, const frame_t *frame, session_got_t *got)
{
    if (frame->to_boot == 0) {  // HELLO: the peer wants to begin.
        *got = self->conf.dials                 ? SESSION_MALFORMED
               : frame->boot != self->peer_boot ? SESSION_OVER
                                                : SESSION_NOTHING;
        self->hello_wanted = self->hello_wanted || *got == SESSION_NOTHING;
        return *got == SESSION_NOTHING;
    }
    if (frame->to_boot != self->conf.boot) {
        *got = SESSION_STRANGER;
        return false;
    }
    if (self->peer_boot == 0) {
        self->peer_boot = frame->boot;
    } else if (self->peer_boot != frame->boot) {
        *got = self->conf.dials ? SESSION_OVER : SESSION_STRANGER;
        return false;
    }
    self->met = true;
    return true;
}

session_got_t session_receive(session_t *self, const frame_t *frame, blob_t *piece, hx_time_t now,
                              session_message_t *out)
{
    HX_ASSERT(frame->from == self->conf.peer && frame->channel == self->conf.channel);
    if (frame->type == FRAME_BYE) {
        return frame->to_boot == self->conf.boot ? SESSION_OVER : SESSION_NOTHING;
    }
    session_got_t got = SESSION_NOTHING;
    if (!belongs(self, frame, &got)) {
        return got;
    }
    if (frame->ack > self->outbox.sent) {
        return SESSION_MALFORMED;
    }
    self->heard_at = now;
    self->stats.received_frames++;
    if (self->peer_window == 0) {
        self->peer_window = frame->credit;
    }
    on_ack(self, frame->ack, now);
    self->credit = HX_MAX(self->credit, frame->credit);
    switch (frame->type) {
    case FRAME_DATA:
        return on_data(self, frame, piece, now, out);
    case FRAME_ACK:
        if (frame->round == self->round && outbox_in_flight(&self->outbox)) {
            go_back(self);
        }
        break;
    case FRAME_PING:
        self->pong_number = frame->number;
        break;
    case FRAME_PONG:
        if (frame->number == self->ping_number && self->ping_round == self->round &&
            self->outbox.acked < self->ping_mark) {
            go_back(self);
        }
        break;
    default:
        break;
    }
    return SESSION_NOTHING;
}

// --- time
// -----------------------------------------------------------------------------------------

void session_mended(session_t *self, hx_time_t now)
{
    if (!self->met) {
        self->hello_at = now;
    } else {
        self->ping_asked = true;
    }
}

void session_excuse(session_t *self, hx_time_t pause, hx_time_t now)
{
    HX_ASSERT(pause >= 0);
    self->heard_at = HX_MIN(self->heard_at + pause, now);
}

hx_time_t session_lost_at(const session_t *self)
{
    if (self->met) {
        return self->heard_at + self->conf.dead_after;
    }
    const hx_time_t within = self->conf.meet_within;
    return within == HX_TIME_NEVER ? HX_TIME_NEVER : self->started_at + within;
}

bool session_lost(const session_t *self, hx_time_t now)
{
    return now >= session_lost_at(self);
}

hx_time_t session_wake(const session_t *self)
{
    if (!self->met) {
        return HX_MIN(self->hello_at, session_lost_at(self));
    }
    return HX_MIN(HX_MIN(ping_at(self), self->ack_at), session_lost_at(self));
}

bool session_met(const session_t *self)
{
    return self->met;
}

uint64_t session_peer_boot(const session_t *self)
{
    return self->peer_boot;
}

bool session_idle(const session_t *self)
{
    return self->outbox.head == NULL && self->ack_at == HX_TIME_NEVER;
}

session_stats_t session_stats(const session_t *self)
{
    session_stats_t stats = self->stats;
    stats.queued_bytes = self->outbox.queued;
    stats.flight_bytes = self->outbox.sent_bytes - self->outbox.acked_bytes;
    stats.piece = piece_now(self);
    return stats;
}
