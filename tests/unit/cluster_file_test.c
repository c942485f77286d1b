// Clusters as files: what is read, and how the rest is refused.

#include "bench/cluster_file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/tree.h"

#define MODEL \
    "model\n    layers = 2\n    heads = 2\n    channels = 16\n    context = 8\n    vocab = 64\n"
#define TOP "source = \"made up\"\nrows = 16\nmicrobatch = 2\n"
#define EAST "devices\n    site = \"east\"\n    count = 2\n    flops = 1e9\n    memory = 1e9\n"
#define WEST                                                                                 \
    "devices\n    site = \"west\"\n    name = \"old\"\n    count = 1\n    flops = 5e8\n    " \
    "memory = 2e9\n"
#define LINK \
    "link\n    from = \"east\"\n    to = \"west\"\n    latency = 0.01\n    bandwidth = 1e6\n"

static cluster_file_t cluster;

static void reads(const char *text)
{
    hx_fault_t fault = {{0}};
    cr_assert_eq(cluster_file_read("a.conf", text, strlen(text), &cluster, &fault), HX_OK, "%s",
                 fault.text);
}

static void refused(const char *text, const char *words)
{
    hx_fault_t fault = {{0}};
    cr_expect_neq(cluster_file_read("a.conf", text, strlen(text), &cluster, &fault), HX_OK, "%s",
                  text);
    cr_expect(strstr(fault.text, words), "\"%s\" lacks \"%s\"", fault.text, words);
    cr_expect(strncmp(fault.text, "a.conf", 6) == 0, "%s", fault.text);
    cr_expect_null(cluster.nodes);
}

Test(cluster_file, devices_have_the_times_of_their_rates)
{
    reads(TOP MODEL EAST WEST LINK);
    cr_assert_eq(cluster.devices, 3);
    cr_assert_eq(cluster.in.nodes_count, 7);  // Lead, keeper, a shard a site.
    cr_assert_eq(cluster.conf.rows, 16);
    cr_assert_eq(cluster.conf.microbatch, 2);
    const profile_t *const fast = &cluster.profiles[4], *const slow = &cluster.profiles[6];
    cr_assert_str_eq(cluster.nodes[4].name, "east/device0");
    cr_assert_str_eq(cluster.nodes[6].name, "west/old0");
    const model_layer_t *const block = model_layer(cluster.model, 1);
    cr_assert_float_eq(fast->block.forward, 2 * block->forward_flops / 1e9, 2e-6);
    cr_assert_float_eq(slow->block.forward, 2 * block->forward_flops / 5e8, 2e-6);
    cr_assert_eq(slow->memory, 2000000000u);
    cr_assert_eq(cluster.in.links_count, 2);
    cr_assert_eq(cluster.links[0].bandwidth, 1e6);
    cr_assert_eq(cluster.links[1].from, cluster.links[0].to);
    plan_t plan;
    hx_fault_t fault = {{0}};
    cr_assert_eq(planner_solve(&cluster.in, &plan, &fault), HX_OK, "%s", fault.text);
    plan_destroy(&plan);
    cluster_file_destroy(&cluster);
}

Test(cluster_file, spread_makes_devices_slower_and_always_the_same)
{
    static const char text[] =
        TOP MODEL "devices\n    site = \"east\"\n    count = 40\n    flops = 1e9\n    spread = 4\n"
                  "    memory = 1e9\n";
    reads(text);
    double first[40], slowest = 0;
    for (uint32_t at = 0; at < 40; at++) {
        first[at] = cluster.profiles[3 + at].block.forward;
        slowest = first[at] > slowest ? first[at] : slowest;
        cr_assert_leq(first[at] / 4, first[0] * 4);
    }
    const double full = model_layer(cluster.model, 1)->forward_flops * 2 / 1e9;
    cr_assert(slowest > 2 * full && slowest <= 4 * full + 2e-6);
    cluster_file_destroy(&cluster);
    reads(text);
    for (uint32_t at = 0; at < 40; at++) {
        cr_assert_eq(first[at], cluster.profiles[3 + at].block.forward);
    }
    cluster_file_destroy(&cluster);
}

Test(cluster_file, the_rest_is_refused_in_a_line)
{
    refused("", "lacks \"source\"");
    refused(TOP, "section \"model\"");
    refused(TOP MODEL, "section \"devices\"");
    refused(TOP EAST, "section \"model\"");
    refused(TOP MODEL MODEL EAST, "\"model\" here");
    refused(TOP MODEL "toys\n    count = 1\n", "\"toys\" here");
    refused(TOP MODEL "devices\n    site = \"east\"\n    count = 2\n    flops = 1e9\n", "memory");
    refused(TOP MODEL "devices\n    site = \"east\"\n    cout = 2\n", "no key \"cout\"");
    refused(TOP MODEL "devices\n    site = \"east\"\n    count = 1.5\n", "whole number");
    refused(TOP MODEL "devices\n    site = \"east\"\n    count = many\n", "count = many");
    refused(TOP MODEL "devices\n    site = \"east\"\n    count = 0\n", "count = 0");
    refused(TOP MODEL EAST LINK, "no devices are at site \"west\"");
    refused("source = \"x\"\nrows = nan\n", "rows = nan");
    refused("source = \"x\"\nrows = 16\nmicrobatch = 2\nmodel\n    layers = 2\n    heads = 3\n"
            "    channels = 16\n    context = 8\n    vocab = 64\n" EAST,
            "model.heads");
}

// Every cluster that is shipped can be read, and has a plan.
Test(cluster_file, shipped_ones_are_read, .timeout = 120)
{
    static const char *const names[] = {"two-sites",   "four-regions", "eight-cities",
                                        "three-kinds", "gpu-and-cpus", "random-128"};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        char path[512];
        snprintf(path, sizeof path, HX_SOURCE_DIR "/bench/clusters/%s.conf", names[at]);
        char *const text = tree_text(path);
        cr_assert(text, "%s", path);
        hx_fault_t fault = {{0}};
        cr_assert_eq(cluster_file_read(path, text, strlen(text), &cluster, &fault), HX_OK, "%s",
                     fault.text);
        cr_assert_gt(strlen(cluster.source), 10);
        cluster.conf.method = PLANNER_UNIFORM;
        plan_t plan;
        cr_assert_eq(planner_solve(&cluster.in, &plan, &fault), HX_OK, "%s", fault.text);
        plan_destroy(&plan);
        cluster_file_destroy(&cluster);
        free(text);
    }
}
