// trace - a bounded ring of spans: what a worker did, when, for which microbatch of which attempt.
//
// Pure. The ring keeps the newest spans; what it had to forget is counted. It is written as lines
// of Chrome's trace format (each a JSON object of phase "X", times in microseconds), which the
// scheduler joins into trace.json.

#ifndef TRACE_H
#define TRACE_H

#include "net/blob.h"

typedef enum {
    TRACE_FORWARD,
    TRACE_BACKWARD,
    TRACE_SEND,  // From the end of a job to the hand-over of its tensor to the link.
    TRACE_WAIT,  // The stage had nothing to run until a message came.
    TRACE_PUSH,  // From PUSH to ACK, one block.
    TRACE_PULL,  // From the first PULL of a lease to its last VALUE.
    TRACE_KINDS_COUNT,
} trace_kind_t;

typedef struct {
    trace_kind_t kind;
    uint32_t micro;  // PUSH: the block.
    uint64_t attempt;
    hx_time_t begin;
    hx_time_t end;
} trace_span_t;

typedef struct trace trace_t;

// A ring of `room` spans, at least 1.
trace_t *trace_new(uint32_t room);
void trace_destroy(trace_t **self_p);

// Adds a span. An end before its beginning counts as the beginning.
void trace_add(trace_t *self, const trace_span_t *span);

uint32_t trace_count(const trace_t *self);                          // Spans in the ring.
uint64_t trace_forgotten(const trace_t *self);                      // Spans that had to go.
const trace_span_t *trace_at(const trace_t *self, uint32_t index);  // From the oldest.

// "forward"
const char *trace_kind_name(trace_kind_t kind);

// All spans, oldest first, one JSON object a line, each line ended by a newline. `pid` and `tid`
// are `name` (escaped as JSON asks), so a viewer shows one track a worker. NULL if there is no
// span.
blob_t *trace_write(const trace_t *self, const char *name);

#endif
