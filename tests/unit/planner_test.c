// planner_test - plans of random clusters hold, are never worse than the plain ones; cuts by hand.

#include "scheduler/planner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"
#include "tests/unit/planner_cluster.h"

static plan_t solved(cluster_t *self)
{
    plan_t plan;
    hx_fault_t fault = {{0}};
    cr_assert_eq(planner_solve(&self->in, &plan, &fault), HX_OK, "%s", fault.text);
    cr_assert_eq(plan_check(&plan, self->model, &fault), HX_OK, "%s", fault.text);
    uint64_t rows = 0;
    for (uint32_t at = 0; at < plan.pipelines_count; at++) {
        cr_assert_geq(plan.pipelines[at].rows, 1);
        cr_assert_gt(plan.pipelines[at].step_seconds, 0);
        rows += plan.pipelines[at].rows;
    }
    cr_assert_eq(rows, self->conf.rows);
    cr_assert_gt(plan.step_seconds, 0);
    return plan;
}

static void refused(cluster_t *self, const char *part)
{
    plan_t plan;
    hx_fault_t fault = {{0}};
    cr_assert_eq(planner_solve(&self->in, &plan, &fault), HX_E_ARG);
    cr_assert(strstr(fault.text, part), "\"%s\" lacks \"%s\"", fault.text, part);
    cr_assert_eq(plan.epoch, 0);
}

Test(planner, is_never_worse_than_plain_plans_and_always_the_same)
{
    hx_rng_t rng = hx_rng_seed(seed_of("planner"));
    uint32_t better = 0;
    for (uint32_t round = 0; round < 150; round++) {
        cluster_t cluster;
        random_cluster(&cluster, &rng);
        plan_t best = solved(&cluster);
        plan_t again = solved(&cluster);
        cr_assert(plan_equal(&best, &again));
        for (int method = PLANNER_UNIFORM; method < PLANNER_EXHAUSTIVE; method++) {
            cluster.conf.method = (planner_method_t)method;
            plan_t plain;
            hx_fault_t fault;
            if (planner_solve(&cluster.in, &plain, &fault) != HX_OK) {
                continue;  // More pipelines than rows.
            }
            cr_assert_eq(plan_check(&plain, cluster.model, &fault), HX_OK, "%s", fault.text);
            cr_assert_leq(best.step_seconds, plain.step_seconds, "%s",
                          planner_method_name(cluster.conf.method));
            better += method == PLANNER_UNIFORM && best.step_seconds < 0.95 * plain.step_seconds;
            plan_destroy(&plain);
        }
        plan_destroy(&best);
        plan_destroy(&again);
        end(&cluster);
    }
    cr_assert_gt(better, 75);
}

Test(planner, plain_plans_are_what_they_say)
{
    cluster_t cluster;
    begin(&cluster, 4, 24, 1);
    add_worker(&cluster, "east", "fast", 1);
    add_worker(&cluster, "east", "slow", 3);
    add_worker(&cluster, "west", "fast", 1);
    add_worker(&cluster, "west", "slow", 3);
    cluster.conf.method = PLANNER_DATA_PARALLEL;
    plan_t plan = solved(&cluster);
    cr_assert_eq(plan.pipelines_count, 4);
    for (uint32_t at = 0; at < 4; at++) {
        cr_assert_eq(plan.pipelines[at].rows, 6);
        cr_assert_eq(plan.pipelines[at].stages_count, 1);
    }
    plan_destroy(&plan);
    cluster.conf.method = PLANNER_BALANCED;
    plan = solved(&cluster);
    cr_assert_eq(plan.pipelines_count, 4);
    cr_assert_gt(plan.pipelines[0].rows, plan.pipelines[1].rows);
    plan_destroy(&plan);
    cluster.conf.method = PLANNER_HETPIPE;
    plan = solved(&cluster);
    cr_assert_eq(4 % plan.pipelines_count, 0);
    cr_assert_eq(plan.stages_count, 4, "it uses every device");
    for (uint32_t at = 0; at < plan.pipelines_count; at++) {
        cr_assert_eq(plan.pipelines[at].rows, 24 / plan.pipelines_count);
    }
    plan_destroy(&plan);
    cluster.conf.method = PLANNER_SINGLE;
    plan = solved(&cluster);
    cr_assert_eq(plan.stages_count, 1);
    plan_destroy(&plan);
    end(&cluster);
}

