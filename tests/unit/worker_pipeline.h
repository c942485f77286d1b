// worker_pipeline - a whole pipeline of real state machines and real jobs in one thread, with a toy
// lead and toy shards. Which message or job comes next is drawn from a seed.

#ifndef WORKER_PIPELINE_H
#define WORKER_PIPELINE_H

#include "model/profile.h"
#include "net/payload.h"
#include "tensor/hx_rng.h"
#include "tests/support/seats.h"
#include "worker/stage_jobs.h"
#include "worker/worker_fsm.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define LAYERS 4u  // Blocks; the chain has six.
#define CONTEXT 8u
#define VOCAB 24u
#define BLOCK_SIZE 4096u
#define TEXT_SIZE 2000u
#define STAGES_MAX 4u
#define WORKERS_MAX 16u
#define LEASES_MAX 16u
#define JOBS_MAX 512u
#define MESSAGES_MAX 4096u

// Of pipelines that begin from now on: inner steps of a lease; 0: none.
static uint32_t local_steps;
static inner_conf_t local_inner;
static optim_schedule_t local_schedule;

// What does not change from one pipeline to the next.
typedef struct {
    hx_backend_t *backend;
    model_t *model;
    blocks_t blocks;
    data_t *data;
    float *params;          // Of all blocks, end to end.
    uint64_t *block_first;  // Where each begins, in floats.
    uint64_t params_count;
} world_t;

typedef struct {
    node_id_t from;
    node_id_t to;
    wire_msg_t msg;
    blob_t *blob;
} message_t;

typedef struct {
    worker_fsm_t *fsm;
    stage_jobs_t *jobs;
    step_job_t queue[JOBS_MAX];
    uint32_t queue_count;
    bool ready;  // PLAN_ACK of the plan in force came.
} actor_t;

// A lease as lead and shards see it.
typedef struct {
    uint64_t attempt;
    uint64_t row_first;
    uint32_t rows;
    bool evaluation;
    bool closed;
    uint32_t announced;  // Workers whose READY came, a bit each.
    double loss;
    uint64_t tokens;
    uint32_t away[WORKERS_MAX];  // Microbatches sent behind and not back, where nobody shares one.
    float *sum;
    uint32_t *parts;  // Of each block: how many came.
} lease_book_t;

typedef struct {
    const world_t *world;
    plan_t plan;
    hx_rng_t rng;
    hx_time_t now;
    step_out_t out;
    actor_t actors[WORKERS_MAX];
    uint32_t workers;
    uint32_t seated;  // A bit for each worker that is in a stage of the plan in force.
    message_t messages[MESSAGES_MAX];
    uint32_t messages_count;
    lease_book_t leases[LEASES_MAX];
    uint32_t leases_count;
    uint64_t version;
    uint32_t values_passed;  // From one worker to another.
    uint32_t values_served;  // By shards.
} pipeline_t;

// --- The world

static inline void world_begin(world_t *self)
{
    model_conf_t conf = model_conf_default();
    conf.layers = LAYERS;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = CONTEXT;
    conf.vocab = VOCAB;
    self->backend = hx_backend_cpu_new(1);
    cr_assert_eq(model_open(&conf, &self->model, NULL), HX_OK);
    blocks_make(self->model, BLOCK_SIZE, &self->blocks);
    self->block_first = hx_new(self->blocks.count, sizeof *self->block_first);
    self->params_count = 0;
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        self->block_first[block] = self->params_count;
        self->params_count += self->blocks.blocks[block].count;
    }
    self->params = hx_new(self->params_count, sizeof *self->params);
    hx_rng_normal_fill(3, 1, 0, 0.2f, self->params, self->params_count);
    char path[] = "/tmp/hx-stage-jobs-XXXXXX";
    const int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    hx_rng_t rng = hx_rng_seed(2);
    uint8_t text[TEXT_SIZE];
    for (size_t at = 0; at < TEXT_SIZE; at++) {
        text[at] = (uint8_t)hx_rng_below(&rng, VOCAB);
    }
    cr_assert_eq(write(fd, text, sizeof text), (ssize_t)sizeof text);
    close(fd);
    const data_conf_t data = {.path = path, .valid = 0.2, .context = CONTEXT, .vocab = VOCAB};
    cr_assert_eq(data_open(&data, &self->data, NULL), HX_OK);
    unlink(path);
}

static inline void world_end(world_t *self)
{
    data_destroy(&self->data);
    free(self->params);
    free(self->block_first);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    hx_backend_destroy(&self->backend);
}

// --- Plans

