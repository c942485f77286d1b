// bench_learn - see the header.
//
// Every mode has the same devices, the same virtual time and the same number of tries: with the
// first seed each learning rate of the grid, with the other seeds the best of them. The learning
// rate falls to a tenth over the tokens that the mode gets through in that time, so every run ends
// where a user would end it. Therefore the question "how soon has it the loss of another?" has an
// answer only for runs that were planned to be shorter: each mode runs for PARTS of the time, too,
// and straight lines between them tell the rest.

#include "bench/bench_learn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/learn_mode.h"
#include "bench/plot.h"
#include "bench/sim_cluster.h"
#include "bench/sim_learn.h"
#include "net/options.h"

#define RATES_MAX 8u
#define SEEDS_MAX 16u
#define ROWS 48u
#define WORKERS 6u
#define VALID_ROWS 64u
#define POINTS 40.0        // Evaluations of a run, about.
#define BATCH_SECONDS 1.0  // What all devices together need for a global batch.
#define WARM_RATIO 0.05    // Of a run's tokens.
#define FINAL_RATIO 0.1
#define MODEL_BYTES 88e3
#define PARTS_COUNT 4u
#define LIMIT HX_SEC(100000)

static const double PARTS[PARTS_COUNT] = {0.4, 0.6, 0.8, 1};  // Of the time; the whole one last.

// Devices and lines.
typedef struct {
    const char *name;
    const char *what;
    double speeds[WORKERS];
    hx_time_t latency_min, latency_max;
    double bandwidth;
    double jitter;
    double phase_gap, phase_length, phase_factor;
} cluster_t;

static const cluster_t CLUSTERS[] = {
    {"a",
     "speeds 4:4:2:2:1:1; 20 to 60 ms, and 0.25 s for a copy of the model, between nodes; phases "
     "of 4 s, 4x slow, after 12 s of computing; 10 % jitter",
     {4, 4, 2, 2, 1, 1},
     HX_MS(20),
     HX_MS(60),
     MODEL_BYTES / 0.25,
     0.1,
     12,
     4,
     4},
    {"b",
     "equal speeds; 1 ms; phases of 4 s, 4x slow, after 12 s of computing; 10 % jitter",
     {1, 1, 1, 1, 1, 1},
     HX_MS(1),
     HX_MS(1),
     1e9,
     0.1,
     12,
     4,
     4},
    {"c", "equal speeds; 1 ms; no noise", {1, 1, 1, 1, 1, 1}, HX_MS(1), HX_MS(1), 1e9, 0, 0, 0, 1},
};

// One run.
typedef struct {
    sim_report_t report;
    sim_point_t *points;
    uint32_t count;
    double rate;
    double loss;  // At its end.
} run_t;

typedef struct {
    const learn_mode_t *mode;
    run_t runs[SEEDS_MAX];  // With the best rate.
    double losses[PARTS_COUNT][SEEDS_MAX];
    double tried[RATES_MAX];  // The first seed's loss at its end, by rate.
    double rate;
} result_t;

typedef struct {
    const bench_learn_args_t *args;
    const cluster_t *cluster;
    learn_mode_t modes[LEARN_MODES_MAX];
    uint32_t modes_count;
    double rates[RATES_MAX];
    uint32_t rates_count;
    uint32_t seeds;
    double seconds;
    data_t *data;
    result_t results[LEARN_MODES_MAX];
    uint32_t done;  // Runs.
    double started;
} bench_t;

static model_conf_t model_of(void)
{
    model_conf_t conf = model_conf_default();
    conf.layers = 1;
    conf.heads = 2;
    conf.channels = 32;
    conf.context = 32;
    conf.vocab = 256;
    return conf;
}

// Flops a second of a device of speed 1, so that all together take BATCH_SECONDS for a batch.
static double flops_of(const cluster_t *cluster)
{
    const model_conf_t conf = model_of();
    model_t *model = NULL;
    double flops = 0, speeds = 0;
    if (model_open(&conf, &model, NULL) != HX_OK) {
        HX_ASSERT(false && "the bench's own model");
    }
    for (uint32_t layer = 0; layer < model_layers_count(model); layer++) {
        const model_layer_t *const at = model_layer(model, layer);
        flops += at->forward_flops + at->backward_flops;
    }
    for (uint32_t worker = 0; worker < WORKERS; worker++) {
        speeds += cluster->speeds[worker];
    }
    model_destroy(&model);
    return flops * ROWS / BATCH_SECONDS / speeds;
}

