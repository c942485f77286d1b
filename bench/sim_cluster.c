// sim_cluster - see the header.

#include "bench/sim_cluster.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commit_laws.h"
#include "bench/sim_jobs.h"
#include "net/payload.h"
#include "scheduler/sched.h"
#include "server/keeper.h"
#include "server/ps_shard.h"
#include "worker/worker_fsm.h"

#define NODES_MAX 512u
#define CONF_HASH 77u
#define DATA_HASH 88u
#define SERVER_MAX 64u
#define CLIP 1.0

typedef enum { OWN_SCHED, OWN_LEAD, OWN_KEEPER, OWN_SHARD, OWN_WORKER } own_kind_t;

typedef struct {
    own_kind_t kind;
    void *role;
    sim_work_t work;
    node_id_t id;
} own_t;

// What the checker remembers of a shard.
typedef struct {
    node_id_t id;
    uint64_t applied;  // Version.
    double squares;    // Of its newest yes: the sum over its blocks.
} shard_t;

// What the checker remembers.
typedef struct {
    record_t last;  // Of the newest COMMIT seen.
    shard_t shards[SERVER_MAX * 16];
    uint32_t shards_count;
    uint8_t *rows;  // Times that each row was committed.
    uint64_t rows_room;
} laws_t;

struct sim_cluster {
    sim_cluster_conf_t conf;
    sim_t *sim;
    model_t *model;
    blocks_t blocks;
    own_t nodes[NODES_MAX];
    uint32_t nodes_count;
    node_id_t next_id;
    node_id_t workers[SIM_WORKERS_MAX];
    node_id_t leads[SERVER_MAX];
    sched_expected_t expected_workers[SIM_WORKERS_MAX];
    laws_t laws;
    sim_report_t report;
    hx_time_t began_at;      // The first grant; HX_TIME_NEVER: not yet.
    hx_time_t committed_at;  // The newest COMMIT.
    double busy_at;          // What workers had computed at the first grant.
};

static void broken(sim_cluster_t *self, const char *format, ...) HX_PRINTF(2, 3);

static void broken(sim_cluster_t *self, const char *format, ...)
{
    if (self->report.broken[0]) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(self->report.broken, sizeof self->report.broken, format, args);
    va_end(args);
}

static optim_schedule_t schedule_of(const sim_cluster_conf_t *conf)
{
    if (conf->real) {
        return conf->schedule;
    }
    return (optim_schedule_t){.lr = 1e-3, .lr_final_ratio = 0.1, .total_tokens = conf->tokens};
}

static double clip_of(const sim_cluster_conf_t *conf)
{
    return conf->real ? conf->clip : CLIP;
}

// Of a block: those of adamw where tensors are virtual.
static uint32_t arrays_of(const sim_cluster_conf_t *conf)
{
    return conf->real ? conf->real->arrays : 3;
}

static void mark_rows(sim_cluster_t *self, uint64_t first, uint64_t end)
{
    laws_t *const laws = &self->laws;
    if (end > laws->rows_room) {
        const uint64_t room = end * 2;
        laws->rows = hx_grow(laws->rows, room, 1);
        memset(laws->rows + laws->rows_room, 0, room - laws->rows_room);
        laws->rows_room = room;
    }
    for (uint64_t row = first; row < end; row++) {
        if (laws->rows[row]++ > 0) {
            broken(self, "row %" PRIu64 " is committed twice", row);
        }
    }
}

// Every row below the mark was committed or skipped, and every range above it committed.
static void check_books(sim_cluster_t *self, const record_t *record)
{
    uint32_t skipped = 0;
    uint32_t range = 0;
    const uint64_t end = record->committed_count > 0
                             ? record->committed[record->committed_count - 1].end
                             : record->low_water;
    for (uint64_t row = 0; row < end; row++) {
        while (skipped < record->skipped_count && record->skipped[skipped].end <= row) {
            skipped++;
        }
        while (range < record->committed_count && record->committed[range].end <= row) {
            range++;
        }
        const bool left = skipped < record->skipped_count && record->skipped[skipped].first <= row;
        const bool above = range < record->committed_count && record->committed[range].first <= row;
        const bool seen = row < self->laws.rows_room && self->laws.rows[row] > 0;
        if ((row < record->low_water || above) && seen == left) {
            broken(self, "books of version %" PRIu64 " have row %" PRIu64 ", %s", record->version,
                   row, seen ? "committed and skipped" : "never committed");
        }
    }
}

