// member_test - a node's membership: registration, plans, probes, signals, the end.

#include "net/member.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/payload.h"

#define LEAD 10
#define SHARD 12
#define WORKER 13

typedef struct {
    model_t *model;
    member_t member;
    step_out_t out;
    hx_time_t now;
} world_t;

static model_t *open_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 2;
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

// A lead, a keeper, a shard, and one worker that does everything.
static plan_t make_plan(const model_t *model, uint32_t epoch)
{
    plan_t plan = {.epoch = epoch,
                   .run_id = 5,
                   .resume = PLAN_RESUME_NONE,
                   .step_seconds = 1,
                   .nodes = hx_new(4, sizeof *plan.nodes),
                   .nodes_count = 4,
                   .lead = 0,
                   .keeper = 1};
    set_node(&plan, 0, PLAN_LEAD, "east/ps0.lead");
    set_node(&plan, 1, PLAN_KEEPER, "east/ps0.keeper");
    set_node(&plan, 2, PLAN_SHARD, "east/ps0.shard0");
    set_node(&plan, 3, PLAN_WORKER, "east/a");
    plan.shards = hx_new(1, sizeof *plan.shards);
    plan.shards_count = 1;
    plan.shards[0] = 2;
    plan.pipelines = hx_new(1, sizeof *plan.pipelines);
    plan.pipelines_count = 1;
    plan.pipelines[0] =
        (plan_pipeline_t){.stages_count = 1, .rows = 2, .microbatch = 2, .schedule = SCHEDULE_1F1B};
    plan.stages = hx_new(1, sizeof *plan.stages);
    plan.stages_count = 1;
    plan.stages[0] =
        (plan_stage_t){.layer_end = model_layers_count(model), .members_count = 1, .depth = 1};
    plan.members = hx_new(1, sizeof *plan.members);
    plan.members_count = 1;
    plan.members[0] = (plan_member_t){.node = 3, .share = 1};
    plan.groups_count = model_groups_count(model);
    plan.group_shard = hx_new(plan.groups_count, sizeof *plan.group_shard);
    return plan;
}

static void world_open(world_t *world, plan_role_t role)
{
    *world = (world_t){.model = open_model(), .out = {.wake_at = HX_TIME_NEVER}, .now = HX_SEC(50)};
    const member_conf_t conf = {.id = role == PLAN_WORKER ? WORKER : SHARD,
                                .role = role,
                                .run = "tiny",
                                .site = "east",
                                .name = "east/a",
                                .scheduler = "tcp://127.0.0.1:4000",
                                .conf_hash = 7,
                                .data_hash = 8,
                                .join_timeout = HX_SEC(12),
                                .request_timeout = HX_SEC(3),
                                .model = world->model};
    member_init(&world->member, &conf);
}

static void world_close(world_t *world)
{
    member_clear(&world->member);
    step_out_destroy(&world->out);
    model_destroy(&world->model);
}

static member_event_t give(world_t *world, step_in_t in)
{
    in.now = world->now;
    step_out_clear(&world->out);
    return member_step(&world->member, &in, &world->out);
}

static member_event_t message(world_t *world, node_id_t peer, wire_msg_t msg, blob_t *blob)
{
    return give(world, (step_in_t){.kind = STEP_MESSAGE, .peer = peer, .msg = msg, .blob = blob});
}

static member_event_t pass(world_t *world, hx_time_t time)
{
    world->now += time;
    return give(world, (step_in_t){.kind = STEP_TIMER});
}

static uint32_t count_sends(const world_t *world, node_id_t to, wire_kind_t kind)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < world->out.sends_count; at++) {
        count += world->out.sends[at].to == to && world->out.sends[at].msg.kind == kind;
    }
    return count;
}

static member_event_t start(world_t *world)
{
    return give(world, (step_in_t){.kind = STEP_START});
}

static void welcome(world_t *world)
{
    start(world);
    cr_assert_eq(message(world, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_WELCOME}, NULL),
                 MEMBER_WELCOME);
}

static member_event_t give_plan(world_t *world, uint32_t epoch, uint32_t told)
{
    plan_t plan = make_plan(world->model, epoch);
    blob_t *blob = payload_plan_encode(&plan);
    const member_event_t event =
        message(world, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = told}, blob);
    blob_release(&blob);
    plan_destroy(&plan);
    return event;
}

