// lead_live: orders of users while a run is on, and what the lead tells of its pipelines.

#include "server/lead.h"
#include "tensor/hx_rng.h"
#include "tests/support/lead_world.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT HX_SEC(100000)
#define ASKER ((node_id_t)777)

// Two pipelines of 4 rows, N = 8.
static const char *const TEXT = "sync\n"
                                "    mode = ssaw\n"
                                "model\n"
                                "    context = 8\n"
                                "train\n"
                                "    global_batch = 64\n"
                                "    lr = 0.01\n"
                                "plan\n"
                                "    microbatch = 1\n"
                                "    workers = 2\n"
                                "    servers = 1\n";

static conf_t live;

static lead_world_conf_t world_of(uint64_t seed, uint64_t rows)
{
    hx_fault_t fault;
    memset(&live, 0, sizeof live);
    cr_assert_eq(conf_read("t.conf", TEXT, strlen(TEXT), NULL, 0, &live, &fault), HX_OK, "%s",
                 fault.text);
    lead_world_conf_t conf = lead_world_conf(seed, ssaw_conf_of(&live.sync, 8, WORLD_CONTEXT));
    conf.tokens = rows * WORLD_CONTEXT;
    conf.live = &live;
    return conf;
}

static void order(lead_world_t *world, node_id_t from, wire_order_t what, const char *text)
{
    wire_msg_t msg = {.kind = WIRE_ORDER, .count = what, .node = ASKER};
    snprintf(msg.text, sizeof msg.text, "%s", text);
    lead_world_tell(world, from, &msg, NULL);
}

static uint64_t answers(const lead_world_t *world)
{
    return lead_world_sent_count(world, WIRE_ORDERED);
}

// The newest answer; its line has `says`.
static void answered(const lead_world_t *world, uint32_t status, const char *says)
{
    const wire_msg_t *const msg = lead_world_sent(world, WIRE_ORDERED, NODE_SCHEDULER);
    cr_assert(msg, "no answer");
    cr_assert_eq(msg->node, ASKER);
    cr_assert_eq(msg->count, status, "%" PRIu32 ": %s", msg->count, msg->text);
    cr_assert(strstr(msg->text, says), "\"%s\" does not say \"%s\"", msg->text, says);
}

static void goes_well(const lead_world_report_t *report, uint64_t rows)
{
    cr_assert_str_empty(report->broken);
    cr_assert(report->done, "it ends");
    cr_assert_eq(report->status, 0, "%s", report->reason);
    cr_assert_eq(report->rows_committed, rows);
}

// ---- settings

Test(lead_live, a_setting_is_journalled_answered_and_in_every_later_record)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(1));
    const uint64_t before = lead_world_view(world).version;
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "sync.grace=0.5");
    cr_assert_eq(answers(world), 0, "the journal has it first");
    lead_world_run(world, HX_MS(1001));
    answered(world, 0, "sync.grace = 0.5");
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "train.lr=0.25");
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "sync.grace=0.75");
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 400);
    cr_assert_gt(report->commits, before);
    cr_assert_eq(answers(world), 3);
    cr_assert_eq(report->view.ssaw.grace, 0.75);
    cr_assert_eq(report->view.lr, 0.25);
    cr_assert_eq(report->last.settings_serial, 3);
    cr_assert_eq(report->last.settings_count, 2);
    cr_assert_str_eq(report->last.settings[0].key, "sync.grace");
    cr_assert_str_eq(report->last.settings[0].value, "0.75");
    lead_world_destroy(&world);
    conf_destroy(&live);
}

Test(lead_live, a_setting_waits_for_the_end_of_the_round)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    hx_time_t now = HX_MS(30);
    while (lead_world_sent_count(world, WIRE_PREPARE) == 0) {
        lead_world_run(world, now += HX_US(500));
    }
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "sync.alpha=2");
    cr_assert_eq(lead_world_view(world).version, 0, "the round is being decided");
    cr_assert_eq(lead_world_view(world).ssaw.alpha, 0.5);
    while (lead_world_view(world).version == 0) {
        lead_world_run(world, now += HX_US(500));
    }
    cr_assert_eq(lead_world_view(world).ssaw.alpha, 2);
    goes_well(lead_world_run(world, LIMIT), 400);
    lead_world_destroy(&world);
    conf_destroy(&live);
}

Test(lead_live, what_cannot_be_is_refused_and_changes_nothing)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(1));
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"sync.staleness", "expected KEY VALUE"},
        {"sync.stalenes=8", "sync.staleness"},
        {"model.layers=8", "cannot be changed"},
        {"sync.quorum=7", "out of range"},
        {"worker.nobody.slowdown=2", "no worker of the plan"},
        {"worker.here/worker100.slowdown=0", "out of range"},
    };
    for (size_t at = 0; at < HX_COUNT(bad); at++) {
        order(world, NODE_SCHEDULER, WIRE_ORDER_SET, bad[at].text);
        answered(world, 2, bad[at].says);
    }
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "sync.staleness=1");
    lead_world_run(world, HX_MS(1200));
    answered(world, 0, "sync.staleness = 1");
    // With a bound of 1 and two pipelines.
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "sync.quorum=one");
    answered(world, 2, "number of pipelines");
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 400);
    cr_assert_eq(report->view.ssaw.quorum_rows, 4);
    cr_assert_eq(report->last.settings_serial, 1);
    lead_world_destroy(&world);
    conf_destroy(&live);
}

