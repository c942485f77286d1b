// worker_run - leases as messages change them: grants, pulling, neighbours, acknowledgements, ends.
//
// What the job thread is given, and what it answers, is in worker_work.c.

#include "worker/worker_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PULL_WINDOW ((uint64_t)16 << 20)
#define PULL_BLOCKS_MIN 2u
#define PULL_MARGIN 1.25  // A pull begins so many of its times before the device is free.

static uint32_t find(lease_t *const *leases, uint32_t count, uint64_t attempt)
{
    for (uint32_t index = 0; index < count; index++) {
        if (leases[index]->attempt == attempt) {
            return index;
        }
    }
    return UINT32_MAX;
}

lease_t *worker_lease_find(const worker_fsm_t *self, uint64_t attempt)
{
    const uint32_t index = find(self->leases, self->leases_count, attempt);
    return index < UINT32_MAX ? self->leases[index] : NULL;
}

static lease_t *take(lease_t **leases, uint32_t *count, uint32_t index)
{
    lease_t *const lease = leases[index];
    --*count;
    memmove(leases + index, leases + index + 1, (*count - index) * sizeof *leases);
    return lease;
}

void worker_span(worker_fsm_t *self, const lease_t *lease, trace_kind_t kind, uint32_t micro,
                 hx_time_t begin, hx_time_t end)
{
    if (lease->traced) {
        const trace_span_t span = {kind, micro, lease->attempt, begin, end};
        trace_add(self->trace, &span);
    }
}

void worker_progress(worker_fsm_t *self, hx_time_t now)
{
    self->progress_at = now;
    self->word_at = now + WORKER_WORD_EVERY;
}

// --- The end of a lease

static void run_drop(const lease_t *lease, step_out_t *out)
{
    const step_job_t job = {
        .kind = WORKER_JOB_DROP,
        .attempt = lease->attempt,
        .flags = lease->evaluation ? WORKER_JOB_EVALUATION : 0,
    };
    step_run(out, &job);
}

static void drop_lease(worker_fsm_t *self, uint32_t index, const char *why, step_out_t *out)
{
    lease_t *lease = take(self->leases, &self->leases_count, index);
    step_note(out, STEP_INFO, "lease %" PRIu64 " dropped: %s", lease->attempt, why);
    if (lease->state == LEASE_RUNNING) {
        self->idle_since = HX_TIME_NEVER;
    }
    run_drop(lease, out);
    lease_destroy(&lease);
}

static void drop_early(worker_fsm_t *self, uint32_t index, step_out_t *out)
{
    lease_t *lease = take(self->early, &self->early_count, index);
    run_drop(lease, out);
    lease_destroy(&lease);
}

void worker_run_reset(worker_fsm_t *self, step_out_t *out)
{
    while (self->leases_count > 0) {
        drop_lease(self, 0, "a new plan came", out);
    }
    while (self->early_count > 0) {
        drop_early(self, 0, out);
    }
}

static void on_outcome(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t index = find(self->leases, self->leases_count, in->msg.attempt);
    if (index == UINT32_MAX || self->leases[index]->state != LEASE_ANNOUNCED) {
        step_note(out, STEP_DEBUG, "outcome of lease %" PRIu64 " dropped: not announced here",
                  in->msg.attempt);
        return;
    }
    lease_t *lease = take(self->leases, &self->leases_count, index);
    step_note(out, STEP_DEBUG, "lease %" PRIu64 " %s version %" PRIu64, lease->attempt,
              lease->evaluation ? "evaluated" : "is in", in->msg.version);
    lease_destroy(&lease);
    worker_progress(self, in->now);
}

static const char *closed_text(uint32_t reason)
{
    static const char *const texts[] = {
        [0] = "closed",
        [WIRE_CLOSED_UNKNOWN] = "it is not open",
        [WIRE_CLOSED_LATE] = "its deadline passed",
        [WIRE_CLOSED_DEAD] = "a worker of the pipeline is gone",
        [WIRE_CLOSED_LOST] = "a shard lost a part of it",
        [WIRE_CLOSED_NONFINITE] = "its gradient is not finite",
        [WIRE_CLOSED_CANCELLED] = "cancelled",
    };
    return texts[reason < HX_COUNT(texts) ? reason : 0];
}

// The lead and the stage's shards may close a lease.
static bool may_close(const worker_fsm_t *self, node_id_t peer)
{
    bool may = peer == member_lead(&self->member);
    for (uint32_t place = 0; place < self->seat.blocks_count; place++) {
        may = may || self->seat.blocks[place].shard_node == peer;
    }
    return may;
}

