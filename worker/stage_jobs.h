// stage_jobs - the job function of a worker: worker_job.h on real tensors.
//
// Holds the stage, which microbatch lies in which activation set, the stash of messages that wait
// for their operation, and the attempt whose gradients are being summed. One thread at a time.
// It does not measure (WORKER_JOB_PROFILE is the program's) and does not stretch time.

#ifndef STAGE_JOBS_H
#define STAGE_JOBS_H

#include "net/step.h"
#include "worker/data.h"
#include "worker/inner.h"
#include "worker/stage.h"
#include "worker/worker_job.h"

typedef struct {
    hx_backend_t *backend;  // All borrowed until stage_jobs_destroy.
    const model_t *model;
    const blocks_t *blocks;
    const data_t *data;
    uint64_t order_seed;
    uint64_t memory;            // Bytes that a stage may reserve; 0: what the backend gives.
    const inner_conf_t *inner;  // Steps of its own between pull and push; NULL: none. Borrowed.
} stage_jobs_conf_t;

typedef struct stage_jobs stage_jobs_t;

stage_jobs_t *stage_jobs_new(const stage_jobs_conf_t *conf);
void stage_jobs_destroy(stage_jobs_t **self_p);

// Runs a job. `*result` gets a new blob or NULL. On a failure the worker cannot go on and `fault`
// (may be NULL) has a line. HX_E_NOMEM: OPEN. HX_E_ARG: a token outside the vocabulary. HX_E_IO:
// the device.
HX_MUST_USE hx_err_t stage_jobs_run(stage_jobs_t *self, step_job_t *job, blob_t **result,
                                    hx_fault_t *fault);

#endif
