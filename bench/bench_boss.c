// bench_boss - see the header.

#include "bench/bench_boss.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "net/payload.h"

#define JOIN_LIMIT HX_SEC(20)
#define LEAD_AT 0u
#define KEEPER_AT 1u
#define SHARDS_AT 2u

static plan_role_t role_of(node_id_t id)
{
    return id == BENCH_LEAD     ? PLAN_LEAD
           : id == BENCH_KEEPER ? PLAN_KEEPER
           : id < BENCH_WORKER  ? PLAN_SHARD
                                : PLAN_WORKER;
}

member_conf_t bench_boss_member(node_id_t id, const model_t *model)
{
    const plan_role_t role = role_of(id);
    const node_id_t first = role == PLAN_WORKER  ? BENCH_WORKER
                            : role == PLAN_SHARD ? BENCH_SHARD
                                                 : id;
    member_conf_t conf = {.id = id,
                          .role = role,
                          .run = "bench",
                          .site = "here",
                          .join_timeout = JOIN_LIMIT,
                          .model = model};
    snprintf(conf.name, sizeof conf.name, "here/%s%" PRIu64, plan_role_name(role), id - first);
    return conf;
}

void bench_boss_init(bench_boss_t *self, const bench_boss_conf_t *conf)
{
    HX_ASSERT(conf->shards > 0 && conf->shards <= BENCH_SHARDS_MAX);
    HX_ASSERT(conf->workers > 0 && conf->workers <= BENCH_WORKERS_MAX);
    const uint32_t groups = model_groups_count(conf->model);
    *self = (bench_boss_t){.conf = *conf};
    self->plan = (plan_t){
        .epoch = 1,
        .run_id = 1,
        .nodes_count = SHARDS_AT + conf->shards + conf->workers,
        .pipelines_count = conf->workers,
        .stages_count = conf->workers,
        .members_count = conf->workers,
        .groups_count = groups,
        .shards_count = conf->shards,
        .lead = LEAD_AT,
        .keeper = KEEPER_AT,
        .resume = PLAN_RESUME_NONE,
    };
    plan_t *const plan = &self->plan;
    plan->nodes = hx_new(plan->nodes_count, sizeof *plan->nodes);
    plan->pipelines = hx_new(plan->pipelines_count, sizeof *plan->pipelines);
    plan->stages = hx_new(plan->stages_count, sizeof *plan->stages);
    plan->members = hx_new(plan->members_count, sizeof *plan->members);
    plan->group_shard = hx_new(groups, sizeof *plan->group_shard);
    plan->shards = hx_new(conf->shards, sizeof *plan->shards);
    for (uint32_t at = 0; at < conf->shards; at++) {
        plan->shards[at] = SHARDS_AT + at;
    }
    for (uint32_t at = 0; at < groups; at++) {
        plan->group_shard[at] = at % conf->shards;
    }
    for (uint32_t at = 0; at < conf->workers; at++) {
        plan->pipelines[at] =
            (plan_pipeline_t){.stage_first = at, .stages_count = 1, .rows = 1, .microbatch = 1};
        plan->stages[at] = (plan_stage_t){.layer_end = model_layers_count(conf->model),
                                          .member_first = at,
                                          .members_count = 1,
                                          .depth = 1};
        plan->members[at] = (plan_member_t){.node = SHARDS_AT + conf->shards + at, .share = 1};
    }
}

void bench_boss_clear(bench_boss_t *self)
{
    plan_destroy(&self->plan);
}

// Place of a node in the plan; UINT32_MAX: it is none of ours.
static uint32_t place_of(const bench_boss_t *self, node_id_t id)
{
    const bench_boss_conf_t *const conf = &self->conf;
    if (id == BENCH_LEAD || id == BENCH_KEEPER) {
        return id == BENCH_LEAD ? LEAD_AT : KEEPER_AT;
    }
    if (id >= BENCH_SHARD && id < BENCH_SHARD + conf->shards) {
        return SHARDS_AT + (uint32_t)(id - BENCH_SHARD);
    }
    if (id >= BENCH_WORKER && id < BENCH_WORKER + conf->workers) {
        return SHARDS_AT + conf->shards + (uint32_t)(id - BENCH_WORKER);
    }
    return UINT32_MAX;
}

static void send_all(const bench_boss_t *self, const wire_msg_t *msg, blob_t *blob, step_out_t *out)
{
    for (uint32_t at = 0; at < self->plan.nodes_count; at++) {
        if (self->plan.nodes[at].id != NODE_NONE) {
            step_send(out, self->plan.nodes[at].id, msg, blob);
        }
    }
}

static void on_register(bench_boss_t *self, const step_in_t *in, step_out_t *out)
{
    const uint32_t place = place_of(self, in->peer);
    if (place == UINT32_MAX || self->plan.nodes[place].id != NODE_NONE) {
        return;
    }
    plan_node_t *const node = &self->plan.nodes[place];
    node->id = in->peer;
    node->role = role_of(in->peer);
    memcpy(node->site, in->msg.site, sizeof node->site);
    memcpy(node->name, in->msg.name, sizeof node->name);
    memcpy(node->control, in->msg.control, sizeof node->control);
    memcpy(node->data, in->msg.data, sizeof node->data);
    const wire_msg_t welcome = {.kind = WIRE_WELCOME, .hash = self->plan.run_id};
    step_send(out, in->peer, &welcome, NULL);
    if (++self->joined == self->plan.nodes_count) {
        blob_t *blob = payload_plan_encode(&self->plan);
        const wire_msg_t plan = {.kind = WIRE_PLAN, .epoch = self->plan.epoch};
        send_all(self, &plan, blob, out);
        blob_release(&blob);
    }
}

static void stop_all(bench_boss_t *self, int status, const char *reason, step_out_t *out)
{
    if (self->stopping) {
        return;
    }
    self->stopping = true;
    self->status = status;
    snprintf(self->reason, sizeof self->reason, "%s", reason);
    wire_msg_t msg = {.kind = WIRE_STOP, .count = (uint32_t)status};
    memcpy(msg.text, self->reason, sizeof msg.text);
    send_all(self, &msg, NULL, out);
}

static void on_message(bench_boss_t *self, const step_in_t *in, step_out_t *out)
{
    switch (in->msg.kind) {
    case WIRE_REGISTER:
        on_register(self, in, out);
        break;
    case WIRE_DONE:
    case WIRE_STOP_ASK:
        stop_all(self, (int)in->msg.count, in->msg.text, out);
        break;
    case WIRE_STOPPED:
        self->stopped++;
        break;
    default:
        break;
    }
    if (self->stopping && self->stopped == self->joined) {
        step_stop(out, self->status, "%s", self->reason);
    }
}

void bench_boss_step(void *self_, const step_in_t *in, step_out_t *out)
{
    bench_boss_t *const self = self_;
    if (in->kind == STEP_MESSAGE) {
        on_message(self, in, out);
    } else if (in->kind == STEP_SIGNAL) {  // Or another node failed: not all may answer.
        stop_all(self, 130, "interrupted", out);
        step_stop(out, 130, "interrupted");
    } else if (in->kind == STEP_LOST && !self->stopping) {
        const uint32_t place = place_of(self, in->peer);
        step_stop(out, 1, "%s is gone",
                  place == UINT32_MAX ? "a node" : self->plan.nodes[place].name);
    }
}

void bench_keeper_step(void *self, const step_in_t *in, step_out_t *out)
{
    member_t *const member = self;
    if (member_step(member, in, out) == MEMBER_ENDING && !out->stop) {
        member_stopped(member, out, NULL);
    }
}
