// ssaw: the rule of grants, the rule of rounds, the weights.

#include "server/ssaw.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define PIPELINES 3
#define ROWS 8
#define CONTEXT 16

// Three pipelines of 8 rows, N = 24, step 100 ms; all live and idle.
typedef struct {
    ssaw_pipeline_t pipelines[PIPELINES];
    ssaw_contribution_t contributions[8];
    ssaw_view_t view;
} scene_t;

static void scene_init(scene_t *self)
{
    memset(self, 0, sizeof *self);
    for (uint32_t at = 0; at < PIPELINES; at++) {
        self->pipelines[at].live = true;
    }
    self->view = (ssaw_view_t){
        .version = 10,
        .rows_left = 1000,
        .step_mean = HX_MS(100),
        .pipelines = self->pipelines,
        .pipelines_count = PIPELINES,
        .contributions = self->contributions,
    };
}

static void in_flight(scene_t *self, uint32_t pipeline, uint64_t base)
{
    ssaw_pipeline_t *const each = &self->pipelines[pipeline];
    each->base = each->in_flight == 0 ? base : HX_MIN(base, each->base);
    each->in_flight++;
    each->in_flight_rows += ROWS;
    each->outstanding++;
}

static void announced(scene_t *self, uint32_t pipeline, uint64_t oldest, hx_time_t at)
{
    self->pipelines[pipeline].outstanding++;
    self->pipelines[pipeline].clock++;
    self->contributions[self->view.contributions_count++] = (ssaw_contribution_t){
        .pipeline = pipeline,
        .rows = ROWS,
        .tokens = ROWS * CONTEXT,
        .oldest = oldest,
        .agreement = 1,
        .announced_at = at,
    };
}

static ssaw_verdict_t ask(const ssaw_conf_t *conf, const scene_t *scene, hx_time_t now)
{
    hx_time_t wake_at = HX_TIME_NEVER;
    return ssaw_round(conf, &scene->view, now, &wake_at);
}

// ---- presets

Test(ssaw, presets_are_values_of_one_rule)
{
    const ssaw_conf_t bsp = ssaw_preset(CONF_MODE_BSP, 24, CONTEXT, 0);
    cr_assert_eq(bsp.quorum_rows, 24);
    cr_assert_eq(bsp.run_ahead, 0);
    cr_assert_eq(bsp.staleness, 0);
    const ssaw_conf_t ssaw = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    cr_assert_eq(ssaw.quorum_rows, 12);
    cr_assert_eq(ssaw.run_ahead, 1);
    cr_assert_eq(ssaw.staleness, 8);
    cr_assert_eq(ssaw.batch_tokens, 24 * CONTEXT);
    const ssaw_conf_t ssp = ssaw_preset(CONF_MODE_SSP, 24, CONTEXT, 3);
    cr_assert_eq(ssp.gate, 3);
    cr_assert_eq(ssp.staleness, SSAW_LAG_UNBOUNDED);
    cr_assert_eq(ssp.quorum_rows, SSAW_QUORUM_ONE);
    const ssaw_conf_t asp = ssaw_preset(CONF_MODE_ASP, 24, CONTEXT, 0);
    cr_assert_eq(asp.run_ahead, SSAW_RUN_AHEAD_ANY);
    cr_assert_eq(asp.gate, SSAW_GATE_NONE);
    const ssaw_conf_t wsp = ssaw_preset(CONF_MODE_WSP, 24, CONTEXT, 2);
    cr_assert_eq(wsp.gate, 2);
    cr_assert_eq(wsp.run_ahead, 2);
    const ssaw_conf_t softsync = ssaw_preset(CONF_MODE_SOFTSYNC, 24, CONTEXT, 0);
    cr_assert_eq(softsync.quorum_rows, 12);
    cr_assert_eq(softsync.staleness, SSAW_LAG_UNBOUNDED);
    cr_assert_eq(ssaw_lambda(&softsync, 4), 0.25);
    const ssaw_conf_t eager = ssaw_preset(CONF_MODE_EAGER, 24, CONTEXT, 0);
    cr_assert_eq(eager.quorum_rows, 12);
    cr_assert_eq(eager.run_ahead, 1);
    cr_assert_eq(ssaw_lambda(&eager, 4), 1);
    const ssaw_conf_t ksync = ssaw_preset(CONF_MODE_KSYNC, 24, CONTEXT, 0);
    cr_assert_eq(ksync.quorum_rows, 18);
    cr_assert(ksync.cancel_late);
    cr_assert_not(bsp.cancel_late || ssaw.cancel_late || eager.cancel_late);
}

