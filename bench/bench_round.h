// bench_round - stands in for the lead and for workers, so that real shards are kept busy as in a
// run without any computing: what harmony-bench ps measures.
//
// A worker runs leases 0, 1, 2, ...: it pulls all blocks at the lease's base version, pushes a
// gradient of all blocks, and reports READY; while it pushes, it pulls for the next lease. Lease n
// has base n - 1 (0 for the first two), so it can be granted when round n - 2 is over: one lease
// runs while the round of the one before is decided. A round takes one contribution of each worker.
// Pure roles; every byte that comes is read, every block that goes is hashed.

#ifndef BENCH_ROUND_H
#define BENCH_ROUND_H

#include "bench/bench_boss.h"
#include "model/blocks.h"

#define BENCH_LEASES 4u  // Of one worker that may be open at once, and more.

// --- the lead ---

typedef struct {
    const model_t *model;
    uint32_t shards;
    uint32_t workers;
    // True: PREPARE, VOTE, COMMIT, so that shards sum and apply what was pushed. False: commits
    // without members, which drop what was pushed and change no number.
    bool apply;
    double seconds;  // To measure, after a tenth of it (and two rounds) as warm-up.
} bench_lead_conf_t;

// What was measured, over whole rounds. Each moves all blocks twice for each worker.
typedef struct {
    uint64_t rounds;
    double seconds;
    double vote_seconds;   // Of these: from PREPARE to the last VOTE,
    double apply_seconds;  // from COMMIT to the last APPLIED.
} bench_rounds_t;

typedef struct {
    bench_lead_conf_t conf;
    member_t member;
    uint64_t acks;                 // A bit for each shard, then each worker, that has the plan.
    uint64_t round;                // Running or next, from 0; it makes version round + 1.
    uint32_t ready[BENCH_LEASES];  // Contributions announced for rounds, by round % BENCH_LEASES.
    uint32_t answers;              // VOTEs or APPLIEDs of the running round.
    int stage;
    hx_time_t stage_at;
    hx_time_t warm_at;
    hx_time_t started_at;
    uint64_t started_round;
    uint64_t granted;  // Leases granted to each worker.
    bool measured;
    bench_rounds_t result;
} bench_lead_t;

void bench_lead_init(bench_lead_t *self, const bench_lead_conf_t *conf);
void bench_lead_clear(bench_lead_t *self);
void bench_lead_step(void *self, const step_in_t *in, step_out_t *out);

// --- a worker ---

typedef struct {
    const model_t *model;
    const blocks_t *blocks;  // Borrowed, as is the model.
    uint32_t index;          // Among the workers.
    uint32_t in_flight;      // Pulls, and pushes, that wait for an answer.
    bool virtual_bytes;      // Gradients without bytes, for the simulator.
} bench_worker_conf_t;

typedef struct {
    uint64_t attempt;
    uint64_t base;
} bench_lease_t;

// One of the two things that a worker does at once: it walks over all blocks, lease by lease.
typedef struct {
    uint64_t lease;  // Which it is at,
    uint32_t asked;  // and how many of its blocks have been asked or sent for,
    uint32_t done;   // and answered.
} bench_walk_t;

typedef struct {
    bench_worker_conf_t conf;
    member_t member;
    blob_t **gradients;  // One for each block.
    uint64_t *hashes;    // Of the gradients.
    bench_lease_t leases[BENCH_LEASES];
    uint64_t granted;  // Leases so far.
    bench_walk_t pull;
    bench_walk_t push;
    uint64_t sum;  // Of all words that came, so that none goes unread.
} bench_worker_t;

void bench_worker_init(bench_worker_t *self, const bench_worker_conf_t *conf);
void bench_worker_clear(bench_worker_t *self);
void bench_worker_step(void *self, const step_in_t *in, step_out_t *out);

#endif
