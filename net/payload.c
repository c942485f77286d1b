// payload - plans, profiles, rounds and records as MessagePack.
//
// Every struct is an array of fixed length. A count is believed only when the bytes that are left
// could hold so many elements, so a short input never makes a decoder allocate much.

#include "net/payload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "net/pack.h"

#define DOUBLE_SIZE 9u  // Bytes of an encoded double.

// The written bytes as a blob.
static blob_t *finish(pack_out_t *out)
{
    blob_t *const blob = blob_copy(out->bytes, out->size);
    free(out->bytes);
    return blob;
}

// HX_E_FORMAT unless the blob has bytes to read.
static hx_err_t begin(const blob_t *blob, pack_in_t *in)
{
    if (!blob || !blob_data(blob)) {
        return HX_E_FORMAT;
    }
    *in = unpack_from(blob_data(blob), blob_size(blob));
    return HX_OK;
}

static uint32_t unpack_u32(pack_in_t *in)
{
    return (uint32_t)unpack_uint(in, UINT32_MAX);
}

static uint64_t unpack_u64(pack_in_t *in)
{
    return unpack_uint(in, UINT64_MAX);
}

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
    node->id = unpack_u64(in);
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
    pipeline->rows = unpack_u32(in);
    pipeline->microbatch = unpack_u32(in);
    pipeline->schedule = (schedule_kind_t)unpack_uint(in, SCHEDULE_KINDS_COUNT - 1);
    pipeline->step_seconds = unpack_finite(in);
}

static void pack_stage(pack_out_t *out, const plan_stage_t *stage)
{
    pack_array(out, 8);
    pack_uint(out, stage->layer_first);
    pack_uint(out, stage->layer_end);
    pack_uint(out, stage->member_first);
    pack_uint(out, stage->members_count);
    pack_uint(out, stage->depth);
    pack_bool(out, stage->recompute);
    pack_double(out, stage->forward_seconds);
    pack_double(out, stage->backward_seconds);
}

static void unpack_stage(pack_in_t *in, plan_stage_t *stage, uint32_t members_count)
{
    unpack_exactly(in, 8);
    stage->layer_first = unpack_u32(in);
    stage->layer_end = unpack_u32(in);
    stage->member_first = (uint32_t)unpack_uint(in, members_count);
    stage->members_count = (uint32_t)unpack_uint(in, members_count - stage->member_first);
    stage->depth = unpack_u32(in);
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
    return finish(&out);
}

// An array whose count was read: at least one element is allocated, so that NULL means "not read".
static void *array_of(uint32_t count, size_t size)
{
    return hx_new(HX_MAX(count, 1u), size);
}

// Bytes of the smallest encoding of a node, a member, a stage, a pipeline.
enum { NODE_BYTES = 7, MEMBER_BYTES = 11, STAGE_BYTES = 25, PIPELINE_BYTES = 15 };

static void unpack_nodes(pack_in_t *in, plan_t *plan)
{
    plan->nodes_count = unpack_array(in, PLAN_NODES_MAX, NODE_BYTES);
    plan->nodes = array_of(plan->nodes_count, sizeof *plan->nodes);
    for (uint32_t at = 0; at < plan->nodes_count && !in->bad; at++) {
        unpack_node(in, &plan->nodes[at]);
    }
    plan->members_count = unpack_array(in, PLAN_MEMBERS_MAX, MEMBER_BYTES);
    plan->members = array_of(plan->members_count, sizeof *plan->members);
    for (uint32_t at = 0; at < plan->members_count && !in->bad; at++) {
        unpack_exactly(in, 2);
        plan->members[at].node = unpack_index(in, plan->nodes_count);
        plan->members[at].share = unpack_finite(in);
    }
}