static void on_closed(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    if (!may_close(self, in->peer)) {
        member_refuse(&self->member, in, out, "it may not close a lease");
        return;
    }
    uint32_t index = find(self->leases, self->leases_count, in->msg.attempt);
    if (index < UINT32_MAX) {
        drop_lease(self, index, closed_text(in->msg.count), out);
        worker_progress(self, in->now);
        return;
    }
    index = find(self->early, self->early_count, in->msg.attempt);
    if (index < UINT32_MAX) {
        drop_early(self, index, out);
    }
    if (in->peer == member_lead(&self->member)) {
        self->attempt_last = HX_MAX(self->attempt_last, in->msg.attempt);
    }
}

void worker_run_lost(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    static const char *const sides[] = {"of the stage before this one", "of this stage",
                                        "of the stage behind this one"};
    uint32_t side = 0;
    while (side < SEAT_PATCHES &&
           seat_member_of(&self->seat, (seat_side_t)side, in->peer) == UINT32_MAX) {
        side++;
    }
    if (side == SEAT_PATCHES) {
        return;
    }
    step_note(out, STEP_WARN, "a worker %s is gone", sides[side]);
    // What was computed needs no neighbour any more: the lead decides on it.
    for (uint32_t index = self->leases_count; index-- > 0;) {
        if (self->leases[index]->state < LEASE_PUSHING) {
            drop_lease(self, index, "its pipeline is broken", out);
        }
    }
    while (self->early_count > 0) {
        drop_early(self, 0, out);
    }
}

// --- Grants

// Attempts are granted in rising order: what came early for lower ones will not be granted.
static lease_t *take_early(worker_fsm_t *self, uint64_t attempt, step_out_t *out)
{
    lease_t *found = NULL;
    for (uint32_t index = self->early_count; index-- > 0;) {
        if (self->early[index]->attempt == attempt) {
            found = take(self->early, &self->early_count, index);
        } else if (self->early[index]->attempt < attempt) {
            drop_early(self, index, out);
        }
    }
    return found;
}

static void on_grant(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    const char *why = NULL;
    if (!self->open || msg->epoch != self->seat.epoch) {
        why = "not of the plan in force";
    } else if (msg->attempt <= self->attempt_last) {
        why = "not newer than the last one";
    } else if (self->leases_count == WORKER_LEASES_MAX) {
        why = "one too many";
    }
    if (why) {
        member_refuse(&self->member, in, out, "lease %" PRIu64 " is %s", msg->attempt, why);
        return;
    }
    self->attempt_last = msg->attempt;
    lease_t *lease = take_early(self, msg->attempt, out);
    lease = lease ? lease : lease_new(msg->attempt);
    if (!lease_grant(lease, msg, &self->seat, in->now)) {
        member_refuse(&self->member, in, out,
                      "the %" PRIu32 " rows of lease %" PRIu64 " do not fit what was reserved",
                      msg->rows, msg->attempt);
        run_drop(lease, out);
        lease_destroy(&lease);
        return;
    }
    if (!lease->evaluation) {
        self->trained++;
        lease->traced = self->conf.trace_first > 0 && self->trained >= self->conf.trace_first &&
                        self->trained <= self->conf.trace_last;
    }
    self->leases[self->leases_count++] = lease;
    worker_patch_granted(self, lease, out);
    step_note(out, STEP_DEBUG,
              "lease %" PRIu64 ": rows %" PRIu64 " to %" PRIu64 ", version %" PRIu64 "%s",
              lease->attempt, lease->row_first, lease->row_first + lease->rows - 1, lease->base,
              lease->evaluation ? ", evaluation" : "");
    worker_progress(self, in->now);
}

// --- Pulling

static void send_pull(const worker_fsm_t *self, lease_t *lease, uint32_t place, step_out_t *out)
{
    const seat_block_t *const block = &self->seat.blocks[place];
    const wire_msg_t msg = {
        .kind = WIRE_PULL,
        .block = block->block,
        .version = lease->base,
        .flags = lease->evaluation ? 1 : 0,
    };
    lease->blocks[place].asked = true;
    step_send(out, lease->evaluation ? block->shard_node : block->node, &msg, NULL);
}

// No more of a shard's blocks are asked for than a window holds: what a slow line cannot take yet
// the shard need not keep, and when its turn comes it is as new as can be.
static void start_pull(worker_fsm_t *self, lease_t *lease, hx_time_t now, step_out_t *out)
{
    const uint64_t bytes = self->conf.pull_window > 0 ? self->conf.pull_window : PULL_WINDOW;
    const uint64_t window = HX_MAX(PULL_BLOCKS_MIN, bytes / self->conf.block_size);
    uint32_t asked[PLAN_SHARDS_MAX] = {0};
    lease->state = LEASE_PULLING;
    lease->buffer = 1 - self->buffer_last;
    lease->pull_at = now;
    for (uint32_t place = 0; place < self->seat.blocks_count; place++) {
        if (asked[self->seat.blocks[place].shard]++ < window) {
            send_pull(self, lease, place, out);
        }
    }
}

