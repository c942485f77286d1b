// sched_jobs - plain files through stdio.

#include "scheduler/sched_jobs.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/run_folder.h"
#include "scheduler/sched.h"

struct sched_jobs {
    char folder[PATH_MAX];  // Empty: no files.
    int lock;
    bool resumed;
    FILE *metrics;
    FILE *trace;
    bool trace_begun;  // An event was written: the next needs a comma.
    bool trace_failed;
    dashboard_t *dashboard;  // NULL: none.
    hx_fault_t fault;        // Of the job that is being done.
};

// The log's folder first, so that the run's is there too when it is locked.
static hx_err_t open_folder(const char *folder, int *lock, hx_fault_t *fault)
{
    char log[PATH_MAX];
    const int length = snprintf(log, sizeof log, "%s/log", folder);
    if (length < 0 || (size_t)length >= sizeof log - 32) {
        return hx_fault(fault, HX_E_ARG, "the name of the run's folder is too long");
    }
    HX_TRY(run_folder_make(log, fault));
    HX_TRY(run_folder_make(folder, fault));
    return run_folder_lock(folder, "scheduler.lock", lock, fault);
}

hx_err_t sched_jobs_open(const char *folder, sched_jobs_t **out, hx_fault_t *fault)
{
    int lock = -1;
    if (folder) {
        HX_TRY(open_folder(folder, &lock, fault));
    }
    sched_jobs_t *const self = hx_new(1, sizeof *self);
    self->lock = lock;
    if (folder) {
        snprintf(self->folder, sizeof self->folder, "%s", folder);
    }
    *out = self;
    return HX_OK;
}

void sched_jobs_destroy(sched_jobs_t **self_p)
{
    sched_jobs_t *const self = *self_p;
    if (self) {
        if (self->metrics) {
            fclose(self->metrics);
        }
        if (self->trace) {
            fclose(self->trace);
        }
        run_folder_unlock(&self->lock);
        free(self);
        *self_p = NULL;
    }
}

void sched_jobs_show_at(sched_jobs_t *self, dashboard_t *dashboard)
{
    self->dashboard = dashboard;
}

// The line and the code for the call on a file of the run that just failed.
static hx_err_t failed(sched_jobs_t *self, const char *file)
{
    const int error = errno;
    return hx_fault(&self->fault, error == ENOSPC || error == EDQUOT ? HX_E_NOSPC : HX_E_IO,
                    "%s/%s: cannot be written: %s", self->folder, file, strerror(error));
}

static void path_of(const sched_jobs_t *self, const char *file, char *out)
{
    // The folder left room for its longest file when it was made.
    const int length = snprintf(out, PATH_MAX, "%s/%s", self->folder, file);
    HX_ASSERT(length > 0 && length < PATH_MAX);
}

// Closes; what stdio still held may fail to be written here.
static bool close_synced(FILE **file)
{
    const bool written = fflush(*file) == 0 && fsync(fileno(*file)) == 0;
    const int error = errno;
    const bool closed = fclose(*file) == 0;
    *file = NULL;
    errno = written ? errno : error;
    return written && closed;
}

static hx_err_t write_whole(sched_jobs_t *self, const char *name, const blob_t *text)
{
    char part[PATH_MAX];
    char path[PATH_MAX];
    char part_name[64];
    snprintf(part_name, sizeof part_name, "%s.tmp", name);
    path_of(self, part_name, part);
    path_of(self, name, path);
    FILE *file = fopen(part, "w");
    if (!file) {
        return failed(self, name);
    }
    const size_t size = blob_size(text);
    const bool written = fwrite(blob_data(text), 1, size, file) == size && fputc('\n', file) != EOF;
    const int error = errno;
    const bool closed = close_synced(&file);
    if (!written || !closed) {
        errno = written ? errno : error;
        const hx_err_t err = failed(self, name);
        unlink(part);
        return err;
    }
    return rename(part, path) == 0 ? HX_OK : failed(self, name);
}

// A line that a kill tore is ended, so that it spoils no other.
static bool end_line(FILE *file)
{
    if (fseek(file, -1, SEEK_END) != 0) {
        return true;  // It is empty.
    }
    const int last = fgetc(file);
    return fseek(file, 0, SEEK_END) == 0 && (last == '\n' || fputc('\n', file) != EOF);
}

static hx_err_t write_metrics(sched_jobs_t *self, const blob_t *line)
{
    if (!self->metrics) {
        char path[PATH_MAX];
        path_of(self, "metrics.jsonl", path);
        self->metrics = fopen(path, self->resumed ? "a+" : "w");
        if (!self->metrics || (self->resumed && !end_line(self->metrics))) {
            return failed(self, "metrics.jsonl");
        }
    }
    const size_t size = blob_size(line);
    const bool written = fwrite(blob_data(line), 1, size, self->metrics) == size &&
                         fputc('\n', self->metrics) != EOF && fflush(self->metrics) == 0;
    return written ? HX_OK : failed(self, "metrics.jsonl");
}

// ---- Trace: {"traceEvents": [...]}, processes numbered as nodes, named by metadata events ----

