// worker_fsm: stories, told as what goes in and what comes out; no tensor is involved.

#include "model/blocks.h"
#include "worker/worker_fsm.h"

#include "net/payload.h"
#include "tests/support/seats.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 65536
#define JOBS_MAX 256

// A worker, what it did since the last look, and the jobs that it gave.
typedef struct {
    model_t *model;
    blocks_t blocks;
    worker_fsm_t *fsm;
    step_out_t out;
    hx_time_t now;
    node_id_t id;
    step_job_t jobs[JOBS_MAX];
    uint32_t jobs_count;
    char text[TEXT_MAX];
    size_t length;
    char all[TEXT_MAX];  // What `does` compared with, for messages of failures.
} story_t;

static void write_text(story_t *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int size = vsnprintf(self->text + self->length, TEXT_MAX - self->length, format, args);
    va_end(args);
    cr_assert(size >= 0 && (size_t)size < TEXT_MAX - self->length);
    self->length += (size_t)size;
}

static void write_send(story_t *self, const step_send_t *send)
{
    const wire_msg_t *const msg = &send->msg;
    write_text(self, "> %" PRIu64 " %s", send->to, wire_kind_name(msg->kind));
    switch (msg->kind) {
    case WIRE_PULL:
        write_text(self, " block %" PRIu32 " at %" PRIu64 "%s", msg->block, msg->version,
                   msg->flags & 1 ? " exactly" : "");
        break;
    case WIRE_ACTIVATION:
    case WIRE_GRADIENT:
        write_text(self, " %" PRIu64 ".%" PRIu32 " rows %" PRIu64 "+%" PRIu32, msg->attempt,
                   msg->micro, msg->row_first, msg->rows);
        break;
    case WIRE_PUSH:
        write_text(self, " %" PRIu64 " block %" PRIu32 " part %" PRIu32 " of %" PRIu32,
                   msg->attempt, msg->block, msg->part, msg->parts);
        break;
    case WIRE_READY:
        write_text(self, " %" PRIu64 " used %" PRIu64 " tokens %" PRIu64 " loss %g", msg->attempt,
                   msg->version, msg->tokens, msg->loss);
        break;
    case WIRE_LINK:
        write_text(self, " %" PRIu64 " latency %g bandwidth %.0f", msg->node, msg->seconds,
                   msg->value);
        break;
    case WIRE_PLAN_ACK:
        write_text(self, " %" PRIu32, msg->epoch);
        break;
    case WIRE_LEAVE:
        write_text(self, " %s", msg->text);
        break;
    default:
        break;
    }
    write_text(self, "\n");
}

static void write_job(story_t *self, const step_job_t *job)
{
    write_text(self, "job %s", worker_job_name(job->kind));
    switch (job->kind) {
    case WORKER_JOB_OPEN:
        write_text(self, " layers %" PRIu32 "-%" PRIu32 " sets %" PRIu32, job->index, job->part - 1,
                   job->micro);
        break;
    case WORKER_JOB_LOAD:
        write_text(self, " block %" PRIu32 " buffer %" PRIu32, job->index, job->part);
        break;
    case WORKER_JOB_STASH:
        write_text(self, " %" PRIu64 ".%" PRIu32 "%s", job->attempt, job->micro,
                   job->part == WORKER_STASH_GRADIENT ? " gradient" : "");
        break;
    case WORKER_JOB_FORWARD:
    case WORKER_JOB_BACKWARD:
        write_text(self, " %" PRIu64 ".%" PRIu32 " layers %" PRIu32 "-%" PRIu32 " buffer %d%s%s",
                   job->attempt, job->micro, job->index, job->part - 1,
                   (job->flags & WORKER_JOB_BUFFER) != 0,
                   job->kind == WORKER_JOB_BACKWARD && !(job->flags & WORKER_JOB_BACKWARD_WEIGHT)
                       ? " input"
                       : "",
                   job->kind == WORKER_JOB_BACKWARD && !(job->flags & WORKER_JOB_BACKWARD_INPUT)
                       ? " weight"
                       : "");
        break;
    case WORKER_JOB_GRAD:
        write_text(self, " %" PRIu64 " block %" PRIu32, job->attempt, job->index);
        break;
    case WORKER_JOB_DROP:
        write_text(self, " %" PRIu64, job->attempt);
        break;
    default:
        break;
    }
    write_text(self, "\n");
}

