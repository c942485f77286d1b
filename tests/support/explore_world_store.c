// explore_world_store - jobs of the shards on sets of rows, the journal, the keeper.

#include "tests/support/explore_world_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint32_t counter_of(uint64_t attempt)
{
    const uint64_t counter = attempt & ((UINT64_C(1) << LEAD_ATTEMPT_SHIFT) - 1);
    HX_ASSERT(counter < ATTEMPTS_MAX);
    return (uint32_t)counter;
}

static bool own_block(const explore_world_t *self, uint32_t shard, uint32_t block)
{
    return self->plan.group_shard[self->blocks.blocks[block].group] == shard;
}

// All parts that this shard keeps of a block.
static uint16_t whole_block(const explore_world_t *self, uint32_t block)
{
    const bool two = block == 0 && self->conf.base.stages > 1;
    return (uint16_t)(PART_BIT(block, 0) | (two ? PART_BIT(block, 1) : 0));
}

static blob_t *sum(explore_world_t *self, uint32_t shard, const step_job_t *job)
{
    double squares[BLOCKS_MAX];
    uint32_t count = 0;
    prepare_t prepare = {0};
    const hx_err_t err = payload_prepare_decode(job->blob, &prepare);
    HX_ASSERT(err == HX_OK);
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        if (!own_block(self, shard, block)) {
            continue;
        }
        squares[count++] = 0.1;
        for (uint32_t at = 0; at < prepare.members_count; at++) {
            const uint32_t counter = counter_of(prepare.members[at].attempt);
            const uint16_t wanted = whole_block(self, block);
            if ((self->stores[shard].held[counter] & wanted) != wanted) {
                explore_world_break(self, "a sum over a part that is not held");
            }
            if (self->stores[shard].stained[counter] & wanted) {
                explore_world_break(self, "a sum over what is not finite");
            }
        }
    }
    prepare_destroy(&prepare);
    return payload_doubles_encode(squares, count);
}

static void step_block(explore_world_t *self, uint32_t shard, uint32_t block,
                       const record_t *record)
{
    store_t *const store = &self->stores[shard];
    const uint16_t wanted = whole_block(self, block);
    if (store->version[block] + 1 != record->version) {
        explore_world_break(self, "a step to version %" PRIu64 " of a block at %" PRIu64,
                            record->version, store->version[block]);
    }
    for (uint32_t at = 0; at < record->members_count; at++) {
        const round_member_t *const member = &record->members[at];
        const uint64_t rows = explore_world_rows(member->row_first, member->rows);
        if ((store->held[counter_of(member->attempt)] & wanted) != wanted) {
            explore_world_break(self, "a contribution is lost: rows from %" PRIu64,
                                member->row_first);
        }
        if (store->rows[block] & rows) {
            explore_world_break(self, "a contribution is applied twice: rows from %" PRIu64,
                                member->row_first);
        }
        store->rows[block] |= rows;
    }
    store->version[block] = record->version;
    if (record->version < COMMITS_MAX && store->rows[block] != self->at_version[record->version]) {
        explore_world_break(self, "version %" PRIu64 " of a block is made of other rows",
                            record->version);
    }
}

static void apply(explore_world_t *self, uint32_t shard, const step_job_t *job)
{
    store_t *const store = &self->stores[shard];
    record_t record = {0};
    const hx_err_t err = payload_record_decode(job->blob, &record);
    HX_ASSERT(err == HX_OK);
    if (record.version > self->journal_version) {
        explore_world_break(self, "a step that is not in the journal");
    }
    if (job->kind == SHARD_JOB_STEP) {
        step_block(self, shard, job->index, &record);
    } else {
        for (uint32_t at = 0; at < record.members_count; at++) {
            store->held[counter_of(record.members[at].attempt)] = 0;
        }
        store->pinned = record.snapshot ? record.version : store->pinned;
    }
    record_destroy(&record);
}