static void count_members(sim_cluster_t *self, const record_t *record)
{
    sim_report_t *const report = &self->report;
    for (uint32_t at = 0; at < record->members_count; at++) {
        const round_member_t *const member = &record->members[at];
        mark_rows(self, member->row_first, member->row_first + member->rows);
        report->rows += member->rows;
        report->lag_max = HX_MAX(report->lag_max, member->lag);
        report->lag_sum += member->lag;
    }
    report->contributions += record->members_count;
    report->tokens = record->tokens;
    report->commits++;
}

static void check_record(sim_cluster_t *self, const record_t *record)
{
    laws_t *const laws = &self->laws;
    const optim_schedule_t schedule = schedule_of(&self->conf);
    const commit_laws_t rules = {.ssaw = &self->conf.ssaw,
                                 .schedule = &schedule,
                                 .clip = clip_of(&self->conf),
                                 .context = self->conf.model.context};
    char text[160];
    if (!commit_laws_hold(&rules, &laws->last, record, text, sizeof text)) {
        broken(self, "version %" PRIu64 ": %s", record->version, text);
    }
    double squares = 0;
    for (uint32_t at = 0; at < laws->shards_count; at++) {
        squares += laws->shards[at].squares;
        if (laws->shards[at].applied + 1 < record->version) {
            broken(self, "COMMIT %" PRIu64 " while a shard is at %" PRIu64, record->version,
                   laws->shards[at].applied);
        }
    }
    if (fabs(record->norm - sqrt(squares)) > 1e-9 * record->norm) {
        broken(self, "version %" PRIu64 ": norm %.12g, the votes' is %.12g", record->version,
               record->norm, sqrt(squares));
    }
}

// All shards are at the version of the newest COMMIT, or at 0.
static void note_version(sim_cluster_t *self, bool last)
{
    const record_t *const record = &self->laws.last;
    const sim_real_t *const real = self->conf.real;
    if (real) {
        const hx_time_t since = record->version > 0 ? self->committed_at : self->began_at;
        real->version(real->self, (double)(since - self->began_at) / 1e9, record->tokens,
                      record->version, last);
    }
}

static void on_commit(sim_cluster_t *self, const step_send_t *send, hx_time_t now)
{
    record_t record = {0};
    if (payload_record_decode(send->blob, &record) != HX_OK ||
        record.version != send->msg.version) {
        broken(self, "a COMMIT without a readable record of its version");
        record_destroy(&record);
        return;
    }
    note_version(self, false);  // The one before: all shards are at it.
    check_record(self, &record);
    count_members(self, &record);
    check_books(self, &record);
    record_destroy(&self->laws.last);
    self->laws.last = record;
    self->committed_at = now;
}

static double sum_of(const blob_t *blob)
{
    double *values = NULL;
    uint32_t count = 0;
    double sum = 0;
    if (payload_doubles_decode(blob, &values, &count) == HX_OK) {
        for (uint32_t at = 0; at < count; at++) {
            sum += values[at];
        }
    }
    free(values);
    return sum;
}

static double busy_of(const sim_cluster_t *self)
{
    double busy = 0;
    for (uint32_t at = 0; at < self->nodes_count; at++) {
        busy += self->nodes[at].kind == OWN_WORKER ? self->nodes[at].work.busy : 0;
    }
    return busy;
}

static void look(void *looker, hx_time_t now, node_id_t from, const step_send_t *send)
{
    sim_cluster_t *const self = looker;
    laws_t *const laws = &self->laws;
    if (send->msg.kind == WIRE_COMMIT && send->msg.version > laws->last.version) {
        on_commit(self, send, now);
    }
    if (send->msg.kind == WIRE_GRANT && self->began_at == HX_TIME_NEVER) {
        self->began_at = now;
        self->busy_at = busy_of(self);
    }
    for (uint32_t at = 0; at < laws->shards_count; at++) {
        shard_t *const shard = &laws->shards[at];
        if (shard->id == from && send->msg.kind == WIRE_APPLIED) {
            shard->applied = HX_MAX(shard->applied, send->msg.version);
        } else if (shard->id == from && send->msg.kind == WIRE_VOTE && send->msg.flags & 1) {
            shard->squares = sum_of(send->blob);
        }
    }
}