// Dutta et al. 2018: of R gradients of one version the first K make the step, and all begin anew.
Test(ssaw, ksync_commits_at_the_quorum_and_grants_to_all_at_once)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_KSYNC, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    for (uint32_t at = 0; at < PIPELINES; at++) {
        cr_assert_gt(ssaw_may_grant(&conf, &scene.view, at), 0);
        in_flight(&scene, at, 10);
        cr_assert_eq(ssaw_may_grant(&conf, &scene.view, at), 0, "one each");
    }
    scene.pipelines[0].in_flight = 0;
    scene.pipelines[0].in_flight_rows = 0;
    announced(&scene, 0, 10, 1);
    scene.pipelines[0].outstanding = 1;
    cr_assert_eq(ask(&conf, &scene, 3), SSAW_WAIT_QUORUM);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0, "nobody is ahead");
    scene.pipelines[1].in_flight = 0;
    scene.pipelines[1].in_flight_rows = 0;
    announced(&scene, 1, 10, 2);
    scene.pipelines[1].outstanding = 1;
    cr_assert_eq(ask(&conf, &scene, 3), SSAW_WAIT_QUORUM, "16 of the 18 rows");
    scene.contributions[1].rows = 10;
    cr_assert_eq(ask(&conf, &scene, 3), SSAW_COMMIT, "the third is not waited for");
    scene.view.prepare_out = true;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0, "not before the version is there");
}

Test(ssaw, ssaw_with_strict_values_is_bsp)
{
    conf_sync_t sync = {.mode = CONF_MODE_SSAW,
                        .quorum = 1,
                        .gate = CONF_UNBOUNDED,
                        .weighting = CONF_WEIGHTING_CONST,
                        .alpha = 0.5,
                        .mass_exponent = 0.5,
                        .kappa_max = 1};
    const ssaw_conf_t ours = ssaw_conf_of(&sync, 24, CONTEXT);
    const ssaw_conf_t bsp = ssaw_preset(CONF_MODE_BSP, 24, CONTEXT, 0);
    cr_assert_eq(ours.quorum_rows, bsp.quorum_rows);
    cr_assert_eq(ours.run_ahead, bsp.run_ahead);
    cr_assert_eq(ours.staleness, bsp.staleness);
    cr_assert_eq(ours.gate, bsp.gate);
    cr_assert_eq(ours.grace, bsp.grace);
    cr_assert_eq(ours.weighting, bsp.weighting);
    cr_assert_eq(ours.kappa_max, bsp.kappa_max);
}

Test(ssaw, quorum_of_a_configuration_is_whole_rows)
{
    conf_sync_t sync = {.quorum = 0.5, .weighting = CONF_WEIGHTING_POLY};
    cr_assert_eq(ssaw_conf_of(&sync, 25, CONTEXT).quorum_rows, 13, "half of 25 rows, rounded up");
    sync.quorum = 0.3;
    cr_assert_eq(ssaw_conf_of(&sync, 10, CONTEXT).quorum_rows, 3, "0.3 x 10 is 3, not 4");
    sync.quorum = 0.001;
    cr_assert_eq(ssaw_conf_of(&sync, 10, CONTEXT).quorum_rows, 1);
    sync.quorum = CONF_QUORUM_ONE;
    cr_assert_eq(ssaw_conf_of(&sync, 10, CONTEXT).quorum_rows, SSAW_QUORUM_ONE);
}

// ---- check

