// harmony-scheduler - gathers the nodes of a run, plans, watches, sums up.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/conf.h"
#include "net/node.h"
#include "net/options.h"
#include "scheduler/sched.h"
#include "scheduler/sched_jobs.h"

static bool plan_only;
static bool plan_json;

static const option_t OPTIONS[] = {
    {"plan-only", 0, OPTION_FLAG, NULL,
     "make the plan, print it, and end all nodes without training", &plan_only},
    {"json", 0, OPTION_FLAG, NULL, "print that plan as JSON", &plan_json},
};

static const options_spec_t SPEC = {
    .program = "harmony-scheduler",
    .summary = "Waits for the workers and servers that CONF expects, lets workers measure "
               "themselves and the "
               "lines between sites, plans who runs which layers, and watches the run. Every other "
               "program "
               "needs to know its address only (scheduler.endpoint).",
    .operands = "CONF",
    .operands_min = 1,
    .operands_max = 1,
    .conf = true,
    .options = OPTIONS,
    .options_count = HX_COUNT(OPTIONS),
    .examples = "  harmony-scheduler conf/quickstart.conf\n"
                "  harmony-scheduler run.conf --plan-only --json\n",
};

// Everything that lives as long as the node.
typedef struct {
    const conf_t *conf;
    model_t *model;
    sched_expected_t *workers;
    sched_expected_t *servers;
    sched_conf_t sched_conf;
    sched_t *sched;
    sched_jobs_t *jobs;
    dashboard_t *dashboard;  // NULL: none.
} program_t;

#define PAGE_EVERY HX_SEC(1)

// The names in `launch` are waited for only if the run waits for exactly that many.
static void expect_nodes(program_t *self)
{
    const conf_t *const conf = self->conf;
    sched_conf_t *const out = &self->sched_conf;
    out->workers_count = conf->plan.workers;
    out->servers_count = conf->plan.servers;
    out->shards = conf->server.shards;
    uint32_t workers = 0;
    uint32_t servers = 0;
    for (uint32_t at = 0; at < conf->launch.sites_count; at++) {
        workers += conf->launch.sites[at].workers_count;
        servers += conf->launch.sites[at].servers;
    }
    self->workers = hx_new((size_t)workers + 1, sizeof *self->workers);
    self->servers = hx_new((size_t)conf->launch.sites_count + 1, sizeof *self->servers);
    for (uint32_t at = 0; at < conf->launch.sites_count; at++) {
        const conf_site_t *const site = &conf->launch.sites[at];
        if (servers == conf->plan.servers && site->servers > 0) {
            sched_expected_t *const one = &self->servers[out->servers_listed++];
            one->count = site->servers;
            snprintf(one->site, sizeof one->site, "%s", site->name);
        }
        for (uint32_t worker = 0; workers == conf->plan.workers && worker < site->workers_count;
             worker++) {
            sched_expected_t *const one = &self->workers[out->workers_listed++];
            one->count = 1;
            snprintf(one->site, sizeof one->site, "%s", site->name);
            snprintf(one->name, sizeof one->name, "%.*s/%.*s", CONF_NAME_MAX - 1, site->name,
                     CONF_NAME_MAX - 1, site->workers[worker].name);
        }
    }
    out->workers = self->workers;
    out->servers = self->servers;
}

// What a round costs besides moving parameters: two exchanges with the shards, the journal's sync,
// and the optimizer's pass over parameters, gradients and moments (about 28 bytes a parameter at 2
// GB/s on each shard).
static double round_seconds(const program_t *self)
{
    const double shards = (double)self->conf->plan.servers * self->conf->server.shards;
    return 4e-3 + (double)model_params_count(self->model) * 28 / (2e9 * shards);
}

static hx_err_t plan_conf(program_t *self, hx_fault_t *fault)
{
    const conf_t *const conf = self->conf;
    static const planner_method_t methods[] = {
        [CONF_METHOD_PATCHPIPE] = PLANNER_PATCHPIPE,
        [CONF_METHOD_UNIFORM] = PLANNER_UNIFORM,
        [CONF_METHOD_SINGLE] = PLANNER_SINGLE,
        [CONF_METHOD_DATA_PARALLEL] = PLANNER_DATA_PARALLEL,
        [CONF_METHOD_BALANCED] = PLANNER_BALANCED,
        [CONF_METHOD_HETPIPE] = PLANNER_HETPIPE,
        [CONF_METHOD_EXHAUSTIVE] = PLANNER_EXHAUSTIVE,
    };
    if (conf->plan.method == CONF_METHOD_FILE) {
        return hx_fault(fault, HX_E_UNSUPPORTED,
                        "plan.method = file:%.200s comes with a later version: write the cut in "
                        "plan.stages",
                        conf->plan.method_file);
    }
    self->sched_conf.planner = (planner_conf_t){
        .model = self->model,
        .rows = (uint32_t)conf_rows(conf),
        .microbatch = conf->plan.microbatch,
        .schedule = conf->plan.schedule,
        .method = methods[conf->plan.method],
        .pipelines = conf->plan.pipelines == CONF_AUTO ? PLANNER_AUTO : conf->plan.pipelines,
        .stages = conf->plan.stages,
        .overlap = conf->sync.run_ahead > 0,
        .sync_seconds = round_seconds(self),
    };
    return HX_OK;
}

