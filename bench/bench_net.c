// bench_net - messages between two nodes beside plain libzmq at the same size, in the same run.

#include <stdio.h>

#include "bench/bench.h"
#include "bench/bench_args.h"
#include "bench/bench_nodes.h"
#include "bench/bench_pump.h"
#include "bench/raw_zmq.h"
#include "net/options.h"

#define ECHO NODE_SCHEDULER
#define PUMP ((node_id_t)2)
#define IN_FLIGHT 8u
#define TRIPS 1000u
#define REPEATS_MAX 32u
#define SIZE_MIN ((size_t)128)

typedef struct {
    const char *sizes_text;
    const char *transports_text;
    double seconds;
    uint32_t repeats;
    bool json;
    bench_sizes_t sizes;
    bench_transports_t transports;
} args_t;

// Medians of a row.
typedef struct {
    double goodput, raw, round_trip, raw_round_trip, cpu, raw_cpu;
} row_t;

// What one run of ours gave.
typedef struct {
    bench_pump_t pump;
    double cpu_at;  // Seconds computed when its measurement began,
    double cpu;     // and in it.
} run_t;

static void seat_pump(void *role, bench_address_t own, bench_address_t first)
{
    (void)own;
    bench_pump_t *const pump = &((run_t *)role)->pump;
    snprintf(pump->control, sizeof pump->control, "%s", first.control);
    snprintf(pump->data, sizeof pump->data, "%s", first.data);
}

// The pump's step; looks at the clock of the processor where the measurement begins and ends.
static void step_pump(void *role, const step_in_t *in, step_out_t *out)
{
    run_t *const self = role;
    const hx_time_t started_at = self->pump.started_at;
    const double goodput = self->pump.goodput;
    bench_pump_step(&self->pump, in, out);
    if (self->pump.started_at != started_at) {
        self->cpu_at = bench_cpu();
    }
    if (self->pump.goodput > goodput) {
        self->cpu = bench_cpu() - self->cpu_at;
    }
}

static void seat_echo(void *role, bench_address_t own, bench_address_t first)
{
    (void)role;
    (void)own;
    (void)first;
}

// One run of ours. Returns an exit status.
static int run_ours(const char *transport, size_t bytes, double seconds, run_t *run,
                    hx_fault_t *fault)
{
    bench_echo_t echo;
    bench_echo_init(&echo, bytes);
    bench_pump_init(&run->pump, &(bench_pump_conf_t){.echo = ECHO,
                                                     .trips = TRIPS,
                                                     .bytes = bytes,
                                                     .in_flight = IN_FLIGHT,
                                                     .seconds = seconds});
    const bench_node_t nodes[] = {
        {.name = "echo",
         .id = ECHO,
         .binds_control = true,
         .binds_data = true,
         .seat = seat_echo,
         .role = &echo,
         .step = bench_echo_step},
        {.name = "pump", .id = PUMP, .seat = seat_pump, .role = run, .step = step_pump},
    };
    const int status = bench_nodes_run(nodes, HX_COUNT(nodes), transport, fault);
    bench_pump_clear(&run->pump);
    bench_echo_clear(&echo);
    return status;
}

static int run_raw(const char *transport, size_t bytes, double seconds, raw_zmq_t *out,
                   hx_fault_t *fault)
{
    const raw_zmq_conf_t conf = {
        .endpoint = bench_bind(transport),
        .bytes = bytes,
        .in_flight = IN_FLIGHT,
        .seconds = seconds,
    };
    return raw_zmq_run(&conf, out, fault) == HX_OK ? EXIT_DONE : EXIT_FAILED;
}

// Ours and raw in turn, so that both see the same moments of a shared machine.
static int measure(const args_t *args, const char *transport, size_t bytes, row_t *row,
                   hx_fault_t *fault)
{
    double values[6][REPEATS_MAX];
    for (uint32_t at = 0; at < args->repeats; at++) {
        static run_t run;
        raw_zmq_t raw;
        int status = run_ours(transport, bytes, args->seconds, &run, fault);
        if (status == EXIT_DONE) {
            status = run_raw(transport, bytes, args->seconds, &raw, fault);
        }
        if (status != EXIT_DONE) {
            return status;
        }
        const bench_pump_t *const pump = &run.pump;
        values[0][at] = pump->goodput;
        values[1][at] = raw.goodput;
        values[2][at] = bench_median(run.pump.trip_seconds, pump->trips_done);
        values[3][at] = raw.round_trip;
        values[4][at] = 1e9 * run.cpu / (2.0 * (double)bytes * (double)pump->answers);
        values[5][at] = 1e9 * raw.cpu;
        fprintf(stderr, "%s, %zu bytes, %u of %u: %.2f GB/s, raw %.2f GB/s\n", transport, bytes,
                at + 1, args->repeats, 1e-9 * values[0][at], 1e-9 * values[1][at]);
    }
    double *const medians[] = {&row->goodput,        &row->raw, &row->round_trip,
                               &row->raw_round_trip, &row->cpu, &row->raw_cpu};
    for (size_t at = 0; at < HX_COUNT(medians); at++) {
        *medians[at] = bench_median(values[at], args->repeats);
    }
    return EXIT_DONE;
}