static void refused(const ssaw_conf_t *conf, uint32_t pipelines, const char *key)
{
    hx_fault_t fault = {{0}};
    cr_assert_eq(ssaw_check(conf, pipelines, &fault), HX_E_ARG);
    cr_assert(strstr(fault.text, key), "\"%s\" names %s", fault.text, key);
}

Test(ssaw, check_refuses_what_cannot_work)
{
    hx_fault_t fault;
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    cr_assert_eq(ssaw_check(&conf, 6, &fault), HX_OK);
    conf.quorum_rows = SSAW_QUORUM_ONE;
    cr_assert_eq(ssaw_check(&conf, 8, &fault), HX_OK);
    refused(&conf, 9, "sync.staleness");
    conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    conf.run_ahead = SSAW_RUN_AHEAD_ANY;
    refused(&conf, 2, "sync.run_ahead");
    conf = ssaw_preset(CONF_MODE_EAGER, 24, CONTEXT, 0);
    conf.weighting = CONF_WEIGHTING_HINGE;
    refused(&conf, 2, "sync.weighting");
}

Test(ssaw, check_refuses_asp_with_many_pipelines)
{
    hx_fault_t fault;
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_ASP, 1000, CONTEXT, 0);
    cr_assert_eq(ssaw_check(&conf, 16, &fault), HX_OK);
    refused(&conf, 17, "sync.mode");
    const ssaw_conf_t ssp = ssaw_preset(CONF_MODE_SSP, 1000, CONTEXT, 3);
    cr_assert_eq(ssaw_check(&ssp, 100, &fault), HX_OK, "ssp has its gate");
    const ssaw_conf_t one_row = ssaw_preset(CONF_MODE_BSP, 1, CONTEXT, 0);
    cr_assert_eq(ssaw_check(&one_row, 1, &fault), HX_OK, "a batch of one row");
}

// ---- grants

Test(ssaw, grants_go_up_to_run_ahead)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    conf.patience = 0;
    scene_t scene;
    scene_init(&scene);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), UINT64_MAX);
    in_flight(&scene, 0, 10);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), UINT64_MAX, "one ahead");
    in_flight(&scene, 0, 10);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0);
    scene.pipelines[1].live = false;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 1), 0, "given up");
    scene.view.rows_left = 0;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 2), 0, "no data");
}

Test(ssaw, short_round_grants_beyond_run_ahead)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    conf.run_ahead = 0;
    scene_t scene;
    scene_init(&scene);
    scene.pipelines[1].live = scene.pipelines[2].live = false;
    announced(&scene, 0, 10, 0);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), UINT64_MAX,
                 "8 of 12 rows: without another lease the round would never close");
    scene.view.prepare_out = true;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0);
    scene.view.prepare_out = false;
    in_flight(&scene, 0, 10);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0, "it has one in flight");
}

Test(ssaw, strict_grants_are_cut_to_the_rows_missing)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_BSP, 20, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 20);
    in_flight(&scene, 0, 10);
    announced(&scene, 1, 10, 0);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 2), 4);
    in_flight(&scene, 2, 10);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 1), 0, "all N rows are out");
    scene_init(&scene);
    scene.view.prepare_out = true;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0);
}

Test(ssaw, gate_holds_the_fast_back)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSP, 24, CONTEXT, 2);
    scene_t scene;
    scene_init(&scene);
    scene.pipelines[0].clock = 7;
    scene.pipelines[1].clock = 5;
    scene.pipelines[2].clock = 9;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), UINT64_MAX, "2 ahead is allowed");
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 2), 0, "4 ahead is not");
    in_flight(&scene, 0, 10);
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0, "its next step would be 3 ahead");
    scene.pipelines[1].live = false;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 2), UINT64_MAX, "only the living count");
    scene.view.version = 33;
    cr_assert_eq(ssaw_base(&scene.view), 33);
}

Test(ssaw, asp_queues_a_bounded_number)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_ASP, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    for (uint32_t at = 0; at < SSAW_IN_FLIGHT_MAX; at++) {
        cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), UINT64_MAX);
        in_flight(&scene, 0, 10);
    }
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0);
}

