// explore_world_digest - a hash of everything that decides what can still happen.
//
// It looks into the roles, since two states are the same only if the roles' own memories are. What
// serves reports alone (totals, measured times, words for the log) is left out; times count from
// now.

#include "server/lead_internal.h"
#include "server/ps_shard_state.h"
#include "tests/support/explore_world_state.h"

#include <stdlib.h>

#define NOTHING UINT64_C(0x9e3779b97f4a7c15)

uint64_t explore_world_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 32;
    hash *= UINT64_C(0xc4ceb9fe1a85ec53);
    return hash ^ hash >> 29;
}

bool explore_world_leased(const explore_world_t *self, uint64_t attempt)
{
    return lead_lease_find(self->lead, attempt) != NULL;
}

static uint64_t mix_members(uint64_t hash, const round_member_t *members, uint32_t count)
{
    for (uint32_t at = 0; at < count; at++) {
        hash = explore_world_mix(hash, members[at].attempt);
        hash = explore_world_mix(hash, members[at].row_first << 32 | members[at].lag);
    }
    return explore_world_mix(hash, count);
}

uint64_t explore_world_letter_hash(const wire_msg_t *msg, const blob_t *blob)
{
    const uint64_t values[] = {msg->kind,  msg->attempt,     msg->version, msg->row_first,
                               msg->rows,  msg->incarnation, msg->round,   msg->floor,
                               msg->count, msg->flags,       msg->block,   msg->part,
                               msg->tokens};
    uint64_t hash = NOTHING;
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        hash = explore_world_mix(hash, values[at]);
    }
    prepare_t prepare = {0};
    record_t record = {0};
    if (msg->kind == WIRE_PREPARE && payload_prepare_decode(blob, &prepare) == HX_OK) {
        hash = mix_members(hash, prepare.members, prepare.members_count);
        for (uint32_t at = 0; at < prepare.closed_count; at++) {
            hash = explore_world_mix(hash, prepare.closed[at]);
        }
    } else if (msg->kind == WIRE_COMMIT && payload_record_decode(blob, &record) == HX_OK) {
        hash = mix_members(hash, record.members, record.members_count);
        hash = explore_world_mix(hash, (uint64_t)record.final << 1 | record.snapshot);
        hash = explore_world_mix(hash, record.floor);
    } else if (msg->kind == WIRE_VOTE && !(msg->flags & 1)) {
        uint64_t *attempts = NULL;
        uint32_t count = 0;
        if (payload_attempts_decode(blob, &attempts, &count) == HX_OK) {
            for (uint32_t at = 0; at < count; at++) {
                hash = explore_world_mix(hash, attempts[at]);
            }
        }
        free(attempts);
    }
    prepare_destroy(&prepare);
    record_destroy(&record);
    return hash;
}

static uint64_t ago(const explore_world_t *self, hx_time_t at)
{
    return at == HX_TIME_NEVER ? UINT64_MAX : (uint64_t)(self->now - at);
}

static uint64_t lease_hash(const explore_world_t *self, uint64_t hash, const lease_t *lease)
{
    uint64_t order = 0;
    for (uint32_t at = 0; at < self->lead->leases_count; at++) {
        order += self->lead->leases[at].order < lease->order;
    }
    uint64_t ready = 0;
    for (uint32_t at = 0; at < self->conf.base.stages; at++) {
        ready |= (uint64_t)lease->ready[at] << at;
    }
    const bool open = lease->state == LEASE_OPEN;
    const uint64_t values[] = {
        lease->attempt,
        lease->pipeline,
        lease->state,
        lease->rows.first,
        lease->rows.end,
        lease->base,
        lease->oldest,
        lease->tokens,
        ready,
        open ? 0 : order,
        open ? ago(self, lease->started_at) : 0,
        self->conf.base.ssaw.grace > 0 && !open ? ago(self, lease->announced_at) : 0};
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        hash = explore_world_mix(hash, values[at]);
    }
    return hash;
}

static uint64_t round_hash(const explore_world_t *self, uint64_t hash)
{
    const lead_round_t *const round = &self->lead->round;
    hash = explore_world_mix(hash, round->state);
    hash = explore_world_mix(hash, round->number);
    if (round->state == ROUND_NONE) {
        return hash;
    }
    hash = mix_members(hash, round->prepare.members, round->prepare.members_count);
    hash = mix_members(hash, round->record.members, round->record.members_count);
    hash = explore_world_mix(hash, (uint64_t)round->record.final << 1 | round->record.snapshot);
    for (uint32_t at = 0; at < self->conf.base.shards; at++) {
        hash = explore_world_mix(hash, self->lead->shards[at].answered);
    }
    return explore_world_mix(hash, ago(self, round->resend_at));
}

