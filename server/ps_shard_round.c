// ps_shard_round - a shard's part in a round: promise, prepare, vote, commit, apply.

#include "server/ps_shard_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_AHEAD 2u

static void drop_parts(step_out_t *out, uint64_t attempt)
{
    const step_job_t job = {.kind = SHARD_JOB_DROP, .attempt = attempt};
    step_run(out, &job);
}

static void raise_floor(ps_shard_t *self, uint64_t floor, step_out_t *out)
{
    uint32_t count = 0;
    const uint64_t *const dropped = ps_holds_raise(self->holds, floor, &count);
    for (uint32_t at = 0; at < count; at++) {
        drop_parts(out, dropped[at]);
    }
}

static void clear_round(ps_shard_t *self)
{
    ps_round_t *const round = &self->round;
    blob_release(&round->payload);
    blob_release(&round->vote_blob);
    *round = (ps_round_t){.serial = round->serial};
}

// --- promise ---

static void answer_promise(ps_shard_t *self, step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = WIRE_PROMISED, .incarnation = self->promised, .version = self->version};
    step_send(out, member_lead(&self->member), &msg, self->record);
    self->owes_promise = false;
}

static void on_promise(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->msg.incarnation < self->promised) {
        member_refuse(&self->member, in, out, "a later incarnation has been promised");
        return;
    }
    self->promised = in->msg.incarnation;
    if (self->applying) {
        self->owes_promise = true;  // The version is about to change: answer with the new one.
    } else {
        answer_promise(self, out);
    }
}

// --- prepare and vote ---

static void vote(ps_shard_t *self, bool yes, blob_t *blob, step_out_t *out)
{
    ps_round_t *const round = &self->round;
    round->state = PS_ROUND_VOTED;
    round->vote = (wire_msg_t){
        .kind = WIRE_VOTE,
        .incarnation = round->incarnation,
        .round = round->number,
        .version = round->version,
        .flags = yes ? 1 : 0,
    };
    round->vote_blob = blob_retain(blob);
    step_send(out, member_lead(&self->member), &round->vote, blob);
}

static void vote_no(ps_shard_t *self, const uint64_t *attempts, uint32_t count, step_out_t *out)
{
    blob_t *blob = payload_attempts_encode(attempts, count);
    step_note(out, STEP_WARN,
              "round %" PRIu64 ": no for version %" PRIu64 ": %" PRIu32
              " contributions are missing or not finite",
              self->round.number, self->round.version, count);
    vote(self, false, blob, out);
    blob_release(&blob);
}

// Votes no at once for members that cannot be summed; else has the sums made.
static void weigh_members(ps_shard_t *self, const prepare_t *prepare, step_out_t *out)
{
    ps_round_t *const round = &self->round;
    uint64_t *const bad = hx_new(HX_MAX(prepare->members_count, 1u), sizeof *bad);
    uint32_t bad_count = 0;
    for (uint32_t at = 0; at < prepare->members_count; at++) {
        const uint64_t attempt = prepare->members[at].attempt;
        if (!ps_holds_complete(self->holds, attempt) || !ps_holds_finite(self->holds, attempt)) {
            bad[bad_count++] = attempt;
        }
    }
    if (bad_count > 0) {
        vote_no(self, bad, bad_count, out);
    } else {
        round->state = PS_ROUND_SUMMING;
        round->serial++;
        const step_job_t job = {
            .kind = SHARD_JOB_SUM,
            .attempt = round->serial,
            .version = round->version,
            .blob = round->payload,
        };
        step_run(out, &job);
    }
    free(bad);
}

static bool prepare_sane(const prepare_t *prepare)
{
    for (uint32_t at = 0; at < prepare->members_count; at++) {
        if (!isfinite(prepare->members[at].factor)) {
            return false;
        }
    }
    return true;
}

static bool same_bytes(const blob_t *a, const blob_t *b)
{
    const size_t size = blob_size(a);
    return size == blob_size(b) && (size == 0 || memcmp(blob_data(a), blob_data(b), size) == 0);
}

