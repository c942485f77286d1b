// link_socket - ZeroMQ sockets: every option that this project relies on, and whole messages.
//
// A message has two parts at most: the frame's head and its piece of a payload (on a ROUTER the
// route stands before them).

#ifndef LINK_SOCKET_H
#define LINK_SOCKET_H

#include <czmq.h>

#include "net/link.h"

#define LINK_PART_MAX (FRAME_PIECE_MAX + FRAME_HEAD_MAX)  // Bytes of one part: MAXMSGSIZE.
#define LINK_QUEUE_MAX 2048  // Messages in a socket's queue of one peer; a backstop only.
#define LINK_ROUTE_MAX 64    // Bytes; those that ZeroMQ makes by itself have 5.
#define LINK_SOURCE_MAX 64

_Static_assert(LINK_QUEUE_MAX >= 2 * SESSION_FLIGHT_MAX, "credits stop a sender before the queue");

typedef struct {
    uint8_t bytes[LINK_ROUTE_MAX];
    size_t size;  // 0: none.
} link_route_t;

typedef struct {
    link_route_t route;
    uint8_t head[FRAME_HEAD_MAX];
    size_t head_size;
    blob_t *piece;                 // The caller's to release; NULL: none.
    char source[LINK_SOURCE_MAX];  // Where it came from, as far as known.
    bool well_formed;  // Right number and sizes of parts; else nothing but source is set.
} link_parts_t;

typedef enum {
    LINK_SENT,
    LINK_BLOCKED,  // Not connected, or the queue is full.
    LINK_GONE,     // The route leads nowhere any more.
} link_sent_t;

// "ipc://PATH" ("ipc://*": one that is made and taken away again): a socket in the file system, for
// nodes of one machine. It has no host to be resolved or advertised.
bool link_socket_is_path(const char *endpoint);

// A bound ROUTER. `endpoint` becomes what was really bound (of a wildcard port, the port got).
HX_MUST_USE hx_err_t link_socket_router(const link_conf_t *conf, const char *bind, zsock_t **out,
                                        char endpoint[PLAN_ENDPOINT_MAX], hx_fault_t *fault);

// A DEALER that dials a numeric endpoint; NULL: there are no descriptors left, or it is none.
zsock_t *link_socket_dealer(const link_conf_t *conf, const char *endpoint);

// Sends head and piece as one message, or nothing at all. Never waits. `route` NULL: a DEALER.
link_sent_t link_socket_send(zsock_t *socket, const link_route_t *route, const uint8_t *head,
                             size_t head_size, const session_out_t *out);

// The next whole message; false: there is none.
bool link_socket_receive(zsock_t *socket, bool router, link_parts_t *out);

#endif
