// link - peers, their lines, and what goes over them: see link.h.
//
// A peer is an acquaintance: an own random number (`boot`) told to it, its number told to us, and a
// line for each channel. A line is a session and the way to the other end: a socket of its own if
// we dialled, else the route by which the bound socket last heard it. When either side is lost or
// forgets, the whole peer goes; whoever dialled may dial again, under a new number.

#include "net/link.h"

#include <czmq.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "net/address.h"
#include "net/link_socket.h"
#include "tensor/hx_log.h"

#define WINDOW_CONTROL ((uint64_t)1 << 20)
#define WINDOW_DATA ((uint64_t)8 << 20)
#define PIECE_FIRST ((uint32_t)256 << 10)
#define BURST 8u                // Frames of one peer before the next one's turn.
#define READ_BURST 16u          // Likewise of one socket, when reading.
#define RETRY HX_MS(5)          // After a full queue of a bound socket.
#define NEXT_ADDRESS HX_SEC(2)  // What one address of several has for an answer.
#define RESOLVE_LIMIT HX_SEC(2)
#define CHECK_LIMIT HX_SEC(4)
#define BYES_A_SECOND 200u
#define SOURCES 16u  // Whose complaints are counted apart.

typedef struct {
    session_t *session;  // NULL: no such line.
    bool dialled;
    char endpoint[PLAN_ENDPOINT_MAX];  // As it was told to us.
    address_list_t addresses;
    uint32_t address_at;
    hx_time_t plugged_at;
    zsock_t *dealer;     // If dialled; NULL while its name cannot be resolved.
    link_route_t route;  // If not; size 0: unknown until the peer speaks again.
    bool blocked;
    hx_time_t retry_at;
} line_t;

typedef struct {
    node_id_t id;
    uint64_t boot;
    uint64_t peer_boot;  // 0: not known yet.
    bool known;          // The role knows of it, so it is told of its loss.
    line_t lines[FRAME_CHANNELS];
} peer_t;

// What may be readable, as of the last wait.
typedef struct {
    node_id_t peer;  // NODE_NONE: the bound socket.
    frame_channel_t channel;
    bool readable;
} source_t;

typedef struct {
    char name[LINK_SOURCE_MAX];
    hx_time_t said_at;
    uint64_t unsaid;
} complaint_t;

struct link {
    link_conf_t conf;
    char toward[PLAN_ENDPOINT_MAX];
    zsock_t *routers[FRAME_CHANNELS];
    char endpoints[FRAME_CHANNELS][PLAN_ENDPOINT_MAX];
    peer_t **peers;  // By rising id.
    uint32_t peers_count, peers_room;
    uint32_t turn;
    node_id_t *lost;  // To be told to the role.
    uint32_t lost_count, lost_room;
    source_t *sources;
    zmq_pollitem_t *items;
    uint32_t sources_count, sources_room;
    uint32_t source_at, source_burst;
    hx_time_t listened_at;
    hx_time_t byes_since;
    uint32_t byes;
    complaint_t complaints[SOURCES];
    link_stats_t stats;
};

uint64_t link_random(void)
{
    uint64_t value = 0;
    while (value <= NODE_SCHEDULER) {
        const ssize_t got = getrandom(&value, sizeof value, 0);
        HX_ASSERT(got == (ssize_t)sizeof value || got < 0);
    }
    return value;
}

static hx_time_t clock_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (hx_time_t)time.tv_sec * HX_SEC(1) + time.tv_nsec;
}

// --- peers ----------------------------------------------------------------------------------------

