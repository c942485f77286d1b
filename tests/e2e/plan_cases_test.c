// Plans: every layer has a home (NVIDIA/Megatron-LM#1304 and its kind), fewer microbatches than
// stages (pytorch/torchtitan#775), gradients that do not depend on how the batch is cut
// (microsoft/DeepSpeed#7773).

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "tests/support/reference.h"
#include "tests/support/rough.h"

#define STEPS 5
#define ROWS 32
#define SITES_MAX 2048

// The `launch` section: `workers` on one site, of the given slowdowns (NULL: all 1).
static const char *sites_of(uint32_t workers, const double *slowdowns, char out[SITES_MAX])
{
    size_t used = (size_t)snprintf(out, SITES_MAX,
                                   "    site\n        name = \"here\"\n        servers = 1\n");
    for (uint32_t at = 0; at < workers; at++) {
        used += (size_t)snprintf(out + used, SITES_MAX - used,
                                 "        worker\n            name = \"w%u\"\n"
                                 "            threads = 1\n            slowdown = %g\n",
                                 at + 1, slowdowns ? slowdowns[at] : 1.0);
    }
    return out;
}

// ---- every layer once

// Each pipeline of plan.json has layers 0 to `layers` + 2 without a gap.
static void expect_every_layer(run_t *run, uint32_t layers)
{
    char path[512];
    snprintf(path, sizeof path, "%s/runs/test/plan.json", run->dir);
    json_t *const plan = json_load_file(path, 0, NULL);
    const json_t *const pipelines = json_object_get(plan, "pipelines");
    cr_assert_gt(json_array_size(pipelines), 0);
    size_t at = 0;
    const json_t *pipeline = NULL;
    json_array_foreach(pipelines, at, pipeline)
    {
        json_int_t next = 0;
        size_t stage_at = 0;
        const json_t *stage = NULL;
        json_array_foreach(json_object_get(pipeline, "stages"), stage_at, stage)
        {
            const json_t *const cut = json_object_get(stage, "layers");
            cr_expect_eq(json_integer_value(json_array_get(cut, 0)), next, "a gap");
            next = json_integer_value(json_array_get(cut, 1));
        }
        cr_expect_eq(next, layers + 2, "pipeline %zu ends at layer %lld", at, (long long)next);
    }
    json_decref(plan);
}

static void trains_whole(uint32_t layers, uint32_t workers, const char *pipelines,
                         const char *stages)
{
    char sites[SITES_MAX], set[64];
    run_t run;
    run_begin(&run, "layers", &(run_shape_t){.sites = sites_of(workers, NULL, sites)});
    snprintf(set, sizeof set, "model.layers=%u", layers);
    rough_launch(&run,
                 (const char *[]){REFERENCE_SETS, set, "train.tokens=1024", "run.join_timeout=60",
                                  pipelines, stages, NULL},
                 100, 0);
    expect_every_layer(&run, layers);
    char data[512];
    snprintf(data, sizeof data, "%s/text.txt", run.dir);
    const reference_conf_t conf = {
        .layers = layers, .rows = 16, .vocab = 256, .steps = 2, .seed = 7, .data = data};
    double wanted[2], losses[2];
    float *const params = reference_run(&conf, wanted, NULL);
    cr_assert_eq(run_losses(&run, losses, 2), 2);
    cr_expect_lt(fabs(losses[0] - wanted[0]), 1e-5 * wanted[0], "step 1: %.9f, one process %.9f",
                 losses[0], wanted[0]);
    cr_expect_lt(reference_distance(&run, &conf, params), 1e-5);
    const uint64_t count = reference_elements(&run, &conf);
    // Embeddings, blocks and the last norm of GPT-2, by hand.
    const uint64_t wide = 32;
    cr_expect_eq(count, (256 + 32) * wide + layers * (12 * wide * wide + 13 * wide) + 2 * wide,
                 "%llu parameters", (unsigned long long)count);
    free(params);
    run_end(&run);
}

Test(plan_cases, thirty_layers_over_four_stages_are_all_trained, .timeout = 200)
{
    trains_whole(30, 4, "plan.pipelines=1", NULL);
}

Test(plan_cases, seven_layers_over_three_stages_are_all_trained, .timeout = 200)
{
    trains_whole(7, 3, "plan.pipelines=1", NULL);
    trains_whole(7, 3, "plan.stages=here:3,2,2", NULL);
}

