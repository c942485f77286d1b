// bench_round - the lead's half: see the header.

#include "bench/bench_round.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "net/payload.h"

#define INCARNATION 1u
#define LEASES_AHEAD 2u  // Granted before the first round is over.

enum { STAGE_WAIT, STAGE_VOTE, STAGE_APPLY };

void bench_lead_init(bench_lead_t *self, const bench_lead_conf_t *conf)
{
    HX_ASSERT(conf->shards > 0 && conf->workers > 0 && conf->seconds > 0);
    *self = (bench_lead_t){.conf = *conf, .stage = STAGE_WAIT, .started_at = HX_TIME_NEVER};
    const member_conf_t member = bench_boss_member(BENCH_LEAD, conf->model);
    member_init(&self->member, &member);
}

void bench_lead_clear(bench_lead_t *self)
{
    member_clear(&self->member);
}

// Attempts of lease n are those from this number on, one for each worker.
static uint64_t attempt_of(const bench_lead_t *self, uint64_t lease, uint32_t worker)
{
    return lease * self->conf.workers + worker + 1;
}

static void to_shards(const bench_lead_t *self, const wire_msg_t *msg, blob_t *blob,
                      step_out_t *out)
{
    for (uint32_t shard = 0; shard < self->conf.shards; shard++) {
        step_send(out, BENCH_SHARD + shard, msg, blob);
    }
}

static void grant(bench_lead_t *self, step_out_t *out)
{
    const uint64_t lease = self->granted++;
    for (uint32_t worker = 0; worker < self->conf.workers; worker++) {
        const wire_msg_t msg = {
            .kind = WIRE_GRANT,
            .attempt = attempt_of(self, lease, worker),
            .row_first = attempt_of(self, lease, worker) - 1,
            .rows = 1,
            .version = lease > 0 ? lease - 1 : 0,
            .epoch = self->member.plan.epoch,
            .tokens = 1,
        };
        step_send(out, BENCH_WORKER + worker, &msg, NULL);
    }
}

// One contribution of each worker, all with the same weight.
static round_member_t *members_of(const bench_lead_t *self)
{
    const uint32_t count = self->conf.workers;
    round_member_t *const members = hx_new(count, sizeof *members);
    for (uint32_t worker = 0; worker < count; worker++) {
        members[worker] = (round_member_t){
            .attempt = attempt_of(self, self->round, worker),
            .pipeline = worker,
            .row_first = attempt_of(self, self->round, worker) - 1,
            .rows = 1,
            .tokens = 1,
            .lag = self->round > 0 ? 1 : 0,
            .weight = 1.0 / count,
            .factor = 1.0 / count,
        };
    }
    return members;
}

static void prepare(bench_lead_t *self, hx_time_t now, step_out_t *out)
{
    const prepare_t payload = {.members = members_of(self), .members_count = self->conf.workers};
    blob_t *blob = payload_prepare_encode(&payload);
    const wire_msg_t msg = {
        .kind = WIRE_PREPARE,
        .incarnation = INCARNATION,
        .round = self->round + 1,
        .version = self->round + 1,
        .floor = attempt_of(self, self->round, 0),
    };
    to_shards(self, &msg, blob, out);
    blob_release(&blob);
    free(payload.members);
    self->stage = STAGE_VOTE;
    self->stage_at = now;
    self->answers = 0;
}

static void commit(bench_lead_t *self, hx_time_t now, step_out_t *out)
{
    const uint64_t rows = (self->round + 1) * self->conf.workers;
    const record_t record = {
        .version = self->round + 1,
        .incarnation = INCARNATION,
        .epoch = self->member.plan.epoch,
        .tokens = rows,
        .scale = 1,
        .rate = 1e-3,
        .kappa = 1,
        .norm = 1,
        .step = self->round + 1,
        .low_water = rows,
        .floor = attempt_of(self, self->round + 1, 0),
        .members = self->conf.apply ? members_of(self) : NULL,
        .members_count = self->conf.apply ? self->conf.workers : 0,
    };
    blob_t *blob = payload_record_encode(&record);
    const wire_msg_t msg = {
        .kind = WIRE_COMMIT, .incarnation = INCARNATION, .version = record.version};
    to_shards(self, &msg, blob, out);
    blob_release(&blob);
    free(record.members);
    self->stage = STAGE_APPLY;
    self->stage_at = now;
    self->answers = 0;
}

// Begins the next round if all have announced their contribution to it.
static void begin_round(bench_lead_t *self, hx_time_t now, step_out_t *out)
{
    uint32_t *const ready = &self->ready[self->round % BENCH_LEASES];
    if (self->stage != STAGE_WAIT || *ready < self->conf.workers) {
        return;
    }
    *ready = 0;
    if (self->conf.apply) {
        prepare(self, now, out);
    } else {
        commit(self, now, out);
    }
}

