// keeper_jobs - runs a keeper's jobs on files: what keeper.h names, done.
//
// Everything here happens in the keeper's job thread.

#ifndef KEEPER_JOBS_H
#define KEEPER_JOBS_H

#include "net/step.h"
#include "server/checkpoint.h"

typedef struct {
    const model_t *model;  // Borrowed for the life of the object.
    uint64_t block_size;
    uint64_t seed;
    uint32_t moments;       // Arrays beside the weights.
    const char *optimizer;  // Borrowed.
    const char *run;        // The run's folder. Borrowed.
    const char *resume;     // The checkpoint folder that the node registered; "" if none. Borrowed.
    const char *init;       // model.init; "" if none. Borrowed.
    uint32_t keep;          // Whole checkpoints that stay.
} keeper_jobs_conf_t;

typedef struct keeper_jobs keeper_jobs_t;

keeper_jobs_t *keeper_jobs_new(const keeper_jobs_conf_t *conf);
// Gives up a checkpoint that is under way, and the folder's lock.
void keeper_jobs_destroy(keeper_jobs_t **self_p);

// The node's job function: see keeper_job_t for what each kind does.
hx_err_t keeper_jobs_run(void *self, step_job_t *job, blob_t **result_p);

#endif
