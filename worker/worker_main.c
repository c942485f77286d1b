// harmony-worker - runs one stage of one pipeline on one device.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/conf_optim.h"
#include "net/node.h"
#include "net/options.h"
#include "net/payload.h"
#include "net/run_folder.h"
#include "tensor/hx_clock.h"
#include "worker/profiler.h"
#include "worker/stage_jobs.h"
#include "worker/worker_fsm.h"

#define MEMORY_SHARE 0.9  // Of what the machine has available at the start: a stage's limit.
#define OPTIONS_COUNT 6

// What the command line says.
typedef struct {
    const char *site;
    const char *name;
    const char *device;
    uint32_t threads;
    double slowdown;
    bool dry_run;
} place_t;

typedef struct {
    conf_t conf;
    place_t place;
    char own_name[CONF_NAME_MAX];  // Where --name is not given.
    node_id_t id;
    model_t *model;
    blocks_t blocks;
    data_t *data;
    hx_backend_t *backend;
    worker_fsm_t *fsm;   // The role,
    stage_jobs_t *jobs;  // and its jobs.
} worker_t;

static options_spec_t spec_of(place_t *place, option_t options[OPTIONS_COUNT])
{
    const option_t table[OPTIONS_COUNT] = {
        {"site", 0, OPTION_TEXT, "SITE", "the site that this worker is at", &place->site},
        {"name", 0, OPTION_TEXT, "NAME",
         "its name within the site (default: made of host and process)", &place->name},
        {"device", 0, OPTION_TEXT, "DEVICE", "what it computes on (worker.device): cpu",
         &place->device},
        {"threads", 0, OPTION_COUNT, "N", "CPU threads (worker.threads; else all)",
         &place->threads},
        {"slowdown", 0, OPTION_REAL, "F",
         "stretch computing time by this factor, at least 1, to play a slower device",
         &place->slowdown},
        {"dry-run", 0, OPTION_FLAG, NULL,
         "check the configuration, the data and the device, connect to nothing, and end",
         &place->dry_run},
    };
    memcpy(options, table, sizeof table);
    return (options_spec_t){
        .program = "harmony-worker",
        .summary = "Runs one stage of a pipeline, as the scheduler's plan says. It keeps nothing: "
                   "it may be "
                   "stopped at any time.",
        .operands = "CONF",
        .operands_min = 1,
        .operands_max = 1,
        .conf = true,
        .options = options,
        .options_count = OPTIONS_COUNT,
        .examples = "  harmony-worker run.conf --site east\n"
                    "  harmony-worker run.conf --site west --name slow --threads 1 --slowdown 3\n",
    };
}

// --- The node

static member_conf_t member_of(const worker_t *self, const char *control, const char *data)
{
    char name[PLAN_NAME_MAX];
    snprintf(name, sizeof name, "%.31s/%.31s", self->place.site, self->place.name);
    member_conf_t member =
        member_conf_of(&self->conf, PLAN_WORKER, self->place.site, name, control, data);
    member.id = self->id;
    member.conf_hash = conf_hash(&self->conf);
    member.data_hash = data_hash(self->data);
    member.model = self->model;
    return member;
}

static bool is_local(const worker_t *self)
{
    return self->conf.sync.mode == CONF_MODE_LOCAL;
}

static void *make_role(void *maker, const char *control, const char *data, hx_fault_t *fault)
{
    (void)fault;
    worker_t *const self = maker;
    const worker_fsm_conf_t conf = {
        .member = member_of(self, control, data),
        .block_size = self->conf.server.block,
        .trace_first = self->conf.run.trace_first,
        .trace_last = self->conf.run.trace_last,
        .local_steps = is_local(self) ? self->conf.sync.local_steps : 0,
        .local_speed = self->conf.sync.local_speed,
        .schedule = conf_schedule(&self->conf),
    };
    self->fsm = worker_fsm_new(&conf);
    return self->fsm;
}