static sim_cluster_conf_t conf_of(const bench_t *self, const learn_mode_t *mode, uint64_t seed,
                                  double seconds)
{
    const cluster_t *const cluster = self->cluster;
    sim_cluster_conf_t conf = {
        .net = {.seed = seed,
                .latency_min = cluster->latency_min,
                .latency_max = cluster->latency_max,
                .bandwidth = cluster->bandwidth,
                .dead_after = HX_SEC(60),
                .trace_level = STEP_ERROR},
        .model = model_of(),
        .ssaw = mode->ssaw,
        .servers = 1,
        .shards = 1,
        .workers = WORKERS,
        .pipelines = WORKERS,
        .flops = flops_of(cluster),
        .jitter = cluster->jitter,
        .hiccup_factor = 1,
        .phase_gap = cluster->phase_gap,
        .phase_length = cluster->phase_length,
        .phase_factor = cluster->phase_factor,
        .sites = 1,
        .microbatch = 2,
        .seconds = seconds,
        .clip = 1,
    };
    memcpy(conf.speeds, cluster->speeds, sizeof cluster->speeds);
    return conf;
}

// The tokens that a run gets through: durations do not depend on values, so virtual tensors tell.
static uint64_t tokens_of(const bench_t *self, const learn_mode_t *mode, uint64_t seed,
                          double seconds)
{
    const sim_cluster_conf_t conf = conf_of(self, mode, seed, seconds);
    sim_report_t report;
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    sim_cluster_run(cluster, LIMIT, &report);
    sim_cluster_destroy(&cluster);
    return HX_MAX(report.tokens, 1u);
}

// One run, of so many seconds. What it found is in `out`; its points are to be freed.
static void run_one(const bench_t *self, const learn_mode_t *mode, uint64_t seed, double rate,
                    double seconds, run_t *out)
{
    const uint64_t tokens = tokens_of(self, mode, seed, seconds);
    sim_learn_t *learn = sim_learn_new(&(sim_learn_conf_t){
        .model = model_of(),
        .block_size = SIM_BLOCK_SIZE,
        .data = self->data,
        .optim = mode->optim,
        .seed = seed,
        .valid_rows = VALID_ROWS,
        .valid_tokens = (uint64_t)((double)tokens / POINTS) + 1,
    });
    sim_cluster_conf_t conf = conf_of(self, mode, seed, seconds);
    conf.real = sim_learn_real(learn);
    conf.schedule = (optim_schedule_t){
        .lr = rate,
        .lr_final_ratio = FINAL_RATIO,
        .warmup_tokens = (uint64_t)(WARM_RATIO * (double)tokens),
        .total_tokens = tokens,
        .decay = OPTIM_DECAY_COSINE,
    };
    sim_cluster_t *cluster = sim_cluster_new(&conf);
    *out = (run_t){.rate = rate};
    sim_cluster_run(cluster, LIMIT, &out->report);
    const sim_point_t *const points = sim_learn_points(learn, &out->count);
    out->points = hx_new(out->count + 1, sizeof *out->points);
    memcpy(out->points, points, out->count * sizeof *points);
    out->loss = out->count > 0 ? out->points[out->count - 1].loss : INFINITY;
    sim_cluster_destroy(&cluster);
    sim_learn_destroy(&learn);
}

// Counts a run, says what came of it, and when all will be done.
static int run_done(bench_t *self, const learn_mode_t *mode, uint64_t seed, const run_t *run)
{
    if (run->report.broken[0]) {
        fprintf(stderr, "harmony-bench sim: %s, seed %llu: %s\n", mode->name,
                (unsigned long long)seed, run->report.broken);
        return EXIT_FAILED;
    }
    const uint32_t all = self->modes_count * (self->rates_count + PARTS_COUNT * self->seeds - 1);
    const double spent = bench_now() - self->started;
    self->done++;
    fprintf(stderr,
            "%u of %u: %s, seed %llu, rate %g: loss %.4f after %.0f k tokens; %.0f s left\n",
            self->done, all, mode->name, (unsigned long long)seed, run->rate, run->loss,
            (double)run->report.tokens / 1e3, spent / self->done * (all - self->done));
    return EXIT_DONE;
}

// A run that diverged is the worst of all.
static double loss_of(const run_t *run)
{
    return isfinite(run->loss) && run->report.status == 0 ? run->loss : INFINITY;
}