static void write_out(story_t *self)
{
    for (uint32_t index = 0; index < self->out.dials_count; index++) {
        const step_dial_t *const dial = &self->out.dials[index];
        write_text(self, "dial %" PRIu64 " %s\n", dial->peer,
                   dial->control[0] ? dial->control : dial->data);
    }
    for (uint32_t index = 0; index < self->out.sends_count; index++) {
        write_send(self, &self->out.sends[index]);
    }
    for (uint32_t index = 0; index < self->out.jobs_count; index++) {
        const step_job_t *const job = &self->out.jobs[index];
        write_job(self, job);
        cr_assert_lt(self->jobs_count, JOBS_MAX);
        self->jobs[self->jobs_count] = *job;
        self->jobs[self->jobs_count++].blob = NULL;
    }
    for (uint32_t index = 0; index < self->out.notes_count; index++) {
        const step_note_t *const note = &self->out.notes[index];
        if (note->level != STEP_DEBUG) {
            write_text(self, "note %s\n", note->text);
        }
    }
    if (self->out.stop) {
        write_text(self, "stop %d %s\n", self->out.status, self->out.reason);
    }
}

static void feed(story_t *self, step_in_t in)
{
    in.now = self->now;
    step_out_clear(&self->out);
    worker_fsm_step(self->fsm, &in, &self->out);
    write_out(self);
}

static void say(story_t *self, node_id_t peer, wire_msg_t msg, blob_t *blob)
{
    feed(self, (step_in_t){.kind = STEP_MESSAGE, .peer = peer, .msg = msg, .blob = blob});
    blob_release(&blob);
}

static void wait_for(story_t *self, hx_time_t time)
{
    self->now += time;
    feed(self, (step_in_t){.kind = STEP_TIMER});
}

static size_t block_bytes(const story_t *self, uint32_t block)
{
    return self->blocks.blocks[block].count * sizeof(float);
}

static size_t boundary_bytes(const story_t *self, uint32_t rows)
{
    const model_conf_t *const conf = model_conf(self->model);
    return (size_t)rows * conf->context * conf->channels * sizeof(float);
}

// The result that a job would have, with a virtual blob.
static blob_t *result_of(const story_t *self, step_job_t *job)
{
    const uint32_t layers = model_layers_count(self->model);
    switch (job->kind) {
    case WORKER_JOB_FORWARD:
        if (job->part == layers) {
            job->value = 3.0 * job->rows;
            job->tokens = (uint64_t)job->rows * model_conf(self->model)->context;
            return NULL;
        }
        return blob_virtual(boundary_bytes(self, job->rows));
    case WORKER_JOB_BACKWARD:
        // In these stories a second stage begins with layer 2.
        return self->id > SEATS_WORKER && job->index == 2 &&
                       (job->flags & WORKER_JOB_BACKWARD_INPUT) != 0
                   ? blob_virtual(boundary_bytes(self, job->rows))
                   : NULL;
    case WORKER_JOB_GRAD:
        return blob_virtual(block_bytes(self, job->index));
    default:
        return NULL;
    }
}

// Ends the oldest job.
static void end_job(story_t *self)
{
    cr_assert_gt(self->jobs_count, 0, "there is a job to end");
    step_job_t job = self->jobs[0];
    self->jobs_count--;
    memmove(self->jobs, self->jobs + 1, self->jobs_count * sizeof *self->jobs);
    blob_t *blob = result_of(self, &job);
    job.seconds = 0.5;
    feed(self, (step_in_t){.kind = STEP_JOB,
                           .job = job,
                           .blob = blob,
                           .job_started = self->now,
                           .job_ended = self->now});
    blob_release(&blob);
}

static void end_jobs(story_t *self)
{
    while (self->jobs_count > 0) {
        end_job(self);
    }
}

static void forget(story_t *self)
{
    self->length = 0;
    self->text[0] = '\0';
}