// Place of the first peer whose id is not below.
static uint32_t place_of(const link_t *self, node_id_t id)
{
    uint32_t low = 0;
    uint32_t high = self->peers_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (self->peers[middle]->id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static peer_t *find(const link_t *self, node_id_t id)
{
    const uint32_t at = place_of(self, id);
    return at < self->peers_count && self->peers[at]->id == id ? self->peers[at] : NULL;
}

static peer_t *add_peer(link_t *self, node_id_t id)
{
    if (self->peers_count == self->peers_room) {
        self->peers_room = self->peers_room > 0 ? self->peers_room * 2 : 16;
        self->peers = hx_grow(self->peers, self->peers_room, sizeof *self->peers);
    }
    const uint32_t at = place_of(self, id);
    memmove(self->peers + at + 1, self->peers + at, (self->peers_count - at) * sizeof *self->peers);
    self->peers_count++;
    peer_t *const peer = hx_new(1, sizeof *peer);
    peer->id = id;
    peer->boot = link_random();
    self->peers[at] = peer;
    return peer;
}

static void free_peer(peer_t *peer)
{
    for (uint32_t channel = 0; channel < FRAME_CHANNELS; channel++) {
        session_destroy(&peer->lines[channel].session);
        zsock_destroy(&peer->lines[channel].dealer);
    }
    free(peer);
}

static void add_lost(link_t *self, node_id_t id)
{
    if (self->lost_count == self->lost_room) {
        self->lost_room = self->lost_room > 0 ? self->lost_room * 2 : 16;
        self->lost = hx_grow(self->lost, self->lost_room, sizeof *self->lost);
    }
    self->lost[self->lost_count++] = id;
}

static void lose(link_t *self, peer_t *peer, const char *why)
{
    hx_log_debug("node %016" PRIx64 " is lost: %s", peer->id, why);
    if (peer->known) {
        add_lost(self, peer->id);
    }
    const uint32_t at = place_of(self, peer->id);
    self->peers_count--;
    memmove(self->peers + at, self->peers + at + 1, (self->peers_count - at) * sizeof *self->peers);
    free_peer(peer);
}

static session_t *make_session(const link_t *self, const peer_t *peer, frame_channel_t channel,
                               bool dials, hx_time_t now)
{
    const link_conf_t *const conf = &self->conf;
    const bool patient = peer->id == NODE_SCHEDULER;
    return session_new(
        &(session_conf_t){.self = conf->id,
                          .peer = peer->id,
                          .channel = channel,
                          .boot = peer->boot,
                          .peer_boot = dials ? 0 : peer->peer_boot,
                          .dials = dials,
                          .dead_after = conf->dead_after,
                          .meet_within = patient ? HX_TIME_NEVER : conf->connect_timeout,
                          .window =
                              channel == FRAME_CONTROL ? conf->window_control : conf->window_data,
                          .piece_first = conf->piece_first,
                          .piece_max = conf->piece_max},
        now);
}

// --- opening --------------------------------------------------------------------------------------

// The endpoint that others should dial: the bound one, with the host that is advertised.
static hx_err_t advertise(const link_t *self, char endpoint[PLAN_ENDPOINT_MAX], hx_fault_t *fault)
{
    address_t address;
    const link_conf_t *const conf = &self->conf;
    HX_ASSERT(address_parse(endpoint, &address));
    if (conf->advertise && conf->advertise[0] && strcmp(conf->advertise, "auto") != 0) {
        snprintf(address.host, sizeof address.host, "%s", conf->advertise);
    } else if (address_is_wildcard(&address) && self->toward[0]) {
        HX_TRY(address_toward(self->toward, CHECK_LIMIT, address.host, fault));
    }
    if (!address_print(&address, endpoint, PLAN_ENDPOINT_MAX)) {
        return hx_fault(fault, HX_E_ARG, "the advertised host \"%s\" is too long", address.host);
    }
    return HX_OK;
}

static hx_err_t open_router(link_t *self, frame_channel_t channel, const char *bind,
                            hx_fault_t *fault)
{
    if (!bind || !bind[0]) {
        return HX_OK;
    }
    HX_TRY(link_socket_router(&self->conf, bind, &self->routers[channel], self->endpoints[channel],
                              fault));
    return advertise(self, self->endpoints[channel], fault);
}

hx_err_t link_open(const link_conf_t *conf, link_t **out, hx_fault_t *fault)
{
    HX_ASSERT(conf->id != NODE_NONE && conf->dead_after > 0 && conf->connect_timeout > 0);
    link_t *self = hx_new(1, sizeof *self);
    self->conf = *conf;
    if (conf->window_control == 0) {
        self->conf.window_control = WINDOW_CONTROL;
    }
    if (conf->window_data == 0) {
        self->conf.window_data = WINDOW_DATA;
    }
    if (conf->piece_max == 0) {
        self->conf.piece_max = (uint32_t)FRAME_PIECE_MAX;
    }
    if (conf->piece_first == 0) {
        self->conf.piece_first = HX_MIN(PIECE_FIRST, self->conf.piece_max);
    }
    snprintf(self->toward, sizeof self->toward, "%s", conf->toward ? conf->toward : "");
    self->listened_at = clock_now();
    hx_err_t err = open_router(self, FRAME_CONTROL, conf->bind_control, fault);
    if (err == HX_OK) {
        err = open_router(self, FRAME_DATA_CHANNEL, conf->bind_data, fault);
    }
    if (err != HX_OK) {
        link_destroy(&self);
        return err;
    }
    *out = self;
    return HX_OK;
}

void link_destroy(link_t **self_p)
{
    link_t *const self = *self_p;
    *self_p = NULL;
    if (!self) {
        return;
    }
    for (uint32_t at = 0; at < self->peers_count; at++) {
        free_peer(self->peers[at]);
    }
    for (uint32_t channel = 0; channel < FRAME_CHANNELS; channel++) {
        zsock_destroy(&self->routers[channel]);
    }
    free(self->peers);
    free(self->lost);
    free(self->sources);
    free(self->items);
    free(self);
}

const char *link_control(const link_t *self)
{
    return self->endpoints[FRAME_CONTROL];
}

const char *link_data(const link_t *self)
{
    return self->endpoints[FRAME_DATA_CHANNEL];
}

hx_err_t link_check_name(const char *endpoint, hx_fault_t *fault)
{
    address_list_t list;
    return address_resolve(endpoint, CHECK_LIMIT, &list, fault);
}

// --- dialling -------------------------------------------------------------------------------------

// Plugs the line into the next address of its endpoint; resolves again when all were tried.
static void plug(const link_t *self, line_t *line, hx_time_t now)
{
    zsock_destroy(&line->dealer);
    line->plugged_at = now;
    line->blocked = false;
    if (++line->address_at >= line->addresses.count) {
        hx_fault_t fault = {{0}};
        line->address_at = 0;
        if (address_resolve(line->endpoint, RESOLVE_LIMIT, &line->addresses, &fault) != HX_OK) {
            line->addresses.count = 0;
            hx_log_warn("%s", fault.text);
            return;
        }
    }
    line->dealer = link_socket_dealer(&self->conf, line->addresses.endpoints[line->address_at]);
    if (!line->dealer) {
        hx_log_warn("no connection to %s: %s", line->addresses.endpoints[line->address_at],
                    zmq_strerror(zmq_errno()));
    }
}

static void dial_line(link_t *self, peer_t *peer, frame_channel_t channel, const char *endpoint,
                      hx_time_t now)
{
    line_t *const line = &peer->lines[channel];
    if (!endpoint || !endpoint[0] || line->session) {
        return;
    }
    line->dialled = true;
    snprintf(line->endpoint, sizeof line->endpoint, "%s", endpoint);
    line->session = make_session(self, peer, channel, true, now);
    plug(self, line, now);
}

void link_dial(link_t *self, node_id_t id, const char *control, const char *data, hx_time_t now)
{
    HX_ASSERT(id != NODE_NONE);
    peer_t *peer = find(self, id);
    if (!peer) {
        peer = add_peer(self, id);
    }
    peer->known = true;
    dial_line(self, peer, FRAME_CONTROL, control, now);
    dial_line(self, peer, FRAME_DATA_CHANNEL, data, now);
}

// Another address, if this one does not answer and there is another (or the name may have changed).
static void watch_address(const link_t *self, line_t *line, hx_time_t now)
{
    if (!line->dialled || session_met(line->session) || now < line->plugged_at + NEXT_ADDRESS) {
        return;
    }
    if (line->addresses.count != 1 || !line->dealer) {
        plug(self, line, now);
    }
}

// --- sending --------------------------------------------------------------------------------------

void link_send(link_t *self, node_id_t to, const wire_msg_t *msg, blob_t *blob, hx_time_t now)
{
    (void)now;
    HX_ASSERT(blob_size(blob) == 0 || (blob_data(blob) && wire_has_payload(msg->kind)));
    const frame_channel_t wanted = wire_is_data(msg->kind) ? FRAME_DATA_CHANNEL : FRAME_CONTROL;
    const peer_t *const peer = find(self, to);
    session_t *session = peer ? peer->lines[wanted].session : NULL;
    if (peer && !session) {
        session = peer->lines[FRAME_CHANNELS - 1 - wanted].session;
    }
    if (!session) {
        self->stats.unsent++;
        hx_log_debug("%s to node %016" PRIx64 " dropped: there is no connection",
                     wire_kind_name(msg->kind), to);
        return;
    }
    uint8_t header[WIRE_HEADER_MAX];
    session_send(session, header, wire_encode(msg, header), blob);
}

// Puts one frame of a line on its way. False: there is none, or the line takes none now.
static bool send_one(link_t *self, line_t *line, frame_channel_t channel, hx_time_t now)
{
    session_out_t out;
    zsock_t *const socket = line->dialled ? line->dealer : self->routers[channel];
    if (!socket || (!line->dialled && line->route.size == 0) ||
        !session_due(line->session, now, &out)) {
        return false;
    }
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&out.frame, head);
    switch (link_socket_send(socket, line->dialled ? NULL : &line->route, head, size, &out)) {
    case LINK_SENT:
        session_sent(line->session, &out, now);
        return true;
    case LINK_BLOCKED:
        line->blocked = true;
        line->retry_at = line->dialled ? HX_TIME_NEVER : now + RETRY;
        return false;
    default:
        line->route.size = 0;
        return false;
    }
}

static bool flush_line(link_t *self, line_t *line, frame_channel_t channel, hx_time_t now)
{
    if (!line->session) {
        return false;
    }
    line->blocked = line->blocked && now < line->retry_at;
    uint32_t sent = 0;
    while (sent < BURST && !line->blocked && send_one(self, line, channel, now)) {
        sent++;
    }
    return sent == BURST;
}

void link_flush(link_t *self, hx_time_t now)
{
    for (frame_channel_t channel = FRAME_CONTROL; channel < FRAME_CHANNELS; channel++) {
        for (bool more = true; more;) {
            more = false;
            for (uint32_t at = 0; at < self->peers_count; at++) {
                peer_t *const peer = self->peers[(self->turn + at) % self->peers_count];
                more = flush_line(self, &peer->lines[channel], channel, now) || more;
            }
            self->turn++;
        }
    }
}

// --- waiting --------------------------------------------------------------------------------------

// Gives back the index of the new item.
static uint32_t add_source(link_t *self, node_id_t peer, frame_channel_t channel, zsock_t *socket,
                           short events)
{
    if (self->sources_count == self->sources_room) {
        self->sources_room = self->sources_room > 0 ? self->sources_room * 2 : 16;
        self->sources = hx_grow(self->sources, self->sources_room, sizeof *self->sources);
        self->items = hx_grow(self->items, self->sources_room, sizeof *self->items);
    }
    self->sources[self->sources_count] = (source_t){.peer = peer, .channel = channel};
    self->items[self->sources_count] =
        (zmq_pollitem_t){.socket = zsock_resolve(socket), .events = events};
    return self->sources_count++;
}

// Bound sockets first, then dialled ones; those for control before those for data.
static void list_sources(link_t *self)
{
    self->sources_count = 0;
    for (frame_channel_t channel = FRAME_CONTROL; channel < FRAME_CHANNELS; channel++) {
        if (self->routers[channel]) {
            add_source(self, NODE_NONE, channel, self->routers[channel], ZMQ_POLLIN);
        }
        for (uint32_t at = 0; at < self->peers_count; at++) {
            const line_t *const line = &self->peers[at]->lines[channel];
            if (line->dealer) {
                const short events = line->blocked ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN;
                add_source(self, self->peers[at]->id, channel, line->dealer, events);
            }
        }
    }
}

// Loses peers that are silent for too long; gives back when to look again.
static hx_time_t watch(link_t *self, hx_time_t now)
{
    const hx_time_t busy = now - self->listened_at;
    const hx_time_t pause = busy > self->conf.dead_after / 8 ? busy : 0;
    hx_time_t wake = HX_TIME_NEVER;
    for (uint32_t at = self->peers_count; at-- > 0;) {
        peer_t *const peer = self->peers[at];
        bool lost = false;
        for (frame_channel_t channel = FRAME_CONTROL; channel < FRAME_CHANNELS; channel++) {
            line_t *const line = &peer->lines[channel];
            if (!line->session) {
                continue;
            }
            session_excuse(line->session, pause, now);
            lost = lost || session_lost(line->session, now);
            watch_address(self, line, now);
            const bool can = line->dialled ? line->dealer != NULL : line->route.size > 0;
            const hx_time_t due = can && !line->blocked ? session_wake(line->session)
                                                        : session_lost_at(line->session);
            wake = HX_MIN(wake, line->blocked ? HX_MIN(due, line->retry_at) : due);
            if (line->dialled && !session_met(line->session) && line->addresses.count != 1) {
                wake = HX_MIN(wake, line->plugged_at + NEXT_ADDRESS);
            }
        }
        if (lost) {
            lose(self, peer, "silent for too long");
        }
    }
    return wake;
}

// Takes down what the poll found: readable sockets, and blocked ones that can take more.
static void note_ready(link_t *self, hx_time_t now)
{
    for (uint32_t at = 0; at < self->sources_count; at++) {
        source_t *const source = &self->sources[at];
        source->readable = (self->items[at].revents & ZMQ_POLLIN) != 0;
        const bool writable = (self->items[at].revents & ZMQ_POLLOUT) != 0;
        peer_t *const peer = writable ? find(self, source->peer) : NULL;
        if (peer && peer->lines[source->channel].session) {
            peer->lines[source->channel].blocked = false;
            session_mended(peer->lines[source->channel].session, now);
        }
    }
    self->source_at = 0;
    self->source_burst = 0;
}

void link_wait(link_t *self, void *const *others, bool *ready, uint32_t count, hx_time_t until,
               hx_time_t now)
{
    const hx_time_t wake = HX_MIN(watch(self, now), until);
    list_sources(self);
    const uint32_t first = self->sources_count;
    for (uint32_t at = 0; at < count; at++) {
        add_source(self, NODE_NONE, FRAME_CONTROL, others[at], ZMQ_POLLIN);
    }
    self->sources_count = first;
    long timeout = -1;
    if (self->lost_count > 0 || wake <= now) {
        timeout = 0;
    } else if (wake < HX_TIME_NEVER) {
        timeout = (long)((wake - now + HX_MS(1) - 1) / HX_MS(1));
    }
    const int found = zmq_poll(self->items, (int)(first + count), timeout);
    const hx_time_t then = clock_now();
    // A process that was stopped did not listen either.
    self->listened_at = wake < then ? HX_MAX(wake, now) : then;
    for (uint32_t at = 0; at < count; at++) {
        ready[at] = found > 0 && (self->items[first + at].revents & ZMQ_POLLIN) != 0;
    }
    if (found > 0) {
        note_ready(self, then);
    } else {
        self->sources_count = 0;
    }
}

// --- receiving ------------------------------------------------------------------------------------

// Counts what cannot be used; says so at most once a second for each source.
static void complain(link_t *self, const char *source, const char *what, hx_time_t now)
{
    self->stats.malformed++;
    complaint_t *found = &self->complaints[0];
    for (uint32_t at = 0; at < SOURCES; at++) {
        complaint_t *const one = &self->complaints[at];
        if (strcmp(one->name, source) == 0) {
            found = one;
            break;
        }
        if (one->said_at < found->said_at) {
            found = one;
        }
    }
    if (strcmp(found->name, source) != 0) {
        *found = (complaint_t){.said_at = now - HX_SEC(1)};
        snprintf(found->name, sizeof found->name, "%s", source);
    }
    if (now - found->said_at < HX_SEC(1)) {
        found->unsaid++;
        return;
    }
    hx_log_warn("a message from %s was dropped: %s (and %" PRIu64 " more since the last such line)",
                source[0] ? source : "?", what, found->unsaid);
    found->said_at = now;
    found->unsaid = 0;
}

// Tells the sender of a frame that its acquaintance is over. Not too often: it could be anybody.
static void say_bye(link_t *self, zsock_t *socket, const link_route_t *route, const frame_t *to,
                    hx_time_t now)
{
    self->stats.strangers++;
    if (now - self->byes_since >= HX_SEC(1)) {
        self->byes_since = now;
        self->byes = 0;
    }
    if (to->type == FRAME_BYE || ++self->byes > BYES_A_SECOND) {
        return;
    }
    const session_out_t out = {.frame = {.type = FRAME_BYE,
                                         .channel = to->channel,
                                         .from = self->conf.id,
                                         .boot = link_random(),
                                         .to = to->from,
                                         .to_boot = to->boot}};
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&out.frame, head);
    (void)link_socket_send(socket, route, head, size, &out);  // Lost: it will be said again.
}