static void unpack_work(pack_in_t *in, plan_t *plan)
{
    plan->stages_count = unpack_array(in, PLAN_STAGES_MAX, STAGE_BYTES);
    plan->stages = array_of(plan->stages_count, sizeof *plan->stages);
    for (uint32_t at = 0; at < plan->stages_count && !in->bad; at++) {
        unpack_stage(in, &plan->stages[at], plan->members_count);
    }
    plan->pipelines_count = unpack_array(in, PLAN_PIPELINES_MAX, PIPELINE_BYTES);
    plan->pipelines = array_of(plan->pipelines_count, sizeof *plan->pipelines);
    for (uint32_t at = 0; at < plan->pipelines_count && !in->bad; at++) {
        unpack_pipeline(in, &plan->pipelines[at], plan->stages_count);
    }
}

static void unpack_state(pack_in_t *in, plan_t *plan)
{
    plan->shards_count = unpack_array(in, PLAN_SHARDS_MAX, 1);
    plan->shards = array_of(plan->shards_count, sizeof *plan->shards);
    for (uint32_t at = 0; at < plan->shards_count && !in->bad; at++) {
        plan->shards[at] = unpack_index(in, plan->nodes_count);
    }
    plan->groups_count = unpack_array(in, PLAN_GROUPS_MAX, 1);
    plan->group_shard = array_of(plan->groups_count, sizeof *plan->group_shard);
    for (uint32_t at = 0; at < plan->groups_count && !in->bad; at++) {
        plan->group_shard[at] = unpack_index(in, plan->shards_count);
    }
    plan->lead = unpack_index(in, plan->nodes_count);
    plan->keeper = unpack_index(in, plan->nodes_count);
    plan->resume = unpack_u64(in);
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
    HX_TRY(begin(blob, &in));
    plan_t plan = {0};
    unpack_exactly(&in, 13);
    plan.epoch = unpack_u32(&in);
    plan.run_id = unpack_u64(&in);
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
    return finish(&out);
}

hx_err_t payload_profile_decode(const blob_t *blob, profile_t *out)
{
    pack_in_t in;
    HX_TRY(begin(blob, &in));
    profile_t profile = {0};
    unpack_exactly(&in, 10);
    profile.microbatch = unpack_u32(&in);
    profile.embed.forward = unpack_finite(&in);
    profile.embed.backward = unpack_finite(&in);
    profile.block.forward = unpack_finite(&in);
    profile.block.backward = unpack_finite(&in);
    profile.head.forward = unpack_finite(&in);
    profile.head.backward = unpack_finite(&in);
    profile.memory = unpack_u64(&in);
    profile.threads = unpack_u32(&in);
    profile.slowdown = unpack_finite(&in);
    if (!unpack_done(&in)) {
        return HX_E_FORMAT;
    }
    *out = profile;
    return HX_OK;
}

// --- rounds
// ---------------------------------------------------------------------------------------

#define ROUND_MEMBER_BYTES 43  // Smallest encoding.

static void pack_members(pack_out_t *out, const round_member_t *members, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_MEMBERS_MAX);
    pack_array(out, count);
    for (uint32_t at = 0; at < count; at++) {
        const round_member_t *const member = &members[at];
        pack_array(out, 10);
        pack_uint(out, member->attempt);
        pack_uint(out, member->pipeline);
        pack_uint(out, member->row_first);
        pack_uint(out, member->rows);
        pack_uint(out, member->tokens);
        pack_double(out, member->loss);
        pack_uint(out, member->lag);
        pack_double(out, member->weight);
        pack_double(out, member->factor);
        pack_double(out, member->seconds);
    }
}

static round_member_t *unpack_members(pack_in_t *in, uint32_t *count)
{
    *count = unpack_array(in, PAYLOAD_MEMBERS_MAX, ROUND_MEMBER_BYTES);
    round_member_t *const members = array_of(*count, sizeof *members);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        round_member_t *const member = &members[at];
        unpack_exactly(in, 10);
        member->attempt = unpack_u64(in);
        member->pipeline = unpack_u32(in);
        member->row_first = unpack_u64(in);
        member->rows = unpack_u32(in);
        member->tokens = unpack_u64(in);
        member->loss = unpack_double(in);
        member->lag = unpack_u32(in);
        member->weight = unpack_finite(in);
        member->factor = unpack_finite(in);
        member->seconds = unpack_finite(in);
    }
    return members;
}

