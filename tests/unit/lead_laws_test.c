// lead: its laws, over many seeds: see lead_world.h for the world that holds it to them.

#include "server/lead.h"
#include "tensor/hx_rng.h"
#include "tests/support/lead_world.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <inttypes.h>

#define LIMIT HX_SEC(100000)

// A run of so many rows; every row of it has to be committed.
static lead_world_conf_t run_of(uint64_t seed, ssaw_conf_t ssaw, uint64_t rows)
{
    lead_world_conf_t conf = lead_world_conf(seed, ssaw);
    conf.tokens = rows * WORLD_CONTEXT;
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

static lead_world_conf_t random_world(uint64_t seed, conf_mode_t mode)
{
    hx_rng_t rng = hx_rng_seed(seed);
    lead_world_conf_t conf = lead_world_conf(seed, (ssaw_conf_t){0});
    conf.pipelines = 1 + (uint32_t)hx_rng_below(&rng, 5);
    conf.stages = 1 + (uint32_t)hx_rng_below(&rng, 3);
    conf.shards = 1 + (uint32_t)hx_rng_below(&rng, 3);
    uint64_t batch = 0;
    for (uint32_t at = 0; at < conf.pipelines; at++) {
        conf.rows[at] = 1 + (uint32_t)hx_rng_below(&rng, 6);
        conf.row_time[at] = HX_MS(5 + (hx_time_t)hx_rng_below(&rng, 60));
        batch += conf.rows[at];
    }
    conf.ssaw = ssaw_preset(mode, batch, WORLD_CONTEXT, (uint32_t)hx_rng_below(&rng, 4));
    if (mode == CONF_MODE_SSAW) {
        conf.ssaw.staleness = (uint32_t)hx_rng_below(&rng, 5);
        conf.ssaw.run_ahead = (uint32_t)hx_rng_below(&rng, 3);
        conf.ssaw.quorum_rows = 1 + hx_rng_below(&rng, batch);
        if (conf.ssaw.quorum_rows == SSAW_QUORUM_ONE) {
            conf.ssaw.staleness += conf.pipelines;
        }
        conf.ssaw.grace = hx_rng_unit(&rng);
    }
    conf.delay_min = HX_US(100);
    conf.delay_max = HX_MS(1 + (hx_time_t)hx_rng_below(&rng, 40));
    conf.jitter = hx_rng_unit(&rng);
    conf.sparse = hx_rng_below(&rng, 2);
    conf.tokens = (40 + hx_rng_below(&rng, 100)) * WORLD_CONTEXT;
    conf.valid_rows = hx_rng_below(&rng, 3) * 7;
    conf.valid_every = 1 + (uint32_t)hx_rng_below(&rng, 9);
    conf.checkpoint_every = 1 + (uint32_t)hx_rng_below(&rng, 9);
    return conf;
}

static void holds(const lead_world_report_t *report, const lead_world_conf_t *conf,
                  const char *what)
{
    cr_assert(report->broken[0] == '\0', "%s, seed %" PRIu64 ": %s", what, conf->seed,
              report->broken);
    cr_assert(report->done, "%s, seed %" PRIu64 ": no end after %" PRIu64 " commits", what,
              conf->seed, report->commits);
    cr_assert_eq(report->status, 0, "%s, seed %" PRIu64 ": %s", what, conf->seed, report->reason);
    cr_assert_eq(report->rows_committed + report->view.skipped_rows, conf->tokens / WORLD_CONTEXT,
                 "%s, seed %" PRIu64, what, conf->seed);
    cr_assert_eq(report->view.open_rows + report->view.returned_rows, 0);
}

static void try_mode(conf_mode_t mode, const char *name)
{
    const uint64_t first = seed_of("lead_laws");
    for (uint64_t seed = first; seed < first + 120; seed++) {
        lead_world_conf_t conf = random_world(seed, mode);
        lead_world_t *world = lead_world_new(&conf);
        holds(lead_world_run(world, LIMIT), &conf, name);
        lead_world_destroy(&world);
    }
}

// Quorum and bound that move: every record keeps the one in force when its round closed.
Test(lead_laws, laws_hold_with_automatic_values)
{
    const uint64_t first = seed_of("lead_laws");
    for (uint64_t seed = first; seed < first + 120; seed++) {
        lead_world_conf_t conf = random_world(seed, CONF_MODE_SSAW);
        conf.ssaw.quorum_auto = seed % 3 != 0;
        conf.ssaw.staleness_auto = seed % 3 != 1;
        if (conf.ssaw.staleness_auto) {
            conf.ssaw.staleness = SSAW_AUTO_START + conf.pipelines;
        }
        lead_world_t *world = lead_world_new(&conf);
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        holds(report, &conf, "auto");
        cr_assert(!conf.ssaw.quorum_auto || report->last.auto_quorum > 0);
        cr_assert_leq(report->last.auto_quorum, conf.ssaw.batch_rows);
        cr_assert(!conf.ssaw.staleness_auto || report->last.auto_staleness > 0);
        lead_world_destroy(&world);
    }
}

// Late contributions that point elsewhere count less, in worlds with lost and refused votes too.
Test(lead_laws, laws_hold_with_agreement)
{
    const uint64_t first = seed_of("lead_laws");
    uint64_t late = 0;
    for (uint64_t seed = first; seed < first + 120; seed++) {
        lead_world_conf_t conf = random_world(seed, CONF_MODE_SSAW);
        conf.ssaw.agreement = 0.1;
        conf.loss = 0.1;
        conf.repeat = 0.2;
        conf.refuse = seed % 4 == 0 ? 0.02 : 0;
        lead_world_t *world = lead_world_new(&conf);
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        holds(report, &conf, "agreement");
        late += report->lag_max > 0;
        lead_world_destroy(&world);
    }
    cr_assert_gt(late, 20, "else nothing was tried");
}

Test(lead_laws, laws_hold_in_bsp)
{
    try_mode(CONF_MODE_BSP, "bsp");
}

Test(lead_laws, laws_hold_in_ssp)
{
    try_mode(CONF_MODE_SSP, "ssp");
}

Test(lead_laws, laws_hold_in_asp)
{
    try_mode(CONF_MODE_ASP, "asp");
}

Test(lead_laws, laws_hold_in_softsync)
{
    try_mode(CONF_MODE_SOFTSYNC, "softsync");
}

Test(lead_laws, laws_hold_in_eager)
{
    try_mode(CONF_MODE_EAGER, "eager");
}

Test(lead_laws, laws_hold_in_wsp)
{
    try_mode(CONF_MODE_WSP, "wsp");
}

Test(lead_laws, laws_hold_in_ksync)
{
    try_mode(CONF_MODE_KSYNC, "ksync");
}

// By its definition: no contribution is stale, and who is late has computed for nothing.
Test(lead_laws, ksync_has_no_lag_and_cancels_the_slow)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_KSYNC, 16, WORLD_CONTEXT, 0), 400);
    conf.pipelines = 4;
    for (uint32_t at = 0; at < 4; at++) {
        conf.rows[at] = 4;
        conf.row_time[at] = at == 3 ? HX_MS(60) : HX_MS(10);
    }
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    goes_well(report, 400);
    cr_assert_eq(report->lag_max, 0);
    cr_assert_gt(report->view.dropped, 20, "the slow one is cancelled in nearly every round");
    cr_assert_lt(report->ended_at, HX_SEC(3), "at the speed of the others");
    lead_world_destroy(&world);
}

