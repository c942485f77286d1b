// lead: its decisions as stories, its start and end, and what it does with nonsense.

#include "net/payload.h"
#include "server/lead.h"
#include "tensor/hx_rng.h"
#include "tests/support/lead_world.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LIMIT HX_SEC(100000)

// A run of so many rows; every row of it has to be committed.
static lead_world_conf_t run_of(uint64_t seed, ssaw_conf_t ssaw, uint64_t rows)
{
    lead_world_conf_t conf = lead_world_conf(seed, ssaw);
    conf.tokens = rows * WORLD_CONTEXT;
    conf.ssaw.patience = 0;  // Who may run ahead does.
    return conf;
}

static void goes_well(const lead_world_report_t *report, uint64_t rows)
{
    cr_assert_str_empty(report->broken);
    cr_assert(report->done, "it ends");
    cr_assert_eq(report->status, 0, "%s", report->reason);
    cr_assert_eq(report->rows_committed, rows);
    cr_assert(report->last.final);
}

// ---- stories

static void traces(const lead_world_conf_t *conf, hx_time_t until, const char *expected)
{
    lead_world_t *world = lead_world_new(conf);
    const lead_world_report_t *const report = lead_world_run(world, until);
    cr_assert_str_empty(report->broken);
    const char *const trace = lead_world_trace(world);
    cr_assert(strncmp(trace, expected, strlen(expected)) == 0, "\n%s\nis not how this begins:\n%s",
              expected, trace);
    lead_world_destroy(&world);
}

Test(lead, story_of_quorum_and_grace)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 16, WORLD_CONTEXT, 0), 1000);
    conf.ssaw.run_ahead = 0;
    conf.ssaw.grace = 0.25;
    conf.pipelines = 3;
    conf.stages = 1;
    conf.rows[2] = 8;
    conf.row_time[1] = HX_MS(12);
    conf.row_time[2] = HX_MS(30);
    traces(&conf, HX_SEC(1),
           "[     0] the run begins at version 0 with 3 pipelines\n"
           "[     0] pipeline 0 is granted rows 0 to 4 from version 0\n"
           "[     0] pipeline 1 is granted rows 4 to 8 from version 0\n"
           "[     0] pipeline 2 is granted rows 8 to 16 from version 0\n"
           "[    42] pipeline 0 announces a step of lag 0\n"
           "[    42] round 1 waits for quorum\n"
           "[    50] pipeline 1 announces a step of lag 0\n"
           "[    50] round 1 waits for grace\n"
           "[    71] round 1 closes with 2 contributions\n"
           "[    75] commit 1: 2 contributions, step scale 0.71\n"
           "[    75] pipeline 0 is granted rows 16 to 20 from version 1\n"
           "[    75] pipeline 1 is granted rows 20 to 24 from version 1\n");
}

Test(lead, story_of_the_lag_bound)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 1000);
    conf.ssaw.run_ahead = 0;
    conf.ssaw.grace = 0;
    conf.ssaw.staleness = 1;
    conf.stages = 1;
    conf.row_time[1] = HX_MS(50);
    traces(&conf, HX_SEC(1),
           "[     0] the run begins at version 0 with 2 pipelines\n"
           "[     0] pipeline 0 is granted rows 0 to 4 from version 0\n"
           "[     0] pipeline 1 is granted rows 4 to 8 from version 0\n"
           "[    42] pipeline 0 announces a step of lag 0\n"
           "[    42] round 1 closes with 1 contributions\n"
           "[    46] commit 1: 1 contributions, step scale 0.71\n"
           "[    46] pipeline 0 is granted rows 8 to 12 from version 1\n"
           "[    88] pipeline 0 announces a step of lag 0\n"
           "[    88] round 2 waits for lag bound\n"
           "[   202] pipeline 1 announces a step of lag 1\n"
           "[   202] round 2 closes with 2 contributions\n");
}

Test(lead, story_of_a_death)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 1000);
    conf.dies_at[1] = HX_MS(20);
    traces(&conf, HX_SEC(4),
           "[     0] the run begins at version 0 with 2 pipelines\n"
           "[     0] pipeline 0 is granted rows 0 to 4 from version 0\n"
           "[     0] pipeline 1 is granted rows 4 to 8 from version 0\n"
           "[    42] pipeline 0 announces a step of lag 0\n"
           "[    42] round 1 waits for quorum\n"
           "[  3017] pipeline 1 is given up: here/worker103 is gone; 1 of 2 go on\n"
           "[  3017] pipeline 1: rows 4 to 8 are returned: dead\n"
           "[  3017] pipeline 0 is granted rows 4 to 8 from version 0\n"
           "[  3059] pipeline 0 announces a step of lag 0\n"
           "[  3059] round 1 closes with 2 contributions\n");
}

