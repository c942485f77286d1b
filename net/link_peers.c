// link_peers - who is there: peers come, are dialled, and are lost.

#include "net/link_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_log.h"

#define RESOLVE_LIMIT HX_SEC(2)

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

link_peer_t *link_find(const link_t *self, node_id_t id)
{
    const uint32_t at = place_of(self, id);
    return at < self->peers_count && self->peers[at]->id == id ? self->peers[at] : NULL;
}

link_peer_t *link_add_peer(link_t *self, node_id_t id)
{
    if (self->peers_count == self->peers_room) {
        self->peers_room = self->peers_room > 0 ? self->peers_room * 2 : 16;
        self->peers = hx_grow(self->peers, self->peers_room, sizeof *self->peers);
    }
    const uint32_t at = place_of(self, id);
    memmove(self->peers + at + 1, self->peers + at, (self->peers_count - at) * sizeof *self->peers);
    self->peers_count++;
    link_peer_t *const peer = hx_new(1, sizeof *peer);
    peer->id = id;
    peer->boot = link_random();
    self->peers[at] = peer;
    return peer;
}

void link_free_peer(link_peer_t *peer)
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

void link_lose(link_t *self, link_peer_t *peer, const char *why)
{
    hx_log_debug("node %016" PRIx64 " is lost: %s", peer->id, why);
    if (peer->known) {
        add_lost(self, peer->id);
    }
    const uint32_t at = place_of(self, peer->id);
    self->peers_count--;
    memmove(self->peers + at, self->peers + at + 1, (self->peers_count - at) * sizeof *self->peers);
    link_free_peer(peer);
}

session_t *link_make_session(const link_t *self, const link_peer_t *peer, frame_channel_t channel,
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

// --- dialling
// -------------------------------------------------------------------------------------

// Plugs the line into the next address of its endpoint; resolves again when all were tried.
static void plug(const link_t *self, link_line_t *line, hx_time_t now)
{
    zsock_destroy(&line->dealer);
    line->plugged_at = now;
    line->blocked = false;
    if (++line->address_at >= line->addresses.count) {
        hx_fault_t fault = {{0}};
        line->address_at = 0;
        if (link_socket_is_path(line->endpoint)) {
            line->addresses.count = 1;
            memcpy(line->addresses.endpoints[0], line->endpoint, sizeof line->endpoint);
        } else if (address_resolve(line->endpoint, RESOLVE_LIMIT, &line->addresses, &fault) !=
                   HX_OK) {
            line->addresses.count = 0;
            hx_log_warn("%s", fault.text);
            return;
        }
    }
    line->quiet = false;
    line->dealer = link_socket_dealer(&self->conf, line->addresses.endpoints[line->address_at]);
    if (!line->dealer) {
        hx_log_warn("no connection to %s: %s", line->addresses.endpoints[line->address_at],
                    zmq_strerror(zmq_errno()));
    }
}

static void dial_line(link_t *self, link_peer_t *peer, frame_channel_t channel,
                      const char *endpoint, hx_time_t now)
{
    link_line_t *const line = &peer->lines[channel];
    if (!endpoint || !endpoint[0] || line->session) {
        return;
    }
    line->dialled = true;
    snprintf(line->endpoint, sizeof line->endpoint, "%s", endpoint);
    line->session = link_make_session(self, peer, channel, true, now);
    plug(self, line, now);
}

void link_dial(link_t *self, node_id_t id, const char *control, const char *data, hx_time_t now)
{
    HX_ASSERT(id != NODE_NONE);
    link_peer_t *peer = link_find(self, id);
    if (!peer) {
        peer = link_add_peer(self, id);
    }
    peer->known = true;
    dial_line(self, peer, FRAME_CONTROL, control, now);
    dial_line(self, peer, FRAME_DATA_CHANNEL, data, now);
}

// Another address, if this one does not answer and there is another (or the name may have changed).
void link_watch_address(const link_t *self, link_line_t *line, hx_time_t now)
{
    if (!line->dialled || session_met(line->session) ||
        now < line->plugged_at + LINK_NEXT_ADDRESS) {
        return;
    }
    if (line->addresses.count != 1 || !line->dealer) {
        plug(self, line, now);
    }
}