Test(lead_live, orders_of_strangers_are_nonsense)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(1));
    order(world, WORLD_WORKER, WIRE_ORDER_SET, "sync.staleness=1");
    cr_assert_eq(answers(world), 0);
    cr_assert_eq(lead_world_view(world).nonsense, 1);
    cr_assert_eq(lead_world_view(world).ssaw.staleness, 8);
    lead_world_destroy(&world);
    conf_destroy(&live);
}

Test(lead_live, slowdowns_go_to_their_worker_and_are_remembered)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(1));
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "worker.worker102.slowdown=3");
    const wire_msg_t *const msg = lead_world_sent(world, WIRE_SLOWDOWN, WORLD_WORKER + 2);
    cr_assert(msg);
    cr_assert_eq(msg->value, 3);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_eq(report->last.settings_count, 1);
    cr_assert_str_eq(report->last.settings[0].key, "worker.here/worker102.slowdown");
    lead_world_destroy(&world);
    conf_destroy(&live);
}

Test(lead_live, a_resume_goes_on_with_what_was_set)
{
    lead_world_conf_t conf = world_of(1, 80);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_MS(100));
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "sync.staleness=7");
    order(world, NODE_SCHEDULER, WIRE_ORDER_SET, "worker.worker100.slowdown=2");
    record_t last;
    record_copy(&lead_world_run(world, LIMIT)->last, &last);
    lead_world_destroy(&world);
    conf.resume = &last;
    conf.tokens = 160 * WORLD_CONTEXT;
    world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 80);
    cr_assert_eq(report->view.ssaw.staleness, 7);
    cr_assert_eq(report->last.settings_serial, 2);
    cr_assert(lead_world_sent(world, WIRE_SLOWDOWN, WORLD_WORKER));
    lead_world_destroy(&world);
    record_destroy(&last);
    conf_destroy(&live);
}

// What a journal kept and the file of today contradicts is left out, and the run goes on.
Test(lead_live, a_setting_that_is_no_longer_possible_is_left_out)
{
    lead_world_conf_t conf = world_of(1, 80);
    lead_world_t *world = lead_world_new(&conf);
    record_t last;
    record_copy(&lead_world_run(world, LIMIT)->last, &last);
    lead_world_destroy(&world);
    setting_t setting = {"sync.stale", "8"};
    free(last.settings);
    last.settings = hx_new(1, sizeof setting);
    last.settings[0] = setting;
    last.settings_count = 1;
    last.settings_serial = 1;
    conf.resume = &last;
    conf.tokens = 160 * WORLD_CONTEXT;
    world = lead_world_new(&conf);
    goes_well(lead_world_run(world, LIMIT), 80);
    lead_world_destroy(&world);
    record_destroy(&last);
    conf_destroy(&live);
}

// ---- checkpoints

Test(lead_live, a_checkpoint_is_answered_when_it_is_whole)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(1));
    const uint64_t version = lead_world_view(world).version;
    order(world, NODE_SCHEDULER, WIRE_ORDER_CHECKPOINT, "");
    cr_assert_eq(answers(world), 0);
    const lead_world_report_t *const report = lead_world_run(world, HX_SEC(2));
    answered(world, 0, "");
    cr_assert_eq(report->saves, 1);
    const uint64_t saved = lead_world_sent(world, WIRE_ORDERED, NODE_SCHEDULER)->version;
    cr_assert_gt(saved, version);
    cr_assert_leq(saved, lead_world_view(world).version);
    goes_well(lead_world_run(world, LIMIT), 400);
    cr_assert_eq(report->saves, 2, "and at the end");
    lead_world_destroy(&world);
    conf_destroy(&live);
}

Test(lead_live, a_checkpoint_that_fails_is_answered_as_failed)
{
    lead_world_conf_t conf = world_of(1, 400);
    conf.saves_failing = 1;
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(1));
    order(world, NODE_SCHEDULER, WIRE_ORDER_CHECKPOINT, "");
    lead_world_run(world, HX_SEC(2));
    answered(world, 1, "");
    goes_well(lead_world_run(world, LIMIT), 400);
    lead_world_destroy(&world);
    conf_destroy(&live);
}

// ---- nodes that leave

Test(lead_live, a_drained_pipeline_ends_its_step_and_loses_no_row)
{
    const lead_world_conf_t conf = world_of(1, 400);
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_MS(1010));
    order(world, NODE_SCHEDULER, WIRE_ORDER_DRAIN, "worker102");
    cr_assert_eq(answers(world), 0, "its step is not done");
    const uint64_t dropped = lead_world_view(world).dropped;
    lead_world_run(world, HX_MS(1100));
    answered(world, 0, "its step is done");
    cr_assert_str_eq(lead_world_sent(world, WIRE_ORDERED, NODE_SCHEDULER)->name, "here/worker102");
    cr_assert_eq(lead_world_view(world).live, 1);
    cr_assert_eq(lead_world_view(world).dropped, dropped, "what it had begun is announced");
    order(world, NODE_SCHEDULER, WIRE_ORDER_DRAIN, "worker100");
    answered(world, 2, "stop");
    goes_well(lead_world_run(world, LIMIT), 400);
    lead_world_destroy(&world);
    conf_destroy(&live);
}

