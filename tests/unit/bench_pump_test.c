// bench_pump: what it counts, in virtual time.

#include "bench/bench_pump.h"

#include <criterion/criterion.h>
#include <stdio.h>

#include "bench/sim.h"

#define ECHO ((node_id_t)1)
#define PUMP ((node_id_t)2)

Test(bench_pump, a_round_trip_is_two_latencies_and_goodput_counts_both_directions)
{
    static bench_pump_t pump;
    bench_echo_t echo;
    bench_echo_init(&echo, 1000);
    bench_pump_init(&pump,
                    &(bench_pump_conf_t){
                        .echo = ECHO, .trips = 5, .bytes = 1000, .in_flight = 4, .seconds = 1});
    snprintf(pump.control, sizeof pump.control, "echo");
    snprintf(pump.data, sizeof pump.data, "echo");
    sim_t *sim = sim_new(&(sim_conf_t){
        .seed = 1, .latency_min = HX_MS(1), .latency_max = HX_MS(1), .dead_after = HX_SEC(9)});
    sim_add(sim, "echo", ECHO, bench_echo_step, &echo, NULL, NULL, 0);
    sim_add(sim, "pump", PUMP, bench_pump_step, &pump, NULL, NULL, 0);
    cr_assert(sim_run(sim, HX_SEC(60)));
    cr_assert_eq(sim_status(sim, PUMP, NULL), 0);
    cr_assert_eq(sim_status(sim, ECHO, NULL), 0);
    cr_assert_eq(pump.trips_done, 5);
    for (uint32_t at = 0; at < 5; at++) {
        cr_assert_float_eq(pump.trip_seconds[at], 2e-3, 1e-5);
    }
    // Four answers of 1000 bytes, and four requests, every 2 ms.
    cr_assert_float_eq(pump.goodput, 4e6, 2e4);
    cr_assert_eq(pump.sum, echo.sum, "both read every word of what came, and the same came");
    sim_destroy(&sim);
    bench_pump_clear(&pump);
    bench_echo_clear(&echo);
}

Test(bench_pump, a_signal_or_a_lost_peer_ends_it)
{
    static bench_pump_t pump;
    bench_echo_t echo;
    bench_echo_init(&echo, 1000);
    bench_pump_init(&pump,
                    &(bench_pump_conf_t){
                        .echo = ECHO, .trips = 5, .bytes = 1000, .in_flight = 4, .seconds = 1});
    snprintf(pump.control, sizeof pump.control, "echo");
    snprintf(pump.data, sizeof pump.data, "echo");
    sim_t *sim = sim_new(&(sim_conf_t){
        .seed = 1, .latency_min = HX_MS(1), .latency_max = HX_MS(1), .dead_after = HX_SEC(1)});
    sim_add(sim, "echo", ECHO, bench_echo_step, &echo, NULL, NULL, 0);
    sim_add(sim, "pump", PUMP, bench_pump_step, &pump, NULL, NULL, 0);
    sim_signal(sim, ECHO, HX_MS(200));
    sim_lose(sim, ECHO, HX_MS(300));
    cr_assert(sim_run(sim, HX_SEC(60)));
    cr_assert_eq(sim_status(sim, ECHO, NULL), 130);
    cr_assert_eq(sim_status(sim, PUMP, NULL), 1);
    sim_destroy(&sim);
    bench_pump_clear(&pump);
    bench_echo_clear(&echo);
}

Test(bench_pump, a_touch_reads_whole_words)
{
    const uint64_t words[] = {1, 2, 3};
    blob_t *blob = blob_copy(words, sizeof words);
    cr_assert_eq(bench_touch(blob), 6);
    blob_release(&blob);
    blob = blob_virtual(100);
    cr_assert_eq(bench_touch(blob), 0);
    blob_release(&blob);
}
