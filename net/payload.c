// payload - plans and profiles as MessagePack; rounds and records are in payload_round.c.
//
// Every struct is an array of fixed length. A count is believed only when the bytes that are left
// could hold so many elements, so a short input never makes a decoder allocate much.

#include "net/payload.h"

#include <stdlib.h>
#include <string.h>

#include "net/payload_parts.h"

// An index below `count`.
static uint32_t unpack_index(pack_in_t *in, uint32_t count)
{
    if (count == 0) {
        in->bad = true;
        return 0;
    }
    return (uint32_t)unpack_uint(in, count - 1);
}

// --- plan
// -----------------------------------------------------------------------------------------

static void pack_node(pack_out_t *out, const plan_node_t *node)
{
    pack_array(out, 6);
    pack_uint(out, node->id);
    pack_uint(out, (uint64_t)node->role);
    pack_text(out, node->site);
    pack_text(out, node->name);
    pack_text(out, node->control);
    pack_text(out, node->data);
}

static void unpack_node(pack_in_t *in, plan_node_t *node)
{
    unpack_exactly(in, 6);
    node->id = payload_u64(in);
    node->role = (plan_role_t)unpack_uint(in, PLAN_CONTROL);
    in->bad = in->bad || node->role < PLAN_SCHEDULER || node->id == NODE_NONE;
    unpack_text(in, node->site, sizeof node->site);
    unpack_text(in, node->name, sizeof node->name);
    unpack_text(in, node->control, sizeof node->control);
    unpack_text(in, node->data, sizeof node->data);
}

static void pack_pipeline(pack_out_t *out, const plan_pipeline_t *pipeline)
{
    pack_array(out, 6);
    pack_uint(out, pipeline->stage_first);
    pack_uint(out, pipeline->stages_count);
    pack_uint(out, pipeline->rows);
    pack_uint(out, pipeline->microbatch);
    pack_uint(out, (uint64_t)pipeline->schedule);
    pack_double(out, pipeline->step_seconds);
}

static void unpack_pipeline(pack_in_t *in, plan_pipeline_t *pipeline, uint32_t stages_count)
{
    unpack_exactly(in, 6);
    pipeline->stage_first = (uint32_t)unpack_uint(in, stages_count);
    pipeline->stages_count = (uint32_t)unpack_uint(in, stages_count - pipeline->stage_first);
    pipeline->rows = payload_u32(in);
    pipeline->microbatch = payload_u32(in);
    pipeline->schedule = (schedule_kind_t)unpack_uint(in, SCHEDULE_KINDS_COUNT - 1);
    pipeline->step_seconds = unpack_finite(in);
}

static void pack_stage(pack_out_t *out, const plan_stage_t *stage)
{
    pack_array(out, 9);
    pack_uint(out, stage->layer_first);
    pack_uint(out, stage->layer_end);
    pack_uint(out, stage->member_first);
    pack_uint(out, stage->members_count);
    pack_uint(out, stage->mode);
    pack_uint(out, stage->depth);
    pack_bool(out, stage->recompute);
    pack_double(out, stage->forward_seconds);
    pack_double(out, stage->backward_seconds);
}

static void unpack_stage(pack_in_t *in, plan_stage_t *stage, uint32_t members_count)
{
    unpack_exactly(in, 9);
    stage->layer_first = payload_u32(in);
    stage->layer_end = payload_u32(in);
    stage->member_first = (uint32_t)unpack_uint(in, members_count);
    stage->members_count = (uint32_t)unpack_uint(in, members_count - stage->member_first);
    stage->mode = (plan_mode_t)unpack_uint(in, PLAN_MODES_COUNT - 1);
    stage->depth = payload_u32(in);
    stage->recompute = unpack_bool(in);
    stage->forward_seconds = unpack_finite(in);
    stage->backward_seconds = unpack_finite(in);
}

blob_t *payload_plan_encode(const plan_t *plan)
{
    pack_out_t out = pack_growing(4096);
    pack_array(&out, 13);
    pack_uint(&out, plan->epoch);
    pack_uint(&out, plan->run_id);
    pack_array(&out, plan->nodes_count);
    for (uint32_t at = 0; at < plan->nodes_count; at++) {
        pack_node(&out, &plan->nodes[at]);
    }
    pack_array(&out, plan->members_count);
    for (uint32_t at = 0; at < plan->members_count; at++) {
        pack_array(&out, 2);
        pack_uint(&out, plan->members[at].node);
        pack_double(&out, plan->members[at].share);
    }
    pack_array(&out, plan->stages_count);
    for (uint32_t at = 0; at < plan->stages_count; at++) {
        pack_stage(&out, &plan->stages[at]);
    }
    pack_array(&out, plan->pipelines_count);
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        pack_pipeline(&out, &plan->pipelines[at]);
    }
    pack_array(&out, plan->shards_count);
    for (uint32_t at = 0; at < plan->shards_count; at++) {
        pack_uint(&out, plan->shards[at]);
    }
    pack_array(&out, plan->groups_count);
    for (uint32_t at = 0; at < plan->groups_count; at++) {
        pack_uint(&out, plan->group_shard[at]);
    }
    pack_uint(&out, plan->lead);
    pack_uint(&out, plan->keeper);
    pack_uint(&out, plan->resume);
    pack_bool(&out, plan->init_file);
    pack_double(&out, plan->step_seconds);
    return payload_finish(&out);
}

