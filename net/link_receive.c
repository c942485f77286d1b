// link_receive - what came in: checked, given to its session, and made into events.

#include "net/link_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tensor/hx_log.h"

#define READ_BURST 16u  // Messages of one socket before the next one's turn.
#define BYES_A_SECOND 200u

// Counts what cannot be used; says so at most once a second for each source.
static void complain(link_t *self, const char *source, const char *what, hx_time_t now)
{
    self->stats.malformed++;
    link_complaint_t *found = &self->complaints[0];
    for (uint32_t at = 0; at < LINK_SOURCES; at++) {
        link_complaint_t *const one = &self->complaints[at];
        if (strcmp(one->name, source) == 0) {
            found = one;
            break;
        }
        if (one->said_at < found->said_at) {
            found = one;
        }
    }
    if (strcmp(found->name, source) != 0) {
        *found = (link_complaint_t){.said_at = now - HX_SEC(1)};
        snprintf(found->name, sizeof found->name, "%s", source);
    }
    if (now - found->said_at < HX_SEC(1)) {
        found->unsaid++;
        return;
    }
    char more[64] = {0};
    if (found->unsaid > 0) {
        snprintf(more, sizeof more, " (and %" PRIu64 " more since the last such line)",
                 found->unsaid);
    }
    hx_log_warn("a message from %s was dropped: %s%s", source[0] ? source : "?", what, more);
    found->said_at = now;
    found->unsaid = 0;
}

// Answers of this kind go to anybody, so not too many.
static bool may_answer(link_t *self, hx_time_t now)
{
    self->stats.strangers++;
    if (now - self->byes_since >= HX_SEC(1)) {
        self->byes_since = now;
        self->byes = 0;
    }
    return ++self->byes <= BYES_A_SECOND;
}

static void send_bye(zsock_t *socket, const link_route_t *route, frame_t bye)
{
    const session_out_t out = {.frame = bye};
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&bye, head);
    (void)link_socket_send(socket, route, head, size, &out);  // Lost: it will be said again.
}

// Tells the sender of a frame that its acquaintance is over.
static void say_bye(link_t *self, zsock_t *socket, const link_route_t *route, const frame_t *to,
                    hx_time_t now)
{
    if (may_answer(self, now) && to->type != FRAME_BYE) {
        send_bye(socket, route,
                 (frame_t){.type = FRAME_BYE,
                           .channel = to->channel,
                           .from = self->conf.id,
                           .boot = link_random(),
                           .to = to->from,
                           .to_boot = to->boot});
    }
}

static bool was_dialled(const link_peer_t *peer)
{
    return peer->lines[FRAME_CONTROL].dialled || peer->lines[FRAME_DATA_CHANNEL].dialled;
}

// The line that a frame at the bound socket belongs to: of a peer that says HELLO, a new one.
static link_line_t *accept_line(link_t *self, const frame_t *frame, link_peer_t **peer_p,
                                hx_time_t now)
{
    const bool hello = frame->type == FRAME_HELLO && frame->to_boot == 0;
    link_peer_t *peer = link_find(self, frame->from);
    if (peer && was_dialled(peer)) {
        *peer_p = NULL;  // Nobody dials whom we dialled: somebody plays it.
        return NULL;
    }
    if (peer && hello && peer->peer_boot != 0 && peer->peer_boot != frame->boot) {
        link_lose(self, peer, "it has begun anew");
        peer = NULL;
    }
    if (!peer && hello && self->peers_count < LINK_PEERS_MAX) {
        peer = link_add_peer(self, frame->from);
    }
    *peer_p = peer;
    if (!peer) {
        return NULL;
    }
    link_line_t *const line = &peer->lines[frame->channel];
    if (!line->session && hello) {
        peer->peer_boot = frame->boot;
        line->dialled = false;
        line->session = link_make_session(self, peer, frame->channel, false, now);
    }
    return line->session && !line->dialled ? line : NULL;
}

// Reads a complete message of the session. False: it is malformed.
static bool read_message(link_peer_t *peer, session_message_t *message, link_event_t *out)
{
    out->kind = LINK_MESSAGE;
    out->peer = peer->id;
    out->blob = message->blob;
    if (wire_decode(message->header, message->header_size, &out->msg) == HX_OK &&
        (!out->blob || wire_has_payload(out->msg.kind))) {
        peer->known = true;
        return true;
    }
    blob_release(&message->blob);
    return false;
}

typedef struct {
    zsock_t *socket;
    const link_route_t *route;  // NULL: it was dialled.
    const char *source;
} origin_t;

