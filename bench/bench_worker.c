// bench_worker - the workers' half of bench_round: see bench_round.h.

#include <inttypes.h>
#include <stdlib.h>

#include "bench/bench_pump.h"
#include "bench/bench_round.h"
#include "net/hash.h"

static blob_t *gradient_of(uint64_t count, uint32_t block)
{
    blob_t *const blob = blob_new(count * sizeof(float));
    float *const values = blob_edit(blob);
    for (uint64_t at = 0; at < count; at++) {  // Small, of both signs, not all alike.
        values[at] = 1e-6f * (float)(int32_t)((at * 7919 + block * 104729) % 2001) - 1e-3f;
    }
    return blob;
}

void bench_worker_init(bench_worker_t *self, const bench_worker_conf_t *conf)
{
    HX_ASSERT(conf->in_flight > 0);
    *self = (bench_worker_t){.conf = *conf};
    const member_conf_t member = bench_boss_member(BENCH_WORKER + conf->index, conf->model);
    member_init(&self->member, &member);
    self->gradients = hx_new(conf->blocks->count, sizeof *self->gradients);
    self->hashes = hx_new(conf->blocks->count, sizeof *self->hashes);
    for (uint32_t block = 0; block < conf->blocks->count; block++) {
        const uint64_t count = conf->blocks->blocks[block].count;
        self->gradients[block] =
            conf->virtual_bytes ? blob_virtual(count * sizeof(float)) : gradient_of(count, block);
        if (!conf->virtual_bytes) {  // As a worker does, where it makes a gradient.
            blob_t *const made = self->gradients[block];
            self->hashes[block] = hash_of(blob_data(made), blob_size(made));
        }
    }
}

void bench_worker_clear(bench_worker_t *self)
{
    for (uint32_t block = 0; block < self->conf.blocks->count; block++) {
        blob_release(&self->gradients[block]);
    }
    free(self->gradients);
    free(self->hashes);
    member_clear(&self->member);
}

static node_id_t shard_of(const bench_worker_t *self, uint32_t block)
{
    const plan_t *const plan = &self->member.plan;
    return plan_shard_node(plan, plan->group_shard[self->conf.blocks->blocks[block].group])->id;
}

// First to last.
static void pull_one(const bench_worker_t *self, uint32_t place, step_out_t *out)
{
    const wire_msg_t msg = {
        .kind = WIRE_PULL,
        .block = place,
        .version = self->leases[self->pull.lease % BENCH_LEASES].base,
    };
    step_send(out, shard_of(self, msg.block), &msg, NULL);
}

// Last to first, as gradients become complete.
static void push_one(const bench_worker_t *self, uint32_t place, step_out_t *out)
{
    const uint32_t block = self->conf.blocks->count - 1 - place;
    const wire_msg_t msg = {
        .kind = WIRE_PUSH,
        .attempt = self->leases[self->push.lease % BENCH_LEASES].attempt,
        .block = block,
        .parts = 1,
        .hash = self->hashes[block],
    };
    step_send(out, shard_of(self, block), &msg, self->gradients[block]);
}

static void announce(const bench_worker_t *self, step_out_t *out)
{
    const bench_lease_t *const lease = &self->leases[self->push.lease % BENCH_LEASES];
    const wire_msg_t msg = {.kind = WIRE_READY,
                            .attempt = lease->attempt,
                            .epoch = self->member.plan.epoch,
                            .version = lease->base,
                            .tokens = 1};
    step_send(out, member_lead(&self->member), &msg, NULL);
}

// Sends what may be under way. Pushing follows pulling: a lease's base comes first.
static void go_on(bench_worker_t *self, step_out_t *out)
{
    const uint32_t count = self->conf.blocks->count;
    bench_walk_t *const pull = &self->pull;
    bench_walk_t *const push = &self->push;
    if (pull->done == count) {
        *pull = (bench_walk_t){.lease = pull->lease + 1};
    }
    if (push->done == count) {
        announce(self, out);
        *push = (bench_walk_t){.lease = push->lease + 1};
    }
    while (pull->lease < self->granted && pull->asked < count &&
           pull->asked - pull->done < self->conf.in_flight) {
        pull_one(self, pull->asked++, out);
    }
    while (push->lease < pull->lease && push->asked < count &&
           push->asked - push->done < self->conf.in_flight) {
        push_one(self, push->asked++, out);
    }
}

static void on_plan(bench_worker_t *self, hx_time_t now, step_out_t *out)
{
    const plan_t *const plan = &self->member.plan;
    const plan_node_t *const lead = &plan->nodes[plan->lead];
    step_dial(out, lead->id, lead->control, "");
    for (uint32_t shard = 0; shard < plan->shards_count; shard++) {
        const plan_node_t *const node = plan_shard_node(plan, shard);
        step_dial(out, node->id, "", node->data);
    }
    member_ready(&self->member, 0, now, out);
}

static void on_message(bench_worker_t *self, const step_in_t *in, step_out_t *out)
{
    const wire_msg_t *const msg = &in->msg;
    switch (msg->kind) {
    case WIRE_GRANT:
        member_heard(&self->member);
        self->leases[self->granted++ % BENCH_LEASES] =
            (bench_lease_t){.attempt = msg->attempt, .base = msg->version};
        break;
    case WIRE_VALUE:
        self->sum += bench_touch(in->blob);
        self->pull.done++;
        break;
    case WIRE_ACK:
        self->push.done++;
        break;
    case WIRE_CLOSED:
    case WIRE_NO_VALUE:
        step_stop(out, 1, "a shard answered %s for block %" PRIu32, wire_kind_name(msg->kind),
                  msg->block);
        return;
    default:
        break;
    }
    go_on(self, out);
}

void bench_worker_step(void *self_, const step_in_t *in, step_out_t *out)
{
    bench_worker_t *const self = self_;
    const member_event_t event = member_step(&self->member, in, out);
    if (event == MEMBER_ENDING) {
        if (!out->stop) {
            member_stopped(&self->member, out, NULL);
        }
    } else if (event == MEMBER_PLAN) {
        on_plan(self, in->now, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_MESSAGE) {
        on_message(self, in, out);
    } else if (event == MEMBER_OTHER && in->kind == STEP_LOST) {
        member_orphaned(&self->member, in->now, out, "a worker has lost a shard or the lead");
    }
}
