// price - how long a lease takes on one pipeline: the schedule's lists run in virtual time.
//
// The lists are those that workers walk (model/schedule.h). A stage runs one operation at a time; a
// message occupies its line (one a boundary and direction) for its bytes, then arrives after the
// latency; sending does not stop computing. Half of a backward is its input part, half its weight
// part.

#ifndef PRICE_H
#define PRICE_H

#include "model/schedule.h"
#include "tensor/hx.h"

typedef struct {
    schedule_kind_t schedule;
    uint32_t stages;
    uint32_t rows;           // Of the lease,
    uint32_t microbatch;     // and of a microbatch; the last one may be smaller.
    const uint32_t *depths;  // Of every stage.
    const double *forward;   // Seconds of one full microbatch, per stage.
    const double *backward;
    const double
        *line;  // Seconds that a full message occupies the line behind each stage (stages - 1),
    const double *line_back;  // and of its gradient.
    const double *latency;    // Seconds one way, of each line.
    const double *push;       // Seconds of a stage to push its gradients, and
    const double *pull;       // to pull its parameters.
    double round;             // Seconds of a commit.
    bool overlap;             // The next lease is granted before this one is over.
} price_in_t;

typedef struct {
    double lease;   // From the first forward to the last backward.
    double paced;   // From one lease to the next, by computing and waiting for pulls,
    double bound;   // and by the lines that pushes and pulls need; with overlap alone.
    double period;  // The larger: from one lease to the next when they follow one another for long.
    double busy;    // Fraction of the stages' time within a period in which they compute.
} price_t;

// Without overlap a period is the lease, the pushes, the round and the pulls, one after the other.
// With it, leases follow one another on each stage; a stage pulls from its last forward of the
// lease before, and its pushes and pulls together need their time on the line.
price_t price_lease(const price_in_t *in);

#endif