static hx_err_t run_profile(const worker_t *self, blob_t **result, hx_fault_t *fault)
{
    const profiler_conf_t conf = {
        .backend = self->backend,
        .model = self->model,
        .microbatch = self->conf.plan.microbatch,
        .threads = (uint32_t)hx_backend_cpu_threads(self->backend),
        .slowdown = self->place.slowdown,
    };
    profile_t profile;
    const hx_err_t err = profiler_run(&conf, &profile);
    if (err != HX_OK) {
        return hx_fault(fault, err,
                        "the device cannot be measured with microbatches of %" PRIu32 " rows: %s",
                        conf.microbatch, hx_strerror(err));
    }
    hx_log_info("one block takes %.6f s forward and %.6f s backward for %" PRIu32 " rows",
                profile.block.forward, profile.block.backward, profile.microbatch);
    *result = payload_profile_encode(&profile);
    return HX_OK;
}

// A slower device takes longer for the same work, so work is followed by sleep, in proportion.
static hx_err_t run_job(void *worker, step_job_t *job, blob_t **result)
{
    worker_t *const self = worker;
    hx_fault_t fault = {{0}};
    if (job->kind == WORKER_JOB_SLOWDOWN) {
        self->place.slowdown = HX_MAX(job->value, 1);
        return HX_OK;
    }
    const hx_time_t begin = hx_now();
    const hx_err_t err = job->kind == WORKER_JOB_PROFILE
                             ? run_profile(self, result, &fault)
                             : stage_jobs_run(self->jobs, job, result, &fault);
    if (err != HX_OK) {
        hx_log_error("%s", fault.text[0] ? fault.text : hx_strerror(err));
    } else if (job->kind == WORKER_JOB_FORWARD || job->kind == WORKER_JOB_BACKWARD) {
        const double time = (double)(hx_now() - begin);
        hx_sleep((hx_time_t)(time * (self->place.slowdown - 1)));
    }
    return err;
}

static int run_node(worker_t *self)
{
    const conf_t *const conf = &self->conf;
    const inner_conf_t inner = {.optim = conf_optim(conf), .clip = conf->train.clip};
    const stage_jobs_conf_t jobs = {
        .backend = self->backend,
        .model = self->model,
        .blocks = &self->blocks,
        .data = self->data,
        .order_seed = conf->train.order_seed,
        .memory = (uint64_t)(MEMORY_SHARE * (double)profiler_memory()),
        .inner = is_local(self) ? &inner : NULL,
    };
    self->jobs = stage_jobs_new(&jobs);
    node_conf_t node = {
        .link = {.id = self->id,
                 .bind_data = conf->worker.bind,
                 .advertise = conf->worker.advertise,
                 .toward = conf->scheduler.endpoint,
                 .dead_after = conf->run.dead_after,
                 .connect_timeout = conf->run.connect_timeout},
        .make = make_role,
        .maker = self,
        .step = worker_fsm_step,
        .job = run_job,
        .worker = self,
    };
    snprintf(node.name, sizeof node.name, "%.31s/%.31s", self->place.site, self->place.name);
    const int status = node_run(&node, 1, NULL);
    worker_fsm_destroy(&self->fsm);
    stage_jobs_destroy(&self->jobs);
    return status;
}

// --- Start

// Everything that can be wrong before there is a network.
static hx_err_t open_worker(worker_t *self, hx_fault_t *fault)
{
    const conf_t *const conf = &self->conf;
    const model_conf_t model = conf_model(conf);
    HX_TRY(model_open(&model, &self->model, fault));
    blocks_make(self->model, conf->server.block, &self->blocks);
    const data_conf_t data = {
        .path = conf->train.data,
        .valid = conf->train.valid,
        .valid_path = conf->train.valid_file,
        .context = conf->model.context,
        .vocab = conf->model.vocab,
    };
    HX_TRY(data_open(&data, &self->data, fault));
    const uint32_t threads = self->place.threads > 0 ? self->place.threads : conf->worker.threads;
    self->backend = hx_backend_cpu_new((int)threads);
    hx_log_info("%" PRIu64 " rows to train on, %" PRIu64 " held out, %d threads",
                data_rows(self->data), data_valid_rows(self->data),
                hx_backend_cpu_threads(self->backend));
    return HX_OK;
}

