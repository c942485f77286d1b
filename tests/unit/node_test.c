// node_test - the driver with small roles: messages, jobs, timers, signals, ends.

#include "net/node.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SERVER 50
#define CLIENT 60
#define MESSAGES 40u
#define JOBS 200u

// What the roles of one test do and what they saw.
typedef struct {
    char server[PLAN_ENDPOINT_MAX];
    atomic_bool server_bound;
    bool refuse;         // The client's make fails.
    bool wait_signal;    // Both live until a signal comes.
    int client_status;   // That it stops with.
    pthread_t loop;      // Of the server.
    uint32_t received;   // By the server.
    uint64_t bytes;      // Of their payloads.
    uint32_t jobs_done;  // In order.
    uint32_t timers;
    atomic_uint signals;
    atomic_bool bad;
    hx_time_t due;
    uint32_t last_word;  // Of the client, as the server got it.
} world_t;

static void nap(hx_time_t time)
{
    const struct timespec wait = {.tv_nsec = time};
    nanosleep(&wait, NULL);
}

static void *make_server(void *maker, const char *control, const char *data, hx_fault_t *fault)
{
    (void)data;
    (void)fault;
    world_t *const world = maker;
    world->loop = pthread_self();
    snprintf(world->server, sizeof world->server, "%s", control);
    atomic_store(&world->server_bound, true);
    return world;
}

static void *make_client(void *maker, const char *control, const char *data, hx_fault_t *fault)
{
    world_t *const world = maker;
    world->bad |= control[0] || data[0];
    while (!atomic_load(&world->server_bound)) {
        nap(HX_MS(5));
    }
    if (world->refuse) {
        hx_fault(fault, HX_E_ARG, "the data file is missing");
        return NULL;
    }
    return world;
}

static void server_message(world_t *world, const step_in_t *in, step_out_t *out)
{
    if (in->msg.kind == WIRE_LEAVE) {
        world->last_word = (uint32_t)strlen(in->msg.text);
        step_stop(out, 0, "the client has left");
        return;
    }
    world->received++;
    world->bytes += blob_size(in->blob);
    const wire_msg_t answer = {.kind = WIRE_CLOSED, .attempt = in->msg.version, .count = 1};
    step_send(out, in->peer, &answer, NULL);
}

static void server_step(void *self, const step_in_t *in, step_out_t *out)
{
    world_t *const world = self;
    if (in->kind == STEP_MESSAGE) {
        server_message(world, in, out);
    } else if (in->kind == STEP_SIGNAL) {
        atomic_fetch_add(&world->signals, 1);
        step_stop(out, 130, "interrupted");
    } else if (in->kind == STEP_LOST && !world->wait_signal) {
        step_stop(out, 1, "client lost");
    }
}

static void give_jobs(step_out_t *out)
{
    for (uint32_t at = 0; at < JOBS; at++) {
        blob_t *blob = blob_copy(&at, sizeof at);
        const step_job_t job = {.kind = 1, .index = at, .blob = blob};
        step_run(out, &job);
        blob_release(&blob);
    }
}

static void client_start(world_t *world, const step_in_t *in, step_out_t *out)
{
    step_dial(out, SERVER, world->server, NULL);
    for (uint32_t at = 0; at < MESSAGES; at++) {
        blob_t *blob = blob_new(1000 * (size_t)at);
        memset(blob_edit(blob), (int)at, blob_size(blob));
        const wire_msg_t msg = {.kind = WIRE_SAVE, .version = at};
        step_send(out, SERVER, &msg, blob);
        blob_release(&blob);
    }
    give_jobs(out);
    world->due = in->now + HX_MS(50);
    step_wake(out, world->due);
}

// The client's work is done when all answers, jobs and the timer were there.
static void client_done(world_t *world, uint32_t answers, step_out_t *out)
{
    if (answers == MESSAGES && world->jobs_done == JOBS && world->timers == 1) {
        wire_msg_t msg = {.kind = WIRE_LEAVE};
        memset(msg.text, 'x', sizeof msg.text - 1);
        step_send(out, SERVER, &msg, NULL);
        step_stop(out, world->client_status, "all done");
    }
}

