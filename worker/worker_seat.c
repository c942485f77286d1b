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
    seat_block_t common = {
        .shard = shard,
        .shard_node = plan_shard_node(plan, shard)->id,
        .node = plan_shard_node(plan, shard)->id,
        .part = plan_part_of(plan, model, seat->pipeline, seat->stage, group),
        .parts = plan_parts(plan, model, seat->pipeline, group),
        .slice = slice_of(model, seat, group),
    };
    if (!seat_is_head(seat)) {
        common.node = seat->patches[SEAT_OWN].nodes[0];
        common.part = seat->member;
        common.parts = seat->patches[SEAT_OWN].members;
    }
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

// What a lease of the planned rows needs. A shorter one needs no more of anything.
static void find_needs(seat_t *seat, uint32_t rows)
{
    patch_t patch;
    seat_divide(seat, SEAT_OWN, rows, &patch);
    const schedule_in_t in = seat_schedule(seat, patch.micros);
    schedule_op_t *const ops = hx_new(schedule_ops_max(&in), sizeof *ops);
    const uint32_t count = seat_own_ops(&patch, seat->member, ops, schedule_make(&in, ops));
    seat->sets = HX_MAX(schedule_peak(ops, count), 1);
    free(ops);
    patch_clear(&patch);
    // An evaluation's microbatches are whole, however few rows the planned leases have.
    seat_divide(seat, SEAT_OWN, seat->microbatch, &patch);
    seat->rows =
        patch.owners ? seat->microbatch : HX_MAX(patch_piece(&patch, 0, seat->member).rows, 1);
    patch_clear(&patch);
}

static void find_patch(const plan_t *plan, uint32_t pipeline, uint32_t stage, seat_patch_t *patch)
{
    const plan_stage_t *const at = plan_stage(plan, pipeline, stage);
    *patch = (seat_patch_t){
        .mode = at->mode,
        .members = at->members_count,
        .nodes = hx_new(at->members_count, sizeof *patch->nodes),
        .shares = hx_new(at->members_count, sizeof *patch->shares),
    };
    for (uint32_t member = 0; member < at->members_count; member++) {
        patch->nodes[member] = plan_member_node(plan, pipeline, stage, member)->id;
        patch->shares[member] = plan->members[at->member_first + member].share;
    }
}

void seat_make(const plan_t *plan, const model_t *model, const blocks_t *blocks, node_id_t worker,
               seat_t *out)
{
    *out = (seat_t){.epoch = plan->epoch};
    out->seated = plan_seat_of(plan, worker, &out->pipeline, &out->stage, &out->member);
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
    find_patch(plan, out->pipeline, out->stage, &out->patches[SEAT_OWN]);
    if (!seat_is_first(out)) {
        find_patch(plan, out->pipeline, out->stage - 1, &out->patches[SEAT_BEFORE]);
    }
    if (!seat_is_last(out)) {
        find_patch(plan, out->pipeline, out->stage + 1, &out->patches[SEAT_AFTER]);
    }
    find_needs(out, pipeline->rows);
    find_blocks(plan, model, blocks, out);
}

void seat_clear(seat_t *self)
{
    free(self->depths);
    free(self->blocks);
    free(self->find);
    for (uint32_t side = 0; side < SEAT_PATCHES; side++) {
        free(self->patches[side].nodes);
        free(self->patches[side].shares);
    }
    *self = (seat_t){0};
}

void seat_split(seat_t *self, const plan_t *plan, uint32_t steps, bool by_speed)
{
    HX_ASSERT(self->seated && self->stages == 1 && !seat_is_shared(self) && steps > 0);
    uint64_t batch = 0;
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        batch += plan->pipelines[at].rows;
    }
    const uint64_t rows =
        by_speed ? batch / plan->pipelines_count : plan->pipelines[self->pipeline].rows;
    const uint64_t micros = HX_MAX((rows + self->microbatch - 1) / self->microbatch, (uint64_t)1);
    self->step_rows = (uint32_t)micros * self->microbatch;
    self->round_rows = batch * steps;
    const schedule_in_t in = seat_schedule(self, (uint32_t)HX_MIN(micros, SCHEDULE_MICROS_MAX));
    schedule_op_t *const ops = hx_new(schedule_ops_max(&in), sizeof *ops);
    const uint32_t count = schedule_make(&in, ops);
    self->sets = HX_MAX(self->sets, schedule_peak(ops, count));
    free(ops);
}

bool seat_is_first(const seat_t *self)
{
    return self->stage == 0;
}

bool seat_is_last(const seat_t *self)
{
    return self->stage + 1 == self->stages;
}

bool seat_is_shared(const seat_t *self)
{
    return self->patches[SEAT_OWN].members > 1;
}

bool seat_is_head(const seat_t *self)
{
    return self->member == 0;
}

uint32_t seat_member_of(const seat_t *self, seat_side_t side, node_id_t node)
{
    const seat_patch_t *const patch = &self->patches[side];
    for (uint32_t member = 0; member < patch->members; member++) {
        if (patch->nodes[member] == node) {
            return member;
        }
    }
    return UINT32_MAX;
}

void seat_divide(const seat_t *self, seat_side_t side, uint32_t rows, patch_t *out)
{
    const seat_patch_t *const patch = &self->patches[side];
    const patch_conf_t conf = {
        .mode = patch->mode,
        .members = patch->members,
        .shares = patch->shares,
        .rows = rows,
        .microbatch = self->microbatch,
    };
    patch_make(&conf, out);
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

uint32_t seat_own_ops(const patch_t *patch, uint32_t member, schedule_op_t *ops, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t index = 0; index < count; index++) {
        if (patch_piece(patch, ops[index].micro, member).rows > 0) {
            ops[kept++] = ops[index];
        }
    }
    return kept;
}
