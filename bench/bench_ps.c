// bench_ps - push, commit and pull of blocks through real shards, beside plain libzmq at the same
// size, in the same run.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/bench_args.h"
#include "bench/bench_nodes.h"
#include "bench/bench_round.h"
#include "bench/raw_zmq.h"
#include "net/options.h"
#include "server/ps_shard.h"
#include "server/shard_jobs.h"

#define IN_FLIGHT 16u     // Pushes, and pulls, of one worker.
#define RAW_IN_FLIGHT 8u  // More gains nothing.
#define REPEATS_MAX 32u
#define SIZE_MIN ((size_t)4096)
#define SIZE_MAX_OF_BLOCK ((size_t)64 << 20)
#define MODEL_BYTES ((size_t)64 << 20)  // About what a worker pushes, and pulls, for one version,
#define MODEL_BLOCKS 4u                 // or so many blocks for each shard if that is more.

typedef struct {
    const char *sizes_text;
    const char *transports_text;
    const char *optimizer;  // NULL: both.
    double seconds;
    uint32_t repeats;
    uint32_t workers;
    uint32_t shards;
    bool json;
    bench_sizes_t sizes;
    bench_transports_t transports;
} args_t;

// A row's question, and what holds for all its runs.
typedef struct {
    const args_t *args;
    const char *transport;
    size_t bytes;
    bool apply;  // AdamW; else nothing is changed.
    optim_conf_t optim;
    model_t *model;
    blocks_t blocks;
    uint64_t params_size;
} row_t;

// Medians of a row.
typedef struct {
    double goodput, raw, round, vote, apply, cpu, raw_cpu;
} result_t;

// --- the model: blocks of nearly the wanted size, and groups that shards can share ---

// Channels of a transformer block whose 12 c^2 + 13 c floats just fit in `bytes`.
static uint32_t channels_of(size_t bytes)
{
    uint32_t channels = 1;
    for (uint64_t c = 1; (12 * c * c + 13 * c) * sizeof(float) <= bytes; c++) {
        channels = (uint32_t)c;
    }
    return channels;
}

static hx_err_t open_model(row_t *row, hx_fault_t *fault)
{
    const size_t group = HX_MAX(row->bytes, (size_t)1 << 20);  // Cut into blocks if smaller.
    const uint32_t shards = row->args->shards;
    const uint32_t wanted = HX_MAX((uint32_t)(MODEL_BYTES / group), MODEL_BLOCKS * shards);
    model_conf_t conf = model_conf_default();
    conf.layers = (wanted + shards - 1) / shards * shards;
    conf.heads = 1;
    conf.channels = channels_of(group);
    conf.context = 1;
    conf.vocab = 1;
    HX_TRY(model_open(&conf, &row->model, fault));
    blocks_make(row->model, row->bytes, &row->blocks);
    row->params_size = model_params_count(row->model) * sizeof(float);
    return HX_OK;
}

static void close_model(row_t *row)
{
    blocks_destroy(&row->blocks);
    model_destroy(&row->model);
}

// --- nodes ---

// One shard: its role is made when its address is known.
typedef struct {
    const row_t *row;
    node_id_t id;
    ps_shard_t *role;
    shard_jobs_t *jobs;
} shard_t;

// Everything of one run.
typedef struct {
    const row_t *row;
    bench_boss_t boss;
    bench_lead_t lead;
    double cpu_at;  // Seconds computed when its measurement began,
    double cpu;     // and in it.
    member_t keeper;
    shard_t shards[BENCH_SHARDS_MAX];
    bench_worker_t workers[BENCH_WORKERS_MAX];
    char names[BENCH_NODES_MAX][PLAN_NAME_MAX];
    bench_node_t nodes[BENCH_NODES_MAX];
    uint32_t nodes_count;
} cluster_t;

