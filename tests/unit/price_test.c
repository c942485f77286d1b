// price_test - times of leases that can be worked out by hand.

#include "scheduler/price.h"

#include <criterion/criterion.h>
#include <math.h>

#include "tensor/hx_rng.h"
#include "tests/support/seed.h"

#define STAGES_MAX 6

static const double zeros[STAGES_MAX];

static price_in_t lease(uint32_t stages, uint32_t micros, const double *forward,
                        const double *backward)
{
    static const uint32_t deep[STAGES_MAX] = {64, 64, 64, 64, 64, 64};
    return (price_in_t){.schedule = SCHEDULE_1F1B,
                        .stages = stages,
                        .rows = micros * 4,
                        .microbatch = 4,
                        .depths = deep,
                        .forward = forward,
                        .backward = backward,
                        .line = zeros,
                        .line_back = zeros,
                        .latency = zeros,
                        .push = zeros,
                        .pull = zeros};
}

Test(price, one_stage_takes_its_microbatches)
{
    const double forward[] = {1};
    const double backward[] = {2};
    const price_in_t in = lease(1, 5, forward, backward);
    const price_t price = price_lease(&in);
    cr_assert_float_eq(price.lease, 15, 1e-12);
    cr_assert_float_eq(price.period, 15, 1e-12);
    cr_assert_float_eq(price.busy, 1, 1e-12);
}

Test(price, the_last_microbatch_may_be_smaller)
{
    const double forward[] = {1};
    const double backward[] = {2};
    price_in_t in = lease(1, 5, forward, backward);
    in.rows = 17;
    cr_assert_float_eq(price_lease(&in).lease, 4 * 3 + 0.75, 1e-12);
}

// Equal stages without links: (M + S - 1)(f + b), for gpipe and 1f1b alike.
Test(price, equal_stages_have_the_known_bubble)
{
    const double forward[] = {1, 1, 1, 1};
    const double backward[] = {2, 2, 2, 2};
    price_in_t in = lease(4, 8, forward, backward);
    cr_assert_float_eq(price_lease(&in).lease, (8 + 3) * 3, 1e-12);
    in.schedule = SCHEDULE_GPIPE;
    cr_assert_float_eq(price_lease(&in).lease, (8 + 3) * 3, 1e-12);
}

// One microbatch, two stages: f0, link, f1, b1, link back, b0.
Test(price, a_single_microbatch_walks_there_and_back)
{
    const double forward[] = {1, 10};
    const double backward[] = {2, 20};
    const double line[] = {100};
    const double line_back[] = {1000};
    const double latency[] = {0.5};
    price_in_t in = lease(2, 1, forward, backward);
    in.line = line;
    in.line_back = line_back;
    in.latency = latency;
    const price_t price = price_lease(&in);
    cr_assert_float_eq(price.lease, 1 + 100.5 + 10 + 20 + 1000.5 + 2, 1e-9);
    cr_assert_float_eq(price.busy, 33 / (2 * price.period), 1e-9);
}

// The line is the slowest part: messages queue on it. gpipe, M = 4: forwards at 1..4, arrivals at
// 11, 21, 31, 41; stage 1 forwards till 42, backwards 43..46, gradients at 53, 63, 73, 83; the last
// backward ends at 84.
Test(price, messages_queue_on_a_slow_line)
{
    const double ones[] = {1, 1};
    const double line[] = {10};
    price_in_t in = lease(2, 4, ones, ones);
    in.schedule = SCHEDULE_GPIPE;
    in.line = line;
    in.line_back = line;
    cr_assert_float_eq(price_lease(&in).lease, 84, 1e-12);
}

// With latency alone nothing queues: the same with arrivals at 11, 12, 13, 14 and gradients at
// 26..29.
Test(price, latency_does_not_occupy_the_line)
{
    const double ones[] = {1, 1};
    const double latency[] = {10};
    price_in_t in = lease(2, 4, ones, ones);
    in.schedule = SCHEDULE_GPIPE;
    in.latency = latency;
    cr_assert_float_eq(price_lease(&in).lease, 30, 1e-12);
}

Test(price, without_overlap_synchronisation_is_added)
{
    const double forward[] = {1, 1};
    const double backward[] = {2, 2};
    const double push[] = {5, 50};
    const double pull[] = {7, 3};
    price_in_t in = lease(2, 4, forward, backward);
    in.push = push;
    in.pull = pull;
    in.round = 100;
    // Stage 1 ends one backward of stage 0 earlier: 13 + 50, stage 0: 15 + 5.
    const price_t price = price_lease(&in);
    cr_assert_float_eq(price.lease, 15, 1e-12);
    cr_assert_float_eq(price.period, 13 + 50 + 100 + 7, 1e-12);
}

Test(price, with_overlap_the_next_lease_fills_the_drain)
{
    const double forward[] = {1, 1};
    const double backward[] = {2, 2};
    price_in_t in = lease(2, 4, forward, backward);
    in.overlap = true;
    const price_t price = price_lease(&in);
    cr_assert_float_eq(price.lease, 15, 1e-12);
    cr_assert_geq(price.period, 12 - 1e-9);
    cr_assert_lt(price.period, 15 + 1e-9);
    const double slow[] = {20, 0};
    in.push = slow;
    in.pull = slow;
    cr_assert_float_eq(price_lease(&in).period, 40, 1e-9);
}

// Laws on random pipelines: no faster than the slowest stage or than one microbatch's way, and
// slower stages or links never make a lease of gpipe shorter.
Test(price, is_never_below_its_bounds)
{
    hx_rng_t rng = hx_rng_seed(seed_of("price"));
    for (uint32_t round = 0; round < 300; round++) {
        const uint32_t stages = 1 + (uint32_t)hx_rng_below(&rng, STAGES_MAX);
        const uint32_t micros = 1 + (uint32_t)hx_rng_below(&rng, 12);
        double forward[STAGES_MAX], backward[STAGES_MAX], line[STAGES_MAX], latency[STAGES_MAX];
        double way = 0;
        double slowest = 0;
        uint32_t depths[STAGES_MAX];
        for (uint32_t at = 0; at < stages; at++) {
            forward[at] = hx_rng_unit(&rng);
            backward[at] = hx_rng_unit(&rng) * 2;
            line[at] = hx_rng_unit(&rng);
            latency[at] = hx_rng_unit(&rng);
            depths[at] = 2 * (stages - at) - 1;
            way +=
                forward[at] + backward[at] + (at + 1 < stages ? 2 * (line[at] + latency[at]) : 0);
            slowest = fmax(slowest, forward[at] + backward[at]);
        }
        price_in_t in = lease(stages, micros, forward, backward);
        in.depths = depths;
        in.line = in.line_back = line;
        in.latency = latency;
        for (uint32_t kind = 0; kind < SCHEDULE_KINDS_COUNT; kind++) {
            in.schedule = (schedule_kind_t)kind;
            const price_t price = price_lease(&in);
            const bool parts = in.schedule == SCHEDULE_ZB;
            cr_assert_geq(price.lease, micros * slowest - 1e-9);
            cr_assert(parts || price.lease >= way - 1e-9, "%g, way %g", price.lease, way);
            cr_assert_leq(price.busy, 1 + 1e-9);
        }
        in.schedule = SCHEDULE_GPIPE;
        const double before = price_lease(&in).lease;
        forward[hx_rng_below(&rng, stages)] += 0.5;
        cr_assert_geq(price_lease(&in).lease, before - 1e-9);
    }
}
