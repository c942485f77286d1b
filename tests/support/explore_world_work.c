// explore_world_work - workers: they compute their leases in order, push, and say so until told.

#include "tests/support/explore_world_state.h"

#include <string.h>

static bool whole(const explore_world_t *self, uint32_t pipeline)
{
    for (uint32_t stage = 0; stage < self->conf.base.stages; stage++) {
        if (self->workers[pipeline * self->conf.base.stages + stage].dead) {
            return false;
        }
    }
    return true;
}

// Every block is the business of one stage, but for the first: with two stages it has two parts.
static uint16_t parts_of(const explore_world_t *self, uint32_t stage)
{
    const uint32_t stages = self->conf.base.stages;
    uint16_t parts = 0;
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        if (block == 0 && stages > 1) {
            parts |= (uint16_t)(stage < 2 ? PART_BIT(block, stage) : 0);
        } else if (block % stages == stage) {
            parts |= (uint16_t)PART_BIT(block, 0);
        }
    }
    return parts;
}

uint64_t explore_world_newest(const explore_world_t *self)
{
    uint64_t newest = UINT64_MAX;
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        const uint32_t shard = self->plan.group_shard[self->blocks.blocks[block].group];
        newest = HX_MIN(newest, self->stores[shard].version[block]);
    }
    return newest;
}

bool explore_world_may_compute(const explore_world_t *self, uint32_t worker)
{
    const worker_t *const own = &self->workers[worker];
    return !own->dead && own->works_count > 0 && !own->works[own->works_count - 1].computed &&
           whole(self, worker / self->conf.base.stages);
}

static void push(explore_world_t *self, uint32_t worker, const work_t *work)
{
    for (uint32_t block = 0; block < self->blocks.count; block++) {
        const uint32_t shard = self->plan.group_shard[self->blocks.blocks[block].group];
        for (uint32_t part = 0; part < 2; part++) {
            if (!(work->wanted & ~work->acked & PART_BIT(block, part))) {
                continue;
            }
            const wire_msg_t msg = {.kind = WIRE_PUSH,
                                    .attempt = work->attempt,
                                    .block = block,
                                    .part = part,
                                    .parts = block == 0 && self->conf.base.stages > 1 ? 2 : 1};
            blob_t *blob = blob_virtual(self->blocks.blocks[block].count * sizeof(float));
            explore_world_send(self, NODE_WORKER + worker, NODE_SHARD + shard, &msg, blob);
            blob_release(&blob);
        }
    }
}

static void ready(explore_world_t *self, uint32_t worker, const work_t *work)
{
    const bool last = worker % self->conf.base.stages + 1 == self->conf.base.stages;
    const uint64_t tokens = last ? (uint64_t)work->rows * WORLD_CONTEXT : 0;
    const wire_msg_t msg = {.kind = WIRE_READY,
                            .attempt = work->attempt,
                            .epoch = self->plan.epoch,
                            .version = work->used,
                            .tokens = tokens,
                            .loss = 3.0 * (double)tokens};
    explore_world_send(self, NODE_WORKER + worker, NODE_LEAD, &msg, NULL);
}

void explore_world_compute(explore_world_t *self, uint32_t worker, bool base)
{
    worker_t *const own = &self->workers[worker];
    uint32_t at = 0;
    while (own->works[at].computed) {
        at++;
    }
    work_t *const work = &own->works[at];
    work->computed = true;
    work->used = base ? work->base : explore_world_newest(self);
    push(self, worker, work);
}

static void forget(worker_t *worker, work_t *work)
{
    const uint32_t at = (uint32_t)(work - worker->works);
    worker->works_count--;
    memmove(work, work + 1, (worker->works_count - at) * sizeof *work);
}

static void granted(explore_world_t *self, uint32_t worker, const wire_msg_t *grant)
{
    worker_t *const own = &self->workers[worker];
    if (own->works_count > 0 && own->works[own->works_count - 1].attempt >= grant->attempt) {
        return;  // Said twice.
    }
    HX_ASSERT(own->works_count < WORKS_MAX);
    own->works[own->works_count++] = (work_t){
        .attempt = grant->attempt,
        .row_first = grant->row_first,
        .rows = grant->rows,
        .base = grant->version,
        .wanted = parts_of(self, worker % self->conf.base.stages),
    };
}

void explore_world_hear(explore_world_t *self, uint32_t worker, const letter_t *letter)
{
    worker_t *const own = &self->workers[worker];
    const wire_msg_t *const msg = &letter->msg;
    if (own->dead) {
        return;
    }
    if (msg->kind == WIRE_GRANT) {
        granted(self, worker, msg);
        return;
    }
    for (uint32_t at = 0; at < own->works_count; at++) {
        work_t *const work = &own->works[at];
        if (work->attempt != msg->attempt) {
            continue;
        }
        if (msg->kind == WIRE_OUTCOME || msg->kind == WIRE_CLOSED) {
            forget(own, work);
        } else if (msg->kind == WIRE_ACK && work->acked != work->wanted) {
            work->acked |= (uint16_t)PART_BIT(msg->block, msg->part);
            if (work->acked == work->wanted) {
                ready(self, worker, work);
            }
        }
        return;
    }
}

void explore_world_ask_again(explore_world_t *self)
{
    for (uint32_t at = 0; at < explore_world_workers(self); at++) {
        const worker_t *const own = &self->workers[at];
        for (uint32_t each = 0; each < own->works_count; each++) {
            const work_t *const work = &own->works[each];
            bool under_way = false;
            for (uint32_t letter = 0; letter < self->letters_count; letter++) {
                const letter_t *const other = self->letters[letter];
                under_way = under_way ||
                            ((other->from == NODE_WORKER + at || other->to == NODE_WORKER + at) &&
                             !other->lost && other->msg.attempt == work->attempt);
            }
            if (!work->computed || under_way) {
                continue;
            }
            if (work->acked == work->wanted) {
                ready(self, at, work);
            } else {
                push(self, at, work);
            }
        }
    }
}
