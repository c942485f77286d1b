// The daemons' roles over a virtual network: every law of the protocol, over many seeds.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sim_cluster.h"
#include "tests/support/seed.h"

#define SEEDS 1000
#define LIMIT HX_SEC(3600)

// One run from one seed. With `kills`, some workers die at random moments, never all of them, and
// lines are cut for a while.
static void run_seed(uint64_t seed, bool kills, sim_report_t *report)
{
    const sim_cluster_conf_t conf = sim_cluster_random(seed);
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    if (kills) {
        sim_cluster_misfortunes(cluster, seed);
    }
    sim_cluster_run(cluster, LIMIT, report);
    sim_cluster_destroy(&cluster);
}

Test(sim_laws, hold_for_every_seed, .timeout = 500)
{
    const uint64_t first = seed_of("sim_laws");
    uint64_t commits = 0, dropped = 0, events = 0;
    for (uint64_t at = 0; at < SEEDS; at++) {
        const uint64_t seed = first + at;
        sim_report_t report;
        run_seed(seed, false, &report);
        cr_assert(report.broken[0] == '\0', "seed %" PRIu64 ": %s (scheduler: %d, %s)", seed,
                  report.broken, report.status, report.reason);
        const bool unsaved = strstr(report.reason, "checkpoint was not written") != NULL;
        cr_assert(report.status == (unsaved ? 1 : 0), "seed %" PRIu64 ": %s", seed, report.reason);
        commits += report.commits;
        dropped += report.dropped;
        events += report.messages;
    }
    fprintf(stderr, "%d seeds: %" PRIu64 " commits, %" PRIu64 " dropped, %" PRIu64 " messages\n",
            SEEDS, commits, dropped, events);
}

Test(sim_laws, hold_when_workers_die, .timeout = 500)
{
    const uint64_t first = seed_of("sim_laws") + 100000;
    int finished = 0;
    for (uint64_t at = 0; at < SEEDS / 2; at++) {
        const uint64_t seed = first + at;
        sim_report_t report;
        run_seed(seed, true, &report);
        cr_assert(report.broken[0] == '\0', "seed %" PRIu64 ": %s (scheduler: %d, %s)", seed,
                  report.broken, report.status, report.reason);
        cr_assert(report.status == 0 || report.reason[0], "seed %" PRIu64 ": no reason", seed);
        finished += report.status == 0;
    }
    cr_assert_gt(finished, SEEDS / 8, "%d of %d runs finish in spite of deaths", finished,
                 SEEDS / 2);
}

Test(sim_laws, same_seed_same_trace, .timeout = 300)
{
    const uint64_t first = seed_of("sim_laws") + 200000;
    for (uint64_t seed = first; seed < first + 50; seed++) {
        sim_report_t one, two;
        run_seed(seed, true, &one);
        run_seed(seed, true, &two);
        cr_assert_eq(one.trace_hash, two.trace_hash, "seed %" PRIu64, seed);
        cr_assert_eq(one.messages, two.messages, "seed %" PRIu64, seed);
    }
    sim_report_t one, other;
    run_seed(first, true, &one);
    run_seed(first + 1, true, &other);
    cr_assert_neq(one.trace_hash, other.trace_hash, "another seed is another run");
}