static void report(const args_t *args, const char *transport, size_t bytes, const row_t *row,
                   json_t *rows)
{
    json_array_append_new(rows, json_pack("{s:s, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                                          "transport", transport, "bytes", (json_int_t)bytes,
                                          "curve", false, "goodput", row->goodput, "raw", row->raw,
                                          "ratio", row->goodput / row->raw, "round_trip",
                                          row->round_trip, "raw_round_trip", row->raw_round_trip,
                                          "cpu", row->cpu, "raw_cpu", row->raw_cpu));
    if (!args->json) {
        printf("%-9s  %8zu  %6.2f  %8.2f  %5.2f  %7.0f  %6.0f  %9.2f  %6.2f\n", transport, bytes,
               1e-9 * row->goodput, 1e-9 * row->raw, row->goodput / row->raw, 1e6 * row->round_trip,
               1e6 * row->raw_round_trip, row->cpu, row->raw_cpu);
        fflush(stdout);
    }
}

static int run_all(const args_t *args, json_t *rows, hx_fault_t *fault)
{
    if (!args->json) {
        puts("transport     bytes    GB/s  raw GB/s  ratio  64 B us  raw us  CPU s/GB  raw");
    }
    for (uint32_t transport = 0; transport < args->transports.count; transport++) {
        for (uint32_t size = 0; size < args->sizes.count; size++) {
            const char *const name = args->transports.names[transport];
            row_t row;
            const int status = measure(args, name, args->sizes.bytes[size], &row, fault);
            if (status != EXIT_DONE) {
                return status;
            }
            report(args, name, args->sizes.bytes[size], &row, rows);
        }
    }
    return EXIT_DONE;
}

static bool parse(int argc, char **argv, args_t *args, options_t *options)
{
    const option_t list[] = {
        {"sizes", 0, OPTION_TEXT, "LIST", "bytes of a payload (4K,64K,1M,4M)", &args->sizes_text},
        {"transport", 0, OPTION_TEXT, "LIST", "tcp, ipc or both (tcp,ipc)", &args->transports_text},
        {"seconds", 0, OPTION_REAL, "S", "of each measurement (0.5)", &args->seconds},
        {"repeats", 0, OPTION_COUNT, "N", "measurements of each row, of which the median (3)",
         &args->repeats},
        {"json", 0, OPTION_FLAG, NULL, "one object on standard output", &args->json},
    };
    const options_spec_t spec = {
        .program = "harmony-bench net",
        .summary =
            "Two nodes of this software in one process send each other payloads, 8 under "
            "way, each answered by one of the same size; every byte is read on both sides. "
            "Beside it, in turn: plain libzmq with the same sizes. Goodput counts payload "
            "bytes of both directions; CPU is what all threads computed for each of them, "
            "which a busy machine changes less. Without encryption only: keys come with a later "
            "version.",
        .operands = "",
        .options = list,
        .options_count = HX_COUNT(list),
        .examples = "  harmony-bench net\n  harmony-bench net --sizes 1M --repeats 5 --json\n",
    };
    if (!options_parse(&spec, argc, argv, options)) {
        return false;
    }
    hx_fault_t fault = {{0}};
    if (args->repeats > REPEATS_MAX || args->seconds < 0.01) {
        options->status =
            options_refuse(&spec, "--repeats is 1 to %u, --seconds at least 0.01", REPEATS_MAX);
    } else if (bench_sizes_parse(args->sizes_text, SIZE_MIN, WIRE_PAYLOAD_MAX, &args->sizes,
                                 &fault) != HX_OK ||
               bench_transports_parse(args->transports_text, &args->transports, &fault) != HX_OK) {
        options->status = options_refuse(&spec, "%s", fault.text);
    } else {
        options->quiet++;  // What nodes say of themselves is no news here.
        return options_log(options, "bench", NULL);
    }
    options_destroy(options);
    return false;
}

int bench_net(int argc, char **argv)
{
    args_t args = {
        .sizes_text = "4K,64K,1M,4M", .transports_text = "tcp,ipc", .seconds = 0.5, .repeats = 3};
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
        fprintf(stderr, "harmony-bench net: %s\n", fault.text);
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