Test(planner, makes_exactly_as_many_pipelines_as_asked_for)
{
    hx_rng_t rng = hx_rng_seed(seed_of("planner_number"));
    for (uint32_t round = 0; round < 40; round++) {
        cluster_t cluster;
        random_cluster(&cluster, &rng);
        const uint32_t workers =
            cluster.in.nodes_count - 3 - (cluster.nodes[3].role == PLAN_SHARD ? 1 : 0);
        for (uint32_t number = 1; number <= workers; number++) {
            cluster.conf.pipelines = number;
            plan_t plan = solved(&cluster);
            cr_assert_eq(plan.pipelines_count, number);
            plan_destroy(&plan);
        }
        cluster.conf.pipelines = workers + 1;
        refused(&cluster, "workers");
        end(&cluster);
    }
}

Test(planner, prices_a_plan_that_stands_as_it_did_when_it_made_it)
{
    hx_rng_t rng = hx_rng_seed(seed_of("planner_price"));
    for (uint32_t round = 0; round < 50; round++) {
        cluster_t cluster;
        random_cluster(&cluster, &rng);
        plan_t plan = solved(&cluster);
        plan_t again;
        plan_copy(&plan, &again);
        planner_price(&cluster.in, &again);
        cr_assert(plan_equal(&plan, &again));
        for (uint32_t at = 0; at < cluster.in.nodes_count; at++) {
            cluster.profiles[at].block.forward *= 2;
            cluster.profiles[at].block.backward *= 2;
        }
        planner_price(&cluster.in, &again);
        cr_assert_gt(again.step_seconds, plan.step_seconds);
        plan_destroy(&plan);
        plan_destroy(&again);
        end(&cluster);
    }
}

Test(planner, shares_rows_so_that_unequal_pipelines_end_together)
{
    cluster_t cluster;
    begin(&cluster, 2, 60, 1);
    add_worker(&cluster, "east", "fast", 1);
    add_worker(&cluster, "east", "slow", 3);
    cluster.conf.pipelines = 2;
    cluster.links[0] = (profile_link_t){.from = 103, .to = 102, .bandwidth = 1e12};
    cluster.in.links_count = 1;
    plan_t plan = solved(&cluster);
    cr_assert_eq(plan.pipelines[0].rows, 45);
    cr_assert_eq(plan.pipelines[1].rows, 15);
    plan_destroy(&plan);
    end(&cluster);
}

Test(planner, gives_unequal_devices_of_a_pipeline_unequal_layers)
{
    cluster_t cluster;
    begin(&cluster, 8, 64, 1);
    add_worker(&cluster, "east", "fast", 1);
    add_worker(&cluster, "east", "slow", 3);
    cluster.conf.pipelines = 1;
    plan_t plan = solved(&cluster);
    cr_assert_eq(plan.stages_count, 2);
    for (uint32_t at = 0; at < 2; at++) {
        const plan_stage_t *const stage = &plan.stages[at];
        const uint32_t layers = stage->layer_end - stage->layer_first;
        const bool fast = strcmp(plan_member_node(&plan, 0, at, 0)->name, "east/fast") == 0;
        cr_assert(fast ? layers >= 7 : layers <= 3, "%u", layers);
    }
    plan_destroy(&plan);
    end(&cluster);
}

Test(planner, cuts_by_hand_are_followed_to_the_letter)
{
    cluster_t cluster;
    begin(&cluster, 4, 16, 2);
    add_worker(&cluster, "east", "a", 1);
    add_worker(&cluster, "east", "b", 9);
    add_worker(&cluster, "west", "c", 2);
    cluster.conf.stages = "east/b:3,east/a:1;west/c:4";
    plan_t plan = solved(&cluster);
    cr_assert_eq(plan.pipelines_count, 2);
    cr_assert_str_eq(plan_member_node(&plan, 0, 0, 0)->name, "east/b");
    cr_assert_str_eq(plan_member_node(&plan, 0, 1, 0)->name, "east/a");
    cr_assert_str_eq(plan_member_node(&plan, 1, 0, 0)->name, "west/c");
    cr_assert_eq(plan_stage(&plan, 0, 0)->layer_first, 0);
    cr_assert_eq(plan_stage(&plan, 0, 0)->layer_end, 4);
    cr_assert_eq(plan_stage(&plan, 0, 1)->layer_end, 6);
    cr_assert_eq(plan_stage(&plan, 1, 0)->layer_end, 6);
    plan_destroy(&plan);
    cluster.conf.stages = "east:3,1;4";
    plan = solved(&cluster);
    cr_assert_str_eq(plan_member_node(&plan, 0, 0, 0)->name, "east/a");
    cr_assert_str_eq(plan_member_node(&plan, 0, 1, 0)->name, "east/b");
    cr_assert_str_eq(plan_member_node(&plan, 1, 0, 0)->name, "west/c");
    plan_destroy(&plan);
    cluster.conf.stages = "west/c:4";
    plan = solved(&cluster);
    cr_assert_eq(plan.stages_count, 1);
    plan_destroy(&plan);
    end(&cluster);
}

