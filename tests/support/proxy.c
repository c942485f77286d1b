// proxy - one thread with poll(2), chunks with a due time: see the header.

#include "tests/support/proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINES_MAX 256u
#define CHUNK_MAX 16384u
#define QUEUED_MAX ((size_t)64 << 10)  // Beside what the delay holds at the given rate.

typedef struct chunk chunk_t;
struct chunk {
    chunk_t *next;
    hx_time_t due;
    size_t size;
    size_t written;
    char bytes[CHUNK_MAX];
};

// One direction of a connection: from fds[i] to fds[1 - i].
typedef struct {
    chunk_t *head;
    chunk_t *tail;
    size_t queued;
    hx_time_t free_at;
    bool ended;  // The source has closed.
} way_t;

typedef struct {
    int fds[2];
    way_t ways[2];
} line_t;

struct proxy {
    int listener;
    int wake[2];
    uint16_t port;
    uint16_t target;
    pthread_t thread;
    line_t lines[LINES_MAX];
    uint32_t lines_count;
    atomic_bool end;
    atomic_bool cut;
    atomic_bool swallow;
    _Atomic(hx_time_t) delay;
    atomic_uint_fast64_t rate;
    atomic_uint_fast64_t carried;
    atomic_uint connections;
};

static hx_time_t clock_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (hx_time_t)time.tv_sec * HX_SEC(1) + time.tv_nsec;
}

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void drop_line(proxy_t *self, uint32_t at)
{
    line_t *const line = &self->lines[at];
    for (int way = 0; way < 2; way++) {
        for (chunk_t *chunk = line->ways[way].head; chunk;) {
            chunk_t *const next = chunk->next;
            free(chunk);
            chunk = next;
        }
        // A reset, as a broken line gives, instead of an orderly end.
        const struct linger linger = {.l_onoff = 1, .l_linger = 0};
        setsockopt(line->fds[way], SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        close(line->fds[way]);
    }
    self->lines[at] = self->lines[--self->lines_count];
}

static void take_connection(proxy_t *self)
{
    const int near = accept4(self->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (near < 0) {
        return;
    }
    atomic_fetch_add(&self->connections, 1);
    const struct sockaddr_in to = loopback(self->target);
    const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (self->lines_count == LINES_MAX || far < 0 ||
        connect(far, (const struct sockaddr *)&to, sizeof to) != 0) {
        close(near);
        if (far >= 0) {
            close(far);
        }
        return;
    }
    fcntl(far, F_SETFL, O_NONBLOCK);
    const int one = 1;
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    self->lines[self->lines_count++] = (line_t){.fds = {near, far}};
}

static bool may_read(const proxy_t *self, const way_t *way)
{
    const double rate = (double)atomic_load(&self->rate);
    const double held = rate * (double)atomic_load(&self->delay) / 1e9;
    return !way->ended && (double)way->queued < (double)QUEUED_MAX + held +
                                                    (rate > 0 ? 0 : (double)((size_t)4 << 20));
}

// False: the connection is over.
static bool read_chunk(proxy_t *self, line_t *line, int from, hx_time_t now)
{
    way_t *const way = &line->ways[from];
    chunk_t *const chunk = hx_new(1, sizeof *chunk);
    const ssize_t size = recv(line->fds[from], chunk->bytes, CHUNK_MAX, 0);
    if (size <= 0) {
        free(chunk);
        way->ended = size == 0;
        return size == 0 || errno == EAGAIN || errno == EINTR;
    }
    const uint64_t rate = atomic_load(&self->rate);
    chunk->size = (size_t)size;
    way->free_at = HX_MAX(way->free_at, now);
    way->free_at += rate > 0 ? (hx_time_t)((double)size / (double)rate * 1e9) : 0;
    chunk->due = way->free_at + atomic_load(&self->delay);
    if (way->tail) {
        way->tail->next = chunk;
    } else {
        way->head = chunk;
    }
    way->tail = chunk;
    way->queued += chunk->size;
    return true;
}

// False: the connection is over.
static bool write_due(proxy_t *self, line_t *line, int from, hx_time_t now)
{
    way_t *const way = &line->ways[from];
    while (way->head && way->head->due <= now) {
        chunk_t *const chunk = way->head;
        const ssize_t size = send(line->fds[1 - from], chunk->bytes + chunk->written,
                                  chunk->size - chunk->written, MSG_NOSIGNAL);
        if (size < 0) {
            return errno == EAGAIN || errno == EINTR;
        }
        atomic_fetch_add(&self->carried, (uint64_t)size);
        chunk->written += (size_t)size;
        way->queued -= (size_t)size;
        if (chunk->written < chunk->size) {
            return true;
        }
        way->head = chunk->next;
        way->tail = way->head ? way->tail : NULL;
        free(chunk);
    }
    return way->head || !way->ended;
}

static bool carry(proxy_t *self, line_t *line, const struct pollfd *polls, hx_time_t now)
{
    for (int from = 0; from < 2; from++) {
        if ((polls[from].revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
            may_read(self, &line->ways[from]) && !read_chunk(self, line, from, now)) {
            return false;
        }
        if (!write_due(self, line, from, now)) {
            return false;
        }
    }
    return true;
}

// What to wait for on one connection; gives back the time of its next due chunk.
static hx_time_t arrange(const proxy_t *self, const line_t *line, struct pollfd *polls,
                         hx_time_t now)
{
    hx_time_t wake = HX_TIME_NEVER;
    for (int side = 0; side < 2; side++) {
        const way_t *const in = &line->ways[1 - side];
        const bool late = in->head && in->head->due <= now;
        polls[side] = (struct pollfd){.fd = line->fds[side]};
        polls[side].events =
            (short)((may_read(self, &line->ways[side]) ? POLLIN : 0) | (late ? POLLOUT : 0));
        if (polls[side].events == 0) {
            polls[side].fd = -1;
        }
        if (in->head && !late) {
            wake = HX_MIN(wake, in->head->due);
        }
    }
    return wake;
}

static void round_of(proxy_t *self, struct pollfd *polls)
{
    const bool swallow = atomic_load(&self->swallow);
    const uint32_t count = swallow ? 0 : self->lines_count;
    hx_time_t now = clock_now();
    hx_time_t wake = HX_TIME_NEVER;
    polls[0] = (struct pollfd){.fd = self->listener, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = self->wake[0], .events = POLLIN};
    for (uint32_t at = 0; at < count; at++) {
        wake = HX_MIN(wake, arrange(self, &self->lines[at], polls + 2 + 2 * (size_t)at, now));
    }
    int timeout = -1;
    if (wake < HX_TIME_NEVER) {
        timeout = (int)((wake - now) / HX_MS(1)) + 1;
    }
    poll(polls, 2 + 2 * count, timeout);
    now = clock_now();
    char byte;
    if ((polls[1].revents & POLLIN) != 0 && read(self->wake[0], &byte, 1) < 0) {
        return;
    }
    for (uint32_t at = count; at-- > 0;) {
        if (!carry(self, &self->lines[at], polls + 2 + 2 * (size_t)at, now)) {
            drop_line(self, at);
        }
    }
    if (atomic_exchange(&self->cut, false)) {
        while (self->lines_count > 0) {
            drop_line(self, self->lines_count - 1);
        }
    }
    if (polls[0].revents & POLLIN) {
        take_connection(self);
    }
}

static void *run(void *argument)
{
    proxy_t *const self = argument;
    struct pollfd *const polls = hx_new(2 + 2 * LINES_MAX, sizeof *polls);
    while (!atomic_load(&self->end)) {
        round_of(self, polls);
    }
    free(polls);
    return NULL;
}

proxy_t *proxy_new(uint16_t port)
{
    proxy_t *const self = hx_new(1, sizeof *self);
    struct sockaddr_in own = loopback(0);
    socklen_t size = sizeof own;
    self->target = port;
    self->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    HX_ASSERT(self->listener >= 0);
    HX_ASSERT(bind(self->listener, (struct sockaddr *)&own, size) == 0);
    HX_ASSERT(listen(self->listener, 64) == 0);
    HX_ASSERT(getsockname(self->listener, (struct sockaddr *)&own, &size) == 0);
    HX_ASSERT(pipe2(self->wake, O_CLOEXEC) == 0);
    self->port = ntohs(own.sin_port);
    HX_ASSERT(pthread_create(&self->thread, NULL, run, self) == 0);
    return self;
}

static void wake(proxy_t *self)
{
    HX_ASSERT(write(self->wake[1], "", 1) == 1);
}

void proxy_destroy(proxy_t **self_p)
{
    proxy_t *const self = *self_p;
    *self_p = NULL;
    if (!self) {
        return;
    }
    atomic_store(&self->end, true);
    wake(self);
    HX_ASSERT(pthread_join(self->thread, NULL) == 0);
    while (self->lines_count > 0) {
        drop_line(self, self->lines_count - 1);
    }
    close(self->listener);
    close(self->wake[0]);
    close(self->wake[1]);
    free(self);
}

uint16_t proxy_port(const proxy_t *self)
{
    return self->port;
}

void proxy_cut(proxy_t *self)
{
    atomic_store(&self->cut, true);
    wake(self);
}

void proxy_swallow(proxy_t *self, bool on)
{
    atomic_store(&self->swallow, on);
    wake(self);
}

void proxy_delay(proxy_t *self, hx_time_t delay)
{
    atomic_store(&self->delay, delay);
}

void proxy_rate(proxy_t *self, uint64_t rate)
{
    atomic_store(&self->rate, rate);
}

uint64_t proxy_carried(const proxy_t *self)
{
    return atomic_load(&self->carried);
}

uint32_t proxy_connections(const proxy_t *self)
{
    return atomic_load(&self->connections);
}
