// link - opening, sending and waiting: see link.h; link_peers.c and link_receive.c are the rest.

#include "net/link_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "tensor/hx_clock.h"
#include "tensor/hx_log.h"

#define WINDOW_CONTROL ((uint64_t)1 << 20)
#define WINDOW_DATA ((uint64_t)8 << 20)
#define PIECE_FIRST ((uint32_t)256 << 10)
#define BURST 8u        // Frames of one peer before the next one's turn.
#define RETRY HX_MS(5)  // After a full queue of a bound socket.
#define CHECK_LIMIT HX_SEC(4)

uint64_t link_random(void)
{
    uint64_t value = 0;
    while (value <= NODE_SCHEDULER) {
        const ssize_t got = getrandom(&value, sizeof value, 0);
        HX_ASSERT(got == (ssize_t)sizeof value || got < 0);
    }
    return value;
}

// --- opening
// --------------------------------------------------------------------------------------

// The endpoint that others should dial: the bound one, with the host that is advertised.
static hx_err_t advertise(const link_t *self, char endpoint[PLAN_ENDPOINT_MAX], hx_fault_t *fault)
{
    address_t address;
    const link_conf_t *const conf = &self->conf;
    if (link_socket_is_path(endpoint)) {
        return HX_OK;
    }
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
    self->listened_at = hx_now();
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
        link_free_peer(self->peers[at]);
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
    return link_socket_is_path(endpoint) ? HX_OK
                                         : address_resolve(endpoint, CHECK_LIMIT, &list, fault);
}

// --- sending
// --------------------------------------------------------------------------------------

void link_send(link_t *self, node_id_t to, const wire_msg_t *msg, blob_t *blob, hx_time_t now)
{
    (void)now;
    HX_ASSERT(blob_size(blob) == 0 || (blob_data(blob) && wire_has_payload(msg->kind)));
    const frame_channel_t wanted = wire_is_data(msg->kind) ? FRAME_DATA_CHANNEL : FRAME_CONTROL;
    const link_peer_t *const peer = link_find(self, to);
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
static bool send_one(link_t *self, link_line_t *line, frame_channel_t channel, hx_time_t now)
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

static bool flush_line(link_t *self, link_line_t *line, frame_channel_t channel, hx_time_t now)
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
                link_peer_t *const peer = self->peers[(self->turn + at) % self->peers_count];
                more = flush_line(self, &peer->lines[channel], channel, now) || more;
            }
            self->turn++;
        }
    }
}

// --- waiting
// --------------------------------------------------------------------------------------

// Gives back the index of the new item.
static uint32_t add_source(link_t *self, node_id_t peer, frame_channel_t channel, zsock_t *socket,
                           short events)
{
    if (self->sources_count == self->sources_room) {
        self->sources_room = self->sources_room > 0 ? self->sources_room * 2 : 16;
        self->sources = hx_grow(self->sources, self->sources_room, sizeof *self->sources);
        self->items = hx_grow(self->items, self->sources_room, sizeof *self->items);
    }
    self->sources[self->sources_count] = (link_source_t){.peer = peer, .channel = channel};
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
            const link_line_t *const line = &self->peers[at]->lines[channel];
            if (line->dealer) {
                const short events = line->blocked ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN;
                add_source(self, self->peers[at]->id, channel, line->dealer, events);
            }
        }
    }
}

// When a line has to be looked at again. `*lost` becomes true if it is silent for too long.
static hx_time_t watch_line(link_t *self, link_line_t *line, hx_time_t now, bool *lost)
{
    const bool met = session_met(line->session);
    if (session_lost(line->session, now)) {
        *lost = true;
        if (!met) {
            hx_log_warn("no answer from %s within %" PRId64
                        " s: is that program running, is its port open to this machine?",
                        line->endpoint, self->conf.connect_timeout / HX_SEC(1));
        }
        return now;
    }
    link_watch_address(self, line, now);
    const bool can = line->dialled ? line->dealer != NULL : line->route.size > 0;
    hx_time_t wake =
        can && !line->blocked ? session_wake(line->session) : session_lost_at(line->session);
    if (line->blocked) {
        wake = HX_MIN(wake, line->retry_at);
    }
    if (line->dialled && !met && line->addresses.count != 1) {
        wake = HX_MIN(wake, line->plugged_at + LINK_NEXT_ADDRESS);
    }
    return wake;
}

// Loses peers that are silent for too long; gives back when to look again.
static hx_time_t watch(link_t *self, hx_time_t now)
{
    const hx_time_t busy = now - self->listened_at;
    const hx_time_t pause = busy > self->conf.dead_after / 8 ? busy : 0;
    hx_time_t wake = HX_TIME_NEVER;
    for (uint32_t at = self->peers_count; at-- > 0;) {
        link_peer_t *const peer = self->peers[at];
        bool lost = false;
        for (frame_channel_t channel = FRAME_CONTROL; channel < FRAME_CHANNELS; channel++) {
            link_line_t *const line = &peer->lines[channel];
            if (line->session) {
                session_excuse(line->session, pause, now);
                wake = HX_MIN(wake, watch_line(self, line, now, &lost));
            }
        }
        if (lost) {
            link_lose(self, peer, "silent for too long");
        }
    }
    return wake;
}

// Takes down what the poll found: readable sockets, and blocked ones that can take more.
static void note_ready(link_t *self, hx_time_t now)
{
    for (uint32_t at = 0; at < self->sources_count; at++) {
        link_source_t *const source = &self->sources[at];
        source->readable = (self->items[at].revents & ZMQ_POLLIN) != 0;
        const bool writable = (self->items[at].revents & ZMQ_POLLOUT) != 0;
        link_peer_t *const peer = writable ? link_find(self, source->peer) : NULL;
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
    const hx_time_t then = hx_now();
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

// --- looking
// --------------------------------------------------------------------------------------

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
    const link_peer_t *const peer = link_find(self, id);
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
