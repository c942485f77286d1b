// plan_test - every refusal of plan_check, copies, look-ups, parts of tied groups.

#include "model/plan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static model_t *open_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 4;
    conf.heads = 2;
    conf.channels = 8;
    conf.context = 4;
    conf.vocab = 16;
    model_t *model = NULL;
    cr_assert_eq(model_open(&conf, &model, NULL), HX_OK);
    return model;
}

static void set_node(plan_t *plan, uint32_t at, plan_role_t role, const char *name)
{
    plan->nodes[at].id = 10 + at;
    plan->nodes[at].role = role;
    snprintf(plan->nodes[at].site, sizeof plan->nodes[at].site, "east");
    snprintf(plan->nodes[at].name, sizeof plan->nodes[at].name, "%s", name);
}

static void set_stage(plan_t *plan, uint32_t at, uint32_t first, uint32_t end, uint32_t node,
                      uint32_t depth)
{
    plan->members[at] = (plan_member_t){.node = node, .share = 1};
    plan->stages[at] = (plan_stage_t){.layer_first = first,
                                      .layer_end = end,
                                      .member_first = at,
                                      .members_count = 1,
                                      .depth = depth};
}

// Two pipelines: workers a (layers 0-2) and b (3-5), and worker c alone. Model: 6 layers, 7 groups.
static plan_t make_plan(const model_t *model)
{
    plan_t plan = {.epoch = 1, .run_id = 5, .resume = PLAN_RESUME_NONE, .step_seconds = 1};
    plan.nodes_count = 7;
    plan.nodes = hx_new(7, sizeof *plan.nodes);
    set_node(&plan, 0, PLAN_LEAD, "east/ps0.lead");
    set_node(&plan, 1, PLAN_KEEPER, "east/ps0.keeper");
    set_node(&plan, 2, PLAN_SHARD, "east/ps0.shard0");
    set_node(&plan, 3, PLAN_SHARD, "east/ps0.shard1");
    set_node(&plan, 4, PLAN_WORKER, "east/a");
    set_node(&plan, 5, PLAN_WORKER, "east/b");
    set_node(&plan, 6, PLAN_WORKER, "east/c");
    plan.lead = 0;
    plan.keeper = 1;
    plan.shards_count = 2;
    plan.shards = hx_new(2, sizeof *plan.shards);
    plan.shards[0] = 2;
    plan.shards[1] = 3;
    plan.pipelines_count = 2;
    plan.pipelines = hx_new(2, sizeof *plan.pipelines);
    plan.pipelines[0] = (plan_pipeline_t){.stage_first = 0,
                                          .stages_count = 2,
                                          .rows = 6,
                                          .microbatch = 2,
                                          .schedule = SCHEDULE_H1F1B};
    plan.pipelines[1] = (plan_pipeline_t){
        .stage_first = 2, .stages_count = 1, .rows = 2, .microbatch = 2, .schedule = SCHEDULE_1F1B};
    plan.stages_count = plan.members_count = 3;
    plan.stages = hx_new(3, sizeof *plan.stages);
    plan.members = hx_new(3, sizeof *plan.members);
    set_stage(&plan, 0, 0, 3, 4, 2);
    set_stage(&plan, 1, 3, 6, 5, 1);
    set_stage(&plan, 2, 0, 6, 6, 1);
    plan.groups_count = model_groups_count(model);
    plan.group_shard = hx_new(plan.groups_count, sizeof *plan.group_shard);
    plan.group_shard[1] = 1;
    return plan;
}

static model_t *model;
static plan_t plan;

static void set_up(void)
{
    model = open_model();
    plan = make_plan(model);
}

static void tear_down(void)
{
    plan_destroy(&plan);
    model_destroy(&model);
}

TestSuite(plan, .init = set_up, .fini = tear_down);

static void refused(const char *part)
{
    hx_fault_t fault = {{0}};
    cr_assert_eq(plan_check(&plan, model, &fault), HX_E_ARG, "accepted; expected: %s", part);
    cr_assert(strstr(fault.text, part), "\"%s\" lacks \"%s\"", fault.text, part);
    cr_assert_null(strchr(fault.text, '\n'));
    cr_assert_eq(plan_check(&plan, model, NULL), HX_E_ARG);
}

