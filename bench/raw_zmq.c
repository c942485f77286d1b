// raw_zmq - see the header.

#include "bench/raw_zmq.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#define ROUND_TRIPS 2000u

typedef struct {
    void *socket;
    char *payload;
    size_t bytes;
} server_t;

static double seconds_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double now_seconds(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

static uint64_t touch(const void *data, size_t size)
{
    uint64_t sum = 0, word;
    for (size_t at = 0; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, (const char *)data + at, sizeof word);
        sum += word;
    }
    return sum;
}

static void keep(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

static int send_payload(void *socket, char *payload, size_t bytes)
{
    zmq_msg_t msg;
    zmq_msg_init_data(&msg, payload, bytes, keep, NULL);
    const int rc = zmq_msg_send(&msg, socket, 0);
    if (rc < 0) {
        zmq_msg_close(&msg);
    }
    return rc;
}

// Echoes until an empty payload comes. The id frame goes back as it came.
static void *serve(void *argument)
{
    server_t *const self = argument;
    volatile uint64_t sink = 0;  // Only written: that the bytes are read is all that counts.
    (void)sink;
    for (;;) {
        zmq_msg_t id, msg;
        zmq_msg_init(&id);
        zmq_msg_init(&msg);
        if (zmq_msg_recv(&id, self->socket, 0) < 0 || zmq_msg_recv(&msg, self->socket, 0) < 0) {
            zmq_msg_close(&id);
            zmq_msg_close(&msg);
            return NULL;
        }
        const size_t size = zmq_msg_size(&msg);
        sink += touch(zmq_msg_data(&msg), size);
        zmq_msg_close(&msg);
        if (size == 0) {
            zmq_msg_close(&id);
            return NULL;
        }
        zmq_msg_send(&id, self->socket, ZMQ_SNDMORE);
        send_payload(self->socket, self->payload, HX_MIN(size, self->bytes));
    }
}

static void take_answer(void *socket, volatile uint64_t *sink)
{
    zmq_msg_t msg;
    zmq_msg_init(&msg);
    if (zmq_msg_recv(&msg, socket, 0) >= 0) {
        *sink += touch(zmq_msg_data(&msg), zmq_msg_size(&msg));
    }
    zmq_msg_close(&msg);
}

static void pump(void *socket, char *payload, const raw_zmq_conf_t *conf, raw_zmq_t *out)
{
    volatile uint64_t sink = 0;
    for (uint32_t at = 0; at < conf->in_flight; at++) {
        send_payload(socket, payload, conf->bytes);
    }
    const double warm = now_seconds() + conf->seconds / 10;
    double start = 0, now = 0, cpu = 0;
    uint64_t done = 0;
    do {
        take_answer(socket, &sink);
        send_payload(socket, payload, conf->bytes);
        now = now_seconds();
        if (start <= 0 && now >= warm) {
            start = now;
            cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
            done = 0;
        }
        done++;
    } while (start <= 0 || now - start < conf->seconds);
    const double bytes = 2.0 * (double)conf->bytes * (double)(done - 1);
    out->goodput = bytes / (now - start);
    out->cpu = (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu) / bytes;
    for (uint32_t at = 0; at < conf->in_flight; at++) {
        take_answer(socket, &sink);
    }
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double round_trip(void *socket, char *payload)
{
    static double times[ROUND_TRIPS];
    volatile uint64_t sink = 0;
    for (uint32_t at = 0; at < ROUND_TRIPS; at++) {
        const double start = now_seconds();
        send_payload(socket, payload, 64);
        take_answer(socket, &sink);
        times[at] = now_seconds() - start;
    }
    qsort(times, ROUND_TRIPS, sizeof times[0], by_value);
    return times[ROUND_TRIPS / 2];
}

hx_err_t raw_zmq_run(const raw_zmq_conf_t *conf, raw_zmq_t *out, hx_fault_t *fault)
{
    HX_ASSERT(conf->bytes > 0 && conf->in_flight > 0 && conf->seconds > 0);
    void *const context = zmq_ctx_new();
    void *const router = zmq_socket(context, ZMQ_ROUTER);
    void *const dealer = zmq_socket(context, ZMQ_DEALER);
    char endpoint[256];
    size_t size = sizeof endpoint;
    hx_err_t err = HX_OK;
    if (zmq_bind(router, conf->endpoint) != 0 ||
        zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0 ||
        zmq_connect(dealer, endpoint) != 0) {
        err = hx_fault(fault, HX_E_IO, "%s: %s", conf->endpoint, zmq_strerror(zmq_errno()));
    } else {
        const size_t room = HX_MAX(conf->bytes, (size_t)64);
        server_t server = {router, hx_new(room, 1), room};
        char *const payload = hx_new(room, 1);
        pthread_t thread;
        HX_ASSERT(pthread_create(&thread, NULL, serve, &server) == 0);
        out->round_trip = round_trip(dealer, payload);
        pump(dealer, payload, conf, out);
        zmq_send(dealer, "", 0, 0);
        pthread_join(thread, NULL);
        free(payload);
        free(server.payload);
    }
    const int linger = 0;
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(router, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(dealer);
    zmq_close(router);
    zmq_ctx_term(context);
    return err;
}