static void client_step(void *self, const step_in_t *in, step_out_t *out)
{
    static _Thread_local uint32_t answers;
    world_t *const world = self;
    switch (in->kind) {
    case STEP_START:
        client_start(world, in, out);
        return;
    case STEP_MESSAGE:
        world->bad |= in->msg.attempt != answers || in->peer != SERVER;
        answers++;
        break;
    case STEP_JOB:
        world->bad |= in->job.index != world->jobs_done || in->job.tokens != in->job.index + 1 ||
                      in->error != HX_OK || in->job_ended < in->job_started ||
                      in->job.seconds < 0 || blob_size(in->blob) != in->job.index + 1;
        world->jobs_done++;
        break;
    case STEP_TIMER:
        world->bad |= in->now < world->due;
        world->timers++;
        break;
    case STEP_SIGNAL:
        atomic_fetch_add(&world->signals, 1);
        step_stop(out, 130, "interrupted");
        return;
    default:
        break;
    }
    if (world->timers == 0) {
        step_wake(out, world->due);
    }
    if (!world->wait_signal) {
        client_done(world, answers, out);
    }
}

static hx_err_t client_job(void *worker, step_job_t *job, blob_t **result)
{
    world_t *const world = worker;
    uint32_t input;
    memcpy(&input, blob_data(job->blob), sizeof input);
    world->bad |= input != job->index || pthread_equal(world->loop, pthread_self());
    job->tokens = job->index + 1;
    *result = blob_new(job->index + 1);
    return HX_OK;
}

static hx_err_t no_job(void *worker, step_job_t *job, blob_t **result)
{
    (void)worker;
    (void)job;
    (void)result;
    return HX_E_UNSUPPORTED;
}

static int run(world_t *world, node_end_t *end)
{
    hx_fault_t fault;
    cr_assert_eq(node_prepare(&fault), HX_OK);
    const link_conf_t link = {.dead_after = HX_SEC(5), .connect_timeout = HX_SEC(3)};
    node_conf_t nodes[2] = {
        {.name = "server",
         .link = link,
         .make = make_server,
         .maker = world,
         .step = server_step,
         .job = no_job},
        {.name = "client",
         .link = link,
         .make = make_client,
         .maker = world,
         .step = client_step,
         .job = client_job,
         .worker = world},
    };
    nodes[0].link.id = SERVER;
    nodes[0].link.bind_control = "tcp://127.0.0.1:*";
    nodes[1].link.id = CLIENT;
    return node_run(nodes, 2, end);
}

Test(node, roles_exchange_messages_jobs_and_last_words, .timeout = 60)
{
    world_t world = {.client_status = 0};
    node_end_t end;
    cr_assert_eq(run(&world, &end), 0, "%s", end.reason);
    cr_assert_not(world.bad);
    cr_assert_eq(world.received, MESSAGES);
    cr_assert_eq(world.bytes, 1000u * MESSAGES * (MESSAGES - 1) / 2);
    cr_assert_eq(world.jobs_done, JOBS);
    cr_assert_eq(world.timers, 1);
    cr_assert_eq(world.last_word, WIRE_TEXT_MAX - 1);
    cr_assert_eq(world.signals, 0);
}

Test(node, worst_status_and_its_reason_are_reported, .timeout = 60)
{
    world_t world = {.client_status = 3};
    node_end_t end;
    cr_assert_eq(run(&world, &end), 3);
    cr_assert_str_eq(end.reason, "all done");
}

static void *interrupt(void *argument)
{
    const world_t *const world = argument;
    while (!atomic_load(&world->server_bound)) {
        nap(HX_MS(5));
    }
    nap(HX_MS(300));
    kill(getpid(), SIGTERM);
    return NULL;
}

