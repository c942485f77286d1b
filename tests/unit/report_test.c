// report_test - counts, durations, the plan and the status as people read them.

#include "scheduler/report.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *count(double value)
{
    static char text[32];
    report_count(value, text, sizeof text);
    return text;
}

static const char *duration(double seconds)
{
    static char text[32];
    report_duration(seconds, text, sizeof text);
    return text;
}

Test(report, counts_are_short)
{
    cr_assert_str_eq(count(0), "0");
    cr_assert_str_eq(count(980), "980");
    cr_assert_str_eq(count(8192), "8192");
    cr_assert_str_eq(count(45230), "45.2k");
    cr_assert_str_eq(count(999600), "1.00M");
    cr_assert_str_eq(count(1.234e9), "1.23G");
    cr_assert_str_eq(count(NAN), "-");
}

Test(report, durations_are_minutes_or_hours)
{
    cr_assert_str_eq(duration(7), "0:07");
    cr_assert_str_eq(duration(59.6), "1:00");
    cr_assert_str_eq(duration(760), "12:40");
    cr_assert_str_eq(duration(10921), "3:02:01");
    cr_assert_str_eq(duration(NAN), "-");
    cr_assert_str_eq(duration(-1), "-");
}

static plan_node_t nodes[] = {
    {.id = 2, .role = PLAN_LEAD, .site = "east", .name = "east/ps0.lead"},
    {.id = 3, .role = PLAN_KEEPER, .site = "east", .name = "east/ps0.keeper"},
    {.id = 4, .role = PLAN_SHARD, .site = "east", .name = "east/ps0.shard0"},
    {.id = 5, .role = PLAN_WORKER, .site = "east", .name = "east/fast"},
    {.id = 6, .role = PLAN_WORKER, .site = "west", .name = "west/slow"},
};

static model_t *open_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 3;
    conf.heads = 2;
    conf.channels = 8;
    conf.context = 4;
    conf.vocab = 16;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    return model;
}

static plan_t make_plan(void)
{
    static plan_pipeline_t pipelines[] = {{.stages_count = 2,
                                           .rows = 8,
                                           .microbatch = 2,
                                           .schedule = SCHEDULE_H1F1B,
                                           .step_seconds = 0.5}};
    static plan_stage_t stages[] = {
        {.layer_end = 3, .members_count = 1, .depth = 2, .forward_seconds = 0.01},
        {.layer_first = 3,
         .layer_end = 5,
         .member_first = 1,
         .members_count = 1,
         .depth = 1,
         .backward_seconds = 0.02},
    };
    static plan_member_t members[] = {{.node = 3, .share = 1}, {.node = 4, .share = 1}};
    static uint32_t group_shard[6];
    static uint32_t shards[] = {2};
    return (plan_t){.epoch = 1,
                    .nodes = nodes,
                    .nodes_count = 5,
                    .pipelines = pipelines,
                    .pipelines_count = 1,
                    .stages = stages,
                    .stages_count = 2,
                    .members = members,
                    .members_count = 2,
                    .group_shard = group_shard,
                    .groups_count = 6,
                    .shards = shards,
                    .shards_count = 1,
                    .lead = 0,
                    .keeper = 1,
                    .step_seconds = 0.5};
}

Test(report, a_plan_names_who_runs_what)
{
    model_t *model = open_model();
    const plan_t plan = make_plan();
    cr_assert_eq(plan_check(&plan, model, NULL), HX_OK);
    char *const text = report_plan_text(&plan, model);
    static const char *const parts[] = {
        "plan 1: 1 pipeline, 2 stages, 1 shard; predicted 0.5000 s a step, 64 tokens/s",
        "pipeline 1: 8 of 8 rows in microbatches of 2, h1f1b, 0.5000 s",
        "east/fast",
        "embedding + blocks 1-2",
        "block 3 + head",
        "10.00 ms forward",
        "20.00 ms backward  depth 1",
        "east/ps0.shard0",
    };
    for (size_t at = 0; at < HX_COUNT(parts); at++) {
        cr_assert(strstr(text, parts[at]), "no \"%s\" in:\n%s", parts[at], text);
    }
    free(text);
    model_destroy(&model);
}