static hx_err_t check_plan(void *self_p, const plan_t *plan, hx_fault_t *fault)
{
    const program_t *const self = self_p;
    for (uint32_t at = 0; at < plan->pipelines_count; at++) {
        const bool one =
            plan->pipelines[at].stages_count == 1 && plan_stage(plan, at, 0)->members_count == 1;
        if (self->conf->sync.mode == CONF_MODE_LOCAL && !one) {
            return hx_fault(fault, HX_E_ARG,
                            "sync.mode = local takes steps on one worker alone, and pipeline "
                            "%" PRIu32
                            " of this plan has several: set plan.pipelines to the number "
                            "of workers",
                            at + 1);
        }
    }
    return conf_check_pipelines(self->conf, plan->pipelines_count, fault);
}

static hx_err_t make_conf(program_t *self, hx_fault_t *fault)
{
    const conf_t *const conf = self->conf;
    sched_conf_t *const out = &self->sched_conf;
    const bool bsp = conf->sync.mode == CONF_MODE_BSP;
    *out = (sched_conf_t){.declared = conf->plan.speeds == CONF_SPEEDS_DECLARED ||
                                      (conf->plan.speeds == CONF_SPEEDS_AUTO && bsp),
                          .run_id = link_random(),
                          .conf_hash = conf_hash(conf),
                          .join_timeout = conf->run.join_timeout,
                          .stop_timeout = conf->run.stop_timeout,
                          .resume = strcmp(conf->run.resume, "never") != 0,
                          .init_file = conf->model.init[0] != '\0',
                          .plan_only = plan_only,
                          .plan_json = plan_json,
                          .check = check_plan,
                          .check_self = self,
                          .page_every = self->dashboard ? PAGE_EVERY : 0,
                          .goal_tokens = conf->train.tokens,
                          .goal_seconds = conf->train.seconds};
    snprintf(out->run, sizeof out->run, "%s", conf->run.name);
    snprintf(out->endpoint, sizeof out->endpoint, "%.*s", PLAN_ENDPOINT_MAX - 1,
             conf->scheduler.endpoint);
    snprintf(out->mode, sizeof out->mode, "%s", conf_mode_name(conf->sync.mode));
    expect_nodes(self);
    return plan_conf(self, fault);
}

static void *make_role(void *self_p, const char *control, const char *data, hx_fault_t *fault)
{
    (void)control;
    (void)data;
    (void)fault;
    program_t *const self = self_p;
    self->sched = sched_new(&self->sched_conf);
    return self->sched;
}

static int serve(program_t *self)
{
    const conf_t *const conf = self->conf;
    node_conf_t node = {.name = "scheduler",
                        .link = {.id = NODE_SCHEDULER,
                                 .bind_control = conf->scheduler.bind,
                                 .dead_after = conf->run.dead_after,
                                 .connect_timeout = conf->run.connect_timeout},
                        .make = make_role,
                        .maker = self,
                        .step = sched_step,
                        .job = sched_jobs_run,
                        .worker = self->jobs};
    return node_run(&node, 1, NULL);
}

static hx_err_t prepare(program_t *self, hx_fault_t *fault)
{
    const model_conf_t model_conf = conf_model(self->conf);
    HX_TRY(node_prepare(fault));
    const char *const at = self->conf->scheduler.dashboard;
    if (*at && !plan_only) {
        HX_TRY(dashboard_open(at, &self->dashboard, fault));
        sched_jobs_show_at(self->jobs, self->dashboard);
        hx_log_info("the run can be watched at http://%.*s:%u/", (int)(strrchr(at, ':') - at), at,
                    (unsigned)dashboard_port(self->dashboard));
    }
    HX_TRY(model_open(&model_conf, &self->model, fault));
    return make_conf(self, fault);
}

static int run(const conf_t *conf, sched_jobs_t *jobs)
{
    program_t self = {.conf = conf, .jobs = jobs};
    hx_fault_t fault = {{0}};
    int status = EXIT_USAGE;
    if (prepare(&self, &fault) == HX_OK) {
        status = serve(&self);
    } else {
        hx_log_error("%s", fault.text);
    }
    dashboard_destroy(&self.dashboard);
    sched_destroy(&self.sched);
    model_destroy(&self.model);
    free(self.workers);
    free(self.servers);
    return status;
}

// The folder first, since the log lies in it.
static sched_jobs_t *open_jobs(const conf_t *conf, char *log, size_t log_size)
{
    char folder[2 * CONF_TEXT_MAX];
    hx_fault_t fault = {{0}};
    sched_jobs_t *jobs = NULL;
    if (!conf_run_path(conf, "", folder, sizeof folder) ||
        !conf_run_path(conf, "log/scheduler.log", log, log_size)) {
        (void)hx_fault(&fault, HX_E_ARG, "run.directory is too long a path");
    } else if (sched_jobs_open(plan_only ? NULL : folder, &jobs, &fault) == HX_OK) {
        return jobs;
    }
    options_refuse(&SPEC, "%s", fault.text);
    return NULL;
}

int main(int argc, char **argv)
{
    options_t options;
    conf_t conf;
    if (!options_parse(&SPEC, argc, argv, &options) || !options_conf(&options, &conf)) {
        return options.status;
    }
    char log[2 * CONF_TEXT_MAX];
    int status = EXIT_USAGE;
    sched_jobs_t *jobs = open_jobs(&conf, log, sizeof log);
    if (jobs && options_log(&options, "scheduler", plan_only ? NULL : log)) {
        status = run(&conf, jobs);
        options_destroy(&options);
    }
    sched_jobs_destroy(&jobs);
    conf_destroy(&conf);
    hx_log_close();
    return status;
}