static void seat_member(member_conf_t *conf, bench_address_t own, bench_address_t first)
{
    snprintf(conf->control, sizeof conf->control, "%s", own.control);
    snprintf(conf->data, sizeof conf->data, "%s", own.data);
    snprintf(conf->scheduler, sizeof conf->scheduler, "%s", first.control);
}

static void seat_boss(void *role, bench_address_t own, bench_address_t first)
{
    (void)role;
    (void)own;
    (void)first;
}

static void seat_lead(void *role, bench_address_t own, bench_address_t first)
{
    seat_member(&((cluster_t *)role)->lead.member.conf, own, first);
}

// The lead's step; looks at the clock of the processor where the measurement begins and ends.
static void step_lead(void *role, const step_in_t *in, step_out_t *out)
{
    cluster_t *const self = role;
    const hx_time_t started_at = self->lead.started_at;
    const bool measured = self->lead.measured;
    bench_lead_step(&self->lead, in, out);
    if (self->lead.started_at != started_at) {
        self->cpu_at = bench_cpu();
    }
    if (self->lead.measured != measured) {
        self->cpu = bench_cpu() - self->cpu_at;
    }
}

static void seat_keeper(void *role, bench_address_t own, bench_address_t first)
{
    seat_member(&((member_t *)role)->conf, own, first);
}

static void seat_worker(void *role, bench_address_t own, bench_address_t first)
{
    seat_member(&((bench_worker_t *)role)->member.conf, own, first);
}

static void seat_shard(void *role, bench_address_t own, bench_address_t first)
{
    shard_t *const shard = role;
    ps_shard_conf_t conf = {.member = bench_boss_member(shard->id, shard->row->model),
                            .block_size = shard->row->bytes,
                            .arrays = 1 + optim_moments_count(&shard->row->optim)};
    seat_member(&conf.member, own, first);
    shard->role = ps_shard_new(&conf);
}

static void step_shard(void *role, const step_in_t *in, step_out_t *out)
{
    ps_shard_step(((shard_t *)role)->role, in, out);
}

static bench_node_t *add_node(cluster_t *self, node_id_t id, bench_seat_fn *seat, void *role,
                              step_fn *step)
{
    HX_ASSERT(self->nodes_count < BENCH_NODES_MAX);
    const uint32_t at = self->nodes_count++;
    snprintf(self->names[at], sizeof self->names[at], "%s",
             id == NODE_SCHEDULER ? "boss" : bench_boss_member(id, self->row->model).name);
    self->nodes[at] =
        (bench_node_t){.name = self->names[at], .id = id, .seat = seat, .role = role, .step = step};
    return &self->nodes[at];
}

static void add_shard(cluster_t *self, uint32_t index)
{
    const row_t *const row = self->row;
    shard_t *const shard = &self->shards[index];
    *shard = (shard_t){.row = row, .id = BENCH_SHARD + index};
    shard->jobs = shard_jobs_new(&(shard_jobs_conf_t){
        .model = row->model,
        .block_size = row->bytes,
        .optim = row->optim,
        .seed = 1,
        .threads = 1,
    });
    bench_node_t *const node = add_node(self, shard->id, seat_shard, shard, step_shard);
    node->binds_data = true;
    node->job = shard_jobs_run;
    node->worker = shard->jobs;
}

static void add_worker(cluster_t *self, uint32_t index)
{
    const row_t *const row = self->row;
    bench_worker_t *const worker = &self->workers[index];
    bench_worker_init(worker, &(bench_worker_conf_t){.model = row->model,
                                                     .blocks = &row->blocks,
                                                     .index = index,
                                                     .in_flight = IN_FLIGHT});
    add_node(self, BENCH_WORKER + index, seat_worker, worker, bench_worker_step);
}

