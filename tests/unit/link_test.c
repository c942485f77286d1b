// link_test - links over real sockets on this machine: exchange, breaks, slow lines, taken ports,
// nonsense.

#include "net/link.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <czmq.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "net/address.h"
#include "tests/support/proxy.h"

#define BIND "tcp://127.0.0.1:*"
#define SERVER 500
#define CLIENT 600

static hx_time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (hx_time_t)time.tv_sec * HX_SEC(1) + time.tv_nsec;
}

static link_conf_t conf_of(node_id_t id, bool binds)
{
    return (link_conf_t){
        .id = id,
        .bind_control = binds ? BIND : NULL,
        .bind_data = binds ? BIND : NULL,
        .dead_after = HX_SEC(4),
        .connect_timeout = HX_SEC(2),
    };
}

static link_t *open_link(const link_conf_t *conf)
{
    zsys_init();
    zsys_handler_set(NULL);
    hx_fault_t fault = {{0}};
    link_t *link = NULL;
    cr_assert_eq(link_open(conf, &link, &fault), HX_OK, "%s", fault.text);
    return link;
}

typedef struct {
    link_t *link;
    uint32_t messages;
    uint32_t lost;
    node_id_t peer;
    wire_msg_t msg;  // The last,
    size_t size;     // and the bytes of its payload.
    uint64_t bytes;
    bool broken;  // A message out of order, or with other bytes than were sent.
} end_t;

// Message number n: PUSH of block n, its payload filled with n.
static void send_push(end_t *end, node_id_t to, uint32_t number, size_t size)
{
    blob_t *blob = blob_new(size);
    memset(blob_edit(blob), (int)(number % 251), size);
    const wire_msg_t msg = {.kind = WIRE_PUSH, .block = number, .parts = 1};
    link_send(end->link, to, &msg, size > 0 ? blob : NULL, now());
    blob_release(&blob);
}

static void check_push(end_t *end, const link_event_t *event)
{
    const uint8_t *const bytes = blob_data(event->blob);
    const size_t size = blob_size(event->blob);
    const uint8_t fill = (uint8_t)(event->msg.block % 251);
    end->broken = end->broken || event->msg.block != end->messages ||
                  (size > 0 && (bytes[0] != fill || bytes[size / 2] != fill ||
                                bytes[size - 1] != fill || (uintptr_t)bytes % 8 != 0));
}

// One round of one end's loop.
static void turn(end_t *end, hx_time_t wait)
{
    link_flush(end->link, now());
    link_wait(end->link, NULL, NULL, 0, now() + wait, now());
    link_event_t event;
    while (link_next(end->link, now(), &event)) {
        end->peer = event.peer;
        if (event.kind == LINK_LOST) {
            end->lost++;
            continue;
        }
        if (event.msg.kind == WIRE_PUSH) {
            check_push(end, &event);
        }
        end->messages++;
        end->msg = event.msg;
        end->size = blob_size(event.blob);
        end->bytes += end->size;
        blob_release(&event.blob);
    }
    link_flush(end->link, now());
}

static void turn_both(end_t *a, end_t *b)
{
    turn(a, HX_MS(1));
    turn(b, HX_MS(1));
}

// Until `*value` is `wanted` or the time is over.
static bool reach(end_t *a, end_t *b, const uint32_t *value, uint32_t wanted, hx_time_t limit)
{
    for (const hx_time_t end = now() + limit; now() < end && *value < wanted;) {
        turn_both(a, b);
    }
    return *value == wanted;
}

static void open_pair(end_t *client, end_t *server)
{
    const link_conf_t server_conf = conf_of(SERVER, true);
    const link_conf_t client_conf = conf_of(CLIENT, false);
    *server = (end_t){.link = open_link(&server_conf)};
    *client = (end_t){.link = open_link(&client_conf)};
}

static void dial(end_t *client, const end_t *server)
{
    link_dial(client->link, SERVER, link_control(server->link), link_data(server->link), now());
}