#define does(self, expected)                                                                   \
    do {                                                                                       \
        snprintf((self)->all, TEXT_MAX, "%s", (self)->text);                                   \
        forget(self);                                                                          \
        cr_assert_str_eq((self)->all, expected, "\n--- expected\n%s--- but was\n%s", expected, \
                         (self)->all);                                                         \
    } while (0)

// Two blocks: four layers; every group is one server block: wte 0, wpe 1, h.0 2, h.1 3, ln_f 4.
static void begin_traced(story_t *self, node_id_t id, uint64_t trace_last)
{
    memset(self, 0, sizeof *self);
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 32;
    cr_assert_eq(model_open(&conf, &self->model, NULL), HX_OK);
    blocks_make(self->model, 65536, &self->blocks);
    cr_assert_eq(self->blocks.count, 5);
    worker_fsm_conf_t fsm = {
        .member = {.id = id,
                   .role = PLAN_WORKER,
                   .run = "story",
                   .site = "east",
                   .name = "east/worker",
                   .scheduler = "tcp://127.0.0.1:7700",
                   .join_timeout = HX_SEC(30),
                   .model = self->model},
        .block_size = 65536,
        .trace_first = trace_last > 0 ? 1 : 0,
        .trace_last = trace_last,
    };
    self->id = id;
    self->fsm = worker_fsm_new(&fsm);
    self->out.wake_at = HX_TIME_NEVER;
}

static void begin(story_t *self, node_id_t id)
{
    begin_traced(self, id, 0);
}

static void finish(story_t *self)
{
    worker_fsm_destroy(&self->fsm);
    step_out_destroy(&self->out);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
}

static void give_plan(story_t *self, const seats_conf_t *conf)
{
    plan_t plan = seats_plan(conf, self->model);
    say(self, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = plan.epoch},
        payload_plan_encode(&plan));
    plan_destroy(&plan);
}

static void join(story_t *self)
{
    feed(self, (step_in_t){.kind = STEP_START});
    say(self, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    end_jobs(self);
}

// Joined, planned, opened; nothing of that in the text.
static void stand_ready(story_t *self, const seats_conf_t *conf)
{
    join(self);
    give_plan(self, conf);
    end_jobs(self);
    forget(self);
}

static const seats_conf_t ONE_STAGE = {
    .stages = 1, .ends = {4}, .rows = 4, .microbatch = 2, .schedule = SCHEDULE_1F1B, .shards = 2};
static const seats_conf_t TWO_STAGES = {.stages = 2,
                                        .ends = {2, 4},
                                        .rows = 4,
                                        .microbatch = 2,
                                        .schedule = SCHEDULE_1F1B,
                                        .shards = 1};

static void grant(story_t *self, uint64_t attempt, uint64_t row_first, uint32_t rows, uint64_t base,
                  uint32_t flags)
{
    say(self, SEATS_LEAD,
        (wire_msg_t){.kind = WIRE_GRANT,
                     .attempt = attempt,
                     .row_first = row_first,
                     .rows = rows,
                     .version = base,
                     .epoch = 1,
                     .flags = flags,
                     .seconds = 60,
                     .tokens = (uint64_t)rows * 8},
        NULL);
}

static void value(story_t *self, node_id_t shard, uint32_t block, uint64_t version)
{
    say(self, shard, (wire_msg_t){.kind = WIRE_VALUE, .block = block, .version = version},
        blob_virtual(block_bytes(self, block)));
}

static void boundary(story_t *self, wire_kind_t kind, uint64_t attempt, uint32_t micro,
                     uint64_t row_first, uint32_t rows)
{
    const node_id_t from = kind == WIRE_ACTIVATION ? self->id - 1 : self->id + 1;
    say(self, from,
        (wire_msg_t){.kind = kind,
                     .attempt = attempt,
                     .epoch = 1,
                     .micro = micro,
                     .row_first = row_first,
                     .rows = rows},
        blob_virtual(boundary_bytes(self, rows)));
}

static void acknowledge(story_t *self, node_id_t shard, uint64_t attempt, uint32_t block,
                        uint32_t part)
{
    say(self, shard,
        (wire_msg_t){.kind = WIRE_ACK, .attempt = attempt, .block = block, .part = part}, NULL);
}

Test(worker_fsm, joins_measures_itself_and_takes_its_seat)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    feed(&story, (step_in_t){.kind = STEP_START});
    does(&story, "dial 1 tcp://127.0.0.1:7700\n"
                 "> 1 REGISTER\n");
    say(&story, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    does(&story, "job profile\n"
                 "note joined the run \"story\" at tcp://127.0.0.1:7700\n");
    end_jobs(&story);
    does(&story, "> 1 PROFILE\n");
    give_plan(&story, &TWO_STAGES);
    does(&story, "dial 10 control-10\n"
                 "dial 20 data-20\n"
                 "dial 100 data-100\n"
                 "job open layers 2-3 sets 1\n"
                 "note plan 1: stage 1 of 2 in pipeline 0, layers 2 to 3\n");
    end_jobs(&story);
    does(&story, "> 10 PLAN_ACK 1\n");
    wait_for(&story, HX_SEC(2));
    does(&story, "> 10 PLAN_ACK 1\n");
    finish(&story);
}

Test(worker_fsm, without_a_seat_it_stands_by)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 2);
    join(&story);
    forget(&story);
    seats_conf_t conf = TWO_STAGES;
    conf.spares = 1;
    give_plan(&story, &conf);
    does(&story, "dial 10 control-10\n"
                 "> 10 PLAN_ACK 1\n"
                 "note plan 1: in no stage, standing by\n");
    grant(&story, 5, 0, 4, 0, 0);
    does(&story, "note grant of lease 5 dropped: not of the plan in force\n");
    finish(&story);
}

