// link_wait - waits for all sockets of a link with one system call.
//
// A ZeroMQ socket has a descriptor that becomes readable when something has happened to it, once:
// every operation on the socket may take that news away. So a socket's descriptor says enough only
// while the socket is quiet: asked what it can do, it could do nothing of what is wanted, and it
// has not been touched since. The others are asked each time. (zmq_poll asks every socket several
// times a wait, each with a system call.)

#include <inttypes.h>
#include <poll.h>

#include "net/link_core.h"
#include "tensor/hx_clock.h"
#include "tensor/hx_log.h"

static void add_source(link_t *self, link_source_t source, zsock_t *socket, int events, bool *quiet)
{
    if (self->sources_count == self->sources_room) {
        self->sources_room = self->sources_room > 0 ? self->sources_room * 2 : 16;
        self->sources = hx_grow(self->sources, self->sources_room, sizeof *self->sources);
        self->items = hx_grow(self->items, self->sources_room, sizeof *self->items);
        self->polls = hx_grow(self->polls, self->sources_room, sizeof *self->polls);
    }
    self->sources[self->sources_count] = source;
    self->items[self->sources_count++] =
        (link_item_t){.socket = zsock_resolve(socket), .wanted = events, .quiet = quiet};
}

// Bound sockets first, then dialled ones; those for control before those for data.
static void list_sources(link_t *self)
{
    self->sources_count = 0;
    for (frame_channel_t channel = FRAME_CONTROL; channel < FRAME_CHANNELS; channel++) {
        if (self->routers[channel]) {
            add_source(self, (link_source_t){.peer = NODE_NONE, .channel = channel},
                       self->routers[channel], ZMQ_POLLIN, &self->quiet[channel]);
        }
        for (uint32_t at = 0; at < self->peers_count; at++) {
            link_line_t *const line = &self->peers[at]->lines[channel];
            if (line->dealer) {
                add_source(self, (link_source_t){.peer = self->peers[at]->id, .channel = channel},
                           line->dealer, line->blocked ? ZMQ_POLLIN | ZMQ_POLLOUT : ZMQ_POLLIN,
                           &line->quiet);
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
        source->readable = (self->items[at].found & ZMQ_POLLIN) != 0;
        const bool writable = (self->items[at].found & ZMQ_POLLOUT) != 0;
        link_peer_t *const peer = writable ? link_find(self, source->peer) : NULL;
        if (peer && peer->lines[source->channel].session) {
            peer->lines[source->channel].blocked = false;
            session_mended(peer->lines[source->channel].session, now);
        }
    }
    self->source_at = 0;
    self->source_burst = 0;
}

// Asks the socket what of the wanted it can do now.
static void ask(link_item_t *item)
{
    int events = 0;
    size_t size = sizeof events;
    const bool known = zmq_getsockopt(item->socket, ZMQ_EVENTS, &events, &size) == 0;
    item->found = known ? events & item->wanted : 0;
    if (item->quiet) {
        *item->quiet = item->found == 0;
    }
}

static int descriptor_of(const link_item_t *item)
{
    int fd = -1;
    size_t size = sizeof fd;
    return zmq_getsockopt(item->socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

// Fills in `found` of each item; waits at most `timeout` milliseconds (-1: for ever) if there is
// nothing yet. True: there is something.
static bool wait_for(link_item_t *items, struct pollfd *polls, uint32_t count, int timeout)
{
    bool any = false;
    for (uint32_t at = 0; at < count; at++) {
        link_item_t *const item = &items[at];
        item->found = 0;
        if (!item->quiet || !*item->quiet) {
            ask(item);
        }
        any = any || item->found != 0;
        polls[at] = (struct pollfd){.fd = item->found ? -1 : descriptor_of(item), .events = POLLIN};
    }
    if (poll(polls, count, any ? 0 : timeout) <= 0) {
        return any;
    }
    for (uint32_t at = 0; at < count; at++) {
        if (polls[at].revents != 0) {
            ask(&items[at]);
            any = any || items[at].found != 0;
        }
    }
    return any;
}

static int milliseconds_until(hx_time_t wake, hx_time_t now)
{
    if (wake == HX_TIME_NEVER) {
        return -1;
    }
    return wake <= now ? 0 : (int)HX_MIN((wake - now + HX_MS(1) - 1) / HX_MS(1), INT32_MAX);
}

void link_wait(link_t *self, void *const *others, bool *ready, uint32_t count, hx_time_t until,
               hx_time_t now)
{
    const hx_time_t wake = HX_MIN(watch(self, now), until);
    list_sources(self);
    const uint32_t first = self->sources_count;
    for (uint32_t at = 0; at < count; at++) {
        add_source(self, (link_source_t){.peer = NODE_NONE}, others[at], ZMQ_POLLIN, NULL);
    }
    self->sources_count = first;
    const bool found = wait_for(self->items, self->polls, first + count,
                                self->lost_count > 0 ? 0 : milliseconds_until(wake, now));
    const hx_time_t then = hx_now();
    // A process that was stopped did not listen either.
    self->listened_at = wake < then ? HX_MAX(wake, now) : then;
    for (uint32_t at = 0; at < count; at++) {
        ready[at] = (self->items[first + at].found & ZMQ_POLLIN) != 0;
    }
    if (found) {
        note_ready(self, then);
    } else {
        self->sources_count = 0;
    }
}
