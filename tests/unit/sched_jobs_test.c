// sched_jobs_test - the files of a run, in a folder of their own.

#include "scheduler/sched_jobs.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scheduler/sched.h"

static char root[64];
static char folder[128];
static sched_jobs_t *jobs;

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/sched_jobs_XXXXXX");
    cr_assert(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/runs of mine/one", root);
    hx_fault_t fault = {{0}};
    cr_assert_eq(sched_jobs_open(folder, &jobs, &fault), HX_OK, "%s", fault.text);
}

static void tear_down(void)
{
    sched_jobs_destroy(&jobs);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(sched_jobs, .init = set_up, .fini = tear_down);

static char why[512];  // The result of the last job.

static hx_err_t run(step_job_t job, const char *text)
{
    blob_t *blob = blob_copy(text, strlen(text));
    blob_t *result = NULL;
    job.blob = blob;
    const hx_err_t err = sched_jobs_run(jobs, &job, &result);
    snprintf(why, sizeof why, "%.*s", (int)blob_size(result),
             result ? (const char *)blob_data(result) : "");
    blob_release(&result);
    blob_release(&blob);
    return err;
}

static char *content(const char *name)
{
    static char text[4096];
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *const file = fopen(path, "r");
    if (!file) {
        return NULL;
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

Test(sched_jobs, makes_the_folder_with_its_parents_and_log)
{
    char path[256];
    struct stat info;
    snprintf(path, sizeof path, "%s/log", folder);
    cr_assert(stat(path, &info) == 0 && S_ISDIR(info.st_mode));
    sched_jobs_destroy(&jobs);
    cr_assert_eq(sched_jobs_open(folder, &jobs, NULL), HX_OK, "twice is once");
}

Test(sched_jobs, a_folder_that_cannot_be_made_is_named)
{
    char path[256];
    snprintf(path, sizeof path, "%s/file", root);
    FILE *const file = fopen(path, "w");
    cr_assert(file);
    fclose(file);
    snprintf(path, sizeof path, "%s/file/run", root);
    hx_fault_t fault = {{0}};
    sched_jobs_t *none = NULL;
    cr_assert_eq(sched_jobs_open(path, &none, &fault), HX_E_IO);
    cr_assert(strstr(fault.text, "file"), "%s", fault.text);
    cr_assert_null(none);
}

Test(sched_jobs, metrics_grow_by_lines_and_start_anew_with_a_new_run)
{
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_PLAN, .flags = 1}, "{}"), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_METRICS}, "{\"version\": 1}"), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_METRICS}, "{\"version\": 2}"), HX_OK);
    cr_assert_str_eq(content("metrics.jsonl"), "{\"version\": 1}\n{\"version\": 2}\n");
    cr_assert_str_eq(content("plan.json"), "{}\n");
    sched_jobs_destroy(&jobs);
    cr_assert_eq(sched_jobs_open(folder, &jobs, NULL), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_PLAN, .flags = 3}, "{}"), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_METRICS}, "{\"version\": 3}"), HX_OK);
    cr_assert_str_eq(content("metrics.jsonl"),
                     "{\"version\": 1}\n{\"version\": 2}\n{\"version\": 3}\n");
    sched_jobs_destroy(&jobs);
    cr_assert_eq(sched_jobs_open(folder, &jobs, NULL), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_PLAN, .flags = 1}, "{}"), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_METRICS}, "{\"version\": 9}"), HX_OK);
    cr_assert_str_eq(content("metrics.jsonl"), "{\"version\": 9}\n");
}

Test(sched_jobs, the_trace_joins_nodes_and_leaves_nonsense_out)
{
    static const char one[] =
        "{\"name\":\"forward\",\"ph\":\"X\",\"ts\":1.5,\"dur\":2,\"pid\":\"a\"}\n"
        "no json\n[1]\n"
        "{\"name\":\"backward\",\"ph\":\"X\",\"ts\":4}\n";
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_TRACE, .flags = 1}, "east/fast"), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_TRACE}, one), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_TRACE, .index = 3, .flags = 1}, "west/\"x\""),
                 HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_TRACE, .index = 3}, "{\"name\":\"push\"}"),
                 HX_OK);
    cr_assert_null(content("trace.json"));
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_SUMMARY}, "{\"status\": \"done\"}"), HX_OK);
    cr_assert_str_eq(content("summary.json"), "{\"status\": \"done\"}\n");
    json_t *const trace = json_loads(content("trace.json"), 0, NULL);
    const json_t *const events = json_object_get(trace, "traceEvents");
    cr_assert_eq(json_array_size(events), 5);
    cr_assert_eq(json_integer_value(json_object_get(json_array_get(events, 1), "pid")), 1);
    cr_assert_eq(json_integer_value(json_object_get(json_array_get(events, 4), "pid")), 4);
    cr_assert_float_eq(json_number_value(json_object_get(json_array_get(events, 1), "ts")), 1.5,
                       1e-12);
    const json_t *const args = json_object_get(json_array_get(events, 3), "args");
    cr_assert_str_eq(json_string_value(json_object_get(args, "name")), "west/\"x\"");
    json_decref(trace);
}

Test(sched_jobs, a_summary_replaces_the_old_one_whole)
{
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_SUMMARY}, "old"), HX_OK);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_SUMMARY}, "new"), HX_OK);
    cr_assert_str_eq(content("summary.json"), "new\n");
    cr_assert_null(content("summary.json.tmp"));
    cr_assert_null(content("trace.json"));
}

Test(sched_jobs, a_folder_that_vanished_is_an_error)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_SUMMARY}, "{}"), HX_E_IO);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_METRICS}, "{}"), HX_E_IO);
}

Test(sched_jobs, without_a_folder_nothing_is_written)
{
    sched_jobs_t *none = NULL;
    cr_assert_eq(sched_jobs_open(NULL, &none, NULL), HX_OK);
    blob_t *result = NULL;
    blob_t *blob = blob_copy("{}", 2);
    step_job_t job = {.kind = SCHED_JOB_SUMMARY, .blob = blob};
    cr_assert_eq(sched_jobs_run(none, &job, &result), HX_OK);
    blob_release(&blob);
    sched_jobs_destroy(&none);
}

Test(sched_jobs, a_second_scheduler_is_told_who_has_the_folder)
{
    sched_jobs_t *second = NULL;
    hx_fault_t fault = {{0}};
    cr_assert_eq(sched_jobs_open(folder, &second, &fault), HX_E_PEER);
    cr_assert_null(second);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    cr_assert(strstr(fault.text, pid), "%s", fault.text);
    cr_assert(strstr(fault.text, folder), "%s", fault.text);
    cr_assert_eq(sched_jobs_open(NULL, &second, &fault), HX_OK, "one that only plans may");
    sched_jobs_destroy(&second);
    sched_jobs_destroy(&jobs);
    cr_assert_eq(sched_jobs_open(folder, &jobs, &fault), HX_OK, "%s", fault.text);
}

Test(sched_jobs, a_file_that_cannot_be_written_is_named_with_the_reason)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_METRICS}, "{}"), HX_E_IO);
    cr_assert(strstr(why, "one/metrics.jsonl: cannot be written: No such file"), "%s", why);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_TRACE, .flags = 1}, "east/fast"), HX_E_IO);
    cr_assert(strstr(why, "trace.json"), "%s", why);
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_TRACE}, "{}"), HX_OK, "it is said once");
    cr_assert_eq(run((step_job_t){.kind = SCHED_JOB_SUMMARY}, "{}"), HX_E_IO);
    cr_assert(strstr(why, "summary.json"), "%s", why);
}
