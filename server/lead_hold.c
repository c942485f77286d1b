// lead_hold - how much work may be out, so that the gradients of all of it fit where they are held.
//
// A lease is counted against every shard from its grant to its end, whole, before any byte of it is
// pushed. So no shard ever has a part of a contribution whose rest another shard has no room for.

#include "server/lead_internal.h"

#include <inttypes.h>

// Bytes of one contribution of `pipeline` on a shard.
static uint64_t contribution_size(const lead_t *self, uint32_t pipeline, uint32_t shard)
{
    const plan_t *const plan = &self->plan;
    uint64_t size = 0;
    for (uint32_t at = 0; at < self->blocks.count; at++) {
        const block_t *const block = &self->blocks.blocks[at];
        if (plan->group_shard[block->group] == shard) {
            size += block->count * sizeof(float) *
                    plan_parts(plan, self->conf.member.model, pipeline, block->group);
        }
    }
    return size;
}

// Of the largest contribution on the shard that has most of it.
static uint64_t largest_share(const lead_t *self)
{
    uint64_t largest = 0;
    for (uint32_t pipeline = 0; pipeline < self->plan.pipelines_count; pipeline++) {
        for (uint32_t shard = 0; shard < self->plan.shards_count; shard++) {
            const uint64_t size = contribution_size(self, pipeline, shard);
            largest = HX_MAX(largest, size);
        }
    }
    return largest;
}

hx_err_t lead_hold_plan(lead_t *self, hx_fault_t *fault)
{
    const uint64_t limit = self->conf.hold_limit;
    const uint64_t share = largest_share(self);
    self->leases_max = limit > 0 && share > 0 ? limit / share : UINT64_MAX;
    const uint64_t pipelines = self->plan.pipelines_count;
    if (self->leases_max >= pipelines) {
        return HX_OK;
    }
    return hx_fault(fault, HX_E_ARG,
                    "server.hold leaves a shard %" PRIu64 " bytes for gradients, and a "
                    "contribution of each of %" PRIu64 " pipelines needs %" PRIu64
                    ": raise it, start more servers, or use fewer pipelines",
                    limit, pipelines, pipelines * share);
}

bool lead_hold_full(const lead_t *self)
{
    uint64_t out = 0;
    for (uint32_t at = 0; at < self->leases_count; at++) {
        out += !self->leases[at].eval;
    }
    return out >= self->leases_max && self->conf.ssaw.staleness > 0;
}

bool lead_hold_room(const lead_t *self, const ssaw_view_t *view, uint32_t pipeline)
{
    if (self->conf.ssaw.staleness == 0) {
        return true;
    }
    uint64_t out = 0, idle = 0;
    for (uint32_t at = 0; at < view->pipelines_count; at++) {
        out += view->pipelines[at].outstanding;
        idle += at != pipeline && view->pipelines[at].live && view->pipelines[at].outstanding == 0;
    }
    return out + idle < self->leases_max;
}
