// lead_jobs: the lead's journal, as its jobs write it.

#include "server/journal.h"
#include "server/lead_jobs.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];
static char path[96];

static void set_up(void)
{
    snprintf(folder, sizeof folder, "/tmp/lead-jobs-test-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/journal", folder);
}

static void tear_down(void)
{
    unlink(path);
    rmdir(folder);
}

TestSuite(lead_jobs, .init = set_up, .fini = tear_down);

static uint64_t open_at(lead_jobs_t *jobs, uint64_t version, uint64_t history)
{
    step_job_t job = {.kind = LEAD_JOB_OPEN, .version = version, .attempt = history};
    blob_t *result = NULL;
    cr_assert_eq(lead_jobs_run(jobs, &job, &result), HX_OK);
    cr_assert_null(result);
    return job.attempt;
}

static void write_version(lead_jobs_t *jobs, uint64_t history, uint64_t version)
{
    const record_t record = {.history = history, .version = version};
    step_job_t job = {
        .kind = LEAD_JOB_JOURNAL, .version = version, .blob = payload_record_encode(&record)};
    blob_t *result = NULL;
    cr_assert_eq(lead_jobs_run(jobs, &job, &result), HX_OK);
    blob_release(&job.blob);
}

Test(lead_jobs, fresh_run_begins_with_history_zero)
{
    lead_jobs_t *jobs = lead_jobs_new(folder);
    cr_assert_eq(open_at(jobs, 0, 0), 0);
    write_version(jobs, 0, 1);
    write_version(jobs, 0, 2);
    lead_jobs_destroy(&jobs);
    cr_assert_null(jobs);
    journal_state_t state;
    cr_assert_eq(journal_each(path, NULL, NULL, &state, NULL), HX_OK);
    cr_assert_eq(state.records, 2);
}

Test(lead_jobs, going_back_begins_a_new_history)
{
    lead_jobs_t *jobs = lead_jobs_new(folder);
    open_at(jobs, 0, 0);
    for (uint64_t version = 1; version <= 5; version++) {
        write_version(jobs, 0, version);
    }
    cr_assert_eq(open_at(jobs, 5, 0), 0, "nothing is above");
    cr_assert_eq(open_at(jobs, 3, 0), 1, "versions 4 and 5 are void");
    write_version(jobs, 1, 3);
    write_version(jobs, 1, 4);
    cr_assert_eq(open_at(jobs, 4, 1), 1);
    cr_assert_eq(open_at(jobs, 4, 0), 1, "the history of version 4 is the newer one");
    cr_assert_eq(open_at(jobs, 0, 0), 2, "a fresh run in an old folder");
    lead_jobs_destroy(&jobs);
}

static void write_settings(lead_jobs_t *jobs, uint64_t history, uint64_t version, uint64_t serial)
{
    setting_t setting = {.key = "sync.staleness"};
    snprintf(setting.value, sizeof setting.value, "%u", (unsigned)serial);
    const record_t record = {.history = history,
                             .version = version,
                             .settings_serial = serial,
                             .settings = &setting,
                             .settings_count = 1};
    step_job_t job = {.kind = LEAD_JOB_JOURNAL,
                      .version = version,
                      .flags = 1,
                      .blob = payload_record_encode(&record)};
    blob_t *result = NULL;
    cr_assert_eq(lead_jobs_run(jobs, &job, &result), HX_OK);
    blob_release(&job.blob);
}

// The settings that the journal gives at its opening; 0: none.
static uint64_t serial_at(lead_jobs_t *jobs, uint64_t version)
{
    step_job_t job = {.kind = LEAD_JOB_OPEN, .version = version};
    blob_t *result = NULL;
    record_t record = {0};
    cr_assert_eq(lead_jobs_run(jobs, &job, &result), HX_OK);
    cr_assert(!result || payload_record_decode(result, &record) == HX_OK);
    blob_release(&result);
    const uint64_t serial = record.settings_serial;
    record_destroy(&record);
    return serial;
}

// What was set after the checkpoint that the run goes back to stays set; what was set in a run
// that was begun anew since does not.
Test(lead_jobs, newest_settings_of_the_last_history_come_back)
{
    lead_jobs_t *jobs = lead_jobs_new(folder);
    cr_assert_eq(serial_at(jobs, 0), 0);
    write_version(jobs, 0, 1);
    write_settings(jobs, 0, 1, 1);
    write_version(jobs, 0, 2);
    write_settings(jobs, 0, 1, 2);
    write_version(jobs, 0, 3);
    cr_assert_eq(serial_at(jobs, 1), 2);
    write_version(jobs, 1, 0);
    cr_assert_eq(serial_at(jobs, 0), 0);
    lead_jobs_destroy(&jobs);
}

Test(lead_jobs, failure_has_a_line)
{
    lead_jobs_t *jobs = lead_jobs_new("/nonexistent");
    step_job_t job = {.kind = LEAD_JOB_OPEN};
    blob_t *result = NULL;
    cr_assert_eq(lead_jobs_run(jobs, &job, &result), HX_E_IO);
    cr_assert(result);
    cr_assert(memmem(blob_data(result), blob_size(result), "/nonexistent/journal", 20));
    blob_release(&result);
    lead_jobs_destroy(&jobs);
}