static void close_pair(end_t *client, end_t *server)
{
    cr_assert_not(client->broken);
    cr_assert_not(server->broken);
    link_destroy(&client->link);
    link_destroy(&server->link);
}

Test(link, messages_go_both_ways_on_the_dialled_connection)
{
    end_t client, server;
    open_pair(&client, &server);
    dial(&client, &server);
    const wire_msg_t hello = {.kind = WIRE_REGISTER, .role = PLAN_WORKER, .name = "east/fast"};
    link_send(client.link, SERVER, &hello, NULL, now());
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    cr_assert_eq(server.peer, CLIENT);
    cr_assert_str_eq(server.msg.name, "east/fast");
    const wire_msg_t welcome = {.kind = WIRE_WELCOME, .hash = 77};
    link_send(server.link, CLIENT, &welcome, NULL, now());
    cr_assert(reach(&client, &server, &client.messages, 1, HX_SEC(5)));
    cr_assert_eq(client.msg.hash, 77);
    cr_assert(strncmp(link_control(server.link), "tcp://127.0.0.1:", 16) == 0);
    cr_assert_str_eq(link_control(client.link), "");
    close_pair(&client, &server);
}

Test(link, a_socket_in_the_file_system_is_dialled_like_an_address)
{
    link_conf_t server_conf = conf_of(SERVER, true);
    server_conf.bind_control = "ipc://*";
    server_conf.bind_data = "ipc://*";
    const link_conf_t client_conf = conf_of(CLIENT, false);
    end_t server = {.link = open_link(&server_conf)};
    end_t client = {.link = open_link(&client_conf)};
    cr_assert(strncmp(link_data(server.link), "ipc://", 6) == 0, "%s", link_data(server.link));
    hx_fault_t fault = {{0}};
    cr_assert_eq(link_check_name(link_data(server.link), &fault), HX_OK, "%s", fault.text);
    dial(&client, &server);
    for (uint32_t at = 0; at < 5; at++) {
        send_push(&client, SERVER, at, 300000);
    }
    cr_assert(reach(&client, &server, &server.messages, 5, HX_SEC(20)));
    send_push(&server, CLIENT, 0, 100);
    cr_assert(reach(&client, &server, &client.messages, 1, HX_SEC(20)));
    close_pair(&client, &server);
}

Test(link, payloads_of_all_sizes_arrive_whole_and_in_order)
{
    end_t client, server;
    open_pair(&client, &server);
    dial(&client, &server);
    const size_t sizes[] = {0,      1,       100,           8192,    8193,    262144,
                            262145, 1 << 20, (1 << 20) + 1, 3000000, 20000000};
    for (uint32_t at = 0; at < HX_COUNT(sizes); at++) {
        send_push(&client, SERVER, at, sizes[at]);
    }
    cr_assert(reach(&client, &server, &server.messages, HX_COUNT(sizes), HX_SEC(20)));
    cr_assert_eq(server.size, 20000000);
    for (uint32_t at = 0; at < 20; at++) {
        send_push(&server, CLIENT, at, 700000);
    }
    cr_assert(reach(&client, &server, &client.messages, 20, HX_SEC(20)));
    while (!link_idle(client.link) || !link_idle(server.link)) {
        turn_both(&client, &server);
    }
    cr_assert_eq(link_stats(client.link).resent_frames, 0);
    cr_assert_eq(link_stats(client.link).queued_bytes, 0);
    close_pair(&client, &server);
}

// A client that reaches the server through a proxy, on the data channel only.
static proxy_t *dial_through(end_t *client, const end_t *server)
{
    address_t address;
    char endpoint[PLAN_ENDPOINT_MAX];
    cr_assert(address_parse(link_data(server->link), &address));
    proxy_t *const proxy = proxy_new(address.port);
    address.port = proxy_port(proxy);
    cr_assert(address_print(&address, endpoint, sizeof endpoint));
    link_dial(client->link, SERVER, NULL, endpoint, now());
    return proxy;
}

