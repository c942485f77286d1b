// ssaw_auto: which quorum and which bound the measured times ask for, and when they stay.

#include "server/ssaw.h"
#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <string.h>

#define CONTEXT 16

static ssaw_conf_t auto_conf(uint64_t batch_rows)
{
    ssaw_conf_t conf = ssaw_preset(CONF_MODE_SSAW, batch_rows, CONTEXT, 0);
    conf.quorum_auto = conf.staleness_auto = true;
    return conf;
}

// `count` arrivals of 8 rows each, without lag.
static uint64_t quorum_at(ssaw_auto_t *state, const double *seconds, uint32_t count, double commit)
{
    const ssaw_conf_t conf = auto_conf(8 * count);
    ssaw_arrival_t arrivals[16];
    for (uint32_t at = 0; at < count; at++) {
        arrivals[at] = (ssaw_arrival_t){.seconds = seconds[at], .rows = 8};
    }
    ssaw_quorum(&conf, state, arrivals, count, commit);
    return state->quorum_rows / 8;
}

// ---- quorum

Test(ssaw_auto, equal_speeds_wait_for_all)
{
    ssaw_auto_t state = {0};
    cr_assert_eq(quorum_at(&state, (double[]){1, 1, 1, 1}, 4, 0), 4);
}

// Rates of the first 3, 4, 5, 6: 3 / .5, 4 / .5, 5 / 1, 6 / 1.
Test(ssaw_auto, unequal_speeds_leave_the_slowest_out)
{
    ssaw_auto_t state = {0};
    cr_assert_eq(quorum_at(&state, (double[]){1, .25, .5, .25, 1, .5}, 6, 0), 4);
}

Test(ssaw_auto, never_below_half_of_the_live)
{
    ssaw_auto_t state = {0};
    cr_assert_eq(quorum_at(&state, (double[]){.01, 5, 5.1, 9, 9}, 5, 0), 3);
}

// Where a commit costs as much as the slow ones' delay, fewer and larger ones are better.
Test(ssaw_auto, costly_commits_make_larger_rounds)
{
    ssaw_auto_t cheap = {0};
    ssaw_auto_t costly = {0};
    cr_assert_eq(quorum_at(&cheap, (double[]){1, 1, 1.9, 1.9}, 4, 0), 4);
    cr_assert_eq(quorum_at(&cheap, (double[]){1, 1, 3, 3}, 4, 0), 2);
    cr_assert_eq(quorum_at(&costly, (double[]){1, 1, 3, 3}, 4, 10), 4);
}

// Contributions with much lag are worth less, so one does not wait for them.
Test(ssaw_auto, lag_counts)
{
    const ssaw_conf_t conf = auto_conf(32);
    ssaw_arrival_t arrivals[] = {{1, 8, 0}, {1, 8, 0}, {1.9, 8, 8}, {1.9, 8, 8}};
    ssaw_auto_t state = {0};
    ssaw_quorum(&conf, &state, arrivals, 4, 0);
    cr_assert_eq(state.quorum_rows, 16);
}

Test(ssaw_auto, a_choice_stays_until_another_is_clearly_better)
{
    ssaw_auto_t state = {0};
    cr_assert_eq(quorum_at(&state, (double[]){1, 1, 1.95, 1.95}, 4, 0), 4);
    // Two would be better by 5 %: not enough.
    cr_assert_eq(quorum_at(&state, (double[]){1, 1, 2.1, 2.1}, 4, 0), 4);
    cr_assert_eq(quorum_at(&state, (double[]){1, 1, 2.3, 2.3}, 4, 0), 2);
    cr_assert_eq(quorum_at(&state, (double[]){1, 1, 1.95, 1.95}, 4, 0), 2);
    cr_assert_eq(quorum_at(&state, (double[]){1, 1, 1.7, 1.7}, 4, 0), 4);
    // One that can no longer be reached is chosen anew.
    cr_assert_eq(quorum_at(&state, (double[]){1, 1}, 2, 0), 2);
}

// Law: at least half of the live, at most the batch, whatever comes.
Test(ssaw_auto, quorum_is_within_its_limits)
{
    hx_rng_t rng = hx_rng_seed(seed_of("ssaw_auto"));
    ssaw_auto_t state = {0};
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t count = 1 + (uint32_t)hx_rng_below(&rng, 16);
        double seconds[16];
        for (uint32_t at = 0; at < count; at++) {
            seconds[at] = (double)hx_rng_below(&rng, 1000) / 100;
        }
        const uint64_t chosen = quorum_at(&state, seconds, count, 0.01);
        cr_assert_geq(chosen, (count + 1) / 2);
        cr_assert_leq(chosen, count);
    }
}

