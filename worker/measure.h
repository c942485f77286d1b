// measure - latency and bandwidth of a line, by probes that the other side answers.
//
// A small pure part of a worker: lines are measured one after the other. First MEASURE_SMALL probes
// without bytes, whose median round trip is twice the latency; then MEASURE_LARGE probes of
// MEASURE_SIZE bytes, whose median time beyond the small ones gives the bandwidth. Each probe waits
// for the answer to the one before. A line without an answer for MEASURE_TIMEOUT is reported as
// failed.

#ifndef MEASURE_H
#define MEASURE_H

#include "net/step.h"

#define MEASURE_LINES_MAX 256u  // That wait their turn.
#define MEASURE_SMALL 5u
#define MEASURE_LARGE 4u
#define MEASURE_SIZE (256u * 1024u)
#define MEASURE_TIMEOUT HX_SEC(5)

typedef struct {
    node_id_t node;
    char data[PLAN_ENDPOINT_MAX];
} measure_line_t;

typedef struct {
    measure_line_t *lines;  // A queue; the first is being measured.
    uint32_t lines_count;
    uint32_t sent;                                   // Probes of this line so far.
    uint32_t number;                                 // Of the last probe, over all lines.
    bool waiting;                                    // For its answer,
    hx_time_t sent_at;                               // sent then.
    hx_time_t times[MEASURE_SMALL + MEASURE_LARGE];  // Round trips.
} measure_t;

void measure_init(measure_t *self);
void measure_clear(measure_t *self);

// MEASURE arrived: dials the node, and begins if no other line is being measured.
void measure_ask(measure_t *self, const step_in_t *in, step_out_t *out);
// PROBED arrived. Answers that nobody waits for are dropped.
void measure_answer(measure_t *self, const step_in_t *in, step_out_t *out);
// The peer is gone.
void measure_lost(measure_t *self, node_id_t peer, hx_time_t now, step_out_t *out);
// To be called in every step: timeouts, and the next wake-up.
void measure_tick(measure_t *self, hx_time_t now, step_out_t *out);

#endif