Test(worker_fsm, stage_that_does_not_fit_ends_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    join(&story);
    give_plan(&story, &ONE_STAGE);
    forget(&story);
    feed(&story,
         (step_in_t){.kind = STEP_JOB, .job = {.kind = WORKER_JOB_OPEN}, .error = HX_E_NOMEM});
    does(&story, "> 1 LEAVE a open job failed: out of memory\n"
                 "> 10 LEAVE a open job failed: out of memory\n"
                 "stop 1 a open job failed: out of memory\n");
    finish(&story);
}

Test(worker_fsm, lease_of_a_single_stage)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 100, 3, 7, 0);
    does(&story, "> 20 PULL block 0 at 7\n"
                 "> 21 PULL block 1 at 7\n"
                 "> 20 PULL block 2 at 7\n"
                 "> 21 PULL block 3 at 7\n"
                 "> 20 PULL block 4 at 7\n");
    value(&story, SEATS_SHARD, 0, 8);
    value(&story, SEATS_SHARD + 1, 1, 7);
    value(&story, SEATS_SHARD, 2, 8);
    value(&story, SEATS_SHARD + 1, 3, 8);
    forget(&story);
    value(&story, SEATS_SHARD, 4, 8);
    does(&story, "job load block 4 buffer 1\n"
                 "job forward 5.0 layers 0-3 buffer 1\n"
                 "job backward 5.0 layers 0-3 buffer 1\n");
    for (uint32_t load = 0; load < 5; load++) {
        end_job(&story);
    }
    does(&story, "");
    end_job(&story);
    does(&story, "job forward 5.1 layers 0-3 buffer 1\n");
    end_job(&story);
    // The last backward goes layer by layer; blocks follow as they become complete.
    does(&story, "job backward 5.1 layers 3-3 buffer 1\n"
                 "job grad 5 block 4\n");
    end_job(&story);
    does(&story, "job backward 5.1 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n");
    end_job(&story);
    end_job(&story);
    does(&story, "job backward 5.1 layers 1-1 buffer 1\n"
                 "job grad 5 block 2\n"
                 "> 20 PUSH 5 block 4 part 0 of 1\n");
    end_jobs(&story);
    does(&story, "job backward 5.1 layers 0-0 buffer 1\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 21 PUSH 5 block 3 part 0 of 1\n"
                 "> 20 PUSH 5 block 2 part 0 of 1\n"
                 "> 21 PUSH 5 block 1 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 0 of 1\n");
    for (uint32_t block = 1; block < 5; block++) {
        acknowledge(&story, SEATS_SHARD + block % 2, 5, block, 0);
    }
    does(&story, "");
    acknowledge(&story, SEATS_SHARD, 5, 0, 0);
    does(&story, "> 10 READY 5 used 7 tokens 24 loss 9\n");
    wait_for(&story, HX_SEC(2));
    does(&story, "> 10 READY 5 used 7 tokens 24 loss 9\n");
    say(&story, SEATS_LEAD, (wire_msg_t){.kind = WIRE_OUTCOME, .attempt = 5, .version = 9}, NULL);
    wait_for(&story, HX_SEC(20));
    does(&story, "");
    finish(&story);
}