Test(planner, cuts_by_hand_that_do_not_add_up_are_refused_with_both_numbers)
{
    cluster_t cluster;
    begin(&cluster, 4, 16, 2);
    add_worker(&cluster, "east", "a", 1);
    add_worker(&cluster, "east", "b", 1);
    cluster.conf.stages = "east/a:3,east/b:2";
    refused(&cluster, "pipeline 1 have 5 transformer blocks in all, the model has 4");
    cluster.conf.stages = "east/a:4;east/b:3";
    refused(&cluster, "pipeline 2 have 3 transformer blocks in all, the model has 4");
    cluster.conf.stages = "1,1,1,1,1";
    refused(&cluster, "5 stages, the model has 4 transformer blocks");
    cluster.conf.stages = "east/a:4,east/b:0";
    refused(&cluster, "has no transformer block");
    cluster.conf.stages = "east/a:2,east/c:2";
    refused(&cluster, "no worker \"east/c\" in this run; there are: east/a, east/b");
    cluster.conf.stages = "east/a:2,east/a:2";
    refused(&cluster, "\"east/a\" is named twice");
    cluster.conf.stages = "2,1,1";
    refused(&cluster, "finds no free worker");
    cluster.conf.stages = "west:4";
    refused(&cluster, "no free worker at site west");
    static const char *const bad[] = {"east/a",    "east/a:",   ":4",         "east/a:4,",      ";",
                                      "east/a:4;", "east/a:-4", "east/a:4 x", "east/a:99999999"};
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        cluster.conf.stages = bad[at];
        refused(&cluster, "is no stage");
    }
    cluster.conf.stages = "east/a:4";
    cluster.conf.pipelines = 2;
    refused(&cluster, "plan.stages has 1 pipelines, plan.pipelines says 2");
    end(&cluster);
}

Test(planner, what_does_not_fit_into_memory_is_refused_with_the_bytes)
{
    cluster_t cluster;
    begin(&cluster, 4, 16, 2);
    add_worker(&cluster, "east", "a", 1);
    cluster.profiles[3].memory = 1000;
    refused(&cluster, "pipeline of \"east/a\" and 0 more (1000 bytes in all");
    cluster.conf.method = PLANNER_SINGLE;
    refused(&cluster, "do not fit on worker \"east/a\"");
    cluster.conf.stages = "4";
    refused(&cluster, "do not fit on worker \"east/a\"");
    end(&cluster);
}

Test(planner, a_small_device_gets_no_more_than_it_can_hold)
{
    cluster_t cluster;
    begin(&cluster, 8, 16, 1);
    add_worker(&cluster, "east", "big", 4);
    add_worker(&cluster, "east", "small", 1);
    cluster.conf.pipelines = 1;
    const uint64_t block = model_layer(cluster.model, 1)->params_size;
    cluster.profiles[4].memory = 4 * block * 3;
    plan_t plan = solved(&cluster);
    uint32_t pipeline, stage, member;
    if (plan_seat_of(&plan, 104, &pipeline, &stage, &member)) {
        const plan_stage_t *const at = plan_stage(&plan, pipeline, stage);
        cr_assert_leq(at->layer_end - at->layer_first, 3);
    }
    plan_destroy(&plan);
    end(&cluster);
}

Test(planner, more_pipelines_than_rows_are_refused)
{
    cluster_t cluster;
    begin(&cluster, 2, 1, 1);
    add_worker(&cluster, "east", "a", 1);
    add_worker(&cluster, "east", "b", 1);
    cluster.conf.pipelines = 2;
    refused(&cluster, "2 pipelines, but a global batch has 1 rows");
    end(&cluster);
}

Test(planner, groups_are_balanced_over_shards_and_near_their_layers)
{
    cluster_t cluster;
    begin(&cluster, 8, 64, 1);
    add_node(&cluster, PLAN_SHARD, "west", "ps1.shard0");
    add_worker(&cluster, "east", "a", 1);
    add_worker(&cluster, "west", "b", 1);
    cluster.conf.stages = "east/a:4,west/b:4";
    plan_t plan = solved(&cluster);
    cr_assert_eq(plan.shards_count, 2);
    uint64_t load[2] = {0, 0};
    uint32_t near = 0;
    for (uint32_t group = 0; group < plan.groups_count; group++) {
        load[plan.group_shard[group]] += model_group(cluster.model, group)->size;
        if (group >= 2 && group < 10) {
            near += plan.group_shard[group] == (group < 6 ? 0u : 1u) ? 1 : 0;
        }
    }
    cr_assert_lt(load[0], 2 * load[1]);
    cr_assert_lt(load[1], 2 * load[0]);
    cr_assert_geq(near, 6);
    plan_destroy(&plan);
    end(&cluster);
}