static uint64_t lead_hash(const explore_world_t *self, uint64_t hash)
{
    const lead_t *const lead = self->lead;
    const lead_pin_t *const pin = &lead->pin;
    const uint64_t values[] = {lead->phase,
                               lead->version,
                               lead->history,
                               lead->incarnation,
                               lead->counter,
                               lead->tokens,
                               lead->cursor.low,
                               lead->cursor.next,
                               lead->closed_count,
                               lead->nonfinite_run,
                               lead->saved_version,
                               lead->save_due,
                               lead->ending,
                               lead->aborting,
                               lead->final_pinned,
                               lead->final_asked,
                               pin->active,
                               pin->pinned,
                               pin->saving,
                               pin->version,
                               pin->saving ? ago(self, pin->resend_at) : 0,
                               (uint64_t)lead->status,
                               ago(self, lead->stop_at)};
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        hash = explore_world_mix(hash, values[at]);
    }
    for (uint32_t at = 0; at < lead->cursor.spans_count; at++) {
        const cursor_span_t *const span = &lead->cursor.spans[at];
        hash = explore_world_mix(hash, span->first << 32 | span->end);
        hash = explore_world_mix(hash, (uint64_t)span->state << 32 | span->strikes);
    }
    for (uint32_t at = 0; at < lead->closed_count; at++) {
        hash = explore_world_mix(hash, lead->closed[at]);
    }
    for (uint32_t at = 0; at < lead->plan.pipelines_count; at++) {
        hash = explore_world_mix(hash, lead->pipelines[at].clock << 1 | lead->pipelines[at].live);
    }
    for (uint32_t at = 0; at < lead->seats_count; at++) {
        hash = explore_world_mix(hash, lead->seats[at].lost);
    }
    for (uint32_t at = 0; at < lead->leases_count; at++) {
        hash = lease_hash(self, hash, &lead->leases[at]);
    }
    return round_hash(self, hash);
}

static uint64_t shard_hash(const explore_world_t *self, uint32_t shard, uint64_t hash)
{
    const ps_shard_t *const role = self->shards[shard];
    const ps_round_t *const round = &role->round;
    const uint64_t values[] = {role->version,
                               role->pinned,
                               role->promised,
                               role->applying,
                               role->steps_asked,
                               role->steps_done,
                               role->owes_promise,
                               round->state,
                               round->incarnation,
                               round->number,
                               round->version,
                               round->serial,
                               round->vote.flags,
                               ps_holds_floor(role->holds),
                               ps_holds_bytes(role->holds)};
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        hash = explore_world_mix(hash, values[at]);
    }
    const store_t *const store = &self->stores[shard];
    for (uint64_t at = 1; at <= self->attempts; at++) {
        const uint64_t attempt = self->incarnation << LEAD_ATTEMPT_SHIFT | at;
        const uint64_t known = (uint64_t)ps_holds_over(role->holds, attempt) << 2 |
                               (uint64_t)ps_holds_complete(role->holds, attempt) << 1 |
                               ps_holds_finite(role->holds, attempt);
        hash = explore_world_mix(hash, known << 32 | (uint64_t)store->held[at] << 16 |
                                           store->stained[at]);
    }
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        hash = explore_world_mix(hash, store->version[block]);
        hash = explore_world_mix(hash, store->rows[block]);
    }
    return explore_world_mix(hash, store->pinned);
}

static uint64_t workers_hash(const explore_world_t *self, uint64_t hash)
{
    for (uint32_t at = 0; at < explore_world_workers(self); at++) {
        const worker_t *const worker = &self->workers[at];
        hash = explore_world_mix(hash, (uint64_t)worker->dead << 32 | worker->works_count);
        for (uint32_t each = 0; each < worker->works_count; each++) {
            const work_t *const work = &worker->works[each];
            hash = explore_world_mix(hash, work->attempt);
            hash = explore_world_mix(hash, work->computed ? work->used + 1 : 0);
            hash = explore_world_mix(hash, work->acked);
        }
    }
    return hash;
}

// Ways have no order between them, so neither have their letters here.
static uint64_t letters_hash(const explore_world_t *self)
{
    uint64_t sum = 0;
    uint32_t places[NODES_COUNT][NODES_COUNT] = {{0}};
    for (uint32_t at = 0; at < self->letters_count; at++) {
        const letter_t *const letter = self->letters[at];
        const uint32_t place = places[letter->from][letter->to]++;
        uint64_t hash = explore_world_mix(NOTHING, (uint64_t)letter->from << 32 | letter->to);
        hash = explore_world_mix(hash, (uint64_t)place << 2 | letter->lost << 1 | letter->again);
        sum += explore_world_mix(hash, letter->hash);
    }
    return sum;
}

uint64_t explore_world_digest(const explore_world_t *self)
{
    uint64_t hash = lead_hash(self, NOTHING);
    for (uint32_t at = 0; at < self->conf.base.shards; at++) {
        hash = shard_hash(self, at, hash);
    }
    hash = workers_hash(self, hash);
    hash = explore_world_mix(hash, letters_hash(self));
    for (uint32_t node = 0; node < NODE_KEEPER; node++) {
        const jobs_t *const jobs = &self->jobs[node];
        hash = explore_world_mix(hash, jobs->count);
        for (uint32_t at = 0; at < jobs->count; at++) {
            const step_job_t *const job = &jobs->list[at];
            hash = explore_world_mix(hash, (uint64_t)job->kind << 32 | job->index << 8 | job->part);
            hash = explore_world_mix(hash, job->attempt);
            hash = explore_world_mix(hash, job->version);
        }
    }
    for (uint32_t at = 0; at < EXPLORE_KINDS; at++) {
        hash = explore_world_mix(hash, self->budget[at]);
    }
    const uint64_t values[] = {self->misfortunes,
                               self->committed,
                               self->journal_history,
                               self->journal_version,
                               self->saved_version,
                               self->saved != NULL,
                               self->done,
                               self->restarts,
                               self->stop_asked,
                               self->bad_seen};
    for (size_t at = 0; at < HX_COUNT(values); at++) {
        hash = explore_world_mix(hash, values[at]);
    }
    return hash;
}