static own_t *add(sim_cluster_t *self, own_kind_t kind, node_id_t id)
{
    HX_ASSERT(self->nodes_count < NODES_MAX);
    own_t *const own = &self->nodes[self->nodes_count++];
    *own = (own_t){.kind = kind, .id = id};
    own->work = (sim_work_t){
        .model = self->model,
        .blocks = &self->blocks,
        .flops = self->conf.flops,
        .jitter = self->conf.jitter,
        .hiccup_chance = self->conf.hiccup_chance,
        .hiccup_factor = self->conf.hiccup_factor,
        .phase_gap = kind == OWN_WORKER ? self->conf.phase_gap : 0,
        .phase_length = self->conf.phase_length,
        .phase_factor = self->conf.phase_factor,
        .blanks = self->conf.blanks,
        .nonfinite = self->conf.nonfinite,
        .save_failure = self->conf.save_failure,
    };
    return own;
}

static member_conf_t member_of(sim_cluster_t *self, plan_role_t role, uint32_t site,
                               const char *name)
{
    member_conf_t conf = {
        .id = self->next_id++,
        .role = role,
        .conf_hash = CONF_HASH,
        .data_hash = role == PLAN_WORKER ? DATA_HASH : 0,
        .join_timeout = HX_SEC(60),
        .model = self->model,
    };
    snprintf(conf.run, sizeof conf.run, "sim");
    snprintf(conf.site, sizeof conf.site, "s%" PRIu32, site);
    snprintf(conf.name, sizeof conf.name, "s%" PRIu32 "/%.40s", site, name);
    snprintf(conf.control, sizeof conf.control, "sim://%" PRIu64 "/control", conf.id);
    snprintf(conf.data, sizeof conf.data, "sim://%" PRIu64 "/data", conf.id);
    snprintf(conf.scheduler, sizeof conf.scheduler, "sim://1/control");
    return conf;
}

static hx_time_t start_time(sim_cluster_t *self, hx_rng_t *rng)
{
    (void)self;
    return (hx_time_t)hx_rng_below(rng, (uint64_t)HX_MS(500));
}

static void add_server(sim_cluster_t *self, uint32_t server, hx_rng_t *rng)
{
    const sim_cluster_conf_t *const conf = &self->conf;
    const uint32_t site = server % conf->sites;
    const hx_time_t at = start_time(self, rng);
    char name[PLAN_NAME_MAX];
    for (uint32_t shard = 0; shard < conf->shards; shard++) {
        snprintf(name, sizeof name, "ps%" PRIu32 ".shard%" PRIu32, server, shard);
        const ps_shard_conf_t made = {.member = member_of(self, PLAN_SHARD, site, name),
                                      .block_size = SIM_BLOCK_SIZE,
                                      .arrays = arrays_of(conf)};
        own_t *const own = add(self, OWN_SHARD, made.member.id);
        own->role = ps_shard_new(&made);
        own->work.shard = own->role;
        if (conf->real) {
            conf->real->shard(conf->real->self, &own->work);
        }
        self->laws.shards[self->laws.shards_count++].id = own->id;
        sim_add(self->sim, made.member.name, own->id, ps_shard_step, own->role, sim_shard_job,
                &own->work, at);
    }
    snprintf(name, sizeof name, "ps%" PRIu32 ".lead", server);
    const lead_conf_t lead = {
        .member = member_of(self, PLAN_LEAD, site, name),
        .block_size = SIM_BLOCK_SIZE,
        .ssaw = conf->ssaw,
        .schedule = schedule_of(conf),
        .clip = clip_of(conf),
        .tokens = conf->tokens,
        .seconds = conf->seconds,
        .valid_rows = conf->real ? 0 : 8,
        .valid_every = conf->valid_every,
        .checkpoint_every = conf->checkpoint_every,
    };
    own_t *own = add(self, OWN_LEAD, lead.member.id);
    own->role = lead_new(&lead);
    self->leads[server] = own->id;
    sim_add(self->sim, lead.member.name, own->id, lead_step, own->role, sim_file_job, &own->work,
            at);
    snprintf(name, sizeof name, "ps%" PRIu32 ".keeper", server);
    const keeper_conf_t keeper = {.member = member_of(self, PLAN_KEEPER, site, name),
                                  .block_size = SIM_BLOCK_SIZE,
                                  .arrays = arrays_of(conf)};
    own = add(self, OWN_KEEPER, keeper.member.id);
    own->role = keeper_new(&keeper);
    sim_add(self->sim, keeper.member.name, own->id, keeper_step, own->role, sim_keeper_job,
            &own->work, at);
}

