// bench_sim - random clusters in virtual time: the laws over many seeds.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/sim_cluster.h"
#include "net/options.h"

#define LIMIT HX_SEC(3600)

typedef struct {
    uint64_t commits, contributions, dropped, messages;
    double virtual_seconds;
} sums_t;

static json_t *report_json(uint64_t seeds, json_t *faults, const sums_t *sums, double seconds)
{
    return json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:f, s:f}", "seeds", (json_int_t)seeds,
                     "broken", faults, "commits", (json_int_t)sums->commits, "contributions",
                     (json_int_t)sums->contributions, "dropped", (json_int_t)sums->dropped,
                     "messages", (json_int_t)sums->messages, "virtual_seconds",
                     sums->virtual_seconds, "seconds", seconds);
}

static void run_seed(uint64_t seed, sums_t *sums, json_t *faults)
{
    const sim_cluster_conf_t conf = sim_cluster_random(seed);
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    sim_report_t report;
    sim_cluster_run(cluster, LIMIT, &report);
    sim_cluster_destroy(&cluster);
    sums->commits += report.commits;
    sums->contributions += report.contributions;
    sums->dropped += report.dropped;
    sums->messages += report.messages;
    sums->virtual_seconds += (double)report.time * 1e-9;
    const bool unsaved = strstr(report.reason, "checkpoint was not written") != NULL;
    if (report.broken[0] || report.status != (unsaved ? 1 : 0)) {
        const char *const law = report.broken[0] ? report.broken : report.reason;
        fprintf(stderr, "seed %" PRIu64 ": %s\n", seed, law);
        json_array_append_new(faults,
                              json_pack("{s:I, s:s}", "seed", (json_int_t)seed, "law", law));
    }
}

int bench_sim(int argc, char **argv)
{
    uint64_t seeds = 1000, first = 1;
    bool json = false;
    const option_t list[] = {
        {"seeds", 0, OPTION_LONG, "N", "how many random clusters to run (1000)", &seeds},
        {"first", 0, OPTION_LONG, "SEED", "the first seed (1)", &first},
        {"json", 0, OPTION_FLAG, NULL, "one object on standard output", &json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench sim",
        .summary = "Runs the daemons' own roles in virtual time over a virtual network, one random "
                   "cluster a seed, and checks the laws of the protocol after every commit.",
        .operands = "",
        .options = list,
        .options_count = HX_COUNT(list),
        .examples =
            "  harmony-bench sim --seeds 10000\n  harmony-bench sim --first 4711 --seeds 1\n",
    };
    options_t options;
    if (!options_parse(&spec, argc, argv, &options)) {
        return options.status;
    }
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
               " contributions, %" PRIu64 " dropped, %" PRIu64 " messages, %.0f virtual seconds\n",
               seeds, seconds, count, sums.commits, sums.contributions, sums.dropped, sums.messages,
               sums.virtual_seconds);
        json_decref(faults);
    }
    options_destroy(&options);
    return count > 0 ? EXIT_FAILED : EXIT_DONE;
}