// ---- drops

Test(lead, rows_that_are_never_finite_are_skipped_after_three_times)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    conf.bad_row = 13;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 0, "%s", report->reason);
    cr_assert_eq(report->rows_committed, 76);
    cr_assert_eq(report->view.skipped_rows, 4);
    cr_assert_eq(report->view.dropped, 3);
    cr_assert_eq(report->last.skipped_count, 1);
    cr_assert_eq(report->last.skipped[0].first, 12);
    lead_world_destroy(&world);
}

Test(lead, run_that_is_never_finite_ends)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 4000);
    conf.refuse = 1;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "diverged"), "%s", report->reason);
    cr_assert_eq(report->commits, 0);
    lead_world_destroy(&world);
}

Test(lead, lease_past_its_deadline_gives_the_pipeline_up)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 80);
    conf.hangs_at[1] = HX_MS(1);
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 80);
    cr_assert_eq(report->view.live, 1);
    cr_assert(strstr(report->totals, "\"late\": 2"), "%s", report->totals);
    lead_world_destroy(&world);
}

Test(lead, run_without_pipelines_fails_and_saves)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 8000);
    conf.dies_at[0] = conf.dies_at[1] = HX_MS(500);
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "no pipeline is left"), "%s", report->reason);
    cr_assert_gt(report->commits, 0);
    cr_assert_eq(report->saves, 1, "what was reached is kept");
    lead_world_destroy(&world);
}

Test(lead, run_that_one_small_pipeline_cannot_carry_ends)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 101, WORLD_CONTEXT, 0), 8080);
    conf.rows[0] = 100;
    conf.rows[1] = 1;
    conf.row_time[0] = HX_MS(1);
    conf.dies_at[0] = HX_SEC(1);
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "too few rows"), "%s", report->reason);
    lead_world_destroy(&world);
}

Test(lead, plan_whose_leases_would_fill_the_list_before_a_round_is_refused)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 1200, WORLD_CONTEXT, 0), 2400);
    conf.pipelines = WORLD_PIPELINES_MAX;
    conf.stages = 1;
    for (uint32_t at = 0; at < conf.pipelines; at++) {
        conf.rows[at] = 1;
        conf.row_time[at] = HX_MS(1);
    }
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert(report->done);
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "train.global_batch"), "%s", report->reason);
    lead_world_destroy(&world);
}

// ---- evaluation, checkpoints, the end

static json_t *totals_of(const lead_world_report_t *report)
{
    json_error_t error;
    json_t *const totals = json_loads(report->totals, JSON_REJECT_DUPLICATES, &error);
    cr_assert(totals, "%s: %s", error.text, report->totals);
    return totals;
}

Test(lead, evaluates_and_saves_at_the_versions_asked_for)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    conf.valid_rows = 21;
    conf.valid_every = 4;
    conf.checkpoint_every = 5;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 80);
    cr_assert_eq(report->commits, 10);
    cr_assert_eq(report->evaluations, 4, "before, at 4 and 8, after");
    cr_assert_eq(report->saves, 2, "at 5 and at the end");
    cr_assert_geq(report->unpins, 3);
    json_t *const totals = totals_of(report);
    cr_assert_float_eq(json_number_value(json_object_get(totals, "valid_loss")), 3, 1e-9);
    cr_assert_float_eq(json_number_value(json_object_get(totals, "train_loss")), 3, 1e-9);
    cr_assert_eq(json_integer_value(json_object_get(totals, "version")), 10);
    cr_assert_eq(json_integer_value(json_object_get(totals, "tokens")), 640);
    json_decref(totals);
    lead_world_destroy(&world);
}

Test(lead, stop_closes_what_is_in_flight_after_its_grace)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 8000);
    conf.ssaw.staleness = 4;  // So that something waits for the slow one.
    conf.row_time[1] = HX_SEC(2);
    conf.stop_at = HX_SEC(1);
    conf.stop_status = 130;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 130);
    cr_assert_eq(report->saves, 1);
    cr_assert(report->last.final);
    cr_assert_geq(report->ended_at, HX_SEC(6));
    cr_assert_leq(report->ended_at, HX_MS(6100));
    lead_world_destroy(&world);
}