Test(member, takes_from_the_configuration_what_every_role_has)
{
    static conf_t conf;
    conf.run.join_timeout = HX_SEC(7);
    snprintf(conf.run.name, sizeof conf.run.name, "tiny");
    snprintf(conf.scheduler.endpoint, sizeof conf.scheduler.endpoint, "tcp://there:4000");
    const member_conf_t made = member_conf_of(&conf, PLAN_KEEPER, "east", "east/ps0.keeper",
                                              "tcp://here:1", "tcp://here:2");
    cr_assert_eq(made.role, PLAN_KEEPER);
    cr_assert_eq(made.join_timeout, HX_SEC(7));
    cr_assert_str_eq(made.run, "tiny");
    cr_assert_str_eq(made.site, "east");
    cr_assert_str_eq(made.name, "east/ps0.keeper");
    cr_assert_str_eq(made.control, "tcp://here:1");
    cr_assert_str_eq(made.data, "tcp://here:2");
    cr_assert_str_eq(made.scheduler, "tcp://there:4000");
}

Test(member, registers_at_once_and_every_second_until_welcome)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    cr_assert_eq(start(&world), MEMBER_OTHER);
    cr_assert_eq(world.out.dials_count, 1);
    cr_assert_eq(world.out.dials[0].peer, NODE_SCHEDULER);
    cr_assert_str_eq(world.out.dials[0].control, "tcp://127.0.0.1:4000");
    cr_assert_eq(count_sends(&world, NODE_SCHEDULER, WIRE_REGISTER), 1);
    const wire_msg_t *const msg = &world.out.sends[0].msg;
    cr_assert_eq(msg->role, PLAN_WORKER);
    cr_assert_eq(msg->hash, 7);
    cr_assert_eq(msg->hash2, 8);
    cr_assert_str_eq(msg->name, "east/a");
    cr_assert_str_eq(msg->text, "tiny");
    cr_assert_eq(world.out.wake_at, world.now + HX_SEC(1));
    pass(&world, HX_MS(999));
    cr_assert_eq(world.out.sends_count, 0);
    pass(&world, HX_MS(1));
    cr_assert_eq(count_sends(&world, NODE_SCHEDULER, WIRE_REGISTER), 1);
    const wire_msg_t taken = {.kind = WIRE_WELCOME, .hash = 1};
    cr_assert_eq(message(&world, NODE_SCHEDULER, taken, NULL), MEMBER_WELCOME);
    cr_assert_eq(message(&world, NODE_SCHEDULER, taken, NULL), MEMBER_HANDLED);
    pass(&world, HX_SEC(100));
    cr_assert_eq(world.out.sends_count, 0);
    cr_assert_eq(world.out.wake_at, HX_TIME_NEVER);
    world_close(&world);
}

Test(member, gives_up_with_one_line_when_there_is_no_scheduler)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    start(&world);
    uint32_t words = 0;
    for (int at = 0; at < 11; at++) {
        cr_assert_eq(pass(&world, HX_SEC(1)), MEMBER_OTHER);
        words += world.out.notes_count;
    }
    cr_assert_eq(words, 2);
    cr_assert_eq(pass(&world, HX_SEC(1)), MEMBER_ENDING);
    cr_assert(world.out.stop);
    cr_assert_eq(world.out.status, 1);
    cr_assert(strstr(world.out.reason, "tcp://127.0.0.1:4000"), "%s", world.out.reason);
    cr_assert(strstr(world.out.reason, "12 s"), "%s", world.out.reason);
    world_close(&world);
}

Test(member, refusal_ends_the_node_with_the_schedulers_words)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    start(&world);
    wire_msg_t msg = {.kind = WIRE_REFUSED};
    snprintf(msg.text, sizeof msg.text, "another run name");
    cr_assert_eq(message(&world, SHARD, msg, NULL), MEMBER_OTHER, "from somebody else");
    cr_assert_not(world.out.stop);
    cr_assert_eq(message(&world, NODE_SCHEDULER, msg, NULL), MEMBER_ENDING);
    cr_assert_eq(world.out.status, 1);
    cr_assert(strstr(world.out.reason, "another run name"));
    world_close(&world);
}