static const char *four_sites(void)
{
    static char sites[SITES_MAX];
    return sites_of(4, NULL, sites);
}

// Refused by the launcher before a process is started, and by each program alone.
static void refused_with(const char *const *sets, const char *const *words)
{
    run_t run;
    run_begin(&run, "refused", &(run_shape_t){.sites = four_sites()});
    rough_refused(&run, "harmony-launch", sets, 2, words);
    rough_refused(&run, "harmony-scheduler", sets, 2, words);
    cr_expect_eq(rough_count(&run, "runs/test", "plan", ".json"), 0, "no plan was made");
    run_end(&run);
}

Test(plan_cases, layers_without_a_home_are_named, .timeout = 120)
{
    refused_with((const char *[]){"model.layers=30", "plan.stages=7,7,7,7", NULL},
                 (const char *[]){"28", "30", "29 to 30", NULL});
    refused_with((const char *[]){"model.layers=30", "plan.stages=8,8,8,8", NULL},
                 (const char *[]){"32", "30", "31 to 32", NULL});
    refused_with((const char *[]){"model.layers=30", "plan.stages=7,7", NULL},
                 (const char *[]){"14", "30", "15 to 30", NULL});
    refused_with((const char *[]){"model.layers=7", "plan.stages=1", NULL},
                 (const char *[]){"hold 1 ", "7", "2 to 7", NULL});
    refused_with((const char *[]){"model.layers=7", "plan.stages=4,3;7,0", NULL},
                 (const char *[]){"pipeline 2", "without a block", NULL});
    refused_with((const char *[]){"model.layers=7", "plan.stages=3,,4", NULL},
                 (const char *[]){"plan.stages", "3,,4", NULL});
}

// The pipelines' rows of a batch, as plan.json has them: "20 12".
static void expect_rows(run_t *run, const char *wanted)
{
    char path[512], got[64] = {0};
    snprintf(path, sizeof path, "%s/runs/test/plan.json", run->dir);
    json_t *const plan = json_load_file(path, 0, NULL);
    size_t at = 0;
    const json_t *pipeline = NULL;
    json_array_foreach(json_object_get(plan, "pipelines"), at, pipeline)
    {
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%lld", at > 0 ? " " : "",
                 (long long)json_integer_value(json_object_get(pipeline, "rows")));
    }
    cr_expect_str_eq(got, wanted);
    json_decref(plan);
}

// The norm of each step's whole gradient, as metrics.jsonl has it.
static void expect_norms(run_t *run, const char *what, const double *wanted)
{
    char *const text = run_text(run, "runs/test/metrics.jsonl");
    char *rest = text;
    int step = 0;
    for (char *line = strsep(&rest, "\n"); line && step < STEPS; line = strsep(&rest, "\n")) {
        json_t *const json = json_loads(line, 0, NULL);
        const json_t *const norm = json_object_get(json, "norm");
        if (norm) {
            const double got = json_number_value(norm);
            cr_expect_lt(fabs(got - wanted[step]), 1e-4 * wanted[step],
                         "%s, step %d: norm %.9f, one process %.9f", what, step + 1, got,
                         wanted[step]);
            step++;
        }
        json_decref(json);
    }
    cr_expect_eq(step, STEPS);
    free(text);
}

// ---- fewer microbatches than stages, and batches that do not fit

// `rows` (or NULL): what expect_rows wants.
static void equals_one_process(const char *what, const char *sites, const char *rows,
                               const char *const *more)
{
    run_t run;
    const char *sets[24] = {REFERENCE_SETS, "train.global_batch=1024", "train.tokens=5120",
                            "train.valid_tokens=256", "model.layers=4"};
    size_t count = 0;
    while (sets[count]) {
        count++;
    }
    for (; *more; more++) {
        sets[count++] = *more;
    }
    run_begin(&run, "equal", &(run_shape_t){.sites = sites});
    rough_launch(&run, sets, 60, 0);
    char data[512];
    snprintf(data, sizeof data, "%s/text.txt", run.dir);
    const reference_conf_t conf = {
        .layers = 4, .rows = ROWS, .vocab = 256, .steps = STEPS, .seed = 7, .data = data};
    double wanted[STEPS], losses[STEPS], norms[STEPS];
    float *const params = reference_run(&conf, wanted, norms);
    cr_assert_eq(run_losses(&run, losses, STEPS), STEPS);
    for (int step = 0; step < STEPS; step++) {
        cr_expect_lt(fabs(losses[step] - wanted[step]), 1e-5 * wanted[step],
                     "%s, step %d: %.9f, one process %.9f", what, step + 1, losses[step],
                     wanted[step]);
    }
    expect_norms(&run, what, norms);
    if (rows) {
        expect_rows(&run, rows);
    }
    const double distance = reference_distance(&run, &conf, params);
    cr_expect_lt(distance, 1e-5, "%s: parameters are %g apart", what, distance);
    free(params);
    run_end(&run);
}

