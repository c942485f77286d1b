// bench_plan - plans of named clusters by every method: what each predicts, and how long it thinks.
//
// All methods are priced by the planner's own judge, so the table compares plans, not predictions.

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/cluster_file.h"
#include "net/options.h"

#define CLUSTERS_MAX 64u
#define PATH_ROOM 512u
#define TEXT_MAX ((size_t)1 << 20)
#define EXHAUSTIVE_MAX 6u  // Devices.

typedef struct {
    const char *folder;
    bool json;
    bool overlap;
    json_t *clusters;
} bench_t;

// What one method made of a cluster.
typedef struct {
    double tokens_per_second;  // 0: it has no plan.
    double idle;
    double seconds;
    uint32_t pipelines, stages;
    hx_fault_t why;
} outcome_t;

static char *read_text(const char *path, size_t *size)
{
    FILE *const file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "harmony-bench plan: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    char *const text = hx_new(TEXT_MAX, 1);
    *size = fread(text, 1, TEXT_MAX, file);
    fclose(file);
    return text;
}

// The part of all devices' time in which they do not compute; pipelines repeat their own steps.
static double idle_of(const plan_t *plan, uint32_t devices)
{
    double busy = 0;
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        const plan_pipeline_t *const pipeline = &plan->pipelines[at];
        const double micros = (double)pipeline->rows / pipeline->microbatch;
        for (uint32_t stage = 0; stage < pipeline->stages_count; stage++) {
            const plan_stage_t *const own = plan_stage(plan, at, stage);
            busy +=
                micros * (own->forward_seconds + own->backward_seconds) / pipeline->step_seconds;
        }
    }
    return 1 - busy / devices;
}

static outcome_t run_method(cluster_file_t *cluster, planner_method_t method)
{
    outcome_t outcome = {0};
    plan_t plan;
    cluster->conf.method = method;
    const double start = bench_cpu();
    const hx_err_t err = planner_solve(&cluster->in, &plan, &outcome.why);
    outcome.seconds = bench_cpu() - start;
    if (err == HX_OK) {
        const double tokens = (double)cluster->conf.rows * model_conf(cluster->model)->context;
        outcome.tokens_per_second = tokens / plan.step_seconds;
        outcome.idle = idle_of(&plan, cluster->devices);
        outcome.pipelines = plan.pipelines_count;
        outcome.stages = plan.stages_count;
        plan_destroy(&plan);
    }
    return outcome;
}

static void print_outcome(const char *name, const outcome_t *outcome, double ours)
{
    if (outcome->tokens_per_second > 0) {
        printf("  %-14s  %10.0f  %8.2f  %5.2f  %9u  %6u  %7.2f\n", name, outcome->tokens_per_second,
               ours / outcome->tokens_per_second, outcome->idle, outcome->pipelines,
               outcome->stages, outcome->seconds);
    } else {
        printf("  %-14s  no plan: %.90s\n", name, outcome->why.text);
    }
}

static json_t *json_of(const char *name, const outcome_t *outcome)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:I, s:I}", "name", name, "tokens_per_second",
                     outcome->tokens_per_second, "idle", outcome->idle, "seconds", outcome->seconds,
                     "pipelines", (json_int_t)outcome->pipelines, "stages",
                     (json_int_t)outcome->stages);
}

static void run_cluster(bench_t *self, const char *name, cluster_file_t *cluster)
{
    cluster->conf.overlap = self->overlap;
    const outcome_t ours = run_method(cluster, PLANNER_PATCHPIPE);
    json_t *const methods = json_array();
    if (!self->json) {
        printf("%s: %u devices, %u layers; %s\n  %-14s  %10s  %8s  %5s  %9s  %6s  %7s\n", name,
               cluster->devices, model_layers_count(cluster->model), cluster->source, "method",
               "tokens/s", "ours is", "idle", "pipelines", "stages", "CPU s");
    }
    for (int method = 0; method < PLANNER_METHODS_COUNT; method++) {
        if (method == PLANNER_EXHAUSTIVE && cluster->devices > EXHAUSTIVE_MAX) {
            continue;
        }
        const char *const what = planner_method_name((planner_method_t)method);
        const outcome_t outcome =
            method == PLANNER_PATCHPIPE ? ours : run_method(cluster, (planner_method_t)method);
        json_array_append_new(methods, json_of(what, &outcome));
        if (!self->json) {
            print_outcome(what, &outcome, ours.tokens_per_second);
        }
    }
    json_array_append_new(self->clusters,
                          json_pack("{s:s, s:I, s:o}", "name", name, "devices",
                                    (json_int_t)cluster->devices, "methods", methods));
}

