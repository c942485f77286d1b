// dashboard - see the header. The actor's thread owns the server and the texts; others only send it
// a status through its pipe.

#include "scheduler/dashboard.h"

#include <stdlib.h>
#include <string.h>

#ifdef HX_MICROHTTPD

#include <arpa/inet.h>
#include <czmq.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdatomic.h>

#include "net/address.h"
#include "scheduler/web_text.h"

#define CONNECTIONS_MAX 32u
#define CONNECTION_TIMEOUT 5u           // Seconds of silence after which a visitor is shown out.
#define CONNECTION_MEMORY (16u * 1024)  // Bytes of one request and what is kept of it.
#define TURN_MAX 1000u                  // Milliseconds between two looks at timeouts.

typedef struct {
    const char *path;
    const char *type;
} page_t;

enum { PAGE, METRICS, STATUS, PAGES_COUNT };
static const page_t PAGES[PAGES_COUNT] = {
    [PAGE] = {"/", "text/html; charset=utf-8"},
    [METRICS] = {"/metrics", "text/plain; version=0.0.4; charset=utf-8"},
    [STATUS] = {"/status.json", "application/json"},
};

// What travels to the actor: a pointer to one of these. libzmq keeps the order; the counter says so
// to those who watch threads.
typedef struct {
    atomic_uint handover;
    blob_t *status;
} word_t;
_Static_assert(sizeof(word_t *) != sizeof "$TERM" - 1, "the two are told apart by size");

struct dashboard {
    struct sockaddr_storage address;
    uint16_t port;
    zactor_t *actor;
    // Of the actor's thread, once it runs.
    struct MHD_Daemon *server;
    char *texts[PAGES_COUNT];
};

// ---- answers

static enum MHD_Result say(struct MHD_Connection *visitor, unsigned status, const char *type,
                           const char *text)
{
    // The text may be replaced while it is still being sent.
    struct MHD_Response *const response = MHD_create_response_from_buffer(
        strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!response) {
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    const enum MHD_Result done = MHD_queue_response(visitor, status, response);
    MHD_destroy_response(response);
    return done;
}

static enum MHD_Result answer(void *self_, struct MHD_Connection *visitor, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **visit)
{
    const dashboard_t *const self = self_;
    (void)version;
    (void)upload;
    (void)upload_size;
    (void)visit;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return say(visitor, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain",
                   "only reading is possible here; harmony-ctl changes things\n");
    }
    for (size_t at = 0; at < PAGES_COUNT; at++) {
        if (strcmp(url, PAGES[at].path) != 0) {
            continue;
        }
        return self->texts[at] ? say(visitor, MHD_HTTP_OK, PAGES[at].type, self->texts[at])
                               : say(visitor, MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain",
                                     "nothing is known yet: come again in a second\n");
    }
    return say(visitor, MHD_HTTP_NOT_FOUND, "text/plain",
               "not here; there are /, /metrics and /status.json\n");
}

// ---- the actor

static void take_status(dashboard_t *self, const char *json, size_t size)
{
    char *page = NULL;
    char *metrics = NULL;
    if (web_text_page(json, size, &page) != HX_OK ||
        web_text_metrics(json, size, &metrics) != HX_OK) {
        free(page);
        return;
    }
    for (size_t at = 0; at < PAGES_COUNT; at++) {
        free(self->texts[at]);
    }
    self->texts[PAGE] = page;
    self->texts[METRICS] = metrics;
    self->texts[STATUS] = hx_new(1, size + 1);
    memcpy(self->texts[STATUS], json, size);
}

// False: the owner wants it to end, which "$TERM" says: no frame of a pointer's size.
static bool take_word(dashboard_t *self, zsock_t *pipe)
{
    zframe_t *frame = zframe_recv(pipe);
    word_t *word = NULL;
    const bool more = frame && zframe_size(frame) == sizeof word;
    if (more) {
        memcpy(&word, zframe_data(frame), sizeof word);
        HX_ASSERT(atomic_load_explicit(&word->handover, memory_order_acquire) > 0);
        take_status(self, blob_data(word->status), blob_size(word->status));
        blob_release(&word->status);
        free(word);
    }
    zframe_destroy(&frame);
    return more;
}

static long turn_time(struct MHD_Daemon *server)
{
    MHD_UNSIGNED_LONG_LONG wait = 0;
    const bool asks = MHD_get_timeout(server, &wait) == MHD_YES;
    return asks && wait < TURN_MAX ? (long)wait : (long)TURN_MAX;
}