// The same question again: the same answer again, when there is one.
static bool asked_again(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const ps_round_t *const round = &self->round;
    if (round->state == PS_ROUND_NONE || in->msg.incarnation != round->incarnation ||
        in->msg.round != round->number || in->msg.version != round->version ||
        !same_bytes(in->blob, round->payload)) {
        return false;
    }
    if (round->state == PS_ROUND_VOTED) {
        step_send(out, member_lead(&self->member), &round->vote, round->vote_blob);
    }
    return true;
}

static void on_prepare(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    const ps_round_t *const round = &self->round;
    if (msg->incarnation < self->promised) {
        member_refuse(&self->member, in, out, "a later incarnation has been promised");
        return;
    }
    if (self->applying || msg->version != self->version + 1) {
        step_note(out, STEP_DEBUG, "prepare of version %" PRIu64 " at version %" PRIu64 "%s",
                  msg->version, self->version,
                  self->applying ? ", applying: ignored" : ": ignored");
        return;
    }
    if (asked_again(self, in, out)) {
        return;
    }
    if (round->state != PS_ROUND_NONE && msg->incarnation == round->incarnation &&
        msg->round < round->number) {
        step_note(out, STEP_DEBUG, "round %" PRIu64 " is over", msg->round);
        return;
    }
    prepare_t prepare = {0};
    if (payload_prepare_decode(in->blob, &prepare) != HX_OK || !prepare_sane(&prepare)) {
        prepare_destroy(&prepare);
        member_refuse(&self->member, in, out, "malformed");
        return;
    }
    self->promised = msg->incarnation;
    raise_floor(self, msg->floor, out);
    for (uint32_t at = 0; at < prepare.closed_count; at++) {
        if (ps_holds_close(self->holds, prepare.closed[at])) {
            drop_parts(out, prepare.closed[at]);
        }
    }
    clear_round(self);
    self->round.incarnation = msg->incarnation;
    self->round.number = msg->round;
    self->round.version = msg->version;
    self->round.payload = blob_retain(in->blob);
    weigh_members(self, &prepare, out);
    prepare_destroy(&prepare);
}

void ps_shard_sum_done(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    ps_round_t *const round = &self->round;
    if (round->state != PS_ROUND_SUMMING || in->job.attempt != round->serial) {
        return;  // The lead has asked something else since.
    }
    if (in->error == HX_OK) {
        step_note(out, STEP_DEBUG, "round %" PRIu64 ": yes for version %" PRIu64, round->number,
                  round->version);
        vote(self, true, in->blob, out);
        return;
    }
    if (in->error != HX_E_NONFINITE) {
        ps_shard_fail(self, in, out, "the sum of a round failed");
        return;
    }
    // Each is finite and their sum is not: there is no telling which of them is to blame.
    prepare_t prepare = {0};
    if (payload_prepare_decode(round->payload, &prepare) != HX_OK) {
        HX_ASSERT(false && "a payload that was decoded before");
    }
    uint64_t *const attempts = hx_new(HX_MAX(prepare.members_count, 1u), sizeof *attempts);
    for (uint32_t at = 0; at < prepare.members_count; at++) {
        attempts[at] = prepare.members[at].attempt;
    }
    vote_no(self, attempts, prepare.members_count, out);
    free(attempts);
    prepare_destroy(&prepare);
}

// --- commit and apply ---

static void answer_applied(ps_shard_t *self, step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = WIRE_APPLIED, .incarnation = self->promised, .version = self->version};
    step_send(out, member_lead(&self->member), &msg, NULL);
}

static bool holds_members(const ps_shard_t *self, const record_t *record, uint64_t *missing)
{
    for (uint32_t at = 0; at < record->members_count; at++) {
        if (!ps_holds_complete(self->holds, record->members[at].attempt)) {
            *missing = record->members[at].attempt;
            return false;
        }
    }
    return true;
}

// Block by block, a few ahead of the job thread, so that what is read in between need not wait for
// all.
static void go_on_applying(ps_shard_t *self, step_out_t *out)
{
    step_job_t job = {
        .kind = SHARD_JOB_STEP, .version = self->next.version, .blob = self->next_blob};
    const uint32_t steps = self->next.members_count > 0 ? self->own_count : 0;
    while (self->steps_asked < steps && self->steps_asked - self->steps_done < STEPS_AHEAD) {
        job.index = self->own[self->steps_asked++];
        step_run(out, &job);
    }
    if (self->steps_done == steps) {
        job.kind = SHARD_JOB_APPLY;
        job.index = 0;
        step_run(out, &job);
    }
}