static double seconds_since(hx_time_t then, hx_time_t now)
{
    return 1e-9 * (double)(now - then);
}

static void take_time(bench_lead_t *self, hx_time_t now)
{
    bench_rounds_t *const result = &self->result;
    if (self->started_at == HX_TIME_NEVER && self->round >= 2 && now >= self->warm_at) {
        self->started_at = now;
        self->started_round = self->round;
        *result = (bench_rounds_t){0};
    } else if (self->started_at < HX_TIME_NEVER && !self->measured) {
        result->rounds = self->round - self->started_round;
        result->seconds = seconds_since(self->started_at, now);
        self->measured = result->seconds >= self->conf.seconds;
    }
}

static void end_round(bench_lead_t *self, hx_time_t now, step_out_t *out)
{
    for (uint32_t worker = 0; worker < self->conf.workers; worker++) {
        const wire_msg_t msg = {.kind = WIRE_OUTCOME,
                                .attempt = attempt_of(self, self->round, worker),
                                .version = self->round + 1};
        step_send(out, BENCH_WORKER + worker, &msg, NULL);
    }
    self->round++;
    self->stage = STAGE_WAIT;
    take_time(self, now);
    if (!self->measured) {
        grant(self, out);
    } else if (self->round == self->granted) {  // What was granted has come to its end.
        const wire_msg_t msg = {.kind = WIRE_DONE, .version = self->round, .text = "done"};
        step_send(out, NODE_SCHEDULER, &msg, NULL);
    }
    begin_round(self, now, out);
}

// All shards have voted, or applied.
static void on_answer(bench_lead_t *self, hx_time_t now, step_out_t *out)
{
    if (++self->answers < self->conf.shards) {
        return;
    }
    const double seconds = seconds_since(self->stage_at, now);
    if (self->stage == STAGE_VOTE) {
        self->result.vote_seconds += self->measured ? 0 : seconds;
        commit(self, now, out);
    } else {
        self->result.apply_seconds += self->measured ? 0 : seconds;
        end_round(self, now, out);
    }
}

_Static_assert(BENCH_SHARDS_MAX + BENCH_WORKERS_MAX < 64, "a bit for each");

// It may come again before the first word of ours has arrived.
static void on_plan_ack(bench_lead_t *self, node_id_t peer, hx_time_t now, step_out_t *out)
{
    const uint64_t all = ((uint64_t)1 << (self->conf.shards + self->conf.workers)) - 1;
    const uint64_t place =
        peer >= BENCH_WORKER ? peer - BENCH_WORKER + self->conf.shards : peer - BENCH_SHARD;
    if (self->acks == all || place >= 64) {
        return;
    }
    self->acks |= (uint64_t)1 << place & all;
    if (self->acks != all) {
        return;
    }
    const wire_msg_t msg = {.kind = WIRE_PROMISE, .incarnation = INCARNATION};
    to_shards(self, &msg, NULL, out);
    self->warm_at = now + (hx_time_t)(self->conf.seconds * 1e8);
    for (uint32_t lease = 0; lease < LEASES_AHEAD; lease++) {
        grant(self, out);
    }
}

static void on_message(bench_lead_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    switch (msg->kind) {
    case WIRE_PLAN_ACK:
        on_plan_ack(self, in->peer, in->now, out);
        break;
    case WIRE_READY:
        self->ready[(msg->attempt - 1) / self->conf.workers % BENCH_LEASES]++;
        begin_round(self, in->now, out);
        break;
    case WIRE_VOTE:
        if (msg->flags != 1) {
            step_stop(out, 1, "a shard voted no in round %" PRIu64, msg->round);
        } else if (self->stage == STAGE_VOTE) {
            on_answer(self, in->now, out);
        }
        break;
    case WIRE_APPLIED:
        if (self->stage == STAGE_APPLY && msg->version == self->round + 1) {
            on_answer(self, in->now, out);
        }
        break;
    default:
        break;
    }
}

void bench_lead_step(void *self_, const step_in_t *in, step_out_t *out)
{
    bench_lead_t *const self = self_;
    const member_event_t event = member_step(&self->member, in, out);
    if (event == MEMBER_ENDING) {
        if (!out->stop) {
            member_stopped(&self->member, out, NULL);
        }
    } else if (event == MEMBER_OTHER && in->kind == STEP_MESSAGE) {
        on_message(self, in, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_LOST) {
        member_orphaned(&self->member, in->now, out, "the lead has lost a shard or a worker");
    }
}
