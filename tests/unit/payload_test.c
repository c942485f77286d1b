// payload_test - plans, profiles, rounds and records come back as they went, and nothing else is
// taken.

#include "net/payload.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

// A plan of two pipelines (three stages, one of them with two members) and two shards.
static plan_t small_plan(void)
{
    plan_t plan = {
        .epoch = 3,
        .run_id = UINT64_C(0xfeedfacecafe),
        .nodes = hx_new(8, sizeof(plan_node_t)),
        .nodes_count = 8,
        .pipelines = hx_new(2, sizeof(plan_pipeline_t)),
        .pipelines_count = 2,
        .stages = hx_new(3, sizeof(plan_stage_t)),
        .stages_count = 3,
        .members = hx_new(4, sizeof(plan_member_t)),
        .members_count = 4,
        .group_shard = hx_new(5, sizeof(uint32_t)),
        .groups_count = 5,
        .shards = hx_new(2, sizeof(uint32_t)),
        .shards_count = 2,
        .lead = 6,
        .keeper = 7,
        .resume = PLAN_RESUME_NONE,
        .init_file = true,
        .step_seconds = 0.75,
    };
    for (uint32_t at = 0; at < 8; at++) {
        plan_node_t *const node = &plan.nodes[at];
        node->id = 100 + at;
        node->role = at < 4 ? PLAN_WORKER : at < 6 ? PLAN_SHARD : at == 6 ? PLAN_LEAD : PLAN_KEEPER;
        snprintf(node->site, sizeof node->site, "east");
        snprintf(node->name, sizeof node->name, "east/node %u", at);
        snprintf(node->data, sizeof node->data, "tcp://10.0.0.%u:4000", at);
    }
    for (uint32_t at = 0; at < 4; at++) {
        plan.members[at] = (plan_member_t){.node = at, .share = at < 2 ? 0.5 : 1.0};
    }
    plan.stages[0] = (plan_stage_t){0, 3, 0, 2, PLAN_SPLIT, 2, true, 0.1, 0.2};
    plan.stages[1] = (plan_stage_t){3, 5, 2, 1, PLAN_ROTATE, 1, false, 0.3, 0.6};
    plan.stages[2] = (plan_stage_t){0, 5, 3, 1, PLAN_ROTATE, 1, false, 0.5, 1.0};
    plan.pipelines[0] = (plan_pipeline_t){0, 2, 24, 4, SCHEDULE_H1F1B, 0.7};
    plan.pipelines[1] = (plan_pipeline_t){2, 1, 8, 4, SCHEDULE_GPIPE, 0.75};
    plan.shards[0] = 4;
    plan.shards[1] = 5;
    for (uint32_t at = 0; at < 5; at++) {
        plan.group_shard[at] = at % 2;
    }
    return plan;
}

static record_t small_record(void)
{
    record_t record = {
        .history = 1,
        .version = 77,
        .incarnation = 2,
        .epoch = 3,
        .tokens = UINT64_C(1) << 40,
        .scale = 0.5,
        .rate = 3e-4,
        .kappa = 1.25,
        .norm = 2.0,
        .step = 76,
        .low_water = 1000,
        .committed = hx_new(2, sizeof(row_range_t)),
        .committed_count = 2,
        .skipped = hx_new(1, sizeof(row_range_t)),
        .skipped_count = 1,
        .floor = (UINT64_C(2) << 40) + 9,
        .snapshot = true,
        .step_mean = 0.8,
        .lookahead = 1.5,
        .dropped = 4,
        .auto_quorum = 24,
        .auto_staleness = 6,
        .auto_forced = 0.02,
        .auto_calm = 11,
        .settings_serial = 5,
        .settings = hx_new(2, sizeof(setting_t)),
        .settings_count = 2,
        .members = hx_new(1, sizeof(round_member_t)),
        .members_count = 1,
    };
    record.committed[0] = (row_range_t){1016, 1032};
    record.committed[1] = (row_range_t){1040, 1048};
    record.skipped[0] = (row_range_t){500, 516};
    record.settings[0] = (setting_t){"sync.staleness", "8"};
    record.settings[1] = (setting_t){"worker.east/slow.slowdown", "4"};
    record.members[0] = (round_member_t){.attempt = (UINT64_C(2) << 40) + 8,
                                         .pipeline = 1,
                                         .row_first = 1016,
                                         .rows = 16,
                                         .tokens = 16384,
                                         .loss = 7e4,
                                         .lag = 2,
                                         .weight = 1.0,
                                         .factor = 0.99,
                                         .seconds = 1.5};
    return record;
}

typedef enum { OF_PLAN, OF_PROFILE, OF_PREPARE, OF_RECORD, OF_DOUBLES, OF_ATTEMPTS, OF_END } of_t;