// The line that a frame at the bound socket belongs to: of a peer that says HELLO, a new one.
static line_t *accept_line(link_t *self, const frame_t *frame, peer_t **peer_p, hx_time_t now)
{
    const bool hello = frame->type == FRAME_HELLO && frame->to_boot == 0;
    peer_t *peer = find(self, frame->from);
    if (peer && hello && peer->peer_boot != 0 && peer->peer_boot != frame->boot) {
        lose(self, peer, "it has begun anew");
        peer = NULL;
    }
    if (!peer && hello && self->peers_count < LINK_PEERS_MAX) {
        peer = add_peer(self, frame->from);
    }
    *peer_p = peer;
    if (!peer) {
        return NULL;
    }
    line_t *const line = &peer->lines[frame->channel];
    if (!line->session && hello) {
        peer->peer_boot = frame->boot;
        line->dialled = false;
        line->session = make_session(self, peer, frame->channel, false, now);
    }
    return line->session && !line->dialled ? line : NULL;
}

// Reads a complete message of the session. False: it is malformed.
static bool read_message(peer_t *peer, session_message_t *message, link_event_t *out)
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
static bool take_frame(link_t *self, const origin_t *origin, peer_t *peer, line_t *line,
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
        lose(self, peer, "it has forgotten us");
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

static bool take_parts(link_t *self, const source_t *source, zsock_t *socket, link_parts_t *parts,
                       hx_time_t now, link_event_t *out)
{
    frame_t frame;
    const bool bound = source->peer == NODE_NONE;
    const origin_t origin = {socket, bound ? &parts->route : NULL, parts->source};
    if (!parts->well_formed || frame_decode(parts->head, parts->head_size, &frame) != HX_OK ||
        frame.channel != source->channel || (parts->piece && frame.type != FRAME_DATA)) {
        complain(self, parts->source, "it is malformed", now);
        return false;
    }
    if (frame.to != self->conf.id || frame.from == self->conf.id ||
        (!bound && frame.from != source->peer)) {
        complain(self, parts->source, "it is meant for another node", now);
        return false;
    }
    peer_t *peer = find(self, frame.from);
    line_t *const line = bound  ? accept_line(self, &frame, &peer, now)
                         : peer ? &peer->lines[frame.channel]
                                : NULL;
    if (!line || !line->session) {
        say_bye(self, socket, origin.route, &frame, now);
        return false;
    }
    return take_frame(self, &origin, peer, line, &frame, parts->piece, now, out);
}

static zsock_t *socket_of(const link_t *self, const source_t *source)
{
    if (source->peer == NODE_NONE) {
        return self->routers[source->channel];
    }
    const peer_t *const peer = find(self, source->peer);
    return peer ? peer->lines[source->channel].dealer : NULL;
}

// Goes round the readable sockets until one gives an event or all are empty.
static bool read_some(link_t *self, hx_time_t now, link_event_t *out)
{
    link_parts_t parts;
    uint32_t idle = 0;
    while (idle < self->sources_count) {
        source_t *const source = &self->sources[self->source_at % self->sources_count];
        zsock_t *const socket = source->readable ? socket_of(self, source) : NULL;
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
        const source_t from = *source;
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

// --- looking --------------------------------------------------------------------------------------

bool link_idle(const link_t *self)
{
    for (uint32_t at = 0; at < self->peers_count; at++) {
        for (uint32_t channel = 0; channel < FRAME_CHANNELS; channel++) {
            const session_t *const session = self->peers[at]->lines[channel].session;
            if (session && !session_idle(session)) {
                return false;
            }
        }
    }
    return true;
}

session_stats_t link_session_stats(const link_t *self, node_id_t id, frame_channel_t channel)
{
    const peer_t *const peer = find(self, id);
    const session_t *const session = peer ? peer->lines[channel].session : NULL;
    return session ? session_stats(session) : (session_stats_t){0};
}

link_stats_t link_stats(const link_t *self)
{
    link_stats_t stats = self->stats;
    stats.peers = self->peers_count;
    for (uint32_t at = 0; at < self->peers_count; at++) {
        for (frame_channel_t channel = FRAME_CONTROL; channel < FRAME_CHANNELS; channel++) {
            const session_stats_t one = link_session_stats(self, self->peers[at]->id, channel);
            stats.sent_frames += one.sent_frames;
            stats.resent_frames += one.resent_frames;
            stats.queued_bytes += one.queued_bytes;
        }
    }
    return stats;
}
