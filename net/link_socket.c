// link_socket - options first, then bind or connect: ZeroMQ ignores most options set later.

#include "net/link_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/address.h"

#define LINGER_CONTROL 1000  // Milliseconds that the last acknowledgements may take at the end.
#define BACKLOG 4096
#define RECONNECT_FIRST 200  // Milliseconds, and a random part of this, so that nodes spread out,
#define RECONNECT_SPREAD 200
#define RECONNECT_MAX HX_SEC(30)  // doubling up to this, or to a quarter of dead_after.
#define HANDSHAKE HX_SEC(10)
#define KEEPALIVE_IDLE 30  // Seconds, of TCP: for a peer whose machine has lost power.
#define KEEPALIVE_INTERVAL 10
#define KEEPALIVE_COUNT 3
#define COPY_MAX ((size_t)8 << 10)  // Pieces up to this are copied: dearer to share than to copy.
#define RESOLVE_LIMIT HX_SEC(4)     // Of a name that is bound.
#define ALIGNMENT 8u                // What a received piece's address is a multiple of.

static int milliseconds(hx_time_t time)
{
    return (int)HX_MIN(HX_MAX(time / HX_MS(1), 1), INT32_MAX);
}

static void set_int(zsock_t *socket, int option, int value)
{
    const int rc = zmq_setsockopt(zsock_resolve(socket), option, &value, sizeof value);
    HX_ASSERT(rc == 0);
}

// What both kinds of socket have. No heartbeats of ZeroMQ's: they cut connections that are busy
// with one large frame; the session has its own.
static void set_options(const link_conf_t *conf, zsock_t *socket, bool ipv6)
{
    const int64_t message_max = (int64_t)LINK_PART_MAX;
    const int rc =
        zmq_setsockopt(zsock_resolve(socket), ZMQ_MAXMSGSIZE, &message_max, sizeof message_max);
    HX_ASSERT(rc == 0);
    set_int(socket, ZMQ_SNDHWM, LINK_QUEUE_MAX);
    set_int(socket, ZMQ_RCVHWM, LINK_QUEUE_MAX);
    set_int(socket, ZMQ_LINGER, LINGER_CONTROL);
    set_int(socket, ZMQ_IPV6, ipv6);
    set_int(socket, ZMQ_HEARTBEAT_IVL, 0);
    set_int(socket, ZMQ_HANDSHAKE_IVL, milliseconds(HANDSHAKE));
    set_int(socket, ZMQ_TCP_KEEPALIVE, 1);
    set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE);
    set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL);
    set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT);
    set_int(socket, ZMQ_TCP_MAXRT, milliseconds(3 * conf->dead_after));
}

static void set_keys(const link_conf_t *conf, zsock_t *socket, bool server)
{
    if (!conf->curve) {
        return;
    }
    zsock_set_curve_publickey(socket, conf->curve->public_key);
    zsock_set_curve_secretkey(socket, conf->curve->secret_key);
    if (server) {
        zsock_set_zap_domain(socket, "harmony");
        zsock_set_curve_server(socket, 1);
    } else {
        zsock_set_curve_serverkey(socket, conf->curve->server_key);
    }
}

bool link_socket_is_path(const char *endpoint)
{
    return strncmp(endpoint, "ipc://", strlen("ipc://")) == 0;
}

// A number in place of a name; of several, one of this machine's loopback.
static hx_err_t resolve_bind(const char *bind, address_t *address, hx_fault_t *fault)
{
    address_t asked = *address;
    address_list_t list;
    char endpoint[PLAN_ENDPOINT_MAX];
    if (strcmp(address->host, "localhost") == 0) {
        snprintf(address->host, sizeof address->host, "127.0.0.1");
        return HX_OK;
    }
    if (address_is_wildcard(address)) {
        return HX_OK;
    }
    asked.port = asked.port > 0 ? asked.port : 1;  // Any will do to ask for the host.
    if (!address_print(&asked, endpoint, sizeof endpoint)) {
        return hx_fault(fault, HX_E_ARG, "%s is too long", bind);
    }
    HX_TRY(address_resolve(endpoint, RESOLVE_LIMIT, &list, fault));
    uint32_t chosen = 0;
    for (uint32_t at = list.count; at-- > 0;) {
        HX_ASSERT(address_parse(list.endpoints[at], &asked));
        chosen = address_is_loopback(&asked) ? at : chosen;
    }
    HX_ASSERT(address_parse(list.endpoints[chosen], &asked));
    memcpy(address->host, asked.host, sizeof address->host);
    return HX_OK;
}

