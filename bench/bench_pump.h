// bench_pump - two small roles that send each other bytes as fast as they can: what harmony-bench
// net measures.
//
// The pump first times single round trips, then keeps a number of messages under way, each
// answered by the echo with as many bytes; both read every byte that comes. Pure roles, like those
// of the daemons.

#ifndef BENCH_PUMP_H
#define BENCH_PUMP_H

#include "net/step.h"

#define BENCH_PUMP_TRIPS_MAX 4096u
#define BENCH_PUMP_TRIP_BYTES 64u

typedef struct {
    node_id_t echo;      // Whom to dial.
    uint32_t trips;      // Round trips to time first, at most BENCH_PUMP_TRIPS_MAX.
    size_t bytes;        // Of one payload.
    uint32_t in_flight;  // Messages that wait for their answer.
    double seconds;      // To measure, after a tenth of it as warm-up.
} bench_pump_conf_t;

typedef struct {
    bench_pump_conf_t conf;
    char control[PLAN_ENDPOINT_MAX];  // Of the echo. Set before the first step.
    char data[PLAN_ENDPOINT_MAX];     // Likewise.
    int stage;
    blob_t *small;
    blob_t *large;
    double trip_seconds[BENCH_PUMP_TRIPS_MAX];  // Of each round trip.
    uint32_t trips_done;
    hx_time_t sent_at;
    hx_time_t warm_at;
    hx_time_t started_at;
    uint64_t answers;  // Since then.
    uint32_t in_flight;
    double goodput;  // The result: payload bytes a second, both directions added.
    uint64_t sum;    // Of all words that came, so that none goes unread.
} bench_pump_t;

void bench_pump_init(bench_pump_t *self, const bench_pump_conf_t *conf);
void bench_pump_clear(bench_pump_t *self);
// A step_fn. It ends, and tells the echo to end, when it has measured.
void bench_pump_step(void *self, const step_in_t *in, step_out_t *out);

typedef struct {
    blob_t *small;
    blob_t *large;
    uint64_t sum;
} bench_echo_t;

void bench_echo_init(bench_echo_t *self, size_t bytes);
void bench_echo_clear(bench_echo_t *self);
void bench_echo_step(void *self, const step_in_t *in, step_out_t *out);

// A blob of `size` bytes that are not all alike.
blob_t *bench_bytes(size_t size);
// Reads all of it, as a user of the bytes would: the sum of its 64-bit words (0 if it is virtual).
uint64_t bench_touch(const blob_t *blob);

#endif