static hx_err_t put_event(sched_jobs_t *self, const json_t *event)
{
    if (!self->trace) {
        char path[PATH_MAX];
        path_of(self, "trace.json.tmp", path);
        self->trace = fopen(path, "w");
        if (!self->trace) {
            return failed(self, "trace.json");
        }
        fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", self->trace);
    }
    fputs(self->trace_begun ? ",\n" : "", self->trace);
    self->trace_begun = true;
    return json_dumpf(event, self->trace, JSON_COMPACT) == 0 ? HX_OK : failed(self, "trace.json");
}

static hx_err_t name_process(sched_jobs_t *self, uint32_t index, const blob_t *name)
{
    json_t *const event = json_pack("{s:s, s:s, s:i, s:i, s:{s:s%}}", "name", "process_name", "ph",
                                    "M", "pid", (int)index + 1, "tid", 1, "args", "name",
                                    (const char *)blob_data(name), blob_size(name));
    if (!event) {
        return HX_E_FORMAT;
    }
    const hx_err_t err = put_event(self, event);
    json_decref(event);
    return err;
}

// What is no JSON object is left out: it must not spoil the events of other nodes.
static hx_err_t add_events(sched_jobs_t *self, uint32_t index, const blob_t *events)
{
    const char *at = blob_data(events);
    const char *const end = at ? at + blob_size(events) : at;
    while (at < end) {
        const char *const newline = memchr(at, '\n', (size_t)(end - at));
        const char *const stop = newline ? newline : end;
        json_t *const event = json_loadb(at, (size_t)(stop - at), 0, NULL);
        if (json_is_object(event)) {
            (void)json_object_set_new(event, "pid", json_integer((json_int_t)index + 1));
            (void)json_object_set_new(event, "tid", json_integer(1));
            const hx_err_t err = put_event(self, event);
            if (err != HX_OK) {
                json_decref(event);
                return err;
            }
        }
        json_decref(event);
        at = newline ? newline + 1 : end;
    }
    return HX_OK;
}

static hx_err_t end_trace(sched_jobs_t *self)
{
    if (!self->trace) {
        return HX_OK;
    }
    char part[PATH_MAX];
    char path[PATH_MAX];
    path_of(self, "trace.json.tmp", part);
    path_of(self, "trace.json", path);
    fputs("\n]}\n", self->trace);
    return close_synced(&self->trace) && rename(part, path) == 0 ? HX_OK
                                                                 : failed(self, "trace.json");
}

// ---- Dispatch ----

static hx_err_t show_plan(sched_jobs_t *self, const step_job_t *job)
{
    self->resumed = (job->flags & 2) != 0;
    if (job->version == 1) {
        const size_t size = blob_size(job->blob);
        const bool written = fwrite(blob_data(job->blob), 1, size, stdout) == size &&
                             ((job->flags & 1) == 0 || fputc('\n', stdout) != EOF) &&
                             fflush(stdout) == 0;
        return written ? HX_OK
                       : hx_fault(&self->fault, HX_E_IO, "standard output: cannot be written: %s",
                                  strerror(errno));
    }
    return self->folder[0] ? write_whole(self, "plan.json", job->blob) : HX_OK;
}

// What is lost of the trace is said once: the rest would be without its beginning.
static hx_err_t trace(sched_jobs_t *self, const step_job_t *job)
{
    if (self->trace_failed) {
        return HX_OK;
    }
    const hx_err_t err = job->flags & 1 ? name_process(self, job->index, job->blob)
                                        : add_events(self, job->index, job->blob);
    self->trace_failed = err == HX_E_IO || err == HX_E_NOSPC;
    return err;
}

static hx_err_t run(sched_jobs_t *self, const step_job_t *job)
{
    if (job->kind == SCHED_JOB_PLAN) {
        return show_plan(self, job);
    }
    if (job->kind == SCHED_JOB_PAGE) {
        if (self->dashboard) {
            dashboard_show(self->dashboard, job->blob);
        }
        return HX_OK;
    }
    if (!self->folder[0]) {
        return HX_OK;
    }
    switch (job->kind) {
    case SCHED_JOB_METRICS:
        return write_metrics(self, job->blob);
    case SCHED_JOB_TRACE:
        return trace(self, job);
    case SCHED_JOB_SUMMARY: {
        const hx_err_t err = self->trace_failed ? HX_OK : end_trace(self);
        const hx_err_t summary = write_whole(self, "summary.json", job->blob);
        return summary != HX_OK ? summary : err;
    }
    default:
        HX_ASSERT(false && "a job that is none");
        return HX_E_UNSUPPORTED;
    }
}

hx_err_t sched_jobs_run(void *self_p, step_job_t *job, blob_t **result)
{
    sched_jobs_t *const self = self_p;
    *result = NULL;
    self->fault.text[0] = '\0';
    const hx_err_t err = run(self, job);
    if (err != HX_OK && self->fault.text[0]) {
        *result = blob_copy(self->fault.text, strlen(self->fault.text));
    }
    return err;
}
