// planner_search: how near the planner comes to the best of all plans.

#include "scheduler/planner.h"
#include "tests/support/seed.h"
#include "tests/unit/planner_cluster.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define CLUSTERS 300u

static double step_of(cluster_t *cluster, planner_method_t method)
{
    cluster->conf.method = method;
    plan_t plan;
    hx_fault_t fault = {{0}};
    const hx_err_t err = planner_solve(&cluster->in, &plan, &fault);
    cr_assert_eq(err, HX_OK, "%s", fault.text);
    const double seconds = plan.step_seconds;
    plan_destroy(&plan);
    return seconds;
}

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

Test(planner_search, is_within_5_percent_of_every_plan, .timeout = 500)
{
    hx_rng_t rng = hx_rng_seed(seed_of("planner_search"));
    static double ratios[CLUSTERS];
    for (uint32_t at = 0; at < CLUSTERS; at++) {
        cluster_t cluster;
        random_cluster(&cluster, &rng);
        const double best = step_of(&cluster, PLANNER_EXHAUSTIVE);
        ratios[at] = step_of(&cluster, PLANNER_PATCHPIPE) / best;
        cr_expect_leq(ratios[at], 1.05, "cluster %u", at);
        end(&cluster);
    }
    qsort(ratios, CLUSTERS, sizeof *ratios, compare);
    fprintf(stderr, "step against the best of every plan: median %.4f, 95 %% %.4f, worst %.4f\n",
            ratios[CLUSTERS / 2], ratios[CLUSTERS * 95 / 100], ratios[CLUSTERS - 1]);
    cr_expect_leq(ratios[CLUSTERS / 2], 1.01);
}
