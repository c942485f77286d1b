// sim_learn - real tensors under the simulator: the jobs of shards and workers really run, in no
// virtual time, so the loss of a run in virtual time is exact, and the same for the same seed.
//
// How long a job would have taken is still sim_jobs' to say. Validation costs no virtual time
// either: each evaluated version is read from the shards as it stands.

#ifndef SIM_LEARN_H
#define SIM_LEARN_H

#include "bench/sim_jobs.h"
#include "tensor/optim.h"
#include "worker/data.h"

typedef struct {
    const data_t *data;  // Borrowed, as model and blocks.
    const model_t *model;
    const blocks_t *blocks;
    optim_conf_t optim;
    uint64_t seed;          // Of weights and of the order of rows.
    uint32_t valid_rows;    // Held-out rows of an evaluation.
    uint64_t valid_tokens;  // An evaluation after every so many tokens.
} sim_learn_conf_t;

// The model's validation loss as of a commit.
typedef struct {
    double seconds;  // Virtual, since training began.
    uint64_t tokens;
    uint64_t commits;
    double loss;  // Nats per token.
} sim_point_t;

typedef struct sim_learn sim_learn_t;

sim_learn_t *sim_learn_new(const sim_learn_conf_t *conf);
void sim_learn_destroy(sim_learn_t **self_p);

// Gives a worker's or a shard's work real jobs. Shards before the first commit.
void sim_learn_worker(sim_learn_t *self, sim_work_t *work);
void sim_learn_shard(sim_learn_t *self, sim_work_t *work, uint64_t block_size);

// Version `commits` is the one that all shards are at, with so many tokens applied; it became that
// at `seconds`. Evaluates it if that is due, or `last`.
void sim_learn_version(sim_learn_t *self, double seconds, uint64_t tokens, uint64_t commits,
                       bool last);

// All evaluations so far; they live until sim_learn_destroy.
const sim_point_t *sim_learn_points(const sim_learn_t *self, uint32_t *count);

#endif