// Each rate of the grid with the first seed; the best run is kept.
static int run_rates(bench_t *self, result_t *result)
{
    int status = EXIT_DONE;
    for (uint32_t at = 0; at < self->rates_count && status == EXIT_DONE; at++) {
        run_t run;
        run_one(self, result->mode, 1, self->rates[at], self->seconds, &run);
        status = run_done(self, result->mode, 1, &run);
        result->tried[at] = loss_of(&run);
        if (at == 0 || loss_of(&run) < loss_of(&result->runs[0])) {
            free(result->runs[0].points);
            result->runs[0] = run;
        } else {
            free(run.points);
        }
    }
    result->rate = result->runs[0].rate;
    return status;
}

// The best rate with each seed and each part of the time.
static int run_parts(bench_t *self, result_t *result)
{
    int status = EXIT_DONE;
    for (uint32_t at = 0; at < self->seeds * PARTS_COUNT && status == EXIT_DONE; at++) {
        const uint32_t seed = at / PARTS_COUNT, part = at % PARTS_COUNT;
        const bool whole = part + 1 == PARTS_COUNT;
        run_t *const kept = &result->runs[seed];
        run_t run = *kept;
        if (!whole || seed > 0) {
            run_one(self, result->mode, seed + 1, result->rate, self->seconds * PARTS[part], &run);
            status = run_done(self, result->mode, seed + 1, &run);
        }
        result->losses[part][seed] = loss_of(&run);
        if (whole) {
            *kept = run;
        } else {
            free(run.points);
        }
    }
    return status;
}

static int run_mode(bench_t *self, uint32_t index)
{
    result_t *const result = &self->results[index];
    result->mode = &self->modes[index];
    const int status = run_rates(self, result);
    return status == EXIT_DONE ? run_parts(self, result) : status;
}

// --- what came of it ---

// Of a value over the seeds.
typedef struct {
    double mean, spread;  // Spread: half of the range.
} over_t;

static over_t over(const double *values, uint32_t count)
{
    double sum = 0, low = INFINITY, high = -INFINITY;
    for (uint32_t at = 0; at < count; at++) {
        sum += values[at];
        low = fmin(low, values[at]);
        high = fmax(high, values[at]);
    }
    return (over_t){sum / count, (high - low) / 2};
}

static over_t loss_over(const bench_t *self, const result_t *result, uint32_t part)
{
    return over(result->losses[part], self->seeds);
}

static double final_loss(const bench_t *self, const result_t *result)
{
    return loss_over(self, result, PARTS_COUNT - 1).mean;
}

// The part of the time after which a run that was planned for it ends with `target`. Less than the
// least part counts as that part; infinity: more than the whole.
static double part_to(const bench_t *self, const result_t *result, double target)
{
    for (uint32_t part = 0; part < PARTS_COUNT; part++) {
        const double loss = loss_over(self, result, part).mean;
        if (loss > target) {
            continue;
        }
        if (part == 0) {
            return PARTS[0];
        }
        const double before = loss_over(self, result, part - 1).mean;
        const double way = (before - target) / fmax(before - loss, 1e-12);
        return PARTS[part - 1] + way * (PARTS[part] - PARTS[part - 1]);
    }
    return INFINITY;
}