Test(member, plan_is_checked_kept_and_acknowledged_until_the_lead_speaks)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    welcome(&world);
    cr_assert_eq(member_lead(&world.member), NODE_NONE);
    cr_assert_eq(give_plan(&world, 1, 1), MEMBER_PLAN);
    cr_assert_eq(member_lead(&world.member), LEAD);
    cr_assert_eq(member_keeper(&world.member), LEAD + 1);
    step_out_clear(&world.out);
    member_ready(&world.member, 3, world.now, &world.out);
    cr_assert_eq(count_sends(&world, LEAD, WIRE_PLAN_ACK), 1);
    cr_assert_eq(world.out.sends[0].msg.version, 3);
    cr_assert_eq(world.out.sends[0].msg.epoch, 1);
    pass(&world, HX_SEC(2));
    cr_assert_eq(world.out.sends_count, 0, "run.request_timeout is longer");
    pass(&world, HX_SEC(1));
    cr_assert_eq(count_sends(&world, LEAD, WIRE_PLAN_ACK), 1);
    member_heard(&world.member);
    pass(&world, HX_SEC(3));
    cr_assert_eq(world.out.sends_count, 0);
    world_close(&world);
}

Test(member, lead_acknowledges_to_the_scheduler)
{
    world_t world;
    world_open(&world, PLAN_LEAD);
    welcome(&world);
    cr_assert_eq(give_plan(&world, 1, 1), MEMBER_PLAN);
    step_out_clear(&world.out);
    member_ready(&world.member, 0, world.now, &world.out);
    cr_assert_eq(count_sends(&world, NODE_SCHEDULER, WIRE_PLAN_ACK), 1);
    world_close(&world);
}

Test(member, bad_old_and_foreign_plans_change_nothing)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    welcome(&world);
    cr_assert_eq(give_plan(&world, 2, 2), MEMBER_PLAN);
    cr_assert_eq(give_plan(&world, 2, 2), MEMBER_HANDLED, "the same again");
    cr_assert_eq(give_plan(&world, 1, 1), MEMBER_HANDLED, "an older one");
    cr_assert_eq(give_plan(&world, 4, 3), MEMBER_HANDLED, "header and payload differ");
    cr_assert_eq(world.out.notes_count, 1);
    blob_t *noise = blob_copy("plan", 4);
    cr_assert_eq(
        message(&world, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = 3}, noise),
        MEMBER_HANDLED);
    blob_release(&noise);
    cr_assert_eq(message(&world, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = 3}, NULL),
                 MEMBER_HANDLED);
    cr_assert_eq(world.member.plan.epoch, 2);
    world_close(&world);
}

Test(member, plan_that_cannot_be_run_is_dropped_with_its_fault)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    welcome(&world);
    plan_t plan = make_plan(world.model, 1);
    plan.stages[0].layer_end--;
    blob_t *blob = payload_plan_encode(&plan);
    cr_assert_eq(message(&world, NODE_SCHEDULER, (wire_msg_t){.kind = WIRE_PLAN, .epoch = 1}, blob),
                 MEMBER_HANDLED);
    cr_assert_eq(world.member.plan.epoch, 0);
    cr_assert_eq(world.out.notes_count, 1);
    cr_assert(strstr(world.out.notes[0].text, "layer"), "%s", world.out.notes[0].text);
    blob_release(&blob);
    plan_destroy(&plan);
    world_close(&world);
}

Test(member, what_is_refused_is_named_counted_and_not_said_for_ever)
{
    world_t world;
    world_open(&world, PLAN_SHARD);
    welcome(&world);
    give_plan(&world, 1, 1);
    const step_in_t in = {.peer = WORKER, .msg = {.kind = WIRE_GRANT}};
    step_out_clear(&world.out);
    member_refuse(&world.member, &in, &world.out, "lease %d is none", 7);
    member_refuse(&world.member, &(step_in_t){.peer = 0xabc, .msg = {.kind = WIRE_ACK}}, &world.out,
                  "too early");
    cr_assert_str_eq(world.out.notes[0].text, "GRANT from east/a dropped: lease 7 is none");
    cr_assert_str_eq(world.out.notes[1].text, "ACK from node 0000000000000abc dropped: too early");
    cr_assert_eq(world.member.refused, 2);
    for (uint32_t at = 2; at < MEMBER_LOUD; at++) {
        member_refuse(&world.member, &in, &world.out, "again");
    }
    cr_assert_eq(world.out.notes[MEMBER_LOUD - 1].level, STEP_WARN);
    member_refuse(&world.member, &in, &world.out, "again");
    cr_assert_eq(world.out.notes[MEMBER_LOUD].level, STEP_DEBUG);
    world_close(&world);
}

