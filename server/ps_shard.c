// ps_shard - events of a shard taken apart; pushes and pulls: see the header.

#include "server/ps_shard.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/ps_shard_state.h"

ps_shard_t *ps_shard_new(const ps_shard_conf_t *conf)
{
    HX_ASSERT(conf->member.role == PLAN_SHARD);
    HX_ASSERT(conf->arrays >= 1 && conf->arrays <= PS_ARRAYS_COUNT);
    ps_shard_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->pinned = PS_NOT_PINNED;
    member_init(&self->member, &conf->member);
    blocks_make(conf->member.model, conf->block_size, &self->blocks);
    self->own = hx_new(self->blocks.count, sizeof *self->own);
    self->own_of = hx_new(self->blocks.count, sizeof *self->own_of);
    return self;
}

void ps_shard_destroy(ps_shard_t **self_p)
{
    ps_shard_t *const self = *self_p;
    if (!self) {
        return;
    }
    member_clear(&self->member);
    blocks_destroy(&self->blocks);
    ps_holds_destroy(&self->holds);
    blob_release(&self->record);
    blob_release(&self->next_blob);
    blob_release(&self->round.payload);
    blob_release(&self->round.vote_blob);
    record_destroy(&self->next);
    free(self->loading.states);
    free(self->own);
    free(self->own_of);
    pulls_clear(&self->parked);
    free(self);
    *self_p = NULL;
}

uint64_t ps_shard_block_size(const ps_shard_t *self, uint32_t block)
{
    return self->blocks.blocks[block].count * sizeof(float);
}

uint64_t ps_shard_block_version(const ps_shard_t *self, uint32_t own)
{
    return self->version + (own < self->steps_done ? 1 : 0);
}

// How a person would call a node.
static const char *peer_name(const ps_shard_t *self, node_id_t id)
{
    const plan_t *const plan = &self->member.plan;
    const uint32_t node = plan->epoch > 0 ? plan_node_of(plan, id) : UINT32_MAX;
    return node == UINT32_MAX ? "a node outside of the plan" : plan->nodes[node].name;
}

void ps_shard_end(ps_shard_t *self, hx_time_t now, step_out_t *out, const char *format, ...)
{
    wire_msg_t msg = {.kind = WIRE_STOP_ASK, .count = 1};
    va_list args;
    va_start(args, format);
    vsnprintf(msg.text, sizeof msg.text, format, args);
    va_end(args);
    step_send(out, NODE_SCHEDULER, &msg, NULL);
    if (self->loaded) {
        step_stop(out, 1, "%s", msg.text);
    } else {
        self->failed = true;
        member_orphaned(&self->member, now, out, "%s", msg.text);
    }
}

void ps_shard_fail(ps_shard_t *self, const step_in_t *in, step_out_t *out, const char *what)
{
    ps_shard_end(self, in->now, out,
                 "shard %" PRIu32 ": %s (block %" PRIu32 ", version %" PRIu64 "): %s", self->index,
                 what, in->job.index, in->job.version, hx_strerror(in->error));
}

// --- the plan ---

// Lists the blocks that the plan gives to shard `index` in `own` (room for all); returns how
// many.
static uint32_t blocks_of_plan(const ps_shard_t *self, uint32_t index, uint32_t *own)
{
    const plan_t *const plan = &self->member.plan;
    uint32_t count = 0;
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        if (plan->group_shard[self->blocks.blocks[block].group] == index) {
            own[count++] = block;
        }
    }
    return count;
}

static uint32_t index_in_plan(const ps_shard_t *self)
{
    const plan_t *const plan = &self->member.plan;
    for (uint32_t shard = 0; shard < plan->shards_count; shard++) {
        if (plan_shard_node(plan, shard)->id == self->conf.member.id) {
            return shard;
        }
    }
    return PS_NONE;
}

static void take_seat(ps_shard_t *self, uint32_t index, hx_time_t now, step_out_t *out)
{
    self->seated = true;
    self->index = index;
    self->own_count = blocks_of_plan(self, index, self->own);
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        self->own_of[block] = PS_NONE;
    }
    for (uint32_t at = 0; at < self->own_count; at++) {
        self->own_of[self->own[at]] = at;
    }
    self->holds = ps_holds_new(self->own_count);
    ps_shard_load_begin(self, now, out);
}