Test(worker_fsm, next_lease_is_pulled_behind_the_last_forward)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    forget(&story);
    grant(&story, 6, 2, 2, 0, 0);
    does(&story, "");
    for (uint32_t load = 0; load < 5; load++) {
        end_job(&story);
    }
    end_job(&story);  // The forward.
    does(&story, "> 20 PULL block 0 at 0\n"
                 "> 21 PULL block 1 at 0\n"
                 "> 20 PULL block 2 at 0\n"
                 "> 21 PULL block 3 at 0\n"
                 "> 20 PULL block 4 at 0\n"
                 "job backward 5.0 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n");
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 1);
    }
    does(&story, "job load block 0 buffer 0\n"
                 "job load block 1 buffer 0\n"
                 "job load block 2 buffer 0\n"
                 "job load block 3 buffer 0\n"
                 "job load block 4 buffer 0\n");
    end_job(&story);
    forget(&story);
    end_jobs(&story);
    cr_assert(strstr(story.text, "job backward 5.0 layers 0-0 buffer 1\n"
                                 "job grad 5 block 1\n"
                                 "job grad 5 block 0\n"));
    cr_assert(strstr(story.text, "job forward 6.0 layers 0-3 buffer 0\n"));
    finish(&story);
}

Test(worker_fsm, first_stage_of_two)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 40, 4, 3, 0);
    for (uint32_t block = 0; block < 3; block++) {
        value(&story, SEATS_SHARD, block, 3);
    }
    end_jobs(&story);
    does(&story, "> 20 PULL block 0 at 3\n"
                 "> 20 PULL block 1 at 3\n"
                 "> 20 PULL block 2 at 3\n"
                 "job load block 0 buffer 1\n"
                 "job load block 1 buffer 1\n"
                 "job load block 2 buffer 1\n"
                 "job forward 5.0 layers 0-1 buffer 1\n"
                 "job forward 5.1 layers 0-1 buffer 1\n"
                 "> 101 ACTIVATION 5.0 rows 40+2\n"
                 "> 101 ACTIVATION 5.1 rows 42+2\n");
    boundary(&story, WIRE_GRADIENT, 5, 0, 40, 2);
    does(&story, "job stash 5.0 gradient\n"
                 "job backward 5.0 layers 0-1 buffer 1\n");
    end_jobs(&story);
    boundary(&story, WIRE_GRADIENT, 5, 1, 42, 2);
    end_jobs(&story);
    does(&story, "job stash 5.1 gradient\n"
                 "job backward 5.1 layers 1-1 buffer 1\n"
                 "job grad 5 block 2\n"
                 "job backward 5.1 layers 0-0 buffer 1\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 20 PUSH 5 block 2 part 0 of 1\n"
                 "> 20 PUSH 5 block 1 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 0 of 2\n");
    finish(&story);
}