// Gives a frame to its session. True: `out` is an event.
static bool take_frame(link_t *self, const origin_t *origin, link_peer_t *peer, link_line_t *line,
                       const frame_t *frame, blob_t *piece, hx_time_t now, link_event_t *out)
{
    session_message_t message;
    const session_got_t got = session_receive(line->session, frame, piece, now, &message);
    const uint64_t boot = session_peer_boot(line->session);
    if (got == SESSION_STRANGER) {
        say_bye(self, origin->socket, origin->route, frame, now);
        return false;
    }
    if (got == SESSION_MALFORMED) {
        complain(self, origin->source, "it breaks the rules of its session", now);
        return false;
    }
    if (got == SESSION_OVER || (peer->peer_boot != 0 && boot != peer->peer_boot)) {
        if (got == SESSION_MESSAGE) {
            blob_release(&message.blob);
        }
        link_lose(self, peer, "it has forgotten us");
        return false;
    }
    peer->peer_boot = boot;
    if (origin->route && (line->route.size != origin->route->size ||
                          memcmp(line->route.bytes, origin->route->bytes, line->route.size) != 0)) {
        line->route = *origin->route;
        line->blocked = false;
        session_mended(line->session, now);
    }
    if (got != SESSION_MESSAGE) {
        return false;
    }
    if (!read_message(peer, &message, out)) {
        complain(self, origin->source, "its header is malformed", now);
        return false;
    }
    return true;
}

// A program of another release: both sides should know. What it makes of a BYE that it cannot read
// is to say the same, with its own number.
static void refuse_version(link_t *self, const origin_t *origin, uint64_t version, hx_time_t now)
{
    char what[128];
    snprintf(what, sizeof what,
             "it speaks version %" PRIu64 " of the protocol, and this program %d (install the "
             "same release everywhere)",
             version, WIRE_VERSION);
    complain(self, origin->source, what, now);
    if (origin->route && may_answer(self, now)) {
        // From nobody: who we are is none of a stranger's business.
        send_bye(origin->socket, origin->route,
                 (frame_t){.type = FRAME_BYE,
                           .from = link_random(),
                           .boot = link_random(),
                           .to = link_random(),
                           .to_boot = link_random()});
    }
}

static bool take_parts(link_t *self, const link_source_t *source, zsock_t *socket,
                       link_parts_t *parts, hx_time_t now, link_event_t *out)
{
    frame_t frame;
    const bool bound = source->peer == NODE_NONE;
    const origin_t origin = {socket, bound ? &parts->route : NULL, parts->source};
    const hx_err_t err =
        parts->well_formed ? frame_decode(parts->head, parts->head_size, &frame) : HX_E_FORMAT;
    if (err == HX_E_UNSUPPORTED) {
        refuse_version(self, &origin, frame_version(parts->head, parts->head_size), now);
        return false;
    }
    if (err != HX_OK || frame.channel != source->channel ||
        (parts->piece && frame.type != FRAME_DATA)) {
        complain(self, parts->source, "it is malformed", now);
        return false;
    }
    if (frame.to != self->conf.id || frame.from == self->conf.id ||
        (!bound && frame.from != source->peer)) {
        complain(self, parts->source, "it is meant for another node", now);
        return false;
    }
    link_peer_t *peer = link_find(self, frame.from);
    link_line_t *const line = bound  ? accept_line(self, &frame, &peer, now)
                              : peer ? &peer->lines[frame.channel]
                                     : NULL;
    if (!line || !line->session) {
        say_bye(self, socket, origin.route, &frame, now);
        return false;
    }
    return take_frame(self, &origin, peer, line, &frame, parts->piece, now, out);
}

static zsock_t *socket_of(const link_t *self, const link_source_t *source)
{
    if (source->peer == NODE_NONE) {
        return self->routers[source->channel];
    }
    const link_peer_t *const peer = link_find(self, source->peer);
    return peer ? peer->lines[source->channel].dealer : NULL;
}

static bool *quiet_of(link_t *self, const link_source_t *source)
{
    return source->peer == NODE_NONE ? &self->quiet[source->channel]
                                     : &link_find(self, source->peer)->lines[source->channel].quiet;
}

// Goes round the readable sockets until one gives an event or all are empty.
static bool read_some(link_t *self, hx_time_t now, link_event_t *out)
{
    link_parts_t parts;
    uint32_t idle = 0;
    while (idle < self->sources_count) {
        link_source_t *const source = &self->sources[self->source_at % self->sources_count];
        zsock_t *const socket = source->readable ? socket_of(self, source) : NULL;
        if (socket) {
            *quiet_of(self, source) = false;
        }
        source->readable = socket && link_socket_receive(socket, source->peer == NODE_NONE, &parts);
        if (!source->readable || ++self->source_burst >= READ_BURST) {
            self->source_at++;
            self->source_burst = 0;
        }
        if (!source->readable) {
            idle++;
            continue;
        }
        idle = 0;
        const link_source_t from = *source;
        const bool event = take_parts(self, &from, socket, &parts, now, out);
        blob_release(&parts.piece);
        if (event) {
            return true;
        }
    }
    return false;
}

bool link_next(link_t *self, hx_time_t now, link_event_t *out)
{
    if (self->lost_count > 0) {
        memset(out, 0, sizeof *out);
        out->kind = LINK_LOST;
        out->peer = self->lost[0];
        self->lost_count--;
        memmove(self->lost, self->lost + 1, self->lost_count * sizeof *self->lost);
        return true;
    }
    if (read_some(self, now, out)) {
        return true;
    }
    return self->lost_count > 0 && link_next(self, now, out);
}
