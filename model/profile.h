// profile - what one device measured: time of each kind of layer, memory; and what a link measured.
//
// Seconds are those of the worker as the plan will see it, slowdown included. Identical layers are
// measured once: embedding, one block, head.

#ifndef PROFILE_H
#define PROFILE_H

#include "model/plan.h"

typedef struct {
    double forward;   // Seconds of one microbatch.
    double backward;  // Likewise, input and weight gradient together.
} profile_time_t;

typedef struct {
    uint32_t microbatch;  // Rows at which the times were taken.
    profile_time_t embed;
    profile_time_t block;
    profile_time_t head;
    uint64_t memory;  // Bytes that the stage may use.
    uint32_t threads;
    double slowdown;  // At least 1: what the times were stretched by.
} profile_t;

typedef struct {
    node_id_t from;
    node_id_t to;
    double latency;    // Seconds one way.
    double bandwidth;  // Bytes per second.
} profile_link_t;

// Time of layers [first, end) on this device for one microbatch.
profile_time_t profile_layers(const profile_t *self, const model_t *model, uint32_t first,
                              uint32_t end);
// The same device as its conf declares it: times from the layers' flops at a nominal rate for each
// thread, times the slowdown. Two runs of one conf then plan alike, where measured times would
// differ in the last digits.
profile_t profile_declared(const profile_t *self, const model_t *model);
// Finite, positive, within bounds: what came from a peer is checked before use.
bool profile_valid(const profile_t *self);
bool profile_link_valid(const profile_link_t *self);

#endif
