// harmony-ps - a parameter server: shards, and with them a lead and a keeper, of which a run uses
// one each.

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/conf_optim.h"
#include "net/node.h"
#include "net/options.h"
#include "net/run_folder.h"
#include "server/checkpoint.h"
#include "server/held_out.h"
#include "server/keeper.h"
#include "server/keeper_jobs.h"
#include "server/lead.h"
#include "server/lead_jobs.h"
#include "server/ps_shard.h"
#include "server/shard_jobs.h"

#define SHARDS_MAX 64
#define OWN_NAME_MAX 22         // Bytes of --name: a node is called SITE/NAME.shard63.
#define MEMORY_SHARE 0.5        // Of the machine's memory that held contributions may take.
#define STATUS_EVERY HX_SEC(1)  // How often the lead tells how every pipeline does.
#define THREADS_OF_SHARD 1      // More arithmetic at once: more shards.

_Static_assert(CONF_NAME_MAX + OWN_NAME_MAX + sizeof ".shard63" <= PLAN_NAME_MAX,
               "a node's name has room");

typedef struct {
    const char *site;
    const char *name;
} place_t;

static options_spec_t spec_of(place_t *place, option_t options[2])
{
    options[0] =
        (option_t){"site", 0, OPTION_TEXT, "SITE", "the site that this server is at", &place->site};
    options[1] = (option_t){"name",
                            0,
                            OPTION_TEXT,
                            "NAME",
                            "its name within the site (ps0): give each server of a site another",
                            &place->name};
    return (options_spec_t){
        .program = "harmony-ps",
        .summary = "Keeps parameters and optimizer state, and decides on commits.",
        .operands = "CONF",
        .operands_min = 1,
        .operands_max = 1,
        .conf = true,
        .options = options,
        .options_count = 2,
        .examples = "  harmony-ps run.conf --site east\n"
                    "  harmony-ps run.conf --site east --name ps1\n",
    };
}

// What all nodes of the process share, for its whole life.
typedef struct {
    conf_t conf;
    model_t *model;
    optim_conf_t optim;
    place_t place;
    char run[CHECKPOINT_PATH_MAX];
    char resume[CHECKPOINT_PATH_MAX];  // Checkpoint folder; empty: none.
    uint64_t resume_version;
    uint64_t valid_rows;
    uint64_t hold_limit;
} server_t;

typedef struct {
    const server_t *server;
    node_id_t id;
    plan_role_t role;
    char name[PLAN_NAME_MAX];
    void *state;   // The role,
    void *worker;  // and its jobs.
} seat_t;

// --- values of the configuration as the modules take them ---

static const char *optimizer_name(const server_t *self)
{
    return conf_optimizer_name(self->optim.kind == OPTIM_ADAMW ? CONF_OPTIMIZER_ADAMW
                                                               : CONF_OPTIMIZER_SGD);
}

static member_conf_t member_of(const seat_t *seat, const char *control, const char *data)
{
    const server_t *const server = seat->server;
    member_conf_t member =
        member_conf_of(&server->conf, seat->role, server->place.site, seat->name, control, data);
    member.id = seat->id;
    member.conf_hash = conf_hash(&server->conf);
    member.model = server->model;
    if (seat->role == PLAN_KEEPER && server->resume[0] != '\0') {
        member.checkpoint = server->resume_version + 1;
    }
    return member;
}

