// lead_jobs - what the lead has done for it outside of its loop: its journal on the disk.
//
// Runs in the job thread of the lead's node, one job at a time. [io]

#ifndef LEAD_JOBS_H
#define LEAD_JOBS_H

#include "net/step.h"
#include "server/lead.h"

typedef struct lead_jobs lead_jobs_t;

// `directory` is the run's folder; it exists when the lead's first job asks for the journal in it.
lead_jobs_t *lead_jobs_new(const char *directory);
void lead_jobs_destroy(lead_jobs_t **self_p);

// The node's job function: see lead_job_t for what each kind does. With a failure the result is the
// line that says what and how to mend it.
hx_err_t lead_jobs_run(void *self, step_job_t *job, blob_t **result_p);

#endif
