// bench_nodes - see the header.

#include "bench/bench_nodes.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEAD_AFTER HX_SEC(30)
#define FIRST_LIMIT 5  // Seconds until the first node has bound.

// Where the first node tells the others its addresses.
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t told;
    bool known;
} meeting_t;

typedef struct {
    const bench_node_t *node;
    bool first;
    meeting_t *meeting;
    char (*endpoints)[2][PLAN_ENDPOINT_MAX];  // Of all nodes; the first node's stand first.
    char (*own)[PLAN_ENDPOINT_MAX];
} seat_t;

static void tell(meeting_t *self)
{
    pthread_mutex_lock(&self->mutex);
    self->known = true;
    pthread_cond_broadcast(&self->told);
    pthread_mutex_unlock(&self->mutex);
}

static bool await(meeting_t *self)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FIRST_LIMIT;
    pthread_mutex_lock(&self->mutex);
    int rc = 0;
    while (!self->known && rc != ETIMEDOUT) {
        rc = pthread_cond_timedwait(&self->told, &self->mutex, &until);
    }
    const bool known = self->known;
    pthread_mutex_unlock(&self->mutex);
    return known;
}

// A node_make_fn.
static void *make(void *maker, const char *control, const char *data, hx_fault_t *fault)
{
    seat_t *const seat = maker;
    snprintf(seat->own[0], PLAN_ENDPOINT_MAX, "%s", control);
    snprintf(seat->own[1], PLAN_ENDPOINT_MAX, "%s", data);
    if (seat->first) {
        tell(seat->meeting);
    } else if (!await(seat->meeting)) {
        (void)hx_fault(fault, HX_E_TIMEOUT, "%s: the first node has no address", seat->node->name);
        return NULL;
    }
    const bench_address_t own = {seat->own[0], seat->own[1]};
    const bench_address_t first = {seat->endpoints[0][0], seat->endpoints[0][1]};
    seat->node->seat(seat->node->role, own, first);
    return seat->node->role;
}

static hx_err_t no_jobs(void *worker, step_job_t *job, blob_t **result)
{
    (void)worker;
    (void)job;
    (void)result;
    HX_ASSERT(false && "a job of a node that has none");
    return HX_E_ARG;
}

static node_conf_t conf_of(seat_t *seat, const char *bind)
{
    const bench_node_t *const node = seat->node;
    node_conf_t conf = {
        .link = {.id = node->id,
                 .bind_control = node->binds_control ? bind : NULL,
                 .bind_data = node->binds_data ? bind : NULL,
                 .dead_after = DEAD_AFTER,
                 .connect_timeout = DEAD_AFTER},
        .make = make,
        .maker = seat,
        .step = node->step,
        .job = node->job ? node->job : no_jobs,
        .worker = node->worker,
    };
    snprintf(conf.name, sizeof conf.name, "%s", node->name);
    return conf;
}

const char *bench_bind(const char *transport)
{
    if (strcmp(transport, "ipc") != 0) {
        return "tcp://127.0.0.1:*";
    }
    setenv("TMPDIR", "/tmp", 0);  // Else ZeroMQ makes its sockets in the current folder.
    return "ipc://*";
}

int bench_nodes_run(const bench_node_t *nodes, uint32_t count, const char *transport,
                    hx_fault_t *fault)
{
    HX_ASSERT(count > 0 && count <= BENCH_NODES_MAX);
    meeting_t meeting = {.mutex = PTHREAD_MUTEX_INITIALIZER, .told = PTHREAD_COND_INITIALIZER};
    seat_t seats[BENCH_NODES_MAX];
    node_conf_t confs[BENCH_NODES_MAX];
    char endpoints[BENCH_NODES_MAX][2][PLAN_ENDPOINT_MAX] = {{{0}}};
    const char *const bind = bench_bind(transport);
    for (uint32_t at = 0; at < count; at++) {
        seats[at] = (seat_t){.node = &nodes[at],
                             .first = at == 0,
                             .meeting = &meeting,
                             .endpoints = endpoints,
                             .own = endpoints[at]};
        confs[at] = conf_of(&seats[at], bind);
    }
    node_end_t end = {0};
    const int status = node_run(confs, count, &end);
    pthread_mutex_destroy(&meeting.mutex);
    pthread_cond_destroy(&meeting.told);
    if (status != 0) {
        (void)hx_fault(fault, HX_E_PEER, "%s", end.reason);
    }
    return status;
}