// Cuts, depths, members and modes at random.
static inline seats_conf_t random_seats(hx_rng_t *rng)
{
    seats_conf_t conf = {
        .rows = 1 + (uint32_t)hx_rng_below(rng, 14),
        .schedule = (schedule_kind_t)hx_rng_below(rng, SCHEDULE_KINDS_COUNT),
        .recompute = hx_rng_below(rng, 3) == 0,
        .shards = 1 + (uint32_t)hx_rng_below(rng, 3),
    };
    conf.microbatch = 1 + (uint32_t)hx_rng_below(rng, HX_MIN(conf.rows, 6));
    const uint32_t wanted = 1 + (uint32_t)hx_rng_below(rng, STAGES_MAX);
    uint32_t end = 0;
    while (conf.stages + 1 < wanted) {
        const uint32_t most = LAYERS + 2 - end - (wanted - conf.stages - 1);
        end += 1 + (uint32_t)hx_rng_below(rng, most);
        conf.ends[conf.stages++] = end;
    }
    conf.ends[conf.stages++] = LAYERS + 2;
    uint32_t depth = conf.stages + (uint32_t)hx_rng_below(rng, 4);
    for (uint32_t stage = 0; stage < conf.stages; stage++) {
        conf.depths[stage] = depth;
        depth -= depth > 1 ? (uint32_t)hx_rng_below(rng, 2) : 0;
        conf.members[stage] = 1 + (uint32_t)hx_rng_below(rng, 2) * (uint32_t)hx_rng_below(rng, 4);
        conf.modes[stage] = (plan_mode_t)hx_rng_below(rng, PLAN_MODES_COUNT);
        for (uint32_t member = 0; member < conf.members[stage]; member++) {
            conf.weights[stage][member] = 1 + (uint32_t)hx_rng_below(rng, 5);
        }
    }
    return conf;
}

static inline void print_seats(const seats_conf_t *conf, uint32_t trial)
{
    fprintf(stderr, "trial %u: %s, %u rows by %u, %s, stages end at", trial,
            schedule_kind_name(conf->schedule), conf->rows, conf->microbatch,
            conf->recompute ? "recompute" : "keep");
    for (uint32_t stage = 0; stage < conf->stages; stage++) {
        fprintf(stderr, " %u (depth %u, %s", conf->ends[stage], conf->depths[stage],
                plan_mode_name(conf->modes[stage]));
        for (uint32_t member = 0; member < HX_MAX(conf->members[stage], 1u); member++) {
            fprintf(stderr, " %u", HX_MAX(conf->weights[stage][member], 1u));
        }
        fprintf(stderr, ")");
    }
    fprintf(stderr, "\n");
}

// --- The driver

static inline lease_book_t *book_of(pipeline_t *self, uint64_t attempt)
{
    for (uint32_t index = 0; index < self->leases_count; index++) {
        if (self->leases[index].attempt == attempt) {
            return &self->leases[index];
        }
    }
    cr_assert_fail("attempt %" PRIu64 " was never granted", attempt);
    return NULL;
}

static inline uint32_t depth_of(const pipeline_t *self, uint32_t stage)
{
    uint32_t depths[STAGES_MAX];
    for (uint32_t at = 0; at < self->plan.stages_count; at++) {
        depths[at] = self->plan.stages[at].depth;
    }
    const schedule_in_t in = {.kind = self->plan.pipelines[0].schedule,
                              .stage = stage,
                              .stages = self->plan.stages_count,
                              .micros = SCHEDULE_MICROS_MAX,
                              .depths = depths};
    return schedule_depth(&in, stage);
}

// No stage is more microbatches ahead of the one behind it than its depth. Looked at where each
// stage has one worker: there a microbatch is one message.
static inline void count_away(pipeline_t *self, node_id_t from, node_id_t to, const wire_msg_t *msg)
{
    const bool ahead = msg->kind == WIRE_ACTIVATION;
    const bool back = msg->kind == WIRE_GRADIENT || msg->kind == WIRE_TAKEN;
    if (self->plan.members_count > self->plan.stages_count || (!ahead && !back)) {
        return;
    }
    const uint32_t stage = (uint32_t)((ahead ? from : to) - SEATS_WORKER);
    uint32_t *const away = &book_of(self, msg->attempt)->away[stage];
    *away += ahead ? 1 : UINT32_MAX;
    cr_assert_leq(*away, depth_of(self, stage), "stage %u is %u microbatches ahead", stage, *away);
}

static inline void post(pipeline_t *self, node_id_t from, node_id_t to, const wire_msg_t *msg,
                        blob_t *blob)
{
    cr_assert_lt(self->messages_count, MESSAGES_MAX);
    self->messages[self->messages_count++] = (message_t){from, to, *msg, blob_retain(blob)};
}