Test(link, nothing_is_lost_or_doubled_when_the_line_breaks)
{
    end_t client, server;
    open_pair(&client, &server);
    proxy_t *proxy = dial_through(&client, &server);
    proxy_rate(proxy, 20000000);
    const uint32_t count = 300;
    uint32_t sent = 0;
    uint32_t cuts = 0;
    for (const hx_time_t end = now() + HX_SEC(40); now() < end && server.messages < count;) {
        if (sent < count) {
            send_push(&client, SERVER, sent, 1000 + (size_t)sent * 977 % 300000);
            sent++;
        }
        if (server.messages / 70 > cuts) {
            proxy_cut(proxy);
            cuts++;
        }
        turn_both(&client, &server);
    }
    cr_assert_eq(server.messages, count);
    cr_assert_eq(server.lost + client.lost, 0);
    cr_assert_geq(cuts, 3);
    cr_assert_geq(proxy_connections(proxy), 4);
    send_push(&server, CLIENT, 0, 100);  // The way back follows the newest connection.
    cr_assert(reach(&client, &server, &client.messages, 1, HX_SEC(5)));
    close_pair(&client, &server);
    proxy_destroy(&proxy);
}

Test(link, answers_find_their_way_after_a_break_without_the_clients_help)
{
    end_t client, server;
    open_pair(&client, &server);
    proxy_t *proxy = dial_through(&client, &server);
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    proxy_cut(proxy);
    for (uint32_t at = 0; at < 5; at++) {
        send_push(&server, CLIENT, at, 100000);
    }
    cr_assert(reach(&client, &server, &client.messages, 5, HX_SEC(4)));
    close_pair(&client, &server);
    proxy_destroy(&proxy);
}

Test(link, swallowed_line_means_lost_on_both_sides_and_dialling_again_helps)
{
    end_t client, server;
    open_pair(&client, &server);
    proxy_t *proxy = dial_through(&client, &server);
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    const hx_time_t since = now();
    proxy_swallow(proxy, true);
    cr_assert(reach(&client, &server, &client.lost, 1, HX_SEC(8)));
    cr_assert_geq(now() - since, HX_SEC(2));
    cr_assert(reach(&client, &server, &server.lost, 1, HX_SEC(3)));
    cr_assert_eq(client.peer, SERVER);
    proxy_swallow(proxy, false);
    proxy_destroy(&proxy);
    proxy = dial_through(&client, &server);
    server.messages = 0;
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    close_pair(&client, &server);
    proxy_destroy(&proxy);
}

Test(link, short_swallow_is_survived)
{
    end_t client, server;
    open_pair(&client, &server);
    proxy_t *proxy = dial_through(&client, &server);
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    proxy_swallow(proxy, true);
    for (uint32_t at = 1; at < 4; at++) {
        send_push(&client, SERVER, at, 50000);
    }
    uint32_t never = 0;
    cr_assert_not(reach(&client, &server, &never, 1, HX_MS(1500)));
    proxy_swallow(proxy, false);
    cr_assert(reach(&client, &server, &server.messages, 4, HX_SEC(5)));
    cr_assert_eq(client.lost + server.lost, 0);
    close_pair(&client, &server);
    proxy_destroy(&proxy);
}

// 8 MB at 2 MB/s take as long as dead_after: a large message must not look like a dead peer.
Test(link, slow_line_is_no_dead_line)
{
    end_t client, server;
    open_pair(&client, &server);
    proxy_t *proxy = dial_through(&client, &server);
    proxy_rate(proxy, 2000000);
    send_push(&client, SERVER, 0, 8000000);
    send_push(&server, CLIENT, 0, 1);  // Not there yet: dropped.
    cr_assert_eq(link_stats(server.link).unsent, 1);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(15)));
    cr_assert_eq(client.lost + server.lost, 0);
    cr_assert_eq(link_stats(client.link).resent_frames, 0);
    close_pair(&client, &server);
    proxy_destroy(&proxy);
}