Test(report, a_plan_as_json_has_the_same)
{
    model_t *model = open_model();
    const plan_t plan = make_plan();
    json_t *const json = report_plan_json(&plan, model);
    const json_t *const pipelines = json_object_get(json, "pipelines");
    cr_assert_eq(json_array_size(pipelines), 1);
    const json_t *const stages = json_object_get(json_array_get(pipelines, 0), "stages");
    cr_assert_eq(json_array_size(stages), 2);
    const json_t *const second = json_array_get(stages, 1);
    cr_assert_eq(json_integer_value(json_object_get(second, "blocks")), 1);
    const json_t *const member = json_array_get(json_object_get(second, "members"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(member, "name")), "west/slow");
    const json_t *const shard = json_array_get(json_object_get(json, "shards"), 0);
    cr_assert_eq(json_integer_value(json_object_get(shard, "parameters")),
                 (json_int_t)model_params_count(model));
    json_decref(json);
    model_destroy(&model);
}

Test(report, a_status_becomes_a_table)
{
    static const char status[] =
        "{\"run\": \"one\", \"phase\": \"running\", \"mode\": \"ssaw\", \"version\": 7, "
        "\"tokens\": "
        "12345, \"loss\": null, \"waiting\": \"\", \"nodes\": [{\"name\": \"east/fast\", \"role\": "
        "\"worker\", \"site\": \"east\", \"state\": \"here\", \"heard_seconds\": 1.25, "
        "\"pipeline\": "
        "1, \"stage\": 2, \"step_seconds\": 0.5, \"tokens_per_second\": 20000, \"lag\": 3}]}";
    char *text = NULL;
    cr_assert_eq(report_status_text(status, strlen(status), &text), HX_OK);
    cr_assert(strstr(text, "run \"one\": running, ssaw; commit 7, 12.3k tokens, loss -"), "%s",
              text);
    cr_assert(strstr(text, "0.500     20.0k   3.0"), "%s", text);
    free(text);
    cr_assert_eq(report_status_text("[", 1, &text), HX_E_FORMAT);
    cr_assert_eq(report_status_text("{}", 2, &text), HX_E_FORMAT);
}

Test(report, a_status_shows_pipelines_and_bars_of_lags)
{
    static const char status[] =
        "{\"run\": \"one\", \"nodes\": [], \"sync_age_seconds\": 12, \"sync\": {\"quorum\": 0.5, "
        "\"staleness\": null, "
        "\"grace\": 0.1, \"alpha\": 0.5, \"lr\": 0.003, \"waits_for\": \"grace\", \"set\": "
        "{\"sync.alpha\": \"0.5\"}, \"lags\": [10, 20, 0, 1, 0, 0], \"pipelines\": [{\"pipeline\": "
        "2, \"state\": \"live\", \"base\": 7, \"lag\": 1, \"lag_mean\": 1.25, \"held\": 3, "
        "\"in_flight\": 2, \"step_seconds\": 0.25, \"step_spread\": 0.125, \"forced_waits\": 4, "
        "\"forced_seconds\": 1.5}]}}";
    char *text = NULL;
    cr_assert_eq(report_status_text(status, strlen(status), &text), HX_OK);
    static const char *const parts[] = {
        "quorum 0.50, staleness none, grace 0.10, alpha 0.50, lr 0.003000; the round waits for "
        "grace",
        "set while the run is on: sync.alpha = 0.5",
        "last 12 s ago",
        "2         live            7    1       1.2     3         2    0.250    0.125",
        "            4       1.5",
        "lag  0          10 ####################\n",
        "lag  1          20 ########################################\n",
        "lag  2           0 \n",
        "lag  3           1 ##\n",
    };
    for (size_t at = 0; at < HX_COUNT(parts); at++) {
        cr_expect(strstr(text, parts[at]), "no \"%s\" in:\n%s", parts[at], text);
    }
    cr_expect_null(strstr(text, "lag  4"), "what never came has no bar");
    free(text);
}