static inline void step(pipeline_t *self, uint32_t worker, step_in_t in)
{
    actor_t *const actor = &self->actors[worker];
    self->now += HX_MS(1);
    in.now = self->now;
    step_out_clear(&self->out);
    worker_fsm_step(actor->fsm, &in, &self->out);
    cr_assert(!self->out.stop, "worker %u stopped: %s", worker, self->out.reason);
    for (uint32_t index = 0; index < self->out.sends_count; index++) {
        const step_send_t *const send = &self->out.sends[index];
        if (send->msg.kind == WIRE_ACTIVATION) {
            count_away(self, SEATS_WORKER + worker, send->to, &send->msg);
        }
        post(self, SEATS_WORKER + worker, send->to, &send->msg, send->blob);
    }
    for (uint32_t index = 0; index < self->out.jobs_count; index++) {
        cr_assert_lt(actor->queue_count, JOBS_MAX);
        step_job_t *const job = &actor->queue[actor->queue_count++];
        *job = self->out.jobs[index];
        blob_retain(job->blob);
    }
}

static inline blob_t *fake_profile(void)
{
    const profile_time_t time = {1, 2};
    const profile_t profile = {.microbatch = 1,
                               .embed = time,
                               .block = time,
                               .head = time,
                               .memory = 1 << 30,
                               .threads = 1};
    return payload_profile_encode(&profile);
}

static inline void run_job(pipeline_t *self, uint32_t worker)
{
    actor_t *const actor = &self->actors[worker];
    step_job_t job = actor->queue[0];
    actor->queue_count--;
    memmove(actor->queue, actor->queue + 1, actor->queue_count * sizeof *actor->queue);
    blob_t *result = NULL;
    if (job.kind == WORKER_JOB_PROFILE) {
        result = fake_profile();
    } else {
        hx_fault_t fault = {{0}};
        cr_assert_eq(stage_jobs_run(actor->jobs, &job, &result, &fault), HX_OK, "%s", fault.text);
    }
    blob_t *const input = job.blob;
    job.seconds = 0.001;
    step(self, worker, (step_in_t){.kind = STEP_JOB, .job = job, .blob = result});
    blob_release(&result);
    blob_release(&(blob_t *){input});
}

// --- Lead and shards

static inline bool is_seated(const pipeline_t *self, uint32_t worker)
{
    return (self->seated >> worker & 1) != 0;
}

static inline void tell_seated(pipeline_t *self, const wire_msg_t *msg)
{
    for (uint32_t worker = 0; worker < self->workers; worker++) {
        if (is_seated(self, worker)) {
            post(self, SEATS_LEAD, SEATS_WORKER + worker, msg, NULL);
        }
    }
}

static inline void grant(pipeline_t *self, uint64_t row_first, uint32_t rows, bool evaluation)
{
    cr_assert_lt(self->leases_count, LEASES_MAX);
    lease_book_t *const book = &self->leases[self->leases_count++];
    *book = (lease_book_t){
        .attempt = 100 + self->leases_count,
        .row_first = row_first,
        .rows = rows,
        .evaluation = evaluation,
        .sum = hx_new(self->world->params_count, sizeof(float)),
        .parts = hx_new(self->world->blocks.count, sizeof(uint32_t)),
    };
    const wire_msg_t msg = {
        .kind = WIRE_GRANT,
        .attempt = book->attempt,
        .row_first = row_first,
        .rows = rows,
        .version = self->version,
        .epoch = self->plan.epoch,
        .flags = evaluation,
        .seconds = 60,
        .tokens = (uint64_t)rows * CONTEXT,
    };
    tell_seated(self, &msg);
}

static inline void close_lease(pipeline_t *self, lease_book_t *book)
{
    book->closed = true;
    const wire_msg_t msg = {
        .kind = WIRE_CLOSED, .attempt = book->attempt, .count = WIRE_CLOSED_LATE};
    tell_seated(self, &msg);
}

static inline bool is_in_last_stage(const pipeline_t *self, uint32_t worker)
{
    uint32_t pipeline = 0;
    uint32_t stage = 0;
    uint32_t member = 0;
    cr_assert(plan_seat_of(&self->plan, SEATS_WORKER + worker, &pipeline, &stage, &member));
    return stage + 1 == self->plan.pipelines[0].stages_count;
}

