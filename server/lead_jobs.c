// lead_jobs - opens the journal once and appends to it.

#include "server/lead_jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/journal.h"
#include "tensor/hx_log.h"

struct lead_jobs {
    char path[4096];
    journal_t *journal;
};

lead_jobs_t *lead_jobs_new(const char *directory)
{
    lead_jobs_t *const self = hx_new(1, sizeof *self);
    const int size = snprintf(self->path, sizeof self->path, "%s/journal", directory);
    HX_ASSERT(size > 0 && (size_t)size < sizeof self->path);
    return self;
}

void lead_jobs_destroy(lead_jobs_t **self_p)
{
    lead_jobs_t *const self = *self_p;
    if (!self) {
        return;
    }
    *self_p = NULL;
    journal_destroy(&self->journal);
    free(self);
}

// Keeps the record whose settings are the newest of the last history.
static void take_newest(void *newest_p, uint64_t offset, const record_t *record)
{
    (void)offset;
    record_t *const newest = newest_p;
    const bool newer =
        record->history > newest->history ||
        (record->history == newest->history && record->settings_serial >= newest->settings_serial);
    if (newer) {
        record_destroy(newest);
        record_copy(record, newest);
    }
}

// Records above the version that this run starts from belong to a history that ends here.
static hx_err_t open_journal(lead_jobs_t *self, step_job_t *job, blob_t **result, hx_fault_t *fault)
{
    journal_state_t state = {0};
    journal_destroy(&self->journal);
    HX_TRY(journal_open(self->path, &self->journal, &state, fault));
    if (state.torn > 0) {
        hx_log_warn("%s: the last %" PRIu64
                    " bytes are a record that was not finished: cut off; %" PRIu64 " records stay",
                    self->path, state.torn, state.records);
    }
    const bool void_above = state.records > 0 && state.version > job->version;
    const uint64_t history = void_above ? state.history + 1 : state.history;
    job->attempt = HX_MAX(job->attempt, history);
    record_t newest = {0};
    HX_TRY(journal_each(self->path, take_newest, &newest, &state, fault));
    if (newest.settings_serial > 0) {
        *result = payload_record_encode(&newest);
    }
    record_destroy(&newest);
    return HX_OK;
}

hx_err_t lead_jobs_run(void *self_p, step_job_t *job, blob_t **result_p)
{
    lead_jobs_t *const self = self_p;
    hx_fault_t fault = {{0}};
    hx_err_t err = HX_OK;
    switch (job->kind) {
    case LEAD_JOB_OPEN:
        err = open_journal(self, job, result_p, &fault);
        break;
    case LEAD_JOB_JOURNAL:
        HX_ASSERT(self->journal);
        err = journal_append(self->journal, job->blob, &fault);
        break;
    default:
        HX_ASSERT(false && "a job of the lead");
    }
    if (err != HX_OK) {
        *result_p = blob_copy(fault.text, strlen(fault.text));
    }
    return err;
}
