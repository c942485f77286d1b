// lead_world_actors - shards, keeper and workers: as good as their roles need be for a lead to
// lead.

#include "tests/support/lead_world_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

// ---- shards and keeper

double lead_world_square(uint32_t block, uint64_t round)
{
    return (round % 2 == 0 ? 1e-4 : 1) / (3.0 + block);
}

double lead_world_cosine(uint64_t attempt)
{
    return (double)(attempt * 7 % 21) / 10 - 1;
}

static void vote(lead_world_t *self, uint32_t shard, const wire_msg_t *prepare, const blob_t *blob)
{
    prepare_t members = {0};
    shard_t *const own = &self->shards[shard];
    if (payload_prepare_decode(blob, &members) != HX_OK) {
        lead_world_broken(self, "a PREPARE cannot be read");
        return;
    }
    if (prepare->version != own->version + 1) {
        lead_world_broken(self, "PREPARE(%" PRIu64 ") while a shard is at %" PRIu64,
                          prepare->version, own->version);
    }
    uint64_t refused = 0;
    for (uint32_t at = 0; at < members.members_count; at++) {
        if (lead_world_is_bad(self, &members.members[at])) {
            refused = members.members[at].attempt;
        }
    }
    // A shard that voted once says the same again.
    if (own->round < prepare->round && lead_world_chance(self, self->conf.refuse)) {
        refused = members.members[hx_rng_below(&self->rng, members.members_count)].attempt;
    }
    own->round = prepare->round;
    double squares[8192];
    uint32_t count = 0;
    for (uint32_t at = 0; at < self->blocks.count; at++) {
        if (self->plan.group_shard[self->blocks.blocks[at].group] == shard) {
            squares[count++] = lead_world_square(at, prepare->round);
        }
    }
    for (uint32_t at = 0; members.agreement && at < members.members_count; at++) {
        squares[count] = 4;  // |m|^2 = 4, |g|^2 = 9 on every shard.
        squares[count + 1 + 2 * at] = 6 * lead_world_cosine(members.members[at].attempt);
        squares[count + 2 + 2 * at] = 9;
    }
    count += members.agreement ? 1 + 2 * members.members_count : 0;
    prepare_destroy(&members);
    blob_t *answer = refused != 0 ? payload_attempts_encode(&refused, 1)
                                  : payload_doubles_encode(squares, count);
    const wire_msg_t msg = {.kind = WIRE_VOTE,
                            .incarnation = prepare->incarnation,
                            .round = prepare->round,
                            .version = prepare->version,
                            .flags = refused == 0};
    lead_world_say(self, WORLD_SHARD + shard, &msg, answer);
    blob_release(&answer);
}

static void shard_hears(lead_world_t *self, uint32_t shard, const step_in_t *in)
{
    shard_t *const own = &self->shards[shard];
    wire_msg_t msg = {.incarnation = in->msg.incarnation, .version = own->version};
    if (in->msg.kind == WIRE_PROMISE) {
        msg.kind = WIRE_PROMISED;
        lead_world_say(self, WORLD_SHARD + shard, &msg, NULL);
    } else if (in->msg.kind == WIRE_PREPARE) {
        vote(self, shard, &in->msg, in->blob);
    } else if (in->msg.kind == WIRE_COMMIT) {
        if (in->msg.version != own->version && in->msg.version != own->version + 1) {
            lead_world_broken(self, "COMMIT(%" PRIu64 ") at a shard of version %" PRIu64,
                              in->msg.version, own->version);
        }
        own->version = in->msg.version;
        msg.kind = WIRE_APPLIED;
        msg.version = own->version;
        lead_world_say(self, WORLD_SHARD + shard, &msg, NULL);
    } else if (in->msg.kind == WIRE_UNPIN) {
        self->report.unpins += shard == 0;
    }
}

static void keeper_hears(lead_world_t *self, const step_in_t *in)
{
    const bool fails = self->report.saves < self->conf.saves_failing;
    wire_msg_t msg = {.kind = WIRE_SAVED, .version = in->msg.version, .flags = !fails};
    if (in->msg.kind == WIRE_SAVE && self->report.saves_lost < self->conf.saves_lost) {
        self->report.saves_lost++;
    } else if (in->msg.kind == WIRE_SAVE) {
        snprintf(msg.text, sizeof msg.text, "%s", fails ? "disk full" : "");
        self->report.saves++;
        lead_world_deliver(self, WORLD_KEEPER, &msg, NULL);
    }
}

// ---- workers