// What ZeroMQ is told to bind: a number in place of a name.
static hx_err_t check_bind(const link_conf_t *conf, const char *bind, address_t *address,
                           char place[PLAN_ENDPOINT_MAX], hx_fault_t *fault)
{
    if (link_socket_is_path(bind)) {
        const int length = snprintf(place, PLAN_ENDPOINT_MAX, "%s", bind);
        return length < PLAN_ENDPOINT_MAX ? HX_OK
                                          : hx_fault(fault, HX_E_ARG, "%s is too long", bind);
    }
    if (!address_parse(bind, address)) {
        return hx_fault(fault, HX_E_ARG,
                        "\"%s\" cannot be bound: write tcp://ADDRESS:PORT, or * as the port for "
                        "any free one",
                        bind);
    }
    HX_TRY(resolve_bind(bind, address, fault));
    if (!conf->curve && !address_is_loopback(address)) {
        return hx_fault(fault, HX_E_ARG,
                        "%s is refused: others could reach %s and there are no keys; bind "
                        "tcp://127.0.0.1:..., or set security.curve and its certificates",
                        bind, address->host);
    }
    return address_print(address, place, PLAN_ENDPOINT_MAX)
               ? HX_OK
               : hx_fault(fault, HX_E_ARG, "%s is too long", bind);
}

static hx_err_t bind_fault(const char *bind, const address_t *address, int error, hx_fault_t *fault)
{
    char holder[128] = "";
    if (error == EADDRINUSE && address->port > 0) {
        address_holder(address->port, holder, sizeof holder);
    }
    if (error == EADDRINUSE) {
        return hx_fault(fault, HX_E_IO, "%s is taken%s%s: stop that program or choose another port",
                        bind, holder[0] ? " by " : "", holder);
    }
    return hx_fault(fault, HX_E_IO, "%s cannot be bound: %s", bind, zmq_strerror(error));
}

hx_err_t link_socket_router(const link_conf_t *conf, const char *bind, zsock_t **out,
                            char endpoint[PLAN_ENDPOINT_MAX], hx_fault_t *fault)
{
    address_t address = {{0}, 0};
    char place[PLAN_ENDPOINT_MAX];
    HX_TRY(check_bind(conf, bind, &address, place, fault));
    zsock_t *socket = zsock_new(ZMQ_ROUTER);
    if (!socket) {
        return hx_fault(fault, HX_E_IO, "no socket for %s: %s", bind, zmq_strerror(zmq_errno()));
    }
    set_options(conf, socket, address_is_ipv6(&address));
    set_int(socket, ZMQ_ROUTER_MANDATORY, 1);
    set_int(socket, ZMQ_BACKLOG, BACKLOG);
    set_keys(conf, socket, true);
    size_t size = PLAN_ENDPOINT_MAX;
    if (zmq_bind(zsock_resolve(socket), place) != 0) {
        const int error = zmq_errno();
        zsock_destroy(&socket);
        return bind_fault(bind, &address, error, fault);
    }
    if (zmq_getsockopt(zsock_resolve(socket), ZMQ_LAST_ENDPOINT, endpoint, &size) != 0) {
        zsock_destroy(&socket);
        return hx_fault(fault, HX_E_IO, "%s: what was bound is not known: %s", bind,
                        zmq_strerror(zmq_errno()));
    }
    *out = socket;
    return HX_OK;
}

zsock_t *link_socket_dealer(const link_conf_t *conf, const char *endpoint)
{
    zsock_t *socket = zsock_new(ZMQ_DEALER);
    if (!socket) {
        return NULL;
    }
    address_t address;
    set_options(conf, socket, address_parse(endpoint, &address) && address_is_ipv6(&address));
    set_int(socket, ZMQ_IMMEDIATE, 1);
    set_int(socket, ZMQ_CONNECT_TIMEOUT, milliseconds(conf->connect_timeout));
    set_int(socket, ZMQ_RECONNECT_IVL, RECONNECT_FIRST + (int)(link_random() % RECONNECT_SPREAD));
    set_int(socket, ZMQ_RECONNECT_IVL_MAX,
            milliseconds(HX_MIN(HX_MAX(conf->dead_after / 4, HX_SEC(1)), RECONNECT_MAX)));
    set_keys(conf, socket, false);
    if (zmq_connect(zsock_resolve(socket), endpoint) != 0) {
        zsock_destroy(&socket);
    }
    return socket;
}

// --- messages
// -------------------------------------------------------------------------------------

