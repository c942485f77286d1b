// sched_jobs - the scheduler's jobs: the files of a run (metrics.jsonl, plan.json, trace.json,
// summary.json). [io]
//
// metrics.jsonl grows line by line and goes on where a resumed run left it; the others are written
// beside their place and renamed when they are whole.

#ifndef SCHED_JOBS_H
#define SCHED_JOBS_H

#include "net/step.h"
#include "scheduler/dashboard.h"

typedef struct sched_jobs sched_jobs_t;

// Makes the folder and its `log` folder, with parents, and holds the folder's lock until destroy:
// nothing is written beside another scheduler. `folder` may be NULL: a scheduler that only plans
// writes no file. HX_E_IO and a line that names the path; HX_E_PEER and a line that names the
// holder.
HX_MUST_USE hx_err_t sched_jobs_open(const char *folder, sched_jobs_t **out, hx_fault_t *fault);
void sched_jobs_destroy(sched_jobs_t **self);

// Where SCHED_JOB_PAGE goes; borrowed until destroy. Before any job.
void sched_jobs_show_at(sched_jobs_t *self, dashboard_t *dashboard);

// The node's job function, over sched_jobs_t: see sched_job_kind_t.
hx_err_t sched_jobs_run(void *self, step_job_t *job, blob_t **result);

#endif