// A block has come: the next one of its shard may be asked for.
static void pull_next(const worker_fsm_t *self, lease_t *lease, uint32_t place, step_out_t *out)
{
    for (uint32_t next = place + 1; next < self->seat.blocks_count; next++) {
        const bool same = self->seat.blocks[next].shard == self->seat.blocks[place].shard;
        if (same && !lease->blocks[next].asked) {
            if (lease->blocks[next].pulled) {
                continue;  // It was asked for by a lease that is over.
            }
            send_pull(self, lease, next, out);
            return;
        }
    }
}

// The values of the next lease should be here when this one has run: not later, or the device waits
// for them, and hardly earlier, or they are staler than they need be.
static bool pull_is_due(const worker_fsm_t *self, const lease_t *running, hx_time_t now)
{
    return lease_forwards_done(running) ||
           (self->pull_time > 0 && running->state >= LEASE_RUNNING &&
            (double)lease_time_left(running, now) <= PULL_MARGIN * (double)self->pull_time);
}

// One lease pulls at a time, into the buffer that is not in use.
void worker_run_pull(worker_fsm_t *self, hx_time_t now, step_out_t *out)
{
    for (uint32_t index = 0; index < self->leases_count; index++) {
        lease_t *const lease = self->leases[index];
        if (lease->state == LEASE_QUEUED) {
            start_pull(self, lease, now, out);
            return;
        }
        if (lease->state == LEASE_PULLING || !pull_is_due(self, lease, now)) {
            return;
        }
    }
}

static lease_t *find_pulling(const worker_fsm_t *self)
{
    for (uint32_t index = 0; index < self->leases_count; index++) {
        if (self->leases[index]->state == LEASE_PULLING) {
            return self->leases[index];
        }
    }
    return NULL;
}

uint32_t worker_block_place(const worker_fsm_t *self, uint32_t block)
{
    const bool known = self->seat.seated && block < self->blocks.count;
    return known ? self->seat.find[block] : UINT32_MAX;
}

// The place in the seat of a block that is exchanged with the sender, or UINT32_MAX with a note.
static uint32_t own_block(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const seat_t *const seat = &self->seat;
    const uint32_t place = worker_block_place(self, in->msg.block);
    if (place == UINT32_MAX ||
        (seat->blocks[place].node != in->peer && seat->blocks[place].shard_node != in->peer)) {
        member_refuse(&self->member, in, out,
                      "block %" PRIu32 " is not of this stage, or not there", in->msg.block);
        return UINT32_MAX;
    }
    return place;
}

static void note_pull_time(worker_fsm_t *self, hx_time_t time)
{
    self->pull_time = self->pull_time > 0 ? (3 * self->pull_time + time) / 4 : time;
}

// A value answers whichever lease is being pulled for, if it is new enough: one that was asked for
// by a lease that is over serves the next as well.
static void on_value(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t place = own_block(self, in, out);
    if (place == UINT32_MAX) {
        return;
    }
    lease_t *const lease = find_pulling(self);
    const uint64_t version = in->msg.version;
    const seat_block_t *const block = &self->seat.blocks[place];
    const bool wanted = lease && !lease->blocks[place].pulled && in->msg.part == 0 &&
                        in->peer == (lease->evaluation ? block->shard_node : block->node) &&
                        (lease->evaluation ? version == lease->base : version >= lease->base);
    if (!wanted) {
        step_note(out, STEP_DEBUG, "value of block %" PRIu32 " dropped: not waited for",
                  in->msg.block);
        return;
    }
    if (blob_size(in->blob) != self->seat.blocks[place].size) {
        member_refuse(&self->member, in, out,
                      "%zu bytes instead of the %" PRIu64 " of block %" PRIu32, blob_size(in->blob),
                      self->seat.blocks[place].size, in->msg.block);
        return;
    }
    const step_job_t job = {
        .kind = WORKER_JOB_LOAD,
        .index = in->msg.block,
        .part = lease->buffer,
        .version = version,
        .attempt = lease->attempt,
        .blob = in->blob,
    };
    step_run(out, &job);
    if (!lease->evaluation) {
        worker_patch_value(self, place, in, out);
    }
    lease->blocks[place].pulled = true;
    pull_next(self, lease, place, out);
    lease->oldest = HX_MIN(lease->oldest, version);
    if (++lease->pulled_count == self->seat.blocks_count) {
        worker_span(self, lease, TRACE_PULL, 0, lease->pull_at, in->now);
        note_pull_time(self, in->now - lease->pull_at);
    }
    worker_progress(self, in->now);
}