Test(link, stopped_reader_bounds_what_the_sender_puts_on_the_line)
{
    end_t client, server;
    open_pair(&client, &server);
    dial(&client, &server);
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    for (uint32_t at = 1; at <= 64; at++) {
        send_push(&client, SERVER, at, 1 << 20);
    }
    uint64_t most = 0;
    for (const hx_time_t end = now() + HX_SEC(2); now() < end;) {
        turn(&client, HX_MS(20));
        most =
            HX_MAX(most, link_session_stats(client.link, SERVER, FRAME_DATA_CHANNEL).flight_bytes);
    }
    cr_assert_leq(most, 8 << 20);
    cr_assert_geq(most, 6 << 20);
    cr_assert_eq(client.lost, 0);
    cr_assert(reach(&client, &server, &server.messages, 65, HX_SEC(20)));
    cr_assert_eq(server.lost, 0, "its own pause was taken for the peer's silence");
    close_pair(&client, &server);
}

Test(link, dialled_peer_that_is_not_there_is_lost_and_the_scheduler_is_waited_for)
{
    end_t client, server;
    open_pair(&client, &server);
    char endpoint[PLAN_ENDPOINT_MAX];
    snprintf(endpoint, sizeof endpoint, "%s", link_data(server.link));
    link_destroy(&server.link);
    link_dial(client.link, SERVER, NULL, endpoint, now());
    link_dial(client.link, NODE_SCHEDULER, endpoint, NULL, now());
    for (const hx_time_t end = now() + HX_SEC(3); now() < end;) {
        turn(&client, HX_MS(50));
    }
    cr_assert_eq(client.lost, 1);
    cr_assert_eq(client.peer, SERVER);
    link_destroy(&client.link);
}

Test(link, late_server_is_found)
{
    end_t client, server;
    open_pair(&client, &server);
    char endpoint[PLAN_ENDPOINT_MAX];
    snprintf(endpoint, sizeof endpoint, "%s", link_control(server.link));
    link_destroy(&server.link);
    link_dial(client.link, NODE_SCHEDULER, endpoint, NULL, now());
    const wire_msg_t msg = {.kind = WIRE_STATUS_ASK};
    link_send(client.link, NODE_SCHEDULER, &msg, NULL, now());
    for (const hx_time_t end = now() + HX_SEC(1); now() < end;) {
        turn(&client, HX_MS(50));
    }
    link_conf_t conf = conf_of(NODE_SCHEDULER, true);
    conf.bind_control = endpoint;
    server = (end_t){.link = open_link(&conf)};
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(6)));
    close_pair(&client, &server);
}

Test(link, restarted_peer_is_another_acquaintance)
{
    end_t client, server;
    open_pair(&client, &server);
    link_conf_t conf = conf_of(SERVER, true);
    dial(&client, &server);
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    char control[PLAN_ENDPOINT_MAX];
    char data[PLAN_ENDPOINT_MAX];
    snprintf(control, sizeof control, "%s", link_control(server.link));
    snprintf(data, sizeof data, "%s", link_data(server.link));
    link_destroy(&server.link);
    conf.bind_control = control;
    conf.bind_data = data;
    zclock_sleep(100);
    server = (end_t){.link = open_link(&conf)};
    cr_assert(reach(&client, &server, &client.lost, 1, HX_SEC(4)));
    cr_assert_eq(server.messages, 0);
    cr_assert_eq(server.lost, 0);
    link_dial(client.link, SERVER, control, data, now());
    send_push(&client, SERVER, 0, 10);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    close_pair(&client, &server);
}

Test(link, taken_port_is_named_with_its_holder)
{
    end_t client, server;
    open_pair(&client, &server);
    link_conf_t conf = conf_of(SERVER + 1, true);
    conf.bind_control = link_control(server.link);
    link_t *second = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(link_open(&conf, &second, &fault), HX_E_IO);
    char holder[64];
    snprintf(holder, sizeof holder, "is taken by process %d (", (int)getpid());
    cr_assert(strstr(fault.text, link_control(server.link)), "%s", fault.text);
    cr_assert(strstr(fault.text, holder), "%s", fault.text);
    cr_assert_null(second);
    close_pair(&client, &server);
}

