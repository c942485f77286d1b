// shard_world - one shard of two, driven by hand: what a test tells it, and what it answers.
//
// Nothing runs by itself: jobs are collected until the test ends them. Everything is static,
// since a test program has one shard.

#ifndef SHARD_WORLD_H
#define SHARD_WORLD_H

#include <criterion/criterion.h>
#include <string.h>

#include "model/blocks.h"
#include "model/plan.h"
#include "net/payload.h"
#include "server/ps_shard.h"
#include "tests/support/seats.h"

#define BLOCK_SIZE 4096u
#define ME SEATS_SHARD  // Shard 0 of 2: even groups.
#define JOBS_MAX 4096u

static model_t *model;
static blocks_t blocks;
static plan_t plan;
static ps_shard_t *shard;
static step_out_t out;
static hx_time_t now;
static uint32_t own[256];
static uint32_t own_count;

// Jobs that were given and have not ended.
static step_job_t jobs[JOBS_MAX];
static uint32_t jobs_count;

// Of a shard of that id.
static inline ps_shard_conf_t conf_of(node_id_t id)
{
    ps_shard_conf_t conf = {.member = {.id = id,
                                       .role = PLAN_SHARD,
                                       .run = "r",
                                       .name = "east/shard0",
                                       .scheduler = "there",
                                       .join_timeout = HX_SEC(60),
                                       .model = model},
                            .block_size = BLOCK_SIZE,
                            .arrays = 3};
    return conf;
}

// For TestSuite.
static inline void set_up(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 3;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = 8;
    conf.vocab = 150;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    blocks_make(model, BLOCK_SIZE, &blocks);
    plan = seats_plan(&(seats_conf_t){.stages = 2,
                                      .ends = {2, 5},
                                      .rows = 4,
                                      .microbatch = 2,
                                      .schedule = SCHEDULE_1F1B,
                                      .shards = 2},
                      model);
    own_count = 0;
    for (uint32_t block = 0; block < blocks.count; block++) {
        if (plan.group_shard[blocks.blocks[block].group] == 0) {
            own[own_count++] = block;
        }
    }
    out = (step_out_t){.wake_at = HX_TIME_NEVER};
    jobs_count = 0;
    now = HX_SEC(1);
    const ps_shard_conf_t of = conf_of(ME);
    shard = ps_shard_new(&of);
}

static inline void drop_jobs(void)
{
    for (uint32_t at = 0; at < jobs_count; at++) {
        blob_release(&jobs[at].blob);
    }
    jobs_count = 0;
}

static inline void tear_down(void)
{
    drop_jobs();
    ps_shard_destroy(&shard);
    cr_assert_null(shard);
    step_out_destroy(&out);
    plan_destroy(&plan);
    blocks_destroy(&blocks);
    model_destroy(&model);
}

// One event; its jobs are collected.
static inline void step(step_in_t in)
{
    step_out_clear(&out);
    in.now = now;
    ps_shard_step(shard, &in, &out);
    for (uint32_t at = 0; at < out.jobs_count; at++) {
        cr_assert_lt(jobs_count, JOBS_MAX);
        jobs[jobs_count] = out.jobs[at];
        jobs[jobs_count++].blob = blob_retain(out.jobs[at].blob);
    }
}

// A message.
static inline void tell(node_id_t peer, wire_msg_t msg, blob_t *blob)
{
    step((step_in_t){.kind = STEP_MESSAGE, .peer = peer, .msg = msg, .blob = blob});
}

// Ends the oldest job.
static inline step_job_t end_job(hx_err_t error, uint32_t flags, blob_t *result)
{
    cr_assert_gt(jobs_count, 0);
    step_job_t job = jobs[0];
    jobs_count--;
    memmove(jobs, jobs + 1, jobs_count * sizeof *jobs);
    blob_release(&job.blob);
    const uint32_t given = job.flags;
    if (flags) {
        job.flags = flags;
    }
    step((step_in_t){.kind = STEP_JOB, .job = job, .error = error, .blob = result});
    job.flags = given;
    return job;
}

// All jobs, which are of that kind.
static inline void end_all(uint32_t kind)
{
    while (jobs_count > 0) {
        cr_assert_eq(end_job(HX_OK, 0, NULL).kind, kind);
    }
}

static inline void tell_plan(void)
{
    blob_t *payload = payload_plan_encode(&plan);
    tell(NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = plan.epoch}, payload);
    blob_release(&payload);
}

// Up to the plan.
static inline void join(void)
{
    step((step_in_t){.kind = STEP_START});
    tell(NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL);
    tell_plan();
}

// Joins and draws all blocks.
static inline void load(void)
{
    join();
    end_all(SHARD_JOB_INIT);
}

// The only message of that kind that was sent in the last step, or NULL if there is none.
static inline const step_send_t *sent(wire_kind_t kind)
{
    const step_send_t *found = NULL;
    for (uint32_t at = 0; at < out.sends_count; at++) {
        if (out.sends[at].msg.kind == kind) {
            cr_assert_null(found, "two of %s", wire_kind_name(kind));
            found = &out.sends[at];
        }
    }
    return found;
}