Test(plan_cases, four_stages_with_few_microbatches_equal_one_process, .timeout = 200)
{
    static const char *const schedules[] = {"plan.schedule=gpipe", "plan.schedule=1f1b",
                                            "plan.schedule=h1f1b", "plan.schedule=zb"};
    for (int at = 0; at < 4; at++) {
        equals_one_process(schedules[at], four_sites(), "32",
                           (const char *[]){schedules[at], "plan.stages=here:1,1,1,1",
                                            "plan.microbatch=16", NULL});
        equals_one_process(schedules[at], four_sites(), "32",
                           (const char *[]){schedules[at], "plan.stages=here:1,1,1,1",
                                            "plan.microbatch=32", NULL});
    }
}

Test(plan_cases, batches_that_cannot_be_cut_are_refused_with_both_values, .timeout = 120)
{
    refused_with((const char *[]){"plan.microbatch=0", NULL},
                 (const char *[]){"plan.microbatch = 0", "at least 1", NULL});
    refused_with((const char *[]){"plan.microbatch=3", NULL},
                 (const char *[]){"plan.microbatch = 3", "16 rows", NULL});
    refused_with((const char *[]){"plan.microbatch=32", NULL},
                 (const char *[]){"plan.microbatch = 32", "16 rows", NULL});
    refused_with((const char *[]){"train.global_batch=1000", NULL},
                 (const char *[]){"train.global_batch = 1000", "32", "992", NULL});
    refused_with((const char *[]){"model.context=1024", NULL},
                 (const char *[]){"512", "1024", NULL});
    refused_with((const char *[]){"sync.mode=ssaw", "sync.quorum=one", "sync.staleness=0", NULL},
                 (const char *[]){"sync.staleness = 0", "sync.quorum = one", "pipelines, 1", NULL});
    refused_with((const char *[]){"sync.mode=ssaw", "sync.quorum=one", "sync.staleness=1",
                                  "plan.stages=here:2;here:2", NULL},
                 (const char *[]){"sync.staleness = 1", "pipelines, 2", NULL});
}

// ---- how the batch is cut does not change the gradient

Test(plan_cases, microbatches_do_not_change_the_gradient, .timeout = 200)
{
    equals_one_process("8 x 4", NULL, "32", (const char *[]){"plan.microbatch=8", NULL});
    equals_one_process("2 x 16", NULL, "32", (const char *[]){"plan.microbatch=2", NULL});
    equals_one_process("1 x 32", NULL, "32", (const char *[]){"plan.microbatch=1", NULL});
    equals_one_process("32 x 1", NULL, "32", (const char *[]){"plan.microbatch=32", NULL});
}

Test(plan_cases, stages_do_not_change_the_gradient, .timeout = 200)
{
    char sites[SITES_MAX];
    sites_of(4, NULL, sites);
    equals_one_process("two stages", sites, "32",
                       (const char *[]){"plan.stages=here:3,1", "plan.microbatch=4", NULL});
    equals_one_process("four stages", sites, "32",
                       (const char *[]){"plan.stages=here:1,1,1,1", "plan.microbatch=2", NULL});
    equals_one_process("two pipelines of two", sites, NULL,
                       (const char *[]){"plan.stages=here:2,2;here:1,3", NULL});
}

Test(plan_cases, shares_do_not_change_the_gradient, .timeout = 200)
{
    char sites[SITES_MAX];
    equals_one_process("20 + 12", sites_of(2, (const double[]){1, 5.0 / 3}, sites), "20 12",
                       (const char *[]){"plan.stages=here:4;here:4", "plan.microbatch=4", NULL});
    equals_one_process(
        "16 + 10 + 6", sites_of(3, (const double[]){1, 1.6, 8.0 / 3}, sites), "16 10 6",
        (const char *[]){"plan.stages=here:4;here:4;here:4", "plan.microbatch=2", NULL});
}