Test(link, binding_beyond_loopback_needs_keys)
{
    const char *const binds[] = {"tcp://*:*", "tcp://0.0.0.0:*", "tcp://[::]:*"};
    for (size_t at = 0; at < HX_COUNT(binds); at++) {
        link_conf_t conf = conf_of(SERVER, true);
        conf.bind_data = binds[at];
        link_t *link = NULL;
        hx_fault_t fault = {{0}};
        cr_assert_eq(link_open(&conf, &link, &fault), HX_E_ARG);
        cr_assert(strstr(fault.text, binds[at]) && strstr(fault.text, "security.curve"), "%s",
                  fault.text);
    }
}

Test(link, names_are_resolved_and_advertised)
{
    end_t client, server;
    link_conf_t conf = conf_of(SERVER, true);
    conf.bind_control = "tcp://localhost:*";
    conf.advertise = "localhost";
    server = (end_t){.link = open_link(&conf)};
    conf = conf_of(CLIENT, false);
    client = (end_t){.link = open_link(&conf)};
    cr_assert(strncmp(link_control(server.link), "tcp://localhost:", 16) == 0);
    dial(&client, &server);
    const wire_msg_t msg = {.kind = WIRE_STATUS_ASK};
    link_send(client.link, SERVER, &msg, NULL, now());
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(8)));
    close_pair(&client, &server);
}

Test(link, unknown_name_is_told_in_time)
{
    hx_fault_t fault = {{0}};
    const hx_time_t since = now();
    cr_assert_eq(link_check_name("tcp://no-such-host.invalid:4000", &fault), HX_E_ARG);
    cr_assert_lt(now() - since, HX_SEC(5));
    cr_assert(strstr(fault.text, "no-such-host.invalid"), "%s", fault.text);
    cr_assert_eq(link_check_name("tcp://127.0.0.1:4000", NULL), HX_OK);
}

Test(link, many_clients_are_served_and_found_again_after_a_break)
{
    enum { CLIENTS = 40 };
    end_t server;
    end_t clients[CLIENTS];
    const link_conf_t server_conf = conf_of(SERVER, true);
    server = (end_t){.link = open_link(&server_conf)};
    address_t address;
    char endpoint[PLAN_ENDPOINT_MAX];
    cr_assert(address_parse(link_data(server.link), &address));
    proxy_t *proxy = proxy_new(address.port);
    address.port = proxy_port(proxy);
    cr_assert(address_print(&address, endpoint, sizeof endpoint));
    for (uint32_t at = 0; at < CLIENTS; at++) {
        const link_conf_t conf = conf_of(CLIENT + at, false);
        clients[at] = (end_t){.link = open_link(&conf)};
        link_dial(clients[at].link, SERVER, NULL, endpoint, now());
    }
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t at = 0; at < CLIENTS; at++) {
            const wire_msg_t msg = {.kind = WIRE_ACK, .block = at};
            link_send(clients[at].link, SERVER, &msg, NULL, now());
        }
        for (const hx_time_t end = now() + HX_SEC(10);
             now() < end && server.messages < (round + 1) * CLIENTS;) {
            for (uint32_t at = 0; at < CLIENTS; at++) {
                turn(&clients[at], 0);
            }
            turn(&server, HX_MS(1));
        }
        cr_assert_eq(server.messages, (round + 1) * CLIENTS);
        proxy_cut(proxy);
    }
    cr_assert_eq(link_stats(server.link).peers, CLIENTS);
    cr_assert_eq(server.lost, 0);
    for (uint32_t at = 0; at < CLIENTS; at++) {
        cr_assert_eq(clients[at].lost, 0);
        link_destroy(&clients[at].link);
    }
    link_destroy(&server.link);
    proxy_destroy(&proxy);
}

// --- keys -----------------------------------------------------------------------------------

static link_curve_t new_keys(const char *server_key)
{
    link_curve_t keys = {.public_key = ""};
    cr_assert_eq(zmq_curve_keypair(keys.public_key, keys.secret_key), 0);
    snprintf(keys.server_key, sizeof keys.server_key, "%s",
             server_key ? server_key : keys.public_key);
    return keys;
}