static void add_worker(sim_cluster_t *self, uint32_t worker, hx_rng_t *rng)
{
    char name[PLAN_NAME_MAX];
    snprintf(name, sizeof name, "w%" PRIu32, worker);
    const worker_fsm_conf_t conf = {
        .member = member_of(self, PLAN_WORKER, worker % self->conf.sites, name),
        .block_size = SIM_BLOCK_SIZE,
    };
    own_t *const own = add(self, OWN_WORKER, conf.member.id);
    own->work.flops *= self->conf.speeds[worker];
    if (self->conf.real) {
        self->conf.real->worker(self->conf.real->self, &own->work);
    }
    own->role = worker_fsm_new(&conf);
    self->workers[worker] = own->id;
    sim_add(self->sim, conf.member.name, own->id, worker_fsm_step, own->role, sim_worker_job,
            &own->work, start_time(self, rng));
}

static void add_scheduler(sim_cluster_t *self, hx_rng_t *rng)
{
    const sim_cluster_conf_t *const conf = &self->conf;
    sched_conf_t made = {
        .run_id = 99,
        .conf_hash = CONF_HASH,
        .planner = {.model = self->model,
                    .rows = (uint32_t)conf->ssaw.batch_rows,
                    .microbatch = conf->microbatch,
                    .schedule = SCHEDULE_1F1B,
                    .pipelines = conf->pipelines,
                    .quick = true,
                    .overlap = conf->ssaw.run_ahead > 0},
        .workers_count = conf->workers,
        .servers_count = conf->servers,
        .shards = conf->shards,
        .join_timeout = HX_SEC(60),
        .stop_timeout = HX_SEC(10),
        .goal_tokens = conf->tokens,
    };
    snprintf(made.run, sizeof made.run, "sim");
    snprintf(made.endpoint, sizeof made.endpoint, "sim://1/control");
    snprintf(made.mode, sizeof made.mode, "sim");
    own_t *const own = add(self, OWN_SCHED, NODE_SCHEDULER);
    own->role = sched_new(&made);
    sim_add(self->sim, "scheduler", NODE_SCHEDULER, sched_step, own->role, sim_file_job, &own->work,
            start_time(self, rng));
}

sim_cluster_t *sim_cluster_new(const sim_cluster_conf_t *conf)
{
    HX_ASSERT(conf->workers > 0 && conf->workers <= SIM_WORKERS_MAX && conf->sites > 0);
    HX_ASSERT(conf->servers > 0 && conf->servers <= SERVER_MAX && conf->shards > 0);
    sim_cluster_t *const self = hx_new(1, sizeof *self);
    self->conf = *conf;
    self->next_id = 1000;
    hx_fault_t fault;
    if (model_open(&conf->model, &self->model, &fault) != HX_OK) {
        HX_ASSERT(false && "a model that cannot be");
    }
    blocks_make(self->model, SIM_BLOCK_SIZE, &self->blocks);
    self->began_at = HX_TIME_NEVER;
    self->sim = sim_new(&conf->net);
    sim_look(self->sim, look, self);
    hx_rng_t rng = hx_rng_seed(conf->net.seed ^ UINT64_C(0x5bd1e995));
    add_scheduler(self, &rng);
    for (uint32_t server = 0; server < conf->servers; server++) {
        add_server(self, server, &rng);
    }
    for (uint32_t worker = 0; worker < conf->workers; worker++) {
        add_worker(self, worker, &rng);
    }
    return self;
}