static inline void lead_hears(pipeline_t *self, const message_t *message)
{
    const uint32_t worker = (uint32_t)(message->from - SEATS_WORKER);
    if (message->msg.kind == WIRE_PLAN_ACK) {
        self->actors[worker].ready = message->msg.epoch == self->plan.epoch;
        return;
    }
    cr_assert_eq(message->msg.kind, WIRE_READY);
    lease_book_t *const book = book_of(self, message->msg.attempt);
    if (book->closed || (book->announced >> worker & 1) != 0) {
        return;
    }
    book->announced |= 1u << worker;
    cr_assert_eq(message->msg.version, self->version);
    if (is_in_last_stage(self, worker)) {
        book->loss += message->msg.loss;
        book->tokens += message->msg.tokens;
    }
    if (book->announced == self->seated) {
        const wire_msg_t msg = {.kind = WIRE_OUTCOME, .attempt = book->attempt, .version = 1};
        tell_seated(self, &msg);
    }
}

static inline void shard_takes(pipeline_t *self, const message_t *message)
{
    const wire_msg_t *const msg = &message->msg;
    const world_t *const world = self->world;
    lease_book_t *const book = book_of(self, msg->attempt);
    const block_t *const cut = &world->blocks.blocks[msg->block];
    cr_assert_eq(blob_size(message->blob), cut->count * sizeof(float));
    cr_assert_eq(msg->hash, XXH3_64bits(blob_data(message->blob), blob_size(message->blob)));
    cr_assert_eq(msg->parts, plan_parts(&self->plan, world->model, 0, cut->group));
    wire_msg_t answer = {
        .kind = WIRE_ACK, .attempt = msg->attempt, .block = msg->block, .part = msg->part};
    if (book->closed) {
        answer = (wire_msg_t){.kind = WIRE_CLOSED, .attempt = msg->attempt};
    } else {
        cr_assert(!book->evaluation);
        const float *const part = blob_data(message->blob);
        float *const sum = book->sum + world->block_first[msg->block];
        for (uint64_t at = 0; at < cut->count; at++) {
            sum[at] += part[at];
        }
        book->parts[msg->block]++;
    }
    post(self, message->to, message->from, &answer, NULL);
}

static inline void shard_hears(pipeline_t *self, const message_t *message)
{
    const wire_msg_t *const msg = &message->msg;
    const world_t *const world = self->world;
    if (msg->kind == WIRE_PUSH) {
        shard_takes(self, message);
        return;
    }
    cr_assert_eq(msg->kind, WIRE_PULL);
    const uint32_t group = world->blocks.blocks[msg->block].group;
    cr_assert_eq(message->to, SEATS_SHARD + self->plan.group_shard[group]);
    const wire_msg_t answer = {.kind = WIRE_VALUE, .block = msg->block, .version = self->version};
    blob_t *blob = blob_copy(world->params + world->block_first[msg->block],
                             world->blocks.blocks[msg->block].count * sizeof(float));
    post(self, message->to, message->from, &answer, blob);
    blob_release(&blob);
    self->values_served++;
}

static inline void deliver(pipeline_t *self, const message_t *message)
{
    if (message->to >= SEATS_WORKER) {
        if (message->from >= SEATS_WORKER && message->msg.kind == WIRE_VALUE) {
            self->values_passed++;
        }
        if (message->msg.kind != WIRE_ACTIVATION) {
            count_away(self, message->from, message->to, &message->msg);
        }
        step(self, (uint32_t)(message->to - SEATS_WORKER),
             (step_in_t){.kind = STEP_MESSAGE,
                         .peer = message->from,
                         .msg = message->msg,
                         .blob = message->blob});
    } else if (message->to >= SEATS_SHARD) {
        shard_hears(self, message);
    } else if (message->to == SEATS_LEAD) {
        lead_hears(self, message);
    }
}

// Messages keep their order between two nodes on one channel, and no other.
static inline bool is_next(const pipeline_t *self, uint32_t index)
{
    const message_t *const message = &self->messages[index];
    for (uint32_t before = 0; before < index; before++) {
        const message_t *const other = &self->messages[before];
        if (other->from == message->from && other->to == message->to &&
            wire_is_data(other->msg.kind) == wire_is_data(message->msg.kind)) {
            return false;
        }
    }
    return true;
}

