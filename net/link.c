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
    free(self->polls);
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
    *(line->dialled ? &line->quiet : &self->quiet[channel]) = false;
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