// ---- rounds

Test(ssaw, round_waits_for_quorum_lag_and_grace)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    conf.run_ahead = 0;
    conf.staleness = 4;
    scene_t scene;
    scene_init(&scene);
    in_flight(&scene, 2, 10);
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_WAIT_FIRST);
    announced(&scene, 0, 10, HX_MS(45));
    cr_assert_eq(ask(&conf, &scene, HX_MS(45)), SSAW_WAIT_QUORUM);
    announced(&scene, 1, 10, HX_MS(50));
    hx_time_t wake_at = HX_SEC(1);
    cr_assert_eq(ssaw_round(&conf, &scene.view, HX_MS(50), &wake_at), SSAW_WAIT_GRACE);
    cr_assert_eq(wake_at, HX_MS(60), "a tenth of 100 ms after the quorum stood");
    cr_assert_eq(ask(&conf, &scene, HX_MS(60)), SSAW_COMMIT);
    scene.pipelines[2].base = 6;
    cr_assert_eq(ask(&conf, &scene, HX_MS(60)), SSAW_WAIT_LAG, "10 + 1 - 6 > 4");
    scene.pipelines[2].base = 7;
    cr_assert_eq(ask(&conf, &scene, HX_MS(60)), SSAW_COMMIT);
    scene.view.prepare_out = true;
    cr_assert_eq(ask(&conf, &scene, HX_MS(60)), SSAW_WAIT_PREPARE);
}

Test(ssaw, round_does_not_wait_when_all_have_announced)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    conf.patience = 0;
    scene_t scene;
    scene_init(&scene);
    for (uint32_t at = 0; at < PIPELINES; at++) {
        announced(&scene, at, 10, 0);
    }
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_COMMIT);
    scene.view.contributions_count = 2;
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_WAIT_GRACE);
    scene.pipelines[2].live = false;
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_COMMIT, "the third is given up");
}

Test(ssaw, round_of_nobody_waits_for_him_who_may_yet_be_granted)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    announced(&scene, 0, 10, 0);
    announced(&scene, 1, 10, 0);
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_WAIT_GRACE, "the third is idle and may be granted");
    scene.view.rows_left = 0;
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_COMMIT, "there is nothing to grant");
}

Test(ssaw, end_of_data_closes_a_short_round)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_BSP, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    announced(&scene, 0, 10, 0);
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_WAIT_QUORUM);
    scene.view.rows_left = 0;
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_COMMIT);
    in_flight(&scene, 1, 10);
    cr_assert_eq(ask(&conf, &scene, 0), SSAW_WAIT_QUORUM, "not while something is in flight");
}

Test(ssaw, strict_round_never_leaves_a_lease_behind)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_BSP, 8, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    announced(&scene, 0, 10, 0);
    in_flight(&scene, 1, 10);
    cr_assert_eq(ask(&conf, &scene, HX_SEC(9)), SSAW_WAIT_LAG);
}

Test(ssaw, verdicts_have_names)
{
    cr_assert_str_eq(ssaw_verdict_name(SSAW_WAIT_QUORUM), "quorum");
    cr_assert_str_eq(ssaw_verdict_name(SSAW_WAIT_GRACE), "grace");
    cr_assert_str_eq(ssaw_verdict_name(SSAW_WAIT_LAG), "lag bound");
}

// ---- weights