static void cluster_init(cluster_t *self, const row_t *row)
{
    const args_t *const args = row->args;
    *self = (cluster_t){.row = row};
    bench_boss_init(&self->boss, &(bench_boss_conf_t){row->model, args->shards, args->workers});
    add_node(self, NODE_SCHEDULER, seat_boss, &self->boss, bench_boss_step)->binds_control = true;
    bench_lead_init(&self->lead, &(bench_lead_conf_t){.model = row->model,
                                                      .shards = args->shards,
                                                      .workers = args->workers,
                                                      .apply = row->apply,
                                                      .seconds = args->seconds});
    add_node(self, BENCH_LEAD, seat_lead, self, step_lead)->binds_control = true;
    const member_conf_t keeper = bench_boss_member(BENCH_KEEPER, row->model);
    member_init(&self->keeper, &keeper);
    add_node(self, BENCH_KEEPER, seat_keeper, &self->keeper, bench_keeper_step)->binds_data = true;
    for (uint32_t at = 0; at < args->shards; at++) {
        add_shard(self, at);
    }
    for (uint32_t at = 0; at < args->workers; at++) {
        add_worker(self, at);
    }
}

static void cluster_clear(cluster_t *self)
{
    bench_boss_clear(&self->boss);
    bench_lead_clear(&self->lead);
    member_clear(&self->keeper);
    for (uint32_t at = 0; at < self->row->args->shards; at++) {
        ps_shard_destroy(&self->shards[at].role);
        shard_jobs_destroy(&self->shards[at].jobs);
    }
    for (uint32_t at = 0; at < self->row->args->workers; at++) {
        bench_worker_clear(&self->workers[at]);
    }
}

// --- measuring ---

static int run_ours(const row_t *row, bench_rounds_t *out, double *cpu, hx_fault_t *fault)
{
    cluster_t *const cluster = hx_new(1, sizeof *cluster);
    cluster_init(cluster, row);
    const int status = bench_nodes_run(cluster->nodes, cluster->nodes_count, row->transport, fault);
    *out = cluster->lead.result;
    *cpu = cluster->cpu;
    cluster_clear(cluster);
    free(cluster);
    return status;
}

static int run_raw(const row_t *row, raw_zmq_t *out, hx_fault_t *fault)
{
    const raw_zmq_conf_t conf = {
        .endpoint = bench_bind(row->transport),
        .bytes = row->bytes,
        .in_flight = RAW_IN_FLIGHT,
        .seconds = row->args->seconds,
    };
    return raw_zmq_run(&conf, out, fault) == HX_OK ? EXIT_DONE : EXIT_FAILED;
}

// Ours and raw in turn, so that both see the same moments of a shared machine.
static int measure(const row_t *row, result_t *result, hx_fault_t *fault)
{
    double values[7][REPEATS_MAX];
    const args_t *const args = row->args;
    for (uint32_t at = 0; at < args->repeats; at++) {
        bench_rounds_t ours = {0};
        raw_zmq_t raw;
        double cpu = 0;
        int status = run_ours(row, &ours, &cpu, fault);
        if (status == EXIT_DONE) {
            status = run_raw(row, &raw, fault);
        }
        if (status != EXIT_DONE) {
            return status;
        }
        const double rounds = (double)ours.rounds;
        const double bytes = rounds * 2.0 * args->workers * (double)row->params_size;
        values[0][at] = bytes / ours.seconds;
        values[1][at] = raw.goodput;
        values[2][at] = ours.seconds / rounds;
        values[3][at] = ours.vote_seconds / rounds;
        values[4][at] = ours.apply_seconds / rounds;
        values[5][at] = 1e9 * cpu / bytes;
        values[6][at] = 1e9 * raw.cpu;
        fprintf(stderr, "%s, %zu bytes, %s, %u of %u: %.2f GB/s, raw %.2f GB/s\n", row->transport,
                row->bytes, row->apply ? "adamw" : "none", at + 1, args->repeats,
                1e-9 * values[0][at], 1e-9 * values[1][at]);
    }
    double *const medians[] = {&result->goodput, &result->raw, &result->round,  &result->vote,
                               &result->apply,   &result->cpu, &result->raw_cpu};
    for (size_t at = 0; at < HX_COUNT(medians); at++) {
        *medians[at] = bench_median(values[at], args->repeats);
    }
    return EXIT_DONE;
}