static void pack_numbers(pack_out_t *out, const uint64_t *values, uint32_t count)
{
    pack_array(out, count);
    for (uint32_t at = 0; at < count; at++) {
        pack_uint(out, values[at]);
    }
}

static uint64_t *unpack_numbers(pack_in_t *in, uint32_t max, uint32_t *count)
{
    *count = unpack_array(in, max, 1);
    uint64_t *const values = array_of(*count, sizeof *values);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        values[at] = unpack_u64(in);
    }
    return values;
}

void prepare_destroy(prepare_t *self)
{
    free(self->members);
    free(self->closed);
    *self = (prepare_t){0};
}

blob_t *payload_prepare_encode(const prepare_t *prepare)
{
    HX_ASSERT(prepare->closed_count <= PAYLOAD_CLOSED_MAX);
    pack_out_t out = pack_growing(256);
    pack_array(&out, 2);
    pack_members(&out, prepare->members, prepare->members_count);
    pack_numbers(&out, prepare->closed, prepare->closed_count);
    return finish(&out);
}

hx_err_t payload_prepare_decode(const blob_t *blob, prepare_t *out)
{
    pack_in_t in;
    HX_TRY(begin(blob, &in));
    prepare_t prepare = {0};
    unpack_exactly(&in, 2);
    prepare.members = unpack_members(&in, &prepare.members_count);
    prepare.closed = unpack_numbers(&in, PAYLOAD_CLOSED_MAX, &prepare.closed_count);
    if (!unpack_done(&in)) {
        prepare_destroy(&prepare);
        return HX_E_FORMAT;
    }
    *out = prepare;
    return HX_OK;
}

// --- records
// --------------------------------------------------------------------------------------

void record_destroy(record_t *self)
{
    free(self->committed);
    free(self->skipped);
    free(self->members);
    *self = (record_t){0};
}

static void *copy_array(const void *from, uint32_t count, size_t size)
{
    void *const to = array_of(count, size);
    if (count > 0) {
        memcpy(to, from, count * size);
    }
    return to;
}

void record_copy(const record_t *self, record_t *out)
{
    record_t copy = *self;
    copy.committed = copy_array(self->committed, self->committed_count, sizeof *copy.committed);
    copy.skipped = copy_array(self->skipped, self->skipped_count, sizeof *copy.skipped);
    copy.members = copy_array(self->members, self->members_count, sizeof *copy.members);
    *out = copy;
}

// Ranges that are not empty, ascend and do not overlap; with `apart` they do not touch either.
static bool ranges_valid(const row_range_t *ranges, uint32_t count, uint64_t from, bool apart)
{
    uint64_t end = from;
    for (uint32_t at = 0; at < count; at++) {
        const bool first = at == 0;
        if (ranges[at].first >= ranges[at].end || ranges[at].first < end ||
            (apart && !first && ranges[at].first == end)) {
            return false;
        }
        end = ranges[at].end;
    }
    return true;
}

static bool record_ranges_valid(const record_t *record)
{
    return ranges_valid(record->committed, record->committed_count, record->low_water, true) &&
           ranges_valid(record->skipped, record->skipped_count, 0, false);
}

static void pack_ranges(pack_out_t *out, const row_range_t *ranges, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_RANGES_MAX);
    pack_array(out, count * 2);
    for (uint32_t at = 0; at < count; at++) {
        pack_uint(out, ranges[at].first);
        pack_uint(out, ranges[at].end);
    }
}

static row_range_t *unpack_ranges(pack_in_t *in, uint32_t *count)
{
    const uint32_t numbers = unpack_array(in, PAYLOAD_RANGES_MAX * 2, 1);
    in->bad = in->bad || numbers % 2 != 0;
    *count = numbers / 2;
    row_range_t *const ranges = array_of(*count, sizeof *ranges);
    for (uint32_t at = 0; at < *count && !in->bad; at++) {
        ranges[at].first = unpack_u64(in);
        ranges[at].end = unpack_u64(in);
    }
    return ranges;
}