void sim_cluster_destroy(sim_cluster_t **self_p)
{
    sim_cluster_t *const self = *self_p;
    if (!self) {
        return;
    }
    sim_destroy(&self->sim);
    for (uint32_t at = 0; at < self->nodes_count; at++) {
        void *role = self->nodes[at].role;
        switch (self->nodes[at].kind) {
        case OWN_SCHED:
            sched_destroy(&(sched_t *){role});
            break;
        case OWN_LEAD:
            lead_destroy(&(lead_t *){role});
            break;
        case OWN_KEEPER:
            keeper_destroy(&(keeper_t *){role});
            break;
        case OWN_SHARD:
            ps_shard_destroy(&(ps_shard_t *){role});
            break;
        case OWN_WORKER:
            worker_fsm_destroy(&(worker_fsm_t *){role});
            break;
        }
    }
    free(self->laws.rows);
    record_destroy(&self->laws.last);
    blocks_destroy(&self->blocks);
    model_destroy(&self->model);
    free(self);
    *self_p = NULL;
}

sim_t *sim_cluster_sim(sim_cluster_t *self)
{
    return self->sim;
}

node_id_t sim_cluster_worker(const sim_cluster_t *self, uint32_t worker)
{
    HX_ASSERT(worker < self->conf.workers);
    return self->workers[worker];
}

node_id_t sim_cluster_lead(const sim_cluster_t *self, uint32_t server)
{
    HX_ASSERT(server < self->conf.servers);
    return self->leads[server];
}

void sim_cluster_run(sim_cluster_t *self, hx_time_t limit, sim_report_t *report)
{
    const bool ended = sim_run(self->sim, limit);
    sim_report_t *const own = &self->report;
    own->time = sim_now(self->sim);
    if (own->commits > 0) {
        note_version(self, true);
        own->training = (double)(self->committed_at - self->began_at) / 1e9;
        own->idle = 1 - (busy_of(self) - self->busy_at) / (own->training * self->conf.workers);
    }
    own->messages = sim_messages(self->sim);
    own->trace_hash = sim_trace_hash(self->sim);
    const char *reason = "";
    own->status = sim_status(self->sim, NODE_SCHEDULER, &reason);
    snprintf(own->reason, sizeof own->reason, "%s", reason);
    if (!ended) {
        broken(self, "the run has not ended after %" PRId64 " s", limit / HX_SEC(1));
    }
    if (sim_undialled(self->sim) > 0) {
        broken(self, "%" PRIu64 " messages went where nobody had dialled",
               sim_undialled(self->sim));
    }
    for (uint32_t server = 0; server < self->conf.servers; server++) {
        const own_t *own_lead = NULL;
        for (uint32_t at = 0; at < self->nodes_count; at++) {
            own_lead = self->nodes[at].id == self->leads[server] ? &self->nodes[at] : own_lead;
        }
        const lead_view_t view = lead_view(own_lead->role);
        own->dropped += view.dropped;
        if (!view.books_hold) {
            broken(self, "the lead's books do not partition the rows");
        }
    }
    *report = *own;
}

// A mode and its numbers, drawn; always one that ssaw_check allows for any number of pipelines.
static ssaw_conf_t random_mode(hx_rng_t *rng, uint64_t rows, uint32_t context)
{
    const conf_mode_t modes[] = {CONF_MODE_BSP,      CONF_MODE_ASP,   CONF_MODE_SSP,
                                 CONF_MODE_SSAW,     CONF_MODE_KSYNC, CONF_MODE_WSP,
                                 CONF_MODE_SOFTSYNC, CONF_MODE_EAGER, CONF_MODE_SSAW};
    const conf_mode_t mode = modes[hx_rng_below(rng, HX_COUNT(modes))];
    ssaw_conf_t conf = ssaw_preset(mode, rows, context, 1 + (uint32_t)hx_rng_below(rng, 4));
    if (mode == CONF_MODE_SSAW) {
        conf.quorum_rows = 1 + hx_rng_below(rng, rows);
        conf.run_ahead = (uint32_t)hx_rng_below(rng, 3);
        conf.staleness = (uint32_t)hx_rng_below(rng, 7);
        conf.grace = hx_rng_unit(rng) * 0.3;
        conf.weighting = (conf_weighting_t)hx_rng_below(rng, 5);
        if (conf.quorum_rows == SSAW_QUORUM_ONE) {
            conf.quorum_rows = 2;
        }
    }
    return conf;
}

