// lead_hold: no more work is out than its gradients find room.

#include "server/lead.h"
#include "tensor/hx_rng.h"
#include "tests/support/lead_world.h"
#include "tests/support/seed.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT HX_SEC(100000)
#define ROWS 400u

static lead_world_conf_t conf_of(uint64_t seed, uint64_t hold_limit)
{
    ssaw_conf_t ssaw = ssaw_preset(CONF_MODE_SSAW, 16, WORLD_CONTEXT, 0);
    ssaw.run_ahead = 2;
    lead_world_conf_t conf = lead_world_conf(seed, ssaw);
    conf.tokens = (uint64_t)ROWS * WORLD_CONTEXT;
    conf.hold_limit = hold_limit;
    hx_rng_t rng = hx_rng_seed(seed);
    conf.pipelines = 2 + (uint32_t)hx_rng_below(&rng, 4);
    conf.stages = 1;
    conf.shards = 1 + (uint32_t)hx_rng_below(&rng, 3);
    for (uint32_t at = 0; at < conf.pipelines; at++) {
        conf.rows[at] = 1 + (uint32_t)hx_rng_below(&rng, 7);
        conf.row_time[at] = HX_MS(1 + (hx_time_t)hx_rng_below(&rng, 40));
        conf.dies_at[at] = at > 0 && hx_rng_below(&rng, 3) == 0
                               ? HX_MS(50 + (hx_time_t)hx_rng_below(&rng, 900))
                               : 0;
    }
    return conf;
}

// Bytes for one contribution of each pipeline, as the refusal of a byte names them.
static uint64_t need_of(uint64_t seed)
{
    const lead_world_conf_t conf = conf_of(seed, 1);
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert(report->done);
    cr_assert_eq(report->status, 1);
    const char *const number = strstr(report->reason, "pipelines needs ");
    cr_assert(number && strstr(report->reason, "server.hold"), "%s", report->reason);
    const uint64_t need = strtoull(number + strlen("pipelines needs "), NULL, 10);
    cr_assert_gt(need, 0);
    lead_world_destroy(&world);
    return need;
}

// Runs to the end; the most leases that were out.
static uint32_t most_of(uint64_t seed, uint64_t hold_limit)
{
    const lead_world_conf_t conf = conf_of(seed, hold_limit);
    lead_world_t *world = lead_world_new(&conf);
    const lead_world_report_t *const report = lead_world_run(world, LIMIT);
    cr_assert_str_empty(report->broken);
    cr_assert(report->done && report->status == 0, "seed %" PRIu64 ": %s", seed, report->reason);
    cr_assert_eq(report->rows_committed, ROWS);
    const uint32_t most = report->leases_most;
    lead_world_destroy(&world);
    return most;
}

Test(lead_hold, as_much_is_out_as_fits_and_every_run_ends)
{
    const uint64_t first = seed_of("lead_hold");
    for (uint64_t seed = first; seed < first + 200; seed++) {
        const uint32_t pipelines = conf_of(seed, 0).pipelines;
        const uint64_t need = need_of(seed);
        cr_assert_leq(most_of(seed, need), pipelines, "seed %" PRIu64, seed);
        cr_assert_leq(most_of(seed, need + need / pipelines), pipelines + 1);
    }
}

Test(lead_hold, without_a_limit_more_is_out)
{
    cr_assert_gt(most_of(3, 0), conf_of(3, 0).pipelines);
}
