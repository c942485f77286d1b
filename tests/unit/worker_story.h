// worker_story - a worker's state machine without tensors, for stories: what goes in, and what
// comes out as lines of text. Job results are made up, with virtual blobs.

#ifndef WORKER_STORY_H
#define WORKER_STORY_H

#include "model/blocks.h"
#include "net/payload.h"
#include "tests/support/seats.h"
#include "worker/worker_fsm.h"

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

static inline void write_text(story_t *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int size = vsnprintf(self->text + self->length, TEXT_MAX - self->length, format, args);
    va_end(args);
    cr_assert(size >= 0 && (size_t)size < TEXT_MAX - self->length);
    self->length += (size_t)size;
}

static inline void write_send(story_t *self, const step_send_t *send)
{
    const wire_msg_t *const msg = &send->msg;
    write_text(self, "> %" PRIu64 " %s", send->to, wire_kind_name(msg->kind));
    switch (msg->kind) {
    case WIRE_PULL:
        write_text(self, " block %" PRIu32 " at %" PRIu64 "%s", msg->block, msg->version,
                   msg->flags & 1 ? " exactly" : "");
        break;
    case WIRE_VALUE:
        write_text(self, " block %" PRIu32 " of %" PRIu64, msg->block, msg->version);
        break;
    case WIRE_ACK:
        write_text(self, " %" PRIu64 " block %" PRIu32 " part %" PRIu32, msg->attempt, msg->block,
                   msg->part);
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

static inline void write_job(story_t *self, const step_job_t *job)
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
                   job->part == WORKER_STASH_GRADIENT ? " gradient"
                   : job->part == WORKER_STASH_MEMBER ? " of a member"
                                                      : "");
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
    case WORKER_JOB_SUM:
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

static inline void write_out(story_t *self)
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

static inline void feed(story_t *self, step_in_t in)
{
    in.now = self->now;
    step_out_clear(&self->out);
    worker_fsm_step(self->fsm, &in, &self->out);
    write_out(self);
}

static inline void say(story_t *self, node_id_t peer, wire_msg_t msg, blob_t *blob)
{
    feed(self, (step_in_t){.kind = STEP_MESSAGE, .peer = peer, .msg = msg, .blob = blob});
    blob_release(&blob);
}

static inline void wait_for(story_t *self, hx_time_t time)
{
    self->now += time;
    feed(self, (step_in_t){.kind = STEP_TIMER});
}

static inline size_t block_bytes(const story_t *self, uint32_t block)
{
    return self->blocks.blocks[block].count * sizeof(float);
}

static inline size_t boundary_bytes(const story_t *self, uint32_t rows)
{
    const model_conf_t *const conf = model_conf(self->model);
    return (size_t)rows * conf->context * conf->channels * sizeof(float);
}

// The result that a job would have, with a virtual blob.
static inline blob_t *result_of(const story_t *self, step_job_t *job)
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
    case WORKER_JOB_SUM:
        return blob_virtual(block_bytes(self, job->index));
    default:
        return NULL;
    }
}

// Ends the oldest job.
static inline void end_job(story_t *self)
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

static inline void end_jobs(story_t *self)
{
    while (self->jobs_count > 0) {
        end_job(self);
    }
}

static inline void forget(story_t *self)
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
static inline void begin_with(story_t *self, node_id_t id, uint64_t trace_last,
                              uint64_t pull_window)
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
        .pull_window = pull_window,
        .trace_first = trace_last > 0 ? 1 : 0,
        .trace_last = trace_last,
    };
    self->id = id;
    self->fsm = worker_fsm_new(&fsm);
    self->out.wake_at = HX_TIME_NEVER;
}

static inline void begin(story_t *self, node_id_t id)
{
    begin_with(self, id, 0, 0);
}

static inline void finish(story_t *self)
{
    worker_fsm_destroy(&self->fsm);
    step_out_destroy(&self->out);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
}

static inline void give_plan(story_t *self, const seats_conf_t *conf)
{
    plan_t plan = seats_plan(conf, self->model);
    say(self, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = plan.epoch},
        payload_plan_encode(&plan));
    plan_destroy(&plan);
}

static inline void join(story_t *self)
{
    feed(self, (step_in_t){.kind = STEP_START});
    say(self, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    end_jobs(self);
}

// Joined, planned, opened; nothing of that in the text.
static inline void stand_ready(story_t *self, const seats_conf_t *conf)
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

static inline void grant(story_t *self, uint64_t attempt, uint64_t row_first, uint32_t rows,
                         uint64_t base, uint32_t flags)
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

static inline void value(story_t *self, node_id_t shard, uint32_t block, uint64_t version)
{
    say(self, shard, (wire_msg_t){.kind = WIRE_VALUE, .block = block, .version = version},
        blob_virtual(block_bytes(self, block)));
}

static inline void boundary(story_t *self, wire_kind_t kind, uint64_t attempt, uint32_t micro,
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

static inline void acknowledge(story_t *self, node_id_t shard, uint64_t attempt, uint32_t block,
                               uint32_t part)
{
    say(self, shard,
        (wire_msg_t){.kind = WIRE_ACK, .attempt = attempt, .block = block, .part = part}, NULL);
}

#endif