static void on_no_value(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t place = own_block(self, in, out);
    lease_t *const lease = find_pulling(self);
    if (place == UINT32_MAX || !lease || lease->blocks[place].pulled ||
        in->msg.version != lease->base) {
        return;
    }
    step_note(out, STEP_WARN, "block %" PRIu32 " of version %" PRIu64 " is not to be had: %s",
              in->msg.block, in->msg.version, in->msg.text);
    drop_lease(self, find(self->leases, self->leases_count, lease->attempt),
               "its parameters are gone", out);
}

// --- Acknowledgements

static void on_ack(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t place = own_block(self, in, out);
    lease_t *const lease = worker_lease_find(self, in->msg.attempt);
    if (place == UINT32_MAX || !lease || !lease->blocks[place].pushed ||
        lease->blocks[place].acked || in->msg.part != self->seat.blocks[place].part) {
        step_note(out, STEP_DEBUG, "ack of block %" PRIu32 " of lease %" PRIu64 " dropped",
                  in->msg.block, in->msg.attempt);
        return;
    }
    lease->blocks[place].acked = true;
    lease->acked_count++;
    worker_span(self, lease, TRACE_PUSH, in->msg.block, lease->blocks[place].pushed_at, in->now);
    worker_progress(self, in->now);
}

// --- Messages of neighbours

lease_t *worker_lease_early(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t index = find(self->early, self->early_count, in->msg.attempt);
    if (index < UINT32_MAX) {
        return self->early[index];
    }
    if (in->msg.attempt <= self->attempt_last || self->early_count == WORKER_EARLY_MAX) {
        step_note(out, STEP_DEBUG, "%s of lease %" PRIu64 " dropped: it is over",
                  wire_kind_name(in->msg.kind), in->msg.attempt);
        return NULL;
    }
    lease_t *const lease = lease_new(in->msg.attempt);
    self->early[self->early_count++] = lease;
    return lease;
}

static void on_neighbour(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const seat_t *const seat = &self->seat;
    const wire_msg_t *const msg = &in->msg;
    const bool forward = msg->kind == WIRE_ACTIVATION;
    const bool taken = msg->kind == WIRE_TAKEN;
    const lease_message_t message = {
        .stash = forward ? WORKER_STASH_ACTIVATION : WORKER_STASH_GRADIENT,
        .from = seat_member_of(seat, forward ? SEAT_BEFORE : SEAT_AFTER, in->peer),
        .micro = msg->micro,
        .row_first = msg->row_first,
        .rows = msg->rows,
    };
    if (!self->open || message.from == UINT32_MAX || msg->epoch != seat->epoch ||
        blob_size(in->blob) != (taken ? 0 : msg->rows * seat->boundary_size)) {
        member_refuse(&self->member, in, out, "lease %" PRIu64 " is not for this stage",
                      msg->attempt);
        return;
    }
    lease_t *lease = worker_lease_find(self, msg->attempt);
    lease = lease ? lease : worker_lease_early(self, in, out);
    if (!lease) {
        return;
    }
    if (lease->state >= LEASE_PUSHING || (!forward && taken != lease->evaluation) ||
        !lease_arrive(lease, seat, &message)) {
        step_note(out, STEP_DEBUG, "%s %" PRIu32 " of lease %" PRIu64 " dropped: not waited for",
                  wire_kind_name(msg->kind), msg->micro, msg->attempt);
        return;
    }
    worker_progress(self, in->now);
    if (taken) {
        return;
    }
    const step_job_t job = {
        .kind = WORKER_JOB_STASH,
        .attempt = msg->attempt,
        .micro = msg->micro,
        .part = message.stash,
        .row_first = msg->row_first,
        .rows = msg->rows,
        .blob = in->blob,
    };
    step_run(out, &job);
}

// --- Entry point

void worker_run_message(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const bool lead = in->peer == member_lead(&self->member);
    switch (in->msg.kind) {
    case WIRE_GRANT:
    case WIRE_OUTCOME:
        if (!lead) {
            break;
        }
        (in->msg.kind == WIRE_GRANT ? on_grant : on_outcome)(self, in, out);
        return;
    case WIRE_CLOSED:
        on_closed(self, in, out);
        return;
    case WIRE_VALUE:
        on_value(self, in, out);
        return;
    case WIRE_NO_VALUE:
        on_no_value(self, in, out);
        return;
    case WIRE_ACK:
        on_ack(self, in, out);
        return;
    case WIRE_ACTIVATION:
    case WIRE_GRADIENT:
    case WIRE_TAKEN:
        on_neighbour(self, in, out);
        return;
    case WIRE_PULL:
    case WIRE_PUSH:
        if (worker_patch_message(self, in, out)) {
            return;
        }
        break;
    default:
        break;
    }
    member_refuse(&self->member, in, out, "not for a worker");
}
