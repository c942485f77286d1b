// stage_jobs: real state machines and real jobs as whole pipelines in one thread, with a toy lead and
// toy shards. Whatever the cut, schedule, microbatch, order of messages or closed leases: the gradient
// of given rows is that of a single stage.

#include "worker/stage_jobs.h"

#include "model/profile.h"
#include "net/payload.h"
#include "tensor/hx_rng.h"
#include "tests/support/seats.h"
#include "tests/support/seed.h"
#include "worker/worker_fsm.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
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
#define LEASES_MAX 16u
#define JOBS_MAX 512u
#define MESSAGES_MAX 4096u

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
    bool ready;  // PLAN_ACK came.
} actor_t;

// A lease as lead and shards see it.
typedef struct {
    uint64_t attempt;
    uint64_t row_first;
    uint32_t rows;
    bool evaluation;
    bool closed;
    uint32_t announced;  // Stages whose READY came, a bit each.
    double loss;
    uint64_t tokens;
    float *sum;
    uint32_t *parts;  // Of each block: how many came.
} lease_book_t;

typedef struct {
    const world_t *world;
    plan_t plan;
    hx_rng_t rng;
    hx_time_t now;
    step_out_t out;
    actor_t actors[STAGES_MAX];
    uint32_t stages;
    message_t messages[MESSAGES_MAX];
    uint32_t messages_count;
    lease_book_t leases[LEASES_MAX];
    uint32_t leases_count;
    uint64_t version;
} pipeline_t;

static void world_begin(world_t *self)
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

static void world_end(world_t *self)
{
    data_destroy(&self->data);
    free(self->params);
    free(self->block_first);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    hx_backend_destroy(&self->backend);
}

// --- The driver

static void post(pipeline_t *self, node_id_t from, node_id_t to, const wire_msg_t *msg,
                 blob_t *blob)
{
    cr_assert_lt(self->messages_count, MESSAGES_MAX);
    self->messages[self->messages_count++] = (message_t){from, to, *msg, blob_retain(blob)};
}

static void step(pipeline_t *self, uint32_t stage, step_in_t in)
{
    actor_t *const actor = &self->actors[stage];
    self->now += HX_MS(1);
    in.now = self->now;
    step_out_clear(&self->out);
    worker_fsm_step(actor->fsm, &in, &self->out);
    cr_assert(!self->out.stop, "stage %u stopped: %s", stage, self->out.reason);
    for (uint32_t index = 0; index < self->out.sends_count; index++) {
        const step_send_t *const send = &self->out.sends[index];
        post(self, SEATS_WORKER + stage, send->to, &send->msg, send->blob);
    }
    for (uint32_t index = 0; index < self->out.jobs_count; index++) {
        cr_assert_lt(actor->queue_count, JOBS_MAX);
        step_job_t *const job = &actor->queue[actor->queue_count++];
        *job = self->out.jobs[index];
        blob_retain(job->blob);
    }
}

static blob_t *fake_profile(void)
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

static void run_job(pipeline_t *self, uint32_t stage)
{
    actor_t *const actor = &self->actors[stage];
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
    step(self, stage, (step_in_t){.kind = STEP_JOB, .job = job, .blob = result});
    blob_release(&result);
    blob_release(&(blob_t *){input});
}

// --- Lead and shards

static lease_book_t *book_of(pipeline_t *self, uint64_t attempt)
{
    for (uint32_t index = 0; index < self->leases_count; index++) {
        if (self->leases[index].attempt == attempt) {
            return &self->leases[index];
        }
    }
    cr_assert_fail("attempt %" PRIu64 " was never granted", attempt);
    return NULL;
}

static void grant(pipeline_t *self, uint64_t row_first, uint32_t rows, bool evaluation)
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
        .epoch = 1,
        .flags = evaluation,
        .seconds = 60,
        .tokens = (uint64_t)rows * CONTEXT,
    };
    for (uint32_t stage = 0; stage < self->stages; stage++) {
        post(self, SEATS_LEAD, SEATS_WORKER + stage, &msg, NULL);
    }
}