static int run_file(bench_t *self, const char *name)
{
    char path[PATH_ROOM];
    snprintf(path, sizeof path, "%s/%s.conf", self->folder, name);
    size_t size = 0;
    char *const text = read_text(path, &size);
    if (!text) {
        return EXIT_USAGE;
    }
    cluster_file_t cluster;
    hx_fault_t fault = {{0}};
    const hx_err_t err = cluster_file_read(path, text, size, &cluster, &fault);
    free(text);
    if (err != HX_OK) {
        fprintf(stderr, "harmony-bench plan: %s\n", fault.text);
        return EXIT_USAGE;
    }
    run_cluster(self, name, &cluster);
    cluster_file_destroy(&cluster);
    return EXIT_DONE;
}

static int is_conf(const struct dirent *entry)
{
    const char *const dot = strrchr(entry->d_name, '.');
    return dot && strcmp(dot, ".conf") == 0;
}

// Every cluster of the folder, by name.
static int run_folder(bench_t *self)
{
    struct dirent **entries = NULL;
    const int count = scandir(self->folder, &entries, is_conf, alphasort);
    if (count <= 0) {
        fprintf(stderr, "harmony-bench plan: %s: %s (--clusters names a folder of NAME.conf)\n",
                self->folder, count < 0 ? strerror(errno) : "no cluster is there");
        return EXIT_USAGE;
    }
    int status = EXIT_DONE;
    for (int at = 0; at < count; at++) {
        char name[PATH_ROOM / 2];
        snprintf(name, sizeof name, "%.*s", (int)(strlen(entries[at]->d_name) - strlen(".conf")),
                 entries[at]->d_name);
        status = status == EXIT_DONE ? run_file(self, name) : status;
        free(entries[at]);
    }
    free(entries);
    return status;
}

int bench_plan(int argc, char **argv)
{
    bench_t self = {.folder = "bench/clusters", .clusters = json_array()};
    const option_t list[] = {
        {"clusters", 0, OPTION_TEXT, "FOLDER", "where NAME.conf are (bench/clusters)",
         &self.folder},
        {"overlap", 0, OPTION_FLAG, NULL, "leases are granted ahead, as in ssaw; else as in bsp",
         &self.overlap},
        {"json", 0, OPTION_FLAG, NULL, "one object on standard output", &self.json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench plan",
        .summary = "Plans named clusters by every method, ours and those of other systems, and "
                   "prints what each would reach, how many times as much ours is, which part of "
                   "the devices' time is idle, and how long planning took on one core. One judge "
                   "prices all plans: the schedule's simulator.",
        .operands = "[CLUSTER]...",
        .operands_max = CLUSTERS_MAX,
        .options = list,
        .options_count = HX_COUNT(list),
        .examples = "  harmony-bench plan\n  harmony-bench plan two-sites three-kinds --json\n",
    };
    options_t options;
    if (!options_parse(&spec, argc, argv, &options)) {
        json_decref(self.clusters);
        return options.status;
    }
    int status = EXIT_DONE;
    for (size_t at = 0; at < options.operands_count && status == EXIT_DONE; at++) {
        status = run_file(&self, options.operands[at]);
    }
    if (options.operands_count == 0) {
        status = run_folder(&self);
    }
    if (self.json && status == EXIT_DONE) {
        bench_print_json(json_pack("{s:O}", "clusters", self.clusters));
    }
    json_decref(self.clusters);
    options_destroy(&options);
    return status;
}