// A later plan may change who computes what, not where parameters lie.
static void keep_seat(ps_shard_t *self, uint32_t index, hx_time_t now, step_out_t *out)
{
    uint32_t *const own = hx_new(self->blocks.count, sizeof *own);
    const uint32_t count = index == PS_NONE ? 0 : blocks_of_plan(self, index, own);
    const bool same = index == self->index && count == self->own_count &&
                      memcmp(own, self->own, count * sizeof *own) == 0;
    free(own);
    if (!same) {
        ps_shard_end(self, now, out,
                     "shard %" PRIu32 ": the plan of epoch %" PRIu32
                     " moves parameters between servers, which a running system cannot do",
                     self->index, self->member.plan.epoch);
    } else if (self->loaded) {
        member_ready(&self->member, self->version, now, out);
    }
}

static void on_plan(ps_shard_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    const uint32_t index = index_in_plan(self);
    if (index == PS_NONE && !self->seated) {
        if (!self->idle) {
            step_note(out, STEP_INFO, "the plan has no place for this shard: idle");
        }
        self->idle = true;
        return;
    }
    self->idle = false;
    const plan_node_t *const lead = &plan->nodes[plan->lead];
    const plan_node_t *const keeper = &plan->nodes[plan->keeper];
    step_dial(out, lead->id, lead->control, "");
    step_dial(out, keeper->id, "", keeper->data);
    if (self->seated) {
        keep_seat(self, index, now, out);
    } else {
        take_seat(self, index, now, out);
    }
}

// --- pushes ---

static void answer_push(node_id_t to, uint64_t attempt, uint32_t block, uint32_t part, bool held,
                        step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = held ? WIRE_ACK : WIRE_CLOSED,
        .attempt = attempt,
        .block = held ? block : 0,
        .part = held ? part : 0,
        .count = held ? 0 : WIRE_CLOSED_UNKNOWN,
    };
    step_send(out, to, &msg, NULL);
}

// Only who computes in the plan contributes: a worker with a seat in it.
static bool is_seated(const plan_t *plan, node_id_t node)
{
    uint32_t pipeline, stage, member;
    return plan_seat_of(plan, node, &pipeline, &stage, &member);
}

// Whether a PUSH can be meant for this shard; if not it is refused.
static bool push_sane(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    const char *why = NULL;
    if (!self->loaded) {
        why = "the blocks have no values yet";
    } else if (!is_seated(&self->member.plan, in->peer)) {
        why = "its sender computes nothing in this plan";
    } else if (msg->block >= self->blocks.count || self->own_of[msg->block] == PS_NONE) {
        why = "no such block here";
    } else if (msg->parts == 0 || msg->parts > PS_PARTS_MAX || msg->part >= msg->parts) {
        why = "no such part";
    } else if (blob_size(in->blob) != ps_shard_block_size(self, msg->block)) {
        why = "wrong size";
    }
    if (why) {
        member_refuse(&self->member, in, out, "%s", why);
    }
    return why == NULL;
}