static void close_lease(pipeline_t *self, lease_book_t *book)
{
    book->closed = true;
    const wire_msg_t msg = {
        .kind = WIRE_CLOSED, .attempt = book->attempt, .count = WIRE_CLOSED_LATE};
    for (uint32_t stage = 0; stage < self->stages; stage++) {
        post(self, SEATS_LEAD, SEATS_WORKER + stage, &msg, NULL);
    }
}

static void lead_hears(pipeline_t *self, const message_t *message)
{
    const uint32_t stage = (uint32_t)(message->from - SEATS_WORKER);
    if (message->msg.kind == WIRE_PLAN_ACK) {
        self->actors[stage].ready = true;
        return;
    }
    cr_assert_eq(message->msg.kind, WIRE_READY);
    lease_book_t *const book = book_of(self, message->msg.attempt);
    if (book->closed) {
        return;
    }
    const uint32_t all = (1u << self->stages) - 1;
    const bool before = book->announced == all;
    book->announced |= 1u << stage;
    cr_assert_geq(message->msg.version, self->version);
    if (stage + 1 == self->stages) {
        book->loss = message->msg.loss;
        book->tokens = message->msg.tokens;
    }
    if (book->announced == all && !before) {
        const wire_msg_t msg = {.kind = WIRE_OUTCOME, .attempt = book->attempt, .version = 1};
        for (uint32_t to = 0; to < self->stages; to++) {
            post(self, SEATS_LEAD, SEATS_WORKER + to, &msg, NULL);
        }
    }
}

static void shard_takes(pipeline_t *self, const message_t *message)
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

static void shard_hears(pipeline_t *self, const message_t *message)
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
}

