// worker_seat - see the header.

#include "worker/worker_seat.h"

#include <stdlib.h>

static uint32_t lowest_layer(const model_t *model, const seat_t *seat, uint32_t group)
{
    for (uint32_t layer = seat->layer_first; layer < seat->layer_end; layer++) {
        uint32_t groups[MODEL_LAYER_GROUPS_MAX];
        const uint32_t count = model_groups_of(model, layer, layer + 1, groups);
        for (uint32_t index = 0; index < count; index++) {
            if (groups[index] == group) {
                return layer;
            }
        }
    }
    HX_ASSERT(false && "the group is one of the stage's");
    return seat->layer_first;
}

// A backward goes from the last slice to the first, so a group is complete with its lowest layer.
static uint32_t slice_of(const model_t *model, const seat_t *seat, uint32_t group)
{
    const uint32_t layer = lowest_layer(model, seat, group);
    uint32_t slice = 0;
    while (worker_slice_first(seat->layer_first, seat->layer_end, slice + 1) <= layer) {
        slice++;
    }
    return slice;
}

static void add_group(const plan_t *plan, const model_t *model, const blocks_t *blocks,
                      uint32_t group, seat_t *seat)
{
    const uint32_t shard = plan->group_shard[group];
    const seat_block_t common = {
        .shard = shard,
        .node = plan_shard_node(plan, shard)->id,
        .part = plan_part_of(plan, model, seat->pipeline, seat->stage, group),
        .parts = plan_parts(plan, model, seat->pipeline, group),
        .slice = slice_of(model, seat, group),
    };
    HX_ASSERT(common.part < common.parts);
    for (uint32_t block = blocks->group_first[group]; block < blocks->group_first[group + 1];
         block++) {
        seat->find[block] = seat->blocks_count;
        seat_block_t *const own = &seat->blocks[seat->blocks_count++];
        *own = common;
        own->block = block;
        own->size = blocks->blocks[block].count * sizeof(float);
    }
}

static void find_blocks(const plan_t *plan, const model_t *model, const blocks_t *blocks,
                        seat_t *seat)
{
    uint32_t *const groups = hx_new(model_groups_count(model), sizeof *groups);
    const uint32_t count = model_groups_of(model, seat->layer_first, seat->layer_end, groups);
    seat->blocks = hx_new(blocks->count, sizeof *seat->blocks);
    seat->find = hx_new(blocks->count, sizeof *seat->find);
    for (uint32_t block = 0; block < blocks->count; block++) {
        seat->find[block] = UINT32_MAX;
    }
    for (uint32_t index = 0; index < count; index++) {
        add_group(plan, model, blocks, groups[index], seat);
    }
    free(groups);
}

static uint32_t sets_of(const seat_t *seat, uint32_t rows)
{
    const uint32_t micros = (rows - 1) / seat->microbatch + 1;
    const schedule_in_t in = seat_schedule(seat, HX_MIN(micros, SCHEDULE_MICROS_MAX));
    schedule_op_t *const ops = hx_new(schedule_ops_max(&in), sizeof *ops);
    const uint32_t count = schedule_make(&in, ops);
    const uint32_t sets = schedule_peak(ops, count);
    free(ops);
    return sets;
}

void seat_make(const plan_t *plan, const model_t *model, const blocks_t *blocks, node_id_t worker,
               seat_t *out)
{
    uint32_t member = 0;
    *out = (seat_t){.epoch = plan->epoch};
    out->seated = plan_seat_of(plan, worker, &out->pipeline, &out->stage, &member);
    if (!out->seated) {
        return;
    }
    const plan_pipeline_t *const pipeline = &plan->pipelines[out->pipeline];
    const plan_stage_t *const stage = plan_stage(plan, out->pipeline, out->stage);
    const model_conf_t *const conf = model_conf(model);
    out->stages = pipeline->stages_count;
    out->layer_first = stage->layer_first;
    out->layer_end = stage->layer_end;
    out->microbatch = pipeline->microbatch;
    out->boundary_size = (uint64_t)conf->context * conf->channels * sizeof(float);
    out->schedule = pipeline->schedule;
    out->recompute = stage->recompute;
    out->depths = hx_new(out->stages, sizeof *out->depths);
    for (uint32_t index = 0; index < out->stages; index++) {
        out->depths[index] = plan_stage(plan, out->pipeline, index)->depth;
    }
    out->sets = sets_of(out, pipeline->rows);
    if (!seat_is_first(out)) {
        out->before = plan_member_node(plan, out->pipeline, out->stage - 1, 0)->id;
    }
    if (!seat_is_last(out)) {
        out->after = plan_member_node(plan, out->pipeline, out->stage + 1, 0)->id;
    }
    find_blocks(plan, model, blocks, out);
}

void seat_clear(seat_t *self)
{
    free(self->depths);
    free(self->blocks);
    free(self->find);
    *self = (seat_t){0};
}

bool seat_is_first(const seat_t *self)
{
    return self->stage == 0;
}

bool seat_is_last(const seat_t *self)
{
    return self->stage + 1 == self->stages;
}

schedule_in_t seat_schedule(const seat_t *self, uint32_t micros)
{
    return (schedule_in_t){
        .kind = self->schedule,
        .stage = self->stage,
        .stages = self->stages,
        .micros = micros,
        .depths = self->depths,
    };
}