static int work(worker_t *self)
{
    hx_fault_t fault = {{0}};
    const hx_err_t err = open_worker(self, &fault);
    int status = EXIT_USAGE;
    if (err == HX_OK && self->place.dry_run) {
        status = EXIT_DONE;
    } else if (err == HX_OK) {
        self->id = link_random();
        status = run_node(self);
    } else {
        hx_log_error("%s", fault.text);
    }
    hx_backend_destroy(&self->backend);
    data_destroy(&self->data);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    return status;
}

static bool open_log(options_t *options, const options_spec_t *spec, const worker_t *self)
{
    char folder[2 * CONF_TEXT_MAX];
    char file[2 * CONF_TEXT_MAX + 80];
    char name[80];
    hx_fault_t fault = {{0}};
    if (!conf_run_path(&self->conf, "log", folder, sizeof folder)) {
        options->status = options_refuse(spec, "run.directory: the path is too long");
        return false;
    }
    if (run_folder_make(folder, &fault) != HX_OK) {
        options->status = options_refuse(spec, "%s", fault.text);
        return false;
    }
    snprintf(name, sizeof name, "%.31s.%.31s", self->place.site, self->place.name);
    snprintf(file, sizeof file, "%s/%s.log", folder, name);
    return options_log(options, name, file);
}

static bool name_good(const char *text)
{
    return text && text[0] != '\0' && strlen(text) < CONF_NAME_MAX && !strpbrk(text, "/ \t\n");
}

static void name_oneself(worker_t *self)
{
    char host[16] = "host";
    if (gethostname(host, sizeof host) != 0 || !name_good(host)) {
        snprintf(host, sizeof host, "host");
    }
    host[sizeof host - 1] = '\0';
    snprintf(self->own_name, sizeof self->own_name, "%s-%ld", host, (long)getpid());
    self->place.name = self->own_name;
}

// EXIT_DONE, or the refusal's status.
static int check_place(const options_spec_t *spec, worker_t *self)
{
    place_t *const place = &self->place;
    if (!place->name) {
        name_oneself(self);
    }
    if (!name_good(place->site)) {
        return options_refuse(spec, "--site SITE is needed: a short name without blanks");
    }
    if (!name_good(place->name)) {
        return options_refuse(spec, "--name: a short name without blanks is needed");
    }
    if (!(place->slowdown >= 1 && place->slowdown <= 1e6)) {
        return options_refuse(spec, "--slowdown %g: a factor from 1 to 1000000 is needed",
                              place->slowdown);
    }
    const char *const device = place->device ? place->device : self->conf.worker.device;
    if (strncmp(device, "cuda", 4) == 0) {
        return options_refuse(spec, "device %s: this build has no CUDA, only cpu", device);
    }
    if (strcmp(device, "cpu") != 0) {
        return options_refuse(spec, "device %s: unknown, only cpu can be had", device);
    }
    return EXIT_DONE;
}

int main(int argc, char **argv)
{
    hx_cpu_prepare(argv);
    static worker_t worker = {.place = {.slowdown = 1}};
    option_t table[OPTIONS_COUNT];
    const options_spec_t spec = spec_of(&worker.place, table);
    options_t options;
    if (!options_parse(&spec, argc, argv, &options) || !options_conf(&options, &worker.conf)) {
        return options.status;
    }
    hx_fault_t fault = {{0}};
    int status = check_place(&spec, &worker);
    if (status == EXIT_DONE && node_prepare(&fault) != HX_OK) {
        status = options_refuse(&spec, "%s", fault.text);
    }
    if (status == EXIT_DONE) {
        const bool logged = open_log(&options, &spec, &worker);
        status = logged ? work(&worker) : options.status;
        hx_log_close();
    }
    options_destroy(&options);
    conf_destroy(&worker.conf);
    return status;
}