blob_t *payload_record_encode(const record_t *record)
{
    HX_ASSERT(record_ranges_valid(record));
    pack_out_t out = pack_growing(512);
    pack_array(&out, 20);
    pack_uint(&out, record->history);
    pack_uint(&out, record->version);
    pack_uint(&out, record->incarnation);
    pack_uint(&out, record->epoch);
    pack_uint(&out, record->tokens);
    pack_double(&out, record->scale);
    pack_double(&out, record->rate);
    pack_double(&out, record->kappa);
    pack_double(&out, record->norm);
    pack_uint(&out, record->step);
    pack_uint(&out, record->low_water);
    pack_ranges(&out, record->committed, record->committed_count);
    pack_ranges(&out, record->skipped, record->skipped_count);
    pack_uint(&out, record->floor);
    pack_bool(&out, record->snapshot);
    pack_bool(&out, record->final);
    pack_double(&out, record->step_mean);
    pack_double(&out, record->lookahead);
    pack_uint(&out, record->dropped);
    pack_members(&out, record->members, record->members_count);
    return finish(&out);
}

static void unpack_record(pack_in_t *in, record_t *record)
{
    unpack_exactly(in, 20);
    record->history = unpack_u64(in);
    record->version = unpack_u64(in);
    record->incarnation = unpack_u64(in);
    record->epoch = unpack_u32(in);
    record->tokens = unpack_u64(in);
    record->scale = unpack_finite(in);
    record->rate = unpack_finite(in);
    record->kappa = unpack_finite(in);
    record->norm = unpack_finite(in);
    record->step = unpack_u64(in);
    record->low_water = unpack_u64(in);
    record->committed = unpack_ranges(in, &record->committed_count);
    record->skipped = unpack_ranges(in, &record->skipped_count);
    record->floor = unpack_u64(in);
    record->snapshot = unpack_bool(in);
    record->final = unpack_bool(in);
    record->step_mean = unpack_finite(in);
    record->lookahead = unpack_finite(in);
    record->dropped = unpack_u64(in);
    record->members = unpack_members(in, &record->members_count);
}

hx_err_t payload_record_decode(const blob_t *blob, record_t *out)
{
    pack_in_t in;
    HX_TRY(begin(blob, &in));
    record_t record = {0};
    unpack_record(&in, &record);
    if (!unpack_done(&in) || !record_ranges_valid(&record)) {
        record_destroy(&record);
        return HX_E_FORMAT;
    }
    *out = record;
    return HX_OK;
}

// --- votes
// ----------------------------------------------------------------------------------------

blob_t *payload_doubles_encode(const double *values, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_BLOCKS_MAX);
    pack_out_t out = pack_growing(16 + (size_t)count * DOUBLE_SIZE);
    pack_array(&out, count);
    for (uint32_t at = 0; at < count; at++) {
        pack_double(&out, values[at]);
    }
    return finish(&out);
}

hx_err_t payload_doubles_decode(const blob_t *blob, double **out, uint32_t *count)
{
    pack_in_t in;
    HX_TRY(begin(blob, &in));
    const uint32_t found = unpack_array(&in, PAYLOAD_BLOCKS_MAX, DOUBLE_SIZE);
    double *const values = array_of(found, sizeof *values);
    for (uint32_t at = 0; at < found && !in.bad; at++) {
        values[at] = unpack_double(&in);
    }
    if (!unpack_done(&in)) {
        free(values);
        return HX_E_FORMAT;
    }
    *out = values;
    *count = found;
    return HX_OK;
}

blob_t *payload_attempts_encode(const uint64_t *values, uint32_t count)
{
    HX_ASSERT(count <= PAYLOAD_MEMBERS_MAX);
    pack_out_t out = pack_growing(16 + (size_t)count * 9);
    pack_numbers(&out, values, count);
    return finish(&out);
}

hx_err_t payload_attempts_decode(const blob_t *blob, uint64_t **out, uint32_t *count)
{
    pack_in_t in;
    HX_TRY(begin(blob, &in));
    uint32_t found = 0;
    uint64_t *const values = unpack_numbers(&in, PAYLOAD_MEMBERS_MAX, &found);
    if (!unpack_done(&in)) {
        free(values);
        return HX_E_FORMAT;
    }
    *out = values;
    *count = found;
    return HX_OK;
}
