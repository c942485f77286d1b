// Training with real gradients in virtual time: what `harmony-bench sim --learn` rests on.

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/sim_cluster.h"
#include "bench/sim_learn.h"
#include "tensor/hx_rng.h"

#define CONTEXT 16u
#define ROWS 12u
#define WORKERS 6u
#define STEPS 20u
#define TEXT_SIZE 20000u
#define SEED 5u
#define LIMIT HX_SEC(100000)

static char path[64];
static data_t *data;

// Words of few letters in a random order: something to learn, soon.
static void open_data(void)
{
    snprintf(path, sizeof path, "/tmp/hx-learn-test-XXXXXX");
    const int descriptor = mkstemp(path);
    cr_assert_geq(descriptor, 0);
    FILE *const file = fdopen(descriptor, "w");
    hx_rng_t rng = hx_rng_seed(3);
    for (uint32_t at = 0; at < TEXT_SIZE / 4; at++) {
        fputs(hx_rng_below(&rng, 2) > 0 ? "abc " : "dce ", file);
    }
    cr_assert_eq(fclose(file), 0);
    hx_fault_t fault = {{0}};
    const data_conf_t conf = {.path = path, .valid = 0.1, .context = CONTEXT, .vocab = 256};
    cr_assert_eq(data_open(&conf, &data, &fault), HX_OK, "%s", fault.text);
}

static void close_data(void)
{
    data_destroy(&data);
    unlink(path);
}

static model_conf_t small_model(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 1;
    conf.heads = 2;
    conf.channels = 16;
    conf.context = CONTEXT;
    conf.vocab = 256;
    return conf;
}

static sim_cluster_conf_t conf_of(conf_mode_t mode, uint32_t workers)
{
    sim_cluster_conf_t conf = {
        .net = {.seed = SEED,
                .latency_min = HX_MS(5),
                .latency_max = HX_MS(30),
                .bandwidth = 1e7,
                .dead_after = HX_SEC(60),
                .trace_level = STEP_ERROR},
        .model = small_model(),
        .ssaw = ssaw_preset(mode, ROWS, CONTEXT, 3),
        .servers = 1,
        .shards = 2,
        .workers = workers,
        .pipelines = workers,
        .flops = 2e7,
        .jitter = 0.1,
        .hiccup_factor = 1,
        .phase_factor = 1,
        .sites = 1,
        .microbatch = 1,
        .tokens = (uint64_t)STEPS * ROWS * CONTEXT,
        .clip = 1,
        .schedule = {.lr = 0.1, .lr_final_ratio = 1},
    };
    for (uint32_t worker = 0; worker < workers; worker++) {
        conf.speeds[worker] = 1 + worker % 3;
    }
    return conf;
}

// SGD, since AdamW makes much of rounding where a gradient is nothing but that.
static sim_learn_t *make_learn(void)
{
    return sim_learn_new(&(sim_learn_conf_t){.model = small_model(),
                                             .block_size = SIM_BLOCK_SIZE,
                                             .data = data,
                                             .optim = optim_conf_default(OPTIM_SGD),
                                             .seed = SEED,
                                             .valid_rows = 16,
                                             .valid_tokens = ROWS * CONTEXT});
}

// Runs it; the evaluations, to be freed.
static sim_point_t *run(sim_cluster_conf_t conf, uint32_t *count, sim_report_t *report)
{
    sim_learn_t *learn = make_learn();
    conf.real = sim_learn_real(learn);
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    sim_cluster_run(cluster, LIMIT, report);
    cr_assert_str_eq(report->broken, "");
    cr_assert_eq(report->status, 0, "%s", report->reason);
    const sim_point_t *const points = sim_learn_points(learn, count);
    cr_assert_gt(*count, STEPS / 2);
    sim_point_t *const copy = hx_new(*count, sizeof *copy);
    memcpy(copy, points, *count * sizeof *copy);
    sim_cluster_destroy(&cluster);
    sim_learn_destroy(&learn);
    return copy;
}

Test(sim_learn, same_seed_same_losses_to_the_bit, .init = open_data, .fini = close_data,
     .timeout = 120)
{
    static const conf_mode_t modes[] = {CONF_MODE_BSP, CONF_MODE_SSAW, CONF_MODE_ASP};
    for (size_t mode = 0; mode < HX_COUNT(modes); mode++) {
        const sim_cluster_conf_t conf = conf_of(modes[mode], WORKERS);
        sim_report_t report;
        uint32_t count = 0, again_count = 0;
        sim_point_t *const points = run(conf, &count, &report);
        sim_point_t *const again = run(conf, &again_count, &report);
        cr_assert_eq(count, again_count);
        cr_expect_eq(memcmp(points, again, count * sizeof *points), 0, "%s",
                     conf_mode_name(modes[mode]));
        free(points);
        free(again);
    }
}

// bsp over six unequal pipelines is one pipeline, whatever the delays.
Test(sim_learn, bsp_has_the_losses_of_one_worker, .init = open_data, .fini = close_data,
     .timeout = 120)
{
    sim_report_t report;
    uint32_t count = 0, one_count = 0;
    sim_point_t *const points = run(conf_of(CONF_MODE_BSP, WORKERS), &count, &report);
    sim_point_t *const one = run(conf_of(CONF_MODE_BSP, 1), &one_count, &report);
    cr_assert_eq(count, one_count);
    for (uint32_t at = 0; at < count; at++) {
        cr_expect_eq(points[at].tokens, one[at].tokens);
        cr_expect_float_eq(points[at].loss, one[at].loss, 1e-5, "evaluation %u: %.7f, %.7f", at,
                           points[at].loss, one[at].loss);
    }
    cr_expect_lt(points[count - 1].loss, points[0].loss - 0.5, "it learns: %.3f, %.3f",
                 points[0].loss, points[count - 1].loss);
    free(points);
    free(one);
}

// Stale gradients are really stale: asp must not have bsp's losses.
Test(sim_learn, asp_has_other_losses, .init = open_data, .fini = close_data, .timeout = 120)
{
    sim_report_t report;
    uint32_t count = 0, asp_count = 0;
    sim_point_t *const points = run(conf_of(CONF_MODE_BSP, WORKERS), &count, &report);
    cr_expect_eq(report.lag_max, 0);
    sim_point_t *const asp = run(conf_of(CONF_MODE_ASP, WORKERS), &asp_count, &report);
    cr_expect_gt(report.lag_max, 0);
    cr_expect_gt(report.commits, STEPS);
    cr_expect(points[count - 1].loss < asp[asp_count - 1].loss - 1e-4 ||
              points[count - 1].loss > asp[asp_count - 1].loss + 1e-4);
    free(points);
    free(asp);
}