Test(worker_fsm, activation_before_its_grant_is_kept)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 2);
    does(&story, "job stash 5.0\n");
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 2);  // Twice: once is enough.
    does(&story, "");
    end_jobs(&story);
    grant(&story, 5, 40, 4, 3, 0);
    for (uint32_t block = 3; block < 5; block++) {
        value(&story, SEATS_SHARD, block, 3);
    }
    forget(&story);
    value(&story, SEATS_SHARD, 0, 3);
    end_jobs(&story);
    does(&story, "job load block 0 buffer 1\n"
                 "job forward 5.0 layers 2-3 buffer 1\n"
                 "job backward 5.0 layers 2-3 buffer 1\n"
                 "> 100 GRADIENT 5.0 rows 40+2\n");
    boundary(&story, WIRE_ACTIVATION, 5, 1, 42, 2);
    end_jobs(&story);
    does(&story, "job stash 5.1\n"
                 "job forward 5.1 layers 2-3 buffer 1\n"
                 "job backward 5.1 layers 3-3 buffer 1\n"
                 "job grad 5 block 4\n"
                 "job grad 5 block 0\n"
                 "job backward 5.1 layers 2-2 buffer 1\n"
                 "job grad 5 block 3\n"
                 "> 20 PUSH 5 block 4 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 1 of 2\n"
                 "> 100 GRADIENT 5.1 rows 42+2\n"
                 "> 20 PUSH 5 block 3 part 0 of 1\n");
    finish(&story);
}

Test(worker_fsm, early_messages_that_do_not_fit_the_grant_are_not_used)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 1);  // One row; the lease's microbatch has two.
    boundary(&story, WIRE_ACTIVATION, 5, 9, 58, 2);  // There is no tenth.
    grant(&story, 5, 40, 4, 3, 0);
    value(&story, SEATS_SHARD, 0, 3);
    value(&story, SEATS_SHARD, 3, 3);
    value(&story, SEATS_SHARD, 4, 3);
    cr_assert_null(strstr(story.text, "job forward"));
    finish(&story);
}

Test(worker_fsm, lease_closed_in_its_middle_leaves_nothing)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 40, 4, 3, 0);
    grant(&story, 6, 44, 4, 3, 0);
    value(&story, SEATS_SHARD, 0, 3);
    value(&story, SEATS_SHARD, 3, 3);
    value(&story, SEATS_SHARD, 4, 3);
    end_jobs(&story);
    boundary(&story, WIRE_ACTIVATION, 5, 0, 40, 2);
    boundary(&story, WIRE_ACTIVATION, 5, 1, 42, 2);
    forget(&story);
    say(&story, SEATS_LEAD,
        (wire_msg_t){.kind = WIRE_CLOSED, .attempt = 5, .count = WIRE_CLOSED_DEAD}, NULL);
    does(&story, "> 20 PULL block 0 at 3\n"
                 "> 20 PULL block 3 at 3\n"
                 "> 20 PULL block 4 at 3\n"
                 "job drop 5\n"
                 "note lease 5 dropped: a worker of the pipeline is gone\n");
    end_jobs(&story);  // What was given already still ends, and is of no use.
    does(&story, "");
    boundary(&story, WIRE_ACTIVATION, 5, 1, 42, 2);
    does(&story, "");
    value(&story, SEATS_SHARD, 0, 3);
    value(&story, SEATS_SHARD, 3, 3);
    value(&story, SEATS_SHARD, 4, 3);
    boundary(&story, WIRE_ACTIVATION, 6, 0, 44, 2);
    does(&story, "job load block 0 buffer 0\n"
                 "job load block 3 buffer 0\n"
                 "job load block 4 buffer 0\n"
                 "job stash 6.0\n"
                 "job forward 6.0 layers 2-3 buffer 0\n"
                 "job backward 6.0 layers 2-3 buffer 0\n");
    finish(&story);
}

Test(worker_fsm, shard_may_close_a_lease_that_is_being_pushed)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    end_jobs(&story);
    forget(&story);
    const wire_msg_t closed = {.kind = WIRE_CLOSED, .attempt = 5, .count = WIRE_CLOSED_UNKNOWN};
    say(&story, 4711, closed, NULL);
    does(&story, "note CLOSED from 0000000000001267 dropped: it may not close a lease\n");
    say(&story, SEATS_SHARD, closed, NULL);
    does(&story, "job drop 5\n"
                 "note lease 5 dropped: it is not open\n");
    acknowledge(&story, SEATS_SHARD, 5, 0, 0);
    does(&story, "");
    finish(&story);
}

