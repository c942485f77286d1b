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
    model_conf_t model;   // That of the cluster, as is block_size.
    uint64_t block_size;  // Bytes.
    const data_t *data;   // Borrowed.
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

// For one cluster. To be destroyed after it.
sim_learn_t *sim_learn_new(const sim_learn_conf_t *conf);
void sim_learn_destroy(sim_learn_t **self_p);

// What the cluster's configuration takes; it lives as long as `self`.
const sim_real_t *sim_learn_real(const sim_learn_t *self);

// All evaluations so far; they live until sim_learn_destroy.
const sim_point_t *sim_learn_points(const sim_learn_t *self, uint32_t *count);

#endif