// ---- staleness

static uint32_t observe(const ssaw_conf_t *conf, ssaw_auto_t *state, uint32_t commits,
                        double forced)
{
    for (uint32_t at = 0; at < commits; at++) {
        ssaw_observe(conf, state, 6, 1, forced);
    }
    return state->staleness;
}

Test(ssaw_auto, forced_waiting_loosens_the_bound)
{
    const ssaw_conf_t conf = auto_conf(48);
    ssaw_auto_t state = {0};
    cr_assert_eq(observe(&conf, &state, 1, 0), SSAW_AUTO_START);
    cr_assert_gt(observe(&conf, &state, 40, 0.5), SSAW_AUTO_START);
    cr_assert_eq(observe(&conf, &state, 1000, 0.5), SSAW_AUTO_HIGH);
}

Test(ssaw_auto, no_waiting_tightens_it)
{
    const ssaw_conf_t conf = auto_conf(48);
    ssaw_auto_t state = {0};
    cr_assert_eq(observe(&conf, &state, 31, 0), SSAW_AUTO_START);
    cr_assert_eq(observe(&conf, &state, 1, 0), SSAW_AUTO_START - 1);
    cr_assert_eq(observe(&conf, &state, 1000, 0), SSAW_AUTO_LOW);
}

Test(ssaw_auto, between_the_two_it_stays)
{
    const ssaw_conf_t conf = auto_conf(48);
    ssaw_auto_t state = {.staleness = 7, .forced = 0.05};
    cr_assert_eq(observe(&conf, &state, 1000, 0.05), 7);
}

// With one contribution a quorum, a bound below the number of pipelines would always bind.
Test(ssaw_auto, with_single_contributions_it_keeps_above_the_pipelines)
{
    ssaw_conf_t conf = auto_conf(48);
    conf.quorum_rows = SSAW_QUORUM_ONE;
    ssaw_auto_t state = {0};
    cr_assert_eq(observe(&conf, &state, 1000, 0), 6);
    hx_fault_t fault;
    cr_assert_eq(ssaw_check(&conf, 30, &fault), HX_OK, "%s", fault.text);
}

// ---- the configuration

Test(ssaw_auto, both_come_from_the_configuration)
{
    static const char text[] = "sync\n    quorum = auto\n    staleness = auto\n    frequency = 1\n"
                               "plan\n    workers = 2\n    servers = 1\n";
    conf_t conf;
    hx_fault_t fault;
    cr_assert_eq(conf_read("t.conf", text, strlen(text), NULL, 0, &conf, &fault), HX_OK, "%s",
                 fault.text);
    const ssaw_conf_t ssaw = ssaw_conf_of(&conf.sync, 24, CONTEXT);
    cr_assert(ssaw.quorum_auto && ssaw.staleness_auto && ssaw.frequency);
    cr_assert_eq(ssaw.quorum_rows, 12);
    cr_assert_eq(ssaw.staleness, SSAW_AUTO_START);
    conf_destroy(&conf);
}

Test(ssaw_auto, agreement_is_clipped_and_only_for_the_late)
{
    ssaw_conf_t conf = auto_conf(16);
    conf.agreement = 0.25;
    cr_assert_eq(ssaw_agreement(&conf, 0, -1), 1);
    cr_assert_eq(ssaw_agreement(&conf, 1, 1), 1);
    cr_assert_eq(ssaw_agreement(&conf, 1, 0), 0.5);
    cr_assert_eq(ssaw_agreement(&conf, 3, -1), 0.25);
    cr_assert_eq(ssaw_agreement(&conf, 3, -0.25), 0.375);
}

Test(ssaw_auto, frequency_makes_up_for_speed)
{
    ssaw_conf_t conf = auto_conf(16);
    conf.frequency = true;
    const ssaw_contribution_t contributions[] = {
        {.rows = 8, .tokens = 128, .oldest = 3, .agreement = 1, .frequency = 0.5},
        {.rows = 8, .tokens = 128, .oldest = 3, .agreement = 1, .frequency = 1.5}};
    const ssaw_view_t view = {
        .version = 3, .contributions = contributions, .contributions_count = 2};
    double weights[2];
    ssaw_weigh(&conf, &view, weights);
    cr_assert_float_eq(weights[0], 0.25, 1e-12);
    cr_assert_float_eq(weights[1], 0.75, 1e-12);
    conf.frequency = false;
    ssaw_weigh(&conf, &view, weights);
    cr_assert_float_eq(weights[0], 0.5, 1e-12);
}
