// lead_world_plan - the plan of a world: its nodes, its pipelines cut evenly, its shards.

#include "tests/support/lead_world.h"

#include <inttypes.h>
#include <stdio.h>

static plan_node_t node_of(node_id_t id, plan_role_t role)
{
    plan_node_t node = {.id = id, .role = role};
    snprintf(node.site, sizeof node.site, "here");
    snprintf(node.name, sizeof node.name, "here/%s%" PRIu64, plan_role_name(role), id);
    snprintf(node.control, sizeof node.control, "inproc://control%" PRIu64, id);
    snprintf(node.data, sizeof node.data, "inproc://data%" PRIu64, id);
    return node;
}

static void plan_pipeline(const lead_world_conf_t *conf, const model_t *model, uint32_t pipeline,
                          plan_t *plan)
{
    const uint32_t layers = model_layers_count(model);
    plan->pipelines[pipeline] = (plan_pipeline_t){
        .stage_first = plan->stages_count,
        .stages_count = conf->stages,
        .rows = conf->rows[pipeline],
        .microbatch = conf->rows[pipeline],
        .schedule = SCHEDULE_1F1B,
        .step_seconds = (double)conf->row_time[pipeline] * conf->rows[pipeline] / 1e9,
    };
    for (uint32_t stage = 0; stage < conf->stages; stage++) {
        plan->stages[plan->stages_count++] = (plan_stage_t){
            .layer_first = layers * stage / conf->stages,
            .layer_end = layers * (stage + 1) / conf->stages,
            .member_first = plan->members_count,
            .members_count = 1,
            .depth = 1,
        };
        plan->members[plan->members_count++] =
            (plan_member_t){.node = plan->nodes_count, .share = 1};
        plan->nodes[plan->nodes_count] =
            node_of(WORLD_WORKER + pipeline * conf->stages + stage, PLAN_WORKER);
        plan->nodes_count++;
    }
}

void lead_world_plan(const lead_world_conf_t *conf, const model_t *model, plan_t *plan)
{
    const uint32_t workers = conf->pipelines * conf->stages;
    plan->epoch = 1;
    plan->run_id = 7;
    plan->resume = conf->resume ? conf->resume->version : PLAN_RESUME_NONE;
    plan->step_seconds = 0.1;
    plan->nodes = hx_new(2 + conf->shards + workers, sizeof *plan->nodes);
    plan->pipelines = hx_new(conf->pipelines, sizeof *plan->pipelines);
    plan->stages = hx_new(workers, sizeof *plan->stages);
    plan->members = hx_new(workers, sizeof *plan->members);
    plan->shards = hx_new(conf->shards, sizeof *plan->shards);
    plan->nodes[plan->nodes_count++] = node_of(WORLD_LEAD, PLAN_LEAD);
    plan->nodes[plan->nodes_count++] = node_of(WORLD_KEEPER, PLAN_KEEPER);
    plan->keeper = 1;
    for (uint32_t at = 0; at < conf->shards; at++) {
        plan->shards[plan->shards_count++] = plan->nodes_count;
        plan->nodes[plan->nodes_count++] = node_of(WORLD_SHARD + at, PLAN_SHARD);
    }
    plan->pipelines_count = conf->pipelines;
    for (uint32_t at = 0; at < conf->pipelines; at++) {
        plan_pipeline(conf, model, at, plan);
    }
    plan->groups_count = model_groups_count(model);
    plan->group_shard = hx_new(plan->groups_count, sizeof *plan->group_shard);
    for (uint32_t at = 0; at < plan->groups_count; at++) {
        plan->group_shard[at] = at % conf->shards;
    }
}