static void report(const row_t *row, const result_t *result, json_t *rows)
{
    const args_t *const args = row->args;
    const char *const optimizer = row->apply ? "adamw" : "none";
    const double ratio = result->goodput / result->raw;
    json_array_append_new(
        rows,
        json_pack("{s:s, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:f}",
                  "transport", row->transport, "bytes", (json_int_t)row->bytes, "workers",
                  (json_int_t)args->workers, "shards", (json_int_t)args->shards, "optimizer",
                  optimizer, "goodput", result->goodput, "raw", result->raw, "ratio", ratio,
                  "blocks", (json_int_t)row->blocks.count, "params_bytes",
                  (json_int_t)row->params_size, "round_seconds", result->round, "vote_seconds",
                  result->vote, "apply_seconds", result->apply, "cpu", result->cpu, "raw_cpu",
                  result->raw_cpu));
    if (!args->json) {
        printf("%-9s  %8zu  %-9s  %5.2f  %8.2f  %5.2f  %6.2f  %6.2f  %6.2f  %8.2f  %5.2f\n",
               row->transport, row->bytes, optimizer, 1e-9 * result->goodput, 1e-9 * result->raw,
               ratio, 1e3 * result->round, 1e3 * result->vote, 1e3 * result->apply, result->cpu,
               result->raw_cpu);
        fflush(stdout);
    }
}

static int run_row(row_t *row, json_t *rows, hx_fault_t *fault)
{
    if (open_model(row, fault) != HX_OK) {
        return EXIT_FAILED;
    }
    result_t result;
    const int status = measure(row, &result, fault);
    if (status == EXIT_DONE) {
        report(row, &result, rows);
    }
    close_model(row);
    return status;
}

static bool wants(const args_t *args, const char *optimizer)
{
    return !args->optimizer || strcmp(args->optimizer, optimizer) == 0;
}

static int run_all(const args_t *args, json_t *rows, hx_fault_t *fault)
{
    if (!args->json) {
        printf("%" PRIu32 " workers, %" PRIu32 " shards; round, vote and apply in ms\n"
               "transport     bytes  optimizer   GB/s  raw GB/s  ratio   round    vote   apply  "
               "CPU s/GB    raw\n",
               args->workers, args->shards);
    }
    static const char *const optimizers[] = {"none", "adamw"};
    for (uint32_t transport = 0; transport < args->transports.count; transport++) {
        for (uint32_t size = 0; size < args->sizes.count; size++) {
            for (uint32_t apply = 0; apply < HX_COUNT(optimizers); apply++) {
                row_t row = {
                    .args = args,
                    .transport = args->transports.names[transport],
                    .bytes = args->sizes.bytes[size],
                    .apply = apply == 1,
                    .optim = optim_conf_default(OPTIM_ADAMW),
                };
                const int status =
                    wants(args, optimizers[apply]) ? run_row(&row, rows, fault) : EXIT_DONE;
                if (status != EXIT_DONE) {
                    return status;
                }
            }
        }
    }
    return EXIT_DONE;
}

// --- the command line ---

static hx_err_t check(args_t *args, hx_fault_t *fault)
{
    if (args->repeats > REPEATS_MAX || args->seconds < 0.01) {
        return hx_fault(fault, HX_E_ARG, "--repeats is 1 to %u, --seconds at least 0.01",
                        REPEATS_MAX);
    }
    if (args->workers > BENCH_WORKERS_MAX || args->shards > BENCH_SHARDS_MAX) {
        return hx_fault(fault, HX_E_ARG, "at most %u workers and %u shards", BENCH_WORKERS_MAX,
                        BENCH_SHARDS_MAX);
    }
    if (!wants(args, "none") && !wants(args, "adamw")) {
        return hx_fault(fault, HX_E_ARG, "\"%s\" is no optimizer here: none or adamw",
                        args->optimizer);
    }
    HX_TRY(bench_transports_parse(args->transports_text, &args->transports, fault));
    return bench_sizes_parse(args->sizes_text, SIZE_MIN, SIZE_MAX_OF_BLOCK, &args->sizes, fault);
}