Test(worker_fsm, lost_neighbour_ends_what_needs_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD, block, 0);
    }
    boundary(&story, WIRE_ACTIVATION, 5, 0, 0, 2);
    end_jobs(&story);  // Lease 5 is computed and pushed.
    grant(&story, 6, 2, 2, 0, 0);
    forget(&story);
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_WORKER});
    does(&story, "job drop 6\n"
                 "note the stage before this one is gone\n"
                 "note lease 6 dropped: its pipeline is broken\n");
    acknowledge(&story, SEATS_SHARD, 5, 0, 1);
    acknowledge(&story, SEATS_SHARD, 5, 3, 0);
    acknowledge(&story, SEATS_SHARD, 5, 4, 0);
    does(&story, "> 10 READY 5 used 0 tokens 16 loss 6\n");
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_SHARD});
    does(&story, "stop 1 the shard east/shard0 is gone: nothing was heard of it for too long\n");
    finish(&story);
}

Test(worker_fsm, evaluation_runs_forward_on_exactly_its_version)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 4, 7, 1);
    does(&story, "> 20 PULL block 0 at 7 exactly\n"
                 "> 21 PULL block 1 at 7 exactly\n"
                 "> 20 PULL block 2 at 7 exactly\n"
                 "> 21 PULL block 3 at 7 exactly\n"
                 "> 20 PULL block 4 at 7 exactly\n");
    value(&story, SEATS_SHARD, 0, 8);
    does(&story, "");
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 7);
    }
    forget(&story);
    end_jobs(&story);
    does(&story, "> 10 READY 5 used 7 tokens 32 loss 12\n");
    say(&story, SEATS_LEAD, (wire_msg_t){.kind = WIRE_OUTCOME, .attempt = 5, .version = 7}, NULL);
    grant(&story, 6, 0, 4, 3, 1);
    forget(&story);
    say(&story, SEATS_SHARD,
        (wire_msg_t){.kind = WIRE_NO_VALUE, .block = 0, .version = 3, .text = "long gone"}, NULL);
    does(&story, "job drop 6\n"
                 "note block 0 of version 3 is not to be had: long gone\n"
                 "note lease 6 dropped: its parameters are gone\n");
    finish(&story);
}

Test(worker_fsm, zero_bubble_pushes_behind_the_last_weight_part)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    seats_conf_t conf = TWO_STAGES;
    conf.schedule = SCHEDULE_ZB;
    stand_ready(&story, &conf);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 3; block++) {
        value(&story, SEATS_SHARD, block, 0);
    }
    end_jobs(&story);
    forget(&story);
    boundary(&story, WIRE_GRADIENT, 5, 0, 0, 2);
    end_jobs(&story);
    does(&story, "job stash 5.0 gradient\n"
                 "job backward 5.0 layers 0-1 buffer 1 input\n"
                 "job backward 5.0 layers 1-1 buffer 1 weight\n"
                 "job grad 5 block 2\n"
                 "job backward 5.0 layers 0-0 buffer 1 weight\n"
                 "job grad 5 block 1\n"
                 "job grad 5 block 0\n"
                 "> 20 PUSH 5 block 2 part 0 of 1\n"
                 "> 20 PUSH 5 block 1 part 0 of 1\n"
                 "> 20 PUSH 5 block 0 part 0 of 2\n");
    finish(&story);
}