static void on_push(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    if (!push_sane(self, in, out)) {
        return;
    }
    const uint64_t size = blob_size(in->blob);
    const uint64_t held = ps_holds_bytes(self->holds);
    if (self->conf.hold_limit > 0 && held + size > self->conf.hold_limit &&
        !ps_holds_over(self->holds, msg->attempt)) {
        char why[160];
        snprintf(why, sizeof why,
                 "%" PRIu64 " bytes of contributions are held, the limit is %" PRIu64
                 " (fewer pipelines, a lower run_ahead or more servers would help)",
                 held, self->conf.hold_limit);
        member_refuse(&self->member, in, out, "%s", why);
        return;
    }
    switch (ps_holds_push(self->holds, msg->attempt, self->own_of[msg->block], msg->part,
                          msg->parts, size)) {
    case PS_HOLD_NEW: {
        const step_job_t job = {
            .kind = SHARD_JOB_HOLD,
            .index = msg->block,
            .part = msg->part,
            .rows = msg->parts,
            .attempt = msg->attempt,
            .version = msg->hash,
            .row_first = in->peer,
            .blob = in->blob,
        };
        step_run(out, &job);
        self->held_peak = HX_MAX(self->held_peak, held + size);
        break;
    }
    case PS_HOLD_PENDING:
        break;
    case PS_HOLD_HELD:
        answer_push(in->peer, msg->attempt, msg->block, msg->part, true, out);
        break;
    case PS_HOLD_CLOSED:
        answer_push(in->peer, msg->attempt, msg->block, msg->part, false, out);
        break;
    case PS_HOLD_WRONG:
        member_refuse(&self->member, in, out, "another number of parts than before");
        break;
    case PS_HOLD_FULL:
        member_refuse(&self->member, in, out, "too many attempts are held");
        break;
    }
}

static void on_hold_done(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const step_job_t *const job = &in->job;
    const bool kept = in->error == HX_OK;
    const bool finite = !(job->flags & SHARD_HOLD_NONFINITE);
    const bool open = ps_holds_done(self->holds, job->attempt, self->own_of[job->index], job->part,
                                    ps_shard_block_size(self, job->index), kept, finite);
    if (in->error == HX_E_FORMAT) {
        self->member.refused++;
        step_note(out, STEP_WARN,
                  "PUSH from %s dropped: block %" PRIu32 " of attempt %" PRIu64
                  " was damaged on its way (hash)",
                  peer_name(self, job->row_first), job->index, job->attempt);
    } else if (!kept) {
        ps_shard_fail(self, in, out, "a contribution could not be kept");
    } else {
        self->pushes++;
        if (!finite) {
            step_note(out, STEP_WARN,
                      "block %" PRIu32 " of attempt %" PRIu64 " from %s is not finite", job->index,
                      job->attempt, peer_name(self, job->row_first));
        }
        answer_push(job->row_first, job->attempt, job->index, job->part, open, out);
    }
}

// --- pulls ---

static void read_value(const pull_t *pull, step_out_t *out)
{
    step_job_t job = pull_job(SHARD_JOB_READ, pull);
    job.flags = pull->flags & PULL_EXACTLY ? SHARD_READ_EXACT : 0;
    step_run(out, &job);
}

// Answers a PULL, or says that it has to wait.
static bool answer_pull(void *self_, const pull_t *pull, step_out_t *out)
{
    const ps_shard_t *const self = self_;
    const bool exactly = pull->flags & PULL_EXACTLY;
    const bool at_once = pull->flags & PULL_AT_ONCE;
    if (!self->seated) {
        if (self->idle || at_once) {
            pull_no_value(pull, "this shard has no plan", out);
        }
        return self->idle || at_once;
    }
    if (pull->block >= self->blocks.count || self->own_of[pull->block] == PS_NONE ||
        pull->part >= self->conf.arrays) {
        pull_no_value(pull, "no such block or array here", out);
        return true;
    }
    const uint64_t version = ps_shard_block_version(self, self->own_of[pull->block]);
    if (!self->loaded || pull->version > version) {
        if (at_once) {
            pull_no_value(pull, self->loaded ? "not yet at that version" : "not loaded yet", out);
        }
        return at_once;
    }
    if (exactly && pull->version != version && pull->version != self->pinned) {
        pull_no_value(pull, "that version is gone", out);
    } else {
        read_value(pull, out);
    }
    return true;
}

static void on_pull(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const pull_t pull = pull_of(in);
    if (!answer_pull(self, &pull, out) && !pulls_park(&self->parked, &pull, PS_PARKED_MAX, out)) {
        member_refuse(&self->member, in, out, "too many wait already");
    }
}

void ps_shard_serve_parked(ps_shard_t *self, step_out_t *out)
{
    pulls_serve(&self->parked, answer_pull, self, out);
}

