// shard_jobs - runs a shard's jobs on its store: what ps_shard.h names, done.
//
// Everything here happens in the shard's job thread.

#ifndef SHARD_JOBS_H
#define SHARD_JOBS_H

#include "net/step.h"
#include "server/ps_store.h"

typedef struct {
    const model_t *model;  // Borrowed for the life of the object.
    uint64_t block_size;
    optim_conf_t optim;
    uint64_t seed;
    int threads;  // Of the arithmetic; 0: as many as the process may run on.
} shard_jobs_conf_t;

typedef struct shard_jobs shard_jobs_t;

shard_jobs_t *shard_jobs_new(const shard_jobs_conf_t *conf);
void shard_jobs_destroy(shard_jobs_t **self_p);

// The node's job function: see shard_job_t for what each kind does.
hx_err_t shard_jobs_run(void *self, step_job_t *job, blob_t **result_p);

#endif