static void on_commit(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    if (msg->incarnation < self->promised) {
        member_refuse(&self->member, in, out, "a later incarnation has been promised");
        return;
    }
    if (self->applying) {
        return;  // Its end is the answer.
    }
    if (msg->version == self->version) {
        self->promised = msg->incarnation;
        answer_applied(self, out);
        return;
    }
    record_t record = {0};
    if (msg->version != self->version + 1 || payload_record_decode(in->blob, &record) != HX_OK ||
        record.version != msg->version) {
        record_destroy(&record);
        member_refuse(&self->member, in, out, "not the next version, or malformed");
        return;
    }
    self->promised = msg->incarnation;
    uint64_t missing = 0;
    if (!holds_members(self, &record, &missing)) {
        // It is decided, so all shards must apply it, and this one cannot.
        ps_shard_end(self, in->now, out,
                     "shard %" PRIu32 ": version %" PRIu64 " was decided with attempt %" PRIu64
                     ", which is not held here",
                     self->index, record.version, missing);
        record_destroy(&record);
        return;
    }
    self->applying = true;
    self->next = record;
    self->next_blob = blob_retain(in->blob);
    self->steps_asked = self->steps_done = 0;
    go_on_applying(self, out);
}

void ps_shard_step_done(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    HX_ASSERT(self->applying && in->job.index == self->own[self->steps_done]);
    if (in->error != HX_OK) {
        ps_shard_fail(self, in, out, "a decided step could not be applied");
        return;
    }
    self->steps_done++;
    go_on_applying(self, out);
    ps_shard_serve_parked(self, out);
}

void ps_shard_apply_done(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    HX_ASSERT(self->applying && in->job.version == self->version + 1);
    if (in->error != HX_OK) {
        ps_shard_fail(self, in, out, "a decided step could not be applied");
        return;
    }
    self->applying = false;
    self->steps_asked = self->steps_done = 0;
    self->version++;
    blob_release(&self->record);
    self->record = self->next_blob;
    self->next_blob = NULL;
    for (uint32_t at = 0; at < self->next.members_count; at++) {
        ps_holds_close(self->holds, self->next.members[at].attempt);  // The job has freed it.
    }
    raise_floor(self, self->next.floor, out);
    if (self->next.snapshot) {
        self->pinned = self->version;
    }
    step_note(out, STEP_DEBUG, "version %" PRIu64 " applied: %" PRIu32 " contributions, %.3f ms%s",
              self->version, self->next.members_count, in->job.seconds * 1e3,
              self->next.snapshot ? ", pinned" : "");
    record_destroy(&self->next);
    clear_round(self);
    answer_applied(self, out);
    if (self->owes_promise) {
        answer_promise(self, out);
    }
    ps_shard_serve_parked(self, out);
}

static void on_unpin(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    if (in->msg.version != self->pinned) {
        step_note(out, STEP_DEBUG, "version %" PRIu64 " is not pinned", in->msg.version);
        return;
    }
    self->pinned = PS_NOT_PINNED;
    const step_job_t job = {.kind = SHARD_JOB_UNPIN, .version = in->msg.version};
    step_run(out, &job);
}

void ps_shard_round_message(ps_shard_t *self, const step_in_t *in, step_out_t *out)
{
    if (!self->seated || in->peer != member_lead(&self->member)) {
        member_refuse(&self->member, in, out, "not from the lead of the plan");
        return;
    }
    if (!self->loaded) {
        member_refuse(&self->member, in, out, "the blocks have no values yet");
        return;
    }
    member_heard(&self->member);
    switch (in->msg.kind) {
    case WIRE_PROMISE:
        on_promise(self, in, out);
        break;
    case WIRE_PREPARE:
        on_prepare(self, in, out);
        break;
    case WIRE_COMMIT:
        on_commit(self, in, out);
        break;
    default:
        HX_ASSERT(in->msg.kind == WIRE_UNPIN);
        on_unpin(self, in, out);
        break;
    }
}
