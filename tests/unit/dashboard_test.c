// dashboard: what a visitor gets, through real connections.

#include "scheduler/dashboard.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef HX_MICROHTTPD

#include "net/node.h"

static int visit(uint16_t port)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const struct timeval limit = {.tv_sec = 10};
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

// Says `request` and reads until the end.
static void ask(uint16_t port, const char *request, char *out, size_t out_size)
{
    const int fd = visit(port);
    cr_assert_eq(write(fd, request, strlen(request)), (ssize_t)strlen(request));
    size_t used = 0;
    for (ssize_t got; used + 1 < out_size && (got = read(fd, out + used, out_size - used - 1)) > 0;
         used += (size_t)got) {
    }
    out[used] = '\0';
    close(fd);
}

static void get(uint16_t port, const char *path, char *out, size_t out_size)
{
    char request[256];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
             path);
    ask(port, request, out, out_size);
}

static void starts(const char *text, const char *with, const char *has)
{
    cr_expect(strncmp(text, with, strlen(with)) == 0, "%s", text);
    cr_expect(strstr(text, has), "no \"%s\" in\n%s", has, text);
}

static dashboard_t *open_one(void)
{
    dashboard_t *self = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(node_prepare(&fault), HX_OK);
    cr_assert_eq(dashboard_open("127.0.0.1:*", &self, &fault), HX_OK, "%s", fault.text);
    cr_assert_gt(dashboard_port(self), 0);
    return self;
}

static const char status[] = "{\"run\": \"one\", \"version\": 7, \"nodes\": []}";

// Waits until it is shown: what is sent to the thread arrives a moment later.
static void show(dashboard_t *self)
{
    char text[4096];
    blob_t *blob = blob_copy(status, sizeof status - 1);
    dashboard_show(self, blob);
    blob_release(&blob);
    for (int tries = 0; tries < 1000; tries++) {
        get(dashboard_port(self), "/status.json", text, sizeof text);
        if (strstr(text, " 200 ")) {
            return;
        }
    }
    cr_assert_fail("never shown");
}

Test(dashboard, shows_what_it_was_given_last, .timeout = 60)
{
    char text[16384];
    dashboard_t *self = open_one();
    get(dashboard_port(self), "/", text, sizeof text);
    starts(text, "HTTP/1.1 503", "come again");
    show(self);
    get(dashboard_port(self), "/", text, sizeof text);
    starts(text, "HTTP/1.1 200", "run \"one\"");
    get(dashboard_port(self), "/metrics", text, sizeof text);
    starts(text, "HTTP/1.1 200", "\nharmony_version 7\n");
    get(dashboard_port(self), "/status.json", text, sizeof text);
    starts(text, "HTTP/1.1 200", status);
    dashboard_destroy(&self);
    cr_assert_null(self);
}

Test(dashboard, refuses_what_is_not_reading_and_not_here, .timeout = 60)
{
    char text[16384];
    dashboard_t *self = open_one();
    show(self);
    get(dashboard_port(self), "/../../etc/passwd", text, sizeof text);
    starts(text, "HTTP/1.1 404", "/metrics");
    ask(dashboard_port(self),
        "POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", text,
        sizeof text);
    starts(text, "HTTP/1.1 405", "harmony-ctl");
    dashboard_destroy(&self);
}

// Nobody who is silent, half done or talks nonsense keeps the others out.
Test(dashboard, lives_through_nonsense, .timeout = 60)
{
    char text[16384];
    dashboard_t *self = open_one();
    show(self);
    int silent[8];
    for (int at = 0; at < 8; at++) {
        silent[at] = visit(dashboard_port(self));
        cr_assert_eq(write(silent[at], "GET / HT", 8), 8);
    }
    ask(dashboard_port(self), "\x16\x03\x01 what is this\r\n\r\n", text, sizeof text);
    get(dashboard_port(self), "/metrics", text, sizeof text);
    starts(text, "HTTP/1.1 200", "harmony_version 7");
    for (int at = 0; at < 8; at++) {
        close(silent[at]);
    }
    dashboard_destroy(&self);
}

Test(dashboard, a_place_that_is_not_to_be_had_has_a_line)
{
    dashboard_t *self = open_one();
    dashboard_t *second = NULL;
    hx_fault_t fault = {{0}};
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)dashboard_port(self));
    cr_expect_eq(dashboard_open(address, &second, &fault), HX_E_IO);
    cr_expect(strstr(fault.text, address), "%s", fault.text);
    cr_expect_eq(dashboard_open("nonsense", &second, &fault), HX_E_ARG);
    dashboard_destroy(&self);
}

#else

Test(dashboard, without_the_library_it_says_so)
{
    dashboard_t *self = NULL;
    hx_fault_t fault = {{0}};
    cr_expect_eq(dashboard_open("127.0.0.1:*", &self, &fault), HX_E_UNSUPPORTED);
    cr_expect(strstr(fault.text, "libmicrohttpd"), "%s", fault.text);
}

#endif