Test(lead, stop_commits_no_part_of_a_round_under_bsp)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 8000);
    conf.row_time[1] = HX_SEC(2);
    conf.stop_at = HX_SEC(1);
    conf.stop_status = 130;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 130);
    cr_assert_eq(report->rows_committed % 8, 0, "%" PRIu64 " rows", report->rows_committed);
    cr_assert_eq(report->view.open_rows, 0);
    cr_assert(report->view.books_hold);
    lead_world_destroy(&world);
}

Test(lead, goal_in_seconds_ends_the_run)
{
    lead_world_conf_t conf = lead_world_conf(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0));
    conf.seconds = 3;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert_eq(report->status, 0);
    cr_assert_geq(report->ended_at, HX_SEC(3));
    cr_assert_leq(report->ended_at, HX_MS(3200));
    cr_assert(strstr(report->reason, "train.seconds"), "%s", report->reason);
    lead_world_destroy(&world);
}

Test(lead, failing_journal_ends_the_run)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    conf.journal_error = HX_E_NOSPC;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "journal"), "%s", report->reason);
    cr_assert_eq(lead_world_sent_count(world, WIRE_COMMIT), 0, "nothing was decided");
    lead_world_destroy(&world);
}

Test(lead, failing_save_is_counted_and_told)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    conf.checkpoint_every = 3;
    conf.saves_failing = UINT64_MAX;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_eq(report->rows_committed, 80, "training goes on");
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "disk full"), "%s", report->reason);
    lead_world_destroy(&world);
}

// The newest version was asked to be saved, in vain; that does not count as saved.
Test(lead, save_that_failed_is_tried_again_at_the_end)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 8000);
    conf.checkpoint_every = 3;
    conf.row_time[0] = conf.row_time[1] = HX_SEC(2);
    conf.stop_at = HX_MS(24500);  // Commit 3 is at 24.1 s; the next leases outlast the grace.
    conf.saves_failing = 1;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert(report->done);
    cr_assert_eq(report->last.version, 3);
    cr_assert_eq(report->saves, 2);
    lead_world_destroy(&world);
}

Test(lead, evaluation_that_is_not_finite_is_told_and_not_repeated)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    conf.valid_rows = 21;
    conf.blind = true;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 80);
    cr_assert_eq(report->evaluations, 2, "before and after");
    cr_assert_eq(report->view.dropped, 0);
    json_t *const totals = totals_of(report);
    cr_assert(json_is_null(json_object_get(totals, "valid_loss")));
    json_decref(totals);
    lead_world_destroy(&world);
}

// ---- resuming

Test(lead, resumes_books_step_and_history)
{
    row_range_t committed[] = {{20, 24}};
    const record_t record = {.history = 2,
                             .version = 5,
                             .incarnation = 3,
                             .epoch = 1,
                             .tokens = 20 * WORLD_CONTEXT,
                             .step = 5,
                             .low_water = 16,
                             .committed = committed,
                             .committed_count = 1,
                             .dropped = 7};
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 40);
    conf.resume = &record;
    conf.journal_history = 4;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 20);
    cr_assert_eq(report->last.version, 8, "rows 16..20, 24..28 | 28..36 | 36..40");
    cr_assert_eq(report->last.step, 8);
    cr_assert_eq(report->last.tokens, 40 * WORLD_CONTEXT);
    cr_assert_eq(report->last.history, 4, "the journal had commits above version 5");
    cr_assert_eq(report->last.incarnation, 4);
    cr_assert_eq(report->last.dropped, 7);
    cr_assert_eq(report->first_attempt >> LEAD_ATTEMPT_SHIFT, 4);
    lead_world_destroy(&world);
}

