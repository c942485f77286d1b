// worker_patch - the members of a stage among each other: one of them pulls and passes on, all add
// their gradients, and it pushes the sum.
//
// The first member of the plan speaks with the shards. It keeps the newest weights for training of
// each block, so that a member that is behind need not be waited for, and one that is ahead waits
// for them here. It adds up gradients in the order of members, whenever they came, so that the sum
// has the same bits each time. Evaluations want an exact version: for those each member pulls from
// the shards.

#include "worker/worker_state.h"

#include <inttypes.h>
#include <stdlib.h>

void worker_patch_clear(worker_fsm_t *self)
{
    for (uint32_t place = 0; self->shares && place < self->seat.blocks_count; place++) {
        blob_release(&self->shares[place].value);
        free(self->shares[place].wanted);
    }
    free(self->shares);
    self->shares = NULL;
}

static worker_share_t *share_of(worker_fsm_t *self, uint32_t place)
{
    const seat_t *const seat = &self->seat;
    if (!self->shares) {
        self->shares = hx_new(seat->blocks_count, sizeof *self->shares);
        for (uint32_t at = 0; at < seat->blocks_count; at++) {
            self->shares[at].wanted =
                hx_new(seat->patches[SEAT_OWN].members, sizeof *self->shares[at].wanted);
        }
    }
    return &self->shares[place];
}

// --- Weights

static void serve(worker_fsm_t *self, uint32_t place, step_out_t *out)
{
    const seat_t *const seat = &self->seat;
    worker_share_t *const share = share_of(self, place);
    for (uint32_t member = 1; share->value && member < seat->patches[SEAT_OWN].members; member++) {
        if (share->wanted[member] > 0 && share->wanted[member] - 1 <= share->version) {
            const wire_msg_t msg = {
                .kind = WIRE_VALUE,
                .block = seat->blocks[place].block,
                .version = share->version,
            };
            step_send(out, seat->patches[SEAT_OWN].nodes[member], &msg, share->value);
            share->wanted[member] = 0;
        }
    }
}

void worker_patch_value(worker_fsm_t *self, uint32_t place, const step_in_t *in, step_out_t *out)
{
    if (!seat_is_shared(&self->seat) || !seat_is_head(&self->seat)) {
        return;
    }
    worker_share_t *const share = share_of(self, place);
    if (!share->value || in->msg.version >= share->version) {
        blob_release(&share->value);
        share->value = blob_retain(in->blob);
        share->version = in->msg.version;
    }
    serve(self, place, out);
}

static void on_pull(worker_fsm_t *self, uint32_t place, uint32_t member, const step_in_t *in,
                    step_out_t *out)
{
    if (in->msg.flags != 0 || in->msg.part != 0 || in->msg.version == UINT64_MAX) {
        member_refuse(&self->member, in, out, "a member gets weights for training only");
        return;
    }
    share_of(self, place)->wanted[member] = in->msg.version + 1;
    serve(self, place, out);
}

// --- Gradients

static void stash(uint64_t attempt, uint32_t block, uint32_t member, blob_t *blob, step_out_t *out)
{
    const step_job_t job = {
        .kind = WORKER_JOB_STASH,
        .part = WORKER_STASH_MEMBER,
        .attempt = attempt,
        .index = block,
        .micro = member,
        .blob = blob,
    };
    step_run(out, &job);
}

static void sum_if_whole(worker_fsm_t *self, lease_t *lease, uint32_t place, step_out_t *out)
{
    if (lease->blocks[place].summing || !lease_parts_whole(lease, &self->seat, place)) {
        return;
    }
    const step_job_t job = {
        .kind = WORKER_JOB_SUM,
        .attempt = lease->attempt,
        .index = self->seat.blocks[place].block,
    };
    step_run(out, &job);
    lease->blocks[place].summing = true;
}

// Whether members other than the first have work in this lease.
static bool others_compute(const worker_fsm_t *self, const lease_t *lease)
{
    for (uint32_t member = 1; member < self->seat.patches[SEAT_OWN].members; member++) {
        if (lease_has_part(lease, member)) {
            return true;
        }
    }
    return false;
}

bool worker_patch_gradient(worker_fsm_t *self, lease_t *lease, uint32_t place, const step_in_t *in,
                           step_out_t *out)
{
    if (!seat_is_head(&self->seat) || !others_compute(self, lease)) {
        return false;
    }
    stash(lease->attempt, in->job.index, 0, in->blob, out);
    lease_part_came(lease, &self->seat, place, 0);
    sum_if_whole(self, lease, place, out);
    return true;
}

static void on_push(worker_fsm_t *self, uint32_t place, uint32_t member, const step_in_t *in,
                    step_out_t *out)
{
    const seat_t *const seat = &self->seat;
    const wire_msg_t *const msg = &in->msg;
    if (msg->part != member || msg->parts != seat->patches[SEAT_OWN].members ||
        blob_size(in->blob) != seat->blocks[place].size) {
        member_refuse(&self->member, in, out,
                      "part %" PRIu32 " of %" PRIu32 " with %zu bytes of block %" PRIu32
                      " is not this member's",
                      msg->part, msg->parts, blob_size(in->blob), msg->block);
        return;
    }
    lease_t *lease = worker_lease_find(self, msg->attempt);
    lease = lease ? lease : worker_lease_early(self, in, out);
    if (!lease) {
        return;
    }
    const bool granted = lease->state != LEASE_EARLY;
    if ((granted && (lease->evaluation || !lease_has_part(lease, member))) ||
        !lease_part_came(lease, seat, place, member)) {
        step_note(out, STEP_DEBUG, "part %" PRIu32 " of block %" PRIu32 " dropped: not waited for",
                  member, msg->block);
        return;
    }
    stash(msg->attempt, msg->block, member, in->blob, out);
    const wire_msg_t ack = {
        .kind = WIRE_ACK, .attempt = msg->attempt, .block = msg->block, .part = msg->part};
    step_send(out, in->peer, &ack, NULL);
    if (granted) {
        sum_if_whole(self, lease, place, out);
    }
    worker_progress(self, in->now);
}

void worker_patch_granted(worker_fsm_t *self, lease_t *lease, step_out_t *out)
{
    if (lease->evaluation || !lease->came) {
        return;
    }
    for (uint32_t place = 0; place < self->seat.blocks_count; place++) {
        sum_if_whole(self, lease, place, out);
    }
}

// --- Entry point

bool worker_patch_message(worker_fsm_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t member = seat_member_of(&self->seat, SEAT_OWN, in->peer);
    if (!self->open || !seat_is_head(&self->seat) || member == UINT32_MAX || member == 0) {
        return false;
    }
    const uint32_t place = worker_block_place(self, in->msg.block);
    if (place == UINT32_MAX) {
        member_refuse(&self->member, in, out, "block %" PRIu32 " is not of this stage",
                      in->msg.block);
    } else if (in->msg.kind == WIRE_PULL) {
        on_pull(self, place, member, in, out);
    } else {
        on_push(self, place, member, in, out);
    }
    return true;
}
