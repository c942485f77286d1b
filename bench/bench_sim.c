// bench_sim - random clusters in virtual time: the laws over many seeds.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/bench_learn.h"
#include "bench/sim_cluster.h"
#include "net/options.h"

#define LIMIT HX_SEC(3600)
#define AGAIN_EVERY 64u  // Two of so many seeds are run twice: the same trace must come.

typedef struct {
    uint64_t commits, contributions, dropped, messages;
    uint64_t failed;  // Runs that ended with a reason: too many died, or a disk was full.
    double virtual_seconds;
} sums_t;

static json_t *report_json(uint64_t seeds, json_t *faults, const sums_t *sums, double seconds)
{
    return json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "seeds", (json_int_t)seeds,
                     "broken", faults, "commits", (json_int_t)sums->commits, "contributions",
                     (json_int_t)sums->contributions, "dropped", (json_int_t)sums->dropped,
                     "failed", (json_int_t)sums->failed, "messages", (json_int_t)sums->messages,
                     "virtual_seconds", sums->virtual_seconds, "seconds", seconds);
}

// Every other seed has misfortunes.
static void run_once(uint64_t seed, sim_report_t *report)
{
    const sim_cluster_conf_t conf = sim_cluster_random(seed);
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    if (seed % 2 == 1) {
        sim_cluster_misfortunes(cluster, seed);
    }
    sim_cluster_run(cluster, LIMIT, report);
    sim_cluster_destroy(&cluster);
}

// What is wrong with this run; NULL: nothing. Where workers die a run may end with a reason.
static const char *fault_of(uint64_t seed, const sim_report_t *report)
{
    if (report->broken[0]) {
        return report->broken;
    }
    const bool unsaved = strstr(report->reason, "checkpoint was not written") != NULL;
    const bool explained = unsaved || (seed % 2 == 1 && report->reason[0]);
    if (report->status != 0 && !explained) {
        return report->reason[0] ? report->reason : "it fails without a reason";
    }
    if (seed % AGAIN_EVERY == 0 || seed % AGAIN_EVERY == 1) {
        sim_report_t again;
        run_once(seed, &again);
        if (again.trace_hash != report->trace_hash) {
            return "the same seed gives another trace";
        }
    }
    return NULL;
}

static void run_seed(uint64_t seed, sums_t *sums, json_t *faults)
{
    sim_report_t report;
    run_once(seed, &report);
    sums->commits += report.commits;
    sums->contributions += report.contributions;
    sums->dropped += report.dropped;
    sums->messages += report.messages;
    sums->virtual_seconds += (double)report.time * 1e-9;
    sums->failed += report.status != 0;
    const char *const law = fault_of(seed, &report);
    if (law) {
        fprintf(stderr, "seed %" PRIu64 ": %s\n", seed, law);
        json_array_append_new(faults,
                              json_pack("{s:I, s:s}", "seed", (json_int_t)seed, "law", law));
    }
}

int bench_sim(int argc, char **argv)
{
    uint64_t seeds = 0, first = 1;
    bool json = false, learn = false;
    bench_learn_args_t learning = {0};
    const option_t list[] = {
        {"seeds", 0, OPTION_LONG, "N", "random clusters to run (1000); seeds of --learn (3)",
         &seeds},
        {"first", 0, OPTION_LONG, "SEED", "the first seed (1)", &first},
        {"learn", 0, OPTION_FLAG, NULL, "real gradients: modes against each other", &learn},
        {"modes", 0, OPTION_TEXT, "LIST",
         "of --learn: names, each with :KEY=VALUE as it likes (all but local)", &learning.modes},
        {"cluster", 0, OPTION_TEXT, "NAME", "of --learn: a unequal and noisy, b noisy, c quiet (a)",
         &learning.cluster},
        {"rates", 0, OPTION_TEXT, "LIST", "learning rates that each mode tries (0.003,0.006,0.012)",
         &learning.rates},
        {"seconds", 0, OPTION_REAL, "S", "virtual, of each run of --learn (600)",
         &learning.seconds},
        {"data", 0, OPTION_TEXT, "FILE", "text to learn (data/kjv.txt)", &learning.data},
        {"svg", 0, OPTION_TEXT, "FILE", "plot of the loss of --learn", &learning.svg},
        {"json", 0, OPTION_FLAG, NULL, "one object on standard output", &json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench sim",
        .summary = "Runs the daemons' own roles in virtual time over a virtual network, one random "
                   "cluster a seed, and checks the laws of the protocol after every commit. With "
                   "--learn tensors are real: synchronisation modes train a small model on the "
                   "same devices for the same virtual time, each with the best learning rate of a "
                   "grid, and the loss is exact and repeatable.",
        .operands = "",
        .options = list,
        .options_count = HX_COUNT(list),
        .examples =
            "  harmony-bench sim --seeds 10000\n  harmony-bench sim --first 4711 --seeds 1\n"
            "  harmony-bench sim --learn --cluster a --svg loss.svg\n"
            "  harmony-bench sim --learn --modes bsp,ssaw,ssaw:quorum=0.75:run_ahead=0\n",
    };
    options_t options;
    if (!options_parse(&spec, argc, argv, &options)) {
        return options.status;
    }
    if (learn) {
        learning.json = json;
        learning.seeds = (uint32_t)HX_MIN(seeds, UINT32_MAX);
        const int status = bench_learn(&learning);
        options_destroy(&options);
        return status;
    }
    seeds = seeds > 0 ? seeds : 1000;
    sums_t sums = {0};
    json_t *const faults = json_array();
    const double start = bench_now();
    for (uint64_t at = 0; at < seeds; at++) {
        run_seed(first + at, &sums, faults);
    }
    const double seconds = bench_now() - start;
    const size_t count = json_array_size(faults);
    if (json) {
        bench_print_json(report_json(seeds, faults, &sums, seconds));
    } else {
        printf("%" PRIu64 " seeds in %.1f s: %zu broken; %" PRIu64 " commits of %" PRIu64
               " contributions, %" PRIu64 " dropped, %" PRIu64
               " messages, %.0f virtual seconds; %" PRIu64 " runs that misfortune ended\n",
               seeds, seconds, count, sums.commits, sums.contributions, sums.dropped, sums.messages,
               sums.virtual_seconds, sums.failed);
        json_decref(faults);
    }
    options_destroy(&options);
    return count > 0 ? EXIT_FAILED : EXIT_DONE;
}