static void shard_job(explore_world_t *self, uint32_t shard, step_in_t *in, bool bad)
{
    store_t *const store = &self->stores[shard];
    step_job_t *const job = &in->job;
    switch ((shard_job_t)job->kind) {
    case SHARD_JOB_HOLD: {
        const uint16_t bit = (uint16_t)PART_BIT(job->index, job->part);
        store->held[counter_of(job->attempt)] |= bit;
        store->stained[counter_of(job->attempt)] |= bad ? bit : 0;
        self->bad_seen = self->bad_seen || bad;
        job->flags = bad ? SHARD_HOLD_NONFINITE : 0;
        break;
    }
    case SHARD_JOB_DROP:
        store->held[counter_of(job->attempt)] = 0;
        break;
    case SHARD_JOB_SUM:
        in->blob = sum(self, shard, job);
        break;
    case SHARD_JOB_STEP:
    case SHARD_JOB_APPLY:
        apply(self, shard, job);
        break;
    case SHARD_JOB_UNPIN:
        store->pinned = UINT64_MAX;
        break;
    case SHARD_JOB_READ:
        explore_world_break(self, "a shard reads what nobody asked for");
        break;
    case SHARD_JOB_INIT:
    case SHARD_JOB_LOAD:
        break;
    }
}

static void lead_job(explore_world_t *self, step_in_t *in)
{
    if (in->job.kind == LEAD_JOB_OPEN) {
        const bool above = self->journal_version > in->job.version;
        in->job.attempt = HX_MAX(in->job.attempt, self->journal_history + (above ? 1 : 0));
        return;
    }
    record_t record = {0};
    const hx_err_t err = payload_record_decode(in->job.blob, &record);
    HX_ASSERT(err == HX_OK);
    if (record.history < self->journal_history ||
        (record.history == self->journal_history && record.version < self->journal_version)) {
        explore_world_break(self, "the journal goes back to version %" PRIu64, record.version);
    }
    self->journal_history = record.history;
    self->journal_version = record.version;
    record_destroy(&record);
}

void explore_world_job(explore_world_t *self, uint32_t node, bool bad)
{
    jobs_t *const jobs = &self->jobs[node];
    step_in_t in = {.kind = STEP_JOB, .job = jobs->list[0]};
    jobs->count--;
    memmove(jobs->list, jobs->list + 1, jobs->count * sizeof *jobs->list);
    if (node == NODE_LEAD) {
        lead_job(self, &in);
    } else {
        shard_job(self, node - NODE_SHARD, &in, bad);
    }
    blob_release(&in.job.blob);
    explore_world_step(self, node, &in);
    blob_release(&in.blob);
}

void explore_world_keeper(explore_world_t *self, const wire_msg_t *msg, blob_t *blob, uint32_t from)
{
    if (msg->kind == WIRE_PULL) {
        const wire_msg_t value = {
            .kind = WIRE_VALUE, .block = msg->block, .version = msg->version, .part = msg->part};
        blob_t *bytes = blob_virtual(self->blocks.blocks[msg->block].count * sizeof(float));
        explore_world_send(self, NODE_KEEPER, from, &value, bytes);
        blob_release(&bytes);
    } else if (msg->kind == WIRE_SAVE) {
        // After the last commit the newest version stays by itself.
        const bool ended = self->last.final || self->stop_asked || lead_view(self->lead).live == 0;
        const bool stays = ended && self->last.version == msg->version;
        // The second time it may have been saved already.
        const bool again = self->saved && self->saved_version >= msg->version;
        for (uint32_t at = 0; at < self->conf.base.shards; at++) {
            if (self->stores[at].pinned != msg->version && !stays && !again) {
                explore_world_break(self, "version %" PRIu64 " is saved and not pinned",
                                    msg->version);
            }
        }
        if (!again) {
            blob_release(&self->saved);
            self->saved = blob_retain(blob);
            self->saved_version = msg->version;
        }
        const wire_msg_t saved = {.kind = WIRE_SAVED, .version = msg->version, .flags = 1};
        explore_world_send(self, NODE_KEEPER, NODE_LEAD, &saved, NULL);
    }
}
