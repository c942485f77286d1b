// sim_cluster - a whole run in the simulator: scheduler, servers (shards, lead, keeper) and
// workers, with the roles of the daemons, and a checker of the laws that every run must keep.

#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "bench/sim.h"
#include "bench/sim_jobs.h"
#include "server/lead.h"

#define SIM_WORKERS_MAX 64u
#define SIM_BLOCK_SIZE 4096u

typedef struct {
    sim_conf_t net;
    model_conf_t model;
    ssaw_conf_t ssaw;
    uint32_t servers;
    uint32_t shards;  // Of each server.
    uint32_t workers;
    double speeds[SIM_WORKERS_MAX];  // Relative; 1 is `flops`.
    double flops;
    double jitter;
    double hiccup_chance;
    double hiccup_factor;
    double phase_gap;  // Of workers, each by itself: as in sim_work_t.
    double phase_length;
    double phase_factor;
    uint32_t blanks;      // Tokens of each row that have no target.
    double nonfinite;     // Chance that a gradient part is not finite.
    double save_failure;  // Chance that a checkpoint cannot be written.
    uint32_t sites;       // Workers and servers are dealt to them in turn; at least 1.
    uint32_t pipelines;   // 0: as the planner likes.
    uint32_t microbatch;
    uint64_t tokens;  // Goal,
    double seconds;   // or this, virtual; 0: none.
    uint32_t checkpoint_every;
    uint32_t valid_every;
    const sim_real_t *real;     // Real tensors; NULL: virtual ones. Borrowed.
    optim_schedule_t schedule;  // With `real`.
    double clip;                // With `real`.
} sim_cluster_conf_t;

// What the checker saw of a run.
typedef struct {
    uint64_t commits;
    uint64_t rows;  // Committed.
    uint64_t tokens;
    uint32_t lag_max;
    uint64_t lag_sum;
    uint64_t contributions;
    uint64_t dropped;
    hx_time_t time;   // Virtual.
    double training;  // Seconds of it from the first grant to the last commit,
    double idle;      // and the part of them that workers did not compute.
    uint64_t messages;
    uint64_t trace_hash;
    int status;        // Of the scheduler.
    char reason[512];  // Likewise.
    char broken[512];  // The first law that was broken; empty: none.
} sim_report_t;

typedef struct sim_cluster sim_cluster_t;

// A cluster with these values, ready to run. `conf` is copied.
sim_cluster_t *sim_cluster_new(const sim_cluster_conf_t *conf);
void sim_cluster_destroy(sim_cluster_t **self);

// The simulator under it, for faults, and ids of its nodes for them.
sim_t *sim_cluster_sim(sim_cluster_t *self);
node_id_t sim_cluster_worker(const sim_cluster_t *self, uint32_t worker);
node_id_t sim_cluster_lead(const sim_cluster_t *self, uint32_t server);

// Runs to the end, or until `limit` of virtual time, and says what happened. Laws that are checked
// as the run goes on:
//
// - a row is committed at most once, and the books of every record have what was committed;
// - every record is what the rules make of its members (bench/commit_laws.h), and its norm that of
//   the votes;
// - a shard is never sent a COMMIT of v + 2 before all have applied v + 1;
// - no message goes where nobody dialled; the run ends before the limit.
void sim_cluster_run(sim_cluster_t *self, hx_time_t limit, sim_report_t *report);

// A random cluster, wholly drawn from `seed`: sizes, speeds, mode, delays, duplicates, failures of
// saving.
sim_cluster_conf_t sim_cluster_random(uint64_t seed);
// Misfortunes of that seed, before the run: some workers die (the first never), and some lines
// between a worker and a server are cut for less than it takes to be believed dead.
void sim_cluster_misfortunes(sim_cluster_t *self, uint64_t seed);

#endif