Test(plan, a_sound_one_passes)
{
    hx_fault_t fault = {{0}};
    cr_assert_eq(plan_check(&plan, model, &fault), HX_OK, "%s", fault.text);
}

Test(plan, epoch_zero_is_refused)
{
    plan.epoch = 0;
    refused("epoch");
}

Test(plan, empty_lists_are_refused)
{
    plan.pipelines_count = 0;
    refused("0 pipelines");
    plan.pipelines_count = PLAN_PIPELINES_MAX + 1;
    refused("257 pipelines, must be 1 to 256");
}

Test(plan, layers_that_do_not_add_up_name_both_totals)
{
    plan.stages[1].layer_end = 5;
    refused("pipeline 0 have 5 layers in all, the model has 6");
    plan.stages[1].layer_end = 7;
    refused("7 layers in all, the model has 6");
}

Test(plan, a_gap_or_an_overlap_of_layers_is_refused)
{
    plan.stages[1].layer_first = 4;
    refused("stage 1 of pipeline 0 begins at layer 4, the stages before it end at 3");
    plan.stages[1].layer_first = 2;
    refused("begins at layer 2");
}

Test(plan, a_stage_without_layers_is_refused)
{
    plan.stages[0].layer_end = 0;
    refused("stage 0 of pipeline 0 has no layers");
}

Test(plan, a_worker_in_two_stages_is_refused)
{
    plan.members[2].node = 5;
    refused("\"east/b\" is in two stages");
}

Test(plan, a_member_that_is_no_worker_is_refused)
{
    plan.members[2].node = 3;
    refused("\"east/ps0.shard1\", a shard, not a worker");
    plan.members[2].node = 7;
    refused("names node 7, there are 7");
}

Test(plan, shares_must_sum_to_one)
{
    plan.members[2].share = 0.5;
    refused("sum to 0.5");
    plan.members[2].share = -1;
    refused("share of worker \"east/c\" is -1");
    plan.members[2].share = NAN;
    refused("share of worker");
}

Test(plan, rows_and_microbatch_are_needed)
{
    plan.pipelines[1].rows = 0;
    refused("pipeline 1 has no rows");
    plan.pipelines[1].rows = 1;
    plan.pipelines[1].microbatch = 0;
    refused("pipeline 1 has no microbatch");
    plan.pipelines[1].microbatch = 1;
    plan.pipelines[1].rows = SCHEDULE_MICROS_MAX + 1;
    refused("65537 microbatches");
}

Test(plan, an_unknown_schedule_is_refused)
{
    plan.pipelines[0].schedule = SCHEDULE_KINDS_COUNT;
    refused("unknown schedule");
}

Test(plan, modes_have_names_and_an_unknown_one_is_refused)
{
    for (uint32_t mode = 0; mode < PLAN_MODES_COUNT; mode++) {
        plan_mode_t found;
        cr_assert(plan_mode_find(plan_mode_name((plan_mode_t)mode), &found));
        cr_assert_eq(found, mode);
    }
    plan_mode_t unused;
    cr_assert_not(plan_mode_find("patch", &unused));
    plan.stages[1].mode = PLAN_MODES_COUNT;
    refused("unknown mode");
}

Test(plan, depths_must_be_positive_and_never_larger_behind)
{
    plan.stages[1].depth = 0;
    refused("depth 0");
    plan.stages[1].depth = 3;
    refused("stage 1 of pipeline 0 has depth 3, must be 1 to 2");
}

Test(plan, times_must_be_numbers)
{
    plan.stages[1].forward_seconds = NAN;
    refused("time that is none");
    plan.stages[1].forward_seconds = 0;
    plan.pipelines[0].step_seconds = -1;
    refused("step time that is none");
    plan.pipelines[0].step_seconds = 0;
    plan.step_seconds = INFINITY;
    refused("predicted step time");
}

Test(plan, pieces_must_follow_one_another)
{
    plan.pipelines[1].stage_first = 1;
    refused("pipeline 1 has stages from 1");
    plan.pipelines[1].stage_first = 2;
    plan.pipelines[1].stages_count = 2;
    refused("its pipelines have 4 stages, it lists 3");
    plan.pipelines[1].stages_count = 1;
    plan.stages[1].member_first = 0;
    refused("has members from 0");
    plan.stages[1].member_first = 1;
    plan.stages[2].members_count = 2;
    refused("its stages have 4 members, it lists 3");
}