static void deliver(pipeline_t *self, const message_t *message)
{
    if (message->to >= SEATS_WORKER) {
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
static bool is_next(const pipeline_t *self, uint32_t index)
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
static bool tick(pipeline_t *self)
{
    uint32_t choices[MESSAGES_MAX + STAGES_MAX];
    uint32_t count = 0;
    for (uint32_t index = 0; index < self->messages_count; index++) {
        if (is_next(self, index)) {
            choices[count++] = index;
        }
    }
    for (uint32_t stage = 0; stage < self->stages; stage++) {
        if (self->actors[stage].queue_count > 0) {
            choices[count++] = MESSAGES_MAX + stage;
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

static void settle(pipeline_t *self)
{
    while (tick(self)) {
    }
}

// --- A pipeline from start to end

static void begin(pipeline_t *self, const world_t *world, const seats_conf_t *conf, uint64_t seed)
{
    memset(self, 0, sizeof *self);
    self->world = world;
    self->plan = seats_plan(conf, world->model);
    self->rng = hx_rng_seed(seed);
    self->out.wake_at = HX_TIME_NEVER;
    self->stages = conf->stages;
    self->version = 7;
    blob_t *blob = payload_plan_encode(&self->plan);
    for (uint32_t stage = 0; stage < self->stages; stage++) {
        worker_fsm_conf_t fsm = {
            .member = {.id = SEATS_WORKER + stage,
                       .role = PLAN_WORKER,
                       .run = "test",
                       .join_timeout = HX_SEC(30),
                       .model = world->model},
            .block_size = BLOCK_SIZE,
        };
        const stage_jobs_conf_t jobs = {.backend = world->backend,
                                        .model = world->model,
                                        .blocks = &world->blocks,
                                        .data = world->data,
                                        .order_seed = 5};
        self->actors[stage].fsm = worker_fsm_new(&fsm);
        self->actors[stage].jobs = stage_jobs_new(&jobs);
        step(self, stage, (step_in_t){.kind = STEP_START});
        const node_id_t to = SEATS_WORKER + stage;
        post(self, NODE_SCHEDULER, to, &(wire_msg_t){.kind = WIRE_WELCOME}, NULL);
        post(self, NODE_SCHEDULER, to, &(wire_msg_t){.kind = WIRE_PLAN, .epoch = 1}, blob);
    }
    blob_release(&blob);
    settle(self);
    for (uint32_t stage = 0; stage < self->stages; stage++) {
        cr_assert(self->actors[stage].ready, "stage %u did not acknowledge", stage);
    }
}

static void finish(pipeline_t *self)
{
    for (uint32_t stage = 0; stage < self->stages; stage++) {
        actor_t *const actor = &self->actors[stage];
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

static void check_whole(const pipeline_t *self, const lease_book_t *book)
{
    cr_assert_eq(book->announced, (1u << self->stages) - 1, "attempt %" PRIu64 " stopped short",
                 book->attempt);
    cr_assert_eq(book->tokens, (uint64_t)book->rows * CONTEXT);
    for (uint32_t block = 0; block < self->world->blocks.count && !book->evaluation; block++) {
        const uint32_t group = self->world->blocks.blocks[block].group;
        cr_assert_eq(book->parts[block], plan_parts(&self->plan, self->world->model, 0, group));
    }
}

static double difference(const world_t *world, const float *a, const float *b)
{
    double squares = 0;
    double norm = 0;
    for (uint64_t at = 0; at < world->params_count; at++) {
        squares += pow((double)a[at] - b[at], 2);
        norm += pow(b[at], 2);
    }
    cr_assert_gt(norm, 0);
    return sqrt(squares / norm);
}

// The same rows on one stage in one microbatch. Gives back the gradient, and the loss.
static float *expected_of(const world_t *world, uint64_t row_first, uint32_t rows, bool evaluation,
                          double *loss)
{
    static pipeline_t single;
    const seats_conf_t conf = {.stages = 1,
                               .ends = {LAYERS + 2},
                               .rows = rows,
                               .microbatch = rows,
                               .schedule = SCHEDULE_1F1B,
                               .shards = 1};
    begin(&single, world, &conf, 1);
    grant(&single, row_first, rows, evaluation);
    settle(&single);
    check_whole(&single, &single.leases[0]);
    *loss = single.leases[0].loss;
    float *const sum = single.leases[0].sum;
    single.leases[0].sum = NULL;
    finish(&single);
    return sum;
}

static seats_conf_t random_seats(hx_rng_t *rng)
{
    seats_conf_t conf = {
        .rows = 1 + (uint32_t)hx_rng_below(rng, 9),
        .schedule = (schedule_kind_t)hx_rng_below(rng, SCHEDULE_KINDS_COUNT),
        .recompute = hx_rng_below(rng, 3) == 0,
        .shards = 1 + (uint32_t)hx_rng_below(rng, 3),
    };
    conf.microbatch = 1 + (uint32_t)hx_rng_below(rng, HX_MIN(conf.rows, 4));
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
    }
    return conf;
}

static void print_seats(const seats_conf_t *conf, uint32_t trial)
{
    fprintf(stderr, "trial %u: %s, %u rows by %u, %s, stages end at", trial,
            schedule_kind_name(conf->schedule), conf->rows, conf->microbatch,
            conf->recompute ? "recompute" : "keep");
    for (uint32_t stage = 0; stage < conf->stages; stage++) {
        fprintf(stderr, " %u (depth %u)", conf->ends[stage], conf->depths[stage]);
    }
    fprintf(stderr, "\n");
}

static void check_against_single(pipeline_t *pipeline, const lease_book_t *book)
{
    const world_t *const world = pipeline->world;
    double loss = 0;
    float *const expected =
        expected_of(world, book->row_first, book->rows, book->evaluation, &loss);
    check_whole(pipeline, book);
    cr_assert_float_eq(book->loss, loss, 1e-4 * loss, "loss %g instead of %g", book->loss, loss);
    if (!book->evaluation) {
        const double error = difference(world, book->sum, expected);
        cr_assert_leq(error, 1e-5, "attempt %" PRIu64 " differs by %g", book->attempt, error);
    }
    free(expected);
}

Test(stage_jobs, gradient_does_not_depend_on_the_plan)
{
    static world_t world;
    static pipeline_t pipeline;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("stage_jobs"));
    for (uint32_t trial = 0; trial < 60; trial++) {
        const seats_conf_t conf = random_seats(&rng);
        print_seats(&conf, trial);
        begin(&pipeline, &world, &conf, hx_rng_next(&rng));
        // Several leases ahead, the second shorter, one of them an evaluation.
        uint64_t row = hx_rng_below(&rng, 1000);
        const uint32_t shorter = 1 + (uint32_t)hx_rng_below(&rng, conf.rows);
        grant(&pipeline, row, conf.rows, false);
        grant(&pipeline, row + conf.rows, shorter, false);
        grant(&pipeline, hx_rng_below(&rng, 10), conf.rows, true);
        grant(&pipeline, row + conf.rows + shorter, conf.rows, false);
        settle(&pipeline);
        for (uint32_t index = 0; index < pipeline.leases_count; index++) {
            check_against_single(&pipeline, &pipeline.leases[index]);
        }
        finish(&pipeline);
    }
    world_end(&world);
}

Test(stage_jobs, closed_leases_leave_no_trace_in_the_next)
{
    static world_t world;
    static pipeline_t pipeline;
    world_begin(&world);
    hx_rng_t rng = hx_rng_seed(seed_of("stage_jobs_closed"));
    for (uint32_t trial = 0; trial < 60; trial++) {
        const seats_conf_t conf = random_seats(&rng);
        print_seats(&conf, trial);
        begin(&pipeline, &world, &conf, hx_rng_next(&rng));
        const uint64_t row = hx_rng_below(&rng, 1000);
        grant(&pipeline, row, conf.rows, false);
        grant(&pipeline, row + conf.rows, conf.rows, false);
        for (uint64_t left = hx_rng_below(&rng, 200); left > 0 && tick(&pipeline); left--) {
        }
        lease_book_t *const victim = &pipeline.leases[hx_rng_below(&rng, 2)];
        const uint32_t all = (1u << pipeline.stages) - 1;
        if (victim->announced != all) {
            close_lease(&pipeline, victim);
            grant(&pipeline, victim->row_first, victim->rows, false);
        }
        settle(&pipeline);
        for (uint32_t index = 0; index < pipeline.leases_count; index++) {
            if (!pipeline.leases[index].closed) {
                check_against_single(&pipeline, &pipeline.leases[index]);
            }
        }
        finish(&pipeline);
    }
    world_end(&world);
}

// --- Single jobs

static stage_jobs_t *jobs_of(const world_t *world)
{
    const stage_jobs_conf_t conf = {.backend = world->backend,
                                    .model = world->model,
                                    .blocks = &world->blocks,
                                    .data = world->data};
    return stage_jobs_new(&conf);
}

static void run(stage_jobs_t *jobs, step_job_t job, hx_err_t expected, const char *words)
{
    blob_t *result = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(stage_jobs_run(jobs, &job, &result, &fault), expected, "%s", fault.text);
    cr_assert(strstr(fault.text, words), "%s", fault.text);
    blob_release(&result);
}

Test(stage_jobs, stage_that_does_not_fit_is_refused_with_its_size)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    step_job_t job = {.kind = WORKER_JOB_OPEN, .part = LAYERS + 2, .micro = 60000, .rows = 60000};
    run(jobs, job, HX_E_NOMEM, "for 60000 microbatches of 60000 rows in flight");
    job.micro = job.rows = 1;
    run(jobs, job, HX_OK, "");
    stage_jobs_destroy(&jobs);
    world_end(&world);
}

Test(stage_jobs, held_out_rows_beyond_the_end_are_refused)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    run(jobs, (step_job_t){.kind = WORKER_JOB_OPEN, .part = LAYERS + 2, .micro = 1, .rows = 2},
        HX_OK, "");
    const uint64_t rows = data_valid_rows(world.data);
    step_job_t job = {.kind = WORKER_JOB_FORWARD,
                      .part = LAYERS + 2,
                      .row_first = rows - 1,
                      .rows = 2,
                      .flags = WORKER_JOB_EVALUATION,
                      .tokens = 16};
    run(jobs, job, HX_E_ARG, "held-out rows up to");
    job.row_first = UINT64_MAX;
    run(jobs, job, HX_E_ARG, "held-out rows up to");
    stage_jobs_destroy(&jobs);
    world_end(&world);
}

Test(stage_jobs, operation_without_its_message_is_a_bug, .signal = SIGABRT)
{
    static world_t world;
    world_begin(&world);
    stage_jobs_t *jobs = jobs_of(&world);
    run(jobs, (step_job_t){.kind = WORKER_JOB_OPEN, .index = 2, .part = 4, .micro = 1, .rows = 1},
        HX_OK, "");
    run(jobs,
        (step_job_t){.kind = WORKER_JOB_FORWARD, .index = 2, .part = 4, .rows = 1, .tokens = 8},
        HX_OK, "");
}