Test(link, right_key_gets_in_and_a_wrong_one_is_lost_in_time)
{
    zsys_init();
    zsys_handler_set(NULL);
    zactor_t *authority = zactor_new(zauth, NULL);
    zstr_sendx(authority, "CURVE", CURVE_ALLOW_ANY, NULL);
    zsock_wait(authority);
    const link_curve_t server_keys = new_keys(NULL);
    const link_curve_t right_keys = new_keys(server_keys.public_key);
    const link_curve_t wrong_keys = new_keys(NULL);
    link_conf_t conf = conf_of(SERVER, true);
    conf.curve = &server_keys;
    end_t server = {.link = open_link(&conf)};
    conf = conf_of(CLIENT, false);
    conf.curve = &right_keys;
    end_t client = {.link = open_link(&conf)};
    dial(&client, &server);
    send_push(&client, SERVER, 0, 3000000);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(10)));
    conf = conf_of(CLIENT + 1, false);
    conf.curve = &wrong_keys;
    end_t wrong = {.link = open_link(&conf)};
    conf.id++;
    conf.curve = NULL;
    end_t plain = {.link = open_link(&conf)};
    dial(&wrong, &server);
    dial(&plain, &server);
    send_push(&wrong, SERVER, 0, 10);
    send_push(&plain, SERVER, 0, 10);
    for (const hx_time_t end = now() + HX_SEC(4); now() < end;) {
        turn(&plain, HX_MS(10));
        turn_both(&wrong, &server);
    }
    cr_assert_eq(wrong.lost, 1);
    cr_assert_eq(plain.lost, 1);
    cr_assert_eq(server.messages, 1);
    link_destroy(&wrong.link);
    link_destroy(&plain.link);
    close_pair(&client, &server);
    zactor_destroy(&authority);
}

// --- nonsense
// -------------------------------------------------------------------------------------

static void write_raw(const char *endpoint, const void *bytes, size_t size)
{
    address_t address;
    cr_assert(address_parse(endpoint, &address));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(address.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert_eq(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
    cr_assert(sent >= -1);
    close(fd);
}

Test(link, garbage_on_the_ports_disturbs_nobody)
{
    end_t client, server;
    open_pair(&client, &server);
    dial(&client, &server);
    uint8_t noise[4096];
    for (uint32_t round = 0; round < 20; round++) {
        for (size_t at = 0; at < sizeof noise; at++) {
            noise[at] = (uint8_t)(link_random() >> 8);
        }
        write_raw(link_control(server.link), noise, sizeof noise);
        write_raw(link_data(server.link), "GET / HTTP/1.1\r\n\r\n", 18);
        send_push(&client, SERVER, round, 1000);
        turn_both(&client, &server);
    }
    cr_assert(reach(&client, &server, &server.messages, 20, HX_SEC(5)));
    close_pair(&client, &server);
}

Test(link, messages_that_are_no_frames_are_counted_and_dropped)
{
    end_t client, server;
    open_pair(&client, &server);
    dial(&client, &server);
    send_push(&client, SERVER, 0, 1000);
    cr_assert(reach(&client, &server, &server.messages, 1, HX_SEC(5)));
    zsock_t *stranger = zsock_new_dealer(link_data(server.link));
    const uint8_t noise[64] = {0x9b, 0x01, 0x02};
    for (int round = 0; round < 100; round++) {
        zsock_send(stranger, "b", noise, sizeof noise);
        zsock_send(stranger, "bbb", noise, sizeof noise, noise, (size_t)10, noise, (size_t)1);
        zstr_send(stranger, "");
    }
    // A well-formed frame of an acquaintance that does not exist: answered BYE.
    const frame_t frame = {.type = FRAME_PING,
                           .channel = FRAME_DATA_CHANNEL,
                           .from = 4711,
                           .boot = 9,
                           .to = SERVER,
                           .to_boot = 8,
                           .number = 1};
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&frame, head);
    zsock_send(stranger, "b", head, size);
    for (const hx_time_t end = now() + HX_SEC(5);
         now() < end && link_stats(server.link).strangers == 0;) {
        turn_both(&client, &server);
    }
    cr_assert_eq(link_stats(server.link).malformed, 300);
    cr_assert_eq(link_stats(server.link).strangers, 1);
    zsock_set_rcvtimeo(stranger, 2000);
    zframe_t *answer = zframe_recv(stranger);
    frame_t bye;
    cr_assert_not_null(answer);
    cr_assert_eq(frame_decode(zframe_data(answer), zframe_size(answer), &bye), HX_OK);
    cr_assert_eq(bye.type, FRAME_BYE);
    cr_assert_eq(bye.to_boot, 9);
    zframe_destroy(&answer);
    send_push(&client, SERVER, 1, 1000);
    cr_assert(reach(&client, &server, &server.messages, 2, HX_SEC(5)));
    zsock_destroy(&stranger);
    close_pair(&client, &server);
}

Test(link, another_version_is_answered_so_that_both_sides_can_say_it)
{
    end_t client, server;
    open_pair(&client, &server);
    zsock_t *stranger = zsock_new_dealer(link_control(server.link));
    const frame_t hello = {.type = FRAME_HELLO, .from = 4711, .boot = 9, .to = SERVER};
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&hello, head);
    head[1] = WIRE_VERSION + 1;
    zsock_send(stranger, "b", head, size);
    for (const hx_time_t end = now() + HX_SEC(5);
         now() < end && link_stats(server.link).malformed == 0;) {
        turn_both(&client, &server);
    }
    zsock_set_rcvtimeo(stranger, 2000);
    zframe_t *answer = zframe_recv(stranger);
    cr_assert_not_null(answer);
    cr_assert_eq(frame_version(zframe_data(answer), zframe_size(answer)), WIRE_VERSION);
    zframe_destroy(&answer);
    zsock_destroy(&stranger);
    close_pair(&client, &server);
}