static lead_conf_t lead_conf_of(const seat_t *seat, const char *control, const char *data)
{
    const conf_t *const conf = &seat->server->conf;
    return (lead_conf_t){
        .member = member_of(seat, control, data),
        .block_size = conf->server.block,
        .ssaw = ssaw_conf_of(&conf->sync, conf_round_rows(conf), conf->model.context),
        .schedule = conf_server_schedule(conf),
        .clip = conf_server_clip(conf),
        .local_steps = conf->sync.local_steps,
        .tokens = conf->train.tokens,
        .seconds = conf->train.seconds,
        .target_loss = conf->train.target_loss,
        .valid_rows = seat->server->valid_rows,
        .valid_every = conf->train.valid_every,
        .checkpoint_every = conf->server.checkpoint_every,
        .nonfinite_limit = conf->train.nonfinite_limit,
        .hold_limit = seat->server->hold_limit,
        .lease_factor = conf->run.lease_factor,
        .lease_min = conf->run.lease_min,
        .live = conf,
        .status_every = STATUS_EVERY,
    };
}

// --- the nodes ---

static void *make_role(void *maker, const char *control, const char *data, hx_fault_t *fault)
{
    (void)fault;
    seat_t *const seat = maker;
    const server_t *const server = seat->server;
    const uint32_t arrays = 1 + optim_moments_count(&server->optim);
    if (seat->role == PLAN_LEAD) {
        const lead_conf_t conf = lead_conf_of(seat, control, data);
        seat->state = lead_new(&conf);
    } else if (seat->role == PLAN_KEEPER) {
        seat->state = keeper_new(&(keeper_conf_t){.member = member_of(seat, control, data),
                                                  .block_size = server->conf.server.block,
                                                  .arrays = arrays});
    } else {
        seat->state = ps_shard_new(&(ps_shard_conf_t){.member = member_of(seat, control, data),
                                                      .block_size = server->conf.server.block,
                                                      .arrays = arrays,
                                                      .hold_limit = server->hold_limit});
    }
    return seat->state;
}

static void make_worker(seat_t *seat)
{
    const server_t *const server = seat->server;
    const conf_t *const conf = &server->conf;
    if (seat->role == PLAN_LEAD) {
        seat->worker = lead_jobs_new(server->run);
    } else if (seat->role == PLAN_KEEPER) {
        seat->worker =
            keeper_jobs_new(&(keeper_jobs_conf_t){.model = server->model,
                                                  .block_size = conf->server.block,
                                                  .seed = conf->run.seed,
                                                  .moments = optim_moments_count(&server->optim),
                                                  .optimizer = optimizer_name(server),
                                                  .run = server->run,
                                                  .resume = server->resume,
                                                  .init = conf->model.init,
                                                  .keep = conf->server.checkpoint_keep});
    } else {
        seat->worker = shard_jobs_new(&(shard_jobs_conf_t){.model = server->model,
                                                           .block_size = conf->server.block,
                                                           .optim = server->optim,
                                                           .seed = conf->run.seed,
                                                           .threads = THREADS_OF_SHARD});
    }
}

static void clear_seat(seat_t *seat)
{
    if (seat->role == PLAN_LEAD) {
        lead_destroy((lead_t **)&seat->state);
        lead_jobs_destroy((lead_jobs_t **)&seat->worker);
    } else if (seat->role == PLAN_KEEPER) {
        keeper_destroy((keeper_t **)&seat->state);
        keeper_jobs_destroy((keeper_jobs_t **)&seat->worker);
    } else {
        ps_shard_destroy((ps_shard_t **)&seat->state);
        shard_jobs_destroy((shard_jobs_t **)&seat->worker);
    }
}

static node_conf_t node_of(seat_t *seat)
{
    static step_fn *const steps[] = {
        [PLAN_LEAD] = lead_step, [PLAN_KEEPER] = keeper_step, [PLAN_SHARD] = ps_shard_step};
    static node_job_fn *const jobs[] = {[PLAN_LEAD] = lead_jobs_run,
                                        [PLAN_KEEPER] = keeper_jobs_run,
                                        [PLAN_SHARD] = shard_jobs_run};
    const conf_t *const conf = &seat->server->conf;
    const bool lead = seat->role == PLAN_LEAD;
    node_conf_t node = {
        .link = {.id = seat->id,
                 .bind_control = lead ? conf->server.bind : NULL,
                 .bind_data = lead ? NULL : conf->server.bind,
                 .advertise = conf->server.advertise,
                 .toward = conf->scheduler.endpoint,
                 .dead_after = conf->run.dead_after,
                 .connect_timeout = conf->run.connect_timeout},
        .make = make_role,
        .maker = seat,
        .step = steps[seat->role],
        .job = jobs[seat->role],
        .worker = seat->worker,
    };
    snprintf(node.name, sizeof node.name, "%s", seat->name);
    return node;
}