sim_cluster_conf_t sim_cluster_random(uint64_t seed)
{
    hx_rng_t rng = hx_rng_seed(seed);
    sim_cluster_conf_t conf = {
        .net = {.seed = seed,
                .latency_min = HX_US(50 + (hx_time_t)hx_rng_below(&rng, 1000)),
                .dead_after = HX_SEC(5),
                .duplicate = hx_rng_below(&rng, 3) == 0 ? 0.05 : 0,
                .trace_level = STEP_DEBUG},
        .model = model_conf_default(),
        .servers = 1 + (uint32_t)hx_rng_below(&rng, 3),
        .shards = 1 + (uint32_t)hx_rng_below(&rng, 2),
        .workers = 1 + (uint32_t)hx_rng_below(&rng, 6),
        .flops = 1e8,
        .jitter = hx_rng_unit(&rng),
        .hiccup_chance = hx_rng_unit(&rng) * 0.02,
        .hiccup_factor = 1 + 9 * hx_rng_unit(&rng),
        .sites = 1 + (uint32_t)hx_rng_below(&rng, 2),
        .microbatch = 1 + (uint32_t)hx_rng_below(&rng, 4),
    };
    conf.net.latency_max = conf.net.latency_min + HX_US((hx_time_t)hx_rng_below(&rng, 60000));
    conf.model.layers = 1 + (uint32_t)hx_rng_below(&rng, 4);
    conf.model.heads = 2;
    conf.model.channels = 16;
    conf.model.context = 8;
    conf.model.vocab = 32;
    const uint64_t rows = 8 + hx_rng_below(&rng, 24);
    conf.ssaw = random_mode(&rng, rows, conf.model.context);
    for (uint32_t worker = 0; worker < conf.workers; worker++) {
        conf.speeds[worker] = 0.25 + hx_rng_unit(&rng);
    }
    conf.tokens = conf.model.context * rows * (3 + hx_rng_below(&rng, 12)) +
                  hx_rng_below(&rng, conf.model.context * rows);
    conf.checkpoint_every = (uint32_t)hx_rng_below(&rng, 6);
    conf.valid_every = (uint32_t)hx_rng_below(&rng, 6);
    conf.save_failure = hx_rng_below(&rng, 4) == 0 ? 0.2 : 0;
    conf.blanks = (uint32_t)hx_rng_below(&rng, 3);
    conf.nonfinite = hx_rng_below(&rng, 8) == 0 ? 0.002 : 0;
    return conf;
}

void sim_cluster_misfortunes(sim_cluster_t *self, uint64_t seed)
{
    hx_rng_t rng = hx_rng_seed(seed ^ UINT64_C(0xdead));
    for (uint32_t worker = 1; worker < self->conf.workers; worker++) {
        if (hx_rng_below(&rng, 3) == 0) {
            sim_lose(self->sim, self->workers[worker],
                     HX_MS(800 + (hx_time_t)hx_rng_below(&rng, 20000)));
        }
    }
    const uint32_t cuts = (uint32_t)hx_rng_below(&rng, 4);
    for (uint32_t at = 0; at < cuts; at++) {
        const uint32_t worker = (uint32_t)hx_rng_below(&rng, self->conf.workers);
        const own_t *const server = &self->nodes[hx_rng_below(&rng, self->nodes_count)];
        const hx_time_t from = HX_MS(800 + (hx_time_t)hx_rng_below(&rng, 10000));
        const uint64_t most = (uint64_t)self->conf.net.dead_after - (uint64_t)HX_MS(500);
        const hx_time_t length = (hx_time_t)hx_rng_below(&rng, most);
        if (server->kind == OWN_SHARD || server->kind == OWN_LEAD) {
            sim_cut(self->sim, self->workers[worker], server->id, from, from + length);
        }
    }
}