Test(link, who_plays_a_peer_that_was_dialled_changes_nothing)
{
    end_t client, server, other;
    open_pair(&client, &server);
    link_conf_t conf = conf_of(CLIENT + 1, true);
    other = (end_t){.link = open_link(&conf)};
    link_dial(other.link, SERVER, link_control(server.link), link_data(server.link), now());
    send_push(&other, SERVER, 0, 1000);
    cr_assert(reach(&other, &server, &server.messages, 1, HX_SEC(5)));
    zsock_t *stranger = zsock_new_dealer(link_control(other.link));
    const frame_t hello = {.type = FRAME_HELLO, .from = SERVER, .boot = 9, .to = CLIENT + 1};
    uint8_t head[FRAME_HEAD_MAX];
    const size_t size = frame_encode(&hello, head);
    zsock_send(stranger, "b", head, size);
    for (const hx_time_t end = now() + HX_SEC(5);
         now() < end && link_stats(other.link).strangers == 0;) {
        turn_both(&other, &server);
    }
    cr_assert_eq(link_stats(other.link).strangers, 1);
    send_push(&other, SERVER, 1, 1000);
    cr_assert(reach(&other, &server, &server.messages, 2, HX_SEC(5)));
    cr_assert_eq(other.lost, 0);
    zsock_destroy(&stranger);
    link_destroy(&other.link);
    close_pair(&client, &server);
}

Test(link, a_name_that_means_nothing_is_not_bound)
{
    link_conf_t conf = conf_of(SERVER, true);
    conf.bind_data = "tcp://no-such-host.invalid:*";
    link_t *link = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(link_open(&conf, &link, &fault), HX_E_ARG);
    cr_assert(strstr(fault.text, "\"no-such-host.invalid\""), "%s", fault.text);
}

Test(link, sending_to_nobody_is_counted)
{
    const link_conf_t conf = conf_of(CLIENT, false);
    link_t *link = open_link(&conf);
    const wire_msg_t msg = {.kind = WIRE_LEAVE};
    link_send(link, 12345, &msg, NULL, now());
    cr_assert_eq(link_stats(link).unsent, 1);
    cr_assert(link_idle(link));
    link_destroy(&link);
}