static inline blob_t *bytes_of(uint32_t block)
{
    return blob_virtual(blocks.blocks[block].count * sizeof(float));
}

// A part, from the first worker.
static inline void push(uint64_t attempt, uint32_t block, uint32_t part, uint32_t parts)
{
    blob_t *blob = bytes_of(block);
    tell(SEATS_WORKER,
         (wire_msg_t){
             .kind = WIRE_PUSH, .attempt = attempt, .block = block, .part = part, .parts = parts},
         blob);
    blob_release(&blob);
}

// All own blocks of an attempt, in one part each.
static inline void hold_all(uint64_t attempt)
{
    for (uint32_t at = 0; at < own_count; at++) {
        push(attempt, own[at], 0, 1);
        end_job(HX_OK, 0, NULL);
        cr_assert_not_null(sent(WIRE_ACK));
    }
    cr_assert(ps_shard_holds(shard, attempt));
}

// PREPARE with factors of 1.
static inline void prepare(uint64_t incarnation, uint64_t round, uint64_t version, uint64_t floor,
                           const uint64_t *attempts, uint32_t count, const uint64_t *closed,
                           uint32_t closed_count)
{
    round_member_t members[8] = {{0}};
    for (uint32_t at = 0; at < count; at++) {
        members[at] = (round_member_t){.attempt = attempts[at], .factor = 1};
    }
    uint64_t copy[8];
    for (uint32_t at = 0; at < closed_count; at++) {
        copy[at] = closed[at];
    }
    blob_t *payload = payload_prepare_encode(&(prepare_t){
        .members = members, .members_count = count, .closed = copy, .closed_count = closed_count});
    tell(SEATS_LEAD,
         (wire_msg_t){.kind = WIRE_PREPARE,
                      .incarnation = incarnation,
                      .round = round,
                      .version = version,
                      .floor = floor},
         payload);
    blob_release(&payload);
}

// Likewise.
static inline void commit(uint64_t incarnation, uint64_t version, const uint64_t *attempts,
                          uint32_t count, uint64_t floor, bool snapshot)
{
    round_member_t members[8] = {{0}};
    for (uint32_t at = 0; at < count; at++) {
        members[at] = (round_member_t){.attempt = attempts[at], .factor = 1};
    }
    blob_t *payload = payload_record_encode(&(record_t){.version = version,
                                                        .incarnation = incarnation,
                                                        .step = version,
                                                        .floor = floor,
                                                        .snapshot = snapshot,
                                                        .members = members,
                                                        .members_count = count});
    tell(SEATS_LEAD,
         (wire_msg_t){.kind = WIRE_COMMIT, .incarnation = incarnation, .version = version},
         payload);
    blob_release(&payload);
}

// The oldest job of that kind, before any other.
static inline bool end_of_kind(uint32_t kind)
{
    uint32_t at = 0;
    while (at < jobs_count && jobs[at].kind != kind) {
        at++;
    }
    if (at == jobs_count) {
        return false;
    }
    const step_job_t job = jobs[at];
    memmove(jobs + 1, jobs, at * sizeof *jobs);
    jobs[0] = job;
    end_job(HX_OK, 0, NULL);
    return true;
}

// Applies what is committed: every own block's step, then the end.
static inline void end_apply(void)
{
    for (uint32_t at = 0; at < own_count; at++) {
        cr_assert(end_of_kind(SHARD_JOB_STEP));
    }
    cr_assert(end_of_kind(SHARD_JOB_APPLY));
}

// The oldest job, which is a SUM.
static inline void end_sum(void)
{
    const double square = 1;
    blob_t *squares = payload_doubles_encode(&square, 1);
    cr_assert_eq(end_job(HX_OK, 0, squares).kind, SHARD_JOB_SUM);
    blob_release(&squares);
}

// A whole round of one attempt.
static inline void run_round(uint64_t version, uint64_t attempt, bool snapshot)
{
    hold_all(attempt);
    prepare(1, version, version, 0, &attempt, 1, NULL, 0);
    end_sum();
    commit(1, version, &attempt, 1, 0, snapshot);
    end_apply();
    cr_assert_eq(sent(WIRE_APPLIED)->msg.version, version);
}

// From `peer`.
static inline void pull(node_id_t peer, uint32_t block, uint64_t version, uint32_t part,
                        uint32_t flags)
{
    tell(peer,
         (wire_msg_t){
             .kind = WIRE_PULL, .block = block, .version = version, .part = part, .flags = flags},
         NULL);
}

// The last message was the `count`th to be noted and dropped, and nothing else came of it.
static inline void refused(uint64_t count)
{
    cr_assert_eq(ps_shard_info(shard).refused, count);
    cr_assert_eq(out.sends_count, 0);
    cr_assert_eq(out.jobs_count, 0);
    cr_assert_not(out.stop);
    cr_assert_eq(out.notes[0].level, STEP_WARN);
}

#endif