// ---- laws

// Orders at random times, in worlds with delays, repeats and deaths.
static void disturb(lead_world_t *world, hx_rng_t *rng)
{
    static const char *const settings[] = {
        "sync.staleness=2", "sync.staleness=6", "sync.staleness=none",  "sync.staleness=auto",
        "sync.quorum=0.3",  "sync.quorum=1",    "sync.quorum=auto",     "sync.run_ahead=0",
        "sync.run_ahead=2", "sync.grace=1",     "sync.alpha=2",         "train.lr=0.5",
        "train.clip=1",     "sync.kappa_max=2", "sync.frequency=0",     "sync.weighting=const",
        "sync.quorum=one",  "sync.staleness=0", "sync.mass_exponent=1", "sync.agreement=0.2"};
    const uint64_t what = hx_rng_below(rng, 21);
    if (what == 0) {
        order(world, NODE_SCHEDULER, WIRE_ORDER_CHECKPOINT, "");
    } else if (what == 1) {
        order(world, NODE_SCHEDULER, WIRE_ORDER_DRAIN, "worker102");
    } else {
        order(world, NODE_SCHEDULER, WIRE_ORDER_SET, settings[what - 1]);
    }
}

Test(lead_live, laws_hold_whatever_is_ordered)
{
    const uint64_t first = seed_of("lead_live");
    for (uint64_t seed = first; seed < first + 150; seed++) {
        lead_world_conf_t conf = world_of(seed, 400);
        hx_rng_t rng = hx_rng_seed(seed);
        conf.jitter = hx_rng_unit(&rng);
        conf.delay_max = HX_MS(1 + (hx_time_t)hx_rng_below(&rng, 30));
        conf.row_time[1] = HX_MS(5 + (hx_time_t)hx_rng_below(&rng, 60));
        conf.repeat = 0.2;
        conf.loss = 0.05;
        lead_world_t *world = lead_world_new(&conf);
        hx_time_t now = HX_MS(100);
        while (!lead_world_view(world).done && now < LIMIT) {
            now += HX_MS(20 + (hx_time_t)hx_rng_below(&rng, 300));
            if (!lead_world_run(world, now)->done && now < HX_SEC(20)) {
                disturb(world, &rng);
            }
        }
        const lead_world_report_t *const report = lead_world_run(world, now);
        cr_assert(report->broken[0] == '\0', "seed %" PRIu64 ": %s", seed, report->broken);
        cr_assert(report->done, "seed %" PRIu64 ": no end after %" PRIu64 " commits", seed,
                  report->commits);
        cr_assert_eq(report->status, 0, "seed %" PRIu64 ": %s", seed, report->reason);
        cr_assert_eq(report->rows_committed, 400, "seed %" PRIu64, seed);
        lead_world_destroy(&world);
        conf_destroy(&live);
    }
}

// ---- status

Test(lead_live, status_tells_of_every_pipeline)
{
    lead_world_conf_t conf = world_of(1, 400);
    conf.status_every = HX_SEC(1);
    conf.ssaw.staleness = 1;
    conf.row_time[1] = HX_MS(50);  // Five times as slow: rounds wait for it by the bound.
    conf.live = NULL;
    lead_world_t *world = lead_world_new(&conf);
    lead_world_run(world, HX_SEC(8));
    cr_assert_leq(lead_world_sent_count(world, WIRE_LEAD_STATUS), 10, "one a second");
    json_error_t error;
    json_t *const json = json_loads(lead_world_status(world), JSON_REJECT_DUPLICATES, &error);
    cr_assert(json, "%s: %s", error.text, lead_world_status(world));
    const json_t *const slow = json_array_get(json_object_get(json, "pipelines"), 1);
    const json_t *const fast = json_array_get(json_object_get(json, "pipelines"), 0);
    cr_assert_float_eq(json_number_value(json_object_get(slow, "step_seconds")), 0.2, 0.01);
    cr_assert_float_eq(json_number_value(json_object_get(slow, "step_spread")), 0, 0.01);
    cr_assert_gt(json_number_value(json_object_get(slow, "forced_waits")), 10);
    cr_assert_gt(json_number_value(json_object_get(slow, "forced_seconds")), 1);
    cr_assert_eq(json_number_value(json_object_get(fast, "forced_waits")), 0);
    double lags = 0;
    for (size_t at = 0; at < LEAD_LAGS_COUNT; at++) {
        lags += json_number_value(json_array_get(json_object_get(json, "lags"), at));
    }
    cr_assert_gt(lags, 40);
    cr_assert_eq(json_number_value(json_array_get(json_object_get(json, "lags"), 2)), 0);
    json_decref(json);
    lead_world_destroy(&world);
    conf_destroy(&live);
}