Test(lead, record_from_a_stranger_changes_nothing)
{
    blob_t *record =
        payload_record_encode(&(record_t){.version = 3, .incarnation = 50, .low_water = 40});
    const wire_msg_t msg = {.kind = WIRE_RESUME, .version = 3};
    const record_t start = {.version = 3, .step = 3, .epoch = 1, .low_water = 16};
    for (int resumes = 0; resumes < 2; resumes++) {
        lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 40);
        conf.resume = resumes ? &start : NULL;
        lead_world_t *world = lead_world_new(&conf);
        lead_world_tell(world, WORLD_WORKER, &msg, record);  // Before the plan,
        lead_world_run(world, HX_MS(1));
        lead_world_tell(world, WORLD_WORKER, &msg, record);  // and after.
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        goes_well(report, resumes ? 24 : 40);
        cr_assert_eq(report->first_attempt >> LEAD_ATTEMPT_SHIFT, 1);
        lead_world_destroy(&world);
    }
    blob_release(&record);
}

// ---- who is missing, who goes

// A world in the middle of its first leases.
static lead_world_t *at_work(void)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    lead_world_t *const world = lead_world_new(&conf);
    lead_world_run(world, HX_MS(30));
    cr_assert_eq(lead_world_view(world).in_flight, 2);
    return world;
}

Test(lead, start_without_a_worker_after_its_time)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 80);
    conf.silent = WORLD_WORKER + 2;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 80);
    cr_assert_eq(report->view.live, 1);
    cr_assert_geq(report->ended_at, HX_SEC(60));
    lead_world_destroy(&world);
}

Test(lead, no_start_without_a_shard)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 80);
    conf.silent = WORLD_SHARD + 1;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_eq(report->status, 1);
    cr_assert(strstr(report->reason, "here/shard21"), "%s", report->reason);
    cr_assert_eq(lead_world_sent_count(world, WIRE_GRANT), 0);
    lead_world_destroy(&world);
}

Test(lead, lost_shard_or_keeper_ends_the_run)
{
    for (node_id_t node = WORLD_KEEPER; node <= WORLD_SHARD; node += WORLD_SHARD - WORLD_KEEPER) {
        lead_world_t *world = at_work();
        lead_world_lose(world, node);
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        cr_assert(report->done);
        cr_assert_eq(report->status, 1);
        cr_assert(strstr(report->reason, "is gone"), "%s", report->reason);
        lead_world_destroy(&world);
    }
}

Test(lead, worker_that_leaves_is_no_longer_waited_for)
{
    lead_world_t *world = at_work();
    lead_world_tell(world, WORLD_WORKER + 1, &(wire_msg_t){.kind = WIRE_LEAVE}, NULL);
    cr_assert_eq(lead_world_view(world).live, 1);
    goes_well(lead_world_run(world, LIMIT), 80);
    lead_world_destroy(&world);
}

// ---- nonsense

static wire_msg_t ready_of(const lead_world_t *world, node_id_t worker)
{
    const wire_msg_t *const grant = lead_world_sent(world, WIRE_GRANT, NODE_NONE);
    cr_assert(grant);
    (void)worker;
    return (wire_msg_t){.kind = WIRE_READY,
                        .attempt = grant->attempt,
                        .epoch = 1,
                        .tokens = 4 * WORLD_CONTEXT,
                        .loss = 1};
}

Test(lead, ready_that_makes_no_sense_changes_nothing)
{
    // The last grant went to pipeline 1, whose last stage is worker 103.
    const node_id_t last = WORLD_WORKER + 3;
    for (int what = 0; what < 6; what++) {
        lead_world_t *world = at_work();
        wire_msg_t msg = ready_of(world, last);
        node_id_t from = last;
        switch (what) {
        case 0:
            msg.epoch = 2;
            break;
        case 1:
            msg.version = 1;
            break;
        case 2:
            msg.tokens = 4 * WORLD_CONTEXT + 1;
            break;
        case 3:
            from = WORLD_WORKER + 1;
            break;
        case 4:
            from = 77;
            break;
        case 5:
            msg.tokens = UINT64_MAX;
            break;
        }
        lead_world_tell(world, from, &msg, NULL);
        cr_assert_eq(lead_world_view(world).nonsense, 1, "case %d", what);
        cr_assert_eq(lead_world_view(world).in_flight, 2);
        goes_well(lead_world_run(world, LIMIT), 80);
        lead_world_destroy(&world);
    }
}

Test(lead, ready_of_a_closed_attempt_is_answered_closed)
{
    lead_world_t *world = at_work();
    wire_msg_t msg = ready_of(world, WORLD_WORKER);
    msg.attempt += 1000;
    lead_world_tell(world, WORLD_WORKER, &msg, NULL);
    const wire_msg_t *const closed = lead_world_sent(world, WIRE_CLOSED, WORLD_WORKER);
    cr_assert(closed);
    cr_assert_eq(closed->attempt, msg.attempt);
    cr_assert_eq(closed->count, WIRE_CLOSED_UNKNOWN);
    lead_world_destroy(&world);
}