// Bytes of the smallest encoding of a node, a member, a stage, a pipeline.
enum { NODE_BYTES = 7, MEMBER_BYTES = 11, STAGE_BYTES = 26, PIPELINE_BYTES = 15 };

static void unpack_nodes(pack_in_t *in, plan_t *plan)
{
    plan->nodes_count = unpack_array(in, PLAN_NODES_MAX, NODE_BYTES);
    plan->nodes = payload_array(plan->nodes_count, sizeof *plan->nodes);
    for (uint32_t at = 0; at < plan->nodes_count && !in->bad; at++) {
        unpack_node(in, &plan->nodes[at]);
    }
    plan->members_count = unpack_array(in, PLAN_MEMBERS_MAX, MEMBER_BYTES);
    plan->members = payload_array(plan->members_count, sizeof *plan->members);
    for (uint32_t at = 0; at < plan->members_count && !in->bad; at++) {
        unpack_exactly(in, 2);
        plan->members[at].node = unpack_index(in, plan->nodes_count);
        plan->members[at].share = unpack_finite(in);
    }
}

static void unpack_work(pack_in_t *in, plan_t *plan)
{
    plan->stages_count = unpack_array(in, PLAN_STAGES_MAX, STAGE_BYTES);
    plan->stages = payload_array(plan->stages_count, sizeof *plan->stages);
    for (uint32_t at = 0; at < plan->stages_count && !in->bad; at++) {
        unpack_stage(in, &plan->stages[at], plan->members_count);
    }
    plan->pipelines_count = unpack_array(in, PLAN_PIPELINES_MAX, PIPELINE_BYTES);
    plan->pipelines = payload_array(plan->pipelines_count, sizeof *plan->pipelines);
    for (uint32_t at = 0; at < plan->pipelines_count && !in->bad; at++) {
        unpack_pipeline(in, &plan->pipelines[at], plan->stages_count);
    }
}

static void unpack_state(pack_in_t *in, plan_t *plan)
{
    plan->shards_count = unpack_array(in, PLAN_SHARDS_MAX, 1);
    plan->shards = payload_array(plan->shards_count, sizeof *plan->shards);
    for (uint32_t at = 0; at < plan->shards_count && !in->bad; at++) {
        plan->shards[at] = unpack_index(in, plan->nodes_count);
    }
    plan->groups_count = unpack_array(in, PLAN_GROUPS_MAX, 1);
    plan->group_shard = payload_array(plan->groups_count, sizeof *plan->group_shard);
    for (uint32_t at = 0; at < plan->groups_count && !in->bad; at++) {
        plan->group_shard[at] = unpack_index(in, plan->shards_count);
    }
    plan->lead = unpack_index(in, plan->nodes_count);
    plan->keeper = unpack_index(in, plan->nodes_count);
    plan->resume = payload_u64(in);
    plan->init_file = unpack_bool(in);
    plan->step_seconds = unpack_finite(in);
}

static void free_plan(plan_t *plan)
{
    free(plan->nodes);
    free(plan->pipelines);
    free(plan->stages);
    free(plan->members);
    free(plan->group_shard);
    free(plan->shards);
}

hx_err_t payload_plan_decode(const blob_t *blob, plan_t *out)
{
    pack_in_t in;
    HX_TRY(payload_begin(blob, &in));
    plan_t plan = {0};
    unpack_exactly(&in, 13);
    plan.epoch = payload_u32(&in);
    plan.run_id = payload_u64(&in);
    unpack_nodes(&in, &plan);
    unpack_work(&in, &plan);
    unpack_state(&in, &plan);
    if (!unpack_done(&in)) {
        free_plan(&plan);
        return HX_E_FORMAT;
    }
    *out = plan;
    return HX_OK;
}

// --- profile
// --------------------------------------------------------------------------------------

blob_t *payload_profile_encode(const profile_t *profile)
{
    pack_out_t out = pack_growing(128);
    pack_array(&out, 10);
    pack_uint(&out, profile->microbatch);
    pack_double(&out, profile->embed.forward);
    pack_double(&out, profile->embed.backward);
    pack_double(&out, profile->block.forward);
    pack_double(&out, profile->block.backward);
    pack_double(&out, profile->head.forward);
    pack_double(&out, profile->head.backward);
    pack_uint(&out, profile->memory);
    pack_uint(&out, profile->threads);
    pack_double(&out, profile->slowdown);
    return payload_finish(&out);
}

hx_err_t payload_profile_decode(const blob_t *blob, profile_t *out)
{
    pack_in_t in;
    HX_TRY(payload_begin(blob, &in));
    profile_t profile = {0};
    unpack_exactly(&in, 10);
    profile.microbatch = payload_u32(&in);
    profile.embed.forward = unpack_finite(&in);
    profile.embed.backward = unpack_finite(&in);
    profile.block.forward = unpack_finite(&in);
    profile.block.backward = unpack_finite(&in);
    profile.head.forward = unpack_finite(&in);
    profile.head.backward = unpack_finite(&in);
    profile.memory = payload_u64(&in);
    profile.threads = payload_u32(&in);
    profile.slowdown = unpack_finite(&in);
    if (!unpack_done(&in)) {
        return HX_E_FORMAT;
    }
    *out = profile;
    return HX_OK;
}