static void serve(zsock_t *pipe, void *self_)
{
    dashboard_t *const self = self_;
    const union MHD_DaemonInfo *const info =
        MHD_get_daemon_info(self->server, MHD_DAEMON_INFO_EPOLL_FD);
    zmq_pollitem_t items[] = {{.socket = zsock_resolve(pipe), .events = ZMQ_POLLIN},
                              {.fd = info->epoll_fd, .events = ZMQ_POLLIN}};
    zsock_signal(pipe, 0);
    bool on = true;
    while (on) {
        if (zmq_poll(items, 2, turn_time(self->server)) < 0 && zmq_errno() != EINTR) {
            break;
        }
        on = !(items[0].revents & ZMQ_POLLIN) || take_word(self, pipe);
        MHD_run(self->server);
    }
}

// ---- life

static hx_err_t resolve(const char *text, dashboard_t *self, hx_fault_t *fault)
{
    char endpoint[PLAN_ENDPOINT_MAX];
    address_t address;
    snprintf(endpoint, sizeof endpoint, "tcp://%.100s", text);
    if (strlen(text) > 100 || !address_parse(endpoint, &address)) {
        return hx_fault(fault, HX_E_ARG, "scheduler.dashboard: `%.100s`: expected ADDRESS:PORT",
                        text);
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%u", (unsigned)address.port);
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    const int err =
        getaddrinfo(strcmp(address.host, "*") == 0 ? NULL : address.host, port, &hints, &found);
    if (err != 0) {
        return hx_fault(fault, HX_E_ARG, "scheduler.dashboard: %.100s: %s", text,
                        gai_strerror(err));
    }
    memcpy(&self->address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return HX_OK;
}

static hx_err_t start(dashboard_t *self, const char *text, hx_fault_t *fault)
{
    HX_TRY(resolve(text, self, fault));
    const unsigned v6 = self->address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    errno = 0;
    self->server = MHD_start_daemon(
        MHD_USE_EPOLL | v6, 0, NULL, NULL, answer, self, MHD_OPTION_SOCK_ADDR,
        (struct sockaddr *)&self->address, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_TIMEOUT, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
    if (!self->server) {
        return hx_fault(fault, HX_E_IO, "scheduler.dashboard: cannot listen at %.100s: %s", text,
                        errno ? strerror(errno) : "the HTTP server does not start");
    }
    const union MHD_DaemonInfo *const info =
        MHD_get_daemon_info(self->server, MHD_DAEMON_INFO_BIND_PORT);
    self->port = info ? info->port : 0;
    return HX_OK;
}

hx_err_t dashboard_open(const char *address, dashboard_t **self_p, hx_fault_t *fault)
{
    dashboard_t *self = hx_new(1, sizeof *self);
    const hx_err_t err = start(self, address, fault);
    if (err != HX_OK) {
        free(self);
        return err;
    }
    self->actor = zactor_new(serve, self);
    HX_ASSERT(self->actor);
    *self_p = self;
    return HX_OK;
}

void dashboard_destroy(dashboard_t **self_p)
{
    dashboard_t *const self = *self_p;
    if (!self) {
        return;
    }
    zactor_destroy(&self->actor);
    MHD_stop_daemon(self->server);
    for (size_t at = 0; at < PAGES_COUNT; at++) {
        free(self->texts[at]);
    }
    free(self);
    *self_p = NULL;
}

void dashboard_show(dashboard_t *self, const blob_t *status)
{
    word_t *const word = hx_new(1, sizeof *word);
    word->status = blob_copy(blob_data(status), blob_size(status));
    atomic_fetch_add_explicit(&word->handover, 1, memory_order_release);
    zframe_t *frame = zframe_new(&word, sizeof word);
    while (zframe_send(&frame, self->actor, 0) != 0 && errno == EINTR) {
    }
}

uint16_t dashboard_port(const dashboard_t *self)
{
    return self->port;
}

#else

hx_err_t dashboard_open(const char *address, dashboard_t **self_p, hx_fault_t *fault)
{
    *self_p = NULL;
    return hx_fault(fault, HX_E_UNSUPPORTED,
                    "scheduler.dashboard = %.100s: this program was built without libmicrohttpd: "
                    "install libmicrohttpd-dev and build again, or leave the key empty",
                    address);
}

void dashboard_destroy(dashboard_t **self_p)
{
    *self_p = NULL;
}

void dashboard_show(dashboard_t *self, const blob_t *status)
{
    (void)self;
    (void)status;
}

uint16_t dashboard_port(const dashboard_t *self)
{
    (void)self;
    return 0;
}

#endif