Test(worker_fsm, nonsense_of_peers_changes_nothing)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    say(&story, 4711, (wire_msg_t){.kind = WIRE_GRANT, .attempt = 5, .rows = 4, .epoch = 1}, NULL);
    does(&story, "note GRANT from 0000000000001267 dropped: not for a worker\n");
    grant(&story, 5, 0, 0, 0, 0);
    does(&story, "job drop 5\n"
                 "note grant of lease 5 dropped: 0 rows do not fit what was reserved\n");
    grant(&story, 5, 0, 4, 0, 0);
    does(&story, "note grant of lease 5 dropped: not newer than the last one\n");
    value(&story, SEATS_SHARD, 1, 0);
    does(&story, "note VALUE of block 1 dropped: not of this stage\n");
    say(&story, SEATS_SHARD, (wire_msg_t){.kind = WIRE_ACK, .block = 99}, NULL);
    does(&story, "note ACK of block 99 dropped: not of this stage\n");
    boundary(&story, WIRE_GRADIENT, 6, 0, 0, 2);
    does(&story, "note GRADIENT of lease 6 dropped: not for this stage\n");
    say(&story, SEATS_WORKER,
        (wire_msg_t){.kind = WIRE_ACTIVATION, .attempt = 6, .epoch = 1, .rows = 2},
        blob_virtual(12));
    does(&story, "note ACTIVATION of lease 6 dropped: not for this stage\n");
    grant(&story, 7, 0, 4, 0, 0);
    forget(&story);
    say(&story, SEATS_SHARD, (wire_msg_t){.kind = WIRE_VALUE, .block = 3}, blob_virtual(5));
    does(&story, "note value of block 3 dropped: 5 bytes instead of 13120\n");
    finish(&story);
}

Test(worker_fsm, new_plan_takes_the_old_leases_with_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 4, 0, 0);
    forget(&story);
    seats_conf_t conf = TWO_STAGES;
    conf.epoch = 2;
    give_plan(&story, &conf);
    does(&story, "dial 10 control-10\n"
                 "dial 20 data-20\n"
                 "job drop 5\n"
                 "job open layers 0-1 sets 2\n"
                 "note lease 5 dropped: a new plan came\n"
                 "note plan 2: stage 0 of 2 in pipeline 0, layers 0 to 1\n");
    finish(&story);
}

Test(worker_fsm, says_what_it_waits_for)
{
    static story_t story;
    begin(&story, SEATS_WORKER + 1);
    stand_ready(&story, &TWO_STAGES);
    grant(&story, 5, 0, 4, 9, 0);
    value(&story, SEATS_SHARD, 0, 9);
    forget(&story);
    wait_for(&story, HX_SEC(10));
    does(&story, "note lease 5 has waited 10 s for 2 of 3 blocks of version 9, the first from "
                 "shard 0\n");
    value(&story, SEATS_SHARD, 3, 9);
    value(&story, SEATS_SHARD, 4, 9);
    end_jobs(&story);
    forget(&story);
    wait_for(&story, HX_SEC(10));
    does(&story, "note lease 5 has waited 10 s for the activation of microbatch 0 from stage 0\n");
    finish(&story);
}

Test(worker_fsm, asked_to_stop_it_leaves)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    feed(&story, (step_in_t){.kind = STEP_SIGNAL});
    does(&story, "> 1 LEAVE interrupted\n"
                 "> 10 LEAVE interrupted\n"
                 "stop 130 interrupted\n");
    finish(&story);
}

Test(worker_fsm, stopped_it_gives_its_trace)
{
    static story_t story;
    begin_traced(&story, SEATS_WORKER, 1);
    stand_ready(&story, &ONE_STAGE);
    grant(&story, 5, 0, 2, 0, 0);
    for (uint32_t block = 0; block < 5; block++) {
        value(&story, SEATS_SHARD + block % 2, block, 0);
    }
    end_jobs(&story);
    forget(&story);
    say(&story, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_STOP, .count = 0, .text = "done"}, NULL);
    does(&story, "> 1 STOPPED\n"
                 "stop 0 done\n");
    const blob_t *const blob = story.out.sends[0].blob;
    cr_assert_not_null(blob);
    char *const text = strndup(blob_data(blob), blob_size(blob));
    cr_assert(strstr(text, "\"name\":\"forward\""));
    cr_assert(strstr(text, "\"name\":\"backward\""));
    cr_assert(strstr(text, "\"name\":\"pull\""));
    cr_assert(strstr(text, "\"pid\":\"east/worker\""));
    free(text);
    finish(&story);
}

Test(worker_fsm, lead_that_is_gone_ends_it)
{
    static story_t story;
    begin(&story, SEATS_WORKER);
    stand_ready(&story, &ONE_STAGE);
    feed(&story, (step_in_t){.kind = STEP_LOST, .peer = SEATS_LEAD});
    does(&story, "stop 1 the lead east/lead0 is gone: nothing was heard of it for too long\n");
    finish(&story);
}
