// seats - see the header.

#include "tests/support/seats.h"

#include <inttypes.h>
#include <stdio.h>

static void add_node(plan_t *plan, node_id_t id, plan_role_t role, uint32_t number)
{
    plan_node_t *const node = &plan->nodes[plan->nodes_count++];
    *node = (plan_node_t){.id = id, .role = role};
    snprintf(node->site, sizeof node->site, "east");
    snprintf(node->name, sizeof node->name, "east/%s%" PRIu32, plan_role_name(role), number);
    snprintf(node->control, sizeof node->control, "control-%" PRIu64, id);
    snprintf(node->data, sizeof node->data, "data-%" PRIu64, id);
}

static uint32_t members_of(const seats_conf_t *conf, uint32_t stage)
{
    return HX_MAX(conf->members[stage], 1);
}

static void add_members(plan_t *plan, const seats_conf_t *conf, uint32_t stage,
                        uint32_t worker_first)
{
    double sum = 0;
    for (uint32_t member = 0; member < members_of(conf, stage); member++) {
        sum += HX_MAX(conf->weights[stage][member], 1);
    }
    for (uint32_t member = 0; member < members_of(conf, stage); member++) {
        const uint32_t place = plan->members_count;
        const uint32_t worker = conf->seated ? conf->workers[stage][member] : place;
        plan->members[plan->members_count++] = (plan_member_t){
            .node = worker_first + worker,
            .share = HX_MAX(conf->weights[stage][member], 1) / sum,
        };
    }
}

static void add_stages(plan_t *plan, const seats_conf_t *conf, uint32_t worker_first)
{
    uint32_t first = 0;
    for (uint32_t index = 0; index < conf->stages; index++) {
        plan->stages[index] = (plan_stage_t){
            .layer_first = first,
            .layer_end = conf->ends[index],
            .member_first = plan->members_count,
            .members_count = members_of(conf, index),
            .mode = conf->modes[index],
            .depth = conf->depths[index] > 0 ? conf->depths[index] : conf->stages - index,
            .recompute = conf->recompute,
            .forward_seconds = 1,
            .backward_seconds = 2,
        };
        add_members(plan, conf, index, worker_first);
        first = conf->ends[index];
    }
}

uint32_t seats_workers(const seats_conf_t *conf)
{
    uint32_t seats = 0;
    for (uint32_t stage = 0; stage < conf->stages; stage++) {
        HX_ASSERT(members_of(conf, stage) <= SEATS_MEMBERS_MAX);
        seats += members_of(conf, stage);
    }
    return seats + conf->spares;
}

plan_t seats_plan(const seats_conf_t *conf, const model_t *model)
{
    HX_ASSERT(conf->stages >= 1 && conf->stages <= SEATS_STAGES_MAX && conf->shards >= 1);
    const uint32_t workers = seats_workers(conf);
    plan_t plan = {
        .epoch = conf->epoch > 0 ? conf->epoch : 1,
        .run_id = 77,
        .nodes = hx_new(2 + conf->shards + workers, sizeof *plan.nodes),
        .pipelines = hx_new(1, sizeof *plan.pipelines),
        .pipelines_count = 1,
        .stages = hx_new(conf->stages, sizeof *plan.stages),
        .stages_count = conf->stages,
        .members = hx_new(workers, sizeof *plan.members),
        .group_shard = hx_new(model_groups_count(model), sizeof *plan.group_shard),
        .groups_count = model_groups_count(model),
        .shards = hx_new(conf->shards, sizeof *plan.shards),
        .shards_count = conf->shards,
        .lead = 0,
        .keeper = 1,
        .resume = PLAN_RESUME_NONE,
        .step_seconds = 1,
    };
    add_node(&plan, SEATS_LEAD, PLAN_LEAD, 0);
    add_node(&plan, SEATS_KEEPER, PLAN_KEEPER, 0);
    for (uint32_t shard = 0; shard < conf->shards; shard++) {
        plan.shards[shard] = plan.nodes_count;
        add_node(&plan, SEATS_SHARD + shard, PLAN_SHARD, shard);
    }
    const uint32_t worker_first = plan.nodes_count;
    for (uint32_t worker = 0; worker < workers; worker++) {
        add_node(&plan, SEATS_WORKER + worker, PLAN_WORKER, worker);
    }
    for (uint32_t group = 0; group < plan.groups_count; group++) {
        plan.group_shard[group] = group % conf->shards;
    }
    plan.pipelines[0] = (plan_pipeline_t){
        .stages_count = conf->stages,
        .rows = conf->rows,
        .microbatch = conf->microbatch,
        .schedule = conf->schedule,
        .step_seconds = 1,
    };
    add_stages(&plan, conf, worker_first);
    hx_fault_t fault = {{0}};
    if (plan_check(&plan, model, &fault) != HX_OK) {
        fprintf(stderr, "seats: %s\n", fault.text);
        HX_ASSERT(false && "a plan of a test passes the check");
    }
    return plan;
}