static void release_blob(void *data, void *hint)
{
    (void)data;
    blob_t *blob = hint;
    blob_release(&blob);
}

static void init_copy(zmq_msg_t *msg, const void *bytes, size_t size)
{
    const int rc = zmq_msg_init_size(msg, size);
    HX_ASSERT(rc == 0);
    memcpy(zmq_msg_data(msg), bytes, size);
}

static void init_piece(zmq_msg_t *msg, const session_out_t *out)
{
    const char *const data = blob_data(out->blob);
    HX_ASSERT(data);
    if (out->size <= COPY_MAX) {
        init_copy(msg, data + out->offset, out->size);
        return;
    }
    // ZeroMQ only reads it, so that dropping the const does no harm.
    void *const start = (void *)(uintptr_t)(data + out->offset);
    const int rc = zmq_msg_init_data(msg, start, out->size, release_blob, blob_retain(out->blob));
    HX_ASSERT(rc == 0);
}

static bool send_part(zsock_t *socket, zmq_msg_t *msg, bool more)
{
    const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
    if (zmq_msg_send(msg, zsock_resolve(socket), flags) >= 0) {
        return true;
    }
    const int error = zmq_errno();
    zmq_msg_close(msg);
    errno = error;
    return false;
}

link_sent_t link_socket_send(zsock_t *socket, const link_route_t *route, const uint8_t *head,
                             size_t head_size, const session_out_t *out)
{
    zmq_msg_t msg;
    bool sent = true;
    if (route) {
        init_copy(&msg, route->bytes, route->size);
        sent = send_part(socket, &msg, true);
    }
    if (sent) {
        init_copy(&msg, head, head_size);
        sent = send_part(socket, &msg, out->size > 0);
    }
    if (sent && out->size > 0) {
        init_piece(&msg, out);
        sent = send_part(socket, &msg, false);
    }
    if (sent) {
        return LINK_SENT;
    }
    return errno == EHOSTUNREACH ? LINK_GONE : LINK_BLOCKED;
}

static void close_message(void *data, void *hint)
{
    (void)data;
    zmq_msg_close(hint);
    free(hint);
}

// The part as a blob: ZeroMQ's own memory where its alignment allows that.
static blob_t *take_piece(zmq_msg_t *msg)
{
    const size_t size = zmq_msg_size(msg);
    if (size == 0) {
        return NULL;
    }
    void *const data = zmq_msg_data(msg);
    if (size <= COPY_MAX || (uintptr_t)data % ALIGNMENT != 0) {
        return blob_copy(data, size);
    }
    zmq_msg_t *const own = hx_new(1, sizeof *own);
    zmq_msg_init(own);
    zmq_msg_move(own, msg);
    return blob_wrap(zmq_msg_data(own), size, close_message, own);
}

static void take_part(zmq_msg_t *msg, uint32_t index, bool router, link_parts_t *out)
{
    const size_t size = zmq_msg_size(msg);
    const uint32_t head_index = router ? 1 : 0;
    if (router && index == 0) {
        out->well_formed = size > 0 && size <= sizeof out->route.bytes;
        out->route.size = out->well_formed ? size : 0;
        memcpy(out->route.bytes, zmq_msg_data(msg), out->route.size);
    } else if (index == head_index) {
        const char *const source = zmq_msg_gets(msg, "Peer-Address");
        const size_t length = source ? strnlen(source, sizeof out->source - 1) : 0;
        if (length > 0) {
            memcpy(out->source, source, length);
        }
        out->source[length] = '\0';
        out->well_formed = out->well_formed && size <= sizeof out->head;
        out->head_size = out->well_formed ? size : 0;
        memcpy(out->head, zmq_msg_data(msg), out->head_size);
    } else if (index == head_index + 1 && out->well_formed) {
        out->piece = take_piece(msg);
    } else {
        out->well_formed = false;
    }
}

bool link_socket_receive(zsock_t *socket, bool router, link_parts_t *out)
{
    out->route.size = out->head_size = 0;
    out->piece = NULL;
    out->source[0] = '\0';
    out->well_formed = true;
    uint32_t index = 0;
    for (bool more = true; more; index++) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (zmq_msg_recv(&msg, zsock_resolve(socket), ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&msg);
            return false;  // Parts of a message arrive together: this can be the first one only.
        }
        more = zmq_msg_more(&msg) != 0;
        take_part(&msg, index, router, out);
        zmq_msg_close(&msg);
    }
    out->well_formed = out->well_formed && out->head_size > 0;
    if (!out->well_formed) {
        blob_release(&out->piece);
    }
    return true;
}