static blob_t *sample(of_t of)
{
    static const double doubles[] = {0, 1.5, 1e300};
    static const uint64_t numbers[] = {1, 200, 70000, UINT64_MAX};
    blob_t *blob = NULL;
    plan_t plan = small_plan();
    record_t record = small_record();
    const profile_t profile = {4, {1, 2}, {3, 4}, {5, 6}, UINT64_C(1) << 34, 8, 1.5};
    const prepare_t prepare = {record.members, 1, (uint64_t[]){7, 9}, 2, true};
    switch (of) {
    case OF_PLAN:
        blob = payload_plan_encode(&plan);
        break;
    case OF_PROFILE:
        blob = payload_profile_encode(&profile);
        break;
    case OF_PREPARE:
        blob = payload_prepare_encode(&prepare);
        break;
    case OF_RECORD:
        blob = payload_record_encode(&record);
        break;
    case OF_DOUBLES:
        blob = payload_doubles_encode(doubles, 3);
        break;
    default:
        blob = payload_attempts_encode(numbers, 4);
        break;
    }
    plan_destroy(&plan);
    record_destroy(&record);
    return blob;
}

// Decodes as `of` and encodes again; NULL if it was refused.
static blob_t *again(of_t of, const blob_t *blob)
{
    plan_t plan;
    profile_t profile;
    prepare_t prepare;
    record_t record;
    double *doubles;
    uint64_t *numbers;
    uint32_t count;
    blob_t *back = NULL;
    if (of == OF_PLAN && payload_plan_decode(blob, &plan) == HX_OK) {
        back = payload_plan_encode(&plan);
        plan_destroy(&plan);
    } else if (of == OF_PROFILE && payload_profile_decode(blob, &profile) == HX_OK) {
        back = payload_profile_encode(&profile);
    } else if (of == OF_PREPARE && payload_prepare_decode(blob, &prepare) == HX_OK) {
        back = payload_prepare_encode(&prepare);
        prepare_destroy(&prepare);
    } else if (of == OF_RECORD && payload_record_decode(blob, &record) == HX_OK) {
        back = payload_record_encode(&record);
        record_destroy(&record);
    } else if (of == OF_DOUBLES && payload_doubles_decode(blob, &doubles, &count) == HX_OK) {
        back = payload_doubles_encode(doubles, count);
        free(doubles);
    } else if (of == OF_ATTEMPTS && payload_attempts_decode(blob, &numbers, &count) == HX_OK) {
        back = payload_attempts_encode(numbers, count);
        free(numbers);
    }
    return back;
}

static bool same(const blob_t *a, const blob_t *b)
{
    return blob_size(a) == blob_size(b) && memcmp(blob_data(a), blob_data(b), blob_size(a)) == 0;
}

Test(payload, every_kind_comes_back_to_the_byte)
{
    for (of_t of = OF_PLAN; of < OF_END; of++) {
        blob_t *blob = sample(of);
        blob_t *back = again(of, blob);
        cr_assert_not_null(back, "kind %d", of);
        cr_assert(same(blob, back), "kind %d", of);
        blob_release(&blob);
        blob_release(&back);
    }
}

Test(payload, plan_keeps_its_values)
{
    plan_t plan = small_plan();
    plan_t read;
    blob_t *blob = payload_plan_encode(&plan);
    cr_assert_eq(payload_plan_decode(blob, &read), HX_OK);
    cr_assert(plan_equal(&plan, &read));
    cr_assert_str_eq(read.nodes[2].data, "tcp://10.0.0.2:4000");
    cr_assert_eq(read.stages[0].recompute, true);
    cr_assert_eq(read.resume, PLAN_RESUME_NONE);
    blob_release(&blob);
    plan_destroy(&plan);
    plan_destroy(&read);
}

Test(payload, record_copy_is_deep)
{
    record_t record = small_record();
    record_t copy;
    record_copy(&record, &copy);
    record.members[0].attempt = 0;
    record_destroy(&record);
    cr_assert_eq(copy.members[0].attempt, (UINT64_C(2) << 40) + 8);
    cr_assert_eq(copy.committed[1].end, 1048);
    cr_assert_eq(copy.skipped[0].first, 500);
    cr_assert_str_eq(copy.settings[1].key, "worker.east/slow.slowdown");
    cr_assert_str_eq(copy.settings[0].value, "8");
    record_destroy(&copy);
    cr_assert_null(copy.members);
}

