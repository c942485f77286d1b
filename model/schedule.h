// schedule - in which order one stage of a pipeline runs its forwards and backwards.
//
// A schedule is an array of operations. The worker walks it, the planner prices it, the simulator
// times it: one generator for all three. Pure.
//
// An operation waits for its message: a forward for the activation of that microbatch from the
// stage before, a backward for its gradient from the stage behind. Messages are bounded by credits:
// how many may be on the way, or arrived and not yet taken, on one boundary in one direction.

#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "tensor/hx.h"

#define SCHEDULE_STAGES_MAX 1024u
#define SCHEDULE_MICROS_MAX 65536u

typedef enum {
    SCHEDULE_GPIPE,  // All forwards, then all backwards. Depth: all microbatches.
    SCHEDULE_1F1B,   // Depth of stage s: stages - s.
    SCHEDULE_H1F1B,  // As 1f1b, with the depths that the plan gives, to hide slow links.
    SCHEDULE_ZB,     // As h1f1b, with the backward in two parts; weight parts come later.
    SCHEDULE_KINDS_COUNT
} schedule_kind_t;

typedef enum {
    SCHEDULE_FORWARD,
    SCHEDULE_BACKWARD,         // Both parts.
    SCHEDULE_BACKWARD_INPUT,   // The gradient that the stage before waits for.
    SCHEDULE_BACKWARD_WEIGHT,  // The gradient of the parameters.
} schedule_op_kind_t;

typedef struct {
    schedule_op_kind_t kind;
    uint32_t micro;  // From 0.
} schedule_op_t;

typedef struct {
    schedule_kind_t kind;
    uint32_t stage;
    uint32_t stages;
    uint32_t micros;         // From 1.
    const uint32_t *depths;  // In flight at most, of every stage; h1f1b and zb only, NULL: as 1f1b.
} schedule_in_t;

// "gpipe", "1f1b", "h1f1b", "zb".
const char *schedule_kind_name(schedule_kind_t kind);
bool schedule_kind_find(const char *name, schedule_kind_t *kind);

// How many microbatches this stage may have between their forward and their (input) backward: at
// least 1, at most micros, never more than the stage before it (the rule that keeps h1f1b from
// deadlock).
uint32_t schedule_depth(const schedule_in_t *in, uint32_t stage);

// Messages that may be under way on the boundary between `stage` and `stage` + 1: activations
// forward, max(1, depth of stage - depth of stage + 1); gradients backward, the depth of `stage`.
uint32_t schedule_credit_forward(const schedule_in_t *in, uint32_t stage);
uint32_t schedule_credit_backward(const schedule_in_t *in, uint32_t stage);

// Room that schedule_make needs in `out`, in operations.
uint32_t schedule_ops_max(const schedule_in_t *in);

// Writes the stage's operations, returns how many.
uint32_t schedule_make(const schedule_in_t *in, schedule_op_t *out);

// The most activation sets alive at once when `ops` run in order: a set lives from its forward to
// the end of its backward, or of its backward's weight part where that comes apart. Equal to the
// stage's depth, except zb: there, since weight parts wait, to the depth of the first stage.
uint32_t schedule_peak(const schedule_op_t *ops, uint32_t ops_count);

// Depths for h1f1b, from the last stage forwards, all times in one unit:
//
//     N_s = N_(s+1) + own_s + ceil(2 hop_s / t_max), the ceil left out where hop_s < 2 % of t_max
//     own_s = max(1, ceil(latency_s / t_max)),  N_last = own_last
//
// then N_s <= caps[s], then from the first stage on N_(s+1) <= N_s. hop[s] is the time of a message
// between stage s and s + 1 (stages - 1 of them); t_max the interval of the slowest stage, forward
// and backward of one microbatch; latency[s] the same for one device of the stage, larger than the
// interval where a patch rotates (NULL: own is 1); caps[s] the most sets that fit in memory (NULL:
// no limit).
typedef struct {
    uint32_t stages;
    const double *hop;
    const double *latency;
    const uint32_t *caps;
    double t_max;
} schedule_times_t;
void schedule_depths(const schedule_times_t *times, uint32_t *depths);

#endif