// The best final loss of the others.
static double best_other(const bench_t *self, const result_t *result)
{
    double best = INFINITY;
    for (uint32_t at = 0; at < self->modes_count; at++) {
        if (&self->results[at] != result) {
            best = fmin(best, final_loss(self, &self->results[at]));
        }
    }
    return best;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *row_of(const bench_t *self, const result_t *result)
{
    const sim_report_t *const report = &result->runs[0].report;
    const double first = part_to(self, result, final_loss(self, &self->results[0]));
    json_t *const tried = json_array(), *const parts = json_array();
    for (uint32_t at = 0; at < self->rates_count; at++) {
        json_array_append_new(tried, real_or_null(result->tried[at]));
    }
    for (uint32_t at = 0; at < PARTS_COUNT; at++) {
        json_array_append_new(parts,
                              json_pack("{s:f, s:o}", "seconds", PARTS[at] * self->seconds, "loss",
                                        real_or_null(loss_over(self, result, at).mean)));
    }
    return json_pack("{s:s, s:s, s:f, s:o, s:o, s:o, s:f, s:o, s:f, s:f, s:f, s:I, s:I, s:I, s:I}",
                     "mode", result->mode->name, "scenario", self->cluster->name, "rate",
                     result->rate, "tried", tried, "parts", parts, "loss",
                     real_or_null(final_loss(self, result)), "spread",
                     loss_over(self, result, PARTS_COUNT - 1).spread, "seconds_to_target",
                     real_or_null(first * self->seconds), "tokens_per_second",
                     (double)report->tokens / report->training, "idle", report->idle, "lag_mean",
                     (double)report->lag_sum / (double)HX_MAX(report->contributions, 1u), "lag_max",
                     (json_int_t)report->lag_max, "commits", (json_int_t)report->commits, "dropped",
                     (json_int_t)report->dropped, "messages", (json_int_t)report->messages);
}

static void print_rates(const bench_t *self)
{
    printf("\nloss of the first seed by learning rate:\n%-34s", "");
    for (uint32_t at = 0; at < self->rates_count; at++) {
        printf("  %8g", self->rates[at]);
    }
    printf("\n");
    for (uint32_t at = 0; at < self->modes_count; at++) {
        printf("%-34s", self->results[at].mode->name);
        for (uint32_t rate = 0; rate < self->rates_count; rate++) {
            printf("  %8.4f", self->results[at].tried[rate]);
        }
        printf("\n");
    }
}

static void print_row(const bench_t *self, const result_t *result)
{
    const sim_report_t *const report = &result->runs[0].report;
    printf("%-34s  %7g", result->mode->name, result->rate);
    for (uint32_t part = 0; part < PARTS_COUNT; part++) {
        printf("  %7.4f", loss_over(self, result, part).mean);
    }
    printf("  %6.4f  %5.2f  %5.2f  %8.0f  %5.2f  %4.1f/%3u  %7llu  %7llu\n",
           loss_over(self, result, PARTS_COUNT - 1).spread,
           part_to(self, result, final_loss(self, &self->results[0])),
           part_to(self, result, best_other(self, result)),
           (double)report->tokens / report->training, report->idle,
           (double)report->lag_sum / (double)HX_MAX(report->contributions, 1u), report->lag_max,
           (unsigned long long)report->commits, (unsigned long long)report->dropped);
}

static void print_table(const bench_t *self)
{
    printf(
        "cluster %s: %s\n%u workers, %u seeds; global batch %u rows of %u tokens; the rate falls "
        "to %g of its peak\nloss of runs planned for parts of %.0f virtual seconds; to A: part "
        "of the time to the final loss of %s, to B: to the best of the others\n\n%-34s  %7s",
        self->cluster->name, self->cluster->what, WORKERS, self->seeds, ROWS, model_of().context,
        FINAL_RATIO, self->seconds, self->results[0].mode->name, "mode", "rate");
    for (uint32_t part = 0; part < PARTS_COUNT; part++) {
        printf("  %7.1f", PARTS[part]);
    }
    printf("  %6s  %5s  %5s  %8s  %5s  %8s  %7s  %7s\n", "+-", "to A", "to B", "tokens/s", "idle",
           "lag", "commits", "dropped");
    for (uint32_t at = 0; at < self->modes_count; at++) {
        print_row(self, &self->results[at]);
    }
    print_rates(self);
}

// --- the plot ---

// The curves of the first seed: loss by seconds, tokens and commits.
static char *draw(const bench_t *self)
{
    static const char *const labels[] = {"virtual seconds", "thousand tokens", "commits"};
    plot_line_t lines[3][LEARN_MODES_MAX];
    plot_panel_t panels[3];
    double *values[4][LEARN_MODES_MAX];
    for (uint32_t mode = 0; mode < self->modes_count; mode++) {
        const run_t *const run = &self->results[mode].runs[0];
        for (int axis = 0; axis < 4; axis++) {
            values[axis][mode] = hx_new(run->count + 1, sizeof(double));
        }
        for (uint32_t at = 0; at < run->count; at++) {
            values[0][mode][at] = run->points[at].seconds;
            values[1][mode][at] = (double)run->points[at].tokens / 1e3;
            values[2][mode][at] = (double)run->points[at].commits;
            values[3][mode][at] = run->points[at].loss;
        }
        for (int axis = 0; axis < 3; axis++) {
            lines[axis][mode] = (plot_line_t){self->modes[mode].name, values[axis][mode],
                                              values[3][mode], run->count};
        }
    }
    for (int axis = 0; axis < 3; axis++) {
        panels[axis] = (plot_panel_t){labels[axis], "validation loss, nats per byte", lines[axis],
                                      self->modes_count};
    }
    hx_text_t text = {0};
    plot_svg(&text, self->cluster->what, panels, 3);
    for (uint32_t mode = 0; mode < self->modes_count; mode++) {
        for (int axis = 0; axis < 4; axis++) {
            free(values[axis][mode]);
        }
    }
    return text.bytes;
}

static int write_plot(const bench_t *self)
{
    char *const text = draw(self);
    FILE *const file = fopen(self->args->svg, "w");
    const bool written = file && fputs(text, file) >= 0;
    free(text);
    if ((file && fclose(file) != 0) || !written) {
        fprintf(stderr, "harmony-bench sim: %s: cannot be written\n", self->args->svg);
        return EXIT_FAILED;
    }
    return EXIT_DONE;
}

static int report(const bench_t *self)
{
    if (self->args->json) {
        json_t *const rows = json_array();
        for (uint32_t at = 0; at < self->modes_count; at++) {
            json_array_append_new(rows, row_of(self, &self->results[at]));
        }
        bench_print_json(json_pack("{s:s, s:s, s:f, s:I, s:[], s:o}", "cluster",
                                   self->cluster->name, "what", self->cluster->what, "seconds",
                                   self->seconds, "seeds", (json_int_t)self->seeds, "broken",
                                   "rows", rows));
    } else {
        print_table(self);
    }
    return self->args->svg ? write_plot(self) : EXIT_DONE;
}

// --- the command line ---

static hx_err_t parse_rates(bench_t *self, const char *text, hx_fault_t *fault)
{
    while (*text) {
        char *end = NULL;
        const double rate = strtod(text, &end);
        if (end == text || (*end && *end != ',') || !(rate > 0 && rate < 10) ||
            self->rates_count == RATES_MAX) {
            return hx_fault(fault, HX_E_ARG, "--rates: up to %u numbers above 0, as 0.002,0.004",
                            RATES_MAX);
        }
        self->rates[self->rates_count++] = rate;
        text = end + (*end == ',');
    }
    return self->rates_count > 0 ? HX_OK : hx_fault(fault, HX_E_ARG, "--rates: none given");
}

static hx_err_t prepare(bench_t *self, hx_fault_t *fault)
{
    const bench_learn_args_t *const args = self->args;
    const char *const name = args->cluster ? args->cluster : "a";
    for (size_t at = 0; at < HX_COUNT(CLUSTERS); at++) {
        self->cluster = strcmp(CLUSTERS[at].name, name) == 0 ? &CLUSTERS[at] : self->cluster;
    }
    if (!self->cluster) {
        return hx_fault(fault, HX_E_ARG, "--cluster: \"%s\" is none of a, b, c", name);
    }
    if (self->seeds > SEEDS_MAX) {
        return hx_fault(fault, HX_E_ARG, "--seeds: with --learn at most %u", SEEDS_MAX);
    }
    HX_TRY(parse_rates(self, args->rates ? args->rates : "0.003,0.006,0.012", fault));
    HX_TRY(
        learn_modes_parse(args->modes ? args->modes : "bsp,ksync,ssp,asp,softsync,eager,wsp,ssaw",
                          ROWS, model_of().context, self->modes, &self->modes_count, fault));
    for (uint32_t at = 0; at < self->modes_count; at++) {
        HX_TRY(ssaw_check(&self->modes[at].ssaw, WORKERS, fault));
    }
    const data_conf_t data = {.path = args->data ? args->data : "data/kjv.txt",
                              .valid = 0.1,
                              .context = model_of().context,
                              .vocab = model_of().vocab};
    return data_open(&data, &self->data, fault);
}

int bench_learn(const bench_learn_args_t *args)
{
    bench_t *const self = hx_new(1, sizeof *self);
    hx_fault_t fault = {{0}};
    *self = (bench_t){.args = args,
                      .seeds = args->seeds > 0 ? args->seeds : 3,
                      .seconds = args->seconds > 0 ? args->seconds : 600};
    int status = EXIT_USAGE;
    if (prepare(self, &fault) == HX_OK) {
        status = EXIT_DONE;
        self->started = bench_now();
        for (uint32_t at = 0; at < self->modes_count && status == EXIT_DONE; at++) {
            status = run_mode(self, at);
        }
        status = status == EXIT_DONE ? report(self) : status;
    } else {
        fprintf(stderr, "harmony-bench sim: %s\n", fault.text);
    }
    for (uint32_t at = 0; at < self->modes_count; at++) {
        for (uint32_t seed = 0; seed < SEEDS_MAX; seed++) {
            free(self->results[at].runs[seed].points);
        }
    }
    data_destroy(&self->data);
    free(self);
    return status;
}