// One event, chosen at random. False: there is none left.
static inline bool tick(pipeline_t *self)
{
    uint32_t choices[MESSAGES_MAX + WORKERS_MAX];
    uint32_t count = 0;
    for (uint32_t index = 0; index < self->messages_count; index++) {
        if (is_next(self, index)) {
            choices[count++] = index;
        }
    }
    for (uint32_t worker = 0; worker < self->workers; worker++) {
        if (self->actors[worker].queue_count > 0) {
            choices[count++] = MESSAGES_MAX + worker;
        }
    }
    if (count == 0) {
        return false;
    }
    const uint32_t choice = choices[hx_rng_below(&self->rng, count)];
    if (choice >= MESSAGES_MAX) {
        run_job(self, choice - MESSAGES_MAX);
        return true;
    }
    message_t message = self->messages[choice];
    self->messages_count--;
    memmove(self->messages + choice, self->messages + choice + 1,
            (self->messages_count - choice) * sizeof message);
    deliver(self, &message);
    blob_release(&message.blob);
    return true;
}

static inline void settle(pipeline_t *self)
{
    while (tick(self)) {
    }
}

// --- A pipeline from start to end

// Gives all workers a plan and waits until all have acknowledged it.
static inline void give_plan(pipeline_t *self, const seats_conf_t *conf)
{
    plan_destroy(&self->plan);
    self->plan = seats_plan(conf, self->world->model);
    self->seated = 0;
    blob_t *blob = payload_plan_encode(&self->plan);
    for (uint32_t worker = 0; worker < self->workers; worker++) {
        const node_id_t to = SEATS_WORKER + worker;
        const wire_msg_t msg = {.kind = WIRE_PLAN, .epoch = self->plan.epoch};
        uint32_t unused;
        self->seated |= plan_seat_of(&self->plan, to, &unused, &unused, &unused) ? 1u << worker : 0;
        self->actors[worker].ready = false;
        post(self, NODE_SCHEDULER, to, &msg, blob);
    }
    blob_release(&blob);
    settle(self);
    for (uint32_t worker = 0; worker < self->workers; worker++) {
        cr_assert(self->actors[worker].ready, "worker %u did not acknowledge", worker);
    }
}

static inline void begin(pipeline_t *self, const world_t *world, const seats_conf_t *conf,
                         uint64_t seed)
{
    memset(self, 0, sizeof *self);
    self->world = world;
    self->rng = hx_rng_seed(seed);
    self->out.wake_at = HX_TIME_NEVER;
    self->workers = seats_workers(conf);
    cr_assert_leq(self->workers, WORKERS_MAX);
    self->version = 7;
    for (uint32_t worker = 0; worker < self->workers; worker++) {
        worker_fsm_conf_t fsm = {
            .member = {.id = SEATS_WORKER + worker,
                       .role = PLAN_WORKER,
                       .run = "test",
                       .join_timeout = HX_SEC(30),
                       .model = world->model},
            .block_size = BLOCK_SIZE,
            .local_steps = local_steps,
            .schedule = local_schedule,
        };
        const stage_jobs_conf_t jobs = {.backend = world->backend,
                                        .model = world->model,
                                        .blocks = &world->blocks,
                                        .data = world->data,
                                        .order_seed = 5,
                                        .inner = local_steps > 0 ? &local_inner : NULL};
        self->actors[worker].fsm = worker_fsm_new(&fsm);
        self->actors[worker].jobs = stage_jobs_new(&jobs);
        step(self, worker, (step_in_t){.kind = STEP_START});
        post(self, NODE_SCHEDULER, SEATS_WORKER + worker, &(wire_msg_t){.kind = WIRE_WELCOME},
             NULL);
    }
    give_plan(self, conf);
}

static inline void finish(pipeline_t *self)
{
    for (uint32_t worker = 0; worker < self->workers; worker++) {
        actor_t *const actor = &self->actors[worker];
        for (uint32_t index = 0; index < actor->queue_count; index++) {
            blob_release(&actor->queue[index].blob);
        }
        worker_fsm_destroy(&actor->fsm);
        stage_jobs_destroy(&actor->jobs);
    }
    for (uint32_t index = 0; index < self->messages_count; index++) {
        blob_release(&self->messages[index].blob);
    }
    for (uint32_t index = 0; index < self->leases_count; index++) {
        free(self->leases[index].sum);
        free(self->leases[index].parts);
    }
    step_out_destroy(&self->out);
    plan_destroy(&self->plan);
}

static inline void check_whole(const pipeline_t *self, const lease_book_t *book)
{
    cr_assert_eq(book->announced, self->seated, "attempt %" PRIu64 " stopped short", book->attempt);
    cr_assert_eq(book->tokens, (uint64_t)book->rows * CONTEXT);
    for (uint32_t block = 0; block < self->world->blocks.count && !book->evaluation; block++) {
        const uint32_t group = self->world->blocks.blocks[block].group;
        cr_assert_eq(book->parts[block], plan_parts(&self->plan, self->world->model, 0, group));
    }
}

#endif