Test(lead_laws, laws_hold_in_ssaw)
{
    try_mode(CONF_MODE_SSAW, "ssaw");
}

Test(lead_laws, laws_hold_when_answers_are_lost_doubled_and_refused)
{
    const uint64_t first = seed_of("lead_laws") + 1000;
    uint64_t dropped = 0;
    for (uint64_t seed = first; seed < first + 120; seed++) {
        lead_world_conf_t conf = random_world(seed, CONF_MODE_SSAW);
        conf.repeat = 0.2;
        conf.loss = 0.1;
        conf.refuse = 0.1;
        lead_world_t *world = lead_world_new(&conf);
        // The keeper and PLAN_ACK are not said again by this world, READY and votes are.
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        holds(report, &conf, "misfortune");
        dropped += report->view.dropped;
        lead_world_destroy(&world);
    }
    cr_assert_gt(dropped, 0);
}

Test(lead_laws, laws_hold_when_workers_die_or_hang)
{
    const uint64_t first = seed_of("lead_laws") + 2000;
    uint32_t survived = 0;
    for (uint64_t seed = first; seed < first + 200; seed++) {
        hx_rng_t rng = hx_rng_seed(seed);
        lead_world_conf_t conf =
            random_world(seed, hx_rng_below(&rng, 2) ? CONF_MODE_SSAW : CONF_MODE_BSP);
        bool spared = false;
        for (uint32_t at = 0; at < conf.pipelines; at++) {
            const uint64_t fate = hx_rng_below(&rng, 3);
            const hx_time_t when = HX_MS(100 + (hx_time_t)hx_rng_below(&rng, 4000));
            conf.dies_at[at] = fate == 0 ? when : 0;
            conf.hangs_at[at] = fate == 1 ? when : 0;
            spared = spared || fate == 2;
        }
        conf.refuse = 0.05;
        lead_world_t *world = lead_world_new(&conf);
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        if (spared) {
            holds(report, &conf, "deaths");
            // A pipeline that hangs is noticed after at least 10 s, and then the others go on.
            cr_assert_lt(report->longest, 60000, "seed %" PRIu64, seed);
            survived++;
        } else {
            cr_assert(report->broken[0] == '\0', "seed %" PRIu64 ": %s", seed, report->broken);
            cr_assert(report->done, "seed %" PRIu64, seed);
            cr_assert(report->reason[0]);
        }
        lead_world_destroy(&world);
    }
    cr_assert_gt(survived, 50);
}