static void on_read_done(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const step_job_t *const job = &in->job;
    const bool exactly = job->flags & SHARD_READ_EXACT;
    if (in->error != HX_OK) {
        const pull_t pull = pull_of_job(job);
        pull_no_value(&pull, "that version is gone", out);
        return;
    }
    // Jobs end in order, so what is newest for the role was newest for the job.
    const wire_msg_t msg = {
        .kind = WIRE_VALUE,
        .block = job->index,
        .part = job->part,
        .version = exactly ? job->version : ps_shard_block_version(self, self->own_of[job->index]),
    };
    step_send(out, job->row_first, &msg, in->blob);
    self->pulls++;
}

// --- events ---

static void on_message(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    switch (in->msg.kind) {
    case WIRE_PUSH:
        on_push(self, in, out);
        break;
    case WIRE_PULL:
        on_pull(self, in, out);
        break;
    case WIRE_VALUE:
    case WIRE_NO_VALUE:
        ps_shard_load_value(self, in, out);
        break;
    case WIRE_PROMISE:
    case WIRE_PREPARE:
    case WIRE_COMMIT:
    case WIRE_UNPIN:
        ps_shard_round_message(self, in, out);
        break;
    default:
        member_refuse(&self->member, in, out, "not for a shard");
        break;
    }
}

static void on_job(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    switch ((shard_job_t)in->job.kind) {
    case SHARD_JOB_INIT:
    case SHARD_JOB_LOAD:
        ps_shard_load_job(self, in, out);
        break;
    case SHARD_JOB_HOLD:
        on_hold_done(self, in, out);
        break;
    case SHARD_JOB_SUM:
        ps_shard_sum_done(self, in, out);
        break;
    case SHARD_JOB_STEP:
        ps_shard_step_done(self, in, out);
        break;
    case SHARD_JOB_APPLY:
        ps_shard_apply_done(self, in, out);
        break;
    case SHARD_JOB_READ:
        on_read_done(self, in, out);
        break;
    case SHARD_JOB_DROP:
    case SHARD_JOB_UNPIN:
        break;
    }
}

static void on_lost(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    if (self->seated && in->peer == member_lead(&self->member)) {
        member_orphaned(&self->member, in->now, out,
                        "the lead %s is gone: nothing was heard of it for too long",
                        peer_name(self, in->peer));
        return;
    }
    if (self->seated && !self->loaded && in->peer == member_keeper(&self->member)) {
        member_orphaned(&self->member, in->now, out,
                        "the keeper %s is gone, from which values were being loaded",
                        peer_name(self, in->peer));
        return;
    }
    pulls_forget(&self->parked, in->peer);
}

void ps_shard_step(void *self_, const step_in_t *in, step_out_t *out)
{
    ps_shard_t *const self = self_;
    const member_event_t event = member_step(&self->member, in, out);
    if (event == MEMBER_ENDING) {
        if (!out->stop) {
            member_stopped(&self->member, out, NULL);
        }
        return;
    }
    if (self->failed) {
        return;
    }
    if (event == MEMBER_PLAN) {
        on_plan(self, in->now, out);
        ps_shard_serve_parked(self, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_MESSAGE) {
        on_message(self, in, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_JOB) {
        on_job(self, in, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_LOST) {
        on_lost(self, in, out);
    }
    if (!self->failed) {
        ps_shard_load_time(self, in->now, out);
    }
}

ps_shard_info_t ps_shard_info(const ps_shard_t *self)
{
    return (ps_shard_info_t){
        .epoch = self->member.plan.epoch,
        .index = self->index,
        .blocks = self->own_count,
        .loaded = self->loaded,
        .version = self->version,
        .pinned = self->pinned,
        .floor = self->holds ? ps_holds_floor(self->holds) : 0,
        .incarnation = self->promised,
        .attempts = self->holds ? ps_holds_count(self->holds) : 0,
        .held_bytes = self->holds ? ps_holds_bytes(self->holds) : 0,
        .held_peak = self->held_peak,
        .parked = self->parked.count,
        .pushes = self->pushes,
        .pulls = self->pulls,
        .refused = self->member.refused,
    };
}

bool ps_shard_holds(const ps_shard_t *self, uint64_t attempt)
{
    return self->holds && ps_holds_complete(self->holds, attempt);
}