static work_t *work_of(worker_t *worker, uint64_t attempt)
{
    for (uint32_t at = 0; at < QUEUE_MAX; at++) {
        if (worker->works[at].attempt == attempt) {
            return &worker->works[at];
        }
    }
    return NULL;
}

bool lead_world_hung(const lead_world_t *self, uint32_t pipeline)
{
    const hx_time_t at = self->conf.hangs_at[pipeline];
    return at > 0 && self->now >= at;
}

static void worker_granted(lead_world_t *self, uint32_t index, const wire_msg_t *grant)
{
    worker_t *const worker = &self->workers[index];
    const uint32_t pipeline = index / self->conf.stages;
    work_t *const work = work_of(worker, 0);
    HX_ASSERT(work);
    *work = (work_t){.attempt = grant->attempt,
                     .row_first = grant->row_first,
                     .rows = grant->rows,
                     .base = grant->version,
                     .eval = grant->flags & 1};
    if (lead_world_hung(self, pipeline)) {
        return;
    }
    const double stretch = 1 + self->conf.jitter * hx_rng_unit(&self->rng);
    const hx_time_t took = (hx_time_t)((double)self->conf.row_time[pipeline] * grant->rows *
                                       (work->eval ? 0.3 : 1) * stretch);
    worker->free_at = HX_MAX(worker->free_at, self->now) + took;
    lead_world_push(self, (event_t){.kind = AGAIN_READY,
                                    .node = WORLD_WORKER + index,
                                    .at = worker->free_at,
                                    .attempt = work->attempt});
}

// Says READY, and again until it is told that the lease is over.
void lead_world_ready(lead_world_t *self, uint32_t index, uint64_t attempt)
{
    worker_t *const worker = &self->workers[index];
    work_t *const work = work_of(worker, attempt);
    if (worker->dead || !work) {
        return;
    }
    if (!work->ready) {
        uint64_t newest = self->shards[0].version;
        for (uint32_t at = 0; at < self->conf.shards; at++) {
            newest = HX_MIN(newest, self->shards[at].version);
        }
        const bool last = index % self->conf.stages + 1 == self->conf.stages;
        // In a world without chance it used what it was told to start from.
        const uint64_t spread = self->conf.jitter > 0 ? newest - work->base : 0;
        const uint64_t targets = self->conf.sparse ? 1 + work->row_first % 3 : WORLD_CONTEXT;
        work->ready = true;
        work->word = (wire_msg_t){
            .kind = WIRE_READY,
            .attempt = attempt,
            .epoch = 1,
            .version = work->eval ? work->base : work->base + hx_rng_below(&self->rng, spread + 1),
            .tokens = last ? work->rows * targets : 0,
            .loss = last ? 3.0 * (double)(work->rows * targets) : 0,
        };
        if (last && work->eval && self->conf.blind) {
            work->word.loss = (double)NAN;
        }
        lead_world_note_ready(self, work->eval ? ROWS_MAX : work->row_first, &work->word);
    }
    lead_world_say(self, WORLD_WORKER + index, &work->word, NULL);
    lead_world_push(self, (event_t){.kind = AGAIN_READY,
                                    .node = WORLD_WORKER + index,
                                    .at = self->now + AGAIN,
                                    .attempt = attempt});
}

static void worker_hears(lead_world_t *self, uint32_t index, const step_in_t *in)
{
    worker_t *const worker = &self->workers[index];
    if (worker->dead) {
        return;
    }
    if (in->msg.kind == WIRE_GRANT) {
        worker_granted(self, index, &in->msg);
    } else if (in->msg.kind == WIRE_OUTCOME || in->msg.kind == WIRE_CLOSED) {
        work_t *const work = work_of(worker, in->msg.attempt);
        if (work && in->msg.attempt != 0) {
            *work = (work_t){0};
        }
    }
}

void lead_world_die(lead_world_t *self, uint32_t index)
{
    self->workers[index].dead = true;
    event_t event = {.kind = TO_LEAD, .node = WORLD_WORKER + index, .at = self->now + HX_SEC(3)};
    event.in = (step_in_t){.kind = STEP_LOST, .peer = WORLD_WORKER + index};
    lead_world_push(self, event);
}

void lead_world_hear(lead_world_t *self, node_id_t actor, const step_in_t *in)
{
    if (actor >= WORLD_WORKER) {
        worker_hears(self, (uint32_t)(actor - WORLD_WORKER), in);
    } else if (actor >= WORLD_SHARD) {
        shard_hears(self, (uint32_t)(actor - WORLD_SHARD), in);
    } else {
        keeper_hears(self, in);
    }
}