Test(lead_laws, bsp_gives_every_pipeline_the_same_rows_whatever_the_delays)
{
    const uint64_t seed = seed_of("lead_laws");
    lead_world_conf_t conf = run_of(seed, ssaw_preset(CONF_MODE_BSP, 9, WORLD_CONTEXT, 0), 100);
    conf.pipelines = 3;
    conf.rows[0] = 4;
    conf.rows[1] = 2;
    conf.rows[2] = 3;
    conf.row_time[2] = HX_MS(10);
    uint64_t assignment = 0, weights = 0;
    for (uint64_t run = 0; run < 10; run++) {
        conf.seed = seed + run;
        conf.delay_max = HX_MS(1 + 30 * (hx_time_t)run);
        conf.jitter = 0.3 * (double)run;
        lead_world_t *world = lead_world_new(&conf);
        const lead_world_report_t *const report = lead_world_run(world, LIMIT);
        goes_well(report, 100);
        cr_assert_eq(report->commits, 12, "11 full rounds and one of a row");
        cr_assert_eq(report->lag_max, 0);
        cr_assert(run == 0 || report->assignment == assignment, "run %" PRIu64, run);
        cr_assert(run == 0 || report->weights == weights, "run %" PRIu64, run);
        assignment = report->assignment;
        weights = report->weights;
        lead_world_destroy(&world);
    }
}

Test(lead_laws, ssaw_keeps_the_fast_busy_while_the_slow_lag)
{
    lead_world_conf_t conf = run_of(1, ssaw_preset(CONF_MODE_SSAW, 8, WORLD_CONTEXT, 0), 400);
    conf.row_time[1] = HX_MS(40);
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const ssaw = lead_world_run(world, LIMIT);
    goes_well(ssaw, 400);
    cr_assert_gt(ssaw->lag_max, 0);
    const hx_time_t took = ssaw->ended_at;
    lead_world_destroy(&world);
    conf.ssaw = ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0);
    world = lead_world_new(&conf);
    const lead_world_report_t *const bsp = lead_world_run(world, LIMIT);
    goes_well(bsp, 400);
    cr_assert_gt((double)bsp->ended_at, 1.3 * (double)took, "bsp runs at the pace of the slowest");
    lead_world_destroy(&world);
}

// The keeper was not there to hear it, or its answer is lost.
Test(lead_laws, save_that_is_not_answered_is_asked_again)
{
    lead_world_conf_t conf = lead_world_conf(1, ssaw_preset(CONF_MODE_BSP, 8, WORLD_CONTEXT, 0));
    conf.tokens = 40 * WORLD_CONTEXT;
    conf.checkpoint_every = 3;
    conf.saves_lost = 2;
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, HX_SEC(60));
    cr_assert_str_empty(report->broken);
    cr_assert(report->done && report->status == 0, "%s", report->reason);
    cr_assert_eq(report->saves_lost, 2);
    cr_assert_geq(report->saves, 1);
    lead_world_destroy(&world);
}