Test(plan, names_and_ids_must_be_unique)
{
    plan.nodes[6].id = plan.nodes[5].id;
    refused("the same id");
    plan.nodes[6].id = 99;
    strcpy(plan.nodes[6].name, "east/b");
    refused("two nodes are called \"east/b\"");
    plan.nodes[6].name[0] = '\0';
    refused("node 6 has no name");
    memset(plan.nodes[6].name, 'x', sizeof plan.nodes[6].name);
    refused("a text of node 6 has no end");
}

Test(plan, roles_must_be_those_of_a_plan)
{
    plan.nodes[6].role = PLAN_CONTROL;
    refused("\"east/c\" has the role 6");
}

Test(plan, lead_and_keeper_must_have_their_roles)
{
    plan.lead = 1;
    refused("the lead is \"east/ps0.keeper\", a keeper, not a lead");
    plan.lead = 99;
    refused("the lead is node 99, there are 7");
    plan.lead = 0;
    plan.keeper = 4;
    refused("the keeper is \"east/a\", a worker");
}

Test(plan, shards_must_be_shards_once_each)
{
    plan.shards[1] = 4;
    refused("a shard is \"east/a\", a worker");
    plan.shards[1] = 2;
    refused("\"east/ps0.shard0\" is two shards");
}

Test(plan, every_group_needs_a_known_shard)
{
    plan.group_shard[3] = 2;
    refused("group 3 is on shard 2, there are 2");
    plan.group_shard[3] = 0;
    plan.groups_count--;
    refused("places 6 parameter groups, the model has 7");
}

Test(plan, a_copy_is_equal_until_something_changes)
{
    plan_t copy;
    plan_copy(&plan, &copy);
    cr_assert(plan_equal(&plan, &copy));
    cr_assert_neq(copy.nodes, plan.nodes);
    copy.members[1].share = 0.25;
    cr_assert_not(plan_equal(&plan, &copy));
    copy.members[1].share = 1;
    copy.group_shard[6] = 1;
    cr_assert_not(plan_equal(&plan, &copy));
    copy.group_shard[6] = 0;
    strcpy(copy.nodes[2].data, "tcp://1.2.3.4:5");
    cr_assert_not(plan_equal(&plan, &copy));
    plan_destroy(&copy);
    plan_destroy(&copy);
    cr_assert_null(copy.nodes);
}

Test(plan, finds_nodes_and_seats)
{
    uint32_t pipeline = 9;
    uint32_t stage = 9;
    uint32_t member = 9;
    cr_assert_eq(plan_node_of(&plan, 15), 5);
    cr_assert_eq(plan_node_of(&plan, 1234), UINT32_MAX);
    cr_assert(plan_seat_of(&plan, 15, &pipeline, &stage, &member));
    cr_assert_eq(pipeline, 0);
    cr_assert_eq(stage, 1);
    cr_assert_eq(member, 0);
    cr_assert(plan_seat_of(&plan, 16, &pipeline, &stage, &member));
    cr_assert_eq(pipeline, 1);
    cr_assert_not(plan_seat_of(&plan, 12, &pipeline, &stage, &member));
    cr_assert_str_eq(plan_member_node(&plan, 0, 1, 0)->name, "east/b");
    cr_assert_str_eq(plan_shard_node(&plan, 1)->name, "east/ps0.shard1");
}

Test(plan, a_tied_group_has_a_part_in_each_stage_that_uses_it)
{
    cr_assert_eq(plan_parts(&plan, model, 0, 0), 2);
    cr_assert_eq(plan_part_of(&plan, model, 0, 0, 0), 0);
    cr_assert_eq(plan_part_of(&plan, model, 0, 1, 0), 1);
    cr_assert_eq(plan_parts(&plan, model, 1, 0), 1);
    cr_assert_eq(plan_parts(&plan, model, 0, 1), 1);
    cr_assert_eq(plan_part_of(&plan, model, 0, 1, 1), UINT32_MAX);
    const uint32_t last = model_groups_count(model) - 1;
    cr_assert_eq(plan_part_of(&plan, model, 0, 1, last), 0);
    cr_assert_eq(plan_part_of(&plan, model, 0, 0, last), UINT32_MAX);
}