Test(lead, loss_that_is_not_finite_returns_the_rows)
{
    lead_world_t *world = at_work();
    wire_msg_t msg = ready_of(world, WORLD_WORKER + 3);
    msg.loss = NAN;
    lead_world_tell(world, WORLD_WORKER + 3, &msg, NULL);
    cr_assert_eq(lead_world_view(world).dropped, 1);
    goes_well(lead_world_run(world, LIMIT), 80);
    lead_world_destroy(&world);
}

Test(lead, votes_that_make_no_sense_end_the_run_in_the_end)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0), 80);
    conf.delay_min = conf.delay_max = HX_MS(20);
    lead_world_t *world = lead_world_new(&conf);
    hx_time_t until = HX_MS(10);
    while (!lead_world_sent(world, WIRE_PREPARE, NODE_NONE)) {
        lead_world_run(world, until);
        until += HX_MS(5);
    }
    const wire_msg_t *const prepare = lead_world_sent(world, WIRE_PREPARE, NODE_NONE);
    wire_msg_t vote = {.kind = WIRE_VOTE,
                       .incarnation = prepare->incarnation,
                       .round = prepare->round,
                       .version = prepare->version,
                       .flags = 1};
    const double one = 1;
    const uint64_t stranger = 12345;
    blob_t *yes = payload_doubles_encode(&one, 1);
    blob_t *no = payload_attempts_encode(&stranger, 1);
    vote.incarnation++;
    lead_world_tell(world, WORLD_SHARD, &vote, yes);
    cr_assert_eq(lead_world_view(world).nonsense, 0, "another lead's votes are no concern");
    vote.incarnation--;
    lead_world_tell(world, WORLD_WORKER, &vote, yes);
    cr_assert_eq(lead_world_view(world).nonsense, 1, "a worker has no vote");
    lead_world_tell(world, WORLD_SHARD, &vote, yes);
    lead_world_tell(world, WORLD_SHARD, &vote, NULL);
    vote.flags = 0;
    lead_world_tell(world, WORLD_SHARD, &vote, no);
    cr_assert_eq(lead_world_view(world).nonsense, 4);
    cr_assert_not(lead_world_view(world).done);
    for (uint32_t at = 3; at < LEAD_BAD_VOTES_MAX; at++) {
        lead_world_tell(world, WORLD_SHARD, &vote, no);
    }
    cr_assert(lead_world_view(world).done);
    blob_release(&yes);
    blob_release(&no);
    lead_world_destroy(&world);
}

Test(lead, garbage_never_stops_it)
{
    hx_rng_t rng = hx_rng_seed(seed_of("lead"));
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 80);
    lead_world_t *world = lead_world_new(&conf);
    for (int at = 0; at < 3000; at++) {
        static const wire_kind_t kinds[] = {WIRE_READY, WIRE_VOTE,     WIRE_APPLIED, WIRE_PROMISED,
                                            WIRE_SAVED, WIRE_PLAN_ACK, WIRE_PUSH,    WIRE_RESUME};
        static const node_id_t peers[] = {WORLD_WORKER, WORLD_WORKER + 3, WORLD_SHARD + 7,
                                          WORLD_LEAD, 99};
        const wire_msg_t msg = {
            .kind = kinds[hx_rng_below(&rng, HX_COUNT(kinds))],
            .attempt = (UINT64_C(1) << LEAD_ATTEMPT_SHIFT) + 1000 + hx_rng_below(&rng, 50),
            .version = hx_rng_below(&rng, 3),
            .incarnation = hx_rng_below(&rng, 3),
            .round = hx_rng_below(&rng, 9),
            .epoch = (uint32_t)hx_rng_below(&rng, 2) * 9,
            .tokens = hx_rng_next(&rng),
            .flags = (uint32_t)hx_rng_below(&rng, 2),
        };
        lead_world_tell(world, peers[hx_rng_below(&rng, HX_COUNT(peers))], &msg, NULL);
        lead_world_run(world, HX_MS(at));
    }
    goes_well(lead_world_run(world, LIMIT), 80);
    lead_world_destroy(&world);
}