Test(payload, every_truncation_and_every_tail_is_refused)
{
    for (of_t of = OF_PLAN; of < OF_END; of++) {
        blob_t *blob = sample(of);
        const size_t size = blob_size(blob);
        uint8_t *const bytes = hx_new(size + 1, 1);
        memcpy(bytes, blob_data(blob), size);
        for (size_t cut = 0; cut <= size + 1; cut++) {
            blob_t *part = blob_copy(bytes, cut);
            blob_t *back = again(of, part);
            cr_assert_eq(back != NULL, cut == size, "kind %d cut at %zu", of, cut);
            blob_release(&part);
            blob_release(&back);
        }
        free(bytes);
        blob_release(&blob);
    }
}

Test(payload, changed_bytes_are_refused_or_canonical)
{
    hx_rng_t rng = hx_rng_seed(seed_of("payload changes"));
    for (of_t of = OF_PLAN; of < OF_END; of++) {
        blob_t *blob = sample(of);
        for (int round = 0; round < 20000; round++) {
            blob_t *changed = blob_copy(blob_data(blob), blob_size(blob));
            uint8_t *const bytes = blob_edit(changed);
            for (uint64_t change = hx_rng_below(&rng, 3); change < 3; change++) {
                bytes[hx_rng_below(&rng, blob_size(blob))] = (uint8_t)hx_rng_next(&rng);
            }
            blob_t *back = again(of, changed);
            cr_assert(!back || same(changed, back), "kind %d", of);
            blob_release(&changed);
            blob_release(&back);
        }
        blob_release(&blob);
    }
}

// Ten bytes that promise four thousand million elements.
Test(payload, counts_are_not_believed)
{
    const uint8_t bytes[] = {0xdd, 0xff, 0xff, 0xff, 0xff, 0xcb, 0, 0, 0, 0};
    blob_t *blob = blob_copy(bytes, sizeof bytes);
    for (of_t of = OF_PLAN; of < OF_END; of++) {
        cr_assert_null(again(of, blob));
    }
    blob_release(&blob);
}

Test(payload, missing_and_virtual_blobs_are_refused)
{
    blob_t *blob = blob_virtual(100);
    for (of_t of = OF_PLAN; of < OF_END; of++) {
        cr_assert_null(again(of, NULL));
        cr_assert_null(again(of, blob));
    }
    blob_release(&blob);
}

static bool plan_taken(plan_t *plan)
{
    blob_t *blob = payload_plan_encode(plan);
    plan_t read;
    const bool taken = payload_plan_decode(blob, &read) == HX_OK;
    if (taken) {
        plan_destroy(&read);
    }
    blob_release(&blob);
    return taken;
}

Test(payload, indices_outside_of_a_plan_are_refused)
{
    plan_t plan = small_plan();
    cr_assert(plan_taken(&plan));
    plan.lead = plan.nodes_count;
    cr_assert_not(plan_taken(&plan));
    plan.lead = 6;
    plan.members[3].node = 8;
    cr_assert_not(plan_taken(&plan));
    plan.members[3].node = 3;
    plan.stages[1].members_count = 3;
    cr_assert_not(plan_taken(&plan));
    plan.stages[1].members_count = 1;
    plan.stages[1].mode = PLAN_MODES_COUNT;
    cr_assert_not(plan_taken(&plan));
    plan.stages[1].mode = PLAN_ROTATE;
    plan.pipelines[1].stage_first = 3;
    cr_assert_not(plan_taken(&plan));
    plan.pipelines[1].stage_first = 2;
    plan.group_shard[0] = 2;
    cr_assert_not(plan_taken(&plan));
    plan.group_shard[0] = 1;
    plan.step_seconds = INFINITY;
    cr_assert_not(plan_taken(&plan));
    plan.step_seconds = 1;
    cr_assert(plan_taken(&plan));
    plan_destroy(&plan);
}

Test(payload, ranges_of_a_record_must_ascend, .signal = SIGABRT)
{
    record_t record = small_record();
    record.committed[1].first = record.committed[0].end;  // They touch: should be one range.
    payload_record_encode(&record);
}

Test(payload, votes_may_hold_what_is_not_finite)
{
    const double values[] = {NAN, INFINITY, 2};
    blob_t *blob = payload_doubles_encode(values, 3);
    double *read;
    uint32_t count;
    cr_assert_eq(payload_doubles_decode(blob, &read, &count), HX_OK);
    cr_assert_eq(count, 3);
    cr_assert(isnan(read[0]) && isinf(read[1]));
    free(read);
    blob_release(&blob);
}

Test(payload, empty_lists_are_fine)
{
    const prepare_t prepare = {0};
    prepare_t read;
    blob_t *blob = payload_prepare_encode(&prepare);
    cr_assert_eq(payload_prepare_decode(blob, &read), HX_OK);
    cr_assert_eq(read.members_count, 0);
    cr_assert_eq(read.closed_count, 0);
    prepare_destroy(&read);
    blob_release(&blob);
}
