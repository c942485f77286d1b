// planned - see the header.

#include "tests/support/planned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/conf.h"
#include "net/node.h"
#include "net/payload.h"
#include "scheduler/sched.h"
#include "scheduler/sched_jobs.h"
#include "tensor/hx_log.h"

#define PLANNED_SERVERS_MAX 4u
#define END_LIMIT 30  // Seconds for the other processes to end after the scheduler.

typedef struct {
    sched_conf_t conf;
    sched_t *sched;
    planned_fn *change;
    void *change_self;
    blob_t *plan;
} planned_t;

static void change_plan(planned_t *self, const blob_t *planned)
{
    plan_t plan;
    hx_fault_t fault = {{0}};
    HX_ASSERT(payload_plan_decode(planned, &plan) == HX_OK);
    self->change(self->change_self, &plan);
    if (plan_check(&plan, self->conf.planner.model, &fault) != HX_OK) {
        fprintf(stderr, "planned: %s\n", fault.text);
        HX_ASSERT(false && "the test's plan passes the check");
    }
    self->plan = payload_plan_encode(&plan);
    plan_destroy(&plan);
}

static void step(void *self_p, const step_in_t *in, step_out_t *out)
{
    planned_t *const self = self_p;
    sched_step(self->sched, in, out);
    for (uint32_t at = 0; at < out->sends_count; at++) {
        step_send_t *const send = &out->sends[at];
        if (send->msg.kind != WIRE_PLAN) {
            continue;
        }
        if (!self->plan) {
            change_plan(self, send->blob);
        }
        blob_release(&send->blob);
        send->blob = blob_retain(self->plan);
    }
}

static void *make_role(void *self_p, const char *control, const char *data, hx_fault_t *fault)
{
    (void)control;
    (void)data;
    (void)fault;
    planned_t *const self = self_p;
    self->sched = sched_new(&self->conf);
    return self;
}

static sched_conf_t sched_conf_of(const conf_t *conf, const model_t *model, uint32_t workers)
{
    sched_conf_t out = {
        .declared = true,
        .run_id = link_random(),
        .conf_hash = conf_hash(conf),
        .join_timeout = conf->run.join_timeout,
        .stop_timeout = conf->run.stop_timeout,
        .goal_tokens = conf->train.tokens,
        .workers_count = workers,
        .servers_count = conf->plan.servers,
        .shards = conf->server.shards,
        .planner = {.model = model,
                    .rows = (uint32_t)conf_rows(conf),
                    .microbatch = conf->plan.microbatch,
                    .schedule = conf->plan.schedule,
                    .pipelines = workers},
    };
    snprintf(out.run, sizeof out.run, "%s", conf->run.name);
    snprintf(out.endpoint, sizeof out.endpoint, "%.*s", PLAN_ENDPOINT_MAX - 1,
             conf->scheduler.endpoint);
    return out;
}

static int serve(planned_t *self, const conf_t *conf, const char *folder)
{
    hx_fault_t fault = {{0}};
    sched_jobs_t *jobs = NULL;
    HX_ASSERT(sched_jobs_open(folder, &jobs, &fault) == HX_OK);
    const node_conf_t node = {.name = "scheduler",
                              .link = {.id = NODE_SCHEDULER,
                                       .bind_control = conf->scheduler.bind,
                                       .dead_after = conf->run.dead_after,
                                       .connect_timeout = conf->run.connect_timeout},
                              .make = make_role,
                              .maker = self,
                              .step = step,
                              .job = sched_jobs_run,
                              .worker = jobs};
    const int status = node_run(&node, 1, NULL);
    sched_destroy(&self->sched);
    sched_jobs_destroy(&jobs);
    blob_release(&self->plan);
    return status;
}

static pid_t start_node(run_t *run, const planned_conf_t *planned, const char *worker)
{
    const char *own[64] = {"+--site", "+here"};
    uint32_t words = 2;
    char name[16];
    char slowdown[16];
    char log[32];
    snprintf(log, sizeof log, "%s.log", worker ? worker : "ps");
    if (worker) {
        snprintf(name, sizeof name, "+%s", worker);
        own[words++] = "+--name";
        own[words++] = name;
    }
    if (worker && planned->slowdown) {
        snprintf(slowdown, sizeof slowdown, "+%s", planned->slowdown);
        own[words++] = "+--slowdown";
        own[words++] = slowdown;
    }
    for (const char *const *set = planned->sets; *set; set++) {
        HX_ASSERT(words + 1 < HX_COUNT(own));
        own[words++] = *set;
    }
    return run_start(run, worker ? "harmony-worker" : "harmony-ps", log, own);
}

static uint32_t start_nodes(run_t *run, const planned_conf_t *planned, uint32_t servers,
                            pid_t *pids)
{
    uint32_t count = 0;
    while (count < servers) {
        pids[count++] = start_node(run, planned, NULL);
    }
    for (uint32_t worker = 1; worker <= planned->workers; worker++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", worker);
        pids[count++] = start_node(run, planned, name);
    }
    return count;
}

// Once in a process: sockets of an earlier run may still be closing.
static void prepare(void)
{
    static bool prepared;
    hx_fault_t fault = {{0}};
    HX_ASSERT(prepared || node_prepare(&fault) == HX_OK);
    prepared = true;
}

int planned_run(run_t *run, const planned_conf_t *planned)
{
    HX_ASSERT(planned->workers <= PLANNED_WORKERS_MAX);
    conf_t conf;
    model_t *model = NULL;
    hx_fault_t fault = {{0}};
    size_t sets_count = 0;
    while (planned->sets[sets_count]) {
        sets_count++;
    }
    if (conf_open(run->conf, planned->sets, sets_count, &conf, &fault) != HX_OK) {
        fprintf(stderr, "planned: %s\n", fault.text);
        HX_ASSERT(false && "the test's configuration can be used");
    }
    const model_conf_t model_conf = conf_model(&conf);
    HX_ASSERT(model_open(&model_conf, &model, &fault) == HX_OK);
    pid_t pids[PLANNED_WORKERS_MAX + PLANNED_SERVERS_MAX];
    HX_ASSERT(conf.plan.servers <= PLANNED_SERVERS_MAX);
    const uint32_t count = start_nodes(run, planned, conf.plan.servers, pids);
    char folder[512];
    snprintf(folder, sizeof folder, "%s/runs/test", run->dir);
    hx_log_set_level(HX_LOG_WARN);
    prepare();
    planned_t self = {.change = planned->change, .change_self = planned->change_self};
    self.conf = sched_conf_of(&conf, model, planned->workers);
    int status = serve(&self, &conf, folder);
    for (uint32_t at = 0; at < count; at++) {
        const int ended = run_wait(pids[at], END_LIMIT);
        if (ended != 0) {
            fprintf(stderr, "planned: process %u of %u (servers first) ended with %d\n", at + 1,
                    count, ended);
            status = HX_MAX(status, 1);
        }
    }
    model_destroy(&model);
    conf_destroy(&conf);
    return status;
}