Test(ssaw, lambda_follows_its_formula)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    cr_assert_float_eq(ssaw_lambda(&conf, 3), 0.5, 1e-15, "(1 + 3)^-0.5");
    conf.weighting = CONF_WEIGHTING_INVERSE;
    cr_assert_float_eq(ssaw_lambda(&conf, 0), 1, 0);
    cr_assert_float_eq(ssaw_lambda(&conf, 4), 0.25, 0);
    conf.weighting = CONF_WEIGHTING_EXP;
    cr_assert_float_eq(ssaw_lambda(&conf, 2), exp(-1), 1e-15);
    cr_assert_gt(ssaw_lambda(&conf, 1000000), 0.0);
    conf.weighting = CONF_WEIGHTING_POLY;
    conf.alpha = 100;
    cr_assert_gt(ssaw_lambda(&conf, 1000000), 0.0, "a weight is positive");
    conf.alpha = 0.5;
    conf.weighting = CONF_WEIGHTING_HINGE;
    cr_assert_float_eq(ssaw_lambda(&conf, 2), 1, 0, "up to half the bound of 8");
    cr_assert_float_eq(ssaw_lambda(&conf, 4), 1, 0);
    cr_assert_float_eq(ssaw_lambda(&conf, 8), 1 / (1 + 0.5 * 4), 1e-15);
    conf.weighting = CONF_WEIGHTING_CONST;
    cr_assert_float_eq(ssaw_lambda(&conf, 1000), 1, 0);
}

Test(ssaw, equal_contributions_give_the_plain_mean)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    double weights[8];
    for (uint32_t at = 0; at < PIPELINES; at++) {
        announced(&scene, at, 10, 0);
    }
    cr_assert_float_eq(ssaw_weigh(&conf, &scene.view, weights), 1, 1e-15, "a full round");
    for (uint32_t at = 0; at < PIPELINES; at++) {
        cr_assert_float_eq(weights[at], 1.0 / PIPELINES, 1e-15);
    }
    scene.view.contributions_count = 1;
    const double kappa = ssaw_weigh(&conf, &scene.view, weights);
    cr_assert_float_eq(kappa, 1.0 / 3, 1e-15);
    cr_assert_float_eq(ssaw_step_scale(&conf, kappa), sqrt(1.0 / 3), 1e-15);
}

Test(ssaw, stale_contributions_weigh_less)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    double weights[8];
    announced(&scene, 0, 10, 0);
    announced(&scene, 1, 7, 0);
    ssaw_weigh(&conf, &scene.view, weights);
    cr_assert_float_eq(weights[0], 2.0 / 3, 1e-12);
    cr_assert_float_eq(weights[1], 1.0 / 3, 1e-12);
}

Test(ssaw, no_tokens_no_weight)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    double weights[8] = {7, 7};
    announced(&scene, 0, 10, 0);
    scene.contributions[0].tokens = 0;
    cr_assert_float_eq(ssaw_weigh(&conf, &scene.view, weights), 0, 0);
    cr_assert_float_eq(weights[0], 0, 0);
    announced(&scene, 1, 10, 0);
    ssaw_weigh(&conf, &scene.view, weights);
    cr_assert_float_eq(weights[0], 0, 0);
    cr_assert_float_eq(weights[1], 1, 0);
}

Test(ssaw, kappa_is_capped)
{
    const ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 8, CONTEXT, 0);
    scene_t scene;
    scene_init(&scene);
    double weights[8];
    announced(&scene, 0, 10, 0);
    announced(&scene, 1, 10, 0);
    cr_assert_float_eq(ssaw_weigh(&conf, &scene.view, weights), 1, 0, "2 N rows count as N");
}

// ---- laws

static ssaw_conf_t random_conf(hx_rng_t *rng)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    conf.weighting = (conf_weighting_t)hx_rng_below(rng, 5);
    conf.quorum_rows = 1 + hx_rng_below(rng, 24);
    conf.run_ahead = (uint32_t)hx_rng_below(rng, 3);
    conf.staleness = (uint32_t)hx_rng_below(rng, 5);
    conf.grace = hx_rng_unit(rng);
    conf.alpha = 2 * hx_rng_unit(rng);
    return conf;
}

static void random_scene(scene_t *scene, hx_rng_t *rng)
{
    scene_init(scene);
    scene->view.rows_left = hx_rng_below(rng, 3) * ROWS;
    for (uint32_t at = 0; at < PIPELINES; at++) {
        if (hx_rng_below(rng, 4) == 0) {
            scene->pipelines[at].live = false;
        } else if (hx_rng_below(rng, 2) == 0) {
            in_flight(scene, at, 6 + hx_rng_below(rng, 5));
        }
    }
    const uint64_t count = hx_rng_below(rng, 5);
    for (uint64_t at = 0; at < count; at++) {
        announced(scene, (uint32_t)hx_rng_below(rng, PIPELINES), 6 + hx_rng_below(rng, 5),
                  HX_MS((hx_time_t)at));
    }
}