static void take_seat(seat_t *seat, const server_t *server, plan_role_t role, const char *which)
{
    *seat = (seat_t){.server = server, .id = link_random(), .role = role};
    snprintf(seat->name, sizeof seat->name, "%.*s/%.*s.%s", CONF_NAME_MAX - 1, server->place.site,
             OWN_NAME_MAX, server->place.name, which);
    make_worker(seat);
}

static int run_nodes(const server_t *server)
{
    const uint32_t shards = server->conf.server.shards;
    HX_ASSERT(shards <= SHARDS_MAX);
    seat_t seats[SHARDS_MAX + 2];
    node_conf_t nodes[SHARDS_MAX + 2];
    take_seat(&seats[0], server, PLAN_LEAD, "lead");
    take_seat(&seats[1], server, PLAN_KEEPER, "keeper");
    for (uint32_t shard = 0; shard < shards; shard++) {
        char which[24];
        snprintf(which, sizeof which, "shard%" PRIu32, shard);
        take_seat(&seats[2 + shard], server, PLAN_SHARD, which);
    }
    for (uint32_t at = 0; at < shards + 2; at++) {
        nodes[at] = node_of(&seats[at]);
    }
    const int status = node_run(nodes, shards + 2, NULL);
    for (uint32_t at = 0; at < shards + 2; at++) {
        clear_seat(&seats[at]);
    }
    return status;
}

// --- start ---

static void warn_skipped(void *self, const char *line)
{
    (void)self;
    hx_log_warn("checkpoint passed over: %s", line);
}

// Which checkpoint to offer to the scheduler.
static hx_err_t find_resume(server_t *self, hx_fault_t *fault)
{
    const char *const resume = self->conf.run.resume;
    const checkpoint_conf_t conf = {
        .model = self->model,
        .seed = self->conf.run.seed,
        .moments = optim_moments_count(&self->optim),
        .optimizer = optimizer_name(self),
    };
    if (strcmp(resume, "never") == 0) {
        return HX_OK;
    }
    if (strcmp(resume, "auto") == 0) {
        hx_fault_t why = {{0}};
        const hx_err_t err = checkpoint_newest(&conf, self->run, self->resume,
                                               &self->resume_version, warn_skipped, NULL, &why);
        return err == HX_OK ? HX_OK
                            : hx_fault(fault, err,
                                       "%.800s (run.resume = never starts afresh, or choose "
                                       "another run.name)",
                                       why.text);
    }
    checkpoint_reader_t *reader = NULL;
    hx_fault_t why = {{0}};
    const hx_err_t err = checkpoint_open(&conf, resume, true, &reader, &why);
    if (err != HX_OK) {
        return hx_fault(fault, err, "%.900s (run.resume)", why.text);
    }
    self->resume_version = checkpoint_version(reader);
    checkpoint_close(&reader);
    snprintf(self->resume, sizeof self->resume, "%s", resume);
    return HX_OK;
}

// Of one shard.
static uint64_t hold_limit_of(const conf_t *conf)
{
    if (conf->server.hold > 0) {
        return conf->server.hold / conf->server.shards;
    }
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long size = sysconf(_SC_PAGE_SIZE);
    if (pages <= 0 || size <= 0) {
        return 0;
    }
    return (uint64_t)(MEMORY_SHARE * (double)pages * (double)size / conf->server.shards);
}