static void start_interrupt(world_t *world)
{
    // Signals are blocked for the new thread too: node_prepare comes first.
    hx_fault_t fault;
    cr_assert_eq(node_prepare(&fault), HX_OK);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, interrupt, world), 0);
    pthread_detach(thread);
}

Test(node, signal_reaches_every_role, .timeout = 60)
{
    world_t world = {.wait_signal = true};
    node_end_t end;
    start_interrupt(&world);
    cr_assert_eq(run(&world, &end), 130);
    cr_assert_str_eq(end.reason, "interrupted");
    cr_assert_eq(world.signals, 2);
    cr_assert_not(world.bad);
}

Test(node, role_that_cannot_be_made_ends_the_others, .timeout = 60)
{
    world_t world = {.refuse = true};
    node_end_t end;
    cr_assert_eq(run(&world, &end), 2);
    cr_assert_str_eq(end.reason, "the data file is missing");
    cr_assert_eq(world.signals, 1);
}

Test(node, too_few_files_are_refused_with_both_numbers)
{
    const struct rlimit few = {.rlim_cur = 100, .rlim_max = 100};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    hx_fault_t fault = {{0}};
    cr_assert_eq(node_prepare(&fault), HX_E_UNSUPPORTED);
    cr_assert(strstr(fault.text, "100") && strstr(fault.text, "256"), "%s", fault.text);
}

// --- one role alone
// -------------------------------------------------------------------------------

static void *make_itself(void *maker, const char *control, const char *data, hx_fault_t *fault)
{
    (void)control;
    (void)data;
    (void)fault;
    return maker;
}

static void stubborn_step(void *self, const step_in_t *in, step_out_t *out)
{
    (void)self;
    if (in->kind == STEP_SIGNAL) {
        kill(getpid(), SIGINT);  // The user presses once more; this role does not stop.
    }
    step_wake(out, in->now + HX_MS(100));
}

static int run_alone(step_fn *step, void *role, node_job_fn *job)
{
    hx_fault_t fault;
    cr_assert_eq(node_prepare(&fault), HX_OK);
    const node_conf_t node = {
        .name = "alone",
        .link = {.id = SERVER, .dead_after = HX_SEC(5), .connect_timeout = HX_SEC(3)},
        .make = make_itself,
        .maker = role,
        .step = step,
        .job = job,
        .worker = role,
    };
    return node_run(&node, 1, NULL);
}

Test(node, second_signal_ends_by_force, .exit_code = 130, .timeout = 30)
{
    world_t world = {.server_bound = true};
    start_interrupt(&world);
    run_alone(stubborn_step, &world, no_job);
    cr_assert_fail("the process should have ended");
}

typedef struct {
    atomic_uint begun;
    atomic_uint ended;
} slow_t;

static hx_err_t slow_job(void *worker, step_job_t *job, blob_t **result)
{
    (void)job;
    (void)result;
    slow_t *const slow = worker;
    atomic_fetch_add(&slow->begun, 1);
    nap(HX_MS(300));
    atomic_fetch_add(&slow->ended, 1);
    return HX_OK;
}

static void hasty_step(void *self, const step_in_t *in, step_out_t *out)
{
    slow_t *const slow = self;
    if (in->kind == STEP_START) {
        blob_t *blob = blob_new(100000);
        for (uint32_t at = 0; at < 20; at++) {
            step_run(out, &(step_job_t){.kind = 1, .index = at, .blob = blob});
        }
        blob_release(&blob);
    } else if (atomic_load(&slow->begun) > 0) {
        step_stop(out, 0, "enough");
        return;
    }
    step_wake(out, in->now + HX_MS(10));
}

Test(node, job_that_runs_is_waited_for_and_the_rest_is_dropped, .timeout = 30)
{
    slow_t slow = {0};
    cr_assert_eq(run_alone(hasty_step, &slow, slow_job), 0);
    cr_assert_eq(atomic_load(&slow.begun), atomic_load(&slow.ended));
    cr_assert_leq(atomic_load(&slow.ended), 2);
    cr_assert_geq(atomic_load(&slow.ended), 1);
}