Test(ssaw, weights_are_positive_and_sum_to_one)
{
    hx_rng_t rng = hx_rng_seed(seed_of("ssaw"));
    for (int round = 0; round < 2000; round++) {
        const ssaw_conf_t conf = random_conf(&rng);
        scene_t scene;
        random_scene(&scene, &rng);
        double weights[8];
        const double kappa = ssaw_weigh(&conf, &scene.view, weights);
        double sum = 0;
        for (uint32_t at = 0; at < scene.view.contributions_count; at++) {
            cr_assert_gt(weights[at], 0.0);
            sum += weights[at];
        }
        if (scene.view.contributions_count > 0) {
            cr_assert_float_eq(sum, 1, 1e-12);
            cr_assert(kappa > 0 && kappa <= conf.kappa_max);
        }
    }
}

// Whoever waits has something to wait for: an event in flight, a lease that may be granted, or a
// time. Else the run would stand still for ever.
Test(ssaw, never_waits_for_nothing)
{
    hx_rng_t rng = hx_rng_seed(seed_of("ssaw"));
    for (int round = 0; round < 20000; round++) {
        const ssaw_conf_t conf = random_conf(&rng);
        scene_t scene;
        random_scene(&scene, &rng);
        bool hope = false;
        uint32_t live = 0;
        for (uint32_t at = 0; at < PIPELINES; at++) {
            live += scene.pipelines[at].live;
            hope = hope || scene.pipelines[at].in_flight > 0 ||
                   ssaw_may_grant(&conf, &scene.view, at) > 0;
        }
        hx_time_t wake_at = HX_TIME_NEVER;
        const ssaw_verdict_t verdict = ssaw_round(&conf, &scene.view, HX_MS(50), &wake_at);
        if (live == 0 || (scene.view.contributions_count == 0 && scene.view.rows_left == 0)) {
            continue;  // All are dead, or the run is over.
        }
        cr_assert(verdict == SSAW_COMMIT || hope || wake_at < HX_TIME_NEVER,
                  "round %d waits for %s", round, ssaw_verdict_name(verdict));
    }
}

Test(ssaw, no_grant_and_no_commit_breaks_the_bound)
{
    hx_rng_t rng = hx_rng_seed(seed_of("ssaw"));
    for (int round = 0; round < 20000; round++) {
        const ssaw_conf_t conf = random_conf(&rng);
        scene_t scene;
        random_scene(&scene, &rng);
        if (ask(&conf, &scene, HX_SEC(100)) != SSAW_COMMIT) {
            continue;
        }
        for (uint32_t at = 0; at < PIPELINES; at++) {
            const ssaw_pipeline_t *const pipeline = &scene.pipelines[at];
            if (pipeline->live && pipeline->in_flight > 0) {
                cr_assert_leq(scene.view.version + 1 - pipeline->base, conf.staleness);
            }
        }
    }
}

// ---- patience

// Who is served at once does not run ahead; who waits does, and so does everyone with patience 0.
Test(ssaw, only_those_who_wait_run_ahead)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, 24, CONTEXT, 0);
    cr_assert_eq(conf.patience, 0.1);
    scene_t scene;
    scene_init(&scene);
    in_flight(&scene, 0, 10);
    in_flight(&scene, 1, 10);
    in_flight(&scene, 2, 10);
    scene.pipelines[0].wait = 0.05;
    scene.pipelines[1].wait = 0.1;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 0), 0);
    cr_assert_gt(ssaw_may_grant(&conf, &scene.view, 1), 0);
    conf.patience = 0;
    cr_assert_gt(ssaw_may_grant(&conf, &scene.view, 0), 0);
    conf.run_ahead = 0;
    cr_assert_eq(ssaw_may_grant(&conf, &scene.view, 1), 0);
}