static bool parse(int argc, char **argv, args_t *args, options_t *options)
{
    const option_t list[] = {
        {"sizes", 0, OPTION_TEXT, "LIST", "bytes of a block (64K,1M,4M)", &args->sizes_text},
        {"transport", 0, OPTION_TEXT, "LIST", "tcp, ipc or both (tcp,ipc)", &args->transports_text},
        {"optimizer", 0, OPTION_TEXT, "NAME", "none or adamw (both, one after the other)",
         &args->optimizer},
        {"workers", 0, OPTION_COUNT, "N", "workers that push and pull (1)", &args->workers},
        {"shards", 0, OPTION_COUNT, "N", "shards among which the blocks are dealt (1)",
         &args->shards},
        {"seconds", 0, OPTION_REAL, "S", "of each measurement (0.5)", &args->seconds},
        {"repeats", 0, OPTION_COUNT, "N", "measurements of each row, of which the median (3)",
         &args->repeats},
        {"json", 0, OPTION_FLAG, NULL, "one object on standard output", &args->json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench ps",
        .summary =
            "Real shards, and stand-ins for scheduler, lead and workers, all in this "
            "process. Each worker pushes a gradient of every block and pulls every block, "
            "round after round, one round ahead of the commits, as in a run without any "
            "computing. Gradients and their hashes are made before; a shard hashes every byte "
            "that it gets, a worker reads every byte. With optimizer adamw a round sums, "
            "votes and applies; with none it drops what was pushed. Goodput counts bytes "
            "pushed and pulled; CPU is what all threads computed for each of them, which a busy "
            "machine changes less. Beside it, in turn: plain libzmq, one connection, payloads "
            "of a block's size both ways.",
        .operands = "",
        .options = list,
        .options_count = HX_COUNT(list),
        .examples = "  harmony-bench ps\n"
                    "  harmony-bench ps --sizes 1M --workers 2 --shards 2 --json\n",
    };
    if (!options_parse(&spec, argc, argv, options)) {
        return false;
    }
    hx_fault_t fault = {{0}};
    if (check(args, &fault) == HX_OK) {
        options->quiet++;  // What nodes say of themselves is no news here.
        return options_log(options, "bench", NULL);
    }
    options->status = options_refuse(&spec, "%s", fault.text);
    options_destroy(options);
    return false;
}

int bench_ps(int argc, char **argv)
{
    args_t args = {.sizes_text = "64K,1M,4M",
                   .transports_text = "tcp,ipc",
                   .seconds = 0.5,
                   .repeats = 3,
                   .workers = 1,
                   .shards = 1};
    options_t options;
    if (!parse(argc, argv, &args, &options)) {
        return options.status;
    }
    hx_fault_t fault = {{0}};
    bench_probe_t probe;
    bench_probe(&probe);
    json_t *const rows = json_array();
    int status = node_prepare(&fault) == HX_OK ? EXIT_DONE : EXIT_FAILED;
    if (status == EXIT_DONE) {
        status = run_all(&args, rows, &fault);
    }
    if (status != EXIT_DONE) {
        fprintf(stderr, "harmony-bench ps: %s\n", fault.text);
        json_decref(rows);
    } else if (args.json) {
        bench_print_json(
            json_pack("{s:o, s:o}", "rows", rows, "machine", bench_probe_json(&probe)));
    } else {
        bench_probe_print(&probe);
        json_decref(rows);
    }
    options_destroy(&options);
    return status;
}
