// address_test - parts of endpoints, names, routes, and who holds a port.

#include "net/address.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

Test(address, endpoints_are_taken_apart_and_put_together)
{
    const struct {
        const char *endpoint;
        const char *host;
        uint16_t port;
    } good[] = {
        {"tcp://127.0.0.1:4000", "127.0.0.1", 4000},
        {"tcp://*:*", "*", 0},
        {"tcp://node-7.lab:65535", "node-7.lab", 65535},
        {"tcp://[::1]:80", "::1", 80},
        {"tcp://0.0.0.0:*", "0.0.0.0", 0},
    };
    for (size_t at = 0; at < HX_COUNT(good); at++) {
        address_t address;
        char back[PLAN_ENDPOINT_MAX];
        cr_assert(address_parse(good[at].endpoint, &address), "%s", good[at].endpoint);
        cr_assert_str_eq(address.host, good[at].host);
        cr_assert_eq(address.port, good[at].port);
        cr_assert(address_print(&address, back, sizeof back));
        cr_assert_str_eq(back, good[at].endpoint);
    }
}

Test(address, what_is_no_endpoint_is_refused)
{
    const char *const bad[] = {"",           "tcp://",       "127.0.0.1:4000", "tcp://host",
                               "tcp://:1",   "tcp://h:0",    "tcp://h:65536",  "tcp://h:12a",
                               "tcp://h:",   "tcp://::1:80", "tcp://[::1:80",  "tcp://[]:80",
                               "udp://h:80", "tcp://a b:80", "tcp://h:-1",     "tcp://h\n:80"};
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        address_t address;
        cr_assert_not(address_parse(bad[at], &address), "\"%s\" was taken", bad[at]);
    }
}

static bool loopback(const char *endpoint)
{
    address_t address;
    cr_assert(address_parse(endpoint, &address));
    return address_is_loopback(&address);
}

Test(address, loopback_is_this_machine_only)
{
    cr_assert(loopback("tcp://127.0.0.1:1"));
    cr_assert(loopback("tcp://127.8.9.10:1"));
    cr_assert(loopback("tcp://[::1]:1"));
    cr_assert(loopback("tcp://localhost:1"));
    cr_assert_not(loopback("tcp://*:1"));
    cr_assert_not(loopback("tcp://0.0.0.0:1"));
    cr_assert_not(loopback("tcp://10.0.0.1:1"));
    cr_assert_not(loopback("tcp://[::]:1"));
    cr_assert_not(loopback("tcp://127.0.0.1.evil.org:1"));
}

Test(address, numbers_resolve_to_themselves)
{
    address_list_t list;
    cr_assert_eq(address_resolve("tcp://10.1.2.3:77", HX_SEC(1), &list, NULL), HX_OK);
    cr_assert_eq(list.count, 1);
    cr_assert_str_eq(list.endpoints[0], "tcp://10.1.2.3:77");
}

Test(address, localhost_resolves)
{
    address_list_t list;
    hx_fault_t fault;
    cr_assert_eq(address_resolve("tcp://localhost:77", HX_SEC(3), &list, &fault), HX_OK);
    cr_assert_geq(list.count, 1);
    cr_assert(strstr(list.endpoints[0], "127.0.0.1") || strstr(list.endpoints[0], "::1"));
}

Test(address, unknown_name_is_named_with_the_reason)
{
    address_list_t list;
    hx_fault_t fault = {{0}};
    cr_assert_eq(address_resolve("tcp://no-such-host.invalid:77", HX_SEC(4), &list, &fault),
                 HX_E_ARG);
    cr_assert(strstr(fault.text, "no-such-host.invalid"), "%s", fault.text);
    cr_assert(strstr(fault.text, "cannot be resolved: "), "%s", fault.text);
}

Test(address, wildcards_cannot_be_dialled)
{
    address_list_t list;
    hx_fault_t fault;
    cr_assert_eq(address_resolve("tcp://*:77", HX_SEC(1), &list, &fault), HX_E_ARG);
    cr_assert_eq(address_resolve("tcp://host:*", HX_SEC(1), &list, &fault), HX_E_ARG);
}

Test(address, route_to_this_machine_leaves_from_loopback)
{
    char host[ADDRESS_HOST_MAX];
    cr_assert_eq(address_toward("tcp://127.0.0.1:9", HX_SEC(1), host, NULL), HX_OK);
    cr_assert_str_eq(host, "127.0.0.1");
}

Test(address, holder_of_a_port_is_this_process)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in self = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof self;
    cr_assert_eq(bind(fd, (struct sockaddr *)&self, size), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&self, &size), 0);
    char text[128];
    char wanted[64];
    address_holder(ntohs(self.sin_port), text, sizeof text);
    snprintf(wanted, sizeof wanted, "process %d (", (int)getpid());
    cr_assert(strstr(text, wanted), "\"%s\" has no \"%s\"", text, wanted);
    close(fd);
    address_holder(ntohs(self.sin_port), text, sizeof text);
    cr_assert_str_eq(text, "");
}
