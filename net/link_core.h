// link_core - what the parts of link share: peers, their lines, and who may touch them.
//
// A peer is an acquaintance: an own random number (`boot`) told to it, its number told to us, and a
// line for each channel. A line is a session and the way to the other end: a socket of its own if
// we dialled, else the route by which the bound socket last heard it. When either side is lost or
// forgets, the whole peer goes; whoever dialled may dial again, under a new number.

#ifndef LINK_CORE_H
#define LINK_CORE_H

#include <czmq.h>
#include <poll.h>

#include "net/address.h"
#include "net/link.h"
#include "net/link_socket.h"

#define LINK_SOURCES 16u             // Whose complaints are counted apart.
#define LINK_NEXT_ADDRESS HX_SEC(2)  // What one address of several has for an answer.

typedef struct {
    session_t *session;  // NULL: no such line.
    bool dialled;
    char endpoint[PLAN_ENDPOINT_MAX];  // As it was told to us.
    address_list_t addresses;
    uint32_t address_at;
    hx_time_t plugged_at;
    zsock_t *dealer;     // If dialled; NULL while its name cannot be resolved.
    bool quiet;          // Of the dealer: see link_wait.c.
    link_route_t route;  // If not; size 0: unknown until the peer speaks again.
    bool blocked;
    hx_time_t retry_at;
} link_line_t;

typedef struct {
    node_id_t id;
    uint64_t boot;
    uint64_t peer_boot;  // 0: not known yet.
    bool known;          // The role knows of it, so it is told of its loss.
    link_line_t lines[FRAME_CHANNELS];
} link_peer_t;

// What may be readable, as of the last wait.
typedef struct {
    node_id_t peer;  // NODE_NONE: the bound socket.
    frame_channel_t channel;
    bool readable;
} link_source_t;

// A socket to wait for.
typedef struct {
    void *socket;  // As ZeroMQ knows it.
    int wanted;    // ZMQ_POLLIN, ZMQ_POLLOUT;
    int found;     // those that it can do.
    bool *quiet;   // NULL: it is asked each time.
} link_item_t;

typedef struct {
    char name[LINK_SOURCE_MAX];
    hx_time_t said_at;
    uint64_t unsaid;
} link_complaint_t;

struct link {
    link_conf_t conf;
    char toward[PLAN_ENDPOINT_MAX];
    zsock_t *routers[FRAME_CHANNELS];
    bool quiet[FRAME_CHANNELS];  // Of the routers: see link_wait.c.
    char endpoints[FRAME_CHANNELS][PLAN_ENDPOINT_MAX];
    link_peer_t **peers;  // By rising id.
    uint32_t peers_count, peers_room;
    uint32_t turn;
    node_id_t *lost;  // To be told to the role.
    uint32_t lost_count, lost_room;
    link_source_t *sources;
    link_item_t *items;
    struct pollfd *polls;
    uint32_t sources_count, sources_room;
    uint32_t source_at, source_burst;
    hx_time_t listened_at;
    hx_time_t byes_since;
    uint32_t byes;
    link_complaint_t complaints[LINK_SOURCES];
    link_stats_t stats;
};

// The peer of that id, or NULL.
link_peer_t *link_find(const link_t *self, node_id_t id);
// A new one, with a number of its own and no lines.
link_peer_t *link_add_peer(link_t *self, node_id_t id);
// Takes it out and frees it; the role will be told if it knows of it.
void link_lose(link_t *self, link_peer_t *peer, const char *why);
void link_free_peer(link_peer_t *peer);
session_t *link_make_session(const link_t *self, const link_peer_t *peer, frame_channel_t channel,
                             bool dials, hx_time_t now);
// Tries another address of a dialled line that has had no answer.
void link_watch_address(const link_t *self, link_line_t *line, hx_time_t now);

#endif