static hx_err_t count_valid_rows(server_t *self, hx_fault_t *fault)
{
    const conf_t *const conf = &self->conf;
    const held_out_conf_t held_out = {
        .path = conf->train.data,
        .valid = conf->train.valid,
        .valid_path = conf->train.valid_file,
        .context = conf->model.context,
    };
    uint64_t rows = 0;
    HX_TRY(held_out_rows(&held_out, &rows, fault));
    const uint64_t most = HX_MAX(conf->train.valid_tokens / conf->model.context, (uint64_t)1);
    self->valid_rows = HX_MIN(rows, most);
    return HX_OK;
}

// Everything that can be wrong before there is a network.
static hx_err_t open_server(server_t *self, hx_fault_t *fault)
{
    const model_conf_t model = conf_model(&self->conf);
    HX_TRY(model_open(&model, &self->model, fault));
    self->optim = conf_server_optim(&self->conf);
    HX_TRY(optim_conf_check(&self->optim, fault));
    self->hold_limit = hold_limit_of(&self->conf);
    HX_TRY(count_valid_rows(self, fault));
    return find_resume(self, fault);
}

// Makes the folders of the run and opens the log in them.
static bool open_log(options_t *options, const options_spec_t *spec, server_t *self)
{
    char folder[CHECKPOINT_PATH_MAX];
    char name[64];
    char file[CHECKPOINT_PATH_MAX + 80];
    hx_fault_t fault = {{0}};
    if (!conf_run_path(&self->conf, "", self->run, sizeof self->run) ||
        !conf_run_path(&self->conf, "log", folder, sizeof folder)) {
        options->status = options_refuse(spec, "run.directory: the path is too long");
        return false;
    }
    if (run_folder_make(self->run, &fault) != HX_OK || run_folder_make(folder, &fault) != HX_OK) {
        fprintf(stderr, "%s: %s\n", spec->program, fault.text);
        options->status = EXIT_FAILED;
        return false;
    }
    snprintf(name, sizeof name, "%.31s-%.31s", self->place.site, self->place.name);
    snprintf(file, sizeof file, "%s/%s.log", folder, name);
    return options_log(options, name, file);
}

static int serve(server_t *self)
{
    hx_fault_t fault = {{0}};
    const hx_err_t err = open_server(self, &fault);
    int status = EXIT_FAILED;
    if (err == HX_OK) {
        status = run_nodes(self);
    } else {
        hx_log_error("%s", fault.text);
        status =
            err == HX_E_FORMAT ? EXIT_FAILED : EXIT_USAGE;  // A damaged file, or a wrong value.
    }
    model_destroy(&self->model);
    return status;
}

static bool name_good(const char *text)
{
    return text && text[0] != '\0' && strlen(text) < CONF_NAME_MAX && !strpbrk(text, "/ \t\n");
}

int main(int argc, char **argv)
{
    hx_cpu_prepare(argv);
    static server_t server = {.place = {.name = "ps0"}};
    option_t table[2];
    const options_spec_t spec = spec_of(&server.place, table);
    options_t options;
    if (!options_parse(&spec, argc, argv, &options) || !options_conf(&options, &server.conf)) {
        return options.status;
    }
    int status = EXIT_USAGE;
    hx_fault_t fault = {{0}};
    if (!name_good(server.place.site)) {
        status = options_refuse(&spec, "--site SITE is needed: a short name without blanks");
    } else if (!name_good(server.place.name) || strlen(server.place.name) > OWN_NAME_MAX) {
        status = options_refuse(
            &spec, "--name: a name of at most %d letters without blanks is needed", OWN_NAME_MAX);
    } else if (node_prepare(&fault) != HX_OK) {
        status = options_refuse(&spec, "%s", fault.text);
    } else if (!open_log(&options, &spec, &server)) {
        status = options.status;
    } else {
        status = serve(&server);
        hx_log_close();
        options_destroy(&options);
    }
    conf_destroy(&server.conf);
    return status;
}