Test(member, probes_are_answered_whoever_asks)
{
    world_t world;
    world_open(&world, PLAN_SHARD);
    start(&world);
    cr_assert_eq(message(&world, WORKER, (wire_msg_t){.kind = WIRE_PROBE, .micro = 9}, NULL),
                 MEMBER_HANDLED);
    cr_assert_eq(count_sends(&world, WORKER, WIRE_PROBED), 1);
    cr_assert_eq(world.out.sends[0].msg.micro, 9);
    world_close(&world);
}

Test(member, stop_is_told_once_and_answered_with_its_status)
{
    world_t world;
    world_open(&world, PLAN_WORKER);
    welcome(&world);
    wire_msg_t stop = {.kind = WIRE_STOP, .count = 130};
    snprintf(stop.text, sizeof stop.text, "interrupted");
    cr_assert_eq(message(&world, NODE_SCHEDULER, stop, NULL), MEMBER_ENDING);
    cr_assert_not(world.out.stop, "the role says when");
    cr_assert_eq(message(&world, NODE_SCHEDULER, stop, NULL), MEMBER_HANDLED);
    cr_assert_eq(give(&world, (step_in_t){.kind = STEP_LOST, .peer = NODE_SCHEDULER}),
                 MEMBER_OTHER);
    cr_assert_not(world.out.stop, "it is ending as it was told");
    blob_t *trace = blob_copy("{}\n", 3);
    step_out_clear(&world.out);
    member_stopped(&world.member, &world.out, trace);
    cr_assert_eq(count_sends(&world, NODE_SCHEDULER, WIRE_STOPPED), 1);
    cr_assert_geq(blob_size(world.out.sends[0].blob), 3);
    cr_assert(world.out.stop);
    cr_assert_eq(world.out.status, 130);
    cr_assert_str_eq(world.out.reason, "interrupted");
    blob_release(&trace);
    world_close(&world);
}

Test(member, lost_scheduler_ends_the_node_and_other_losses_do_not)
{
    world_t world;
    world_open(&world, PLAN_SHARD);
    welcome(&world);
    cr_assert_eq(give(&world, (step_in_t){.kind = STEP_LOST, .peer = WORKER}), MEMBER_OTHER);
    cr_assert_not(world.out.stop);
    cr_assert_eq(give(&world, (step_in_t){.kind = STEP_LOST, .peer = NODE_SCHEDULER}),
                 MEMBER_ENDING);
    cr_assert_eq(world.out.status, 1);
    world_close(&world);
}

Test(member, orphan_waits_ten_seconds_for_the_true_reason)
{
    world_t world;
    world_open(&world, PLAN_SHARD);
    welcome(&world);
    step_out_clear(&world.out);
    member_orphaned(&world.member, world.now, &world.out, "the lead %s is gone", "x");
    cr_assert_eq(world.out.wake_at, world.now + HX_SEC(10));
    cr_assert_eq(pass(&world, HX_SEC(9)), MEMBER_OTHER);
    cr_assert_eq(pass(&world, HX_SEC(1)), MEMBER_ENDING);
    cr_assert_eq(world.out.status, 1);
    cr_assert_str_eq(world.out.reason, "the lead x is gone");
    world_close(&world);
}

Test(member, signal_before_welcome_ends_and_afterwards_asks_the_scheduler)
{
    world_t world;
    world_open(&world, PLAN_SHARD);
    start(&world);
    cr_assert_eq(give(&world, (step_in_t){.kind = STEP_SIGNAL}), MEMBER_ENDING);
    cr_assert_eq(world.out.status, 130);
    world_close(&world);
    world_open(&world, PLAN_SHARD);
    welcome(&world);
    cr_assert_eq(give(&world, (step_in_t){.kind = STEP_SIGNAL}), MEMBER_HANDLED);
    cr_assert_not(world.out.stop);
    cr_assert_eq(count_sends(&world, NODE_SCHEDULER, WIRE_STOP_ASK), 1);
    world_close(&world);
    world_open(&world, PLAN_WORKER);  // A worker leaves in its own way.
    welcome(&world);
    cr_assert_eq(give(&world, (step_in_t){.kind = STEP_SIGNAL}), MEMBER_OTHER);
    world_close(&world);
}
