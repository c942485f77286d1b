// sim_jobs - how long the roles' jobs take in the simulator, and what they give back.
//
// Tensors are virtual blobs (a size without bytes); control data (profiles, votes) are real bytes,
// so the roles run as they do in a daemon; unless the work has real jobs (bench/sim_learn.h). Times
// are drawn around a speed, with jitter, rare hiccups and phases in which a device is slow.

#ifndef SIM_JOBS_H
#define SIM_JOBS_H

#include "bench/sim.h"
#include "model/blocks.h"
#include "server/ps_shard.h"

// Runs a job for real, in no virtual time.
typedef hx_err_t sim_real_fn(void *jobs, step_job_t *job, blob_t **result);

typedef struct {
    const model_t *model;
    const blocks_t *blocks;
    sim_real_fn *run;  // NULL: tensors are virtual.
    void *jobs;
    double flops;             // Per second.
    double jitter;            // A job takes 1 + jitter x (0..1) times its time.
    double hiccup_chance;     // Chance that a job takes
    double hiccup_factor;     // this many times its time.
    double phase_gap;         // Workers: mean seconds of computing between slow phases (0: none),
    double phase_length;      // mean seconds of one,
    double phase_factor;      // in which all takes so many times its time.
    uint64_t phases;          // Begun so far, slow and others.
    bool slow;                // In such a phase now,
    double phase_left;        // for so many seconds of computing.
    double busy;              // Workers: seconds computed so far.
    uint32_t blanks;          // Tokens of each row that have no target.
    double nonfinite;         // Chance that a part holds a value that is not finite.
    double save_failure;      // Chance that a checkpoint cannot be written.
    const ps_shard_t *shard;  // Shards only.
    uint32_t layer_first;     // Of a worker's stage; its OPEN job sets it.
} sim_work_t;

// Real tensors of a whole cluster (bench/sim_learn.h), as the simulator knows them.
typedef struct {
    void *self;
    uint32_t arrays;  // Of a block: 1 + the optimizer's moments.
    // Gives a worker's or a shard's work its real jobs. Shards before the first commit.
    void (*worker)(void *self, sim_work_t *work);
    void (*shard)(void *self, sim_work_t *work);
    // All shards are at version `commits`, with so many tokens applied, `seconds` after training
    // began; `last`: and will stay there.
    void (*version)(void *self, double seconds, uint64_t tokens, uint64_t commits, bool last);
} sim_real_t;

// One for each role: all are sim_job_fn with a sim_work_t as `worker`.
hx_err_t sim_worker_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                        hx_time_t *duration);
hx_err_t sim_shard_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                       hx_time_t *duration);
hx_err_t sim_keeper_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                        hx_time_t *duration);
// The lead's journal and the scheduler's files: short, without results.
hx_err_t sim_file_job(void *worker, step_job_t *job, blob_t **result, hx_rng_t *rng,
                      hx_time_t *duration);

#endif
